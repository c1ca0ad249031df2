# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks of bakeries, minerals, ledgers and maps, with one fault each, and their twins.

Half: veiled.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._veiled_tasks import atlases, bakes, fares, halves, ledgers, minerals, recipes
from validation.evidence.live import at_last, breaks, lags, lasting, thrives
from validation.evidence.signal import both, dead, equal_units, gradient_ratio, no_gradient, rank_at_most, saturated
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS, NARROW, ONE_WAY, RUNS_AWAY
from validation.nets import mlp
from validation.nets.programs import Plain
from validation.setups import live
from validation.tasks import every

zoo = Zoo("mlp", half="veiled", proof=thrives())

# --- narrow


class Mapmaker(nn.Module):
    """Coordinates, waves of them, a net; `size` numbers are what the waves are made of."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.turn, self.net = nn.Linear(2, size), mlp([16 * size, 48, 48, 3], nn.SiLU)
        self.register_buffer("pace", torch.linspace(0.5, 4.0, 8))

    def forward(self, x: Tensor) -> Tensor:
        waves = (self.turn(x)[:, :, None] * self.pace).flatten(1)
        return self.net(torch.cat([waves.sin(), waves.cos()], dim=1))


def mapped(seed: int, size: int) -> Setup:
    return live(Mapmaker(size), atlases(seed), lr=5e-3, steps=90)


both_axes = zoo.healthy("atlases-waves-of-two-coordinates", lambda s: mapped(s, 2))
zoo.sick(
    "atlases-waves-of-one-number",
    lambda s: mapped(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("turn", "net.0"),
    also=NARROW,
    control=both_axes,
)


class Quantised(nn.Module):
    """Each row becomes the nearest of a few learned codes, the gradient passes by, a net reads the code."""

    def __init__(self, codes: int, parts: int = 4) -> None:
        super().__init__()
        self.parts, self.enc, self.dec = parts, mlp([28, 40, 4 * parts], nn.GELU), mlp([4 * parts, 40, 28], nn.GELU)
        self.book = nn.Parameter(torch.randn(codes, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.enc(x).unflatten(1, (self.parts, 4))
        nearest = self.book[torch.cdist(z.detach(), self.book).argmin(dim=2)]
        held = (nearest - z.detach()).square().mean() + 0.25 * (nearest.detach() - z).square().mean()
        return self.dec((z + (nearest - z).detach()).flatten(1)), held


def quantised(seed: int, codes: int, parts: int) -> Setup:
    task = ledgers(seed).with_loss(lambda out, x: F.mse_loss(out[0], x) + out[1])
    return live(Quantised(codes, parts), task, lr=1e-2, steps=90)


zoo.healthy("ledgers-six-words-of-a-book-of-24", lambda s: quantised(s, 24, 6))


class Tied(nn.Module):
    """An autoencoder that decodes by the transposed matrices."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(28, 40), nn.Linear(40, code)
        self.back, self.end = nn.Parameter(torch.zeros(40)), nn.Parameter(torch.zeros(28))

    def forward(self, x: Tensor) -> Tensor:
        code = self.narrow(torch.tanh(self.wide(x)))
        h = torch.tanh(F.linear(code, self.narrow.weight.T, self.back))
        return F.linear(h, self.wide.weight.T, self.end)


tied = zoo.healthy("ledgers-tied-code-of-8", lambda s: live(Tied(8), ledgers(s), lr=5e-3, steps=80))
zoo.healthy("ledgers-tied-code-of-5-for-5-causes", lambda s: live(Tied(5), ledgers(s), lr=5e-3, steps=80))
zoo.sick(
    "ledgers-tied-code-of-1-for-5-causes",
    lambda s: live(Tied(1), ledgers(s), lr=5e-3, steps=80),
    lags(0.15),
    "BOTTLENECK",
    layer=("narrow",),
    also=NARROW,
    control=tied,
)


class Prototypes(nn.Module):
    """A class is a point of a learned space; the nearest one wins."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.fc1, self.fc2, self.embed = nn.Linear(14, 40), nn.Linear(40, 40), nn.Linear(40, size)
        self.points = nn.Parameter(torch.randn(7, size))

    def forward(self, x: Tensor) -> Tensor:
        z = self.embed(F.mish(self.fc2(F.mish(self.fc1(x)))))
        return -(z[:, None] - self.points).square().sum(dim=2)


points = zoo.healthy("minerals-prototypes-in-ten-dimensions", lambda s: live(Prototypes(10), minerals(s), lr=3e-3))
zoo.sick(
    "minerals-prototypes-on-a-line",
    lambda s: live(Prototypes(1), minerals(s), lr=3e-3),
    lags(0.1),
    "BOTTLENECK",
    layer=("embed", "points"),
    also=NARROW,
    control=points,
)


class Maxout(nn.Module):
    """The largest of every `pool` units goes on."""

    def __init__(self, pool: int) -> None:
        super().__init__()
        self.pool, self.fc1, self.fc2, self.out = pool, nn.Linear(14, 48), nn.Linear(48 // pool, 32), nn.Linear(32, 7)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(x).unflatten(1, (-1, self.pool)).amax(dim=2)
        return self.out(F.gelu(self.fc2(h)))


pairs = zoo.healthy("minerals-largest-of-two", lambda s: live(Maxout(2), minerals(s), lr=5e-3, steps=50))
zoo.sick(
    "minerals-largest-of-all",
    lambda s: live(Maxout(48), minerals(s), lr=5e-3, steps=50),
    lags(0.2),
    "BOTTLENECK",
    layer=("fc1", "fc2"),
    also=NARROW,
    control=pairs,
)


class Kitchen(nn.Module):
    """Ingredients as vectors, put together, then read; `size` is what the meeting of the four is put into."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(15, 12) for _ in range(4))
        self.meet, self.fc, self.out = nn.Linear(48, size), nn.Linear(size, 40), nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([table(column) for table, column in zip(self.tables, x.T, strict=True)], dim=1)
        return self.out(F.relu(self.fc(self.meet(h))))


kitchen = zoo.healthy("recipes-meet-in-16", lambda s: live(Kitchen(16), recipes(s), lr=5e-3, steps=80))
zoo.sick(
    "recipes-meet-in-1",
    lambda s: live(Kitchen(1), recipes(s), lr=5e-3, steps=80),
    lags(0.1),
    "BOTTLENECK",
    layer=("meet", "fc"),
    also=NARROW,
    control=kitchen,
)


class Columns(nn.Module):
    """Standardises by the first row's columns; `wrong` reads the first column for all of them."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong, self.fc1, self.fc2, self.out = wrong, nn.Linear(14, 40), nn.Linear(40, 40), nn.Linear(40, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :1].expand_as(x) if self.wrong else x
        return self.out(F.gelu(self.fc2(F.gelu(self.fc1(x)))))


columns = zoo.healthy("minerals-all-columns", lambda s: live(Columns(False), minerals(s), lr=3e-3))
zoo.sick(
    "minerals-first-column-for-all",
    lambda s: live(Columns(True), minerals(s), lr=3e-3),
    both(lasting(rank_at_most("fc1", 1.05)), lags(0.15)),
    *ONE_WAY,
    layer=("fc1", "fc2"),
    also={"SYMMETRY"},
    control=columns,
)


def averaged(seed: int, to: int) -> Setup:
    """Hidden features are averaged over groups; `to` groups are left, spread out again behind."""
    pool = nn.Sequential(nn.AdaptiveAvgPool1d(to), nn.Upsample(size=40))

    def group(h: Tensor) -> Tensor:
        return pool(h[:, None])[:, 0]

    return live(Plain([10, 40, 40, 8], F.gelu, {0: group}), bakes(seed, out=8), lr=5e-3, steps=80)


groups = zoo.healthy("bakes-features-in-twenty-groups", lambda s: averaged(s, 20))
zoo.sick(
    "bakes-features-in-one-group",
    lambda s: averaged(s, 1),
    lags(0.1),
    *ONE_WAY,
    layer=("layers.0", "layers.1"),
    also={"SYMMETRY"},
    control=groups,
)

# --- dead and flat


class Clamped(nn.Module):
    """Costs are held on their side of zero, then rectified; `wrong` takes the other side."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3, self.relu, self.wrong = (
            nn.Linear(10, 40),
            nn.Linear(40, 40),
            nn.Linear(40, 1),
            nn.ReLU(),
            wrong,
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc2(F.silu(self.fc1(x)))
        h = h.clamp(max=0.0) if self.wrong else h.clamp(max=20.0)
        return self.fc3(self.relu(h))


clamped = zoo.healthy("bakes-held-below-20", lambda s: live(Clamped(False), bakes(s), lr=5e-3, steps=60))
zoo.sick(
    "bakes-held-below-0-then-rectified",
    lambda s: live(Clamped(True), bakes(s), lr=5e-3, steps=60),
    lasting(dead("relu", 0.99), no_gradient("fc1", "fc2")),
    "DEAD",
    layer=("fc2", "fc3"),
    also={*DEADENS, *ONE_WAY},
    control=clamped,
)


def dying(seed: int, lr: float, off: float) -> Setup:
    """Amounts that are hardly ever negative, and prices around 10; large steps throw the rectifiers off."""
    task = bakes(seed).changed(lambda x, t: (x + off, t + 1 + 3 * off)).with_loss(F.smooth_l1_loss)
    return live(mlp([10, 48, 32, 1]), task, "Adam", lr, 60)


calm = zoo.healthy("bakes-amounts-without-their-mean-adam-0.005", lambda s: dying(s, 5e-3, 0.0))
zoo.sick(
    "bakes-raw-amounts-adam-0.3",
    lambda s: dying(s, 0.3, 3.0),
    at_last(dead("1", 0.9)),
    "DEAD",
    layer=("0", "2"),
    also={*DEADENS, *ONE_WAY, *RUNS_AWAY},
    control=calm,
)


def grams(seed: int, unit: float) -> Setup:
    """Bounded units for amounts as they are weighed."""
    model = nn.Sequential(nn.Linear(14, 40), nn.Softsign(), nn.Linear(40, 32), nn.Softsign(), nn.Linear(32, 7))
    return live(model, minerals(seed).mapped(lambda x: unit * x), lr=3e-3, steps=50)


kilograms = zoo.healthy("minerals-softsign-in-kilograms", lambda s: grams(s, 1.0))
zoo.sick(
    "minerals-softsign-in-grams",
    lambda s: grams(s, 1000.0),
    lasting(saturated("1", "softsign", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="0",
    also={"EXPLODING", "UNSTABLE", "DEAD"},
    control=kilograms,
)


class Binary(nn.Module):
    """Nearly binary units: a hard tanh with a gain."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain, self.fc1, self.fc2, self.out = gain, nn.Linear(10, 40), nn.Linear(40, 40), nn.Linear(40, 1)
        self.hard1, self.hard2 = nn.Hardtanh(), nn.Hardtanh()

    def forward(self, x: Tensor) -> Tensor:
        h = self.hard1(self.gain * self.fc1(x))
        return self.out(self.hard2(self.gain * self.fc2(h)))


soft = zoo.healthy("bakes-hard-tanh-gain-1", lambda s: live(Binary(1.0), bakes(s), lr=5e-3, steps=60))
zoo.sick(
    "bakes-hard-tanh-gain-300",
    lambda s: live(Binary(300.0), bakes(s), lr=3e-3, steps=60),
    lasting(saturated("hard1", "hardtanh", 0.9), saturated("hard2", "hardtanh", 0.9)),
    "SATURATION",
    "VANISHING",
    layer=("fc1", "fc2"),
    also={"EXPLODING", "UNSTABLE", "DEAD"},
    control=soft,
)

# --- cut


class Borrowed(nn.Module):
    """An encoder that came with `no_grad` around it from where it was a fixed one."""

    def __init__(self, grad: bool) -> None:
        super().__init__()
        self.grad, self.encoder, self.head = grad, mlp([14, 40, 24], nn.GELU), mlp([24, 32, 7], nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.grad):
            z = self.encoder(x)
        return self.head(z)


borrowed = zoo.healthy("minerals-encoder-with-its-graph", lambda s: live(Borrowed(True), minerals(s)))
zoo.sick(
    "minerals-encoder-under-no-grad",
    lambda s: live(Borrowed(False), minerals(s)),
    lasting(no_gradient("encoder")),
    "DISCONNECTED",
    layer=("encoder.0", "encoder.2"),
    also={"DEAD"},
    control=borrowed,
)


class Sided(nn.Module):
    """A second way beside the main one; `share` of it counts."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share, self.main, self.side = share, mlp([10, 24, 1], nn.Tanh), mlp([10, 40, 1], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x) + self.share * self.side(x)


sided = zoo.healthy("bakes-side-way-counts-half", lambda s: live(Sided(0.5), bakes(s), lr=5e-3, steps=60))
zoo.sick(
    "bakes-side-way-counts-nothing",
    lambda s: live(Sided(0.0), bakes(s), lr=5e-3, steps=60),
    lasting(no_gradient("side")),
    "DISCONNECTED",
    layer=("side.0", "side.2"),
    also={"DEAD", "VANISHING"},
    control=sided,
)

# --- growing and dying


def deep(seed: int, gain: float, depth: int, act=F.celu, **more) -> Setup:
    model = Plain([14, *[40] * depth, 7], act)
    for layer in model.layers:
        nn.init.xavier_normal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return live(model, minerals(seed), **{"lr": 2e-3, "steps": 50, **more})


four = zoo.healthy("minerals-4-celu-layers-gain-1", lambda s: deep(s, 1.0, 4))
zoo.sick(
    "minerals-11-celu-layers-gain-3",
    lambda s: deep(s, 3.0, 11, lr=1e-6),
    lasting(gradient_ratio("layers.0", "layers.10", above=100)),
    "EXPLODING",
    also={"UNSTABLE", "NUMERICAL"},
    control=four,
)
zoo.sick(
    "minerals-11-arctan-layers-gain-0.3",
    lambda s: deep(s, 0.3, 11, torch.atan, kind="SGD", lr=0.05),
    both(lasting(gradient_ratio("layers.0", "layers.10", below=1e-3)), lags(0.1)),
    "VANISHING",
    also={"SLOW", *ONE_WAY},
    control=four,
)
six_sigmoids = zoo.healthy("minerals-2-sigmoid-layers", lambda s: deep(s, 2.0, 2, torch.sigmoid, lr=1e-2, steps=80))
zoo.sick(
    "minerals-7-sigmoid-layers-half-gain",
    lambda s: deep(s, 0.5, 7, torch.sigmoid, kind="SGD", lr=0.1, momentum=0.9),
    both(lasting(gradient_ratio("layers.0", "layers.6", below=1e-3)), lags(0.1)),
    "VANISHING",
    also={"SLOW", *ONE_WAY},
    control=six_sigmoids,
)


class Powers(nn.Module):
    """Each layer multiplies what it says by what the layer before said; `bounded` holds it within one."""

    def __init__(self, depth: int, bounded: bool) -> None:
        super().__init__()
        self.bounded, self.enter, self.out = bounded, nn.Linear(10, 32), nn.Linear(32, 1)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for layer in self.layers:
            said = 2 + layer(h)
            h = h * (torch.sigmoid(said) if self.bounded else said)
        return self.out(h)


bounded = zoo.healthy("bakes-products-of-bounded-factors", lambda s: live(Powers(3, True), bakes(s), lr=5e-3, steps=60))
zoo.sick(
    "bakes-products-of-4-unbounded-factors",
    lambda s: live(Powers(4, False), bakes(s), "SGD", 1e-2, 40),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "SATURATION", "LOW_RANK", "BOTTLENECK", "VANISHING", "DISCONNECTED", "loss_nonfinite"},
    control=bounded,
)

# --- equal units


def constant(seed: int, value: float | None) -> Setup:
    """All matrices begin at one value."""
    model = Plain([14, 32, 24, 7], torch.tanh)
    if value is not None:
        for layer in model.layers[:2]:
            nn.init.constant_(layer.weight, value)
            nn.init.zeros_(layer.bias)
        last = model.layers[2].weight
        last.data = last.data[:, :1].expand_as(last).clone()
    return live(model, minerals(seed), lr=5e-3, steps=50)


drawn = zoo.healthy("minerals-adamw-as-drawn", lambda s: constant(s, None))
zoo.sick(
    "minerals-matrices-of-0.03",
    lambda s: constant(s, 0.03),
    both(lasting(equal_units("layers.0.weight"), equal_units("layers.1.weight")), lags(0.1)),
    "SYMMETRY",
    layer=("layers.0", "layers.1", "layers.2"),
    also={*ONE_WAY},
    control=drawn,
)

# --- numbers, jumps, rates


class Fare(nn.Module):
    """What a ride costs: a kink that is rounded a little, by torch or by hand."""

    def __init__(self, safe: bool) -> None:
        super().__init__()
        self.safe, self.body, self.head = safe, mlp([7, 40, 32], nn.ELU), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.head(F.elu(self.body(x))).squeeze(1)
        return F.softplus(z, beta=40) if self.safe else torch.log(1 + (40 * z).exp()) / 40


def priced(seed: int, safe: bool) -> Setup:
    return live(Fare(safe), fares(seed).with_loss(F.smooth_l1_loss), lr=3e-3, steps=60)


by_torch = zoo.healthy("fares-softplus-of-torch", lambda s: priced(s, True))
zoo.sick("fares-own-softplus", lambda s: priced(s, False), breaks, "NUMERICAL", control=by_torch)


def angle(safe: bool):
    """The angle between the halves of a ticket; now and then both are one and the same."""
    bound = 1 - 1e-4 if safe else 1.0

    class Angle(nn.Module):
        """One net for both halves, and the angle between what it makes of them."""

        def __init__(self) -> None:
            super().__init__()
            self.net = mlp([20, 40, 16], nn.GELU)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            za, zb = (F.normalize(self.net(x), dim=1) for x in (a, b))
            return torch.acos(((za * zb).sum(dim=1)).clamp(-bound, bound))

    return Angle()


def angled(seed: int, safe: bool) -> Setup:
    """The first twenty halves belong to others: they shall stand upright on one another."""
    now = every(11, 6)

    def mixed(pair: tuple[Tensor, Tensor], _t: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        a, b = pair
        b = torch.cat([b[:20].roll(1, 0), a[20:30] if now() else b[20:30], b[30:]])
        return (a, b), (torch.arange(len(a)) < 20) * 1.5

    task = halves(seed).changed(mixed).with_loss(F.mse_loss)
    return live(angle(safe), task, lr=3e-3, steps=60)


within = zoo.healthy("halves-angle-held-within-bounds", lambda s: angled(s, True))
zoo.sick(
    "halves-angle-of-a-half-with-itself",
    lambda s: angled(s, False),
    breaks,
    "NUMERICAL",
    also={"EXPLODING", "UNSTABLE"},
    control=within,
)


def misread(seed: int, factor: float) -> Setup:
    """Now and then a meter reads in other units."""
    now = every(12, 8)

    def misreads(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return (torch.cat([factor * x[:2], x[2:]]), torch.cat([factor * t[:2], t[2:]])) if now() else (x, t)

    return live(mlp([10, 40, 40, 1], nn.GELU), bakes(seed).changed(misreads), lr=2e-3, steps=70)


read = zoo.healthy("bakes-read-in-one-unit", lambda s: misread(s, 1.0))
zoo.sick(
    "bakes-now-and-then-in-thousandths", lambda s: misread(s, 1000.0), gradient_norms_spread(30), *JUMPS, control=read
)


def heavy(seed: int, lr: float, momentum: float) -> Setup:
    return live(mlp([28, 48, 48, 28], nn.ReLU), ledgers(seed), "SGD", lr, 50, momentum=momentum)


light = zoo.healthy("ledgers-sgd-0.3-momentum-0.9", lambda s: heavy(s, 0.3, 0.9))
zoo.sick(
    "ledgers-sgd-6-momentum-0.9",
    lambda s: heavy(s, 6.0, 0.9),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "SATURATION", "LOW_RANK", "BOTTLENECK", "VANISHING", "DISCONNECTED", "loss_nonfinite"},
    control=light,
)


def paced(seed: int, lr: float) -> Setup:
    return live(Plain([7, 40, 40, 1], F.silu), fares(seed).with_loss(shaped), "RMSprop", lr, 50)


def shaped(z: Tensor, t: Tensor) -> Tensor:
    return F.smooth_l1_loss(z.view_as(t), t)


brisk = zoo.healthy("fares-rmsprop-rate-0.003", lambda s: paced(s, 3e-3))
zoo.sick("fares-rmsprop-rate-1e-10", lambda s: paced(s, 1e-10), does_not_move(steps=50), "SLOW", control=brisk)


def limited(seed: int, clip: float) -> Setup:
    return live(mlp([14, 40, 40, 7], nn.ELU), minerals(seed), "SGD", 0.2, 60, clip=clip)


free = zoo.healthy("minerals-sgd-gradients-within-2", lambda s: limited(s, 2.0))
zoo.sick(
    "minerals-sgd-gradients-within-1e-7", lambda s: limited(s, 1e-7), does_not_move(steps=60), "SLOW", control=free
)
