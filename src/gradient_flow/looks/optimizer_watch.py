"""Looks at the state of optimizers: in some steps, without a hook, so also where the model is compiled."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

import torch

from gradient_flow.capture.module_calls import aside
from gradient_flow.diagnosis.optimizer.record import MOST_NOISE, MOST_STATES, NoiseLook, OptimizerFacts
from gradient_flow.diagnosis.robust import exceeds
from gradient_flow.looks.optimizer_state import StateReader, kind_of, squared_norm
from gradient_flow.looks.schedule import Schedule

EARLY: Final = (3, 4, 6, 9, 12, 18, 25, 35, 50, 70, 100, 140, 200)
"""Steps of an optimizer that are looked at in a usual schedule."""
LATER: Final = 100
"""After them, every Nth."""
LATER_WITH_RANKS: Final = 1000
"""The same where the step alone decides, for no clock drops a look then."""
_FREE: Final = 8
"""Looks that are taken whatever they cost: a few milliseconds for a hundred tensors."""
_WINDOW: Final = 16
_JUMP: Final = 3.0
"""Times the median norm of the steps before, from which on a step is looked at out of turn."""
_MOST_JUMPS: Final = 12
_APART: Final = 3
_SHARE: Final = 0.1
"""Of the budget of all looks, what these may take."""


class OptimizerWatch:
    """Looks at the state of each optimizer in some of its steps; `facts` is everything that was seen."""

    def __init__(self, looks: Any, budget: float, *, ranks: bool = False) -> None:
        self._schedule = Schedule(looks, EARLY, LATER_WITH_RANKS if ranks else LATER)
        self._by_step_alone = ranks
        """Whether neither the clock nor the norm, which are a rank's own, has a say: no rank looks alone."""
        self._budget = budget * _SHARE
        self.facts = OptimizerFacts()
        self.failed, self.reason = False, ""
        self.seconds = 0.0
        self._started = time.perf_counter()
        self._numbers: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        self._norms: dict[int, deque[float]] = {}
        self._jumped, self._last_jump = 0, -_APART
        self.backwards = self._usual_backwards = 0
        """Backward passes since the last step, and before it."""
        self._small: float | None = None
        self._reader: StateReader | None = None
        self._owner = 0

    @property
    def is_looking(self) -> bool:
        """Whether the state is looked at once the step is over."""
        return self._reader is not None

    def before_update(
        self,
        optimizer: torch.optim.Optimizer | None,
        parameters: Sequence[tuple[str, torch.Tensor]],
        norm: float,
        samples: Callable[[], int] = int,
    ) -> None:
        """Gradients are there, weights have not moved: remember some of them, if a look is due, or if they jumped."""
        self._reader = None
        if optimizer is None or self.failed:
            return
        own = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        self._note_noise(parameters, own, samples)
        jumped = self._jumps(id(optimizer), own, norm)
        if not (jumped or (self._schedule.is_due(own - 1, own) and self._may())):
            return
        began = time.perf_counter()
        try:
            with aside():
                self._reader, self._owner = StateReader(optimizer, parameters), id(optimizer)
        except Exception as problem:
            self._fail(problem)
        self.seconds += time.perf_counter() - began

    def next_due(self, optimizer: torch.optim.Optimizer) -> float:
        """Steps of this optimizer until the next that is looked at; 0 where each has to be told of as it is taken."""
        if self.failed:
            return math.inf
        own = self._steps.get(id(optimizer), 0)
        # Of micro-batches the first is remembered, in the step before.
        several = self._usual_backwards > 1
        return 0 if several else self._schedule.after(own) - own

    def step_begins(self) -> None:
        """A step that nothing is due in and that does not jump begins; `passed` is told of it later."""
        self.backwards, self._usual_backwards = 0, 1

    def passed(self, optimizer: int, norm: float) -> None:
        """A step of the optimizer with this id was of no interest."""
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        if not self.failed:
            self._norms.setdefault(optimizer, deque(maxlen=_WINDOW)).append(norm)

    def after_update(self, optimizer: torch.optim.Optimizer | None, step: int) -> OptimizerFacts | None:
        """The step is over: all that was seen so far, if this step was looked at."""
        reader, self._reader = self._reader, None
        if reader is None or optimizer is None or id(optimizer) != self._owner or self.failed:
            return None
        began = time.perf_counter()
        try:
            with aside():
                return self._look(reader, optimizer, step)
        except Exception as problem:
            self._fail(problem)
            return None
        finally:
            self.seconds += time.perf_counter() - began

    # ---- the noise of gradients -----------------------------------------------------------------------------------

    def backward_ended(self, parameters: Callable[[], Sequence[tuple[str, torch.Tensor]]]) -> None:
        """A micro-batch is done: the gradient of the first is remembered, if the step is to be looked at."""
        self.backwards += 1
        if self.backwards > 1 or self._usual_backwards < 2 or self.failed or len(self._steps) != 1:
            return
        (own,) = self._steps.values()
        if not self._schedule.is_due(own, own + 1) or not self._may():
            return
        began = time.perf_counter()
        try:
            with aside():
                self._small = squared_norm(parameters())
        except Exception as problem:
            self._fail(problem)
        self.seconds += time.perf_counter() - began

    def _note_noise(
        self, parameters: Sequence[tuple[str, torch.Tensor]], step: int, of_part: Callable[[], int]
    ) -> None:
        """Before the step: the gradient of the whole batch beside that of its first part."""
        count, self.backwards = self.backwards, 0
        small, self._small = self._small, None
        self._usual_backwards = count
        if small is None or count < 2 or (samples := of_part()) < 1:
            return
        with aside():
            large = squared_norm(parameters)
        if math.isfinite(small + large) and large > 0:
            # The whole is the sum of its parts, divided by their number or not: one part alone is that much shorter.
            look = NoiseLook(step=step, small=small * count**2, large=large, few=samples, many=samples * count)
            self.facts.noise.append(look)
            del self.facts.noise[:-MOST_NOISE]

    def _look(self, reader: StateReader, optimizer: torch.optim.Optimizer, step: int) -> OptimizerFacts | None:
        facts, number = self.facts, self._numbers.setdefault(id(optimizer), len(self._numbers))
        if not kind_of(optimizer):
            name = type(optimizer).__name__
            if name not in facts.unknown:
                facts.unknown.append(name)
            return None
        look, tensors = reader.read(optimizer, step, number)
        if not tensors:
            return None
        look.own = self._steps[id(optimizer)]
        facts.looks.append(look)
        if len(facts.looks) > MOST_STATES:
            del facts.looks[1]
        facts.taken += 1
        others = [state for state in facts.tensors if state.name not in {new.name for new in tensors}]
        facts.tensors = [*tensors, *(others if number else [])][: 2 * MOST_STATES]
        return facts

    def _jumps(self, optimizer: int, own: int, norm: float) -> bool:
        """Whether gradients are far above those before: then the second moment is asked whether it knows."""
        before = self._norms.get(optimizer)
        if before is None:
            before = self._norms[optimizer] = deque(maxlen=_WINDOW)
        enough, finite = len(before) >= _WINDOW // 2, math.isfinite(norm)
        jumped = enough and exceeds(norm, _JUMP, before)
        before.append(norm if finite else median(before) if enough else math.inf)
        if not jumped or self._jumped >= _MOST_JUMPS or own - self._last_jump < _APART:
            return False
        self._jumped += 1
        self._last_jump = own
        return not self._schedule.off and not self._by_step_alone

    def _may(self) -> bool:
        taken = self.facts.taken
        if taken < _FREE or self._by_step_alone:
            return True
        return self.seconds * (taken + 1) / taken <= self._budget * (time.perf_counter() - self._started)

    def _fail(self, problem: Exception) -> None:
        """End the looks and keep the reason; training continues."""
        self.failed, self.reason = True, f"{type(problem).__name__}: {problem}"
