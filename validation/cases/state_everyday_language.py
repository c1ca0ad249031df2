# ruff: noqa: D102 - a case is explained by its name, a forward by its class
"""Ordinary programs of language models, experts and policies that go wrong in their own numbers, and some that do not.

Half: everyday.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Log, Program, Zoo, costly
from validation.cases._everyday_loops import Measured, measured, supervised, train
from validation.evidence.attention import largest_at
from validation.evidence.loops import broken, learns
from validation.evidence.states import logged
from validation.labels import COLLAPSED, LOUD_LOGITS
from validation.nets import Attention, LanguageModel, Shared, he_, mlp
from validation.policies import entropy_of, of_ratios
from validation.programs import adam, fit, held_out, step_from
from validation.states import BROKEN
from validation.tasks import blobs, drawn_once, errands, majority, markov, token_loss
from validation.tasks.rewards import unpaid

zoo = Zoo("state", half="everyday", proof=learns())

# --- the second moment lags behind


def reweighted(seed: int, beta2: float, *, low: float = 0.01, rate: float = 4e-3) -> Program:
    """Goes on from a checkpoint of weights and optimizer; after 40 steps a loss counts in full that counted little."""
    task, model = markov(seed, 20, 12, 16), LanguageModel(20, 32, 2, 1)
    fit(model, markov(seed + 90, 20, 12, 16), adam(model, 3e-3), 40, token_loss).run()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, beta2))

    def step(batch: tuple[Tensor, Tensor], weight: float) -> float:
        optimizer.zero_grad()
        loss = token_loss(model(batch[0]), batch[1])
        (weight * loss).backward()
        optimizer.step()
        return loss.item()

    batches, losses = iter(task), []
    for _ in range(20):
        step(next(batches), low)
    for state in optimizer.state.values():  # as if it had gone on like this for 1000 steps
        state["exp_avg_sq"] *= (1 - beta2**1000) / (1 - beta2**20)
        state["step"].fill_(1000.0)
    optimizer.zero_grad()

    def run() -> None:
        for i in range(100):
            losses.append(step(next(batches), low if i < 40 else 1.0))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, token_loss))


@costly
def moments_lag(case: Case, seed: int) -> Evidence:
    """Gradients are many times the root of their second moments, the loss jumps; neither for the twin."""

    def measure(each: Case) -> tuple[int, float]:
        program = each.make(seed)
        optimizer, ratios = program.optimizer, []

        def look(*_: Any) -> None:
            worst = 0.0
            for group in optimizer.param_groups:
                for p in group["params"]:
                    state = optimizer.state.get(p)
                    if p.grad is not None and state:
                        root = state["exp_avg_sq"] / (1 - group["betas"][1] ** float(state["step"]))
                        worst = max(worst, float((p.grad.square() / root.clamp_min(1e-16)).mean().sqrt()))
            ratios.append(worst)

        optimizer.register_step_pre_hook(look)
        program.run()
        before, after = program.losses[30:40], program.losses[43:63]
        return sum(r > 5 for r in ratios[42:]), (sum(after) / len(after)) / (sum(before) / len(before))

    assert case.control is not None
    (many, jump), (few, calm) = measure(case), measure(case.control)
    text = f"{many} gradients above 5 times their second moment, the loss goes up {jump:.2f} times; "
    return Evidence(many >= 10 > few and jump > 1.1 * calm, text + f"the twin: {few}, {calm:.2f} times")


for name, low, rate, long in (("weight-0.01-to-1", 0.01, 2e-2, 0.9999), ("weight-0.002-to-1", 0.002, 1.5e-2, 0.999)):
    quick = zoo.healthy(
        f"everyday-loss-{name}-beta2-0.95",
        lambda s, low=low, rate=rate: reweighted(s, 0.95, low=low, rate=rate),
        learns(0.05),
    )
    zoo.sick(
        f"everyday-loss-{name}-beta2-{long}",
        lambda s, low=low, rate=rate, long=long: reweighted(s, long, low=low, rate=rate),
        moments_lag,
        "stale_second_moment",
        "UNSTABLE",
        also=BROKEN,
        control=quick,
    )

# --- attention


class Unscaled(Attention):
    """An attention by hand, with the division by the root of the width or without."""

    def __init__(self, width: int, heads: int, scaled: bool) -> None:
        super().__init__(width, heads, causal=True)
        self.scaled = scaled
        for part in (self.query, self.key):
            nn.init.normal_(part.weight, std=0.3)

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(part(x)) for part in (self.query, self.key, self.value))
        scores = q @ k.transpose(-2, -1)
        if self.scaled:
            scores = scores / q.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:]).triu(1).bool()
        return self.out((scores.masked_fill(later, -1e9).softmax(dim=-1) @ v).transpose(1, 2).flatten(-2))


def largest_logit(model: LanguageModel, tokens: Tensor) -> float:
    """Over all blocks, of the queries and keys as they are."""

    def read(module: Attention, x: Tensor) -> float:
        q, k = module.split(module.query(x)), module.split(module.key(x))
        by = 1.0 if isinstance(module, Unscaled) and not module.scaled else q.shape[-1] ** 0.5
        return float((q @ k.transpose(-2, -1)).abs().max()) / by

    return largest_at((block.attention for block in model.blocks), read, model, tokens)


def attending(seed: int, *, scaled: bool | None = None, fast: float = 2e-3) -> Program:
    """A small GPT; its own attention, or a rate of its own for queries and keys."""
    task, model = markov(seed, 20, 12, 16), LanguageModel(20, 32, 2, 2)
    if scaled is not None:
        for block in model.blocks:
            block.attention = Unscaled(32, 2, scaled)
    named = dict(model.named_parameters())
    quick = [name for name in named if "query" in name or "key" in name]
    rest = [p for name, p in named.items() if name not in quick]
    groups = [{"params": [named[name] for name in quick], "lr": fast}, {"params": rest, "lr": 2e-3}]
    return train(
        model,
        task,
        supervised(model, token_loss),
        torch.optim.AdamW(groups),
        held_out(model, task, token_loss),
        epochs=1,
        limit=120,
        facts={"largest logit": lambda: largest_logit(model, task.aside()[0])},
    )


own_attention = zoo.healthy("everyday-gpt-own-attention", lambda s: attending(s, scaled=True))
zoo.sick(
    "everyday-gpt-own-attention-not-divided",
    lambda s: attending(s, scaled=False),
    broken(measured("largest logit", above=25.0)),
    *LOUD_LOGITS,
    also={*BROKEN, "first_loss_high"},
    control=own_attention,
)
usual = zoo.healthy("everyday-gpt-one-rate", lambda s: attending(s))
zoo.sick(
    "everyday-gpt-queries-and-keys-at-the-rate-of-the-head",
    lambda s: attending(s, fast=0.06),
    broken(measured("largest logit", above=25.0)),
    *LOUD_LOGITS,
    "rate_too_high",
    also=BROKEN,
    control=usual,
)

# --- experts


class Experts(nn.Module):
    """Each row goes to the expert that its router likes best, or to two of them."""

    def __init__(self, count: int = 4, top: int = 1) -> None:
        super().__init__()
        self.router = nn.Linear(24, count)
        self.experts = nn.ModuleList(mlp([24, 32, 6]) for _ in range(count))
        self.top = top
        self.register_buffer("lean", torch.zeros(count))  # is added where experts are chosen, and nowhere else

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = self.router(x).softmax(dim=1)
        chosen = (p + self.lean).topk(self.top, dim=1).indices
        weight = p.gather(1, chosen)
        used = torch.zeros_like(p).scatter(1, chosen, 1.0)
        gate = torch.zeros_like(p).scatter(1, chosen, weight)
        out = sum(gate[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        return out, len(self.experts) * (used.mean(dim=0) / self.top * p.mean(dim=0)).sum()


def routed(seed: int, balance: float, *, lean: float = 0.0, top: int = 1, steps: int = 120) -> Program:
    """The loss of the task and of the balance by its weight, or experts that get a lean when they have little to do."""
    task, model = blobs(seed, 24, 6, 128, 0.5), Experts(top=top)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out, load = model(batch[0])
        return F.cross_entropy(out, batch[1]) + balance * load

    @torch.no_grad()
    def shares() -> Tensor:
        first = (model.router(task.aside()[0]).softmax(dim=1) + model.lean).argmax(dim=1)
        return F.one_hot(first, 4).float().mean(dim=0)

    def even_out(_: int) -> None:
        model.lean += lean * (0.25 - shares())

    score = held_out(model, task, lambda out, y: F.cross_entropy(out[0], y))
    return train(
        model,
        task,
        loss_of,
        adam(model, 5e-3),
        score,
        epochs=1,
        limit=steps,
        after=even_out,
        facts={"largest share": lambda: float(shares().max())},
    )


balanced = zoo.healthy("everyday-experts-balanced", lambda s: routed(s, 2.0, steps=200))
zoo.healthy("everyday-experts-best-two", lambda s: routed(s, 0.02, top=2))
zoo.sick(
    "everyday-experts-balance-with-wrong-sign",
    lambda s: routed(s, -2.0, steps=200),
    broken(measured("largest share", above=0.75)),
    "router_collapse",
    also=BROKEN,
    layer="router",
    control=balanced,
)
evened = zoo.healthy("everyday-experts-lean-to-the-idle", lambda s: routed(s, 0.0, lean=0.2))
zoo.sick(
    "everyday-experts-lean-to-the-busy",
    lambda s: routed(s, 0.0, lean=-0.2),
    broken(measured("largest share", above=0.95)),
    "router_collapse",
    also=BROKEN,
    layer="router",
    control=evened,
)

# --- embeddings


class Bag(nn.Module):
    """The sum of the words of a text."""

    def __init__(self, vocabulary: int, padding: int | None) -> None:
        super().__init__()
        self.embedding, self.fc = nn.Embedding(vocabulary, 24, padding_idx=padding), mlp([24, 32, 6])

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.embedding(tokens).sum(dim=1) / 6)


def top_row(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], float]:
    """Share of the squared gradient that one row of the embedding has."""

    def share() -> float:
        (gradient,) = torch.autograd.grad(loss(), model.embedding.weight)
        rows = gradient.square().sum(dim=1)
        return float(rows.max() / rows.sum())

    return share


def bagged(seed: int, padding: int | None) -> Program:
    """Texts of 13 words in rows of 60; the rest is padding, which has a row of its own."""

    def pad(tokens: Tensor) -> Tensor:
        return F.pad(tokens, (0, 47), value=6)

    model, task = Bag(7, padding), majority(seed).mapped(pad)
    if padding is None:
        with torch.no_grad():
            model.embedding.weight[6] = 0
    x, y = task.aside()
    facts = {"share of the top row": top_row(model, lambda: F.cross_entropy(model(x), y))}
    return train(
        model, task, supervised(model), adam(model, 3e-3), held_out(model, task), epochs=1, limit=100, facts=facts
    )


def known_words(seed: int, known: int, skew: float = 0.0) -> Program:
    """A vocabulary of so many words; all others are one token. With `skew`, some words are rare."""
    rare = drawn_once(seed, 71)

    def clamp(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if skew:
            x = torch.where(torch.rand(x.shape, generator=rare) < skew, 0, x)
        return x.clamp(max=known), y

    task, model = markov(seed, 30, 12, 16).changed(clamp), LanguageModel(30, 32, 2, 1)
    x, y = task.aside()
    facts = {"share of the top row": top_row(model, lambda: token_loss(model(x), y))}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    score = held_out(model, task, token_loss)
    return train(model, task, supervised(model, token_loss), optimizer, score, epochs=1, limit=90, facts=facts)


bag = zoo.healthy("everyday-bag-padding-row-fixed", lambda s: bagged(s, 6))
zoo.sick(
    "everyday-bag-padding-row-trained",
    lambda s: bagged(s, None),
    broken(measured("share of the top row", above=0.7)),
    "embedding_row",
    layer="embedding",
    also={*BROKEN, "padding_labels"},
    control=bag,
)
all_words = zoo.healthy("everyday-gpt-all-words-known", lambda s: known_words(s, 29))
zoo.sick(
    "everyday-gpt-nearly-all-words-unknown",
    lambda s: known_words(s, 1),
    broken(measured("share of the top row", above=0.5), less=0.7),
    "embedding_row",
    layer="embedding",
    also=BROKEN,
    control=all_words,
)
zoo.healthy("everyday-gpt-one-word-in-four-the-same", lambda s: known_words(s, 29, 0.25))

# --- batches


def noisy(seed: int, size: int, dim: int = 60, rate: float = 0.02) -> Program:
    """A weak signal in many columns, two micro-batches per step."""
    task = blobs(seed, dim, 4, size, 0.12)
    model = he_(mlp([dim, 32, 4]))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    losses: list[float] = []
    large = iter(blobs(seed, dim, 4, 4096, 0.12))

    def gradient(batch: tuple[Tensor, Tensor]) -> Tensor:
        parts = torch.autograd.grad(F.cross_entropy(model(batch[0]), batch[1]), list(model.parameters()))
        return torch.cat([part.flatten() for part in parts])

    whole = gradient(next(large))
    x, y = next(large)
    one = torch.stack([gradient((x[i : i + 1], y[i : i + 1])) for i in range(64)])
    scale = float((one.square().sum(dim=1).mean() - whole.square().sum()) / whole.square().sum())

    def run() -> None:
        for i, (x, y) in zip(range(300), task, strict=False):
            loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            losses.append(2 * loss.item())
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()

    return Measured(
        model=model,
        optimizer=optimizer,
        run=run,
        losses=losses,
        score=held_out(model, blobs(seed, dim, 4, 1024, 0.12)),
        facts={"noise scale over batch": lambda: scale / (2 * size)},
    )


for dim, rate in ((60, 0.02), (100, 0.02)):
    wide = zoo.healthy(f"everyday-weak-signal-{dim}-batches-of-256", lambda s, d=dim, r=rate: noisy(s, 128, d, r))
    zoo.sick(
        f"everyday-weak-signal-{dim}-batches-of-2",
        lambda s, d=dim, r=rate: noisy(s, 1, d, r),
        broken(measured("noise scale over batch", above=5.0), less=0.5),
        "batch_size",
        "UNSTABLE",
        also={*BROKEN, "loss_stuck"},
        control=wide,
    )

# --- policies


def ppo(
    seed: int,
    *,
    epochs: int = 4,
    rollouts: int = 25,
    rate: float = 3e-3,
    bonus: float = 0.01,
    batch: int = 96,
    synced: bool = True,
) -> Program:
    """Proximal policy optimization of errands; logs what trainers log. A worker with a copy of the policy plays."""
    task, model = errands(seed, batch), Shared(8, 5, 32)
    worker = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, eps=1e-5)
    random = torch.Generator().manual_seed(seed + 3)
    log, losses = Log(), []

    def run() -> None:
        for _, (state, pay) in zip(range(rollouts), task, strict=False):
            with torch.no_grad():
                if synced:
                    worker.load_state_dict(model.state_dict())
                logits, value = worker(state)
                old = logits.log_softmax(dim=1)
                action = torch.multinomial(old.exp(), 1, generator=random)
                reward = pay.gather(1, action).squeeze(1)
                advantage = reward - value
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            for _epoch in range(epochs):
                logits, value = model(state)
                logp = logits.log_softmax(dim=1)
                ratio = (logp.gather(1, action) - old.gather(1, action)).squeeze(1).exp()
                clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                entropy = entropy_of(logp)
                loss = -clipped.mean() + 0.5 * F.mse_loss(value, reward) - bonus * entropy
                log(**of_ratios(ratio, entropy, reward))
                losses.append(step_from(loss, optimizer, model, 0.5))

    score = held_out(model, errands(seed, 512), lambda out, pay: 1 - (out[0].softmax(dim=1) * pay).sum(dim=1).mean())
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


usual_ppo = zoo.healthy("everyday-ppo", lambda s: ppo(s))
zoo.healthy("everyday-ppo-ten-epochs-small-rate", lambda s: ppo(s, epochs=10, rollouts=12, rate=1e-3, batch=256))
zoo.healthy("everyday-ppo-bonus-0.05", lambda s: ppo(s, bonus=0.05))
zoo.sick(
    "everyday-ppo-entropy-with-wrong-sign",
    lambda s: ppo(s, bonus=-5.0),
    broken(logged("entropy", below=0.2), less=0.8),
    *COLLAPSED,
    also={*BROKEN, "clip_fraction_high"},
    control=usual_ppo,
)
CLIPPED = "clip_fraction_high"
zoo.sick(
    "everyday-ppo-worker-never-synced",
    lambda s: ppo(s, synced=False),
    broken(logged("clip_fraction", above=0.4)),
    CLIPPED,
    also={*BROKEN, "kl_runaway", *COLLAPSED},
    control=usual_ppo,
)
few_epochs = zoo.healthy("everyday-ppo-rate-0.01-three-epochs", lambda s: ppo(s, epochs=3, rollouts=30, rate=0.01))
zoo.sick(
    "everyday-ppo-rate-0.01-sixty-epochs",
    lambda s: ppo(s, epochs=60, rollouts=3, rate=0.01),
    broken(logged("clip_fraction", above=0.4)),
    CLIPPED,
    also={*BROKEN, "kl_runaway", "rate_too_high", "same_batch", *COLLAPSED},
    control=few_epochs,
)


def reinforce(seed: int, baseline: bool, offset: float = 5.0) -> Program:
    """Rewards that are all positive, with or without their mean taken off."""
    task, model = errands(seed, 32), he_(mlp([8, 48, 48, 5]))
    random, log = torch.Generator().manual_seed(seed + 3), Log()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        state, pay = batch
        logp = model(state).log_softmax(dim=1)
        action = torch.multinomial(logp.detach().exp(), 1, generator=random)
        reward = pay.gather(1, action) + offset
        log(entropy=entropy_of(logp.detach()).item(), reward=reward.mean().item(), reward_std=reward.std().item())
        advantage = reward - reward.mean() if baseline else reward
        return -(logp.gather(1, action) * advantage).mean()

    score = held_out(model, errands(seed, 512), unpaid)
    return train(model, task, loss_of, adam(model, 1e-2), score, epochs=1, limit=120, log=log)


zoo.healthy("everyday-reinforce-baseline", lambda s: reinforce(s, True))


def preferred(seed: int, weight: float, *, rate: float = 2e-3, steps: int = 140) -> Program:
    """Next words that a judge likes, held to a reference by the KL divergence; logs reward and divergence."""
    model = LanguageModel(20, 32, 2, 1)
    fit(model, markov(seed, 20, 8, 32), adam(model, 3e-3), 60, token_loss).run()
    model.zero_grad(set_to_none=True)
    reference = copy.deepcopy(model).requires_grad_(False)
    likes = torch.randn(20, generator=drawn_once(seed, 81))
    task, log = markov(seed, 20, 8, 16), Log()
    random = torch.Generator().manual_seed(seed + 3)

    def parts(tokens: Tensor) -> tuple[Tensor, Tensor]:
        logp, ref = model(tokens).log_softmax(dim=-1), reference(tokens).log_softmax(dim=-1)
        return logp, (logp.exp() * (logp - ref)).sum(dim=-1).mean()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        logp, kl = parts(batch[0])
        action = torch.multinomial(logp.detach().exp().flatten(0, 1), 1, generator=random)
        reward = likes[action]
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        log(kl=kl.item(), reward=reward.mean().item(), entropy=entropy_of(logp.detach().flatten(0, 1)).item())
        return -(logp.flatten(0, 1).gather(1, action) * advantage).mean() + weight * kl

    def score() -> float:
        with torch.no_grad():
            logp, kl = parts(task.aside()[0])
            return 3 - float((logp.exp() @ likes).mean()) + 0.5 * float(kl)

    return train(model, task, loss_of, adam(model, rate), score, epochs=1, limit=steps, log=log)


held_near = zoo.healthy("everyday-rlhf-kl-2", lambda s: preferred(s, 2.0), learns(0.02))
zoo.healthy("everyday-rlhf-kl-2-small-rate", lambda s: preferred(s, 2.0, rate=1e-3), learns(0.02))
for name, weight in (("no-kl-term", 0.0), ("kl-term-with-wrong-sign", -2.0)):
    zoo.sick(
        f"everyday-rlhf-{name}",
        lambda s, weight=weight: preferred(s, weight),
        broken(logged("kl", above=2.0)),
        "kl_runaway",
        also={*BROKEN, *COLLAPSED},
        control=held_near,
    )
