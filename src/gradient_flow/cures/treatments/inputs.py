"""Treatment of the data: inputs at mean 0 and deviation 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from gradient_flow.cures.patient import Patient
from gradient_flow.cures.registry import register_treatment
from gradient_flow.diagnosis.treatment import Treatment

_STANDARD: Final = (0.5, 2.0)
"""Deviations that need no treatment, with means below the lower one."""


def _standardise(patient: Patient) -> Iterator[Treatment]:
    tensors = [tensor for at in patient.training[:16] if (tensor := _first_real(patient.batches.batch(at))) is not None]
    if not tensors or len({tensor.dim() for tensor in tensors}) > 1 or tensors[0].dim() < 2:
        return
    dim = 1 if tensors[0].dim() >= 4 else -1  # channels of an image; else the last
    columns = torch.cat([tensor.detach().double().movedim(dim, 0).flatten(1).cpu() for tensor in tensors], dim=1)
    finite = columns.isfinite()
    count = finite.sum(dim=1).clamp_min(1)
    mean = torch.where(finite, columns, 0).sum(dim=1) / count
    std = (torch.where(finite, columns - mean[:, None], 0).square().sum(dim=1) / count).sqrt()
    # A column that hardly varies, such as a mask, has no deviation to divide by.
    std = torch.where(std > 1e-6 * std.max().clamp_min(1e-30), std, torch.ones_like(std))
    fine = ((std >= _STANDARD[0]) & (std <= _STANDARD[1]) & (mean.abs() <= _STANDARD[0])).double().mean()
    if fine < 0.9 or not bool(finite.all()):
        yield Treatment("standardise", {"mean": mean.tolist(), "std": std.tolist(), "dim": dim})


def _first_real(batch: Any) -> torch.Tensor | None:
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    return leaves[0] if leaves else None


@register_treatment(
    "standardise", proposed_by=_standardise, against=("SATURATION", "NUMERICAL", "UNSTABLE", "EXPLODING", "DEAD")
)
def standardise(
    model: nn.Module, _optimizer: torch.optim.Optimizer, mean: Sequence[float], std: Sequence[float], dim: int
) -> None:
    """Standardise the first real tensor that the model is given; what is missing becomes the mean."""
    shape = (-1, 1, 1) if dim == 1 else (-1,)

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        middle, spread = (
            torch.tensor(each, dtype=tensor.dtype, device=tensor.device).view(shape) for each in (mean, std)
        )
        return torch.nan_to_num((tensor - middle) / spread, posinf=0.0, neginf=0.0)

    def before(_module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        first = _first_real((inputs, dict(named)))
        if first is None:  # nothing to standardise; an argument that is left out is None too
            return inputs, dict(named)
        args = tuple(changed(first) if each is first else each for each in inputs)
        return args, {name: changed(first) if each is first else each for name, each in named.items()}

    model.register_forward_pre_hook(before, with_kwargs=True)
