"""What the programs of the half `reported` share: small data of the tasks that people ask about, and their networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program
from validation.cases._reported_loop_nets import (
    Embedder,
    Gcn,
    Gpt,
    Lenet,
    Lstm,
    NeuMf,
    Reader,
    Resnet,
    Seq2seq,
    Tagger,
    TextCnn,
    Unet,
    Waves,
)
from validation.nets import mlp
from validation.tasks import Task, drawn_once, token_loss

bce = F.binary_cross_entropy_with_logits
Loss = Callable[[], Tensor]

# --- tables


def flowers(seed: int, classes: int = 3, dim: int = 4, batch: int = 48) -> Task:
    """Kinds of flowers by a few lengths, as in the best known table of all."""
    centre = 1.3 * torch.randn(classes, dim, generator=drawn_once(seed, 9501))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        return centre[y] + 0.7 * torch.randn(batch, dim, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def houses(seed: int, dim: int = 8, batch: int = 64) -> Task:
    """Prices by eight standardized columns, themselves standardized; given as (N,)."""
    fixed = drawn_once(seed, 9502)
    way, bend = torch.randn(dim, generator=fixed) / 2, torch.randn(dim, generator=fixed) / 2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        y = x @ way + torch.tanh(x @ bend) * 1.2 + 0.3 * x[:, 0] * x[:, 1]
        return x, y + 0.1 * torch.randn(batch, generator=random)

    return Task(seed, draw, F.mse_loss)


def loans(seed: int, dim: int = 10, batch: int = 64) -> Task:
    """Whether a loan fails, by ten columns; given as (N, 1)."""
    fixed = drawn_once(seed, 9503)
    way = torch.randn(dim, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, (x @ way + 1.2 * x[:, 0] * x[:, 1] > 0).float()[:, None]

    return Task(seed, draw, bce)


def movies(seed: int, users: int = 40, items: int = 30, batch: int = 128) -> Task:
    """Whether a user clicks on an item; both are numbers of rows."""
    fixed = drawn_once(seed, 9504)
    taste, style = torch.randn(users, 3, generator=fixed), torch.randn(items, 3, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        u, i = torch.randint(users, (batch,), generator=random), torch.randint(items, (batch,), generator=random)
        return (u, i), ((taste[u] * style[i]).sum(dim=1) > 0).float()

    return Task(seed, draw, bce)


# --- pictures


def digits(seed: int, classes: int = 10, size: int = 8, batch: int = 48) -> Task:
    """Grey pictures of 8 by 8, a shape for each class, in noise; about standardized."""
    shape = F.interpolate(torch.randn(classes, 1, 4, 4, generator=drawn_once(seed, 9505)), size=size)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        return shape[y] + 0.9 * torch.randn(batch, 1, size, size, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def photos(seed: int, classes: int = 6, size: int = 12, batch: int = 32) -> Task:
    """Colour pictures whose class is a texture at any phase."""
    fixed = drawn_once(seed, 9506)
    angle = math.pi * (torch.arange(classes) + 0.3 * torch.rand(classes, generator=fixed)) / classes
    tint = 0.4 + torch.rand(classes, 3, 1, 1, generator=fixed)
    line = torch.arange(size).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        a, phase = angle[y, None, None], 6.28 * torch.rand(batch, 1, 1, generator=random)
        x = torch.sin(1.1 * (a.cos() * line[:, None] + a.sin() * line) + phase)[:, None] * tint[y]
        return 1.2 * x + 0.5 * torch.randn(batch, 3, size, size, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def scans(seed: int, size: int = 12, batch: int = 12) -> Task:
    """Which pixels of a noisy scan lie in a bright disc; a mask of zeros and ones."""
    glow = 1.4 + 0.4 * torch.rand(1, generator=drawn_once(seed, 9507))
    line = torch.arange(size).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = 3 + (size - 6) * torch.rand(batch, 2, 1, 1, generator=random)
        wide = 2.5 + 1.5 * torch.rand(batch, 1, 1, generator=random)
        far = (line[:, None] - at[:, 0]).square() + (line - at[:, 1]).square()
        inside = (far < wide.square()).float()[:, None]
        return glow * (inside - 0.3) + 0.7 * torch.randn(batch, 1, size, size, generator=random), inside

    return Task(seed, draw, bce)


def courts(seed: int, size: int = 10, batch: int = 16) -> Task:
    """Where the corner of a court is: a heat map of the same size."""
    mark = torch.randn(3, 3, generator=drawn_once(seed, 9508))
    line = torch.arange(size).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = torch.randint(1, size - 1, (batch, 2), generator=random)
        x = 0.3 * torch.randn(batch, 1, size, size, generator=random)
        for i, (r, c) in enumerate(at.tolist()):
            x[i, 0, r - 1 : r + 2, c - 1 : c + 2] += 1.5 * mark
        far = (line[:, None] - at[:, 0, None, None]).square() + (line - at[:, 1, None, None]).square()
        return x, torch.exp(-far / 3)[:, None]

    return Task(seed, draw, F.mse_loss)


# --- signals


def motions(seed: int, classes: int = 5, length: int = 32, batch: int = 32) -> Task:
    """What somebody does, by three axes of an accelerometer."""
    fixed = drawn_once(seed, 9509)
    pace = 0.3 + 0.25 * torch.arange(classes)[:, None] + 0.1 * torch.rand(classes, 3, generator=fixed)
    power = 0.5 + torch.rand(classes, 3, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        phase = 6.28 * torch.rand(batch, 3, 1, generator=random)
        x = power[y][..., None] * torch.sin(pace[y][..., None] * torch.arange(length) + phase)
        return 1.3 * x + 0.5 * torch.randn(batch, 3, length, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def ticks(seed: int, length: int = 16, batch: int = 48) -> Task:
    """The next value of a series after sixteen, given as (N,)."""
    rhythm = 6.28 / (5 + 3 * torch.rand(1, generator=drawn_once(seed, 9510)))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        phase, size = 6.28 * torch.rand(batch, 1, generator=random), 0.6 + torch.rand(batch, 1, generator=random)
        x = size * torch.sin(rhythm * torch.arange(length + 1) + phase)
        x = x + 0.1 * torch.randn(batch, length + 1, generator=random)
        return x[:, :length, None], x[:, length]

    return Task(seed, draw, F.mse_loss)


# --- texts


def reviews(seed: int, words: int = 40, length: int = 12, batch: int = 48) -> Task:
    """Whether a review is kind, by the weights of its words."""
    weight = torch.randn(words, generator=drawn_once(seed, 9511))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(words, (batch, length), generator=random)
        return x, (weight[x].sum(dim=1) > 0).long()

    return Task(seed, draw, F.cross_entropy)


def news(seed: int, words: int = 48, kinds: int = 4, length: int = 10, batch: int = 48) -> Task:
    """The section of a headline, of which four words in ten are typical."""
    topic = torch.randperm(words, generator=drawn_once(seed, 9512)).view(kinds, -1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(kinds, (batch,), generator=random)
        x = torch.randint(words, (batch, length), generator=random)
        typical = topic[y[:, None], torch.randint(topic.shape[1], (batch, length), generator=random)]
        return torch.where(torch.rand(batch, length, generator=random) < 0.4, typical, x), y

    return Task(seed, draw, F.cross_entropy)


def letters(seed: int, signs: int = 16, length: int = 12, batch: int = 24) -> Task:
    """Text in which a sign mostly says the next one; the next sign is asked for at every place."""
    follow = torch.randperm(signs, generator=drawn_once(seed, 9513))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(signs, (batch, length + 1), generator=random)
        odd = torch.rand(batch, length + 1, generator=random) < 0.1
        for t in range(1, length + 1):
            text[:, t] = torch.where(odd[:, t], text[:, t], follow[text[:, t - 1]])
        return text[:, :-1], text[:, 1:]

    return Task(seed, draw, token_loss)


def phrases(seed: int, signs: int = 8, length: int = 5, batch: int = 32) -> Task:
    """A phrase of five signs to be written in other signs; what was written so far is given."""
    other = torch.randperm(signs, generator=drawn_once(seed, 9514))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        source = torch.randint(signs, (batch, length), generator=random)
        y = other[source]
        return (source, F.pad(y[:, :-1], (1, 0), value=signs)), y

    return Task(seed, draw, token_loss)


def names(seed: int, words: int = 24, kinds: int = 4, length: int = 9, batch: int = 32) -> Task:
    """A tag for each word, by the word and by whether the word before was a title."""
    tag = torch.randint(kinds, (2, words), generator=drawn_once(seed, 9515))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(words, (batch, length), generator=random)
        title = F.pad((x[:, :-1] < words // 3).long(), (1, 0))
        return x, tag[title, x]

    return Task(seed, draw, token_loss)


# --- graphs, faces, points


def papers(seed: int, nodes: int = 20, dim: int = 8, classes: int = 4, batch: int = 8) -> Task:
    """Subjects of papers, by their words and by those of papers they cite."""
    code = torch.randn(classes, dim, generator=drawn_once(seed, 9516))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        y = torch.randint(classes, (batch, nodes), generator=random)
        likely = torch.where(y[:, :, None] == y[:, None], 0.4, 0.05)
        link = (torch.rand(batch, nodes, nodes, generator=random) < likely).float().triu(1)
        link = link + link.transpose(1, 2) + torch.eye(nodes)
        x = 0.7 * code[y] + torch.randn(batch, nodes, dim, generator=random)
        return (x, link / link.sum(dim=2, keepdim=True)), y

    return Task(seed, draw, token_loss)


def traffic(seed: int, nodes: int = 60, dim: int = 4) -> Task:
    """The next count at each of sixty places of one road network, by the last four and by its neighbours'; (N,)."""
    fixed = drawn_once(seed, 9517)
    place = torch.rand(nodes, 2, generator=fixed)
    link = (torch.cdist(place, place) < 0.25).float()
    link = link / link.sum(dim=1, keepdim=True)
    own, near = torch.randn(dim, generator=fixed) / 2, torch.randn(dim, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        x = torch.randn(nodes, dim, generator=random)
        y = torch.tanh(x @ own) + link @ x @ near
        return (x, link), y + 0.05 * torch.randn(nodes, generator=random)

    return Task(seed, draw, F.mse_loss)


def faces(seed: int, people: int = 8, dim: int = 16, batch: int = 48) -> Task:
    """Measurements of faces, and whose they are; many of them say nothing."""
    fixed = drawn_once(seed, 9518)
    look, blend = torch.randn(people, 6, generator=fixed), torch.randn(12, dim, generator=fixed) / 2.5

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(people, (batch,), generator=random)
        mood = torch.randn(batch, 6, generator=random)
        return torch.cat([look[y] + 0.3 * torch.randn(batch, 6, generator=random), mood], dim=1) @ blend, y

    return Task(seed, draw, F.cross_entropy)


def twins(seed: int, people: int = 8, dim: int = 16, batch: int = 64, same: float = 0.5) -> Task:
    """Two faces each, and whether they are one person's."""
    fixed = drawn_once(seed, 9519)
    look, blend = torch.randn(people, 6, generator=fixed), torch.randn(10, dim, generator=fixed) / 2.5

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        a = torch.randint(people, (batch,), generator=random)
        alike = torch.rand(batch, generator=random) < same
        b = torch.where(alike, a, (a + 1 + torch.randint(people - 1, (batch,), generator=random)) % people)
        seen = []
        for who in (a, b):
            mood = torch.randn(batch, 4, generator=random)
            seen.append(torch.cat([look[who] + 0.2 * torch.randn(batch, 6, generator=random), mood], dim=1) @ blend)
        return (seen[0], seen[1]), alike.float()

    return Task(seed, draw, bce)


def codes(seed: int, dim: int = 24, factors: int = 4, batch: int = 64) -> Task:
    """Rows that four factors make, to be given back."""
    blend = torch.randn(2, factors, dim, generator=drawn_once(seed, 9520)) / 1.6

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        z = torch.randn(batch, factors, generator=random)
        x = z @ blend[0] + torch.tanh(z @ blend[1])
        return x, x

    return Task(seed, draw, F.mse_loss)


# --- games of two


def gan() -> nn.ModuleDict:
    """A generator of points and who judges them."""
    return nn.ModuleDict(
        {
            "generator": nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2)),
            "discriminator": nn.Sequential(
                nn.Linear(2, 24), nn.LeakyReLU(0.2), nn.Linear(24, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1)
            ),
        }
    )


def cloud(seed: int, count: int, random: torch.Generator) -> Tensor:
    """Points of a slanted cloud, away from the middle."""
    turn = 6.28 * torch.rand(1, generator=drawn_once(seed, 9521))
    centre = 2.5 * torch.stack([turn.cos(), turn.sin()], dim=1)
    slant = torch.tensor([[0.6, 0.2], [0.0, 0.3]])
    return centre + torch.randn(count, 2, generator=random) @ slant


def far_from_cloud(model: nn.ModuleDict, seed: int) -> Callable[[], float]:
    """How far what is generated is from what there is, by the energy distance."""
    random = torch.Generator().manual_seed(seed + 77)
    real, noise = cloud(seed, 256, random), torch.randn(256, 4, generator=random)

    def score() -> float:
        with torch.no_grad():
            made = model["generator"](noise)
            return (
                2 * torch.cdist(made, real).mean() - torch.cdist(made, made).mean() - torch.cdist(real, real).mean()
            ).item()

    return score


def adversaries(
    seed: int,
    model: nn.ModuleDict,
    optimizers: list[torch.optim.Optimizer],
    *,
    steps: int = 150,
    batch: int = 64,
    cleared: tuple[bool, bool] = (True, True),
    stepped: tuple[bool, bool] = (True, True),
    cut: bool = False,
) -> Program:
    """A game of a generator and a discriminator; which lines are there is told for each of the two.

    `cut` detaches the fake in the generator's own step.
    """
    random = torch.Generator().manual_seed(seed + 5)
    generator, discriminator = model["generator"], model["discriminator"]
    of_g, of_d = optimizers
    losses: list[float] = []

    def run() -> None:
        one, zero = torch.ones(batch, 1), torch.zeros(batch, 1)
        for _ in range(steps):
            real, noise = cloud(seed, batch, random), torch.randn(batch, 4, generator=random)
            fake = generator(noise)
            if cleared[1]:
                of_d.zero_grad()
            loss = bce(discriminator(real), one) + bce(discriminator(fake.detach()), zero)
            loss.backward()
            if stepped[1]:
                of_d.step()
            if cleared[0]:
                of_g.zero_grad()
            fooled = bce(discriminator(fake.detach() if cut else fake), one)
            fooled.backward()
            if stepped[0]:
                of_g.step()
            losses.append(fooled.item())

    return Program(model=model, optimizer=optimizers, run=run, losses=losses, score=far_from_cloud(model, seed))


# --- habits


def square(out: Tensor, y: Tensor) -> Tensor:
    """The squared error of (N, 1) against (N,), with the shapes made alike."""
    return F.mse_loss(out.squeeze(-1), y)


def learning(model: nn.Module) -> list[nn.Parameter]:
    """What is to be trained."""
    return [p for p in model.parameters() if p.requires_grad]


def flat(model: nn.Module) -> nn.Sequential:
    """The same model over rows of a picture."""
    return nn.Sequential(nn.Flatten(), model)


Made = tuple[nn.Module, Task, Callable[[Any, Any], Tensor]]
KINDS: dict[str, Callable[[int], Made]] = {
    "flowers": lambda s: (mlp([4, 16, 3]), flowers(s), F.cross_entropy),
    "houses": lambda s: (mlp([8, 32, 32, 1]), houses(s), square),
    "loans": lambda s: (mlp([10, 32, 1]), loans(s), bce),
    "movies": lambda s: (NeuMf(), movies(s), bce),
    "digits": lambda s: (Lenet(), digits(s), F.cross_entropy),
    "numerals": lambda s: (flat(mlp([64, 48, 10])), digits(s), F.cross_entropy),
    "photos": lambda s: (Resnet(), photos(s), F.cross_entropy),
    "scans": lambda s: (Unet(), scans(s), bce),
    "courts": lambda s: (Unet(), courts(s), F.mse_loss),
    "motions": lambda s: (Waves(), motions(s), F.cross_entropy),
    "ticks": lambda s: (Lstm(), ticks(s), square),
    "reviews": lambda s: (Reader(), reviews(s), F.cross_entropy),
    "news": lambda s: (TextCnn(), news(s), F.cross_entropy),
    "letters": lambda s: (Gpt(), letters(s), token_loss),
    "phrases": lambda s: (Seq2seq(), phrases(s), token_loss),
    "names": lambda s: (Tagger(), names(s), token_loss),
    "papers": lambda s: (Gcn(), papers(s), token_loss),
    "traffic": lambda s: (Gcn(4, 1), traffic(s), square),
    "faces": lambda s: (Embedder(), faces(s), F.cross_entropy),
    "codes": lambda s: (mlp([24, 32, 4, 32, 24]), codes(s), F.mse_loss),
}
"""What is trained, by the name of its data."""
RATES = {
    "flowers": 1e-2,
    "loans": 1e-2,
    "movies": 2e-2,
    "digits": 3e-3,
    "numerals": 3e-3,
    "ticks": 1e-2,
    "reviews": 1e-2,
    "news": 1e-2,
    "letters": 4e-3,
    "phrases": 1e-2,
    "names": 1e-2,
    "papers": 1e-2,
    "traffic": 1e-2,
    "codes": 1e-2,
}
"""Rates of Adam with which they learn, where it is not 5e-3."""


def rate_of(name: str) -> float:
    """The rate of Adam that suits."""
    return RATES.get(name, 5e-3)
