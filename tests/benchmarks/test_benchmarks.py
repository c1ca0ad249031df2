"""Benchmarks run, in small, and print their lines. What they measure is judged on an idle machine, not here."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_costs_per_tensor_are_printed():
    command = [sys.executable, str(ROOT / "benchmarks" / "tensors.py"), "--small"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    for name in (
        "a watch, begun and ended",
        "a recorded step",
        "a look",
        "a watched clip, with its watch",
        "optimizers inside backward, with the backward",
        "a verdict",
        "reading a run and a table",
        "merging two tables",
    ):
        (line,) = [line for line in done.stdout.splitlines() if line.strip().startswith(f"{name}:")]
        assert " 10: " in line
        assert "1,000: " in line
        assert "(1.00 x)" in line


def test_missing_names_of_a_merge_are_looked_up_and_not_searched():
    """Once quadratic: a set of all names was made for each missing one."""
    import gradient_flow as gf

    class Counted(str):
        hashed = 0

        def __hash__(self) -> int:
            Counted.hashed += 1
            return super().__hash__()

    names = [Counted(f"tensor{at}") for at in range(200)]
    table = gf.measure({name: [1.0] for name in names})
    table.names = tuple(names)
    absent = gf.GradientTable((), table.rows[:0], missing=[f"absent{at}" for at in range(200)])
    Counted.hashed = 0
    merged = table.merge(absent)
    assert (len(merged), len(merged.missing)) == (200, 200)
    assert Counted.hashed < 20 * len(names)
