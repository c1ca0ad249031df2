"""Adaptive gradient clipping per unit (NFNets, arXiv 2102.06171): a unit's gradient against the unit's weights.

A unit is what one output is computed from: a row of a matrix, a filter of a convolution, a whole bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from gradient_flow.act.in_place import writable_gradient
from gradient_flow.capture.arrivals import on_device
from gradient_flow.capture.sharding import local_part, split_dimensions


def clip_by_unit_(parameter: torch.Tensor, factor: float, eps: float) -> bool | torch.Tensor:
    """Limit each unit's gradient norm to `factor` · max(weight norm, eps). True if any unit was above it.

    On a device that is not asked: every gradient is written, and the answer is a tensor there.
    """
    gradient = parameter.grad
    assert gradient is not None
    weight = parameter.detach()
    if gradient.layout != torch.strided:
        return _clip_sparse_(parameter, factor, eps)
    scales = unit_scales(_unit_norms(gradient), _unit_norms(weight), factor, eps)
    above = (scales < 1).any()
    if on_device(gradient):
        multiply_(writable_gradient(parameter), scales)
        return above
    if not bool(above):
        return False
    multiply_(writable_gradient(parameter), scales)
    return True


def _clip_sparse_(parameter: torch.Tensor, factor: float, eps: float) -> bool | torch.Tensor:
    gradient = parameter.grad
    assert gradient is not None
    if gradient.layout != torch.sparse_coo or gradient.sparse_dim() != 1:
        parameter.grad = gradient.to_dense()
        return clip_by_unit_(parameter, factor, eps)
    gradient = gradient.coalesce()
    values, rows = gradient._values(), gradient._indices()[0]
    weight = parameter.detach()[rows]
    if values.dim() <= 1:  # a vector is one unit: what is not stored is zero
        scales = unit_scales(_norm(values), _norm(parameter.detach()), factor, eps)
    else:
        scales = unit_scales(_unit_norms(values), _unit_norms(weight), factor, eps)
    if not bool((scales < 1).any()):
        return False
    parameter.grad = gradient
    multiply_(values, scales)
    return True


def _unit_norms(tensor: torch.Tensor) -> torch.Tensor:
    """Norms over all but the first dimension, kept as dimensions of size one; of the whole for vectors and scalars."""
    if tensor.dim() <= 1:
        return _norm(tensor)
    return _norm(tensor, tuple(range(1, tensor.dim())))


def _norm(tensor: torch.Tensor, dims: tuple[int, ...] | None = None) -> torch.Tensor:
    if tensor.is_complex():
        tensor = tensor.abs()
    wide = tensor.to(torch.float64)  # squares of large fp32 numbers overflow fp32
    squares = wide.square()
    return (squares.sum() if dims is None else squares.sum(dims, keepdim=True)).sqrt()


def unit_scales(gradient: torch.Tensor, weight: torch.Tensor, factor: float, eps: float) -> torch.Tensor:
    """What to multiply units by, from the norms of their gradients and weights."""
    limit = factor * weight.clamp(min=eps)
    return torch.where(gradient > limit, limit / gradient, 1.0)


def multiply_(gradient: torch.Tensor, scales: torch.Tensor) -> None:
    """In fp64 and rounded once; scales may be too small for the gradient's own dtype."""
    wide = torch.complex128 if gradient.is_complex() else torch.float64
    gradient.copy_(gradient.to(wide) * scales)


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
        if parameter.grad is None:
            continue
        own = local_part(parameter.grad)
        if not on_device(own) and not bool((scales < 1).any()):
            continue
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
