# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers with the faults of any network, from threads, and sound ones that only looked odd to people.

Half: threads.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import (
    Attend,
    Net,
    Patches,
    Post,
    Pre,
    ends_worse,
    questions,
    segments,
    small_gradients,
)
from validation.cases._reported_sequences import Own, paths
from validation.cases._threads_sequences import LOCKER, NOTE, REVIEW, lockers, melodies, recipes, reviews, windows
from validation.evidence import both, breaks, diverges, lasting, no_gradient, states_rank, thrives
from validation.labels import LOST
from validation.setups import frozen, live, pretrain

zoo = Zoo("transformer", half="threads", analyzer="transformer", proof=thrives(0.15))
NARROW_TOO = {"RANK_COLLAPSE", "HEAD_DIVERSITY", "SLOW", "loss_stuck"}


def opened(seed: int, blocks: list[nn.Module], **more) -> Setup:
    """What lies in the locker that each token asks for?"""
    return live(
        Net(nn.Linear(LOCKER, 32), blocks, 6, length=0),
        lockers(seed),
        **{"kind": "Adam", "lr": 3e-3, "steps": 80, **more},
    )


def cooked(seed: int, blocks: list[nn.Module], **more) -> Setup:
    """The word three places on, in another code."""
    model = Net(nn.Embedding(10, 32), blocks, 10, length=7)
    return live(model, recipes(seed), **{"kind": "Adam", "lr": 5e-3, "steps": 80, **more})


def judged(seed: int, blocks: list[nn.Module], **more) -> Setup:
    """The kind of a review."""
    model = Net(nn.Embedding(REVIEW, 32), blocks, 5, "mean", length=12)
    return live(model, reviews(seed), **{"kind": "Adam", "lr": 2e-3, "steps": 60, **more})


def sung(seed: int, blocks: list[nn.Module], **more) -> Setup:
    """The next note."""
    model = Net(nn.Embedding(NOTE, 32), blocks, NOTE, length=16)
    return live(model, melodies(seed), **{"kind": "AdamW", "lr": 5e-3, "steps": 80, **more})


def pre(depth: int = 2, causal: bool = False, heads: int = 4, **more) -> list[nn.Module]:
    return [Pre(Attend(32, heads, causal), **more) for _ in range(depth)]


# --- the faults of any network


class Hidden(nn.Module):
    """torch's attention with a mask of its own."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mha, self.mask = nn.MultiheadAttention(32, 4, batch_first=True), mask

    def forward(self, x: Tensor) -> Tensor:
        return self.mha(x, x, x, attn_mask=self.mask)[0]


ONES = torch.ones(16, 16)
# pytorch/pytorch#41508, #21518: True means "hidden" in torch; a lower triangle hides the past and the token itself, so
# that the last row has nothing to look at and becomes NaN.
upper = zoo.healthy("melodies-mask-upper-triangle", lambda s: sung(s, [Pre(Hidden(ONES.triu(1).bool()))]))
zoo.sick(
    "melodies-mask-lower-triangle",
    lambda s: sung(s, [Pre(Hidden(ONES.tril().bool()))]),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    "all_masked",
    layer=("blocks.0", *paths(1, "mha", "mha.out_proj")),
    control=upper,
)


class Ask(nn.Module):
    """Which fact does a question ask for? A score for each fact, and a softmax over some dimension."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.enter, self.ask, self.score = nn.Linear(24, 32), nn.Linear(12, 32), nn.Linear(32, 1)
        self.value, self.head, self.dim = nn.Linear(24, 32), nn.Linear(32, 6), dim

    def forward(self, question: Tensor, facts: Tensor) -> Tensor:
        question = question if question.dim() == 3 else question[:, None]
        z = self.score(torch.tanh(self.enter(facts) + self.ask(question)))
        return self.head((z.softmax(dim=self.dim) * self.value(facts)).sum(dim=1))


# DEEP-PolyU/KEQA_WSDM19#2: the softmax goes over a dimension of one, so that every weight is 1.
over_facts = zoo.healthy("questions-softmax-over-the-facts", lambda s: live(Ask(1), questions(s), "Adam", 1e-2, 120))
zoo.sick(
    "questions-softmax-over-one-score",
    lambda s: live(Ask(2), questions(s), "Adam", 1e-2, 120),
    both(lasting(no_gradient("score", "enter", "ask")), ends_worse(1.15)),
    "DISCONNECTED",
    "softmax_dimension",
    "DEAD",
    "SATURATION",
    "never_moves",
    layer=("score", "enter", "ask"),
    also={"ENTROPY_COLLAPSE", "RANK_COLLAPSE", "HEAD_DIVERSITY", "VANISHING", "SLOW", "detached", "loss_stuck"},
    control=over_facts,
)


class Slots(nn.Module):
    """A few slots read a window; each keeps so many numbers, from which the window is written again."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.enter, self.place = nn.Linear(3, 32), nn.Parameter(0.5 * torch.randn(1, 8, 32))
        self.slots, self.norm, self.read = nn.Parameter(torch.randn(1, 2, 32)), nn.LayerNorm(32), Attend()
        self.down, self.up = nn.Linear(32, size), nn.Linear(size, 32)
        self.when, self.write = nn.Parameter(0.5 * torch.randn(1, 8, 32)), Attend()
        self.block, self.out = Pre(Attend()), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        slots = self.slots.expand(len(x), -1, -1)
        slots = self.up(self.down(slots + self.read(self.norm(slots), self.enter(x) + self.place)))
        y = self.when.expand(len(x), -1, -1)
        return self.out(self.block(y + self.write(y, slots)))


def kept(seed: int, size: int) -> Setup:
    return live(Slots(size), windows(seed, 8), "Adam", 5e-3, 120)


# google-research/google-research#1928: slots are made narrow, and then nothing can be rebuilt.
wide = zoo.healthy("windows-slots-of-32-numbers", lambda s: kept(s, 32))
zoo.sick(
    "windows-slots-of-1-number",
    lambda s: kept(s, 1),
    both(lasting(states_rank(1.01, "down")), ends_worse(1.2)),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("down", "up"),
    also=NARROW_TOO,
    control=wide,
)


class Cosine(Own):
    """Cosines of queries and keys, times ten."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return 10 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(2, 3)


# microsoft/Swin-Transformer#373: heads of size one; a number over its own norm is 1 or -1, and has no slope.
of_eight = zoo.healthy("lockers-cosine-heads-of-size-8", lambda s: opened(s, [Pre(Cosine(32, 4)) for _ in range(2)]))
zoo.sick(
    "lockers-cosine-heads-of-size-1",
    lambda s: opened(s, [Pre(Cosine(32, 32)) for _ in range(2)]),
    both(lasting(small_gradients(["blocks.0.attn.q", "blocks.0.attn.k"], "blocks.0.attn.v", 1e-3)), ends_worse(1.2)),
    "BOTTLENECK",
    "DISCONNECTED",
    "DEAD",
    "VANISHING",
    "SATURATION",
    "LOW_RANK",
    layer=paths(2, "q", "k"),
    also={*NARROW_TOO, "ENTROPY_COLLAPSE", "never_moves", "attention_logits"},
    control=of_eight,
)
# huggingface/transformers#735: the same output for all inputs; a far lower rate was the answer.
low = zoo.healthy("reviews-encoder-rate-0.002", lambda s: judged(s, [Post(Attend()) for _ in range(3)]))
zoo.sick(
    "reviews-encoder-rate-0.3",
    lambda s: judged(s, [Post(Attend()) for _ in range(3)], lr=0.3),
    both(diverges(3), ends_worse(1.5)),
    "EXPLODING",
    "UNSTABLE",
    "rate_too_high",
    "VANISHING",
    "RANK_COLLAPSE",
    also={*LOST, "DISCONNECTED", "SLOW", "LOW_RANK", "BOTTLENECK", "loss_stuck", "loss_grows", "loss_nonfinite"},
    control=low,
)

# --- sound, though somebody worried


class Plus(Own):
    """A softmax with a one in its denominator."""

    def chances(self, scores: Tensor) -> Tensor:
        return torch.cat([scores, torch.zeros_like(scores[..., :1])], dim=-1).softmax(dim=-1)[..., :-1]


# kyegomez/AttentionIsOFFByOne#6: does one more in the denominator help or hurt? Neither.
zoo.healthy("recipes-softmax-plus-one", lambda s: cooked(s, [Pre(Plus()) for _ in range(2)]))


class Efficient(Own):
    """Keys through a softmax over the tokens, values summed by it, and then the queries."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        return self.o((q @ (k.softmax(dim=2).transpose(2, 3) @ v)).transpose(1, 2).flatten(2))


# huawei-noah/Speech-Backbones#15: the softmax of the queries is missing, "no surprise it worked" all the same.
zoo.healthy("reviews-efficient-attention", lambda s: judged(s, [Pre(Efficient()) for _ in range(2)]))


class Tempered(Own):
    """Cosines times exp of a number for each head that starts at one."""

    def __init__(self) -> None:
        super().__init__()
        self.heat = nn.Parameter(torch.ones(4, 1, 1))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(2, 3) * self.heat.exp()


# lucidrains/BS-RoFormer#28: the logarithm of the temperature starts at 1, not at 0; it makes no difference.
zoo.healthy("lockers-temperature-from-e", lambda s: opened(s, [Pre(Tempered()) for _ in range(2)], lr=1e-2))


class Waves(nn.Module):
    """Words times the root of the width, and waves for their places."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.table, self.scale = nn.Embedding(10, 32), scale
        nn.init.normal_(self.table.weight, std=32**-0.5)
        angle = torch.arange(7.0)[:, None] * 10000 ** (-torch.arange(16) / 16)
        self.register_buffer("waves", torch.cat([angle.sin(), angle.cos()], dim=1))

    def forward(self, words: Tensor) -> Tensor:
        return self.scale * self.table(words) + self.waves


def waved(seed: int, scale: float) -> Setup:
    return live(Net(Waves(scale), pre(), 10, length=0), recipes(seed), "Adam", 5e-3, 100)


# espnet/espnet#2797, keras-team/keras-io#655: is the scale needed, does it drown the places? It learns both ways.
zoo.healthy("recipes-words-times-root-of-the-width", lambda s: waved(s, 32**0.5))
zoo.healthy("recipes-words-not-scaled", lambda s: waved(s, 1.0))
# pytorch/pytorch#166378: in_proj_weight is drawn for one matrix of three times the height; narrower, but sound.
zoo.healthy("reviews-torch-layer-packed-projection", lambda s: judged(
    s, [nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True) for _ in range(2)]
))  # fmt: skip


def small(seed: int) -> Setup:
    """All matrices drawn with a deviation of 0.02: at first, attention is even and all outputs are alike."""
    blocks = pre(2)
    for block in blocks:
        for weight in block.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
    return opened(seed, blocks, lr=1e-2, steps=100)


# keras-team/keras#14947: the output of a fresh layer is the same at each step; after training it is not.
zoo.healthy("lockers-drawn-with-0.02", small)


class Slopes(Own):
    """ALiBi whose first head has a slope of one."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        steps = torch.arange(q.shape[2])
        slope = 2.0 ** (-2.0 * torch.arange(4))
        return super().scores(q, k) - slope[:, None, None] * (steps[:, None] - steps).clamp(min=0)


# paiml/aprender#2143: the exponents of the slopes are off by one head, which training hardly feels.
zoo.healthy("melodies-alibi-one-head-off", lambda s: sung(s, [Pre(Slopes(32, 4, True)) for _ in range(2)]))


class FirstFixed(Own):
    """What the first token says is cut from its history."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        return super().forward(x, torch.cat([x[:, :1].detach(), x[:, 1:]], dim=1))


# adobe-research/custom-diffusion#46, #82: why is there no gradient to the first token? On purpose, and it learns.
zoo.healthy("reviews-first-token-detached", lambda s: judged(s, [Pre(FirstFixed()) for _ in range(2)]))


def found(seed: int) -> Setup:
    """Trained before: attention is sharp, for one locker is right."""
    return pretrain(opened(seed, pre(), lr=1e-3, steps=40), 35, 3e-3)


zoo.healthy("lockers-sharp-and-nearly-done", found)
zoo.healthy("lockers-one-head", lambda s: opened(s, pre(heads=1)))
zoo.healthy("lockers-eight-heads", lambda s: opened(s, pre(heads=8)))


def warmed(t: int) -> float:
    return min((t + 1) / 15, 0.52 + 0.48 * math.cos(t / 28))


zoo.healthy("melodies-gpt", lambda s: sung(s, pre(2, True)))
zoo.healthy("melodies-gpt-warm-up-clipped-at-0.1", lambda s: sung(s, pre(2, True), clip=0.1, rate=warmed))
zoo.healthy("melodies-gpt-dropout-0.3", lambda s: sung(s, pre(2, True, drop=0.3)))
zoo.healthy("melodies-gpt-batches-of-4", lambda s: live(
    Net(nn.Embedding(NOTE, 32), pre(2, True), NOTE, length=16), melodies(s, batch=4), "AdamW", 4e-3, 100
))  # fmt: skip
zoo.healthy("melodies-gpt-table-of-3000", lambda s: live(
    Net(nn.Embedding(3000, 32), pre(2, True), NOTE, length=16), melodies(s), "AdamW", 5e-3, 80, weight_decay=0.2
))  # fmt: skip
zoo.healthy("digits-vit-sgd-momentum", lambda s: live(
    Net(Patches(), pre(), 8, "mean", length=16), segments(s), "SGD", 0.05, 70, momentum=0.9
))  # fmt: skip
zoo.healthy("digits-vit-much-noise", lambda s: live(
    Net(Patches(), pre(), 8, "mean", length=16), segments(s, noise=0.8), "AdamW", 3e-3, 80
))  # fmt: skip


def headed(seed: int) -> Setup:
    """A trained encoder, frozen on purpose, under a new head."""
    setup = pretrain(judged(seed, pre()), 50, 3e-3)
    model = setup.model
    model.head = nn.Linear(32, 5)
    return live(frozen(model, "enter", "blocks", "norm"), reviews(seed), "Adam", 2e-2, 50)


zoo.healthy("reviews-frozen-encoder-new-head", headed, thrives(0.1))
