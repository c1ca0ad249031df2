"""What the programs of the half `everyday` share: data sets in loaders, the loop with epochs, some models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from validation.case import Program, call
from validation.evidence.loops import Fact, Played
from validation.programs import Hook, nothing
from validation.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Measured(Program):
    """A program with further measurements that its proof may take at the end."""

    facts: Mapping[str, Callable[[], float]] = field(default_factory=dict)


def measured(name: str, *, above: float | None = None, below: float | None = None) -> Fact:
    """A measurement of the program lies beyond a limit at its end."""

    def fact(played: Played) -> tuple[bool, str]:
        assert isinstance(played.program, Measured)
        value = played.program.facts[name]()
        holds = (above is None or value > above) and (below is None or value < below)
        return holds, f"{name} is {value:.3g}"

    return fact


def largest_share(model: nn.Module, task: Task) -> Callable[[], float]:
    """Measures how much of unseen data goes to one expert; the model gives the shares as the third of its outputs."""

    def share() -> float:
        with torch.no_grad():
            return float(model(task.aside()[0])[2].max())

    return share


def stored(task: Task, batches: int) -> TensorDataset:
    """A data set of so many batches of a task, whose inputs are one tensor."""
    data = [next(iter(task)) for _ in range(batches)]
    return TensorDataset(torch.cat([x for x, _ in data]), torch.cat([y for _, y in data]))


def loader(task: Task, seed: int, batches: int = 20, size: int = 32, shuffle: bool = True) -> DataLoader:
    """The same behind a loader that shuffles by a generator of its own."""
    order = torch.Generator().manual_seed(seed + 31)
    return DataLoader(stored(task, batches), size, shuffle=shuffle, generator=order, drop_last=True)


def train(
    model: nn.Module,
    batches: Iterable[Any],
    loss_of: Callable[[Any], Tensor],
    optimizer: torch.optim.Optimizer,
    score: Callable[[], float],
    *,
    epochs: int = 4,
    limit: int = 10**9,
    clip: float | None = None,
    before: Hook = nothing,
    ready: Hook = nothing,
    after: Hook = nothing,
    between: Hook = nothing,
    **more: Any,
) -> Program:
    """Epochs over batches: `before` the forward, `ready` to step, `after` the step, `between` epochs.

    `limit` ends an epoch early, for batches that never end.
    """
    losses: list[float] = []

    def run() -> None:
        step = 0
        for epoch in range(epochs):
            for i, batch in enumerate(batches):
                if i >= limit:
                    break
                before(step)
                loss = loss_of(batch)
                optimizer.zero_grad()
                loss.backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                ready(step)
                optimizer.step()
                after(step)
                losses.append(loss.item())
                step += 1
            between(epoch)

    return Measured(model=model, optimizer=optimizer, run=run, losses=losses, score=score, **more)


def supervised(model: nn.Module, criterion: Callable[[Any, Any], Tensor] = F.cross_entropy) -> Callable[[Any], Tensor]:
    """The loss of a batch of inputs and targets."""
    return lambda batch: criterion(call(model, batch[0]), batch[1])


class LeNet(nn.Module):
    """Two convolutions with pooling, two linear layers with dropout: the first network of many."""

    def __init__(self, channels: int = 1, size: int = 12, classes: int = 10, norm: bool = False, p: float = 0.0):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 12, 3, padding=1), nn.Conv2d(12, 24, 3, padding=1)
        self.bn1, self.bn2 = (nn.BatchNorm2d(c) if norm else nn.Identity() for c in (12, 24))
        self.fc1, self.drop = nn.Linear(24 * (size // 4) ** 2, 64), nn.Dropout(p)
        self.fc2 = nn.Linear(64, classes)

    def features(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.drop(F.relu(self.fc1(x.flatten(1))))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.features(x))


class TextClassifier(nn.Module):
    """Embedding, LSTM both ways, mean over time, head."""

    def __init__(self, vocabulary: int, classes: int, width: int = 24, p: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.drop, self.fc = nn.Dropout(p), nn.Linear(2 * width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.drop(self.lstm(self.embedding(tokens))[0].mean(dim=1)))


class Seq2Seq(nn.Module):
    """A GRU reads the source, another writes the answer under teacher forcing."""

    def __init__(self, vocabulary: int, width: int = 40) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict(
            {"words": nn.Embedding(vocabulary + 1, width), "gru": nn.GRU(width, width, 1, True, True)}
        )
        self.decoder = nn.ModuleDict(
            {
                "words": nn.Embedding(vocabulary + 1, width),
                "gru": nn.GRU(2 * width, width, 1, True, True),
                "out": nn.Linear(width, vocabulary),
            }
        )

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        memory, state = self.encoder["gru"](self.encoder["words"](source))
        words = torch.cat([self.decoder["words"](shifted), memory], dim=-1)
        return self.decoder["out"](self.decoder["gru"](words, state)[0])


class Vae(nn.Module):
    """A variational autoencoder of vectors; its forward gives the reconstruction, the mean and the log-variance."""

    def __init__(self, dim: int, latent: int = 4, width: int = 48) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, width), nn.ReLU())
        self.mu, self.logvar = nn.Linear(width, latent), nn.Linear(width, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, dim))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.decoder(z), mu, logvar


def elbo(weight: float, reduction: str = "mean") -> Callable[[Any, Tensor], Tensor]:
    """Reconstruction and KL divergence, which counts by `weight`."""

    def loss(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        kl = -0.5 * (1 + out[2] - out[1].square() - out[2].exp())
        return F.mse_loss(out[0], x, reduction=reduction) + weight * (kl.mean() if reduction == "mean" else kl.sum())

    return loss
