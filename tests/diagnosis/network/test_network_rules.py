"""Rules as pure functions of plain records: no torch is needed, and each is silent without its evidence."""

import math
import subprocess
import sys

import pytest

from gradient_flow.diagnosis import advice
from gradient_flow.diagnosis.consolidation import consolidate
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.bottleneck import bottlenecks, worth_ranking
from gradient_flow.diagnosis.network.dead import dead_units
from gradient_flow.diagnosis.network.profile import activation_gain, depth_profiles
from gradient_flow.diagnosis.network.record import Activation, AnalysisRecord, Layer, Place
from gradient_flow.diagnosis.network.stability import spikes
from gradient_flow.diagnosis.network.updates import learning_rate_too_large
from gradient_flow.diagnosis.registry import register_rule
from gradient_flow.diagnosis.verdict import NETWORK, judge
from gradient_flow.errors import InputError
from gradient_flow.record.evidence import ANALYSIS, RunRecord
from gradient_flow.record.plain import to_plain


def judge_analysis(record):
    """As an analyzer does: the record goes through the plain form that a look keeps."""
    return list(judge(RunRecord(source=ANALYSIS, seen={NETWORK: to_plain(record)})))


def stack(gradients, rms=None, units=64, **more):
    """A record of a plain stack of layers with these gradient norms, from the first to the output."""
    count = len(gradients)
    rms = rms or [1.0] * count
    places = [
        Place(
            name=str(k),
            role="output",
            call=0,
            kind="Linear",
            layer=str(k),
            order=k,
            units=units,
            size=units,
            samples=128,
            positions=1,
            own_weights=True,
            from_data=k == 0,
            from_batch=k == 0,
            rms=[rms[k]] * 3,
            gradient=[gradients[k]] * 3,
            bad_values=[0] * 3,
            bad_gradients=[0] * 3,
            dead_share=0.0,
            rows_seen=500,
        )
        for k in range(count)
    ]
    layers = [
        Layer(name=str(k), kind="Linear", trainable=True, order=k, gradient_seen=True, gradient=[1.0] * 3)
        for k in range(count)
    ]
    settings = {"watched": [0, 10, 19], "losses": [2.3] * 20, "norms": [1.0] * 20, "input_units": 64, **more}
    chain = list(range(count))
    return AnalysisRecord(steps=20, places=places, layers=layers, chains=[chain], averaging=[[0.0] * count], **settings)


def kinds(issues):
    return [issue.issue_type.name for issue in issues]


def test_a_level_stack_is_healthy():
    assert judge_analysis(stack([1.0] * 10)) == []


def test_rules_need_no_torch():
    rules = "gradient_flow.diagnosis.network.rules, gradient_flow.diagnosis.run_rules"
    code = f"import sys, {rules}; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
@pytest.mark.parametrize(("per_layer", "expected"), [(0.5, ["VANISHING"]), (0.9, []), (1.0, []), (1.8, ["EXPLODING"])])
def test_only_ratios_count(per_layer, expected, scale):
    gradients = [scale * per_layer ** (11 - k) for k in range(12)]
    assert kinds(judge_analysis(stack(gradients))) == expected


def test_severity_follows_the_evidence():
    def severity(decades):
        gradients = [10 ** (-decades * (10 - k) / 10) for k in range(11)] + [1.0]
        return [issue.severity for issue in judge_analysis(stack(gradients))]

    assert [severity(d) for d in (2.0, 2.7, 3.2, 5.0)] == [[], [2], [3], [4]]


def test_the_culprit_is_the_one_layer_that_does_it():
    gradients = [1e-4] * 5 + [1.0] * 5
    (issue,) = judge_analysis(stack(gradients))
    assert issue.layer == "5"
    assert "`5` by 10,000" in issue.advice[0]


def test_small_head_is_not_vanishing():
    assert judge_analysis(stack([1e-4] * 9 + [1.0])) == []


def test_averages_are_taken_out():
    record = stack([1e-3] * 4 + [1.0] * 4)
    record.averaging[0][3] = 3.0  # a mean over a million positions
    assert judge_analysis(record) == []


def test_gains_add_up():
    profile = depth_profiles(stack([0.25, 0.5, 1.0, 4.0]))[0]
    assert profile.gain == pytest.approx(math.log10(0.25))
    assert profile.head.gain == pytest.approx(math.log10(0.25))


def test_one_cause_one_issue():
    record = stack([1e-12, 1e-8, 1e-5, 1e-3, 1.0, 1.0])
    record.activations = [Activation(layer="3", kind="Tanh", flat_share=0.9, mean_slope=0.05, is_last=False)]
    (issue,) = judge_analysis(record)
    assert (issue.issue_type, issue.layer) == (IssueType.SATURATION, "3")
    assert kinds(issue.consequences) == ["VANISHING"]


def test_nan_weights_take_everything_in():
    record = stack([1e-12, 1e-8, 1e-4, 1.0, 1.0])
    record.layers[2].bad_weights = 1
    (issue,) = judge_analysis(record)
    assert (issue.issue_type, issue.layer) == (IssueType.NUMERICAL, "2")
    assert "VANISHING" in kinds(issue.consequences)


def test_a_side_layer_without_gradient_explains_nothing():
    record = stack([1e-12, 1e-8, 1e-4, 1.0, 1.0])
    record.layers.append(Layer(name="aux", kind="Linear", trainable=True, order=99))
    assert sorted(kinds(judge_analysis(record))) == ["DISCONNECTED", "VANISHING"]


def test_dead_share_must_stand_out():
    record = stack([1.0] * 6)
    for place, share in zip(record.places, [0.0, 0.1, 0.2, 0.3, 0.4, 0.0], strict=True):
        place.dead_share = share  # rises with depth, as in every deep stack
    assert judge_analysis(record) == []
    record.places[2].dead_share = 0.55
    record.places[3].dead_share = record.places[4].dead_share = 0.0
    record.places[2].variation = 0.9
    (issue,) = judge_analysis(record)
    assert (issue.issue_type, issue.layer) == (IssueType.DEAD, "2")
    record.places[2].samples = 2  # in three looks six pictures, however many positions each has
    assert judge_analysis(record) == []
    record.places[2].samples = 128
    record.layers[2].trainable = False
    assert judge_analysis(record) == []


@pytest.mark.parametrize(
    ("share", "variation", "found"),
    [
        (0.6, 0.75, ["DEAD"]),
        (0.47, 0.75, []),  # as many as a draw may leave silent
        (0.6, 0.5, []),  # samples that are alike: units keep their sign for all of them
    ],
)
def test_units_that_are_silent_by_chance_are_not_dead(share, variation, found):
    record = stack([1.0] * 4)
    record.places[2].dead_share, record.places[2].variation = share, variation
    assert kinds(judge_analysis(record)) == found


def test_units_that_a_training_does_well_without_are_a_remark():
    losses = {rate: [rate**k for k in range(40)] for rate in (1.0, 0.9)}
    for rate, severity in ((1.0, IssueSeverity.HIGH), (0.9, IssueSeverity.LOW)):
        record = stack([1.0] * 4, trained=True, losses=losses[rate])
        record.places[2].dead_share, record.places[2].variation = 0.5, 0.9
        assert [issue.severity for issue in dead_units(record)] == [severity]
    record.places[2].dead_share = 0.95
    assert [issue.severity for issue in dead_units(record)] == [IssueSeverity.HIGH]


@pytest.mark.parametrize(("units", "rate", "narrow"), [(8, 0.98, False), (8, 1.0, True), (4, 0.98, True)])
def test_a_code_for_most_directions_of_the_data_is_wide_enough_where_it_learns(units, rate, narrow):
    losses = [rate**k + 0.01 * (k % 3) for k in range(40)]
    record = stack([1.0] * 4, trained=True, losses=losses, input_size=64, input_rank=11.0, sample_rank=11.0)
    code, output = record.places[1], record.places[-1]
    code.units = code.size = units
    code.rank = code.gradient_rank = 3.0
    output.gradient_rank = record.places[0].rank = 11.0
    assert [issue.layer for issue in bottlenecks(record)] == (["1"] if narrow else [])


def test_an_activation_is_judged_by_what_it_takes_and_not_by_a_factor_before_it():
    record = stack([8.0, 0.03, 1.8, 1.0])
    for place, role in ((record.places[1], "input"), (record.places[2], "output")):
        place.own_weights, place.role = False, role
    assert activation_gain(record, "0") == pytest.approx(math.log10(0.03 / 1.8))
    record.places[1].role = "output"
    assert activation_gain(record, "0") == pytest.approx(math.log10(8.0 / 0.03))


def test_update_ratios_and_advice():
    record = stack([1.0] * 4, trained=True, learning_rate=0.06, optimizer="Adam")
    for layer in record.layers:
        layer.matrix, layer.update_ratio = f"{layer.name}.weight", [1e-3] * 3
    assert judge_analysis(record) == []
    record.layers[2].update_ratio = [2.0] * 3
    (issue,) = judge_analysis(record)
    assert (issue.issue_type, issue.layer) == (IssueType.EXPLODING, "2")
    assert issue.advice[0].startswith("Lower the learning rate from 0.06 to 0.0003 or less: the update ratio is 2")


def moved(ratio, losses):
    """What is said of a training whose steps move weights by these shares, and whose losses these are."""
    record = stack([1.0] * 4, trained=True, learning_rate=0.06, optimizer="SGD", losses=losses)
    for layer in record.layers:
        layer.matrix, layer.update_ratio = f"{layer.name}.weight", ratio
    return list(learning_rate_too_large(record))


def test_a_loss_that_stays_far_above_its_first_value_has_diverged_although_it_falls_from_its_peak():
    thrown = [2.5, 185.0, 62000.0, 40000.0, 30000.0, *[20000.0] * 15]
    (issue,) = moved([0.42, 0.16, 0.05], thrown)
    assert issue.severity == IssueSeverity.CRITICAL
    assert "the loss is 8,000 times the first" in issue.message
    assert moved([0.42, 0.16, 0.05], [2.5 * 0.9**k for k in range(20)]) == []
    assert moved([0.05, 0.04, 0.05], thrown) == []  # whatever threw it up, these steps did not


def test_ratios_of_losses_on_both_sides_of_zero_say_nothing_of_the_rate():
    level = [1.0, 1.1, 0.9, 1.0] * 5
    assert [issue.severity for issue in moved([0.4] * 3, level)] == [IssueSeverity.MEDIUM]
    assert moved([0.4] * 3, [0.1 * (-1) ** k * loss for k, loss in enumerate(level)]) == []


def test_same_type_in_one_layer_is_said_once():
    low = Issue(issue_type=IssueType.VANISHING, severity=IssueSeverity.LOW, layer="0", message="level")
    high = Issue(issue_type=IssueType.VANISHING, severity=IssueSeverity.HIGH, layer="0", message="profile")
    assert consolidate([low, high], stack([1.0] * 3)) == [high]


def test_spikes_need_a_floor():
    assert spikes([1.0] * 19 + [1.5]) == []
    assert spikes([1.0] * 19 + [50.0]) == [19]


def test_clip_advice_touches_the_share_it_names():
    norms = list(range(1, 101))
    assert "Clip the norm at 90.1: that affects 10%" in advice.clip_at(norms)


def test_bad_rules_are_refused():
    with pytest.raises(InputError, match="`rule`"):
        register_rule(42)
    with pytest.raises(InputError, match="`of`"):
        register_rule(lambda record: [], of="flow")


def test_infinities_that_a_softmax_absorbs_are_no_issue_and_those_that_reach_the_loss_are():
    import torch
    from torch import nn

    from gradient_flow import GradientFlowAnalyzer, IssueType

    class Masked(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.net, self.value = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 6)), value

        def forward(self, x):
            scores = self.net(x)
            mask = torch.zeros_like(scores, dtype=torch.bool)
            mask[:, 3] = True
            return scores.masked_fill(mask, self.value)

    torch.manual_seed(0)
    targets = torch.randint(3, (64,))
    for value, expected in ((-math.inf, []), (math.inf, [IssueType.NUMERICAL])):
        issues = GradientFlowAnalyzer(Masked(value)).analyze(
            lambda: torch.randn(64, 8), lambda output: nn.functional.cross_entropy(output, targets), steps=3
        )
        assert [issue.issue_type for issue in issues] == expected
        assert all(issue.layer for issue in issues)


def _place(order, units, *, own=True, role="output", positions=1):
    return Place(
        name=str(order),
        role=role,
        call=0,
        kind="Linear",
        layer=str(order),
        order=order,
        units=units,
        size=units * positions,
        samples=32,
        positions=positions,
        own_weights=own,
        from_data=order == 0,
    )


def test_ranks_are_asked_for_where_a_layer_is_narrow_and_nowhere_in_a_stream_of_one_width():
    record = AnalysisRecord(steps=1, trained=True)
    record.input_units = record.input_size = 64
    hourglass = [_place(at, units) for at, units in enumerate([64, 8, 64, 10])]
    assert worth_ranking(record, hourglass, 0) == [1]
    tiny = [_place(0, 64), _place(1, 2), _place(2, 64, own=False)]
    assert worth_ranking(record, tiny, 0) == [1]
    # A transformer: words come in, sums of width 384 all the way, and the product with the table is no layer's.
    record.input_units = record.input_size = 0
    stream = [_place(0, 384), *(_place(at, 384, own=False, role="input") for at in range(1, 6)), _place(6, 384)]
    assert worth_ranking(record, [*stream, _place(7, 8192, own=False)], 0) == []


@pytest.mark.parametrize(("kind", "fall", "found"), [("Embedding", 1.0, True), ("Embedding", 0.95, False)])
def test_one_number_for_a_word_beside_numbers_of_the_data_is_narrow_where_nothing_is_learnt(kind, fall, found):
    record = stack([1.0] * 3, units=48, trained=True, losses=[fall**k for k in range(40)], input_size=6)
    table, output = record.places[0], record.places[-1]
    table.kind, table.units, table.size, table.rank, table.gradient_rank = kind, 1, 1, 1.0, 1.0
    output.units, output.size, output.rank, output.gradient_rank = 1, 1, 1.0, 1.0
    narrow = [issue.layer for issue in bottlenecks(record)]
    assert narrow == (["0"] if found else [])


@pytest.mark.parametrize("second_input", [True, False])
def test_a_branch_inside_of_a_second_tower_is_no_head_of_the_first(second_input):
    """Two towers meet in a matrix of similarities: behind the embedding of the first comes nothing that is wide."""

    def place(order, name, units, rank, *, own=True):
        return Place(
            name=name,
            role="output",
            call=0,
            kind="Linear",
            layer=name,
            order=order,
            units=units,
            size=units,
            samples=32,
            positions=1,
            own_weights=own,
            from_data=False,
            gradient=[1.0],
            rank=rank,
            gradient_rank=rank,
        )

    places = [
        place(0, "one.enter", 32, 9.0),
        place(1, "one.head", 8, 3.0),
        place(2, "two.enter", 32, 9.0),
        place(3, "two.branch", 64, 9.0),
        place(4, "two.head", 8, 3.0),
        place(5, "", 32, 9.0, own=False),
    ]
    chains = [[0, 1, 5], [2, 4, 5]] if second_input else [[0, 1, 5]]
    record = AnalysisRecord(steps=20, places=places, chains=chains, input_size=24, input_units=24)
    assert kinds(bottlenecks(record)) == ([] if second_input else ["BOTTLENECK"])
