"""What an `action_extractor` returns, checked and turned into heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from gradient_flow.errors import InputError
from gradient_flow.probes.policy.distributions import distributions_in, heads_of
from gradient_flow.probes.policy.heads import ContinuousHead, DiscreteHead, Heads, continuous_head, discrete_head

NAMES: Final = ("logits", "std", "mean", "value")
"""What an extractor returns, in this order."""
ALSO: Final = ("log_std", "mask")
"""Further names that a mapping may have."""

Bounds = tuple[Tensor, Tensor]


def extracted_heads(extracted: Any) -> tuple[Heads, Tensor | None]:
    """Heads and the critic's value of what an extractor returned; `InputError` names what cannot be worked with."""
    distributions = list(distributions_in(extracted))
    if distributions:
        return heads_of(distributions), None
    parts = _parts(extracted)
    heads = Heads()
    logits, mask = parts.get("logits"), parts.get("mask")
    if isinstance(logits, (tuple, list)):
        masks = mask if isinstance(mask, (tuple, list)) else [mask] * len(logits)
        heads.discrete += [_discrete(part, own) for part, own in zip(logits, masks, strict=True)]
    elif logits is not None:
        heads.discrete.append(_discrete(logits, mask))
    std, mean, log_std, value = (_floating(parts.get(name), name) for name in ("std", "mean", "log_std", "value"))
    if std is None and log_std is not None:
        std = log_std.exp()
    if std is not None:
        heads.continuous.append(_continuous(mean, std))
    return heads, value


def wrong_extraction(what: str) -> InputError:
    """The error for an extractor's result, with what came instead."""
    return InputError(
        "`action_extractor` must return (logits, std, mean, value), of which any may be None, a mapping with these "
        f"names, or a torch.distributions object, got {what}."
    )


def checked_action_range(action_range: Any) -> Bounds | None:
    """Lower and upper bounds of `(low, high)` or of a Gymnasium `Box`; what is not bounded stays infinite."""
    if action_range is None:
        return None
    box = (getattr(action_range, "low", None), getattr(action_range, "high", None))
    pair = action_range if box[0] is None or box[1] is None else box
    try:
        low, high = (torch.as_tensor(bound, dtype=torch.float64).flatten() for bound in pair)
    except (TypeError, ValueError, RuntimeError) as reason:
        raise InputError(f"`action_range` must be (low, high) or a Box, got {action_range!r}.") from reason
    if not bool((low < high).all()):  # this way round NaN fails too
        raise InputError(f"`action_range` must have each low below its high, got {low.tolist()} and {high.tolist()}.")
    return low, high


def _parts(extracted: Any) -> dict[str, Any]:
    if isinstance(extracted, Tensor):
        return {"logits": extracted}
    if isinstance(extracted, Mapping):
        unknown = [str(name) for name in extracted if name not in (*NAMES, *ALSO)]
        if unknown:
            raise wrong_extraction(f"a mapping with {', '.join(unknown)}; known are {', '.join((*NAMES, *ALSO))}")
        return dict(extracted)
    if isinstance(extracted, (tuple, list)):
        if len(extracted) > len(NAMES):
            raise wrong_extraction(f"a {type(extracted).__name__} of {len(extracted)}")
        return dict(zip(NAMES, extracted, strict=False))
    raise wrong_extraction(type(extracted).__name__)


def _floating(part: Any, name: str) -> Any:
    """Checked as a tensor of floating-point numbers; `None` stays `None`."""
    if part is None:
        return None
    if not isinstance(part, Tensor) or not part.is_floating_point():
        what = f"{part.dtype} of shape {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
        raise wrong_extraction(f"{what} as `{name}`, which must be a tensor of floating-point numbers")
    return part


def _discrete(logits: Any, mask: Any) -> DiscreteHead:
    logits = _floating(logits, "logits")
    if logits is None or logits.dim() == 0 or logits.numel() == 0:
        shape = None if logits is None else tuple(logits.shape)
        raise wrong_extraction(f"`logits` of shape {shape}, which must be (states, actions)")
    try:
        return discrete_head(logits, mask)
    except (RuntimeError, AttributeError) as reason:
        what = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"type {type(mask).__name__}"
        raise wrong_extraction(f"a `mask` of {what} for logits of {tuple(logits.shape)}") from reason


def _continuous(mean: Tensor | None, std: Tensor) -> ContinuousHead:
    try:
        return continuous_head(mean, std)
    except RuntimeError as reason:
        shapes = f"`mean` of shape {tuple(mean.shape) if mean is not None else None} and `std` of {tuple(std.shape)}"
        raise wrong_extraction(f"{shapes}, which do not fit together") from reason
