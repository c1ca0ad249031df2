"""What is known of each layer with weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

import torch
from torch import nn

from gradient_flow.diagnosis.network.record import Layer, Place
from gradient_flow.table import GradientTable
from gradient_flow.table.sums import sums_by_group

_NOT_SEEN: Final = 1 << 29
"""The order of a layer that was called and returned no tensor that could be seen."""


def layer_records(
    model: nn.Module,
    places: Sequence[Place],
    *,
    called: Set[str],
    reached: Set[str],
    needed_grad: Set[str],
    weights: GradientTable,
    gradients: Sequence[GradientTable],
    update_ratios: Mapping[str, list[float]],
    equal_units: Set[str],
    rank_one: Set[str],
    trained: Set[int] | None,
    had_gradient: Set[str] = frozenset(),
    idle_units: Mapping[str, float] | None = None,
    zero: Set[str] = frozenset(),
) -> list[Layer]:
    """One record per module with parameters of its own, in the order of the forward pass."""
    order = {place.name: place.order for place in reversed(places) if place.role == "output"}
    kinds = {path: type(module).__name__ for path, module in model.named_modules()}
    graded = set().union(had_gradient, *(table.names for table in gradients))
    zeros = dict(zip(weights.names, weights.zero_fraction.tolist(), strict=True))
    layers = []
    for path, module, own in _owners(model, weights, graded):
        matrix = max((name for name, p in own.items() if p.dim() > 1), key=lambda name: own[name].numel(), default=None)
        # A matrix of the model's own is a layer by its own name: no module stands for it.
        alone = matrix if not path and matrix is not None and not _is_one_layer(model) else ""
        seen = any(name in graded for name in own)
        layer = Layer(
            name=path or alone or "model",
            kind=kinds[path],
            trainable=any(p.requires_grad for p in own.values()),
            order=order.get(path, _NOT_SEEN if path in called or (not path and (seen or not alone)) else None),
            parameters=tuple(own),
            matrix=matrix,
            matrix_frozen=matrix is not None and not own[matrix].requires_grad,
            gradient_seen=seen,
            reaches_loss=path in reached if reached else None,
            without_grad=path in order and path not in needed_grad,
            used_by_sibling=_is_idle_member(path, called, kinds),
            in_optimizer=None if trained is None else any(id(p) in trained for p in own.values()),
            equal_units=matrix in equal_units,
            rank_one=matrix in rank_one,
            takes=vars(module).get("in_features"),
            is_embedding="Embedding" in kinds[path],
            update_ratio=update_ratios.get(matrix or "", []),
            idle_units=_of_largest(own, idle_units or {}),
            masked=_is_masked(module, zeros.get(matrix or "", 0.0)),
        )
        layers.append(layer)
    _fill(layers, weights, gradients, zero)
    return sorted(layers, key=lambda layer: 1 << 30 if layer.order is None else layer.order)


def _owners(
    model: nn.Module, weights: GradientTable, graded: Set[str]
) -> Iterator[tuple[str, nn.Module, dict[str, nn.Parameter]]]:
    """Modules with parameters of their own; matrices of the model itself one by one, where some of them are trained."""
    for path, module in model.named_modules():
        if not module._parameters:
            continue
        own = {f"{path}.{name}".lstrip("."): p for name, p in module.named_parameters(recurse=False)}
        own = {name: p for name, p in own.items() if name in weights}
        if not path and any(name in graded for name in own):
            matrices = {name: p for name, p in own.items() if p.dim() > 1}
            matrices = {} if _is_one_layer(model) else matrices
            own = {name: p for name, p in own.items() if name not in matrices}
            for name, parameter in matrices.items():
                yield path, module, {name: parameter}
        if own:
            yield path, module, own


def _is_one_layer(model: nn.Module) -> bool:
    """Whether the model is a layer itself, with one matrix."""
    matrices = sum(parameter.dim() > 1 for parameter in model.parameters(recurse=False))
    return matrices == 1 and not any(True for _ in model.children())


def _fill(layers: Sequence[Layer], weights: GradientTable, gradients: Sequence[GradientTable], zero: Set[str]) -> None:
    owner = {name: index for index, layer in enumerate(layers) for name in layer.parameters}
    ((at_start, _),) = sums_by_group([weights], owner, len(layers))
    nothing = {name for name, largest in zip(weights.names, weights.linf.tolist(), strict=True) if largest == 0} | zero
    for index, layer in enumerate(layers):
        layer.bad_weights, layer.weight_norm = at_start.bad[index], at_start.norm[index]
        layer.zero_weights = layer.matrix in nothing
    for sums, seen in sums_by_group(gradients, owner, len(layers)):
        for index, layer in enumerate(layers):
            layer.gradient.append(sums.norm[index] if index in seen else None)
            layer.bad_gradients.append(sums.bad[index])
            layer.zero_share.append(sums.zero_share[index] if index in seen else math.nan)


def _of_largest(own: Mapping[str, torch.Tensor], shares: Mapping[str, float]) -> float | None:
    """The share of its largest parameter, where that is known."""
    return shares.get(max(own, key=lambda name: own[name].numel()))


def _is_masked(module: nn.Module, zeros: float) -> bool:
    """Whether it keeps a mask beside its weights, as `torch.nn.utils.prune` does, or most of them are zero."""
    return any("mask" in name for name in module._buffers) or 0.5 < zeros < 1


def _is_idle_member(path: str, called: Set[str], kinds: Mapping[str, str]) -> bool:
    """Whether it lies in a member of a list of which others ran: an expert without work, not a forgotten layer."""
    parts = path.split(".")
    for depth in range(len(parts), 0, -1):
        member, owner = ".".join(parts[:depth]), ".".join(parts[: depth - 1])
        if member not in called and kinds.get(owner) in ("ModuleList", "ModuleDict"):
            return any(other in called for other in kinds if other.rpartition(".")[0] == owner)
    return False
