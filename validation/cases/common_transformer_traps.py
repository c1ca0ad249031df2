# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers as people write them, some of them a little unusual, that train well.

Half: common.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import (
    WORDS,
    Attend,
    Feed,
    Net,
    Patches,
    Post,
    Pre,
    alarms,
    baskets,
    boxes,
    citations,
    dates,
    entities,
    marks,
    modes,
    motors,
    phonebook,
    questions,
    sees,
    segments,
    sentences,
    spam,
    speaks,
)
from validation.evidence import thrives
from validation.setups import frozen, live
from validation.tasks import Task, token_loss

zoo = Zoo("transformer", half="common", analyzer="transformer", proof=thrives(0.15))


def causal(depth: int = 2, width: int = 32, heads: int = 4, **more) -> list[nn.Module]:
    return [Pre(Attend(width, heads, causal=True), width, **more) for _ in range(depth)]


def both_ways(depth: int = 2, **more) -> list[nn.Module]:
    return [Pre(Attend(), **more) for _ in range(depth)]


# --- ordinary trainings

zoo.healthy("words-gpt-3x32", lambda s: speaks(s, causal(3)))
zoo.healthy("words-gpt-2x48-six-heads", lambda s: speaks(s, causal(2, 48, 6), width=48))
zoo.healthy("words-gpt-rms-norms", lambda s: speaks(s, causal(norm=nn.RMSNorm)))
zoo.healthy("words-gpt-dropout-0.5-in-the-dense-half", lambda s: speaks(s, causal(drop=0.5)))
zoo.healthy("words-gpt-weight-decay-0.3", lambda s: speaks(s, causal(), weight_decay=0.3))
zoo.healthy("words-gpt-clipped-at-0.1", lambda s: speaks(s, causal(), clip=0.1))
zoo.healthy("words-gpt-sgd-momentum", lambda s: speaks(s, causal(), kind="SGD", lr=0.1, momentum=0.9))
zoo.healthy("words-gpt-nadam", lambda s: speaks(s, causal(), kind="NAdam", lr=2e-3))
zoo.healthy(
    "words-post-norm-warm-up-by-the-root",
    lambda s: speaks(
        s,
        [Post(Attend(causal=True)) for _ in range(3)],
        lr=0.02,
        rate=lambda t: min((t + 1) ** -0.5, (t + 1) / 15**1.5),
    ),
)
zoo.healthy(
    "words-gpt-cosine-to-zero",
    lambda s: speaks(s, causal(), lr=5e-3, rate=lambda t: 0.5 + 0.5 * math.cos(math.pi * min(t, 60) / 60)),
)
zoo.healthy(
    "words-gpt-batches-of-2",
    lambda s: live(Net(nn.Embedding(WORDS, 32), causal(), WORDS), sentences(s, batch=2), lr=2e-3, steps=100),
)
zoo.healthy("words-gpt-frozen-embedding", lambda s: frozen_words(s))


def frozen_words(seed: int) -> Setup:
    model = frozen(Net(nn.Embedding(WORDS, 32), causal(), WORDS), "enter")
    return live(model, sentences(seed), lr=3e-3, steps=60)


class Tied(nn.Module):
    """The table of words is the head as well; drawn small, as in GPT-2."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, 32), nn.Embedding(32, 32)
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(32)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.wte.weight.T


zoo.healthy("words-gpt-tied-drawn-with-0.02", lambda s: live(Tied(causal()), sentences(s), lr=5e-3, steps=60))


def smooth(z: Tensor, target: Tensor) -> Tensor:
    """Label smoothing, and a small penalty on the log of the sum, as PaLM had."""
    z = z.flatten(0, 1)
    return F.cross_entropy(z, target.flatten(), label_smoothing=0.1) + 1e-4 * z.logsumexp(dim=-1).square().mean()


zoo.healthy(
    "words-gpt-smoothed-labels-z-loss",
    lambda s: live(Net(nn.Embedding(WORDS, 32), causal(), WORDS), sentences(s).with_loss(smooth), lr=3e-3, steps=60),
)

# --- attention of other kinds


class Window(Attend):
    """Each token sees itself and the three before it."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        place = torch.arange(x.shape[1])
        near = (place[:, None] >= place) & (place[:, None] - place < 4)
        q, k, v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        return self.wo(F.scaled_dot_product_attention(q, k, v, attn_mask=near).transpose(1, 2).flatten(2))


class Linear(Attend):
    """Linear attention with elu + 1, over all tokens."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        mixed = q @ (k.transpose(2, 3) @ v) / (q @ k.sum(dim=2)[..., None] + 1e-6)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class Cosine(Attend):
    """Unit queries and keys, and a temperature per head that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((4, 1, 1), math.log(10.0)))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        q, k = (F.normalize(self.split(part(x)), dim=-1) for part in (self.wq, self.wk))
        weight = torch.softmax(q @ k.transpose(2, 3) * self.log_scale.exp().clamp(max=100.0), dim=-1)
        return self.wo((weight @ self.split(self.wv(x))).transpose(1, 2).flatten(2))


class Rotary(Attend):
    """Queries and keys turned by their place."""

    def turn(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[2])[:, None] * 100.0 ** (-torch.arange(half) / half)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        q, k, v = self.turn(self.split(self.wq(x))), self.turn(self.split(self.wk(x))), self.split(self.wv(x))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class OneKey(nn.Module):
    """Many heads of queries, one of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = (part[:, None].expand(-1, 4, -1, -1) for part in self.kv(x).chunk(2, dim=-1))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Sigmoid(Attend):
    """Sigmoids in place of the softmax, shifted by the log of the length."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        weight = torch.sigmoid(q @ k.transpose(2, 3) / 8**0.5 - math.log(x.shape[1]))
        return self.wo((weight @ v).transpose(1, 2).flatten(2))


class Sparse(Attend):
    """Only the four largest scores of a row count."""

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        scores = q @ k.transpose(2, 3) / 8**0.5
        least = scores.topk(4, dim=-1).values[..., -1:]
        weight = torch.softmax(scores.masked_fill(scores < least, -math.inf), dim=-1)
        return self.wo((weight @ v).transpose(1, 2).flatten(2))


class Mixed(nn.Module):
    """No attention: places mixed by a dense layer, as in an MLP-Mixer."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(length, 24), nn.GELU(), nn.Linear(24, length))

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x.transpose(1, 2)).transpose(1, 2)


zoo.healthy("words-window-of-four", lambda s: speaks(s, [Pre(Window()) for _ in range(2)]))
zoo.healthy("names-linear-attention", lambda s: marks(s, [Pre(Linear()) for _ in range(2)]))
zoo.healthy("names-cosines-learned-temperature", lambda s: marks(s, [Pre(Cosine()) for _ in range(2)]))
zoo.healthy("names-four-best-scores", lambda s: marks(s, [Pre(Sparse()) for _ in range(2)]))
zoo.healthy("names-sigmoid-attention", lambda s: marks(s, [Pre(Sigmoid()) for _ in range(2)]))
zoo.healthy("words-one-key-for-many-queries", lambda s: speaks(s, [Pre(OneKey()) for _ in range(2)]))
zoo.healthy("digits-places-mixed", lambda s: sees(s, [Pre(Mixed(16)) for _ in range(2)]))
zoo.healthy(
    "words-rotary-no-other-places",
    lambda s: live(
        Net(nn.Embedding(WORDS, 32), [Pre(Rotary(causal=True)) for _ in range(2)], WORDS, length=0),
        sentences(s),
        lr=3e-3,
        steps=60,
    ),
)


class Parallel(nn.Module):
    """Attention and dense half side by side on one norm, as in GPT-J."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn, self.feed = nn.LayerNorm(32), Attend(causal=True), Feed()

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.attn(h) + self.feed(h)


class SwiGlu(nn.Module):
    """A gated dense half."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.up, self.down = (
            nn.RMSNorm(32),
            nn.Linear(32, 48),
            nn.Linear(32, 48),
            nn.Linear(48, 32),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class DropPath(nn.Module):
    """Leaves a whole branch out for some samples."""

    def __init__(self, inner: nn.Module, chance: float) -> None:
        super().__init__()
        self.inner, self.chance = inner, chance

    def forward(self, x: Tensor) -> Tensor:
        keep = (torch.rand(len(x), 1, 1) >= self.chance) / (1 - self.chance) if self.training else 1.0
        return keep * self.inner(x)


zoo.healthy("words-branches-side-by-side", lambda s: speaks(s, [Parallel() for _ in range(2)]))
zoo.healthy("words-gated-dense-half", lambda s: speaks(s, [*causal(1), SwiGlu(), *causal(1), SwiGlu()]))
zoo.healthy("digits-branches-left-out-at-random", lambda s: sees(s, [Pre(DropPath(Attend(), 0.3)) for _ in range(3)]))
zoo.healthy("names-six-blocks-drawn-with-0.02", lambda s: marks(s, drawn(both_ways(6)), steps=40))


@torch.no_grad()
def drawn(blocks: list[nn.Module]) -> list[nn.Module]:
    """Every matrix with 0.02, biases of zero, as GPT-2 does."""
    for block in blocks:
        for name, weight in block.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.02)
            elif name.endswith("bias"):
                weight.zero_()
    return blocks


# --- looks that have to be sharp

zoo.healthy(
    "modes-all-look-at-the-first-token",
    lambda s: live(Net(nn.Embedding(11, 32), both_ways(1), 4), modes(s), lr=5e-3, steps=100),
    thrives(0.5),
)


class Rewriter(nn.Module):
    """torch's own transformer under teacher forcing; solved when each place looks at one other."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(9, 32), nn.Embedding(10, 32)
        self.place = nn.Parameter(0.5 * torch.randn(1, 5, 32))
        layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=True)
        encoder = nn.TransformerEncoder(layer, 1, nn.LayerNorm(32), enable_nested_tensor=False)
        self.body = nn.Transformer(32, 2, 1, 1, 64, 0.0, custom_encoder=encoder, batch_first=True, norm_first=True)
        self.out = nn.Linear(32, 9)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        return self.out(self.body(self.source(source) + self.place, self.target(shifted) + self.place, tgt_mask=mask))


zoo.healthy("dates-torch-transformer-solved", lambda s: live(Rewriter(), dates(s), lr=5e-3, steps=100), thrives(0.5))


class Lookup(nn.Module):
    """One head finds the fact that is asked for; its answer is that fact's value."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.ask, self.facts = nn.Linear(12, 32), nn.Linear(24, 32)
        self.look, self.out = nn.MultiheadAttention(32, heads, batch_first=True), nn.Linear(32, 6)

    def forward(self, question: Tensor, facts: Tensor) -> Tensor:
        memory = self.facts(facts)
        return self.out(self.look(self.ask(question), memory, memory, need_weights=False)[0][:, 0])


zoo.healthy("facts-one-head-finds-the-one", lambda s: live(Lookup(1), questions(s), lr=1e-2, steps=100), thrives(0.4))
zoo.healthy("facts-four-heads-find-the-one", lambda s: live(Lookup(4), questions(s), lr=1e-2, steps=100), thrives(0.4))


def hops(seed: int) -> Setup:
    model = Net(nn.Embedding(16, 32), both_ways(2), 8, "last")
    return live(model, phonebook(seed, 8, 2), lr=5e-3, steps=120)


zoo.healthy("phonebook-of-two-by-two-blocks", hops, thrives(0.1))

# --- pictures, sets, graphs, readings


class Vit(nn.Module):
    """A learned first token and torch's encoder; read at that token."""

    def __init__(self, depth: int = 2, drop: float = 0.0) -> None:
        super().__init__()
        self.patch, self.cls = Patches(), nn.Parameter(0.02 * torch.randn(1, 1, 32))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, drop, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, nn.LayerNorm(32), enable_nested_tensor=False)
        self.head = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.cls.expand(len(x), -1, -1), self.patch(x)], dim=1) + self.place
        return self.head(self.body(x)[:, 0])


zoo.healthy("digits-torch-encoder-first-token", lambda s: live(Vit(), segments(s), lr=3e-3, steps=60))
zoo.healthy("digits-torch-encoder-dropout-0.2", lambda s: live(Vit(drop=0.2), segments(s), lr=3e-3, steps=60))


def tuned(seed: int) -> Setup:
    """Only the norms, the first token and the head learn."""
    model = Vit()
    for name, weight in model.named_parameters():
        weight.requires_grad_("norm" in name or name.startswith(("head", "cls")))
    return live(model, segments(seed), lr=1e-2, steps=60)


zoo.healthy("digits-norms-first-token-and-head-tuned", tuned, thrives(0.1))


class Rebuilt(nn.Module):
    """Half of the patches are hidden; a light decoder paints them, as in masked auto-encoders."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.place = nn.Linear(9, 32), nn.Parameter(0.3 * torch.randn(1, 16, 32))
        self.hidden, self.encoder, self.decoder = nn.Parameter(torch.zeros(32)), Pre(Attend()), Pre(Attend())
        self.out = nn.Linear(32, 9)

    def forward(self, tiles: Tensor) -> Tensor:
        shown = torch.arange(0, 16, 2)
        seen = self.encoder(self.enter(tiles[:, shown]) + self.place[:, shown])
        full = self.hidden.expand(len(tiles), 16, -1).clone()
        full[:, shown] = seen
        return self.out(self.decoder(full + self.place))[:, 1::2]


def painted(seed: int) -> Setup:
    task = segments(seed, noise=0.1).changed(lambda x, _: (F.unfold(x, 3, stride=3).transpose(1, 2),) * 2)
    return live(Rebuilt(), task.with_loss(lambda y, x: F.mse_loss(y, x[:, 1::2])), lr=3e-3, steps=80)


zoo.healthy("digits-hidden-half-painted", painted)


class SetNet(nn.Module):
    """Items without places, gathered by a learned seed."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.blocks = nn.Embedding(10, 32), nn.ModuleList(both_ways(2))
        self.seed, self.gather, self.out = nn.Parameter(torch.randn(1, 1, 32)), Attend(), nn.Linear(32, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens)
        for block in self.blocks:
            x = block(x)
        return 8 * self.out(self.gather(self.seed.expand(len(x), -1, -1), x)[:, 0])


zoo.healthy("baskets-gathered-by-a-seed", lambda s: live(SetNet(), baskets(s), lr=3e-3, steps=80))


class Induced(nn.Module):
    """Items read by four learned points, and these by the items, as in a set transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.points = nn.Embedding(10, 32), nn.Parameter(torch.randn(1, 4, 32))
        self.up, self.down, self.norm, self.out = Attend(), Attend(), nn.LayerNorm(32), nn.Linear(32, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens)
        points = self.points.expand(len(x), -1, -1)
        points = points + self.up(points, x)
        x = self.norm(x + self.down(x, points))
        return self.out(F.gelu(x)).sum(dim=1)


zoo.healthy("baskets-by-four-learned-points", lambda s: live(Induced(), baskets(s), lr=3e-3, steps=80))


class Graph(nn.Module):
    """Attention along links only, beside a skip, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(12, 32), nn.Linear(32, 4)
        self.attn = nn.ModuleList(nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        h = self.enter(x)
        mask = (~link).repeat_interleave(4, dim=0)
        for attn, norm in zip(self.attn, self.norms, strict=True):
            n = norm(h)
            h = h + attn(n, n, n, attn_mask=mask, need_weights=False)[0]
        return self.out(h)


zoo.healthy("papers-attention-along-links", lambda s: live(Graph(), citations(s), lr=3e-3, steps=50))


def forecast(seed: int, blocks: list[nn.Module], task: Task | None = None, out: int = 2, **more) -> Setup:
    return live(Net(nn.Linear(2, 32), blocks, out), task or motors(seed, 16), **{"lr": 3e-3, "steps": 50, **more})


def gaussian(z: Tensor, target: Tensor) -> Tensor:
    middle, log = z.chunk(2, dim=-1)
    return 3 + (0.5 * ((target - middle) * torch.exp(-log)).square() + log).mean()


zoo.healthy("motors-causal-forecast", lambda s: forecast(s, causal()))
zoo.healthy("motors-causal-likelihood", lambda s: forecast(s, causal(), motors(s, 16).with_loss(gaussian), 4))
zoo.healthy(
    "noises-convolution-then-encoder",
    lambda s: live(
        Net(
            nn.Sequential(Turned(), nn.Conv1d(2, 32, 3), nn.BatchNorm1d(32), nn.GELU(), Turned()),
            both_ways(1),
            4,
            "mean",
        ),
        alarms(s),
        lr=3e-3,
        steps=50,
    ),
)


class Turned(nn.Module):
    """Swaps channels and time."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Queries(nn.Module):
    """Three learned queries, read by a torch decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.place = Patches(), nn.Parameter(0.5 * torch.randn(1, 16, 32))
        self.slots, self.out = nn.Parameter(torch.randn(1, 3, 32)), nn.Linear(32, 1)
        self.layers = nn.ModuleList(nn.TransformerDecoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        memory, slots = self.patch(x) + self.place, self.slots.expand(len(x), -1, -1)
        for layer in self.layers:
            slots = layer(slots, memory)
        return self.out(slots)[..., 0]


zoo.healthy("spots-queries-by-torch-decoder-layers", lambda s: live(Queries(), boxes(s), lr=3e-3, steps=80))


class Padded(nn.Module):
    """Mails under a padding mask; mean over words, dropout before the head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = (
            nn.Embedding(30, 32, padding_idx=0),
            nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True),
        )
        self.drop, self.out = nn.Dropout(0.3), nn.Linear(32, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        blank = tokens == 0
        h = self.layer(self.words(tokens), src_key_padding_mask=blank).masked_fill(blank[..., None], 0.0)
        return self.out(self.drop(h.sum(dim=1) / lengths[:, None]))


zoo.healthy("mails-padding-mask-dropout", lambda s: live(Padded(), spam(s), lr=2e-3, steps=50))


class Experts(nn.Module):
    """A dense half of four experts of which each token takes the two best."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(32), nn.Linear(32, 4, bias=False)
        self.experts = nn.ModuleList(Feed() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        scores = self.gate(h)
        best = scores.topk(2, dim=-1)
        share = torch.full_like(scores, -math.inf).scatter(-1, best.indices, best.values).softmax(dim=-1)
        return x + sum(share[..., i : i + 1] * expert(h) for i, expert in enumerate(self.experts))


zoo.healthy("names-two-of-four-experts", lambda s: marks(s, [*both_ways(1), Experts()]))


class Two(nn.Module):
    """One encoder, two answers: the marks, and the word itself when it is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.marks, self.words = (
            Net(nn.Embedding(21, 32), both_ways(), 32),
            nn.Linear(32, 3),
            nn.Linear(32, 20),
        )

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        h = F.gelu(self.body(tokens))
        return self.marks(h), self.words(h)


def twofold(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
    return token_loss(output[0], target[0]) + 0.3 * token_loss(output[1], target[1])


def marked(seed: int) -> Setup:
    """One word in seven is hidden."""

    def hide(tokens: Tensor, label: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden = tokens.clone()
        hidden[:, ::7] = 20
        return hidden, (label, tokens)

    return live(Two(), entities(seed).changed(hide).with_loss(twofold), lr=3e-3, steps=60)


zoo.healthy("names-and-hidden-words-two-answers", marked)
