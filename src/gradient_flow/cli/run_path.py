"""The RUN argument: checked at once; if there is no run, the error lists runs nearby."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

_SHOWN = 4


class RunPath(click.Path):
    """A run folder, its `run.jsonl`, or the JSON file of `GradientStatisticsCallback`."""

    name = "run"

    def __init__(self, *, only_runs: bool = False) -> None:
        super().__init__(path_type=Path)
        self.only_runs = only_runs

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, once there is something there to read."""
        path = Path(value)
        try:
            path.stat()
            there = {name for name in self._names() if (path / name).is_file()} if path.is_dir() else set()
        except (FileNotFoundError, NotADirectoryError, ValueError):  # a name that no file can have
            self.fail(f"there is no {str(path)!r}.{_hint(path.parent, path.name)}", param, ctx)
        except OSError as problem:
            self.fail(f"{str(path)!r} cannot be read ({problem.strerror}).", param, ctx)
        if path.is_dir() and not there:
            self.fail(f"{str(path)!r} is a folder without a {self._names()[0]}.{_hint(path)}", param, ctx)
        if self.only_runs and path.suffix == ".json":
            self.fail(f"{str(path)!r} is not a run: give the folder that `watch(run=...)` wrote.", param, ctx)
        return path

    def _names(self) -> tuple[str, ...]:
        from gradient_flow.record.export import MATRICES_FILE, STATISTICS_FILE
        from gradient_flow.record.run_lines import FILE_NAME

        return (FILE_NAME,) if self.only_runs else (FILE_NAME, STATISTICS_FILE, MATRICES_FILE)


def runs_near(folder: Path) -> list[Path]:
    """Run folders in a folder, in its `runs` and in their folders, the newest first."""
    found = {path.parent for pattern in ("*/run.jsonl", "runs/*/run.jsonl") for path in folder.glob(pattern)}
    return sorted(found, key=lambda path: -(path / "run.jsonl").stat().st_mtime)


def _shown(run: Path) -> str:
    """A name that others gave, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "�" for letter in str(run))


def _hint(folder: Path, name: str = "") -> str:
    near = runs_near(folder) if folder.is_dir() else []
    near = near or runs_near(Path())
    alike = get_close_matches(name, [run.name for run in near])
    near.sort(key=lambda run: run.name not in alike)
    if not near:
        return " A run is a folder that `gradient-flow run` or `gf.watch(model, optimizer, run=...)` wrote."
    more = f" and {len(near) - _SHOWN} more" if len(near) > _SHOWN else ""
    return f" Runs near it: {', '.join(_shown(run) for run in near[:_SHOWN])}{more}."
