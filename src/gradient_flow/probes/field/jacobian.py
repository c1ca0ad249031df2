"""Singular values, rank and conditioning of a Jacobian: exact where it is small, by probes where it is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gradient_flow.capture.random_state import probe_generator
from gradient_flow.errors import InputError
from gradient_flow.probes.field.linearization import Linearization, mean_and_error, random_direction
from gradient_flow.table.text import plain

EXACT_SIDE: Final = 256
"""A Jacobian whose shorter side is no longer than this is built and decomposed."""
EXACT_ELEMENTS: Final = 2**22
KRYLOV: Final = 40
"""Steps of the Arnoldi iteration for the spectral radius."""


@dataclass(frozen=True, kw_only=True)
class JacobianStats:
    """What a Jacobian does to lengths: isometric when every singular value is 1."""

    inputs: int
    outputs: int
    exact: bool
    """Whether all singular values were computed; else the numbers are estimates, as each one says."""
    largest_singular_value: float
    """The most that any direction grows. By power iteration it can only be too small."""
    mean_squared_singular_value: float
    """||J||² / inputs: the growth of the square of a random direction; 1 keeps lengths on average."""
    mean_squared_error: float
    """Its standard error; 0 when exact."""
    effective_rank: float
    """Participation ratio (Σs²)² / Σs⁴: how many directions carry the map."""
    conditioning: float
    """Largest over smallest singular value, `inf` where the smallest is lost in rounding. When not exact: a lower
    bound, from the part of the range that the probes reach."""
    smallest_singular_value: float | None = None
    """Only when exact."""
    spectral_radius: float | None = None
    """Largest eigenvalue magnitude, of a map from a space to itself."""
    method: str = ""
    converged: bool = True
    """Whether the power iteration settled within its steps."""

    def __str__(self) -> str:
        least = "at least " if not self.exact else ""
        error = "" if self.exact else f" ± {plain(self.mean_squared_error, 2)}"
        lines = [
            f"Jacobian {self.outputs} x {self.inputs} ({'exact' if self.exact else 'by probes'}, {self.method})",
            f"  largest singular value {least}{plain(self.largest_singular_value, 4)}, "
            f"mean square {plain(self.mean_squared_singular_value, 4)}{error}",
            f"  effective rank {plain(self.effective_rank)}, conditioning {least}{plain(self.conditioning)}",
        ]
        if self.spectral_radius is not None:
            lines.append(f"  spectral radius {plain(self.spectral_radius, 4)}")
        return "\n".join(lines)


def jacobian_stats(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    probes: int = 16,
    iterations: int = 50,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> JacobianStats:
    """Statistics of the Jacobian of `function` at `x`, see `Linearization` for what both may be.

    Args:
        function: tensor to tensor.
        x: where; all its elements together are the input.
        probes: random directions for the estimates, each one jvp and one vjp.
        iterations: most steps of the power iteration, each one jvp and one vjp.
        tolerance: relative change of the largest singular value at which it stops.
        seed: of the probes; the global random state is not used.
    """
    if probes < 2 or iterations < 1:
        raise InputError(f"`probes` must be at least 2 and `iterations` 1, got {probes} and {iterations}.")
    linear = Linearization(function, x)
    square = linear.inputs == linear.outputs
    small = min(linear.inputs, linear.outputs) <= EXACT_SIDE and linear.inputs * linear.outputs <= EXACT_ELEMENTS
    if small:
        return _exact(linear, square)
    generator = probe_generator(seed)
    pushed = torch.stack([linear.forward(random_direction(linear.inputs, generator)) for _ in range(probes)])
    fourth = float(torch.stack([linear.backward(u).square().sum() for u in pushed]).mean())  # of ||JᵀJ v||²
    if not math.isfinite(fourth):
        return _not_finite(linear, exact=False)
    trace, trace_error = mean_and_error(pushed.square().sum(1))
    singular, start = _sketch(linear, pushed)
    largest, converged = _power_iteration(linear, start, iterations, tolerance)
    largest = max(largest, float(singular[0]))
    return JacobianStats(
        inputs=linear.inputs,
        outputs=linear.outputs,
        exact=False,
        largest_singular_value=largest,
        mean_squared_singular_value=trace / linear.inputs,
        mean_squared_error=trace_error / linear.inputs,
        effective_rank=_participation(trace, fourth),
        conditioning=_ratio(largest, float(singular[-1]), linear),
        spectral_radius=_arnoldi_radius(linear, generator) if square else None,
        method=linear.method,
        converged=converged,
    )


def _exact(linear: Linearization, square: bool) -> JacobianStats:
    matrix = linear.matrix()
    if not bool(matrix.isfinite().all()):
        return _not_finite(linear, exact=True)
    singular = torch.linalg.svdvals(matrix)
    squares = singular.square()
    return JacobianStats(
        inputs=linear.inputs,
        outputs=linear.outputs,
        exact=True,
        largest_singular_value=float(singular[0]),
        mean_squared_singular_value=float(squares.sum()) / linear.inputs,
        mean_squared_error=0.0,
        effective_rank=_participation(float(squares.sum()), float(squares.square().sum())),
        conditioning=_ratio(float(singular[0]), float(singular[-1]), linear),
        smallest_singular_value=float(singular[-1]),
        spectral_radius=float(torch.linalg.eigvals(matrix).abs().max()) if square else None,
        method=linear.method,
    )


def _not_finite(linear: Linearization, exact: bool) -> JacobianStats:
    """NaN throughout: a decomposition would raise, or invent numbers."""
    return JacobianStats(
        inputs=linear.inputs,
        outputs=linear.outputs,
        exact=exact,
        largest_singular_value=math.nan,
        mean_squared_singular_value=math.nan,
        mean_squared_error=math.nan,
        effective_rank=math.nan,
        conditioning=math.nan,
        method=linear.method,
        converged=False,
    )


def _participation(total: float, total_of_squares: float) -> float:
    return total * total / total_of_squares if total_of_squares > 0 else 0.0 if total == 0 else math.nan


def _ratio(largest: float, smallest: float, linear: Linearization) -> float:
    """Infinite where the smallest is below what the function's precision can tell from zero."""
    rounding = torch.finfo(linear.dtype).eps * math.sqrt(max(linear.inputs, linear.outputs)) * largest
    return largest / smallest if smallest > rounding else math.inf if largest > 0 else math.nan


def _sketch(linear: Linearization, pushed: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values of J on the range that the probes reach, and the direction that grows most there."""
    basis, _ = torch.linalg.qr(pushed.T)  # (outputs, probes)
    reduced = torch.stack([linear.backward(column) for column in basis.T])  # (probes, inputs)
    _, singular, right = torch.linalg.svd(reduced, full_matrices=False)
    return singular, right[0]


def _power_iteration(linear: Linearization, v: Tensor, iterations: int, tolerance: float) -> tuple[float, bool]:
    """The largest singular value by repeated JᵀJ, from a start that is already close."""
    previous = 0.0
    for _ in range(iterations):
        pushed = linear.forward(v)
        now = float(pushed.norm())
        if not math.isfinite(now) or now == 0:
            return now, True
        if abs(now - previous) <= tolerance * now:
            return now, True
        previous = now
        v = linear.backward(pushed / now)
        v = v / v.norm()
    return previous, False


def _arnoldi_radius(linear: Linearization, generator: torch.Generator) -> float:
    """The largest eigenvalue magnitude from a Krylov space, which unlike power iteration also holds complex pairs."""
    size = min(KRYLOV, linear.inputs)
    basis = torch.zeros(size, linear.inputs, dtype=torch.float64, device=linear.device)  # rows are orthonormal
    hessenberg = torch.zeros(size, size, dtype=torch.float64, device=linear.device)
    start = torch.randn(linear.inputs, generator=generator, dtype=torch.float64).to(linear.device)
    basis[0] = start / start.norm()
    for column in range(size):
        vector = linear.forward(basis[column])
        for _ in range(2):  # once is not enough against rounding
            overlaps = basis[: column + 1] @ vector
            hessenberg[: column + 1, column] += overlaps
            vector = vector - overlaps @ basis[: column + 1]
        length = vector.norm()
        if column + 1 == size or float(length) < 1e-12:
            return float(torch.linalg.eigvals(hessenberg[: column + 1, : column + 1]).abs().max())
        hessenberg[column + 1, column] = length
        basis[column + 1] = vector / length
    return math.nan
