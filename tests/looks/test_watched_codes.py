"""Codes of one number wherever a model makes much of them, and states that are cut; each beside a twin that is well."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradient_flow import IssueType
from gradient_flow.capture.autograd_graph import kind_of, slopes
from watched_training import eight_classes, found, serious

T = IssueType


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Tied(nn.Module):
    """Gives rows back by the matrices that made the code, transposed."""

    def __init__(self, code):
        super().__init__()
        self.wide, self.code = nn.Linear(24, 32), nn.Linear(32, code)

    def forward(self, x):
        h = F.gelu(F.linear(self.code(F.gelu(self.wide(x))), self.code.weight.T))
        return F.linear(h, self.wide.weight.T)


def rows():
    mix = torch.randn(5, 24, generator=torch.Generator().manual_seed(1))
    x = torch.randn(64, 5) @ mix + 0.05 * torch.randn(64, 24)
    return x, x


@pytest.mark.parametrize(("code", "sick"), [(1, True), (8, False)])
def test_a_code_of_one_number_is_narrow_where_the_same_weights_give_the_data_back(code, sick):
    issues = serious(Tied(code), rows, F.mse_loss, steps=80)
    assert found(issues) == ({(T.BOTTLENECK, "code")} if sick else set())


class Variational(nn.Module):
    """Gives rows back from a code that is drawn."""

    def __init__(self, code):
        super().__init__()
        self.enter, self.mean, self.spread = nn.Linear(24, 32), nn.Linear(32, code), nn.Linear(32, code)
        self.leave = nn.Sequential(nn.Linear(code, 32), nn.GELU(), nn.Linear(32, 24))

    def forward(self, x):
        h = F.gelu(self.enter(x))
        mean, spread = self.mean(h), self.spread(h)
        return self.leave(mean + (spread / 2).exp() * torch.randn_like(mean)), mean, spread


def evidence_bound(output, x):
    again, mean, spread = output
    return F.mse_loss(again, x) + 1e-3 * (mean.square() + spread.exp() - 1 - spread).mean()


@pytest.mark.parametrize(("code", "sick"), [(1, True), (8, False)])
def test_a_variational_code_of_one_number_is_narrow(code, sick):
    issues = serious(Variational(code), rows, evidence_bound, steps=80)
    assert found(issues) == ({(T.BOTTLENECK, "mean")} if sick else set())


class Towers(nn.Module):
    """How well two things go together: a product of what each tower says of its own."""

    def __init__(self, size):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, size))
        self.right = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, size))

    def forward(self, pair):
        return (self.left(pair[0]) * self.right(pair[1])).sum(1)


def matches():
    a, b = torch.randn(64, 12), torch.randn(64, 12)
    return (a, b), ((a * b)[:, :6].sum(1) > 0).float()


@pytest.mark.parametrize(("size", "sick"), [(1, True), (16, False)])
def test_two_towers_of_one_number_each_are_narrow(size, sick):
    issues = serious(Towers(size), matches, F.binary_cross_entropy_with_logits, steps=80)
    assert (T.BOTTLENECK in {kind for kind, _ in found(issues)}) is sick


class Prototypes(nn.Module):
    """The nearest of seven learned points wins."""

    def __init__(self, size, kinds=7):
        super().__init__()
        self.hidden, self.embed = nn.Linear(20, 40), nn.Linear(40, size)
        self.points = nn.Parameter(torch.randn(kinds, size))

    def forward(self, x):
        return -(self.embed(F.mish(self.hidden(x)))[:, None] - self.points).square().sum(2)


def two_places_each():
    """Seven classes, each around two points."""
    centres = 1.4 * torch.randn(2, 7, 20, generator=torch.Generator().manual_seed(3))
    y = torch.randint(7, (64,))
    return centres[torch.randint(2, (64,)), y] + 0.6 * torch.randn(64, 20), y


@pytest.mark.parametrize(("size", "sick"), [(1, True), (8, False)])
def test_points_on_a_line_are_a_bottleneck(size, sick):
    issues = serious(Prototypes(size), two_places_each, F.cross_entropy, rate=3e-3, steps=40)
    assert found(issues) == ({(T.BOTTLENECK, "embed")} if sick else set())


def marks():
    """Five marks that follow one amount."""
    way = torch.randn(20, generator=torch.Generator().manual_seed(4)) / 4
    x = torch.randn(64, 20)
    return x, torch.bucketize(x @ way, torch.tensor([-1.2, -0.4, 0.4, 1.2]))


def test_one_number_is_enough_for_marks_that_follow_one_amount():
    assert not serious(Prototypes(1, 5), marks, F.cross_entropy, rate=1e-2)


class Retold(nn.Module):
    """A sequence as a code, unrolled again."""

    def __init__(self, size):
        super().__init__()
        self.encoder, self.code = nn.GRU(3, 24, batch_first=True), nn.Linear(24, size)
        self.begin, self.decoder, self.out = nn.Linear(size, 24), nn.GRUCell(3, 24), nn.Linear(24, 3)

    def forward(self, x):
        h, y, said = torch.tanh(self.begin(self.code(self.encoder(x)[1][0]))), x.new_zeros(len(x), 3), []
        for _ in range(x.shape[1]):
            h = self.decoder(y, h)
            y = self.out(h)
            said.append(y)
        return torch.stack(said, dim=1)


def tracks():
    start = 1.5 * torch.randn(32, 1, 3)
    x = start * torch.tensor([1.0, -0.9, 0.8, -0.7, 0.6])[:, None] + 0.05 * torch.randn(32, 5, 3)
    return x, x


@pytest.mark.parametrize(("size", "sick"), [(1, True), (12, False)])
def test_a_code_of_one_number_is_narrow_where_a_loop_unrolls_it(size, sick):
    issues = serious(Retold(size), tracks, F.mse_loss, rate=1e-2, steps=80)
    assert found(issues) == ({(T.BOTTLENECK, "code")} if sick else set())


class Cells(nn.Module):
    """A cell in a loop; every `every` steps `change` is done to its state."""

    def __init__(self, every, change):
        super().__init__()
        self.cell, self.out, self.every, self.change = nn.LSTMCell(3, 24), nn.Linear(24, 2), every, change
        self.cell.bias_ih.data[24:48] = 2.0

    def forward(self, x):
        h = c = x.new_zeros(len(x), 24)
        for i, now in enumerate(x.unbind(1)):
            if i and i % self.every == 0:
                h, c = self.change(h), self.change(c)
            h, c = self.cell(now, (h, c))
        return self.out(h)


def put_down_first():
    """Two weights are shown at the first of 14 steps, and asked for at the last."""
    weights = 2 * torch.rand(32, 2) - 1
    x = 0.1 * torch.randn(32, 14, 3)
    x[:, 0] = torch.cat([weights, torch.ones(32, 1)], dim=1)
    return x, weights


class Windows(nn.Module):
    """A layer that reads a sequence in parts of three, with or without the state of the part before."""

    def __init__(self, hands_on):
        super().__init__()
        self.rnn, self.out, self.hands_on = nn.LSTM(3, 24, batch_first=True), nn.Linear(24, 2), hands_on
        self.rnn.bias_ih_l0.data[24:48] = 2.0

    def forward(self, x):
        state, read = None, []
        for part in x.split(3, dim=1):
            values, state = self.rnn(part, state if self.hands_on else None)
            read.append(values)
        return self.out(torch.cat(read, dim=1)[:, -1])


@pytest.mark.parametrize("hands_on", [False, True])
def test_a_sequence_read_in_parts_without_a_state_is_a_short_memory(hands_on):
    issues = serious(Windows(hands_on), put_down_first, F.mse_loss, rate=1e-2, steps=50)
    assert found(issues) == (set() if hands_on else {(T.SHORT_MEMORY, "rnn")})


@pytest.mark.parametrize(
    ("every", "change", "sick"),
    [(5, torch.Tensor.detach, True), (6, torch.zeros_like, True), (99, torch.zeros_like, False)],
)
def test_a_state_that_is_cut_or_wiped_in_a_loop_is_a_short_memory(every, change, sick):
    issues = serious(Cells(every, change), put_down_first, F.mse_loss, rate=1e-2, steps=50)
    assert found(issues) == ({(T.SHORT_MEMORY, "cell")} if sick else set())


@pytest.mark.parametrize(("factor", "sick"), [(1000.0, True), (1.0, False)])
@pytest.mark.parametrize("act", [nn.Softsign(), torch.atan])
def test_activations_that_fade_slowly_are_saturated_by_inputs_in_another_unit(act, factor, sick):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.out = nn.Linear(20, 40), nn.Linear(40, 8)

        def forward(self, x):
            return self.out(act(self.enter(x)))

    issues = serious(Net(), eight_classes(factor), F.cross_entropy, steps=40, rate=3e-3)
    assert ((T.SATURATION, "enter") in found(issues)) is sick
    assert sick or not issues


def test_slopes_of_a_softsign_are_those_of_its_formula():
    x = torch.tensor([-30.0, -1.0, 0.0, 3.0], requires_grad=True)
    node = F.softsign(x).grad_fn
    (gradient,) = torch.autograd.grad(F.softsign(x).sum(), x)
    assert kind_of(node) == "Softsign"
    assert torch.allclose(slopes(node), gradient)
    soft = (x / (x.abs() + 0.5)).grad_fn  # steeper: shares of its largest slope, which is 2
    assert torch.allclose(slopes(soft), (0.5 / (x.abs() + 0.5)).square().detach())
    assert slopes((x / (x.abs() + x.sum())).grad_fn) is None
    assert slopes((x / 2).grad_fn) is None
