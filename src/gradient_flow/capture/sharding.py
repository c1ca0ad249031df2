"""What of a tensor lies on this rank: a `DTensor` is spread over the ranks of a mesh, any other is all here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def is_sharded(value: Any) -> bool:
    """Whether this is a tensor whose elements lie on several ranks."""
    kind = _sharded_type()
    return kind is not None and isinstance(value, kind)


def any_sharded(values: Iterable[Any]) -> bool:
    """Whether one of these is. By their types: thousands of tensors have few of them."""
    sharded = _sharded_type()
    return sharded is not None and any(issubclass(kind, sharded) for kind in set(map(type, values)))


def _sharded_type() -> Any:
    """`DTensor`, if it has been imported."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def local_part(tensor: Any) -> Any:
    """The memory of a tensor on this rank, without a copy and without communication. Arrays stay as they are."""
    sharded = _sharded_type()
    if sharded is None or not isinstance(tensor, sharded):  # as `is_sharded`, which a look would call a thousand times
        return tensor.detach() if hasattr(tensor, "detach") else tensor
    local: torch.Tensor = tensor._local_tensor  # to_local() costs 300 times as much
    wait = getattr(local, "wait", None)  # the result of a collective that may still be under way
    return (wait() if callable(wait) else local).detach()


def split_dimensions(tensor: Any) -> list[tuple[int, int]]:
    """For a `DTensor`: which dimension of the mesh splits which dimension of the tensor."""
    placed = enumerate(tensor.placements)
    return [(axis, p.dim) for axis, p in placed if not p.is_replicate() and not p.is_partial()]


def is_unreduced(tensor: Any) -> bool:
    """Whether ranks hold terms of a sum that has not been taken yet (placement `Partial`)."""
    return is_sharded(tensor) and any(placement.is_partial() for placement in tensor.placements)


def reduced_parts(tensors: Sequence[Any]) -> list[Any]:
    """The local parts; sums that have not been taken yet are taken first, many of them in one collective.

    The tensors themselves stay as they are. All ranks of their meshes must call this with the same tensors.
    """
    parts = [local_part(tensor) for tensor in tensors]
    together: dict[tuple[int, int, str, Any], list[int]] = {}
    for position, tensor in enumerate(tensors):
        for axis, placement in enumerate(tensor.placements if is_unreduced(tensor) else ()):
            if placement.is_partial():
                key = id(tensor.device_mesh), axis, str(placement.reduce_op), parts[position].dtype
                together.setdefault(key, []).append(position)
    for (_, axis, operation, _), positions in together.items():
        mesh = tensors[positions[0]].device_mesh
        for position, part in zip(
            positions, _reduce([parts[i] for i in positions], operation, mesh, axis), strict=True
        ):
            parts[position] = part
    return parts


def _reduce(parts: list[torch.Tensor], operation: str, mesh: Any, axis: int) -> list[torch.Tensor]:
    import torch
    import torch.distributed as dist

    packed = torch.cat([part.reshape(-1) for part in parts])
    kind = {"sum": "SUM", "avg": "SUM", "max": "MAX", "min": "MIN", "product": "PRODUCT"}[operation]
    dist.all_reduce(packed, op=getattr(dist.ReduceOp, kind), group=mesh.get_group(axis))
    if operation == "avg":
        packed /= mesh.size(axis)
    flat = torch.split(packed, [part.numel() for part in parts])
    return [own.view(part.shape) for own, part in zip(flat, parts, strict=True)]


def several_ranks() -> bool:
    """Whether this process trains together with others."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_first_rank() -> bool:
    """Whether this is the rank that writes: the first, or the only one."""
    if several_ranks():
        import torch.distributed as dist

        return dist.get_rank() == 0
    # Before the process group is there. torchrun tells every process its rank, Lightning those after the first.
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK"))
