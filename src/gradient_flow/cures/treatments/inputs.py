"""Treatments of the data: inputs at mean 0 and deviation 1, samples of another unit at the usual size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from gradient_flow.cures.patient import Patient
from gradient_flow.cures.registry import register_treatment
from gradient_flow.diagnosis.treatment import Treatment

_STANDARD: Final = (0.5, 2.0)
"""Deviations that need no treatment, with means below the lower one."""
_EXTREME: Final = 20.0
"""Means or deviations of a single column that drown the others."""
_WILD: Final = 10.0
"""Times the usual size of a sample from which it is of another unit."""
_FEW: Final = 0.3
"""Share of samples: what is more is no exception."""


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
    extreme = (std > _EXTREME) | (mean.abs() > _EXTREME)  # one column in raw units is enough
    if fine < 0.9 or bool(extreme.any()) or not bool(finite.all()):
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

    model.register_forward_pre_hook(_with_first(changed), with_kwargs=True)


def _with_first(changed: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """A hook that changes the first real tensor among the arguments of a module."""

    def before(_module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        first = _first_real((inputs, dict(named)))
        if first is None:  # nothing to change; an argument that is left out is None too
            return inputs, dict(named)
        new = changed(first)
        args = tuple(new if each is first else each for each in inputs)
        return args, {name: new if each is first else each for name, each in named.items()}

    return before


def _outliers(patient: Patient) -> Iterator[Treatment]:
    """Where a few samples are many times as large as the others: in another unit, or broken."""
    firsts = [_first_real(patient.batches.batch(at)) for at in (*patient.training, *patient.held_out)]
    sizes = torch.cat(
        [_sizes(each.detach().double()).flatten().cpu() for each in firsts if each is not None] or [torch.zeros(0)]
    )
    sizes = sizes[sizes.isfinite() & (sizes > 0)]
    if not len(sizes):
        return
    usual = float(sizes.median())
    wild = float((sizes > _WILD * usual).double().mean())
    if 0 < wild < _FEW:
        settings = {"usual": float(f"{usual:.3g}"), "limit": float(f"{_WILD * usual:.3g}")}
        yield Treatment("level_samples", {**settings, "restore": False})
        yield Treatment("level_samples", {**settings, "restore": True})


def _sizes(tensor: torch.Tensor) -> torch.Tensor:
    """Root mean square of each sample, in a shape that multiplies it."""
    return (
        tensor.square().mean(dim=tuple(range(1, tensor.dim())), keepdim=True).sqrt()
        if tensor.dim() > 1
        else tensor.abs()
    )


@register_treatment("level_samples", proposed_by=_outliers, against=("UNSTABLE", "EXPLODING", "NUMERICAL"))
def level_samples(
    model: nn.Module, _optimizer: torch.optim.Optimizer, usual: float, limit: float, restore: bool
) -> None:
    """Samples beyond a limit are scaled to the usual size; with `restore` the outputs for them are scaled back."""
    kept: list[torch.Tensor] = []

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        sizes = _sizes(tensor.detach())
        factor = torch.where(sizes > limit, sizes / usual, torch.ones_like(sizes))
        kept[:] = [factor.flatten()]
        return tensor / factor

    def back(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        factor = kept.pop() if kept else None
        fits = isinstance(output, torch.Tensor) and factor is not None and output.shape[:1] == factor.shape
        return output * factor.view(-1, *(1,) * (output.dim() - 1)) if fits and factor is not None else output

    model.register_forward_pre_hook(_with_first(changed), with_kwargs=True)
    if restore:
        model.register_forward_hook(back)
