# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies and values of every day: with one fault each, their twins, and others that train well.

Half: common.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from validation.case import Case, Setup, Zoo
from validation.cases._common_nets import SQUEEZED, Through, tower
from validation.cases._everyday_nets import CUT_OFF, NARROW, RUINED, gaussian, he
from validation.cases._everyday_sequences import more_than
from validation.evidence.live import at_last, breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.play import earns_less, explores, missed
from validation.evidence.signal import both, gradient_ratio, no_gradient
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import JUMPS, RUNS_AWAY, STUCK, SURE
from validation.setups import live
from validation.tasks import Task, drawn_once, every
from validation.tasks.rewards import by_clipped_ratios

# --- a junction: five lanes wait, one is let go; what waits longest pays most

LANES = 5


def waiting(random: torch.Generator, count: int) -> Tensor:
    return 6 * torch.rand(count, LANES, generator=random)


def seen(queues: Tensor) -> Tensor:
    return queues / 3 - 1


def poor(least: float):
    return more_than(missed, least, "of the best reward is missed")


def junction(seed: int, model: nn.Module, loss: Callable, of: Callable, cars: int = 32, time: int = 4) -> Task:
    """Rollouts of the policy as it is; the target is (actions, returns to come, old log-probabilities)."""

    def draw(random: torch.Generator) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        queues = waiting(random, cars)
        states, actions, rewards, chances = [], [], [], []
        for _ in range(time):
            with torch.no_grad():
                chance = of(model(seen(queues))).log_softmax(dim=-1)
            action = torch.multinomial(chance.exp().nan_to_num(0.2).clamp_min(1e-9), 1, generator=random)
            states.append(seen(queues))
            actions.append(action[:, 0])
            rewards.append(queues.gather(1, action)[:, 0] / 6)
            chances.append(chance.gather(1, action)[:, 0])
            queues = (queues.scatter(1, action, 0.0) + torch.rand(cars, LANES, generator=random)).clamp_max(6)
        returns, ahead = [], torch.zeros(cars)
        for reward in reversed(rewards):
            ahead = reward + 0.3 * ahead
            returns.insert(0, ahead)
        return torch.cat(states), (torch.cat(actions), torch.cat(returns), torch.cat(chances))

    def judge(setup: Setup) -> float:
        queues = waiting(torch.Generator().manual_seed(7), 400)
        with torch.no_grad():
            policy = of(setup.model(seen(queues))).softmax(dim=-1)
        return 1 - ((policy * queues).sum(dim=1) / queues.amax(dim=1)).mean().item()

    task = Task(seed, draw, loss)
    task.judge = judge
    return task


zoo = Zoo("rl", half="common", analyzer="policy", proof=thrives(0.2, measure=missed))


class Signal(nn.Module):
    """A trunk, a head that says which lane goes, a head for the value; `last` changes the logits."""

    def __init__(self, widths: tuple[int, ...] = (48, 48), act: type[nn.Module] = nn.Tanh, last=None) -> None:
        super().__init__()
        self.trunk = nn.Sequential(tower([LANES, *widths], act), act())
        self.policy, self.value, self.last = nn.Linear(widths[-1], LANES), nn.Linear(widths[-1], 1), last

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(state)
        logits = self.policy(h)
        return self.last(logits) if self.last else logits, self.value(h).squeeze(-1)


def of_two(output: tuple[Tensor, Tensor]) -> tuple[Tensor, None, None, Tensor]:
    return output[0], None, None, output[1]


Target = tuple[Tensor, Tensor, Tensor]


def actor_critic(bonus: float = 0.005, value: float = 0.5, cut: bool = False):
    def loss(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
        logits, values = output
        actions, returns, old = target
        policy = Categorical(logits=logits)
        chance = old if cut else policy.log_prob(actions)
        gain = (chance * (returns - values.detach())).mean()
        return value * F.mse_loss(values, returns) - gain - bonus * policy.entropy().mean()

    return loss


def steer(seed: int, model: nn.Module | None = None, loss=None, **more) -> Setup:
    model = model or Signal()
    task = junction(seed, model, loss or actor_critic(), lambda out: out[0])
    return live(model, task, kwargs={"action_extractor": of_two}, **{"lr": 1e-2, "steps": 60, **more})


# --- what is tried

signal = zoo.healthy("junction-a2c", steer)
zoo.sick(
    "junction-a2c-adamw-0.5",
    lambda s: steer(s, lr=0.5),
    at_last(explores(0, 0.15), poor(0.3)),
    *STUCK,
    *JUMPS,
    also={*SURE, "DEAD", "LOW_RANK", "BOTTLENECK", "NUMERICAL"},
    control=signal,
)
zoo.sick(
    "junction-probabilities-taken-for-logits",
    lambda s: steer(s, Signal(last=lambda z: z.softmax(dim=-1))),
    both(at_last(explores(0.85, 1.0), poor(0.22)), earns_less),
    "EXPLORATION",
    layer=("policy", "trunk.0.2", "trunk.0.0"),
    also={"SLOW", "SATURATION", "VANISHING"},
    control=signal,
)


def fond(seed: int, lead: float) -> Setup:
    """The first lane is the main road, so its logit starts ahead."""
    model = Signal()
    model.policy.bias.data[0] += lead
    return steer(seed, model, lr=3e-3, steps=80)


main_road = zoo.healthy("junction-main-road-ahead-by-1", lambda s: fond(s, 1.0))
zoo.sick(
    "junction-main-road-ahead-by-20",
    lambda s: fond(s, 20.0),
    lasting(explores(0, 0.1), poor(0.3)),
    *STUCK,
    layer=("policy", "trunk.0.2"),
    also=SURE,
    control=main_road,
)
zoo.sick(
    "junction-logits-squashed-to-a-hundredth",
    lambda s: steer(s, Signal(last=lambda z: 0.01 * torch.tanh(z)), lr=1e-2),
    both(at_last(explores(0.98, 1.0), poor(0.3)), earns_less),
    "EXPLORATION",
    "VANISHING",
    layer=("policy", "trunk.0.2", "trunk.0.0"),
    also={"SLOW", "SATURATION"},
    control=signal,
)

# --- rooms to be heated: how much, for each of three


class Heater(nn.Module):
    """Mean and deviation of the heat for three rooms, and the value; the deviation may be a number that stays."""

    def __init__(self, std: float = 0.5, learned: bool = True, factor: float = 1.0, squash: bool = False) -> None:
        super().__init__()
        self.body, self.mean, self.value = tower([7, 48, 48], nn.ELU), nn.Linear(48, 3), nn.Linear(48, 1)
        start = torch.full((3,), math.log(std))
        if learned:
            self.log_std = nn.Parameter(start)
        else:
            self.register_buffer("log_std", start)
        self.mean.weight.data *= factor
        self.squash = squash

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.elu(self.body(state))
        mean = torch.tanh(self.mean(h)) if self.squash else self.mean(h)
        return mean, self.log_std.exp().expand_as(mean), self.value(h).squeeze(-1)


def of_three(output: tuple[Tensor, Tensor, Tensor]) -> tuple[None, Tensor, Tensor, Tensor]:
    return None, output[1], output[0], output[2]


def wish(seed: int) -> Tensor:
    return torch.randn(7, 3, generator=drawn_once(seed, 3200)) / 7**0.5


def heat(seed: int, model: nn.Module | None = None, bonus: float = 0.005, **more) -> Setup:
    """One choice per episode, plain policy gradient with a critic."""
    model, way = model or Heater(), wish(seed)

    def draw(random: torch.Generator) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        state = torch.randn(128, 7, generator=random)
        with torch.no_grad():
            mean, std, _ = model(state)
        action = mean + std * torch.randn(mean.shape, generator=random)
        return state, (action, -(action.clamp(-1, 1) - torch.tanh(state @ way)).square().sum(dim=-1))

    def loss(output: tuple[Tensor, Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        mean, std, value = output
        action, reward = target
        policy, gain = Normal(mean, std), reward - value.detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        told = (policy.log_prob(action).sum(dim=-1) * gain).mean()
        return 0.5 * F.mse_loss(value, reward) - told - bonus * policy.entropy().sum(dim=-1).mean()

    def judge(setup: Setup) -> float:
        state = torch.randn(400, 7, generator=torch.Generator().manual_seed(8))
        with torch.no_grad():
            mean = setup.model(state)[0]
        return (mean.clamp(-1, 1) - torch.tanh(state @ way)).square().sum(dim=-1).mean().item()

    task = Task(seed, draw, loss)
    task.judge = judge
    hints = {"action_range": (-1.0, 1.0)}
    return live(model, task, kwargs={"action_extractor": of_three}, hints=hints, **{"lr": 5e-3, "steps": 70, **more})


heater = zoo.healthy("rooms-gaussian-policy", heat)
zoo.sick(
    "rooms-deviation-fixed-at-0.0005",
    lambda s: heat(s, Heater(5e-4, learned=False)),
    both(lasting(explores(0, 0.01), poor(0.4)), earns_less),
    *STUCK,
    also={"EXPLODING", "UNSTABLE"},
    control=heater,
)
zoo.sick(
    "rooms-deviation-fixed-at-40",
    lambda s: heat(s, Heater(40.0, learned=False)),
    both(lasting(explores(20, 100), poor(0.4)), earns_less),
    "EXPLORATION",
    also={"SLOW", "VANISHING", "UNSTABLE", "EXPLODING"},
    control=heater,
)
squashed = zoo.healthy("rooms-mean-through-tanh", lambda s: heat(s, Heater(squash=True)))
zoo.sick(
    "rooms-mean-through-tanh-head-times-300",
    lambda s: heat(s, Heater(squash=True, factor=300.0)),
    both(lasting(flat_behind("mean", "tanh", 0.85)), earns_less),
    "SATURATION",
    "VANISHING",
    layer=("mean",),
    also={"EXPLODING", "UNSTABLE", "EXPLORATION"},
    control=squashed,
)

# --- the faults of any network

narrow = zoo.healthy("junction-a2c-trunk-ends-in-16", lambda s: steer(s, Signal((48, 16))))
zoo.sick(
    "junction-a2c-trunk-ends-in-1",
    lambda s: steer(s, Signal((48, 1))),
    earns_less,
    *NARROW,
    layer=("trunk.0.2", "policy"),
    also={*SQUEEZED, "EXPLORATION"},
    control=narrow,
)
zoo.sick(
    "junction-a2c-critic-not-in-the-loss",
    lambda s: steer(s, loss=actor_critic(value=0.0)),
    lasting(no_gradient("value")),
    *CUT_OFF,
    layer=("value",),
    control=signal,
)
zoo.sick(
    "junction-a2c-log-probabilities-from-the-rollout",
    lambda s: steer(s, loss=actor_critic(bonus=0.0, cut=True)),
    both(lasting(no_gradient("policy")), earns_less),
    *CUT_OFF,
    layer=("policy",),
    also={"EXPLORATION", "SLOW"},
    control=signal,
)
relu = zoo.healthy("junction-a2c-relu-trunk", lambda s: steer(s, Signal(act=nn.ReLU), lr=3e-3))


def low(seed: int) -> Setup:
    """The trunk comes from a checkpoint of another task, whose bias kept the units quiet."""
    model = Signal(act=nn.ReLU)
    model.trunk[0][0].bias.data -= 12
    return steer(seed, model, lr=3e-3)


zoo.sick(
    "junction-a2c-relu-trunk-of-another-task",
    low,
    both(lasting(never_fires("trunk.0.0", 0.99)), earns_less),
    "DEAD",
    "DISCONNECTED",
    layer=("trunk.0.0", "trunk.0.1"),
    also={"VANISHING", "EXPLORATION", "LOW_RANK", "BOTTLENECK"},
    control=relu,
)
deep = zoo.healthy(
    "junction-a2c-seven-layers-kaiming",
    lambda s: steer(s, he(Signal((32,) * 7, nn.ELU)), kind="SGD", lr=0.015, momentum=0.9, steps=90),
)
zoo.sick(
    "junction-a2c-seven-layers-normal-0.01",
    lambda s: steer(s, gaussian(Signal((32,) * 7, nn.ELU), 0.01), kind="SGD", lr=0.015, momentum=0.9, steps=90),
    both(lasting(gradient_ratio("trunk.0.0", "trunk.0.12", below=1e-3)), at_last(poor(0.3))),
    "VANISHING",
    also={"SLOW", "EXPLORATION", "LOW_RANK", "BOTTLENECK", "DEAD"},
    control=deep,
)


def stale(seed: int, most: float) -> Setup:
    """Some actions were drawn long ago by a policy that hardly ever took them; the ratio weighs them."""
    now = every(12, 8)

    def loss(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
        logits, values = output
        actions, returns, old = target
        if now():
            old = torch.cat([old[:3] - 9, old[3:]])
        policy = Categorical(logits=logits)
        ratio = (policy.log_prob(actions) - old).exp().clamp_max(most)
        gain = (ratio.detach() * policy.log_prob(actions) * (returns - values.detach())).mean()
        return 0.5 * (ratio.detach() * (values - returns) ** 2).mean() - gain

    return steer(seed, loss=loss, lr=5e-3, steps=70)


recent = zoo.healthy("junction-stale-ratios-clipped-at-2", lambda s: stale(s, 2.0))
zoo.sick(
    "junction-stale-ratios-unclipped", lambda s: stale(s, math.inf), gradient_norms_spread(30), *JUMPS, control=recent
)


def soft(seed: int, eps: float) -> Setup:
    """Soft actor-critic with a known critic: moves through tanh, whose slope enters the log-probability."""
    way = wish(seed)

    def draw(random: torch.Generator) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        state = torch.randn(96, 7, generator=random)
        return state, (torch.tanh(state @ way), torch.randn(96, 3, generator=random))

    def loss(output: tuple[Tensor, Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        mean, std, value = output
        best, noise = target
        u = mean + std * noise
        action = torch.tanh(u)
        chance = Normal(mean, std).log_prob(u).sum(dim=-1) - torch.log(1 - action**2 + eps).sum(dim=-1)
        error = (action - best).square().sum(dim=-1)
        return (error + 0.02 * chance + 0.1 * (value + error.detach()) ** 2).mean()

    def judge(setup: Setup) -> float:
        state = torch.randn(400, 7, generator=torch.Generator().manual_seed(8))
        with torch.no_grad():
            return (setup.model(state)[0].tanh() - torch.tanh(state @ way)).square().sum(dim=-1).mean().item()

    task = Task(seed, draw, loss)
    task.judge = judge
    kwargs = {"action_extractor": of_three}
    return live(Heater(3.0), task, "Adam", 5e-3, 80, kwargs=kwargs, hints={"action_range": (-4.0, 4.0)})


safe = zoo.healthy("rooms-soft-actor-critic-eps-1e-6", lambda s: soft(s, 1e-6))
zoo.sick(
    "rooms-soft-actor-critic-log-of-zero",
    lambda s: soft(s, 0.0),
    breaks,
    "NUMERICAL",
    also={"SATURATION"},
    control=safe,
)

# --- values


def general(name: str, build, proof=None) -> Case:
    return zoo.healthy(name, build, proof or thrives(0.2, most_dead=0.5), analyzer="general")


def letting_go(random: torch.Generator, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """State, action, reward and next state under a policy that acts at random."""
    queues, action = waiting(random, count), torch.randint(LANES, (count,), generator=random)
    after = (queues.scatter(1, action[:, None], 0.0) + torch.rand(count, LANES, generator=random)).clamp_max(6)
    return seen(queues), action, queues.gather(1, action[:, None])[:, 0] / 3 - 1, seen(after)


def replay(seed: int, loss: Callable, batch: int = 64) -> Task:
    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        state, action, reward, after = letting_go(random, batch)
        return (state, after), (action, reward)

    return Task(seed, draw, loss)


class Values(nn.Module):
    """Values of the lanes, and those of a slow copy for what comes next."""

    def __init__(self, net: nn.Module | None = None, pace: float = 0.05) -> None:
        super().__init__()
        self.net, self.pace = net or tower([LANES, 64, 64, LANES]), pace
        self.slow = deepcopy(self.net).requires_grad_(False)

    def forward(self, state: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            for mine, own in zip(self.slow.parameters(), self.net.parameters(), strict=True):
                mine.data.lerp_(own.data, self.pace)
        return self.net(state), self.slow(after)


def td(discount: float = 0.6, by=F.mse_loss, scale: float = 1.0):
    def loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        chosen = output[0].gather(1, target[0][:, None]).squeeze(1)
        return by(chosen, scale * target[1] + discount * output[1].amax(dim=1).detach())

    return loss


def dqn(seed: int, model: nn.Module | None = None, loss=None, **more) -> Setup:
    return live(model or Values(), replay(seed, loss or td()), **{"kind": "Adam", "lr": 3e-3, "steps": 80, **more})


q_values = general("junction-q-values-slow-copy", dqn)
zoo.sick(
    "junction-q-values-discount-of-99",
    lambda s: dqn(s, loss=td(99.0)),
    diverges(10),
    *RUNS_AWAY,
    also=RUINED,
    control=q_values,
    analyzer="general",
)
in_cars = general("junction-q-values-sgd-0.1", lambda s: dqn(s, kind="SGD", lr=0.1, momentum=0.9))
zoo.sick(
    "junction-q-values-rewards-in-cents-sgd-0.1",
    lambda s: dqn(s, loss=td(scale=1000.0), kind="SGD", lr=0.1, momentum=0.9),
    diverges(),
    *RUNS_AWAY,
    also=RUINED,
    control=in_cars,
    analyzer="general",
)
zoo.sick(
    "junction-q-values-adam-1e-10",
    lambda s: dqn(s, lr=1e-10),
    does_not_move(steps=80),
    "SLOW",
    control=q_values,
    analyzer="general",
)


class World(nn.Module):
    """A model of the junction: a code of the queues, the lane that goes, the queues after it and the reward."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.enc, self.lane = (
            nn.Sequential(nn.Linear(LANES, 48), nn.SiLU(), nn.Linear(48, code)),
            nn.Embedding(LANES, 16),
        )
        self.dec = tower([code + 16, 64, LANES + 1], nn.SiLU)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        return self.dec(torch.cat([self.enc(state), self.lane(action)], dim=1))


def world(seed: int, code: int) -> Setup:
    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        state, action, reward, after = letting_go(random, 96)
        return (state, action), torch.cat([after, reward[:, None]], dim=1)

    return live(World(code), Task(seed, draw, F.mse_loss), "AdamW", 1e-2, 90)


model_of = general("junction-world-model-code-12", lambda s: world(s, 12))
zoo.sick(
    "junction-world-model-code-1",
    lambda s: world(s, 1),
    lags(0.15),
    *NARROW,
    layer=("enc.2", "dec.0"),
    control=model_of,
    analyzer="general",
)

# --- others that train well


def reinforce(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
    """Each return against the mean of the others."""
    actions, returns, _ = target
    others = (returns.sum() - returns) / (len(returns) - 1)
    told = Categorical(logits=output[0]).log_prob(actions) * (returns - others)
    return 0.5 * F.mse_loss(output[1], returns) - told.mean()


def penalised(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
    """The ratio, and a penalty for leaving the old policy."""
    actions, returns, old = target
    new = Categorical(logits=output[0]).log_prob(actions)
    gain = returns - output[1].detach()
    return 0.5 * F.mse_loss(output[1], returns) - ((new - old).exp() * gain).mean() + 0.5 * (new - old).square().mean()


clipped = by_clipped_ratios(F.huber_loss)
zoo.healthy("junction-reinforce-leave-one-out", lambda s: steer(s, loss=reinforce))
zoo.healthy("junction-ratio-with-a-penalty", lambda s: steer(s, loss=penalised))
zoo.healthy("junction-ppo-huber-critic", lambda s: steer(s, loss=clipped, lr=5e-3))
zoo.healthy(
    "junction-ppo-linear-decay-clipped-norm", lambda s: steer(s, loss=clipped, clip=0.5, rate=lambda t: 1 - t / 70)
)
zoo.healthy("junction-a2c-sgd", lambda s: steer(s, kind="SGD", lr=0.5, momentum=0.9, steps=80))
zoo.healthy("junction-a2c-entropy-bonus-0.05", lambda s: steer(s, loss=actor_critic(bonus=0.05)))
zoo.healthy("junction-a2c-rmsprop-gelu", lambda s: steer(s, Signal(act=nn.GELU), kind="RMSprop", lr=2e-3))
zoo.healthy("junction-a2c-heavy-critic", lambda s: steer(s, loss=actor_critic(value=2.0)))


class Each(nn.Module):
    """One small net scores every lane by itself and the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.value = tower([2, 24, 1], nn.Tanh), tower([LANES, 24, 1], nn.Tanh)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mean = state.mean(dim=1, keepdim=True).expand_as(state)
        return self.score(torch.stack([state, mean], dim=-1)).squeeze(-1), self.value(state).squeeze(-1)


zoo.healthy(
    "junction-one-net-for-every-lane", lambda s: steer(s, Each()), thrives(0.2, measure=missed, idle="score.2.bias")
)


class Apart(nn.Module):
    """A linear policy and a net for the value."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.value = nn.Linear(LANES, LANES), tower([LANES, 32, 1])

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(state), self.value(state).squeeze(-1)


zoo.healthy("junction-linear-policy", lambda s: steer(s, Apart(), lr=3e-2))


class Normed(nn.Module):
    """Layer norms in the trunk, and a head that starts at nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(LANES, 48), nn.LayerNorm(48), nn.SiLU(), nn.Linear(48, 48), nn.LayerNorm(48), nn.SiLU()
        )
        self.policy, self.value = nn.Linear(48, LANES), nn.Linear(48, 1)
        nn.init.zeros_(self.policy.weight)
        nn.init.zeros_(self.policy.bias)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(state)
        return self.policy(h), self.value(h).squeeze(-1)


zoo.healthy("junction-layer-norm-head-of-zeros", lambda s: steer(s, Normed(), lr=5e-3))
zoo.healthy("rooms-gaussian-policy-sgd", lambda s: heat(s, kind="SGD", lr=0.02, momentum=0.9, steps=80, clip=1.0))
zoo.healthy("rooms-gaussian-policy-deviation-0.3-clipped", lambda s: heat(s, Heater(0.3), clip=1.0))
zoo.healthy("rooms-gaussian-policy-fixed-deviation-0.4", lambda s: heat(s, Heater(0.4, learned=False)))


class ByState(Heater):
    """The deviation depends on the state."""

    def __init__(self) -> None:
        super().__init__(learned=False)
        self.spread = nn.Linear(48, 3)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.elu(self.body(state))
        return self.mean(h), F.softplus(self.spread(h)) + 0.05, self.value(h).squeeze(-1)


zoo.healthy("rooms-deviation-by-state", lambda s: heat(s, ByState()))


def copied(seed: int) -> Setup:
    """Imitates an expert who errs now and then."""
    model = Signal((64, 64), nn.ReLU)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        queues = waiting(random, 96)
        odd = torch.rand(96, generator=random) < 0.1
        return seen(queues), torch.where(odd, torch.randint(LANES, (96,), generator=random), queues.argmax(dim=1))

    task = Task(seed, draw, lambda out, best: F.cross_entropy(out[0], best) + 0.1 * F.mse_loss(out[1], best / 4))
    return live(model, task, "Adam", 5e-3, 70, kwargs={"action_extractor": of_two})


zoo.healthy("junction-cloned-from-an-erring-expert", copied, thrives(0.2))
general("junction-q-values-huber-clipped", lambda s: dqn(s, loss=td(by=F.smooth_l1_loss), clip=5.0))
general("junction-q-values-near-sighted", lambda s: dqn(s, loss=td(0.0), lr=5e-3))
general(
    "junction-q-values-layer-norm-tanh",
    lambda s: dqn(s, Values(tower([LANES, 48, 48, LANES], nn.Tanh, norm=nn.LayerNorm)), lr=5e-3),
)


class Double(nn.Module):
    """Two nets of values; the smaller of the two slow ones tells what comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Values(tower([LANES, 48, 48, LANES], nn.SiLU)), Values(tower([LANES, 48, 48, LANES], nn.SiLU))

    def forward(self, state: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (a, next_a), (b, next_b) = self.a(state, after), self.b(state, after)
        return a, b, torch.minimum(next_a, next_b)


def both_td(output: tuple[Tensor, Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
    a, b, ahead = output
    return td()((a, ahead), target) + td()((b, ahead), target)


general("junction-two-critics-the-smaller-counts", lambda s: dqn(s, Double(), both_td))


def distribution(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
    """A value as chances of eleven heights; the reward lies between two of them."""
    logits = output[0].unflatten(1, (LANES, 11))[torch.arange(len(target[0])), target[0]]
    place = (target[1].clamp(-1, 1) + 1) * 5
    lower = place.floor().long().clamp_max(9)
    share = (place - lower)[:, None]
    goal = F.one_hot(lower, 11) * (1 - share) + F.one_hot(lower + 1, 11) * share
    return -(goal * logits.log_softmax(dim=1)).sum(dim=1).mean()


general(
    "junction-values-as-chances-of-heights",
    lambda s: dqn(s, Values(tower([LANES, 64, 55], nn.SiLU)), distribution, lr=1e-2),
)


def quantile(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
    told = output[0].unflatten(1, (LANES, 7))[torch.arange(len(target[0])), target[0]]
    error = target[1][:, None] - told
    at = (torch.arange(7) + 0.5) / 7
    return (
        (at - (error < 0).float()).abs() * F.huber_loss(told, target[1][:, None].expand_as(told), reduction="none")
    ).mean()


general("junction-quantiles-of-values", lambda s: dqn(s, Values(tower([LANES, 64, 35])), quantile, lr=5e-3))


class Noisy(nn.Linear):
    """Weights with noise of learned strength."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(a, b)
        self.strength = nn.Parameter(torch.full((b, a), 0.3 / a**0.5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + self.strength * torch.randn_like(self.weight), self.bias)


general(
    "junction-noisy-last-layer",
    lambda s: dqn(s, Values(nn.Sequential(nn.Linear(LANES, 64), nn.ReLU(), Noisy(64, LANES))), lr=5e-3),
)


class Preferred(nn.Module):
    """A reward model: of two states with their lanes, which is preferred."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2 * LANES, 64), nn.GELU(), nn.Linear(64, 1, bias=False), Through(torch.flatten)
        )

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.net(a) - self.net(b)


def preferences(seed: int) -> Setup:
    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        shown, paid = [], []
        for _ in range(2):
            state, action, reward, _after = letting_go(random, 96)
            shown.append(torch.cat([state, F.one_hot(action, LANES)], dim=1))
            paid.append(reward)
        return (shown[0], shown[1]), torch.bernoulli(torch.sigmoid(4 * (paid[0] - paid[1])), generator=random)

    return live(Preferred(), Task(seed, draw, F.binary_cross_entropy_with_logits), "AdamW", 1e-2, 80)


general("junction-reward-model-of-preferences", preferences)


class Inverse(nn.Module):
    """Which lane went, from the queues before and after, by codes of both."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.out = tower([LANES, 48, 16], nn.ReLU), tower([32, 48, LANES], nn.ReLU)

    def forward(self, state: Tensor, after: Tensor) -> Tensor:
        return self.out(torch.cat([self.code(state), self.code(after)], dim=1))


def inverse(seed: int) -> Setup:
    task = replay(seed, lambda out, target: F.cross_entropy(out, target[0]), 96)
    return live(Inverse(), task, "Adam", 5e-3, 70)


general("junction-inverse-model", inverse)


class Critics(nn.Module):
    """A deterministic actor that follows the smaller of two critics."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critics = (
            tower([7, 48, 3], nn.SiLU),
            nn.ModuleList(tower([10, 48, 1], nn.SiLU) for _ in range(2)),
        )

    def forward(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        seen_ = torch.cat([state, action], dim=1)
        mine = torch.cat([state, torch.tanh(self.actor(state))], dim=1)
        still = {name: p.detach() for name, p in self.critics[0].named_parameters()}
        judged_ = torch.func.functional_call(self.critics[0], still, mine)
        return torch.cat([critic(seen_) for critic in self.critics], dim=1), judged_


def twin_critics(seed: int) -> Setup:
    way = wish(seed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        state, action = torch.randn(96, 7, generator=random), 2 * torch.rand(96, 3, generator=random) - 1
        return (state, action), 1 - (action - torch.tanh(state @ way)).square().sum(dim=1)

    def loss(out: tuple[Tensor, Tensor], reward: Tensor) -> Tensor:
        return F.mse_loss(out[0], reward[:, None].expand_as(out[0])) - 0.1 * out[1].mean()

    return live(Critics(), Task(seed, draw, loss), "Adam", 1e-2, 80)


general("rooms-actor-under-two-critics", twin_critics)


class Successor(nn.Module):
    """Features of a state and their discounted sum, from a slow copy of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = Values(tower([LANES, 48, LANES], nn.Tanh))

    def forward(self, state: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        now, ahead = self.sum(state, after)
        return now, ahead, state


def successor(seed: int) -> Setup:
    task = replay(seed, lambda out, _: F.mse_loss(out[0], out[2] + 0.5 * out[1].detach()))
    return live(Successor(), task, "Adam", 1e-2, 80)


general("junction-successor-features", successor)


def weighted(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
    """Advantage-weighted regression: actions count by the exponential of how good they were."""
    actions, returns, _ = target
    weight = (2 * (returns - output[1].detach())).exp().clamp_max(10)
    told = Categorical(logits=output[0]).log_prob(actions)
    return 0.5 * F.mse_loss(output[1], returns) - (weight * told).mean()


zoo.healthy("junction-advantage-weighted-regression", lambda s: steer(s, loss=weighted, steps=80))
