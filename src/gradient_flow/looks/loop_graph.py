"""What the operations next to a loss show: sums, differences and products that broadcasting made, factors of zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from gradient_flow.diagnosis.loop.record import LoopLook
from gradient_flow.looks.loop_data import SHAPING

_NEAREST: Final = 48
"""Operations next to the loss that are looked at."""
_MOST_NODES: Final = 2000
"""Operations of a graph that are searched for parameters."""
_LEAST_ROWS: Final = 4
_MOST_STEPS: Final = 4
"""Operations that are followed in a row."""
_ADDING: Final = ("SumBackward", "MeanBackward")
_LAYERS: Final = ("AddmmBackward", "MmBackward", "BmmBackward", "ConvolutionBackward")
_STRAIGHT: Final = ("AddBackward", "TBackward", "MeanBackward", "torch::autograd::AccumulateGrad")
"""What a sum of layers is made of."""
_TERMWISE: Final = ("AddBackward", "SubBackward", "NegBackward")
"""What a sum of products may pass on its way to that sum, and remain one."""


def note_graph(look: LoopLook, root: Any, outputs: set[Any], *, read_saved: bool) -> list[torch.Tensor]:
    """What the operations next to the loss show: an undivided sum, a broadcast difference, a factor of zero.

    Returns the parameters among them.
    """
    nodes: list[Any] = [root]
    above: dict[Any, Any] = {root: None}
    """Operation → that which it was found from, on the way to the loss."""
    divided, reduced = False, False
    for node in nodes:
        name, shape = node.name(), _shape(node)
        if not reduced:
            divided |= name.startswith("Div")
            if name.startswith(("Sum", "Mean", "NllLoss", "MseLoss", "CrossEntropy", "BinaryCross")):
                reduced = True
                look.summed = name == "SumBackward0" and not divided
        square = shape is not None and len(shape) == 2 and shape[0] == shape[1] > _LEAST_ROWS
        if square and shape is not None and name.startswith(("Sub", "Mul")):
            children = [child for child, _ in node.next_functions if child is not None]
            small = [c for c in children if _shape(c) in ((shape[0], 1), (shape[0],))]
            # Pairs on purpose, as of a contrastive loss, are made by `unsqueeze` or by a sum that keeps its dimension.
            given = [c for c in small if not c.name().startswith(("Unsqueeze", "View", "Expand", "Unsafe", "Reshape"))]
            whole = len(children) == 1 and any(c in outputs for c in small)  # the output itself, against a constant
            # Features less their mean over a batch are square by chance, and one of the two is so already.
            narrow = all(_shape(c) != shape for c in children)
            differs = name.startswith("Sub")
            if whole or (narrow and any(c in outputs or (differs and not c.name().startswith("Sum")) for c in given)):
                look.spread = list(shape)
        elif shape is not None and name.startswith("Sub") and _is_output_spread(node, shape, outputs, above):
            look.spread = list(shape)
        if read_saved and name == "MulBackward0" and _is_nothing(node):
            look.nothing = True
        if read_saved and shape is not None and name.startswith(("Mul", "Div")) and _is_crossed(node, shape, above):
            look.crossed = list(shape)
        # A distribution that is given logits subtracts the logarithm of the sum of their exponentials.
        if name.startswith(("LogSoftmax", "Logsumexp")) and _comes_from(node, "SoftmaxBackward0"):
            look.squashed = True
        if len(nodes) < _NEAREST:
            for child, _ in node.next_functions:
                if child is not None and child not in above:
                    above[child] = node
                    nodes.append(child)
    if read_saved and look.loss is not None:
        look.zero_factor = _zero_factor(nodes, alone=look.loss == 0 or look.loss != look.loss)
    return _parameters(nodes)


def parameters_under(root: Any) -> list[torch.Tensor]:
    """The parameters that a loss depends on, in the nearer part of a large graph."""
    return _parameters(_under(root, _MOST_NODES))


def linear_layers(root: Any) -> int:
    """How many layers a small model has, if nothing is between them that bends: then they are one."""
    nodes = _under(root, _NEAREST + 1)
    if len(nodes) > _NEAREST:
        return 0
    layers = [node for node in nodes if node.name().startswith(_LAYERS)]
    before = {each for layer in layers for each in _under(layer, _NEAREST)}
    bends = any(not node.name().startswith((*_LAYERS, *_STRAIGHT, *SHAPING)) for node in before)
    return 0 if bends else len(layers)


def _under(root: Any, most: int) -> list[Any]:
    """Operations from one on to the leaves, by their distance, up to a number of them."""
    nodes: list[Any] = [root]
    known = {root}
    for node in nodes:
        for child, _ in node.next_functions:
            if child is not None and child not in known and len(nodes) < most:
                known.add(child)
                nodes.append(child)
    return nodes


def _parameters(nodes: list[Any]) -> list[torch.Tensor]:
    leaves = [node.variable for node in nodes if node.name() == "torch::autograd::AccumulateGrad"]
    return [leaf for leaf in leaves if isinstance(leaf, torch.nn.Parameter)]


def _is_output_spread(node: Any, shape: tuple[int, ...], outputs: set[Any], above: Mapping[Any, Any]) -> bool:
    """Whether an output of the model meets a constant in a difference that repeats it for each sample or position:
    (…, N, 1) becomes (…, N, N), or (N, 1, d) becomes (N, N, d); and so does (N, d), where all of it is summed up.
    """
    children = [child for child, _ in node.next_functions if child is not None]
    given = _shape(children[0]) if len(children) == 1 and children[0] in outputs else None
    if given is None or len(shape) < 3 or len(given) > len(shape):
        return False
    if len(given) < len(shape) and (len(given) < 2 or not _is_summed_up(node, above, elementwise=True)):
        return False  # distances of all pairs on purpose are put together otherwise
    spread = [made for own, made in zip(_padded(given, len(shape)), shape, strict=True) if own == 1 != made]
    return any(made > _LEAST_ROWS and made in (given[0], given[-2]) for made in spread)


def _is_crossed(node: Any, shape: tuple[int, ...], above: Mapping[Any, Any]) -> bool:
    """Whether (N, 1) times (N,) is summed up, alone or with other terms: that is the product of two sums, in which no
    weight has its own loss, and no target its own prediction."""
    if len(shape) < 2 or not shape[0] == shape[1] > _LEAST_ROWS or not _is_summed_up(node, above):
        return False
    factors = [shape_ for shape_ in _factors(node) if len(shape_) <= len(shape)]
    if len(factors) != 2:
        return False
    first, second = (_padded(factor, len(shape)) for factor in factors)
    return any(a[0] == 1 == b[1] and a[1] != 1 != b[0] for a, b in ((first, second), (second, first)))


def _factors(node: Any) -> list[tuple[int, ...]]:
    """Shapes of what a product or quotient was given; a constant is known by what was saved of it."""
    found = []
    for (child, _), saved in zip(node.next_functions, ("_saved_self", "_saved_other"), strict=False):
        if child is not None:
            own = _shape(child)
        else:
            try:
                kept = getattr(node, saved)
            except (AttributeError, RuntimeError):  # freed, or not kept
                continue
            own = tuple(kept.shape) if isinstance(kept, torch.Tensor) else None
        if own is not None:
            found.append(own)
    return found


def _is_summed_up(node: Any, above: Mapping[Any, Any], *, elementwise: bool = False) -> bool:
    """Whether all elements end in one sum or mean; on the way there, sums with other terms of the same shape, and any
    functions of each element if `elementwise`."""
    shape = _shape(node)
    for _ in range(_MOST_STEPS):
        node = above.get(node)
        if node is None:
            return False
        # A gradient's metadata has the shape of what the operation made.
        if node.name().startswith(_ADDING):
            if _shape(node) == ():
                return True
            if elementwise:
                return False
        elif _shape(node) != shape or not (elementwise or node.name().startswith(_TERMWISE)):
            return False
    return False


def _padded(shape: tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    return (1,) * (dimensions - len(shape)) + shape


def _comes_from(node: Any, wanted: str) -> bool:
    """Whether what an operation was given is, but for its shape, the result of another."""
    for _ in range(_MOST_STEPS):
        node = node.next_functions[0][0] if node.next_functions else None
        if node is None or not node.name().startswith(SHAPING):
            break
    return node is not None and bool(node.name() == wanted)


def _zero_factor(nodes: list[Any], *, alone: bool) -> str:
    """What is multiplied by a tensor of zeros. Beside other terms (not `alone`) only a log-probability or a ratio."""
    for node in nodes:
        if node.name() != "MulBackward0" or not (alone or _is_likelihood(node)):
            continue
        for which in ("_saved_other", "_saved_self"):
            try:
                factor = getattr(node, which)
            except RuntimeError:
                continue  # freed
            constant = isinstance(factor, torch.Tensor) and not factor.requires_grad and factor.numel() > 1
            if constant and not bool(factor.detach().any()):
                of_labels = alone and any(n.name().startswith(("NllLoss", "BinaryCross")) for n in nodes)
                return "labels" if of_labels else "policy"
    return ""


def _is_nothing(node: Any) -> bool:
    """Whether what comes from a layer is multiplied by the number 0."""
    for which in ("_saved_other", "_saved_self"):
        try:
            factor = getattr(node, which)
        except RuntimeError:
            continue  # freed
        if isinstance(factor, torch.Tensor) and not factor.requires_grad and factor.dim() == 0 and not factor.any():
            return True
    return False


def _is_likelihood(node: Any) -> bool:
    """Whether an operation is given the logarithm of a probability that was chosen, or a ratio of such."""
    for _ in range(_MOST_STEPS):
        node = next((child for child, _ in node.next_functions if child is not None), None)
        if node is None:
            return False
        if node.name().startswith(("Gather", "Exp")):
            return True
    return False


def _shape(node: Any) -> tuple[int, ...] | None:
    try:
        return tuple(node._input_metadata[0].shape)
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return None
