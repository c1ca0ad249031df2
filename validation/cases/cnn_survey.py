# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks with one fault of each kind, their twins, and odd healthy ones.

Half: holdout.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.signal import (
    activation_growth,
    both,
    channel_rank,
    dead,
    equal_units,
    gradient_ratio,
    no_gradient,
    not_finite,
    rank_at_most,
    saturated,
)
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread, learns_less, trains
from validation.labels import DEADENS, JUMPS, RUNS_AWAY
from validation.nets import ConvCoder, ConvNet, Lambda, Signal, gaussian_, he_, xavier_
from validation.setups import biased, pair, partly_dead, rated, scaled
from validation.tasks import Task, every, images, pictures, waves

zoo = Zoo("cnn", half="holdout", proof=trains(lr=3e-3, steps=30))


def grey(seed: int, batch: int = 20) -> Task:
    return images(seed, 1, 8, 5, batch, 1.5)


# --- dying and growing

softsign = zoo.healthy("softsign-conv-xavier-4x14", lambda s: pair(soft_convs(4), grey(s)), trains(lr=1e-2, steps=60))


def soft_convs(depth: int, default: bool = False) -> nn.Module:
    model = ConvNet([1] + [14] * depth, 5, nn.Softsign)
    return model if default else gaussian_(model, 1.3)


zoo.sick(
    "softsign-conv-default-14x14",
    lambda s: pair(soft_convs(14, default=True), grey(s)),
    gradient_ratio(below=10**-2.5),
    "VANISHING",
    control=softsign,
)


def pooled(seed: int, path: str = "convs.0", factor: float = 1.0) -> Setup:
    return scaled(
        he_(ConvNet([3, 18, 18, 18, 18], 6, nn.GELU, pool=(1,))), path, factor, images(seed, 3, 8, 6, 28, 1.5)
    )


gelu = zoo.healthy("gelu-conv-4x18-pooled", pooled, trains(lr=1e-2, steps=40))
zoo.sick(
    "gelu-conv-4x18-second-kernel-times-4e-6",
    lambda s: pooled(s, "convs.1", 4e-6),
    gradient_ratio("convs.0", "convs.1", below=10**-2.5),
    "VANISHING",
    layer="convs.1",
    control=gelu,
)
zoo.sick(
    "gelu-conv-4x18-third-kernel-times-2e4",
    lambda s: pooled(s, "convs.2", 2e4),
    both(gradient_ratio("convs.1", "convs.2", above=100), activation_growth(100)),
    "EXPLODING",
    layer="convs.2",
    also={"UNSTABLE"},
    control=gelu,
)

# --- dead, cut, flat, equal


def rectified(widths: tuple[int, ...] = (3, 22, 22, 22)) -> ConvNet:
    return he_(ConvNet(widths, 6))


relu = zoo.healthy("relu-conv-3x22", lambda s: pair(rectified(), images(s, 3, 8, 6, 40, 1.5)))
zoo.sick(
    "relu-conv-3x22-last-bias-minus-45",
    lambda s: biased(rectified(), "convs.2", -45, images(s, 3, 8, 6, 40, 1.5)),
    both(dead("acts.2", 0.99), no_gradient("convs")),
    "DEAD",
    layer="convs.2",
    also=DEADENS,
    control=relu,
)
zoo.sick(
    "relu-conv-3x22-two-thirds-of-second-dead",
    lambda s: partly_dead(rectified(), "convs.1", 0.7, images(s, 3, 8, 6, 40, 1.5)),
    dead("acts.1", 0.65),
    "DEAD",
    layer="convs.1",
    control=relu,
)


def rounded(seed: int) -> Setup:
    """Features are rounded to whole numbers between two convolutions, so no gradient comes back."""
    model = rectified()
    model.norms[1] = Lambda(torch.round)
    return pair(model, images(seed, 3, 8, 6, 40, 1.5))


zoo.sick(
    "relu-conv-3x22-second-rounded-to-whole-numbers",
    rounded,
    no_gradient("convs.0", "convs.1"),
    "DISCONNECTED",
    "DEAD",
    layer="convs.1",
    also={"VANISHING"},
    control=relu,
)


def squashed(seed: int, factor: float) -> Setup:
    model = xavier_(Signal([3, 20, 20, 20], 5, nn.Tanh, 3))
    return pair(model, waves(seed, 3, 24, 5, 36).mapped(lambda x: factor * x))


tanh = zoo.healthy("signal-tanh-3x20", lambda s: squashed(s, 1.0), trains(lr=1e-2))
zoo.sick(
    "signal-tanh-3x20-inputs-times-300",
    lambda s: squashed(s, 300.0),
    saturated("acts.0", "tanh", 0.9),
    "SATURATION",
    "VANISHING",
    layer="convs.0",
    also={"EXPLODING", "UNSTABLE"},
    control=tanh,
)


@torch.no_grad()
def one_kernel(seed: int) -> Setup:
    """The second layer has one kernel for all its channels, and the third reads them alike."""
    model = rectified((3, 16, 16, 16))
    for conv in (model.convs[1], model.convs[2]):
        conv.bias.zero_()
    model.convs[1].weight.copy_(model.convs[1].weight[:1].abs().expand(16, -1, -1, -1).clone() / 2)
    model.convs[2].weight.copy_(model.convs[2].weight[:, :1].expand(-1, 16, -1, -1).clone() / 3)
    return pair(model, images(seed, 3, 8, 6, 40, 1.5))


zoo.sick(
    "relu-conv-3x16-second-of-one-kernel",
    one_kernel,
    equal_units("convs.1.weight"),
    "SYMMETRY",
    layer="convs.1",
    also={"LOW_RANK", "BOTTLENECK"},
    control=relu,
)

# --- narrow


def waist(seed: int, narrow: int) -> Setup:
    model = he_(ConvNet([3, 20, 20, narrow, 20], 9, nn.SiLU, stride=2))
    return pair(model, images(seed, 3, 8, 9, 36, 2.0))


silu = zoo.healthy("silu-conv-4x20-strided-of-9-classes", lambda s: waist(s, 20), trains(lr=1e-2))
zoo.sick(
    "silu-conv-4x20-strided-third-of-1-channel",
    lambda s: waist(s, 1),
    both(channel_rank("convs.2", 1.01), learns_less(lr=1e-2, by=0.12)),
    "BOTTLENECK",
    layer=("convs.2", "convs.3"),
    also={"LOW_RANK"},
    control=silu,
)


class Flat(nn.Module):
    """Two strided convolutions, a summary of `narrow` numbers, a classifier."""

    def __init__(self, narrow: int) -> None:
        super().__init__()
        self.low, self.high = nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.squeeze, self.open, self.head = nn.Linear(96, narrow), nn.Linear(narrow, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.high(F.elu(self.low(x))))
        return self.head(F.elu(self.open(self.squeeze(x.flatten(1)))))


roomy = zoo.healthy("strided-elu-summary-32", lambda s: pair(Flat(32), images(s, 1, 8, 10, 48, 1.5)), trains(lr=1e-2))
zoo.sick(
    "strided-elu-summary-1-of-10-classes",
    lambda s: pair(Flat(1), images(s, 1, 8, 10, 48, 1.5)),
    both(rank_at_most("squeeze", 1), learns_less(lr=1e-2, by=0.12)),
    "BOTTLENECK",
    layer=("squeeze", "open"),
    also={"LOW_RANK"},
    control=roomy,
)

# --- numbers and rates


def own_rms(seed: int, eps: float) -> Setup:
    """Divides each channel by its root mean square; the last picture of a batch is empty."""
    model = he_(ConvNet([2, 16, 16], 5, nn.GELU))
    model.norms[0] = Lambda(lambda h: h / (h.square().mean(dim=(2, 3), keepdim=True) + eps).sqrt())
    for conv in model.convs:
        conv.bias.data.zero_()
    empty = images(seed, 2, 8, 5, 24, 1.5).mapped(lambda x: torch.cat([x[:-1], 0 * x[-1:]]))
    return pair(model, empty)


safe = zoo.healthy("own-rms-norm-with-eps", lambda s: own_rms(s, 1e-5))
zoo.sick(
    "own-rms-norm-of-an-empty-picture",
    lambda s: own_rms(s, 0.0),
    not_finite(batches=2),
    "NUMERICAL",
    layer=("convs.0", "norms.0", "convs.1"),
    control=safe,
)


def half(seed: int, factor: float) -> Setup:
    """All in float16; large inputs overflow it on the way."""
    task = images(seed, 3, 8, 6, 24, 1.5).mapped(lambda x: (factor * x).half())
    return pair(he_(ConvNet([3, 24, 24, 24], 6)).half(), task.with_loss(lambda y, t: F.cross_entropy(y.float(), t)))


small = zoo.healthy("float16-conv-3x24", lambda s: half(s, 1.0), trains(lr=0.05, sgd=True, steps=60))
zoo.sick(
    "float16-conv-3x24-inputs-times-15000",
    lambda s: half(s, 15000.0),
    not_finite(batches=3),
    "NUMERICAL",
    "EXPLODING",
    also={"UNSTABLE"},
    control=small,
)
paced = zoo.healthy(
    "conv-coder-adam-3e-3", lambda s: rated(ConvCoder(20, 10), pictures(s, 8), "Adam", 3e-3, 25), trains(steps=80)
)
zoo.sick(
    "conv-coder-adam-6",
    lambda s: rated(ConvCoder(20, 10), pictures(s, 8), "Adam", 6.0, 20),
    diverges(),
    *RUNS_AWAY,
    also={"SATURATION", "DEAD"},
    control=paced,
)
zoo.sick(
    "conv-coder-sgd-2e-8",
    lambda s: rated(ConvCoder(20, 10), pictures(s, 8), "SGD", 2e-8, 25),
    does_not_move(),
    "SLOW",
    control=paced,
)


def brighter(seed: int, times: float) -> Setup:
    """In every ninth batch one picture is that much brighter, as input and as what is to be reconstructed."""
    now, task = every(9, 4), pictures(seed, 6)
    kept: list[Tensor] = []

    def draw() -> Tensor:
        x = task.input_fn().clone()
        x[0] *= times if now() else 1.0
        kept[:] = [x]
        return x

    return Setup(model=ConvCoder(16, 12), input_fn=draw, loss_fn=lambda y: F.mse_loss(y, kept[0]), steps=54)


level = zoo.healthy("conv-coder-even-exposure", lambda s: brighter(s, 1.0), trains(lr=1e-2, steps=60))
zoo.sick(
    "conv-coder-one-bright-picture-in-every-ninth-batch",
    lambda s: brighter(s, 200.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=level,
)

# --- odd and healthy

zoo.healthy(
    "batch-norm-conv-9x12",
    lambda s: pair(ConvNet([3] + [12] * 9, 6, norm=nn.BatchNorm2d, pool=(3,)), images(s, 3, 8, 6, 24, 1.5)),
    trains(lr=3e-3, steps=40),
)
zoo.healthy(
    "instance-norm-conv-4x16",
    lambda s: pair(ConvNet([1] + [16] * 4, 4, nn.ELU, norm=lambda c: nn.GroupNorm(c, c)), images(s, 1, 8, 4, 16, 2.0)),
    trains(lr=3e-3, steps=60, fall=0.05),
)
zoo.healthy(
    "conv-widths-6-12-48-down-to-8",
    lambda s: pair(he_(ConvNet([3, 6, 12, 48, 8], 4, nn.LeakyReLU)), images(s, 3, 8, 4, 24, 1.5)),
    trains(lr=1e-2),
)
zoo.healthy(
    "signal-kernel-9-batch-6",
    lambda s: pair(he_(Signal([4, 30, 30], 6, nn.SiLU, 9)), waves(s, 4, 40, 6, 6)),
    trains(lr=3e-3, steps=60),
)
