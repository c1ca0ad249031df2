# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks with one fault each, trained under watch, and their twins.

Half: live.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.live import at_last, breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.signal import equal_units, gradient_ratio, no_gradient, rank_at_most, saturated
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS, NARROW, ONE_WAY, RUNS_AWAY
from validation.nets import Lambda, gaussian_, he_
from validation.nets.programs import Plain, RankOne
from validation.setups import live
from validation.tasks import bends, blobs, communities, crescents, every, likeness, ratings, regression, spirals

zoo = Zoo("mlp", half="live", proof=thrives())

# --- dying and growing


def plain(depth: int, width: int, act=torch.relu, at=None, gain: float | None = 2**0.5) -> Plain:
    model = Plain([4, *[width] * depth, 3], act, at)
    return model if gain is None else gaussian_(model, gain)


spiral = zoo.healthy("spirals-functional-relu-6x48-adamw", lambda s: live(plain(6, 48), spirals(s)))
zoo.sick(
    "spirals-functional-sigmoid-11x48-sgd",
    lambda s: live(plain(11, 48, torch.sigmoid, gain=None), spirals(s), "SGD", 0.1, 50, momentum=0.9),
    lasting(gradient_ratio("layers.0", "layers.10", below=10**-2.5)),
    "VANISHING",
    control=spiral,
)
zoo.sick(
    "spirals-functional-mish-18x40-default-init",
    lambda s: live(plain(18, 40, F.mish, gain=None), spirals(s), "SGD", 0.02, 40, momentum=0.9),
    lasting(gradient_ratio("layers.0", "layers.17", below=10**-2.5)),
    "VANISHING",
    control=spiral,
)


def units(seed: int, factor: float) -> Setup:
    """Between the third and the fourth layer somebody converts millimetres to something else."""
    model = plain(6, 48, F.elu, {2: lambda h: h * factor})
    return live(model, spirals(seed, noise=0.4), lr=1e-3, steps=50)


elu = zoo.healthy("spirals-functional-elu-6x48", lambda s: units(s, 1.0))
zoo.sick(
    "spirals-elu-6x48-units-changed-behind-third",
    lambda s: units(s, 2e-5),
    lasting(gradient_ratio("layers.2", "layers.3", below=10**-2.5)),
    "VANISHING",
    layer=("layers.2", "layers.3"),
    control=elu,
)
leaky = zoo.healthy(
    "blobs-functional-leaky-12x44", lambda s: live(leaky_stack(2**0.5), blobs(s, 20, 5, 64, 0.8), lr=1e-3)
)


def leaky_stack(gain: float) -> Plain:
    return gaussian_(Plain([20, *[44] * 12, 5], F.leaky_relu), gain)


zoo.sick(
    "blobs-functional-leaky-12x44-gain-3.5",
    lambda s: live(leaky_stack(3.5), blobs(s, 20, 5, 64, 0.8), lr=1e-3),
    lasting(gradient_ratio("layers.0", "layers.11", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=leaky,
)
zoo.sick(
    "spirals-elu-6x48-units-changed-the-other-way",
    lambda s: units(s, 400.0),
    lasting(gradient_ratio("layers.2", "layers.3", above=100)),
    "EXPLODING",
    layer=("layers.2", "layers.3"),
    also={"UNSTABLE", "SATURATION"},
    control=elu,
)

# --- dead


def rectified(seed: int, share: float = 0.0, kind: str = "AdamW", lr: float = 2e-3) -> Setup:
    """A share of the second layer lies so low that it never fires."""
    model = he_(Plain([20, 80, 80, 80, 6]))
    with torch.no_grad():
        model.layers[1].bias[: round(80 * share)] = -25
    return live(model, blobs(seed, 20, 6, 96, 0.8), kind, lr)


relu = zoo.healthy("blobs-functional-relu-3x80", rectified)
zoo.sick(
    "blobs-functional-relu-3x80-second-layer-dead",
    lambda s: rectified(s, 1.0),
    lasting(never_fires("layers.1", 0.99), no_gradient("layers.0", "layers.1")),
    "DEAD",
    layer="layers.1",
    also=DEADENS,
    control=relu,
)
zoo.sick(
    "blobs-functional-relu-3x80-four-fifths-of-second-dead",
    lambda s: rectified(s, 0.8),
    lasting(never_fires("layers.1", 0.79)),
    "DEAD",
    layer="layers.1",
    control=relu,
)


class Siamese(nn.Module):
    """One encoder for two rows; their distance says whether they are alike. `eps` keeps the root from zero."""

    def __init__(self, width: int = 32, eps: float = 1e-6, low: float = 0.0) -> None:
        super().__init__()
        norm = nn.LayerNorm(width, elementwise_affine=False)  # a shift would cancel in the difference
        self.encoder = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, width), norm)
        self.out, self.eps = nn.Linear(1, 1), eps
        nn.init.constant_(self.out.weight, -1.0)
        nn.init.constant_(self.out.bias, 2.0)
        self.encoder[0].bias.data -= low

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        gap = (self.encoder(a) - self.encoder(b)).square().sum(dim=1, keepdim=True)
        return self.out((gap + self.eps).sqrt()).squeeze(1)


twins = zoo.healthy("siamese-distance-adamw", lambda s: live(Siamese(), likeness(s)))
zoo.sick(
    "siamese-distance-encoder-dead",
    lambda s: live(Siamese(low=40.0), likeness(s)),
    lasting(never_fires("encoder.0", 0.97)),
    "DEAD",
    layer="encoder.0",
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=twins,
)


def shocked(seed: int, lr: float) -> Setup:
    """Targets lie far below zero; with a large rate the first steps push every unit under."""
    task = regression(seed, 12, 1, 64).with_loss(lambda y, t: F.mse_loss(y, t - 8))
    return live(he_(Plain([12, 60, 60, 1])), task, "AdamW", lr, 60)


gentle = zoo.healthy("regression-far-target-adamw-3e-3", lambda s: shocked(s, 3e-3))
zoo.sick(
    "regression-far-target-adamw-0.2-kills-the-units",
    lambda s: shocked(s, 0.2),
    at_last(never_fires("layers.1", 0.95)),
    "DEAD",
    "EXPLODING",
    "UNSTABLE",
    also={*DEADENS, "NUMERICAL"},
    control=gentle,
)

# --- flat


def squashed(seed: int, factor: float) -> Setup:
    """Sensors in raw units go straight into tanh."""
    task = spirals(seed).mapped(lambda x: factor * x)
    return live(plain(3, 40, torch.tanh, gain=1.0), task, lr=2e-3)


tanh = zoo.healthy("spirals-functional-tanh-3x40", lambda s: squashed(s, 1.0))
zoo.sick(
    "spirals-functional-tanh-3x40-raw-units",
    lambda s: squashed(s, 400.0),
    lasting(flat_behind("layers.0", "tanh", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="layers.0",
    also={"EXPLODING", "UNSTABLE"},
    control=tanh,
)


class Highway(nn.Module):
    """Layers that mix their input with something new by a gate; `pinned` holds the second gate open or shut."""

    def __init__(self, width: int, depth: int, pinned: float = 0.0) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(20, width), nn.Linear(width, 6)
        self.new = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.gate = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        if pinned:
            sign = torch.randn(width).sign()
            self.gate[1].bias.data = pinned * sign

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.enter(x))
        for new, gate in zip(self.new, self.gate, strict=True):
            t = torch.sigmoid(gate(x))
            x = t * F.gelu(new(x)) + (1 - t) * x
        return self.leave(x)


highway = zoo.healthy("highway-4x36", lambda s: live(Highway(36, 4), blobs(s, 20, 6, 96, 0.8)))
zoo.sick(
    "highway-4x36-second-gate-pinned",
    lambda s: live(Highway(36, 4, 22.0), blobs(s, 20, 6, 96, 0.8)),
    lasting(flat_behind("gate.1", "sigmoid", 0.98)),
    "SATURATION",
    "DEAD",
    "VANISHING",
    layer="gate.1",
    also={"DISCONNECTED", "LOW_RANK", "BOTTLENECK"},
    control=highway,
)


class Coder(nn.Module):
    """Encoder to a bounded code and back; `gain` multiplies the weights in front of the bound."""

    def __init__(self, code: int, dim: int = 24, gain: float = 1.0, act: type[nn.Module] = nn.Tanh) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, 40), nn.GELU(), nn.Linear(40, code), act())
        self.decoder = nn.Sequential(nn.Linear(code, 40), nn.GELU(), nn.Linear(40, dim))
        self.encoder[2].weight.data *= gain

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        code = self.encoder(x)
        return {"code": code, "x": self.decoder(code)}


def coded(seed: int, code: int, factors: int = 5, lr: float = 5e-3, **more) -> Setup:
    task = bends(seed, 24, factors).with_loss(lambda out, x: F.mse_loss(out["x"], x))
    return live(Coder(code, **more), task, lr=lr, steps=80)


coder = zoo.healthy("autoencoder-tanh-code-8-of-5-factors", lambda s: coded(s, 8))
zoo.sick(
    "autoencoder-tanh-code-at-its-ends",
    lambda s: coded(s, 8, lr=1e-3, gain=400.0),
    lasting(saturated("encoder.3", "tanh", 0.85)),
    "SATURATION",
    "VANISHING",
    layer="encoder.2",
    also={"EXPLODING", "UNSTABLE"},
    control=coder,
)

# --- narrow

free = zoo.healthy("autoencoder-free-code-9-of-8-factors", lambda s: coded(s, 9, 8, act=nn.Identity))
zoo.sick(
    "autoencoder-free-code-1-of-8-factors",
    lambda s: coded(s, 1, 8, act=nn.Identity),
    lasting(rank_at_most("encoder.2", 1)),
    "BOTTLENECK",
    layer=("encoder.2", "decoder.0"),
    also=NARROW,
    control=free,
)
zoo.sick(
    "autoencoder-tanh-code-1-of-5-factors",
    lambda s: coded(s, 1),
    lags(0.15),
    "BOTTLENECK",
    layer=("encoder.2", "decoder.0"),
    also=NARROW,
    control=coder,
)


class Graph(nn.Module):
    """Two rounds of neighbours' means over a dense adjacency, with a width of `narrow` between them."""

    def __init__(self, narrow: int, rank_one: bool = False, value: float | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(10, narrow), nn.Linear(narrow, 40)
        self.third = RankOne(40, 40) if rank_one else nn.Linear(40, 40)
        self.out = nn.Linear(40, 4)
        if value is not None:
            nn.init.constant_(self.second.weight, value)
            nn.init.zeros_(self.second.bias)
            self.third.weight.data = self.third.weight.data[:, :1].repeat(1, 40)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = F.silu(adjacency @ self.first(x))
        h = F.silu(adjacency @ self.second(h))
        return self.out(F.silu(self.third(h)))


graph = zoo.healthy("graph-of-dense-adjacency", lambda s: live(Graph(32), communities(s), lr=5e-3))
zoo.sick(
    "graph-of-dense-adjacency-width-1",
    lambda s: live(Graph(1), communities(s), lr=5e-3),
    lags(0.15),
    "BOTTLENECK",
    layer=("first", "second"),
    also=NARROW,
    control=graph,
)
zoo.sick(
    "graph-of-dense-adjacency-third-of-rank-1",
    lambda s: live(Graph(32, rank_one=True), communities(s), lr=5e-3),
    lags(0.1),
    *ONE_WAY,
    layer="third",
    also={"SYMMETRY"},
    control=graph,
)
zoo.sick(
    "graph-of-dense-adjacency-second-of-equal-units",
    lambda s: live(Graph(32, value=0.05), communities(s), lr=5e-3),
    lasting(equal_units("second.weight")),
    "SYMMETRY",
    layer="second",
    also={"LOW_RANK", "BOTTLENECK", "VANISHING"},
    control=graph,
)


class Tasks(nn.Module):
    """One trunk, three heads of unlike kind, an output of named parts."""

    def __init__(self, narrow: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 64), nn.SiLU(), nn.Linear(64, narrow), nn.SiLU())
        self.kind, self.size, self.odd = nn.Linear(narrow, 9), nn.Linear(narrow, 3), nn.Linear(narrow, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.trunk(x)
        return {"kind": self.kind(h), "size": self.size(h), "odd": self.odd(h).squeeze(1)}


def three_losses(out: dict[str, Tensor], target: Tensor) -> Tensor:
    odd = F.binary_cross_entropy_with_logits(out["odd"], (target % 2).float())
    return F.cross_entropy(out["kind"], target) + F.cross_entropy(out["size"], target // 3) + odd


def tasks(seed: int, narrow: int) -> Setup:
    return live(Tasks(narrow), blobs(seed, 20, 9, 96, 0.9).with_loss(three_losses), lr=5e-3, steps=60)


several = zoo.healthy("three-heads-on-a-trunk-of-32", lambda s: tasks(s, 32))
zoo.sick(
    "three-heads-on-a-trunk-of-1",
    lambda s: tasks(s, 1),
    lags(0.15),
    "BOTTLENECK",
    layer=("trunk.2", "kind"),
    also=NARROW,
    control=several,
)


class Film(nn.Module):
    """A condition sets scale and shift of a layer; it is read through `narrow` numbers. `act` bounds what it says."""

    def __init__(self, narrow: int) -> None:
        super().__init__()
        self.read, self.say = nn.Linear(10, narrow), nn.Linear(narrow, 96)
        self.enter, self.leave = nn.Linear(10, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        thing, condition = x.chunk(2, dim=1)
        scale, shift = self.say(self.read(condition)).chunk(2, dim=1)
        return self.leave(F.silu(self.enter(thing) * (1 + scale) + shift))


def film(seed: int, narrow: int) -> Setup:
    return live(Film(narrow), blobs(seed, 20, 10, 96, 0.9), lr=5e-3, steps=60)


filmed = zoo.healthy("film-condition-through-10", lambda s: film(s, 10))
zoo.sick(
    "film-all-through-1",
    lambda s: live(
        nn.Sequential(nn.Linear(20, 1), nn.Linear(1, 20), Film(10)), blobs(s, 20, 10, 96, 0.9), lr=5e-3, steps=60
    ),
    lags(0.15),
    "BOTTLENECK",
    layer=("0", "1"),
    also=NARROW,
    control=filmed,
)


def mixed(seed: int, rank_one: bool) -> Setup:
    model = he_(Plain([20, 56, 56, 56, 12], F.silu))
    if rank_one:
        model.layers[1] = RankOne(56, 56)
    return live(model, blobs(seed, 20, 12, 96, 0.9), lr=5e-3)


silu = zoo.healthy("blobs-functional-silu-3x56", lambda s: mixed(s, False))
zoo.sick(
    "blobs-functional-silu-3x56-second-of-rank-1",
    lambda s: mixed(s, True),
    lasting(rank_at_most("layers.1", 1.01)),
    *ONE_WAY,
    layer="layers.1",
    also={"SYMMETRY"},
    control=silu,
)

# --- equal and cut


@torch.no_grad()
def constant(seed: int, value: float | None) -> Setup:
    model = Plain([4, 30, 30, 3], torch.tanh)
    if value is not None:
        for parameter in model.parameters():
            parameter.fill_(value)
    return live(model, spirals(seed), lr=5e-3)


drawn = zoo.healthy("spirals-functional-tanh-2x30-default", lambda s: constant(s, None))
zoo.sick(
    "spirals-functional-tanh-2x30-all-of-one-value",
    lambda s: constant(s, 0.1),
    lasting(equal_units("layers.0.weight"), equal_units("layers.1.weight")),
    "SYMMETRY",
    also={"LOW_RANK", "BOTTLENECK", "VANISHING"},
    control=drawn,
)


class Vae(nn.Module):
    """Variational autoencoder; `sampled` draws the code outside of the graph."""

    def __init__(self, code: int = 6, sampled: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 48), nn.GELU())
        self.mu, self.logvar = nn.Linear(48, code), nn.Linear(48, code)
        self.decoder = nn.Sequential(nn.Linear(code, 48), nn.GELU(), nn.Linear(48, 24))
        self.sampled = sampled

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        q = torch.distributions.Normal(mu, (logvar / 2).exp())
        return {"x": self.decoder(q.sample() if self.sampled else q.rsample()), "mu": mu, "logvar": logvar}


def elbo(weight: float):
    def loss(out: dict[str, Tensor], x: Tensor) -> Tensor:
        rebuilt = F.mse_loss(out["x"], x)
        if not weight:
            return rebuilt
        kl = 0.5 * (out["mu"] ** 2 + out["logvar"].exp() - 1 - out["logvar"]).sum(dim=1).mean()
        return rebuilt + weight * kl

    return loss


vae = zoo.healthy(
    "vae-code-6-kl-0.01", lambda s: live(Vae(), bends(s).with_loss(elbo(0.01)), lr=5e-3, steps=80), thrives(0.15)
)
zoo.sick(
    "vae-code-drawn-outside-of-the-graph",
    lambda s: live(Vae(sampled=True), bends(s).with_loss(elbo(0.0)), lr=5e-3, steps=80),
    lasting(no_gradient("encoder", "mu", "logvar")),
    "DISCONNECTED",
    layer=("mu", "logvar"),
    also={"DEAD"},
    control=vae,
)


class Factors(nn.Module):
    """Users and items as vectors, with a bias each; `through` changes what the user's vector is."""

    def __init__(self, size: int = 8, through=None, sparse: bool = False) -> None:
        super().__init__()
        self.users, self.items = (nn.Embedding(n, size, sparse=sparse) for n in (400, 120))
        self.fame, self.mean = nn.Embedding(120, 1, sparse=sparse), nn.Parameter(torch.tensor(3.0))
        self.mix = nn.Sequential(nn.Linear(2 * size, 32), nn.ReLU(), nn.Linear(32, 1))
        self.through = through

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        u = self.users(user)
        if self.through:
            u = self.through(u)
        return self.mean + (self.mix(torch.cat([u, self.items(item)], dim=1)) + self.fame(item)).squeeze(1)


rated = zoo.healthy("ratings-by-embeddings", lambda s: live(Factors(), ratings(s), lr=1e-2, steps=60))
zoo.sick(
    "ratings-users-through-numpy",
    lambda s: live(
        Factors(through=lambda u: torch.from_numpy(u.detach().numpy().round(1))), ratings(s), lr=1e-2, steps=60
    ),
    lasting(no_gradient("users")),
    "DISCONNECTED",
    layer="users",
    also={"DEAD"},
    control=rated,
)


class Frozen(nn.Module):
    """An encoder that somebody wanted to train but left under `no_grad`."""

    def __init__(self, blind: bool) -> None:
        super().__init__()
        self.encoder, self.head = he_(Plain([20, 64, 64, 32])), nn.Linear(32, 6)
        self.blind = blind

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.blind):
            h = self.encoder(x)
        return self.head(torch.relu(h))


seen = zoo.healthy("encoder-and-head", lambda s: live(Frozen(False), blobs(s, 20, 6, 96, 0.8)))
zoo.sick(
    "encoder-left-under-no-grad",
    lambda s: live(Frozen(True), blobs(s, 20, 6, 96, 0.8)),
    lasting(no_gradient("encoder")),
    "DISCONNECTED",
    layer=("encoder.layers.2", "head"),
    also={"DEAD"},
    control=seen,
)

# --- numbers, jumps, rates


def same_pairs(pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    a, b = pairs
    return a, torch.cat([a[:1], b[1:]])


rooted = zoo.healthy("siamese-same-row-twice-with-eps", lambda s: live(Siamese(), likeness(s).mapped(same_pairs)))
zoo.sick(
    "siamese-same-row-twice-root-of-zero",
    lambda s: live(Siamese(eps=0.0), likeness(s).mapped(same_pairs)),
    breaks,
    "NUMERICAL",
    also={"EXPLODING", "UNSTABLE"},
    control=rooted,
)


class Flow(nn.Module):
    """Coupling layers between two coordinates; `bound` keeps the log-scales in reach."""

    def __init__(self, bound: float | None, depth: int = 6) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 2))
            for _ in range(depth)
        )
        self.bound = bound

    def forward(self, x: Tensor) -> Tensor:
        logdet = torch.zeros(len(x))
        for net in self.nets:
            a, b = x.chunk(2, dim=1)
            s, t = net(a).chunk(2, dim=1)
            s = self.bound * torch.tanh(s / self.bound) if self.bound else s
            x, logdet = torch.cat([b * s.exp() + t, a], dim=1), logdet + s.squeeze(1)
        return 0.5 * x.square().sum(dim=1) - logdet


def flow(seed: int, bound: float | None, factor: float = 1.0) -> Setup:
    return live(Flow(bound), crescents(seed).mapped(lambda x: factor * x), lr=5e-3, steps=60)


bounded = zoo.healthy("coupling-flow-bounded-scales", lambda s: flow(s, 2.0), thrives(0.05))
zoo.sick(
    "coupling-flow-free-scales-raw-units",
    lambda s: flow(s, None, 3000.0),
    breaks,
    "NUMERICAL",
    "EXPLODING",
    "UNSTABLE",
    control=bounded,
)


def likely(seed: int, by_hand: bool, factor: float = 60.0) -> Setup:
    def loss(z: Tensor, t: Tensor) -> Tensor:
        return -torch.log(torch.softmax(z, 1).gather(1, t[:, None])).mean() if by_hand else F.cross_entropy(z, t)

    task = blobs(seed, 20, 6, 64, 0.8).mapped(lambda x: factor * x).with_loss(loss)
    return live(he_(Plain([20, 48, 48, 6], F.gelu)), task, lr=1e-3)


by_torch = zoo.healthy("log-softmax-of-torch", lambda s: likely(s, False, 1.0))
zoo.sick(
    "log-of-softmax-by-hand-of-large-inputs",
    lambda s: likely(s, True),
    breaks,
    "NUMERICAL",
    also={"EXPLODING", "UNSTABLE", "SATURATION"},
    control=by_torch,
)


def broken_rows(seed: int, size: float) -> Setup:
    """Every tenth batch of ratings comes from another scale."""
    now = every(10, 6)
    task = ratings(seed)
    return live(Factors(), task.with_loss(lambda y, t: F.mse_loss(y, t * (size if now() else 1.0))), lr=1e-2, steps=70)


level = zoo.healthy("ratings-of-one-scale", lambda s: broken_rows(s, 1.0))
zoo.sick(
    "ratings-every-tenth-batch-of-another-scale",
    lambda s: broken_rows(s, 300.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=level,
)


def outliers(seed: int, size: float) -> Setup:
    """Now and then a row of the inputs holds a value that is thousands of times too large."""
    now = every(9, 5)

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        if now():
            x[0] *= size
        return x

    model = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    return live(model, regression(seed, 12, 1, 48).mapped(change), lr=3e-3, steps=70)


clean = zoo.healthy("regression-silu-2x64-clean-rows", lambda s: outliers(s, 1.0))
zoo.sick(
    "regression-silu-2x64-wild-row-in-every-ninth-batch",
    lambda s: outliers(s, 3e3),
    gradient_norms_spread(30),
    *JUMPS,
    control=clean,
)


def paced(seed: int, kind: str, lr: float, **more) -> Setup:
    task = bends(seed).with_loss(lambda out, x: F.mse_loss(out["x"], x))
    return live(Coder(8, act=nn.Identity), task, kind, lr, 50, **more)


pace = zoo.healthy("autoencoder-sgd-momentum-0.1", lambda s: paced(s, "SGD", 0.1, momentum=0.9))
zoo.sick("autoencoder-adamw-1e-9", lambda s: paced(s, "AdamW", 1e-9), does_not_move(steps=50), "SLOW", control=pace)
zoo.sick(
    "autoencoder-sgd-3e-8", lambda s: paced(s, "SGD", 3e-8, momentum=0.9), does_not_move(steps=50), "SLOW", control=pace
)
zoo.sick(
    "autoencoder-rmsprop-2",
    lambda s: paced(s, "RMSprop", 2.0),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "SATURATION", "LOW_RANK", "BOTTLENECK", "VANISHING"},
    control=pace,
)
zoo.sick(
    "blobs-functional-silu-3x56-sgd-60",
    lambda s: live(he_(Plain([20, 56, 56, 56, 12], F.silu)), blobs(s, 20, 12, 96, 0.9), "SGD", 60.0),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=silu,
)


class Cut(Lambda):
    """A detach that somebody left behind after debugging."""


def debugged(seed: int, cut: bool) -> Setup:
    middle = Cut(Tensor.detach) if cut else nn.Identity()
    model = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), middle, nn.Linear(48, 1))
    return live(model, regression(seed, 12, 1, 48), lr=1e-2, steps=60)


whole = zoo.healthy("regression-tanh-2x48", lambda s: debugged(s, False))
zoo.sick(
    "regression-tanh-2x48-detach-left-behind",
    lambda s: debugged(s, True),
    lasting(no_gradient("0", "2")),
    "DISCONNECTED",
    layer=("2", "4"),
    also={"DEAD"},
    control=whole,
)
