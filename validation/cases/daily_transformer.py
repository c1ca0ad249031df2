# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Daily transformers with the faults that people report, and their twins.

Half: daily.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from validation.case import Setup, Zoo, call
from validation.cases._common_sequences import Attend, Feed, Net, Post, Pre, alike, ends_worse
from validation.cases._daily_attention import Own, rides, stressed
from validation.cases._daily_nets import buoys, menus, orders, shelves
from validation.cases._everyday_sequences import more_than
from validation.cases._usual_nets import falls_behind
from validation.cases._usual_sequences import ahead, joined, parted
from validation.evidence import (
    at_last,
    attends_sharply,
    both,
    heads_agree,
    lags,
    lasting,
    thrives,
)
from validation.labels import ALIKE, ONE, SHARP
from validation.setups import live
from validation.tasks import token_loss

zoo = Zoo("transformer", half="daily", analyzer="transformer", proof=thrives(0.15))
ONE_HOT = ("ENTROPY_COLLAPSE", "SATURATION", "attention_logits")
SHARP_TOO = {
    *SHARP,
    "VANISHING",
    "HEAD_DIVERSITY",
    "RANK_COLLAPSE",
    "LOW_RANK",
    "BOTTLENECK",
    "NUMERICAL",
    "SLOW",
}
MERGED = ("RANK_COLLAPSE", "LOW_RANK", "BOTTLENECK")
ALIKE_TOO = {*ALIKE, "HEAD_DIVERSITY", "UNSTABLE", "SLOW", "DEAD", "DISCONNECTED", "SYMMETRY", "loss_stuck"}
SAME = ("HEAD_DIVERSITY", "SYMMETRY")
ONE_TOO = {*ONE, "ENTROPY_COLLAPSE", "RANK_COLLAPSE"}


def parts(depth: int, *names: str, module: str = "blocks.{}.attn") -> tuple[str, ...]:
    """Paths of the attentions of all blocks, and of what is in them."""
    return tuple(module.format(i) + part for i in range(depth) for part in ("", *(f".{n}" for n in names)))


# --- attention that is one-hot


class QkNorm(Own):
    """Queries and keys have length one; a learned number for each head multiplies their cosines."""

    def __init__(self, gain: float, **more) -> None:
        super().__init__(**more)
        self.gain = nn.Parameter(torch.full((self.heads, 1, 1), gain))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self.gain * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(2, 3)


def cosines(seed: int, gain: float) -> Setup:
    return rides(seed, [Pre(QkNorm(gain, causal=True)) for _ in range(2)])


gain = zoo.healthy("trips-cosines-times-6", lambda s: cosines(s, 6.0))
zoo.sick(
    "trips-cosines-times-3000",
    lambda s: cosines(s, 3000.0),
    both(lasting(attends_sharply()), ends_worse(1.2)),
    *ONE_HOT,
    layer=parts(2, "q", "k"),
    also=SHARP_TOO,
    control=gain,
)


class Euclid(Own):
    """Scores are minus the squared distance of query and key, which share a matrix, times a factor."""

    def __init__(self, factor: float, **more) -> None:
        super().__init__(**more)
        self.k, self.factor = self.q, factor

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return -self.factor * (q[..., :, None, :] - k[..., None, :, :]).square().sum(dim=-1)


def near(seed: int, factor: float) -> Setup:
    return rides(seed, [Pre(Euclid(factor, causal=True)) for _ in range(2)])


spread = zoo.healthy("trips-distances-times-0.1", lambda s: near(s, 0.1))
zoo.sick(
    "trips-distances-times-300",
    lambda s: near(s, 300.0),
    both(lasting(attends_sharply()), ends_worse(1.2)),
    *ONE_HOT,
    layer=parts(2, "q"),
    also=SHARP_TOO,
    control=spread,
)


class Null(Own):
    """One more key, of value zero, to which a head may look when it has nothing to say; its score starts somewhere."""

    def __init__(self, score: float, **more) -> None:
        super().__init__(**more)
        self.score = nn.Parameter(torch.full((self.heads, 1, 1), score))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (parted(part(x), self.heads) for part in (self.q, self.k, self.v))
        scores = self.scores(q, k).masked_fill(ahead(x.shape[1]), -1e9)
        scores = torch.cat([self.score.expand(len(x), -1, x.shape[1], 1), scores], dim=-1)
        return self.o(joined(scores.softmax(dim=-1) @ F.pad(v, (0, 0, 1, 0))))


def nothing(seed: int, score: float) -> Setup:
    return rides(seed, [Pre(Null(score)) for _ in range(2)])


null = zoo.healthy("trips-null-key-from-0", lambda s: nothing(s, 0.0))
zoo.sick(
    "trips-null-key-from-80",
    lambda s: nothing(s, 80.0),
    both(lasting(attends_sharply()), ends_worse(1.2)),
    *ONE_HOT,
    "VANISHING",
    layer=parts(2, "q", "k", "v", "o"),
    also={*SHARP_TOO, "DEAD", "DISCONNECTED", "never_moves"},
    control=null,
)


class Padded(nn.Module):
    """An encoder that adds -10000 where a shelf has ended; its length is its own, or that of the list it is in."""

    def __init__(self, listed: bool) -> None:
        super().__init__()
        self.enter, self.listed = nn.Linear(30, 32), listed
        self.blocks, self.head = nn.ModuleList(Pre(Masked()) for _ in range(2)), nn.Linear(32, 6)

    def forward(self, things: Tensor) -> Tensor:
        length = torch.full((len(things), 1), 1 if self.listed else things.shape[1])
        bar = -1e4 * (torch.arange(things.shape[1]) >= length)[:, None, None]
        x = self.enter(things)
        for block in self.blocks:
            block.attn.bar = bar
            x = block(x)
        return self.head(x)


class Masked(Own):
    """Scores with a bar."""

    bar: Tensor

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) + self.bar


def padded(seed: int, listed: bool) -> Setup:
    return live(Padded(listed), shelves(seed), lr=5e-3, steps=90)


length = zoo.healthy("shelves-bar-behind-their-length", lambda s: padded(s, False))
zoo.sick(
    "shelves-bar-behind-the-length-of-a-list-of-one",
    lambda s: padded(s, True),
    both(lasting(attends_sharply()), ends_worse(1.2)),
    "ENTROPY_COLLAPSE",
    "SATURATION",
    "HEAD_DIVERSITY",
    layer=parts(2, "q", "k", "v", "o"),
    also={*SHARP_TOO, "DEAD", "DISCONNECTED", "never_moves"},
    control=length,
)


def stocked(seed: int, unit: float) -> Setup:
    """Things have a number in the books, which is one more column: as it is, or over its largest."""
    random = torch.Generator().manual_seed(seed + 52)

    def numbered(x: Tensor) -> Tensor:
        return torch.cat([x, unit * torch.randint(1, 100000, (*x.shape[:2], 1), generator=random)], dim=2)

    model = Net(nn.Linear(31, 32), [Post(Attend()) for _ in range(2)], 6, length=0)
    return live(model, shelves(seed).mapped(numbered), lr=3e-3, steps=90)


books = zoo.healthy("shelves-numbers-over-the-largest", lambda s: stocked(s, 1e-5))
zoo.sick(
    "shelves-numbers-of-the-books-as-a-column",
    lambda s: stocked(s, 1.0),
    both(lasting(attends_sharply("blocks.0.attn")), ends_worse(1.5)),
    *ONE_HOT,
    "EXPLODING",
    "input_scales",
    layer=("enter", "blocks.0", *parts(1, "wq", "wk")),
    also={*SHARP_TOO},
    control=books,
)


class Chosen(nn.Module):
    """A question reads the dishes of a menu by four heads; hands out how evenly it looks as well."""

    def __init__(self) -> None:
        super().__init__()
        self.dishes, self.asks = nn.Embedding(30, 32), nn.Parameter(torch.randn(4, 8))
        self.k, self.v, self.soft = nn.Linear(32, 32), nn.Linear(32, 32), nn.Softmax(dim=-1)
        self.out = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 6))

    def forward(self, menu: Tensor) -> tuple[Tensor, Tensor]:
        x = self.dishes(menu)
        k, v = (parted(part(x), 4) for part in (self.k, self.v))
        p = self.soft((self.asks[:, None] @ k.transpose(2, 3)) / 8**0.5)
        even = -(p * (p + 1e-9).log()).sum(dim=-1).mean()
        return self.out(joined(p @ v)[:, 0]), even


def weighed(seed: int, even: float) -> Setup:
    """The loss counts how evenly the heads look."""
    task = menus(seed).with_loss(lambda out, t: F.cross_entropy(out[0], t) + even * out[1])
    return live(Chosen(), task, "Adam", 2e-2, 120)


@torch.no_grad()
def judged_wrong(setup: Setup) -> float:
    """The cross-entropy alone, over some batches."""
    task = setup.loss_fn.__self__
    losses = [F.cross_entropy(call(setup.model, setup.input_fn())[0], task.target).item() for _ in range(16)]
    return sum(losses) / len(losses)


spread_out = zoo.healthy("menus-even-looks-rewarded", lambda s: weighed(s, -0.02))
zoo.sick(
    "menus-even-looks-punished",
    lambda s: weighed(s, 20.0),
    both(at_last(attends_sharply(below=0.2)), falls_behind(judged_wrong, 1.3, "cross-entropy")),
    *ONE_HOT,
    layer=("asks", "dishes", "k", "soft"),
    also=SHARP_TOO,
    control=spread_out,
)

# --- tokens that become one


class Ahead(nn.Module):
    """Patches of three buoys; one learned vector asks for every coming step, with its place or without."""

    def __init__(self, places: bool) -> None:
        super().__init__()
        self.enter, self.place = nn.Linear(12, 32), nn.Parameter(0.3 * torch.randn(1, 8, 32))
        self.encoder = Pre(Attend())
        self.ask = nn.Parameter(0.3 * torch.randn(1, 1, 32))
        self.when = nn.Parameter(0.3 * torch.randn(1, 8, 32)) if places else None
        self.read, self.norm, self.feed, self.out = Attend(), nn.LayerNorm(32), Feed(), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(2, (8, 4)).transpose(1, 2).flatten(2)
        memory = self.encoder(self.enter(x) + self.place)
        ask = self.ask.expand(len(x), 8, -1)
        ask = ask if self.when is None else ask + self.when
        said = ask + self.read(ask, memory)
        return self.out(said + self.feed(self.norm(said))).transpose(1, 2)


def foretold(seed: int, places: bool) -> Setup:
    return live(Ahead(places), buoys(seed), lr=5e-3, steps=110)


when = zoo.healthy("buoys-eight-questions-with-places", lambda s: foretold(s, True))
zoo.sick(
    "buoys-eight-questions-without-places",
    lambda s: foretold(s, False),
    both(lasting(alike("read", 1e-3)), ends_worse(1.5)),
    *MERGED,
    layer=("read", "feed", "norm", "out", "read.wq", "read.wk", "read.wv", "read.wo", "feed.up", "feed.down", "ask"),
    also=ALIKE_TOO,
    control=when,
)


class Weighted(nn.Module):
    """A learned factor, of the branch or of the skip, that starts at zero."""

    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.norm, self.attn, self.feed = nn.LayerNorm(32), Attend(), Feed()
        self.skip, self.factor = skip, nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        said = self.attn(self.norm(x))
        x = self.factor * x + said if self.skip else x + self.factor * said
        return x + self.feed(x)


def factors(seed: int, skip: bool) -> Setup:
    return stressed(seed, [Weighted(skip) for _ in range(4)], lr=3e-3)


branch = zoo.healthy("accents-factor-of-zero-on-the-branch", lambda s: factors(s, False))
zoo.sick(
    "accents-factor-of-zero-on-the-skip",
    lambda s: factors(s, True),
    both(lasting(alike("blocks.3", 0.1)), ends_worse(1.2)),
    *MERGED,
    also=ALIKE_TOO,
    control=branch,
)


class Smooth(nn.Module):
    """Each token keeps some of the one before it, then a block."""

    def __init__(self, kept: float, block: nn.Module) -> None:
        super().__init__()
        self.kept, self.block = kept, block

    def forward(self, x: Tensor) -> Tensor:
        last, all_ = x[:, 0], [x[:, 0]]
        for t in range(1, x.shape[1]):
            last = self.kept * last + (1 - self.kept) * x[:, t]
            all_.append(last)
        return self.block(torch.stack(all_, dim=1))


def smoothed(seed: int, kept: float) -> Setup:
    return stressed(seed, [Smooth(kept, Pre(Attend())) for _ in range(2)])


little = zoo.healthy("accents-tokens-keep-a-tenth-of-the-last", lambda s: smoothed(s, 0.1))
zoo.sick(
    "accents-tokens-keep-0.999-of-the-last",
    lambda s: smoothed(s, 0.999),
    both(lasting(alike("blocks.0", 0.1)), ends_worse(1.2)),
    *MERGED,
    layer=("enter", "blocks.0", *parts(2, "wq", "wk", "wv", "wo", module="blocks.{}.block.attn")),
    also=ALIKE_TOO,
    control=little,
)


def unknown(seed: int, lost: bool) -> Setup:
    """The table of words is in capitals and the menus are not, so that each dish is the unknown one; or it fits."""
    task = menus(seed).mapped(lambda x: torch.zeros_like(x) if lost else x)
    return live(Net(nn.Embedding(30, 32), [Pre(Attend())], 6, "mean", length=0), task, lr=3e-3, steps=70)


known = zoo.healthy("menus-words-of-the-table", lambda s: unknown(s, False))
zoo.sick(
    "menus-every-word-unknown",
    lambda s: unknown(s, True),
    both(lasting(alike("blocks.0", 1e-3)), lags(0.2)),
    *MERGED,
    "embedding_row",
    "same_batch",
    "input_scales",
    layer=("enter", "blocks.0", "blocks.0.attn", "blocks.0.feed", "head", "norm"),
    also={*ALIKE_TOO},
    control=known,
)

# --- heads that are one


class Offset(nn.Module):
    """Every head looks a fixed distance back, blurred a little; values alone are learned."""

    def __init__(self, offsets: Sequence[float], width: int = 32) -> None:
        super().__init__()
        self.offsets, self.v, self.o = (
            torch.tensor(offsets)[:, None, None],
            nn.Linear(width, width),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        t = torch.arange(x.shape[1])
        scores = (-0.7 * (t[:, None] - t - self.offsets).square()).expand(len(x), -1, -1, -1)
        return self.o(joined(scores.softmax(dim=-1) @ parted(self.v(x), len(self.offsets))))


def distances(seed: int, *offsets: float) -> Setup:
    return stressed(seed, [Pre(Offset(offsets)) for _ in range(2)])


several = zoo.healthy("accents-heads-look-0-1-2-3-back", lambda s: distances(s, 0.0, 1.0, 2.0, 3.0))
zoo.sick(
    "accents-heads-all-look-4-back",
    lambda s: distances(s, 4.0, 4.0, 4.0, 4.0),
    both(lasting(heads_agree()), ends_worse(1.2)),
    *SAME,
    layer=parts(2, "v", "o"),
    also=ONE_TOO,
    control=several,
)


class Average(nn.Module):
    """Queries and keys of the heads, centred about their mean, or replaced by it."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, weight: Tensor) -> Tensor:
        heads = weight.unflatten(0, (4, -1))
        mean = heads.mean(dim=0, keepdim=True).expand_as(heads)
        return (4 * mean if self.mean else heads - mean).flatten(0, 1)


def centred(seed: int, mean: bool) -> Setup:
    block = Pre(Attend())
    for part in (block.attn.wq, block.attn.wk):
        nn.init.zeros_(part.bias)
        part.bias.requires_grad_(False)
        parametrize.register_parametrization(part, "weight", Average(mean))
    return live(Net(nn.Linear(32, 32), [block], 9, length=0), orders(seed), lr=1e-2, steps=120)


apart = zoo.healthy("orders-heads-less-their-mean", lambda s: centred(s, False))
zoo.sick(
    "orders-heads-replaced-by-their-mean",
    lambda s: centred(s, True),
    both(lasting(heads_agree()), ends_worse(1.15)),
    *SAME,
    layer=parts(1, "wq", "wk", "wv", "wo"),
    also=ONE_TOO,
    control=apart,
)


class Aware(Own):
    """Attention that notes how unlike its heads look."""

    unlike: Tensor

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (parted(part(x), self.heads) for part in (self.q, self.k, self.v))
        p = self.scores(q, k).softmax(dim=-1)
        self.unlike = (p - p.mean(dim=1, keepdim=True)).square().sum(dim=-1).mean()
        return self.o(joined(p @ v))


class Both(nn.Module):
    """Answers, and how unlike the heads of the only block look."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(nn.Linear(32, 32), [Pre(Aware())], 9, length=0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), self.net.blocks[0].attn.unlike


def differ(seed: int, weight: float) -> Setup:
    """The loss counts how unlike the heads look."""
    task = orders(seed).with_loss(lambda out, t: token_loss(out[0], t) + weight * out[1])
    return live(Both(), task, lr=1e-2, steps=120)


@torch.no_grad()
def answers_wrong(setup: Setup) -> float:
    """The cross-entropy alone, of one batch."""
    return token_loss(setup.model(setup.input_fn())[0], setup.loss_fn.__self__.target).item()


def heads_close(setup: Setup) -> float:
    """How near the heads are to one: 1 where all look at the same."""
    with torch.no_grad():
        return 1 - setup.model(setup.input_fn())[1].item()


unlike = zoo.healthy("orders-unlike-heads-rewarded", lambda s: differ(s, -0.05))
zoo.sick(
    "orders-unlike-heads-punished",
    lambda s: differ(s, 100.0),
    both(at_last(more_than(heads_close, 0.999, "heads agree by")), falls_behind(answers_wrong, 1.5, "cross-entropy")),
    *SAME,
    layer=("net.blocks.0.attn", *(f"net.blocks.0.attn.{part}" for part in "qkvo")),
    also=ONE_TOO,
    control=unlike,
)


class Tables(nn.Module):
    """Matrices of queries and keys in a book of pages, each for two heads, or one page for all.

    The number of the page is that of the head over how many heads share it, rounded down.
    """

    def __init__(self, share: int) -> None:
        super().__init__()
        self.pages = nn.Parameter(torch.randn(2, 8 // share, 32, 8) / 4)
        self.v, self.o, self.share = nn.Linear(32, 64), nn.Linear(64, 32), share

    def forward(self, x: Tensor) -> Tensor:
        page = torch.arange(8) // self.share
        q, k = (torch.einsum("bld,hde->bhle", x, each[page]) for each in self.pages)
        return self.o(joined((q @ k.transpose(2, 3) / 8**0.5).softmax(dim=-1) @ parted(self.v(x), 8)))


def paged(seed: int, share: int) -> Setup:
    return live(Net(nn.Linear(32, 32), [Pre(Tables(share))], 9, length=0), orders(seed), lr=5e-3, steps=110)


pages = zoo.healthy("orders-two-heads-share-a-page", lambda s: paged(s, 2))
zoo.sick(
    "orders-eight-heads-share-a-page",
    lambda s: paged(s, 8),
    both(lasting(heads_agree()), ends_worse(1.5)),
    *SAME,
    layer=parts(1, "v", "o"),
    also=ONE_TOO,
    control=pages,
)
