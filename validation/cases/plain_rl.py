# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Plain policies and values: with the mistakes that people make, their twins, and others that train well.

Half: plain.
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
from validation.cases._common_nets import SQUEEZED, tower
from validation.cases._everyday_nets import CUT_OFF, NARROW, orthogonal
from validation.cases._everyday_sequences import more_than
from validation.cases._plain_nets import BLOWN
from validation.evidence.live import at_last, breaks, lags, lasting, thrives
from validation.evidence.play import earns_less, explores, missed
from validation.evidence.signal import both, dead, gradient_ratio, no_gradient, saturated
from validation.evidence.training import diverges, gradient_norms_spread
from validation.labels import JUMPS, RUNS_AWAY, STUCK, SURE
from validation.setups import live
from validation.tasks import Task, drawn_once
from validation.tasks.rewards import by_clipped_ratios

# --- a walk to a flag: four ways and a rest; each step pays by how much nearer it comes

WAYS = torch.tensor([[1.0, 0], [-1.0, 0], [0, 1.0], [0, -1.0], [0, 0]])
STEP = 0.3
Target = tuple[Tensor, Tensor, Tensor]


def placed(random: torch.Generator, count: int) -> Tensor:
    """Own place, that of the flag, and two gauges that do not matter."""
    return 2 * torch.rand(count, 6, generator=random) - 1


def gains(state: Tensor) -> Tensor:
    """What every way pays."""
    own, flag = state[:, None, :2], state[:, None, 2:4]
    return ((flag - own).norm(dim=2) - (flag - own - STEP * WAYS).norm(dim=2)) / STEP


def poor(least: float):
    return more_than(missed, least, "of the best reward is missed")


def walks(seed: int, model: nn.Module, loss: Callable, *, more: float = 0.0, origin: float = 0.0):
    """Rollouts of the policy as it is; the target is (actions, returns to come, old log-probabilities)."""

    def draw(random: torch.Generator) -> tuple[Tensor, Target]:
        state = placed(random, 32)
        states, actions, rewards, chances = [], [], [], []
        for _ in range(4):
            with torch.no_grad():
                chance = model(origin + state)[0].log_softmax(dim=-1)
            p = chance.exp().nan_to_num(0.2).clamp_min(1e-9)
            action = torch.multinomial(p, 1, generator=random)
            states.append(origin + state)
            actions.append(action[:, 0])
            rewards.append(gains(state).gather(1, action)[:, 0] + more)
            chances.append(chance.gather(1, action)[:, 0])
            state = torch.cat([state[:, :2] + STEP * WAYS[action[:, 0]], state[:, 2:]], dim=1)
        returns, ahead = [], torch.zeros(32)
        for reward in reversed(rewards):
            ahead = reward + 0.4 * ahead
            returns.insert(0, ahead)
        return torch.cat(states), (torch.cat(actions), torch.cat(returns), torch.cat(chances))

    def judge(setup: Setup) -> float:
        state = placed(torch.Generator().manual_seed(5), 400)
        with torch.no_grad():
            policy = setup.model(origin + state)[0].softmax(dim=-1)
        pay = gains(state)
        return (pay.amax(dim=1) - (policy * pay).sum(dim=1)).mean().item()

    task = Task(seed, draw, loss)
    task.judge = judge
    return task


zoo = Zoo("rl", half="plain", analyzer="policy", proof=thrives(0.3, measure=missed))


class Walker(nn.Module):
    """A body, a head for the ways, a head for the value; `last` changes the logits."""

    def __init__(self, widths: tuple[int, ...] = (64, 64), act: type[nn.Module] = nn.Tanh, last=None) -> None:
        super().__init__()
        self.body = nn.Sequential(tower([6, *widths], act), act())
        self.ways, self.value, self.last = nn.Linear(widths[-1], 5), nn.Linear(widths[-1], 1), last

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(state)
        z = self.ways(h)
        return self.last(z) if self.last else z, self.value(h).squeeze(-1)


def of_two(output: tuple[Tensor, Tensor]) -> tuple[Tensor, None, None, Tensor]:
    return output[0], None, None, output[1]


def a2c(bonus: float = 0.01, value: float = 0.5, cut: bool = False):
    def loss(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
        logits, values = output
        actions, returns, _ = target
        policy = Categorical(logits=logits)
        gain = (policy.log_prob(actions) * (returns - values.detach())).mean()
        critic = F.mse_loss(values.detach() if cut else values, returns)
        return value * critic - gain - bonus * policy.entropy().mean()

    return loss


def walk(seed: int, model: nn.Module | None = None, loss=None, *, task: dict | None = None, **more) -> Setup:
    model = model or Walker()
    rollouts = walks(seed, model, loss or a2c(), **(task or {}))
    return live(model, rollouts, kwargs={"action_extractor": of_two}, **{"lr": 5e-3, "steps": 70, **more})


# --- what is tried

walker = zoo.healthy("walk-a2c", walk)
zoo.sick(
    "walk-a2c-entropy-with-the-wrong-sign",
    lambda s: walk(s, loss=a2c(-1.0)),
    both(at_last(explores(0, 0.1), poor(0.2)), earns_less),
    *STUCK,
    also={*SURE, "LOW_RANK", "BOTTLENECK"},
    control=walker,
)
zoo.sick(
    "walk-a2c-entropy-bonus-of-5",
    lambda s: walk(s, loss=a2c(5.0)),
    both(at_last(explores(0.97, 1.0), poor(0.6)), earns_less),
    "EXPLORATION",
    also={"SLOW", "VANISHING"},
    control=walker,
)
cool = zoo.healthy("walk-a2c-logits-over-0.7", lambda s: walk(s, Walker(last=lambda z: z / 0.7)))
zoo.sick(
    "walk-a2c-logits-over-0.01",
    lambda s: walk(s, Walker(last=lambda z: z / 0.01)),
    both(lasting(explores(0, 0.2)), earns_less),
    *STUCK,
    "SATURATION",
    layer=("ways", "body.0.2", "body.0.0"),
    also={*SURE, "UNSTABLE", "NUMERICAL"},
    control=cool,
)


def reinforce(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
    """Plain policy gradient by the returns as they are; the critic only learns to tell them."""
    actions, returns, _ = target
    told = Categorical(logits=output[0]).log_prob(actions) * returns
    return 0.1 * F.mse_loss(output[1], returns) - told.mean()


centred = zoo.healthy("walk-reinforce-rewards-around-0", lambda s: walk(s, loss=reinforce, lr=1e-2))
zoo.sick(
    "walk-reinforce-every-step-pays-30-more",
    lambda s: walk(s, loss=reinforce, lr=1e-2, task={"more": 30.0}),
    both(at_last(explores(0, 0.25), poor(0.3)), earns_less),
    *STUCK,
    *JUMPS,
    also={*SURE, "LOW_RANK", "BOTTLENECK"},
    control=centred,
)
# --- pumps: how far to open four valves, by the levels of the tanks


class Pump(nn.Module):
    """Mean and deviation for four valves, and the value; the deviation may be held within bounds."""

    def __init__(self, most: float = 1.0, start: float = -0.7) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.mean, self.value = nn.Linear(64, 4), nn.Linear(64, 1)
        self.log_std, self.most = nn.Parameter(torch.full((4,), start)), most

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(state)
        mean = torch.tanh(self.mean(h))
        return mean, self.log_std.clamp(-20, self.most).exp().expand_as(mean), self.value(h).squeeze(-1)


def of_three(output: tuple[Tensor, Tensor, Tensor]) -> tuple[None, Tensor, Tensor, Tensor]:
    return None, output[1], output[0], output[2]


def wish(seed: int) -> Tensor:
    return torch.randn(8, 4, generator=drawn_once(seed, 4200)) / 8**0.5


def ppo(output: tuple[Tensor, Tensor, Tensor], target: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    mean, std, value = output
    action, reward, old = target
    policy, gain = Normal(mean, std), reward - value.detach()
    gain = (gain - gain.mean()) / (gain.std() + 1e-6)
    ratio = (policy.log_prob(action).sum(dim=-1) - old).exp()
    told = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    return 0.5 * F.mse_loss(value, reward) - told - 0.002 * policy.entropy().sum(dim=-1).mean()


def pump(seed: int, model: nn.Module | None = None, loss=ppo, **more) -> Setup:
    model, way = model or Pump(), wish(seed)

    def draw(random: torch.Generator) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        state = torch.randn(128, 8, generator=random)
        with torch.no_grad():
            mean, std, _ = model(state)
        action = mean + std * torch.randn(mean.shape, generator=random)
        reward = -(action - torch.tanh(1.2 * state @ way)).square().sum(dim=-1)
        return state, (action, reward, Normal(mean, std).log_prob(action).sum(dim=-1))

    def judge(setup: Setup) -> float:
        state = torch.randn(400, 8, generator=torch.Generator().manual_seed(6))
        with torch.no_grad():
            mean = setup.model(state)[0]
        return (mean - torch.tanh(1.2 * state @ way)).square().sum(dim=-1).mean().item()

    task = Task(seed, draw, loss)
    task.judge = judge
    hints = {"action_range": (-1.0, 1.0)}
    return live(model, task, kwargs={"action_extractor": of_three}, hints=hints, **{"lr": 5e-3, "steps": 80, **more})


pumps = zoo.healthy("pumps-ppo", pump)
zoo.sick(
    "pumps-ppo-log-deviation-clamped-below-minus-9",
    lambda s: pump(s, Pump(-9.0)),
    both(lasting(explores(0, 0.001)), earns_less),
    *STUCK,
    also={"EXPLODING", "UNSTABLE", "DISCONNECTED", "NUMERICAL"},
    control=pumps,
)


class Soft(nn.Module):
    """A policy and its critic in one: the loss of the critic on tried actions, and what it thinks of new ones."""

    def __init__(self, reparametrised: bool) -> None:
        super().__init__()
        self.body, self.mean = nn.Sequential(nn.Linear(8, 48), nn.ReLU()), nn.Linear(48, 4)
        self.log_std = nn.Parameter(torch.full((4,), -1.0))
        self.critic, self.reparametrised = tower([12, 64, 64, 1], nn.SiLU), reparametrised

    def judge(self, state: Tensor, action: Tensor) -> Tensor:
        return self.critic(torch.cat([state, action], dim=1)).squeeze(1)

    def forward(self, state: Tensor, tried: Tensor, reward: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(self.body(state))
        policy = Normal(mean, self.log_std.exp())
        action = policy.rsample() if self.reparametrised else policy.sample()
        error = F.mse_loss(self.judge(state, tried), reward)
        self.critic.requires_grad_(False)
        actor = -self.judge(state, torch.tanh(action)).mean()
        self.critic.requires_grad_(True)
        return error + actor, mean


def soft(seed: int, reparametrised: bool) -> Setup:
    way, model = wish(seed), Soft(reparametrised)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor, Tensor], None]:
        state = torch.randn(128, 8, generator=random)
        tried = 2 * torch.rand(128, 4, generator=random) - 1
        return (state, tried, -(tried - torch.tanh(1.2 * state @ way)).square().sum(dim=1)), None

    def judge(setup: Setup) -> float:
        state = torch.randn(400, 8, generator=torch.Generator().manual_seed(6))
        with torch.no_grad():
            mean = torch.tanh(setup.model.mean(setup.model.body(state)))
        return (mean - torch.tanh(1.2 * state @ way)).square().sum(dim=-1).mean().item()

    task = Task(seed, draw, lambda out, _: out[0])
    task.judge = judge
    return live(model, task, "Adam", 5e-3, 120)


sac = zoo.healthy("pumps-soft-actor-critic-rsample", lambda s: soft(s, True), analyzer="general")
zoo.sick(
    "pumps-soft-actor-critic-sample",
    lambda s: soft(s, False),
    both(lasting(no_gradient("body", "mean")), earns_less),
    *CUT_OFF,
    layer=("mean", "body.0"),
    also={"detached", "never_moves", "EXPLORATION", "SLOW"},
    control=sac,
    analyzer="general",
)

# --- the faults of any network

narrow = zoo.healthy("walk-a2c-body-through-16", lambda s: walk(s, Walker((64, 16, 64), nn.ELU)))
zoo.sick(
    "walk-a2c-body-through-1",
    lambda s: walk(s, Walker((64, 1, 64), nn.ELU)),
    earns_less,
    *NARROW,
    layer=("body.0.2", "body.0.4"),
    also={*SQUEEZED, "EXPLORATION"},
    control=narrow,
)
zoo.sick(
    "walk-a2c-value-detached-in-its-own-loss",
    lambda s: walk(s, loss=a2c(cut=True)),
    lasting(no_gradient("value")),
    *CUT_OFF,
    layer=("value",),
    also={"detached", "never_moves"},
    control=walker,
)
near = zoo.healthy("walk-a2c-places-from-the-middle", lambda s: walk(s, lr=3e-3))
zoo.sick(
    "walk-a2c-places-from-the-equator",
    lambda s: walk(s, lr=3e-3, task={"origin": 5000.0}),
    both(lasting(saturated("body.0.1", "tanh", 0.9)), earns_less),
    "SATURATION",
    "VANISHING",
    layer=("body.0.0", "body.0.1"),
    also={"input_scales", "EXPLODING", "UNSTABLE", "EXPLORATION", "ENTROPY_COLLAPSE", "LOW_RANK", "BOTTLENECK"},
    control=near,
)
deep = zoo.healthy(
    "walk-a2c-eight-silu-layers-orthogonal",
    lambda s: walk(s, orthogonal(Walker((48,) * 8, nn.SiLU), 1.7), kind="SGD", lr=0.02, momentum=0.9, steps=90),
)
zoo.sick(
    "walk-a2c-eight-sigmoid-layers-orthogonal",
    lambda s: walk(s, orthogonal(Walker((48,) * 8, nn.Sigmoid), 1.7), kind="SGD", lr=0.02, momentum=0.9, steps=90),
    both(lasting(gradient_ratio("body.0.0", "body.0.14", below=1e-2)), earns_less),
    "VANISHING",
    "SATURATION",
    also={"SLOW", "EXPLORATION", "LOW_RANK", "BOTTLENECK"},
    control=deep,
)


def per_episode(most: float):
    """The ratio of a whole episode is the product of those of its steps; the policy that walked was another."""

    def loss(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
        logits, values = output
        actions, returns, old = target
        stale = old + 2.5 * torch.randn(old.shape)
        chance = Categorical(logits=logits).log_prob(actions)
        ratio = (chance - stale).view(4, 32).sum(dim=0).exp().clamp_max(most).repeat(4).detach()
        gain = returns - values.detach()
        return 0.5 * F.mse_loss(values, returns) - (ratio * chance * gain).mean()

    return loss


bounded = zoo.healthy("walk-ratios-of-episodes-at-most-2", lambda s: walk(s, loss=per_episode(2.0)))
zoo.sick(
    "walk-ratios-of-episodes-unbounded",
    lambda s: walk(s, loss=per_episode(math.inf)),
    gradient_norms_spread(30),
    *JUMPS,
    also={"EXPLORATION", "ENTROPY_COLLAPSE", "NUMERICAL"},
    control=bounded,
)


class Fenced(nn.Module):
    """Ways that lead out of the field are barred; what bars them is minus infinity, or a large number."""

    def __init__(self, bar: float) -> None:
        super().__init__()
        self.body, self.ways = nn.Sequential(nn.Linear(6, 64), nn.ReLU()), nn.Linear(64, 5)
        self.value, self.bar = nn.Linear(64, 1), bar

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(state)
        ahead = (state[:, None, :2] + 0.1 * WAYS).abs().amax(dim=2) > 1
        ahead[:, 4] = False
        return self.ways(h).masked_fill(ahead, self.bar), self.value(h).squeeze(-1)


def by_hand(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
    """The entropy from its formula."""
    logits, values = output
    actions, returns, _ = target
    p, chance = logits.softmax(dim=1), logits.log_softmax(dim=1)
    told = chance.gather(1, actions[:, None]).squeeze(1).clamp_min(-20) * (returns - values.detach())
    return 0.5 * F.mse_loss(values, returns) - told.mean() + 0.01 * (p * chance).sum(dim=1).mean()


fenced = zoo.healthy("walk-fence-of-minus-1e9", lambda s: walk(s, Fenced(-1e9), by_hand))
zoo.sick(
    "walk-fence-of-minus-infinity-entropy-by-hand",
    lambda s: walk(s, Fenced(-math.inf), by_hand),
    breaks,
    "NUMERICAL",
    also={"loss_nonfinite"},
    control=fenced,
)

# --- values


def general(name: str, build, proof=None) -> Case:
    return zoo.healthy(name, build, proof or thrives(0.2, most_dead=0.5), analyzer="general")


def replay(seed: int, loss: Callable, shift: float = 0.0, batch: int = 64) -> Task:
    """Steps of a walk at random, from a store."""

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        state = placed(random, batch)
        action = torch.randint(5, (batch,), generator=random)
        after = torch.cat([state[:, :2] + STEP * WAYS[action], state[:, 2:]], dim=1)
        return (state, after), (action, gains(state).gather(1, action[:, None])[:, 0] + shift)

    return Task(seed, draw, loss)


class Values(nn.Module):
    """Values of the ways, and those that a slow copy gives to what comes next."""

    def __init__(self, net: nn.Module | None = None, pace: float = 0.05) -> None:
        super().__init__()
        self.net, self.pace = net or tower([6, 64, 64, 5]), pace
        self.slow = deepcopy(self.net).requires_grad_(False)

    def forward(self, state: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if torch.is_grad_enabled():
            for mine, own in zip(self.slow.parameters(), self.net.parameters(), strict=True):
                mine.data.lerp_(own.data, self.pace)
        return self.net(state), self.slow(after), self.net(after).detach()


Three = tuple[Tensor, Tensor, Tensor]


def td(discount: float = 0.5, by=F.mse_loss, double: bool = False, over: str = "max"):
    def loss(output: Three, target: tuple[Tensor, Tensor]) -> Tensor:
        now, slow, own = output
        if double:
            ahead = slow.gather(1, own.argmax(dim=1, keepdim=True)).squeeze(1)
        else:
            ahead = slow.amax(dim=1) if over == "max" else slow.sum(dim=1)
        return by(now.gather(1, target[0][:, None]).squeeze(1), target[1] + discount * ahead)

    return loss


def dqn(seed: int, net: nn.Module | None = None, loss=None, *, pace: float = 0.05, shift: float = 0.0, **more) -> Setup:
    more = {"kind": "Adam", "lr": 5e-3, "steps": 100, **more}
    return live(Values(net, pace), replay(seed, loss or td(), shift), **more)


paces = general(
    "walk-q-values-fast-copy", lambda s: dqn(s, pace=0.5, loss=td(0.9), lr=3e-3), thrives(0.1, most_dead=0.5)
)
zoo.sick(
    "walk-q-values-sum-over-the-ways-ahead",
    lambda s: dqn(s, pace=0.5, loss=td(0.9, over="sum"), lr=3e-3),
    diverges(5),
    *RUNS_AWAY,
    also=BLOWN,
    control=paces,
    analyzer="general",
)


def ended(last: bool) -> nn.Sequential:
    """Values behind an activation of their own, which forbids those below zero."""
    return nn.Sequential(
        nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5), *[nn.ReLU()] * last
    )


costs = general("walk-q-values-every-step-costs-2", lambda s: dqn(s, ended(False), shift=-2.0))
zoo.sick(
    "walk-q-values-every-step-costs-2-relu-at-the-end",
    lambda s: dqn(s, ended(True), shift=-2.0),
    both(at_last(dead("net.5", 0.99), no_gradient("net.4", "net.0")), lags(0.2)),
    "DEAD",
    "DISCONNECTED",
    layer=("net.4", "net.5"),
    also={"loss_stuck", "never_moves", "VANISHING", "SLOW", "LOW_RANK", "BOTTLENECK"},
    control=costs,
    analyzer="general",
)
wide = general("walk-q-values-hidden-32", lambda s: dqn(s, tower([6, 64, 32, 5], nn.ELU)))
zoo.sick(
    "walk-q-values-hidden-1",
    lambda s: dqn(s, tower([6, 64, 1, 5], nn.ELU)),
    lags(0.2),
    *NARROW,
    layer=("net.2", "net.4"),
    also=SQUEEZED,
    control=wide,
    analyzer="general",
)

# --- others that train well


def normalised(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
    """The returns of a batch are standardised; there is no critic to speak of."""
    actions, returns, _ = target
    gain = (returns - returns.mean()) / (returns.std() + 1e-6)
    return 0.1 * F.mse_loss(output[1], gain) - (Categorical(logits=output[0]).log_prob(actions) * gain).mean()


clipped = by_clipped_ratios(F.mse_loss)
zoo.healthy("walk-ppo-standardised-gains", lambda s: walk(s, loss=clipped))
zoo.healthy("walk-ppo-linear-decay", lambda s: walk(s, loss=clipped, rate=lambda t: 1 - t / 70))
zoo.healthy("walk-reinforce-standardised-returns", lambda s: walk(s, loss=normalised))
zoo.healthy("walk-a2c-clipped-at-half", lambda s: walk(s, clip=0.5))
zoo.healthy("walk-a2c-rmsprop", lambda s: walk(s, kind="RMSprop", lr=3e-3))
zoo.healthy("walk-a2c-sgd-momentum", lambda s: walk(s, kind="SGD", lr=0.1, momentum=0.9, steps=90))
zoo.healthy("walk-a2c-relu", lambda s: walk(s, Walker(act=nn.ReLU), lr=3e-3))
zoo.healthy("walk-a2c-bonus-0.1", lambda s: walk(s, loss=a2c(0.1)))
zoo.healthy("walk-a2c-one-layer-of-256", lambda s: walk(s, Walker((256,)), lr=2e-3))


def small_head(seed: int) -> Setup:
    """The head of the policy starts at a hundredth, as is advised."""
    model = orthogonal(Walker())
    model.ways.weight.data *= 0.01
    return walk(seed, model)


zoo.healthy("walk-a2c-orthogonal-small-head", small_head)
zoo.healthy("pumps-ppo-deviation-starts-at-1", lambda s: pump(s, Pump(start=0.0)))
zoo.healthy("pumps-ppo-rmsprop-clipped", lambda s: pump(s, kind="RMSprop", lr=2e-3, clip=1.0))
zoo.healthy("pumps-ppo-decaying-rate", lambda s: pump(s, rate=lambda t: 0.97**t))


class Apart(nn.Module):
    """A policy and a critic that share nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.critic = tower([6, 48, 48, 5], nn.Tanh), tower([6, 64, 1], nn.ReLU)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(state), self.critic(state).squeeze(-1)


zoo.healthy("walk-a2c-two-nets", lambda s: walk(s, Apart()))
general("walk-q-values-double", lambda s: dqn(s, loss=td(double=True)))
general("walk-q-values-huber", lambda s: dqn(s, loss=td(by=F.smooth_l1_loss), clip=1.0))
general("walk-q-values-norm-sgd", lambda s: dqn(s, tower([6, 64, 64, 5], norm=nn.LayerNorm), kind="SGD", lr=0.1))


class Duel(nn.Module):
    """The value of a place, and what each way adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.value, self.gain = (
            nn.Sequential(nn.Linear(6, 64), nn.GELU()),
            nn.Linear(64, 1),
            nn.Linear(64, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        gain = self.gain(h)
        return self.value(h) + gain - gain.mean(dim=1, keepdim=True)


general("walk-q-values-duelling", lambda s: dqn(s, Duel()))


def conservative(output: Three, target: tuple[Tensor, Tensor]) -> Tensor:
    """Ways that were not taken are held low."""
    held = output[0].logsumexp(dim=1) - output[0].gather(1, target[0][:, None]).squeeze(1)
    return td()(output, target) + 0.1 * held.mean()


general("walk-q-values-conservative", lambda s: dqn(s, loss=conservative))


def cloned(seed: int) -> Setup:
    """The best way is shown, and now and then another."""

    def change(x: tuple[Tensor, Tensor], t: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        best = gains(x[0]).argmax(dim=1)
        return x[0], torch.where(torch.arange(len(best)) % 8 == 0, t[0], best)

    return live(tower([6, 64, 64, 5]), replay(seed, F.cross_entropy).changed(change), "Adam", 5e-3, 90)


general("walk-cloned-with-some-errors", cloned)


def modelled(seed: int) -> Setup:
    """Where a way leads and what it pays, from the place and the way."""

    def change(x: tuple[Tensor, Tensor], t: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        given = torch.cat([x[0], F.one_hot(t[0], 5).float()], dim=1)
        return given, torch.cat([(x[1] - x[0])[:, :2] * 3, t[1][:, None]], dim=1)

    return live(tower([11, 96, 3], nn.SiLU), replay(seed, F.mse_loss).changed(change), "AdamW", 5e-3, 90)


general("walk-model-of-the-world", modelled)


class Curious(nn.Module):
    """A net learns to say what a random one says, which stays as it is: where it fails, the place is new."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed, self.guess = tower([6, 48, 16], nn.ReLU).requires_grad_(False), tower([6, 64, 64, 16], nn.ReLU)

    def forward(self, state: Tensor, _after: Tensor) -> Tensor:
        return F.mse_loss(self.guess(state), 4 * self.fixed(state))


general("walk-random-net-distilled", lambda s: live(Curious(), replay(s, lambda out, _: out), "Adam", 3e-3, 90))


def quantiles(output: Three, target: tuple[Tensor, Tensor]) -> Tensor:
    """Eight quantiles of each value."""
    now, slow = (each.unflatten(1, (5, 8)) for each in output[:2])
    best = slow.mean(dim=2).argmax(dim=1)
    goal = target[1][:, None] + 0.5 * slow[torch.arange(len(best)), best]
    gap = goal[:, None] - now[torch.arange(len(best)), target[0]][..., None]
    levels = (torch.arange(8) + 0.5) / 8
    return ((levels[:, None] - (gap < 0).float()).abs() * F.huber_loss(gap, 0 * gap, reduction="none")).mean()


general("walk-eight-quantiles-of-values", lambda s: dqn(s, tower([6, 64, 40]), quantiles))


class Ranked(nn.Module):
    """Which of two places pays more: a score for each, from one net."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(tower([6, 64, 64], nn.GELU), nn.GELU(), nn.Linear(64, 1, bias=False))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (self.score(a) - self.score(b)).squeeze(1)


def ranked(seed: int) -> Setup:
    def change(x: tuple[Tensor, Tensor], _: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        a, b = x[0], x[0].flip(0)
        near = [(each[:, :2] - each[:, 2:4]).norm(dim=1) for each in (a, b)]
        return (a, b), (near[0] < near[1]).float()

    return live(Ranked(), replay(seed, F.binary_cross_entropy_with_logits).changed(change), "Adam", 5e-3, 100)


general("walk-places-ranked-by-pairs", ranked)
