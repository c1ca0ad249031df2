"""What writing and reading a run costs, and how large it gets. `python benchmarks/run_file.py [--save]`."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from gradient_flow.flow.watch import TOTALS
from gradient_flow.record.run_writer import RunWriter, encode, layers_record
from gradient_flow.table import GradientTable
from gradient_flow.table.columns import COLUMNS, INDEX
from timing import Report, interleaved_medians

TENSORS = 500
STEPS = 100_000
LAYERS_EVERY = 10
REAL_STEPS = 2_000
"""Steps that are drawn anew; the rest of the large file repeats them under their own step numbers."""

random = np.random.default_rng(0)
names = [f"transformer.blocks.{i // 10}.part{i % 10}.weight" for i in range(TENSORS)]
sizes = np.where(np.arange(TENSORS) % 2 == 0, 768 * 768, 768).astype(np.float64)
report = Report("run_file")


def random_table() -> GradientTable:
    """As a training step leaves it: norms over several decades, every digit in use, some zeros, no NaN."""
    rows = np.zeros((TENSORS, len(COLUMNS)))
    scale = 10 ** random.uniform(-6, -1, TENSORS)
    rows[:, INDEX["count"]] = rows[:, INDEX["parts"]] = sizes
    rows[:, INDEX["sum"]] = scale * np.sqrt(sizes) * random.standard_normal(TENSORS)
    rows[:, INDEX["sum_sq"]] = scale**2 * sizes * random.uniform(0.9, 1.1, TENSORS)
    rows[:, INDEX["sum_abs"]] = scale * sizes * random.uniform(0.7, 0.9, TENSORS)
    rows[:, INDEX["min"]] = -scale * random.uniform(3, 5, TENSORS)
    rows[:, INDEX["max"]] = scale * random.uniform(3, 5, TENSORS)
    rows[:, INDEX["max_abs"]] = np.maximum(-rows[:, INDEX["min"]], rows[:, INDEX["max"]])
    rows[:, INDEX["near_zero"]] = random.binomial(sizes.astype(int), np.minimum(1.0, 1e-7 / scale))
    rows[:, INDEX["zeros"]] = random.binomial(rows[:, INDEX["near_zero"]].astype(int), 0.1)
    return GradientTable(names, rows)


def random_ratios() -> dict[str, NDArray[np.float64]]:
    return {"update_ratio": 10 ** random.uniform(-5, -2, TENSORS)}


def step_record(step: int, table: GradientTable) -> dict[str, object]:
    total = table.total
    told = {"loss": float(random.uniform(1, 5)), "epoch": step // 1000, "lr": [3e-4 * float(random.uniform())]}
    return (
        {"kind": "step", "step": step, "time": round(0.1234 * step, 4)}
        | {name: getattr(total, name) for name in TOTALS}
        | told
    )


def header() -> dict[str, object]:
    shapes = [[768, 768] if size > 768 else [768] for size in sizes]
    parameters = [{"name": n, "shape": s, "dtype": "float32"} for n, s in zip(names, shapes, strict=True)]
    return {"settings": {"every": 1, "layers_every": LAYERS_EVERY}, "parameters": parameters}


def writing_figures(folder: Path) -> None:
    report.say(f"\none record to the file, {TENSORS} tensors with update ratios")
    writer = RunWriter(folder / "writing", header())
    tables = [(random_table(), random_ratios()) for _ in range(64)]
    steps = [step_record(i, table) for i, (table, _) in enumerate(tables)]
    record = layers_record(1, tables[0][0], names, tables[0][1])
    turn = count()

    def write_layers() -> None:
        step = next(turn)
        table, ratios = tables[step % 64]
        writer.write(layers_record(step, table, names, ratios))

    seconds = interleaved_medians(
        {"layers record": write_layers, "step record": lambda: writer.write(steps[next(turn) % 64])},
        rounds=1001,
        before=lambda: None,
    )
    seconds |= interleaved_medians(
        {
            "layers record: made": lambda: layers_record(1, tables[0][0], names, tables[0][1]),
            "layers record: encoded": lambda: encode(record),
        },
        rounds=501,
        before=lambda: None,
    )
    writer.close()
    report.figure("layers record", 1e6 * seconds.pop("layers record"), 200, unit=" µs")
    for name, value in seconds.items():
        report.say(f"  {name:<66} {1e6 * value:>10.1f} µs")


def write_run(folder: Path) -> Path:
    """A whole run at default settings. Real records first, then the same lines under new step numbers."""
    writer = RunWriter(folder / "run", header())
    for step in range(1, REAL_STEPS + 1):
        table = random_table()
        writer.write(step_record(step, table))
        if step % LAYERS_EVERY == 0:
            writer.write(layers_record(step, table, names, random_ratios()))
    writer.close()
    lines = writer.path.read_bytes().splitlines(keepends=True)[1:]
    numbered = [
        (int(match[1]), line[: match.start(1)], line[match.end(1) :])
        for line in lines
        if (match := re.search(rb'"step":(\d+)', line))
    ]
    with writer.path.open("ab") as file:
        for done in range(REAL_STEPS, STEPS, REAL_STEPS):
            for step, before, after in numbered:
                file.write(b"%b%d%b" % (before, step + done, after))
    return writer.path


READ = """
import sys, time
import gradient_flow as gf
gf.load_run
start = time.perf_counter()
series = gf.load_run(sys.argv[1]).series("norm")
seconds = time.perf_counter() - start
import resource
assert len(series) == int(sys.argv[2]) and (series > 0).all() and "torch" not in sys.modules
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


def run_figures(folder: Path) -> None:
    report.say(f"\na run of {STEPS:,} steps, {TENSORS} tensors, every=1, layers_every={LAYERS_EVERY}")
    path = write_run(folder)
    report.figure("size", path.stat().st_size / 1e9, 1.0, unit=" GB")
    outputs = [
        subprocess.run([sys.executable, "-c", READ, path, str(STEPS)], check=True, capture_output=True).stdout.split()
        for _ in range(3)
    ]
    report.figure('load_run(path).series("norm")', median(float(seconds) for seconds, _ in outputs), 2.0, unit=" s")
    report.say(f"  {'memory of that process at its highest':<66} {max(float(peak) for _, peak in outputs):>10.2g} GB")


with tempfile.TemporaryDirectory() as temporary:
    writing_figures(Path(temporary))
    run_figures(Path(temporary))
report.close()
