"""SHORT_MEMORY and SPECTRAL_RADIUS of a recurrence written out in a `forward`: a layer used once for each step.

What an `nn.LSTM` does inside is seen by a probe. Of a loop of one's own only the calls are seen, and the gradient that
comes back to each of them: where it shrinks from call to call, early steps teach nothing; where it grows, and values
grow too, the state runs away. Where no layer is part of the recurrence, as in a state space, what goes into it is a
sequence whose gradient tells the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.record import RECURRENT, Activation, AnalysisRecord, Place
from gradient_flow.diagnosis.robust import fell_to, loss_change, median_slope
from gradient_flow.diagnosis.words import percent, times

LEAST_CALLS: Final = 8
LOST: Final = 3.0
"""Decades from the last call to the first, where the loss is stuck. Healthy loops lose up to 2.7 while they learn."""
GRAVE: Final = 3.0
"""Decades of growth that are a fault whatever the loss does, and of the gradient alone where values are bounded.
Healthy loops come to 1.8, Euler steps of 3 to 7."""
RUNS_AWAY: Final = 2.0
"""Decades, of values and of gradients. A sum over steps grows no more than their number, at the same pace for none."""
FAR_ENOUGH: Final = 0.35
"""Share of a sequence that a new GRU reaches back is about half of twenty steps."""
_BEYOND: Final = 6.0
"""Decades that nothing learnt has: a loss that falls meanwhile falls without what the state was to tell."""
_STEADY: Final = 0.8
"""Share of neighbouring calls between which values, or gradients, grow."""
_MOSTLY: Final = 0.6
"""The same, of a gradient that fades where the loss is stuck: dropout in the state makes it uneven (0.67 to 0.8)."""
_BOTH_ENDS: Final = 0.02
"""Share of a gate's values at either end."""
_MOST: Final = 0.65
"""Share of a sequence: 1 - `FAR_ENOUGH`."""
_LEARNS: Final = 0.5
"""Share of the first loss."""
_LEAST_PARTS: Final = 3
_LEAST_LOSSES: Final = 20
_LEAST_TO_LEARN: Final = 40
"""Losses after which a memory that is as new cells have it would have shown in the loss: thirty steps are a start."""
_STUCK: Final = 0.9
"""Share of the first loss."""


def fading_over_positions(record: AnalysisRecord) -> Iterator[Issue]:
    """The gradient reaches only the last part of the sequence that the model takes in, and the loss does not fall.

    Where it is known what cuts the rest off, a loss that falls by half would say otherwise, and by a tenth does not.
    """
    if not record.trained or len(record.losses) < _LEAST_TO_LEARN or not all(map(math.isfinite, record.losses)):
        return
    stuck, falls = not fell_to(record.losses, _STUCK), fell_to(record.losses, _LEARNS)
    for place in record.places:
        if place.reach is None or place.reach > FAR_ENOUGH or not place.own_weights:
            continue
        gate = _gate_by_bias(record, place)
        held = _held_still(record, place)
        if falls or not (stuck or gate or held):
            continue
        cell = _cell_behind(record, place)
        steps = max(1, round(place.reach * place.positions))
        reached = "only the last one" if steps == 1 else f"only the last {steps:,}"
        told = ", and the loss does not fall" if stuck else ""
        cause = _FADES
        advice: Sequence[str] = _KEEP_WITHOUT_GATES if cell.kind == "RNN" else _KEEP
        if gate is not None:
            cause = (
                f"the gates of `{gate.layer}` are at one end of their range for every input: their bias set them so."
            )
            advice = (f"Start the bias of `{gate.layer}` on the other side of 0, where its gate keeps.",)
        elif held is not None:
            cause = f"the first {held.positions:,} steps run under `no_grad`."
            advice = ("Let gradients flow through most of the sequence: warm a state up on a few steps only.",)
        yield _short(
            cell.name if gate is None else gate.layer,
            f"short effective memory: {reached} of its {place.positions:,} steps {'gets' if steps == 1 else 'get'} a "
            f"gradient of at least 1% of the largest{told}.",
            {"reach": place.reach, "steps": place.positions, "loss_change": loss_change(record.losses)},
            cause,
            advice,
        )
        return


def _cell_behind(record: AnalysisRecord, place: Place) -> Place:
    """The recurrent layer behind a place, or the first layer behind it that is given all of its positions."""
    chain = next(([record.places[i] for i in each] for each in record.chains if record.places[each[0]] is place), [])
    later = sorted((p for p in record.places if p.order > place.order), key=lambda p: p.order)
    inside = (p for p in later if p.own_weights and p.positions == place.positions)
    return next((p for p in chain if p.kind in RECURRENT), next(inside, place))


def _gate_by_bias(record: AnalysisRecord, place: Place) -> Activation | None:
    """A gate behind a place that is open for all inputs, or shut for all: it keeps nothing, whatever comes."""
    for activation in record.activations:
        at_one_end = activation.in_branch and not _BOTH_ENDS < activation.above < 1 - _BOTH_ENDS
        if at_one_end and "igmoid" in activation.kind and record.position(activation.layer) > place.order:
            return activation
    return None


def _held_still(record: AnalysisRecord, place: Place) -> Place | None:
    """Most of a sequence in a call of a recurrent layer that gets no gradient, before one that gets some.

    A state is warmed up so on a few steps of a replay; with 15 of 20 steps the training lags far behind.
    """
    cells = [p for p in record.places if p.kind in RECURRENT and p.role == "output" and p.order > place.order]
    trained = {p.name for p in cells if p.typical_gradient}
    still = (p for p in cells if p.name in trained and p.typical_gradient is None)
    return next((p for p in still if p.positions >= _MOST * place.positions), None)


def _is_stuck(record: AnalysisRecord) -> bool:
    """Whether the loss does not fall; where it does, what has to be remembered is."""
    if not record.trained or len(record.losses) < _LEAST_LOSSES or not all(map(math.isfinite, record.losses)):
        return False
    return not fell_to(record.losses, _STUCK)


def _calls(record: AnalysisRecord, role: str) -> Iterator[list[Place]]:
    """What layers that are called often took in, or gave, call by call."""
    layers = {layer.name for layer in record.layers}
    calls: dict[str, list[Place]] = {}
    for place in record.places:
        if place.role == role and place.name in layers:
            calls.setdefault(place.name, []).append(place)
    for places in calls.values():
        if len(places) >= LEAST_CALLS:
            yield sorted(places, key=lambda place: place.call)


def fading_over_calls(record: AnalysisRecord) -> Iterator[Issue]:
    """The gradient shrinks from call to call of one layer, and the loss does not fall."""
    if not _is_stuck(record):
        return
    heard = ([place for place in places if place.typical_gradient] for places in _calls(record, "output"))
    found = [(places, decades) for places in heard if (decades := _fading(places)) >= LOST]
    if found:
        # Of several layers of a cell the state goes through that which gets most of the gradient.
        places, decades = max(found, key=lambda each: each[0][-1].typical_gradient or 0.0)
        yield _issue(places, decades, record)


def cut_between_calls(record: AnalysisRecord) -> Iterator[Issue]:
    """Of one layer's calls only the last get a gradient at all, and the loss does not fall.

    A state that is detached or begun anew now and then ends the way back, and a warm-up without gradients may be meant:
    the loss tells.
    """
    if not _is_stuck(record):
        return
    for places in _calls(record, "output"):
        heard = [bool(place.typical_gradient) for place in places]
        last = heard[::-1].index(False) if False in heard else 0
        if not 0 < last <= FAR_ENOUGH * len(places) or any(heard[: len(places) - last]):
            continue
        yield _short(
            places[0].name,
            f"short effective memory: only the last {last:,} of its {len(places):,} calls get a gradient, and the loss "
            "does not fall.",
            {"reach": last / len(places), "calls": len(places), "loss_change": loss_change(record.losses)},
            "the state is detached, or reset, between two of its calls.",
            [
                "Pass the state on from step to step unchanged: without `detach()`, and without new zeros inside a "
                "sequence.",
                "If you cut sequences to save memory, keep them as long as what has to be remembered.",
            ],
        )
        return


def cut_into_parts(record: AnalysisRecord) -> Iterator[Issue]:
    """A recurrent layer reads a sequence in parts, nothing goes on from part to part, and the loss does not fall.

    What its first calls took in is part of the graph and gets a gradient of exactly zero, while the last gets one: no
    state leads from the one to the other. Where every part has a loss of its own that cannot be told.
    """
    if not _is_stuck(record):
        return
    parts: dict[str, list[Place]] = {}
    for place in record.places:
        if place.role == "input" and place.kind in RECURRENT and place.positions > 1:
            parts.setdefault(place.name, []).append(place)
    for name, places in parts.items():
        places = sorted(places, key=lambda place: place.call)
        if len(places) < _LEAST_PARTS or places[0].typical_gradient != 0 or not places[-1].typical_gradient:
            continue
        yield _short(
            name,
            f"short effective memory: it reads a sequence in {len(places):,} parts of {places[0].positions:,} steps, "
            "no gradient comes from the last of them to the first, and the loss does not fall.",
            {"calls": len(places), "positions": places[0].positions, "loss_change": loss_change(record.losses)},
            "the state is reset, or detached, in every part of a sequence.",
            [f"Pass the state that `{name}` returns to its next call.", "Or call it once, on the whole sequence."],
        )
        return


def growing_over_calls(record: AnalysisRecord) -> Iterator[Issue]:
    """What a layer takes in grows from call to call by the same factor, and so does the gradient on its way back.

    Where a tanh bounds what the layer is given, and the state beside it runs away, the gradient alone tells.
    """
    found = []
    for places in _calls(record, "input"):
        seen = [place for place in places if place.typical_gradient and place.typical_rms > 0]
        if len(seen) < LEAST_CALLS:
            continue
        forth = _rise([place.typical_rms for place in seen])
        back = _rise([place.typical_gradient or math.nan for place in reversed(seen)])
        if min(forth, back) >= RUNS_AWAY or back >= GRAVE:
            # A state begins as a constant, which gets no gradient; what is fed to the loop gets one at every call.
            is_state = len(seen) < len(places) or places[0].call > 0
            found.append((is_state, back, forth, seen))
    if found:
        _, back, forth, seen = max(found, key=lambda each: each[:2])
        yield _runaway(seen[0].name, len(seen), forth, back)


def _fading(places: list[Place]) -> float:
    """Decades by which the gradient shrinks from the last call to the first; 0 where it does not do so steadily."""
    if len(places) < LEAST_CALLS:
        return 0.0
    return _rise([place.typical_gradient or math.nan for place in places], _MOSTLY)


def _rise(values: list[float], steady: float = _STEADY) -> float:
    """Decades by which values rise from the first to the last; 0 where they do not do so steadily."""
    logs = [(float(k), math.log10(value)) for k, value in enumerate(values)]
    rises = sum(later > earlier for (_, earlier), (_, later) in pairwise(logs))
    return median_slope(logs) * (len(logs) - 1) if rises >= steady * (len(logs) - 1) else 0.0


def _runaway(layer: str, calls: int, forth: float, back: float) -> Issue:
    bounded = forth < RUNS_AWAY
    factor = 10 ** ((back if bounded else forth) / (calls - 1))
    return Issue(
        issue_type=IssueType.SPECTRAL_RADIUS,
        severity=_how_wild(max(forth, back)),
        layer=layer,
        message=f"exploding states: the gradient grows {factor:.2g}-fold with each step back, {times(10**back, 2)} "
        f"over its {calls:,} calls."
        if bounded
        else f"exploding states: its input grows {factor:.2g}-fold with each step, {times(10**forth, 2)} "
        f"over its {calls:,} calls, and the gradient {times(10**back, 2)} on its way back.",
        evidence={"growth": factor, "calls": calls, "decades": forth, "decades_back": back},
        cause="the recurrence amplifies the state at every step.",
        advice=[
            f"Scale down what multiplies the state at each step by {factor:.2g}, so that it keeps its size.",
            "Clip the gradient norm, and bound the state: by a tanh, a norm, or gates.",
        ],
        step=1,
    )


def _how_wild(decades: float) -> IssueSeverity:
    if decades >= _BEYOND:
        return IssueSeverity.CRITICAL
    return IssueSeverity.HIGH if decades >= GRAVE else IssueSeverity.MEDIUM


def _issue(places: list[Place], decades: float, record: AnalysisRecord) -> Issue:
    kept = 10 ** (-decades / (len(places) - 1))
    return _short(
        places[0].name,
        f"short effective memory: with each step back the gradient shrinks to {percent(kept)}, so that over "
        f"its {len(places):,} calls it gets {times(10**decades, 2)} smaller, and the loss does not fall.",
        {"decay": kept, "calls": len(places), "decades": decades, "loss_change": loss_change(record.losses)},
    )


_FADES: Final = "the state is overwritten, or shrunk, at every step."
_KEEP: Final = (
    "Let gates start open (a bias of +1 or more where a gate keeps), or add to the state instead of replacing it.",
    "Start the recurrent weights orthogonal, with a gain of 1.",
    "Use nn.LSTM or nn.GRU, and shorter sequences if early steps do not matter.",
)
_KEEP_WITHOUT_GATES: Final = (_KEEP[2], _KEEP[1])
"""An nn.RNN has no gates to open."""


def _short(
    layer: str, message: str, evidence: dict[str, float], cause: str = _FADES, advice: Sequence[str] = _KEEP
) -> Issue:
    return Issue(
        issue_type=IssueType.SHORT_MEMORY,
        severity=IssueSeverity.HIGH,
        layer=layer,
        message=message,
        evidence=evidence,
        cause=cause,
        advice=list(advice),
        step=1,
    )
