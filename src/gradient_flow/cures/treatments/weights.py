"""Treatments of weights: rescaling by data (LSUV), initialisation, biases, dead units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.cures.batches import buffers_kept, seed_all
from gradient_flow.cures.patient import NORMS, Patient, hooks_kept, untouchable
from gradient_flow.cures.registry import register_treatment
from gradient_flow.diagnosis.treatment import Treatment

_NEAR_ONE: Final = 1.25
"""Factors within this of 1 are not worth a trial."""
_LARGE_BIAS: Final = 0.5
"""Root mean square of a bias that no usual initialisation gives."""


def into_norm(patient: Patient) -> set[str]:
    """Layers whose output goes straight into a norm, which takes every scale out again: rescaling does nothing."""
    returned: dict[int, tuple[str, torch.Tensor]] = {}  # with the tensor, or its id would be given to another one
    found: set[str] = set()

    def note(path: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                returned[id(output)] = path, output

        return hook

    def take(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        found.update(returned[id(each)][0] for each in inputs if id(each) in returned)

    with hooks_kept(patient.model), torch.no_grad(), buffers_kept(patient.model):
        for path, module in patient.model.named_modules():
            if isinstance(module, NORMS):
                module.register_forward_pre_hook(take)
            elif path in patient.rms:
                module.register_forward_hook(note(path))
        seed_all(patient.seed)
        patient.batches.loss(patient.model, patient.held_out[0])
    return found


def _lsuv(patient: Patient) -> Iterator[Treatment]:
    """Factors that give every layer's output unit variance, from the first to the last (arXiv 1511.06422)."""
    layers = patient.layers()
    path_of = {module: path for path, module in layers.items()}
    last = next(reversed(patient.rms), "")
    skipped = into_norm(patient) | {last}
    factors: dict[str, float] = {}

    def scale(module: nn.Module, _inputs: Any, output: Any) -> Any:
        path = path_of[module]
        if path in factors or not isinstance(output, torch.Tensor):
            return output * factors[path] if path in factors else output
        std = float(output.detach().double().std())
        usable = math.isfinite(std) and std > 1e-12
        factors[path] = min(max(1 / std, 1e-6), 1e6) if usable else 1.0
        return output * factors[path]  # as scaling weight and bias does

    with hooks_kept(patient.model), torch.no_grad(), buffers_kept(patient.model):
        for path, module in layers.items():
            if path not in skipped:
                module.register_forward_hook(scale)
        seed_all(patient.seed)
        patient.batches.loss(patient.model, patient.held_out[0])
    worth_it = {path: factor for path, factor in factors.items() if not 1 / _NEAR_ONE < factor < _NEAR_ONE}
    if worth_it:
        yield Treatment("rescale", {"factors": worth_it})


@register_treatment("rescale", proposed_by=_lsuv, fresh=True, against=("VANISHING", "EXPLODING", "SATURATION"))
def rescale(model: nn.Module, _optimizer: torch.optim.Optimizer, factors: Mapping[str, float]) -> None:
    """Multiply weights and biases of layers."""
    with torch.no_grad():
        for path, factor in factors.items():
            for tensor in _module_of(model, path).parameters(recurse=False):
                tensor.mul_(factor)


def _module_of(model: nn.Module, path: str) -> nn.Module:
    """A module by its path, or by that of one of its parameters, as a run knows it."""
    parent, _, last = path.rpartition(".")
    return model.get_submodule(parent if last in ("weight", "bias") else path)


def _initialisations(patient: Patient) -> Iterator[Treatment]:
    layers = list(patient.layers())
    if layers:
        bounded = any(isinstance(module, (nn.Tanh, nn.Sigmoid, nn.Hardtanh)) for module in patient.model.modules())
        # No activation follows the last layer of all.
        head = {"head": layers[-1]} if layers[-1] == next(reversed(patient.rms)) else {}
        yield Treatment("reinitialise", {"layers": layers, "how": "xavier" if bounded else "he", **head})


@register_treatment(
    "reinitialise",
    proposed_by=_initialisations,
    fresh=True,
    against=("VANISHING", "EXPLODING", "SATURATION", "SYMMETRY", "LOW_RANK", "DEAD", "HEAD_DIVERSITY"),
)
def reinitialise(
    model: nn.Module, optimizer: torch.optim.Optimizer, layers: Sequence[str], how: str, head: str = ""
) -> None:
    """Draw weights anew and set biases to zero; what the optimizer remembers of them is forgotten."""
    with torch.no_grad():
        for path in layers:
            layer: Any = model.get_submodule(path)
            if how == "he" and path != head:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            else:
                nn.init.xavier_normal_(layer.weight)
            optimizer.state.pop(layer.weight, None)
            if layer.bias is not None:
                layer.bias.zero_()
                optimizer.state.pop(layer.bias, None)


def _biases(patient: Patient) -> Iterator[Treatment]:
    wrong = untouchable(patient.model)
    large = []
    for path in patient.rms:
        bias = patient.model.get_submodule(path).bias
        if isinstance(bias, torch.Tensor) and bias not in wrong:
            rms = float(bias.detach().double().square().mean().sqrt())
            if rms > _LARGE_BIAS:
                large.append(path)
    if large:
        yield Treatment("reset_biases", {"layers": large})


@register_treatment("reset_biases", proposed_by=_biases, fresh=True, against=("DEAD", "SATURATION", "EXPLORATION"))
def reset_biases(model: nn.Module, optimizer: torch.optim.Optimizer, layers: Sequence[str]) -> None:
    """Set biases to zero."""
    with torch.no_grad():
        for path in layers:
            bias: Any = model.get_submodule(path).bias
            bias.zero_()
            optimizer.state.pop(bias, None)


def _dead_units(patient: Patient) -> Iterator[Treatment]:
    """Units whose incoming weights get no gradient from any batch."""
    layers = patient.layers()
    units = {}
    for path, alive in _gradient_rows(patient, layers).items():
        dead = [at for at, lives in enumerate(alive) if not lives]
        if dead and path != next(reversed(patient.rms), ""):
            units[path] = dead
    if units:
        yield Treatment("revive", {"units": units})


def _gradient_rows(patient: Patient, layers: Mapping[str, nn.Module]) -> dict[str, list[bool]]:
    weights = {path: layer.weight for path, layer in layers.items()}
    if not weights:
        return {}
    alive = {path: torch.zeros(len(weight), dtype=torch.bool) for path, weight in weights.items()}  # type: ignore[arg-type]
    with buffers_kept(patient.model), torch.enable_grad():
        for at in patient.held_out:
            seed_all(patient.seed + at)
            loss = patient.batches.loss(patient.model, at)
            if not loss.requires_grad:
                return {}
            found: Any = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)  # type: ignore[arg-type]
            for path, gradient in zip(weights, found, strict=True):
                if gradient is None:
                    alive[path][:] = True  # not on the way to the loss: nothing that new weights would heal
                else:
                    alive[path] |= gradient.flatten(1).ne(0).any(dim=1).cpu()
    return {path: rows.tolist() for path, rows in alive.items()}


@register_treatment("revive", proposed_by=_dead_units, against=("DEAD",))
def revive(model: nn.Module, optimizer: torch.optim.Optimizer, units: Mapping[str, Sequence[int]]) -> None:
    """Draw the incoming weights of some units anew, bias at zero, and clear their rows in the optimizer's state."""
    with torch.no_grad():
        for path, which in units.items():
            layer: Any = model.get_submodule(path)
            rows, drawn = list(which), torch.empty_like(layer.weight)
            nn.init.kaiming_normal_(drawn, nonlinearity="relu")
            layer.weight[rows] = drawn[rows]
            if layer.bias is not None:
                layer.bias[rows] = 0.0
            for tensor in (layer.weight, layer.bias):
                for kept in optimizer.state.get(tensor, {}).values() if tensor is not None else ():
                    if isinstance(kept, torch.Tensor) and kept.shape == tensor.shape:
                        kept[rows] = 0.0
