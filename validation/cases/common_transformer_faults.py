# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers as people write them, with the faults of any network, and their twins.

Half: common.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import (
    WORDS,
    Attend,
    Feed,
    Net,
    Post,
    Pre,
    baskets,
    dates,
    ends_worse,
    entities,
    modes,
    motors,
    sees,
    segments,
    sentences,
    small_gradients,
    spam,
    speaks,
)
from validation.evidence.live import breaks, lasting, never_fires, thrives
from validation.evidence.signal import activation_growth, both, equal_units, no_gradient
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import JUMPS, LOST, RUNS_AWAY
from validation.nets.programs import RankOne
from validation.setups import live
from validation.tasks import every

zoo = Zoo("transformer", half="common", analyzer="transformer", proof=thrives(0.15))

# --- masks and norms that give no number


class Causal(nn.Module):
    """Causal attention by hand with a mask of its own; `diagonal` is where the mask begins."""

    def __init__(self, diagonal: int) -> None:
        super().__init__()
        self.qkv, self.out, self.diagonal = nn.Linear(32, 96), nn.Linear(32, 32), diagonal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mask = torch.ones(x.shape[1], x.shape[1]).triu(self.diagonal).bool()
        scores = (q @ k.transpose(2, 3) / 8**0.5).masked_fill(mask, float("-inf"))
        return self.out((F.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))


ahead = zoo.healthy("words-mask-from-the-first-word-ahead", lambda s: speaks(s, [Pre(Causal(1)) for _ in range(2)]))
zoo.sick(
    "words-mask-hides-the-word-itself-too",
    lambda s: speaks(s, [Pre(Causal(0)) for _ in range(2)]),
    breaks,
    "NUMERICAL",
    control=ahead,
)


class OwnNorm(nn.Module):
    """Subtracts the mean, divides by the deviation and what is added to it."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.gain, self.bias = eps, nn.Parameter(torch.ones(32)), nn.Parameter(torch.zeros(32))

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(dim=-1, keepdim=True)
        return self.gain * x / (x.square().mean(dim=-1, keepdim=True).sqrt() + self.eps) + self.bias


class Mails(nn.Module):
    """Words of a mail, a norm on each, a torch encoder layer, their mean; padding is a vector of zeros."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(30, 32, padding_idx=0), norm
        self.layer, self.out = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), nn.Linear(32, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        blank = tokens == 0
        h = self.layer(self.norm(self.words(tokens)), src_key_padding_mask=blank)
        h = h.masked_fill(blank[..., None], 0.0)
        return self.out(h.sum(dim=1) / lengths[:, None])


def mails(seed: int, eps: float) -> Setup:
    return live(Mails(OwnNorm(eps)), spam(seed), lr=2e-3, steps=40)


floor = zoo.healthy("mails-own-norm-with-eps", lambda s: mails(s, 1e-5))
zoo.sick(
    "mails-own-norm-without-eps-meets-padding",
    lambda s: mails(s, 0.0),
    breaks,
    "NUMERICAL",
    layer=("norm", "words"),
    control=floor,
)

# --- cut off


class Prompted(nn.Module):
    """Learned vectors stand before a text; the encoder behind them is frozen."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.words, self.prefix, self.cut = nn.Embedding(20, 32), nn.Linear(32, 4 * 32), cut
        self.block, self.out = Pre(Attend()), nn.Linear(32, 3)
        self.block.requires_grad_(False)
        self.seed = nn.Parameter(torch.randn(32))

    def forward(self, tokens: Tensor) -> Tensor:
        prefix = self.prefix(self.seed).view(1, 4, 32)
        prefix = torch.tensor(prefix.tolist()) if self.cut else prefix
        x = torch.cat([prefix.expand(len(tokens), -1, -1), self.words(tokens)], dim=1)
        return self.out(self.block(x)[:, 4:])


def prompted(seed: int, cut: bool) -> Setup:
    return live(Prompted(cut), entities(seed), lr=1e-2, steps=60)


prompt = zoo.healthy("names-learned-vectors-before-the-text", lambda s: prompted(s, False))
zoo.sick(
    "names-learned-vectors-made-anew-as-a-tensor",
    lambda s: prompted(s, True),
    lasting(no_gradient("prefix", "seed")),
    "DISCONNECTED",
    "DEAD",
    layer=("prefix", "seed"),
    control=prompt,
)


class Twice(nn.Module):
    """An encoder and a decoder; the decoder should read the encoder's memory, and may read its detached copy."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.source, self.target, self.cut = nn.Embedding(9, 32), nn.Embedding(10, 32), cut
        self.place = nn.Parameter(0.5 * torch.randn(1, 5, 32))
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.out = nn.Linear(32, 9)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        memory = self.encoder(self.source(source) + self.place.detach())
        memory = memory.detach() if self.cut else memory
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        return self.out(self.decoder(self.target(shifted) + self.place, memory, tgt_mask=mask, tgt_is_causal=True))


def translated(seed: int, cut: bool) -> Setup:
    return live(Twice(cut), dates(seed), lr=3e-3, steps=80)


read = zoo.healthy("dates-torch-layers-memory-with-history", lambda s: translated(s, False))
zoo.sick(
    "dates-torch-layers-memory-detached",
    lambda s: translated(s, True),
    lasting(no_gradient("encoder", "source")),
    "DISCONNECTED",
    "DEAD",
    layer=("encoder", "source", *(f"encoder.{part}" for part in ("self_attn", "linear1", "linear2"))),
    control=read,
)

# --- units


class Stem(nn.Module):
    """Convolutions with ReLU before the tokens; the last bias starts at `low`."""

    def __init__(self, low: float) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=3)
        self.act = nn.ReLU()
        nn.init.constant_(self.conv2.bias, low)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv2(F.relu(self.conv1(x)))).flatten(2).transpose(1, 2)


stem = zoo.healthy("digits-relu-stem", lambda s: sees(s, [Pre(Attend())], Stem(0.0)))
zoo.sick(
    "digits-relu-stem-bias-minus-9",
    lambda s: sees(s, [Pre(Attend())], Stem(-9.0)),
    both(lasting(never_fires("enter.conv2", 0.99), no_gradient("enter.conv1", "enter.conv2")), ends_worse()),
    "DEAD",
    layer=("enter.conv2", "enter.act", "enter.conv1"),
    also={"DISCONNECTED", "VANISHING", "RANK_COLLAPSE", "LOW_RANK"},
    control=stem,
)


class LayerScale(nn.Module):
    """A block whose branches are multiplied by small learned factors, as in CaiT."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.feed = nn.LayerNorm(32), Attend(), nn.LayerNorm(32), Feed()
        self.s1, self.s2 = (nn.Parameter(torch.full((32,), start)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.s1 * self.attn(self.norm1(x))
        return x + self.s2 * self.feed(self.norm2(x))


def scaled(seed: int, start: float) -> Setup:
    model = Net(nn.Embedding(11, 32), [LayerScale(start) for _ in range(2)], 4)
    return live(model, modes(seed), kind="SGD", lr=0.1, momentum=0.9, steps=80)


near = zoo.healthy("modes-branches-times-1-sgd", lambda s: scaled(s, 1.0))
zoo.sick(
    "modes-branches-times-a-billionth-sgd",
    lambda s: scaled(s, 1e-9),
    both(
        small_gradients([f"blocks.{i}.{part}" for i in range(2) for part in ("attn", "feed")], "head", 1e-6),
        ends_worse(),
    ),
    "VANISHING",
    "SLOW",
    layer=tuple(
        f"blocks.{i}.{part}"
        for i in range(2)
        for part in ("attn.wq", "attn.wk", "attn.wv", "attn.wo", "feed.up", "feed.down")
    ),
    also={"DISCONNECTED", "DEAD", "LOW_RANK", "HEAD_DIVERSITY"},
    control=near,
)


class Gate(nn.Module):
    """A gated sum in place of a skip, as in GTrXL; the gates start at `start`."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.attn, self.feed, self.gate = Attend(), Feed(), nn.Linear(64, 32)
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        nn.init.constant_(self.gate.bias, start)

    def forward(self, x: Tensor) -> Tensor:
        h = self.attn(self.norm1(x))
        x = x + torch.sigmoid(self.gate(torch.cat([x, h], dim=-1))) * h
        return x + self.feed(self.norm2(x))


def gated(seed: int, start: float) -> Setup:
    model = Net(nn.Embedding(11, 32), [Gate(start) for _ in range(2)], 4)
    return live(model, modes(seed), lr=3e-3, steps=80)


opened = zoo.healthy("modes-gated-sums-start-at-0", lambda s: gated(s, 0.0))
zoo.sick(
    "modes-gated-sums-start-at-minus-30",
    lambda s: gated(s, -30.0),
    both(lasting(small_gradients(["blocks.0.attn", "blocks.0.gate"], "head", 1e-6)), ends_worse()),
    "SATURATION",
    "VANISHING",
    layer=tuple(
        f"blocks.{i}.{part}" for i in range(2) for part in ("gate", "attn.wq", "attn.wk", "attn.wv", "attn.wo")
    ),
    also={"DISCONNECTED", "DEAD", "SLOW", "HEAD_DIVERSITY"},
    control=opened,
)


@torch.no_grad()
def filled(blocks: list[nn.Module], value: float) -> list[nn.Module]:
    """All weights of the dense halves are one number, as a constant initialisation leaves them."""
    for block in blocks:
        for layer in (block.feed.up, block.feed.down):
            layer.weight.fill_(value)
            layer.bias.zero_()
    return blocks


class Dense(nn.Module):
    """A block without attention's skip over the dense half: what the dense half says is all that goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn, self.feed = nn.LayerNorm(32), Attend(), Feed()

    def forward(self, x: Tensor) -> Tensor:
        return self.feed(self.norm(x + self.attn(x)))


own = zoo.healthy("digits-dense-half-as-drawn", lambda s: sees(s, [Dense()], steps=60))
zoo.sick(
    "digits-dense-half-filled-with-0.02",
    lambda s: sees(s, filled([Dense()], 0.02), steps=60),
    both(lasting(equal_units("blocks.0.feed.up.weight")), ends_worse()),
    "SYMMETRY",
    "LOW_RANK",
    "BOTTLENECK",
    "RANK_COLLAPSE",
    layer=("blocks.0.feed.up", "blocks.0.feed.down"),
    also={"VANISHING", "DISCONNECTED", "DEAD"},
    control=own,
)


class Albert(nn.Module):
    """A thin table of words, widened."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table, self.widen = nn.Embedding(WORDS, size), nn.Linear(size, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.widen(self.table(tokens))


thin = zoo.healthy("words-table-of-12-widened", lambda s: speaks(s, [Pre(Attend(causal=True))], Albert(12), lr=5e-3))
zoo.sick(
    "words-table-of-1-widened",
    lambda s: speaks(s, [Pre(Attend(causal=True))], Albert(1), lr=5e-3),
    ends_worse(),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("enter.table", "enter.widen"),
    also={"RANK_COLLAPSE", "HEAD_DIVERSITY"},
    control=thin,
)


def headed(seed: int, head: nn.Module) -> Setup:
    model = Net(nn.Embedding(WORDS, 32), [Pre(Attend(causal=True)) for _ in range(2)], WORDS)
    model.head = head
    return live(model, sentences(seed), lr=5e-3, steps=60)


full = zoo.healthy("words-head-of-full-rank", lambda s: headed(s, nn.Linear(32, WORDS)))
zoo.sick(
    "words-head-of-rank-1",
    lambda s: headed(s, RankOne(32, WORDS)),
    ends_worse(),
    "LOW_RANK",
    "BOTTLENECK",
    layer="head",
    control=full,
)

# --- sizes and steps


class Bare(nn.Module):
    """A block that has lost its norms; `gain` draws its matrices."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.attn, self.feed = Attend(), Feed()
        for layer in (self.attn.wv, self.attn.wo, self.feed.up, self.feed.down):
            nn.init.xavier_normal_(layer.weight, gain)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.feed(x)


class Sum(nn.Module):
    """What a basket costs, by blocks over its items and no norm anywhere."""

    def __init__(self, depth: int, gain: float) -> None:
        super().__init__()
        self.enter, self.blocks = nn.Embedding(10, 32), nn.ModuleList(Bare(gain) for _ in range(depth))
        self.head = nn.Linear(32, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


def costs(seed: int, gain: float, depth: int = 6) -> Setup:
    return live(Sum(depth, gain), baskets(seed), lr=1e-3, steps=60, clip=1.0)


small = zoo.healthy("baskets-six-blocks-without-norms-gain-0.3", lambda s: costs(s, 0.3))
zoo.sick(
    "baskets-six-blocks-without-norms-gain-2",
    lambda s: costs(s, 2.0),
    both(activation_growth(100.0), ends_worse()),
    *RUNS_AWAY,
    also={*LOST, "VANISHING", "LOW_RANK"},
    control=small,
)
posted = zoo.healthy("words-post-norm-adam-3e-3", lambda s: speaks(s, [Post(Attend(causal=True)) for _ in range(2)]))
zoo.sick(
    "words-post-norm-adam-2",
    lambda s: speaks(s, [Post(Attend(causal=True)) for _ in range(2)], lr=2.0),
    diverges(),
    *RUNS_AWAY,
    also={*LOST, "VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=posted,
)
zoo.sick(
    "words-post-norm-adam-warm-up-of-a-billion-steps",
    lambda s: speaks(s, [Post(Attend(causal=True)) for _ in range(2)], rate=lambda t: (t + 1) / 1e9),
    does_not_move(steps=60),
    "SLOW",
    control=posted,
)


def loads(seed: int, times: float) -> Setup:
    """In one batch of nine the loss is summed over the tokens and not averaged."""
    now = every(9, 5)

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(y, target) * (times if now() else 1.0)

    model = Net(nn.Linear(2, 32), [Pre(Attend(causal=True)) for _ in range(2)], 2)
    return live(model, motors(seed, 16).with_loss(loss), lr=5e-4, steps=63)


even = zoo.healthy("motors-causal-losses-averaged", lambda s: loads(s, 1.0))
zoo.sick(
    "motors-causal-one-loss-in-nine-summed",
    lambda s: loads(s, 16 * 24 * 2.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=even,
)


def logits(seed: int, std: float) -> Setup:
    """The head of a classifier of pictures, drawn by hand."""
    model = Net(nn.Conv2d(1, 32, 3, stride=3), [Pre(Attend())], 8, "mean")
    model.enter = nn.Sequential(model.enter, nn.Flatten(2), Turn())
    nn.init.normal_(model.head.weight, std=std)
    return live(model, segments(seed), lr=3e-3, steps=60)


class Turn(nn.Module):
    """Channels last."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


quiet = zoo.healthy("digits-head-drawn-with-0.02", lambda s: logits(s, 0.02))
zoo.sick(
    "digits-head-drawn-with-60",
    lambda s: logits(s, 60.0),
    ends_worse(3.0),
    "EXPLODING",
    "UNSTABLE",
    "SATURATION",
    layer=("head",),
    also={*LOST, "VANISHING", "SLOW"},
    control=quiet,
)
