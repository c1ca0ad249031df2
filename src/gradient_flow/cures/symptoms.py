"""Why a model counts as sick: an issue that was found, a loss that rises, is not finite, or does not fall."""

from __future__ import annotations

import math
from typing import Final

from gradient_flow.cures.meaning import grave_issues
from gradient_flow.cures.work import Work
from gradient_flow.diagnosis.advice import TARGET_RATIO
from gradient_flow.diagnosis.network.updates import largest_update
from gradient_flow.diagnosis.words import plain

LEARNS: Final = 0.05
"""Share of its first loss that a model that learns has lost after a full trial."""
RISES: Final = 0.5
"""Share of its first loss by which that of a model that is thrown off has risen."""
SHORT: Final = 0.1
"""Share of the usual update ratio below which steps are too short for a loss that does not fall."""


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
