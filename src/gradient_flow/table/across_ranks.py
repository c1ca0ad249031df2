"""One table for all ranks, from what each of them holds: two collectives, whatever the number of tensors.

Each rank measures the part of every gradient that lies on it. Sums and counts go through one packed SUM, extremes
through one packed MAX; non-finite elements are counts by then, so a NaN never meets a maximum. How often a gradient
was counted follows from the count of its elements: replicas, on whichever ranks, are divided out, and a part that a
rank has no gradient for counts as the zeros that it is. The layout is that of the names, which are the same on every
rank whichever gradients it has, and a rank that fails says so in the collective instead of staying away from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradient_flow.capture.parameters import NamedGradients
from gradient_flow.capture.sharding import is_sharded, reduced_parts
from gradient_flow.errors import MonitorStateError
from gradient_flow.table.columns import COLUMNS, EMPTY, INDEX, Rows, Thresholds, merge_rows, zeros_row

_MAXIMA = [INDEX["max"], INDEX["max_abs"]]
_ADDED = [position for name, position in INDEX.items() if name not in ("min", "max", "max_abs")]
_COUNT, _PARTS, _NAN, _INF, _NEGATIVE = (INDEX[name] for name in ("count", "parts", "nan", "inf", "neg_inf"))
_ABSENT = -1.0

Places = Mapping[str, tuple[int, ...]]


class Share(NamedTuple):
    """What this rank holds of gradients by name, measured."""

    names: tuple[str, ...]
    """Of all gradients, also of those that this rank has no part of."""
    rows: Rows
    sizes: NDArray[np.float64]
    """Elements of the whole gradient; -1 where this rank has none."""
    problem: Exception | None = None
    places: Places = MappingProxyType({})
    """Where in its mesh the part of a gradient lies; () for a gradient that is all here."""


class Merged(NamedTuple):
    """The rows of shares over all ranks, and which of them any rank had."""

    rows: Rows
    present: NDArray[np.bool_]


def share_of(found: NamedGradients, measure_local: Callable[[list[Any]], Rows]) -> Share:
    """Measure what this rank holds. A failure is kept for `merged`, where all ranks learn of it."""
    names = found.order
    rows, sizes = np.tile(EMPTY, (len(names), 1)), np.full(len(names), _ABSENT)
    at = {name: position for position, name in enumerate(names)}
    here = [at[name] for name in found.names]
    try:
        if here:
            rows[here] = measure_local(reduced_parts(found.gradients))
            sizes[here] = [float(np.prod(gradient.shape)) for gradient in found.gradients]
    except Exception as problem:
        return Share(names, np.tile(EMPTY, (len(names), 1)), np.full(len(names), _ABSENT), problem)
    places = {n: _place(g) for n, g in zip(found.names, found.gradients, strict=True)}
    return Share(names, rows, sizes, places=places)


def merged(
    shares: Sequence[Share], group: Any, device: Any, thresholds: Thresholds, *, changed: bool = False
) -> list[Merged] | None:
    """The same rows on every rank, from two collectives. `None` where a rank says that its names have `changed`.

    Every rank of the group must call this with shares of the same lengths. If one of them failed, all of them raise.
    """
    import torch
    import torch.distributed as dist

    rows, sizes = np.concatenate([share.rows for share in shares]), np.concatenate([share.sizes for share in shares])
    problem = next((share.problem for share in shares if share.problem is not None), None)
    said = np.zeros((1, len(_ADDED)))
    said[0, :2] = problem is not None, changed
    sums = torch.from_numpy(np.concatenate([said, rows[:, _ADDED]])).to(device)
    extremes = torch.from_numpy(np.column_stack([rows[:, _MAXIMA], -rows[:, INDEX["min"]], sizes])).to(device)
    # Both are under way at once: what they cost is mostly the way there and back.
    added_up = dist.all_reduce(sums, op=dist.ReduceOp.SUM, group=group, async_op=True)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=group)
    added_up.wait()
    arrived = torch.cat([sums.flatten(), extremes.flatten()]).cpu().numpy()  # one way to the host for both
    added, most = arrived[: sums.numel()].reshape(sums.shape), arrived[sums.numel() :].reshape(extremes.shape)
    if added[0, 0] > 0:
        raise _failure(problem, int(added[0, 0]), dist.get_world_size(group))
    if added[0, 1] > 0:
        return None
    result = np.empty((len(rows), len(COLUMNS)))
    result[:, _ADDED], result[:, _MAXIMA], result[:, INDEX["min"]] = added[1:], most[:, :2], -most[:, 2]
    sizes = most[:, 3]
    whole = _counted_once(result, sizes, thresholds)
    bounds = np.cumsum([0, *(len(share.names) for share in shares)])
    return [Merged(whole[a:b], sizes[a:b] != _ABSENT) for a, b in pairwise(bounds)]


def _counted_once(rows: Rows, sizes: NDArray[np.float64], thresholds: Thresholds) -> Rows:
    """Divide by the number of copies that were counted, and fill up with zeros what no rank had a gradient for."""
    counts = rows[:, _COUNT].copy()
    copies = np.ceil(np.divide(counts, sizes, out=np.ones_like(counts), where=sizes > 0)).clip(min=1)
    infinite = rows[:, _INF].copy()
    rows[:, _ADDED] /= copies[:, None]
    # A NaN in one copy of several is still a NaN.
    rows[:, [_NAN, _INF]] = np.ceil(rows[:, [_NAN, _INF]])
    rows[:, _NEGATIVE] *= np.divide(rows[:, _INF] * copies, infinite, out=np.ones_like(counts), where=infinite > 0)
    for position in np.flatnonzero(sizes * copies > counts):
        absent = sizes[position] - counts[position] / copies[position]
        parts = 2 if rows[position, _PARTS] > rows[position, _COUNT] else 1
        zeros = zeros_row(round(absent), thresholds, parts)
        rows[position] = merge_rows(np.stack([rows[position], zeros]))
    return rows


def _place(gradient: Any) -> tuple[int, ...]:
    if not is_sharded(gradient):
        return ()
    where = gradient.device_mesh.get_coordinate() or ()
    return tuple(-1 if p.is_replicate() else index for index, p in zip(where, gradient.placements, strict=False))


def _failure(problem: Exception | None, failed: int, ranks: int) -> Exception:
    if problem is not None:
        return problem
    return MonitorStateError(
        f"{failed} of {ranks} ranks could not measure their gradients, so that no rank has a table. What went wrong is "
        "said there; this rank raises with them, so that none waits for another."
    )
