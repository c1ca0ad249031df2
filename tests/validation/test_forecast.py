"""The study of forecasts runs, and its detectors are judged as it says."""

import pytest
from validation.forecast import Course, judged

from validation import forecast


def run(spike, steps=100):
    losses = [1.0] * steps
    if spike is not None:
        losses[spike:] = [5.0] * (steps - spike)
    flat = [1.0] * steps
    return Course("none", 0, losses, flat, flat, flat)


def fires(*at, steps=100):
    return [9.0 if step in at else 0.0 for step in range(steps)]


def test_a_spike_begins_where_the_loss_doubles():
    assert run(60).spike == 60
    assert run(None).spike is None


@pytest.mark.parametrize(
    ("spike", "at", "precision", "recall", "lead"),
    [
        (60, 55, 1.0, 1.0, 5),
        (60, 60, 0.0, 0.0, 0),  # with the spike is too late
        (90, 50, 0.0, 0.0, 0),  # long before it is about something else
        (None, 70, 0.0, 0.0, 0),
    ],
)
def test_only_a_warning_shortly_before_counts(spike, at, precision, recall, lead):
    found = judged([run(spike)], [fires(at)], 5.0)
    assert (found.precision, found.recall, found.lead) == (precision, recall, lead)


def test_it_runs_in_small(capsys):
    found = forecast.main(["--seeds", "2", "--steps", "90"])
    assert set(found) == set(forecast.DETECTORS)
    assert "| detector |" in capsys.readouterr().out
