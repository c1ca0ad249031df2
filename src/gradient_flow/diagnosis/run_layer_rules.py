"""Rules over time on single layers: how far steps move them, which fall silent, and what is lost over depth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from gradient_flow.diagnosis import advice
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.updates import SUSPICIOUS, TOO_LARGE, TOO_SMALL
from gradient_flow.diagnosis.robust import (
    LEARNS,
    fell_beyond_noise,
    fell_to,
    is_converged,
    is_solved,
    lie_around_zero,
    loss_change,
)
from gradient_flow.diagnosis.words import compared, plain, portion
from gradient_flow.record.evidence import LayerSeries, RunRecord

LOST: Final = -4.0
"""Decades from the last weights to the first, in gradients of weights, which see less than those of activations."""
LEAST_LOSSES: Final = 5
_LOW_LOSS: Final = 1e-2
_EARLY: Final = 10
"""Looks from which on the first half of them is judged by itself."""
_NAMED: Final = 4
"""Other silent tensors that are named."""
_LITTLE_MORE: Final = 3.0
"""Times the smallest update: under Adam at 1e-6, matrices moved by 3e-6 to 1.2e-5 of their size."""
_QUIET: Final = 3
"""Tables in a row without a gradient."""


def update_ratios(record: RunRecord) -> Iterator[Issue]:
    """How far steps move the weights, relative to their size."""
    for optimizer, layers in record.layers_by_optimizer().items():
        yield from _update_ratios(layers, record.losses_of(optimizer), record.learning_rate_of(optimizer))


def _update_ratios(layers: Sequence[LayerSeries], losses: Sequence[float], rate: float | None) -> Iterator[Issue]:
    seen = {
        layer.name: [ratio for ratio in layer.update_ratios if not math.isnan(ratio)]
        for layer in layers
        if layer.is_weight
    }
    seen = {name: ratios for name, ratios in seen.items() if ratios}
    if not seen:
        return
    change = loss_change(losses, LEAST_LOSSES)
    solved = is_solved(losses)
    where = max(seen, key=lambda name: median(seen[name]))
    ratio = median(seen[where])
    if change > 0.9 and ratio <= TOO_LARGE:
        # Weights that were blown up are moved little by the same steps: that is no recovery while the loss stays high.
        early = {name: median(ratios[: len(ratios) // 2]) for name, ratios in seen.items() if len(ratios) >= _EARLY}
        worst = max(early, key=lambda name: early[name], default=where)
        if early.get(worst, 0.0) > TOO_LARGE:
            where, ratio = worst, early[worst]
    stays = change > 0.9 and not lie_around_zero(losses)
    if (ratio > TOO_LARGE or (ratio > SUSPICIOUS and stays)) and not solved:
        yield Issue(
            issue_type=IssueType.EXPLODING,
            severity=IssueSeverity.HIGH if ratio > TOO_LARGE else IssueSeverity.MEDIUM,
            layer=where,
            message=f"a typical step moves its weights by {portion(ratio)} their size (0.1% is usual).",
            evidence={"update_ratio": ratio, "learning_rate": rate, "loss_change": change},
            cause="the learning rate is too large for this optimizer.",
            advice=[advice.learning_rate_at_most(rate, ratio)],
        )
    elif (
        _is_too_small(seen.values(), ratio)
        and not _falls(losses, change)
        and not solved
        and not _has_converged(layers, losses)
    ):
        known = not math.isnan(change)
        course = "falls no more than chance explains" if change < 0.9 else "does not fall"
        yield Issue(
            issue_type=IssueType.SLOW,
            severity=IssueSeverity.MEDIUM if known and not _is_low(losses) else IssueSeverity.LOW,
            layer=where,
            message=(
                f"a typical step moves no weight matrix by more than {plain(ratio, 2)} of its size (0.001 is usual)"
                if ratio
                else "a typical step moves no weight matrix at all"
            )
            + (f", and the loss {course}." if known else "."),
            evidence={"update_ratio": ratio, "learning_rate": rate, "loss_change": change},
            cause="the learning rate is far too small, or the run has converged.",
            advice=[advice.learning_rate_up_to(rate, ratio)],
        )


def _is_too_small(ratios: Iterable[Sequence[float]], largest: float) -> bool:
    """Whether no matrix moves, or the typical one does not and none moves much more: matrices differ in their size."""
    return largest < TOO_SMALL or (largest < _LITTLE_MORE * TOO_SMALL and median(map(median, ratios)) < TOO_SMALL)


def _falls(losses: Sequence[float], change: float) -> bool:
    """Whether the loss fell by a tenth, and not by the luck of the last batches."""
    return change < 0.9 and fell_beyond_noise(losses)


def _has_converged(layers: Sequence[LayerSeries], losses: Sequence[float]) -> bool:
    """Whether the loss is at its floor. A run does not know the size of its weights: that of usual ones stands in."""
    weights = [layer for layer in layers if layer.is_weight and layer.elements and layer.norms]
    if not weights or not losses:
        return False
    gradient = math.hypot(*(median(layer.norms[-_QUIET:]) for layer in weights))
    # Usual initial weights have a norm near the root of their number of rows; a square matrix has n ** 0.25 ** 2.
    return is_converged(losses, gradient, math.hypot(*(layer.elements[-1] ** 0.25 for layer in weights)))


def _is_low(losses: Sequence[float]) -> bool:
    """Whether the loss is so low that it may well be done; with a factor on the loss it need not be."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    return bool(finite) and 0 <= median(finite[-LEAST_LOSSES:]) < _LOW_LOSS


def quiet_layers(record: RunRecord) -> Iterator[Issue]:
    """Layers whose gradient is exactly zero in the last tables, and was not in an earlier one, or never came."""
    found = []
    for layer in record.layers:
        zero = [norm == 0 for norm in layer.norms]
        if len(zero) >= _QUIET and all(zero[-_QUIET:]) and not _is_bias_of_one_at_work(record, layer):
            since = len(zero) - next((k for k, each in enumerate(reversed(zero)) if not each), len(zero))
            found.append((layer, since))
    idle = [layer for layer, since in found if since == 0 and _is_of_state(layer)]
    if idle:
        found = [(layer, since) for layer, since in found if layer not in idle]
        yield _without_state(idle[0])
    if found and len(found) < len(record.layers):
        layer, since = found[0]
        # Vectors that no batch has used so far, such as one that stands for a word that is hidden, lack nothing.
        unused = all(not each.is_weight and first == 0 for each, first in found) and _learns(record, layer)
        yield Issue(
            issue_type=IssueType.DEAD,
            severity=IssueSeverity.LOW if unused else IssueSeverity.HIGH,
            layer=layer.name,
            step=layer.steps[since],
            message=f"its gradient is exactly zero in the last {len(layer.norms) - since:,} tables{_others(found)}.",
            evidence={"layers": [each.name for each, _ in found], "tables": len(layer.norms)},
            cause="its units died (after a large update, if it had a gradient before), or no batch uses it.",
            advice=[
                "Lower the learning rate and restart from a checkpoint before that step."
                if since
                else "Check that it is used."
            ],
        )


def _is_of_state(layer: LayerSeries) -> bool:
    """Whether it multiplies the state of a recurrent layer or cell of torch."""
    return layer.name.rpartition(".")[2].startswith("weight_hh")


def _without_state(layer: LayerSeries) -> Issue:
    """What multiplies a state of zero has no gradient: no call is given the state of the one before."""
    return Issue(
        issue_type=IssueType.SHORT_MEMORY,
        severity=IssueSeverity.HIGH,
        layer=_owner(layer) or layer.name,
        step=layer.steps[0],
        message=f"no memory at all: the gradient of `{layer.name}`, which multiplies the state, is exactly zero in all "
        f"{len(layer.norms):,} tables.",
        evidence={"layers": [layer.name], "tables": len(layer.norms)},
        cause="the state is zero at every call: it is not passed on, or starts anew at each step.",
        advice=["Pass the state that a call returns to the next call."],
    )


def _learns(record: RunRecord, layer: LayerSeries) -> bool:
    return fell_to(record.losses_of(layer.optimizer), LEARNS, LEAST_LOSSES)


def _others(found: Sequence[tuple[LayerSeries, int]]) -> str:
    """The other silent tensors, some of them by name."""
    names = [f"`{layer.name}`" for layer, _ in found[1:]]
    if not names:
        return ""
    if len(names) == 1:
        return f", and so is that of {names[0]}"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f", and so is that of {len(names)} other tensors ({', '.join(names[:_NAMED])}{more})"


def _is_bias_of_one_at_work(record: RunRecord, layer: LayerSeries) -> bool:
    """Whether it is a bias beside a weight that gets a gradient: its own may cancel to zero, as at a minimum."""
    beside = (each for each in record.layers if each.is_weight and _owner(each) == _owner(layer))
    return not layer.is_weight and any(norm for each in beside for norm in each.norms[-_QUIET:])


def _owner(layer: LayerSeries) -> str:
    """The module that it belongs to; `torch.nn.utils.parametrize` keeps a weight further down in it."""
    return layer.name.rpartition(".")[0].partition(".parametrizations.")[0]


def lost_over_depth(record: RunRecord) -> Iterator[Issue]:
    """Gradients of the first weights are a ten-thousandth of those of the last, and the task is not solved."""
    for optimizer, layers in record.layers_by_optimizer().items():
        if not is_solved(record.losses_of(optimizer)):
            yield from _lost_over_depth(layers)


def _lost_over_depth(layers: Sequence[LayerSeries]) -> Iterator[Issue]:
    weights = [layer for layer in layers if layer.is_weight and layer.elements and layer.norms]
    sizes = [_per_element(layer) for layer in weights]
    known = [(layer, size) for layer, size in zip(weights, sizes, strict=True) if size > 0]
    if len(known) < 4:
        return
    logs = [math.log10(size) for _, size in known]
    drops = [later - earlier for earlier, later in pairwise(logs)]
    fall = logs[0] - max(logs[-2:])
    if fall <= LOST and sum(drop > 0 for drop in drops) >= 0.6 * len(drops):
        names = [layer.name for layer, _ in known[:-1]]
        yield Issue(
            issue_type=IssueType.VANISHING,
            severity=IssueSeverity.HIGH,
            layer=known[0][0].name,
            step=known[0][0].steps[0],
            message=f"gradients in the first layer are {compared(10**fall)} than in the last, "
            f"{len(known) - 1} layers on.",
            evidence={"decades": fall, "profile": {layer.name: size for layer, size in known}},
            cause="sigmoid or tanh activations, or small initial weights, in a deep stack.",
            advice=[
                advice.rescale_weights(names, 10 ** (fall / len(drops))),
                "Where activations are sigmoid or tanh, use ReLU or GELU with He initialisation.",
                "Add normalisation or skip connections: both keep gradients at the same size.",
            ],
        )


def _per_element(layer: LayerSeries) -> float:
    # A step without a finite element has no count to divide by.
    pairs = zip(layer.norms, layer.elements, strict=True)
    finite = [norm / math.sqrt(count) for norm, count in pairs if count and 0 < norm < math.inf]
    return median(finite) if finite else 0.0
