"""Why an operator gave NaN or Inf, and what to do about it: numbers in, sentences out."""

from __future__ import annotations

from typing import Final

from gradient_flow.probes.nonfinite.causes import BACKWARD, FORWARD
from gradient_flow.probes.nonfinite.fault import Explanation, Fault
from gradient_flow.probes.nonfinite.tensor_range import number

LARGEST: Final = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.403e38, "float64": 1.798e308}
"""The largest finite number of each type."""


def explain(fault: Fault) -> Explanation:
    """The likely cause of a fault and what to change."""
    if fault.unused is not None:
        return _unused(fault)
    if fault.phase == "backward":
        rules = [_half_overflow, _slope, FORWARD.get(fault.inner), _infinities, _overflow]
    else:
        rules = [FORWARD.get(fault.inner), _half_overflow, _infinities, _overflow]
    for rule in rules:
        found = rule(fault) if rule is not None else None
        if found is not None:
            return found
    return Explanation(
        f"`{fault.inner or fault.operator}` has no finite result for these inputs.",
        "Compare the inputs with what the operation allows, and keep them inside with `clamp` or a small eps.",
    )


def _slope(fault: Fault) -> Explanation | None:
    known = BACKWARD.get(fault.operator)
    return Explanation(known.why.format(operator=fault.operator), known.advice) if known is not None else None


def _unused(fault: Fault) -> Explanation:
    return Explanation(
        f"The value is kept out of the loss by `{fault.unused}`, so a gradient of 0 comes back for it; but "
        f"`{fault.operator}` has no finite derivative there, and 0 * Inf (or 0 / 0) is NaN.",
        f"Make the input of `{fault.operator}` safe as well, not only its result: "
        "`safe = torch.where(ok, x, 1.0)`, then `torch.where(ok, f(safe), 0.0)`.",
    )


def _half_overflow(fault: Fault) -> Explanation | None:
    if fault.dtype != "float16" or not any(output.inf for output in fault.outputs):
        return None
    if fault.at("other", "divisor") == 0:
        return None
    if fault.phase == "backward":
        return Explanation(
            "The gradient is larger than 65504, the largest float16.",
            "Lower the loss scale (`GradScaler` does by itself, and skips the step), or train in bfloat16, whose "
            "range is that of float32.",
        )
    return Explanation(
        "The result is larger than 65504, the largest float16.",
        "Use bfloat16, whose range is that of float32, or run this part in float32 "
        "(`with torch.autocast(..., enabled=False)`); scaling the operands down before the operation helps as well.",
    )


def _infinities(fault: Fault) -> Explanation | None:
    if not (fault.from_mask and fault.is_nan):
        return None
    return Explanation(
        "Inf that was put in on purpose met an operation that turns it into NaN: Inf - Inf, 0 * Inf or Inf / Inf.",
        "Use a large negative number (`torch.finfo(dtype).min`) in place of -Inf, or select with `where` after the "
        "operation.",
    )


def _overflow(fault: Fault) -> Explanation | None:
    limit = LARGEST.get(fault.dtype)
    if limit is None or fault.is_nan or not fault.outputs:
        return None
    return Explanation(
        f"The result is larger than {number(limit)}, the largest {fault.dtype}.",
        "If it grew over many steps, lower the learning rate, clip gradients, or normalise activations.",
    )
