# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Plain programs of which a part is not trained, though its author thinks so, and their twins.

Half: plain.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._plain_loops import (
    KINDS,
    Desk,
    Heart,
    Music,
    NeuMf,
    Speech,
    TwoTasks,
    Vgg,
    bce,
    beats,
    crops,
    doses,
    fabrics,
    harmed,
    parts_of_speech,
    rents,
    shops,
    soils,
    spectra_of,
    tickets,
    tunes,
    two_losses,
)
from validation.evidence import loops as facts
from validation.evidence.loops import all_of, learns
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA_FROZEN, LORA_IDLE, REPLACED, STILL, UNHELD
from validation.nets import mlp
from validation.programs import adam, fit, held_out, sgd
from validation.tasks import token_loss

zoo = Zoo("loop", half="plain", proof=learns())
NO_GRADIENT = {*IDLE, "VANISHING", "DEAD"}
adamw = torch.optim.AdamW

# --- detached


class Features(Vgg):
    """The features were computed under `no_grad` when they came from a trained network."""

    def __init__(self, cut: bool) -> None:
        super().__init__(3, 5, 8, norm=False)
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.cut):
            h = self.features(x)
        return self.classifier(h)


zoo.beside(
    "fabrics-features-with-gradients",
    "fabrics-features-under-no-grad",
    lambda s, fault: study(m := Features(fault), fabrics(s), adam(m, 2e-3), steps=60),
    harmed(facts.ungiven("features")),
    *CUT,
    "never_moves",
    layer=("features.0", "features.3"),
    also=NO_GRADIENT,
)


class Codebook(nn.Module):
    """An autoencoder whose code is the nearest of 24 vectors; the gradient passes straight through, or not at all."""

    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp([36, 32, 4], nn.SiLU), mlp([4, 32, 36], nn.SiLU)
        self.codes, self.straight = nn.Parameter(torch.randn(24, 4)), straight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        code = self.codes[torch.cdist(z, self.codes).argmin(dim=1)]
        if self.straight:
            near = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
            return self.decoder(z + (code - z).detach()), near
        return self.decoder(code), torch.zeros(())


def coded(seed: int, fault: bool) -> Program:
    model = Codebook(not fault)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out, near = model(batch[0])
        return F.mse_loss(out, batch[1]) + near

    def meant(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return F.mse_loss(out[0], y)

    return study(model, spectra_of(seed), adam(model, 1e-2), meant, 120, loss_of=loss_of)


zoo.beside(
    "codebook-straight-through",
    "codebook-nothing-passes-through",
    coded,
    harmed(facts.ungiven("encoder")),
    *CUT,
    "never_moves",
    "hidden_layers",
    layer=("encoder.0", "encoder.2"),
    also={*NO_GRADIENT, "BOTTLENECK", "LOW_RANK"},
)


class Cast(Speech):
    """Tags from a list of numbers: `torch.tensor(h)` copies and forgets where it came from."""

    def __init__(self, copies: bool) -> None:
        super().__init__(width=4)
        self.tag, self.copies = mlp([8, 32, 5]), copies

    def forward(self, x: Tensor) -> Tensor:
        h = self.gru(self.vectors(x))[0]
        return self.tag(torch.tensor(h.detach().numpy()) if self.copies else h)


zoo.beside(
    "tags-from-states",
    "tags-from-copied-states",
    lambda s, fault: study(m := Cast(fault), parts_of_speech(s), adam(m, 1e-2), token_loss, 100),
    harmed(facts.ungiven("vectors", "gru")),
    *CUT,
    "never_moves",
    layer=("vectors", "gru"),
    also=NO_GRADIENT,
)

# --- not in the optimizer


def deep_part(seed: int, fault: bool) -> Program:
    """The optimizer gets the deep part and the head; the vectors were another team's."""
    model = NeuMf()
    trained = [*model.deep.parameters(), *model.head.parameters()] if fault else list(model.parameters())
    return study(model, shops(seed), adam_of(trained, 1e-2), bce, 90)


def adam_of(parameters: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=rate)


zoo.beside(
    "shops-vectors-and-layers-given",
    "shops-vectors-not-given",
    deep_part,
    harmed(all_of(facts.held_by_none("person", "thing"), facts.unmoved("person", "thing"))),
    *UNHELD,
    "never_moves",
    layer=("person", "thing"),
    also=IDLE,
)


def decayed_by_shape(seed: int, fault: bool) -> Program:
    """Matrices decay and vectors do not; a convolution is neither."""
    model = Heart()
    named = list(model.parameters())
    many = [p for p in named if (p.dim() == 2 if fault else p.dim() >= 2)]
    few = [p for p in named if p.dim() == 1]
    optimizer = adamw([{"params": many, "weight_decay": 0.01}, {"params": few, "weight_decay": 0.0}], lr=4e-3)
    return study(model, beats(seed), optimizer, steps=80)


CONVS = ("enter", "conv1", "conv2")
weights = tuple(f"{name}.weight" for name in CONVS)
zoo.beside(
    "beats-groups-by-shape",
    "beats-groups-by-shape-miss-convolutions",
    decayed_by_shape,
    harmed(all_of(facts.held_by_none(*weights), facts.unmoved(*weights))),
    *UNHELD,
    "never_moves",
    layer=CONVS,
    also=IDLE,
)

# --- an optimizer of something else


def resumed(seed: int, fault: bool) -> Program:
    """The model is made anew from a checkpoint, after the optimizer was made."""
    first = mlp([9, 40, 40, 1], nn.SiLU)
    optimizer = sgd(first, 0.05, momentum=0.9)
    model = copy.deepcopy(first)
    if not fault:
        optimizer = sgd(model, 0.05, momentum=0.9)
    return study(model, rents(seed), optimizer, F.mse_loss, 80)


def distilled(seed: int, fault: bool) -> Program:
    """A student learns from a teacher; the optimizer was made of the teacher."""
    teacher = mlp([11, 48, 6])
    fit(teacher, soils(seed), adam(teacher, 5e-3), 60).run()
    teacher.zero_grad(set_to_none=True)
    student = mlp([11, 24, 6])
    optimizer = adam(teacher if fault else student, 6e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            goal = teacher(batch[0]).softmax(dim=1)
        return F.cross_entropy(student(batch[0]), goal)

    return study(student, soils(seed), optimizer, steps=80, loss_of=loss_of)


for sound, name, build in (
    ("rents-optimizer-of-the-new-model", "rents-optimizer-of-the-old-model", resumed),
    ("soils-optimizer-of-the-student", "soils-optimizer-of-the-teacher", distilled),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(facts.strangers),
        *FOREIGN,
        "not_in_optimizer",
        "never_moves",
        also={*IDLE, "detached"},
    )

# --- replaced


def orthogonal(seed: int, fault: bool) -> Program:
    """Weights are drawn anew as new parameters, before or after the optimizer is made."""
    model = mlp([14, 40, 40, 7], nn.ELU)

    def draw() -> None:
        for part in model:
            if isinstance(part, nn.Linear):
                part.weight = nn.Parameter(nn.init.orthogonal_(torch.empty_like(part.weight)))

    if not fault:
        draw()
    optimizer = adam(model, 4e-3)
    if fault:
        draw()
    return study(model, crops(seed), optimizer, bce, 80)


zoo.beside(
    "crops-drawn-then-optimizer",
    "crops-optimizer-then-drawn",
    orthogonal,
    harmed(all_of(facts.strangers, facts.held_by_none("0.weight", "2.weight", "4.weight"))),
    *REPLACED,
    "never_moves",
    "foreign_optimizer",
    layer=("0", "2", "4"),
    also=IDLE,
)


def normed(seed: int, fault: bool) -> Program:
    """Weight norm is put on the convolutions, before or after the optimizer is made."""
    model = Heart()

    def put() -> None:
        for part in (model.enter, model.conv1, model.conv2):
            weight_norm(part)

    if not fault:
        put()
    optimizer = adam(model, 4e-3)
    if fault:
        put()
    return study(model, beats(seed), optimizer, steps=80)


inner = tuple(f"{name}.parametrizations" for name in CONVS)
zoo.beside(
    "beats-weight-norm-then-optimizer",
    "beats-optimizer-then-weight-norm",
    normed,
    harmed(facts.held_by_none(*inner)),
    *REPLACED,
    "never_moves",
    "foreign_optimizer",
    layer=(*CONVS, *(f"{name}.parametrizations.weight" for name in CONVS)),
    also=IDLE,
)

# --- held, and yet it never moves


def held_back(seed: int, fault: bool) -> Program:
    """The trunk waits for the heads for ten steps; the limit was meant in rows, and never comes."""
    model = TwoTasks(16)
    limit = 10_000 if fault else 10

    def wait(step: int) -> None:
        if step < limit:
            for p in model.trunk.parameters():
                p.grad.zero_()

    return study(model, doses(seed), adam(model, 6e-3), two_losses, 100, ready=wait)


zoo.beside(
    "doses-trunk-waits-ten-steps",
    "doses-trunk-waits-for-ever",
    held_back,
    harmed(facts.unmoved("trunk")),
    *STILL,
    "zero_grad_before_step",
    "frozen",
    layer=("trunk.0", "trunk.2"),
    also={*NO_GRADIENT, "detached"},
)


def multiplied(seed: int, fault: bool) -> Program:
    """Vectors learn at half the rate; the factor comes from a file of whole numbers."""
    model = Desk(width=5)
    factor = int(0.5) if fault else 0.5
    rest = [*model.fc.parameters(), *model.head.parameters()]
    groups = [{"params": model.bag.parameters(), "lr": 2e-2 * factor}, {"params": rest}]
    return study(model, tickets(seed), torch.optim.Adam(groups, lr=2e-2), steps=100)


zoo.beside(
    "tickets-vectors-at-half-the-rate",
    "tickets-vectors-at-rate-zero",
    multiplied,
    harmed(facts.unmoved("bag")),
    *STILL,
    "zero_rate",
    layer="bag",
    also=IDLE,
)

# --- decay alone


class Branch(nn.Module):
    """A straight line, and a branch that bends it, under a gate that may have been set to 0 to switch it off."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.line, self.branch, self.gate = nn.Linear(11, 6), mlp([11, 48, 6]), gate

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x) + self.gate * self.branch(x)


DECAYS = ("only_decay", "DISCONNECTED", "DEAD", "never_moves")
zoo.beside(
    "soils-branch-under-gate-1",
    "soils-branch-under-gate-0",
    lambda s, fault: study(
        m := Branch(0.0 if fault else 1.0), soils(s), adamw(m.parameters(), lr=5e-3, weight_decay=0.05), steps=80
    ),
    harmed(facts.shrinks("branch")),
    *DECAYS,
    layer=("branch.0", "branch.2"),
    also={*NO_GRADIENT, "detached"},
)


class Kept(nn.Module):
    """The second argument of its dropout was the share that is kept, in the library that it comes from."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.line = nn.Linear(14, 7)
        self.first, self.drop, self.second = nn.Linear(14, 40), nn.Dropout(p), nn.Linear(40, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x) + self.second(self.drop(F.relu(self.first(x))))


def kept(seed: int, fault: bool) -> Program:
    model = Kept(1.0 if fault else 0.0)
    task = crops(seed).changed(lambda x, _: (x, ((x[:, :7] * x[:, 7:]) > 0).float()))
    return study(model, task, adamw(model.parameters(), lr=1e-2, weight_decay=0.05), bce, 120)


zoo.beside(
    "crops-dropout-drops-none",
    "crops-dropout-drops-all",
    kept,
    harmed(facts.shrinks("first")),
    *DECAYS,
    layer=("first", "second", "drop"),
    also={*NO_GRADIENT, "detached", "LOW_RANK"},
)

# --- adapters


class Adapter(nn.Module):
    """A frozen layer with a change of low rank, which counts by alpha over rank."""

    def __init__(self, base: nn.Linear, scale: float, rank: int = 8) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * self.lora_b(self.lora_a(x))


LAYERS = ("q", "v", "up", "down")
LORAS = tuple(f"blocks.0.{layer}.{part}" for layer in LAYERS for part in ("lora_a", "lora_b"))


def adapted(seed: int, scale: float, inference: bool) -> Program:
    """A model of tunes in other keys gets adapters; its last norm is trained as well."""
    model = Music()
    fit(model, tunes(seed + 5), adam(model, 5e-3), 40, token_loss).run()
    model.zero_grad(set_to_none=True)
    model.requires_grad_(False)
    for layer in LAYERS:
        setattr(model.blocks[0], layer, Adapter(getattr(model.blocks[0], layer), scale))
    model.norm.requires_grad_(True)
    if inference:
        for name, p in model.named_parameters():
            if "lora" in name:
                p.requires_grad = False
    optimizer = adamw([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
    return study(model, tunes(seed), optimizer, token_loss, 70)


zoo.beside(
    "tunes-adapters-alpha-over-rank",
    "tunes-adapters-alpha-over-rank-whole-division",
    lambda s, fault: adapted(s, 16 // 32 if fault else 16 / 32, False),
    harmed(facts.unmoved(*LORAS)),
    *LORA_IDLE,
    layer=LORAS,
    also={*NO_GRADIENT, "detached"},
)
zoo.beside(
    "tunes-adapters-for-training",
    "tunes-adapters-in-inference-mode",
    lambda s, fault: adapted(s, 1.0, fault),
    harmed(facts.resting("lora_a", "lora_b")),
    *LORA_FROZEN,
    layer=LORAS,
    also=NO_GRADIENT,
)

# --- layers that the model does not know


class Heads(nn.Module):
    """A trunk and a head for each question, in a dictionary of Python or of torch."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 24), nn.ReLU())
        heads = {name: mlp([24, 24, out]) for name, out in (("amount", 1), ("kind", 3))}
        self.heads = heads if hidden else nn.ModuleDict(heads)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.heads["amount"](h).squeeze(1), self.heads["kind"](h)


class Blocks(Music):
    """Its blocks in a list of Python."""

    def __init__(self, hidden: bool) -> None:
        super().__init__(depth=2)
        if hidden:
            blocks = list(self.blocks)
            del self.blocks
            self.blocks = blocks


def fewer(than: int):
    return lambda played: (len(played.distance) < than, f"the model knows {len(played.distance)} tensors")


for sound, name, make, task_of, loss, count in (
    ("doses-heads-in-module-dict", "doses-heads-in-dict", Heads, doses, two_losses, 10),
    ("tunes-blocks-in-module-list", "tunes-blocks-in-list", Blocks, tunes, token_loss, 10),
):
    zoo.beside(
        sound,
        name,
        lambda s, fault, m=make, t=task_of, o=loss: study(n := m(fault), t(s), adam(n, 5e-3), o, 90),
        harmed(fewer(count)),
        "hidden_layers",
        "not_in_optimizer",
        also=IDLE,
    )

# --- frozen


def from_vectors(seed: int, fault: bool) -> Program:
    """Vectors that nobody trained go through `from_pretrained`, which freezes by default."""
    model = Desk(width=5)
    vectors = 0.5 * torch.randn(60, 5)
    model.bag = nn.EmbeddingBag.from_pretrained(vectors, freeze=fault, mode="mean")
    return study(model, tickets(seed), adam(model, 1e-2), steps=100)


zoo.beside(
    "tickets-vectors-free",
    "tickets-vectors-frozen-by-default",
    from_vectors,
    harmed(facts.resting("bag")),
    *FREEZE,
    "never_moves",
    layer="bag",
    also=NO_GRADIENT,
)


def late_epoch(seed: int, fault: bool) -> Program:
    """The convolutions are thawed in epoch 2, or in epoch 20 of 6; they were never trained before."""
    model = Vgg(3, 5, 8, norm=False)
    model.features.requires_grad_(False)

    def thaw(step: int) -> None:
        if step == 12 * (20 if fault else 1):
            model.features.requires_grad_(True)

    return study(model, fabrics(seed), adam(model, 2e-3), steps=72, before=thaw)


zoo.beside(
    "fabrics-thawed-in-the-second-epoch",
    "fabrics-thawed-in-an-epoch-that-never-comes",
    late_epoch,
    harmed(facts.resting("features")),
    *FREEZE,
    "never_moves",
    layer=("features.0", "features.3"),
    also=NO_GRADIENT,
)

# --- healthy: parts that rest or learn in their own way, on purpose


def head_on_body(seed: int) -> Program:
    """A trained body rests, a new head learns."""
    model = Vgg(3, 9, 8, norm=False)
    fit(model, fabrics(seed, 9), adam(model, 3e-3), 60).run()
    model.zero_grad(set_to_none=True)
    model.requires_grad_(False)
    model.classifier = nn.Sequential(nn.Flatten(), nn.Linear(80, 5))
    return study(model, fabrics(seed), adam(model.classifier, 1e-2), steps=60)


def from_the_top(seed: int) -> Program:
    """A trained network is thawed from the top, a part every fifteen steps."""
    model = mlp([11, 32, 32, 6])
    fit(model, soils(seed + 3), adam(model, 4e-3), 30).run()
    model.zero_grad(set_to_none=True)
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)

    def thaw(step: int) -> None:
        if step in (15, 30):
            model[2 if step == 15 else 0].requires_grad_(True)

    return study(model, soils(seed), adam(model, 4e-3), steps=90, before=thaw)


def tied(seed: int) -> Program:
    model = Music()
    model.head.weight = model.words.weight
    return study(model, tunes(seed), adam(model, 4e-3), token_loss, 70)


def slow_body(seed: int) -> Program:
    """A trained body at a tenth of the head's rate."""
    model = Heart()
    fit(model, beats(seed + 2), adam(model, 4e-3), 30).run()
    model.zero_grad(set_to_none=True)
    rest = [p for n, p in model.named_parameters() if "head" not in n]
    groups = [{"params": rest, "lr": 1e-3}, {"params": model.head.parameters(), "lr": 1e-2}]
    return study(model, beats(seed), torch.optim.Adam(groups), steps=70)


def words_fixed(seed: int) -> Program:
    model = Speech()
    model.vectors.requires_grad_(False)
    return study(model, parts_of_speech(seed), adam(model, 1e-2), token_loss, 90)


def sparse_rows(seed: int) -> Program:
    """Sparse gradients for the words, dense ones for the rest: an optimizer for each."""
    model, losses, task = Desk(sparse=True), [], tickets(seed)
    rest = [*model.fc.parameters(), *model.head.parameters()]
    first, second = torch.optim.SparseAdam(model.bag.parameters(), lr=1e-2), adam_of(rest, 1e-2)

    def run() -> None:
        for _, (x, y) in zip(range(80), task, strict=False):
            first.zero_grad()
            second.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            first.step()
            second.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=[first, second], run=run, losses=losses, score=held_out(model, task))


def averaged(seed: int) -> Program:
    """A moving average is kept beside the model, for later."""
    model, task, loss = KINDS["scans"](seed)
    slow = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def follow(_: int) -> None:
        for mine, own in zip(slow.parameters(), model.parameters(), strict=True):
            mine.lerp_(own, 0.02)

    return study(model, task, adam(model, 4e-3), loss, 60, after=follow)


def norms_only(seed: int) -> Program:
    """Of a trained decoder only norms and head are trained."""
    model = Music()
    fit(model, tunes(seed + 5), adam(model, 5e-3), 40, token_loss).run()
    model.zero_grad(set_to_none=True)
    for name, p in model.named_parameters():
        p.requires_grad = "norm" in name or "head" in name
    return study(model, tunes(seed), adam_of([p for p in model.parameters() if p.requires_grad], 1e-2), token_loss, 70)


def weight_normed(seed: int) -> Program:
    model = mlp([9, 40, 40, 1], nn.SiLU)
    for at in (0, 2):
        weight_norm(model[at])
    return study(model, rents(seed), adam(model, 6e-3), F.mse_loss, 80)


class Prompted(nn.Module):
    """A trained decoder that rests, behind four vectors that are learned, as in prompt tuning, and a new head."""

    def __init__(self, body: Music) -> None:
        super().__init__()
        self.body, self.prompt = body.requires_grad_(False), nn.Parameter(0.2 * torch.randn(1, 4, 32))
        self.head = nn.Linear(32, 14)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.prompt.expand(len(x), -1, -1), self.body.words(x)], dim=1)
        for block in self.body.blocks:
            h = block(h)
        return self.head(self.body.norm(h[:, 4:]))


def prompted(seed: int) -> Program:
    body = Music()
    fit(body, tunes(seed + 5), adam(body, 5e-3), 50, token_loss).run()
    body.zero_grad(set_to_none=True)
    model = Prompted(body)
    return study(model, tunes(seed), adam_of([p for p in model.parameters() if p.requires_grad], 1e-2), token_loss, 70)


for name, build in (
    ("fabrics-new-head-on-trained-body", head_on_body),
    ("soils-thawed-from-the-top", from_the_top),
    ("tunes-head-tied-to-words", tied),
    ("beats-body-at-a-tenth-of-the-rate", slow_body),
    ("tags-words-fixed", words_fixed),
    ("tickets-sparse-rows", sparse_rows),
    ("scans-average-beside", averaged),
    ("tunes-norms-and-head-only", norms_only),
    ("rents-weight-norm", weight_normed),
    ("tunes-prompt-is-learned", prompted),
):
    zoo.healthy(f"plain-{name}", build)
