# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Common programs whose steps are too large or too small, their twins, and sizes that are fine.

Half: common.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._common_loops import (
    Clip,
    Coder,
    Decoder,
    Factors,
    Forecaster,
    Pocket,
    ResNet,
    Segmenter,
    Tagger,
    TextCnn,
    WideDeep,
    bce,
    bikes,
    captions,
    cells,
    faces,
    films,
    gaits,
    leaves,
    loans,
    names,
    prose,
    quakes,
    recipes,
    study,
    wines,
)
from validation.cases._mistakes import in_parts, rated, summed
from validation.evidence.loops import broken, learns, steps_above, steps_below
from validation.labels import CRAWLS, FAST, IDLE, LOST, SUMMED, UNDIVIDED, WRECKED
from validation.nets import mlp
from validation.programs import adam, held_out, script
from validation.tasks import Task, token_loss

zoo = Zoo("loop", half="common", proof=learns())
adamw = torch.optim.AdamW
Made = Callable[[int], tuple[nn.Module, Task, Callable[..., Tensor]]]
THROWN = {*WRECKED, *LOST, "first_loss_high", "momentum_too_long"}

MADE: dict[str, Made] = {
    "decoder": lambda s: (Decoder(), prose(s), token_loss),
    "leaves": lambda s: (ResNet(), leaves(s), F.cross_entropy),
    "recipes": lambda s: (TextCnn(), recipes(s), F.cross_entropy),
    "quakes": lambda s: (Forecaster(nn.LSTM), quakes(s), F.mse_loss),
    "loans": lambda s: (WideDeep(), loans(s), bce),
    "faces": lambda s: (Coder(), faces(s), F.mse_loss),
    "captions": lambda s: (Clip(), captions(s), F.cross_entropy),
    "names": lambda s: (Tagger(), names(s), token_loss),
    "cells": lambda s: (Segmenter(), cells(s), bce),
    "films": lambda s: (Factors(), films(s), F.mse_loss),
    "wines": lambda s: (mlp([13, 40, 40, 5]), wines(s), F.cross_entropy),
    "gaits": lambda s: (Pocket(), gaits(s), F.cross_entropy),
}


# --- too large

for name, kind, good, bad, options in (
    ("decoder", "AdamW", 3e-3, 0.3, {}),
    ("wines", "SGD", 0.05, 20.0, {"momentum": 0.9}),
    ("quakes", "Adam", 5e-3, 1.0, {}),
    ("cells", "RMSprop", 2e-3, 0.5, {}),
):
    zoo.beside(
        f"{name}-{kind.lower()}-rate-{good:g}",
        f"{name}-{kind.lower()}-rate-{bad:g}",
        rated(MADE[name], kind, good, bad, **options),
        broken(steps_above(2), less=0.9),
        *FAST,
        "loss_grows",
        also=THROWN,
    )

# --- too small

for name, kind, good, bad, options in (
    ("faces", "SGD", 0.5, 1e-4, {"momentum": 0.9}),
    ("captions", "AdamW", 4e-3, 1e-6, {}),
    ("names", "SGD", 1.0, 3e-4, {}),
):
    zoo.beside(
        f"{name}-{kind.lower()}-rate-{good:g}",
        f"{name}-{kind.lower()}-rate-{bad:g}",
        rated(MADE[name], kind, good, bad, 80, **options),
        broken(steps_below(1e-4), less=0.1),
        *CRAWLS,
        also=IDLE,
    )

# --- sums


def token_sum(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum")


def squares(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square().sum()


for name, loss_sum, rate in (
    ("names", token_sum, 1.0),
    ("faces", squares, 0.3),
    ("cells", lambda o, y: F.binary_cross_entropy_with_logits(o, y, reduction="sum"), 0.2),
):
    zoo.beside(
        f"{name}-mean-of-the-loss",
        f"{name}-sum-of-the-loss",
        summed(MADE[name], loss_sum, rate, 70, 0.5),
        broken(steps_above(2), less=0.9),
        *SUMMED,
        "loss_grows",
        also=THROWN,
    )

# --- micro-batches


small_wines: Made = lambda s: (mlp([13, 40, 40, 5]), wines(s, batch=8), F.cross_entropy)  # noqa: E731
small_quakes: Made = lambda s: (Forecaster(), quakes(s, batch=4), F.mse_loss)  # noqa: E731
for name, made, parts, rate in (("wines", small_wines, 24, 0.3), ("quakes", small_quakes, 8, 0.4)):
    zoo.beside(
        f"{name}-{parts}-parts-divided",
        f"{name}-{parts}-parts-not-divided",
        in_parts(made, parts, rate, 25, 0.8),
        broken(steps_above(2), less=0.8),
        *UNDIVIDED,
        "loss_grows",
        also={*THROWN, "summed_loss"},
    )

# --- healthy: other optimizers and sizes

for name, kind, rate, options in (
    ("decoder", "NAdam", 3e-3, {}),
    ("leaves", "SGD", 0.1, {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}),
    ("recipes", "Adagrad", 0.05, {}),
    ("quakes", "RMSprop", 3e-3, {}),
    ("loans", "AdamW", 5e-3, {"weight_decay": 0.1, "betas": (0.9, 0.98)}),
    ("faces", "Adamax", 1e-2, {}),
    ("captions", "RAdam", 8e-3, {}),
    ("films", "Adadelta", 30.0, {}),
    ("wines", "Rprop", 3e-3, {}),
    ("gaits", "Adam", 1e-2, {"amsgrad": True}),
    ("names", "ASGD", 1.0, {}),
    ("cells", "Adafactor", 3e-2, {}),
):
    build = rated(MADE[name], kind, rate, rate, 90, **options)
    zoo.healthy(f"common-{name}-{kind.lower()}", lambda s, b=build: b(s, False))
zoo.healthy("common-leaves-4-parts-divided", lambda s: in_parts(MADE["leaves"], 4, 0.1, 20)(s, False))


def summed_adam(seed: int) -> Program:
    """A summed loss under Adam, which takes no notice of the factor."""
    model, task = Coder(), faces(seed)
    return study(model, task, adam(model, 5e-3), squares, 80, F.mse_loss)


zoo.healthy("common-faces-sum-under-adam", summed_adam)


def by_tokens(seed: int) -> Program:
    """Micro-batches of unlike length, each divided by the number of all tokens of the step."""
    model, task = Tagger(), names(seed, batch=8)
    optimizer = adamw(model.parameters(), lr=8e-3)

    def body(i: int, x: Tensor, y: Tensor, _: Callable[[], Tensor]) -> Tensor:
        size = 4 + i % 6
        value = token_sum(model(x[:, :size]), y[:, :size])
        (value / (8 * 13)).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
        return value / (8 * size)

    return script(model, optimizer, task, token_loss, body, 160)


zoo.healthy("common-names-parts-divided-by-tokens", by_tokens)


def lbfgs(seed: int) -> Program:
    """One whole batch, and the gradient of all of it."""
    model, task = mlp([7, 24, 1], nn.Tanh), bikes(seed, 256)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=6)
    losses: list[float] = []
    x, y = next(iter(task))

    def run() -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        for _ in range(25):
            losses.append(optimizer.step(closure).item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


zoo.healthy("common-bikes-lbfgs", lbfgs)
