"""`gradient-flow fleet` and `gradient-flow sql`, as a person and as a script use them."""

import csv
import io
import json
import sys

import pytest
from click.testing import CliRunner

from fleet_runs import write_fleet, write_run
from gradient_flow.cli.main import main


def run(*arguments, columns=80):
    return CliRunner().invoke(main, [str(each) for each in arguments], env={"COLUMNS": str(columns), "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Every third run has a rate of 0.1, and turns NaN; one vanishes, one is no run."""
    root = tmp_path_factory.mktemp("fleet")
    write_fleet(
        root,
        24,
        rate=lambda at: 0.1 if at % 3 == 0 else 0.001,
        kind=lambda at: "nan" if at % 3 == 0 else "vanish" if at == 1 else "healthy",
    )
    (root / "foreign").mkdir()
    (root / "foreign" / "run.jsonl").write_text("epoch,loss\n")
    return root


def test_a_person_sees_causes_settings_runs_and_bad_files(fleet):
    result = run("fleet", fleet)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == "25 runs: 9 sick, 15 healthy, 1 unreadable."
    assert any(line.split()[:3] == ["8", "loss_nonfinite", "NUMERICAL"] for line in lines)
    told = " ".join(result.output.split())
    assert "loss_nonfinite: all 8 with lr > 0.001, none of 16 without" in told
    assert "corrected for" in told
    assert "is not a run file" in told
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_it_fits_every_terminal(fleet, columns):
    assert max(map(len, run("fleet", fleet, columns=columns).output.splitlines())) <= columns


def test_a_script_gets_json(fleet):
    result = run("fleet", fleet, "--json", "--limit", "10")
    told = json.loads(result.output)
    assert result.exit_code == 1
    assert told["counts"] == {
        "runs": 25,
        "sick": 9,
        "healthy": 15,
        "silent": 0,
        "too_short": 0,
        "unreadable": 1,
        "running": 0,
    }
    assert len(told["runs"]) == 10
    first = told["runs"][0]
    assert (first["verdict"], first["state"]) == ("nan", "finished")
    assert first["issues"][0] == first["issues"][0] | {
        "type": "NUMERICAL",
        "cause": "loss_nonfinite",
        "severity": "CRITICAL",
        "layer": "model",
        "since": 31,
    }
    assert [(cause["cause"], cause["runs"]) for cause in told["causes"]] == [("loss_nonfinite", 8), ("vanishing", 1)]
    best = told["settings"][0]
    assert (best["name"], best["relation"], best["value"], best["significant"]) == ("lr", ">", 0.001, True)
    assert (best["sick_with"], best["runs_with"], best["sick_without"], best["runs_without"]) == (8, 8, 0, 16)


@pytest.mark.parametrize(
    ("kind", "fail_on", "status"),
    [
        ("healthy", "low", 0),
        ("vanish", "high", 1),
        ("vanish", "critical", 0),
        ("nan", "critical", 1),
        ("nan", "never", 0),
    ],
)
def test_the_exit_status_follows_fail_on(tmp_path, kind, fail_on, status):
    write_run(tmp_path / "run", kind)
    assert run("fleet", tmp_path, "--fail-on", fail_on).exit_code == status


def test_a_run_that_an_error_ended_counts(tmp_path):
    write_run(tmp_path / "run", error="OutOfMemoryError")
    result = run("fleet", tmp_path)
    assert result.exit_code == 1
    assert "OutOfMemoryError" in result.output
    assert run("fleet", tmp_path, "--fail-on", "never").exit_code == 0


def test_words_and_conditions_choose_what_is_listed(fleet):
    assert "No run matches 'nonsense'" in run("fleet", fleet, "--find", "nonsense").output
    found = json.loads(run("fleet", fleet, "--json", "--find", "vanish lr<0.01").output)
    assert [row["cause"] for row in found["runs"]] == ["vanishing"]
    assert found["matching"] == 1
    by_name = json.loads(run("fleet", fleet, "--json", "--sort", "run").output)["runs"]
    assert [row["run"] for row in by_name] == sorted(row["run"] for row in by_name)


def test_names_of_others_do_not_command_the_terminal(tmp_path):
    write_run(tmp_path / "\x1b[31mred\nline", "nan")
    assert "\x1b" not in run("fleet", tmp_path).output


def test_wrong_usage_is_named(tmp_path):
    for arguments, said in {
        ("fleet", tmp_path / "none"): "does not exist",
        ("fleet", tmp_path): "There is no run in",
        ("fleet", tmp_path, "--shard", "9/3"): "`shard` must be i/n",
        ("fleet", tmp_path, "--sort", "colour"): "--sort",
        ("sql", "SELECT 1 FROM nowhere", tmp_path): "cannot be answered",
        ("sql", "", tmp_path): "must be SQL",
    }.items():
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert said in result.output


def test_a_missing_extra_is_named(fleet, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    result = run("fleet", fleet)
    assert result.exit_code == 2
    assert "pip install" in result.output


def test_a_share_is_read_by_itself(fleet):
    shares = [json.loads(run("fleet", fleet, "--json", "--shard", f"{i}/2").output) for i in (1, 2)]
    names = [{row["run"] for row in share["runs"]} for share in shares]
    assert names[0].isdisjoint(names[1])
    assert len(names[0] | names[1]) == 25


QUERY = "SELECT cause, count(*) AS n FROM runs WHERE NOT healthy GROUP BY cause ORDER BY n DESC"


def test_sql_answers_as_a_table_csv_and_json(fleet):
    lines = run("sql", QUERY, fleet).output.splitlines()
    assert [line.split() for line in lines] == [["cause", "n"], ["loss_nonfinite", "8"], ["vanishing", "1"]]
    answer = run("sql", QUERY, fleet, "--to", "csv").output
    assert list(csv.reader(io.StringIO(answer)))[1:] == [["loss_nonfinite", "8"], ["vanishing", "1"]]
    assert json.loads(run("sql", QUERY, fleet, "--to", "json").output)[1] == {"cause": "vanishing", "n": 1}
    everything = json.loads(run("sql", "SELECT * FROM runs", fleet, "--to", "json").output)
    assert everything[1]["settings"]["optimizer"] == "SGD"
    assert "sgd" in run("sql", "SELECT settings FROM runs", fleet, "--to", "csv").output.lower()
    formulas = run("sql", """SELECT '=1+1' AS "@x", -1 AS n""", fleet, "--to", "csv").output
    assert list(csv.reader(io.StringIO(formulas))) == [["'@x", "n"], ["'=1+1", "-1"]]
    assert "20 more rows" in run("sql", "SELECT run FROM runs", fleet, "--limit", "5").output


def test_sql_prints_a_line_per_value_where_columns_do_not_fit(fleet):
    lines = run("sql", "SELECT * FROM runs ORDER BY run", fleet, "--limit", "2").output.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("healthy ") for line in lines) == 2
    assert sum(line.split() == ["steps", "40"] for line in lines) <= 2
    wide = run("sql", "SELECT run, cause, type FROM runs ORDER BY run", fleet, "--limit", "2").output.splitlines()
    assert wide[0].split() == ["run", "cause", "type"]


def test_sql_can_ask_what_is_known_alone(tmp_path):
    write_run(tmp_path / "a")
    assert run("sql", "SELECT run FROM runs", tmp_path).output.split() == ["run", "a"]
    write_run(tmp_path / "b")
    assert run("sql", "SELECT run FROM runs", tmp_path, "--no-update").output.split() == ["run", "a"]
    assert run("sql", "SELECT run FROM runs", tmp_path).output.split() == ["run", "a", "b"]
