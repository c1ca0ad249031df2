"""Facts about the state of an optimizer at the end of a program, read from the optimizer itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor

from validation.evidence.loops import Fact, Played


def states(played: Played) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each parameter's state, with its group."""
    optimizer = played.program.optimizer
    assert isinstance(optimizer, torch.optim.Optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield optimizer.state[parameter], group


def eps_above_gradients(times: float = 3.0) -> Fact:
    """eps is so many times the root of the typical second moment."""

    def fact(played: Played) -> tuple[bool, str]:
        ratios = []
        for state, group in states(played):
            root = (state["exp_avg_sq"] / (1 - group["betas"][1] ** float(state["step"]))).sqrt()
            ratios.append(float(group["eps"] / root.median().clamp_min(1e-300)))
        return median(ratios) > times, f"eps is {median(ratios):.3g} times the typical gradient"

    return fact


def same_bits(share: float = 0.7) -> Fact:
    """A step leaves this share of the weights in 16 bits as they are, by their own spacing."""

    def fact(played: Played) -> tuple[bool, str]:
        lost, known = 0, 0
        optimizer = played.program.optimizer
        assert isinstance(optimizer, torch.optim.Optimizer)
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.dtype not in (torch.bfloat16, torch.float16):
                    continue
                state = optimizer.state[p]
                step = _step(state, group)
                after = (p.detach().double() - group["lr"] * step).to(p.dtype)
                meant = step != 0
                lost += int(((after == p.detach()) & meant).sum())
                known += int(meant.sum())
        reached = lost / known if known else 0.0
        return reached > share, f"a step leaves {reached:.0%} of the weights as they are"

    return fact


def _step(state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    if "exp_avg" not in state:
        buffer: Tensor = state["momentum_buffer"].double()
        return buffer
    age = float(state["step"])
    first = state["exp_avg"].double() / (1 - group["betas"][0] ** age)
    second = state["exp_avg_sq"].double() / (1 - group["betas"][1] ** age)
    return first / (second.sqrt() + group["eps"])


def shrunk(left: float = 0.7) -> Fact:
    """The weights end at less than this share of the length that they had."""

    def fact(played: Played) -> tuple[bool, str]:
        first, last = played.steps[0].size, played.steps[-1].size
        ratio = math.hypot(*last.values()) / math.hypot(*first.values())
        return ratio < left, f"weights end at {ratio:.2f} of their length"

    return fact


def no_second_moment(share: float = 0.05) -> Fact:
    """Second moments are zero where there is a first one, or the step by them was not finite."""

    def fact(played: Played) -> tuple[bool, str]:
        zero, known, broke = 0, 0, False
        for state, _ in states(played):
            there = state["exp_avg"] != 0
            broke |= not bool(torch.isfinite(state["exp_avg"]).all())
            zero += int((state["exp_avg_sq"] == 0)[there].sum())
            known += int(there.sum())
        reached = zero / max(known, 1)
        return broke or reached > share, f"{reached:.0%} of the second moments are zero, not finite: {broke}"

    return fact


def young(played: Played) -> tuple[bool, str]:
    """The state knows less than half of the steps."""
    age = max(float(state.get("step", 0)) for state, _ in states(played))
    return age < len(played.steps) / 2, f"the state is {age:g} steps old after {len(played.steps)}"


def remembers(steps: float = 50) -> Fact:
    """The momentum adds up more gradients than this."""

    def fact(played: Played) -> tuple[bool, str]:
        memory = max(1 / (1 - group["momentum"]) for _, group in states(played))
        return memory >= steps, f"the momentum remembers {memory:.0f} steps"

    return fact


def spikes(least: int = 2, times: float = 10.0) -> Fact:
    """Some gradients are so many times the usual one."""

    def fact(played: Played) -> tuple[bool, str]:
        norms = [math.hypot(*step.brought.values()) for step in played.steps]
        high = sum(norm > times * median(norms) for norm in norms)
        return high >= least, f"{high} of {len(norms)} gradients are {times:g} times the usual one"

    return fact


def jumps(times: float = 2.0, least: int = 3) -> Fact:
    """Some losses are so many times the median of the ten before."""

    def fact(played: Played) -> tuple[bool, str]:
        losses = played.program.losses
        high = sum(losses[at] > times * median(losses[at - 10 : at]) for at in range(10, len(losses)))
        return high >= least, f"{high} losses are {times:g} times those before"

    return fact


def row_rules(share: float = 0.5) -> Fact:
    """The gradient of the table of words lies in one row."""

    def fact(played: Played) -> tuple[bool, str]:
        gradient = played.program.model.words.weight.grad.double().square().sum(1)
        reached = float(gradient.max() / gradient.sum())
        return reached > share, f"one row holds {reached:.0%} of the squared norm"

    return fact


def ends_above(level: float) -> Fact:
    """The loss ends above a level."""

    def fact(played: Played) -> tuple[bool, str]:
        last = median(played.program.losses[-10:])
        return last > level, f"the loss ends at {last:.3g}"

    return fact


def logged(name: str, *, above: float | None = None, below: float | None = None) -> Fact:
    """The last tenth of what the loop logs under this name is beyond a limit, in the median."""

    def fact(played: Played) -> tuple[bool, str]:
        assert played.program.log is not None
        values = [line[name] for line in played.program.log.lines]
        last = median(values[-max(1, len(values) // 10) :])
        holds = (above is None or last > above) and (below is None or last < below)
        return holds, f"{name} ends at {last:.3g}"

    return fact
