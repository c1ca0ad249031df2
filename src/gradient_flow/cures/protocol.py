"""How treatments are compared: paired arms, repeats without treatment for the noise, successive halving, a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gradient_flow.cures.meaning import is_advised, is_against, is_pinned, is_slower
from gradient_flow.cures.patient import Patient
from gradient_flow.cures.registry import can_be_done, proposals
from gradient_flow.cures.result import (
    BETTER,
    DROPPED,
    FAILED,
    NO_EFFECT,
    NOT_TRIED,
    SAME,
    SLOWER,
    WORSE,
    Noise,
    Trial,
)
from gradient_flow.cures.symptoms import learns
from gradient_flow.cures.work import Work, noise_of
from gradient_flow.diagnosis.treatment import Treatment, treatment_of
from gradient_flow.errors import GradientFlowError

REPEATS: Final = 4
"""Arms without treatment: enough for a range, and cheap beside the others."""
KEPT: Final = (6, 3)
"""Treatments that go on to the second and third rung."""
PINNED: Final = 2
"""Treatments that go on whatever their loss: what was seen in the model asks for them."""
CONFIRMED: Final = 2
"""Arms of a treatment on the last rung: on the paired batches and, if it is better there, on others."""
LONGER: Final = 2.5
"""Times a full trial that the leader is given where a sick model has no treatment that is better yet."""
LONGER_REPEATS: Final = 2
"""Arms without treatment beside it."""


def examine(work: Work) -> None:
    """Look at the model before any treatment."""
    patient = work.patient
    with patient.treated(None):
        work.first_loss = patient.held_out_loss()
        patient.note_outputs()
    patient.issues, patient.record = work.examined(None)


def leave_untreated(work: Work) -> None:
    """Train the model without any treatment, several times: what lies within is noise."""
    outcomes = [work.arm(None, work.rungs, repeat) for repeat in range(REPEATS)]
    for steps in work.rungs:
        work.noise[steps] = noise_of(steps, outcomes)


def planned(patient: Patient) -> list[Treatment]:
    """Everything worth a trial, each once; what the issues advise comes first."""
    advised = [
        wanted
        for issue in patient.issues
        for advice in issue.advice
        if (wanted := treatment_of(advice)) is not None
        and not wanted.is_open  # a proposal has its numbers
        and can_be_done(wanted, fresh=patient.fresh)
        and patient.may_be_done(wanted)
    ]
    found: list[Treatment] = []
    for treatment in (*advised, *proposals(patient)):
        if treatment not in found:
            found.append(treatment)
    return found


def try_all(work: Work, treatments: Sequence[Treatment]) -> None:
    """Successive halving: all for a few steps, the better ones for longer, the last on other batches too."""
    alive = list(range(len(treatments)))
    for at in alive:
        work.trials[at] = Trial(treatment=treatments[at], outcome=NOT_TRIED, reason="out of time")
    for rung, steps in enumerate(work.rungs):
        for at in alive:
            if not work.out_of_time:
                work.trials[at] = _tried(work, work.trials[at], steps, last=rung == len(work.rungs) - 1)
        if work.out_of_time:
            break
        alive = [at for at in alive if work.trials[at].outcome in (BETTER, SAME, WORSE)]
        if rung < len(KEPT):
            alive = kept(work, alive, KEPT[rung])
    for at, trial in work.trials.items():
        if trial.losses and trial.steps < work.patient.steps and trial.outcome in (BETTER, SAME, WORSE):
            why = "out of time" if work.out_of_time and at in alive else "others were better after as many steps"
            work.trials[at] = replace(trial, outcome=DROPPED, reason=why)


def kept(work: Work, alive: list[int], count: int) -> list[int]:
    """The treatments with the lowest loss, and the best of those that are advised or meant for the issue.

    A higher rate is quick to show; what heals the cause may cost at first, as new weights do.
    """

    def rank(at: int) -> tuple[int, float]:
        trial = work.trials[at]
        # Noise cannot tell those within it apart: what is meant for the issue goes first.
        within = 1 if is_against(work.patient, trial.treatment) else 2
        return {BETTER: 0, SAME: within}.get(trial.outcome, 3), trial.loss

    ranked = sorted(alive, key=rank)
    finite = [at for at in ranked if math.isfinite(work.trials[at].loss)]
    found = set(ranked[:count])
    found |= set([at for at in finite if is_pinned(work.patient, work.trials[at].treatment)][:PINNED])
    for wanted in (is_advised, is_against):
        fitting = [at for at in finite if wanted(work.patient, work.trials[at].treatment)]
        if not found & set(fitting):
            found |= set(fitting[:1])
    return sorted(found)


def _tried(work: Work, trial: Trial, steps: int, *, last: bool) -> Trial:
    """The trial after one more arm of this length; on the last rung two."""
    losses: list[float] = []
    taken, seconds = trial.steps_taken, trial.seconds
    try:
        for repeat in range(CONFIRMED if last else 1):
            outcome = work.arm(trial.treatment, [steps], repeat)
            losses.append(outcome.losses[steps])
            taken, seconds = taken + outcome.steps, seconds + outcome.seconds
            if outcome_of(losses, work.noise[steps], work.first_loss) != BETTER:
                break  # one arm is enough to lose
    except GradientFlowError:
        raise
    except Exception as problem:  # a model may not bear a change of its parts; the others are tried
        return replace(trial, outcome=FAILED, reason=f"{type(problem).__name__}: {problem}")
    noise = work.noise[steps]
    judged = outcome_of(losses, noise, work.first_loss)
    if losses[0] == noise.loss and math.isfinite(losses[0]):
        judged = NO_EFFECT  # to the bit
    if judged == BETTER and is_slower(trial.treatment) and learns(work):
        reason = "the model learns at its rate; a lower one only looks better in a short trial"
        return _done(trial, SLOWER, steps, losses, noise, taken, seconds, reason)
    return _done(trial, judged, steps, losses, noise, taken, seconds)


def try_longer(work: Work) -> None:
    """Where nothing is better yet: the leader and no treatment, for longer. Some faults take time to show."""
    leaders = [
        at
        for at, trial in work.trials.items()
        if trial.outcome == SAME and trial.steps == work.patient.steps and not is_slower(trial.treatment)
    ]
    if not leaders or work.out_of_time or any(trial.outcome == BETTER for trial in work.trials.values()):
        return
    steps = math.ceil(LONGER * work.patient.steps)
    if not work.can_afford((LONGER_REPEATS + CONFIRMED) * steps):
        return
    work.noise[steps] = noise_of(steps, [work.arm(None, [steps], repeat) for repeat in range(LONGER_REPEATS)])
    first = min(leaders, key=lambda at: work.trials[at].loss)
    work.trials[first] = _tried(work, work.trials[first], steps, last=True)


def holds(work: Work, trial: Trial) -> Trial:
    """The trial, with a longer one beside no treatment where the model learns anyway: some only start faster."""
    steps = math.ceil(LONGER * work.patient.steps)
    sure = trial.steps >= steps or is_pinned(work.patient, trial.treatment) or not learns(work)
    if sure or work.out_of_time or not work.can_afford(2 * steps):
        return trial
    work.noise[steps] = noise_of(steps, [work.arm(None, [steps])])
    return _tried(work, trial, steps, last=False)


def _done(
    trial: Trial,
    outcome: str,
    steps: int,
    losses: Sequence[float],
    noise: Noise,
    taken: int,
    seconds: float,
    reason: str = "",
) -> Trial:
    return replace(
        trial,
        outcome=outcome,
        steps=steps,
        losses=tuple(losses),
        untreated=noise,
        steps_taken=taken,
        seconds=seconds,
        reason=reason,
    )


def outcome_of(losses: Sequence[float], noise: Noise, first_loss: float) -> str:
    """Better than every repeat without treatment, in all its own arms; or worse than every one; or within noise."""
    low, high = noise.band
    if all(loss < low for loss in losses) and all(map(math.isfinite, losses)):
        # Beside a model that has diverged anything is better: it has to be better than no training as well.
        return BETTER if max(losses) < first_loss or not math.isfinite(first_loss) else SAME
    return WORSE if all(loss > high for loss in losses) or not all(map(math.isfinite, losses)) else SAME
