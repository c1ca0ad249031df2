"""Numbers in messages: true to two or three digits, readable, and never `1/…` or `e+05`."""

import math
import re

import pytest

from gradient_flow.diagnosis.words import compared, count, percent, plain, portion, times

SIZES = [mantissa * 10.0**power for power in range(-12, 15) for mantissa in (1.0, 1.45213, 9.995, 9.9999)]


@pytest.mark.parametrize("value", SIZES)
def test_a_number_is_what_it_was_and_readable(value):
    for digits in (2, 3):
        text = plain(value, digits)
        assert float(text.replace(",", "")) == pytest.approx(value, rel=0.6 * 10 ** (1 - digits))
        assert plain(-value, digits) == f"-{text}"
        assert "e+" not in text
        assert not re.search(r"e-?0", text)
        if 1e-4 <= value < 9.9e8:
            assert "e" not in text


def test_what_is_not_finite_is_named():
    assert [plain(value) for value in (math.nan, math.inf, -math.inf, 0.0)] == ["NaN", "Inf", "-Inf", "0"]
    assert times(math.inf) == "infinitely many times"


@pytest.mark.parametrize("factor", [1.5, 12.0, 145_000.0, 3e11])
def test_smaller_is_the_inverse_of_larger(factor):
    assert compared(factor) == f"{times(factor)} larger"
    assert compared(1 / factor) == f"{times(factor)} smaller"


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.002, 0.0049, 0.35, 0.994, 0.9951, 0.99999, 1.0])
def test_a_share_is_never_rounded_to_none_or_all(share):
    assert (percent(share) == "0%") == (share == 0)
    assert (percent(share) == "100%") == (share == 1)


def test_singular_and_plural():
    assert (count(1, "layer"), count(0, "layer"), count(1200, "step")) == ("1 layer", "0 layers", "1,200 steps")
    assert (times(1.0), portion(0.35), portion(2.5)) == ("1 time", "35% of", "2.5 times")
