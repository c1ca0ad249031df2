# ruff: noqa: D102 - a case is explained by its name, a forward by its class
"""Plain programs of policies whose own logged numbers tell what goes wrong, and some that learn.

Half: plain.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Log, Program, Zoo
from validation.cases._common_loops import study
from validation.cases._plain_loops import harmed, unearned, visitors
from validation.evidence.loops import learns
from validation.evidence.states import logged
from validation.labels import COLLAPSED
from validation.policies import entropy_of, of_ratios
from validation.programs import held_out, step_from
from validation.states import BROKEN
from validation.tasks import drawn_once

zoo = Zoo("state", half="plain", proof=learns())


# --- one net with two heads, under PPO


class TwoHeads(nn.Module):
    """A trunk, logits and a value."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Dropout(p), nn.Linear(40, 40), nn.ReLU())
        self.actor, self.critic = nn.Linear(40, 5), nn.Linear(40, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.actor(h), self.critic(h).squeeze(1)


def ppo(
    seed: int,
    *,
    epochs: int = 4,
    rollouts: int = 24,
    rate: float = 4e-3,
    bonus: float = 0.01,
    warmth: float = 1.0,
    p: float = 0.0,
    minibatches: int = 1,
) -> Program:
    """Plays, then learns in epochs; `warmth` is that by which the played log-probabilities are noted."""
    model, task, log = TwoHeads(p), visitors(seed, batch=128), Log()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    random, losses = torch.Generator().manual_seed(seed + 1), []

    def learn(state: Tensor, action: Tensor, old: Tensor, reward: Tensor, advantage: Tensor) -> None:
        logits, value = model(state)
        logp = logits.log_softmax(dim=1)
        ratio = (logp.gather(1, action) - old).squeeze(1).exp()
        clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        entropy = entropy_of(logp)
        loss = -clipped.mean() + 0.5 * F.mse_loss(value, reward) - bonus * entropy
        log(**of_ratios(ratio, entropy, reward))
        losses.append(step_from(loss, optimizer, model))

    def run() -> None:
        for _, (state, pay) in zip(range(rollouts), task, strict=False):
            model.eval()
            with torch.no_grad():
                logits, value = model(state)
                action = torch.multinomial(logits.softmax(dim=1), 1, generator=random)
                old = (logits / warmth).log_softmax(dim=1).gather(1, action)
                reward = pay.gather(1, action).squeeze(1)
                advantage = reward - value
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            model.train()
            for _epoch in range(epochs):
                for part in torch.randperm(len(state), generator=random).chunk(minibatches):
                    learn(state[part], action[part], old[part], reward[part], advantage[part])

    score = held_out(model, visitors(seed, batch=256), lambda out, pay: unearned(out[0], pay))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


usual = zoo.healthy("plain-adverts-ppo", lambda s: ppo(s))
zoo.healthy("plain-adverts-ppo-two-minibatches", lambda s: ppo(s, minibatches=2, epochs=3, rollouts=16, rate=3e-3))
zoo.healthy("plain-adverts-ppo-small-rate", lambda s: ppo(s, rate=2e-3, rollouts=30))
zoo.healthy("plain-adverts-ppo-bonus-0.05", lambda s: ppo(s, bonus=0.05))
zoo.healthy("plain-adverts-ppo-two-epochs", lambda s: ppo(s, epochs=2, rollouts=50, rate=5e-3))
for name, options in (
    ("notes-chances-of-another-temperature", {"warmth": 4.0}),
    ("eighty-epochs-at-0.03", {"epochs": 80, "rollouts": 2, "rate": 0.03}),
    ("dropout-of-0.8-when-it-learns", {"p": 0.8}),
):
    zoo.sick(
        f"plain-adverts-ppo-{name}",
        lambda s, options=options: ppo(s, **options),
        harmed(logged("clip_fraction", above=0.35), worse=1.1),
        "clip_fraction_high",
        "kl_runaway",
        also={*BROKEN, "rate_too_high", "same_batch", *COLLAPSED, "loss_grows", "first_loss_high", "batch_size"},
        control=usual,
    )
zoo.sick(
    "plain-adverts-ppo-bonus-of-wrong-sign",
    lambda s: ppo(s, bonus=-2.0),
    harmed(logged("entropy", below=0.15), worse=1.1),
    *COLLAPSED,
    also={*BROKEN, "clip_fraction_high"},
    control=usual,
)

# --- the plain policy gradient


def reinforce(
    seed: int, *, centred: bool = True, rate: float = 8e-3, sharp: float = 1.0, bonus: float = 0.0
) -> Program:
    """One advert for each visitor; `sharp` multiplies the logits."""
    model, log, random = TwoHeads(), Log(), torch.Generator().manual_seed(seed + 3)
    policy = nn.Sequential(model.trunk, model.actor)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        logp = (sharp * policy(batch[0])).log_softmax(dim=1)
        action = torch.multinomial(logp.detach().exp(), 1, generator=random)
        reward = batch[1].gather(1, action)
        log(entropy=entropy_of(logp.detach()).item(), reward=reward.mean().item(), reward_std=reward.std().item())
        gain = reward - reward.mean() if centred else reward
        return -(gain * logp.gather(1, action)).mean() - bonus * entropy_of(logp)

    score = held_out(policy, visitors(seed, batch=256), lambda out, pay: unearned(sharp * out, pay))
    optimizer = torch.optim.Adam(policy.parameters(), lr=rate)
    return study(policy, visitors(seed), optimizer, steps=110, loss_of=loss_of, score=score, log=log)


gradient = zoo.healthy("plain-adverts-policy-gradient", lambda s: reinforce(s))
zoo.healthy("plain-adverts-policy-gradient-bonus", lambda s: reinforce(s, bonus=0.01))
zoo.healthy("plain-adverts-policy-gradient-slower", lambda s: reinforce(s, rate=4e-3))
for name, options in (
    ("no-baseline-and-rate-0.3", {"centred": False, "rate": 0.3}),
    ("logits-times-60", {"sharp": 60.0}),
):
    zoo.sick(
        f"plain-adverts-policy-gradient-{name}",
        lambda s, options=options: reinforce(s, **options),
        harmed(logged("entropy", below=0.15), worse=1.1),
        *COLLAPSED,
        also={*BROKEN, "rate_too_high", "no_reward_variance", "SATURATION"},
        control=gradient,
    )

# --- a policy that writes, held near a reference


class Writer(nn.Module):
    """Words, a GRU, the next word."""

    def __init__(self, words: int = 8, width: int = 24) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(words + 1, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(self.words(x))[0])


def writes(
    seed: int, *, weight: float = 1.0, rate: float = 6e-3, bonus: float = 0.0, steps: int = 70, clip: float | None = 1.0
) -> Program:
    """Texts of five words; each word pays, and the divergence from the first policy costs."""
    model, log, random = Writer(), Log(), torch.Generator().manual_seed(seed + 4)
    first = copy.deepcopy(model).requires_grad_(False)
    pay = torch.rand(8, generator=drawn_once(seed, 7195))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=rate), []

    @torch.no_grad()
    def sample(count: int, source: torch.Generator) -> Tensor:
        text = torch.full((count, 1), 8)
        for _ in range(5):
            p = model(text)[:, -1].softmax(dim=-1)
            text = torch.cat([text, torch.multinomial(p, 1, generator=source)], dim=1)
        return text

    def parts(text: Tensor) -> tuple[Tensor, Tensor]:
        logp, ref = model(text[:, :-1]).log_softmax(dim=-1), first(text[:, :-1]).log_softmax(dim=-1)
        return logp, (logp.exp() * (logp - ref)).sum(dim=-1).mean()

    def run() -> None:
        for _ in range(steps):
            text = sample(48, random)
            logp, kl = parts(text)
            reward = pay[text[:, 1:]].mean(dim=1)
            gain = 4 * (reward - reward.mean())
            entropy = entropy_of(logp)
            log(kl=kl.item(), entropy=entropy.item(), reward=reward.mean().item(), reward_std=reward.std().item())
            chosen = logp.gather(2, text[:, 1:, None]).squeeze(2).sum(dim=1)
            loss = -(gain * chosen).mean() + weight * kl - bonus * entropy
            optimizer.zero_grad()
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            losses.append(loss.item())

    def score() -> float:
        text = sample(256, torch.Generator().manual_seed(seed + 5))
        with torch.no_grad():
            return 1 - pay[text[:, 1:]].mean().item() + 0.25 * parts(text)[1].item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


near = zoo.healthy("plain-writer-held-near", lambda s: writes(s), learns(0.05))
zoo.healthy("plain-writer-held-nearer", lambda s: writes(s, weight=1.5, rate=4e-3), learns(0.03))
zoo.healthy("plain-writer-with-bonus", lambda s: writes(s, bonus=0.1), learns(0.05))
zoo.healthy("plain-writer-slow", lambda s: writes(s, rate=4e-3, steps=90), learns(0.05))
for name, options in (
    ("divergence-of-wrong-sign", {"weight": -1.0}),
    ("divergence-weight-cut-to-zero", {"weight": 0.0, "rate": 0.03}),
    ("divergence-rewarded-a-little", {"weight": -0.3, "rate": 0.02}),
):
    zoo.sick(
        f"plain-writer-{name}",
        lambda s, options=options: writes(s, **options),
        harmed(logged("kl", above=1.2), worse=1.2),
        "kl_runaway",
        "policy_entropy_collapse",
        also={*BROKEN, *COLLAPSED, "no_reward_variance", "rate_too_high"},
        control=near,
    )
zoo.sick(
    "plain-writer-entropy-punished",
    lambda s: writes(s, bonus=-2.0),
    harmed(logged("entropy", below=0.15), worse=1.2),
    *COLLAPSED,
    "kl_runaway",
    also={*BROKEN, "no_reward_variance"},
    control=near,
)
