"""Calls of a cell in a Python loop, put together to sequences: whose state goes into the next call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from gradient_flow.probes.recurrent.row_samples import EndGradient, kept, rows_to_keep, same_rows, steps_to_keep

Pairs = tuple[tuple[int, int], ...]
"""Which argument of the next call (as a leaf of all its arguments) each returned tensor (as a leaf) becomes."""


@dataclass
class CellCall:
    """Arguments and results of one call, flattened; tensors with a batch dimension are reduced to a few samples."""

    leaves: list[Any]
    spec: Any
    """How `leaves` become `(args, kwargs)` again."""
    batched: frozenset[int]
    """Leaves whose first dimension is the batch; none for a cell that takes single samples."""
    outs: list[Any]
    batch: int | None
    rows: list[int] | None
    raw_outs: list[Any]
    """The results themselves, until hooks are put on them."""
    attached: frozenset[int] = frozenset()
    """Leaves that are part of a graph."""
    returns_graph: bool = False

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, first_leaf: int) -> CellCall | None:
        """None where nothing that is returned has the shape of an argument from `first_leaf` on."""
        given, spec = pytree.tree_flatten((args, kwargs))
        outs = pytree.tree_flatten(result)[0]
        shapes = {leaf.shape for leaf in given[first_leaf:] if is_real(leaf)}
        if not any(is_real(out) and out.shape in shapes for out in outs):
            return None
        with_batch = [leaf for leaf in given if is_real(leaf) and leaf.dim() > 1]
        batch = with_batch[0].shape[0] if with_batch else None
        rows = None
        if batch:
            rows = rows_to_keep(batch, sum(leaf[0].numel() for leaf in with_batch if leaf.shape[0] == batch))
        batched = frozenset(index for index, leaf in enumerate(given) if _has_batch(leaf, batch))
        leaves, returned = [[_few(leaf, batch, rows) for leaf in some] for some in (given, outs)]
        attached = frozenset(index for index, leaf in enumerate(given) if is_real(leaf) and leaf.requires_grad)
        of_graph = any(is_real(out) and out.requires_grad for out in outs)
        return cls(leaves, spec, batched, returned, batch, rows, outs, attached, of_graph)

    @classmethod
    def of_torch_cell(cls, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> CellCall | None:
        """A call of `nn.RNNCell`, `GRUCell` or `LSTMCell`, with a batch, and with the zeros that None stands for."""
        x = args[0] if args else kwargs["input"]
        hx = args[1] if len(args) > 1 else kwargs.get("hx")
        outs = result if isinstance(result, tuple) else (result,)
        states = tuple(map(torch.zeros_like, outs)) if hx is None else hx if isinstance(hx, tuple) else (hx,)
        given = (x[None], *(s[None] for s in states)) if x.dim() == 1 else (x, *states)
        call = cls.of(given, {}, tuple(out[None] for out in outs) if x.dim() == 1 else outs, 1)
        if call is not None and x.dim() == 1:
            call.raw_outs = list(outs)  # a view of one has no gradient of its own
        return call

    def is_start(self, pairs: Pairs) -> bool:
        """Whether the state is all zeros: a sequence begins."""
        return not any(bool(self.leaves[leaf].any()) for leaf, _ in pairs)

    def pairs_after(self, previous: CellCall, first_leaf: int) -> Pairs:
        """Which arguments are what the previous call returned. What a call hands through unchanged is no state."""
        found = []
        for leaf, value in enumerate(self.leaves[first_leaf:], start=first_leaf):
            if not is_real(value) or any(is_real(out) and torch.equal(out, value) for out in self.outs):
                continue
            outs = [index for index, out in enumerate(previous.outs) if is_real(out) and same_rows(value, out)]
            found += [(leaf, outs[-1])] if outs else []
        return tuple(found)

    def pairs_by_shape(self) -> Pairs:
        """The last argument that has the shape of something returned, and that."""
        for leaf in reversed(range(len(self.leaves))):
            for out in reversed(range(len(self.outs))):
                given, returned = self.leaves[leaf], self.outs[out]
                if is_real(given) and is_real(returned) and given.shape == returned.shape:
                    return ((leaf, out),)
        return ()


class CellSequence:
    """A sequence of calls of one cell, each with the state that the one before returned."""

    def __init__(self, path: str, module: nn.Module, pairs: Pairs, first_leaf: int) -> None:
        self.path, self.module, self.pairs = path, module, pairs
        self.calls: list[CellCall] = []
        """The first steps; only the last of them has its results still."""
        self.length = 0
        self.links = 0
        """Calls that took exactly the state that the one before returned; a norm or a mask in between changes it."""
        self.cuts = 0
        """Those of them that took it detached."""
        self.end = EndGradient()
        """Parts: the returned leaves."""
        self._known_pairs, self._first_leaf = bool(pairs), first_leaf
        self._tail: CellCall | None = None
        self._most_steps = 0

    @property
    def linked(self) -> bool:
        """Whether most states went from call to call as they were."""
        return self.links > 0 and 2 * self.links >= self.length - 1

    def pairs_to(self, call: CellCall) -> Pairs:
        """How the state of this sequence goes into the call; empty where it does not."""
        tail = self._tail
        if tail is None or call.spec != tail.spec or call.rows != tail.rows:
            return ()
        if self._known_pairs:
            return tuple(p for p in self.pairs if same_rows(call.leaves[p[0]], tail.outs[p[1]]))
        found = call.pairs_after(tail, self._first_leaf)
        return tuple(pair for pair in found if pair in self.pairs) if self.pairs else found

    def add(self, call: CellCall, pairs: Pairs) -> list[Any]:
        """Take a call in; returns the handles of the hooks put on its results."""
        self.pairs = self.pairs or pairs
        if not self.pairs and self._first_leaf == 0 and self.length:
            self.pairs = call.pairs_by_shape()  # named by the user as a cell: then what could be a state is one
        if pairs and self._tail is not None:
            self.links += 1
            self.cuts += self._tail.returns_graph and call.attached.isdisjoint(leaf for leaf, _ in pairs)
        if self._tail is None:
            self._most_steps = steps_to_keep(sum(leaf.numel() for leaf in call.leaves if is_real(leaf)))
        if len(self.calls) < self._most_steps:
            if self.calls:
                self.calls[-1].outs = []
            self.calls.append(call)
        self._tail = call
        self.length += 1
        raw_outs, call.raw_outs = call.raw_outs, []  # the hooks must not hold on to the graph
        reduce = partial(_few, batch=call.batch, rows=call.rows)
        handles = [self.end.watch(out, self.length, leaf, reduce) for leaf, out in enumerate(raw_outs) if is_real(out)]
        return [handle for handle in handles if handle is not None]


def is_real(value: Any) -> bool:
    """Whether this is a tensor of floating-point numbers."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _has_batch(leaf: Any, batch: int | None) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch


def _few(leaf: Any, batch: int | None, rows: list[int] | None) -> Any:
    """A few samples of a leaf that has a batch dimension, a copy of any other tensor, anything else as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return kept(leaf, rows if _has_batch(leaf, batch) else None)
