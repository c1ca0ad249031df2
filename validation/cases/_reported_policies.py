"""What the policies of the half `reported` share: adverts, a lift, a gripper, with the usual losses."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from validation.case import Setup, call
from validation.cases._common_nets import tower
from validation.cases._usual_nets import falls_behind
from validation.setups import live, of_logits
from validation.tasks import Task
from validation.tasks.task import drawn_once

Target = tuple[Tensor, Tensor, Tensor]
"""Actions, returns, log-probabilities when they were drawn."""


def missed(setup: Setup) -> float:
    """How much less than the best the policy earns."""
    return setup.loss_fn.__self__.judge(setup)


earns_less = falls_behind(missed, 1.4, "misses")


@torch.no_grad()
def residual(setup: Setup) -> float:
    """The loss on some further batches."""
    return sum(setup.loss_fn(call(setup.model, setup.input_fn())).item() for _ in range(4)) / 4


errs_more = falls_behind(residual, 1.4, "ends at a loss of")


def finite(x: Tensor) -> Tensor:
    return x.nan_to_num(0.0, 1e4, -1e4)


def drawn(logits: Tensor, random: torch.Generator) -> Tensor:
    """One action for each row, even where the logits are lost."""
    return torch.multinomial(finite(logits).softmax(dim=-1).clamp_min(1e-9), 1, generator=random)


# --- policies of a few actions


class ActorCritic(nn.Module):
    """Two hidden layers for both heads."""

    def __init__(self, dim: int = 6, actions: int = 6, width: int = 64, act: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.fc1, self.act1 = nn.Linear(dim, width), act()
        self.fc2, self.act2 = nn.Linear(width, width), act()
        self.pi, self.v = nn.Linear(width, actions), nn.Linear(width, 1)

    def body(self, state: Tensor) -> Tensor:
        return self.act2(self.fc2(self.act1(self.fc1(state))))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(state)
        return self.pi(h), self.v(h).squeeze(-1)


class Separate(nn.Module):
    """An actor and a critic of their own, with an orthogonal start where asked for."""

    def __init__(self, dim: int = 6, actions: int = 6, width: int = 64, last: float | None = 0.01) -> None:
        super().__init__()
        self.actor, self.critic = tower([dim, width, width, actions], nn.Tanh), tower([dim, width, width, 1], nn.Tanh)
        if last is not None:
            for part, gain in ((self.actor, last), (self.critic, 1.0)):
                for layer in (part[0], part[2], part[4]):
                    nn.init.orthogonal_(layer.weight, gain if layer is part[4] else 2**0.5)
                    nn.init.zeros_(layer.bias)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(state), self.critic(state).squeeze(-1)


def policy_of(output: tuple[Tensor, Tensor]) -> Categorical:
    return Categorical(logits=output[0], validate_args=False)


def a2c(bonus: float = 0.01, value: float = 0.5):
    """The gain over the critic, a bonus for entropy."""

    def loss(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
        policy, gain = policy_of(output), target[1] - output[1].detach()
        told = (policy.log_prob(target[0]) * gain).mean()
        return value * F.mse_loss(output[1], target[1]) - told - bonus * policy.entropy().mean()

    return loss


def ppo(clip: float = 0.2, bonus: float = 0.01):
    """Clipped ratios, gains of unit size."""

    def loss(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
        policy, gain = policy_of(output), target[1] - output[1].detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        ratio = (policy.log_prob(target[0]) - target[2]).exp()
        told = torch.min(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean()
        return 0.5 * F.mse_loss(output[1], target[1]) - told - bonus * policy.entropy().mean()

    return loss


def reinforce(baseline: bool = True):
    """Returns less the mean of the batch, or as they are; the critic learns beside and is not asked."""

    def loss(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
        gain = target[1] - target[1].mean() if baseline else target[1]
        told = policy_of(output).log_prob(target[0]) * gain
        return 0.01 * F.mse_loss(output[1], target[1]) - told.mean()

    return loss


# --- adverts: which of six is clicked, by what is known of the visitor


def adverts(
    seed: int,
    model: nn.Module | None = None,
    loss=None,
    *,
    batch: Callable[[], int] | int = 96,
    see: Callable[[Tensor], Tensor] = lambda state: state,
    pay: Callable[[Tensor], Tensor] = lambda reward: reward,
    allowed: bool = False,
    **more: Any,
) -> Setup:
    """`see` is what the model is shown of a state, `pay` what becomes of a reward; some adverts may be barred."""
    model = model or ActorCritic()
    taste = torch.randn(6, 6, generator=drawn_once(seed, 12000))

    def worth(state: Tensor) -> Tensor:
        return torch.tanh(0.7 * state @ taste)

    def shown(state: Tensor) -> Any:
        if not allowed:
            return see(state)
        return see(state), state[:, :1] + torch.linspace(-2, 2, 6) > -1.2

    def logits_of(state: Any) -> Tensor:
        out = model(*state) if isinstance(state, tuple) else model(state)
        return out[0].detach()

    def draw(random: torch.Generator) -> tuple[Any, Target]:
        state = torch.randn(batch() if callable(batch) else batch, 6, generator=random)
        logits = logits_of(shown(state))
        action = drawn(logits, random)
        reward = worth(state).gather(1, action)[:, 0] + 0.2 * torch.randn(len(state), generator=random)
        return shown(state), (action[:, 0], pay(reward), logits.log_softmax(dim=-1).gather(1, action)[:, 0])

    def judge(setup: Setup) -> float:
        state = torch.randn(500, 6, generator=torch.Generator().manual_seed(21))
        with torch.no_grad():
            policy = logits_of(shown(state)).softmax(dim=-1)
        value = worth(state)
        if allowed:
            value = value.masked_fill(~shown(state)[1], -1.0)
        return (value.amax(dim=1) - (policy * value).sum(dim=1)).mean().item()

    task = Task(seed, draw, loss or a2c())
    task.judge = judge
    return live(
        model, task, kwargs={"action_extractor": of_logits}, **{"kind": "Adam", "lr": 3e-3, "steps": 90, **more}
    )


# --- lift: to be held at a floor by a motor that goes up, down or not at all


def lift_step(state: Tensor, action: Tensor) -> Tensor:
    place, speed, load = state[:, 0], state[:, 1], state[:, 2]
    speed = 0.9 * speed + 0.4 * (action - 1.0) - 0.1 * load
    return torch.stack([(place + 0.3 * speed).clamp(-4, 4), speed.clamp(-3, 3), load], dim=1)


def lift_pay(state: Tensor) -> Tensor:
    return 1.0 - state[:, 0].square().clamp(max=4.0) - 0.05 * state[:, 1].square()


def lift(seed: int, model: nn.Module | None = None, loss=None, *, see=lambda state: state, **more: Any) -> Setup:
    """Ten steps of twenty lifts."""
    model = model or ActorCritic(3, 3, act=nn.Tanh)

    def ride(random: torch.Generator, count: int) -> list[tuple[Tensor, ...]]:
        state, steps = torch.randn(count, 3, generator=random), []
        for _ in range(10):
            with torch.no_grad():
                logits = model(see(state))[0]
            action = drawn(logits, random)
            after = lift_step(state, action[:, 0])
            old = logits.log_softmax(dim=-1).gather(1, action)[:, 0]
            steps.append((see(state), action[:, 0], lift_pay(after), old))
            state = after
        return steps

    def draw(random: torch.Generator) -> tuple[Tensor, Target]:
        steps, ahead, returns = ride(random, 20), torch.zeros(20), []
        for step in reversed(steps):
            ahead = 0.3 * step[2] + 0.8 * ahead
            returns.insert(0, ahead)
        states, actions, _, old = (torch.cat(each) for each in zip(*steps, strict=True))
        return states, (actions, torch.cat(returns), old)

    def judge(_setup: Setup) -> float:
        steps = ride(torch.Generator().manual_seed(22), 200)
        return 1.0 - torch.stack([step[2] for step in steps]).mean().item()

    task = Task(seed, draw, loss or ppo())
    task.judge = judge
    return live(
        model, task, kwargs={"action_extractor": of_logits}, **{"kind": "Adam", "lr": 5e-3, "steps": 70, **more}
    )


# --- gripper: two joints between -1 and 1


class Gaussian(nn.Module):
    """A mean, a deviation of its own, a value."""

    def __init__(self, log_std: float = -0.5, act: type[nn.Module] = nn.Tanh) -> None:
        super().__init__()
        self.body = nn.Sequential(tower([5, 48, 48], act), act())
        self.mu, self.v = nn.Linear(48, 2), nn.Linear(48, 1)
        self.log_std = nn.Parameter(torch.full((2,), log_std))

    def deviation(self, _h: Tensor) -> Tensor:
        return self.log_std.exp()

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(state)
        mean = self.mu(h)
        return mean, self.deviation(h).expand_as(mean), self.v(h).squeeze(-1)


def of_gaussian(output: tuple[Tensor, ...]) -> tuple[None, Tensor, Tensor, Tensor]:
    return None, output[1], output[0], output[2]


def gains(target: Target, value: Tensor) -> Tensor:
    gain = target[1] - value.detach()
    return (gain - gain.mean()) / (gain.std() + 1e-8)


def by_density(bonus: float = 0.0, clip: float | None = 0.2):
    """A policy gradient, by clipped ratios where there is a clip."""

    def loss(output: tuple[Tensor, Tensor, Tensor], target: Target) -> Tensor:
        mean, std, value = output
        policy, gain = Normal(mean, std, validate_args=False), gains(target, value)
        logp = policy.log_prob(target[0]).sum(dim=1)
        if clip is None:
            told = (logp * gain).mean()
        else:
            ratio = (logp - target[2]).exp()
            told = torch.min(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean()
        return 0.5 * F.smooth_l1_loss(value, target[1]) - told - bonus * policy.entropy().sum(dim=1).mean()

    return loss


def best_grip(seed: int) -> Callable[[Tensor], Tensor]:
    way = torch.randn(5, 2, generator=drawn_once(seed, 12100)) / 5**0.5
    return lambda state: 0.9 * torch.sin(1.2 * state @ way)


def gripper(
    seed: int, model: nn.Module | None = None, loss=None, *, see=lambda state: state, limit: float = 4.0, **more: Any
) -> Setup:
    """What is moved beyond a limit is cut off there; the nearer to the best place, the more is paid."""
    model, best = model or Gaussian(), best_grip(seed)

    def draw(random: torch.Generator) -> tuple[Tensor, Target]:
        state = torch.randn(128, 5, generator=random)
        with torch.no_grad():
            mean, std, _ = model(see(state))
        mean, std = finite(mean), finite(std).abs().clamp_min(1e-12)
        action = mean + std * torch.randn(mean.shape, generator=random)
        old = Normal(mean, std, validate_args=False).log_prob(action).sum(dim=1)
        reward = -(action.clamp(-limit, limit) - best(state)).square().sum(dim=1)
        return see(state), (action, reward, old)

    def judge(_setup: Setup) -> float:
        state = torch.randn(500, 5, generator=torch.Generator().manual_seed(23))
        with torch.no_grad():
            move = model(see(state))[0].clamp(-limit, limit)
        return (move - best(state)).square().sum(dim=1).mean().item()

    task = Task(seed, draw, loss or by_density())
    task.judge = judge
    hints = {"action_range": (-1.0, 1.0)}
    options = {"kind": "Adam", "lr": 5e-3, "steps": 90, **more}
    return live(model, task, kwargs={"action_extractor": of_gaussian}, hints=hints, **options)


# --- values of the lift, from a store of random moves


class Values(nn.Module):
    """Values of the three moves, and what a slow copy gives to the next state."""

    def __init__(self, net: nn.Module | None = None, follow: float = 0.1) -> None:
        super().__init__()
        self.net, self.follow = net or tower([3, 48, 48, 3]), follow
        self.slow = deepcopy(self.net).requires_grad_(False)

    def forward(self, state: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            for kept, own in zip(self.slow.parameters(), self.net.parameters(), strict=True):
                kept.data.lerp_(own.data, self.follow)
        return self.net(state), self.slow(after)


def bellman(by=F.mse_loss, discount: float = 0.8, scale: float = 1.0):
    def loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        now = output[0].gather(1, target[0][:, None])[:, 0]
        return by(now, scale * target[1] + discount * output[1].detach().amax(dim=1))

    return loss


def values(
    seed: int, model: nn.Module | None = None, loss=None, *, see=lambda state: state, less: float = 1.0, **more: Any
) -> Setup:
    """Rewards are lower by `less` than those of the lift."""

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        state = 1.2 * torch.randn(96, 3, generator=random)
        action = torch.randint(3, (96,), generator=random)
        after = lift_step(state, action)
        return (see(state), see(after)), (action, lift_pay(after) - less)

    task = Task(seed, draw, loss or bellman())
    return live(model or Values(), task, **{"kind": "Adam", "lr": 2e-3, "steps": 110, **more})


# --- an actor that climbs a critic


class Climber(nn.Module):
    """A deterministic actor with a tanh at its end, and a critic; the actor's loss leaves the critic alone."""

    def __init__(self, dim: int = 5, width: int = 64, last: float | None = 3e-3) -> None:
        super().__init__()
        self.actor, self.squash = tower([dim, width, width, 2]), nn.Tanh()
        self.critic = tower([dim + 2, 64, 64, 1])
        if last is not None:
            nn.init.uniform_(self.actor[4].weight, -last, last)
            nn.init.uniform_(self.actor[4].bias, -last, last)

    def move(self, state: Tensor) -> Tensor:
        return self.squash(self.actor(state))

    def forward(self, state: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        told = self.critic(torch.cat([state, action], dim=1)).squeeze(1)
        self.critic.requires_grad_(False)
        liked = self.critic(torch.cat([state, self.move(state)], dim=1)).mean()
        self.critic.requires_grad_(True)
        return F.mse_loss(told, reward) - 0.3 * liked


def climb(seed: int, model: nn.Module | None = None, *, see=lambda state: state, best=None, **more: Any) -> Setup:
    """Random moves of the gripper from a store."""
    model, best = model or Climber(), best or best_grip(seed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor, Tensor], None]:
        state, action = torch.randn(128, 5, generator=random), 2 * torch.rand(128, 2, generator=random) - 1
        return (see(state), action, -(action - best(state)).square().sum(dim=1)), None

    def judge(_setup: Setup) -> float:
        state = torch.randn(500, 5, generator=torch.Generator().manual_seed(24))
        with torch.no_grad():
            return (model.move(see(state)) - best(state)).square().sum(dim=1).mean().item()

    task = Task(seed, draw, lambda out, _: out)
    task.judge = judge
    return live(model, task, **{"kind": "Adam", "lr": 2e-3, "steps": 120, **more})
