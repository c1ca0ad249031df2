"""The learning rate: EXPLODING where a step moves weights by their own size, SLOW where it moves nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from gradient_flow.diagnosis import advice
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.record import AnalysisRecord, Layer
from gradient_flow.diagnosis.robust import is_converged, is_solved, lie_around_zero, loss_change
from gradient_flow.diagnosis.words import plain, portion, times

TOO_LARGE: Final = 1.0
"""Update-to-weight ratio; healthy runs stay below 0.05, every diverging one is above 3."""
SUSPICIOUS: Final = 0.2
"""From here on it counts if the loss does not fall."""
TOO_SMALL: Final = 1e-5
_USUAL: Final = 0.05
_APART: Final = 20.0
"""Times the median ratio of all layers; then it is about this layer alone."""
_COHERENT: Final = 0.2
_THROWN, _LEAST_LOSSES = 100.0, 10
"""Times the very first loss, and losses to know it."""
_GUESS: Final = 0.7
"""Loss per gradient at the logits over ln(classes): 1 for a guess, about half of that or less for who is right."""


def learning_rate_too_large(record: AnalysisRecord) -> Iterator[Issue]:
    """A step moves a weight by as much as the weight itself; or by a fifth of it while the loss does not fall."""
    ratios = {layer.name: _largest(layer) for layer in _judged(record)}
    if not ratios:
        return
    change = change_of_loss(record)
    thrown = _is_thrown_up(record.losses)
    diverged = change > 10 or not math.isfinite(change) or thrown
    if not diverged:
        ratios = _without_tiny_weights(record, ratios)
    where = max(ratios, key=lambda name: ratios[name])
    ratio = ratios[where]
    lasting = max(median(_finite(layer) or [math.inf]) for layer in _judged(record) if layer.name in ratios)
    stays = change > 0.9 and not lie_around_zero(record.losses)
    if not (ratio > TOO_LARGE or (lasting > SUSPICIOUS and stays) or (ratio > SUSPICIOUS and thrown)):
        return
    if is_solved(record.losses):
        return
    rate = record.learning_rate
    severity = IssueSeverity.CRITICAL if diverged else IssueSeverity.HIGH if ratio > TOO_LARGE else IssueSeverity.MEDIUM
    yield Issue(
        issue_type=IssueType.EXPLODING,
        severity=severity,
        layer=where,
        message=f"one step moves its weights by {portion(ratio)} their size (0.1% is usual){_course(record, change)}.",
        evidence={"update_ratio": ratio, "update_ratios": ratios, "learning_rate": rate, "loss_change": change},
        cause=f"the learning rate{f' ({plain(rate)})' if rate is not None else ''} is too large for this optimizer.",
        advice=[
            advice.learning_rate_at_most(rate, ratio),
            advice.by_itself("Warm up the learning rate over the first few hundred steps.", "warm_up"),
        ],
        step=_first_step(record, where),
    )


def _is_thrown_up(losses: Sequence[float]) -> bool:
    """Whether the loss stays far above its very first value: thrown up within a few steps, it may fall from its peak,
    and weights that were blown up are moved little by the same steps.

    Clipped steps of 42 % of the weights ended at 18,000 times the first loss, and 0.6 times that of the first fifth.
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    end = median(finite[-max(1, len(finite) // 5) :]) if finite else 0.0
    return len(finite) >= _LEAST_LOSSES and 0 < _THROWN * finite[0] < end and not lie_around_zero(finite)


def _course(record: AnalysisRecord, change: float) -> str:
    """What became of the loss, as a clause; nothing where it fell all the same."""
    if not record.losses:
        return ""
    if not math.isfinite(change):
        return ", and the loss is no longer finite"
    if _is_thrown_up(record.losses):
        end = median(record.losses[-max(1, len(record.losses) // 5) :])
        return f", and the loss is {times(end / record.losses[0])} the first"
    if change > 1.1:
        return f", and the loss is {times(change)} what it was"
    # A rate that is far too high throws the loss up at once: against that peak it falls, against its start it does not.
    end = median(record.losses[-max(1, len(record.losses) // 5) :])
    return ", and the loss has not fallen" if change > 0.9 or end > 0.9 * record.losses[0] > 0 else ""


def _first_step(record: AnalysisRecord, layer: str) -> int:
    """The first look at which a layer moved this far."""
    ratios = next((each.update_ratio for each in record.layers if each.name == layer), [])
    at = next((k for k, ratio in enumerate(ratios) if not ratio <= SUSPICIOUS), 0)
    return record.watched[at] + 1 if at < len(record.watched) else 1


def _without_tiny_weights(record: AnalysisRecord, ratios: dict[str, float]) -> dict[str, float]:
    """Without layers that move far more than all others, and less and less: their weights began small and grow."""
    usual = median(ratios.values())
    apart = {name for name, ratio in ratios.items() if usual < _USUAL and ratio > _APART * usual}
    growing = {layer.name for layer in _judged(record) if layer.update_ratio[-1] < 0.5 * layer.update_ratio[0]}
    return {name: ratio for name, ratio in ratios.items() if name not in apart & growing} or ratios


def learning_rate_too_small(record: AnalysisRecord) -> Iterator[Issue]:
    """No weight moves by more than a hundred-thousandth of its size, while gradients agree that there is a way down."""
    ratios = {layer.name: median(_finite(layer)) for layer in _judged(record) if _finite(layer)}
    if not ratios or max(ratios.values()) >= TOO_SMALL or not all(map(math.isfinite, record.losses)):
        return
    agree = [value for value in record.cosines if math.isfinite(value)]
    # Once converged, gradients are noise and point anywhere: then small updates are no fault of the rate.
    if len(agree) < 2 or median(agree) < _COHERENT or has_converged(record):
        return
    where = max(ratios, key=lambda name: ratios[name])
    ratio = ratios[where]
    yield Issue(
        issue_type=IssueType.SLOW,
        severity=IssueSeverity.HIGH if ratio < 0.1 * TOO_SMALL else IssueSeverity.MEDIUM,
        layer=where,
        message=f"{_how_far(ratio)}, although successive gradients agree (cosine {median(agree):.2f}).",
        evidence={"update_ratio": ratio, "learning_rate": record.learning_rate, "cosine": median(agree)},
        cause="the learning rate is far too small, or the loss is scaled down, which matters with plain SGD.",
        advice=[advice.learning_rate_up_to(record.learning_rate, ratio)],
        step=1,
    )


def _how_far(ratio: float) -> str:
    if not ratio:
        return "no step moves any weight matrix at all"
    return f"no step moves any weight matrix by more than {plain(ratio, 2)} of its size (0.001 is usual)"


def largest_update(record: AnalysisRecord) -> float | None:
    """The largest update ratio of any layer and step; None without an optimizer."""
    return max((_largest(layer) for layer in _judged(record)), default=None)


def has_converged(record: AnalysisRecord) -> bool:
    """Whether the loss is at its floor: a classifier that has learnt, or a slope of next to nothing, or no loss."""
    if (record.losses and all(loss == 0 for loss in record.losses)) or (record.learnt and not _guesses(record)):
        return True
    gradients = [norm for layer in record.layers if (norm := _typical(layer)) > 0]
    weights = [layer.weight_norm for layer in record.layers if layer.trainable and math.isfinite(layer.weight_norm)]
    return is_converged(record.losses, math.hypot(*gradients), math.hypot(*weights))


def change_of_loss(record: AnalysisRecord) -> float:
    """The loss at the end over that at the start; NaN where it stopped being finite, 1 where there is none."""
    if not all(map(math.isfinite, record.losses)):
        return math.nan
    return loss_change(record.losses) if record.losses else 1.0


def _judged(record: AnalysisRecord) -> list[Layer]:
    """Layers whose relative change means something: not those that start at (or next to) zero, nor embeddings."""
    layers = [layer for layer in record.layers if layer.update_ratio and not layer.zero_weights]
    return [layer for layer in layers if layer.matrix is not None] if record.trained else []


def _guesses(record: AnalysisRecord) -> bool:
    """Whether a low loss is that of a guess, scaled down: against its gradient at the logits it is as large as ever."""
    output = record.places[record.chains[0][-1]] if record.chains and record.chains[0] else None
    gradient = output.typical_gradient if output is not None else None
    if output is None or not gradient or not record.classes:
        return False
    per_sample = math.sqrt(max(output.samples * output.positions, 1)) * gradient
    return median(record.losses) / per_sample > _GUESS * math.log(max(2, record.classes))


def _typical(layer: Layer) -> float:
    norms = [norm for norm in layer.gradient if norm is not None and math.isfinite(norm)]
    return median(norms) if norms else 0.0


def _finite(layer: Layer) -> list[float]:
    return [ratio for ratio in layer.update_ratio if math.isfinite(ratio)]


def _largest(layer: Layer) -> float:
    finite = _finite(layer)
    # One step of this kind is enough: it may kill all units, and nothing moves any more.
    return math.inf if len(finite) < len(layer.update_ratio) else max(finite)
