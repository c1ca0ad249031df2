"""`GradientGainMonitor`: gradient norms at the outputs of blocks, and the gains between them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import nn

from gradient_flow.capture.block_outputs import BlockOutputs, repeated_blocks
from gradient_flow.config import disabled
from gradient_flow.diagnosis import gains as formulas
from gradient_flow.diagnosis.gains import GainOverDepth
from gradient_flow.errors import InputError, MonitorStateError
from gradient_flow.report.gain_text import comparison_table, gain_report
from gradient_flow.table import GradientTable
from gradient_flow.table.columns import COLUMNS, NORM_KINDS, NOT_OF_SIZES, Rows, merge_rows
from gradient_flow.table.measure import PendingRows, reader_for_hooks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["GainComparison", "GradientGainMonitor"]


class LossScaler(Protocol):
    """The part of `torch.amp.GradScaler` that is used."""

    def get_scale(self) -> float:
        """The factor that the loss is multiplied by."""


class GradientGainMonitor:
    """Records the gradient norm at the output of every block, and the gains from block to block.

    `gains()[i]` is norm(block i) / norm(block i + 1): above 1 the gradient grows on its way back, below 1 it shrinks.
    This detects; it changes nothing. Attach it before the forward pass whose backward is to be seen.

    Args:
        blocks: modules in the order of the forward pass: a list, `nn.ModuleList` or `nn.Sequential`.
        norm_type: `l2`, `l1`, `linf`, or `mean` (mean magnitude); any of them can also be asked for afterwards.
        strict_single_backward: raise out of a second `backward()` without `reset()` in between; else the second
            overwrites the first.
        eps: a norm below this counts as no gradient at all.
        per_sample: the mean over the batch (dimension 0) of the norm of each sample, instead of the norm of the whole
            output gradient, which grows with the batch.
        loss_scale: the factor on the loss under AMP, or the `GradScaler` that knows it; norms are divided by it.

    >>> import torch
    >>> blocks = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    >>> with GradientGainMonitor(blocks) as monitor:
    ...     blocks(torch.ones(2, 4)).sum().backward()
    >>> len(monitor.norms()), len(monitor.gains())
    (2, 1)
    """

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        norm_type: str = "l2",
        strict_single_backward: bool = True,
        eps: float = 1e-30,
        *,
        per_sample: bool = False,
        loss_scale: float | LossScaler | None = None,
        scaler: LossScaler | None = None,
    ) -> None:
        self.blocks = _checked_blocks(blocks)
        self.norm_type = _checked_norm_type(norm_type)
        self.strict_single_backward = strict_single_backward
        self.eps = _checked_eps(eps)
        self.per_sample = per_sample
        self._loss_scale = _checked_scale(loss_scale, scaler)
        self._scale = 1.0
        self.names = tuple(str(index) for index in range(len(self.blocks)))
        self.source = f"{len(self.blocks)} blocks"
        self._rows: list[list[PendingRows]] = [[] for _ in self.blocks]
        self._read = reader_for_hooks(sizes_only=True)
        self._recorded = False
        self._closed = False
        self._outputs = BlockOutputs(self.blocks, self._record, self._begin_pass)
        if not disabled():
            self._outputs.attach()

    @classmethod
    def from_model(cls, model: nn.Module, **settings: Any) -> GradientGainMonitor:
        """Find the repeated blocks of a model and monitor them; `source` says which were taken.

        Taken is the longest `ModuleList` or `Sequential` whose members are of one type, else the children.
        """
        if not isinstance(model, nn.Module):
            raise InputError(f"`model` must be a module, got {type(model).__name__}.")
        source, named = repeated_blocks(model)
        if not named:
            raise InputError(f"`model` ({type(model).__name__}) has no children to monitor. Pass the blocks instead.")
        monitor = cls([block for _, block in named], **settings)
        monitor.names, monitor.source = tuple(name for name, _ in named), source
        return monitor

    def norms(self, norm_type: str | None = None) -> list[float | None]:
        """The gradient norm at each block's output; `None` for a block that got no gradient.

        Before a backward pass that is every block; `report()` then says what to do.
        """
        return self._norms(_checked_norm_type(norm_type or self.norm_type))

    def gains(self, norm_type: str | None = None) -> list[float | None]:
        """Norm of each block over that of the next; `inf` where the next is below `eps`, `None` where one is absent."""
        norms = self.norms(norm_type)
        return [formulas.gain(earlier, later, self.eps) for earlier, later in pairwise(norms)]

    def log_gains(self, norm_type: str | None = None) -> list[float | None]:
        """The natural logarithms of the gains; `-inf` for a gain of 0."""
        norms = self.norms(norm_type)
        return [formulas.log_gain(earlier, later, self.eps) for earlier, later in pairwise(norms)]

    def summary_stats(self, norm_type: str | None = None) -> dict[str, float | int]:
        """Counts of amplifying, damping, healthy, vanishing and missing gains; mean and extremes of the finite ones."""
        return formulas.summary(self.norms(norm_type), self.eps)

    def gain_over_depth(self, norm_type: str | None = None) -> GainOverDepth:
        """Cumulative gain in decades and its robust slope: one number to compare architectures by."""
        return formulas.gain_over_depth(self.norms(norm_type))

    def report(self, norm_type: str | None = None) -> str:
        """Norms, gains and a summary for a person; without records it says why there are none and what to do."""
        kind = _checked_norm_type(norm_type or self.norm_type)
        per_sample = ", mean over samples" if self.per_sample else ""
        return gain_report(self._norms(kind), self.eps, kind + per_sample, self.source, self._notes())

    @property
    def table(self) -> GradientTable:
        """The output gradients as a table, undivided by any loss scale: norms, mean magnitude, NaN and Inf by block.

        Everything else is NaN: a hook reads magnitudes only, which takes a third of the time.
        """
        if self.per_sample:
            raise InputError("`table` is about whole output gradients; this monitor was created with per_sample=True.")
        found = [index for index, rows in enumerate(self._rows) if rows]
        matrix = np.array([merge_rows(self._rows_of(index)) for index in found]).reshape(len(found), len(COLUMNS))
        matrix[:, NOT_OF_SIZES] = np.nan  # a kernel for devices has them, the one for hosts has not
        missing = [self.names[index] for index, rows in enumerate(self._rows) if not rows]
        return GradientTable([self.names[index] for index in found], matrix, missing=missing)

    def plot(self, path: str | Path | None = None, norm_type: str | None = None) -> Figure:
        """Norms and log-gains over depth, the healthy band shaded; saved to `path` if one is given."""
        return self.compare({self.source: self}, norm_type).plot(path)

    @staticmethod
    def compare(monitors: Mapping[str, GradientGainMonitor], norm_type: str | None = None) -> GainComparison:
        """Several monitors side by side: `print` the result for a table, `.plot(path)` for a figure."""
        is_mapping = isinstance(monitors, Mapping) and bool(monitors)
        if not is_mapping or not all(isinstance(each, GradientGainMonitor) for each in monitors.values()):
            raise InputError(f"`monitors` must map names to monitors, got {monitors!r}.")
        kinds = {norm_type or monitor.norm_type for monitor in monitors.values()}
        if len(kinds) > 1:
            raise InputError(f"`monitors` use different norms ({', '.join(sorted(kinds))}). Pass `norm_type`.")
        stacks = {name: (monitor.norms(norm_type), monitor.eps) for name, monitor in monitors.items()}
        return GainComparison(stacks, kinds.pop())

    def reset(self) -> None:
        """Forget what was recorded, for the next backward pass."""
        self._require_open("reset")
        self._forget_records()
        self._outputs.forget()

    def pause(self) -> None:
        """Take the hooks away until `resume()`; what was recorded stays."""
        self._require_open("pause")
        self._outputs.detach()

    def resume(self) -> None:
        """Put the hooks back."""
        self._require_open("resume")
        if not disabled():
            self._outputs.attach()

    def close(self) -> None:
        """Remove every hook. What was recorded can still be read."""
        self._closed = True
        self._outputs.detach()

    def __enter__(self) -> GradientGainMonitor:
        self._require_open("enter")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "attached" if self._outputs.attached else "paused"
        return f"GradientGainMonitor({self.source}, {self.norm_type}, {state})"

    def _repr_html_(self) -> str:
        from gradient_flow.faces.notebook import gain_html

        return gain_html(self)

    # ---- recording ------------------------------------------------------------------------------------------------

    def _begin_pass(self) -> None:
        if self._recorded and self.strict_single_backward:
            raise MonitorStateError(
                "backward() ran a second time without reset(): the gradients of two passes would be mixed up. Call "
                "reset() between them, or create the monitor with `strict_single_backward=False` to keep the last."
            )
        self._forget_records()
        scale = self._loss_scale
        self._scale = 1.0 if scale is None else scale if isinstance(scale, float) else float(scale.get_scale())

    def _record(self, block: int, gradient: torch.Tensor) -> None:
        pieces = [gradient] if not self.per_sample or gradient.dim() < 2 else list(gradient.flatten(1))
        self._rows[block].append(self._read(pieces))  # no number is looked at before somebody asks
        self._recorded = True

    def _forget_records(self) -> None:
        self._rows = [[] for _ in self.blocks]
        self._recorded = False

    def _rows_of(self, block: int) -> Rows:
        return np.concatenate([rows() if callable(rows) else rows for rows in self._rows[block]])

    def _norms(self, kind: str) -> list[float | None]:
        norms: list[float | None] = []
        for block, rows in enumerate(self._rows):
            if not rows:
                norms.append(None)
                continue
            matrix = self._rows_of(block)
            of_rows = NORM_KINDS[kind](matrix if self.per_sample else merge_rows(matrix)[None])
            norms.append(float(of_rows.mean()) / self._scale)
        return norms

    # ---- what can be said -----------------------------------------------------------------------------------------

    def _notes(self) -> list[str]:
        notes = [f"Note: {self._why_nothing()}"] if not self._recorded else []
        notes += [
            f"Note: block {index} returned {what}, so its gradient cannot be seen. Return the tensor first in a tuple, "
            "or under `hidden_states`."
            for index, what in self._outputs.unreadable.items()
        ]
        return ["", *(textwrap.fill(note, 80) for note in notes)] if notes else []

    def _why_nothing(self) -> str:
        if self._only_without_grad:
            return (
                "the outputs of all blocks were computed without grad: they are frozen, or ran under no_grad. Unfreeze "
                "a block or let the input require grad."
            )
        if not self._outputs.ran:
            return (
                "no block has run since the monitor was attached (or reset), so this forward pass cannot be seen. "
                "Create the monitor before the forward pass, then call backward()."
            )
        if self._closed:
            return "the monitor was closed before a backward pass. Call backward() inside the `with` block."
        return "the blocks ran, but no backward pass has reached them. Call backward() on a loss that depends on them."

    @property
    def _only_without_grad(self) -> bool:
        return bool(self._outputs.ran) and self._outputs.ran == self._outputs.without_grad

    def _require_open(self, action: str) -> None:
        if self._closed:
            raise MonitorStateError(
                f"Cannot {action} a monitor after close(): its hooks are gone. Create a new GradientGainMonitor."
            )


@dataclass(frozen=True)
class GainComparison:
    """Stacks of blocks side by side. `print` it for a table, `.plot(path)` it for a figure."""

    stacks: Mapping[str, tuple[Sequence[float | None], float]]
    """Norms and `eps` by name."""
    norm_type: str

    def gain_over_depth(self) -> dict[str, GainOverDepth]:
        """The gain over depth of each."""
        return {name: formulas.gain_over_depth(norms) for name, (norms, _) in self.stacks.items()}

    def plot(self, path: str | Path | None = None) -> Figure:
        """Norms and log-gains over depth on one figure; saved to `path` if one is given."""
        from gradient_flow.report.figures import plot_gains

        figure = plot_gains(self.stacks, self.norm_type)
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure

    def __str__(self) -> str:
        return comparison_table(self.stacks)


def _checked_blocks(blocks: Any) -> list[nn.Module]:
    if isinstance(blocks, nn.Module) and not isinstance(blocks, (nn.ModuleList, nn.Sequential)):
        raise InputError(
            f"`blocks` must be a list, ModuleList or Sequential of modules, got a single {type(blocks).__name__}. "
            "Pass its blocks, or use GradientGainMonitor.from_model(model)."
        )
    if not isinstance(blocks, Iterable) or isinstance(blocks, (str, bytes, torch.Tensor, Mapping)):
        raise InputError(f"`blocks` must be a list, ModuleList or Sequential of modules, got {type(blocks).__name__}.")
    found = list(blocks)
    if not found:
        raise InputError("`blocks` is empty: pass at least one module, two for a gain.")
    seen: dict[int, int] = {}
    for index, block in enumerate(found):
        if not isinstance(block, nn.Module):
            raise InputError(f"`blocks[{index}]` must be a module, got {type(block).__name__}.")
        if id(block) in seen:
            raise InputError(
                f"`blocks[{index}]` is the same module as `blocks[{seen[id(block)]}]`. List it once: the gradients of "
                "all its calls combine."
            )
        seen[id(block)] = index
    return found


def _checked_norm_type(norm_type: Any) -> str:
    if not isinstance(norm_type, str) or norm_type not in NORM_KINDS:
        raise InputError(f"`norm_type` must be one of {', '.join(NORM_KINDS)}; got {norm_type!r}.")
    return str(norm_type)


def _checked_eps(eps: Any) -> float:
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 <= eps < math.inf:
        raise InputError(f"`eps` must be a number of at least 0, got {eps!r}. The default is 1e-30.")
    return float(eps)


def _checked_scale(loss_scale: Any, scaler: Any) -> float | LossScaler | None:
    if loss_scale is not None and scaler is not None:
        raise InputError("`loss_scale` and `scaler` say the same thing twice: pass one of them.")
    scale = scaler if loss_scale is None else loss_scale
    if scale is None or hasattr(scale, "get_scale"):
        return scale  # type: ignore[no-any-return]
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < math.inf:
        raise InputError(f"`loss_scale` must be a positive number or a GradScaler, got {scale!r}.")
    return float(scale)
