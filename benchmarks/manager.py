"""What guarding and clipping cost beside torch's own clipping. `python benchmarks/manager.py [--save] [--million]`."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

import gradient_flow as gf
from models import GPT, gpt_loss, transformer_gradients
from timing import Report, interleaved_medians

torch.set_num_threads(2)
logging.getLogger("gradient_flow").setLevel(logging.ERROR)  # twenty thousand planted NaN are no news
report = Report("manager")


def many_parameters(scale: float) -> nn.ParameterList:
    gradients = transformer_gradients(scale)
    parameters = nn.ParameterList([nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients])
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return parameters


def manager(**settings) -> gf.GradientManager:
    return gf.GradientManager(gf.GradientConfig(**settings))


def clipping_costs() -> None:
    model = many_parameters(1e-6)
    count = sum(p.numel() for p in model)
    report.say(f"\n{count / 1e6:.1f} M fp32 gradients in {len(model)} tensors")
    idle, busy = manager(max_grad_norm=1.0, nonfinite="skip"), manager(max_grad_norm=1.0, nonfinite="skip")
    clipped = many_parameters(1e-2)
    restore = torch._foreach_mul_

    def clip_again() -> None:
        busy.step(clipped, None, None)

    def grow() -> None:
        # Back to a norm above the limit, outside the measured time.
        restore([p.grad for p in clipped], 50.0)
        gc.collect(0)

    candidates = {
        "clip_grad_norm_": lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        "manager, nothing to clip": lambda: idle.step(model, None, None),
        "manager, clips": clip_again,
        "clip_grad_norm_, clips": lambda: torch.nn.utils.clip_grad_norm_(clipped.parameters(), 1.0),
    }
    seconds = interleaved_medians(candidates, rounds=31, before=grow)
    assert idle.clipped_steps == 0
    assert busy.clipped_steps == busy.total_steps
    base = seconds["clip_grad_norm_"]
    for name, value in seconds.items():
        report.say(f"    {name:<64} {1e3 * value:>10.2f} ms")
    idle_ratio = seconds["manager, nothing to clip"] / base
    report.figure("measure + guard + health, nothing to clip / clip_grad_norm_", idle_ratio, 0.6)
    report.figure("the same, every step clipped / clip_grad_norm_", seconds["manager, clips"] / base, 1.2)


def share_of_a_step() -> None:
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)  # the step that benchmarks/overhead.py takes too
    plain = interleaved_medians({"step": lambda: train_step(model, optimizer)}, rounds=10)["step"]
    everything = manager(clip_type="adaptive", nonfinite="skip")
    every_step = manager(max_grad_norm=1e-3, nonfinite="skip")
    gpt_loss(model).backward()
    candidates = {
        "adaptive clipping (one step in twenty clips), guard, health, statistics": lambda: ten_steps(everything, model),
        "the same, every step clipped": lambda: ten_steps(every_step, model, tighter=0.999),
    }
    added = interleaved_medians(candidates, rounds=15)
    report.say(f"\ntraining step of a GPT with {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    first, second = added
    report.figure(f"  {first}", 100 * added[first] / 10 / plain, 1.0, unit=" %")
    report.say(f"    {second:<66} {100 * added[second] / 10 / plain:>8.3g} %")
    assert every_step.clipped_steps == every_step.total_steps


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    gpt_loss(model).backward()
    optimizer.step()


def ten_steps(this: gf.GradientManager, model: nn.Module, tighter: float = 1.0) -> None:
    for _ in range(10):
        this.config.max_grad_norm *= tighter  # below what the last step clipped to: this one clips again
        this.step(model, None, None)


def resident() -> int:
    """Bytes of memory that this process holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_over(steps: int) -> None:
    """Every history is full after 10,000 steps; from then on memory must not grow."""
    parameter = nn.Parameter(torch.zeros(8))
    model = nn.ParameterList([parameter])
    this = manager(clip_type="adaptive", nonfinite="skip", max_consecutive_skips=10, max_total_skips=None)
    good, bad = torch.randn(8), torch.full((8,), float("nan"))
    start, marks = time.time(), []
    for step in range(steps):
        parameter.grad = (bad if step % 50 == 0 else good).clone()
        this.step(model, None, None)
        if step + 1 in (10_000, steps):
            marks.append(resident())
        if sys.stderr.isatty() and step % 1000 == 0:
            print(f"\r  step {step:,} of {steps:,} ", end="", file=sys.stderr)
    report.say(f"\n{steps:,} steps, one in fifty with NaN, {1e6 * (time.time() - start) / steps:.0f} µs each")
    report.figure("memory of the process at the end / after 10,000 steps", marks[-1] / marks[0], 1.01)


if __name__ == "__main__":
    clipping_costs()
    share_of_a_step()
    memory_over(1_000_000 if "--million" in sys.argv else 50_000)
    report.close()
