"""The search for the samples that make a batch bad: halving while samples are independent, delta debugging otherwise.

Pure logic over `Replay`, a function from samples to what became of them, so that it can be tested without a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from gradient_flow.table.text import plain

Samples = tuple[int, ...]

CLEARLY: Final = 0.75
"""Of what the whole has: a half with this much holds the cause, and the other half need not be asked."""
HALF: Final = 0.5
NOISE: Final = 2.0
"""Times what a sample adds to the gradient of a batch in which all are alike and point anywhere: 1/√n of it."""
MANY: Final = 4
"""Samples that are not finite by themselves, after which there may be many."""
ADDS_UP: Final = 0.8
SAME: Final = 1e-3
STAND_INS: Final = 3
"""Samples that are tried as a stand-in for all others."""
SAME_IF_RANDOM: Final = 0.1
"""Dropout gives other masks to other places, so that parts do not add up to the whole by more than this."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One replay."""

    loss: float | None = None
    norm: float | None = None
    """Of the gradients; None where there was no backward pass."""
    raised: str = ""
    """What the step raised, if it did: too few samples for a batch norm, mostly."""

    @property
    def finite(self) -> bool:
        """Whether nothing was NaN or Inf. A step that failed shows neither."""
        return bool(self.raised) or all(value is None or math.isfinite(value) for value in (self.loss, self.norm))


class OutOfReplays(Exception):
    """The search has used up what it may."""


@dataclass
class Search:
    """Finds the samples at fault. `size_of` is what a spike is measured by."""

    replay: Callable[[Samples], Outcome]
    samples: int
    most: int
    by_loss: bool = False
    usual: float | None = None
    couples: bool = False
    """Whether samples are known to depend on each other: then each is asked in the company of sound ones."""
    random: bool = False
    """Whether the step draws random numbers."""
    replays: int = 0
    mismatch: str = ""
    """Why samples cannot be independent, where the numbers show that."""
    sound: Samples = ()
    """The largest part that is known to be sound."""
    summed: bool = False
    """Whether the loss is a sum over samples rather than a mean."""
    suspects: Samples = ()
    """Where the search is now."""
    limit: float | None = None
    """Above it is a spike; None where NaN is searched."""
    found: list[int] = field(default_factory=list)
    """Samples at fault, so far."""
    known: dict[Samples, Outcome] = field(default_factory=dict)

    def run(self, which: Samples) -> Outcome:
        """What becomes of these samples; asked once for each set."""
        if which not in self.known:
            if self.replays >= self.most:
                raise OutOfReplays
            self.replays += 1
            self.known[which] = self.replay(which)
        return self.known[which]

    def asked(self, which: Samples) -> Outcome:
        """The same, in the company of sound samples where the step wants more of them."""
        return self.run(self._company_for(which))

    def _company_for(self, which: Samples) -> Samples:
        company = self._with_company(which)
        if self.run(company).raised and company == which:
            self.couples = True
            self._seek_sound()
            company = self._with_company(which)
        return company

    def _seek_sound(self) -> None:
        """Those that are not suspected, if that bears out."""
        rest = tuple(each for each in range(self.samples) if each not in set(self.suspects))
        if not self.sound and rest and self._is_sound(self.run(rest)):
            self.sound = rest

    def _is_sound(self, outcome: Outcome) -> bool:
        if outcome.raised or not outcome.finite:
            return False
        size = outcome.loss if self.by_loss else outcome.norm
        return self.limit is None or size is None or abs(size) <= self.limit

    def _with_company(self, which: Samples) -> Samples:
        if not self.couples:
            return which
        others = [each for each in self.sound if each not in set(which)]
        return tuple(sorted([*which, *others[: self.samples - len(which)]]))

    # ---- NaN and Inf ----------------------------------------------------------------------------------------------

    def nonfinite(self) -> Samples:
        """The samples with which the batch is not finite."""
        left = tuple(range(self.samples))
        while left and not self.run(left).finite:
            one = self._one_nonfinite(left)
            if one is None and self.random:
                one = self._one_in_its_place(left)
            if one is None:
                self.mismatch = "Samples are fine alone and bad together: the loss compares them."
                self.found += self._smallest(left, self._is_nonfinite)
                break
            self.found.append(one)
            left = tuple(each for each in left if each != one)
            if len(self.found) == MANY:  # one by one is no longer than halving for each
                self.found += [each for each in left if self._is_nonfinite((each,))]
                left = tuple(each for each in left if each not in self.found)
        return tuple(sorted(self.found))

    def _is_nonfinite(self, which: Samples) -> bool:
        return not self.asked(which).finite

    def _one_nonfinite(self, bad: Samples) -> int | None:
        """A single sample that is bad by itself; None where it takes several."""
        certain = True
        while len(bad) > 1:
            self.suspects = bad
            first, second = halves(bad)
            if self._is_nonfinite(first):
                bad, certain = first, True
            else:
                self._note_sound(first)
                bad, certain = second, False  # it must be, if samples are independent
        return bad[0] if certain or self._is_nonfinite(bad) else None

    def _one_in_its_place(self, bad: Samples) -> int | None:
        """The same where random numbers belong to places: others are not left out, a sound sample stands for them."""
        candidates = [*self.sound, *(each for each in range(self.samples) if each not in self.sound)][:STAND_INS]
        stand_in = next((each for each in candidates if self.run((each,) * self.samples).finite), None)
        if stand_in is None:
            return None

        def is_bad(which: Samples) -> bool:
            kept = set(which)
            return not self.run(tuple(each if each in kept else stand_in for each in range(self.samples))).finite

        while len(bad) > 1:
            bad = next((half for half in halves(bad) if is_bad(half)), ())
        return bad[0] if bad and is_bad(bad) else None

    def _note_sound(self, which: Samples) -> None:
        if len(which) > len(self.sound) and not self.run(self._with_company(which)).raised:
            self.sound = which

    # ---- spikes ---------------------------------------------------------------------------------------------------

    def spike(self) -> Samples:
        """The samples without which the batch has an ordinary size; none where no few of them stand out."""
        left = tuple(range(self.samples))
        self._learn_how_it_adds_up(left)
        limit = self.limit = HALF * self._size(left) if self.usual is None else 2 * self.usual
        while len(left) > 1 and self._size(left) > limit:
            one = self._largest(left)
            if one is None:
                break
            self.found.append(one)
            left = tuple(each for each in left if each != one)
        if self._size(left) <= limit and not self.run(left).raised:
            return tuple(sorted(self.found))
        if self.mismatch or self.couples:
            whole = tuple(range(self.samples))
            return self._smallest(whole, lambda which: self._share(which) >= HALF * self._share(whole))
        return ()

    def _size(self, which: Samples) -> float:
        outcome = self.run(which)
        value = outcome.loss if self.by_loss else outcome.norm
        return abs(value) if value is not None and math.isfinite(value) else 0.0

    def _share(self, which: Samples) -> float:
        """What samples bring into the gradient of the batch: their mean, times how many they are."""
        company = self._company_for(which)
        return self._size(company) * (1 if self.summed else len(company))

    def _learn_how_it_adds_up(self, everything: Samples) -> None:
        """Whether the loss is a mean or a sum of what its samples have, or neither: then they are not independent."""
        if len(everything) < 2:
            return
        whole, parts = self.run(everything), [self.run(half) for half in halves(everything)]
        if whole.loss is None or any(part.loss is None or part.raised for part in parts):
            return
        first, second = (part.loss or 0.0 for part in parts)
        close = SAME_IF_RANDOM if self.random else SAME
        room = close * max(abs(whole.loss), abs(first), abs(second))
        sizes = [len(half) for half in halves(everything)]
        mean = abs(whole.loss - (sizes[0] * first + sizes[1] * second) / sum(sizes)) <= room
        self.summed = not mean and abs(whole.loss - (first + second)) <= room
        # A mean over tokens weighs samples by their length: it lies between its parts all the same.
        mean |= min(first, second) - room <= whole.loss <= max(first, second) + room
        if not mean and not self.summed:
            self.mismatch = (
                f"The loss of the batch ({plain(whole.loss, 4)}) is neither mean nor sum of those of its halves "
                f"({plain(first, 4)}, {plain(second, 4)}): samples are compared with each other, "
                "as in a contrastive loss."
            )

    def _largest(self, left: Samples) -> int | None:
        """The sample that brings most, if that is far more than one of many does."""
        whole = least = self._share(left)
        here = left
        while len(here) > 1:
            self.suspects = here
            first, second = halves(here)
            own = self._share(first)
            if own >= CLEARLY * least:
                here, least = first, own
            elif own <= (1 - CLEARLY) * least:
                here, least = second, least - own  # the two add up to at least the whole
                if len(first) > len(self.sound) and self._is_sound(self.run(self._with_company(first))):
                    self.sound = first
            else:
                other = self._share(second)
                self._check_sum(own + other, least)
                here, least = (first, own) if own >= other else (second, other)
        share = self._share(here)
        self._check_sum(share, least)
        enough = min(HALF, NOISE / math.sqrt(len(left)))
        return here[0] if share >= enough * whole else None

    def _check_sum(self, parts: float, whole: float) -> None:
        """Gradients of independent samples add up, so that parts cannot bring less than the whole."""
        if parts < ADDS_UP * whole and not self.mismatch:
            self.mismatch = (
                "Parts of the batch contribute less to the gradient than the whole: samples are compared with each "
                "other, as in a contrastive loss."
            )

    # ---- delta debugging ------------------------------------------------------------------------------------------

    def _smallest(self, bad: Samples, is_bad: Callable[[Samples], bool]) -> Samples:
        """A set that is bad and no longer is when any sample is taken out of it (Zeller's ddmin)."""
        parts = 2
        while len(bad) > 1:
            cut = pieces(bad, parts)
            smaller = next((piece for piece in cut if len(piece) < len(bad) and is_bad(piece)), None)
            if smaller is not None:
                bad, parts = smaller, 2
                continue
            rests = [tuple(each for each in bad if each not in set(piece)) for piece in cut]
            rest = next((rest for rest in rests if rest and is_bad(rest)), None) if parts > 2 else None
            if rest is not None:
                bad, parts = rest, max(parts - 1, 2)
            elif parts >= len(bad):
                return bad
            else:
                parts = min(2 * parts, len(bad))
        return bad


def halves(which: Samples) -> tuple[Samples, Samples]:
    """Both halves, the first of an odd number the larger.

    >>> halves((1, 2, 5))
    ((1, 2), (5,))
    """
    middle = (len(which) + 1) // 2
    return which[:middle], which[middle:]


def pieces(which: Samples, parts: int) -> Sequence[Samples]:
    """That many pieces of about the same length.

    >>> pieces((0, 1, 2, 3, 4), 2)
    [(0, 1), (2, 3, 4)]
    """
    edges = [len(which) * at // parts for at in range(parts + 1)]
    return [which[low:high] for low, high in pairwise(edges) if high > low]
