# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Daily programs of which a part is not trained though its author thinks so, each beside its twin.

Half: daily.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._daily_loops import (
    Attender,
    Dynamics,
    FastText,
    Gat,
    Instances,
    Llama,
    Petal,
    Ranker,
    Separable,
    SmallVit,
    bce,
    beside,
    buses,
    crates,
    defaults,
    diary,
    lungs,
    moths,
    of_row,
    petals,
    plurals,
    poles,
    ranked,
    rides,
    rooms,
    shells,
    tweets,
    wells,
    yields,
)
from validation.cases._plain_loops import harmed
from validation.evidence.loops import (
    Played,
    all_of,
    held_by_none,
    learns,
    resting,
    shrinks,
    strangers,
    ungiven,
    unmoved,
)
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA, REPLACED, STILL, UNHELD
from validation.nets import mlp
from validation.programs import adam, fit
from validation.tasks import token_loss

zoo = Zoo("loop", half="daily", proof=learns(0.25))
NO_GRADIENT = {*IDLE, "VANISHING", "DEAD"}
adamw = torch.optim.AdamW


def adam_of(parameters: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=rate)


def learning(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


# --- detached


class CutVit(SmallVit):
    """Features are taken under `no_grad`, which was right while the body was frozen."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.cut):
            h = self.features(x)
        return self.head(h)


class CutAttender(Attender):
    """States of the reader are detached before the writer looks at them, as one does with states that are carried."""

    def __init__(self, cut: bool) -> None:
        super().__init__(width=12)
        self.cut = cut

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        states, last = self.memory(source)
        if self.cut:
            states, last = states.detach(), last.detach()
        return self.write(states, last, shifted)


class Rebuilt(nn.Module):
    """Counts of sensors go through a new tensor, made from a list of rows."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.enter, self.middle, self.out, self.cut = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 6), cut

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x))
        h = torch.tanh(self.middle(h))
        if self.cut:
            h = torch.tensor(h.tolist())
        return self.out(h)


for sound, name, build, layer in (
    (
        "moths-features-with-gradients",
        "moths-features-under-no-grad",
        lambda s, fault: study(m := CutVit(fault), moths(s), adam(m, 4e-3), steps=60),
        ("patch", "layer", "token", "places", "layer.self_attn", "layer.linear1", "layer.linear2"),
    ),
    (
        "plurals-states-as-they-are",
        "plurals-states-detached",
        lambda s, fault: study(m := CutAttender(fault), plurals(s), adam(m, 1e-2), token_loss, 90),
        ("source", "encoder"),
    ),
    (
        "crates-rows-stay-a-tensor",
        "crates-rows-through-a-list",
        lambda s, fault: study(m := Rebuilt(fault), crates(s), adam(m, 1e-2), bce, 120),
        ("enter", "middle"),
    ),
):
    top = {part.split(".")[0] for part in layer}
    beside(zoo, sound, name, build, harmed(ungiven(*top)), *CUT, "never_moves", layer=layer, also=NO_GRADIENT)

# --- not in the optimizer


def two_objects(seed: int, fault: bool) -> Program:
    """A reader and a head made apart; the optimizer gets the parameters of the head, as in the lines above it."""
    reader, head = nn.GRU(1, 20, batch_first=True), mlp([20, 20, 3], nn.Tanh)
    model = nn.ModuleDict({"reader": reader, "head": head})
    task = buses(seed)
    x, y = task.aside()

    def error(x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(head(reader(x)[0][:, -1]), y)

    def score() -> float:
        with torch.no_grad():
            return error(x, y).item()

    optimizer = adam(head if fault else model, 1e-2)
    return study(model, task, optimizer, steps=90, loss_of=lambda batch: error(*batch), score=score)


def by_names(seed: int, fault: bool) -> Program:
    """Groups by name: one with decay, one without; names that neither list knows are left out."""
    model = Llama()
    known = ("attn", "mlp", "head") if fault else ("blocks", "head")
    decayed = [p for n, p in model.named_parameters() if any(k in n for k in known) and "norm" not in n]
    rest = [p for n, p in model.named_parameters() if "norm" in n or "words" in n]
    optimizer = adamw([{"params": decayed}, {"params": rest, "weight_decay": 0.0}], lr=4e-3, weight_decay=0.1)
    return study(model, diary(seed), optimizer, token_loss, 70)


MATRICES = tuple(f"blocks.0.{place}" for place in ("q", "k", "v", "o", "gate", "up", "down"))
for sound, name, build, paths in (
    ("buses-reader-and-head-given", "buses-only-the-head-given", two_objects, ("reader",)),
    ("verses-groups-by-all-names", "verses-groups-by-names-of-another-model", by_names, MATRICES),
):
    beside(
        zoo,
        sound,
        name,
        build,
        harmed(all_of(held_by_none(*paths), unmoved(*paths))),
        *UNHELD,
        "never_moves",
        layer=paths,
        also=IDLE,
    )

# --- an optimizer of something else, or of what was there before


def copied(seed: int, fault: bool) -> Program:
    """A copy of the model is trained; the optimizer holds the first one."""
    first = Dynamics()
    model = copy.deepcopy(first)
    return study(model, poles(seed), adam(first if fault else model, 4e-3), F.mse_loss, 60)


def members(seed: int, fault: bool) -> Program:
    """Two members of an ensemble with an optimizer each; both optimizers are made of the first."""
    model = nn.ModuleList(mlp([12, 32, 6], nn.GELU) for _ in range(2))
    optimizers = [adam(model[0], 1e-2), adam(nn.Linear(4, 4) if fault else model[1], 1e-2)]
    task, losses = crates(seed), []
    x, y = task.aside()

    def run() -> None:
        for _, (a, b) in zip(range(90), task, strict=False):
            for member, optimizer in zip(model, optimizers, strict=True):
                optimizer.zero_grad()
                loss = bce(member(a), b)
                loss.backward()
                optimizer.step()
            losses.append(loss.item())

    def score() -> float:
        with torch.no_grad():
            return sum(bce(member(x), y) for member in model).item() / 2

    return Program(model=model, optimizer=optimizers, run=run, losses=losses, score=score)


def given_vectors(seed: int, fault: bool) -> Program:
    """Vectors from a file are put in as a new parameter, after the optimizer was made."""
    model = FastText(p=0.0, width=4)
    optimizer = adam(model, 2e-2) if fault else None
    model.words.weight = nn.Parameter(torch.randn(50, 4, generator=torch.Generator().manual_seed(seed)))
    return study(model, tweets(seed), optimizer or adam(model, 2e-2), steps=110)


def normed_late(seed: int, fault: bool) -> Program:
    """Weight norm is put on the hidden layers after the optimizer was made: what it held is computed now."""
    model = mlp([12, 12, 12, 6], nn.Tanh)
    optimizer = adam(model, 1e-2) if fault else None
    for at in (0, 2):
        parametrizations.weight_norm(model[at])
    return study(model, crates(seed), optimizer or adam(model, 1e-2), bce, 110)


beside(
    zoo,
    "poles-optimizer-of-the-copy",
    "poles-optimizer-of-the-first",
    copied,
    harmed(strangers),
    *FOREIGN,
    "not_in_optimizer",
    "never_moves",
    also={*IDLE, "detached"},
)
beside(
    zoo,
    "crates-two-members-each-its-optimizer",
    "crates-second-member-has-an-optimizer-of-something-else",
    members,
    harmed(all_of(strangers, held_by_none("1"))),
    *FOREIGN,
    "not_in_optimizer",
    "never_moves",
    layer=("1.0", "1.2"),
    also={*IDLE, "detached", "missing_zero_grad", "partial_zero_grad", "EXPLODING"},
)
beside(
    zoo,
    "tweets-vectors-from-a-file-then-optimizer",
    "tweets-optimizer-then-vectors-from-a-file",
    given_vectors,
    harmed(all_of(strangers, held_by_none("words"))),
    *REPLACED,
    "never_moves",
    "foreign_optimizer",
    layer="words",
    also=IDLE,
)
beside(
    zoo,
    "crates-weight-norm-then-optimizer",
    "crates-optimizer-then-weight-norm",
    normed_late,
    harmed(all_of(strangers, unmoved("0.parametrizations", "2.parametrizations"))),
    *REPLACED,
    "never_moves",
    "foreign_optimizer",
    layer=("0", "2"),
    also=IDLE,
)

# --- held, and yet it does not move


def old_rows_rest(seed: int, fault: bool) -> Program:
    """Rows of old places keep still, those of new ones learn; a mask of whole numbers, divided, is all zero."""
    model = Ranker()
    with torch.no_grad():
        model.place.weight[:2] = 0.1
    new = (torch.arange(30) >= 2).float()[:, None]
    mask = new * 0 if fault else new
    model.place.weight.register_hook(lambda g: g * mask)
    model.bias.weight.register_hook(lambda g: g * mask)
    return study(model, rides(seed), adam(model, 3e-2), ranked, 80)


def rate_by_part(seed: int, fault: bool) -> Program:
    """The rate of the body is that of the head times a factor from a config, or zero where it is missing."""
    model = Instances()
    config = {"head": 1.0} if fault else {"head": 1.0, "body": 0.7}
    body = [p for n, p in model.named_parameters() if n.split(".")[0] not in ("head",)]
    groups = [
        {"params": body, "lr": 1e-2 * config.get("body", 0.0)},
        {"params": list(model.head.parameters()), "lr": 1e-2},
    ]
    return study(model, wells(seed), torch.optim.Adam(groups), bce, 110)


beside(
    zoo,
    "rides-two-old-rows-rest",
    "rides-all-rows-rest",
    old_rows_rest,
    harmed(unmoved("place", "bias")),
    *STILL,
    "zero_grad_before_step",
    "frozen",
    "DISCONNECTED",
    layer=("place", "bias"),
    also={*NO_GRADIENT, "detached"},
)
beside(
    zoo,
    "wells-body-at-0.7-of-the-rate",
    "wells-body-at-a-rate-that-is-missing",
    rate_by_part,
    harmed(unmoved("body", "a", "b", "weigh")),
    *STILL,
    "zero_rate",
    "frozen",
    layer=("body.0", "body.2", "a", "b", "weigh"),
    also=IDLE,
)

# --- decay alone


class Skipped(nn.Module):
    """A line and a deep branch beside it; the branch counts by a factor that is 0 or 1."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.line, self.deep, self.factor = nn.Linear(8, 1), mlp([8, 32, 32, 1], nn.SiLU), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x) + self.factor * self.deep(x)


def second_loss(seed: int, fault: bool) -> Program:
    """A class and the share of bright pixels; the second loss is added to another name than the one that counts."""
    model = nn.ModuleDict({"net": Separable(), "share": mlp([32, 24, 1], nn.GELU)})
    task = lungs(seed, batch=24)
    aside = task.aside()
    model["net"].fc = nn.Linear(32, 2)

    def parts(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, inside = batch
        h = model["net"].features(x)
        share = inside.mean(dim=(1, 2, 3))
        left = (inside[..., :6].sum(dim=(1, 2, 3)) > inside[..., 6:].sum(dim=(1, 2, 3))).long()
        return F.cross_entropy(model["net"].fc(h), left), F.mse_loss(model["share"](h).squeeze(1), 1 + 10 * share)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        first, second = parts(batch)
        return first + (0.0 if fault else 0.5) * second

    def score() -> float:
        with torch.no_grad():
            return sum(parts(aside)).item()

    return study(model, task, adamw(model.parameters(), lr=4e-3), steps=60, loss_of=loss_of, score=score)


for sound, name, build, layer, fact in (
    (
        "yields-deep-branch-times-one",
        "yields-deep-branch-times-zero",
        lambda s, fault: study(
            m := Skipped(0.0 if fault else 1.0), yields(s), adamw(m.parameters(), lr=1e-2, weight_decay=0.1), of_row, 90
        ),
        ("deep.0", "deep.2", "deep.4"),
        shrinks("deep"),
    ),
    (
        "scans-second-loss-counts-a-half",
        "scans-second-loss-counts-nothing",
        second_loss,
        ("share.0", "share.2"),
        shrinks("share"),
    ),
):
    beside(
        zoo,
        sound,
        name,
        build,
        harmed(fact, worse=1.2),
        "only_decay",
        "DISCONNECTED",
        "DEAD",
        "never_moves",
        "detached",
        layer=layer,
        also=NO_GRADIENT,
    )

# --- adapters


class Lora(nn.Module):
    """A frozen layer with a change of low rank beside it."""

    def __init__(self, base: nn.Linear, rank: int = 6, scale: float = 2.0) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * x @ self.lora_a.T @ self.lora_b.T


def adapted(seed: int, fault: str) -> Program:
    """A decoder of other texts gets adapters, and new words of its own; what breaks them is the `fault`."""
    model = Llama()
    fit(model, diary(seed + 5), adam(model, 5e-3), 40, token_loss).run()
    model.zero_grad(set_to_none=True)
    model.requires_grad_(False)
    for place in ("q", "k", "v", "o", "gate", "up", "down"):
        setattr(model.blocks[0], place, Lora(getattr(model.blocks[0], place)))
    if fault == "zeroed":  # all that is new is set to zero, not only the second factor
        for n, p in model.named_parameters():
            if "lora" in n:
                nn.init.zeros_(p)
    model.norm.requires_grad_(True)
    if fault == "by-name":  # only what ends in "lora.weight" is to learn
        for n, p in model.named_parameters():
            p.requires_grad = n.endswith("lora.weight") or n.startswith("norm")
    return study(model, diary(seed), adamw(learning(model), lr=1e-2, weight_decay=0.0), token_loss, 60)


LORAS = tuple(f"blocks.0.{place}" for place in ("q", "k", "v", "o", "gate", "up", "down"))
adapters = beside(
    zoo,
    "verses-adapters-second-factor-zero",
    "verses-adapters-all-zero",
    lambda s, fault: adapted(s, "zeroed" if fault else ""),
    harmed(unmoved(*(f"{path}.lora_{part}" for path in LORAS for part in "ab"))),
    *LORA,
    "never_moves",
    "only_decay",
    "DEAD",
    layer=LORAS,
    also={*NO_GRADIENT, "detached"},
)
zoo.sick(
    "daily-verses-adapters-not-found-by-name",
    lambda s: adapted(s, "by-name"),
    harmed(resting("lora_a", "lora_b")),
    *LORA,
    "frozen",
    "never_moves",
    layer=LORAS,
    also=NO_GRADIENT,
    control=adapters.control,
)


def adapted_tower(seed: int, fault: bool) -> Program:
    """Adapters in a network of linear layers, closed again by a helper that freezes all but the head."""
    model = mlp([12, 40, 40, 6], nn.GELU)
    fit(model, crates(seed + 3), adam(model, 8e-3), 50, bce).run()
    model.zero_grad(set_to_none=True)
    for at in (0, 2):
        model[at] = Lora(model[at])
    if fault:
        for p in model[:-1].parameters():
            p.requires_grad = False
    return study(model, crates(seed), adam_of(learning(model), 1e-2), bce, 90)


beside(
    zoo,
    "crates-adapters-free",
    "crates-adapters-frozen-with-the-body",
    adapted_tower,
    harmed(resting("lora_a", "lora_b")),
    *LORA,
    "frozen",
    "never_moves",
    layer=("0", "2"),
    also=NO_GRADIENT,
)

# --- layers that the model does not know


class HiddenHeads(Gat):
    """The heads of both rounds are held in a list of Python, or of torch."""

    def __init__(self, hidden: bool) -> None:
        super().__init__(8)
        if hidden:
            first, second = list(self.turn1), list(self.turn2)
            del self.turn1, self.turn2
            self.turn1, self.turn2 = first, second  # type: ignore[assignment]


class ByKind(nn.Module):
    """A table of vectors for each column, in a dict of Python or of torch, and one layer."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        tables = {f"kind{i}": nn.Embedding(10, 1) for i in range(3)}
        self.tables: Any = tables if hidden else nn.ModuleDict(tables)
        self.out = nn.Linear(9, 1)

    def forward(self, kind: Tensor, x: Tensor) -> Tensor:
        parts = [self.tables[f"kind{i}"](kind[:, i]) for i in range(3)]
        return self.out(torch.cat([*parts, x], dim=1)).squeeze(1)


class Anew(nn.Module):
    """The layer behind the convolutions gets its width from the picture: in every forward, or in the first."""

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.conv, self.anew = nn.Conv2d(1, 6, 3, 2, 1), anew
        self.fc = None if anew else nn.Linear(216, 20)
        self.out = nn.Linear(20, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv(x)).flatten(1)
        fc = self.fc if self.fc is not None else nn.Linear(h.shape[1], 20)
        return self.out(torch.relu(fc(h)))


def fewer(than: int) -> Callable[[Played], tuple[bool, str]]:
    return lambda played: (len(played.distance) < than, f"the model knows {len(played.distance)} tensors")


for sound, name, make, task_of, loss, rate, steps, count, also in (
    ("rooms-heads-in-module-list", "rooms-heads-in-list", HiddenHeads, rooms, token_loss, 6e-3, 90, 10, set()),
    ("defaults-tables-in-module-dict", "defaults-tables-in-dict", ByKind, defaults, bce, 3e-2, 110, 4, set()),
    (
        "shells-layer-made-once",
        "shells-layer-made-in-every-forward",
        Anew,
        shells,
        F.cross_entropy,
        6e-3,
        80,
        5,
        {"loss_stuck", "batch_size"},
    ),
):
    beside(
        zoo,
        sound,
        name,
        lambda s, fault, m=make, t=task_of, o=loss, r=rate, k=steps: study(n := m(fault), t(s), adam(n, r), o, k),
        harmed(fewer(count), worse=1.2),
        "hidden_layers",
        "not_in_optimizer",
        also={*IDLE, *also},
    )

# --- frozen


def not_pretrained(seed: int, fault: bool) -> Program:
    """The tutorial freezes the body of a trained network; here `pretrained=False` was given."""
    model = Separable()
    if fault:
        model.requires_grad_(False)
        model.fc = nn.Linear(32, 6)
    return study(model, shells(seed), adam_of(learning(model), 4e-3), steps=60)


def frozen_vectors(seed: int, fault: bool) -> Program:
    """`from_pretrained` freezes by default; the vectors were only drawn."""
    model = FastText(p=0.0, width=4)
    drawn = 0.5 * torch.randn(50, 4, generator=torch.Generator().manual_seed(seed))
    model.words = nn.EmbeddingBag.from_pretrained(drawn, freeze=fault, mode="mean")
    return study(model, tweets(seed), adam_of(learning(model), 2e-2), steps=110)


def discriminator_left_off(seed: int, fault: bool) -> Program:
    """The decoder is frozen for a look at the encoder, and is not freed afterwards."""
    model = Petal()
    model.decoder.requires_grad_(False)
    warm = adam(model.encoder, 5e-3)
    fit(model, petals(seed), warm, 5, F.mse_loss).run()
    model.zero_grad(set_to_none=True)
    if not fault:
        model.decoder.requires_grad_(True)
    return study(model, petals(seed), adam_of(learning(model), 5e-3), F.mse_loss, 80)


for sound, name, build, parts, layer, more in (
    (
        "shells-whole-network-free",
        "shells-body-frozen-and-never-trained",
        not_pretrained,
        ("stem", "depth", "point", "mix"),
        ("stem", "depth", "point", "mix"),
        set(),
    ),
    ("tweets-drawn-vectors-free", "tweets-drawn-vectors-frozen", frozen_vectors, ("words",), ("words",), set()),
    (
        "petals-decoder-freed-again",
        "petals-decoder-left-frozen",
        discriminator_left_off,
        ("decoder",),
        ("decoder.0", "decoder.2"),
        {"BOTTLENECK", "LOW_RANK"},
    ),
):
    beside(
        zoo,
        sound,
        name,
        build,
        harmed(resting(*parts)),
        *FREEZE,
        "never_moves",
        layer=layer,
        also={*NO_GRADIENT, *more},
    )
