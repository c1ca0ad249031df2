"""Tables for other tools."""

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

import gradient_flow as gf
from gradient_flow.cli.main import main
from gradient_flow.record.look import table_line
from gradient_flow.record.run_writer import RunWriter

FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\tx", "plain"]


@pytest.fixture
def run(tmp_path):
    """Names that a spreadsheet would work out, and numbers below zero."""
    table = gf.measure({name: -np.ones((2, 2)) for name in FORMULAS})
    parameters = [{"name": name, "shape": [2, 2], "dtype": "float64"} for name in FORMULAS]
    writer = RunWriter(tmp_path / "run", {"settings": {}, "parameters": parameters})
    writer.write({"kind": "step", "step": 1, "norm": 1.0, "=HYPERLINK(1)": -2.5})
    writer.write(table_line(1, table, FORMULAS, None))
    writer.close()
    return tmp_path / "run"


def exported(run, what, to):
    out = run / f"out.{to}"
    done = CliRunner().invoke(main, ["export", str(run), "--what", what, "--to", to, "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out.read_text()


def test_no_cell_of_a_csv_file_is_a_formula(run):
    rows = list(csv.DictReader(exported(run, "layers", "csv").splitlines()))
    assert [row["layer"] for row in rows] == [*(f"'{name}" for name in FORMULAS[:-1]), "plain"]
    assert {float(row["sum"]) for row in rows} == {-4.0}, "numbers are left alone"
    (step,) = csv.DictReader(exported(run, "steps", "csv").splitlines())
    assert float(step["'=HYPERLINK(1)"]) == -2.5


def test_names_in_json_are_as_they_are(run):
    assert [row["layer"] for row in json.loads(exported(run, "layers", "json"))] == FORMULAS
