"""Measurements of policies and games."""

from __future__ import annotations

import math

import torch

from validation.case import Case, Evidence, Proof, Setup, call, costly
from validation.evidence.attention import entropy
from validation.evidence.signal import judged
from validation.evidence.training import adam, train
from validation.tasks.rewards import short_of_best


def policy_entropy(setup: Setup) -> tuple[float, float | None]:
    """Share of the largest entropy of a discrete policy, mean standard deviation of a continuous one."""
    with torch.no_grad():
        logits, std, _mean, _value = setup.kwargs["action_extractor"](call(setup.model, setup.input_fn()))
    share = math.nan if logits is None else entropy(logits.softmax(-1))
    return share, None if std is None else std.mean().item()


@torch.no_grad()
def regret(setup: Setup) -> float:
    """How much less than the best a policy earns, where the target is what every action pays."""
    total = 0.0
    for _ in range(4):
        output = setup.model(setup.input_fn())
        logits = output[0] if isinstance(output, tuple) else output
        total += short_of_best(logits, setup.loss_fn.__self__.target).item() / 4
    return total


def missed(setup: Setup) -> float:
    """The same by the judgement that a task brings along."""
    return setup.loss_fn.__self__.judge(setup)


@costly
def earns_less(case: Case, seed: int) -> Evidence:
    """Each under its own optimizer, the policy misses half as much again as its twin."""
    lost = []
    for each in (case, case.control):
        setup = each.make(seed)
        train(setup, setup.steps, setup.optimizer)
        lost.append(missed(setup))
    return judged(lost[0] > 1.5 * lost[1], "misses {:.3g} of the reward, its twin {:.3g}", *lost)


def explores(low: float, high: float, worst_loss: float | None = None) -> Proof:
    """The policy's entropy share or standard deviation lies in a range; a sick one also earns too little."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        share, std = policy_entropy(setup)
        value = share if std is None else std
        with torch.no_grad():
            loss = setup.loss_fn(call(setup.model, setup.input_fn())).item()
        holds = low <= value <= high and (worst_loss is None or loss >= worst_loss)
        return judged(holds, "entropy share or deviation {:.3g}, loss {:.2f}", value, loss)

    return proof


def stays_even(steps: int, above: float = 0.98) -> Proof:
    """Trained for a while, the policy is still as good as even."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        train(setup, steps, adam(setup, 1e-3))
        share, _ = policy_entropy(setup)
        return judged(share > above, "entropy share {:.5f} after training", share)

    return costly(proof)


def field_over_time(setup: Setup, steps: int = 390, lr: float = 0.1) -> list[float]:
    """Let all players descend at once; the mean norm of the field over each third of the time."""
    players = setup.kwargs["players"]
    norms = []
    for _ in range(steps):
        output = call(setup.model, setup.input_fn())
        field = [torch.autograd.grad(loss(output), params, retain_graph=True) for loss, params in players]
        norms.append(math.sqrt(sum(g.double().square().sum().item() for part in field for g in part)))
        with torch.no_grad():
            for (_, params), part in zip(players, field, strict=True):
                for parameter, gradient in zip(params, part, strict=True):
                    parameter -= lr * gradient
    third = steps // 3
    return [sum(norms[i * third : (i + 1) * third]) / third for i in range(3)]


def circles(case: Case, seed: int) -> Evidence:
    """Simultaneous descent does not get nearer to rest."""
    thirds = field_over_time(case.make(seed))
    return judged(thirds[2] > 0.9 * thirds[1], "field over three thirds of the time {:.2f} {:.2f} {:.2f}", *thirds)


def settles(case: Case, seed: int) -> Evidence:
    """Simultaneous descent comes to rest."""
    thirds = field_over_time(case.make(seed))
    return judged(thirds[2] < 0.3 * thirds[0], "field over three thirds of the time {:.2f} {:.2f} {:.2f}", *thirds)
