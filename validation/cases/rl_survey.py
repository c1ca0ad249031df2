# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Policies with one fault of each kind, their twins, and odd healthy ones.

Half: holdout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.play import explores
from validation.evidence.signal import both, dead, no_gradient, not_finite, saturated
from validation.evidence.training import does_not_move, gradient_norms_spread, learns_less, trains
from validation.labels import AT_ITS_ENDS, JUMPS, STUCK, SURE
from validation.nets import Shared, fond_of, sure
from validation.setups import discrete, mover
from validation.tasks import choices, every

zoo = Zoo("rl", half="holdout", analyzer="policy", proof=trains(lr=1e-2))


def eight(seed: int, model: nn.Module, change=None, loss=None, **more) -> Setup:
    """Eight actions over sixteen observations."""
    task = choices(seed, 16, 8, 72)
    task = task.mapped(change) if change else task
    return discrete(model, task.with_loss(loss) if loss else task, **more)


def actor(act=nn.SiLU) -> Shared:
    return Shared(16, 8, 60, act)


# --- what is tried

calm = zoo.healthy("silu-trunk-8-actions", lambda s: eight(s, actor()))
zoo.sick(
    "silu-trunk-8-actions-always-the-fifth",
    lambda s: eight(s, fond_of(actor(), 4, 14.0)),
    explores(0, 0.03, 0.5),
    *STUCK,
    layer="logits",
    also=SURE,
    control=calm,
)
zoo.sick(
    "silu-trunk-8-actions-logits-times-500",
    lambda s: eight(s, sure(actor(), 500.0)),
    explores(0, 0.05, 0.45),
    *STUCK,
    layer="logits",
    also=SURE,
    control=calm,
)
masked = zoo.healthy(
    "masked-15-actions-gelu", lambda s: discrete(Shared(12, 15, 48, nn.GELU, masked=True), choices(s, 12, 15, 80))
)
zoo.sick(
    "masked-15-actions-one-far-ahead",
    lambda s: discrete(fond_of(fond_of(Shared(12, 15, 48, nn.GELU, True), 1, 16.0), 3, 32.0), choices(s, 12, 15, 80)),
    explores(0, 0.06, 0.5),
    *STUCK,
    layer="logits",
    also=SURE,
    control=masked,
)


def steering(seed: int, reach: float, share: float, factor: float = 1.0) -> Setup:
    """Three moves within `reach`; `share` is the deviation in units of it."""
    return mover(seed, reach, share, factor, 9, 3)


wheel = zoo.healthy("steering-within-5-deviation-2", lambda s: steering(s, 5.0, 0.4))
zoo.sick(
    "steering-within-5-deviation-0.01", lambda s: steering(s, 5.0, 0.002), explores(0, 0.02, 0.4), *STUCK, control=wheel
)
zoo.sick(
    "steering-within-5-deviation-100",
    lambda s: steering(s, 5.0, 20.0),
    explores(80, 120, 100),
    "EXPLORATION",
    also={"UNSTABLE", "EXPLODING"},
    control=wheel,
)
zoo.sick(
    "steering-within-5-mean-at-its-ends",
    lambda s: steering(s, 5.0, 0.4, 400.0),
    both(saturated("squash", "tanh", 0.85), learns_less(lr=1e-2, by=0.1)),
    *AT_ITS_ENDS,
    layer=("mean", "squash"),
    also={"EXPLODING"},
    control=wheel,
)

# --- the faults of any network


def pushed_down(seed: int) -> Setup:
    model = actor(nn.ReLU)
    nn.init.constant_(model.trunk[0].bias, -40)
    return eight(seed, model)


relu = zoo.healthy("relu-trunk-8-actions", lambda s: eight(s, actor(nn.ReLU)))
zoo.sick(
    "relu-trunk-8-actions-first-layer-dead",
    pushed_down,
    both(dead("trunk.1", 0.99), no_gradient("trunk.0")),
    "DEAD",
    layer="trunk.0",
    also={"DISCONNECTED", "VANISHING", "EXPLORATION", "LOW_RANK", "BOTTLENECK"},
    control=relu,
)


def policy_only(output: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
    """Somebody left the critic out of the loss."""
    return 1 - (output[0].softmax(dim=-1) * pay / pay.amax(dim=1, keepdim=True)).sum(dim=1).mean()


zoo.sick(
    "silu-trunk-critic-left-out-of-the-loss",
    lambda s: eight(s, actor(), loss=policy_only),
    no_gradient("value"),
    "DISCONNECTED",
    layer="value",
    also={"DEAD"},
    control=calm,
)


def weighted(floor: float):
    """Importance weights by a behaviour policy that never took some of the actions."""

    def loss(output: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        logits, value = output
        before = (pay - 0.02).clamp_min(floor)
        gain = (logits.softmax(dim=1) / before * pay).sum(dim=1)
        return 1 + (value - pay.amax(dim=1)).square().mean() - 0.2 * gain.mean()

    return loss


sound = zoo.healthy("importance-weights-with-floor", lambda s: eight(s, actor(), loss=weighted(0.1)))
zoo.sick(
    "importance-weights-by-zero",
    lambda s: eight(s, actor(), loss=weighted(0.0)),
    not_finite(batches=3),
    "NUMERICAL",
    "EXPLODING",
    also={"UNSTABLE"},
    control=sound,
)


def prizes(seed: int, size: float) -> Setup:
    """In one batch of fifteen the critic has to follow a return that is thousands of times as large."""
    now = every(15, 8)

    def loss(output: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        logits, value = output
        earned = (logits.softmax(dim=-1) * pay).sum(dim=1)
        goal = earned.detach() + (size if now() else 0.0)
        return 1 - earned.mean() + 0.5 * (value - goal).square().mean()

    return eight(seed, actor(), loss=loss, steps=60)


even = zoo.healthy("returns-of-one-size", lambda s: prizes(s, 0.0))
zoo.sick(
    "returns-in-thousands-in-one-batch-of-fifteen",
    lambda s: prizes(s, 5e3),
    gradient_norms_spread(30),
    *JUMPS,
    control=even,
)


def learning(seed: int, kind: str, lr: float) -> Setup:
    model = actor()
    return eight(seed, model, optimizer=getattr(torch.optim, kind)(model.parameters(), lr=lr))


adamw = zoo.healthy("silu-trunk-adamw-4e-3", lambda s: learning(s, "AdamW", 4e-3), trains(steps=60))
zoo.sick("silu-trunk-adam-1e-10", lambda s: learning(s, "Adam", 1e-10), does_not_move(), "SLOW", control=adamw)

# --- odd and healthy

zoo.healthy("three-actions-elu-width-24", lambda s: discrete(Shared(5, 3, 24), choices(s, 5, 3, 48)))
zoo.healthy("steering-within-0.02-deviation-0.01", lambda s: steering(s, 0.02, 0.5))
zoo.healthy("steering-within-200-deviation-60", lambda s: steering(s, 200.0, 0.3))
