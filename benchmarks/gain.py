"""What monitoring the blocks of a 12-layer GPT costs. `python benchmarks/gain.py [--save | --small]`."""

from __future__ import annotations

import sys

import torch
from torch import nn

from gradient_flow import GradientGainMonitor
from models import GPT, gpt_loss
from timing import Report, interleaved_medians

SMALL = "--small" in sys.argv
"""A few rounds on a tiny model: does the script run? Its figures mean nothing."""
torch.set_num_threads(1 if SMALL else 2)
LAYERS, WIDTH, BATCH, LENGTH = (2, 32, 2, 16) if SMALL else (12, 384, 4, 128)
ROUNDS = 2 if SMALL else 15
report = Report("gain")


class PlainHooks:
    """A forward hook per block that puts a gradient hook on its output, as anyone would write them."""

    def __init__(self, blocks, read):
        def attach(_module, _inputs, output):
            output.register_hook(read)

        self.handles = [block.register_forward_hook(attach) for block in blocks]

    def close(self):
        for handle in self.handles:
            handle.remove()


def read_once(gradient):
    gradient.sum()


def norm_item(gradient):
    gradient.norm().item()


class Identity(nn.Module):
    def forward(self, x):
        return x * 1.0


def cost_of_hooks(batch: int, length: int) -> dict[str, float]:
    """Seconds per pass that each kind of hook adds to a stack of blocks that do next to nothing."""
    blocks = nn.ModuleList(Identity() for _ in range(LAYERS))
    x = torch.randn(batch, length, WIDTH, requires_grad=True)
    gradient = torch.randn(batch, length, WIDTH)

    def run():
        h = x
        for block in blocks:
            h = block(h)
        h.backward(gradient)

    def with_hooks(make):
        def timed():
            hooks = make()
            try:
                for _ in range(5):
                    run()
            finally:
                hooks.close()

        return timed

    monitor = GradientGainMonitor(blocks, strict_single_backward=False)
    monitor.pause()

    class Resumed:
        def __init__(self):
            monitor.resume()

        def close(self):
            monitor.pause()

    class Nothing:
        def close(self):
            pass

    class Paused(Nothing):
        pass

    seconds = interleaved_medians(
        {
            "none": with_hooks(Nothing),
            "monitor": with_hooks(Resumed),
            "read once": with_hooks(lambda: PlainHooks(blocks, read_once)),
            ".norm().item()": with_hooks(lambda: PlainHooks(blocks, norm_item)),
            "paused": with_hooks(Paused),
        },
        4 * ROUNDS + 1,
    )
    return {name: (value - seconds["none"]) / 5 for name, value in seconds.items()}


def step_figures(costs: dict[str, float]) -> None:
    vocabulary = 64 if SMALL else 8192
    model = GPT(layers=LAYERS, width=WIDTH, heads=2 if SMALL else 6, vocabulary=vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    parameters = sum(p.numel() for p in model.parameters())
    report.say(f"\nGPT of {LAYERS} layers, {parameters / 1e6:.1f} M parameters, batch {BATCH} x {LENGTH}")
    monitor = GradientGainMonitor(model.blocks, strict_single_backward=False)
    monitor.pause()

    def step():
        optimizer.zero_grad()
        gpt_loss(model, BATCH, LENGTH, vocabulary).backward()
        optimizer.step()

    def monitored():
        monitor.resume()
        step()
        monitor.summary_stats()
        monitor.pause()

    seconds = interleaved_medians({"plain": step, "monitored": monitored, "paused": step}, ROUNDS)
    report.figure("cost of all hooks / step", 100 * costs["monitor"] / seconds["plain"], 1.0, unit=" %")
    for name in ("monitored", "paused"):
        report.say(f"  {name + ' step / plain step, timed whole':<66} {seconds[name] / seconds['plain']:>10.4f}")


# The smaller gradients are still in the cache when the hook reads them; the larger ones come from memory.
for batch, length in ((8 * BATCH, 4 * LENGTH), (BATCH, LENGTH)):
    size = batch * length * WIDTH * 4 / 2**20
    report.say(
        f"\nhooks on {LAYERS} outputs of {batch} x {length} x {WIDTH} ({size:.1f} MiB each), added time per pass"
    )
    costs = cost_of_hooks(batch, length)
    for name, value in costs.items():
        if name != "none":
            report.say(f"  {name:<66} {1e3 * value:>10.3f} ms")
    report.figure("monitor / hooks that read the gradient once", costs["monitor"] / costs["read once"], 1.5)
    report.say(f"  {'hooks calling .norm().item() / monitor':<66} {costs['.norm().item()'] / costs['monitor']:>10.4g}")
step_figures(costs)
report.close()
