"""Logits that no task asks for, beside those of heads that have learnt where to look."""

import pytest

from gradient_flow.diagnosis.issue import IssueSeverity
from gradient_flow.probes.attention.evidence import entropy_severity
from gradient_flow.probes.attention.stats import LayerAttention


@pytest.mark.parametrize(
    ("logit", "freezing", "severity"),
    [
        (286.0, 5.0, IssueSeverity.HIGH),
        (31.0, 5.0, IssueSeverity.MEDIUM),  # one key of many was found
        (286.0, 0.5, IssueSeverity.LOW),  # one logit of many, as a mask's share may be
    ],
)
def test_logits_far_beyond_what_a_task_asks_for_are_grave_whatever_the_mean_entropy(logit, freezing, severity):
    layer = LayerAttention(
        name="attn", block="0", entropy=[0.24] * 2, sparsity=[0.9] * 2, max_logit=[logit] * 2, freezing=[freezing] * 2
    )
    assert entropy_severity(layer, 0.5, False, False) is severity
