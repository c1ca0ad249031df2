"""The attention probe on whole models: healthy ones get no finding, planted faults are found where they are."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attention_models import Attention, Gpt, eager, tiny_hugging_face
from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.errors import ConfigError
from gradient_flow.probes.attention.probe import MOST_CALLS, RECENT, STEPS, AttentionProbe, AttentionWindow
from gradient_flow.probes.attention.row import AttentionRow
from gradient_flow.probes.attention.rules import attention_issues

ENCODER = {"dim_feedforward": 64, "batch_first": True}


def analyze(model, inputs, steps=3, lr=None, **options):
    """Statistics and issues over some steps, trained if there is a learning rate."""
    optimizer = torch.optim.AdamW(model.parameters(), lr) if lr else None
    with AttentionProbe(model, **options) as probe:
        for _ in range(steps):
            model.zero_grad()
            given = inputs()
            output = model(**given) if isinstance(given, dict) else model(given)
            loss = getattr(output, "loss", None)
            (loss if loss is not None else output.float().square().mean()).backward()
            probe.after_step(given, output)
            if optimizer is not None:
                optimizer.step()
    return probe.result(), probe


def issues_of(stats):
    return list(attention_issues(stats))


def vectors(samples=4, tokens=16, width=32):
    return lambda: torch.randn(samples, tokens, width)


def language(tokens=16, vocabulary=20):
    data = torch.randint(0, vocabulary, (4, tokens))
    return lambda: data


def encoder(layers=3, width=32, norm_first=False):
    layer = nn.TransformerEncoderLayer(width, 4, norm_first=norm_first, **ENCODER)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


HEALTHY = {
    "post-LN": lambda: (encoder(), vectors()),
    "pre-LN": lambda: (encoder(norm_first=True), vectors()),
    "deep post-LN": lambda: (encoder(12), vectors()),
    "deep pre-LN": lambda: (encoder(12, norm_first=True), vectors()),
    "causal": lambda: (Gpt(), language()),
    "written out": lambda: (Gpt(how=eager), language()),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("lr", [None, 3e-3])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_have_no_finding_at_init_and_after_some_steps(name, lr, seed):
    torch.manual_seed(seed)
    model, inputs = HEALTHY[name]()
    stats, _ = analyze(model, inputs, steps=6 if lr else 2, lr=lr)
    assert issues_of(stats) == []
    assert stats.rank_collapse_risk == "LOW"


@pytest.mark.parametrize("lr", [None, 1e-3])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
def test_hugging_face_models_have_no_finding(kind, implementation, lr):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, layers, heads = tiny_hugging_face(kind, implementation)
    tokens = torch.randint(0, 30, (4, 16))
    stats, _ = analyze(model, lambda: {"input_ids": tokens, "labels": tokens}, steps=8 if lr else 2, lr=lr)
    assert issues_of(stats) == []
    assert [len(layer.entropy) for layer in stats.layers] == [heads] * layers
    assert all(layer.token_spread is not None for layer in stats.layers)


def test_queries_and_keys_times_sixteen_are_an_entropy_collapse():
    torch.manual_seed(0)
    model = encoder()
    with torch.no_grad():
        for layer in model.layers[1:]:
            layer.self_attn.in_proj_weight[: 2 * 32] *= 4.0  # queries and keys: logits times 16
    stats, _ = analyze(model, vectors())
    (issue,) = issues_of(stats)
    assert issue.issue_type == IssueType.ENTROPY_COLLAPSE
    assert issue.severity == IssueSeverity.HIGH
    assert issue.layer == "layers.1.self_attn"
    assert [consequence.layer for consequence in issue.consequences] == ["layers.2.self_attn"]
    assert stats.layers[0].entropy_mean > 0.9 > 0.3 > stats.layers[1].entropy_mean


def tie_heads(projection, heads):
    """Give every head the first one's queries and keys."""
    with torch.no_grad():
        for part in projection[: 2 * projection.shape[1]].chunk(2):
            part.view(heads, -1, projection.shape[1])[1:] = part.view(heads, -1, projection.shape[1])[:1]


@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_identical_heads_are_found_also_where_they_look_everywhere(scale):
    torch.manual_seed(0)
    model = encoder(norm_first=True)
    for layer in model.layers:
        layer.self_attn.in_proj_weight.data[: 2 * 32] *= scale
    tie_heads(model.layers[1].self_attn.in_proj_weight, 4)
    stats, _ = analyze(model, vectors())
    (issue,) = issues_of(stats)
    assert issue.issue_type == IssueType.HEAD_DIVERSITY
    assert issue.layer == "layers.1.self_attn"
    assert issue.severity >= IssueSeverity.MEDIUM
    assert stats.layers[1].head_diversity < 1e-3
    assert stats.layers[0].head_diversity > 0.7


class MultiheadOnly(nn.Module):
    def __init__(self, layers, batch_first=True):
        super().__init__()
        self.layers = nn.ModuleList([nn.MultiheadAttention(32, 4, batch_first=batch_first) for _ in range(layers)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, x, x, need_weights=False)[0]
        return x


class WithoutAList(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(11):
            setattr(self, f"attention{i}", Attention(32))

    def forward(self, x):
        for i in range(11):
            x = getattr(self, f"attention{i}")(x)
        return x


@pytest.mark.parametrize(
    "make",
    [
        lambda: (MultiheadOnly(12), vectors(), "layers"),
        lambda: (MultiheadOnly(12, batch_first=False), vectors(samples=16, tokens=5), "layers"),
        lambda: (nn.Sequential(*[Attention(32) for _ in range(12)]), vectors(), ""),
        lambda: (WithoutAList(), vectors(), "attention"),
        lambda: (Gpt(12, skip=False, how=F.scaled_dot_product_attention), language(), "blocks"),
    ],
)
def test_attention_without_skips_is_a_rank_collapse_in_its_first_layers(make):
    torch.manual_seed(0)
    model, inputs, where = make()
    stats, _ = analyze(model, inputs)
    issue = next(issue for issue in issues_of(stats) if issue.issue_type == IssueType.RANK_COLLAPSE)
    assert issue.severity == IssueSeverity.HIGH
    assert issue.layer.startswith(where)
    assert int("".join(filter(str.isdigit, issue.layer))) in (0, 1, 2)
    assert len(issue.consequences) >= 8
    assert stats.rank_collapse_risk == "HIGH"
    assert stats.token_spread < 1e-4


class SkipsInTheCaller(nn.Module):
    """Branches in a list, their sum in the forward of the model: no module returns the residual stream."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.ModuleList([nn.Sequential(nn.LayerNorm(32), Attention(32)), nn.Linear(32, 32)]) for _ in range(8)]
        )

    def forward(self, x):
        for attention, linear in self.layers:
            x = x + attention(x)
            x = x + linear(x)
        return x


def test_branches_are_not_mistaken_for_the_residual_stream():
    torch.manual_seed(0)
    stats, _ = analyze(SkipsInTheCaller(), vectors())
    assert issues_of(stats) == []
    assert len(stats.layers) == 8
    assert all(layer.token_spread > 0.5 for layer in stats.layers[:-1])


def test_an_entropy_that_falls_in_training_is_remembered_step_by_step():
    torch.manual_seed(0)
    model = encoder(1)
    weights = model.layers[0].self_attn.in_proj_weight
    with AttentionProbe(model) as probe:
        for _ in range(10):
            probe.after_step(None, model(torch.randn(4, 16, 32)))
            weights.data[: 2 * 32] *= 1.3
    stats = probe.result()
    history = stats.layers[0].entropy_by_step
    assert len(history) == 10
    assert history[0] > 0.9 > 0.3 > history[-1]
    assert stats.layers[0].entropy_mean == pytest.approx(sum(history[-5:]) / 5, rel=1e-4)  # the state it is in now
    logits = stats.layers[0].max_logit_by_step
    assert logits[-1] > 50 * logits[0]
    (issue,) = issues_of(stats)
    assert issue.severity >= IssueSeverity.HIGH
    assert 0 < issue.step < 10


def test_closed_forms_reach_the_documented_fields():
    model = nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        model.in_proj_weight.zero_()
    with AttentionProbe(model) as probe:
        x = torch.randn(2, 6, 16)
        probe.after_step(x, model(x, x, x))
    stats = probe.result()
    assert stats.attention_entropy_mean == pytest.approx(1.0)
    assert stats.attention_sparsity == 0.0
    assert stats.head_diversity == 0.0
    assert stats.rank_collapse_risk == "LOW"
    assert stats.max_logit == 0.0
    assert issues_of(stats) == []


def test_calls_of_one_layer_within_a_step_merge():
    torch.manual_seed(0)
    model = nn.Sequential(Attention(32))
    a, b = torch.randn(4, 16, 32), torch.randn(4, 16, 32) * 5
    with AttentionProbe(model) as probe:
        model(a), model(b)
        probe.after_step(None, None)
    together, _ = analyze(model, lambda: torch.cat([a, b]), steps=1)
    assert probe.result().layers[0].entropy == pytest.approx(together.layers[0].entropy, rel=1e-4)
    assert probe.result().steps == 1


def test_non_finite_activations_are_reported_and_poison_nothing():
    torch.manual_seed(0)
    model = encoder(2)
    with AttentionProbe(model) as probe:
        for bad in (False, True, False):
            x = torch.randn(4, 16, 32)
            if bad:
                x[0, 0, 0] = math.nan
            probe.after_step(x, model(x))
    stats = probe.result()
    assert 0.9 < stats.attention_entropy_mean <= 1.0
    assert all(math.isfinite(value) for layer in stats.layers for value in layer.entropy)
    (issue,) = issues_of(stats)
    assert issue.issue_type == IssueType.NUMERICAL
    assert issue.layer == "layers.0.self_attn"


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (nn.Linear(32, 32), {}, "No attention was seen"),
        (encoder(1), {"track_attention_weights": False}, "track_attention_weights=False"),
    ],
)
def test_without_attention_there_is_no_result_and_a_reason(model, options, reason):
    stats, probe = analyze(model, vectors(), **options)
    assert stats is None
    assert reason in probe.reason
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_probe_that_saw_no_step_says_so():
    assert AttentionProbe(encoder(1)).reason == "No step was analyzed."
    with pytest.raises(ConfigError, match="max_queries"):
        AttentionProbe(encoder(1), max_queries=0)


def test_memory_is_bounded_by_layers_and_not_by_calls_or_steps():
    model = encoder(2)
    with AttentionProbe(model) as probe, torch.no_grad():
        for _ in range(3 * MOST_CALLS):
            model(torch.randn(2, 4, 32))
        assert len(probe._calls) == 2
        assert len(probe._tokens) == 4
        kept = [calls for _, calls in probe._calls.values()] + list(probe._tokens.values())
        assert max(map(len, kept)) <= MOST_CALLS
    window = AttentionWindow("layers.0")
    for _ in range(STEPS + 10):
        window.add(AttentionRow([(1.0, 0.5, 0.7, 0.0, 0.1, 0.0, 0.0)], (1.0,), (0.0,) * 7))
    assert len(window.entropy_by_step) == STEPS
    assert window.row.heads[0][0] == RECENT
    assert window.row.entropy == (0.5,)


def test_heads_that_are_modules_of_their_own_are_single_heads():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads = 4
            self.heads = nn.ModuleList([OneHead() for _ in range(4)])

        def forward(self, x):
            return torch.cat([head(x) for head in self.heads], dim=-1)

    class OneHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(32, 8) for _ in range(3))

        def forward(self, x):
            return (self.q(x) @ self.k(x).mT * 8**-0.5).softmax(-1) @ self.v(x)

    stats, _ = analyze(Heads(), vectors())
    assert [(layer.name, len(layer.entropy)) for layer in stats.layers] == [(f"heads.{i}", 1) for i in range(4)]
    assert stats.head_diversity is None
    assert issues_of(stats) == []


def test_statistics_print():
    torch.manual_seed(0)
    stats, _ = analyze(encoder(2), vectors())
    assert "Attention of 2 layers with 8 heads over 3 steps" in str(stats)
