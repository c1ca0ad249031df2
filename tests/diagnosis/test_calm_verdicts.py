"""Runs that are well are told so: converged, solved at once, clipped at every step, with parts for later."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf
from gradient_flow.diagnosis import advice
from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.diagnosis.network.depth import starved_layers, vanishing_over_depth
from gradient_flow.diagnosis.network.record import Activation, AnalysisRecord, Layer, Place
from gradient_flow.diagnosis.network.stability import unstable_norm as unstable_inside
from gradient_flow.diagnosis.robust import fell_beyond_noise
from gradient_flow.diagnosis.run_layer_rules import lost_over_depth, quiet_layers, update_ratios
from gradient_flow.diagnosis.run_rules import clipped_share, trends, unstable_norm
from gradient_flow.record.evidence import LayerSeries, RunRecord, Series
from gradient_flow.report.headline import verdict_sentence

LOW, MEDIUM, HIGH = IssueSeverity.LOW, IssueSeverity.MEDIUM, IssueSeverity.HIGH
INPUTS = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))


def net(seed=0, activation=nn.Tanh):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 32), activation(), nn.Linear(32, 1))


def run(model, optimizer, targets, steps, *, clip=None, factor=1.0):
    """A watched run; an LBFGS is given a closure."""

    def closure():
        optimizer.zero_grad()
        loss = factor * F.mse_loss(model(INPUTS), targets)
        loss.backward()
        return loss

    with gf.watch(model, optimizer) as flow:
        for _ in range(steps):
            if isinstance(optimizer, torch.optim.LBFGS):
                optimizer.step(closure)
                continue
            flow.log(loss=closure().item())
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return flow


def converged():
    """A net that fits its targets, with a loss of next to nothing."""
    model, targets = net(), 0.5 * INPUTS[:, :1]
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=300, line_search_fn="strong_wolfe")
    run(model, optimizer, targets, 3)
    return model, targets


def at_its_floor():
    """A linear model at the least squares of noisy targets: the loss is 1 and cannot fall."""
    targets = INPUTS[:, :1] + torch.randn(64, 1, generator=torch.Generator().manual_seed(2))
    best = torch.linalg.lstsq(torch.cat([INPUTS, torch.ones(64, 1)], 1), targets).solution
    model = nn.Linear(8, 1)
    with torch.no_grad():
        model.weight.copy_(best[:8].T)
        model.bias.copy_(best[8])
    return model, targets


@pytest.mark.parametrize("make", [converged, at_its_floor])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_model_that_has_converged_is_not_slow(make, kind):
    model, targets = make()
    rate = 1e-2 if kind is torch.optim.SGD else 1e-7
    issues = gf.GradientFlowAnalyzer(model).analyze(
        lambda: INPUTS, lambda output: F.mse_loss(output, targets), optimizer=kind(model.parameters(), lr=rate)
    )
    assert [issue for issue in issues if issue.issue_type is not IssueType.VANISHING or issue.severity > LOW] == []
    verdict = run(model, kind(model.parameters(), lr=rate), targets, 60).diagnose()
    assert list(verdict) == []


@pytest.mark.parametrize("rate", [1e-9, 1e-7])
def test_a_rate_that_is_far_too_small_is_slow_all_the_same(rate):
    targets = INPUTS[:, :1]
    model = net()
    (issue,) = gf.GradientFlowAnalyzer(model).analyze(
        lambda: INPUTS,
        lambda output: F.mse_loss(output, targets),
        optimizer=torch.optim.Adam(model.parameters(), lr=rate),
    )
    assert issue.issue_type is IssueType.SLOW
    model = net()
    verdict = run(model, torch.optim.Adam(model.parameters(), lr=rate), targets, 60).diagnose()
    assert (verdict.status, verdict.healthy) == ("slow", False)


@pytest.mark.parametrize("steps", [6, 60])
def test_a_solver_that_is_done_in_a_few_steps_is_healthy(steps):
    for targets in (INPUTS[:, :1] * INPUTS[:, 1:2], 100 * INPUTS[:, :1]):
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
        assert list(run(model, optimizer, targets, steps).diagnose()) == []


def layers(ratio, norm=1.0, count=5):
    usual = {"elements": [1024] * count, "update_ratios": [ratio] * count}
    return [LayerSeries(name="a.weight", steps=list(range(count)), norms=[norm] * count, **usual)]


def test_large_updates_that_solve_the_task_are_not_exploding():
    solved = [100.0, *[1e-4] * 39]
    assert list(update_ratios(RunRecord(layers=layers(3.0), losses=solved))) == []
    (issue,) = update_ratios(RunRecord(layers=layers(3.0), losses=[2.3] * 40))
    assert issue.issue_type is IssueType.EXPLODING


def record(norms, **more):
    return RunRecord(totals=[Series(name="model", steps=list(range(1, len(norms) + 1)), norms=list(norms))], **more)


def wobbling(level, count):
    return [level * (1 + 0.1 * math.sin(5 * k)) for k in range(count)]


def test_a_spike_is_compared_with_its_own_surroundings():
    falls = [*wobbling(1000.0, 50), *wobbling(1.0, 250)]
    falls[40] = 2500.0
    assert list(unstable_norm(record(falls))) == []
    falls[40] = 25000.0
    (issue,) = unstable_norm(record(falls))
    assert (issue.step, round(issue.evidence["largest_over_median"])) == (41, 25)


def test_norms_that_rise_to_a_restless_level_do_not_spike():
    restless = [4.0 * (1 + 0.8 * math.sin(2.3 * k * k)) for k in range(60)]
    assert list(unstable_norm(record([*wobbling(1.0, 20), *restless]))) == []
    jumps = wobbling(1.0, 80)
    jumps[20:80:10] = [6.0] * 6
    (issue,) = unstable_norm(record(jumps))
    assert (issue.severity, issue.evidence["spikes"]) == (MEDIUM, [21, 31, 41, 51, 61, 71])


@pytest.mark.parametrize(
    ("height", "loss", "fall", "severity"),
    [
        (15.0, 1.0, 0.97, LOW),
        (15.0, 5.0, 0.97, MEDIUM),  # the loss jumps with it
        (15.0, 1.0, 1.0, MEDIUM),  # nothing is learnt
        (90.0, 1.0, 0.97, LOW),
        (90.0, 5.0, 0.97, MEDIUM),
    ],
)
def test_a_lone_spike_that_the_loss_does_not_show_is_a_remark(height, loss, fall, severity):
    norms, losses = wobbling(1.0, 80), [fall**k for k in range(80)]
    norms[40], losses[40] = height, loss * losses[40]
    series = Series(name="model", steps=list(range(1, 81)), norms=norms, losses=losses)
    (issue,) = unstable_norm(RunRecord(totals=[series]))
    assert issue.severity == severity
    inside = AnalysisRecord(steps=80, norms=norms, losses=losses, trained=True)
    (issue,) = unstable_inside(inside)
    assert issue.severity == severity


@pytest.mark.parametrize(
    ("height", "loss", "fall", "severity"),
    [
        (14.0, 2.4, 0.97, LOW),
        (14.0, 4.0, 0.97, MEDIUM),  # another kind of sample
        (14.0, 2.4, 1.0, MEDIUM),  # nothing is learnt
        (40.0, 2.4, 0.97, MEDIUM),
    ],
)
def test_one_batch_that_is_louder_than_others_is_a_remark_in_a_run_that_learns(height, loss, fall, severity):
    norms, losses = wobbling(1.0, 80), [fall**k for k in range(80)]
    norms[40], losses[40] = height, loss * losses[40]
    series = Series(name="model", steps=list(range(1, 81)), norms=norms, losses=losses)
    (issue,) = unstable_norm(RunRecord(totals=[series]))
    assert issue.severity == severity


@pytest.mark.parametrize(("tall", "after", "severity"), [(40.0, 1.0, LOW), (40.0, 2.0, HIGH), (400.0, 1.0, HIGH)])
def test_steep_places_of_which_a_falling_loss_knows_nothing_are_a_remark(tall, after, severity):
    norms, losses = wobbling(1.0, 80), [0.98**k for k in range(80)]
    for at in range(20, 70, 8):
        norms[at] = tall
        losses[at + 1 : at + 4] = [after * loss for loss in losses[at + 1 : at + 4]]
    series = Series(name="model", steps=list(range(1, 81)), norms=norms, losses=losses)
    (issue,) = unstable_norm(RunRecord(totals=[series]))
    assert issue.severity == severity


@pytest.mark.parametrize(("wrong", "severity"), [(0.05, LOW), (0.7, LOW), (1.5, HIGH)])
def test_samples_that_are_still_wrong_next_to_a_loss_of_zero_are_a_remark(wrong, severity):
    """Every eighth batch has one: its gradient is far above the others', and its loss below the first of all."""
    norms, losses = wobbling(1e-3, 200), [max(0.9**k, 1e-3) for k in range(200)]
    norms[:60] = [max(0.9**k, 1e-3) for k in range(60)]
    norms[100:200:8], losses[100:200:8] = [0.4] * 13, [wrong] * 13
    series = Series(name="model", steps=list(range(1, 201)), norms=norms, losses=losses)
    (issue,) = unstable_norm(RunRecord(totals=[series]))
    assert issue.severity == severity


def test_a_vector_that_no_batch_uses_is_a_remark_while_the_rest_learns():
    at_work = layers(1e-3)[0]
    hidden = LayerSeries(name="hidden", steps=list(range(5)), norms=[0.0] * 5, is_weight=False)
    falling, still = ({"losses": [fall**k for k in range(40)]} for fall in (0.95, 1.0))
    assert next(quiet_layers(RunRecord(layers=[at_work, hidden], **falling))).severity == LOW
    assert next(quiet_layers(RunRecord(layers=[at_work, hidden], **still))).severity == IssueSeverity.HIGH
    died = LayerSeries(name="hidden", steps=list(range(5)), norms=[1.0, 0.0, 0.0, 0.0, 0.0], is_weight=False)
    matrix = LayerSeries(name="table", steps=list(range(5)), norms=[0.0] * 5)
    for each in (died, matrix):
        assert next(quiet_layers(RunRecord(layers=[at_work, each], **falling))).severity == IssueSeverity.HIGH


def test_the_bias_of_a_layer_at_work_is_not_dead():
    at_work = layers(1e-3)[0]
    bias = LayerSeries(name="a.bias", steps=list(range(5)), norms=[0.0] * 5, is_weight=False)
    other = LayerSeries(name="b.weight", steps=list(range(5)), norms=[0.0] * 5)
    assert list(quiet_layers(RunRecord(layers=[at_work, bias]))) == []
    inside = replace(at_work, name=at_work.name.replace("weight", "parametrizations.weight.original"))
    assert list(quiet_layers(RunRecord(layers=[inside, bias]))) == []  # as spectral norms keep it
    (issue,) = quiet_layers(RunRecord(layers=[at_work, bias, other]))
    assert issue.layer == "b.weight"


def test_clipping_at_every_step_is_a_remark_that_no_headline_calls_an_issue():
    clipped = Series(name="model", steps=list(range(30)), norms=[2.0] * 30, clipped_norms=[1.0] * 30)
    (issue,) = clipped_share(RunRecord(totals=[clipped]))
    assert issue.severity == LOW
    model = net()
    verdict = run(
        model, torch.optim.Adam(model.parameters(), lr=1e-3), INPUTS[:, :1], 40, clip=0.05, factor=10.0
    ).diagnose()
    assert verdict.healthy
    for sentence in (verdict.message, verdict_sentence(verdict)):
        assert sentence.startswith("Healthy, with a remark")
        assert "UNSTABLE" not in sentence.upper()


def test_a_head_for_later_is_a_remark():
    model = net()
    model.later = nn.Linear(32, 5)
    trunk = model[:3]
    model.forward = lambda x: trunk(x)
    (issue,) = gf.GradientFlowAnalyzer(model).analyze(lambda: INPUTS, lambda output: output.square().mean())
    assert (issue.issue_type, issue.severity, issue.layer) == (IssueType.DISCONNECTED, LOW, "later")


class Copied(nn.Module):
    """Three hidden layers; `order` is how `forward` calls them."""

    def __init__(self, order):
        super().__init__()
        self.fc1, self.fc2, self.fc3, self.out = (
            nn.Linear(8, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 1),
        )
        self.order = order

    def forward(self, x):
        for name in self.order:
            x = torch.tanh(getattr(self, name)(x))
        return self.out(x)


@pytest.mark.parametrize(
    ("order", "severity"),
    [(("fc1", "fc2", "fc2"), MEDIUM), (("fc1", "fc2"), LOW)],  # in its place another one runs twice; it waits
)
def test_a_layer_in_whose_place_another_one_runs_twice_is_more_than_a_remark(order, severity):
    analyzer = gf.GradientFlowAnalyzer(Copied(order))
    issues = analyzer.analyze(lambda: INPUTS, lambda output: (output - 1).square().mean())
    assert [(i.issue_type, i.severity, i.layer) for i in issues] == [(IssueType.DISCONNECTED, severity, "fc3")]
    assert ("fc2" in issues[0].cause) is (severity == MEDIUM)


# ---- advice ---------------------------------------------------------------------------------------------------------


def test_no_limit_is_advised_that_nobody_would_set():
    huge = [3e7 * norm for norm in wobbling(1.0, 40)]
    assert not re.search(r"[Cc]lip the norm at \d", advice.clip_at(huge))
    assert "Clip the norm at" in advice.clip_at(wobbling(1.0, 40))
    assert "e3" not in advice.learning_rate_up_to(0.01, 2.9e-9)
    rising = [*wobbling(1.0, 40), *(1.0 * 2**k for k in range(26))]
    (issue,) = trends(record(rising))
    assert any("Clip the norm at 1." in text for text in issue.advice)


def test_one_rate_is_given_one_factor():
    rising = [*wobbling(1.0, 40), *(1.0 * 2**k for k in range(26))]
    run_record = record(rising, layers=layers(3.0), learning_rate=0.1)
    texts = [text for rule in (trends, update_ratios) for issue in rule(run_record) for text in issue.advice]
    assert len({text for text in texts if "rate" in text}) == 1


def test_norms_that_overflow_are_no_depth():
    norms = [[1e-9, math.inf], [1e-8, math.inf], [1e-7, math.inf], [1e-6, math.inf], [math.inf, math.inf]]
    series = [
        LayerSeries(name=f"{k}.weight", steps=[0, 1], norms=each, elements=[64, 64]) for k, each in enumerate(norms)
    ]
    assert not list(lost_over_depth(RunRecord(layers=series)))  # three decades, and of the last layer nothing is known


def test_nobody_is_told_to_use_what_they_use():
    depth = [LayerSeries(name=f"{k}.weight", steps=[0], norms=[10.0 ** (k - 8)], elements=[64]) for k in range(8)]
    (issue,) = lost_over_depth(RunRecord(layers=depth))
    assert any(text.startswith("Where activations are sigmoid or tanh") for text in issue.advice)
    assert "1/" not in issue.message
    assert "10,000,000 times smaller" in issue.message

    def relu_net(*activations):
        usual = {"role": "output", "call": 0, "units": 64, "size": 64, "samples": 64, "positions": 1, "rms": [1.0] * 3}
        kinds = ["Linear", "ReLU"] * 6 + ["Linear", "Sigmoid"]
        places = [
            Place(
                name=str(k),
                kind=kind,
                layer=str(k),
                order=k,
                own_weights=kind == "Linear",
                from_data=k == 0,
                gradient=[4.0 ** (k - 12)] * 3,
                **usual,
            )
            for k, kind in enumerate(kinds)
        ]
        names = [place.name for place in places if place.own_weights]
        found = [Layer(name=name, kind="Linear", trainable=True, order=int(name)) for name in names]
        way = {"chains": [list(range(len(kinds)))], "averaging": [[0.0] * len(kinds)]}
        return AnalysisRecord(
            steps=3, watched=[0, 1, 2], places=places, layers=found, activations=list(activations), **way
        )

    (issue,) = vanishing_over_depth(relu_net())
    assert not any("ReLU" in text for text in issue.advice)
    inner = Activation(layer="2", kind="Sigmoid", flat_share=0.1, mean_slope=0.5, is_last=False)
    (issue,) = vanishing_over_depth(relu_net(inner))
    assert any("ReLU" in text for text in issue.advice)


# ---- what stays found -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "learnt", "expected"), [(1.0, True, []), (1e-6, False, ["SLOW"])])
def test_a_classifier_that_has_learnt_is_not_slow_and_a_loss_that_is_scaled_down_is(factor, learnt, expected):
    torch.manual_seed(0)
    labels = INPUTS[:, :4].argmax(dim=1)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    if learnt:
        fit = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(400):
            fit.zero_grad()
            F.cross_entropy(model(INPUTS), labels).backward()
            fit.step()
    issues = gf.GradientFlowAnalyzer(model).analyze(
        lambda: INPUTS,
        lambda output: factor * F.cross_entropy(output, labels),
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
    )
    assert [issue.issue_type.name for issue in issues if issue.severity > LOW] == expected


def test_a_part_of_a_layer_that_ran_under_no_grad_is_more_than_a_remark():
    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 1)

        def forward(self, x):
            with torch.no_grad():
                x, _ = self.encoder(x, x, x)
            return self.head(x)

    issues = gf.GradientFlowAnalyzer(Detached()).analyze(
        lambda: INPUTS.reshape(8, 8, 8), lambda output: output.square().mean()
    )
    assert max(issue.severity for issue in issues) == MEDIUM


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_batches_is_no_fall_of_the_loss(seed):
    noise = np.random.default_rng(seed).normal(size=40)
    assert not fell_beyond_noise((8 + 2 * noise).tolist())
    assert fell_beyond_noise((8 * 0.95 ** np.arange(40) + 0.2 * noise).tolist())


@pytest.mark.parametrize(("frozen", "starved"), [(True, []), (False, ["1"])])
def test_a_layer_of_which_only_the_bias_trains_does_not_starve(frozen, starved):
    """The bias of keys cancels in the softmax, and its gradient is rounding; a matrix with so little has a fault."""
    layers = [
        Layer(name=name, kind="Linear", trainable=True, matrix=f"{name}.weight", gradient=[size, size])
        for name, size in (("0", 1.0), ("1", 1e-10))
    ]
    layers[1].matrix_frozen = frozen
    assert [issue.layer for issue in starved_layers(AnalysisRecord(steps=2, layers=layers))] == starved
