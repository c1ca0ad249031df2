"""The state of an optimizer after a step, reduced to plain numbers from a sample of each tensor's elements.

Adam and its kin are known by what they keep (`exp_avg`, `exp_avg_sq`, with `betas` and `eps` in the group), SGD by its
`momentum_buffer` or its name, RMSprop and Adagrad by their sums of squares; plain, foreach, fused and capturable keep
the same. Of sharded tensors each rank reads its own part. All other optimizers are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from gradient_flow.diagnosis.optimizer.record import MOST_TENSORS, StateLook, TensorState
from gradient_flow.looks.optimizer_rows import Held, Rows, number, size_here
from gradient_flow.table.elements import some_elements

SAMPLE: Final = 512
"""Elements of each tensor: a mean over them is off by 4 % or so."""
_RUN: Final = 4
"""Neighbours among them: these are read of weights, gradients and moments alike."""
_MOST_STATES: Final = 400
_SQUARES: Final = {"RMSprop": "square_avg", "Adagrad": "sum"}
"""Classes that divide by the root of squares alone, and where they keep those."""
EXACT: Final = ("Adam", "AdamW", "SGD")
"""Classes whose step follows from the state as written here."""


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """`adam`, `momentum`, `squares`, or empty where the state is none that is known here."""
    name = type(optimizer).__name__
    if name == "SGD" and not _has_momentum(optimizer):
        return "momentum"  # of none: a step is the gradient
    if name in _SQUARES:
        plain = not any(group.get("centered") for group in optimizer.param_groups) and not _has_momentum(optimizer)
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


def _has_momentum(optimizer: torch.optim.Optimizer) -> bool:
    return any(group.get("momentum") for group in optimizer.param_groups)


def _moments(optimizer: torch.optim.Optimizer, kind: str) -> tuple[str, ...]:
    """What it keeps of a tensor, by name."""
    if kind == "adam":
        return "exp_avg", "exp_avg_sq"
    if kind == "squares":
        return (_SQUARES[type(optimizer).__name__],)
    return ("momentum_buffer",) if _has_momentum(optimizer) else ()


def _is_moment(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout is torch.strided


def squared_norm(parameters: Sequence[tuple[str, torch.Tensor]]) -> float:
    """Of all gradients, from the sampled elements: each stands for its share of the tensor."""
    gradients = [p.grad for _, p in parameters if p.grad is not None and p.grad.layout is torch.strided]
    samples = some_elements(gradients, SAMPLE).parts()
    sizes = [size_here(gradient) for gradient in gradients]
    parts = [float(np.vdot(own, own)) * size / len(own) for own, size in zip(samples, sizes, strict=True) if len(own)]
    return math.fsum(parts)


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
        self._before = some_elements([parameter for _, parameter, _ in self._held], SAMPLE, _RUN).parts()
        rates = {id(group): number(group.get("lr")) for group in optimizer.param_groups}
        self._rates = [rates[id(group)] for _, _, group in self._held]  # a schedule may step right after

    def read(self, optimizer: torch.optim.Optimizer, step: int, number: int) -> tuple[StateLook, list[TensorState]]:
        """The state after the step, of all tensors and by tensor."""
        kind = kind_of(optimizer)
        look = StateLook(step=step, optimizer=number, kind=kind, name=type(optimizer).__name__)
        moments = _moments(optimizer, kind)
        state_of = optimizer.state.get  # to ask by key would leave an entry behind
        chosen = [
            (Held(name, parameter, state_of(parameter) or {}, group), before, rate)
            for (name, parameter, group), before, rate in zip(self._held, self._before, self._rates, strict=True)
            if len(before) and parameter.grad is not None and _fits(state_of(parameter), parameter, moments)
        ]
        held = [each for each, _, _ in chosen]
        if not kind or not held:
            return look, []
        tensors = [each.parameter for each in held] + [_gradient(each) for each in held]
        tensors += [_state_tensor(each, name) for name in moments for each in held]
        values = some_elements(tensors, SAMPLE, _RUN).values
        before, rates = [own for _, own, _ in chosen], [rate for _, _, rate in chosen]
        columns = values.reshape(len(tensors) // len(held), -1)  # each of all tensors, one after the other
        if kind == "squares" or not moments:
            columns = np.insert(columns, 2, columns[1], axis=0)  # the gradient itself is their first moment
        rows = Rows(held, rates, before, columns, "AdamW" in look.name)
        _put_together(look, rows, optimizer)
        return look, _told(look, rows)


def _fits(state: Any, parameter: torch.Tensor, moments: Sequence[str]) -> bool:
    if type(state) is not dict and not isinstance(state, Mapping):
        return not moments
    size = size_here(parameter)
    for name in moments:
        own: Any = state.get(name)
        if not _is_moment(own) or size_here(own) != size:
            return False
    return True


def _gradient(held: Held) -> torch.Tensor:
    assert held.parameter.grad is not None
    return held.parameter.grad.to_dense() if held.parameter.grad.is_sparse else held.parameter.grad


def _state_tensor(held: Held, name: str) -> torch.Tensor:
    largest = held.state.get("max_exp_avg_sq") if name == "exp_avg_sq" else None  # AMSGrad divides by this one
    return largest if isinstance(largest, torch.Tensor) else _tensor(held.state[name])


def _tensor(value: Any) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _put_together(look: StateLook, rows: Rows, optimizer: torch.optim.Optimizer) -> None:
    look.rate = max((rate for rate in rows.rates if rate is not None), default=None)
    look.beta1, look.beta2, look.eps = rows.beta1[0], rows.beta2[0], rows.eps[0]
    look.weight_decay = max(rows.weight_decay)
    look.decoupled = bool(rows.decoupled[0])
    look.age = max((age for age in rows.ages if age is not None), default=None)
    look.low_precision = sum(n for n, low in zip(rows.elements, rows.low, strict=True) if low) / sum(rows.elements)
    exact = type(optimizer).__name__ in EXACT
    with np.errstate(all="ignore"):
        if look.kind == "adam":
            look.stale = _root(rows.ratio_squares.together)
        if look.kind != "momentum":
            look.eps_share, look.underflow = rows.eps_shares.together, rows.underflow.together
            roots = [root for root in rows.typical_roots if root is not None]
            look.root_second = float(np.median(roots)) if roots else None
        if exact:
            look.update, look.lost = _root(rows.updates.together), rows.lost.together
            look.needed = float(np.median(rows.needed)) if len(rows.needed) else None
        look.gradient = _root(rows.gradients.together)
        look.cosine = rows.cosine if look.beta1 else None
        look.growth = _growth(rows.before_squares @ rows.weight, rows.after_squares @ rows.weight)
        if exact or look.kind != "momentum":  # what Muon and others make of their momentum is not known
            look.decay = _ratio(rows.decaying_squares @ rows.weight, rows.moving_squares @ rows.weight)


def _told(look: StateLook, rows: Rows) -> list[TensorState]:
    """Each tensor by itself; where there are many, those that stand out in something, and the largest."""
    with np.errstate(all="ignore"):
        columns: dict[str, Sequence[Any]] = {
            "name": rows.names,
            "elements": rows.elements,
            "dtype": [str(dtype).removeprefix("torch.") for dtype in rows.dtypes],
            "rate": rows.rates,
            "update": list(map(_root, rows.updates.each)),
            "lost": rows.lost.each,
            "decay": list(map(_ratio, rows.decaying_squares.tolist(), rows.moving_squares.tolist())),
            "growth": list(map(_growth, rows.before_squares.tolist(), rows.after_squares.tolist())),
        }
        if look.kind == "adam":
            columns["stale"] = list(map(_root, rows.ratio_squares.each))
        if rows.second is not None:
            columns |= {
                "eps_share": rows.eps_shares.each,
                "underflow": rows.underflow.each,
                "root_second": rows.typical_roots,
            }
    states = [TensorState(**dict(zip(columns, own, strict=True))) for own in zip(*columns.values(), strict=True)]
    if len(states) <= MOST_TENSORS:
        return states
    chosen: dict[str, TensorState] = {}
    for name in ("stale", "eps_share", "lost", "underflow", "decay", "elements"):
        known = [state for state in states if getattr(state, name) is not None]
        chosen |= {state.name: state for state in sorted(known, key=lambda s: -getattr(s, name))[: MOST_TENSORS // 6]}
    return list(chosen.values())


def _root(square: float | None) -> float | None:
    return None if square is None else math.sqrt(square)


def _ratio(decaying: float, moving: float) -> float | None:
    """Of two squared lengths, as a ratio of lengths; None where one is nothing."""
    return math.sqrt(decaying) / math.sqrt(moving) if decaying > 0 and moving > 0 else None


def _growth(was: float, is_now: float) -> float | None:
    return math.sqrt(is_now) / math.sqrt(was) - 1 if was > 0 and math.isfinite(is_now) else None
