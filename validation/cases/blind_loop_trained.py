# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Scripts that do not train all they are meant to train, and their repaired twins.

Half: blind.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from validation.case import Program, Zoo
from validation.cases._blind_tasks import (
    gratings,
    orders,
    plants,
    reversals,
    reviews,
    rhymes,
    spectra,
    states,
    tides,
    tones,
)
from validation.evidence import loops as facts
from validation.evidence.loops import all_of, broken, learns
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA_FROZEN, REPLACED, STILL, UNHELD
from validation.nets import mlp
from validation.programs import adam, fit, held_out, learn, train_step
from validation.tasks import Task, token_loss

zoo = Zoo("loop", half="blind", proof=learns())


@dataclass
class Arguments:
    """What a script reads from its command line."""

    learning_rate: float = 3e-3
    max_steps: int = 70
    weight_decay: float = 0.0
    warmup_steps: int = 0
    max_grad_norm: float | None = None


class Trainer:
    """A trainer of one's own, in the manner of a hub's: arguments, a loss of its own, a method per step."""

    def __init__(self, model: nn.Module, args: Arguments, task: Task, loss: Callable[..., Tensor]) -> None:
        self.model, self.args, self.task, self.loss = model, args, task, loss
        self.optimizer = self.create_optimizer()
        self.log: list[float] = []

    def create_optimizer(self) -> torch.optim.Optimizer:
        args = self.args
        return torch.optim.AdamW(self.model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay)

    def compute_loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.model(x), y)

    def training_step(self, x: Tensor, y: Tensor) -> Tensor:
        self.model.train()
        loss = self.compute_loss(x, y)
        loss.backward()
        if self.args.max_grad_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train(self) -> None:
        for (x, y), _ in zip(self.task, range(self.args.max_steps), strict=False):
            self.log.append(self.training_step(x, y).item())

    def program(self, model: nn.Module | None = None) -> Program:
        model = model or self.model
        score = held_out(model, self.task, self.loss)
        return Program(model=model, optimizer=self.optimizer, run=self.train, losses=self.log, score=score)


# --- cut off


class Classifier(nn.Module):
    """A sound model with a method for its features, which was written for the search index."""

    def __init__(self, indexed: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(3, 20, 9, 2), nn.GELU(), nn.Conv1d(20, 24, 5, 2), nn.GELU())
        self.classifier, self.indexed = nn.Linear(24, 6), indexed

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        return self.encoder(x).amax(dim=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x) if self.indexed else self.encoder(x).amax(dim=2))


def sounds(seed: int, indexed: bool) -> Program:
    return Trainer(Classifier(indexed), Arguments(max_steps=60), tones(seed), F.cross_entropy).program()


own_features = zoo.healthy("trainer-features-in-the-graph", lambda s: sounds(s, False))
zoo.sick(
    "trainer-features-by-the-method-for-the-index",
    lambda s: sounds(s, True),
    broken(facts.ungiven("encoder"), less=0.9),
    *CUT,
    layer=("encoder.0", "encoder.2"),
    also=IDLE,
    control=own_features,
)


class TwoTowers(nn.Module):
    """Users and goods meet in a product; one side may be taken out of the graph, as a cached index is."""

    def __init__(self, cached: bool) -> None:
        super().__init__()
        self.users, self.goods, self.cached = nn.Embedding(30, 16), nn.Embedding(40, 16), cached
        self.user_tower, self.good_tower = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, user: Tensor, good: Tensor) -> Tensor:
        u, v = self.user_tower(self.users(user)), self.good_tower(self.goods(good))
        return (u * (v.detach() if self.cached else v)).mean(dim=1)


def towers(seed: int, cached: bool) -> Program:
    model = TwoTowers(cached)
    return fit(model, orders(seed), adam(model, 1e-2), 100, F.mse_loss)


both_towers = zoo.healthy("towers-both-learn", lambda s: towers(s, False))
zoo.sick(
    "towers-one-side-from-the-cache",
    lambda s: towers(s, True),
    broken(facts.ungiven("goods", "good_tower")),
    *CUT,
    layer=("good_tower", "goods"),
    also=IDLE,
    control=both_towers,
)


class Generator(nn.Module):
    """Says a row token by token and reads its own words back, as logits or as the words themselves."""

    def __init__(self, spoken: bool) -> None:
        super().__init__()
        self.draft = nn.Sequential(nn.Embedding(12, 24), nn.Linear(24, 48), nn.SiLU(), nn.Linear(48, 12))
        self.reads, self.spoken = nn.Linear(12, 24, bias=False), spoken
        self.rnn, self.out = nn.GRU(24, 32, batch_first=True), nn.Linear(32, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        said = self.draft(tokens)
        said = F.one_hot(said.argmax(dim=-1), 12).float() if self.spoken else said.softmax(dim=-1)
        return self.out(self.rnn(self.reads(said))[0])


def rhymed(seed: int, spoken: bool) -> Program:
    model = Generator(spoken)
    return fit(model, rhymes(seed), adam(model, 1e-2), 80, token_loss)


soft_draft = zoo.healthy("draft-read-as-probabilities", lambda s: rhymed(s, False))
zoo.sick(
    "draft-read-as-words",
    lambda s: rhymed(s, True),
    broken(facts.ungiven("draft")),
    *CUT,
    layer=("draft.3", "draft.1", "draft.0"),
    also=IDLE,
    control=soft_draft,
)

# --- not in the optimizer


class Tagged(nn.Module):
    """A table, a recurrent layer and a head, as a script names them."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(40, 24)
        self.encoder, self.head = nn.GRU(24, 32, batch_first=True), nn.Linear(32, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embeddings(tokens))[0].mean(dim=1))


class Grouped(Trainer):
    """Weights with decay, biases without it; `names` says what a weight's name begins with."""

    names: tuple[str, ...] = ("encoder", "head", "embeddings")

    def create_optimizer(self) -> torch.optim.Optimizer:
        named = [(n, p) for n, p in self.model.named_parameters() if n.startswith(self.names)]
        groups = [
            {"params": [p for n, p in named if "bias" not in n], "weight_decay": 0.01},
            {"params": [p for n, p in named if "bias" in n], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.args.learning_rate)


class Forgetful(Grouped):
    """The table has another name than in the model that the list is from."""

    names = ("encoder", "head", "embedding_layer", "word_embeddings")


def grouped(seed: int, kind: type[Grouped]) -> Program:
    return kind(Tagged(), Arguments(learning_rate=5e-3), reviews(seed), F.cross_entropy).program()


all_names = zoo.healthy("groups-name-all-parts", lambda s: grouped(s, Grouped))
zoo.sick(
    "groups-name-a-table-of-another-model",
    lambda s: grouped(s, Forgetful),
    broken(facts.held_by_none("embeddings")),
    *UNHELD,
    layer="embeddings",
    also=IDLE,
    control=all_names,
)


class Adaptive(nn.Module):
    """Mixes tasks by learned weights of their losses, which live beside the net."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = mlp([14, 48, 48], nn.SiLU), nn.ModuleList(nn.Linear(48, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return torch.cat([head(h) for head in self.heads], dim=1)


def tasks(seed: int, all_heads: bool) -> Program:
    """The heads are listed by hand; the third was added last month."""
    model = Adaptive()
    listed = [*model.body.parameters(), *model.heads[0].parameters(), *model.heads[1].parameters()]
    listed += [*model.heads[2].parameters()] if all_heads else []
    return fit(model, plants(seed, out=3), torch.optim.RMSprop(listed, lr=2e-3), 80, F.mse_loss)


three_heads = zoo.healthy("three-heads-listed", lambda s: tasks(s, True))
zoo.sick(
    "third-head-not-listed",
    lambda s: tasks(s, False),
    broken(facts.held_by_none("heads.2")),
    *UNHELD,
    layer="heads.2",
    also=IDLE,
    control=three_heads,
)

# --- an optimizer of something else


class Copied(Trainer):
    """Works on a copy of the model, to leave the caller's alone; the optimizer came from the caller."""

    def __init__(self, model: nn.Module, args: Arguments, task: Task, loss: Callable[..., Tensor], own: bool) -> None:
        super().__init__(model, args, task, loss)
        self.model = copy.deepcopy(model)
        if own:
            self.optimizer = self.create_optimizer()


def trainer_copies(seed: int, own: bool) -> Program:
    return Copied(mlp([18, 48, 48, 7], nn.GELU), Arguments(), states(seed), F.cross_entropy, own).program()


own_optimizer = zoo.healthy("trainer-copies-then-makes-its-optimizer", lambda s: trainer_copies(s, True))
zoo.sick(
    "trainer-copies-with-the-caller's-optimizer",
    lambda s: trainer_copies(s, False),
    broken(facts.strangers, less=0.01),
    *FOREIGN,
    also={*IDLE, "not_in_optimizer"},
    control=own_optimizer,
)


def reparametrised(seed: int, before: bool) -> Program:
    """The weights of all layers become a direction and a length, before or after the optimizer is made."""
    model = nn.Sequential(nn.Conv2d(3, 20, 3, 2), nn.ReLU(), nn.Conv2d(20, 24, 3), nn.ReLU(), nn.Flatten())
    model.append(nn.Linear(24 * 4, 6))
    optimizer = None if before else adam(model, 2e-3)
    for i in (0, 2, 5):
        weight_norm(model[i])
    return fit(model, gratings(seed), optimizer or adam(model, 2e-3), 60)


lengths_first = zoo.healthy("weights-split-then-optimizer", lambda s: reparametrised(s, True))
zoo.sick(
    "optimizer-then-weights-split",
    lambda s: reparametrised(s, False),
    broken(all_of(facts.strangers, facts.held_by_none(*(f"{i}.parametrizations" for i in (0, 2, 5)))), less=0.5),
    *REPLACED,
    "foreign_optimizer",
    also=IDLE,
    control=lengths_first,
)

# --- in the optimizer, and yet


def layerwise(seed: int, decay: float) -> Program:
    """The rate falls from layer to layer towards the input, by a factor that was meant for each block of twelve."""
    model, lr = mlp([40, 48, 48, 48, 40], nn.GELU), 3e-3
    layers = [m for m in model if isinstance(m, nn.Linear)]
    groups = [{"params": m.parameters(), "lr": lr * decay ** (len(layers) - 1 - i)} for i, m in enumerate(layers)]
    return fit(model, spectra(seed), torch.optim.Adam(groups, lr=lr), 80, F.mse_loss)


gently = zoo.healthy("rate-falls-by-0.8-per-layer", lambda s: layerwise(s, 0.8))
zoo.sick(
    "rate-falls-by-a-millionth-per-layer",
    lambda s: layerwise(s, 1e-6),
    broken(facts.unmoved("0", "2")),
    *STILL,
    "zero_rate",
    "rate_too_low",
    layer=("0", "2"),
    also=IDLE,
    control=gently,
)


class Auxiliary(nn.Module):
    """A second head that guesses what the first layer saw; its loss is weighed by a setting."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.second = mlp([18, 48, 48], nn.SiLU), nn.Linear(48, 7), nn.Linear(48, 18)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.silu(self.body(x))
        return self.head(h), self.second(h), x


def auxiliary(seed: int, weight: float) -> Program:
    model = Auxiliary()

    def loss(out: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
        return F.cross_entropy(out[0], y) + weight * F.mse_loss(out[1], out[2])

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    return fit(model, states(seed), optimizer, 70, loss, lambda out, y: F.cross_entropy(out[0], y))


with_second = zoo.healthy("second-head-weighs-0.2", lambda s: auxiliary(s, 0.2))
zoo.sick(
    "second-head-weighs-nothing",
    lambda s: auxiliary(s, 0.0),
    broken(facts.shrinks("second")),
    "only_decay",
    "never_moves",
    "DISCONNECTED",
    layer="second",
    also={*IDLE, "DEAD", "detached"},
    control=with_second,
)

# --- frozen, not registered


class Adapter(nn.Module):
    """A layer from elsewhere with a low-rank change beside it."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.adapter_a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.adapter_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * F.linear(F.linear(x, self.adapter_a), self.adapter_b)


def mark_trainable(model: nn.Module, word: str) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad = word in name or name.startswith("4.")


def adapted(seed: int, word: str) -> Program:
    """Only what bears a certain word in its name is trained, and the head."""
    model = nn.Sequential(
        Adapter(nn.Linear(18, 48)), nn.GELU(), Adapter(nn.Linear(48, 48)), nn.GELU(), nn.Linear(48, 7)
    )
    mark_trainable(model, word)
    trained = [p for p in model.parameters() if p.requires_grad]
    return fit(model, states(seed), torch.optim.AdamW(trained, lr=3e-3, weight_decay=0.0), 60)


adapters = zoo.healthy("adapters-by-their-word", lambda s: adapted(s, "adapter_"))
zoo.sick(
    "adapters-by-another-library's-word",
    lambda s: adapted(s, "lora_"),
    broken(facts.resting("adapter_")),
    *LORA_FROZEN,
    layer=("0", "2"),
    also=IDLE,
    control=adapters,
)


class Staged(nn.Module):
    """A backbone and a head for scripts that freeze the first for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv1d(3, 16, 9, 2), nn.ReLU(), nn.Conv1d(16, 24, 5, 2), nn.ReLU())
        self.head = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x).mean(dim=2))


def thawing(seed: int, epoch_of_thaw: object) -> Program:
    """The setting is text, and no number is equal to a text."""
    model, task, losses = Staged(), tones(seed), []
    model.backbone.requires_grad_(False)
    optimizer = adam(model, 5e-3)

    def run() -> None:
        batches = iter(task)
        for epoch in range(6):
            if epoch == epoch_of_thaw:
                model.backbone.requires_grad_(True)
            for _ in range(15):
                x, y = next(batches)
                losses.append(train_step(model, optimizer, x, y))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


thawed = zoo.healthy("backbone-thawed-in-epoch-1", lambda s: thawing(s, 1))
zoo.sick(
    "backbone-thawed-in-epoch-'1'",
    lambda s: thawing(s, "1"),
    broken(facts.resting("backbone"), less=0.9),
    *FREEZE,
    layer=("backbone.0", "backbone.2"),
    also=IDLE,
    control=thawed,
)


class Branches(nn.Module):
    """A branch per kind of input, in a dictionary of Python's or of torch's."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        branches = {name: mlp([20, 32, 16], nn.SiLU) for name in ("low", "high")}
        self.branches = nn.ModuleDict(branches) if registered else branches
        self.out = nn.Linear(32, 40)

    def forward(self, x: Tensor) -> Tensor:
        low, high = x.chunk(2, dim=1)
        return self.out(F.silu(torch.cat([self.branches["low"](low), self.branches["high"](high)], dim=1)))


def branched(seed: int, registered: bool) -> Program:
    model = Branches(registered)
    return fit(model, spectra(seed), adam(model, 5e-3), 80, F.mse_loss)


registered = zoo.healthy("branches-in-a-dictionary-of-modules", lambda s: branched(s, True))
zoo.sick(
    "branches-in-a-plain-dictionary",
    lambda s: branched(s, False),
    broken(lambda p: (len(p.trainable) == 2, f"{len(p.trainable)} tensors are registered"), less=0.9),
    "hidden_layers",
    control=registered,
)

# --- look alike and are right


def distilled(seed: int) -> Program:
    """A frozen teacher inside of the model, whose answers the student learns at a temperature."""
    teacher = mlp([18, 32, 7], nn.Tanh).requires_grad_(False)
    teacher[2].weight.mul_(8)
    model = nn.ModuleDict({"teacher": teacher, "student": mlp([18, 48, 7], nn.GELU)})
    task = states(seed)
    optimizer = torch.optim.Adam(model["student"].parameters(), lr=5e-3)

    def gap(x: Tensor) -> Tensor:
        p = (model["teacher"](x) / 2).softmax(dim=1)
        return F.kl_div((model["student"](x) / 2).log_softmax(dim=1), p, reduction="batchmean") * 4

    aside = task.aside()[0]
    return learn(model, optimizer, task, lambda x, _: gap(x), lambda: gap(aside).item(), 80)


zoo.healthy("student-of-a-frozen-teacher", distilled)


def follows(seed: int) -> Program:
    """A slow copy follows by a moving mean, and is scored; no gradient ever reaches it."""
    model = nn.ModuleDict({"net": mlp([14, 48, 48, 1], nn.SiLU)})
    model["slow"] = copy.deepcopy(model["net"]).requires_grad_(False)
    task = plants(seed)
    optimizer = torch.optim.Adam(model["net"].parameters(), lr=5e-3)

    def after(_: int) -> None:
        with torch.no_grad():
            for slow, fast in zip(model["slow"].parameters(), model["net"].parameters(), strict=True):
                slow.lerp_(fast, 0.1)

    score = held_out(model["slow"], task, F.mse_loss)
    return learn(model, optimizer, task, lambda x, y: F.mse_loss(model["net"](x), y), score, 90, after=after)


zoo.healthy("slow-copy-follows", follows)
zoo.healthy(
    "trainer-tokens-with-decay-and-limit",
    lambda s: Trainer(
        nn.Sequential(nn.Embedding(9, 24), nn.Flatten(1), mlp([192, 64, 72], nn.GELU), nn.Unflatten(1, (8, 9))),
        Arguments(learning_rate=1e-2, weight_decay=0.1, max_grad_norm=1.0, max_steps=90),
        reversals(s),
        token_loss,
    ).program(),
)


def two_rates(seed: int) -> Program:
    """A body from elsewhere at a tenth of the head's rate."""
    model = nn.ModuleDict({"body": nn.GRU(2, 24, batch_first=True), "head": nn.Linear(24, 2)})
    groups = [{"params": model["body"].parameters(), "lr": 1e-3}, {"params": model["head"].parameters()}]
    task, losses, optimizer = tides(seed), [], torch.optim.Adam(groups, lr=1e-2)

    def error(x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(model["head"](model["body"](x)[0]), y)

    def run() -> None:
        for (x, y), _ in zip(task, range(70), strict=False):
            optimizer.zero_grad(set_to_none=True)
            loss = error(x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    aside = task.aside()
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=lambda: error(*aside).item())


zoo.healthy("body-at-a-tenth-of-the-rate", two_rates)
