"""What to do about attention, the most promising first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from gradient_flow.diagnosis.advice import by_itself
from gradient_flow.diagnosis.issue import IssueSeverity
from gradient_flow.diagnosis.words import plain
from gradient_flow.probes.attention.growth import Growth
from gradient_flow.probes.attention.stats import LayerAttention

HEALTHY_LOGIT: Final = 10.0


def entropy_advice(layer: LayerAttention, severity: IssueSeverity, falling: bool) -> tuple[str, ...]:
    """For entropy collapse in a layer."""
    return tuple(_entropy_advice(layer, severity, falling))


def _entropy_advice(layer: LayerAttention, severity: IssueSeverity, falling: bool) -> Iterator[str]:
    if severity == IssueSeverity.LOW:
        yield (
            "If the run learns well, the task may need this: lower `min_entropy_threshold`. Analyze with `optimizer=` "
            "to see whether the entropy keeps falling."
        )
    if falling:
        yield (
            "Lower the learning rate or lengthen the warm-up: the entropy fell during the analyzed steps. Clipping "
            "gradients to a norm of 1 helps too."
        )
    yield by_itself(
        "Normalise the queries and keys of each head before their product (QK-norm): that bounds the logits.", "qk_norm"
    )
    if layer.largest_logit > HEALTHY_LOGIT:
        factor = math.sqrt(HEALTHY_LOGIT / layer.largest_logit)
        yield (
            f"Multiply W_q and W_k of `{layer.name}`, and their biases, by {plain(factor, 2)} each: that takes the "
            f"largest logit from {plain(layer.largest_logit)} to {HEALTHY_LOGIT:g}. If you compute the logits "
            "yourself, "
            "check the factor 1 / sqrt(head size)."
        )
    yield "Bound the spectral norm of W_q and W_k (sigma-reparametrisation, Zhai et al., 2023) or decay their weights."


def logit_advice(layer: LayerAttention, growth: Growth | None) -> tuple[str, ...]:
    """For logits that grow, or have grown, large."""
    factor = math.sqrt(HEALTHY_LOGIT / layer.largest_logit) if layer.largest_logit > HEALTHY_LOGIT else 1.0
    advice = [
        by_itself(
            "Normalise the queries and keys of each head before their product (QK-norm): that bounds the logits by "
            "the square root of the head's size.",
            "qk_norm",
        )
    ]
    if growth is not None:
        advice.append(
            "Lower the learning rate of W_q and W_k to a third, in a parameter group of their own, or lengthen the "
            f"warm-up: at a third, logits double in {3 * growth.doubling:,.0f} steps instead of {growth.doubling:,.0f}."
        )
    advice.append(
        "Cap the logits before the softmax, as Gemma 2 does: 50 * tanh(logits / 50); or after each step multiply W_q "
        f"and W_k of `{layer.name}` by {plain(factor, 2)} each, which brings the largest back to "
        f"{plain(layer.largest_logit * factor**2, 2)} (QK-clip)."
    )
    return tuple(advice)


def rank_advice(layer: LayerAttention) -> tuple[str, ...]:
    """For rank collapse that begins in a layer's block."""
    return (
        by_itself(f"Give `{layer.block}` and the blocks after it a skip connection: x + attention(norm(x)).", "skip"),
        "Put a feed-forward part with its own skip connection between attention layers: it separates tokens again.",
        "If there are skip connections, check that the branch does not drown them: scale it by 1 / sqrt(2 * blocks), "
        "or "
        "put a LayerNorm before it.",
        "Add positional encodings if there are none.",
    )


def diversity_advice(layer: LayerAttention, severity: IssueSeverity, identical: bool) -> tuple[str, ...]:
    """For heads that look at the same positions."""
    if layer.copies > 1:
        return (
            f"Make a module for each head: `ModuleList([Head() for _ in range({layer.copies})])`.",
            "If heads are meant to be shared, use one: same result, less work.",
        )
    if identical:
        return (
            f"Initialise the heads of `{layer.name}` independently: draw W_q and W_k as one matrix; do not copy "
            "slices.",
            "Check that a loaded checkpoint or an expanded model (more heads than before) does not repeat slices.",
            "If heads are meant to be shared, use grouped or fewer heads: same result, less work.",
        )
    first = ("If the run learns well, lower `min_diversity_threshold`.",) if severity == IssueSeverity.LOW else ()
    return (
        *first,
        f"Use fewer heads in `{layer.name}`, or prune some: most can be removed without loss (Michel et al., 2019).",
        "Initialise W_q and W_k with a larger gain, so that heads start out further apart.",
        "Apply dropout to attention weights or whole heads.",
    )
