# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Common programs with faults of attention, experts, embeddings, batches and second moments, and some that are fine.

Half: common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._common_loops import (
    Factors,
    Segmenter,
    WideDeep,
    bce,
    bikes,
    cells,
    films,
    loans,
    prose,
    study,
)
from validation.cases._everyday_loops import largest_share, measured
from validation.cases.state_everyday_language import moments_lag
from validation.evidence.attention import largest_at
from validation.evidence.loops import broken, learns
from validation.labels import LOUD_LOGITS, NOISY, OUTDATED
from validation.nets import mlp
from validation.nets.programs import Einsum, Gpt, Layer, Reader, of_object
from validation.programs import held_out
from validation.states import BROKEN
from validation.tasks import Task, blobs, drawn_once, orders, token_loss

zoo = Zoo("state", half="common", proof=learns())
adamw = torch.optim.AdamW

# --- the second moment lags behind


def aged(
    make: Callable[[int], tuple[nn.Module, Task, Callable[..., Tensor]]],
    stage: Callable[[Any, Any], tuple[Any, Any, float]],
    beta2: float,
    rate: float,
):
    """A job of two stages, seen from late in its first: `stage` changes a batch and the weight of its loss."""

    def build(seed: int) -> Program:
        model, task, loss_fn = make(seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, beta2))
        batches, losses = iter(task), []

        def step(early: bool) -> float:
            x, y = next(batches)
            weight = 1.0
            if early:
                x, y, weight = stage(x, y)
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            (weight * loss).backward()
            optimizer.step()
            return loss.item()

        for _ in range(30):
            step(True)
        for state in optimizer.state.values():  # as if the stage had gone on for 1000 steps
            state["exp_avg_sq"] *= (1 - beta2**1000) / (1 - beta2**30)
            state["step"].fill_(1000.0)
        optimizer.zero_grad()

        def run() -> None:
            for i in range(100):
                losses.append(step(i < 40))

        return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, loss_fn))

    return build


for name, make, stage, rate, long in (
    (
        "bikes-weight-of-the-loss-rises",
        lambda s: (mlp([7, 40, 40, 1], nn.SiLU), bikes(s), F.mse_loss),
        lambda x, y: (x, y, 0.003),
        2e-2,
        0.9999,
    ),
    (
        "cells-loss-of-the-mask-counts-late",
        lambda s: (Segmenter(), cells(s), bce),
        lambda x, y: (x, y, 0.005),
        2e-2,
        0.9999,
    ),
):
    quick = zoo.healthy(f"common-{name}-beta2-0.95", aged(make, stage, 0.95, rate), learns(0.05))
    zoo.sick(
        f"common-{name}-beta2-{long}",
        aged(make, stage, long, rate),
        moments_lag,
        *OUTDATED,
        also={*BROKEN, "rate_too_high"},
        control=quick,
    )

# --- attention


def largest_logit(model: nn.Module, x: Tensor) -> float:
    """Over all attentions, of queries and keys as they are."""

    def read(module: Einsum, x: Tensor) -> float:
        q, k, _ = module.qkv(x).unflatten(-1, (3, module.heads, -1)).unbind(2)
        return float(torch.einsum("bihd,bjhd->bhij", q, k).abs().max() * module.scale)

    return largest_at((m for m in model.modules() if isinstance(m, Einsum)), read, model, x)


def attending(
    seed: int,
    kind: str,
    *,
    scale: float | None = None,
    std: float | None = None,
    fast: float = 3e-3,
    rate: float = 3e-3,
) -> Program:
    """A small GPT or a reader of trays, with its own attention."""
    layers = [Layer(Einsum(32, 2, scale, causal=kind == "gpt"), 32) for _ in range(2 if kind == "gpt" else 1)]
    if kind == "gpt":
        model, task, loss = Gpt(18, 32, layers, tied=False), prose(seed), of_object(token_loss)
    else:
        model, task, loss = Reader(12, 32, layers, 5, length=9), orders(seed), F.cross_entropy
    for layer in layers:
        if std is not None:
            nn.init.normal_(layer.attn.qkv.weight[:64], std=std)
    quick = [layer.attn.qkv.weight for layer in layers]
    rest = [p for p in model.parameters() if all(p is not q for q in quick)]
    optimizer = adamw([{"params": quick, "lr": fast}, {"params": rest, "lr": 3e-3}])
    facts = {"largest logit": lambda: largest_logit(model, task.aside()[0])}
    return study(model, task, optimizer, loss, 80, facts=facts)


SHARP = {*BROKEN, "first_loss_high", "clip_sets_step"}
for kind, sound, fault, good, bad in (
    ("gpt", "gpt-scores-divided", "gpt-scores-not-divided", {"std": 0.35}, {"std": 0.35, "scale": 1.0}),
    ("gpt", "gpt-queries-xavier", "gpt-queries-drawn-with-deviation-1", {}, {"std": 1.0}),
    ("reader", "trays-one-rate", "trays-queries-and-keys-at-rate-0.1", {}, {"fast": 0.1}),
    ("reader", "trays-queries-small", "trays-queries-drawn-with-deviation-1", {"std": 0.1}, {"std": 1.0}),
):
    zoo.beside(
        sound,
        fault,
        lambda s, fault, k=kind, g=good, b=bad: attending(s, k, **(b if fault else g)),
        broken(measured("largest logit", above=25.0)),
        *LOUD_LOGITS,
        also=SHARP,
    )

# --- experts


class Sparse(nn.Module):
    """Words, a layer of experts of which each word gets the best one, an answer for each word."""

    def __init__(self, words: int = 18, count: int = 4, width: int = 24) -> None:
        super().__init__()
        self.embed, self.router = nn.Embedding(words, width), nn.Linear(width, count)
        self.experts = nn.ModuleList(mlp([width, 32, width], nn.GELU) for _ in range(count))
        self.out, self.count = nn.Linear(width, words), count

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.embed(tokens).flatten(0, 1)
        p = self.router(x).softmax(dim=1)
        best = F.one_hot(p.argmax(dim=1), self.count).float()
        mixed = sum((best * p)[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        load = self.count * (best.mean(dim=0) * p.mean(dim=0)).sum()
        return self.out(x + mixed).unflatten(0, tokens.shape), load, best.mean(dim=0)


def routed(seed: int, balance: float, *, lean: float = 0.0, other: Callable[[Tensor], Tensor] | None = None) -> Program:
    """The loss of the text and of the balance; `other` changes the balance as its author wrote it."""
    model, task = Sparse(), prose(seed)
    with torch.no_grad():
        model.router.bias[0] += lean

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out, load, _ = model(batch[0])
        return token_loss(out, batch[1]) + balance * (other(load) if other else load)

    return study(
        model,
        task,
        adamw(model.parameters(), lr=4e-3),
        lambda o, y: token_loss(o[0], y),
        120,
        loss_of=loss_of,
        facts={"largest share": largest_share(model, task)},
    )


for sound, fault, good, bad in (
    ("experts-no-lean", "experts-router-starts-at-one", {"balance": 0.0}, {"balance": 0.0, "lean": 8.0}),
    (
        "experts-balance-falls",
        "experts-balance-is-rewarded",
        {"balance": 1.0},
        {"balance": 1.0, "other": lambda load: -15 * load},
    ),
):
    zoo.beside(
        sound,
        fault,
        lambda s, fault, g=good, b=bad: routed(s, **(b if fault else g)),
        broken(measured("largest share", above=0.75)),
        "router_collapse",
        "DEAD",
        layer=("router", *(f"experts.{i}.{j}" for i in range(4) for j in (0, 2))),
        also={*BROKEN, "never_moves", "DISCONNECTED", "only_decay", "detached"},
        twin_proof=learns(),
    )

# --- embeddings


def top_row(table: nn.Embedding, loss: Callable[[], Tensor]) -> Callable[[], float]:
    def share() -> float:
        (gradient,) = torch.autograd.grad(loss(), table.weight)
        rows = gradient.square().sum(dim=1)
        return float(rows.max() / rows.sum())

    return share


def hashed(seed: int, buckets: int) -> Program:
    """Kinds are hashed into so many buckets."""
    model = WideDeep()
    task = loans(seed).mapped(lambda x: (x[0] % buckets, x[1]))
    x, y = task.aside()
    facts = {"share of the top row": top_row(model.embed, lambda: bce(model(*x), y))}
    return study(model, task, adamw(model.parameters(), lr=6e-3), bce, 100, facts=facts)


def known(seed: int, share: float) -> Program:
    """Visitors without a login are all one person, number 0."""
    model, random = Factors(), drawn_once(seed, 97)

    def login(x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        away = torch.rand(len(x[0]), generator=random) < share
        return x[0].masked_fill(away, 0), x[1]

    task = films(seed).mapped(login)
    x, y = task.aside()
    facts = {"share of the top row": top_row(model.person, lambda: F.mse_loss(model(*x), y))}
    return study(model, task, adamw(model.parameters(), lr=2e-2), F.mse_loss, 110, facts=facts)


ROW = {*BROKEN, "padding_labels", "input_scales"}
zoo.beside(
    "loans-kinds-in-15-buckets",
    "loans-kinds-all-in-one-bucket",
    lambda s, fault: hashed(s, 1 if fault else 15),
    broken(measured("share of the top row", above=0.7), less=0.9),
    "embedding_row",
    layer=("embed", "wide"),
    also=ROW,
)
zoo.beside(
    "films-few-without-login",
    "films-nearly-all-without-login",
    lambda s, fault: known(s, 0.95 if fault else 0.03),
    broken(measured("share of the top row", above=0.8), less=0.8),
    "embedding_row",
    layer="person",
    also=ROW,
)
zoo.healthy("common-loans-kinds-in-7-buckets", lambda s: hashed(s, 7))
zoo.healthy("common-films-a-quarter-without-login", lambda s: known(s, 0.25))

# --- batches


def noisy(make: Callable[[int, int], tuple], size: int, rate: float, steps: int, momentum: float = 0.9):
    """SGD with batches of so many rows; the noise of one row's gradient is measured at the start."""

    def build(seed: int) -> Program:
        model, task, loss_fn = make(seed, size)
        large = iter(make(seed, 1024)[1])

        def gradient(x: Tensor, y: Tensor) -> Tensor:
            parts = torch.autograd.grad(loss_fn(model(x), y), list(model.parameters()))
            return torch.cat([part.flatten() for part in parts])

        whole = gradient(*next(large))
        x, y = next(large)
        one = torch.stack([gradient(x[i : i + 1], y[i : i + 1]) for i in range(48)])
        scale = float((one.square().sum(dim=1).mean() - whole.square().sum()) / whole.square().sum())
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
        unseen = held_out(model, make(seed, 1024)[1], loss_fn)
        facts = {"noise scale over batch": lambda: scale / size}
        return study(model, task, optimizer, loss_fn, steps, score=unseen, facts=facts)

    return build


def faint(seed: int, batch: int) -> tuple[nn.Module, Task, Callable[..., Tensor]]:
    """Classes that hardly differ, in many columns."""
    return mlp([50, 24, 4], nn.Tanh), blobs(seed, 50, 4, batch, 0.15), F.cross_entropy


def doubtful(seed: int, batch: int) -> tuple[nn.Module, Task, Callable[..., Tensor]]:
    """Bikes whose counts are mostly chance."""
    random = drawn_once(seed, 98)
    task = bikes(seed, batch).changed(lambda x, y: (x, y + 3 * torch.randn(y.shape, generator=random)))
    return mlp([7, 32, 1], nn.Tanh), task, F.mse_loss


def babble(seed: int, batch: int) -> tuple[nn.Module, Task, Callable[..., Tensor]]:
    """Text of which the next word seldom follows from the last."""
    return nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12)), prose(seed, 12, 4, batch, 0.3), token_loss


for name, make, big, small, rate, steps in (
    ("faint-classes", faint, 256, 2, 0.05, 110),
    ("doubtful-bikes", doubtful, 256, 2, 0.05, 110),
    ("babble", babble, 128, 1, 0.7, 110),
):
    wide = zoo.healthy(f"common-{name}-batches-of-{big}", noisy(make, big, rate, steps), learns(0.03))
    zoo.sick(
        f"common-{name}-batches-of-{small}",
        noisy(make, small, rate, steps),
        broken(measured("noise scale over batch", above=5.0), less=0.5),
        *NOISY,
        also={*BROKEN, "loss_stuck"},
        control=wide,
    )
zoo.healthy(
    "common-clear-classes-batches-of-4",
    noisy(lambda s, b: (mlp([20, 24, 4], nn.Tanh), blobs(s, 20, 4, b, 1.5), F.cross_entropy), 4, 0.02, 110),
)
