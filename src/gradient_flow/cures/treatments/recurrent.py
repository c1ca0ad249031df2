"""Treatments of recurrent layers: the size of recurrent weights, the bias of forget gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.cures.patient import Patient, untouchable
from gradient_flow.cures.registry import register_treatment
from gradient_flow.diagnosis.treatment import Treatment

_RADIUS: Final = 1.0
"""Spectral radius that neither forgets nor explodes."""
_FORGET: Final = 1.0
"""Bias of the forget gate that Jozefowicz et al. (2015) recommend."""


def _recurrent(patient: Patient) -> Iterator[Treatment]:
    wrong = untouchable(patient.model)
    factors = {}
    for path, module in patient.model.named_modules():
        if not isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
            continue
        for name, weight in module.named_parameters(recurse=False):
            if name.startswith("weight_hh") and weight not in wrong and weight.shape[1] <= 2048:
                radius = max(_radii(weight.detach()))
                if radius > 1.5 * _RADIUS or 0 < radius < 0.3 * _RADIUS:
                    factors[f"{path}.{name}" if path else name] = _RADIUS / radius
    if factors:
        yield Treatment("scale_recurrent", {"factors": factors})


def _radii(weight: torch.Tensor) -> list[float]:
    """Spectral radius of the matrix of each gate."""
    gates = torch.split(weight.double().cpu(), weight.shape[1])  # (width, width) each
    square = [gate for gate in gates if gate.shape[0] == gate.shape[1] and gate.isfinite().all()]
    return [float(torch.linalg.eigvals(gate).abs().max()) for gate in square] or [_RADIUS]


@register_treatment(
    "scale_recurrent", proposed_by=_recurrent, against=("SPECTRAL_RADIUS", "EXPLODING", "VANISHING", "SHORT_MEMORY")
)
def scale_recurrent(model: nn.Module, _optimizer: torch.optim.Optimizer, factors: Mapping[str, float]) -> None:
    """Multiply recurrent weights."""
    with torch.no_grad():
        for name, factor in factors.items():
            model.get_parameter(name).mul_(factor)


def _forget_gates(patient: Patient) -> Iterator[Treatment]:
    wrong = untouchable(patient.model)
    layers = [
        path
        for path, module in patient.model.named_modules()
        if isinstance(module, (nn.LSTM, nn.LSTMCell))
        and module.bias
        and not any(t in wrong for t in module.parameters())
    ]
    if layers:
        yield Treatment("forget_gate", {"layers": layers, "bias": _FORGET})


@register_treatment("forget_gate", proposed_by=_forget_gates, fresh=True, against=("SHORT_MEMORY", "VANISHING"))
def forget_gate(model: nn.Module, _optimizer: torch.optim.Optimizer, layers: Sequence[str], bias: float) -> None:
    """Open the forget gates of LSTMs; torch adds two biases, of which the other one is set to zero."""
    with torch.no_grad():
        for path in layers:
            rnn: Any = model.get_submodule(path)
            for name, tensor in rnn.named_parameters(recurse=False):
                if name.startswith("bias"):
                    quarter = len(tensor) // 4  # input, forget, cell and output gate
                    tensor[quarter : 2 * quarter] = bias if name.startswith("bias_ih") else 0.0


def _orthogonal(patient: Patient) -> Iterator[Treatment]:
    wrong = untouchable(patient.model)
    names = [
        f"{path}.{name}" if path else name
        for path, module in patient.model.named_modules()
        if isinstance(module, (nn.RNNBase, nn.RNNCellBase))
        for name, weight in module.named_parameters(recurse=False)
        if name.startswith("weight") and weight not in wrong
    ]
    if names:
        yield Treatment("reinitialise_recurrent", {"names": names})


@register_treatment(
    "reinitialise_recurrent",
    proposed_by=_orthogonal,
    fresh=True,
    against=("SPECTRAL_RADIUS", "EXPLODING", "VANISHING", "SHORT_MEMORY", "SATURATION", "SYMMETRY", "LOW_RANK", "DEAD"),
)
def reinitialise_recurrent(model: nn.Module, optimizer: torch.optim.Optimizer, names: Sequence[str]) -> None:
    """Recurrent weights orthogonal, gate by gate, input weights Xavier, biases zero."""
    with torch.no_grad():
        for name in names:
            weight = model.get_parameter(name)
            for gate in torch.split(weight, weight.shape[1]) if "weight_hh" in name else ():
                nn.init.orthogonal_(gate)
            if "weight_hh" not in name:
                nn.init.xavier_uniform_(weight)
            optimizer.state.pop(weight, None)
            module: Any = model.get_submodule(name.rpartition(".")[0])
            for other, bias in module.named_parameters(recurse=False):
                if other.startswith("bias"):
                    bias.zero_()
