"""A damaged run file is read as far as it goes or refused in words: no traceback, and no verdict by accident."""

import logging
import resource
import sys
from itertools import islice

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

import gradient_flow as gf
from damage import KINDS, mutations, read_by_all, small_run
from gradient_flow.cli.main import main
from gradient_flow.record.run_lines import DEEPEST
from gradient_flow.record.step_columns import MOST_SERIES
from gradient_flow.report import live_run
from gradient_flow.report.live_run import LiveRun
from gradient_flow.report.serve.access import Access
from gradient_flow.report.serve.app import application
from gradient_flow.report.serve.live_runs import LiveRuns
from gradient_flow.report.serve.run_ids import RunFolder

ROUNDS = 12
"""Mutations of each kind; `benchmarks/fuzz_run_file.py` makes as many as one likes."""
MOST_MEMORY = 256 << 20
"""Bytes by which the process may grow beyond its highest so far, which other tests have a part in."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("damage") / "sound")


@pytest.fixture
def lines(sound):
    return (sound / "run.jsonl").read_bytes().splitlines(keepends=True)


@pytest.fixture
def damaged(tmp_path):
    """Write a run file and return its folder."""

    def write(content):
        (tmp_path / "run.jsonl").write_bytes(content if isinstance(content, bytes) else b"".join(content))
        return tmp_path

    return write


def with_kind(lines, kind):
    return next(at for at, line in enumerate(lines) if line.startswith(b'{"kind":"%b"' % kind))


def highest_memory():
    """Bytes that this process has held at its highest."""
    scale = 1 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def test_the_run_has_every_kind_of_line(lines):
    for kind in (b"header", b"step", b"look", b"seen", b"forensics", b"end"):
        assert with_kind(lines, kind) is not None


def test_a_sound_run_is_read_by_all(sound, tmp_path):
    other = small_run(tmp_path / "other")
    assert set(read_by_all(sound, other).values()) == {"read"}


@pytest.mark.parametrize("start", range(0, ROUNDS * len(KINDS), len(KINDS)))
def test_every_mutation_is_read_or_refused(sound, damaged, start):
    data, before = (sound / "run.jsonl").read_bytes(), highest_memory()
    for number, (kind, content) in enumerate(islice(mutations(data, 0), start, start + len(KINDS)), start=start):
        try:
            read_by_all(damaged(content), sound)
        except AssertionError as problem:
            raise AssertionError(f"mutation {number}, {kind}: {problem}") from problem
    assert highest_memory() - before < MOST_MEMORY


# ---- what is counted, and what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        (b"step", b'"step":', b'"step":-'),
        (b"look", b'"step":', b'"step":99999999999999999999'),
        (b"look", b'"sum":[', b'"sum":[0.0,'),
        (b"look", b'"sum":[', b'"sum":[1e300,'),
        (b"look", b'"zeros":', b'"zeros":-1,"x":'),
        (b"look", b'"rows":null', b'"rows":[0,0]'),
        (b"seen", b'"found":{', b'"found":[],"x":{'),
    ],
)
def test_a_damaged_line_is_left_out_and_counted(lines, damaged, kind, old, new):
    at = with_kind(lines, kind)
    assert old in lines[at]
    lines[at] = lines[at].replace(old, new, 1)
    folder = damaged(lines)
    run = gf.load_run(folder)
    gf.diagnose(run)
    assert run.notes == ["1 torn or damaged line within the file is left out."]
    told = CliRunner().invoke(main, ["diagnose", str(folder), "--fail-on", "never"])
    assert told.exit_code == 0
    assert "note: 1 torn or damaged line" in told.stderr


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"shape":[6,4]', b'"shape":[1000000000,1000000000,1000000000]', "a name and a shape"),
        (b'"shape":[6,4]', b'"shape":[-6,4]', "a name and a shape"),
        (b'"shape":[6,4]', b'"shape":"6x4"', "a name and a shape"),
        (b'"name":"0.bias"', b'"name":"0.weight"', "names '0.weight' twice"),
        (b'"format":2', b'"format":"2"', "not a run file"),
    ],
)
def test_a_damaged_header_is_refused_in_words(lines, damaged, old, new, said):
    assert old in lines[0]
    folder = damaged([lines[0].replace(old, new, 1), *lines[1:]])
    with pytest.raises(gf.RunFileError, match=said):
        gf.load_run(folder)
    done = CliRunner().invoke(main, ["diagnose", str(folder)])
    assert done.exit_code == 2
    assert said in done.output
    client = TestClient(Access(application(LiveRuns(RunFolder(folder))), host="127.0.0.1", token=None))
    answer = client.get("/api/run/-", headers={"Host": "localhost"})
    assert answer.status_code == 422
    assert said in answer.json()["error"]


def test_deep_nesting_is_damage(lines, damaged):
    at = with_kind(lines, b"step")
    for deep, left_out in ((DEEPEST // 2, 0), (DEEPEST + 1, 1), (100_000, 1)):
        nested = b',"deep":' + b"[" * deep + b"1" + b"]" * deep + b"}\n"
        changed = [*lines[:at], lines[at].rstrip(b"\n")[:-1] + nested, *lines[at + 1 :]]
        assert gf.load_run(damaged(changed)).damaged == left_out


def test_counts_out_of_range_are_not_known(lines, damaged):
    content = (
        b"".join(lines).replace(b'"nan_count":0', b'"nan_count":1e300').replace(b'"inf_count":0', b'"inf_count":-4')
    )
    folder = damaged(content)
    assert gf.diagnose(folder).to_dict()["issues"][0]["evidence"].get("nan", 0) < 2**53
    assert CliRunner().invoke(main, ["report", str(folder), "--format", "json"]).exit_code == 0


def test_names_without_end_are_bounded_and_that_is_noted(lines, damaged):
    at = with_kind(lines, b"end")
    many = [
        b'{"kind":"step","step":%d,"norm":1.0,%b}\n' % (100 + k, b",".join(b'"n%d_%d":1' % (k, j) for j in range(500)))
        for k in range(20)
    ]
    run = gf.load_run(damaged([*lines[:at], *many]))
    assert len(run.names) == MOST_SERIES
    assert run.notes == [f"Only the first {MOST_SERIES:,} series are kept; the file has more."]
    assert len(run.series("norm")) == 40


def test_a_table_that_cannot_be_read_does_not_keep_the_others_from_an_export(lines, damaged, tmp_path):
    at = with_kind(lines, b"look")
    lines[at] = lines[at].replace(b'"sum":[', b'"sum":["x",', 1)
    folder, out = damaged(lines), tmp_path / "layers.csv"
    done = CliRunner().invoke(main, ["export", str(folder), "--to", "csv", "--what", "layers", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "1 torn or damaged line" in done.stderr
    steps = {line.split(",")[0] for line in out.read_text().splitlines()[1:]}
    assert steps == {"4", "8", "12", "16", "17", "20"}  # step 17 has a NaN


# ---- work in the background --------------------------------------------------------------------------------------


def failing_verdict(calls):
    def fail(_run):
        calls.append(1)
        raise ZeroDivisionError("a bug of ours")

    return fail


def test_background_work_of_the_server_fails_once(sound, monkeypatch, caplog):
    calls = []
    monkeypatch.setattr(live_run, "verdict", failing_verdict(calls))
    live = LiveRuns(RunFolder(sound))
    live._start = lambda work: work()
    digest = live.digest(".")
    digest.update()
    with caplog.at_level(logging.ERROR, "gradient_flow"):
        for _ in range(5):
            live.refine(".")
    assert len(calls) == 1
    assert len(caplog.records) == 1


def test_the_verdict_beside_a_terminal_fails_once(sound, monkeypatch, caplog):
    calls = []
    monkeypatch.setattr(live_run, "verdict", failing_verdict(calls))
    monkeypatch.setattr(LiveRun, "_waited", lambda *_, **__: True)
    live = LiveRun(sound)
    live.update()
    with caplog.at_level(logging.ERROR, "gradient_flow"):
        for _ in range(5):
            live.judge_beside()
            live._worker.join()
    assert len(calls) == 1
    assert len(caplog.records) == 1


def test_a_file_that_cannot_be_read_is_not_read_again_until_it_changes(lines, damaged, monkeypatch):
    folder = damaged([lines[0].replace(b'"shape":[6,4]', b'"shape":[-6,4]', 1), *lines[1:]])
    live, reads = LiveRun(folder), []
    update = live.run.update
    monkeypatch.setattr(live.run, "update", lambda: reads.append(1) or update())
    for _ in range(5):
        with pytest.raises(gf.RunFileError, match="a name and a shape"):
            live.update()
    assert len(reads) == 1
    damaged(lines)
    assert live.update()
    assert len(live.run) == 20
