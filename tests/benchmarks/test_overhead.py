"""The script that prints what watching costs runs, in small, and its watched training is the unwatched one."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_overhead_runs_in_small(tmp_path):
    done = subprocess.run(
        [sys.executable, str(FOLDER / "overhead.py"), "--small"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for line in ("gf.watch, run file, tables, update ratios", "wandb.watch(log_freq=1), offline", "  gf.watch "):
        assert line in done.stdout
    assert "bit-identical to the unwatched run: True" in done.stdout
