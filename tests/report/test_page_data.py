"""The data of a page against a plain reading of the whole file: same numbers, and no extreme lost."""

import base64
import json
import math
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import gradient_flow as gf
from gradient_flow.errors import InputError, RunFileError
from gradient_flow.record.look import table_line
from gradient_flow.record.run_writer import RunWriter
from gradient_flow.record.thinning import RULES, LayerThinning
from gradient_flow.report import live_run
from gradient_flow.report.data import layer_data, page_data
from gradient_flow.report.live_run import LiveRun

NAMES = ["enc.weight", "enc.bias", "<img src=x onerror=alert(1)>", "head.weight"]
SHAPES = [[4, 3], [4], [5, 2], [2, 6]]
STATISTICS = {
    "norm": "norm",
    "mean": "mean",
    "std": "std",
    "min": "min",
    "max": "max",
    "zero_fraction": "zero_fraction",
}


def gradients(random, scale=1.0):
    return {name: scale * random.standard_normal(shape) for name, shape in zip(NAMES, SHAPES, strict=True)}


def header(**more):
    parameters = [{"name": n, "shape": s, "dtype": "float64"} for n, s in zip(NAMES, SHAPES, strict=True)]
    told = {"version": "0", "torch": "2", "python": "3", "started": "2026-01-01T00:00:00+00:00"}
    return told | {"settings": {"every": 1, "layers_every": 1}, "parameters": parameters, "groups": {}} | more


def step_record(step, table, **more):
    total = table.total
    record = {"kind": "step", "step": step, "time": 0.5 * step, "norm": total.norm, "linf": total.linf}
    record |= {"nan_count": total.nan_count, "inf_count": total.inf_count, "lr": [0.1, 0.01]}
    bad = [name for name, finite in zip(table.names, table.finite, strict=True) if not finite]
    return record | ({"nonfinite_layers": bad} if bad else {}) | more


def write_steps(writer, steps, layers_every=1, seed=0, plant=None):
    """Real tables of random gradients. `plant(step, gradients)` changes them in place and may return more to record."""
    random = np.random.default_rng(seed)
    for step in steps:
        values = gradients(random)
        more = (plant(step, values) if plant else None) or {}
        table = gf.measure(values)
        writer.write(step_record(step, table, **{"loss": 1 / step, **more}))
        if step % layers_every == 0:
            writer.write(table_line(step, table, NAMES, random.uniform(1e-4, 1e-2, len(NAMES))))


def write_run(folder, steps=20, end=True, **more):
    writer = RunWriter(folder, header())
    write_steps(writer, range(1, steps + 1), **more)
    if end:
        writer.write({"kind": "end", "steps": steps, "status": "stable", "message": "Nothing to say."})
    writer.close()
    return folder


def matrix(page, name):
    packed = page["layers"]["matrix"][name]
    return np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(packed["shape"])


def naive_matrices(run, steps):
    """Statistic → (tensors, tables), by `Run.table`, one step after another."""
    tables = [run.table(step) for step in steps]
    found = {name: np.array([getattr(t, name) for t in tables]).T for name in STATISTICS}
    found = {name: np.where(np.isfinite(values), values, np.nan) for name, values in found.items()}
    found["nonfinite"] = np.array([np.asarray(t.nan_count) + np.asarray(t.inf_count) for t in tables], dtype=float).T
    found["update_ratio"] = np.array([run.layers(step)["update_ratio"] for step in steps], dtype=float).T
    return found


def merged(values, groups, rule):
    """Columns merged one by one, the plain way; NaN where a group has nothing."""
    columns = []
    for group in groups:
        part = values[:, group]
        column = []
        for row in part:
            kept = [value for value in row.tolist() if not math.isnan(value)]
            choose = {
                "max": max,
                "min": min,
                "sum": sum,
                "largest": lambda v: max(v, key=lambda each: (abs(each), each)),
            }[rule]
            column.append(choose(kept) if kept else math.nan)
        columns.append(column)
    return np.array(columns).T


def groups_of(page_part, steps):
    pairs = zip(page_part["first"], page_part["step"], strict=True)
    return [[at for at, step in enumerate(steps) if first <= step <= last] for first, last in pairs]


def plant_nan(where):
    def plant(step, values):
        if step == where:
            values["head.weight"][0, 0] = math.nan

    return plant


@pytest.mark.parametrize(("steps", "columns", "cells"), [(20, 1000, 400_000), (53, 7, 400_000), (53, 40, 4 * 9)])
def test_a_page_shows_what_a_plain_reading_finds(tmp_path, steps, columns, cells):
    folder = write_run(tmp_path / "run", steps, layers_every=2, plant=plant_nan(14))
    run, page = gf.load_run(folder), page_data(folder, columns=columns, cells=cells)
    series, layers = page["series"], page["layers"]
    assert len(series["step"]) <= columns
    assert len(layers["step"]) * len(NAMES) <= cells
    assert len(layers["step"]) <= columns
    numbers = [record["step"] for record in run.steps]
    in_series = groups_of(series, numbers)
    assert sum(map(len, in_series)) == steps, "every step is in one column"
    for name in ("norm", "loss", "lr", "lr/1", "linf"):
        naive = run.series(name)[None]
        for rule in ("max", "min"):
            shown = np.array([series["lines"][name][rule]], dtype=float)
            np.testing.assert_array_equal(shown, merged(naive, in_series, rule))
    assert series["nonfinite"] == [sum(numbers[at] == 14 for at in group) for group in in_series]
    in_layers = groups_of(layers, run.table_steps)
    assert sum(map(len, in_layers)) == len(run.table_steps)
    naive_all = naive_matrices(run, run.table_steps)
    for name, rule in RULES.items():
        expected = merged(naive_all[name], in_layers, rule)
        np.testing.assert_allclose(matrix(page, name), expected, rtol=1e-6, atol=1e-12, err_msg=name)
    assert layers["names"] == NAMES
    assert page["truth"]["downsampled"] is (columns < 1000)
    assert page["truth"]["complete"]


@settings(max_examples=60, deadline=None)
@given(
    values=arrays(np.float32, st.tuples(st.integers(1, 70), st.just(3)), elements=st.floats(-10, 10, width=32)),
    absent=st.floats(0, 0.9),
    limit=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 70), max_size=6),
)
def test_thinning_is_the_same_however_the_tables_come(values, absent, limit, cuts):
    random = np.random.default_rng(len(values))
    values = np.where(random.random(values.shape) < absent, np.float32(np.nan), values)
    block = dict.fromkeys(RULES, values)
    steps = 10 * np.arange(1, len(values) + 1)
    thinning = LayerThinning(limit)
    places = sorted({0, *(cut for cut in cuts if cut < len(values)), len(values)})
    for low, high in pairwise(places):
        thinning.extend(steps[low:high], {name: part[low:high] for name, part in block.items()})
        assert len(thinning.columns.first) <= limit
    columns = thinning.columns
    assert len(columns.first) == -(-len(values) // thinning.stride)
    groups = groups_of({"first": columns.first, "step": columns.last}, steps)
    for name, rule in RULES.items():
        np.testing.assert_allclose(columns.values[name].T, merged(values.T, groups, rule), rtol=1e-5, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(steps=st.integers(1, 400), columns=st.integers(1, 50), data=st.data())
def test_a_spike_and_a_nan_of_one_step_stay_visible(tmp_path_factory, steps, columns, data):
    spike, bad = (data.draw(st.integers(1, steps)) for _ in range(2))
    folder = tmp_path_factory.mktemp("run")
    writer = RunWriter(folder, header())
    table = gf.measure({name: np.ones(shape) for name, shape in zip(NAMES, SHAPES, strict=True)})
    tall = gf.measure({name: 1e6 * np.ones(shape) for name, shape in zip(NAMES, SHAPES, strict=True)})
    sick = gf.measure({name: np.full(shape, np.nan) for name, shape in zip(NAMES, SHAPES, strict=True)})
    for step in range(1, steps + 1):
        now = sick if step == bad else tall if step == spike else table
        writer.write(step_record(step, now))
        writer.write(table_line(step, now, NAMES, None))
    writer.close()
    page = page_data(folder, columns=columns, cells=columns * len(NAMES))
    for part in (page["series"], page["layers"]):
        assert len(part["step"]) <= columns
        assert part["first"][0] == 1
        assert part["step"][-1] == steps
    at = next(k for k, last in enumerate(page["series"]["step"]) if last >= bad)
    assert page["series"]["nonfinite"] == [int(k == at) for k in range(len(page["series"]["step"]))]
    at = next(k for k, last in enumerate(page["layers"]["step"]) if last >= bad)
    assert (matrix(page, "nonfinite")[:, at] > 0).all()
    assert any(event["kind"] == "nonfinite" and event["step"] == bad for event in page["events"])
    if spike != bad:
        at = next(k for k, last in enumerate(page["series"]["step"]) if last >= spike)
        assert page["series"]["lines"]["norm"]["max"][at] == pytest.approx(tall.total.norm)
        at = next(k for k, last in enumerate(page["layers"]["step"]) if last >= spike)
        np.testing.assert_allclose(matrix(page, "norm")[:, at], tall.norm, rtol=1e-6)


def resumed_run(folder):
    """Killed within a line at step 40, resumed from 25 with the parameters told in another order, then one joins."""
    writer = RunWriter(folder, header())
    write_steps(writer, range(1, 41))
    writer.close()
    with writer.path.open("ab") as file:
        file.write(b'{"kind":"step","step":41,"no')
    turned = header()["parameters"][::-1]
    writer = RunWriter(folder, header(parameters=turned, started="2026-01-02T00:00:00+00:00"))
    writer.write({"kind": "resumed", "step": 25})
    known = [parameter["name"] for parameter in turned]
    random = np.random.default_rng(7)
    for step in range(26, 61):
        if step == 50:
            known = [*known, "late.weight"]
            writer.write(
                {"kind": "parameters", "parameters": [{"name": "late.weight", "shape": [3], "dtype": "float64"}]}
            )
        values = gradients(random, scale=3.0)
        values = {name: values.get(name, np.full(3, 0.25)) for name in known if step % 3 or name != "enc.bias"}
        table = gf.measure(values)
        writer.write(step_record(step, table))
        writer.write(table_line(step, table, known, None))
    writer.close()
    return folder


def test_a_resumed_run_shows_the_repetition_in_place_of_what_it_repeats(tmp_path):
    folder = resumed_run(tmp_path / "run")
    run, page = gf.load_run(folder), page_data(folder)
    assert page["series"]["step"] == list(range(1, 61)) == [record["step"] for record in run.steps]
    np.testing.assert_array_equal(page["series"]["lines"]["norm"]["max"], run.series("norm"))
    assert page["layers"]["names"] == [*NAMES, "late.weight"]
    norms = matrix(page, "norm")
    for at, step in enumerate(page["layers"]["step"]):
        naive = dict(zip(run.table(step).names, run.table(step).norm.tolist(), strict=True))
        expected = [naive.get(name, math.nan) for name in page["layers"]["names"]]
        np.testing.assert_allclose(norms[:, at], expected, rtol=1e-6)
    assert page["run"]["notes"] == run.notes
    assert [event["step"] for event in page["events"] if event["kind"] == "resumed"] == [25]
    assert page["run"]["seconds"] == 20 + 30, "of both parts"


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.floats(0, 1), max_size=8), limit=st.sampled_from([4, 16, 64]))
def test_following_a_growing_file_ends_where_reading_it_at_once_does(tmp_path_factory, cuts, limit):
    whole = resumed_run(tmp_path_factory.mktemp("whole")) / "run.jsonl"
    content = whole.read_bytes()
    grown = tmp_path_factory.mktemp("grown") / "run.jsonl"
    grown.write_bytes(content[:2000])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_run, "KEPT_COLUMNS", limit)
        digest = LiveRun(grown)
        for cut in [*sorted(int(share * len(content)) for share in cuts), len(content)]:
            with grown.open("ab") as file:
                file.write(content[grown.stat().st_size : cut])
            page_data(digest, live=True)
        pages = [page_data(digest), page_data(whole)]
    for page in pages:
        page["run"]["name"] = None
    assert pages[0] == pages[1]


def spikes(step, values):
    if step % 9 == 0:
        for value in values.values():
            value *= 1e3


def vanishing(step, values):
    for value in values.values():
        value *= 10 ** (-step / 40)
    return {"loss": 1.0}


def nan_in_two(step, values):
    if step == 31:  # the one nearest to the output is named, so the order of layers counts
        values["enc.weight"][0, 0] = values["head.weight"][0, 0] = math.nan


def nan_without_names(step, values):
    return {"nan_count": int(step == 44), "inf_count": 0}


def dead(step, values):
    values["enc.weight"][:] = 0.0


def clipped(step, values):
    return {"clipped_norm": 0.1, "clip_threshold": 0.1}


def followed(folder):
    """The verdict of one who follows the run."""
    live = LiveRun(folder)
    live.update()
    return live.diagnosis(at_once=False)


@pytest.mark.parametrize(
    "plant", [None, plant_nan(57), nan_in_two, nan_without_names, spikes, vanishing, dead, clipped]
)
@pytest.mark.parametrize("steps", [1, 200])
def test_the_verdict_is_that_of_diagnose(tmp_path, plant, steps):
    folder = write_run(tmp_path / "run", steps, plant=plant, layers_every=1)
    diagnosis, verdict = gf.diagnose(folder), page_data(folder)["verdict"]
    assert followed(folder).to_dict() == diagnosis.to_dict()
    assert [(i["type"], i["severity"], i["first_step"], i["text"]) for i in verdict["issues"]] == [
        (i.issue_type.name, i.severity.name, i.step, i.message) for i in diagnosis
    ]
    if plant is None:
        assert verdict["level"] == ("unknown" if steps == 1 else "healthy")
    elif steps > 1:
        assert verdict["level"] == diagnosis[0].severity.name.lower()
        assert diagnosis[0].message in verdict["sentence"]


def test_the_verdict_of_two_optimizers_and_a_resumed_run_is_that_of_diagnose(tmp_path):
    def two(step, values):
        spikes(step, values)
        return {"optimizer": step % 2}

    for folder in (write_run(tmp_path / "two", 120, plant=two), resumed_run(tmp_path / "resumed")):
        assert followed(folder).to_dict() == gf.diagnose(folder).to_dict()


def test_a_long_run_answers_at_once_with_a_sample_and_says_so(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", 120, plant=lambda step, values: spikes(9 if step == 77 else 1, values))
    monkeypatch.setattr(live_run, "SAMPLE", 10)
    monkeypatch.setattr(live_run, "LONG", 50)
    digest = LiveRun(folder)
    early = page_data(digest, live=True)
    assert not early["truth"]["complete"]
    assert "10 of 120 tables" in early["truth"]["text"]
    assert early["verdict"]["level"] == "unknown"
    assert "follows" in early["verdict"]["sentence"]
    assert early["series"] == page_data(folder)["series"], "the curves are whole from the start"
    assert (early["layers"]["first"][0], early["layers"]["step"][-1]) == (1, 120)
    assert matrix(early, "norm").max() == matrix(page_data(folder), "norm").max(), "the table of the spike is in it"
    digest.judge()
    digest.layers(at_once=False)
    assert digest.complete
    assert page_data(digest, live=True) == page_data(folder)


def test_one_tensor_is_the_row_of_the_matrix(tmp_path):
    folder = write_run(tmp_path / "run", 30, plant=plant_nan(9))
    page, digest = page_data(folder), LiveRun(folder)
    digest.update()
    for row, name in enumerate(NAMES):
        layer = layer_data(digest, name)
        assert layer["step"] == page["layers"]["step"]
        for statistic, values in layer["stats"].items():
            np.testing.assert_array_equal(np.array(values, dtype=np.float32), matrix(page, statistic)[row])
    with pytest.raises(KeyError, match="no such"):
        layer_data(digest, "no such")


def test_events_are_stretches_in_the_order_of_steps(tmp_path):
    def plant(step, values):
        more = {"skipped_steps": 2 if step >= 33 else 0, "amp_scale": 1024.0}
        if 5 <= step < 15 or step == 40:
            more |= {"clipped_norm": 1e-3}
        if 20 <= step < 23:
            values["enc.bias"][0] = math.inf
            more |= {"guard": "skip"}
        return more

    page = page_data(write_run(tmp_path / "run", 50, plant=plant))
    events = [(event["step"], event["last_step"], event["kind"]) for event in page["events"]]
    assert events == [
        (5, 14, "clip"),
        (20, 22, "nonfinite"),
        (20, 22, "skip"),
        (33, 33, "skip"),
        (40, 40, "clip"),
        (50, 50, "end"),
    ]
    assert page["events"][1]["layers"] == ["enc.bias"]
    assert "`enc.bias`" in page["events"][1]["text"]
    assert sum(page["series"]["clipped"]) == 11
    assert sum(page["series"]["skipped"]) == 3 + 2
    assert page["events_total"] == 6


def test_the_list_of_events_is_bounded_and_counts_all(tmp_path):
    writer = RunWriter(tmp_path / "run", header())
    for step in range(1, 2501):
        bad = {"nan_count": 1, "nonfinite_layers": ["enc.bias"]} if step % 2 else {}
        writer.write({"kind": "step", "step": step, "time": 0.0, "norm": 1.0, **bad})
    writer.close()
    page = page_data(tmp_path / "run")
    assert (len(page["events"]), page["events_total"]) == (1000, 1250)
    assert page["events"][-1]["step"] == 2499


def test_the_state_of_a_run(tmp_path):
    folder = write_run(tmp_path / "run", 3, end=False)
    assert page_data(folder)["run"]["status"] == "running"
    os.utime(folder / "run.jsonl", (1e9, 1e9))
    killed = page_data(folder)["run"]
    assert killed["status"] == "silent"
    assert "2001-09-09" in killed["message"]
    digest = LiveRun(folder)
    writer = RunWriter(folder, header())
    writer.write({"kind": "end", "steps": 3, "status": "nan", "message": "It went wrong."})
    finished = page_data(digest)["run"]
    assert (finished["status"], finished["message"]) == ("finished", None)
    writer.write({"kind": "header", "format": 1, **header()})
    writer.close()
    assert page_data(digest)["run"]["status"] == "running", "taken up again"


def test_a_run_without_steps_has_a_page(tmp_path):
    RunWriter(tmp_path / "run", header()).close()
    page = page_data(tmp_path / "run")
    assert page["series"]["step"] == page["layers"]["step"] == page["events"] == []
    assert page["run"]["last_step"] is None
    assert page["verdict"]["level"] == "unknown"
    assert matrix(page, "norm").shape == (len(NAMES), 0)


def test_the_data_is_strict_json_and_names_are_as_they_were_written(tmp_path):
    def plant(step, values):
        values["head.weight"][0, 0] = math.inf
        nested = {
            "acc": {"top1": 0.5, "top5": None},
            "note": "text",
            "flag": True,
            "many": list(range(100)),
            "big": 2**63,
        }
        return nested if step > 1 else {"later": "only words"}

    page = page_data(write_run(tmp_path / "run", 4, plant=plant))
    text = orjson.dumps(page)
    assert json.loads(text, parse_constant=pytest.fail) == page
    assert NAMES[2] in page["layers"]["names"]
    lines = page["series"]["lines"]
    assert lines["acc/top1"]["max"] == [None, 0.5, 0.5, 0.5]
    assert lines["flag"]["max"][-1] == 1
    assert lines["big"]["max"][-1] == 2**63
    assert "many/31" in lines
    assert not {"note", "later", "many/32", "kind", "step", "time"} & lines.keys()


def test_a_file_that_was_replaced_is_read_from_its_start(tmp_path):
    folder = write_run(tmp_path / "run", 30)
    digest = LiveRun(folder)
    page_data(digest)
    other = write_run(tmp_path / "other", 12, seed=5)
    os.replace(other / "run.jsonl", folder / "run.jsonl")
    assert page_data(digest) == page_data(folder)
    (folder / "run.jsonl").write_bytes((folder / "run.jsonl").read_bytes()[:4000])
    assert page_data(digest) == page_data(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"", "no complete record yet"),
        (b'{"kind":"head', "no complete record yet"),
        (b"step,norm\n1,2\n", "is not a run file"),
        (b'{"kind":"header","format":99}\n', "Upgrade gradient-flow"),
    ],
)
def test_what_is_no_run_is_refused_in_the_words_of_load_run(tmp_path, content, said):
    if content is not None:
        (tmp_path / "run.jsonl").write_bytes(content)
    with pytest.raises(RunFileError, match=said) as ours:
        page_data(tmp_path)
    with pytest.raises(RunFileError) as theirs:
        gf.load_run(tmp_path)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("bad", [{"columns": 0}, {"cells": -1}, {"columns": 2.5}, {"columns": True}])
def test_limits_are_checked(tmp_path, bad):
    with pytest.raises(InputError, match=f"`{next(iter(bad))}` must be an integer"):
        page_data(tmp_path, **bad)


def test_what_is_kept_does_not_grow_with_the_run():
    thinning = LayerThinning(64)
    for start in range(0, 100_000, 1000):
        block = dict.fromkeys(RULES, np.full((1000, 5), start, dtype=np.float32))
        thinning.extend(np.arange(start, start + 1000), block)
        assert sum(values.nbytes for values in thinning._store.values.values()) <= 64 * 5 * 4 * len(RULES)
    assert thinning.columns.values["norm"].max() == 99_000


def test_a_page_needs_no_torch(tmp_path):
    write_run(tmp_path / "run", 3)
    code = "import sys, gradient_flow.report.data as p\np.page_data(sys.argv[1])\nprint('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
