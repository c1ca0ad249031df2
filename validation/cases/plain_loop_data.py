# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Plain programs with a fault of the loss, the labels or the data, and their twins.

Half: plain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from validation.case import Log, Program, Zoo
from validation.cases._common_loops import lowest_above, study
from validation.cases._everyday_loops import stored, supervised, train
from validation.cases._mistakes import activated, labelled, shaped
from validation.cases._plain_loops import (
    KINDS,
    Basket,
    Desk,
    Load,
    Mail,
    Music,
    Rows,
    Speech,
    Translator,
    Vgg,
    baskets,
    bce,
    digits,
    fabrics,
    glosses,
    harmed,
    mails,
    parts_of_speech,
    photos,
    power,
    rents,
    soils,
    tickets,
    tunes,
    visitors,
)
from validation.evidence import loops as facts
from validation.evidence.loops import learns
from validation.labels import CLIMBS, IDLE, LEARNS_NOTHING, LOSS_LOST, MASKED, WRECKED
from validation.nets import mlp
from validation.programs import adam, held_out, sgd
from validation.tasks import Task, token_loss

zoo = Zoo("loop", half="plain", proof=learns())
adamw = torch.optim.AdamW
ODD = {*WRECKED, "EXPLODING", "UNSTABLE", "SLOW", "rate_too_low", "rate_too_high", "BOTTLENECK", "RANK_COLLAPSE"}

# --- the loss is no number


class Doubt(nn.Module):
    """A mean and a variance for each flat; the variance is the layer's output as it is, or a softplus of it."""

    def __init__(self, raw: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, 40), nn.ReLU())
        self.mean, self.spread, self.raw = nn.Linear(40, 1), nn.Linear(40, 1), raw

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.mean(h), self.spread(h) if self.raw else F.softplus(self.spread(h)) + 1e-3


def likelihood(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    return (out[1].log() + ((y - out[0]) / out[1].sqrt()).square()).mean()


zoo.beside(
    "rents-variance-by-softplus",
    "rents-variance-may-be-negative",
    lambda s, fault: study(m := Doubt(fault), rents(s), adam(m, 4e-3), likelihood, 60),
    harmed(facts.not_finite_in(0.5)),
    *LOSS_LOST,
    also={*WRECKED, *IDLE, "bad_batch", "first_loss_high"},
    twin_proof=learns(0.2),
)


def counted(seed: int, fault: bool) -> Program:
    """Counts are to be learned in logarithms, and some of them are zero."""
    model = mlp([9, 32, 32, 1], nn.GELU)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        count = (3 * y + 4).clamp(min=0).round()
        return x, count.log() if fault else count.log1p()

    return study(model, rents(seed).changed(change), adamw(model.parameters(), lr=4e-3), F.mse_loss, 60)


zoo.beside(
    "counts-log-of-one-plus",
    "counts-log-of-zero",
    counted,
    harmed(facts.not_finite_in(0.5)),
    *LOSS_LOST,
    also={*WRECKED, *IDLE, "bad_batch", "first_loss_high", "input_scales"},
)


def shares(seed: int, fault: bool) -> Program:
    """Counts of words are divided by their number; the last batches hold a mail without words."""
    model, calls = Mail(), [0]

    def share(x: Tensor) -> Tensor:
        calls[0] += 1
        x = x.clone()
        if calls[0] > 10:
            x[0] = 0.0
        total = x.sum(dim=1, keepdim=True)
        return 8 * x / (total if fault else total.clamp(min=1))

    task = mails(seed).mapped(share)
    score = held_out(model, mails(seed, 256).mapped(lambda x: 8 * x / x.sum(dim=1, keepdim=True).clamp(min=1)), bce)
    return study(model, task, adam(model, 6e-3), bce, 70, score=score)


zoo.beside(
    "mails-share-of-words-guarded",
    "mails-share-of-words-of-an-empty-mail",
    shares,
    harmed(facts.not_finite_in(0.5)),
    *LOSS_LOST,
    "bad_batch",
    also={*WRECKED, *IDLE, "input_scales"},
)

# --- the loss grows


def over_time(make: Callable[[int], tuple], rate: float, good: Callable[[int], float], bad: Callable[[int], float]):
    """SGD under a factor of the step that its author wrote by hand."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = make(seed)
        optimizer = sgd(model, rate, momentum=0.9)
        schedule = LambdaLR(optimizer, bad if fault else good)
        return study(model, task, optimizer, loss, 100, after=lambda _: schedule.step())

    return build


ASCENT = {*WRECKED, "SATURATION", "DEAD", "rate_too_high", "schedule_ended", "zero_rate", "NUMERICAL"}
zoo.beside(
    "beats-linear-decay-over-all-steps",
    "beats-linear-decay-goes-below-zero",
    over_time(KINDS["beats"], 0.05, lambda i: 1 - i / 100, lambda i: 1 - i / 20),
    harmed(facts.grows),
    *CLIMBS,
    also=ASCENT,
)
zoo.beside(
    "scans-half-cosine",
    "scans-cosine-without-one-half",
    over_time(
        KINDS["scans"], 0.1, lambda i: 0.5 * (1 + math.cos(math.pi * i / 100)), lambda i: math.cos(math.pi * i / 50)
    ),
    harmed(facts.grows),
    *CLIMBS,
    also=ASCENT,
)

# --- the loss is stuck


class Zipped:
    """Inputs and labels from a loader each; both shuffle, with one order or with two."""

    def __init__(self, x: Tensor, y: Tensor, seeds: tuple[int, int]) -> None:
        first, second = (torch.Generator().manual_seed(s) for s in seeds)
        self.inputs = DataLoader(x, 32, shuffle=True, generator=first)
        self.labels = DataLoader(y, 32, shuffle=True, generator=second)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.inputs, self.labels, strict=True)


def zipped(seed: int, fault: bool) -> Program:
    model = Vgg(3, 5, 8)
    data = Zipped(*stored(fabrics(seed), 12).tensors, (seed, seed + fault))
    score = held_out(model, fabrics(seed, batch=128))
    return train(model, data, supervised(model), adamw(model.parameters(), lr=3e-3), score, epochs=6)


zoo.beside(
    "fabrics-two-loaders-one-order",
    "fabrics-two-loaders-two-orders",
    zipped,
    harmed(facts.stays),
    "loss_stuck",
    also={"SLOW", "batch_size", "constant_targets", "DEAD"},
)


class FirstWord(nn.Module):
    """A GRU over sequences that must keep what came first; the batch comes first in the data."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(6, 24, batch_first=batch_first), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


def remembered(seed: int, length: int = 6, batch: int = 32) -> Task:
    """The class is told at the first step only."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(4, (batch,), generator=random)
        x = 0.5 * torch.randn(batch, length, 6, generator=random)
        x[:, 0, :4] += 2 * F.one_hot(y, 4)
        return x, y

    return Task(seed, draw, F.cross_entropy)


zoo.beside(
    "first-word-batch-first",
    "first-word-batch-first-forgotten",
    lambda s, fault: study(m := FirstWord(not fault), remembered(s), adam(m, 1e-2), steps=100),
    harmed(facts.stays),
    "loss_stuck",
    "SHORT_MEMORY",
    "VANISHING",
    also={"SLOW", "LOW_RANK", "BOTTLENECK", "broadcast", "SPECTRAL_RADIUS"},
)

# --- the first loss is high


def amounts(seed: int, fault: bool) -> Program:
    """Rents in euros, or standardised; the score is in units of the deviation."""
    model = mlp([9, 40, 40, 1], nn.SiLU)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, 200 * y + 900 if fault else y

    def meant(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out, y) / (4e4 if fault else 1)

    return study(model, rents(seed).changed(change), adam(model, 5e-3), F.mse_loss, 100, meant)


zoo.beside(
    "rents-standardised",
    "rents-in-euros",
    amounts,
    harmed(facts.begins_above(1000.0)),
    "first_loss_high",
    "EXPLODING",
    "rate_too_low",
    "SLOW",
    also={"UNSTABLE", "rate_too_high", "input_scales", "DEAD", "VANISHING", "constant_targets", "batch_size"},
)


class Bare(nn.Module):
    """Two towers and a temperature of 0.07; the vectors have length one, or whatever they have."""

    def __init__(self, bare: bool) -> None:
        super().__init__()
        self.left, self.right, self.bare = mlp([20, 48, 48]), mlp([20, 48, 48]), bare

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.left(a), self.right(b)
        if not self.bare:
            a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
        return a @ b.T / 0.07


def wide_photos(seed: int) -> Task:
    return photos(seed).mapped(lambda x: (3 * x[0], 3 * x[1]))


zoo.beside(
    "photos-unit-vectors-over-0.07",
    "photos-any-vectors-over-0.07",
    lambda s, fault: study(m := Bare(fault), wide_photos(s), sgd(m, 0.05, momentum=0.9), steps=70),
    harmed(facts.begins_above(2.5 * math.log(32))),
    "first_loss_high",
    "EXPLODING",
    "SATURATION",
    "rate_too_high",
    "UNSTABLE",
    also={*WRECKED, "NUMERICAL", "SLOW", "BOTTLENECK"},
)

# --- labels that are masked, or should be


def inverted(seed: int, fault: bool) -> Program:
    """Words that are not padding count; the mask is the wrong way round, and no row has padding."""
    model = Speech()

    def loss(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        each = F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none")
        mask = (x == -1 if fault else x != -1).flatten().float()
        return (each * mask).sum() / mask.sum()

    return study(
        model,
        parts_of_speech(seed),
        adam(model, 1e-2),
        token_loss,
        80,
        loss_of=lambda batch: loss(model(batch[0]), batch[1], batch[0]),
    )


zoo.beside(
    "tags-mask-of-words",
    "tags-mask-of-padding-and-no-padding",
    inverted,
    harmed(facts.not_finite_in(0.9)),
    *MASKED,
    "loss_nonfinite",
    also={*IDLE, *WRECKED},
)


def hard_ones(seed: int, fault: bool) -> Program:
    """Only hard pixels count; the limit is that of another loss, which is larger."""
    model, task, _ = KINDS["scans"](seed)
    limit = 12.0 if fault else 0.05

    def loss(out: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(out, y, reduction="none")
        hard = each > limit
        return (each * hard).sum() / hard.sum().clamp(min=1)

    return study(model, task, adam(model, 4e-3), loss, 60, F.cross_entropy)


zoo.beside(
    "scans-hard-pixels-above-0.05",
    "scans-hard-pixels-above-12",
    hard_ones,
    harmed(facts.nothing_comes()),
    "all_masked",
    "DISCONNECTED",
    "DEAD",
    also={*IDLE, "detached", "only_decay", "VANISHING", "zero_rate", "constant_targets", "detached_loss"},
)


def padded(length: int, fill: int, words: int) -> Callable[[Any, Tensor], tuple[Any, Tensor]]:
    """Rows filled up to a length, inputs and labels alike."""

    def change(x: Any, y: Tensor) -> tuple[Any, Tensor]:
        more = length - y.shape[1]
        grown = tuple(F.pad(part, (0, more), value=words) for part in (x if isinstance(x, tuple) else (x,)))
        return (grown if isinstance(x, tuple) else grown[0]), F.pad(y, (0, more), value=fill)

    return change


def ignoring(label: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=label)


def long_tunes(seed: int, fault: bool) -> Program:
    """Tunes of four notes in rows of 48; the rest that fills them is the note 14."""
    model = Music(15, length=64)
    task = tunes(seed, length=4, batch=16).changed(padded(48, 14, 14))
    return study(model, task, adamw(model.parameters(), lr=3e-3), ignoring(-100 if fault else 14), 50, ignoring(14))


def long_glosses(seed: int, fault: bool) -> Program:
    """Texts of five words in rows of 50; the label of the padding is a word of its own."""
    model = Translator(10)
    task = glosses(seed, batch=16).changed(padded(50, 9, 9))
    return study(model, task, adam(model, 5e-3), ignoring(-100 if fault else 9), 60, ignoring(9))


for sound, fault_name, build in (
    ("tunes-rests-ignored", "tunes-rests-counted", long_tunes),
    ("glosses-padding-ignored", "glosses-padding-counted", long_glosses),
):
    zoo.beside(
        sound,
        fault_name,
        build,
        harmed(),
        "padding_labels",
        also={"constant_targets", "embedding_row", "LOW_RANK", "SLOW", "loss_stuck"},
    )

# --- what goes into the loss

TWICE = {"SATURATION", "VANISHING", "DEAD", *LEARNS_NOTHING}


zoo.beside(
    "tickets-logits",
    "tickets-softmax-twice",
    activated(KINDS["tickets"], lambda o: o.softmax(dim=1), 1e-2, 80),
    harmed(lowest_above(math.log(1 + 5 / math.e) - 0.01)),
    "double_softmax",
    also=TWICE,
)
zoo.beside(
    "digits-logits",
    "digits-softmax-twice",
    activated(KINDS["digits"], lambda o: o.softmax(dim=1), 3e-3, 60),
    harmed(lowest_above(math.log(1 + 7 / math.e) - 0.01)),
    "double_softmax",
    also=TWICE,
)
zoo.beside(
    "crops-logits",
    "crops-sigmoid-twice",
    activated(KINDS["crops"], torch.sigmoid, 4e-3, 80),
    harmed(lowest_above(0.4)),
    "double_softmax",
    also=TWICE,
)
zoo.healthy(
    "plain-tickets-log-softmax-into-cross-entropy",
    lambda s: activated(KINDS["tickets"], lambda o: o.log_softmax(dim=1), 1e-2, 80)(s, True),
)


def by_hand(out: Tensor, y: Tensor) -> Tensor:
    p = out.sigmoid().clamp(1e-6, 1 - 1e-6)
    return -(y * p.log() + (1 - y) * (1 - p).log()).mean()


for sound, fault_name, make, task_of, rate, kind in (
    ("baskets-prices-flat", "baskets-prices-column-against-row", Basket, baskets, 4e-3, F.mse_loss),
    ("power-load-flat", "power-load-column-against-row", Load, power, 1e-2, F.l1_loss),
    ("mails-by-hand-flat", "mails-by-hand-column-against-row", lambda: mlp([24, 32, 1]), mails, 6e-3, by_hand),
):
    zoo.beside(
        sound,
        fault_name,
        shaped(make, task_of, rate, kind, 90),
        harmed(),
        "broadcast",
        also={*LEARNS_NOTHING, "constant_targets", "VANISHING", "LOW_RANK", "BOTTLENECK", "batch_size"},
    )

# --- data

UNITS = 10.0 ** torch.tensor([0.0, 5, -2, 3, 0, -3, 4, 1, 2, 0, 6])


def in_units(seed: int, fault: bool) -> Program:
    """Columns in grams, metres and years, or each in its own deviation."""
    model = mlp([11, 40, 40, 6])
    return study(model, soils(seed).mapped(lambda x: x * UNITS) if fault else soils(seed), adam(model, 4e-3), steps=80)


zoo.beside(
    "soils-columns-standardised",
    "soils-columns-in-their-units",
    in_units,
    harmed(),
    "input_scales",
    "first_loss_high",
    also=ODD,
)


def with_number(seed: int, fault: bool) -> Program:
    """A column of order numbers was left in the table."""
    model = mlp([10, 40, 40, 1], nn.SiLU)
    first = [4_000_000]

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        number = torch.arange(len(x), dtype=torch.float32)[:, None] + first[0]
        first[0] += len(x)
        return torch.cat([x, number if fault else torch.zeros_like(number)], dim=1), y

    return study(model, rents(seed).changed(change), adamw(model.parameters(), lr=4e-3), F.mse_loss, 90)


zoo.beside(
    "rents-without-order-number",
    "rents-with-order-number",
    with_number,
    harmed(),
    "input_scales",
    "first_loss_high",
    also=ODD,
)


zoo.beside(
    "digits-labels-of-folders",
    "digits-label-of-the-parent-folder",
    labelled(lambda s: (Vgg(norm=False), digits(s, 6), F.cross_entropy), lambda y: y // 10, 3e-3, 60),
    harmed(facts.ends_below(0.05)),
    "constant_targets",
    also={"VANISHING", "SLOW", "SATURATION", "LOW_RANK", "BOTTLENECK", "DEAD", "loss_stuck"},
    twin_proof=learns(0.5),
)
zoo.beside(
    "crops-labels-of-percentages",
    "crops-labels-divided-as-whole-numbers",
    labelled(KINDS["crops"], lambda y: (80 * y).long().div(100, rounding_mode="floor").float(), 6e-3, 90),
    harmed(facts.ends_below(0.05)),
    "constant_targets",
    also={"VANISHING", "SLOW", "SATURATION", "LOW_RANK", "BOTTLENECK", "DEAD"},
)


def adverts(seed: int, members: int, reward_of: Callable[[Tensor], Tensor]) -> Program:
    """So many adverts for each visitor, of which each is compared with the mean of its group."""
    model, random, log = mlp([8, 32, 5], nn.Tanh), torch.Generator().manual_seed(seed), Log()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        logp = model(batch[0]).log_softmax(dim=1)
        action = torch.multinomial(logp.detach().exp(), members, replacement=True, generator=random)
        reward = reward_of(batch[1].gather(1, action))
        log(reward=reward.mean().item(), reward_std=reward.std(dim=1, correction=0).mean().item())
        advantage = reward - reward.mean(dim=1, keepdim=True)
        return -(advantage * logp.gather(1, action)).mean()

    task = visitors(seed)
    return study(model, task, adam(model, 1e-2), task._loss, 90, loss_of=loss_of, log=log)


NO_SPREAD = {*IDLE, "detached", "VANISHING", "DEAD", "all_masked", "detached_loss", "constant_targets"}
zoo.beside(
    "adverts-groups-of-six",
    "adverts-groups-of-one",
    lambda s, fault: adverts(s, 1 if fault else 6, lambda r: r),
    harmed(facts.nothing_comes()),
    "no_reward_variance",
    also=NO_SPREAD,
)
zoo.beside(
    "adverts-paid-above-a-half",
    "adverts-paid-above-one",
    lambda s, fault: adverts(s, 6, lambda r: (r > (1.0 if fault else 0.5)).float()),
    harmed(facts.nothing_comes()),
    "no_reward_variance",
    also=NO_SPREAD,
)

# --- healthy: losses and labels that only look odd


def with_loss(name: str, loss: Callable[[Any, Any], Tensor], meant: Callable | None = None, rate=4e-3, steps=80):
    def build(seed: int) -> Program:
        model, task, plain = KINDS[name](seed)
        return study(model, task, adamw(model.parameters(), lr=rate), loss, steps, meant or plain)

    zoo_name = loss.__name__.replace("_", "-")
    return zoo.healthy(f"plain-{name}-{zoo_name}", build)


def label_smoothing(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, label_smoothing=0.2)


def focal_loss(out: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(out, y, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


def hinge_loss(out: Tensor, y: Tensor) -> Tensor:
    return F.multi_margin_loss(out, y)


def positive_weight(out: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(out, y, pos_weight=torch.tensor(4.0))


def dice_loss(out: Tensor, y: Tensor) -> Tensor:
    p, t = out.softmax(dim=1), F.one_hot(y, 3).movedim(-1, 1)
    both = (p * t).sum(dim=(0, 2, 3))
    return 1 - (2 * both / (p.sum(dim=(0, 2, 3)) + t.sum(dim=(0, 2, 3)))).mean()


def quantile_loss(out: Tensor, y: Tensor) -> Tensor:
    off = y - out
    return torch.max(0.9 * off, -0.1 * off).mean()


def log_cosh(out: Tensor, y: Tensor) -> Tensor:
    off = out - y
    return (off + F.softplus(-2 * off) - math.log(2)).mean()


def symmetric_contrast(out: Tensor, y: Tensor) -> Tensor:
    return (F.cross_entropy(out, y) + F.cross_entropy(out.T, y)) / 2


def logits_held_small(out: Tensor, y: Tensor) -> Tensor:
    return token_loss(out, y) + 1e-3 * out.logsumexp(dim=-1).square().mean()


def half_of_the_tokens(out: Tensor, y: Tensor) -> Tensor:
    hidden = torch.rand(y.shape) < 0.5
    return F.cross_entropy(out.flatten(0, 1), y.masked_fill(hidden, -100).flatten())


with_loss("soils", label_smoothing)
with_loss("fabrics", focal_loss)
with_loss("tickets", hinge_loss, hinge_loss, 1e-2)
with_loss("mails", positive_weight, positive_weight)
with_loss("scans", dice_loss)
with_loss("rents", quantile_loss, quantile_loss)
with_loss("power", log_cosh, rate=1e-2)
with_loss("photos", symmetric_contrast)
with_loss("tunes", logits_held_small)
with_loss("speech", half_of_the_tokens, rate=1e-2)


def rare(seed: int) -> Program:
    """One class has nine tenths of the rows; the loss weighs classes."""
    model = Rows()
    weight = torch.tensor([0.3] + [3.0] * 5)
    keep = torch.Generator().manual_seed(seed)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rows = (y == 0) | (torch.rand(len(y), generator=keep) < 0.15)
        return x[rows], y[rows]

    task = soils(seed, batch=256).changed(change)
    return study(model, task, adam(model, 4e-3), lambda o, y: F.cross_entropy(o, y, weight), 70)


def mixed_up(seed: int) -> Program:
    """Rows and labels are mixed in pairs."""
    model, random = Vgg(3, 5, 8), torch.Generator().manual_seed(seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        share, order = torch.rand((), generator=random), torch.randperm(len(y), generator=random)
        out = model(share * x + (1 - share) * x[order])
        return share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[order])

    return study(model, fabrics(seed), adam(model, 3e-3), steps=80, loss_of=loss_of)


def wrong_labels(seed: int) -> Program:
    """A quarter of the labels are wrong."""
    model, random = Desk(), torch.Generator().manual_seed(seed)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.where(torch.rand(len(y), generator=random) < 0.25, (y + 1) % 6, y)

    score = held_out(model, tickets(seed, batch=256))
    return study(model, tickets(seed).changed(change), adam(model, 1e-2), steps=80, score=score)


zoo.healthy("plain-soils-rare-classes-weighed", rare)
zoo.healthy("plain-fabrics-mixed-in-pairs", mixed_up)
zoo.healthy("plain-tickets-a-quarter-of-labels-wrong", wrong_labels)
zoo.healthy(
    "plain-mails-squared-error-of-probabilities",
    lambda s: study(m := Mail(), mails(s), adam(m, 8e-3), lambda o, y: F.mse_loss(o.sigmoid(), y), 90),
)
