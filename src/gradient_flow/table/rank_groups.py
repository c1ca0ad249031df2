"""Which ranks measure together: those of the meshes that the gradients lie on."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import torch
import torch.distributed as dist

_created: Final[dict[tuple[int, ...], Any]] = {}
"""Groups by their ranks. Making one is slow, and finding it again must not need another collective."""
_created_in: list[int] = []


def group_of(tensors: Iterable[Any]) -> Any:
    """The process group of all ranks that hold a part of these `DTensor`s.

    That is the mesh that contains all the others, else the mesh they were all cut from, else the world. Ranks come to
    the same answer without asking one another, because meshes are the same objects of the program on each of them.
    """
    meshes = list({id(mesh): mesh for mesh in (tensor.device_mesh for tensor in tensors)}.values())
    members = [ranks_of(mesh) for mesh in meshes]
    everyone = set().union(*members)
    largest = max(members, key=len)
    if everyone != set(largest):
        roots = {ranks_of(mesh._get_root_mesh()) for mesh in meshes if hasattr(mesh, "_get_root_mesh")}
        largest = roots.pop() if len(roots) == 1 else tuple(range(dist.get_world_size()))
    if len(largest) == dist.get_world_size():
        return dist.group.WORLD
    mesh = next((m for m, ranks in zip(meshes, members, strict=True) if ranks == largest and m.ndim == 1), None)
    return _group_with(largest) if mesh is None else mesh.get_group()


@lru_cache(maxsize=32)
def ranks_of(mesh: Any) -> tuple[int, ...]:
    """The ranks of a mesh in order."""
    return tuple(sorted(mesh.mesh.flatten().tolist()))


def device_of(group: Any) -> torch.device:
    """Where the tensors of this group's collectives must lie: on the accelerator if it has a backend for one."""
    kinds = [device.type for device in getattr(group, "_device_types", [])]
    kind = next((kind for kind in kinds if kind != "cpu"), "cpu")
    if kind == "cpu" or not torch.get_device_module(kind).is_available():
        return torch.device("cpu")
    return torch.device(kind, torch.get_device_module(kind).current_device())


def _group_with(ranks: tuple[int, ...]) -> Any:
    world = id(dist.group.WORLD)
    if _created_in != [world]:  # the groups of a world that is gone are gone with it
        _created.clear()
        _created_in[:] = [world]
    if ranks not in _created:
        # By its members alone: the other ranks may be elsewhere in the program.
        _created[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
    return _created[ranks]
