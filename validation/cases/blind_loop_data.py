# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Scripts with a fault of the loss, the labels or the data, and their repaired twins.

Half: blind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._blind_tasks import (
    clouds,
    flags,
    gratings,
    moods,
    plants,
    rhymes,
    spectra,
    stalls,
    states,
    tides,
    tones,
    twins,
)
from validation.evidence import loops as facts
from validation.evidence.loops import broken, learns
from validation.labels import BIG_START, CLIMBS, IDLE, LEARNS_NOTHING, LOSS_LOST, MASKED, WRECKED
from validation.nets import mlp
from validation.nets.programs import Tagger
from validation.programs import adam, fit, held_out, learn, sgd, step_from, train_step
from validation.tasks import Task, drawn_once, token_loss
from validation.tasks.rewards import short_of_best

zoo = Zoo("loop", half="blind", proof=learns())


@dataclass
class Settings:
    """The settings of a script, at the top of its file."""

    lr: float = 3e-3
    steps: int = 80
    seed: int = 0


# --- losses that are lost, that grow, that stay, that start too high


def deviations(seed: int, positive: bool) -> Program:
    """A net that says how sure it is; its deviation has to be positive."""

    def likelihood(out: Tensor, t: Tensor) -> Tensor:
        mean, spread = out.chunk(2, dim=1)
        spread = F.softplus(spread) + 0.05 if positive else spread
        return (spread.log() + 0.5 * ((t - mean) / spread).square()).mean() + 3

    model = mlp([14, 48, 48, 2], nn.SiLU)
    model[4].bias.data[1] = -0.5
    return fit(model, plants(seed), adam(model, 5e-3), 100, likelihood, lambda out, t: F.mse_loss(out[:, :1], t))


sure = zoo.healthy("deviation-by-softplus", lambda s: deviations(s, True))
zoo.sick(
    "deviation-as-it-comes",
    lambda s: deviations(s, False),
    broken(facts.not_finite_in(0.5)),
    *LOSS_LOST,
    also={"DEAD", "UNSTABLE", "EXPLODING", *LEARNS_NOTHING},
    control=sure,
)


def maximised(seed: int, maximize: bool) -> Program:
    """The line with the optimizer comes from a script that had a reward."""
    model, cfg = mlp([18, 48, 48, 7], nn.Tanh), Settings(lr=0.03)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9, maximize=maximize)
    return fit(model, states(seed), optimizer, cfg.steps)


minimised = zoo.healthy("optimizer-minimises", lambda s: maximised(s, False))
zoo.sick(
    "optimizer-maximises",
    lambda s: maximised(s, True),
    broken(facts.grows, less=0),
    *CLIMBS,
    "NUMERICAL",
    also={"SATURATION", "DEAD", "rate_too_high", "loss_nonfinite", "VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=minimised,
)


def shuffled(seed: int, apart: bool) -> Program:
    """Rows and labels are shuffled before each epoch, together or each for itself."""
    x, y = next(iter(states(seed, batch=640)))
    model, losses, random = mlp([18, 32, 7], nn.GELU), [], drawn_once(seed, 71)
    optimizer = adam(model, 1e-3)

    def run() -> None:
        for _ in range(5):
            rows = torch.randperm(640, generator=random)
            labels = torch.randperm(640, generator=random) if apart else rows
            for i, j in zip(rows.split(32), labels.split(32), strict=True):
                losses.append(train_step(model, optimizer, x[i], y[j]))

    score = held_out(model, states(seed, batch=256))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


together = zoo.healthy("rows-and-labels-shuffled-together", lambda s: shuffled(s, False))
zoo.sick(
    "rows-and-labels-shuffled-apart",
    lambda s: shuffled(s, True),
    broken(facts.stays, less=0.1),
    "loss_stuck",
    also={"SLOW"},
    control=together,
)


class Blind(nn.Module):
    """Reads a sound after cutting its quiet parts; the limit may be above every sound."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit, self.conv, self.fc = limit, nn.Conv1d(3, 24, 9, 2), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = x * (x.abs() > self.limit)
        return self.fc(F.relu(self.conv(x)).mean(dim=2))


def gated(seed: int, limit: float) -> Program:
    model = Blind(limit)
    return fit(model, tones(seed), adam(model, 1e-2), 80)


hears = zoo.healthy("quiet-parts-cut", lambda s: gated(s, 0.1))
zoo.sick(
    "all-parts-cut",
    lambda s: gated(s, 90.0),
    broken(facts.stays, less=0.1),
    "loss_stuck",
    "never_moves",
    "DEAD",
    "DISCONNECTED",
    also={"SLOW", "LOW_RANK", "VANISHING", "detached", "BOTTLENECK", "only_decay", "constant_targets"},
    control=hears,
)


class Matching(nn.Module):
    """Two measurements as vectors, compared within the batch; the scale is learned as a logarithm."""

    def __init__(self, log_scale: float, unit: bool) -> None:
        super().__init__()
        self.left, self.right = mlp([20, 48, 24], nn.GELU), mlp([20, 48, 24], nn.GELU)
        self.log_scale, self.unit = nn.Parameter(torch.tensor(log_scale)), unit

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.left(a), self.right(b)
        if self.unit:
            a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
        return self.log_scale.exp() * a @ b.T


def matched(seed: int, log_scale: float, unit: bool) -> Program:
    random = drawn_once(seed, 72)
    mix = torch.randn(2, 8, 20, generator=random)

    def draw(source: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        shared = torch.randn(48, 8, generator=source)
        noise = 0.2 * torch.randn(2, 48, 20, generator=source)
        return (shared @ mix[0] + noise[0], shared @ mix[1] + noise[1]), torch.arange(48)

    model = Matching(log_scale, unit)
    return fit(model, Task(seed, draw, F.cross_entropy), adam(model, 3e-3), 80)


on_sphere = zoo.healthy("matching-of-unit-vectors", lambda s: matched(s, 2.0, True))
zoo.sick(
    "matching-of-vectors-with-the-scale-of-unit-ones",
    lambda s: matched(s, 6.0, False),
    broken(facts.begins_above(5 * math.log(48))),
    *BIG_START,
    "SATURATION",
    also={"UNSTABLE", "rate_too_low", "SLOW", "rate_too_high", "NUMERICAL"},
    control=on_sphere,
)


def pascals(seed: int, level: float) -> Program:
    """Pressures of the air, as they are measured."""
    model = Tagger(nn.Identity(), nn.GRU(2, 24, batch_first=True), 2, 24)
    task = tides(seed).changed(lambda x, t: (x, level + (50 if level else 1) * t))
    return fit(model, task, adam(model, 5e-3), 80, F.mse_loss)


from_mean = zoo.healthy("pressures-from-their-mean", lambda s: pascals(s, 0.0))
zoo.sick(
    "pressures-of-101325",
    lambda s: pascals(s, 101325.0),
    broken(facts.begins_above(1e6), less=0.1),
    *BIG_START,
    also={"rate_too_low", "UNSTABLE", "LOW_RANK", "input_scales", "SATURATION", "SHORT_MEMORY", *LEARNS_NOTHING},
    control=from_mean,
)

# --- labels


def prompted(seed: int, whole: bool) -> Program:
    """The prompt is left out of the loss; in every third file the prompt is taken to be all of the row."""
    calls = iter(range(10**6))

    def hide(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        until = 14 if whole and next(calls) % 3 == 2 else 4
        return x, torch.where(torch.arange(14)[None] < until, -100, y)

    model = Tagger(nn.Embedding(12, 24), nn.GRU(24, 40, batch_first=True), 12, 40)
    task, cfg = rhymes(seed).changed(hide), Settings(lr=1e-2)
    return fit(model, task, adam(model, cfg.lr), cfg.steps, token_loss, unseen=rhymes(seed))


prompts = zoo.healthy("prompts-left-out", lambda s: prompted(s, False))
zoo.sick(
    "rows-left-out-with-their-prompts",
    lambda s: prompted(s, True),
    broken(facts.not_finite_in(0.2)),
    *MASKED,
    also={"loss_nonfinite"},
    control=prompts,
)


def padded(seed: int, ignore: bool) -> Program:
    """Rows of three words, padded to fourteen; the padding counts as a word."""
    random = drawn_once(seed, 73)

    def pad(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        beyond = torch.arange(28)[None] >= torch.randint(3, 6, (len(x), 1), generator=random)
        x, y = F.pad(x, (0, 14)), F.pad(y, (0, 14))
        return x.masked_fill(beyond, 12), y.masked_fill(beyond, 12)

    def words_only(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=12)

    model = Tagger(nn.Embedding(13, 24), nn.GRU(24, 32, batch_first=True), 13, 32)
    return fit(
        model, rhymes(seed).changed(pad), adam(model, 1e-2), 60, words_only if ignore else token_loss, words_only
    )


ignored = zoo.healthy("rows-padding-ignored", lambda s: padded(s, True), learns(0.05))
zoo.sick(
    "rows-padding-counted",
    lambda s: padded(s, False),
    broken(lambda p: (p.program.losses[-1] < 0.6, f"last loss {p.program.losses[-1]:.3g}")),
    "padding_labels",
    also={"constant_targets"},
    control=ignored,
)


def compared(seed: int, limit: float) -> Program:
    """Whether a reading is above a limit, which is in another unit."""
    task = plants(seed).changed(lambda x, t: (x, (t > limit).float()))
    unseen = plants(seed, batch=256).changed(lambda x, t: (x, (t > 0).float()))
    model = mlp([14, 48, 48, 1], nn.GELU)
    return fit(model, task, adam(model, 5e-3), 90, F.binary_cross_entropy_with_logits, unseen=unseen)


right_unit = zoo.healthy("readings-above-a-limit", lambda s: compared(s, 0.0))
zoo.sick(
    "readings-above-a-limit-in-another-unit",
    lambda s: compared(s, 1000.0),
    broken(facts.vanishes, less=0.3),
    "constant_targets",
    also={"VANISHING", "LOW_RANK", "SATURATION"},
    control=right_unit,
)

# --- what goes into the loss


class Head(nn.Module):
    """A picture's class, as logits, or as probabilities for the report."""

    def __init__(self, probabilities: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 20, 3, 2), nn.SiLU(), nn.Conv2d(20, 24, 3), nn.SiLU(), nn.Flatten())
        self.fc, self.last = nn.Linear(96, 6), nn.Softmax(dim=1) if probabilities else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.fc(self.body(x)))


def pictured(seed: int, probabilities: bool) -> Program:
    model = Head(probabilities)
    return fit(model, gratings(seed), adam(model, 3e-3), 80)


logits = zoo.healthy("gratings-logits", lambda s: pictured(s, False))
zoo.sick(
    "gratings-probabilities-into-cross-entropy",
    lambda s: pictured(s, True),
    # ln(1 + 5/e) is the least that a softmax of probabilities can reach with six classes.
    broken(facts.floor_above(1.04)),
    "double_softmax",
    also={"SATURATION", "VANISHING", *LEARNS_NOTHING},
    control=logits,
)


def flat(seed: int, squeeze: bool) -> Program:
    """Answers of shape (N, 1), targets of shape (N,): the difference is a square."""
    model = mlp([14, 48, 48, 1], nn.SiLU)
    task = plants(seed).changed(lambda x, t: (x, t[:, 0]))

    def loss(y: Tensor, t: Tensor) -> Tensor:
        return F.huber_loss(y.squeeze(1) if squeeze else y, t)

    return fit(model, task, adam(model, 5e-3), 100, loss, lambda y, t: F.mse_loss(y.squeeze(1), t))


of_one_shape = zoo.healthy("yields-of-one-shape", lambda s: flat(s, True))
zoo.sick(
    "yields-make-a-square",
    lambda s: flat(s, False),
    broken(less=0.4),
    "broadcast",
    also=LEARNS_NOTHING,
    control=of_one_shape,
)


def weighed(seed: int, keep: bool) -> Program:
    """Weights per sample (N, 1) times losses per sample (N,): each loss counts with all weights."""
    model, random = mlp([18, 48, 7], nn.GELU), drawn_once(seed, 74)

    def weigh(x: Tensor, t: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        wrong = torch.rand(len(t), 1, generator=random) < 0.55
        noisy = torch.where(wrong[:, 0], torch.randint(7, t.shape, generator=random), t)
        return x, (noisy, (~wrong).float())

    def loss(z: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
        each, weight = F.cross_entropy(z, target[0], reduction="none"), target[1]
        return (each * (weight[:, 0] if keep else weight)).mean()

    def meant(z: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
        return (F.cross_entropy(z, target[0], reduction="none") * target[1][:, 0]).mean()

    return fit(model, states(seed).changed(weigh), adam(model, 5e-3), 80, loss, meant)


one_each = zoo.healthy("a-weight-per-sample", lambda s: weighed(s, True))
zoo.sick(
    "all-weights-per-sample",
    lambda s: weighed(s, False),
    broken(less=0.85),
    "broadcast",
    also=LEARNS_NOTHING,
    control=one_each,
)

# --- data


def columns(seed: int, raw: bool) -> Program:
    """Revenue in yen, a postal code and a share, side by side."""
    offset, factor = torch.zeros(18), torch.ones(18)
    offset[:2], factor[:2] = torch.tensor([3e8, 5e4]), torch.tensor([9e7, 2e4])
    task = states(seed).mapped(lambda x: offset + factor * x if raw else x)
    model = mlp([18, 48, 48, 7], nn.ReLU)
    return fit(model, task, adam(model, 3e-3), 90)


standard = zoo.healthy("columns-of-one-size", lambda s: columns(s, False))
zoo.sick(
    "columns-in-yen-and-postal-codes",
    lambda s: columns(s, True),
    broken(lambda p: (not p.end < 0.5, f"ends at {p.end:.3g}")),
    "input_scales",
    also={"first_loss_high", "EXPLODING", "UNSTABLE", "NUMERICAL", "LOW_RANK", "rate_too_high", *WRECKED, "BOTTLENECK"},
    control=standard,
)


def ranked(seed: int, each: bool) -> Program:
    """A group of answers to each question; the reward is what is above the group's mean. A group of one has none."""
    model, task, losses = mlp([10, 48, 6], nn.SiLU), stalls(seed), []
    optimizer, random = adam(model, 5e-3), drawn_once(seed, 75)
    group = 1 if each else 6

    def run() -> None:
        for (x, pay), _ in zip(task, range(100), strict=False):
            log_p = model(x).log_softmax(dim=1)
            action = torch.multinomial(log_p.exp().detach(), group, replacement=True, generator=random)
            reward = pay.gather(1, action)
            advantage = reward - reward.mean(dim=1, keepdim=True)
            loss = -(log_p.gather(1, action) * advantage).mean()
            losses.append(step_from(loss, optimizer))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, short_of_best))


groups = zoo.healthy("answers-in-groups-of-six", lambda s: ranked(s, False))
zoo.sick(
    "answers-in-groups-of-one",
    lambda s: ranked(s, True),
    broken(facts.nothing_comes(), less=0.01),
    "no_reward_variance",
    also={*IDLE, "DEAD", "SATURATION", "EXPLORATION"},
    control=groups,
)

# --- look alike and are right


def smoothed(seed: int) -> Program:
    """Smoothed labels: the loss cannot fall below what the smoothing leaves."""
    model = mlp([18, 48, 48, 7], nn.GELU)
    loss = nn.CrossEntropyLoss(label_smoothing=0.2)
    return fit(model, states(seed), torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05), 80, loss)


zoo.healthy("labels-smoothed-by-a-fifth", smoothed)


class Flow(nn.Module):
    """Couplings that change one half by what the other says, and how much they stretch."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp([2, 32, 4], nn.Tanh) for _ in range(4))
        for net in self.nets:
            net[2].weight.data *= 0.1

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        stretch = x.new_zeros(len(x))
        for net in self.nets:
            a, b = x.chunk(2, dim=1)
            s, t = net(a).chunk(2, dim=1)
            x, stretch = torch.cat([b * torch.exp(s.tanh()) + t, a], dim=1), stretch + s.tanh().sum(dim=1)
        return x, stretch


def flow(seed: int) -> Program:
    """A density by a chain of couplings; the loss may fall below zero."""

    def surprise(out: tuple[Tensor, Tensor], _t: Tensor) -> Tensor:
        return 0.5 * out[0].square().sum(dim=1).mean() - out[1].mean()

    model = Flow()
    return fit(model, clouds(seed), adam(model, 1e-2), 80, surprise)


zoo.healthy("density-by-couplings", flow)


def negatives(seed: int) -> Program:
    """The loss of a pair that is far enough apart is zero, and so is its gradient."""
    model = nn.ModuleDict({"net": mlp([20, 48, 12], nn.SiLU)})
    model["net"][2] = nn.Linear(48, 12, bias=False)
    task, optimizer = twins(seed), adam(model, 3e-3)

    def error(pair: tuple[Tensor, Tensor], same: Tensor) -> Tensor:
        away = (model["net"](pair[0]) - model["net"](pair[1])).square().sum(dim=1, keepdim=True)
        return (same * away + (1 - same) * F.relu(1 - away)).mean()

    aside = task.aside()
    score = lambda: error(*aside).item()  # noqa: E731
    return learn(model, optimizer, task, error, score, 90)


zoo.healthy("pairs-with-a-margin", negatives)


def natural(seed: int) -> Program:
    """Moods of machines on a scale to a hundred, under a rate that suits them."""
    model = mlp([14, 48, 48, 1], nn.SiLU)
    task = plants(seed).changed(lambda x, t: (x, 50 + 10 * t))
    return fit(model, task, adam(model, 2e-2), 100, F.mse_loss)


zoo.healthy("yields-in-percent", natural)


def several(seed: int) -> Program:
    """Two kinds of losses, of which one is a hundred times the other."""
    model = nn.ModuleDict({"body": mlp([40, 48, 24], nn.GELU), "code": nn.Linear(24, 40), "mean": nn.Linear(24, 1)})
    task, optimizer = spectra(seed), adam(model, 5e-3)

    def error(x: Tensor) -> Tensor:
        h = F.gelu(model["body"](x))
        return F.mse_loss(model["code"](h), x) + 0.01 * F.mse_loss(model["mean"](h), x.mean(dim=1, keepdim=True))

    aside = task.aside()[0]
    return learn(model, optimizer, task, lambda x, _: error(x), lambda: error(aside).item(), 80)


zoo.healthy("two-losses-of-different-size", several)


def missing(seed: int) -> Program:
    """Half of the labels of each batch are missing, and never all."""
    random = drawn_once(seed, 76)

    def hide(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return x, t.masked_fill(torch.rand(t.shape, generator=random) < 0.5, -100)

    model = Tagger(nn.Identity(), nn.GRU(5, 24, batch_first=True), 4, 24, last=True)
    return fit(model, moods(seed).changed(hide), adam(model, 1e-2), 80, unseen=moods(seed))


zoo.healthy("half-of-the-moods-unknown", missing)


class Looks(nn.Module):
    """Weighs vectors by a score of each, and reads the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.value, self.out = mlp([12, 24, 1], nn.Tanh), nn.Linear(12, 32), nn.Linear(32, 5)
        self.score[2] = nn.Linear(24, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((self.score(x).softmax(dim=1) * F.silu(self.value(x))).sum(dim=1))


def looked(seed: int) -> Program:
    model = Looks()
    return fit(model, flags(seed), sgd(model, 0.2, momentum=0.9, nesterov=True), 100)


zoo.healthy("vectors-weighed-by-a-score", looked)
