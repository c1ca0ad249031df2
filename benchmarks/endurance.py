"""A long training under watch: cost of a step and memory have to stay what they are.

`python benchmarks/endurance.py [--small] [--save]`. 100,000 steps of a small net with everything on, by tenths;
`--small` takes 2,000. The processor time of the process is told: other programs on the machine do not count.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

import gradient_flow as gf
from timing import Report

SMALL = "--small" in sys.argv
STEPS = 2_000 if SMALL else 100_000
PARTS = 10
torch.set_num_threads(1)
report = Report("endurance")


def resident() -> float:
    """MiB of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[part for _ in range(5) for part in (torch.nn.Linear(16, 16), torch.nn.ReLU())])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs = torch.randn(16, 16)
    medians, totals, held = [], [], []
    with tempfile.TemporaryDirectory() as folder, gf.watch(model, optimizer, run=Path(folder) / "run") as flow:
        for _ in range(PARTS):
            costs = []
            for _ in range(STEPS // PARTS):
                started = time.process_time()
                optimizer.zero_grad()
                (model(inputs) - inputs).square().mean().backward()
                optimizer.step()
                costs.append(time.process_time() - started)
            medians.append(statistics.median(costs))
            totals.append(sum(costs) / len(costs))
            held.append(resident())
        looks = flow.looks
    report.say(f"\n{STEPS:,} steps of a net of ten tensors, everything on, by tenths; {looks}")
    report.say("  µs of a step, median:  " + "  ".join(f"{1e6 * each:.0f}" for each in medians))
    report.say("  µs of a step, mean:    " + "  ".join(f"{1e6 * each:.0f}" for each in totals))
    report.say("  MiB in memory:         " + "  ".join(f"{each:.0f}" for each in held))
    # The window of 10,000 steps is full after the first tenth; what comes then must not grow.
    report.figure("median step, last three tenths / second to fourth", _ratio(medians), 1.1)
    report.figure("memory, at the end / after two tenths", held[-1] / held[1], 1.02)
    report.close()


def _ratio(costs: list[float]) -> float:
    return statistics.median(costs[-3:]) / statistics.median(costs[1:4])


if __name__ == "__main__":
    main()
