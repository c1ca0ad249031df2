"""One case of the demo, from first step to verdict: watched, analyzed, and replayed if it turned NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradient_flow.demo.cases import Case
from gradient_flow.demo.setups import BUILD, Setup
from gradient_flow.diagnosis.issue import Diagnosis, Issue, IssueSeverity
from gradient_flow.diagnosis.sources import diagnose
from gradient_flow.faces.preflight import ANALYZERS
from gradient_flow.flow.flow import Flow
from gradient_flow.flow.watch import watch
from gradient_flow.probes.nonfinite.find import find_nonfinite
from gradient_flow.probes.nonfinite.origin import NonFiniteOrigin

Tell = Callable[[int, float], None]
"""Called with the step and its loss."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a case."""

    case: Case
    folder: Path
    diagnosis: Diagnosis
    """The same verdict as `gradient-flow diagnose` gives."""
    losses: list[float]

    @property
    def main(self) -> Issue | None:
        """The gravest finding, if any is of medium severity or above."""
        return next((issue for issue in self.diagnosis if issue.severity >= IssueSeverity.MEDIUM), None)

    @property
    def right(self) -> bool:
        """Whether that is what was planted."""
        found = None if self.main is None else self.main.issue_type
        return found == self.case.expected


def train(case: Case, folder: Path, *, seed: int = 0, steps: int | None = None, tell: Tell | None = None) -> Outcome:
    """Train a case under watch, into a run folder of its own; the process's random state stays as it was."""
    count = steps or case.steps
    losses: list[float] = []
    with _alone(seed):
        setup = BUILD[case.name](seed, count, folder)
        with watch(setup.model, setup.optimizer, run=folder, layers_every=5) as flow:

            def loss_fn(output: Tensor) -> Tensor:
                loss = setup.task.loss(output)
                losses.append(float(loss.detach()))
                flow.log(loss=losses[-1])
                if tell is not None:
                    tell(len(losses), losses[-1])
                return loss

            analyzer = ANALYZERS[case.analyzer](setup.model)
            analyzer.analyze(setup.task.next_batch, loss_fn, steps=count, optimizer=setup.optimizer)
            if not math.isfinite(losses[-1]):
                _step_all_the_same(setup, flow)
                flow.add_origin(_replayed(setup))
            flow.add_look(analyzer.seen)
    return Outcome(case=case, folder=folder, diagnosis=diagnose(folder), losses=losses)


def _replayed(setup: Setup) -> NonFiniteOrigin:
    """The last batch once more, operation by operation."""
    return find_nonfinite(lambda: setup.task.loss(setup.model(setup.task.batch)), setup.model)


def _step_all_the_same(setup: Setup, flow: Flow) -> None:
    """The step that a plain loop would have made, for the record: an analyzer stops before it."""
    loss = setup.task.loss(setup.model(setup.task.batch))
    setup.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
    flow.log(loss=loss)
    setup.optimizer.step()


@contextmanager
def _alone(seed: int) -> Iterator[Any]:
    """A random state of its own, and one thread: more would only slow down models this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)
