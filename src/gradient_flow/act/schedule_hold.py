"""Holding learning-rate schedules for a step that was skipped."""

from __future__ import annotations

from typing import Any


class ScheduleHold:
    """Makes the next `scheduler.step()` do nothing, once: the optimizer step it belongs to did not happen.

    For one schedule or several that move with every optimizer step; none is fine too. The hold of each ends with that
    call, or by `release()`. While it lasts the schedule is of a class of ours, so its attributes, and with them its
    `state_dict()`, are as they were.
    """

    def __init__(self, schedulers: Any) -> None:
        given = schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]
        self._schedulers = [scheduler for scheduler in given if scheduler is not None]

    def hold(self) -> None:
        """Let the next call pass without effect."""
        for scheduler in self._schedulers:
            if not issubclass(type(scheduler), _Held):
                scheduler.__class__ = type(type(scheduler).__name__, (_Held, type(scheduler)), {})

    def release(self) -> None:
        """Let the schedules go on."""
        for scheduler in self._schedulers:
            if isinstance(scheduler, _Held):
                scheduler.__class__ = type(scheduler).__bases__[1]


class _Held:
    """Passes over one step of the schedule that it stands before."""

    def step(self, *_args: Any, **_kwargs: Any) -> None:
        self.__class__ = type(self).__bases__[1]  # what it was before
