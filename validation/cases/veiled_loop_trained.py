# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Scripts that leave a part untrained, beside their repaired twins and scripts that leave it so on purpose.

Half: veiled.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from validation.case import Program, Zoo
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
    ledgers,
    mottos,
    readers,
    rhymes,
    tiles,
    wardrobes,
)
from validation.evidence import loops as facts
from validation.evidence.loops import all_of, broken, learns
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA, LORA_FROZEN, REPLACED, STILL, UNHELD
from validation.nets import mlp
from validation.programs import adam, fit, held_out, learn, plainly, script, sgd, step_from
from validation.tasks import token_loss

zoo = Zoo("loop", half="veiled", proof=learns())

# --- cut off


class Spectrum(nn.Module):
    """Features of a hum, put in order of size by a library for arrays or by torch."""

    def __init__(self, outside: bool) -> None:
        super().__init__()
        self.listen, self.mid, self.read = nn.Conv1d(1, 16, 9, 2), nn.Linear(16, 24), nn.Linear(24, 5)
        self.outside = outside

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.listen(x)).square().mean(dim=2)
        h = torch.from_numpy(h.detach().numpy().clip(0, 4)) if self.outside else h.clamp(0, 4)
        return self.read(F.silu(self.mid(h)))


def spectrum(seed: int, outside: bool) -> Program:
    model = Spectrum(outside)
    return fit(model, engines(seed), adam(model, 8e-3), 70)


by_torch = zoo.healthy("veiled-features-limited-by-torch", lambda s: spectrum(s, False))
zoo.sick(
    "veiled-features-limited-outside-of-torch",
    lambda s: spectrum(s, True),
    broken(facts.ungiven("listen")),
    *CUT,
    layer="listen",
    also=IDLE,
    control=by_torch,
)


class Segments(nn.Module):
    """A sentence is read in two halves; the state between them is stored as numbers or handed on."""

    def __init__(self, stored: bool) -> None:
        super().__init__()
        self.scout, self.reader, self.say = nn.GRU(3, 16, batch_first=True), nn.GRUCell(3, 16), nn.Linear(16, 2)
        self.stored = stored

    def forward(self, x: Tensor) -> Tensor:
        _, h = self.scout(x[:, :-1])
        h = torch.tensor(h[0].tolist()) if self.stored else h[0]
        return self.say(self.reader(x[:, -1], h))


def segments(seed: int, stored: bool) -> Program:
    model = Segments(stored)
    return fit(model, drifts(seed).changed(lambda x, y: (x, y[:, -1])), adam(model, 1e-2), 60, F.mse_loss)


handed_on = zoo.healthy("veiled-state-handed-on", lambda s: segments(s, False))
zoo.sick(
    "veiled-state-stored-as-numbers",
    lambda s: segments(s, True),
    broken(facts.ungiven("scout")),
    *CUT,
    layer="scout",
    also={*IDLE, "SHORT_MEMORY"},
    control=handed_on,
)


class Ranks(nn.Module):
    """Which tokens of a motto to read: by the best three of learned scores, with or without their weights."""

    def __init__(self, weighed: bool) -> None:
        super().__init__()
        self.word, self.score, self.read = nn.Embedding(40, 16), nn.Linear(16, 1), mlp([16, 24, 5], nn.SiLU)
        self.weighed = weighed

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.word(tokens)
        best, at = self.score(x).squeeze(2).topk(3, dim=1)
        chosen = x.gather(1, at[..., None].expand(-1, -1, 16))
        return self.read((chosen * best.sigmoid()[..., None] if self.weighed else chosen).sum(dim=1))


def ranked(seed: int, weighed: bool) -> Program:
    model = Ranks(weighed)
    return fit(model, mottos(seed), adam(model, 8e-3), 80)


weighed_words = zoo.healthy("veiled-three-words-by-their-weight", lambda s: ranked(s, True))
zoo.sick(
    "veiled-three-words-by-rank-alone",
    lambda s: ranked(s, False),
    broken(facts.ungiven("score")),
    *CUT,
    layer="score",
    also=IDLE,
    control=weighed_words,
)

# --- not in the optimizer


def by_kind(seed: int, kinds: tuple[str, ...]) -> Program:
    """Groups are made by the beginning of a name, each with a rate; one beginning was forgotten."""
    model = Choir()
    rates = {"syllable": 1e-2, "beat": 1e-2, "norm": 5e-3, "qkv": 5e-3, "back": 5e-3, "wide": 5e-3, "slim": 5e-3}
    rates |= {"say": 1e-2}
    groups = [
        {"params": [p for n, p in model.named_parameters() if n.startswith(kind)], "lr": rates[kind]} for kind in kinds
    ]
    return fit(model, chants(seed), torch.optim.AdamW(groups), 60, token_loss)


KINDS = ("syllable", "beat", "norm", "qkv", "back", "wide", "slim", "say")
eight_groups = zoo.healthy("veiled-eight-groups-by-name", lambda s: by_kind(s, KINDS))
zoo.sick(
    "veiled-a-group-forgotten",
    lambda s: by_kind(s, tuple(kind for kind in KINDS if kind not in ("wide", "slim"))),
    broken(facts.held_by_none("wide", "slim")),
    *UNHELD,
    layer=("wide", "slim"),
    also=IDLE,
    control=eight_groups,
)


def grown(seed: int, told: bool) -> Program:
    """After a third of the steps the network grows a block; the optimizer is told, or is not."""
    model = nn.ModuleDict({"enter": nn.Linear(20, 32), "blocks": nn.ModuleList(), "out": nn.Linear(32, 7)})
    optimizer, task, losses = adam(model, 5e-3), finches(seed, noise=1.2), []

    def say(x: Tensor) -> Tensor:
        h = F.gelu(model["enter"](x))
        for block in model["blocks"]:
            h = h + F.gelu(block(h))
        return model["out"](h)

    def run() -> None:
        for (x, y), i in zip(task, range(75), strict=False):
            if i == 25:
                block = nn.Linear(32, 32)
                model["blocks"].append(block)
                if told:
                    optimizer.add_param_group({"params": block.parameters()})
            optimizer.zero_grad()
            loss = F.cross_entropy(say(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    x, y = task.aside()
    score = lambda: F.cross_entropy(say(x), y).item()  # noqa: E731
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


optimizer_told = zoo.healthy("veiled-a-block-grows-and-is-told", lambda s: grown(s, True))
zoo.sick(
    "veiled-a-block-grows-untold",
    lambda s: grown(s, False),
    broken(facts.held_by_none("blocks")),
    *UNHELD,
    also=IDLE,
    control=optimizer_told,
)

# --- an optimizer of something else


def follower(seed: int, mine: bool) -> Program:
    """A slow copy is kept for the answers in use; the optimizer was given the copy's weights."""
    model = mlp([10, 32, 32, 1], nn.GELU)
    slow = copy.deepcopy(model)
    optimizer = adam(model if mine else slow, 5e-3)

    def follow(_i: int) -> None:
        with torch.no_grad():
            for a, b in zip(slow.parameters(), model.parameters(), strict=True):
                a.lerp_(b, 0.05)

    return script(model, optimizer, honeys(seed), F.mse_loss, plainly(optimizer, follow), 80)


own_weights = zoo.healthy("veiled-a-slow-copy-follows", lambda s: follower(s, True))
zoo.sick(
    "veiled-the-slow-copy-is-in-the-optimizer",
    lambda s: follower(s, False),
    broken(facts.strangers, less=0.01),
    *FOREIGN,
    also={*IDLE, "not_in_optimizer", "missing_zero_grad"},
    control=own_weights,
)


def unpickled(seed: int, after: bool) -> Program:
    """The model is read from a file; the optimizer was made from what had been there before."""
    model = Hum()
    file = pickle.dumps(model)
    optimizer = adam(model, 8e-3)
    model = pickle.loads(file)
    if after:
        optimizer = adam(model, 8e-3)
    return fit(model, engines(seed), optimizer, 60)


after_reading = zoo.healthy("veiled-model-read-then-optimizer", lambda s: unpickled(s, True))
zoo.sick(
    "veiled-optimizer-then-model-read",
    lambda s: unpickled(s, False),
    broken(facts.strangers, less=0.01),
    *FOREIGN,
    also={*IDLE, "not_in_optimizer", "missing_zero_grad"},
    control=after_reading,
)

# --- replaced


def normed(seed: int, before: bool) -> Program:
    """The weight of a layer is split into length and direction, which makes two new parameters."""
    model = mlp([28, 40, 8, 40, 28], nn.SiLU)
    optimizer = None if before else adam(model, 5e-3)
    for i in (0, 6):
        parametrizations.weight_norm(model[i])
    return fit(model, wardrobes(seed), optimizer or adam(model, 5e-3), 60, F.mse_loss)


split_first = zoo.healthy("veiled-weights-split-then-optimizer", lambda s: normed(s, True))
zoo.sick(
    "veiled-optimizer-then-weights-split",
    lambda s: normed(s, False),
    broken(all_of(facts.strangers, facts.held_by_none("0.parametrizations", "6.parametrizations"))),
    *REPLACED,
    "foreign_optimizer",
    layer=("0", "6"),
    also=IDLE,
    control=split_first,
)


def tied(seed: int, before: bool) -> Program:
    """A new kernel is assigned to a layer, by a script that takes its weights from a list."""
    model = Mosaic()
    kernel = torch.randn(20, 12, 3, 3) / 10
    optimizer = None if before else adam(model, 8e-3)
    model.high.weight = nn.Parameter(kernel)
    return fit(model, tiles(seed), optimizer or adam(model, 8e-3), 70)


kernel_first = zoo.healthy("veiled-kernel-assigned-then-optimizer", lambda s: tied(s, True))
zoo.sick(
    "veiled-optimizer-then-kernel-assigned",
    lambda s: tied(s, False),
    broken(all_of(facts.strangers, facts.held_by_none("high.weight"))),
    *REPLACED,
    "foreign_optimizer",
    layer="high",
    also=IDLE,
    control=kernel_first,
)

# --- in the optimizer, and yet


class Limited(nn.Module):
    """A branch is weighed by learned numbers that are kept between two limits."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.main, self.side = nn.Linear(20, 32), nn.Linear(20, 32)
        self.weighing, self.out = nn.Linear(32, 32, bias=False), nn.Linear(32, 7)
        nn.init.constant_(self.weighing.weight, start)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.main(x)) + F.silu(self.side(x)) @ self.weighing.weight.clamp(0.01, 0.2)
        return self.out(h)


def limited(seed: int, start: float) -> Program:
    model = Limited(start)
    return fit(model, finches(seed), adam(model, 4e-3), 60)


inside = zoo.healthy("veiled-weighing-begins-inside-its-limits", lambda s: limited(s, 0.05))
zoo.sick(
    "veiled-weighing-begins-below-its-limits",
    lambda s: limited(s, -0.3),
    broken(facts.unmoved("weighing")),
    *STILL,
    "DISCONNECTED",
    "detached",
    layer="weighing",
    also={*IDLE, "DEAD", "VANISHING", "frozen"},
    control=inside,
)


class Gentle(nn.Module):
    """A branch that begins as nothing: by its factor, or by its factor and its last layer."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.low, self.wide, self.back = nn.Conv2d(1, 16, 5), nn.Conv2d(16, 24, 1), nn.Conv2d(24, 16, 1)
        self.factor, self.read = nn.Parameter(torch.zeros(16, 1, 1)), nn.Linear(16, 5)
        if twice:
            nn.init.zeros_(self.back.weight)
            nn.init.zeros_(self.back.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.low(x))
        return self.read((h + self.factor * self.back(F.relu(self.wide(h)))).amax(dim=(2, 3)))


def gentle(seed: int, twice: bool) -> Program:
    model = Gentle(twice)
    return fit(model, tiles(seed), adam(model, 8e-3), 60)


once_nothing = zoo.healthy("veiled-branch-begins-as-nothing", lambda s: gentle(s, False))
zoo.sick(
    "veiled-branch-begins-as-nothing-twice",
    lambda s: gentle(s, True),
    broken(facts.unmoved("back", "wide", "factor")),
    *STILL,
    "DISCONNECTED",
    "detached",
    layer=("back", "wide"),
    also={*IDLE, "DEAD", "VANISHING", "frozen"},
    control=once_nothing,
)


def aside(seed: int, weight: float) -> Program:
    """A second head is to keep the features good; its loss is weighed by a number from a file, which says 0."""
    model = nn.ModuleDict({"body": mlp([20, 36, 24], nn.GELU), "main": nn.Linear(24, 7), "second": nn.Linear(24, 20)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05)
    task, losses = finches(seed), []

    def run() -> None:
        for (x, y), _ in zip(task, range(60), strict=False):
            h = F.gelu(model["body"](x))
            loss = F.cross_entropy(model["main"](h), y) + weight * F.mse_loss(model["second"](h), x)
            losses.append(step_from(loss, optimizer))

    x, y = task.aside()
    score = lambda: F.cross_entropy(model["main"](F.gelu(model["body"](x))), y).item()  # noqa: E731
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


weighed_half = zoo.healthy("veiled-second-loss-weighed-half", lambda s: aside(s, 0.5))
zoo.sick(
    "veiled-second-loss-weighed-0",
    lambda s: aside(s, 0.0),
    broken(facts.shrinks("second")),
    "only_decay",
    "never_moves",
    "DISCONNECTED",
    layer="second",
    also={*IDLE, "DEAD", "detached", "VANISHING"},
    control=weighed_half,
)

# --- frozen


class LowRank(nn.Module):
    """A frozen layer and a change of low rank; `merged` adds the change once, when it is made."""

    def __init__(self, fan_in: int, fan_out: int, merged: bool = False) -> None:
        super().__init__()
        self.base = nn.Linear(fan_in, fan_out).requires_grad_(False)
        self.lora_A = nn.Linear(fan_in, 3, bias=False)
        self.lora_B = nn.Linear(3, fan_out, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        whole = self.base.weight + self.lora_B.weight @ self.lora_A.weight
        self.register_buffer("whole", whole.detach() if merged else None)

    def forward(self, x: Tensor) -> Tensor:
        if self.whole is not None:
            return F.linear(x, self.whole, self.base.bias)
        return self.base(x) + 2 * self.lora_B(self.lora_A(x))


def low_rank(seed: int, merged: bool = False, frozen_late: bool = False) -> Program:
    model = nn.Sequential(LowRank(20, 40, merged), nn.SiLU(), LowRank(40, 40, merged), nn.SiLU(), nn.Linear(40, 7))
    if frozen_late:
        model.requires_grad_(False)
        model[4].requires_grad_(True)
    return fit(model, finches(seed, noise=1.0), adam(model, 8e-3), 60)


beside = zoo.healthy("veiled-low-rank-beside-frozen-layers", low_rank)
zoo.sick(
    "veiled-low-rank-merged-before-training",
    lambda s: low_rank(s, merged=True),
    broken(facts.resting("lora_")),
    *LORA,
    "never_moves",
    "detached",
    layer=("0.lora_A", "0.lora_B", "2.lora_A", "2.lora_B"),
    also={*IDLE, "frozen"},
    control=beside,
)
zoo.sick(
    "veiled-frozen-after-low-rank-was-added",
    lambda s: low_rank(s, frozen_late=True),
    broken(facts.resting("lora_")),
    *LORA_FROZEN,
    layer=("0.lora_A", "0.lora_B", "2.lora_A", "2.lora_B"),
    also=IDLE,
    control=beside,
)


def thawed(seed: int, at: int) -> Program:
    """The body is frozen for the first epoch; the epoch after which it thaws is counted in batches."""
    model = mlp([20, 48, 48, 7], nn.SiLU)
    model[:4].requires_grad_(False)
    optimizer = adam(model, 5e-3)

    def after(i: int) -> None:
        if i + 1 == at:
            model.requires_grad_(True)

    return script(model, optimizer, finches(seed, noise=1.2), F.cross_entropy, plainly(optimizer, after), 75)


thaws = zoo.healthy("veiled-body-thaws-after-15-steps", lambda s: thawed(s, 15))
zoo.sick(
    "veiled-body-never-thaws",
    lambda s: thawed(s, 10_000),
    broken(facts.resting("0.", "2."), less=0.97),
    *FREEZE,
    "never_moves",
    layer=("0", "2"),
    also=IDLE,
    control=thaws,
)

# --- not registered


class Ladder(nn.Module):
    """A layer for each size of step, in a dictionary of Python's or of torch's."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        steps = {str(size): nn.Conv1d(1, 8, 5, dilation=size) for size in (1, 2, 4)}
        self.steps = nn.ModuleDict(steps) if registered else steps
        self.mix, self.read = nn.Linear(24, 20), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        found = [F.gelu(step(x)).square().mean(dim=2) for step in self.steps.values()]
        return self.read(F.gelu(self.mix(torch.cat(found, dim=1))))


def ladder(seed: int, registered: bool) -> Program:
    model = Ladder(registered)
    return fit(model, engines(seed), adam(model, 1e-2), 60)


known_steps = zoo.healthy("veiled-ladder-of-modules", lambda s: ladder(s, True))
zoo.sick(
    "veiled-ladder-in-a-plain-dictionary",
    lambda s: ladder(s, False),
    broken(facts.registers(4)),
    "hidden_layers",
    control=known_steps,
)


class Wrapped(nn.Module):
    """A table that is kept in a tuple, so that a copy of the model shares it."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        table = nn.Embedding(40, 16)
        self.shared, self.body = (table if kept else (table,)), mlp([16, 32, 5], nn.Tanh)

    def forward(self, tokens: Tensor) -> Tensor:
        table = self.shared[0] if isinstance(self.shared, tuple) else self.shared
        return self.body(table(tokens).mean(dim=1))


def wrapped(seed: int, kept: bool) -> Program:
    model = Wrapped(kept)
    return fit(model, mottos(seed), adam(model, 1e-2), 70)


kept_table = zoo.healthy("veiled-table-kept-as-a-module", lambda s: wrapped(s, True))
zoo.sick(
    "veiled-table-in-a-tuple",
    lambda s: wrapped(s, False),
    broken(facts.registers(4)),
    "hidden_layers",
    control=kept_table,
)

# --- look alike and are right


def probe(seed: int) -> Program:
    """A frozen body, of random features that are good enough, under a trained head."""
    model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 7))
    model[0].requires_grad_(False)
    return fit(model, finches(seed), torch.optim.Adam(model[2].parameters(), 8e-3), 60)


zoo.healthy("veiled-head-over-random-features", probe)


def bottleneck_adapters(seed: int) -> Program:
    """Small adapters between frozen layers, the last layer of each at zero."""

    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(32, 6), nn.Linear(6, 32)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.up(F.gelu(self.down(x)))

    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), Adapter(), nn.Linear(32, 32), nn.Tanh(), Adapter())
    model.append(nn.Linear(32, 1))
    for layer in (model[0], model[3]):
        layer.requires_grad_(False)
    some = [p for p in model.parameters() if p.requires_grad]
    return fit(model, honeys(seed), torch.optim.AdamW(some, 1e-2), 90, F.mse_loss)


zoo.healthy("veiled-small-adapters-between-frozen-layers", bottleneck_adapters)


def prompts(seed: int) -> Program:
    """Only a few vectors before the text, and the head, are trained."""

    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core, self.before = Choir(length=14), nn.Parameter(0.3 * torch.randn(4, 20))
            self.core.requires_grad_(False)
            self.core.say.requires_grad_(True)

        def forward(self, tokens: Tensor) -> Tensor:
            c = self.core
            x = torch.cat([self.before.expand(len(tokens), -1, -1), c.syllable(tokens)], dim=1) + c.beat
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in c.qkv(c.norm1(x)).chunk(3, dim=-1))
            x = x + c.back(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            return c.say(x + c.slim(F.gelu(c.wide(c.norm2(x)))))[:, 4:]

    model = Prompted()
    some = [p for p in model.parameters() if p.requires_grad]
    return fit(model, chants(seed), torch.optim.AdamW(some, 2e-2), 60, token_loss)


zoo.healthy("veiled-vectors-before-a-frozen-choir", prompts)


def late_group(seed: int) -> Program:
    """A second group joins halfway, at a rate of its own; until then its part was frozen."""
    model = Mosaic()
    model.low.requires_grad_(False)
    rest = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(rest, 8e-3)

    def after(i: int) -> None:
        if i == 24:
            model.low.requires_grad_(True)
            optimizer.add_param_group({"params": list(model.low.parameters()), "lr": 4e-3})

    return script(model, optimizer, tiles(seed), F.cross_entropy, plainly(optimizer, after), 60)


zoo.healthy("veiled-a-group-joins-halfway", late_group)


def two_kinds(seed: int) -> Program:
    """Matrices by SGD with momentum, all the rest by Adam."""
    model = Choir()
    flat = [p for p in model.parameters() if p.dim() < 2]
    steep = [p for p in model.parameters() if p.dim() >= 2]
    first = torch.optim.SGD(steep, 0.2, momentum=0.9, nesterov=True)
    second = torch.optim.Adam(flat, 5e-3)

    def body(_i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        first.zero_grad()
        second.zero_grad()
        loss = loss_of()
        loss.backward()
        first.step()
        second.step()
        return loss

    return script(model, [first, second], chants(seed), token_loss, body, 70)


zoo.healthy("veiled-matrices-by-sgd-the-rest-by-adam", two_kinds)


def distilled(seed: int) -> Program:
    """A large net is fixed; a small one learns its answers and the labels."""
    teacher, task = mlp([20, 64, 7], nn.ReLU), finches(seed)
    fitting = adam(teacher, 5e-3)
    for (x, y), _ in zip(task, range(60), strict=False):
        fitting.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        fitting.step()
    teacher.requires_grad_(False)
    student, losses = mlp([20, 16, 7], nn.ReLU), []
    optimizer = adam(student, 1e-2)

    def run() -> None:
        for (x, y), _ in zip(task, range(70), strict=False):
            with torch.no_grad():
                soft = (teacher(x) / 2).softmax(dim=1)
            z = student(x)
            kept = F.kl_div((z / 2).log_softmax(dim=1), soft, reduction="batchmean") * 4
            loss = 0.7 * kept + 0.3 * F.cross_entropy(z, y)
            losses.append(step_from(loss, optimizer))

    score = held_out(student, task)
    return Program(model=student, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("veiled-a-small-net-learns-from-a-large-one", distilled)


def stopped(seed: int) -> Program:
    """Two looks, a predictor, and a stop on one side: no labels, and a loss below zero."""
    model = nn.ModuleDict({"body": mlp([18, 32, 12], nn.GELU, nn.BatchNorm1d), "guess": mlp([12, 16, 12], nn.GELU)})
    optimizer, task, losses = sgd(model, 0.1, momentum=0.9), rhymes(seed, batch=48), []

    def loss_on(a: Tensor, b: Tensor) -> Tensor:
        z, w = model["body"](a), model["body"](b)
        there = F.cosine_similarity(model["guess"](z), w.detach(), dim=1).mean()
        return -(there + F.cosine_similarity(model["guess"](w), z.detach(), dim=1).mean()) / 2

    def run() -> None:
        for ((a, b), _), _ in zip(task, range(60), strict=False):
            optimizer.zero_grad()
            loss = loss_on(a, b)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    (a, b), _ = task.aside()

    def score() -> float:
        with torch.no_grad():
            return 1 + loss_on(a, b).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("veiled-two-looks-one-side-stopped", stopped)


def mixed_experts(seed: int) -> Program:
    """Four experts by a soft gate, tables by a sparse optimizer's rule, one shared head."""

    class Mix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.head = nn.Linear(10, 4), nn.Linear(16, 1)
            self.experts = nn.ModuleList(nn.Linear(10, 16) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            shares = self.gate(x).softmax(dim=1)
            every = torch.stack([F.silu(e(x)) for e in self.experts], dim=1)
            return self.head((shares[..., None] * every).sum(dim=1))

    model = Mix()
    return fit(model, honeys(seed), adam(model, 1e-2), 90, F.mse_loss)


zoo.healthy("veiled-four-experts-by-a-soft-gate", mixed_experts)


def sparse_tables(seed: int) -> Program:
    """Only the rows that occur have a gradient."""
    model = Shelf(sparse=True)
    return fit(model, readers(seed), torch.optim.SparseAdam(list(model.parameters()), 3e-2), 90, F.mse_loss)


zoo.healthy("veiled-tables-with-sparse-gradients", sparse_tables)


def rare_rows(seed: int) -> Program:
    """Dense gradients, of which most rows are zero in any one batch."""
    model = Bills()
    return fit(
        model, ledgers(seed), torch.optim.Adagrad(model.parameters(), 5e-2), 90, F.binary_cross_entropy_with_logits
    )


zoo.healthy("veiled-tables-by-adagrad", rare_rows, learns(0.05))


def spare_head(seed: int) -> Program:
    """A head for a later task is in the model, is frozen, and is not used yet."""
    model = nn.ModuleDict({"rnn": Buoy(nn.LSTM), "later": nn.Linear(20, 3)})
    model["later"].requires_grad_(False)
    task = drifts(seed)
    optimizer = adam(model["rnn"], 1e-2)
    return learn(
        model,
        optimizer,
        task,
        lambda x, y: F.mse_loss(model["rnn"](x), y),
        held_out(model["rnn"], task, F.mse_loss),
        60,
    )


zoo.healthy("veiled-a-frozen-head-for-later", spare_head)


def tied_tables(seed: int) -> Program:
    """The table of words is the last layer too."""
    model = Choir()
    model.say.weight = model.syllable.weight
    return fit(model, chants(seed), adam(model, 5e-3), 70, token_loss)


zoo.healthy("veiled-table-is-the-last-layer-too", tied_tables)


def swapped_in_time(seed: int) -> Program:
    """Weights are loaded into the model in place after the optimizer was made: the tensors stay the same."""
    model = Twins()
    optimizer = adam(model, 8e-3)
    with torch.no_grad():
        model.load_state_dict({k: 0.9 * v for k, v in model.state_dict().items()})
    return fit(model, rhymes(seed), optimizer, 60)


zoo.healthy("veiled-weights-loaded-in-place", swapped_in_time)


def decayed_apart(seed: int) -> Program:
    """Decay for matrices, none for norms and biases."""
    model = Verse()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.05},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    return fit(model, mottos(seed), torch.optim.AdamW(groups, 1e-2, foreach=True), 70)


zoo.healthy("veiled-decay-for-matrices-alone", decayed_apart)
