"""Since which step two series differ beyond noise."""

import math

import numpy as np
import pytest

from gradient_flow.report.parting import WINDOW, parting

STEPS = range(1, 301)


def course(seed, noise=0.2):
    """A loss that falls, with noise of its own."""
    random = np.random.default_rng(seed)
    return (1 + 3 * np.exp(-np.arange(300) / 80)) * np.exp(noise * random.standard_normal(300))


@pytest.mark.parametrize("seed", range(40))
def test_another_seed_is_no_parting(seed):
    found = parting(STEPS, course(seed), course(seed + 1000))
    assert found.first_unequal == 1
    assert found.parts is None


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("at", [50, 150, 250])
@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_lasting_factor_is_found_where_it_came_in(seed, at, factor):
    other = course(seed + 1000)
    other[at:] *= factor
    found = parting(STEPS, course(seed), other)
    assert abs(found.parts - STEPS[at]) <= WINDOW // 2
    assert found.ratio == pytest.approx(factor, rel=0.3)


def test_equal_until_a_step_is_exact():
    other = course(0)
    other[120:] *= 1 + 1e-6
    found = parting(STEPS, course(0), other)
    assert found.first_unequal == STEPS[120]
    assert found.parts is None
    assert parting(STEPS, course(0), course(0)).first_unequal is None


def test_what_comes_back_is_no_parting():
    other = course(1000)
    other[100:130] *= 100
    assert parting(STEPS, course(0), other).parts is None


def test_a_common_scale_changes_nothing():
    ours, theirs = course(0), course(1000)
    theirs[200:] *= 2
    expected = parting(STEPS, ours, theirs)
    scaled = parting(STEPS, 1e-7 * ours, 1e-7 * theirs)
    assert (scaled.parts, scaled.first_unequal) == (expected.parts, expected.first_unequal)
    assert scaled.ratio == pytest.approx(expected.ratio)


def test_negative_series_are_compared_too():
    ours, theirs = -course(0), -course(1000)
    assert parting(STEPS, ours, theirs).parts is None
    theirs[150:] += 6
    assert abs(parting(STEPS, ours, theirs).parts - STEPS[150]) <= WINDOW // 2
    assert math.isnan(parting(STEPS, ours, theirs).ratio)


def test_a_run_that_is_no_longer_finite_has_parted():
    other = course(1000)
    other[200:] = np.nan
    assert abs(parting(STEPS, course(0), other).parts - STEPS[200]) <= WINDOW // 2


def test_layers_that_are_silent_in_both_are_equal():
    nothing = np.zeros(300)
    assert parting(STEPS, nothing, nothing).first_unequal is None
    assert parting(STEPS, nothing, course(0)).parts == 1


def test_few_and_no_records():
    assert parting([], np.empty(0), np.empty(0)).common == 0
    found = parting([1, 2], np.array([1.0, 1.0]), np.array([4.0, 4.0]))
    assert (found.common, found.parts, found.ratio) == (2, 1, 4.0)


@pytest.mark.parametrize("records", [6, 9, 16, 30])
def test_a_short_series_parts_where_it_does(records):
    ours = course(0, noise=0.05)[:records]
    theirs = course(1000, noise=0.05)[:records]
    assert parting(STEPS[:records], ours, theirs).parts is None
    theirs[records // 2 :] *= 5
    assert abs(parting(STEPS[:records], ours, theirs).parts - STEPS[records // 2]) <= 2


@pytest.mark.parametrize("first", [1, 2, 3])
def test_series_never_part_before_their_first_difference(first):
    """Smoothing looks half a window back, which must not reach before anything was different."""
    ours = np.linspace(1.0, 2.0, 12)
    theirs = ours.copy()
    theirs[first:] *= 50
    found = parting(range(1, 120, 10), ours, theirs)
    assert found.parts == found.first_unequal == 1 + 10 * first
