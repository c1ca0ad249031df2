"""What writing and reading a run costs, and how large it gets. `python benchmarks/run_file.py [--save | --small]`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from statistics import median

from gradient_flow.record.run_lines import encode
from gradient_flow.record.run_writer import RunWriter
from long_runs import LAYERS_EVERY, LongRun
from timing import Report, interleaved_medians

SMALL = "--small" in sys.argv
"""A tiny run: does the script work? Its figures mean nothing."""
TENSORS, STEPS, DRAWN = (20, 400, 100) if SMALL else (500, 100_000, 2_000)
ROUNDS = 11 if SMALL else 1001
run = LongRun(TENSORS, STEPS, DRAWN)
report = Report("run_file")


def writing_figures(folder: Path) -> None:
    report.say(f"\none record to the file, {TENSORS} tensors with update ratios")
    writer = RunWriter(folder / "writing", run.header)
    tables = [(run.table(), run.ratios()) for _ in range(64)]
    steps = [run.step_line(i, table) for i, (table, _) in enumerate(tables)]
    line = run.table_line(1, *tables[0])
    turn = count()

    def write_look() -> None:
        step = next(turn)
        writer.write(run.table_line(step, *tables[step % 64]))

    seconds = interleaved_medians(
        {"look": write_look, "step record": lambda: writer.write(steps[next(turn) % 64])},
        rounds=ROUNDS,
        before=lambda: None,
    )
    seconds |= interleaved_medians(
        {
            "look: made": lambda: run.table_line(1, *tables[0]),
            "look: encoded": lambda: encode(line),
        },
        rounds=ROUNDS,
        before=lambda: None,
    )
    writer.close()
    report.figure("look", 1e6 * seconds.pop("look"), 200, unit=" µs")
    for name, value in seconds.items():
        report.say(f"  {name:<66} {1e6 * value:>10.1f} µs")


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
    path = run.write(folder / "run")
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
