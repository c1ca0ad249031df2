# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks that learn, some with what people in threads took for a fault.

Half: threads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._everyday_nets import he
from validation.cases._threads_nets import cereals, flats, layers, letters, reviews, spectra, stamps, turbines
from validation.evidence import converged, thrives
from validation.setups import frozen, live, pretrain

zoo = Zoo("mlp", half="threads", proof=thrives(0.2, most_dead=0.5))

# tflearn/tflearn#396: why 32 units? Ten are as good, where the answer is one number.
zoo.healthy("flats-ten-units-are-enough", lambda s: live(layers([7, 10, 1], nn.Tanh), flats(s), "Adam", 2e-2, 110))
# keras-team/keras#7057 read the other way: zeros behind ReLU are usual, a third of them at every row.
zoo.healthy("cereals-many-zeros-behind-relu", lambda s: live(he(layers([16, 96, 96, 6])), cereals(s), "Adam", 2e-3, 80))
# brain.js#57: three units in each of two layers do well, where two classes are all.


def halves(seed: int) -> Setup:
    return live(layers([16, 8, 8, 2], nn.Tanh), cereals(seed, 2), "Adam", 1e-2, 120)


zoo.healthy("cereals-two-classes-narrow-layers", halves)
# a code that is as wide as what decides the rows
zoo.healthy("spectra-coder-of-ten-parts", lambda s: live(layers([48, 64, 10, 64, 48]), spectra(s), "Adam", 5e-3, 110))
# keras-team/keras#6447: "I guess I just have to be more patient": plateaus at first, learns later.
zoo.healthy(
    "stamps-three-sigmoids-adam",
    lambda s: live(layers([100, 48, 48, 48, 10], nn.Sigmoid), stamps(s), "Adam", 1e-2, 110),
)
zoo.healthy(
    "turbines-eight-tanh-layers", lambda s: live(layers([12, *[40] * 8, 8], nn.Tanh), turbines(s), "Adam", 3e-3, 100)
)
# small batches: a loss that jumps from step to step
zoo.healthy("cereals-batches-of-6", lambda s: live(layers([16, 64, 6]), cereals(s, batch=6), "Adam", 3e-3, 120))
# clipping that is active at nearly every step
zoo.healthy(
    "turbines-clipped-at-a-tenth", lambda s: live(layers([12, 64, 8]), turbines(s), "Adam", 5e-3, 100, clip=0.1)
)


def warmed(seed: int) -> Setup:
    def rate(step: int) -> float:
        return (step + 1) / 20 if step < 20 else 0.5 + 0.5 * torch.tensor((step - 20) / 80 * 3.14159).cos().item()

    return live(layers([16, 64, 64, 6], nn.GELU), cereals(seed), "AdamW", 4e-3, 100, rate=rate)


zoo.healthy("cereals-warm-up-and-cosine", warmed)


class Dropped(nn.Module):
    """Half of the units are left out at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Linear(100, 96), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 96), nn.ReLU(), nn.Dropout(0.5)),
            nn.Linear(96, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


zoo.healthy("stamps-dropout-of-a-half", lambda s: live(Dropped(), stamps(s), "Adam", 3e-3, 100))


class Table(nn.Module):
    """Words in a large table, of which few are seen."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.fc = nn.Embedding(4000, 16), nn.Linear(16, 6)

    def forward(self, text: Tensor) -> Tensor:
        return self.fc(self.words(text).mean(dim=1))


zoo.healthy("reviews-table-of-4000-words", lambda s: live(Table(), reviews(s), "Adam", 3e-2, 100))


class Kept(nn.Module):
    """A body from an earlier job, which is frozen, and a new head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = layers([16, 64, 64], last=nn.ReLU), nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def kept(seed: int) -> Setup:
    model = Kept()
    pretrain(live(model, cereals(seed)), 60)
    nn.init.normal_(model.head.weight, std=0.01)
    return live(frozen(model, "body"), cereals(seed), "Adam", 1e-2, 60)


zoo.healthy("cereals-frozen-body-new-head", kept)


def finished(seed: int) -> Setup:
    return pretrain(live(layers([7, 64, 64, 1], nn.Tanh), flats(seed), "Adam", 1e-4, 40), 500)


zoo.healthy("flats-converged-small-gradients", finished, converged(0.4))


class Normed(nn.Module):
    """Names again, with a batch norm before the tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.hidden = nn.Embedding(20, 10), nn.Linear(30, 80, bias=False)
        self.norm, self.tanh, self.out = nn.BatchNorm1d(80), nn.Tanh(), nn.Linear(80, 20)

    def forward(self, seen: Tensor) -> Tensor:
        return self.out(self.tanh(self.norm(self.hidden(self.letters(seen).flatten(1)))))


zoo.healthy("letters-batch-norm-before-tanh", lambda s: live(Normed(), letters(s), "SGD", 0.1, 120, momentum=0.9))


class Towers(nn.Module):
    """Two towers whose vectors are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = layers([24, 64, 16]), layers([24, 64, 16])

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.normalize(self.left(x[:, :24]), dim=1), F.normalize(self.right(x[:, 24:]), dim=1)
        return a @ b.T / 0.1


def halved(seed: int) -> Setup:
    def loss(score: Tensor, _x: Tensor) -> Tensor:
        return F.cross_entropy(score, torch.arange(len(score)))

    task = spectra(seed).mapped(lambda x: torch.cat([x[:, ::2], x[:, 1::2]], dim=1))
    return live(Towers(), task.with_loss(loss), "Adam", 3e-3, 110)


zoo.healthy("spectra-towers-small-temperature", halved)
zoo.healthy(
    "turbines-low-rate-that-is-right", lambda s: live(layers([12, 256, 256, 8]), turbines(s), "Adam", 5e-4, 100)
)
zoo.healthy(
    "flats-huber-selu-nadam",
    lambda s: live(layers([7, 48, 48, 1], nn.SELU), flats(s).with_loss(F.smooth_l1_loss), "NAdam", 3e-3, 110),
)
