"""One table for all ranks, from what each of them holds: two collectives, whatever the number of tensors.

Each rank measures the part of every gradient that lies on it. Sums and counts go through one packed SUM, extremes
through one packed MAX; non-finite elements are counts by then, so a NaN never meets a maximum. How often a gradient
was counted follows from the count of its elements: replicas, on whichever ranks, are divided out, and a part that a
rank has no gradient for counts as the zeros that it is. The layout is that of the names, which are the same on every
rank whichever gradients it has, and a rank that fails says so in the collective instead of staying away from it.

Where rows are made by a device they are packed and reduced there, and come to the host later: nothing is waited for.
Then a failure on another rank shows when the rows are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradient_flow.capture.parameters import NamedGradients
from gradient_flow.capture.sharding import is_sharded, reduced_parts
from gradient_flow.errors import MonitorStateError
from gradient_flow.table.columns import COLUMNS, EMPTY, INDEX, Rows, Thresholds, merge_rows, zeros_row

if TYPE_CHECKING:
    import torch

    from gradient_flow.capture.arrivals import Copy
    from gradient_flow.table.kernels.pending import LateRows

_MAXIMA = [INDEX["max"], INDEX["max_abs"]]
_ADDED = [position for name, position in INDEX.items() if name not in ("min", "max", "max_abs")]
_COUNT, _PARTS, _NAN, _INF, _NEGATIVE = (INDEX[name] for name in ("count", "parts", "nan", "inf", "neg_inf"))
_ABSENT = -1.0
_OURS = 2
"""Numbers in the first row of the sums that are said here: that a rank failed, and that its names have changed."""
SAYABLE: Final = len(_ADDED) - _OURS
"""Numbers that a rank may say beside its shares: there is room for them in that row, so they cost nothing."""

Places = Mapping[str, tuple[int, ...]]


class Share(NamedTuple):
    """What this rank holds of gradients by name, measured."""

    names: tuple[str, ...]
    """Of all gradients, also of those that this rank has no part of."""
    rows: Rows | torch.Tensor
    """On the device that made them, where there is one."""
    sizes: NDArray[np.float64]
    """Elements of the whole gradient; -1 where this rank has none."""
    problem: Exception | None = None
    places: Places = MappingProxyType({})
    """Where in its mesh the part of a gradient lies; () for a gradient that is all here."""


class Said(NamedTuple):
    """What ranks said beside their shares, added up over them."""

    values: Callable[[], NDArray[np.float64]]
    """The sums, as many as there is room for (`SAYABLE`); waits for a device."""
    ranks: int
    late: bool
    """Whether they are on their way: on every rank alike, however long it is there."""


class Merged(NamedTuple):
    """The rows of shares over all ranks, and which of them any rank had."""

    rows: Rows | LateRows
    present: NDArray[np.bool_]
    said: Said


def share_of(found: NamedGradients, measure_local: Callable[[list[Any]], Rows | Callable[[], Rows]]) -> Share:
    """Measure what this rank holds. A failure is kept for `merged`, where all ranks learn of it."""
    names = found.order
    rows: Any = np.tile(EMPTY, (len(names), 1))
    sizes = np.full(len(names), _ABSENT)
    at = {name: position for position, name in enumerate(names)}
    here = [at[name] for name in found.names]
    try:
        if here:
            pending = measure_local(reduced_parts(found.gradients))
            there = getattr(pending, "on_device", None)
            if there is not None and here == list(range(len(names))):
                rows = there()
            else:
                rows[here] = pending() if callable(pending) else pending
            sizes[here] = [float(np.prod(gradient.shape)) for gradient in found.gradients]
    except Exception as problem:
        return Share(names, np.tile(EMPTY, (len(names), 1)), np.full(len(names), _ABSENT), problem)
    places = {n: _place(g) for n, g in zip(found.names, found.gradients, strict=True)}
    return Share(names, rows, sizes, places=places)


def merged(
    shares: Sequence[Share],
    group: Any,
    device: Any,
    thresholds: Thresholds,
    *,
    changed: bool = False,
    at_once: bool = False,
    says: Sequence[float] = (),
) -> list[Merged] | None:
    """The same rows on every rank, from two collectives. `None` where a rank says that its names have `changed`.

    Every rank of the group must call this with shares of the same lengths. If one of them failed, all of them raise:
    now, or with collectives on an accelerator when they read the rows, unless they wait for these `at_once`.
    What a rank `says` beside that, up to `SAYABLE` numbers, comes back added up.
    """
    import torch
    import torch.distributed as dist

    from gradient_flow.capture import arrivals
    from gradient_flow.table.kernels.pending import LateRows

    problem = next((share.problem for share in shares if share.problem is not None), None)
    told_later = not at_once and arrivals.on_device(torch.empty(0, device=device))
    late = not at_once and _come_later(shares, device)
    shares = shares if late else [on_host(share) for share in shares]
    said = np.zeros((1, len(_ADDED)))
    said[0, :_OURS] = problem is not None, changed
    said[0, _OURS : _OURS + len(says)] = says
    sizes = np.concatenate([share.sizes for share in shares])
    rows = _joined([share.rows for share in shares], device, late=late)
    # Column by column: a list of positions would have to be sent to the device, and waited for.
    sums = torch.cat([_sent(said, device, late=late), torch.stack([rows[:, at] for at in _ADDED], dim=1)])
    most = [*(rows[:, at] for at in _MAXIMA), -rows[:, INDEX["min"]], _sent(sizes, device, late=late)]
    extremes = torch.stack(most, dim=1)
    # Both are under way at once: what they cost is mostly the way there and back.
    added_up = dist.all_reduce(sums, op=dist.ReduceOp.SUM, group=group, async_op=True)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=group)
    added_up.wait()
    bounds = list(pairwise(np.cumsum([0, *(len(share.names) for share in shares)]).tolist()))

    def finish(arrived: np.ndarray) -> tuple[Rows, NDArray[np.float64]] | None:
        """The rows, and how many elements each gradient has; `None` if names have changed."""
        added, most = arrived[: sums.numel()].reshape(sums.shape), arrived[sums.numel() :].reshape(extremes.shape)
        if added[0, 0] > 0:
            raise _failure(problem, int(added[0, 0]), dist.get_world_size(group))
        if added[0, 1] > 0:
            return None
        result = np.empty((len(most), len(COLUMNS)))
        result[:, _ADDED], result[:, _MAXIMA], result[:, INDEX["min"]] = added[1:], most[:, :2], -most[:, 2]
        return _counted_once(result, most[:, 3], thresholds), most[:, 3]

    on_one_way = torch.cat([sums.flatten(), extremes.flatten()])  # one way to the host for both
    copy = arrivals.Copy(on_one_way)
    heard = Said(lambda: copy.values()[_OURS : len(_ADDED)], dist.get_world_size(group), told_later)

    def part(a: int, b: int) -> LateRows:
        def of_share(arrived: list[np.ndarray]) -> Rows:
            found = finish(arrived[0])
            assert found is not None  # names change only where ranks agree on them, which is not without a wait
            return found[0][a:b]

        return LateRows([copy], of_share)

    # A rank that failed, or has waited, must not act on it before those that have not: they would be left alone.
    if late or (told_later and _has_failed(copy)):
        return [Merged(part(a, b), np.full(b - a, True), heard) for a, b in bounds]
    found = finish(copy.values())
    if found is None:
        return None
    whole, sizes = found
    return [Merged(whole[a:b], sizes[a:b] != _ABSENT, heard) for a, b in bounds]


def _has_failed(arrived: Copy) -> bool:
    """Whether some rank said so. Waits."""
    return bool(arrived.values()[0] > 0)


def _come_later(shares: Sequence[Share], device: torch.device) -> bool:
    """Whether rows can stay where they are: made on the device of the collectives, all gradients known to be there."""
    ours = [share.rows for share in shares if not isinstance(share.rows, np.ndarray)]
    known = all((share.sizes != _ABSENT).all() for share in shares)
    return bool(ours) and known and all(rows.device == device for rows in ours)


def on_host(share: Share) -> Share:
    """The same share in host memory. Waits for a device."""
    if isinstance(share.rows, np.ndarray):
        return share
    from gradient_flow.capture.arrivals import Copy

    return share._replace(rows=Copy(share.rows).values())


def _joined(rows: Sequence[Rows | torch.Tensor], device: torch.device, *, late: bool) -> torch.Tensor:
    import torch

    return torch.cat([_sent(each, device, late=late) for each in rows])


def _sent(values: Any, device: torch.device, *, late: bool) -> torch.Tensor:
    """Numbers on the device; what is there stays there."""
    import torch

    if isinstance(values, torch.Tensor):
        return values
    host = torch.from_numpy(np.ascontiguousarray(values))
    return (host.pin_memory() if late and device.type == "cuda" else host).to(device, non_blocking=late)


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
