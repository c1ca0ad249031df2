"""`RecurrentProbe` leaves everything as it was: weights, buffers, gradients, modes, random state, hooks, memory."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from gradient_flow.probes.recurrent.probe import RecurrentProbe
from recurrent_models import HIDDEN, Cell, LastOutput, Loop, Reservoir, dynamics_of, probed, zeros


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def hooks_of(model):
    found = []
    for module in model.modules():
        found += [value for name, value in vars(module).items() if "hook" in name and isinstance(value, dict) and value]
    return found


def snapshot(model):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    return state, gradients, modes, torch.get_rng_state()


def assert_same(left, right):
    for a, b in zip(left[:2], right[:2], strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert (a[name] is None and b[name] is None) or torch.equal(a[name], b[name]), name
    assert left[2] == right[2]
    assert torch.equal(left[3], right[3])


class NoisyCell(Cell):
    """Random, with running statistics, and with a memory of its own."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.seen = nn.BatchNorm1d(HIDDEN), nn.Dropout(0.5), []

    def forward(self, x, h):
        self.seen.append(1)
        self.last = self.norm(super().forward(x, self.drop(h)) + 0.1 * torch.randn_like(h))
        return self.last


def cell_with_spectral_norm():
    """Its weight is computed anew, and its buffers with it, whenever it is read in training mode."""
    cell = Cell()
    parametrizations.spectral_norm(cell.state)
    return cell


MODELS = {
    "lstm": lambda: LastOutput(nn.LSTM(3, HIDDEN, num_layers=2, dropout=0.5, batch_first=True)),
    "cell": lambda: Loop(nn.GRUCell(3, HIDDEN)),
    "own cell": lambda: Loop(NoisyCell(), zeros),
    "loop": lambda: Reservoir(torch.randn(HIDDEN, HIDDEN) / 5),
    "spectral norm": lambda: Loop(cell_with_spectral_norm(), zeros),
}


@pytest.mark.parametrize("name", MODELS)
def test_training_goes_on_as_if_nobody_watched(name):
    x = torch.randn(6, 10, 3)
    torch.manual_seed(1)
    watched = MODELS[name]()
    alone = copy.deepcopy(watched)
    torch.manual_seed(2)
    for _ in range(3):
        output = alone(x)
        output.square().mean().backward()
    expected, expected_output = snapshot(alone), output
    torch.manual_seed(2)
    with RecurrentProbe(watched) as probe:
        for _ in range(3):
            output = watched(x)
            output.square().mean().backward()
            probe.after_step(x, output)
        assert probe.result() is not None, probe.reason
    assert torch.equal(output, expected_output)
    assert_same(snapshot(watched), expected)
    assert hooks_of(watched) == hooks_of(alone)
    if name == "own cell":
        assert len(watched.cell.seen) == len(alone.cell.seen)


def test_hooks_are_gone_after_an_exception_and_the_failed_forward_leaves_nothing():
    model = LastOutput(nn.GRU(3, HIDDEN, batch_first=True))
    with pytest.raises(RuntimeError), RecurrentProbe(model) as probe:
        model(torch.randn(4, 9, 5))
    assert hooks_of(model) == []
    assert probe.result() is None
    output = model(torch.randn(4, 9, 3))
    assert output.grad_fn is not None
    assert probe.result() is None


def test_a_cell_that_cannot_be_measured_is_noted_and_the_rest_goes_on():
    class Hopeless(Cell):
        def forward(self, x, h):
            return super().forward(x, h) if self.training else h.no_such_thing

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Loop(Hopeless(), zeros), LastOutput(nn.GRU(3, HIDDEN, batch_first=True))

        def forward(self, x):
            return self.first(x) + self.second(x)

    dynamics = dynamics_of(Model(), torch.randn(4, 9, 3))
    assert list(dynamics.modules) == ["second.rnn"]
    assert any("`first.cell` could not be measured" in note for note in dynamics.notes)


def test_other_hooks_do_not_see_our_runs():
    calls = []
    model = Loop(Cell(), zeros)
    handle = model.cell.state.register_forward_hook(lambda *_: calls.append(1))
    probed(model, torch.randn(4, 9, 3)).result()
    handle.remove()
    assert len(calls) == 9


def test_a_copy_made_while_watched_has_silent_hooks():
    model = LastOutput(nn.GRU(3, HIDDEN, batch_first=True))
    x = torch.randn(4, 9, 3)
    with RecurrentProbe(model) as probe:
        copy.deepcopy(model)(x).sum().backward()
        probe.after_step()
        assert probe.result() is None


def test_recomputation_under_checkpointing_is_not_a_second_sequence():
    from torch.utils.checkpoint import checkpoint

    rnn = nn.GRU(3, HIDDEN, batch_first=True)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = rnn

        def forward(self, x):
            return checkpoint(lambda x: self.rnn(x)[0], x, use_reentrant=False)[:, -1]

    (unit,) = dynamics_of(Model(), torch.randn(4, 9, 3)).modules.values()
    assert unit.sequence_length == 9


def test_long_sequences_and_large_batches_are_kept_only_in_part():
    from gradient_flow.probes.recurrent.capture import RecurrentRecorder
    from gradient_flow.probes.recurrent.row_samples import MOST_ROWS, MOST_STEPS

    model = nn.GRU(3, HIDDEN)
    recorder = RecurrentRecorder(model)
    recorder.attach()
    model(torch.randn(1000, 64, 3))
    (sequence,) = recorder.take()
    recorder.detach()
    assert torch.cat(sequence.inputs).shape == (MOST_STEPS, MOST_ROWS, 3)
    assert sequence.length == 1000


@pytest.mark.parametrize("with_backward", [True, False])
@pytest.mark.parametrize("name", ["lstm", "cell"])
def test_nothing_keeps_the_outputs_alive(name, with_backward):
    model, outputs = MODELS[name](), []
    part = getattr(model, "rnn", None) or model.cell
    handle = part.register_forward_hook(
        lambda *call: outputs.append(weakref.ref(call[-1][0] if name == "lstm" else call[-1]))
    )
    gc.disable()  # what only the collector could free is kept too long
    try:
        with RecurrentProbe(model) as probe:
            output = model(torch.randn(4, 9, 3))
            if with_backward:
                output.sum().backward()
            probe.after_step()
            del output
            assert {tensor() for tensor in outputs} == {None}
    finally:
        gc.enable()
        handle.remove()
