"""Treatments of a layer that is far too narrow: what it takes goes around it, as it is or through new weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gradient_flow.cures.batches import buffers_kept, seed_all
from gradient_flow.cures.patient import Patient, hooks_kept
from gradient_flow.cures.registry import register_treatment
from gradient_flow.diagnosis.treatment import Treatment


def _around(patient: Patient) -> list[tuple[list[str], torch.Size, torch.Size]]:
    """From in front of a layer that is far too narrow to behind the next one, with the shapes there."""
    named = [issue.layer for issue in patient.issues if issue.issue_type.name == "BOTTLENECK"]
    order = list(patient.rms)
    shaped = {path: patient.model.get_submodule(path).weight.shape for path in order}
    narrow = [path for path in order if any(path == each or shaped[path] == shaped.get(each) for each in named)]
    pairs = [
        [path, order[order.index(path) + 1]] for path in narrow if path in order and order.index(path) < len(order) - 1
    ]
    shapes: dict[str, torch.Size] = {}

    def before(path: str) -> Any:
        return lambda _module, inputs: shapes.setdefault(path, inputs[0].shape) and None

    def after(path: str) -> Any:
        return lambda _module, _inputs, output: shapes.setdefault(f"{path} out", output.shape) and None

    with hooks_kept(patient.model), torch.no_grad(), buffers_kept(patient.model):
        for first, last in pairs:
            patient.model.get_submodule(first).register_forward_pre_hook(before(first))
            patient.model.get_submodule(last).register_forward_hook(after(last))
        seed_all(patient.seed)
        patient.batches.loss(patient.model, patient.held_out[0])
    return [(pair, shapes[pair[0]], shapes[f"{pair[1]} out"]) for pair in pairs if f"{pair[1]} out" in shapes]


def _bypasses(patient: Patient) -> Iterator[Treatment]:
    """Where the shapes allow it."""
    fitting = [pair for pair, before, after in _around(patient) if _fits(before, after)]
    if fitting:
        yield Treatment("bypass", {"pairs": fitting})


def _ways(patient: Patient) -> Iterator[Treatment]:
    """Where only the number of features differs, new weights map one to the other."""
    fitting = [
        [*pair, before[-1], after[-1]]
        for pair, before, after in _around(patient)
        if before[:-1] == after[:-1] and before[-1] != after[-1]
    ]
    if fitting:
        yield Treatment("way_around", {"pairs": fitting})


@register_treatment("way_around", proposed_by=_ways, against=("BOTTLENECK",))
def way_around(model: nn.Module, optimizer: torch.optim.Optimizer, pairs: Sequence[Sequence[Any]]) -> None:
    """Add a linear map of what the first layer of a pair takes to what the last one returns; it is trained too."""
    for first, last, width, wanted in pairs:
        layer: Any = model.get_submodule(last)
        layer.way_around = nn.Linear(width, wanted, bias=False).to(layer.weight)
        optimizer.add_param_group({"params": [layer.way_around.weight], "lr": optimizer.param_groups[0]["lr"]})
        _add_around(model.get_submodule(first), layer, layer.way_around)


def _fits(before: torch.Size, after: torch.Size) -> bool:
    """Equal, or as many channels and fewer positions, which pooling gives."""
    pooled = len(before) == len(after) == 4 and before[:2] == after[:2] and max(after[2:]) <= min(before[2:])
    return before == after or pooled


@register_treatment("bypass", proposed_by=_bypasses, against=("BOTTLENECK",))
def bypass(model: nn.Module, _optimizer: torch.optim.Optimizer, pairs: Sequence[Sequence[str]]) -> None:
    """Add what the first layer of a pair takes to what the last one returns."""
    for first, last in pairs:
        _add_around(model.get_submodule(first), model.get_submodule(last), lambda x: x)


def _add_around(first: nn.Module, last: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Add what the first takes, changed, to what the last returns."""
    kept: list[torch.Tensor] = []

    def keep(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        kept[:] = inputs[:1]

    def add(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        x = change(kept.pop())
        if x.shape != output.shape:
            x = F.adaptive_avg_pool2d(x, (output.shape[2], output.shape[3]))
        return output + x

    first.register_forward_pre_hook(keep)
    last.register_forward_hook(add)
