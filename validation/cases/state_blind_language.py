# ruff: noqa: D102, D103 - a case is explained by its name
"""Language models and policies, set aside: routers, rows of embeddings, noise, and what a trainer logs of its policy.

Half: holdout.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Log, Program, Zoo
from validation.evidence.loops import Fact, Played, all_of, broken, learns
from validation.evidence.states import ends_above, logged, row_rules
from validation.labels import FAR_OFF
from validation.policies import of_groups, wrong_answers
from validation.programs import clips, fit, fit_experts, held_out
from validation.states import BROKEN, IDLE
from validation.tasks import Task, drawn_once, markov, regression

zoo = Zoo("state", half="holdout", proof=learns())
WIDTH, TOKENS, LENGTH = 24, 22, 12


# --- mixtures of experts


class Experts(nn.Module):
    """One of four experts for each token, chosen by a router; `push` is what the first has in advance."""

    def __init__(self, push: float, fused: bool, top: int) -> None:
        super().__init__()
        self.top, self.fused = top, fused
        self.gate = nn.Linear(WIDTH, 4)
        nn.init.constant_(self.gate.bias[:1], push)
        if fused:
            self.up = nn.Parameter(torch.randn(4, WIDTH, 2 * WIDTH) / WIDTH**0.5)
            self.down = nn.Parameter(torch.randn(4, 2 * WIDTH, WIDTH) / (2 * WIDTH) ** 0.5)
        else:
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(4)
            )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shares = self.gate(x).softmax(-1)
        weight, chosen = shares.topk(self.top, dim=-1)
        if self.fused:
            all_out = torch.einsum("...eh,ehd->...ed", F.gelu(torch.einsum("...d,edh->...eh", x, self.up)), self.down)
        else:
            all_out = torch.stack([expert(x) for expert in self.experts], dim=-2)
        out = (all_out.gather(-2, chosen[..., None].expand(*chosen.shape, WIDTH)) * weight[..., None]).sum(-2)
        load = F.one_hot(chosen, 4).float().sum(-2).flatten(0, -2).mean(0)
        return x + out, 4 * (load * shares.flatten(0, -2).mean(0)).sum()


class Mixture(nn.Module):
    """Next token from two layers of experts over a mean of what came before."""

    def __init__(self, push: float, fused: bool = False, top: int = 1) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS)
        self.layers = nn.ModuleList(Experts(push, fused, top) for _ in range(2))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x, balance = self.embedding(tokens), torch.zeros(())
        for layer in self.layers:
            x, uneven = layer(x)
            balance = balance + uneven
        return self.head(x), balance


def mixture(push: float, balance: float, **how) -> Callable[[int], Program]:
    def build(seed: int) -> Program:
        task, model = markov(seed, TOKENS, LENGTH, 24), Mixture(push, **how)
        optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
        config = {"routers": ["layers.0.gate", "layers.1.gate"]} if how.get("fused") else {}
        return fit_experts(model, task, optimizer, 160, balance, config=config)

    return build


def one_expert(share: float = 0.95) -> Fact:
    """In some layer, one expert is the first choice of nearly all tokens."""

    def fact(played: Played) -> tuple[bool, str]:
        seen: list[float] = []
        hooks = [
            layer.gate.register_forward_hook(
                lambda _m, _i, out: seen.append(
                    float(out.argmax(-1).flatten().bincount(minlength=4).max() / out[..., 0].numel())
                )
            )
            for layer in played.program.model.layers
        ]
        with torch.no_grad():
            played.program.model(torch.randint(TOKENS, (32, LENGTH), generator=torch.Generator().manual_seed(3)))
        for hook in hooks:
            hook.remove()
        return max(seen) > share, f"the busiest expert takes {max(seen):.0%}"

    return fact


even = zoo.healthy("blind-experts-balanced", mixture(0.0, 0.02))
zoo.sick(
    "blind-experts-one-takes-all",
    mixture(8.0, 0.0),
    broken(one_expert()),
    "router_collapse",
    also={"DEAD", *IDLE},
    control=even,
)
even_two = zoo.healthy("blind-experts-fused-balanced", mixture(0.0, 0.02, fused=True))
zoo.sick(
    "blind-experts-fused-one-takes-all",
    mixture(9.0, 0.0, fused=True),
    broken(one_expert()),
    "router_collapse",
    also={"DEAD", *IDLE},
    control=even_two,
)
zoo.healthy("blind-experts-two-of-four", mixture(0.0, 0.02, top=2))
zoo.healthy("blind-experts-a-little-uneven", mixture(0.6, 0.02))


# --- a row that takes all


class Bag(nn.Module):
    """Topics of documents: the mean of their words, of which `padding` is one or none."""

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.words = nn.Embedding(80, 20, padding_idx=padding)
        self.body = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 8))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(self.words(tokens).sum(1) / 8)


def padded(padding: int | None) -> Callable[[int], Program]:
    """Documents of few words, filled up to 200 with word 79, under a clip of 0.3."""

    def build(seed: int) -> Program:
        task, model = topics(seed, 200), Bag(padding)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        return fit(model, task, optimizer, 140, before=clips(model, 0.3))

    return build


def topics(seed: int, length: int) -> Task:
    """Eight words of one of eight topics, filled up to a length with word 79."""
    lists = (2 * torch.randn(8, 60, generator=drawn_once(seed, 31))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        topic = torch.randint(8, (64,), generator=random)
        words = torch.multinomial(lists[topic], 8, replacement=True, generator=random)
        return F.pad(words, (0, length - 8), value=79), topic

    return Task(seed, draw, F.cross_entropy)


zoo.sick(
    "blind-documents-padding-trained",
    padded(None),
    broken(all_of(row_rules(), ends_above(1.5))),
    "embedding_row",
    "clip_sets_step",
    also=BROKEN,
    control=zoo.healthy("blind-documents-padding-left-out", padded(79), learns(idle=("words",))),
)


# --- a batch that is too small for its noise


def noisy(batch: int, steps: int = 160) -> Callable[[int], Program]:
    """Weak signal, strong noise, two micro-batches per step."""

    def build(seed: int) -> Program:
        task = regression(seed, 16, 1, batch, noise=6.0)
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        losses: list[float] = []

        def run() -> None:
            batches = iter(task)
            for _ in range(steps):
                optimizer.zero_grad()
                for _ in range(2):
                    x, y = next(batches)
                    loss = F.mse_loss(model(x), y) / 2
                    loss.backward()
                optimizer.step()
                losses.append(2 * loss.item())

        meant = regression(seed, 16, 1, 512, noise=0.0)
        score = held_out(model, meant, F.mse_loss)
        return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)

    return build


zoo.sick(
    "blind-noise-two-samples",
    noisy(1),
    broken(less=0.3),
    "batch_size",
    "loss_stuck",
    also={*BROKEN},
    control=zoo.healthy("blind-noise-256-samples", noisy(256)),
)


# --- policies, with the log of their trainer


class Policy(nn.Module):
    """One of twelve answers to a question."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 12))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).log_softmax(-1)


def grpo(
    *,
    rate: float = 3e-3,
    penalty: float = 0.02,
    rewarded: bool = True,
    bonus: float = 0.01,
    epochs: int = 1,
    biased: float = 0.0,
    steps: int = 140,
) -> Callable[[int], Program]:
    """Groups of eight answers to each of 32 questions, compared within their group; the log has TRL's names."""

    def build(seed: int) -> Program:
        model, reference = Policy(), Policy()
        reference.load_state_dict(model.state_dict())
        reference.requires_grad_(False)
        codes = torch.randn(10, 12, generator=torch.Generator().manual_seed(seed + 5))
        optimizer = torch.optim.Adam(model.parameters(), rate)
        losses, log = [], Log()
        numbers = torch.Generator().manual_seed(seed + 9)

        def run() -> None:
            for _ in range(steps // epochs):
                x = torch.randn(32, 10, generator=numbers)
                with torch.no_grad():
                    old = model(x)
                answers = torch.multinomial(old.exp(), 8, replacement=True, generator=numbers)
                good = (answers == (x @ codes).argmax(1, keepdim=True)).float()
                reward = good + biased * (answers == 0) if rewarded else torch.zeros_like(good)
                spread = reward.std(1, keepdim=True)
                advantage = (reward - reward.mean(1, keepdim=True)) / (spread + 1e-4)
                for _ in range(epochs):
                    chances = model(x)
                    ratio = (chances - old).gather(1, answers).exp()
                    kept = ratio.clamp(0.8, 1.2)
                    entropy = -(chances.exp() * chances).sum(1).mean()
                    kl = (chances.exp() * (chances - reference(x))).sum(1).mean()
                    loss = -torch.minimum(ratio * advantage, kept * advantage).mean() + penalty * kl - bonus * entropy
                    optimizer.zero_grad()
                    loss.backward()
                    log(**of_groups(reward, spread, kl, entropy, ratio, kept))
                    optimizer.step()
                    losses.append(loss.item())

        unseen = torch.randn(512, 10, generator=torch.Generator().manual_seed(seed + 99))
        score = wrong_answers(model, unseen, codes)
        return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)

    return build


calm = zoo.healthy("blind-grpo", grpo(), learns(0.1))
zoo.sick(
    "blind-grpo-reward-always-zero",
    grpo(rewarded=False),
    broken(logged("frac_reward_zero_std", above=0.95), less=0.3),
    "no_reward_variance",
    also={*BROKEN, "EXPLORATION"},
    control=calm,
)
zoo.sick(
    "blind-grpo-entropy-gone",
    grpo(rate=0.02, penalty=0.0, bonus=0.0, biased=3.0),
    broken(logged("entropy", below=0.15), less=0.6),
    "policy_entropy_collapse",
    "EXPLORATION",
    also={*BROKEN, "no_reward_variance"},
    control=calm,
)
zoo.sick(
    "blind-grpo-far-from-its-reference",
    grpo(rate=0.6, penalty=0.0, bonus=0.0),
    broken(logged("kl", above=2.2), less=0.7),
    "kl_runaway",
    "policy_entropy_collapse",
    "clip_fraction_high",
    "rate_too_high",
    also={*BROKEN, "no_reward_variance", "EXPLORATION"},
    control=calm,
)
reused = zoo.healthy("blind-ppo-four-passes", grpo(epochs=4, rate=3e-3, steps=200), learns(0.05))
zoo.sick(
    "blind-ppo-twenty-passes",
    grpo(epochs=20, rate=0.03, steps=200, penalty=0.0),
    broken(logged("clip_ratio/region_mean", above=0.3), less=0.85),
    *FAR_OFF,
    also={*BROKEN, "no_reward_variance", "policy_entropy_collapse", "EXPLORATION"},
    control=reused,
)
zoo.healthy("blind-grpo-no-bonus", grpo(bonus=0.0, penalty=0.0), learns(0.1))
zoo.healthy("blind-grpo-small-rate", grpo(rate=1.5e-3), learns(0.05))
