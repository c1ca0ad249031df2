"""Clip factors from norms, and gradients scaled by them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gradient_flow.errors import InputError

if TYPE_CHECKING:
    import torch

Number = TypeVar("Number", float, "torch.Tensor")
"""A number that the host knows, or a 0-dim tensor whose number only its device knows."""


def check_limit(max_norm: Any, name: str = "max_norm") -> float:
    """`max_norm` as a float, refused when it is no limit."""
    try:
        limit = float(max_norm)
    except (TypeError, ValueError):
        limit = math.nan
    if isinstance(max_norm, (bool, str)) or not limit >= 0:
        raise InputError(
            f"`{name}` must be a number of at least 0, got {max_norm!r}. To switch clipping off pass float('inf')."
        )
    return limit


def clip_factor_by_norm(norm: Number, limit: Any) -> Number:
    """What to multiply gradients of this norm by so that it does not exceed the limit: exactly limit / norm, or 1.

    Of a norm that only a device knows, a 0-dim tensor, the factor is one too: nothing is read.

    >>> clip_factor_by_norm(4.0, 1.0)
    0.25
    """
    factor: Number = where(norm > limit, lambda: quotient(limit, norm), 1.0)
    return factor


def where(condition: Any, value: Callable[[], Any], otherwise: float) -> Any:
    """`value()` if the condition holds, else `otherwise`: of numbers, or of 0-dim tensors where they lie."""
    if isinstance(condition, (bool, np.bool_)):
        return value() if condition else otherwise
    return value().where(condition, otherwise)


def quotient(dividend: Any, divisor: Any) -> Any:
    """The dividend by the divisor, rounded once: torch divides a float by a tensor in two steps."""
    if isinstance(dividend, float) and hasattr(divisor, "new_full"):
        dividend = divisor.new_full((), dividend)  # filled there: a tensor made of a number would be waited for
    return dividend / divisor


def scaled(gradient: Any, factor: float) -> Any:
    """A copy of the gradient times the factor, in its own type and dtype; the product is taken in fp64.

    A factor of 0 gives zeros, also where the gradient is not finite.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(gradient, torch.Tensor):
        gradient = gradient.detach()
        if factor == 1.0:
            return gradient.clone()
        if factor == 0.0:
            return torch.zeros_like(gradient)
        wide = torch.complex128 if gradient.is_complex() else torch.float64
        if gradient.device.type == "mps":
            return gradient * factor
        return (gradient.to(wide) * factor).to(gradient.dtype)
    array = np.asarray(gradient)
    if factor == 1.0:
        return array.copy()
    if factor == 0.0:
        return np.zeros_like(array)
    kind = array.dtype if array.dtype.kind in "fc" else np.dtype(np.float64)
    wide_array = array.astype(np.result_type(array.dtype, np.float64))
    return (wide_array * factor).astype(kind)
