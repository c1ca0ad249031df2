"""Which steps are looked at, asked step by step and asked after a gap."""

import pytest

from gradient_flow.looks.schedule import FIRST, Schedule


@pytest.mark.parametrize("looks", [True, False, 1, 7, [5], [1, 2, 3, 40, 41], []])
def test_step_by_step_the_answer_is_that_of_the_counts(looks):
    schedule = Schedule(looks)
    for step in range(1, 2100):
        by_count = not schedule.off and schedule.until(step) > schedule.until(max(step - 1, FIRST - 1))
        assert schedule.is_due(step - 1, step) == by_count, step


def test_a_look_that_was_passed_over_is_made_up_for():
    assert Schedule().is_due(4, 9)
    assert not Schedule().is_due(6, 9)
