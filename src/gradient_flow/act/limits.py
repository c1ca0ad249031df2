"""Limits that follow the norms of a run. Pure numbers; a non-finite norm never enters."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gradient_flow.act.clip_factors import quotient, where
from gradient_flow.diagnosis.robust import percentile_of

SPREAD_FLOOR: Final = 0.01
"""Standard deviations below this share of the mean count as this share: of equal norms none is a spike."""


class PercentileLimit:
    """A percentile of the past norms, before clipping (AutoClip, arXiv 2007.14469, with a bounded memory).

    The current norm is judged by the past and remembered afterwards: a spike does not raise its own limit.
    """

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=1)

    def limit(self, percentile: float, window: int, least: int) -> float:
        """The limit now; infinite while too few norms are known, or where it would be zero and stop all learning."""
        past = list(self._norms)[-window:]
        if len(past) < min(least, window):
            return math.inf
        limit = percentile_of(past, percentile)
        return limit if limit > 0 else math.inf

    def observe(self, norm: float, window: int) -> None:
        """Remember a norm as it was before clipping."""
        if self._norms.maxlen != window:
            self._norms = deque(self._norms, maxlen=window)
        if math.isfinite(norm):
            self._norms.append(norm)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"norms": list(self._norms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        norms = [float(norm) for norm in state["norms"]]
        self._norms = deque(norms, maxlen=max(1, len(norms), self._norms.maxlen or 1))


class SpikeLimit:
    """ZClip (arXiv 2504.02507): norms far above their running mean are brought near it, the further the nearer.

    With z = (norm - mean) / deviation above the threshold z₀ the limit is mean + z₀² · deviation / z. Mean and variance
    are exponential averages of the norms after clipping; a warm-up of norms starts them.
    """

    def __init__(self) -> None:
        self._collected: list[float] = []
        self._mean: float | None = None
        self._variance = 0.0

    def limit(self, norm: Any, threshold: float) -> Any:
        """The limit for this norm, which may be a tensor; infinite if it is no spike or during the warm-up."""
        if self._mean is None:
            return math.inf
        mean, deviation = self._mean, max(math.sqrt(self._variance), SPREAD_FLOOR * self._mean)
        if not deviation > 0:  # nothing but zeros so far: no scale to judge by
            return math.inf
        z = (norm - mean) / deviation
        spikes = (z > threshold) & (norm < math.inf)
        return where(spikes, lambda: mean + quotient(threshold**2 * deviation, z), math.inf)

    def observe(self, norm: float, clipped_norm: float, alpha: float, warmup: int) -> None:
        """Remember a norm, during the warm-up as it came, later as it was let through."""
        if not math.isfinite(norm) or not math.isfinite(clipped_norm):
            return
        if self._mean is None:
            self._collected.append(norm)
            if len(self._collected) >= warmup:
                self._mean = float(np.mean(self._collected))
                self._variance = float(np.var(self._collected))
                self._collected = []
            return
        self._mean = alpha * self._mean + (1 - alpha) * clipped_norm
        self._variance = alpha * self._variance + (1 - alpha) * (clipped_norm - self._mean) ** 2

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"collected": list(self._collected), "mean": self._mean, "variance": self._variance}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._collected = [float(norm) for norm in state["collected"]]
        self._mean, self._variance = state["mean"], state["variance"]
