"""Which runs lie below a folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from gradient_flow.record.run_lines import FILE_NAME

ITSELF: Final = "."
"""The path of a run that is the folder itself."""
_DEEPEST: Final = 6


class RunFile(NamedTuple):
    """A run file that lies below a folder."""

    name: str
    """Path of the run below the folder, with `/`."""
    path: str
    about: os.stat_result


def run_files(root: Path) -> Iterator[RunFile]:
    """Every run, folder by folder. A run's own folders are not looked into, nor are hidden ones and links.

    Names of files are texts here: ten thousand `Path`s would take longer than the disk.
    """
    own = os.path.join(root, FILE_NAME)
    if os.path.isfile(own):
        yield RunFile(ITSELF, own, os.stat(own))
        return
    yield from _below(str(root), "", _DEEPEST)


def _below(folder: str, before: str, depth: int) -> Iterator[RunFile]:
    try:
        with os.scandir(folder) as entries:
            inner = sorted(
                entry.name for entry in entries if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)
            )
    except OSError:  # no permission, or deleted meanwhile
        return
    for name in inner:
        path = f"{folder}{os.sep}{name}{os.sep}{FILE_NAME}"
        try:
            about = os.lstat(path)
            is_run = stat.S_ISREG(about.st_mode)
        except OSError:
            is_run = False
        if is_run:
            yield RunFile(f"{before}{name}", path, about)
        elif depth > 1:
            yield from _below(f"{folder}{os.sep}{name}", f"{before}{name}/", depth - 1)
