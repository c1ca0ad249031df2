# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Language models and policies, set aside last: routers, rows, logits, noise, and what a trainer logs of its policy.

Half: sealed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Log, Program, Zoo
from validation.cases._sealed_tasks import kiosks, leftovers, scrolls
from validation.evidence.loops import Fact, Played, all_of, broken, learns
from validation.evidence.states import ends_above, logged, row_rules
from validation.labels import FAR_OFF, LOUD_LOGITS, ONE_ANSWER
from validation.policies import of_groups, wrong_answers
from validation.programs import clips, fit, fit_experts, held_out, step_from
from validation.states import BROKEN, IDLE
from validation.tasks import Task, drawn_once, token_loss

zoo = Zoo("state", half="sealed", proof=learns())
WIDTH, TOKENS = 24, 14


# --- mixtures of experts


class Switch(nn.Module):
    """Each token goes to the best of six experts, beside a skip; `noise` shakes the choice while training."""

    def __init__(self, experts: int = 6, top: int = 1, noise: float = 0.0) -> None:
        super().__init__()
        self.router, self.top, self.noise = nn.Linear(WIDTH, experts, bias=False), top, noise
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 32), nn.SiLU(), nn.Linear(32, WIDTH)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.router(x)
        if self.training and self.noise:
            logits = logits + self.noise * torch.randn_like(logits)
        shares = logits.softmax(dim=-1)
        weight, chosen = shares.topk(self.top, dim=-1)
        said = torch.stack([expert(x) for expert in self.experts], dim=-2)
        out = (said.gather(-2, chosen[..., None].expand(*chosen.shape, WIDTH)) * weight[..., None]).sum(-2)
        count = shares.shape[-1]
        load = F.one_hot(chosen, count).float().sum(-2).flatten(0, -2).mean(0)
        return x + out, count * (load * shares.flatten(0, -2).mean(0)).sum()


class Scribe(nn.Module):
    """Next token from layers of experts over a token's vector; `lean` is added to all vectors."""

    def __init__(self, layers: list[Switch], lean: float = 0.0) -> None:
        super().__init__()
        self.table, self.layers, self.head = (
            nn.Embedding(TOKENS, WIDTH),
            nn.ModuleList(layers),
            nn.Linear(WIDTH, TOKENS),
        )
        self.lean = lean

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x, balance = self.table(tokens) + self.lean, torch.zeros(())
        for layer in self.layers:
            x, uneven = layer(x)
            balance = balance + uneven
        return self.head(x), balance


def scribe(balance: float, lean: float = 0.0, steps: int = 100, rate: float = 4e-3, **how) -> Callable[[int], Program]:
    def build(seed: int) -> Program:
        task, model = scrolls(seed), Scribe([Switch(**how) for _ in range(2)], lean)
        if lean:
            for layer in model.layers:
                layer.router.weight.data[0] = layer.router.weight.data[0].abs()
        optimizer = torch.optim.AdamW(model.parameters(), rate)
        x, y = task.aside()

        def score() -> float:
            with torch.no_grad():  # in training mode, for the choice of a noisy switch
                return token_loss(model(x)[0], y).item()

        return fit_experts(model, task, optimizer, steps, balance, score)

    return build


def one_expert(share: float = 0.95) -> Fact:
    """In some layer, one expert is the first choice of nearly all tokens."""

    def fact(played: Played) -> tuple[bool, str]:
        seen: list[float] = []

        def note(_m: nn.Module, _i: object, out: Tensor) -> None:
            seen.append(float(out.argmax(-1).flatten().bincount().max() / out[..., 0].numel()))

        hooks = [layer.router.register_forward_hook(note) for layer in played.program.model.layers]
        with torch.no_grad():
            played.program.model(torch.randint(TOKENS, (32, 12), generator=torch.Generator().manual_seed(3)))
        for hook in hooks:
            hook.remove()
        return max(seen) > share, f"the busiest expert takes {max(seen):.0%}"

    return fact


even = zoo.healthy("sealed-scribe-balanced", scribe(0.05))
zoo.sick(
    "sealed-scribe-vectors-lean-to-the-first-expert",
    scribe(0.0, lean=3.0),
    broken(one_expert()),
    "router_collapse",
    also={"DEAD", *IDLE, "never_moves", "DISCONNECTED"},
    control=even,
)
two = zoo.healthy("sealed-scribe-two-of-six", scribe(0.05, top=2))
zoo.sick(
    "sealed-scribe-balance-with-the-wrong-sign",
    scribe(-0.5, rate=8e-3),
    broken(one_expert()),
    "router_collapse",
    also={"DEAD", *IDLE, "never_moves", "DISCONNECTED"},
    control=even,
)
zoo.sick(
    "sealed-scribe-two-of-six-vectors-lean",
    scribe(0.0, lean=9.0, top=2),
    broken(one_expert()),
    "router_collapse",
    also={"DEAD", *IDLE, "never_moves", "DISCONNECTED"},
    control=two,
)
zoo.healthy("sealed-scribe-noisy-choice", scribe(0.05, noise=0.5))
zoo.healthy("sealed-scribe-three-experts", scribe(0.02, experts=3))
zoo.healthy("sealed-scribe-all-experts-mixed", scribe(0.0, experts=4, top=4))


# --- queries and keys that grow


class Attends(nn.Module):
    """One head of torch's product attention over words, with or without norms on queries and keys."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(8, WIDTH), nn.Parameter(0.5 * torch.randn(1, 8, WIDTH))
        self.query, self.key = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.value, self.out, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        self.norm = norm

    def pair(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k = self.query(x), self.key(x)
        q, k = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in (q, k))
        return (3 * F.normalize(q, dim=-1), 3 * F.normalize(k, dim=-1)) if self.norm else (q, k)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.place
        q, k = self.pair(x)
        v = self.value(x).unflatten(-1, (2, -1)).transpose(1, 2)
        return self.head(x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))


def attends(rate: float, *, norm: bool = False, steps: int = 150) -> Callable[[int], Program]:
    """Queries and keys have a rate of their own."""

    def build(seed: int) -> Program:
        task, model = leftovers(seed, batch=24), Attends(norm)
        fast = [model.query.weight, model.key.weight]
        rest = [p for n, p in model.named_parameters() if not n.startswith(("query", "key"))]
        optimizer = torch.optim.Adam([{"params": fast, "lr": rate}, {"params": rest, "lr": 4e-3}])
        return fit(model, task, optimizer, steps, token_loss)

    return build


def large_logits(level: float = 50.0) -> Fact:
    """The largest logit is above a level at the end."""

    def fact(played: Played) -> tuple[bool, str]:
        model = played.program.model
        tokens = torch.randint(8, (32, 8), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            q, k = model.pair(model.table(tokens) + model.place)
            reached = float((q @ k.transpose(-2, -1)).abs().max()) / (WIDTH // 2) ** 0.5
        return reached > level, f"the largest logit is {reached:.3g}"

    return fact


bounded = zoo.healthy("sealed-attends-norms-on-queries-and-keys", attends(0.1, norm=True))
for rate in (0.1, 0.5):
    zoo.sick(
        f"sealed-attends-queries-and-keys-at-{rate}",
        attends(rate),
        broken(large_logits()),
        *LOUD_LOGITS,
        also={*BROKEN},
        control=bounded,
    )
zoo.healthy("sealed-attends-at-the-usual-rate", attends(4e-3))


# --- a row that takes all


class Bag(nn.Module):
    """Topics of notes: the sum of their words."""

    def __init__(self, filling: int | None) -> None:
        super().__init__()
        self.words = nn.Embedding(60, 16, padding_idx=filling)
        self.body = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 6))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(self.words(tokens).sum(1) / 6)


def notes(seed: int, length: int, where: str) -> Task:
    """Six words of one of six topics, filled up to a length by word 59 behind, or in front."""
    lists = (2 * torch.randn(6, 50, generator=drawn_once(seed, 37))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        topic = torch.randint(6, (48,), generator=random)
        words = torch.multinomial(lists[topic], 6, replacement=True, generator=random)
        missing = length - 6
        return F.pad(words, (missing, 0) if where == "front" else (0, missing), value=59), topic

    return Task(seed, draw, F.cross_entropy)


def filled(filling: int | None, length: int, where: str, limit: float) -> Callable[[int], Program]:
    def build(seed: int) -> Program:
        task, model = notes(seed, length, where), Bag(filling)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        return fit(model, task, optimizer, 120, before=clips(model, limit))

    return build


for where, length in (("behind", 150), ("front", 260)):
    zoo.sick(
        f"sealed-notes-filled-{where}-to-{length}",
        filled(None, length, where, 0.3),
        broken(all_of(row_rules(), ends_above(1.2))),
        "embedding_row",
        "clip_sets_step",
        also=BROKEN,
        control=zoo.healthy(
            f"sealed-notes-filling-{where}-left-out", filled(59, length, where, 0.3), learns(idle=("words",))
        ),
    )
zoo.healthy("sealed-notes-one-filling-word", filled(None, 7, "front", 1.0))


# --- a batch that is too small for its noise


def noisy(batch: int, steps: int = 120) -> Callable[[int], Program]:
    """A weak signal under strong noise."""

    def build(seed: int) -> Program:
        way = torch.randn(10, generator=drawn_once(seed, 38)) / 10**0.5
        random = torch.Generator().manual_seed(seed + 1)

        def draw(count: int, noise: float) -> tuple[Tensor, Tensor]:
            x = torch.randn(count, 10, generator=random)
            return x, torch.tanh(2 * x @ way)[:, None] + noise * torch.randn(count, 1, generator=random)

        model, losses = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 1)), []
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        x, y = draw(512, 0.0)

        def run() -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                for _ in range(2):
                    loss = F.mse_loss(*(lambda b: (model(b[0]), b[1]))(draw(batch, 5.0))) / 2
                    loss.backward()
                optimizer.step()
                losses.append(2 * loss.item())

        def score() -> float:
            with torch.no_grad():
                return F.mse_loss(model(x), y).item()

        return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)

    return build


zoo.sick(
    "sealed-noise-four-samples",
    noisy(2),
    broken(less=0.3),
    "batch_size",
    "loss_stuck",
    also={*BROKEN},
    control=zoo.healthy("sealed-noise-1024-samples", noisy(512)),
)


# --- policies, with the log of their trainer


class Policy(nn.Module):
    """One of five goods, or of nine answers."""

    def __init__(self, dim: int, answers: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 40), nn.Linear(40, answers)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(x))).log_softmax(dim=-1)


def ppo(
    *,
    rate: float = 5e-3,
    passes: int = 4,
    bonus: float = 0.01,
    bound: float = 0.2,
    flat: bool = False,
    hacked: float = 0.0,
    penalty: float = 0.0,
    batches: int = 25,
) -> Callable[[int], Program]:
    """Goods for customers, by clipped ratios; the log has the names of a well-known single-file trainer."""

    def build(seed: int) -> Program:
        task, model, losses, log = kiosks(seed, batch=64), Policy(9, 5), [], Log()
        start = Policy(9, 5)
        start.load_state_dict(model.state_dict())
        optimizer = torch.optim.Adam(model.parameters(), rate)
        random = torch.Generator().manual_seed(seed + 2)

        def run() -> None:
            for _, (x, pay) in zip(range(batches), task, strict=False):
                with torch.no_grad():
                    old, first = model(x), start(x)
                action = torch.multinomial(old.exp(), 1, generator=random)
                reward = torch.ones_like(pay[:, :1]) if flat else pay.gather(1, action) + hacked * (action == 3)
                gain = (reward - reward.mean()) / (reward.std() + 1e-4)
                for _ in range(passes):
                    new = model(x)
                    ratio = (new - old).gather(1, action).exp()
                    entropy = -(new.exp() * new).sum(dim=1).mean()
                    kl = (new.exp() * (new - first)).sum(dim=1).mean()
                    kept = ratio.clamp(1 - bound, 1 + bound)
                    loss = -torch.minimum(ratio * gain, kept * gain).mean() - bonus * entropy + penalty * kl
                    losses.append(step_from(loss, optimizer))
                    log(
                        reward=reward.mean().item(),
                        reward_std=reward.std().item(),
                        entropy=entropy.item(),
                        kl=kl.item(),
                        clip_fraction=(ratio != kept).float().mean().item(),
                    )

        def earned(log_p: Tensor, pay: Tensor) -> Tensor:
            return (pay.amax(dim=1) - (log_p.exp() * pay).sum(dim=1)).mean()

        score = held_out(model, kiosks(seed, batch=512), earned)
        return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)

    return build


calm = zoo.healthy("sealed-ppo-four-passes", ppo(), learns(0.05))
zoo.sick(
    "sealed-ppo-reward-always-one",
    ppo(flat=True),
    broken(logged("reward_std", below=1e-6), less=0.3),
    "no_reward_variance",
    also={*BROKEN, "EXPLORATION"},
    control=calm,
)
zoo.sick(
    "sealed-ppo-one-good-pays-by-mistake",
    ppo(rate=0.03, bonus=0.0, hacked=5.0),
    broken(logged("entropy", below=0.15), less=0.6),
    *ONE_ANSWER,
    also={*BROKEN, "no_reward_variance", "clip_fraction_high"},
    control=calm,
)
zoo.sick(
    "sealed-ppo-bonus-with-the-wrong-sign",
    ppo(rate=0.02, bonus=-1.5),
    broken(logged("entropy", below=0.15), less=0.9),
    *ONE_ANSWER,
    also={*BROKEN, "no_reward_variance", "clip_fraction_high"},
    control=calm,
)
zoo.sick(
    "sealed-ppo-twenty-passes-at-0.1",
    ppo(rate=0.1, passes=20, batches=6),
    broken(logged("clip_fraction", above=0.2)),
    *FAR_OFF,
    also={*BROKEN, "no_reward_variance", "policy_entropy_collapse", "EXPLORATION"},
    control=calm,
)
zoo.healthy("sealed-ppo-penalty-to-the-start", ppo(penalty=0.02), learns(0.05))
zoo.healthy("sealed-ppo-one-pass", ppo(passes=1, rate=1e-2, batches=80), learns(0.05))


def grpo(
    *,
    rate: float = 5e-3,
    beta: float = 0.02,
    group: int = 8,
    reference: float = 1.0,
    epochs: int = 1,
    length: float = 0.0,
) -> Callable[[int], Program]:
    """Groups of answers to each question, compared within their group; the log has the names of a hub's trainer."""

    def build(seed: int) -> Program:
        model, first, losses, log = Policy(8, 9), Policy(8, 9), [], Log()
        first.load_state_dict(model.state_dict())
        codes = torch.randn(8, 9, generator=drawn_once(seed, 39))
        optimizer = torch.optim.AdamW(model.parameters(), rate)
        random = torch.Generator().manual_seed(seed + 3)

        def run() -> None:
            for _ in range(110 // epochs):
                x = torch.randn(24, 8, generator=random)
                with torch.no_grad():
                    old, before = model(x), first(x)
                answers = torch.multinomial(old.exp(), group, replacement=True, generator=random)
                reward = (answers == (x @ codes).argmax(1, keepdim=True)).float() + length * answers / 8
                spread = reward.std(dim=1, keepdim=True)
                gain = (reward - reward.mean(dim=1, keepdim=True)) / (spread + 1e-4)
                for _ in range(epochs):
                    new = model(x)
                    ratio = (new - old).gather(1, answers).exp()
                    kept = ratio.clamp(0.8, 1.2)
                    kl = (new.exp() * (new - reference * before)).sum(dim=1).mean()
                    entropy = -(new.exp() * new).sum(dim=1).mean()
                    loss = -torch.minimum(ratio * gain, kept * gain).mean() + beta * kl
                    losses.append(step_from(loss, optimizer))
                    log(**of_groups(reward, spread, kl, entropy, ratio, kept))

        unseen = torch.randn(512, 8, generator=torch.Generator().manual_seed(seed + 98))
        score = wrong_answers(model, unseen, codes)
        return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)

    return build


groups = zoo.healthy("sealed-grpo-groups-of-eight", grpo(), learns(0.05))
zoo.sick(
    "sealed-grpo-rate-0.4-without-a-penalty",
    grpo(rate=0.4, beta=0.0),
    broken(logged("kl", above=2.0), less=0.8),
    "kl_runaway",
    "policy_entropy_collapse",
    "clip_fraction_high",
    "rate_too_high",
    also={*BROKEN, "no_reward_variance", "EXPLORATION"},
    control=groups,
)
zoo.sick(
    "sealed-grpo-penalty-with-the-wrong-sign",
    grpo(rate=0.02, beta=-2.0),
    broken(logged("kl", above=2.0), less=0.8),
    "kl_runaway",
    "policy_entropy_collapse",
    "rate_too_high",
    also={*BROKEN, "no_reward_variance", "EXPLORATION", "clip_fraction_high"},
    control=groups,
)
zoo.sick(
    "sealed-grpo-fifteen-epochs-per-batch",
    grpo(rate=0.08, epochs=15, beta=0.0),
    broken(logged("clip_ratio/region_mean", above=0.2)),
    *FAR_OFF,
    also={*BROKEN, "no_reward_variance", "policy_entropy_collapse", "EXPLORATION"},
    control=groups,
)
zoo.sick(
    "sealed-grpo-long-answers-pay-six-times",
    grpo(rate=0.03, beta=0.0, length=6.0),
    broken(logged("entropy", below=0.3), less=0.6),
    *ONE_ANSWER,
    also={*BROKEN, "no_reward_variance", "clip_fraction_high"},
    control=groups,
)
zoo.healthy("sealed-grpo-groups-of-sixteen-no-penalty", grpo(beta=0.0, group=16), learns(0.05))
zoo.healthy("sealed-grpo-two-epochs", grpo(epochs=2, rate=4e-3), learns(0.02))
