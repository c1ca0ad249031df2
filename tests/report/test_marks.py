"""Marks on curves: each stands at the step at which it happened."""

import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.record.run import run_of_lines
from gradient_flow.report import marks
from gradient_flow.report.data import page_data
from gradient_flow.report.events import run_events
from gradient_flow.report.marks import KINDS, MOST

EPOCH = 25


def eventful_run(folder, steps=100):
    """A rate raised at 41, a spike at 60 that is clipped, a layer cut off at 71, epochs of 25 steps, two looks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    x = torch.randn(32, 8)
    with gf.watch(model, optimizer, run=folder, layers_every=1, looks=[3, 6], budget=1.0) as flow:
        for step in range(1, steps + 1):
            if step == 41:
                optimizer.param_groups[0]["lr"] = 0.01
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), x[:, :1]) * (1000 if step == 60 else 1)
            flow.log(loss=loss.item(), epoch=(step - 1) // EPOCH)
            loss.backward()
            if step >= 71:
                model[0].weight.grad.zero_()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
    return folder


def marks_of(run):
    found = {}
    for mark in page_data(run)["marks"]:
        found.setdefault(mark["kind"], []).append(mark)
    return found


def test_every_kind_is_marked_at_its_step(tmp_path):
    found = marks_of(eventful_run(tmp_path))
    assert [mark["step"] for mark in found["rate"]] == [41]
    assert found["rate"][0]["text"] == "The learning rate was raised from 0.001 to 0.01 (10 times) at step 41."
    assert [mark["step"] for mark in found["spike"]] == [60]
    assert [mark["step"] for mark in found["clip"]] == [60]
    assert [mark["step"] for mark in found["zero"]] == [71]
    assert found["zero"][0]["text"] == "The gradient of `0.weight` became exactly zero."
    assert [mark["step"] for mark in found["epoch"]] == [26, 51, 76]
    assert [mark["step"] for mark in found["look"]] == [3, 6, 42]
    assert "learning rate" in found["look"][2]["text"]  # it asked for a look
    assert found.keys() <= KINDS.keys()


def test_a_quiet_run_has_none_and_steps_that_were_skipped_are_one_stretch(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = gf.GradientManager(gf.GradientConfig(nonfinite="skip", max_grad_norm=1e9))
    with gf.watch(model, optimizer, run=tmp_path, looks=False, manager=manager):
        for step in range(1, 31):
            optimizer.zero_grad()
            (model(torch.ones(1, 2)).sum() * (float("nan") if step in (11, 12) else 1.0)).backward()
            optimizer.step()
    found = marks_of(tmp_path)
    assert found.keys() == {"skip"}
    assert [(mark["step"], mark["last"]) for mark in found["skip"]] == [(11, 12)]


def test_of_many_epochs_the_marks_are_bounded_and_one_that_falls_back_is_no_axis(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for name, epoch_of in (("many", lambda step: step), ("back", lambda step: step % 7)):
        with gf.watch(model, optimizer, run=tmp_path / name, looks=False) as flow:
            for step in range(MOST + 50):
                optimizer.zero_grad()
                flow.log(epoch=epoch_of(step))
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
    assert len(marks_of(tmp_path / "many")["epoch"]) == MOST
    assert page_data(tmp_path / "back")["series"]["epoch"] is None
    assert "epoch" not in marks_of(tmp_path / "back")


def run_of_norms(norms, *more):
    header = {"kind": "header", "format": 2, "parameters": []}
    steps = [{"kind": "step", "step": at + 1, "norm": norm} for at, norm in enumerate(norms)]
    return run_of_lines([header, *steps, *more])


def test_a_long_run_has_the_marks_of_the_spikes_in_all_of_it(monkeypatch):
    norms = [1.0 + 0.1 * (at % 7) for at in range(1000)]
    for at in (150, 500, 501, 998):
        norms[at] = 80.0
    short = marks_of(run_of_norms(norms))["spike"]
    monkeypatch.setattr(marks, "_SEARCHED", 100)
    long = marks_of(run_of_norms(norms))["spike"]
    assert [mark["step"] for mark in long] == [151, 501, 502, 999]
    assert long == short


def test_a_long_quiet_run_has_no_spike(monkeypatch):
    monkeypatch.setattr(marks, "_SEARCHED", 100)
    assert "spike" not in marks_of(run_of_norms([1.0 + 0.1 * (at % 7) for at in range(1000)]))


def test_every_look_is_an_event_and_the_end_says_its_verdict_in_words():
    looked = {"kind": "looked", "step": 2, "because": "schedule"}
    seen = [{"kind": "seen", "step": step, "probe": "attention", "found": {}} for step in (2, 3)]
    end = {"kind": "end", "steps": 3, "status": "stable", "message": "ENTROPY_COLLAPSE in `a`, since step 2: low."}
    run = run_of_norms([1.0, 1.0, 1.0], looked, *seen, end)
    events, total = run_events(run)
    assert total == len(events) == 3
    assert [(event["step"], event["kind"]) for event in events] == [(2, "look"), (3, "look"), (3, "end")]
    assert [event["step"] for event in events if event["kind"] == "look"] == run.look_steps
    assert events[-1]["text"] == "Finished after 3 steps. The verdict then: Entropy collapse in `a`, since step 2: low."
    for message, told in (
        ("LOOP, since step 1: so.", "Loop, since step 1: so."),
        ("Healthy: no issue.", "Healthy: no issue."),
    ):
        (end,) = run_events(
            run_of_norms([1.0, 1.0, 1.0], {"kind": "end", "steps": 3, "status": "stable", "message": message})
        )[0]
        assert end["text"] == f"Finished after 3 steps. The verdict then: {told}"
