# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks as people train them at work, with one fault each, their twins, and odd healthy ones.

Half: fresh.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from validation.case import Setup, Zoo
from validation.evidence.live import breaks, flat_behind, lags, lasting, thrives
from validation.evidence.recurrent import BURSTS, FORGETS
from validation.evidence.signal import no_gradient
from validation.evidence.training import diverges, gradient_norms_spread
from validation.labels import CHAOTIC, CUT_SHORT, GROWS, JUMPS, RUNS_AWAY, SHORT
from validation.nets import Cell, gate_bias_
from validation.nets.programs import Tagger
from validation.setups import live
from validation.tasks import every, keepsakes, loads, majority, order, pulses

zoo = Zoo("rnn", half="fresh", analyzer="recurrent", proof=thrives())


def ordered(seed: int, rnn: nn.Module, length: int = 24, **more) -> Setup:
    """Which of two signs came first, asked at the end."""
    model = Tagger(nn.Identity(), rnn, 4, rnn.hidden_size, last=True)
    return live(model, order(seed, length), hints={"required_lag": length - 1}, **{"lr": 1e-2, "steps": 60, **more})


def kept(seed: int, rnn: nn.Module, length: int = 24, **more) -> Setup:
    """Two numbers of the first step, asked for at the end."""
    model = Tagger(nn.Identity(), rnn, 2, rnn.hidden_size, last=True)
    return live(model, keepsakes(seed, length), hints={"required_lag": length - 1}, **{"lr": 1e-2, "steps": 60, **more})


# --- memory that is too short


class Own(nn.Module):
    """An LSTM by hand. `swapped` exchanges its first two gates."""

    def __init__(self, dim: int, width: int, swapped: bool = False) -> None:
        super().__init__()
        self.hidden_size, self.swapped = width, swapped
        self.gates = nn.Linear(dim + width, 4 * width)
        nn.init.constant_(self.gates.bias[width : 2 * width], 3.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = c = x.new_zeros(len(x), self.hidden_size)
        states = []
        for now in x.unbind(1):
            i, f, g, o = self.gates(torch.cat([now, h], dim=1)).chunk(4, dim=1)
            i, f = torch.sigmoid(i), torch.sigmoid(f)
            c = i * c + f * g.tanh() if self.swapped else f * c + i * g.tanh()
            h = torch.sigmoid(o) * c.tanh()
            states.append(h)
        return torch.stack(states, dim=1), h


own = zoo.healthy("order-own-lstm-28", lambda s: ordered(s, Own(6, 28)))
zoo.sick(
    "order-own-lstm-28-input-and-forget-exchanged",
    lambda s: ordered(s, Own(6, 28, swapped=True), 32, lr=3e-3),
    FORGETS,
    *SHORT,
    layer="rnn.gates",
    control=own,
)


def drawn(kind: type[nn.RNNBase], width: int, std: float, dim: int = 6) -> nn.RNNBase:
    """All weights from one bell, whatever they are for."""
    rnn = kind(dim, width, batch_first=True)
    for parameter in rnn.parameters():
        nn.init.normal_(parameter, std=std)
    return rnn


keeps = zoo.healthy(
    "order-gru-32-update-bias-3", lambda s: ordered(s, gate_bias_(nn.GRU(6, 32, batch_first=True), 1, 3.0))
)
zoo.sick(
    "order-elman-40-all-weights-drawn-with-deviation-0.02",
    lambda s: ordered(s, drawn(nn.RNN, 40, 0.02), lr=1e-3),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=keeps,
)


class Pieces(nn.Module):
    """Reads a long record in pieces; `carry` hands the state on from one to the next."""

    def __init__(self, carry: bool, size: int = 4) -> None:
        super().__init__()
        self.hidden_size, self.carry, self.size = 28, carry, size
        self.lstm = gate_bias_(nn.LSTM(6, 28, batch_first=True), 1, 3.0)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        state, parts = None, []
        for piece in x.split(self.size, dim=1):
            states, state = self.lstm(piece, state if self.carry else None)
            parts.append(states)
        return torch.cat(parts, dim=1), None


pieces = zoo.healthy("order-in-pieces-state-handed-on", lambda s: ordered(s, Pieces(True), 16, steps=80))
zoo.sick(
    "order-in-pieces-each-from-zero",
    lambda s: ordered(s, Pieces(False), 16, steps=80),
    FORGETS,
    *CUT_SHORT,
    layer="rnn.lstm",
    control=pieces,
)


class Space(nn.Module):
    """A state-space layer, one pole per number; `pace` is the width of a time step, `euler` the rule to take it."""

    def __init__(self, dim: int, width: int, pace: float, euler: bool = False) -> None:
        super().__init__()
        self.hidden_size, self.pace, self.euler = width, pace, euler
        self.log_pole = nn.Parameter(torch.linspace(-1.0, 1.0, width))
        self.into, self.mix = nn.Linear(dim, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        decay = -self.log_pole.exp() * self.pace
        keep = 1 + decay if self.euler else decay.exp()
        state, states = x.new_zeros(len(x), self.hidden_size), []
        for now in self.into(x).unbind(1):
            state = keep * state + now
            states.append(state)
        return self.mix(torch.stack(states, dim=1)), None


space = zoo.healthy("keepsakes-state-space-small-steps", lambda s: kept(s, Space(3, 32, 0.02)))
zoo.sick(
    "keepsakes-state-space-time-step-of-3",
    lambda s: kept(s, Space(3, 32, 3.0), lr=3e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.into", "rnn.mix"),
    control=space,
)


class Bounded(nn.Module):
    """Holds the largest singular value of a matrix at `most`."""

    def __init__(self, most: float) -> None:
        super().__init__()
        self.most = most

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (self.most / torch.linalg.matrix_norm(weight, 2))


class Elman(Cell):
    """Own cell with a bounded recurrence."""

    def __init__(self, dim: int, width: int, most: float) -> None:
        super().__init__()
        self.hidden_size, self.w, self.u = width, nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.u.weight)
        parametrize.register_parametrization(self.u, "weight", Bounded(most))

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return torch.tanh(self.w(x) + self.u(state))


bound = zoo.healthy("order-recurrence-bounded-by-1", lambda s: ordered(s, Elman(6, 24, 1.0), 12))
zoo.sick(
    "order-recurrence-bounded-by-0.3",
    lambda s: ordered(s, Elman(6, 24, 0.3), 18, lr=3e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.u.parametrizations.weight", "rnn.w"),
    control=bound,
)

# --- states that grow or never settle


def grown(seed: int, rnn: nn.Module, length: int = 24, **more) -> Setup:
    return kept(seed, rnn, length, **{"lr": 1e-4, "steps": 40, "clip": 1.0, **more})


class Trend(Cell):
    """Own cell: the state goes on as it last went, `share` of it, and is pushed by the input."""

    def __init__(self, dim: int, width: int, share: float) -> None:
        super().__init__()
        self.hidden_size, self.share = 2 * width, share
        self.push, self.back = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.normal_(self.back.weight, std=0.1 / width**0.5)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        now, before = state.chunk(2, dim=1)
        after = now + self.share * (now - before) + 0.3 * torch.tanh(self.push(x) + self.back(now))
        return torch.cat([after, now], dim=1)


trend = zoo.healthy("keepsakes-half-of-the-last-change-goes-on", lambda s: kept(s, Trend(3, 20, 0.5), 12, lr=5e-3))
zoo.sick(
    "keepsakes-half-as-much-again-of-the-last-change-goes-on",
    lambda s: grown(s, Trend(3, 20, 1.5)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.push", "rnn.back"),
    also=GROWS,
    control=trend,
)
zoo.sick(
    "keepsakes-state-space-by-euler-time-step-too-wide",
    lambda s: grown(s, Space(3, 32, 1.0, euler=True)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.into", "rnn.mix"),
    also=GROWS,
    control=space,
)


class Waves(nn.Module):
    """Oscillators that are driven by the input and by one another; `damping` has a sign."""

    def __init__(self, dim: int, width: int, damping: float) -> None:
        super().__init__()
        self.hidden_size, self.damping = width, damping
        self.drive, self.couple = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.normal_(self.couple.weight, std=0.3 / width**0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = z = x.new_zeros(len(x), self.hidden_size)
        states = []
        for now in x.unbind(1):
            force = torch.tanh(self.drive(now) + self.couple(y))
            z = z + 0.5 * (force - 0.3 * y - self.damping * z)
            y = y + 0.5 * z
            states.append(y)
        return torch.stack(states, dim=1), y


damped = zoo.healthy("keepsakes-oscillators-damped", lambda s: kept(s, Waves(3, 32, 0.05), 16))
zoo.sick(
    "keepsakes-oscillators-damping-of-the-wrong-sign",
    lambda s: grown(s, Waves(3, 32, -1.0)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.drive", "rnn.couple"),
    also=GROWS,
    control=damped,
)


class Added(Cell):
    """Own cell: the state plus a change, `share` of it; without a bound, and the change reads the state."""

    def __init__(self, dim: int, width: int, share: float) -> None:
        super().__init__()
        self.hidden_size, self.share, self.w, self.u = width, share, nn.Linear(dim, width), nn.Linear(width, width)
        nn.init.normal_(self.u.weight, 1.0 / width, 0.5 / width**0.5)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return state + self.share * F.relu(self.w(x) + self.u(state))


added = zoo.healthy("keepsakes-state-plus-a-twentieth", lambda s: kept(s, Added(3, 32, 0.05), 16, lr=5e-3))
zoo.sick(
    "keepsakes-state-plus-all-of-the-change",
    lambda s: grown(s, Added(3, 32, 1.0)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.w", "rnn.u"),
    also=GROWS,
    control=added,
)
zoo.sick(
    "order-elman-64-all-weights-drawn-with-deviation-1",
    lambda s: ordered(s, drawn(nn.RNN, 64, 1.0), lr=1e-4, steps=40, clip=1.0),
    BURSTS,
    *CHAOTIC,
    layer="rnn",
    also={*GROWS, "SHORT_MEMORY"},
    control=keeps,
)


def lifted(radius: float) -> nn.RNN:
    """A ReLU recurrence of two layers that starts as a scaled permutation."""
    rnn = nn.RNN(3, 24, 2, "relu", batch_first=True)
    for name, weight in rnn.named_parameters():
        if name.startswith("weight_hh"):
            weight.data = radius * torch.eye(24).roll(1, 0)
    return rnn


shifted = zoo.healthy("keepsakes-relu-permutation", lambda s: kept(s, lifted(0.95), 12, lr=2e-3, steps=80, clip=1.0))
zoo.sick(
    "keepsakes-relu-permutation-times-1.45",
    lambda s: grown(s, lifted(1.45)),
    BURSTS,
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=shifted,
)

# --- narrow, flat, cut


class Heart(nn.Module):
    """Frames of a heartbeat as `size` numbers each, then a GRU in both directions."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.frames = nn.Conv1d(2, size, 6, stride=3)
        self.rnn, self.fc = nn.GRU(size, 20, batch_first=True, bidirectional=True), nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(self.frames(x).transpose(1, 2))[0].amax(dim=1))


heart = zoo.healthy("pulses-frames-of-16-numbers", lambda s: live(Heart(16), pulses(s), lr=1e-2, steps=60))
zoo.sick(
    "pulses-frames-of-1-number",
    lambda s: live(Heart(1), pulses(s), lr=1e-2, steps=60),
    lags(0.1),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("frames", "rnn"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=heart,
)


class Summary(nn.Module):
    """A text as a context of `size` numbers; `data` hands it over outside of the graph."""

    def __init__(self, size: int, data: bool = False) -> None:
        super().__init__()
        self.words, self.encoder = nn.Embedding(6, 16), nn.GRU(16, 28, batch_first=True)
        self.context, self.decoder = nn.Linear(28, size), nn.GRUCell(size, 28)
        self.fc, self.data = nn.Linear(28, 6), data

    def forward(self, tokens: Tensor) -> Tensor:
        context = self.context(self.encoder(self.words(tokens))[0].mean(dim=1))
        context = context.data if self.data else context
        h = self.decoder(context)
        return self.fc(self.decoder(context, h))


def summed(seed: int, size: int, data: bool = False) -> Setup:
    return live(Summary(size, data), majority(seed), lr=1e-2, steps=80)


context = zoo.healthy("majority-context-of-16", lambda s: summed(s, 16))
zoo.sick(
    "majority-context-of-1",
    lambda s: summed(s, 1),
    lags(0.1),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("context", "decoder"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=context,
)
zoo.sick(
    "majority-context-handed-over-as-data",
    lambda s: summed(s, 16, True),
    lasting(no_gradient("words", "encoder", "context")),
    "DISCONNECTED",
    layer=("context", "encoder"),
    also={"DEAD"},
    control=context,
)


class Gate(nn.Module):
    """The state of a GRU through a gate of its own before the answer; `sure` draws the gate's bias far out."""

    def __init__(self, sure: float) -> None:
        super().__init__()
        self.rnn, self.gate, self.fc = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 24), nn.Linear(24, 1)
        if sure:
            self.gate.bias.data = sure * torch.randn(24).sign()

    def forward(self, x: Tensor) -> Tensor:
        h = self.rnn(x)[0]
        return self.fc(torch.sigmoid(self.gate(h)) * h)


gate = zoo.healthy("loads-gru-behind-a-gate", lambda s: live(Gate(0.0), loads(s), lr=5e-3, steps=60))
zoo.sick(
    "loads-gru-behind-a-gate-that-is-stuck",
    lambda s: live(Gate(24.0), loads(s), lr=5e-3, steps=60),
    lasting(flat_behind("gate", "sigmoid", 0.97)),
    "SATURATION",
    "DEAD",
    "VANISHING",
    layer="gate",
    also={"DISCONNECTED", "LOW_RANK", "BOTTLENECK", *SHORT},
    control=gate,
)

# --- numbers and rates


class Valid(nn.Module):
    """The mean of a GRU's states over the steps that count; `least` keeps their number from zero."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.rnn, self.fc, self.least = nn.GRU(6, 24, batch_first=True), nn.Linear(24, 4), least

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        states = self.rnn(x)[0] * valid[..., None]
        return self.fc(states.sum(dim=1) / valid.sum(dim=1, keepdim=True).clamp_min(self.least))


def silent(seed: int, least: float) -> Setup:
    now = every(15, 8)

    def mask(x: Tensor) -> tuple[Tensor, Tensor]:
        valid = torch.ones(x.shape[:2])
        if now():
            valid[0] = 0
        return x, valid

    return live(Valid(least), order(seed, 8).mapped(mask), lr=1e-2)


spoken = zoo.healthy("recordings-one-is-silent-at-least-one-step", lambda s: silent(s, 1.0))
zoo.sick("recordings-one-is-silent", lambda s: silent(s, 0.0), breaks, "NUMERICAL", control=spoken)


def metered(seed: int, size: float) -> Setup:
    """A meter that jumps by a factor for one town, now and then."""
    now = every(10, 5)

    def jump(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        if not now():
            return x, t
        factor = torch.ones(len(x), 1, 1)
        factor[0] = size
        return x, t * factor

    return live(
        Tagger(nn.Identity(), nn.LSTM(1, 24, batch_first=True), 1, 24), loads(seed).changed(jump), lr=5e-3, steps=70
    )


meter = zoo.healthy("loads-meters-in-order", lambda s: metered(s, 1.0))
zoo.sick(
    "loads-a-meter-jumps-now-and-then", lambda s: metered(s, 300.0), gradient_norms_spread(30), *JUMPS, control=meter
)
zoo.sick(
    "loads-lstm-sgd-momentum-above-1",
    lambda s: live(
        Tagger(nn.Identity(), nn.LSTM(1, 24, batch_first=True), 1, 24), loads(s), "SGD", 0.2, 80, momentum=1.25
    ),
    diverges(),
    *RUNS_AWAY,
    also={"SATURATION", "LOW_RANK", "BOTTLENECK", "VANISHING", *SHORT},
    control=meter,
)

# --- odd and healthy

zoo.healthy("order-lstm-gates-from-uniform-times", lambda s: ordered(s, chrono(nn.LSTM(6, 28, batch_first=True), 24)))


def chrono(rnn: nn.LSTM, longest: int) -> nn.LSTM:
    """Forget biases drawn for memories of all lengths, after Tallec and Ollivier."""
    size = rnn.hidden_size
    reach = torch.log(1 + (longest - 2) * torch.rand(size))
    rnn.bias_ih_l0.data[:size], rnn.bias_ih_l0.data[size : 2 * size] = -reach, reach
    return rnn


class Stepwise(nn.Module):
    """Three cells on top of one another in a Python loop, with a skip around each."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(16, 16) for _ in range(3))
        self.enter, self.fc = nn.Linear(1, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        states, said = [x.new_zeros(len(x), 16) for _ in self.cells], []
        for now in x.unbind(1):
            h = self.enter(now)
            for i, cell in enumerate(self.cells):
                states[i] = cell(h, states[i])
                h = h + states[i]
            said.append(self.fc(h))
        return torch.stack(said, dim=1)


zoo.healthy("loads-three-cells-with-skips", lambda s: live(Stepwise(), loads(s, 16), lr=5e-3, steps=50))
zoo.healthy(
    "loads-lstm-with-projection",
    lambda s: live(
        Tagger(nn.Identity(), nn.LSTM(1, 32, batch_first=True, proj_size=6), 1, 6), loads(s), lr=1e-2, steps=60
    ),
)
zoo.healthy(
    "loads-needs-one-step-elman-small-recurrence",
    lambda s: live(Tagger(nn.Identity(), small_elman(24), 1, 24), loads(s), lr=5e-3, steps=60),
)


def small_elman(width: int) -> nn.RNN:
    """A recurrence that forgets within a few steps, which is all that this task asks for."""
    rnn = nn.RNN(1, width, batch_first=True)
    rnn.weight_hh_l0.data *= 0.6
    return rnn


class Convolved(nn.Module):
    """Causal convolutions instead of a recurrence, then one GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rnn, self.fc = nn.Conv1d(1, 16, 3), nn.GRU(16, 20, batch_first=True), nn.Linear(20, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.conv(F.pad(x.transpose(1, 2), (2, 0)))).transpose(1, 2)
        return self.fc(self.rnn(h)[0])


zoo.healthy("loads-convolution-then-gru", lambda s: live(Convolved(), loads(s), lr=5e-3, steps=60))
zoo.healthy("order-orthogonal-rotation-with-modrelu", lambda s: ordered(s, Turning(6, 24), 16, lr=5e-3, steps=80))


class Turning(Cell):
    """Own cell: an orthogonal recurrence by construction, and a soft threshold that keeps the sign."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.hidden_size, self.w, self.u = width, nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), -0.01))
        nn.utils.parametrizations.orthogonal(self.u)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        h = self.w(x) + self.u(state)
        return h.sign() * F.relu(h.abs() + self.bias)


zoo.healthy(
    "keepsakes-loss-at-every-step-times-1000",
    lambda s: live(
        Tagger(nn.Identity(), gate_bias_(nn.LSTM(3, 24, batch_first=True), 1, 3.0), 2, 24),
        keepsakes(s, 16).with_loss(lambda y, t: 1000 * F.mse_loss(y, t[:, None].expand_as(y))),
        lr=1e-2,
        steps=60,
    ),
)


class Lines(nn.Module):
    """Reads a row both ways and answers from the middle, with attention over the states."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.look = nn.LSTM(6, 16, batch_first=True, bidirectional=True), nn.Linear(32, 1)
        self.fc = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        states = self.rnn(x)[0]
        weight = self.look(states).softmax(dim=1)
        return self.fc((weight * states).sum(dim=1))


def weighted(seed: int) -> Setup:
    return live(Lines(), order(seed, 12), lr=1e-2, steps=60)


# A shift of all scores alike leaves the softmax as it is: the bias in front of it has no gradient to speak of.
zoo.healthy("order-both-ways-with-a-look-back", weighted, thrives(idle="look.bias"))
zoo.healthy(
    "loads-level-of-a-thousand-taken-off-inside",
    lambda s: live(Levelled(), loads(s).changed(lambda x, t: (x + 1000, t + 1000)), lr=1e-2, steps=60),
)


class Levelled(nn.Module):
    """Takes the level of the first hours off and puts it back at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Tagger(nn.Identity(), nn.GRU(1, 20, batch_first=True), 1, 20)

    def forward(self, x: Tensor) -> Tensor:
        level = x[:, :8].mean(dim=1, keepdim=True)
        return level + self.inner(x - level) * math.sqrt(2)
