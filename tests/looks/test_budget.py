"""The budget of looks, by a clock that is set by hand."""

import pytest

from gradient_flow.looks.budget import Budget
from gradient_flow.looks.schedule import FREE


class Clock:
    """Seconds as a test sets them."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def after_free_looks(share: float = 0.01, each: float = 1.0) -> tuple[Budget, Clock]:
    clock = Clock()
    budget = Budget(share, clock)
    for _ in range(FREE):
        assert not budget.is_used_up()
        budget.pay(each)
    return budget, clock


def test_the_first_looks_are_outside_of_it_and_their_cost_is_known():
    budget, clock = after_free_looks()
    assert budget.first_seconds == budget.seconds == FREE
    assert budget.is_used_up()
    clock.now += 99.9
    assert budget.is_used_up()
    clock.now += 0.2  # a hundredth of the time pays for one more
    assert not budget.is_used_up()
    budget.pay(1.0)
    assert budget.is_used_up()
    assert budget.first_seconds == FREE


def test_a_look_that_has_begun_counts_as_one_that_is_over():
    clock = Clock()
    budget = Budget(0.01, clock)
    budget.pay(1.0)
    budget.pay(1.0)
    assert not budget.is_used_up()  # the third is free …
    assert budget.is_used_up(begun=True)  # … and what comes after it is not
    budget.pay(1.0)
    clock.now += 150
    assert not budget.is_used_up()
    assert budget.is_used_up(begun=True)
    clock.now += 60
    assert not budget.is_used_up(begun=True)


def test_what_a_look_will_cost_is_the_median_of_the_last_ones():
    budget, clock = after_free_looks(share=1.0)
    budget.pay(50.0)  # interrupted by another process
    clock.now += 51.5
    assert not budget.is_used_up()


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_over_a_long_training_looks_take_the_share_and_no_more(share):
    budget, clock = after_free_looks(share, each=2.0)
    for _ in range(10_000):
        clock.now += 1.0
        if not budget.is_used_up():
            budget.pay(2.0)
            clock.now += 2.0
    spent, lasted = budget.seconds - budget.first_seconds, clock.now - 100
    assert share * lasted - 2.0 <= spent <= share * lasted + 2.0
