"""What the sequence cases of the half `everyday` share: tasks that look like the usual ones, and two measurements."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, call
from validation.evidence.signal import judged, watching
from validation.tasks import Task, token_loss
from validation.tasks.task import drawn_once

# --- text

TEXT = (
    "the rain came in over the hill in the morning and the farmer went out to look at the field. "
    "he said that the water was good for the corn, but that the road to the town would be bad. "
    "his daughter took the old horse and the cart and went to the mill with the last of the wheat. "
    "on the way she met the baker, who asked her for the price of flour, and she told him that it was high. "
    "in the evening the rain was over, the wind was warm, and they all sat by the fire and ate the bread. "
)
LETTERS = sorted(set(TEXT))
CODES = torch.tensor([LETTERS.index(letter) for letter in TEXT])


def chars(seed: int, length: int = 24, batch: int = 16) -> Task:
    """Predict the next letter in windows of a text."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        start = torch.randint(len(CODES) - length - 1, (batch, 1), generator=random)
        window = CODES[start + torch.arange(length + 1)]
        return window[:, :-1], window[:, 1:]

    return Task(seed, draw, token_loss)


def stream(seed: int, length: int = 24, batch: int = 16) -> Task:
    """The same, but each row of a batch goes on where it stopped in the batch before."""
    begin = torch.randint(len(CODES), (batch, 1), generator=drawn_once(seed, 3000))
    calls = count()

    def draw(_random: torch.Generator) -> tuple[Tensor, Tensor]:
        place = begin + next(calls) * length + torch.arange(length + 1)
        window = CODES[place % len(CODES)]
        return window[:, :-1], window[:, 1:]

    return Task(seed, draw, token_loss)


def first_word(seed: int, length: int = 30, kinds: int = 4, words: int = 20, batch: int = 32) -> Task:
    """Classify a text by its first word; the rest is filler. Needs a lag of length - 1."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(kinds, (batch,), generator=random)
        filler = torch.randint(kinds, words, (batch, length - 1), generator=random)
        return torch.cat([target[:, None], filler], dim=1), target

    return Task(seed, draw, F.cross_entropy)


def reviews(seed: int, words: int = 40, length: int = 16, batch: int = 32) -> Task:
    """Texts of unlike length, padded with 0: are there more good words than bad ones?"""

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        tokens = torch.randint(1, words, (batch, length), generator=random)
        lengths = torch.randint(length // 2, length + 1, (batch,), generator=random)
        tokens = tokens.masked_fill(torch.arange(length) >= lengths[:, None], 0)
        good, bad = ((tokens % 3 == kind) & (tokens > 0) for kind in (1, 2))
        return (tokens, lengths), (good.sum(dim=1) > bad.sum(dim=1)).long()

    return Task(seed, draw, F.cross_entropy)


def tags(seed: int, words: int = 24, kinds: int = 5, length: int = 12, batch: int = 24) -> Task:
    """Tag every word; some words have another tag behind a word of an even number."""
    table = torch.randint(kinds, (2, words), generator=drawn_once(seed, 3100))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(words, (batch, length), generator=random)
        before = torch.cat([torch.zeros(batch, 1).long(), tokens[:, :-1]], dim=1) % 2
        return tokens, table[before, tokens]

    return Task(seed, draw, token_loss)


def reversal(seed: int, words: int = 10, length: int = 6, batch: int = 32) -> Task:
    """Translate word by word and turn the order round, under teacher forcing."""
    code = torch.randperm(words, generator=drawn_once(seed, 3200))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        source = torch.randint(words, (batch, length), generator=random)
        answer = code[source.flip(1)]
        return (source, torch.cat([torch.full((batch, 1), words), answer[:, :-1]], dim=1)), answer

    return Task(seed, draw, token_loss)


def gaps(seed: int, words: int = 16, length: int = 12, batch: int = 24, share: float = 0.2) -> Task:
    """Masked words: the text counts upwards from somewhere, and some words are hidden (the last number)."""

    def draw(random: torch.Generator) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        start = torch.randint(words, (batch, 1), generator=random)
        tokens = (start + torch.arange(length)) % words
        hidden = torch.rand(batch, length, generator=random) < share
        hidden[:, 3] = True
        return tokens.masked_fill(hidden, words), (tokens, hidden)

    def loss(logits: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
        tokens, hidden = target
        return F.cross_entropy(logits[hidden], tokens[hidden])

    return Task(seed, draw, loss)


def topics(seed: int, words: int = 48, kinds: int = 8, length: int = 8, batch: int = 24) -> Task:
    """A question and a document of the same topic, whose words they share; find it among those of the batch."""
    own = words // kinds

    def texts(topic: Tensor, random: torch.Generator) -> Tensor:
        inside = topic[:, None] * own + torch.randint(own, (batch, length), generator=random)
        noise = torch.randint(words, (batch, length), generator=random)
        return torch.where(torch.rand(batch, length, generator=random) < 0.3, noise, inside)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        topic = torch.randint(kinds, (batch,), generator=random)
        return (texts(topic, random), texts(topic, random)), topic

    def loss(scores: Tensor, topic: Tensor) -> Tensor:
        same = (topic[:, None] == topic).float()
        return -(scores.log_softmax(dim=1) * same / same.sum(dim=1, keepdim=True)).sum(dim=1).mean()

    return Task(seed, draw, loss)


# --- measurements over time, pictures, points


def weather(seed: int, length: int = 24, dim: int = 3, batch: int = 24, noise: float = 0.05) -> Task:
    """Some curves of unlike period; every step predicts the next."""
    pace = 0.3 + 0.5 * torch.rand(dim, generator=drawn_once(seed, 3300))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        phase = 2 * math.pi * torch.rand(batch, 1, dim, generator=random)
        x = torch.sin(torch.arange(length + 1.0)[None, :, None] * pace + phase)
        x = x + noise * torch.randn(x.shape, generator=random)
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


def sales(seed: int, season: int = 7, weeks: int = 4, batch: int = 32) -> Task:
    """Daily sales of shops, each with a profile of its own that repeats; predict the next day from the second week."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        profile = torch.randn(batch, season, generator=random)
        x = profile.repeat(1, weeks) + 0.1 * torch.randn(batch, season * weeks, generator=random)
        return x[:, :-1, None], x[:, 1:, None]

    return Task(seed, draw, lambda y, t: F.mse_loss(y[:, season - 1 :], t[:, season - 1 :]))


def motions(seed: int, kinds: int = 4, length: int = 20, batch: int = 32) -> Task:
    """Three-axis readings of a wrist band: which of some movements is it?"""
    fixed = drawn_once(seed, 3400)
    pace, mix = 0.3 + torch.linspace(0, 1, kinds), torch.randn(kinds, 3, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(kinds, (batch,), generator=random)
        angle = torch.arange(length) * pace[target, None] + 6.3 * torch.rand(batch, 1, generator=random)
        x = torch.sin(angle)[..., None] * mix[target, None] + 0.2 * torch.randn(batch, length, 3, generator=random)
        return x, target

    return Task(seed, draw, F.cross_entropy)


def glyphs(seed: int, classes: int = 6, size: int = 12, batch: int = 24, noise: float = 0.7) -> Task:
    """Noisy pictures of some fixed signs."""
    rough = torch.randn(classes, 1, 4, 4, generator=drawn_once(seed, 3500))
    signs = F.interpolate(rough, size=size, mode="bilinear") * 1.2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        return signs[target] + noise * torch.randn(batch, 1, size, size, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def clouds(seed: int, points: int = 16, batch: int = 24) -> Task:
    """Points of a ball, a shell, a plate or a rod, each stretched a little: which is it?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(4, (batch,), generator=random)
        x = torch.randn(batch, points, 3, generator=random)
        shapes = [0.7 * x, 1.3 * F.normalize(x, dim=-1), x * torch.tensor([1.0, 1.0, 0.1])]
        shapes.append(x * torch.tensor([1.5, 0.1, 0.1]))
        return torch.stack(shapes, dim=1)[torch.arange(batch), target], target

    return Task(seed, draw, F.cross_entropy)


# --- set-ups


# --- measurements


def back(path: str | None = None, *, below: float = 0, above: float = 0) -> Proof:
    """Compare the loss's gradient at the first step of what a module hands on, or of the input, with the last."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        x, kept = setup.input_fn(), []

        def keep(_path: str, _module: nn.Module, _inputs: object, output: Tensor) -> None:
            output.retain_grad()
            kept.append(output)

        if path is None:
            kept.append(x.requires_grad_())
            setup.loss_fn(call(setup.model, x)).backward()
        else:
            with watching([(path, setup.model.get_submodule(path))], keep):
                setup.loss_fn(call(setup.model, x)).backward()
        first, last = (kept[0].grad[:, t].double().norm().item() for t in (0, -1))
        ratio = first / last if last else math.nan
        holds = ratio < below if below else not ratio <= above
        return judged(holds, "gradient at the first / last step {:.1e}", ratio)

    return proof


def more_than(measure: Callable[[Setup], float], least: float, what: str) -> Proof:
    """What `measure` reads is at least so much."""

    def proof(case: Case, seed: int) -> Evidence:
        value = measure(case.make(seed))
        return judged(value >= least, what + " {:.3g}", value)

    return proof


def same_outputs(path: str, below: float = 1e-5) -> Proof:
    """A module that is called several times in a pass says the same each time."""

    def proof(case: Case, seed: int) -> Evidence:
        setup, said = case.make(seed), []
        with watching([(path, setup.model.get_submodule(path))], lambda *seen: said.append(seen[-1])), torch.no_grad():
            call(setup.model, setup.input_fn())
        difference = max((each - said[0]).abs().max().item() for each in said)
        return judged(len(said) > 1 and difference < below, "{} calls differ by {:.1e}", len(said), difference)

    return proof


# --- transformers


class Patch(nn.Module):
    """Cuts a picture into patches of 3×3 and projects them, through `narrow` numbers if told."""

    def __init__(self, width: int, narrow: int | None = None, size: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, narrow or width, size, stride=size)
        self.widen = nn.Linear(narrow, width) if narrow else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.widen(self.conv(x).flatten(2).transpose(1, 2))


class Model(nn.Module):
    """Something that enters, learned positions, blocks, a norm, a head for every token or for their mean."""

    def __init__(
        self, enter: nn.Module, blocks: list[nn.Module], out: int, width: int = 32, length: int = 24, pool=False
    ) -> None:
        super().__init__()
        self.enter, self.pos = enter, nn.Parameter(0.3 * torch.randn(1, length, width))
        self.blocks, self.norm, self.head = nn.ModuleList(blocks), nn.LayerNorm(width), nn.Linear(width, out)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        h = h + self.pos[:, : h.shape[1]]
        for block in self.blocks:
            h = block(h)
        h = self.norm(h)
        return self.head(h.mean(dim=1) if self.pool else h)


class SelfAttention(nn.Module):
    """Attention by hand from separate projections; `factor` multiplies the scores, by default 1 / √size."""

    def __init__(self, width: int, heads: int, causal: bool = False, factor: float | None = None) -> None:
        super().__init__()
        self.heads, self.causal, self.factor = heads, causal, factor or (width // heads) ** -0.5
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = q @ k.transpose(-2, -1) * self.factor
        if self.causal:
            ahead = torch.triu(torch.ones(x.shape[1], x.shape[1]), 1).bool()
            scores = scores.masked_fill(ahead, float("-inf"))
        return self.o((F.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))


class PreNorm(nn.Module):
    """The usual block around any attention; `skip` may be forgotten."""

    def __init__(self, attn: nn.Module, width: int = 32, skip: bool = True, act=F.gelu, norm=nn.LayerNorm) -> None:
        super().__init__()
        self.ln1, self.attn, self.ln2 = norm(width), attn, norm(width)
        self.fc1, self.fc2, self.skip, self.act = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), skip, act

    def forward(self, x: Tensor) -> Tensor:
        h = self.attn(self.ln1(x))
        x = x + h if self.skip else h
        h = self.fc2(self.act(self.fc1(self.ln2(x))))
        return x + h if self.skip else h
