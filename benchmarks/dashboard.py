"""How soon the dashboard shows a folder of runs and a very long run. `python benchmarks/dashboard.py [--save]`.

Each figure is of a server started cold, in a process of its own, up to the last byte of its answer. The references, in
the same rounds and also cold, do less: one only reads the file, one parses each of its lines and keeps nothing.
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

from gradient_flow.record.run_writer import RunWriter, layers_record
from gradient_flow.table import GradientTable
from gradient_flow.table.columns import COLUMNS, INDEX
from timing import Report

TENSORS, STEPS, LAYERS_EVERY = 500, 100_000, 10
DRAWN = 2_000
"""Steps that are drawn anew; the rest of the long run repeats them under their own step numbers."""
SPIKE, NAN = 54_321, 76_543
"""Planted single steps that a page has to show."""
RUNS = 1_000
ROUNDS = 3

random = np.random.default_rng(0)
names = [f"transformer.blocks.{i // 10}.part{i % 10}.weight" for i in range(TENSORS)]
sizes = np.where(np.arange(TENSORS) % 2 == 0, 768 * 768, 768).astype(np.float64)
header = {
    "started": "2026-01-01T00:00:00+00:00",
    "settings": {"every": 1, "layers_every": LAYERS_EVERY},
    "parameters": [{"name": n, "shape": [int(s)], "dtype": "float32"} for n, s in zip(names, sizes, strict=True)],
}


def random_table() -> GradientTable:
    """As a training step leaves it: norms over several decades, every digit in use."""
    rows = np.zeros((TENSORS, len(COLUMNS)))
    scale = 10 ** random.uniform(-6, -1, TENSORS)
    rows[:, INDEX["count"]] = rows[:, INDEX["parts"]] = sizes
    rows[:, INDEX["sum"]] = scale * np.sqrt(sizes) * random.standard_normal(TENSORS)
    rows[:, INDEX["sum_sq"]] = scale**2 * sizes
    rows[:, INDEX["sum_abs"]] = scale * sizes * random.uniform(0.7, 0.9, TENSORS)
    rows[:, INDEX["min"]], rows[:, INDEX["max"]] = -4 * scale, 3.5 * scale
    rows[:, INDEX["max_abs"]] = 4 * scale
    rows[:, INDEX["near_zero"]] = rows[:, INDEX["zeros"]] = random.integers(0, 99, TENSORS)
    return GradientTable(names, rows)


def step_record(step: int, table: GradientTable) -> dict[str, Any]:
    total = table.total
    statistics = ("norm", "l1", "linf", "mean", "variance", "min", "max", "zero_fraction", "nan_count", "inf_count")
    record = {"kind": "step", "step": step, "time": round(0.1234 * step, 4)}
    return record | {name: getattr(total, name) for name in statistics} | {"loss": random.uniform(1, 5), "lr": [3e-4]}


def write_long_run(folder: Path) -> Path:
    writer = RunWriter(folder, header)
    for step in range(1, DRAWN + 1):
        table = random_table()
        writer.write(step_record(step, table))
        if step % LAYERS_EVERY == 0:
            ratios = {"update_ratio": 10 ** random.uniform(-5, -2, TENSORS)}
            writer.write(layers_record(step, table, names, ratios))
    writer.close()
    lines = writer.path.read_bytes().splitlines(keepends=True)[1:]
    found = [(re.search(rb'"step":(\d+)', line), line) for line in lines]
    numbered = [(int(m[1]), line[: m.start(1)], line[m.end(1) :]) for m, line in found if m]
    with writer.path.open("ab") as file:
        for done in range(DRAWN, STEPS, DRAWN):
            for number, before, after in numbered:
                step = number + done
                if step == SPIKE and b'"kind":"step"' in before:
                    after = re.sub(rb'"norm":[^,]+', b'"norm":1e9', after)
                if step == NAN and b'"kind":"step"' in before:
                    after = after.replace(b'"nan_count":0', b'"nan_count":7')
                file.write(b"%b%d%b" % (before, step, after))
        file.write(b'{"kind":"end","steps":%d,"status":"stable","message":"done"}\n' % STEPS)
    return writer.path


def write_many_runs(folder: Path) -> None:
    tables = [random_table() for _ in range(4)]
    for run in range(RUNS):
        writer = RunWriter(folder / f"sweep{run // 100}" / f"run{run:04}", header)
        for step in range(1, 51):
            writer.write(step_record(step, tables[step % 4]))
            if step % LAYERS_EVERY == 0:
                writer.write(layers_record(step, tables[step % 4], names, {}))
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
    path = write_long_run(folder / "long")
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
        times["read"] = reference("open(path, 'rb').read()", path)
        times["parse"] = reference("for line in open(path, 'rb'): orjson.loads(line)", path)
        for name, value in times.items():
            seconds.setdefault(name, []).append(value)
    middle = {name: median(values) for name, values in seconds.items()}
    report.figure("server started → first page: all curves, a map of a sample", middle["first"], 2.0, unit=" s")
    report.figure("memory of the server then, at its highest", middle["early"], 0.5, unit=" GB")
    for name, what in (("judged", "server started → verdict"), ("whole", "server started → every table read")):
        report.say(f"  {what:<66} {middle[name]:>10.3g} s")
    report.figure("memory of the server then, at its highest", middle["peak"], 0.5, unit=" GB")
    report.say(f"  {'reference: a process that reads the file':<66} {middle['read']:>10.3g} s")
    report.say(f"  {'reference: a process that parses every line of it':<66} {middle['parse']:>10.3g} s")
    ratio = median(first / parse for first, parse in zip(seconds["first"], seconds["parse"], strict=True))
    report.figure("first page / that reference", ratio, 1.0)


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
