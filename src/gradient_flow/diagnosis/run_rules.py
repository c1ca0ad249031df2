"""Rules over time, for what a run recorded: non-finite gradients, trends, spikes, update ratios, quiet layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from gradient_flow.diagnosis import advice
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.stability import FAR_OUT
from gradient_flow.diagnosis.rate_changes import raised_too_far
from gradient_flow.diagnosis.registry import Rule
from gradient_flow.diagnosis.robust import (
    LEARNS,
    beside,
    fell_to,
    goes_unfelt,
    heights,
    is_done,
    is_loud,
    is_solved,
    loss_change,
    middle_and_spread,
    sets_back,
    spikes,
)
from gradient_flow.diagnosis.run_layer_rules import LEAST_LOSSES, lost_over_depth, quiet_layers, update_ratios
from gradient_flow.diagnosis.trend import LARGE_CHANGE, NormTrend, norm_trend
from gradient_flow.diagnosis.words import count, percent, plain
from gradient_flow.record.event import CLIP_BEFORE_UNSCALE
from gradient_flow.record.evidence import CLIP_TOLERANCE, LayerSeries, RunRecord, Series

WINDOW: Final = 64
LEAST: Final = 16
OFTEN: Final = 0.05
STRETCH: Final = 256
"""Steps in which spikes are counted: however long a run goes on afterwards, they were as frequent as they were."""
TALL: Final = 10.0
"""A single spike counts when it is also this many times the norms around it."""
_MILD: Final = 3.0
"""Times the losses around it: that of a batch which is louder than others, and no more."""
_MOSTLY: Final = 0.7
"""Share of spikes that have to be those of loud batches."""
_ABOVE_LATER: Final = 3.0
"""Robust deviations above the norms after it: what they reach as well is a new level, and no spike."""
LEAST_HEIGHT: Final = 1.5
"""Less than this above both sides is a step of a course that falls or rises, not a spike."""
_FEW: Final = 3
_FIRST: Final = 5
KEEP_OUT: Final = "Until then skip such steps: `gf.create_gradient_manager(nonfinite='skip')`."
DIVERGED: Final = "the run diverged: the norm had been rising."
LOUD_BATCHES: Final = "a few batches are on another scale: the loss jumps with them, and is back with the next batch."
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
    counts = f" ({nan:,} NaN, {inf:,} Inf)" if nan + inf else ""
    more = f", here and in {count(len(bad.layers) - 1, 'other layer')}" if len(bad.layers) > 1 else ""
    # Norms of another optimizer are on another scale: they say nothing of this one's.
    own = [series for series in record.totals if bad.step in series.steps] or record.totals
    before = [n for series in own for s, n in zip(series.steps, series.norms, strict=True) if s < bad.step]
    rising = _rises([norm for norm in before if math.isfinite(norm)])
    yield Issue(
        issue_type=IssueType.NUMERICAL,
        severity=IssueSeverity.CRITICAL,
        layer=where,
        step=bad.step,
        message=f"gradients became NaN or Inf{counts}{more}.",
        evidence={"layers": list(bad.layers), "nan": nan, "inf": inf, "norms_before": before[-3:]},
        cause=_cause_of_nonfinite(rising=rising, first=not before),
        advice=[
            _lower_rate(record, own[0].name if own else "") if rising else "Look at the batch of that step.",
            "Replay that step with `gf.find_nonfinite(step_fn, model)`: it names the operation and the line of code.",
            KEEP_OUT,
        ],
    )


def _cause_of_nonfinite(*, rising: bool, first: bool) -> str:
    if rising:
        return DIVERGED
    if first:
        return "the first batch, the initial weights, or an operation: it was so from the first step on."
    return "a single operation or batch: the norms before it are normal."


def trends(record: RunRecord) -> Iterator[Issue]:
    """The norm falls to nothing or rises out of bounds over the run."""
    yield from _gravest(record, _trend)


def _trend(record: RunRecord, series: Series) -> Iterator[Issue]:
    steps, norms = series.finite()
    losses = record.losses_of(series.name)
    change = loss_change(losses, LEAST_LOSSES)
    found = norm_trend(norms)
    if found.status == "stable" and not math.isnan(change):
        found = _lasting(norms) or found
    if found.status not in ("vanishing", "exploding"):
        return
    falls = found.status == "vanishing"
    if change < 0.5 or fell_to(losses, LEARNS) if falls else is_solved(losses):
        return  # the loss fell as well: that is what training is for
    whole = abs(found.change) >= 2
    layers = [layer for layer in record.layers if layer.optimizer in ("", series.name)]
    yield Issue(
        issue_type=IssueType.VANISHING if falls else IssueType.EXPLODING,
        severity=IssueSeverity.HIGH if whole else IssueSeverity.MEDIUM,
        layer=_most_changed(layers, -1 if falls else 1) or series.name,
        step=steps[found.indices[0]] if found.indices else None,
        message=found.message.replace("entry", "recorded step"),
        evidence={"decades": found.change, "decades_per_step": found.slope, "loss_change": change},
        cause="units saturate or die, or the learning rate decayed too far."
        if falls
        else "the learning rate is beyond the edge of stability.",
        advice=["Run gf.GradientFlowAnalyzer on the current model: it sees activations, a run sees only weights."]
        if falls
        else [_lower_rate(record, series.name), advice.clip_at(norms[: found.indices[0]] or norms)],
    )


def _lasting(norms: Sequence[float]) -> NormTrend | None:
    """A trend that an earlier part of the run shows and that has lasted: with time it looks like the usual level."""
    last = median(norms[-max(1, len(norms) // 5) :])
    part = len(norms) // 2
    while part >= WINDOW:
        start = median(norms[: max(1, part // 5)])
        if start > 0:
            change = math.log10(last / start) if last > 0 else -math.inf
            if abs(change) >= LARGE_CHANGE:  # rarely: a trend costs a hundred times as much as these medians
                found = norm_trend(norms[:part])
                if found.status == ("vanishing" if change < 0 else "exploding"):
                    return found
        part //= 2
    return None


def unstable_norm(record: RunRecord) -> Iterator[Issue]:
    """Spikes: often, or tall."""
    yield from _gravest(record, _spiking)


def spikes_in(norms: Sequence[float]) -> tuple[list[int], float]:
    """Where norms spike, and how many times the norms around it the tallest of them is."""
    at = spikes(norms, window=WINDOW, least=LEAST)
    # By the norms around it: over a run that converges the median falls far below those of the first steps.
    times = heights(norms, at, WINDOW)
    found = [
        (i, height)
        for i, height in zip(at, times, strict=True)
        if height >= TALL or (height >= LEAST_HEIGHT and not _is_new_level(norms, i))
    ]
    return [i for i, _ in found], max((height for _, height in found), default=0.0)


def _is_new_level(norms: Sequence[float], at: int) -> bool:
    """Whether the norms that follow are as high, or as restless: a loss that gets steeper where it is low does so.

    Near the end, the last norms stand for those that follow.
    """
    first = min(at + 1, max(0, len(norms) - LEAST))
    others = [norm for k, norm in enumerate(norms[first : at + 1 + WINDOW // 2], first) if k != at]
    logs = [math.log(norm) for norm in others if 0 < norm < math.inf]
    if not logs:
        return False
    middle, spread = middle_and_spread(logs)
    return math.log(norms[at]) - middle < _ABOVE_LATER * spread


def _spiking(_record: RunRecord, series: Series) -> Iterator[Issue]:
    steps, norms = series.finite()
    at, tall = spikes_in(norms)
    share = _densest(at, len(norms))
    if not at or not (share > OFTEN or tall >= TALL):
        return
    usual = [norm for k, norm in enumerate(norms) if k not in set(at)]
    losses, there = _losses_at(series, [steps[i] for i in at])
    # Next to a loss of zero gradients are tiny, and one sample that is still wrong stands out, however often.
    felt = {i: k for i, k in zip(at, there, strict=True) if not _is_of_one_sample(losses, k)}
    loud = are_batches(series, [steps[i] for i in felt or at])
    yield Issue(
        issue_type=IssueType.UNSTABLE,
        severity=_severity(norms, losses, felt, loud=loud),
        layer=series.name,
        step=steps[at[0]],
        message=f"{len(at):,} of {len(norms):,} steps spiked, up to {plain(tall, 2)} × the median norm around them.",
        evidence={
            "spikes": [steps[i] for i in at[:20]],
            "largest_over_median": tall,
            "share": share,
        },
        cause=LOUD_BATCHES
        if loud
        else "a few batches are on a different scale, or the learning rate is at the edge of stability.",
        advice=[
            advice.clip_at(usual[-WINDOW:] or norms),
            f"Look at the batches of steps {', '.join(str(steps[i]) for i in at[:3])}.",
        ],
    )


def _severity(norms: Sequence[float], losses: Sequence[float], felt: Mapping[int, int], *, loud: bool) -> IssueSeverity:
    """Of spikes, each with the place of its loss; `loud` where they are those of single batches."""
    often = _densest([*felt], len(norms)) > OFTEN
    tall = max(heights(norms, [*felt], WINDOW), default=0.0)
    if not often and tall < TALL:
        return IssueSeverity.LOW
    # Batches that are louder than others and leave no trace; steep places, as recurrent nets have, of which a loss that
    # falls knows nothing.
    unfelt = tall < FAR_OUT and goes_unfelt(losses, felt.values())
    # A single one may be tall in a run that learns: where gates open, a batch was 12 times as steep, with 2.3 times the
    # loss. That of a sample which does not belong to the data is louder.
    place = next(iter(felt.values()))
    sides = beside(losses, place)
    mild = sides is not None and losses[place] < _MILD * max(sides)
    once = len(felt) == 1 and tall < 2 * TALL and mild and fell_to(losses, LEARNS)
    if unfelt or (loud and (tall < TALL or once)):
        return IssueSeverity.LOW
    return IssueSeverity.HIGH if often and tall >= TALL else IssueSeverity.MEDIUM


def _is_of_one_sample(losses: Sequence[float], at: int) -> bool:
    """Whether a spike lies in a stretch of losses that are done with, before it and after it, and is below the first
    losses itself. Training for ten times as long as it took to learn a task had such spikes in one run of twenty, up to
    1,000 times the norms around them."""
    known = [loss for loss in losses if math.isfinite(loss)][:_FIRST]
    sides = beside(losses, at)
    if sides is None or not known:
        return False
    first = median(known)  # the very first may have such a sample in it
    return all(is_done(side, first) for side in sides) and losses[at] < first


def are_batches(series: Series, at: Sequence[int]) -> bool:
    """Whether spikes are the work of single batches: the loss of a step is taken before its update, so if it is far
    above those before and after, the weights are not at fault."""
    losses, places = _losses_at(series, at)
    sides = {k: known for k in places if (known := beside(losses, k)) is not None}
    alone = sum(is_loud(losses[k], *each) and not sets_back(*each) for k, each in sides.items())
    return len(sides) > 0 and len(sides) >= len(at) / 2 and alone >= _MOSTLY * len(sides)


def _losses_at(series: Series, at: Sequence[int]) -> tuple[list[float], list[int]]:
    """A loss for every step, NaN where none is known, and the places of the steps asked for among them."""
    losses = [*series.losses, *[math.nan] * (len(series.steps) - len(series.losses))]
    place = {step: k for k, step in enumerate(series.steps)}
    return losses, [place[step] for step in at]


def _densest(at: Sequence[int], steps: int) -> float:
    """The share of spikes in the stretch that has most of them: steps that came later make them no fewer."""
    stretch = max(1, min(STRETCH, steps))
    most = first = 0
    for last, place in enumerate(at):
        while place - at[first] >= stretch:
            first += 1
        most = max(most, last - first + 1)
    return most / stretch


def clipped_share(record: RunRecord) -> Iterator[Issue]:
    """Clipping that acts on most steps sets the step size instead of catching spikes: ordinary, and worth a remark."""
    yield from _gravest(record, _mostly_clipped)


def _mostly_clipped(_record: RunRecord, series: Series) -> Iterator[Issue]:
    norms = series.finite()[1]
    if not series.clipped_norms or len(norms) < LEAST:
        return
    # A comparison with NaN is false: a step without a clip counts as one that was not clipped.
    touched = sum(
        after < before * (1 - CLIP_TOLERANCE)
        for before, after in zip(series.norms, series.clipped_norms, strict=True)
        if math.isfinite(before)
    )
    share = touched / len(norms)
    if share > 0.5:
        yield Issue(
            issue_type=IssueType.UNSTABLE,
            severity=IssueSeverity.LOW,
            layer=series.name,
            message=f"clipping acts on {percent(share)} of the steps, so the limit sets the step size.",
            evidence={"clipped_share": share, "median_norm": median(norms)},
            cause="the limit is below the usual norm, as is common for language models and PPO.",
            advice=["If the run learns, do nothing.", advice.clip_at(norms)],
        )


def clip_before_unscale(record: RunRecord) -> Iterator[Issue]:
    """A clip of gradients that still carry the loss scale: its limit is as many times too small."""
    event = next((event for event in record.events if event.kind == CLIP_BEFORE_UNSCALE), None)
    if event is None:
        return
    scale = event.data.get("scale")
    known = f" ({scale:,.0f})" if isinstance(scale, (int, float)) else ""
    yield Issue(
        issue_type=IssueType.SLOW,
        severity=IssueSeverity.MEDIUM,
        layer="model",
        step=event.step,
        message=f"gradients are clipped while they still carry the loss scale{known}, so the effective limit is that "
        "many times smaller.",
        evidence={"scale": scale},
        cause=advice.CLIPPED_SCALED,
        advice=[advice.UNSCALE_FIRST],
    )


RUN_RULES: Final[tuple[Rule, ...]] = (
    nonfinite_gradients,
    raised_too_far,
    trends,
    unstable_norm,
    update_ratios,
    quiet_layers,
    lost_over_depth,
    clipped_share,
    clip_before_unscale,
)


def _gravest(record: RunRecord, judge: Callable[[RunRecord, Series], Iterator[Issue]]) -> list[Issue]:
    """What a rule finds of each optimizer by itself; of very many, as with one per parameter, the gravest."""
    found = [issue for series in record.totals for issue in judge(record, series)]
    return sorted(found, key=lambda issue: -issue.severity)[:_FEW]


def _lower_rate(record: RunRecord, optimizer: str) -> str:
    """One advice on the rate for all rules, so that a run is not given two."""
    layers = [layer for layer in record.layers if layer.is_weight and layer.optimizer in ("", optimizer)]
    ratios = [median(known) for layer in layers if (known := _known(layer.update_ratios))]
    rate = record.learning_rate_of(optimizer) if optimizer else record.learning_rate
    return advice.lower_learning_rate(rate, max(ratios, default=None))


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
