# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers that train well and look odd.

Half: live.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from validation.case import Setup, Zoo
from validation.cases.live_transformer import Fused, Induced, Patches, reader, vit
from validation.evidence import thrives
from validation.nets.attention import torch_layers
from validation.nets.programs import Einsum, Gpt, Layer, Reader, of_object
from validation.setups import live
from validation.tasks import brackets, copying, heaps, lookups, markov, patches, strokes, token_loss

zoo = Zoo("transformer", half="live", analyzer="transformer", proof=thrives())


def language(seed: int, layers: list[nn.Module], width: int = 32, batch: int = 12, **more) -> Setup:
    return live(
        Gpt(16, width, layers), markov(seed, 16, 12, batch).with_loss(of_object(token_loss)), **{"lr": 2e-3, **more}
    )


# --- attention that is sharp, even or banded, and right


def previous(seed: int) -> Setup:
    """One head looks sharply at the place `length + 1` back, which is where the copy comes from."""
    return live(Gpt(11, 32, [Back(32, 7), Layer(Einsum(32, 4, causal=True), 32)]), copying(seed).with_loss(_copied))


def _copied(output, target: Tensor) -> Tensor:
    return token_loss(output.logits[:, 6:], target[:, 6:])


class Back(nn.Module):
    """Attends by position alone, nearly all to one place some steps back."""

    def __init__(self, width: int, back: int) -> None:
        super().__init__()
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        place = torch.arange(32)
        self.bias = nn.Parameter(-2.0 * (place[:, None] - back + 1 - place).abs().clamp_max(6).float())

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        scores = self.bias[:n, :n].masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        return x + self.out(scores.softmax(dim=-1) @ self.value(x))


zoo.healthy("copy-by-one-sharp-place", previous, thrives(0.3))


class Pointer(nn.Module):
    """A key asks among keys: the score is right from the start, values and answer are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16, bias=False) for _ in range(3))
        self.out = nn.Linear(16, 8)
        for part in (self.q, self.k):
            part.weight.data = 2.0 * torch.eye(16)

    def forward(self, x: Tensor) -> Tensor:
        keys, values = x.chunk(2, dim=-1)
        q, k, v = self.q(keys[:, -1:])[:, None], self.k(keys[:, :-1])[:, None], self.v(values[:, :-1])[:, None]
        return self.out(F.scaled_dot_product_attention(q, k, v)[:, 0, 0])


zoo.healthy("lookups-pointer-sharp-and-right", lambda s: live(Pointer(), lookups(s), lr=1e-2, steps=60), thrives(0.4))
zoo.healthy(
    "counts-need-no-focus",
    lambda s: live(
        Reader(24, 32, [Layer(Einsum(32, 4, scale=0.02), 32) for _ in range(2)], 6), patches(s, batch=16), lr=1e-3
    ),
)


class Window(nn.Module):
    """Each token sees its two neighbours on either side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1])
        far = (place[:, None] - place).abs() > 2
        return self.attn(x, x, x, attn_mask=far, need_weights=False)[0]


zoo.healthy("vit-window-of-five", lambda s: vit(s, [Layer(Window(32), 32) for _ in range(2)], lr=3e-3), thrives(0.05))


class Rotary(nn.Module):
    """Turned queries and keys, and two groups of keys for six heads."""

    def __init__(self, width: int, heads: int = 6, groups: int = 2) -> None:
        super().__init__()
        self.size = width // heads
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))

    def turn(self, x: Tensor) -> Tensor:
        half = self.size // 2
        angle = torch.arange(x.shape[2])[:, None] / 100 ** (torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for p in (self.wq, self.wk, self.wv))
        mixed = F.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class Llama(nn.Module):
    """RMS norms, rotary attention of grouped keys, a gated feed-forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.n1, self.n2, self.attn = nn.RMSNorm(width), nn.RMSNorm(width), Rotary(width)
        self.w1, self.w3 = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.n1(x))
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


zoo.healthy("llama-like-grouped-keys-2x36", lambda s: language(s, [Llama(36) for _ in range(2)], 36))
zoo.healthy(
    "llama-like-warmed-up-and-clipped",
    lambda s: language(s, [Llama(36) for _ in range(2)], 36, lr=4e-3, clip=1.0, rate=lambda t: min(1, (t + 1) / 20)),
)
zoo.healthy("reader-one-key-for-six-heads", lambda s: reader(s, groups=1))


class Linearised(nn.Module):
    """Attention without a softmax: elu(q) + 1 and elu(k) + 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return self.proj(q @ (k.transpose(1, 2) @ v) / (q @ k.sum(dim=1)[..., None]))


zoo.healthy(
    "heaps-linear-attention-2x32",
    lambda s: live(Reader(6, 32, [Layer(Linearised(32), 32) for _ in range(2)], 6), heaps(s)),
)

# --- starts, norms, depth


class Scaled(nn.Module):
    """Branches behind a learned scale that starts at next to nothing, or at nothing."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.n1, self.n2, self.attn = nn.LayerNorm(width), nn.LayerNorm(width), Einsum(width, 4)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.g1, self.g2 = (nn.Parameter(torch.full((width,), start)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.g1 * self.attn(self.n1(x))
        return x + self.g2 * self.down(F.gelu(self.up(self.n2(x))))


zoo.healthy(
    "patches-layer-scale-from-1e-6",
    lambda s: live(Reader(24, 32, [Scaled(32, 1e-6) for _ in range(3)], 6), patches(s, batch=16), lr=3e-3),
)
zoo.healthy(
    "patches-layer-scale-from-0",
    lambda s: live(Reader(24, 32, [Scaled(32, 0.0) for _ in range(3)], 6), patches(s, batch=16), lr=3e-3),
)


def from_zero(depth: int) -> list[nn.Module]:
    layers = [Layer(Einsum(32, 4, causal=True), 32) for _ in range(depth)]
    for layer in layers:
        for last in (layer.attn.proj, layer.c_proj):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
    return layers


zoo.healthy("gpt-branches-from-zero-3x32", lambda s: language(s, from_zero(3)))
zoo.healthy(
    "patches-encoder-pre-norm-8x24",
    lambda s: live(Reader(24, 24, torch_layers(8, 24, norm_first=True), 6), patches(s, batch=12), lr=1e-3, steps=30),
)
zoo.healthy(
    "patches-encoder-dropout-0.5",
    lambda s: live(Reader(24, 32, torch_layers(2, dropout=0.5), 6), patches(s, batch=16), lr=2e-3, steps=60),
)
zoo.healthy(
    "patches-encoder-gelu-batches-of-2",
    lambda s: live(Reader(24, 32, torch_layers(1, activation="gelu"), 6), patches(s, batch=2), lr=1e-3, steps=100),
    thrives(0.05),
)
zoo.healthy(
    "gpt-loss-times-1e-4",
    lambda s: live(
        Gpt(16, 32, [Layer(Einsum(32, 4, causal=True), 32)]),
        markov(s, 16, 12, 12).with_loss(of_object(token_loss)).scaled(1e-4),
    ),
)
zoo.healthy(
    "gpt-untied-squared-relu",
    lambda s: live(
        Gpt(
            16,
            32,
            [Layer(Einsum(32, 4, causal=True), 32, lambda h: torch.relu(h).square()) for _ in range(2)],
            tied=False,
        ),
        markov(s, 16, 12, 12).with_loss(of_object(token_loss)),
        lr=2e-3,
    ),
)


class Thrifty(nn.Module):
    """Every layer runs a second time on the way back, under autocast."""

    def __init__(self, low: bool) -> None:
        super().__init__()
        self.inner, self.low = Layer(Einsum(32, 4), 32), low

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return checkpoint(self.inner, x, use_reentrant=False).float()


zoo.healthy(
    "patches-checkpointed-2x32",
    lambda s: live(Reader(24, 32, [Thrifty(False) for _ in range(2)], 6), patches(s, batch=16), lr=2e-3),
)
zoo.healthy(
    "patches-autocast-and-checkpointed-2x32",
    lambda s: live(Reader(24, 32, [Thrifty(True) for _ in range(2)], 6), patches(s, batch=16), lr=2e-3),
)


class Cross(nn.Module):
    """Three learned queries read the picture through torch's decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.query = nn.Conv2d(1, 24, 2, stride=2), nn.Parameter(torch.randn(1, 3, 24))
        self.place = nn.Parameter(0.3 * torch.randn(1, 25, 24))
        self.read = nn.TransformerDecoderLayer(24, 3, 48, 0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(72, 8)

    def forward(self, x: Tensor) -> Tensor:
        memory = self.embed(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.read(self.query.expand(len(x), -1, -1), memory).flatten(1))


zoo.healthy("three-queries-read-a-picture", lambda s: live(Cross(), strokes(s), lr=3e-3, steps=60), thrives(0.05))


class Adapter(nn.Module):
    """A frozen layer and a thin trained pair beside its queries and values, of which one starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = Layer(Einsum(width, 4), width).requires_grad_(False)
        self.a, self.b = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.b(self.a(x))


zoo.healthy(
    "patches-adapters-on-frozen-layers",
    lambda s: live(Reader(24, 32, [Adapter(32) for _ in range(3)], 6), patches(s, batch=16), lr=3e-3),
)
zoo.healthy("set-transformer-3-points", lambda s: live(Induced(24, points=3), heaps(s), "RMSprop", 1e-3, 50))
zoo.healthy(
    "brackets-encoder-with-embedding-post-norm", lambda s: live(Spelled(), brackets(s), "SGD", 0.05, 80, momentum=0.9)
)


class Spelled(nn.Module):
    """Embedding, causal encoder of torch, a tag at every place."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.tag = nn.Embedding(6, 24), nn.ModuleList(torch_layers(2, 24, 3)), nn.Linear(24, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x, mask = self.words(tokens), nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for layer in self.body:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.tag(x)


zoo.healthy(
    "vit-one-head-width-16",
    lambda s: live(Patches(16, [Layer(Fused(16, 1), 16)]), strokes(s), lr=5e-3, steps=80),
    thrives(0.05),
)
