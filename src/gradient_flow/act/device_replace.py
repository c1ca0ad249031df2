"""NaN and Inf replaced in gradients on a device, without asking it whether there are any."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import torch

from gradient_flow.act.in_place import replace_nonfinite_gradient_, within_range, writable_gradient
from gradient_flow.table import kernels

_TILE: Final = 1024
_EXPONENTS: Final = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F80, torch.float16: 0x7C00}
"""An exponent of all ones, and nothing else set: Inf."""


def replace_nonfinite_there_(parameters: Sequence[torch.Tensor], bad: torch.Tensor, nan: float, inf: float) -> None:
    """Replace NaN by `nan` and ±Inf by ±`inf`, bounded by the range of the dtype.

    `bad` (rows,) says on the device how many elements of each gradient are not finite. With Triton that is one launch
    per dtype, which reads nothing where nothing is bad; else one for each gradient.
    """
    others = list(range(len(parameters)))
    if others and kernels.reads_with_triton(bad):
        gradients = [writable_gradient(parameter) for parameter in parameters]
        by_dtype: dict[torch.dtype, list[int]] = {}
        for at, gradient in enumerate(gradients):
            if gradient.is_contiguous() or (gradient.dim() > 1 and gradient.mT.is_contiguous()):
                by_dtype.setdefault(gradient.dtype, []).append(at)
        done: set[int] = set()
        for dtype, positions in by_dtype.items():
            chosen = [gradients[at] for at in positions]
            rows = bad if len(positions) == len(parameters) else bad.index_select(0, _index(bad.device, (*positions,)))
            if _launched(chosen, rows, _bits(bad.device, dtype, nan, inf)):
                done |= set(positions)
        others = [at for at in others if at not in done]
    for at in others:
        replace_nonfinite_gradient_(parameters[at], nan, inf)


def _launched(gradients: list[torch.Tensor], bad: torch.Tensor, instead: torch.Tensor) -> bool:
    """Whether Triton took it; where it fails, torch operations serve from then on, as for tables."""
    try:
        from gradient_flow.act.replace_kernel import replace_nonfinite
        from gradient_flow.table.kernels import triton_ops

        dtype = gradients[0].dtype
        constants = {"BITS": 8 * dtype.itemsize, "EXPONENT": _EXPONENTS[dtype], "TILE": _TILE}
        triton_ops.launch_over(replace_nonfinite, gradients, bad.contiguous(), instead, **constants)
    except Exception as problem:
        kernels.give_up_triton(problem)
        return False
    return True


@lru_cache(maxsize=16)
def _bits(device: torch.device, dtype: torch.dtype, nan: float, inf: float) -> torch.Tensor:
    """What stands for NaN, Inf and -Inf, as bits. Sent once."""
    numbers = torch.tensor([within_range(number, dtype) for number in (nan, inf, -inf)], dtype=dtype)
    return _sent(numbers.view(torch.int32 if dtype.itemsize == 4 else torch.int16).to(torch.int32), device)


@lru_cache(maxsize=8)
def _index(device: torch.device, positions: tuple[int, ...]) -> torch.Tensor:
    return _sent(torch.tensor(positions), device)


def _sent(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)
