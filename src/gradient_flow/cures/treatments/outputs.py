"""Treatment of outputs: logits or deviations that are far too large or too small before anything is learnt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from gradient_flow.analysis.steps import call_model
from gradient_flow.cures.batches import buffers_kept, seed_all
from gradient_flow.cures.patient import Patient
from gradient_flow.cures.registry import register_treatment
from gradient_flow.diagnosis.treatment import Treatment

_USUAL: Final = (0.02, 6.0)
"""Root mean squares that logits, deviations and standardised answers have."""
_SURE: Final = 1.5
"""The same where the model is sure of its answers for no reason."""
_A_MASK: Final = 1e6
"""Logits below minus this are masked, and not large."""


def _sizes(patient: Patient) -> dict[int, float]:
    """Root mean square of every real tensor that the model returns, by its place in what it returns."""
    seed_all(patient.seed)
    with torch.no_grad(), buffers_kept(patient.model):
        output = call_model(patient.model, patient.batches.batch(patient.held_out[0]))
    found = {}
    for at, leaf in enumerate(tree_flatten(output)[0]):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            real = leaf.detach().double()
            real = real[real.abs() < _A_MASK]  # NaN is not, either
            if real.numel():
                found[at] = float(real.square().mean().sqrt())
    return found


def _outputs(patient: Patient) -> Iterator[Treatment]:
    low, high = _USUAL
    if any(issue.issue_type.name == "EXPLORATION" for issue in patient.issues):
        high = _SURE
    factors = {
        str(at): float(f"{1 / size:.2g}") for at, size in _sizes(patient).items() if size > high or 0 < size < low
    }
    if factors:
        yield Treatment("scale_outputs", {"factors": factors})


@register_treatment("scale_outputs", proposed_by=_outputs, against=("EXPLORATION", "VANISHING", "SATURATION"))
def scale_outputs(model: nn.Module, _optimizer: torch.optim.Optimizer, factors: Mapping[str, float]) -> None:
    """Multiply what the model returns; `factors` by place among the tensors that it returns."""

    def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        leaves, form = tree_flatten(output)
        return tree_unflatten(
            [leaf * factors[str(at)] if str(at) in factors else leaf for at, leaf in enumerate(leaves)], form
        )

    model.register_forward_hook(hook)
