"""Treatment of NaN where it is born: the lines that make it are given a form that stays finite, forward and back."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from gradient_flow.capture.model_state import left_as_found
from gradient_flow.cures.patient import Patient, hooks_kept
from gradient_flow.cures.registry import do, register_treatment
from gradient_flow.cures.treatments.graph import Attached
from gradient_flow.cures.treatments.numerics import finite_both_ways, is_nonfinite
from gradient_flow.diagnosis.treatment import Treatment
from gradient_flow.probes.nonfinite.find import find_nonfinite
from gradient_flow.probes.nonfinite.where import place_of_call

EPS: Final = 1e-6
SMALL: Final = 1e-8
"""What stands for zero under a root: its slope stays below 5,000."""
_MOST_LINES: Final = 3
_LOOKED_AT: Final = 3
"""Batches that are replayed until one gives NaN."""
_NO_OPERATION: Final = ("__get__", "__set__", "backward", "register_hook", "requires_grad_", "detach")


def _apart(x: torch.Tensor, least: float) -> torch.Tensor:
    """1 in the place of what is next to 0: 0 / 0 is then 0, and its slope 1 and not 1 / eps."""
    return torch.where(x.abs() < least, torch.ones_like(x), x)


def _power(x: Any, exponent: Any) -> Any:
    """A base that has a slope, where the exponent is no whole number or below 0."""
    if not isinstance(x, torch.Tensor) or not isinstance(exponent, (int, float)):
        return x
    if exponent < 0:
        return _apart(x, SMALL)
    return x if float(exponent).is_integer() else x.clamp_min(SMALL)


def _least(x: torch.Tensor) -> torch.Tensor:
    """-Inf as a number that a row of nothing else survives."""
    return x.clamp_min(torch.finfo(x.dtype).min / 4)


def _not_too_large(x: torch.Tensor) -> torch.Tensor:
    """The product of two such exponentials is still finite."""
    return x.clamp_max(0.49 * math.log(torch.finfo(x.dtype).max))


def _inside(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-1 + EPS, 1 - EPS)


_FIRST: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    **dict.fromkeys(("log", "log2", "log10"), lambda x: x.clamp_min(EPS)),
    "log1p": lambda x: x.clamp_min(EPS - 1),
    "sqrt": lambda x: x.clamp_min(SMALL),
    **dict.fromkeys(("rsqrt", "reciprocal", "__rtruediv__", "__rdiv__"), lambda x: _apart(x, SMALL)),
    **dict.fromkeys(("exp", "expm1", "sinh", "cosh"), _not_too_large),
    **dict.fromkeys(("acos", "asin", "atanh", "arccos", "arcsin", "arctanh", "erfinv"), _inside),
    "logit": lambda x: x.clamp(EPS, 1 - EPS),
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp"), _least),
}
"""What is done to the first argument of a function before it is called."""
_DIVISIONS: Final = ("div", "divide", "true_divide", "__truediv__", "__div__")


def _safe(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function in a form that is finite wherever it can be; what is left becomes 0, as does its gradient."""
    name = getattr(func, "__name__", "")
    if name in _NO_OPERATION or (name.endswith("_") and not name.endswith("__")):
        return func(*args, **kwargs)
    args, kwargs = tree_map(finite_both_ways, (args, kwargs)) if name not in _FIRST else (args, kwargs)
    first = args[0] if args else None
    if isinstance(first, torch.Tensor) and first.is_floating_point() and name in _FIRST:
        args = (_FIRST[name](first), *args[1:])
    elif name in _DIVISIONS and len(args) > 1 and isinstance(args[1], torch.Tensor):
        args = (first, _apart(args[1], SMALL), *args[2:])
    elif name in ("pow", "__pow__") and len(args) > 1:
        args = (_power(*args[:2]), *args[1:])
    return tree_map(finite_both_ways, func(*args, **kwargs))


class _Guard(TorchFunctionMode):
    """Functions of torch that some lines of the user's call are called in their safe form."""

    def __init__(self, lines: frozenset[tuple[str, int]]) -> None:
        super().__init__()
        self.lines = lines

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every function of torch that the model calls."""
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The function, in its safe form if one of the lines calls it."""
        place = place_of_call(sys._getframe(1), None, lambda _module: None)
        return (_safe if (place.file, place.line) in self.lines else _as_it_is)(func, args, kwargs)


def _as_it_is(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _guarded(guard: _Guard) -> type[torch.Tensor]:
    """A tensor that takes the guard with it into the loss, which is computed outside the model."""

    class Guarded(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                result = guard.call(func, args, kwargs or {})
            wraps = getattr(func, "__name__", "") not in _NO_OPERATION
            return tree_map(wrapped, result) if wraps else result

    def wrapped(value: Any) -> Any:
        plain = isinstance(value, torch.Tensor) and not isinstance(value, (nn.Parameter, Guarded))
        return value.as_subclass(Guarded) if plain and value.is_floating_point() else value

    Guarded.wrapped = staticmethod(wrapped)  # type: ignore[attr-defined]
    return Guarded


def _births(patient: Patient) -> Iterator[Treatment]:
    """The lines that make NaN, one after the other: behind the first there may be another one."""
    if not is_nonfinite(patient.record):
        return
    lines: list[dict[str, Any]] = []
    while len(lines) <= _MOST_LINES:
        found = _birth(patient, lines)
        if found is None:
            break
        if found in lines:
            return  # the safe form does not help there
        lines.append(found)
    if 0 < len(lines) <= _MOST_LINES:
        yield Treatment("safe_math", {"lines": lines})


def _birth(patient: Patient, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Where NaN is born with these lines made safe; None where there is none, or no line of the user's makes it."""
    for at in (*patient.training[:_LOOKED_AT], *patient.held_out[:1]):
        with left_as_found(patient.model), hooks_kept(patient.model):
            if lines:
                do(Treatment("safe_math", {"lines": lines}), patient.model, patient.optimizer)
            origin = find_nonfinite(lambda at=at: patient.batches.loss(patient.model, at), patient.model)  # type: ignore[misc]
        if origin.found and origin.kind == "operation" and origin.file is not None and origin.line is not None:
            operator = (origin.operator or "").removesuffix(" backward")
            return {
                "file": origin.file,
                "line": origin.line,
                "text": origin.code or "",
                "operator": operator,
                "outside": origin.module is None,
            }
    return None


@register_treatment("safe_math", proposed_by=_births, against=("NUMERICAL",))
def safe_math(model: nn.Module, _optimizer: torch.optim.Optimizer, lines: Sequence[Mapping[str, Any]]) -> None:
    """Some lines of the code of model or loss call torch's functions in a form that stays finite."""
    guard = _Guard(frozenset((each["file"], each["line"]) for each in lines))
    Attached(model, guard)
    if any(each["outside"] for each in lines):
        wrapped: Any = _guarded(guard).wrapped  # type: ignore[attr-defined]
        model.register_forward_hook(lambda _model, _inputs, output: tree_map(wrapped, output))
