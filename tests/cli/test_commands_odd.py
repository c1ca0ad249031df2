"""Commands given what nobody expects: names of several lines, paths that are no text, models that print or leave."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
import torch
from click.testing import CliRunner
from rich.cells import cell_len
from torch import nn

import gradient_flow as gf
from gradient_flow.cli.main import main
from gradient_flow.report.serve.live_runs import LiveRuns
from gradient_flow.report.serve.run_ids import RunFolder, id_of
from recorded_runs import record

SETUP = """
import sys, torch
from torch import nn

def talkative():
    print("loading")
    model = nn.Linear(4, 1)
    return model, lambda: (print("a batch"), torch.randn(8, 4))[1], lambda output: output.square().mean()

def leaves():
    sys.exit(0)

def interrupted():
    raise KeyboardInterrupt
"""


def command(*arguments, **environment):
    return CliRunner().invoke(
        main, [str(each) for each in arguments], env={"COLUMNS": "80", **environment}, catch_exceptions=False
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    record(folder / "good")
    record(folder / "bad", bad_at=30)
    record(folder / "seed", seed=1)
    return folder


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"project_{os.urandom(4).hex()}"  # imported once per process, whatever the folder
    (tmp_path / f"{name}.py").write_text(SETUP)
    yield name
    sys.modules.pop(name, None)


def renamed(source, target, old, new):
    target.mkdir()
    (target / "run.jsonl").write_bytes((source / "run.jsonl").read_bytes().replace(old, new))
    return target


# Names ---------------------------------------------------------------------------------------------------------------
def test_a_name_of_several_lines_takes_one_row(runs, tmp_path):
    odd = renamed(runs / "seed", tmp_path / "odd", b"head.", b"he\\nad.")
    commands = [
        ("tail", "--once", odd),
        ("compare", "--layers", "99", odd, renamed(odd, tmp_path / "b", b"0.05", b"0.06")),
    ]
    for arguments in commands:
        assert "\nad." not in command(*arguments).output
    command("report", odd, "--format", "txt")
    assert "he�ad.weight" in (odd / "report.txt").read_text()


def test_rows_of_wide_letters_are_as_wide_as_the_others(runs, tmp_path):
    odd = renamed(runs / "good", tmp_path / "odd", b"head.weight", "日本語.weight".encode())
    rows = [line for line in command("tail", "--once", odd).output.splitlines() if "▁" in line]
    assert any(row.startswith("日本語") for row in rows)
    assert len({cell_len(row) for row in rows}) == 1


def test_letters_the_font_lacks_do_not_warn(runs, tmp_path):
    odd = renamed(runs / "good", tmp_path / "odd", b"head.weight", "日本語.weight".encode())
    assert command("report", odd, "--format", "png").exit_code == 0  # a warning is an error in these tests


def test_a_long_name_leaves_room_for_what_is_wrong(runs, tmp_path):
    odd = renamed(runs / "bad", tmp_path / "odd", b"head.bias", b"x" * 900)
    assert "since step 30" in command("tail", odd).output


@pytest.mark.parametrize("columns", ["1", "3", "9"])
def test_the_narrowest_terminal_is_no_crash(runs, columns):
    assert command("tail", "--once", runs / "bad", COLUMNS=columns).exit_code == 0


def test_runs_near_a_wrong_path_cannot_command_the_terminal(runs, tmp_path):
    shutil.copytree(runs / "good", tmp_path / "r\x1b]0;t\x07un")
    told = CliRunner().invoke(main, ["diagnose", str(tmp_path / "none")], color=True).output
    assert "r�]0;t�un" in told
    assert "\x1b" not in told


def test_titles_are_not_wrapped_to_narrow_tables(runs):
    lines = [line.rstrip() for line in command("compare", runs / "good", runs / "bad").output.splitlines()]
    assert "Runs (medians of the last tenth)" in lines


def test_without_tables_there_are_no_empty_rows(runs, tmp_path):
    data = (runs / "good" / "run.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run.jsonl").write_bytes(b"".join(line for line in data if b'"kind":"look"' not in line))
    assert "each group" not in command("tail", "--once", tmp_path).output


# Paths ---------------------------------------------------------------------------------------------------------------
def test_a_path_that_is_no_text(runs, tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/r\xff")
    try:
        shutil.copytree(runs / "good", odd)
    except OSError:
        pytest.skip("this file system takes text alone")
    assert json.loads(command("diagnose", odd, "--json").stdout)["run"].endswith("/r�")
    assert json.loads(command("compare", runs / "bad", odd, "--json").stdout)["runs"][1]["run"].endswith("/r�")
    written = CliRunner().invoke(main, ["report", odd], catch_exceptions=False).stdout_bytes
    assert written.strip() == os.fsencode(odd) + b"/report.html"
    assert "40 rows in" in command("export", odd, "--to", "csv").output


def test_a_path_that_is_too_long(runs):
    for arguments in (("diagnose", "n" * 300), ("report", runs / "good", "--out", "n" * 300)):
        result = command(*arguments)
        assert result.exit_code == 2
        assert os.strerror(36 if sys.platform == "linux" else 63) in result.output


def test_a_report_goes_into_a_folder_that_is_not_there_yet(runs, tmp_path):
    assert command("report", runs / "good", "--out", f"{tmp_path}/new/", "--format", "md").exit_code == 0
    assert (tmp_path / "new" / "report.md").is_file()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_standard_output_that_is_full_is_named(runs):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gradient_flow", "export", runs / "good", "--to", "csv", "--out", "-"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "Error: standard output cannot be written" in done.stderr


# Comparing -----------------------------------------------------------------------------------------------------------
def test_layers_that_turned_nan_are_not_finite(runs, tmp_path):
    lasting = tmp_path / "nan"
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for folder, factor in ((tmp_path / "fine", 1.0), (lasting, float("nan"))):
        with gf.watch(model, optimizer, run=folder, layers_every=1):
            for step in range(30):
                optimizer.zero_grad()
                (model(torch.ones(8, 4)).square().mean() * (factor if step >= 10 else 1.0)).backward()
                optimizer.step()
    found = json.loads(command("compare", tmp_path / "fine", lasting, "--json").stdout)["compared_with_the_first"][0]
    assert {layer["layer"]: (layer["parts"], layer["ratio"]) for layer in found["layers"]} == {
        "weight": (found["series"]["norm"]["parts"], None),
        "bias": (found["series"]["norm"]["parts"], None),
    }


def test_a_table_of_one_optimizer_says_nothing_of_the_layers_of_another(tmp_path):
    for folder in ("a", "b"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in model]
        with gf.watch(model, optimizers if folder == "b" else optimizers[0], run=tmp_path / folder, layers_every=1):
            for _ in range(12):
                model.zero_grad()
                model(torch.randn(8, 4)).square().mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
    found = json.loads(command("compare", tmp_path / "a", tmp_path / "b", "--json").stdout)
    layers = found["compared_with_the_first"][0]["layers"]
    assert layers
    assert all(layer["ratio"] is not None for layer in layers)


# The pre-flight check ------------------------------------------------------------------------------------------------
def test_what_a_model_prints_stays_out_of_the_json(project):
    result = command("check", f"{project}:talkative", "--json", "--steps", "2")
    assert json.loads(result.stdout)["target"] == f"{project}:talkative"
    assert "loading\na batch\n" in result.stderr


def test_a_function_that_leaves_has_not_been_found_healthy(project):
    result = command("check", f"{project}:leaves")
    assert result.exit_code == 2
    assert "SystemExit" in result.output


def test_ctrl_c_is_not_the_status_of_issues(project):
    assert command("check", f"{project}:interrupted").exit_code == 130


def test_a_file_named_like_a_loaded_module(project, tmp_path):
    (tmp_path / "json.py").write_text(SETUP)
    assert command("check", "json.py:talkative", "--steps", "2").exit_code == 0
    assert sys.modules["json"] is json


# Running a script ---------------------------------------------------------------------------------------------------
def test_a_file_in_the_place_of_the_run_folder_is_said_before_the_training(project):
    result = command("run", "--out", f"{project}.py", f"{project}.py")
    assert result.exit_code == 2
    assert "is a file" in result.output


def test_no_run_folder_is_named_where_nothing_could_be_written(project, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "train.py").write_text(
        "import torch\nw = torch.nn.Parameter(torch.ones(2))\noptimizer = torch.optim.SGD([w], lr=0.1)\n"
        "w.square().sum().backward()\noptimizer.step()\n"
    )
    with pytest.warns(gf.GradientFlowWarning, match="cannot write"):
        result = command("run", "--out", tmp_path / "file" / "run", "train.py")
    assert "1 step watched" in result.stderr
    assert "run folder" not in result.stderr


# Serving -------------------------------------------------------------------------------------------------------------
def test_every_listed_run_can_be_opened_and_no_name_is_too_long(runs, tmp_path):
    shutil.copytree(runs / "good", tmp_path / "a\\b")
    folder = RunFolder(tmp_path)
    assert [folder.file(run_id) for run_id, _ in folder.runs()] == [tmp_path / "a\\b" / "run.jsonl"]
    with pytest.raises(KeyError):
        folder.file(id_of("n" * 300))


def test_a_damaged_run_does_not_keep_the_others_from_their_verdicts(runs, tmp_path):
    shutil.copytree(runs / "good", tmp_path / "good")
    renamed(runs / "good", tmp_path / "damaged", b'"shape":[1]', b'"shape":[-1]')
    os.utime(tmp_path / "good" / "run.jsonl", (1e9, 1e9))  # the last changed is judged first
    live = LiveRuns(RunFolder(tmp_path))
    live.facts()
    live.judge_listed()
    until = time.monotonic() + 30
    while live._judging and time.monotonic() < until:
        time.sleep(0.01)
    assert {entry["id"]: entry["level"] for entry in live.facts()[0]} == {"good": "healthy", "damaged": "unknown"}


def test_an_analyzer_that_finds_nothing_to_examine_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain_net.py").write_text(
        "import torch\n"
        "def setup():\n"
        "    x = torch.randn(32, 4)\n"
        "    return torch.nn.Linear(4, 1), lambda: x, lambda output: (output - x[:, :1]).square().mean()\n"
    )
    for kind, said in (("recurrent", "no recurrent part was seen"), ("transformer", "no attention was seen")):
        result = CliRunner().invoke(main, ["check", "plain_net.py:setup", "--analyzer", kind, "--steps", "2"])
        assert result.exit_code == 0, result.output
        assert f"Not judged, {kind}: {said}" in " ".join(result.output.split())
        result = CliRunner().invoke(main, ["check", "plain_net.py:setup", "--analyzer", kind, "--json"])
        assert said in json.loads(result.stdout)["not_judged"].lower()
