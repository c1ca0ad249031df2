"""The steps of an analysis: batch, model, loss, backward, and the optimizer where there is one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import nn

from gradient_flow.capture.module_calls import tensors_in
from gradient_flow.capture.untouched import gradients_kept, nothing_changed
from gradient_flow.diagnosis.analysis_record import AnalysisRecord
from gradient_flow.errors import InputError
from gradient_flow.observation import Observer

if TYPE_CHECKING:
    from gradient_flow.measurement.game import FieldStats

_BAD_STEPS: Final = 3
"""After so many steps with something non-finite there is nothing new to learn."""


class Probe(Protocol):
    """A special measurement beside the general one."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *_: Any) -> Any: ...
    def after_step(self, inputs: Any, output: Any) -> None:
        """Once per step, after backward."""


def run_steps(
    model: nn.Module,
    input_fn: Callable[[], Any],
    loss_fn: Callable[[Any], torch.Tensor],
    *,
    steps: int,
    optimizer: torch.optim.Optimizer | None,
    in_place: bool,
    thresholds: Mapping[str, float],
    make_probe: Callable[[nn.Module], Probe] | None = None,
    progress: bool = False,
) -> tuple[AnalysisRecord, Probe | None]:
    """Run the steps and record what was seen. Without an optimizer, or on a copy, everything is left as found."""
    model = getattr(model, "_orig_mod", model)  # a compiled model hides its modules; the one inside computes the same
    with ExitStack() as stack:
        if optimizer is None or not in_place:
            stack.enter_context(nothing_changed(model))
        else:
            stack.enter_context(gradients_kept(model))
        if optimizer is not None and not in_place:
            model, optimizer = copy.deepcopy((model, optimizer))  # together, so that one holds the other's weights
        stack.enter_context(torch.enable_grad())
        probe = make_probe(model) if make_probe is not None else None
        if probe is not None:
            stack.enter_context(probe)
        observer = Observer(model, steps, optimizer)
        bad_steps = 0
        for index in _shown(steps, progress):
            finite = _one_step(index, model, input_fn, loss_fn, observer, probe)
            bad_steps += not finite
            if not finite:
                observer.watch_also(index + 1)
                if optimizer is not None or bad_steps == _BAD_STEPS:
                    break  # an update from here would only spread it over all weights
            if optimizer is not None:
                observer.before_update()
                _update(optimizer)
                observer.after_update()
        return observer.record(thresholds), probe


def _one_step(
    index: int, model: nn.Module, input_fn: Any, loss_fn: Any, observer: Observer, probe: Probe | None
) -> bool:
    observer.clear_gradients()
    with observer.step(index):
        inputs = input_fn()
        observer.on_inputs(tensors_in(inputs))
        output = call_model(model, inputs)
        loss = _checked_loss(loss_fn(output))
        observer.on_loss(loss)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        finite = observer.on_backward(index)
        if probe is not None:
            probe.after_step(inputs, output)
    return finite and math.isfinite(float(loss.detach()))


def gradient_field(model: nn.Module, input_fn: Any, loss_fn: Any, players: Any) -> FieldStats:
    """Divergence and rotation at the model's present weights, on one batch. A player is `(loss_fn, parameters)`."""
    from gradient_flow.measurement.game import field_stats

    if players is None:
        players = [(loss_fn, [parameter for parameter in model.parameters() if parameter.requires_grad])]
    with nothing_changed(model), torch.enable_grad():
        inputs = input_fn()
        return field_stats([(_loss_of(model, inputs, loss), list(parameters)) for loss, parameters in players])


def _loss_of(model: nn.Module, inputs: Any, loss_fn: Any) -> Callable[[], torch.Tensor]:
    return lambda: _checked_loss(loss_fn(call_model(model, inputs)))


def call_model(model: nn.Module, inputs: Any) -> Any:
    """A tuple or list is spread over the arguments, a mapping over the keywords, anything else is the argument."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def _checked_loss(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor):
        raise InputError(
            f"`loss_fn` must return a tensor of one element, got {type(loss).__name__}. Return the loss itself: "
            "`.item()` cuts it off from the model."
        )
    if loss.numel() != 1 or loss.is_complex():
        raise InputError(
            f"`loss_fn` must return a tensor of one real element, got shape {tuple(loss.shape)} and {loss.dtype}. "
            'Reduce it to one number, as `reduction="mean"` does.'
        )
    return loss.reshape(())


def _update(optimizer: torch.optim.Optimizer) -> None:
    try:
        optimizer.step()
    except TypeError as problem:
        if "closure" not in str(problem):
            raise
        raise InputError(
            f"`optimizer` ({type(optimizer).__name__}) needs a closure, which an analysis does not have. Analyze "
            "without an optimizer, or with another one."
        ) from problem


def _shown(steps: int, progress: bool) -> Iterator[int] | Sequence[int]:
    return _with_bar(steps) if progress else range(steps)


def _with_bar(steps: int) -> Iterator[int]:
    from rich.console import Console
    from rich.progress import track

    yield from track(range(steps), "Analyzing", console=Console(stderr=True), transient=True)
