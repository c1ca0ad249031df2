"""Each finding about attention fires on its fault, stays quiet on its healthy control, and weighs its evidence."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest

from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.probes.attention.collapse import behind_blocks, collapse_risk
from gradient_flow.probes.attention.evidence import falls, since
from gradient_flow.probes.attention.rules import AttentionStats, LayerAttention, RankCollapseRisk, attention_issues

HEALTHY = {
    "entropy": (0.9, 0.85, 0.95, 0.9),
    "sparsity": (0.0,) * 4,
    "max_logit": (3.0,) * 4,
    "nats": (3.1,) * 4,
    "freezing": (0.3,) * 4,
    "head_diversity": 0.9,
    "head_divergence": 0.2,
    "head_focus": 0.3,
    "token_spread_before": 0.97,
    "token_spread": 0.9,
    "token_similarity": 0.2,
    "entropy_by_step": (0.9,) * 10,
}
COLLAPSED = {"entropy": (0.03,) * 4, "nats": (0.1,) * 4}


def layer(index=0, **changed):
    return LayerAttention(**{"name": f"layers.{index}.self_attn", "block": f"layers.{index}", **HEALTHY, **changed})


def stats_of(*layers):
    return AttentionStats(
        layers=layers,
        steps=10,
        attention_entropy_mean=0.9,
        attention_sparsity=0.0,
        head_diversity=0.9,
        rank_collapse_risk=collapse_risk(layers, 0.0),
        max_logit=max(one.largest_logit for one in layers),
        token_spread=0.9,
        token_similarity=0.2,
    )


def issues_of(*layers, **options):
    return list(attention_issues(stats_of(*layers), **options))


def only(*layers, **options):
    issues = issues_of(*layers, **options)
    assert len(issues) == 1
    return issues[0]


def test_healthy_attention_has_no_issue():
    assert issues_of(*(layer(i) for i in range(4))) == []


def test_a_threshold_crossed_alone_is_low_and_taken_at_its_word_when_set():
    few = layer(entropy=(0.4, 0.45, 0.3, 0.5))
    assert only(few).severity == IssueSeverity.LOW
    assert only(few, min_entropy_threshold=0.6, explicit={"min_entropy_threshold"}).severity == IssueSeverity.HIGH
    assert issues_of(few, min_entropy_threshold=0.2) == []
    assert issues_of(few, min_entropy_threshold=0.2, explicit={"min_entropy_threshold"}) == []


FALLING = tuple(0.9 - 0.09 * step for step in range(10))


@pytest.mark.parametrize(
    ("changed", "severity"),
    [
        ({}, IssueSeverity.LOW),  # sinks and positional heads of trained models
        ({"max_logit": (60.0,) * 4}, IssueSeverity.HIGH),
        ({"freezing": (3.0,) * 4}, IssueSeverity.HIGH),
        ({"entropy_by_step": FALLING}, IssueSeverity.HIGH),
        ({"entropy_by_step": FALLING, "max_logit": (60.0,) * 4}, IssueSeverity.CRITICAL),
    ],
)
def test_collapsed_heads_need_more_evidence_to_weigh_more(changed, severity):
    issue = only(layer(**COLLAPSED, **changed))
    assert issue.severity == severity
    assert issue.code == ("attention_logits" if "max_logit" in changed else "")  # they may be large from the start
    assert issue.issue_type == IssueType.ENTROPY_COLLAPSE


def test_one_collapsed_head_among_many_is_no_issue():
    assert issues_of(layer(entropy=(0.02, 0.9, 0.9, 0.9), nats=(0.1, 3, 3, 3), max_logit=(60.0, 3, 3, 3))) == []


def test_a_trend_that_is_handed_over_counts_instead_of_the_remembered_one():
    collapsed = layer(**COLLAPSED)
    assert only(collapsed, trend={collapsed.name: FALLING}).severity == IssueSeverity.HIGH
    falling = layer(**COLLAPSED, entropy_by_step=FALLING)
    assert only(falling, trend={}).severity == IssueSeverity.LOW


def test_entropy_collapse_names_its_first_layer_and_carries_the_others():
    hot = {**COLLAPSED, "max_logit": (90.0,) * 4}
    issue = only(layer(0), layer(1, entropy=(0.4,) * 4), layer(2, **hot), layer(3, **hot))
    assert issue.layer == "layers.2.self_attn"
    assert [(c.layer, c.severity.name) for c in issue.consequences] == [
        ("layers.1.self_attn", "LOW"),
        ("layers.3.self_attn", "HIGH"),
    ]


def test_entropy_advice_computes_the_factor_for_the_weights():
    issue = only(layer(**COLLAPSED, max_logit=(90.0,) * 4))
    factor = math.sqrt(10 / 90)
    assert any(f"by {factor:.2g} each" in advice and "from 90 to 10" in advice for advice in issue.advice)
    assert "entropy collapse" in issue.message
    assert "QK-norm" in str(issue)


def test_with_few_keys_fewer_than_two_positions_count_as_collapsed():
    """0.15 of ln(32) is 0.5 nats: 1.7 positions."""
    assert layer(entropy=(0.15,) * 4, nats=(0.5,) * 4).collapsed_heads == 1.0
    assert layer(entropy=(0.15,) * 4, nats=(1.5,) * 4).collapsed_heads == 0.0
    assert layer(entropy=(0.45,) * 4, nats=(0.5,) * 4).collapsed_heads == 0.0  # three keys
    assert layer(entropy=(0.05, math.nan, 0.9, 0.9), nats=(0.2, math.nan, 3, 3)).collapsed_heads == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("changed", "severity"),
    [
        ({"head_diversity": 0.2}, IssueSeverity.LOW),
        ({"head_diversity": 0.03}, IssueSeverity.MEDIUM),
        ({"head_diversity": 0.0}, IssueSeverity.HIGH),
        ({"head_diversity": 0.0, "entropy": (0.99,) * 4}, IssueSeverity.MEDIUM),  # equal, though nearly uniform
    ],
)
def test_redundant_heads_weigh_more_the_more_they_agree(changed, severity):
    issue = only(layer(**changed))
    assert issue.issue_type == IssueType.HEAD_DIVERSITY
    assert issue.severity == severity
    assert "head diversity" in issue.message
    assert "redundant heads" in issue.message


@pytest.mark.parametrize(
    "changed",
    [
        {"head_diversity": 0.03, "entropy": (0.99,) * 4},
        {"head_diversity": 0.0, "entropy": (1.0,) * 4, "head_focus": 1e-10},
        {"head_diversity": None},
    ],
)
def test_uniform_attention_and_single_heads_are_not_redundant(changed):
    assert issues_of(layer(**changed)) == []


def test_a_diversity_threshold_that_was_set_is_taken_at_its_word():
    explicit = {"min_diversity_threshold"}
    assert only(layer(), min_diversity_threshold=0.95, explicit=explicit).severity == IssueSeverity.HIGH
    assert issues_of(layer(head_diversity=0.1), min_diversity_threshold=0.05, explicit=explicit) == []


def stack(*spreads, start=0.97):
    entering = (start, *spreads)
    return [layer(i, token_spread_before=entering[i], token_spread=spread) for i, spread in enumerate(spreads)]


def test_rank_collapse_is_high_where_it_begins():
    layers = stack(0.77, 0.023, 2.6e-7, 1e-7)
    issue = only(*layers)
    assert issue.issue_type == IssueType.RANK_COLLAPSE
    assert issue.severity == IssueSeverity.HIGH
    assert issue.layer == "layers.1.self_attn"
    assert [c.layer for c in issue.consequences] == ["layers.2.self_attn", "layers.3.self_attn"]
    assert "High rank collapse risk" in issue.message
    assert "skip connection" in issue.advice[0]
    assert collapse_risk(layers, 0.0) == "HIGH"


def test_collapse_at_the_output_alone_is_low():
    layers = stack(0.9, 0.8, 0.03)
    assert only(*layers).severity == IssueSeverity.LOW
    assert collapse_risk(layers, 0.0) == "MEDIUM"


def test_inputs_that_are_alike_are_not_the_models_doing():
    assert issues_of(*stack(0.03, 0.02, 0.02, start=0.04)) == []


def test_a_slow_fall_in_a_deep_stack_is_healthy():
    layers = stack(0.9, 0.6, 0.4, 0.3, 0.23)
    assert issues_of(*layers) == []
    assert collapse_risk(layers, 0.0) == "LOW"


def test_sparse_attention_is_a_medium_risk_and_no_issue():
    assert collapse_risk(stack(0.9, 0.8), 0.97) is RankCollapseRisk.MEDIUM
    assert collapse_risk(stack(0.9, 0.8), None) is RankCollapseRisk.LOW


def test_stacks_are_judged_apart():
    """An encoder's collapse is found although a decoder with fresh tokens follows, and harms it."""
    encoder = [replace(one, block=f"encoder.{one.block}") for one in stack(0.9, 0.02)]
    decoder = [replace(one, block=f"decoder.{one.block}") for one in stack(0.9, 0.8)]
    assert only(*encoder, *decoder).severity == IssueSeverity.HIGH


def test_the_stream_behind_a_block_is_what_the_next_one_takes_in():
    blocks = ["layers.0", "layers.1", "layers.2"]
    before = {"layers.0": 1.0, "layers.1": 0.9, "layers.2": 0.8}
    after = {"layers.0": 0.1, "layers.1": 0.1, "layers.2": 0.1}
    # The blocks return branches, which their caller adds: what the last one gives is not the stream.
    assert behind_blocks(before, after, set(), blocks) == {"layers.0": 0.9, "layers.1": 0.8}
    assert behind_blocks(before, after, {"layers.1"}, blocks) == {"layers.0": 0.9, "layers.1": 0.8, "layers.2": 0.1}
    # Self- and cross-attention share a block.
    assert behind_blocks(before, after, set(), ["layers.0", "layers.0", "layers.1"]) == {"layers.0": 0.9}


def test_non_finite_logits_are_critical_and_named_first():
    issues = issues_of(layer(0), layer(1, nonfinite=0.5, entropy=(math.nan,) * 4), layer(2, nonfinite=1.0))
    assert issues[0].issue_type == IssueType.NUMERICAL
    assert issues[0].severity == IssueSeverity.CRITICAL
    assert issues[0].layer == "layers.1.self_attn"
    assert len(issues) == 1


def test_a_fall_needs_steps_size_and_direction():
    assert falls(FALLING)
    assert not falls(FALLING[:4])
    assert not falls(FALLING[::-1])
    assert not falls([0.9 - 0.005 * step for step in range(10)])
    assert not falls([0.9, 0.5, 0.9, 0.4, 0.95, 0.5, 0.9, 0.45, 0.9, 0.5])
    assert falls([*FALLING[:5], math.nan, *FALLING[5:]])


def test_since_is_the_step_from_which_on_it_stays_below():
    assert since([0.9, 0.6, 0.4, 0.6, 0.4, 0.3], 0.5) == 4
    assert since([0.4, 0.3], 0.5) is None
    assert since([0.9, 0.8], 0.5) is None


def test_statistics_print_as_a_table_and_issues_as_json():
    stats = stats_of(layer(0), layer(1, head_diversity=None, token_spread=None, entropy=(math.nan,) * 4))
    text = str(stats)
    assert "entropy         0.900" in text
    assert "layers.1.self_attn" in text
    assert "LOW risk" in text
    many = stats_of(*(layer(i) for i in range(50)))
    assert "… and 10 more" in str(many)
    for issue in issues_of(*stack(0.7, 0.01, 0.001)):
        json.dumps(issue.to_dict(), allow_nan=False)


def test_rules_about_attention_need_no_torch():
    code = "import sys, gradient_flow.probes.attention.rules; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_queries_that_all_look_at_one_position_are_a_high_risk_of_rank_collapse():
    sharp = layer(**COLLAPSED, sparsity=(0.875,) * 4)  # one of eight keys: as sparse as eight keys can be
    assert collapse_risk([layer(0), sharp], 0.4) == "HIGH"
    assert "high rank collapse risk (sparse attention)" in only(sharp).message
    one_head_looks_around = layer(entropy=(0.03, 0.03, 0.03, 0.9), nats=(0.1, 0.1, 0.1, 3.0))
    assert collapse_risk([one_head_looks_around], 0.4) == "LOW"


def test_heads_that_froze_in_the_last_looks_are_not_hidden_by_the_first():
    froze = layer(
        entropy=(0.6,) * 4, max_logit=(400.0,) * 4, freezing=(9.0,) * 4, entropy_by_step=(0.9, 0.9, 0.01, 0.005)
    )
    (issue,) = attention_issues(stats_of(froze))
    assert (issue.issue_type, issue.severity) == (IssueType.ENTROPY_COLLAPSE, IssueSeverity.HIGH)
    assert (issue.evidence["entropy"], issue.evidence["entropy_at_start"]) == (0.01, 0.9)
    once = replace(froze, entropy_by_step=(0.9, 0.9, 0.9, 0.005))
    assert all(issue.severity == IssueSeverity.LOW for issue in attention_issues(stats_of(once)))
