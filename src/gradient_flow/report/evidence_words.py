"""The numbers behind an issue as a person reads them: a phrase for one number, a small chart for many."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gradient_flow.diagnosis.words import compared, percent, plain

MOST_BARS: Final = 40
_LISTED: Final = 6
"""Names that are listed; how many more there are is said."""
_CODE: Final = ("operation", "line", "code", "function")
"""Where a NaN was made: text that stays as it was written."""
_ELSEWHERE: Final = frozenset({"layers", "gain_over_depth", "decades_per_step"})
"""Said by the place of the issue, or by another of its numbers."""
_LABELS: Final = {
    "falling": "Entropy over the steps",
    "collapsed_heads": "Heads that look at one position",
    "without_choice": "Queries that a mask leaves one key",
    "apart": "How far samples lie apart, over their size",
    "frozen_heads": "Heads with a frozen softmax",
    "max_logit": "Largest logit",
    "entropy_by_head": "Entropy of each head, as a share of ln(keys)",
    "spread_by_block": "Spread of tokens after each block",
    "decades": "Gradient",
    "gain_per_layer": "Gradient per layer",
    "begins_at": "Where it happens",
    "profile": "Gradient, layer by layer",
    "update_ratio": "Update / weight",
    "update_ratios": "Update / weight, layer by layer",
    "loss_change": "Loss, last fifth / first fifth",
    "largest_over_median": "Largest norm / median",
    "spikes": "Spikes at steps",
    "spikes_at": "Spikes at steps",
    "share": "Share of steps",
    "rows": "Rows of data seen",
    "chance_of_firing_below": "Chance that a unit fires, at most",
    "flat_share": "Values in the flat part",
    "mean_slope": "Mean slope, of the steepest",
    "rms": "Root mean square before it",
    "input_rms": "Root mean square of the input",
    "norms_before": "Norms before it",
    "nan": "NaN elements",
    "inf": "Inf elements",
    "rate_change": "Learning rate",
    "also_in": "Also in",
    "sum_of_inverse_widths": "Sum of 1 / width",
    "share_of_inverse_widths": "Share of the sum of 1 / width",
    "detached": "Cut by",
    "threshold": "Limit",
    "dead_threshold": "Limit",
    "unstable_cv_threshold": "Limit",
    "min_std_threshold": "Limit",
    "max_std_threshold": "Limit",
    "min_entropy_threshold": "Limit",
    "coefficient_of_variation": "Standard deviation / mean of the norm",
    "cosine": "Cosine of successive directions",
    "noise": "Noise of the norm",
    "noise_scale": "Gradient noise scale, in samples",
    "batch": "Batch size",
    "batches": "Batch of each step",
    "samples": "Samples that these batches share",
    "looks": "Looks that show it",
    "tables": "Records of the layer",
    "scale": "Loss scale",
    "stale": "Gradient / root of its second moment",
    "eps_share": "Share of eps in the denominator",
    "beta1": "β1",
    "beta2": "β2",
    "worst": "Most in",
    "lost": "Weights that cannot move",
    "needed": "Learning rate that would move them",
    "decay": "Weight decay / gradient step",
    "growth": "Change of the weights per step",
    "age": "Steps in the optimizer's state",
    "own_steps": "Steps taken",
    "clipped_share": "Steps clipped",
    "loss_per_gradient": "Loss / gradient",
    "zero_share": "Zero gradients",
    "dead_share": "Dead units",
    "dead_share_at_first": "Dead units at first",
    "idle_units": "Units that never fire",
    "gradient_rank": "Rank of the gradient",
    "gradient_behind": "Gradient behind it",
    "gradient_here": "Gradient here",
    "output_rms": "Root mean square of the output",
    "growth_of_values": "Growth of the values",
    "growth_per_layer": "Growth per layer",
    "token_spread": "Spread of tokens",
    "token_spread_at_start": "Spread of tokens at first",
    "token_similarity": "Similarity of tokens",
    "reaches_loss": "Reaches the loss",
    "in_optimizer": "In the optimizer",
    "goes_on_at": "Goes on at",
    "reach": "Share of the steps that get a gradient",
}
_SHARES: Final = frozenset(
    {"mean_slope", "collapsed_heads", "frozen_heads", "idle_units", "samples_without_gradient", "lost", "reach"}
)
_OF_ONE: Final = frozenset({"entropy_by_head"})
"""Shares whose bars end at 1, so that a small one looks small."""
_FACTORS: Final = frozenset({"gain_per_layer"})


def evidence_data(evidence: Mapping[str, Any]) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Pairs of label and phrase, and charts (`title`, `labels`, `values`, `log`, and `most`, where bars end).

    >>> evidence_data({"falling": True, "collapsed_heads": 1.0, "entropy": 0.003606})[0]
    [['Entropy over the steps', 'falling'], ['Heads that look at one position', '100%'], ['Entropy', '0.00361']]
    >>> evidence_data({"entropy_by_head": [0.5, 0.25, 0.125]})[1][0]["values"]
    [0.5, 0.25, 0.125]
    """
    pairs, charts = [], []
    for name, value in evidence.items():
        chart = _chart(name, value)
        if chart is not None:
            charts.append(chart)
        elif name not in _ELSEWHERE and (text := _phrase(name, value)):
            pairs.append([_label(name), text])
    return pairs, charts


def _label(name: str) -> str:
    words = name.replace("_", " ")
    return _LABELS.get(name, words[:1].upper() + words[1:])


def _phrase(name: str, value: Any) -> str:
    """Empty where there is nothing to say."""
    if name in _CODE:
        return str(value)
    if name == "falling":
        return "falling" if value else "level"
    if value is True:
        return "yes"
    if value is False or value is None:
        return ""
    if isinstance(value, (int, float)):
        return _number(name, value)
    if isinstance(value, Mapping):
        if name == "rate_change" and {"step", "from", "to"} <= value.keys():
            return f"{plain(float(value['from']))} → {plain(float(value['to']))} at step {value['step']:,}"
        return _listed([f"{key}: {_phrase('', item) or item}" for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return _listed([_number(name, item) if _is_number(item) else str(item) for item in value])
    return str(value)


def _number(name: str, value: float) -> str:
    if name == "decades" or name in _FACTORS:
        return compared(10.0 ** min(300.0, max(-300.0, value)) if name == "decades" else value)
    if isinstance(value, int):
        return f"{value:,}"
    if 0 <= value <= 1 and (name.endswith("share") or name in _SHARES):
        return percent(value)
    return plain(value)


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return ", ".join(texts[:_LISTED]) + more


def _chart(name: str, value: Any) -> dict[str, Any] | None:
    """A list or mapping of three numbers or more; steps are places in time, and no bars."""
    if name in ("spikes", "spikes_at", "rate_change"):
        return None
    labels: list[str]
    if isinstance(value, Mapping):
        labels, values = [str(key) for key in value], list(value.values())
    elif isinstance(value, (list, tuple)):
        labels, values = [str(at) for at in range(1, len(value) + 1)], list(value)
    else:
        return None
    if len(values) < 3 or not all(item is None or _is_number(item) for item in values):
        return None
    log = name == "profile" and all(item is not None and item > 0 for item in values)
    words: Callable[[float], str] = plain
    if name == "profile" and not log:  # decades that each layer adds, on the way back
        words = _per_layer
    kept = values[:MOST_BARS]
    return {
        "title": _label(name),
        "labels": labels[:MOST_BARS],
        "values": kept,
        "texts": ["not finite" if item is None else words(float(item)) for item in kept],
        "log": log,
        "most": 1.0 if name in _OF_ONE else None,
        "left_out": len(values) - len(kept),
    }


def _per_layer(decades: float) -> str:
    return "unchanged" if abs(decades) < 0.02 else compared(10.0 ** min(300.0, max(-300.0, decades)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
