# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Programs that do not train all they are meant to train, after other stories, and their repaired twins.

Half: fresh.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.evidence import loops as facts
from validation.evidence.loops import Played, all_of, broken, learns
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA, REPLACED, STILL, UNHELD
from validation.nets import Lora, SequenceModel, Vision, mlp
from validation.nets.programs import Tagger
from validation.programs import adam, fit, held_out, sgd, step_from, train_step
from validation.tasks import blanks, clicks, genres, glyphs, grey, homes, loads, majority, paints, pulses, token_loss

zoo = Zoo("loop", half="fresh", proof=learns())

# --- cut off


class Captions(nn.Module):
    """Features of a picture, read by a recurrence row by row; `twice` cures an error about a second backward."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 12, 3, 1, 1), nn.SiLU())
        self.reader, self.answer, self.twice = nn.GRU(72, 24, batch_first=True), nn.Linear(24, 6), twice

    def forward(self, x: Tensor) -> Tensor:
        features = self.encoder(x)
        if self.twice:
            features = features.detach().requires_grad_()
        rows = features.transpose(1, 2).flatten(2)
        return self.answer(self.reader(rows)[0].amax(dim=1))


def captions(seed: int, twice: bool) -> Program:
    model = Captions(twice)
    return fit(model, glyphs(seed, 6), adam(model, 5e-3), 80)


captioned = zoo.healthy("captions-one-graph", lambda s: captions(s, False))
zoo.sick(
    "captions-features-made-leaves",
    lambda s: captions(s, True),
    broken(facts.ungiven("encoder")),
    *CUT,
    layer=("encoder.0", "encoder.2"),
    also=IDLE,
    control=captioned,
)


class Stem(nn.Module):
    """A first layer whose answer somebody wraps as a parameter, to look at its gradient."""

    def __init__(self, wrapped: bool) -> None:
        super().__init__()
        self.stem, self.body, self.wrapped = nn.Linear(20, 40), mlp([40, 40, 10], nn.SiLU), wrapped

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.stem(x))
        return self.body(nn.Parameter(h.data) if self.wrapped else h)


def stemmed(seed: int, wrapped: bool) -> Program:
    model = Stem(wrapped)
    return fit(model, genres(seed), sgd(model, 0.3, momentum=0.9), 60, F.binary_cross_entropy_with_logits)


stem = zoo.healthy("stem-as-it-is", lambda s: stemmed(s, False))
zoo.sick(
    "stem-wrapped-as-a-parameter",
    lambda s: stemmed(s, True),
    broken(facts.ungiven("stem")),
    *CUT,
    layer="stem",
    also=IDLE,
    control=stem,
)

# --- not in the optimizer


def by_kind(seed: int, all_of_them: bool) -> Program:
    """Parameters are collected layer by layer, by kind; those that belong to no layer are forgotten."""
    model = Vision(24, 4, 1)
    kinds = (nn.Linear, nn.LayerNorm, nn.Conv2d)
    collected = [p for m in model.modules() if isinstance(m, kinds) for p in m.parameters(recurse=False)]
    if all_of_them:
        collected += [model.token, model.position]
    return fit(model, grey(seed), torch.optim.AdamW(collected, lr=2e-3), 70)


kinds = zoo.healthy("vision-layers-and-loose-parameters", lambda s: by_kind(s, True))
zoo.sick(
    "vision-loose-parameters-forgotten",
    lambda s: by_kind(s, False),
    broken(facts.held_by_none("token", "position")),
    *UNHELD,
    layer=("token", "position"),
    also=IDLE,
    control=kinds,
)


class Body(nn.Module):
    """A body from elsewhere and a new head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 16, 7, 2), nn.ReLU(), nn.Conv1d(16, 24, 5, 2), nn.ReLU())
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).amax(dim=2))


def tuned(seed: int, whole: bool) -> Program:
    """All is to be tuned; the line with the optimizer is from the time when only the head was."""
    model = Body()
    model.requires_grad_(True)
    trained = model.parameters() if whole else model.head.parameters()
    return fit(model, pulses(seed), torch.optim.Adam(trained, lr=5e-3), 80)


whole = zoo.healthy("heartbeats-body-and-head-tuned", lambda s: tuned(s, True))
zoo.sick(
    "heartbeats-body-not-in-optimizer",
    lambda s: tuned(s, False),
    broken(facts.held_by_none("body")),
    *UNHELD,
    layer=("body.0", "body.2"),
    also=IDLE,
    control=whole,
)

# --- an optimizer of something else


def folds(seed: int, anew: bool) -> Program:
    """The second fold of a cross-validation: a new model, and the optimizer of the first unless it is made anew."""
    first = mlp([9, 40, 40, 1], nn.GELU)
    optimizer = adam(first, 5e-3)
    model = mlp([9, 40, 40, 1], nn.GELU)
    return fit(model, homes(seed), adam(model, 5e-3) if anew else optimizer, 80, F.mse_loss)


fold = zoo.healthy("second-fold-own-optimizer", lambda s: folds(s, True))
zoo.sick(
    "second-fold-optimizer-of-the-first",
    lambda s: folds(s, False),
    broken(facts.strangers, less=0.01),
    *FOREIGN,
    also={*IDLE, "not_in_optimizer"},
    control=fold,
)


def assigned(seed: int, assign: bool) -> Program:
    """A checkpoint is loaded after the optimizer is made, by assignment, which puts other tensors in."""
    model = SequenceModel(nn.GRU(1, 24, batch_first=True), 1, every_step=True)
    optimizer = adam(model, 5e-3)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=assign)
    return fit(model, loads(seed), optimizer, 60, F.mse_loss)


copied = zoo.healthy("checkpoint-copied-into-the-model", lambda s: assigned(s, False))
zoo.sick(
    "checkpoint-assigned-after-the-optimizer",
    lambda s: assigned(s, True),
    broken(all_of(facts.strangers, facts.held_by_none("rnn", "head")), less=0.01),
    *REPLACED,
    "foreign_optimizer",
    also=IDLE,
    control=copied,
)

# --- in the optimizer, and yet


class Centred(nn.Module):
    """Takes a learned level off each column; the level is kept in the unit of the data."""

    def __init__(self, level: float) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.full((9,), level))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.level


def pressures(seed: int, level: float) -> Program:
    """Pressure in pascal has no digits left for a step of a thousandth."""
    model = nn.Sequential(Centred(level), mlp([9, 40, 40, 1], nn.SiLU))
    return fit(model, homes(seed).mapped(lambda x: x + level), adam(model, 1e-3), 100, F.mse_loss)


level = zoo.healthy("level-of-one-bar", lambda s: pressures(s, 1.0))
zoo.sick(
    "level-of-101325-pascal",
    lambda s: pressures(s, 101325.0),
    broken(facts.unmoved("0")),
    *STILL,
    also={*IDLE, "rate_too_low", "input_scales", "NUMERICAL"},
    control=level,
)


class Kinds(nn.Module):
    """Words, and beside them a table of kinds of which row 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(6, 16), nn.Embedding(3, 16, padding_idx=0)
        self.body = mlp([16, 32, 6], nn.GELU)

    def forward(self, tokens: Tensor, kinds: Tensor) -> Tensor:
        return self.body((self.words(tokens) + self.kinds(kinds)).mean(dim=1))


def kinds_of(seed: int, start: int) -> Program:
    """Kinds are numbered from 1; here somebody left them all at 0."""
    model = Kinds()
    random = torch.Generator().manual_seed(seed + 30)
    task = majority(seed).mapped(lambda x: (x, start + start * torch.randint(2, x.shape, generator=random)))
    return fit(model, task, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1), 80)


numbered = zoo.healthy("kinds-numbered-from-1", lambda s: kinds_of(s, 1))
zoo.sick(
    "kinds-all-padding",
    lambda s: kinds_of(s, 0),
    broken(facts.shrinks("kinds")),
    "only_decay",
    "never_moves",
    layer="kinds",
    also={*IDLE, "DEAD"},
    control=numbered,
)


class Dropped(nn.Module):
    """A low-rank change beside a frozen layer, behind a dropout of its own."""

    def __init__(self, base: nn.Linear, p: float) -> None:
        super().__init__()
        self.inner, self.drop = Lora(base, 4), nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.base(x) + self.inner.up(self.inner.down(self.drop(x)))


def adapted(seed: int, p: float) -> Program:
    """`lora_dropout` was meant as 0.1."""
    model = nn.Sequential(
        Dropped(nn.Linear(20, 48), p), nn.GELU(), Dropped(nn.Linear(48, 48), p), nn.GELU(), nn.Linear(48, 10)
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.0)
    return fit(model, genres(seed), optimizer, 60, F.binary_cross_entropy_with_logits)


adapters = zoo.healthy("adapters-dropout-0.1", lambda s: adapted(s, 0.1))
zoo.sick(
    "adapters-dropout-1",
    lambda s: adapted(s, 1.0),
    broken(facts.unmoved("0", "2")),
    *LORA,
    "never_moves",
    layer=("0.inner.down", "0.inner.up", "2.inner.down", "2.inner.up"),
    also={*IDLE, "detached", "DEAD", "VANISHING"},
    control=adapters,
)

# --- not registered, not thawed


class Loose(nn.Module):
    """Directions in the plane of two embeddings; plain tensors are no parameters."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(100, 8), nn.Linear(24, 1)
        weight = torch.randn(40, 24) / 40**0.5
        self.mix = nn.Parameter(weight) if registered else weight.requires_grad_()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids + 20 * torch.arange(5)).flatten(1)
        return self.out(F.relu(x @ self.mix)).squeeze(1)


def loose(seed: int, registered: bool) -> Program:
    model = Loose(registered)
    return fit(model, clicks(seed), adam(model, 1e-2), 80, F.binary_cross_entropy_with_logits)


parameter = zoo.healthy("mix-as-a-parameter", lambda s: loose(s, True))
zoo.sick(
    "mix-as-a-plain-tensor",
    lambda s: loose(s, False),
    broken(lambda p: ("mix" not in p.trainable, f"{len(p.trainable)} tensors are registered")),
    "hidden_layers",
    control=parameter,
)


class Wrapped(nn.Module):
    """What a wrapper does to the names of a model's parameters."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


def encoder_rests(played: Played) -> tuple[bool, str]:
    names = [name for name in played.distance if ".enter." in name or ".rnn." in name]
    still = [name for name in names if played.distance[name] == 0]
    return len(still) == len(names) > 0, f"{len(still)} of {len(names)} tensors of the encoder never move"


def thawing(seed: int, prefix: str) -> Program:
    """The encoder is frozen for the first epoch and thawed by its name."""
    model = Wrapped(Tagger(nn.Embedding(15, 16), nn.GRU(16, 24, batch_first=True), 14, 24))
    model.module.enter.requires_grad_(False)
    model.module.rnn.requires_grad_(False)
    optimizer, task, losses = adam(model, 5e-3), blanks(seed), []

    def run() -> None:
        batches = iter(task)
        for epoch in range(5):
            if epoch == 1:
                for name, parameter in model.named_parameters():
                    if name.startswith((f"{prefix}enter.", f"{prefix}rnn.")):
                        parameter.requires_grad = True
            for _ in range(20):
                x, y = next(batches)
                loss = token_loss(model(x), y)
                losses.append(step_from(loss, optimizer))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, token_loss))


thawed = zoo.healthy("thawed-by-the-name-in-the-wrapper", lambda s: thawing(s, "module."))
zoo.sick(
    "thawed-by-the-name-without-the-wrapper",
    lambda s: thawing(s, ""),
    broken(encoder_rests, less=0.9),
    *FREEZE,
    layer=("module.enter", "module.rnn"),
    also=IDLE,
    control=thawed,
)

# --- look alike and are right


def probed(seed: int) -> Program:
    """Only the head is trained, the body is frozen and says so."""
    model = nn.Sequential(nn.Conv2d(3, 24, 3, 2), nn.SiLU(), nn.Flatten(), nn.Linear(216, 8))
    model[0].requires_grad_(False)
    return fit(model, paints(seed), torch.optim.Adam(model[3].parameters(), lr=1e-2), 60)


zoo.healthy("only-the-head-of-a-frozen-body", probed)


def joined(seed: int) -> Program:
    """A second part is added to the optimizer after some epochs, as its own group."""
    model = nn.Sequential(mlp([20, 40, 40], nn.SiLU), nn.SiLU(), nn.Linear(40, 10))
    optimizer, task, losses = torch.optim.Adam(model[2].parameters(), lr=5e-3), genres(seed), []
    loss_fn = nn.BCEWithLogitsLoss()

    def run() -> None:
        for step, (x, y) in zip(range(80), task, strict=False):
            if step == 20:
                optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 2e-3})
            losses.append(train_step(model, optimizer, x, y, loss_fn))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, loss_fn))


zoo.healthy("second-group-added-after-20-steps", joined)
