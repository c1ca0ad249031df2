"""The scripts that print the figures run, in small: their lines are there, and nothing of them is measured here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
LINES = {
    "measure": (
        "full table without the C kernel / one torch.sum pass",
        "full table / torch._foreach_norm",
        "constant 0.1: ours",
        "measuring every step / step",
        "gain from threads, many tensors / one tensor",
        "import gradient_flow after numpy",
        "beside the one transfer, as on a device",
    ),
    "gain": ("monitor / hooks that read the gradient once", "cost of all hooks / step"),
    "device": (
        "measured on: ",
        "full table, read",
        "operations and launches of a recorded step",
        "waits of a recorded",
    ),
    "overhead": (
        "gf.watch, run file, tables, update ratios",
        "wandb.watch(log_freq=1), offline",
        "unwatched run: True",
        "by blocks without looks, wall time: ",
        "by blocks with looks, wall time: ",
        "one read of all gradients and nothing else, wall time: ",
        "whole trainings of ",
        "less the stated 32 MiB of samples / unwatched",
    ),
    "endurance": ("µs of a step, median: ", "memory, at the end / after two tenths"),
    "states": ("a look at the state", "elements of a batch, each step", "all together, of a long training"),
    "run_file": ("look: encoded", 'load_run(path).series("norm")', "memory of that process"),
    "fleet": (
        "first digest, per run, two processes",
        "planted sick runs that are listed with their cause                          1 ",
        "rows that are the same as without Ray                                       1 ",
    ),
    "dashboard": ("server started → list of all runs", "first page / that reference", "server started → verdict"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_benchmark_runs_in_small(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), "--small"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for line in LINES[name]:
        assert line in done.stdout


@pytest.mark.parametrize("name", ["overhead", "states"])
def test_help_measures_nothing(name, tmp_path):
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("What ")
    assert f"python benchmarks/{name}.py [" in done.stdout
    assert len(done.stdout.splitlines()) < 12
