"""Forks a child for each command on standard input and answers with its status; see `warm`."""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import Any


def next_child() -> dict[str, Any]:
    """Returns in a child, with what it is asked for."""
    while line := sys.stdin.readline():
        if not (child := os.fork()):
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()


def begin(command: list[str], cwd: str, files: list[str]) -> None:
    """Run the command as if this process had been started for it; what it raises ends the process."""
    for number, name in enumerate(files):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(cwd)
    kind, *arguments = command
    sys.path[0] = "" if kind == "-c" else cwd
    if kind == "-m":
        sys.argv = arguments
        runpy._run_module_as_main(arguments[0])
    elif kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = command
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    import torch
    import torch._dynamo  # noqa: F401  (the first optimizer imports it)

    begin(**next_child())
