# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Optimizers at fault and optimizers that are only unusual, in nets and loops of many kinds.

Half: drill.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.evidence import states as facts
from validation.evidence.loops import broken, learns
from validation.labels import SPOILT
from validation.nets import DeepSet, SequenceModel, mlp, torch_encoder
from validation.programs import held_out, train_step
from validation.states import BROKEN, IDLE, loop
from validation.tasks.bench import grains, pairings, sensors, songs, spectra
from validation.tasks.everyday import heaps, strokes
from validation.tasks.sequences import token_loss
from validation.tasks.task import Task
from validation.tasks.trades import genres, glyphs, homes, loads
from validation.tasks.vectors import patches

zoo = Zoo("state", half="drill", proof=learns())
optim = torch.optim
Optimizer = torch.optim.Optimizer
low = torch.bfloat16


def convs() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, stride=2),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 10),
    )


class Melody(nn.Module):
    """Next note: an embedding, two causal layers of torch's own, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.notes, self.places = nn.Embedding(12, 32), nn.Parameter(0.1 * torch.randn(12, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.notes(tokens) + self.places
        mask = nn.Transformer.generate_square_subsequent_mask(12).to(x.dtype)
        return self.head(self.body(x, mask=mask, is_causal=True))


GLYPHS = (convs, glyphs, F.cross_entropy, 5e-3)
HOMES = (lambda: mlp([9, 64, 64, 1], nn.SiLU), homes, F.mse_loss, 4e-3)
GENRES = (lambda: mlp([20, 64, 64, 10], nn.GELU), genres, F.binary_cross_entropy_with_logits, 4e-3)
SONGS = (Melody, songs, token_loss, 2e-3)
LOADS = (lambda: SequenceModel(nn.GRU(1, 32, batch_first=True), 1, every_step=True), loads, F.mse_loss, 5e-3)
HEAPS = (lambda: DeepSet([6, 48, 32], [32, 48, 6]), heaps, F.mse_loss, 3e-3)
SPECTRA = (lambda: mlp([40, 48, 10, 48, 40], nn.Tanh), spectra, F.mse_loss, 3e-3)
PATCHES = (lambda: torch_encoder(2, 32, 4), patches, F.cross_entropy, 2e-3)
GRAINS = (lambda: mlp([18, 64, 64, 7], nn.ReLU), grains, F.cross_entropy, 3e-3)
STROKES = (
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(100, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8)),
    strokes,
    F.cross_entropy,
    3e-3,
)


def own(
    made: tuple[Callable[[], nn.Module], Callable[..., Task], Any, float],
    optimizer: Callable[[nn.Module, float], Optimizer],
    *,
    steps: int = 100,
    scheduled: Callable[[Optimizer], Any] | None = None,
    limit: float | None = None,
    micro: int = 1,
    autocast: bool = False,
    change: Callable[[Any, Any, int], tuple[Any, Any]] = lambda x, y, _: (x, y),
    **of_task: Any,
) -> Callable[[int], Program]:
    """A loop with a schedule, a limit, small batches, autocast: whatever is named."""

    def build(seed: int) -> Program:
        network, task_of, loss_of, rate = made
        task, model = task_of(seed, **of_task), network()
        stepping = optimizer(model, rate)
        schedule = scheduled(stepping) if scheduled else None
        losses: list[float] = []

        def run() -> None:
            batches = iter(task)
            for step in range(steps):
                stepping.zero_grad()
                for _ in range(micro):
                    x, y = change(*next(batches), step)
                    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                        loss = loss_of(model(x), y)
                    (loss / micro).backward()
                if limit:
                    nn.utils.clip_grad_norm_(model.parameters(), limit)
                stepping.step()
                if isinstance(schedule, optim.lr_scheduler.ReduceLROnPlateau):
                    schedule.step(loss.item())
                elif schedule is not None:
                    schedule.step()
                losses.append(loss.item())

        score = held_out(model, task, loss_of)
        return Program(model=model, optimizer=stepping, run=run, losses=losses, score=score)

    return build


# --- eps

glyphs_adam = zoo.healthy("drill-glyphs-adamw", loop(GLYPHS, lambda p, r: optim.AdamW(p, r)))
zoo.sick(
    "drill-glyphs-adamw-eps-0.3",
    loop(GLYPHS, lambda p, r: optim.AdamW(p, r, eps=0.3)),
    broken(facts.eps_above_gradients(), less=0.5),
    "eps_rules",
    also=IDLE,
    control=glyphs_adam,
)
loads_adam = zoo.healthy("drill-loads-nadam", loop(LOADS, lambda p, r: optim.NAdam(p, r)))
zoo.sick(
    "drill-loads-nadam-eps-1",
    loop(LOADS, lambda p, r: optim.NAdam(p, r, eps=1.0)),
    broken(facts.eps_above_gradients(), less=0.5),
    "eps_rules",
    also=IDLE,
    control=loads_adam,
)
homes_adam = zoo.healthy("drill-homes-adam-amsgrad", loop(HOMES, lambda p, r: optim.Adam(p, r, amsgrad=True)))
zoo.sick(
    "drill-homes-amsgrad-loss-times-1e-9",
    loop(HOMES, lambda p, r: optim.Adam(p, r, amsgrad=True), scale=1e-9),
    broken(facts.eps_above_gradients(), less=0.5),
    "eps_rules",
    also=IDLE,
    control=homes_adam,
)
heaps_rms = zoo.healthy("drill-heaps-rmsprop", loop(HEAPS, lambda p, r: optim.RMSprop(p, r / 2)))


def eps_above_squares(key: str, times: float = 3.0):
    """eps against the root of what this optimizer keeps of squared gradients."""

    def fact(played) -> tuple[bool, str]:
        optimizer = played.program.optimizer
        ratios = []
        for group in optimizer.param_groups:
            for p in group["params"]:
                root = optimizer.state[p][key].sqrt().median().clamp_min(1e-30)
                ratios.append(float(group["eps"] / root))
        middle = sorted(ratios)[len(ratios) // 2]
        return middle > times, f"eps is {middle:.3g} times the typical root"

    return fact


zoo.sick(
    "drill-heaps-rmsprop-eps-30",
    loop(HEAPS, lambda p, r: optim.RMSprop(p, r / 2, eps=30.0)),
    broken(eps_above_squares("square_avg"), less=0.6),
    "eps_rules",
    also=IDLE,
    control=heaps_rms,
)
for name, made, factor, eps in (
    ("glyphs", GLYPHS, 60, 0.03),
    ("homes", HOMES, 150, 1.0),
    ("genres", GENRES, 20, 1e-3),
    ("spectra", SPECTRA, 60, 0.05),
):
    zoo.healthy(
        f"drill-{name}-eps-{eps:g}-and-its-rate",
        loop(made, lambda p, r, factor=factor, eps=eps: optim.Adam(p, r * factor, eps=eps), steps=140),
    )
zoo.healthy("drill-songs-adamw-eps-1e-5", loop(SONGS, lambda p, r: optim.AdamW(p, r, eps=1e-5)))

# --- precision

songs_low = zoo.healthy("drill-songs-bfloat16", loop(SONGS, lambda p, r: optim.AdamW(p, r), dtype=low))
zoo.sick(
    "drill-songs-bfloat16-rate-3e-6",
    loop(SONGS, lambda p, r: optim.AdamW(p, 3e-6), dtype=low),
    broken(facts.same_bits(), less=0.5),
    "lost_updates",
    also=IDLE,
    control=songs_low,
)
strokes_low = zoo.healthy(
    "drill-strokes-bfloat16-sgd", loop(STROKES, lambda p, r: optim.SGD(p, 0.3, momentum=0.9), dtype=low)
)
zoo.sick(
    "drill-strokes-bfloat16-sgd-rate-2e-6",
    loop(STROKES, lambda p, r: optim.SGD(p, 2e-6, momentum=0.9), dtype=low),
    broken(facts.same_bits(0.97), less=0.5),  # the twin is done in the end, and hardly moves then
    "lost_updates",
    also=IDLE,
    control=strokes_low,
)
heaps_adam = zoo.healthy("drill-heaps-adam", loop(HEAPS, lambda p, r: optim.Adam(p, r)))
zoo.sick(
    "drill-heaps-float16-adam",
    loop(HEAPS, lambda p, r: optim.Adam(p, r), dtype=torch.float16),
    broken(facts.no_second_moment(), less=0.3),
    "second_moment_underflow",
    also=BROKEN,
    control=heaps_adam,
)
zoo.healthy("drill-grains-bfloat16-adam", loop(GRAINS, lambda p, r: optim.Adam(p, r), dtype=low))
zoo.healthy("drill-patches-autocast", own(PATCHES, lambda m, r: optim.AdamW(m.parameters(), r), autocast=True))
zoo.healthy("drill-heaps-bfloat16-sgd-0.3", loop(HEAPS, lambda p, r: optim.SGD(p, 0.3), dtype=low))


def master(seed: int) -> Program:
    """Weights in bfloat16 for the passes, a copy in float32 for the optimizer."""
    task, model = grains(seed), mlp([18, 64, 7], nn.GELU).to(low)
    copies = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = optim.AdamW(copies, 2e-3)
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(100), strict=False):
            loss = F.cross_entropy(model(x.to(low)).float(), y)
            model.zero_grad()
            loss.backward()
            for p, c in zip(model.parameters(), copies, strict=True):
                c.grad = p.grad.float()
            optimizer.step()
            with torch.no_grad():
                for p, c in zip(model.parameters(), copies, strict=True):
                    p.copy_(c)
            losses.append(loss.item())

    x, y = task.aside()

    def score() -> float:
        with torch.no_grad():
            return F.cross_entropy(model(x.to(low)).float(), y).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("drill-grains-master-weights", master)

# --- decay

genres_adamw = zoo.healthy(
    "drill-genres-adamw-decay-0.3", loop(GENRES, lambda p, r: optim.AdamW(p, r, weight_decay=0.3))
)
zoo.sick(
    "drill-genres-adamw-decay-30",
    loop(GENRES, lambda p, r: optim.AdamW(p, r, weight_decay=30.0)),
    broken(facts.shrunk(), less=0.6),
    "decay_dominates",
    also=BROKEN,
    control=genres_adamw,
)
spectra_sgd = zoo.healthy(
    "drill-spectra-sgd-decay-1e-5",
    loop(SPECTRA, lambda p, r: optim.SGD(p, 1.0, momentum=0.9, weight_decay=1e-5), steps=140),
)
zoo.sick(
    "drill-spectra-sgd-decay-0.05",
    loop(SPECTRA, lambda p, r: optim.SGD(p, 1.0, momentum=0.9, weight_decay=0.05), steps=140),
    broken(facts.shrunk(), less=0.6),
    "decay_dominates",
    also=BROKEN,
    control=spectra_sgd,
)
zoo.sick(
    "drill-heaps-adam-l2-1",
    loop(HEAPS, lambda p, r: optim.Adam(p, r, weight_decay=3.0), steps=120),
    broken(facts.shrunk(), less=0.6),
    "decay_dominates",
    also=BROKEN,
    control=heaps_adam,
)
zoo.healthy("drill-songs-adamw-decay-0.5", loop(SONGS, lambda p, r: optim.AdamW(p, r, weight_decay=0.5)))
zoo.healthy("drill-glyphs-adamw-decay-2", loop(GLYPHS, lambda p, r: optim.AdamW(p, r, weight_decay=2.0)))
zoo.healthy("drill-strokes-sgd-decay-5e-3", loop(STROKES, lambda p, r: optim.SGD(p, 0.1, weight_decay=5e-3)))
zoo.healthy("drill-grains-adam-l2-1e-3", loop(GRAINS, lambda p, r: optim.Adam(p, r, weight_decay=1e-3)))

# --- momentum

zoo.sick(
    "drill-grains-sgd-momentum-0.997",
    loop(GRAINS, lambda p, r: optim.SGD(p, 0.3, momentum=0.997)),
    broken(facts.remembers(), less=0.8),
    "momentum_too_long",
    also=BROKEN,
    control=zoo.healthy("drill-grains-sgd-momentum-0.9", loop(GRAINS, lambda p, r: optim.SGD(p, 0.05, momentum=0.9))),
)
zoo.sick(
    "drill-loads-nesterov-0.999",
    loop(LOADS, lambda p, r: optim.SGD(p, 0.2, momentum=0.999, nesterov=True), steps=140),
    broken(facts.remembers(), less=0.8),
    "momentum_too_long",
    also=BROKEN,
    control=zoo.healthy(
        "drill-loads-nesterov-0.9", loop(LOADS, lambda p, r: optim.SGD(p, 0.1, momentum=0.9, nesterov=True), steps=140)
    ),
)
zoo.healthy("drill-genres-sgd-momentum-0.98", loop(GENRES, lambda p, r: optim.SGD(p, 0.05, momentum=0.98), steps=140))
zoo.healthy(
    "drill-grains-sgd-momentum-0.99-damped",
    loop(GRAINS, lambda p, r: optim.SGD(p, 0.5, momentum=0.99, dampening=0.99), steps=160),
)

# --- a state that is lost


def anew(seed: int, per_epoch: bool) -> Program:
    """An optimizer for each epoch of six steps, as a function `train_one_epoch` that makes its own would."""
    task, model = heaps(seed), DeepSet([6, 48, 32], [32, 48, 6])
    optimizer = optim.Adam(model.parameters(), 3e-3)
    losses: list[float] = []

    def run() -> None:
        for step, (x, y) in zip(range(108), task, strict=False):
            if per_epoch and step % 6 == 0:
                optimizer.__setstate__({**optimizer.__getstate__(), "state": type(optimizer.state)(dict)})
            losses.append(train_step(model, optimizer, x, y, F.mse_loss))

    score = held_out(model, task, F.mse_loss)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.sick(
    "drill-heaps-state-of-each-epoch",
    lambda s: anew(s, True),
    broken(facts.young),
    "state_reset",
    also=BROKEN,
    control=zoo.healthy("drill-heaps-state-kept", lambda s: anew(s, False)),
)


def cleared_on(steps: int) -> Callable[[Optimizer, int], None]:
    def after(optimizer: Optimizer, step: int) -> None:
        if step % steps == steps - 1:
            fresh = type(optimizer)(optimizer.param_groups[0]["params"], lr=1.0).state_dict()
            fresh["param_groups"] = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict(fresh)

    return after


zoo.sick(
    "drill-songs-state-dict-of-a-new-one-every-3",
    loop(SONGS, lambda p, r: optim.AdamW(p, r), after=cleared_on(3)),
    broken(facts.young),
    "state_reset",
    also=BROKEN,
    control=zoo.healthy("drill-songs-adamw", loop(SONGS, lambda p, r: optim.AdamW(p, r))),
)


def resumes(optimizer: Optimizer, step: int) -> None:
    """A checkpoint is written and read: the state comes back as it was."""
    if step % 20 == 19:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


zoo.healthy("drill-grains-checkpoints-read", loop(GRAINS, lambda p, r: optim.Adam(p, r), after=resumes))
zoo.healthy("drill-heaps-one-reset", loop(HEAPS, lambda p, r: optim.Adam(p, r), after=cleared_on(70), steps=120))

# --- one sample that is not like the others


def outlier(
    made: tuple, at: int, spoil: Callable[[Tensor, Tensor], None], clean: bool = False
) -> Callable[[int], Program]:
    """A fixed data set in epochs, shuffled; one row of it is spoilt."""

    def build(seed: int) -> Program:
        network, task_of, loss_of, rate = made
        task, model = task_of(seed), network()
        pairs = [batch for batch, _ in zip(task, range(8), strict=False)]
        x, y = (torch.cat(part).clone() for part in zip(*pairs, strict=True))
        if not clean:
            spoil(x[at], y[at : at + 1])
        optimizer = optim.Adam(model.parameters(), rate)
        losses: list[float] = []

        def run() -> None:
            shuffled = torch.Generator().manual_seed(seed)
            for _ in range(8):
                for rows in torch.randperm(len(x), generator=shuffled).split(32):
                    optimizer.zero_grad()
                    loss = loss_of(model(x[rows]), y[rows])
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                    optimizer.step()
                    losses.append(loss.item())

        return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, loss_of))

    return build


zoo.sick(
    "drill-homes-one-price-in-cents",
    outlier(HOMES, 77, lambda _x, y: y.mul_(0).add_(900.0)),
    broken(facts.spikes(3)),
    *SPOILT,
    also=BROKEN,
    control=zoo.healthy("drill-homes-prices", outlier(HOMES, 77, lambda _x, _y: None, True)),
)
zoo.sick(
    "drill-sensors-one-row-times-400",
    outlier((lambda: mlp([14, 48, 6], nn.ReLU), sensors, F.mse_loss, 3e-3), 40, lambda x, _y: x.mul_(400.0)),
    broken(facts.spikes(3)),
    *SPOILT,
    also=BROKEN,
    control=zoo.healthy(
        "drill-sensors-rows",
        outlier((lambda: mlp([14, 48, 6], nn.ReLU), sensors, F.mse_loss, 3e-3), 40, lambda _x, _y: None, True),
    ),
)


def heavy(x: Tensor, y: Tensor, _step: int) -> tuple[Tensor, Tensor]:
    """Errors with heavy tails: now and then a large one, every time another."""
    return x, y + 0.3 * torch.distributions.StudentT(3.0).sample(y.shape)


def spiky(x: Tensor, y: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Every ninth batch is louder, and right."""
    return (x, 1.5 * y) if step % 9 == 4 else (x, y)


zoo.healthy(
    "drill-homes-heavy-tails",
    own(HOMES, lambda m, r: optim.Adam(m.parameters(), r), change=heavy, limit=1.0, steps=140),
)
zoo.healthy(
    "drill-loads-every-ninth-batch-is-loud",
    own(LOADS, lambda m, r: optim.Adam(m.parameters(), r), change=spiky, limit=1.0, steps=140),
)


def wrong_labels(share: float) -> Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]:
    def change(x: Tensor, y: Tensor, _step: int) -> tuple[Tensor, Tensor]:
        wrong = torch.rand(y.shape) < share
        return x, torch.where(wrong, torch.randint(7, y.shape), y)

    return change


zoo.healthy(
    "drill-grains-four-labels-in-ten-wrong",
    own(GRAINS, lambda m, r: optim.Adam(m.parameters(), r), change=wrong_labels(0.4), steps=140),
)
zoo.healthy(
    "drill-grains-batches-of-four", own(GRAINS, lambda m, r: optim.AdamW(m.parameters(), r), batch=4, steps=200)
)
zoo.healthy(
    "drill-homes-batches-of-two-sgd",
    own(HOMES, lambda m, r: optim.SGD(m.parameters(), 0.01, momentum=0.9), batch=2, steps=250),
)

# --- other optimizers, schedules, practices

zoo.healthy("drill-glyphs-adamax", loop(GLYPHS, lambda p, r: optim.Adamax(p, r)))
zoo.healthy("drill-grains-radam", loop(GRAINS, lambda p, r: optim.RAdam(p, 2 * r)))
zoo.healthy("drill-genres-adagrad", loop(GENRES, lambda p, r: optim.Adagrad(p, 5 * r)))
zoo.healthy("drill-glyphs-adadelta", loop(GLYPHS, lambda p, r: optim.Adadelta(p, 1.0)))
zoo.healthy("drill-strokes-asgd", loop(STROKES, lambda p, r: optim.ASGD(p, 0.1)))
zoo.healthy("drill-grains-rprop", own(GRAINS, lambda m, r: optim.Rprop(m.parameters(), 1e-3), batch=512, steps=60))
zoo.healthy(
    "drill-homes-rmsprop-centred", loop(HOMES, lambda p, r: optim.RMSprop(p, r / 4, centered=True, momentum=0.9))
)
zoo.healthy("drill-songs-adam-beta2-0.9999", loop(SONGS, lambda p, r: optim.Adam(p, r, betas=(0.9, 0.9999))))
zoo.healthy("drill-loads-adam-beta1-0.5", loop(LOADS, lambda p, r: optim.Adam(p, r, betas=(0.5, 0.9))))


class Lion(Optimizer):
    """Signs of a running mean: every step is as large as the rate, whatever the gradient."""

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.1
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_((first * mean + (1 - first) * p.grad).sign(), alpha=group["lr"])
                mean.lerp_(p.grad, 1 - second)


class Muon(Optimizer):
    """Momentum whose matrices are made orthogonal; what is no matrix takes the sign."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                heap = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                heap.mul_(group["momentum"]).add_(p.grad)
                if p.ndim < 2:
                    p.sub_(heap.sign(), alpha=group["lr"] / 10)
                    continue
                u, _, v = torch.linalg.svd(heap.flatten(1), full_matrices=False)
                p.sub_((u @ v).reshape(p.shape), alpha=group["lr"])


zoo.healthy("drill-songs-lion", loop(SONGS, lambda p, r: Lion(p, r / 5)))
zoo.healthy("drill-genres-lion-decay-3", loop(GENRES, lambda p, r: Lion(p, r / 8, weight_decay=3.0)))
zoo.healthy("drill-grains-muon", loop(GRAINS, lambda p, r: Muon(p, 0.03)))
zoo.healthy(
    "drill-songs-warm-up-from-zero-then-cosine",
    own(
        SONGS,
        lambda m, r: optim.AdamW(m.parameters(), 3 * r),
        scheduled=lambda o: optim.lr_scheduler.LambdaLR(
            o, lambda i: min(i / 25, 0.5 + 0.5 * torch.cos(torch.tensor(3.14159 * i / 140)).item())
        ),
        limit=1.0,
        steps=140,
    ),
)
zoo.healthy(
    "drill-glyphs-one-cycle",
    own(
        GLYPHS,
        lambda m, r: optim.SGD(m.parameters(), 0.05, momentum=0.9),
        scheduled=lambda o: optim.lr_scheduler.OneCycleLR(o, 0.3, total_steps=121),
        steps=120,
    ),
)
zoo.healthy(
    "drill-homes-plateau",
    own(
        HOMES,
        lambda m, r: optim.Adam(m.parameters(), 3 * r),
        scheduled=lambda o: optim.lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=8, min_lr=1e-5),
        steps=200,
    ),
)
zoo.healthy(
    "drill-genres-eight-small-batches",
    own(GENRES, lambda m, r: optim.AdamW(m.parameters(), r), micro=8, batch=8, steps=90),
)


def converged(seed: int) -> Program:
    """A line through points without noise: done after a third of the steps, and then it goes on."""
    random = torch.Generator().manual_seed(seed + 3)
    weight = torch.randn(8, 2, generator=random)
    model = nn.Linear(8, 2)
    optimizer = optim.Adam(model.parameters(), 0.05)
    losses: list[float] = []

    def run() -> None:
        for _ in range(240):
            x = torch.randn(64, 8, generator=random)
            losses.append(train_step(model, optimizer, x, x @ weight, F.mse_loss))

    x = torch.randn(256, 8, generator=random)

    def score() -> float:
        with torch.no_grad():
            return F.mse_loss(model(x), x @ weight).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("drill-line-converged", converged)


class Likes(nn.Module):
    """Users and items as vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(30, 8, sparse=True), nn.Embedding(24, 8, sparse=True)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.user(ids[:, 0]) * self.item(ids[:, 1])).sum(1)


zoo.healthy(
    "drill-likes-sparse-adam",
    own((Likes, pairings, F.mse_loss, 5e-2), lambda m, r: optim.SparseAdam(list(m.parameters()), r), steps=140),
)
zoo.healthy(
    "drill-likes-adagrad-sparse",
    own((Likes, pairings, F.mse_loss, 0.2), lambda m, r: optim.Adagrad(m.parameters(), r), steps=140),
)
