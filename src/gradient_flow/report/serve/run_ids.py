"""Which runs lie in a folder, and the names they have in an address. Nothing outside the folder has one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gradient_flow.errors import RunFileError
from gradient_flow.record.run_folder import ITSELF, RunFile, run_files
from gradient_flow.record.run_lines import FILE_NAME

ALSO_ITSELF: Final = ("", "-")
"""What a page asks for when it means the folder itself: a browser takes `.` out of an address."""
_TO_ESCAPE: Final = re.compile(rb"^[.-]|[^a-zA-Z0-9_.-]")
"""What is not plain; and a dot or dash in front, which would be one of the names of the folder itself."""
_ESCAPED: Final = re.compile(r"~([0-9A-F]{2})")


def id_of(relative: str) -> str:
    """A path inside the folder as one part of an address: what is not plain becomes `~` and its code.

    >>> id_of("lr 0.1/seed0"), path_of(id_of("lr 0.1/seed0"))
    ('lr~200.1~2Fseed0', 'lr 0.1/seed0')
    """
    if relative == ITSELF:
        return ITSELF
    return _TO_ESCAPE.sub(lambda found: b"~%02X" % found[0][0], os.fsencode(relative)).decode("ascii")


def path_of(run_id: str) -> str:
    """The path that an id stands for."""
    return os.fsdecode(_ESCAPED.sub(lambda match: chr(int(match[1], 16)), run_id).encode("latin-1", "replace"))


class RunFolder:
    """A folder that is served: a run, or any number of them at any depth."""

    def __init__(self, root: str | Path) -> None:
        given = Path(root)
        if given.name == FILE_NAME and given.is_file():
            given = given.parent
        if not given.is_dir():
            what = "is not a folder" if given.exists() else "does not exist"
            raise RunFileError(f"`path` must be a run folder or a folder of runs; {str(root)!r} {what}.")
        self.root = given.resolve()

    def runs(self) -> Iterator[tuple[str, RunFile]]:
        """Id and run file of every run, folder by folder. A run's own folders are not looked into."""
        for run in run_files(self.root):
            yield id_of(run.name), run

    def file(self, run_id: str) -> Path:
        """The run file of an id; `KeyError` if there is none, or if it lies outside the folder."""
        relative = path_of(run_id)
        other = "\\" if os.sep == "\\" else "\0"  # elsewhere a backslash is a letter like any other
        if "\0" in relative or other in relative or relative.startswith("/") or ".." in relative.split("/"):
            raise KeyError(run_id)
        file = self.root / relative / FILE_NAME
        # Symlinks are followed only as far as they stay inside.
        # os.path: a name that is too long for a file is none of a run.
        if not os.path.isfile(file) or not file.resolve().is_relative_to(self.root):
            raise KeyError(run_id)
        return file
