# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Programs with a fault of the loss, the labels or the data, after other stories, and their repaired twins.

Half: fresh.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.evidence import loops as facts
from validation.evidence.loops import broken, learns
from validation.labels import BIG_START, CLIMBS, IDLE, LEARNS_NOTHING, LOSS_LOST, MASKED, WRECKED
from validation.nets import SequenceModel, mlp
from validation.nets.programs import Tagger
from validation.programs import adam, fit, held_out, sgd, step_from
from validation.tasks.everyday import stains
from validation.tasks.rewards import short_of_best
from validation.tasks.sequences import markov, token_loss
from validation.tasks.task import Task, drawn_once
from validation.tasks.trades import errands, glyphs, homes, loads, majority, paints, pulses, sorting
from validation.tasks.vectors import patches, regression

zoo = Zoo("loop", half="fresh", proof=learns())

# --- losses that are lost, that grow, that stay, that start too high


def rmsle(seed: int, floor: bool) -> Program:
    """The error of logarithms, for predictions that may be below minus one."""

    def loss(y: Tensor, t: Tensor) -> Tensor:
        y = y.clamp_min(-0.9) if floor else y
        return F.mse_loss(torch.log1p(y), torch.log1p(t)).sqrt()

    model = mlp([9, 48, 48, 1], nn.GELU)
    nn.init.zeros_(model[4].bias)
    model[4].weight.data *= 6
    task = homes(seed).changed(lambda x, t: (x, (2 * t).exp()))
    meant = F.smooth_l1_loss
    return fit(model, task, adam(model, 5e-3), 80, loss, meant)


floored = zoo.healthy("error-of-logarithms-with-floor", lambda s: rmsle(s, True))
zoo.sick(
    "error-of-logarithms-below-minus-one",
    lambda s: rmsle(s, False),
    broken(facts.not_finite_in(0.5), less=0),
    *LOSS_LOST,
    also={"DEAD", "UNSTABLE", "EXPLODING", *LEARNS_NOTHING},
    control=floored,
)


def uphill(seed: int, sign: float) -> Program:
    """A minus from an attack on the model was left in front of the loss."""
    model = nn.Sequential(nn.Conv1d(2, 16, 7, 2), nn.SiLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 5))
    task, optimizer, losses = pulses(seed), sgd(model, 0.05, momentum=0.9), []

    def run() -> None:
        for (x, y), _ in zip(task, range(60), strict=False):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            (sign * loss).backward()
            optimizer.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


downhill = zoo.healthy("heartbeats-downhill", lambda s: uphill(s, 1.0))
zoo.sick(
    "heartbeats-minus-of-an-attack-left-in",
    lambda s: uphill(s, -1.0),
    broken(facts.grows, less=0),
    *CLIMBS,
    "NUMERICAL",
    also={"SATURATION", "DEAD", "rate_too_high", "loss_nonfinite", "VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=downhill,
)


class Pooled(nn.Module):
    """The mean of a text over the places that a mask keeps; `inverted` keeps the padding instead."""

    def __init__(self, inverted: bool) -> None:
        super().__init__()
        self.words, self.inverted = nn.Embedding(7, 24, padding_idx=6), inverted
        self.body = mlp([24, 48, 6], nn.GELU)

    def forward(self, tokens: Tensor) -> Tensor:
        keep = (tokens == 6) if self.inverted else (tokens != 6)
        keep = keep.float()[..., None]
        return self.body((self.words(tokens) * keep).sum(dim=1) / keep.sum(dim=1).clamp_min(1))


def texts(seed: int, inverted: bool) -> Program:
    model = Pooled(inverted)
    task = majority(seed).mapped(lambda x: F.pad(x, (0, 4), value=6))
    return fit(model, task, adam(model, 1e-2), 80)


kept = zoo.healthy("texts-mask-keeps-the-words", lambda s: texts(s, False))
zoo.sick(
    "texts-mask-keeps-the-padding",
    lambda s: texts(s, True),
    broken(facts.stays, less=0.1),
    "loss_stuck",
    "never_moves",
    also={"SLOW", "LOW_RANK", "VANISHING", "DISCONNECTED", "detached", "DEAD", "BOTTLENECK", "only_decay"},
    control=kept,
)


def noise_labels(seed: int, mixed: bool) -> Program:
    """Augmented pictures are stacked behind their originals, the labels beside theirs: two orders."""

    def double(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        pictures = torch.stack([x.flip(3), x.flip(2)], dim=0 if mixed else 1).flatten(0, 1)
        return pictures, t.repeat_interleave(2)

    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.SiLU(), nn.Flatten(), nn.Linear(144, 8))
    return fit(model, paints(seed, batch=64).changed(double), adam(model, 3e-3), 90, unseen=paints(seed, batch=128))


one_order = zoo.healthy("augmented-pictures-beside-their-originals", lambda s: noise_labels(s, False))
zoo.sick(
    "augmented-pictures-behind-their-originals",
    lambda s: noise_labels(s, True),
    broken(facts.stays, less=0.2),
    "loss_stuck",
    also={"SLOW"},
    control=one_order,
)


class Summed(nn.Module):
    """A set by the sum or by the mean of its members."""

    def __init__(self, total: bool) -> None:
        super().__init__()
        self.each, self.out, self.total = mlp([24, 64, 64], nn.SiLU), nn.Linear(64, 6), total

    def forward(self, x: Tensor) -> Tensor:
        h = self.each(x)
        return self.out(40 * h.sum(dim=1) if self.total else h.mean(dim=1))


def summed(seed: int, total: bool) -> Program:
    model = Summed(total)
    return fit(model, patches(seed, 24), adam(model, 1e-3), 70)


averaged = zoo.healthy("set-by-its-mean", lambda s: summed(s, False))
zoo.sick(
    "set-by-its-sum-of-large-counts",
    lambda s: summed(s, True),
    broken(facts.begins_above(4 * math.log(6))),
    *BIG_START,
    "SATURATION",
    also={"UNSTABLE", "rate_too_low", "SLOW", "rate_too_high"},
    control=averaged,
)


def cents(seed: int, factor: float) -> Program:
    """Prices in cents."""
    model = mlp([9, 48, 48, 1], nn.SiLU)
    return fit(model, homes(seed).changed(lambda x, t: (x, factor * (t + 3))), adam(model, 5e-3), 100, F.mse_loss)


euros = zoo.healthy("prices-of-a-few", lambda s: cents(s, 1.0))
zoo.sick(
    "prices-in-cents",
    lambda s: cents(s, 20000.0),
    broken(facts.begins_above(1e6), less=0.2),
    *BIG_START,
    also={"rate_too_low", "SLOW", "UNSTABLE", "LOW_RANK", "input_scales", *LEARNS_NOTHING},
    control=euros,
)

# --- labels


def segmented(seed: int, missing) -> Program:
    """Labels are written as bytes; what has no name is 255, which the loss leaves out."""

    def write(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        label = t[:, 0].long()
        return x, torch.full_like(label, 255) if missing() else label

    task = stains(seed).changed(write)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 1, 1), nn.SiLU(), nn.Conv2d(12, 12, 3, 1, 1), nn.SiLU(), nn.Conv2d(12, 2, 1)
    )
    loss_fn = nn.CrossEntropyLoss(ignore_index=255)
    unseen = stains(seed).changed(lambda x, t: (x, t[:, 0].long()))
    return fit(model, task, adam(model, 5e-3), 60, loss_fn, unseen=unseen)


def from_time_to_time(period: int):
    calls = iter(range(10**6))
    return lambda: next(calls) % period == period - 1


named = zoo.healthy("stains-all-named", lambda s: segmented(s, lambda: False))
zoo.sick(
    "stains-no-name-in-every-fourth-file",
    lambda s: segmented(s, from_time_to_time(4)),
    broken(facts.not_finite_in(0.2)),
    *MASKED,
    also={"loss_nonfinite"},
    control=named,
)
zoo.sick(
    "stains-no-names-at-all",
    lambda s: segmented(s, lambda: True),
    broken(facts.not_finite_in(1.0), less=0.05),
    *MASKED,
    also={"loss_nonfinite", *IDLE, "only_decay"},
    control=named,
)


def padded(seed: int, ignore: bool) -> Program:
    """Short sentences in long rows; the padding is a word like any other to the loss."""
    random = drawn_once(seed, 96)

    def pad(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        beyond = torch.arange(24)[None] >= torch.randint(2, 5, (len(x), 1), generator=random)
        return x.masked_fill(beyond, 20), y.masked_fill(beyond, 20)

    model = Tagger(nn.Embedding(21, 24), nn.LSTM(24, 24, batch_first=True), 21, 24)
    meant = nn.CrossEntropyLoss(ignore_index=20)
    used = meant if ignore else nn.CrossEntropyLoss()

    def flat(loss: nn.Module):
        return lambda out, y: loss(out.flatten(0, 1), y.flatten())

    return fit(model, markov(seed, 20, 24, 16).changed(pad), adam(model, 5e-3), 60, flat(used), flat(meant))


ignored = zoo.healthy("sentences-padding-left-out", lambda s: padded(s, True))
zoo.sick(
    "sentences-padding-counted",
    lambda s: padded(s, False),
    broken(less=0.9),
    "padding_labels",
    also={"constant_targets"},
    control=ignored,
)


def answers(seed: int, compare) -> Program:
    """Answers are text; what they are compared with is not."""
    task = homes(seed).changed(lambda x, t: (x, compare(["yes" if v > 0 else "no" for v in t[:, 0].tolist()])))
    unseen = homes(seed, batch=256).changed(lambda x, t: (x, (t[:, :1] > 0).float()))
    model = mlp([9, 40, 40, 1], nn.SiLU)
    return fit(model, task, adam(model, 5e-3), 100, nn.BCEWithLogitsLoss(), unseen=unseen)


def as_numbers(yes: object):
    return lambda texts: torch.tensor([[float(text == yes)] for text in texts])


compared = zoo.healthy("answers-compared-with-text", lambda s: answers(s, as_numbers("yes")))
zoo.sick(
    "answers-compared-with-bytes",
    lambda s: answers(s, as_numbers(b"yes")),
    broken(facts.vanishes, less=0.3),
    "constant_targets",
    also={"VANISHING", "LOW_RANK", "SATURATION"},
    control=compared,
)

# --- what goes into the loss


class Sorter(nn.Module):
    """Sorts tokens by an encoder; the last line makes probabilities, for the demo."""

    def __init__(self, probabilities: bool) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(8, 32), nn.Parameter(0.3 * torch.randn(1, 7, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.out, self.probabilities = nn.Linear(32, 8), probabilities

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.out(self.layer(self.words(tokens) + self.place))
        return F.softmax(logits, dim=-1) if self.probabilities else logits


def sorted_(seed: int, probabilities: bool) -> Program:
    model = Sorter(probabilities)
    return fit(model, sorting(seed), adam(model, 5e-3), 100, token_loss)


logits = zoo.healthy("sorter-logits", lambda s: sorted_(s, False))
zoo.sick(
    "sorter-probabilities-for-the-demo",
    lambda s: sorted_(s, True),
    # ln(1 + 7/e) is the least that a softmax of probabilities can reach with eight classes.
    broken(facts.floor_above(1.27)),
    "double_softmax",
    also={"SATURATION", "VANISHING", *LEARNS_NOTHING},
    control=logits,
)


def hourly(seed: int, squeeze: bool) -> Program:
    """As many towns as hours: (24, 24, 1) minus (24, 24) is a cube, and nobody is told."""
    task = loads(seed, 24, 24).changed(lambda x, t: (x, t[..., 0]))
    model = SequenceModel(nn.GRU(1, 24, batch_first=True), 1, every_step=True)

    def loss(out: Tensor, t: Tensor) -> Tensor:
        return ((out.squeeze(-1) if squeeze else out) - t).abs().mean()

    return fit(model, task, adam(model, 1e-2), 80, loss, lambda out, t: F.mse_loss(out.squeeze(-1), t))


of_one_shape = zoo.healthy("hours-of-one-shape", lambda s: hourly(s, True))
zoo.sick(
    "hours-make-a-cube",
    lambda s: hourly(s, False),
    broken(less=0.4),
    "broadcast",
    also=LEARNS_NOTHING,
    control=of_one_shape,
)


def counted(seed: int, squeeze: bool) -> Program:
    """Counts by their logarithmic rate, (N, 1) against (N,)."""
    task = regression(seed, 8, batch=48).changed(lambda x, t: (x, (2 * t[:, 0]).exp().round()))
    model = mlp([8, 48, 48, 1], nn.SiLU)

    def loss(z: Tensor, t: Tensor) -> Tensor:
        return F.poisson_nll_loss(z.squeeze(1) if squeeze else z, t)

    return fit(model, task, adam(model, 5e-3), 100, loss, lambda z, t: F.poisson_nll_loss(z.squeeze(1), t) + 3)


rates = zoo.healthy("counts-of-one-shape", lambda s: counted(s, True))
zoo.sick(
    "counts-broadcast", lambda s: counted(s, False), broken(less=0.5), "broadcast", also=LEARNS_NOTHING, control=rates
)

# --- data


def stamped(seed: int, raw: bool) -> Program:
    """Seconds since 1970, an account number and an age beside columns between zero and one."""
    offsets, factors = torch.zeros(12), torch.ones(12)
    offsets[:3], factors[:3] = torch.tensor([1.7e9, 5e6, 40.0]), torch.tensor([1e7, 2e6, 15.0])
    task = regression(seed, 12, batch=64).mapped(lambda x: offsets + factors * x if raw else x)
    model = mlp([12, 48, 48, 1], nn.ReLU)
    return fit(model, task, adam(model, 3e-3), 100, F.mse_loss)


standard = zoo.healthy("columns-without-stamps", lambda s: stamped(s, False))
zoo.sick(
    "columns-with-a-time-stamp",
    lambda s: stamped(s, True),
    broken(lambda p: (not p.end < 0.5, f"ends at {p.end:.3g}")),
    "input_scales",
    also={"first_loss_high", "EXPLODING", "UNSTABLE", "NUMERICAL", "LOW_RANK", "rate_too_high", *WRECKED, "BOTTLENECK"},
    control=standard,
)


def rewarded(seed: int, limits: tuple[float, float]) -> Program:
    """Rewards are held between two limits, which were given in the wrong order."""
    model, task, losses = mlp([8, 48, 5], nn.Tanh), errands(seed), []
    optimizer, random = adam(model, 5e-3), drawn_once(seed, 97)

    def run() -> None:
        for (state, pay), _ in zip(task, range(120), strict=False):
            log_p = model(state).log_softmax(dim=1)
            action = torch.multinomial(log_p.exp().detach(), 1, generator=random)
            reward = (2 * pay - 1).gather(1, action).clamp(*limits)
            loss = -(log_p.gather(1, action) * (reward - reward.mean())).mean()
            losses.append(step_from(loss, optimizer))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, short_of_best))


limited = zoo.healthy("rewards-between-minus-one-and-one", lambda s: rewarded(s, (-1.0, 1.0)))
zoo.sick(
    "rewards-between-one-and-minus-one",
    lambda s: rewarded(s, (1.0, -1.0)),
    broken(facts.nothing_comes(), less=0.01),
    "no_reward_variance",
    also={*IDLE, "DEAD", "SATURATION", "EXPLORATION"},
    control=limited,
)

# --- look alike and are right


def unlabelled(seed: int) -> Program:
    """Most places of a row have no label, on purpose, and each row has some."""
    random = drawn_once(seed, 98)

    def hide(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.rand(y.shape, generator=random) < 0.8
        hidden[:, 0] = False
        return x, y.masked_fill(hidden, -100)

    model = Tagger(nn.Embedding(16, 24), nn.GRU(24, 24, batch_first=True), 16, 24)
    return fit(model, markov(seed, 16, 10, 16).changed(hide), adam(model, 1e-2), 80, token_loss)


zoo.healthy("four-labels-in-five-left-out", unlabelled)


def rare(seed: int) -> Program:
    """One picture in twenty shows what is asked for; some batches show none."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = (torch.rand(32, generator=random) < 0.05).float()[:, None]
        return torch.randn(32, 12, generator=random) + 1.5 * y, y

    model, loss_fn = mlp([12, 32, 1], nn.SiLU), nn.BCEWithLogitsLoss(pos_weight=torch.tensor(5.0))
    return fit(model, Task(seed, draw, loss_fn), adam(model, 5e-3), 120, loss_fn)


zoo.healthy("one-label-in-twenty", rare)


def dreamt(seed: int) -> Program:
    """Cross-entropy with targets that are probabilities of another model, smoothed."""
    teacher = mlp([144, 32, 6], nn.Tanh)
    teacher[2].weight.data *= 6
    task = glyphs(seed, 6).changed(lambda x, _: (x.flatten(1), teacher(x.flatten(1)).softmax(dim=1).detach()))
    model = mlp([144, 48, 6], nn.GELU)
    return fit(model, task, adam(model, 3e-3), 80)


zoo.healthy("targets-are-probabilities", dreamt, learns(0.05))
