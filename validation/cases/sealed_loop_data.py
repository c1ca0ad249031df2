# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Scripts with a fault of the loss, the labels or the data, and their repaired twins.

Half: sealed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Log, Program, Zoo
from validation.cases._sealed_tasks import (
    dialects,
    fields,
    gaits,
    gusts,
    kiosks,
    leftovers,
    letters,
    loans,
    meshes,
    portraits,
    pulses,
    scrolls,
    shoals,
    soils,
    stamps,
    stars,
    swells,
)
from validation.evidence import loops as facts
from validation.evidence.loops import broken, learns
from validation.labels import BIG_START, CLIMBS, IDLE, LEARNS_NOTHING, LOSS_LOST, MASKED, WRECKED
from validation.nets import mlp
from validation.programs import adam, fit, held_out, sgd, train_step
from validation.tasks import Task, token_loss
from validation.tasks.rewards import unpaid

zoo = Zoo("loop", half="sealed", proof=learns())


class Reader(nn.Module):
    """Words, a recurrence, an answer at every place."""

    def __init__(self, words: int = 14, width: int = 28) -> None:
        super().__init__()
        self.table, self.rnn, self.head = (
            nn.Embedding(words, 20),
            nn.GRU(20, width, batch_first=True),
            nn.Linear(width, words),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.table(tokens))[0])


# --- losses that are lost, that grow, that stay, that start too high


def logarithmic(seed: int, least: float) -> Program:
    """The error of logarithms, for harvests above zero; the net may say less than nothing."""

    def error(y: Tensor, t: Tensor) -> Tensor:
        return (y.clamp_min(least).log() - t.log()).square().mean()

    def meant(y: Tensor, t: Tensor) -> Tensor:
        return (y.clamp_min(1e-2).log() - t.log()).square().mean()

    task = soils(seed).changed(lambda x, t: (x, torch.exp(t).clamp(0.05, 20)))
    model = mlp([12, 40, 40, 1], nn.SiLU)
    nn.init.constant_(model[4].bias, 1.0)
    return fit(model, task, adam(model, 1e-2), 80, error, meant)


at_least_nothing = zoo.healthy("logarithms-of-at-least-a-hundredth", lambda s: logarithmic(s, 1e-2))
zoo.sick(
    "logarithms-of-less-than-nothing",
    lambda s: logarithmic(s, -1e9),
    broken(facts.not_finite_in(0.5)),
    *LOSS_LOST,
    also={"DEAD", "UNSTABLE", "EXPLODING", *LEARNS_NOTHING},
    control=at_least_nothing,
)


def likelihoods(seed: int, sign: float) -> Program:
    """The likelihood is to be as large as can be; `backward` makes it small."""
    model, task, losses = mlp([16, 40, 6], nn.Tanh), stars(seed), []
    optimizer = sgd(model, 0.05, momentum=0.9)

    def run() -> None:
        for (x, t), _ in zip(task, range(70), strict=False):
            log_p = model(x).log_softmax(dim=1).gather(1, t[:, None]).mean()
            optimizer.zero_grad()
            (sign * log_p).backward()
            optimizer.step()
            losses.append(-log_p.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


def watched_sign(seed: int, sign: float) -> Program:
    """The same with a loss that is what `backward` is called on: the sum of two, one with the wrong sign."""
    model = mlp([16, 40, 6], nn.Tanh)

    def loss(z: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(z, t) + sign * 0.5 * z.square().mean()

    return fit(model, stars(seed), sgd(model, 0.05, momentum=0.9), 70, loss, F.cross_entropy)


negated = zoo.healthy("likelihood-with-its-minus", lambda s: likelihoods(s, -1.0))
zoo.sick(
    "likelihood-without-its-minus",
    lambda s: likelihoods(s, 1.0),
    broken(facts.grows, less=0),
    *CLIMBS,
    "NUMERICAL",
    also={*WRECKED, "rate_too_high", "BOTTLENECK"},
    control=negated,
)
zoo.healthy("logits-held-small", lambda s: watched_sign(s, 0.02))


def delayed(seed: int, late: int) -> Program:
    """Pictures and labels come from two queues, one of which is a batch behind."""
    task, model, losses = (
        stamps(seed),
        nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.Conv2d(16, 24, 3, 2), nn.ReLU()),
        [],
    )
    model.extend([nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, 6)])
    optimizer = adam(model, 2e-3)

    def run() -> None:
        batches = iter(task)
        labels = [next(batches)[1] for _ in range(late)]
        for _ in range(80):
            x, t = next(batches)
            labels.append(t)
            losses.append(train_step(model, optimizer, x, labels.pop(0)))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


in_time = zoo.healthy("labels-in-time", lambda s: delayed(s, 0))
zoo.sick(
    "labels-one-batch-late",
    lambda s: delayed(s, 1),
    broken(facts.stays, less=0.1),
    "loss_stuck",
    also={"SLOW"},
    control=in_time,
)


class Pooled(nn.Module):
    """The mean over letters, or, by a slip of one number, over the batch."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.enter, self.mid, self.out, self.dim = nn.Linear(10, 32), nn.Linear(32, 32), nn.Linear(32, 5), dim

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.enter(x))
        h = h.mean(dim=1) if self.dim == 1 else h.mean(dim=(0, 1), keepdim=True)[0].expand(len(x), -1)
        return self.out(F.gelu(self.mid(h)))


def pooled(seed: int, dim: int) -> Program:
    model = Pooled(dim)
    return fit(model, letters(seed), adam(model, 3e-3), 60)


over_letters = zoo.healthy("mean-over-letters", lambda s: pooled(s, 1))
zoo.sick(
    "mean-over-the-batch",
    lambda s: pooled(s, 0),
    broken(facts.stays, less=0.1),
    "loss_stuck",
    "LOW_RANK",
    "BOTTLENECK",
    layer=("enter", "mid"),
    also={"SLOW", "VANISHING", "DEAD", "constant_targets", "SYMMETRY"},
    control=over_letters,
)


def confident(seed: int, factor: float) -> Program:
    """The head is drawn by a bell of deviation one and then multiplied, for a test that was never taken out."""
    model = nn.Sequential(nn.Conv1d(2, 24, 7, 2), nn.GELU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(24, 5))
    nn.init.normal_(model[4].weight, std=factor)
    return fit(model, pulses(seed), adam(model, 3e-3), 60)


modest = zoo.healthy("head-drawn-with-0.1", lambda s: confident(s, 0.1))
zoo.sick(
    "head-drawn-with-60",
    lambda s: confident(s, 60.0),
    broken(facts.begins_above(5 * math.log(5))),
    *BIG_START,
    "SATURATION",
    layer=("4",),
    also={"UNSTABLE", "rate_too_low", "SLOW", "rate_too_high", "NUMERICAL", "input_scales"},
    control=modest,
)


def prices(seed: int, level: float, spread: float) -> Program:
    """Prices as they stand in the advertisement."""
    model = mlp([12, 40, 40, 1], nn.GELU)
    return fit(model, soils(seed).changed(lambda x, t: (x, level + spread * t)), adam(model, 5e-3), 70, F.mse_loss)


standardised = zoo.healthy("prices-standardised", lambda s: prices(s, 0.0, 1.0))
zoo.sick(
    "prices-in-euros",
    lambda s: prices(s, 250_000.0, 60_000.0),
    broken(facts.begins_above(1e6), less=0.1),
    *BIG_START,
    also={"rate_too_low", "UNSTABLE", "LOW_RANK", "BOTTLENECK", "input_scales", "SATURATION", *LEARNS_NOTHING},
    control=standardised,
)

# --- labels


def empty_rows(seed: int, empty: bool) -> Program:
    """Word 0 fills up short rows and is not counted; in every third batch all rows are empty."""
    calls = iter(range(10**6))

    def cut(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = x.clamp_min(1), y.clamp_min(1)
        end = 0 if empty and next(calls) % 3 == 2 else 9
        beyond = torch.arange(12)[None] >= end
        return x.masked_fill(beyond, 0), y.masked_fill(beyond, 0)

    def words_only(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=0)

    model = Reader()
    unseen = scrolls(seed).changed(lambda x, y: (x.clamp_min(1), y.clamp_min(1)))
    return fit(model, scrolls(seed).changed(cut), adam(model, 1e-2), 70, words_only, unseen=unseen)


full_rows = zoo.healthy("rows-of-nine-words", lambda s: empty_rows(s, False))
zoo.sick(
    "every-third-batch-without-words",
    lambda s: empty_rows(s, True),
    broken(facts.not_finite_in(0.2)),
    *MASKED,
    "loss_nonfinite",
    control=full_rows,
)


def filled(seed: int, ignore: bool) -> Program:
    """Rows of a few words, filled up to 36 places; the filling counts as a word to be guessed."""
    random = torch.Generator().manual_seed(seed + 44)

    def fill(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        beyond = torch.arange(36)[None] >= torch.randint(2, 5, (len(x), 1), generator=random)
        x, y = F.pad(x, (0, 24)), F.pad(y, (0, 24))
        return x.masked_fill(beyond, 14), y.masked_fill(beyond, 14)

    def words_only(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=14)

    model = Reader(15)
    return fit(
        model,
        scrolls(seed, batch=16).changed(fill),
        adam(model, 1e-2),
        60,
        words_only if ignore else token_loss,
        words_only,
    )


not_counted = zoo.healthy("filling-not-counted", lambda s: filled(s, True), learns(0.05))
zoo.sick(
    "filling-counted",
    lambda s: filled(s, False),
    broken(lambda p: (p.program.losses[-1] < 0.25, f"last loss {p.program.losses[-1]:.3g}")),
    "padding_labels",
    also={"constant_targets", "embedding_row"},
    control=not_counted,
)


def coarse(seed: int, wrong: bool) -> Program:
    """Classes by tens; the labels are divided once more when they are read."""
    task = gaits(seed).changed(lambda x, t: (x, t // 10 if wrong else t))

    class Walk(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 24, batch_first=True), nn.Linear(24, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0].mean(dim=1))

    model = Walk()
    return fit(model, task, adam(model, 1e-2), 70, unseen=gaits(seed))


read_once = zoo.healthy("labels-read-once", lambda s: coarse(s, False))
zoo.sick(
    "labels-divided-twice",
    lambda s: coarse(s, True),
    broken(facts.vanishes, less=0.3),
    "constant_targets",
    also={"VANISHING", "LOW_RANK", "SATURATION", "SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=read_once,
)


def positives(seed: int, above: float) -> Program:
    """Whether a pixel is of the first crop; the threshold is in the unit of another satellite."""
    task = fields(seed).changed(lambda x, t: (x, ((t == 0).float() > above).float()[:, None]))
    unseen = fields(seed, batch=48).changed(lambda x, t: (x, (t == 0).float()[:, None]))
    model = nn.Sequential(nn.Conv2d(2, 16, 5, padding=2), nn.SiLU(), nn.Conv2d(16, 1, 3, padding=1))
    return fit(model, task, adam(model, 1e-2), 80, F.binary_cross_entropy_with_logits, unseen=unseen)


half_way = zoo.healthy("pixels-above-a-half", lambda s: positives(s, 0.5))
zoo.sick(
    "pixels-above-ten",
    lambda s: positives(s, 10.0),
    broken(facts.vanishes, less=0.3),
    "constant_targets",
    also={"VANISHING", "LOW_RANK", "SATURATION"},
    control=half_way,
)

# --- what goes into the loss


def twice(seed: int, chances: bool) -> Program:
    """The set's class as chances, for the log; the loss takes them for logits."""

    class Sets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.phi, self.rho = mlp([10, 40, 32], nn.GELU), nn.Linear(32, 5)

        def forward(self, x: Tensor) -> Tensor:
            z = self.rho(self.phi(x).mean(dim=1))
            return z.softmax(dim=1) if chances else z

    model = Sets()
    return fit(model, letters(seed), adam(model, 5e-3), 80)


logits = zoo.healthy("letters-logits", lambda s: twice(s, False))
zoo.sick(
    "letters-chances-taken-for-logits",
    lambda s: twice(s, True),
    # ln(1 + 4/e) is the least that a softmax of chances can reach with five classes.
    broken(facts.floor_above(0.904)),
    "double_softmax",
    also={"SATURATION", "VANISHING", *LEARNS_NOTHING},
    control=logits,
)


def column(seed: int, flat: bool) -> Program:
    """Answers (N, 1), targets (N,)."""
    model = mlp([8, 40, 40, 1], nn.SiLU)
    if flat:
        model.append(nn.Flatten(0))
    return fit(model, gusts(seed), adam(model, 5e-3), 80, F.mse_loss, lambda y, t: F.mse_loss(y.view_as(t), t))


row = zoo.healthy("gusts-answers-in-a-row", lambda s: column(s, True))
zoo.sick(
    "gusts-answers-in-a-column",
    lambda s: column(s, False),
    broken(less=0.4),
    "broadcast",
    also={*LEARNS_NOTHING, "LOW_RANK"},
    control=row,
)


def squares(seed: int, squeeze: bool) -> Program:
    """As many steps as samples: (N, T, 1) minus (N, T) is a cube, and nothing complains."""

    class Wave(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])

    def loss(y: Tensor, t: Tensor) -> Tensor:
        return F.l1_loss(y.squeeze(2) if squeeze else y, t)

    model, task = Wave(), swells(seed, 16, 1, 16).changed(lambda x, t: (x, t.squeeze(2)))
    return fit(model, task, adam(model, 1e-2), 70, loss, lambda y, t: F.l1_loss(y.squeeze(2), t))


squeezed = zoo.healthy("swells-of-one-shape", lambda s: squares(s, True))
zoo.sick(
    "swells-make-a-cube",
    lambda s: squares(s, False),
    broken(less=0.4),
    "broadcast",
    also={*LEARNS_NOTHING, "LOW_RANK", "SHORT_MEMORY"},
    control=squeezed,
)

# --- data


class Lender(nn.Module):
    """Kinds as vectors, beside numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(24, 6), mlp([18, 40, 40, 1], nn.ReLU)

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        return self.body(torch.cat([self.table(kinds).flatten(1), x], dim=1)).squeeze(1)


def incomes(seed: int, raw: bool) -> Program:
    """An income, a debt and some shares, side by side."""
    offset, factor = torch.zeros(6), torch.ones(6)
    offset[:2], factor[:2] = torch.tensor([4e6, 9e5]), torch.tensor([2e6, 8e5])
    task = loans(seed).mapped(lambda b: (b[0], offset + factor * b[1] if raw else b[1]))
    model = Lender()
    return fit(model, task, adam(model, 5e-3), 90, F.binary_cross_entropy_with_logits)


shares = zoo.healthy("incomes-standardised", lambda s: incomes(s, False))
zoo.sick(
    "incomes-as-they-are",
    lambda s: incomes(s, True),
    broken(lambda p: (not p.end < 0.75, f"ends at {p.end:.3g}")),
    "input_scales",
    "first_loss_high",
    also={"EXPLODING", "UNSTABLE", "NUMERICAL", "LOW_RANK", "rate_too_high", *WRECKED, "BOTTLENECK"},
    control=shares,
)


def rewarded(seed: int, clipped: bool) -> Program:
    """Rewards are clipped to their sign, as for old games; here all of them are above zero."""
    model, task, losses, log = mlp([9, 40, 5], nn.SiLU), kiosks(seed), [], Log()
    optimizer, random = adam(model, 5e-3), torch.Generator().manual_seed(seed + 75)

    def run() -> None:
        for (x, pay), _ in zip(task, range(90), strict=False):
            log_p = model(x).log_softmax(dim=1)
            action = torch.multinomial(log_p.exp().detach(), 4, replacement=True, generator=random)
            reward = pay.gather(1, action)
            reward = reward.sign() if clipped else reward
            advantage = reward - reward.mean(dim=1, keepdim=True)
            loss = -(log_p.gather(1, action) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            log(reward=reward.mean().item(), reward_std=reward.std(dim=1).mean().item())
            optimizer.step()
            losses.append(loss.item())

    score = held_out(model, task, unpaid)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score, log=log)


graded = zoo.healthy("rewards-as-they-are", lambda s: rewarded(s, False))
zoo.sick(
    "rewards-clipped-to-their-sign",
    lambda s: rewarded(s, True),
    broken(facts.nothing_comes(), less=0.05),
    "no_reward_variance",
    also={*IDLE, "EXPLORATION", "detached_loss", "detached"},
    control=graded,
)

# --- look alike and are right


def rare(seed: int) -> Program:
    """One class in twenty, weighed accordingly."""
    random = torch.Generator().manual_seed(seed + 14)

    def thin(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        keep = (t != 0) | (torch.rand(len(t), generator=random) < 0.25)
        return x[keep], t[keep]

    model, weight = mlp([16, 40, 6], nn.GELU), torch.tensor([4.0, 1, 1, 1, 1, 1])
    return fit(
        model, stars(seed).changed(thin), adam(model, 5e-3), 70, lambda z, t: F.cross_entropy(z, t, weight=weight)
    )


zoo.healthy("rare-class-weighed-up", rare)


def alignment(seed: int) -> Program:
    """Letters of a word without their places, by the CTC loss, which is large at first."""
    shapes = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed + 15))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        word = torch.randint(4, (24, 3), generator=random)
        word[:, 1] = (word[:, 0] + 1 + word[:, 1] % 3) % 4
        word[:, 2] = (word[:, 1] + 1 + word[:, 2] % 3) % 4
        x = shapes[torch.repeat_interleave(word + 1, 4, dim=1)]
        return x + 0.3 * torch.randn(x.shape, generator=random), word + 1

    def ctc(z: Tensor, t: Tensor) -> Tensor:
        lengths = torch.full((len(t),), 12), torch.full((len(t),), 3)
        return F.ctc_loss(z.log_softmax(dim=2).transpose(0, 1), t, *lengths)

    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5))
    return fit(model, Task(seed, draw, ctc), adam(model, 1e-2), 70, ctc)


zoo.healthy("words-without-places-by-ctc", alignment)


def ordinal(seed: int) -> Program:
    """Grades from 0 to 4 as four questions: is it above?"""
    task = soils(seed).changed(lambda x, y: (x, (y > torch.tensor([-1.5, -0.5, 0.5, 1.5])).float()))
    model = mlp([12, 40, 4], nn.SiLU)
    return fit(model, task, adam(model, 5e-3), 80, F.binary_cross_entropy_with_logits)


zoo.healthy("grades-as-four-questions", ordinal)


def noisy(seed: int) -> Program:
    """Most of what is asked for is noise: the loss can fall by a little only."""
    random = torch.Generator().manual_seed(seed + 16)
    task = soils(seed, batch=128).changed(lambda x, y: (x, y + 1.5 * torch.randn(y.shape, generator=random)))
    model = mlp([12, 32, 1], nn.Tanh)
    return fit(model, task, adam(model, 5e-3), 90, F.mse_loss, unseen=soils(seed, batch=256))


zoo.healthy("mostly-noise", noisy)


def blanked(seed: int) -> Program:
    """Words are blanked out and asked for; the others have no label."""
    random = torch.Generator().manual_seed(seed + 17)

    def blank(x: Tensor, _y: Tensor) -> tuple[Tensor, Tensor]:
        gone = torch.rand(x.shape, generator=random) < 0.25
        gone[:, 0] = True
        return x.masked_fill(gone, 14), x.masked_fill(~gone, -100)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(15, 20), nn.Linear(48, 14)
            self.rnn = nn.GRU(20, 24, batch_first=True, bidirectional=True)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.rnn(self.table(tokens))[0])

    model = Both()
    return fit(model, scrolls(seed).changed(blank), adam(model, 1e-2), 80, token_loss)


zoo.healthy("words-blanked-out", blanked)


def changing(seed: int) -> Program:
    """The batch changes its size from step to step, and the last words of a text are cut."""
    sizes = iter([12, 32, 20, 8, 32, 28] * 40)

    def cut(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        size = next(sizes)
        return x[:size, : 6 + size % 5], t[:size]

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.body = nn.Embedding(32, 24), mlp([24, 32, 5], nn.GELU)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.body(self.table(tokens).mean(dim=1))

    model = Bag()
    return fit(model, dialects(seed).changed(cut), adam(model, 1e-2), 80, unseen=dialects(seed, batch=128))


zoo.healthy("batches-of-many-sizes", changing)


def geometric(seed: int) -> Program:
    """Graphs whose class is the mean of two losses: one on the graph, one on nodes that are hidden."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.mix = nn.Linear(6, 24), nn.Linear(24, 24)
            self.graph, self.node = nn.Linear(24, 4), nn.Linear(24, 6)

        def forward(self, x: Tensor, near: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            hidden = x * (torch.arange(x.shape[1])[None, :, None] % 4 != 0)
            h = F.silu(self.enter(hidden))
            h = h + F.silu(self.mix(near @ h))
            return self.graph(h.mean(dim=1)), self.node(h), x

    def loss(out: tuple[Tensor, Tensor, Tensor], t: Tensor) -> Tensor:
        return F.cross_entropy(out[0], t) + 0.3 * F.mse_loss(out[1], out[2])

    model = Two()
    return fit(model, meshes(seed), adam(model, 1e-2), 60, loss)


zoo.healthy("graphs-and-hidden-nodes", geometric)


def robust(seed: int) -> Program:
    """Some targets are far out, under a loss that does not mind."""
    random = torch.Generator().manual_seed(seed + 18)

    def spoil(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.rand(len(y), 1, generator=random) < 0.03
        return x, torch.where(out, y + 40, y)

    model = mlp([12, 40, 1], nn.SiLU)
    return fit(model, soils(seed).changed(spoil), adam(model, 1e-2), 90, F.smooth_l1_loss, unseen=soils(seed))


zoo.healthy("targets-far-out-under-a-robust-loss", robust)


def two_back(seed: int) -> Program:
    """A recurrence finds what lies two places back, but for the first places, which lie round the corner."""
    model = Reader(8)
    return fit(model, leftovers(seed, length=6), adam(model, 1e-2), 90, token_loss)


zoo.healthy("two-places-back-by-a-gru", two_back, learns(0.05))


def both_ways(seed: int) -> Program:
    """Matching of portraits from left to right and from right to left."""

    class Match(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(24, 10), nn.Linear(24, 10)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.left(a) @ self.right(b).T / 2

    model = Match()
    return fit(
        model,
        portraits(seed),
        adam(model, 5e-3),
        70,
        lambda z, t: (F.cross_entropy(z, t) + F.cross_entropy(z.T, t)) / 2,
    )


zoo.healthy("matching-both-ways", both_ways)


def points(seed: int) -> Program:
    """Sets of points in any order and at any angle."""
    random = torch.Generator().manual_seed(seed + 19)

    def turn(x: Tensor) -> Tensor:
        return x[:, torch.randperm(x.shape[1], generator=random)]

    class Points(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each, self.all = mlp([3, 32, 32], nn.SiLU), mlp([64, 32, 4], nn.SiLU)

        def forward(self, x: Tensor) -> Tensor:
            h = self.each(x)
            return self.all(torch.cat([h.mean(dim=1), h.amax(dim=1)], dim=1))

    model = Points()
    return fit(model, shoals(seed, 16).mapped(turn), adam(model, 5e-3), 80)


zoo.healthy("points-in-any-order", points)
