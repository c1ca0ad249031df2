"""The special analyzers: documented parameters, pairs as results, and the general analysis beside the special one."""

import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradient_flow.errors import ConfigError
from gradient_flow.faces.analyzers import GradientFlowAnalyzer
from gradient_flow.faces.special_analyzers import RecurrentAnalyzer, RLPolicyAnalyzer, TransformerAnalyzer


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


DOCUMENTED = {
    RecurrentAnalyzer: {
        "enable_jacobian": True,
        "enable_vector_analysis": False,
        "optimal_radius": 0.9,
        "critical_band": 0.15,
        "track_hidden_states": True,
    },
    RLPolicyAnalyzer: {
        "enable_jacobian": False,
        "enable_vector_analysis": False,
        "min_entropy_threshold": 0.5,
        "min_std_threshold": 0.1,
        "max_std_threshold": 2.0,
        "track_distributions": True,
    },
    TransformerAnalyzer: {
        "enable_jacobian": False,
        "enable_vector_analysis": False,
        "min_entropy_threshold": 0.5,
        "min_diversity_threshold": 0.3,
        "track_attention_weights": True,
    },
}


@pytest.mark.parametrize("kind", DOCUMENTED)
def test_documented_parameters_and_defaults(kind):
    parameters = inspect.signature(kind).parameters
    assert {name: parameters[name].default for name in DOCUMENTED[kind]} == DOCUMENTED[kind]
    assert issubclass(kind, GradientFlowAnalyzer)


class Recurrent(nn.Module):
    def __init__(self, kind=nn.GRU):
        super().__init__()
        self.rnn, self.head = kind(4, 12, batch_first=True), nn.Linear(12, 1)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.head(out[:, -1])


def test_recurrent(capsys):
    analyzer = RecurrentAnalyzer(Recurrent())
    issues, dynamics = analyzer.analyze(lambda: torch.randn(8, 10, 4), lambda out: out.square().mean(), steps=3)
    assert 0 < dynamics.spectral_radius < 1.5
    assert dynamics.criticality in ("SUBCRITICAL", "CRITICAL", "SUPERCRITICAL")
    assert dynamics.effective_memory_length > 0
    assert dynamics.temporal_decay_rate > 0
    analyzer.print_summary(issues, dynamics)
    assert capsys.readouterr().out
    assert not any(module._forward_hooks for module in analyzer.model.modules())


def test_criticality_is_judged_by_the_radius_and_band_that_were_set():
    model = Recurrent(nn.RNN)
    batch = torch.randn(8, 10, 4)

    def level(**settings):
        _, dynamics = RecurrentAnalyzer(model, **settings).analyze(lambda: batch, lambda out: out.square().mean(), 1)
        assert (dynamics.optimal_radius, dynamics.critical_band) == tuple(settings.values())
        return dynamics.spectral_radius, dynamics.criticality

    radius, _ = level(optimal_radius=0.9, critical_band=0.15)
    assert level(optimal_radius=radius, critical_band=0.01)[1] == "CRITICAL"
    assert level(optimal_radius=radius / 2, critical_band=0.01)[1] == "SUPERCRITICAL"
    assert level(optimal_radius=radius * 2, critical_band=0.01)[1] == "SUBCRITICAL"


@pytest.mark.parametrize("kind", DOCUMENTED)
@pytest.mark.parametrize("on", [True, False])
def test_both_spellings_of_the_switches(kind, on):
    analyzer = kind(nn.Linear(4, 2), enable_rnn_analyzer=on, enable_circular_flow_analyser=on)
    assert analyzer.enable_jacobian is on
    assert analyzer.enable_vector_analysis is on


@pytest.mark.parametrize(
    ("kind", "settings", "name"),
    [
        (RecurrentAnalyzer, {"optimal_radius": "0.9"}, "optimal_radius"),
        (RecurrentAnalyzer, {"critical_band": -0.1}, "critical_band"),
        (TransformerAnalyzer, {"min_entropy_threshold": 50}, "min_entropy_threshold"),
        (TransformerAnalyzer, {"min_diversity_threshold": None}, "min_diversity_threshold"),
        (RLPolicyAnalyzer, {"min_entropy_threshold": float("nan")}, "min_entropy_threshold"),
        (RLPolicyAnalyzer, {"min_std_threshold": 3.0}, "max_std_threshold"),
    ],
)
def test_bad_settings_are_named(kind, settings, name):
    with pytest.raises(ConfigError, match=f"`{name}`"):
        kind(nn.Linear(4, 2), **settings)


def test_no_upper_limit_of_the_standard_deviation():
    assert RLPolicyAnalyzer(nn.Linear(4, 2), max_std_threshold=float("inf")).max_std_threshold == float("inf")


@pytest.mark.parametrize(
    ("kind", "word"),
    [(RecurrentAnalyzer, "recurrent part"), (TransformerAnalyzer, "attention"), (RLPolicyAnalyzer, "action_extractor")],
)
def test_the_summary_says_why_nothing_special_was_measured(kind, word, capsys):
    analyzer = kind(nn.Linear(4, 2))
    issues, measured = analyzer.analyze(lambda: torch.randn(8, 4), lambda out: (out - 1).square().mean(), steps=1)
    analyzer.print_summary(issues, measured)
    assert measured is None
    assert word in analyzer.reason
    assert analyzer.reason in capsys.readouterr().out


def test_general_analyzer_with_jacobian_reads_recurrent_models():
    analyzer = GradientFlowAnalyzer(Recurrent(nn.LSTM), enable_jacobian=True)
    analyzer.analyze(lambda: torch.randn(8, 10, 4), lambda out: out.square().mean(), steps=2)
    assert analyzer.dynamics.spectral_radius > 0
    plain = GradientFlowAnalyzer(nn.Linear(4, 1), enable_jacobian=True)
    assert plain.analyze(lambda: torch.randn(8, 4), lambda out: out.square().mean(), steps=2) == []


def test_transformer():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 3))
    analyzer = TransformerAnalyzer(model)
    labels = torch.randint(3, (8, 6))
    issues, attn_stats = analyzer.analyze(
        lambda: torch.randn(8, 6, 16), lambda out: F.cross_entropy(out.flatten(0, 1), labels.flatten()), steps=3
    )
    assert issues == []
    assert 0 < attn_stats.attention_entropy_mean <= 1
    assert attn_stats.rank_collapse_risk in ("LOW", "MEDIUM", "HIGH")
    issues, attn_stats = TransformerAnalyzer(nn.Linear(4, 2)).analyze(
        lambda: torch.randn(4, 4), lambda out: out.mean(), steps=1
    )
    assert attn_stats is None


def test_policy():
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    analyzer = RLPolicyAnalyzer(model)
    issues, stats = analyzer.analyze(
        lambda: torch.randn(32, 4),
        lambda logits: F.cross_entropy(logits, torch.zeros(32, dtype=torch.long)),
        steps=3,
        action_extractor=lambda logits: (logits, None, None, None),
    )
    assert 0.5 < stats.discrete_entropy_normalized <= 1
    assert stats.entropy_collapse_risk in ("LOW", "MEDIUM", "HIGH")
    with torch.no_grad():
        model[2].weight *= 1e3
    issues, stats = analyzer.analyze(
        lambda: torch.randn(32, 4),
        lambda logits: F.cross_entropy(logits, torch.zeros(32, dtype=torch.long)),
        steps=3,
        action_extractor=lambda logits: (logits, None, None, None),
    )
    assert "2" in [issue.layer for issue in issues if issue.issue_type.name == "ENTROPY_COLLAPSE"]


def test_a_bilinear_game_rotates_and_a_single_loss_cannot():
    class Game(nn.Module):
        def __init__(self):
            super().__init__()
            self.x, self.y = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

        def forward(self, _):
            return (self.x * self.y).sum()

    model = Game()
    analyzer = GradientFlowAnalyzer(model, enable_vector_analysis=True)
    players = [(lambda out: out, [model.x]), (lambda out: -out, [model.y])]
    issues = analyzer.analyze(lambda: torch.zeros(1), lambda out: out, steps=2, players=players)
    assert "ROTATION" in [issue.issue_type.name for issue in issues]
    assert analyzer.field.rotation == pytest.approx(1.0)
    analyzer.analyze(lambda: torch.zeros(1), lambda out: out, steps=2)
    assert analyzer.field.rotation == pytest.approx(0.0, abs=1e-6)
    assert analyzer.field.note
