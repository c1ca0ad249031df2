"""What trainers of reinforcement learning log: each collapse is named, and a healthy course is not."""

import math

import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop import data
from gradient_flow.diagnosis.loop.context import Loop
from gradient_flow.diagnosis.loop.record import LoopFacts
from gradient_flow.diagnosis.loop.rules import with_loop
from gradient_flow.diagnosis.loop.signals import clip_fraction, entropy, kl, zero_variance
from gradient_flow.record.evidence import RunRecord, Series, evidence_of

STEPS = 100


def loop_with(**series):
    signals = {name: (list(range(1, STEPS + 1)), [f(at) for at in range(STEPS)]) for name, f in series.items()}
    return Loop(RunRecord(signals=signals), LoopFacts())


def collapsing(at):
    return 2.0 * math.exp(-at / 10)


@pytest.mark.parametrize(
    ("rule", "series", "code", "step"),
    [
        (entropy, {"entropy": collapsing}, "policy_entropy_collapse", 25),
        (entropy, {"entropy": collapsing, "reward": lambda at: 1 - abs(at - 40) / 60}, "policy_entropy_collapse", 25),
        (kl, {"kl": lambda at: 1e-3 * math.exp(at / 12)}, "kl_runaway", 76),
        (zero_variance, {"zero_std": lambda at: min(1.0, at / 50)}, "no_reward_variance", 41),
        (clip_fraction, {"clip_fraction": lambda at: 0.5}, "clip_fraction_high", 1),
    ],
)
def test_each_is_found_since_its_step(rule, series, code, step):
    (issue,) = rule(loop_with(**series))
    assert (issue.code, issue.severity) == (code, IssueSeverity.MEDIUM)
    assert issue.step == pytest.approx(step, abs=2)
    assert issue.advice


@pytest.mark.parametrize(
    ("rule", "series"),
    [
        (entropy, {"entropy": lambda at: 2.0 - at / 60}),
        (entropy, {"entropy": collapsing, "reward": lambda at: float(at)}),  # it gets better all the time
        (entropy, {"entropy": collapsing, "reward": lambda at: min(at, 40) / 40}),  # solved
        (entropy, {"entropy": lambda at: -1.0 - at}),  # of a density: no share of its start
        (kl, {"kl": lambda at: 0.01 + at / 2000}),
        (kl, {"kl": lambda at: 2.0}),  # it always was: the reference is far, not running away
        (zero_variance, {"zero_std": lambda at: 0.4}),
        (clip_fraction, {"clip_fraction": lambda at: 0.15}),
    ],
)
def test_a_healthy_course_is_not(rule, series):
    assert list(rule(loop_with(**series))) == []


@pytest.mark.parametrize(("more", "sick"), [(0.06, True), (0.04, False)])
def test_a_quarter_of_clipped_ratios_is_too_much_whatever_the_reward_does(more, sick):
    """0 with each batch of samples, and more with each pass: 0.27 and 0.18 in the mean."""
    series = {"clip_fraction": lambda at: more * (at % 10), "reward": lambda at: at / 100}
    assert [i.code for i in clip_fraction(loop_with(**series))] == ["clip_fraction_high"] * sick


def with_rewards(*, start, end, before, now, left=0.05):
    """A policy that becomes sure, and what it is paid: the mean and the deviation, each at the start and at the end."""
    course = lambda a, b: lambda at: a + (b - a) * min(at, 60) / 60  # noqa: E731
    return loop_with(entropy=course(1.6, 1.6 * left), reward=course(start, end), reward_std=course(before, now))


@pytest.mark.parametrize(
    ("paid", "sick"),
    [
        ({"start": 0.5, "end": 0.66, "before": 0.37, "now": 0.3}, True),
        ({"start": 0.5, "end": 0.66, "before": 0.37, "now": 0.3, "left": 0.13}, True),
        ({"start": 0.5, "end": 0.66, "before": 0.37, "now": 0.3, "left": 0.3}, False),  # it still explores
        ({"start": 0.5, "end": 0.85, "before": 0.37, "now": 0.1}, False),  # it knows what pays
        ({"start": 1.0, "end": 5.5, "before": 2.2, "now": 2.1}, False),  # luck differs, and it earns much more
        ({"start": 0.72, "end": 0.89, "before": 0.45, "now": 0.313}, False),  # of 0 and 1: that is what 0.89 means
    ],
)
def test_a_policy_that_is_sure_and_paid_by_chance_has_collapsed_although_its_reward_rose(paid, sick):
    found = list(entropy(with_rewards(**paid)))
    assert [issue.code for issue in found] == ["policy_entropy_collapse"] * sick
    assert all("as if by chance" in issue.message for issue in found)


@pytest.mark.parametrize(("nats", "left", "sick"), [(2.6, 0.3, True), (1.7, 0.3, False), (6.0, 0.8, False)])
def test_two_nats_are_too_many_for_a_policy_that_lost_its_entropy_whatever_it_earns(nats, left, sick):
    rising = lambda at: min(1.0, at / 80)  # noqa: E731
    course = loop_with(kl=lambda at: nats * rising(at), entropy=lambda at: 1 - (1 - left) * rising(at), reward=rising)
    alarms = [issue.code for issue in kl(course) if issue.severity > IssueSeverity.LOW]
    assert alarms == ["kl_runaway"] * sick


def test_a_reward_that_falls_by_a_tenth_of_its_rise_is_still_at_its_best():
    slack = lambda at: min(at, 50) / 50 - max(0, at - 60) / 300  # noqa: E731
    lost = lambda at: min(at, 50) / 50 - max(0, at - 60) / 100  # noqa: E731
    assert not list(entropy(loop_with(entropy=collapsing, reward=slack)))
    assert list(entropy(loop_with(entropy=collapsing, reward=lost)))


@pytest.mark.parametrize(("reward", "severity"), [(lambda at: at / 100, "LOW"), (lambda at: -at, "MEDIUM")])
def test_gradients_that_vary_are_a_remark_where_the_reward_rises(reward, severity):
    unsteady = Issue(
        issue_type=IssueType.UNSTABLE, severity=IssueSeverity.MEDIUM, layer="model", message="", evidence={"noise": 9.0}
    )
    (issue,) = with_loop([unsteady], [], loop_with(reward=reward))
    assert issue.severity.name == severity


@pytest.mark.parametrize(("reward", "severity"), [(lambda at: min(at, 40) / 40, "LOW"), (lambda at: 0.0, "HIGH")])
def test_gradients_of_a_policy_that_is_sure_of_what_pays_may_be_gone(reward, severity):
    gone = Issue(
        issue_type=IssueType.VANISHING,
        severity=IssueSeverity.HIGH,
        layer="head.bias",
        message="",
        evidence={"decades": -3.0, "decades_per_step": -0.05},
    )
    (issue,) = with_loop([gone], [], loop_with(reward=reward))
    assert issue.severity.name == severity


@pytest.mark.parametrize(
    ("layers", "reward", "severity"),
    [
        (["value"], lambda at: min(at, 60) / 60, "LOW"),  # values that this algorithm does without
        (["value"], lambda at: 0.5, "MEDIUM"),
        (["critic.0", "critic.2"], lambda at: min(at, 60) / 60, "MEDIUM"),  # a network of its own, and not a head
    ],
)
def test_a_head_that_the_loss_does_not_use_is_a_remark_where_the_reward_rises(layers, reward, severity):
    idle = Issue(
        issue_type=IssueType.DISCONNECTED,
        severity=IssueSeverity.MEDIUM,
        layer=layers[-1],
        message="",
        evidence={"reaches_loss": False, "layers": layers},
        code="detached",
    )
    (issue,) = with_loop([idle], [], loop_with(reward=reward, reward_std=lambda at: 0.0))
    assert issue.severity.name == severity


def wavers(level):
    return lambda at: min(at, 40) / 40 * level + 0.03 * (-1) ** at


def test_a_policy_that_always_answers_the_same_has_collapsed_although_its_reward_rose():
    series = {"entropy": collapsing, "reward": wavers(0.4), "zero_std": lambda at: min(1.0, at / 40)}
    (issue,) = entropy(loop_with(**series))
    assert issue.severity == IssueSeverity.MEDIUM
    assert "the same answer each time" in issue.message
    assert list(entropy(loop_with(**{**series, "zero_std": lambda at: 0.3}))) == []  # groups still differ
    assert list(entropy(loop_with(**{**series, "reward": lambda at: min(at, 40) / 40}))) == []  # solved


@pytest.mark.parametrize(("within", "sick"), [(0.01, True), (0.2, False)])
def test_so_it_has_where_batches_differ_by_more_than_the_answers_within_a_group(within, sick):
    series = {"entropy": collapsing, "reward": wavers(0.4), "reward_std": lambda at: within}
    assert [issue.code for issue in entropy(loop_with(**series))] == ["policy_entropy_collapse"] * sick


@pytest.mark.parametrize(("nats", "sick"), [(2.0, True), (0.02, False)])
def test_a_policy_without_entropy_far_from_its_reference_has_collapsed_whatever_it_earns(nats, sick):
    series = {"entropy": collapsing, "reward": lambda at: min(at, 40) / 40, "kl": lambda at: nats * min(at, 40) / 40}
    assert [issue.code for issue in entropy(loop_with(**series))] == ["policy_entropy_collapse"] * sick


def test_a_reward_that_rises_by_chance_alone_does_not_count():
    noise = torch.Generator().manual_seed(0)
    level = lambda rise: lambda at: 5 + rise * at / STEPS + 0.1 * float(torch.randn((), generator=noise))  # noqa: E731
    assert [issue.code for issue in entropy(loop_with(entropy=collapsing, reward=level(0.0)))]
    assert not list(entropy(loop_with(entropy=collapsing, reward=level(1.0))))


def test_the_collapse_is_the_cause_of_rewards_without_variance():
    series = {"entropy": collapsing, "reward": wavers(0.4), "zero_std": lambda at: min(1.0, at / 40)}
    loop = loop_with(**series)
    found = with_loop([], [*entropy(loop), *zero_variance(loop)], loop)
    assert [issue.code for issue in found] == ["policy_entropy_collapse"]
    assert [issue.code for issue in found[0].consequences] == ["no_reward_variance"]


def test_a_collapse_in_the_first_steps_is_measured_from_before_it():
    (issue,) = entropy(loop_with(entropy=lambda at: 2.0 if at < 2 else 0.01))
    assert issue.evidence["first"] == 2.0


@pytest.mark.parametrize(
    ("reward", "end", "severity"),
    [
        (lambda at: at / 100, 2.0, IssueSeverity.LOW),  # a policy that learns leaves its reference
        (lambda at: 1 - at / 100, 2.0, IssueSeverity.MEDIUM),
        (lambda at: at / 100, 40.0, IssueSeverity.MEDIUM),  # so far away a reward is cheated
    ],
)
def test_what_the_policy_earns_tells_whether_its_kl_runs_away(reward, end, severity):
    (issue,) = kl(loop_with(kl=lambda at: end * math.exp((at - 99) / 12), reward=reward))
    assert issue.severity == severity


def test_groups_without_variance_are_a_remark_once_the_task_is_solved():
    (issue,) = zero_variance(loop_with(zero_std=lambda at: min(1.0, at / 50), reward=lambda at: min(at, 50) / 50))
    assert issue.severity == IssueSeverity.LOW


def test_too_few_values_say_nothing():
    short = Loop(RunRecord(signals={"entropy": ([1, 2, 3], [2.0, 0.01, 0.001])}), LoopFacts())
    for rule in (entropy, kl, zero_variance, clip_fraction):
        assert list(rule(short)) == []
        assert list(rule(Loop(RunRecord(), LoopFacts()))) == []


@pytest.mark.parametrize("name", ["entropy", "actor/entropy", "train/policy_entropy"])
def test_a_plain_loop_that_logs_it(name):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with gf.watch(model, optimizer, describe=False, looks=False) as flow:
        for at in range(40):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            flow.log(**{name: 1.5 * math.exp(-at / 4)})
            optimizer.step()
    assert len(evidence_of(flow.run).signals["entropy"][0]) == 40
    assert [issue.code for issue in flow.diagnose()] == ["policy_entropy_collapse"]


def test_what_trl_logs_reaches_the_run():
    callback = gf.GradientFlowCallback()

    class Kept:
        def log(self, **values):
            self.logged = values

    callback.flow = Kept()
    callback.on_log(None, None, None, {"frac_reward_zero_std": 0.9, "kl": 0.1, "loss": 0.0, "entropy": "high"})
    assert callback.flow.logged == {"frac_reward_zero_std": 0.9, "kl": 0.1}


@pytest.mark.parametrize(
    ("rate", "codes"),
    [(lambda _at: 1e-3, ["loss_stuck"]), (lambda at: 1e-5 * at, []), (lambda at: 1e-3 / (1 + at), ["loss_stuck"])],
)
def test_a_loss_that_does_not_fall_yet_is_no_fault_while_the_rate_warms_up(rate, codes, monkeypatch):
    monkeypatch.setattr(data, "uninformed", lambda _loop: 1.0)
    steps = list(range(STEPS))
    losses = [1 + 0.05 * (-1) ** at for at in steps]
    series = Series(name="model", steps=steps, norms=losses, losses=losses, rates=[rate(at) for at in steps])
    assert [issue.code for issue in data.stuck(Loop(RunRecord(totals=[series]), LoopFacts()))] == codes


@pytest.mark.parametrize(("nats", "away", "runs"), [(4.0, 10, True), (1.5, 100, False), (0.3, 10, False)])
def test_a_policy_that_was_far_away_before_it_was_certain_ran_away(nats, away, runs):
    far = loop_with(
        entropy=lambda at: 2.0 if at < 15 else 0.01,
        kl=lambda at: nats * min(1.0, at / away),
        reward=lambda at: min(at, 60) / 60,
    )
    found = with_loop([], [*entropy(far), *kl(far)], far)
    alarms = {issue.code for issue in found if issue.severity > IssueSeverity.LOW}
    assert ("kl_runaway" in alarms) == runs
    assert ("policy_entropy_collapse" in alarms) == (nats > 1)  # both are said
