"""VANISHING and EXPLODING over depth: from gains along the main path, never from a level."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Final

from gradient_flow.diagnosis import advice
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.profile import DepthProfile, Part, depth_profiles
from gradient_flow.diagnosis.network.record import AnalysisRecord, Layer, Place
from gradient_flow.diagnosis.words import compared, count, plain, times

VANISHED: Final = -2.5
"""Decades; healthy set-ups lie above -1.9, sick ones below -3.1."""
EXPLODED: Final = 2.0
"""Decades; healthy set-ups lie below 0.8, sick ones above 3.5 (or show in the values)."""
STARVED: Final = 1e-9
"""Gradient over the largest of all layers. A branch that starts with a factor of 1e-6 is healthy and far above it."""
FORWARD: Final = 3.0
"""Decades by which values may grow between normalisations."""
WRONG_LOSS: Final = 6.0
"""Loss of a classifier per unit of its gradient, in units of ln(classes). A guess has about 1, one that is right less,
and one whose logits are so large that it is sure and wrong far more. A factor on the loss cancels."""
_SEVERITY_STEP: Final = 1.0
_STANDS_OUT: Final = 100.0
"""Times that a branch adds more to the loss than any other, to be the one that enlarges their sum."""


def vanishing_over_depth(record: AnalysisRecord) -> Iterator[Issue]:
    """The gradient at the first layer is less than 1/300 of that at the last hidden one."""
    for profile in depth_profiles(record):
        if profile.parts and profile.gain <= VANISHED:
            yield _issue(record, profile, IssueType.VANISHING, VANISHED)
            return
        behind = math.fsum(part.gain for part in profile.tail)
        if behind <= VANISHED:
            yield _scaled_down(profile, behind)
            return


def exploding_over_depth(record: AnalysisRecord) -> Iterator[Issue]:
    """The gradient grows more than a hundredfold on its way back, or the values a thousandfold on their way forward."""
    for profile in depth_profiles(record):
        if profile.parts and profile.gain >= EXPLODED:
            yield _issue(record, profile, IssueType.EXPLODING, EXPLODED)
            return
        forward = _forward_issue(record, profile)
        if forward is not None:
            yield forward
            return


def starved_layers(record: AnalysisRecord) -> Iterator[Issue]:
    """Layers in branches and behind gates whose gradient is next to nothing beside that of the others."""
    if next(vanishing_over_depth(record), None) is not None:
        return
    sizes = {layer.name: size for layer in record.layers if (size := _typical(layer)) > 0}
    level = max(sizes.values(), default=0.0)
    starved = [name for name, size in sizes.items() if size < STARVED * level]
    if not starved or len(starved) == len(sizes):
        return
    yield Issue(
        issue_type=IssueType.VANISHING,
        severity=IssueSeverity.HIGH,
        layer=starved[0],
        message=f"its gradient is {compared(sizes[starved[0]] / level)} than the largest in the network"
        + (f"; the same holds for {count(len(starved) - 1, 'other layer')}." if len(starved) > 1 else "."),
        evidence={"layers": starved, "gradient": sizes[starved[0]], "largest_gradient": level},
        cause="a closed gate, a saturated activation, or a tiny scale factor on this branch.",
        advice=[
            "Start gates half open, with a bias near 0 before the sigmoid.",
            "Give the branch a learnt scale that starts at 1e-6 or above.",
        ],
        step=1,
    )


def _typical(layer: Layer) -> float:
    # A bias alone may rightly get nothing: that of keys cancels in the softmax, and one before a norm in its mean.
    if not layer.trainable or layer.matrix is None or layer.matrix_frozen or layer.zero_weights or layer.is_embedding:
        return 0.0
    seen = [norm for norm in layer.gradient if norm is not None and math.isfinite(norm)]
    return median(seen) if seen else 0.0


def _issue(record: AnalysisRecord, profile: DepthProfile, kind: IssueType, limit: float) -> Issue:
    sign = -1 if kind is IssueType.VANISHING else 1
    culprit = profile.culprit(sign)
    gain = profile.gain
    layers = profile.layers()
    per_layer = 10 ** (gain / max(len(layers), 1))
    if culprit is not None:
        place = culprit.layer
        usual = 10 ** median([part.gain for part in profile.parts if part is not culprit] or [0.0])
        here = 10**culprit.gain
        message = f"the gradient gets {compared(here)} on its way back through this layer alone."
        cause = f"the weights of `{place}` are on a different scale from the others."
        ways = [advice.rescale_one(place, here, usual)]
    else:
        place = profile.first
        message = (
            f"the gradient at the first layer is {compared(10**gain)} than at the last hidden one, "
            f"{count(len(layers), 'layer')} on ({times(max(per_layer, 1 / per_layer), 2)} per layer)."
        )
        cause = _cause(record, sign)
        ways = [advice.rescale_weights(layers, per_layer)]
    ways += _ways(record, sign)
    return Issue(
        issue_type=kind,
        severity=_severity(gain / limit * abs(limit), abs(limit)),
        layer=place,
        message=message,
        evidence={
            "gain_over_depth": 10**gain,
            "decades": gain,
            "gain_per_layer": per_layer,
            "layers": layers,
            "profile": {part.layer: part.gain for part in profile.parts},
            "begins_at": place if culprit is not None else "every layer alike",
        },
        cause=cause,
        advice=ways,
        step=1 if _from_the_start(record, sign, limit) else None,
    )


def _from_the_start(record: AnalysisRecord, sign: int, limit: float) -> bool:
    return any(sign * (profile.gain - limit) >= 0 for profile in depth_profiles(record, at_first=True))


def _scaled_down(profile: DepthProfile, decades: float) -> Issue:
    head = profile.head.later.layer
    return Issue(
        issue_type=IssueType.VANISHING,
        severity=_severity(decades, abs(VANISHED)),
        layer=head,
        message=f"between the loss and the last layer the gradient gets {compared(10**decades)}.",
        evidence={"decades": decades},
        cause="the output is divided by a large number (a temperature) or squashed before it reaches the loss.",
        advice=[f"Multiply the output by {plain(10**-decades, 2)}, or remove the division."],
        step=1,
    )


def _forward_issue(record: AnalysisRecord, profile: DepthProfile) -> Issue | None:
    growth, start, end = profile.largest_growth
    whole = profile.whole
    last = (*whole, *profile.tail)[-1].later
    wrong = _sure_and_wrong(record, last)
    scale = math.log10(record.input_rms) if record.input_rms > 1 else 0.0
    if wrong > WRONG_LOSS and scale > max(growth, 0.5) and whole[0].earlier.from_batch:
        return _inputs_too_large(record, whole[0].earlier.layer, wrong)
    if growth < FORWARD and not (wrong > WRONG_LOSS and growth >= 1.0):
        return None
    strongest = max(whole[start : end + 1], key=lambda part: part.growth)
    alone = strongest.growth > 0.5 * growth
    branch = _branch_before(record, strongest) if alone else None
    place = branch or (strongest.layer if alone else whole[start].earlier.layer)
    layers = [branch] if branch else list(dict.fromkeys(part.layer for part in whole[start : end + 1]))
    per_layer = 10 ** (growth / max(len(layers), 1))
    sure = f"; logits of {plain(last.typical_rms)} make the model sure of wrong answers" if wrong > WRONG_LOSS else ""
    return Issue(
        issue_type=IssueType.EXPLODING,
        severity=_severity(max(growth - FORWARD, 0.0) + EXPLODED, EXPLODED),
        layer=place,
        message=f"values get {compared(10**growth)} on their way through {count(len(layers), 'layer')}{sure}.",
        evidence={
            "growth_of_values": 10**growth,
            "growth_per_layer": per_layer,
            "output_rms": last.typical_rms,
            "loss_per_gradient": wrong,
            "layers": layers,
        },
        cause="the initial weights are too large for the activation, or a deep stack has no normalisation.",
        advice=[advice.rescale_weights(layers, per_layer), *_ways(record, 1)],
        step=None if record.trained else 1,
    )


def _branch_before(record: AnalysisRecord, part: Part) -> str | None:
    """The branch that enlarges what the later layer is given, where values grow before that layer and not in it."""
    earlier, later = part.earlier, part.later
    between = [place for place in record.places if earlier.order < place.order < later.order]
    taken = next((place for place in between if place.name == later.name and place.role == "input"), None)
    if taken is None or not taken.typical_rms > earlier.typical_rms * 10 ** (0.5 * part.growth):
        return None
    # Value times gradient is what a branch adds to the loss: the one that was enlarged stands out by it.
    weight = {p.name: p.typical_rms * (p.typical_gradient or 0.0) for p in between if p.own_weights and not p.call}
    branch = max(weight, key=lambda name: weight[name], default=None)
    others = [value for name, value in weight.items() if name != branch]
    return branch if branch is not None and weight[branch] > _STANDS_OUT * max(others, default=0.0) else None


def _inputs_too_large(record: AnalysisRecord, layer: str, wrong: float) -> Issue:
    odd = record.input_spread > 100
    column = f" One feature is {compared(record.input_spread)} than the median one." if odd else ""
    return Issue(
        issue_type=IssueType.EXPLODING,
        severity=IssueSeverity.HIGH,
        layer=layer,
        message=f"inputs of size {plain(record.input_rms)} (root mean square) make the logits so large that the "
        "model is "
        f"sure of wrong answers: its loss is {times(wrong)} that of a guess.{column}",
        evidence={
            "input_rms": record.input_rms,
            "input_spread": record.input_spread,
            "loss_per_gradient": wrong,
        },
        cause="the features are not standardised.",
        advice=[
            advice.by_itself(
                "Standardise each feature to mean 0 and standard deviation 1"
                + (
                    ": one of them is on a different scale from the rest."
                    if odd
                    else f", or divide all of them by {plain(record.input_rms, 2)}."
                ),
                "standardise",
            ),
            "Or put a BatchNorm or LayerNorm before the first layer.",
        ],
        step=1,
    )


def _sure_and_wrong(record: AnalysisRecord, output: Place) -> float:
    """Loss over gradient at the logits, per sample and in units of ln(classes); 0 where the loss has no softmax."""
    losses = [loss for loss in record.losses[:3] if math.isfinite(loss)]
    norm = output.gradient[0] if output.gradient else None
    if record.classes is None or record.classes < 2 or not losses or norm is None or not 0 < norm < math.inf:
        return 0.0
    rows = max(output.samples * output.positions, 1)
    return losses[0] / (math.sqrt(rows) * norm) / math.log(record.classes)


def _severity(excess: float, limit: float) -> IssueSeverity:
    beyond = abs(excess) - limit
    if beyond >= 1.5 * _SEVERITY_STEP:
        return IssueSeverity.CRITICAL
    return IssueSeverity.HIGH if beyond >= 0.5 * _SEVERITY_STEP else IssueSeverity.MEDIUM


def _cause(record: AnalysisRecord, sign: int) -> str:
    kinds = {place.kind for place in record.places}
    if sign < 0 and _squashing(record) & {"Sigmoid", "Tanh"}:
        return "sigmoid or tanh in a deep stack: each layer passes on only part of the gradient."
    if sign < 0:
        return "the initial weights are too small for the activation and the depth."
    if any("BatchNorm" in kind for kind in kinds):
        return "batch normalisation in a deep stack without skip connections: each layer enlarges the gradient."
    return "the initial weights are too large for the activation and the depth."


def _squashing(record: AnalysisRecord) -> set[str]:
    """Kinds of activation between layers that squash; the one behind the last layer is the loss's matter."""
    last = max((place.order for place in record.places if place.own_weights), default=-1)
    kinds = {place.kind for place in record.places if place.order < last}
    return kinds | {activation.kind for activation in record.activations if not activation.is_last}


def _ways(record: AnalysisRecord, sign: int) -> list[str]:
    if sign < 0:
        sigmoid = "Sigmoid" in _squashing(record)
        text = "Use ReLU or GELU with He initialisation instead of sigmoid."
        swap = [advice.by_itself(text, "activation")] if sigmoid else []
        return [
            *swap,
            advice.by_itself(
                "Add normalisation (LayerNorm, BatchNorm) or skip connections: both keep gradients at the same size.",
                "norm",
            ),
        ]
    return [
        advice.by_itself(
            "Scale residual branches by 1/sqrt(number of blocks), or normalise the input of each.", "residual_scale"
        ),
        advice.by_itself(
            "Until then clip gradients by norm: that bounds the step, but does not cure the cause.", "clip"
        ),
    ]
