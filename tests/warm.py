"""Processes that start warm: forked from one that has imported torch, which takes longer than most scripts run.

`warm_python` is `subprocess.run` of a Python with the same command line. The script gets a process of its own, which
ends as any other does; what is imported before it is torch alone. Where the start itself is tested, or a traceback to
the letter, a test starts a real one.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

PATIENCE = 120
"""Seconds that a command may take, on a busy machine."""


def warm_python(*command: str | Path, cwd: Path, input: str = "") -> subprocess.CompletedProcess[str]:
    """What came of `python <command>`, where the command begins with a script, `-m` or `-c`."""
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("stdin", "stdout", "stderr")]
        Path(files[0]).write_text(input)
        request = {"command": [str(part) for part in command], "cwd": str(cwd), "files": files}
        status = _ask(json.dumps(request))
        outputs = [Path(name).read_text() for name in files[1:]]
    return subprocess.CompletedProcess(request["command"], status, *outputs)


def _ask(request: str) -> int:
    server = _server()
    server.stdin.write(request + "\n")
    server.stdin.flush()
    if not select.select([server.stdout], [], [], PATIENCE)[0]:
        _stop()
        raise subprocess.TimeoutExpired(request, PATIENCE)
    return int(server.stdout.readline())


@cache
def _server() -> subprocess.Popen[str]:
    atexit.register(_stop)
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("warm_server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # with its children, so that none of them is left
    )


def _stop() -> None:
    if _server.cache_info().currsize:
        server = _server()
        _server.cache_clear()
        with server:
            os.killpg(server.pid, 9)
