"""What measuring costs on the accelerator of this machine, in two minutes.

`python benchmarks/device.py [--save | --small]`.

Table against a sum pass and `clip_grad_norm_`, launches and waits per recorded step, share of a training step. It runs
on the CPU too, and says which device it measured. With `--save` the lines are kept in `results/device_*.txt`.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gradient_flow as gf
from gradient_flow.capture import arrivals
from gradient_flow.table import kernels
from models import GPT, transformer_gradients
from timing import Report

SMALL = "--small" in sys.argv
ROUNDS = 3 if SMALL else 21


def best_device() -> torch.device:
    return torch.accelerator.current_accelerator() or torch.device("cpu")


DEVICE = best_device()
report = Report(f"device_{DEVICE.type}")


def wait() -> None:
    if DEVICE.type != "cpu":
        torch.accelerator.synchronize()


def medians(candidates: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds until the device is done, in turn, round after round."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for index in range(ROUNDS + 2):
        for name, run in candidates.items():
            wait()
            start = time.perf_counter()
            run()
            wait()
            if index > 1:  # the first compiles
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


class Launches(TorchDispatchMode):
    """Operations of torch that compute; launches of Triton come on top."""

    def __init__(self) -> None:
        super().__init__()
        self._before = launches_of_triton()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += not func.is_view and func.overloadpacket.__name__ not in ("detach", "alias", "empty")
        return func(*args, **(kwargs or {}))

    @property
    def all(self) -> int:
        return self.count + launches_of_triton() - self._before


def launches_of_triton() -> int:
    module = sys.modules.get("gradient_flow.table.kernels.triton_ops")
    return 0 if module is None else module.LAUNCHES.count


def kernel_in_use() -> str:
    if DEVICE.type == "cpu":
        return kernels.describe()
    return "Triton" if kernels._by_triton(DEVICE.type, kernels.forced()) else "torch ops, gathered in buckets"


def table_figures(dtype: torch.dtype) -> None:
    made = transformer_gradients()[: 12 if SMALL else None]
    gradients = [gradient.to(DEVICE, dtype) for gradient in made]
    parameters = [torch.nn.Parameter(torch.empty_like(g)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    elements = sum(g.numel() for g in gradients)
    report.say(f"\n{elements / 1e6:.1f} M gradients of {dtype} in {len(gradients)} tensors")
    seconds = medians(
        {
            "one torch.sum pass": lambda: [g.sum() for g in gradients],
            "clip_grad_norm_": lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e9),
            "full table, queued": lambda: gf.measure(gradients),
            "full table, read": lambda: gf.measure(gradients).total.norm,
        }
    )
    for name, value in seconds.items():
        share = value / seconds["one torch.sum pass"]
        bandwidth = elements * gradients[0].element_size() / value / 1e9
        report.say(f"  {name:<40} {1e3 * value:>10.3f} ms {share:>8.2f} x a sum pass {bandwidth:>8.1f} GB/s")
    with Launches() as counted:
        gf.measure(gradients)
    report.say(f"  {'operations and launches of a table':<40} {counted.all:>10}")


def step_figures() -> None:
    torch.manual_seed(0)
    model = GPT(layers=1, width=64, heads=2, vocabulary=256) if SMALL else GPT()
    model.to(DEVICE)
    vocabulary = model.tokens.num_embeddings
    tokens = torch.randint(vocabulary, (4, 129), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    def watched() -> None:
        with gf.watch(model, optimizer, looks=False, layers_every=10**6):
            for _ in range(10):
                step()

    def plain() -> None:
        for _ in range(10):
            step()

    size = sum(p.numel() for p in model.parameters())
    report.say(f"\ntraining step of a GPT with {size / 1e6:.1f} M parameters, batch 4 x 128; ten steps at a time")
    seconds = medians({"plain": plain, "watched": watched})
    for name, value in seconds.items():
        report.say(f"  {name:<40} {1e2 * value:>10.3f} ms per step")
    extra = 100 * (seconds["watched"] / seconds["plain"] - 1)
    report.say(f"  {'watching, as a share of the step':<40} {extra:>10.2f} %")
    with gf.watch(model, optimizer, looks=False, layers_every=10**6):
        step()
        before = arrivals.WAITS.count
        with Launches() as with_watch:
            step()
        waits = arrivals.WAITS.count - before
    with Launches() as without:
        step()
    report.say(f"  {'operations and launches of a recorded step':<40} {with_watch.all - without.all:>10}")
    report.say(f"  {'waits of a recorded step':<40} {waits:>10}")


name = DEVICE.type if DEVICE.type != "cuda" else torch.cuda.get_device_name(DEVICE)
report.say(f"measured on: {name}; kernel: {kernel_in_use()}; threads: {os.environ.get('OMP_NUM_THREADS', 'all')}")
for dtype in (torch.float32, torch.bfloat16):
    table_figures(dtype)
step_figures()
report.close()
