# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks with faults that people reported, the fix of each, and sound ones that made people worry.

Half: reported.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import worse
from validation.cases._everyday_nets import CUT_OFF, NARROW, he
from validation.cases._plain_nets import BLOWN, COLLAPSED, ends_flat
from validation.cases._reported_nets import (
    SQUASHED,
    UNLEARNED,
    Pooled,
    Residual,
    animals,
    dense,
    lesions,
    numerals,
    penguins,
    plates,
    rents,
    scans,
    shots,
    triplets,
    two_convs,
    waves,
)
from validation.evidence import (
    activation_growth,
    both,
    breaks,
    channel_rank,
    dead,
    diverges,
    does_not_move,
    gradient_ratio,
    lags,
    lasting,
    no_gradient,
    rank_at_most,
    saturated,
    thrives,
)
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import frozen, live, pretrain

zoo = Zoo("residual", half="reported", proof=thrives(0.2, most_dead=0.5))


def stream(*blocks: nn.Module, channels: int = 3, width: int = 16) -> nn.Sequential:
    """A convolution into the stream, and blocks."""
    return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), *blocks)


# --- too narrow

# KaiyangZhou/pytorch-center-loss#12, THUFutureLab/gluon-face#6: the head of a pretrained ResNet became a layer of two
# units with ReLU, then the classes; it learns a little and stands.


class Resnet(nn.Module):
    """Basic blocks, the mean, a layer of so many units, the classes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        blocks = [Residual(two_convs(16, norm=True)) for _ in range(2)]
        self.body = stream(*blocks, channels=1)
        self.fc1, self.relu1, self.fc2 = nn.Linear(16 * 9, size), nn.ReLU(), nn.Linear(size, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.relu(self.body(x)), 4).flatten(1)
        return self.fc2(self.relu1(self.fc1(x)))


def headed(seed: int, size: int) -> Setup:
    return live(Resnet(size), numerals(seed, classes=16), "Adam", 4e-3, 80)


head = zoo.healthy("numerals-resnet-head-of-48", lambda s: headed(s, 48))
zoo.sick(
    "numerals-resnet-head-of-2",
    lambda s: headed(s, 2),
    both(lags(0.2), lasting(rank_at_most("fc1", 2.01))),
    *NARROW,
    layer=("fc1", "relu1", "fc2"),
    also=SQUASHED,
    control=head,
)

# d-li14/mobilenetv2.pytorch#4: inverted residuals at a width of 0.1; here the stream keeps one channel.


class Inverted(nn.Module):
    """A narrow stream; each block widens it six times, filters, and narrows it again."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv2d(width, 6 * width, 1), nn.BatchNorm2d(6 * width), nn.ReLU6()),
                *(nn.Conv2d(6 * width, 6 * width, 3, padding=1, groups=6 * width), nn.ReLU6()),
                *(nn.Conv2d(6 * width, width, 1), nn.BatchNorm2d(width)),
            )
            for _ in range(3)
        )
        self.fc = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.fc(x.mean(dim=(2, 3)))


def inverted(seed: int, width: int) -> Setup:
    return live(Inverted(width), animals(seed), "Adam", 1e-2, 80)


broad = zoo.healthy("animals-inverted-stream-of-12", lambda s: inverted(s, 12), thrives(0.2, most_dead=0.7))
zoo.sick(
    "animals-inverted-stream-of-1",
    lambda s: inverted(s, 1),
    both(lags(0.2), lasting(channel_rank("stem", 1.01))),
    *NARROW,
    layer=("stem", "blocks.0", "blocks.1", "blocks.2", "blocks.0.0", "blocks.0.5", "fc"),
    also=SQUASHED,
    control=broad,
)

# microsoft/Bringing-Old-Photos-Back-to-Life#82 and mattragoza/LiGAN#18: how large must the latent space of a residual
# coder be? One number is too few.


class Latent(nn.Module):
    """Residual layers into a code and out of it."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(40, 48), Residual(dense([48, 48, 48])))
        self.code, self.open = nn.Linear(48, code), nn.Linear(code, 48)
        self.leave = nn.Sequential(Residual(dense([48, 48, 48])), nn.Linear(48, 40))

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.open(self.code(self.enter(x))))


def latent(seed: int, code: int) -> Setup:
    return live(Latent(code), scans(seed), "AdamW", 4e-3, 90)


roomy = zoo.healthy("scans-residual-coder-of-16", lambda s: latent(s, 16))
zoo.sick(
    "scans-residual-coder-of-1",
    lambda s: latent(s, 1),
    both(lags(0.2), lasting(rank_at_most("code", 1.01))),
    *NARROW,
    layer=("code", "open"),
    also=SQUASHED,
    control=roomy,
)

# --- sizes

# JiahuiYu/wdsr_ntire2018#14, twtygqyy/pytorch-SRDenseNet#2: many blocks without norm and without the residual scale;
# the output is huge and the loss not finite. A scale of a tenth is the fix.


def upscaled(seed: int, scale: float, count: int = 20, after: bool = False) -> Setup:
    body = stream(*(Residual(he(two_convs(12)), scale, after) for _ in range(count)), channels=1, width=12)
    return live(nn.Sequential(body, nn.Conv2d(12, 1, 3, padding=1)), shots(seed), "SGD", 2e-2, 60, momentum=0.9)


tenth = zoo.healthy("shots-twenty-blocks-scaled-by-a-tenth", lambda s: upscaled(s, 0.1))
zoo.sick(
    "shots-twenty-blocks-unscaled",
    lambda s: upscaled(s, 1.0),
    both(activation_growth(100), worse(3.0)),
    *RUNS_AWAY,
    "rate_too_high",
    "first_loss_high",
    also={*BLOWN, "SLOW"},
    control=tenth,
)

# krasserm/super-resolution#25: the residual scale multiplies the sum and not the branch, so the stream fades at each
# block.


def faded(seed: int, after: bool) -> Setup:
    return upscaled(seed, 0.1, count=6, after=after)


before = zoo.healthy("shots-scale-on-the-branch", lambda s: faded(s, False))
zoo.sick(
    "shots-scale-on-the-sum",
    lambda s: faded(s, True),
    both(lasting(gradient_ratio("0.0", "0.6", below=1e-2)), lags(0.2)),
    "VANISHING",
    "SLOW",
    layer=("0", "0.0", *(f"0.{i}" for i in range(1, 7)), *(f"0.{i}.branch" for i in range(1, 7))),
    also={"LOW_RANK", "BOTTLENECK", "DEAD", "DISCONNECTED", *UNLEARNED},
    control=before,
)

# LeelaChessZero/lczero-training#43: Xavier computed wrongly for kernels, far too large; the stream grows and the
# value head's tanh says 1 for long.


class Valued(nn.Module):
    """A stream of blocks and a value head that ends in tanh."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.body = he(stream(*(Residual(two_convs(12)) for _ in range(3)), channels=1, width=12))
        self.value, self.tanh = nn.Linear(12 * 9, 1), nn.Tanh()
        with torch.no_grad():
            for module in self.body.modules():
                if isinstance(module, nn.Conv2d):
                    module.weight.mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        return self.tanh(self.value(F.avg_pool2d(self.body(x), 4).flatten(1)))


def valued(seed: int, gain: float) -> Setup:
    def change(x: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        return x, (kind[:, None] % 5 - 2) / 2.5

    return live(Valued(gain), numerals(seed).changed(change).with_loss(F.mse_loss), "SGD", 1e-2, 100, momentum=0.9)


right = zoo.healthy("positions-value-head-right-gain", lambda s: valued(s, 0.35))
zoo.sick(
    "positions-value-head-kernels-too-large",
    lambda s: valued(s, 3.0),
    both(lasting(saturated("tanh", "tanh", 0.8)), worse(1.5)),
    "SATURATION",
    "VANISHING",
    "EXPLODING",
    layer=("value", "tanh", "body", "body.0", "body.1", "body.2", "body.3"),
    also={"DEAD", "LOW_RANK", "BOTTLENECK", "DISCONNECTED", "UNSTABLE", "rate_too_high", "first_loss_high", *UNLEARNED},
    control=right,
)

# facebookresearch/deit#122 and facebookresearch/ConvNeXt#27: LayerScale at the value for very deep models in a
# shallow one; the paper's 0.1 is for such depths.


class Scaled(nn.Module):
    """Blocks whose branches are multiplied by learned scales."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(14, 48), nn.Linear(48, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(48) for _ in range(3))
        self.branches = nn.ModuleList(dense([48, 96, 48], nn.GELU) for _ in range(3))
        self.scales = nn.ParameterList(torch.full((48,), scale) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, branch, scale in zip(self.norms, self.branches, self.scales, strict=True):
            x = x + scale * branch(norm(x))
        return self.head(x)


def rescaled(seed: int, scale: float) -> Setup:
    return live(Scaled(scale), penguins(seed), "SGD", 0.05, 100, momentum=0.9)


shallow = zoo.healthy("penguins-layer-scale-one", lambda s: rescaled(s, 1.0))
zoo.sick(
    "penguins-layer-scale-a-millionth",
    lambda s: rescaled(s, 1e-6),
    both(gradient_ratio("branches.1", "head", below=1e-4), worse(1.3)),
    "VANISHING",
    "SLOW",
    "DISCONNECTED",
    layer=tuple(f"branches.{i}{part}" for i in range(3) for part in ("", ".0", ".1", ".2")),
    also={"DEAD", *UNLEARNED},
    control=shallow,
)

# --- nothing fires, nothing comes

# the recipe quoted in JiahuiYu/wdsr_ntire2018#14 (the last norm of a block starts at zero), written for every norm of
# a block: the branch gives zeros and nothing can ever change that.


def zeroed(seed: int, every: bool) -> Setup:
    blocks = [Residual(two_convs(16, norm=True)) for _ in range(3)]
    for block in blocks:
        for at in (1, 4) if every else (4,):
            nn.init.zeros_(block.branch[at].weight)
    return live(Pooled(stream(*blocks), 16, 8), animals(seed, negatives=True), "SGD", 0.1, 80, momentum=0.9)


last = zoo.healthy("animals-last-norm-of-a-block-starts-at-zero", lambda s: zeroed(s, False))
zoo.sick(
    "animals-every-norm-of-a-block-starts-at-zero",
    lambda s: zeroed(s, True),
    both(lasting(dead("features.1.branch.2", 0.99), no_gradient("features.1.branch.0")), lags(0.15)),
    "DEAD",
    "DISCONNECTED",
    layer=tuple(
        f"features.{i}{part}"
        for i in (1, 2, 3)
        for part in ("", *(f".branch{k}" for k in ("", *(f".{j}" for j in range(5)))))
    ),
    also={"VANISHING", "LOW_RANK", "BOTTLENECK", "SYMMETRY", "never_moves", *UNLEARNED},
    control=last,
)

# ImprintLab/MedSegDiff#27, state-spaces/s4#26 (parameters that took no part in the loss): each block reads the stem
# again, and what the one before it said is lost.


class Lost(nn.Module):
    """Three blocks, one after the other, or all of them from the stem, the last of which is kept."""

    def __init__(self, lost: bool) -> None:
        super().__init__()
        self.stem, self.lost = nn.Linear(1, 24), lost
        self.block1, self.block2, self.block3 = (Residual(dense([24, 8, 24], nn.Tanh)) for _ in range(3))
        self.head = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        out = self.block1(x)
        out = self.block2(x if self.lost else out)
        out = self.block3(x if self.lost else out)
        return self.head(out)


def lost(seed: int, fault: bool) -> Setup:
    return live(Lost(fault), waves(seed, (3.0, 8.0, 13.0)), "Adam", 1e-2, 120)


chained = zoo.healthy("waves-blocks-one-after-the-other", lambda s: lost(s, False))
zoo.sick(
    "waves-blocks-read-the-stem-again",
    lambda s: lost(s, True),
    both(lasting(no_gradient("block1", "block2")), worse(1.2)),
    *CUT_OFF,
    "detached",
    layer=tuple(f"block{i}{part}" for i in (1, 2) for part in ("", ".branch", ".branch.0", ".branch.1", ".branch.2")),
    also={"never_moves", "frozen"},
    control=chained,
)

# --- alike

# VisualComputingInstitute/triplet-reid#30: the loss of hard triplets sits at its margin, for all embeddings are one
# point.


class Reid(nn.Module):
    """A residual net that embeds rows."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(20, 48), *(Residual(dense([48, 48, 48])) for _ in range(2)), nn.Linear(48, 16)
        )
        nn.init.xavier_uniform_(self.net[-1].weight, 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def embedded(seed: int, hardest: bool) -> Setup:
    task = penguins(seed, dim=20, apart=0.8).with_loss(triplets(hardest))
    return live(Reid(), task, "Adam", 5e-3, 100)


gentle = zoo.healthy("penguins-reid-triplets-of-the-whole-batch", lambda s: embedded(s, False))
zoo.sick(
    "penguins-reid-hardest-triplets-at-their-margin",
    lambda s: embedded(s, True),
    both(ends_flat("net", 0.1), worse(2.0)),
    *COLLAPSED,
    "VANISHING",
    also={"SYMMETRY", "SLOW", "DEAD", "SATURATION", "DISCONNECTED", *UNLEARNED},
    control=gentle,
)

# --- numbers

# pqhieu/jsis3d#26 (the norm of a vector of zeros): embeddings behind a ReLU are divided by their length, and some are
# zero.


class Sphere(nn.Module):
    """Residual layers, an embedding behind a ReLU, divided by its length."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(14, 32), Residual(dense([32, 32, 32])))
        self.embed, self.kinds, self.eps = nn.Linear(32, 5), nn.Linear(5, 8), eps

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu(self.embed(self.body(x)))
        return self.kinds(5 * z / (z.square().sum(dim=1, keepdim=True) + self.eps).sqrt())


def sphere(seed: int, eps: float) -> Setup:
    return live(Sphere(eps), penguins(seed, batch=128), "Adam", 3e-3, 90)


guarded = zoo.healthy("penguins-length-with-eps", lambda s: sphere(s, 1e-6))
zoo.sick(
    "penguins-length-of-a-zero-vector",
    lambda s: sphere(s, 0.0),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    layer=None,
    also={"EXPLODING", "UNSTABLE", "DEAD"},
    control=guarded,
)

# --- steps

# irolaina/FCRN-DepthPrediction#47: a rate that is too large for a residual net; pictures go black, sometimes NaN.


def depth(seed: int, lr: float) -> Setup:
    body = stream(*(Residual(two_convs(12), 0.5) for _ in range(3)), channels=1, width=12)
    model = nn.Sequential(body, nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1))
    return live(model, plates(seed, noise=0.5), "SGD", lr, 80, momentum=0.9)


steady = zoo.healthy("plates-residual-denoiser-rate-a-twentieth", lambda s: depth(s, 0.05))
zoo.sick(
    "plates-residual-denoiser-rate-3",
    lambda s: depth(s, 3.0),
    both(diverges(3), worse(1.5)),
    *JUMPS,
    "NUMERICAL",
    "rate_too_high",
    also={*BLOWN, "SLOW"},
    control=steady,
)

# sanghyun-son/EDSR-PyTorch#3 and its like ("does not converge, worse than bicubic"): the rate of the paper's last
# epochs.


def crawl(seed: int, lr: float) -> Setup:
    model = nn.Sequential(nn.Linear(9, 32), *(Residual(dense([32, 32, 32]), 0.5) for _ in range(3)), nn.Linear(32, 1))
    return live(model, rents(seed), "Adam", lr, 90)


brisk = zoo.healthy("rents-residual-rate-three-thousandths", lambda s: crawl(s, 3e-3))
zoo.sick(
    "rents-residual-rate-a-hundred-millionth",
    lambda s: crawl(s, 1e-8),
    both(does_not_move(1e-5), lags(0.2)),
    "SLOW",
    "rate_too_low",
    also={"never_moves", "loss_stuck"},
    control=brisk,
)

# --- sound, though it looks odd


class Zero(nn.Module):
    """Each branch is multiplied by a learned number that starts at zero."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(14, 48), nn.Linear(48, 8)
        self.branches = nn.ModuleList(dense([48, 48, 48]) for _ in range(count))
        self.alphas = nn.Parameter(torch.zeros(count))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for alpha, branch in zip(self.alphas, self.branches, strict=True):
            x = x + alpha * branch(x)
        return self.head(x)


# facebookresearch/deit#127: the start of such scales matters little when it is small; branches get nothing at first.
zoo.healthy("penguins-rezero", lambda s: live(Zero(), penguins(s), "Adam", 5e-3, 90))
# facebookresearch/ConvNeXt#44: "the weights are too small to train": a tenth for a shallow net is fine.
zoo.healthy("penguins-layer-scale-a-tenth", lambda s: live(Scaled(0.1), penguins(s), "AdamW", 4e-3, 90))


class Global(nn.Module):
    """The picture itself is added at the end; the net has to say a small correction."""

    def __init__(self) -> None:
        super().__init__()
        self.net = stream(*(Residual(he(two_convs(12)), 0.1) for _ in range(4)), channels=1, width=12)
        self.last = nn.Conv2d(12, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(F.relu(self.net(x)))


# sanghyun-son/EDSR-PyTorch#3: a long skip from the input; what the net says is small, as it should be.
zoo.healthy("shots-small-correction-of-the-input", lambda s: live(Global(), shots(s), "Adam", 4e-3, 90))


def tuned(seed: int) -> Setup:
    """A trained body rests on purpose, in evaluation mode; the head is new."""
    model = Pooled(stream(*(Residual(two_convs(16, norm=True)) for _ in range(2))), 16, 8)
    pretrain(Setup(model=model, input_fn=(task := animals(seed + 40)).input_fn, loss_fn=task.loss_fn), 40, 5e-3)
    model.fc = nn.Linear(16, 8)
    model.features.eval()
    return live(frozen(model, "features"), animals(seed), "Adam", 2e-2, 80)


zoo.healthy("animals-frozen-body-new-head", tuned)


class Dense(nn.Module):
    """Every layer reads all before it."""

    def __init__(self, growth: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(12 + i * growth), nn.ReLU(), nn.Conv2d(12 + i * growth, growth, 3, padding=1))
            for i in range(3)
        )
        self.fc = nn.Linear(12 + 3 * growth, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return self.fc(x.mean(dim=(2, 3)))


zoo.healthy("animals-densely-connected", lambda s: live(Dense(), animals(s), "Adam", 5e-3, 80))


class Depth(nn.Module):
    """Whole branches are dropped at random, so that the loss is noisy."""

    def __init__(self, p: float = 0.3) -> None:
        super().__init__()
        self.stem, self.head, self.p = nn.Linear(14, 48), nn.Linear(48, 8), p
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(48), *dense([48, 48, 48], nn.GELU)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            keep = (torch.rand(len(x), 1) > self.p).float() / (1 - self.p) if self.training else 1.0
            x = x + keep * block(x)
        return self.head(x)


zoo.healthy("penguins-stochastic-depth", lambda s: live(Depth(), penguins(s), "Adam", 4e-3, 100))


class Highway(nn.Module):
    """Gates that start mostly closed, as their authors advise."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(9, 40), nn.Linear(40, 1)
        self.gates, self.values = (nn.ModuleList(nn.Linear(40, 40) for _ in range(3)) for _ in range(2))
        for gate in self.gates:
            nn.init.constant_(gate.bias, -1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for gate, value in zip(self.gates, self.values, strict=True):
            open_ = torch.sigmoid(gate(x))
            x = open_ * torch.tanh(value(x)) + (1 - open_) * x
        return self.head(x)


zoo.healthy("rents-highway-gates-mostly-closed", lambda s: live(Highway(), rents(s), "Adam", 5e-3, 100))
# vitoralbiero/img2pose#46 again: spikes of small batches.
zoo.healthy(
    "animals-resnet-batches-of-6",
    lambda s: live(
        Pooled(stream(*(Residual(two_convs(12, norm=True)) for _ in range(2)), width=12), 12, 8),
        animals(s, batch=6),
        "SGD",
        0.03,
        100,
        momentum=0.9,
    ),
)
# mattragoza/LiGAN#18: a latent space as large as what decides the rows is enough.
zoo.healthy(
    "scans-of-three-things-residual-coder-of-3", lambda s: live(Latent(3), scans(s, factors=3), "AdamW", 5e-3, 100)
)


def masked(seed: int) -> Setup:
    body = stream(*(Residual(two_convs(12, norm=True)) for _ in range(2)), channels=1, width=12)
    return live(nn.Sequential(body, nn.Conv2d(12, 1, 1)), lesions(seed), "AdamW", 8e-3, 70)


zoo.healthy("lesions-residual-masks", masked)
