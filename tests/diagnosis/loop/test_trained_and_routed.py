"""What stays as it is, what gets gradients of zero, and what routers and rows explain: found, and not overstated."""

from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradient_flow as gf
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop.context import Loop
from gradient_flow.diagnosis.loop.data import stuck
from gradient_flow.diagnosis.loop.record import LoopFacts, LoopLook, LossCall
from gradient_flow.diagnosis.loop.rules import with_loop
from gradient_flow.diagnosis.loop.trained import frozen, unmoved
from gradient_flow.diagnosis.optimizer.record import OptimizerFacts, StateLook, TensorState
from gradient_flow.record.evidence import LayerSeries, RunRecord, Series

FALLS = [2.0 * 0.97**at for at in range(80)]


def rounded(*, elements=64, dtype="bfloat16", rate=1e-3, losses=FALLS, low_precision=1.0):
    """A run in which `norm.weight` never moves, beside 10,000 elements that do."""
    steps = list(range(1, len(losses) + 1))
    layers = [
        LayerSeries(name="norm.weight", steps=[1], norms=[1.0], elements=[elements]),
        LayerSeries(name="fc.weight", steps=[1], norms=[1.0], elements=[10_000], is_weight=True, update_ratios=[1e-3]),
    ]
    run = RunRecord(totals=[Series(name="model", steps=steps, norms=losses, losses=losses)], layers=layers)
    looks = [LoopLook(step=step, rate=1e-3) for step in (3, 26, 51)]
    states = OptimizerFacts(
        looks=[StateLook(step=3, low_precision=low_precision)],
        tensors=[TensorState(name="norm.weight", elements=elements, dtype=dtype, rate=rate)],
    )
    return Loop(run, LoopFacts(looks=looks, taken=3, still=["norm.weight"], moving=2), None, states)


def test_norms_lost_to_rounding_are_a_remark_while_the_rest_learns():
    (issue,) = unmoved(rounded())
    assert (issue.code, issue.severity) == ("never_moves", IssueSeverity.LOW)


@pytest.mark.parametrize(
    "how",
    [
        {"elements": 2_000},  # a considerable share
        {"losses": [2.0 + 0.1 * (-1) ** at for at in range(80)]},  # and nothing is learned
        {"rate": 0.0},  # a group that somebody forgot
        {"dtype": "float32", "low_precision": 0.0},  # no rounding explains it
    ],
)
def test_otherwise_it_is_an_alarm(how):
    (issue,) = unmoved(rounded(**how))
    assert (issue.code, issue.severity) == ("never_moves", IssueSeverity.HIGH)


@pytest.mark.parametrize(
    ("losses", "severity"),
    [(FALLS, IssueSeverity.LOW), ([2.0 * 0.999**at for at in range(80)], IssueSeverity.HIGH), ([], IssueSeverity.LOW)],
)
def test_random_features_that_an_optimizer_holds_are_a_remark_while_much_is_learned_of_them(losses, severity):
    run = RunRecord(totals=[Series(name="model", steps=list(range(len(losses))), norms=losses, losses=losses)])
    looks = [LoopLook(step=step) for step in (3, 26, 51)]
    (issue,) = frozen(Loop(run, LoopFacts(looks=looks, taken=3, fresh=["project.weight"])))
    assert (issue.code, issue.severity) == ("frozen", severity)


def test_a_margin_that_is_kept_gives_gradients_of_zero_and_is_not_cut_off():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    with gf.watch(model, optimizer, describe=False) as flow:
        for _ in range(230):
            x = torch.randn(16, 4)
            x[:, 0] += x[:, 0].sign()
            loss = F.relu(1 - x[:, :1].sign() * model(x)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert loss == 0
    assert "detached_loss" not in [issue.code for issue in flow.diagnose()]


def test_a_loss_that_is_cut_off_later_is_still_found():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with gf.watch(model, optimizer, describe=False) as flow:
        for step in range(230):
            x = torch.randn(16, 4)
            optimizer.zero_grad()
            loss = (model(x) - x[:, :1]).square().mean()
            if step < 20:
                loss.backward()
            optimizer.step()
    assert "detached_loss" in [issue.code for issue in flow.diagnose()]


class _Experts(nn.Module):
    top_k: ClassVar[int] = 1

    def __init__(self, push):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        with torch.no_grad():
            self.gate.bias[0] = push

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.stack([expert(x) for expert in self.experts], 1)
        return weight[:, None] * out[torch.arange(len(x)), chosen]


@pytest.mark.parametrize(("push", "codes"), [(9.0, ["router_collapse"]), (0.0, [])])
def test_idle_experts_follow_from_their_router(push, codes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), _Experts(push), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    way = torch.randn(8, 3)
    with gf.watch(model, optimizer, describe=False, looks=(3, 6, 9, 12, 20, 40), budget=1.0) as flow:
        for _ in range(60):
            x = torch.randn(64, 8)
            optimizer.zero_grad()
            F.cross_entropy(model(x), (x @ way).argmax(1)).backward()
            optimizer.step()
    alarms = [issue for issue in flow.diagnose() if issue.severity > IssueSeverity.LOW]
    assert [issue.code for issue in alarms] == codes
    if codes:
        assert "only_decay" in [issue.code for issue in alarms[0].consequences]


@pytest.mark.parametrize(
    ("share", "stuck", "severity"),
    [(0.95, True, IssueSeverity.MEDIUM), (0.95, False, IssueSeverity.LOW), (0.7, True, IssueSeverity.LOW)],
)
def test_a_row_with_the_whole_gradient_is_an_alarm_where_nothing_is_learned(share, stuck, severity):
    row = Issue(
        issue_type=IssueType.LOOP,
        severity=IssueSeverity.LOW,
        layer="words",
        message="",
        evidence={"share": share},
        code="embedding_row",
    )
    idle = Issue(issue_type=IssueType.LOOP, severity=IssueSeverity.MEDIUM, layer="model", message="", code="loss_stuck")
    found = with_loop([row], [idle] if stuck else [], Loop(RunRecord(), LoopFacts()))
    assert next(issue.severity for issue in found if issue.code == "embedding_row") == severity
    alarms = [issue.code for issue in found if issue.severity > IssueSeverity.LOW]
    assert alarms == (["embedding_row"] if severity > IssueSeverity.LOW else ["loss_stuck"] * stuck)


@pytest.mark.parametrize(("level", "severity"), [(1.61, IssueSeverity.MEDIUM), (1.3, IssueSeverity.LOW)])
def test_so_it_is_where_the_loss_is_that_of_a_guess_though_predictions_go_with_their_targets(level, severity):
    losses = [level + 0.02 * (-1) ** at for at in range(90)]
    calls = [
        LossCall(
            function="cross_entropy", classes=5, of_output=True, value=level, entropy=1.6, agreement=3.0, labels=48
        )
        for _ in range(6)
    ]
    looks = [LoopLook(step=10 + at, backwards=1, loss=level, calls=[call]) for at, call in enumerate(calls)]
    run = RunRecord(totals=[Series(name="model", steps=list(range(90)), norms=[1.0] * 90, losses=losses)])
    row = Issue(
        issue_type=IssueType.LOOP,
        severity=IssueSeverity.LOW,
        layer="words",
        message="",
        evidence={"share": 0.99},
        code="embedding_row",
    )
    loop = Loop(run, LoopFacts(looks=looks, taken=6))
    assert not list(stuck(loop))
    assert [issue.severity for issue in with_loop([row], [], loop)] == [severity]


@pytest.mark.parametrize(
    ("silent", "code"),
    [
        (["experts.1.0.weight", "experts.1.2.bias"], "router_collapse"),
        (["experts.1.0.weight"], ""),  # units that died: the last bias of the expert still has a gradient
        (["experts.0.0.weight", "experts.0.2.bias", "experts.1.0.weight", "experts.1.2.bias"], ""),  # all of them
        (["experts.1.0.weight", "experts.1.2.bias", "head.weight"], ""),
    ],
)
@pytest.mark.parametrize("routed", [True, False])
def test_experts_without_any_gradient_are_the_work_of_their_router(silent, code, routed):
    names = ["router.weight", *(f"experts.{at}.{part}" for at in range(2) for part in ("0.weight", "2.bias"))]
    layers = [LayerSeries(name=name, steps=[1], norms=[1.0]) for name in [*names, "head.weight"]]
    seen = {"routing": {"stats": {"routers": [{"name": "router", "experts": 2}]}}} if routed else {}
    dead = Issue(
        issue_type=IssueType.DEAD,
        severity=IssueSeverity.HIGH,
        layer=silent[0],
        message="silent.",
        evidence={"layers": silent},
    )
    (issue,) = with_loop([dead], [], Loop(RunRecord(layers=layers, seen=seen), LoopFacts()))
    found = code if routed else ""
    assert (issue.code, issue.layer) == (found, "router" if found else silent[0])


@pytest.mark.parametrize(("update", "code"), [(1e-3, "loss_stuck"), (7e-6, "rate_too_low")])
def test_a_model_that_steps_leave_as_it_was_has_a_rate_that_is_too_low(update, code):
    losses = [1.8 + 0.05 * (-1) ** at for at in range(60)]
    series = Series(name="model", steps=list(range(1, 61)), norms=[1.0] * 60, losses=losses)
    layer = LayerSeries(name="fc.weight", steps=[10, 20, 30], norms=[1.0] * 3, update_ratios=[update] * 3)
    run = RunRecord(totals=[series], layers=[layer], losses=losses, learning_rate=1e-6)
    call = {"function": "cross_entropy", "value": 1.8, "of_output": True, "classes": 6, "entropy": 1.8}
    looks = [LoopLook(step=step, backwards=1, loss=1.8, calls=[LossCall(**call)]) for step in (3, 26, 51)]
    loop = Loop(run, LoopFacts(looks=looks, taken=3))
    (issue,) = with_loop([], list(stuck(loop)), loop)
    assert (issue.code, issue.severity.name) == (code, "MEDIUM")


@pytest.mark.parametrize(
    ("remark", "losses", "severity"),
    [
        ({"issue_type": IssueType.RANK_COLLAPSE}, [1.8, 1.81] * 30, "MEDIUM"),
        ({"issue_type": IssueType.RANK_COLLAPSE}, [1.8 * 0.98**at for at in range(60)], "LOW"),  # it learns
        ({"issue_type": IssueType.RANK_COLLAPSE}, [1.8, 1.81] * 10, "LOW"),  # it has just begun
        ({"issue_type": IssueType.RANK_COLLAPSE}, [0.1, -0.1] * 30, "LOW"),  # a sum of advantages
        ({"issue_type": IssueType.BOTTLENECK, "evidence": {"units": 1}}, [1.8, 1.81] * 30, "MEDIUM"),
        ({"issue_type": IssueType.BOTTLENECK, "evidence": {"units": 16}}, [1.8, 1.81] * 30, "LOW"),
        ({"issue_type": IssueType.UNSTABLE}, [1.8, 1.81] * 30, "LOW"),  # it would not keep a model from its input
    ],
)
def test_a_remark_that_would_explain_it_is_the_cause_of_a_loss_that_does_not_fall(remark, losses, severity):
    said = Issue(severity=IssueSeverity.LOW, layer="fc", message="narrow.", **remark)
    steps = list(range(1, len(losses) + 1))
    series = Series(name="model", steps=steps, norms=[1.0] * len(losses), losses=losses)
    loop = Loop(RunRecord(totals=[series], losses=losses), LoopFacts())
    (issue,) = with_loop([said], [], loop)
    assert issue.severity.name == severity
    assert issue.message == ("narrow, and the loss does not fall." if severity == "MEDIUM" else "narrow.")


@pytest.mark.parametrize(("idle", "severity"), [([1], "LOW"), ([1, 2], "HIGH"), ([0, 1, 3], "HIGH")])
def test_one_idle_expert_of_four_is_in_reserve(idle, severity):
    names = [f"experts.{at}.{part}" for at in range(4) for part in ("0.weight", "2.bias")]
    layers = [LayerSeries(name=name, steps=[1], norms=[1.0]) for name in ["router.weight", *names]]
    silent = [name for name in names if int(name.split(".")[1]) in idle]
    dead = Issue(
        issue_type=IssueType.DEAD,
        severity=IssueSeverity.HIGH,
        layer=silent[0],
        message="silent.",
        evidence={"layers": silent},
    )
    decays = Issue(
        issue_type=IssueType.DISCONNECTED,
        severity=IssueSeverity.HIGH,
        layer="experts.1.0",
        message="",
        evidence={"parameters": [name for name in silent if name.startswith("experts.")]},
        code="only_decay",
    )
    seen = {"routing": {"stats": {"routers": [{"name": "router", "experts": 4}]}}}
    (issue,) = with_loop([dead], [decays], Loop(RunRecord(layers=layers, seen=seen), LoopFacts()))
    assert (issue.code, issue.severity.name) == ("router_collapse", severity)
