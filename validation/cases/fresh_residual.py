# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks as people train them at work, with one fault each, their twins, and odd healthy ones.

Half: fresh.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import breaks, does_not_move, gradient_ratio, lags, lasting, never_fires, no_gradient, thrives
from validation.labels import DEADENS
from validation.setups import live
from validation.tasks import blobs, every, genres, homes, pictures, pulses, spots

zoo = Zoo("residual", half="fresh", proof=thrives())


class Branch(nn.Module):
    """Two convolutions over time beside a skip; `keep` weighs the skip, `share` the branch."""

    def __init__(self, width: int, keep: float = 1.0, share: float = 1.0, norm: bool = True) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width) if norm else nn.Identity()
        self.a, self.b = nn.Conv1d(width, width, 3, padding=1), nn.Conv1d(width, width, 3, padding=1)
        self.keep, self.share = keep, share
        for conv in (self.a, self.b):
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.keep * x + self.share * self.b(F.relu(self.a(self.norm(x))))


def beats(seed: int, blocks: list[nn.Module], width: int = 16, **more) -> Setup:
    model = nn.Sequential(
        nn.Conv1d(2, width, 5, padding=2), *blocks, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(width, 5)
    )
    return live(model, pulses(seed), **{"lr": 3e-3, "steps": 50, **more})


calm = zoo.healthy("pulses-4-branches", lambda s: beats(s, [Branch(16) for _ in range(4)]))
zoo.sick(
    "pulses-14-branches-without-norm-or-scale",
    lambda s: beats(s, [Branch(16, norm=False) for _ in range(14)], lr=1e-5),
    lasting(gradient_ratio("0", "14.b", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=calm,
)


class Half(nn.Module):
    """The mean of a row and of what a layer makes of it, where a sum was meant."""

    def __init__(self, width: int, weight: float) -> None:
        super().__init__()
        self.fc, self.weight = nn.Linear(width, width), weight

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x + torch.tanh(self.fc(x)))


def means(seed: int, depth: int, weight: float, between: nn.Module | None = None, **more) -> Setup:
    body: list[nn.Module] = [Half(32, weight) for _ in range(depth)]
    if between is not None:
        body.insert(depth // 2, between)
    model = nn.Sequential(nn.Linear(20, 32), *body, nn.LayerNorm(32), nn.Linear(32, 10))
    return live(model, genres(seed), **{"lr": 2e-3, "steps": 50, **more})


sums = zoo.healthy("genres-sums-of-8-layers", lambda s: means(s, 8, 0.9))
zoo.sick(
    "genres-means-of-24-layers",
    lambda s: means(s, 24, 0.4, kind="SGD", lr=0.02, momentum=0.9),
    lasting(gradient_ratio("0", "24.fc", below=10**-2.5)),
    "VANISHING",
    also={"LOW_RANK"},
    control=sums,
)


class Dropping(nn.Module):
    """Each block is left out with a chance that grows with depth up to `most`."""

    def __init__(self, most: float) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(20, 40), nn.Linear(40, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(40), nn.Linear(40, 40), nn.GELU()) for _ in range(5))
        self.chances = torch.linspace(0, most, 5).tolist()

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block, chance in zip(self.blocks, self.chances, strict=True):
            if torch.rand(()).item() >= chance:
                x = x + block(x)
        return self.leave(x)


def dropping(seed: int, most: float) -> Setup:
    return live(Dropping(most), blobs(seed, 20, 6, 64, 0.8), lr=3e-3, steps=60)


dropped = zoo.healthy("blobs-blocks-left-out-up-to-half", lambda s: dropping(s, 0.5))
zoo.sick(
    "blobs-last-block-always-left-out",
    lambda s: dropping(s, 1.0),
    lasting(no_gradient("blocks.4")),
    "DISCONNECTED",
    layer="blocks.4.1",
    also={"DEAD"},
    control=dropped,
)


class Change(nn.Module):
    """From one stage to the next: a layer, and beside it a skip by a projection, both to `narrow` numbers."""

    def __init__(self, width: int, narrow: int) -> None:
        super().__init__()
        self.main, self.short = nn.Linear(width, narrow), nn.Linear(width, narrow, bias=False)
        self.widen = nn.Linear(narrow, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.widen(F.gelu(self.main(x)) + self.short(x))


def changed(seed: int, narrow: int) -> Setup:
    return means(seed, 2, 1.0, between=Change(32, narrow), lr=5e-3, steps=60)


wide = zoo.healthy("genres-stages-through-24-numbers", lambda s: changed(s, 24))
zoo.sick(
    "genres-stages-through-1-number",
    lambda s: changed(s, 1),
    lags(0.15),
    "BOTTLENECK",
    layer=("2.main", "2.short", "2.widen"),
    also={"LOW_RANK"},
    control=wide,
)


class Gated(nn.Module):
    """A branch that a ReLU lets through; what stands in front of it may lie low."""

    def __init__(self, width: int, low: float) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.up.bias.data -= low

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.up(self.norm(x))).square())


def gates(seed: int, low: float) -> Setup:
    model = nn.Sequential(nn.Linear(9, 32), *(Gated(32, low if i == 2 else 0.0) for i in range(4)), nn.Linear(32, 1))
    return live(model, homes(seed), lr=2e-3, steps=60)


squares = zoo.healthy("homes-squared-branches", lambda s: gates(s, 0.0))
zoo.sick(
    "homes-squared-branches-third-lies-low",
    lambda s: gates(s, 12.0),
    lasting(never_fires("3.up", 0.99), no_gradient("3.up")),
    "DEAD",
    layer=("3.up", "3.down"),
    also=DEADENS,
    control=squares,
)


class Shared(nn.Module):
    """Both coordinates of a spot from residual convolutions; lengths by a root that may meet zero."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, 2, 1, bias=False)
        self.c1, self.c2 = (nn.Conv2d(12, 12, 3, 1, 1, bias=False) for _ in range(2))
        self.fc, self.eps = nn.Linear(72, 2), eps

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        x = x + torch.tanh(self.c1(x))
        x = x + torch.tanh(self.c2(x))
        return self.fc((x.square().sum(dim=3) + self.eps).sqrt().flatten(1))


def dark(seed: int, eps: float) -> Setup:
    """A lens cap, now and then: a picture of zeros, and no bias to lift it."""
    now = every(16, 6)
    task = spots(seed).mapped(lambda x: torch.cat([0 * x[:1], x[1:]]) if now() else x)
    return live(Shared(eps), task, lr=3e-3, steps=50)


lit = zoo.healthy("spots-lens-cap-root-with-eps", lambda s: dark(s, 1e-4))
zoo.sick(
    "spots-lens-cap-root-of-zero",
    lambda s: dark(s, 0.0),
    breaks,
    "NUMERICAL",
    also={"EXPLODING", "UNSTABLE"},
    control=lit,
)
zoo.sick(
    "pulses-4-branches-rate-divided-by-the-data",
    lambda s: beats(s, [Branch(16) for _ in range(4)], lr=3e-3 / 5e6),
    does_not_move(steps=50),
    "SLOW",
    control=calm,
)

# --- odd and healthy


class Reversible(nn.Module):
    """Two streams that change each other in turn."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.f = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.g = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        for f, g in zip(self.f, self.g, strict=True):
            a = a + torch.tanh(f(b))
            b = b + torch.tanh(g(a))
        return torch.cat([a, b], dim=1)


def rows(seed: int, *body: nn.Module, width: int = 32, **more) -> Setup:
    return live(
        nn.Sequential(nn.Linear(20, width), *body, nn.Linear(width, 10)),
        genres(seed),
        **{"lr": 3e-3, "steps": 60, **more},
    )


zoo.healthy("genres-two-streams-in-turn", lambda s: rows(s, Reversible(16)))


class Zero(nn.Module):
    """A branch whose last layer starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.RMSNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        nn.init.zeros_(self.b.weight)
        nn.init.zeros_(self.b.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.silu(self.a(self.norm(x))))


zoo.healthy("genres-16-branches-from-zero", lambda s: rows(s, *(Zero(32) for _ in range(16)), steps=40))
zoo.healthy(
    "pulses-8-branches-of-a-third", lambda s: beats(s, [Branch(16, share=0.3) for _ in range(8)], lr=2e-3, steps=40)
)


class Squeezed(nn.Module):
    """A branch through two numbers beside a skip: narrow, and there is a way around."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, 2), nn.Linear(2, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(F.gelu(self.down(x)))


zoo.healthy("genres-branches-through-2-numbers", lambda s: rows(s, *(Squeezed(32) for _ in range(4))))


class Hour(nn.Module):
    """An hourglass: down, up, and sums of equal sizes across."""

    def __init__(self) -> None:
        super().__init__()
        self.d1, self.d2 = nn.Conv2d(1, 16, 3, 2, 1), nn.Conv2d(16, 24, 3, 2, 1)
        self.u2, self.u1 = nn.ConvTranspose2d(24, 16, 2, 2), nn.ConvTranspose2d(16, 1, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        a = F.silu(self.d1(x))
        return x.mean(dim=(2, 3), keepdim=True) + self.u1(F.silu(a + self.u2(F.silu(self.d2(a)))))


zoo.healthy("pictures-hourglass-with-sums", lambda s: live(Hour(), pictures(s), lr=5e-3, steps=60))
zoo.healthy(
    "genres-cut-off-on-purpose-two-losses", lambda s: live(Greedy(), genres(s).with_loss(greedy), lr=3e-3, steps=60)
)


class Greedy(nn.Module):
    """Every stage has a head of its own, and the gradient of one does not reach the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, 40), nn.Linear(40, 40)
        self.early, self.late = nn.Linear(40, 10), nn.Linear(40, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.gelu(self.first(x))
        return self.early(h), self.late(h.detach() + F.gelu(self.second(h.detach())))


def greedy(out: tuple[Tensor, Tensor], t: Tensor) -> Tensor:
    return sum(F.binary_cross_entropy_with_logits(z, t) for z in out)
