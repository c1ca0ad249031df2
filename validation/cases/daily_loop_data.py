# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Daily programs with a fault of their loss or of their data, each beside its twin.

Half: daily.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Log, Program, Zoo
from validation.cases._common_loops import lowest_above, study
from validation.cases._daily_corridor import far_from_goal, questions, walk
from validation.cases._daily_loops import (
    KINDS,
    Dynamics,
    FastText,
    Hours,
    Instances,
    Llama,
    Made,
    SmallVit,
    Writer,
    bce,
    beside,
    buses,
    crates,
    defaults,
    diary,
    moths,
    of_row,
    poles,
    rate_of,
    tweets,
    wells,
    yields,
)
from validation.cases._plain_loops import harmed
from validation.evidence.loops import Played, begins_above, grows, learns, not_finite_in, stays
from validation.labels import CLIMBS, IDLE, LEARNS_NOTHING, LOSS_LOST, MASKED, WRECKED
from validation.nets import mlp
from validation.programs import adam, held_out, sgd
from validation.tasks import Task, token_loss

zoo = Zoo("loop", half="daily", proof=learns(0.25))
adamw = torch.optim.AdamW
ODD = {*WRECKED, "EXPLODING", "UNSTABLE", "SLOW", "rate_too_low", "rate_too_high", "BOTTLENECK", "batch_size"}

# --- the loss is no number, or goes up


def own_likelihood(seed: int, fault: bool) -> Program:
    """A normal distribution with a spread of its own; the spread is what comes out, or its softplus."""
    model = mlp([8, 32, 32, 2], nn.Tanh)

    def density(bounded: bool) -> Callable[[Tensor, Tensor], Tensor]:
        def loss(out: Tensor, y: Tensor) -> Tensor:
            spread = F.softplus(out[:, 1]) + 0.05 if bounded else out[:, 1]
            return 1 + (spread.log() + 0.5 * ((y - out[:, 0]) / spread).square()).mean()

        return loss

    return study(model, yields(seed), adam(model, 1e-2), density(not fault), 70, density(True))


def unit_vectors(seed: int, fault: bool) -> Program:
    """Rows are divided by their length; the rows of empty crates have none."""
    model = mlp([12, 40, 6], nn.GELU)

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[::16] = 0
        return 3 * x / x.norm(dim=1, keepdim=True).clamp(min=0.0 if fault else 1e-6)

    return study(model, crates(seed).mapped(change), adam(model, 1e-2), bce, 80)


for sound, name, build in (
    ("yields-spread-by-softplus", "yields-spread-as-it-comes", own_likelihood),
    ("crates-unit-rows-with-a-floor", "crates-unit-rows-of-empty-crates", unit_vectors),
):
    beside(
        zoo,
        sound,
        name,
        build,
        harmed(not_finite_in(0.5)),
        *LOSS_LOST,
        also={*WRECKED, *IDLE, "bad_batch", "first_loss_high", "input_scales", "EXPLODING", "UNSTABLE", "all_masked"},
    )


def unlearning(seed: int, fault: bool) -> Program:
    """Gradients are turned round, to forget some rows; the switch was left on for all of them."""
    model = Dynamics()

    def turn(_: int) -> None:
        for p in model.parameters():
            if fault:
                p.grad.neg_()

    return study(model, poles(seed), sgd(model, 0.02, momentum=0.9), F.mse_loss, 50, ready=turn)


class ByHand(torch.optim.Optimizer):
    """Plain descent with momentum, as one writes it to see how an optimizer works; `sign` is -1, or was forgotten."""

    def __init__(self, parameters: Any, lr: float, sign: int) -> None:
        super().__init__(parameters, {"lr": lr, "sign": sign})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                before = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                before.mul_(0.9).add_(p.grad)
                p.add_(before, alpha=group["sign"] * group["lr"])


def goes_up(seed: int, fault: bool) -> Program:
    model, task, loss = KINDS["petals"](seed)
    return study(model, task, ByHand(model.parameters(), 0.05, 1 if fault else -1), loss, 50)


ASCENT = {*WRECKED, "rate_too_high", "NUMERICAL", "SLOW", "first_loss_high", "weights_overwritten"}
for sound, name, build in (
    ("petals-step-by-hand-downwards", "petals-step-by-hand-upwards", goes_up),
    ("poles-gradients-as-they-are", "poles-gradients-turned-round", unlearning),
):
    beside(zoo, sound, name, build, harmed(grows), *CLIMBS, "loss_nonfinite", "NUMERICAL", also=ASCENT)

# --- the loss is stuck, or begins too high


class OverRows(nn.Module):
    """Attention over the samples of a bag; the softmax runs over rows of the batch, or over samples."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.net, self.wrong = Instances(), wrong

    def forward(self, x: Tensor) -> Tensor:
        if self.wrong:  # bags and samples were swapped by a view
            x = x.reshape(x.shape[1], x.shape[0], -1).transpose(0, 1)
        return self.net(x)


def shifted(seed: int, fault: bool) -> Program:
    """Labels come from a file that was sorted apart; in the twin from the same one."""
    model, task, loss = KINDS["moths"](seed)
    random = torch.Generator().manual_seed(seed + 3)
    score = held_out(model, moths(seed, batch=128))
    if fault:
        task = task.changed(lambda x, y: (x, y[torch.randperm(len(y), generator=random)]))
    return study(model, task, sgd(model, 0.03, momentum=0.9), loss, 60, score=score)


beside(
    zoo,
    "wells-bags-as-they-are",
    "wells-bags-mixed-by-view",
    lambda s, fault: study(m := OverRows(fault), wells(s), adam(m, 6e-3), bce, 90),
    harmed(stays),
    "loss_stuck",
    also={"SLOW", "batch_size", "constant_targets", "LOW_RANK", "BOTTLENECK", "VANISHING", "broadcast"},
)
beside(
    zoo,
    "moths-labels-of-their-pictures",
    "moths-labels-of-other-pictures",
    shifted,
    harmed(stays),
    "loss_stuck",
    also={"SLOW", "batch_size", "constant_targets", "DEAD", "rate_too_low", "LOW_RANK"},
)


def own_start(seed: int, fault: bool) -> Program:
    """`normal_(weight)` for every matrix, as in a snippet, or by the size of what comes in."""
    model = mlp([12, 64, 64, 6])
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=1.0 if fault else (2 / p.shape[1]) ** 0.5)
    return study(model, crates(seed), sgd(model, 0.05, momentum=0.9), bce, 80)


def cents(seed: int, fault: bool) -> Program:
    """Passengers per year, or in thousands per hour; the score is in the latter."""
    model = Hours()
    unit = 5e4 if fault else 1.0

    def meant(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out / unit, y / unit)

    task = buses(seed).changed(lambda x, y: (x, unit * y))
    return study(model, task, adam(model, 1e-2), F.mse_loss, 70, meant)


beside(
    zoo,
    "crates-drawn-by-fan-in",
    "crates-drawn-at-one",
    own_start,
    harmed(begins_above(5.0), worse=1.2),
    "first_loss_high",
    "EXPLODING",
    "UNSTABLE",
    also={*ODD, "SATURATION", "NUMERICAL"},
)
beside(
    zoo,
    "buses-passengers-in-thousands",
    "buses-passengers-per-year",
    cents,
    harmed(begins_above(1e6)),
    "first_loss_high",
    "EXPLODING",
    "rate_too_low",
    "SLOW",
    also={*ODD, "input_scales", "constant_targets", "SATURATION", "eps_rules"},
)

# --- masks and padding


def answers_only(seed: int, fault: bool) -> Program:
    """Only the answer counts; the separator is looked for by a number of another tokenizer, so all is question."""
    model, task = Llama(), diary(seed)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        y = y.clone()
        separator = 99 if fault else 0
        seen = (y == separator).cumsum(dim=1) > 0
        y[~seen] = -100
        return F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=-100)

    return study(model, task, adamw(model.parameters(), lr=4e-3), loss, 60, token_loss)


def sure_only(seed: int, fault: bool) -> Program:
    """The loss is the mean over rows whose label is sure; sure was 0.9, and is compared with 90."""
    model, task = FastText(), tweets(seed)
    random = torch.Generator().manual_seed(seed)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        sure = 0.5 + 0.5 * torch.rand(len(y), generator=random) > (90 if fault else 0.6)
        return F.cross_entropy(out, y, reduction="none")[sure].mean()

    return study(model, task, adam(model, 2e-2), loss, 70, F.cross_entropy)


for sound, name, build in (
    ("verses-answers-after-the-separator", "verses-separator-of-another-tokenizer", answers_only),
    ("tweets-rows-that-are-sure", "tweets-no-row-is-sure", sure_only),
):
    beside(zoo, sound, name, build, harmed(not_finite_in(0.9)), *MASKED, "loss_nonfinite", also={*IDLE, *WRECKED})


def ignoring(label: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=label)


def padded(make: Callable[[int], nn.Module], rate: float, width: int = 56):
    """Texts of four signs in rows of sixty; the sign 14 fills them and is a label like any other."""

    def build(seed: int, fault: bool) -> Program:
        model = make(15)
        fill = lambda x: F.pad(x, (0, width), value=14)  # noqa: E731
        task = diary(seed, length=4, batch=12).changed(lambda x, y: (fill(x), fill(y)))
        return study(model, task, adam(model, rate), ignoring(-100 if fault else 14), 50, ignoring(14))

    return build


for sound, name, build in (
    ("diary-padding-ignored", "diary-padding-counted", padded(Writer, 1e-2, 40)),
    ("verses-padding-ignored", "verses-padding-counted", padded(Llama, 3e-3)),
):
    beside(
        zoo,
        sound,
        name,
        build,
        harmed(worse=1.2),
        "padding_labels",
        also={"constant_targets", "embedding_row", "LOW_RANK", "SLOW", "loss_stuck", "rate_too_low"},
    )

# --- what goes into the loss

TWICE = {"SATURATION", "VANISHING", "DEAD", *LEARNS_NOTHING, "rate_too_low"}


def activated(name: str, last: Callable[[Tensor], Tensor], rate: float, steps: int = 60):
    """The model ends in an activation that the loss has as well; plain descent with momentum."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        wrong = lambda out, y: loss(last(out), y)  # noqa: E731
        return study(model, task, sgd(model, rate, momentum=0.9), wrong if fault else loss, steps, loss)

    return build


for name, what, last, level, rate, steps in (
    ("verses", "softmax", lambda o: o.softmax(dim=-1), math.log(1 + 13 / math.e) - 0.01, 0.2, 70),
    ("crates", "sigmoid", torch.sigmoid, 0.4, 0.3, 110),
):
    beside(
        zoo,
        f"{name}-one-{what}",
        f"{name}-two-{what}-layers",
        activated(name, last, rate, steps),
        harmed(lowest_above(level)),
        "double_softmax",
        also=TWICE,
    )


def shaped(make: Callable[[], nn.Module], task_of: Callable[[int], Task], rate: float, kind: Callable[..., Tensor]):
    """The model gives (N, 1), the targets come as (N,)."""

    def build(seed: int, fault: bool) -> Program:
        model = make()

        def meant(out: Tensor, y: Tensor) -> Tensor:
            return kind(out.squeeze(1), y)

        return study(model, task_of(seed), adam(model, rate), kind if fault else meant, 80, meant)

    return build


class Column(nn.Module):
    """Kinds and numbers through one network; the answer keeps its last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.deep = nn.Embedding(30, 4), mlp([18, 40, 1], nn.GELU)

    def forward(self, kind: Tensor, x: Tensor) -> Tensor:
        h = self.table(kind + 10 * torch.arange(3)).flatten(1)
        return self.deep(torch.cat([h, x], dim=1))


def by_hand(out: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of two classes, with the logarithms written out."""
    return (F.softplus(out) - y * out).mean()


for sound, name, make, task_of, kind in (
    ("yields-columns-squeezed", "yields-column-against-row", KINDS["yields"], yields, F.smooth_l1_loss),
    ("defaults-columns-squeezed", "defaults-column-against-row", None, defaults, by_hand),
):
    beside(
        zoo,
        sound,
        name,
        shaped(Column if make is None else (lambda make=make: make(0)[0]), task_of, 1e-2, kind),
        harmed(),
        "broadcast",
        also={*LEARNS_NOTHING, "constant_targets", "VANISHING", "LOW_RANK", "BOTTLENECK", "batch_size"},
    )

# --- data


def raw_time(seed: int, fault: bool) -> Program:
    """A column of Unix seconds among others of size one, or the days since the first of them."""
    model = mlp([9, 40, 40, 1], nn.Tanh)
    random = torch.Generator().manual_seed(seed + 8)

    def change(x: Tensor) -> Tensor:
        day = torch.randn(len(x), 1, generator=random)
        return torch.cat([x, 1.7e9 + 86400 * 30 * day if fault else day], dim=1)

    return study(model, yields(seed).mapped(change), adam(model, 1e-2), of_row, 90)


def raw_pixels(seed: int, fault: bool) -> Program:
    """Pixels from 0 to 255, or from 0 to 1 and centred."""
    model = SmallVit()
    task = moths(seed).mapped(lambda x: (50 * x + 128).clamp(0, 255) if fault else ((x + 2.5) / 5).clamp(0, 1) - 0.5)
    return study(model, task, adamw(model.parameters(), lr=4e-3), steps=60)


def other_units(seed: int, fault: bool) -> Program:
    """Angles in radians beside speeds in micrometres per second."""
    unit = torch.tensor([1.0, 1.0, 1e6, 1e6]) if fault else torch.ones(4)

    class Units(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp([5, 48, 48, 4], nn.SiLU)

        def forward(self, s: Tensor, push: Tensor) -> Tensor:
            return self.net(torch.cat([s * unit, push], dim=1))

    model = Units()
    return study(model, poles(seed), sgd(model, 0.05, momentum=0.9), F.mse_loss, 70)


for sound, name, build, layer in (
    ("yields-days-since-the-first", "yields-time-in-unix-seconds", raw_time, ("0",)),
    ("moths-pixels-centred", "moths-pixels-raw", raw_pixels, ("patch",)),
    ("poles-speeds-in-metres", "poles-speeds-in-micrometres", other_units, ("net.0",)),
):
    beside(
        zoo,
        sound,
        name,
        build,
        harmed(),
        "input_scales",
        "SATURATION",
        "DEAD",
        "first_loss_high",
        "rate_too_high",
        "EXPLODING",
        "UNSTABLE",
        "NUMERICAL",
        layer=layer,
        also={*ODD, "loss_nonfinite", "loss_stuck"},
    )


def labelled(made: Made, wrong: Callable[[Tensor], Tensor], rate: float, steps: int):
    """Labels are spoilt on their way from the file; the score knows the right ones."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = made(seed)
        unseen = held_out(model, made(seed)[1], loss)
        task = task.changed(lambda x, y: (x, wrong(y))) if fault else task
        return study(model, task, adam(model, rate), loss, steps, score=unseen)

    return build


def nothing_to_learn(played: Played) -> tuple[bool, str]:
    last = sum(played.program.losses[-8:]) / 8
    return last < 0.05, f"the loss ends at {last:.3g}"


EASY = {"VANISHING", "SLOW", "SATURATION", "LOW_RANK", "BOTTLENECK", "DEAD", "loss_stuck"}
for name, sound, fault_name, wrong, steps in (
    ("tweets", "labels-of-all-kinds", "labels-by-whole-division-all-zero", lambda y: y // 10, 70),
    ("lungs", "masks-from-0-to-1", "masks-read-as-whole-numbers-all-zero", torch.zeros_like, 50),
):
    beside(
        zoo,
        f"{name}-{sound}",
        f"{name}-{fault_name}",
        labelled(KINDS[name], wrong, rate_of(name), steps),
        harmed(nothing_to_learn),
        "constant_targets",
        also=EASY,
    )


def walked(seed: int, fault: bool) -> Program:
    """A policy gradient in a corridor; the reward is noted after the environment was reset, and is always zero."""
    model, log = mlp([8, 32, 2], nn.Tanh), Log()
    random = torch.Generator().manual_seed(seed)
    optimizer, losses = adam(model, 1e-2), []

    def run() -> None:
        for _ in range(70):
            state, action, reward = walk(model, random, 32)
            reward = 0 * reward if fault else reward
            gain = reward.flip(0).cumsum(dim=0).flip(0)
            log(reward=reward.sum(dim=0).mean().item(), reward_std=reward.sum(dim=0).std().item())
            gain = (gain - gain.mean(dim=1, keepdim=True)) / (gain.std(dim=1, keepdim=True) + 1e-6)
            logp = model(state).log_softmax(dim=-1).gather(-1, action[..., None]).squeeze(-1)
            loss = -(gain * logp).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    score = far_from_goal(model, seed)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score, log=log)


def ranked_answers(seed: int, fault: bool) -> Program:
    """Six actions for each state are compared; the judge cuts all rewards at zero, or at one."""
    model, log = mlp([8, 32, 5], nn.Tanh), Log()
    random, task = torch.Generator().manual_seed(seed), questions(seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        logp = model(batch[0]).log_softmax(dim=1)
        pick = torch.multinomial(logp.detach().exp(), 6, replacement=True, generator=random)
        reward = batch[1].gather(1, pick).clamp(max=0.0 if fault else 1.0)
        log(reward=reward.mean().item(), reward_std=reward.std(dim=1).mean().item())
        gain = (reward - reward.mean(dim=1, keepdim=True)) / (reward.std(dim=1, keepdim=True) + 1e-4)
        return -(gain * logp.gather(1, pick)).mean()

    def missed(out: Tensor, pay: Tensor) -> Tensor:
        return (pay.max(dim=1).values - (out.softmax(dim=1) * pay).sum(dim=1)).mean()

    return study(model, task, adam(model, 1e-2), missed, 80, loss_of=loss_of, log=log)


def no_spread(played: Played) -> tuple[bool, str]:
    spread = max(line["reward_std"] for line in played.program.log.lines)
    return spread < 1e-6, f"largest deviation of the rewards {spread:.3g}"


for sound, name, build in (
    ("corridor-reward-before-the-reset", "corridor-reward-after-the-reset", walked),
    ("answers-rewards-cut-at-one", "answers-rewards-cut-at-zero", ranked_answers),
):
    beside(
        zoo,
        sound,
        name,
        build,
        harmed(no_spread),
        "no_reward_variance",
        also={*IDLE, "detached", "VANISHING", "DEAD", "detached_loss", "constant_targets", "rate_too_low"},
    )
