"""What an analysis costs beside the passes that it looks at. `python benchmarks/analyzer.py [--quick] [--save]`.

`--quick` shows in a round of two steps that everything runs; its figures mean nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gradient_flow.faces.analyzers import GradientFlowAnalyzer
from gradient_flow.probes.attention.probe import AttentionProbe
from gradient_flow.probes.recurrent.probe import RecurrentProbe
from models import GPT
from timing import Report, interleaved_medians

torch.set_num_threads(2)
torch.manual_seed(0)
QUICK = "--quick" in sys.argv
STEPS = 2 if QUICK else 20
HIDDEN, BATCH, LENGTH = 512, 32, 50
report = Report("analyzer")


def rounds(usual: int) -> int:
    return 1 if QUICK else usual


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def cnn() -> nn.Module:
    widths = (3, 32, 64, 128)
    blocks = [
        part
        for before, after in pairwise(widths)
        for part in (nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))
    ]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(128 * 16, 10))


def scalar_analysis(name: str, model: nn.Module, inputs: torch.Tensor, classes: int, usual: int) -> None:
    """Twenty steps of the general analyzer against as many plain passes on the same batch."""
    labels = torch.randint(classes, model(inputs).shape[:-1]).flatten()

    def loss_of(output: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.flatten(0, -2), labels)

    def plain() -> None:
        for _ in range(STEPS):
            model.zero_grad()
            loss_of(model(inputs)).backward()

    def analyzed() -> None:
        GradientFlowAnalyzer(model).analyze(lambda: inputs, loss_of, steps=STEPS)

    seconds = interleaved_medians({"plain": plain, "analyzed": analyzed}, rounds(usual))
    size = sum(parameter.numel() for parameter in model.parameters())
    report.say(f"\n{name}, {size / 1e6:.2g} M parameters, {1e3 * seconds['plain'] / STEPS:.3g} ms per plain pass")
    ratio = seconds["analyzed"] / seconds["plain"]
    report.figure(f"{STEPS} analysis steps, scalar only / {STEPS} plain passes", ratio, 1.1)


class Recurrent(nn.Module):
    """A recurrent layer that is read at its last step."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.rnn, self.head = kind(64, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.rnn(x)[0][:, -1]
        result: torch.Tensor = self.head(output)
        return result


def recurrent_dynamics(kind: Callable[..., nn.Module]) -> None:
    """A pass with the probe around it, and all that the probe computes, against one training step."""
    model = Recurrent(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs, labels = torch.randn(BATCH, LENGTH, 64), torch.randint(10, (BATCH,))

    def backward() -> torch.Tensor:
        optimizer.zero_grad()
        output: torch.Tensor = model(inputs)
        F.cross_entropy(output, labels).backward()
        return output

    def step() -> None:
        backward()
        optimizer.step()

    def probed() -> Any:
        with RecurrentProbe(model) as probe:
            output = backward()
            probe.after_step(inputs, output)
        return probe.result()

    if probed() is None:
        raise SystemExit("the probe saw no recurrent part: there is nothing to time")
    seconds = interleaved_medians({"step": step, "backward": backward, "probed": probed}, rounds(15))
    report.say(
        f"\n{kind.__name__}, hidden size {HIDDEN}, batch {BATCH} x {LENGTH}, {1e3 * seconds['step']:.3g} ms a step"
    )
    report.figure("the dynamics / one training step", (seconds["probed"] - seconds["backward"]) / seconds["step"], 3.0)
    whole = seconds["probed"] / seconds["step"]
    report.say(f"  {'with the pass that they are taken from / one training step':<66} {whole:>10.4g}")


def attention_statistics(layers: int = 12, length: int = 512, batch: int = 2) -> None:
    """A forward with the probe around it, which looks at some of the queries, against the forward alone."""
    model = GPT(layers=layers, length=length)
    tokens = torch.randint(8192, (batch, length))

    def plain() -> None:
        model(tokens)

    def probed() -> Any:
        with AttentionProbe(model) as probe:
            probe.after_step(tokens, model(tokens))
        return probe.result()

    seen = probed()
    if seen is None or len(seen.layers) != layers:
        raise SystemExit("the probe did not see all layers: there is nothing to time")
    seconds = interleaved_medians({"plain": plain, "probed": probed}, rounds(15))
    report.say(f"\nGPT of {layers} layers, batch {batch} x {length}, {1e3 * seconds['plain']:.3g} ms a forward")
    ratio = seconds["probed"] / seconds["plain"]
    report.figure("forward with attention statistics / plain forward", ratio, 1.15)


scalar_analysis("MLP, batch 128", mlp(), torch.randn(128, 784), 10, 15)
scalar_analysis("CNN, batch 32 of 32 x 32", cnn(), torch.randn(32, 3, 32, 32), 10, 9)
scalar_analysis("GPT-14M, batch 4 x 128", GPT(), torch.randint(8192, (4, 128)), 8192, 5)
for kind in (nn.RNN, nn.GRU, nn.LSTM):
    recurrent_dynamics(kind)
attention_statistics()
report.close()
