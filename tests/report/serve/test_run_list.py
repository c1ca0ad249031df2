"""The list of runs: what is sick, of what, where, since when; found by words and settings, before and after judging."""

import time

import pytest

import gradient_flow as gf
from browser import browser  # noqa: F401
from fleet_runs import LAYERS, NAN_AT, write_fleet, write_run
from gradient_flow.report.serve import live_runs, run_list
from gradient_flow.report.serve.live_runs import LiveRuns
from gradient_flow.report.serve.run_ids import RunFolder
from gradient_flow.report.serve.server import DashboardServer

PATIENCE = 30.0


def judged(live):
    """The list once every verdict is taken."""
    live.facts()
    live._start = lambda work: work()
    live.judge_listed()
    entries, settings = live.facts()
    return {entry["name"]: entry for entry in entries}, settings


def test_every_run_is_listed_with_its_issue(tmp_path):
    write_run(tmp_path / "fine", lr=0.01, width=64)
    write_run(tmp_path / "bad", "nan", lr=0.1, width=64)
    write_run(tmp_path / "deep", "vanish", lr=0.01, width=32)
    write_run(tmp_path / "broken", error="OutOfMemoryError")
    live = LiveRuns(RunFolder(tmp_path))
    before, _ = live.facts()
    assert [entry["level"] for entry in before] == [None] * 4
    assert {entry["name"]: entry["lr"] for entry in before}["bad"] == 0.1, "known from the last line"
    runs, settings = judged(live)
    assert {name: run["level"] for name, run in runs.items()} == {
        "fine": "healthy",
        "bad": "critical",
        "deep": "high",
        "broken": "failed",
    }
    assert (runs["bad"]["type"], runs["bad"]["cause"], runs["bad"]["since"]) == ("NUMERICAL", "loss_nonfinite", NAN_AT)
    assert (runs["deep"]["cause"], runs["deep"]["layer"]) == ("vanishing", LAYERS[0])
    assert runs["broken"]["cause"] == "OutOfMemoryError"
    assert runs["fine"]["loss"] == pytest.approx(gf.load_run(tmp_path / "fine").series("loss")[-1])
    assert set(settings) == {"lr", "config width"}
    values = dict(zip(settings, runs["bad"]["settings"], strict=True))
    assert values == {"lr": "0.1", "config width": "64"}
    assert runs["broken"]["settings"][settings.index("config width")] is None


def test_levels_are_those_of_the_page(tmp_path):
    from gradient_flow.report.headline import verdict_data

    for kind in ("healthy", "nan", "vanish"):
        write_run(tmp_path / kind, kind)
    write_run(tmp_path / "short", steps=1)
    write_run(tmp_path / "failed", error="ValueError")
    runs, _ = judged(LiveRuns(RunFolder(tmp_path)))
    for name, run in runs.items():
        assert run["level"] == verdict_data(gf.diagnose(tmp_path / name))["level"], name


def test_a_run_whose_page_was_complete_at_once_is_judged_in_the_list_too(tmp_path):
    write_run(tmp_path / "fine")
    write_run(tmp_path / "bad", "nan")
    live = LiveRuns(RunFolder(tmp_path))
    held = [live.digest(entry["id"]) for entry in live.facts()[0]]  # open pages
    for digest in held:
        digest.update()
        digest.diagnosis(at_once=False)
        while digest.pending:
            digest.read_some()
    assert all(digest.complete for digest in held)
    runs, _ = judged(live)
    assert {name: run["level"] for name, run in runs.items()} == {"fine": "healthy", "bad": "critical"}


def test_what_a_fleet_has_read_is_not_read_again(tmp_path, monkeypatch):
    write_fleet(tmp_path, 8)
    anew, _ = judged(LiveRuns(RunFolder(tmp_path)))
    gf.fleet(tmp_path, workers=0).close()
    grown = tmp_path / "sweep1" / "run001" / "run.jsonl"
    with grown.open("ab") as file:
        file.write(b'{"kind":"step","step":61,"time":6.1,"norm":1.0,"nan_count":0,"loss":0.1,"lr":[0.01]}\n')
    opened, read = [], []
    facts, make = run_list._facts, live_runs.make_digests

    def counting(files, workers):
        read.extend(files)
        return make(files, workers)

    monkeypatch.setattr(run_list, "_facts", lambda file: opened.append(file) or facts(file))
    monkeypatch.setattr(live_runs, "make_digests", counting)
    live = LiveRuns(RunFolder(tmp_path))
    first, _ = live.facts()
    assert opened == [grown]
    known = {run["name"]: run for run in first}
    assert known.pop("sweep1/run001")["level"] is None
    same = ("level", "type", "cause", "layer", "since", "status", "last_step", "seconds", "started", "lr")
    for name, run in known.items():
        assert {key: run[key] for key in same} == {key: anew[name][key] for key in same}
    runs, _ = judged(live)
    assert read == [str(grown)]
    assert runs["sweep1/run001"]["level"] == "healthy"


def test_very_many_are_judged_in_a_process_beside_the_server(tmp_path, monkeypatch):
    write_fleet(tmp_path, 6)
    monkeypatch.setattr(live_runs, "FEW", 3)
    asked, make = [], live_runs.make_digests
    monkeypatch.setattr(live_runs, "make_digests", lambda files, workers: asked.append(workers) or make(files, workers))
    runs, _ = judged(LiveRuns(RunFolder(tmp_path)))
    assert asked == [1]
    assert runs["sweep0/run000"]["cause"] == "vanishing"


def names(browser):  # noqa: F811
    return [each.text for each in browser.all("#runs-table tbody th button")]


def enter(browser, text):  # noqa: F811
    browser.js("const f = GF.el('runs-filter'); f.value = arguments[0]; f.dispatchEvent(new Event('input'))", text)
    return set(names(browser))


def sort(browser, by):  # noqa: F811
    browser.js("const s = GF.el('runs-sort'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))", by)
    return names(browser)


def test_the_list_in_a_browser(tmp_path, browser, monkeypatch):  # noqa: F811
    import threading

    rates = {"fine": 0.001, "bad": 0.1, "deep": 0.01}
    for name, kind in {"fine": "healthy", "bad": "nan", "deep": "vanish"}.items():
        write_run(tmp_path / name, kind, lr=rates[name], data=name[0])
    may_judge = threading.Event()
    judge = LiveRuns._judge_listed
    monkeypatch.setattr(LiveRuns, "_judge_listed", lambda self: may_judge.wait(PATIENCE) and judge(self))
    server = DashboardServer(tmp_path, port=0)
    ready = threading.Event()
    thread = threading.Thread(target=server.serve, args=(ready.set,))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        browser.open(server.url, ready=False)
        browser.wait(lambda: len(names(browser)) == 3, "the runs are listed")
        cells = [each.text for each in browser.all("#runs-table tbody td:nth-child(3)")]
        assert cells == ["judging…"] * 3
        assert enter(browser, "judging") == set(rates)
        may_judge.set()
        time.sleep(0.2)
        browser.wait(
            lambda: browser.js("return GF.loadRuns().then(runs => runs.every(run => run.level))"), "all are judged"
        )
        assert enter(browser, "vanish") == {"deep"}
        assert enter(browser, "lr > 0.003") == {"bad", "deep"}
        assert enter(browser, "lr>0.003 lr<=0.01") == {"deep"}
        assert enter(browser, "data=f") == {"fine"}
        assert enter(browser, "data!=f nan") == set()
        assert enter(browser, "numerical critical") == {"bad"}
        assert enter(browser, "since >= 31") == {"bad"}
        assert enter(browser, "") == set(rates)
        assert sort(browser, "lr") == ["bad", "deep", "fine"]
        assert sort(browser, "level")[0] == "bad"
        assert sort(browser, "loss")[-1] == "bad", "a loss that is not finite comes last"
        row = next(each for each in browser.all("#runs-table tbody tr") if "deep" in each.text)
        assert "vanishing in block.0.weight" in row.text
        assert browser.accessibility_findings() == []
        assert browser.complaints() == []
    finally:
        may_judge.set()
        server.stop()
        thread.join(PATIENCE)
