# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks of every day, with the faults that people report, and their twins.

Half: common.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Setup, Zoo, costly
from validation.cases._common_nets import (
    SQUEEZED,
    adverts,
    bags,
    energy,
    grades,
    islands,
    peaks,
    plant,
    tags,
    tones,
    tower,
    twins,
    worse,
)
from validation.cases._everyday_nets import CUT_OFF, NARROW, RUINED, gaussian, glorot, he, stands_still, start
from validation.evidence.live import at_last, breaks, lags, lasting, thrives, trained
from validation.evidence.signal import (
    both,
    dead,
    equal_units,
    gradient_ratio,
    judged,
    no_gradient,
    output_of,
    rank_at_most,
    saturated,
    trace,
)
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import live
from validation.tasks import communities, every

zoo = Zoo("mlp", half="common", proof=thrives())

# --- too narrow


class Denoiser(nn.Module):
    """A dense auto-encoder of batch norms and leaky units over spectra."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Linear(60, 48), nn.BatchNorm1d(48), nn.LeakyReLU(0.1), nn.Linear(48, code))
        self.up = nn.Sequential(nn.Linear(code, 48), nn.BatchNorm1d(48), nn.LeakyReLU(0.1), nn.Linear(48, 60))

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


def denoised(seed: int, code: int) -> Setup:
    return live(Denoiser(code), peaks(seed, noise=0.2), "AdamW", 5e-3, 70, weight_decay=1e-3)


clear = zoo.healthy("spectra-denoiser-code-12-of-9-lines", lambda s: denoised(s, 12))
zoo.sick(
    "spectra-denoiser-code-2-of-9-lines",
    lambda s: denoised(s, 2),
    both(lags(0.2), lasting(rank_at_most("down.3", 2.01))),
    *NARROW,
    layer=("down.3", "up.0"),
    control=clear,
)


class Variational(nn.Module):
    """A variational auto-encoder; the output is the picture, the mean and the log-variance."""

    def __init__(self, latent: int, dim: int = 60) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, 64), nn.ELU())
        self.mu, self.logvar = nn.Linear(64, latent), nn.Linear(64, latent)
        self.dec = nn.Sequential(nn.Linear(latent, 64), nn.ELU(), nn.Linear(64, dim))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h) - 3
        return self.dec(mu + (logvar / 2).exp() * torch.randn_like(mu)), mu, logvar


def elbo(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    kl = 0.5 * (out[1] ** 2 + out[2].exp() - out[2] - 1).sum(dim=1).mean()
    return F.mse_loss(out[0], x) + 0.002 * kl


def varied(seed: int, latent: int, lr: float = 5e-3) -> Setup:
    return live(Variational(latent), peaks(seed).with_loss(elbo), "Adam", lr, 80)


vae = zoo.healthy("spectra-vae-latent-16", lambda s: varied(s, 16))
zoo.sick(
    "spectra-vae-latent-1", lambda s: varied(s, 1), lags(0.2), *NARROW, layer=("mu", "dec.0", "logvar"), control=vae
)


class Towers(nn.Module):
    """A tower for users and one for items; their dot product says whether there is a click."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(50, 24), nn.Embedding(30, 24)
        self.user_net = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, size))
        self.item_net = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, size))
        self.scale = size**-0.5

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return 3 * self.scale * (self.user_net(self.user(user)) * self.item_net(self.item(item))).sum(dim=1)


def clicked(seed: int, size: int) -> Setup:
    return live(Towers(size), adverts(seed, factors=7), "Adam", 1e-2, 90)


towers = zoo.healthy("adverts-two-towers-of-16", lambda s: clicked(s, 16))
zoo.sick(
    "adverts-two-towers-of-1",
    lambda s: clicked(s, 1),
    lags(0.15),
    *NARROW,
    layer=("user_net.2", "item_net.2"),
    control=towers,
)


class Factorised(nn.Module):
    """Words have short vectors that a matrix makes long, as ALBERT does to save weights."""

    def __init__(self, short: int) -> None:
        super().__init__()
        self.table, self.lift = nn.Embedding(120, short), nn.Linear(short, 48, bias=False)
        self.norm, self.head = nn.LayerNorm(48), nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.norm(self.lift(self.table(text)).mean(dim=1)))


def tagged(seed: int, short: int) -> Setup:
    return live(Factorised(short), tags(seed, batch=128), "Adam", 1e-2, 100)


lifted = zoo.healthy("tags-embedding-of-16-lifted-to-48", lambda s: tagged(s, 16))
zoo.sick(
    "tags-embedding-of-1-lifted-to-48",
    lambda s: tagged(s, 1),
    both(lags(0.15), lasting(rank_at_most("lift", 10))),
    *NARROW,
    layer=("table", "lift"),
    also=SQUEEZED,
    control=lifted,
)


def gauged(seed: int, waist: int) -> Setup:
    model = tower([10, 64, waist, 64, 12], nn.SiLU)
    return live(model, plant(seed), "AdamW", 5e-3, 80)


gauges = zoo.healthy("plant-silu-64-32-64", lambda s: gauged(s, 32))
zoo.sick(
    "plant-silu-64-1-64", lambda s: gauged(s, 1), lags(0.2), *NARROW, layer=("2", "4"), also=SQUEEZED, control=gauges
)


class Clip(nn.Module):
    """Two encoders with projection heads, unit vectors, a learned temperature; scores of all pairs."""

    def __init__(self, size: int, frozen: bool = False) -> None:
        super().__init__()
        self.image, self.text = tower([20, 64, 64], nn.GELU), tower([20, 64, 64], nn.GELU)
        self.image_head, self.text_head = nn.Linear(64, size, bias=False), nn.Linear(64, size, bias=False)
        self.heat, self.frozen = nn.Parameter(torch.tensor(math.log(8.0))), frozen

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        a, b = self.image_head(F.gelu(self.image(image))), self.text_head(F.gelu(self.text(text)))
        a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
        return (a @ b.T.detach() if self.frozen else a @ b.T) * self.heat.exp()


def matched(seed: int, size: int) -> Setup:
    return live(Clip(size), twins(seed), "AdamW", 3e-3, 70)


contrast = zoo.healthy("captions-contrastive-heads-of-16", lambda s: matched(s, 16))
zoo.sick(
    "captions-contrastive-heads-of-2",
    lambda s: matched(s, 2),
    lags(0.2),
    *NARROW,
    layer=("image_head", "text_head"),
    control=contrast,
)


class Pooled(nn.Module):
    """A net for every member of a set, the sum, a net for the sum; `dim` is the one that is summed over."""

    def __init__(self, size: int, dim: int = 1) -> None:
        super().__init__()
        self.each, self.all, self.dim = tower([6, 48, size], nn.Tanh), tower([size, 48, 6], nn.Tanh), dim

    def forward(self, x: Tensor) -> Tensor:
        h = self.each(x)
        pooled = h.mean(dim=1) * 3 if self.dim == 1 else (h.mean(dim=(0, 1)) * 3).expand(len(x), -1)
        return self.all(pooled)


def bagged(seed: int, size: int, dim: int = 1) -> Setup:
    return live(Pooled(size, dim), bags(seed), "Adam", 1e-2, 90)


sets = zoo.healthy("bags-set-net-sum-of-24", lambda s: bagged(s, 24))
zoo.sick("bags-set-net-sum-of-1", lambda s: bagged(s, 1), lags(0.2), *NARROW, layer=("each.2", "all.0"), control=sets)
zoo.sick(
    "bags-set-net-mean-over-the-batch-too",
    lambda s: bagged(s, 24, 0),
    both(lags(0.2), lasting(rank_at_most("all.2", 1.01))),
    "LOW_RANK",
    "BOTTLENECK",
    also={"SLOW", "VANISHING"},
    control=sets,
)


class Crossed(nn.Module):
    """Two categories and a cross of them, hashed into so many buckets, as in wide and deep."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(50, size), nn.Embedding(30, size)
        self.deep = nn.Sequential(nn.Linear(2 * size, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return self.deep(torch.cat([self.user(user), self.item(item)], dim=1)).flatten()


def crossed(seed: int, size: int) -> Setup:
    return live(Crossed(size), adverts(seed, factors=4, batch=384), "Adam", 2e-2, 100)


concatenated = zoo.healthy("adverts-ncf-embeddings-of-12", lambda s: crossed(s, 12), thrives(0.2, most_dead=0.6))
zoo.sick(
    "adverts-ncf-embeddings-of-1",
    lambda s: crossed(s, 1),
    lags(0.15),
    *NARROW,
    layer=("user", "item", "deep.0"),
    also=SQUEEZED,
    control=concatenated,
)

# --- starts


def graded(seed: int, model: nn.Module, *args, **more) -> Setup:
    return live(model, grades(seed), *args, **more)


def deep(depth: int, act: type[nn.Module], width: int = 48, norm=None) -> nn.Sequential:
    return tower([11, *[width] * depth, 5], act, norm=norm)


zoo.healthy(
    "grades-tanh-12x48-layer-norm", lambda s: graded(s, deep(12, nn.Tanh, norm=nn.LayerNorm), "AdamW", 1e-3, 50)
)


def plain(seed: int, model: nn.Module) -> Setup:
    return graded(seed, model, "SGD", 0.02, 60, momentum=0.9)


drawn = zoo.healthy("grades-tanh-12x48-xavier", lambda s: plain(s, glorot(deep(12, nn.Tanh))))
zoo.sick(
    "grades-tanh-12x48-normal-0.02-as-in-gpt",
    lambda s: plain(s, gaussian(deep(12, nn.Tanh), 0.02)),
    both(lasting(gradient_ratio("0", "22", below=1e-4)), lags(0.05)),
    "VANISHING",
    also={"SLOW", "LOW_RANK", "BOTTLENECK"},
    control=drawn,
)
zoo.sick(
    "grades-softsign-12x48-torch-default",
    lambda s: plain(s, deep(12, nn.Softsign)),
    both(lasting(gradient_ratio("0", "22", below=1e-3)), lags(0.05)),
    "VANISHING",
    also={"SLOW", "LOW_RANK", "BOTTLENECK"},
    control=drawn,
)


class Sine(nn.Module):
    """A net of sines whose every layer multiplies by `omega`; its own start keeps the variance, torch's does not."""

    def __init__(self, own: bool, omega: float = 12.0, width: int = 48) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, width) for a in (1, width, width, width))
        self.out, self.omega = nn.Linear(width, 1), omega
        for layer in self.layers[1:]:
            if own:
                nn.init.uniform_(layer.weight, -math.sqrt(6 / width) / omega, math.sqrt(6 / width) / omega)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(self.omega * layer(x))
        return self.out(x)


siren = zoo.healthy("tones-siren-with-its-own-start", lambda s: live(Sine(True), tones(s), "Adam", 2e-3, 90))
zoo.sick(
    "tones-siren-with-the-start-of-torch",
    lambda s: live(Sine(False), tones(s), "Adam", 2e-3, 90),
    both(lasting(gradient_ratio("layers.0", "layers.3", above=50)), lags(0.1)),
    "EXPLODING",
    "UNSTABLE",
    control=siren,
)
leaky = zoo.healthy("grades-leaky-10x48-kaiming", lambda s: graded(s, he(deep(10, nn.LeakyReLU)), "Adam", 1e-3, 60))
zoo.sick(
    "grades-leaky-10x48-orthogonal-gain-4",
    lambda s: graded(s, start(deep(10, nn.LeakyReLU), lambda w: nn.init.orthogonal_(w, 4)), "Adam", 1e-3, 60),
    both(lasting(gradient_ratio("0", "18", above=100)), worse(1.5)),
    "EXPLODING",
    "UNSTABLE",
    control=leaky,
)
two = zoo.healthy(
    "energy-tanh-2x64-xavier", lambda s: live(glorot(tower([8, 64, 64, 1], nn.Tanh)), energy(s), "Adam", 1e-2, 100)
)
zoo.sick(
    "energy-tanh-2x64-all-weights-0.1",
    lambda s: live(
        start(tower([8, 64, 64, 1], nn.Tanh), lambda w: nn.init.constant_(w, 0.1)), energy(s), "Adam", 1e-2, 100
    ),
    both(lasting(equal_units("0.weight"), equal_units("2.weight")), worse(1.5)),
    "SYMMETRY",
    also={"LOW_RANK", "BOTTLENECK", "SATURATION"},
    control=two,
)


class Experts(nn.Module):
    """Four experts and a soft router; all of them may start as copies of one."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self.experts = nn.ModuleList(tower([11, 16, 5], nn.Tanh) for _ in range(4))
        self.router = nn.Linear(11, 4)
        if copies:
            for layer in [e[0] for e in self.experts]:
                layer.weight.data.copy_(self.experts[0][0].weight[:1].expand(16, -1))
                nn.init.zeros_(layer.bias)
            for expert in self.experts:
                nn.init.constant_(expert[2].weight, 0.1)
                nn.init.zeros_(expert[2].bias)
            nn.init.zeros_(self.router.weight)
            nn.init.zeros_(self.router.bias)

    def forward(self, x: Tensor) -> Tensor:
        said = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (self.router(x).softmax(dim=1)[..., None] * said).sum(dim=1)


experts = zoo.healthy("grades-four-experts-drawn-apart", lambda s: graded(s, Experts(False), "Adam", 1e-2, 80))
zoo.sick(
    "grades-four-experts-all-units-alike",
    lambda s: graded(s, Experts(True), "Adam", 1e-2, 80),
    both(lasting(equal_units("experts.0.0.weight"), equal_units("experts.3.0.weight")), lags(0.1)),
    "SYMMETRY",
    "LOW_RANK",
    "BOTTLENECK",
    also={"VANISHING", "DISCONNECTED", "DEAD"},
    control=experts,
)

# --- flat and dead


def weather(seed: int, offset: float) -> Setup:
    """Pressures in hectopascal, about 1013, or their distance from that."""
    model = tower([8, 64, 64, 1], nn.Sigmoid)
    task = energy(seed).mapped(lambda x: torch.cat([x[:, :6], 10 * x[:, 6:] + offset], dim=1) if offset else x)
    return live(model, task, "Adam", 2e-2, 100)


centred = zoo.healthy("energy-sigmoid-pressure-centred", lambda s: weather(s, 0.0))
zoo.sick(
    "energy-sigmoid-pressure-of-1013",
    lambda s: weather(s, 1013.0),
    both(lasting(saturated("1", "sigmoid", 0.9)), worse(1.5)),
    "SATURATION",
    "VANISHING",
    layer=("0", "1"),
    also={"SLOW", "LOW_RANK", "BOTTLENECK"},
    control=centred,
)


class Attentive(nn.Module):
    """Pools the members of a set by scores; a temperature of a thousandth makes the softmax a choice."""

    def __init__(self, heat: float) -> None:
        super().__init__()
        self.embed, self.score = nn.Linear(6, 32), nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4))
        self.out, self.heat = tower([128, 64, 6], nn.GELU), heat

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.embed(x))
        weight = (self.score(h) / self.heat).softmax(dim=1)
        return self.out(torch.einsum("bih,bid->bhd", weight, h).flatten(1))


attentive = zoo.healthy("bags-attention-pooling", lambda s: live(Attentive(1.0), bags(s), "Adam", 5e-3, 80))


class Monotone(nn.Module):
    """A net that may only rise with its inputs: weights go through softplus. A slip of sign turns the hidden ones."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 48), nn.Linear(48, 48), nn.Linear(48, 1)
        self.relu1, self.relu2, self.sign = nn.ReLU(), nn.ReLU(), sign
        for layer in (self.fc1, self.fc2, self.fc3):
            nn.init.normal_(layer.weight, -3.0, 0.7)
            nn.init.zeros_(layer.bias)
        nn.init.uniform_(self.fc1.bias, 0.0, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(F.linear(x, F.softplus(self.fc1.weight), self.fc1.bias))
        x = self.relu2(F.linear(x, self.sign * F.softplus(self.fc2.weight), self.fc2.bias))
        return F.linear(x, F.softplus(self.fc3.weight), self.fc3.bias)


def rising(seed: int, sign: float) -> Setup:
    task = energy(seed).changed(lambda x, _: (x, torch.tanh(x.sum(dim=1, keepdim=True) / 3) + x[:, :1].clamp_min(0)))
    return live(Monotone(sign), task, "Adam", 4e-3, 100)


monotone = zoo.healthy("energy-monotone-net", lambda s: rising(s, 1.0))
zoo.sick(
    "energy-monotone-net-hidden-weights-negative",
    lambda s: rising(s, -1.0),
    both(lasting(dead("relu2", 0.95)), lags(0.2)),
    "DEAD",
    "DISCONNECTED",
    layer=("fc2", "relu2", "fc1"),
    also={"VANISHING", "SLOW", "LOW_RANK", "BOTTLENECK"},
    control=monotone,
)


class Sparse(nn.Module):
    """A sparse code: what is smaller than `least` is cut to zero."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.enc, self.cut, self.dec = nn.Linear(60, 48), nn.Softshrink(least), nn.Linear(48, 60)

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(self.cut(self.enc(x)))


shrunk = zoo.healthy("spectra-sparse-code-threshold-0.1", lambda s: live(Sparse(0.1), peaks(s), "Adam", 1e-2, 60))
zoo.sick(
    "spectra-sparse-code-threshold-50",
    lambda s: live(Sparse(50.0), peaks(s), "Adam", 1e-2, 60),
    both(lasting(dead("cut", 0.99), no_gradient("enc")), lags(0.2)),
    "DEAD",
    "DISCONNECTED",
    layer=("enc", "cut", "dec"),
    also={"VANISHING"},
    control=shrunk,
)

kept = zoo.healthy("grades-relu-3x64-adam-2e-3", lambda s: graded(s, deep(3, nn.ReLU, 64), "Adam", 2e-3, 60))
zoo.sick(
    "grades-relu-3x64-adam-2-kills-the-units",
    lambda s: graded(s, deep(3, nn.ReLU, 64), "Adam", 2.0, 60),
    at_last(dead("5", 0.9)),
    "DEAD",
    *RUNS_AWAY,
    also=RUINED,
    control=kept,
)

# --- all alike


class Views(nn.Module):
    """Two views of a row are to have the same code; without a term for their spread one code for all is best."""

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.net, self.spread = tower([20, 64, 64, 16], nn.ELU), spread

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(a), self.net(b)


def views(seed: int, spread: float) -> Setup:
    def loss(out: tuple[Tensor, Tensor], _: Tensor) -> Tensor:
        apart = sum((1 - z.std(dim=0)).clamp_min(0).mean() for z in out)
        return F.mse_loss(*out) + spread * apart

    task = twins(seed).changed(lambda x, t: ((x[0], x[0] + 0.4 * x[1]), t)).with_loss(loss)
    return live(Views(spread), task, "Adam", 5e-3, 80)


def one_for_all(case: Case, seed: int) -> Evidence:
    """What differs between the outputs of rows is small beside what they were at the start."""
    before, after = (trace(each.make(seed)).outputs["net"].std(dim=0).mean().item() for each in (case, trained(case)))
    return judged(after < 0.1 * before, "codes differ by {:.3g}, before by {:.3g}", after, before)


vicreg = zoo.healthy("captions-views-agree-with-a-term-for-spread", lambda s: views(s, 1.0))
zoo.sick(
    "captions-views-agree-without-a-term-for-spread",
    lambda s: views(s, 0.0),
    costly(one_for_all),
    "LOW_RANK",
    "BOTTLENECK",
    "VANISHING",
    also={"SYMMETRY", "DEAD", "SLOW"},
    control=vicreg,
)


class Rounds(nn.Module):
    """Means over the neighbours, so many times; with many all nodes become one."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(10, 32), nn.Linear(32, 4)
        self.rounds = nn.ModuleList(nn.Linear(32, 32) for _ in range(rounds))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = self.into(x)
        for layer in self.rounds:
            x = torch.tanh(layer(adjacency @ x))
        return self.head(x)


def smoothed(seed: int, rounds: int) -> Setup:
    """A hub knows every node, so two fifths of each mean are of the whole graph."""
    task = communities(seed, batch=6)

    def change(x: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"x": x["x"], "adjacency": 0.6 * x["adjacency"] + 0.4 / x["adjacency"].shape[1]}

    return live(glorot(Rounds(rounds)), task.mapped(change), "Adam", 5e-3, 60)


def nodes_alike(case: Case, seed: int) -> Evidence:
    """How much of the size of the last states differs between the nodes of a graph."""
    states = output_of(case.make(seed), f"rounds.{len(case.make(seed).model.rounds) - 1}")
    share = ((states - states.mean(dim=1, keepdim=True)).norm() / states.norm()).item()
    return judged(share < 0.1, "nodes differ by {:.1%} of their size", share)


rounds = zoo.healthy("communities-with-a-hub-two-rounds-of-means", lambda s: smoothed(s, 2))
zoo.sick(
    "communities-with-a-hub-sixteen-rounds-of-means",
    lambda s: smoothed(s, 16),
    both(nodes_alike, lags(0.15)),
    "LOW_RANK",
    "BOTTLENECK",
    "VANISHING",
    also={"SLOW"},
    control=rounds,
)

# --- cut off


class Discrete(nn.Module):
    """Chooses one of eight codes for a point; the choice is an argmax, or Gumbel's soft one."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.choose, self.codes = tower([2, 48, 8], nn.ReLU), nn.Linear(8, 32, bias=False)
        self.out, self.hard = tower([32, 48, 8], nn.ReLU), hard

    def forward(self, x: Tensor) -> Tensor:
        z = self.choose(x)
        one = F.one_hot(z.argmax(dim=1), 8).float() if self.hard else F.gumbel_softmax(z, tau=0.7, hard=True)
        return self.out(self.codes(one))


def coded(seed: int, hard: bool) -> Setup:
    return live(Discrete(hard), islands(seed), "Adam", 1e-2, 100)


gumbel = zoo.healthy("islands-gumbel-straight-through-code", lambda s: coded(s, False), thrives(0.1, most_dead=0.6))
zoo.sick(
    "islands-argmax-code",
    lambda s: coded(s, True),
    both(lasting(no_gradient("choose")), worse(1.3)),
    *CUT_OFF,
    layer=("choose.2", "choose.0"),
    also={"BOTTLENECK", "LOW_RANK"},
    control=gumbel,
)


class Siamese(nn.Module):
    """SimSiam: a predictor looks from one view at the other, which is held still; a slip holds both still."""

    def __init__(self, slip: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 24), nn.BatchNorm1d(24)
        )
        self.predict, self.slip = tower([24, 32, 24], nn.ReLU), slip

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        z = [self.net(a), self.net(b)]
        if self.slip:
            z = [each.detach() for each in z]
        p = [self.predict(each) for each in z]
        near = F.cosine_similarity(p[0], z[1].detach()) + F.cosine_similarity(p[1], z[0].detach())
        return 2 - near


def siamese(seed: int, slip: bool) -> Setup:
    task = twins(seed).changed(lambda x, t: ((x[0], x[0] + 0.3 * x[1]), t)).with_loss(lambda out, _: out.mean())
    return live(Siamese(slip), task, "SGD", 0.2, 60, momentum=0.9, weight_decay=1e-4)


simsiam = zoo.healthy("captions-simsiam-one-side-held", lambda s: siamese(s, False))
zoo.sick(
    "captions-simsiam-both-sides-held",
    lambda s: siamese(s, True),
    lasting(no_gradient("net")),
    *CUT_OFF,
    layer=("net.0", "net.3", "predict.0"),
    control=simsiam,
)


class Ladder(nn.Module):
    """A classifier with a decoder beside it that should rebuild the input; its weight in the loss may be zero."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(11, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.head, self.rebuild = nn.Linear(64, 5), tower([64, 32, 11], nn.ELU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(x)
        return self.head(h), self.rebuild(h), x


def ladder(seed: int, weight: float) -> Setup:
    def loss(out: tuple[Tensor, Tensor, Tensor], t: Tensor) -> Tensor:
        return F.cross_entropy(out[0], t) + weight * F.mse_loss(out[1], out[2])

    return live(Ladder(), grades(seed).with_loss(loss), "AdamW", 5e-3, 60)


helped = zoo.healthy("grades-with-a-decoder-beside", lambda s: ladder(s, 0.5))
zoo.sick(
    "grades-with-a-decoder-of-weight-0",
    lambda s: ladder(s, 0.0),
    lasting(no_gradient("rebuild")),
    *CUT_OFF,
    layer=("rebuild.0", "rebuild.2"),
    control=helped,
)

# --- spikes and jumps


def reweighed(seed: int, most: float) -> Setup:
    """Samples count by one over the chance that they were recorded, which is tiny for some."""
    random = torch.Generator().manual_seed(seed + 3)

    def loss(y: Tensor, t: Tensor) -> Tensor:
        chance = torch.rand(t.shape, generator=random).clamp_min(1e-6) ** 3
        return ((1 / chance).clamp_max(most) * (y - t) ** 2).mean()

    return live(tower([8, 64, 64, 1]), energy(seed, 32).with_loss(loss), "Adam", 3e-3, 90)


clipped = zoo.healthy("energy-inverse-propensity-clipped-at-5", lambda s: reweighed(s, 5.0))
zoo.sick(
    "energy-inverse-propensity-unclipped",
    lambda s: reweighed(s, math.inf),
    gradient_norms_spread(100),
    *JUMPS,
    also={"NUMERICAL"},
    control=clipped,
)


def relative(seed: int, floor: float) -> Setup:
    """The error in percent of a value that may be next to nothing."""

    def loss(y: Tensor, t: Tensor) -> Tensor:
        return ((y - t).abs() / t.abs().clamp_min(floor)).mean()

    return live(tower([8, 64, 64, 1], nn.SiLU), energy(seed, 24).with_loss(loss), "Adam", 5e-3, 100)


floored = zoo.healthy("energy-relative-error-with-a-floor", lambda s: relative(s, 0.5))
zoo.sick(
    "energy-relative-error-of-values-near-zero",
    lambda s: relative(s, 1e-6),
    gradient_norms_spread(30),
    *JUMPS,
    also={"NUMERICAL"},
    control=floored,
)


def fitted(seed: int, kind: str, lr: float, steps: int = 60, **more) -> Setup:
    return live(tower([10, 64, 64, 12], nn.ReLU), plant(seed), kind, lr, steps, **more)


calm = zoo.healthy("plant-relu-rmsprop-2e-3", lambda s: fitted(s, "RMSprop", 2e-3))
zoo.sick("plant-relu-rmsprop-1", lambda s: fitted(s, "RMSprop", 1.0), diverges(), *RUNS_AWAY, also=RUINED, control=calm)


def nesterov(seed: int, reduction: str) -> Setup:
    task = plant(seed).with_loss(lambda y, t: F.mse_loss(y, t, reduction=reduction))
    return live(tower([10, 64, 64, 12], nn.ReLU), task, "SGD", 0.05, 60, momentum=0.9, nesterov=True)


mean = zoo.healthy("plant-relu-mean-error-nesterov-0.05", lambda s: nesterov(s, "mean"))
zoo.sick(
    "plant-relu-summed-error-nesterov-0.05",
    lambda s: nesterov(s, "sum"),
    diverges(),
    *RUNS_AWAY,
    also=RUINED,
    control=mean,
)

# --- numbers


class Metric(nn.Module):
    """Embeds two rows; the root of their squared distance, for a contrastive loss."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 8, bias=False))
        self.eps = eps

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return ((self.net(a) - self.net(b)).square().sum(dim=1) + self.eps).sqrt()


def near(seed: int, eps: float) -> Setup:
    """Pairs of which half belong together; now and then a row is paired with itself."""
    now = every(9, 6)

    def change(x: tuple[Tensor, Tensor], _: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        same = torch.arange(len(x[0])) % 2 == 0
        b = torch.where(same[:, None], x[0] + 0.3 * x[1], x[0].roll(1, 0))
        if now():
            b = torch.cat([x[0][:1], b[1:]])
        return (x[0], b), same.float()

    def loss(d: Tensor, same: Tensor) -> Tensor:
        return (same * d**2 + (1 - same) * (1.5 - d).clamp_min(0) ** 2).mean()

    return live(Metric(eps), twins(seed, batch=64).changed(change).with_loss(loss), "Adam", 3e-3, 60)


rooted = zoo.healthy("captions-contrastive-distance-with-eps", lambda s: near(s, 1e-6))
zoo.sick(
    "captions-contrastive-distance-of-a-row-to-itself", lambda s: near(s, 0.0), breaks, "NUMERICAL", control=rooted
)


def mixed(seed: int, safe: bool) -> Setup:
    """A mixture of three Gaussians over whole spectra; its likelihood is summed as it stands, or by logsumexp."""

    def loss(out: Tensor, x: Tensor) -> Tensor:
        out = out.unflatten(1, (3, 62))
        weight, spread, mean = out[..., 0].log_softmax(dim=1), out[..., 1], out[..., 2:]
        error = ((x[:, None] - mean) * (-spread[..., None]).exp()).square().sum(dim=-1)
        part = weight - 60 * spread - 0.5 * error
        return -(part.logsumexp(dim=1) if safe else part.exp().sum(dim=1).log()).mean() / 60

    return live(tower([60, 64, 186], nn.Tanh), peaks(seed, noise=0.3).with_loss(loss), "Adam", 3e-3, 60)


logsum = zoo.healthy("spectra-mixture-density-logsumexp", lambda s: mixed(s, True))
zoo.sick("spectra-mixture-density-log-of-a-sum-of-exps", lambda s: mixed(s, False), breaks, "NUMERICAL", control=logsum)

# --- rates

slowly = zoo.healthy(
    "captions-warm-up-of-10-steps",
    lambda s: live(Clip(16), twins(s), "AdamW", 3e-3, 60, rate=lambda t: min(1.0, (t + 1) / 10), weight_decay=0.0),
)
zoo.sick(
    "captions-warm-up-of-a-hundred-million-steps",
    lambda s: live(Clip(16), twins(s), "AdamW", 3e-3, 60, rate=lambda t: min(1.0, (t + 1) / 1e8), weight_decay=0.0),
    does_not_move(steps=60),
    "SLOW",
    control=slowly,
)
decayed = zoo.healthy(
    "plant-exponential-decay-0.5-by-epoch", lambda s: fitted(s, "Adam", 5e-3, 70, rate=lambda t: 0.5 ** (t // 20))
)
zoo.sick(
    "plant-exponential-decay-0.5-by-batch",
    lambda s: fitted(s, "Adam", 5e-3, 70, rate=lambda t: 0.5**t),
    stands_still(25),
    "SLOW",
    control=decayed,
)
averaged = zoo.healthy("spectra-vae-adam-2e-3", lambda s: varied(s, 12, 2e-3))
zoo.sick("spectra-vae-adam-2e-9", lambda s: varied(s, 12, 2e-9), does_not_move(steps=80), "SLOW", control=averaged)
