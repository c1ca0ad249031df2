"""One table for all ranks, from the shards that each of them holds: two collectives, whatever the number of tensors.

A gradient that is a `DTensor` lies in shards on the ranks of its mesh. Each rank measures its own shard; a shard that
several ranks hold (a replicated dimension) is counted by the first of them. Sums and counts go through one packed SUM,
extremes through one packed MAX; non-finite elements are counts by then, so a NaN never meets a maximum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gradient_flow.measurement.columns import COLUMNS, EMPTY, INDEX, Rows

if TYPE_CHECKING:
    import torch
    from torch.distributed.tensor import DTensor

_MAXIMA = [INDEX["max"], INDEX["max_abs"]]
_MINIMUM = INDEX["min"]
_ADDED = [position for name, position in INDEX.items() if name not in ("min", "max", "max_abs")]

Measure = Callable[[list[Any]], Rows]


def is_sharded(value: Any) -> bool:
    """Whether this is a tensor whose elements lie on several ranks."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def any_sharded(values: Iterable[Any]) -> bool:
    """Whether one of these is. By their types: thousands of tensors have few of them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(issubclass(kind, module.DTensor) for kind in set(map(type, values)))


def global_rows(gradients: list[Any], measure_local: Measure) -> tuple[Rows, list[bool]]:
    """The rows of sharded gradients over all their ranks, and which of them any rank has.

    `gradients` holds `DTensor`s, or pairs of a parameter without a gradient on this rank and `None`. Every rank must
    call this with the same parameters in the same order; the answer is the same on all of them.
    """
    shards = [_own_shard(gradient) for gradient in gradients]
    rows = np.tile(EMPTY, (len(shards), 1))
    held = [position for position, shard in enumerate(shards) if shard is not None]
    if held:
        rows[held] = measure_local([shards[position] for position in held])
    present = np.array([not isinstance(gradient, tuple) for gradient in gradients], dtype=np.float64)
    group, device = _group_of(gradients)
    return _reduced(rows, present, group, device)


def _own_shard(gradient: Any) -> torch.Tensor | None:
    """The local part that this rank has to count; None where another rank counts it."""
    if isinstance(gradient, tuple):  # no gradient on this rank
        return None
    from torch.distributed.tensor import Replicate

    if any(placement.is_partial() for placement in gradient.placements):
        whole = [Replicate() if placement.is_partial() else placement for placement in gradient.placements]
        gradient = gradient.redistribute(placements=whole)
    place = gradient.device_mesh.get_coordinate()
    if place is None:
        return None
    copies = [index for index, p in zip(place, gradient.placements, strict=True) if p.is_replicate()]
    local: torch.Tensor = gradient._local_tensor
    return local.detach() if not any(copies) else None


def _mesh_of(gradient: Any) -> Any:
    tensor: DTensor = gradient[0] if isinstance(gradient, tuple) else gradient
    return tensor.device_mesh


def _group_of(gradients: list[Any]) -> tuple[Any, Any]:
    """The ranks that share the work: those of the one mesh, or all where there are several or they fill the world."""
    import torch.distributed as dist

    meshes = list({id(mesh): mesh for mesh in map(_mesh_of, gradients)}.values())
    first = gradients[0][0] if isinstance(gradients[0], tuple) else gradients[0]
    device = first._local_tensor.device
    if len(meshes) > 1 or meshes[0].size() == dist.get_world_size():
        return dist.group.WORLD, device
    mesh = meshes[0]
    return (mesh.get_group() if mesh.ndim == 1 else mesh._flatten().get_group()), device


def _reduced(rows: Rows, present: np.ndarray, group: Any, device: Any) -> tuple[Rows, list[bool]]:
    import torch
    import torch.distributed as dist

    sums = torch.from_numpy(np.column_stack([rows[:, _ADDED], present])).to(device)
    extremes = torch.from_numpy(np.column_stack([rows[:, _MAXIMA], -rows[:, _MINIMUM]])).to(device)
    dist.all_reduce(sums, op=dist.ReduceOp.SUM, group=group)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=group)
    result = np.empty((len(rows), len(COLUMNS)))
    added, most = sums.cpu().numpy(), extremes.cpu().numpy()
    result[:, _ADDED], result[:, _MAXIMA], result[:, _MINIMUM] = added[:, :-1], most[:, :-1], -most[:, -1]
    return result, (added[:, -1] > 0).tolist()
