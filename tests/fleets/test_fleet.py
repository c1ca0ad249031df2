"""A folder of runs: what is read, what is kept, what is said, and what a crash can cost."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gradient_flow as gf
from fleet_runs import LAYERS, NAN_AT, write_fleet, write_run
from gradient_flow.errors import ConfigError, InputError, RunFileError
from gradient_flow.fleets import fleet as fleet_module
from gradient_flow.fleets import store as store_module
from gradient_flow.fleets.sources import find_runs, of_shard, parse_shard
from gradient_flow.fleets.store import FOLDER, Store
from gradient_flow.fleets.work import make_digests


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    root = tmp_path_factory.mktemp("fleet")
    return root, write_fleet(root, 40)


@pytest.fixture
def counted(monkeypatch):
    """How many runs each call reads."""
    read = []

    def counting(files, *arguments, **settings):
        read.append(len(files))
        yield from make_digests(files, *arguments, **settings)

    monkeypatch.setattr(fleet_module, "make_digests", counting)
    return read


def rows(folder, table="runs", **settings):
    with gf.fleet(folder, workers=0, **settings) as found:
        kept = found.to_arrow(table).to_pylist()
    for row in kept:
        row.pop("digested", None)
    return sorted(kept, key=lambda row: (row["run"], row.get("place", 0), row.get("name", "")))


def test_every_sick_run_is_listed_with_its_cause(planted):
    root, kinds = planted
    with gf.fleet(root) as found:
        sick = {row["run"]: row["cause"] for row in found.runs(find="healthy=false")}
        causes = {cause.cause: cause for cause in found.causes}
    wanted = {"nan": "loss_nonfinite", "vanish": "vanishing"}
    assert sick == {run: wanted[kind] for run, kind in kinds.items() if kind != "healthy"}
    assert {name: cause.runs for name, cause in causes.items()} == {"loss_nonfinite": 2, "vanishing": 2}
    assert causes["loss_nonfinite"].since_median == NAN_AT
    assert causes["vanishing"].layers == [(LAYERS[0], 2)]


def test_only_new_and_grown_files_are_read(tmp_path, counted):
    write_fleet(tmp_path, 12)
    gf.fleet(tmp_path).close()
    gf.fleet(tmp_path).close()
    assert counted == [12]
    write_run(tmp_path / "more" / "one")
    with (tmp_path / "sweep0" / "run000" / "run.jsonl").open("ab") as file:
        file.write(b'{"kind":"step","step":61,"time":6.1,"norm":1.0,"nan_count":0,"loss":0.1,"lr":[0.01]}\n')
    with gf.fleet(tmp_path) as found:
        assert counted == [12, 2]
        assert len(found) == 13
        assert found.sql("SELECT steps FROM runs WHERE run = 'sweep0/run000'").to_pylist() == [{"steps": 61}]
        assert found.sql("SELECT count(*) AS n FROM layers WHERE run = 'sweep0/run000'").to_pylist() == [{"n": 6}]


def test_other_rules_are_another_verdict(tmp_path, counted):
    write_run(tmp_path / "a")
    gf.fleet(tmp_path).close()

    @gf.register_rule(of="run")
    def never_enough(record):
        yield gf.Issue(
            issue_type=gf.IssueType.SLOW, severity=gf.IssueSeverity.HIGH, layer="model", message="slow", code="my_code"
        )

    try:
        with gf.fleet(tmp_path) as found:
            (issue,) = found.runs()[0]["issues"]
        assert (issue["cause"], issue["severity"]) == ("my_code", "HIGH")
    finally:
        gf.unregister_rule("never_enough")
    with gf.fleet(tmp_path) as found:
        assert found.counts["sick"] == 0
    assert counted == [1, 1, 1]


def test_a_run_that_is_gone_is_not_listed(tmp_path):
    write_fleet(tmp_path, 5)
    gf.fleet(tmp_path).close()
    shutil.rmtree(tmp_path / "sweep0")
    with gf.fleet(tmp_path) as found:
        assert len(found) == 3
        assert {row["run"] for row in found.to_arrow("layers").to_pylist()} == {row["run"] for row in found}


def test_what_was_read_before_an_interruption_is_kept(tmp_path, counted, monkeypatch):
    write_fleet(tmp_path, 10)
    monkeypatch.setattr(fleet_module, "PART_RUNS", 3)

    def interrupt(done, _total):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gf.fleet(tmp_path, workers=0, progress=interrupt)
    with gf.fleet(tmp_path, workers=0) as found:
        assert len(found) == 10
    assert counted == [10, 5]


def test_a_process_that_is_killed_costs_no_more_than_a_part(tmp_path):
    write_fleet(tmp_path, 30)
    code = (
        "import os, sys, gradient_flow as gf\n"
        "from gradient_flow.fleets import fleet\n"
        "fleet.PART_RUNS = 4\n"
        "gf.fleet(sys.argv[1], workers=0, progress=lambda done, _: os.kill(os.getpid(), 9) if done == 11 else None)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    assert done.returncode == -9
    with gf.fleet(tmp_path, update=False) as found:
        assert len(found) == 8
    assert rows(tmp_path) == rows(tmp_path, digests=tmp_path.parent / "anew")


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"PAR1"), lambda path: path.unlink()])
@pytest.mark.parametrize("table", store_module.TABLES)
def test_a_part_that_the_disk_damaged_is_made_again(tmp_path, counted, spoil, table):
    write_fleet(tmp_path, 4)
    gf.fleet(tmp_path, workers=0).close()
    (file,) = (tmp_path / FOLDER).glob(f"*.{table}.parquet")
    spoil(file)
    with gf.fleet(tmp_path, workers=0) as found:
        assert len(found) == 4
        assert found.sql("SELECT count(*) AS n FROM layers").to_pylist() == [{"n": 24}]
    assert counted == [4, 4]


def test_many_parts_are_put_together_without_a_change(tmp_path, monkeypatch):
    write_fleet(tmp_path, 12)
    before = rows(tmp_path), rows(tmp_path, "issues"), rows(tmp_path, "layers")
    monkeypatch.setattr(fleet_module, "MANY_PARTS", 3)
    for at in range(4):
        write_run(tmp_path / "sweep0" / "run000", "nan", seed=at)  # appended: it has grown
        shutil.rmtree(tmp_path / "gone", ignore_errors=True)
        write_run(tmp_path / "gone")
        gf.fleet(tmp_path, workers=0).close()
    shutil.rmtree(tmp_path / "gone")
    gf.fleet(tmp_path, workers=0).close()
    store = Store(tmp_path / FOLDER)
    assert len(store.parts()) <= 3
    after = rows(tmp_path), rows(tmp_path, "issues"), rows(tmp_path, "layers")
    for was, now in zip(before, after, strict=True):
        assert [row for row in was if row["run"] != "sweep0/run000"] == [
            row for row in now if row["run"] != "sweep0/run000"
        ]
    assert {row["run"] for row in after[0]} == {row["run"] for row in before[0]}
    names = [path.name for path in (tmp_path / FOLDER).iterdir()]
    assert not [name for name in names if name.endswith("unfinished")]


def test_shards_together_are_the_whole(tmp_path, counted):
    write_fleet(tmp_path, 20)
    shares = []
    for i in (1, 2, 3):
        with gf.fleet(tmp_path, shard=f"{i}/3", workers=0) as found:
            shares.append({row["run"] for row in found})
    assert sum(map(len, shares)) == len(set().union(*shares)) == 20
    assert min(map(len, shares)) > 0
    with gf.fleet(tmp_path, workers=0) as found:
        assert len(found) == 20
    assert sum(counted) == 20


@pytest.mark.parametrize("wrong", ["3", "0/3", "4/3", "a/b", "1/", "1/-2", "9" * 30])
def test_a_wrong_shard_is_named(tmp_path, wrong):
    with pytest.raises(InputError, match="`shard` must be i/n"):
        gf.fleet(tmp_path, shard=wrong)
    assert parse_shard("3/3") == (3, 3)
    assert of_shard("a", (1, 1))


def test_bad_files_are_listed_and_cost_nothing(tmp_path):
    kinds = write_fleet(tmp_path, 6)
    for name, content in {"empty": b"", "foreign": b"epoch,loss\n1,2\n", "binary": os.urandom(5000)}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.jsonl").write_bytes(content)
    with gf.fleet(tmp_path) as found:
        assert found.counts["unreadable"] == 3
        assert found.counts["runs"] == 9
        bad = found.runs(find="state=unreadable")
        told = found.to_dict()
    assert {row["run"] for row in bad} == {"empty", "foreign", "binary"}
    assert all(row["problem"] for row in bad)
    assert all(row["healthy"] is None for row in bad)
    assert {row["run"] for row in told["runs"]} == {*kinds, "empty", "foreign", "binary"}


def test_whether_a_run_goes_on_is_told_by_the_clock(tmp_path, counted):
    write_run(tmp_path / "now", end=False)
    write_run(tmp_path / "old", end=False)
    write_run(tmp_path / "failed", error="OutOfMemoryError")
    write_run(tmp_path / "short", steps=1)
    long_ago = time.time() - 3600
    os.utime(tmp_path / "old" / "run.jsonl", (long_ago, long_ago))
    with gf.fleet(tmp_path) as found:
        states = {row["run"]: row["state"] for row in found}
        assert found.counts == {
            "runs": 4,
            "sick": 1,
            "healthy": 1,
            "silent": 1,
            "too_short": 1,
            "unreadable": 0,
            "running": 1,
        }
        (cause,) = found.causes
    assert states == {"now": "running", "old": "silent", "failed": "failed", "short": "finished"}
    assert (cause.cause, cause.type, cause.examples) == ("OutOfMemoryError", "FAILED", ["failed"])
    os.utime(tmp_path / "now" / "run.jsonl", (long_ago, long_ago))
    with gf.fleet(tmp_path) as found:
        assert found.counts["running"] == 0


def test_runs_are_found_by_words_and_by_settings(planted):
    root, kinds = planted
    with gf.fleet(root) as found:
        names = {row["run"]: row for row in found}

        def named(find):
            return {row["run"] for row in found.runs(find=find)}

        assert named("vanish") == {run for run, kind in kinds.items() if kind == "vanish"}
        assert named("VANISH sweep0") == {run for run in named("vanish") if run.startswith("sweep0")}
        assert named("lr > 0.003") == {run for run, row in names.items() if row["lr"] > 0.003}
        assert named("lr>0.003 lr<=0.01") == {run for run, row in names.items() if row["lr"] == 0.01}
        assert named("width=64") == named('"config width"=64') != set()
        assert named("optimizer=sgd") == named("sgd") == set(names)
        assert named("since >= 31") == {run for run, kind in kinds.items() if kind == "nan"}
        assert named("100%") == set()
        assert named('"') == named(" ") == set(names)
        assert found.count("vanish") == len(named("vanish"))


def test_runs_are_sorted(planted):
    root, _ = planted
    with gf.fleet(root) as found:
        by_loss = [row["loss"] for row in found.runs(sort="loss") if row["loss"] is not None]
        assert by_loss == sorted(by_loss)
        assert [row["severity"] for row in found.runs(limit=4)] == ["CRITICAL"] * 2 + ["HIGH"] * 2
        with pytest.raises(ConfigError, match="`sort` must be one of"):
            found.runs(sort="nonsense")


def test_sql_and_tables(planted):
    root, kinds = planted
    with gf.fleet(root) as found:
        answer = found.sql("SELECT cause, count(*) AS n FROM runs WHERE NOT healthy GROUP BY cause ORDER BY cause")
        assert answer.to_pylist() == [{"cause": "loss_nonfinite", "n": 2}, {"cause": "vanishing", "n": 2}]
        lowest = found.sql("SELECT layer FROM layers WHERE run = 'sweep0/run000' ORDER BY norm_median LIMIT 1")
        assert lowest.to_pylist() == [{"layer": LAYERS[0]}]
        rates = found.sql("SELECT DISTINCT number FROM settings WHERE name = 'lr' ORDER BY 1").to_pylist()
        assert [row["number"] for row in rates] == [0.0001, 0.001, 0.01, 0.1]
        frame = found.to_pandas()
        assert len(frame) == len(kinds)
        assert set(found.to_pandas("issues")["type"]) == {"NUMERICAL", "VANISHING"}
        with pytest.raises(InputError, match="cannot be answered"):
            found.sql("SELECT nothing FROM runs")
        with pytest.raises(InputError, match="must be SQL"):
            found.sql(" ")
        assert found.sql("SET threads = 1").num_rows == 0


def test_settings_that_go_with_sickness_are_told(tmp_path):
    write_fleet(
        tmp_path, 24, rate=lambda at: 0.1 if at % 3 == 0 else 0.001, kind=lambda at: "nan" if at % 3 == 0 else "healthy"
    )
    with gf.fleet(tmp_path) as found:
        first = found.settings[0]
        assert first.setting == "lr > 0.001"
        assert first.sentence == "all 8 with lr > 0.001, none of 16 without"
        assert first.significant
        assert "lr > 0.001" in str(found)
        assert "8 sick, 16 healthy" in str(found)


def test_json_is_bounded_and_strict(planted):
    import orjson

    root, _ = planted
    with gf.fleet(root) as found:
        told = found.to_dict(limit=3, fail_on="high")
    assert orjson.loads(orjson.dumps(told)) == told
    assert len(told["runs"]) == 3
    assert told["matching"] == told["counts"]["runs"] == 40
    assert (told["failing"], told["failed"], told["fail_on"]) == (4, True, "high")
    assert {"run", "state", "verdict", "issues"} <= told["runs"][0].keys()
    assert {"type", "cause", "severity", "layer", "since"} <= told["runs"][0]["issues"][0].keys()
    assert {"causes", "settings"} <= told.keys()


def test_a_folder_in_a_folder_with_brackets(tmp_path):
    root = tmp_path / "lr[0.1]*'x"
    write_fleet(root, 3)
    with gf.fleet(root) as found:
        assert len(found) == 3
        assert found.to_arrow("layers").num_rows == 18


def test_names_that_are_no_text(tmp_path):
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\xfe")
    write_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")))
    write_run(tmp_path / "new\nline")
    with gf.fleet(tmp_path, workers=2) as found:
        assert found.counts == {
            "runs": 2,
            "sick": 0,
            "healthy": 2,
            "silent": 0,
            "too_short": 0,
            "unreadable": 0,
            "running": 0,
        }


def test_an_empty_folder_and_none(tmp_path):
    with gf.fleet(tmp_path) as found:
        assert len(found) == 0
        assert found.causes == found.settings == list(found) == []
        assert str(found) == "0 runs: 0 sick, 0 healthy."
    with pytest.raises(RunFileError, match="`folder` must be a folder of runs"):
        gf.fleet(tmp_path / "none")


def test_a_single_run_is_a_fleet_of_one(tmp_path):
    write_run(tmp_path / "one")
    with gf.fleet(tmp_path / "one") as found:
        assert [row["run"] for row in found] == ["one"]


def test_a_folder_that_cannot_be_written_to_is_read_all_the_same(tmp_path, monkeypatch):
    write_fleet(tmp_path / "runs", 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(store_module.os, "access", lambda *_: False)
    with gf.fleet(tmp_path / "runs") as found:
        assert len(found) == 3
    assert not (tmp_path / "runs" / FOLDER).exists()
    assert list((tmp_path / "cache" / "gradient-flow").rglob("*.runs.parquet"))


# ---- elsewhere ------------------------------------------------------------------------------------------------------


def test_an_address_is_read_through_fsspec(tmp_path, monkeypatch):
    import fsspec

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_fleet(tmp_path / "runs", 6)
    system = fsspec.filesystem("memory")
    system.put(str(tmp_path / "runs"), "/bucket/runs", recursive=True)
    try:
        there, here = rows("memory://bucket/runs"), rows(tmp_path / "runs", digests=tmp_path / "digests")
        for row in (*there, *here):
            row.pop("changed")
        assert there == here
        system.pipe("/bucket/runs/bad/run.jsonl", b"foreign\n")
        with gf.fleet("memory://bucket/runs", workers=0) as found:
            (bad,) = found.runs(find="state=unreadable")
        assert bad["problem"].startswith("'memory://")
        assert "is not a run file" in bad["problem"]
    finally:
        system.rm("/bucket", recursive=True)


def test_an_address_in_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_fleet(tmp_path / "runs", 4)
    with gf.fleet(f"file://{tmp_path}/runs", workers=2) as found:
        assert (len(found), found.counts["unreadable"]) == (4, 0)
    assert {run.name for run in find_runs(f"file://{tmp_path}/runs")} == {
        run.name for run in find_runs(tmp_path / "runs")
    }


def test_an_address_that_nobody_knows_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(RunFileError, match="nosuch://x"):
        gf.fleet("nosuch://x/runs")


def test_ray_makes_the_same_rows(tmp_path):
    """In a process of its own: Ray leaves threads and sockets behind."""
    write_fleet(tmp_path, 20)
    code = (
        "import sys, gradient_flow as gf; print(len(gf.fleet(sys.argv[1], ray=True, workers=2, digests=sys.argv[2])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(tmp_path / ".ray")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == "20"
    for table in ("runs", "issues", "layers"):
        assert rows(tmp_path, table, digests=tmp_path / ".ray", update=False) == rows(tmp_path, table)


@pytest.mark.parametrize(("missing", "extra"), [("duckdb", "fleet"), ("pyarrow", "fleet"), ("ray", "ray")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, missing, extra):
    write_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(gf.MissingExtraError, match=f"`{extra}` extra"):
        gf.fleet(tmp_path, ray=missing == "ray")
