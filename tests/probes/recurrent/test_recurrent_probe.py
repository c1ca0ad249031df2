"""`RecurrentProbe` on models: every kind of recurrence, planted faults, healthy networks."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.errors import InputError
from gradient_flow.probes.recurrent.probe import RecurrentProbe
from gradient_flow.probes.recurrent.rules import recurrent_issues
from recurrent_models import (
    HIDDEN,
    Cell,
    CellWithOutput,
    LastOutput,
    Loop,
    Reservoir,
    dynamics_of,
    probed,
    zeros,
    zeros_out,
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# What is found


@pytest.mark.parametrize(
    ("rnn", "units"),
    [
        (lambda: nn.RNN(3, HIDDEN, batch_first=True), ["rnn"]),
        (lambda: nn.RNN(3, HIDDEN, batch_first=True, nonlinearity="relu", bias=False), ["rnn"]),
        (lambda: nn.GRU(3, HIDDEN, batch_first=True, num_layers=2, dropout=0.5), ["rnn[l0]", "rnn[l1]"]),
        (lambda: nn.LSTM(3, HIDDEN, batch_first=True, bidirectional=True), ["rnn[l0]", "rnn[l0_reverse]"]),
    ],
)
def test_torch_modules_are_found_with_their_layers_and_directions(rnn, units):
    dynamics = dynamics_of(LastOutput(rnn()), torch.randn(6, 20, 3))
    assert list(dynamics.modules) == units
    for unit in dynamics.modules.values():
        assert 0.1 < unit.spectral_radius < 1
        assert unit.lyapunov_exponent < 0
        assert 0 < unit.temporal_decay_rate < 1
        assert unit.effective_rank > 2
        assert (unit.steps, unit.sequence_length) == (20, 20)
    assert dynamics.criticality in ("SUBCRITICAL", "CRITICAL")


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_projected_lstm_is_found():
    model = LastOutput(nn.LSTM(3, HIDDEN, batch_first=True, proj_size=5))
    (unit,) = dynamics_of(model, torch.randn(6, 20, 3)).modules.values()
    assert unit.state_size == HIDDEN + 5


@pytest.mark.parametrize("make", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
@pytest.mark.parametrize("batched", [True, False])
def test_a_cell_in_a_loop_measures_as_the_fused_module(make, batched):
    fused = {nn.RNNCell: nn.RNN, nn.GRUCell: nn.GRU, nn.LSTMCell: nn.LSTM}[make](3, HIDDEN).double()
    cell = make(3, HIDDEN).double()
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        getattr(cell, name).data.copy_(getattr(fused, f"{name}_l0").data)
    x = torch.randn(15, 5, 3).double() if batched else torch.randn(15, 3).double()

    def looped(x):
        state = None
        for step in x:
            state = cell(step, state)
        return state[0] if isinstance(state, tuple) else state

    holder = nn.ModuleList([cell])
    with RecurrentProbe(holder) as probe:
        looped(x).square().sum().backward()
        probe.after_step()
    (ours,) = probe.result().modules.values()
    (theirs,) = dynamics_of(fused, x, loss=lambda output: output[0][-1].square().sum()).modules.values()
    assert ours.name == "0"
    assert ours.spectral_radius == pytest.approx(theirs.spectral_radius)
    assert ours.temporal_decay_rate == pytest.approx(theirs.temporal_decay_rate)
    assert ours.true_gradient
    assert theirs.true_gradient
    assert ours.product_norms == pytest.approx(theirs.product_norms)
    assert ours.effective_rank == pytest.approx(theirs.effective_rank)


def test_the_last_state_and_the_output_give_the_same_decay():
    rnn, x = nn.LSTM(3, HIDDEN, num_layers=2).double(), torch.randn(15, 5, 3).double()
    by_output = dynamics_of(rnn, x, loss=lambda result: result[0][-1].square().sum()).modules["model[l1]"]
    by_state = dynamics_of(rnn, x, loss=lambda result: result[1][0][-1].square().sum()).modules["model[l1]"]
    assert by_output.true_gradient
    assert by_output.temporal_decay_rate == pytest.approx(by_state.temporal_decay_rate)


def test_cells_of_the_users_own_are_found_by_what_they_do():
    torch_cell = nn.RNNCell(3, HIDDEN)
    own = Cell()
    own.input.weight.data, own.input.bias.data = torch_cell.weight_ih.data, torch_cell.bias_ih.data
    own.state.weight.data, own.state.bias.data = torch_cell.weight_hh.data, torch_cell.bias_hh.data
    x = torch.randn(6, 20, 3)
    models = [Loop(torch_cell), Loop(own, zeros)]
    models[1].head = models[0].head
    expected, found = (dynamics_of(model, x).modules["cell"] for model in models)
    assert found.kind == "Cell"
    assert found.spectral_radius == pytest.approx(expected.spectral_radius, rel=1e-5)
    assert found.temporal_decay_rate == pytest.approx(expected.temporal_decay_rate, rel=1e-4)
    assert found.lyapunov_exponent == pytest.approx(expected.lyapunov_exponent, rel=1e-4)
    assert found.product_norms == pytest.approx(expected.product_norms, rel=1e-3)
    assert found.true_gradient


def test_a_cell_that_returns_an_output_and_a_state_is_found():
    (unit,) = dynamics_of(Loop(CellWithOutput(), zeros_out), torch.randn(6, 20, 3)).modules.values()
    assert (unit.name, unit.state_size) == ("cell", HIDDEN)


class PairCell(nn.Module):
    """An LSTM-like cell with its two states as separate arguments."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(3 + HIDDEN, 4 * HIDDEN)

    def forward(self, x, h, c):
        i, f, g, o = self.cell(torch.cat([x, h], dim=-1)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


def test_states_in_several_arguments_belong_together():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = PairCell()

        def forward(self, x):
            h = c = torch.zeros(len(x), HIDDEN)
            for step in x.unbind(1):
                h, c = self.cell(step, h, c)
            return h

    (unit,) = dynamics_of(Model(), torch.randn(4, 12, 3)).modules.values()
    assert unit.state_size == 2 * HIDDEN


def test_a_user_cell_has_the_jacobian_that_autograd_gives():
    from gradient_flow.capture.model_state import isolated_copy
    from gradient_flow.probes.recurrent.capture import RecurrentRecorder
    from gradient_flow.probes.recurrent.dynamics import jacobians
    from gradient_flow.probes.recurrent.walk import walk_module

    model = Loop(Cell(), zeros).double()
    recorder = RecurrentRecorder(model)
    recorder.attach()
    model(torch.randn(3, 6, 3).double())
    (sequence,) = recorder.take()
    recorder.detach()
    walk = walk_module(sequence, isolated_copy(model.cell), torch.float64)
    matrix = jacobians(walk.jacobians(6), torch.tensor([4]), torch.tensor([2]))[0]
    state, x = walk.states[4, 2], walk.inputs[4, 2]
    oracle = torch.autograd.functional.jacobian(lambda h: model.cell(x[None], h[None])[0], state)
    torch.testing.assert_close(matrix, oracle, rtol=1e-10, atol=1e-12)


def test_a_cell_with_its_state_first_is_found_when_named():
    class Backwards(Cell):
        def forward(self, h, x):
            return super().forward(x, h)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = Backwards()

        def forward(self, x):
            h = zeros(x)
            for step in x.unbind(1):
                h = self.cell(h, step)
            return h

    x = torch.randn(4, 12, 3)
    by_module = Model()
    assert list(dynamics_of(Model(), x, cells=["cell"]).modules) == ["cell"]
    assert list(dynamics_of(by_module, x, cells=[by_module.cell]).modules) == ["cell"]


def test_a_named_cell_whose_state_is_changed_on_the_way_is_measured():
    class Model(Loop):
        def forward(self, x):
            h = zeros(x)
            for step in x.unbind(1):
                h = nn.functional.layer_norm(self.cell(step, h), (HIDDEN,))
            return h

    x = torch.randn(4, 12, 3)
    assert list(dynamics_of(Model(Cell()), x, cells=["cell"]).modules) == ["cell"]
    assert list(dynamics_of(Model(nn.GRUCell(3, HIDDEN)), x).modules) == ["cell"]


def test_an_unknown_cell_is_an_error_that_shows_the_names():
    with pytest.raises(InputError, match=r"cells.*'zell'.*cell, cell\.input"):
        RecurrentProbe(Loop(Cell(), zeros), cells=["zell"])


def test_of_a_cell_within_a_cell_the_inner_one_speaks():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRUCell(3, HIDDEN)

        def forward(self, x, h):
            return self.gru(x, h)

    model = Loop(Wrapper(), zeros)
    assert list(dynamics_of(model, torch.randn(4, 9, 3)).modules) == ["cell.gru"]
    assert list(dynamics_of(model, torch.randn(4, 9, 3), cells=["cell"]).modules) == ["cell"]


def test_a_decoder_that_calls_its_module_step_by_step_is_one_sequence():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(3, HIDDEN, batch_first=True)

        def forward(self, x):
            state = None
            for step in x.split(1, dim=1):
                output, state = self.gru(step, state)
            return output

    model, x = Decoder(), torch.randn(4, 12, 3)
    (stepwise,) = dynamics_of(model, x).modules.values()
    (whole,) = dynamics_of(model.gru, x, loss=lambda result: result[0][:, -1].square().mean()).modules.values()
    assert (stepwise.sequence_length, stepwise.steps) == (12, 12)
    assert stepwise.spectral_radius == pytest.approx(whole.spectral_radius, rel=1e-5)
    assert stepwise.temporal_decay_rate == pytest.approx(whole.temporal_decay_rate, rel=1e-4)


def test_a_state_that_padding_holds_back_still_makes_one_sequence():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, HIDDEN)

        def forward(self, x, lengths):
            h = zeros(x)
            for time, step in enumerate(x.unbind(1)):
                h = torch.where((time < lengths)[:, None], self.cell(step, h), h)
            return h

    (unit,) = dynamics_of(Masked(), torch.randn(4, 12, 3), torch.tensor([12, 5, 12, 7])).modules.values()
    assert unit.sequence_length == 12


def test_two_sequences_side_by_side_through_one_cell_are_told_apart():
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTMCell(3, HIDDEN)

        def forward(self, left, right):
            a = b = None
            for x, y in zip(left.unbind(1), right.unbind(1), strict=True):
                a, b = self.cell(x, a), self.cell(y, b)
            return a[0] - b[0]

    (unit,) = dynamics_of(Siamese(), torch.randn(4, 12, 3), torch.randn(4, 12, 3)).modules.values()
    assert (unit.sequence_length, unit.true_gradient) == (12, True)


@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_packed_sequences_are_walked_to_their_ends(enforce_sorted):
    lengths = torch.tensor([20, 18, 9] if enforce_sorted else [9, 20, 18])

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, HIDDEN, batch_first=True, bidirectional=True)

        def forward(self, x):
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=enforce_sorted)
            return self.rnn(packed)[0].data

    dynamics = dynamics_of(Model().double(), torch.randn(3, 20, 3).double())
    for unit in dynamics.modules.values():
        assert (unit.sequence_length, unit.steps) == (20, 9)
        assert unit.true_gradient


def test_unbatched_sequences_are_walked():
    dynamics = dynamics_of(nn.GRU(3, HIDDEN), torch.randn(15, 3), loss=lambda result: result[0].sum())
    assert dynamics.sequence_length == 15


@pytest.mark.parametrize("leak", [1.0, 0.3])
def test_a_loop_written_out_in_the_forward_is_found_by_its_matrix(leak):
    matrix = 0.8 * torch.linalg.qr(torch.randn(HIDDEN, HIDDEN)).Q
    (unit,) = dynamics_of(Reservoir(matrix, leak), torch.randn(6, 20, 3)).modules.values()
    expected = (1 - leak) * torch.eye(HIDDEN) + leak * matrix
    assert unit.name == "reservoir"
    assert unit.spectral_radius == pytest.approx(torch.linalg.eigvals(expected).abs().max().item(), rel=1e-5)


def test_a_layer_that_is_merely_shared_is_no_recurrence():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(HIDDEN, HIDDEN)

        def forward(self, x):
            return sum(self.layer(step) for step in x.unbind(1))

    probe = probed(Shared(), torch.randn(4, 6, HIDDEN))
    assert probe.result() is None


@pytest.mark.parametrize("model", [nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8))])
def test_a_model_without_recurrence_has_no_dynamics_and_a_reason(model):
    probe = probed(model, torch.randn(4, 3), steps=3)
    assert probe.result() is None
    assert "no recurrent part was seen" in probe.reason
    with RecurrentProbe(model) as unused:
        pass
    assert unused.result() is None
    assert "no step" in unused.reason


# Healthy and faulty


@pytest.mark.parametrize("make", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("shape", [(8, 5, 3), (8, 100, 3), (3, 300, 1), (16, 30, 20)])
def test_new_modules_of_torch_are_never_worse_than_low(make, shape):
    for seed in range(2):
        torch.manual_seed(seed)
        model = LastOutput(make(shape[-1], 32, batch_first=True))
        dynamics = dynamics_of(model, torch.randn(shape))
        assert all(issue.severity is IssueSeverity.LOW for issue in recurrent_issues(dynamics))


@pytest.mark.parametrize("make", [nn.RNN, nn.GRU, nn.LSTM])
def test_new_stacks_are_never_worse_than_low(make):
    for layers, both in ((6, False), (3, True)):
        rnn = make(20, 24, layers, batch_first=True, bidirectional=both)
        issues = list(recurrent_issues(dynamics_of(LastOutput(rnn), torch.randn(8, 30, 20))))
        assert all(issue.severity is IssueSeverity.LOW for issue in issues)
        assert len(issues) <= 2, "one finding of a kind, not one per layer"


@pytest.mark.parametrize(("rho", "level"), [(0.5, "SUBCRITICAL"), (0.95, "CRITICAL"), (1.5, "SUPERCRITICAL")])
def test_a_linear_network_measures_as_its_matrix(rho, level):
    rnn = nn.RNN(3, HIDDEN, nonlinearity="relu", batch_first=True, bias=False).double()
    # A permutation keeps positive states positive, so that ReLU is the identity on them.
    rnn.weight_hh_l0.data.copy_(rho * torch.eye(HIDDEN)[torch.randperm(HIDDEN)])
    rnn.weight_ih_l0.data.abs_()
    dynamics = dynamics_of(LastOutput(rnn).double(), torch.rand(6, 30, 3).double())
    assert dynamics.spectral_radius == pytest.approx(rho, rel=1e-6)
    assert dynamics.lyapunov_exponent == pytest.approx(math.log(rho), rel=1e-6)
    assert dynamics.temporal_decay_rate == pytest.approx(rho, rel=1e-6)
    assert dynamics.effective_memory_length == (math.inf if rho > 1 else pytest.approx(-1 / math.log(rho), rel=1e-6))
    assert dynamics.criticality == level
    worst = max((issue.severity for issue in recurrent_issues(dynamics)), default=None)
    assert worst is {0.5: IssueSeverity.LOW, 0.95: None, 1.5: IssueSeverity.CRITICAL}[rho]


@pytest.mark.parametrize(("bias", "is_short"), [(-3.0, True), (4.0, False)])
def test_a_forget_gate_that_is_shut_is_found_where_the_task_has_a_lag(bias, is_short):
    lstm = nn.LSTM(3, HIDDEN, batch_first=True)
    lstm.bias_ih_l0.data[HIDDEN : 2 * HIDDEN] = bias
    dynamics = dynamics_of(LastOutput(lstm), torch.randn(6, 60, 3))
    issues = list(recurrent_issues(dynamics, required_lag=50))
    assert {issue.issue_type for issue in issues} == (
        {IssueType.SPECTRAL_RADIUS, IssueType.SHORT_MEMORY} if is_short else set()
    )
    assert all(issue.severity is IssueSeverity.HIGH for issue in issues)


def test_dead_states_have_no_rank():
    rnn = nn.RNN(8, HIDDEN, batch_first=True, nonlinearity="relu")
    rnn.bias_ih_l0.data.fill_(-100)
    issues = recurrent_issues(dynamics_of(LastOutput(rnn), torch.randn(6, 20, 8)))
    found = {issue.issue_type: issue.severity for issue in issues}
    assert found[IssueType.DEAD] is IssueSeverity.CRITICAL
    assert IssueType.LOW_RANK not in found


class CellLoop(nn.Module):
    def __init__(self, cut_every):
        super().__init__()
        self.cell, self.cut_every = nn.GRUCell(4, 8), cut_every

    def forward(self, x):
        h = x.new_zeros(len(x), 8)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h.detach() if t % self.cut_every == 0 else h)
        return h


@pytest.mark.parametrize(("cut_every", "share"), [(1, 1.0), (5, 3 / 19), (100, 0.0)])
def test_detached_states_are_counted(cut_every, share):
    unit = next(iter(dynamics_of(CellLoop(cut_every), torch.randn(3, 20, 4)).modules.values()))
    assert unit.cut_share == pytest.approx(share)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_the_share_of_flat_gates_is_that_of_the_gates(kind):
    """With the recurrent weight at zero a gate is a function of its input alone."""
    rnn = kind(1, 40, batch_first=True).double()
    for name, weight in rnn.named_parameters():
        weight.data.zero_()
        if name == "weight_ih_l0":
            weight.data.copy_(torch.linspace(0.0, 10.0, len(weight))[:, None])
    unit = next(iter(dynamics_of(LastOutput(rnn).double(), torch.ones(3, 12, 1).double()).modules.values()))
    z = rnn.weight_ih_l0.flatten()
    tanh = slice(80, 120) if kind is not nn.RNN else slice(0, 40)
    slope = 4 * z.sigmoid() * (1 - z.sigmoid())
    slope[tanh] = 1 - z[tanh].tanh() ** 2
    assert unit.flat_gates == pytest.approx((slope < 0.05).double().mean().item(), abs=1e-6)


def test_overflowing_states_are_critical_and_name_the_step():
    rnn = nn.RNN(3, HIDDEN, batch_first=True, nonlinearity="relu")
    rnn.weight_hh_l0.data.fill_(1e30)
    rnn.weight_ih_l0.data.abs_()
    probe = probed(LastOutput(rnn), torch.rand(6, 40, 3))
    (unit,) = probe.result().modules.values()
    assert 1 < unit.nonfinite_at < 40
    assert max(issue.severity for issue in recurrent_issues(probe.result())) is IssueSeverity.CRITICAL


def test_inputs_that_are_not_finite_are_not_the_cells_fault():
    x = torch.randn(6, 20, 3)
    x[2, 7] = math.nan
    (unit,) = dynamics_of(LastOutput(nn.GRU(3, HIDDEN, batch_first=True)), x).modules.values()
    assert unit.nonfinite_at is None
    assert unit.steps == 7
    assert math.isfinite(unit.spectral_radius)


# Settings


def test_what_is_switched_off_is_none():
    model, x = LastOutput(nn.GRU(3, HIDDEN, batch_first=True)), torch.randn(4, 9, 3)
    without_states = dynamics_of(model, x, track_hidden_states=False)
    assert without_states.effective_rank is None
    assert without_states.spectral_radius is not None
    without_jacobian = dynamics_of(model, x, enable_jacobian=False)
    assert without_jacobian.spectral_radius is without_jacobian.criticality is None
    assert without_jacobian.effective_memory_length > 0


def test_without_a_backward_random_directions_are_carried_back():
    model = LastOutput(nn.GRU(3, HIDDEN, batch_first=True))
    with RecurrentProbe(model) as probe:
        probe.after_step(None, model(torch.randn(4, 30, 3)))
    (unit,) = probe.result().modules.values()
    assert not unit.true_gradient
    assert 0 < unit.temporal_decay_rate < 1


def test_the_course_follows_training_and_the_last_step_counts():
    model = LastOutput(nn.RNN(3, HIDDEN, batch_first=True))
    x = torch.randn(4, 9, 3)
    with RecurrentProbe(model) as probe:
        for _ in range(6):
            model(x).sum().backward()
            probe.after_step()
            with torch.no_grad():
                model.rnn.weight_hh_l0 *= 1.2
    result = probe.result(optimal_radius=0.5, critical_band=0.05)
    assert [step for step, _ in result.course] == [1, 2, 4, 6]
    radii = [radius for _, radius in result.course]
    assert radii == sorted(radii)
    assert result.spectral_radius == radii[-1]
    assert (result.optimal_radius, result.critical_band) == (0.5, 0.05)


def test_fp16_weights_and_large_states_are_measured():
    rnn = nn.RNN(3, 300, batch_first=True)
    with torch.no_grad():
        rnn.weight_hh_l0.copy_(0.9 * torch.linalg.qr(torch.randn(300, 300)).Q)
        rnn.weight_ih_l0.mul_(0.01)
        rnn.bias_ih_l0.zero_()
        rnn.bias_hh_l0.zero_()
    dynamics = dynamics_of(LastOutput(rnn), torch.randn(4, 12, 3))
    assert dynamics.spectral_radius == pytest.approx(0.9, rel=0.03)
    half = dynamics_of(LastOutput(nn.GRU(3, HIDDEN, batch_first=True)).bfloat16(), torch.randn(4, 12, 3).bfloat16())
    assert 0.3 < half.spectral_radius < 0.9
