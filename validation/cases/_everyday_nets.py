"""What the everyday nets share: tasks that look like the usual ones, a first program's net, proofs of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, call, costly
from validation.evidence import judged, train
from validation.tasks import Task, drawn_once

NARROW = ("BOTTLENECK", "LOW_RANK")
"""Too narrow, by either name."""
CUT_OFF = ("DISCONNECTED", "DEAD")
"""A part that gets no gradient, by either name."""
RUINED = {"DEAD", "VANISHING", "SATURATION", "LOW_RANK", "BOTTLENECK", "DISCONNECTED", "SYMMETRY"}
"""What steps that are far too large leave behind."""

# --- rows


def housing(seed: int, batch: int = 64, noise: float = 0.1) -> Task:
    """Thirteen standardised columns and a price of unit scale that bends with them."""
    fixed = drawn_once(seed, 2100)
    inner, outer = torch.randn(13, 8, generator=fixed) / math.sqrt(13), torch.randn(8, 1, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 13, generator=random)
        return x, torch.tanh(1.5 * x @ inner) @ outer / 2 + noise * torch.randn(batch, 1, generator=random)

    return Task(seed, draw, F.mse_loss)


def sorts(seed: int, classes: int = 6, dim: int = 16, batch: int = 64, apart: float = 0.9) -> Task:
    """Rows of several sorts, each of two heaps."""
    centres = apart * torch.randn(classes, 2, dim, generator=drawn_once(seed, 2101))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        heap = torch.randint(2, (batch,), generator=random)
        return (centres[target, heap] + torch.randn(batch, dim, generator=random)) / math.sqrt(1 + apart**2), target

    return Task(seed, draw, F.cross_entropy)


def credit(seed: int, rare: float = 0.0, batch: int = 96) -> Task:
    """Categories and numbers of an applicant; whether the loan fails. `rare` raises the bar."""
    fixed = drawn_once(seed, 2102)
    effects, slopes = torch.randn(3, 12, generator=fixed), torch.randn(8, generator=fixed) / 2

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        kinds = torch.randint(12, (batch, 3), generator=random)
        numbers = torch.randn(batch, 8, generator=random)
        score = effects[torch.arange(3), kinds].sum(dim=1) + numbers @ slopes
        return (kinds, numbers), (score > rare).float()

    return Task(seed, draw, lambda z, t: F.binary_cross_entropy_with_logits(z.flatten(), t))


def windows(seed: int, length: int = 32, horizon: int = 8, batch: int = 48) -> Task:
    """A window of a series with three rhythms of any strength and phase, and what follows."""
    rate = torch.tensor([0.25, 0.6, 1.1]) * (0.9 + 0.2 * torch.rand(3, generator=drawn_once(seed, 2103)))
    time = torch.arange(length + horizon)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        strength = torch.randn(batch, 3, 1, generator=random)
        phase = 2 * math.pi * torch.rand(batch, 3, 1, generator=random)
        x = (strength * torch.sin(rate[:, None] * time + phase)).sum(dim=1)
        x = x + 0.05 * torch.randn(x.shape, generator=random)
        return x[:, :length], x[:, length:]

    return Task(seed, draw, F.mse_loss)


def faces(seed: int, factors: int = 8, dim: int = 48, batch: int = 64) -> Task:
    """Vectors that a few hidden factors decide, to be rebuilt."""
    ways = torch.randn(factors, dim, generator=drawn_once(seed, 2104)) / math.sqrt(factors)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 1.5 * torch.tanh(torch.randn(batch, factors, generator=random) @ ways)
        return x, x

    return Task(seed, draw, F.mse_loss)


def mails(seed: int, words: int = 200, topics: int = 6, batch: int = 64) -> Task:
    """Counts of the words of short texts, nearly all of them zero, and their topic."""
    lists = (2 * torch.randn(topics, words, generator=drawn_once(seed, 2105))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(topics, (batch,), generator=random)
        drawn = torch.multinomial(lists[target], 15, replacement=True, generator=random)
        return torch.zeros(batch, words).scatter_add_(1, drawn, torch.ones(batch, 15)), target

    return Task(seed, draw, F.cross_entropy)


def stars(seed: int, users: int = 60, items: int = 40, factors: int = 6, batch: int = 256) -> Task:
    """How a user rates an item, by several tastes."""
    fixed = drawn_once(seed, 2106)
    taste, trait = torch.randn(users, factors, generator=fixed), torch.randn(items, factors, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        user = torch.randint(users, (batch,), generator=random)
        item = torch.randint(items, (batch,), generator=random)
        return (user, item), (taste[user] * trait[item]).sum(dim=1) / math.sqrt(factors)

    return Task(seed, draw, F.mse_loss)


# --- pictures


def digits(seed: int, classes: int = 10, size: int = 12, batch: int = 32, noise: float = 0.5) -> Task:
    """Signs in grey from -1 to 1, shifted by a dot or none, under noise."""
    coarse = torch.rand(classes, 1, 5, 5, generator=drawn_once(seed, 2107)).round()
    signs = 2 * F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False) - 1
    shifted = torch.stack([signs.roll((i, j), (2, 3)) for i in (-1, 0, 1) for j in (-1, 0, 1)], dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        x = shifted[target, torch.randint(9, (batch,), generator=random)]
        return x + noise * torch.randn(x.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def photos(seed: int, classes: int = 8, size: int = 12, batch: int = 32) -> Task:
    """Colour pictures of stripes; their hue and direction tell the class, their phase does not."""
    fixed = drawn_once(seed, 2108)
    hues, ways = torch.randn(classes, 3, 1, 1, generator=fixed), 1.5 * torch.randn(classes, 2, generator=fixed)
    line = torch.arange(size).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        way = ways[target][..., None, None]
        phase = 2 * math.pi * torch.rand(batch, 1, 1, generator=random)
        stripes = torch.sin(way[:, 0] * line[:, None] + way[:, 1] * line + phase)[:, None]
        x = stripes * hues[target] + 0.5 * hues[target]
        return x + 0.4 * torch.randn(x.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def cells(seed: int, size: int = 16, batch: int = 16) -> Task:
    """A disc on a rough ground, and its mask."""
    line = torch.linspace(-1, 1, size)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = 1.2 * torch.rand(batch, 2, 1, 1, generator=random) - 0.6
        radius = 0.25 + 0.3 * torch.rand(batch, 1, 1, generator=random)
        mask = ((line[:, None] - at[:, 0]).square() + (line - at[:, 1]).square() < radius.square()).float()[:, None]
        return 1.5 * mask + 0.7 * torch.randn(mask.shape, generator=random) - 0.3, mask

    return Task(seed, draw, F.binary_cross_entropy_with_logits)


def clouds(seed: int, size: int = 12, channels: int = 1, noise: float = 0.0, batch: int = 24, coarse: int = 4) -> Task:
    """Smooth pictures to be rebuilt, or freed of noise."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        rough = torch.randn(batch, channels, coarse, coarse, generator=random)
        x = 1.3 * F.interpolate(rough, size=(size, size), mode="bilinear", align_corners=False)
        return (x + noise * torch.randn(x.shape, generator=random) if noise else x), x

    return Task(seed, draw, F.mse_loss)


def beats(seed: int, classes: int = 5, length: int = 48, batch: int = 32) -> Task:
    """Two leads of a signal; its rhythm and shape tell the class."""
    fixed = drawn_once(seed, 2109)
    rate, mix = 0.3 + 0.9 * torch.rand(classes, 2, 1, generator=fixed), torch.randn(classes, 2, 1, generator=fixed)
    time = torch.arange(length).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        phase = 2 * math.pi * torch.rand(batch, 1, 1, generator=random)
        x = torch.sin(rate[target] * time + phase) + 0.5 * mix[target] * torch.sin(2 * rate[target] * time + phase)
        return x + 0.4 * torch.randn(x.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


# --- nets


class Net(nn.Module):
    """What a first tutorial writes: "fc1", "fc2" … with one function between them, and perhaps one at the end."""

    def __init__(self, widths: Sequence[int], act: Callable = torch.relu, last: Callable | None = None) -> None:
        super().__init__()
        self.depth, self.act, self.last = len(widths) - 1, act, last
        for i, (a, b) in enumerate(pairwise(widths), 1):
            self.add_module(f"fc{i}", nn.Linear(a, b))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(1, self.depth):
            x = self.act(self.get_submodule(f"fc{i}")(x))
        x = self.get_submodule(f"fc{self.depth}")(x)
        return self.last(x) if self.last else x


def start(model: nn.Module, weight: Callable, bias: float = 0.0) -> nn.Module:
    """Give every linear layer and convolution a start, as `model.apply(init_weights)` does."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)):
            weight(module.weight)
            if module.bias is not None:
                nn.init.constant_(module.bias, bias)
    return model


def he(model: nn.Module) -> nn.Module:
    """Kaiming's start for ReLU, as torch has it."""
    return start(model, lambda w: nn.init.kaiming_normal_(w, nonlinearity="relu"))


def glorot(model: nn.Module) -> nn.Module:
    """Xavier's start, as torch has it."""
    return start(model, nn.init.xavier_uniform_)


def orthogonal(model: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """An orthogonal start, as torch has it."""
    return start(model, lambda w: nn.init.orthogonal_(w, gain))


def gaussian(model: nn.Module, std: float) -> nn.Module:
    """`nn.init.normal_` with one deviation for all layers, whatever their width."""
    return start(model, lambda w: nn.init.normal_(w, std=std))


# --- proofs


@torch.no_grad()
def mean_loss(setup: Setup) -> float:
    """The loss over several batches at the present weights."""
    losses = [setup.loss_fn(call(setup.model, setup.input_fn())).item() for _ in range(32)]
    return sum(losses) / len(losses)


def stands_still(after: int, below: float = 1e-5, by: float = 0.1) -> Proof:
    """From some step on no weight moves to speak of, and the twin gets further than this."""

    def proof(case: Case, seed: int) -> Evidence:
        setup, twin = case.make(seed), case.control.make(seed)
        early = train(setup, after, setup.optimizer)
        late = train(setup, setup.steps - after, setup.optimizer)
        early.losses += late.losses
        ahead = train(twin, twin.steps, twin.optimizer).fall() - early.fall()
        holds = late.largest_update < below and ahead > by
        return judged(holds, "updates up to {:.1e} later, the twin is ahead by {:.0%}", late.largest_update, ahead)

    return costly(proof)
