"""Who decides about looks: one process for itself, or all ranks alike, so that none looks alone.

A look makes a step longer, and every rank waits for the slowest: a look that ranks take at the same step costs once
what it would cost many times over. Sharded ranks exchange rows with every recorded step, and their wishes ride on that:
what one says with a step holds for all from the next one on. Replicas exchange nothing. They see the same gradients and
rates, so what these ask for needs no word; for the clock and the loss, which are a rank's own, word is left on a board.

Numbers from a device come at another time on each rank. Those decisions then wait for a fixed number of steps (`lag`),
after which the recorder has them in any case.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from gradient_flow.capture.module_calls import aside
from gradient_flow.capture.sharding import local_part
from gradient_flow.looks.board import Board
from gradient_flow.looks.budget import Budget
from gradient_flow.looks.schedule import FREE, Schedule
from gradient_flow.looks.triggers import KINDS, LOSS_STALLED, RATE_CHANGED, Triggers
from gradient_flow.table.across_ranks import Said

_ASKED: Final = 3
"""Looks that were asked for by what happened and are taken whatever they cost: so many for changes of the learning
rate, and as many for all other reasons."""
_OVER: Final = "over budget"
_STALL_EVERY: Final = 100
"""Steps between two readings of the board for a loss that stopped falling: that is slow to show in any case."""
_SILENCE: Final = 16
"""Steps after a look that was dropped in which others are dropped unasked: asking takes time too."""

Parameters = Callable[[], Sequence[tuple[str, torch.Tensor]]]
"""Parameters by name, for those who ask."""


class Alone:
    """One process: its own clock and what it sees decide, at once."""

    ranks = False

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.triggers = Triggers()
        self._asked = ""
        self._free = {True: _ASKED, False: _ASKED}
        """Looks that may still be asked for whatever they cost, by whether the learning rate asks."""

    def note(self, step: int, norm: float, loss: float | None, rate: float | None) -> None:
        """The numbers of a recorded step: they may ask for a look."""
        self._asked = self.triggers.asked(step, norm, loss, rate) or self._asked

    def asked(self, step: int) -> str:
        """What asks for a look at the coming step, if something does; until it is `forget`-ten."""
        return self._asked

    def forget(self) -> None:
        """What asked has been answered."""
        self._asked = ""

    def is_lost(self, bad: bool, parameters: Sequence[tuple[str, torch.Tensor]]) -> bool:
        """Whether there is nothing to see but NaN; `bad`: the gradients of the last step were not finite."""
        return bad and not _all_finite(parameters)

    def drops(self, step: int, asked: str) -> bool:
        """Whether the look at the coming step is too much; `asked` is empty for one of the schedule."""
        return not self._is_free(asked) and self.budget.is_used_up()

    def _is_free(self, asked: str) -> bool:
        by_rate = asked == RATE_CHANGED
        if not asked or not self._free[by_rate]:
            return False
        self._free[by_rate] -= 1
        return True

    def planned(self, step: int, parameters: Parameters, *, bad: bool, looks: bool) -> None:
        """It is settled whether the coming step is looked at: say to others what they need for the next ones."""

    def to_record(self, asked: str) -> Mapping[str, Any]:
        """What the record says of the agreement behind a look."""
        return {}


class Word(NamedTuple):
    """How many ranks say what."""

    over: int = 0
    """… that their budget is used up."""
    lost: int = 0
    """… that their weights are not finite."""
    asked: tuple[int, ...] = (0,) * len(KINDS)
    """… that something asks for a look, by its kind."""


class Exchanging(Alone):
    """Ranks that exchange numbers with every recorded step: what any of them says there is taken up by all."""

    ranks = True

    def __init__(self, budget: Budget, lag: int) -> None:
        super().__init__(budget)
        self._lag = lag
        self._wish: Word | None = None
        self._heard: deque[Said] = deque()
        self._word = Word()
        self._agreed, self._askers = "", 0
        self._widest, self._late = 0, False

    def says(self) -> list[float]:
        """What this rank wishes. Nothing if it has not planned since: its looks have ended."""
        wish, self._wish = self._wish, None
        return [] if wish is None else [float(number) for number in (wish.over, wish.lost, *wish.asked)]

    def hears(self, said: Said) -> None:
        """What all of them wish. Of several groups of ranks the widest counts: another would divide them."""
        if said.ranks >= self._widest:
            self._widest, self._late = said.ranks, said.late
            self._heard.append(said)

    def asked(self, step: int) -> str:
        """What asked any rank for a look, as all of them know by now."""
        while len(self._heard) > (self._lag if self._late else 0):
            over, lost, *asked = (round(number) for number in self._heard.popleft().values().tolist())
            self._word = Word(over, lost, tuple(asked[: len(KINDS)]))
            why = next((kind for kind, ranks in zip(KINDS, self._word.asked, strict=True) if ranks), "")
            if why and not self._agreed:
                self._agreed, self._askers = why, self._word.asked[KINDS.index(why)]
                self.triggers.take_for_asked(step, why)
        return self._agreed

    def forget(self) -> None:
        """What all have asked for is answered; what this rank asks for is not said yet."""
        self._agreed = ""

    def is_lost(self, bad: bool, parameters: Sequence[tuple[str, torch.Tensor]]) -> bool:
        """By what ranks said. Where norms come at once, also if they would say so with the coming step."""
        return self._word.lost > 0 or (bad and not self._late)

    def drops(self, step: int, asked: str) -> bool:
        """Where one rank has used up its budget, all drop the look."""
        return not self._is_free(asked) and self._word.over > 0

    def planned(self, step: int, parameters: Parameters, *, bad: bool, looks: bool) -> None:
        """Say with the coming step what is to hold from the next one on."""
        before = (0,) * len(KINDS) if self._wish is None else self._wish.asked  # what could not be said yet
        asked = tuple(max(old, kind == self._asked) for kind, old in zip(KINDS, before, strict=True))
        lost = bad and not _all_finite(parameters())
        self._wish, self._asked = Word(self.budget.is_used_up(begun=looks), lost, asked), ""

    def to_record(self, asked: str) -> Mapping[str, Any]:
        """How many ranks asked."""
        return {"asked_by": self._askers} if asked else {}


class Replicated(Alone):
    """Ranks that hold the same gradients and exchange nothing of ours; some may not be watched at all."""

    ranks = True

    def __init__(self, budget: Budget, schedule: Schedule, board: Board, lag: int) -> None:
        super().__init__(budget)
        self._schedule, self._board, self._lag = schedule, board, lag
        self._noted: list[tuple[int, float, float | None, float | None]] = []
        self._steps: deque[int] = deque(maxlen=lag + 2)
        """The last steps that were planned. Before the latest, all but `lag` of them have been noted."""
        self._plans = 0
        self._stalled = self._told_of_stall = False
        self._silent_until = 0

    def note(self, step: int, norm: float, loss: float | None, rate: float | None) -> None:
        """Kept until every rank has it."""
        self._noted.append((step, norm, loss, rate))

    def asked(self, step: int) -> str:
        """What the same numbers asked every rank for, or a loss that stopped falling on one of them."""
        self._plans += 1
        self._steps.append(step)
        known = self._steps[0] if len(self._steps) == self._lag + 2 else 0
        arrived = sorted((each for each in self._noted if each[0] <= known), key=lambda each: each[0])
        self._noted = [each for each in self._noted if each[0] > known]
        for at, norm, loss, rate in arrived:
            self._asked = self.triggers.asked(at, norm, None, rate) or self._asked
            self._stalled |= loss is not None and self.triggers.stalls(loss)
        turn, since = divmod(self._plans, _STALL_EVERY)
        if since == self._lead and turn and not self._told_of_stall and self._board.has(LOSS_STALLED, turn):
            self._told_of_stall = True
            self._asked = self._asked or LOSS_STALLED
        return self._asked

    @property
    def _lead(self) -> int:
        """Plans from a word to its reading: in between every rank has taken part in a step of all of them."""
        return self._lag + 1

    def drops(self, step: int, asked: str) -> bool:
        """By the board for looks that are due. One that is asked for beyond the free ones was not foreseen: it goes."""
        if self._is_free(asked) or self.budget.taken < FREE:
            return False
        if asked or step < self._silent_until:
            return True
        if self._board.has(_OVER, self._schedule.until(step)):
            self._silent_until = step + _SILENCE
            return True
        return False

    def planned(self, step: int, parameters: Parameters, *, bad: bool, looks: bool) -> None:
        """Leave word about the next look that is due, and about the loss."""
        stride = step - self._steps[-2] if len(self._steps) > 1 else 1
        due = step + self._lead * stride
        asks = due >= self._silent_until and self._schedule.is_due(due - stride, due)
        if asks and self.budget.is_used_up(begun=looks):
            self._board.put(_OVER, self._schedule.until(due))
        turn, since = divmod(self._plans, _STALL_EVERY)
        if not since and self._stalled and not self._told_of_stall:
            self._board.put(LOSS_STALLED, turn)


def _all_finite(parameters: Sequence[tuple[str, torch.Tensor]]) -> bool:
    with aside():
        norms = torch._foreach_norm([local_part(parameter) for _, parameter in parameters])
    return all(math.isfinite(float(norm)) for norm in norms)
