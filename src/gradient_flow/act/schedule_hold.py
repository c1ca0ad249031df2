"""Holding learning-rate schedules for a step that was skipped."""

from __future__ import annotations

from typing import Any


class ScheduleHold:
    """Makes the next `scheduler.step()` do nothing, once: the optimizer step it belongs to did not happen.

    For one schedule or several that move with every optimizer step; none is fine too. The hold of each ends with that
    call, or by `release()`.
    """

    def __init__(self, schedulers: Any) -> None:
        given = schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]
        self._schedulers = [scheduler for scheduler in given if scheduler is not None]

    def hold(self) -> None:
        """Let the next call pass without effect."""
        for scheduler in self._schedulers:
            scheduler.step = _ignored_once(scheduler)

    def release(self) -> None:
        """Let the schedules go on."""
        for scheduler in self._schedulers:
            vars(scheduler).pop("step", None)


def _ignored_once(scheduler: Any) -> Any:
    def ignore(*_args: Any, **_kwargs: Any) -> None:
        vars(scheduler).pop("step", None)

    return ignore
