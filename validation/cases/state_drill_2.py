# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies with the log of their trainer, experts, logits, rows and noise; and optimizers in 16 bits.

Half: drill.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Log, Program, Zoo
from validation.evidence.loops import Fact, Played, broken, learns
from validation.evidence.states import logged, no_second_moment, same_bits, shrunk, spikes
from validation.labels import FAR_OFF, LOUD_LOGITS, ONE_ANSWER, SPOILT
from validation.nets import SequenceModel, mlp
from validation.programs import fit, held_out, step_from
from validation.states import BROKEN, IDLE, loop
from validation.tasks import Task, drawn_once, grains, loads, sensors, songs, token_loss

zoo = Zoo("state", half="drill", proof=learns())
optim = torch.optim
LOST = {*BROKEN, "no_reward_variance", "EXPLORATION", "policy_entropy_collapse", "kl_runaway", "clip_fraction_high"}


# --- policies


def worth(seed: int, actions: int, batch: int = 64) -> Task:
    """What each action pays in a situation of ten numbers."""
    codes = torch.randn(10, actions, generator=drawn_once(seed, 61))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 10, generator=random)
        return x, torch.tanh(x @ codes)

    return Task(seed, draw, F.mse_loss)


class Chooser(nn.Module):
    """Logarithms of the chances of each action."""

    def __init__(self, actions: int, act: type[nn.Module] = nn.Tanh) -> None:
        super().__init__()
        self.body = mlp([10, 48, 48, actions], act)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).log_softmax(dim=-1)


def missed(log_p: Tensor, pay: Tensor) -> Tensor:
    return (pay.amax(dim=1) - (log_p.exp() * pay).sum(dim=1)).mean()


NAMES = {
    "short": {"entropy": "entropy", "kl": "approx_kl", "clip": "clipfrac", "reward": "reward"},
    "folders": {
        "entropy": "losses/entropy",
        "kl": "losses/approx_kl",
        "clip": "losses/clipfrac",
        "reward": "charts/episodic_return",
    },
    "actor": {
        "entropy": "actor/entropy",
        "kl": "actor/ppo_kl",
        "clip": "actor/pg_clipfrac",
        "reward": "critic/rewards/mean",
    },
}


def surrogate(
    *,
    actions: int = 6,
    rate: float = 4e-3,
    passes: int = 4,
    parts: int = 1,
    bound: float = 0.2,
    bonus: float = 0.01,
    batches: int = 24,
    names: str = "short",
    prize: Callable[[Tensor, Tensor], Tensor] | None = None,
    per_batch: bool = False,
) -> Callable[[int], Program]:
    """Clipped ratios over some passes, each in parts; logs each step, or once per batch of experience."""

    def build(seed: int) -> Program:
        task, model, losses, log = worth(seed, actions), Chooser(actions), [], Log()
        optimizer = optim.Adam(model.parameters(), rate, eps=1e-5)
        random, named = torch.Generator().manual_seed(seed + 2), NAMES[names]

        def run() -> None:
            for _, (x, pay) in zip(range(batches), task, strict=False):
                with torch.no_grad():
                    before = model(x)
                action = torch.multinomial(before.exp(), 1, generator=random)
                reward = prize(pay, action) if prize else pay.gather(1, action)
                gain = (reward - reward.mean()) / (reward.std() + 1e-6)
                for _ in range(passes):
                    for rows in torch.randperm(len(x), generator=random).chunk(parts):
                        new = model(x[rows])
                        ratio = (new - before[rows]).gather(1, action[rows]).exp()
                        kept, entropy = ratio.clamp(1 - bound, 1 + bound), -(new.exp() * new).sum(1).mean()
                        loss = -torch.minimum(ratio * gain[rows], kept * gain[rows]).mean() - bonus * entropy
                        losses.append(step_from(loss, optimizer, model, 0.5))
                        said = {
                            named["entropy"]: entropy.item(),
                            named["kl"]: ((ratio - 1) - ratio.log()).mean().item(),
                            named["clip"]: (ratio != kept).float().mean().item(),
                            named["reward"]: reward.mean().item(),
                        }
                        if not per_batch:
                            log(**said)
                if per_batch:
                    log(**said)

        score = held_out(model, worth(seed, actions, 512), missed)
        return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)

    return build


four = zoo.healthy("drill-ratios-four-passes", surrogate(), learns(0.05))
parted = zoo.healthy(
    "drill-ratios-three-passes-in-four-parts", surrogate(passes=3, parts=4, rate=2e-3, names="folders")
)
rarely = zoo.healthy(
    "drill-ratios-logged-once-per-batch", surrogate(names="actor", per_batch=True, batches=40), learns(0.05)
)
zoo.healthy(
    "drill-ratios-learned-well-and-sure", surrogate(bonus=0.0, rate=6e-3, batches=90, passes=3, actions=4), learns(0.3)
)
for name, twin, more in (
    ("forty-passes", four, {"rate": 0.02, "passes": 40, "batches": 5}),
    (
        "ten-passes-bound-of-0.02",
        parted,
        {"rate": 0.02, "passes": 10, "bound": 0.02, "batches": 12, "names": "folders"},
    ),
):
    key = NAMES[more.get("names", "short")]["clip"]
    zoo.sick(
        f"drill-ratios-{name}", surrogate(**more), broken(logged(key, above=0.3)), *FAR_OFF, also=LOST, control=twin
    )
zoo.sick(
    "drill-ratios-last-action-pays-ten",
    surrogate(
        rate=0.02, bonus=0.0, names="actor", prize=lambda pay, action: pay.gather(1, action) + 10.0 * (action == 5)
    ),
    broken(logged("actor/entropy", below=0.2), less=0.6),
    *ONE_ANSWER,
    also=LOST,
    control=rarely,
)


def reinforce(
    *, rate: float = 5e-3, bonus: float = 0.01, baseline: bool = True, steps: int = 100, flat: bool = False
) -> Callable[[int], Program]:
    """The plain policy gradient."""

    def build(seed: int) -> Program:
        task, model, losses, log = worth(seed, 5), Chooser(5, nn.ReLU), [], Log()
        optimizer = optim.RMSprop(model.parameters(), rate / 4)
        random, usual = torch.Generator().manual_seed(seed + 4), 0.0

        def run() -> None:
            nonlocal usual
            for _, (x, pay) in zip(range(steps), task, strict=False):
                chances = model(x)
                action = torch.multinomial(chances.detach().exp(), 1, generator=random)
                reward = torch.zeros_like(pay[:, :1]) if flat else pay.gather(1, action)
                gain = reward - usual if baseline else reward
                usual = 0.9 * usual + 0.1 * reward.mean().item()
                entropy = -(chances.exp() * chances).sum(1).mean()
                loss = -(chances.gather(1, action) * gain).mean() - bonus * entropy
                losses.append(step_from(loss, optimizer))
                log(reward=reward.mean().item(), reward_std=reward.std().item(), entropy=entropy.item())

        score = held_out(model, worth(seed, 5, 512), missed)
        return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)

    return build


paid = zoo.healthy("drill-plain-policy-gradient", reinforce(), learns(0.05))
zoo.healthy("drill-plain-policy-gradient-no-baseline", reinforce(baseline=False, steps=140), learns(0.03))
zoo.sick(
    "drill-plain-policy-gradient-never-paid",
    reinforce(flat=True, bonus=0.001),
    broken(logged("reward_std", below=1e-6), less=0.3),
    "no_reward_variance",
    also=LOST,
    control=paid,
)
zoo.sick(
    "drill-plain-policy-gradient-rate-0.3",
    reinforce(rate=0.3, bonus=0.0),
    broken(logged("entropy", below=0.1), less=0.6),
    "policy_entropy_collapse",
    "rate_too_high",
    "EXPLORATION",
    also=LOST,
    control=paid,
)


def bandit_arms(seed: int) -> Program:
    """Three arms, one of them best: the entropy goes to nothing as it should."""
    model, losses, log = nn.Linear(1, 3, bias=False), [], Log()
    optimizer, random = optim.SGD(model.parameters(), 0.5), torch.Generator().manual_seed(seed)
    means = torch.tensor([0.2, 0.9, 0.5])

    def run() -> None:
        for _ in range(150):
            chances = model(torch.ones(64, 1)).log_softmax(-1)
            arm = torch.multinomial(chances.detach().exp(), 1, generator=random)
            reward = (torch.rand(64, 1, generator=random) < means[arm]).float()
            loss = -(chances.gather(1, arm) * (reward - reward.mean())).mean()
            losses.append(step_from(loss, optimizer))
            log(entropy=-(chances.exp() * chances).sum(1).mean().item(), reward=reward.mean().item())

    def score() -> float:
        with torch.no_grad():
            return 0.9 - float(model(torch.ones(1, 1)).softmax(-1)[0] @ means)

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


zoo.healthy("drill-three-arms", bandit_arms)


def values(seed: int) -> Program:
    """Values of a walk of twelve places, bootstrapped from a copy that follows; its loss rises before it falls."""
    model, kept = mlp([12, 48, 2], nn.ReLU), mlp([12, 48, 2], nn.ReLU)
    kept.load_state_dict(model.state_dict())
    optimizer, losses, log = optim.Adam(model.parameters(), 3e-3), [], Log()
    random = torch.Generator().manual_seed(seed)
    eye = torch.eye(12)

    def run() -> None:
        for at in range(200):
            place, action = torch.randint(11, (64,), generator=random), torch.randint(2, (64,), generator=random)
            after = (place + 2 * action - 1).clamp(0, 11)
            reward = (after == 11).float()
            with torch.no_grad():
                target = reward + 0.9 * (1 - reward) * kept(eye[after]).amax(1)
            said = model(eye[place]).gather(1, action[:, None]).squeeze(1)
            loss = F.smooth_l1_loss(said, target)
            losses.append(step_from(loss, optimizer))
            log(td_loss=loss.item(), q_mean=said.mean().item(), epsilon=max(0.05, 1 - at / 100))
            if at % 10 == 9:
                kept.load_state_dict(model.state_dict())

    def score() -> float:
        true = 0.9 ** torch.arange(10, -1, -1).float()
        with torch.no_grad():
            return F.mse_loss(model(eye[:11]).amax(1), true).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


zoo.healthy("drill-values-from-a-copy", values)


# --- experts


class Mix(nn.Module):
    """Experts behind a gate, top one or two; the gate's shares and what is chosen are kept."""

    def __init__(self, experts: int, top: int, width: int = 32) -> None:
        super().__init__()
        self.gate, self.top = nn.Linear(width, experts), top
        self.experts = nn.ModuleList(mlp([width, width, width], nn.GELU) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        weight, chosen = shares.topk(self.top, dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slot = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, weight[rows, slot, None] * expert(x[rows]))
        load = F.one_hot(chosen, shares.shape[-1]).float().sum(1).mean(0)
        self.uneven = shares.shape[-1] * (load * shares.mean(0)).sum() / self.top
        return x + out


class Mixed(nn.Module):
    """A body, a layer of experts, a head."""

    def __init__(self, experts: int, top: int, fond: float = 0.0) -> None:
        super().__init__()
        self.enter, self.mix, self.head = nn.Linear(18, 32), Mix(experts, top), nn.Linear(32, 7)
        with torch.no_grad():
            self.mix.gate.bias[0] += fond

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(torch.tanh(self.enter(x))))


def routed(experts: int, top: int, balance: float, rate: float = 4e-3, fond: float = 0.0) -> Callable[[int], Program]:
    def build(seed: int) -> Program:
        task, model, losses = grains(seed), Mixed(experts, top, fond), []
        optimizer = optim.AdamW(model.parameters(), rate)

        def run() -> None:
            for _, (x, y) in zip(range(100), task, strict=False):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                (loss + balance * model.mix.uneven).backward()
                optimizer.step()
                losses.append(loss.item())

        return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))

    return build


def one_expert(share: float = 0.95) -> Fact:
    def fact(played: Played) -> tuple[bool, str]:
        model = played.program.model
        with torch.no_grad():
            first = model.mix.gate(torch.tanh(model.enter(torch.randn(512, 18)))).argmax(-1)
        reached = float(first.bincount().max() / 512)
        return reached > share, f"the busiest expert takes {reached:.0%}"

    return fact


even = zoo.healthy("drill-mix-of-five-balanced", routed(5, 1, 0.05))
zoo.healthy("drill-mix-two-of-eight", routed(8, 2, 0.02))
for name, made in (
    ("gate-fond-of-one", routed(5, 1, 0.0, fond=8.0)),
    ("penalty-with-the-wrong-sign", routed(5, 1, -1.0, rate=1e-2)),
):
    zoo.sick(
        f"drill-mix-{name}",
        made,
        broken(one_expert()),
        "router_collapse",
        also={*IDLE, "DEAD", "DISCONNECTED", "never_moves", "only_decay"},
        control=even,
    )


# --- noise


def noisy(batch: int, micro: int, noise: float, rate: float = 1e-2, steps: int = 100) -> Callable[[int], Program]:
    """A weak linear signal under noise, in micro-batches."""

    def build(seed: int) -> Program:
        way = torch.randn(12, generator=drawn_once(seed, 38)) / 12**0.5
        random = torch.Generator().manual_seed(seed + 1)

        def draw(count: int, noise: float) -> tuple[Tensor, Tensor]:
            x = torch.randn(count, 12, generator=random)
            return x, (x @ way)[:, None] + noise * torch.randn(count, 1, generator=random)

        model, losses = mlp([12, 40, 1], nn.GELU), []
        optimizer = optim.Adam(model.parameters(), rate)
        x, y = draw(512, 0.0)

        def run() -> None:
            for _ in range(steps):
                optimizer.zero_grad()
                for _ in range(micro):
                    some, target = draw(batch, noise)
                    loss = F.mse_loss(model(some), target) / micro
                    loss.backward()
                optimizer.step()
                losses.append(micro * loss.item())

        def score() -> float:
            with torch.no_grad():
                return F.mse_loss(model(x), y).item()

        return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)

    return build


zoo.healthy("drill-noise-parts-of-2-slowly", noisy(2, 8, 0.5, rate=4e-3))
# --- 16 bits, decay, a bad sample

half = torch.float16
GRAINS = (lambda: mlp([18, 64, 7], nn.GELU), grains, F.cross_entropy, 4e-3)
LOADS = (lambda: SequenceModel(nn.GRU(1, 32, batch_first=True), 1, every_step=True), loads, F.mse_loss, 5e-3)
SENSORS = (lambda: mlp([14, 48, 48, 6], nn.SiLU), sensors, F.mse_loss, 3e-3)
whole = zoo.healthy("drill-grains-gelu-adam", loop(GRAINS, lambda p, r: optim.Adam(p, r)))
zoo.sick(
    "drill-grains-float16-adamw-eps-1e-3",
    loop(GRAINS, lambda p, r: optim.AdamW(p, r, eps=1e-3), dtype=half, scale=1e-2),
    broken(no_second_moment()),
    "second_moment_underflow",
    "eps_rules",
    also=BROKEN,
    control=whole,
)
scaled = zoo.healthy(
    "drill-sensors-float16-momentum", loop(SENSORS, lambda p, r: optim.SGD(p, 0.1, momentum=0.9), dtype=half)
)
zoo.sick(
    "drill-sensors-float16-momentum-rate-1e-5",
    loop(SENSORS, lambda p, r: optim.SGD(p, 1e-5, momentum=0.9), dtype=half),
    broken(same_bits(), less=0.3),
    "lost_updates",
    "rate_too_low",
    also=IDLE,
    control=scaled,
)
decays = zoo.healthy("drill-loads-adamw", loop(LOADS, lambda p, r: optim.AdamW(p, r)))
zoo.sick(
    "drill-loads-adamw-decay-of-a-rate-ten-times-lower",
    loop(LOADS, lambda p, r: optim.AdamW(p, r, weight_decay=20.0)),
    broken(shrunk(), less=0.9),
    "decay_dominates",
    also=BROKEN,
    control=decays,
)


def loud(times: float, every: int, limit: float | None = None) -> Callable[[int], Program]:
    """Every so many batches a weight multiplies the loss by mistake."""

    def build(seed: int) -> Program:
        task, model, losses = sensors(seed), mlp([14, 48, 6], nn.Tanh), []
        optimizer = optim.SGD(model.parameters(), 0.05)

        def run() -> None:
            for at, (x, y) in zip(range(140), task, strict=False):
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y) * (times if at % every == every - 1 else 1.0)
                loss.backward()
                if limit:
                    nn.utils.clip_grad_norm_(model.parameters(), limit)
                optimizer.step()
                losses.append(loss.item())

        return Program(
            model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss)
        )

    return build


zoo.sick(
    "drill-sensors-weighed-40-every-19th",
    loud(40.0, 19),
    broken(spikes(4)),
    *SPOILT,
    also={*BROKEN, "stale_second_moment"},
    control=zoo.healthy("drill-sensors-weighed-1", loud(1.0, 19)),
)


# --- logits and rows


class Reader(nn.Module):
    """One causal head with its own queries and keys, and the next note."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.notes, self.places = nn.Embedding(12, 32), nn.Parameter(0.3 * torch.randn(12, 32))
        self.query, self.key, self.value = (nn.Linear(32, 32, bias=False) for _ in range(3))
        self.head = mlp([32, 48, 12], nn.GELU)
        self.query.weight.data *= gain
        self.key.weight.data *= gain

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.notes(tokens) + self.places[: tokens.shape[1]]
        return self.head(x + F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), is_causal=True))


def reads(rate: float, fast: float, gain: float = 1.0) -> Callable[[int], Program]:
    def build(seed: int) -> Program:
        task, model = songs(seed), Reader(gain)
        quick = [model.query.weight, model.key.weight]
        rest = [p for n, p in model.named_parameters() if not n.startswith(("query", "key"))]
        optimizer = optim.AdamW([{"params": quick, "lr": fast}, {"params": rest}], lr=rate)
        return fit(model, task, optimizer, 120, token_loss)

    return build


def large(level: float = 50.0) -> Fact:
    def fact(played: Played) -> tuple[bool, str]:
        model: Any = played.program.model
        tokens = torch.randint(12, (32, 12), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            x = model.notes(tokens) + model.places
            reached = float((model.query(x) @ model.key(x).transpose(-2, -1)).abs().max() / 32**0.5)
        return reached > level, f"the largest logit is {reached:.3g}"

    return fact


zoo.sick(
    "drill-reader-queries-and-keys-at-0.3",
    reads(3e-3, 0.3),
    broken(large()),
    *LOUD_LOGITS,
    also=BROKEN,
    control=zoo.healthy("drill-reader", reads(3e-3, 3e-3)),
)
