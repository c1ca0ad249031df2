"""Measurements through time."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from validation.case import Case, Evidence, Proof, costly
from validation.evidence.live import lags, lasting
from validation.evidence.signal import both, effective_rank, judged, output_of, slope_share
from validation.evidence.training import adam, learns_less, train


def time_ratio(*, below: float = 0, above: float = 0) -> Proof:
    """Compare the gradient of the loss with respect to the first input of a sequence with that to the last."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        x = setup.input_fn().requires_grad_()
        setup.loss_fn(setup.model(x)).backward()
        first, last = (x.grad[:, t].double().norm().item() for t in (0, -1))
        ratio = first / last if last else math.nan
        return judged(ratio < below if below else ratio > above, "gradient to the first / last input {:.1e}", ratio)

    return proof


def learns_lag(steps: int = 60, lr: float = 3e-3, fall: float = 0.3) -> Proof:
    """Healthy twin of a memory task: the loss falls."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        run = train(setup, steps, adam(setup, lr))
        return judged(run.finite and run.fall() > fall, "loss falls by {:.0%}", run.fall())

    return costly(proof)


def apart(case: Case, seed: int) -> Evidence:
    """Two runs whose first input differs by next to nothing come apart, so the gradient through time grows."""
    setup = case.make(seed)
    x, rnn = setup.input_fn().double(), setup.model.rnn.double()
    nudged = x.clone()
    nudged[:, 0] += 1e-9
    with torch.no_grad():
        difference = (rnn(x)[0] - rnn(nudged)[0]).norm(dim=2).mean(dim=0)
    growth = (difference[-1] / difference[0]).item()
    return judged(growth > 100, "a small difference grows {:.1e} times", growth)


def states_rank(limit: float, path: str = "rnn") -> Proof:
    """The states of all steps have a low effective rank."""

    def proof(case: Case, seed: int) -> Evidence:
        states = output_of(case.make(seed), path).flatten(0, 1)
        rank = effective_rank(states - states.mean(dim=0))
        return judged(rank < limit, "states have effective rank {:.2f}", rank)

    return proof


def states_flat(kind: str, at_least: float) -> Proof:
    """Most states sit where the activation is flat."""

    def proof(case: Case, seed: int) -> Evidence:
        share = slope_share(output_of(case.make(seed), "rnn"), kind)
        return judged(share > at_least, "{:.0%} saturated", share)

    return proof


def gates_flat(at_least: float, gates: int) -> Proof:
    """The first `gates` gates of an LSTM or GRU sit at 0 or 1 for what the input alone gives them."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        rnn, x = setup.model.rnn, setup.input_fn()
        z = F.linear(x, rnn.weight_ih_l0, rnn.bias_ih_l0).detach().double()[..., : gates * rnn.hidden_size]
        share = slope_share(torch.sigmoid(z), "sigmoid")
        return judged(share > at_least, "{:.0%} of the gates flat", share)

    return proof


def forgets(lr: float = 5e-3, by: float = 0.1) -> Proof:
    """Next to no gradient reaches the first input, and the twin learns more in as many steps."""
    return both(time_ratio(below=1e-4), learns_less(lr=lr, steps=40, by=by))


FORGETS = both(lasting(time_ratio(below=1e-4)), lags(0.1))
"""Hardly any gradient gets to the first step, before training and after, and the twin learns more."""
BURSTS = lasting(time_ratio(above=1e3))
"""The gradient to the first step is far larger than that to the last, before training and after."""
