"""The size of steps: why they are too large or too small, as a code on the issue that says so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any, Final

from gradient_flow.diagnosis import advice
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop import context
from gradient_flow.diagnosis.loop.context import ENOUGH, LARGE, Loop
from gradient_flow.diagnosis.loop.data import is_warming_up, uninformed
from gradient_flow.diagnosis.loop.record import LoopLook
from gradient_flow.diagnosis.robust import fell_beyond_noise, is_solved, loss_change
from gradient_flow.diagnosis.treatment import Advice
from gradient_flow.diagnosis.words import plain
from gradient_flow.record.event import CLIP_BEFORE_UNSCALE
from gradient_flow.record.evidence import Series

_OFTEN: Final = 0.9
_TIGHT: Final = 1e-2
"""Clipped over raw norm, from which on the limit sets the size of a step."""
_SLOW: Final = 1e-4
_SUSPICIOUS: Final = 0.3
"""The same as `LARGE` where it is known that steps are too large by a factor."""
_EQUAL: Final = 1e-3
_VARIES: Final = 1e-2
_LEAST_NORMS: Final = 20
_AGREE: Final = 0.2
_ORDINARY: Final = 0.1
_RISEN: Final = 1.02
_RISES, _SAME_WAY = 5, 0.8
"""First losses that all rise, and the cosine of successive gradients that point the same way."""
_NOT_BELOW: Final = 0.8
"""Of the first loss: a run that ends below has learnt something."""
_WORSE: Final = 1.5
"""Of the first loss: where it was above, steps had thrown the model back."""
_USUAL: Final = 1e-3
"""What a step moves a matrix by, of its size."""
_HARDLY: Final = 0.95
"""Of the first loss, at the end of a run that has learnt next to nothing."""
_FAR: Final = 1e4
"""A first loss of numbers that nobody standardised, whatever the loss: a hundred, squared."""
_BEYOND, _THROWN_UP = 5.0, 10.0
"""Times its own size that a step moved the typical matrix, and times the first loss, that no working rate comes to."""
_HUNDREDTH, _MOST, _NO_BETTER, _LAST_LOOKS = 0.01, 0.8, 0.97, 3
"""Of its size, as far as steps can have moved a matrix; share of all weights in such matrices; of the loss of a guess;
and looks that tell the loss."""
_LEAST_SLOWED, _SLOWLY = 40, 0.85
"""Losses, and what is left of the first of them, in a run that learns far more slowly than it could."""


def too_large(loop: Loop) -> Iterator[Issue]:
    """Steps that moved the typical matrix by its own size at their peak, after which the loss did not fall."""
    ratio, losses = loop.largest_update, loop.losses
    known = _summed(loop) or _undivided(loop)
    if ratio <= (_SUSPICIOUS if known else LARGE) or is_solved(losses) or len(losses) < 10:
        return
    # Against the very first loss, before any step: a run that broke was worse since, and falls from there.
    fell = losses[0] > 0 and median(losses[-max(3, len(losses) // 5) :]) < _NOT_BELOW * losses[0]
    # Steps that are too large by a known factor in general, and had made the loss worse, are so even if it fell since.
    by_factor = known and loop.typical_update > _ORDINARY and max(losses) > _WORSE * losses[0]
    # Norm layers forget how large weights are: such a run recovers from a step that nothing else would survive.
    beyond = ratio > _BEYOND and max(losses) > _THROWN_UP * losses[0]
    if fell and not (by_factor or beyond):
        return
    rate = loop.run.learning_rate
    yield with_code(
        Issue(
            issue_type=IssueType.EXPLODING,
            severity=IssueSeverity.MEDIUM if fell else IssueSeverity.HIGH,
            layer="model",
            message=f"at its peak, a step moved the typical weight matrix by {plain(ratio, 2)} times its own size "
            "(0.1% is usual), and the loss "
            + (f"rose to {plain(max(losses) / losses[0], 2)} times the first." if fell else "has not fallen since."),
            evidence={"update_ratio": ratio, "learning_rate": rate},
            cause="the learning rate is too large for this optimizer.",
            advice=[advice.learning_rate_at_most(rate, ratio)],
            step=1,
        ),
        loop,
    )


def still_as_drawn(loop: Loop) -> Iterator[Issue]:
    """All steps together cannot have moved the weights by a hundredth, and the model does no better than a guess."""
    losses, known = loop.losses, uninformed(loop)
    if len(losses) < _LEAST_SLOWED or loop.facts.optimizers > 1 or known is None or is_warming_up(loop):
        return
    change = loss_change(losses)
    if fell_beyond_noise(losses) and change < _HARDLY:
        return
    # By the value of the loss function: what is done to it afterwards, as dividing it once more, makes steps small.
    values = [call.value for look in loop.looks[-_LAST_LOOKS:] for call in look.calls if call.value is not None]
    layers = [layer for layer in loop.run.layers if layer.is_weight and layer.elements and layer.update_ratios]
    if not values or median(values) < _NO_BETTER * known or not layers:
        return
    moved = {layer.name: median(layer.update_ratios) * len(losses) for layer in layers}
    elements = {layer.name: layer.elements[-1] for layer in layers}
    resting = sum(elements[name] for name, far in moved.items() if far < _HUNDREDTH)
    if resting < _MOST * sum(elements.values()):
        return
    ratio = loop.typical_update
    rate = loop.run.learning_rate
    yield _too_small(
        Issue(
            issue_type=IssueType.SLOW,
            severity=IssueSeverity.MEDIUM,
            layer="model",
            message=f"after {len(losses)} steps the loss is no better than that of a model that ignores its input, and "
            f"all steps together have moved {resting / sum(elements.values()):.0%} of the weights by under 1% of their "
            "size: the model is still where it started.",
            evidence={"update_ratio": ratio, "learning_rate": rate, "loss_change": change},
            cause="the learning rate is far too small, or the loss is scaled down, which matters with plain SGD.",
            advice=[advice.learning_rate_up_to(rate, min(moved.values()) / len(losses))],
            step=1,
        ),
        loop,
    )


def clipped_away(loop: Loop) -> Iterator[Issue]:
    """Clipping that leaves next to nothing of every gradient, while the loss does not fall."""
    series, losses = loop.alone, loop.losses
    factor = None if series is None else _clip_factor(series)
    slow = loop.updates and loop.typical_update < _SLOW
    # The length of a gradient sets that of a step, unless an optimizer divides by it.
    sets = loop.updates and loop.typical_update < _USUAL and not _divides(loop)
    if factor is None and slow and series is not None and (limit := _own_limit(series)) is not None:
        yield from _limited(loop, limit)
    idle = len(losses) >= 20 and ((slow and not fell_beyond_noise(losses)) or (sets and loss_change(losses) > _HARDLY))
    # What is left of each gradient moves little, and the limit alone decides that.
    slowed = len(losses) >= _LEAST_SLOWED and sets and loss_change(losses) > _SLOWLY
    if factor is not None and (idle or slowed):
        found = _slow(
            f"clipping makes nearly every gradient over {1 / max(factor, 1e-300):,.0f} times smaller, a step moves the "
            f"typical matrix by {plain(loop.typical_update, 2)} of its size (0.1% is usual), and the loss "
            + ("does not fall." if idle else f"has fallen to {loss_change(losses):.0%} in {len(losses)} steps."),
            advice.CLIPPED_SCALED
            if _clipped_scaled(loop)
            else "a clip limit far below the usual norm: it sets the size of the step.",
            [advice.UNSCALE_FIRST if _clipped_scaled(loop) else advice.RAISE_CLIP],
            factor=factor,
            update_ratio=loop.typical_update,
        )
        yield found if idle else replace(found, severity=IssueSeverity.MEDIUM)


def _limited(loop: Loop, limit: float) -> Iterator[Issue]:
    """Gradients that come with one and the same norm, too small to move anything: a limit by the user's own code."""
    if len(loop.losses) >= 20 and not fell_beyond_noise(loop.losses):
        yield _slow(
            f"the gradients have a norm of {plain(limit, 2)} in nearly every step, to three digits: something sets it. "
            f"A step moves the typical matrix by {plain(loop.typical_update, 2)} of its size (0.1% is usual), and the "
            "loss does not fall.",
            "code that divides gradients by their norm, or clips them at a limit far below it.",
            [advice.RAISE_CLIP],
            norm=limit,
            update_ratio=loop.typical_update,
        )


def _slow(message: str, cause: str, steps: Sequence[str], **more: Any) -> Issue:
    """Steps that are too small by a limit: the same issue as by a rate, with another cause."""
    found = context.issue("clip_sets_step", IssueSeverity.HIGH, message, cause, steps, step=1, **more)
    return replace(found, issue_type=IssueType.SLOW)


def with_code(issue: Issue, loop: Loop) -> Issue:
    """The issue with the code of its cause, where it is one of the size of steps."""
    if issue.code or issue.severity == IssueSeverity.LOW:
        return issue
    if issue.issue_type is IssueType.SLOW and "update_ratio" in issue.evidence:
        return _too_small(issue, loop)
    by_rate = bool(issue.evidence.get("update_ratio")) and issue.issue_type is IssueType.EXPLODING
    broke = issue.issue_type in (IssueType.NUMERICAL, IssueType.EXPLODING, IssueType.UNSTABLE)
    if by_rate or (broke and (loop.largest_update > LARGE or _summed(loop) or _undivided(loop))):
        return _too_large(issue, loop)
    if issue.issue_type is IssueType.NUMERICAL and _loss_is_bad(issue, loop):
        return replace(
            issue,
            code="loss_nonfinite",
            cause=f"the loss of that step is not finite either: {issue.cause}",
        )
    return issue


def _too_large(issue: Issue, loop: Loop) -> Issue:
    if _undivided(loop):
        count = round(median(look.backwards for look in loop.looks))
        return replace(
            issue,
            code="undivided_accumulation",
            cause=f"the losses of {count} micro-batches are summed, not averaged: steps are {count} times as large.",
            advice=[f"Divide the loss of each micro-batch by {count} before `backward()`.", *issue.advice],
        )
    if _summed(loop):
        return replace(
            issue,
            code="summed_loss",
            cause="the loss is a sum over the batch, not a mean: steps grow with its size.",
            advice=[
                "Use the mean (`reduction='mean'`), or divide the learning rate by the number of its terms.",
                *issue.advice,
            ],
        )
    if _goes_uphill(loop):
        return replace(
            issue,
            code="loss_grows",
            cause="steps of ordinary size raised the loss from the start, and gradients of successive steps agree: the "
            "updates go uphill.",
            advice=[
                "Flip the sign: of the loss, of a reversed gradient, of the optimizer's own update, or of "
                "`maximize=True`.",
            ],
        )
    if issue.issue_type is IssueType.NUMERICAL and loop.largest_update > LARGE:
        return _broken_by_steps(issue, loop)
    return replace(issue, code="rate_too_high")


def _broken_by_steps(issue: Issue, loop: Loop) -> Issue:
    """What is not finite after steps that moved weights by more than their own size: those did it, not a batch.

    Prices in full, under SGD with a rate of 0.01: a first loss of 2.4e11, and a step of two million times the weights.
    """
    ratio, first = loop.largest_update, loop.losses[0] if loop.losses else 0.0
    steps = list(issue.advice)
    kinds = {step.treatment.kind for step in steps if isinstance(step, Advice) and step.treatment is not None}
    if "learning_rate" not in kinds:
        steps.insert(0, advice.learning_rate_at_most(loop.run.learning_rate, ratio))
    if first > _FAR:
        words = f"Standardise inputs and targets: a first loss of {plain(first, 2)} is that of numbers far from 1."
        steps.insert(0, advice.by_itself(words, "standardise"))
    return replace(
        issue,
        code="rate_too_high",
        cause=f"steps are far too large: one moved the typical weight matrix by {plain(ratio, 2)} times its own size "
        "(0.1% is usual).",
        advice=steps,
    )


def _goes_uphill(loop: Loop) -> bool:
    """Whether steps make the loss larger before they are large. Of steps that are too long successive gradients differ,
    or point against each other.
    """
    network, losses = loop.network, loop.losses
    cosines = [] if network is None else network.cosines[:ENOUGH]
    if _climbs_at_once(cosines, losses, loop.updates):
        return True
    first = loop.seen_updates[:ENOUGH]
    if len(cosines) < ENOUGH or min(cosines) < _AGREE or max(first, default=math.inf) > _ORDINARY or losses[0] <= 0:
        return False
    early = losses[: max(8, len(losses) // 4)]
    third = len(early) // 3
    return median(early[-third:]) > _RISEN * median(early[:third])


def _climbs_at_once(cosines: Sequence[float], losses: Sequence[float], updates: Sequence[float]) -> bool:
    """Whether a run that broke within a few looks rose with every step from the first, a small one, while gradients
    kept their direction: downhill a loss rises only behind the valley, where they turn around."""
    finite = [cosine for cosine in cosines if math.isfinite(cosine)]
    few = losses[:_RISES]
    rises = len(few) == _RISES and few[0] > 0 and all(b > _RISEN * a for a, b in pairwise(few))
    return rises and len(finite) >= 2 and min(finite) >= _SAME_WAY and bool(updates) and updates[0] <= _ORDINARY


def _too_small(issue: Issue, loop: Loop) -> Issue:
    series = loop.alone
    factor = None if series is None else _clip_factor(series)
    if factor is not None and _clipped_scaled(loop):
        # No other limit and no other rate would be right: both are meant for gradients without the scale.
        return replace(issue, code="clip_sets_step", cause=advice.CLIPPED_SCALED, advice=[advice.UNSCALE_FIRST])
    if factor is not None:
        return replace(
            issue,
            code="clip_sets_step",
            cause=f"clipping makes every gradient {1 / factor:,.0f} times smaller: the limit sets the size of the step."
            if factor > 0
            else "clipping makes every gradient zero.",
            advice=[advice.RAISE_CLIP, *issue.advice],
        )
    return replace(issue, code="rate_too_low")


def _divides(loop: Loop) -> bool:
    """Whether an optimizer divides gradients by their own size, as Adam does, or nothing is known of it."""
    return not loop.states.looks or any(look.kind != "momentum" for look in loop.states.looks)


def _clipped_scaled(loop: Loop) -> bool:
    return any(event.kind == CLIP_BEFORE_UNSCALE for event in loop.run.events)


def _clip_factor(series: Series) -> float | None:
    """By how much clipping shortens the gradient, where it does so by far in nearly every step."""
    both = zip(series.norms, series.clipped_norms, strict=False)
    factors = [after / before for before, after in both if before > 0 and math.isfinite(after)]
    tight = [factor for factor in factors if factor < _TIGHT]
    often = len(factors) >= _OFTEN * len(series.norms) and len(tight) >= _OFTEN * len(factors)
    return median(tight) if tight and often else None


def _own_limit(series: Series) -> float | None:
    """The norm that nearly all steps share to three digits; left to itself it differs from step to step."""
    norms = [norm for norm in series.norms if math.isfinite(norm) and norm > 0]
    later = [loss for loss in series.losses[len(series.losses) // 2 :] if math.isfinite(loss)]
    if len(norms) < _LEAST_NORMS or not later:
        return None
    # Where nothing changes any more the norm does not either: batches have to differ, and their norms not to.
    if max(later) - min(later) < _VARIES * abs(median(later)):
        return None
    usual = median(norms)
    return usual if sum(abs(norm / usual - 1) < _EQUAL for norm in norms) >= _OFTEN * len(norms) else None


def _summed(loop: Loop) -> bool:
    looks = loop.facts.looks
    return bool(looks) and all(look.summed or _is_sum(look) for look in looks)


def _is_sum(look: LoopLook) -> bool:
    """Whether a loss function sums and its result is never divided."""
    sums = [call.value for call in look.calls if call.reduction == "sum" and call.value is not None]
    return any(look.loss is None or not abs(look.loss) < 0.5 * abs(value) for value in sums)


def _undivided(loop: Loop) -> bool:
    """Several passes per step, each from the loss as the loss function returned it."""
    looks = loop.facts.looks
    if not looks or any(look.backwards < 2 or look.loss is None for look in looks):
        return False
    values = [(look.loss, look.calls[0].value) for look in looks if look.calls and math.isfinite(look.loss or 0.0)]
    # Where it became NaN nothing can be compared any more.
    known = sum(math.isfinite(look.loss or 0.0) for look in looks)
    return len(values) == known > 0 and all(a == b for a, b in values)


def _loss_is_bad(issue: Issue, loop: Loop) -> bool:
    """Whether the loss was not finite when gradients were not: losses are recorded, and that of this step is not."""
    if loop.alone is not None and loop.alone.loss_lost:
        return True
    for series in loop.run.totals:
        if issue.step in series.steps and series.losses:
            return not math.isfinite(series.losses[series.steps.index(issue.step)])
    return False
