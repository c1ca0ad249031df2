# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks with mistakes that people told of in threads, and what each thread came to.

Half: threads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import worse
from validation.cases._everyday_nets import CUT_OFF, NARROW, he, start
from validation.cases._plain_nets import BLOWN, COLLAPSED, ends_flat
from validation.cases._threads_nets import (
    PINCHED,
    QUIET,
    STILL,
    Sign,
    cereals,
    flats,
    layers,
    letters,
    reviews,
    spectra,
    stamps,
    turbines,
)
from validation.cases._usual_nets import falls_behind, rebuilt
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

zoo = Zoo("mlp", half="threads", proof=thrives(0.2, most_dead=0.5))

# --- too narrow

# kdexd/digit-classifier#5: hidden layers of 3 and 4 sigmoids for ten digits; accuracy crawls to 14 per cent. Others
# use 256.


def digits(seed: int, first: int, second: int) -> Setup:
    model = layers([100, first, second, 10], nn.Sigmoid)
    return live(model, stamps(seed), "Adam", 1e-2, 90)


roomy = zoo.healthy("stamps-sigmoid-layers-of-64", lambda s: digits(s, 64, 64))
zoo.sick(
    "stamps-sigmoid-layers-of-3-and-4",
    lambda s: digits(s, 3, 4),
    both(lags(0.2), lasting(rank_at_most("0", 3.01))),
    *NARROW,
    layer=("0", "1", "2", "3", "4"),
    also={*PINCHED, "SLOW"},
    control=roomy,
)

# erickrf/autoencoder#14: may the embedding of words have one or two numbers? It may not.


class Bag(nn.Module):
    """The mean of a text's words, then dense layers."""

    def __init__(self, size: int, words: int = 60, classes: int = 6) -> None:
        super().__init__()
        self.words, self.fc = nn.EmbeddingBag(words, size, mode="mean"), layers([size, 48, classes])

    def forward(self, text: Tensor) -> Tensor:
        return self.fc(self.words(text))


def bag(seed: int, size: int) -> Setup:
    return live(Bag(size), reviews(seed), "Adam", 2e-2, 100)


words = zoo.healthy("reviews-word-vectors-of-24", lambda s: bag(s, 24))
zoo.sick(
    "reviews-word-vectors-of-1",
    lambda s: bag(s, 1),
    both(lags(0.15), lasting(rank_at_most("words", 1.01))),
    *NARROW,
    layer=("words", "fc", "fc.0"),
    also=PINCHED,
    control=words,
)

# theorangeduck.com "My Neural Network isn't working! What should I do?" (guevara/read-it-later#5625), too few hidden
# units: fewer than the numbers that must pass; here one layer in the midst of wide ones.


def waist(seed: int, size: int) -> Setup:
    return live(layers([12, 64, size, 64, 8], nn.ELU), turbines(seed), "AdamW", 6e-3, 110)


even = zoo.healthy("turbines-even-widths", lambda s: waist(s, 64))
zoo.sick(
    "turbines-one-unit-in-the-midst",
    lambda s: waist(s, 1),
    both(lags(0.2), lasting(rank_at_most("2", 1.01))),
    *NARROW,
    layer=("2", "3", "4"),
    also=PINCHED,
    control=even,
)

# --- too small on the way back

# pytorch/pytorch#15314 "Kaiming init of conv and linear layers, why gain = sqrt(5)": a deep stack of ReLU layers as
# torch starts them fades at each; people find it does not train and set Kaiming's gain by hand.


def stack(seed: int, fix: bool) -> Setup:
    model = layers([16, *[40] * 13, 6])
    return live(he(model) if fix else model, cereals(seed), "SGD", 0.02, 90, momentum=0.9)


gained = zoo.healthy("cereals-fourteen-layers-kaiming", lambda s: stack(s, True), thrives(0.2, most_dead=0.6))
zoo.sick(
    "cereals-fourteen-layers-as-torch-starts-them",
    lambda s: stack(s, False),
    both(gradient_ratio("0", "24", below=1e-2), lags(0.2)),
    "VANISHING",
    "SLOW",
    also={*QUIET, "SYMMETRY"},
    control=gained,
)

# --- flat

# clawdemy.org "Why deep nets won't train (and how to fix it)" and its model, a net of letters with weights from
# `randn`: the first loss is far above that of an even guess, and most tanh units are at an end.


class Names(nn.Module):
    """Letters as vectors, a tanh layer, the next letter; `times` multiplies weights from `randn`."""

    def __init__(self, hidden: float, out: float) -> None:
        super().__init__()
        self.letters, self.hidden = nn.Embedding(20, 10), nn.Linear(30, 80)
        self.tanh, self.out = nn.Tanh(), nn.Linear(80, 20)
        with torch.no_grad():
            self.hidden.weight.copy_(hidden * torch.randn(80, 30))
            self.out.weight.copy_(out * torch.randn(20, 80))

    def forward(self, seen: Tensor) -> Tensor:
        return self.out(self.tanh(self.hidden(self.letters(seen).flatten(1))))


def names(seed: int, hidden: float, out: float) -> Setup:
    return live(Names(hidden, out), letters(seed), "SGD", 0.1, 120, momentum=0.9)


scaled = zoo.healthy("letters-tanh-by-the-fan", lambda s: names(s, 0.3, 0.01), thrives(0.15))
zoo.sick(
    "letters-tanh-from-randn",
    lambda s: names(s, 1.0, 1.0),
    both(lasting(saturated("tanh", "tanh", 0.5)), worse(1.2)),
    "SATURATION",
    "VANISHING",
    "first_loss_high",
    layer=("hidden", "tanh", "out"),
    also={*BLOWN, "EXPLODING", "UNSTABLE", "SLOW"},
    control=scaled,
)

# --- alike

# Stack Overflow 58193471 and math.stackexchange "Why my weights are being the same": every weight starts at one value.


def same(seed: int, value: float | None) -> Setup:
    model = layers([12, 40, 8], nn.Tanh)
    if value is not None:
        start(model, lambda w: nn.init.constant_(w, value))
    return live(model, turbines(seed), "SGD", 0.1, 70, momentum=0.9)


random = zoo.healthy("turbines-tanh-random-start", lambda s: same(s, None))
zoo.sick(
    "turbines-tanh-all-weights-a-tenth",
    lambda s: same(s, 0.1),
    both(at_last(equal_units("0.weight")), lags(0.2)),
    "SYMMETRY",
    "LOW_RANK",
    "BOTTLENECK",
    layer=("0", "1", "2"),
    also={"DEAD", "VANISHING", "SATURATION", *STILL},
    control=random,
)

# Stack Overflow and GitHub, many ("VAE gives the same output for every input"): the squared error is a mean over dots
# while the divergence is a sum, so the codes say nothing of the rows and all are rebuilt as their mean.


class Vae(nn.Module):
    """A variational coder; the loss takes what it rebuilds, the means and the log-variances."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mu, self.logvar = layers([48, 64], last=nn.ReLU), nn.Linear(64, 12), nn.Linear(64, 12)
        self.decoder = layers([12, 64, 48])
        self.random = torch.Generator().manual_seed(7)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        noise = torch.randn(mu.shape, generator=self.random)
        return self.decoder(mu + noise * (0.5 * logvar).exp()), mu, logvar


def vae(seed: int, weight: float) -> Setup:
    def loss(output: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        y, mu, logvar = output
        spread = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(dim=1).mean()
        return F.mse_loss(y, x) + weight * spread

    return live(Vae(), spectra(seed).with_loss(loss), "Adam", 5e-3, 120)


weighed = zoo.healthy("spectra-vae-divergence-by-the-dots", lambda s: vae(s, 0.002))
zoo.sick(
    "spectra-vae-summed-divergence-mean-error",
    lambda s: vae(s, 1.0),
    both(ends_flat("mu", 0.2), falls_behind(rebuilt, 1.5, "rebuilds with an error of")),
    *COLLAPSED,
    "DISCONNECTED",
    "VANISHING",
    "DEAD",
    layer=("mu", "encoder", "encoder.0", "decoder", "decoder.0", "logvar"),
    also={"SYMMETRY", "SATURATION", "first_loss_high", *STILL},
    control=weighed,
)

# --- nothing fires

# jvargasmu/population_estimation#68: a ReLU ends the net, sometimes the first draw gives zeros everywhere and then no
# gradient comes; softplus is the answer. Here the draw is that one each time.


class People(nn.Module):
    """How many live on a plot, never below zero."""

    def __init__(self, end: nn.Module) -> None:
        super().__init__()
        self.net, self.end = layers([7, 48, 48, 1]), end
        with torch.no_grad():
            self.net[4].weight.copy_(-self.net[4].weight.abs())
            self.net[4].bias.fill_(-0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.net(x))


def people(seed: int, end: nn.Module) -> Setup:
    return live(People(end), flats(seed).changed(lambda x, y: (x, F.softplus(y + 1))), "Adam", 1e-3, 120)


soft = zoo.healthy("people-softplus-end", lambda s: people(s, nn.Softplus()))
zoo.sick(
    "people-relu-end-below-zero",
    lambda s: people(s, nn.ReLU()),
    both(lasting(dead("end", 0.99), no_gradient("net")), lags(0.3)),
    *CUT_OFF[::-1],
    layer=("net.4", "end"),
    also={"VANISHING", "LOW_RANK", "BOTTLENECK", *STILL},
    control=soft,
)

# --- cut off

# MatthieuCourbariaux/BinaryConnect#7: what is the gradient through the sign of a weight? Zero, unless it is let
# through by hand.


class Binary(nn.Module):
    """Hidden weights are used by their sign."""

    def __init__(self, through: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 48, bias=False), nn.Linear(48, 48, bias=False)
        self.out = nn.Linear(48, 6)
        self.sign = Sign.apply if through else torch.sign

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.linear(x, self.sign(self.first.weight)) / 4)
        return self.out(F.relu(F.linear(x, self.sign(self.second.weight)) / 7))


def binary(seed: int, through: bool) -> Setup:
    return live(Binary(through), cereals(seed), "Adam", 5e-3, 110)


passed = zoo.healthy("cereals-binary-weights-straight-through", lambda s: binary(s, True))
zoo.sick(
    "cereals-binary-weights-plain-sign",
    lambda s: binary(s, False),
    both(lasting(no_gradient("first", "second")), worse(1.3)),
    *CUT_OFF,
    "never_moves",
    "detached",
    layer=("first", "second"),
    also={"VANISHING", *STILL},
    control=passed,
)

# --- numbers

# discuss.pytorch.org "How to solve the loss becoming NaN due to using torch.log()" and forums.fast.ai "What are the
# different ways a logarithm can result in a NaN?": the logarithm of what the net says, which may be negative.


def counts(seed: int, held: bool) -> Setup:
    def loss(y: Tensor, target: Tensor) -> Tensor:
        y = F.softplus(y) + 1e-6 if held else y
        return F.mse_loss(y.log(), target.log())

    model = layers([7, 64, 64, 1])
    nn.init.constant_(model[4].bias, 0.5)
    return live(model, flats(seed).changed(lambda x, y: (x, y.exp())).with_loss(loss), "Adam", 5e-3, 100)


positive = zoo.healthy("flats-log-error-softplus", lambda s: counts(s, True))
zoo.sick(
    "flats-log-error-of-a-negative-answer",
    lambda s: counts(s, False),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    also={*BLOWN, "UNSTABLE", "EXPLODING", "output_range"},
    control=positive,
)

# Stack Overflow, many ("linear regression in PyTorch, loss is inf then nan"): square metres and years as they are,
# under plain SGD at 0.01; standardised they train.


def raw(seed: int, scale: float) -> Setup:
    size = torch.tensor([90.0, 1970.0, 3.0, 12.0, 500.0, 1.0, 40.0])
    task = flats(seed).mapped(lambda x: size * (1 + 0.3 * x) if scale else x)
    return live(layers([7, 32, 1]), task, "SGD", 0.01, 80)


columns = zoo.healthy("flats-standardised-sgd", lambda s: raw(s, 0.0), thrives(0.2))
zoo.sick(
    "flats-metres-and-years-sgd",
    lambda s: raw(s, 1.0),
    both(diverges(3), worse(3.0)),
    *RUNS_AWAY,
    "rate_too_high",
    "input_scales",
    "first_loss_high",
    "loss_nonfinite",
    "DEAD",
    also={*BLOWN, "SLOW"},
    control=columns,
)

# --- steps

# keras-team/keras#2975 "Keras model always predicts same output class": what helped was a rate of 0.001 to 0.01.


def rate(seed: int, lr: float) -> Setup:
    return live(layers([16, 64, 64, 6]), cereals(seed), "Adam", lr, 80)


mild = zoo.healthy("cereals-adam-three-thousandths", lambda s: rate(s, 3e-3))
zoo.sick(
    "cereals-adam-rate-1",
    lambda s: rate(s, 1.0),
    both(diverges(3), worse(1.5)),
    *JUMPS,
    "rate_too_high",
    "NUMERICAL",
    "DEAD",
    also={*BLOWN, "SLOW"},
    control=mild,
)

# discuss.pytorch.org and Stack Overflow, many ("loss decreases very slowly"): a rate that is far too low for SGD.


def slow(seed: int, lr: float) -> Setup:
    return live(layers([48, 64, 10, 64, 48], nn.Tanh), spectra(seed), "SGD", lr, 90, momentum=0.9)


quick = zoo.healthy("spectra-coder-sgd-a-fifth", lambda s: slow(s, 0.2), thrives(0.1))
zoo.sick(
    "spectra-coder-sgd-a-millionth",
    lambda s: slow(s, 1e-6),
    both(does_not_move(1e-5), lags(0.1)),
    "SLOW",
    "rate_too_low",
    also={"never_moves", "loss_stuck", "VANISHING", "zero_rate"},
    control=quick,
)
