"""One case of the demo from the first step to the verdict: watched, analyzed, and replayed where it turned NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradient_flow.demo.cases import Case
from gradient_flow.demo.setups import BUILD, Setup
from gradient_flow.diagnosis.consolidation import EXPLAINS
from gradient_flow.diagnosis.issue import Diagnosis, Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.verdict import diagnose
from gradient_flow.faces.preflight import analyze
from gradient_flow.flow.watch import Flow, watch
from gradient_flow.probes.nonfinite.find import find_nonfinite
from gradient_flow.probes.nonfinite.origin import NonFiniteOrigin

Tell = Callable[[int, float], None]
"""Called with the step and its loss."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a case."""

    case: Case
    folder: Path
    issues: list[Issue]
    """Of the analyzer, which saw the model, and of the run, which is a record of its gradients. The gravest first."""
    diagnosis: Diagnosis
    """Of the run alone, as `gradient-flow diagnose` gives it."""
    origin: NonFiniteOrigin | None
    """The operation that made the first NaN, where there was one."""
    losses: list[float]

    @property
    def main(self) -> Issue | None:
        """The gravest finding, if any is of medium severity or above."""
        return next((issue for issue in self.issues if issue.severity >= IssueSeverity.MEDIUM), None)

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

            issues, _ = analyze(
                setup.model, setup.task.next_batch, loss_fn, setup.optimizer, kind=case.analyzer, steps=count
            )
            bad = any(issue.issue_type is IssueType.NUMERICAL for issue in issues)
            origin = _replayed(setup) if bad else None
            if bad:
                _step_all_the_same(setup, flow)
    diagnosis = diagnose(folder)
    return Outcome(
        case=case,
        folder=folder,
        issues=_together(issues, diagnosis),
        diagnosis=diagnosis,
        origin=origin,
        losses=losses,
    )


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


def _together(issues: list[Issue], diagnosis: Diagnosis) -> list[Issue]:
    """What the run's record adds to what the analyzer found: types that it neither named nor explains."""
    known = {issue.issue_type for issue in issues}
    known |= {kind for issue in issues for kind in EXPLAINS.get(issue.issue_type, ())}
    added = [issue for issue in diagnosis if issue.issue_type not in known]
    return sorted([*issues, *added], key=lambda issue: -issue.severity)


@contextmanager
def _alone(seed: int) -> Iterator[Any]:
    """A random state of its own, and one thread: more only get into each other's way in models this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)
