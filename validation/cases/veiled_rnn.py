# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks of whispers, weights, drifts and dances, with one fault each, and their twins.

Half: veiled.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._veiled_tasks import dances, drifts, weights, whispers
from validation.evidence.live import breaks, lags, lasting, never_fires, thrives
from validation.evidence.recurrent import BURSTS, FORGETS, states_flat, time_ratio
from validation.evidence.signal import both, equal_units, no_gradient
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import CHAOTIC, CUT_SHORT, GROWS, JUMPS, SHORT
from validation.nets import Cell
from validation.setups import live
from validation.tasks import every

zoo = Zoo("rnn", half="veiled", analyzer="recurrent", proof=thrives())


class Listener(nn.Module):
    """Something recurrent, and a layer that reads its last state or each."""

    def __init__(self, rnn: nn.Module, out: int, each: bool = False, width: int = 0) -> None:
        super().__init__()
        self.rnn, self.head, self.each = rnn, nn.Linear(width or rnn.hidden_size, out), each

    def forward(self, x: Tensor) -> Tensor:
        states = self.rnn(x)[0]
        return self.head(states if self.each else states[:, -1])


def heard(seed: int, rnn: nn.Module, length: int = 18, width: int = 0, **more) -> Setup:
    hints = {"required_lag": length - 1}
    model = Listener(rnn, 4, width=width)
    return live(model, whispers(seed, length), hints=hints, **{"lr": 1e-2, "steps": 50, **more})


def weighed(seed: int, rnn: nn.Module, length: int = 18, **more) -> Setup:
    hints = {"required_lag": length - 1}
    return live(Listener(rnn, 2), weights(seed, length), hints=hints, **{"lr": 1e-2, "steps": 50, **more})


def floated(seed: int, rnn: nn.Module, **more) -> Setup:
    return live(Listener(rnn, 3, True), drifts(seed), **{"lr": 1e-2, "steps": 50, **more})


def danced(seed: int, rnn: nn.Module, **more) -> Setup:
    return live(Listener(rnn, 5), dances(seed), **{"lr": 1e-2, "steps": 60, **more})


# --- memory that is too short


def gru(bias: float, layers: int = 1, dim: int = 5) -> nn.GRU:
    """The update gates begin at `bias`; high keeps the state."""
    rnn = nn.GRU(dim, 24, layers, batch_first=True)
    for i in range(layers):
        for name in (f"bias_ih_l{i}", f"bias_hh_l{i}"):
            nn.init.constant_(getattr(rnn, name)[24:48], bias / 2)
    return rnn


keeps = zoo.healthy("whispers-gru-update-gates-begin-at-3", lambda s: heard(s, gru(3.0)))
zoo.sick(
    "whispers-gru-update-gates-begin-at-minus-6",
    lambda s: heard(s, gru(-6.0), lr=2e-3),
    FORGETS,
    *SHORT,
    layer="rnn",
    also={"SATURATION"},
    control=keeps,
)


def elman(gain: float, kind: str = "tanh", layers: int = 1, dim: int = 5) -> nn.RNN:
    """A plain recurrence of orthogonal matrices times a gain."""
    rnn = nn.RNN(dim, 32, layers, nonlinearity=kind, batch_first=True)
    for i in range(layers):
        nn.init.orthogonal_(getattr(rnn, f"weight_hh_l{i}"), gain)
    return rnn


turning = zoo.healthy("whispers-elman-orthogonal", lambda s: heard(s, elman(1.0), 12, lr=5e-3, clip=1.0))
zoo.sick(
    "whispers-elman-orthogonal-times-0.15",
    lambda s: heard(s, elman(0.15), lr=1e-3),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=turning,
)


class Average(Cell):
    """The state follows what comes in; `share` of it is lost in each step."""

    def __init__(self, dim: int, share: float) -> None:
        super().__init__()
        self.hidden_size, self.share, self.into = 24, share, nn.Linear(dim, 24)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return (1 - self.share) * state + min(1.0, 12 * self.share) * torch.tanh(self.into(x))


mean = zoo.healthy("whispers-running-mean-of-0.05", lambda s: heard(s, Average(5, 0.05)))
zoo.sick(
    "whispers-running-mean-of-0.9",
    lambda s: heard(s, Average(5, 0.9), lr=3e-3),
    FORGETS,
    *SHORT,
    layer="rnn.into",
    also={"DISCONNECTED"},
    control=mean,
)


class Cells(nn.Module):
    """torch's cell in a loop; every `cut` steps the state is taken out of the graph, every `wipe` it is begun anew."""

    def __init__(self, dim: int, cut: int = 99, wipe: int = 99) -> None:
        super().__init__()
        self.hidden_size, self.cut, self.wipe, self.cell = 24, cut, wipe, nn.LSTMCell(dim, 24)
        nn.init.constant_(self.cell.bias_ih[24:48], 2.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = c = x.new_zeros(len(x), 24)
        states = []
        for i, now in enumerate(x.unbind(1)):
            if i and i % self.cut == 0:
                h, c = h.detach(), c.detach()
            if i and i % self.wipe == 0:
                h, c = torch.zeros_like(h), torch.zeros_like(c)
            h, c = self.cell(now, (h, c))
            states.append(h)
        return torch.stack(states, dim=1), h


cells = zoo.healthy("weights-lstm-cell-in-a-loop", lambda s: weighed(s, Cells(3), 14))
zoo.sick(
    "weights-lstm-cell-cut-every-5-steps",
    lambda s: weighed(s, Cells(3, cut=5), 14),
    both(lasting(time_ratio(below=1e-6)), lags(0.1)),
    *CUT_SHORT,
    layer="rnn.cell",
    control=cells,
)
zoo.sick(
    "weights-lstm-cell-wiped-every-6-steps",
    lambda s: weighed(s, Cells(3, wipe=6), 14),
    both(lasting(time_ratio(below=1e-6)), lags(0.1)),
    *CUT_SHORT,
    layer="rnn.cell",
    control=cells,
)


class Minimal(Cell):
    """A unit with one gate that hears the input only; `bias` is where it begins."""

    def __init__(self, dim: int, bias: float) -> None:
        super().__init__()
        self.hidden_size, self.gate, self.new = 24, nn.Linear(dim, 24), nn.Linear(dim, 24)
        nn.init.constant_(self.gate.bias, bias)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        z = torch.sigmoid(self.gate(x))
        return z * state + (1 - z) * self.new(x)


minimal = zoo.healthy("whispers-one-gate-begins-at-3", lambda s: heard(s, Minimal(5, 3.0)))
zoo.sick(
    "whispers-one-gate-begins-at-minus-4",
    lambda s: heard(s, Minimal(5, -4.0), lr=2e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.gate", "rnn.new"),
    also={"SATURATION"},
    control=minimal,
)


class Space(nn.Module):
    """A state space of full matrices: a fixed law of the state, learned ways in and out; `radius` is the law's."""

    def __init__(self, dim: int, radius: float) -> None:
        super().__init__()
        self.hidden_size, self.into, self.out = 24, nn.Linear(dim, 24), nn.Linear(24, 24)
        self.law = nn.Parameter(radius * torch.linalg.qr(torch.randn(24, 24))[0])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, states = x.new_zeros(len(x), 24), []
        for now in self.into(x).unbind(1):
            h = h @ self.law + now
            states.append(h)
        states = torch.stack(states, dim=1)
        return F.gelu(self.out(states)), h


space = zoo.healthy("weights-state-space-radius-0.97", lambda s: weighed(s, Space(3, 0.97), lr=3e-3, clip=1.0))
zoo.sick(
    "weights-state-space-radius-0.4",
    lambda s: weighed(s, Space(3, 0.4), lr=1e-3),
    FORGETS,
    *SHORT,
    layer=("rnn", "rnn.into", "rnn.out"),
    control=space,
)


class Window(nn.Module):
    """Convolutions that look back by doubling steps; with `dilated` off they see few."""

    def __init__(self, dim: int, dilated: bool) -> None:
        super().__init__()
        self.hidden_size = 24
        self.convs = nn.ModuleList(
            nn.Conv1d(dim if i == 0 else 24, 24, 2, dilation=2**i if dilated else 1) for i in range(4)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        x = x.transpose(1, 2)
        for conv in self.convs:
            x = torch.relu(conv(F.pad(x, (conv.dilation[0], 0))))
        return x.transpose(1, 2), None


dilated = zoo.healthy("whispers-convolutions-that-reach-back-15", lambda s: heard(s, Window(5, True), 15))


def storeys(bias: float) -> nn.LSTM:
    """Two LSTMs above one another; their forget gates begin at `bias`."""
    lstm = nn.LSTM(5, 20, 2, batch_first=True)
    for i in range(2):
        nn.init.constant_(getattr(lstm, f"bias_ih_l{i}")[20:40], bias)
    return lstm


two_lstms = zoo.healthy("whispers-two-lstms-forget-gates-begin-at-3", lambda s: heard(s, storeys(3.0), 14))
zoo.sick(
    "whispers-two-lstms-forget-gates-begin-at-minus-5",
    lambda s: heard(s, storeys(-5.0), lr=2e-3),
    FORGETS,
    *SHORT,
    layer="rnn",
    also={"SATURATION"},
    control=two_lstms,
)

# --- states that grow


def grown(seed: int, rnn: nn.Module, length: int = 18, **more) -> Setup:
    return weighed(seed, rnn, length, **{"lr": 1e-4, "steps": 40, "clip": 1.0, **more})


zoo.sick(
    "weights-state-space-radius-1.7",
    lambda s: grown(s, Space(3, 1.7)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn", "rnn.into", "rnn.out"),
    also=GROWS,
    control=space,
)
rectified = zoo.healthy(
    "weights-rectified-elman-orthogonal", lambda s: weighed(s, elman(1.0, "relu", dim=3), 10, lr=3e-3, clip=1.0)
)
zoo.sick(
    "weights-rectified-elman-orthogonal-times-2.5",
    lambda s: grown(s, elman(2.5, "relu", dim=3), 24),
    BURSTS,
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=rectified,
)


class Pendulum(Cell):
    """A step of Euler for a damped swing with learned pushes; `damping` of the wrong sign feeds it."""

    def __init__(self, dim: int, damping: float) -> None:
        super().__init__()
        self.hidden_size, self.damping, self.push = 24, damping, nn.Linear(dim, 12)
        self.pace = nn.Parameter(torch.linspace(0.1, 0.6, 12))

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        place, speed = state.chunk(2, dim=1)
        speed = (1 - self.damping) * speed - self.pace.square() * place + self.push(x)
        return torch.cat([place + speed, speed], dim=1)


damped = zoo.healthy("weights-swings-damped-by-0.1", lambda s: weighed(s, Pendulum(3, 0.1)))
zoo.sick(
    "weights-swings-fed-by-0.8",
    lambda s: grown(s, Pendulum(3, -0.8)),
    BURSTS,
    *CHAOTIC,
    layer="rnn.push",
    also=GROWS,
    control=damped,
)


class Feeding(Cell):
    """A gate that keeps a share of the state; `plus` adds that share instead."""

    def __init__(self, dim: int, plus: float) -> None:
        super().__init__()
        self.hidden_size, self.plus, self.new = 24, plus, nn.Linear(dim, 24)
        self.gate = nn.Parameter(torch.full((24,), 3.0))

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return (self.plus + torch.sigmoid(self.gate)) * state + self.new(x)


kept = zoo.healthy("weights-a-share-is-kept", lambda s: weighed(s, Feeding(3, 0.0), 12))
zoo.sick(
    "weights-a-share-is-added",
    lambda s: grown(s, Feeding(3, 1.0)),
    BURSTS,
    *CHAOTIC,
    layer="rnn.new",
    also=GROWS,
    control=kept,
)


class Stacked(nn.Module):
    """Two recurrences without bounds above one another; `gain` is that of both."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.hidden_size, self.low, self.high = 20, nn.Linear(3, 20), nn.Linear(20, 20)
        self.low_hh, self.high_hh = (nn.Linear(20, 20, bias=False) for _ in range(2))
        for layer in (self.low_hh, self.high_hh):
            nn.init.orthogonal_(layer.weight, gain)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = b = x.new_zeros(len(x), 20)
        states = []
        for now in x.unbind(1):
            a = F.leaky_relu(self.low(now) + self.low_hh(a), 0.5)
            b = F.leaky_relu(self.high(a) + self.high_hh(b), 0.5)
            states.append(b)
        return torch.stack(states, dim=1), b


stacked = zoo.healthy("weights-two-storeys-gain-1", lambda s: weighed(s, Stacked(1.0), 10, lr=3e-3, clip=1.0))
zoo.sick(
    "weights-two-storeys-gain-2.2",
    lambda s: grown(s, Stacked(2.2)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.low", "rnn.high", "rnn.low_hh", "rnn.high_hh"),
    also=GROWS,
    control=stacked,
)

# --- narrow


class Squeezed(nn.Module):
    """`size` numbers of each state are handed on to a second recurrence."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.hidden_size, self.low = 24, nn.LSTM(3, 24, batch_first=True)
        self.squeeze, self.high = nn.Linear(24, size), nn.GRU(size, 24, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.high(self.squeeze(self.low(x)[0]))


roomy = zoo.healthy("drifts-squeezed-to-8", lambda s: floated(s, Squeezed(8), steps=70))
zoo.sick(
    "drifts-squeezed-to-1",
    lambda s: floated(s, Squeezed(1), steps=70),
    lags(0.1),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("rnn.squeeze", "rnn.high"),
    also={*SHORT},
    control=roomy,
)


class Retold(nn.Module):
    """A sequence as one code of `size` numbers, unrolled again."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.encoder, self.code = nn.GRU(3, 32, batch_first=True), nn.Linear(32, size)
        self.begin, self.decoder, self.out = nn.Linear(size, 32), nn.GRUCell(3, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.begin(self.code(self.encoder(x)[1][0])))
        y, said = x.new_zeros(len(x), 3), []
        for _ in range(x.shape[1]):
            h = self.decoder(y, h)
            y = self.out(h)
            said.append(y)
        return torch.stack(said, dim=1)


def retold(seed: int, size: int) -> Setup:
    return live(Retold(size), drifts(seed, 5).changed(lambda x, _t: (x, x)), lr=1e-2, steps=100)


coded = zoo.healthy("drifts-retold-from-12-numbers", lambda s: retold(s, 12))
zoo.sick(
    "drifts-retold-from-1-number",
    lambda s: retold(s, 1),
    lags(0.1),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("code", "begin"),
    also={*SHORT},
    control=coded,
)

# --- flat, dead, cut, equal


class Loud(Cell):
    """A bounded recurrence over readings in a unit of their own."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.hidden_size, self.unit, self.ih, self.hh = 24, unit, nn.Linear(3, 24), nn.Linear(24, 24)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return torch.tanh(self.ih(self.unit * x) + self.hh(state))


quiet = zoo.healthy("drifts-read-in-metres", lambda s: floated(s, Loud(1.0)))
zoo.sick(
    "drifts-read-in-millimetres",
    lambda s: floated(s, Loud(1000.0), lr=3e-3),
    lasting(states_flat("tanh", 0.85)),
    "SATURATION",
    "VANISHING",
    "SHORT_MEMORY",
    "SPECTRAL_RADIUS",
    layer=("rnn.ih", "rnn.hh"),
    also={"EXPLODING", "UNSTABLE", "DEAD"},
    control=quiet,
)


class Rectified(nn.Module):
    """Readings through rectifiers that begin at `bias`, then a GRU."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.pre, self.gru, self.head = nn.Linear(4, 24), nn.GRU(24, 24, batch_first=True), nn.Linear(24, 5)
        nn.init.constant_(self.pre.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(F.relu(self.pre(x)))[0][:, -1])


awake = zoo.healthy("dances-rectifiers-before-a-gru", lambda s: live(Rectified(0.0), dances(s), lr=1e-2, steps=60))
zoo.sick(
    "dances-rectifiers-before-a-gru-begin-at-minus-12",
    lambda s: live(Rectified(-12.0), dances(s), lr=1e-2, steps=60),
    lasting(never_fires("pre", 0.98)),
    "DEAD",
    layer=("pre", "gru"),
    also={"DISCONNECTED", "LOW_RANK", "BOTTLENECK", "RANK_COLLAPSE", *SHORT},
    control=awake,
)


class Handed(nn.Module):
    """A first GRU sums the dance up, a second hears it beside each step; `copied` makes a new tensor of the sum."""

    def __init__(self, copied: bool) -> None:
        super().__init__()
        self.copied, self.first = copied, nn.GRU(4, 16, batch_first=True)
        self.second, self.head = nn.GRU(20, 24, batch_first=True), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        total = self.first(x)[1][0]
        if self.copied:
            total = torch.as_tensor(total.detach().numpy())
        beside = total[:, None].expand(-1, x.shape[1], -1)
        return self.head(self.second(torch.cat([x, beside], dim=2))[0][:, -1])


handed = zoo.healthy("dances-sum-handed-on", lambda s: live(Handed(False), dances(s), lr=1e-2, steps=60))
zoo.sick(
    "dances-sum-handed-on-as-an-array",
    lambda s: live(Handed(True), dances(s), lr=1e-2, steps=60),
    lasting(no_gradient("first")),
    "DISCONNECTED",
    layer="first",
    also={"DEAD", "SHORT_MEMORY"},
    control=handed,
)


def even(seed: int, value: float | None) -> Setup:
    """All matrices of the recurrence begin at one value, and its reader counts every unit alike."""
    setup = danced(seed, nn.RNN(4, 16, batch_first=True), lr=5e-3)
    if value is not None:
        for parameter in setup.model.rnn.parameters():
            nn.init.constant_(parameter, value)
        setup.model.head.weight.data = setup.model.head.weight.data[:, :1].expand(5, 16).clone()
    return setup


uneven = zoo.healthy("dances-elman-as-drawn", lambda s: even(s, None))
zoo.sick(
    "dances-elman-all-of-0.02",
    lambda s: even(s, 0.02),
    both(lasting(equal_units("rnn.weight_ih_l0")), lags(0.05)),
    "SYMMETRY",
    layer=("rnn", "head"),
    also={"LOW_RANK", "BOTTLENECK", *SHORT},
    control=uneven,
)

# --- numbers, jumps, rates


class Paused(nn.Module):
    """Places, and steps divided by how far the dancer moved; `eps` is added to that."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.gru, self.head = eps, nn.GRU(8, 24, batch_first=True), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        moves = x[:, 1:] - x[:, :-1]
        way = moves / (moves.norm(dim=2, keepdim=True) + self.eps)
        return self.head(self.gru(torch.cat([x[:, 1:], way], dim=2))[0][:, -1])


def paused(seed: int, eps: float) -> Setup:
    """Now and then somebody stands still for two steps."""
    now = every(13, 8)

    def still(x: Tensor) -> Tensor:
        if now():
            x[0, 5] = x[0, 4]
        return x

    return live(Paused(eps), dances(seed).mapped(still), lr=1e-2, steps=60)


moving = zoo.healthy("dances-directions-with-eps", lambda s: paused(s, 1e-3))
zoo.sick("dances-directions-of-those-who-stand", lambda s: paused(s, 0.0), breaks, "NUMERICAL", control=moving)


def struck(seed: int, factor: float) -> Setup:
    """Now and then a buoy is struck, and both what is read and what is asked are far out."""
    now = every(12, 7)

    def strike(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        if now():
            x, t = x.clone(), t.clone()
            x[1], t[1] = factor * x[1], factor * t[1]
        return x, t

    return live(Listener(nn.GRU(3, 24, batch_first=True), 3, True), drifts(seed).changed(strike), lr=5e-3, steps=70)


calm = zoo.healthy("drifts-calm-buoys", lambda s: struck(s, 1.0))
zoo.sick("drifts-struck-buoys", lambda s: struck(s, 5e3), gradient_norms_spread(30), *JUMPS, control=calm)


def paced(seed: int, lr: float) -> Setup:
    return danced(seed, nn.LSTM(4, 24, batch_first=True), lr=lr)


brisk = zoo.healthy("dances-lstm-rate-0.01", lambda s: paced(s, 1e-2))
zoo.sick("dances-lstm-rate-1e-9", lambda s: paced(s, 1e-9), does_not_move(steps=60), "SLOW", control=brisk)
