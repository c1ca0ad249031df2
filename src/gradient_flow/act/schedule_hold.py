"""Holding a learning-rate schedule for a step that was skipped."""

from __future__ import annotations

from typing import Any


class ScheduleHold:
    """Makes the next `scheduler.step()` do nothing, once: the optimizer step it belongs to did not happen.

    For schedules that move with every optimizer step. The hold ends with that call, or by `release()`.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def hold(self) -> None:
        """Let the next call pass without effect."""
        self._scheduler.step = self._ignore

    def release(self) -> None:
        """Let the schedule go on."""
        vars(self._scheduler).pop("step", None)

    def _ignore(self, *_args: Any, **_kwargs: Any) -> None:
        self.release()
