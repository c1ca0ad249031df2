"""NUMERICAL: where NaN or Inf comes into being, forward or backward."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.record import AnalysisRecord, Place
from gradient_flow.diagnosis.words import count, plain


def nonfinite_values(record: AnalysisRecord) -> Iterator[Issue]:
    """One issue at the first place: weights, batch, values on their way forward, loss, gradients on their way back."""
    bad_weights = next((layer for layer in record.layers if layer.bad_weights), None)
    if bad_weights is not None:
        yield _issue(
            bad_weights.name,
            f"{bad_weights.bad_weights:,} weights were NaN or Inf before the first step.",
            "an earlier step diverged, or the checkpoint is damaged.",
            ["Load an earlier checkpoint, then watch the run to see which step produces them."],
            {"bad_weights": bad_weights.bad_weights},
            1,
        )
        return
    if record.bad_inputs:
        given = _issue(
            "input",
            f"the batch contains NaN or Inf ({count(record.bad_inputs, 'element')}).",
            "missing values in the data, or normalisation that divided by a standard deviation of zero.",
            ["Clean or mask the data before it reaches the model."],
            {"bad_inputs": record.bad_inputs},
            1,
        )
        yield replace(given, severity=IssueSeverity.LOW) if _takes_them_out(record) else given
        return
    for index, step in enumerate(record.watched):
        found = _forward(record, index, step) or _backward(record, index, step)
        if found is not None:
            yield found
            return
    yield from _unseen(record)


def _takes_them_out(record: AnalysisRecord) -> bool:
    """Whether a model puts something in their place by itself: values, losses and gradients of all looks are finite."""
    parts = [(*place.bad_values, *place.bad_gradients) for place in record.places]
    bad = any(map(any, parts)) or any(any(layer.bad_gradients) for layer in record.layers)
    return bool(record.losses) and bool(record.places) and not bad and all(map(math.isfinite, record.losses))


def _forward(record: AnalysisRecord, index: int, step: int) -> Issue | None:
    bad = [place for place in record.places if _at(place.bad_values, index)]
    if bad and _reaches_nothing(record, index, step):
        return None
    if bad:
        first = min(bad, key=lambda place: place.order)
        low = first.dtype in ("float16", "bfloat16")
        earlier = [place.rms[index] for place in record.places if place.order < first.order and index < len(place.rms)]
        largest = max((value for value in earlier if math.isfinite(value)), default=math.nan)
        # Made inside a module's own `forward`, it is that module's; between two modules, that of the layer before.
        made = first.name if first.role == "output" else ""
        return _issue(
            made or first.layer or "model",
            f"NaN or Inf first appeared in the forward pass at the {first.role} of "
            f"`{first.name or 'model'}`{_between(first)} ({count(_at(first.bad_values, index), 'element')})"
            + (f"; values before it reach {plain(largest)} (root mean square)." if math.isfinite(largest) else "."),
            f"overflow in {first.dtype}, whose largest number is 65,504."
            if low and first.dtype == "float16"
            else "a logarithm or square root of a number below or at zero, a division by zero, or an overflow "
            "of `exp`.",
            [
                "Compute this layer in bfloat16 or float32."
                if low
                else "Clamp or add an epsilon inside the operation.",
                "Normalise its input: a LayerNorm before it keeps values near 1.",
            ],
            {"bad_values": _at(first.bad_values, index), "rms_before": largest, "dtype": first.dtype},
            step + 1,
        )
    loss = record.losses[step] if step < len(record.losses) else 0.0
    if not math.isfinite(loss):
        last = _output(record)
        return _issue(
            last.layer if last is not None else "model",
            f"the loss became {plain(loss)}, although the output of the model is finite.",
            "the loss function itself: a logarithm of zero, a mean over an empty mask, or an invalid target.",
            ["Use a fused loss on logits (cross_entropy, binary_cross_entropy_with_logits), which cannot overflow."],
            {"loss": loss, "output_rms": last.typical_rms if last is not None else math.nan, "in_loss": True},
            step + 1,
        )
    return None


def _between(place: Place) -> str:
    """What lies before an input that no module returned."""
    apart = place.role == "input" and place.layer and place.layer != place.name
    return f", after `{place.layer}`" if apart else ""


def _reaches_nothing(record: AnalysisRecord, index: int, step: int) -> bool:
    """Whether loss and gradients are finite all the same: masks put -Inf where a softmax makes it 0."""
    loss = record.losses[step] if step < len(record.losses) else math.nan
    gradients = [*(place.bad_gradients for place in record.places), *(layer.bad_gradients for layer in record.layers)]
    return math.isfinite(loss) and not any(_at(counts, index) for counts in gradients)


def _backward(record: AnalysisRecord, index: int, step: int) -> Issue | None:
    bad = [place for place in record.places if _at(place.bad_gradients, index)]
    weights = [layer for layer in record.layers if _at(layer.bad_gradients, index)]
    if not bad and not weights:
        return None
    if not weights and _weights_are_known(record, index):
        return None  # what a table has for padding is thrown away, and NaN with it
    if bad:
        first = max(bad, key=lambda place: place.order)
        layer, many = first.layer or "model", _at(first.bad_gradients, index)
        where = f"the {first.role} of `{first.name or 'model'}`"
    else:
        owner = max(weights, key=lambda each: -1 if each.order is None else each.order)
        layer, many, where = owner.name, _at(owner.bad_gradients, index), f"the weights of `{owner.name}`"
    return _issue(
        layer,
        f"gradients became NaN or Inf in the backward pass, first at {where} ({count(many, 'element')}); the forward "
        "pass and the loss are finite.",
        "an infinite slope right after it: a square root or norm at zero, a power below one, or a branch of "
        "`torch.where` that is masked out in the forward pass but still differentiated.",
        [
            "Add an epsilon inside the root or norm, or mask the input of the unsafe branch, not only its output.",
            "In float16: use a GradScaler, which skips such steps, or bfloat16.",
        ],
        {"bad_gradients": many, "backward_only": True},
        step + 1,
    )


def _weights_are_known(record: AnalysisRecord, index: int) -> bool:
    """Whether a gradient was seen at every layer that trains: none of them came to know of it."""
    trained = [layer for layer in record.layers if layer.trainable and layer.order is not None]
    return bool(trained) and all(len(layer.bad_gradients) > index for layer in trained)


def _unseen(record: AnalysisRecord) -> Iterator[Issue]:
    """A step without hooks, and none after it: only the loss and the norm of all gradients tell."""
    for step, (loss, norm) in enumerate(zip(record.losses, record.norms, strict=False)):
        if not (math.isfinite(loss) and math.isfinite(norm)):
            yield _issue(
                record.output_layer,
                _broken(loss, norm),
                "overflow in a single batch, or diverging weights.",
                ["Analyze the batch of that step to find the operation."],
                {"loss": loss, "gradient_norm": norm},
                step + 1,
            )
            return


def _broken(loss: float, norm: float) -> str:
    if not math.isfinite(loss) and not math.isfinite(norm):
        both = plain(loss) if math.isnan(loss) == math.isnan(norm) else "NaN or Inf"
        return f"loss and gradient norm became {both} in this step."
    what, value = ("loss", loss) if not math.isfinite(loss) else ("gradient norm", norm)
    return f"the {what} became {plain(value)} in this step."


def _issue(layer: str, message: str, cause: str, advice: list[str], evidence: dict[str, Any], step: int) -> Issue:
    return Issue(
        issue_type=IssueType.NUMERICAL,
        severity=IssueSeverity.CRITICAL,
        layer=layer,
        message=message,
        cause=cause,
        advice=advice,
        evidence=evidence,
        step=step,
    )


def _output(record: AnalysisRecord) -> Place | None:
    if record.chains and record.chains[0]:
        return record.places[record.chains[0][-1]]
    return record.places[-1] if record.places else None


def _at(values: list[int], index: int) -> int:
    return values[index] if index < len(values) else 0
