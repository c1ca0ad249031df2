# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks of laboratories and workshops, with one fault each, their twins, and odd healthy ones.

Half: drill.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.live import breaks, flat_behind, lags, lasting, thrives
from validation.evidence.recurrent import BURSTS, FORGETS
from validation.evidence.signal import no_gradient
from validation.labels import CHAOTIC, CUT_SHORT, GROWS, SHORT
from validation.nets import Cell, gate_bias_
from validation.setups import live
from validation.tasks import every, flags, gestures, tallies, tides

zoo = Zoo("rnn", half="drill", analyzer="recurrent", proof=thrives())


class Answer(nn.Module):
    """Any recurrence, and an answer from its last state, or from each."""

    def __init__(self, rnn: nn.Module, out: int, each: bool = False) -> None:
        super().__init__()
        self.memory, self.answer, self.each = rnn, nn.Linear(rnn.hidden_size, out), each

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.memory(x)
        return self.answer(states if self.each else states[:, -1])


def flagged(seed: int, rnn: nn.Module, length: int = 20, **more) -> Setup:
    """Which of four flags was shown at the first step."""
    task = flags(seed, length)
    return live(Answer(rnn, 4), task, hints={"required_lag": length - 1}, **{"lr": 1e-2, "steps": 60, **more})


def tallied(seed: int, rnn: nn.Module, length: int = 20, **more) -> Setup:
    """What came in the first three steps, summed."""
    task = tallies(seed, length)
    return live(Answer(rnn, 2), task, hints={"required_lag": length - 3}, **{"lr": 1e-2, "steps": 60, **more})


def harbour(seed: int, rnn: nn.Module, length: int = 20, **more) -> Setup:
    """Three gauges, every step the next."""
    return live(Answer(rnn, 3, each=True), tides(seed, length), **{"lr": 1e-2, "steps": 60, **more})


# --- memory that is too short


class Update(Cell):
    """A GRU by hand with one gate; `keep` is the bias of the gate that keeps the state."""

    def __init__(self, dim: int, width: int, keep: float) -> None:
        super().__init__()
        self.hidden_size = width
        self.gate, self.new = nn.Linear(dim + width, width), nn.Linear(dim + width, width)
        nn.init.constant_(self.gate.bias, keep)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        both = torch.cat([x, state], dim=1)
        keep = torch.sigmoid(self.gate(both))
        return keep * state + (1 - keep) * torch.tanh(self.new(both))


keeps = zoo.healthy("flags-own-gate-that-keeps", lambda s: flagged(s, Update(7, 32, 2.5), 16))
zoo.sick(
    "flags-own-gate-of-the-wrong-sign",
    lambda s: flagged(s, Update(7, 32, -5.0), 24, lr=2e-3),
    FORGETS,
    *SHORT,
    layer=("memory.gate", "memory.new"),
    control=keeps,
)


class Stepped(nn.Module):
    """Two LSTM cells in a Python loop; `forget` is the bias of their forget gates."""

    def __init__(self, dim: int, width: int, forget: float) -> None:
        super().__init__()
        self.hidden_size = width
        self.low, self.high = nn.LSTMCell(dim, width), nn.LSTMCell(width, width)
        for cell in (self.low, self.high):
            cell.bias_ih.data[width : 2 * width] = forget

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        a = b = None
        states = []
        for now in x.unbind(1):
            a = self.low(now, a)
            b = self.high(a[0], b)
            states.append(b[0])
        return torch.stack(states, dim=1), None


stepped = zoo.healthy("tallies-two-cells-forget-bias-3", lambda s: tallied(s, Stepped(3, 24, 3.0), 12))
zoo.sick(
    "tallies-two-cells-forget-bias-minus-6",
    lambda s: tallied(s, Stepped(3, 24, -6.0), 20, lr=2e-3),
    FORGETS,
    *SHORT,
    layer=("memory.low", "memory.high"),
    control=stepped,
)


class Traces(nn.Module):
    """Leaky traces of several half-lives over what a layer sees; no matrix in the recurrence."""

    def __init__(self, dim: int, width: int, longest: float) -> None:
        super().__init__()
        self.hidden_size = width
        self.see, self.mix = nn.Linear(dim, width), nn.Linear(width, width)
        self.keep = nn.Buffer(0.5 ** (1 / torch.linspace(0.3 * longest, longest, width)))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        trace, states = x.new_zeros(len(x), self.hidden_size), []
        for now in torch.tanh(self.see(x)).unbind(1):
            trace = self.keep * trace + now
            states.append(trace)
        return F.silu(self.mix(torch.stack(states, dim=1))), None


traces = zoo.healthy("tallies-half-lives-up-to-40-steps", lambda s: tallied(s, Traces(3, 32, 40.0)))
zoo.sick(
    "tallies-half-lives-in-seconds-not-steps",
    lambda s: tallied(s, Traces(3, 32, 0.8)),
    FORGETS,
    *SHORT,
    layer=("memory.see", "memory.mix"),
    also={"LOW_RANK"},
    control=traces,
)


class Truncated(nn.Module):
    """A GRU whose state is cut off from its past every `window` steps, to save memory."""

    def __init__(self, dim: int, width: int, window: int) -> None:
        super().__init__()
        self.hidden_size, self.window = width, window
        self.cell = nn.GRUCell(dim, width)
        self.cell.bias_ih.data[width : 2 * width] = 2.5

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        state, states = x.new_zeros(len(x), self.hidden_size), []
        for t, now in enumerate(x.unbind(1)):
            state = self.cell(now, state.detach() if t % self.window == 0 else state)
            states.append(state)
        return torch.stack(states, dim=1), None


uncut = zoo.healthy("flags-state-cut-after-40-steps", lambda s: flagged(s, Truncated(7, 28, 40), 14, lr=2e-2))
zoo.sick(
    "flags-state-cut-every-5-steps",
    # The reservoir that is left of the first steps can be read, so the answer is learned late and in part.
    lambda s: flagged(s, Truncated(7, 28, 5), 30, lr=2e-3),
    FORGETS,
    *CUT_SHORT,
    layer="memory.cell",
    control=uncut,
)


class Decays(nn.Module):
    """A linear recurrence, one number each, that is learned through a sigmoid; then a mixing layer."""

    def __init__(self, dim: int, width: int, start: float) -> None:
        super().__init__()
        self.hidden_size, self.raw = width, nn.Parameter(start + 0.3 * torch.randn(width))
        self.write, self.read = nn.Linear(dim, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        decay = torch.sigmoid(self.raw)
        state, states = x.new_zeros(len(x), self.hidden_size), []
        for now in self.write(x).unbind(1):
            state = decay * state + (1 - decay) * now
            states.append(state)
        return F.gelu(self.read(torch.stack(states, dim=1))), None


decays = zoo.healthy("flags-decays-near-one", lambda s: flagged(s, Decays(7, 40, 3.5), 16, lr=2e-2))
zoo.sick(
    "flags-decays-near-a-tenth",
    lambda s: flagged(s, Decays(7, 40, -2.2), 20, lr=5e-3),
    FORGETS,
    *SHORT,
    layer=("memory.write", "memory.read", "memory"),
    control=decays,
)


class Reservoir(nn.Module):
    """A fixed random recurrence of a given radius; only what goes in and what is read is trained."""

    def __init__(self, dim: int, width: int, radius: float) -> None:
        super().__init__()
        self.hidden_size, self.into, self.read = width, nn.Linear(dim, width), nn.Linear(width, width)
        w = torch.linalg.qr(torch.randn(width, width))[0]
        self.back = nn.Buffer(radius * w)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        state, states = x.new_zeros(len(x), self.hidden_size), []
        for now in self.into(x).unbind(1):
            state = torch.tanh(0.5 * now + state @ self.back)
            states.append(state)
        return torch.tanh(self.read(torch.stack(states, dim=1))), None


reservoir = zoo.healthy("tallies-reservoir-of-radius-1", lambda s: tallied(s, Reservoir(3, 48, 1.0), 14))
zoo.sick(
    "tallies-reservoir-of-radius-0.4",
    lambda s: tallied(s, Reservoir(3, 48, 0.4), 20, lr=5e-3),
    FORGETS,
    *SHORT,
    layer=("memory.into", "memory.read"),
    control=reservoir,
)


class Normed(Cell):
    """An Elman cell that weighs its past by `past`, and then norms the sum."""

    def __init__(self, dim: int, width: int, past: float) -> None:
        super().__init__()
        self.hidden_size, self.past = width, past
        self.w, self.u, self.norm = nn.Linear(dim, width), nn.Linear(width, width, bias=False), nn.LayerNorm(width)
        nn.init.orthogonal_(self.u.weight)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.w(x) + self.past * self.u(state)))


past = zoo.healthy("flags-normed-cell-with-its-past", lambda s: flagged(s, Normed(7, 32, 2.0), 9, steps=80))
zoo.sick(
    "flags-normed-cell-past-weighed-by-a-twentieth",
    lambda s: flagged(s, Normed(7, 32, 0.05), 20, lr=3e-3),
    FORGETS,
    *SHORT,
    layer=("memory.w", "memory.u"),
    control=past,
)
lstm = zoo.healthy(
    "flags-lstm-forget-bias-3", lambda s: flagged(s, gate_bias_(nn.LSTM(7, 28, batch_first=True), 1, 3.0), 16)
)
zoo.sick(
    "flags-lstm-forget-bias-minus-5",
    lambda s: flagged(s, gate_bias_(nn.LSTM(7, 28, batch_first=True), 1, -5.0), 24, lr=2e-3),
    FORGETS,
    *SHORT,
    layer="memory",
    control=lstm,
)

# --- states that grow


class Doubling(Cell):
    """A linear state with a learned matrix that starts as a rotation times `gain`; no bound."""

    def __init__(self, dim: int, width: int, gain: float) -> None:
        super().__init__()
        self.hidden_size, self.w, self.u = width, nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        self.u.weight.data = gain * torch.linalg.qr(torch.randn(width, width))[0]

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return self.w(x) + self.u(state)


turned = zoo.healthy("tallies-linear-rotation", lambda s: tallied(s, Doubling(3, 24, 0.97), 14, lr=5e-3, clip=1.0))
zoo.sick(
    "tallies-linear-rotation-times-1.6",
    lambda s: tallied(s, Doubling(3, 24, 1.6), 20, lr=1e-4, steps=40, clip=1.0),
    BURSTS,
    *CHAOTIC,
    layer=("memory.w", "memory.u"),
    also=GROWS,
    control=turned,
)


def grown(seed: int, gain: float, **more) -> Setup:
    rnn = nn.RNN(3, 32, nonlinearity="relu", batch_first=True)
    rnn.weight_hh_l0.data = gain * torch.eye(32)
    return tallied(seed, rnn, **more)


eye = zoo.healthy("tallies-relu-identity-0.98", lambda s: grown(s, 0.98, length=14, lr=3e-3, steps=80, clip=1.0))
zoo.sick(
    "tallies-relu-identity-1.5",
    lambda s: grown(s, 1.5, length=24, lr=1e-4, steps=40, clip=1.0),
    BURSTS,
    *CHAOTIC,
    layer="memory",
    also=GROWS,
    control=eye,
)

# --- narrow


class Squeezed(nn.Module):
    """Each step becomes `size` numbers before it is read."""

    def __init__(self, dim: int, size: int, width: int = 28) -> None:
        super().__init__()
        self.hidden_size, self.enter, self.gru = width, nn.Linear(dim, size), nn.GRU(size, width, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.gru(self.enter(x))


def penned(seed: int, rnn: nn.Module, **more) -> Setup:
    return live(Answer(rnn, 6), gestures(seed), **{"lr": 1e-2, "steps": 70, **more})


class Harmonies(nn.Module):
    """Reads a path, keeps `size` numbers of it, and tells the class by a tower."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.read, self.keep = nn.GRU(2, 32, batch_first=True), nn.Linear(32, size)
        self.tower, self.out = nn.Linear(size, 32), nn.Linear(32, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.silu(self.tower(self.keep(self.read(x)[1][0]))))


harmonies = zoo.healthy("gestures-12-numbers-kept", lambda s: live(Harmonies(12), gestures(s, 12), lr=1e-2, steps=70))
zoo.sick(
    "gestures-1-number-kept",
    lambda s: live(Harmonies(1), gestures(s, 12), lr=1e-2, steps=70),
    lags(0.12),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("keep", "tower"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=harmonies,
)
projected = zoo.healthy("gestures-lstm-projected-to-16", lambda s: penned(s, Projected(16)))
zoo.sick(
    "gestures-lstm-projected-to-1",
    lambda s: penned(s, Projected(1)),
    lags(0.12),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("memory.lstm", "answer"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=projected,
)


class Projected(nn.Module):
    """An LSTM whose state is handed on as `size` numbers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.hidden_size, self.lstm = size, nn.LSTM(2, 32, batch_first=True, proj_size=size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.lstm(x)


three = zoo.healthy("flags-steps-as-16-numbers", lambda s: flagged(s, Squeezed(7, 16), 8))
zoo.sick(
    "flags-steps-as-1-number",
    lambda s: flagged(s, Squeezed(7, 1), 8),
    lags(0.12),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("memory.enter", "memory.gru"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=three,
)

# --- flat, cut, numbers


class Wound(nn.Module):
    """A GRU behind a tanh layer that is fed by raw encoder counts."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.hidden_size, self.factor = 24, factor
        self.enter, self.gru = nn.Linear(3, 20), nn.GRU(20, 24, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.gru(torch.tanh(self.enter(self.factor * x)))


wound = zoo.healthy("tides-in-metres", lambda s: harbour(s, Wound(1.0)))
zoo.sick(
    "tides-in-tenths-of-millimetres",
    lambda s: harbour(s, Wound(10000.0), lr=3e-3),
    lasting(flat_behind("memory.enter", "tanh", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="memory.enter",
    also={"EXPLODING", "UNSTABLE", "SHORT_MEMORY", "SPECTRAL_RADIUS", "LOW_RANK"},
    control=wound,
)


class Story(nn.Module):
    """A path is read by one GRU and told by another from its last state, which may come as plain numbers."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.reader, self.teller = nn.GRU(3, 24, batch_first=True), nn.GRUCell(3, 24)
        self.out, self.plain = nn.Linear(24, 3), plain

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[1] // 2
        state = self.reader(x[:, :half])[1][0]
        if self.plain:
            state = torch.tensor(state.tolist())
        said = []
        for now in x[:, half:].unbind(1):
            state = self.teller(now, state)
            said.append(self.out(state))
        return torch.stack(said, dim=1)


def told(seed: int, plain: bool) -> Setup:
    task = tides(seed).changed(lambda x, t: (x, t[:, 10:]))
    return live(Story(plain), task, lr=1e-2, steps=60)


story = zoo.healthy("tides-read-then-told", lambda s: told(s, False))
zoo.sick(
    "tides-read-then-told-from-a-list",
    lambda s: told(s, True),
    lasting(no_gradient("reader")),
    "DISCONNECTED",
    layer="reader",
    also={"DEAD", "SHORT_MEMORY"},
    control=story,
)


class Angles(nn.Module):
    """The turn from one step to the next by its cosine, for a GRU; `inside` keeps the cosine from one."""

    def __init__(self, inside: float) -> None:
        super().__init__()
        self.move, self.gru, self.out = nn.Linear(2, 2), nn.GRU(3, 24, batch_first=True), nn.Linear(24, 6)
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        y = self.move(x)
        turn = F.cosine_similarity(y[:, 1:], y[:, :-1], dim=2).clamp(-self.inside, self.inside).acos()
        return self.out(self.gru(torch.cat([y[:, 1:], turn[..., None]], dim=2))[0].mean(dim=1))


def resting(seed: int, inside: float) -> Setup:
    """A pen that rests: the same place twice, so that the angle is none."""
    now = every(8, 5)
    task = gestures(seed).mapped(lambda x: torch.cat([x[:, :3], x[:, 2:-1]], dim=1) if now() else x)
    return live(Angles(inside), task, lr=5e-3, steps=50)


inside = zoo.healthy("gestures-angles-kept-inside", lambda s: resting(s, 0.999))
zoo.sick(
    "gestures-angle-of-a-pen-that-rests",
    lambda s: resting(s, 1.0),
    breaks,
    "NUMERICAL",
    layer="move",
    also={"UNSTABLE", "EXPLODING"},
    control=inside,
)

# --- odd and healthy


class Handed(nn.Module):
    """Reads in pieces of four and hands the state on, cut from its past: the next value needs no more."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden_size, self.lstm = 24, nn.LSTM(3, 24, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        state, parts = None, []
        for piece in x.split(4, dim=1):
            states, state = self.lstm(piece, state)
            state = tuple(part.detach() for part in state)
            parts.append(states)
        return torch.cat(parts, dim=1), None


zoo.healthy("tides-in-pieces-cut-from-their-past", lambda s: harbour(s, Handed()))


class Ahead(nn.Module):
    """An encoder's states, then a decoder that sees their mean: two modules and a code of 3 for 3 gauges."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden_size, self.enter = 3, nn.GRU(3, 32, batch_first=True)
        self.code = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.code(self.enter(x)[0]), None


zoo.healthy("tides-code-of-3-suffices", lambda s: harbour(s, Ahead()))
zoo.healthy("tides-elman-default", lambda s: harbour(s, nn.RNN(3, 24, batch_first=True), lr=5e-3))
zoo.healthy("tides-leaky-traces-of-three-steps", lambda s: harbour(s, Traces(3, 24, 3.0)))


class Towns(nn.Module):
    """One GRU for all gauges, each read by itself with weights in common; the answer in centimetres."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(1, 20, batch_first=True), nn.Linear(20, 1)

    def forward(self, x: Tensor) -> Tensor:
        each = x.permute(0, 2, 1).flatten(0, 1)[..., None]
        return 100 * self.out(self.gru(each)[0])[..., 0].unflatten(0, (len(x), 3)).permute(0, 2, 1)


zoo.healthy(
    "tides-in-centimetres",
    lambda s: live(Towns(), tides(s, batch=12).changed(lambda x, t: (x, 100 * t)), lr=1e-2, steps=60),
)
zoo.healthy("gestures-both-ways-gru", lambda s: penned(s, Sides(), steps=60))


class Sides(nn.Module):
    """A GRU in both directions whose two last states are read."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden_size, self.gru = 40, nn.GRU(2, 20, 2, batch_first=True, bidirectional=True, dropout=0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.gru(x)[0].mean(dim=1, keepdim=True), None
