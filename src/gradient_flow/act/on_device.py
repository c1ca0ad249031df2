"""Guard and clip of one step, decided and done on the device that holds the gradients. The host reads nothing.

Everything is launched at the step; what was done is known on the host once the numbers have come. The rules are those
of `guard` and `clipper`, and so are the limits: see `Guard.decides_alike`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from gradient_flow.act.clipper import GradientClipper, largest_parts, norm_after_factors
from gradient_flow.act.device_clip import ON_DEVICE, DeviceClip
from gradient_flow.act.device_replace import replace_nonfinite_there_
from gradient_flow.act.guard import WITHHELD, GuardEvent
from gradient_flow.act.in_place import PRECISE, ScaleInStep, within_range
from gradient_flow.capture.arrivals import LateNumber, on_device
from gradient_flow.capture.sharding import several_ranks
from gradient_flow.config import GradientConfig
from gradient_flow.table import GradientTable, measure
from gradient_flow.table.columns import INDEX, AnyRows, merge_rows, norm, scale_rows
from gradient_flow.table.row_parameters import Parameters, SharedParameters

_SQUARES, _NAN, _INF = INDEX["sum_sq"], INDEX["nan"], INDEX["inf"]
REPLACED: Final = ("replace", "zero")


def is_on_one_device(parameters: Parameters, table: GradientTable) -> bool:
    """Whether all gradients lie on one accelerator, as plain numbers, and so do the rows of their table."""
    if not table.has_rows_on_device or isinstance(parameters, SharedParameters):
        return False
    gradients = [parameter.grad for _, parameter in parameters]
    return (
        all(g is not None and on_device(g) and g.dtype in PRECISE for g in gradients)
        and len({g.device for g in gradients if g is not None}) == 1
    )


def why_host_decides(
    config: GradientConfig, optimizer: torch.optim.Optimizer, in_step: ScaleInStep, *, schedule: bool, scaled: bool
) -> str | None:
    """Why a step cannot be managed without a wait, by its settings; None where it can."""
    kind = config.active_clip_type
    if config.enable_gradient_clipping and kind not in ON_DEVICE:
        return f"clip_type={kind!r} is decided on the host"
    policy = config.nonfinite if config.enable_nan_inf_check else "observe"
    if policy in ("raise", "rollback"):
        return f"nonfinite={policy!r} is decided on the host"
    if schedule and (scaled or policy == "skip"):
        return "a schedule is to be held for a skipped step"
    if policy == "skip" and not in_step.listens():
        return "nonfinite='skip' needs an optimizer with fused=True to skip a step on the device"
    if policy == "skip" and not _has_state(optimizer):
        return "a first step that is skipped would leave the optimizer with a state that was never filled"
    return None


def _has_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the step that comes makes no state: a fused step makes it, and skips only then."""
    if isinstance(optimizer, torch.optim.SGD) and not any(group["momentum"] for group in optimizer.param_groups):
        return True  # it keeps none
    trained = (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
    return all(optimizer.state.get(parameter) for parameter in trained)


class DeviceAction:
    """What was launched for a step, and what is to be known of it later."""

    def __init__(
        self,
        action: str,
        clipper: GradientClipper,
        parameters: Parameters,
        table: GradientTable,
        optimizer: torch.optim.Optimizer | None,
        loss: float | LateNumber | None,
        scale: float | LateNumber,
        in_step: ScaleInStep,
    ) -> None:
        """Launch it. `action`: what is done if the step is bad. `scale`: a loss scale still in the gradients."""
        rows = table.rows_on_device()
        assert rows is not None
        self.action = action
        self._clipper, self._scale = clipper, scale
        self._names = [name for name, _ in parameters]
        there = scale.on_device if isinstance(scale, LateNumber) else scale
        finite = (rows[:, _NAN] + rows[:, _INF]).sum() == 0
        squares = rows[:, _SQUARES]
        self._instead: NDArray[np.float64] | None = None
        if action in REPLACED:
            config = clipper.config
            nan, inf = (0.0, 0.0) if action == "zero" else (config.replace_nan_with, config.replace_inf_with)
            self._instead = _replacements(parameters, nan, inf)
            squares = _squares_replaced(rows, self._instead, there)
            gradients = [parameter for _, parameter in parameters]
            replace_nonfinite_there_(gradients, rows[:, _NAN] + rows[:, _INF], nan, inf)
        # What is not finite is left as it is where the step is taken all the same.
        spared = finite if action == "observe" else None
        self._clip = DeviceClip(clipper, parameters, squares, optimizer, spared)
        factor = self._clip.factor
        inside = in_step if factor is not None and in_step.takes(factor, parameters) else None
        self._clip.apply(there, inside)
        skip = None if action != "skip" else ~finite | _is_bad(loss, finite)
        if inside is not None or skip is not None:
            in_step.begin(None if inside is None else factor, skip=skip)
        self._after: GradientTable | None = None
        if self._clip.cut_at is not None:
            # Cut element by element: only a second look tells what is left, and it is launched now.
            self._after = measure({str(at): parameter.grad for at, (_, parameter) in enumerate(parameters)})

    def wait(self) -> None:
        """Wait for it."""
        if self._after is not None:
            self._after.wait()
        self._clip.wait()

    def ready(self) -> bool:
        """Whether what was done can be told without waiting."""
        return self._clip.ready() and (self._after is None or self._after.ready)

    def clipping(self, table: GradientTable, event: GuardEvent | None) -> dict[str, Any]:
        """What the step reports about clipping, as `Actor.clip` would have: the norm is remembered too."""
        total = table.total
        replaced = event is not None and event.action in REPLACED
        if event is not None and not replaced and (event.action in WITHHELD or not total.finite):
            return self._clipper.untouched(total.norm)
        decision = self._clip.decision(None if replaced else total.norm)
        if event is None:
            self._clipper.remember(decision)
        scale = float(self._scale)
        rows = table.rows
        largest = largest_parts(table)
        if replaced and self._instead is not None:
            rows = rows.copy()
            rows[:, _SQUARES] = _squares_replaced(rows, self._instead, scale)
            found = np.stack([rows[:, _NAN], rows[:, _INF]], axis=1) > 0
            largest = np.maximum(largest, np.max(np.where(found, np.abs(self._instead) / scale, 0.0), axis=1))
            rows[:, [_NAN, _INF]] = 0.0
        if decision.cut_at is not None and self._after is not None:
            changed = np.flatnonzero(largest > decision.cut_at).tolist()
            after = float(norm(merge_rows(scale_rows(self._after.rows, 1.0 / scale))))
        else:
            changed = np.flatnonzero(decision.factors != 1.0).tolist()
            after = norm_after_factors(decision, rows)
        if not changed:
            after = decision.total_norm
        return self._clipper.describe(decision, [self._names[at] for at in changed], after)


def _replacements(parameters: Parameters, nan: float, inf: float) -> NDArray[np.float64]:
    """What each gradient gets for NaN and for Inf, as its dtype can hold it. (rows, 2)"""
    dtypes = [parameter.dtype if parameter.grad is None else parameter.grad.dtype for _, parameter in parameters]
    return np.array([[_stored(nan, dtype), _stored(inf, dtype)] for dtype in dtypes]).reshape(-1, 2)


@lru_cache(maxsize=64)
def _stored(number: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(within_range(number, dtype), dtype=dtype))


def _squares_replaced(rows: AnyRows, instead: NDArray[np.float64], scale: Any) -> AnyRows:
    """Sums of squares with a number for each NaN and each Inf, which no second look is needed for. (rows,)"""
    nan, inf = (_column(rows, instead[:, at] ** 2) for at in (0, 1))
    found = rows[:, _NAN] * nan + rows[:, _INF] * inf
    result: AnyRows = rows[:, _SQUARES] + found / scale**2
    return result


def _column(rows: Any, numbers: NDArray[np.float64]) -> Any:
    """A number for each row, beside the rows; one for all of them where they agree, which is nearly always so."""
    if not len(numbers) or (numbers == numbers[0]).all():
        return float(numbers[0]) if len(numbers) else 0.0
    if isinstance(rows, np.ndarray):
        return numbers
    host = torch.from_numpy(numbers)
    return (host.pin_memory() if rows.device.type == "cuda" else host).to(rows.device, non_blocking=True)


def _is_bad(loss: float | LateNumber | None, like: torch.Tensor) -> torch.Tensor:
    """Whether the loss alone is reason to skip. Each rank has one of its own: with several it decides nothing."""
    if loss is None or several_ranks():
        return torch.zeros_like(like)
    if isinstance(loss, LateNumber):
        return ~torch.isfinite(loss.on_device.detach().reshape(()).to(like.device, non_blocking=True))
    return torch.full_like(like, not math.isfinite(loss))
