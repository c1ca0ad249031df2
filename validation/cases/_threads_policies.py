"""What the policies of the half `threads` share: a robot with five moves, fixed deviations, proofs of certainty."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, call
from validation.cases._reported_policies import Gaussian, Target, a2c, drawn
from validation.evidence import judged
from validation.setups import live, of_logits
from validation.tasks import Task
from validation.tasks.task import drawn_once


def robot(
    seed: int,
    model: nn.Module,
    loss: Callable[[Any, Target], Tensor] | None = None,
    *,
    batch: int = 96,
    see: Callable[[Tensor], Tensor] = lambda state: state,
    pay: Callable[[Tensor], Tensor] = lambda reward: reward,
    **more: Any,
) -> Setup:
    """Eight beams tell how far the walls are; of five turns the one is best that goes where there is room."""
    way = torch.randn(8, 3, generator=drawn_once(seed, 9200)) / math.sqrt(8)
    turns = torch.linspace(-1, 1, 5)

    def worth(state: Tensor) -> Tensor:
        room = torch.tanh(1.5 * (state @ way)[:, :1]) + 0.3 * torch.sin(2 * state @ way)[:, 1:2]
        return 1 - 2 * (turns - room).abs()

    def draw(random: torch.Generator) -> tuple[Tensor, Target]:
        state = torch.randn(batch, 8, generator=random)
        with torch.no_grad():
            logits = model(see(state))[0]
        action = drawn(logits, random)
        reward = worth(state).gather(1, action)[:, 0] + 0.1 * torch.randn(batch, generator=random)
        return see(state), (action[:, 0], pay(reward), logits.log_softmax(dim=-1).gather(1, action)[:, 0])

    def judge(_setup: Setup) -> float:
        state = torch.randn(500, 8, generator=torch.Generator().manual_seed(31))
        with torch.no_grad():
            policy = model(see(state))[0].softmax(dim=-1)
        value = worth(state)
        return (value.amax(dim=1) - (policy * value).sum(dim=1)).mean().item()

    task = Task(seed, draw, loss or a2c())
    task.judge = judge
    options = {"kind": "Adam", "lr": 3e-3, "steps": 90, **more}
    return live(model, task, kwargs={"action_extractor": of_logits}, **options)


class Fixed(Gaussian):
    """A deviation that is a setting."""

    def __init__(self, level: float) -> None:
        super().__init__()
        del self.log_std
        self.level = level

    def deviation(self, _h: Tensor) -> Tensor:
        """The same for all."""
        return torch.full((2,), self.level)


def fixed_deviation(level: float) -> Fixed:
    """A policy of moves with a deviation that does not learn."""
    return Fixed(level)


def collapsed(below: float) -> Proof:
    """The entropy of the choice, as a share of an even one, is low."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        with torch.no_grad():
            p = call(setup.model, setup.input_fn())[0].double().softmax(dim=-1)
        share = (-(p * p.clamp_min(1e-300).log()).sum(dim=-1)).mean().item() / math.log(p.shape[-1])
        return judged(share < below, "entropy {:.3f} of an even choice", share)

    return proof


def timid(below: float) -> Proof:
    """The deviation of the moves is next to nothing beside their range of 2."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        with torch.no_grad():
            spread = call(setup.model, setup.input_fn())[1].mean().item()
        return judged(spread < below, "deviation {:.2g}", spread)

    return proof
