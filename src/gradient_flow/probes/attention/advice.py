"""What to do about attention, the most promising first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from gradient_flow.diagnosis.issue import IssueSeverity
from gradient_flow.probes.attention.stats import LayerAttention

HEALTHY_LOGIT: Final = 10.0


def entropy_advice(layer: LayerAttention, severity: IssueSeverity, falling: bool) -> tuple[str, ...]:
    """For entropy collapse in a layer."""
    return tuple(_entropy_advice(layer, severity, falling))


def _entropy_advice(layer: LayerAttention, severity: IssueSeverity, falling: bool) -> Iterator[str]:
    if severity == IssueSeverity.LOW:
        yield (
            "If the run learns well this may be what the task asks for: then lower `min_entropy_threshold`. Analyze "
            "with `optimizer=` to see whether the entropy keeps falling."
        )
    if falling:
        yield (
            "Lower the learning rate or lengthen the warm-up: the entropy is falling within the steps that were "
            "watched. Clipping gradients to a norm of 1 helps as well."
        )
    yield "Normalise queries and keys of each head before their product (QK-norm): it bounds the logits for good."
    if layer.largest_logit > HEALTHY_LOGIT:
        factor = math.sqrt(HEALTHY_LOGIT / layer.largest_logit)
        yield (
            f"Multiply W_q and W_k of `{layer.name}`, and their biases, by {factor:.2g} each: that takes the largest "
            f"logit from {layer.largest_logit:.3g} to {HEALTHY_LOGIT:g}. With logits computed elsewhere, check the "
            "factor 1 / sqrt(head size)."
        )
    yield "Bound the spectral norm of W_q and W_k (sigma-reparametrisation, Zhai et al., 2023) or decay their weights."


def rank_advice(layer: LayerAttention) -> tuple[str, ...]:
    """For rank collapse that begins in a layer's block."""
    return (
        f"Give `{layer.block}` and the blocks after it a skip connection: x + attention(norm(x)).",
        "Put a feed-forward part with its own skip between attentions: it pulls tokens apart again.",
        "Where there are skips, check that the branch does not drown them: scale it by 1 / sqrt(2 * blocks), or use "
        "LayerNorm before the branch.",
        "Add positions to the tokens if there are none.",
    )


def diversity_advice(layer: LayerAttention, severity: IssueSeverity, identical: bool) -> tuple[str, ...]:
    """For heads that look at the same positions."""
    if identical:
        return (
            f"Initialise the heads of `{layer.name}` independently: draw W_q and W_k as one matrix, and copy no slice.",
            "Check that a loaded checkpoint or an expanded model (more heads than before) did not repeat its slices.",
            "Use grouped or fewer heads if they are meant to be shared: the same result for less.",
        )
    first = ("If the run learns well, lower `min_diversity_threshold`.",) if severity == IssueSeverity.LOW else ()
    return (
        *first,
        f"Use fewer heads in `{layer.name}`, or prune them: most can go without loss (Michel et al., 2019).",
        "Initialise W_q and W_k with a larger gain, so that heads start out further apart.",
        "Apply dropout to attention weights or whole heads.",
    )
