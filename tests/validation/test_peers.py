"""The table of peers: each tool is really run, and what it says is counted."""

from dataclasses import replace

import torch
from click.testing import CliRunner
from validation.adapter import as_program
from validation.peers import judged, main, summary, torchdiag
from validation.zoo import CASES


def test_every_tool_judges_a_loop_that_goes_uphill_and_its_twin():
    run = CliRunner().invoke(main, ["--half", "tune", "--only", "loop/adam-m*imises", "--workers", "1"])
    assert run.exit_code == 0, run.output
    rows = {line.split("|")[1].strip(): line for line in run.output.splitlines() if line.startswith("| ")}
    assert "100.0 % (1/1) | 0.0 % (0/1) | 0" in rows["gradient_flow"]
    assert {"torchmortem", "torchdiag"} <= rows.keys()


def test_a_tool_that_judges_single_steps_speaks_where_most_of_them_are_bad():
    """Gradients of 1e4 at every step, which torchdiag calls exploding from 100 on."""
    case = CASES["mlp/dropout-0.5-3x128"]
    for factor, told in ((1.0, False), (1e6, True)):
        torch.manual_seed(0)
        setup = case.make(0)
        scaled = replace(setup, loss_fn=lambda output, setup=setup, factor=factor: factor * setup.loss_fn(output))
        assert torchdiag(as_program(scaled)) is told


def test_a_tool_that_ends_the_loop_has_told_nothing():
    name, told = judged(("loop/adam-maximises", 0))
    assert set(told) == {"gradient_flow", "torchmortem", "torchdiag"}
    text = summary({name: told | {"torchdiag": None}})
    assert "| torchdiag | 0.0 % (0/1) | – | 1 |" in text


def test_no_case_is_an_error_that_says_where_names_are():
    run = CliRunner().invoke(main, ["--only", "nothing-like-this"])
    assert run.exit_code == 2
    assert "--list" in run.output
