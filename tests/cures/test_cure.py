"""`gf.cure`: what it finds, that it claims nothing on healthy models, and that it leaves everything as it was."""

import copy
import dataclasses
import itertools
import json
import math
import random
import types

import numpy as np
import pytest
import torch
from sick_models import batches, mlp
from torch import nn

import gradient_flow as gf
from gradient_flow.cures import choice
from gradient_flow.cures.arms import Outcome
from gradient_flow.cures.batches import KeptBatches
from gradient_flow.cures.meaning import is_slower
from gradient_flow.cures.patient import Patient
from gradient_flow.cures.protocol import outcome_of
from gradient_flow.cures.result import BETTER, SAME, WORSE, Noise, Trial
from gradient_flow.cures.work import Work
from gradient_flow.diagnosis.treatment import Advice, Treatment, treatment_of
from gradient_flow.report.cures import cures_data
from gradient_flow.report.data import page_data
from gradient_flow.report.events import run_events


def diverging():
    model = mlp()
    input_fn, loss_fn = batches()
    return model, input_fn, loss_fn, torch.optim.SGD(model.parameters(), lr=30.0, momentum=0.9)


@pytest.fixture(scope="module")
def cured():
    model, *rest = diverging()
    return model, gf.cure(model, *rest, steps=16, fresh=True)


def test_a_model_that_diverges_is_cured_by_what_stops_it(cured):
    _, found = cured
    assert found.symptoms
    assert found.best is not None
    assert found.best is found.trials[0]
    assert found.best.outcome == "better"
    assert all(loss < found.best.untreated.band[0] for loss in found.best.losses)
    assert found.best.loss < found.first_loss


def test_the_best_treatment_does_the_same_for_real(cured):
    """The oracle: train by hand with what `apply` returns, on batches of another seed."""
    _, found = cured
    model, _, _, optimizer = diverging()
    optimizer = found.best.apply(model, optimizer)
    input_fn, loss_fn = batches(seed=5)
    first = loss_fn(model(input_fn())).item()
    for _ in range(40):
        optimizer.zero_grad()
        loss = loss_fn(model(input_fn()))
        loss.backward()
        optimizer.step()
    assert math.isfinite(loss.item())
    assert loss.item() < first


def test_the_result_is_text_json_and_html(cured):
    _, found = cured
    text = str(found)
    assert found.best.name in text
    assert found.best.code.splitlines()[0] in text
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["best"] == found.best.name
    assert [trial["name"] for trial in plain["trials"]] == [trial.name for trial in found.trials]
    assert "<table>" in found._repr_html_()
    assert repr(found).startswith("Cure(best=")
    assert found.best.to_dict()["untreated"]["low"] is None or found.best.untreated.band[0] > 0


def test_advice_is_sorted_by_what_was_measured_and_says_so(cured):
    _, found = cured
    first = found.issues[0].advice[0]
    assert "Tried: loss" in first
    assert treatment_of(first).covers(found.best.treatment)
    assert sorted(map(len, (i.advice for i in found.textbook))) <= sorted(map(len, (i.advice for i in found.issues)))


def test_costs_are_bounded(cured):
    _, found = cured
    assert found.steps_taken <= 25 * found.steps + 4 * 20  # and the examinations, which have their own length
    assert found.batches == 16 + 8
    assert sum(trial.steps_taken for trial in found.trials) <= found.steps_taken


def test_a_healthy_model_has_nothing_to_cure():
    model = mlp()
    input_fn, loss_fn = batches()
    found = gf.cure(model, input_fn, loss_fn, torch.optim.Adam(model.parameters(), lr=1e-2), steps=24, fresh=True)
    assert found.symptoms == ""
    assert found.best is None
    assert "nothing to cure" in found.message


def test_a_sick_model_that_nothing_helps_is_told_so():
    model = mlp()
    noise = torch.Generator().manual_seed(0)
    target = torch.zeros(32, 1)

    def input_fn():
        nonlocal target
        target = torch.randn(32, 1, generator=noise)
        return torch.randn(32, 8, generator=noise)

    # Whatever the model does, the loss is the same.
    found = gf.cure(model, input_fn, lambda output: target.square().mean() + 0 * output.sum(), steps=8)
    assert found.best is None
    assert found.message.startswith("Nothing helped beyond noise")


class Cut(nn.Module):
    """The first layers are cut off by a line of `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24)), nn.Linear(24, 1)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        return self.head(hidden.detach())


def test_what_heals_the_issue_is_preferred_to_a_higher_rate():
    torch.manual_seed(0)
    model = Cut()
    input_fn, loss_fn = batches()
    found = gf.cure(model, input_fn, loss_fn, torch.optim.Adam(model.parameters(), lr=1e-3), steps=24)
    rate = next(trial for trial in found.trials if trial.name == "learning rate × 10")
    assert rate.outcome == BETTER  # so much for the loss
    assert found.best.treatment.kind == "reattach"
    assert found.best.issue_gone
    assert "hidden.detach()" in found.best.code
    assert "# + return self.head(hidden)" in found.best.code
    loss_fn(model(input_fn())).backward()
    assert model.body[0].weight.grad is None  # the hooks of the trials are gone
    found.best.apply(model)
    loss_fn(model(input_fn())).backward()
    assert model.body[0].weight.grad.abs().sum() > 0
    assert input_fn().requires_grad is False  # and outside the model nothing is changed


def test_a_slow_start_is_no_sickness_and_a_higher_rate_no_cure():
    model = mlp(act=nn.Sigmoid)
    input_fn, loss_fn = batches()
    found = gf.cure(model, input_fn, loss_fn, torch.optim.Adam(model.parameters(), lr=1e-4), steps=12, fresh=True)
    assert not [issue for issue in found.issues if issue.severity >= gf.IssueSeverity.MEDIUM]
    assert found.symptoms == "the loss does not fall in 12 steps."
    assert found.best is None
    assert found.remark.outcome == BETTER
    assert f"the loss is lower with {found.remark.name}" in found.message


def work_with(
    kind: gf.IssueType,
    losses: dict[str, tuple[Treatment, float, bool]],
    monkeypatch,
    together: float = 0.3,
    first: float = 1.02,
):
    """A comparison that is over: an issue, and treatments with their losses against 1.0 without any."""
    issue = gf.Issue(issue_type=kind, severity=gf.IssueSeverity.HIGH, layer="0", message="x")
    patient = types.SimpleNamespace(issues=[issue], steps=8)
    noise = Noise(steps=8, losses=(1.0, 1.0), margin=0.02)
    work = Work(patient, math.inf, first_loss=first, noise={8: noise})
    for at, (treatment, loss, _) in enumerate(losses.values()):
        work.trials[at] = Trial(treatment=treatment, outcome=BETTER, steps=8, losses=(loss, loss), untreated=noise)
    monkeypatch.setattr(Work, "arm", lambda *_: Outcome(losses={8: together}))
    gone = {id(treatment): gone for treatment, _, gone in losses.values()}
    monkeypatch.setattr(choice, "_looked", lambda _, t: dataclasses.replace(t, issue_gone=gone[id(t.treatment)]))
    return work


HIGHER = Treatment("learning_rate", {"factor": 10.0})
NORM = Treatment("norm", {"layers": ["0"]})


@pytest.mark.parametrize(
    ("kind", "norm", "gone", "wanted"),
    [
        (gf.IssueType.VANISHING, (0.5, True), False, "norm"),  # gains 0.5 of 0.7: comparable, and heals
        (gf.IssueType.VANISHING, (0.9, True), False, "learning_rate"),  # heals, but hardly helps
        (gf.IssueType.VANISHING, (0.5, False), False, "learning_rate"),  # neither heals: the lower loss
        (gf.IssueType.VANISHING, (0.5, True), True, "norm"),  # both do, and the rate is not meant for it
        (gf.IssueType.SLOW, (0.5, True), True, "learning_rate"),
        (gf.IssueType.UNSTABLE, (0.9, False), True, "norm"),  # longer steps are no cure for what is unstable
    ],
)
def test_the_choice(kind, norm, gone, wanted, monkeypatch):
    work = work_with(kind, {"rate": (HIGHER, 0.3, gone), "norm": (NORM, *norm)}, monkeypatch)
    assert choice.choose(work).treatment.kind == wanted


def test_what_still_helps_at_the_higher_rate_is_preferred_to_it(monkeypatch):
    losses = {"rate": (HIGHER, 0.3, False), "norm": (NORM, 0.9, False)}
    assert choice.choose(work_with(gf.IssueType.VANISHING, losses, monkeypatch, together=0.1)).treatment is NORM
    assert choice.choose(work_with(gf.IssueType.VANISHING, losses, monkeypatch, together=0.3)).treatment is HIGHER


@pytest.mark.parametrize(("later", "wanted"), [(0.9, NORM), (1.0, None), (1.2, None)])
def test_what_only_starts_faster_is_no_cure_where_the_model_learns(later, wanted, monkeypatch):
    work = work_with(gf.IssueType.DEAD, {"norm": (NORM, 0.5, True)}, monkeypatch, first=3.0)
    arms = {False: 1.0, True: later}  # after 2.5 times as long
    monkeypatch.setattr(Work, "arm", lambda _, treatment, *__: Outcome(losses={20: arms[treatment is not None]}))
    best = choice.choose(work)
    assert (None if best is None else best.treatment) is wanted
    assert work.trials[0].steps == 20


def test_text_fits_eighty_columns(cured):
    _, found = cured
    code = found.best.code.splitlines()
    lines = [line for line in str(found).splitlines() if line.strip() not in code]
    assert max(map(len, lines)) <= 79


# ---- do no harm ---------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Dropout, running statistics, a counter in Python, a hook of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 12))
        self.head, self.calls = nn.Linear(12, 1), 0

    def forward(self, x):
        self.calls += 1
        return self.head(torch.relu(self.body(x)))


def state_of(model, optimizer):
    tensors = {**model.state_dict(), **{f"grad {n}": p.grad for n, p in model.named_parameters()}}
    kept = {name: None if t is None else t.clone() for name, t in tensors.items()}
    hooks = [[len(getattr(m, name)) for name in ("_forward_hooks", "_forward_pre_hooks")] for m in model.modules()]
    rest = (hooks, model.calls, [m.training for m in model.modules()], [type(m) for m in model.modules()])
    return kept, copy.deepcopy(optimizer.state_dict()), rest


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_model_optimizer_and_random_state_are_bit_identical_afterwards():
    torch.manual_seed(0)
    model = Odd()
    handle = model.head.register_forward_hook(lambda *_: None)
    input_fn, loss_fn = batches()
    optimizer = torch.optim.Adam(model.parameters(), lr=5.0)
    for _ in range(3):  # a state to lose
        loss_fn(model(input_fn())).backward()
        optimizer.step()
    before = state_of(model, optimizer)
    gradients = [p.grad for p in model.parameters()]
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    found = gf.cure(model, input_fn, loss_fn, optimizer, steps=8, fresh=True)
    assert found.steps_taken > 40
    assert same(before, state_of(model, optimizer))
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    after = random.getstate(), np.random.get_state()[1], torch.get_rng_state()  # noqa: NPY002
    assert states[0] == after[0]
    assert (states[1] == after[1]).all()
    assert torch.equal(states[2], after[2])
    handle.remove()


def test_an_error_in_the_middle_leaves_everything_as_it_was():
    model, input_fn, loss_fn, optimizer = diverging()
    before = copy.deepcopy(model.state_dict())
    calls = itertools.count()  # a plain number would be put back with the batch

    def failing(output):
        if next(calls) == 60:
            raise KeyboardInterrupt
        return loss_fn(output)

    with pytest.raises(KeyboardInterrupt):
        gf.cure(model, input_fn, failing, optimizer, steps=8)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not optimizer.state


def test_parameters_of_the_loss_are_given_back():
    model, head = mlp(), nn.Linear(1, 1)
    input_fn, loss_fn = batches()
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=1.0)
    before = copy.deepcopy(head.state_dict())
    gf.cure(model, input_fn, lambda output: loss_fn(head(output)), optimizer, steps=8)
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    assert head.weight.grad is None


# ---- batches ------------------------------------------------------------------------------------------------------


class Holder:
    def __init__(self) -> None:
        self.random, self.target = torch.Generator().manual_seed(0), None

    def input_fn(self):
        x = torch.randn(4, 8, generator=self.random)
        self.target = x[:, :1]
        return x

    def loss_fn(self, output):
        return (output - self.target).square().mean()


def in_place():
    """One buffer that is filled again and again, as a loader with pinned memory does."""
    x, target = torch.zeros(4, 8), torch.zeros(4, 1)
    generator = torch.Generator().manual_seed(0)

    def input_fn():
        x.copy_(torch.randn(4, 8, generator=generator))
        target.copy_(x[:, :1])
        return x

    return input_fn, lambda output: (output - target).square().mean()


@pytest.mark.parametrize(
    "functions",
    [batches(), in_place(), (lambda h: (h.input_fn, h.loss_fn))(Holder())],
    ids=["closure", "buffer", "object"],
)
def test_a_batch_is_replayed_with_its_own_targets(functions):
    """In whatever order: each has one loss, and no two have the same."""
    input_fn, loss_fn = functions
    model = mlp()
    kept = KeptBatches(input_fn, loss_fn)
    kept.draw(model, 6, 0)
    first = [float(kept.loss(model, at).detach()) for at in range(6)]
    again = [float(kept.loss(model, at).detach()) for at in reversed(range(6))][::-1]
    assert first == again
    assert len(set(first)) == 6


def test_targets_that_cannot_be_found_are_an_error():
    queue: list = []

    class Hidden:
        __slots__ = ("x",)

    hidden = Hidden()

    def input_fn():
        hidden.x = torch.randn(4, 8)
        queue.append(hidden.x)
        return hidden.x

    with pytest.raises(gf.InputError, match="`loss_fn` must give the same loss when a batch is replayed"):
        gf.cure(mlp(), input_fn, lambda output: (output - hidden.x[:, :1]).square().mean(), steps=8)


# ---- decisions ----------------------------------------------------------------------------------------------------

NOISE = Noise(steps=10, losses=(1.0, 1.2, 0.9), margin=0.02)


@pytest.mark.parametrize(
    ("losses", "first", "wanted"),
    [
        ((0.5, 0.6), 2.0, BETTER),
        ((0.5, 0.95), 2.0, SAME),  # not in both arms
        ((0.5, 0.6), 0.4, SAME),  # better than what diverged, worse than no training
        ((1.3,), 2.0, WORSE),
        ((math.inf,), 2.0, WORSE),
        ((1.1,), 2.0, SAME),
    ],
)
def test_better_means_below_every_repeat_in_every_arm(losses, first, wanted):
    assert outcome_of(losses, NOISE, first) == wanted


def test_beside_a_model_that_has_diverged_a_finite_loss_is_better():
    lost = Noise(steps=10, losses=(math.inf, math.inf), margin=0.0)
    assert outcome_of((1.0,), lost, 2.0) == BETTER
    assert outcome_of((math.inf,), lost, 2.0) == WORSE


def test_a_lower_rate_is_not_counted_while_the_model_learns():
    assert is_slower(Treatment("learning_rate", {"factor": 0.1}))
    assert not is_slower(Treatment("learning_rate", {"factor": 10.0}))
    model = mlp()
    input_fn, loss_fn = batches()
    found = gf.cure(model, input_fn, loss_fn, torch.optim.SGD(model.parameters(), lr=0.02), steps=16)
    slower = [trial for trial in found.trials if is_slower(trial.treatment)]
    assert slower
    assert all(trial.outcome != BETTER for trial in slower)


# ---- arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": 3}, "`model` must be a module, got int"),
        ({"input_fn": torch.zeros(2)}, "`input_fn` must be a function, got Tensor"),
        ({"loss_fn": None}, "`loss_fn` must be a function, got NoneType"),
        ({"optimizer": "Adam"}, "`optimizer` must be a torch optimizer, got str"),
        ({"steps": 3}, "`steps` must be an integer ≥ 8, got 3"),
        ({"budget": 0}, "`budget` must be a positive number of seconds, got 0"),
        ({"seed": -1}, "`seed` must be an integer ≥ 0, got -1"),
        ({"model": nn.LazyLinear(2)}, "has lazy parameters"),
        ({"model": mlp().requires_grad_(False)}, "none needs a gradient"),
        ({"optimizer": torch.optim.SGD(mlp().parameters(), lr=1)}, "it holds none of them"),
    ],
)
def test_wrong_arguments_are_named(change, words):
    input_fn, loss_fn = batches()
    arguments = {"model": mlp(), "input_fn": input_fn, "loss_fn": loss_fn, **change}
    with pytest.raises(gf.InputError, match=words):
        gf.cure(**arguments)


def test_fresh_must_be_a_flag():
    input_fn, loss_fn = batches()
    with pytest.raises(gf.ConfigError, match="`fresh` must be True or False"):
        gf.cure(mlp(), input_fn, loss_fn, fresh="no")


def test_a_loss_that_is_no_tensor_is_named():
    input_fn, _ = batches()
    with pytest.raises(gf.InputError, match="`loss_fn` must return a tensor"):
        gf.cure(mlp(), input_fn, lambda output: output.mean().item(), steps=8)


def test_apply_refuses_what_is_no_model(cured):
    _, found = cured
    with pytest.raises(gf.InputError, match="`model` must be a module"):
        found.best.apply(3)
    with pytest.raises(gf.InputError, match="`optimizer` must be a torch optimizer"):
        found.best.apply(mlp(), 3)


def test_a_budget_that_is_spent_ends_the_trials():
    model, *rest = diverging()
    found = gf.cure(model, *rest, steps=8, budget=1e-6)
    assert {trial.outcome for trial in found.trials} == {"not tried"}
    assert found.best is None
    assert any("budget ran out" in note for note in found.notes)


# ---- under watch --------------------------------------------------------------------------------------------------


def test_a_cure_of_a_watched_training_is_an_event_and_nothing_else(tmp_path):
    model, input_fn, loss_fn, optimizer = diverging()
    optimizer.param_groups[0]["lr"] = 1e-6
    with gf.watch(model, optimizer, run=tmp_path / "run") as flow:
        for step in range(4):  # the third step is looked at from inside: its hooks are on the model before it
            if step == 2:
                weights = copy.deepcopy(model.state_dict())
                found = flow.cure(input_fn, loss_fn, steps=8)
                assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
            optimizer.zero_grad()
            loss_fn(model(input_fn())).backward()
            optimizer.step()
        assert flow.steps == 4
        assert len(flow.history) == 4
    run = gf.load_run(tmp_path / "run")
    (event,) = [event for event in run.events if event.kind == "cure"]
    assert event.step == 2
    assert event.data["cure"]["message"] == found.message
    assert len(run) == 4
    shown, _ = run_events(run)
    assert [each["text"] for each in shown if each["kind"] == "cure"] == [f"Fixes tried. {found.message}"]
    (shown,) = page_data(run)["cures"]
    assert (shown["step"], shown["message"]) == (2, found.message)
    assert [trial["name"] for trial in shown["trials"]] == [trial.name for trial in found.trials]
    assert shown["trials"][0]["best"]
    assert shown["code"] == found.best.code


@pytest.mark.parametrize("cure", ["x", {}, {"trials": 3}, {"trials": [3, {"name": 4, "loss": "x", "untreated": 1}]}])
def test_a_file_may_hold_anything_as_a_cure(cure):
    event = types.SimpleNamespace(kind="cure", step=None, data={"cure": cure})
    for shown in cures_data(types.SimpleNamespace(events=[event])):
        assert all(isinstance(value, (str, bool)) for trial in shown["trials"] for value in trial.values())


def test_two_optimizers_are_refused():
    model = mlp()
    several = [torch.optim.SGD(model[at].parameters(), lr=0.1) for at in (0, 2)]
    input_fn, loss_fn = batches()
    with gf.watch(model, several) as flow, pytest.raises(gf.MonitorStateError, match="needs one optimizer, and 2 are"):
        flow.cure(input_fn, loss_fn)


# ---- advice and treatment are one object --------------------------------------------------------------------------


def test_advice_keeps_its_treatment_through_a_file():
    issue = gf.Issue(
        issue_type=gf.IssueType.EXPLODING,
        severity=gf.IssueSeverity.HIGH,
        layer="model",
        message="x",
        advice=["Look.", Advice("Clip the norm at 0.5.", Treatment("clip", {"norm": 0.5}))],
    )
    again = gf.Issue.from_dict(json.loads(json.dumps(issue.to_dict())))
    assert again.to_dict() == issue.to_dict()
    assert [treatment_of(text) for text in again.advice] == [None, Treatment("clip", {"norm": 0.5})]
    assert copy.deepcopy(issue).advice[1].treatment == Treatment("clip", {"norm": 0.5})


def test_text_and_deed_come_from_the_same_numbers():
    from gradient_flow.diagnosis import advice

    up = advice.learning_rate_up_to(1e-6, 1e-8)
    assert float(up.partition("up to ")[2].partition(":")[0]) == treatment_of(up).settings["rate"]
    lower = advice.learning_rate_at_most(0.5, 1.0)
    assert treatment_of(lower).settings == pytest.approx({"factor": 0.01, "rate": 5e-3})
    clip = advice.clip_at([1.0, 2.0, 3.0, 4.0])
    assert f"{treatment_of(clip).settings['norm']:.3g}" in clip
    scale = advice.rescale_weights(["0", "2"], 0.5)
    assert treatment_of(scale).settings["factors"] == {"0": 2.0, "2": 2.0}
    assert "by 2" in scale


def test_patient_needs_no_second_model():
    """Memory: the model, one copy of its values, and the optimizer's state of one arm."""
    model, input_fn, loss_fn, optimizer = diverging()
    kept = KeptBatches(input_fn, loss_fn)
    kept.draw(model, 4, 0)
    patient = Patient(model, optimizer, kept, [0, 1], [2, 3], False, 0, 8)
    with patient.treated(None) as own:
        held = [tensor for group in own.param_groups for tensor in group["params"]]
        assert all(one is other for one, other in zip(held, model.parameters(), strict=True))
