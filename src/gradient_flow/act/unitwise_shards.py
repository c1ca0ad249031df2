"""Adaptive clipping per unit for sharded parameters: units that are split over ranks are measured across them.

A shard along the first dimension holds whole rows, so matrices need no communication there. A vector is one unit, and
a shard along another dimension holds a piece of each unit: their sums of squares are added over the ranks that split
them, for all parameters in one collective per dimension of a mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from gradient_flow.act.unitwise import multiply_, unit_scales
from gradient_flow.capture.sharding import local_part, split_dimensions


def clip_shards_by_unit_(parameters: Sequence[Any], factor: float, eps: float) -> None:
    """Limit each unit's gradient norm to `factor` · max(weight norm, eps).

    All ranks call this with the same parameters; one whose gradient is absent here takes part with zeros.
    """
    squares = [_own_squares(parameter) for parameter in parameters]  # each (2, units): gradient, weight
    for (_, axis), positions in _splitting_axes(parameters).items():
        packed = torch.cat([squares[i].reshape(-1) for i in positions])
        dist.all_reduce(packed, group=parameters[positions[0]].device_mesh.get_group(axis))
        parts = torch.split(packed, [squares[i].numel() for i in positions])
        for i, part in zip(positions, parts, strict=True):
            squares[i] = part.view(2, -1)
    for parameter, (gradient, weight) in zip(parameters, squares, strict=True):
        scales = unit_scales(gradient.sqrt(), weight.sqrt(), factor, eps)
        if parameter.grad is None or not bool((scales < 1).any()):
            continue
        own = local_part(parameter.grad)
        multiply_(own, scales.reshape(()) if own.dim() <= 1 else scales.view(-1, *[1] * (own.dim() - 1)))


def _own_squares(parameter: Any) -> torch.Tensor:
    if parameter.grad is not None and parameter.grad.placements != parameter.placements:
        # Terms of a sum that is still to be taken say nothing of its size; the optimizer would take it next.
        parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
    weight = _squares(local_part(parameter))
    gradient = torch.zeros_like(weight) if parameter.grad is None else _squares(local_part(parameter.grad))
    return torch.stack([gradient, weight])


def _squares(tensor: torch.Tensor) -> torch.Tensor:
    sizes = (tensor.abs() if tensor.is_complex() else tensor).to(torch.float64)
    return sizes.square().sum().reshape(1) if tensor.dim() <= 1 else sizes.square().flatten(1).sum(dim=1)


def _splitting_axes(parameters: Sequence[Any]) -> dict[tuple[int, int], list[int]]:
    """Mesh dimensions that split units, and the parameters whose units they split."""
    axes: dict[tuple[int, int], list[int]] = {}
    for position, parameter in enumerate(parameters):
        for axis, dimension in split_dimensions(parameter):
            if dimension != 0 or parameter.dim() <= 1:
                axes.setdefault((id(parameter.device_mesh), axis), []).append(position)
    return axes
