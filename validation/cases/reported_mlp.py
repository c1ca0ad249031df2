# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks with faults that people reported in threads, and the fix that each thread came to.

Half: reported.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import worse
from validation.cases._everyday_nets import CUT_OFF, NARROW, gaussian, he, start
from validation.cases._plain_nets import BLOWN, COLLAPSED, ends_flat
from validation.cases._reported_nets import (
    SQUASHED,
    UNLEARNED,
    Coder,
    Tagger,
    dense,
    gauges,
    penguins,
    ratings,
    rents,
    scans,
    shopping,
    triplets,
)
from validation.evidence import (
    at_last,
    both,
    breaks,
    dead,
    diverges,
    does_not_move,
    equal_units,
    gradient_ratio,
    lags,
    lasting,
    no_gradient,
    rank_at_most,
    saturated,
    thrives,
)
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import live

zoo = Zoo("mlp", half="reported", proof=thrives(0.2, most_dead=0.5))

# --- too narrow

# mattragoza/LiGAN#18: the code was made smaller and smaller until the reconstruction would not get better any more;
# the answer: it is below what the data need.


def coded(seed: int, size: int) -> Setup:
    return live(Coder(40, size), scans(seed), "Adam", 5e-3, 100)


code = zoo.healthy("scans-autoencoder-code-of-16", lambda s: coded(s, 16))
zoo.sick(
    "scans-autoencoder-code-of-1",
    lambda s: coded(s, 1),
    both(lags(0.2), lasting(rank_at_most("encoder.2", 1.01))),
    *NARROW,
    layer=("encoder.2", "decoder.0"),
    also=SQUASHED,
    control=code,
)

# martinaspeciale/pytorch-deep-learning (notebook) and the many like it: a code of two numbers so that it can be
# drawn, with batch norm and leaky ReLU around it; benchmark in "Deconstructing Autoencoders, part 3": 2 against 32
# numbers.


class Drawn(nn.Module):
    """A deeper coder with batch norms; its code can be drawn on paper if it has two numbers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        leaky = nn.LeakyReLU
        self.encoder = nn.Sequential(
            nn.Linear(40, 64), nn.BatchNorm1d(64), leaky(0.1), nn.Linear(64, 32), leaky(0.1), nn.Linear(32, size)
        )
        self.decoder = nn.Sequential(nn.Linear(size, 32), leaky(0.1), nn.Linear(32, 64), leaky(0.1), nn.Linear(64, 40))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def drawn(seed: int, size: int) -> Setup:
    return live(Drawn(size), scans(seed, factors=12, noise=0.2), "AdamW", 5e-3, 110)


wide = zoo.healthy("scans-denoiser-code-of-20", lambda s: drawn(s, 20))
zoo.sick(
    "scans-denoiser-code-of-2-to-be-drawn",
    lambda s: drawn(s, 2),
    both(lags(0.2), lasting(rank_at_most("encoder.5", 2.01))),
    *NARROW,
    layer=("encoder.5", "decoder.0"),
    also=SQUASHED,
    control=wide,
)

# "Hands-On Unsupervised Learning", chapter 10: ratings by one latent factor stop at a poor error, more factors help.


class Factors(nn.Module):
    """The product of a user's vector and an item's, with their biases."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(50, size), nn.Embedding(30, size)
        self.user_bias, self.item_bias = nn.Embedding(50, 1), nn.Embedding(30, 1)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.user_bias, self.item_bias):
            nn.init.zeros_(table.weight)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        dot = (self.users(user) * self.items(item)).sum(dim=1)
        return dot + (self.user_bias(user) + self.item_bias(item)).flatten()


def rated(seed: int, size: int) -> Setup:
    return live(Factors(size), ratings(seed), "Adam", 3e-2, 110)


tastes = zoo.healthy("ratings-eight-latent-factors", lambda s: rated(s, 8))
zoo.sick(
    "ratings-one-latent-factor",
    lambda s: rated(s, 1),
    both(lags(0.2), lasting(rank_at_most("users", 1.01))),
    *NARROW,
    layer=("users", "items"),
    also=SQUASHED,
    control=tastes,
)

# KaiyangZhou/pytorch-center-loss#12: the head was replaced by a layer of two units with ReLU, copied from a drawing
# demo, before the layer of many classes; accuracy rose a little and then stood.


class Plotted(nn.Module):
    """Features, a layer of so many units whose values are plotted, the classes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.body = dense([14, 64, 64], last=nn.ReLU)
        self.fc1, self.relu1, self.fc2 = nn.Linear(64, size), nn.ReLU(), nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.relu1(self.fc1(self.body(x))))


def plotted(seed: int, size: int) -> Setup:
    return live(Plotted(size), penguins(seed, classes=10), "Adam", 4e-3, 90)


head = zoo.healthy("penguins-features-of-32-before-the-classes", lambda s: plotted(s, 32))
zoo.sick(
    "penguins-features-of-2-to-be-plotted",
    lambda s: plotted(s, 2),
    both(lags(0.15), lasting(rank_at_most("fc1", 2.01))),
    *NARROW,
    layer=("fc1", "relu1", "fc2"),
    also=SQUASHED,
    control=head,
)

# discourse.julialang.org 72115 "Unstable learning of neural net with few nodes": a hidden layer of next to no units
# gives the same answer everywhere on most runs; more nodes make it work each time.


def few(seed: int, units: int) -> Setup:
    return live(dense([10, units, 8], nn.Tanh), gauges(seed), "Adam", 1e-2, 100)


many = zoo.healthy("gauges-forty-hidden-nodes", lambda s: few(s, 40))
zoo.sick(
    "gauges-one-hidden-node",
    lambda s: few(s, 1),
    both(lags(0.2), lasting(rank_at_most("0", 1.01))),
    *NARROW,
    layer=("0", "1", "2"),
    also={*SQUASHED, "SATURATION"},
    control=many,
)

# --- too small on the way back

# ai.stackexchange 16557 "four hidden layers with the sigmoid activation function is not learning": too many sigmoids.


def sigmoids(seed: int, act: type[nn.Module], fix: bool) -> Setup:
    model = dense([10, 48, 48, 48, 48, 48, 8], act)
    return live(he(model) if fix else model, gauges(seed), "SGD", 0.1, 90, momentum=0.9)


relus = zoo.healthy("gauges-five-relu-layers", lambda s: sigmoids(s, nn.ReLU, True))
zoo.sick(
    "gauges-five-sigmoid-layers",
    lambda s: sigmoids(s, nn.Sigmoid, False),
    both(gradient_ratio("0", "8", below=1e-2), lags(0.3)),
    "VANISHING",
    "SLOW",
    also={"LOW_RANK", "BOTTLENECK", "SATURATION", "DEAD", "DISCONNECTED", *UNLEARNED},
    control=relus,
)

# buboflash.eu note on fixed deviations (and FluxML threads): one fixed deviation of 0.01 for all layers; models of
# more than eight have difficulties to converge.


def fixed(seed: int, small: bool) -> Setup:
    model = dense([14, 48, 48, 48, 48, 48, 48, 8])
    return live(gaussian(model, 0.01) if small else he(model), penguins(seed), "SGD", 0.05, 80, momentum=0.9)


kaiming = zoo.healthy("penguins-seven-layers-kaiming", lambda s: fixed(s, False))
zoo.sick(
    "penguins-seven-layers-deviation-one-hundredth",
    lambda s: fixed(s, True),
    both(lasting(gradient_ratio("0", "10", below=1e-2)), lags(0.3)),
    "VANISHING",
    "SLOW",
    also={"LOW_RANK", "BOTTLENECK", "DEAD", "DISCONNECTED", *UNLEARNED},
    control=kaiming,
)

# --- too large

# blog.csdn.net 102896678, lesson 13: linear layers drawn from the unit normal make each layer's output many times
# larger.


def unit(seed: int, raw: bool) -> Setup:
    model = dense([10, 48, 48, 48, 48, 8])
    return live(gaussian(model, 1.0) if raw else he(model), gauges(seed), "SGD", 0.02, 60, momentum=0.9)


scaled = zoo.healthy("gauges-normal-start-by-the-fan", lambda s: unit(s, False))
zoo.sick(
    "gauges-unit-normal-start",
    lambda s: unit(s, True),
    both(diverges(3), worse(3.0)),
    *RUNS_AWAY,
    "rate_too_high",
    also={*BLOWN, "SLOW"},
    control=scaled,
)

# rstudio-conf-2020/dl-keras-tf#9: sale prices as they are, squared error, SGD at a rate for unit scale: the loss is
# NaN in the first epoch.


def prices(seed: int, raw: bool) -> Setup:
    task = rents(seed, scale=250.0, base=900.0) if raw else rents(seed)
    return live(dense([9, 64, 32, 1]), task, "SGD", 0.05, 80)


unscaled = zoo.healthy("rents-in-units-of-their-spread", lambda s: prices(s, False))
zoo.sick(
    "rents-in-coins-under-sgd",
    lambda s: prices(s, True),
    both(diverges(3), breaks),
    *RUNS_AWAY,
    "rate_too_high",
    "loss_nonfinite",
    "first_loss_high",
    also={*BLOWN, "SLOW", "input_scales"},
    control=unscaled,
)

# --- nothing fires

# math.stackexchange 4483706 "Are ReLU a very bad choice as last layer for regression?": targets of either sign, the
# output starts or falls below zero for every row and no gradient comes back.


def rectified(seed: int, last: bool) -> Setup:
    """Losses of the shop are negative numbers; the output is rectified, or not."""
    model = dense([9, 48, 48, 1], last=nn.ReLU if last else None)
    return live(model, rents(seed, base=-2.0), "Adam", 3e-3, 90)


linear = zoo.healthy("rents-below-zero-linear-output", lambda s: rectified(s, False))
zoo.sick(
    "rents-below-zero-rectified-output",
    lambda s: rectified(s, True),
    both(at_last(dead("5", 0.99)), lags(0.3)),
    *CUT_OFF[::-1],
    layer=("4", "5"),
    also={"VANISHING", "LOW_RANK", "BOTTLENECK", *UNLEARNED},
    control=linear,
)

# stats.stackexchange "dying ReLU" answers and codegenes.net "outputs all 0 no updates": one huge step kills the
# layer.


def killed(seed: int, lr: float) -> Setup:
    return live(dense([14, 48, 48, 8]), penguins(seed).mapped(lambda x: 3 + x), "SGD", lr, 80, momentum=0.9)


gentle = zoo.healthy("penguins-rate-a-fiftieth", lambda s: killed(s, 0.02))
zoo.sick(
    "penguins-rate-5-kills-the-relus",
    lambda s: killed(s, 5.0),
    both(at_last(dead("3", 0.9)), worse(1.5)),
    "DEAD",
    "rate_too_high",
    *RUNS_AWAY,
    layer=("0", "1", "2", "3"),
    also={*BLOWN, "SLOW", *UNLEARNED},
    control=gentle,
)

# --- flat

# Stack Overflow 14982358 "output values are saturating to 1": targets from 0 to 100 behind a sigmoid.


def percents(seed: int, raw: bool) -> Setup:
    task = rents(seed, scale=15.0, base=50.0) if raw else rents(seed, scale=0.15, base=0.5)
    return live(dense([9, 32, 1], nn.Sigmoid, last=nn.Sigmoid), task, "Adam", 2e-2, 110)


shares = zoo.healthy("rents-as-shares-of-1-behind-a-sigmoid", lambda s: percents(s, False))
zoo.sick(
    "rents-as-percent-behind-a-sigmoid",
    lambda s: percents(s, True),
    both(at_last(saturated("3", "sigmoid", 0.95)), lags(0.3)),
    "SATURATION",
    "VANISHING",
    layer=("2", "3"),
    also={"DEAD", "LOW_RANK", "BOTTLENECK", "DISCONNECTED", "input_scales", "first_loss_high", *UNLEARNED},
    control=shares,
)

# discuss.pytorch.org 153791 "Gradient seems too small when training parameters": sigmoid(W x) with W from `randn` and
# wide inputs in 0..1 that are not centred; most entries are flat and the wider the matrix, the less it learns.


class Randn(nn.Module):
    """A wide hidden layer whose matrix comes from `randn`, by a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.mix, self.act, self.out = nn.Linear(128, 48), nn.Sigmoid(), nn.Linear(48, 8)
        with torch.no_grad():
            self.mix.weight.copy_(factor * torch.randn(48, 128))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.act(self.mix(x)))


def spread_out(seed: int, factor: float) -> Setup:
    turn = torch.randn(14, 128, generator=torch.Generator().manual_seed(seed + 8220))
    task = penguins(seed).mapped(lambda x: 2 * x @ turn)
    return live(Randn(factor), task, "SGD", 0.05, 90, momentum=0.9)


small = zoo.healthy("penguins-wide-sigmoid-layer-scaled", lambda s: spread_out(s, 0.02))
zoo.sick(
    "penguins-wide-sigmoid-layer-from-randn",
    lambda s: spread_out(s, 1.0),
    both(lasting(saturated("act", "sigmoid", 0.8)), worse(1.3)),
    "SATURATION",
    "VANISHING",
    "input_scales",
    layer=("mix", "act"),
    also={"DEAD", "LOW_RANK", "BOTTLENECK", "DISCONNECTED", "EXPLODING", "first_loss_high", *UNLEARNED},
    control=small,
)

# --- alike

# wanggrun/triplet#1 and omoindrot/tensorflow-triplet-loss#6: with the hardest row of each batch the triplet loss goes
# to its margin and stays, for all embeddings are one point.


class Embedder(nn.Module):
    """Rows become embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.net = dense([20, 64, 64, 16])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def pulled(seed: int, hardest: bool) -> Setup:
    return live(Embedder(), penguins(seed, dim=20, apart=0.7).with_loss(triplets(hardest)), "Adam", 5e-3, 100)


calm = zoo.healthy("penguins-triplets-of-the-whole-batch", lambda s: pulled(s, False))
zoo.sick(
    "penguins-hardest-triplets-at-their-margin",
    lambda s: pulled(s, True),
    both(ends_flat("net", 0.05), lags(0.3)),
    *COLLAPSED,
    "VANISHING",
    also={"SYMMETRY", "SLOW", "DEAD", "SATURATION", "DISCONNECTED", *UNLEARNED},
    control=calm,
)

# pullrequest.ru 11818227 (Stack Overflow, "one hidden layer cannot be trained"): all weights start at zero.


def zeros(seed: int, equal: bool) -> Setup:
    model = dense([14, 48, 8], nn.Sigmoid)
    model = start(model, nn.init.zeros_) if equal else start(model, nn.init.xavier_uniform_)
    return live(model, penguins(seed), "SGD", 0.3, 100, momentum=0.9)


xavier = zoo.healthy("penguins-sigmoid-layer-xavier", lambda s: zeros(s, False))
zoo.sick(
    "penguins-sigmoid-layer-all-zeros",
    lambda s: zeros(s, True),
    both(at_last(equal_units("0.weight")), lags(0.2)),
    "SYMMETRY",
    "LOW_RANK",
    "BOTTLENECK",
    layer=("0", "1", "2"),
    also={"DEAD", "VANISHING", "DISCONNECTED", *UNLEARNED},
    control=xavier,
)

# --- cut off

# pytorch/pytorch#1339: the choice of the first net goes to the second through an argmax, and the first never learns.


class Chosen(nn.Module):
    """A first net chooses one of 24 codes for the second; softly, or by an argmax."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.first, self.second, self.hard = dense([14, 48, 24]), dense([24, 48, 8]), hard

    def forward(self, x: Tensor) -> Tensor:
        score = self.first(x)
        code = F.one_hot(score.argmax(dim=1), 24).float() if self.hard else score.softmax(dim=1)
        return self.second(code)


def chosen(seed: int, hard: bool) -> Setup:
    return live(Chosen(hard), penguins(seed), "Adam", 1e-2, 90)


soft = zoo.healthy("penguins-two-nets-soft-choice", lambda s: chosen(s, False))
zoo.sick(
    "penguins-two-nets-argmax-between",
    lambda s: chosen(s, True),
    both(lasting(no_gradient("first")), lags(0.1)),
    *CUT_OFF,
    "detached",
    layer=("first", "first.0", "first.1", "first.2"),
    also={"never_moves", "frozen", "BOTTLENECK", "LOW_RANK"},
    control=soft,
)

# Ugenteraan/Deep_Hierarchical_Classification#6: a new tensor is made from what the net said, so nothing goes back.


class Rounded(nn.Module):
    """Kinds and numbers; the encoder's output is put into a new tensor, or used as it is."""

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.encoder, self.net, self.anew = dense([10, 32, 16], nn.Tanh, last=nn.Tanh), dense([16, 48, 8]), anew

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x)
        if self.anew:
            h = torch.tensor(h.tolist())
        return self.net(h)


def rounded(seed: int, anew: bool) -> Setup:
    return live(Rounded(anew), gauges(seed, out=8), "Adam", 1e-2, 100)


kept = zoo.healthy("gauges-code-stays-a-tensor-of-the-graph", lambda s: rounded(s, False))
zoo.sick(
    "gauges-code-copied-into-a-new-tensor",
    lambda s: rounded(s, True),
    both(lasting(no_gradient("encoder")), lags(0.1)),
    *CUT_OFF,
    "detached",
    layer=("encoder", "encoder.0", "encoder.1", "encoder.2", "encoder.3"),
    also={"never_moves", "frozen"},
    control=kept,
)

# --- numbers

# pytorch/pytorch#2421 and its fix #2775: the root of a sum of squares by hand has no gradient where the sum is zero;
# pairs of a row with itself are in the batch.


class Pairs(nn.Module):
    """Distances of all pairs of a batch, by hand; the target is whether they are of one kind."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.net, self.eps = dense([14, 48, 12]), eps

    def forward(self, x: Tensor) -> Tensor:
        z = self.net(x)
        return ((z[:, None] - z[None]).square().sum(dim=2) + self.eps).sqrt()


def contrast(far: Tensor, kind: Tensor) -> Tensor:
    same = (kind[:, None] == kind[None]).float()
    return (same * far.square() + 2 * (1 - same) * F.relu(2 - far).square()).mean()


def paired(seed: int, eps: float) -> Setup:
    return live(Pairs(eps), penguins(seed, batch=32).with_loss(contrast), "Adam", 3e-3, 80)


eased = zoo.healthy("penguins-distances-with-eps-below-the-root", lambda s: paired(s, 1e-6))
zoo.sick(
    "penguins-distances-root-of-zero",
    lambda s: paired(s, 0.0),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    also={"EXPLODING", "UNSTABLE"},
    control=eased,
)

# --- steps

# szagoruyko/cifar.torch#20: a script's rate of 1 is taken over to another framework and optimizer, and nothing is
# learned; here Adam on kinds as vectors.


def bouncing(seed: int, lr: float) -> Setup:
    return live(Tagger(8), shopping(seed), "Adam", lr, 100)


fine = zoo.healthy("shopping-adam-a-hundredth", lambda s: bouncing(s, 1e-2))
zoo.sick(
    "shopping-adam-rate-2",
    lambda s: bouncing(s, 2.0),
    both(diverges(3), worse(2.0)),
    *JUMPS,
    "NUMERICAL",
    "rate_too_high",
    also={*BLOWN, "SLOW"},
    control=fine,
)

# tensorflow/tensorflow#59944 "Movie recommender model doesn't converge": 7.357 to 7.355 in 50 epochs; a rate far too
# small.


def crawling(seed: int, lr: float) -> Setup:
    return live(Factors(8), ratings(seed), "Adam", lr, 100)


brisk = zoo.healthy("ratings-adam-three-hundredths", lambda s: crawling(s, 3e-2))
zoo.sick(
    "ratings-adam-a-ten-millionth",
    lambda s: crawling(s, 1e-7),
    both(does_not_move(1e-5), lags(0.2)),
    "SLOW",
    "rate_too_low",
    also={"never_moves", "loss_stuck"},
    control=brisk,
)
