"""What a model keeps and how: weights where no optimizer finds them, adapters, weights that nobody has trained."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.capture.sharding import local_part
from gradient_flow.diagnosis.loop.record import MOST_NAMES

_MOST_SIBLINGS: Final = 16
_DEPTH: Final = 3
"""Lists in lists that are searched for weights."""
_NO_WEIGHTS: Final = frozenset({bool, int, float, str, type(None)})
"""What most attributes of modules are."""
_LEAST_DRAWN, _MOST_DRAWN = 64, 1 << 16
"""Elements of a matrix from which on its distribution tells something, and of which it is taken."""
_ERRORS: Final = 4.0
"""Standard errors by which a moment may be off."""


def hidden_weights(model: nn.Module) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Weights that a model keeps where `parameters()` does not find them, by the name of what has them."""
    modules = list(model.named_modules())
    known = {id(module) for _, module in modules}
    for _, module in modules:
        known.update(map(id, module._parameters.values()), map(id, module._buffers.values()))
    for path, module in modules:
        for name, value in vars(module).items():
            if type(value) not in _NO_WEIGHTS and not name.startswith("_"):
                yield from _weights_in(value, f"{path}.{name}".removeprefix("."), known, _DEPTH)


def _weights_in(value: Any, name: str, known: set[int], depth: int) -> Iterator[tuple[str, list[torch.Tensor]]]:
    if id(value) in known:
        return
    if isinstance(value, nn.Module):
        yield name, list(value.parameters())
    elif isinstance(value, torch.Tensor):
        if value.requires_grad and value.is_leaf:
            yield name, [value]
    elif isinstance(value, (list, tuple, dict)) and depth:
        items: list[tuple[Any, Any]] = list(value.items() if isinstance(value, dict) else enumerate(value[:MOST_NAMES]))
        for key, item in items[:MOST_NAMES]:
            yield from _weights_in(item, f"{name}.{key}", known, depth - 1)
    elif depth == _DEPTH and isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, type):
        # An object of one's own that keeps layers. What it holds in turn may well be the rest of the program.
        for key, item in list(vars(value).items())[:MOST_NAMES]:
            if not key.startswith("_"):
                yield from _weights_in(item, f"{name}.{key}", known, 1)


def adapters(parameters: Sequence[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, str]]:
    """Pairs of matrices of one module, or of modules side by side, whose product has at most half the full rank."""
    families: dict[str, list[tuple[str, torch.Tensor]]] = {}
    for name, parameter in parameters:
        if parameter.dim() == 2:
            alike = name.lower().replace("lora_a", "lora").replace("lora_b", "lora")
            module, _, own = alike.removesuffix(".weight").rpartition(".")
            families.setdefault(module, []).append((name, parameter))
            if own.isdigit():  # lists side by side, one of each factor
                families.setdefault(f"{module.rpartition('.')[0]} {own}", []).append((name, parameter))
    for members in families.values():
        for (first, a), (second, b) in itertools.combinations(members[:_MOST_SIBLINGS], 2):
            for down, up in ((a, b), (b, a)):
                rank = down.shape[0]
                if up.shape[1] == rank and 2 * rank <= min(down.shape[1], up.shape[0]):
                    yield first, second
                    yield second, first


def adapted(
    parameters: Sequence[tuple[str, torch.Tensor]], names: Collection[str], pairs: Collection[tuple[str, str]]
) -> Iterator[str]:
    """Which of these matrices have two factors beside them, in the same block, whose product has their shape."""
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters}
    for name in names:
        block, _, own = name.rpartition(".")[0].rpartition(".")
        if own.isdigit():  # what follows it in a sequence is not beside it
            block = f"{block}.{own}".removeprefix(".")
        for down, up in pairs:
            inside = not block or (down.startswith(f"{block}.") and up.startswith(f"{block}."))
            product = (shapes[up][0], shapes[down][1])
            if inside and shapes[down][0] == shapes[up][1] and shapes[name] in (product, product[::-1]):
                yield name
                break


def as_drawn(model: nn.Module, frozen: Collection[str]) -> list[str]:
    """Frozen matrices that are as an initialisation drew them, where all that can be told are: nobody trained them.

    Trained weights leave the interval that torch draws from, and trained biases are not exactly zero. Embeddings and
    matrices of few elements tell nothing.
    """
    told: list[tuple[str, bool]] = []
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        for name, weight in own.items():
            full = f"{path}.{name}".removeprefix(".")
            if full not in frozen or weight.dim() < 2 or isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                continue
            if weight.numel() >= _LEAST_DRAWN and not weight.is_meta and weight.is_floating_point():
                told.append((full, _is_drawn(module, weight, own.get(name.replace("weight", "bias")))))
    return [name for name, _ in told] if told and all(drawn for _, drawn in told) else []


def _is_drawn(module: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    flat = local_part(weight.detach()).reshape(-1)
    few = flat[:: -(-flat.numel() // _MOST_DRAWN)].double().cpu()
    inputs, outputs = weight.numel() // weight.shape[0], weight.numel() // weight.shape[1]
    square, largest, count = float(few.square().mean()), float(few.abs().max()), few.numel()
    # torch draws evenly from an interval, of layers by their inputs, of recurrences by their width.
    bound = float(getattr(module, "hidden_size", inputs)) ** -0.5
    even = abs(3 * square / bound**2 - 1) < _ERRORS * 0.9 / count**0.5
    if even and bound * (1 - _ERRORS * 2 / count) < largest <= bound * (1 + 1e-5):
        return True
    if bias is not None and bool(local_part(bias.detach()).any()):
        return False
    if bias is None and not _is_smooth(few, square):
        return False  # convolutions before norms have none
    usual = (2 / inputs, 2 / outputs, 2 / (inputs + outputs), 1 / inputs, 0.02**2)
    return any(abs(square / each - 1) < _ERRORS * (2 / count) ** 0.5 for each in usual)


def _is_smooth(values: torch.Tensor, square: float) -> bool:
    """Whether values are as a normal or an even distribution gives them, by their fourth moment: tails are trained."""
    kurtosis = float(values.square().square().mean()) / max(square**2, 1e-300)
    error = _ERRORS * (24 / values.numel()) ** 0.5
    return any(abs(kurtosis - usual) < error for usual in (3.0, 1.8))
