"""How a watch ends: by `close`, a `with` block, the interpreter's exit, or garbage collection."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.diagnosis.verdict import verdict
from gradient_flow.errors import warn
from gradient_flow.flow.recorder import Recorder
from gradient_flow.record.ending import Ending
from gradient_flow.record.event import END, Event

if TYPE_CHECKING:
    from gradient_flow.flow.flow import Flow

_OPEN: Final[weakref.WeakSet[Flow]] = weakref.WeakSet()
"""Flows that are still open."""
_registered: list[bool] = []


def end_run(recorder: Recorder, steps: int, ending: Ending) -> Diagnosis | None:
    """Write the end: how it ended and, into a file, the verdict at this time, which is returned."""
    found = None
    data: dict[str, Any] = {"steps": steps, "ending": ending.to_dict()}
    if recorder.writer is not None and recorder.writer.active:
        found = verdict(recorder.run)
        found.ending = ending
        data |= {"status": found.status, "message": found.message, "verdict": found.to_dict()}
    recorder.add_event(Event(kind=END, data=data))
    return found


def close_at_exit(flow: Flow, recorder: Recorder) -> Any:
    """Close a flow when the interpreter exits or the flow is dropped. Returns a function that cancels this.

    An exception that ends the interpreter has been reported by then; where it was, the run failed.
    """
    dropped = weakref.finalize(flow, _end_dropped, recorder, os.getpid())
    dropped.atexit = False  # by then `_close_all` has been there
    if not _registered:  # after a finalizer was made: exit handlers are called last in, first out
        _registered.append(True)
        atexit.register(_close_all)
    _OPEN.add(flow)
    reference = weakref.ref(flow)  # the flow keeps this function: with itself in it, it would wait for the collector

    def call_off() -> None:
        alive = reference()
        if alive is not None:
            _OPEN.discard(alive)
        dropped.detach()

    return call_off


def ending_at_exit() -> Ending:
    """How the interpreter ends: by the exception it reported last, unless a person works at its prompt."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return Ending.by(None)  # the last exception is one of many, and ended nothing
    return Ending.by(getattr(sys, "last_exc", None) or getattr(sys, "last_value", None))


def _close_all() -> None:
    ending = ending_at_exit()
    for flow in list(_OPEN):
        with suppress(Exception):  # nothing of ours may change how the process ends
            flow.close(ending)


def _end_dropped(recorder: Recorder, process: int) -> None:
    """A flow went out of use without `close()`: its records are complete as far as it knows."""
    if os.getpid() != process:
        return
    with suppress(Exception):  # exceptions in a finalizer reach no caller
        if not len(recorder.history):
            warn(
                "A watch was dropped before its first step, so nothing was recorded. Keep what gf.watch returns: "
                "`flow = gf.watch(...)`, or `with gf.watch(...) as flow:`.",
                stacklevel=3,
            )
        recorder.move_on(all_of_them=True)
        last = recorder.history.lines[-1]["step"] if len(recorder.history) else 0
        end_run(recorder, int(last), Ending.by(None, int(last)))
        recorder.close()
