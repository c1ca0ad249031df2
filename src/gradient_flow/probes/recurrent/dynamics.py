"""What the Jacobians along a sequence tell: spectral radius, Lyapunov exponents, growth of products, gradient decay.

All of it is computed from products with the Jacobians, at points spread over steps and samples. Random directions come
from a generator of our own, so the same transitions give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch

from gradient_flow.capture.random_state import probe_generator
from gradient_flow.probes.recurrent.cells import Transitions

DENSE_UP_TO: Final = 256
"""States up to this size have their eigenvalues computed from the whole matrix, larger ones by Arnoldi's method."""


def precision_for(size: int) -> torch.dtype:
    """fp64; fp32 for large states, whose radius is an estimate to a percent anyway: thin products take a quarter."""
    return torch.float64 if size <= DENSE_UP_TO else torch.float32


_POINTS: Final = 8
_POINTS_LARGE: Final = 4
_SEQUENCES: Final = 4
_SEQUENCES_LARGE: Final = 2
_LONGEST_WINDOW: Final = 64
_LONGEST_WINDOW_LARGE: Final = 32
_ROUND_TRIPS: Final = 2
_ROUND_TRIPS_LARGE: Final = 1
"""Of the power iteration. One changes a norm by a few percent, where what counts is its order of magnitude."""
_KRYLOV_LARGE: Final = 48
"""The radius is then within 3 %, a fifth of the band that it is compared with."""
_SMALLEST: Final = 1e-30
"""Stands for zero in logarithms."""


def spectral_radius(transitions: Transitions) -> float:
    """The median over points of the largest |eigenvalue| of J.

    The points are evenly spaced over the sequence without its ends (the first state is often zero and unlike all later
    ones) and go round the samples: 8 of them, 4 for states above 128.
    """
    count = _POINTS if transitions.size <= DENSE_UP_TO // 2 else _POINTS_LARGE
    inner = torch.linspace(0, transitions.steps - 1, count + 2)[1:-1].round().long()
    times = inner.to(transitions.device)
    rows = torch.arange(count, device=transitions.device) % transitions.rows
    if transitions.size <= DENSE_UP_TO:
        magnitudes = torch.linalg.eigvals(jacobians(transitions, times, rows)).abs().amax(dim=-1)
    else:
        start = _directions(transitions, count)
        magnitudes = largest_magnitudes(lambda v: transitions.apply(times, rows, v), start, _KRYLOV_LARGE)
    return float(torch.quantile(magnitudes, 0.5))


def jacobians(transitions: Transitions, times: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """J at the given points as matrices; (points, size, size)."""
    size = transitions.size
    probe = _directions(transitions, 1)
    columns = torch.eye(size, dtype=probe.dtype, device=probe.device).repeat(len(times), 1)
    products = transitions.apply(times.repeat_interleave(size), rows.repeat_interleave(size), columns)
    return products.reshape(len(times), size, size).transpose(1, 2)  # the products are the columns of J


def lyapunov_exponents(transitions: Transitions, count: int = 3) -> tuple[float, ...]:
    """The `count` largest exponents per step, largest first, by the QR method, averaged over a few sequences.

    The first tenth of the steps only turns the directions. Above 0 neighbouring states, and gradients on their way
    back, grow exponentially on average over the sequence; ln of the radius for a linear cell.
    """
    sequences, count = _sequences(transitions), min(count, transitions.size)
    frames = _directions(transitions, sequences * count).reshape(sequences, count, -1)
    frames = torch.linalg.qr(frames.transpose(1, 2)).Q  # (sequences, size, count)
    rows = torch.arange(sequences, device=transitions.device).repeat_interleave(count)
    burn_in, total = transitions.steps // 10, frames.new_zeros(count)
    for time in range(transitions.steps):
        vectors = transitions.apply(torch.full_like(rows, time), rows, frames.transpose(1, 2).flatten(0, 1))
        frames, triangle = torch.linalg.qr(vectors.reshape(sequences, count, -1).transpose(1, 2))
        if time >= burn_in:
            total += triangle.diagonal(dim1=-2, dim2=-1).abs().clamp_min(_SMALLEST).log().mean(dim=0)
    exponents: list[float] = (total / (transitions.steps - burn_in)).tolist()
    return tuple(sorted(exponents, reverse=True))


def product_norms(transitions: Transitions, round_trips: int | None = None) -> dict[int, float]:
    """The largest norm found of a product of consecutive Jacobians J_t … J_s, by the number of factors.

    By power iteration over windows of 1, 2, 4, … 64 steps (32 for large states) and the whole sequence if shorter, two
    windows of each length: a lower bound, tight where one direction grows most. Far above 1 at a radius below 1 is
    transient growth.
    """
    large = transitions.size > DENSE_UP_TO
    round_trips = round_trips or (_ROUND_TRIPS_LARGE if large else _ROUND_TRIPS)
    longest = min(transitions.steps, _LONGEST_WINDOW_LARGE if large else _LONGEST_WINDOW)
    lengths = sorted({2**k for k in range(7) if 2**k <= longest} | {longest})
    windows = [(length, start) for length in lengths for start in _starts(transitions.steps, length)]
    windows.sort(reverse=True)  # so that those still under way are the first rows
    length = torch.tensor([window[0] for window in windows], device=transitions.device)
    start = torch.tensor([window[1] for window in windows], device=transitions.device)
    rows = torch.arange(len(windows), device=transitions.device) % transitions.rows
    under_way = [sum(window[0] > step for window in windows) for step in range(windows[0][0])]
    v = _directions(transitions, len(windows))
    for trip in range(round_trips + 1):
        grown = v.new_zeros(len(windows))
        for step, count in enumerate(under_way):
            v[:count], logarithm = _normalised(transitions.apply(start[:count] + step, rows[:count], v[:count]))
            grown[:count] += logarithm
        if trip == round_trips:
            break
        for step, count in reversed(list(enumerate(under_way))):
            v[:count] = _normalised(transitions.pull(start[:count] + step, rows[:count], v[:count]))[0]
    norms: dict[int, float] = {}
    for factors, logarithm in zip(length.tolist(), grown.tolist(), strict=True):
        norms[factors] = max(norms.get(factors, 0.0), math.exp(min(logarithm, 700.0)))
    return dict(sorted(norms.items()))


def carried_back(transitions: Transitions, cotangents: torch.Tensor | None = None) -> list[float]:
    """ln ||dL/ds_t|| for a loss at the last step, from the last state back to the first, over a few sequences together.

    `cotangents` (rows, size) is dL/ds at the last step; without it random directions are carried. The list ends with
    -inf where nothing is left of the gradient.
    """
    rows = torch.arange(_sequences(transitions), device=transitions.device)
    u = cotangents[: len(rows)] if cotangents is not None else _directions(transitions, len(rows))
    logarithms, total = [], u.new_zeros(())
    for time in reversed(range(-1, transitions.steps)):
        # One length for all sequences: what counts is the gradient of the batch, and a sample may be without a loss.
        size = u.norm()
        total = total + size.log()
        logarithms.append(total)
        if time >= 0:
            u = transitions.pull(torch.full_like(rows, time), rows, u / size.clamp_min(_SMALLEST))
    values: list[float] = torch.stack(logarithms).tolist()
    gone = values.index(-math.inf) if -math.inf in values else len(values)
    return values[: gone + 1]


def _starts(steps: int, length: int) -> set[int]:
    """Windows at the end of the sequence, and from a third of the room before it on."""
    return {steps - length, (steps - length) // 3}


def _sequences(transitions: Transitions) -> int:
    return min(transitions.rows, _SEQUENCES if transitions.size <= DENSE_UP_TO else _SEQUENCES_LARGE)


def _directions(transitions: Transitions, count: int) -> torch.Tensor:
    drawn = torch.randn(count, transitions.size, generator=probe_generator(0), dtype=torch.float64)
    drawn /= drawn.norm(dim=-1, keepdim=True)
    return drawn.to(device=transitions.device, dtype=transitions.dtype)


def _normalised(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors and the logarithms of their lengths. Without this, two hundred small factors underflow."""
    lengths = vectors.norm(dim=-1).clamp_min(_SMALLEST)
    return vectors / lengths.unsqueeze(-1), lengths.log()


STEPS: Final = 64
"""Size of the Krylov space. Against dense eigenvalues of 512 × 512 matrices (random, orthogonal, symmetric, gated) the
largest magnitude is within 1.5 % with 64, 3 % with 48 and 10 % with 16."""


def largest_magnitudes(
    product: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor, steps: int = STEPS
) -> torch.Tensor:
    """The largest |eigenvalue| of each of several matrices, by Arnoldi's method; (matrices,).

    `product` multiplies row i of a (matrices, size) tensor by matrix i. Where eigenvalues of one magnitude crowd
    together, as in an orthogonal matrix, the result is a percent or so too low. Power iteration on JᵀJ would give the
    norm instead, which for a non-normal matrix is something else.

    >>> matrix = torch.tensor([[0.5, 10.0], [0.0, 0.5]], dtype=torch.float64)
    >>> float(largest_magnitudes(lambda v: v @ matrix.T, torch.ones(1, 2, dtype=torch.float64)).round(decimals=6))
    0.5
    """
    count, size = start.shape
    steps = min(steps, size)
    basis = start.new_zeros(count, steps + 1, size)
    hessenberg = start.new_zeros(count, steps + 1, steps)
    basis[:, 0] = start / start.norm(dim=-1, keepdim=True)
    scale = start.new_zeros(count, 1)
    for k in range(steps):
        after = product(basis[:, k])
        scale = torch.maximum(scale, after.norm(dim=-1, keepdim=True))
        known = basis[:, : k + 1]  # (matrices, k + 1, size)
        for _ in range(2):  # once is not enough: the basis would lose its right angles to rounding
            share = torch.bmm(known, after.unsqueeze(-1)).squeeze(-1)
            after = after - torch.bmm(share.unsqueeze(1), known).squeeze(1)
            hessenberg[:, : k + 1, k] += share
        rest = after.norm(dim=-1, keepdim=True)
        # A space that closes has all its eigenvalues already: what follows is multiplied by zero.
        open_ = rest > 16 * torch.finfo(start.dtype).eps * scale
        hessenberg[:, k + 1, k] = torch.where(open_, rest, 0).squeeze(-1)
        basis[:, k + 1] = torch.where(open_, after / rest, 0)
    magnitudes: torch.Tensor = torch.linalg.eigvals(hessenberg[:, :steps]).abs()
    return magnitudes.amax(dim=-1)
