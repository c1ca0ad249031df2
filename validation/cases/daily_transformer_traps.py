# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Daily transformers that train well, some of them a little unusual.

Half: daily.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Attend, Feed, Net, Post, Pre
from validation.cases._daily_attention import Own, rides, stressed
from validation.cases._daily_nets import accents, bearings, buoys, leaves, menus, orders, shelves, trips
from validation.cases._usual_sequences import ahead, joined, parted
from validation.evidence import thrives
from validation.setups import frozen, live, pretrain
from validation.tasks import sorting, token_loss

zoo = Zoo("transformer", half="daily", analyzer="transformer", proof=thrives(0.15))


def pre(depth: int = 2, causal: bool = False, heads: int = 4, **more) -> list[nn.Module]:
    return [Pre(Attend(32, heads, causal), **more) for _ in range(depth)]


def cosine(t: int, total: int = 60) -> float:
    return min((t + 1) / 10, 0.52 + 0.48 * math.cos(math.pi * min(t, total) / total))


zoo.healthy("trips-gpt-two-blocks", lambda s: rides(s, pre(2, True), steps=60))
zoo.healthy("trips-gpt-warm-up-cosine-clipped", lambda s: rides(s, pre(2, True), rate=cosine, clip=1.0, steps=60))
zoo.healthy("trips-gpt-dropout-0.3", lambda s: rides(s, pre(2, True, drop=0.3), steps=60))
zoo.healthy("trips-gpt-batches-of-4", lambda s: live(
    Net(nn.Embedding(15, 32), pre(1, True), 12), trips(s, batch=4), lr=3e-3, steps=110
))  # fmt: skip
zoo.healthy("trips-gpt-much-chance", lambda s: live(
    Net(nn.Embedding(15, 32), pre(1, True), 12), trips(s, noise=0.4), lr=5e-3, steps=80
))  # fmt: skip
zoo.healthy("trips-gpt-sgd-0.3-momentum", lambda s: rides(
    s, pre(1, True), kind="SGD", lr=0.3, momentum=0.9, clip=1.0, steps=80
))  # fmt: skip


def tied(seed: int) -> Setup:
    model = Net(nn.Embedding(15, 32), pre(2, True), 15)
    nn.init.normal_(model.enter.weight, std=0.2)
    model.head.weight = model.enter.weight
    return live(model, trips(seed), lr=5e-3, steps=70, weight_decay=0.1)


zoo.healthy("trips-gpt-tied-head-decay-0.1", tied)


class Gated(nn.Module):
    """A gated dense half."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(32, 48, False), nn.Linear(32, 48, False), nn.Linear(48, 32, False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.silu(self.a(x)) * self.b(x))


class Shared(nn.Module):
    """Four heads of queries, one of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(32, 32, False), nn.Linear(32, 16, False), nn.Linear(32, 32, False)

    def forward(self, x: Tensor) -> Tensor:
        q, (k, v) = parted(self.q(x), 4), self.kv(x)[:, None].chunk(2, dim=-1)
        scores = (q @ k.transpose(2, 3) / 8**0.5).masked_fill(ahead(x.shape[1]), -1e9)
        return self.o(joined(scores.softmax(dim=-1) @ v))


def llama(seed: int) -> Setup:
    blocks = [Pre(Shared(), norm=nn.RMSNorm) for _ in range(2)]
    for block in blocks:
        block.feed = Gated()
    return rides(seed, blocks, steps=70)


zoo.healthy("trips-shared-keys-gated-feed", llama)


class Slopes(Own):
    """What lies far back counts less, by a slope of its own for each head."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        t = torch.arange(q.shape[2] * 1.0)
        slope = torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
        return super().scores(q, k) - slope * (t[:, None] - t).clamp_min(0)


zoo.healthy("trips-slopes-by-distance", lambda s: rides(s, [Pre(Slopes(causal=True)) for _ in range(2)], steps=70))


class Near(Own):
    """A learned number for each head and each distance."""

    def __init__(self, length: int = 11) -> None:
        super().__init__()
        self.table, self.length = nn.Parameter(torch.zeros(self.heads, 2 * length - 1)), length

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        t = torch.arange(self.length)
        return super().scores(q, k) + self.table[:, t[:, None] - t + self.length - 1]


zoo.healthy("accents-learned-distances", lambda s: stressed(s, [Pre(Near()) for _ in range(2)], lr=8e-3, steps=70))
zoo.healthy("accents-post-norm-one-block-warm-up", lambda s: stressed(s, [Post(Attend())], rate=cosine, steps=80))
zoo.healthy("accents-labels-smoothed", lambda s: live(
    Net(nn.Embedding(14, 32), pre(), 3),
    accents(s).with_loss(lambda z, t: F.cross_entropy(z.flatten(0, 1), t.flatten(), label_smoothing=0.1)),
    lr=5e-3, steps=80,
))  # fmt: skip


class Encoder(nn.Module):
    """torch's own encoder behind a token that answers."""

    def __init__(self, words: int = 30, out: int = 6) -> None:
        super().__init__()
        self.words, self.token = nn.Embedding(words, 32), nn.Parameter(torch.zeros(1, 1, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True)
        self.net, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, out)

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(ids), -1, -1), self.words(ids)], dim=1)
        return self.out(self.net(x)[:, 0])


zoo.healthy("menus-token-that-answers", lambda s: live(Encoder(), menus(s), lr=3e-3, steps=60))
zoo.healthy("menus-token-that-answers-rmsprop-clipped", lambda s: live(
    Encoder(), menus(s), "RMSprop", lr=1e-3, steps=70, alpha=0.95, clip=1.0
))  # fmt: skip


def last_block(seed: int) -> Setup:
    """Trained on other menus; all but the last block and the head is frozen."""
    model = Net(nn.Embedding(30, 32), pre(2), 6, "mean", length=0)
    pretrain(live(model, menus(seed + 6)), 50)
    return live(frozen(model, "enter", "blocks.0"), menus(seed), lr=5e-3, steps=60)


zoo.healthy("menus-last-block-tuned", last_block)
zoo.healthy("orders-one-block-of-four-heads", lambda s: live(
    Net(nn.Linear(32, 32), pre(1), 9, length=0), orders(s), lr=1e-2, steps=90
))  # fmt: skip
zoo.healthy("shelves-sharp-because-it-has-learned", lambda s: live(
    Net(nn.Linear(30, 32), pre(1), 6, length=0), shelves(s), lr=1e-2, steps=110
))  # fmt: skip


class Linear(Own):
    """Attention without a softmax: positive features of queries and keys."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (parted(part(x), self.heads) for part in (self.q, self.k, self.v))
        q, k = F.elu(2 * q) + 1, F.elu(2 * k) + 1
        return self.o(joined(q @ (k.transpose(2, 3) @ v) / (q @ k.sum(dim=2)[..., None])))


zoo.healthy("shelves-linear-attention", lambda s: live(
    Net(nn.Linear(30, 32), [Pre(Linear()) for _ in range(2)], 6, length=0), shelves(s), lr=5e-3, steps=110
))  # fmt: skip
zoo.healthy("sorting-torch-encoder-post-norm", lambda s: live(
    Net(nn.Embedding(8, 32), [nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2)], 8),
    sorting(s), lr=3e-3, steps=80, clip=1.0,
))  # fmt: skip


class Vit(nn.Module):
    """Patches, blocks, the mean; some patches are left out at random while it trains."""

    def __init__(self, kept: int = 12) -> None:
        super().__init__()
        self.patch, self.place = nn.Conv2d(3, 32, 3, stride=3), nn.Parameter(0.3 * torch.randn(1, 16, 32))
        self.blocks, self.norm, self.head = nn.Sequential(*pre()), nn.LayerNorm(32), nn.Linear(32, 8)
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2) + self.place
        h = h[:, torch.randperm(h.shape[1])[: self.kept]]
        return self.head(self.norm(self.blocks(h)).mean(dim=1))


zoo.healthy("leaves-vit-patches-left-out", lambda s: live(Vit(), leaves(s, size=12), lr=3e-3, steps=60))


class Pooled(nn.Module):
    """Convolutions in time, then one question reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(2, 32, 5, 2, 2), nn.GELU(), nn.Conv1d(32, 32, 5, 2, 2), nn.GELU())
        self.ask, self.read = nn.Parameter(torch.randn(1, 1, 32)), nn.MultiheadAttention(32, 4, batch_first=True)
        self.feed, self.out = Feed(), nn.Linear(32, 7)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).transpose(1, 2)
        said = self.read(self.ask.expand(len(x), -1, -1), h, h, need_weights=False)[0][:, 0]
        return self.out(said + self.feed(said))


zoo.healthy("bearings-one-question-reads-convolutions", lambda s: live(Pooled(), bearings(s), lr=5e-3, steps=90))


class Hidden(nn.Module):
    """Half of the patches of a series are hidden and rebuilt; what is seen does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.blank = nn.Linear(12, 32), nn.Parameter(torch.zeros(32))
        self.net = Net(nn.Identity(), pre(), 12)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(2, (8, 4)).transpose(1, 2).flatten(2)
        hidden = torch.rand(len(x), 8, 1) < 0.5
        said = self.net(torch.where(hidden, self.blank, self.enter(x)))
        return ((said - x).square() * hidden).sum() / (12 * hidden.sum().clamp_min(1))


zoo.healthy("buoys-hidden-patches-rebuilt", lambda s: live(
    Hidden(), buoys(s).with_loss(lambda out, _: out), lr=5e-3, steps=90
))  # fmt: skip


class Soft(nn.Module):
    """Four experts for each token, weighed by a softmax, with a small price for uneven use."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(32, 4), nn.ModuleList(Feed(32, 1) for _ in range(4))
        self.uneven = torch.tensor(0.0)

    def forward(self, x: Tensor) -> Tensor:
        share = self.gate(x).softmax(dim=-1)
        self.uneven = 4 * share.mean(dim=(0, 1)).square().sum() - 1
        return (torch.stack([expert(x) for expert in self.experts], dim=-1) * share[..., None, :]).sum(dim=-1)


class Moe(nn.Module):
    """A block with soft experts; hands out how unevenly they are used, too."""

    def __init__(self) -> None:
        super().__init__()
        block = Pre(Attend(causal=True))
        block.feed = Soft()
        self.net = Net(nn.Embedding(15, 32), [block], 12)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(ids), self.net.blocks[0].feed.uneven


zoo.healthy("trips-four-soft-experts", lambda s: live(
    Moe(), trips(s).with_loss(lambda out, t: token_loss(out[0], t) + 0.01 * out[1]), lr=5e-3, steps=70
))  # fmt: skip
