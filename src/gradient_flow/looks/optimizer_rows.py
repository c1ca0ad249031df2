"""Sampled weights, gradients and moments of many tensors as a few long arrays, and what follows from them.

All tensors lie one after the other: a hundred of them take as many operations of NumPy as one does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
import torch

from gradient_flow.capture.sharding import local_part
from gradient_flow.table.elements import Floats

Found = TypeVar("Found")
_LOW: Final = {torch.bfloat16: 7, torch.float16: 10}
"""Types of 16 bits → bits of the fraction."""
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_LEAST_EXPONENT: Final = {torch.bfloat16: -126, torch.float16: -14}
_MOVED_ANYWAY: Final = 0.01
"""Of steps too small for the spacing of numbers, the share that has an effect where rounding is random."""
_TINY: Final = float(np.finfo(np.float64).tiny)


@dataclass
class Held:
    """One tensor with its state."""

    name: str
    parameter: torch.Tensor
    state: Mapping[str, Any]
    group: Mapping[str, Any]


@dataclass
class Means:
    """Of each tensor, and of all elements together; None where none counts or the sum is not finite."""

    each: list[float | None]
    together: float | None


class Rows:
    """Tensors and their sampled elements; none is empty.

    `before` are their weights before the step, tensor by tensor; `columns` those after it, gradients, first moments,
    and second ones where there are any, of all tensors one after the other.
    """

    def __init__(
        self,
        held: Sequence[Held],
        rates: Sequence[float | None],
        before: Sequence[Floats],
        columns: Floats,
        decoupled: bool,
    ) -> None:
        groups = [each.group for each in held]
        self.names = [each.name for each in held]
        self.dtypes = [each.parameter.dtype for each in held]
        self.low = [dtype in _LOW for dtype in self.dtypes]
        self.elements = [size_here(each.parameter) for each in held]
        self._counts = np.array([len(own) for own in before])
        self._starts = np.concatenate([[0], np.cumsum(self._counts)[:-1]])
        self.weight = np.array(self.elements) / self._counts
        """How many elements each sampled one stands for, by tensor."""
        self.rates = list(rates)
        self.ages = [_age(each.state.get("step")) for each in held]
        self.weight_decay = _of_groups(groups, lambda group: number(group.get("weight_decay")) or 0.0)
        self.before = np.concatenate(before)
        self.after, self.gradient, self.first = columns[0], columns[1], columns[2]
        self.second: Floats | None = columns[3] if len(columns) > 3 else None
        if any(group.get("maximize") for group in groups):
            self.gradient = self.gradient * self._spread([-1.0 if group.get("maximize") else 1.0 for group in groups])
        self.beta1: list[float | None] = [None] * len(held)
        self.beta2: list[float | None] = [None] * len(held)
        self.eps: list[float | None] = [None] * len(held)
        self.decoupled = [False] * len(held)
        with np.errstate(all="ignore"):
            self.decaying = self._spread(self.weight_decay) * self.before
            if self.second is None:
                self._momentum(groups)
            elif "betas" in groups[0]:
                self._adam(groups, self.second, decoupled)
            else:
                self._squares(groups, self.second)

    def _spread(self, values: Sequence[float]) -> Any:
        """A number of each tensor for each of its elements; the number itself where all have the same."""
        return values[0] if values.count(values[0]) == len(values) else np.repeat(values, self._counts)

    def _momentum(self, groups: Sequence[Mapping[str, Any]]) -> None:
        kept = _of_groups(groups, lambda group: number(group.get("momentum")) or 0.0)
        self.beta1 = [*kept]
        momentum = self._spread(kept)
        fresh = self._spread([1.0 - (number(group.get("dampening")) or 0.0) for group in groups])
        used = self.used = self.gradient + self.decaying
        self.first = np.where(momentum, self.first, used)  # without momentum a step is the gradient
        self.earlier = _divided(self.first - fresh * used, momentum)
        nesterov = self._spread([float(bool(group.get("nesterov"))) for group in groups])
        self.direction = np.where(nesterov, used + momentum * self.first, self.first)
        self.moving = self.gradient

    def _adam(self, groups: Sequence[Mapping[str, Any]], second: Floats, decoupled: bool) -> None:
        betas = _of_groups(groups, lambda group: [number(beta) or 0.0 for beta in group["betas"]])
        ages = [age or 1 for age in self.ages]
        earlier, later = [beta for beta, _ in betas], [beta for _, beta in betas]
        eps = _of_groups(groups, lambda group: number(group["eps"]) or 0.0)
        self.beta1, self.beta2, self.eps = [*earlier], [*later], [*eps]
        self.decoupled = [bool(group.get("decoupled_weight_decay", decoupled)) for group in groups]
        self._eps = self._spread(eps)
        self.root = np.sqrt(second / self._spread([1 - b**age for b, age in zip(later, ages, strict=True)]))
        """√v, with the correction for its age."""
        apart = self._spread([float(each) for each in self.decoupled])
        # What goes into the moments: with a weight decay of the old kind, that as well.
        self.used = np.where(apart, self.gradient, self.gradient + self.decaying)
        first = self._spread(earlier)
        self.earlier = _divided(self.first - (1 - first) * self.used, first)
        corrected = self.first / self._spread([1 - b**age for b, age in zip(earlier, ages, strict=True)])
        self.direction = corrected / (self.root + self._eps)
        self.moving = np.where(apart, self.direction, self.gradient)

    def _squares(self, groups: Sequence[Mapping[str, Any]], second: Floats) -> None:
        eps = _of_groups(groups, lambda group: number(group["eps"]) or 0.0)
        self.beta2, self.eps = [number(group.get("alpha")) for group in groups], [*eps]
        self._eps = self._spread(eps)
        self.root = np.sqrt(second)
        self.used = self.first = self.gradient + self.decaying
        self.earlier = np.zeros_like(self.used)
        self.direction = self.used / (self.root + self._eps)
        self.moving = self.gradient

    # ---- what follows ---------------------------------------------------------------------------------------------

    def _sums(self, values: Any) -> Floats:
        """Of each tensor."""
        return np.asarray(np.add.reduceat(values, self._starts, dtype=np.float64))

    def _means(self, values: Any, counted: Any = None) -> Means:
        """Of the values that are counted; all where nothing is said."""
        sums = self._sums(values if counted is None else np.where(counted, values, 0.0))
        numbers = self._counts.astype(np.float64) if counted is None else self._sums(counted)
        return _means(sums, numbers, self.weight)

    @cached_property
    def ratio_squares(self) -> Means:
        """g² / v, element by element; where neither is anything, nothing is known."""
        ratio = np.square(self.used / np.maximum(self.root, np.where(self._eps, self._eps, _TINY)))
        return self._means(ratio, (self.root > 0) & np.isfinite(ratio))

    @cached_property
    def eps_shares(self) -> Means:
        """eps / (√v + eps), where there is a gradient to be divided."""
        share = self._eps / (self.root + self._eps)
        return self._means(share, (self.first != 0) & np.isfinite(share))

    @cached_property
    def underflow(self) -> Means:
        """Which second moments are zero, of the elements that have a first one."""
        return self._means(self.second == 0, self.first != 0)

    @cached_property
    def typical_roots(self) -> list[float | None]:
        """Of each tensor the median of √v, where there is any."""
        return [_middle(root[root > 0]) for root in self._parts(self.root)]

    @cached_property
    def updates(self) -> Means:
        """Squares of the step over the learning rate."""
        return self._means(np.square(self.direction))

    @cached_property
    def gradients(self) -> Means:
        """Squares of the gradient, as the optimizer used it."""
        return self._means(np.square(self.gradient))

    @cached_property
    def lost(self) -> Means:
        """Which elements should move and cannot; None where numbers are fine enough, or the step is not known."""
        sums, numbers = np.zeros(len(self.names)), np.zeros(len(self.names))
        for at, (stuck, _) in self._in_low_precision.items():
            sums[at], numbers[at] = stuck.sum(), len(stuck)
        return _means(sums, numbers, self.weight)

    @property
    def needed(self) -> Floats:
        """Times the rate at which each element that should move would do so."""
        return np.concatenate([own for _, own in self._in_low_precision.values()] or [np.empty(0)])

    @cached_property
    def _in_low_precision(self) -> dict[int, tuple[Floats, Floats]]:
        return {at: self._lost(at) for at, low in enumerate(self.low) if low and self.rates[at]}

    def _lost(self, at: int) -> tuple[Floats, Floats]:
        here, dtype, rate = self._slice(at), self.dtypes[at], self.rates[at] or 0.0
        before, after = self.before[here], self.after[here]
        step = rate * self.direction[here]
        if self.decoupled[at]:
            step = step + rate * self.decaying[here]
        _, exponent = np.frexp(np.abs(before))
        spacing = np.exp2(np.maximum(exponent - 1, _LEAST_EXPONENT[dtype]) - float(_LOW[dtype]))
        meant = (step != 0) & np.isfinite(step) & (self.gradient[here] != 0)
        moved = after != before
        tiny = meant & (np.abs(step) < 0.4 * spacing)
        if tiny.any() and float(moved[tiny].mean()) > _MOVED_ANYWAY:
            nothing = np.zeros(int(meant.sum()))
            return nothing, nothing  # rounded at random: nothing is lost on average
        stuck = (np.abs(step) < 0.5 * spacing) & ~moved
        return np.asarray(stuck[meant], dtype=np.float64), (0.5 * spacing / np.abs(step))[meant]

    @cached_property
    def before_squares(self) -> Floats:
        """Of each tensor, as the three that follow."""
        return self._sums(np.square(self.before))

    @cached_property
    def after_squares(self) -> Floats:
        """Of the weights after the step."""
        return self._sums(np.square(self.after))

    @cached_property
    def decaying_squares(self) -> Floats:
        """Of what weight decay takes off."""
        return self._sums(np.square(self.decaying))

    @cached_property
    def moving_squares(self) -> Floats:
        """Of how far the gradient moves them."""
        return self._sums(np.square(self.moving))

    @property
    def cosine(self) -> float | None:
        """Between the momentum before the step and the gradient."""
        both = float(self._sums(self.earlier * self.gradient) @ self.weight)
        lengths = self._sums(np.square(self.earlier)) @ self.weight, self._sums(np.square(self.gradient)) @ self.weight
        sizes = math.sqrt(lengths[0]) * math.sqrt(lengths[1])
        return max(-1.0, min(1.0, both / sizes)) if sizes > 0 and math.isfinite(both) else None

    def _slice(self, at: int) -> slice:
        return slice(int(self._starts[at]), int(self._starts[at] + self._counts[at]))

    def _parts(self, values: Floats) -> list[Floats]:
        return np.split(values, self._starts[1:])


def _of_groups(groups: Sequence[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], Found]) -> list[Found]:
    """Something of the group of each tensor: groups are few."""
    known = {key: read(group) for key, group in {id(group): group for group in groups}.items()}
    return [known[id(group)] for group in groups]


def _means(sums: Floats, numbers: Floats, weight: Floats) -> Means:
    def mean(total: float, count: float) -> float | None:
        return total / count if count and math.isfinite(total) else None

    each = list(map(mean, sums.tolist(), numbers.tolist()))
    return Means(each, mean(float(sums @ weight), float(numbers @ weight)))


def _divided(values: Floats, by: Any) -> Floats:
    """Zero where there is nothing to divide by."""
    return np.where(by, values / by, 0.0)


def _middle(values: Floats) -> float | None:
    """The median. By hand: that of NumPy takes ten times as long to get going."""
    count = len(values)
    if not count:
        return None
    if count % 2:
        return float(np.partition(values, count // 2)[count // 2])
    ordered = np.partition(values, (count // 2 - 1, count // 2))
    return 0.5 * float(ordered[count // 2 - 1] + ordered[count // 2])


def size_here(tensor: torch.Tensor) -> int:
    """How many elements of it lie on this rank."""
    return tensor.numel() if type(tensor) in _PLAIN else int(local_part(tensor).numel())


def number(value: Any) -> float | None:
    """As a number, if it is one."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def _age(step: Any) -> int | None:
    known = number(step)
    return None if known is None or not math.isfinite(known) else int(known)
