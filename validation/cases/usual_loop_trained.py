# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Usual programs of which a part is not trained though its author thinks so, their twins, and parts that rest rightly.

Half: usual.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._plain_loops import harmed
from validation.cases._usual_loops import (
    KINDS,
    Corners,
    DeepFm,
    Forecast,
    Gpt,
    Pairs,
    PlainConv,
    PointNet,
    Reader,
    Rewriter,
    SmallResNet,
    adverts,
    bce,
    birds,
    cars,
    dates,
    letters,
    posts,
    quotes,
    stones,
    streets,
    weather,
)
from validation.evidence import loops as facts
from validation.evidence.loops import Played, all_of, learns
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA_FROZEN, LORA_IDLE, REPLACED, STILL, UNHELD
from validation.nets import mlp
from validation.programs import adam, fit, sgd
from validation.tasks import token_loss

zoo = Zoo("loop", half="usual", proof=learns())
NO_GRADIENT = {*IDLE, "VANISHING", "DEAD"}
adamw = torch.optim.AdamW


def adam_of(parameters: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=rate)


# --- detached


class Cut(Forecast):
    """The last state is taken by `.data`, to keep memory small."""

    def __init__(self, cut: bool) -> None:
        super().__init__(8)
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        state = self.gru(x)[1][-1]
        return self.fc(state.data if self.cut else state)


class Chosen(nn.Module):
    """Points are weighed by a score; the weights are a softmax, or the one of the best point, by `argmax`."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.hard = hard
        self.score, self.value, self.head = mlp([3, 24, 8]), nn.Linear(3, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        s = 3 * self.score(x)
        w = F.one_hot(s.argmax(dim=1), x.shape[1]).float().transpose(1, 2) if self.hard else s.softmax(dim=1)
        return self.head((w * self.value(x)).sum(dim=1))


class OneSided(Pairs):
    """The right tower is detached, as it is where it follows the left one; here it does not."""

    def __init__(self, cut: bool) -> None:
        super().__init__(code=6)
        self.cut = cut

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        right = F.normalize(self.right(b), dim=1)
        right = right.detach() if self.cut else right
        return self.warmth.exp() * F.normalize(self.left(a), dim=1) @ right.T


for sound, name, build, layer in (
    (
        "weather-state-as-it-is",
        "weather-state-by-data",
        lambda s, fault: study(m := Cut(fault), weather(s), adam(m, 2e-2), F.mse_loss, 120),
        ("gru",),
    ),
    (
        "stones-points-weighed-softly",
        "stones-points-chosen-by-argmax",
        lambda s, fault: study(m := Chosen(fault), stones(s), adam(m, 8e-3), steps=120),
        ("score.0", "score.2"),
    ),
    (
        "quotes-both-towers-learn",
        "quotes-right-tower-detached",
        lambda s, fault: study(m := OneSided(fault), quotes(s), adam(m, 4e-3), steps=100),
        ("right.0", "right.2"),
    ),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(facts.ungiven(*{part.split(".")[0] for part in layer})),
        *CUT,
        "never_moves",
        layer=layer,
        also=NO_GRADIENT,
    )

# --- not in the optimizer


def head_only(seed: int, fault: bool) -> Program:
    """`model.fc.parameters()`, as in the tutorial on transfer; the body was never trained."""
    model = SmallResNet()
    return study(model, birds(seed), adam(model.fc if fault else model, 4e-3), steps=50)


def later_part(seed: int, fault: bool) -> Program:
    """The head is put in after the optimizer was made."""
    model = Corners(8)
    model.out = nn.Identity()
    optimizer = adam(model, 6e-3)
    model.out = mlp([8, 24, 4])
    if not fault:
        optimizer.add_param_group({"params": list(model.out.parameters())})
    return study(model, streets(seed), optimizer, token_loss, 90)


BODY = ("stem", "bn", "layer1", "layer2")
zoo.beside(
    "birds-all-layers-given",
    "birds-only-the-head-given",
    head_only,
    harmed(all_of(facts.held_by_none(*BODY), facts.unmoved(*BODY))),
    *UNHELD,
    "never_moves",
    layer=(
        "stem",
        *(f"layer{i}.{part}" for i in (1, 2) for part in ("conv1", "conv2", "short")),
    ),
    also=IDLE,
)
zoo.beside(
    "streets-later-head-added-to-the-optimizer",
    "streets-later-head-not-in-the-optimizer",
    later_part,
    harmed(all_of(facts.held_by_none("out"), facts.unmoved("out")), worse=1.2),
    *UNHELD,
    "never_moves",
    "replaced_parameters",
    layer=("out.0", "out.2"),
    also=IDLE,
)

# --- an optimizer of something else, or of what was there before


def folds(seed: int, fault: bool) -> Program:
    """A new model for the second fold; the optimizer is made above the loop over folds."""
    first = PointNet()
    optimizer = adam(first, 4e-3)
    fit(first, stones(seed + 1), optimizer, 10).run()
    model = PointNet()
    return study(model, stones(seed), optimizer if fault else adam(model, 4e-3), steps=80)


def new_head(seed: int, fault: bool) -> Program:
    """A trained network gets a new head for other words; the optimizer was made before."""
    model = Reader()
    fit(model, posts(seed, kinds=3), adam(model, 1e-2), 30).run()
    model.zero_grad(set_to_none=True)
    optimizer = adam(model, 6e-3) if fault else None
    model.fc = mlp([20, 32, 4])
    return study(model, posts(seed), optimizer or adam(model, 6e-3), steps=90)


def more_words(seed: int, fault: bool) -> Program:
    """The tables grow for new words after the optimizer was made: they are new parameters."""
    model = DeepFm(40)
    optimizer = adam(model, 1e-2) if fault else None
    model.vectors, model.line = nn.Embedding(61, 8), nn.Embedding(61, 1)
    nn.init.normal_(model.vectors.weight, std=0.3)
    nn.init.zeros_(model.line.weight)
    return study(model, adverts(seed), optimizer or adam(model, 1e-2), bce, 80)


zoo.beside(
    "stones-optimizer-for-each-fold",
    "stones-optimizer-of-the-first-fold",
    folds,
    harmed(facts.strangers),
    *FOREIGN,
    "not_in_optimizer",
    "never_moves",
    also={*IDLE, "detached"},
)
zoo.beside(
    "adverts-tables-grown-then-optimizer",
    "adverts-optimizer-then-tables-grown",
    more_words,
    harmed(all_of(facts.strangers, facts.held_by_none("vectors", "line"))),
    *REPLACED,
    "never_moves",
    "foreign_optimizer",
    layer=("vectors", "line"),
    also=IDLE,
)
zoo.beside(
    "posts-new-head-then-optimizer",
    "posts-optimizer-then-new-head",
    new_head,
    harmed(all_of(facts.strangers, facts.held_by_none("fc")), worse=1.2),
    *REPLACED,
    "never_moves",
    "foreign_optimizer",
    layer=("fc.0", "fc.2", "fc"),
    also=IDLE,
)

# --- held, and yet it does not move


def pruned(seed: int, fault: bool) -> Program:
    """Small weights are to rest, three in ten; the share was given in percent and cut to one."""
    model = mlp([8, 40, 40, 1], nn.GELU)
    share = min(1.0, 30 if fault else 0.3)
    masks = {p: (p.abs() > p.abs().quantile(share)).float() for p in model[2].parameters()}
    masks |= {p: (p.abs() > p.abs().quantile(share)).float() for p in model[0].parameters()}

    def hold(_: int) -> None:
        for p, mask in masks.items():
            p.grad *= mask

    return study(model, cars(seed), adam(model, 6e-3), F.mse_loss, 80, ready=hold)


def by_depth(seed: int, fault: bool) -> Program:
    """Rates that fall by depth, by a factor of 0.8; it was read as a whole number."""
    model = PlainConv()
    factor = int(0.8) if fault else 0.8
    parts = [model.fc2, model.fc1, model.body]
    groups = [{"params": list(part.parameters()), "lr": 4e-3 * factor**i} for i, part in enumerate(parts)]
    return study(model, birds(seed), torch.optim.Adam(groups, lr=4e-3), steps=60)


zoo.beside(
    "cars-three-weights-in-ten-rest",
    "cars-all-masked-weights-rest",
    pruned,
    harmed(facts.unmoved("0", "2")),
    *STILL,
    "zero_grad_before_step",
    "frozen",
    layer=("0", "2"),
    also={*NO_GRADIENT, "detached"},
)
zoo.beside(
    "nests-rates-fall-by-depth",
    "nests-rates-by-depth-are-zero",
    by_depth,
    harmed(facts.unmoved("body", "fc1")),
    *STILL,
    "zero_rate",
    layer=("body.0", "body.3", "fc1"),
    also=IDLE,
)

# --- decay alone


def two_tasks(seed: int, fault: bool) -> Program:
    """Two heads and two losses; the weight of the second was read as a whole number."""
    model = nn.ModuleDict({"body": mlp([8, 40, 40], nn.GELU), "price": nn.Linear(40, 1), "time": mlp([40, 24, 1])})
    weight = int(0.5) if fault else 0.5
    task = cars(seed)
    aside = task.aside()

    def parts(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, y = batch
        h = F.gelu(model["body"](x))
        return F.mse_loss(model["price"](h), y), F.mse_loss(model["time"](h), 1 + torch.sin(x[:, 2:3] + x[:, 3:4]))

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        first, second = parts(batch)
        return first + weight * second

    def score() -> float:
        with torch.no_grad():
            return sum(parts(aside)).item()

    optimizer = adamw(model.parameters(), lr=6e-3, weight_decay=0.05)
    return study(model, task, optimizer, steps=90, loss_of=loss_of, score=score)


zoo.beside(
    "cars-second-head-counts-a-half",
    "cars-second-head-counts-nothing",
    two_tasks,
    harmed(facts.shrinks("time")),
    "only_decay",
    "DISCONNECTED",
    "DEAD",
    "never_moves",
    "detached",
    layer=("time.0", "time.2"),
    also=NO_GRADIENT,
)

# --- adapters


class Lora(nn.Module):
    """A frozen layer with a change of low rank; the first factor is drawn, or zero like the second."""

    def __init__(self, base: nn.Linear, zero: bool, rank: int = 8) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.zeros(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        if not zero:
            nn.init.kaiming_uniform_(self.lora_a, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * x @ self.lora_a.T @ self.lora_b.T


PLACES = ("qkv", "proj", "up", "down")
LORAS = tuple(f"blocks.0.{place}" for place in PLACES)


def adapted(seed: int, zero: bool, closed: bool) -> Program:
    """A model of other texts gets adapters; the norms learn as well."""
    model = Gpt()
    fit(model, letters(seed + 5), adam(model, 5e-3), 40, token_loss).run()
    model.zero_grad(set_to_none=True)
    model.requires_grad_(False)
    for place in PLACES:
        setattr(model.blocks[0], place, Lora(getattr(model.blocks[0], place), zero))
    if closed:
        model.requires_grad_(False)
    model.norm.requires_grad_(True)
    optimizer = adamw([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
    return study(model, letters(seed), optimizer, token_loss, 60)


zoo.beside(
    "letters-adapters-one-factor-drawn",
    "letters-adapters-both-factors-zero",
    lambda s, fault: adapted(s, fault, False),
    harmed(facts.unmoved(*(f"{path}.lora_{part}" for path in LORAS for part in "ab"))),
    *LORA_IDLE,
    layer=LORAS,
    also={*NO_GRADIENT, "detached"},
)
zoo.beside(
    "letters-adapters-after-freezing",
    "letters-adapters-before-freezing",
    lambda s, fault: adapted(s, False, fault),
    harmed(facts.resting("lora_a", "lora_b")),
    *LORA_FROZEN,
    layer=LORAS,
    also=NO_GRADIENT,
)

# --- layers that the model does not know


class InForward(nn.Module):
    """A layer whose width comes from the data is made in every forward, or once."""

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.conv, self.anew = nn.Conv2d(3, 8, 3, padding=1), anew
        self.fc = None if anew else nn.Linear(200, 24)
        self.out = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)
        fc = nn.Linear(h.shape[1], 24) if self.fc is None else self.fc
        return self.out(F.relu(fc(h)))


class Listed(nn.Module):
    """Tables of vectors for people and things in a list of Python, or of torch, and a bias for each row."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        tables = [nn.Embedding(61, 4) for _ in range(2)]
        self.tables = tables if hidden else nn.ModuleList(tables)
        self.line = nn.Embedding(61, 1)
        for table in (*tables, self.line):
            nn.init.normal_(table.weight, std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        a, b = (table(x[:, i]) for i, table in enumerate(self.tables))
        return (a * b).sum(dim=1) + self.line(x).sum(dim=(1, 2))


def fewer(than: int):
    def fact(played: Played) -> tuple[bool, str]:
        return len(played.distance) < than, f"the model knows {len(played.distance)} tensors"

    return fact


for sound, name, make, task_of, loss, steps, count, also in (
    (
        "birds-layer-made-once",
        "birds-layer-made-in-forward",
        InForward,
        birds,
        F.cross_entropy,
        80,
        6,
        {"loss_stuck", "batch_size"},
    ),
    ("adverts-tables-in-module-list", "adverts-tables-in-list", Listed, adverts, bce, 160, 3, {"first_loss_high"}),
):
    zoo.beside(
        sound,
        name,
        lambda s, fault, m=make, t=task_of, o=loss, k=steps: study(
            n := m(fault), t(s), adam(n, 1e-2 if k < 100 else 2e-2), o, k
        ),
        harmed(fewer(count)),
        "hidden_layers",
        "not_in_optimizer",
        also={*IDLE, *also},
    )

# --- frozen


def extracting(seed: int, fault: bool) -> Program:
    """`feature_extracting=True` was left in the settings, and nothing was loaded."""
    model = PlainConv()
    if fault:
        for name, p in model.named_parameters():
            p.requires_grad = name.startswith("fc2")
    return study(model, birds(seed), adam_of([p for p in model.parameters() if p.requires_grad], 4e-3), steps=60)


def kept_still(seed: int, fault: bool) -> Program:
    """The encoder is trained alone, then frozen for the decoder; it is frozen before it is trained."""
    model, task, loss = KINDS["tiles"](seed)
    if fault:
        model.encoder.requires_grad_(False)
    return study(model, task, adam_of([p for p in model.parameters() if p.requires_grad], 5e-3), loss, 70)


zoo.beside(
    "nests-all-layers-free",
    "nests-features-frozen-and-nothing-loaded",
    extracting,
    harmed(facts.resting("body", "fc1")),
    *FREEZE,
    "never_moves",
    layer=("body.0", "body.3", "fc1"),
    also=NO_GRADIENT,
)
zoo.beside(
    "tiles-encoder-free",
    "tiles-encoder-frozen-before-it-learned",
    kept_still,
    harmed(facts.resting("encoder")),
    *FREEZE,
    "never_moves",
    layer=("encoder.0", "encoder.3"),
    also={*NO_GRADIENT, "BOTTLENECK", "LOW_RANK"},
)

# --- healthy: parts that rest, follow, or learn in their own way


def trained(make: Callable[[], nn.Module], task: Any, loss: Callable[..., Tensor] = F.cross_entropy, steps: int = 40):
    model = make()
    fit(model, task, adam(model, 5e-3), steps, loss).run()
    model.zero_grad(set_to_none=True)
    return model


def new_classes(seed: int) -> Program:
    """A trained body rests but for the means of its norms, a new head learns."""
    model = trained(SmallResNet, birds(seed + 2))
    model.requires_grad_(False)
    model.fc = nn.Linear(16, 5)
    model.train()
    return study(model, birds(seed), adam(model.fc, 2e-2), steps=60)


def small_rate_for_the_body(seed: int) -> Program:
    model = trained(lambda: Reader(), posts(seed + 2))
    rest = [p for n, p in model.named_parameters() if "fc" not in n]
    groups = [{"params": rest, "lr": 3e-3}, {"params": model.fc.parameters(), "lr": 1e-2}]
    return study(model, posts(seed), adamw(groups), steps=80)


def distilled(seed: int) -> Program:
    """A small student learns from soft answers of a trained teacher."""
    teacher = trained(lambda: PointNet(40), stones(seed), steps=80).eval()
    student = PointNet(20)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            goal = (teacher(batch[0]) / 2).softmax(dim=1)
        out = student(batch[0])
        return F.cross_entropy(out / 2, goal) + 0.5 * F.cross_entropy(out, batch[1])

    return study(student, stones(seed), adam(student, 6e-3), steps=80, loss_of=loss_of)


def followed(seed: int) -> Program:
    """The goals come from a fixed network that was drawn once, as in distillation of a random network."""
    model = nn.ModuleDict({"net": mlp([18, 32, 8], nn.GELU), "guess": nn.Linear(8, 8)})
    goals = mlp([18, 32, 8], nn.GELU).requires_grad_(False)
    task = quotes(seed)
    aside = task.aside()[0]

    def loss_of(batch: Any) -> Tensor:
        (a, b), _ = batch
        with torch.no_grad():
            goal = F.normalize(goals(b), dim=1)
        return 2 - 2 * (F.normalize(model["guess"](model["net"](a)), dim=1) * goal).sum(dim=1).mean()

    def score() -> float:
        with torch.no_grad():
            return loss_of((aside, None)).item()

    return study(model, task, adam(model, 5e-3), steps=80, loss_of=loss_of, score=score)


def shared_words(seed: int) -> Program:
    """Words of the source and of the target share one table."""
    model = Rewriter()
    model.source = nn.Embedding(11, 32)
    model.target = model.source
    return study(model, dates(seed), adam(model, 4e-3), token_loss, 60)


def no_decay_for_some(seed: int) -> Program:
    model = Gpt(p=0.1)
    many = [p for p in model.parameters() if p.dim() >= 2]
    few = [p for p in model.parameters() if p.dim() < 2]
    optimizer = adamw([{"params": many, "weight_decay": 0.1}, {"params": few, "weight_decay": 0.0}], lr=4e-3)
    return study(model, letters(seed), optimizer, token_loss, 70, clip=1.0)


def head_first(seed: int) -> Program:
    """The head learns alone for fifteen steps, then all of a trained network."""
    model = trained(PlainConv, birds(seed + 2), steps=25)
    model.body.requires_grad_(False)

    def thaw(step: int) -> None:
        if step == 15:
            model.body.requires_grad_(True)

    return study(model, birds(seed), adam(model, 3e-3), steps=60, before=thaw)


def fixed_waves(seed: int) -> Program:
    """Random Fourier features that rest, and two layers that learn."""
    waves = nn.Linear(8, 48).requires_grad_(False)
    model = nn.ModuleDict({"waves": waves, "deep": mlp([56, 40, 1])})

    def out(x: Tensor) -> Tensor:
        return model["deep"](torch.cat([x, torch.cos(2 * model["waves"](x))], dim=1))

    task = cars(seed)
    x, y = task.aside()

    def score() -> float:
        with torch.no_grad():
            return F.mse_loss(out(x), y).item()

    loss_of = lambda batch: F.mse_loss(out(batch[0]), batch[1])  # noqa: E731
    return study(model, task, adam_of(model["deep"].parameters(), 5e-3), steps=80, loss_of=loss_of, score=score)


class Gated(nn.Module):
    """Blocks beside shortcuts whose gates begin at zero: the blocks learn a little later."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(8, 32), nn.Linear(32, 1)
        self.blocks = nn.ModuleList(mlp([32, 48, 32], nn.GELU) for _ in range(3))
        self.gates = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.enter(x))
        for gate, block in zip(self.gates, self.blocks, strict=True):
            h = h + gate * block(h)
        return self.out(h)


def bits_only(seed: int) -> Program:
    """Of a trained decoder only biases and norms learn."""
    model = trained(Gpt, letters(seed + 5), token_loss)
    for name, p in model.named_parameters():
        p.requires_grad = p.dim() == 1 or "words" in name
    return study(
        model, letters(seed), adam_of([p for p in model.parameters() if p.requires_grad], 1e-2), token_loss, 60
    )


def sparse_rows(seed: int) -> Program:
    """Sparse gradients for the tables, under an Adam of their own."""
    model = DeepFm()
    model.vectors, model.line = nn.Embedding(61, 8, sparse=True), nn.Embedding(61, 1, sparse=True)
    for table, std in ((model.vectors, 0.3), (model.line, 0.01)):
        nn.init.normal_(table.weight, std=std)
    tables = torch.optim.SparseAdam([model.vectors.weight, model.line.weight], lr=1e-2)
    rest, losses, task = adam(model.deep, 1e-2), [], adverts(seed)
    x, y = adverts(seed, batch=256).aside()

    def run() -> None:
        for _, (a, b) in zip(range(80), task, strict=False):
            tables.zero_grad()
            rest.zero_grad()
            loss = bce(model(a), b)
            loss.backward()
            tables.step()
            rest.step()
            losses.append(loss.item())

    def score() -> float:
        with torch.no_grad():
            return bce(model(x), y).item()

    return Program(model=model, optimizer=[tables, rest], run=run, losses=losses, score=score)


def slow_copy(seed: int) -> Program:
    """A Q-network with a copy that is brought up to date every ten steps."""
    model, task = mlp([8, 40, 1], nn.GELU), cars(seed)
    goal = copy.deepcopy(model).requires_grad_(False)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        with torch.no_grad():
            later = y + 0.3 * goal(x) - 0.3 * y
        return F.smooth_l1_loss(model(x), later)

    def copy_over(step: int) -> None:
        if step % 10 == 9:
            goal.load_state_dict(model.state_dict())

    return study(model, task, adam(model, 8e-3), F.mse_loss, 100, loss_of=loss_of, after=copy_over)


for name, build in (
    ("birds-new-head-on-a-body-that-rests", new_classes),
    ("posts-small-rate-for-the-body", small_rate_for_the_body),
    ("stones-student-of-a-teacher", distilled),
    ("quotes-goals-of-a-fixed-network", followed),
    ("dates-one-table-for-both", shared_words),
    ("letters-no-decay-for-some", no_decay_for_some),
    ("nests-head-first", head_first),
    ("cars-waves-that-rest", fixed_waves),
    ("cars-gates-begin-at-zero", lambda s: study(m := Gated(), cars(s), adam(m, 5e-3), F.mse_loss, 80)),
    ("letters-biases-norms-and-words", bits_only),
    ("adverts-sparse-tables", sparse_rows),
    ("cars-goals-of-a-slow-copy", slow_copy),
    (
        "weather-sgd-clip-0.5",
        lambda s: study(m := Forecast(), weather(s), sgd(m, 0.1, momentum=0.9), F.mse_loss, 80, clip=0.5),
    ),
):
    zoo.healthy(f"usual-{name}", build)
