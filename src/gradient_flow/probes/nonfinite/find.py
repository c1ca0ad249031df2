"""Replay a step that gave NaN or Inf, and find the first operation whose non-finite value reached the loss."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gradient_flow.capture.model_state import left_as_found
from gradient_flow.capture.parameters import module_parameters
from gradient_flow.capture.random_state import RandomState
from gradient_flow.capture.replay import StepEnds, loss_in, undisturbed
from gradient_flow.errors import InputError
from gradient_flow.probes.nonfinite.advice import explain
from gradient_flow.probes.nonfinite.attribution import first
from gradient_flow.probes.nonfinite.fault import Explanation, Fault
from gradient_flow.probes.nonfinite.operators import familiar_name
from gradient_flow.probes.nonfinite.origin import NonFiniteOrigin
from gradient_flow.probes.nonfinite.origins import Origin
from gradient_flow.probes.nonfinite.sentences import explain_given, not_reproduced, what_happened
from gradient_flow.probes.nonfinite.tensor_range import has_nonfinite
from gradient_flow.probes.nonfinite.trace import OperationTrace, in_short
from gradient_flow.probes.nonfinite.where import CodeLine

__all__ = ["NonFiniteOrigin", "RandomState", "find_nonfinite"]


def find_nonfinite(
    step_fn: Callable[[], Any], model: nn.Module, *, rng_state: RandomState | None = None
) -> NonFiniteOrigin:
    """Run a step under watch and name the first operation whose NaN or Inf reached the loss or a gradient.

    `step_fn()` runs the forward pass and returns the loss, alone, first in a tuple, or under `"loss"` in a mapping; the
    backward pass is run here. It may also run `backward()` itself and return anything. `rng_state`, taken before the
    step went wrong, repeats its random numbers. Weights, buffers, gradients, modes and random states are afterwards as
    they were, and an `optimizer.step()` in `step_fn` ends the replay before it changes anything. If the step raises and
    nothing non-finite came before, that exception comes out.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> origin = find_nonfinite(lambda: (model(torch.ones(3, 2)) * 0).log().mean(), model)
    >>> origin.operator, origin.phase, origin.kind
    ('log', 'forward', 'operation')
    """
    if not callable(step_fn):
        raise InputError(f"`step_fn` must be a function without arguments that runs one step; got {step_fn!r:.80}.")
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` must be a torch.nn.Module; got {type(model).__name__}.")
    if rng_state is not None and not isinstance(rng_state, RandomState):
        raise InputError(f"`rng_state` must come from `RandomState.capture()`; got {type(rng_state).__name__}.")
    found_state = RandomState.capture()
    try:
        with left_as_found(model), undisturbed():
            if rng_state is not None:
                rng_state.restore()
            replay = _Replay(OperationTrace(model))
            try:
                replay.run(step_fn)
                origin, parameter = replay.blame(model)
            finally:
                replay.trace.put_gradients_back()
    finally:
        found_state.restore()
    if origin is not None:
        return _report(origin, parameter, replay)
    if replay.problem is not None:
        raise replay.problem
    bad = [name for name, tensor in module_parameters(model) if has_nonfinite(tensor)]
    message = not_reproduced(
        loss=replay.loss_value,
        backward=replay.trace.saw_backward,
        replayed=rng_state is not None,
        cut_short=replay.cut_short,
        bad_parameters=bad,
    )
    return NonFiniteOrigin(found=False, kind="none", message=message, trouble=replay.trace.trouble)


@dataclass
class _Replay:
    """One run of a step under watch, and what came of it."""

    trace: OperationTrace
    problem: Exception | None = None
    loss_origin: Origin | None = None
    loss_value: float | None = None
    cut_short: bool = False
    """Whether an optimizer ended it."""

    def run(self, step_fn: Callable[[], Any]) -> None:
        """Run the step, and the backward pass unless the step did or the loss is already bad."""
        try:
            with self.trace:
                returned = step_fn()
            loss = loss_in(returned)
            if loss is None:
                if not self.trace.saw_backward:
                    raise InputError(
                        f"`step_fn` must return the loss as a tensor or run `backward()` itself; got {returned!r:.80}."
                    )
                return
            self.loss_origin = self.trace.origin_of(loss)
            self.loss_value = loss.item() if loss.numel() == 1 and not loss.is_complex() else None
            if self.loss_origin is None and loss.requires_grad and not self.trace.saw_backward:
                with self.trace:
                    torch.autograd.backward(loss, None if loss.numel() == 1 else torch.ones_like(loss))
        except StepEnds:
            self.cut_short = True
        except InputError:
            raise
        except Exception as problem:
            self.problem = problem

    def blame(self, model: nn.Module) -> tuple[Origin | None, str | None]:
        """The origin to report, and the parameter whose gradient it reached, if it was not in the loss."""
        trace = self.trace
        if trace.bad_losses or self.loss_origin is not None:
            return (trace.bad_losses[0] if trace.bad_losses else self.loss_origin), None
        reached = list(trace.bad_gradients)
        if not any(name for name, _ in reached):
            # Sharding and bucketing bring gradients to the parameters another way than autograd itself does.
            gradients = [(name, parameter.grad) for name, parameter in module_parameters(model)]
            origins = [(name, trace.origin_of(gradient)) for name, gradient in gradients if gradient is not None]
            reached += [(name, origin) for name, origin in origins if origin is not None]
        if reached:
            blamed = first([origin for _, origin in reached])
            return blamed, next((name for name, origin in reached if origin is blamed and name is not None), None)
        if self.problem is None:
            return None, None
        origin = trace.at_exception or trace.latest
        return (None if origin is None or origin.meant else origin), None


def _report(origin: Origin, parameter: str | None, replay: _Replay) -> NonFiniteOrigin:
    place = origin.place
    loss_is_finite = not replay.trace.bad_losses and replay.loss_origin is None and replay.problem is None
    hidden = origin.hidden if loss_is_finite else None
    report = NonFiniteOrigin(
        found=True,
        kind=origin.kind,
        message="",
        phase=origin.phase,
        module=place.module,
        module_type=place.module_type,
        operator=origin.operator or None,
        aten=origin.aten or None,
        file=place.file,
        line=place.line,
        function=place.function,
        code=place.code,
        library=_in_package(place),
        inputs=origin.inputs,
        outputs=origin.outputs,
        parameter=origin.name if origin.kind == "parameter" else parameter,
        buffer=origin.name if origin.kind == "buffer" else None,
        argument=origin.name if origin.kind == "input" else None,
        hidden_by=f"`{hidden[0]}`{_at(hidden[1])}" if hidden is not None else None,
        exception=in_short(replay.problem) if replay.problem is not None else None,
        trouble=replay.trace.trouble,
    )
    made_of = None
    if origin.came_from is not None:
        made_of = f"the Inf put in by `{origin.came_from.operator}`{_at(origin.came_from.place)}"
    why, advice = _explanation(report, origin, hidden[0] if hidden is not None else None)
    message = what_happened(report, made_of, origin.position, loss_is_finite)
    return replace(report, message=message, why=why, advice=advice)


def _explanation(report: NonFiniteOrigin, origin: Origin, hider: str | None) -> Explanation:
    if origin.kind != "operation":
        return explain_given(report)
    inner = familiar_name(re.sub(r"^aten\.|\..*$", "", origin.aten)).removesuffix("_")
    in_custom = origin.place.custom is not None
    return explain(
        Fault(
            operator=inner if in_custom else origin.operator.removesuffix(" backward").removesuffix("_"),
            inner=inner,
            phase=origin.phase,
            inputs=origin.inputs,
            outputs=origin.outputs,
            from_mask=origin.came_from is not None,
            unused=hider if origin.times_zero else None,
        )
    )


def _in_package(place: CodeLine) -> str | None:
    """`package/file.py:line`, without the folders where packages are installed."""
    if place.library is None:
        return None
    file, line = place.library
    return f"{re.split('(?:site|dist)-packages.', file)[-1]}:{line}"


def _at(place: CodeLine) -> str:
    return f" at {os.path.basename(place.file)}:{place.line}" if place.file is not None else ""
