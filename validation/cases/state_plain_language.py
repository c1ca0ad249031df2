# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Plain programs with faults of second moments, attention, experts, embeddings and batches, and some that are fine.

Half: plain.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._everyday_loops import largest_share, measured
from validation.cases._plain_loops import (
    KINDS,
    Critic,
    Desk,
    Music,
    MusicBlock,
    NeuMf,
    bce,
    harmed,
    rents,
    reviews,
    shops,
    soils,
    tickets,
    tunes,
)
from validation.cases.state_common_language import aged, noisy, top_row
from validation.cases.state_everyday_language import moments_lag
from validation.evidence.attention import largest_at
from validation.evidence.loops import broken, learns
from validation.labels import LOUD_LOGITS, NOISY, OUTDATED
from validation.nets import mlp
from validation.states import BROKEN
from validation.tasks import Task, drawn_once, token_loss

zoo = Zoo("state", half="plain", proof=learns())
adamw = torch.optim.AdamW

# --- the second moment lags behind

for name, kind, low, rate, long in (
    ("rents-loss-counts-late", "rents", 0.003, 2e-2, 0.9999),
    ("power-loss-counts-late", "power", 0.002, 2e-2, 0.9995),
):
    stage = lambda x, y, low=low: (x, y, low)  # noqa: E731
    quick = zoo.healthy(f"plain-{name}-beta2-0.95", aged(KINDS[kind], stage, 0.95, rate), learns(0.05))
    zoo.sick(
        f"plain-{name}-beta2-{long}",
        aged(KINDS[kind], stage, long, rate),
        moments_lag,
        *OUTDATED,
        also={*BROKEN, "rate_too_high"},
        control=quick,
    )
zoo.healthy(
    "plain-crops-loss-counts-late-beta2-0.9", aged(KINDS["crops"], lambda x, y: (x, y, 0.05), 0.9, 4e-3), learns(0.05)
)

# --- attention


def largest_logit(model: Music, x: Tensor) -> float:
    """Over all blocks, of queries and keys as they are."""

    def read(block: MusicBlock, x: Tensor) -> float:
        h = block.norm1(x)
        q, k = (part(h).unflatten(-1, (block.heads, -1)).transpose(1, 2) for part in (block.q, block.k))
        return float((q @ k.transpose(-1, -2)).abs().max() * (block.scale or q.shape[-1] ** -0.5))

    return largest_at(model.blocks, read, model, x)


def attending(seed: int, *, scale: float | None = None, std: float | None = None, fast: float = 4e-3, heads: int = 2):
    model, task = Music(heads=heads), tunes(seed)
    for block in model.blocks:
        block.scale = scale
        if std is not None:
            nn.init.normal_(block.q.weight, std=std)
            nn.init.normal_(block.k.weight, std=std)
    quick = [part.weight for block in model.blocks for part in (block.q, block.k)]
    rest = [p for p in model.parameters() if all(p is not q for q in quick)]
    optimizer = adamw([{"params": quick, "lr": fast}, {"params": rest, "lr": 4e-3}])
    facts = {"largest logit": lambda: largest_logit(model, task.aside()[0])}
    return study(model, task, optimizer, token_loss, 80, facts=facts)


SHARP = {*BROKEN, "first_loss_high", "clip_sets_step"}
for sound, fault, good, bad in (
    ("tunes-queries-drawn-small", "tunes-queries-drawn-large", {"std": 0.1}, {"std": 1.2}),
    ("tunes-one-rate-for-all", "tunes-queries-at-rate-0.2", {}, {"fast": 0.2}),
):
    zoo.beside(
        sound,
        fault,
        lambda s, fault, g=good, b=bad: attending(s, **(b if fault else g)),
        harmed(measured("largest logit", above=30.0), worse=1.15),
        *LOUD_LOGITS,
        also=SHARP,
    )
zoo.healthy("plain-tunes-scores-over-root", lambda s: attending(s, std=0.25))
zoo.healthy("plain-tunes-four-heads", lambda s: attending(s, heads=4))
zoo.healthy("plain-tunes-queries-at-rate-0.01", lambda s: attending(s, fast=0.01))


def critic_logit(model: Critic, x: Tensor) -> float:
    layer = model.encoder.layers[0]
    with torch.no_grad():
        h = layer.norm1(model.words(x) + model.places[: x.shape[1]])
        q, k, _ = F.linear(h, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias).chunk(3, dim=-1)
        q, k = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (q, k))
        return float((q @ k.transpose(-1, -2)).abs().max() / q.shape[-1] ** 0.5)


def judging(seed: int, fault: bool) -> Program:
    """Weights of queries and keys are drawn for another width, ten times as large."""
    model, task = Critic(), reviews(seed)
    if fault:
        with torch.no_grad():
            model.encoder.layers[0].self_attn.in_proj_weight[:48] *= 10
    facts = {"largest logit": lambda: critic_logit(model, task.aside()[0])}
    return study(model, task, adamw(model.parameters(), lr=4e-3), steps=90, facts=facts)


zoo.beside(
    "reviews-queries-drawn-by-torch",
    "reviews-queries-drawn-ten-times-as-large",
    judging,
    harmed(measured("largest logit", above=30.0), worse=1.15),
    *LOUD_LOGITS,
    also=SHARP,
)

# --- experts


class Experts(nn.Module):
    """Each row goes to the best of four small experts; gives logits, the balance and the share of each."""

    def __init__(self, dim: int = 11, out: int = 6, count: int = 4, hidden: int = 2) -> None:
        super().__init__()
        self.enter, self.router, self.count = nn.Linear(dim, 24), nn.Linear(24, count), count
        self.experts = nn.ModuleList(mlp([24, hidden, 24], nn.GELU) for _ in range(count))
        self.out = nn.Linear(24, out)

    def mixed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p = self.router(x).softmax(dim=-1)
        best = F.one_hot(p.argmax(dim=-1), self.count).float()
        y = sum((best * p)[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        used, p = best.flatten(0, -2).mean(dim=0), p.flatten(0, -2).mean(dim=0)
        return y, self.count * (used * p).sum(), used

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, load, used = self.mixed(self.enter(x))
        return self.out(y), load, used


class Notes(Experts):
    """The same for notes, behind a recurrence."""

    def __init__(self) -> None:
        super().__init__(out=14)
        self.enter, self.places = nn.Embedding(14, 24), nn.GRU(24, 24, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.places(self.enter(x))[0]
        y, load, used = self.mixed(h)
        return self.out(y), load, used


def routed(seed: int, make: Callable[[], Experts], balance: float, lean: float = 0.0) -> Program:
    model = make()
    task, loss = (tunes(seed), token_loss) if isinstance(model, Notes) else (soils(seed, batch=64), F.cross_entropy)
    with torch.no_grad():
        model.router.bias[1] += lean

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out, load, _ = model(batch[0])
        return loss(out, batch[1]) + balance * load

    return study(
        model,
        task,
        adamw(model.parameters(), lr=6e-3),
        lambda o, y: loss(o[0], y),
        110,
        loss_of=loss_of,
        facts={"largest share": largest_share(model, task)},
    )


for sound, fault, make, good, bad in (
    ("soils-experts-even-start", "soils-experts-router-leans", Experts, {"balance": 0.02}, {"balance": 0, "lean": 40}),
    ("tunes-experts-balanced", "tunes-experts-balance-of-wrong-sign", Notes, {"balance": 0.1}, {"balance": -5.0}),
):
    zoo.beside(
        sound,
        fault,
        lambda s, fault, m=make, g=good, b=bad: routed(s, m, **(b if fault else g)),
        harmed(measured("largest share", above=0.8)),
        "router_collapse",
        "DEAD",
        layer=("router", *(f"experts.{i}.{j}" for i in range(4) for j in (0, 2))),
        also={*BROKEN, "never_moves", "DISCONNECTED", "only_decay", "detached", "loss_grows"},
    )
zoo.healthy("plain-soils-experts-balanced", lambda s: routed(s, Experts, 0.1))
zoo.healthy("plain-soils-experts-no-balance", lambda s: routed(s, Experts, 0.0))
zoo.healthy("plain-tunes-experts-strong-balance", lambda s: routed(s, Notes, 0.5))

# --- embeddings


def unknown(seed: int, share: float) -> Program:
    """Words that the table does not know are word 0."""
    model, random = Desk(), drawn_once(seed, 7191)

    def read(x: Tensor) -> Tensor:
        return x.masked_fill(torch.rand(x.shape, generator=random) < share, 0)

    task = tickets(seed).mapped(read)
    x, y = task.aside()
    facts = {"share of the top row": top_row(model.bag, lambda: F.cross_entropy(model(x), y))}
    return study(model, task, adamw(model.parameters(), lr=1e-2), steps=90, facts=facts)


def clamped(seed: int, offset: int) -> Program:
    """Numbers of people are clamped into the table; they begin at 0 or at 1000."""
    model = NeuMf()
    task = shops(seed).mapped(lambda x: ((x[0] + offset).clamp(max=23), x[1]))
    x, y = task.aside()
    facts = {"share of the top row": top_row(model.person, lambda: bce(model(*x), y))}
    return study(model, task, adamw(model.parameters(), lr=2e-2), bce, 90, facts=facts)


class Padded(nn.Module):
    """The mean of all words of a row, padding too."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(61, 16), mlp([16, 24, 6])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(dim=1))


def filled(seed: int, length: int) -> Program:
    """Rows are filled to a length with word 60, whose vector learns and counts like any other."""
    model = Padded()
    task = tickets(seed).mapped(lambda x: F.pad(x, (0, length - 10), value=60))
    x, y = task.aside()
    facts = {"share of the top row": top_row(model.words, lambda: F.cross_entropy(model(x), y))}
    return study(model, task, adamw(model.parameters(), lr=5e-3), steps=70, facts=facts)


ROW = {*BROKEN, "padding_labels", "input_scales"}
for sound, fault, build, layer in (
    (
        "tickets-few-words-unknown",
        "tickets-nearly-all-words-unknown",
        lambda s, f: unknown(s, 0.97 if f else 0.05),
        "bag",
    ),
    ("shops-people-from-0", "shops-people-from-1000", lambda s, f: clamped(s, 1000 if f else 0), "person"),
    ("tickets-rows-of-12", "tickets-rows-of-300", lambda s, f: filled(s, 300 if f else 12), "words"),
):
    zoo.beside(
        sound, fault, build, harmed(measured("share of the top row", above=0.7)), "embedding_row", layer=layer, also=ROW
    )
zoo.healthy("plain-tickets-a-fifth-of-words-unknown", lambda s: unknown(s, 0.2))
zoo.healthy("plain-tickets-rows-of-20", lambda s: filled(s, 20))

# --- batches


def hazy(seed: int, batch: int) -> tuple[nn.Module, Task, Callable[..., Tensor]]:
    """Soils under much noise."""
    random = drawn_once(seed, 7192)
    task = soils(seed, 4, batch).mapped(lambda x: 0.5 * x.abs() + 1.2 * torch.randn(x.shape, generator=random))
    return mlp([11, 24, 4], nn.Tanh), task, F.cross_entropy


def chancy(seed: int, batch: int) -> tuple[nn.Module, Task, Callable[..., Tensor]]:
    """Rents that are mostly chance."""
    random = drawn_once(seed, 7193)
    task = rents(seed, batch).changed(lambda x, y: (x, y + 5 * torch.randn(y.shape, generator=random)))
    return mlp([9, 24, 1], nn.SiLU), task, F.mse_loss


def mumbled(seed: int, batch: int) -> tuple[nn.Module, Task, Callable[..., Tensor]]:
    """Most departments are wrong."""
    random = drawn_once(seed, 7194)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.rand(y.shape, generator=random) < 0.7
        return x, torch.where(wrong, torch.randint(6, y.shape, generator=random), y)

    return Desk(), tickets(seed, batch=batch).changed(change), F.cross_entropy


for name, make, big, small, rate in (
    ("hazy-soils", hazy, 256, 2, 0.05),
    ("chancy-rents", chancy, 256, 2, 0.02),
    ("mumbled-tickets", mumbled, 256, 1, 0.1),
):
    wide = zoo.healthy(f"plain-{name}-batches-of-{big}", noisy(make, big, rate, 110), learns(0.02))
    zoo.sick(
        f"plain-{name}-batches-of-{small}",
        noisy(make, small, rate, 110),
        broken(measured("noise scale over batch", above=5.0), less=0.5),
        *NOISY,
        also={*BROKEN, "loss_stuck"},
        control=wide,
    )
zoo.healthy(
    "plain-clear-soils-batches-of-6",
    noisy(lambda s, b: (mlp([11, 32, 4], nn.Tanh), soils(s, 4, b), F.cross_entropy), 6, 0.03, 110),
)
