# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Common programs of which a part is not trained, though its author thinks so, and their twins.

Half: common.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._common_loops import (
    Clip,
    ResNet,
    SmallCnn,
    Tagger,
    TextCnn,
    WideDeep,
    bce,
    bikes,
    captions,
    fonts,
    leaves,
    loans,
    names,
    prose,
    recipes,
    study,
    wines,
)
from validation.evidence import loops as facts
from validation.evidence.loops import Played, all_of, broken, learns
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA, LORA_FROZEN, REPLACED, STILL, UNHELD
from validation.nets import Lora, mlp
from validation.nets.programs import Einsum, Gpt, Layer, of_object
from validation.programs import adam, fit
from validation.tasks import ciphers, molecules, token_loss

zoo = Zoo("loop", half="common", proof=learns())
NO_GRADIENT = {*IDLE, "VANISHING", "DEAD"}
adamw = torch.optim.AdamW

# --- detached


class CachedWords(TextCnn):
    """The vectors of the words are read from `.data`, as old code does."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).data.transpose(1, 2)
        return self.fc(self.drop(torch.cat([F.relu(conv(x)).amax(dim=2) for conv in self.convs], dim=1)))


def cuisines(seed: int, fault: bool) -> Program:
    model = CachedWords() if fault else TextCnn()
    return study(model, recipes(seed), adam(model, 4e-3), steps=80)


zoo.beside(
    "recipes-text-cnn",
    "recipes-text-cnn-vectors-by-data",
    cuisines,
    broken(facts.ungiven("embed")),
    *CUT,
    "never_moves",
    layer="embed",
    also=NO_GRADIENT,
)


class Translator(nn.Module):
    """Two GRUs; the state may be detached between them, a habit from truncated backpropagation."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(10, 24), nn.Embedding(11, 24)
        self.encoder, self.decoder = nn.GRU(24, 32, batch_first=True), nn.GRU(24, 32, batch_first=True)
        self.out, self.cut = nn.Linear(32, 10), cut

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        _, state = self.encoder(self.source(source))
        if self.cut:
            state = state.detach()
        return self.out(self.decoder(self.target(shifted), state)[0])


def translated(seed: int, fault: bool) -> Program:
    model = Translator(fault)
    return study(model, ciphers(seed, 10, 3, 32), adam(model, 6e-3), token_loss, 100)


zoo.beside(
    "translator-two-grus",
    "translator-state-detached-between-grus",
    translated,
    broken(facts.ungiven("source", "encoder")),
    *CUT,
    "never_moves",
    layer=("source", "encoder"),
    also=NO_GRADIENT,
)


class Bonds(nn.Module):
    """A graph network that mixes neighbours twice; `foreign` does it in another library the first time."""

    def __init__(self, foreign: bool) -> None:
        super().__init__()
        self.enter, self.mix, self.out = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        self.foreign = foreign

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        h = F.relu(self.enter(x))
        h = torch.from_numpy(bonds.numpy() @ h.detach().numpy()) if self.foreign else bonds @ h
        return self.out(F.relu(self.mix(h / 3)))


def bonded(seed: int, fault: bool) -> Program:
    model = Bonds(fault)
    return study(model, molecules(seed), adam(model, 4e-3), F.mse_loss, 90)


zoo.beside(
    "graph-net-two-layers",
    "graph-net-neighbours-through-numpy",
    bonded,
    broken(facts.ungiven("enter")),
    *CUT,
    "never_moves",
    layer="enter",
    also=NO_GRADIENT,
)

# --- not in the optimizer


def lent(seed: int, fault: bool) -> Program:
    """Two groups of parameters; the vectors of the kinds are in neither."""
    model = WideDeep()
    groups: list[dict[str, Any]] = [{"params": model.deep.parameters()}, {"params": model.wide.parameters()}]
    if not fault:
        groups.append({"params": model.embed.parameters()})
    return study(model, loans(seed), adamw(groups, lr=5e-3), bce, 100)


zoo.beside(
    "loans-wide-and-deep-three-groups",
    "loans-wide-and-deep-vectors-in-no-group",
    lent,
    broken(all_of(facts.held_by_none("embed"), facts.unmoved("embed"))),
    *UNHELD,
    "never_moves",
    layer="embed",
    also=IDLE,
)


def by_name(seed: int, fault: bool) -> Program:
    """Groups by the name of the parameter; nothing is called `conv` in the stem, and it falls through."""
    model = ResNet()
    named = list(model.named_parameters())
    words = ["conv", "fc"] if fault else ["conv", "fc", "bn", "stem", "shortcut"]
    chosen = [p for name, p in named if any(word in name for word in words)]
    return study(model, leaves(seed), torch.optim.SGD(chosen, lr=0.05, momentum=0.9), steps=60)


zoo.beside(
    "leaves-resnet-groups-by-name",
    "leaves-resnet-groups-by-name-miss-stem-and-norms",
    by_name,
    broken(all_of(facts.held_by_none("stem", "bn", "block1.bn1"), facts.unmoved("stem", "bn", "block1.bn1"))),
    *UNHELD,
    "never_moves",
    layer=("stem", "bn", "block1.bn1", "block1.bn2", "block2.bn1", "block2.bn2", "block2.shortcut"),
    also=IDLE,
)


def towers(seed: int, fault: bool) -> Program:
    """The author of the second tower forgot to add it."""
    model = Clip()
    trained = [*model.image.parameters(), model.scale] if fault else list(model.parameters())
    return study(model, captions(seed), adamw(trained, lr=4e-3), steps=90)


zoo.beside(
    "captions-both-towers",
    "captions-optimizer-of-one-tower",
    towers,
    broken(all_of(facts.held_by_none("text"), facts.unmoved("text"))),
    *UNHELD,
    "never_moves",
    layer=("text.0", "text.2"),
    also=IDLE,
)

# --- an optimizer of something else


def averaged(seed: int, fault: bool) -> Program:
    """A moving average of the weights is kept; the optimizer is made from the wrong one of the two."""
    model = SmallCnn()
    shadow = copy.deepcopy(model)
    optimizer = adamw((shadow if fault else model).parameters(), lr=3e-3)

    @torch.no_grad()
    def follow(_: int) -> None:
        for mine, own in zip(shadow.parameters(), model.parameters(), strict=True):
            mine.lerp_(own, 0.05)

    return study(model, fonts(seed), optimizer, steps=80, after=follow)


zoo.beside(
    "fonts-average-beside-the-model",
    "fonts-optimizer-of-the-average",
    averaged,
    broken(facts.strangers, less=0.01),
    *FOREIGN,
    "not_in_optimizer",
    "never_moves",
    also={*IDLE, "only_decay"},
)


def folds(seed: int, fault: bool) -> Program:
    """Cross-validation: a new model for each fold, and one optimizer for all of them."""
    first = mlp([13, 40, 5])
    model = mlp([13, 40, 5])
    optimizer = torch.optim.SGD((first if fault else model).parameters(), lr=0.1, momentum=0.9)
    return study(model, wines(seed), optimizer, steps=80)


zoo.beside(
    "wines-second-fold",
    "wines-second-fold-optimizer-of-the-first",
    folds,
    broken(facts.strangers, less=0.01),
    *FOREIGN,
    "not_in_optimizer",
    "never_moves",
    also=IDLE,
)

# --- replaced


def new_head(seed: int, fault: bool) -> Program:
    """A trained network gets a head for other classes, before or after the optimizer is made."""
    model = ResNet(3, 10)
    fit(model, leaves(seed, 10), adam(model, 3e-3), 20).run()
    model.zero_grad(set_to_none=True)
    if not fault:
        model.fc = nn.Linear(24, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if fault:
        model.fc = nn.Linear(24, 6)
    return study(model, leaves(seed + 1), optimizer, steps=60)


zoo.beside(
    "leaves-new-head-then-optimizer",
    "leaves-optimizer-then-new-head",
    new_head,
    broken(all_of(facts.strangers, facts.held_by_none("fc"))),
    *REPLACED,
    "never_moves",
    layer="fc",
    also={*IDLE, "foreign_optimizer"},
)


def vectors(seed: int, fault: bool) -> Program:
    """Vectors of words from a file are put in, to be trained further."""
    model = Tagger()

    def put() -> None:
        model.embed = nn.Embedding.from_pretrained(0.5 * torch.randn(20, 20), freeze=False)

    if not fault:
        put()
    optimizer = adam(model, 8e-3)
    if fault:
        put()
    return study(model, names(seed), optimizer, token_loss, 90)


zoo.beside(
    "tagger-vectors-then-optimizer",
    "tagger-optimizer-then-vectors",
    vectors,
    broken(all_of(facts.strangers, facts.held_by_none("embed"))),
    *REPLACED,
    "never_moves",
    layer="embed",
    also={*IDLE, "foreign_optimizer"},
)

# --- held, and yet it never moves


def masked(seed: int, fault: bool) -> Program:
    """Only rows of new words are to be trained: a hook multiplies the gradient; the mask is made as whole numbers."""
    model = TextCnn()
    share = torch.linspace(0.2, 0.9, 30)[:, None]
    mask = share.long() if fault else share.round()
    model.embed.weight.register_hook(lambda g: g * mask)
    return study(model, recipes(seed), adam(model, 4e-3), steps=80)


zoo.beside(
    "recipes-only-new-words-move",
    "recipes-mask-of-new-words-all-zero",
    masked,
    broken(facts.unmoved("embed")),
    *STILL,
    "DISCONNECTED",
    layer="embed",
    also={*NO_GRADIENT, "detached", "zero_grad_before_step"},
)


def discriminative(seed: int, fault: bool) -> Program:
    """Smaller rates towards the input; a whole division makes those of the body zero."""
    model = ResNet()
    parts = [[model.stem, model.bn], [model.block1], [model.block2], [model.fc]]
    rates = [8 * (i + 1) // 32 if fault else 8 * (i + 1) / 32 for i in range(4)]
    groups = [
        {"params": [p for m in part for p in m.parameters()], "lr": 0.06 * r}
        for part, r in zip(parts, rates, strict=True)
    ]
    return study(model, leaves(seed), torch.optim.SGD(groups, lr=0.06, momentum=0.9), steps=60)


zoo.beside(
    "leaves-rates-by-depth",
    "leaves-rates-by-depth-whole-division",
    discriminative,
    broken(facts.unmoved("stem", "bn", "block1", "block2")),
    *STILL,
    "zero_rate",
    layer=("stem", "bn", *(f"block{i}.{part}{j}" for i in (1, 2) for part in ("conv", "bn") for j in (1, 2))),
    also=IDLE,
)

# --- decay alone


class Helped(nn.Module):
    """An auxiliary classifier behind the first layer, which helps by its weight in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(13, 40), nn.Linear(40, 40)
        self.fc, self.aux = nn.Linear(40, 5), nn.Linear(40, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.relu(self.low(x))
        return self.fc(F.relu(self.high(h))), self.aux(h)


def helped(seed: int, fault: bool) -> Program:
    model, task = Helped(), wines(seed)
    weight = int(0.4) if fault else 0.4

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out, aux = model(batch[0])
        return F.cross_entropy(out, batch[1]) + weight * F.cross_entropy(aux, batch[1])

    def meant(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return F.cross_entropy(out[0], y) + F.cross_entropy(out[1], y)

    return study(model, task, adamw(model.parameters(), lr=4e-3, weight_decay=0.05), meant, 80, loss_of=loss_of)


zoo.beside(
    "wines-auxiliary-head",
    "wines-auxiliary-weight-cut-to-zero",
    helped,
    broken(facts.shrinks("aux")),
    "only_decay",
    "DISCONNECTED",
    "DEAD",
    "never_moves",
    layer="aux",
    also={*NO_GRADIENT, "detached"},
)


class Leaning(nn.Module):
    """Attention over a set with a learned leaning by distance; the mask that limits it may be inverted."""

    def __init__(self, inverted: bool) -> None:
        super().__init__()
        self.enter, self.lean = nn.Embedding(20, 24), nn.Linear(4, 1)
        self.q, self.k, self.v, self.out = (nn.Linear(24, 24) for _ in range(4))
        self.head, self.inverted = mlp([24, 48, 4]), inverted
        far = (torch.arange(9)[:, None] - torch.arange(9)).float()
        self.register_buffer("far", torch.stack([far / 8, (far / 8) ** 2, (far == 1).float(), (far == 0).float()], -1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens)
        near = self.far[..., 0] >= 0
        lean = self.lean(self.far).squeeze(-1) * (near & ~near if self.inverted else near)
        scores = (self.q(x) @ self.k(x).transpose(1, 2) / 5 + lean).masked_fill(~near, -1e9)
        return self.head(x + self.out(scores.softmax(dim=-1) @ self.v(x)))


def leaned(seed: int, fault: bool) -> Program:
    model = Leaning(fault)
    return study(model, names(seed), adamw(model.parameters(), lr=1e-2, weight_decay=0.1), token_loss, 110)


zoo.beside(
    "tags-attention-leaning-by-distance",
    "tags-attention-leaning-masked-everywhere",
    leaned,
    broken(facts.shrinks("lean"), less=0.9),
    "only_decay",
    "DISCONNECTED",
    "DEAD",
    "never_moves",
    layer="lean",
    also={*NO_GRADIENT, "detached"},
    twin_proof=learns(idle=("lean.bias", "k.bias")),
)

# --- adapters


def adapted(seed: int, how: str) -> Program:
    """A language model that was trained before gets adapters in its feed-forward."""
    model = Gpt(18, 32, [Layer(Einsum(32, 2, causal=True), 32)], tied=False)
    loss = of_object(token_loss)
    fit(model, prose(seed), adam(model, 3e-3), 25, loss).run()
    model.zero_grad(set_to_none=True)
    model.requires_grad_(False)
    layer = model.h[0]
    layer.c_fc, layer.c_proj = Lora(layer.c_fc, 4), Lora(layer.c_proj, 4)
    if how == "frozen after":
        model.requires_grad_(False)
    if how == "both zero":
        for part in (layer.c_fc, layer.c_proj):
            nn.init.zeros_(part.down.weight)
    model.ln_f.requires_grad_(True)
    trained = list(model.parameters()) if how == "frozen after" else [p for p in model.parameters() if p.requires_grad]
    return study(model, prose(seed + 1), adamw(trained, lr=8e-3, weight_decay=0.0), loss, 60)


FEED = tuple(f"h.0.{layer}.{part}" for layer in ("c_fc", "c_proj") for part in ("down", "up"))
zoo.beside(
    "decoder-adapters-frozen-first",
    "decoder-adapters-frozen-with-the-rest",
    lambda s, fault: adapted(s, "frozen after" if fault else ""),
    broken(facts.resting("c_fc.down", "c_fc.up", "c_proj.down", "c_proj.up"), less=0.9),
    *LORA_FROZEN,
    layer=FEED,
    also=NO_GRADIENT,
)
zoo.beside(
    "decoder-adapters-one-factor-zero",
    "decoder-adapters-both-factors-zero",
    lambda s, fault: adapted(s, "both zero" if fault else ""),
    broken(facts.unmoved("h"), less=0.9),
    *LORA,
    "never_moves",
    "DEAD",
    layer=FEED,
    also={*NO_GRADIENT, "detached", "SYMMETRY"},
)

# --- layers that the model does not know


class Columns(nn.Module):
    """A table of vectors for each column, in a list of Python or of torch."""

    def __init__(self, container: type) -> None:
        super().__init__()
        self.tables = container([nn.Embedding(15, 6) for _ in range(2)])
        self.body = mlp([16, 32, 1])

    def forward(self, kind: Tensor, x: Tensor) -> Tensor:
        parts = [table(kind[:, i]) for i, table in enumerate(self.tables)]
        return self.body(torch.cat([*parts, x], dim=1)).squeeze(1)


def fewer_tensors(than: int):
    def fact(played: Played) -> tuple[bool, str]:
        count = len(played.distance)
        return count < than, f"the model knows {count} tensors"

    return fact


def columns(seed: int, fault: bool) -> Program:
    model = Columns(list if fault else nn.ModuleList)
    return study(model, loans(seed), adam(model, 5e-3), bce, 90)


zoo.beside(
    "loans-tables-in-module-list",
    "loans-tables-in-python-list",
    columns,
    broken(fewer_tensors(6), less=0.95),
    "hidden_layers",
    "not_in_optimizer",
    also=IDLE,
)


class Stack(nn.Module):
    """Layers that a loop makes; `setattr` with a name, or a tuple."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(7, 32), nn.Linear(32, 1)
        made = [nn.Linear(32, 32) for _ in range(3)]
        self.middle = tuple(made) if hidden else nn.ModuleList(made)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.enter(x))
        for layer in self.middle:
            h = h + F.silu(layer(h))
        return self.leave(h)


def stacked(seed: int, fault: bool) -> Program:
    model = Stack(fault)
    return study(model, bikes(seed), adam(model, 5e-3), F.mse_loss, 100)


zoo.beside(
    "bikes-three-layers-known",
    "bikes-three-layers-in-a-tuple",
    stacked,
    broken(fewer_tensors(8)),
    "hidden_layers",
    "not_in_optimizer",
    also=IDLE,
)

# --- frozen


def thawed(seed: int, fault: bool) -> Program:
    """The last block is to be trained with the head; its name is spelled as in another network."""
    model = ResNet()
    fit(model, leaves(seed), adam(model, 3e-3), 15).run()
    model.zero_grad(set_to_none=True)
    for name, p in model.named_parameters():
        p.requires_grad = name.startswith(("layer4" if fault else "block2", "fc"))
    return study(model, leaves(seed + 1), adam(model, 3e-3), steps=60)


zoo.beside(
    "leaves-last-block-and-head-thawed",
    "leaves-last-block-by-the-name-of-another-network",
    thawed,
    broken(facts.resting("block2.conv", "block2.bn"), less=0.9),
    *FREEZE,
    "never_moves",
    also=NO_GRADIENT,
    twin_proof=learns(0.1),
)


def joined(seed: int, fault: bool) -> Program:
    """The body joins after ten steps: `requires_grad` is set on its parameters, or on the module, in vain."""
    model = SmallCnn(3, 6, 8)
    fit(model, leaves(seed + 7), adam(model, 2e-3), 10).run()
    model.zero_grad(set_to_none=True)
    body = [model.conv1, model.conv2]
    for part in body:
        part.requires_grad_(False)

    def thaw(step: int) -> None:
        if step == 10:
            for part in body:
                if fault:
                    part.requires_grad = True
                else:
                    part.requires_grad_(True)

    return study(model, leaves(seed), adam(model, 3e-3), steps=80, before=thaw)


zoo.beside(
    "leaves-convolutions-thaw-after-ten-steps",
    "leaves-convolutions-thawed-on-the-module-only",
    joined,
    broken(facts.resting("conv1", "conv2"), less=0.97),
    *FREEZE,
    "never_moves",
    layer=("conv1", "conv2"),
    also=NO_GRADIENT,
)


class Pair(nn.Module):
    """A generator of rows and a critic of them."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = mlp([4, 32, 2]), mlp([2, 32, 1], lambda: nn.LeakyReLU(0.2))


def adversaries(seed: int, fault: bool) -> Program:
    """The critic is frozen while the generator learns; it may stay so."""
    model, random, losses = Pair(), torch.Generator().manual_seed(seed), []
    makes = torch.optim.Adam(model.generator.parameters(), lr=3e-3, betas=(0.5, 0.99))
    judges = torch.optim.Adam(model.critic.parameters(), lr=3e-3, betas=(0.5, 0.99))
    goal, one, zero = torch.tensor([-1.5, 1.0]), torch.ones(48, 1), torch.zeros(48, 1)

    def run() -> None:
        for step in range(120):
            made = model.generator(torch.randn(48, 4, generator=random))
            if not fault or step == 0:
                model.critic.requires_grad_(True)
                real = goal + 0.3 * torch.randn(48, 2, generator=random)
                judges.zero_grad()
                (bce(model.critic(real), one) + bce(model.critic(made.detach()), zero)).backward()
                judges.step()
            model.critic.requires_grad_(False)
            makes.zero_grad()
            loss = bce(model.critic(made), one)
            loss.backward()
            makes.step()
            losses.append(loss.item())
        model.critic.requires_grad_(True)

    def score() -> float:
        with torch.no_grad():
            made = model.generator(torch.randn(256, 4, generator=torch.Generator().manual_seed(seed + 5)))
        return (made.mean(dim=0) - goal).norm().item()

    return Program(model=model, optimizer=[makes, judges], run=run, losses=losses, score=score)


zoo.healthy("common-gan-critic-frozen-in-turn", lambda s: adversaries(s, False))
