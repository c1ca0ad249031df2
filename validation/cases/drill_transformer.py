# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers of laboratories and workshops, with one fault each, their twins, and odd healthy ones.

Half: drill.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.attention import tokens_alike
from validation.evidence.live import attends_sharply, breaks, flat_behind, heads_agree, lags, lasting, thrives
from validation.evidence.signal import dead, no_gradient
from validation.evidence.training import diverges
from validation.labels import ALIKE, DEADENS, LOST, ONE, RUNS_AWAY, SHARP
from validation.nets.attention import scaled_dot
from validation.setups import live
from validation.tasks import every, mirrors, molecules, orders, songs

zoo = Zoo("transformer", half="drill", analyzer="transformer", proof=thrives())


class Look(nn.Module):
    """Attention by hand; `score` makes scores (batch, heads, i, j), `size` is how many numbers the values have."""

    def __init__(self, width: int, heads: int = 4, score=None, size: int | None = None, causal=False) -> None:
        super().__init__()
        self.heads, self.score, self.causal = heads, score or scaled_dot, causal
        self.wq, self.wk = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wv, self.wo = nn.Linear(width, size or width, bias=False), nn.Linear(size or width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        scores = self.score(q, k)
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -1e9)
        p = torch.softmax(scores, dim=-1)
        return self.wo((p @ v).transpose(1, 2).flatten(2))


class Stage(nn.Module):
    """Attention and a gated feed-forward behind norms; `skip` weighs what goes past the attention."""

    def __init__(self, width: int, look: nn.Module, skip: float = 1.0) -> None:
        super().__init__()
        self.pre, self.look, self.mid = nn.RMSNorm(width), look, nn.RMSNorm(width)
        self.up, self.gate = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down, self.skip = nn.Linear(2 * width, width), skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.skip * x + self.look(self.pre(x))
        h = self.mid(x)
        return self.skip * x + self.down(self.up(h) * F.silu(self.gate(h)))


class Notes(nn.Module):
    """Tokens and places as vectors, stages, an answer at every place; `size` numbers for a token at first."""

    def __init__(self, tokens: int, stages: list[nn.Module], width: int = 32, size: int | None = None) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, size or width), nn.Embedding(16, width)
        self.widen = nn.Linear(size, width) if size else nn.Identity()
        nn.init.normal_(self.place.weight, std=0.5)
        self.stages, self.final, self.say = nn.ModuleList(stages), nn.RMSNorm(width), nn.Linear(width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.widen(self.token(tokens)) + self.place.weight[: tokens.shape[1]]
        for stage in self.stages:
            x = stage(x)
        return self.say(self.final(x))


class Tray(nn.Module):
    """Vectors of a tray, stages, and one answer from a head that reads their mean or `pool`s in another way."""

    def __init__(self, stages: list[nn.Module], width: int = 32, pool: nn.Module | None = None, kinds: int = 5) -> None:
        super().__init__()
        self.enter, self.stages = nn.Linear(12, width), nn.ModuleList(stages)
        self.pool, self.say = pool, nn.Linear(width, kinds)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for stage in self.stages:
            x = stage(x)
        return self.say(x.mean(dim=1) if self.pool is None else self.pool(x))


def mirrored(seed: int, stages: list[nn.Module], **more) -> Setup:
    size = more.pop("size", None)
    return live(Notes(9, stages, size=size), mirrors(seed), **{"lr": 5e-3, "steps": 70, **more})


def served(seed: int, stages: list[nn.Module], pool: nn.Module | None = None, kinds: int = 5, **more) -> Setup:
    return live(Tray(stages, pool=pool, kinds=kinds), orders(seed, kinds), **{"lr": 5e-3, "steps": 60, **more})


# --- attention that is too sharp


class Cosine(nn.Module):
    """Scores by the cosine of queries and keys, times a factor that is learned by its logarithm."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log_factor = nn.Parameter(torch.tensor(math.log(start)))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.log_factor.exp() * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)


cosine = zoo.healthy(
    "mirrors-attention-by-cosine-times-8",
    lambda s: mirrored(s, [Stage(32, Look(32, score=Cosine(8.0))) for _ in range(2)]),
)
zoo.sick(
    "mirrors-attention-by-cosine-times-2000",
    lambda s: mirrored(s, [Stage(32, Look(32, score=Cosine(2000.0))) for _ in range(2)], lr=1e-3),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=tuple(f"stages.{i}.look.{part}" for i in (0, 1) for part in ("wq", "wk")),
    also={*SHARP, "VANISHING"},
    control=cosine,
)


def times(factor: float):
    """The root of the head's size stands on the wrong side of the fraction, and more."""
    return lambda q, k: q @ k.transpose(-1, -2) * factor


rooted = zoo.healthy("songs-scores-divided-by-the-root", lambda s: sung(s, [voice(), voice()]))


def voice(score=None) -> Stage:
    """A stage that sees what has been, and not what comes."""
    return Stage(32, Look(32, score=score, causal=True))


def sung(seed: int, stages: list[nn.Module], **more) -> Setup:
    return live(Notes(12, stages), songs(seed), **{"lr": 5e-3, "steps": 60, **more})


zoo.sick(
    "songs-second-scores-times-the-width-squared",
    lambda s: sung(s, [voice(), voice(times(1024.0))], lr=2e-3),
    lasting(attends_sharply("stages.1.look", others_above=0.4)),
    "ENTROPY_COLLAPSE",
    layer=("stages.1.look.wq", "stages.1.look.wk"),
    also={*SHARP, "VANISHING"},
    control=rooted,
)


def sloped(slope: float):
    """A penalty for distance, the same for all heads up to a power of two."""

    def score(q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(q.shape[-2], dtype=q.dtype)
        slopes = slope * 0.5 ** torch.arange(q.shape[1], dtype=q.dtype)[:, None, None]
        return scaled_dot(q, k) - slopes * (place[:, None] - place).abs()

    return score


slopes = zoo.healthy(
    "mirrors-penalty-for-distance-0.2",
    lambda s: mirrored(s, [Stage(32, Look(32, score=sloped(0.2))) for _ in range(2)]),
)
zoo.sick(
    "mirrors-penalty-for-distance-5000",
    lambda s: mirrored(s, [Stage(32, Look(32, score=sloped(5000.0))) for _ in range(2)]),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=tuple(f"stages.{i}.look.{part}" for i in (0, 1) for part in ("wq", "wk")),
    also={*SHARP, "VANISHING", "HEAD_DIVERSITY", "DISCONNECTED", "DEAD"},
    control=slopes,
)


class Asker(nn.Module):
    """One learned question reads a tray; `heat` divides its scores."""

    def __init__(self, width: int, heat: float) -> None:
        super().__init__()
        self.ask = nn.Parameter(torch.randn(width))
        self.key, self.value = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.heat = heat

    def forward(self, x: Tensor) -> Tensor:
        scores = (self.key(x) @ self.ask)[:, None] / (math.sqrt(x.shape[-1]) * self.heat)  # (batch, 1, length)
        return (scores.softmax(dim=-1) @ self.value(x))[:, 0]


asker = zoo.healthy("orders-one-question", lambda s: served(s, [Stage(32, Look(32))], Asker(32, 1.0)))
zoo.sick(
    "orders-one-question-frozen-to-the-bone",
    lambda s: served(s, [Stage(32, Look(32))], Asker(32, 1e-4), lr=2e-3),
    lasting(attends_sharply("pool", others_above=0.3)),
    "ENTROPY_COLLAPSE",
    layer="pool.key",
    also={*SHARP, "VANISHING"},
    control=asker,
)

# --- tokens that become one

deep = zoo.healthy("orders-six-stages", lambda s: served(s, [Stage(32, Look(32)) for _ in range(6)], lr=2e-3))
zoo.sick(
    "orders-nothing-goes-past-the-attention-in-6-stages",
    lambda s: served(s, [Stage(32, Look(32), 0.0) for _ in range(6)], lr=5e-4),
    lasting(tokens_alike("stages.5")),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY"},
    control=deep,
)


class Common(nn.Module):
    """Adds what all tokens have in common to each; `alone` leaves nothing else."""

    def __init__(self, width: int, alone: bool) -> None:
        super().__init__()
        self.norm, self.look, self.alone = nn.LayerNorm(width), Look(width), alone

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=1, keepdim=True)
        return (mean.expand_as(x) if self.alone else x + mean) + self.look(self.norm(x))


common = zoo.healthy("mirrors-the-mean-is-added", lambda s: mirrored(s, [Common(32, False) for _ in range(3)]))
zoo.sick(
    "mirrors-the-mean-takes-the-place-of-the-tokens",
    lambda s: mirrored(s, [Common(32, i > 0) for i in range(4)], lr=1e-3),
    lasting(tokens_alike("stages.3", 0.1)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY"},
    control=common,
)


def leaning(seed: int, size: float) -> Setup:
    """The bias of the first output matrix comes from a checkpoint with other units."""
    stages = [Stage(32, Look(32)) for _ in range(3)]
    with torch.no_grad():
        stages[0].look.wo.bias.copy_(size * torch.randn(32))
    return mirrored(seed, stages, lr=1e-3 if size > 1 else 5e-3)


leans = zoo.healthy("mirrors-output-bias-of-0.1", lambda s: leaning(s, 0.1))
zoo.sick(
    "mirrors-output-bias-of-300",
    lambda s: leaning(s, 300.0),
    lasting(tokens_alike("stages.2", 0.05)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "DISCONNECTED"},
    control=leans,
)


class Diffused(nn.Module):
    """Nodes of a molecule take the mean of their neighbours, many times; `own` is what each keeps of itself."""

    def __init__(self, rounds: int, own: float) -> None:
        super().__init__()
        self.enter, self.out, self.own = nn.Linear(8, 32), nn.Linear(32, 3), own
        self.rounds = nn.ModuleList(Spread(32, own) for _ in range(rounds))

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        x = self.enter(x)
        for each in self.rounds:
            x = each(x, bonds)
        return self.out(x)


class Spread(nn.Module):
    """Attention among neighbours alone, by hand."""

    def __init__(self, width: int, own: float) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(width, width) for _ in range(3))
        self.own = own

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        scores = self.wq(x) @ self.wk(x).transpose(1, 2) / math.sqrt(x.shape[-1])
        p = torch.softmax(scores.masked_fill(bonds == 0, -1e9), dim=-1)
        return self.own * x + p @ self.wv(x)


def diffused(seed: int, rounds: int, own: float, **more) -> Setup:
    return live(Diffused(rounds, own), molecules(seed), **{"lr": 5e-3, "steps": 60, **more})


few = zoo.healthy("molecules-two-rounds-with-themselves", lambda s: diffused(s, 2, 1.0))
zoo.sick(
    "molecules-nine-rounds-without-themselves",
    lambda s: diffused(s, 9, 0.0, lr=1e-4, steps=40),
    lasting(tokens_alike("rounds.8", 0.1)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "SLOW"},
    control=few,
)

# --- heads that are one


def of_the_first(q: Tensor, k: Tensor) -> Tensor:
    """An index that was left from debugging: all heads use the scores of the first."""
    return scaled_dot(q, k)[:, :1].expand(-1, q.shape[1], -1, -1)


def of_the_mean(q: Tensor, k: Tensor) -> Tensor:
    """Queries and keys are averaged over the heads to save time."""
    scores = scaled_dot(3 * q.mean(dim=1, keepdim=True), 3 * k.mean(dim=1, keepdim=True))
    return scores.expand(-1, q.shape[1], -1, -1)


def sharpened(stages: list[Stage]) -> list[Stage]:
    """Queries drawn larger, so that attention is not even at first."""
    for stage in stages:
        stage.look.wq.weight.data *= 4
    return stages


four = zoo.healthy("mirrors-four-heads", lambda s: mirrored(s, sharpened([Stage(32, Look(32)) for _ in range(2)])))
for told, score in (("first-head-for-all", of_the_first), ("mean-of-the-heads-for-all", of_the_mean)):
    zoo.sick(
        f"mirrors-scores-of-the-{told}",
        lambda s, score=score: mirrored(s, sharpened([Stage(32, Look(32, score=score)) for _ in range(2)])),
        lasting(heads_agree()),
        "HEAD_DIVERSITY",
        layer=tuple(f"stages.{i}.look.{part}" for i in (0, 1) for part in ("wq", "wk")),
        also=ONE,
        control=four,
    )

# --- narrow

wide = zoo.healthy("songs-tokens-of-16-numbers", lambda s: tuned(s, 16))


def tuned(seed: int, size: int) -> Setup:
    """Tokens as few numbers, then a matrix to the width, after ALBERT."""
    return live(Notes(40, [voice()], size=size), songs(seed, 40, batch=24), lr=1e-2, steps=80)


zoo.sick(
    "songs-tokens-of-1-number",
    lambda s: tuned(s, 1),
    lags(0.15),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("token", "widen"),
    also={"HEAD_DIVERSITY", "RANK_COLLAPSE"},
    control=wide,
)


class Waist(nn.Module):
    """The mean of a tray as `size` numbers, and back to the width."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.narrow, self.widen = nn.Linear(32, size), nn.Linear(size, 32)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.widen(self.narrow(x.mean(dim=1))))


waist = zoo.healthy("orders-summary-of-16", lambda s: served(s, [Stage(32, Look(32))], Waist(16), 14, steps=80))
zoo.sick(
    "orders-summary-of-1",
    lambda s: served(s, [Stage(32, Look(32))], Waist(1), 14, steps=80),
    lags(0.12),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("pool.narrow", "pool.widen"),
    control=waist,
)
valued = zoo.healthy("mirrors-values-of-32", lambda s: mirrored(s, [Stage(32, Look(32, 1, size=32))], steps=90))
zoo.sick(
    "mirrors-values-of-1",
    lambda s: mirrored(s, [Stage(32, Look(32, 1, size=1))], steps=90),
    lags(0.12),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("stages.0.look.wv", "stages.0.look.wo"),
    also={"HEAD_DIVERSITY", "RANK_COLLAPSE"},
    control=valued,
)

# --- dead, flat, cut, numbers, rates


def encoder(shift: float, depth: int = 3) -> list[nn.Module]:
    """Layers of torch; `shift` moves the rectifiers of the second one."""
    layers = [
        nn.TransformerEncoderLayer(32, 4, 48, 0.0, nn.ReLU(), batch_first=True, norm_first=True) for _ in range(depth)
    ]
    layers[1].linear1.bias.data += shift
    return layers


torchs = zoo.healthy("mirrors-torch-encoder-3x32", lambda s: mirrored(s, encoder(0.0), lr=3e-3))
zoo.sick(
    "mirrors-torch-encoder-second-rectifiers-shifted-by-minus-12",
    lambda s: mirrored(s, encoder(-12.0), lr=3e-3),
    lasting(dead("stages.1.activation", 0.97)),
    "DEAD",
    layer="stages.1.linear1",
    also=DEADENS,
    control=torchs,
)


class Pooler(nn.Module):
    """The first token through a tanh layer, after BERT; `factor` multiplies its weights."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.dense = nn.Linear(32, 32)
        self.dense.weight.data *= factor

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.dense(x.mean(dim=1)))


pooler = zoo.healthy("orders-tanh-pooler", lambda s: served(s, [Stage(32, Look(32))], Pooler(1.0), steps=80))
zoo.sick(
    "orders-tanh-pooler-weights-times-500",
    lambda s: served(s, [Stage(32, Look(32))], Pooler(500.0), lr=2e-3),
    lasting(flat_behind("pool.dense", "tanh", 0.85)),
    "SATURATION",
    "VANISHING",
    layer="pool.dense",
    also={"EXPLODING", "UNSTABLE", "LOW_RANK"},
    control=pooler,
)


class Picked(nn.Module):
    """Takes the token with the highest score; `soft` weighs the tokens by their scores instead."""

    def __init__(self, soft: bool) -> None:
        super().__init__()
        self.judge, self.soft = nn.Sequential(nn.Linear(32, 24), nn.GELU(), nn.Linear(24, 1)), soft

    def forward(self, x: Tensor) -> Tensor:
        scores = self.judge(x).squeeze(-1)
        if self.soft:
            return (scores.softmax(dim=-1)[..., None] * x).sum(dim=1)
        return x[torch.arange(len(x)), scores.argmax(dim=1)]


# A shift of all scores alike leaves the softmax as it is: the bias in front of it has no gradient to speak of.
picked = zoo.healthy(
    "orders-tokens-weighed-by-a-judge",
    lambda s: served(s, [Stage(32, Look(32))], Picked(True)),
    thrives(idle="pool.judge.2.bias"),
)
zoo.sick(
    "orders-the-best-token-by-a-judge",
    lambda s: served(s, [Stage(32, Look(32))], Picked(False)),
    lasting(no_gradient("pool.judge")),
    "DISCONNECTED",
    layer=("pool.judge.2", "pool.judge.0"),
    also={"DEAD"},
    control=picked,
)


class Masked(nn.Module):
    """Attention that leaves empty places out by minus infinity; `floor` is what stands there instead."""

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.enter, self.out, self.floor = nn.Linear(12, 32), nn.Linear(32, 5), floor
        self.wq, self.wk, self.wv = (nn.Linear(32, 32, bias=False) for _ in range(3))

    def forward(self, x: Tensor, empty: Tensor) -> Tensor:
        h = self.enter(x)
        scores = self.wq(h) @ self.wk(h).transpose(1, 2) / math.sqrt(32)
        p = scores.masked_fill(empty[:, None], self.floor).softmax(dim=-1)
        return self.out(F.gelu(h + p @ self.wv(h)).mean(dim=1))


def emptied(seed: int, floor: float) -> Setup:
    """Once in a while a tray is empty."""
    now = every(14, 6)

    def mask(x: Tensor) -> tuple[Tensor, Tensor]:
        empty = torch.zeros(x.shape[:2], dtype=torch.bool)
        empty[0] = now()
        return x, empty

    return live(Masked(floor), orders(seed).mapped(mask), lr=5e-3, steps=60)


full = zoo.healthy("orders-empty-tray-with-a-floor", lambda s: emptied(s, -1e4), thrives(0.05))
zoo.sick("orders-empty-tray-minus-infinity", lambda s: emptied(s, -math.inf), breaks, "NUMERICAL", control=full)
zoo.sick(
    "songs-plain-descent-at-rate-60",
    lambda s: sung(s, [voice(), voice()], kind="SGD", lr=60.0, steps=40),
    diverges(),
    *RUNS_AWAY,
    also={*LOST, "LOW_RANK", "BOTTLENECK", "VANISHING", "DISCONNECTED"},
    control=rooted,
)

# --- odd and healthy

zoo.healthy("orders-attention-that-finds-the-mark", lambda s: served(s, [], Asker(32, 0.5), lr=1e-2, steps=100))


class Tied(nn.Module):
    """One stage three times over, and a head that shares the weight of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Notes(12, [voice()])
        nn.init.normal_(self.body.token.weight, std=0.3)
        self.body.say.weight = self.body.token.weight
        self.body.stages.extend([self.body.stages[0]] * 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(tokens)


zoo.healthy("songs-one-stage-three-times-tied-head", lambda s: live(Tied(), songs(s), lr=5e-3, steps=70))


class Experts(nn.Module):
    """Four experts, of which the two best take part in each token, beside a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        best, chosen = self.router(h).topk(2, dim=-1)
        weight = torch.zeros(*h.shape[:-1], 4).scatter(-1, chosen, best.softmax(dim=-1))
        return x + sum(weight[..., i, None] * expert(h) for i, expert in enumerate(self.experts))


zoo.healthy(
    "mirrors-experts-two-of-four", lambda s: mirrored(s, [Stage(32, Look(32)), Experts(32), Stage(32, Look(32))])
)


class Low(nn.Module):
    """A frozen matrix and a change of rank 2 that starts at zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 4 * self.b(self.a(x))


def adapted(seed: int) -> Setup:
    """Only the changes of rank 2 of queries and values are trained, and the head."""
    model = Notes(9, [Stage(32, Look(32)) for _ in range(2)])
    model.requires_grad_(False)
    for stage in model.stages:
        stage.look.wq, stage.look.wv, stage.down = Low(stage.look.wq), Low(stage.look.wv), Low(stage.down)
    model.say.requires_grad_(True)
    return live(model, mirrors(seed), lr=2e-2, steps=80)


zoo.healthy("mirrors-changes-of-rank-2", adapted, thrives(0.05))
zoo.healthy(
    "songs-warm-up-then-decay",
    lambda s: sung(s, [voice()], lr=1e-2, rate=lambda i: min((i + 1) / 15, 1.0) * 0.98**i, steps=80),
)
zoo.healthy("molecules-attention-with-sparse-bonds", lambda s: diffused(s, 3, 1.0, lr=3e-3))
zoo.healthy("mirrors-one-wide-head", lambda s: mirrored(s, [Stage(32, Look(32, 1)) for _ in range(2)], steps=90))
