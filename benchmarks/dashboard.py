"""How soon the dashboard shows many runs and a very long one: `python benchmarks/dashboard.py [--save | --small]`.

Each figure is of a server started cold, in a process of its own, up to the last byte of its answer, or, seen from a
headless Chromium that runs already, up to the first map on its screen. The references, in the same rounds and also
cold, do less: one only reads the file, one parses each of its lines and keeps nothing.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson

from drawing import chromium, seconds_until_drawn
from gradient_flow.record.run_writer import RunWriter
from long_runs import LAYERS_EVERY, LongRun
from timing import Report

SMALL = "--small" in sys.argv
"""A tiny folder: does the script work? Its figures mean nothing."""
TENSORS, STEPS, DRAWN = (20, 400, 100) if SMALL else (500, 100_000, 2_000)
SPIKE, NAN = (234, 345) if SMALL else (54_321, 76_543)
"""Planted single steps that a page has to show."""
RUNS = 20 if SMALL else 1_000
ROUNDS = 1 if SMALL else 3
run_like = LongRun(TENSORS, STEPS, DRAWN)


def spoiled(step: int, line: bytes) -> bytes:
    if step == SPIKE:
        return re.sub(rb'"norm":[^,]+', b'"norm":1e9', line)
    return line.replace(b'"nan_count":0', b'"nan_count":7') if step == NAN else line


def write_many_runs(folder: Path) -> None:
    tables = [run_like.table() for _ in range(4)]
    for run in range(RUNS):
        writer = RunWriter(folder / f"sweep{run // 100}" / f"run{run:04}", run_like.header)
        for step in range(1, 51):
            writer.write(run_like.step_line(step, tables[step % 4]))
            if step % LAYERS_EVERY == 0:
                writer.write(run_like.table_line(step, tables[step % 4], None))
        writer.close()


class Served:
    """A server in a process of its own, from its start."""

    def __init__(self, path: Path) -> None:
        self.start = time.perf_counter()
        command = [sys.executable, "-u", "-m", "gradient_flow", "serve", str(path), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = next(line.strip() for line in self.process.stdout if "http://" in line)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path) as answer:
            return orjson.loads(answer.read())

    def until(self, path: str, done: Callable[[Any], bool] = lambda _: True) -> tuple[float, Any]:
        """Seconds from the start of the process to an answer that is `done`."""
        while not done(answer := self.get(path)):
            time.sleep(0.2)
        return time.perf_counter() - self.start, answer

    def peak(self) -> float:
        """Largest memory of the process so far, in GB; where the system tells."""
        status = Path(f"/proc/{self.process.pid}/status")
        found = re.search(r"VmHWM:\s+(\d+)", status.read_text()) if status.exists() else None
        return int(found[1]) / 1e6 if found else float("nan")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def reference(code: str, path: Path) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import sys, orjson; path = sys.argv[1]\n{code}", str(path)], check=True)
    return time.perf_counter() - start


def long_run_figures(folder: Path, report: Report) -> None:
    path = run_like.write(folder / "long", spoiled)
    size = path.stat().st_size / 1e9
    report.say(f"\na run of {STEPS:,} steps, {TENSORS} tensors, layers every {LAYERS_EVERY}: {size:.2f} GB")
    seconds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        server = Served(folder / "long")
        first, page = server.until("api/run/-")
        early = server.peak()
        judged, _ = server.until("api/run/-?columns=10&cells=1", lambda data: data["verdict"]["issues"])
        whole, last = server.until("api/run/-", lambda data: data["truth"]["complete"])
        check(page)
        check(last)
        times = {"first": first, "judged": judged, "whole": whole, "early": early, "peak": server.peak()}
        server.close()
        times |= drawn_seconds(folder / "long")
        times["read"] = reference("open(path, 'rb').read()", path)
        times["parse"] = reference("for line in open(path, 'rb'): orjson.loads(line)", path)
        for name, value in times.items():
            seconds.setdefault(name, []).append(value)
    middle = {name: median(values) for name, values in seconds.items()}
    report.figure("server started → first page: all curves, a map of a sample", middle["first"], 2.0, unit=" s")
    if "drawn" in middle:
        report.figure("server is up → map on screen, in headless Chromium", middle["drawn"], 2.0, unit=" s")
        report.say(f"  {'server started → map on screen':<66} {middle['from start']:>10.3g} s")
    else:
        report.say("  no Chromium and chromedriver here: how soon the map is drawn was not measured")
    report.figure("memory of the server then, at its highest", middle["early"], 0.5, unit=" GB")
    for name, what in (("judged", "server started → verdict"), ("whole", "server started → every table read")):
        report.say(f"  {what:<66} {middle[name]:>10.3g} s")
    report.figure("memory of the server then, at its highest", middle["peak"], 0.5, unit=" GB")
    report.say(f"  {'reference: a process that reads the file':<66} {middle['read']:>10.3g} s")
    report.say(f"  {'reference: a process that parses every line of it':<66} {middle['parse']:>10.3g} s")
    ratio = median(first / parse for first, parse in zip(seconds["first"], seconds["parse"], strict=True))
    report.figure("first page / that reference", ratio, 1.0)


def drawn_seconds(path: Path) -> dict[str, float]:
    """Of a server started cold: from its address, and from its start, to the first map on screen.

    Without a browser there is nothing.
    """
    with chromium() as browser:
        if browser is None:
            return {}
        server = Served(path)
        try:
            return {"drawn": seconds_until_drawn(browser, server.url), "from start": time.perf_counter() - server.start}
        finally:
            server.close()


def check(page: Any) -> None:
    """The planted spike and the planted NaN stand out, in the very first answer too."""
    series = page["series"]
    column = next(at for at, last in enumerate(series["step"]) if last >= SPIKE)
    assert series["lines"]["norm"]["max"][column] == 1e9
    column = next(at for at, last in enumerate(series["step"]) if last >= NAN)
    assert series["nonfinite"][column] == 1
    norms = np.frombuffer(base64.b64decode(page["layers"]["matrix"]["norm"]["data"]), "<f4")
    assert len(norms) > 0
    assert np.isfinite(norms).all()


def many_runs_figures(folder: Path, report: Report) -> None:
    write_many_runs(folder / "many")
    report.say(f"\na folder of {RUNS:,} runs of {TENSORS} tensors")
    seconds: dict[str, list[float]] = {"listed": [], "again": [], "read": []}
    for _ in range(ROUNDS):
        server = Served(folder / "many")
        first, answer = server.until("api/runs")
        assert len(answer["runs"]) == RUNS
        assert all(run["last_step"] == 50 for run in answer["runs"])
        seconds["listed"].append(first)
        start = time.perf_counter()
        server.get("api/runs")
        seconds["again"].append(time.perf_counter() - start)
        server.close()
        code = "import pathlib\nfor f in pathlib.Path(path).rglob('run.jsonl'): orjson.loads(f.open('rb').readline())"
        seconds["read"].append(reference(code, folder / "many"))
    report.figure("server started → list of all runs", median(seconds["listed"]), 2.0, unit=" s")
    report.say(f"  {'the list once more, while verdicts are taken':<66} {median(seconds['again']):>10.3g} s")
    report.say(f"  {'reference: a process that parses every header':<66} {median(seconds['read']):>10.3g} s")


if __name__ == "__main__":
    report = Report("dashboard")
    with tempfile.TemporaryDirectory() as temporary:
        many_runs_figures(Path(temporary), report)
        long_run_figures(Path(temporary), report)
    report.close()
