"""The commands that read a run, and the pre-flight check: what they print, what they return, what they refuse."""

import csv
import io
import json
import math
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

import gradient_flow as gf
from gradient_flow.cli.main import main
from recorded_runs import record


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    record(folder / "good")
    record(folder / "bad", bad_at=30)
    record(folder / "seed", seed=1)
    record(folder / "tenfold", factor_from=20)
    record(folder / "other", width=6, rate=0.02)
    return folder


def command(*arguments, **environment):
    return CliRunner().invoke(
        main, [str(each) for each in arguments], env={"COLUMNS": "80", **environment}, catch_exceptions=False
    )


def as_json(*arguments):
    result = command(*arguments)
    return json.loads(result.stdout), result.exit_code


# diagnose ------------------------------------------------------------------------------------------------------------
def test_diagnose_prints_the_verdict_and_its_exit_status_follows(runs):
    good, bad = command("diagnose", runs / "good"), command("diagnose", runs / "bad" / "run.jsonl")
    assert good.exit_code == 0
    assert "Healthy: no issue found in 40 steps" in good.output
    assert bad.exit_code == 1
    assert "[CRITICAL] NUMERICAL in `head.bias`, since step 30" in bad.output
    assert max(map(len, bad.output.splitlines())) <= 80


@pytest.mark.parametrize(("fail_on", "status"), [("low", 1), ("critical", 1), ("never", 0)])
def test_fail_on_sets_the_least_severity(runs, fail_on, status):
    found, code = as_json("diagnose", runs / "bad", "--json", "--fail-on", fail_on)
    assert code == status
    assert found["failed"] is bool(status)
    assert found["issues"] == gf.diagnose(runs / "bad").to_dict()["issues"]


def test_fail_on_spares_lesser_issues(runs):
    def remark(_record):
        yield gf.Issue(issue_type=gf.IssueType.SLOW, severity=gf.IssueSeverity.MEDIUM, layer="head", message="slow")

    from gradient_flow.diagnosis.registry import unregister_rule

    gf.register_rule(remark, of="run")
    try:
        codes = [command("diagnose", runs / "good", "--fail-on", each).exit_code for each in ("low", "medium", "high")]
    finally:
        unregister_rule("remark")
    assert codes == [1, 1, 0]


def test_diagnose_reads_the_json_of_the_callback(tmp_path):
    norms = [1.0] * 30 + [None] + [1.0] * 9
    series = dict.fromkeys(("grad_norm", "grad_mean", "grad_variance", "grad_max", "grad_min"), norms)
    file = tmp_path / "gradient_statistics.json"
    file.write_text(json.dumps({"step": list(range(10, 410, 10)), **series}))
    for source in (file, tmp_path):
        result = command("diagnose", source)
        assert result.exit_code == 1
        assert "since step 310" in result.output


# what cannot be read -------------------------------------------------------------------------------------------------
READERS = [("diagnose",), ("tail", "--once"), ("export", "--to", "csv")]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader[0])
def test_a_wrong_path_names_the_runs_near_it(runs, reader):
    result = command(*reader, runs / "god")
    assert result.exit_code == 2
    assert f"Runs near it: {runs / 'good'}, " in result.output  # the name that is most alike comes first
    result = command(*reader, runs)
    assert result.exit_code == 2
    assert "is a folder without a run.jsonl. Runs near it:" in result.output


def test_a_wrong_path_without_runs_near_says_what_a_run_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "gradient-flow run" in command("diagnose", "nothing").output


def changed(source, target, change):
    target.mkdir()
    (target / "run.jsonl").write_bytes(change((source / "run.jsonl").read_bytes()))
    return target


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader[0])
def test_a_newer_format_asks_for_an_upgrade(runs, tmp_path, reader):
    newer = changed(runs / "good", tmp_path / "newer", lambda data: data.replace(b'"format":2', b'"format":3', 1))
    result = command(*reader, newer)
    assert result.exit_code == 2
    assert "has format 3" in result.output
    assert "Upgrade gradient-flow" in result.output


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader[0])
def test_an_empty_file_and_another_kind_of_file_are_told_apart(runs, tmp_path, reader):
    empty = changed(runs / "good", tmp_path / "empty", lambda _data: b"")
    assert "no complete record yet" in command(*reader, empty).output
    foreign = changed(runs / "good", tmp_path / "foreign", lambda _data: b"a,b\n1,2\n")
    result = command(*reader, foreign)
    assert result.exit_code == 2
    assert "not a run file" in result.output


@pytest.mark.parametrize("reader", [READERS[0], READERS[2]], ids=lambda reader: reader[0])
def test_a_run_without_steps_is_no_healthy_run(runs, tmp_path, reader):
    header = changed(runs / "good", tmp_path / "header", lambda data: data[: data.index(b"\n") + 1])
    result = command(*reader, header)
    assert result.exit_code == 2
    assert "has no steps yet" in result.output


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader[0])
def test_a_torn_file_is_read_with_a_note(runs, tmp_path, reader):
    torn = changed(runs / "good", tmp_path / "torn", lambda data: data[: data.rindex(b'{"kind":"step"') + 40])
    result = command(*reader, torn)
    assert result.exit_code == 0
    assert "note: The last line is torn" in result.stderr
    assert "note:" not in result.stdout


# compare -------------------------------------------------------------------------------------------------------------
def test_compare_finds_the_step_where_a_factor_came_in(runs):
    found, code = as_json("compare", runs / "good", runs / "tenfold", "--json")
    assert code == 0
    other = found["compared_with_the_first"][0]
    assert other["series"]["loss"]["first_unequal"] == 20
    assert other["series"]["norm"]["first_unequal"] == 20
    assert 16 <= other["series"]["norm"]["parts"] <= 24  # the running median is nine records wide
    assert other["series"]["norm"]["ratio"] > 3
    assert other["series"]["lr"]["first_unequal"] is None
    assert {layer["first_unequal"] for layer in other["layers"]} == {20}
    assert found["facts"] == {}


def test_compare_tells_settings_parameters_and_verdicts(runs):
    found, _ = as_json("compare", runs / "good", runs / "other", runs / "bad", "--json")
    assert found["facts"]["parameters"][0] == found["facts"]["parameters"][2] != found["facts"]["parameters"][1]
    other, bad = found["compared_with_the_first"]
    assert "layer1.0.weight" in other["parameters"]["other_shape"]
    assert bad["series"]["norm"]["first_unequal"] == 30
    assert bad["series"]["norm"]["parts"] is None  # a single step is no parting
    assert [run["verdict"]["status"] for run in found["runs"]] == ["stable", "stable", "nan"]


def test_the_layers_that_differ_most_come_first(runs):
    found, _ = as_json("compare", runs / "good", runs / "other", "--json")
    ratios = [layer["ratio"] for layer in found["compared_with_the_first"][0]["layers"]]
    sizes = [abs(math.log(ratio)) for ratio in ratios]
    assert len(sizes) > 4
    assert sizes == sorted(sizes, reverse=True)


def test_compare_fits_eighty_columns(runs):
    result = command("compare", runs / "good", runs / "tenfold", runs / "other", runs / "bad")
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    for words in ("Layers that differ most", "Verdicts", "of another shape", "first unequal", "step 20"):
        assert words in result.output


def test_compare_needs_two_different_runs(runs):
    for given in ((), (runs / "good",), (runs / "good", runs / "good")):
        assert command("compare", *given).exit_code == 2


# export --------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def bad(runs):
    return gf.load_run(runs / "bad")


def rows_of(path, to):
    if to == "csv":
        return list(csv.DictReader(io.StringIO(path.read_text())))
    if to == "json":
        return json.loads(path.read_text())
    return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()


def same(value, expected):
    if value in ("", None):
        return not math.isfinite(expected)
    return float(value) == expected


@pytest.mark.parametrize("to", ["csv", "json", "parquet"])
def test_exported_steps_are_those_of_the_run(runs, bad, tmp_path, to):
    out = tmp_path / "deep" / f"table.{to}"
    result = command("export", runs / "bad", "--to", to, "--out", out)
    assert "40 rows" in result.output
    rows = rows_of(out, to)
    for name in ("step", "norm", "loss", "lr", "nan_count"):
        assert all(same(row[name], value) for row, value in zip(rows, bad.series(name), strict=True))
    assert rows[29]["norm"] in ("", None)
    assert os.listdir(out.parent) == [out.name]


@pytest.mark.parametrize("to", ["csv", "json", "parquet"])
def test_exported_layers_are_those_of_the_run(runs, bad, tmp_path, to):
    out = tmp_path / f"layers.{to}"
    command("export", runs / "bad", "--to", to, "--what", "layers", "--out", out)
    rows = {(int(row["step"]), row["layer"]): row for row in rows_of(out, to)}
    assert len(rows) == len(bad.table_steps) * len(bad.parameters)
    for step in bad.table_steps:
        layers = bad.layers(step)
        for place, layer in enumerate(layers["names"]):
            for name in ("norm", "min", "zeros", "nan", "update_ratio"):
                expected = layers[name][place]
                assert same(rows[step, layer][name], math.nan if expected is None else expected)


def test_export_goes_beside_the_run_by_default_and_to_a_pipe_on_request(runs):
    assert command("export", runs / "good", "--to", "json").exit_code == 0
    assert len(json.loads((runs / "good" / "steps.json").read_text())) == 40
    piped = subprocess.run(
        [sys.executable, "-m", "gradient_flow", "export", str(runs / "good"), "--to", "csv", "--out", "-"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert len(list(csv.DictReader(io.StringIO(piped.stdout)))) == 40
    assert piped.stderr == ""


def test_an_export_that_fails_leaves_the_old_file(runs, tmp_path, monkeypatch):
    out = tmp_path / "steps.csv"
    out.write_text("old")

    def full_disk(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(csv.DictWriter, "writerows", full_disk)
    result = command("export", runs / "good", "--to", "csv", "--out", out)
    assert result.exit_code == 2
    assert "No space left" in result.output
    assert out.read_text() == "old"
    assert os.listdir(tmp_path) == ["steps.csv"]


def test_parquet_without_its_package_prints_the_command(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = command("export", runs / "good", "--to", "parquet", "--out", tmp_path / "x.parquet")
    assert result.exit_code == 2
    assert 'pip install "pyarrow' in result.output
    assert os.listdir(tmp_path) == []


# check ---------------------------------------------------------------------------------------------------------------
SETUP = """
import torch
from torch import nn

def healthy():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return model, lambda: torch.randn(64, 16), lambda output: (output - 1).square().mean(), optimizer

def sick():
    layers = [layer for _ in range(12) for layer in (nn.Linear(16, 16), nn.Sigmoid())]
    model = nn.Sequential(*layers, nn.Linear(16, 1))
    return model, lambda: torch.randn(32, 16), lambda output: (output - 1).square().mean()

def attention():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    with torch.no_grad():
        layer.self_attn.in_proj_weight[:16] *= 200
    return nn.Sequential(layer, nn.Linear(16, 1)), lambda: torch.randn(8, 6, 16), lambda y: (y - 1).square().mean()

def raises():
    return {}["no such key"]

def pair():
    return 1, 2

def wrong_shape():
    return nn.Linear(2, 1), lambda: torch.randn(3, 5), lambda output: output.mean()

def no_tensor():
    return nn.Linear(2, 1), lambda: torch.randn(3, 2), lambda output: output.mean().item()
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    name = f"project_{os.urandom(4).hex()}"  # imported once per process, whatever the folder
    (tmp_path / f"{name}.py").write_text(SETUP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop(name, None)


def test_check_tells_a_healthy_model_from_a_sick_one(project):
    healthy = command("check", f"{project}:healthy")
    assert (healthy.exit_code, healthy.output) == (0, "Healthy: no issue found in 20 steps.\n")
    sick = command("check", f"{project}.py:sick", "--steps", "5")
    assert sick.exit_code == 1
    assert "VANISHING in `0`" in sick.output
    assert max(map(len, sick.output.splitlines())) <= 80


def test_check_for_machines(project):
    found, code = as_json("check", f"{project}:sick", "--json", "--steps", "5", "--fail-on", "never")
    assert code == 0
    assert found["failed"] is False
    assert found["issues"][0]["issue_type"] == "VANISHING"


def test_check_with_the_analyzer_for_transformers(project):
    assert command("check", f"{project}:attention").exit_code in (0, 1)
    found, code = as_json("check", f"{project}:attention", "--analyzer", "transformer", "--json")
    assert code == 1
    assert found["issues"][0]["issue_type"] == "ENTROPY_COLLAPSE"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("raises", "KeyError: 'no such key'"),
        ("pair", "must return `(model, input_fn, loss_fn)`"),
        ("wrong_shape", "shapes cannot be multiplied"),
        ("no_tensor", "must return a tensor"),
        ("missing", "there is no function 'missing'"),
    ],
)
def test_check_says_what_is_wrong_with_the_function(project, function, words):
    result = command("check", f"{project}:{function}")
    assert result.exit_code == 2
    assert words in result.output
    assert "gradient_flow/" not in result.output


@pytest.mark.parametrize("target", ["no_such_module:f", "no.such.package:f", "missing.py:f", "nothing", ":f", "x:"])
def test_check_refuses_what_it_cannot_import(project, target):
    result = command("check", target)
    assert result.exit_code == 2
    assert "MODULE:FUNCTION" in result.output


# colours and names ---------------------------------------------------------------------------------------------------
def test_no_color_is_honoured(runs):
    coloured = command("diagnose", runs / "bad", FORCE_COLOR="1")
    plain = command("diagnose", runs / "bad", FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b[1;31m" in coloured.output
    assert "31m" not in plain.output
    assert "\x1b" not in command("diagnose", runs / "bad").output


def test_names_cannot_command_the_terminal(runs, tmp_path):
    evil = changed(
        runs / "bad", tmp_path / "evil", lambda data: data.replace(b"head.bias", b"[red]\\u001b[2J\\u202ebias")
    )
    for arguments in (("diagnose", evil), ("tail", "--once", evil), ("compare", runs / "good", evil)):
        result = command(*arguments)
        assert "[red]" in result.output
        assert "\x1b" not in result.output
        assert "\u202e" not in result.output
