# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers as people write them whose attention is at fault: one-hot, all tokens one, all heads one; and twins.

Half: common.
"""

from __future__ import annotations

import math
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import (
    Attend,
    Feed,
    Net,
    Patches,
    Post,
    Pre,
    alarms,
    alike,
    baskets,
    boxes,
    citations,
    dates,
    ends_worse,
    entities,
    marks,
    modes,
    motors,
    phonebook,
    questions,
    sees,
    segments,
    speaks,
    weights_agree,
)
from validation.evidence import at_last, attends_sharply, both, heads_agree, lasting, thrives
from validation.labels import ALIKE, ONE, SHARP
from validation.setups import live

zoo = Zoo("transformer", half="common", analyzer="transformer", proof=thrives(0.15))
ONE_HOT = ("ENTROPY_COLLAPSE", "SATURATION")
SHARP_TOO = {*SHARP, "VANISHING", "HEAD_DIVERSITY", "RANK_COLLAPSE"}
ALIKE_TOO = {*ALIKE, "HEAD_DIVERSITY", "UNSTABLE", "SLOW"}
SAME = ("HEAD_DIVERSITY", "SYMMETRY")


def at(paths: str, *parts: str, count: int = 1) -> tuple[str, ...]:
    """Where an engineer may point: parts of one module or of several."""
    return tuple(f"{paths.format(i)}.{part}" for i in range(count) for part in parts)


# --- attention that is one-hot


class Scaled(nn.Module):
    """An embedding times the root of its width, as in 2017, drawn with some deviation."""

    def __init__(self, width: int, std: float) -> None:
        super().__init__()
        self.table, self.width = nn.Embedding(11, width), width
        nn.init.normal_(self.table.weight, std=std)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens) * self.width**0.5


def vaswani(seed: int, std: float) -> Setup:
    model = Net(Scaled(64, std), [Post(Attend(64, 2), 64)], 4, width=64)
    return live(model, modes(seed), lr=3e-3, steps=80)


scaled = zoo.healthy("modes-embedding-times-root-drawn-for-it", lambda s: vaswani(s, 64**-0.5))
zoo.sick(
    "modes-embedding-times-root-drawn-with-8",
    lambda s: vaswani(s, 8.0),
    both(lasting(attends_sharply("blocks.0.attn")), ends_worse(1.15)),
    *ONE_HOT,
    layer=(*at("blocks.0.attn", "wq", "wk", "wv"), "blocks.0.attn", "enter.table"),
    also=SHARP_TOO,
    control=scaled,
)


class FirstToken(nn.Module):
    """A learned token gathers the patches of a picture by one post-norm block, as a first ViT does."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.patch, self.cls = Patches(gain=gain), nn.Parameter(torch.randn(1, 1, 32))
        self.place, self.block, self.head = nn.Parameter(0.3 * torch.randn(1, 17, 32)), Post(Attend()), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.cls.expand(len(x), -1, -1), self.patch(x)], dim=1) + self.place
        return self.head(self.block(x)[:, 0])


def photos(seed: int, gain: float) -> Setup:
    """Pictures between 0 and 1, or between 0 and 255."""
    return live(FirstToken(gain), segments(seed), lr=3e-3, steps=80)


bright = zoo.healthy("digits-first-token-pictures-from-0-to-1", lambda s: photos(s, 1.0))
zoo.sick(
    "digits-first-token-pictures-from-0-to-255",
    lambda s: photos(s, 255.0),
    both(lasting(attends_sharply("block.attn")), ends_worse(1.2)),
    *ONE_HOT,
    layer=(*at("block.attn", "wq", "wk", "wv"), "block.attn", "patch.proj"),
    also=SHARP_TOO,
    control=bright,
)


class Reader(nn.Module):
    """A question reads facts by cross-attention of torch; facts come from a frozen network whose output is `loud`."""

    def __init__(self, loud: float, heads: int = 2) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 32)).requires_grad_(False)
        self.ask, self.loud = nn.Linear(12, 32), loud
        self.cross = nn.MultiheadAttention(32, heads, batch_first=True)
        self.out = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 6))

    def forward(self, question: Tensor, facts: Tensor) -> Tensor:
        memory = self.loud * self.backbone(facts)
        asked = self.ask(question)
        return self.out((asked + self.cross(asked, memory, memory, need_weights=False)[0])[:, 0])


def answers(seed: int, loud: float) -> Setup:
    return live(Reader(loud), questions(seed), lr=5e-3, steps=120)


heard = zoo.healthy("facts-of-a-frozen-network-as-they-are", lambda s: answers(s, 3.0), thrives(0.1))
zoo.sick(
    "facts-of-a-frozen-network-times-2000",
    lambda s: answers(s, 2000.0),
    both(lasting(attends_sharply("cross")), ends_worse(1.1)),
    *ONE_HOT,
    layer=("cross",),
    also=SHARP_TOO,
    control=heard,
)


class Gat(nn.Module):
    """Graph attention of Veličković: heads score pairs by a LeakyReLU of two sums; hands on all heads side by side."""

    def __init__(self, dim: int, width: int, heads: int, mean: bool = False) -> None:
        super().__init__()
        self.heads, self.mean = heads, mean
        self.lin = nn.Linear(dim, width * heads, bias=False)
        self.left, self.right = (nn.Parameter(torch.randn(heads, width) * width**-0.5) for _ in range(2))

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        h = self.lin(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        a, b = ((h * part[:, None]).sum(dim=-1) for part in (self.left, self.right))
        scores = F.leaky_relu(a[..., None] + b[..., None, :], 0.2)
        weight = torch.softmax(scores.masked_fill(~link[:, None], -math.inf), dim=-1)
        mixed = weight @ h
        return mixed.mean(dim=1) if self.mean else mixed.transpose(1, 2).flatten(2)


class Papers(nn.Module):
    """Two layers of graph attention; the counts of words are divided by `by`."""

    def __init__(self, by: float, heads: int = 4) -> None:
        super().__init__()
        self.by, self.first = by, Gat(12, 8, heads)
        self.second = Gat(8 * heads, 16, heads, mean=True)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        return self.out(F.elu(self.second(F.elu(self.first(x / self.by, link)), link)))


def papers(seed: int, by: float) -> Setup:
    """Papers show how often each word occurs."""
    task = citations(seed).mapped(lambda batch: (100 * batch[0], batch[1]))
    return live(Papers(by), task, lr=5e-3, steps=60)


shares = zoo.healthy("papers-graph-attention-shares-of-words", lambda s: papers(s, 100.0))
zoo.sick(
    "papers-graph-attention-counts-of-words",
    lambda s: papers(s, 1.0),
    both(lasting(attends_sharply("first")), ends_worse(1.2)),
    *ONE_HOT,
    layer=("first.lin", "first", "second.lin", "second"),
    also=SHARP_TOO,
    control=shares,
)


class Slopes(nn.Module):
    """Causal attention with a slope per head that takes off by distance; `sign` of the exponent."""

    def __init__(self, sign: int, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        slope = 2.0 ** (sign * 8 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slope", slope[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        place = torch.arange(x.shape[1])
        far = (place[:, None] - place).float()
        bias = (-self.slope * far).masked_fill(far < 0, -math.inf)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(len(x), -1, -1, -1))
        return self.proj(mixed.transpose(1, 2).flatten(2))


def sloped(seed: int, sign: int) -> Setup:
    model = Net(nn.Embedding(11, 32), [Pre(Slopes(sign)) for _ in range(2)], 4)
    return live(model, modes(seed), lr=3e-3, steps=80)


gentle = zoo.healthy("modes-slopes-from-a-quarter-down", lambda s: sloped(s, -1))
zoo.sick(
    "modes-slopes-from-4-up",
    lambda s: sloped(s, 1),
    both(lasting(attends_sharply()), ends_worse(1.2)),
    *ONE_HOT,
    layer=(*at("blocks.{}.attn", "qkv", count=2), "blocks.0.attn", "blocks.1.attn"),
    also=SHARP_TOO,
    control=gentle,
)


class Memory(nn.Module):
    """Looks up a memory by cosines times a strength, as a neural Turing machine does."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.ask, self.key, self.value = nn.Linear(12, 24), nn.Linear(24, 24), nn.Linear(24, 24)
        self.strength, self.out = nn.Parameter(torch.tensor(strength)), nn.Linear(24, 6)

    def forward(self, question: Tensor, facts: Tensor) -> Tensor:
        q, k = F.normalize(self.ask(question), dim=-1), F.normalize(self.key(facts), dim=-1)
        weight = torch.softmax(self.strength * (q @ k.transpose(1, 2)), dim=-1)
        return self.out((weight @ self.value(facts))[:, 0])


def turing(seed: int, strength: float) -> Setup:
    return live(Memory(strength), questions(seed), lr=1e-2, steps=100)


mild = zoo.healthy("facts-by-cosines-strength-5", lambda s: turing(s, 5.0))
zoo.sick(
    "facts-by-cosines-strength-5000",
    lambda s: turing(s, 5000.0),
    both(lasting(attends_sharply()), ends_worse(1.2)),
    *ONE_HOT,
    layer=("ask", "key", "value"),
    also=SHARP_TOO,
    control=mild,
)


class Torch(nn.Module):
    """Self-attention by torch's own module; `gain` draws what it projects by."""

    def __init__(self, gain: float = 1.0, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(width, heads, batch_first=True)
        nn.init.xavier_uniform_(self.mha.in_proj_weight, gain)

    def forward(self, x: Tensor) -> Tensor:
        return self.mha(x, x, x, need_weights=False)[0]


plain = zoo.healthy("digits-torch-attention-xavier", lambda s: sees(s, [Pre(Torch()) for _ in range(2)]))
zoo.sick(
    "digits-torch-attention-xavier-gain-20",
    lambda s: sees(s, [Pre(Torch(20.0)) for _ in range(2)]),
    both(lasting(attends_sharply()), ends_worse(1.15)),
    *ONE_HOT,
    layer=("blocks.0.attn.mha", "blocks.1.attn.mha"),
    also=SHARP_TOO,
    control=plain,
)


class Rewriter(nn.Module):
    """An encoder block and a decoder block whose cross-attention has some scale."""

    def __init__(self, scale: float | None = None, cross: nn.Module | None = None) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(9, 32), nn.Embedding(10, 32)
        self.place = nn.Parameter(0.5 * torch.randn(1, 5, 32))
        self.encoder, self.own = Pre(Attend()), Pre(Attend(causal=True))
        self.norm, self.memory_norm = nn.LayerNorm(32), nn.LayerNorm(32)
        self.cross, self.feed = cross or Attend(scale=scale), Feed()
        self.out = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 9))

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        memory = self.memory_norm(self.encoder(self.source(source) + self.place))
        x = self.own(self.target(shifted) + self.place)
        x = x + self.cross(self.norm(x), memory)
        return self.out(x + self.feed(x))


def rewrites(seed: int, model: nn.Module | None = None) -> Setup:
    return live(model or Rewriter(), dates(seed), lr=3e-3, steps=100)


rewriter = zoo.healthy("dates-encoder-and-decoder", rewrites)
zoo.sick(
    "dates-cross-attention-scale-is-1000",
    lambda s: rewrites(s, Rewriter(scale=1000.0)),
    both(lasting(attends_sharply("cross", others_above=0.2)), ends_worse(1.2)),
    *ONE_HOT,
    layer=(*at("cross", "wq", "wk", "wv"), "cross"),
    also=SHARP_TOO,
    control=rewriter,
)


class Pointer(nn.Module):
    """The last token asks all others, by matrices drawn with some deviation."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.enter, self.block = nn.Embedding(16, 32), Pre(Attend())
        self.place = nn.Parameter(0.3 * torch.randn(1, 9, 32))
        self.query, self.key, self.value = (nn.Parameter(std * torch.randn(32, 32)) for _ in range(3))
        self.out = nn.Linear(64, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.block(self.enter(tokens) + self.place)
        scores = torch.einsum("bi,bti->bt", x[:, -1] @ self.query, x @ self.key)[:, None] / 32**0.5
        found = torch.softmax(scores, dim=-1) @ (x @ self.value)
        return self.out(torch.cat([found[:, 0], x[:, -1]], dim=-1))


def points(seed: int, std: float) -> Setup:
    return live(Pointer(std), phonebook(seed), lr=5e-3, steps=120)


pointer = zoo.healthy("phonebook-last-token-asks-drawn-by-the-root", lambda s: points(s, 32**-0.5), thrives(0.1))
zoo.sick(
    "phonebook-last-token-asks-drawn-with-2",
    lambda s: points(s, 2.0),
    both(lasting(attends_sharply("")), ends_worse(1.15)),
    *ONE_HOT,
    also=SHARP_TOO,
    control=pointer,
)

# --- tokens that become one


class HalfSkip(nn.Module):
    """A block that adds what its dense half says, and should add what its attention says."""

    def __init__(self, add: bool) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.feed = nn.LayerNorm(32), Attend(), nn.LayerNorm(32), Feed()
        self.add = add

    def forward(self, x: Tensor) -> Tensor:
        h = self.attn(self.norm1(x))
        x = x + h if self.add else h
        return x + self.feed(self.norm2(x))


adds = zoo.healthy(
    "names-ten-blocks-attention-added", lambda s: marks(s, [HalfSkip(True) for _ in range(10)], steps=30)
)
zoo.sick(
    "names-ten-blocks-attention-in-place-of-the-tokens",
    lambda s: marks(s, [HalfSkip(False) for _ in range(10)], steps=30),
    both(lasting(alike("blocks.9")), ends_worse()),
    "RANK_COLLAPSE",
    also=ALIKE_TOO,
    control=adds,
)


class Typed(nn.Module):
    """Words and the type of the text, of which there is one; the type's vector is drawn with some deviation."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(20, 32), nn.Embedding(2, 32)
        nn.init.normal_(self.kinds.weight, std=std)
        nn.init.normal_(self.words.weight, std=0.5)
        self.norm = nn.LayerNorm(32)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.words(tokens) + self.kinds(torch.zeros_like(tokens)))


def typed(seed: int, std: float) -> Setup:
    model = Net(Typed(std), [Post(Attend()) for _ in range(2)], 3)
    model.place.data.mul_(0.02)
    return live(model, entities(seed), lr=1e-3, steps=60)


small = zoo.healthy("names-type-of-text-drawn-with-0.02", lambda s: typed(s, 0.02))
zoo.sick(
    "names-type-of-text-drawn-with-100",
    lambda s: typed(s, 100.0),
    both(lasting(alike("enter")), ends_worse()),
    "RANK_COLLAPSE",
    "LOW_RANK",
    layer=("enter.kinds", "enter.words", "enter.norm"),
    also={*ALIKE_TOO, "SATURATION"},
    control=small,
)


class ReZero(nn.Module):
    """A learned factor that starts at 0 before the branch, or by mistake before the skip."""

    def __init__(self, inner: nn.Module, skip: bool) -> None:
        super().__init__()
        self.inner, self.skip, self.alpha = inner, skip, nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.alpha * x + self.inner(x) if self.skip else x + self.alpha * self.inner(x)


def rezero(skip: bool, depth: int = 8) -> list[nn.Module]:
    return [ReZero(inner, skip) for _ in range(depth) for inner in (Torch(), Feed())]


zeroed = zoo.healthy("names-factor-0-before-the-branch", lambda s: marks(s, rezero(False), lr=5e-3, steps=40))
zoo.sick(
    "names-factor-0-before-the-skip",
    lambda s: marks(s, rezero(True), lr=5e-3, steps=40),
    both(lasting(alike("blocks.15")), ends_worse()),
    "RANK_COLLAPSE",
    also={*ALIKE_TOO, "DEAD"},
    control=zeroed,
)


class Detector(nn.Module):
    """Three learned queries read a picture and say a number each, as in DETR; they start alike or not."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.patches, self.place = Patches(), nn.Parameter(0.5 * torch.randn(1, 16, 32))
        self.queries = nn.Parameter(std * torch.randn(1, 3, 32))
        self.own, self.cross = nn.ModuleList(Pre(Attend()) for _ in range(2)), nn.ModuleList(Attend() for _ in range(2))
        self.out = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        memory, slots = self.patches(x) + self.place, self.queries.expand(len(x), -1, -1)
        for own, cross in zip(self.own, self.cross, strict=True):
            slots = own(slots + cross(slots, memory))
        return self.out(slots)[..., 0]


def detects(seed: int, std: float) -> Setup:
    return live(Detector(std), boxes(seed), lr=3e-3, steps=80)


slots = zoo.healthy("spots-three-queries-drawn-with-1", lambda s: detects(s, 1.0))
zoo.sick(
    "spots-three-queries-of-zeros",
    lambda s: detects(s, 0.0),
    both(lasting(alike("own.1", 5e-3)), ends_worse()),
    "RANK_COLLAPSE",
    "SYMMETRY",
    "LOW_RANK",
    also={*ALIKE_TOO, "ENTROPY_COLLAPSE"},
    control=slots,
)


class SamePatch(nn.Module):
    """Cuts a picture into patches; `moves` or every patch is the first corner."""

    def __init__(self, moves: bool) -> None:
        super().__init__()
        self.moves, self.proj = moves, nn.Linear(9, 32)

    def forward(self, x: Tensor) -> Tensor:
        tiles = F.unfold(x, 3, stride=3).transpose(1, 2)
        return self.proj(tiles if self.moves else x[:, 0, :3, :3].flatten(1)[:, None].expand_as(tiles))


def tiled(seed: int, moves: bool) -> Setup:
    model = Net(SamePatch(moves), [Pre(Attend()) for _ in range(2)], 8, "mean", length=0)
    return live(model, segments(seed), lr=3e-3, steps=60)


tiles = zoo.healthy("digits-patches-of-all-places", lambda s: tiled(s, True))
zoo.sick(
    "digits-patches-of-one-place",
    lambda s: tiled(s, False),
    both(lasting(alike("enter", 1e-3)), ends_worse()),
    "RANK_COLLAPSE",
    "LOW_RANK",
    "BOTTLENECK",
    layer=("enter.proj",),
    also=ALIKE_TOO,
    control=tiles,
)


class Averaged(nn.Module):
    """Attention, a sum that may be forgotten, a norm; dense, sum, norm."""

    def __init__(self, add: bool) -> None:
        super().__init__()
        self.attn, self.feed, self.norm, self.add = Torch(0.3), Feed(), nn.LayerNorm(32), add

    def forward(self, x: Tensor) -> Tensor:
        h = self.attn(x)
        h = self.norm(x + h if self.add else h)
        return self.norm(h + self.feed(h))


summed = zoo.healthy("names-five-encoder-layers", lambda s: marks(s, [Averaged(True) for _ in range(5)], lr=2e-3))
zoo.sick(
    "names-five-encoder-layers-sum-forgotten",
    lambda s: marks(s, [Averaged(False) for _ in range(5)], lr=2e-3),
    both(lasting(alike("blocks.4.attn", 0.2)), ends_worse()),
    "RANK_COLLAPSE",
    also=ALIKE_TOO,
    control=summed,
)


class GraphNet(nn.Module):
    """Layers of graph attention over papers that add what came in, or not."""

    def __init__(self, depth: int, add: bool) -> None:
        super().__init__()
        self.enter, self.add = nn.Linear(12, 32), add
        self.layers, self.out = nn.ModuleList(Gat(32, 8, 4) for _ in range(depth)), nn.Linear(32, 4)

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        h = self.enter(x)
        for layer in self.layers:
            h = h + F.elu(layer(h, link)) if self.add else F.elu(layer(h, link))
        return self.out(h)


def linked(seed: int, depth: int, add: bool) -> Setup:
    return live(GraphNet(depth, add), citations(seed), lr=3e-3, steps=50)


kept = zoo.healthy("papers-fourteen-graph-attentions-added", lambda s: linked(s, 14, True))
zoo.sick(
    "papers-fourteen-graph-attentions-one-after-the-other",
    lambda s: linked(s, 14, False),
    both(lasting(alike("layers.13", 0.3)), ends_worse()),
    "RANK_COLLAPSE",
    also={*ALIKE_TOO, "ENTROPY_COLLAPSE"},
    control=kept,
)


class Perceiver(nn.Module):
    """Six latents read a basket, and each says an item."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.enter, self.latent = nn.Embedding(10, 32), nn.Parameter(0.3 + std * torch.randn(1, 6, 32))
        self.read, self.think = Attend(), nn.ModuleList(Pre(Attend()) for _ in range(2))
        self.out = nn.Linear(32, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        z = self.latent.expand(len(tokens), -1, -1)
        z = z + self.read(z, self.enter(tokens))
        for block in self.think:
            z = block(z)
        return self.out(z)


def latents(seed: int, std: float) -> Setup:
    """Say which item is at each of six places, by a latent each."""

    def loss(z: Tensor, tokens: Tensor) -> Tensor:
        return F.cross_entropy(z.flatten(0, 1), (tokens[:, :6] % 8).flatten())

    task = baskets(seed).changed(lambda x, _: (x, x.sort(dim=1).values)).with_loss(loss)
    return live(Perceiver(std), task, lr=3e-3, steps=80)


zoo.healthy("baskets-six-latents-drawn-with-1", lambda s: latents(s, 1.0))
# --- heads that are one


class Averaging(nn.Module):
    """Heads that are modules and whose outputs are averaged; drawn each, or copies of the first."""

    def __init__(self, make, heads: int, copied: bool) -> None:
        super().__init__()
        first = make()
        self.heads = nn.ModuleList([first, *(deepcopy(first) if copied else make() for _ in range(heads - 1))])

    def forward(self, *args: Tensor) -> Tensor:
        return sum(head(*args) for head in self.heads) / len(self.heads)


class Cited(nn.Module):
    """Papers by graph attention whose heads are averaged."""

    def __init__(self, copied: bool) -> None:
        super().__init__()
        self.enter, self.gat = nn.Linear(12, 32), Averaging(lambda: Gat(32, 32, 1), 4, copied)
        self.out = nn.Linear(32, 4)

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        h = self.enter(x)
        return self.out(h + F.elu(self.gat(h, link)))


cited = zoo.healthy("papers-four-averaged-heads", lambda s: live(Cited(False), citations(s), lr=5e-3, steps=50))
zoo.sick(
    "papers-four-averaged-heads-copied-from-one",
    lambda s: live(Cited(True), citations(s), lr=5e-3, steps=50),
    lasting(weights_agree(*(f"gat.heads.{i}" for i in range(4)))),
    *SAME,
    layer=tuple(f"gat.heads.{i}{part}" for i in range(4) for part in ("", ".lin")),
    also=ONE,
    control=cited,
)


class Gather(nn.Module):
    """One head that gathers a series by a learned query; `seeded` draws it from a fixed seed."""

    def __init__(self, seeded: bool) -> None:
        super().__init__()
        state = torch.get_rng_state()
        if seeded:
            torch.manual_seed(42)
        self.query, self.key, self.value = nn.Parameter(torch.randn(24)), nn.Linear(24, 24), nn.Linear(24, 24)
        if seeded:
            torch.set_rng_state(state)

    def forward(self, x: Tensor) -> Tensor:
        return (self.key(x) @ self.query).softmax(dim=-1)[:, None] @ self.value(x)


class Machine(nn.Module):
    """A convolution over a noise, four heads that gather it, averaged."""

    def __init__(self, seeded: bool) -> None:
        super().__init__()
        self.conv, self.heads = nn.Conv1d(2, 24, 5), nn.ModuleList(Gather(seeded) for _ in range(4))
        self.out = nn.Sequential(nn.GELU(), nn.Linear(24, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.out(torch.cat([head(h) for head in self.heads], dim=1).mean(dim=1))


gathered = zoo.healthy(
    "noises-four-heads-gather", lambda s: live(Machine(False), alarms(s), lr=5e-3, steps=60), thrives(0.1)
)
zoo.sick(
    "noises-four-heads-gather-drawn-from-one-seed",
    lambda s: live(Machine(True), alarms(s), lr=5e-3, steps=60),
    lasting(weights_agree(*(f"heads.{i}" for i in range(4)))),
    *SAME,
    layer=tuple(f"heads.{i}{part}" for i in range(4) for part in ("", ".key", ".value")),
    also=ONE,
    control=gathered,
)


class Closures(nn.Module):
    """Heads cut by functions made in a loop, which should remember the number of their head."""

    def __init__(self, bound: bool, width: int = 32, heads: int = 4, causal: bool = False) -> None:
        super().__init__()
        size = width // heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        nn.init.xavier_uniform_(self.q.weight, 2.0)
        nn.init.xavier_uniform_(self.k.weight, 2.0)
        self.causal = causal
        if bound:
            self.cuts = [lambda t, i=i: t[..., i * size : (i + 1) * size] for i in range(heads)]
        else:
            self.cuts = [lambda t: t[..., i * size : (i + 1) * size] for i in range(heads)]  # noqa: B023

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.stack([cut(part(x)) for cut in self.cuts], dim=1) for part in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))


bound = zoo.healthy(
    "words-heads-by-functions", lambda s: speaks(s, [Pre(Closures(True, causal=True)) for _ in range(2)])
)
zoo.sick(
    "words-heads-by-functions-bound-too-late",
    lambda s: speaks(s, [Pre(Closures(False, causal=True)) for _ in range(2)]),
    at_last(heads_agree()),
    *SAME,
    layer=(*at("blocks.{}.attn", "q", "k", "v", "o", count=2), "blocks.0.attn", "blocks.1.attn"),
    also={*ONE, "DEAD", "DISCONNECTED"},
    control=bound,
)


class Hyper(nn.Module):
    """A head's queries and keys are scaled by a vector that a table holds for it."""

    def __init__(self, own: bool, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.tables = heads, nn.Embedding(heads, width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.register_buffer("number", torch.arange(heads) if own else torch.zeros(heads).long())

    def forward(self, x: Tensor) -> Tensor:
        scale = self.tables(self.number)[None, :, None]
        q, k = self.q(x)[:, None] * scale, self.k(x)[:, None].expand(-1, self.heads, -1, -1)
        v = self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        weight = torch.softmax(q @ k.transpose(2, 3) / 4.0, dim=-1)
        return self.o((weight @ v).transpose(1, 2).flatten(2))


numbered = zoo.healthy("digits-a-vector-for-every-head", lambda s: sees(s, [Pre(Hyper(True)) for _ in range(2)]))
zoo.sick(
    "digits-the-vector-of-head-0-for-every-head",
    lambda s: sees(s, [Pre(Hyper(False)) for _ in range(2)]),
    at_last(heads_agree()),
    *SAME,
    layer=(*at("blocks.{}.attn", "q", "k", "v", "tables", count=2), "blocks.0.attn", "blocks.1.attn"),
    also=ONE,
    control=numbered,
)


class Synthesizer(nn.Module):
    """Attention that is learned as a table of places, one for every head, or by mistake one for all."""

    def __init__(self, tables: int, length: int, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.table = heads, nn.Parameter(torch.randn(tables, length, length))
        self.v, self.o = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        v = self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        weight = torch.softmax(self.table.expand(len(x), self.heads, -1, -1), dim=-1)
        return self.o((weight @ v).transpose(1, 2).flatten(2))


tables = zoo.healthy(
    "names-a-table-of-places-per-head", lambda s: marks(s, [Pre(Synthesizer(4, 14)) for _ in range(2)], lr=1e-2)
)
zoo.sick(
    "names-a-table-of-places-for-all-heads",
    lambda s: marks(s, [Pre(Synthesizer(1, 14)) for _ in range(2)], lr=1e-2),
    lasting(heads_agree()),
    *SAME,
    layer=(*at("blocks.{}.attn", "v", "o", count=2), "blocks.0.attn", "blocks.1.attn"),
    also=ONE,
    control=tables,
)


class FirstHead(Attend):
    """Cross-attention whose scores are taken of the first head: an index where a slice was meant."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = self.split(self.wq(x)), self.split(self.wk(memory)), self.split(self.wv(memory))
        scores = (q @ k.transpose(2, 3))[:, 0] / 8**0.5
        weight = torch.softmax(scores[:, None].expand(-1, self.heads, -1, -1), dim=-1)
        return self.wo((weight @ v).transpose(1, 2).flatten(2))


zoo.sick(
    "dates-cross-attention-scores-of-the-first-head",
    lambda s: rewrites(s, Rewriter(cross=FirstHead())),
    at_last(heads_agree("cross")),
    *SAME,
    layer=(*at("cross", "wq", "wk", "wv"), "cross"),
    also={*ONE, "DEAD", "DISCONNECTED"},
    control=rewriter,
)


@torch.no_grad()
def loaded(blocks: list[nn.Module], all_heads: bool) -> list[nn.Module]:
    """A checkpoint's queries and keys, loaded head by head and frozen; the loop may read head 0 each time."""
    for block in blocks:
        mha = block.attn.mha
        for part in mha.in_proj_weight.chunk(3)[:2]:
            part.mul_(3.0)
            if not all_heads:
                part.copy_(part[:8].repeat(4, 1))
        mha.in_proj_weight.requires_grad_(False)
        mha.in_proj_bias.requires_grad_(False)
    return blocks


def tuned(seed: int, all_heads: bool) -> Setup:
    model = Net(nn.Linear(2, 32), loaded([Pre(Torch()) for _ in range(3)], all_heads), 2)
    return live(model, motors(seed, 16), lr=3e-3, steps=60)


checkpoint = zoo.healthy("motors-frozen-queries-and-keys", lambda s: tuned(s, True))
zoo.sick(
    "motors-frozen-queries-and-keys-of-head-0-in-all",
    lambda s: tuned(s, False),
    lasting(heads_agree()),
    *SAME,
    layer=tuple(f"blocks.{i}.attn.mha" for i in range(3)),
    also=ONE,
    control=checkpoint,
)
