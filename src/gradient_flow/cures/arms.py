"""One arm of a cure: the model under one treatment, or none, trained for a while on kept batches."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import torch

from gradient_flow.analysis.steps import OtherGradients, take_step
from gradient_flow.cures.batches import seed_all
from gradient_flow.cures.patient import Patient
from gradient_flow.diagnosis.treatment import Treatment

_LOST: Final = 5
"""Non-finite losses in a row after which an arm is given up: its weights are gone."""


@dataclass
class Outcome:
    """How an arm went."""

    losses: dict[int, float] = field(default_factory=dict)
    """Loss on held-out batches, by number of steps."""
    trained: list[float] = field(default_factory=list)
    """Loss of each step."""
    steps: int = 0
    seconds: float = 0.0


def order_of(patient: Patient, steps: int, repeat: int) -> list[int]:
    """Which batches an arm trains on, in order. Arms of one `repeat` are paired: they see the same.

    The first takes the batches as they came, the others draw from them: another order, some twice, some not at all.
    """
    if repeat == 0:
        return (patient.training * (1 + steps // len(patient.training)))[:steps]
    return random.Random(f"{patient.seed} {repeat}").choices(patient.training, k=steps)


def run_arm(patient: Patient, treatment: Treatment | None, checkpoints: Collection[int], repeat: int = 0) -> Outcome:
    """Train from the present state under a treatment; the held-out loss at each checkpoint."""
    steps = max(checkpoints)
    order, found, lost = order_of(patient, steps, repeat), Outcome(), 0
    started = time.perf_counter()
    model = patient.model
    with patient.treated(treatment) as optimizer, OtherGradients(model, optimizer) as others, torch.enable_grad():
        for step, at in enumerate(order, start=1):
            # Per step and not per arm: a treatment that draws numbers must not shift the dropout of all later steps.
            seed_all(patient.seed + 1000 * repeat + step)
            for parameter in model.parameters():
                parameter.grad = None
            loss = patient.batches.loss(model, at)
            others.set_aside(loss, look=step == 1)
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
                take_step(optimizer)
            value = float(loss.detach())
            found.trained.append(value)
            found.steps = step
            lost = 0 if math.isfinite(value) else lost + 1
            if lost == _LOST:
                break
            if step in checkpoints:
                found.losses[step] = patient.held_out_loss()
    for checkpoint in checkpoints:
        found.losses.setdefault(checkpoint, math.inf)
    found.seconds = time.perf_counter() - started
    return found
