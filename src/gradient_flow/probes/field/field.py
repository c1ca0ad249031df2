"""The gradient field of a game: several losses, each lowered by its own parameters.

The simultaneous gradient is ξ = (∂L₁/∂θ₁, ∂L₂/∂θ₂, …) and training follows -ξ. Its Jacobian J = S + A has a symmetric
part, which pulls towards a point or pushes away, and an antisymmetric one, which turns around it (Balduzzi et al. 2018,
Letcher et al. 2019). For one loss J is a Hessian, and A is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from gradient_flow.capture.random_state import probe_generator
from gradient_flow.errors import InputError
from gradient_flow.probes.field.gradient_field import GradientField, Player
from gradient_flow.probes.field.linearization import mean_and_error, random_direction, unit_direction
from gradient_flow.probes.field.stats import FieldStats

EXACT_SIZE: Final = 64
"""A field of no more parameters is taken apart exactly, eigenvalues included."""
ONE_LOSS: Final = (
    "One loss: its Jacobian is a Hessian, which is symmetric, so the field cannot rotate. If training oscillates, look "
    "at the learning rate and momentum."
)


def field_stats(
    players: Sequence[Player], *, probes: int = 16, seed: int = 0, coherence: float | None = None
) -> FieldStats:
    """Divergence and rotation of the gradient field of a game.

    Args:
        players: for each, a function without arguments that gives its loss, and the parameters that lower it (or the
            module or optimizer that has them). Each function is called once; let all use the same batch. Nothing is
            written to `.grad`, and the random state is kept; what a loss changes by itself, such as running statistics,
            it changes here too.
        probes: random directions, each costs J v and Jᵀ v. Up to 64 parameters all directions are taken instead.
        seed: of the probes.
        coherence: of the steps so far, from `FlowCoherence`, to be reported along.
    """
    if probes < 2:
        raise InputError(f"`probes` must be at least 2, got {probes}.")
    field = GradientField(players)
    single, exact = len(players) == 1, field.size <= EXACT_SIZE
    columns, parts = [], []
    generator = probe_generator(seed)
    for number in range(field.size if exact else probes):
        v = (unit_direction(field.size, number) if exact else random_direction(field.size, generator)).to(field.device)
        transposed = field.pull(v)
        pushed = transposed if single else field.push(v)
        parts.append(torch.stack((v @ pushed, _square(pushed + transposed) / 4, _square(pushed - transposed) / 4)))
        columns += [pushed] if exact else []
    traces, symmetric, antisymmetric = torch.stack(parts).T.cpu()  # (directions,) each
    # Unit vectors add up to the whole; random signs each estimate it.
    total = len(parts) if exact else 1
    rotation, rotation_error = _share(antisymmetric, antisymmetric + symmetric)
    divergence, divergence_error = mean_and_error(traces)
    return FieldStats(
        players=len(players),
        parameters=field.size,
        exact=exact,
        probes=len(parts),
        divergence=divergence * total,
        divergence_error=0.0 if exact else divergence_error,
        symmetric_norm=math.sqrt(float(symmetric.mean()) * total),
        antisymmetric_norm=math.sqrt(float(antisymmetric.mean()) * total),
        rotation=0.0 if single else rotation,
        rotation_error=0.0 if exact or single else rotation_error,
        gradient_norm=float(field.gradient.norm()),
        eigenvalues=_eigenvalues(torch.stack(columns, 1)) if exact else None,
        coherence=coherence,
        note=ONE_LOSS if single else "",
    )


def _square(vector: Tensor) -> Tensor:
    return vector @ vector


def _eigenvalues(matrix: Tensor) -> tuple[complex, ...] | None:
    return tuple(torch.linalg.eigvals(matrix).tolist()) if bool(matrix.isfinite().all()) else None


def _share(parts: Tensor, wholes: Tensor) -> tuple[float, float]:
    """The ratio of two means, with its standard error by the delta method."""
    whole = float(wholes.mean())
    if whole == 0:
        return math.nan, math.nan
    ratio = float(parts.mean()) / whole
    return ratio, mean_and_error(parts - ratio * wholes)[1] / whole
