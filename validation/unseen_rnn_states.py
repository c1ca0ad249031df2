# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks whose states are narrow, equal, saturated, dead or cut off, and their twins. Set aside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, Zoo
from validation.evidence import both, effective_rank, judged, no_gradient, rank_at_most
from validation.evidence_training import learns_less, trains
from validation.nets import SequenceModel
from validation.setups import pair
from validation.tasks import echo, markov
from validation.tasks_unseen import ciphers

zoo = Zoo("rnn", "recurrent", trains(lr=1e-2))


def every_step(rnn: nn.Module, seed: int, length: int = 12) -> Setup:
    return pair(SequenceModel(rnn, 6, every_step=True), echo(seed, length))


# --- states without room


def states_rank(limit: float, path: str = "rnn") -> Proof:
    """Effective rank of all states of all steps, centred."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        kept: list[Tensor] = []
        handle = setup.model.get_submodule(path).register_forward_hook(lambda _m, _i, output: kept.append(output[0]))
        with torch.no_grad():
            setup.model(setup.input_fn())
        handle.remove()
        states = kept[0].flatten(0, 1).double()
        rank = effective_rank(states - states.mean(dim=0))
        return judged(rank < limit, "states have effective rank {:.2f}", rank)

    return proof


class Stacked(nn.Module):
    """Three recurrent layers, of which the middle one may be narrow."""

    def __init__(self, narrow: int, width: int = 30) -> None:
        super().__init__()
        self.low = nn.LSTM(8, width, batch_first=True)
        self.middle = nn.LSTM(width, narrow, batch_first=True)
        self.high = nn.LSTM(narrow, width, batch_first=True)
        self.head = nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.high(self.middle(self.low(x)[0])[0])[0])


SLOWER = trains(lr=1e-2, steps=80)
three = zoo.healthy("three-lstms-of-30", "tune", lambda s: pair(Stacked(30), echo(s, 12, 12)), SLOWER)
zoo.sick(
    "three-lstms-middle-of-width-1",
    "tune",
    lambda s: pair(Stacked(1), echo(s, 12, 12)),
    both(states_rank(1.01, "middle"), learns_less(lr=1e-2, steps=120, by=0.15)),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("middle", "high"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=three,
)


class Words(nn.Module):
    """Next token from an embedding of few or many numbers."""

    def __init__(self, size: int, width: int = 36) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(24, size), nn.GRU(size, width, batch_first=True)
        self.head = nn.Linear(width, 24)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0])


words = zoo.healthy("gru-words-of-16-numbers", "tune", lambda s: pair(Words(16), markov(s, 24)))
zoo.sick(
    "gru-words-of-1-number",
    "tune",
    lambda s: pair(Words(1), markov(s, 24)),
    learns_less(lr=1e-2, steps=80, by=0.15),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("embedding", "rnn"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=words,
)


class Translator(nn.Module):
    """Reads with one GRU, hands its last state to another that writes; the state may be squeezed or cut."""

    def __init__(self, width: int = 40, narrow: int = 0, cut: bool = False) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(14, 12), nn.Embedding(15, 12)
        self.encoder = nn.GRU(12, width, batch_first=True)
        self.context = nn.Sequential(nn.Linear(width, narrow or width), nn.Tanh(), nn.Linear(narrow or width, width))
        self.decoder, self.head, self.cut = nn.GRU(12, width, batch_first=True), nn.Linear(width, 14), cut

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        state = self.context(self.encoder(self.source(source))[1])
        return self.head(self.decoder(self.target(target), state.detach() if self.cut else state)[0])


def translated(seed: int, **more) -> Setup:
    return pair(Translator(**more), ciphers(seed, length=2, batch=48))


translator = zoo.healthy("gru-translator-of-2-tokens", "tune", translated, trains(lr=1e-2, steps=60))
zoo.sick(
    "gru-translator-context-of-width-1",
    "tune",
    lambda s: translated(s, narrow=1),
    both(rank_at_most("context.0", 1.01), learns_less(lr=1e-2, steps=150, by=0.15)),
    "BOTTLENECK",
    layer=("context.0", "context.2"),
    also={"LOW_RANK"},
    control=translator,
)
zoo.sick(
    "gru-translator-context-detached",
    "tune",
    lambda s: translated(s, cut=True),
    no_gradient("source", "encoder", "context"),
    "DISCONNECTED",
    layer=("context.2", "context.0", "encoder"),
    also={"DEAD"},
    control=translator,
)


FLAT = {"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"}


@torch.no_grad()
def equal_lstm(width: int) -> nn.LSTM:
    """Within each gate all units start alike."""
    rnn = nn.LSTM(8, width, batch_first=True)
    for name, weight in rnn.named_parameters():
        if name.startswith("bias"):
            weight.zero_()
            continue
        gates = weight.view(4, width, -1)
        gates.copy_(gates[:, :1].expand_as(gates).clone())
        if "hh" in name:
            weight.copy_(weight.mean(dim=1, keepdim=True).expand_as(weight))
    return rnn


default = zoo.healthy("default-lstm-width-56", "tune", lambda s: every_step(nn.LSTM(8, 56, batch_first=True), s))
zoo.sick(
    "lstm-units-alike-width-56",
    "tune",
    lambda s: every_step(equal_lstm(56), s),
    states_rank(1.2),
    "SYMMETRY",
    "LOW_RANK",
    "BOTTLENECK",
    layer="rnn",
    also=FLAT,
    control=default,
)


@torch.no_grad()
def flat_gru(width: int) -> nn.GRU:
    """The candidate state is written along one direction and reads nothing back."""
    rnn = nn.GRU(8, width, batch_first=True)
    way = torch.randn(width, 1) / 2
    rnn.weight_ih_l0[2 * width :] = way @ torch.randn(1, 8)
    rnn.weight_ih_l0[: 2 * width] = 0
    rnn.weight_hh_l0.zero_()
    rnn.bias_ih_l0.zero_()
    rnn.bias_hh_l0.zero_()
    return rnn


zoo.sick(
    "gru-candidates-along-one-direction",
    "tune",
    lambda s: every_step(flat_gru(50), s),
    states_rank(3),
    "LOW_RANK",
    "BOTTLENECK",
    layer="rnn",
    also={*FLAT, "SYMMETRY"},
    control=default,
)


@torch.no_grad()
def flat_second(width: int) -> nn.RNN:
    """The upper of two layers sees only one mix of the lower's states and forgets its own."""
    rnn = nn.RNN(8, width, 2, batch_first=True)
    rnn.weight_ih_l1.copy_(torch.randn(width, 1) @ torch.randn(1, width) / width**0.5)
    rnn.weight_hh_l1.zero_()
    rnn.bias_ih_l1.zero_()
    rnn.bias_hh_l1.zero_()
    return rnn


zoo.sick(
    "two-tanh-layers-upper-of-one-direction",
    "tune",
    lambda s: every_step(flat_second(40), s),
    states_rank(3),
    "LOW_RANK",
    "BOTTLENECK",
    layer="rnn",
    also={*FLAT, "SYMMETRY", "SATURATION"},
    control=default,
)
