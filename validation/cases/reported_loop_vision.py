# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Programs around pictures and tables with faults of the loop or the data that people reported, each beside its fix.

Half: reported.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from validation.case import Program, Zoo
from validation.cases._everyday_nets import he
from validation.cases._plain_loops import harmed
from validation.cases._reported_nets import (
    Coder,
    Pooled,
    Residual,
    animals,
    dense,
    lesions,
    numerals,
    plates,
    ratings,
    rents,
    scans,
    two_convs,
    vgg,
)
from validation.evidence.loops import (
    all_of,
    begins_above,
    evaluating,
    floor_above,
    held_by_none,
    learns,
    not_finite_in,
    nothing_comes,
    rate_below,
    repeats,
    resting,
    stale,
    steps_above,
    strangers,
    unmoved,
    vanishes,
)
from validation.labels import (
    ENDED,
    FAST,
    FREEZE,
    HEAPED,
    IDLE,
    LEARNS_NOTHING,
    LOSS_LOST,
    MASKED,
    NO_WAY_BACK,
    REPLACED,
    SUMMED,
    UNBOUND,
    UNHELD,
    WRECKED,
    WRONG_MODE,
)
from validation.programs import adam, clips, fit, held_out, learn, sgd
from validation.setups import pair, pretrain

zoo = Zoo("loop", half="reported", proof=learns(0.25))
ODD = {*WRECKED, "EXPLODING", "UNSTABLE", "SLOW", "rate_too_low", "rate_too_high", "BOTTLENECK", "NUMERICAL"}


def small(channels: int = 3, out: int = 8, norm: bool = True) -> nn.Module:
    return Pooled(vgg([12, 16, 16], channels, norm), 16, out)


# --- what goes in

# kratzert/finetune_alexnet_with_tensorflow#79 (and delijati/pytorch-siamese#3, an integer division): pictures of
# 0..255 go in as they are; results are bad and soon NaN. Divided by 255 all is well.


def pixels(seed: int, fault: bool) -> Program:
    model = he(small(norm=False))
    task = animals(seed).mapped(
        lambda x: (50 * x + 128).clamp(0, 255) if fault else (50 * x / 255).clamp(-0.5, 0.5) * 2
    )
    return fit(model, task, sgd(model, 0.02, momentum=0.9), 90)


zoo.beside(
    "animals-pixels-by-255",
    "animals-pixels-of-0-to-255",
    pixels,
    harmed(),
    "input_scales",
    "rate_too_high",
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    "loss_nonfinite",
    "DEAD",
    "first_loss_high",
    layer=("features.0", "features.1"),
    also={*ODD},
)

# keras-team/keras#2576 (the answers lie between -70 and 70, the targets between -2000 and 2000, after ten epochs):
# prices in coins, never scaled; the net has not reached their mean when training ends.


def prices(seed: int, fault: bool) -> Program:
    model = dense([9, 48, 48, 1])
    task = rents(seed, scale=250.0, base=900.0) if fault else rents(seed)
    unit = 250.0 if fault else 1.0
    return fit(model, task, adam(model, 3e-3), 100, F.mse_loss, meant=lambda out, y: F.mse_loss(out / unit, y / unit))


zoo.beside(
    "rents-scaled",
    "rents-in-coins",
    prices,
    harmed(begins_above(1e4)),
    "first_loss_high",
    "rate_too_low",
    "SLOW",
    also={*ODD, *LEARNS_NOTHING, "input_scales"},
)

# milesial/Pytorch-UNet#228: masks are divided by 255 like the pictures and become `long`: every dot is background.


def masks(seed: int, fault: bool) -> Program:
    model = nn.Sequential(vgg([12, 12], 1, True), nn.Conv2d(12, 2, 1))
    stored = lesions(seed).changed(lambda x, m: (x, 18 * m.squeeze(1)))

    def read(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return x, (mask / 255 if fault else mask / 18).long()

    true = lesions(seed).changed(lambda x, m: (x, m.squeeze(1).long()))
    return fit(model, stored.changed(read), adam(model, 1e-2), 80, unseen=true)


zoo.beside(
    "lesions-masks-as-classes",
    "lesions-masks-divided-by-255",
    masks,
    harmed(vanishes),
    "constant_targets",
    also={*ODD, *LEARNS_NOTHING},
)

# dvornikita/blitznet#31 and mmsegmentation threads on `ignore_index=255`: what is not labelled is 255; here all of it
# is.


def ignored(seed: int, fault: bool) -> Program:
    model = nn.Sequential(vgg([12, 12], 1, True), nn.Conv2d(12, 2, 1))

    def label(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        mask = mask.squeeze(1).long()
        edge = torch.zeros_like(mask).index_fill(1, torch.arange(mask.shape[1] if fault else 2), 1).bool()
        return x, mask.masked_fill(edge, 255)

    def loss(out: Tensor, mask: Tensor) -> Tensor:
        return F.cross_entropy(out, mask, ignore_index=255)

    true = lesions(seed).changed(lambda x, m: (x, m.squeeze(1).long()))
    return fit(model, lesions(seed).changed(label), adam(model, 1e-2), 70, loss, meant=F.cross_entropy, unseen=true)


zoo.beside(
    "lesions-edges-ignored",
    "lesions-every-dot-ignored",
    ignored,
    harmed(not_finite_in(0.9)),
    *MASKED,
    "loss_nonfinite",
    also={*IDLE, *WRECKED, "constant_targets"},
)

# --- what the loss is of

# rasbt/deeplearning-models#76 (first on the list of what to check when a VGG stays at ln 10): softmax before the
# loss.


def twice(seed: int, fault: bool) -> Program:
    model = small()
    loss = (lambda out, y: F.cross_entropy(out.softmax(dim=1), y)) if fault else F.cross_entropy
    return fit(model, animals(seed), sgd(model, 0.05, momentum=0.9), 90, loss, meant=F.cross_entropy)


zoo.beside(
    "animals-one-softmax",
    "animals-softmax-before-cross-entropy",
    twice,
    harmed(floor_above(1.26)),
    "double_softmax",
    also={"SATURATION", "VANISHING", "DEAD", *LEARNS_NOTHING, "rate_too_low"},
)

# fastai/fastai#600: the product of embeddings has the shape (N,), the targets (N, 1), and every rating is held
# against all.


class Products(nn.Module):
    """The product of a user's and an item's vector."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(50, 8), nn.Embedding(30, 8)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.5)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(dim=1)


def columns(seed: int, fault: bool) -> Program:
    model = Products()
    task = ratings(seed).changed(lambda x, y: (x, y[:, None]))

    def meant(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out[:, None], y)

    return fit(model, task, adam(model, 3e-2), 100, F.mse_loss if fault else meant, meant=meant)


zoo.beside(
    "ratings-shapes-agree",
    "ratings-row-against-column",
    columns,
    harmed(),
    "broadcast",
    also={*LEARNS_NOTHING, "constant_targets", "VANISHING", "LOW_RANK", "BOTTLENECK", "batch_size", "DEAD"},
)

# huggingface/torchMoji#21: the error that nothing requires a gradient was silenced by a new variable around the loss;
# the loss stays the same in every epoch.


def wrapped(seed: int, fault: bool) -> Program:
    model = small()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        value = F.cross_entropy(out, y)
        return torch.tensor(value.item(), requires_grad=True) if fault else value

    return fit(model, animals(seed), adam(model, 5e-3), 60, loss, meant=F.cross_entropy)


zoo.beside(
    "animals-loss-as-it-is",
    "animals-loss-wrapped-in-a-new-tensor",
    wrapped,
    harmed(nothing_comes(0.9)),
    *UNBOUND,
    also=NO_WAY_BACK,
)

# laurahanu/2D-and-3D-Deep-Autoencoder#1: the loss of a picture coder is a sum over all dots, half a million; the rate
# is for a mean.


def summed(seed: int, fault: bool) -> Program:
    model = nn.Sequential(nn.Flatten(), dense([144, 48, 24, 48, 144]), nn.Unflatten(1, (1, 12, 12)))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out, y, reduction="sum" if fault else "mean")

    return fit(model, plates(seed), sgd(model, 0.1, momentum=0.9), 90, loss, meant=F.mse_loss)


zoo.beside(
    "plates-mean-over-dots",
    "plates-sum-over-dots",
    summed,
    harmed(begins_above(50)),
    *SUMMED,
    "loss_nonfinite",
    "loss_grows",
    "first_loss_high",
    also={*ODD, "input_scales"},
)

# --- mode

# backseason/PoolNet#30: `eval()` stays on for all of training; right with pretrained norms, wrong with fresh ones and
# features of another scale.


def evaluated(seed: int, fault: bool) -> Program:
    model = small(1, 1).train(not fault)
    task = lesions(seed).changed(lambda x, m: (30 * x + 100, m.flatten(1).mean(dim=1, keepdim=True)))
    return fit(model, task, adam(model, 1e-2), 80, F.mse_loss)


zoo.beside(
    "lesions-size-train-mode",
    "lesions-size-eval-mode-throughout",
    evaluated,
    harmed(evaluating),
    "evaluation_mode",
    also=WRONG_MODE,
)

# --- what is trained

# theflyingbirds.in "PyTorch mysteries": layers in a Python list; the optimizer knows the head alone.


class Listed(nn.Module):
    """Convolutions in a list, of Python or of torch, and a head."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 10, 3, 1, 1), nn.Conv2d(10, 10, 3, 2, 1), nn.Conv2d(10, 10, 3, 2, 1)]
        self.layers = layers if plain else nn.ModuleList(layers)
        self.fc = nn.Linear(10, 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.fc(x.mean(dim=(2, 3)))


def listed(seed: int, fault: bool) -> Program:
    model = Listed(fault)
    return fit(model, animals(seed, negatives=True), adam(model, 1e-2), 90)


zoo.beside(
    "animals-layers-in-a-module-list",
    "animals-layers-in-a-python-list",
    listed,
    harmed(lambda played: (len(played.trainable) == 2, f"{len(played.trainable)} tensors are registered")),
    "hidden_layers",
    "not_in_optimizer",
    "SLOW",
    also={*IDLE, "rate_too_low", "LOW_RANK", "BOTTLENECK"},
)

# VisualComputingInstitute/triplet-reid#30: a body that is frozen as a pretrained one would be, but its weights were
# never loaded.


class Body(nn.Module):
    """Residual blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), *(Residual(two_convs(8, norm=True)) for _ in range(2)))
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.body(x)).mean(dim=(2, 3)))


def frozen_body(seed: int, fault: bool) -> Program:
    model = Body()
    model.body.requires_grad_(not fault)
    trained = [p for p in model.parameters() if p.requires_grad]
    return fit(model, animals(seed, negatives=True), torch.optim.Adam(trained, lr=1e-2), 90)


zoo.beside(
    "animals-fresh-body-trained",
    "animals-fresh-body-frozen",
    frozen_body,
    harmed(resting("body.")),
    *FREEZE,
    layer=("body", "body.0", *(f"body.{i}{part}" for i in (1, 2) for part in ("", ".branch"))),
    also={"not_in_optimizer", "detached", "never_moves", "lora_frozen", *LEARNS_NOTHING},
)

# feedly/transfer-nlp#14 (its method `reset_optimizer`): the last layer is replaced after the optimizer was made,
# which goes on with the old one.


def replaced(seed: int, fault: bool) -> Program:
    """A net that knows other pictures gets a new last layer, which alone is to be trained."""
    model = small()
    pretrain(pair(model, animals(seed + 50)), 50, 1e-2)
    model.features.requires_grad_(False)
    optimizer = adam(model, 2e-2) if fault else None
    model.fc = nn.Linear(16, 8)
    return fit(model, animals(seed), optimizer or adam(model, 2e-2), 80)


zoo.beside(
    "animals-optimizer-after-the-new-head",
    "animals-optimizer-before-the-new-head",
    replaced,
    harmed(all_of(strangers, held_by_none("fc"), unmoved("fc"))),
    *REPLACED,
    "foreign_optimizer",
    "never_moves",
    layer=("fc",),
    also={*IDLE, "frozen"},
)

# cabralpinto/modular-diffusion#17: the optimizer gets the encoder's parameters and not the decoder's.


def halves(seed: int, fault: bool) -> Program:
    model = nn.ModuleDict({"encoder": dense([40, 32, 8]), "decoder": dense([8, 32, 40])})
    task = scans(seed, factors=6)
    x, y = task.aside()

    def loss_of(a: Tensor, b: Tensor) -> Tensor:
        return F.mse_loss(model["decoder"](model["encoder"](a)), b)

    def score() -> float:
        with torch.no_grad():
            return loss_of(x, y).item()

    optimizer = adam(model["encoder"] if fault else model, 5e-3)
    return learn(model, optimizer, task, loss_of, score, 90)


zoo.beside(
    "scans-both-halves-given",
    "scans-only-the-encoder-given",
    halves,
    harmed(all_of(held_by_none("decoder"), unmoved("decoder"))),
    *UNHELD,
    "never_moves",
    layer=("decoder", "decoder.0", "decoder.2"),
    also=IDLE,
)

# --- steps

# Lornatang/SRGAN-PyTorch#1: a step schedule in epochs is stepped after every batch, and the rate is zero within the
# first.


def stepped(seed: int, fault: bool) -> Program:
    model = small()
    optimizer = adam(model, 5e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.1)

    def after(step: int) -> None:
        if fault or step % 30 == 29:
            schedule.step()

    return fit(model, animals(seed), optimizer, 90, after=after)


zoo.beside(
    "animals-schedule-stepped-by-epochs",
    "animals-schedule-stepped-by-batches",
    stepped,
    harmed(rate_below(1e-6)),
    *ENDED,
    "rate_too_low",
    "zero_rate",
    also={*IDLE},
)

# chengyangfu/pytorch-vgg-cifar10#7, geifmany/cifar-vgg#1: the rate of the script gives NaN without its norms; lower
# it.


def hasty(seed: int, fault: bool) -> Program:
    model = he(small(norm=False))
    return fit(model, animals(seed), sgd(model, 1.0 if fault else 0.01, momentum=0.9), 90)


zoo.beside(
    "animals-sgd-a-hundredth",
    "animals-sgd-rate-1",
    hasty,
    harmed(steps_above(2.0)),
    *FAST,
    also={*WRECKED, "first_loss_high", "BOTTLENECK", "SLOW", "SYMMETRY"},
)

# rasbt/deeplearning-models#76 again, its second point: `zero_grad` is missing and gradients pile up.


def piled(seed: int, fault: bool) -> Program:
    model = small(1, 10)
    task = numerals(seed, noise=0.3)
    optimizer = sgd(model, 0.1, momentum=0.9)
    losses: list[float] = []

    def run() -> None:
        for _, (x, y) in zip(range(90), task, strict=False):
            if not fault:
                optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


zoo.beside(
    "numerals-gradients-cleared",
    "numerals-gradients-never-cleared",
    piled,
    harmed(stale()),
    "missing_zero_grad",
    also={*HEAPED, *WRECKED, "NUMERICAL", "SLOW", "BOTTLENECK"},
)

# leohsuofnthu/Pytorch-IterativeFCN#7: `next(iter(loader))` at each step; without shuffling it is the first batch each
# time.


def same(seed: int, fault: bool) -> Program:
    model = small(1, 10)
    source = numerals(seed, batch=12)
    rows = [batch for _, batch in zip(range(100), source, strict=False)]

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for at in range(100):
            yield rows[0 if fault else at]

    return learn(
        model, adam(model, 1e-2), batches(), lambda x, y: F.cross_entropy(model(x), y), held_out(model, numerals(seed))
    )


zoo.beside(
    "numerals-a-new-batch-each-step",
    "numerals-the-first-batch-each-step",
    same,
    harmed(repeats),
    "same_batch",
    also={"SLOW", "loss_stuck", "VANISHING", "batch_size", "constant_targets"},
)

# tensorflow/models#181, zackchase/mxnet-the-straight-dope#3: own cross-entropy by the logarithm of a softmax gives
# NaN once the net is sure; `log_softmax` is the fix. Logits are scaled by 30, as face nets do.


def by_hand(seed: int, fault: bool) -> Program:
    model = Pooled(vgg([12, 16, 16], 3, True), 16, 8)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        chosen = 30 * out
        log = chosen.softmax(dim=1).log() if fault else chosen.log_softmax(dim=1)
        return -(F.one_hot(y, 8) * log).sum(dim=1).mean()

    return fit(
        model, animals(seed, noise=0.3), adam(model, 2e-2), 80, loss, meant=lambda out, y: F.cross_entropy(30 * out, y)
    )


zoo.beside(
    "animals-log-softmax",
    "animals-log-of-softmax-by-hand",
    by_hand,
    harmed(not_finite_in(0.3)),
    *LOSS_LOST,
    also={*ODD, *IDLE, "first_loss_high"},
)

# --- sound loops that made people worry


def accumulated(seed: int) -> Program:
    """Gradients of four small batches, each divided by four: they are old on purpose."""
    model, task = small(), animals(seed, batch=8)
    optimizer = adam(model, 8e-3)
    losses: list[float] = []

    def run() -> None:
        for step, (x, y) in zip(range(200), task, strict=False):
            loss = F.cross_entropy(model(x), y)
            (loss / 4).backward()
            if step % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, animals(seed)))


def validated(seed: int) -> Program:
    """Evaluation mode for a look at unseen pictures, and back."""
    model, task = small(1, 10), numerals(seed)
    x, y = task.aside()

    def look(step: int) -> None:
        if step % 15 == 14:
            model.eval()
            with torch.no_grad():
                F.cross_entropy(model(x), y)
            model.train()

    return fit(model, task, adam(model, 8e-3), 100, after=look)


def plateau(seed: int) -> Program:
    """The rate falls when the loss of unseen rows does not; a small rate at the end is meant."""
    model, task = dense([9, 48, 48, 1]), rents(seed)
    optimizer = adam(model, 1e-2)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    score = held_out(model, task, F.mse_loss)

    def look(step: int) -> None:
        if step % 10 == 9:
            schedule.step(score())

    return fit(model, task, optimizer, 120, F.mse_loss, after=look)


def clipped(seed: int) -> Program:
    """The gradient is clipped at nearly every step, to a size that the rate was chosen for."""
    model = he(small(norm=False))
    return fit(model, animals(seed), sgd(model, 0.1, momentum=0.9), 100, before=clips(model, 0.3))


def pretrained(seed: int) -> Program:
    """jzenn/Image-AutoEncoder#1: only one half is in the optimizer, for the other is trained and frozen on purpose."""
    model = Coder(40, 12)
    pretrain(pair(model, scans(seed, factors=6)), 100, 5e-3)
    model.decoder = dense([12, 64, 40])
    model.encoder.requires_grad_(False)
    return fit(model, scans(seed, factors=6), adam(model.decoder, 5e-3), 90, F.mse_loss)


def several(seed: int) -> Program:
    """The answer in leohsuofnthu/Pytorch-IterativeFCN#7: a new iterator at each step is fine when it shuffles."""
    model = small(1, 10)
    x, y = (
        torch.cat(parts) for parts in zip(*(b for _, b in zip(range(20), numerals(seed), strict=False)), strict=True)
    )
    loader = DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=torch.Generator().manual_seed(seed))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(100):
            yield next(iter(loader))

    score = held_out(model, numerals(seed))
    return learn(model, adam(model, 8e-3), batches(), lambda a, b: F.cross_entropy(model(a), b), score)


for name, build in (
    ("animals-four-batches-for-a-step", accumulated),
    ("numerals-looks-at-unseen-pictures", validated),
    ("rents-rate-falls-on-a-plateau", plateau),
    ("animals-clipped-at-nearly-every-step", clipped),
    ("numerals-new-iterator-that-shuffles", several),
):
    zoo.healthy(f"reported-{name}", build)
zoo.healthy("reported-scans-new-decoder-for-a-trained-encoder", pretrained)
