# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Daily transformers with a waist, or with the faults of any network, and their twins.

Half: daily.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Attend, Net, Pre, ends_worse
from validation.cases._daily_attention import Own, rides
from validation.cases._daily_nets import accents, buoys, leaves, menus, shelves
from validation.cases._plain_nets import BLOWN
from validation.cases._usual_sequences import ahead, joined, parted
from validation.evidence import (
    both,
    breaks,
    diverges,
    does_not_move,
    lags,
    lasting,
    no_gradient,
    thrives,
)
from validation.setups import frozen, live, pretrain

zoo = Zoo("transformer", half="daily", analyzer="transformer", proof=thrives(0.15))

# --- too narrow


class Waves(nn.Module):
    """Patches of buoys, a mean, a code, and the patches again from the code and their places."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.enter, self.place = nn.Linear(12, 32), nn.Parameter(0.3 * torch.randn(1, 8, 32))
        self.encoder, self.code, self.open = Pre(Attend()), nn.Linear(256, code), nn.Linear(code, 256)
        self.decoder, self.out = Pre(Attend()), nn.Linear(32, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(2, (8, 4)).transpose(1, 2).flatten(2)
        h = self.encoder(self.enter(x) + self.place)
        h = self.open(self.code(h.flatten(1))).unflatten(1, (8, 32))
        return self.out(self.decoder(h + self.place)).unflatten(2, (3, 4)).transpose(1, 2).flatten(2)


def rebuilt(seed: int, code: int) -> Setup:
    return live(Waves(code), buoys(seed).changed(lambda x, _: (x, x)), lr=5e-3, steps=80)


wide = zoo.healthy("buoys-rebuilt-from-16-numbers", lambda s: rebuilt(s, 16))
zoo.sick(
    "buoys-rebuilt-from-1-number",
    lambda s: rebuilt(s, 1),
    lags(0.25),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("code", "open"),
    also={"RANK_COLLAPSE", "HEAD_DIVERSITY", "SLOW", "loss_stuck"},
    control=wide,
)


def plotted(seed: int, kept: int) -> Setup:
    """The vectors are brought down to so many columns first, two of them for a plot."""
    enter = nn.Sequential(nn.Linear(30, kept), nn.Linear(kept, 32))
    model = Net(enter, [Pre(Attend()) for _ in range(2)], 6, length=0)
    return live(model, shelves(seed), lr=5e-3, steps=120)


columns = zoo.healthy("shelves-brought-down-to-24-columns", lambda s: plotted(s, 24))
zoo.sick(
    "shelves-brought-down-to-1-column",
    lambda s: plotted(s, 1),
    ends_worse(1.3),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("enter.0", "enter.1", "enter"),
    also={"RANK_COLLAPSE", "HEAD_DIVERSITY", "SLOW", "loss_stuck"},
    control=columns,
)


class Merged(nn.Module):
    """Blocks on small patches, four of which are then merged into one of a given width, and blocks again."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.place = nn.Conv2d(3, 24, 2, stride=2), nn.Parameter(0.3 * torch.randn(1, 36, 24))
        self.first, self.merge, self.lift = Pre(Attend(24), 24), nn.Linear(96, width), nn.Linear(width, 32)
        self.second, self.norm, self.head = Pre(Attend()), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.enter(x).flatten(2).transpose(1, 2) + self.place)
        h = h.unflatten(1, (3, 2, 3, 2)).transpose(2, 3).flatten(3).flatten(1, 2)
        h = self.lift(self.merge(h))
        return self.head(self.norm(self.second(h)).mean(dim=1))


def merged(seed: int, width: int) -> Setup:
    return live(Merged(width), leaves(seed, size=12), lr=4e-3, steps=70)


stages = zoo.healthy("leaves-patches-merged-to-32", lambda s: merged(s, 32))
zoo.sick(
    "leaves-patches-merged-to-1",
    lambda s: merged(s, 1),
    ends_worse(1.5),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("merge", "lift"),
    also={"RANK_COLLAPSE", "HEAD_DIVERSITY", "SLOW", "loss_stuck"},
    control=stages,
)

# --- the faults of any network


class Left(Own):
    """Causal, and the filling on the left is hidden with what is given."""

    def __init__(self, low: float) -> None:
        super().__init__()
        self.low = low

    def forward(self, x: Tensor, filled: Tensor) -> Tensor:
        q, k, v = (parted(part(x), self.heads) for part in (self.q, self.k, self.v))
        scores = self.scores(q, k).masked_fill(ahead(x.shape[1]) | filled[:, None, None], self.low)
        return self.o(joined(scores.softmax(dim=-1) @ v))


class Prompted(nn.Module):
    """Texts filled on the left, one causal attention, the last token answers."""

    def __init__(self, low: float) -> None:
        super().__init__()
        self.words, self.attn, self.norm, self.out = nn.Embedding(31, 32), Left(low), nn.LayerNorm(32), nn.Linear(32, 6)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        return self.out(self.norm(x + self.attn(x, words == 30))[:, -1])


def filled(seed: int, low: float) -> Setup:
    random = torch.Generator().manual_seed(seed + 51)

    def fill(x: Tensor) -> Tensor:
        empty = torch.randint(0, 4, (len(x), 1), generator=random)
        return x.masked_fill(torch.arange(x.shape[1]) < empty, 30)

    return live(Prompted(low), menus(seed).mapped(fill), lr=5e-3, steps=70)


finite = zoo.healthy("menus-filled-left-hidden-by-minus-1e9", lambda s: filled(s, -1e9))
zoo.sick(
    "menus-filled-left-hidden-by-minus-infinity",
    lambda s: filled(s, -math.inf),
    breaks,
    "NUMERICAL",
    "all_masked",
    "loss_nonfinite",
    layer=("attn", "attn.q", "attn.k", "attn.v", "attn.o"),
    control=finite,
)


def noam(seed: int, base: float) -> Setup:
    """The rate of 2017, root of the width and steps included, times the rate of Adam or times one."""
    blocks = [Pre(Attend(causal=True), drop=0.05) for _ in range(2)]
    return rides(seed, blocks, kind="Adam", lr=base, rate=lambda t: 32**-0.5 * min((t + 1) ** -0.5, (t + 1) * 20**-1.5))


one = zoo.healthy("trips-warm-up-and-root-base-0.2", lambda s: noam(s, 0.2))
zoo.sick(
    "trips-warm-up-and-root-base-1e-6",
    lambda s: noam(s, 1e-6),
    both(does_not_move(1e-5), ends_worse(1.3)),
    "SLOW",
    "rate_too_low",
    also={"never_moves", "loss_stuck"},
    control=one,
)


class Prompt(nn.Module):
    """A trained, frozen encoder; some learned vectors before the text, as they are or copied into a new tensor."""

    def __init__(self, body: Net, copied: bool) -> None:
        super().__init__()
        self.body, self.copied = body, copied
        self.prompt, self.head = nn.Embedding(4, 32), nn.Linear(32, 6)

    def forward(self, words: Tensor) -> Tensor:
        prompt = self.prompt.weight
        prompt = torch.tensor(prompt.tolist()) if self.copied else prompt
        h = torch.cat([prompt.expand(len(words), -1, -1), self.body.enter(words)], dim=1)
        for block in self.body.blocks:
            h = block(h)
        return self.head(self.body.norm(h).mean(dim=1))


def prompted(seed: int, copied: bool) -> Setup:
    body = Net(nn.Embedding(30, 32), [Pre(Attend())], 6, "mean", length=0)
    pretrain(live(body, menus(seed)), 40)
    model = frozen(Prompt(body, copied), "body")
    return live(model, menus(seed).changed(lambda x, t: (x, (t + 2) % 6)), lr=2e-2, steps=60)


tuned = zoo.healthy("menus-prompt-of-4-vectors", lambda s: prompted(s, False))
zoo.sick(
    "menus-prompt-copied-into-a-new-tensor",
    lambda s: prompted(s, True),
    lasting(no_gradient("prompt")),
    "DISCONNECTED",
    "DEAD",
    "detached",
    layer="prompt",
    also={"never_moves", "frozen"},
    control=tuned,
)


def totals(seed: int, reduction: str) -> Setup:
    def loss(z: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(z.flatten(0, 1), t.flatten(), reduction=reduction)

    model = Net(nn.Embedding(14, 32), [Pre(Attend()) for _ in range(2)], 3)
    return live(model, accents(seed).with_loss(loss), "SGD", 0.2, 80, momentum=0.9)


mean = zoo.healthy("accents-mean-over-letters-sgd-0.2", lambda s: totals(s, "mean"))
zoo.sick(
    "accents-sum-over-letters-sgd-0.2",
    lambda s: totals(s, "sum"),
    both(diverges(2), ends_worse(1.5)),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    "summed_loss",
    "rate_too_high",
    also={*BLOWN, "ENTROPY_COLLAPSE", "RANK_COLLAPSE", "HEAD_DIVERSITY", "SLOW"},
    control=mean,
)
