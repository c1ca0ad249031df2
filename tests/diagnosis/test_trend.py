import math

import numpy as np
import pytest

from gradient_flow.diagnosis.trend import norm_trend

STEPS = np.arange(40)

HISTORIES = {
    "constant": ([1.0] * 10, "stable"),
    "tiny but constant": ([1e-9] * 10, "stable"),
    "noisy": ((1 + 0.3 * np.sin(STEPS)).tolist(), "stable"),
    "converging slowly over one decade": ((10 * np.exp(-STEPS / 15)).tolist(), "stable"),
    "a quick start that levels off": ([10, 5, 2, 1, 0.5, 0.4, 0.3], "stable"),
    "a spike that passed": ([1, 1, 50, 1, 1, 1, 1, 1, 1, 1, 1, 1], "stable"),
    "leading zero": ([0.0, 1.0, 1.1], "stable"),
    "a decade at each step": ([1, 0.1, 0.01, 0.001, 1e-4, 1e-5], "vanishing"),
    "halving without end": ([2.0**-i for i in range(8)], "vanishing"),
    "falls to zero": ([1.0, 0.5, 0.0, 0.0], "vanishing"),
    "always zero": ([0.0] * 5, "vanishing"),
    "doubling": ([2.0**i for i in range(8)], "exploding"),
    "exponential, slow and long": ((1e-3 * np.exp(STEPS / 5)).tolist(), "exploding"),
    "explodes near the end": ([1.0] * 100 + [10, 100, 1e3, 1e4, 1.5e4, 2e4], "exploding"),
    "three at the end": ([1.0] * 50 + [1e4] * 3, "exploding"),
    "vanishes near the end": ([1.0] * 90 + [1e-8] * 10, "vanishing"),
    "last one jumps": ([1.0] * 30 + [100.0], "exploding"),
    "a NaN": ([1.0, math.nan, 1.0], "nan"),
    "overflow after a rise": ([1.0, 1e10, math.inf], "nan"),
    "single NaN": ([math.nan], "nan"),
    "one entry": ([1.0], "insufficient_data"),
    "nothing": ([], "insufficient_data"),
    "only the last above zero": ([0.0, 0.0, 1.0], "insufficient_data"),
}


@pytest.mark.parametrize(("norms", "status"), HISTORIES.values(), ids=HISTORIES)
def test_status(norms, status):
    assert norm_trend(norms).status == status


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e6])
@pytest.mark.parametrize(("norms", "status"), HISTORIES.values(), ids=HISTORIES)
def test_the_scale_of_the_loss_does_not_matter(norms, status, scale):
    assert norm_trend([norm * scale for norm in norms]).status == status


def test_the_slope_of_a_geometric_history_is_its_rate():
    assert norm_trend([10.0 ** (-0.5 * i) for i in range(20)]).slope == pytest.approx(-0.5)


def test_the_indices_are_the_entries_that_made_the_case():
    assert norm_trend([1, 1, 1, 0.1, 0.01, 0.001]).indices == (3, 4, 5)
    assert norm_trend([1, math.nan, 1, math.inf]).indices == (1, 3)
    assert norm_trend([1.0] * 20 + [100.0]).indices == (20,)


def test_a_long_history_is_quick():
    found = norm_trend((1e3 * np.exp(-np.arange(100_000) / 1000)).tolist())
    assert found.status == "vanishing"
