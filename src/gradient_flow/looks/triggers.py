"""What asks for one more look: something has just changed in the course of the training."""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import Final

from gradient_flow.diagnosis.robust import exceeds, loss_change

_WINDOW: Final = 32
_LEAST: Final = 16
_SPIKE: Final = 10.0
"""Times the median norm of the steps before."""
_RATE: Final = 3.0
"""Times the learning rate of the step before, up or down; a schedule moves in smaller steps."""
_STALL: Final = 200
"""Losses without progress, half against half."""
_APART: Final = 20
"""Steps between two looks that were asked for; a change of the rate is deliberate and does not wait."""
RATE_CHANGED: Final = "the learning rate changed"
LOSS_STALLED: Final = "the loss stopped falling"
NOT_FINITE: Final = "a gradient was not finite"
_SPIKED: Final = "the norm spiked"
_QUIET: Final = "gradients went quiet"
KINDS: Final = (RATE_CHANGED, LOSS_STALLED, NOT_FINITE, _SPIKED, _QUIET)
"""All that may ask for a look; of several at once, the first does."""


class Triggers:
    """Fed with every recorded step; says why the next one should be looked at."""

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=_WINDOW)
        self._losses: deque[float] = deque(maxlen=_STALL)
        self._rate: float | None = None
        self._last = -_APART
        self._stalled = False

    def asked(self, step: int, norm: float, loss: float | None, rate: float | None) -> str:
        """Why, or an empty text."""
        why = self._why(norm, loss, rate)
        if not why or (step - self._last < _APART and why != RATE_CHANGED):
            return ""
        self._last = step
        return why

    def take_for_asked(self, step: int, why: str) -> None:
        """Another rank asked at this step: what it saw is not asked about once more by this one."""
        self._last = max(self._last, step)
        self._stalled |= why == LOSS_STALLED

    def _why(self, norm: float, loss: float | None, rate: float | None) -> str:
        before = self._rate
        self._rate = rate if rate is not None else before
        if rate and before and not 1 / _RATE < rate / before < _RATE:
            return RATE_CHANGED
        if loss is not None and self.stalls(loss):
            return LOSS_STALLED
        if not math.isfinite(norm):
            return NOT_FINITE
        enough = len(self._norms) >= _LEAST
        spiked = enough and exceeds(norm, _SPIKE, self._norms)
        # That nearly every norm is above a thousandth of the largest settles it: nothing need be sorted.
        quiet = enough and norm < max(self._norms) / _SPIKE**3 and norm < median(self._norms) / _SPIKE**3
        self._norms.append(norm)
        return _SPIKED if spiked else _QUIET if quiet else ""

    def stalls(self, loss: float) -> bool:
        """Whether losses have stopped falling; that is found once."""
        if not math.isfinite(loss):
            return False
        self._losses.append(loss)
        if len(self._losses) < _STALL or self._stalled:
            return False
        self._stalled = loss_change(list(self._losses)) > 1.0
        if not self._stalled:
            for _ in range(_STALL // 2):  # asked again when half of them are new
                self._losses.popleft()
        return self._stalled
