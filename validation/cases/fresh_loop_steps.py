# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Programs whose loop goes wrong, or steps too far or not far enough, after other stories; their repaired twins.

Half: fresh.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset

from validation import labels
from validation.case import Program, Zoo
from validation.evidence import loops as facts
from validation.evidence.loops import Played, broken, learns
from validation.nets import DeepSet, SequenceModel, UNet, mlp
from validation.nets.programs import Tagger
from validation.programs import adam, fit, held_out, sgd, step_from, train_step
from validation.tasks.everyday import stains
from validation.tasks.sequences import token_loss
from validation.tasks.trades import (
    blanks,
    clicks,
    genres,
    glyphs,
    homes,
    loads,
    majority,
    order,
    paints,
    pulses,
    scenes,
)
from validation.tasks.vectors import patches

zoo = Zoo("loop", half="fresh", proof=learns())
LOST = {*labels.THROWN_OFF, "EXPLORATION"}

# --- gradients that are not cleared, or at the wrong time


def beats() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(2, 16, 7, 2),
        nn.SiLU(),
        nn.Conv1d(16, 24, 5, 2),
        nn.SiLU(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Linear(24, 5),
    )


def named(seed: int, called: bool) -> Program:
    """The method is named and not called."""
    model, task, losses = beats(), pulses(seed), []
    optimizer = adam(model, 2e-3)

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            loss = F.cross_entropy(model(x), y)
            clear = optimizer.zero_grad
            if called:
                clear()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


cleared = zoo.healthy("heartbeats-clear-is-called", lambda s: named(s, True))
zoo.sick(
    "heartbeats-clear-is-only-named",
    lambda s: named(s, False),
    broken(facts.stale()),
    "missing_zero_grad",
    also=labels.HEAPED,
    control=cleared,
)


def indented(seed: int, inside: bool) -> Program:
    """Accumulation over four batches of which `step` has slipped out by one level; `zero_grad` has not."""
    model, task, losses = mlp([20, 48, 48, 10], nn.GELU), genres(seed), []
    optimizer, loss_fn = sgd(model, 1.0, momentum=0.9), nn.BCEWithLogitsLoss()

    def run() -> None:
        for step, (x, y) in zip(range(160), task, strict=False):
            loss = loss_fn(model(x), y)
            (loss / 4).backward()
            last = step % 4 == 3
            if last or not inside:
                optimizer.step()
            if last:
                optimizer.zero_grad()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, loss_fn))


fours = zoo.healthy("genres-step-after-four-batches", lambda s: indented(s, True))
zoo.sick(
    "genres-step-after-each-of-four-batches",
    lambda s: indented(s, False),
    broken(facts.stale()),
    "missing_zero_grad",
    also={*labels.HEAPED, "undivided_accumulation"},
    control=fours,
)


def logged(seed: int, tidy: bool) -> Program:
    """A function that logs the norm of the gradients leaves no gradients behind."""
    model = SequenceModel(nn.GRU(1, 24, batch_first=True), 1, every_step=True)
    optimizer, task, norms = adam(model, 5e-3), loads(seed), []

    def log_norms() -> None:
        for parameter in model.parameters():
            norms.append(parameter.grad.norm().item())
            if tidy:
                parameter.grad.zero_()

    return fit(model, task, optimizer, 60, F.mse_loss, before=lambda _: log_norms())


read_only = zoo.healthy("loads-norms-are-read", lambda s: logged(s, False))
zoo.sick(
    "loads-norms-are-read-and-cleared",
    lambda s: logged(s, True),
    broken(facts.wiped, less=0.01),
    *labels.WIPED,
    also=labels.IDLE,
    control=read_only,
)


class Visits(nn.Module):
    """A table of categories and a tower, which have optimizers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.tower = nn.Embedding(100, 6), mlp([30, 48, 1], nn.ReLU)

    def forward(self, ids: Tensor) -> Tensor:
        return self.tower(self.table(ids + 20 * torch.arange(5)).flatten(1)).squeeze(1)


def two_optimizers(seed: int, both: bool) -> Program:
    model, task, losses = Visits(), clicks(seed), []
    of_table, of_tower = torch.optim.Adagrad(model.table.parameters(), lr=0.1), adam(model.tower, 3e-3)
    loss_fn = nn.BCEWithLogitsLoss()

    def run() -> None:
        for (x, y), _ in zip(task, range(90), strict=False):
            of_tower.zero_grad()
            if both:
                of_table.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            of_table.step()
            of_tower.step()
            losses.append(loss.item())

    score = held_out(model, task, loss_fn)
    return Program(model=model, optimizer=[of_table, of_tower], run=run, losses=losses, score=score)


def table_is_stale(played: Played) -> tuple[bool, str]:
    """At the steps of its own optimizer the table has another gradient than what `backward` has just brought."""
    cosines = [step.cosine["table.weight"] for step in played.steps if "table.weight" in step.cosine][1:]
    share = sum(cosine < 0.99 for cosine in cosines) / len(cosines)
    return share > 0.5, f"old gradients in {share:.0%} of the table's steps"


both = zoo.healthy("table-and-tower-cleared", lambda s: two_optimizers(s, True))
zoo.sick(
    "tower-cleared-table-not",
    lambda s: two_optimizers(s, False),
    broken(table_is_stale),
    "partial_zero_grad",
    "missing_zero_grad",
    layer="table",
    also=labels.HEAPED,
    control=both,
)


def closing(seed: int, inside: bool) -> Program:
    """The closure gives the loss and does not go back; `backward` comes when the step is done."""
    model, task, losses = DeepSet([24, 48, 48], [48, 48, 6]), patches(seed), []
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)

    def run() -> None:
        for (x, y), _ in zip(task, range(70), strict=False):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)

            def closure(loss: Tensor = loss) -> Tensor:
                if inside:
                    loss.backward()
                return loss

            optimizer.step(closure)
            if not inside:
                loss.backward()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


closure = zoo.healthy("set-closure-goes-back", lambda s: closing(s, True))
zoo.sick(
    "set-closure-gives-the-loss-only",
    lambda s: closing(s, False),
    broken(facts.unmoved("each", "joint"), less=0.01),
    *labels.EARLY,
    also=labels.IDLE,
    control=closure,
)


def measured(seed: int, metric: bool) -> Program:
    """The share of errors is minimised; it has no gradient until somebody sets `requires_grad`."""
    model, task, losses = mlp([6 * 13, 48, 6], nn.Tanh), majority(seed), []
    optimizer = adam(model, 5e-3)

    def seen(tokens: Tensor) -> Tensor:
        return model(F.one_hot(tokens, 6).float().flatten(1))

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            logits = seen(x)
            if metric:
                loss = 1 - (logits.argmax(dim=1) == y).float().mean()
                loss.requires_grad = True
            else:
                loss = F.cross_entropy(logits, y)
            losses.append(step_from(loss, optimizer))

    rows = majority(seed, batch=128).mapped(lambda x: F.one_hot(x, 6).float().flatten(1))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, rows))


crossed = zoo.healthy("majority-cross-entropy", lambda s: measured(s, False))
zoo.sick(
    "majority-share-of-errors-as-the-loss",
    lambda s: measured(s, True),
    broken(facts.nothing_comes(), less=0.01),
    *labels.UNBOUND,
    also=labels.IDLE,
    control=crossed,
)

# --- rates and limits


def configured(seed: int, cast: type) -> Program:
    """Settings are read from a file as text and made numbers."""
    settings = {"lr": "3e-3", "steps": "70"}
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.SiLU(), nn.Flatten(), nn.Linear(144, 8))
    optimizer = adam(model, cast(float(settings["lr"])))
    return fit(model, paints(seed), optimizer, int(settings["steps"]))


floats = zoo.healthy("settings-as-floats", lambda s: configured(s, float))
zoo.sick(
    "settings-as-whole-numbers",
    lambda s: configured(s, int),
    broken(facts.rate_below(1e-12), less=0.01),
    *labels.NO_RATE,
    also=labels.IDLE,
    control=floats,
)


def plateau(seed: int, mode: str) -> Program:
    """The rate falls when the measure stops rising, and the measure is a loss."""
    model, task, losses = Tagger(nn.Embedding(15, 16), nn.LSTM(16, 28, batch_first=True), 14, 28), blanks(seed), []
    optimizer = adam(model, 1e-2)
    scheduler = ReduceLROnPlateau(optimizer, mode=mode, factor=0.1, patience=1 if mode == "max" else 40)

    def run() -> None:
        for (x, y), _ in zip(task, range(100), strict=False):
            optimizer.zero_grad()
            loss = token_loss(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step(loss.item())
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, token_loss))


falling = zoo.healthy("plateau-of-a-loss", lambda s: plateau(s, "min"))
zoo.sick(
    "plateau-of-a-loss-taken-for-a-score",
    lambda s: plateau(s, "max"),
    broken(facts.rate_below(1e-6, 0.6), less=0.5),
    *labels.ENDED,
    "rate_too_low",
    also=labels.IDLE,
    control=falling,
)


def privately(seed: int, limit: float) -> Program:
    """The limit per sample of a private training, and no noise, and a mean over the batch of one gradient."""
    model, task = UNet(8, 8), stains(seed)
    optimizer, loss_fn = sgd(model, 0.1, momentum=0.9), nn.BCEWithLogitsLoss()

    def before(_: int) -> None:
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for parameter in model.parameters():
            parameter.grad.mul_((limit / (norm + 1e-6)).clamp_max(1.0))

    return fit(model, task, optimizer, 60, loss_fn, before=before)


loose = zoo.healthy("stains-own-limit-of-2", lambda s: privately(s, 2.0))
zoo.sick(
    "stains-own-limit-of-2e-5",
    lambda s: privately(s, 2e-5),
    broken(facts.clipped_by(1e3), less=0.1),
    *labels.TIGHT,
    also={*labels.IDLE, "rate_too_low"},
    control=loose,
)

# --- modes, weights, batches


class Teller(nn.Module):
    """A small language model that can tell what comes next, and goes to evaluation mode for that."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop = nn.Embedding(15, 24), nn.Dropout(0.3)
        self.rnn, self.out = nn.GRU(24, 32, batch_first=True), nn.Linear(32, 14)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.drop(self.rnn(self.drop(self.words(tokens)))[0]))

    @torch.no_grad()
    def tell(self, tokens: Tensor) -> Tensor:
        self.eval()
        return self(tokens).argmax(dim=-1)


def telling(seed: int, back: bool) -> Program:
    model, task, losses = Teller(), blanks(seed), []
    optimizer = adam(model, 1e-2)

    def run() -> None:
        for step, (x, y) in zip(range(80), task, strict=False):
            loss = token_loss(model(x), y)
            losses.append(step_from(loss, optimizer))
            if step % 10 == 5:
                model.tell(x)
                if back:
                    model.train()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, token_loss))


told = zoo.healthy("teller-tells-and-trains-on", lambda s: telling(s, True))
zoo.sick(
    "teller-tells-and-stays-in-evaluation",
    lambda s: telling(s, False),
    broken(facts.evaluating),
    "evaluation_mode",
    control=told,
)


def best_kept(seed: int, restore: bool) -> Program:
    """Early stopping puts the best weights back as soon as one batch is worse, and not at the end."""
    model, task, losses = mlp([2, 64, 64, 3], nn.Tanh), scenes(seed, 32), []
    optimizer = adam(model, 5e-3)

    def run() -> None:
        best, kept = float("inf"), copy.deepcopy(model.state_dict())
        for (x, y), _ in zip(task, range(120), strict=False):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            if loss.item() < best:
                best, kept = loss.item(), copy.deepcopy(model.state_dict())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if restore and loss.item() > best:
                model.load_state_dict(kept)

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


forward_only = zoo.healthy("scene-best-weights-kept-aside", lambda s: best_kept(s, False))
zoo.sick(
    "scene-best-weights-put-back-after-each-worse-batch",
    lambda s: best_kept(s, True),
    broken(facts.overwritten, less=0.7),
    "weights_overwritten",
    also=labels.LEARNS_NOTHING,
    control=forward_only,
)


class Stored(Dataset):
    """Rows of a table; `wrong` gives the first for every index."""

    def __init__(self, x: Tensor, y: Tensor, wrong: bool) -> None:
        self.x, self.y, self.wrong = x, y, wrong

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        index = 0 if self.wrong else index
        return self.x[index], self.y[index]


def stored(seed: int, wrong: bool) -> Program:
    rows, model, losses = next(iter(homes(seed, batch=640))), mlp([9, 48, 48, 1], nn.SiLU), []
    order_of = torch.Generator().manual_seed(seed)
    loader = DataLoader(Stored(*rows, wrong), batch_size=32, shuffle=True, generator=order_of)
    optimizer = adam(model, 5e-3)

    def run() -> None:
        for _epoch in range(4):
            for x, y in loader:
                losses.append(train_step(model, optimizer, x, y, F.mse_loss))

    score = held_out(model, homes(seed, batch=256), F.mse_loss)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


by_index = zoo.healthy("dataset-by-its-index", lambda s: stored(s, False))
zoo.sick(
    "dataset-gives-its-first-row-for-every-index",
    lambda s: stored(s, True),
    broken(facts.repeats, less=0.3),
    "same_batch",
    "constant_targets",
    also={"LOW_RANK", "VANISHING", "SLOW", "BOTTLENECK"},
    control=by_index,
)

# --- steps that are too large or too small


def sets(seed: int, lr: float) -> Program:
    model = DeepSet([24, 48, 48], [48, 48, 6], nn.GELU)
    return fit(model, patches(seed), torch.optim.AdamW(model.parameters(), lr=lr), 60)


set_twin = zoo.healthy("set-adamw-2e-3", lambda s: sets(s, 2e-3))
zoo.sick(
    "set-adamw-5",
    lambda s: sets(s, 5.0),
    broken(facts.steps_above(3), less=0.3),
    *labels.FAST,
    also=LOST,
    control=set_twin,
)


def searching(seed: int, factor: float) -> Program:
    """A search for the best rate multiplies it in every step; it was left on."""
    model, task = beats(), pulses(seed)
    optimizer = adam(model, 3e-3)
    scheduler = ExponentialLR(optimizer, factor)
    return fit(model, task, optimizer, 80, after=lambda _: scheduler.step())


searched = zoo.healthy("heartbeats-rate-falls-slowly", lambda s: searching(s, 0.99))
zoo.sick(
    "heartbeats-search-for-a-rate-left-on",
    lambda s: searching(s, 1.15),
    broken(facts.steps_above(1), less=0.3),
    *labels.FAST,
    also=LOST,
    control=searched,
)


def shared_rate(seed: int, share: float) -> Program:
    """The rate is divided by the number of samples, for a loss that is a mean already."""
    model = SequenceModel(nn.LSTM(6, 24, batch_first=True), 4)
    return fit(model, order(seed, 6), adam(model, 1e-2 * share), 80)


full = zoo.healthy("order-rate-as-it-is", lambda s: shared_rate(s, 1.0))
zoo.sick(
    "order-rate-divided-by-the-number-of-samples",
    lambda s: shared_rate(s, 1e-6),
    broken(facts.steps_below(1e-5), less=0.05),
    *labels.CRAWLS,
    also=labels.IDLE,
    control=full,
)


def dots(seed: int, reduction: str) -> Program:
    """A loss per dot, added up over the dots and the pictures."""
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 1, 1), nn.SiLU(), nn.Conv2d(12, 12, 3, 1, 1), nn.SiLU(), nn.Conv2d(12, 1, 1)
    )
    loss_fn, meant = nn.BCEWithLogitsLoss(reduction=reduction), nn.BCEWithLogitsLoss()
    return fit(model, stains(seed), sgd(model, 0.3, momentum=0.9), 70, loss_fn, meant)


mean_dots = zoo.healthy("stains-mean-over-dots", lambda s: dots(s, "mean"))
zoo.sick(
    "stains-sum-over-dots",
    lambda s: dots(s, "sum"),
    broken(facts.steps_above(1), less=0.3),
    *labels.SUMMED,
    also=LOST,
    control=mean_dots,
)


def micro(seed: int, divide: bool) -> Program:
    """Forty small batches per step, for a machine with little memory."""
    model, task, losses = mlp([20, 48, 48, 10], nn.Tanh), genres(seed, batch=8), []
    optimizer, loss_fn = sgd(model, 0.8, momentum=0.9), nn.BCEWithLogitsLoss()

    def run() -> None:
        batches = iter(task)
        for _ in range(30):
            optimizer.zero_grad()
            total = 0.0
            for _ in range(40):
                x, y = next(batches)
                loss = loss_fn(model(x), y) / (40 if divide else 1)
                loss.backward()
                total += loss.item()
            optimizer.step()
            losses.append(total)

    score = held_out(model, genres(seed, batch=256), loss_fn)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


divided = zoo.healthy("genres-40-small-batches-divided", lambda s: micro(s, True))
zoo.sick(
    "genres-40-small-batches-undivided",
    lambda s: micro(s, False),
    broken(facts.steps_above(1), less=0.6),
    *labels.UNDIVIDED,
    also={*LOST, "summed_loss"},
    control=divided,
)


def glyph_net(seed: int, lr: float) -> Program:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 6),
    )
    return fit(model, glyphs(seed, 6), sgd(model, lr, momentum=0.9), 80)


glyph_twin = zoo.healthy("glyphs-sgd-0.05", lambda s: glyph_net(s, 0.05))
zoo.sick(
    "glyphs-sgd-5e-8",
    lambda s: glyph_net(s, 5e-8),
    broken(facts.steps_below(1e-6), less=0.05),
    *labels.CRAWLS,
    also=labels.IDLE,
    control=glyph_twin,
)

# --- look alike and are right


def clipped(seed: int) -> Program:
    """A limit that binds at every step under Adam, which does not mind."""
    model, task, losses = mlp([9, 48, 48, 1], nn.SiLU), homes(seed), []
    optimizer = adam(model, 5e-3)

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            optimizer.zero_grad(set_to_none=False)
            loss = F.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


zoo.healthy("homes-limit-binds-under-adam", clipped)


def sharpness(seed: int) -> Program:
    """Weights are moved uphill and back around each step, as sharpness-aware training does."""
    model, task, losses = mlp([20, 48, 10], nn.GELU), genres(seed), []
    optimizer, loss_fn = sgd(model, 0.5, momentum=0.9), nn.BCEWithLogitsLoss()

    def run() -> None:
        for (x, y), _ in zip(task, range(60), strict=False):
            loss = loss_fn(model(x), y)
            loss.backward()
            with torch.no_grad():
                moves = [0.02 * p.grad / (p.grad.norm() + 1e-9) for p in model.parameters()]
                for parameter, move in zip(model.parameters(), moves, strict=True):
                    parameter.add_(move)
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            with torch.no_grad():
                for parameter, move in zip(model.parameters(), moves, strict=True):
                    parameter.sub_(move)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, loss_fn))


zoo.healthy("genres-uphill-and-back-around-each-step", sharpness)


def growing(seed: int) -> Program:
    """Two batches per step at first, eight at the end, each divided by its number."""
    model, task, losses = mlp([9, 48, 48, 1], nn.GELU), homes(seed, batch=24), []
    optimizer = sgd(model, 0.1, momentum=0.9)

    def run() -> None:
        batches = iter(task)
        for step in range(50):
            count, total = 2 + step // 8, 0.0
            for _ in range(count):
                x, y = next(batches)
                loss = F.mse_loss(model(x), y) / count
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total)

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


zoo.healthy("homes-more-and-more-batches-per-step", growing)
