"""The graph of one backward pass: through which operations must every gradient go, and what do they hold.

An operation *dominates* another if every path from the loss to the other leads through it. Along the dominators of the
first layer the gradient is whole: side branches, such as the inside of a residual block, do not count there.
Method: Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm" (2001); on a graph without cycles one sweep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from gradient_flow.capture.sharding import is_sharded, local_part

_MOST_NODES: Final = 100_000
LEAF: Final = "torch::autograd::AccumulateGrad"
_SLOPES: Final = frozenset(
    {
        "SoftmaxBackward0",
        "TanhBackward0",
        "SigmoidBackward0",
        "HardtanhBackward0",
        "HardsigmoidBackward0",
        "ClampBackward1",
        "AtanBackward0",
    }
)
_OF_INPUT: Final = ("Hard", "Clamp", "Atan", "Div")
"""Those whose slope is read from what they took, not from what they gave."""
_SOFTMAX: Final = ("LogSoftmaxBackward0", "SoftmaxBackward0")
_FIRST_DIMENSION: Final = 2**64


class Graph:
    """Operations reachable from the loss, with their dominators."""

    def __init__(self, root: Any) -> None:
        order = from_loss_to_leaves(root)
        self.complete = order is not None
        """Whether the graph was small enough to be read."""
        self.nodes: list[Any] = order or []
        self._position = {node: position for position, node in enumerate(self.nodes)}
        self._dominator = self._dominators()

    def __contains__(self, node: Any) -> bool:
        return node in self._position

    def dominators(self, node: Any) -> list[Any]:
        """Operations that every gradient on its way to `node` goes through, `node` first and the loss last."""
        if node not in self._position:
            return []
        position, chain = self._position[node], []
        while True:
            chain.append(self.nodes[position])
            if position == 0:
                return chain
            position = self._dominator[position]

    def between(self, earlier: Any, later: Any) -> Iterator[Any]:
        """Operations on a path from `later` (nearer to the loss) to `earlier` that dominate `earlier`."""
        for node in self.dominators(earlier)[1:]:
            if node is later:
                return
            yield node

    def _dominators(self) -> list[int]:
        uses: list[list[int]] = [[] for _ in self.nodes]
        shut: list[tuple[int, int]] = []
        for position, node in enumerate(self.nodes):
            nothing = _is_times_zero(node)
            for child, _ in node.next_functions:
                if child is not None and nothing:
                    shut.append((self._position[child], position))
                elif child is not None:
                    uses[self._position[child]].append(position)
        for position, user in shut:  # what is multiplied by nothing is no way, unless it is the only one
            if not uses[position]:
                uses[position].append(user)
        dominator = [0] * len(self.nodes)
        for position in range(1, len(self.nodes)):
            common = uses[position][0]
            for user in uses[position][1:]:
                while user != common:  # climb from the deeper of the two until they meet
                    if user > common:
                        user = dominator[user]
                    else:
                        common = dominator[common]
            dominator[position] = common
        return dominator


def _is_times_zero(node: Any) -> bool:
    """Whether it multiplies by a plain number that is zero: a skip or a term of the loss that is switched off."""
    if node.name() != "MulBackward0":
        return False
    try:
        factor = node._saved_other
    except (AttributeError, RuntimeError):
        return False
    # A number of Python has this dtype; that of a parameter, which may leave zero again, has the model's.
    return factor is not None and factor.dim() == 0 and factor.dtype is torch.float64 and float(factor) == 0


def from_loss_to_leaves(root: Any) -> list[Any] | None:
    """Every operation after all that use it."""
    finished: list[Any] = []
    seen = {root}
    stack: list[tuple[Any, Iterator[Any]]] = [(root, iter(root.next_functions))]
    while stack:
        node, children = stack[-1]
        for child, _ in children:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append((child, iter(child.next_functions)))
                break
        else:
            stack.pop()
            finished.append(node)
        if len(seen) > _MOST_NODES:
            return None
    return finished[::-1]


def averaging(nodes: Iterable[Any]) -> float:
    """By how much averages among these operations lower the norm of a gradient on its way back, in decades.

    A mean over P positions hands each a share of 1/P: the norm falls by sqrt(P) and nothing is lost by it.
    """
    decades = 0.0
    for node in nodes:
        name = node.name()
        try:
            if name == "MeanBackward1":
                shape = node._saved_self_sym_sizes
                dims = node._saved_dim or range(len(shape))
                dims = [dim - _FIRST_DIMENSION if dim >= _FIRST_DIMENSION // 2 else dim for dim in dims]
                decades += 0.5 * math.log10(math.prod(shape[dim] for dim in dims))
            elif name.startswith("AvgPool"):
                # Windows that overlap hand each position a share of several: only steps beyond one lower the norm.
                window, apart = node._saved_kernel_size, node._saved_stride or node._saved_kernel_size
                decades += 0.5 * math.log10(math.prod(map(min, window, apart)))
            elif name.startswith("AdaptiveAvgPool"):
                decades += 1.0  # the size of the output is not saved; pools of ten by ten are common
        except (AttributeError, RuntimeError, ValueError, TypeError):
            continue  # another version of torch saves other things
    return decades


def is_bounded(node: Any) -> bool:
    """Whether this is an activation with bounds, whose slopes can be read."""
    return node.name() in _SLOPES or _absolute_below(node) is not None


def kind_of(node: Any) -> str:
    """What a bounded activation is called."""
    kind: str = node.name().partition("Backward")[0]
    return "Softsign" if kind == "Div" else kind


def _absolute_below(node: Any) -> Any:
    """Of x / (c + |x|), as torch writes a softsign, the operation that makes |x|; else None."""
    if node.name() != "DivBackward0" or len(node.next_functions) < 2:
        return None
    given, total = node.next_functions[0], node.next_functions[1][0]
    if total is None or total.name() != "AddBackward0":
        return None
    parts = [child for child, _ in total.next_functions if child is not None]
    alone = len(parts) == 1 and parts[0].name() == "AbsBackward0"
    return parts[0] if alone and parts[0].next_functions[0] == given else None


def share_above_middle(node: Any) -> float:
    """Share of the values of a bounded activation in the upper half of its range: of a gate, how often it is open."""
    try:
        if node.name() in ("TanhBackward0", "SigmoidBackward0"):
            middle = 0.5 if node.name().startswith("Sigmoid") else 0.0
            return float((_few(node._saved_result) > middle).float().mean())
        if node.name().startswith(("Atan", "Div")):
            return float((_few(node._saved_self) > 0).float().mean())
        low, high = _bounds(node)
        return float((_few(node._saved_self) > (low + high) / 2).float().mean())
    except (AttributeError, RuntimeError, TypeError):
        return 0.5


def _bounds(node: Any) -> Any:
    name = node.name()
    if name == "HardsigmoidBackward0":
        return -3.0, 3.0
    if name.startswith("Clamp"):
        return node._saved_min, node._saved_max
    return node._saved_min_val, node._saved_max_val


def slopes(node: Any) -> torch.Tensor | None:
    """The derivative of a bounded activation where it stands, as a share of its largest, if `node` is one."""
    name, absolute = node.name(), _absolute_below(node)
    if name not in _SLOPES and absolute is None:
        return None
    try:
        saved = getattr(node, "_raw_saved_self" if name.startswith(_OF_INPUT) else "_raw_saved_result", None)
        if getattr(saved, "unpack_hook", None) is not None:
            return None  # reading it would run foreign code: a checkpoint would recompute its part
        if name == "AtanBackward0":
            return (1 + _few(node._saved_self).square()).reciprocal()
        if absolute is not None:
            total, given = _few(node._saved_other), _few(absolute._saved_self).abs()
            least = total.argmin()  # where rounding hides least of the constant
            return ((total[least] - given[least]) / total).square()
        if name == "SoftmaxBackward0":
            return (
                _softmax_slopes(node._saved_result, dimension_of(node)) if not is_sharded(node._saved_result) else None
            )
        if name == "TanhBackward0":
            return 1 - _few(node._saved_result).square()
        if name == "SigmoidBackward0":
            result = _few(node._saved_result)
            return 4 * result * (1 - result)
        low, high = _bounds(node)
        if low is None or high is None:
            return None  # a clamp with one bound is a kind of ReLU
        given = _few(node._saved_self)
        # Of a ReLU6 the lower bend is a ReLU's: half of the units lie below it and that is no saturation.
        inside: torch.Tensor = given < high if low == 0 else (given > low) & (given < high)
        return inside.float()
    except (AttributeError, RuntimeError, TypeError):
        return None


def classes(nodes: Iterable[Any], shapes: Mapping[Any, tuple[int, ...]]) -> int | None:
    """Over how many classes the loss takes a softmax; None if it takes none. The one nearest to the loss counts."""
    for node in nodes:
        if node.name() in _SOFTMAX:
            below = next((child for child, _ in node.next_functions if child is not None), None)
            shape = shapes.get(below)
            dim = dimension_of(node)
            return shape[dim] if shape is not None and -len(shape) <= dim < len(shape) else 0
        if node in shapes:
            return None
    return None


def alternatives(nodes: Iterable[Any], shapes: Mapping[Any, tuple[int, ...]]) -> int | None:
    """Among how many the same softmax chooses, also where no module gives what it takes: pairs of a batch, say."""
    for node in nodes:
        if node.name() in _SOFTMAX:
            shape, dim = node._saved_result.shape, dimension_of(node)
            return int(shape[dim]) if -len(shape) <= dim < len(shape) else None
        if node in shapes:
            return None
    return None


def is_softmax(node: Any) -> bool:
    """Whether an operation is a softmax or the logarithm of one."""
    return node is not None and node.name() in _SOFTMAX


def dimension_of(node: Any) -> int:
    """Over which dimension a softmax is taken, as it was asked for."""
    dim: int = node._saved_dim
    return dim - _FIRST_DIMENSION if dim >= _FIRST_DIMENSION // 2 else dim


def _softmax_slopes(result: torch.Tensor, dim: int) -> torch.Tensor:
    """One number per row: 1 where all classes are as likely, 0 where one has everything."""
    certain = result.detach().amax(dim).reshape(-1).float()
    return (1 - certain) / (1 - 1 / max(2, result.shape[dim]))


def _few(tensor: torch.Tensor) -> torch.Tensor:
    """At most some ten thousand elements, evenly spaced."""
    flat: torch.Tensor = local_part(tensor).reshape(-1)  # of one that is spread over ranks, what lies here
    few = flat[:: max(1, flat.numel() // 16_384)]
    return few.abs().float() if few.is_complex() else few.float()


def graph_behind(nodes: Iterable[Any], most: int = 100_000) -> Iterator[Any]:
    """These nodes and all that a backward pass comes to after them."""
    waiting, seen = list(nodes), set[Any]()
    while waiting and len(seen) < most:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting.extend(following for following, _ in node.next_functions)
