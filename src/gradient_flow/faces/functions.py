"""The plain functions: gradients in, numbers out, on NumPy or torch. They translate; measuring and judging is done
elsewhere, once for all faces."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from gradient_flow.act.clip_factors import check_limit, clip_factor_by_norm, scaled
from gradient_flow.capture.parameters import is_parameter
from gradient_flow.diagnosis.trend import norm_trend
from gradient_flow.errors import InputError, NonFiniteGradientError
from gradient_flow.report.layer_profile import LayerProfile, layer_profile
from gradient_flow.table import GradientTable, measure
from gradient_flow.table.text import plain

__all__ = [
    "clip_gradients",
    "compute_gradient_norm",
    "compute_gradient_stats",
    "detect_gradient_issues",
    "visualize_layer_gradients",
]

NONFINITE_CHOICES = ("raise", "zero", "propagate")


def compute_gradient_norm(gradients: Any, *, per_parameter: bool = False) -> Any:
    """The L2 norm of all gradients together, or of each in the shape of the input: a list or a mapping.

    >>> import numpy as np
    >>> compute_gradient_norm([np.array([3.0]), np.array([4.0])])
    5.0
    >>> compute_gradient_norm({"w": np.array([3.0, 4.0]), "b": np.array([0.0])}, per_parameter=True)
    {'w': 5.0, 'b': 0.0}
    """
    table = measure(gradients)
    if not per_parameter:
        return table.total.norm
    norms = table.norm.tolist()
    if _is_single(gradients):
        return norms[0]
    if isinstance(gradients, Mapping):
        by_name = dict(zip(table.names, norms, strict=True))
        return {name: by_name.get(str(name)) for name in gradients}
    if _has_parameter_names(gradients):
        return dict(zip(table.names, norms, strict=True))
    return norms


def compute_gradient_stats(
    gradients: Any, *, near_zero: float = 1e-7, very_large: float = 1e3
) -> dict[str, float | int]:
    """Statistics of all gradients together; `near_zero_pct` and `very_large_pct` are percentages.

    Elements below `near_zero` in magnitude and above `very_large` count for these.

    >>> import numpy as np
    >>> compute_gradient_stats(np.array([0.0, 0.0, 1.0, 3.0]))["near_zero_pct"]
    50.0
    """
    stats = measure(gradients, near_zero=near_zero, very_large=very_large).total
    return {
        "norm": stats.norm,
        "mean": stats.mean,
        "std": stats.std,
        "min": stats.min,
        "max": stats.max,
        "near_zero_pct": stats.near_zero_percent,
        "very_large_pct": stats.very_large_percent,
        "nan_count": stats.nan_count,
        "inf_count": stats.inf_count,
        "count": stats.count,
    }


def detect_gradient_issues(gradient_history: Any) -> dict[str, Any]:
    """Whether gradients vanish, explode or stay stable over a history.

    `gradient_history` is a list of norms in the order of time, or of gradients, or of one mapping of gradients per
    step. The result has `status` (`vanishing`, `exploding`, `stable`, `nan` where a norm is not finite,
    `insufficient_data` for fewer than two entries), `norms`, `trend` (decades per step; negative when falling),
    `change` (decades from start to end), `indices` (the entries that made the case) and `message`.

    >>> detect_gradient_issues([1.0, 0.1, 0.01, 0.001])["status"]
    'vanishing'
    """
    norms = _norms_over_time(gradient_history)
    found = norm_trend(norms)
    return {
        "status": found.status,
        "norms": norms,
        "trend": found.slope,
        "change": found.change,
        "indices": list(found.indices),
        "message": found.message,
    }


def clip_gradients(
    gradients: Any, max_norm: float, *, nonfinite: Literal["raise", "zero", "propagate"] = "raise"
) -> tuple[Any, float]:
    """Clip by global norm: `(clipped, original_norm)`. The input is left as it is; the result shares no memory with it.

    The clipped gradients have the type, dtype and container of the input, scaled by exactly `max_norm / norm` if the
    norm exceeds `max_norm`. A non-finite norm is an error unless `nonfinite` says otherwise: `"zero"` returns zeros,
    `"propagate"` a copy of the gradients as they are.

    >>> import numpy as np
    >>> clipped, norm = clip_gradients([np.array([3.0, 4.0])], max_norm=2.5)
    >>> clipped[0].tolist(), norm
    ([1.5, 2.0], 5.0)
    """
    limit = check_limit(max_norm)
    if nonfinite not in NONFINITE_CHOICES:
        raise InputError(f"`nonfinite` must be one of {', '.join(NONFINITE_CHOICES)}; got {nonfinite!r}.")
    if isinstance(gradients, Iterable) and not _is_single(gradients) and not isinstance(gradients, Mapping):
        gradients = gradients if isinstance(gradients, (list, tuple)) else list(gradients)
        if gradients and all(isinstance(item, tuple) and isinstance(item[0], str) for item in gradients):
            gradients = dict(gradients)  # an iterable of pairs, such as named_parameters()
    table = measure(gradients)
    norm = table.total.norm
    if math.isfinite(norm):
        factor = clip_factor_by_norm(norm, limit)
    elif nonfinite == "raise":
        raise NonFiniteGradientError(_nonfinite_message(table, norm))
    else:
        factor = 0.0 if nonfinite == "zero" else 1.0

    def clipped(gradient: Any) -> Any:
        gradient = gradient.grad if is_parameter(gradient) else gradient
        return None if gradient is None else scaled(gradient, factor)

    return _map_container(gradients, clipped), norm


def visualize_layer_gradients(layer_gradients: Any) -> LayerProfile:
    """Norms over depth as data that prints as bars, from output to input.

    `layer_gradients` maps layer names to gradients from input to output (or lists the gradients in that order).

    >>> import numpy as np
    >>> print(visualize_layer_gradients({"first": np.array([0.1]), "last": np.array([0.1])}))
    last (output):      |████████████| norm: 0.10
    first (input):      |████████████| norm: 0.10
                        Stable gradient flow!
    """
    table = measure(layer_gradients)
    numbered = isinstance(layer_gradients, (list, tuple))
    names = [f"Layer {name}" if numbered and name.isdigit() else name for name in table.names]
    return layer_profile(names, table.norm.tolist())


def _norms_over_time(history: Any) -> list[float]:
    if isinstance(history, Mapping):
        history = list(history.values())
    if isinstance(history, (str, bytes)) or not isinstance(history, Iterable) or getattr(history, "ndim", 1) == 0:
        raise InputError(
            f"`gradient_history` must be a list of norms, of gradients, or of one mapping of gradients per step; got "
            f"{history!r}."
        )
    norms = []
    for position, entry in enumerate(history):
        try:
            norm = float(entry) if _is_number(entry) else measure(entry).total.norm
        except InputError as problem:
            raise InputError(f"`gradient_history[{position}]`: {problem}") from None
        if norm < 0:
            raise InputError(
                f"`gradient_history[{position}]` is {norm!r}, and a norm is never negative. Pass norms, or the "
                "gradients themselves as arrays."
            )
        norms.append(norm)
    return norms


def _is_number(entry: Any) -> bool:
    is_plain = isinstance(entry, (int, float, np.number)) and not isinstance(entry, (bool, np.complexfloating))
    return is_plain or (_is_single(entry) and entry.ndim == 0)


def _is_single(gradients: Any) -> bool:
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(gradients, torch.Tensor)
    return is_tensor or isinstance(gradients, (np.ndarray, np.generic))


def _has_parameter_names(source: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, (torch.nn.Module, torch.optim.Optimizer))


def _map_container(gradients: Any, change: Callable[[Any], Any]) -> Any:
    if _is_single(gradients):
        return change(gradients)
    if isinstance(gradients, Mapping):
        changed = {name: None if value is None else change(value) for name, value in gradients.items()}
        return changed if type(gradients) is dict else _rebuilt(gradients, changed)
    if _has_parameter_names(gradients):
        raise InputError(
            f"`gradients` must be arrays or tensors, a list or a mapping of them; got {type(gradients).__name__}. "
            "This function returns copies: pass {name: p.grad for name, p in model.named_parameters()}."
        )
    items = [change(value) for value in gradients]
    if isinstance(gradients, tuple):
        return type(gradients)(*items) if hasattr(gradients, "_fields") else tuple(items)
    return items


def _rebuilt(original: Mapping[Any, Any], changed: dict[Any, Any]) -> Mapping[Any, Any]:
    try:
        return type(original)(changed)  # type: ignore[call-arg]  # most mappings are built from one
    except TypeError:
        return changed


def _nonfinite_message(table: GradientTable, norm: float) -> str:
    bad = [name for name, finite in zip(table.names, table.finite, strict=True) if not finite]
    if not bad:
        return f"The norm of `gradients` is too large for a float: the largest element is {plain(table.total.linf)}."
    first = table[bad[0]]
    more = f" and in {len(bad) - 1} more" if len(bad) > 1 else ""
    return (
        f"The norm of `gradients` is {norm}: `{bad[0]}` holds {first.nan_count} NaN and {first.inf_count} Inf of "
        f"{first.count} elements{more}. Skip this step, or pass nonfinite='zero' for zeros or nonfinite='propagate' "
        "for the gradients as they are."
    )
