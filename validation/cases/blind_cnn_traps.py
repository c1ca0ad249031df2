# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Healthy convolutional networks that look as if something were wrong with them.

Half: blind.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._blind_tasks import cells, gratings, scans, tones
from validation.evidence import thrives
from validation.setups import live

zoo = Zoo("cnn", half="blind", proof=thrives())


class UShape(nn.Module):
    """Down to three channels at the bottom, with everything else handed across."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 12, 3, 1, 1), nn.Conv2d(12, 16, 3, 2, 1)
        self.bottom, self.up = nn.Conv2d(16, 3, 3, 2, 1), nn.ConvTranspose2d(3, 12, 4, 4)
        self.out = nn.Conv2d(24, 1, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.silu(self.down1(x))
        b = F.silu(self.up(F.silu(self.bottom(F.silu(self.down2(a))))))
        return self.out(torch.cat([a, b], dim=1))


zoo.healthy("cells-u-net-with-a-narrow-bottom", lambda s: live(UShape(), cells(s), lr=5e-3, steps=60))


class Excited(nn.Module):
    """Channels are weighed by what two numbers say of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.down, self.up = nn.Conv2d(3, 24, 3), nn.Linear(24, 2), nn.Linear(2, 24)
        self.conv2, self.fc = nn.Conv2d(24, 24, 3, 2), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.conv(x))
        gate = torch.sigmoid(self.up(F.silu(self.down(x.mean(dim=(2, 3))))))
        return self.fc(F.silu(self.conv2(x * gate[..., None, None])).mean(dim=(2, 3)))


zoo.healthy("gratings-channels-weighed-by-two-numbers", lambda s: live(Excited(), gratings(s), lr=5e-3, steps=60))


class Separable(nn.Module):
    """Each channel for itself, then across: groups everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(3, 24, 9, 2)
        self.each = nn.ModuleList(nn.Conv1d(24, 24, 5, padding=2, groups=24) for _ in range(3))
        self.across, self.norms = nn.ModuleList(nn.Conv1d(24, 24, 1) for _ in range(3)), nn.ModuleList()
        self.norms.extend(nn.BatchNorm1d(24) for _ in range(3))
        self.fc = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for each, across, norm in zip(self.each, self.across, self.norms, strict=True):
            x = F.hardswish(norm(across(each(x))))
        return self.fc(x.mean(dim=2))


zoo.healthy("tones-each-channel-then-across", lambda s: live(Separable(), tones(s), lr=5e-3, steps=60))


def coded(seed: int) -> Setup:
    """Twelve numbers for scans of twelve parts."""
    model = nn.Sequential(
        nn.Conv2d(2, 16, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(400, 12), nn.Linear(12, 64), nn.GELU()
    )
    model.append(nn.Linear(64, 200)).append(nn.Unflatten(1, (2, 10, 10)))
    return live(model, scans(seed), lr=3e-3, steps=100)


zoo.healthy("scans-twelve-numbers-for-twelve-parts", coded)


class Pyramid(nn.Module):
    """Answers at three sizes, each with a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 24, 3, 2), nn.Conv2d(24, 24, 3)
        self.heads = nn.ModuleList(nn.Linear(c, 6) for c in (16, 24, 24))

    def forward(self, x: Tensor) -> list[Tensor]:
        a = F.relu(self.one(x))
        b = F.relu(self.two(a))
        c = F.relu(self.three(b))
        return [head(h.mean(dim=(2, 3))) for head, h in zip(self.heads, (a, b, c), strict=True)]


def of_three(out: list[Tensor], t: Tensor) -> Tensor:
    return 0.1 * F.cross_entropy(out[0], t) + 0.3 * F.cross_entropy(out[1], t) + F.cross_entropy(out[2], t)


zoo.healthy(
    "gratings-answers-at-three-depths",
    lambda s: live(
        Pyramid(),
        gratings(s).with_loss(of_three),
        lr=5e-3,
        steps=60,
    ),
)


class Body(nn.Module):
    """A frozen first half in evaluation mode, a new second half."""

    def __init__(self) -> None:
        super().__init__()
        self.old = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU()).requires_grad_(False)
        self.new, self.fc = nn.Conv2d(32, 24, 3, 2), nn.Linear(24, 6)

    def train(self, mode: bool = True) -> Body:
        super().train(mode)
        self.old.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.silu(self.new(self.old(x))).mean(dim=(2, 3)))


zoo.healthy("gratings-frozen-half-in-evaluation-mode", lambda s: live(Body().train(), gratings(s), lr=5e-3, steps=60))
zoo.healthy(
    "cells-one-dot-in-ten-counts-more",
    lambda s: live(
        nn.Sequential(nn.Conv2d(1, 12, 3, 1, 1), nn.ReLU(), nn.Conv2d(12, 12, 3, 1, 1), nn.ReLU(), nn.Conv2d(12, 1, 1)),
        cells(s).with_loss(lambda z, t: F.binary_cross_entropy_with_logits(z, t, pos_weight=torch.tensor(8.0))),
        lr=5e-3,
        steps=60,
    ),
    thrives(most_dead=0.5),
)


class Normal(nn.Module):
    """Batch norms right behind dropout, as some do, and spatial dropout in between."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(3, 24, 9, 2), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout1d(0.2), nn.Conv1d(24, 24, 5, 2), nn.ReLU()
        )
        self.fc = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).amax(dim=2))


zoo.healthy("tones-channels-dropped", lambda s: live(Normal(), tones(s), lr=5e-3, steps=60))


def contrastive(seed: int) -> Setup:
    """Two noisy copies of a picture are to be told from all others of the batch."""
    model = nn.Sequential(nn.Conv2d(2, 24, 3, 2), nn.GELU(), nn.Conv2d(24, 24, 3), nn.GELU(), nn.Flatten())
    model.append(nn.Linear(96, 16))
    random = torch.Generator().manual_seed(seed + 80)

    def copies(x: Tensor, clean: Tensor) -> tuple[Tensor, Tensor]:
        noise = 0.4 * torch.randn(clean.shape, generator=random)
        return torch.cat([x, clean + noise]), torch.arange(len(x))

    def loss(z: Tensor, t: Tensor) -> Tensor:
        a, b = F.normalize(z, dim=1).chunk(2)
        return F.cross_entropy(8 * a @ b.T, t)

    return live(model, scans(seed).changed(copies).with_loss(loss), lr=3e-3, steps=60)


zoo.healthy("scans-copies-matched-within-the-batch", contrastive)
