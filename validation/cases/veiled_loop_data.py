"""Scripts with a fault of the loss, the labels or the data, their twins, and honest losses that look odd.

Half: veiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Log, Program, Zoo
from validation.cases._veiled_loops import (
    Bills,
    Buoy,
    Choir,
    Hum,
    Mosaic,
    Shelf,
    Twins,
    Verse,
    chants,
    drifts,
    engines,
    finches,
    honeys,
    islands,
    ledgers,
    mottos,
    readers,
    rhymes,
    stalls,
    tiles,
    wardrobes,
)
from validation.evidence import loops as facts
from validation.evidence.loops import broken, learns
from validation.labels import BIG_START, CLIMBS, IDLE, LEARNS_NOTHING, LOSS_LOST, MASKED, WRECKED
from validation.nets import mlp
from validation.programs import adam, fit, held_out, learn, sgd, step_from, train_step
from validation.tasks import token_loss

zoo = Zoo("loop", half="veiled", proof=learns())

# --- losses that are lost, that grow, that stay, that start too high


def distances(seed: int, least: float) -> Program:
    """Triplets by the root of a sum of squares, whose slope at zero is none: some rows are their own partner."""
    body, task = mlp([20, 32, 8], nn.GELU), finches(seed)
    optimizer = adam(body, 3e-3)

    def apart(a: Tensor, b: Tensor) -> Tensor:
        return ((a - b).square().sum(dim=1) + least).sqrt()

    def loss_on(x: Tensor, t: Tensor, own: bool) -> Tensor:
        z = body(x)
        same = t[:, None] == t[None]
        if not own:
            same = same & ~torch.eye(len(t), dtype=torch.bool)
        near = same.float().argmax(dim=1)
        far = (~same & ~torch.eye(len(t), dtype=torch.bool)).float().argmax(dim=1)
        return F.relu(apart(z, z[near]) - apart(z, z[far]) + 1).mean()

    x, t = task.aside()

    def score() -> float:
        with torch.no_grad():
            return loss_on(x, t, False).item()

    return learn(body, optimizer, task, lambda x, t: loss_on(x, t, True), score, 60)


kept_off_zero = zoo.healthy("veiled-distances-kept-off-zero", lambda s: distances(s, 1e-6))
zoo.sick(
    "veiled-distances-of-a-row-to-itself",
    lambda s: distances(s, 0.0),
    broken(facts.not_finite_in(0.5)),
    *LOSS_LOST,
    also={"DEAD", "UNSTABLE", "EXPLODING", *LEARNS_NOTHING},
    control=kept_off_zero,
)


def logged_chances(seed: int, least: float) -> Program:
    """Chances are rounded to hundredths by a layer for the display; the logarithm of none is not finite."""

    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp([20, 40, 7], nn.SiLU)

        def forward(self, x: Tensor) -> Tensor:
            p = self.body(x).softmax(dim=1)
            return p + ((100 * p).round() / 100 - p).detach()

    def loss(p: Tensor, t: Tensor) -> Tensor:
        return -(p.clamp_min(least) if least else p).log().gather(1, t[:, None]).mean()

    def meant(p: Tensor, t: Tensor) -> Tensor:
        return -p.clamp_min(1e-3).log().gather(1, t[:, None]).mean()

    model = Rounded()
    return fit(model, finches(seed, noise=1.4), adam(model, 8e-3), 70, loss, meant)


at_least_some = zoo.healthy("veiled-rounded-chances-at-least-0.001", lambda s: logged_chances(s, 1e-3))
zoo.sick(
    "veiled-rounded-chances-of-none",
    lambda s: logged_chances(s, 0.0),
    broken(facts.not_finite_in(0.3)),
    *LOSS_LOST,
    also={"DEAD", "UNSTABLE", "EXPLODING", *LEARNS_NOTHING},
    control=at_least_some,
)


def upwards(seed: int, up: bool) -> Program:
    """The optimizer still climbs, from a script for rewards."""
    model = Mosaic()
    return fit(model, tiles(seed), sgd(model, 0.05, momentum=0.5, maximize=up), 60)


downwards = zoo.healthy("veiled-tiles-downhill", lambda s: upwards(s, False))
zoo.sick(
    "veiled-tiles-uphill",
    lambda s: upwards(s, True),
    broken(facts.grows, less=0),
    *CLIMBS,
    "NUMERICAL",
    also={*WRECKED, "rate_too_high", "BOTTLENECK"},
    control=downwards,
)


def swapped(seed: int, wrong: bool) -> Program:
    """Of two towers' products, those of strangers are to be small; the sign of both terms is wrong."""
    model = nn.ModuleDict({"one": nn.Linear(18, 12), "two": nn.Linear(18, 12)})
    task, losses = rhymes(seed), []
    optimizer = sgd(model, 0.05)

    def loss_on(a: Tensor, b: Tensor, sign: float) -> Tensor:
        logits = model["one"](a) @ model["two"](b).T
        pairs = torch.eye(len(a))
        return F.binary_cross_entropy_with_logits(sign * logits, pairs, pos_weight=torch.tensor(10.0))

    def run() -> None:
        for ((a, b), _), _ in zip(task, range(80), strict=False):
            optimizer.zero_grad()
            loss = loss_on(a, b, 1.0)
            (-loss if wrong else loss).backward()
            optimizer.step()
            losses.append(loss.item())

    (a, b), _ = task.aside()

    def score() -> float:
        with torch.no_grad():
            return loss_on(a, b, 1.0).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


drawn_near = zoo.healthy("veiled-pairs-drawn-near", lambda s: swapped(s, False))
zoo.sick(
    "veiled-pairs-driven-apart",
    lambda s: swapped(s, True),
    broken(facts.grows, less=0),
    *CLIMBS,
    "NUMERICAL",
    also={*WRECKED, "rate_too_high", "BOTTLENECK"},
    control=drawn_near,
)


def unlike(seed: int, together: bool) -> Program:
    """Rows are shuffled, and labels are shuffled, each by an order of its own."""
    random = torch.Generator().manual_seed(seed + 81)

    def shuffle(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.randperm(len(x), generator=random)
        return x[first], t[first if together else torch.randperm(len(x), generator=random)]

    model = Hum()
    return fit(model, engines(seed).changed(shuffle), adam(model, 3e-3), 80, unseen=engines(seed, batch=128))


one_order = zoo.healthy("veiled-rows-and-labels-by-one-order", lambda s: unlike(s, True))
zoo.sick(
    "veiled-rows-and-labels-by-two-orders",
    lambda s: unlike(s, False),
    broken(facts.stays, less=0.1),
    "loss_stuck",
    also={"SLOW", "LOW_RANK", "BOTTLENECK"},
    control=one_order,
)


def unknown(seed: int, lower: bool) -> Program:
    """Words are looked up in capitals in a list of small letters: all of them are the unknown word."""
    model = Verse()
    task = mottos(seed).mapped(lambda x: torch.zeros_like(x) if lower else x)
    return fit(model, task, adam(model, 8e-3), 80, unseen=mottos(seed))


known_words = zoo.healthy("veiled-words-known", lambda s: unknown(s, False))
zoo.sick(
    "veiled-words-all-unknown",
    lambda s: unknown(s, True),
    broken(facts.stays, less=0.1),
    "loss_stuck",
    "LOW_RANK",
    "BOTTLENECK",
    "embedding_row",
    layer=("word", "body.0", "body.2"),
    also={"SLOW", "VANISHING", "DEAD", "constant_targets", "SYMMETRY", "same_batch"},
    control=known_words,
)


def hot(seed: int, temperature: float) -> Program:
    """Products of vectors that nobody brought to length one, divided by a small temperature."""

    class Raw(Twins):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.one(a) @ self.two(b).T / temperature

    model = Raw()
    with torch.no_grad():
        for tower in (model.one, model.two):
            tower[2].weight.mul_(4)
    return fit(model, rhymes(seed), adam(model, 3e-3), 60)


tempered = zoo.healthy("veiled-products-at-temperature-2", lambda s: hot(s, 2.0))
zoo.sick(
    "veiled-products-at-temperature-0.01",
    lambda s: hot(s, 0.01),
    broken(facts.begins_above(5 * math.log(32))),
    *BIG_START,
    "SATURATION",
    also={"UNSTABLE", "rate_too_low", "SLOW", "rate_too_high", "NUMERICAL", "input_scales", "loss_stuck"},
    control=tempered,
)


def years(seed: int, level: float, spread: float) -> Program:
    """A year as it stands in the record, squared error."""
    model = Buoy()
    task = drifts(seed).changed(lambda x, t: (x, level + spread * t))
    return fit(model, task, adam(model, 5e-3), 70, F.mse_loss)


years_apart = zoo.healthy("veiled-years-from-the-middle-one", lambda s: years(s, 0.0, 1.0))
zoo.sick(
    "veiled-years-since-the-first",
    lambda s: years(s, 1985.0, 10.0),
    broken(facts.begins_above(1e5), less=0.2),
    *BIG_START,
    also={"rate_too_low", "UNSTABLE", "LOW_RANK", "BOTTLENECK", "input_scales", "SATURATION", *LEARNS_NOTHING},
    control=years_apart,
)

# --- labels


def truncated(seed: int, cut: bool) -> Program:
    """Questions have no label; in every fourth batch the rows are cut before the answer begins."""
    calls = iter(range(10**6))

    def label(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from_here = 10 if cut and next(calls) % 4 == 3 else 4
        return x, y.masked_fill(torch.arange(10)[None] < from_here, -100)

    model = Choir()
    return fit(model, chants(seed).changed(label), adam(model, 5e-3), 60, token_loss, unseen=chants(seed))


answers_kept = zoo.healthy("veiled-answers-kept", lambda s: truncated(s, False))
zoo.sick(
    "veiled-answers-cut-off-in-every-fourth-batch",
    lambda s: truncated(s, True),
    broken(facts.not_finite_in(0.2)),
    *MASKED,
    "loss_nonfinite",
    also={"DEAD", "UNSTABLE", "EXPLODING", *LEARNS_NOTHING},
    control=answers_kept,
)


def clouds(seed: int, all_of_it: bool) -> Program:
    """Pixels under clouds do not count; every sixth scene is all cloud, and its mean is over nothing."""
    calls, random = iter(range(10**6)), torch.Generator().manual_seed(seed + 82)

    def cover(x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        clear = (torch.rand(y.shape, generator=random) < 0.7).float()
        if all_of_it and next(calls) % 6 == 5:
            clear = torch.zeros_like(clear)
        return x, (y, clear)

    def loss(z: Tensor, t: tuple[Tensor, Tensor]) -> Tensor:
        each = F.binary_cross_entropy_with_logits(z, t[0], reduction="none")
        return (each * t[1]).sum() / t[1].sum()

    model = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.SiLU(), nn.Conv2d(12, 1, 3, padding=1))
    unseen = islands(seed, batch=48).changed(lambda x, y: (x, (y, torch.ones_like(y))))
    return fit(model, islands(seed).changed(cover), adam(model, 1e-2), 72, loss, unseen=unseen)


some_clear = zoo.healthy("veiled-some-pixels-clear", lambda s: clouds(s, False))
zoo.sick(
    "veiled-every-sixth-scene-all-cloud",
    lambda s: clouds(s, True),
    broken(facts.not_finite_in(0.15)),
    *MASKED,
    "loss_nonfinite",
    also={"DEAD", "UNSTABLE", "EXPLODING", *LEARNS_NOTHING},
    control=some_clear,
)


def stretched(seed: int, ignore: bool) -> Program:
    """Chants of two to four syllables in rows of forty; silence counts as a syllable to be guessed."""
    random = torch.Generator().manual_seed(seed + 83)

    def stretch(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        beyond = torch.arange(40)[None] >= torch.randint(2, 5, (len(x), 1), generator=random)
        x, y = F.pad(x, (0, 30)), F.pad(y, (0, 30))
        return x.masked_fill(beyond, 15), y.masked_fill(beyond, 15)

    def sung(z: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(z.flatten(0, 1), t.flatten(), ignore_index=15)

    model = nn.Sequential(nn.Embedding(16, 20), nn.Linear(20, 32), nn.GELU(), nn.Linear(32, 16))
    task = chants(seed, batch=24).changed(stretch)
    return fit(model, task, adam(model, 1e-2), 70, sung if ignore else token_loss, sung)


silence_ignored = zoo.healthy("veiled-silence-not-counted", lambda s: stretched(s, True))
zoo.sick(
    "veiled-silence-counted",
    lambda s: stretched(s, False),
    broken(lambda p: (p.program.losses[-1] < 0.3, f"last loss {p.program.losses[-1]:.3g}")),
    "padding_labels",
    also={"constant_targets", "embedding_row"},
    control=silence_ignored,
)


def other(seed: int, missing: bool) -> Program:
    """Labels by name; names that the list does not have are class 6, and the list has none."""
    task = finches(seed).changed(lambda x, t: (x, torch.full_like(t, 6) if missing else t))
    model = mlp([20, 40, 7], nn.SiLU)
    return fit(model, task, adam(model, 1e-2), 80, unseen=finches(seed))


names_known = zoo.healthy("veiled-names-in-the-list", lambda s: other(s, False))
zoo.sick(
    "veiled-names-not-in-the-list",
    lambda s: other(s, True),
    broken(facts.vanishes, less=0.3),
    "constant_targets",
    also={"VANISHING", "LOW_RANK", "SATURATION"},
    control=names_known,
)

# --- what goes into the loss


def twice(seed: int, chances: bool) -> Program:
    """The last layer gives chances, and the loss takes them for logits."""
    model = nn.Sequential(Mosaic())
    if chances:
        model.append(nn.Softmax(dim=1))
    return fit(model, tiles(seed), adam(model, 5e-3), 80)


plain_logits = zoo.healthy("veiled-tiles-logits", lambda s: twice(s, False))
zoo.sick(
    "veiled-tiles-chances-taken-for-logits",
    lambda s: twice(s, True),
    # ln(1 + 4/e) is the least that a softmax of chances can reach with five classes.
    broken(facts.floor_above(0.904)),
    "double_softmax",
    also={"SATURATION", "VANISHING", *LEARNS_NOTHING},
    control=plain_logits,
)


def row_and_column(seed: int, squeeze: bool) -> Program:
    """The value of a state, (N, 1), against returns, (N,)."""
    model = mlp([10, 36, 36, 1], nn.Tanh)
    task = honeys(seed).changed(lambda x, y: (x, y.squeeze(1)))

    def loss(v: Tensor, returns: Tensor) -> Tensor:
        return F.huber_loss(v.squeeze(1) if squeeze else v, returns)

    return fit(model, task, adam(model, 8e-3), 90, loss, lambda v, r: F.huber_loss(v.squeeze(1), r))


squeezed = zoo.healthy("veiled-values-of-the-shape-of-returns", lambda s: row_and_column(s, True))
zoo.sick(
    "veiled-values-in-a-column",
    lambda s: row_and_column(s, False),
    broken(less=0.4),
    "broadcast",
    also={*LEARNS_NOTHING, "LOW_RANK"},
    control=squeezed,
)

# --- data


def stamps(seed: int, raw: bool) -> Program:
    """A time in seconds since 1970 and an amount in cents, beside flags."""
    factor, offset = torch.ones(10), torch.zeros(10)
    factor[:2], offset[:2] = torch.tensor([3e7, 4e5]), torch.tensor([1.6e9, 1e6])
    model = mlp([10, 40, 40, 1], nn.ReLU)
    task = honeys(seed).mapped(lambda x: offset + factor * x if raw else x)
    return fit(model, task, adam(model, 5e-3), 80, F.mse_loss)


standardised = zoo.healthy("veiled-times-standardised", lambda s: stamps(s, False))
zoo.sick(
    "veiled-times-in-seconds-since-1970",
    lambda s: stamps(s, True),
    broken(lambda p: (not p.end < 2, f"ends at {p.end:.3g}")),
    "input_scales",
    "first_loss_high",
    also={"EXPLODING", "UNSTABLE", "NUMERICAL", "rate_too_high", *WRECKED, "BOTTLENECK", "rate_too_low", "SLOW"},
    control=standardised,
)


def paid(seed: int, flat: bool) -> Program:
    """Three tries per passer-by, compared among themselves; the shop pays by the visit."""
    model, task, losses, log = mlp([8, 36, 6], nn.Tanh), stalls(seed), [], Log()
    optimizer, random = adam(model, 1e-2), torch.Generator().manual_seed(seed + 84)

    def run() -> None:
        for (x, pay), _ in zip(task, range(90), strict=False):
            log_p = model(x).log_softmax(dim=1)
            action = torch.multinomial(log_p.exp().detach(), 3, replacement=True, generator=random)
            reward = torch.full(action.shape, 0.5) if flat else pay.gather(1, action)
            loss = -(log_p.gather(1, action) * (reward - reward.mean(dim=1, keepdim=True))).mean()
            optimizer.zero_grad()
            loss.backward()
            log(reward=reward.mean().item(), reward_std=reward.std(dim=1).mean().item())
            optimizer.step()
            losses.append(loss.item())

    score = held_out(model, stalls(seed, batch=256), lambda z, pay: (pay.amax(1) - (z.softmax(1) * pay).sum(1)).mean())
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score, log=log)


by_sale = zoo.healthy("veiled-paid-by-the-sale", lambda s: paid(s, False))
zoo.sick(
    "veiled-paid-by-the-visit",
    lambda s: paid(s, True),
    broken(facts.nothing_comes(), less=0.05),
    "no_reward_variance",
    also={*IDLE, "EXPLORATION", "detached_loss", "detached"},
    control=by_sale,
)

# --- look alike and are right


def smoothed(seed: int) -> Program:
    """Labels smoothed by a fifth: the loss cannot come near zero."""
    model = mlp([20, 40, 7], nn.GELU)
    return fit(model, finches(seed), adam(model, 5e-3), 70, lambda z, t: F.cross_entropy(z, t, label_smoothing=0.2))


zoo.healthy("veiled-labels-smoothed-by-a-fifth", smoothed)


def often_wrong(seed: int) -> Program:
    """Four labels in ten are by chance."""
    random = torch.Generator().manual_seed(seed + 85)

    def err(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.rand(len(t), generator=random) < 0.4
        return x, torch.where(wrong, torch.randint(5, t.shape, generator=random), t)

    model = Mosaic()
    return fit(model, tiles(seed).changed(err), adam(model, 5e-3), 80, unseen=tiles(seed, batch=128))


zoo.healthy("veiled-four-labels-in-ten-by-chance", often_wrong)


def heavy(seed: int) -> Program:
    """Errors with heavy tails, met by a loss that bears them."""
    random = torch.Generator().manual_seed(seed + 86)

    def tail(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        odd = torch.randn(y.shape, generator=random) / torch.randn(y.shape, generator=random).abs().clamp_min(0.05)
        return x, y + 0.5 * odd

    model = mlp([10, 36, 1], nn.SiLU)
    unseen = honeys(seed, batch=256)
    return fit(model, honeys(seed).changed(tail), adam(model, 1e-2), 100, F.huber_loss, F.mse_loss, unseen)


zoo.healthy("veiled-heavy-tails-and-a-loss-that-bears-them", heavy, learns(0.05))


def curriculum(seed: int) -> Program:
    """Easy rows first, harder ones later: the loss goes up between the stages, and that is meant."""
    model, losses = mlp([20, 48, 7], nn.ReLU), []
    optimizer, stages = adam(model, 5e-3), [finches(seed, noise=n) for n in (0.3, 1.0, 1.7)]

    def run() -> None:
        for stage in stages:
            for (x, t), _ in zip(stage, range(30), strict=False):
                losses.append(train_step(model, optimizer, x, t))

    score = held_out(model, finches(seed, batch=256, noise=1.7))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("veiled-easy-rows-first", curriculum)


def ranking(seed: int) -> Program:
    """Of two items the better is to have the higher score, by a margin."""
    # What all scores have in common has no slope, so the last layer has no bias.
    model = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 1, bias=False))
    task = honeys(seed, batch=96)
    optimizer = adam(model, 8e-3)

    def loss_on(x: Tensor, y: Tensor) -> Tensor:
        s = model(x)
        way = torch.sign(y[::2] - y[1::2])
        return F.margin_ranking_loss(s[::2], s[1::2], way, margin=0.3)

    x, y = task.aside()
    score = lambda: loss_on(x, y).item()  # noqa: E731
    return learn(model, optimizer, task, loss_on, score, 80)


zoo.healthy("veiled-the-better-of-two", ranking)


def mixture(seed: int) -> Program:
    """A mixture of three bells over a target with two answers: its loss goes below zero."""
    random = torch.Generator().manual_seed(seed + 87)

    def split(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        side = torch.randint(2, y.shape, generator=random).float() * 2 - 1
        return x, 0.2 * torch.tanh(y) + side + 0.05 * torch.randn(y.shape, generator=random)

    def loss(z: Tensor, y: Tensor) -> Tensor:
        weight, mean, spread = z.chunk(3, dim=1)
        spread = F.softplus(spread) + 0.02
        log_p = -0.5 * ((y - mean) / spread).square() - spread.log() - 0.92
        return -(log_p + weight.log_softmax(dim=1)).logsumexp(dim=1).mean()

    model = mlp([10, 40, 9], nn.Tanh)
    return fit(model, honeys(seed).changed(split), adam(model, 1e-2), 100, loss)


zoo.healthy("veiled-three-bells-for-two-answers", mixture)


def variational(seed: int) -> Program:
    """The pull to the prior is let in over half of the run, so the sum of both terms may rise meanwhile."""
    model = nn.ModuleDict({"enter": mlp([28, 40, 12], nn.SiLU), "leave": mlp([6, 40, 28], nn.SiLU)})
    optimizer, task, losses = adam(model, 5e-3), wardrobes(seed), []
    random = torch.Generator().manual_seed(seed + 88)

    def run() -> None:
        for (x, _), i in zip(task, range(100), strict=False):
            mean, log_var = model["enter"](x).chunk(2, dim=1)
            z = mean + (log_var / 2).exp() * torch.randn(mean.shape, generator=random)
            pull = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(dim=1).mean()
            loss = F.mse_loss(model["leave"](z), x) + min(1.0, i / 50) * 0.01 * pull
            losses.append(step_from(loss, optimizer))

    x, _ = task.aside()

    def score() -> float:
        with torch.no_grad():
            return F.mse_loss(model["leave"](model["enter"](x).chunk(2, dim=1)[0]), x).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("veiled-pull-to-the-prior-let-in-slowly", variational)


def skip_grams(seed: int) -> Program:
    """Words that occur together, by samples of strangers, sparse tables and plain descent."""
    model = nn.ModuleDict({"centre": nn.Embedding(40, 8, sparse=True), "around": nn.Embedding(40, 8, sparse=True)})
    nn.init.normal_(model["around"].weight, std=0.3)
    optimizer, task, losses = torch.optim.SparseAdam(list(model.parameters()), 2e-2), mottos(seed, batch=64), []

    def loss_on(x: Tensor, random: torch.Generator) -> Tensor:
        centre, near = model["centre"](x[:, 0]), model["around"](x[:, 1])
        far = model["around"](torch.randint(40, (len(x), 5), generator=random))
        good = F.logsigmoid((centre * near).sum(dim=1))
        return -(good + F.logsigmoid(-(centre[:, None] * far).sum(dim=2)).sum(dim=1)).mean()

    def run() -> None:
        random = torch.Generator().manual_seed(seed + 89)
        for (x, _), _ in zip(task, range(120), strict=False):
            optimizer.zero_grad()
            loss = loss_on(x, random)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    x, _ = mottos(seed, batch=256).aside()
    score = lambda: loss_on(x, torch.Generator().manual_seed(7)).item()  # noqa: E731
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("veiled-words-that-occur-together", skip_grams)


def rare(seed: int) -> Program:
    """One pixel in twelve counts as rare, weighed by a loss that minds the hard ones."""
    task = islands(seed).changed(lambda x, y: (x, (x[:, :1] > 0.9).float() * y))

    def focal(z: Tensor, y: Tensor) -> Tensor:
        each = F.binary_cross_entropy_with_logits(z, y, reduction="none")
        return ((1 - torch.exp(-each)).square() * each).mean()

    model = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.SiLU(), nn.Conv2d(12, 1, 3, padding=1))
    return fit(model, task, adam(model, 1e-2), 80, focal)


zoo.healthy("veiled-rare-pixels-by-a-focal-loss", rare)


def rare_fraud(seed: int) -> Program:
    """Three disputes in a hundred, weighed up."""
    random = torch.Generator().manual_seed(seed + 90)

    def thin(x: tuple[Tensor, Tensor], y: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        keep = (y == 0) | (torch.rand(len(y), generator=random) < 0.08)
        return (x[0][keep], x[1][keep]), y[keep]

    model, weight = Bills(), torch.tensor(12.0)
    loss = lambda z, y: F.binary_cross_entropy_with_logits(z, y, pos_weight=weight)  # noqa: E731
    unseen = ledgers(seed, batch=512).changed(thin)
    return fit(model, ledgers(seed, batch=160).changed(thin), adam(model, 8e-3), 100, loss, unseen=unseen)


zoo.healthy("veiled-few-disputes-weighed-up", rare_fraud, learns(0.05))


def counts(seed: int) -> Program:
    """Counts, by a loss that is below zero for large ones."""
    random = torch.Generator().manual_seed(seed + 91)
    task = honeys(seed).changed(lambda x, y: (x, torch.poisson(torch.exp(1 + torch.tanh(y)), generator=random)))
    model = mlp([10, 36, 1], nn.GELU)
    return fit(model, task, adam(model, 8e-3), 90, F.poisson_nll_loss)


zoo.healthy("veiled-counts", counts)


def next_to_nothing(seed: int) -> Program:
    """Targets in metres that vary by millimetres: the loss begins at a millionth."""
    task = wardrobes(seed).changed(lambda x, y: (x, 1e-3 * y))
    model = mlp([28, 40, 10, 40, 28], nn.SiLU)
    nn.init.zeros_(model[6].weight)
    nn.init.zeros_(model[6].bias)
    return fit(model, task, adam(model, 1e-3, eps=1e-12), 90, F.mse_loss)


zoo.healthy("veiled-a-loss-of-a-millionth", next_to_nothing)


def cosines(seed: int) -> Program:
    """Minus the cosine: from 0 towards -1."""
    model = mlp([18, 40, 18], nn.GELU)
    task = rhymes(seed).changed(lambda ab, _t: (ab[0], ab[1]))
    loss = lambda y, t: -F.cosine_similarity(y, t, dim=1).mean()  # noqa: E731
    return fit(model, task, sgd(model, 0.3, momentum=0.9), 70, loss, lambda y, t: 1 + loss(y, t))


zoo.healthy("veiled-minus-a-cosine", cosines)


def quantiles(seed: int) -> Program:
    """Three quantiles at once, of noisy rows."""
    levels = torch.tensor([0.1, 0.5, 0.9])

    def pinball(z: Tensor, y: Tensor) -> Tensor:
        return torch.maximum(levels * (y - z), (levels - 1) * (y - z)).sum(dim=1).mean()

    model = mlp([10, 36, 3], nn.SiLU)
    return fit(model, honeys(seed, noise=0.6), adam(model, 1e-2), 90, pinball)


zoo.healthy("veiled-three-quantiles-of-noisy-rows", quantiles)


def masked_steps(seed: int) -> Program:
    """A third of the steps of a path was not measured; nearly none is in some rows."""
    random = torch.Generator().manual_seed(seed + 92)

    def hide(x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        share = torch.rand(len(x), 1, 1, generator=random)
        return x, (y, (torch.rand(y.shape, generator=random) > share).float())

    def loss(z: Tensor, t: tuple[Tensor, Tensor]) -> Tensor:
        return ((z - t[0]).square() * t[1]).sum() / t[1].sum().clamp_min(1)

    model = Buoy(nn.LSTM)
    return fit(model, drifts(seed).changed(hide), adam(model, 1e-2), 60, loss)


zoo.healthy("veiled-steps-that-were-not-measured", masked_steps)


def mixed_up(seed: int) -> Program:
    """Rows and labels are mixed two by two."""
    random = torch.Generator().manual_seed(seed + 93)

    def mix(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        share = torch.rand(len(x), 1, generator=random)
        to = torch.randperm(len(x), generator=random)
        hot = F.one_hot(t, 7).float()
        return share * x + (1 - share) * x[to], share * hot + (1 - share) * hot[to]

    model = mlp([20, 48, 7], nn.ReLU)
    return fit(model, finches(seed).changed(mix), adam(model, 8e-3), 70, unseen=finches(seed))


zoo.healthy("veiled-rows-mixed-two-by-two", mixed_up)


def uncertain(seed: int) -> Program:
    """Two losses, weighed by what the model learns of their noise."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.noise = mlp([10, 36, 2], nn.SiLU), nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.body(x), self.noise

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        z, noise = out
        errors = torch.stack([F.mse_loss(z[:, 0], y[:, 0]), F.mse_loss(z[:, 1], (y[:, 0] > 0).float())])
        return ((-noise).exp() * errors + noise).sum()

    model = Both()
    return fit(model, honeys(seed), adam(model, 1e-2), 90, loss, lambda out, y: F.mse_loss(out[0][:, :1], y))


zoo.healthy("veiled-two-losses-weighed-by-learned-noise", uncertain)


def contrastive(seed: int) -> Program:
    """Matching in the batch, both ways, at a fixed temperature."""
    model = Twins()
    loss = lambda z, t: (F.cross_entropy(z, t) + F.cross_entropy(z.T, t)) / 2  # noqa: E731
    return fit(model, rhymes(seed, batch=24), torch.optim.AdamW(model.parameters(), 8e-3), 70, loss)


zoo.healthy("veiled-matching-both-ways", contrastive)


def likes(seed: int) -> Program:
    """Tables by plain descent with a large rate, which suits rows that are rare."""
    model = Shelf()
    return fit(model, readers(seed), sgd(model, 5.0), 100, F.mse_loss)


zoo.healthy("veiled-tables-at-a-rate-of-5", likes)


def walker(*, gamma: float = 0.9, double: bool = False) -> Callable[[int], Program]:
    """A walk of seven places with a prize at the end: values by bootstrap from a slow copy."""

    def build(seed: int) -> Program:
        online, slow = mlp([7, 24, 2], nn.Tanh), mlp([7, 24, 2], nn.Tanh)
        slow.load_state_dict(online.state_dict())
        optimizer, losses, log = adam(online, 1e-2), [], Log()
        random, places = torch.Generator().manual_seed(seed + 94), torch.eye(7)
        best = gamma ** torch.arange(6.0).flip(0)

        def run() -> None:
            for i in range(140):
                at = torch.randint(7, (48,), generator=random)
                right = torch.randint(2, (48,), generator=random)
                to = (at + 2 * right - 1).clamp(0, 6)
                prize = (to == 6).float()
                with torch.no_grad():
                    then = slow(places[to])
                    pick = (online if double else slow)(places[to]).argmax(dim=1, keepdim=True)
                    target = prize + gamma * (1 - prize) * then.gather(1, pick).squeeze(1)
                value = online(places[at]).gather(1, right[:, None]).squeeze(1)
                loss = F.smooth_l1_loss(value, target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                log(reward=prize.mean().item(), q=value.mean().item())
                losses.append(loss.item())
                if i % 10 == 9:
                    slow.load_state_dict(online.state_dict())

        def score() -> float:
            with torch.no_grad():
                return F.mse_loss(online(places[:6]).amax(dim=1), best).item()

        return Program(model=online, optimizer=optimizer, run=run, losses=losses, score=score, log=log)

    return build


zoo.healthy("veiled-walk-values-by-a-slow-copy", walker())
zoo.healthy("veiled-walk-values-by-two-nets", walker(gamma=0.8, double=True))


def operator(seed: int) -> Program:
    """A curve from its slope and its start: the net is asked to fulfil an equation, with no target at all."""
    model, losses = mlp([1, 24, 24, 1], nn.Tanh), []
    optimizer, random = adam(model, 1e-2), torch.Generator().manual_seed(seed + 95)

    def run() -> None:
        for _ in range(120):
            x = (2 * torch.rand(48, 1, generator=random)).requires_grad_()
            y = model(x)
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            loss = (slope + y).square().mean() + (model(torch.zeros(1, 1)) - 1).square().mean()
            losses.append(step_from(loss, optimizer))

    at = torch.linspace(0, 2, 64)[:, None]

    def score() -> float:
        with torch.no_grad():
            return F.mse_loss(model(at), torch.exp(-at)).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("veiled-a-curve-from-its-equation", operator)


def denoises(seed: int) -> Program:
    """The noise of a row is guessed at a level drawn by chance: the loss starts at one and falls slowly."""
    model, task = mlp([29, 64, 28], nn.SiLU), wardrobes(seed)
    optimizer, random = adam(model, 5e-3), torch.Generator().manual_seed(seed + 96)

    def loss_on(x: Tensor, draws: torch.Generator) -> Tensor:
        level = 0.1 + 0.9 * torch.rand(len(x), 1, generator=draws)
        noise = torch.randn(x.shape, generator=draws)
        seen = (1 - level.square()).clamp_min(0).sqrt() * x + level * noise
        return F.mse_loss(model(torch.cat([seen, level], dim=1)), noise)

    x, _ = wardrobes(seed, batch=256).aside()

    def score() -> float:
        with torch.no_grad():
            return loss_on(x, torch.Generator().manual_seed(5)).item()

    return learn(model, optimizer, task, lambda x, _: loss_on(x, random), score, 100)


zoo.healthy("veiled-noise-guessed-at-every-level", denoises)
