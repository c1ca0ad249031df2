"""`gradient-flow demo`: a healthy and a sick deep network, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from gradient_flow.functional import visualize_layer_gradients
from gradient_flow.measurement import GradientTable, measure
from gradient_flow.show.profile import LayerProfile

DEPTH, WIDTH, CLASSES, FEATURES, BATCH = 9, 64, 10, 32, 128


@dataclass
class Patient:
    """A network in training and what was seen of it."""

    name: str
    model: nn.Sequential
    losses: list[float] = field(default_factory=list)
    table: GradientTable | None = None

    @property
    def profile(self) -> LayerProfile:
        """Weight gradients over depth, over all steps so far."""
        if self.table is None:
            raise RuntimeError("train first")
        linear = [name for name, module in self.model.named_modules() if isinstance(module, nn.Linear)]
        names = {f"{name}.weight": f"Layer {depth}" for depth, name in enumerate(linear)}
        layers = self.table.group(names, rest=False)
        return visualize_layer_gradients({name: stats.norm for name, stats in layers.items()})


def healthy(generator: torch.Generator) -> nn.Sequential:
    """ReLU with the initialisation that fits it."""
    return _deep(nn.ReLU, lambda weight: nn.init.kaiming_normal_(weight, generator=generator))


def sick(generator: torch.Generator) -> nn.Sequential:
    """Sigmoids in a deep stack: each passes on a quarter of the gradient at most."""
    return _deep(nn.Sigmoid, lambda weight: nn.init.xavier_normal_(weight, generator=generator))


def _deep(activation: type[nn.Module], initialise: Callable[[torch.Tensor], object]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for depth in range(DEPTH):
        linear = nn.Linear(FEATURES if depth == 0 else WIDTH, WIDTH if depth < DEPTH - 1 else CLASSES)
        initialise(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, activation()] if depth < DEPTH - 1 else [linear]
    return nn.Sequential(*layers)


def train(patients: list[Patient], steps: int, seed: int, progress: Progress) -> None:
    """Train all on the same batches, measuring every step."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    optimizers = [torch.optim.SGD(patient.model.parameters(), lr=0.05) for patient in patients]
    tasks = [progress.add_task(f"{patient.name:<24}", total=steps, loss="") for patient in patients]
    for _ in range(steps):
        target = torch.randint(CLASSES, (BATCH,), generator=generator)
        batch = centres[target] + 0.5 * torch.randn(BATCH, FEATURES, generator=generator)
        for patient, optimizer, task in zip(patients, optimizers, tasks, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(patient.model(batch), target)
            loss.backward()  # type: ignore[no-untyped-call]  # torch
            table = measure(patient.model)
            patient.table = table if patient.table is None else patient.table.merge(table)
            optimizer.step()
            patient.losses.append(loss.item())
            progress.update(task, advance=1, loss=f"loss {patient.losses[-1]:.3f}")


def run(steps: int, seed: int, console: Console | None = None) -> list[Patient]:
    """Train both networks with a progress bar and print both profiles with their verdicts."""
    console = console or Console()
    generator = torch.Generator().manual_seed(seed)
    patients = [
        Patient("ReLU, He initialisation", healthy(generator)),
        Patient("Sigmoid, Xavier", sick(generator)),
    ]
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        train(patients, steps, seed, progress)
    chance = math.log(CLASSES)
    panels = []
    for patient in patients:
        end = sum(patient.losses[-10:]) / len(patient.losses[-10:])
        colour = "green" if patient.profile.status == "stable" else "red"
        subtitle = f"loss {patient.losses[0]:.2f} → {end:.2f}   guessing: {chance:.2f}"
        panels.append(
            Panel(str(patient.profile), title=patient.name, subtitle=subtitle, border_style=colour, expand=False)
        )
    console.print(Columns(panels) if console.width >= 130 else "", *([] if console.width >= 130 else panels), sep="\n")
    console.print(
        "Norms of the weight gradients over all steps. Same data, depth and optimizer:\n"
        "only what the gradient passes through on its way back differs."
    )
    return patients
