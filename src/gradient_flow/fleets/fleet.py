"""`fleet`: all runs of a folder: which are sick, of what, where, since when, and which settings go with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from gradient_flow.diagnosis.issue import FAIL_ON, RULE_SET, IssueSeverity
from gradient_flow.errors import InputError, check_choice, check_whole
from gradient_flow.fleets.association import Association, associations
from gradient_flow.fleets.causes import Cause, causes_of
from gradient_flow.fleets.digest import DIGEST, MOST_ISSUES, Digest, rules_in_force
from gradient_flow.fleets.selection import ORDERS, condition_of
from gradient_flow.fleets.sources import Found, find_runs, is_remote, of_shard, parse_shard
from gradient_flow.fleets.store import MANY_PARTS, PART_ROWS, PART_RUNS, Store, home_of
from gradient_flow.fleets.tables import NAMES, Kept, Tables
from gradient_flow.fleets.work import make_digests
from gradient_flow.record.ending import RUNNING, SILENT, STILL_RUNNING, ending

MOST_LISTED: Final = 1000
MOST_CAUSES: Final = 100
MOST_ASSOCIATIONS: Final = 50

Progress = Callable[[int, int], None]
"""Told how many runs are read, of how many."""


def fleet(
    folder: str | Path,
    *,
    digests: str | Path | None = None,
    workers: int | None = None,
    ray: bool = False,
    shard: str | tuple[int, int] | None = None,
    update: bool = True,
    progress: Progress | None = None,
) -> Fleet:
    """All runs of a folder, judged. Only files that are new or have grown are read; the rest is known from before.

    Args:
        folder: a folder with runs at any depth, or an address that fsspec opens, such as `s3://bucket/runs`.
        digests: where what is known of the runs is kept. Default: `.gradient-flow` in the folder; of one that cannot
            be written to, in the cache of the user.
        workers: processes that read; None for one per core, 0 for none but this one.
        ray: read on a Ray cluster, that of `RAY_ADDRESS` or a local one.
        shard: `"2/8"`: only this share of the runs.
        update: False asks what is known and reads no run.
        progress: called with the number of runs read so far and the number to read.
    """
    if workers is not None:
        check_whole("workers", workers, 0)
    share = parse_shard(shard) if isinstance(shard, str) else shard
    found = [run for run in find_runs(folder) if share is None or of_shard(run.name, share)]
    store = Store(home_of(folder) if digests is None else Path(digests))
    tables = Tables(store)
    try:
        if update:
            _bring_up_to_date(found, store, tables, workers=workers, on_ray=ray, progress=progress)
            if len(store.parts()) > MANY_PARTS and share is None:
                tables.compact([run.name for run in found])
        return Fleet(folder, tables, found)
    except BaseException:
        tables.close()
        raise


def _bring_up_to_date(
    found: Sequence[Found],
    store: Store,
    tables: Tables,
    *,
    workers: int | None,
    on_ray: bool,
    progress: Progress | None,
) -> None:
    kept, rules = tables.kept(), rules_in_force()
    stale = [run for run in found if kept.get(run.name) != Kept(run.size, run.changed, rules, DIGEST)]
    if not stale:
        return
    waiting: list[tuple[Found, Digest]] = []
    rows = done = 0
    made = make_digests([run.file for run in stale], workers, on_ray=on_ray)
    try:
        for at, digest in made:
            waiting.append((stale[at], digest))
            rows += len(digest["layers"].get("layer", ()))
            done += 1
            if len(waiting) >= PART_RUNS or rows >= PART_ROWS:
                store.add(waiting, rules)
                waiting, rows = [], 0
            if progress is not None:
                progress(done, len(stale))
    finally:
        made.close()
        if waiting:  # also after Ctrl-C: what was read need not be read again
            store.add(waiting, rules)


class Fleet:
    """The runs of a folder: `print(fleet)`, `fleet.runs()`, `fleet.causes`, `fleet.settings`, `fleet.sql(…)`."""

    def __init__(self, folder: str | Path, tables: Tables, found: Sequence[Found]) -> None:
        self.folder = str(folder)
        self._tables = tables
        self._files = {run.name: run.file for run in found}
        opened = tables.open_runs()
        tables.show({run.name: _state_now(run) if run.name in opened else "" for run in found})

    def close(self) -> None:
        """Let go of the tables."""
        self._tables.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.counts["runs"]

    def __repr__(self) -> str:
        return f"Fleet({self.folder!r}, {len(self):,} runs, {self.counts['sick']:,} sick)"

    def __str__(self) -> str:
        lines = [self.sentence]
        lines += [f"  {cause.sentence}" for cause in self.causes]
        lines += [f"  {found.cause}: {found.sentence}" for found in self.settings if found.significant]
        return "\n".join(lines)

    # ---- what there is --------------------------------------------------------------------------------------------

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many runs: sick, healthy, silent (no issue, no end), too short to judge, unreadable, running."""
        row = self._tables.rows("""
            SELECT count(*), count(*) FILTER (NOT healthy), count(*) FILTER (healthy AND state != 'silent'),
                count(*) FILTER (healthy AND state = 'silent'),
                count(*) FILTER (healthy IS NULL AND problem IS NULL), count(*) FILTER (problem IS NOT NULL),
                count(*) FILTER (state = 'running')
            FROM runs
        """)[0]
        return dict(zip(("runs", "sick", "healthy", "silent", "too_short", "unreadable", "running"), row, strict=True))

    @property
    def sentence(self) -> str:
        """How many runs are sick, in a line."""
        counts = self.counts
        parts = [f"{counts['sick']:,} sick", f"{counts['healthy']:,} healthy"]
        more = {
            "silent": "silent (killed or stalled)",
            "too_short": "too short to judge",
            "unreadable": "unreadable",
            "running": "still running",
        }
        parts += [f"{counts[name]:,} {words}" for name, words in more.items() if counts[name]]
        return f"{counts['runs']:,} {'run' if counts['runs'] == 1 else 'runs'}: {', '.join(parts)}."

    @cached_property
    def causes(self) -> list[Cause]:
        """The sick runs by the cause of their gravest issue, the most frequent first."""
        return causes_of(self._tables)

    @cached_property
    def settings(self) -> list[Association]:
        """Settings that split the runs, the clearest first; `found.significant` is beyond chance."""
        rows = self._tables.rows("SELECT run, healthy, cause, layer FROM runs WHERE healthy IS NOT NULL")
        facts: dict[str, dict[str, str]] = {run: {} for run, *_ in rows}
        # Only those in which runs differ: most are the same in all of them.
        for run, name, value in self._tables.rows("""
            SELECT run, name, value FROM settings
            WHERE name IN (SELECT name FROM settings GROUP BY name HAVING count(DISTINCT value) > 1)
        """):
            if run in facts:
                facts[run][name] = value
        causes = [None if healthy else cause for _, healthy, cause, _ in rows]
        return associations(list(facts.values()), causes, [layer for *_, layer in rows])

    def runs(self, *, find: str = "", sort: str = "verdict", limit: int | None = None) -> list[dict[str, Any]]:
        """Runs as mappings, each with its issues.

        `find`: words (`"vanish"`) or conditions on settings and columns (`"lr > 0.003"`), all of which must hold.
        `sort`: `verdict` (the gravest first), `run`, `since`, `loss`, `lr`, `steps`, `seconds`, `started`, `state`.
        """
        check_choice("sort", sort, ORDERS)
        where, values = condition_of(find)
        most = "" if limit is None else f"LIMIT {check_whole('limit', limit, 0, InputError)}"
        names = (
            *("run", "state", "verdict", "healthy", "message", "type", "cause", "severity", "layer", "since"),
            *("loss_first", "loss", "loss_best", "norm", "norm_max", "lr", "lr_max", "steps", "last_step", "seconds"),
            *("started", "looks", "tensors", "elements", "nonfinite_steps", "error", "problem", "notes"),
        )
        chosen = f"SELECT {', '.join(names)} FROM runs WHERE {where} ORDER BY {ORDERS[sort]}, run {most}"
        rows = [dict(zip(names, row, strict=True)) for row in self._tables.rows(chosen, *values)]
        issues = self._issues([row["run"] for row in rows])
        return [{**row, "issues": issues.get(row["run"], [])} for row in rows]

    def count(self, find: str = "") -> int:
        """How many runs `find` finds."""
        where, values = condition_of(find)
        return int(self._tables.rows(f"SELECT count(*) FROM runs WHERE {where}", *values)[0][0])

    def failing(self, fail_on: str = "medium") -> int:
        """How many runs have an issue of this severity or above, or ended with an error."""
        check_choice("fail_on", fail_on, FAIL_ON)
        if fail_on == "never":
            return 0
        grave = [severity.name for severity in IssueSeverity if severity >= IssueSeverity[fail_on.upper()]]
        listed = ", ".join(f"'{name}'" for name in grave)
        return int(
            self._tables.rows(f"SELECT count(*) FROM runs WHERE state = 'failed' OR severity IN ({listed})")[0][0]
        )

    # ---- as tables ------------------------------------------------------------------------------------------------

    def sql(self, query: str) -> Any:
        """The answer to SQL as an Arrow table; `.to_pandas()` makes a DataFrame of it.

        Tables: `runs`, `issues`, `layers`, `settings`. `docs/fleet.md` has their columns.
        """
        return self._tables.ask(query)

    def to_arrow(self, table: str = "runs") -> Any:
        """One of the tables `runs`, `issues`, `layers`, `settings`, as Arrow has it."""
        check_choice("table", table, NAMES)
        return self.sql(f"SELECT {', '.join(self._tables.columns(table))} FROM {table}")

    def to_pandas(self, table: str = "runs") -> Any:
        """The same as a DataFrame."""
        return self.to_arrow(table).to_pandas()

    def to_dict(
        self, *, limit: int = MOST_LISTED, find: str = "", sort: str = "verdict", fail_on: str = "medium"
    ) -> dict[str, Any]:
        """Everything as plain values that strict JSON can hold: at most `limit` runs, and all causes."""
        failing = self.failing(fail_on)
        return {
            "folder": self.folder,
            "message": self.sentence,
            "counts": dict(self.counts),
            "runs": self.runs(find=find, sort=sort, limit=limit),
            "matching": self.count(find),
            "causes": [cause.to_dict() for cause in self.causes[:MOST_CAUSES]],
            "settings": [found.to_dict() for found in self.settings[:MOST_ASSOCIATIONS]],
            "rule_set": RULE_SET,
            "fail_on": fail_on,
            "failing": failing,
            "failed": failing > 0,
        }

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.runs())

    def _issues(self, runs: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        names = ("type", "cause", "severity", "layer", "since", "message", "reason", "advice")
        wanted, found = set(runs), dict[str, list[dict[str, Any]]]()
        query = f"SELECT run, {', '.join(names)} FROM issues WHERE place < {MOST_ISSUES} ORDER BY run, place"
        for run, *values in self._tables.rows(query):
            if run in wanted:
                found.setdefault(run, []).append(dict(zip(names, values, strict=True)))
        return found


def _state_now(run: Found) -> str:
    """Of a run without an end: whether it goes on."""
    if is_remote(run.file):
        return RUNNING if time.time() - run.changed / 1e9 < STILL_RUNNING else SILENT
    return ending(None, Path(run.file), None).state
