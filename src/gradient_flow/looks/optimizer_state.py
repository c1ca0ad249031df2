"""The state of an optimizer after a step, reduced to plain numbers from a sample of each tensor's elements.

Adam and its kin are known by what they keep (`exp_avg`, `exp_avg_sq`, with `betas` and `eps` in the group), SGD by its
`momentum_buffer` or its name, RMSprop and Adagrad by their sums of squares; plain, foreach, fused and capturable keep
the same. Of sharded tensors each rank reads its own part. All other optimizers are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from gradient_flow.capture.sharding import local_part
from gradient_flow.diagnosis.optimizer.record import MOST_TENSORS, StateLook, TensorState

SAMPLE: Final = 1024
"""Elements of each tensor: a mean over them is off by 3 % or so."""
_LOW: Final = {torch.bfloat16: 7, torch.float16: 10}
"""Types of 16 bits → bits of the fraction."""
_LEAST_EXPONENT: Final = {torch.bfloat16: -126, torch.float16: -14}
_MOST_STATES: Final = 400
_EXACT: Final = ("Adam", "AdamW", "SGD")
"""Classes whose step follows from the state as written here."""
_SQUARES: Final = {"RMSprop": "square_avg", "Adagrad": "sum"}
"""Classes that divide by the root of squares alone, and where they keep those."""
_MOVED_ANYWAY: Final = 0.01
"""Of steps too small for the spacing of numbers, the share that has an effect where rounding is random."""
Floats = NDArray[np.float64]


@dataclass
class _Held:
    """One tensor with its state."""

    name: str
    parameter: torch.Tensor
    state: Mapping[str, Any]
    group: Mapping[str, Any]


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """`adam`, `momentum`, `squares`, or empty where the state is none that is known here."""
    name = type(optimizer).__name__
    if name == "SGD" and not any(group.get("momentum") for group in optimizer.param_groups):
        return "momentum"  # of none: a step is the gradient
    if name in _SQUARES:
        plain = not any(group.get("centered") or group.get("momentum") for group in optimizer.param_groups)
        return "squares" if plain else ""
    for state in optimizer.state.values():
        if not isinstance(state, Mapping):
            continue
        if _is_moment(state.get("exp_avg")) and _is_moment(state.get("exp_avg_sq")):
            known = all("betas" in group and "eps" in group for group in optimizer.param_groups)
            return "adam" if known else ""
        if _is_moment(state.get("momentum_buffer")):
            return "momentum" if all("momentum" in group for group in optimizer.param_groups) else ""
    return ""


def _is_moment(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout is torch.strided


def sampled(tensors: Sequence[torch.Tensor]) -> list[Floats]:
    """Some elements of each tensor in double precision. One wait for each device and type."""
    found: list[Floats | None] = [None] * len(tensors)
    alike: dict[tuple[torch.device, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
    for at, tensor in enumerate(tensors):
        flat = local_part(tensor).reshape(-1)
        part = flat[:: _stride(flat.numel(), tensor.shape[-1] if tensor.ndim > 1 else 1)][:SAMPLE]
        alike.setdefault((part.device, part.dtype), []).append((at, part))
    for (_, dtype), parts in alike.items():
        joined = torch.cat([part for _, part in parts])
        values = (joined if dtype is torch.float64 else joined.float()).cpu().double().numpy()
        edges = np.cumsum([part.numel() for _, part in parts])[:-1]
        for (at, _), own in zip(parts, np.split(values, edges), strict=True):
            found[at] = own
    return [own if own is not None else np.empty(0) for own in found]


def squared_norm(parameters: Sequence[tuple[str, torch.Tensor]]) -> float:
    """Of all gradients, from the sampled elements: each stands for its share of the tensor."""
    gradients = [p.grad for _, p in parameters if p.grad is not None and p.grad.layout is torch.strided]
    samples = sampled(gradients)
    sizes = [local_part(gradient).numel() for gradient in gradients]
    parts = [float(np.vdot(own, own)) * size / len(own) for own, size in zip(samples, sizes, strict=True) if len(own)]
    return math.fsum(parts)


def _stride(elements: int, columns: int) -> int:
    """Even distances; not a multiple of a row, or one column would stand for all."""
    stride = max(1, elements // SAMPLE)
    while stride > 1 and columns > 1 and math.gcd(stride, columns) > 1:
        stride -= 1
    return stride


class StateReader:
    """Weights before a step; `read` puts them together with the state after it."""

    def __init__(self, optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        name_of = {id(parameter): name for name, parameter in named}
        held = [
            (name_of[id(parameter)], parameter, group)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in name_of and parameter.grad is not None and _is_moment(parameter)
        ]
        self._held = held[:: -(-len(held) // _MOST_STATES) or 1]
        self._before = sampled([parameter for _, parameter, _ in self._held])
        self._rates = [_number(group.get("lr")) for _, _, group in self._held]  # a schedule may step right after

    def read(self, optimizer: torch.optim.Optimizer, step: int, number: int) -> tuple[StateLook, list[TensorState]]:
        """The state after the step, of all tensors and by tensor."""
        kind = kind_of(optimizer)
        look = StateLook(step=step, optimizer=number, kind=kind, name=type(optimizer).__name__)
        chosen = [
            (_Held(name, parameter, optimizer.state[parameter], group), before, rate)
            for (name, parameter, group), before, rate in zip(self._held, self._before, self._rates, strict=True)
            if parameter.grad is not None and _fits(optimizer, parameter, group, kind)
        ]
        held = [each for each, _, _ in chosen]
        if not kind or not held:
            return look, []
        columns = [sampled([each.parameter for each in held]), sampled([_gradient(each) for each in held])]
        if kind == "squares":  # the gradient itself is their first moment
            columns += [columns[1], sampled([_tensor(each.state[_SQUARES[look.name]]) for each in held])]
        elif kind == "momentum" and not any(each.group.get("momentum") for each in held):
            columns += [columns[1]]
        else:
            names = ("exp_avg", "exp_avg_sq") if kind == "adam" else ("momentum_buffer",)
            columns += [sampled([_state_tensor(each, name) for each in held]) for name in names]
        rows = [
            _Row(each, rate, before, [column[at] for column in columns], "AdamW" in look.name)
            for at, (each, before, rate) in enumerate(chosen)
        ]
        _put_together(look, rows, optimizer)
        return look, _told(rows)


def _fits(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, group: Mapping[str, Any], kind: str) -> bool:
    if kind == "momentum" and not group.get("momentum"):
        return not any(other.get("momentum") for other in optimizer.param_groups)
    names = {"adam": "exp_avg", "momentum": "momentum_buffer"}
    state = optimizer.state.get(parameter)
    name = names.get(kind) or _SQUARES[type(optimizer).__name__]
    own = state.get(name) if isinstance(state, Mapping) else None
    return _is_moment(own) and local_part(own).numel() == local_part(parameter).numel()


def _gradient(held: _Held) -> torch.Tensor:
    assert held.parameter.grad is not None
    return held.parameter.grad.to_dense() if held.parameter.grad.is_sparse else held.parameter.grad


def _state_tensor(held: _Held, name: str) -> torch.Tensor:
    largest = held.state.get("max_exp_avg_sq") if name == "exp_avg_sq" else None  # AMSGrad divides by this one
    return largest if isinstance(largest, torch.Tensor) else _tensor(held.state[name])


def _tensor(value: Any) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


class _Row:
    """One tensor: sampled elements, and what follows from them."""

    def __init__(
        self,
        held: _Held,
        rate: float | None,
        before: Floats,
        columns: Sequence[Floats],
        decoupled: bool,
    ) -> None:
        """`columns`: weights after the step, gradients, first moments, and second ones where there are any."""
        group = held.group
        after, gradient, first = columns[:3]
        second = columns[3] if len(columns) > 3 else None
        self.name, self.dtype = held.name, held.parameter.dtype
        self.elements = int(local_part(held.parameter).numel())
        self.weight = self.elements / max(1, len(before))
        """How many elements each sampled one stands for."""
        self.before, self.after, self.gradient, self.first = before, after, gradient, first
        if group.get("maximize"):
            self.gradient = gradient = -gradient
        self.rate = rate
        self.age = _age(held.state.get("step"))
        self.weight_decay = _number(group.get("weight_decay")) or 0.0
        self.decoupled = False
        self.beta1: float | None = None
        self.beta2: float | None = None
        self.eps: float | None = None
        self.second: Floats | None = None
        self.root: Floats | None = None
        """√v, with the correction for its age."""
        self.used = gradient
        """What goes into the moments: with a weight decay of the old kind, that as well."""
        with np.errstate(all="ignore"):
            if second is None:
                self._momentum(group)
            elif "betas" in group:
                self._adam(group, second, decoupled)
            else:
                self._squares(group, second)

    def _momentum(self, group: Mapping[str, Any]) -> None:
        momentum = _number(group.get("momentum")) or 0.0
        self.beta1 = momentum
        used = self.used = self.gradient + self.weight_decay * self.before
        if not momentum:
            self.first = used
        fresh = 1.0 - (_number(group.get("dampening")) or 0.0)
        self.earlier = (self.first - fresh * used) / momentum if momentum else np.zeros_like(self.first)
        self.direction = used + momentum * self.first if group.get("nesterov") else self.first
        self.decaying = self.weight_decay * self.before
        self.moving = self.gradient

    def _adam(self, group: Mapping[str, Any], second: Floats, decoupled: bool) -> None:
        first, later = (_number(beta) or 0.0 for beta in group["betas"])
        eps = _number(group["eps"]) or 0.0
        self.beta1, self.beta2, self.eps, self.second = first, later, eps, second
        age = self.age or 1
        root = self.root = np.asarray(np.sqrt(second / (1 - later**age)))
        self.decoupled = bool(group.get("decoupled_weight_decay", decoupled))
        used = self.used = self.gradient if self.decoupled else self.gradient + self.weight_decay * self.before
        self.earlier = (self.first - (1 - first) * used) / first if first else np.zeros_like(self.first)
        self.direction = (self.first / (1 - first**age)) / (root + eps)
        self.decaying = self.weight_decay * self.before
        self.moving = self.direction if self.decoupled else self.gradient

    def _squares(self, group: Mapping[str, Any], second: Floats) -> None:
        eps = _number(group["eps"]) or 0.0
        self.beta1, self.beta2, self.eps, self.second = None, _number(group.get("alpha")), eps, second
        root = self.root = np.asarray(np.sqrt(second))
        used = self.used = self.first = self.gradient + self.weight_decay * self.before
        self.earlier = np.zeros_like(used)
        self.direction = used / (root + eps)
        self.decaying = self.weight_decay * self.before
        self.moving = self.gradient

    # ---- what it reports ------------------------------------------------------------------------------------------

    @cached_property
    def ratio_squares(self) -> Floats:
        """g² / v, element by element; where neither is anything, nothing is known."""
        root = np.zeros(0) if self.root is None else self.root
        ratio = np.square(self.used) / np.square(np.maximum(root, self.eps or np.finfo(np.float64).tiny))
        return np.asarray(ratio[(root > 0) & np.isfinite(ratio)])

    @cached_property
    def eps_shares(self) -> Floats:
        """eps / (√v + eps), where there is a gradient to be divided."""
        root, eps = np.zeros(0) if self.root is None else self.root, self.eps or 0.0
        share = eps / (root + eps)
        return np.asarray(share[(self.first != 0) & np.isfinite(share)])

    @cached_property
    def typical_root(self) -> float | None:
        """The median of √v, where there is any."""
        known = np.zeros(0) if self.root is None else self.root[self.root > 0]
        return float(np.median(known)) if len(known) else None

    @cached_property
    def underflow(self) -> Floats:
        """Which second moments are zero, of the elements that have a first one."""
        if self.second is None:
            return np.zeros(0)
        return np.asarray((self.second == 0)[self.first != 0], dtype=np.float64)

    @cached_property
    def lost(self) -> Floats | None:
        """Which elements should move and cannot; None where numbers are fine enough, or the step is not known."""
        bits = _LOW.get(self.dtype)
        self.needed = np.empty(0)
        """Times the rate at which each of them would move."""
        if bits is None or not self.rate:
            return None
        step = self.rate * self.direction
        if self.decoupled:
            step = step + self.rate * self.decaying
        _, exponent = np.frexp(np.abs(self.before))
        spacing = np.exp2(np.maximum(exponent - 1, _LEAST_EXPONENT[self.dtype]) - float(bits))
        meant = (step != 0) & np.isfinite(step) & (self.gradient != 0)
        small = np.abs(step) < 0.5 * spacing
        moved = self.after != self.before
        tiny = meant & (np.abs(step) < 0.4 * spacing)
        if tiny.any() and float(moved[tiny].mean()) > _MOVED_ANYWAY:
            self.needed = np.zeros(int(meant.sum()))
            return self.needed  # rounded at random: nothing is lost on average
        self.needed = (0.5 * spacing / np.abs(step))[meant]
        return np.asarray((small & ~moved)[meant], dtype=np.float64)


def _put_together(look: StateLook, rows: Sequence[_Row], optimizer: torch.optim.Optimizer) -> None:
    first = rows[0]
    look.rate = max((row.rate for row in rows if row.rate is not None), default=None)
    look.beta1, look.beta2, look.eps = first.beta1, first.beta2, first.eps
    look.weight_decay = max(row.weight_decay for row in rows)
    look.decoupled = first.decoupled
    ages = [row.age for row in rows if row.age is not None]
    look.age = max(ages) if ages else None
    elements = sum(row.elements for row in rows)
    look.low_precision = sum(row.elements for row in rows if row.dtype in _LOW) / elements
    exact = type(optimizer).__name__ in _EXACT
    with np.errstate(all="ignore"):
        if look.kind != "momentum":
            look.eps_share = _mean([(row.eps_shares, row.weight) for row in rows])
            look.underflow = _mean([(row.underflow, row.weight) for row in rows])
            roots = [row.typical_root for row in rows if row.typical_root is not None]
            look.root_second = float(np.median(roots)) if roots else None
        if look.kind == "adam":
            squares = _mean([(row.ratio_squares, row.weight) for row in rows])
            look.stale = None if squares is None else math.sqrt(squares)
        if exact:
            look.update = _root(_mean([(np.square(row.direction), row.weight) for row in rows]))
            lost = [(row.lost, row.weight) for row in rows]
            look.lost = _mean([(own, weight) for own, weight in lost if own is not None])
            needed = np.concatenate([row.needed for row in rows])
            look.needed = float(np.median(needed)) if len(needed) else None
        look.gradient = _root(_mean([(np.square(row.gradient), row.weight) for row in rows]))
        look.cosine = _cosine(rows) if look.beta1 else None
        was, is_now = _length([r.before for r in rows], rows), _length([r.after for r in rows], rows)
        look.growth = is_now / was - 1 if was > 0 and math.isfinite(is_now) else None
        if look.kind == "momentum" and not exact:
            return  # what it makes of its momentum, as Muon does, is not known: neither is how far gradients move it
        decaying, moving = _length([r.decaying for r in rows], rows), _length([r.moving for r in rows], rows)
        look.decay = decaying / moving if decaying > 0 and moving > 0 else None


def _told(rows: Sequence[_Row]) -> list[TensorState]:
    """Each tensor by itself; where there are many, those that stand out in something, and the largest."""
    states = [_state_of(row) for row in rows]
    if len(states) <= MOST_TENSORS:
        return states
    chosen: dict[str, TensorState] = {}
    for name in ("stale", "eps_share", "lost", "underflow", "decay", "elements"):
        known = [state for state in states if getattr(state, name) is not None]
        chosen |= {state.name: state for state in sorted(known, key=lambda s: -getattr(s, name))[: MOST_TENSORS // 6]}
    return list(chosen.values())


def _state_of(row: _Row) -> TensorState:
    state = TensorState(name=row.name, elements=row.elements, dtype=str(row.dtype).removeprefix("torch."))
    state.rate = row.rate
    with np.errstate(all="ignore"):
        if row.second is not None:
            squares = _mean([(row.ratio_squares, 1.0)]) if row.beta1 is not None else None
            state.stale = None if squares is None else math.sqrt(squares)
            state.eps_share, state.underflow = _mean([(row.eps_shares, 1.0)]), _mean([(row.underflow, 1.0)])
            state.root_second = row.typical_root
        state.update = _root(_mean([(np.square(row.direction), 1.0)]))
        state.lost = None if row.lost is None else _mean([(row.lost, 1.0)])
        decaying, moving = _length([row.decaying], [row]), _length([row.moving], [row])
        state.decay = decaying / moving if decaying > 0 and moving > 0 else None
        was, is_now = _length([row.before], [row]), _length([row.after], [row])
        state.growth = is_now / was - 1 if was > 0 and math.isfinite(is_now) else None
    return state


def _mean(parts: Sequence[tuple[Floats, float]]) -> float | None:
    """Over all elements, of which each sampled one stands for several; None without any."""
    weight = sum(len(values) * each for values, each in parts)
    total = sum(float(values.sum()) * each for values, each in parts)
    return total / weight if weight and math.isfinite(total) else None


def _root(square: float | None) -> float | None:
    return None if square is None else math.sqrt(square)


def _length(parts: Sequence[Floats], rows: Sequence[_Row]) -> float:
    return math.sqrt(sum(float(np.vdot(part, part)) * row.weight for part, row in zip(parts, rows, strict=True)))


def _cosine(rows: Sequence[_Row]) -> float | None:
    both = sum(float(np.vdot(row.earlier, row.gradient)) * row.weight for row in rows)
    sizes = _length([row.earlier for row in rows], rows) * _length([row.gradient for row in rows], rows)
    return max(-1.0, min(1.0, both / sizes)) if sizes > 0 and math.isfinite(both) else None


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def _age(step: Any) -> int | None:
    number = _number(step)
    return None if number is None or not math.isfinite(number) else int(number)
