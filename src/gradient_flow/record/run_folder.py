"""Which runs lie below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gradient_flow.record.run_lines import FILE_NAME

ITSELF: Final = "."
"""The path of a run that is the folder itself."""
_DEEPEST: Final = 6


def run_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Path below the folder, with `/`, and run file of every run, folder by folder.

    A run's own folders are not looked into, nor are hidden ones and links.
    """
    if (root / FILE_NAME).is_file():
        yield ITSELF, root / FILE_NAME
        return
    yield from _below(root, "", _DEEPEST)


def _below(folder: Path, before: str, depth: int) -> Iterator[tuple[str, Path]]:
    try:
        with os.scandir(folder) as entries:
            inner = sorted(
                entry.name for entry in entries if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)
            )
    except OSError:  # not ours to read, or gone meanwhile
        return
    for name in inner:
        file = os.path.join(folder, name, FILE_NAME)
        if os.path.isfile(file) and not os.path.islink(file):
            yield f"{before}{name}", Path(file)
        elif depth > 1:
            yield from _below(Path(folder, name), f"{before}{name}/", depth - 1)
