"""Numbers of action distributions against torch's own entropies and against hand-made ones."""

import math

import pytest
import torch
from torch import distributions as d

from gradient_flow.errors import InputError
from gradient_flow.probes.policy.measure_step import policy_step

STATES = 48


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def step_of(extracted, **settings):
    step, _ = policy_step(extracted, **settings)
    return step


def test_entropy_is_torchs_over_the_logarithm_of_the_actions():
    logits = tensor(STATES, 5)
    step = step_of((logits, None, None, None))
    expected = d.Categorical(logits=logits).entropy().mean()
    assert step.entropy == pytest.approx(float(expected) / math.log(5), rel=1e-5)
    assert step.entropy_nats == pytest.approx(float(expected), rel=1e-5)
    assert step.effective_actions == pytest.approx(math.exp(float(expected)), rel=1e-5)
    assert step.valid_actions == pytest.approx(5)
    assert (step.states, step.choices, step.nonfinite_states) == (STATES, STATES, 0)
    assert step.std_mean is None


def test_uniform_is_one_and_certain_is_zero():
    assert step_of(torch.zeros(4, 7)).entropy == pytest.approx(1.0)
    certain = step_of(1e4 * torch.eye(4))
    assert certain.entropy == 0.0
    assert certain.certain_share == 1.0
    assert certain.effective_actions == pytest.approx(1.0)


def test_entropy_does_not_depend_on_shift_order_or_leading_shape():
    logits = tensor(6, 8, 4)
    step = step_of(logits)
    assert step.states == 48
    for other in (logits + 7.0, logits.flip(-1), logits.reshape(48, 4)):
        assert step_of(other).entropy == pytest.approx(step.entropy)


@pytest.mark.parametrize("hidden", [-math.inf, -1e8, torch.finfo(torch.float32).min])
def test_masked_actions_do_not_count(hidden):
    """Two of four actions masked: uniform over the rest is 1, not ln 2 / ln 4."""
    logits = torch.tensor([[0.0, 0.0, hidden, hidden]] * 3)
    step = step_of(logits)
    assert step.entropy == pytest.approx(1.0)
    assert step.valid_actions == pytest.approx(2)
    assert step_of(d.Categorical(logits=logits)).entropy == pytest.approx(1.0)


def test_masks_differ_between_states():
    logits = tensor(3, 4)
    valid = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    masked = logits.masked_fill(~valid, -math.inf)
    entropies = d.Categorical(logits=masked[:2], validate_args=False).logits
    p = entropies.softmax(-1)
    by_hand = -(torch.xlogy(p, p)).sum(-1) / torch.tensor([4.0, 2.0]).log()
    step = step_of(masked)
    assert step.choices == 2  # the third state leaves no choice
    assert step.entropy == pytest.approx(float(by_hand.mean()), rel=1e-5)
    assert step_of({"logits": logits, "mask": valid}).entropy == pytest.approx(step.entropy)


def test_a_half_precision_mask_is_seen():
    logits = torch.tensor([[0.0, 0.0, torch.finfo(torch.float16).min]] * 2, dtype=torch.float16)
    assert step_of(logits).valid_actions == pytest.approx(2)


def test_a_diverged_policy_is_no_masked_one():
    """Logits thousands apart are an opinion: the policy has collapsed, it was not masked."""
    step = step_of(torch.tensor([[0.0, -5e3, -9e3]] * 4))
    assert step.valid_actions == pytest.approx(3)
    assert step.entropy == 0.0


def test_without_a_choice_there_is_no_entropy():
    step = step_of(torch.tensor([[0.0, -math.inf]] * 3))
    assert step.entropy is None
    assert step.choices == 0
    assert step.nonfinite_states == 0


def test_states_that_are_not_finite_are_counted_and_left_out():
    logits = tensor(5, 3)
    broken = logits.clone()
    broken[0, 1] = math.nan
    broken[1, 0] = math.inf
    broken[2] = -math.inf
    step = step_of(broken)
    assert step.nonfinite_states == 3
    assert step.entropy == pytest.approx(step_of(logits[3:]).entropy)


def test_mutual_information_tells_state_dependent_certainty_from_a_fixed_action():
    by_state = step_of(100 * torch.eye(4))
    fixed = step_of(100 * torch.eye(4)[[0, 0, 0, 0]])
    random = step_of(torch.zeros(4, 4))
    assert by_state.mutual_information == pytest.approx(math.log(4))
    assert by_state.marginal_entropy == pytest.approx(1.0)
    assert (fixed.mutual_information, fixed.marginal_entropy) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert random.mutual_information == pytest.approx(0.0, abs=1e-9)
    assert step_of(torch.zeros(1, 4)).mutual_information is None


DISCRETE = {
    "categorical": lambda: d.Categorical(logits=tensor(STATES, 5)),
    "probabilities": lambda: d.Categorical(probs=tensor(STATES, 5).softmax(-1)),
    "one hot": lambda: d.OneHotCategorical(logits=tensor(STATES, 5)),
    "straight through": lambda: d.OneHotCategoricalStraightThrough(logits=tensor(STATES, 5)),
    "bernoulli": lambda: d.Bernoulli(logits=tensor(STATES)),
    "several switches": lambda: d.Independent(d.Bernoulli(logits=tensor(STATES, 3)), 1),
    "multi-discrete": lambda: d.Independent(d.Categorical(logits=tensor(STATES, 3, 4)), 1),
}


@pytest.mark.parametrize("make", DISCRETE.values(), ids=DISCRETE)
def test_discrete_distributions_agree_with_their_own_entropy(make):
    step = step_of(make())
    assert step.states == STATES
    assert step.entropy_nats == pytest.approx(float(make().entropy().mean()), rel=1e-5)
    assert step.entropy == pytest.approx(step.entropy_nats / math.log(step.valid_actions))


def test_factors_are_reported_one_by_one():
    first, second = d.Categorical(logits=torch.zeros(4, 3)), d.Categorical(logits=1e4 * torch.eye(4))
    step = step_of([first, second])
    assert step.factor_entropies == pytest.approx((1.0, 0.0))
    assert step.valid_actions == pytest.approx(12)
    assert step.entropy == pytest.approx(math.log(3) / math.log(12))
    assert step_of(([first.logits, second.logits], None, None, None)).entropy == pytest.approx(step.entropy)


def test_switches_without_independent_are_factors():
    logits = tensor(STATES, 3)
    joint = step_of(d.Independent(d.Bernoulli(logits=logits), 1))
    assert step_of(d.Bernoulli(logits=logits)) == joint
    assert step_of(d.Bernoulli(probs=logits.double().sigmoid())).entropy == pytest.approx(joint.entropy, rel=1e-5)


def test_standard_deviations():
    mean, std = tensor(STATES, 3), tensor(STATES, 3, seed=1).abs() + 0.1
    step = step_of((None, std, mean, None))
    assert step.std_mean == pytest.approx(float(std.mean()), rel=1e-6)
    assert step.std_min == pytest.approx(float(std.mean(0).min()), rel=1e-6)
    assert step.mean_spread == pytest.approx(float(mean.std(0, correction=0).mean()), rel=1e-5)
    assert step.entropy is None
    assert step.std_relative is None
    for other in (d.Normal(mean, std), d.Independent(d.Normal(mean, std), 1), {"log_std": std.log(), "mean": mean}):
        assert step_of(other).std_mean == pytest.approx(step.std_mean, rel=1e-6)
    covariance = torch.diag_embed(std.square())
    assert step_of(d.MultivariateNormal(mean, covariance)).std_min == pytest.approx(step.std_min, rel=1e-5)


def test_one_standard_deviation_for_all_states_and_none_of_the_mean():
    std = torch.tensor([0.5, 0.1])
    for extracted in ((None, std, tensor(STATES, 2), None), (None, std), (None, std.expand(STATES, 2))):
        step = step_of(extracted)
        assert step.std_mean == pytest.approx(0.3)
        assert step.std_min == pytest.approx(0.1)
    assert step_of((None, std)).mean_spread is None
    assert step_of((None, std), action_range=(-1, 1)).mean_saturation is None


class Box:
    low, high = [-2.0, -math.inf], [2.0, math.inf]


def test_relative_to_half_of_the_action_range():
    mean, std = torch.tensor([[1.99, 0.0], [0.0, 0.0]]), torch.full((2, 2), 0.5)
    step = step_of((None, std, mean), action_range=(-2.0, 2.0))
    assert step.std_relative == pytest.approx(0.25)
    assert step.mean_saturation == pytest.approx(0.25)  # one of four mean actions is at its bound
    per_dimension = step_of((None, std, mean), action_range=([-2, -1], [2, 1]))
    assert per_dimension.std_relative == pytest.approx((0.25 + 0.5) / 2)
    assert per_dimension.std_relative_min == pytest.approx(0.25)
    assert step_of((None, std, mean), action_range=Box()).std_relative == pytest.approx(0.25)  # the bounded one


@pytest.mark.parametrize("std", [0.05, 0.5, 1.0, 2.0])
def test_a_squashed_gaussian_against_a_fine_integral(std):
    mean = torch.tensor([[-0.7, 0.0, 1.5]])
    squashed = d.TransformedDistribution(d.Normal(mean, torch.full_like(mean, std)), [d.TanhTransform()])
    z = torch.linspace(-10, 10, 200_001, dtype=torch.float64)[:, None]
    weight = torch.exp(-z.square() / 2)
    action = torch.tanh(mean + std * z)
    first = (weight * action).sum(0) / weight.sum()
    expected = ((weight * action.square()).sum(0) / weight.sum() - first.square()).sqrt()
    step = step_of(squashed)
    assert step.squashed
    assert step.std_mean == pytest.approx(std)
    assert step.std_relative == pytest.approx(float(expected.mean()), rel=1e-4)
    assert step.std_relative_min == pytest.approx(float(expected.min()), rel=1e-4)


def test_saturation_and_scale_of_a_squashed_policy():
    mean = torch.tensor([[5.0, 0.0], [-4.0, 0.0]])
    transforms = [d.TanhTransform(cache_size=1), d.AffineTransform(1.0, 3.0)]
    policy = d.TransformedDistribution(d.Independent(d.Normal(mean, torch.ones(2, 2)), 1), transforms)
    step = step_of(policy, action_range=(-100, 100))  # its own bounds are -2 and 4
    assert step.mean_saturation == pytest.approx(0.5)
    alone = step_of(d.TransformedDistribution(d.Normal(mean, torch.ones(2, 2)), [d.TanhTransform()]))
    assert step.std_relative == pytest.approx(alone.std_relative)


def test_shifts_and_scales_before_the_squashing_belong_to_the_policy():
    mean, std = tensor(STATES, 2), torch.full((STATES, 2), 0.3)
    moved = d.TransformedDistribution(d.Normal(mean, std), [d.AffineTransform(1.0, 2.0), d.TanhTransform()])
    same = d.TransformedDistribution(d.Normal(1 + 2 * mean, 2 * std), [d.TanhTransform()])
    assert step_of(moved).std_mean == pytest.approx(0.6, rel=1e-6)
    assert step_of(moved).std_relative == pytest.approx(step_of(same).std_relative, rel=1e-5)


def test_beta_brings_its_own_range():
    flat = d.Beta(torch.ones(4, 2), torch.ones(4, 2))
    step = step_of(flat, action_range=(-5, 5))
    assert step.std_relative == pytest.approx(1 / math.sqrt(3))  # a uniform distribution over its range
    scaled = d.TransformedDistribution(flat, [d.AffineTransform(-1.0, 2.0)])
    assert step_of(scaled).std_relative == pytest.approx(step.std_relative)
    assert step_of(scaled).std_mean == pytest.approx(2 * step.std_mean)


def mixture(*transforms):
    components = d.Normal(torch.tensor([-1.0, 1.0]).expand(STATES, 2), torch.full((STATES, 2), 0.1))
    base = d.MixtureSameFamily(d.Categorical(logits=torch.zeros(STATES, 2)), components)
    return d.TransformedDistribution(base, list(transforms)) if transforms else base


def test_mixtures():
    assert step_of(mixture()).std_mean == pytest.approx(math.sqrt(1 + 0.01), rel=1e-5)
    squashed = step_of(mixture(d.TanhTransform()))
    assert squashed.std_relative == pytest.approx(math.tanh(1.0), rel=0.02)  # by samples


@pytest.mark.parametrize("hopeless", [d.Poisson(torch.ones(3)), d.Cauchy(torch.zeros(3), torch.ones(3))])
def test_what_cannot_be_measured_says_so(hopeless):
    step, reason = policy_step(hopeless)
    assert step is None
    assert type(hopeless).__name__ in reason


def test_mixed_policies_have_both():
    step = step_of((d.Categorical(logits=torch.zeros(4, 3)), d.Normal(torch.zeros(4, 2), torch.ones(4, 2))))
    assert step.entropy == pytest.approx(1.0)
    assert step.std_mean == pytest.approx(1.0)
    step = step_of((torch.zeros(4, 3), torch.ones(2), torch.zeros(4, 2), torch.tensor([1.0, 3.0, 1.0, 3.0])))
    assert (step.entropy, step.std_mean) == (pytest.approx(1.0), pytest.approx(1.0))
    assert (step.value_mean, step.value_std) == (pytest.approx(2.0), pytest.approx(1.0))


class Wrapped:
    """As Stable-Baselines3 hands them out."""

    def __init__(self, inner):
        self.distribution = inner


def test_wrapped_distributions_are_found():
    inner = d.Categorical(logits=torch.zeros(4, 3))
    for policy in (Wrapped(inner), Wrapped([inner, inner]), {"policy": Wrapped(inner), "value": torch.zeros(4)}):
        assert step_of(policy).entropy == pytest.approx(1.0)


class Maskable(d.Categorical):
    masks = torch.tensor([True, True, False])


def test_a_mask_kept_beside_the_logits_is_used():
    assert step_of(Maskable(logits=torch.tensor([[0.0, 0.0, -3.0]] * 2))).entropy == pytest.approx(1.0)


def test_distributions_are_left_as_they_were():
    """No lazy attribute appears, no cached action is lost, no random number is drawn."""
    policy = d.TransformedDistribution(d.Normal(tensor(STATES, 2), torch.ones(2)), [d.TanhTransform(cache_size=1)])
    action = policy.rsample()
    expected = policy.log_prob(action)
    categorical = d.Categorical(probs=torch.full((2, 3), 1 / 3))
    attributes, state = set(vars(categorical)), torch.get_rng_state()
    for each in (policy, categorical, mixture(d.TanhTransform())):
        step_of(each)
    assert torch.equal(torch.get_rng_state(), state)
    assert set(vars(categorical)) == attributes
    assert torch.equal(policy.log_prob(action), expected)


def test_gradients_still_flow_through_what_was_measured():
    logits = tensor(4, 3).requires_grad_()
    policy = d.Categorical(logits=logits)
    step_of(policy)
    policy.entropy().sum().backward()
    assert logits.grad is not None


@pytest.mark.parametrize(
    ("extracted", "what"),
    [
        (None, "NoneType"),
        ("logits", "str"),
        ((1, 2, 3, 4, 5), "tuple of 5"),
        ({"logit": torch.zeros(2, 2)}, "logit; known are"),
        ((torch.zeros(2, 2, dtype=torch.int64),), "int64 of shape"),
        ((torch.tensor(1.0),), "`logits` of shape"),
        ((None, torch.ones(3), torch.zeros(4, 2)), "do not fit"),
        ((None, torch.full((3,), -5.0)), "log_std.exp"),
        ({"logits": torch.zeros(2, 3), "mask": torch.ones(2, 4)}, "a `mask` of shape"),
        ((None, 0.5, None), "float as `std`"),
    ],
)
def test_wrong_extractions_are_named(extracted, what):
    with pytest.raises(InputError, match=what):
        policy_step(extracted)


@pytest.mark.parametrize("action_range", [3.0, (1.0, -1.0), (0.0, math.nan), (-1, 0, 1), "wide"])
def test_wrong_ranges_are_named(action_range):
    with pytest.raises(InputError, match="action_range"):
        policy_step((None, torch.ones(2, 2)), action_range)


def test_a_range_of_another_size_is_named():
    with pytest.raises(InputError, match="one per action dimension"):
        policy_step((None, torch.ones(2, 2)), ([-1, -1, -1], [1, 1, 1]))


def test_nothing_at_all_is_no_error():
    step, reason = policy_step((None, None, None, torch.zeros(3)))
    assert step is None
    assert "neither logits" in reason
