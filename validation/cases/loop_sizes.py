# ruff: noqa: D103 - a case is explained by its name
"""Programs whose steps are too large or too small, and their repaired twins.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from validation.case import Program, Zoo
from validation.evidence.loops import broken, learns, steps_above, steps_below
from validation.labels import CRAWLS, FAST, IDLE, SUMMED, THROWN_OFF, UNDIVIDED
from validation.nets import Actor, ConvNet, LanguageModel, he_, mlp
from validation.programs import fit, held_out, sgd, step_from
from validation.tasks import bandit, blobs, images, manifold, markov, token_loss

zoo = Zoo("loop", half="tune", proof=learns())

# --- rates


def nano(seed: int, lr: float, steps: int = 80) -> Program:
    """The loop of a small GPT: warm-up, clipping at 1, decay."""
    task = markov(seed, 24, 16, 16)
    model = LanguageModel(24, 32, 4, 2, tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
    losses: list[float] = []

    def run() -> None:
        for step, (x, y) in zip(range(steps), task, strict=False):
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1.0, (step + 1) / 10)
            loss = token_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())

    score = held_out(model, task, token_loss)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


gpt = zoo.healthy("small-gpt", lambda s: nano(s, 3e-3))
zoo.sick(
    "small-gpt-rate-times-1000",
    lambda s: nano(s, 3.0),
    broken(steps_above(3), less=0.3),
    *FAST,
    also=THROWN_OFF,
    control=gpt,
)
zoo.sick(
    "small-gpt-rate-1e-8",
    lambda s: nano(s, 1e-8),
    broken(steps_below(1e-6), less=0.01),
    *CRAWLS,
    also=IDLE,
    control=gpt,
)


def dense(seed: int, kind: str, lr: float, steps: int = 80) -> Program:
    model = he_(mlp([24, 64, 64, 6]))
    return fit(model, blobs(seed, 24, 6, 64, 0.7), getattr(torch.optim, kind)(model.parameters(), lr=lr), steps)


plain = zoo.healthy("dense-sgd-0.1", lambda s: dense(s, "SGD", 0.1))
zoo.sick(
    "dense-sgd-100",
    lambda s: dense(s, "SGD", 100.0),
    broken(steps_above(3), less=0),
    *FAST,
    also=THROWN_OFF,
    control=plain,
)
quick = zoo.healthy("dense-rmsprop-1e-3", lambda s: dense(s, "RMSprop", 1e-3))
zoo.sick(
    "dense-rmsprop-3",
    lambda s: dense(s, "RMSprop", 3.0),
    broken(steps_above(3), less=0),
    *FAST,
    also=THROWN_OFF,
    control=quick,
)


def convolved(seed: int, lr: float) -> Program:
    model = ConvNet([3, 16, 16], 8, norm=nn.BatchNorm2d, pool=(0,))
    return fit(model, images(seed, size=8), sgd(model, lr, momentum=0.9), 70)


seen = zoo.healthy("convolutions-sgd-0.03", lambda s: convolved(s, 0.03))
zoo.sick(
    "convolutions-sgd-1e-7", lambda s: convolved(s, 1e-7), broken(steps_below(1e-6)), *CRAWLS, also=IDLE, control=seen
)


def ppo(seed: int, lr: float) -> Program:
    """One-step episodes, normalised advantages, four epochs over each rollout, clipping at 0.5."""
    task = bandit(seed, 8, 4, 128)
    model = Actor(8, 4, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, eps=1e-5)
    random = torch.Generator().manual_seed(seed + 3)
    losses: list[float] = []

    def run() -> None:
        for (state, best), _ in zip(task, range(25), strict=False):
            with torch.no_grad():
                logits, value = model(state)
                action = torch.multinomial(logits.softmax(-1), 1, generator=random).squeeze(1)
                before = logits.log_softmax(-1).gather(1, action[:, None]).squeeze(1)
                reward = (action == best).float()
                advantage = reward - value
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            for _epoch in range(4):
                logits, value = model(state)
                logp = logits.log_softmax(-1)
                ratio = (logp.gather(1, action[:, None]).squeeze(1) - before).exp()
                surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                entropy = -(logp.exp() * logp).sum(-1).mean()
                loss = -surrogate.mean() + 0.5 * F.mse_loss(value, reward) - 0.01 * entropy
                losses.append(step_from(loss, optimizer, model, 0.5))

    score = held_out(model, task, lambda out, best: 1 - out[0].softmax(-1).gather(1, best[:, None]).mean())
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


played = zoo.healthy("ppo-3e-3", lambda s: ppo(s, 3e-3))
zoo.sick("ppo-rate-3", lambda s: ppo(s, 3.0), broken(steps_above(3), less=0.5), *FAST, also=THROWN_OFF, control=played)

# --- losses that are summed


def token_sum(seed: int, reduction: str) -> Program:
    """The rate was found with the mean."""
    task = markov(seed, 16, 16, 16)
    model = LanguageModel(16, 24, 2, 1)
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    return fit(
        model,
        task,
        sgd(model, 0.3, momentum=0.9),
        100,
        lambda o, y: criterion(o.flatten(0, 1), y.flatten()),
        token_loss,
    )


mean_tokens = zoo.healthy("language-model-sgd-mean", lambda s: token_sum(s, "mean"))
zoo.sick(
    "language-model-sgd-sum",
    lambda s: token_sum(s, "sum"),
    broken(steps_above(1), less=0.5),
    *SUMMED,
    also=THROWN_OFF,
    control=mean_tokens,
)


def coder(seed: int, reduction: str) -> Program:
    model = he_(mlp([24, 48, 6, 48, 24]))
    criterion = nn.MSELoss(reduction=reduction)
    return fit(model, manifold(seed, 24, 4, 64), sgd(model, 0.1, momentum=0.8), 100, criterion, F.mse_loss)


mean_pixels = zoo.healthy("autoencoder-sgd-mean", lambda s: coder(s, "mean"))
zoo.sick(
    "autoencoder-sgd-sum",
    lambda s: coder(s, "sum"),
    broken(steps_above(1), less=0.2),
    *SUMMED,
    also=THROWN_OFF,
    control=mean_pixels,
)

# --- accumulation


def accumulated(seed: int, divide: bool) -> Program:
    """Sixteen micro-batches per step."""
    task = blobs(seed, 24, 6, 8, 0.7)
    model = he_(mlp([24, 64, 64, 6]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses: list[float] = []

    def run() -> None:
        optimizer.zero_grad()
        for i, (x, y) in zip(range(40 * 16), task, strict=False):
            loss = F.cross_entropy(model(x), y)
            (loss / 16 if divide else loss).backward()
            losses.append(loss.item())
            if (i + 1) % 16 == 0:
                optimizer.step()
                optimizer.zero_grad()

    score = held_out(model, blobs(seed, 24, 6, 256, 0.7))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


divided = zoo.healthy("accumulates-16-and-divides", lambda s: accumulated(s, True))
zoo.sick(
    "accumulates-16-and-does-not-divide",
    lambda s: accumulated(s, False),
    broken(steps_above(1), less=0.5),
    *UNDIVIDED,
    also={*THROWN_OFF, "summed_loss"},
    control=divided,
)
