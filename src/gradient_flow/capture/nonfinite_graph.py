"""Where a loss or its gradient became NaN or Inf, read from the graph: no hook on the model, and no pass of its own.

Operations save what they need for backward: mostly their inputs. Of all that save something NaN or +Inf, one that has
no such operation before it is where it began; if an operation before it was given what it has no finite result for, as
the logarithm of 0, then that one is. After the backward pass the values are gone and the operations still there: a loss
that was finite tells which of them has an infinite slope and lies before exactly the weights whose gradients are bad.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch

from gradient_flow.capture.autograd_graph import LEAF, from_loss_to_leaves
from gradient_flow.capture.sharding import local_part

_RAW, _SAVED = "_raw_saved_", "_saved_"
_INPUT: Final = {"self": 0, "input": 0, "query": 0, "other": 1, "mat2": 1, "key": 1, "value": 2}
"""Which input of its operation a saved tensor is, by its name."""
_FAR: Final = 10_000
_NEAR: Final = 3
"""Operations between a weight and its use: a transposition, a cast."""

_OUTSIDE: Final[dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]]] = {
    **dict.fromkeys(("LogBackward0", "Log2Backward0", "Log10Backward0"), ("self", lambda x: x <= 0)),
    "Log1PBackward0": ("self", lambda x: x <= -1),
    **dict.fromkeys(("AcosBackward0", "AsinBackward0"), ("self", lambda x: x.abs() > 1)),
    "DivBackward0": ("other", lambda x: x == 0),
}
"""Operation → the operand that decides whether its result is finite, and where it is not."""
_STEEP: Final = (
    "SqrtBackward0",
    "RsqrtBackward0",
    "PowBackward0",
    "AcosBackward0",
    "AsinBackward0",
    "LogBackward0",
    "Log2Backward0",
    "Log10Backward0",
    "DivBackward0",
    "ReciprocalBackward0",
)
"""Operations whose slope is infinite somewhere. Norms and standard deviations are not: torch gives them a slope of 0
at 0."""

NameOf = Callable[[torch.Tensor], "str | None"]


class GraphOrigin(NamedTuple):
    """The first operation of a forward pass that was given, or gave, something not finite."""

    operation: str
    """As autograd calls it."""
    own: str | None
    """A parameter of its own, where it has one: what it was given came in like that."""
    before: str | None
    """A parameter of the last layer before it; None where there is none: the batch was not finite."""
    operand: str = ""
    """What it has no finite result for, by name; empty where something not finite came in."""
    value: float = math.nan
    """A value of that operand."""


class SteepOperation(NamedTuple):
    """An operation that can turn a finite gradient into NaN or Inf."""

    operation: str
    """As autograd calls it."""
    before: str | None
    """A parameter of the last layer before it."""


def nonfinite_origin(loss: torch.Tensor, name_of: NameOf) -> GraphOrigin | None:
    """Where a loss that is not finite became so; None where its graph does not tell."""
    order = from_loss_to_leaves(loss.grad_fn) if loss.grad_fn is not None else None
    outside: dict[Any, tuple[str, float]] = {}
    for node in reversed(order or ()):
        given = _bad_input(node)
        if given is not None:
            # A logarithm of 0 elsewhere in the graph may be masked: it is to blame for what comes after it.
            before = {each for each in from_loss_to_leaves(node) or () if each in outside}
            outside = {each: met for each, met in outside.items() if each in before}
            return next(_outsiders(outside, name_of), None) or _origin(node, given, name_of)
        met = _met_outside(node)
        if met is not None:
            outside[node] = met
    return next(_outsiders(outside, name_of), None)


def _outsiders(outside: dict[Any, tuple[str, float]], name_of: NameOf) -> Iterator[GraphOrigin]:
    for node, (operand, value) in outside.items():
        found = _origin(node, -1, name_of)
        if found is not None:
            yield found._replace(operand=operand, value=value)


def _origin(node: Any, given: int, name_of: NameOf) -> GraphOrigin | None:
    own = _own_parameter(node, name_of)
    before = _parameter_before(node, given, name_of, own)
    return None if own is None and before is None else GraphOrigin(node.name(), own, before)


def steep_operations(root: Any, name_of: NameOf, bad: frozenset[str]) -> list[SteepOperation]:
    """Operations with an infinite slope that gradients of all `bad` parameters, and of no others, go through.

    From the loss on. What one of them makes of a finite gradient reaches everything before it, and nothing else.
    """
    order = from_loss_to_leaves(root)
    bits = {name: 1 << at for at, name in enumerate(sorted(bad))}
    reached: dict[Any, int] = {}
    spoilt: dict[Any, bool] = {}
    """Whether only bad parameters lie before an operation."""
    for node in reversed(order or ()):
        children = [child for child, _ in node.next_functions if child is not None]
        name = name_of(node.variable) if node.name() == LEAF else None
        reached[node] = bits.get(name, 0) if name is not None else 0
        spoilt[node] = name is None or name in bits
        for child in children:
            reached[node] |= reached[child]
            spoilt[node] &= spoilt[child]
    everything = (1 << len(bits)) - 1
    return [
        SteepOperation(node.name(), _parameter_before(node, -1, name_of, None))
        for node in order or ()
        if bits and reached[node] == everything and spoilt[node] and _is_steep(node)
    ]


def _is_steep(node: Any) -> bool:
    name = node.name()
    if name == "DivBackward0":  # by a number, or by what needs no gradient, is a factor
        return len(node.next_functions) > 1 and node.next_functions[1][0] is not None
    if name == "PowBackward0":
        exponent = getattr(node, "_saved_exponent", 2)
        return isinstance(exponent, (int, float)) and exponent < 1
    return name in _STEEP


def _met_outside(node: Any) -> tuple[str, float] | None:
    """The operand of an operation that it has no finite result for, and a value of it."""
    known = _OUTSIDE.get(node.name())
    if known is None:
        return None
    operand, is_outside = known
    values = dict(_saved(node)).get(operand)
    if values is None or not values.is_floating_point():
        return None
    with torch.no_grad():
        part = local_part(values)
        found = part[is_outside(part)]
        return (operand, float(found.min())) if found.numel() else None


def _bad_input(node: Any) -> int | None:
    """The position of an input that is not finite, -1 where it is not known which it is; None where all are finite."""
    for name, saved in _saved(node):
        if saved.is_floating_point() and _is_bad(saved):
            if name == "mat1":
                return 1 if node.name().startswith("Addmm") else 0
            return _INPUT.get(name, -1)
    return None


def _saved(node: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that an operation saved, by name."""
    for attribute in dir(node):
        if not attribute.startswith(_RAW):
            continue
        try:
            # Reading what went through hooks would run code of others: a checkpoint would compute its part once more.
            if getattr(getattr(node, attribute), "unpack_hook", None) is not None:
                continue
            name = attribute.removeprefix(_RAW)
            saved = getattr(node, _SAVED + name)
        except (AttributeError, RuntimeError, TypeError):
            continue  # changed in place since, or freed
        if isinstance(saved, torch.Tensor):
            yield name, saved


def _is_bad(tensor: torch.Tensor) -> bool:
    """Whether it holds NaN or +Inf; -Inf is what masks are made of."""
    with torch.no_grad():
        part = local_part(tensor)
        return bool(part.numel() and (part.isnan() | (part == math.inf)).any())


def _own_parameter(node: Any, name_of: NameOf) -> str | None:
    for child, _ in node.next_functions:
        for _ in range(_NEAR):
            if child is None:
                break
            if child.name() == LEAF:
                found = name_of(child.variable)
                if found is not None:
                    return found
                break
            following = [each for each, _ in child.next_functions if each is not None]
            if len(following) != 1:
                break
            child = following[0]
    return None


def _parameter_before(node: Any, given: int, name_of: NameOf, own: str | None) -> str | None:
    """The nearest parameter on the way to the input, other than those of the operation's own layer."""
    layer = None if own is None else own.rpartition(".")[0]
    starts = node.next_functions[given : given + 1] if 0 <= given < len(node.next_functions) else node.next_functions
    level: list[Any] = [child for child, _ in starts if child is not None]
    seen: set[Any] = set()
    while level and len(seen) < _FAR:
        following = []
        for each in level:
            found = name_of(each.variable) if each.name() == LEAF else _own_parameter(each, name_of)
            if found is not None and found.rpartition(".")[0] != layer:
                return found
            following += [child for child, _ in each.next_functions if child is not None and child not in seen]
            seen.add(each)
        level = list(dict.fromkeys(following))
    return None
