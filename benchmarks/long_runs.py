"""Runs that look like those of a large model, written in seconds: what the benchmarks of files and pages share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradient_flow.record.look import table_line
from gradient_flow.record.run_writer import RunWriter
from gradient_flow.record.step import TOTALS
from gradient_flow.table import GradientTable
from gradient_flow.table.columns import COLUMNS, INDEX

LAYERS_EVERY = 10


class LongRun:
    """A run of so many steps and tensors. `drawn` steps are drawn anew; the rest repeats them under new numbers."""

    def __init__(self, tensors: int, steps: int, drawn: int) -> None:
        self.tensors, self.steps, self.drawn = tensors, steps, drawn
        self.random = np.random.default_rng(0)
        self.names = [f"transformer.blocks.{i // 10}.part{i % 10}.weight" for i in range(tensors)]
        self.sizes = np.where(np.arange(tensors) % 2 == 0, 768 * 768, 768).astype(np.float64)

    @property
    def header(self) -> dict[str, Any]:
        shapes = [[768, 768] if size > 768 else [768] for size in self.sizes]
        parameters = [{"name": n, "shape": s, "dtype": "float32"} for n, s in zip(self.names, shapes, strict=True)]
        settings = {"every": 1, "layers_every": LAYERS_EVERY}
        return {"started": "2026-01-01T00:00:00+00:00", "settings": settings, "parameters": parameters}

    def table(self) -> GradientTable:
        """As a training step leaves it: norms over several decades, every digit in use, some zeros, no NaN."""
        random, sizes, tensors = self.random, self.sizes, self.tensors
        rows = np.zeros((tensors, len(COLUMNS)))
        scale = 10 ** random.uniform(-6, -1, tensors)
        rows[:, INDEX["count"]] = rows[:, INDEX["parts"]] = sizes
        rows[:, INDEX["sum"]] = scale * np.sqrt(sizes) * random.standard_normal(tensors)
        rows[:, INDEX["sum_sq"]] = scale**2 * sizes * random.uniform(0.9, 1.1, tensors)
        rows[:, INDEX["sum_abs"]] = scale * sizes * random.uniform(0.7, 0.9, tensors)
        rows[:, INDEX["min"]] = -scale * random.uniform(3, 5, tensors)
        rows[:, INDEX["max"]] = scale * random.uniform(3, 5, tensors)
        rows[:, INDEX["max_abs"]] = np.maximum(-rows[:, INDEX["min"]], rows[:, INDEX["max"]])
        rows[:, INDEX["near_zero"]] = random.binomial(sizes.astype(int), np.minimum(1.0, 1e-7 / scale))
        rows[:, INDEX["zeros"]] = random.binomial(rows[:, INDEX["near_zero"]].astype(int), 0.1)
        return GradientTable(self.names, rows)

    def ratios(self) -> NDArray[np.float64]:
        return 10 ** self.random.uniform(-5, -2, self.tensors)

    def step_line(self, step: int, table: GradientTable) -> dict[str, Any]:
        total = table.total
        line = {"kind": "step", "step": step, "time": round(0.1234 * step, 4)}
        line |= {name: getattr(total, name) for name in TOTALS}
        return line | {"loss": float(self.random.uniform(1, 5)), "lr": [3e-4 * float(self.random.uniform())]}

    def table_line(self, step: int, table: GradientTable, ratios: NDArray[np.float64] | None) -> dict[str, Any]:
        return table_line(step, table, self.names, ratios)

    def write(self, folder: Path, spoil: Callable[[int, bytes], bytes] = lambda _, line: line) -> Path:
        """Write it; `spoil` may change the line of a step that is repeated."""
        writer = RunWriter(folder, self.header)
        for step in range(1, self.drawn + 1):
            table = self.table()
            writer.write(self.step_line(step, table))
            if step % LAYERS_EVERY == 0:
                writer.write(self.table_line(step, table, self.ratios()))
        writer.close()
        lines = writer.path.read_bytes().splitlines(keepends=True)[1:]
        found = [(re.search(rb'"step":(\d+)', line), line) for line in lines]
        numbered = [(int(m[1]), line[: m.start(1)], line[m.end(1) :]) for m, line in found if m]
        with writer.path.open("ab") as file:
            for done in range(self.drawn, self.steps, self.drawn):
                for number, before, after in numbered:
                    after = spoil(number + done, after) if b'"kind":"step"' in before else after
                    file.write(b"%b%d%b" % (before, number + done, after))
            file.write(b'{"kind":"end","steps":%d,"status":"stable","message":"done"}\n' % self.steps)
        return writer.path
