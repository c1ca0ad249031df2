"""Alerts while a training runs: a message for each new issue, to a webhook, a command or a function.

Everything but a glance at a flag happens in a thread of its own: reading the run, the verdict, the message. It takes at
most a hundredth of the time, and whatever goes wrong is one warning.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gradient_flow.diagnosis.issue import Diagnosis, Issue, IssueSeverity
from gradient_flow.diagnosis.verdict import verdict
from gradient_flow.errors import InputError, warn
from gradient_flow.record.ending import Ending
from gradient_flow.record.run import Run, run_of_lines
from gradient_flow.record.run_lines import FileLines

INTERVAL: Final = 5.0
"""Seconds between two verdicts at least."""
PATIENCE: Final = 100.0
"""A verdict is taken anew once this many times the time has passed that the last one took."""
TIMEOUT: Final = 10.0
"""Seconds that a webhook or a command may take."""
LAST_WORDS: Final = 15.0
"""Seconds that the end of a training waits for messages that are on their way."""

Lines = Sequence[Mapping[str, Any]]


def checked_target(alert: Any) -> Callable[[str, Issue | None], object]:
    """A function that sends a message, from what `watch(alert=…)` takes."""
    if callable(alert):
        return lambda text, issue: alert(text, issue)
    if isinstance(alert, str) and alert.startswith(("http://", "https://")):
        return lambda text, _issue: _post(alert, text)
    if isinstance(alert, str) and alert.strip() and "://" not in alert.split()[0]:
        return lambda text, issue: _call(shlex.split(alert), text, issue)
    if isinstance(alert, (list, tuple)) and alert and all(isinstance(part, str) for part in alert):
        return lambda text, issue: _call(list(alert), text, issue)
    raise InputError(
        "`alert` must be the address of a webhook (https://…), a command, or a function (text, issue); got "
        f"{_hidden(alert)}. A command is a text or a list of texts; the message becomes its last argument."
    )


def _post(url: str, text: str) -> None:
    """As Slack, Mattermost, Rocket.Chat and Discord (at `/slack`) take it."""
    body = json.dumps({"text": text}).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        answer.read(1024)


def _call(command: list[str], text: str, issue: Issue | None) -> None:
    """The message as last argument, everything as JSON on standard input."""
    given = {"text": text, "issue": None if issue is None else issue.to_dict()}
    subprocess.run(
        [*command, text],
        input=json.dumps(given).encode(),
        timeout=TIMEOUT,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _hidden(alert: Any) -> str:
    """What came, without what may be a secret: the address of a webhook is one."""
    return f"a text with {alert.partition('://')[0]!r}://" if isinstance(alert, str) and "://" in alert else repr(alert)


class Alerts:
    """Judges a run in the background and sends one message per type and cause of issue."""

    def __init__(self, alert: Any, name: str, *, interval: float = INTERVAL) -> None:
        self._send, self._name, self._interval = checked_target(alert), name, interval
        self._told: set[tuple[str, str]] = set()
        self._failed = False
        self._lines: Lines | None = None
        self._wanted, self._arrived, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._run: Run | None = None
        self.sent = 0
        """Messages so far."""

    def note(self, path: Path | None, lines: Callable[[], Lines]) -> None:
        """Called with every record, on the training's thread: hands the run over where that is asked for."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="gradient-flow-alerts", daemon=True)
            self._wanted.set()
            self._thread.start()
        if self._wanted.is_set():
            self._wanted.clear()
            if path is not None:
                self._run = self._run or Run(FileLines(path))  # read by the thread alone
            else:
                self._lines = lines()
            self._arrived.set()

    def close(self, found: Diagnosis | None, ending: Ending) -> None:
        """Send what the last verdict says and, unless the run ended well, how it ended; waits briefly for delivery."""
        self._stop.set()
        self._arrived.set()
        last = threading.Thread(target=self._last_words, args=(found, ending), daemon=True)
        try:
            last.start()
        except RuntimeError:  # the interpreter is ending and starts no thread any more
            self._last_words(found, ending)
        else:
            last.join(LAST_WORDS)

    def _last_words(self, found: Diagnosis | None, ending: Ending) -> None:
        if self._thread is not None:
            self._thread.join(LAST_WORDS)
        if found is not None:
            self._tell(found)
        if ending.failed:
            self._try(f"{self._name}: {ending.sentence}", None)

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._arrived.wait()
            self._arrived.clear()
            if self._stop.is_set():
                return
            start = time.monotonic()
            try:
                self._tell(self._judged())
            except Exception as problem:  # a thread has no caller to raise to
                self._complain(problem)
            self._stop.wait(max(self._interval, PATIENCE * (time.monotonic() - start)))
            self._wanted.set()

    def _judged(self) -> Diagnosis:
        if self._run is not None:
            self._run.update()
            return verdict(self._run)
        lines, self._lines = self._lines, None
        return verdict(run_of_lines(lines or ()))

    def _tell(self, found: Diagnosis) -> None:
        for issue in found:
            key = issue.issue_type.name, issue.code
            if issue.severity < IssueSeverity.MEDIUM or key in self._told:
                continue
            self._told.add(key)
            self._try(self._message(issue), issue)

    def _message(self, issue: Issue) -> str:
        lines = [f"{self._name}: [{issue.severity}] {issue.heading}: {issue.message}"]
        lines += [f"Likely cause: {issue.cause}"] if issue.cause else []
        return "\n".join([*lines, *(f"What to do: {advice}" for advice in issue.advice[:1])])

    def _try(self, text: str, issue: Issue | None) -> None:
        try:
            self._send(text, issue)
            self.sent += 1
        except Exception as problem:  # host unreachable, command failed: training must not notice
            self._complain(problem)

    def _complain(self, problem: Exception) -> None:
        if not self._failed:
            self._failed = True
            # Not what the exception says: it may hold the address, which is a secret.
            warn(f"An alert could not be sent ({type(problem).__name__}); training continues.", stacklevel=2)
