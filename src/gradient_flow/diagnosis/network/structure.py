"""DISCONNECTED and SYMMETRY: layers that the loss cannot reach, and layers whose units are all the same."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from gradient_flow.diagnosis.advice import by_itself, initialise
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.depth import vanishing_over_depth
from gradient_flow.diagnosis.network.record import RECURRENT, AnalysisRecord, Layer, Place
from gradient_flow.diagnosis.robust import fell_to, loss_change
from gradient_flow.diagnosis.words import count

TWO: Final = 2
_NUMBER: Final = re.compile(r"\d+")
_NAMED, _LOOKS, _ROUNDING = 3, 3, 1e-4
"""Copies that are named; looks at which they agree; and the share by which they may differ in all of them."""
MANY_IDS: Final = 8
"""Vectors of a larger embedding that a batch with so many ids comes down to: two lie on a line."""
_LITTLE, _LEAST_LOSSES = 0.9, 10
"""Share of the first loss that is left where next to nothing was learnt, and losses to know it."""
_ENOUGH_LOSSES, _LEVEL, _POSITIONS = 20, 0.75, 4
"""Losses, the share of the loss after a fifth of them that is left of one that stays, and positions to tell apart."""
_ENOUGH_OF_ONE: Final = 0.4
"""Share of the first loss that is left where one direction is enough; of a product of rank 1 it was 0.6 to 0.75."""
_FOLDED: Final = 0.6
"""Share of the first loss that is left where two vectors for all ids are enough."""
_ROUNDING_OF_ONE, _HARDLY = 1e-9, 0.01
"""Of the size of values: how far samples lie apart that are not the same, and next to it."""
_TOGETHER, _FAR_DOWN = 0.5, 0.2
"""Shares of the first distance between samples, and of the first loss."""
LEAST_STEPS: Final = 40
"""Steps without a block that is left out by chance, as in stochastic depth, and comes back."""


def disconnected(record: AnalysisRecord) -> Iterator[Issue]:
    """Layers that ran and are to be trained, and to which no gradient ever comes."""
    trainable = [layer for layer in record.layers if layer.trainable]
    if not record.loss_needs_grad:
        yield _loss_is_cut_off(trainable)
        return
    lost = [layer for layer in trainable if layer.order is not None and not layer.gradient_seen]
    cut = _cut_off(record, [layer for layer in lost if not layer.without_grad])
    if cut is not None:
        yield cut
        return
    off = [layer for layer in lost if layer.without_grad]
    for meant in (False, True):  # those that the optimizer holds, and those that it does not
        if alike := [layer for layer in off if (layer.in_optimizer is not True) == meant]:
            yield _without_grad(*alike)
    ends = [layer for layer in lost if not layer.without_grad and not layer.used_by_sibling]
    if ends:
        yield _dead_end(ends)


def unused(record: AnalysisRecord) -> Iterator[Issue]:
    """Layers that are to be trained and never ran."""
    never = [layer for layer in record.layers if layer.trainable and layer.order is None and not layer.gradient_seen]
    skipped = [layer for layer in never if layer.used_by_sibling and _is_left_out(record, layer)]
    forgotten = [layer for layer in never if not layer.used_by_sibling or layer in skipped]
    if forgotten and record.loss_needs_grad:
        # A head for later harms nothing. Positions that are never looked up are missing from what is learnt; so is a
        # part of a layer that ran and got nothing, as of an attention under `no_grad`; and a layer in whose place
        # another one ran twice.
        missing = [
            layer
            for layer in forgotten
            if layer.is_embedding
            or layer in skipped
            or _is_part_without_gradient(record, layer)
            or _twin_called_instead(record, layer) is not None
        ]
        first, *rest = [*missing, *(layer for layer in forgotten if layer not in missing)]
        twin = _twin_called_instead(record, first)
        instead = f"; `{twin}`, a layer of the same kind, is called more than once" if twin is not None else ""
        yield Issue(
            issue_type=IssueType.DISCONNECTED,
            severity=IssueSeverity.MEDIUM if missing else IssueSeverity.LOW,
            layer=first.name,
            message=f"it was never called in {count(record.steps, 'step')}, so its weights are not trained{instead}.",
            evidence={"layers": [layer.name for layer in forgotten], "steps": record.steps},
            cause="`forward` does not use it, or only in a branch that these batches do not take."
            if twin is None
            else f"`forward` calls `{twin}` where this one was meant: a copy-and-paste slip.",
            advice=["Call it or remove it. If you keep it for later, freeze it (`requires_grad_(False)`)."],
            step=1,
            consequences=tuple(_also_unused(layer, layer in missing) for layer in rest),
        )


def symmetry(record: AnalysisRecord) -> Iterator[Issue]:
    """All units of a layer have the same weights and the same gradient: they stay the same for ever."""
    same = [layer for layer in record.layers if layer.equal_units and layer.trainable]
    if not same:
        return
    first, *rest = same
    yield Issue(
        issue_type=IssueType.SYMMETRY,
        severity=IssueSeverity.CRITICAL,
        layer=first.name,
        message="all its units have the same weights and the same gradient: they act as one unit, and always will.",
        evidence={"layers": [layer.name for layer in same]},
        cause="the weights were initialised to a constant.",
        advice=[
            initialise(
                "Initialise the weights at random (He for ReLU, Xavier for tanh); biases may be constant.",
                [layer.name for layer in same],
            )
        ],
        step=1,
        consequences=tuple(
            Issue(
                issue_type=IssueType.SYMMETRY,
                severity=IssueSeverity.HIGH,
                layer=layer.name,
                message="all its units are identical.",
            )
            for layer in rest
        ),
    )


def copies(record: AnalysisRecord) -> Iterator[Issue]:
    """Layers side by side with the same weights and, look after look, the same gradient: they do the work of one.

    Heads that were copied, or drawn from one seed each, agree in every digit; of heads that were drawn one after the
    other the weights differ by a hundredth or so, and gradients by far more.
    """
    found: dict[tuple[str, str], list[list[Layer]]] = {}
    for layer in record.layers:
        if layer.trainable and layer.matrix is not None and not layer.equal_units and _has_gradients(layer):
            groups = found.setdefault((layer.kind, _NUMBER.sub("*", layer.name)), [])
            group = next((each for each in groups if _agree(each[0], layer)), None)
            if group is None:
                groups.append([layer])
            else:
                group.append(layer)
    same = [group for groups in found.values() for group in groups if len(group) > 1]
    if same:
        first, *others = min(same, key=lambda group: record.position(group[0].name))
        names = ", ".join(f"`{layer.name}`" for layer in others[:_NAMED]) + (", …" if len(others) > _NAMED else "")
        yield Issue(
            issue_type=IssueType.SYMMETRY,
            severity=IssueSeverity.HIGH,
            layer=first.name,
            message=f"it has the same weights and the same gradient as {names}: the {len(others) + 1} act as one, and "
            "always will.",
            evidence={"layers": [layer.name for group in same for layer in group], "copies": len(others) + 1},
            cause="they are copies of one module, or each was drawn after the same seed was set.",
            advice=[
                initialise(
                    "Draw the weights of each by itself: build a new module for each, and set the seed once.",
                    [layer.name for layer in others],
                )
            ],
            step=1,
        )


def _has_gradients(layer: Layer) -> bool:
    known = [norm for norm in layer.gradient if norm]
    return len(known) >= _LOOKS and len(known) == len(layer.gradient) and 0 < layer.weight_norm < math.inf


def _agree(layer: Layer, other: Layer) -> bool:
    """Whether weights, and gradients of every look, are of one size, but for rounding."""
    pairs = [(layer.weight_norm, other.weight_norm), *zip(layer.gradient, other.gradient, strict=False)]
    return len(layer.gradient) == len(other.gradient) and all(
        math.isclose(a or 0.0, b or 0.0, rel_tol=_ROUNDING) for a, b in pairs
    )


def one_direction(record: AnalysisRecord) -> Iterator[Issue]:
    """A wide layer that lets a single direction through: by its matrix, or by what comes out of it."""
    if record.input_on_a_line and record.layers:
        yield replace(
            _low_rank(
                record.layers[0],
                f"the {record.input_units:,} columns of the input carry the same information: samples differ in one "
                "direction only.",
                "one column was read or copied into all of them, or they were scaled by numbers far apart.",
                "Print a few samples: the columns should differ from one another and share one scale.",
            ),
            severity=IssueSeverity.MEDIUM,
        )
        return
    folded = _folded(record) if record.input_kinds >= MANY_IDS else None
    embedding = record.layer(folded.name) if folded is not None else None
    if folded is not None and embedding is not None:
        yield _low_rank(
            embedding,
            f"it gives the same {count(folded.kinds or 0, 'vector')} to all samples, although the batch holds "
            f"{record.input_kinds:,} or more ids.",
            "ids are folded onto each other before they are looked up: by a modulus, a shift, a clamp or a comparison.",
            f"Print the ids that `{embedding.name}` is given: there should be as many as in the batch.",
        )
        return
    behind = next((p for p in record.places if p.on_a_line and not p.own_weights), None)
    source = record.layer(behind.layer) if behind is not None else None
    if source is not None and not fell_to(record.losses, _ENOUGH_OF_ONE, _LEAST_LOSSES):
        yield _low_rank(
            source,
            "what is made of its outputs for the next module lies on one line: only one direction gets through.",
            "they are multiplied by factors with an inner dimension of 1.",
            "Raise the rank of the factors to at least that of what they are given, or use a full matrix.",
        )
        return
    lines = {place.name for place in record.places if place.on_a_line and place.own_weights}
    for layer in record.layers:
        if layer.trainable and not layer.is_embedding and not layer.equal_units:
            if layer.rank_one:
                yield _low_rank(
                    layer,
                    "the rows of its weight matrix are multiples of one another: only one direction of its input gets "
                    "through.",
                    "the weight was initialised as an outer product, or has collapsed.",
                    initialise(
                        "Initialise the weight at random, each entry independently (He or Xavier).", [layer.name]
                    ),
                )
                return
            if layer.name in lines:
                yield _low_rank(
                    layer,
                    "its outputs for different samples all lie on one line: only one direction of its input gets "
                    "through.",
                    "its weight is a product with an inner dimension of 1, or has collapsed.",
                    "Give the layer a full matrix, or raise the rank of its factors to at least that of what it takes.",
                )
                return


def _folded(record: AnalysisRecord) -> Place | None:
    """An embedding that gives one or two vectors for all ids it is asked for, in whichever of its calls.

    A loop that writes word by word asks first for the word that begins every sentence. A table of two vectors is no
    fault beside others that tell more, nor where the loss falls far without: of ids that were hashed into two rows 0.83
    of the first loss was left, or all of it.
    """
    kinds: dict[str, int] = {}
    for place in record.places:
        if place.kinds is not None:
            kinds[place.name] = max(place.kinds, kinds.get(place.name, 0))
    few = [p for p in record.places if kinds.get(p.name, TWO + 1) <= TWO and not p.from_batch]
    alone = len(kinds) == sum(place.kind.startswith("Embedding") for place in record.places if not place.call)
    alone = alone and max(kinds.values(), default=0) <= TWO and record.input_size == 0
    learns = fell_to(record.losses, _FOLDED, _LEAST_LOSSES) or len(record.losses) < _ENOUGH_LOSSES
    return next((p for p in few if (p.table_rows or 0) > TWO or (alone and not learns)), None)


def one_for_all(record: AnalysisRecord) -> Iterator[Issue]:
    """A layer that gives the same for all samples, look after look, in a training that does not learn.

    A code that is repeated for all steps of a sequence is the same for all of them too, and such a training learns.
    """
    if not record.trained or next(vanishing_over_depth(record), None) is not None:
        return  # what vanishes on its way through a deep net leaves nothing that tells samples apart
    same = next((p for p in record.places if p.looks_as_one >= _LOOKS and not p.from_batch), None)
    layer = record.layer(same.name) if same is not None else None
    if layer is None or layer.zero_weights or not layer.trainable or fell_to(record.losses, _LITTLE, _LEAST_LOSSES):
        return
    yield _low_rank(
        layer,
        "its outputs are the same for all samples of a batch, although the layer before it tells them apart.",
        "between the two something is averaged, summed or normalised over the batch as well.",
        f"Print the shape before and after each mean, sum and softmax on the way to `{layer.name}`: the first "
        "dimension is that of the samples, and no operation should run over it.",
    )


def hardly_apart(record: AnalysisRecord) -> Iterator[Issue]:
    """What a model first makes of its data is next to the same for all samples, and the loss does not fall.

    Pictures from 0 to 1 less the mean of bytes, and bells five hundred times as wide as the data, left samples 0.001
    and 1e-6 of their size apart.
    """
    place = min(
        (record.places[chain[0]] for chain in record.chains if chain),
        key=lambda first: math.inf if first.apart is None else first.apart,
        default=None,
    )
    apart = None if place is None else place.apart
    if place is None or apart is None or not _ROUNDING_OF_ONE < apart < _HARDLY or not record.trained:
        return
    if len(record.losses) < LEAST_STEPS or not loss_change(record.losses) > _LITTLE:
        return
    layer = record.layer(place.layer) or record.layer(place.name) or next(iter(record.layers), None)
    frozen = any(not each.trainable and (each.order or 0) <= place.order for each in record.layers)
    if layer is not None and not frozen:  # what layers that are given make of the data is none of this one's
        yield replace(
            _low_rank(
                layer,
                f"samples hardly differ where they come in: what the model first makes of them differs by {apart:.2g} "
                "of its size, and the loss does not fall.",
                "what all samples share is far larger than what they differ in: inputs with a large offset, as a mean "
                "on another scale that was subtracted, or a width or temperature far beyond their distances.",
                "Standardise the inputs: subtract the mean of each column and divide by its standard deviation. Print "
                "the mean and the deviation of a batch where it enters the model: 0 and 1 are good.",
            ),
            evidence={"apart": apart, "matrix": layer.matrix},
        )


def one_for_positions(record: AnalysisRecord) -> Iterator[Issue]:
    """One vector stands for all positions of a sample where the model has to say something of each, and it stops to
    learn once it knows what they have in common.

    A code that a recurrent layer unrolls is repeated for all steps too, and goes on to differ.
    """
    if not record.trained or not _is_level(record):
        return
    for chain in record.chains:
        places = [record.places[index] for index in chain]
        at = next((k for k, place in enumerate(places) if place.looks_at_one_value >= _LOOKS), None)
        if at is None or any(p.kind in RECURRENT for p in places[at:]):
            continue
        same, asked = places[at], _positions_of_output(places)
        before = max(place.positions for place in places[:at])
        if asked < _POSITIONS:
            continue
        yield Issue(
            issue_type=IssueType.BOTTLENECK,
            severity=IssueSeverity.HIGH,
            layer=same.layer,
            message=f"behind it each sample has the same {count(same.units, 'number')} at all of its "
            f"{same.positions:,} positions, although the model has to tell {asked:,} apart, and the "
            "loss stays where it is.",
            evidence={"units": same.units, "positions": same.positions, "positions_before": before},
            cause="a mean, a pooling or one chosen position is spread over all of them, and what each was is lost; or "
            "all of them ask by the same query, without a place of their own.",
            advice=[
                f"Add what each position was to what they have in common: a skip connection around `{same.layer}`.",
                "Or pool less: keep several positions, and a vector for each.",
                "Queries of a decoder need a learned vector for each position.",
            ],
            step=1,
        )
        return


def _positions_of_output(places: Sequence[Place]) -> int:
    """Of what the last layer gives, where the output is that in another order: (samples, units, steps), say."""
    made = [place for place in places if place.own_weights]
    turned = bool(made) and made[-1].size == places[-1].size
    return max(places[-1].positions, made[-1].positions) if turned else places[-1].positions


def _is_level(record: AnalysisRecord) -> bool:
    """Whether the loss stays where it is after the first fifth of the steps, in which a model learns what is common.

    Of one program it stayed at 0.9 of what it was then where positions are alike, and fell to 0.3 where they are not.
    """
    losses = [loss for loss in record.losses if math.isfinite(loss)]
    return len(losses) >= _ENOUGH_LOSSES and loss_change(losses[len(losses) // 5 :]) > _LEVEL


def pulled_together(record: AnalysisRecord) -> Iterator[Issue]:
    """The loss asks for the difference of two views alone, and falls because all samples come together.

    Gradients of the two are opposite then, and of one size. What keeps samples apart, as a term for their spread, other
    samples in the loss or one view that is held still, makes them differ. Without it samples of two programs came to
    lie 0.12 to 0.14 times as far apart as at first within 50 steps.
    """
    ends: dict[str, list[Place]] = {}
    for index in {chain[-1] for chain in record.chains if chain}:
        ends.setdefault(record.places[index].name, []).append(record.places[index])
    for name, views in ends.items():
        layer, (place, *others) = record.layer(name), views
        opposite = bool(others) and all(_are_one_size(place.gradient, other.gradient) for other in others)
        if layer is None or not opposite or place.units < MANY_IDS or len(place.spread) < _LOOKS:
            continue
        left = place.spread[-1] / place.spread[0] if place.spread[0] > 0 else math.inf
        if left < _TOGETHER and loss_change(record.losses, _LEAST_LOSSES) < _FAR_DOWN:
            yield replace(
                _low_rank(
                    layer,
                    f"samples come together: they lie {left:.2g} times as far apart as at first, and the loss falls "
                    "because of that.",
                    "the loss asks for views of a sample to be the same, and nothing keeps samples apart: one value "
                    "for all is the best answer.",
                    "Add a term for the spread of each feature over the batch (VICReg), contrast samples with each "
                    "other, or hold one view still behind a predictor (SimSiam).",
                ),
                evidence={"spread": place.spread[-1], "spread_at_first": place.spread[0]},
                step=None,
            )
            return


def _are_one_size(one: Sequence[float | None], other: Sequence[float | None]) -> bool:
    pairs = list(zip(one, other, strict=False))
    return len(pairs) >= _LOOKS and all(a and b and math.isclose(a, b, rel_tol=_ROUNDING) for a, b in pairs)


def _low_rank(layer: Layer, message: str, cause: str, advice: str) -> Issue:
    return Issue(
        issue_type=IssueType.LOW_RANK,
        severity=IssueSeverity.HIGH,
        layer=layer.name,
        message=message,
        evidence={"matrix": layer.matrix, "rank": 1},
        cause=cause,
        advice=[advice],
        step=1,
    )


def _cut_off(record: AnalysisRecord, lost: list[Layer]) -> Issue | None:
    """A tensor was detached on its way: what comes after it starts from something that needs no gradient."""
    starts = [p for p in record.places if p.from_data and not p.from_batch and p.role == "output"]
    for start in sorted(starts, key=lambda place: place.order):
        before = [layer for layer in lost if layer.order is not None and layer.order < start.order]
        known = record.layer(start.name)
        reached = known is None or known.gradient_seen or known.reaches_loss
        if before and reached:
            last = before[-1]
            many = "the layer before it is" if len(before) == 1 else f"the {len(before)} layers before it are"
            return Issue(
                issue_type=IssueType.DISCONNECTED,
                severity=IssueSeverity.CRITICAL,
                layer=last.name,
                message=f"no gradient gets past `{start.name}`: {many} not trained.",
                evidence={"layers": [layer.name for layer in before], "goes_on_at": start.name},
                cause=f"the output of `{last.name}` is detached before it reaches `{start.name}`: by `.detach()`, "
                "`.data`, "
                "`.item()`, `.numpy()`, `torch.tensor(...)` or `no_grad`.",
                advice=[
                    by_itself(f"Remove the detach between `{last.name}` and `{start.name}`.", "reattach"),
                    "If the first part is not meant to train, freeze it (`requires_grad_(False)`).",
                ],
                step=1,
                code="detached",
                consequences=tuple(_also_lost(layer) for layer in before[:-1]),
            )
    return None


def _loss_is_cut_off(trainable: list[Layer]) -> Issue:
    ran = [layer for layer in trainable if layer.order is not None and not layer.without_grad]
    return Issue(
        issue_type=IssueType.DISCONNECTED,
        severity=IssueSeverity.CRITICAL,
        layer=ran[-1].name if ran else "model",
        message="the loss does not depend on any weight: it has no gradient."
        if trainable
        else "every parameter is frozen: there is nothing to train.",
        evidence={"trainable_layers": len(trainable)},
        cause="the output is detached (`.detach()`, `.item()`, `argmax`, `no_grad`) before or inside the loss."
        if trainable
        else "`requires_grad` is False everywhere.",
        advice=[
            "Compute the loss from the tensor that the model returns, with gradients enabled."
            if trainable
            else "Unfreeze the layers that should learn (`requires_grad_(True)`)."
        ],
        step=1,
        code="detached_loss" if trainable else "frozen",
        consequences=tuple(_also_lost(layer) for layer in ran[:-1]),
    )


def _dead_end(ends: list[Layer]) -> Issue:
    """The last of them is where the way to the loss ends; those before it lead there."""
    *before, last = ends
    return Issue(
        issue_type=IssueType.DISCONNECTED,
        severity=IssueSeverity.MEDIUM,
        layer=last.name,
        message="it runs, but its output does not affect the loss: its weights get no gradient.",
        evidence={"reaches_loss": False, "layers": [layer.name for layer in ends]},
        cause="its output is dropped, detached, or not used by the loss.",
        advice=["Use its output in the loss. If it is meant to be idle, freeze it (`requires_grad_(False)`)."],
        step=1,
        code="detached",
        consequences=tuple(_also_lost(layer) for layer in before),
    )


def _without_grad(layer: Layer, *others: Layer) -> Issue:
    meant = layer.in_optimizer is not True
    return Issue(
        issue_type=IssueType.DISCONNECTED,
        severity=IssueSeverity.LOW if meant else IssueSeverity.MEDIUM,
        layer=layer.name,
        message="it runs under `no_grad`, so its weights get no gradient"
        + (", although the optimizer holds them." if not meant else "."),
        evidence={"in_optimizer": layer.in_optimizer},
        cause="`torch.no_grad()` around this part.",
        advice=["Move it out of `no_grad`. If it is meant to stay fixed, freeze it (`requires_grad_(False)`)."],
        step=1,
        code="detached",
        consequences=tuple(_also_lost(layer) for layer in others),
    )


def _also_lost(layer: Layer) -> Issue:
    return Issue(
        issue_type=IssueType.DISCONNECTED,
        severity=IssueSeverity.HIGH,
        layer=layer.name,
        message="no gradient arrives.",
    )


def _is_left_out(record: AnalysisRecord, layer: Layer) -> bool:
    """Whether it is in a block of a list of which others lie on the main path: no expert, which waits its turn."""
    parts = layer.name.split(".")
    at = next((k for k, part in enumerate(parts) if part.isdigit()), None)
    if at is None or record.steps < LEAST_STEPS:
        return False
    places = [record.places[index].name.split(".") for chain in record.chains[:1] for index in chain]
    return any(len(place) > at and place[:at] == parts[:at] for place in places)


def _twin_called_instead(record: AnalysisRecord, layer: Layer) -> str | None:
    """A layer of the same kind and name but for its number that runs more often than others beside it do.

    A head that waits for its task has no such twin, and of a model that runs twice in a step every layer does.
    """
    calls: dict[str, int] = {}
    for place in record.places:
        if place.own_weights and place.role == "output":
            calls[place.name] = max(calls.get(place.name, 0), place.call + 1)
    around = {name: runs for name, runs in calls.items() if _parent(name) == _parent(layer.name)}
    often = [name for name, runs in around.items() if runs > min(around.values()) and _alike(record, layer, name)]
    return often[0] if often else None


def _alike(record: AnalysisRecord, layer: Layer, name: str) -> bool:
    other = record.layer(name)
    stem = layer.name.rstrip("0123456789")
    return other is not None and other.kind == layer.kind and stem != layer.name and name.rstrip("0123456789") == stem


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _is_part_without_gradient(record: AnalysisRecord, layer: Layer) -> bool:
    whole = record.layer(layer.name.rpartition(".")[0])
    return whole is not None and whole.order is not None and not whole.gradient_seen


def _also_unused(layer: Layer, missing: bool) -> Issue:
    return Issue(
        issue_type=IssueType.DISCONNECTED,
        severity=IssueSeverity.MEDIUM if missing else IssueSeverity.LOW,
        layer=layer.name,
        message="it was never called.",
    )
