"""Rules over time, for what a run recorded: non-finite gradients, trends, spikes, update ratios, quiet layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from gradient_flow.diagnosis import advice
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.registry import Rule
from gradient_flow.diagnosis.robust import heights, is_solved, loss_change, spikes
from gradient_flow.diagnosis.run_layer_rules import LEAST_LOSSES, lost_over_depth, quiet_layers, update_ratios
from gradient_flow.diagnosis.trend import norm_trend
from gradient_flow.record.evidence import CLIP_TOLERANCE, LayerSeries, RunRecord

WINDOW: Final = 64
LEAST: Final = 16
OFTEN: Final = 0.05
TALL: Final = 10.0
"""A single spike counts when it is also this many times the norms around it."""
LEAST_HEIGHT: Final = 1.5
"""Less than this above both sides is a step of a course that falls or rises, not a spike."""
_FEW: Final = 3
KEEP_OUT: Final = "Until then keep such steps from the weights: gf.create_gradient_manager(nonfinite='skip')."
ENOUGH: Final = 2
"""Steps without which there is no verdict."""


def nonfinite_gradients(record: RunRecord) -> Iterator[Issue]:
    """Since when, and in which layer, gradients hold NaN or Inf."""
    bad = record.nonfinite
    if bad is None:
        return
    # Backward runs from the output to the input: what is bad nearest to the output was bad first.
    order = {layer.name: k for k, layer in enumerate(record.layers)}
    where = max(bad.layers, key=lambda name: order.get(name, -1), default="model")
    nan, inf = bad.nan, bad.inf
    counts = f" ({nan} NaN, {inf} Inf)" if nan + inf else ""
    more = f", with {len(bad.layers) - 1} other layers" if len(bad.layers) > 1 else ""
    before = [n for series in record.totals for s, n in zip(series.steps, series.norms, strict=True) if s < bad.step]
    rising = _rises([norm for norm in before if math.isfinite(norm)])
    yield Issue(
        issue_type=IssueType.NUMERICAL,
        severity=IssueSeverity.CRITICAL,
        layer=where,
        step=bad.step,
        message=f"gradients are not finite{counts} for the first time{more}.",
        evidence={"layers": list(bad.layers), "nan": nan, "inf": inf, "norms_before": before[-3:]},
        cause="the norm was rising before: the run diverged."
        if rising
        else "one operation or one batch: the norms before it are ordinary.",
        advice=[
            _lower_rate(record) if rising else "Look at the batch of that step.",
            "Replay that step with gf.find_nonfinite(step_fn, model): it names the operation and its line of code.",
            KEEP_OUT,
        ],
    )


def trends(record: RunRecord) -> Iterator[Issue]:
    """The norm falls to nothing or rises out of bounds over the run."""
    for series in record.totals:
        steps, norms = series.finite()
        found = norm_trend(norms)
        if found.status not in ("vanishing", "exploding"):
            continue
        falls = found.status == "vanishing"
        change = loss_change(record.losses, LEAST_LOSSES)
        if change < 0.5 if falls else is_solved(record.losses):
            continue  # the loss fell as well: that is what training is for
        whole = abs(found.change) >= 2
        yield Issue(
            issue_type=IssueType.VANISHING if falls else IssueType.EXPLODING,
            severity=IssueSeverity.HIGH if whole else IssueSeverity.MEDIUM,
            layer=_most_changed(record.layers, -1 if falls else 1) or series.name,
            step=steps[found.indices[0]] if found.indices else None,
            message=found.message.replace("entry", "recorded step"),
            evidence={"decades": found.change, "decades_per_step": found.slope, "loss_change": change},
            cause="units that saturate or die, or a learning rate that decayed too far."
            if falls
            else "a learning rate beyond the edge of stability.",
            advice=["Run gf.GradientFlowAnalyzer on the model as it is now: it sees activations, a run only weights."]
            if falls
            else [_lower_rate(record), advice.clip_at(norms[: found.indices[0]] or norms)],
        )
        return


def unstable_norm(record: RunRecord) -> Iterator[Issue]:
    """Spikes: often, or tall."""
    for series in record.totals:
        steps, norms = series.finite()
        at = spikes(norms, window=WINDOW, least=LEAST)
        # By the norms around it: over a run that converges the median falls far below those of the first steps.
        times = heights(norms, at, WINDOW)
        at = [i for i, height in zip(at, times, strict=True) if height >= LEAST_HEIGHT]
        tall = max(times, default=0.0)
        often = len(at) > OFTEN * max(len(norms), 1)
        if not at or not (often or tall >= TALL):
            continue
        usual = [norm for k, norm in enumerate(norms) if k not in set(at)]
        yield Issue(
            issue_type=IssueType.UNSTABLE,
            severity=IssueSeverity.HIGH if often and tall >= TALL else IssueSeverity.MEDIUM,
            layer=series.name,
            step=steps[at[0]],
            message=f"{len(at)} of {len(norms)} steps spiked, up to {tall:.3g} × the median norm around them.",
            evidence={
                "spikes": [steps[i] for i in at[:20]],
                "largest_over_median": tall,
                "share": len(at) / len(norms),
            },
            cause="single batches on another scale, or a learning rate at the edge of stability.",
            advice=[
                advice.clip_at(usual[-WINDOW:] or norms),
                f"Look at the batches of steps {', '.join(str(steps[i]) for i in at[:3])}.",
            ],
        )
        return


def clipped_share(record: RunRecord) -> Iterator[Issue]:
    """Clipping that acts on most steps sets the step size instead of catching spikes: ordinary, and worth a remark."""
    if len(record.clipped) < LEAST:
        return
    share = sum(after < before * (1 - CLIP_TOLERANCE) for before, after in record.clipped) / len(record.clipped)
    if share > 0.5:
        norms = [before for before, _ in record.clipped if math.isfinite(before)]
        yield Issue(
            issue_type=IssueType.UNSTABLE,
            severity=IssueSeverity.LOW,
            layer="model",
            message=f"clipping acts on {share:.0%} of the steps, so the limit sets the step size.",
            evidence={"clipped_share": share, "median_norm": median(norms) if norms else math.nan},
            cause="a limit below the usual norm, as is ordinary for language models and PPO.",
            advice=["Nothing, if the run learns.", *([advice.clip_at(norms)] if norms else [])],
        )


RUN_RULES: Final[tuple[Rule, ...]] = (
    nonfinite_gradients,
    trends,
    unstable_norm,
    update_ratios,
    quiet_layers,
    lost_over_depth,
    clipped_share,
)


def _lower_rate(record: RunRecord) -> str:
    """One advice on the rate for all rules, so that a run is not given two."""
    ratios = [median(known) for layer in record.layers if layer.is_weight and (known := _known(layer.update_ratios))]
    return advice.lower_learning_rate(record.learning_rate, max(ratios, default=None))


def _known(ratios: Sequence[float]) -> list[float]:
    return [ratio for ratio in ratios if not math.isnan(ratio)]


def _rises(norms: Sequence[float]) -> bool:
    return len(norms) >= _FEW and norms[-1] > TALL * median(norms)


def _most_changed(layers: Sequence[LayerSeries], sign: int) -> str | None:
    changes = {
        layer.name: sign * math.log(layer.norms[-1] / layer.norms[0])
        for layer in layers
        if len(layer.norms) > 1 and 0 < layer.norms[0] < math.inf and 0 < layer.norms[-1] < math.inf
    }
    return max(changes, key=lambda name: changes[name]) if changes else None
