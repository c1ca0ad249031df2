"""Records are opened at their step, completed later, and leave in order."""

import gc
import os
import textwrap
import threading
import weakref

import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.flow.known_parameters import KnownParameters
from gradient_flow.flow.recorder import MOST_OPEN, Recorder
from gradient_flow.record.run_writer import RunWriter
from gradient_flow.record.step import TOTALS, StepRecord
from gradient_flow.record.window import History
from warm import warm_python


class Number:
    """A number that a device is still computing."""

    def __init__(self, value):
        self._value, self.arrived, self.waits = value, False, 0

    def ready(self):
        return self.arrived

    def value(self):
        self.waits += not self.arrived
        return self._value


def record(step, **more):
    return StepRecord(step=step, time=0.0, **dict.fromkeys(TOTALS, 1.0), **more)


def recorder(writer=None):
    made = Recorder(KnownParameters([]), History(), writer, {"parameters": []})
    seen = []
    made.sinks.append(lambda each, look: seen.append(each.step))
    return made, seen


def opened(recorder, step, loss=None):
    made = recorder.open(record(step, loss=loss))
    made.finished = True
    recorder.move_on()
    return made


def test_a_complete_record_leaves_when_its_step_is_over():
    made, seen = recorder()
    open_step = made.open(record(1))
    made.move_on()
    assert seen == []
    open_step.finished = True
    made.move_on()
    assert seen == [1]


def test_records_leave_in_order_once_their_numbers_have_arrived():
    made, seen = recorder()
    first, second = Number(0.5), Number(0.25)
    opened(made, 1, first)
    opened(made, 2, second)
    second.arrived = True
    made.move_on()
    assert seen == []  # the first is still on its way
    first.arrived = True
    made.move_on()
    assert seen == [1, 2]
    assert made.history["loss"].tolist() == [0.5, 0.25]
    assert first.waits == second.waits == 0


def test_at_most_so_many_are_open_and_only_the_oldest_is_waited_for():
    made, seen = recorder()
    numbers = [Number(float(step)) for step in range(1, MOST_OPEN + 4)]
    for step, number in enumerate(numbers, start=1):
        opened(made, step, number)
    assert seen == [1, 2, 3]
    assert [number.waits for number in numbers] == [1, 1, 1] + [0] * MOST_OPEN
    made.close()
    assert seen == list(range(1, MOST_OPEN + 4))


def test_a_step_that_never_ended_does_not_hold_up_the_next():
    made, seen = recorder()
    made.open(record(1))  # the optimizer raised: nobody says that it is over
    opened(made, 2)
    assert seen == [1, 2]


def test_a_crash_loses_no_more_than_the_open_records(tmp_path):
    writer = RunWriter(tmp_path, {"parameters": []})
    made, _ = recorder(writer)
    for step in range(1, 41):
        opened(made, step, Number(1.0))
    assert len(gf.load_run(tmp_path)) == 40 - MOST_OPEN  # as a process that dies here leaves it


# ---- switching off, closing -----------------------------------------------------------------------------------------


def hooks_of(model, optimizer):
    on_modules = sum(
        len(m._forward_hooks) + len(m._backward_hooks) + len(m._forward_pre_hooks) for m in model.modules()
    )
    return on_modules + len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def train(model, optimizer, steps=5):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()


@pytest.mark.parametrize("value", ["1", "true"])
def test_everything_can_be_switched_off(tmp_path, monkeypatch, value):
    monkeypatch.setenv("GRADIENT_FLOW_DISABLE", value)
    clip = torch.nn.utils.clip_grad_norm_
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=tmp_path / "run", log=lambda *a: 1 / 0) as flow:
        assert hooks_of(model, optimizer) == 0
        assert torch.nn.utils.clip_grad_norm_ is clip
        flow.log(loss=1.0)
        train(model, optimizer)
    assert not (tmp_path / "run").exists()
    assert flow.table is None
    assert len(flow.history) == 0
    assert flow.diagnose().status == "insufficient_data"
    assert "switched off" in repr(gf.watch(model, optimizer))


@pytest.mark.parametrize("value", ["0", ""])
def test_it_is_on_otherwise(monkeypatch, value):
    monkeypatch.setenv("GRADIENT_FLOW_DISABLE", value)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer) as flow:
        train(model, optimizer)
    assert len(flow.history) == 5


def test_a_manager_still_acts_when_watching_is_switched_off(monkeypatch):
    monkeypatch.setenv("GRADIENT_FLOW_DISABLE", "1")
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = gf.create_gradient_manager(max_grad_norm=1e-6)
    with gf.watch(model, optimizer, manager=manager) as flow:
        train(model, optimizer)
    assert manager.total_steps == 5
    assert len(flow.history) == 0


def test_closing_from_another_thread_stops_watching_at_once(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flow = gf.watch(model, optimizer, run=tmp_path)
    train(model, optimizer)
    thread = threading.Thread(target=flow.close)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert hooks_of(model, optimizer) == 0
    train(model, optimizer)
    assert len(gf.load_run(tmp_path)) == 5
    assert gf.load_run(tmp_path).end is not None


def test_closing_in_the_middle_of_a_step_is_the_end_of_the_record(tmp_path):
    """As a signal handler does that runs between backward and the end of the optimizer's step."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flow = gf.watch(model, optimizer, run=tmp_path)
    train(model, optimizer, steps=2)
    handle = optimizer.register_step_pre_hook(lambda *_: flow.close())
    train(model, optimizer, steps=2)
    handle.remove()
    assert hooks_of(model, optimizer) == 0
    run = gf.load_run(tmp_path)
    assert run.end is not None
    assert run.last_step in (2, 3)


def test_closing_in_a_signal_handler(tmp_path):
    code = f"""
        import os, signal, torch, gradient_flow as gf
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        flow = gf.watch(model, optimizer, run={str(tmp_path)!r})
        signal.signal(signal.SIGTERM, lambda *_: flow.close())
        for step in range(50):
            optimizer.zero_grad(); model(torch.ones(4, 2)).square().mean().backward()
            if step == 20:
                os.kill(os.getpid(), signal.SIGTERM)
            optimizer.step()
        print("trained")
    """
    done = warm_python("-c", textwrap.dedent(code), cwd=tmp_path)
    assert (done.stdout.strip(), done.returncode) == ("trained", 0), done.stderr
    run = gf.load_run(tmp_path)
    assert run.end is not None
    assert run.last_step in (20, 21)


def test_a_flow_that_is_dropped_without_close_is_collected(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flow = gf.watch(model, optimizer, run=tmp_path)
    train(model, optimizer, steps=3)
    gone = weakref.ref(flow)
    del flow
    gc.collect()
    assert gone() is None
    train(model, optimizer, steps=3)  # what is left of its hooks does nothing
    assert len(gf.load_run(tmp_path)) == 3
    again = RunWriter(tmp_path, {"parameters": []})  # and its lock is gone
    assert again.folder == tmp_path
    again.close()


def test_a_forked_child_never_writes_into_its_parents_run(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=tmp_path) as flow:
        train(model, optimizer, steps=2)
        child = os.fork()
        if child == 0:
            train(model, optimizer, steps=2)
            flow.add_event("from the child")
            flow.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        train(model, optimizer, steps=1)
    run = gf.load_run(tmp_path)
    assert run.series("step").tolist() == [1, 2, 3]
    assert [event.kind for event in run.events if event.kind != "looked"] == ["end"]


def test_what_a_managers_replay_found_is_in_the_run(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = gf.create_gradient_manager(nonfinite="skip")
    with gf.watch(model, optimizer, run=tmp_path, manager=manager) as flow:
        for factor in (1.0, 1.0, -1.0):

            def closure(factor=factor):
                return (model(torch.ones(4, 2)).square() * factor).sum().log()

            optimizer.zero_grad()
            manager.step(model, optimizer, closure=closure)
            optimizer.step()
    (event,) = [event for event in gf.load_run(tmp_path).events if event.kind == "forensics"]
    assert event.data["origin"]["operator"].startswith("log")
    assert event.data["origin"]["file"] == "test_recorder.py"  # no folder, no user name
    issue = gf.diagnose(tmp_path)[0]
    once = gf.IssueSeverity.MEDIUM  # a single step, which the manager skipped
    assert (issue.issue_type, issue.severity, issue.step) == (gf.IssueType.NUMERICAL, once, event.step)
    assert issue.evidence["code"].startswith("return (model(torch.ones(4, 2)).square() * factor).sum().log()")
    assert flow.diagnose()[0].message == issue.message


class Wordless:
    """Fails at its own text."""

    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


def endless():
    ring = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    "value", [Wordless(), {Wordless(): 1}, endless(), {1, "a"}, torch.empty(2, device="meta"), "\ud800"]
)
def test_a_value_that_cannot_be_recorded_costs_that_value(value, tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=tmp_path, looks=False) as flow:
        flow.log(mine=value)
        flow.add_event("mine", value=value, other=1)
        flow.add_look({"mine": {"value": value, "other": 1}})
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    run = gf.load_run(tmp_path)
    assert len(run) == 1
    assert [event.data["other"] for event in run.events if event.kind == "mine"] == [1]
    assert run.newest("mine")[1]["other"] == 1


def test_a_watch_that_is_dropped_leaves_no_hook_and_says_that_it_saw_nothing():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def drop():
        gf.watch(model, optimizer, manager=gf.create_gradient_manager())
        gc.collect()

    with pytest.warns(gf.GradientFlowWarning, match="Keep what gf.watch returns"):
        drop()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
