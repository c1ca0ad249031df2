"""Does the state of Adam announce a spike before the norm of gradients does?

    python -m validation.forecast                 # 8 seeds of each kind
    python -m validation.forecast --seeds 2 --steps 120

Spikes are induced in a small network: a learning rate raised too high, a β2 so high that the second moment is stale
when gradients grow, a bad batch, and labels that turn to noise; undisturbed runs are beside them. A spike begins at
the first step whose loss is twice the median of the 30 before. A detector is right if it first fires in the 25 steps
before that, and wrong if it fires in a run without a spike, or earlier. Each detector has one threshold, chosen on even
seeds by its F1 score and reported on odd ones.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median, pstdev

import torch
import torch.nn.functional as F
from torch import nn

WINDOW, BEFORE, WARM = 30, 25, 40
KINDS = ("rate", "beta2", "batch", "labels", "none")


@dataclass(frozen=True)
class Course:
    """A run, step by step: what each detector could see before the next step."""

    kind: str
    seed: int
    losses: list[float]
    norms: list[float]
    updates: list[float]
    stale: list[float]

    @property
    def spike(self) -> int | None:
        """The first step whose loss is twice the usual one."""
        for at in range(WARM, len(self.losses)):
            if not math.isfinite(self.losses[at]) or self.losses[at] > 2 * median(self.losses[at - WINDOW : at]):
                return at
        return None


def course(kind: str, seed: int, steps: int) -> Course:
    """Train, and disturb it at about two thirds of the way."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 6))
    betas = (0.9, 0.9999) if kind == "beta2" else (0.9, 0.99)
    start = 2e-2 if kind == "beta2" else 3e-3
    optimizer = torch.optim.Adam(model.parameters(), lr=start, betas=betas)
    answer, at = torch.randn(16, 6), steps * 2 // 3 + seed % 7
    found: dict[str, list[float]] = {"losses": [], "norms": [], "updates": [], "stale": []}
    for step in range(steps):
        x = torch.randn(64, 16)
        y, weight = (x @ answer).argmax(1), 1.0
        if kind == "rate" and step >= at:
            optimizer.param_groups[0]["lr"] = start * 1.25 ** (step - at)
        if kind == "beta2" and step >= at:  # gradients grow by a half each step, and the second moment has not seen it
            weight = min(1.5 ** (step - at), 1e4)
        if kind == "batch" and step == at:
            y = (y + 1) % 6
        if kind == "labels" and step >= at:
            noisy = torch.rand(64) < min(1.0, 0.05 * (step - at))
            y = torch.where(noisy, torch.randint(6, (64,)), y)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        (loss * weight).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        moved = [p.detach() - b for p, b in zip(model.parameters(), before, strict=True)]
        rate = optimizer.param_groups[0]["lr"]
        found["losses"].append(loss.item())
        found["norms"].append(_norm(gradients))
        found["updates"].append(_norm(moved) / start if rate else 0.0)
        found["stale"].append(_stale(optimizer, gradients))
    return Course(kind, seed, **found)


def _norm(tensors: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def _stale(optimizer: torch.optim.Optimizer, gradients: list[torch.Tensor]) -> float:
    group, total, count = optimizer.param_groups[0], 0.0, 0
    for parameter, gradient in zip(group["params"], gradients, strict=True):
        state = optimizer.state[parameter]
        second = state["exp_avg_sq"] / (1 - group["betas"][1] ** float(state["step"]))
        total += float((gradient.square() / second.clamp_min(group["eps"] ** 2)).sum())
        count += gradient.numel()
    return math.sqrt(total / count)


def scores(values: list[float]) -> list[float]:
    """How far each value is above the 30 before it, in deviations."""
    found = [0.0] * len(values)
    for at in range(WARM, len(values)):
        before = values[at - WINDOW : at]
        found[at] = (values[at] - mean(before)) / (pstdev(before) + 0.05 * abs(mean(before)) + 1e-12)
    return found


DETECTORS: dict[str, Callable[[Course], list[float]]] = {
    "z-score of the gradient norm": lambda run: scores(run.norms),
    "z-score of the update norm": lambda run: scores(run.updates),
    "stale second moment": lambda run: run.stale,
    "update or stale": lambda run: [max(a, 4 * (b - 1)) for a, b in zip(scores(run.updates), run.stale, strict=True)],
}


@dataclass(frozen=True)
class Outcome:
    """What a detector is worth at one threshold."""

    precision: float
    recall: float
    lead: float
    kinds: tuple[str, ...] = ()
    """Of the spikes that were announced."""

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def judged(runs: list[Course], signals: list[list[float]], threshold: float) -> Outcome:
    """Fire at the first step above the threshold; the step of the spike itself is too late."""
    right, wrong, spikes, leads, kinds = 0, 0, 0, [], []
    for run, signal in zip(runs, signals, strict=True):
        spike = run.spike
        spikes += spike is not None
        end = len(signal) if spike is None else spike
        first = next((at for at in range(WARM, end) if signal[at] > threshold), None)
        if first is None:
            continue
        if spike is not None and spike - first <= BEFORE:
            right += 1
            leads.append(spike - first)
            kinds.append(run.kind)
        else:
            wrong += 1
    fired = right + wrong
    lead = float(median(leads)) if leads else 0.0
    return Outcome(right / fired if fired else 0.0, right / spikes if spikes else 0.0, lead, tuple(sorted(kinds)))


def compared(runs: list[Course]) -> dict[str, tuple[float, Outcome]]:
    """Each detector at the threshold that is best on even seeds, judged on odd ones."""
    chosen: dict[str, tuple[float, Outcome]] = {}
    even = [run for run in runs if run.seed % 2 == 0]
    odd = [run for run in runs if run.seed % 2]
    for name, detector in DETECTORS.items():
        known = [detector(run) for run in even]
        levels = sorted({round(value, 2) for signal in known for value in signal[WARM:] if value > 0.5})
        levels = levels[:: max(1, len(levels) // 200)] or [1.0]
        best = max(levels, key=lambda level: (judged(even, known, level).f1, level))
        chosen[name] = best, judged(odd, [detector(run) for run in odd], best)
    return chosen


def main(arguments: list[str] | None = None) -> dict[str, tuple[float, Outcome]]:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=150)
    asked = parser.parse_args(arguments)
    runs = [course(kind, seed, asked.steps) for kind in KINDS for seed in range(asked.seeds)]
    spiking = sum(run.spike is not None for run in runs if run.seed % 2)
    found = compared(runs)
    print(f"{sum(run.seed % 2 for run in runs)} runs set aside, {spiking} of them with a spike of the loss.\n")
    print("| detector | threshold | precision | recall | F1 | lead, steps | announced |\n|---|--:|--:|--:|--:|--:|---|")
    for name, (level, outcome) in found.items():
        numbers = f"{outcome.precision:.0%} | {outcome.recall:.0%} | {outcome.f1:.2f} | {outcome.lead:g}"
        kinds = ", ".join(f"{kind} {outcome.kinds.count(kind)}" for kind in KINDS if kind in outcome.kinds)
        print(f"| {name} | {level:.2f} | {numbers} | {kinds or 'none'} |")
    by_kind = ", ".join(
        f"{kind} {sum(r.spike is not None for r in runs if r.kind == kind and r.seed % 2)}" for kind in KINDS
    )
    print(f"\nSpikes set aside by kind: {by_kind}.")
    return found


if __name__ == "__main__":
    main()
