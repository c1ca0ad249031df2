"""Ordinary steps are noted as they are taken and recorded later: the same records, and nobody who asks can tell."""

import json
import textwrap

import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.flow import ordinary_steps
from gradient_flow.flow.ordinary_steps import MOST_NOTED, OrdinarySteps
from gradient_flow.looks.loop_watch import LoopWatch
from gradient_flow.looks.optimizer_watch import OptimizerWatch
from warm import warm_python

SPIKE = 33
STEPS = 64


@pytest.fixture
def noted(monkeypatch):
    """The steps that were taken as ordinary ones."""
    steps = []
    take = OrdinarySteps.take

    def spied(self, optimizer):
        taken = take(self, optimizer)
        steps.extend([self._progress.steps] if taken else [])
        return taken

    monkeypatch.setattr(OrdinarySteps, "take", spied)
    return steps


class Loop:
    """A training whose gradients are of one size, but for a spike."""

    def __init__(self, **settings):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        first, second = self.model[0].parameters(), self.model[2].parameters()
        self.optimizer = torch.optim.SGD([{"params": second, "lr": 1e-3}, {"params": first}], lr=2e-3)
        self.x, self.y = torch.randn(32, 8), torch.randn(32, 4)
        self.flow = gf.watch(self.model, self.optimizer, **settings)
        self.number = 0

    def backward(self, scale=1.0):
        loss = scale * (self.model(self.x) - self.y).square().mean()
        loss.backward()
        return loss

    def step(self, scale=1.0):
        self.number += 1
        self.optimizer.zero_grad()
        self.backward(scale)
        self.optimizer.step()


def plain(loop):
    loop.step(100.0 if loop.number + 1 == SPIKE else 1.0)


def with_a_schedule(loop):
    if loop.number == 20:
        loop.schedule = torch.optim.lr_scheduler.ExponentialLR(loop.optimizer, 0.97)
    plain(loop)
    if loop.number > 20:
        loop.schedule.step()


def logging(loop):
    loop.flow.log(epoch=loop.number // 10, accuracy=torch.tensor(0.5), note="text")
    plain(loop)


def clipping_at_times(loop):
    loop.number += 1
    loop.optimizer.zero_grad()
    loop.backward()
    if loop.number % 7 == 0:
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1e-3)
    loop.optimizer.step()


def accumulating_at_times(loop):
    loop.number += 1
    loop.optimizer.zero_grad()
    for _ in range(2 if loop.number % 9 == 0 else 1):
        loop.backward()
    loop.optimizer.step()


def freezing(loop):
    loop.model[0].weight.requires_grad_(not 20 < loop.number < 45)
    plain(loop)


def joined_by_a_group(loop):
    if loop.number == 30:
        loop.extra = nn.Parameter(torch.ones(3))
        loop.optimizer.add_param_group({"params": [loop.extra], "lr": 1e-3})
    loop.number += 1
    loop.optimizer.zero_grad()
    loss = (loop.model(loop.x) - loop.y).square().mean()
    (loss if loop.number <= 30 else loss + 0.1 * loop.extra.square().sum()).backward()
    loop.optimizer.step()


def becoming_nan(loop):
    loop.step(float("nan") if loop.number + 1 in (40, 41) else 1.0)


def with_a_closure(loop):
    loop.number += 1
    if loop.number % 5 == 0:
        loop.optimizer.zero_grad()
        loop.optimizer.step(loop.backward)
    else:
        loop.number -= 1
        plain(loop)


def warming_up_from_zero(loop):
    for group in loop.optimizer.param_groups:
        group["lr"] = 1e-4 * max(0, loop.number - 20)
    plain(loop)


def raising_the_rate(loop):
    if loop.number == 36:
        for group in loop.optimizer.param_groups:
            group["lr"] *= 5
    plain(loop)


def beside_another_model(loop):
    """From step 40 on another model is trained in the same loop."""
    if loop.number == 40:
        loop.other = nn.Linear(8, 1)
    for _ in range(loop.number >= 40):
        loop.other(loop.x).sum().backward()
    plain(loop)


def by_two_losses_in_turn(loop):
    loop.number += 1
    loop.optimizer.zero_grad()
    early = loop.number % 2
    out = loop.model[0](loop.x) if early else loop.model(loop.x)
    (out.square().mean() if early else (out - loop.y).square().mean()).backward()
    loop.optimizer.step()


WAYS = (
    plain,
    beside_another_model,
    by_two_losses_in_turn,
    with_a_schedule,
    logging,
    clipping_at_times,
    accumulating_at_times,
    freezing,
    joined_by_a_group,
    becoming_nan,
    with_a_closure,
    raising_the_rate,
    warming_up_from_zero,
)
TIMED = ("time", "seconds", "started", "batch")
"""A look takes as long as it takes; the hash of a batch is salted, the same within a process."""


def lines_of(path):
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMED} for line in found]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_file_is_the_one_that_the_general_way_writes(way, every, tmp_path, noted, monkeypatch):
    for watch in (OptimizerWatch, LoopWatch):  # on a machine that is busy, time runs out for some of their looks
        monkeypatch.setattr(watch, "_may", lambda _: True)
    files = {}
    for name in ("ordinary", "general"):
        if name == "general":
            monkeypatch.setattr(OrdinarySteps, "take", lambda *_: False)
            monkeypatch.setattr(OrdinarySteps, "pass_begins", lambda *_: None)
        loop = Loop(run=tmp_path / name, budget=1.0, describe=False, every=every)
        for _ in range(every * STEPS):
            way(loop)
        path = loop.flow.path
        loop.flow.close()
        files[name] = lines_of(path)
    recorded = [step for step in noted if step % every == 0]
    nearly_none = way is by_two_losses_in_turn or (way is becoming_nan and every > 1)
    assert nearly_none or len(recorded) >= (12 if every == 1 else 2)
    assert nearly_none or len(noted) >= (2 * every - 1) / 2 * len(recorded)  # and those between them
    rare = (becoming_nan, with_a_closure, by_two_losses_in_turn, *[accumulating_at_times] * (every > 1))
    assert way in rare or {40 * every, 60 * every} & {*noted}  # tables are due there
    for kind in ("step", "look"):
        ordinary, general = ([line for line in lines if line["kind"] == kind] for lines in files.values())
        assert ordinary == general
    assert [(line["kind"], line.get("step"), line.get("probe")) for line in files["ordinary"]] == [
        (line["kind"], line.get("step"), line.get("probe")) for line in files["general"]
    ]


def test_a_step_that_stands_out_is_never_an_ordinary_one(tmp_path, noted):
    loop = Loop(run=tmp_path / "run")
    file = loop.flow.path
    for _ in range(SPIKE):
        plain(loop)
    assert noted
    assert SPIKE not in noted
    assert [line["step"] for line in lines_of(file) if line["kind"] == "step"] == list(range(1, SPIKE + 1))
    loop.step(float("nan"))
    last = [line for line in lines_of(file) if line["kind"] == "step"][-1]
    assert (last["step"], last["norm"]) == (SPIKE + 1, None)
    assert last["nan_count"] > 0
    loop.flow.close()


def test_who_asks_is_told_of_every_step(tmp_path, noted):
    loop = Loop(run=tmp_path / "run")
    file = loop.flow.path
    for _ in range(28):
        plain(loop)
    assert noted[-1] == 28
    assert len([line for line in lines_of(file) if line["kind"] == "step"]) < 28
    expected = gf.measure(loop.model)
    assert loop.flow.table.names == expected.names
    assert (loop.flow.table.rows == expected.rows).all()
    assert loop.flow.table is loop.flow.table
    assert loop.flow.history["step"].tolist() == list(range(1, 29))
    assert len([line for line in lines_of(file) if line["kind"] == "step"]) == 28
    plain(loop)
    assert noted[-1] == 29
    assert loop.flow.run.steps[-1]["step"] == 29
    loop.flow.close()


def test_a_sink_hears_of_each_step_when_it_is_over(noted):
    loop = Loop(run=None)
    heard = []
    loop.flow.subscribe(lambda record, look: heard.append(record.step))
    for step in range(1, 29):
        plain(loop)
        assert heard == list(range(1, step + 1))
    assert noted
    loop.flow.close()


def test_an_event_comes_after_the_steps_before_it(tmp_path, noted):
    loop = Loop(run=tmp_path / "run")
    file = loop.flow.path
    for _ in range(28):
        plain(loop)
    loop.flow.add_event("mine", value=1)
    assert noted[-1] == 28
    kinds = [(line["kind"], line["step"]) for line in lines_of(file) if line["kind"] in ("step", "mine")]
    assert kinds[-2:] == [("step", 28), ("mine", 28)]
    loop.flow.close()


def test_only_so_many_steps_wait_to_be_recorded(tmp_path, noted):
    loop = Loop(run=tmp_path / "run", layers_every=1000, looks=False)
    file = loop.flow.path
    waiting = []
    for step in range(1, 200):
        loop.step()
        waiting.append(step - len([line for line in lines_of(file) if line["kind"] == "step"]))
    assert len(noted) > 150
    assert max(waiting) == MOST_NOTED - 1
    loop.flow.close()


def test_no_step_waits_longer_than_the_first_step_after_a_second(tmp_path, noted, monkeypatch):
    loop = Loop(run=tmp_path / "run", layers_every=1000, looks=False)
    file = loop.flow.path
    for _ in range(30):
        loop.step()
    now = ordinary_steps.time.time() + 100
    for later in range(20):
        monkeypatch.setattr(ordinary_steps.time, "time", lambda later=later: now + 0.4 * later)
        loop.step()
        written = [line["step"] for line in lines_of(file) if line["kind"] == "step"]
        assert loop.number - written[-1] <= 3
    assert noted[-1] == loop.number
    loop.flow.close()


SCRIPT = """
    import os, sys
    import torch
    import gradient_flow as gf
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.ones(8, 4)
    flow = gf.watch(model, optimizer, run=sys.argv[1], layers_every=1000, looks=False)
    for step in range(100):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    if sys.argv[2] == "killed":
        os._exit(1)
    if sys.argv[2] == "raised":
        raise ValueError("too bad")
    del flow
"""


@pytest.mark.parametrize(("how", "lost"), [("killed", MOST_NOTED), ("raised", 0), ("dropped", 0)])
def test_what_a_process_leaves_behind(how, lost, tmp_path):
    warm_python("-c", textwrap.dedent(SCRIPT), tmp_path / "run", how, cwd=tmp_path)
    steps = [line["step"] for line in lines_of(tmp_path / "run" / "run.jsonl") if line["kind"] == "step"]
    assert steps == list(range(1, len(steps) + 1))
    assert 100 - lost <= len(steps) <= 100
    assert lost == 0 or len(steps) < 100


def test_a_table_of_a_step_that_fails_has_no_update_ratios(tmp_path, noted):
    loop = Loop(run=tmp_path / "run", looks=False)
    file = loop.flow.path
    for step in range(1, 61):
        fails = step in (40, 50)
        # After our hook, in the step itself.
        hook = loop.optimizer.register_step_pre_hook(lambda *_: 1 / 0) if fails else None
        if fails:
            with pytest.raises(ZeroDivisionError):
                plain(loop)
            hook.remove()
        else:
            plain(loop)
    loop.flow.close()
    assert 40 in noted
    assert 50 not in noted  # a histogram is due there
    tables = {line["step"]: line for line in lines_of(file) if line["kind"] == "look"}
    assert [step for step in sorted(tables) if "update_ratio" not in tables[step]] == [40, 50]
    assert [line["step"] for line in lines_of(file) if line["kind"] == "step"] == list(range(1, 61))


def test_a_backward_pass_of_another_model_changes_nothing(noted):
    loop, other = Loop(run=None, looks=[1000]), nn.Linear(8, 4)
    for _ in range(28):
        plain(loop)
        other(loop.x).square().mean().backward()
    assert noted[-8:] == list(range(21, 29))  # a histogram is due in step 20
    assert "micro_batches" not in loop.flow.run.steps[-1]
    loop.flow.close()


def test_a_checkpoint_has_every_step(noted):
    loop = Loop(run=None)
    for _ in range(28):
        plain(loop)
    state = loop.flow.state_dict()
    assert noted[-1] == 28
    assert [record["step"] for record in state["history"]["records"]] == list(range(1, 29))
    loop.flow.load_state_dict(state | {"steps": 100})
    plain(loop)
    assert (noted[-1], loop.flow.steps) == (28, 101)  # the numbers before it are another training's
    loop.flow.close()
