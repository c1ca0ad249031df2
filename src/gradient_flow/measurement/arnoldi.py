"""The largest eigenvalue magnitude of matrices that are known only by their products with vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

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
