"""Singular values, rank and conditioning against matrices whose decomposition is known."""

import math

import pytest
import torch
from torch import nn

from gradient_flow.errors import InputError
from gradient_flow.probes.field.jacobian import jacobian_stats
from gradient_flow.probes.field.linearization import Linearization, function_of


def matrix_with(singular, rows, columns, seed=0):
    """A matrix with the given singular values and random singular vectors."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.linalg.qr(torch.randn(rows, rows, generator=generator, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(columns, columns, generator=generator, dtype=torch.float64))[0]
    count = len(singular)
    return left[:, :count] @ torch.diag(torch.as_tensor(singular, dtype=torch.float64)) @ right[:count]


def linear(matrix):
    return lambda x: matrix.to(x) @ x


class Square(torch.autograd.Function):
    """x² without a forward derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (12, 8), (8, 12)])
def test_small_jacobians_are_exact(rows, columns):
    singular = [5.0, 4.0, 3.0, 2.5, 2.0, 1.0, 0.5, 0.1]
    matrix = matrix_with(singular, rows, columns)
    stats = jacobian_stats(linear(matrix), torch.randn(columns, dtype=torch.float64))
    assert stats.exact
    assert stats.largest_singular_value == pytest.approx(5.0)
    assert stats.smallest_singular_value == pytest.approx(0.1)
    assert stats.conditioning == pytest.approx(50.0)
    assert stats.mean_squared_singular_value == pytest.approx(sum(s * s for s in singular) / columns)
    fourth = sum(s**4 for s in singular)
    assert stats.effective_rank == pytest.approx(sum(s * s for s in singular) ** 2 / fourth)
    expected = torch.linalg.eigvals(matrix).abs().max() if rows == columns else None
    assert stats.spectral_radius == (None if expected is None else pytest.approx(float(expected)))


def test_ill_conditioned_in_double_precision():
    matrix = matrix_with([1.0, 1e-4, 1e-10], 3, 3)
    stats = jacobian_stats(linear(matrix), torch.ones(3, dtype=torch.float64))
    assert stats.conditioning == pytest.approx(1e10, rel=1e-4)
    assert stats.effective_rank == pytest.approx(1.0, abs=1e-6)


def test_what_rounding_hides_is_called_singular():
    single = matrix_with([1.0, 0.5, 1e-10], 3, 3)
    assert jacobian_stats(linear(single), torch.ones(3)).conditioning == math.inf
    assert jacobian_stats(linear(torch.zeros(3, 3)), torch.ones(3)).largest_singular_value == 0.0


def test_large_jacobians_by_probes():
    size = 400
    singular = torch.cat((torch.tensor([10.0, 6.0]), torch.linspace(2, 0.5, size - 2)))
    matrix = matrix_with(singular, size, size)
    stats = jacobian_stats(linear(matrix), torch.randn(size, dtype=torch.float64), probes=32)
    assert not stats.exact
    assert stats.converged
    assert stats.largest_singular_value == pytest.approx(10.0, rel=1e-3)
    mean_square = float(singular.double().square().mean())
    assert abs(stats.mean_squared_singular_value - mean_square) < 4 * stats.mean_squared_error
    rank = float(singular.square().sum() ** 2 / singular.pow(4).sum())
    assert stats.effective_rank == pytest.approx(rank, rel=0.35)
    assert 2.0 < stats.conditioning <= 20.0 + 1e-6  # a lower bound of 20
    radius = float(torch.linalg.eigvals(matrix).abs().max())
    assert stats.spectral_radius == pytest.approx(radius, rel=0.05)
    assert stats.smallest_singular_value is None


def test_the_spectral_radius_of_a_large_rotation():
    """Complex pairs, on which power iteration never settles."""
    size, radius = 400, 0.9
    turn = radius * torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(1)).double())[0]
    turn[0, 1:] = 0
    turn[1:, 0] = 0
    turn[0, 0] = 1.5
    stats = jacobian_stats(linear(turn), torch.zeros(size, dtype=torch.float64))
    assert stats.spectral_radius == pytest.approx(1.5, rel=1e-3)


def test_a_non_normal_map_has_a_small_radius_and_a_large_norm():
    stats = jacobian_stats(linear(torch.tensor([[0.5, 10.0], [0.0, 0.5]])), torch.zeros(2, dtype=torch.float64))
    assert stats.spectral_radius == pytest.approx(0.5, rel=1e-6)
    assert stats.largest_singular_value == pytest.approx(10.025, rel=1e-3)


def test_an_orthogonal_linear_net_is_an_isometry():
    net = nn.Sequential(*[nn.Linear(16, 16, bias=False, dtype=torch.float64) for _ in range(5)])
    for layer in net:
        nn.init.orthogonal_(layer.weight)
    stats = jacobian_stats(net, torch.randn(1, 16, dtype=torch.float64))
    assert stats.largest_singular_value == pytest.approx(1.0)
    assert stats.conditioning == pytest.approx(1.0)
    assert stats.effective_rank == pytest.approx(16.0)


def test_the_mean_square_of_a_deep_relu_net_follows_mean_field_theory():
    """He initialisation keeps the mean squared singular value near one, the default divides it by six a layer."""
    torch.manual_seed(0)
    layers = []
    for _ in range(4):
        layers += [nn.Linear(300, 300, bias=False), nn.ReLU()]
        nn.init.normal_(layers[-2].weight, std=math.sqrt(2 / 300))
    stats = jacobian_stats(nn.Sequential(*layers), torch.randn(1, 300))
    assert 0.5 < stats.mean_squared_singular_value < 2.0


def test_operations_without_a_forward_derivative_are_derived_twice_backwards():
    x = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    stats = jacobian_stats(Square.apply, x)
    assert stats.method == "double backward"
    assert stats.largest_singular_value == pytest.approx(6.0)
    assert stats.smallest_singular_value == pytest.approx(2.0)


def test_one_derivative_only_is_not_taken_for_a_constant():
    class Once(Square):
        backward = staticmethod(torch.autograd.function.once_differentiable(Square.backward))

    with pytest.raises(InputError, match="only once"):
        jacobian_stats(Once.apply, torch.ones(3))


def test_recurrent_layers():
    torch.manual_seed(0)
    cell = nn.LSTM(4, 4, batch_first=True)
    x = torch.randn(1, 3, 4)

    def function(z):
        return cell(z)[0]

    expected = torch.autograd.functional.jacobian(function, x).reshape(12, 12)
    linearization = Linearization(function, x)
    assert torch.allclose(linearization.matrix().float(), expected, atol=1e-6)
    assert jacobian_stats(function_of(cell), x).largest_singular_value == pytest.approx(
        float(torch.linalg.svdvals(expected)[0]), rel=1e-4
    )


@pytest.mark.parametrize("inplace", [False, True])
def test_both_products_agree_with_the_dense_jacobian(inplace):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(inplace=inplace), nn.LayerNorm(9), nn.Linear(9, 4)).double()
    x = torch.randn(2, 6, dtype=torch.float64)
    dense = torch.autograd.functional.jacobian(net, x).reshape(8, 12)
    linearization = Linearization(net, x)
    assert torch.allclose(linearization.matrix(), dense)
    v, u = torch.randn(12, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    assert torch.allclose(linearization.forward(v), dense @ v)
    assert torch.allclose(linearization.backward(u), dense.T @ u)


def test_attention_can_be_linearised():
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    dense = torch.autograd.functional.jacobian(block, x).reshape(40, 40)
    stats = jacobian_stats(block, x)
    assert stats.largest_singular_value == pytest.approx(float(torch.linalg.svdvals(dense)[0]), rel=1e-6)


def test_dropout_is_one_fixed_mask():
    """The same mask in every product: J is diagonal with entries 0 and 2, not a mixture of many masks."""
    stats = jacobian_stats(nn.Dropout(0.5), torch.ones(64))
    assert stats.largest_singular_value == pytest.approx(2.0)
    assert stats.effective_rank == pytest.approx(round(stats.effective_rank))


def test_nothing_is_changed():
    net = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 5))
    net(torch.randn(8, 5)).sum().backward()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in net.parameters()]
    x = torch.randn(8, 5)
    kept, state = x.clone(), torch.get_rng_state()
    jacobian_stats(function_of(net), x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, kept)
    assert not x.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), gradients, strict=True))


def test_the_seed_decides_the_probes():
    matrix = matrix_with(torch.linspace(2, 1, 300), 300, 300)
    first, second = (jacobian_stats(linear(matrix), torch.zeros(300), seed=3) for _ in range(2))
    assert first == second
    assert first != jacobian_stats(linear(matrix), torch.zeros(300), seed=4)


def test_a_function_that_ignores_its_input_has_no_singular_values():
    stats = jacobian_stats(lambda x: torch.ones(3), torch.zeros(2))
    assert stats.largest_singular_value == 0.0
    assert stats.effective_rank == 0.0


@pytest.mark.parametrize("size", [3, 300])
def test_what_is_not_finite_stays_so(size):
    stats = jacobian_stats(lambda x: x.sqrt(), torch.zeros(size))
    assert math.isnan(stats.largest_singular_value)
    assert "NaN" in str(stats)


def test_it_prints_what_it_is():
    text = str(jacobian_stats(linear(torch.eye(3)), torch.zeros(3)))
    assert "Jacobian 3 x 3 (exact" in text
    assert "spectral radius 1" in text


@pytest.mark.parametrize("x", [torch.zeros(3, dtype=torch.int64), torch.zeros(0), 3.0])
def test_wrong_points_are_named(x):
    with pytest.raises(InputError, match="`x` must be"):
        jacobian_stats(lambda z: z, x)


def test_wrong_functions_are_named():
    with pytest.raises(InputError, match="`function` must return"):
        jacobian_stats(lambda z: (z, z), torch.zeros(3))
    with pytest.raises(InputError, match="`probes`"):
        jacobian_stats(lambda z: z, torch.zeros(3), probes=1)
