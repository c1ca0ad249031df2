"""The largest attention logit over the looks of a training: does it grow without bound, and when is it too large?

Logits of a healthy model rise while it learns where to look, and level off. Those of queries and keys that nothing
bounds go on: Adam moves both in proportion to the steps, so that their product grows as a power of them. Looks are
rarer the later they come, so the trend is judged as such a power: d ln(logit) / d ln(step). At the present step that
describes exponential growth as well, by a power that is large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from gradient_flow.diagnosis.issue import IssueSeverity
from gradient_flow.diagnosis.robust import median_slope, slope_with_error
from gradient_flow.diagnosis.words import plain
from gradient_flow.probes.attention.evidence import HOT_LOGIT
from gradient_flow.probes.attention.stats import LayerAttention

CODE: Final = "attention_logits"
LEAST_LOOKS: Final = 4
"""Looks whose trend is judged: the later half, and at least so many."""
NOT_TINY: Final = 20.0
"""Level from which growth matters: below 10 is usual, and a model that learns passes through all of that."""
HOT: Final = HOT_LOGIT
COARSE: Final = 128.0
"""bfloat16 has eight binary digits: from here on its numbers are 1 apart, so that a weight is off by a factor of e."""
GROWN: Final = 1.5
"""How many times the logits have grown over those looks."""
STEADY: Final = 0.4
"""Of the power of all these looks: growth whose last look has less of it levels off."""
LEAST_POWER: Final = 0.25
"""A power below this takes 16 times the steps to double, which no run waits for."""
RISING: Final = 0.8
"""Share of pairs of looks of which the later is larger."""
HORIZON: Final = 5.0
"""Steps ahead, over steps taken, up to which a trend is believed."""


@dataclass(frozen=True)
class Growth:
    """How the logits of a layer grow."""

    first: float
    """Level at the first of the looks judged, and at the last."""
    last: float
    since: int
    """Step of the first."""
    step: int
    power: float
    """Of the steps, that the logits grow with at present."""
    looks: int

    @property
    def doubling(self) -> float:
        """Steps in which they double."""
        return self._until(2 * self.last)

    @property
    def steps_left(self) -> float:
        """Until the softmax looks at single positions; 0 where it does."""
        return self._until(HOT)

    @property
    def until_coarse(self) -> float:
        """Until bfloat16 cannot tell neighbouring logits apart."""
        return self._until(COARSE)

    def _until(self, level: float) -> float:
        return max(0.0, self.step * math.expm1(math.log(level / self.last) / self.power))

    @property
    def severity(self) -> IssueSeverity:
        """HIGH where the level is reached and it still grows."""
        return IssueSeverity.HIGH if self.last >= HOT else IssueSeverity.MEDIUM

    @property
    def evidence(self) -> dict[str, Any]:
        """The numbers that it rests on."""
        return {
            "max_logit": self.last,
            "max_logit_before": self.first,
            "growth_power": self.power,
            "doubling_steps": self.doubling,
            "steps_until_saturated": self.steps_left,
            "steps_until_coarse": self.until_coarse,
            "looks": self.looks,
        }


def growth_of(layer: LayerAttention, at_steps: Sequence[int]) -> Growth | None:
    """The growth of a layer's largest logit, where it is steady, beyond noise, and leads too far before long."""
    peaks = list(layer.max_logit_by_step)[-len(at_steps) :] if at_steps else []
    known = zip(list(at_steps)[-len(peaks) :], peaks, strict=True) if peaks else ()
    points = [(math.log(step), math.log(peak)) for step, peak in known if step > 0 and 0 < peak < math.inf]
    later = points[-max(LEAST_LOOKS, (len(points) + 1) // 2) :]
    if len(later) < LEAST_LOOKS or any(b <= a for (a, _), (b, _) in pairwise(later)):
        return None
    levels = [value for _, value in later]
    first, last = math.exp(levels[0]), math.exp(levels[-1])
    if last < NOT_TINY or last < GROWN * first or _rising(levels) < RISING:
        return None
    slope, power = slope_with_error(later), median_slope(later[-3:])
    if not slope.significant or power < max(LEAST_POWER, STEADY * slope.value):
        return None
    found = Growth(first, last, round(math.exp(later[0][0])), round(math.exp(later[-1][0])), power, len(later))
    return found if found.steps_left <= HORIZON * found.step else None


def _rising(values: Sequence[float]) -> float:
    """Share of pairs of which the later is larger."""
    pairs = [b > a for at, a in enumerate(values) for b in values[at + 1 :]]
    return sum(pairs) / len(pairs)


def growth_course(growth: Growth) -> str:
    """How far the logits have grown, and how fast they grow."""
    return (
        f"The largest attention logit grew from {plain(growth.first, 2)} to {plain(growth.last, 2)} between steps "
        f"{growth.since:,} and {growth.step:,} and doubles every {_about(growth.doubling)} steps"
    )


def growth_words(growth: Growth) -> str:
    """What is wrong, and when it breaks.

    >>> print(growth_words(Growth(10.0, 25.0, 100, 400, 1.0, 6)).partition(": ")[0])
    The largest attention logit grew from 10 to 25 between steps 100 and 400 and doubles every 400 steps
    """
    course = growth_course(growth)
    coarse = f"{COARSE:g}, where bfloat16 logits are 1 apart, in about {_about(growth.until_coarse)} steps"
    if growth.last >= HOT:
        flat = f"beyond {HOT:g} a softmax looks at single positions and passes hardly any gradient"
        then = f"it reaches {coarse}" if growth.last < COARSE else "in bfloat16 logits this large are 1 or more apart"
        return f"{course}: {flat}; {then}."
    left = f"in about {_about(growth.steps_left)} steps"
    return f"{course}: it reaches {HOT:g}, where a softmax looks at single positions, {left}, and {coarse}."


def _about(steps: float) -> str:
    """To two digits.

    >>> _about(1234.0), _about(7.4)
    ('1,200', '7.4')
    """
    rounded = float(f"{steps:.1e}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"
