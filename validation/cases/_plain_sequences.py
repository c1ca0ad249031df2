"""What the sequence cases of the half `plain` share: tasks of everyday kinds, and the parts of their networks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.tasks import Task, token_loss
from validation.tasks.task import drawn_once

# --- tokens


def campaigns(seed: int, length: int = 24, kinds: int = 6, pages: int = 12, batch: int = 32) -> Task:
    """A visit: the advert that led to it, many pages, the till. Which advert was it? Needs a lag of length - 1."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        advert = torch.randint(kinds, (batch, 1), generator=random)
        page = kinds + torch.randint(pages, (batch, length - 2), generator=random)
        till = torch.full((batch, 1), kinds + pages)
        return torch.cat([advert, page, till], dim=1), advert[:, 0]

    return Task(seed, draw, F.cross_entropy)


VISIT = 19
"""Tokens of a visit: six adverts, twelve pages, the till."""


def surnames(seed: int, languages: int = 5, letters: int = 16, longest: int = 10, batch: int = 32) -> Task:
    """Names of unlike length, padded with 0; every language has its own pairs of letters. Inputs: letters, lengths."""
    follow = 2.2 * torch.randn(languages, letters, letters, generator=drawn_once(seed, 5000))
    chance = follow.softmax(dim=-1)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        language = torch.randint(languages, (batch,), generator=random)
        now, name = torch.randint(letters, (batch,), generator=random), []
        for _ in range(longest):
            name.append(now + 1)
            now = torch.multinomial(chance[language, now], 1, generator=random)[:, 0]
        lengths = torch.randint(4, longest + 1, (batch,), generator=random)
        tokens = torch.stack(name, dim=1)
        return (tokens.masked_fill(torch.arange(longest) >= lengths[:, None], 0), lengths), language

    return Task(seed, draw, F.cross_entropy)


def verses(seed: int, words: int = 12, length: int = 16, batch: int = 16, noise: float = 0.1) -> Task:
    """A language in which the last two words say the next, mostly."""
    table = torch.randint(words, (words, words), generator=drawn_once(seed, 5100))
    usual = torch.randperm(words, generator=drawn_once(seed, 5101))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        text = [torch.randint(words, (batch,), generator=random) for _ in range(2)]
        for _ in range(length - 1):
            new = torch.where(text[-2] % 3 == 0, table[text[-2], text[-1]], usual[text[-1]])
            other = torch.randint(words, (batch,), generator=random)
            text.append(torch.where(torch.rand(batch, generator=random) < noise, other, new))
        rows = torch.stack(text, dim=1)
        return rows[:, :-1], rows[:, 1:]

    return Task(seed, draw, token_loss)


def orders(seed: int, words: int = 18, length: int = 10, batch: int = 24) -> Task:
    """Slots of a request: a word's slot depends on it and on the word before. Targets are slots and an intent."""
    slot = torch.randint(4, (words, 2), generator=drawn_once(seed, 5200))

    def draw(random: torch.Generator) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        tokens = torch.randint(words, (batch, length), generator=random)
        before = F.pad(tokens, (1, 0))[:, :-1] % 2
        many = (tokens < words // 3).sum(dim=1)
        return tokens, (slot[tokens, before], (many > length // 3).long())

    def loss(output: Tensor | tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        slots, intent = output if isinstance(output, tuple) else (output, None)
        first = token_loss(slots, target[0])
        return first if intent is None else first + F.cross_entropy(intent, target[1])

    return Task(seed, draw, loss)


def swaps(seed: int, words: int = 10, length: int = 6, batch: int = 32) -> Task:
    """Translate word by word, neighbours swapped, under teacher forcing; `words` begins the answer."""
    code = torch.randperm(words, generator=drawn_once(seed, 5300))
    place = torch.arange(length).view(-1, 2).flip(1).flatten()

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        source = torch.randint(words, (batch, length), generator=random)
        answer = code[source[:, place]]
        return (source, torch.cat([torch.full((batch, 1), words), answer[:, :-1]], dim=1)), answer

    return Task(seed, draw, token_loss)


def pointed(seed: int, words: int = 8, length: int = 12, batch: int = 32) -> Task:
    """One word of a row is underlined (its number is higher by `words`): which is it?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(words, (batch, length), generator=random)
        where = torch.randint(length, (batch, 1), generator=random)
        word = tokens.gather(1, where)
        return tokens.scatter(1, where, word + words), word[:, 0]

    return Task(seed, draw, F.cross_entropy)


def playlists(seed: int, songs: int = 24, length: int = 12, batch: int = 24) -> Task:
    """What is heard next: mostly a song of the same genre as the last, in a fixed round."""
    round_ = torch.randperm(songs, generator=drawn_once(seed, 5400))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = [torch.randint(songs, (batch,), generator=random)]
        for _ in range(length):
            jump = torch.rand(batch, generator=random) < 0.15
            rows.append(torch.where(jump, torch.randint(songs, (batch,), generator=random), round_[rows[-1]]))
        heard = torch.stack(rows, dim=1)
        return heard[:, :-1], heard[:, 1:]

    return Task(seed, draw, token_loss)


def tickets(seed: int, words: int = 30, length: int = 12, batch: int = 32, full: bool = True) -> Task:
    """Requests for help, padded with 0: urgent if a word of alarm is there. Inputs: words, and 1 where a word is.

    `full` has one request in eight of the whole length.
    """

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        target = torch.randint(2, (batch,), generator=random)
        lengths = torch.randint(4, length, (batch,), generator=random)
        if full:
            lengths[::8] = length
        tokens = torch.randint(5, words, (batch, length), generator=random)
        alarm = torch.randint(1, 5, (batch,), generator=random)
        tokens[:, 1] = torch.where(target == 1, alarm, tokens[:, 1])
        there = torch.arange(length) < lengths[:, None]
        return (tokens.masked_fill(~there, 0), there), target

    return Task(seed, draw, F.cross_entropy)


# --- readings


def warmups(seed: int, length: int = 24, batch: int = 32) -> Task:
    """A device shows two levels in its first three steps, noise follows; the levels are asked for at the end."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        level = torch.randn(batch, 2, generator=random)
        x = 0.2 * torch.randn(batch, length, 3, generator=random)
        x[:, :3, :2] += level[:, None]
        x[:, :3, 2] += 1.0
        return x, level

    return Task(seed, draw, F.mse_loss)


def switches(seed: int, length: int = 20, channels: int = 3, batch: int = 32, chance: float = 0.1) -> Task:
    """Flip-flops: each channel is kicked up or down now and then; at every step, where was it kicked last?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kick = torch.rand(batch, length, channels, generator=random)
        x = (kick < chance / 2).float() - (kick > 1 - chance / 2).float()
        x[:, 0] = 2.0 * torch.randint(2, (batch, channels), generator=random) - 1
        state, states = torch.zeros(batch, channels), []
        for now in x.unbind(1):
            state = torch.where(now != 0, now, state)
            states.append(state)
        return x, torch.stack(states, dim=1)

    return Task(seed, draw, F.mse_loss)


def rides(seed: int, length: int = 24, batch: int = 24, noise: float = 0.05) -> Task:
    """How many bicycles are lent at two stations, every hour the next: a daily round, a level, a slow drift."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        start = torch.rand(batch, 1, 2, generator=random)
        level = 0.3 * torch.randn(batch, 1, 2, generator=random)
        drift = 0.02 * torch.randn(batch, 1, 2, generator=random)
        t = torch.arange(length + 1.0)[None, :, None]
        day = 2 * math.pi * (t / 12 + start)
        x = level + drift * t + day.sin() + 0.4 * (2 * day).cos()
        x = x + noise * torch.randn(x.shape, generator=random)
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


def commands(seed: int, kinds: int = 6, length: int = 16, bands: int = 8, batch: int = 32, noise: float = 0.6) -> Task:
    """Spoken commands as bands over time; each glides in its own way and begins early or late."""
    fixed = drawn_once(seed, 5500)
    at, slope = 7 * torch.rand(kinds, 2, generator=fixed), torch.randn(kinds, 2, generator=fixed) * 0.4

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(kinds, (batch,), generator=random)
        t = torch.arange(length * 1.0) - torch.randint(3, (batch, 1), generator=random)
        x = noise * torch.randn(batch, length, bands, generator=random)
        for i in range(2):
            middle = at[target, i, None] + slope[target, i, None] * t
            x = x + 2 * torch.exp(-0.7 * (torch.arange(bands * 1.0) - middle[..., None]) ** 2)
        return x - 0.5, target

    return Task(seed, draw, F.cross_entropy)


def bearings(seed: int, length: int = 16, batch: int = 32) -> Task:
    """Four signs of wear of a bearing over time; how much of its life is left, from 0 to 1."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        left = torch.rand(batch, 1, generator=random)
        pace = 0.5 + torch.rand(batch, 1, generator=random)
        t = torch.arange(length * 1.0) / length
        worn = (1 - left + pace * 0.3 * (t - 1)).clamp_min(0)
        signs = [worn, worn**2, (4 * worn).sin(), torch.exp(worn) - 1]
        x = torch.stack(signs, dim=-1)
        return x + 0.1 * torch.randn(x.shape, generator=random), left

    return Task(seed, draw, F.mse_loss)


# --- tables, pictures, sets


def stamps(seed: int, kinds: int = 6, size: int = 12, batch: int = 24, noise: float = 0.5) -> Task:
    """Pictures of some fixed patterns, moved by up to two dots, under noise."""
    sign = torch.randn(kinds, 1, size // 2, size // 2, generator=drawn_once(seed, 5600))
    sign = F.interpolate(sign, size=(size, size), mode="bilinear") * 1.5

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(kinds, (batch,), generator=random)
        x = sign[target].roll(int(torch.randint(3, (1,), generator=random)), dims=-1)
        return x + noise * torch.randn(x.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def loans(seed: int, columns: int = 8, batch: int = 48) -> Task:
    """Whether a loan is paid back, from standardised columns: some count alone, some in pairs."""
    fixed = drawn_once(seed, 5700)
    alone, pair = torch.randn(columns, generator=fixed), torch.randn(columns // 2, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, columns, generator=random)
        score = x @ alone + (x[:, ::2] * x[:, 1::2]) @ pair
        return x, (score > 0).long()

    return Task(seed, draw, F.cross_entropy)


def shards(seed: int, kinds: int = 5, items: int = 10, dim: int = 10, batch: int = 32) -> Task:
    """A bag of shards of which a few are of one vessel and the rest is gravel: which vessel?"""
    codes = 1.5 * torch.randn(kinds, dim, generator=drawn_once(seed, 5800))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(kinds, (batch,), generator=random)
        x = 0.7 * torch.randn(batch, items, dim, generator=random)
        found = torch.rand(batch, items, generator=random).argsort(dim=1) < 3
        return x + found[..., None] * codes[target][:, None], target

    return Task(seed, draw, F.cross_entropy)


# --- parts of networks


def tokens_of(picture: Tensor, size: int = 3) -> Tensor:
    """Cut a picture into squares, (batch, places, dots)."""
    return F.unfold(picture, size, stride=size).transpose(1, 2)


def heads_of(x: Tensor, heads: int) -> Tensor:
    """Give (batch, heads, length, size)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def ahead(length: int) -> Tensor:
    """True where a token would look ahead."""
    return torch.ones(length, length).triu(1).bool()


class Mlp(nn.Module):
    """The dense half of a block, with any activation."""

    def __init__(self, width: int, hidden: int, act=F.gelu) -> None:
        super().__init__()
        self.fc1, self.fc2, self.act = nn.Linear(width, hidden), nn.Linear(hidden, width), act

    def forward(self, x: Tensor) -> Tensor:
        """Widen and narrow."""
        return self.fc2(self.act(self.fc1(x)))


class Residual(nn.Module):
    """A block before whose halves stands a norm; either half may be anything."""

    def __init__(self, attn: nn.Module, mlp: nn.Module, width: int) -> None:
        super().__init__()
        self.ln1, self.attn, self.ln2, self.mlp = nn.LayerNorm(width), attn, nn.LayerNorm(width), mlp

    def forward(self, x: Tensor) -> Tensor:
        """Two sums."""
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Fused(nn.Module):
    """Self-attention from one matrix for queries, keys and values, as in nanoGPT."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix."""
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Stack(nn.Module):
    """An entry, learned places if told, blocks, a norm, an answer for each token, their mean or the last."""

    def __init__(
        self, enter: nn.Module, blocks: list[nn.Module], width: int, out: int, read: str = "each", length: int = 0
    ) -> None:
        super().__init__()
        self.enter, self.read = enter, read
        self.wpe = nn.Embedding(length, width) if length else None
        self.blocks, self.ln, self.head = nn.ModuleList(blocks), nn.LayerNorm(width), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        """Answer."""
        h = self.enter(x)
        if self.wpe is not None:
            h = h + self.wpe.weight[: h.shape[1]]
        for block in self.blocks:
            h = block(h)
        h = self.ln(h)
        return self.head(h if self.read == "each" else h[:, -1] if self.read == "last" else h.mean(dim=1))
