"""Attention written out by hand: queries meet keys, a softmax over the last dimension, a product with values.

They meet in a product of two activations, in `cdist`, or pair by pair in a sum or difference that becomes a score.


A softmax alone says little: classifiers, mixture-of-experts routers and linear attention have one too. So tensors are
followed. Routers and linear attention fall out because they take the softmax of features, which come straight from a
weight matrix; classifiers, because their probabilities never meet values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

_SOFTMAXES: Final = frozenset({torch.softmax, F.softmax, torch.Tensor.softmax, torch.special.softmax})
_PRODUCTS: Final = frozenset(
    {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm, torch.einsum}
    | {torch.baddbmm, torch.Tensor.baddbmm}
)
_ADDED_PRODUCTS: Final = frozenset({torch.baddbmm, torch.Tensor.baddbmm})
_RESIZING: Final = frozenset({torch.cat, torch.concat, torch.Tensor.__getitem__, torch.Tensor.narrow, torch.narrow})
"""Ways to put a sink's column next to the scores, and to take it away again after the softmax."""

_PAIRING: Final = frozenset(
    {torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.sub, torch.Tensor.sub, torch.Tensor.__sub__}
)
_REDUCING: Final = frozenset(
    {torch.sum, torch.Tensor.sum, torch.mean, torch.Tensor.mean, torch.norm, torch.Tensor.norm, F.linear}
    | {torch.linalg.vector_norm, torch.linalg.norm, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__}
    | {torch.einsum, torch.squeeze, torch.Tensor.squeeze}
)
"""Ways from what every pair has in common, (…, i, j, d), to its score."""
_SPLITTING: Final = frozenset(
    {torch.chunk, torch.Tensor.chunk, torch.split, torch.Tensor.split, torch.unbind, torch.Tensor.unbind}
)


class _Pairs(NamedTuple):
    """The mark of what every query has in common with every key."""

    queries: int
    keys: int


class _Weights(NamedTuple):
    """The mark of what a softmax gave."""

    reduced: Any
    scored: bool
    """Whether it is known what queries have met to make its logits."""


_SCORES: Final = object()
"""The mark of what a product of two activations has led to."""
_FEATURES: Final = object()
"""The mark of what comes from a weight matrix."""


class EagerAttention:
    """Follows tensors through the operations it is shown, and finds attention that no attention function computes.

    `reduce(logits)` is called at the softmax, `keep(reduced)` once the weights meet their values. Tensors are marked
    by weak references; none is kept alive.
    """

    def __init__(self, reduce: Callable[[torch.Tensor], Any], keep: Callable[[Any], None]) -> None:
        self._reduce = reduce
        self._keep = keep
        self._marks = _Marks()

    def forget(self) -> None:
        """Drop all marks."""
        self._marks = _Marks()

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Take note of one operation and its result."""
        if func in _SPLITTING and isinstance(result, (tuple, list)):
            mark = self._first_marked(_tensors(args))[1]
            for part in result if mark is not None else ():
                self._marks.put(part, mark)
        if not isinstance(result, torch.Tensor) or result.dim() < 3:
            return
        if func in _SOFTMAXES:
            self._saw_softmax(args, kwargs, result)
        elif func is torch.cdist:
            self._marks.put(result, _SCORES)
        elif func in _PAIRING and _makes_pairs(_tensors(args), result):
            self._marks.put(result, _Pairs(*result.shape[-3:-1]))
        elif func in _PRODUCTS or func is F.linear or self._marks:
            operands = _tensors((*args, *kwargs.values()) if kwargs else args)
            marked, mark = self._first_marked(operands)
            if mark is None and func is not F.linear and func not in _PRODUCTS:
                return  # as most are
            factors = operands[1:] if func in _ADDED_PRODUCTS else operands
            if (func is F.linear or func in _PRODUCTS) and not isinstance(mark, _Pairs) and _has_matrix(operands):
                self._marks.put(result, _FEATURES)
            elif isinstance(mark, _Pairs) and marked is not None and marked.numel() != result.numel():
                if func in _REDUCING and result.shape[:2] == marked.shape[:2]:
                    self._marks.put(result, _SCORES if result.dim() < marked.dim() else mark)
            elif func in _PRODUCTS and _two_activations(factors):
                # Features that meet a product of keys and values: linear attention, which has no weights per position.
                sums = any(self._marks.get(factor) is _SCORES for factor in factors)
                if isinstance(mark, _Weights) and not mark.scored and any(map(_is_part_of_weight, factors)):
                    return  # soft bins, which look up vectors in a table
                self._saw_product(result, None if sums else mark)
            elif marked is not None and (marked.numel() == result.numel() or func in _RESIZING):
                self._marks.put(result, mark)

    def _saw_product(self, result: torch.Tensor, mark: Any) -> None:
        if mark is None or mark is _SCORES or mark is _FEATURES or isinstance(mark, _Pairs):
            self._marks.put(result, _SCORES)
        else:
            self._marks.drop(mark)  # weights that meet values twice are one attention
            self._keep(mark.reduced)

    def _saw_softmax(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> None:
        logits = args[0] if args else kwargs["input"]
        mark = self._marks.get(logits)
        # A layer may score every pair for all heads at once, (…, i, j, heads): heads then go before the pairs.
        if mark is _FEATURES or (isinstance(mark, _Pairs) and tuple(logits.shape[-2:]) != mark):
            return
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if dim in (-1, logits.dim() - 1) and logits.shape[-1] > 1:
            reduced = self._reduce(logits)
            if reduced is not None:
                self._marks.put(result, _Weights(reduced, mark is not None))

    def _first_marked(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor | None, Any]:
        """Features count where nothing else is marked."""
        features: tuple[torch.Tensor | None, Any] = None, None
        for tensor in tensors:
            mark = self._marks.get(tensor)
            if mark is _FEATURES and features[0] is None:
                features = tensor, mark
            elif mark is not None and mark is not _FEATURES:
                return tensor, mark
        return features


class _Marks:
    """Marks on tensors that neither keep them alive nor outlive them."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._marks)

    def get(self, tensor: torch.Tensor) -> Any:
        reference, mark = self._marks.get(id(tensor), (None, None))
        return mark if reference is not None and reference() is tensor else None

    def put(self, tensor: torch.Tensor, mark: Any) -> None:
        marks, key = self._marks, id(tensor)
        marks[key] = weakref.ref(tensor, lambda gone: _remove(marks, key, gone)), mark

    def drop(self, mark: Any) -> None:
        for key in [key for key, (_, kept) in self._marks.items() if kept is mark]:
            del self._marks[key]


def _remove(marks: dict[int, tuple[weakref.ref[torch.Tensor], Any]], key: int, gone: Any) -> None:
    # The id may belong to another tensor by now.
    if key in marks and marks[key][0] is gone:
        del marks[key]


def _makes_pairs(operands: list[torch.Tensor], result: torch.Tensor) -> bool:
    """Whether (…, i, 1, d) and (…, 1, j, d) meet: each of them is spread over the other."""
    if len(operands) != 2 or result.dim() < 4 or any(isinstance(each, nn.Parameter) for each in operands):
        return False
    shapes = [tuple(each.shape[-3:-1]) for each in operands if each.dim() >= 3]
    i, j = result.shape[-3:-1]
    return sorted(shapes) == sorted([(i, 1), (1, j)]) and i > 1 and j > 1


def _has_matrix(operands: list[torch.Tensor]) -> bool:
    return any(isinstance(each, nn.Parameter) and each.dim() >= 2 for each in operands)


def _is_part_of_weight(factor: torch.Tensor) -> bool:
    return isinstance(factor._base, nn.Parameter)


def _two_activations(factors: list[torch.Tensor]) -> bool:
    return len(factors) == 2 and all(factor.dim() >= 3 and not isinstance(factor, nn.Parameter) for factor in factors)


def _tensors(args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors among arguments, also in the lists that `cat` and `einsum` take."""
    found: list[torch.Tensor] = []
    for value in args:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(item for item in value if isinstance(item, torch.Tensor))
    return found
