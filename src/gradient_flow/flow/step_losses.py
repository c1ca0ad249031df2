"""The loss of each step, from the backward passes before it, for loops that do not log it.

A round is the passes since the last step, up to the next one. Its losses are summed, as their gradients are: those of
micro-batches, each usually divided by their number, and those of an actor and a critic that one optimizer steps. A pass
counts for an optimizer if it left gradients in its parameters, so the players of a game keep their losses apart.
Whatever is not certain is not recorded.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, Final

import torch

from gradient_flow.capture.arrivals import on_device
from gradient_flow.capture.losses import NearestParameter, scaled, value_of
from gradient_flow.capture.sharding import is_sharded
from gradient_flow.flow.known_parameters import KnownParameters
from gradient_flow.record.step import SKIPPED_LOSSES

MICRO_BATCHES: Final = "micro_batches"
"""Under this name the number of passes is recorded where a step's loss is the sum of several."""
_MOST_ASKED: Final = 200
"""Parameters whose gradients are compared before and after a pass in whose graph none of them was found."""
_PER_OPTIMIZER: Final = 4
"""Parameters that tell whether a pass left gradients for an optimizer."""
_MOST_OPTIMIZERS: Final = 16
"""With more than that (one for each parameter) they step together, and are not asked about one by one."""
_MOST_MARKS: Final = 8
_NOBODY: Final[frozenset[int]] = frozenset()


class _Mark:
    """A parameter, and its gradient as it was at some moment. Keeps neither alive."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self._parameter = weakref.ref(parameter)
        self.renew()

    def is_of(self, parameter: torch.Tensor) -> bool:
        """Whether it is this very parameter."""
        return self._parameter() is parameter

    def renew(self) -> None:
        """Take the gradient as it is now."""
        parameter = self._parameter()
        self.take(None if parameter is None else parameter.grad)

    def take(self, gradient: torch.Tensor | None) -> None:
        """The gradient that it has now."""
        self._gradient = None if gradient is None else weakref.ref(gradient)
        self._version = -1 if gradient is None else gradient._version

    @property
    def was_replaced(self) -> bool:
        """Whether another gradient is there, or none any more: the usual `zero_grad()`."""
        parameter = self._parameter()
        gradient = None if parameter is None else parameter.grad
        return self._gradient is not None and (gradient is None or self._gradient() is not gradient)

    @property
    def has_changed(self) -> bool:
        """The same, or the gradient itself was changed."""
        parameter = self._parameter()
        return self._differs(None if parameter is None else parameter.grad)

    def renewed(self) -> bool:
        """Whether it has changed; the gradient is taken as it is now."""
        parameter = self._parameter()
        gradient = None if parameter is None else parameter.grad
        changed = self._differs(gradient)
        self.take(gradient)
        return changed

    def _differs(self, gradient: torch.Tensor | None) -> bool:
        if self._gradient is None or gradient is None:
            return (self._gradient is None) != (gradient is None)
        return self._gradient() is not gradient or gradient._version != self._version


class _Sum:
    """Losses put together."""

    def __init__(self) -> None:
        self.value: Any = 0.0
        self.count = self._unclear = 0

    def add(self, value: Any, *, clear: bool) -> None:
        """One more, which is None where it is not known."""
        self.count += 1
        self._unclear += not clear
        known = value is not None and self.value is not None
        self.value = self.value + value if known else None

    @property
    def is_bad(self) -> bool:
        """Whether it is known to be NaN or Inf; on a device that is not asked, for asking would wait."""
        return type(self.value) is float and not math.isfinite(self.value)

    @property
    def certain(self) -> bool:
        """Whether this is the loss. A pass that may be of something else is trusted only where it is alone."""
        return self.value is not None and (not self._unclear or self.count == 1)


class _Pass:
    """A backward pass that is under way."""

    def __init__(self, value: Any, *, clear: bool, ours: bool, scaled: bool = False) -> None:
        self.value, self.clear, self.scaled = value, clear, scaled
        self.ours = ours
        """Whether it is known to be of a parameter of ours; else its end will tell."""
        self.replaced = self.changed = False
        """State of the gradients that earlier passes left."""
        self.asked: dict[int, list[_Mark]] = {}
        """Optimizer → some parameters of it."""
        self.others: list[_Mark] = []


class StepLosses:
    """Follows each backward pass and gives a step its loss."""

    _sums: dict[frozenset[int], _Sum]
    """Losses of the round, by whose they are."""
    _stepped: set[int]
    """Optimizers that have taken a step since."""
    _asked: set[int]
    _marks: dict[int, _Mark]
    """By the id of a parameter, its gradient after the last pass."""
    _restarted: bool

    def __init__(self, known: KnownParameters) -> None:
        self._known = known
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._returned: Any = None
        self._skipped = 0
        """Rounds with a loss of NaN or Inf that were given up since the last step."""
        self._running: _Pass | None = None
        self._whole_shapes: tuple[int, set[torch.Size]] = (0, set())
        self._nearest = NearestParameter(self._is_known)
        self._usual = _Pass(None, clear=True, ours=True)
        """The pass of a round that is like nearly every one."""
        self._begin_round()

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """One more whose steps are watched."""
        self._optimizers.append(weakref.ref(optimizer))

    def closure_returned(self, loss: Any) -> None:
        """What the closure of the coming step returned."""
        self._returned = loss

    def is_ours(self, root: torch.Tensor | None) -> bool:
        """Whether a pass is known to be of a parameter of ours, from its graph alone."""
        return root is not None and self._nearest.of(root) is not None

    def value_of(self, root: torch.Tensor) -> Any:
        """The loss that a pass begins from, as it is now; None where it cannot be known."""
        if not scaled and type(root) is torch.Tensor and not on_device(root):
            return root.item()  # as in nearly every step of a small model
        value = value_of(root)
        return None if value is None else _kept(value)

    def begin_usual(self, root: torch.Tensor) -> float | None:
        """The same as `value_of` and `begin`, in few steps: for the first pass after a step that took one optimizer.

        Whether it is ours is seen at its end, by the gradient of a parameter that such passes lead to. None, and
        nothing has changed, where this pass is not as usual.
        """
        if scaled or not self._stepped or self._running is not None or self._returned is not None:
            return None
        nearest = self._nearest
        hit = nearest.last() if nearest.steady else nearest.again(root)
        if hit is None or len(self._optimizers) != 1 or type(root) is not torch.Tensor or on_device(root):
            return None
        value = root.item()
        if type(value) is not float or not math.isfinite(value):
            return None
        mark = self._marks.get(id(hit))
        if mark is not None and len(self._marks) == 1 and mark.is_of(hit):
            mark.take(hit.grad)
        else:
            self._marks = {id(hit): _Mark(hit)}
        self._running, self._usual.value = self._usual, value
        return value

    def begin(self, root: torch.Tensor | None, value: Any, *, clear: bool = True, scaled: bool = False) -> None:
        """A pass begins, from one scalar of this value or from something else; `end` is called when it has ended."""
        hit = None if root is None else self._nearest.of(root)
        this = _Pass(value, clear=clear, ours=hit is not None, scaled=scaled)
        failed, self._running = self._running is not None, None  # the pass before this one never reported its end
        if self._marks and not self._stepped:
            this.replaced = any(mark.was_replaced for mark in self._marks.values())
            this.changed = bool(self._sums) and (failed or any(mark.has_changed for mark in self._marks.values()))
        if hit is not None:
            self._join(this)
            if len(self._marks) < _MOST_MARKS and id(hit) not in self._marks:
                self._marks[id(hit)] = _Mark(hit)
        else:  # FSDP, reentrant checkpointing, a graph with much before the first parameter, another model
            named = self._known.live()
            this.others = [_Mark(p) for _, p in named[:: -(-len(named) // _MOST_ASKED) or 1]]
        if len(self._optimizers) > 1:
            living = [optimizer for each in self._optimizers if (optimizer := each()) is not None]
            if 1 < len(living) <= _MOST_OPTIMIZERS:
                this.asked = {id(optimizer): _some_of(optimizer) for optimizer in living}
        self._running = this

    def forget(self) -> None:
        """The coming step is not recorded."""
        self._running = None
        self._begin_round()

    def pass_over(self, optimizer: torch.optim.Optimizer) -> None:
        """A step that is not recorded, of whose passes nothing was told."""
        self._returned = None
        self.forget()
        self._stepped.add(id(optimizer))

    def of_step(self, optimizer: torch.optim.Optimizer | None, *, inside: bool = False) -> dict[str, Any]:
        """What is known of the loss of a step that begins: `loss`, and `micro_batches` where there are several.

        `inside` is a step that is taken by a hook while the pass is under way.
        """
        if not inside and not self._stepped and self._is_usual:
            self._stepped.add(id(optimizer))
            return {"loss": self._sums[_NOBODY].value}
        returned, self._returned = self._returned, None
        if self._running is not None and not inside:  # it failed
            self.forget()
        elif self._running is not None and not self._running.ours:
            self._join(self._running)  # a step of ours is taken in it
        total = self._total(optimizer, inside=inside)
        self._stepped.add(id(optimizer))
        skipped, self._skipped = self._skipped, 0
        more = {SKIPPED_LOSSES: skipped} if skipped else {}
        # A closure of Lightning returns the last of several micro-batches; that of LBFGS is evaluated for this step.
        if returned is not None and (total is None or total.count < 2):
            return {"loss": returned} | more
        if total is None:
            return more
        return {"loss": total.value} | ({MICRO_BATCHES: total.count} if total.count > 1 else {}) | more

    @property
    def _is_usual(self) -> bool:
        """Whether the round is one pass that has ended, whose loss is known, and nothing else."""
        if self._returned is not None or self._running is not None or self._restarted or len(self._sums) != 1:
            return False
        only = self._sums.get(_NOBODY)
        return only is not None and only.count == 1 and only.value is not None

    def _total(self, optimizer: torch.optim.Optimizer | None, *, inside: bool) -> _Sum | None:
        if id(optimizer) in self._stepped:
            return None  # its gradients no longer come from these passes
        if self._restarted and any(mark.was_replaced for mark in self._marks.values()):
            return None  # passes whose gradients were put together by hand, such as those of several tasks
        everything = inside or id(optimizer) not in self._asked
        sums = [part for whose, part in self._sums.items() if everything or not whose or id(optimizer) in whose]
        if inside and self._running is not None:
            now = _Sum()
            now.add(self._running.value, clear=self._running.clear)
            sums.append(now)
        if len(sums) == 1:
            return sums[0] if sums[0].certain else None
        if not sums or not all(part.certain for part in sums):
            return None
        total = _Sum()
        for part in sums:
            total.add(part.value, clear=part._unclear == 0)
        total.count = sum(part.count for part in sums)
        return total if total.certain else None

    def _begin_round(self) -> None:
        self._sums, self._marks = {}, {}
        self._stepped, self._asked = set(), set()
        self._restarted = False

    def _join(self, this: _Pass) -> None:
        """A pass is ours: its gradients are added to those of the passes before it, unless it begins anew."""
        this.ours = True
        if self._stepped:
            self._begin_round()
        elif this.replaced:
            # A step was given up: by a GradScaler that found an overflow, or by hand.
            if not this.scaled:  # a scaler counts those that it skips
                self._skipped += any(part.is_bad for part in self._sums.values())
            self._begin_round()
            self._restarted = True
        elif this.changed:
            # Set to zero, or only clipped? One would begin anew, the other not.
            self._sums.setdefault(frozenset(), _Sum()).add(None, clear=False)

    def end(self) -> bool:
        """The pass that began has ended; whether it may be one of ours."""
        this, self._running = self._running, None
        if this is None:
            return True
        if this is self._usual:
            return self._end_usual(this.value)
        moved = next((mark for mark in this.others if mark.has_changed), None) if this.others else None
        if not this.ours:
            if moved is None:
                return False  # of another model
            self._join(this)
        if moved is not None and not self._marks:
            self._marks[id(moved)] = moved
        for mark in self._marks.values():
            mark.renew()
        whose = _NOBODY
        if this.asked:
            self._asked |= this.asked.keys()
            whose = frozenset(key for key, marks in this.asked.items() if any(mark.has_changed for mark in marks))
        self._sums.setdefault(whose, _Sum()).add(this.value, clear=this.clear)
        return True

    def _end_usual(self, value: float) -> bool:
        (mark,) = self._marks.values()
        if not mark.renewed():
            self._nearest.steady = False  # from now on its graph is asked before
            return False  # of another model
        only = _Sum()
        only.value, only.count = value, 1
        self._sums, self._stepped, self._asked, self._restarted = {_NOBODY: only}, set(), set(), False
        return True

    def _is_known(self, parameter: torch.Tensor) -> bool:
        if self._known.name_of(parameter) is not None:
            return True
        count, shapes = self._whole_shapes
        if count != len(self._known.described):
            shapes = {p.shape for _, p in self._known.live() if is_sharded(p)}
            self._whole_shapes = (len(self._known.described), shapes)
        # FSDP computes with whole copies of its parameters, and these are what the graph leads to.
        return bool(shapes) and not is_sharded(parameter) and parameter.shape in shapes


def _some_of(optimizer: torch.optim.Optimizer) -> list[_Mark]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    stride = max(1, len(parameters) // _PER_OPTIMIZER)
    return [_Mark(p) for p in parameters[::stride][: _PER_OPTIMIZER + 1]]


def _kept(value: torch.Tensor) -> Any:
    """A number at once where that costs nothing; on a device a copy, which the loop cannot change."""
    if not on_device(value):
        return value.item()
    return value.reshape(()).to(torch.float32, copy=True)
