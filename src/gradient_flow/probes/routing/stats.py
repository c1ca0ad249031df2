"""What was seen of a model's routers, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Router:
    """One router over the looks of the later half."""

    name: str
    """Path of the module that scores the experts."""
    experts: int
    top: int
    """Experts that each token goes to."""
    load: Sequence[float]
    """Per expert, its share of all that is routed; evenly it is 1 / experts."""
    entropy: float
    """Of a token's probabilities, as a share of ln(experts): 1 where the router has no preference."""
    busiest_by_look: Sequence[float]
    """Share of the busiest expert, look by look."""
    tokens: int
    """Tokens that these numbers rest on."""

    @property
    def effective(self) -> float:
        """Experts in effect: e to the entropy of the load.

        >>> even = dict(name="gate", experts=4, top=1, entropy=1.0, busiest_by_look=(0.25,), tokens=100)
        >>> Router(load=(0.25, 0.25, 0.25, 0.25), **even).effective, Router(load=(1, 0, 0, 0), **even).effective
        (4.0, 1.0)
        """
        return math.exp(-math.fsum(share * math.log(share) for share in self.load if share > 0))

    @property
    def idle(self) -> list[int]:
        """Experts that no token went to."""
        return [at for at, share in enumerate(self.load) if share == 0]


@dataclass(frozen=True, kw_only=True)
class RoutingStats:
    """All routers of a model."""

    routers: Sequence[Router]
    steps: int
    """Steps that were looked at."""
