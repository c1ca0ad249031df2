"""Where a loss became NaN or Inf, read from its graph: no hook on the model, and no pass of its own.

Operations save what they need for backward: mostly their inputs. Of all that save something NaN or +Inf, one that has
no such operation before it is where it began.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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

NameOf = Callable[[torch.Tensor], "str | None"]


class GraphOrigin(NamedTuple):
    """The first operation of a forward pass that was given, or gave, something not finite."""

    operation: str
    """As autograd calls it, without `Backward0`."""
    own: str | None
    """A parameter of its own, where it has one: what it was given came in like that."""
    before: str | None
    """A parameter of the last layer before it; None where there is none: the batch was not finite."""


def nonfinite_origin(loss: torch.Tensor, name_of: NameOf) -> GraphOrigin | None:
    """Where a loss that is not finite became so; None where its graph does not tell."""
    order = from_loss_to_leaves(loss.grad_fn) if loss.grad_fn is not None else None
    for node in reversed(order or ()):
        given = _bad_input(node)
        if given is None:
            continue
        name = node.name().removesuffix("0").removesuffix("Backward")
        own = _own_parameter(node, name_of)
        before = _parameter_before(node, given, name_of, own)
        if own is None and before is None:
            return None
        return GraphOrigin(name, own, before)
    return None


def _bad_input(node: Any) -> int | None:
    """The position of an input that is not finite, -1 where it is not known which it is; None where all are finite."""
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
        if isinstance(saved, torch.Tensor) and saved.is_floating_point() and _is_bad(saved):
            if name == "mat1":
                return 1 if node.name().startswith("Addmm") else 0
            return _INPUT.get(name, -1)
    return None


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
