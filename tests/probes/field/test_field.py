"""The gradient field of games whose Jacobian is known."""

import math

import pytest
import torch
from torch import nn

from gradient_flow.errors import InputError
from gradient_flow.probes.field.coherence import FlowCoherence
from gradient_flow.probes.field.field import field_stats


def vector(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()


def bilinear(size):
    """min over x, max over y of x·y: nothing but rotation."""
    x, y = vector(size), vector(size, 1)
    return [(lambda: x @ y, [x]), (lambda: -(x @ y), [y])]


def bowl(size):
    x, y = vector(size), vector(size, 1)
    return [(lambda: x @ x / 2, [x]), (lambda: y @ y / 2, [y])]


def dirac_gan(gamma=0.0):
    """Mescheder 2018: data at 0, generator at theta, discriminator psi·x; R1 adds gamma/2 psi²."""
    theta = torch.zeros((), dtype=torch.float64, requires_grad=True)
    psi = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def softplus(z):
        return nn.functional.softplus(z)

    return [
        (lambda: softplus(-psi * theta), [theta]),
        (lambda: softplus(psi * theta) + softplus(-psi * 0.0) + gamma / 2 * psi**2, [psi]),
    ]


def quadratic_game(matrix, split):
    """A game with a given constant Jacobian: each player's loss has its rows of it as second derivatives."""
    size = matrix.shape[0]
    x, y = vector(split), vector(size - split, 1)

    def loss(own, rows):
        others = matrix[rows].clone()
        others[:, rows] = 0
        return own @ matrix[rows, rows] @ own / 2 + own @ (others @ torch.cat((x, y)))

    return [(lambda: loss(x, slice(0, split)), [x]), (lambda: loss(y, slice(split, size)), [y])]


@pytest.mark.parametrize("size", [3, 100])
def test_a_bilinear_game_only_rotates(size):
    stats = field_stats(bilinear(size))
    assert stats.exact == (size == 3)
    assert stats.rotation == pytest.approx(1.0)
    assert stats.divergence == pytest.approx(0.0, abs=1e-9)
    assert stats.antisymmetric_norm == pytest.approx(math.sqrt(2 * size))
    assert stats.symmetric_norm == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("size", [3, 100])
def test_a_bowl_does_not_rotate(size):
    stats = field_stats(bowl(size))
    assert stats.rotation == 0.0
    assert stats.divergence == pytest.approx(2 * size)
    assert stats.symmetric_norm == pytest.approx(math.sqrt(2 * size))


def test_the_dirac_gan_turns_around_its_solution():
    stats = field_stats(dirac_gan())
    assert stats.rotation == pytest.approx(1.0)
    assert sorted(value.imag for value in stats.eigenvalues) == pytest.approx([-0.5, 0.5])
    assert [value.real for value in stats.eigenvalues] == pytest.approx([0.0, 0.0])
    assert stats.largest_stable_step == 0.0


@pytest.mark.parametrize("gamma", [0.3, 1.0, 3.0])
def test_r1_damps_the_dirac_gan(gamma):
    stats = field_stats(dirac_gan(gamma))
    root = torch.sqrt(torch.tensor(gamma**2 / 4 - 0.25 + 0j, dtype=torch.complex128))
    expected = sorted(((gamma / 2 + root).item(), (gamma / 2 - root).item()), key=lambda z: (z.real, z.imag))
    found = sorted(stats.eigenvalues, key=lambda z: (round(z.real, 9), z.imag))
    assert all(abs(a - b) < 1e-9 for a, b in zip(found, expected, strict=True))
    assert stats.rotation == pytest.approx(0.5 / (0.5 + gamma**2))
    assert stats.divergence == pytest.approx(gamma)
    assert stats.largest_stable_step == pytest.approx(min(2 * z.real / abs(z) ** 2 for z in expected))


@pytest.mark.parametrize("size", [20, 90])
def test_a_random_game_matches_its_matrix(size):
    """Exactly when small; within four standard errors by probes."""
    generator = torch.Generator().manual_seed(5)
    matrix = torch.randn(size, size, generator=generator, dtype=torch.float64)
    split = size // 2
    for part in (slice(0, split), slice(split, size)):
        matrix[part, part] = (matrix[part, part] + matrix[part, part].T) / 2
    symmetric, antisymmetric = (matrix + matrix.T) / 2, (matrix - matrix.T) / 2
    stats = field_stats(quadratic_game(matrix, split), probes=64)
    share = float(antisymmetric.norm() ** 2 / matrix.norm() ** 2)
    if stats.exact:
        assert stats.rotation == pytest.approx(share)
        assert stats.rotation_error == 0.0
        assert stats.divergence == pytest.approx(float(matrix.trace()))
        assert stats.symmetric_norm == pytest.approx(float(symmetric.norm()))
    else:
        assert abs(stats.rotation - share) < 4 * stats.rotation_error
        assert abs(stats.divergence - float(matrix.trace())) < 4 * stats.divergence_error
        assert stats.antisymmetric_norm == pytest.approx(float(antisymmetric.norm()), rel=0.1)


def test_one_loss_cannot_rotate_and_says_why():
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(5, 6)
    stats = field_stats([(lambda: net(x).square().mean(), net.parameters())])
    assert stats.rotation == 0.0
    assert stats.rotation_error == 0.0
    assert stats.antisymmetric_norm == 0.0
    assert "Hessian" in stats.note
    assert "symmetric" in str(stats)


def test_rotation_does_not_depend_on_the_scale_of_the_losses():
    generator, critic = nn.Linear(4, 3).double(), nn.Linear(3, 1).double()
    noise, real = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)

    def players(scale):
        return [
            (lambda: -scale * critic(generator(noise)).mean(), generator.parameters()),
            (
                lambda: scale * (critic(generator(noise)).mean() - critic(real).tanh().square().mean()),
                critic.parameters(),
            ),
        ]

    first, second = field_stats(players(1.0)), field_stats(players(1e4))
    assert first.rotation == pytest.approx(second.rotation)
    assert 0 < first.rotation < 1


def test_a_player_may_be_given_by_its_module_or_optimizer():
    generator, critic, noise = nn.Linear(4, 3), nn.Linear(3, 1), torch.randn(6, 4)
    critic.bias.requires_grad_(False)

    def loss():
        return critic(generator(noise)).tanh().mean()

    def opposite():
        return -loss()

    plain = field_stats([(loss, generator.parameters()), (opposite, [critic.weight])])
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    assert field_stats([(loss, generator), (opposite, optimizer)]) == plain
    assert plain.parameters == 15 + 3


def test_nothing_is_changed():
    generator, critic = nn.Linear(9, 8), nn.Sequential(nn.Linear(8, 9), nn.Dropout(0.5), nn.Linear(9, 1))
    for parameter in [*generator.parameters(), *critic.parameters()]:
        parameter.grad = torch.ones_like(parameter)
    before = [p.clone() for p in [*generator.parameters(), *critic.parameters()]]
    state = torch.get_rng_state()
    field_stats(
        [
            (lambda: critic(generator(torch.randn(5, 9))).mean(), generator.parameters()),
            (lambda: -critic(generator(torch.randn(5, 9))).mean(), critic.parameters()),
        ],
        probes=4,
    )
    assert torch.equal(torch.get_rng_state(), state)
    for parameter, old in zip([*generator.parameters(), *critic.parameters()], before, strict=True):
        assert torch.equal(parameter, old)
        assert torch.equal(parameter.grad, torch.ones_like(parameter))


def test_losses_without_curvature_have_no_rotation_to_speak_of():
    x, y = vector(3), vector(3, 1)
    stats = field_stats([(lambda: x.sum(), [x]), (lambda: y.sum(), [y])])
    assert math.isnan(stats.rotation)
    assert stats.divergence == 0.0


def test_attention_can_be_a_player():
    block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    shift = torch.zeros(4, requires_grad=True)
    x = torch.randn(2, 3, 4)
    stats = field_stats(
        [(lambda: block(x + shift).square().mean(), block.parameters()), (lambda: -block(x + shift).mean(), [shift])],
        probes=2,
    )
    assert 0 <= stats.rotation <= 1


@pytest.mark.parametrize(
    ("players", "message"),
    [
        ([], "at least one"),
        ([(1, [])], "must be \\(loss function"),
        ([(lambda: torch.zeros(()), [])], "no parameter"),
        ([(lambda: 1.0, [vector(2)])], "one number"),
        ([(lambda: torch.zeros(3), [vector(2)])], "one number"),
        ([(lambda: torch.zeros(()), [vector(2)])], "does not depend"),
    ],
)
def test_wrong_players_are_named(players, message):
    with pytest.raises(InputError, match=message):
        field_stats(players)


class Once(torch.autograd.Function):
    """x² whose derivative cannot be derived."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


def test_losses_that_cannot_be_derived_twice_are_named():
    x, y = vector(2), vector(2, 1)
    with pytest.raises(InputError, match="only once"):
        field_stats([(lambda: Once.apply(x).square().sum(), [x]), (lambda: y.square().sum(), [y])])


def test_shared_parameters_are_refused():
    x = vector(2)
    with pytest.raises(InputError, match="share a parameter"):
        field_stats([(lambda: x.sum(), [x]), (lambda: -x.sum(), [x])])


def test_coherence_of_one_direction_of_noise_and_of_a_circle():
    same, noise, circle = FlowCoherence(), FlowCoherence(), FlowCoherence()
    generator = torch.Generator().manual_seed(0)
    for step in range(64):
        same.add([torch.ones(3), None])
        noise.add([torch.randn(4000, generator=generator)])
        angle = torch.tensor(2 * math.pi * step / 64)
        circle.add([torch.stack((angle.cos(), angle.sin()))])
    assert same.value() == pytest.approx(1.0)
    assert noise.value() == pytest.approx(1 / 64, rel=0.2)
    assert circle.value() == pytest.approx(0.0, abs=1e-9)


def test_coherence_needs_two_finite_steps():
    coherence = FlowCoherence()
    coherence.add([torch.ones(2)])
    assert coherence.value() is None
    coherence.add([torch.tensor([math.nan, 1.0])])
    assert coherence.value() is None
    coherence.add([torch.ones(2)])
    assert coherence.value() == pytest.approx(1.0)


def test_a_gradient_that_comes_late_counts_as_zero_before():
    coherence = FlowCoherence()
    coherence.add([torch.ones(1), None])
    coherence.add([torch.ones(1), torch.ones(2)])
    # sum = (2; 1, 1), squares 1 + 3, two steps
    assert coherence.value() == pytest.approx(6 / (2 * 4))
