"""How a run ended, told from its lines and its file."""

import os

import pytest
import torch

import gradient_flow as gf
from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.record.ending import Ending
from gradient_flow.record.run import run_of_lines
from gradient_flow.record.run_writer import RunWriter
from recorded_runs import record
from warm import warm_python

OLD = (1e9, 1e9)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, "finished"),
        (ValueError("x"), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(), "finished"),
        (SystemExit(0), "finished"),
        (SystemExit(3), "failed"),
        (SystemExit("no data"), "failed"),
        (SystemExit(143), "interrupted"),
        (GeneratorExit(), "finished"),
    ],
)
def test_an_exception_tells_the_state(error, state):
    assert Ending.by(error).state == state


def test_an_ending_survives_its_plain_form():
    ending = Ending.by(RuntimeError("CUDA error: device-side assert\n  more"), 41)
    assert Ending.from_dict(ending.to_dict()) == ending
    assert ending.sentence == "The run failed at step 41 with RuntimeError: CUDA error: device-side assert more."
    assert Ending.from_dict({"state": "odd"}) is None
    assert Ending.from_dict("failed") is None


def test_an_exception_that_cannot_be_told_is_still_one():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert Ending.by(Mute(), 3).sentence == "The run failed at step 3 with Mute."


def test_a_file_without_an_end_runs_then_is_silent_and_a_writer_makes_it_run(tmp_path):
    writer = RunWriter(tmp_path, {"started": "2026-01-01T00:00:00+00:00", "parameters": []})
    for step in (1, 2):
        writer.write({"kind": "step", "step": step, "time": 0.0, "norm": 1.0})
    run = gf.load_run(tmp_path)
    assert run.ending.state == "running"
    os.utime(tmp_path / "run.jsonl", OLD)
    assert run.ending.state == "running", "the lock is held: a long evaluation"
    assert "running" in repr(run)
    writer.close()
    assert run.ending.state == "silent"
    assert run.ending.sentence == (
        "Silent since 2001-09-09 01:46 UTC, at step 2: killed, stalled, or in a long evaluation."
    )
    assert "silent" in repr(run)
    assert gf.diagnose(tmp_path).message.endswith(run.ending.sentence)


def test_asking_for_a_writer_does_not_take_the_folder_from_the_next_one(tmp_path):
    RunWriter(tmp_path, {"parameters": []}).close()
    os.utime(tmp_path / "run.jsonl", OLD)
    run = gf.load_run(tmp_path)
    for _ in range(20):
        assert run.ending.state == "silent"
        writer = RunWriter(tmp_path, {"parameters": []})
        assert writer.folder == tmp_path
        writer.close()
        os.utime(tmp_path / "run.jsonl", OLD)


def test_a_file_of_earlier_versions_is_finished_by_its_end():
    lines = [{"kind": "header", "format": 2, "started": "x"}, {"kind": "end", "steps": 3, "status": "stable"}]
    assert run_of_lines(lines).ending == Ending(state="finished", step=3)


@pytest.mark.parametrize(
    "damage", [{"ending": 3}, {"ending": {"state": 3}}, {"ending": {"state": "failed", "step": "x"}}]
)
def test_a_damaged_end_is_an_end(damage):
    run = run_of_lines([{"kind": "header", "format": 2, "started": "x"}, {"kind": "end", **damage}])
    assert run.ending.state in ("finished", "failed")


def test_healthy_is_never_the_last_word_of_a_run_that_failed():
    found = Diagnosis([], steps=41)
    assert found.healthy
    found.ending = Ending(state="failed", error="ValueError", message="bad batch", step=41)
    assert not found.healthy
    assert found.status == "failed"
    said = "The run failed at step 41 with ValueError: bad batch. No other problem found in 41 steps."
    assert found.message == " ".join(str(found).split()) == said  # printed as wide as the terminal
    few = Diagnosis([], steps=1, enough=False)
    few.ending = found.ending
    assert "failed at step 41 with ValueError" in few.message
    assert few.message.endswith("Too few steps for a verdict: 1.")
    assert "Healthy" not in few.message + found.message


def test_of_a_long_message_the_sentence_keeps_the_first_words():
    message = "one of the variables needed has been changed by another operation. " + "Hint: look elsewhere. " * 20
    sentence = Ending(state="failed", error="RuntimeError", message=message, step=1).sentence
    assert sentence.startswith("The run failed at step 1 with RuntimeError: one of the variables needed has been ")
    assert sentence.endswith(" …")
    assert all(word in message for word in sentence.partition(": ")[2].removesuffix(" …").split())


def test_a_verdict_on_an_interrupted_run_says_both():
    found = Diagnosis([], steps=41)
    found.ending = Ending(state="interrupted", step=41)
    assert found.healthy
    assert found.message == "Healthy: no issue found in 41 steps. The run was interrupted at step 41."


SCRIPT = """
import sys, torch
import gradient_flow as gf
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
flow = gf.watch(model, optimizer, run=sys.argv[1])
for step in range(5):
    optimizer.zero_grad(); model(torch.randn(8, 4)).square().mean().backward(); optimizer.step()
{last}
"""


@pytest.mark.parametrize(
    ("last", "state", "sentence"),
    [
        ("", "finished", ""),
        (
            "raise ValueError('password=abc')",
            "failed",
            "The run failed at step 5 with ValueError: password=<redacted>.",
        ),
        ("raise KeyboardInterrupt", "interrupted", "The run was interrupted at step 5."),
        ("try:\n    1 / 0\nexcept ZeroDivisionError: pass", "finished", ""),
        ("flow.close()\nraise ValueError", "finished", ""),
        ("hook = sys.excepthook\nassert hook is sys.__excepthook__\ndel flow", "finished", ""),
        ("import os; os._exit(1)", "silent", None),
    ],
)
def test_a_script_that_closes_nothing(tmp_path, last, state, sentence):
    warm_python("-c", SCRIPT.format(last=last), tmp_path / "run", cwd=tmp_path)
    os.utime(tmp_path / "run" / "run.jsonl", OLD)
    run = gf.load_run(tmp_path / "run")
    assert run.ending.state == state
    assert len(run) == 5
    if sentence is not None:
        assert run.ending.sentence == sentence


def test_a_block_that_raises_has_failed_in_file_and_memory_alike(tmp_path):
    flows = []

    def crash(where):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with gf.watch(model, optimizer, run=where) as flow:
            flows.append(flow)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()
            raise ValueError("boom")

    said = set()
    for where in (tmp_path / "run", None):
        with pytest.raises(ValueError, match="boom"):
            crash(where)
        flow = flows[-1]
        said |= {flow.diagnose().message, flow.run.ending.sentence + " No other problem found in 3 steps and 1 look."}
    said |= {gf.diagnose(tmp_path / "run").message}
    assert said == {"The run failed at step 3 with ValueError: boom. No other problem found in 3 steps and 1 look."}


def test_a_run_that_goes_on_after_a_failure_is_judged_by_its_last_process(tmp_path):
    record(tmp_path, steps=6)
    lines = (tmp_path / "run.jsonl").read_bytes().splitlines(keepends=True)
    end = lines[-1].replace(b'"state":"finished"', b'"state":"failed","error":"OSError"')
    (tmp_path / "run.jsonl").write_bytes(b"".join([*lines[:-1], end]))
    assert gf.load_run(tmp_path).ending.failed
    record(tmp_path, steps=6)
    assert gf.load_run(tmp_path).ending.state == "finished"
