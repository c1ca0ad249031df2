"""Action distributions as two plain kinds of head: logits with a mask, and means with standard deviations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

MASKED_BELOW: Final = 1e5
"""A logit this far below the largest of its row is a mask, as -1e8 or `finfo.min` are, and no opinion of the policy."""


@dataclass(frozen=True)
class DiscreteHead:
    """One action factor: logits and which of them may be chosen, both (states, actions)."""

    logits: Tensor
    valid: Tensor


@dataclass(frozen=True)
class ContinuousHead:
    """Real-valued actions, all (states, dimensions); the bounds (dimensions,) are NaN where there are none."""

    mean: Tensor
    std: Tensor
    action_mean: Tensor
    action_std: Tensor
    low: Tensor
    high: Tensor
    squashed: bool = False
    mean_known: bool = True


@dataclass
class Heads:
    """All that a policy decides, and what could not be read of it."""

    discrete: list[DiscreteHead] = field(default_factory=list)
    continuous: list[ContinuousHead] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def discrete_head(logits: Tensor, mask: Tensor | None = None) -> DiscreteHead:
    """Logits of any leading shape; -inf and mask-like values far below the rest are actions that cannot be chosen."""
    rows = wide(logits).reshape(-1, logits.shape[-1])  # (states, actions)
    top = rows.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(-1, keepdim=True)
    valid = ~(rows < top - MASKED_BELOW) & (rows != -torch.inf)  # this way round NaN stays valid, and is counted later
    lowest = torch.finfo(logits.dtype).min
    if lowest > -MASKED_BELOW:  # half precision masks with a number that is not that far below
        valid &= rows != lowest
    if mask is not None:
        valid &= mask.to(rows.device).bool().expand(logits.shape).reshape(rows.shape)
    return DiscreteHead(rows, valid)


def continuous_head(mean: Tensor | None, std: Tensor) -> ContinuousHead:
    """Means and standard deviations that broadcast; a `std` alone of one dimension is one per action dimension."""
    if mean is None:
        std = wide(std)
        std = std.reshape(1, -1) if std.dim() < 2 else std.reshape(-1, std.shape[-1])
        mean, known = torch.zeros_like(std), False
    else:
        known = True
        mean, std = torch.broadcast_tensors(wide(mean), wide(std))  # type: ignore[no-untyped-call]  # torch's own
        columns = mean.shape[-1] if mean.dim() > 1 else 1
        mean, std = mean.reshape(-1, columns), std.reshape(-1, columns)
    unbounded = torch.full_like(std[0], torch.nan)
    return ContinuousHead(mean, std, mean, std, unbounded, unbounded, mean_known=known)


def wide(tensor: Tensor) -> Tensor:
    """Detached, in double precision where the device has it."""
    return tensor.detach().to(torch.float32 if tensor.device.type == "mps" else torch.float64)
