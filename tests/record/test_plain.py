"""Records as plain values: each kind the first time it is met, and every later time, alike."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from gradient_flow.record import plain
from gradient_flow.record.plain import to_plain


@dataclass
class One:
    value: Any = None


@dataclass
class Several:
    name: str = "a"
    number: float = math.inf
    numbers: list[float] = field(default_factory=lambda: [1.0, 2.5])
    odd: tuple[Any, ...] = (1.0, math.nan, None)
    inner: list[One] = field(default_factory=lambda: [One(-math.inf), One((True, 3))])


EXPECTED = {
    "name": "a",
    "number": "Infinity",
    "numbers": [1.0, 2.5],
    "odd": [1.0, "NaN", None],
    "inner": [{"value": "-Infinity"}, {"value": [True, 3]}],
}


def test_a_record_is_the_same_whether_it_was_met_before_or_not(monkeypatch):
    monkeypatch.setattr(plain, "_OURS", __name__)
    monkeypatch.setattr(plain, "_RECORDS", {})
    assert to_plain(Several()) == EXPECTED
    assert plain._RECORDS, "nothing was remembered"
    assert to_plain(Several()) == EXPECTED


@pytest.mark.parametrize("given", [[1.0, 2.0], (1.0, 2.0), [1, None, "a"], []])
def test_a_list_is_a_copy(given):
    found = to_plain(given)
    assert found == list(given)
    assert found is not given


def test_what_is_not_finite_is_spelt_as_asked():
    assert to_plain(Several(), lambda _: 0) == EXPECTED | {
        "number": 0,
        "odd": [1.0, 0, None],
        "inner": [{"value": 0}, {"value": [True, 3]}],
    }
