"""What the sequence cases of the half `reported` share: tasks as in the threads, small modules, some measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, call
from validation.cases._common_sequences import Last, told
from validation.evidence.live import attention_of
from validation.evidence.signal import judged
from validation.tasks import Task, token_loss
from validation.tasks.task import drawn_once

# --- what comes first decides

TICKET = 17
"""Tokens of a ticket: five products, eleven phrases, "regards"."""


def tickets(seed: int, length: int = 20, batch: int = 32) -> Task:
    """A support ticket names its product in the first word and ends with regards: which product was it?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        product = torch.randint(5, (batch, 1), generator=random)
        phrases = 5 + torch.randint(11, (batch, length - 2), generator=random)
        return torch.cat([product, phrases, torch.full((batch, 1), 16)], dim=1), product[:, 0]

    return Task(seed, draw, F.cross_entropy)


def settings(seed: int, length: int = 20, batch: int = 32, count: int = 2) -> Task:
    """Settings of a machine at the first step, its noise afterwards; what were they?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randn(batch, count, generator=random)
        x = 0.2 * torch.randn(batch, length, count + 1, generator=random)
        x[:, 0] = torch.cat([target, torch.ones(batch, 1)], dim=1)
        return x, target

    return Task(seed, draw, F.mse_loss)


SHOP = 14


def sessions(seed: int, length: int = 14, batch: int = 32, noise: float = 0.1) -> Task:
    """What is clicked next in a shop, by the last item and by the first of the session."""
    follows = torch.stack([torch.randperm(SHOP, generator=drawn_once(seed, 8000 + i)) for i in range(4)])

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        row = [torch.randint(SHOP, (batch,), generator=random)]
        for _ in range(length):
            free = torch.randint(SHOP, (batch,), generator=random)
            new = follows[row[0] % 4, row[-1]]
            row.append(torch.where(torch.rand(batch, generator=random) < noise, free, new))
        text = torch.stack(row, dim=1)
        return text[:, :-1], text[:, 1:]

    return Task(seed, draw, lambda z, t: token_loss(z[:, 1:], t[:, 1:]))


def clips(seed: int, kinds: int = 5, frames: int = 10, dim: int = 12, batch: int = 24) -> Task:
    """Features of the frames of a film; what happens in its middle tells its kind."""
    scene = torch.randn(kinds, 3, dim, generator=drawn_once(seed, 8100))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(kinds, (batch,), generator=random)
        x = 0.6 * torch.randn(batch, frames, dim, generator=random)
        x[:, 3:6] += scene[kind]
        return x, kind

    return Task(seed, draw, F.cross_entropy)


OPINION = 24


def opinions(seed: int, longest: int = 24, most: int = 8, batch: int = 32, left: bool = False) -> Task:
    """Short opinions, padded with 0 to a long row; words from 1 to 4 say which of four. Inputs: words, lengths."""

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        lengths = torch.randint(3, most + 1, (batch,), generator=random)
        kind = torch.randint(4, (batch,), generator=random)
        words = torch.randint(5, OPINION, (batch, longest), generator=random)
        words[torch.arange(batch), (torch.rand(batch, generator=random) * lengths).long()] = 1 + kind
        words = words.masked_fill(torch.arange(longest) >= lengths[:, None], 0)
        if left:
            words = words.gather(1, (torch.arange(longest) + lengths[:, None]) % longest)
        return (words, lengths), kind

    return Task(seed, draw, F.cross_entropy)


# --- curves


def curves(seed: int, length: int = 20, batch: int = 24, unit: float = 1.0, level: float = 0.0, dim: int = 1) -> Task:
    """Curves of random pace, every step the next; the inputs may be in another unit and at another level."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        pace = 0.3 + 0.6 * torch.rand(batch, 1, dim, generator=random)
        phase = 6.3 * torch.rand(batch, 1, dim, generator=random)
        x = torch.sin(pace * torch.arange(length + 1.0)[None, :, None] + phase)
        x = x + 0.05 * torch.randn(x.shape, generator=random)
        return level + unit * x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


def horizons(seed: int, past: int = 16, ahead: int = 6, batch: int = 24, level: float = 0.0) -> Task:
    """The past of a curve, and all of what comes next at once; `level` is added to what is asked for."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        pace = 0.3 + 0.6 * torch.rand(batch, 1, generator=random)
        phase = 6.3 * torch.rand(batch, 1, generator=random)
        x = torch.sin(pace * torch.arange(past + ahead * 1.0) + phase)
        x = x + 0.03 * torch.randn(x.shape, generator=random)
        return x[:, :past, None], level + x[:, past:, None]

    return Task(seed, draw, F.mse_loss)


# --- what is to be found somewhere


def directory(seed: int, names: int = 8, pairs: int = 5, batch: int = 32) -> Task:
    """Entries of a name and a number each, as one token of two parts; the last token is a name: its number?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        who = torch.rand(batch, names, generator=random).argsort(dim=1)[:, :pairs]
        number = torch.randint(names, (batch, pairs), generator=random)
        asked = torch.randint(pairs, (batch, 1), generator=random)
        rows = torch.cat([F.one_hot(who, names), F.one_hot(number, names)], dim=2)
        ask = torch.cat([F.one_hot(who.gather(1, asked), names), torch.zeros(batch, 1, names)], dim=2)
        return torch.cat([rows, ask], dim=1).float(), number.gather(1, asked)[:, 0]

    return Task(seed, draw, F.cross_entropy)


def swaps(seed: int, words: int = 9, length: int = 8, batch: int = 24) -> Task:
    """Words in another language, from the last to the first."""
    code = torch.randperm(words, generator=drawn_once(seed, 8200))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(words, (batch, length), generator=random)
        return x, code[x.flip(1)]

    return Task(seed, draw, token_loss)


def pairs(seed: int, colours: int = 3, dim: int = 8, length: int = 6, batch: int = 32) -> Task:
    """Players in a row know the shirts of two others each and are to say their two colours: nine classes."""
    fixed = drawn_once(seed, 8250)
    shades, shirts = torch.randn(colours, dim, generator=fixed), 1.5 * torch.randn(length, dim, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        colour = torch.randint(colours, (batch, length), generator=random)
        one, two = torch.randint(length, (2, batch, length), generator=random)
        x = torch.cat([shades[colour], shirts.expand(batch, -1, -1), shirts[one], shirts[two]], dim=2)
        return x, colours * colour.gather(1, one) + colour.gather(1, two)

    return Task(seed, draw, token_loss)


PAPER = 40


def abstracts(seed: int, kinds: int = 6, length: int = 14, batch: int = 32) -> Task:
    """Texts whose words lean towards their field."""
    lists = (1.2 * torch.randn(kinds, PAPER, generator=drawn_once(seed, 8300))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(kinds, (batch,), generator=random)
        return torch.multinomial(lists[kind], length, replacement=True, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def stamps(seed: int, kinds: int = 6, size: int = 12, batch: int = 24, scale: float = 1.0, noise: float = 0.5) -> Task:
    """Small pictures of some fixed stamps; `scale` is that of the pixels."""
    rough = torch.randn(kinds, 1, 4, 4, generator=drawn_once(seed, 8400))
    pictures = F.interpolate(rough, size=size, mode="bilinear")

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(kinds, (batch,), generator=random)
        return scale * (pictures[kind] + noise * torch.randn(batch, 1, size, size, generator=random)), kind

    return Task(seed, draw, F.cross_entropy)


# --- set-ups


def products(seed: int, rnn: nn.Module, features: int, length: int = 20, **more) -> Setup:
    """Which product does a ticket name?"""
    model = Last(nn.Embedding(TICKET, 20), rnn, features, 5)
    return told(model, tickets(seed, length), length - 1, **{"kind": "Adam", "lr": 5e-3, "steps": 90, **more})


def machines(seed: int, rnn: nn.Module, features: int, length: int = 20, **more) -> Setup:
    """How was a machine set?"""
    model = Last(nn.Linear(3, 20), rnn, features, 2)
    return told(model, settings(seed, length), length - 1, **{"kind": "Adam", "lr": 5e-3, "steps": 90, **more})


def orthogonal(rnn: nn.RNNBase, gain: float = 1.0) -> nn.RNNBase:
    """Draw all recurrent matrices orthogonal."""
    for name, weight in rnn.named_parameters():
        if "weight_hh" in name:
            nn.init.orthogonal_(weight, gain)
    return rnn


# --- attention


class Own(nn.Module):
    """Attention by hand from four matrices; a subclass changes how the scores or the chances come about."""

    def __init__(self, width: int = 32, heads: int = 4, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Compare queries and keys."""
        return q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])

    def chances(self, scores: Tensor) -> Tensor:
        """Where to look."""
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -1e9)
        return scores.softmax(dim=-1)

    def split(self, x: Tensor) -> Tensor:
        """Give (batch, heads, length, size)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Mix."""
        memory = x if memory is None else memory
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.o((self.chances(self.scores(q, k)) @ v).transpose(1, 2).flatten(2))


def paths(depth: int, *names: str, module: str = "blocks.{}.attn") -> tuple[str, ...]:
    """Paths of the attentions of all blocks, and of what is in them."""
    return tuple(module.format(i) + part for i in range(depth) for part in ("", *(f".{n}" for n in names)))


# --- measurements


def one_head(*where: str, below: float = 1e-4) -> Proof:
    """All heads of these modules, or of all, look at the same, evenly or not."""

    def proof(case: Case, seed: int) -> Evidence:
        maps = attention_of(case.make(seed))
        chosen: Sequence = [maps[path] for path in where or maps]
        difference = max((each.p - each.p[:, :1]).abs().max().item() for each in chosen)
        return judged(difference < below, "heads differ by {:.1e}", difference)

    return proof


def blind_to(path: str, *steps: int, below: float = 1e-12) -> Proof:
    """No gradient comes to what a module hands on at some steps, beside that to all of them."""

    def proof(case: Case, seed: int) -> Evidence:
        setup, kept = case.make(seed), []

        def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            output.retain_grad()
            kept.append(output)

        handle = setup.model.get_submodule(path).register_forward_hook(keep)
        setup.loss_fn(call(setup.model, setup.input_fn())).backward()
        handle.remove()
        gradient = kept[0].grad.double()
        share = (gradient[:, list(steps)].norm() / gradient.norm().clamp_min(1e-300)).item()
        return judged(share < below, "share of the gradient at those steps {:.1e}", share)

    return proof
