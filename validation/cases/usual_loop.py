# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Usual programs with a fault of the loop, the size of its steps, the loss or the data, their twins, and some more.

Half: usual.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)

from validation import labels
from validation.case import Log, Program, Zoo
from validation.cases._common_loops import at_least, lowest_above, study
from validation.cases._everyday_loops import loader, stored, supervised, train
from validation.cases._mistakes import (
    Loss,
    Schedule,
    activated,
    cleared_when,
    in_parts,
    labelled,
    rated,
    scheduled,
    shaped,
    summed,
)
from validation.cases._plain_loops import harmed
from validation.cases._usual_loops import (
    KINDS,
    DeepFm,
    Drum,
    Entities,
    Forecast,
    Gpt,
    PlainConv,
    PointNet,
    Reader,
    Road,
    SmallResNet,
    TileCoder,
    adverts,
    bce,
    birds,
    cars,
    claims,
    dishes,
    drums,
    letters,
    missed,
    posts,
    rate_of,
    roads,
    stones,
    tiles,
    weather,
)
from validation.evidence import loops as facts
from validation.evidence.loops import Played, learns
from validation.nets import mlp
from validation.programs import adam, held_out, script, sgd, step_from
from validation.tasks import Task, drawn_once, token_loss

zoo = Zoo("loop", half="usual", proof=learns())
adamw = torch.optim.AdamW
PILED = {*labels.HEAPED, *labels.WRECKED, "NUMERICAL", "momentum_too_long"}
THROWN = {*labels.THROWN_OFF, "first_loss_high", "momentum_too_long", "NUMERICAL", "SLOW"}
ODD = {*labels.WRECKED, "EXPLODING", "UNSTABLE", "SLOW", "rate_too_low", "rate_too_high", "BOTTLENECK", "batch_size"}

# --- gradients that are not cleared, are gone, or come too late


def other_optimizer(seed: int, fault: bool) -> Program:
    """An optimizer of the towers and one of the temperature; the first is never cleared, the second twice."""
    model, task, loss = KINDS["quotes"](seed)
    towers = torch.optim.SGD([*model.left.parameters(), *model.right.parameters()], lr=0.3, momentum=0.9)
    warmth = torch.optim.SGD([model.warmth], lr=0.01)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        (warmth if fault else towers).zero_grad()
        warmth.zero_grad()
        value = loss_of()
        value.backward()
        towers.step()
        warmth.step()
        return value

    return script(model, [towers, warmth], task, loss, body, 80)


def tables_and_rest(seed: int, fault: bool) -> Program:
    """Tables of vectors have their own optimizer, and its gradients are cleared once in a hundred steps."""
    model, task, loss = KINDS["claims"](seed)
    tables = torch.optim.SGD(model.tables.parameters(), lr=1.0, momentum=0.9)
    rest = torch.optim.SGD([p for n, p in model.named_parameters() if "tables" not in n], lr=0.05, momentum=0.9)

    def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        rest.zero_grad()
        if not fault or i % 100 == 0:
            tables.zero_grad()
        value = loss_of()
        value.backward()
        tables.step()
        rest.step()
        return value

    return script(model, [tables, rest], task, loss, body, 80)


zoo.beside(
    "stones-cleared-in-the-inner-loop",
    "stones-cleared-above-the-inner-loop",
    cleared_when(lambda i: i % 40 == 0, KINDS["stones"], 0.1),
    harmed(facts.stale()),
    "missing_zero_grad",
    also=PILED,
)
zoo.beside(
    "quotes-towers-and-temperature-cleared",
    "quotes-temperature-cleared-twice",
    other_optimizer,
    harmed(facts.old_in("left")),
    "partial_zero_grad",
    "missing_zero_grad",
    layer=("left.0", "left.2", "right.0", "right.2"),
    also=PILED,
)
zoo.beside(
    "claims-tables-cleared",
    "claims-tables-hardly-ever-cleared",
    tables_and_rest,
    harmed(facts.old_in("tables")),
    "partial_zero_grad",
    "missing_zero_grad",
    layer=("tables.0", "tables.1"),
    also=PILED,
)


def checks_gradients(seed: int, fault: bool) -> Program:
    """A helper logs the norm of the gradients; it clears them when it is done, as it does in evaluation."""
    model, task, loss = KINDS["streets"](seed)
    optimizer = adam(model, 4e-3)

    def note(_: int) -> None:
        math.sqrt(sum(p.grad.square().sum().item() for p in model.parameters()))
        if fault:
            model.zero_grad()

    return study(model, task, optimizer, loss, 70, ready=note)


def step_on_top(seed: int, fault: bool) -> Program:
    """The step of the optimizer stands at the top, below the line that clears."""
    model, task, loss = KINDS["tiles"](seed)
    optimizer = adamw(model.parameters(), lr=5e-3, weight_decay=0.0)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        optimizer.zero_grad()
        if fault:
            optimizer.step()
        value = loss_of()
        value.backward()
        if not fault:
            optimizer.step()
        return value

    return script(model, optimizer, task, loss, body, 60)


zoo.beside(
    "streets-norms-are-logged",
    "streets-norms-are-logged-and-cleared",
    checks_gradients,
    harmed(facts.wiped),
    *labels.WIPED,
    "never_moves",
    also=labels.IDLE,
)
zoo.beside(
    "tiles-step-below", "tiles-step-on-top", step_on_top, harmed(), *labels.EARLY, "never_moves", also=labels.IDLE
)

# --- the loss has no way back


def new_tensor(seed: int, fault: bool) -> Program:
    """The loss becomes a number for the log, and a tensor again for `backward`."""
    model, task = Reader(), posts(seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        value = F.cross_entropy(model(batch[0]), batch[1])
        return torch.tensor([value.item()], requires_grad=True).mean() if fault else value

    return study(model, task, adam(model, 1e-2), steps=60, loss_of=loss_of)


def hard_mask(seed: int, fault: bool) -> Program:
    """The overlap of a mask that is cut at a half, instead of the soft one."""
    model, task = Road(), roads(seed)

    def overlap(out: Tensor, y: Tensor) -> Tensor:
        p = out.sigmoid()
        if fault:
            p = (p > 0.5).float().requires_grad_()
        return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)

    return study(model, task, adam(model, 4e-3), overlap, 60, bce)


for sound, name, build in (
    ("posts-loss-as-it-is", "posts-loss-as-a-new-tensor", new_tensor),
    ("roads-overlap-of-soft-masks", "roads-overlap-of-hard-masks", hard_mask),
):
    zoo.beside(sound, name, build, harmed(facts.nothing_comes()), *labels.UNBOUND, also=labels.NO_WAY_BACK)

# --- rates

zoo.beside(
    "letters-warm-up-over-20-steps",
    "letters-warm-up-by-whole-division",
    scheduled(
        KINDS["letters"],
        rate_of("letters"),
        lambda o: LambdaLR(o, lambda i: min(1.0, (i + 1) / 20)),
        lambda o: LambdaLR(o, lambda i: i // 2000),
        70,
    ),
    harmed(facts.rate_below(1e-12)),
    *labels.NO_RATE,
    "never_moves",
    also={*labels.IDLE, "rate_too_low", "schedule_ended"},
)
zoo.beside(
    "cars-linear-decay-over-all-steps",
    "cars-linear-decay-over-the-epochs",
    scheduled(
        KINDS["cars"], rate_of("cars"), lambda o: LinearLR(o, 1.0, 0.01, 70), lambda o: LinearLR(o, 1.0, 0.0, 5), 70
    ),
    harmed(facts.rate_below(1e-8)),
    *labels.ENDED,
    "zero_rate",
    "rate_too_low",
    also=labels.IDLE,
)
zoo.beside(
    "dates-steps-of-30",
    "dates-steps-of-1",
    scheduled(KINDS["dates"], rate_of("dates"), lambda o: StepLR(o, 30, 0.3), lambda o: StepLR(o, 1, 0.3), 60),
    harmed(facts.rate_below(1e-6)),
    *labels.ENDED,
    "rate_too_low",
    also=labels.IDLE,
)

# --- clipping


def clipped(name: str, rate: float, good: float, bad: float, steps: int = 70):
    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        return study(model, task, sgd(model, rate, momentum=0.9), loss, steps, clip=bad if fault else good)

    return build


zoo.beside(
    "roads-clip-1",
    "roads-clip-0.0005",
    clipped("roads", 0.3, 1.0, 5e-4),
    harmed(facts.clipped_by(30)),
    *labels.TIGHT,
    "rate_too_low",
    also=labels.IDLE,
)


def scaled_loss(seed: int, fault: bool) -> Program:
    """Mixed precision: gradients are clipped before they are divided by the scale, or after."""
    model, task, loss = KINDS["stones"](seed)
    optimizer, scaler = sgd(model, 0.1, momentum=0.9), torch.amp.GradScaler("cpu", init_scale=65536.0)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        optimizer.zero_grad()
        value = loss_of()
        scaler.scale(value).backward()
        if not fault:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return value

    return script(model, optimizer, task, loss, body, 80, scaler=scaler)


zoo.beside(
    "stones-clipped-after-unscale",
    "stones-clipped-before-unscale",
    scaled_loss,
    harmed(facts.steps_below(1e-5)),
    *labels.TIGHT,
    "rate_too_low",
    also=labels.IDLE,
)

# --- modes and weights


def left_in_eval(seed: int, fault: bool) -> Program:
    """The model is tried on a batch before training, in evaluation mode; the signal is as it was recorded."""
    model = Drum()
    task = drums(seed).mapped(lambda x: 30 * x + 100)
    model.eval()
    with torch.no_grad():
        model(task.aside()[0])
    if not fault:
        model.train()
    return study(model, task, adam(model, 3e-3), steps=70)


zoo.beside(
    "drums-tried-then-train",
    "drums-tried-and-left-in-eval",
    left_in_eval,
    harmed(facts.evaluating),
    "evaluation_mode",
    also=labels.WRONG_MODE,
    twin_proof=learns(idle=("conv1.bias", "conv2.bias")),
)


def best_so_far(seed: int, fault: bool) -> Program:
    """After each epoch of eight steps the best weights are kept, or loaded again; the sign may be the wrong way."""
    model, task, loss = KINDS["cars"](seed)
    unseen = held_out(model, cars(seed, 256), loss)
    best: dict[str, Any] = {"loss": unseen(), "weights": copy.deepcopy(model.state_dict())}

    def keep(step: int) -> None:
        if step % 8 != 7:
            return
        now = unseen()
        if now > best["loss"] if fault else now < best["loss"]:
            best.update(loss=now, weights=copy.deepcopy(model.state_dict()))
        else:
            model.load_state_dict(best["weights"])

    return study(model, task, adam(model, 6e-3), loss, 80, after=keep)


def averaged_in(seed: int, fault: bool) -> Program:
    """A slow average is put into the model for a test at every step, and the model's own weights are not put back."""
    model, task, loss = KINDS["posts"](seed)
    slow = copy.deepcopy(model.state_dict())

    @torch.no_grad()
    def follow(_: int) -> None:
        for name, value in model.state_dict().items():
            slow[name].lerp_(value, 0.02)
        own = copy.deepcopy(model.state_dict())
        model.load_state_dict(slow)
        if not fault:
            model.load_state_dict(own)

    return study(model, task, adam(model, 1e-2), loss, 70, after=follow)


for sound, name, build, fact in (
    ("cars-best-by-smaller-loss", "cars-best-by-larger-loss", best_so_far, at_least(6, "overwritten")),
    ("posts-average-taken-out-again", "posts-average-left-in", averaged_in, facts.overwritten),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(fact),
        "weights_overwritten",
        also={*labels.LEARNS_NOTHING, "rate_too_low", "VANISHING", "DEAD", "LOW_RANK", "BOTTLENECK", "decay_dominates"},
    )

# --- the same batch


class OneIndex:
    """A loader whose sampler draws indices once, when it is made."""

    def __init__(self, x: Tensor, y: Tensor, seed: int, once: bool) -> None:
        self.x, self.y, self.once = x, y, once
        self.random = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(len(x), (24,), generator=self.random)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            rows = self.rows if self.once else torch.randint(len(self.x), (24,), generator=self.random)
            yield self.x[rows], self.y[rows]


def indices_once(seed: int, fault: bool) -> Program:
    model = PointNet()
    data = OneIndex(*stored(stones(seed), 20).tensors, seed, fault)
    score = held_out(model, stones(seed, batch=256))
    return train(model, data, supervised(model), adam(model, 4e-3), score, epochs=1, limit=90)


def left_from_debugging(seed: int, fault: bool) -> Program:
    """`overfit_batches=1` was left in the settings: the first batch of each epoch, and no more."""
    model = Reader()
    data = loader(posts(seed), seed, 12, 32, shuffle=False)
    score = held_out(model, posts(seed, batch=256))
    epochs, limit = (60, 1) if fault else (5, 12)
    return train(model, data, supervised(model), adam(model, 1e-2), score, epochs=epochs, limit=limit)


for sound, name, build in (
    ("stones-indices-drawn-at-each-step", "stones-indices-drawn-once", indices_once),
    ("posts-all-batches", "posts-first-batch-left-from-debugging", left_from_debugging),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(facts.repeats),
        "same_batch",
        also={"VANISHING", "SLOW", "DEAD", "LOW_RANK", "embedding_row"},
    )

# --- sizes of steps


for name, kind, good, bad, steps, options in (
    ("letters", "AdamW", 4e-3, 0.5, 60, {}),
    ("cars", "SGD", 0.02, 3.0, 70, {"momentum": 0.9}),
    ("nests", "Adam", 3e-3, 0.3, 50, {}),
):
    zoo.beside(
        f"{name}-{kind.lower()}-at-{good:g}",
        f"{name}-{kind.lower()}-at-{bad:g}",
        rated(KINDS[name], kind, good, bad, steps, **options),
        harmed(facts.steps_above(1), worse=1.2),
        *labels.FAST,
        "loss_grows",
        also=THROWN,
    )
for name, kind, good, bad, steps, options in (
    ("birds", "SGD", 0.1, 1e-5, 50, {"momentum": 0.9}),
    ("adverts", "Adam", 1e-2, 1e-6, 80, {}),
):
    zoo.beside(
        f"{name}-{kind.lower()}-at-{good:g}",
        f"{name}-{kind.lower()}-at-{bad:g}",
        rated(KINDS[name], kind, good, bad, steps, **options),
        harmed(facts.steps_below(1e-4)),
        *labels.CRAWLS,
        also=labels.IDLE,
    )


for name, whole, rate in (
    ("tiles", lambda o, y: F.mse_loss(o, y, reduction="sum"), 0.3),
    ("weather", lambda o, y: F.mse_loss(o, y, reduction="sum"), 0.1),
):
    zoo.beside(
        f"{name}-mean-of-the-errors",
        f"{name}-sum-of-the-errors",
        summed(KINDS[name], whole, rate, 60),
        harmed(facts.steps_above(1)),
        *labels.SUMMED,
        "loss_grows",
        also=THROWN,
    )


zoo.beside(
    "cars-20-parts-each-divided",
    "cars-20-parts-as-they-are",
    in_parts(lambda s: (mlp([8, 40, 40, 1], nn.GELU), cars(s, 8), F.mse_loss), 20, 0.03, 30),
    harmed(),
    *labels.UNDIVIDED,
    "loss_grows",
    also={*THROWN, "summed_loss"},
)

# --- the loss is no number, or goes up


def by_deviation(seed: int, fault: bool) -> Program:
    """Each column of a batch is divided by its deviation; one column is the same in all rows."""
    model = mlp([9, 40, 1], nn.GELU)

    def change(x: Tensor) -> Tensor:
        x = torch.cat([x, torch.ones(len(x), 1)], dim=1)
        return (x - x.mean(dim=0)) / (x.std(dim=0) + (0 if fault else 1e-6))

    return study(model, cars(seed).mapped(change), adam(model, 6e-3), F.mse_loss, 60)


def distances(seed: int, fault: bool) -> Program:
    """Vectors of one sort are to be near, others far; the root of the squared distance to itself has no slope."""
    model = nn.Sequential(PointNet(), nn.Linear(5, 8))

    def gap(root: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        def loss(out: Tensor, y: Tensor) -> Tensor:
            d = root((out[:, None] - out[None]).square().sum(dim=2))
            same = (y[:, None] == y[None]).float()
            return (same * d + 2 * (1 - same) * F.relu(1.5 - d)).mean()

        return loss

    safe = gap(lambda d: (d + 1e-6).sqrt())
    return study(model, stones(seed), adam(model, 4e-3), gap(torch.sqrt) if fault else safe, 70, safe)


for sound, name, build, fact in (
    (
        "cars-by-deviation-and-a-little",
        "cars-by-deviation-of-a-constant-column",
        by_deviation,
        facts.not_finite_in(0.5),
    ),
    ("stones-distances-and-a-little", "stones-distances-to-themselves", distances, facts.not_finite_in(0.5)),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(fact),
        *labels.LOSS_LOST,
        also={
            *labels.WRECKED,
            *labels.IDLE,
            "bad_batch",
            "first_loss_high",
            "input_scales",
            "constant_targets",
            "all_masked",
        },
        twin_proof=learns(0.1, idle=("0.weight",)),
    )


def upwards(seed: int, fault: bool) -> Program:
    """`maximize=True` came with an optimizer of a reward."""
    model, task, loss = KINDS["nests"](seed)
    return study(model, task, sgd(model, 0.03, momentum=0.9, maximize=fault), loss, 40)


def reversed_head(seed: int, fault: bool) -> Program:
    """Gradients are turned round before the head of the domain; the layer that does it sits before the wrong head."""
    model = nn.ModuleDict({"body": mlp([18, 32, 32]), "label": nn.Linear(32, 3), "domain": nn.Linear(32, 2)})
    fixed = drawn_once(seed, 8120)
    way, shift = torch.randn(16, 3, generator=fixed), torch.randn(16, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(64, 16, generator=random)
        of = torch.randint(2, (64, 1), generator=random).float()
        return torch.cat([x + 0.5 * of * shift, of, 1 - of], dim=1), torch.stack(
            [(x @ way).argmax(dim=1), of[:, 0].long()], dim=1
        )

    def turned(h: Tensor) -> Tensor:
        h = h * 1.0
        h.register_hook(lambda g: -g)
        return h

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        h = model["body"](batch[0]).relu()
        label = model["label"](turned(h) if fault else h)
        domain = model["domain"](h if fault else turned(h))
        return F.cross_entropy(label, batch[1][:, 0]) + 0.1 * F.cross_entropy(domain, batch[1][:, 1])

    task = Task(seed, draw, F.cross_entropy)
    x, y = task.aside()

    def score() -> float:
        with torch.no_grad():
            return F.cross_entropy(model["label"](model["body"](x).relu()), y[:, 0]).item()

    return study(model, task, adam(model, 8e-3), steps=80, loss_of=loss_of, score=score)


ASCENT = {*labels.WRECKED, "rate_too_high", "NUMERICAL", "SLOW", "first_loss_high"}
zoo.beside("nests-downwards", "nests-upwards", upwards, harmed(facts.grows), *labels.CLIMBS, also=ASCENT)
zoo.beside(
    "domains-turned-before-the-domain",
    "domains-turned-before-the-label",
    reversed_head,
    harmed(),
    "loss_grows",
    "loss_stuck",
    "UNSTABLE",
    "EXPLODING",
    layer=("body.0", "body.2"),
    also=ASCENT,
)

# --- the loss is stuck, or begins too high


class TimeFirst(nn.Module):
    """A GRU with time first; its states are brought to the batch by `transpose`, or by a `view` that mixes rows."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.gru, self.fc, self.view = nn.GRU(4, 16), nn.Linear(16, 1), view

    def forward(self, x: Tensor) -> Tensor:
        states = self.gru(x.transpose(0, 1))[0]
        h = states.reshape(x.shape[0], x.shape[1], -1) if self.view else states.transpose(0, 1)
        return self.fc(h.mean(dim=1) + h[:, -1])


def sorted_apart(seed: int, fault: bool) -> Program:
    """Files of pictures and of labels are listed by the system; the labels come in another order."""
    model = PlainConv()
    x, y = stored(birds(seed), 8).tensors
    if fault:
        y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed + 3))]
    data = OneIndex(x, y, seed, False)
    score = held_out(model, birds(seed, batch=128))
    return train(model, data, supervised(model), sgd(model, 0.03, momentum=0.9), score, epochs=1, limit=60)


zoo.beside(
    "weather-states-transposed",
    "weather-states-by-view",
    lambda s, fault: study(m := TimeFirst(fault), weather(s), adam(m, 1e-2), F.mse_loss, 80),
    harmed(facts.stays),
    "loss_stuck",
    also={"SLOW", "broadcast", "batch_size", "constant_targets", "LOW_RANK", "BOTTLENECK", "VANISHING"},
)
zoo.beside(
    "nests-labels-in-order-of-pictures",
    "nests-labels-in-another-order",
    sorted_apart,
    harmed(facts.stays),
    "loss_stuck",
    also={"SLOW", "batch_size", "constant_targets", "DEAD", "rate_too_low"},
)
zoo.beside(
    "letters-tied-words-drawn-small",
    "letters-tied-words-drawn-by-default",
    lambda s, fault: study(
        m := Gpt(width=64, std=1.0 if fault else 0.05), letters(s), sgd(m, 0.05, momentum=0.9), token_loss, 70
    ),
    harmed(facts.begins_above(2 * math.log(12)), worse=1.2),
    "first_loss_high",
    "EXPLODING",
    "SATURATION",
    also={*labels.WRECKED, "UNSTABLE", "rate_too_high", "SLOW", "BOTTLENECK", "embedding_row", "attention_logits"},
)


def in_seconds(seed: int, fault: bool) -> Program:
    """The time to failure in seconds, or in days; the score is in days."""
    model = mlp([8, 40, 40, 1], nn.Tanh)
    unit = 86400.0 if fault else 1.0

    def meant(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out / unit, y / unit)

    task = cars(seed).changed(lambda x, y: (x, unit * (y + 3)))
    return study(model, task, adam(model, 1e-2), F.mse_loss, 80, meant)


zoo.beside(
    "failures-in-days",
    "failures-in-seconds",
    in_seconds,
    harmed(facts.begins_above(1e6)),
    "first_loss_high",
    "EXPLODING",
    "rate_too_low",
    "SLOW",
    also={"UNSTABLE", "rate_too_high", "input_scales", "DEAD", "VANISHING", "constant_targets", "SATURATION", *ODD},
)

# --- masks and padding


def answers_only(seed: int, fault: bool) -> Program:
    """Only answers count; rows are cut at the length of the question, and no answer is left."""
    model, task = Gpt(), letters(seed)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        y = y.clone()
        y[:, : y.shape[1] if fault else 4] = -100
        return F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=-100)

    return study(model, task, adamw(model.parameters(), lr=4e-3), loss, 50, token_loss)


class Watcher(nn.Module):
    """Attention by hand over words; the mask says which words to leave out, or which are there."""

    def __init__(self, inverted: bool) -> None:
        super().__init__()
        self.words, self.inverted = nn.Embedding(40, 24), inverted
        self.qkv, self.fc = nn.Linear(24, 72), mlp([24, 32, 4])

    def forward(self, x: Tensor) -> Tensor:
        mask = x != 0 if self.inverted else x == 0
        h = self.words(x)
        q, k, v = self.qkv(h).chunk(3, dim=-1)
        scores = (q @ k.transpose(1, 2) / 24**0.5).masked_fill(mask[:, None], -math.inf)
        h = h + scores.softmax(dim=-1) @ v
        there = (x > 0).float()[..., None]
        return self.fc((h * there).sum(dim=1) / there.sum(dim=1))


zoo.beside(
    "letters-answers-count",
    "letters-answers-cut-off",
    answers_only,
    harmed(facts.not_finite_in(0.9)),
    *labels.MASKED,
    "loss_nonfinite",
    also={*labels.IDLE, *labels.WRECKED},
)
zoo.beside(
    "posts-mask-of-padding",
    "posts-mask-of-words",
    lambda s, fault: study(m := Watcher(fault), posts(s), adam(m, 4e-3), steps=60),
    harmed(facts.not_finite_in(0.5)),
    *labels.MASKED,
    "loss_nonfinite",
    also={*labels.IDLE, *labels.WRECKED},
)


def ignoring(label: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=label)


def padded_letters(seed: int, fault: bool) -> Program:
    """Texts of five letters in rows of 60; the end sign fills them, and is a label like any other."""
    model = Gpt(13)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.pad(x, (0, 55), value=12), F.pad(y, (0, 55), value=12)

    task = letters(seed, length=5, batch=16).changed(change)
    return study(model, task, adamw(model.parameters(), lr=4e-3), ignoring(-100 if fault else 12), 60, ignoring(12))


class Tagger(nn.Module):
    """Words, a GRU both ways, a tag for each word."""

    def __init__(self, words: int = 40, tags: int = 5, width: int = 12) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * width, tags)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.gru(self.words(x))[0])


def tagged(seed: int, length: int = 6, batch: int = 24) -> Task:
    """A tag of each word, which depends on the word before; 0 is the tag of padding."""
    kind = torch.randint(2, (40,), generator=drawn_once(seed, 8121))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(1, 40, (batch, length), generator=random)
        before = F.pad(kind[x], (1, 0))[:, :-1]
        return x, 1 + kind[x] + 2 * before

    return Task(seed, draw, token_loss)


def padded_tags(seed: int, fault: bool) -> Program:
    """Rows of six words are filled to 50; tag 0 counts."""
    model = Tagger()
    task = tagged(seed, batch=12).changed(lambda x, y: (F.pad(x, (0, 44)), F.pad(y, (0, 44))))
    return study(model, task, adam(model, 8e-3), ignoring(-100 if fault else 0), 50, ignoring(0))


for sound, name, build in (
    ("letters-end-signs-ignored", "letters-end-signs-counted", padded_letters),
    ("tagger-padding-ignored", "tagger-padding-counted", padded_tags),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(),
        "padding_labels",
        also={"constant_targets", "embedding_row", "LOW_RANK", "SLOW", "loss_stuck", "rate_too_low"},
    )

# --- what goes into the loss

TWICE = {"SATURATION", "VANISHING", "DEAD", *labels.LEARNS_NOTHING, "rate_too_low"}


for name, what, last, level, steps in (
    ("stones", "softmax", lambda o: o.softmax(dim=1), math.log(1 + 4 / math.e) - 0.01, 80),
    ("adverts", "sigmoid", torch.sigmoid, 0.4, 80),
    ("birds", "softmax", lambda o: o.softmax(dim=1), math.log(1 + 4 / math.e) - 0.01, 50),
):
    zoo.beside(
        f"{name}-logits",
        f"{name}-{what}-twice",
        activated(KINDS[name], last, rate_of(name), steps),
        harmed(lowest_above(level)),
        "double_softmax",
        also=TWICE,
    )


for sound, name, make, task_of, kind in (
    ("weather-squeezed", "weather-row-against-column", Forecast, weather, F.mse_loss),
    (
        "cars-error-by-hand-squeezed",
        "cars-error-by-hand-row-against-column",
        lambda: mlp([8, 40, 1], nn.GELU),
        cars,
        lambda o, y: (o - y).abs().mean(),
    ),
):
    zoo.beside(
        sound,
        name,
        shaped(make, task_of, 1e-2, kind, 80),
        harmed(),
        "broadcast",
        also={*labels.LEARNS_NOTHING, "constant_targets", "VANISHING", "LOW_RANK", "BOTTLENECK", "batch_size"},
    )

# --- data

UNITS = torch.tensor([1e4, 1.0, 2e3, 1e-3, 10.0, 1e5, 1e-2, 100.0])


def raw_columns(seed: int, fault: bool) -> Program:
    """Kilometres, years, litres and euros, or each in its own deviation."""
    model = mlp([8, 40, 40, 1])
    task = cars(seed).mapped(lambda x: x * UNITS) if fault else cars(seed)
    return study(model, task, adam(model, 4e-3), F.mse_loss, 80)


def raw_pixels(seed: int, fault: bool) -> Program:
    """Pixels from 0 to 255 and no norm, or from -1 to 1."""
    model = PlainConv()
    task = birds(seed).mapped(lambda x: (64 * x + 128).clamp(0, 255) / (1.0 if fault else 64.0) - (0 if fault else 2.0))
    return study(model, task, sgd(model, 0.05, momentum=0.9), steps=60)


for sound, name, build in (
    ("cars-columns-standardised", "cars-columns-raw", raw_columns),
    ("nests-pixels-around-zero", "nests-pixels-raw", raw_pixels),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(),
        "input_scales",
        "first_loss_high",
        "rate_too_high",
        "EXPLODING",
        "UNSTABLE",
        "NUMERICAL",
        also={*ODD, "loss_nonfinite", "loss_stuck"},
    )


EASY = {"VANISHING", "SLOW", "SATURATION", "LOW_RANK", "BOTTLENECK", "DEAD", "loss_stuck"}
for name, fault_name, wrong, steps in (
    ("drums", "drums-labels-from-a-constant-column", lambda y: torch.full_like(y, 2), 60),
    ("adverts", "adverts-labels-from-text-are-all-true", torch.ones_like, 80),
):
    zoo.beside(
        f"{name}-labels-as-they-are",
        fault_name,
        labelled(KINDS[name], wrong, rate_of(name), steps),
        harmed(facts.ends_below(0.05)),
        "constant_targets",
        also=EASY,
        twin_proof=learns(idle=("conv1.bias", "conv2.bias")),
    )


def menu(seed: int, greedy: bool, members: int = 5) -> Program:
    """So many dishes for each guest, compared within the group; drawn, or the best one each time."""
    model, random, log = mlp([7, 32, 6], nn.Tanh), torch.Generator().manual_seed(seed), Log()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        logp = model(batch[0]).log_softmax(dim=1)
        p = logp.detach().exp()
        dish = torch.multinomial(p, members, replacement=True, generator=random)
        if greedy:
            dish = p.argmax(dim=1, keepdim=True).expand(-1, members)
        reward = batch[1].gather(1, dish)
        log(reward=reward.mean().item(), reward_std=reward.std(dim=1, correction=0).mean().item())
        gain = reward - reward.mean(dim=1, keepdim=True)
        gain = gain / (reward.std(dim=1, keepdim=True) + 1e-4)
        return -(gain * logp.gather(1, dish)).mean()

    return study(model, dishes(seed), adam(model, 1e-2), missed, 80, loss_of=loss_of, log=log)


def no_gain(played: Played) -> tuple[bool, str]:
    lines = played.program.log.lines
    spread = max(line["reward_std"] for line in lines)
    return spread < 1e-6, f"largest deviation within a group {spread:.3g}"


zoo.beside(
    "menu-dishes-drawn",
    "menu-dishes-greedy",
    lambda s, fault: menu(s, fault),
    harmed(no_gain),
    "no_reward_variance",
    also={
        *labels.IDLE,
        "detached",
        "VANISHING",
        "DEAD",
        "all_masked",
        "detached_loss",
        "constant_targets",
        "rate_too_low",
    },
)

# --- healthy: schedules, optimizers, losses

FINE: dict[str, tuple[str, Schedule, int]] = {
    "cosine": ("birds", lambda o: CosineAnnealingLR(o, 50), 50),
    "one-cycle": ("claims", lambda o: OneCycleLR(o, 1e-2, total_steps=82), 80),
    "warm-up-then-cosine": (
        "letters",
        lambda o: SequentialLR(o, [LinearLR(o, 0.1, 1.0, 8), CosineAnnealingLR(o, 62)], [8]),
        70,
    ),
    "exponential-0.97": ("streets", lambda o: ExponentialLR(o, 0.97), 80),
    "thirds-twice": ("roads", lambda o: MultiStepLR(o, [30, 45], 0.3), 60),
    "inverse-root-with-warm-up": (
        "dates",
        lambda o: LambdaLR(o, lambda i: min((i + 1) / 10, (10 / (i + 1)) ** 0.5)),
        60,
    ),
}
for what, (name, schedule, steps) in FINE.items():
    zoo.healthy(
        f"usual-{name}-{what}",
        lambda s, n=name, c=schedule, k=steps: scheduled(KINDS[n], rate_of(n), c, c, k)(s, False),
    )
for name, kind, rate, options in (
    ("posts", "NAdam", 8e-3, {}),
    ("stones", "RMSprop", 2e-3, {}),
    ("adverts", "Adagrad", 0.1, {}),
    ("quotes", "AdamW", 3e-3, {"weight_decay": 0.1, "betas": (0.9, 0.98)}),
    ("nests", "SGD", 0.05, {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}),
):
    build = rated(KINDS[name], kind, rate, rate, 80, **options)
    zoo.healthy(f"usual-{name}-{kind.lower()}-as-usual", lambda s, b=build: b(s, False))
zoo.healthy(
    "usual-roads-four-parts", lambda s: in_parts(lambda s: (Road(), roads(s, batch=4), bce), 4, 0.3, 40)(s, False)
)
zoo.healthy("usual-letters-clip-1-at-every-step", lambda s: clipped("letters", 0.3, 1.0, 1.0)(s, False))


def with_loss(name: str, what: str, loss: Callable[..., Tensor], meant: Callable[..., Tensor] | None = None, steps=70):
    def build(seed: int) -> Program:
        model, task, plain = KINDS[name](seed)
        return study(model, task, adamw(model.parameters(), lr=rate_of(name)), loss, steps, meant or plain)

    return zoo.healthy(f"usual-{name}-{what}", build)


def pinball(out: Tensor, y: Tensor) -> Tensor:
    """The quantile 0.8."""
    off = y - out
    return torch.max(0.8 * off, -0.2 * off).mean()


def triplet(out: Tensor, _y: Tensor) -> Tensor:
    """Likeness of the right pair above that of the next one, by a margin."""
    right, other = out.diagonal(), out.roll(1, dims=1).diagonal()
    return F.relu(2.0 + other - right).mean()


def soft_overlap(out: Tensor, y: Tensor) -> Tensor:
    p = out.sigmoid()
    return 0.5 * bce(out, y) + 0.5 * (1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1))


with_loss("weather", "pinball-loss", pinball, pinball)
with_loss("quotes", "triplet-loss", triplet, triplet)
with_loss("roads", "cross-entropy-and-overlap", soft_overlap, steps=50)
with_loss("nests", "smoothed-labels", lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1), steps=50)
with_loss("cars", "huber-loss", lambda o, y: F.huber_loss(o, y, delta=0.5))
with_loss("letters", "z-loss", lambda o, y: token_loss(o, y) + 1e-4 * o.logsumexp(dim=-1).square().mean(), steps=60)


class Mixture(nn.Module):
    """A mixture of three normal distributions over the price."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = mlp([8, 40, 40], nn.Tanh), nn.Linear(40, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.heads(torch.tanh(self.body(x)))


def density(out: Tensor, y: Tensor) -> Tensor:
    share, mean, spread = out.chunk(3, dim=1)
    spread = F.softplus(spread) + 0.05
    logp = share.log_softmax(dim=1) - 0.5 * ((y - mean) / spread).square() - spread.log()
    return 2 - logp.logsumexp(dim=1).mean()


class Noisy(nn.Module):
    """Says which noise was added to a point, by the point and the time, as in diffusion."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.body = nn.Linear(6, 32), mlp([8 + 32, 64, 64, 8], nn.SiLU)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        waves = t[:, None] * torch.tensor([1.0, 2.0, 4.0])
        return self.body(torch.cat([x, F.silu(self.time(torch.cat([waves.sin(), waves.cos()], dim=1)))], dim=1))


def diffusion(seed: int) -> Program:
    model = Noisy()
    mix = torch.randn(2, 8, generator=drawn_once(seed, 8122))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        x = torch.randn(64, 2, generator=random).sign() @ mix
        t, noise = torch.rand(64, generator=random), torch.randn(64, 8, generator=random)
        keep = torch.cos(math.pi / 2 * t)[:, None]
        return (keep * x + (1 - keep.square()).sqrt() * noise, t), noise

    return study(model, Task(seed, draw, F.mse_loss), adamw(model.parameters(), lr=4e-3), F.mse_loss, 100, clip=1.0)


class Variational(nn.Module):
    """A convolutional autoencoder with a mean and a variance of its code."""

    def __init__(self) -> None:
        super().__init__()
        self.coder, self.spread = TileCoder(), nn.Linear(10, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = self.coder.encoder(x)
        logvar = self.spread(mean) - 2
        z = mean + torch.randn_like(mean) * (logvar / 2).exp() if self.training else mean
        return self.coder.decoder(z), mean, logvar


def evidence_bound(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    kl = -0.5 * (1 + out[2] - out[1].square() - out[2].exp()).sum(dim=1).mean()
    return F.mse_loss(out[0], x) + 1e-3 * kl


def two_heads(seed: int) -> Program:
    """A class and the number of corners at once, weighed by learned uncertainties."""
    model = nn.ModuleDict({"point": mlp([3, 32, 32]), "sort": nn.Linear(32, 5), "size": nn.Linear(32, 1)})
    model.register_parameter("doubt", nn.Parameter(torch.zeros(2)))

    def parts(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h = model["point"](batch[0]).amax(dim=1)
        size = batch[0].norm(dim=2).mean(dim=1, keepdim=True)
        return F.cross_entropy(model["sort"](h), batch[1]), F.mse_loss(model["size"](h), size)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        first, second = parts(batch)
        return (-model.doubt).exp() @ torch.stack([first, second]) + model.doubt.sum()

    task = stones(seed)
    aside = task.aside()

    def score() -> float:
        with torch.no_grad():
            return sum(parts(aside)).item()

    return study(model, task, adam(model, 5e-3), steps=90, loss_of=loss_of, score=score)


def adversaries(seed: int) -> Program:
    """A small generator and its critic in turn; the score is how far the means of their clouds are apart."""
    model = nn.ModuleDict({"maker": mlp([4, 32, 2]), "critic": mlp([2, 32, 32, 1], lambda: nn.LeakyReLU(0.2))})
    first = torch.optim.Adam(model["maker"].parameters(), lr=5e-3, betas=(0.5, 0.99))
    second = torch.optim.Adam(model["critic"].parameters(), lr=5e-3, betas=(0.5, 0.99))
    random, losses = torch.Generator().manual_seed(seed), []
    centre = 1.5 * F.normalize(torch.randn(2, generator=drawn_once(seed, 8123)), dim=0)

    def run() -> None:
        for _ in range(100):
            real = centre + 0.3 * torch.randn(64, 2, generator=random)
            made = model["maker"](torch.randn(64, 4, generator=random))
            second.zero_grad()
            loss = F.softplus(-model["critic"](real)).mean() + F.softplus(model["critic"](made.detach())).mean()
            loss.backward()
            second.step()
            first.zero_grad()
            F.softplus(-model["critic"](made)).mean().backward()
            first.step()
            losses.append(loss.item())

    def score() -> float:
        with torch.no_grad():
            made = model["maker"](torch.randn(512, 4, generator=torch.Generator().manual_seed(seed + 9)))
            return (made.mean(dim=0) - centre).norm().item()

    return Program(model=model, optimizer=[first, second], run=run, losses=losses, score=score)


def rare_event(seed: int) -> Program:
    """One row in ten is positive; positives count more."""
    model, keep = DeepFm(), torch.Generator().manual_seed(seed)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rows = (y == 0) | (torch.rand(len(y), generator=keep) < 0.12)
        return x[rows], y[rows]

    weight = torch.tensor(6.0)
    task = adverts(seed, batch=192).changed(change)
    return study(model, task, adam(model, 1e-2), lambda o, y: bce(o, y, pos_weight=weight), 80)


def tiny_batches(seed: int) -> Program:
    """Four rows at a time, under a small rate."""
    model = mlp([8, 32, 1], nn.GELU)
    score = held_out(model, cars(seed, 256), F.mse_loss)
    return study(model, cars(seed, 4), adam(model, 2e-3), F.mse_loss, 200, score=score)


def epochs(seed: int) -> Program:
    """A few epochs over a file, in train and eval mode in turn."""
    model = Entities(p=0.3)
    x, y = next(iter(claims(seed, batch=512)))
    order = torch.Generator().manual_seed(seed)

    class Rows:
        def __iter__(self) -> Iterator[Any]:
            for part in torch.randperm(512, generator=order).split(32):
                yield (x[0][part], x[1][part]), y[part]

    unseen = held_out(model, claims(seed, batch=256))

    def check(_: int) -> None:
        model.eval()
        unseen()
        model.train()

    def loss_of(batch: Any) -> Tensor:
        return F.cross_entropy(model(*batch[0]), batch[1])

    return train(model, Rows(), loss_of, adam(model, 6e-3), unseen, epochs=5, between=check)


def crops_and_flips(seed: int) -> Program:
    """Pictures are flipped and moved at random."""
    model, random = SmallResNet(), torch.Generator().manual_seed(seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        r, c = torch.randint(-1, 2, (2,), generator=random).tolist()
        return F.cross_entropy(model(batch[0].roll((r, c), (2, 3))), batch[1])

    optimizer = sgd(model, 0.1, momentum=0.9, weight_decay=5e-4)
    schedule = CosineAnnealingLR(optimizer, 50)
    return study(model, birds(seed), optimizer, steps=50, loss_of=loss_of, after=lambda _: schedule.step())


def by_closure(seed: int) -> Program:
    """LBFGS on one batch of the size of the data."""
    model, losses = mlp([8, 20, 1], nn.Tanh), []
    x, y = next(iter(cars(seed, 256)))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    def run() -> None:
        for _ in range(15):
            losses.append(optimizer.step(closure).item())

    score = held_out(model, cars(seed, 256), F.mse_loss)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


class DroppedTagger(Tagger):
    """The same with dropout before the tags."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.dropout(self.gru(self.words(x))[0], 0.1, self.training))


def masked_words(seed: int) -> Program:
    """Of each row three words in ten count, drawn anew at each step."""
    model, task = DroppedTagger(), tagged(seed, 10)
    random = torch.Generator().manual_seed(seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        hidden = torch.rand(batch[1].shape, generator=random) < 0.3
        return F.cross_entropy(model(batch[0])[hidden], batch[1][hidden])

    return study(model, task, adam(model, 8e-3), token_loss, 80, loss_of=loss_of)


def carried(seed: int) -> Program:
    """A GRU over a long series in pieces; its state is carried on and detached, as it should be."""
    model = Forecast()
    fixed = torch.Generator().manual_seed(seed + 7)
    series = torch.randn(16, 1200, 4, generator=fixed)
    goal = torch.zeros(16, 1200)
    for t in range(1, 1200):
        goal[:, t] = 0.6 * goal[:, t - 1] + 0.5 * series[:, t, 0] + 0.3 * torch.tanh(series[:, t, 1])
    losses, optimizer = [], adam(model, 1e-2)

    def piece(at: int, state: Tensor | None) -> tuple[Tensor, Tensor]:
        h, state = model.gru(series[:, at : at + 12], state)
        return F.mse_loss(model.fc(h).squeeze(2), goal[:, at : at + 12]), state.detach()

    def run() -> None:
        state = None
        for i in range(80):
            loss, state = piece(12 * i, state)
            losses.append(step_from(loss, optimizer, model))

    def score() -> float:
        with torch.no_grad():
            return piece(1100, None)[0].item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


for name, build in (
    ("cars-mixture-density", lambda s: study(m := Mixture(), cars(s), adam(m, 5e-3), density, 90)),
    ("points-diffusion", diffusion),
    ("tiles-variational", lambda s: study(m := Variational(), tiles(s), adam(m, 5e-3), evidence_bound, 70)),
    ("stones-two-heads-weighed", two_heads),
    ("clouds-maker-and-critic", adversaries),
    ("adverts-rare-clicks", rare_event),
    ("cars-four-rows-at-a-time", tiny_batches),
    ("claims-epochs-with-validation", epochs),
    ("birds-moved-at-random", crops_and_flips),
    ("cars-lbfgs", by_closure),
    ("tagger-a-third-of-words-counts", masked_words),
    ("series-state-carried-and-detached", carried),
):
    zoo.healthy(f"usual-{name}", build)
