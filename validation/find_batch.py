"""Does `gf.find_batch` name the one sample that was poisoned, and in how many replays?

    python -m validation.find_batch                # 200 trials
    python -m validation.find_batch --trials 20

Each trial draws a network, a batch size, a way of poisoning and the position of the poisoned sample, trains the network
for a few steps on sound data, and asks. A trial succeeds when exactly that sample is named and the state of model and
random generators is bit for bit what it was.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradient_flow as gf

WIDTH, CLASSES, TOKENS, LENGTH = 12, 5, 40, 9


@dataclass(frozen=True)
class Trial:
    """One question, and the answer."""

    network: str
    poison: str
    samples: int
    position: int
    cause: gf.BatchCause
    untouched: bool

    @property
    def right(self) -> bool:
        """Whether that sample is named, no other, and nothing was changed."""
        return self.cause.indices == (self.position,) and self.untouched

    @property
    def beyond(self) -> float:
        """Replays beyond log₂ of the batch."""
        return self.cause.replays - math.log2(self.samples)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(WIDTH, 24, batch_first=True), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x[:, None].expand(-1, 4, -1))[0][:, -1])


class _Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(TOKENS, 16), nn.Linear(16, TOKENS)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.embed(x)))


def _dense(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 32), *between, nn.ReLU(), nn.Linear(32, CLASSES))


def _conv(*between: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 8, 3), *between, nn.ReLU(), nn.Flatten(), nn.LazyLinear(CLASSES)
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "dense": lambda: _dense(),
    "dense, dropout": lambda: _dense(nn.Dropout(0.2)),
    "dense, batch norm": lambda: _dense(nn.BatchNorm1d(32)),
    "convolution": lambda: _conv(),
    "convolution, batch norm": lambda: _conv(nn.BatchNorm1d(8)),
    "recurrent": _Recurrent,
    "transformer": _Tokens,
    "contrastive": lambda: _dense(),
}
POISONS = ("NaN in the input", "Inf in the input", "input × 10,000", "loss × 10,000", "root of zero")


def trial(seed: int) -> Trial:
    """Draw, poison, ask."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    network, samples = draw.choice(list(NETWORKS)), draw.choice((8, 16, 33, 64, 100, 256))
    poison = draw.choice(_possible(network))
    position = draw.randrange(samples)
    model = NETWORKS[network]()
    tokens = network == "transformer"

    def batch() -> dict[str, Tensor]:
        shape = (samples, LENGTH) if tokens else (samples, WIDTH)
        x = torch.randint(TOKENS - 1, shape) if tokens else torch.randn(shape)
        y = x.roll(-1, 1) if tokens else x[:, :CLASSES].argmax(1)
        return {"x": x, "y": y, "weight": torch.ones(samples), "offset": torch.ones(samples)}

    def step(part: dict[str, Tensor]) -> Tensor:
        return _loss(network, model, part)

    model(batch()["x"])  # lazy layers get their sizes
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        step(batch()).backward()
        optimizer.step()
    bad = batch()
    _poison(bad, poison, position)
    before, numbers = [tensor.clone() for tensor in model.state_dict().values()], torch.get_rng_state()
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    cause = gf.find_batch(step, bad, model)
    same = all(map(torch.equal, before, model.state_dict().values())) and torch.equal(numbers, torch.get_rng_state())
    for known, parameter in zip(gradients, model.parameters(), strict=True):
        same &= parameter.grad is None if known is None else torch.equal(known, parameter.grad)
    return Trial(network, poison, samples, position, cause, same)


def _possible(network: str) -> tuple[str, ...]:
    if network == "transformer":
        return POISONS[3:]
    # A batch norm divides what is large by its own size; what is compared with all has no loss of its own.
    return (*POISONS[:2], *POISONS[4:]) if "norm" in network or network == "contrastive" else POISONS


def _poison(batch: dict[str, Tensor], poison: str, position: int) -> None:
    values = {POISONS[0]: math.nan, POISONS[1]: math.inf}
    if poison in values:
        batch["x"][position, 3] = values[poison]
    elif poison == POISONS[2]:
        batch["x"][position] *= 1e4
    elif poison == POISONS[3]:
        batch["weight"][position] = 1e4
    else:
        batch["offset"][position] = 0.0


def _loss(network: str, model: nn.Module, part: dict[str, Tensor]) -> Tensor:
    out = model(part["x"])
    # The root of zero is finite, and its gradient is not.
    root = (out.flatten(1)[:, 0].square() * part["offset"]).sqrt()
    if network == "contrastive":
        near = F.normalize(out, dim=1) @ F.normalize(part["x"][:, :CLASSES], dim=1).T
        return F.cross_entropy(near * 5, torch.arange(len(out))) + 0.01 * root.mean()
    each = F.cross_entropy(out.transpose(1, 2), part["y"], reduction="none").mean(1) if out.dim() == 3 else None
    if each is None:
        each = F.cross_entropy(out, part["y"], reduction="none")
    return (each * part["weight"] + 0.01 * root).mean()


def table(trials: list[Trial]) -> str:
    """Success and replays, by network."""
    lines = ["| network | trials | right | replays, median | beyond log₂(batch), median |", "|---|--:|--:|--:|--:|"]
    groups = {name: [t for t in trials if t.network == name] for name in NETWORKS} | {"**all**": trials}
    for name, group in groups.items():
        if group:
            right = sum(t.right for t in group) / len(group)
            replays, beyond = median(t.cause.replays for t in group), median(t.beyond for t in group)
            lines.append(f"| {name} | {len(group)} | {right:.1%} | {replays:g} | {beyond:+.1f} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> list[Any]:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    trials = [trial(seed) for seed in range(parser.parse_args(arguments).trials)]
    print(table(trials))
    for each in trials:
        if not each.right:
            print(f"missed: {each.network}, {each.poison}, {each.position} of {each.samples}: {each.cause}")
    return trials


if __name__ == "__main__":
    main()
