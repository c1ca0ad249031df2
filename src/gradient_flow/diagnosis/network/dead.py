"""DEAD: units and layers that let no gradient through."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from gradient_flow.diagnosis.advice import by_itself, initialise
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.record import AnalysisRecord, Place
from gradient_flow.diagnosis.robust import loss_change
from gradient_flow.diagnosis.words import count, percent, plain

DEAD_LAYER: Final = 0.9
PART_DEAD: Final = 0.5
"""Where samples are alike about half of the units may be silent by chance. Layers that lost a part had 0.59 or more,
and a narrow layer behind rectified maps, which learns, up to 0.47."""
CONTRAST: Final = 0.3
"""By how much the share of silent units must exceed that of the layers around."""
VARIED: Final = 0.6
"""Deviation of a unit over its root mean square: 0.7 or more in layers that lost a part of their units. In a deep stack
samples look ever more alike: units then keep their sign for all of them, about half of the units are silent by chance,
and that is not what dying means."""
_CHANCE: Final = 4.0
"""Deviations of the share of silent units, if each were silent with probability one half."""
_LEAST_ROWS: Final = 64
_LEAST_SAMPLES: Final = 16
_LEAST_UNITS: Final = 8
_LEAST_LOSSES: Final = 20
_COMES_ALONG: Final = 0.35
"""Share of the first loss."""
_FEW_ROWS: Final = 16
"""Enough where nearly all units are silent: by chance each is in one of 65,000 cases."""


def dead_units(record: AnalysisRecord) -> Iterator[Issue]:
    """Units whose input is never positive and which never get a gradient, over all rows that were seen."""
    places = [p for p in record.places if p.own_weights and p.dead_share is not None and p.call == 0]
    shares = [place.dead_share or 0.0 for place in places]
    found = []
    for index, place in enumerate(places):
        layer = record.layer(place.name)
        if layer is None or not layer.trainable or layer.is_embedding or place.units < 2:
            continue
        if place.rows_seen < (_LEAST_ROWS if shares[index] < DEAD_LAYER else _FEW_ROWS) and shares[index] < 1.0:
            continue
        around = max([shares[j] for j in (index - 1, index + 1) if 0 <= j < len(places)], default=0.0)
        varied = place.variation is None or place.variation > VARIED
        # Positions of one picture are no samples of their own: a unit that waits for what is rare has to see many.
        varied = varied and place.samples * (len(record.watched) or record.steps) >= _LEAST_SAMPLES
        stands_out = varied and shares[index] >= PART_DEAD and shares[index] - around >= CONTRAST
        if shares[index] >= _limit(place) or stands_out:
            found.append(place)
    if found:
        yield _dead_issue(found, needed=not (record.learnt or _thrives(record)))


def dead_head(record: AnalysisRecord) -> Iterator[Issue]:
    """The one unit that makes the output is below zero for every row, under an activation that is flat there.

    What comes behind it gets a gradient and it gets none: nothing of the model is trained any more.
    """
    for chain in record.chains:
        places = [record.places[index] for index in chain]
        at = max((k for k, place in enumerate(places) if place.own_weights), default=-1)
        if at < 0 or at == len(places) - 1:
            continue
        head, behind = places[at], places[-1]
        silent = head.units == 1 and head.dead_share == 1.0 and head.rows_seen >= _LEAST_ROWS
        if silent and _last(head) == 0 and (_last(behind) or 0.0) > 0:
            yield _dead_head_issue(head)
            return


def _last(place: Place) -> float | None:
    """The gradient in the last look that saw one."""
    return next((norm for norm in reversed(place.gradient) if norm is not None), None)


def _dead_head_issue(head: Place) -> Issue:
    return Issue(
        issue_type=IssueType.DEAD,
        severity=IssueSeverity.CRITICAL,
        layer=head.name,
        message=f"its unit was below zero in all of the last {count(head.rows_seen, 'row')} of data, where the "
        "function after it is flat: the loss has a gradient, but no weight receives one.",
        evidence={"dead_share": 1.0, "units": 1, "rows": head.rows_seen},
        cause="an activation that is zero below zero, such as ReLU, or a clamp at the output.",
        advice=[
            f"Remove the activation after `{head.name}`: an output needs none, or one without a flat part (softplus).",
            "If targets may not be negative, start its bias at their mean.",
        ],
    )


def _thrives(record: AnalysisRecord) -> bool:
    """Whether the training comes along well with the units that are left."""
    return record.trained and loss_change(record.losses, _LEAST_LOSSES) < _COMES_ALONG


def idle_units(record: AnalysisRecord) -> Iterator[Issue]:
    """Hidden units whose values are dropped behind the layer: they fire, and no gradient ever comes to them."""
    last = max((place.order for place in record.places if place.own_weights), default=-1)
    for layer in record.layers:
        place = next((p for p in record.places if p.own_weights and p.name == layer.name), None)
        if place is None or not layer.trainable or layer.is_embedding or layer.masked or layer.used_by_sibling:
            continue
        if place.order == last or place.units < _LEAST_UNITS or place.rows_seen < _LEAST_ROWS:
            continue  # outputs that these batches do not ask for are not dead
        share = layer.idle_units or 0.0
        if not DEAD_LAYER <= share < 1.0 or (place.dead_share or 0.0) > 0.5 * share:
            continue
        yield Issue(
            issue_type=IssueType.DEAD,
            severity=IssueSeverity.LOW if record.learnt else IssueSeverity.HIGH,
            layer=layer.name,
            message=f"{percent(share)} of its {place.units:,} units never got a gradient in "
            f"{count(place.rows_seen, 'row')} of data, although they fire.",
            evidence={"idle_units": share, "units": place.units, "rows": place.rows_seen},
            cause="their output is dropped after the layer: by a mask, a slice, or a gate that is zero for them.",
            advice=[
                f"Check which units a mask or slice after `{layer.name}` keeps: it may be the wrong way round.",
                "If they are pruned on purpose, shrink the layer to the units that are left.",
            ],
            step=1,
        )
        return


def _limit(place: Place) -> float:
    """The share of silent units that chance does not explain in a layer of this width."""
    by_chance = 0.5 + _CHANCE * 0.5 / math.sqrt(place.units)
    return min(max(by_chance, 0.7), 1.0 if place.units < 16 else DEAD_LAYER)


def _dead_issue(found: list[Place], needed: bool) -> Issue:
    # Behind a dead layer nothing changes any more, so others die with it: the first in forward order is the cause.
    first, share = found[0], found[0].dead_share or 0.0
    grown = first.dead_share_at_first is not None and first.dead_share_at_first < 0.5 * share
    rest = tuple(
        Issue(
            issue_type=IssueType.DEAD,
            severity=IssueSeverity.MEDIUM,
            layer=place.name,
            message=f"{percent(place.dead_share or 0.0)} of its {place.units:,} units never fire.",
        )
        for place in found[1:]
    )
    return Issue(
        issue_type=IssueType.DEAD,
        severity=_severity(share, needed),
        layer=first.name,
        message=f"{percent(share)} of its {first.units:,} units never fired and got no gradient in "
        f"{count(first.rows_seen, 'row')} of data.",
        evidence={
            "dead_share": share,
            "dead_share_at_first": first.dead_share_at_first,
            "units": first.units,
            "rows": first.rows_seen,
            "chance_of_firing_below": 3 / max(first.rows_seen, 1),
        },
        cause="large updates pushed these units below zero for good."
        if grown
        else "a large negative bias, or weights that make the sum negative for every input.",
        advice=[
            initialise(
                f"Start the biases of `{first.name}` at 0 and its weights with He initialisation.", [first.name]
            ),
            by_itself("Use LeakyReLU or GELU: they pass some gradient below zero.", "activation"),
            "Lower the learning rate: a single large update can kill a unit."
            if grown
            else by_itself("Normalise its input.", "norm"),
        ],
        step=None if grown else 1,
        consequences=rest,
    )


def _severity(share: float, needed: bool) -> IssueSeverity:
    if share >= 0.999:
        return IssueSeverity.CRITICAL
    # A network that solves its task with the units that are left has lost capacity and nothing else.
    return IssueSeverity.HIGH if needed or share >= DEAD_LAYER else IssueSeverity.LOW


def blocked_gradient(record: AnalysisRecord) -> Iterator[Issue]:
    """The gradient is exactly zero from some place of the main path on, and nothing explains it as harmless."""
    for chain in record.chains:
        places = [record.places[index] for index in chain]
        output = places[-1] if places else None
        if output is None or output.typical_gradient is None:
            continue
        if output.typical_gradient == 0:
            yield from _no_gradient_from_loss(record, output)
            return
        for earlier, later in reversed(list(pairwise(places))):
            # Of a module that is called several times, as a recurrent one that reads in pieces, any call may be it.
            calls = [place for place in record.places if place.name == earlier.name and place.role == earlier.role]
            if all(map(_always_zero, calls)) and not _always_zero(later):
                yield from _blocked_at(record, earlier, later)
                return


def _blocked_at(record: AnalysisRecord, earlier: Place, later: Place) -> Iterator[Issue]:
    maker = record.layer(later.name) if later.own_weights else None
    if maker is not None and maker.zero_weights:
        zero_before = [layer for layer in record.layers if layer.zero_weights and not any(layer.gradient)]
        if not zero_before:
            return  # a layer that starts at zero gets a gradient itself and opens with the first step
        yield Issue(
            issue_type=IssueType.DEAD,
            severity=IssueSeverity.CRITICAL,
            layer=zero_before[0].name,
            message=f"the weights of {len(zero_before) + 1} layers are all zero: neither values nor gradients get "
            "through.",
            evidence={"zero_layers": [*(layer.name for layer in zero_before), maker.name]},
            cause="the weights were initialised to zero: one such layer recovers, two in a row do not.",
            advice=[
                initialise(
                    "Initialise the weights at random (He or Xavier). Only biases and the last layer may start at "
                    "zero.",
                    [*(layer.name for layer in zero_before), maker.name],
                )
            ],
            step=1,
        )
        return
    largest, here = later.typical_gradient or 0.0, earlier.layer
    if largest < 1e-30:
        return  # it faded on its way here: the profile over depth tells
    yield Issue(
        issue_type=IssueType.DISCONNECTED if _goes_on(record, earlier, later) else IssueType.DEAD,
        severity=IssueSeverity.CRITICAL,
        layer=here,
        message=f"no gradient reaches `{here}`, although the next layer receives one of norm {plain(largest)}.",
        evidence={"gradient_behind": largest, "gradient_here": 0.0},
        cause="rounding, a sign or a comparison after this layer: values get through, and its slope is zero everywhere."
        if _goes_on(record, earlier, later)
        else "units that never fire, or rounding, a comparison or an all-zero mask after this layer.",
        advice=[
            "Replace rounding, sign or comparison with a smooth function or a straight-through estimator.",
            f"Check the biases of `{here}` and the scale of its input: all its units may be below zero.",
        ][: 1 if _goes_on(record, earlier, later) else 2],
        step=1,
    )


def _goes_on(record: AnalysisRecord, earlier: Place, later: Place) -> bool:
    """Whether the module behind takes values other than zero, and they get a gradient: only the way back ends."""
    if any((p.dead_share or 0.0) > DEAD_LAYER for p in record.places if p.order <= earlier.order):
        return False  # what comes through is a constant
    taken = [p for p in record.places if p.name == later.name and p.role == "input" and p.call == later.call]
    return any(p.typical_rms > 0 and (p.typical_gradient or 0.0) > 0 for p in taken)


def _no_gradient_from_loss(record: AnalysisRecord, output: Place) -> Iterator[Issue]:
    if not _always_zero(output):
        return
    single = record.classes == 1
    if not single and all(loss == 0 for loss in record.losses):
        return  # a hinge that is satisfied everywhere has nothing left to teach
    yield Issue(
        issue_type=IssueType.DEAD,
        severity=IssueSeverity.CRITICAL,
        layer=output.layer,
        message="the gradient of the loss at the model's output is exactly zero in every step.",
        evidence={"losses": record.losses[:3], "classes": record.classes},
        cause="a softmax over a single class is always 1."
        if single
        else "the loss is flat here, or the head clamps its output.",
        advice=[
            "For one output use binary_cross_entropy_with_logits; for a softmax use two outputs."
            if single
            else "Remove the clamp or the final activation, or start where the loss is not flat."
        ],
        step=1,
    )


def _always_zero(place: Place) -> bool:
    seen = [norm for norm in place.gradient if norm is not None]
    return bool(seen) and all(norm == 0 for norm in seen)
