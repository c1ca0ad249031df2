"""Who may write where, what a slow disk costs, and which files can be read."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.record import run_writer
from gradient_flow.record.look import table_line
from gradient_flow.record.run_lines import FORMAT_VERSION
from gradient_flow.record.run_writer import RunWriter

FORMAT_1 = Path(__file__).parent / "format_1"


def write_steps(writer, first, last):
    for step in range(first, last + 1):
        writer.write({"kind": "step", "step": step, "norm": 1.0 / step})


def flushed(writer):
    write_steps(writer, 4, 9)
    writer.flush()


def a_run(folder, steps=3, **settings):
    writer = RunWriter(folder, {"parameters": [], "settings": {}}, **settings)
    write_steps(writer, 1, steps)
    return writer


# ---- one writer for a folder ---------------------------------------------------------------------------------------


def test_a_second_writer_numbers_its_folder_and_says_so(tmp_path):
    first = a_run(tmp_path / "first")
    with pytest.warns(gf.GradientFlowWarning, match=r"first is taken; this run is written to .*first-2"):
        second = a_run(tmp_path / "first", steps=5)
    with pytest.warns(gf.GradientFlowWarning, match="first-3"):
        third = a_run(tmp_path / "first")
    assert [writer.folder.name for writer in (first, second, third)] == ["first", "first-2", "first-3"]
    for writer in (first, second, third):
        writer.close()
    assert (len(gf.load_run(first.folder)), len(gf.load_run(second.folder))) == (3, 5)


def test_the_lock_dies_with_its_process(tmp_path):
    code = f"""
        import time
        from gradient_flow.record.run_writer import RunWriter
        writer = RunWriter({str(tmp_path / "run")!r}, {{"parameters": []}})
        print("written", flush=True)
        time.sleep(120)
    """
    other = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline().strip() == "written"
        with pytest.warns(gf.GradientFlowWarning, match="run-2"):
            a_run(tmp_path / "run").close()
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait(30)
        other.stdout.close()
    writer = a_run(tmp_path / "run")
    assert writer.folder.name == "run"
    writer.close()


def test_a_finished_run_is_continued_or_left_alone_as_asked(tmp_path):
    a_run(tmp_path / "run").close()
    appended = RunWriter(tmp_path / "run", {"parameters": []})
    assert appended.folder.name == "run"
    appended.close()
    with pytest.warns(gf.GradientFlowWarning, match="run-2"):
        numbered = RunWriter(tmp_path / "run", {"parameters": []}, again="number")
    numbered.close()
    assert gf.load_run(tmp_path / "run").headers == 2
    assert gf.load_run(tmp_path / "run-2").headers == 1


def test_an_empty_folder_is_nobodys(tmp_path):
    (tmp_path / "run").mkdir()
    writer = RunWriter(tmp_path / "run", {"parameters": []}, again="number")
    assert writer.folder.name == "run"
    writer.close()


def test_a_run_stays_where_it_began_when_the_script_changes_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = a_run("here")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    write_steps(writer, 4, 5)
    writer.close()
    assert len(gf.load_run(tmp_path / "here")) == 5
    assert writer.path == tmp_path / "here" / "run.jsonl"


# ---- long runs ------------------------------------------------------------------------------------------------------


def test_a_run_split_over_files_is_one_run(tmp_path):
    gradients = {"w": torch.ones(3), "b": torch.ones(1)}
    table = gf.measure(gradients)
    about = [{"name": name, "shape": list(each.shape), "dtype": "float32"} for name, each in gradients.items()]
    whole, split = (
        RunWriter(tmp_path / name, {"parameters": about}, split=size) for name, size in (("whole", 1 << 30), ("s", 400))
    )
    for writer in (whole, split):
        for step in range(1, 21):
            writer.write({"kind": "step", "step": step, "norm": 1.0 / step})
            writer.write(table_line(step, table, list(gradients), None))
        writer.write({"kind": "end", "steps": 20, "status": "stable", "message": "Fine."})
        writer.close()
    assert len(list((tmp_path / "s").glob("run*.jsonl"))) > 5
    assert not list((tmp_path / "whole").glob("run.2.jsonl"))
    one, other = gf.load_run(tmp_path / "whole"), gf.load_run(tmp_path / "s")
    assert other.series("norm").tolist() == one.series("norm").tolist()
    assert other.table_steps == one.table_steps == list(range(1, 21))
    assert other.table(17)["w"].norm == one.table(17)["w"].norm
    assert list(other.records) == list(one.records)
    assert (other.end, other.notes) == (one.end, [])
    assert str(gf.diagnose(tmp_path / "s")) == str(gf.diagnose(tmp_path / "whole"))
    assert other.steps[18]["norm"] == one.steps[18]["norm"]


def test_a_split_run_is_followed_and_resumed(tmp_path):
    writer = a_run(tmp_path, split=200)
    run = gf.load_run(tmp_path)
    write_steps(writer, 4, 9)
    assert run.has_news()
    assert run.update()
    assert len(run) == 9
    writer.close()
    again = RunWriter(tmp_path, {"parameters": []}, split=200)
    write_steps(again, 10, 12)
    again.close()
    run.update()
    assert run.series("step").tolist() == list(range(1, 13))
    assert not run.has_news()
    assert run.headers == 2


# ---- slow and failing disks -----------------------------------------------------------------------------------------


def test_a_slow_file_system_holds_up_one_step_and_no_further(tmp_path, monkeypatch):
    real, delays = os.write, []

    def slow(handle, data):
        time.sleep(0.05)
        delays.append(1)
        return real(handle, data)

    writer = a_run(tmp_path, steps=0)
    monkeypatch.setattr(run_writer.os, "write", slow)
    waited = []
    for step in range(1, 21):
        before = len(delays)
        writer.write({"kind": "step", "step": step, "norm": 1.0})
        waited.append(len(delays) > before and step > 1 and before == len(delays) - 1 and writer._behind is None)
    assert not any(waited)  # from the second on a thread writes
    assert len(delays) < 20
    writer.flush()
    assert len(delays) == 20
    writer.close()
    assert gf.load_run(tmp_path).series("step").tolist() == list(range(1, 21))


def test_memory_stays_bounded_while_a_disk_stalls(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(run_writer, "_MOST_WAITING", 1000)
    monkeypatch.setattr(run_writer.os, "write", lambda handle, data: time.sleep(0.03) or real(handle, data))
    writer = a_run(tmp_path, steps=0)
    most = 0
    for step in range(1, 60):
        writer.write({"kind": "step", "step": step, "norm": 1.0})
        most = max(most, writer._behind._waiting if writer._behind is not None else 0)
    writer.close()
    assert 0 < most < 1200
    assert len(gf.load_run(tmp_path)) == 59


def test_a_disk_that_fails_behind_our_back_costs_one_warning(tmp_path, monkeypatch):
    real = os.write
    writer = a_run(tmp_path, steps=0)
    monkeypatch.setattr(run_writer.os, "write", lambda handle, data: time.sleep(0.03) or real(handle, data))
    write_steps(writer, 1, 3)

    def full(handle, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_writer.os, "write", full)
    with pytest.warns(gf.GradientFlowWarning, match="cannot write .* any more .*training continues") as caught:
        flushed(writer)
    assert len(caught) == 1
    assert not writer.active
    writer.close()


# ---- the format's policy --------------------------------------------------------------------------------------------


def test_a_file_of_the_first_format_still_opens():
    run = gf.load_run(FORMAT_1)
    assert run.header["format"] == 1
    assert run.series("step").tolist() == list(range(1, 11))  # 7 to 9 were repeated after a resume
    assert run.series("lr").tolist() == [0.05] * 10
    assert run.series("lr/1").tolist() == [0.1] * 10
    assert run.table_steps == [1, 3, 6, 9]
    assert run.table(9).names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert run.layers(9)["update_ratio"][0] > 0
    assert [event.kind for event in run.events] == ["end", "resumed", "end"]
    assert gf.diagnose(run).steps == 10
    assert gf.diagnose(run).stored["rule_set"] == 1  # the first format kept a sentence


def test_a_file_of_the_first_format_can_be_continued(tmp_path):
    shutil.copy(FORMAT_1 / "run.jsonl", tmp_path / "run.jsonl")
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=tmp_path) as flow:
        flow._progress.steps = 10
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    run = gf.load_run(tmp_path)
    assert run.last_step == 11
    assert run.table(11)["0.weight"].norm > 0


def test_unknown_kinds_and_unknown_keys_are_ignored(tmp_path):
    writer = a_run(tmp_path)
    writer.write({"kind": "hologram", "step": 2, "colour": [1, {"a": 2}]})
    writer.write({"kind": "step", "step": 4, "norm": 2.0, "mood": "fine", "deep": {"deeper": {"deepest": 1}}})
    writer.close()
    run = gf.load_run(tmp_path)
    assert run.notes == []
    assert run.series("deep/deeper/deepest").tolist()[-1] == 1
    assert run.events[0].kind == "hologram"
    assert run.events[0].data["colour"] == [1, {"a": 2}]
    assert gf.diagnose(run).steps == 4


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 99])
def test_a_newer_major_version_is_refused_in_words(tmp_path, version):
    a_run(tmp_path).close()
    file = tmp_path / "run.jsonl"
    file.write_text(file.read_text().replace(f'"format":{FORMAT_VERSION}', f'"format":{version}'))
    with pytest.raises(gf.RunFileError, match=f"has format {version}; .*reads up to {FORMAT_VERSION}. Upgrade"):
        gf.load_run(tmp_path)


# ---- resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [True, False])
def test_what_lies_after_a_resume_is_dropped_tables_included(tmp_path, told):
    gradients = {"w": torch.ones(3)}
    about = [{"name": "w", "shape": [3], "dtype": "float32"}]
    writer = RunWriter(tmp_path, {"parameters": about})
    for step in range(1, 11):
        writer.write({"kind": "step", "step": step, "norm": float(step)})
        writer.write(table_line(step, gf.measure(gradients), ["w"], None))
    writer.write({"kind": "seen", "step": 9, "probe": "network", "found": {}})
    writer.write({"kind": "forensics", "step": 8, "origin": {"found": True}})
    writer.write({"kind": "resumed", "step": 5} if told else {"kind": "step", "step": 6, "norm": 0.5})
    writer.close()
    run = gf.load_run(tmp_path)
    assert run.series("step").tolist() == [1, 2, 3, 4, 5] + ([] if told else [6])
    assert run.table_steps == [1, 2, 3, 4, 5]
    assert run.found("network") == []
    assert [event.kind for event in run.events] == (["resumed"] if told else [])


def test_of_several_looks_of_a_probe_at_one_step_the_last_counts(tmp_path):
    writer = RunWriter(tmp_path, {"parameters": []})
    for value in range(3):
        writer.write({"kind": "seen", "step": 4, "probe": "network", "found": {"value": value}})
    writer.close()
    assert gf.load_run(tmp_path).found("network") == [(4, {"value": 2})]


def test_a_look_that_is_completed_after_later_steps_is_no_resume(tmp_path):
    writer = RunWriter(tmp_path, {"parameters": [{"name": "w", "shape": [3]}]})
    for step in range(1, 6):
        writer.write({"kind": "step", "step": step, "norm": 1.0})
    writer.write(table_line(3, gf.measure({"w": torch.ones(3)}), ["w"], None))
    writer.close()
    run = gf.load_run(tmp_path)
    assert len(run) == 5
    assert run.table_steps == [3]


# ---- values that cannot be recorded ---------------------------------------------------------------------------------


class Raises:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    "value", ["\ud800", Raises(), {"deep": Raises()}, {Raises: 1}, object(), 10**400, [[[Raises()]]]]
)
def test_a_value_that_cannot_be_recorded_costs_that_value_alone(tmp_path, value):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=tmp_path) as flow:
        for step in range(3):
            model(torch.ones(1, 2)).sum().backward()
            flow.log(loss=0.5, odd=value if step == 1 else 1.0)
            optimizer.step()
    run = gf.load_run(tmp_path)
    assert run.series("loss").tolist() == [0.5] * 3
    assert run.notes == []
    for line in (tmp_path / "run.jsonl").read_bytes().splitlines():
        json.loads(line)


def test_a_name_that_cannot_be_recorded_costs_nothing_else(tmp_path):
    writer = a_run(tmp_path)
    writer.write({"kind": "step", "step": 4, "norm": 1.0, "\ud800": 2.0})
    writer.close()
    assert len(gf.load_run(tmp_path)) == 4
