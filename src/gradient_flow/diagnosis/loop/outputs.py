"""What a loss is given: probabilities for logits, a softmax over the wrong dimension, an output that cannot reach its
targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop.context import CLASSES, REGRESSION, Loop, issue
from gradient_flow.diagnosis.robust import fell_to
from gradient_flow.diagnosis.words import percent, plain

_RANGES: Final = {
    "relu": "below 0",
    "tanh": "outside -1 to 1",
    "sigmoid": "outside 0 to 1",
    "softmax": "outside 0 to 1",
}
_OUT_OF_REACH: Final = 0.1
"""Share of the variance of the targets that the nearest output leaves. Noise that crosses the bound here and there
leaves a hundredth; targets that nobody scaled leave all of it."""
_LEARNED: Final = 0.3
"""Share of the first loss: a classifier that gets below it does well enough with the classes that it tells apart."""


def squashed(loop: Loop) -> Iterator[Issue]:
    """Probabilities in place of logits."""
    for function in ("cross_entropy", "binary_cross_entropy_with_logits", "nll_loss"):
        calls = [call for _, call in loop.calls(function)]
        if calls and all(call.squashed for call in calls):
            wants = "log-probabilities" if function == "nll_loss" else "logits"
            yield issue(
                "double_softmax",
                IssueSeverity.HIGH,
                f"`{function}` expects {wants} but was given probabilities: the loss cannot fall to zero, "
                "and gradients are small.",
                "a softmax or sigmoid at the end of the model, on top of the one in the loss.",
                [
                    "Use `log_softmax` instead of `softmax`, or `cross_entropy` on logits."
                    if function == "nll_loss"
                    else "Remove the softmax or sigmoid at the end of the model; apply it only where you need "
                    "probabilities."
                ],
                step=1,
                function=function,
            )
            return
    if loop.looks and all(look.squashed for look in loop.looks):
        yield issue(
            "double_softmax",
            IssueSeverity.HIGH,
            "the loss applies `log_softmax` to the output of a softmax: it cannot fall to zero, and gradients are "
            "small.",
            "a softmax at the end of the model, on top of the one in the loss.",
            ["Remove the softmax at the end of the model; apply it only where you need probabilities."],
            step=1,
            function="log_softmax",
        )


def summed_over(loop: Loop) -> Iterator[Issue]:
    """Probabilities that add up to 1 over the batch, or over positions, instead of over the classes."""
    calls = [call for _, call in loop.calls(*CLASSES)]
    if calls and all(call.summed_over is not None for call in calls):
        call = calls[-1]
        what = "the samples of a batch" if call.summed_over == 0 else f"dimension {call.summed_over}"
        yield issue(
            "softmax_dimension",
            IssueSeverity.HIGH,
            f"the probabilities given to `{call.function}` add up to 1 over {what}, not over the {call.classes} "
            "classes: classes do not compete, and a prediction depends on the rest of its batch.",
            "a softmax or log_softmax over the wrong dimension.",
            [
                "Take it over the classes: `log_softmax(x, dim=1)`, for (N, C) and (N, C, …); or give the logits to "
                "`cross_entropy`."
            ],
            step=1,
            dimension=call.summed_over,
        )


def out_of_reach(loop: Loop) -> Iterator[Issue]:
    """Targets that the activation at the end of the model cannot give."""
    calls = [call for _, call in loop.calls(*REGRESSION) if call.of_output]
    bounds = {call.bound for call in calls}
    left = median([call.unreachable or 0.0 for call in calls] or [0.0])
    if len(bounds) != 1 or not (bound := bounds.pop()) or left < _OUT_OF_REACH:
        return
    outside = median(call.outside or 0.0 for call in calls)
    found = issue(
        "output_range",
        IssueSeverity.HIGH,
        f"{percent(outside)} of the targets are {_RANGES[bound]}, out of reach of the {bound} at the end of the model: "
        f"the squared error cannot fall below {plain(left, 2)} times their variance.",
        f"a {bound} on the output of a regression whose targets have another range.",
        [
            f"Remove the {bound} at the end of the model.",
            "Or scale the targets into its range, and undo that when you predict.",
        ],
        layer=loop.network.output_layer if loop.network is not None else "model",
        step=1,
        bound=bound,
        unreachable=left,
        outside=outside,
    )
    yield replace(found, issue_type=IssueType.DEAD if bound == "relu" else IssueType.SATURATION)


def rectified(loop: Loop) -> Iterator[Issue]:
    """Logits that cannot be negative."""
    calls = [call for _, call in loop.calls("cross_entropy")]
    if not calls or not all(call.of_output and call.bound == "relu" for call in calls):
        return
    found = issue(
        "output_range",
        IssueSeverity.LOW if fell_to(loop.losses, _LEARNED) else IssueSeverity.MEDIUM,
        "the logits given to `cross_entropy` went through a ReLU: none can be negative, and a class whose logit is cut "
        "off at zero gets no gradient.",
        "a ReLU behind the last layer.",
        ["Remove the ReLU behind the last layer: the loss takes logits of any sign."],
        layer=loop.network.output_layer if loop.network is not None else "model",
        step=1,
        bound="relu",
    )
    yield replace(found, issue_type=IssueType.DEAD)
