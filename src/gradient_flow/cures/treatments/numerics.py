"""Treatment of NaN and Inf: zeros in their place, on the way forward and back, so that the other samples train."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from gradient_flow.cures.patient import Patient
from gradient_flow.cures.registry import register_treatment
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.diagnosis.treatment import Treatment


def is_nonfinite(record: AnalysisRecord) -> bool:
    """Whether an examination saw a loss or a gradient that is not finite."""
    return not all(map(math.isfinite, (*record.losses, *record.norms)))


def _zeros(patient: Patient) -> Iterator[Treatment]:
    if is_nonfinite(patient.record):
        yield Treatment("zero_nonfinite")


@register_treatment("zero_nonfinite", proposed_by=_zeros, against=("NUMERICAL",))
def zero_nonfinite(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What is not finite in outputs, their gradients and those of weights becomes 0."""
    for module in model.modules():
        module.register_forward_hook(_finite_output)
    optimizer.register_step_pre_hook(_finite_gradients)


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(tensor, 0.0, 0.0, 0.0)


def _finite_output(_module: nn.Module, _inputs: Any, output: Any) -> Any:
    return tree_map(finite_both_ways, output)


def finite_both_ways(value: Any) -> Any:
    """0 for NaN and Inf in a real tensor, and in its gradient; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    made = _finite(value)
    if made.requires_grad:  # where NaN was made, its derivative is NaN too: it must not go on to other samples
        made.register_hook(_finite)  # type: ignore[no-untyped-call]  # torch does not type it
    return made


def _finite_gradients(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for tensor in group["params"]:
            if tensor.grad is not None:
                tensor.grad.nan_to_num_(0.0, 0.0, 0.0)
