"""The sentences of a report on NaN or Inf: what happened, and what to do where no operation is to blame."""

from __future__ import annotations

from collections.abc import Sequence

from gradient_flow.probes.nonfinite.fault import Explanation
from gradient_flow.probes.nonfinite.origin import NonFiniteOrigin, values_in_words
from gradient_flow.probes.nonfinite.tensor_range import number


def what_happened(report: NonFiniteOrigin, made_of: str | None, position: int | None, loss_is_finite: bool) -> str:
    """The message of a report. `made_of` names where an Inf on purpose came from that became NaN here."""
    if report.kind == "operation":
        return _of_operation(report, made_of, loss_is_finite)
    if report.kind == "constant":
        return _of_constant(report)
    extent = report.inputs[0]
    amount = f"{extent.bad} of {extent.count} element{'s' if extent.count > 1 else ''}"
    first_use = f"; first used by `{report.operator}`" if report.operator else ""
    values = values_in_words(extent)
    if report.kind == "parameter":
        return f"Parameter `{report.parameter}` held {values} before this step ({amount}){first_use}."
    if report.kind == "buffer":
        return f"Buffer `{report.buffer}` held {values} when it was used ({amount}){first_use}."
    if report.argument is not None:
        which = f" (position {position})" if position is not None else ""
        return f"Argument `{report.argument}`{which} of the model held {values} already ({amount}){first_use}."
    used = f", as its `{extent.name}`" if report.operator else ""
    return f"A tensor made outside the model held {values} already ({amount}){first_use}{used}."


def _of_operation(report: NonFiniteOrigin, made_of: str | None, loss_is_finite: bool) -> str:
    made = values_in_words(report.outputs[0]) if report.outputs else "NaN or Inf"
    where = f" in `{report.module}`" if report.module else " in the model itself" if report.module == "" else ""
    all_finite = bool(report.inputs) and not any(extent.bad for extent in report.inputs)
    source = made_of or ("finite numbers" if all_finite else None)
    deed = f"turned {source} into {made}" if source else f"produced {made}"
    seen_in = "; the loss is finite, a gradient is not" if loss_is_finite else ""
    return f"`{report.operator}`{where} {deed} in the {report.phase} pass{seen_in}."


def _of_constant(report: NonFiniteOrigin) -> str:
    made = values_in_words(report.outputs[0])
    if report.operator is not None and "empty" in report.operator:
        return f"`{report.operator}` left memory uninitialised, and {made} in it reached the loss or a gradient."
    if report.operator == "tensor":
        return f"`tensor` was given {made} by the code or the data, and it reached the loss or a gradient."
    return f"{made} that the code itself gives to `{report.operator}` reached the loss or a gradient."


def not_reproduced(
    *, loss: float | None, backward: bool, replayed: bool, cut_short: bool, bad_parameters: Sequence[str]
) -> str:
    """The message where a replay was sound.

    `replayed` says whether the random state of the step was given, `cut_short` whether an optimizer ended the replay.
    """
    what = f"the loss ({number(loss)})" if loss is not None else "what the step computed"
    gradients = " and all gradients are finite" if backward else " is finite; no backward pass was run"
    text = [f"Not reproduced: in this replay {what}{gradients}."]
    if not replayed:
        text.append(
            "A step that draws random numbers repeats itself only with the state that it had: keep "
            "`RandomState.capture()` from before the step and pass it as `rng_state`."
        )
    if cut_short:
        text.append("The replay ended at the first `optimizer.step()`; what comes after it was not examined.")
    if bad_parameters:
        some = ", ".join(f"`{name}`" for name in bad_parameters[:3]) + (", ..." if len(bad_parameters) > 3 else "")
        text.append(f"Non-finite parameters that did not reach the loss: {some}.")
    return " ".join(text)


def explain_given(report: NonFiniteOrigin) -> Explanation:
    """Cause and remedy where something was non-finite before any operation."""
    if report.kind == "parameter":
        return Explanation(
            "An earlier update wrote it: a non-finite gradient, or a step that was too large.",
            "Go back to an earlier checkpoint, skip updates with non-finite gradients, and use `find_nonfinite` to "
            "find "
            "the step that broke it.",
        )
    if report.kind == "buffer":
        return Explanation(
            "Running statistics absorb every training batch, bad ones included, and never forget a NaN.",
            "Reset the buffer (`reset_running_stats()`) or load it from a checkpoint, and check the data that went in.",
        )
    if report.kind == "input":
        return Explanation(
            "The data is non-finite before the model touches it.",
            "Check the data set and its transforms: missing values, a division by a standard deviation of 0, a "
            "logarithm of 0. Drop or fill such samples before they get here.",
        )
    if report.operator == "tensor":
        return Explanation(
            "The numbers came from Python or NumPy: data with missing values, or a constant in the code.",
            "If it is data, drop or fill such samples before they get here; for a mask use a large finite number.",
        )
    if report.operator is not None and "empty" in report.operator:
        return Explanation(
            "Uninitialised memory holds arbitrary numbers.",
            "Use `torch.zeros`, or write every element before the first read.",
        )
    return Explanation(
        "The number is written in the code; as a mask it would have been absorbed before the loss, here it was not.",
        "Use a large finite number (`torch.finfo(dtype).min`), or make sure that masked entries are never picked, for "
        "example as a target.",
    )
