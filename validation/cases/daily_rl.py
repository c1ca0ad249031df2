# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies, critics and values of every day with the mistakes that people make, and their twins.

Half: daily.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical

from validation.case import Case, Setup, Zoo
from validation.cases._common_nets import tower
from validation.cases._daily_policies import (
    Policy,
    Valves,
    a2c,
    best_valves,
    boiler,
    couriers,
    earns_less,
    missed,
    ppo,
    reinforce,
    swing,
    upright,
)
from validation.cases._everyday_nets import CUT_OFF
from validation.cases._everyday_sequences import more_than
from validation.cases._plain_nets import BLOWN
from validation.evidence import (
    at_last,
    both,
    dead,
    diverges,
    explores,
    gradient_norms_spread,
    lags,
    lasting,
    no_gradient,
    saturated,
    thrives,
)
from validation.labels import JUMPS, RUNS_AWAY, STUCK, SURE
from validation.setups import live
from validation.tasks import Task

zoo = Zoo("rl", half="daily", analyzer="policy", proof=thrives(0.3, measure=missed))
EVEN_TOO = {"SLOW", "VANISHING", "loss_stuck", "no_reward_variance"}


def general(name: str, build, proof=None) -> Case:
    return zoo.healthy(name, build, proof or thrives(0.2, most_dead=0.5), analyzer="general")


# --- what is tried

paid = zoo.healthy("couriers-a2c-pay-in-euros", lambda s: couriers(s, loss=a2c(0.05)))
zoo.sick(
    "couriers-a2c-pay-in-thousands-of-euros",
    lambda s: couriers(s, loss=a2c(0.05), scale=1e-3),
    both(at_last(explores(0.93, 1.0)), earns_less),
    "EXPLORATION",
    also=EVEN_TOO,
    control=paid,
)


def scheduled(seed: int, rate: float) -> Setup:
    """The bonus for entropy is multiplied by a rate at every step."""
    steps = count()
    return couriers(seed, loss=a2c(lambda: 0.03 * rate ** next(steps)))


falls = zoo.healthy("couriers-a2c-bonus-falls", lambda s: scheduled(s, 1 / 1.1))
zoo.sick(
    "couriers-a2c-bonus-grows",
    lambda s: scheduled(s, 1.1),
    both(at_last(explores(0.93, 1.0)), earns_less),
    "EXPLORATION",
    also={*EVEN_TOO, "EXPLODING", "UNSTABLE", "loss_grows"},
    control=falls,
)


class Floored(Valves):
    """A deviation by softplus above a floor."""

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.floor = floor

    def std(self, _h: Tensor) -> Tensor:
        return self.floor + F.softplus(self.log_std - 1.0)


low = zoo.healthy("boiler-deviation-above-a-tenth", lambda s: boiler(s, Floored(0.1)))
zoo.sick(
    "boiler-deviation-above-ten",
    lambda s: boiler(s, Floored(10.0)),
    both(lasting(explores(8.0, 1e3)), earns_less),
    "EXPLORATION",
    also={"SLOW", "VANISHING", "UNSTABLE", "EXPLODING", "loss_stuck", "first_loss_high"},
    control=low,
)


class Annealed(Valves):
    """The deviation is multiplied by a rate at every step of training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.level = rate, 1.0

    def std(self, _h: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.level = max(self.level * self.rate, 1e-4)
        return self.level * self.log_std.exp()


slowly = zoo.healthy("boiler-deviation-annealed-slowly", lambda s: boiler(s, Annealed(0.985)))
zoo.sick(
    "boiler-deviation-annealed-in-a-few-steps",
    lambda s: boiler(s, Annealed(0.4)),
    both(at_last(explores(0, 0.005)), earns_less),
    *STUCK,
    *JUMPS,
    "policy_entropy_collapse",
    also={*SURE, "NUMERICAL", "SLOW", "loss_stuck"},
    control=slowly,
)


class Tempered(Policy):
    """With a temperature that is learned so that the entropy meets a target."""

    def __init__(self) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(-0.2))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return *super().forward(state), (15 * self.log_alpha).exp()


def of_tempered(output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, None, None, Tensor]:
    return output[0], None, None, output[1]


def tempered(seed: int, target_entropy: float) -> Setup:
    def loss(output: tuple[Tensor, Tensor, Tensor], target: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        logits, values, alpha = output
        policy = Categorical(logits=logits)
        entropy = policy.entropy().mean()
        told = (policy.log_prob(target[0]) * (target[1] - values.detach())).mean()
        meets = alpha * (entropy.detach() - target_entropy)
        return 0.5 * F.mse_loss(values, target[1]) - told - alpha.detach() * entropy + meets

    setup = couriers(seed, Tempered(), loss, steps=90)
    setup.kwargs["action_extractor"] = of_tempered
    return setup


reachable = zoo.healthy("couriers-entropy-target-of-a-half", lambda s: tempered(s, 0.5))
zoo.sick(
    "couriers-entropy-target-of-the-wrong-sign",
    lambda s: tempered(s, 5.0),
    both(at_last(explores(0.93, 1.0)), earns_less),
    "EXPLORATION",
    also={*EVEN_TOO, "EXPLODING", "UNSTABLE", "loss_grows"},
    control=reachable,
)

# --- policies that are sure too early

around = zoo.healthy("couriers-reinforce-pay-around-zero", lambda s: couriers(s, loss=reinforce, lr=2e-2))
zoo.sick(
    "couriers-reinforce-all-pay-above-ten",
    lambda s: couriers(s, loss=reinforce, lr=2e-2, offset=12.0),
    both(at_last(explores(0, 0.2)), earns_less),
    "ENTROPY_COLLAPSE",
    "EXPLORATION",
    "policy_entropy_collapse",
    also={*SURE, "UNSTABLE", "LOW_RANK", "BOTTLENECK", "loss_grows"},
    control=around,
)


def greedy(weight: float):
    """The policy also learns to do what it likes best by now."""
    plain = a2c()

    def loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return plain(output, target) + weight * F.cross_entropy(output[0], output[0].argmax(dim=1))

    return loss


hardly = zoo.healthy("couriers-a2c-own-choice-by-0.01", lambda s: couriers(s, loss=greedy(0.01)))
zoo.sick(
    "couriers-a2c-own-choice-by-5",
    lambda s: couriers(s, loss=greedy(5.0)),
    both(at_last(explores(0, 0.2)), earns_less),
    "ENTROPY_COLLAPSE",
    "EXPLORATION",
    "policy_entropy_collapse",
    also={*SURE, "UNSTABLE", "LOW_RANK", "BOTTLENECK"},
    control=hardly,
)

# --- the faults of any network


class Stamped(Policy):
    """Beside the state there is the time of day, the same for a whole rollout."""

    def __init__(self, time: float) -> None:
        super().__init__(9)
        self.time = time

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(torch.cat([state, torch.full_like(state[:, :1], self.time)], dim=1))


hours = zoo.healthy("couriers-time-as-a-share-of-the-day", lambda s: couriers(s, Stamped(0.6)))
zoo.sick(
    "couriers-time-in-seconds-of-the-day",
    lambda s: couriers(s, Stamped(51840.0)),
    both(lasting(saturated("body.0.1", "tanh", 0.9)), earns_less),
    "SATURATION",
    "VANISHING",
    "DEAD",
    "input_scales",
    layer=("body.0.0", "body.0.1", "body.0"),
    also={"LOW_RANK", "BOTTLENECK", "EXPLODING", "UNSTABLE", *STUCK, "DISCONNECTED"},
    control=hours,
)
calm = zoo.healthy("couriers-a2c-sgd-0.1", lambda s: couriers(s, kind="SGD", lr=0.1, momentum=0.9))
zoo.sick(
    "couriers-a2c-sgd-10",
    lambda s: couriers(s, kind="SGD", lr=10.0, momentum=0.9),
    both(diverges(3.0), earns_less),
    *RUNS_AWAY,
    "rate_too_high",
    also={*BLOWN, *STUCK},
    control=calm,
)

gentle_steps = zoo.healthy("couriers-ppo-nadam-0.005", lambda s: couriers(s, Policy(act=nn.SiLU), ppo(), kind="NAdam"))
zoo.sick(
    "couriers-ppo-nadam-1",
    lambda s: couriers(s, Policy(act=nn.SiLU), ppo(), kind="NAdam", lr=1.0),
    both(gradient_norms_spread(10), earns_less),
    *JUMPS,
    "NUMERICAL",
    "rate_too_high",
    also={*BLOWN, *STUCK, "policy_entropy_collapse"},
    control=gentle_steps,
)


class Encoded(nn.Module):
    """An encoder of many readings; the actor and the critic get its code with or without a way back."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.register_buffer("mix", torch.randn(8, 40, generator=torch.Generator().manual_seed(3)))
        self.encoder, self.cut = nn.Sequential(nn.Linear(40, 6), nn.Tanh()), cut
        self.actor, self.critic = tower([6, 48, 5], nn.Tanh), tower([6, 48, 1], nn.Tanh)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(0.4 * state @ self.mix)
        code = code.detach() if self.cut else code
        return self.actor(code), self.critic(code).squeeze(-1)


joined = zoo.healthy("couriers-encoder-learns-from-both", lambda s: couriers(s, Encoded(False)))
zoo.sick(
    "couriers-encoder-cut-from-both",
    lambda s: couriers(s, Encoded(True)),
    both(lasting(no_gradient("encoder")), earns_less),
    *CUT_OFF,
    layer=("encoder", "encoder.0"),
    also={"detached", "never_moves", "SLOW", "EXPLORATION"},
    control=joined,
)

# --- values of the pole


class Values(nn.Module):
    """Values of the three pushes, and those that a slow copy gives to what comes next."""

    def __init__(self, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net = net or tower([3, 48, 48, 3], nn.ELU)
        self.slow = deepcopy(self.net).requires_grad_(False)

    def forward(self, state: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            for kept, own in zip(self.slow.parameters(), self.net.parameters(), strict=True):
                kept.data.lerp_(own.data, 0.1)
        return self.net(state), self.slow(after)


def bellman(how=lambda q: q.amax(dim=1), by=F.mse_loss):
    def loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        now = output[0].gather(1, target[0][:, None])[:, 0]
        return by(now, target[1] + 0.8 * how(output[1]))

    return loss


def values(seed: int, net: nn.Module | None = None, loss=None, **more) -> Setup:
    """Random pushes from a store."""

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        state = torch.randn(64, 3, generator=random)
        action = torch.randint(3, (64,), generator=random)
        after = swing(state, action)
        return (state, after), (action, upright(after))

    task = Task(seed, draw, loss or bellman())
    return live(Values(net), task, **{"kind": "Adam", "lr": 4e-3, "steps": 100, **more})


free = general("pole-q-values-linear-end", lambda s: values(s))
zoo.sick(
    "pole-q-values-relu-at-the-end",
    lambda s: values(s, tower([3, 48, 48, 3], nn.ELU).append(nn.ReLU())),
    both(at_last(dead("net.5", 0.99)), lags(0.2)),
    "DEAD",
    "DISCONNECTED",
    "VANISHING",
    layer=("net.4", "net.5"),
    also={"SLOW", "loss_stuck", "loss_grows", "never_moves"},
    control=free,
    analyzer="general",
)
zoo.sick(
    "pole-q-values-sum-over-the-pushes",
    lambda s: values(s, loss=bellman(lambda q: q.sum(dim=1))),
    diverges(3.0),
    *RUNS_AWAY,
    "loss_grows",
    also=BLOWN,
    control=free,
    analyzer="general",
)

# --- an actor that learns from a critic


class Taught(nn.Module):
    """A critic of states and valves; the actor climbs it. Its move is bounded by a hard tanh of some gain."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.actor, self.bound, self.gain = tower([5, 48, 2], nn.Tanh), nn.Hardtanh(), gain
        self.critic = tower([7, 64, 64, 1], nn.SiLU)

    def move(self, state: Tensor) -> Tensor:
        return self.bound(self.gain * self.actor(state))

    def forward(self, state: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        told = self.critic(torch.cat([state, action], dim=1)).squeeze(1)
        self.critic.requires_grad_(False)
        liked = self.critic(torch.cat([state, self.move(state)], dim=1)).mean()
        self.critic.requires_grad_(True)
        return F.mse_loss(told, reward) - liked


def taught(seed: int, gain: float) -> Setup:
    best = best_valves(seed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor, Tensor], None]:
        state, action = torch.randn(96, 5, generator=random), 2 * torch.rand(96, 2, generator=random) - 1
        return (state, action, -(action - best(state)).square().sum(dim=1)), None

    def judge(setup: Setup) -> float:
        state = torch.randn(400, 5, generator=torch.Generator().manual_seed(14))
        with torch.no_grad():
            return (setup.model.move(state) - best(state)).square().sum(dim=1).mean().item()

    task = Task(seed, draw, lambda out, _: out)
    task.judge = judge
    return live(Taught(gain), task, "Adam", 5e-3, 110)


def out_of_bounds(setup: Setup) -> float:
    """Share of moves that are at a bound."""
    with torch.no_grad():
        return (setup.model.move(setup.input_fn()[0]).abs() >= 1).double().mean().item()


gentle = general("boiler-actor-hard-bounds-gain-1", lambda s: taught(s, 1.0), thrives(0.3, 0.5, missed))
zoo.sick(
    "boiler-actor-hard-bounds-gain-200",
    lambda s: taught(s, 200.0),
    both(lasting(more_than(out_of_bounds, 0.9, "share of moves at a bound")), earns_less),
    "SATURATION",
    "DEAD",
    "DISCONNECTED",
    "VANISHING",
    layer=("actor", "actor.2", "actor.0", "bound"),
    also={"SLOW", "EXPLODING", "UNSTABLE", "EXPLORATION", "never_moves"},
    control=gentle,
    analyzer="general",
)
