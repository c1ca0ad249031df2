"""Attention logits that grow without bound are found with their doubling time; those that level off are not."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradient_flow as gf
from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.probes.attention.growth import COARSE, CODE, HOT, growth_of
from gradient_flow.probes.attention.rules import (
    AttentionStats,
    LayerAttention,
    RankCollapseRisk,
    attention_issues,
    judge,
)
from gradient_flow.record.plain import to_plain
from gradient_flow.report.look_curves import LookCurves

STEPS = (3, 6, 13, 51, 201, 400)


def layer(peaks, name="blocks.0.attention", heads=None):
    return LayerAttention(
        name=name,
        block=name.rpartition(".")[0],
        entropy=(0.8,) * 4,
        sparsity=(0.0,) * 4,
        max_logit=heads or (peaks[-1],) * 4,
        nats=(2.0,) * 4,
        freezing=(0.3,) * 4,
        entropy_by_step=(0.8,) * len(peaks),
        max_logit_by_step=tuple(peaks),
    )


def stats(*layers, steps=STEPS):
    return AttentionStats(
        layers=layers,
        steps=len(steps),
        attention_entropy_mean=0.8,
        attention_sparsity=0.0,
        head_diversity=None,
        rank_collapse_risk=RankCollapseRisk.LOW,
        max_logit=max(one.largest_logit for one in layers),
        token_spread=None,
        token_similarity=None,
        at_steps=steps,
    )


def power_law(power, last, steps=STEPS):
    return [last * (step / steps[-1]) ** power for step in steps]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_growth_is_that_of_a_closed_form(power):
    found = growth_of(layer(power_law(power, 30.0)), STEPS)
    assert found.power == pytest.approx(power)
    at = STEPS[-1]
    assert found.doubling == pytest.approx(at * (2 ** (1 / power) - 1))
    assert found.steps_left == pytest.approx(at * ((HOT / 30) ** (1 / power) - 1))
    assert found.until_coarse == pytest.approx(at * ((COARSE / 30) ** (1 / power) - 1))
    assert found.severity is IssueSeverity.MEDIUM


def test_exponential_growth_doubles_in_its_own_time_at_even_looks():
    steps = tuple(range(1000, 2000, 100))
    found = growth_of(layer([10 * 2 ** ((step - 1000) / 400) for step in steps]), steps)
    assert found.doubling == pytest.approx(400, rel=0.25)


@pytest.mark.parametrize(
    "peaks",
    [
        power_law(1.0, 12.0),  # usual for a model that learns where to look
        [2.0, 5.0, 14.0, 24.0, 26.0, 27.0],  # levels off
        [60.0, 55.0, 58.0, 61.0, 57.0, 60.0],  # large, and stays
        [40.0, 22.0, 35.0, 21.0, 38.0, 30.0],  # noise
        power_law(0.1, 30.0),  # too slow to ever matter
        [30.0, 25.0, 22.0, 21.0, 20.5, 20.2],  # falls
        [1.0, 2.0, math.nan, 0.0, math.inf, 30.0],
    ],
)
def test_what_does_not_grow_without_bound_is_no_alarm(peaks):
    assert growth_of(layer(peaks), STEPS) is None


def test_three_looks_are_too_few_and_a_file_without_steps_says_nothing():
    peaks = power_law(1.0, 40.0)
    assert growth_of(layer(peaks[-3:]), STEPS[-3:]) is None
    assert growth_of(layer(peaks), ()) is None
    assert growth_of(layer(peaks[-4:]), STEPS) is not None  # a layer that came later: the last looks are its own


def test_an_alarm_has_advice_in_numbers_and_the_level_alone_is_a_remark():
    (issue,) = attention_issues(stats(layer(power_law(1.0, 30.0)), layer(power_law(1.0, 3.0), "blocks.1.attention")))
    assert (issue.issue_type, issue.severity, issue.code) == (IssueType.UNSTABLE, IssueSeverity.MEDIUM, CODE)
    assert issue.layer == "blocks.0.attention"
    assert issue.step == 13
    assert "in about 270 steps" in issue.message  # 400 · (50 / 30 - 1)
    assert "QK-norm" in issue.advice[0]
    assert "1,200 steps instead of 400" in issue.advice[1]
    assert "0.58" in issue.advice[2]  # sqrt(10 / 30)
    (hot,) = attention_issues(stats(layer(power_law(1.0, 90.0))))
    assert hot.severity is IssueSeverity.HIGH
    (remark,) = attention_issues(stats(layer([70.0] * 6)))
    assert (remark.severity, remark.code) == (IssueSeverity.LOW, CODE)
    assert list(attention_issues(stats(layer([70.0] * 6, heads=(70.0, 3.0, 3.0, 3.0))))) == []


def test_where_the_entropy_has_collapsed_one_issue_has_both():
    collapsed = replace(layer(power_law(1.0, 90.0)), entropy=(0.02,) * 4, nats=(0.05,) * 4, freezing=(3.0,) * 4)
    (issue,) = attention_issues(stats(collapsed))
    assert (issue.issue_type, issue.code) == (IssueType.ENTROPY_COLLAPSE, CODE)
    assert "doubles every 400 steps" in issue.message
    assert issue.evidence["doubling_steps"] == pytest.approx(400)


def test_numbers_from_a_file_give_the_same_verdict_without_steps_too():
    plain = to_plain(stats(layer(power_law(1.0, 30.0))))
    assert [issue.code for issue in judge({"stats": plain})] == [CODE]
    del plain["at_steps"]  # written by an earlier version
    assert list(judge({"stats": plain})) == []


class _Attention(nn.Module):
    def __init__(self, width, heads, norm):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.place = nn.Parameter(torch.randn(16, width) * 0.3)
        self.heads, self.norm = heads, norm

    def forward(self, x):
        x = x + self.place
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        if self.norm:
            size = query.shape[-1] ** 0.5
            query, key = F.normalize(query, dim=-1) * size, F.normalize(key, dim=-1) * size
        return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


def _trained(norm, rate, scale=1.0, run=None):
    torch.manual_seed(0)
    attention = _Attention(32, 4, norm)
    model = nn.Sequential(nn.Embedding(32, 32), attention, nn.Linear(32, 32))
    long = [p for part in (attention.query, attention.key) for p in part.parameters()]
    rest = [p for p in model.parameters() if all(p is not one for one in long)]
    optimizer = torch.optim.AdamW([{"params": long, "lr": rate}, {"params": rest, "lr": 1e-3}])
    follows = torch.randperm(32)
    with gf.watch(model, optimizer, describe=False, looks=(3, 6, 13, 26, 51, 100), budget=1.0, run=run) as flow:
        for _ in range(105):
            tokens = torch.randint(32, (16, 16))
            loss = F.cross_entropy(model(tokens).flatten(0, 1), follows[tokens.roll(2, 1)].flatten())
            optimizer.zero_grad()
            (loss * scale).backward()
            optimizer.step()
    return flow


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_queries_and_keys_that_grow_are_found_in_a_training_and_in_its_file(tmp_path, scale):
    flow = _trained(norm=False, rate=0.03, scale=scale, run=tmp_path / "run")
    found = next(issue for issue in flow.diagnose() if issue.code == CODE)
    assert found.severity >= IssueSeverity.MEDIUM
    assert found.layer == "1.query"
    assert [issue.to_dict() for issue in gf.diagnose(tmp_path / "run")] == [i.to_dict() for i in flow.diagnose()]
    (curve,) = (curve for curve in LookCurves().data(flow.run)["curves"] if curve["key"] == "logit")
    assert curve["lines"]


@pytest.mark.parametrize(("norm", "rate"), [(True, 0.03), (False, 1e-3)])
def test_with_qk_norm_or_at_a_usual_rate_nothing_is_said(norm, rate):
    found = _trained(norm, rate).diagnose()
    assert CODE not in [issue.code for issue in found]
    assert found.healthy, str(found)
