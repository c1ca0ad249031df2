"""What a cure has found so far, and the two ways in which it asks the model: a training, and an examination."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from gradient_flow.cures.arms import Outcome, run_arm
from gradient_flow.cures.certainty import too_sure
from gradient_flow.cures.patient import Patient
from gradient_flow.cures.result import Noise, Trial
from gradient_flow.diagnosis.issue import Issue
from gradient_flow.diagnosis.treatment import Treatment

if TYPE_CHECKING:
    from gradient_flow.diagnosis.network.record import AnalysisRecord

RUNGS: Final = (4, 2, 1)
"""Length of each rung, as a full trial divided by this."""
MARGIN: Final = 0.02
"""Share of the loss that counts as no difference, however quiet the repeats."""
EXAMINED: Final = 20
"""Steps of an examination."""

MOST: Final = 25
"""Full trials that a cure may cost: the last comparisons are left out where they would cost more."""

Report = Callable[[str, int], None]
"""Told what is being done and how many steps that took."""


@dataclass
class Work:
    """What the protocol has found so far."""

    patient: Patient
    deadline: float
    report: Report = lambda _text, _steps: None
    first_loss: float = math.inf
    noise: dict[int, Noise] = field(default_factory=dict)
    """By length of the arm."""
    trials: dict[int, Trial] = field(default_factory=dict)
    steps_taken: int = 0

    @property
    def rungs(self) -> list[int]:
        """Lengths of arms, from short to long."""
        return sorted({max(2, math.ceil(self.patient.steps / part)) for part in RUNGS})

    @property
    def out_of_time(self) -> bool:
        """Whether the budget is spent."""
        return time.perf_counter() > self.deadline

    def can_afford(self, steps: int) -> bool:
        """Whether so many more steps keep the cost below the most that a cure may take."""
        return self.steps_taken + steps <= MOST * self.patient.steps

    def arm(self, treatment: Treatment | None, checkpoints: Iterable[int], repeat: int = 0) -> Outcome:
        """Run an arm and count what it cost."""
        found = run_arm(self.patient, treatment, set(checkpoints), repeat)
        self.steps_taken += found.steps
        self.report("no treatment" if treatment is None else treatment.name, found.steps)
        return found

    def examined(self, treatment: Treatment | None) -> tuple[list[Issue], AnalysisRecord]:
        """What is wrong with the model under a treatment, or none, from a few steps; they are counted too."""
        patient = self.patient
        with patient.treated(treatment) as optimizer:
            sure = too_sure(patient)
            issues, record = patient.examine(optimizer, min(EXAMINED, patient.steps))
        self.steps_taken += record.steps
        self.report("examination" if treatment is None else "second examination", record.steps)
        return [*issues, *([sure] if sure is not None else ())], record


def noise_of(steps: int, outcomes: Sequence[Outcome]) -> Noise:
    """Losses of untreated arms after so many steps."""
    losses = tuple(outcome.losses[steps] for outcome in outcomes)
    finite = [abs(loss) for loss in losses if math.isfinite(loss)]
    return Noise(steps=steps, losses=losses, margin=MARGIN * (median(finite) if finite else 0.0))
