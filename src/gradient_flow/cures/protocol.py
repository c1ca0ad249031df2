"""How treatments are compared: paired arms, repeats without treatment for the noise, successive halving, a budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Final

from gradient_flow.cures.arms import Outcome, run_arm
from gradient_flow.cures.certainty import too_sure
from gradient_flow.cures.patient import Patient
from gradient_flow.cures.registry import can_be_done, meant_for, proposals
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
from gradient_flow.diagnosis.advice import TARGET_RATIO
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.updates import largest_update
from gradient_flow.diagnosis.treatment import Treatment, treatment_of
from gradient_flow.diagnosis.words import plain
from gradient_flow.errors import GradientFlowError

if TYPE_CHECKING:
    import torch

    from gradient_flow.diagnosis.network.record import AnalysisRecord

REPEATS: Final = 4
"""Arms without treatment: enough for a range, and cheap beside the others."""
RUNGS: Final = (4, 2, 1)
"""Length of each rung, as a full trial divided by this."""
KEPT: Final = (6, 3)
"""Treatments that go on to the second and third rung."""
CONFIRMED: Final = 2
"""Arms of a treatment on the last rung: on the paired batches and, if it is better there, on others."""
LONGER: Final = 2.5
"""Times a full trial that the leader is given where a sick model has no treatment that is better yet."""
LONGER_REPEATS: Final = 2
"""Arms without treatment beside it."""
MARGIN: Final = 0.02
"""Share of the loss that counts as no difference, however quiet the repeats."""
LEARNS: Final = 0.05
"""Share of its first loss that a model that learns has lost after a full trial."""
RISES: Final = 0.5
"""Share of its first loss by which that of a model that is thrown off has risen."""
EXAMINED: Final = 20
"""Steps of an examination."""
COMPARABLE: Final = 0.5
"""Share of the largest gain from which a treatment that heals the issue is preferred to one that does not."""
NEARLY: Final = 0.8
"""Share from which, of those that heal it, the one that the issue's advice names is preferred."""
LARGE: Final = 0.5
"""Share of the untreated loss that has to go for a claim where nothing is diagnosed: slow starts are no sickness."""
SHORT: Final = 0.1
"""Share of the usual update ratio below which steps are too short for a loss that does not fall."""
_TOO_FAST: Final = (IssueType.UNSTABLE, IssueType.EXPLODING)
"""Issues that longer steps do not heal, whatever they do to the loss of the next few batches."""
_EVIDENT: Final = {
    "add_parameters": "the optimizer does not hold all parameters that get a gradient.",
    "eps": "`eps` of the optimizer is as large as the gradients, and rules the steps.",
    "scale_outputs": "what the model returns is far larger or smaller than answers usually are.",
    "weight_decay": "weight decay takes more than a thousandth of every weight at each step.",
}
"""Treatments that are only proposed where a setting is wrong, and what is wrong then."""

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

    def arm(self, treatment: Treatment | None, checkpoints: Iterable[int], repeat: int = 0) -> Outcome:
        """Run an arm and count what it cost."""
        found = run_arm(self.patient, treatment, set(checkpoints), repeat)
        self.steps_taken += found.steps
        self.report("no treatment" if treatment is None else treatment.name, found.steps)
        return found


def examine(work: Work) -> None:
    """Look at the model before any treatment."""
    patient = work.patient
    with patient.treated(None):
        work.first_loss = patient.held_out_loss()
        patient.note_outputs()
    with patient.treated(None) as optimizer:
        patient.issues, patient.record = _issues(patient, optimizer)
    work.steps_taken += patient.record.steps
    work.report("examination", patient.record.steps)


def _issues(patient: Patient, optimizer: torch.optim.Optimizer) -> tuple[list[Issue], AnalysisRecord]:
    """What is wrong with the model as it stands."""
    sure = too_sure(patient)
    issues, record = patient.examine(optimizer, min(EXAMINED, patient.steps))
    return [*issues, *([sure] if sure is not None else ())], record


def leave_untreated(work: Work) -> None:
    """Train the model without any treatment, several times: what lies within is noise."""
    outcomes = [work.arm(None, work.rungs, repeat) for repeat in range(REPEATS)]
    for steps in work.rungs:
        work.noise[steps] = _noise(steps, outcomes)


def _noise(steps: int, outcomes: Sequence[Outcome]) -> Noise:
    losses = tuple(outcome.losses[steps] for outcome in outcomes)
    finite = [abs(loss) for loss in losses if math.isfinite(loss)]
    return Noise(steps=steps, losses=losses, margin=MARGIN * (median(finite) if finite else 0.0))


def grave_issues(patient: Patient) -> list[Issue]:
    """What was diagnosed, the gravest first."""
    found = [issue for issue in patient.issues if issue.severity >= IssueSeverity.MEDIUM]
    return sorted(found, key=lambda issue: -issue.severity)


def symptoms_of(work: Work) -> str:
    """Why the model counts as sick: an issue that was found, or that it does not learn."""
    grave, losses = grave_issues(work.patient), work.noise[work.patient.steps].losses
    if grave:
        return f"{grave[0].issue_type.name} in `{grave[0].layer}`: {grave[0].message}"
    if not math.isfinite(work.first_loss) or not all(map(math.isfinite, losses)):
        return "the loss is not finite."
    if rises(work):
        return f"the loss rises in {work.patient.steps} steps."
    if not learns(work) and not at_rest(work):
        short = _short_steps(work)
        why = f", and no step moves a weight matrix by more than {plain(short, 2)} of its size" if short else ""
        return f"the loss does not fall in {work.patient.steps} steps{why}."
    return ""


def _short_steps(work: Work) -> float | None:
    """The largest update ratio, where even that is far below what is usual: then the rate is to blame."""
    ratio = largest_update(work.patient.record)
    return ratio if ratio is not None and ratio < SHORT * TARGET_RATIO else None


def rises(work: Work) -> bool:
    """Whether the untreated model ends far above where it began, in every repeat; at rest a loss only wavers."""
    more = RISES * abs(work.first_loss)
    return not at_rest(work) and all(loss > work.first_loss + more for loss in work.noise[work.patient.steps].losses)


def is_only_slow(work: Work) -> bool:
    """Whether nothing is wrong but that the loss has hardly moved yet, as in many a healthy model."""
    losses = (work.first_loss, *work.noise[work.patient.steps].losses)
    blamed = grave_issues(work.patient) or rises(work) or _short_steps(work)
    return not blamed and all(map(math.isfinite, losses))


def learns(work: Work) -> bool:
    """Whether the untreated model loses a good part of its first loss, in every repeat."""
    gone = LEARNS * abs(work.first_loss)
    return all(loss < work.first_loss - gone for loss in work.noise[work.patient.steps].losses)


def at_rest(work: Work) -> bool:
    """Whether nothing is left to learn: the loss stays where it is, without rising."""
    return work.patient.record.learnt and all(map(math.isfinite, work.patient.record.losses))


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
    work.noise[steps] = _noise(steps, [work.arm(None, [steps], repeat) for repeat in range(LONGER_REPEATS)])
    first = min(leaders, key=lambda at: work.trials[at].loss)
    work.trials[first] = _tried(work, work.trials[first], steps, last=True)


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


def is_slower(treatment: Treatment) -> bool:
    """Whether it lowers the rate, which short trials favour (arXiv 1803.02021)."""
    return treatment.kind == "warm_up" or (treatment.kind == "learning_rate" and treatment.settings["factor"] < 1)


def is_advised(patient: Patient, treatment: Treatment) -> bool:
    """Whether an advice of an issue that was found says so."""
    advised = (treatment_of(advice) for issue in grave_issues(patient) for advice in issue.advice)
    return any(wanted is not None and wanted.covers(treatment) for wanted in advised)


def is_against(patient: Patient, treatment: Treatment) -> bool:
    """Whether it is meant for an issue that was found, or advised for it."""
    types = meant_for(treatment.kind)
    if treatment.kind == "learning_rate":
        types = frozenset({"SLOW"} if is_higher(treatment) else {"UNSTABLE", "EXPLODING"})
    meant = any(issue.issue_type.name in types for issue in grave_issues(patient))
    return meant or is_advised(patient, treatment)


def evident(work: Work) -> tuple[Trial | None, str]:
    """Where the model learns: a setting that is wrong on the face of it, and whose treatment takes most of the loss."""
    full = [t for t in work.trials.values() if t.outcome == BETTER and t.steps >= work.patient.steps]
    found = [trial for trial in full if trial.treatment.kind in _EVIDENT and _is_large(trial)]
    best = min(found, key=lambda trial: trial.loss, default=None)
    return best, "" if best is None else _EVIDENT[best.treatment.kind]


def is_higher(treatment: Treatment) -> bool:
    """Whether it raises the rate."""
    return treatment.kind == "learning_rate" and treatment.settings["factor"] > 1


def is_faster(treatment: Treatment) -> bool:
    """Whether it may do no more than take longer steps."""
    return treatment.kind == "optimizer" or is_higher(treatment)


def choose(work: Work) -> Trial | None:
    """The best of what helped: the lowest loss; one that heals the issue is preferred where it helps comparably.

    Longer steps are no cure for what is unstable. Nor are they where nothing is diagnosed and the loss has only not
    moved yet; there any other treatment has to take away a large part of the loss.
    """
    full = [t for t in work.trials.values() if t.outcome == BETTER and t.steps >= work.patient.steps]
    slow, grave = is_only_slow(work), grave_issues(work.patient)
    if slow:
        full = [trial for trial in full if not is_faster(trial.treatment) and _is_large(trial)]
    if grave and grave[0].issue_type in _TOO_FAST:
        full = [trial for trial in full if not is_higher(trial.treatment)]
    if not full:
        return None
    full.sort(key=lambda trial: trial.loss)
    if not grave or work.out_of_time:
        return full[0]
    looked = [_looked(work, trial) for trial in _comparable(work, full, COMPARABLE)]
    by_treatment = {id(trial.treatment): trial for trial in looked}
    work.trials = {at: by_treatment.get(id(each.treatment), each) for at, each in work.trials.items()}

    def only_faster(trial: Trial) -> bool:
        return is_faster(trial.treatment) and not is_against(work.patient, trial.treatment)

    healing = [trial for trial in looked if trial.issue_gone]
    healing = [trial for trial in healing if not only_faster(trial)] or healing
    if not healing:
        return looked[0]
    advised = [t for t in _comparable(work, healing, NEARLY) if is_advised(work.patient, t.treatment)]
    return (advised or healing)[0]


def _is_large(trial: Trial) -> bool:
    if trial.untreated is None:
        return False
    low = min(trial.untreated.losses)
    return max(trial.losses) < low - LARGE * abs(low)


def _comparable(work: Work, full: Sequence[Trial], share: float) -> list[Trial]:
    """Those that gain this share of what the best gains, which comes first."""
    best = full[0]
    before = [loss for loss in best.untreated.losses if math.isfinite(loss)] if best.untreated is not None else []
    start = min(before, default=work.first_loss)
    if not math.isfinite(start):
        return list(full)  # anything finite is a gain without measure
    return [trial for trial in full if start - trial.loss >= share * (start - best.loss)]


def _looked(work: Work, trial: Trial) -> Trial:
    """The trial with a second examination: is the gravest issue still found?"""
    patient = work.patient
    before = grave_issues(patient)[0]
    with patient.treated(trial.treatment) as optimizer:
        issues, record = _issues(patient, optimizer)
    work.steps_taken += record.steps
    work.report("second examination", record.steps)
    still = any(i.issue_type == before.issue_type and i.severity >= IssueSeverity.MEDIUM for i in issues)
    return replace(trial, issue_gone=not still, steps_taken=trial.steps_taken + record.steps)
