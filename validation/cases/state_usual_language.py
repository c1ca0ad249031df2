# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Usual programs with faults of second moments, attention, experts, embeddings, batches, policies; and some sound ones.

Half: usual.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Log, Program, Zoo
from validation.cases._common_loops import study
from validation.cases._everyday_loops import largest_share, measured
from validation.cases._plain_loops import harmed
from validation.cases._usual_loops import (
    KINDS,
    DeepFm,
    Gpt,
    PointNet,
    adverts,
    bce,
    cars,
    dishes,
    letters,
    missed,
    posts,
    stones,
)
from validation.cases.state_common_language import aged, noisy, top_row
from validation.cases.state_everyday_language import moments_lag
from validation.evidence.attention import largest_at
from validation.evidence.loops import broken, learns
from validation.evidence.states import logged
from validation.labels import COLLAPSED, LOUD_LOGITS, NOISY, OUTDATED
from validation.nets import mlp
from validation.policies import entropy_of, of_ratios
from validation.programs import held_out, step_from
from validation.states import BROKEN
from validation.tasks import Task, drawn_once, token_loss

zoo = Zoo("state", half="usual", proof=learns())
adamw = torch.optim.AdamW

# --- the second moment lags behind

for name, low, rate, long in (("cars", 0.003, 2e-2, 0.9999), ("tiles", 0.003, 2e-2, 0.9995)):
    stage = lambda x, y, low=low: (x, y, low)  # noqa: E731
    quick = zoo.healthy(f"usual-{name}-loss-counts-late-beta2-0.95", aged(KINDS[name], stage, 0.95, rate), learns(0.05))
    zoo.sick(
        f"usual-{name}-loss-counts-late-beta2-{long}",
        aged(KINDS[name], stage, long, rate),
        moments_lag,
        *OUTDATED,
        also={*BROKEN, "rate_too_high", "bad_batch"},
        control=quick,
    )
zoo.healthy(
    "usual-weather-loss-counts-late-beta2-0.9",
    aged(KINDS["weather"], lambda x, y: (x, y, 0.1), 0.9, 5e-3),
    learns(0.05),
)

# --- attention


def largest_logit(model: Gpt, x: Tensor) -> float:
    """Over all blocks, as the softmax sees it."""

    def read(block: nn.Module, x: Tensor) -> float:
        q, k, _ = block.split(x)
        return float((q @ k.transpose(-1, -2)).abs().max() * (block.scale or q.shape[-1] ** -0.5))

    return largest_at(model.blocks, read, model, x)


def attending(seed: int, *, std: float = 0.2, heads: int = 2, depth: int = 1, fast: float = 4e-3) -> Program:
    """`std` of the queries and keys as they are drawn, and `fast`, the rate of attention."""
    model, task = Gpt(heads=heads, depth=depth), letters(seed)
    for block in model.blocks:
        nn.init.normal_(block.qkv.weight[:64], std=std)
    some = [p for block in model.blocks for p in block.qkv.parameters()]
    rest = [p for name, p in model.named_parameters() if "qkv" not in name]
    optimizer = adamw([{"params": some, "lr": fast}, {"params": rest, "lr": 4e-3}])
    facts = {"largest logit": lambda: largest_logit(model, task.aside()[0])}
    return study(model, task, optimizer, token_loss, 70, facts=facts)


SHARP = {*BROKEN, "first_loss_high", "clip_sets_step", "rate_too_high"}
for sound, fault, good, bad in (
    ("letters-queries-drawn-at-0.2", "letters-queries-drawn-at-1.5", {}, {"std": 1.5}),
    ("letters-one-rate-for-all", "letters-attention-at-rate-0.5", {"heads": 4}, {"heads": 4, "fast": 0.5}),
):
    zoo.beside(
        sound,
        fault,
        lambda s, fault, g=good, b=bad: attending(s, **(b if fault else g)),
        harmed(measured("largest logit", above=30.0), worse=1.15),
        *LOUD_LOGITS,
        "SATURATION",
        layer=("blocks.0.qkv", "blocks.0"),
        also={*SHARP, "SATURATION"},
    )
zoo.healthy("usual-letters-eight-heads", lambda s: attending(s, heads=8))
zoo.healthy("usual-letters-two-blocks", lambda s: attending(s, depth=2, std=0.1))

# --- experts


class Experts(nn.Module):
    """Each row goes to the best of four lines; gives the answer, the balance and the share of each."""

    def __init__(self, count: int = 4, width: int = 6) -> None:
        super().__init__()
        self.router, self.count = nn.Linear(width, count), count
        self.experts = nn.ModuleList(nn.Linear(width, 2) for _ in range(count))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p = self.router(2 * x).softmax(dim=1)
        best = F.one_hot(p.argmax(dim=1), self.count).float()
        each = torch.stack([expert(x) for expert in self.experts], dim=1)
        y = ((best - p).detach() + p)[..., None] * each
        used = best.mean(dim=0)
        return y.sum(dim=1), self.count * (used * p.mean(dim=0)).sum(), used


def regimes(seed: int, batch: int = 64) -> Task:
    """Two numbers by another rule in each of four quarters."""
    ways = torch.randn(4, 6, 2, generator=drawn_once(seed, 8191))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 6, generator=random)
        at = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
        return x, torch.einsum("bi,bio->bo", x, ways[at]) / 2

    return Task(seed, draw, F.mse_loss)


def routed(seed: int, balance: float, lean: float = 0.0, noise: float = 0.0) -> Program:
    model, task = Experts(), regimes(seed)
    with torch.no_grad():
        model.router.bias[2] += lean

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out, load, _ = model(batch[0] + noise * torch.randn_like(batch[0]))
        return F.mse_loss(out, batch[1]) + balance * load

    score = held_out(model, regimes(seed, 256), lambda o, y: F.mse_loss(o[0], y))
    optimizer = adamw(model.parameters(), lr=2e-2)
    return study(
        model,
        task,
        optimizer,
        steps=110,
        loss_of=loss_of,
        score=score,
        facts={"largest share": largest_share(model, task)},
    )


for sound, fault, good, bad in (
    ("regimes-router-begins-even", "regimes-router-leans", {"balance": 0.1}, {"balance": 0.1, "lean": 30.0}),
):
    zoo.beside(
        sound,
        fault,
        lambda s, fault, g=good, b=bad: routed(s, **(b if fault else g)),
        harmed(measured("largest share", above=0.9)),
        "router_collapse",
        "DEAD",
        layer=("router", *(f"experts.{i}" for i in range(4))),
        also={*BROKEN, "never_moves", "DISCONNECTED", "only_decay", "detached", "loss_grows"},
    )
zoo.healthy("usual-regimes-strong-balance", lambda s: routed(s, 0.3))
zoo.healthy("usual-regimes-noise-for-the-router", lambda s: routed(s, 0.1, noise=0.1))

# --- embeddings


class Bag(nn.Module):
    """The mean of all words, and two layers."""

    def __init__(self, words: int = 40) -> None:
        super().__init__()
        self.words, self.deep = nn.Embedding(words, 16, padding_idx=0), mlp([16, 32, 4])

    def forward(self, x: Tensor) -> Tensor:
        return self.deep(self.words(x).mean(dim=1))


def tokenised(seed: int, share: float) -> Program:
    """Words that a tokenizer does not know become word 1."""
    model, random = Bag(), drawn_once(seed, 8192)
    task = posts(seed).mapped(lambda x: x.masked_fill((torch.rand(x.shape, generator=random) < share) & (x > 0), 1))
    x, y = task.aside()
    facts = {"share of the top row": top_row(model.words, lambda: F.cross_entropy(model(x), y))}
    return study(model, task, adamw(model.parameters(), lr=1e-2), steps=80, facts=facts)


def numbered(seed: int, by: int) -> Program:
    """Numbers of people, things and hours are divided by `by` as whole numbers, as they were in an older file."""
    model = DeepFm()
    task = adverts(seed).mapped(lambda x: x // by)
    x, y = task.aside()
    facts = {"share of the top row": top_row(model.vectors, lambda: bce(model(x), y))}
    return study(model, task, adamw(model.parameters(), lr=1e-2), bce, 80, facts=facts)


ROW = {*BROKEN, "padding_labels", "input_scales", "constant_targets"}
for sound, fault, build, layer in (
    (
        "posts-a-word-in-twenty-unknown",
        "posts-tokenizer-of-another-language",
        lambda s, f: tokenised(s, 0.97 if f else 0.05),
        "words",
    ),
    (
        "adverts-numbers-as-they-are",
        "adverts-numbers-divided-by-100",
        lambda s, f: numbered(s, 100 if f else 1),
        "vectors",
    ),
):
    zoo.beside(
        sound,
        fault,
        build,
        harmed(measured("share of the top row", above=0.7)),
        "embedding_row",
        "loss_stuck",
        layer=layer,
        also=ROW,
    )
zoo.healthy("usual-posts-a-quarter-of-words-unknown", lambda s: tokenised(s, 0.25))

# --- batches


def rough_prices(seed: int, batch: int) -> tuple[nn.Module, Task, Callable[..., Tensor]]:
    """Prices that are mostly chance."""
    random = drawn_once(seed, 8193)
    task = cars(seed, batch).changed(lambda x, y: (x, y + 4 * torch.randn(y.shape, generator=random)))
    return mlp([8, 24, 1], nn.GELU), task, F.mse_loss


def mistaken(seed: int, batch: int) -> tuple[nn.Module, Task, Callable[..., Tensor]]:
    """Half of the sorts of stones are wrong."""
    random = drawn_once(seed, 8194)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.rand(y.shape, generator=random) < 0.5
        return x, torch.where(wrong, torch.randint(5, y.shape, generator=random), y)

    return PointNet(), stones(seed, batch=batch).changed(change), F.cross_entropy


for name, make, big, small, rate in (
    ("rough-prices", rough_prices, 256, 2, 0.02),
    ("mistaken-stones", mistaken, 192, 1, 0.1),
):
    wide = zoo.healthy(f"usual-{name}-batches-of-{big}", noisy(make, big, rate, 100), learns(0.02))
    zoo.sick(
        f"usual-{name}-batches-of-{small}",
        noisy(make, small, rate, 100),
        broken(measured("noise scale over batch", above=5.0), less=0.5),
        *NOISY,
        also={*BROKEN, "loss_stuck", "bad_batch"},
        control=wide,
    )
zoo.healthy(
    "usual-clear-prices-batches-of-8",
    noisy(lambda s, b: (mlp([8, 32, 1], nn.GELU), cars(s, b), F.mse_loss), 8, 0.01, 110),
)

# --- policies


def waiter(seed: int, *, bonus: float = 0.01, rate: float = 8e-3, scale: float = 1.0, steps: int = 100) -> Program:
    """A policy gradient with a running baseline; `scale` multiplies what a dish pays."""
    model, log, random = mlp([7, 32, 6], nn.Tanh), Log(), torch.Generator().manual_seed(seed + 3)
    mean = [0.5]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        logp = model(batch[0]).log_softmax(dim=1)
        dish = torch.multinomial(logp.detach().exp(), 1, generator=random)
        reward = batch[1].gather(1, dish)
        log(entropy=entropy_of(logp.detach()).item(), reward=reward.mean().item(), reward_std=reward.std().item())
        gain = scale * (reward - mean[0])
        mean[0] += 0.1 * (reward.mean().item() - mean[0])
        return -(gain * logp.gather(1, dish)).mean() - bonus * entropy_of(logp)

    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    return study(model, dishes(seed), optimizer, missed, steps, loss_of=loss_of, log=log)


calm = zoo.healthy("usual-waiter-bonus-0.01", lambda s: waiter(s))
zoo.healthy("usual-waiter-bonus-0.03", lambda s: waiter(s, bonus=0.03))
for name, options in (("bonus-of-wrong-sign", {"bonus": -1.0}), ("rate-0.5", {"rate": 0.5})):
    zoo.sick(
        f"usual-waiter-{name}",
        lambda s, options=options: waiter(s, **options),
        harmed(logged("entropy", below=0.2)),
        *COLLAPSED,
        also={*BROKEN, "rate_too_high", "no_reward_variance", "SATURATION"},
        control=calm,
    )


class ActorCritic(nn.Module):
    """Logits and a value from networks of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp([7, 40, 6], nn.Tanh), mlp([7, 40, 1], nn.Tanh)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(x), self.critic(x).squeeze(1)


def ppo(seed: int, *, epochs: int = 4, rollouts: int = 24, rate: float = 4e-3, stale: bool = False) -> Program:
    """Plays, then learns in epochs; `stale` compares with the first policy of all instead of that which played."""
    model, task, log = ActorCritic(), dishes(seed, batch=128), Log()
    first = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    random, losses = torch.Generator().manual_seed(seed + 1), []

    def learn(state: Tensor, dish: Tensor, old: Tensor, reward: Tensor, gain: Tensor) -> None:
        logits, value = model(state)
        logp = logits.log_softmax(dim=1)
        ratio = (logp.gather(1, dish) - old).squeeze(1).exp()
        loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() + 0.5 * F.mse_loss(value, reward)
        loss = loss - 0.01 * entropy_of(logp)
        log(**of_ratios(ratio, entropy_of(logp.detach()), reward))
        losses.append(step_from(loss, optimizer, model, 0.5))

    def run() -> None:
        for _, (state, pay) in zip(range(rollouts), task, strict=False):
            with torch.no_grad():
                logits, value = model(state)
                dish = torch.multinomial(logits.softmax(dim=1), 1, generator=random)
                old = (first(state)[0] if stale else logits).log_softmax(dim=1).gather(1, dish)
                reward = pay.gather(1, dish).squeeze(1)
                gain = reward - value
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            for _epoch in range(epochs):
                learn(state, dish, old, reward, gain)

    score = held_out(model, dishes(seed, batch=256), lambda out, pay: missed(out[0], pay))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


near = zoo.healthy("usual-waiter-ppo", lambda s: ppo(s))
zoo.healthy("usual-waiter-ppo-two-epochs", lambda s: ppo(s, epochs=2, rollouts=45))
for name, options in (
    ("sixty-epochs-at-0.05", {"epochs": 60, "rollouts": 2, "rate": 0.05}),
    ("compares-with-the-first-policy", {"stale": True}),
):
    zoo.sick(
        f"usual-waiter-ppo-{name}",
        lambda s, options=options: ppo(s, **options),
        harmed(logged("clip_fraction", above=0.35), worse=1.15),
        "clip_fraction_high",
        "kl_runaway",
        also={*BROKEN, "rate_too_high", "same_batch", *COLLAPSED, "loss_grows", "first_loss_high", "batch_size"},
        control=near,
    )


def tuned(seed: int, *, weight: float = 0.5, rate: float = 5e-3) -> Program:
    """A model of letters is tuned to a taste, held near what it was by the divergence."""
    model, log, random = Gpt(8, width=24, heads=2), Log(), torch.Generator().manual_seed(seed + 4)
    before = copy.deepcopy(model).requires_grad_(False)
    pay = torch.rand(8, generator=drawn_once(seed, 8195))
    optimizer, losses = adamw(model.parameters(), lr=rate), []

    @torch.no_grad()
    def sample(count: int, source: torch.Generator) -> Tensor:
        text = torch.randint(8, (count, 1), generator=source)
        for _ in range(4):
            p = model(text)[:, -1].softmax(dim=-1)
            text = torch.cat([text, torch.multinomial(p, 1, generator=source)], dim=1)
        return text

    def parts(text: Tensor) -> tuple[Tensor, Tensor]:
        logp, ref = (m(text[:, :-1]).log_softmax(dim=-1) for m in (model, before))
        return logp, (logp.exp() * (logp - ref)).sum(dim=-1).mean()

    def run() -> None:
        for _ in range(60):
            text = sample(48, random)
            logp, kl = parts(text)
            reward = pay[text[:, 1:]].mean(dim=1)
            log(
                kl=kl.item(),
                entropy=entropy_of(logp.detach()).item(),
                reward=reward.mean().item(),
                reward_std=reward.std().item(),
            )
            chosen = logp.gather(2, text[:, 1:, None]).squeeze(2).sum(dim=1)
            loss = -(4 * (reward - reward.mean()) * chosen).mean() + weight * kl
            losses.append(step_from(loss, optimizer, model))

    def score() -> float:
        text = sample(256, torch.Generator().manual_seed(seed + 5))
        with torch.no_grad():
            return 1 - pay[text[:, 1:]].mean().item() + 0.25 * parts(text)[1].item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


held = zoo.healthy("usual-taste-held-near", lambda s: tuned(s, weight=1.0), learns(0.05))
zoo.healthy("usual-taste-held-nearer", lambda s: tuned(s, weight=1.5), learns(0.03))
for name, options in (
    ("divergence-pays", {"weight": -1.0}),
    ("divergence-left-out", {"weight": 0.0, "rate": 0.02}),
):
    zoo.sick(
        f"usual-taste-{name}",
        lambda s, options=options: tuned(s, **options),
        harmed(logged("kl", above=1.2), worse=1.2),
        "kl_runaway",
        "policy_entropy_collapse",
        also={*BROKEN, *COLLAPSED, "no_reward_variance", "rate_too_high"},
        control=held,
    )
