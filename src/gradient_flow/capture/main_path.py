"""The main path of a step: the places that every gradient passes on its way from the loss to a first layer."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from gradient_flow.capture.autograd_graph import (
    Graph,
    alternatives,
    averaging,
    classes,
    is_bounded,
    kind_of,
    share_above_middle,
    slopes,
)
from gradient_flow.capture.module_calls import Passage

_MOST_CHAINS: Final = 4
_SEARCHED: Final = 64
_RESHAPES: Final = ("Unsqueeze", "View", "Expand", "Transpose", "Permute", "Reshape")
_MOST_IN_BRANCHES: Final = 64
"""Bounded activations beside the main path that are asked for their slopes; a loop over time may have thousands."""


class Bend(NamedTuple):
    """A bounded activation."""

    feeding: Passage
    """The last tensor between modules before it."""
    kind: str
    slopes: torch.Tensor
    """Derivatives as shares of the largest."""
    is_last: bool
    """Whether no layer with weights comes after it."""
    in_branch: bool = False
    """Whether it stands beside the main path: a gate, or the inside of a residual branch."""
    above: float = 0.5
    """Share of its values in the upper half of its range."""


@dataclass
class MainPath:
    """What the graph of one step tells."""

    chains: list[list[Passage]] = field(default_factory=list)
    """From a first layer to the output."""
    averaging: list[list[float]] = field(default_factory=list)
    """For each passage of each chain: decades that averages up to the next one take from the norm."""
    reached: set[str] = field(default_factory=set)
    """Modules whose output is part of the graph."""
    classes: int | None = None
    alternatives: int | None = None
    bends: list[Bend] = field(default_factory=list)


def main_path(
    root: Any, passages: Sequence[Passage], weighted: Container[nn.Module], *, read_saved: bool = True
) -> MainPath:
    """Read the graph under the loss. `read_saved=False` leaves tensors alone that operations saved for backward."""
    graph, found = Graph(root), MainPath()
    by_node = {passage.node: passage for passage in passages if passage.node is not None}
    found.reached = {p.path for p in by_node.values() if p.role == "output" and p.node in graph}
    inside = [passage for passage in passages if passage.node in graph]
    if not graph.complete or not inside:
        return found
    entries = [passage for passage in inside if passage.feeds_from_data and not _is_around(passage, inside)]
    entries = entries or inside[:1]
    main: set[Any] = set()
    for entry in entries[:_MOST_CHAINS]:
        nodes = graph.dominators(entry.node)
        main.update(nodes)
        chain = _last_calls([by_node[node] for node in nodes if node in by_node], weighted)
        later: list[Passage | None] = [*chain[1:], None]
        found.chains.append(chain)
        found.averaging.append(
            [averaging(graph.between(a.node, b.node)) if b else 0.0 for a, b in zip(chain, later, strict=True)]
        )
    shapes = {passage.node: passage.shape for passage in by_node.values()}
    found.classes = classes(graph.dominators(entries[0].node)[::-1], shapes)
    if read_saved:
        found.alternatives = alternatives(graph.dominators(entries[0].node)[::-1], shapes)
        found.bends = list(_bends(graph, main, by_node, weighted))
    return found


def _is_around(passage: Passage, inside: Sequence[Passage]) -> bool:
    """Whether it is what a block makes of its own modules: the block takes the data, but does not begin the path."""
    prefix = f"{passage.path}." if passage.path else ""
    return any(each.path != passage.path and each.path.startswith(prefix) for each in inside[: inside.index(passage)])


def _bends(
    graph: Graph, main: Container[Any], by_node: Mapping[Any, Passage], weighted: Container[nn.Module]
) -> Iterator[Bend]:
    """Bounded activations on the main path, and of those beside it one of a kind behind each tensor."""
    seen: set[tuple[str, str]] = set()
    gates = _gates(graph)
    for node in graph.nodes:
        if not is_bounded(node):
            continue
        in_branch = node not in main or node in gates
        feeding = _feeding(node, by_node)
        if feeding is None or isinstance(feeding.module, (nn.RNNBase, nn.RNNCellBase)):
            continue  # gates inside a cell open and close as they should
        kind = kind_of(node)
        after = [by_node[each] for each in graph.dominators(node)[1:] if each in by_node]
        if after and after[0].role == "output" and isinstance(after[0].module, (nn.RNNBase, nn.RNNCellBase)):
            continue  # the same, of a cell whose steps are part of the graph
        is_last = not any(passage.module in weighted for passage in after)
        # A softmax inside the net gives weights to choose by, and may be certain of its choice.
        if kind == "Softmax" and not is_last:
            continue
        if in_branch:
            # What is beside the path behind the last layer belongs to the loss; but for a tanh right behind one of
            # several heads, which bounds what the model gives, as the mean of a policy.
            head = kind == "Tanh" and feeding.role == "output" and feeding.module in weighted
            if (is_last and not head) or (feeding.path, kind) in seen or len(seen) >= _MOST_IN_BRANCHES:
                continue
            seen.add((feeding.path, kind))
        share = slopes(node)
        if share is not None and share.numel():
            above = share_above_middle(node) if in_branch else 0.5
            yield Bend(feeding, kind, share, is_last, in_branch, above)


def _gates(graph: Graph) -> set[Any]:
    """Sigmoids whose values something else is multiplied by: they weigh what passes, and carry nothing themselves."""
    found = set()
    for node in graph.nodes:
        below = [child for child, _ in node.next_functions] if node.name() == "MulBackward0" else []
        if len(below) > 1 and None not in below:
            for child in below:
                while child is not None and child.name().startswith(_RESHAPES):
                    child = child.next_functions[0][0]
                if child is not None and "igmoid" in child.name():
                    found.add(child)
    return found


def _last_calls(chain: list[Passage], weighted: Container[nn.Module]) -> list[Passage]:
    """Of a layer used several times along the chain, as a cell is through time, only the call next to the loss.

    What goes into a layer is another module's output as a rule, and counts once. A sum of narrow branches is not.
    """
    last = {p.path: p for p in chain if p.role == "output" and p.module in weighted}
    return [
        passage
        for before, passage in zip([None, *chain], chain, strict=False)
        if last.get(passage.path, passage) is passage
        or (before is not None and passage.role == "input" and _is_squeezed(before, passage, last[passage.path]))
    ]


def _is_squeezed(before: Passage, taken: Passage, given: Passage) -> bool:
    """Whether a layer takes far fewer units than came before it and than it gives."""
    return 2 * taken.shape[-1] <= min(before.shape[-1], given.shape[-1]) if taken.shape else False


def _feeding(node: Any, by_node: Mapping[Any, Passage]) -> Passage | None:
    """The nearest passage on the way to the input."""
    queue = deque([node])
    for _ in range(_SEARCHED):
        if not queue:
            return None
        for child, _ in queue.popleft().next_functions:
            if child in by_node:
                return by_node[child]
            if child is not None:
                queue.append(child)
    return None
