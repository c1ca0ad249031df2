"""How a run ended: finished, failed, interrupted; or that it runs, or has been silent for a while."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gradient_flow.record.redact import clean_text
from gradient_flow.record.run_lines import is_step, newest_part

if TYPE_CHECKING:
    from gradient_flow.record.event import Event
    from gradient_flow.record.run import Run

FINISHED: Final = "finished"
FAILED: Final = "failed"
INTERRUPTED: Final = "interrupted"
SILENT: Final = "silent"
RUNNING: Final = "running"
_TOLD: Final = (FINISHED, FAILED, INTERRUPTED)
"""States that an end line can have."""
STILL_RUNNING: Final = 60.0
"""Seconds since the last change of the file within which a run without an end is taken to be running."""
BY_SIGNAL: Final = (130, 143)
"""Exit statuses that stand for SIGINT and SIGTERM."""
_HINTS: Final = {
    "modified by an inplace operation": "If a state is carried from step to step, `.detach()` it before the next one.",
    "the graph a second time": "`.detach()` what is carried from step to step, such as a hidden state.",
    "does not require grad and does not have a grad_fn": "The loss is cut off from the model: by `no_grad`, "
    "`.detach()`, `.item()`, or because every parameter is frozen.",
}
"""What to do about errors of autograd whose own words do not say it."""
_LONGEST: Final = 200
"""Letters of an exception's message within a sentence; the whole of it is in the file."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The state of a run, and what ended it."""

    state: str
    """`finished`, `failed`, `interrupted`, `silent` or `running`."""
    error: str = ""
    """Class of the exception that ended it."""
    message: str = ""
    """What the exception said, without secrets and names."""
    step: int | None = None
    """The last step."""
    since: str = ""
    """Of a silent run: when the last news came, in UTC."""

    @classmethod
    def by(cls, error: BaseException | None, step: int | None = None) -> Ending:
        """The ending that an exception stands for; without one the run finished."""
        state = _state_by(error)
        if error is None or state == FINISHED:
            return cls(state=FINISHED, step=step)
        try:
            said = str(error.code if isinstance(error, SystemExit) else error)
        except Exception:  # a `__str__` that raises
            said = ""
        return cls(state=state, error=type(error).__name__, message=clean_text(said), step=step)

    @property
    def failed(self) -> bool:
        """Whether an error ended the run."""
        return self.state == FAILED

    @property
    def ended(self) -> bool:
        """Whether the run itself said that it is over."""
        return self.state in _TOLD

    @property
    def what(self) -> str:
        """What ended it, in a few words: `ValueError: bad batch`."""
        said = _beginning(self.message).rstrip(".")
        words = [text for text in (self.error, said) if text]
        return ": ".join(words) or "an unknown error"

    @property
    def sentence(self) -> str:
        """How it ended, in a sentence; empty for a run that finished or still runs.

        >>> Ending(state="failed", error="ValueError", message="bad batch", step=41).sentence
        'The run failed at step 41 with ValueError: bad batch.'
        """
        if self.state == FAILED:
            how = " with" if self.error or not self.message else ":"
            hint = next((f" {hint}" for words, hint in _HINTS.items() if words in self.message), "")
            return f"The run failed{_at(self.step)}{how} {self.what}{'' if self.what.endswith('…') else '.'}{hint}"
        if self.state == INTERRUPTED:
            return f"The run was interrupted{_at(self.step)}."
        if self.state == SILENT:
            since = f" since {self.since}" if self.since else ""
            return f"Silent{since}{_at(self.step, ', ')}: killed, stalled, or in a long evaluation."
        return ""

    def to_dict(self) -> dict[str, Any]:
        """As plain values; what is not known is left out."""
        plain = {"state": self.state, "error": self.error, "message": self.message, "since": self.since}
        return {name: value for name, value in plain.items() if value} | (
            {} if self.step is None else {"step": self.step}
        )

    @classmethod
    def from_dict(cls, plain: Any) -> Ending | None:
        """What `to_dict` made plain values of; None for anything else."""
        if not isinstance(plain, Mapping) or plain.get("state") not in (*_TOLD, SILENT, RUNNING):
            return None
        texts = {name: value for name in ("error", "message", "since") if isinstance(value := plain.get(name), str)}
        step = plain.get("step")
        return cls(state=plain["state"], step=step if is_step(step) else None, **texts)


def ending_of(run: Run) -> Ending | None:
    """How a run ended, or whether it goes on; None for an analysis or lists of statistics, which are no training."""
    if run.end is None and (run.in_memory and run.started is None):
        return None
    return ending(run.end, None if run.in_memory else run.path, run.last_step)


def ending(end: Event | None, path: Path | None, last_step: int | None) -> Ending:
    """The same from the end line, if there is one, and the file."""
    if end is not None:
        return _told_by(end, last_step)
    if path is None:
        return Ending(state=RUNNING, step=last_step)
    newest = newest_part(path)[1]
    try:
        changed = newest.stat().st_mtime
    except OSError:
        return Ending(state=SILENT, step=last_step)
    if time.time() - changed < STILL_RUNNING or has_writer(path):
        return Ending(state=RUNNING, step=last_step)
    since = datetime.fromtimestamp(changed, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return Ending(state=SILENT, step=last_step, since=since)


def has_writer(path: Path) -> bool:
    """Whether a process holds the lock of the run file: it is alive, even if it has long been silent."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        return False
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        # Shared, and released at once: two readers do not see each other.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(handle)
    return False


def _told_by(end: Event, last_step: int | None) -> Ending:
    known = Ending.from_dict(end.data.get("ending"))
    steps = end.data.get("steps")
    step = steps if is_step(steps) else last_step
    if known is not None:
        return known if known.step is not None else replace(known, step=step)
    return Ending(state=FINISHED, step=step)  # written by an earlier version


def _beginning(message: str) -> str:
    """The first words of a message, on one line: exceptions say what happened first, and hints last."""
    line = " ".join(message.split())
    if len(line) <= _LONGEST:
        return line
    head = line[: _LONGEST - 1]
    words = head.rpartition(" ")[0]
    return f"{words} …" if words else f"{head}…"


def _state_by(error: BaseException | None) -> str:
    if error is None or isinstance(error, GeneratorExit):
        return FINISHED
    if isinstance(error, SystemExit):
        if error.code is None or error.code == 0:
            return FINISHED
        return INTERRUPTED if error.code in BY_SIGNAL else FAILED
    # torchrun raises `SignalException` where a signal tells the workers to stop.
    by_signal = isinstance(error, KeyboardInterrupt) or type(error).__name__ == "SignalException"
    return INTERRUPTED if by_signal else FAILED


def _at(step: int | None, before: str = " ") -> str:
    return "" if step is None else f"{before}before the first step" if step == 0 else f"{before}at step {step:,}"
