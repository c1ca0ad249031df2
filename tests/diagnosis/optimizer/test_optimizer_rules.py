"""Each rule on the state of an optimizer finds its fault in a real loop, and says nothing of the repaired one."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradient_flow as gf
from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.diagnosis.loop.context import Loop
from gradient_flow.diagnosis.loop.record import LoopFacts
from gradient_flow.diagnosis.optimizer.all_rules import OPTIMIZER_RULES
from gradient_flow.diagnosis.optimizer.record import OptimizerFacts, StateLook, TensorState
from gradient_flow.diagnosis.verdict import judge
from gradient_flow.record.evidence import LayerSeries, RunRecord, Series
from gradient_flow.record.plain import to_plain

adam, adamw, sgd = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD


def trained(make, dtype=torch.float32, scale=1.0, each_step=lambda optimizer: None, steps=90, run=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5)).to(dtype)
    optimizer = make(model.parameters())
    answer = torch.randn(20, 5)
    with gf.watch(model, optimizer, describe=False, run=run) as flow:
        for _ in range(steps):
            x = torch.randn(32, 20)
            optimizer.zero_grad()
            (F.cross_entropy(model(x.to(dtype)).float(), (x @ answer).argmax(1)) * scale).backward()
            optimizer.step()
            each_step(optimizer)
    return flow.diagnose()


def forget(optimizer):
    optimizer.state.clear()


SICK = {
    "eps_rules": (lambda p: adam(p, 3e-3, eps=1.0), {}),
    "eps_rules while the loss crawls": (lambda p: adam(p, 3e-3, eps=0.3), {}),
    "eps_rules by the loss": (lambda p: adam(p, 3e-3), {"scale": 1e-9}),
    "lost_updates": (lambda p: adamw(p, 2e-5), {"dtype": torch.bfloat16}),
    "decay_dominates": (lambda p: adamw(p, 3e-3, weight_decay=60.0), {}),
    "decay_dominates in spite of what is learned": (lambda p: adamw(p, 1e-2, weight_decay=8.0), {}),
    "decay_dominates in the gradient": (lambda p: sgd(p, 0.05, momentum=0.9, weight_decay=1.0), {}),
    "second_moment_underflow": (lambda p: adam(p, 1e-3), {"dtype": torch.float16}),
    "momentum_too_long": (lambda p: sgd(p, 0.5, momentum=0.999), {}),
    "state_reset": (lambda p: adam(p, 3e-3), {"each_step": forget}),
}


@pytest.mark.parametrize("name", SICK)
def test_each_fault_is_found_with_its_cause(name):
    make, how = SICK[name]
    found = trained(make, **how)
    code = name.split()[0]
    assert found[0].code == code, [(issue.code, issue.severity) for issue in found]
    assert found[0].severity >= IssueSeverity.MEDIUM
    assert found[0].issue_type is IssueType.OPTIMIZER or code == "second_moment_underflow"
    assert found[0].advice
    alarms = [issue for issue in found if issue.severity >= IssueSeverity.MEDIUM]
    assert len(alarms) == 1, alarms  # one cause, one issue


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (lambda p: adam(p, 3e-3), {}),
        (lambda p: adamw(p, 3e-3, weight_decay=0.1), {}),
        (lambda p: adamw(p, 3e-3), {"dtype": torch.bfloat16}),
        (lambda p: adam(p, 3e-3, eps=1e-12), {"scale": 1e-6}),
        (lambda p: adam(p, 0.3, eps=1.0), {}),  # a large eps with a rate that goes with it
        (lambda p: sgd(p, 0.05, momentum=0.9, weight_decay=1e-3), {}),
        (lambda p: sgd(p, 0.005, momentum=0.99), {}),
        (lambda p: adam(p, 3e-3, eps=1e-3), {"dtype": torch.float16}),
        (lambda p: adam(p, 3e-3, betas=(0.9, 0.95)), {}),
    ],
)
def test_repaired_loops_give_no_alarm(make, how):
    found = trained(make, **how)
    assert found.healthy, str(found)


def test_a_file_gives_the_same_verdict(tmp_path):
    found = trained(SICK["eps_rules"][0], run=tmp_path / "run")
    assert [issue.to_dict() for issue in gf.diagnose(tmp_path / "run")] == [issue.to_dict() for issue in found]


def run_with(looks, losses=None, tensors=()):
    losses = [1.0] * 60 if losses is None else losses
    steps = list(range(1, len(losses) + 1))
    series = Series(name="model", steps=steps, norms=[1.0] * len(steps), losses=losses)
    facts = OptimizerFacts(looks=looks, taken=len(looks), tensors=list(tensors))
    return RunRecord(totals=[series], losses=losses, seen={"optimizer": to_plain(facts)})


def stale(step, value):
    return StateLook(step=step, name="AdamW", rate=1e-3, beta1=0.9, beta2=0.999, age=step, own=step, stale=value)


def test_a_stale_second_moment_is_an_alarm_only_if_the_loss_rose():
    losses = [1.0] * 40 + [2.5] * 20
    found = judge(run_with([stale(10, 1.0), stale(40, 5.0)], losses))
    issue = next(issue for issue in found if issue.code == "stale_second_moment")
    assert issue.severity == IssueSeverity.HIGH
    assert issue.step == 40
    assert issue.advice[0] == "Lower beta2 to 0.99."
    assert "0.001 → 0.0002" in issue.advice[-1]
    rising = [1.05**at for at in range(60)]  # it takes its gradients along
    found = judge(run_with([stale(10, 1.0), stale(40, 5.0)], rising))
    assert [i.severity for i in found if i.code == "stale_second_moment"] in ([], [IssueSeverity.LOW])
    quiet = judge(run_with([stale(10, 1.0), stale(40, 5.0)]))
    assert [issue.severity for issue in quiet if issue.code == "stale_second_moment"] == [IssueSeverity.LOW]
    usual = judge(run_with([stale(10, 1.0), stale(40, 1.4)], losses))
    assert "stale_second_moment" not in [issue.code for issue in usual]


@pytest.mark.parametrize(
    ("beta2", "again", "severe"),
    [(0.999, 41, True), (0.95, 50, False), (0.95, 42, False), (0.95, 70, True)],
)
def test_a_short_memory_has_caught_up_after_as_many_steps(beta2, again, severe):
    losses = [1.0] * 40 + [3.0] * 40
    known = ((10, 1.0), (40, 4.4), (again, 1.1 if again == 50 else 3.0))
    looks = [replace(stale(at, value), beta2=beta2) for at, value in known]
    issue = next(issue for issue in judge(run_with(looks, losses)) if issue.code == "stale_second_moment")
    assert (issue.severity > IssueSeverity.LOW) is severe


@pytest.mark.parametrize(("end", "severity"), [(0.3, IssueSeverity.LOW), (1.0, IssueSeverity.HIGH)])
def test_a_stale_second_moment_that_undoes_next_to_nothing_is_a_remark(end, severity):
    """The loss has fallen from 2 to 0.2: steps wander about by a tenth of that."""
    losses = [2.0] * 10 + [0.2] * 30 + [end] * 20
    found = judge(run_with([stale(10, 1.0), stale(40, 5.0)], losses))
    assert [issue.severity for issue in found if issue.code == "stale_second_moment"] == [severity]


@pytest.mark.parametrize(
    ("share", "end", "severity"),
    [(0.9, 0.6, "MEDIUM"), (0.1, 0.6, "LOW"), (0.9, 0.01, "LOW")],  # the last is done: its gradients may be that small
)
def test_adam_without_most_of_its_second_moments_is_an_alarm_though_the_loss_falls(share, end, severity):
    looks = [StateLook(step=at, name="Adam", eps=1e-4, beta2=0.999, age=at, underflow=share) for at in (5, 20, 40)]
    half = TensorState(name="0.weight", elements=64, dtype="float16", underflow=share)
    losses = [end ** (at / 59) for at in range(60)]
    found = judge(run_with(looks, losses, [half]))
    assert [i.severity.name for i in found if i.code == "second_moment_underflow"] == [severity]


@pytest.mark.parametrize(
    ("ratio", "weight_decay", "end", "severities"),
    [
        (0.95, 20.0, 0.8, ["MEDIUM"]),  # gradients put on what it takes off, a fifth of each weight
        (0.3, 20.0, 0.8, []),  # steps that point anywhere
        (0.95, 0.05, 0.8, []),  # takes off next to nothing
        (0.95, 20.0, 0.01, []),  # and it learns all the same
    ],
)
def test_a_decay_that_holds_weights_where_it_has_brought_them_is_told(ratio, weight_decay, end, severities):
    how = {"rate": 1e-2, "weight_decay": weight_decay, "decoupled": True, "decay": ratio, "growth": 1e-3}
    looks = [StateLook(step=at, name="AdamW", age=at, own=at, **how) for at in (18, 25, 35)]
    found = judge(run_with(looks, [end ** (at / 59) for at in range(60)]))
    assert [issue.severity.name for issue in found if issue.code == "decay_dominates"] == severities


def test_swapped_betas_are_named():
    look = StateLook(step=9, name="Adam", rate=1e-3, beta1=0.999, beta2=0.9, age=9, own=9)
    issue = next(issue for issue in judge(run_with([look] * 3)) if issue.code == "betas_swapped")
    assert issue.severity == IssueSeverity.MEDIUM
    assert "betas=(0.9, 0.999)" in issue.advice[0]
    falling = [1.0 - at / 80 for at in range(60)]
    issue = next(issue for issue in judge(run_with([look] * 3, falling)) if issue.code == "betas_swapped")
    assert issue.severity == IssueSeverity.LOW


def test_advice_has_numbers_that_follow_from_the_state():
    look = StateLook(
        step=9, name="Adam", rate=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, eps_share=0.9, root_second=2e-9, age=9, own=9
    )
    issue = next(issue for issue in judge(run_with([look] * 3)) if issue.code == "eps_rules")
    assert issue.advice[0].startswith("Set eps=1e-12")
    assert "by 1000;" in issue.advice[1]
    lost = StateLook(step=9, name="AdamW", rate=1e-5, lost=0.97, needed=40.0, low_precision=1.0, age=9, own=9)
    tensor = TensorState(name="0.weight", elements=10, dtype="bfloat16", lost=0.98)
    issue = next(i for i in judge(run_with([lost] * 3, tensors=[tensor])) if i.code == "lost_updates")
    assert "97%" in issue.message
    assert any("0.0004" in text for text in issue.advice)
    assert issue.evidence["worst"] == "0.weight"


def test_rules_need_nothing_that_was_not_seen():
    loop = Loop(RunRecord(), LoopFacts())
    bare = Loop(RunRecord(), LoopFacts(), states=OptimizerFacts(looks=[StateLook(step=step) for step in range(5)]))
    for rule in OPTIMIZER_RULES:
        assert list(rule(loop)) == []
        assert list(rule(bare)) == []


def test_damaged_states_count_as_not_seen():
    record = RunRecord(seen={"optimizer": {"looks": 3}})
    assert list(judge(record)) == []


@pytest.mark.parametrize(
    ("ages", "codes"),
    [
        ([3, 6, 12, 25, 1, 9, 17, 25], []),  # once, for a second phase
        ([3, 6, 12, 25, 1, 9, 1, 9], ["state_reset"]),
    ],
)
def test_a_state_that_starts_anew_once_is_no_fault(ages, codes):
    owns = [3, 6, 12, 25, 61, 69, 77, 85]
    looks = [
        StateLook(step=own, own=own, age=age, name="Adam", kind="adam") for own, age in zip(owns, ages, strict=True)
    ]
    loop = Loop(RunRecord(), LoopFacts(), states=OptimizerFacts(looks=looks))
    assert [issue.code for rule in OPTIMIZER_RULES for issue in rule(loop)] == codes


@pytest.mark.parametrize(
    ("momentum", "cosine", "codes"), [(0.999, 0.05, ["momentum_too_long"]), (0.999, 0.5, []), (0.99, 0.05, [])]
)
def test_a_momentum_that_forgets_nothing_and_runs_across_the_gradient_is_too_long_though_the_loss_falls(
    momentum, cosine, codes
):
    looks = [
        StateLook(step=at, own=at, kind="momentum", rate=0.5, beta1=momentum, cosine=cosine) for at in (3, 30, 60, 90)
    ]
    losses = [4.0 - 2.0 * at / 90 for at in range(90)]
    series = Series(name="model", steps=list(range(90)), norms=[1.0] * 90, losses=losses)
    loop = Loop(RunRecord(totals=[series], losses=losses), LoopFacts(), states=OptimizerFacts(looks=looks))
    assert [issue.code for rule in OPTIMIZER_RULES for issue in rule(loop)] == codes


@pytest.mark.parametrize(
    ("beta1", "first", "cosine", "end", "codes"),
    [
        (0.998, 0.05, 0.05, 1.0, ["momentum_too_long"]),
        (0.998, 0.8, 0.05, 1.0, ["momentum_too_long"]),
        (0.998, 0.8, 0.8, 1.0, []),  # gradients keep their direction
        (0.998, 0.8, 0.05, 0.1, []),  # solved: what is left of gradients is noise
        (0.998, 0.05, 0.05, 0.1, ["momentum_too_long"]),  # but it went across them from the start
        (0.99, 0.05, 0.05, 1.0, []),  # the first steps are forgotten
        (0.9, 0.05, 0.05, 1.0, []),
    ],
)
def test_so_is_the_first_moment_of_adam(beta1, first, cosine, end, codes):
    how = {"kind": "adam", "name": "Adam", "rate": 0.03, "beta1": beta1, "beta2": 0.999}
    looks = [StateLook(step=at, own=at, cosine=first if at < 50 else cosine, **how) for at in (3, 30, 60, 90)]
    losses = [4.0 - (4.0 - end) * at / 89 for at in range(90)]
    series = Series(name="model", steps=list(range(90)), norms=[1.0] * 90, losses=losses)
    loop = Loop(RunRecord(totals=[series], losses=losses), LoopFacts(), states=OptimizerFacts(looks=looks))
    assert [issue.code for rule in OPTIMIZER_RULES for issue in rule(loop)] == codes


@pytest.mark.parametrize(
    ("weight_decay", "decoupled", "codes"),
    [(0.1, False, ["decay_dominates"]), (0.1, True, []), (5e-4, False, [])],
)
def test_what_is_usual_of_a_decay_depends_on_where_it_is_added(weight_decay, decoupled, codes):
    how = {"rate": 0.5, "weight_decay": weight_decay, "decoupled": decoupled, "decay": 5.0, "growth": -0.2}
    looks = [StateLook(step=at, own=at, kind="momentum", name="SGD", **how) for at in (3, 30, 60)]
    layer = LayerSeries(name="fc.weight", steps=[1, 2], norms=[1.0] * 2, update_ratios=[0.1, 1.7], is_weight=True)
    loop = Loop(RunRecord(layers=[layer]), LoopFacts(), states=OptimizerFacts(looks=looks))
    found = [issue for rule in OPTIMIZER_RULES for issue in rule(loop)]
    assert [issue.code for issue in found if issue.code == "decay_dominates"] == codes


@pytest.mark.parametrize(
    ("share", "end", "severity"),
    [(0.78, 0.97, "HIGH"), (0.78, 0.6, "MEDIUM"), (0.78, 0.2, "LOW"), (0.6, 0.97, "LOW")],
)
def test_three_quarters_of_lost_steps_are_an_alarm_unless_the_loss_halves_without_them(share, end, severity):
    looks = [StateLook(step=at, own=at, lost=share, needed=2.8, low_precision=1.0, rate=2e-4) for at in (3, 9, 18)]
    losses = [1.0 - (1.0 - end) * at / 59 for at in range(60)]
    series = Series(name="model", steps=list(range(60)), norms=[1.0] * 60, losses=losses)
    loop = Loop(RunRecord(totals=[series], losses=losses), LoopFacts(), states=OptimizerFacts(looks=looks))
    found = [issue for rule in OPTIMIZER_RULES for issue in rule(loop) if issue.code == "lost_updates"]
    assert [issue.severity.name for issue in found] == [severity]


@pytest.mark.parametrize(("decay", "end", "severity"), [(0.9, 0.7, ["MEDIUM"]), (0.9, 0.3, ["LOW"]), (0.62, 0.7, [])])
def test_a_decay_that_weighs_as_much_as_the_gradient_counts_unless_the_loss_halves(decay, end, severity):
    how = {"rate": 0.05, "weight_decay": 0.1, "decay": decay, "growth": -0.01}
    looks = [StateLook(step=at, own=at, kind="momentum", name="SGD", **how) for at in (3, 30, 60)]
    losses = [1.0 - (1.0 - end) * at / 59 for at in range(60)]
    series = Series(name="model", steps=list(range(60)), norms=[1.0] * 60, losses=losses)
    loop = Loop(RunRecord(totals=[series], losses=losses), LoopFacts(), states=OptimizerFacts(looks=looks))
    found = [issue for rule in OPTIMIZER_RULES for issue in rule(loop) if issue.code == "decay_dominates"]
    assert [issue.severity.name for issue in found] == severity
