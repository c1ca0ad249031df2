"""What a tensor costs in models of 10, 1,000 and 20,000 of them: it has to stay the same, or the cost is not linear.

`python benchmarks/tensors.py [--small] [--save]`; `--small` leaves out the 20,000.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import gradient_flow as gf
from timing import Report, interleaved_medians

SMALL = "--small" in sys.argv
COUNTS = (10, 1_000) if SMALL else (10, 1_000, 20_000)
ROUNDS = 3 if SMALL else 7
LOOKS = 8
"""Tables that a verdict is taken over."""
GOAL = 2.0
"""Most that a tensor among 20,000 may cost, in tensors among 1,000. What is quadratic would cost twenty."""

torch.set_num_threads(1)
report = Report("tensors")


class Still(torch.optim.Optimizer):
    """Steps that cost nothing, so that what is timed is ours."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self) -> None: ...


def model_of(count: int) -> nn.Module:
    model = nn.Module()
    for at in range(count):
        parameter = nn.Parameter(torch.full((4, 4), 0.5))
        parameter.grad = torch.full((4, 4), 0.1)
        model.register_parameter(f"tensor{at}", parameter)
    return model


def costs_of(count: int, folder: Path) -> dict[str, Callable[[], object]]:
    """What is timed, by name. Watches stay open: what they hold is part of the cost."""
    model, gradients = model_of(count), list(model_of(count).parameters())
    parameters = list(model.parameters())
    stepping, looking, clipping = Still(parameters), Still(parameters), Still(gradients)
    kept.append(gf.watch(model, stepping, layers_every=10**9))
    looks = gf.watch(model, looking, layers_every=1, run=folder / str(count))
    clipped = nn.ParameterList(gradients)
    kept.extend([model, clipped, looks])
    for _ in range(LOOKS):
        looking.step()
    run = looks.run
    table, absent = run.table(run.table_steps[-1]), gf.GradientTable((), [], missing=[f"{at}" for at in range(count)])

    def clip() -> None:
        nn.utils.clip_grad_norm_(gradients, 1.0)
        clipping.step()

    def watched_clip() -> None:
        with gf.watch(clipped, clipping):
            clip()

    each = [Still([parameter]) for parameter in model_of(count).parameters()]
    in_backward = model_of(0)
    for at, optimizer in enumerate(each):
        (parameter,) = optimizer.param_groups[0]["params"]
        in_backward.register_parameter(f"tensor{at}", parameter)
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    kept.extend([in_backward, gf.watch(in_backward, each)])

    def backward() -> None:
        torch.stack([parameter.sum() for parameter in in_backward.parameters()]).sum().backward()

    return {
        "a watch, begun and ended": lambda: gf.watch(model, stepping_of(model)).close(),
        "a recorded step": stepping.step,
        "a look": looking.step,
        "a watched clip, with its watch": watched_clip,
        "optimizers inside backward, with the backward": backward,
        "a verdict": looks.diagnose,
        "reading a run and a table": lambda: (read := gf.load_run(looks.path)).table(read.table_steps[-1]),
        "merging two tables": lambda: table.merge(absent),
    }


def stepping_of(model: nn.Module) -> torch.optim.Optimizer:
    return Still(model.parameters())


kept: list[object] = []


def main() -> None:
    report.say(f"\ncost per tensor in µs, and as a multiple of that among 1,000 ({ROUNDS} rounds, fp32, 16 elements)")
    with tempfile.TemporaryDirectory() as folder:
        seconds = {count: interleaved_medians(costs_of(count, Path(folder)), ROUNDS) for count in COUNTS}
        for name in seconds[COUNTS[0]]:
            each = {count: seconds[count][name] / count for count in COUNTS}
            told = ", ".join(
                f"{count:,}: {1e6 * cost:.3g} µs ({cost / each[1_000]:.2f} x)" for count, cost in each.items()
            )
            report.say(f"  {name}: {told}")
            if 20_000 in each:
                report.figure(f"{name}: 20,000 / 1,000 tensors, per tensor", each[20_000] / each[1_000], GOAL)
        for flow in kept:
            if isinstance(flow, gf.Flow):
                flow.close()
    report.close()


main()
