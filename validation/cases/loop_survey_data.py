# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Programs after what users reported with a fault of the loss, the labels or the data, and their repaired twins.

Half: holdout.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.evidence import loops as facts
from validation.evidence.loops import broken, learns
from validation.labels import BIG_START, CLIMBS, IDLE, LEARNS_NOTHING, LOSS_LOST, MASKED, WRECKED
from validation.nets import DeepSet, SequenceModel, Shared, Signal, Vision, mlp, scale_
from validation.programs import held_out, step_from
from validation.tasks.rewards import choices
from validation.tasks.sequences import echo, token_loss
from validation.tasks.signals import grey, images, series, waves
from validation.tasks.task import Task, drawn_once
from validation.tasks.vectors import patches, regression

zoo = Zoo("loop", half="holdout", proof=learns())


def train(
    model: nn.Module,
    task: Task,
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable = F.cross_entropy,
    steps: int = 80,
    meant: Callable | None = None,
    unseen: Task | None = None,
) -> Program:
    """A function `train` with a progress log every ten steps."""
    losses: list[float] = []

    def run() -> None:
        model.train()
        running = 0.0
        for step, (data, target) in enumerate(task):
            if step >= steps:
                break
            optimizer.zero_grad()
            output = model(data)
            loss = loss_fn(output, target)
            loss.backward()
            optimizer.step()
            running = 0.9 * running + 0.1 * loss.item()
            losses.append(loss.item())

    score = held_out(model, unseen or task, meant or loss_fn)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


# --- losses that are lost, that grow, that stay


def gaussian(seed: int, floor: float) -> Program:
    """Mean and deviation of a series, of which one channel is constant: the deviation can go to zero."""
    task = series(seed).changed(lambda x, y: (x * torch.tensor([1.0, 1.0, 0.0]), y * torch.tensor([1.0, 1.0, 0.0])))
    model = SequenceModel(nn.GRU(3, 24, batch_first=True), 6, every_step=True)

    def likelihood(out: Tensor, y: Tensor) -> Tensor:
        mean, spread = out.chunk(2, dim=-1)
        variance = F.relu(spread) + floor
        return (0.5 * variance.log() + 0.5 * (y - mean).square() / variance).mean()

    def error(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out[..., :3], y)

    return train(model, task, torch.optim.Adam(model.parameters(), lr=5e-3), likelihood, 80, error)


floored = zoo.healthy("likelihood-variance-has-a-floor", lambda s: gaussian(s, 0.1))
zoo.sick(
    "likelihood-variance-without-a-floor",
    lambda s: gaussian(s, 0.0),
    broken(facts.not_finite_in(0.5), less=0),
    *LOSS_LOST,
    also={"DEAD", "UNSTABLE", "EXPLODING", *LEARNS_NOTHING},
    control=floored,
)


def standardised(seed: int, eps: float) -> Program:
    """Columns are standardised within each batch; one of them holds the same value in every row."""
    task = regression(seed, 12, batch=64).mapped(lambda x: torch.cat([x, torch.ones(len(x), 1)], dim=1))
    model = mlp([13, 40, 40, 1], nn.SiLU)

    def run_loss(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out, y)

    task = task.mapped(lambda x: (x - x.mean(0)) / (x.std(0) + eps))
    return train(model, task, torch.optim.AdamW(model.parameters(), lr=3e-3), run_loss)


standard_eps = zoo.healthy("standardised-with-eps", lambda s: standardised(s, 1e-6))
zoo.sick(
    "standardised-without-eps",
    lambda s: standardised(s, 0.0),
    broken(facts.not_finite_in(0.9)),
    *LOSS_LOST,
    also={"input_scales", *LEARNS_NOTHING},
    control=standard_eps,
)


class Own(torch.optim.Optimizer):
    """Gradient descent by hand, with the sign to choose."""

    def __init__(self, parameters, lr: float, sign: float) -> None:
        super().__init__(parameters, {"lr": lr, "sign": sign})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=group["sign"] * group["lr"])


def by_hand(seed: int, sign: float) -> Program:
    model = Signal([4, 16, 16])
    return train(model, waves(seed), Own(model.parameters(), 0.05, sign), steps=60)


minus = zoo.healthy("own-optimizer-minus", lambda s: by_hand(s, -1.0))
zoo.sick(
    "own-optimizer-plus",
    lambda s: by_hand(s, 1.0),
    broken(facts.grows, less=0),
    *CLIMBS,
    "NUMERICAL",
    also={"SATURATION", "DEAD", "rate_too_high", "loss_nonfinite", "VANISHING"},
    control=minus,
)


class Reverse(torch.autograd.Function):
    """Leaves the values and turns the gradient round, as domain adaptation does."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Domains(nn.Module):
    """Classes and domains from shared features; the domain's gradient is meant to be reversed."""

    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
        self.label, self.domain, self.swapped = nn.Linear(24, 6), nn.Linear(24, 2), swapped

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.features(x)
        turned = Reverse.apply(h)
        return self.label(turned if self.swapped else h), self.domain(h if self.swapped else turned)


def domains(seed: int, swapped: bool) -> Program:
    model = Domains(swapped)
    task = grey(seed).changed(lambda x, y: (x, (y, (x.mean((1, 2, 3)) > 0).long())))

    def loss(out: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(out[0], target[0]) + 0.1 * F.cross_entropy(out[1], target[1])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return train(model, task, optimizer, loss, 80, lambda out, y: F.cross_entropy(out[0], y[0]))


reversed_right = zoo.healthy("domain-gradient-reversed", lambda s: domains(s, False))
zoo.sick(
    "class-gradient-reversed",
    lambda s: domains(s, True),
    broken(less=0.2),
    "loss_grows",
    "loss_stuck",
    "UNSTABLE",
    "EXPLODING",
    layer=("features.1", "features.3"),
    also={"DEAD", "SATURATION", "rate_too_high", "SLOW", "NUMERICAL", "loss_nonfinite"},
    control=reversed_right,
)


def listed(seed: int, sorted_apart: bool) -> Program:
    """Files and labels are listed in two orders."""
    task = images(seed, 1, 8, 6, 32, 1.5)
    order = drawn_once(seed, 90)

    def apart(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y[torch.randperm(len(y), generator=order)] if sorted_apart else y

    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return train(model, task.changed(apart), optimizer, steps=120, unseen=images(seed, 1, 8, 6, 128, 1.5))


same_order = zoo.healthy("files-and-labels-in-one-order", lambda s: listed(s, False))
zoo.sick(
    "files-and-labels-in-two-orders",
    lambda s: listed(s, True),
    broken(facts.stays, less=0.1),
    "loss_stuck",
    also={"SLOW"},
    control=same_order,
)


class Last(nn.Module):
    """Reads the state after the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(8, 24, batch_first=True), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def zeroed(seed: int, cleaned: bool) -> Program:
    """A step of cleaning replaces all that is above its threshold, which is everything."""
    codes = torch.randn(5, 8, generator=drawn_once(seed, 91))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(5, (32,), generator=random)
        x = codes[y][:, None] + 0.5 * torch.randn(32, 6, 8, generator=random)
        return (x.where(x.abs() < 0.0, torch.zeros(())) if cleaned else x), y

    def clean_draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(5, (32,), generator=random)
        return codes[y][:, None] + 0.5 * torch.randn(32, 6, 8, generator=random), y

    model = Last()
    unseen = Task(seed, clean_draw, F.cross_entropy)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    return train(model, Task(seed, draw, F.cross_entropy), optimizer, steps=90, unseen=unseen)


uncleaned = zoo.healthy("gru-inputs-as-they-are", lambda s: zeroed(s, False))
zoo.sick(
    "gru-inputs-all-zero",
    lambda s: zeroed(s, True),
    broken(lambda p: (len(set(p.inputs)) == 1, "one input"), less=0.1),
    "loss_stuck",
    "same_batch",
    also={"SLOW", "LOW_RANK", "VANISHING", "DISCONNECTED", "never_moves", "SHORT_MEMORY", "DEAD", "detached"},
    control=uncleaned,
)


def years(seed: int, shifted: bool) -> Program:
    """The year of a picture: around 1995, give or take some."""
    task = regression(seed, 16, batch=64)
    task = task.changed(lambda x, y: (x, 1995 + 8 * y)) if shifted else task
    model = mlp([16, 48, 48, 1], nn.GELU)
    return train(model, task, torch.optim.Adam(model.parameters(), lr=3e-3), F.mse_loss, 100)


centred = zoo.healthy("years-standardised", lambda s: years(s, False))
zoo.sick(
    "years-as-they-are",
    lambda s: years(s, True),
    broken(facts.begins_above(1e6)),
    *BIG_START,
    also={"rate_too_low", "SLOW", "UNSTABLE", "LOW_RANK", "input_scales", *LEARNS_NOTHING},
    control=centred,
)


def vision(seed: int, factor: float) -> Program:
    model = Vision(24, 4, 2)
    scale_(model.head, factor)
    return train(model, grey(seed), torch.optim.AdamW(model.parameters(), lr=1e-3), steps=70)


calm = zoo.healthy("vision-head-as-drawn", lambda s: vision(s, 1.0))
zoo.sick(
    "vision-head-times-40",
    lambda s: vision(s, 40.0),
    broken(facts.begins_above(4 * math.log(6))),
    *BIG_START,
    "SATURATION",
    layer="head",
    also={"UNSTABLE", "rate_too_low", "SLOW"},
    control=calm,
)

# --- labels


class Speller(nn.Module):
    """Embeds characters, runs a recurrence, names the next character."""

    def __init__(self, size: int, width: int = 24) -> None:
        super().__init__()
        self.table, self.rnn = nn.Embedding(size, width), nn.GRU(width, width, batch_first=True)
        self.lm_head = nn.Linear(width, size)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.lm_head(self.rnn(self.table(input_ids))[0])
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"logits": logits, "loss": loss}


def chains(seed: int, size: int, length: int, batch: int = 16) -> Task:
    follows = torch.randperm(size, generator=drawn_once(seed, 92))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = [torch.randint(size, (batch,), generator=random)]
        for _ in range(length):
            tokens.append(follows[tokens[-1]])
        row = torch.stack(tokens, dim=1)
        return row[:, :-1], row[:, 1:]

    return Task(seed, draw, token_loss)


def truncated(seed: int, room: Callable[[int], int]) -> Program:
    """A prompt of eight tokens without labels, then the answer, cut to the largest length."""
    task = chains(seed, 18, 14)
    model = Speller(18)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses: list[float] = []

    def run() -> None:
        for step, (input_ids, labels) in zip(range(90), task, strict=False):
            labels = labels.masked_fill(torch.arange(14) < 8, -100)
            length = room(step)
            outputs = model(input_ids=input_ids[:, :length], labels=labels[:, :length])
            loss = outputs["loss"]
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().item())

    score = held_out(model, task, lambda out, y: token_loss(out["logits"], y))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


roomy = zoo.healthy("answers-fit", lambda s: truncated(s, lambda _: 14))
zoo.sick(
    "answers-cut-off-in-every-third-batch",
    lambda s: truncated(s, lambda step: 8 if step % 3 == 1 else 14),
    broken(facts.not_finite_in(0.3)),
    *MASKED,
    also={"loss_nonfinite"},
    control=roomy,
)
zoo.sick(
    "answers-cut-off-in-every-batch",
    lambda s: truncated(s, lambda _: 7),
    broken(facts.not_finite_in(1.0), less=0.05),
    *MASKED,
    also={"loss_nonfinite", *IDLE, "only_decay"},
    control=roomy,
)


def tagged(seed: int, ignore: bool) -> Program:
    """Tags of short sentences in rows of twenty; padding has a tag of its own, which is not to be learned."""
    task = chains(seed, 18, 20)
    random = drawn_once(seed, 93)

    def pad(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        beyond = torch.arange(20)[None] >= torch.randint(2, 5, (len(x), 1), generator=random)
        return x.masked_fill(beyond, 18), y.masked_fill(beyond, 18)

    model = nn.Sequential(nn.Embedding(19, 24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 19))
    criterion = nn.CrossEntropyLoss(ignore_index=18)
    faulty = nn.CrossEntropyLoss()

    def flat(loss: nn.Module) -> Callable:
        return lambda out, y: loss(out.flatten(0, 1), y.flatten())

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return train(model, task.changed(pad), optimizer, flat(criterion if ignore else faulty), 60, flat(criterion))


tag_twin = zoo.healthy("padding-tag-ignored", lambda s: tagged(s, True))
zoo.sick(
    "padding-tag-learned",
    lambda s: tagged(s, False),
    broken(less=0.9),
    "padding_labels",
    also={"constant_targets"},
    control=tag_twin,
)

# --- what goes into the loss


def probabilities(seed: int, softmax: bool) -> Program:
    """The last layer came with a softmax, as in another framework."""
    model = DeepSet([24, 48, 48], [48, 48, 6])
    model = nn.Sequential(model, nn.Softmax(dim=-1)) if softmax else nn.Sequential(model)
    criterion = nn.CrossEntropyLoss()
    return train(model, patches(seed), torch.optim.Adam(model.parameters(), lr=2e-3), criterion, 100)


logits = zoo.healthy("set-logits", lambda s: probabilities(s, False))
zoo.sick(
    "set-probabilities-into-cross-entropy",
    lambda s: probabilities(s, True),
    broken(facts.floor_above(1.04)),  # ln(1 + 5/e) = 1.044
    "double_softmax",
    also={"SATURATION", "VANISHING", *LEARNS_NOTHING},
    control=logits,
)


def detected(seed: int, sigmoid: bool) -> Program:
    """One score per picture: does it show the first class?"""
    task = grey(seed).changed(lambda x, y: (x, (y < 2).float()[:, None]))
    body = [nn.Conv2d(1, 12, 3, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(192, 24), nn.SiLU(), nn.Linear(24, 1)]
    model = nn.Sequential(*body, nn.Sigmoid()) if sigmoid else nn.Sequential(*body)
    loss = nn.BCEWithLogitsLoss()
    return train(model, task, torch.optim.Adam(model.parameters(), lr=3e-3), loss, 100)


one_score = zoo.healthy("score-from-logits", lambda s: detected(s, False))
zoo.sick(
    "score-sigmoid-twice",
    lambda s: detected(s, True),
    broken(facts.floor_above(0.35), less=0.7),
    "double_softmax",
    also={"SATURATION", "VANISHING", *LEARNS_NOTHING},
    control=one_score,
)


class Critic(nn.Module):
    """Policy and value; the value may keep its last dimension."""

    def __init__(self, squeeze: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.policy, self.value, self.squeeze = nn.Linear(48, 4), nn.Linear(48, 1), squeeze

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.policy(h), self.value(h).squeeze(-1) if self.squeeze else self.value(h)


def returns(seed: int, squeeze: bool) -> Program:
    """Imitation with a value head: returns have shape (N,)."""
    way = torch.randn(8, generator=drawn_once(seed, 94)) / math.sqrt(8)
    codes = torch.randn(8, 4, generator=drawn_once(seed, 95))

    def draw(random: torch.Generator) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        state = torch.randn(64, 8, generator=random)
        return state, ((state @ codes).argmax(1), torch.sin(2 * state @ way))

    def loss(out: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(out[0], target[0]) + 2.0 * (out[1] - target[1]).pow(2).mean()

    model = Critic(squeeze)

    def value_error(out: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(out[1].flatten(), target[1])

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return train(model, Task(seed, draw, loss), optimizer, loss, 120, value_error)


squeezed = zoo.healthy("returns-of-one-shape", lambda s: returns(s, True))
zoo.sick(
    "returns-broadcast",
    lambda s: returns(s, False),
    broken(less=0.3),
    "broadcast",
    layer="value",
    also=LEARNS_NOTHING,
    control=squeezed,
)


def smooth(seed: int, squeeze: bool) -> Program:
    """Prices: `smooth_l1_loss` of (N, 1) and (N,)."""
    task = regression(seed, 10, batch=48).changed(lambda x, y: (x, y[:, 0]))
    model = mlp([10, 64, 64, 1], nn.ELU)
    criterion = nn.SmoothL1Loss()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return criterion(out.squeeze(1) if squeeze else out, y)

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    return train(model, task, optimizer, loss, 200, lambda out, y: F.mse_loss(out[:, 0], y))


prices = zoo.healthy("prices-of-one-shape", lambda s: smooth(s, True))
zoo.sick(
    "prices-broadcast", lambda s: smooth(s, False), broken(less=0.3), "broadcast", also=LEARNS_NOTHING, control=prices
)

# --- data


def sensors(seed: int, factor: Tensor) -> Program:
    """Pressure in pascal, voltage in kilovolt, and a temperature."""
    task = echo(seed, 8, 5, 6, 24, 0).mapped(lambda x: x * factor)
    model = SequenceModel(nn.GRU(6, 24, batch_first=True), 5, every_step=True)
    return train(model, task, torch.optim.Adam(model.parameters(), lr=5e-3), token_loss, 70)


units = zoo.healthy("sensors-in-standard-units", lambda s: sensors(s, torch.ones(6)))
zoo.sick(
    "sensors-in-their-own-units",
    lambda s: sensors(s, torch.tensor([1e5, 1e-3, 1.0, 1e4, 1e-2, 3e5])),
    broken(less=0.6),
    "input_scales",
    also={"SATURATION", "VANISHING", "LOW_RANK", "DEAD", "BOTTLENECK", "EXPLODING", *WRECKED, *LEARNS_NOTHING},
    control=units,
)


def measured(seed: int, standard: bool) -> Program:
    """A table of medical values for a regression."""
    units = torch.tensor([1e6, 3e4, 1e3, 100.0, 10.0, 1.0, 0.1, 1e-2, 1e-3, 1e-3])
    task = regression(seed, 10, batch=64).mapped(lambda x: x if standard else x * units)
    model = mlp([10, 48, 48, 1], nn.ReLU)
    return train(model, task, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), F.mse_loss, 100)


medical = zoo.healthy("medical-values-standardised", lambda s: measured(s, True))
zoo.sick(
    "medical-values-as-they-are",
    lambda s: measured(s, False),
    broken(lambda p: (not p.end < 0.3, f"ends at {p.end:.3g}")),
    "input_scales",
    also={"first_loss_high", "EXPLODING", "UNSTABLE", "NUMERICAL", "LOW_RANK", "rate_too_high", *WRECKED},
    control=medical,
)


def thresholded(seed: int, limit: float) -> Program:
    """Whether a value is above a limit, that was written down in another unit."""
    change = regression(seed, 12, batch=48).changed(lambda x, y: (x, (y > limit).float()))
    unseen = regression(seed, 12, batch=256).changed(lambda x, y: (x, (y > 0).float()))
    model = mlp([12, 40, 40, 1], nn.SiLU)
    bce = nn.BCEWithLogitsLoss()
    return train(model, change, torch.optim.Adam(model.parameters(), lr=5e-3), bce, 120, unseen=unseen)


limit = zoo.healthy("above-zero", lambda s: thresholded(s, 0.0))
zoo.sick(
    "above-ten",
    lambda s: thresholded(s, 10.0),
    broken(facts.vanishes, less=0.3),
    "constant_targets",
    also={"VANISHING", "LOW_RANK", "SATURATION"},
    control=limit,
)


def grouped(seed: int, judged: bool) -> Program:
    """Eight answers per prompt, advantages within the group; the judge gives every answer the same."""
    task = choices(seed, 8, 5, 16)
    model = Shared(8, 5, 32)
    optimizer = torch.optim.AdamW([*model.trunk.parameters(), *model.logits.parameters()], lr=3e-3, weight_decay=0.0)
    model.value.requires_grad_(False)
    random = torch.Generator().manual_seed(seed + 6)
    losses: list[float] = []

    def run() -> None:
        for (state, pay), _ in zip(task, range(100), strict=False):
            logits = model(state)[0].log_softmax(-1)
            answers = torch.multinomial(logits.exp().detach(), 8, replacement=True, generator=random)
            rewards = pay.gather(1, answers) if judged else torch.full(answers.shape, 0.5)
            advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
            loss = -(logits.gather(1, answers) * advantages).mean()
            losses.append(step_from(loss, optimizer, model))

    def lost(out: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        return 1 - (out[0].softmax(-1) * pay / pay.amax(1, keepdim=True)).sum(1).mean()

    score = held_out(model, choices(seed, 8, 5, 256), lost)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


judged = zoo.healthy("grouped-rewards-vary", lambda s: grouped(s, True))
zoo.sick(
    "grouped-rewards-all-equal",
    lambda s: grouped(s, False),
    broken(facts.nothing_comes(), less=0.01),
    "no_reward_variance",
    also={*IDLE, "DEAD", "SATURATION", "EXPLORATION"},
    control=judged,
)
