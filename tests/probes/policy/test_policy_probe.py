"""A policy watched step by step, with and without an extractor."""

import pytest
import torch
from torch import distributions as d
from torch import nn

from gradient_flow.errors import InputError
from gradient_flow.probes.policy import probe as policy_probe
from gradient_flow.probes.policy.probe import PolicyProbe
from gradient_flow.probes.policy.rules import policy_issues


class Actor(nn.Module):
    """Logits and a value, or whatever else is asked for."""

    def __init__(self, scale=1.0, form=None):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.scale, self.form = nn.Linear(6, 4), scale, form

    def forward(self, x):
        logits = self.scale * self.body(x)
        return self.form(logits) if self.form else (logits, logits.sum(-1))


def extractor(output):
    logits, value = output
    return logits, None, None, value


def watch(model, steps=12, **settings):
    generator = torch.Generator().manual_seed(1)
    with PolicyProbe(model, **settings) as probe:
        for _ in range(steps):
            x = torch.randn(32, 6, generator=generator)
            probe.after_step(x, model(x))
    return probe


def test_the_documented_extractor():
    stats = watch(Actor(), action_extractor=extractor).result()
    assert 0.5 < stats.discrete_entropy_normalized < 1
    assert stats.entropy_collapse_risk == "LOW"
    assert stats.exploration_adequacy == "ADEQUATE"
    assert stats.continuous_std_mean is None
    assert stats.value_mean is not None
    assert (stats.steps, stats.states) == (12, 12 * 32)


def test_sharp_logits_are_a_collapse():
    """Item 35 of the zoo: logits times 500, without a word about returns."""
    stats = watch(Actor(scale=500.0), action_extractor=extractor).result()
    assert stats.entropy_collapse_risk == "HIGH"
    assert stats.mutual_information > 0.3  # certain, but of something else in each state
    (issue,) = policy_issues(stats)
    assert issue.severity.name == "HIGH"


@pytest.mark.parametrize(
    "form",
    [
        lambda logits: d.Categorical(logits=logits),
        lambda logits: (d.Categorical(logits=logits), logits.sum(-1)),
        lambda logits: {"policy": d.Categorical(logits=logits), "value": logits.sum(-1)},
        lambda logits: {"logits": logits, "value": logits.sum(-1), "hidden": logits},
    ],
)
def test_outputs_that_say_what_they_are_need_no_extractor(form):
    expected = watch(Actor(), action_extractor=extractor).result().discrete_entropy_normalized
    assert watch(Actor(form=form)).result().discrete_entropy_normalized == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("form", [lambda logits: logits, lambda logits: (logits, logits.sum(-1)), lambda logits: None])
def test_outputs_that_do_not_are_not_guessed(form):
    probe = watch(Actor(form=form))
    assert probe.result() is None
    assert "action_extractor" in probe.reason


def test_nothing_is_tracked_when_not_asked_for():
    probe = watch(Actor(), action_extractor=extractor, track_distributions=False)
    assert probe.result() is None
    assert "track_distributions" in probe.reason


def test_before_the_first_step_there_is_no_result():
    probe = PolicyProbe(Actor())
    assert probe.result() is None
    assert "No step" in probe.reason


def test_what_cannot_be_read_is_the_reason():
    probe = watch(Actor(form=lambda logits: d.Poisson(logits.exp())))
    assert probe.result() is None
    assert "Poisson" in probe.reason


@pytest.mark.parametrize(
    ("wrong", "what"),
    [(lambda o: "x", "got str"), (lambda o: None, "NoneType"), (lambda o: [1, 2, 3, 4, 5], "list of 5")],
)
def test_a_wrong_extractor_is_named_with_what_came(wrong, what):
    with pytest.raises(InputError, match=what):
        watch(Actor(), action_extractor=wrong)


@pytest.mark.parametrize(
    ("settings", "what"),
    [({"action_extractor": 3}, "must be a function"), ({"action_range": (1, 0)}, "low below its high")],
)
def test_wrong_settings_are_named_at_once(settings, what):
    with pytest.raises(InputError, match=what):
        PolicyProbe(Actor(), **settings)


def test_a_policy_that_is_no_module_is_named():
    with pytest.raises(InputError, match="must be a module"):
        PolicyProbe(lambda x: x)


def test_continuous_actions_with_a_range():
    probe = watch(Actor(form=lambda m: d.Normal(m, torch.full_like(m, 0.1))), action_range=(-2.0, 2.0))
    stats = probe.result()
    assert stats.continuous_std_mean == pytest.approx(0.1)
    assert stats.std_relative == pytest.approx(0.05)
    assert stats.exploration_adequacy == "TOO_LOW"
    assert probe.result(min_std_threshold=0.01).exploration_adequacy == "ADEQUATE"


def test_a_policy_that_is_trained_to_certainty_shows_its_fall():
    model = Actor()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(2)
    with PolicyProbe(model, action_extractor=extractor) as probe:
        for _ in range(120):
            x = torch.randn(64, 6, generator=generator)
            output = model(x)
            probe.after_step(x, output)
            loss = -output[0].log_softmax(-1)[:, 0].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    stats = probe.result()
    assert stats.entropy_trend.start > 0.6
    assert stats.entropy_collapse_risk in ("MEDIUM", "HIGH")
    assert list(policy_issues(stats))


def test_watching_changes_nothing():
    """Outputs, gradients and random state are bit-identical, even if the extractor samples."""

    def sampling(output):
        torch.rand(3)
        return output[0], None, None, None

    results = []
    for watched in (False, True):
        model = Actor()
        torch.manual_seed(3)
        probe = PolicyProbe(model, action_extractor=sampling)
        for _ in range(3):
            x = torch.randn(8, 6)
            output = model(x)
            if watched:
                probe.after_step(x, output)
            action = d.Categorical(logits=output[0]).sample()
            (output[0].gather(-1, action[:, None]).mean() + output[1].mean()).backward()
        results.append((model.body.weight.grad.clone(), torch.get_rng_state()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(policy_probe, "MEMORY", 5)
    stats = watch(Actor(), action_extractor=extractor).result()
    assert stats.steps == 5
    assert stats.first_step == 8
    assert len(stats.entropy_history) == 5
