"""Verdicts on the gradient field of a game: whether the players circle each other instead of settling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.words import percent, plain
from gradient_flow.probes.field.stats import FieldStats
from gradient_flow.record.plain import from_plain

MOSTLY: Final = 0.5
"""Share of rotation from which on turning outweighs descent."""
ALMOST_ONLY: Final = 0.9
"""Share of rotation from which on hardly any descent is left."""
SURE: Final = 2.0
"""Standard errors that an estimate is taken back by before it counts."""

ADVICE: Final = (
    "Use extra-gradient or optimistic steps (along 2 g - g_before): looking one step ahead cancels the rotation, while "
    "plain steps spiral outwards at any learning rate.",
    "Penalise the discriminator's gradient on real data (R1: gamma/2 times its squared norm, gamma from 1 to 10): it "
    "adds gamma to the symmetric part, which damps the spiral.",
    "Lower the learning rate, but keep it higher for the player that must keep up (two time scales): the outward drift "
    "grows with the square of the step, the inward pull only linearly.",
    "Average the weights for evaluation (EMA 0.999): the steps circle a point that the average reaches.",
)


def judge(found: Mapping[str, Any]) -> Iterator[Issue]:
    """The verdict on what a look at the gradient field found."""
    return field_issues(from_plain(FieldStats, found["stats"]))


def field_issues(stats: FieldStats, *, layer: str = "model") -> Iterator[Issue]:
    """Whether rotation dominates, judged by the share of it that is beyond doubt: the estimate less two errors.

    Silent for a single loss, which cannot rotate, and where descent outweighs the rotation: a damped spiral converges.
    """
    sure = stats.rotation - SURE * (stats.rotation_error if math.isfinite(stats.rotation_error) else 0.0)
    if stats.players < 2 or not sure >= MOSTLY:  # this way round NaN, a field without a Jacobian, is silent
        return
    severity = IssueSeverity.HIGH if sure >= ALMOST_ONLY else IssueSeverity.MEDIUM
    damped = _damped(stats)
    size = math.hypot(stats.symmetric_norm, stats.antisymmetric_norm)
    expands = stats.divergence + SURE * stats.divergence_error < -0.01 * size  # further below zero than rounding
    if damped:
        severity = IssueSeverity.LOW
    elif expands:
        severity = IssueSeverity.CRITICAL if severity is IssueSeverity.HIGH else IssueSeverity.HIGH
    message = f"Rotation (circular gradients): {percent(stats.rotation)} of the Jacobian rotates instead of descending"
    message += "" if stats.exact else f" (± {percent(stats.rotation_error)})"
    if damped:
        message += f"; it settles at learning rates below {plain(stats.largest_stable_step or 0.0, 2)}"
    elif expands:
        message += ", and the steps spiral outwards"
    yield Issue(
        issue_type=IssueType.ROTATION,
        severity=severity,
        layer=layer,
        message=f"{message}.",
        evidence=_evidence(stats),
        cause="One player's gain is the other's loss, so each step turns the other's gradient sideways.",
        advice=ADVICE,
    )


def _damped(stats: FieldStats) -> bool:
    """Known to contract: every eigenvalue has a real part that is a tenth or more of its size."""
    moving = [value for value in stats.eigenvalues or () if abs(value) > 0]
    return bool(moving) and all(value.real >= 0.1 * abs(value) for value in moving)


def _evidence(stats: FieldStats) -> dict[str, Any]:
    names = ("rotation", "rotation_error", "divergence", "divergence_error", "symmetric_norm", "antisymmetric_norm")
    extra = ("coherence", "largest_stable_step", "players", "parameters")
    return {name: value for name in (*names, *extra) if (value := getattr(stats, name)) is not None}
