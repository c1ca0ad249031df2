"""How strong the evidence is that attention has gone wrong: severities from numbers, nothing else.

A documented threshold crossed alone is LOW: trained models have heads that look at one position on purpose. What makes
it more is evidence that needs no level: most heads of a layer, an entropy that falls over the steps, logits spread far
beyond where a softmax freezes, heads that agree far beyond chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from gradient_flow.diagnosis.issue import IssueSeverity
from gradient_flow.diagnosis.robust import slope_with_error
from gradient_flow.probes.attention.stats import LayerAttention

MOST_HEADS: Final = 0.5
HOT_LOGIT: Final = 50.0
"""Logits beyond this make a softmax one-hot; healthy ones stay below 10 or so (Dehghani et al., 2023)."""
FAR_BEYOND: Final = 150.0
"""A logit that no task asks for: heads that find the one key of many came to 32 where they had solved it. Its softmax
has no slope left, whatever was learnt beside it."""
ONE_HOT: Final = 0.01
"""Mean entropy of all heads, as a share of ln(keys), below which no gradient is left for queries and keys."""
LEAST_FALL: Final = 0.1
"""A fall of the entropy counts from this share of ln(keys) on."""
UNIFORM: Final = 0.98
"""Heads that look almost everywhere alike are not redundant for it."""
REDUNDANT: Final = 0.05
IDENTICAL: Final = 0.005
"""Diversity below which heads agree almost entirely, or entirely."""
_MEASURABLE: Final = 1e-8
"""Focus in nats that heads need so that their differences are more than rounding."""


def entropy_severity(layer: LayerAttention, threshold: float, falling: bool, explicit: bool) -> IssueSeverity | None:
    """How strong the evidence of entropy collapse in a layer is; `None` for none."""
    entropy, hot = layer.entropy_mean, is_hot(layer)
    if entropy is None:
        return None
    collapsed = layer.collapsed_heads > MOST_HEADS
    below = entropy < threshold or collapsed  # of the last looks, where that of all is still higher
    hot = hot or (layer.collapsed_heads == 1 and entropy < ONE_HOT)  # of whatever: a softmax like that is frozen
    if explicit and not below:
        return None
    if collapsed and hot and falling:
        return IssueSeverity.CRITICAL
    if (collapsed and (hot or falling)) or explicit or (below and is_far_beyond(layer)):
        return IssueSeverity.HIGH
    if below:
        on_its_way = layer.frozen_heads > MOST_HEADS or (hot and falling)
        return IssueSeverity.MEDIUM if on_its_way else IssueSeverity.LOW
    return None


def diversity_severity(layer: LayerAttention, threshold: float, explicit: bool) -> IssueSeverity | None:
    """How strong the evidence of redundant heads in a layer is; `None` for none."""
    if layer.copies > 1:
        return IssueSeverity.HIGH
    diversity, entropy = layer.head_diversity, layer.entropy_mean
    if diversity is None or entropy is None or layer.head_focus < _MEASURABLE:
        return None
    if explicit:
        return IssueSeverity.HIGH if diversity < threshold else None
    if diversity < IDENTICAL:
        return IssueSeverity.HIGH if entropy < UNIFORM else IssueSeverity.MEDIUM
    if entropy >= UNIFORM or diversity >= threshold:
        return None
    return IssueSeverity.MEDIUM if diversity < REDUNDANT else IssueSeverity.LOW


def is_hot(layer: LayerAttention) -> bool:
    """Whether logits are so large that the softmax picks single positions whatever the input."""
    return layer.largest_logit > HOT_LOGIT or layer.frozen_heads > MOST_HEADS


def is_far_beyond(layer: LayerAttention) -> bool:
    """Whether logits of most heads are larger than any task asks for."""
    return layer.largest_logit > FAR_BEYOND and layer.frozen_heads > MOST_HEADS


def falls(history: Sequence[float]) -> bool:
    """Whether an entropy falls over the steps: beyond noise, and by `LEAST_FALL` or more."""
    values = [value for value in history if math.isfinite(value)]
    if len(values) < 5:
        return False
    third = len(values) // 3
    slope = slope_with_error(list(enumerate(values)))
    drop = median(values[:third]) - median(values[-third:])
    return drop >= LEAST_FALL and slope.value < 0 and slope.significant


def since(history: Sequence[float], limit: float) -> int | None:
    """The step from which on it stays below the limit; `None` if it was never above."""
    above = [step for step, value in enumerate(history) if value >= limit]
    return above[-1] + 1 if above and above[-1] + 1 < len(history) else None
