"""Radius, exponents, products and decay against closed forms, and every Jacobian against autograd, in fp64."""

import math

import pytest
import torch
from torch import nn

from gradient_flow.probes.recurrent.cells import TorchCell
from gradient_flow.probes.recurrent.dynamics import (
    DENSE_UP_TO,
    carried_back,
    jacobians,
    largest_magnitudes,
    lyapunov_exponents,
    precision_for,
    product_norms,
    spectral_radius,
)
from gradient_flow.probes.recurrent.stats import decay_per_step, memory_length
from gradient_flow.probes.recurrent.written_loop import MatrixTransitions


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def orthogonal(size):
    return torch.linalg.qr(torch.randn(size, size, dtype=torch.float64)).Q


def constant(matrix, steps=30, rows=2):
    """The Jacobians of the linear map h -> W h."""
    return MatrixTransitions(matrix.double().expand(steps, rows, *matrix.shape))


def cell_of(module, kind):
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    found = {name: getattr(module, name, None) for name in names}
    found = {name: None if weight is None else weight.detach() for name, weight in found.items()}
    return TorchCell(kind=kind, **found)


# Closed forms


@pytest.mark.parametrize("rho", [0.5, 0.9, 0.99, 1.0, 1.5])
@pytest.mark.parametrize("size", [3, 40, 300])
def test_a_scaled_rotation_has_its_scale_everywhere(rho, size):
    transitions = constant(rho * orthogonal(size))
    tolerance = 1e-9 if size <= DENSE_UP_TO else 0.02
    assert spectral_radius(transitions) == pytest.approx(rho, rel=tolerance)
    assert lyapunov_exponents(transitions) == pytest.approx([math.log(rho)] * 3, abs=1e-9)
    for length, norm in product_norms(transitions).items():
        assert norm == pytest.approx(rho**length, rel=1e-9)
    factor, error = decay_per_step(carried_back(transitions))
    assert factor == pytest.approx(rho, rel=1e-9)
    assert error < 1e-9
    if rho < 1:
        assert memory_length(factor) == pytest.approx(-1 / math.log(rho), rel=1e-6)


def test_memory_lengths_of_the_notes():
    assert [round(memory_length(r), 1) for r in (0.5, 0.9)] == [1.4, 9.5]
    assert memory_length(1.0) == memory_length(1.5) == math.inf
    assert memory_length(0.0) == 0


def test_a_diagonal_matrix_has_its_largest_entry_as_radius_and_its_entries_as_exponents():
    transitions = constant(torch.diag(torch.tensor([0.3, -0.8, 0.5])), steps=400)
    assert spectral_radius(transitions) == pytest.approx(0.8)
    expected = [math.log(value) for value in (0.8, 0.5, 0.3)]
    assert lyapunov_exponents(transitions) == pytest.approx(expected, abs=1e-6)


def test_transient_growth_is_seen_by_the_product_norm_and_not_by_the_radius():
    matrix = torch.tensor([[0.5, 10.0], [0.0, 0.5]])
    norms = product_norms(constant(matrix))
    assert spectral_radius(constant(matrix)) == pytest.approx(0.5, abs=1e-6)
    assert norms[1] == pytest.approx(torch.linalg.matrix_norm(matrix.double(), ord=2).item(), rel=1e-6)
    assert norms[1] == pytest.approx(10.02, abs=0.01)
    assert norms[max(norms)] < 1e-5


@pytest.mark.parametrize("length", [1, 2, 4, 8, 16])
def test_products_of_changing_matrices_have_their_true_norm(length):
    matrices = torch.randn(16, 1, 6, 6, dtype=torch.float64)
    norms = product_norms(MatrixTransitions(matrices), round_trips=30)
    true = []
    for start in {16 - length, (16 - length) // 3}:
        product = torch.eye(6, dtype=torch.float64)
        for matrix in matrices[start : start + length, 0]:
            product = matrix @ product
        true.append(torch.linalg.matrix_norm(product, ord=2).item())
    assert norms[length] == pytest.approx(max(true), rel=1e-4)


@pytest.mark.parametrize(("gain", "expected"), [(0.5, -0.61), (1.0, -0.06), (1.5, -0.01), (3.0, 0.25)])
def test_random_tanh_networks_are_ordered_critical_or_chaotic(gain, expected):
    found = []
    for seed in range(4):
        torch.manual_seed(seed)
        weight = gain * torch.randn(32, 32, dtype=torch.float64) / math.sqrt(32)
        cell = TorchCell("tanh", torch.zeros(32, 1, dtype=torch.float64), weight)
        inputs = torch.zeros(400, 1, 1, dtype=torch.float64)
        states = cell.roll(inputs, torch.randn(1, 32, dtype=torch.float64))
        found.append(lyapunov_exponents(cell.transitions(inputs, states[:-1]))[0])
    assert sum(found) / 4 == pytest.approx(expected, abs=0.15)


def test_an_lstm_without_recurrent_weights_forgets_as_its_gate_says():
    cell = nn.LSTMCell(2, 5).double()
    for weight in cell.parameters():
        nn.init.zeros_(weight)
    cell.bias_ih.data[5:10] = math.log(0.9 / 0.1)
    assert radius_of(cell, "lstm") == pytest.approx(0.9, rel=1e-9)


def test_a_gru_without_recurrent_weights_keeps_as_its_update_gate_says():
    cell = nn.GRUCell(2, 5).double()
    for weight in cell.parameters():
        nn.init.zeros_(weight)
    cell.bias_ih.data[5:10] = math.log(0.8 / 0.2)
    assert radius_of(cell, "gru") == pytest.approx(0.8, rel=1e-9)


def radius_of(module, kind):
    cell = cell_of(module, kind)
    inputs = torch.zeros(12, 2, 2, dtype=torch.float64)
    states = cell.roll(inputs, torch.zeros(2, cell.size, dtype=torch.float64))
    return spectral_radius(cell.transitions(inputs, states[:-1]))


def test_a_map_that_forgets_all_has_radius_zero_and_no_memory():
    transitions = constant(torch.zeros(4, 4))
    assert spectral_radius(transitions) == 0
    assert lyapunov_exponents(transitions)[0] < -60
    logarithms = carried_back(transitions)
    assert logarithms[-1] == -math.inf
    assert len(logarithms) == 2
    assert decay_per_step(logarithms) == (0.0, 0.0)


def test_a_single_step_and_a_single_unit_are_enough():
    transitions = constant(torch.tensor([[0.7]]), steps=1, rows=1)
    assert spectral_radius(transitions) == pytest.approx(0.7)
    assert lyapunov_exponents(transitions) == pytest.approx([math.log(0.7)])
    assert product_norms(transitions) == pytest.approx({1: 0.7})
    assert decay_per_step(carried_back(transitions))[0] == pytest.approx(0.7)
    assert decay_per_step([0.0]) is None


# Against autograd

CELLS = {
    "tanh": (lambda: nn.RNNCell(3, 7), "tanh"),
    "relu": (lambda: nn.RNNCell(3, 7, nonlinearity="relu"), "relu"),
    "no bias": (lambda: nn.RNNCell(3, 7, bias=False), "tanh"),
    "gru": (lambda: nn.GRUCell(3, 7), "gru"),
    "gru without bias": (lambda: nn.GRUCell(3, 7, bias=False), "gru"),
    "lstm": (lambda: nn.LSTMCell(3, 7), "lstm"),
}


def run_cell(module, x, state, width):
    if isinstance(module, nn.LSTMCell):
        return torch.cat(module(x, (state[..., :width], state[..., width:])), dim=-1)
    return module(x, state)


@pytest.mark.parametrize("name", CELLS)
def test_the_equations_are_those_of_the_module_and_so_are_their_derivatives(name):
    make, kind = CELLS[name]
    module = make().double()
    for weight in module.parameters():
        weight.data *= 2  # gates that matter
    cell = cell_of(module, kind)
    inputs = torch.randn(6, 2, 3, dtype=torch.float64)
    states = cell.roll(inputs, torch.randn(2, cell.size, dtype=torch.float64))
    for time in range(6):
        expected = run_cell(module, inputs[time], states[time], cell.width)
        torch.testing.assert_close(states[time + 1], expected, rtol=1e-12, atol=1e-12)
    transitions = cell.transitions(inputs, states[:-1])
    times, rows = torch.tensor([0, 3, 5]), torch.tensor([0, 1, 0])
    ours = jacobians(transitions, times, rows)
    for matrix, time, row in zip(ours, times.tolist(), rows.tolist(), strict=True):

        def step(state, time=time, row=row):
            return run_cell(module, inputs[time, row], state, cell.width)

        oracle = torch.autograd.functional.jacobian(step, states[time, row])
        torch.testing.assert_close(matrix, oracle, rtol=1e-10, atol=1e-12)


def test_the_projected_lstm_agrees_with_torch():
    module = nn.LSTM(3, 7, proj_size=4).double()
    weights = (module.weight_ih_l0, module.weight_hh_l0, module.bias_ih_l0, module.bias_hh_l0, module.weight_hr_l0)
    cell = TorchCell("lstm", *(weight.detach() for weight in weights))
    inputs = torch.randn(5, 2, 3, dtype=torch.float64)
    start = torch.randn(2, cell.size, dtype=torch.float64)
    states = cell.roll(inputs, start)
    output, (_, c) = module(inputs, (start[None, :, :4].contiguous(), start[None, :, 4:].contiguous()))
    torch.testing.assert_close(states[1:, :, :4], output)
    torch.testing.assert_close(states[-1, :, 4:], c[0])

    def step(state):
        h, c = state[None, None, :4], state[None, None, 4:]
        _, (h, c) = module(inputs[2:3, 1:2], (h, c))
        return torch.cat([h, c], dim=-1)[0, 0]

    matrix = jacobians(cell.transitions(inputs, states[:-1]), torch.tensor([2]), torch.tensor([1]))[0]
    torch.testing.assert_close(matrix, torch.autograd.functional.jacobian(step, states[2, 1]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CELLS)
def test_pulling_is_the_adjoint_of_applying(name):
    make, kind = CELLS[name]
    cell = cell_of(make().double(), kind)
    inputs = torch.randn(4, 2, 3, dtype=torch.float64)
    states = cell.roll(inputs, torch.randn(2, cell.size, dtype=torch.float64))
    transitions = cell.transitions(inputs, states[:-1])
    u, v = torch.randn(2, 5, cell.size, dtype=torch.float64)
    times, rows = torch.tensor([0, 1, 2, 3, 1]), torch.tensor([0, 1, 0, 1, 0])
    left = (u * transitions.apply(times, rows, v)).sum(dim=-1)
    right = (transitions.pull(times, rows, u) * v).sum(dim=-1)
    torch.testing.assert_close(left, right)


@pytest.mark.parametrize("name", CELLS)
def test_what_is_carried_back_is_the_gradient_of_a_loss_at_the_last_step(name):
    make, kind = CELLS[name]
    module = make().double()
    cell = cell_of(module, kind)
    inputs = torch.randn(12, 3, 3, dtype=torch.float64)
    state = torch.zeros(3, cell.size, dtype=torch.float64, requires_grad=True)
    path = [state]
    for x in inputs:
        path.append(run_cell(module, x, path[-1], cell.width))
        path[-1].retain_grad()
    path[-1][:, : cell.width].square().sum().backward()
    states = torch.stack(path).detach()
    ours = carried_back(cell.transitions(inputs, states[:-1]), path[-1].grad)
    oracle = [state.grad.norm().log().item() for state in reversed(path)]
    assert ours == pytest.approx(oracle, abs=1e-9)


# Large states


@pytest.mark.parametrize("kind", ["random", "symmetric", "gated"])
def test_arnoldi_finds_the_largest_eigenvalue_of_large_matrices(kind):
    matrix = torch.randn(300, 300, dtype=torch.float64) / math.sqrt(300)
    if kind == "symmetric":
        matrix = (matrix + matrix.T) / 2
    if kind == "gated":
        matrix = torch.diag(0.5 + 0.4 * torch.rand(300, dtype=torch.float64)) + 0.1 * matrix
    both = torch.stack([matrix, 2 * matrix])
    found = largest_magnitudes(lambda v: torch.einsum("pij,pj->pi", both, v), torch.randn(2, 300, dtype=torch.float64))
    true = torch.linalg.eigvals(matrix).abs().max()
    torch.testing.assert_close(found, torch.stack([true, 2 * true]), rtol=0.015, atol=0)


def test_arnoldi_ends_early_in_a_space_that_closes():
    start = torch.zeros(1, 50, dtype=torch.float64)
    start[0, :2] = 1
    matrix = torch.diag(torch.linspace(0.9, 0.1, 50, dtype=torch.float64))
    assert largest_magnitudes(lambda v: v @ matrix, start).item() == pytest.approx(0.9)
    assert largest_magnitudes(lambda v: 0 * v, start).item() == 0


def test_small_and_large_states_agree_where_both_methods_work(monkeypatch):
    cell = cell_of(nn.GRUCell(4, 100).double(), "gru")
    inputs = torch.randn(20, 4, 4, dtype=torch.float64)
    states = cell.roll(inputs, torch.zeros(4, 100, dtype=torch.float64))
    transitions = cell.transitions(inputs, states[:-1])
    dense = spectral_radius(transitions)
    monkeypatch.setattr("gradient_flow.probes.recurrent.dynamics.DENSE_UP_TO", 50)
    assert spectral_radius(transitions) == pytest.approx(dense, rel=0.03)
    assert precision_for(50) is torch.float64
    assert precision_for(51) is torch.float32


def test_the_same_transitions_give_the_same_numbers_and_draw_nothing():
    transitions = constant(torch.randn(5, 5) / 3)
    state = torch.get_rng_state()
    first = (spectral_radius(transitions), lyapunov_exponents(transitions), product_norms(transitions))
    assert first == (spectral_radius(transitions), lyapunov_exponents(transitions), product_norms(transitions))
    assert carried_back(transitions) == carried_back(transitions)
    assert torch.equal(torch.get_rng_state(), state)
