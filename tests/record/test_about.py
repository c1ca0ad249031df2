"""Descriptions of runs: put together from parts, and compared."""

import pytest

from gradient_flow.record.about import about_rows, differences, merged
from gradient_flow.record.run import run_of_lines

HEADER = {"kind": "header", "format": 2}
ADAMW = {"optimizers": [{"class": "AdamW", "groups": [{"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8}]}]}
SGD = {"optimizers": [{"class": "SGD", "groups": [{"lr": 10.0, "momentum": 0.0}]}]}


def test_what_differs_is_said_with_both_values():
    assert differences(ADAMW, SGD) == ["optimizer: AdamW → SGD", "lr: 0.001 → 10"]
    assert differences(ADAMW, ADAMW) == []
    momentum = {"optimizers": [{"class": "SGD", "groups": [{"lr": 10.0, "momentum": 0.9}]}]}
    assert differences(SGD, momentum) == ["momentum: 0 → 0.9"]
    assert differences(SGD | {"config": {"a": 1}}, SGD | {"seed": 3}) == ["config a: 1 → –", "seed: – → 3"]


def test_parts_that_arrive_later_are_one_description():
    run = run_of_lines(
        [
            HEADER,
            {"kind": "about", "versions": {"torch": "2"}, "optimizers": {"0": ADAMW["optimizers"][0]}},
            {"kind": "step", "step": 1, "time": 0.0, "norm": 1.0},
            {"kind": "about", "optimizers": {"1": SGD["optimizers"][0]}, "versions": {"numpy": "2"}},
        ]
    )
    assert run.about["optimizers"] == [*ADAMW["optimizers"], *SGD["optimizers"]]
    assert run.about["versions"] == {"torch": "2", "numpy": "2"}
    assert run.events == []


def test_a_process_that_goes_on_with_a_run_describes_itself():
    run = run_of_lines([HEADER, {"kind": "about", "seed": 1}, HEADER, {"kind": "about", "command": "x"}])
    assert run.about == {"command": "x"}


DAMAGED = (
    {"optimizers": 3},
    {"optimizers": {"0": 3, "x": {}, "7": {"class": "SGD"}}},
    {"optimizers": {"0": {"class": None, "groups": 3}}},
    {"optimizers": [3, {"groups": [3, {"lr": {"deep": [1]}}]}]},
    {"git": [], "amp": "x", "clipping": None, "versions": 3, "config": "x", "dtypes": {"a": None}},
    {"git": {"commit": 3, "dirty": "x"}, "seed": [], "command": {}, "device": None},
)


@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_description_is_shown_as_far_as_it_goes(damaged):
    about = merged(merged(ADAMW, damaged), SGD)
    assert about["optimizers"] == SGD["optimizers"]
    for told in (about, merged({}, damaged)):
        assert all(isinstance(text, str) for row in about_rows(told) for text in row)
        assert all(isinstance(text, str) for text in differences(told, ADAMW))
        assert set(differences(told, told)) == set()
