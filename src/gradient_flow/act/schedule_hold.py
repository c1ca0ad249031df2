"""Holding learning-rate schedules for a step that was skipped."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from gradient_flow.errors import InputError


class ScheduleHold:
    """Makes the next `scheduler.step()` a no-op, once: its optimizer step did not happen.

    For one schedule or several that move with every optimizer step; none is fine too. The hold of each ends with that
    call, or by `release()`. While it lasts the schedule is of a class of ours, so its attributes, and with them its
    `state_dict()`, are as they were. Copied or pickled it is a held schedule again.
    """

    def __init__(self, schedulers: Any) -> None:
        self._schedulers = _each(schedulers)

    def __bool__(self) -> bool:
        """Whether there is any schedule."""
        return bool(self._schedulers)

    def hold(self) -> None:
        """Let the next call pass without effect."""
        for scheduler in self._schedulers:
            _hold(scheduler)

    def release(self) -> None:
        """Let the schedules go on."""
        for scheduler in self._schedulers:
            if isinstance(scheduler, _Held):
                _release(scheduler)


def check_schedulers(schedulers: Any) -> None:
    """Raise now for a schedule that cannot be held: at a bad step it would end the training."""
    given = _each(schedulers)
    for position, scheduler in enumerate(given):
        name = f"scheduler[{position}]" if len(given) > 1 else "scheduler"
        if not callable(getattr(scheduler, "step", None)):
            raise InputError(f"`{name}` must have a `step()` to hold, got {type(scheduler).__name__}.")
        if isinstance(scheduler, _Held):
            continue
        try:
            _hold(scheduler)
            _release(scheduler)
        except TypeError as problem:
            raise InputError(
                f"`{name}` ({type(scheduler).__name__}) cannot be held for a skipped step: its class has "
                "`__slots__` or is not written in Python. Pass none, and step it only where `skipped` is False."
            ) from problem


def _each(schedulers: Any) -> list[Any]:
    given = schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]
    return [scheduler for scheduler in given if scheduler is not None]


class _Held:
    """Passes over one step of the schedule that it stands before."""

    def __getattribute__(self, name: str) -> Any:
        # Not a method: a `step` that was set on the schedule itself would come before it.
        return partial(_pass_over, self) if name == "step" else super().__getattribute__(name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class was made here and cannot be found by name, so the schedule is taken apart as what it is.
        _release(self)
        try:
            make, arguments, *rest = self.__reduce_ex__(protocol)
        finally:
            _hold(self)
        return _made_and_held, (make, arguments), *rest


def _pass_over(scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    if isinstance(scheduler, _Held):  # a reference to this `step` may outlive the hold
        _release(scheduler)


@lru_cache(maxsize=64)
def _held_class(kind: Any) -> type:
    return type(kind.__name__, (_Held, kind), {})


def _hold(scheduler: Any) -> None:
    if not isinstance(scheduler, _Held):
        kind: Any = type(scheduler)
        # Not by assignment: a `__setattr__` of the user's would see it.
        object.__setattr__(scheduler, "__class__", _held_class(kind))


def _release(scheduler: Any) -> None:
    object.__setattr__(scheduler, "__class__", type(scheduler).__bases__[1])


def _made_and_held(make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    scheduler = make(*arguments)
    _hold(scheduler)
    return scheduler
