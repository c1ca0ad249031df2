# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers that people reported with the faults of any network, and sound ones that only looked odd to them.

Half: reported.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Attend, Feed, Net, Patches, Post, Pre, ends_worse, small_gradients
from validation.cases._plain_nets import BLOWN
from validation.cases._reported_sequences import (
    OPINION,
    PAPER,
    SHOP,
    Own,
    abstracts,
    curves,
    directory,
    horizons,
    opinions,
    pairs,
    paths,
    sessions,
    stamps,
    swaps,
)
from validation.evidence import at_last, both, breaks, dead, diverges, lags, lasting, no_gradient, states_rank, thrives
from validation.setups import frozen, live, pretrain
from validation.tasks import token_loss

zoo = Zoo("transformer", half="reported", analyzer="transformer", proof=thrives(0.15))
NARROW_TOO = {"RANK_COLLAPSE", "HEAD_DIVERSITY", "SLOW", "loss_stuck"}


def pre(depth: int = 2, causal: bool = False, heads: int = 4, **more) -> list[nn.Module]:
    return [Pre(Attend(32, heads, causal), **more) for _ in range(depth)]


def read(seed: int, blocks: list[nn.Module], **more) -> Setup:
    """The field of a paper by the words of its abstract."""
    model = Net(nn.Embedding(PAPER, 32), blocks, 6, "mean", length=14)
    return live(model, abstracts(seed), **{"kind": "Adam", "lr": 3e-3, "steps": 60, **more})


def turned(seed: int, blocks: list[nn.Module], **more) -> Setup:
    """Words from the last to the first, in another code."""
    model = Net(nn.Embedding(9, 32), blocks, 9, length=8)
    return live(model, swaps(seed), **{"kind": "Adam", "lr": 5e-3, "steps": 90, **more})


def shop(seed: int, blocks: list[nn.Module], **more) -> Setup:
    """The next item of a session."""
    model = Net(nn.Embedding(SHOP, 32), blocks, SHOP, length=14)
    return live(model, sessions(seed), **{"kind": "AdamW", "lr": 5e-3, "steps": 90, **more})


# --- depth and size


def deep(seed: int, kind: type[nn.Module]) -> Setup:
    """Twelve blocks, drawn after Glorot, at a rate that has no warm-up."""
    blocks = [kind(Attend()) for _ in range(12)]
    for block in blocks:
        for weight in block.parameters():
            if weight.dim() == 2:
                nn.init.xavier_uniform_(weight)
    return read(seed, blocks, lr=1e-2, steps=45)


# lucidrains/voicebox-pytorch#23, LiyuanLucasLiu/Transformer-Clinic#16: deep, norms behind the sums, no warm-up: after
# the first steps no gradient comes through. With the norms before, it does.
norm_first = zoo.healthy("abstracts-12-blocks-norms-before", lambda s: deep(s, Pre))
zoo.sick(
    "abstracts-12-blocks-norms-behind-no-warm-up",
    lambda s: deep(s, Post),
    both(at_last(small_gradients(["blocks.0", "enter"], "head", 1e-4)), ends_worse(1.5)),
    "VANISHING",
    "UNSTABLE",
    "rate_too_high",
    also={
        "RANK_COLLAPSE",
        "DEAD",
        "DISCONNECTED",
        "EXPLODING",
        "SLOW",
        "loss_stuck",
        "ENTROPY_COLLAPSE",
        "LOW_RANK",
        "HEAD_DIVERSITY",
        "BOTTLENECK",
        "SATURATION",
    },
    control=norm_first,
)


def tied(seed: int, std: float) -> Setup:
    """The table of words is the head as well."""
    model = Net(nn.Embedding(SHOP, 64), [Pre(Attend(64, 4, True), 64) for _ in range(2)], SHOP, width=64, length=14)
    model.head.weight = model.enter.weight
    nn.init.normal_(model.enter.weight, std=std)
    return live(model, sessions(seed), "AdamW", 1e-3, 80)


# karpathy/build-nanogpt#18, fastai/fastai#2090: how wide to draw a table that is the head as well? As narrow as GPT-2
# does, or as torch does, where the first loss is far above that of chance; both learn.
zoo.healthy("sessions-tied-table-of-0.02", lambda s: tied(s, 0.02))
zoo.healthy("sessions-tied-table-of-1", lambda s: tied(s, 1.0))


def forecast(seed: int, lr: float) -> Setup:
    return live(Series(16, 2, 2), curves(seed, dim=2), "Adam", lr, 80)


class Series(nn.Module):
    """torch's encoder on a curve, with places; it may be as narrow as the curve."""

    def __init__(self, width: int, heads: int, dim: int = 1) -> None:
        super().__init__()
        self.enter = nn.Linear(dim, width) if width != dim else nn.Identity()
        self.place = nn.Parameter(0.3 * torch.randn(1, 20, width))
        layer = nn.TransformerEncoderLayer(width, heads, 32, 0.0, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, dim)
        self.ahead = torch.ones(20, 20).triu(1).bool()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(self.enter(x) + self.place, mask=self.ahead))


# datascience.stackexchange 93377: a forecast is a straight line through the mean; the rate was too high.
slow = zoo.healthy("curves-encoder-rate-0.003", lambda s: forecast(s, 3e-3))
zoo.sick(
    "curves-encoder-rate-0.3",
    lambda s: forecast(s, 0.3),
    both(diverges(3), ends_worse(3.0)),
    "EXPLODING",
    "UNSTABLE",
    "rate_too_high",
    "VANISHING",
    "DEAD",
    "RANK_COLLAPSE",
    also={*BLOWN, "ENTROPY_COLLAPSE", "HEAD_DIVERSITY", "BOTTLENECK", "SLOW", "NUMERICAL"},
    control=slow,
)

# --- too narrow


def lone(seed: int, width: int, heads: int) -> Setup:
    return live(Series(width, heads), curves(seed), "Adam", 3e-3, 90)


# discuss.pytorch.org 184454: d_model 1 and one head; a norm over one number leaves nothing of it.
widened = zoo.healthy("curves-width-32-four-heads", lambda s: lone(s, 32, 4))
zoo.sick(
    "curves-width-1-one-head",
    lambda s: lone(s, 1, 1),
    both(lasting(states_rank(1.01, "encoder")), ends_worse(2.0)),
    "BOTTLENECK",
    "RANK_COLLAPSE",
    "LOW_RANK",
    "DEAD",
    "DISCONNECTED",
    "VANISHING",
    also={*NARROW_TOO, "never_moves", "SATURATION", "SYMMETRY"},
    control=widened,
)


def columns(seed: int, width: int) -> Setup:
    return live(Series(width, 1 if width == 3 else 4, 3), curves(seed, dim=3), "Adam", 3e-3, 90)


# As in the sample of pytorch/pytorch#24816: d_model is the number of columns, which are three.
lifted = zoo.healthy("curves-three-columns-lifted-to-32", lambda s: columns(s, 32))
zoo.sick(
    "curves-three-columns-as-the-width",
    lambda s: columns(s, 3),
    both(lasting(states_rank(2.1, "encoder")), ends_worse(2.0)),
    "BOTTLENECK",
    "LOW_RANK",
    layer=(
        "encoder",
        *(f"encoder.layers.{i}{p}" for i in range(2) for p in ("", ".self_attn", ".linear1", ".linear2")),
    ),
    also={*NARROW_TOO, "DEAD", "VANISHING"},
    control=lifted,
)


class Small(nn.Module):
    """Attention whose heads have a size of their own, however wide the tokens are."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(32, heads * size, bias=False) for _ in range(3))
        self.o = nn.Linear(heads * size, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def headed(seed: int, size: int) -> Setup:
    model = Net(nn.Linear(16, 32), [Pre(Small(2, size))], 8, "last", length=0)
    return live(model, directory(seed), "Adam", 5e-3, 110)


# tryonlabs/opentryon#49, wandb/senpai#111: heads of size 1 (dim_head=1), through which neither names nor numbers fit.
sized = zoo.healthy("directory-heads-of-size-16", lambda s: headed(s, 16))
zoo.sick(
    "directory-heads-of-size-1",
    lambda s: headed(s, 1),
    ends_worse(1.5),
    "BOTTLENECK",
    "LOW_RANK",
    "HEAD_DIVERSITY",
    layer=paths(1, "q", "k", "v", "o"),
    also={*NARROW_TOO, "ENTROPY_COLLAPSE"},
    control=sized,
)


class Coder(nn.Module):
    """Words to one vector, through so many numbers, and back to words."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.enter, self.place = nn.Embedding(9, 32), nn.Parameter(0.3 * torch.randn(1, 4, 32))
        self.encoder, self.code, self.open = Pre(Attend()), nn.Linear(128, code), nn.Linear(code, 128)
        self.decoder, self.out = Pre(Attend()), nn.Linear(32, 9)

    def forward(self, words: Tensor) -> Tensor:
        h = self.encoder(self.enter(words) + self.place)
        h = self.open(self.code(h.flatten(1))).unflatten(1, (4, 32))
        return self.out(self.decoder(h + self.place))


def coded(seed: int, code: int) -> Setup:
    return live(Coder(code), swaps(seed, length=4), "Adam", 5e-3, 100)


# mattragoza/LiGAN#18, sihyun-yu/PVDM#38: the latent space is smaller than what the data need; nothing can be rebuilt.
roomy = zoo.healthy("words-through-32-numbers", lambda s: coded(s, 32))
zoo.sick(
    "words-through-1-number",
    lambda s: coded(s, 1),
    both(lags(0.3), ends_worse(1.5)),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("code", "open"),
    also=NARROW_TOO,
    control=roomy,
)

# --- numbers


class Padded(nn.Module):
    """Opinions with a mask for torch's attention; the first token of a row may always be seen, or not."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.enter, self.attn = nn.Embedding(OPINION, 32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm, self.head, self.first = nn.LayerNorm(32), nn.Linear(32, 4), first

    def forward(self, words: Tensor, _lengths: Tensor) -> Tensor:
        x, mask = self.enter(words), words == 0
        if self.first:
            mask = mask & (torch.arange(words.shape[1]) > 0)
        x = self.norm(x + self.attn(x, x, x, key_padding_mask=mask)[0])
        seen = (~mask)[..., None]
        return self.head((x * seen).sum(dim=1) / seen.sum(dim=1).clamp_min(1))


def empty(seed: int, first: bool) -> Setup:
    """One opinion in a batch has no words."""

    def wipe(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        words, lengths = batch
        return words.masked_fill((torch.arange(len(words)) == 5)[:, None], 0), lengths

    return live(Padded(first), opinions(seed, 12).mapped(wipe), "Adam", 5e-3, 70)


# pytorch/pytorch#24816, #40932, huggingface/transformers#15326: a row of nothing but padding, and softmax gives NaN.
one_seen = zoo.healthy("opinions-empty-row-sees-its-first-token", lambda s: empty(s, True))
zoo.sick(
    "opinions-empty-row-all-hidden",
    lambda s: empty(s, False),
    breaks,
    "NUMERICAL",
    "all_masked",
    "loss_nonfinite",
    layer=("attn", "enter", "attn.out_proj"),
    also={"bad_batch"},
    control=one_seen,
)


class Multiplied(Own):
    """What is hidden is one minus the mask, times a large number."""

    def __init__(self, low: float) -> None:
        super().__init__()
        self.low = low

    def chances(self, scores: Tensor) -> Tensor:
        mask = torch.ones(scores.shape[-2:]).tril()
        return (scores * mask + (1 - mask) * self.low).softmax(dim=-1)


# cerebroai/reformers#3: (1 - mask) * -inf is NaN where the mask is one; -1e9 is not.
large = zoo.healthy("sessions-hidden-by-times-minus-1e9", lambda s: shop(s, [Pre(Multiplied(-1e9)) for _ in range(2)]))
zoo.sick(
    "sessions-hidden-by-times-minus-infinity",
    lambda s: shop(s, [Pre(Multiplied(-math.inf)) for _ in range(2)]),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    "all_masked",
    layer=("blocks.0", *paths(2, "q", "k", "v", "o")),
    control=large,
)

# --- cut off, dead


class Pair(nn.Module):
    """Notes and pictures in one space; the encoder of notes may run without gradients."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.cut, self.note = cut, Net(nn.Embedding(PAPER, 32), pre(1), 16, "mean", length=14)
        self.marks = nn.Linear(12, 16)

    def forward(self, words: Tensor, marks: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.cut and torch.is_grad_enabled()):
            note = self.note(words)
        return 8 * F.normalize(note, dim=1) @ F.normalize(self.marks(marks), dim=1).T


def paired(seed: int, cut: bool) -> Setup:
    code = torch.randn(6, 12, generator=torch.Generator().manual_seed(seed + 71))
    random = torch.Generator().manual_seed(seed + 72)

    def both_of(words: Tensor, kind: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (words, code[kind] + 0.3 * torch.randn(len(kind), 12, generator=random)), kind

    def loss(scores: Tensor, kind: Tensor) -> Tensor:
        same = (kind[:, None] == kind).float()
        return -(scores.log_softmax(dim=1) * same / same.sum(dim=1, keepdim=True)).sum(dim=1).mean()

    return live(Pair(cut), abstracts(seed).changed(both_of).with_loss(loss), "Adam", 3e-3, 80)


# edreisMD/ConVIRT-pytorch#7: the encoder of texts is inside a block of torch.no_grad.
joined = zoo.healthy("notes-encoder-with-gradients", lambda s: paired(s, False))
zoo.sick(
    "notes-encoder-under-no-grad",
    lambda s: paired(s, True),
    both(lasting(no_gradient("note")), ends_worse(1.1)),
    "DISCONNECTED",
    "detached",
    "DEAD",
    "frozen",
    layer=("note", "note.enter", "note.head", "note.blocks.0", "note.blocks.0.attn"),
    also={"never_moves", "SLOW", "only_decay"},
    control=joined,
)


class Distances(Own):
    """What is added to the scores for each distance comes from a small net."""

    def __init__(self, act: nn.Module, shift: float) -> None:
        super().__init__()
        self.bias = nn.Sequential(nn.Linear(1, 16), act, nn.Linear(16, 4))
        nn.init.constant_(self.bias[0].bias, shift)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        t = torch.arange(q.shape[2] * 1.0)
        added = self.bias(((t[:, None] - t) / 4)[..., None])
        return super().scores(q, k) + added.permute(2, 0, 1)


def distances(seed: int, act: nn.Module) -> Setup:
    """Each word is asked for at the next place; only distances tell places."""
    task = swaps(seed).changed(lambda x, _: (x, x.roll(1, dims=1)))
    task = task.with_loss(lambda z, t: token_loss(z[:, 1:], t[:, 1:]))
    model = Net(nn.Embedding(9, 32), [Pre(Distances(act, -2.0))], 9, length=0)
    return live(model, task, "Adam", 1e-2, 120)


# lucidrains/x-transformers#125: the bias of positions is stuck at zero because of ReLU; with SiLU it is not.
silu = zoo.healthy("words-distances-through-silu", lambda s: distances(s, nn.SiLU()))
zoo.sick(
    "words-distances-through-dead-relu",
    lambda s: distances(s, nn.ReLU()),
    both(lasting(dead("blocks.0.attn.bias.1", 0.9)), ends_worse(1.15)),
    "DEAD",
    "DISCONNECTED",
    layer=tuple(f"blocks.0.attn.bias{p}" for p in ("", ".0", ".1", ".2")),
    also={
        "VANISHING",
        "never_moves",
        "HEAD_DIVERSITY",
        "SLOW",
        "LOW_RANK",
        "BOTTLENECK",
        "SATURATION",
        "RANK_COLLAPSE",
    },
    control=silu,
)

# --- sound, though somebody worried


def cosine(t: int, total: int = 80) -> float:
    return min((t + 1) / 10, 0.52 + 0.48 * math.cos(math.pi * min(t, total) / total))


zoo.healthy("sessions-gpt-two-blocks", lambda s: shop(s, pre(2, True)))
zoo.healthy("sessions-gpt-warm-up-cosine-clipped", lambda s: shop(s, pre(2, True), rate=cosine, clip=1.0))
# wandb/senpai#2699, icefall#1292: clipping at a norm that nearly every step exceeds.
zoo.healthy("sessions-gpt-clipped-at-0.1", lambda s: shop(s, pre(2, True), clip=0.1))
zoo.healthy("sessions-gpt-dropout-0.3", lambda s: shop(s, pre(2, True, drop=0.3)))
zoo.healthy("sessions-gpt-half-of-it-chance", lambda s: live(
    Net(nn.Embedding(SHOP, 32), pre(2, True), SHOP, length=14), sessions(s, noise=0.4), "AdamW", 5e-3, 100
), thrives(0.08))  # fmt: skip
zoo.healthy("sessions-gpt-batches-of-4", lambda s: live(
    Net(nn.Embedding(SHOP, 32), pre(2, True), SHOP, length=14), sessions(s, batch=4), "AdamW", 3e-3, 120
))  # fmt: skip
zoo.healthy("sessions-gpt-decay-0.3", lambda s: shop(s, pre(2, True), weight_decay=0.3))
zoo.healthy("sessions-gpt-beta2-0.95", lambda s: shop(s, pre(2, True), betas=(0.9, 0.95)))
zoo.healthy("sessions-table-of-2000-items", lambda s: live(
    Net(nn.Embedding(2000, 32), pre(2, True), SHOP, length=14), sessions(s), "AdamW", 5e-3, 80
))  # fmt: skip


# karpathy/minGPT#62: positions from zero learn as well.
def zero_places(seed: int) -> Setup:
    setup = turned(seed, pre(2), steps=100)
    nn.init.zeros_(setup.model.place)
    return setup


zoo.healthy("words-places-from-zero", zero_places)


class Sinks(Own):
    """Causal, with one key of its own that everyone may look at."""

    def __init__(self) -> None:
        super().__init__(causal=True)
        self.sink = nn.Parameter(torch.zeros(4, 1, 1))

    def chances(self, scores: Tensor) -> Tensor:
        hidden = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -1e9)
        sink = self.sink.expand(len(scores), -1, scores.shape[2], 1)
        return torch.cat([sink, hidden], dim=-1).softmax(dim=-1)[..., 1:]


# huggingface/transformers#2975, mit-han-lab/streaming-llm#54: much attention goes to a first token, as a rest.
zoo.healthy("sessions-attention-with-a-sink", lambda s: shop(s, [Pre(Sinks()) for _ in range(2)]))


def found(seed: int, blocks: list[nn.Module], **more) -> Setup:
    """Whose number is asked for? Attention becomes sharp, for one entry is right."""
    model = Net(nn.Linear(16, 32), blocks, 8, "last", length=0)
    return live(model, directory(seed), **{"kind": "Adam", "lr": 5e-3, "steps": 110, **more})


zoo.healthy("directory-sharp-because-it-is-right", lambda s: found(s, pre(2)))
zoo.healthy("directory-one-head", lambda s: found(s, pre(2, heads=1)))
zoo.healthy("directory-eight-heads", lambda s: found(s, pre(2, heads=8)))


def sharpened(seed: int) -> Setup:
    """Trained before: attention is nearly one-hot, gradients are small, and there is little left to learn."""
    return pretrain(found(seed, pre(2), lr=5e-4, steps=60), 70, 5e-3)


zoo.healthy("directory-nearly-done", sharpened)


class FullWidth(Own):
    """Scores over the root of the whole width, not of that of a head."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(2, 3) / math.sqrt(32)


# omihub777/ViT-CIFAR#11, Graylab/DL4Proteins-notebooks#12: not what the paper says, but flatter attention learns, too.
zoo.healthy("stamps-scores-over-root-of-the-whole-width", lambda s: live(
    Net(Patches(), [Pre(FullWidth()) for _ in range(2)], 6, "mean", length=16), stamps(s), "Adam", 3e-3, 60
))  # fmt: skip


class Token(nn.Module):
    """Patches with a learned token before them, from which the answer is read."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.cls = Patches(), nn.Parameter(torch.zeros(1, 1, 32))
        self.place, self.blocks = nn.Parameter(0.1 * torch.randn(1, 17, 32)), nn.ModuleList(pre(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        h = torch.cat([self.cls.expand(len(h), -1, -1), h], dim=1) + self.place
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h[:, 0]))


zoo.healthy("stamps-vit-with-a-class-token", lambda s: live(Token(), stamps(s), "AdamW", 3e-3, 70))
zoo.healthy("stamps-vit-much-noise", lambda s: live(
    Net(Patches(), pre(2), 6, "mean", length=16), stamps(s, noise=1.0), "AdamW", 3e-3, 80
))  # fmt: skip
zoo.healthy("stamps-vit-sgd-momentum", lambda s: live(
    Net(Patches(), pre(2), 6, "mean", length=16), stamps(s), "SGD", 0.05, 80, momentum=0.9
))  # fmt: skip


class Spare(nn.Module):
    """torch's encoder; the layer it was copied from hangs at the model and is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.place = nn.Embedding(9, 32), nn.Parameter(0.3 * torch.randn(1, 8, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(self.layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 9)
        self.layer.requires_grad_(False)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.encoder(self.enter(words) + self.place))


# pytorch/pytorch#39629, #86274: the prototype has no gradients, all copies start alike, and both are harmless.
zoo.healthy("words-torch-encoder-and-its-prototype", lambda s: live(Spare(), swaps(s), "Adam", 5e-3, 100))
zoo.healthy("words-norms-behind-two-blocks", lambda s: turned(s, [Post(Attend()) for _ in range(2)], rate=cosine))


class Growing(nn.Module):
    """Branches that start at nearly nothing and grow, by a factor for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.feed = nn.LayerNorm(32), Attend(), nn.LayerNorm(32), Feed()
        self.a, self.b = nn.Parameter(torch.full((32,), 0.1)), nn.Parameter(torch.full((32,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.a * self.attn(self.norm1(x))
        return x + self.b * self.feed(self.norm2(x))


zoo.healthy("words-branches-from-a-tenth", lambda s: turned(s, [Growing() for _ in range(3)], steps=110, lr=1e-2))


def tuned(seed: int) -> Setup:
    """A trained encoder, frozen on purpose, and a new head for other names of the fields."""
    model = Net(nn.Embedding(PAPER, 32), pre(1), 6, "mean", length=14)
    pretrain(live(model, abstracts(seed)), 50)
    model.head = nn.Linear(32, 6)
    return live(frozen(model, "enter", "blocks"), abstracts(seed), "Adam", 1e-2, 60)


# tianrun-chen/SAM-Adapter-PyTorch#72, bowang-lab/MedSAM#233: some encoder does not learn, because it should not.
zoo.healthy("abstracts-frozen-encoder-new-head", tuned)
zoo.healthy("abstracts-labels-smoothed", lambda s: live(
    Net(nn.Embedding(PAPER, 32), pre(1), 6, "mean", length=14),
    abstracts(s).with_loss(lambda z, t: F.cross_entropy(z, t, label_smoothing=0.2)), "Adam", 5e-3, 70,
))  # fmt: skip
zoo.healthy(
    "abstracts-rate-3e-4-is-right", lambda s: read(s, [Pre(Attend(32, 4)) for _ in range(4)], lr=6e-4, steps=110)
)
zoo.healthy("players-two-heads-are-enough", lambda s: live(
    Net(nn.Linear(32, 32), pre(1, heads=2), 9, length=0), pairs(s), "Adam", 1e-2, 110
))  # fmt: skip


class Ahead(nn.Module):
    """Patches of a past, an encoder, and all of what comes from their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.place = nn.Linear(4, 32), nn.Parameter(0.3 * torch.randn(1, 4, 32))
        self.blocks, self.out = nn.Sequential(*pre(2)), nn.Linear(128, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(self.enter(x[..., 0].unflatten(1, (4, 4))) + self.place)
        return self.out(h.flatten(1))[..., None]


zoo.healthy("horizons-patches-of-four", lambda s: live(Ahead(), horizons(s), "Adam", 3e-3, 80))
zoo.healthy("opinions-mean-without-a-mask", lambda s: live(Bag(), opinions(s, 12), "Adam", 5e-3, 70))


class Bag(nn.Module):
    """Padding is not hidden but has a vector of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.blocks = nn.Embedding(OPINION, 32, padding_idx=0), nn.Sequential(*pre(1))
        self.head = nn.Linear(32, 4)

    def forward(self, words: Tensor, _lengths: Tensor) -> Tensor:
        return self.head(self.blocks(self.enter(words)).mean(dim=1))
