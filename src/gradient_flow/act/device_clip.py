"""Clipping that a device decides and does by itself: norms, limits and factors are tensors there, and no host reads."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gradient_flow.act.clip_factors import clip_factor_by_norm
from gradient_flow.act.clipper import ClipDecision, GradientClipper
from gradient_flow.act.in_place import ScaleInStep, clamp_gradients_there_, scale_gradients_there_
from gradient_flow.capture.arrivals import Copy
from gradient_flow.table.row_parameters import Parameters

ON_DEVICE = ("norm", "value", "adaptive", "zclip", "per_group")
"""Strategies that need nothing of a step but the sums of squares of its gradients."""
FOLLOW = ("adaptive", "zclip")
"""Those whose limit follows the norms of earlier steps: these must have come."""


class _Group(NamedTuple):
    """Gradients with a limit of their own."""

    positions: list[int]
    factor: torch.Tensor


class DeviceClip:
    """A decision on its device, and on its way to the host."""

    def __init__(
        self,
        clipper: GradientClipper,
        parameters: Parameters,
        squares: torch.Tensor,
        optimizer: torch.optim.Optimizer | None,
        finite: torch.Tensor | None,
    ) -> None:
        """`squares` (rows,): sums of squares, unscaled. Where `finite` is false there, nothing is clipped."""
        config = clipper.config
        self.kind = config.active_clip_type if config.enable_gradient_clipping and len(parameters) else None
        self._count, self._parameters = len(parameters), parameters
        self._limit: float | torch.Tensor = math.inf
        self._groups: list[_Group] = []
        norm = squares.sum().sqrt()
        if self.kind == "value":
            self._limit = config.max_grad_norm
        elif self.kind == "per_group":
            groups = clipper.groups(parameters, optimizer)
            norms = (_membership(squares.device, self._count, _frozen(groups)) @ squares).sqrt()
            self._limit = min((limit for limit, _ in groups), default=math.inf)
            self._groups = [
                _Group(positions, clip_factor_by_norm(norms[at], limit))
                for at, (limit, positions) in enumerate(groups)
                if limit < math.inf
            ]
        elif self.kind is not None:
            self._limit = clipper.limit(norm)
            if isinstance(self._limit, torch.Tensor) or self._limit < math.inf:
                self._groups = [_Group(list(range(self._count)), clip_factor_by_norm(norm, self._limit))]
        if finite is not None:
            self._groups = [_Group(group.positions, group.factor.where(finite, 1.0)) for group in self._groups]
        limit = self._limit if isinstance(self._limit, torch.Tensor) else norm.new_full((), self._limit)
        self._numbers = Copy(torch.stack([norm, limit, *(group.factor for group in self._groups)]))
        self._finite = finite

    def ready(self) -> bool:
        """Whether the numbers have come."""
        return self._numbers.ready()

    def wait(self) -> None:
        """Wait for them."""
        self._numbers.tensor()

    @property
    def factor(self) -> torch.Tensor | None:
        """The one factor for all gradients, where there is one."""
        everything = len(self._groups) == 1 and len(self._groups[0].positions) == self._count
        return self._groups[0].factor if everything else None

    @property
    def cut_at(self) -> float | None:
        """Clip by value, at a limit that is not infinite."""
        cuts = self.kind == "value" and not isinstance(self._limit, torch.Tensor) and self._limit < math.inf
        return float(self._limit) if cuts else None

    def apply(self, scale: float | torch.Tensor, in_step: ScaleInStep | None) -> None:
        """Change the gradients, but for a factor that the optimizer's own step takes.

        `scale` is a loss scale still in them.
        """
        if self.cut_at is not None:
            limit: float | torch.Tensor = self.cut_at * scale
            if self._finite is not None:
                # What is not finite stays as it is: an infinite limit cuts nothing.
                bound = (
                    limit if isinstance(limit, torch.Tensor) else self._finite.new_full((), limit, dtype=torch.float64)
                )
                limit = bound.where(self._finite, math.inf)
            clamp_gradients_there_([parameter for _, parameter in self._parameters], limit)
            return
        for positions, factor in self._groups:
            if in_step is None or self.factor is None:
                scale_gradients_there_([self._parameters[at][1] for at in positions], factor)

    def decision(self, norm: float | None) -> ClipDecision:
        """What was decided, as the host would have put it; `norm` as the table has it, None where it is another.

        Waits for the numbers.
        """
        numbers = self._numbers.values()
        factors: NDArray[np.float64] = np.ones(self._count)
        for group, factor in zip(self._groups, numbers[2:].tolist(), strict=True):
            factors[group.positions] = factor
        total = float(numbers[0]) if norm is None else norm
        return ClipDecision(total, factors, float(numbers[1]), cut_at=self.cut_at, kind=self.kind)


def _frozen(groups: list[tuple[float, list[int]]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(positions) for _, positions in groups)


@lru_cache(maxsize=8)
def _membership(device: torch.device, count: int, groups: tuple[tuple[int, ...], ...]) -> torch.Tensor:
    """Which row belongs to which group, as ones and zeros: sent once, and a product adds up all groups at once."""
    matrix = np.zeros((len(groups), count))
    for at, positions in enumerate(groups):
        matrix[at, list(positions)] = 1.0
    host = torch.from_numpy(matrix)
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
