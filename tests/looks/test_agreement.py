"""How ranks agree on looks, with what they say made up. Real process groups: `tests/checks_agreement.py`."""

import math

import numpy as np
import pytest

from gradient_flow.looks.agreement import Exchanging, Replicated
from gradient_flow.looks.budget import Budget
from gradient_flow.looks.schedule import Schedule
from gradient_flow.looks.triggers import KINDS, LOSS_STALLED, RATE_CHANGED
from gradient_flow.table.across_ranks import SAYABLE, Said

LAG = 8
NOTHING: list = []


class Table:
    """Where ranks sit together: what each says is heard by all, in the same order."""

    def __init__(self, *ranks: Exchanging, late: bool = False) -> None:
        self.ranks, self.late = ranks, late

    def step(self) -> None:
        said = np.zeros(SAYABLE)
        for rank in self.ranks:
            says = rank.says()
            said[: len(says)] += says
        for rank in self.ranks:
            rank.hears(Said(lambda: said, len(self.ranks), self.late))


def used_up() -> Budget:
    budget = Budget(0.01, lambda: 0.0)
    for _ in range(4):
        budget.pay(1.0)
    return budget


def free() -> Budget:
    return Budget(1.0)


def plan(ranks, step: int, bad: bool = False) -> list[str]:
    """What asks each of them."""
    asked = [rank.asked(step) for rank in ranks]
    for rank in ranks:
        rank.planned(step, lambda: NOTHING, bad=bad, looks=False)
    return asked


def test_everything_that_can_be_said_has_room():
    rank = Exchanging(free(), LAG)
    rank.planned(3, lambda: NOTHING, bad=False, looks=False)
    assert len(rank.says()) <= SAYABLE


@pytest.mark.parametrize("late", [False, True])
def test_what_one_rank_asks_for_all_are_asked_at_the_same_step(late):
    ranks = Exchanging(free(), LAG), Exchanging(free(), LAG)
    table = Table(*ranks, late=late)
    for step in range(3, 40):
        asked = plan(ranks, step)
        said_in = 11  # what is noted of step 10 is said with the next
        expected = RATE_CHANGED if step == said_in + 1 + (LAG if late else 0) else ""
        assert asked == [expected] * 2, step
        for rank in ranks:
            rank.forget()
        table.step()
        for rank, rate in zip(ranks, (0.1, 0.1 if step < 10 else 1.0), strict=True):
            rank.note(step, 1.0, None, rate)


def test_a_budget_that_one_rank_used_up_drops_looks_of_all_but_those_that_are_free():
    ranks = Exchanging(used_up(), LAG), Exchanging(free(), LAG)
    table = Table(*ranks)
    plan(ranks, 3)
    assert [rank.drops(3, "") for rank in ranks] == [False, False]  # nothing is said yet
    table.step()
    plan(ranks, 4)
    assert [rank.drops(4, "") for rank in ranks] == [True, True]
    for free_ones in (3, 2, 1):
        assert [rank.drops(4, KINDS[3]) for rank in ranks] == [False, False], free_ones
    assert [rank.drops(4, KINDS[3]) for rank in ranks] == [True, True]
    assert [rank.drops(4, RATE_CHANGED) for rank in ranks] == [False, False]


def test_a_rank_that_no_longer_plans_says_nothing():
    ranks = Exchanging(used_up(), LAG), Exchanging(free(), LAG)
    table = Table(*ranks)
    plan(ranks, 3)
    table.step()
    plan(ranks[1:], 4)
    table.step()
    plan(ranks[1:], 5)
    assert not ranks[1].drops(5, "")


def test_a_wish_waits_until_it_can_be_said():
    """Of two optimizers, the steps of one are exchanged and those of the other are not."""
    ranks = Exchanging(free(), LAG), Exchanging(free(), LAG)
    table = Table(*ranks)
    ranks[0].note(3, 1.0, None, 0.1)
    ranks[0].note(4, 1.0, None, 1.0)
    plan(ranks, 5)
    plan(ranks, 6)
    table.step()
    assert plan(ranks, 7) == [RATE_CHANGED] * 2


def test_a_narrower_group_does_not_divide_the_ranks():
    rank = Exchanging(free(), LAG)
    over = np.zeros(SAYABLE)
    over[0] = 1
    rank.hears(Said(lambda: np.zeros(SAYABLE), 4, False))
    rank.hears(Said(lambda: over, 2, False))
    rank.asked(5)
    assert not rank.drops(5, "")


# ---- replicas -----------------------------------------------------------------------------------------------------


class MadeUpBoard:
    def __init__(self) -> None:
        self.words: set = set()
        self.asked = 0

    def put(self, about: str, number: int) -> None:
        self.words.add((about, number))

    def has(self, about: str, number: int) -> bool:
        self.asked += 1
        return (about, number) in self.words


def replicas(looks, budgets, lag: int = 0):
    board = MadeUpBoard()
    return board, [Replicated(budget, Schedule(looks), board, lag) for budget in budgets]


@pytest.mark.parametrize("lag", [0, LAG])
def test_numbers_that_come_late_on_one_rank_ask_all_at_the_same_step(lag):
    """As from a device: on the second rank each comes later than on the first, and not in their order."""
    _, ranks = replicas(False, (free(), free()), lag)
    when = {}
    for step in range(3, 60):
        for rank in ranks:
            if rank.asked(step):
                when.setdefault(step, []).append(rank)
                rank.forget()
        for rank in ranks:
            rank.planned(step, lambda: NOTHING, bad=False, looks=False)

        def numbers(at: int) -> tuple:
            return at, 1.0 if at != 30 else 1e4, None, 0.1

        ranks[0].note(*numbers(step))
        if lag and step % 2:  # two at a time, the later one first
            ranks[1].note(*numbers(step))
            ranks[1].note(*numbers(step - 1)) if step > 3 else None
        elif not lag:
            ranks[1].note(*numbers(step))
    assert when == {31 + lag: list(ranks)}


@pytest.mark.parametrize("lag", [0, LAG])
def test_the_word_of_one_replica_drops_the_look_of_all(lag):
    taken = Budget(1.0)
    for _ in range(4):
        taken.pay(0.0)
    _, ranks = replicas([50, 70], (used_up(), taken), lag)
    for step in range(3, 80):
        plan(ranks, step)
        if step in (50, 70):
            assert [rank.drops(step, "") for rank in ranks] == [True, True]


def test_a_board_is_asked_seldom_however_often_looks_are_due():
    board, (rank,) = replicas(1, (used_up(),))
    for step in range(3, 1003):
        rank.asked(step)
        rank.drops(step, "")
        rank.planned(step, lambda: NOTHING, bad=False, looks=False)
    assert board.asked <= 1000 / 16 + 1000 / 100 + 2
    assert len(board.words) <= 1000 / 16 + 2


def test_a_loss_that_stalls_on_one_replica_asks_all_once():
    _, ranks = replicas(False, (free(), free()))
    asked = []
    for step in range(3, 900):
        found = plan(ranks, step)
        assert found[0] == found[1]
        asked += found[:1] if found[0] else []
        for rank, loss in zip(ranks, (1.0 + step / 1e3, 1 / step), strict=True):
            rank.forget()
            rank.note(step, 1.0, loss, 0.1)
    assert asked == [LOSS_STALLED]


def test_losses_that_are_not_finite_ask_nothing():
    _, ranks = replicas(False, (free(),))
    for step in range(3, 900):
        assert plan(ranks, step) == [""]
        ranks[0].note(step, 1.0, math.nan, 0.1)
