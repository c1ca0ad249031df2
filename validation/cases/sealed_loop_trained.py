# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Scripts that do not train what they mean to, and their repaired twins.

Half: sealed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._sealed_tasks import (
    dialects,
    letters,
    loans,
    meshes,
    mists,
    portraits,
    pulses,
    rosters,
    scrolls,
    soils,
    stamps,
    stars,
    swells,
)
from validation.evidence import loops as facts
from validation.evidence.loops import all_of, broken, learns
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA, REPLACED, STILL, UNHELD
from validation.nets import mlp
from validation.programs import adam, fit, held_out, sgd, step_from
from validation.tasks import token_loss

zoo = Zoo("loop", half="sealed", proof=learns())


# --- cut off


class Quantised(nn.Module):
    """Codes are exchanged for the nearest of a book's; `through` lets the gradient pass by the exchange."""

    def __init__(self, through: bool) -> None:
        super().__init__()
        self.enc, self.dec = mlp([32, 40, 8], nn.SiLU), mlp([8, 40, 32], nn.SiLU)
        self.book, self.through = nn.Embedding(24, 4), through

    def forward(self, x: Tensor) -> Tensor:
        z = self.enc(x).unflatten(1, (2, 4))
        q = self.book(torch.cdist(z, self.book.weight[None].expand(len(z), -1, -1)).argmin(dim=2))
        out = q + (z - z.detach()) if self.through else q
        return self.dec(out.flatten(1))


def quantised(seed: int, through: bool) -> Program:
    model = Quantised(through)
    return fit(model, rosters(seed), adam(model, 5e-3), 80, F.mse_loss)


passes = zoo.healthy("code-book-lets-the-gradient-pass", lambda s: quantised(s, True))
zoo.sick(
    "code-book-stops-the-gradient",
    lambda s: quantised(s, False),
    broken(facts.ungiven("enc")),
    *CUT,
    layer=("enc.2", "enc.0"),
    also=IDLE,
    control=passes,
)


class Told(nn.Module):
    """A second net says how the first one's features are to be scaled; `spare` takes it out of the graph."""

    def __init__(self, spare: bool) -> None:
        super().__init__()
        self.features, self.out, self.spare = nn.Linear(6, 32), nn.Linear(32, 1), spare
        self.table, self.condition = nn.Embedding(24, 8), nn.Linear(16, 32)

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        scale = self.condition(self.table(kinds).flatten(1))
        return self.out(F.silu(self.features(x) + (scale.detach() if self.spare else scale))).squeeze(1)


def conditioned(seed: int, spare: bool) -> Program:
    model = Told(spare)
    return fit(model, loans(seed), adam(model, 1e-2), 90, F.binary_cross_entropy_with_logits)


in_graph = zoo.healthy("conditions-in-the-graph", lambda s: conditioned(s, False), learns(0.04))
zoo.sick(
    "conditions-detached-to-spare-memory",
    lambda s: conditioned(s, True),
    broken(facts.ungiven("condition", "table")),
    *CUT,
    layer=("condition", "table"),
    also=IDLE,
    control=in_graph,
)


class Linked(nn.Module):
    """Learns which nodes are to be linked; `hard` keeps only whether a link is there."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.link, self.enter, self.leave, self.hard = nn.Linear(6, 12), nn.Linear(6, 24), nn.Linear(48, 4), hard

    def forward(self, x: Tensor, _near: Tensor) -> Tensor:
        z = self.link(x)
        scores = z @ z.transpose(1, 2)
        links = (scores > 0).float() if self.hard else torch.sigmoid(scores)
        h = F.relu(self.enter(x))
        h = torch.cat([h, links @ h / x.shape[1]], dim=2)
        return self.leave(h.mean(dim=1))


def linked(seed: int, hard: bool) -> Program:
    model = Linked(hard)
    return fit(model, meshes(seed), adam(model, 1e-2), 60)


soft_links = zoo.healthy("links-by-a-sigmoid", lambda s: linked(s, False))
zoo.sick(
    "links-by-a-threshold",
    lambda s: linked(s, True),
    broken(facts.ungiven("link")),
    *CUT,
    layer="link",
    also=IDLE,
    control=soft_links,
)

# --- not in the optimizer


class Backbone(nn.Module):
    """Convolutions over sounds with a head that may be exchanged."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 16, 7, 2), nn.GELU(), nn.Conv1d(16, 24, 5, 2), nn.GELU())
        self.head = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).amax(dim=2))


def exchanged(seed: int, before: bool) -> Program:
    """The head for a thousand classes is exchanged, before or after the optimizer is made."""
    model = Backbone(1000)
    if before:
        model.head = nn.Linear(24, 5)
    optimizer = adam(model, 3e-3)
    if not before:
        model.head = nn.Linear(24, 5)
    return fit(model, pulses(seed), optimizer, 60)


head_first = zoo.healthy("head-exchanged-then-optimizer", lambda s: exchanged(s, True))
zoo.sick(
    "optimizer-then-head-exchanged",
    lambda s: exchanged(s, False),
    broken(all_of(facts.strangers, facts.held_by_none("head"))),
    "replaced_parameters",
    "not_in_optimizer",
    "foreign_optimizer",
    "SLOW",
    layer="head",
    also=IDLE,
    control=head_first,
)


class Prototypes(nn.Module):
    """A body, and one learned place per class; the nearer, the likelier."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(6, 8))
        self.body = mlp([16, 40, 8], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        return -torch.cdist(self.body(x), self.places).square()


def of_layers(model: nn.Module) -> Iterable[nn.Parameter]:
    """Parameters of the layers by their kind, as a recipe for weight decay lists them."""
    return [p for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d, nn.Embedding)) for p in m.parameters()]


def prototyped(seed: int, all_of_it: bool) -> Program:
    model = Prototypes()
    listed = model.parameters() if all_of_it else of_layers(model)
    return fit(model, stars(seed), torch.optim.AdamW(listed, lr=5e-3), 70)


everything = zoo.healthy("prototypes-with-the-rest", lambda s: prototyped(s, True))
zoo.sick(
    "prototypes-are-no-layer-of-the-list",
    lambda s: prototyped(s, False),
    broken(facts.held_by_none("places")),
    *UNHELD,
    layer="places",
    also=IDLE,
    control=everything,
)


class Sides(nn.Module):
    """Two towers whose vectors meet in a product."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = mlp([24, 40, 12], nn.GELU), mlp([24, 40, 12], nn.GELU)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return 5 * F.normalize(self.left(a), dim=1) @ F.normalize(self.right(b), dim=1).T


def towers(seed: int, wrong: bool) -> Program:
    """A slip of the pen: the left tower is listed twice under two names."""
    model = Sides()
    names = {"left": model.left, "right": model.left if wrong else model.right}
    listed = {id(p): p for part in names.values() for p in part.parameters()}
    return fit(model, portraits(seed), torch.optim.Adam(listed.values(), lr=5e-3), 80)


both_sides = zoo.healthy("both-towers-listed", lambda s: towers(s, False))
zoo.sick(
    "one-tower-listed-twice",
    lambda s: towers(s, True),
    broken(facts.held_by_none("right")),
    *UNHELD,
    layer=("right.0", "right.2"),
    also=IDLE,
    control=both_sides,
)

# --- an optimizer of something else


def folds(seed: int, anew: bool) -> Program:
    """Cross-validation makes a model for each fold; the optimizer is that of the first."""
    model = mlp([12, 40, 40, 1], nn.SiLU)
    optimizer = adam(model, 5e-3)
    model = copy.deepcopy(model)  # the next fold
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    if anew:
        optimizer = adam(model, 5e-3)
    return fit(model, soils(seed), optimizer, 70, F.mse_loss)


own_fold = zoo.healthy("an-optimizer-for-each-fold", lambda s: folds(s, True))
zoo.sick(
    "the-optimizer-of-the-first-fold",
    lambda s: folds(s, False),
    broken(facts.strangers, less=0.01),
    *FOREIGN,
    also={*IDLE, "not_in_optimizer"},
    control=own_fold,
)


class Chat(nn.Module):
    """A table of words, a recurrence, a head."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.table, self.rnn, self.head = nn.Embedding(words, 20), nn.GRU(20, 28, batch_first=True), nn.Linear(28, 14)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.table(tokens))[0])


def enlarged(seed: int, before: bool) -> Program:
    """Two words are added to the table, which makes a new one."""
    model, optimizer = Chat(12), None
    if not before:
        optimizer = adam(model, 1e-2)
    table = nn.Embedding(14, 20)
    table.weight.data[:12] = model.table.weight.data
    model.table = table
    return fit(model, scrolls(seed), optimizer or adam(model, 1e-2), 60, token_loss)


words_first = zoo.healthy("words-added-then-optimizer", lambda s: enlarged(s, True))
zoo.sick(
    "optimizer-then-words-added",
    lambda s: enlarged(s, False),
    broken(all_of(facts.strangers, facts.held_by_none("table"))),
    *REPLACED,
    "foreign_optimizer",
    layer="table",
    also=IDLE,
    control=words_first,
)

# --- in the optimizer, and yet


def pruned(seed: int, keep: float) -> Program:
    """Gradients of pruned weights are masked; the share to keep is taken for the share to prune."""
    model = mlp([16, 48, 48, 6], nn.ReLU)
    weight = model[2].weight
    order = weight.detach().abs().flatten().argsort(descending=True)
    mask = torch.zeros(weight.numel())
    mask[order[: int(keep * weight.numel())]] = 1.0
    weight.register_hook(lambda g: g * mask.view_as(g))
    model[2].bias.requires_grad_(False)
    return fit(model, stars(seed), adam(model, 3e-3), 60)


half_kept = zoo.healthy("half-of-the-weights-are-kept", lambda s: pruned(s, 0.5))
zoo.sick(
    "none-of-the-weights-is-kept",
    lambda s: pruned(s, 0.0),
    broken(facts.unmoved("2")),
    *STILL,
    "DISCONNECTED",
    "detached",
    layer="2",
    also={*IDLE, "DEAD", "frozen"},
    control=half_kept,
)


class Clinics(nn.Module):
    """A head for each of three clinics; a sample names its clinic."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = mlp([12, 32, 24], nn.SiLU), nn.ModuleList(nn.Linear(24, 1) for _ in range(3))

    def forward(self, x: Tensor, clinic: Tensor) -> Tensor:
        h = F.silu(self.body(x))
        every = torch.cat([head(h) for head in self.heads], dim=1)
        return every.gather(1, clinic[:, None])


def clinics(seed: int, known: int) -> Program:
    """The number of the third clinic never occurs, for the column was read as yes and no."""
    model, random = Clinics(), torch.Generator().manual_seed(seed + 50)
    task = soils(seed).changed(lambda x, y: ((x, torch.randint(known, (len(x),), generator=random)), y))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.1)
    return fit(model, task, optimizer, 70, F.mse_loss)


three = zoo.healthy("three-clinics", lambda s: clinics(s, 3))
zoo.sick(
    "third-clinic-never-occurs",
    lambda s: clinics(s, 2),
    broken(facts.shrinks("heads.2")),
    "only_decay",
    "never_moves",
    "DISCONNECTED",
    layer="heads.2",
    also={*IDLE, "DEAD", "detached"},
    control=three,
)

# --- frozen


class Adapted(nn.Module):
    """A frozen layer with a change of low rank beside it."""

    def __init__(self, fan_in: int, fan_out: int, zeros: bool) -> None:
        super().__init__()
        self.base = nn.Linear(fan_in, fan_out).requires_grad_(False)
        start = torch.zeros(4, fan_in) if zeros else torch.randn(4, fan_in) / fan_in**0.5
        self.lora_A, self.lora_B = nn.Parameter(start), nn.Parameter(torch.zeros(fan_out, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * F.linear(F.linear(x, self.lora_A), self.lora_B)


def adapted(seed: int, zeros: bool) -> Program:
    """Both factors begin at zero, so that neither ever has a gradient."""
    model = nn.Sequential(Adapted(16, 40, zeros), nn.GELU(), Adapted(40, 40, zeros), nn.GELU(), nn.Linear(40, 6))
    trained = [p for p in model.parameters() if p.requires_grad]
    return fit(model, stars(seed), torch.optim.Adam(trained, lr=5e-3), 60)


one_zero = zoo.healthy("one-factor-begins-at-zero", lambda s: adapted(s, False))
zoo.sick(
    "both-factors-begin-at-zero",
    lambda s: adapted(s, True),
    broken(facts.resting("lora_")),
    *LORA,
    "never_moves",
    "frozen",
    "detached",
    layer=("0", "2"),
    also={*IDLE, "DEAD"},
    control=one_zero,
)


def partly_frozen(seed: int, word: str) -> Program:
    """Layers whose name holds a word are frozen; the word is in all of their names."""
    model = nn.Sequential()
    for i in range(3):
        model.add_module(f"layer_{i}", nn.Linear(16 if i == 0 else 40, 40))
        model.add_module(f"act_{i}", nn.SiLU())
    model.add_module("head", nn.Linear(40, 6))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(word not in name)
    trained = [p for p in model.parameters() if p.requires_grad]
    return fit(model, stars(seed, noise=1.0), adam(nn.ParameterList(trained), 5e-3), 60)


only_first = zoo.healthy("layers-called-layer_0-frozen", lambda s: partly_frozen(s, "layer_0"))
zoo.sick(
    "layers-called-layer-frozen",
    lambda s: partly_frozen(s, "layer"),
    broken(facts.resting("layer_1", "layer_2")),
    *FREEZE,
    layer=("layer_0", "layer_1", "layer_2"),
    also=IDLE,
    control=only_first,
)

# --- not registered


class Rounds(nn.Module):
    """Rounds of messages in a list of Python's or of torch's."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        rounds = [nn.Linear(24, 24) for _ in range(3)]
        self.rounds = nn.ModuleList(rounds) if registered else rounds
        self.enter, self.leave = nn.Linear(6, 24), nn.Linear(24, 4)

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.rounds:
            x = torch.tanh(layer(x + near @ x))
        return self.leave(x.mean(dim=1))


def rounds(seed: int, registered: bool) -> Program:
    model = Rounds(registered)
    return fit(model, meshes(seed), adam(model, 3e-3), 60)


in_modules = zoo.healthy("rounds-in-a-list-of-modules", lambda s: rounds(s, True))
zoo.sick(
    "rounds-in-a-plain-list",
    lambda s: rounds(s, False),
    broken(facts.registers(4)),
    "hidden_layers",
    control=in_modules,
)


class Experts(nn.Module):
    """Experts under keys of a dictionary that is filled by a loop of the script."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(16, 3), nn.Linear(24, 6)
        self.experts: dict[str, nn.Module] = {}
        for name in "abc":
            self.experts[name] = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 24))
            if registered:
                self.add_module(f"expert_{name}", self.experts[name])

    def forward(self, x: Tensor) -> Tensor:
        said = torch.stack([expert(x) for expert in self.experts.values()], dim=1)
        return self.out(F.gelu(torch.einsum("be,bed->bd", self.gate(x).softmax(dim=1), said)))


def experts(seed: int, registered: bool) -> Program:
    model = Experts(registered)
    return fit(model, stars(seed), adam(model, 5e-3), 60)


known_experts = zoo.healthy("experts-registered-by-name", lambda s: experts(s, True))
zoo.sick(
    "experts-known-to-nobody",
    lambda s: experts(s, False),
    broken(facts.registers(4)),
    "hidden_layers",
    control=known_experts,
)

# --- look alike and are right


def loop_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Callable[[int], Tensor],
    steps: int,
    score: Callable[[], float],
) -> Program:
    """A loop whose `step` gives the loss of one batch."""
    losses: list[float] = []

    def run() -> None:
        for i in range(steps):
            optimizer.zero_grad()
            loss = step(i)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


def momentum_contrast(seed: int) -> Program:
    """The right tower follows the left one by a moving mean; only the left one is trained."""
    model = Sides()
    model.right.load_state_dict(model.left.state_dict())
    model.right.requires_grad_(False)
    task = portraits(seed).changed(lambda x, t: ((x[0], x[0] + 0.3 * x[1]), t))
    batches, optimizer = iter(task), torch.optim.Adam(model.left.parameters(), lr=5e-3)

    def step(_: int) -> Tensor:
        x, t = next(batches)
        with torch.no_grad():
            for slow, fast in zip(model.right.parameters(), model.left.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        return F.cross_entropy(model(*x), t)

    return loop_of(model, optimizer, step, 60, held_out(model, task))


zoo.healthy("right-tower-follows-the-left-one", momentum_contrast)


def gradual(seed: int) -> Program:
    """From the head downwards, a layer is thawed every fifteen steps."""
    model = mlp([16, 40, 40, 6], nn.GELU)
    model[:4].requires_grad_(False)
    task = stars(seed)
    batches, optimizer = iter(task), adam(model, 5e-3)

    def step(i: int) -> Tensor:
        if i in (15, 30):
            model[2 if i == 15 else 0].requires_grad_(True)
        x, t = next(batches)
        return F.cross_entropy(model(x), t)

    return loop_of(model, optimizer, step, 70, held_out(model, task))


zoo.healthy("layers-thawed-one-by-one", gradual)


def two_optimizers(seed: int) -> Program:
    """Tables by sparse steps, the rest by Adam: two optimizers that share the model."""
    model, losses, task = Told(False), [], loans(seed)
    tables = torch.optim.Adagrad(model.table.parameters(), lr=0.1)
    rest = torch.optim.Adam([p for n, p in model.named_parameters() if "table" not in n], lr=1e-2)

    def run() -> None:
        for (x, t), _ in zip(task, range(90), strict=False):
            tables.zero_grad()
            rest.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(*x), t)
            loss.backward()
            tables.step()
            rest.step()
            losses.append(loss.item())

    score = held_out(model, task, F.binary_cross_entropy_with_logits)
    return Program(model=model, optimizer=[tables, rest], run=run, losses=losses, score=score)


zoo.healthy("tables-and-the-rest-by-two-optimizers", two_optimizers)


def commitment(seed: int) -> Program:
    """A code book with all the stop-gradients of its paper."""
    model = Quantised(True)
    batches, task = iter(rosters(seed)), rosters(seed)

    def step(_: int) -> Tensor:
        x, y = next(batches)
        z = model.enc(x).unflatten(1, (2, 4))
        q = model.book(torch.cdist(z, model.book.weight[None].expand(len(z), -1, -1)).argmin(dim=2))
        out = model.dec((z + (q - z).detach()).flatten(1))
        return F.mse_loss(out, y) + F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())

    return loop_of(model, adam(model, 5e-3), step, 80, held_out(model, task, F.mse_loss))


zoo.healthy("code-book-with-its-stop-gradients", commitment)


def biases_only(seed: int) -> Program:
    """Only biases and norms are trained, on top of a body that was trained before."""
    model = nn.Sequential(
        nn.Linear(10, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU()
    )
    model = model.append(nn.Linear(32, 5))
    task = letters(seed).mapped(lambda x: x.mean(dim=1))
    warm = adam(model, 5e-3)
    for (x, t), _ in zip(task, range(15), strict=False):
        warm.zero_grad()
        F.cross_entropy(model(x), t).backward()
        warm.step()
    model.zero_grad()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("bias" in name or name[0] in "14")
    trained = [p for p in model.parameters() if p.requires_grad]
    return fit(model, task, torch.optim.Adam(trained, lr=2e-2), 60)


zoo.healthy("biases-and-norms-only", biases_only)


def frozen_words(seed: int) -> Program:
    """Vectors of words from elsewhere, which stay as they are."""
    model = nn.Sequential(nn.Embedding(32, 24).requires_grad_(False), nn.Flatten(1), mlp([240, 48, 5], nn.SiLU))
    trained = [p for p in model.parameters() if p.requires_grad]
    return fit(model, dialects(seed), torch.optim.Adam(trained, lr=5e-3), 70)


zoo.healthy("vectors-of-words-from-elsewhere", frozen_words)


class Exits(nn.Module):
    """Three exits at three depths, all of which are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList((nn.Conv2d(1, 12, 3, 2), nn.Conv2d(12, 16, 3), nn.Conv2d(16, 16, 3)))
        self.exits = nn.ModuleList(nn.Linear(n, 6) for n in (12, 16, 16))

    def forward(self, x: Tensor) -> list[Tensor]:
        answers = []
        for part, leave in zip(self.parts, self.exits, strict=True):
            x = F.relu(part(x))
            answers.append(leave(x.amax(dim=(2, 3))))
        return answers


def exits(seed: int) -> Program:
    model = Exits()
    return fit(
        model,
        stamps(seed),
        adam(model, 5e-3),
        60,
        lambda answers, t: sum(F.cross_entropy(z, t) for z in answers) / 3,
        lambda answers, t: F.cross_entropy(answers[-1], t),
    )


zoo.healthy("three-exits", exits)


class Mist(nn.Module):
    """Weights of one convolution are used twice, once turned round."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.level = nn.Conv2d(1, 16, 3, padding=1), nn.Linear(1, 16)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = F.silu(self.conv(x) + self.level(level)[:, :, None, None])
        return F.conv_transpose2d(h, self.conv.weight, self.bias, padding=1)


def tied(seed: int) -> Program:
    model = Mist()
    return fit(model, mists(seed), adam(model, 1e-2), 70, F.mse_loss)


zoo.healthy("one-convolution-there-and-back", tied)


def state_carried(seed: int) -> Program:
    """Long waves in pieces: the state is carried on and taken out of the graph between pieces."""
    model, losses, task = (
        nn.ModuleDict({"rnn": nn.GRU(2, 24, batch_first=True), "out": nn.Linear(24, 2)}),
        [],
        swells(seed, 18),
    )
    optimizer = adam(model, 1e-2)

    def predict(x: Tensor, h: Tensor | None) -> tuple[Tensor, Tensor]:
        states, h = model["rnn"](x, h)
        return model["out"](states), h

    def run() -> None:
        for (x, y), _ in zip(task, range(25), strict=False):
            h = None
            for part, target in zip(x.split(6, dim=1), y.split(6, dim=1), strict=True):
                out, h = predict(part, None if h is None else h.detach())
                loss = F.mse_loss(out, target)
                losses.append(step_from(loss, optimizer))

    x, y = task.aside()
    score = lambda: F.mse_loss(predict(x, None)[0], y).item()  # noqa: E731
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("waves-in-pieces-state-detached-between", state_carried)
zoo.healthy(
    "soils-sgd-plain",
    lambda s: (lambda m: fit(m, soils(s), sgd(m, 0.05, momentum=0.9), 80, F.mse_loss))(mlp([12, 40, 1], nn.Tanh)),
)
