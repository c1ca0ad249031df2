"""Treatments between layers: a norm without parameters, scaled branches, skip connections, other activations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from gradient_flow.cures.batches import buffers_kept, seed_all
from gradient_flow.cures.patient import CONVOLUTIONS, Patient, hooks_kept
from gradient_flow.cures.registry import register_treatment
from gradient_flow.cures.treatments.weights import into_norm
from gradient_flow.diagnosis.treatment import Treatment

_SWAPS: Final = {
    "Sigmoid": "SiLU",
    "Tanh": "GELU",
    "Hardtanh": "GELU",
    "Hardsigmoid": "SiLU",
    "Softsign": "GELU",
    "LogSigmoid": "SiLU",
    "ReLU": "GELU",
    "ReLU6": "GELU",
}
_LEAST_BLOCKS: Final = 2


def _norms(patient: Patient) -> Iterator[Treatment]:
    """After every layer but the last and those that a norm follows anyway. A scale that is gone heals its cause."""
    last, normed = next(reversed(patient.rms), ""), into_norm(patient)
    layers = [path for path in patient.rms if path != last and path not in normed and _wide(patient, path)]
    if layers:
        yield Treatment("norm", {"layers": layers})


def _wide(patient: Patient, path: str) -> bool:
    """Of one or two features a norm would leave only the sign."""
    layer: Any = patient.model.get_submodule(path)
    return int(layer.weight.shape[0]) > 3


@register_treatment(
    "norm", proposed_by=_norms, against=("VANISHING", "EXPLODING", "DEAD", "SATURATION", "RANK_COLLAPSE")
)
def insert_norm(model: nn.Module, _optimizer: torch.optim.Optimizer, layers: Sequence[str]) -> None:
    """LayerNorm without parameters after layers; after a convolution over all channels and positions of a sample."""
    for path in layers:
        model.get_submodule(path).register_forward_hook(_norm)


def _norm(module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    if isinstance(module, CONVOLUTIONS):
        return F.group_norm(output, 1)
    return F.layer_norm(output, output.shape[-1:])


def _blocks(patient: Patient) -> list[str]:
    """Repeated modules, in a list of blocks, that return a tensor like the one they take; the outermost ones."""
    found: list[str] = []

    def note(path: str) -> Any:
        def hook(_module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            same = isinstance(output, torch.Tensor) and bool(inputs) and isinstance(inputs[0], torch.Tensor)
            if same and output.shape == inputs[0].shape and output.is_floating_point() and path not in found:
                found.append(path)

        return hook

    with hooks_kept(patient.model), torch.no_grad(), buffers_kept(patient.model):
        for path, module in patient.model.named_modules():
            if path and any(True for _ in module.parameters()):
                module.register_forward_hook(note(path))
        seed_all(patient.seed)
        patient.batches.loss(patient.model, patient.held_out[0])
    return found


def _residual(patient: Patient) -> Iterator[Treatment]:
    fitting = _blocks(patient)
    kinds = {path: type(patient.model.get_submodule(path)) for path in fitting}
    own = [path for path in fitting if any(patient.model.get_submodule(path).children())]
    blocks = [path for path in own if not any(path.startswith(f"{other}.") for other in own)]
    blocks = [path for path in blocks if sum(kinds[path] is kinds[other] for other in blocks) >= _LEAST_BLOCKS]
    if blocks:
        yield Treatment("residual_scale", {"blocks": blocks, "scale": float(f"{len(blocks) ** -0.5:.2g}")})
        if len(blocks) > 3:
            yield Treatment("residual_scale", {"blocks": blocks, "scale": float(f"{1 / len(blocks):.2g}")})


@register_treatment("residual_scale", proposed_by=_residual, against=("EXPLODING", "UNSTABLE"))
def residual_scale(model: nn.Module, _optimizer: torch.optim.Optimizer, blocks: Sequence[str], scale: float) -> None:
    """Multiply what each block adds to its input."""

    def hook(_module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        return torch.lerp(inputs[0], output, scale)  # input + scale · (output - input)

    for path in blocks:
        model.get_submodule(path).register_forward_hook(hook)


def _skips(patient: Patient) -> Iterator[Treatment]:
    """Around plain layers that keep the shape, inside no block: a block has a way around already."""
    fitting = _blocks(patient)
    blocks = [path for path in fitting if any(patient.model.get_submodule(path).children())]
    layers = [path for path in fitting if path in patient.rms and not any(path.startswith(f"{b}.") for b in blocks)]
    if len(layers) >= _LEAST_BLOCKS:
        yield Treatment("skip", {"blocks": layers})


@register_treatment("skip", proposed_by=_skips, against=("VANISHING", "BOTTLENECK", "RANK_COLLAPSE"))
def add_skips(model: nn.Module, _optimizer: torch.optim.Optimizer, blocks: Sequence[str]) -> None:
    """Add the input of layers to their output."""

    def hook(_module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        return output + inputs[0]

    for path in blocks:
        model.get_submodule(path).register_forward_hook(hook)


def _activations(patient: Patient) -> Iterator[Treatment]:
    """Modules only, and none that makes the output: there the range of the activation is meant."""
    shared: dict[int, list[str]] = {}
    for path, module in patient.model.named_modules(remove_duplicate=False):
        if path and type(module).__name__ in _SWAPS and type(module).__module__.startswith("torch.nn"):
            shared.setdefault(id(module), []).append(path)
    order = [path for path, _ in patient.model.named_modules(remove_duplicate=False)]
    last = max((order.index(path) for path in patient.rms), default=-1)
    modules = {
        path: _SWAPS[type(patient.model.get_submodule(path)).__name__]
        for paths in shared.values()
        for path in paths
        if order.index(path) < last
    }
    if modules:
        yield Treatment("activation", {"modules": modules})
        if set(modules.values()) != {"GELU"} or any(
            type(patient.model.get_submodule(path)).__name__ == "Tanh" for path in modules
        ):
            yield Treatment("activation", {"modules": dict.fromkeys(modules, "ReLU")})


@register_treatment("activation", proposed_by=_activations, against=("DEAD", "SATURATION", "VANISHING"))
def swap_activations(model: nn.Module, _optimizer: torch.optim.Optimizer, modules: Mapping[str, str]) -> None:
    """Put another activation in the place of a module."""
    for path, name in modules.items():
        parent, _, own = path.rpartition(".")
        new = getattr(nn, name)()
        new.train(model.get_submodule(path).training)
        setattr(model.get_submodule(parent), own, new)
