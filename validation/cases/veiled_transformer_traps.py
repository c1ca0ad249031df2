# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Attention that only looks odd: sharp because the task wants it, masked, local, linear, frozen, alike for a reason.

Half: veiled.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._veiled_tasks import flocks, lockers, menus, reels, tiles, turns
from validation.cases.veiled_transformer import Block, Einsum, Fused, Net
from validation.evidence import thrives
from validation.setups import frozen, live, pretrain
from validation.tasks import token_loss

zoo = Zoo("transformer", half="veiled", analyzer="transformer", proof=thrives())
D, H = 32, 4


class Lookup(nn.Module):
    """The last of the row asks the others, by fixed parts of what they hold; sharp, for only one has the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False), nn.Linear(5, 16)
        self.out = nn.Linear(16, 5)
        for layer in (self.q, self.k):
            nn.init.eye_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q(x[:, -1:, :12]), self.k(x[:, :-1, :12])
        p = (q @ k.transpose(1, 2)).softmax(dim=-1)
        return self.out(F.gelu(p @ self.v(x[:, :-1, 12:]))[:, 0])


zoo.healthy("lockers-one-place-has-the-answer", lambda s: live(Lookup(), lockers(s), lr=1e-2, steps=60))


class Memory(nn.Module):
    """A memory network: two hops over the lockers, by dot products of what was found so far."""

    def __init__(self) -> None:
        super().__init__()
        self.ask, self.keys, self.values = nn.Linear(17, D), nn.Linear(17, D), nn.Linear(17, D)
        self.out = nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        u, keys, values = self.ask(x[:, -1]), self.keys(x[:, :-1]), self.values(x[:, :-1])
        for _ in range(2):
            p = torch.einsum("bd,bkd->bk", u, keys).softmax(dim=1)
            u = u + torch.einsum("bk,bkd->bd", p, values)
        return self.out(u)


zoo.healthy("lockers-two-hops", lambda s: live(Memory(), lockers(s), lr=1e-2, steps=90), thrives(0.05))


class Pointer(nn.Module):
    """Says at which place the largest first number stands, by scores of the places themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.mix = nn.Linear(8, D), nn.MultiheadAttention(D, H, batch_first=True)
        self.ln, self.score = nn.LayerNorm(D), nn.Linear(D, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        x = self.ln(x + self.mix(x, x, x, need_weights=False)[0])
        return self.score(x).squeeze(2)


def pointed(seed: int) -> Setup:
    task = flocks(seed).changed(lambda x, _t: (x, x[:, :, 0].argmax(dim=1))).with_loss(F.cross_entropy)
    return live(Pointer(), task, lr=5e-3, steps=60)


zoo.healthy("flocks-points-at-the-largest", pointed)


class Local(nn.Module):
    """Each place sees itself and its neighbours only, by a mask."""

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        at = torch.arange(8)
        self.register_buffer("near", (at[:, None] - at).abs() <= reach)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=self.near).transpose(1, 2).flatten(2))


def worded(seed: int, blocks: list[nn.Module], **more) -> Setup:
    model = Net(nn.Embedding(8, D), blocks, 8, 8, each=True)
    return live(model, turns(seed), **{"lr": 5e-3, "steps": 60, **more})


zoo.healthy("turns-only-neighbours", lambda s: worded(s, [Block(Local(1)), Block(Local(1))]), thrives(0.1))


class Kernel(nn.Module):
    """Attention without a softmax, by features of one above an ELU."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (H, -1)) for layer in (self.q, self.k, self.v))
        q, k = 1 + F.elu(q), 1 + F.elu(k)
        what = torch.einsum("bkhd,bkhe->bhde", k, v)
        total = torch.einsum("bqhd,bhd->bqh", q, k.sum(dim=1))
        return self.o((torch.einsum("bqhd,bhde->bqhe", q, what) / total[..., None]).flatten(2))


def flown(seed: int, blocks: list[nn.Module], **more) -> Setup:
    return live(Net(nn.Linear(8, D), blocks, 5), flocks(seed), **{"lr": 3e-3, "steps": 40, **more})


zoo.healthy("flocks-kernel-attention", lambda s: flown(s, [Block(Kernel()) for _ in range(2)]))


class Mixing(nn.Module):
    """A dense layer over the places in the stead of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 24), nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x.transpose(1, 2)))).transpose(1, 2)


zoo.healthy("turns-places-mixed-by-a-dense-layer", lambda s: worded(s, [Block(Mixing()) for _ in range(2)]))


class Waves(nn.Module):
    """The real part of a Fourier transform over places and features, with nothing to learn."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft2(x).real / math.sqrt(x.shape[1] * x.shape[2])


zoo.healthy("flocks-mixed-by-a-fourier-transform", lambda s: flown(s, [Block(Waves()) for _ in range(2)]))


class Rotary(Einsum):
    """Queries and keys turned by their place."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        half = q.shape[-1] // 2
        angle = torch.arange(q.shape[1])[:, None, None] * 10 ** -torch.linspace(0, 2, half)
        cos, sin = angle.cos(), angle.sin()

        def turn(t: Tensor) -> Tensor:
            a, b = t.chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

        return super().score(turn(q), turn(k))


zoo.healthy("turns-rotary", lambda s: worded(s, [Block(Rotary()) for _ in range(2)]))


class Grouped(nn.Module):
    """Four heads of queries share two of keys and values; causal, with slopes by distance."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.register_buffer("slope", 2.0 ** -torch.arange(1, 5).float()[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2).repeat_interleave(2, 1) for t in self.kv(x).chunk(2, dim=-1))
        at = torch.arange(x.shape[1])
        far = (at[:, None] - at).float()
        scores = q @ k.transpose(-1, -2) / math.sqrt(8) - self.slope * far.clamp_min(0)
        scores = scores.masked_fill(far < 0, float("-inf"))
        return self.o((F.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))


def tuned(seed: int, blocks: list[nn.Module], **more) -> Setup:
    model = Net(nn.Embedding(12, D), blocks, 12, 12, each=True)
    return live(model, reels(seed), **{"lr": 3e-3, "steps": 60, **more})


zoo.healthy("reels-grouped-queries-with-slopes", lambda s: tuned(s, [Block(Grouped()) for _ in range(2)]))
zoo.healthy(
    "reels-warm-up-then-cosine-to-zero",
    lambda s: tuned(
        s,
        [Block(Fused(causal=True)) for _ in range(2)],
        lr=8e-3,
        steps=90,
        clip=1.0,
        rate=lambda i: min(i / 15, 0.5 + 0.5 * math.cos(math.pi * i / 90)),
    ),
)


def quiet(seed: int) -> Setup:
    """What each block adds begins at nothing, as is usual for deep ones."""
    blocks = [Block(Fused()) for _ in range(4)]
    for block in blocks:
        for layer in (block.mix.wo, block.down):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
    return flown(seed, blocks)


zoo.healthy("flocks-branches-begin-at-nothing", quiet)


def tied(seed: int) -> Setup:
    """The table of words is read backwards for the answer."""
    model = Net(nn.Embedding(12, D), [Block(Fused(causal=True)) for _ in range(2)], 12, 12, each=True)
    nn.init.normal_(model.stem.weight, std=0.3)
    model.head.weight = model.stem.weight
    return live(model, reels(seed), lr=3e-3, steps=70)


zoo.healthy("reels-tied-table", tied)


class Hidden(nn.Module):
    """An encoder of torch guesses the words that are hidden from it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.pos = nn.Embedding(13, D), nn.Parameter(0.5 * torch.randn(12, D))
        layer = nn.TransformerEncoderLayer(D, H, 64, 0.1, batch_first=True, norm_first=True, activation="gelu")
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(D, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.table(tokens) + self.pos))


def masked(seed: int) -> Setup:
    coin = torch.Generator().manual_seed(seed + 77)

    def hide(tokens: Tensor, _t: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.rand(tokens.shape, generator=coin) < 0.2
        hidden[:, 3] = True
        return tokens.masked_fill(hidden, 12), tokens.masked_fill(~hidden, -100)

    return live(Hidden(), reels(seed).changed(hide).with_loss(token_loss), lr=5e-3, steps=100)


zoo.healthy("reels-hidden-words", masked, thrives(0.05))


class Patches(nn.Module):
    """A small vision transformer with a class token, drop-out and layers of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.cls = nn.Conv2d(1, D, 5, stride=5), nn.Parameter(torch.zeros(1, 1, D))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 5, D))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(D, H, 64, 0.1, batch_first=True) for _ in range(2))
        self.head = nn.Linear(D, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


zoo.healthy("tiles-class-token-post-norm", lambda s: live(Patches(), tiles(s), lr=3e-3, steps=70), thrives(0.05))


def adapted(seed: int) -> Setup:
    """A net that was trained for other menus is frozen; only norms and the head are learned."""
    model = Net(nn.Embedding(30, D), [Block(Fused()) for _ in range(2)], 5, 10)
    pretrain(live(model, menus(seed + 40)), 30)
    frozen(model, "stem", "pos", *(f"blocks.{i}.{part}" for i in range(2) for part in ("mix", "up", "down")))
    return live(model, menus(seed), lr=2e-2, steps=60)


zoo.healthy("menus-norms-and-head-only", adapted)


class LowRank(nn.Module):
    """A frozen layer with a correction of rank 2 beside it, which begins at nothing."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a, self.b = nn.Linear(layer.in_features, 2, bias=False), nn.Linear(2, layer.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 4 * self.b(self.a(x))


def corrected(seed: int) -> Setup:
    model = Net(nn.Embedding(30, D), [Block(Fused()) for _ in range(2)], 5, 10)
    pretrain(live(model, menus(seed + 40)), 30)
    model.requires_grad_(False)
    for block in model.blocks:
        block.mix.wq, block.mix.wkv, block.up = (LowRank(layer) for layer in (block.mix.wq, block.mix.wkv, block.up))
    model.head.requires_grad_(True)
    return live(model, menus(seed), lr=1e-2, steps=60)


zoo.healthy("menus-corrections-of-rank-2", corrected)


class Translator(nn.Module):
    """Torch's own encoder and decoder; the decoder sees what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(8, D), nn.Embedding(9, D)
        self.pos = nn.Parameter(torch.randn(8, D))
        self.body = nn.Transformer(D, H, 1, 1, 64, 0.0, batch_first=True)
        self.out = nn.Linear(D, 8)

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(8)
        y = self.body(self.source(source) + self.pos, self.target(before) + self.pos, tgt_mask=mask)
        return self.out(y)


def translated(seed: int) -> Setup:
    def shifted(x: Tensor, t: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (x, F.pad(t[:, :-1], (1, 0), value=8)), t

    return live(Translator(), turns(seed).changed(shifted), lr=3e-3, steps=60)


zoo.healthy("turns-encoder-and-decoder-of-torch", translated)


class Gated(nn.Module):
    """Multiple-instance pooling: a tanh and a sigmoid say together how much each bird counts."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.tanh, self.gate = nn.Linear(8, D), nn.Linear(D, 16), nn.Linear(D, 16)
        self.score, self.head = nn.Linear(16, 1, bias=False), nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.enter(x))
        p = torch.softmax(self.score(torch.tanh(self.tanh(h)) * torch.sigmoid(self.gate(h))), dim=1)
        return self.head((p * h).sum(dim=1))


zoo.healthy("flocks-gated-pooling", lambda s: live(Gated(), flocks(s), lr=5e-3, steps=50))


class Padded(nn.Module):
    """Menus of any length: what lies behind the end is hidden by torch's mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(31, D, padding_idx=30)
        self.layer = nn.TransformerEncoderLayer(D, H, 64, 0.1, batch_first=True)
        self.head = nn.Linear(D, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        gone = tokens == 30
        x = self.layer(self.table(tokens), src_key_padding_mask=gone).masked_fill(gone[..., None], 0.0)
        return self.head(x.sum(dim=1) / (~gone).sum(dim=1, keepdim=True))


def cut_short(seed: int) -> Setup:
    def end(tokens: Tensor) -> Tensor:
        length = 4 + torch.arange(len(tokens)) % 7
        return tokens.masked_fill(torch.arange(10) >= length[:, None], 30)

    return live(Padded(), menus(seed).mapped(end), lr=5e-3, steps=60)


zoo.healthy("menus-of-any-length", cut_short)
