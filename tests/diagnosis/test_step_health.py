"""Health of a step: silent on healthy runs, right on planted faults, the same at every scale."""

import numpy as np
import pytest
import torch

from gradient_flow import GradientConfig, GradientMonitor
from gradient_flow.act.clip_advice import advise_on_clipping
from gradient_flow.diagnosis.step_health import StepNumbers, deviations, judge_step

SCALES = [1e-6, 1e-3, 1.0, 1e3, 1e6]


def kinds(norm, past, losses=(), **numbers):
    return [finding.kind for finding in judge_step(StepNumbers(len(past) + 1, norm, **numbers), past, losses)]


def noisy(count, spread=0.3, seed=0):
    return np.exp(np.random.default_rng(seed).normal(scale=spread, size=count))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("spread", [0.0, 0.05, 0.3, 0.6])
def test_a_steady_run_is_healthy_at_any_scale(scale, spread):
    norms = (noisy(2000, spread) * scale).tolist()
    found = [k for k in range(16, 2000) if kinds(norms[k], norms[max(0, k - 100) : k])]
    assert len(found) <= 2, found  # six robust deviations: hardly ever by chance


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("past", [3, 10, 16, 100])
def test_a_spike_is_an_explosion_at_any_scale_and_a_fall_is_unusual(scale, past):
    norms = (noisy(past, 0.2) * scale).tolist()
    assert kinds(1000 * scale, norms) == ["explosion"]
    assert kinds(scale / 1000, norms) == ["unusual"]


def test_deviations_are_robust_deviations_of_logarithms():
    past = np.exp(np.linspace(-1, 1, 101)).tolist()
    # median 0, median absolute deviation 0.5: one deviation is 0.7413
    assert deviations(np.exp(7.413), past) == pytest.approx(10.0, rel=1e-4)
    assert deviations(np.e, [1.0] * 50) == pytest.approx(10.0)  # the floor of 0.1
    assert np.isnan(deviations(1.0, [1.0, 1.0]))
    assert np.isnan(deviations(np.inf, past))


def test_convergence_is_not_an_explosion_when_noise_returns():
    assert kinds(1e-3 * 1.3, [1e-3] * 100) == []


def test_a_slow_rise_of_two_decades_is_an_explosion_and_a_fall_is_vanishing_unless_the_loss_falls_too():
    rising = np.logspace(-1, 1.6, 100).tolist()
    assert kinds(rising[-1] * 1.02, rising) == ["explosion"]
    falling, flat, falling_loss = rising[::-1], [2.3] * 100, np.linspace(3.0, 0.1, 100).tolist()
    assert kinds(falling[-1] * 0.98, falling, flat) == ["vanishing"]
    assert kinds(falling[-1] * 0.98, falling, falling_loss) == []


def test_a_large_level_counts_only_before_there_is_a_past():
    assert kinds(1e-9, []) == ["vanishing"]
    assert kinds(1e9, []) == ["explosion"]
    assert kinds(1e9, [1e9] * 20) == []
    assert kinds(0.0, [1.0] * 50, layers=3, zero_layers=3) == ["vanishing"]


FELL = [*np.linspace(2.0, 0.3, 20), *[0.3] * 60]
"""Down to a floor that is not 0, and flat there."""


@pytest.mark.parametrize("steps", [0, 5, 20, 100])
@pytest.mark.parametrize(
    ("losses", "found"),
    [
        ([], ["vanishing"]),  # not known
        ([2.3] * 80, ["vanishing"]),  # never fell
        ([*FELL[:40], *[1.9] * 40], ["vanishing"]),  # fell, and is stuck far above its lowest
        ((2.3 + 0.5 * np.sin(np.arange(80))).tolist(), ["vanishing"]),  # noise is no fall
        (FELL, []),
        ([-loss for loss in FELL[::-1]], []),  # negative, and still falling
        ([1e-9] * 80, []),
    ],
)
def test_norms_that_stay_tiny_are_vanishing_unless_the_loss_is_known_to_be_at_its_floor(steps, losses, found):
    assert kinds(1e-12, [1e-12] * steps, losses) == found


def test_one_tiny_norm_after_larger_ones_is_no_vanishing():
    assert kinds(0.9e-7, [1.1e-7] * 20) == []


def test_gradients_of_exactly_zero_are_fine_where_the_loss_is_zero_too():
    assert kinds(0.0, [1.0] * 50, [0.0] * 20, layers=3, zero_layers=3) == []
    assert kinds(0.0, [1.0] * 50, FELL, layers=3, zero_layers=3) == ["vanishing"]


def test_twenty_steps_of_tiny_norms_say_so_and_advise_a_larger_rate():
    monitor = GradientMonitor()
    for _ in range(20):
        monitor.update_statistics([torch.full((4,), 5e-13)])
    health = monitor.check_gradient_health([torch.full((4,), 5e-13)])
    assert not health["healthy"]
    assert "Vanishing gradients: norm 1e-12" in health["warnings"][0]
    assert "Increase the learning rate" in health["recommendations"][0]


def test_a_model_that_converged_long_ago_stays_healthy_also_from_a_checkpoint():
    """Full-batch regression with noise: the loss ends at the noise, the norm at rounding."""
    torch.manual_seed(0)
    x = torch.randn(64, 3, dtype=torch.float64)
    y = x.sum(1) + torch.randn(64, dtype=torch.float64)
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    monitor = GradientMonitor()
    for step in range(600):
        if step == 500:
            state, monitor = monitor.state_dict(), GradientMonitor()
            monitor.load_state_dict(state)
        loss = (x @ weight - y).square().mean()
        (gradient,) = torch.autograd.grad(loss, weight)
        health = monitor.check_gradient_health([gradient], loss=loss.item())
        if step > 200:
            assert gradient.norm() < 1e-7
            assert health["healthy"], (step, health)
        monitor.update_statistics([gradient], loss=loss.item())
        with torch.no_grad():
            weight -= 0.1 * gradient


def test_mostly_dead_gradients_are_unusual():
    assert kinds(1.0, [], layers=10, zero_layers=6) == ["unusual"]
    assert kinds(1.0, [], layers=10, zero_layers=5) == []


def test_evidence_is_named_with_norm_deviations_step_and_layer():
    monitor = GradientMonitor(GradientConfig())
    torch.manual_seed(0)
    for _ in range(120):
        monitor.update_statistics({"encoder": torch.randn(100), "decoder.3.mlp.2.weight": torch.randn(100)})
    health = monitor.check_gradient_health(
        {"encoder": torch.randn(100), "decoder.3.mlp.2.weight": torch.full((100,), 48.0)}
    )
    assert not health["healthy"]
    text = health["recommendations"][0]
    for part in (
        "Reduce the learning rate",
        "norm 480",
        "robust deviations above the last 100 steps",
        "step 121",
        "layer `decoder.3.mlp.2.weight`",
        "clip at",
    ):
        assert part in text
    assert "explosion" in health["warnings"][0].lower()


def test_the_layer_that_rose_is_blamed_not_the_largest():
    monitor = GradientMonitor()
    for _ in range(30):
        monitor.update_statistics({"large": torch.full((4,), 100.0), "small": torch.full((4,), 1.0)})
    health = monitor.check_gradient_health({"large": torch.full((4,), 100.0), "small": torch.full((4,), 5000.0)})
    assert "`small`" in health["warnings"][0]


def test_a_nan_step_never_enters_what_later_steps_are_compared_with():
    clean, dirty = GradientMonitor(), GradientMonitor()
    for k in range(60):
        gradient = torch.randn(10, generator=torch.Generator().manual_seed(k))
        clean.update_statistics([gradient])
        dirty.update_statistics([gradient])
        dirty.update_statistics([torch.tensor([float("nan")])])
        dirty.update_statistics([torch.tensor([float("inf")])])
    probe = [torch.full((10,), 1e4)]
    assert dirty.check_gradient_health(probe, step=1) == clean.check_gradient_health(probe, step=1)
    assert dirty.norms.to_dict() == clean.norms.to_dict()
    assert dirty.norms.nonfinite == 120


def test_the_advisor_needs_norms_and_says_so():
    assert advise_on_clipping(0, 0, [], 1.0).suggested_limit is None
    few = advise_on_clipping(5, 5, [1.0] * 5, 1.0)
    assert few.suggested_limit is None
    assert "Too few" in few.message
    rare = advise_on_clipping(5000, 1, list(noisy(1000)), 100.0)
    assert "hardly ever" in rare.message
