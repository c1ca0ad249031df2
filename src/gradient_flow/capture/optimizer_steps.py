"""The moment before an optimizer step when all gradients are there, also where a closure makes them."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import torch

from gradient_flow.capture.arrivals import LateNumber, on_device
from gradient_flow.capture.compiled import breaks_graph
from gradient_flow.capture.parameters import ScaleAtClip
from gradient_flow.errors import InputError

Ready = Callable[[torch.optim.Optimizer, Any], object]


def stepping_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer whose step changes the weights, out of the wrappers that Accelerate and Lightning put around it.

    A wrapper never ran the constructor of its base class, so it has no hooks of its own; it holds the one that has.
    """
    while "_optimizer_step_pre_hooks" not in vars(optimizer):
        inner = vars(optimizer).get("optimizer", vars(optimizer).get("_optimizer"))
        if not isinstance(inner, torch.optim.Optimizer):
            raise InputError(
                f"`optimizer` must step like a torch optimizer; {type(optimizer).__name__} wraps "
                f"{type(inner).__name__}, which has no step hooks. Call `flow.step()` before each of its steps."
            )
        optimizer = inner
    return optimizer


class Shortcut(Protocol):
    """Takes ordinary passes and steps in few calls; what it does not take goes the general way."""

    def pass_begins(self, loss: torch.Tensor) -> Callable[[], object] | None:
        """A backward pass is about to begin; what to call once it has ended, or None if it is not taken."""

    def take(self, optimizer: torch.optim.Optimizer) -> bool:
        """A step without a closure is about to begin; whether it is taken."""

    def step_is_over(self) -> bool:
        """A step has ended; whether it was one that was taken."""


FindShortcut = Callable[[], Shortcut | None]
"""A weak reference to one, so that a hook keeps nothing alive."""


def no_shortcut() -> None:
    """Everything goes the general way."""


def before_each_step(optimizer: torch.optim.Optimizer, ready: Ready, shortcut: FindShortcut = no_shortcut) -> Any:
    """Call `ready(optimizer, loss)` before each step; `loss` is what a closure returned, if there was one.

    Returns the handle of the hook. With a closure (LBFGS) it is called after the closure's first evaluation, which is
    where the step starts.
    """

    def hook(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and args[0] is optimizer:  # `optimizer.step()`
            short = shortcut()
            if short is None or not short.take(optimizer):
                ready(optimizer, None)
            return None
        arguments = args[1:] if args and args[0] is optimizer else args
        closure = kwargs.get("closure", arguments[0] if arguments else None)
        if not callable(closure):
            ready(optimizer, None)
            return None
        telling = _once_ready(optimizer, closure, ready)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": telling}
        return tuple(telling if argument is closure else argument for argument in args), kwargs

    # The compiler would trace into the hook with `torch.compile(optimizer.step)`, and fail at what it finds there.
    return optimizer.register_step_pre_hook(breaks_graph(hook))


def after_each_step(
    optimizer: torch.optim.Optimizer,
    done: Callable[[torch.optim.Optimizer], object],
    shortcut: FindShortcut = no_shortcut,
) -> Any:
    """Call `done(optimizer)` after each step. Returns the handle of the hook."""

    def hook(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        short = shortcut()
        if short is None or not short.step_is_over():
            done(optimizer)

    return optimizer.register_step_post_hook(breaks_graph(hook))


def _once_ready(optimizer: torch.optim.Optimizer, closure: Callable[..., Any], ready: Ready) -> Callable[..., Any]:
    called = False

    def telling(*args: Any, **kwargs: Any) -> Any:
        nonlocal called
        loss = closure(*args, **kwargs)
        if not called:
            called = True
            ready(optimizer, loss)
        return loss

    return telling


def running_backward() -> int | None:
    """The number of the backward pass that this code runs inside of, as a hook does; None outside of one."""
    task = int(torch._C._current_graph_task_id())
    return None if task < 0 else task


def backward_depth() -> int:
    """How many backward passes are under way in this thread, one inside the other."""
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)
    code = getattr(run, "__code__", None)
    frame: FrameType | None = sys._getframe()
    depth = 0
    while frame is not None:
        depth += frame.f_code is code
        frame = frame.f_back
    return depth


def after_backward(done: Callable[[], object]) -> None:
    """Call `done()` once the backward pass that is running is over, before it returns to its caller."""
    engine: Any = torch.autograd.Variable._execution_engine  # torch gives it no types
    engine.queue_callback(done)


def late_scale(optimizer: torch.optim.Optimizer | None) -> float | LateNumber:
    """The loss scale still in the gradients, without a wait: fused steps are handed it, and divide by it."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else _late(scale)


def scale_now(scaler: Any) -> ScaleAtClip | None:
    """The loss scale, and which optimizers' gradients no longer carry it; None without a scaler in use."""
    if scaler is None or not scaler.is_enabled():
        return None
    return ScaleAtClip(_scale_of(scaler), frozenset(_unscaled(scaler)))


def _scale_of(scaler: Any) -> float | LateNumber:
    # torch has no public question for the scale that does not wait for it.
    scale = getattr(scaler, "_scale", None)
    return _late(scaler.get_scale() if scale is None else scale)


def scale_of_clip(
    noted: ScaleAtClip | None, scaler: Any, optimizer: torch.optim.Optimizer | None
) -> float | LateNumber:
    """The loss scale that was in gradients as they were clipped, asked as their optimizer steps.

    Only then is it known whether the scaler has to do with this optimizer at all: it has if it unscaled the gradients,
    or handed their scale to a fused step.
    """
    if noted is None:
        return late_scale(optimizer)  # still in them now, so it was then
    handed = getattr(optimizer, "grad_scale", None) is not None
    if id(optimizer) in noted.unscaled or (not handed and id(optimizer) not in _unscaled(scaler)):
        return 1.0
    return noted.scale


def _unscaled(scaler: Any) -> list[int]:
    # torch has no public question for this. Looked up without `[]`, which would make a state where there is none.
    states = getattr(scaler, "_per_optimizer_states", {})
    return [key for key, state in states.items() if getattr(state.get("stage"), "name", "READY") != "READY"]


def unscale_gradients(scaler: Any, optimizer: torch.optim.Optimizer) -> None:
    """Bring the gradients to their own scale and let the scaler look for overflow, unless that was done already."""
    if not scaler.is_enabled():
        return
    try:
        scaler.unscale_(optimizer)
    except RuntimeError as problem:
        if "already been called" not in str(problem):
            raise


def found_overflow(scaler: Any, optimizer: torch.optim.Optimizer | None) -> list[float | LateNumber]:
    """Above 0 if the scaler, or the fused step that it prepared, found this optimizer's gradients not finite.

    By device, without waiting for any.
    """
    found = getattr(optimizer, "found_inf", None)
    if found is not None:
        return [_late(found)]
    if scaler is None or optimizer is None or not scaler.is_enabled():
        return []
    # torch has no public question for this; unscale_() leaves the answer here, by device.
    by_device = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return [_late(value) for value in by_device.values()]


def _late(value: Any) -> float | LateNumber:
    return LateNumber(value) if on_device(value) else float(value)


class NotedScale:
    """The scale at one moment, and how many steps had been skipped by then; on a device both are on their way."""

    def __init__(self, watch: ScaleWatch, scale: float | LateNumber, scaler: Any) -> None:
        self.scale, self.scaler = scale, scaler
        self.skipped = 0
        self._watch = watch

    def ready(self) -> bool:
        """Whether the scale has come."""
        return not isinstance(self.scale, LateNumber) or self.scale.ready()

    def value(self) -> int:
        """Steps skipped by then, in all."""
        self._watch.settle(until=self)
        return self.skipped


class ScaleWatch:
    """Reads off the scale how many steps were skipped: each overflow multiplies it by the back-off factor."""

    def __init__(self) -> None:
        self.scale: float | None = None
        """The last that has come."""
        self.total = 0
        """Steps skipped so far, as far as that is known."""
        self._coming: deque[NotedScale] = deque()

    def note(self, scaler: Any) -> NotedScale:
        """Take the scale as it is now."""
        noted = NotedScale(self, _scale_of(scaler), scaler)
        self._coming.append(noted)
        self.settle()
        return noted

    def settle(self, *, until: NotedScale | None = None, wait: bool = False) -> None:
        """Count what has come, in order; with `wait` everything, else at least up to `until`."""
        while self._coming and (wait or until in self._coming or self._coming[0].ready()):
            noted = self._coming.popleft()
            before, self.scale = self.scale, float(noted.scale)
            if before is not None and self.scale < before:
                self.total += _overflows(before, self.scale, noted.scaler)
            noted.skipped = self.total


def _overflows(before: float, after: float, scaler: Any) -> int:
    return 1 if after <= 0 else max(1, round(math.log(after / before) / math.log(scaler.get_backoff_factor())))
