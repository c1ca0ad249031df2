"""LRU cache of open runs: kept ready, read to the end in the background, dropped when others are opened."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any, Final
from weakref import WeakValueDictionary

from gradient_flow.errors import GradientFlowError
from gradient_flow.fleets.association import SICK, associations
from gradient_flow.fleets.digest import settings_of, verdict_row
from gradient_flow.fleets.work import FEW, make_digests
from gradient_flow.record.ending import STILL_RUNNING
from gradient_flow.record.run_folder import ITSELF
from gradient_flow.record.run_lines import FILE_NAME
from gradient_flow.report.live_run import LiveRun
from gradient_flow.report.serve.run_ids import RunFolder
from gradient_flow.report.serve.run_list import Judged, RunList, varying_settings

MOST_OPEN: Final = 6
"""Runs kept ready at once; one takes up to 60 MB and what its steps need."""
_MOST_SETTINGS: Final = 5
"""Settings that the list names."""


class LiveRuns:
    """The runs of a folder, for the server. Methods may block; each is safe to call from any thread."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.stopping = threading.Event()
        self._list = RunList(folder)
        self._open: WeakValueDictionary[str, LiveRun] = WeakValueDictionary()
        self._recent: OrderedDict[str, LiveRun] = OrderedDict()
        self._judged: dict[str, Judged] = {}
        self._kept = 0
        self._settings: tuple[tuple[int, int], list[str]] | None = None
        self._lock = threading.Lock()
        self._list_lock = threading.Lock()
        self._refining: set[str] = set()
        self._failed: dict[str, int] = {}
        """Run → its size when reading it in the background failed."""
        self._judging = False
        self._preparing = False
        """Whether a run that is all of the folder is being read for its first page."""

    def facts(self) -> tuple[list[dict[str, Any]], list[str]]:
        """What the list of runs shows, and the names of the settings in each entry.

        Verdicts that are not known yet are taken in the background.
        """
        with self._list_lock:
            entries = self._list.facts(self._judged)
            names = self._varying()
        for entry in entries:
            known = self._judged.get(entry["id"], (0, {}))[1].get("settings") or {}
            entry["settings"] = [known.get(name) for name in names]
            digest = self._open.get(entry["id"])
            if digest is not None:
                entry["recorded_steps"] = len(digest.run) or None
        return entries, names

    def settings(self) -> list[dict[str, str]]:
        """Settings that go with sickness beyond chance, of the runs that are judged."""
        rows = [row for _, row in list(self._judged.values()) if row.get("healthy") is not None]
        causes = [None if row["healthy"] else str(row.get("cause")) for row in rows]
        found = associations([row.get("settings") or {} for row in rows], causes, [row.get("layer") for row in rows])
        return [
            {"cause": "sick" if each.cause == SICK else each.cause, "sentence": each.sentence}
            for each in found
            if each.significant
        ][:_MOST_SETTINGS]

    def digest(self, run_id: str) -> LiveRun:
        """The run of an id, kept ready; `KeyError` if there is none."""
        file = self.folder.file(run_id)
        with self._lock:
            digest = self._open.get(run_id) or LiveRun(file)  # also one that only a stream still holds
            self._open[run_id] = self._recent[run_id] = digest
            self._recent.move_to_end(run_id)
            while len(self._recent) > MOST_OPEN:
                self._recent.popitem(last=False)
        return digest

    def refine(self, run_id: str) -> None:
        """Start to read what is pending of an open run and to judge it, unless that is under way."""
        with self._lock:
            digest = self._open.get(run_id)
            if digest is None or digest.complete or run_id in self._refining:
                return
            if self._failed.get(run_id) == digest.run.size:
                return  # it would fail again
            self._refining.add(run_id)
        self._start(lambda: self._refine(run_id, digest))

    def prepare(self) -> None:
        """Start to read the run, or to list the runs: they are there when the browser asks."""
        self._preparing = (self.folder.root / FILE_NAME).is_file()
        self._start(self._prepare if self._preparing else self._prepare_list)

    def judge_listed(self) -> None:
        """Start to take the verdicts of the listed runs, unless that is under way."""
        with self._lock:
            if self._judging:
                return
            self._judging = True
        self._start(self._judge_listed)

    def _start(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, daemon=True).start()

    def _prepare_list(self) -> None:
        with suppress(GradientFlowError, OSError):  # the page says what is wrong
            self.facts()

    def _prepare(self) -> None:
        with suppress(GradientFlowError, KeyError):  # the page says what is wrong with the file
            digest = self.digest(ITSELF)
            digest.update()
            digest.layers(at_once=True)
        self._preparing = False

    def _refine(self, run_id: str, digest: LiveRun) -> None:
        size = digest.run.size
        try:
            found = digest.diagnosis(at_once=False)
            while digest.pending and not self.stopping.is_set():
                digest.read_some()
                time.sleep(0)  # let a waiting request have its turn
            if digest.judged and found is not None:
                self._keep(run_id, digest.run.size, {**verdict_row(found), "settings": settings_of(digest.run)})
        except (GradientFlowError, OSError):  # the next request says what is wrong with the file
            self._failed[run_id] = size
        except Exception:  # a thread has nobody to raise it to
            self._failed[run_id] = size
            logging.getLogger("gradient_flow").exception("Reading a run in the background failed.")
        finally:
            self._refining.discard(run_id)

    def _judge_listed(self) -> None:
        try:
            with self._list_lock:
                listed = self._list.changes()
            due, files = [], []
            for run_id, size, changed in listed:
                opening = run_id in self._refining or (run_id == ITSELF and self._preparing)
                if opening and run_id not in self._judged:
                    continue  # a page of it is being made, which judges it as well: not twice at once
                with suppress(KeyError):  # gone meanwhile
                    if self._is_news(run_id, size, changed):
                        files.append(str(self.folder.file(run_id)))
                        due.append((run_id, size))
            start = time.monotonic()
            # Very many are judged in a process beside this one; of a few each second half of the time is for those who
            # look at pages.
            aside = len(files) > FEW
            with closing(make_digests(files, 1 if aside else 0)) as made:
                for at, digest in made:
                    self._keep(*due[at], digest["run"])
                    if self.stopping.wait(0.0 if aside else time.monotonic() - start):
                        return
                    start = time.monotonic()
        finally:
            self._judging = False

    def _keep(self, run_id: str, size: int, row: Mapping[str, Any]) -> None:
        self._judged[run_id] = size, row
        self._kept += 1

    def _varying(self) -> list[str]:
        """The settings in which the judged runs differ; found again once there are other verdicts."""
        state = len(self._judged), self._kept
        if self._settings is None or self._settings[0] != state:
            self._settings = state, varying_settings(dict(self._judged))  # a copy: a thread may add to it
        return self._settings[1]

    def _is_news(self, run_id: str, size: int, changed: float) -> bool:
        """Whether a verdict is due: a run that goes on is judged again once it has grown by a tenth."""
        before = self._judged.get(run_id, (0, {}))[0]
        return size != before and (size > 1.1 * before or time.time() - changed > STILL_RUNNING)
