# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Programs that look broken and are right.

Half: tune.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

from validation.case import Program, Zoo
from validation.evidence.loops import keeps, learns
from validation.nets import Block, ConvNet, LanguageModel, he_, mlp
from validation.programs import adam, fit, held_out, sgd, train_step
from validation.tasks import blobs, images, markov, patches, regression, token_loss

zoo = Zoo("loop", half="tune", proof=learns())

# --- not everything trains at every step


class Experts(nn.Module):
    """Each sample goes to one expert; the gate knows more experts than the data needs."""

    def __init__(self, experts: int = 6) -> None:
        super().__init__()
        self.gate = nn.Linear(24, experts)
        self.experts = nn.ModuleList(mlp([24, 32, 6]) for _ in range(experts))
        with torch.no_grad():
            self.gate.bias[-1] = -30.0  # an expert in reserve

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        chosen, out = weights.argmax(-1), torch.zeros(len(x), 6)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * weights[rows, i : i + 1])
        return out


def experts(seed: int) -> Program:
    model = Experts()
    return fit(model, blobs(seed, 24, 6, 64), adam(model, 5e-3))


zoo.healthy("experts-one-in-reserve", experts, learns(idle=("experts.5",)))


class Heads(nn.Module):
    """A trunk and two heads that take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(24, 64), nn.ReLU())
        self.first, self.second = nn.Linear(64, 6), nn.Linear(64, 6)

    def forward(self, x: Tensor, second: bool = False) -> Tensor:
        return (self.second if second else self.first)(self.trunk(x))


def taking_turns(seed: int) -> Program:
    model, task = Heads(), blobs(seed, 24, 6, 64)
    optimizer = adam(model)
    losses: list[float] = []

    def run() -> None:
        for step, (x, y) in zip(range(100), task, strict=False):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x, second=step % 2 == 1), y if step % 2 == 0 else (y + 1) % 6)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


zoo.healthy("heads-take-turns", taking_turns)


class DropPath(nn.Module):
    """Residual branches of which each is left out in some steps."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(24, 48), nn.Linear(48, 6)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 48), nn.GELU()) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for branch in self.branches:
            if not self.training or torch.rand(()) > 0.4:
                x = x + branch(x)
        return self.head(x)


def left_out(seed: int) -> Program:
    model = DropPath()
    return fit(model, blobs(seed, 24, 6, 64), torch.optim.AdamW(model.parameters(), lr=2e-3))


zoo.healthy("drop-path-0.4", left_out)


def thawing(seed: int) -> Program:
    """Layer by layer from the top, each in a group of its own."""
    model, task = he_(mlp([24, 48, 48, 6])), blobs(seed, 24, 6, 64)
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    optimizer = torch.optim.Adam(model[4].parameters(), lr=3e-3)
    losses: list[float] = []

    def run() -> None:
        for step, (x, y) in zip(range(90), task, strict=False):
            if step in (30, 60):
                layer = model[2 if step == 30 else 0].requires_grad_(True)
                optimizer.add_param_group({"params": list(layer.parameters()), "lr": 1e-3})
            losses.append(train_step(model, optimizer, x, y))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


zoo.healthy("thaws-from-the-top", thawing)


def fixed_backbone(seed: int) -> Program:
    """A trained backbone stays as it is, its batch norms in evaluation mode; a new head learns."""
    model, task = ConvNet([3, 16, 24], 8, norm=nn.BatchNorm2d, pool=(0,)), images(seed, size=8)
    first = fit(model, images(seed + 50, size=8), adam(model), 60)
    first.run()
    for module in (model.convs, model.norms):
        module.requires_grad_(False)
    model.zero_grad(set_to_none=True)
    model.head = nn.Linear(24, 8)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    losses: list[float] = []

    def run() -> None:
        model.train()
        model.norms.eval()
        for (x, y), _ in zip(task, range(80), strict=False):
            losses.append(train_step(model, optimizer, x, y))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


zoo.healthy("backbone-frozen-norms-in-eval", fixed_backbone)

# --- rates, clipping, sums


def warm_and_cold(seed: int) -> Program:
    """From 0 over ten steps, then by a cosine to nothing."""
    model, task = LanguageModel(20, 32, 2, 1), markov(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = LambdaLR(
        optimizer, lambda i: i / 10 if i < 10 else 0.5 * (1 + math.cos(math.pi * min(1, (i - 10) / 90)))
    )

    return fit(model, task, optimizer, 100, token_loss, after=lambda _: scheduler.step())


zoo.healthy("warm-up-and-cosine-to-zero", warm_and_cold)


def always_clipped(seed: int, limit: float, make=lambda p: torch.optim.AdamW(p, lr=2e-3, betas=(0.9, 0.95))) -> Program:
    model, task = LanguageModel(20, 32, 2, 2), markov(seed)
    optimizer = make(model.parameters())
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            loss = token_loss(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            losses.append(loss.item())

    score = held_out(model, task, token_loss)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("clipped-at-every-step-adamw-0.1", lambda s: always_clipped(s, 0.1))
zoo.healthy(
    "clipped-at-every-step-sgd-0.25",
    lambda s: always_clipped(s, 0.25, lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9)),
)


def fitting_sum(seed: int) -> Program:
    model = he_(mlp([24, 48, 48, 6]))
    criterion = nn.CrossEntropyLoss(reduction="sum")
    return fit(model, blobs(seed, 24, 6, 64), sgd(model, 0.1 / 64), 100, criterion)


zoo.healthy("sum-with-a-rate-that-fits", fitting_sum)


def decayed(seed: int) -> Program:
    model = ConvNet([3, 16, 16], 8, norm=nn.BatchNorm2d, pool=(0,))
    return fit(model, images(seed, size=8), sgd(model, 0.05, momentum=0.9, weight_decay=5e-3), 80)


zoo.healthy("momentum-and-decay-on-all", decayed)


def summed_up(seed: int) -> Program:
    """Four micro-batches per step, as the memory is small."""
    model, task = he_(mlp([24, 48, 48, 6])), blobs(seed, 24, 6, 16)
    optimizer = adam(model)
    losses: list[float] = []

    def run() -> None:
        batches = iter(task)
        for _ in range(60):
            optimizer.zero_grad()
            for _ in range(4):
                x, y = next(batches)
                loss = F.cross_entropy(model(x), y) / 4
                loss.backward()
            optimizer.step()
            losses.append(4 * loss.item())

    score = held_out(model, blobs(seed, 24, 6, 256))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("accumulates-4-on-purpose", summed_up)

# --- losses and data that look odd


def smoothed(seed: int) -> Program:
    model = he_(mlp([24, 48, 48, 6]))
    return fit(model, blobs(seed, 24, 6, 64, 1.0), adam(model), 100, nn.CrossEntropyLoss(label_smoothing=0.2))


zoo.healthy("label-smoothing-0.2", smoothed)


def rare(seed: int) -> Program:
    """Nineteen of twenty samples are of one class."""
    balance = torch.Generator().manual_seed(seed + 8)

    def thin(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        keep = (y == 0) | (torch.rand(len(y), generator=balance) < 0.05)
        return x[keep], y[keep]

    model = he_(mlp([16, 40, 40, 2]))
    return fit(model, blobs(seed, 16, 2, 256, 0.6).changed(thin), adam(model), 100)


zoo.healthy("one-class-in-twenty", rare)


def noisy(seed: int) -> Program:
    model = mlp([16, 32, 32, 3], nn.Tanh)
    return fit(model, blobs(seed, 16, 3, 2, 1.0), adam(model, 1e-3), 250, unseen=blobs(seed, 16, 3, 256, 1.0))


zoo.healthy("batches-of-two", noisy)


def finished(seed: int) -> Program:
    """Trained before; goes on at a small rate."""
    task = regression(seed, 6, batch=64, noise=0.05)
    model = mlp([6, 64, 64, 1], nn.Tanh)
    fit(model, regression(seed, 6, batch=128, noise=0.05), adam(model, 5e-3), 500, F.mse_loss).run()
    model.zero_grad(set_to_none=True)
    return fit(model, task, adam(model, 1e-4), 80, F.mse_loss)


zoo.healthy("goes-on-when-converged", finished, keeps(0.05))

# --- more than a plain loop


def checked(seed: int) -> Program:
    """Looks at unseen data after every step and goes back to training."""
    model, task = mlp([24, 64, 64, 6], nn.ReLU, nn.BatchNorm1d, 0.2), blobs(seed, 24, 6, 64)
    optimizer = adam(model)
    x_val, y_val = task.aside()
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(60), strict=False):
            model.train()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                losses.append(F.cross_entropy(model(x_val), y_val).item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


zoo.healthy("evaluates-after-every-step", checked)


class Recomputed(nn.Module):
    """Blocks that are computed again on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(24, 32), nn.Linear(32, 6)
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x.mean(1))


def recomputed(seed: int) -> Program:
    model = Recomputed()
    return fit(model, patches(seed), torch.optim.AdamW(model.parameters(), lr=2e-3), 60)


zoo.healthy("blocks-checkpointed", recomputed)


def bounded(seed: int) -> Program:
    """Rows of each matrix are kept within a norm of 2 after the step."""
    model, task = he_(mlp([24, 64, 64, 6])), blobs(seed, 24, 6, 64)
    optimizer = sgd(model, 0.2, momentum=0.9)

    def after(_: int) -> None:
        with torch.no_grad():
            for layer in (model[0], model[2]):
                layer.weight.copy_(layer.weight.renorm(2, 0, 2.0))

    return fit(model, task, optimizer, 80, after=after)


zoo.healthy("rows-kept-within-a-norm", bounded)


def shared_words(seed: int) -> Program:
    model = LanguageModel(20, 32, 2, 1, tied=True)
    return fit(model, markov(seed), torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1), 80, token_loss)


zoo.healthy("embedding-and-head-are-one", shared_words)


def few_batches(seed: int) -> Program:
    """Five batches, again and again: a small data set, not one batch."""
    task = blobs(seed, 20, 4, 48, 1.0)
    stored = [next(iter(task)) for _ in range(5)]
    model = he_(mlp([20, 32, 4]))
    optimizer = adam(model, 2e-3)
    losses: list[float] = []

    def run() -> None:
        for epoch in range(16):
            for i in range(5):
                x, y = stored[(i + epoch) % 5]
                losses.append(train_step(model, optimizer, x, y))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


zoo.healthy("five-batches-for-sixteen-epochs", few_batches)
