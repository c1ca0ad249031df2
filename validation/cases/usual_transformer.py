# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers as people write them every day, with the faults that they report, and many that train well.

Half: usual.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Attend, Feed, Net, Patches, Post, Pre, alike, citations, ends_worse
from validation.cases._everyday_sequences import more_than
from validation.cases._usual_sequences import (
    MOODS,
    ahead,
    climate,
    jingles,
    joined,
    moods,
    parted,
    phones,
    registers,
    residues,
)
from validation.evidence.live import at_last, attends_sharply, breaks, heads_agree, lasting, thrives
from validation.evidence.signal import both, no_gradient
from validation.labels import ALIKE, ONE, SHARP
from validation.setups import frozen, live
from validation.tasks.bench import gestures, mirrors
from validation.tasks.everyday import copying, heaps, lookups, strokes
from validation.tasks.sequences import ciphers
from validation.tasks.task import Task, every
from validation.tasks.trades import blanks, loads, majority, pulses

zoo = Zoo("transformer", half="usual", analyzer="transformer", proof=thrives(0.15))
ONE_HOT = ("ENTROPY_COLLAPSE", "SATURATION")
SHARP_TOO = {*SHARP, "VANISHING", "HEAD_DIVERSITY", "RANK_COLLAPSE", "LOW_RANK", "NUMERICAL"}
MERGED = ("RANK_COLLAPSE", "LOW_RANK", "BOTTLENECK")
ALIKE_TOO = {*ALIKE, "HEAD_DIVERSITY", "UNSTABLE", "SLOW", "DEAD", "DISCONNECTED", "SYMMETRY"}
SAME = ("HEAD_DIVERSITY", "SYMMETRY")


def sharp(*paths: str, worse: float = 1.2):
    """Attention is one-hot from first to last, and the twin ends better."""
    return both(lasting(attends_sharply(*paths)), ends_worse(worse))


def pre(depth: int = 2, width: int = 32, heads: int = 4, causal: bool = False, **more) -> list[nn.Module]:
    return [Pre(Attend(width, heads, causal), width, **more) for _ in range(depth)]


def hums(seed: int, blocks: list[nn.Module], width: int = 32, **more) -> Setup:
    """The next note."""
    return live(
        Net(nn.Embedding(12, width), blocks, 12, width=width), jingles(seed), **{"lr": 3e-3, "steps": 60, **more}
    )


def remembers(seed: int, blocks: list[nn.Module], width: int = 32, **more) -> Setup:
    """The value of a register."""
    model = Net(nn.Embedding(12, width), blocks, 6, "last", width)
    return live(model, registers(seed), **{"lr": 5e-3, "steps": 120, **more})


def folds(seed: int, blocks: list[nn.Module], width: int = 32, **more) -> Setup:
    """Which residues are buried?"""
    return live(
        Net(nn.Embedding(12, width), blocks, 2, width=width), residues(seed), **{"lr": 3e-3, "steps": 60, **more}
    )


def hatches(seed: int, blocks: list[nn.Module], width: int = 32, enter: nn.Module | None = None, **more) -> Setup:
    """Which way do the strokes of a picture run?"""
    model = Net(enter or Patches(width), blocks, 8, "mean", width)
    return live(model, strokes(seed, size=12), **{"lr": 3e-3, "steps": 60, **more})


# --- attention that is one-hot


class Gumbel(nn.Module):
    """Attention by the Gumbel softmax at some temperature."""

    def __init__(self, tau: float, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.tau, self.heads = tau, heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (parted(part(x), self.heads) for part in (self.q, self.k, self.v))
        noise = -torch.empty(len(x), self.heads, x.shape[1], x.shape[1]).exponential_().log()
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        return self.o(joined(((scores + noise) / self.tau).softmax(dim=-1) @ v))


def selects(seed: int, tau: float) -> Setup:
    return hatches(seed, [Pre(Gumbel(tau)) for _ in range(2)], lr=3e-3, steps=80)


warm = zoo.healthy("strokes-gumbel-attention-temperature-2", lambda s: selects(s, 2.0))
zoo.sick(
    "strokes-gumbel-attention-temperature-0.001",
    lambda s: selects(s, 0.001),
    sharp(worse=1.15),
    *ONE_HOT,
    layer=tuple(f"blocks.{i}.attn{part}" for i in range(2) for part in ("", ".q", ".k", ".v", ".o")),
    also=SHARP_TOO,
    control=warm,
)


class Payments(nn.Module):
    """Accounts look at those that paid them; the amounts, through a dense layer, go into the scores."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.edge, self.out = nn.Linear(12, width), nn.Linear(1, 4), nn.Linear(width, 4)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.ln, self.feed = nn.LayerNorm(width), Feed(width)

    def forward(self, x: Tensor, amounts: Tensor) -> Tensor:
        h = self.enter(x)
        q, k, v = (parted(part(self.ln(h)), 4) for part in (self.q, self.k, self.v))
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + self.edge(amounts[..., None]).permute(0, 3, 1, 2)
        scores = scores.masked_fill((amounts == 0)[:, None], -1e9)
        h = h + self.o(joined(scores.softmax(dim=-1) @ v))
        return self.out(h + self.feed(h))


def paid(seed: int, unit: float) -> Setup:
    random = torch.Generator().manual_seed(seed + 41)

    def priced(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, link = batch
        return x, link * unit * torch.rand(link.shape, generator=random).clamp_min(0.01)

    return live(Payments(), citations(seed).mapped(priced), lr=5e-3, steps=50)


euros = zoo.healthy("payments-amounts-scaled", lambda s: paid(s, 1.0))
zoo.sick(
    "payments-amounts-in-cents",
    lambda s: paid(s, 1e6),
    sharp("", worse=1.15),
    *ONE_HOT,
    "EXPLODING",
    layer=("edge", "q", "k", "v", "o"),
    also=SHARP_TOO,
    control=euros,
)


class Frames(nn.Module):
    """Frames of a waveform of two channels, projected."""

    def __init__(self, width: int = 32, size: int = 6) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, width, size, stride=size)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).transpose(1, 2)


def beats(seed: int, blocks: list[nn.Module], unit: float = 1.0, read: str = "mean", **more) -> Setup:
    """Heartbeats as the recorder writes them: whole numbers of 16 bits, or volts."""
    task = pulses(seed).mapped(lambda x: unit * x)
    return live(Net(Frames(), blocks, 5, read, length=8), task, **{"lr": 3e-3, "steps": 80, **more})


def posts(depth: int) -> list[nn.Module]:
    return [Post(Attend()) for _ in range(depth)]


zoo.healthy("heartbeats-post-norm-in-volts", lambda s: beats(s, posts(1)))


class Looks(nn.Module):
    """Pairs of a key and a value, and a key alone, which reads them through a block."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.enter, self.block = nn.Linear(32, 32), block
        self.ln, self.head = nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.ln(self.block(self.enter(x)))[:, -1])


def stored(seed: int, unit: float) -> Setup:
    """Vectors come from a store that keeps them as whole numbers of 8 bits, of which one is 1/40."""
    task = lookups(seed, pairs=3).mapped(lambda x: unit * (40 * x).clamp(-127, 127).round())
    return live(Looks(Post(Attend())), task, lr=5e-3, steps=120)


in_units = zoo.healthy("pairs-vectors-of-8-bits-scaled-back", lambda s: stored(s, 1 / 40))
zoo.sick(
    "pairs-vectors-of-8-bits-as-they-are",
    lambda s: stored(s, 1.0),
    sharp("block.attn", worse=1.3),
    *ONE_HOT,
    "EXPLODING",
    layer=("enter", "block", "block.attn", "block.attn.wq", "block.attn.wk"),
    also=SHARP_TOO,
    control=in_units,
)


class Lora(nn.Module):
    """A frozen dense layer and a product of two thin ones beside it, times alpha over rank; one of them starts at 0."""

    def __init__(self, base: nn.Linear, zero: bool, rank: int = 4, alpha: float = 64.0) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), alpha / rank
        self.a, self.b = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight) if zero else nn.init.normal_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * self.b(self.a(x))


def adapted(seed: int, zero: bool) -> Setup:
    """Queries and keys of a frozen network are adapted, and its head is trained."""
    setup = hatches(seed, pre())
    model = frozen(setup.model, "blocks")
    for block in model.blocks:
        block.attn.wq, block.attn.wk = Lora(block.attn.wq, zero), Lora(block.attn.wk, zero)
        block.feed.requires_grad_(True)
    return live(model, strokes(seed, size=12), lr=2e-3, steps=80)


lora = zoo.healthy("strokes-lora-b-of-zeros", lambda s: adapted(s, True))
zoo.sick(
    "strokes-lora-both-drawn-alpha-64",
    lambda s: adapted(s, False),
    sharp(worse=1.15),
    *ONE_HOT,
    layer=tuple(f"blocks.{i}.attn{part}" for i in range(2) for part in ("", ".wq", ".wk")),
    also=SHARP_TOO,
    control=lora,
)


@torch.no_grad()
def restored(seed: int, scales: bool) -> Setup:
    """Projections come from a file of 8 bits, with their scales or as whole numbers."""
    setup = hatches(seed, pre(), lr=2e-3, steps=60)
    for block in setup.model.blocks:
        for part in (block.attn.wq, block.attn.wk):
            scale = part.weight.abs().max() / 127
            part.weight.copy_((part.weight / scale).round() * (scale if scales else 1.0))
    return setup


rescaled = zoo.healthy("strokes-projections-of-8-bits-with-scales", lambda s: restored(s, True))
zoo.sick(
    "strokes-projections-of-8-bits-without-scales",
    lambda s: restored(s, False),
    sharp(worse=1.15),
    *ONE_HOT,
    layer=tuple(f"blocks.{i}.attn{part}" for i in range(2) for part in ("", ".wq", ".wk")),
    also=SHARP_TOO,
    control=rescaled,
)


def grouped(seed: int, rate: float) -> Setup:
    """Queries and keys have a group of their own in the optimizer, with a rate of its own."""
    model = Net(nn.Embedding(12, 32), pre(causal=True), 12)
    own = [p for n, p in model.named_parameters() if ".wq." in n or ".wk." in n]
    rest = [p for n, p in model.named_parameters() if not (".wq." in n or ".wk." in n)]
    task = copying(seed, 11, 5)
    optimizer = torch.optim.AdamW([{"params": own, "lr": rate}, {"params": rest}], lr=5e-3)
    return Setup(model=model, input_fn=task.input_fn, loss_fn=task.loss_fn, optimizer=optimizer, steps=100)


own_rate = zoo.healthy("copies-queries-and-keys-with-rate-0.005", lambda s: grouped(s, 5e-3))
zoo.sick(
    "copies-queries-and-keys-with-rate-3",
    lambda s: grouped(s, 3.0),
    both(at_last(attends_sharply(below=0.2)), ends_worse(1.3)),
    *ONE_HOT,
    "UNSTABLE",
    "EXPLODING",
    layer=tuple(f"blocks.{i}.attn{part}" for i in range(2) for part in ("", ".wq", ".wk")),
    also=SHARP_TOO,
    control=own_rate,
)

# --- tokens that become one


def warms(seed: int, middle: float) -> Setup:
    """The next temperature, from Celsius around zero or from Kelvin."""
    model = Net(nn.Linear(2, 32), pre(causal=True), 2)
    return live(model, climate(seed, middle=middle), lr=3e-3, steps=70)


celsius = zoo.healthy("climate-in-degrees-around-zero", lambda s: warms(s, 0.0))
zoo.sick(
    "climate-in-kelvin",
    lambda s: warms(s, 290.0),
    both(lasting(alike("blocks.0.norm1", 0.1)), ends_worse(1.5)),
    *MERGED,
    layer=("enter", "blocks.0", "blocks.0.norm1", "blocks.0.attn", "blocks.1"),
    also=ALIKE_TOO,
    control=celsius,
)


class Induced(nn.Module):
    """A set looks at itself by way of a few learned points; what a point brings is added to the set, or is the set."""

    def __init__(self, add: bool, width: int = 32, points: int = 3) -> None:
        super().__init__()
        self.points, self.add = nn.Parameter(torch.randn(1, points, width)), add
        self.gather, self.give, self.ln, self.feed = Attend(width), Attend(width), nn.LayerNorm(width), Feed(width)

    def forward(self, x: Tensor) -> Tensor:
        gathered = self.gather(self.points.expand(len(x), -1, -1), x)
        given = self.give(x, gathered)
        h = self.ln(x + given if self.add else given)
        return h + self.feed(h)


def sets(seed: int, add: bool) -> Setup:
    """How much of the largest entries of its set has each item?"""
    task = heaps(seed).changed(lambda x, top: (x, x - top[:, None] / 2))
    return live(Net(nn.Linear(6, 32), [Induced(add) for _ in range(3)], 6, length=0), task, lr=3e-3, steps=70)


added = zoo.healthy("sets-by-induced-points-added", lambda s: sets(s, True))
zoo.sick(
    "sets-by-induced-points-sum-forgotten",
    lambda s: sets(s, False),
    both(lasting(alike("blocks.2", 0.15)), ends_worse(1.5)),
    *MERGED,
    also=ALIKE_TOO,
    control=added,
)


class Hourglass(nn.Module):
    """Tokens are shortened to one by a mean, worked on, and repeated; what they were is added again, or not."""

    def __init__(self, add: bool, words: int = 12, width: int = 32) -> None:
        super().__init__()
        self.enter, self.place = nn.Embedding(words, width), nn.Parameter(0.3 * torch.randn(1, 12, width))
        self.first, self.middle, self.last = (Pre(Attend(width)) for _ in range(3))
        self.head, self.add = nn.Linear(width, 2), add

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.first(self.enter(tokens) + self.place)
        short = self.middle(h.unflatten(1, (2, -1)).mean(dim=2))
        wide = short.mean(dim=1, keepdim=True).expand_as(h)
        return self.head(self.last(wide + h if self.add else wide))


def hourglass(seed: int, add: bool) -> Setup:
    return live(Hourglass(add), residues(seed), lr=3e-3, steps=70)


glass = zoo.healthy("residues-hourglass-with-its-skip", lambda s: hourglass(s, True))
zoo.sick(
    "residues-hourglass-skip-forgotten",
    lambda s: hourglass(s, False),
    both(lasting(alike("last", 1e-3)), ends_worse()),
    *MERGED,
    layer=("last", "last.attn", "middle", "head"),
    also=ALIKE_TOO,
    control=glass,
)


class Tagger(nn.Module):
    """An encoder of torch with a pooler; every word is tagged from its own vector, or from the pooled one."""

    def __init__(self, pooled: bool, width: int = 32) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(12, width), nn.Parameter(0.3 * torch.randn(1, 12, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, batch_first=True, norm_first=True)
        self.encoder, self.pooler = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, width)
        self.tags, self.pooled = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2)), pooled

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.encoder(self.words(tokens) + self.place)
        first = torch.tanh(self.pooler(h[:, :1]))
        return self.tags(first.expand_as(h) if self.pooled else h + first)


own_vector = zoo.healthy(
    "residues-tags-from-each-vector", lambda s: live(Tagger(False), residues(s), lr=3e-3, steps=70)
)
zoo.sick(
    "residues-tags-from-the-pooled-vector",
    lambda s: live(Tagger(True), residues(s), lr=3e-3, steps=70),
    both(lasting(alike("tags", 1e-3)), ends_worse()),
    *MERGED,
    layer=("pooler", "tags", "tags.1"),
    also=ALIKE_TOO,
    control=own_vector,
)


# --- heads that are one


class Split(nn.Module):
    """Heads by hand: features are cut into heads, and small dense layers for all of them ask, key and give."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, size = heads, width // heads
        self.q, self.k, self.v = (nn.Linear(size, size, bias=False) for _ in range(3))
        nn.init.xavier_uniform_(self.q.weight, 2.0)
        nn.init.xavier_uniform_(self.k.weight, 2.0)
        self.o = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = parted(x, self.heads)
        scores = self.q(x) @ self.k(x).transpose(2, 3) / x.shape[-1] ** 0.5
        return self.o(joined(scores.softmax(dim=-1) @ self.v(x)))


class Tiled(nn.Module):
    """Eight features of a frame, repeated until they fill the width, or projected to it."""

    def __init__(self, tile: bool) -> None:
        super().__init__()
        self.lin, self.tile = nn.Linear(8, 8 if tile else 32), tile

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x).repeat(1, 1, 4) if self.tile else self.lin(x)


class Heard(nn.Module):
    """One such attention over frames, a dense half, a sound for every frame."""

    def __init__(self, tile: bool) -> None:
        super().__init__()
        self.enter, self.attn, self.ln, self.feed = Tiled(tile), Split(32, 4), nn.LayerNorm(32), Feed()
        self.head = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        h = h + self.attn(h)
        return self.head(h + self.feed(self.ln(h)))


projected = zoo.healthy(
    "phones-heads-cut-from-a-projection", lambda s: live(Heard(False), phones(s), lr=3e-3, steps=60)
)
zoo.sick(
    "phones-heads-cut-from-repeated-features",
    lambda s: live(Heard(True), phones(s), lr=3e-3, steps=60),
    lasting(heads_agree("attn")),
    *SAME,
    layer=("attn", "attn.q", "attn.k", "attn.v", "enter.lin", "enter"),
    also=ONE,
    control=projected,
)


class Gat(nn.Module):
    """Graph attention of four heads with one projection, averaged; a vector per head scores who is looked at."""

    def __init__(self, make, width: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.w, self.heads = nn.Linear(12, width), heads
        self.source, self.target = nn.Parameter(make(heads, width)), nn.Parameter(make(heads, width))
        self.values = nn.Linear(12, width)
        self.out = nn.Sequential(nn.GELU(), nn.Linear(width, 4))

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        h = self.w(x)
        a, b = (torch.einsum("bnd,hd->bhn", torch.tanh(h), way) for way in (self.source, self.target))
        scores = F.leaky_relu(a[..., None] + b[:, :, None], 0.2).masked_fill(~link[:, None], -1e9)
        return self.out((scores.softmax(dim=-1) @ self.values(x)[:, None]).mean(dim=1))


def graph(seed: int, make) -> Setup:
    return live(Gat(make), citations(seed), lr=3e-3, steps=50)


drawn = zoo.healthy("papers-four-scores-drawn", lambda s: graph(s, lambda *size: 0.5 * torch.randn(size)))
zoo.sick(
    "papers-four-scores-filled-with-1",
    lambda s: graph(s, lambda *size: torch.ones(size)),
    lasting(heads_agree()),
    *SAME,
    layer=("source", "target", "w", "values"),
    also=ONE,
    control=drawn,
)


class Rms(nn.Module):
    """A norm by the root mean square alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x * (x.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt()


def filled(seed: int, value: float | None) -> Setup:
    """`nn.init.constant_` over the matrices of attention, or their usual draw."""
    blocks = pre(2, norm=Rms)
    for block in blocks:
        for part in (block.attn.wq, block.attn.wk, block.attn.wv, block.attn.wo):
            nn.init.zeros_(part.bias)
            if value is not None:
                nn.init.constant_(part.weight, value)
    return folds(seed, blocks)


usual_draw = zoo.healthy("residues-attention-drawn-rms", lambda s: filled(s, None))
zoo.sick(
    "residues-attention-filled-with-0.1",
    lambda s: filled(s, 0.1),
    lasting(heads_agree("blocks.0.attn")),
    *SAME,
    layer=tuple(f"blocks.{i}.attn{part}" for i in range(2) for part in ("", ".wq", ".wk", ".wv", ".wo")),
    also={*ONE, "ENTROPY_COLLAPSE", "RANK_COLLAPSE"},
    control=usual_draw,
)

# --- the faults of any network


def hidden(seed: int, at_least: bool) -> Setup:
    """Guess hidden tokens; in one batch none is hidden."""
    now = every(60, 25)

    def shown(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return (x, torch.full_like(target, -100)) if now() else (x, target)

    def loss(z: Tensor, target: Tensor) -> Tensor:
        total = F.cross_entropy(z.flatten(0, 1), target.flatten(), reduction="sum")
        return total / (target >= 0).sum().clamp_min(int(at_least))

    model = Net(nn.Embedding(15, 32), pre(), 14)
    return live(model, blanks(seed).changed(shown).with_loss(loss), lr=3e-3, steps=60)


some = zoo.healthy("blanks-mean-over-at-least-one", lambda s: hidden(s, True))
zoo.sick("blanks-mean-over-none", lambda s: hidden(s, False), breaks, "NUMERICAL", control=some)


class Experts(nn.Module):
    """Each token goes to one of four experts; the answer is multiplied by the router's share, or is not."""

    def __init__(self, weighed: bool, width: int = 32) -> None:
        super().__init__()
        self.router, self.weighed = nn.Linear(width, 4), weighed
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        share = self.router(x).softmax(dim=-1)
        chosen = F.one_hot(share.argmax(dim=-1), 4).float()
        answers = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (answers * (chosen * share if self.weighed else chosen)[..., None, :]).sum(dim=-1)


def routed(seed: int, weighed: bool) -> Setup:
    blocks = pre(2, causal=True)
    for block in blocks:
        block.feed = Experts(weighed)
    return hums(seed, blocks)


by_share = zoo.healthy("jingles-experts-times-the-routers-share", lambda s: routed(s, True))
zoo.sick(
    "jingles-experts-by-argmax-of-the-router",
    lambda s: routed(s, False),
    lasting(no_gradient("blocks.0.feed.router", "blocks.1.feed.router")),
    "DISCONNECTED",
    "DEAD",
    layer=tuple(f"blocks.{i}.feed.router" for i in range(2)),
    control=by_share,
)


class Quantised(nn.Module):
    """The places of a pen become the nearest of 20 codes, straight through or not; a block reads them."""

    def __init__(self, through: bool, width: int = 32) -> None:
        super().__init__()
        self.enter, self.book, self.through = nn.Linear(4, width), nn.Embedding(20, width), through
        self.place = nn.Parameter(0.3 * torch.randn(1, 10, width))
        self.block, self.out = Pre(Attend(width)), nn.Linear(width, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.enter(x.unflatten(1, (-1, 2)).flatten(2))
        with torch.no_grad():
            nearest = torch.cdist(z, self.book.weight[None]).argmin(dim=-1)
        code = self.book(nearest)
        said = code + z - z.detach() if self.through else code
        return self.out(self.block(said + self.place).mean(dim=1)), code


def coded(seed: int, through: bool) -> Setup:
    def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return F.cross_entropy(output[0], target) + 0.01 * output[1].square().mean()

    return live(Quantised(through), gestures(seed).with_loss(loss), lr=5e-3, steps=70)


through = zoo.healthy("pen-codes-straight-through", lambda s: coded(s, True))
zoo.sick(
    "pen-codes-nothing-goes-through",
    lambda s: coded(s, False),
    lasting(no_gradient("enter")),
    "DISCONNECTED",
    "DEAD",
    layer=("enter",),
    control=through,
)


class Capped(nn.Module):
    """Logits bent to ± cap by a tanh."""

    def __init__(self, cap: float, width: int = 32) -> None:
        super().__init__()
        self.cap, self.net = cap, Net(nn.Embedding(12, width), pre(causal=True), 12, width=width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.cap * torch.tanh(self.net(tokens) / self.cap)


def capped(seed: int, cap: float) -> Setup:
    return live(Capped(cap), jingles(seed), lr=5e-3, steps=90)


def bent(setup: Setup) -> float:
    """Share of the capped logits that lie where the tanh is flat."""
    with torch.no_grad():
        z = torch.tanh(setup.model.net(setup.input_fn()) / setup.model.cap)
    return (1 - z.square() < 0.05).double().mean().item()


soft_cap = zoo.healthy("jingles-logits-capped-at-30", lambda s: capped(s, 30.0))
zoo.sick(
    "jingles-logits-capped-at-0.5",
    lambda s: capped(s, 0.5),
    both(at_last(more_than(bent, 0.5, "share of flat logits")), ends_worse(1.3)),
    "SATURATION",
    "VANISHING",
    layer=("net.head",),
    also={"DEAD", "LOW_RANK", "SLOW", "BOTTLENECK"},
    control=soft_cap,
)


class Latent(nn.Module):
    """Keys and values come from a small latent of each token, as in latent attention."""

    def __init__(self, size: int, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.q, self.down = heads, nn.Linear(width, width), nn.Linear(width, size)
        self.up, self.o = nn.Linear(size, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.up(self.down(x)).chunk(2, dim=-1)
        q, k, v = (parted(part, self.heads) for part in (self.q(x), k, v))
        return self.o(joined(F.scaled_dot_product_attention(q, k, v)))


def latent(seed: int, size: int) -> Setup:
    return live(Looks(Pre(Latent(size))), lookups(seed, pairs=3), lr=5e-3, steps=120)


latent_16 = zoo.healthy("pairs-latent-attention-of-16", lambda s: latent(s, 16))
zoo.sick(
    "pairs-latent-attention-of-1",
    lambda s: latent(s, 1),
    ends_worse(),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("block.attn.down", "block.attn.up", "block.attn"),
    also={"RANK_COLLAPSE", "HEAD_DIVERSITY", "ENTROPY_COLLAPSE", "SLOW"},
    control=latent_16,
)

# --- healthy, without a partner


def cosine(step: int, warm: int = 8, total: int = 60) -> float:
    return min((step + 1) / warm, 0.55 + 0.45 * math.cos(math.pi * step / total))


zoo.healthy("jingles-gpt-pre-norm-two-blocks", lambda s: hums(s, pre(causal=True)))
zoo.healthy("jingles-gpt-three-heads-of-30", lambda s: hums(s, pre(2, 30, 3, True), 30))
zoo.healthy("jingles-gpt-warm-up-cosine-decay-0.1", lambda s: hums(s, pre(causal=True), rate=cosine, weight_decay=0.1))
zoo.healthy("jingles-gpt-dropout-0.2", lambda s: hums(s, pre(causal=True, drop=0.2), steps=80))
zoo.healthy("jingles-gpt-nadam", lambda s: hums(s, pre(causal=True), kind="NAdam", lr=2e-3))
zoo.healthy(
    "jingles-gpt-sgd-0.2-momentum-clipped",
    lambda s: hums(s, pre(causal=True), kind="SGD", lr=0.2, momentum=0.9, clip=1.0),
)
zoo.healthy("jingles-post-norm-one-block", lambda s: hums(s, [Post(Attend(causal=True))], clip=1.0))
zoo.healthy("jingles-five-narrow-blocks", lambda s: hums(s, pre(5, 16, 2, True), 16))
zoo.healthy("jingles-rms-norms", lambda s: hums(s, pre(causal=True, norm=Rms)))
zoo.healthy("residues-encoder-of-one-head", lambda s: folds(s, pre(1, heads=1)))
zoo.healthy("residues-encoder-adamax", lambda s: folds(s, pre(), kind="Adamax", lr=1e-2))
zoo.healthy("residues-frozen-first-block", lambda s: thawed(s, "enter", "blocks.0"))
zoo.healthy("strokes-vit-mean-of-tokens", lambda s: hatches(s, pre()))
zoo.healthy("strokes-vit-patches-of-4", lambda s: hatches(s, pre(), enter=Patches(32, 4)))
zoo.healthy("strokes-vit-last-token", lambda s: seen_last(s))
zoo.healthy("heartbeats-frames-and-two-blocks", lambda s: beats(s, pre()))
zoo.healthy("registers-two-causal-blocks", lambda s: remembers(s, pre(causal=True)), thrives(0.1))
zoo.healthy(
    "grid-load-next-hour-causal",
    lambda s: live(Net(nn.Linear(1, 32), pre(causal=True), 1), loads(s), lr=3e-3, steps=60),
)
zoo.healthy(
    "mirrors-two-blocks-no-mask", lambda s: live(Net(nn.Embedding(9, 32), pre(), 9), mirrors(s), lr=5e-3, steps=80)
)
zoo.healthy(
    "majority-one-block-no-places",
    lambda s: live(Net(nn.Embedding(6, 32), pre(1), 6, "mean", length=0), majority(s), lr=3e-3, steps=60),
)
zoo.healthy(
    "blanks-batches-of-6", lambda s: live(Net(nn.Embedding(15, 32), pre(), 14), blanks(s, batch=6), lr=3e-3, steps=120)
)
zoo.healthy("jingles-labels-smoothed", lambda s: live(gpt(), smoothed(s), lr=3e-3, steps=60))


def thawed(seed: int, *still: str) -> Setup:
    model = frozen(Net(nn.Embedding(12, 32), pre(3), 2), *still)
    return live(model, residues(seed), lr=5e-3, steps=70)


def seen_last(seed: int) -> Setup:
    return live(Net(Patches(), pre(), 8, "last"), strokes(seed, size=12), lr=3e-3, steps=80)


def gpt() -> Net:
    return Net(nn.Embedding(12, 32), pre(causal=True), 12)


def smoothed(seed: int) -> Task:
    return jingles(seed).with_loss(lambda z, t: F.cross_entropy(z.flatten(0, 1), t.flatten(), label_smoothing=0.1))


class Commented(nn.Module):
    """torch's encoder over comments with its mask for padding, and their mean."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(MOODS, width, padding_idx=0), nn.Embedding(12, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, "gelu", batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(width, 2)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        gone = words == 0
        h = self.encoder(self.words(words) + self.place.weight, src_key_padding_mask=gone)
        return self.head(h.masked_fill(gone[..., None], 0).sum(dim=1) / lengths[:, None])


zoo.healthy("comments-torch-encoder-padding-masked", lambda s: live(Commented(), moods(s), lr=3e-3, steps=100))


class Translator(nn.Module):
    """torch's own transformer with shared embedding and tied head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(15, width), nn.Parameter(0.3 * torch.randn(1, 6, width))
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.net = nn.Transformer(width, 4, 1, 1, 64, 0.0, batch_first=True)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        source, shifted = (6 * self.words(x) + self.place for x in (source, shifted))
        return F.linear(self.net(source, shifted, tgt_mask=ahead(6)), self.words.weight[:14])


zoo.healthy("ciphers-torch-transformer-tied-table", lambda s: live(Translator(), ciphers(s), lr=3e-3, steps=100))


class Flash(nn.Module):
    """Gated attention of one head without a softmax: squared rectified scores over the length."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.shared, self.gate, self.value = nn.Linear(width, 16), nn.Linear(width, 64), nn.Linear(width, 64)
        self.gains, self.shifts = nn.Parameter(1 + 0.1 * torch.randn(2, 16)), nn.Parameter(torch.zeros(2, 16))
        self.out = nn.Linear(64, width)

    def forward(self, x: Tensor) -> Tensor:
        z = F.silu(self.shared(x))
        q, k = (z * self.gains[i] + self.shifts[i] for i in range(2))
        weight = F.relu(q @ k.transpose(1, 2) / 4).square().tril() / x.shape[1]
        return self.out(F.silu(self.gate(x)) * (weight @ F.silu(self.value(x))))


zoo.healthy("jingles-gated-squared-relu-attention", lambda s: hums(s, [Pre(Flash()) for _ in range(2)]))


class Rotary(Attend):
    """Causal attention with turned queries and keys."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(part(x)) for part in (self.wq, self.wk, self.wv))
        angle = torch.arange(x.shape[1] * 1.0)[:, None] / 100 ** (torch.arange(q.shape[-1] // 2) / (q.shape[-1] // 2))
        q, k = self.turned(q, angle), self.turned(k, angle)
        return self.wo(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))

    def turned(self, x: Tensor, angle: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


def turned(seed: int) -> Setup:
    model = Net(nn.Embedding(12, 32), [Pre(Rotary()) for _ in range(2)], 12, length=0)
    return live(model, copying(seed, 11, 5), lr=5e-3, steps=90)


zoo.healthy("copies-rotary-and-nothing-else", turned)


class Denoised(nn.Module):
    """Which noise lies on the path of a pen, given how much of it: a small diffusion model."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.net, self.time = Net(nn.Linear(2, width), pre(width=width), 2), nn.Linear(8, width)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        way = torch.cat(
            [(t[:, None] * 2.0 ** torch.arange(4)).sin(), (t[:, None] * 2.0 ** torch.arange(4)).cos()], dim=1
        )
        h = self.net.enter(x) + self.net.place[:, : x.shape[1]] + self.time(way)[:, None]
        for block in self.net.blocks:
            h = block(h)
        return self.net.head(self.net.norm(h))


def diffused(seed: int) -> Setup:
    random = torch.Generator().manual_seed(seed + 43)

    def noised(x: Tensor, _target: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        t, noise = torch.rand(len(x), generator=random), torch.randn(x.shape, generator=random)
        share = (0.5 * math.pi * t)[:, None, None]
        return (share.cos() * x + share.sin() * noise, t), noise

    return live(Denoised(), gestures(seed).changed(noised).with_loss(F.mse_loss), lr=3e-3, steps=80)


zoo.healthy("pen-paths-diffusion", diffused)
