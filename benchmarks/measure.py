"""What measuring costs, beside torch calls on the same memory. `python benchmarks/measure.py [--save | --small]`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gradient_flow as gf
from gradient_flow.table import kernels
from gradient_flow.table.kernels import torch_ops
from models import GPT, gpt_loss, transformer_gradients
from timing import Report, interleaved_medians

SMALL = "--small" in sys.argv
"""A few rounds on little memory: does the script run? Its figures mean nothing."""
THREADS = 1 if SMALL else 2
torch.set_num_threads(THREADS)
report = Report("measure")
ROUNDS = 2 if SMALL else 15
SMALLER = 1 << 8 if SMALL else 1
"""By how much the large tensors are smaller in small."""


def gradients_to_measure() -> list[torch.Tensor]:
    return transformer_gradients()[: 8 if SMALL else None]


def without_c(run: Callable[[], object]) -> Callable[[], object]:
    """As where there was no C compiler."""

    def patched() -> object:
        with mock.patch.object(kernels, "NATIVE", False):
            return run()

    return patched


def with_kernel(name: str, run: Callable[[], object]) -> Callable[[], object]:
    def forced() -> object:
        os.environ["GRADIENT_FLOW_KERNEL"] = name
        try:
            return run()
        finally:
            del os.environ["GRADIENT_FLOW_KERNEL"]

    return forced


def flatten_and_reduce(gradients: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    return flat.var(), flat.norm(), flat.mean(), flat.max(), flat.min()


def seven_ops(gradients: list[torch.Tensor]) -> list[list[float]]:
    """The seven documented statistics, one torch expression each."""
    rows = []
    for g in gradients:
        shares = (g.abs() < 1e-7).float().mean(), (g.abs() > 1e3).float().mean()
        rows.append([x.item() for x in (g.norm(), g.mean(), g.std(), g.min(), g.max(), *shares)])
    return rows


def transformer_figures() -> None:
    gradients = gradients_to_measure()
    parameters = [torch.nn.Parameter(torch.empty_like(g)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    elements = sum(g.numel() for g in gradients)
    report.say(f"\n{elements / 1e6:.1f} M fp32 gradients in {len(gradients)} tensors")
    table = {"full table": lambda: gf.measure(gradients)}
    passes = {
        "one torch.sum pass": lambda: [g.sum() for g in gradients],
        "clip_grad_norm_": lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e9),
    }
    flatten = {"flatten, concatenate, reduce": lambda: flatten_and_reduce(gradients)}
    seven = {"seven ops per tensor": lambda: seven_ops(gradients)}
    fallback = {"full table without the C kernel": without_c(lambda: gf.measure(gradients))}
    as_on_a_device = {"full table, torch ops, made for devices": with_kernel("torch", lambda: gf.measure(gradients))}
    ratio = {}
    for group in (passes, flatten, seven, fallback, as_on_a_device):
        rounds = 2 * ROUNDS if group is passes else ROUNDS // 5 + 1 if group is as_on_a_device else ROUNDS
        seconds = interleaved_medians({**table, **group}, rounds, before=passes["one torch.sum pass"])
        for name, value in seconds.items():
            ratio[name] = value / seconds["full table"]
            report.say(f"  {name:<66} {1e3 * value:>10.2f} ms   {ratio[name]:>8.2f} x the full table")
    name = "full table without the C kernel"
    report.figure(f"{name} / one torch.sum pass", ratio[name] / ratio["one torch.sum pass"], 8)
    report.figure("full table / one torch.sum pass", 1 / ratio["one torch.sum pass"], 1.3)
    report.figure("full table / clip_grad_norm_", 1 / ratio["clip_grad_norm_"], 0.5)
    name = "flatten, concatenate, reduce"
    report.figure(f"{name} / full table", ratio[name], 15, at_least=True)
    report.figure("seven ops per tensor / full table", ratio["seven ops per tensor"], 25, at_least=True)

    half = [g.bfloat16() for g in gradients]
    half_sum = {"sum": lambda: [g.sum() for g in half]}
    seconds = interleaved_medians({"table": lambda: gf.measure(half), **half_sum}, 2 * ROUNDS, before=half_sum["sum"])
    report.figure("bf16: full table / its own torch.sum pass", seconds["table"] / seconds["sum"], 2.0)


def small_tensor_figures() -> None:
    small = [torch.randn(64) for _ in range(10_000 // SMALLER)]
    report.say(f"\n{len(small):,} tensors of 64 elements")
    candidates = {"table": lambda: gf.measure(small), "norm": lambda: torch._foreach_norm(small)}
    seconds = interleaved_medians(candidates, 2 * ROUNDS)
    report.figure("full table / torch._foreach_norm", seconds["table"] / seconds["norm"], 0.45)


def accuracy_figures() -> None:
    count = (1 << 24) // SMALLER
    report.say(f"\nrelative error of the norm against fp64, {count:,} fp32 elements")
    for name, x in {"random": torch.randn(count), "constant 0.1": torch.full((count,), 0.1)}.items():
        exact = x.double().norm().item()
        report.figure(f"{name}: ours", abs(gf.measure(x).total.norm / exact - 1), 1e-7)
        report.say(f"  {name + ': torch.linalg.vector_norm':<66} {abs(x.norm().item() / exact - 1):>10.4g}")


def scaling_figures() -> None:
    report.say("\none tensor or many, one thread or two")
    large = torch.randn((1 << 26) // SMALLER)
    many = list(large.split((1 << 16) // SMALLER))
    seconds = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        seconds[threads] = interleaved_medians(
            {"one": lambda: gf.measure(large), "many": lambda: gf.measure(many)}, ROUNDS
        )
    torch.set_num_threads(THREADS)
    gain = {name: seconds[1][name] / seconds[2][name] for name in ("one", "many")}
    report.say(
        f"  {len(large):,} elements, two threads: {gain['one']:.2f} x as fast on one, {gain['many']:.2f} x on 1024"
    )
    report.figure("gain from threads, many tensors / one tensor", gain["many"] / gain["one"], 1.15)

    sizes = [(1 << shift) // SMALLER for shift in (20, 22, 24, 26, 28)]
    whole = torch.zeros(sizes[-1])
    whole.normal_()
    per_element = {}
    for size in sizes:
        part = whole[:size]
        median = interleaved_medians({"m": lambda part=part: gf.measure(part)}, ROUNDS if size < 1 << 26 else 5)
        per_element[size] = median["m"] / size * 1e9
    line = ", ".join(f"{size:,}: {nanoseconds:.3f} ns" for size, nanoseconds in per_element.items())
    report.say(f"  per element: {line}")
    # 1 M elements (4 MB) lie in the cache; beyond it memory sets the pace.
    largest, middle = sizes[4], sizes[2]
    what = f"{largest:,} elements / {middle:,} elements, per element"
    report.figure(what, per_element[largest] / per_element[middle], 1.2)


def training_step_figures() -> None:
    model = GPT(layers=1, width=32, heads=2, vocabulary=64, length=32) if SMALL else GPT()
    tokens = {"batch": 2, "length": 16, "vocabulary": 64} if SMALL else {"batch": 4, "length": 128}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    parameters = sum(p.numel() for p in model.parameters())
    batch = f"{tokens['batch']} x {tokens['length']}"
    report.say(f"\ntraining step of a GPT with {parameters / 1e6:.1f} M parameters, batch {batch}")

    def step(watched: bool) -> None:
        optimizer.zero_grad()
        gpt_loss(model, **tokens).backward()
        if watched:
            _ = gf.measure(model).total.norm
        optimizer.step()

    step(False)
    seconds = interleaved_medians(
        {"step": lambda: step(False), "measure": lambda: gf.measure(model).total.norm}, ROUNDS
    )
    report.figure("measuring every step / step", 100 * seconds["measure"] / seconds["step"], 1.0, unit=" %")
    seconds = interleaved_medians({"plain": lambda: step(False), "watched": lambda: step(True)}, ROUNDS)
    report.say(
        f"  {'step with measuring / plain step, timed whole':<66} {seconds['watched'] / seconds['plain']:>10.4f}"
    )


def import_figures() -> None:
    report.say("\nimport")

    both = "import numpy, gradient_flow; gradient_flow.measure"
    with tempfile.TemporaryDirectory() as compiled:  # an installation has its bytecode, a working tree need not
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = compiled

        def python(code: str) -> Callable[[], object]:
            return lambda: subprocess.run([sys.executable, "-c", code], check=True, env=env)

        python(both)()
        seconds = interleaved_medians({"numpy": python("import numpy"), "both": python(both)}, 1 if SMALL else 9)
    report.figure("import gradient_flow after numpy", 1e3 * (seconds["both"] - seconds["numpy"]), 50, unit=" ms")


class CountHostReads(TorchDispatchMode):
    reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.reads += func.overloadpacket.__name__ in ("_local_scalar_dense", "is_nonzero", "nonzero", "equal")
        return func(*args, **(kwargs or {}))


def fallback_figures() -> None:
    report.say("\ntorch ops, the way on devices without Triton")
    gradients = gradients_to_measure()[:12]
    # On a device the one sync is the transfer of the stacked rows; scalars read one by one would each be another.
    for where, is_device in (("in host memory", False), ("as on a device", True)):
        with (
            mock.patch.object(torch_ops, "on_device", lambda tensor, told=is_device: told),
            CountHostReads() as counter,
        ):
            with_kernel("torch", lambda: gf.measure(gradients))()
        report.figure(f"scalars read one by one, beside the one transfer, {where}", counter.reads, 0)


transformer_figures()
small_tensor_figures()
accuracy_figures()
training_step_figures()
scaling_figures()
import_figures()
fallback_figures()
report.close()
