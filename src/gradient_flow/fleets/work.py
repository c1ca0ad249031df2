"""Digests of many runs: in this process, in others beside it, or on a Ray cluster. The same function, the same rows."""

from __future__ import annotations

import importlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gradient_flow.diagnosis.registry import registered
from gradient_flow.errors import MissingExtraError
from gradient_flow.fleets.digest import Digest, unreadable
from gradient_flow.fleets.sources import digest_of
from gradient_flow.fleets.worker import decode, receive, send

FEW: Final = 24
"""Fewer runs than this are read here: other processes would start too late."""
_PER_TASK: Final = 16
"""Runs per task of Ray: a task costs about a millisecond by itself."""
_COMMAND: Final = "from gradient_flow.fleets.worker import main; main()"

Made = tuple[int, Digest]
"""The place of a file among those given, and its digest. They come in the order in which they are done."""


def make_digests(
    files: Sequence[str], workers: int | None = None, *, on_ray: bool = False
) -> Generator[Made, None, None]:
    """The digests of these files. `workers`: processes, None for one per core, 0 for none but this one."""
    if on_ray:
        yield from _on_ray(files, workers)
        return
    count = _cores() if workers is None else workers
    # Rules that a user registered are known in this process alone.
    alone = bool(registered("run") or registered("analysis")) or not sys.executable
    if count == 0 or alone or (workers is None and len(files) <= FEW):
        yield from ((at, digest_of(file)) for at, file in enumerate(files))
        return
    yield from _in_processes(files, min(count, len(files)))


def _cores() -> int:
    with suppress(AttributeError):  # not everywhere
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---- processes --------------------------------------------------------------------------------------------------


def _in_processes(files: Sequence[str], count: int) -> Iterator[Made]:
    """Each process has one file at a time, so the one that a process dies of is known, and costs no other."""
    waiting: Iterator[tuple[int, str]] = iter(enumerate(files))
    made: queue.Queue[Made | BaseException] = queue.Queue(maxsize=64)
    turn, over = threading.Lock(), threading.Event()

    def next_file() -> tuple[int, str] | None:
        with turn:
            return None if over.is_set() else next(waiting, None)

    def put(what: Made | BaseException) -> None:
        while not over.is_set():
            with suppress(queue.Full):
                made.put(what, timeout=0.2)
                return

    def serve() -> None:
        try:
            with _Worker() as worker:
                while (job := next_file()) is not None:
                    put((job[0], worker.digest(job[1])))
        except BaseException as problem:  # a thread has nobody to raise it to
            put(problem)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        for _ in files:
            one = made.get()
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:
        over.set()
        for thread in threads:
            thread.join(timeout=60)


class _Worker:
    """A process that makes digests. It is started once more where a file has ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def digest(self, file: str) -> Digest:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        answer = None
        with suppress(OSError):
            send(process.stdin, os.fsencode(file))
            answer = receive(process.stdout)
        if answer is not None:
            return decode(answer)
        status = self._ended()
        return unreadable(f"Reading it ended the process that did so (exit status {status}).", again=True)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            home = str(Path(__file__).parents[2])
            path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # One thread each: there are as many processes as cores.
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        return self._process

    def _ended(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            return process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended()


# ---- Ray --------------------------------------------------------------------------------------------------------


def _digests_of(files: list[str]) -> list[Digest]:
    return [digest_of(file) for file in files]


def _on_ray(files: Sequence[str], workers: int | None) -> Iterator[Made]:
    """On the cluster that is connected or that `RAY_ADDRESS` names, else on a local one."""
    try:
        ray: Any = importlib.import_module("ray")  # its types are those of many other packages
    except ImportError as missing:
        raise MissingExtraError("ray") from missing
    ours = not ray.is_initialized()
    if ours:
        local: dict[str, Any] = {"num_cpus": workers or _cores(), "include_dashboard": False}
        here = {} if os.environ.get("RAY_ADDRESS") else local
        ray.init(log_to_driver=False, logging_level="ERROR", **here)
    try:
        # A file that ends a process would end the next one too.
        task = ray.remote(_digests_of).options(max_retries=0)
        most = 4 * max(1, workers or int(ray.cluster_resources().get("CPU", 1)))
        yield from _tasks(ray, task, list(files), most)
    finally:
        if ours:
            ray.shutdown()


def _tasks(ray: Any, task: Any, files: list[str], most: int) -> Iterator[Made]:
    waiting = [range(low, min(low + _PER_TASK, len(files))) for low in range(0, len(files), _PER_TASK)][::-1]
    pending: dict[Any, range] = {}
    while waiting or pending:
        while waiting and len(pending) < most:  # what is done and not taken yet fills memory
            places = waiting.pop()
            pending[task.remote([files[at] for at in places])] = places
        (done,), _ = ray.wait(list(pending), num_returns=1)
        places = pending.pop(done)
        try:
            yield from zip(places, ray.get(done), strict=True)
        except ray.exceptions.RayError as problem:
            if len(places) > 1:  # one of them ended the process: which?
                waiting += [range(at, at + 1) for at in places]
            else:
                why = f"Reading it ended the process that did so ({type(problem).__name__})."
                yield places[0], unreadable(why, again=True)
