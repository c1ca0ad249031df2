"""Which weights make the scores of an attention: from queries, keys or logits back to the first matrices.

The graph that autograd has recorded knows, whatever modules are called and in whatever order: queries and keys packed
into one projection, shared, grouped, normalised or rotated afterwards, learned, or added to each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from gradient_flow.capture.autograd_graph import LEAF

_PRODUCTS: Final = ("Addmm", "Mm", "Bmm", "Baddbmm", "Linear", "Mv", "Addmv", "Convolution")
_MOST_NODES: Final = 400
"""Operations followed back from one tensor: projections lie a dozen or two before the scores."""
_MOST_OF_A_WEIGHT: Final = 24
"""Operations between a weight and its parameter: transposed, cast, normalised, sliced, spread over the batch."""
_PARAMETRIZED: Final = ".parametrizations."
_WRAPPER: Final = "_orig_mod."


class Place(NamedTuple):
    """Where a matrix is: the module that stands for it, or its own path in a module that holds other layers too."""

    path: str
    is_module: bool


def matrix_places(model: torch.nn.Module) -> dict[int, Place]:
    """Where the matrices of a model are, by identity."""
    places: dict[int, Place] = {}
    with torch._C.DisableTorchFunction():  # modes need not see what we ask of parameters
        for path, module in model.named_modules():
            owner, parametrized, _ = path.replace(_WRAPPER, "").partition(_PARAMETRIZED)
            own = [(name, each) for name, each in module.named_parameters(recurse=False) if each.dim() >= 2]
            alone = len(own) == 1 and not any(True for child in module.children() for _ in child.parameters())
            for name, each in own:
                stands = bool(owner and (alone or parametrized))
                places.setdefault(id(each), Place(owner if stands else f"{owner}.{name}".lstrip("."), stands))
    return places


def score_sources(tensors: Sequence[torch.Tensor | None], given: bool) -> list[torch.Tensor]:
    """The parameters that queries and keys, or `given` logits, come from; those of the queries first.

    Behind logits lies the product of queries and keys, or a vector that scores them: what enters it counts as well.
    """
    found: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        node = None if tensor is None else tensor.grad_fn or (tensor if tensor.requires_grad else None)
        if isinstance(node, torch.Tensor):  # queries that are a parameter themselves
            found.setdefault(id(node), node)
        elif node is not None:
            found |= {id(each): each for each in _matrices(node, given) if id(each) not in found}
    return list(found.values())


def _matrices(root: Any, given: bool) -> Iterator[torch.Tensor]:
    """Parameters of two dimensions or more before an operation, up to the first product with one on each way."""
    waiting, seen = [(root, given)], {root}
    while waiting and len(seen) < _MOST_NODES:
        node, through = waiting.pop()
        inputs = [each for each, _ in node.next_functions if each is not None]
        after = through
        if node.name() == LEAF:
            if node.variable.dim() >= 2:
                yield node.variable
        elif _is_product(node):
            weight = next((side for side in reversed(inputs) if _leaves(side) is not None), None)
            matrix = _leaves(weight) if weight is not None else None
            inputs = [each for each in inputs if each is not weight]
            after = False
            if matrix is not None:
                # What scores pairs of queries and keys comes after them.
                inputs = inputs if through else []
                if not through:
                    yield matrix
                else:
                    waiting.append((weight, False))
        for each in reversed(inputs):  # the last is taken first: queries come before keys
            if each not in seen:
                seen.add(each)
                waiting.append((each, after))


def _is_product(node: Any) -> bool:
    return node.name().removesuffix("Backward0") in _PRODUCTS


def _leaves(node: Any) -> torch.Tensor | None:
    """The largest matrix of a weight: of an operand that is made of parameters alone."""
    waiting, seen = [node], {node}
    matrices: list[torch.Tensor] = []
    while waiting:
        each = waiting.pop()
        if each.name() == LEAF:
            if each.variable.dim() >= 2:
                matrices.append(each.variable)
            continue
        if _is_product(each) or len(seen) > _MOST_OF_A_WEIGHT or each.name().startswith("Embedding"):
            return None
        before = [one for one, _ in each.next_functions]
        if not before or all(one is None for one in before):
            return None
        for one in before:
            if one is not None and one not in seen:
                seen.add(one)
                waiting.append(one)
    return max(matrices, key=torch.Tensor.numel, default=None)


def inside(sources: Sequence[torch.Tensor], places: Mapping[int, Place], module: str) -> dict[str, torch.Tensor]:
    """Those that belong to an attention module, by their path; else those beside it in the module around it.

    Queries that nothing projects come from a layer before, which makes no scores. Layers stand for them rather than a
    learned query or table beside, and one matrix of the module's own, such as `in_proj_weight`, is the module.
    """
    named = [(places[id(each)], each) for each in sources if id(each) in places]
    for around in (module, module.rpartition(".")[0]):
        within = [(place, each) for place, each in named if not around or _within(place.path, around)]
        layers = [(place, each) for place, each in within if place.is_module]
        if layers or len(within) > 1:
            return {place.path: each for place, each in layers or within}
        if within:
            break
    return {}


def _within(path: str, around: str) -> bool:
    return path == around or path.startswith(f"{around}.")


def gain(weight: torch.Tensor) -> torch.Tensor:
    """The size of a weight's singular values, as their root mean square: whichever way it is multiplied."""
    size: torch.Tensor = torch.linalg.vector_norm(weight.detach().float()) / math.sqrt(min(weight.shape[-2:]))
    return size
