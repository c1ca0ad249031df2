"""Why operators give NaN or Inf and what to do about it, one rule for each well-known case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gradient_flow.probes.nonfinite.fault import Explanation, Fault
from gradient_flow.probes.nonfinite.tensor_range import number

Rule = Callable[[Fault], Explanation | None]


def _logarithm(fault: Fault) -> Explanation | None:
    value = fault.at("input")
    pole = -1.0 if fault.inner == "log1p" else 0.0
    if value is None or value > pole:
        return None
    what = f"of {number(pole)} is -Inf" if value == pole else f"of a number below {number(pole)} is NaN"
    return Explanation(
        f"`{fault.inner}` {what}.",
        "Keep the argument positive: `x.clamp(min=eps).log()`. If it is a probability that underflows to 0, compute "
        "the logarithm directly: `log_softmax`, `logsigmoid`, `logsumexp`.",
    )


def _division(fault: Fault) -> Explanation | None:
    below = next((o for o in fault.inputs if o.name in ("other", "divisor")), None)
    above = fault.at("input", "0")
    if fault.inner in ("reciprocal", "rsqrt"):
        below = next((o for o in fault.inputs if o.name == "input"), None)
        above = 1.0
    if below is None or below.at_fault is None:
        return None
    if below.at_fault == 0:
        count = f" (the denominator has {below.zeros} zeros)" if below.zeros > 1 else ""
        return Explanation(
            f"0 / 0 is NaN{count}." if above == 0 else f"A division by 0 is Inf{count}.",
            "Keep the denominator away from 0: `x / y.clamp(min=eps)`. The mean over a mask needs "
            "`mask.sum().clamp(min=1)`; a norm or a standard deviation needs `+ eps`.",
        )
    if fault.inner == "rsqrt" and below.at_fault < 0:
        return _root(fault)
    return Explanation(
        f"A division by {number(below.at_fault)} is beyond the largest {fault.dtype}.",
        "Keep the denominator away from 0: `x / y.clamp(min=eps)`, with an eps that the type can hold.",
    )


def _exponential(fault: Fault) -> Explanation | None:
    value = fault.at("input")
    if value is None or fault.is_nan:
        return None
    limits = {"float16": "11.1", "bfloat16": "88.7", "float32": "88.7", "float64": "709.8"}
    limit = limits.get(fault.dtype, "its limit")
    return Explanation(
        f"`{fault.inner}` of {number(value)} is beyond the largest {fault.dtype}; `exp` overflows above {limit}.",
        "Subtract the maximum first, as `softmax` and `logsumexp` do, or bound the argument with `clamp` or `tanh`. "
        "If it grew during training, lower the learning rate.",
    )


def _power(fault: Fault) -> Explanation | None:
    base, exponent = fault.at("input", "0"), fault.at("exponent", "other")
    if base is not None and base < 0 and fault.is_nan:
        return Explanation(
            "A negative number to a power that is not whole is NaN.",
            "Use `x.abs().pow(p)`, with `x.sign()` in front if the sign matters, or `clamp(min=eps)`.",
        )
    if base == 0 and (exponent is None or exponent < 0):
        return Explanation(
            "0 to a negative power is Inf.", "Keep the base away from 0: `x.clamp(min=eps)` or `x + eps`."
        )
    return None


def _root(fault: Fault) -> Explanation | None:
    value = fault.at("input")
    if value is None or value >= 0:
        return None
    return Explanation(
        f"The square root of a negative number ({number(value)}) is NaN.",
        "A variance or squared distance that is computed as a difference can come out slightly negative: "
        "`x.clamp(min=0)`, or `clamp(min=eps)` where a gradient flows.",
    )


def _range_of_function(fault: Fault) -> Explanation | None:
    value = fault.at("input")
    if value is None:
        return None
    allowed = {"acosh": "from 1 on", "logit": "between 0 and 1"}.get(fault.inner, "between -1 and 1")
    return Explanation(
        f"`{fault.inner}` is finite only {allowed}; it was given {number(value)}.",
        "Rounding is enough to step over the edge: clamp just inside, for example `x.clamp(-1 + eps, 1 - eps)`.",
    )


def _softmax(fault: Fault) -> Explanation | None:
    if not fault.from_mask:
        return (
            Explanation(
                f"The products of queries and keys are beyond the largest {fault.dtype}.",
                "Normalise queries and keys before the product, and look for what made them grow.",
            )
            if fault.inner.startswith("scaled_dot_product")
            else None
        )
    return Explanation(
        "A whole row is masked with -Inf: there is nothing left to distribute over, and 0 / 0 is NaN.",
        "Leave at least one position of every row unmasked, or use `torch.finfo(dtype).min` in place of -Inf and set "
        "the rows without any position to 0 afterwards.",
    )


def _mean(fault: Fault) -> Explanation | None:
    if not (fault.inputs and fault.inputs[0].count == 0):
        return None
    return Explanation(
        "The mean of no elements at all is 0 / 0.",
        "A mask or filter has left nothing in this batch: skip the term, or use `x.sum() / max(x.numel(), 1)`.",
    )


def _spread(fault: Fault) -> Explanation | None:
    if not fault.is_nan:
        return None
    return Explanation(
        f"`{fault.inner}` divides by the number of elements minus one: of a single element it is 0 / 0.",
        "Pass `correction=0`, or ensure at least two elements (a last batch of size 1: `drop_last=True`).",
    )


def _class_loss(fault: Fault) -> Explanation | None:
    if not fault.is_nan:
        return None
    return Explanation(
        "The mean is taken over no target: all of them equal `ignore_index`, or their class weights add up to 0.",
        "Skip such a batch, or use `reduction='sum'` and divide by the number of targets, at least 1.",
    )


def _normalisation(fault: Fault) -> Explanation | None:
    if not fault.is_nan:
        return None
    return Explanation(
        "The variance that it divides by is 0 without an eps, or too large for the type.",
        "Give the layer an eps above 0, and check the range of what comes in.",
    )


def _decomposition(fault: Fault) -> Explanation | None:
    return Explanation(
        "The matrix is singular, or nearly so.",
        "Add a small multiple of the identity before the decomposition, or use `pinv` or `lstsq`.",
    )


FORWARD: Final[dict[str, Rule]] = {
    **dict.fromkeys(("log", "log2", "log10", "log1p"), _logarithm),
    **dict.fromkeys(("div", "reciprocal", "rsqrt", "addcdiv"), _division),
    **dict.fromkeys(("exp", "exp2", "expm1", "cosh", "sinh"), _exponential),
    **dict.fromkeys(("acos", "asin", "atanh", "acosh", "logit", "erfinv"), _range_of_function),
    **dict.fromkeys(("softmax", "log_softmax", "scaled_dot_product_attention", "logsumexp"), _softmax),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _spread),
    **dict.fromkeys(("layer_norm", "batch_norm", "group_norm", "rms_norm"), _normalisation),
    **dict.fromkeys(("inv", "solve", "det", "slogdet", "svd", "eigh", "cholesky"), _decomposition),
    "pow": _power,
    "sqrt": _root,
    "mean": _mean,
    "nll_loss": _class_loss,
}
"""By the operator that ran. A rule that does not know the case says nothing."""

_AT_ZERO: Final = Explanation(
    "The derivative of `{operator}` is infinite at 0: the forward value is fine, its slope is not.",
    "Add eps inside: `(x + eps).sqrt()`; `x.sqrt() + eps` does not help. For distances use the square, or keep equal "
    "points out.",
)
_OF_LOGARITHM: Final = Explanation(
    "The derivative of a logarithm is 1 / x, which is not finite at 0 and overflows just above it.",
    "Keep the argument away from 0 before the logarithm: `x.clamp(min=eps).log()` also stops the gradient there.",
)
_OF_DIVISION: Final = Explanation(
    "The derivative divides by the denominator again, or by its square, and that is 0 or underflows to 0.",
    "Keep the denominator away from 0: `x / y.clamp(min=eps)`, with an eps whose square the type can hold.",
)
_AT_THE_EDGE: Final = Explanation(
    "The derivative of `{operator}` is infinite at -1 and 1.",
    "Clamp just inside, `x.clamp(-1 + eps, 1 - eps)`; for angles between vectors use `atan2` of cross and dot product, "
    "which is smooth there.",
)
_OF_DECOMPOSITION: Final = Explanation(
    "The derivative divides by differences of eigenvalues or singular values, and two of them are equal.",
    "Do not use the vectors of equal values; add a small random symmetric matrix, or use only the values.",
)
_OF_EXPONENTIAL: Final = Explanation(
    "The result of the exponential is already huge, and the gradient that it is multiplied with makes it overflow.",
    "Bound the argument with `clamp` or `tanh`, or work with its logarithm.",
)
BACKWARD: Final[dict[str, Explanation]] = {
    **dict.fromkeys(("sqrt", "pow", "norm", "cdist", "std", "var", "rsqrt"), _AT_ZERO),
    **dict.fromkeys(("log", "log2", "log10", "log1p"), _OF_LOGARITHM),
    **dict.fromkeys(("div", "reciprocal"), _OF_DIVISION),
    **dict.fromkeys(("acos", "asin", "atanh"), _AT_THE_EDGE),
    **dict.fromkeys(("eigh", "svd", "eig"), _OF_DECOMPOSITION),
    **dict.fromkeys(("exp", "exp2", "expm1"), _OF_EXPONENTIAL),
}
"""By the operator of the forward pass."""
