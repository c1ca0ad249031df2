"""A digest: a pure function of the run's file, the same wherever it is made, and never an exception."""

import json
import os
import shutil
import subprocess
import sys
import time

import orjson
import pytest

import gradient_flow as gf
from damage import mutations, small_run
from fleet_runs import SICK, write_run
from gradient_flow.fleets import work
from gradient_flow.fleets.digest import MOST_LAYERS, cause_of, digest
from gradient_flow.fleets.sources import Found
from gradient_flow.fleets.store import COLUMNS, Store
from gradient_flow.fleets.worker import send
from gradient_flow.record.run_writer import RunWriter


@pytest.mark.parametrize("kind", ["healthy", *SICK])
def test_a_digest_says_what_diagnose_says(tmp_path, kind):
    found, verdict = digest(write_run(tmp_path / "run", kind)), gf.diagnose(tmp_path / "run")
    row = found["run"]
    assert (row["verdict"], row["healthy"], row["issues"]) == (verdict.status, verdict.healthy, len(verdict))
    assert row["message"] == verdict.message
    for issue, kept in zip(verdict, found["issues"], strict=True):
        assert kept["type"] == issue.issue_type.name
        assert kept["cause"] == cause_of(issue)
        assert (kept["severity"], kept["layer"], kept["since"]) == (issue.severity.name, issue.layer, issue.step)
    if kind in SICK:
        assert (row["type"], row["since"] if kind == "nan" else None) == SICK[kind]


def test_a_digest_has_figures_settings_and_layers(tmp_path):
    found = digest(write_run(tmp_path / "run", lr=0.02, width=64))
    row, run = found["run"], gf.load_run(tmp_path / "run")
    losses = run.series("loss")
    assert (row["steps"], row["last_step"], row["seconds"], row["state"]) == (60, 60, 6.0, "finished")
    assert (row["loss_first"], row["loss_best"]) == (losses[0], losses.min())
    assert row["loss"] == sorted(losses[-6:])[2] / 2 + sorted(losses[-6:])[3] / 2
    assert (row["lr"], row["tensors"], row["elements"]) == (0.02, 6, 6 * 1024)
    assert row["settings"]["lr"] == "0.02"
    assert row["settings"]["optimizer"] == "SGD"
    assert row["settings"]["config width"] == "64"
    layers = found["layers"]
    assert layers["layer"] == run.tensor_names
    assert layers["norm"] == pytest.approx([float(norm) for norm in run.layers(60)["norm"]])
    assert layers["tables"] == [12] * 6


def test_it_holds_no_more_than_the_tables_do(tmp_path):
    found = digest(write_run(tmp_path / "run", "nan"))
    assert found["run"].keys() <= COLUMNS["runs"].keys()
    assert all(issue.keys() <= COLUMNS["issues"].keys() for issue in found["issues"])
    assert found["layers"].keys() <= COLUMNS["layers"].keys()


def test_it_depends_on_the_file_alone(tmp_path):
    """Not on its place, its age, or whether a process still writes it."""
    write_run(tmp_path / "a", end=False)
    shutil.copytree(tmp_path / "a", tmp_path / "b" / "c")
    old = time.time() - 7200
    os.utime(tmp_path / "b" / "c" / "run.jsonl", (old, old))
    first = digest(tmp_path / "a")
    assert first == digest(tmp_path / "b" / "c" / "run.jsonl")
    assert first["run"]["state"] == "open"
    assert orjson.loads(orjson.dumps(first)) == first


def test_processes_and_this_one_make_the_same(tmp_path):
    files = [str(write_run(tmp_path / kind, kind) / "run.jsonl") for kind in ("healthy", *SICK)]
    here = dict(work.make_digests(files, 0))
    assert here == dict(work.make_digests(files, 2))
    assert [made["run"]["problem"] for made in here.values()] == [None] * 3


def test_a_file_that_ends_a_process_costs_no_other_run_anything(tmp_path, monkeypatch):
    monkeypatch.setattr(
        work,
        "_COMMAND",
        "import os, gradient_flow.fleets.worker as worker\n"
        "make = worker.digest_of\n"
        "worker.digest_of = lambda file: os._exit(9) if 'deadly' in file else make(file)\n"
        "worker.main()",
    )
    names = ("a", "deadly1", "b", "deadly2", "c")
    files = [str(write_run(tmp_path / name) / "run.jsonl") for name in names]
    problems = {names[at]: made["run"]["problem"] for at, made in work.make_digests(files, 1)}
    assert [name for name, problem in problems.items() if problem] == ["deadly1", "deadly2"]
    assert "exit status 9" in problems["deadly1"]


def test_what_a_rule_prints_does_not_come_between(tmp_path, monkeypatch):
    monkeypatch.setattr(
        work,
        "_COMMAND",
        "import gradient_flow.fleets.worker as worker\n"
        "make = worker.digest_of\n"
        "worker.digest_of = lambda file: print('noise') or make(file)\n"
        "worker.main()",
    )
    file = str(write_run(tmp_path / "run") / "run.jsonl")
    assert dict(work.make_digests([file], 1)) == {0: digest(file)}


BAD = {
    "empty": (b"", "holds no complete record yet"),
    "foreign": (b'{"epoch": 1, "loss": 0.3}\n', "is not a run file"),
    "binary": (bytes(range(256)) * 40, "is not a run file"),
    "newer": (b'{"kind":"header","format":99,"parameters":[]}\n', "Upgrade gradient-flow"),
    "torn": (b'{"kind":"header","form', "holds no complete record yet"),
    "damaged": (b'{"kind":"header","format":2,"parameters":[{"name":3}]}\n', "is damaged"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_has_a_reason(tmp_path, what):
    (tmp_path / "run.jsonl").write_bytes(BAD[what][0])
    found = digest(tmp_path / "run.jsonl")
    assert BAD[what][1] in found["run"]["problem"]
    assert found["run"]["state"] == "unreadable"
    assert not found["again"]


def test_a_file_that_is_gone_is_tried_again(tmp_path):
    assert digest(tmp_path / "run.jsonl")["again"]


def test_whatever_is_damaged_can_be_kept(tmp_path):
    """Every digest of a damaged file fits JSON and Parquet."""
    data = (small_run(tmp_path / "small") / "run.jsonl").read_bytes()
    made = []
    for at, (_, damaged) in zip(range(80), mutations(data, 3), strict=False):
        (tmp_path / "run.jsonl").write_bytes(damaged)
        found = digest(tmp_path / "run.jsonl")
        assert json.loads(orjson.dumps(found)) == found
        made.append((Found(f"run{at}", "", 1, 1), found))
    store = Store(tmp_path / "store")
    store.add(made, "5")
    assert len(store.parts()) == 1
    assert any(found["run"]["problem"] for _, found in made)
    assert any(found["run"]["problem"] is None for _, found in made)


def test_of_very_many_layers_a_bounded_number_is_kept(tmp_path):
    names = [f"layer{at}.weight" for at in range(3000)]
    parameters = [{"name": name, "shape": [4, 4], "dtype": "float32"} for name in names]
    writer = RunWriter(
        tmp_path / "run", {"started": "2026-01-01T00:00:00+00:00", "settings": {}, "parameters": parameters}
    )
    ones = [1.0] * 3000
    for step in (1, 2, 3):
        writer.write({"kind": "step", "step": step, "time": 0.1, "norm": 1.0, "nan_count": 0})
        line = {"kind": "look", "step": step, "rows": None, "norm": ones, "sum": ones, "sum_abs": ones}
        line |= {"min": ones, "max": ones}
        writer.write(line | dict.fromkeys(("zeros", "near_zero", "very_large", "nan", "inf", "neg_inf"), 0))
    writer.close()
    kept = digest(tmp_path / "run")["layers"]
    assert MOST_LAYERS // 2 < len(kept["layer"]) <= MOST_LAYERS
    assert [names[place] for place in kept["place"]] == kept["layer"]


def test_a_process_whose_asker_has_gone_ends_without_a_word(tmp_path):
    write_run(tmp_path / "fine")
    command = "from gradient_flow.fleets.worker import main; main()"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", command], stdin=pipe, stdout=pipe, stderr=pipe)
    process.stdout.close()
    send(process.stdin, os.fsencode(tmp_path / "fine" / "run.jsonl"))
    process.stdin.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 0
    process.stderr.close()
