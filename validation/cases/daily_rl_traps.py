# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies, critics and values of every day that learn well, some of them a little unusual.

Half: daily.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Setup, Zoo
from validation.cases._common_nets import tower
from validation.cases._daily_policies import (
    Policy,
    Target,
    Valves,
    a2c,
    best_valves,
    boiler,
    couriers,
    likely,
    missed,
    near,
    pole,
    ppo,
    swing,
    upright,
)
from validation.cases._everyday_nets import orthogonal
from validation.evidence import thrives
from validation.setups import live
from validation.tasks import Task

zoo = Zoo("rl", half="daily", analyzer="policy", proof=thrives(0.3, measure=missed))


def general(name: str, build, proof=None) -> Case:
    return zoo.healthy(name, build, proof or thrives(0.2, most_dead=0.5), analyzer="general")


# --- couriers

zoo.healthy("couriers-ppo", lambda s: couriers(s, loss=ppo()))
zoo.healthy("couriers-ppo-clip-0.1-linear-decay", lambda s: couriers(s, loss=ppo(0.1), rate=lambda t: 1 - t / 100))
zoo.healthy("couriers-a2c-rmsprop-clipped", lambda s: couriers(s, kind="RMSprop", lr=3e-3, clip=0.5))
zoo.healthy("couriers-a2c-one-wide-silu-layer", lambda s: couriers(s, Policy(widths=(160,), act=nn.SiLU), lr=3e-3))
zoo.healthy("couriers-a2c-no-bonus", lambda s: couriers(s, loss=a2c(0.0)))
zoo.healthy("couriers-a2c-batches-of-16", lambda s: couriers(s, lr=2e-3, steps=120, batch=16))
zoo.healthy("couriers-ppo-pay-times-5", lambda s: couriers(s, loss=ppo(), scale=5.0, clip=1.0))
zoo.healthy("couriers-linear-policy", lambda s: couriers(s, Linear(), lr=3e-2))
zoo.healthy("couriers-ppo-warm-up", lambda s: couriers(s, loss=ppo(), rate=lambda t: min(1.0, (t + 1) / 20)))


class Linear(nn.Module):
    """Two linear maps of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(8, 5), nn.Linear(8, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(state), self.critic(state).squeeze(-1)


class Apart(nn.Module):
    """An actor and a critic with nothing in common, and an orthogonal start with a small last layer."""

    def __init__(self, dim: int = 8, actions: int = 5) -> None:
        super().__init__()
        self.actor = orthogonal(tower([dim, 48, 48, actions], nn.Tanh))
        self.critic = orthogonal(tower([dim, 64, 64, 1], nn.ELU))
        nn.init.orthogonal_(self.actor[-1].weight, 0.01)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(state), self.critic(state).squeeze(-1)


zoo.healthy("couriers-ppo-nets-apart-small-last-layer", lambda s: couriers(s, Apart(), ppo()))


class Dropped(Policy):
    """With a norm and some dropout behind the body."""

    def __init__(self) -> None:
        super().__init__(act=nn.GELU)
        self.norm, self.drop = nn.LayerNorm(48), nn.Dropout(0.1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.drop(self.norm(self.body(state)))
        return self.actor(h), self.critic(h).squeeze(-1)


zoo.healthy("couriers-a2c-layer-norm-dropout", lambda s: couriers(s, Dropped()))


def groups(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
    """Gains over the mean of the batch; the critic learns beside."""
    gain = (target[1] - target[1].mean()) / (target[1].std() + 1e-4)
    told = output[0].log_softmax(dim=1).gather(1, target[0][:, None])[:, 0]
    return 0.1 * F.mse_loss(output[1], target[1]) - (told * gain).mean()


zoo.healthy("couriers-gains-over-the-mean-of-the-batch", lambda s: couriers(s, loss=groups))

# --- pole

zoo.healthy("pole-ppo", lambda s: pole(s))
zoo.healthy("pole-a2c-small-weight-of-the-critic", lambda s: pole(s, loss=a2c(0.01, 0.1)))
zoo.healthy("pole-ppo-nets-apart", lambda s: pole(s, Apart(3, 3), lr=5e-3))
zoo.healthy("pole-ppo-elu-clipped", lambda s: pole(s, Policy(3, 3, (64, 64), nn.ELU), lr=5e-3, clip=0.5))
zoo.healthy("pole-ppo-bonus-0.03", lambda s: pole(s, loss=ppo(0.2, 0.03)))

# --- boiler


class ByState(Valves):
    """The deviation depends on the state, within bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.spread = nn.Linear(48, 2)

    def std(self, h: Tensor) -> Tensor:
        return 0.05 + 0.8 * torch.sigmoid(self.spread(h) + self.log_std)


zoo.healthy("boiler-policy-gradient", lambda s: boiler(s))
zoo.healthy("boiler-ppo", lambda s: boiler(s, loss=near))
zoo.healthy("boiler-ppo-deviation-begins-at-1", lambda s: boiler(s, Valves(0.0, nn.SiLU), near))
zoo.healthy("boiler-deviation-by-state", lambda s: boiler(s, ByState()))
zoo.healthy("boiler-policy-gradient-adagrad", lambda s: boiler(s, kind="Adagrad", lr=0.03))
zoo.healthy("boiler-no-bonus-decaying-rate", lambda s: boiler(s, loss=likely(0.0), rate=lambda t: 0.98**t))

# --- values, experts, models


def store(seed: int, loss, change=None, batch: int = 64) -> Task:
    """Random pushes of poles: state, action, what comes next, what it pays."""

    def draw(random: torch.Generator) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        state = torch.randn(batch, 3, generator=random)
        action = torch.randint(3, (batch,), generator=random)
        after = swing(state, action)
        return state, (action, after, upright(after))

    task = Task(seed, draw, loss)
    return task.changed(change) if change else task


class Duel(nn.Module):
    """A value and what each push adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 64), nn.LayerNorm(64), nn.SiLU())
        self.value, self.adds = tower([64, 32, 1], nn.SiLU), tower([64, 32, 3], nn.SiLU)

    def forward(self, state: Tensor) -> Tensor:
        h = self.body(state)
        adds = self.adds(h)
        return self.value(h) + adds - adds.mean(dim=1, keepdim=True)


def at_once(by=F.mse_loss):
    def loss(q: Tensor, target: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return by(q.gather(1, target[0][:, None])[:, 0], target[2])

    return loss


general("pole-duelling-values-of-one-step", lambda s: live(Duel(), store(s, at_once()), "Adam", 4e-3, 90))
general(
    "pole-values-huber-sgd",
    lambda s: live(tower([3, 64, 64, 3], nn.Tanh), store(s, at_once(F.smooth_l1_loss)), "SGD", 0.05, 110, momentum=0.9),
)
general(
    "pole-values-batches-of-8",
    lambda s: live(tower([3, 64, 3], nn.SiLU), store(s, at_once(), batch=8), "AdamW", 5e-3, 120),
)


def expert(seed: int) -> Setup:
    """What one does who sees where the pole falls, cloned."""

    def change(state: Tensor, _: object) -> tuple[Tensor, Tensor]:
        lean = state[:, 0] + 0.8 * state[:, 1] + 0.3 * state[:, 2]
        return state, torch.where(lean > 0.3, 0, torch.where(lean < -0.3, 2, 1))

    return live(tower([3, 48, 48, 3], nn.ELU), store(seed, F.cross_entropy, change), "AdamW", 5e-3, 80)


general("pole-cloned-from-a-rule", expert)


class Model(nn.Module):
    """What a push changes, from the state and the push."""

    def __init__(self) -> None:
        super().__init__()
        self.push, self.net = nn.Embedding(3, 8), tower([11, 64, 64, 3], nn.SiLU)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        return state + self.net(torch.cat([state, self.push(action)], dim=1))


def world(seed: int) -> Setup:
    task = store(seed, F.mse_loss, lambda x, t: ((x, t[0]), t[1]))
    return live(Model(), task, "AdamW", 4e-3, 80)


general("pole-model-of-what-a-push-changes", world)


def inverse(seed: int) -> Setup:
    """Which push led from here to there?"""
    task = store(seed, F.cross_entropy, lambda x, t: (torch.cat([x, t[1]], dim=1), t[0]))
    return live(tower([6, 64, 64, 3], nn.GELU), task, "AdamW", 4e-3, 90)


general("pole-which-push-led-there", inverse)


class Twins(nn.Module):
    """Two critics of states and valves, and an actor that climbs the smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = tower([5, 48, 2], nn.Tanh)
        self.critics = nn.ModuleList(tower([7, 48, 48, 1], nn.SiLU) for _ in range(2))

    def forward(self, state: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        told = [critic(torch.cat([state, action], dim=1)).squeeze(1) for critic in self.critics]
        self.critics.requires_grad_(False)
        move = torch.cat([state, torch.tanh(self.actor(state))], dim=1)
        liked = torch.minimum(*(critic(move) for critic in self.critics)).mean()
        self.critics.requires_grad_(True)
        return sum(F.mse_loss(each, reward) for each in told) - liked


def twins(seed: int) -> Setup:
    best = best_valves(seed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor, Tensor], None]:
        state, action = torch.randn(96, 5, generator=random), 2 * torch.rand(96, 2, generator=random) - 1
        return (state, action, -(action - best(state)).square().sum(dim=1)), None

    def judge(setup: Setup) -> float:
        state = torch.randn(400, 5, generator=torch.Generator().manual_seed(14))
        with torch.no_grad():
            return (torch.tanh(setup.model.actor(state)) - best(state)).square().sum(dim=1).mean().item()

    task = Task(seed, draw, lambda out, _: out)
    task.judge = judge
    return live(Twins(), task, "Adam", 5e-3, 100)


general("boiler-actor-and-two-critics", twins, thrives(0.3, 0.5, missed))


def preferred(seed: int) -> Setup:
    """Of two settings of the valves, which does a user like better?"""
    best = best_valves(seed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state, pair = torch.randn(64, 5, generator=random), 2 * torch.rand(2, 64, 2, generator=random) - 1
        off = (pair - best(state)).square().sum(dim=-1)
        return torch.cat([state.expand(2, -1, -1), pair], dim=-1), (off[0] < off[1]).float()

    def loss(liked: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits((liked[0] - liked[1])[:, 0], target)

    return live(tower([7, 64, 64, 1], nn.SiLU), Task(seed, draw, loss), "AdamW", 5e-3, 100)


general("boiler-reward-model-of-preferences", preferred)
