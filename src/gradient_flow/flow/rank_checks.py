"""`RankTrace`: whose gradient was not finite before ranks were averaged. `RankCheck`: which ranks differ or lag.

After the reduction of `DistributedDataParallel` a NaN of one rank is a NaN on all. Both classes are off unless asked
for, and each costs one collective of a few numbers per rank where it is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gradient_flow.capture.parameters import module_parameters
from gradient_flow.capture.sharding import is_sharded, several_ranks
from gradient_flow.errors import InputError
from gradient_flow.table import GradientTable
from gradient_flow.table.columns import INDEX
from gradient_flow.table.measure import PendingRows, reader_for_hooks

_TOLERANCE: Final = 1e-9
"""Relative difference of two norms of the same gradients on different processors; replicas that drift differ more."""


class BadRank(NamedTuple):
    """A rank whose own gradients were not finite."""

    rank: int
    elements: int
    layer: str
    """The first in the order of backward, which is the nearest to the cause."""


class RankTrace:
    """Counts the non-finite elements of each gradient as it comes out of backward, before ranks are averaged."""

    def __init__(self, model: torch.nn.Module) -> None:
        read = reader_for_hooks()
        named = [(name, p) for name, p in module_parameters(model) if p.requires_grad]
        if any(is_sharded(parameter) for _, parameter in named):
            raise InputError(
                "`trace_ranks` looks at whole gradients before they are averaged (DistributedDataParallel); this model "
                "is sharded, and no rank holds whole gradients."
            )
        self._names = [name for name, _ in named]
        self._seen: list[tuple[int, PendingRows]] = []
        self._handles: list[Any] = [_hooked(p, partial(self._see, i, read)) for i, (_, p) in enumerate(named)]

    def _see(self, position: int, read: Callable[[list[torch.Tensor]], PendingRows], gradient: torch.Tensor) -> None:
        rows = read([gradient])
        if callable(rows) or rows[0, INDEX["nan"]] + rows[0, INDEX["inf"]]:
            self._seen.append((position, rows))

    def bad_ranks(self) -> tuple[BadRank, ...]:
        """The ranks with non-finite gradients since the last call. All ranks call it together."""
        seen, self._seen = self._seen, []
        count, first = 0, -1
        for position, pending in seen:
            rows = pending() if callable(pending) else pending
            bad = int(rows[0, INDEX["nan"]] + rows[0, INDEX["inf"]])
            first = position if bad and first < 0 else first
            count += bad
        by_rank = gathered([count, first])
        return tuple(BadRank(rank, int(n), self._names[int(at)]) for rank, (n, at) in enumerate(by_rank) if n)

    def forget(self) -> tuple[BadRank, ...]:
        """Ignore the gradients since the last call, without communication."""
        self._seen = []
        return ()

    def close(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


class RankReport(NamedTuple):
    """How ranks compare at one step."""

    norms: tuple[float, ...]
    """The gradient norm of each rank, which replicas share."""
    differing: tuple[int, ...]
    """Ranks whose gradients are not those of most; all of them where there is no majority."""
    seconds: tuple[float, ...]
    """From the end of a step to the first gradient of the next, on average: loading and forward, without waiting."""
    slowest: int | None
    slowdown: float
    """The slowest over the median."""

    def to_record(self) -> dict[str, Any]:
        """What a step record says of it."""
        return {"ranks_differing": list(self.differing), "slowest_rank": self.slowest, "slowdown": self.slowdown}

    def __str__(self) -> str:
        who, norms = ", ".join(map(str, self.differing)), ", ".join(f"{norm:.9g}" for norm in self.norms[:8])
        if not self.differing:
            return f"the gradients of all {len(self.norms)} ranks agree"
        return (
            f"the gradients of rank {who} are not those of the others (norms by rank: {norms}). Their weights drift "
            "apart. Do all ranks call the model through its DistributedDataParallel wrapper?"
        )


class RankCheck:
    """Every Nth step, compares gradients and step times across ranks."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._started: float | None = None
        self._times: list[float] = []
        leaves = [p for p in model.parameters() if p.requires_grad and not is_sharded(p)]
        hook = torch.autograd.graph.register_multi_grad_hook
        self._handle = hook(leaves, lambda _gradient: self._first_gradient(), mode="any") if leaves else None

    def step_is_done(self) -> None:
        """The next step starts here."""
        self._started = time.perf_counter()

    def _first_gradient(self) -> None:
        if self._started is not None:
            self._times.append(time.perf_counter() - self._started)
            self._started = None  # with several backward passes to a step, the first counts

    def compare(self, table: GradientTable) -> RankReport:
        """Compare. All ranks call it together."""
        total = table.total
        taken, self._times = self._times, []
        own = [total.finite_part.norm, total.finite_part.l1, total.nan_count + total.inf_count]
        by_rank = gathered([*own, float(np.average(taken)) if taken else np.nan])
        return RankReport(tuple(by_rank[:, 0].tolist()), _outliers(by_rank[:, :3]), *_slowest(by_rank[:, 3]))

    def close(self) -> None:
        """Take the hook away."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


def gathered(numbers: list[float]) -> NDArray[np.float64]:
    """A row of numbers from each rank, in one collective; (ranks, numbers)."""
    if not several_ranks():
        return np.array([numbers], dtype=np.float64)
    import torch.distributed as dist

    from gradient_flow.table.rank_groups import device_of

    own = torch.tensor(numbers, dtype=torch.float64, device=device_of(dist.group.WORLD))
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    return torch.stack(rows).cpu().numpy()


def _hooked(parameter: Any, hook: Callable[[torch.Tensor], None]) -> Any:
    return parameter.register_hook(hook)  # torch gives this method no types


def _outliers(values: NDArray[np.float64]) -> tuple[int, ...]:
    near = np.asarray(np.isclose(values[:, None], values[None], rtol=_TOLERANCE, atol=0.0))
    same: NDArray[np.bool_] = np.logical_and.reduce(near, axis=2)  # (ranks, ranks)
    followers = same.sum(axis=1)
    if followers.max() * 2 <= len(values):
        return tuple(range(len(values)))  # there is no majority
    return tuple(np.flatnonzero(~same[followers.argmax()]).tolist())


def _slowest(seconds: NDArray[np.float64]) -> tuple[tuple[float, ...], int | None, float]:
    if not np.isfinite(seconds).all() or not (middle := float(np.median(seconds))) > 0:
        return tuple(seconds.tolist()), None, np.nan
    slowest = int(seconds.argmax())
    return tuple(seconds.tolist()), slowest, float(seconds[slowest]) / middle
