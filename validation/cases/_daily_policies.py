"""What the policies of the half `daily` share: couriers, a pole and a boiler, with the usual losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from validation.case import Setup
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


earns_less = falls_behind(missed, 1.5, "misses")

# --- policies and losses


class Policy(nn.Module):
    """A body, a head for the actions, a head for the value."""

    def __init__(
        self, dim: int = 8, actions: int = 5, widths: tuple[int, ...] = (48, 48), act: type[nn.Module] = nn.Tanh
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(tower([dim, *widths], act), act())
        self.actor, self.critic = nn.Linear(widths[-1], actions), nn.Linear(widths[-1], 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(state)
        return self.actor(h), self.critic(h).squeeze(-1)


def a2c(bonus: float | Callable[[], float] = 0.01, value: float = 0.5):
    """The gain over the critic; the bonus for entropy may change from step to step."""

    def loss(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
        logits, values = output
        actions, returns, _ = target
        policy = Categorical(logits=logits, validate_args=False)
        told = (policy.log_prob(actions) * (returns - values.detach())).mean()
        weight = bonus() if callable(bonus) else bonus
        return value * F.mse_loss(values, returns) - told - weight * policy.entropy().mean()

    return loss


def ppo(clip: float = 0.2, bonus: float = 0.01):
    """The clipped ratio with gains of unit size."""

    def loss(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
        actions, returns, old = target
        policy = Categorical(logits=output[0], validate_args=False)
        gain = returns - output[1].detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        ratio = (policy.log_prob(actions) - old).exp()
        told = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean()
        return 0.5 * F.smooth_l1_loss(output[1], returns) - told - bonus * policy.entropy().mean()

    return loss


def reinforce(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
    """Returns as they are; the critic learns beside, and tells nobody."""
    told = Categorical(logits=output[0], validate_args=False).log_prob(target[0]) * target[1]
    return 0.01 * F.mse_loss(output[1], target[1]) - told.mean()


def drawn(logits: Tensor, random: torch.Generator) -> Tensor:
    """One action for each row, even where the logits are lost."""
    return torch.multinomial(logits.softmax(dim=-1).nan_to_num(0.2).clamp_min(1e-9), 1, generator=random)


# --- couriers: five of them, each with a part of the town where it is good; pay is noisy


def couriers(
    seed: int, model: nn.Module | None = None, loss=None, *, scale: float = 1.0, offset: float = 0.0, batch=96, **more
) -> Setup:
    """What is paid is multiplied by `scale`, after `offset` was added."""
    model = model or Policy()
    good = torch.randn(8, 5, generator=drawn_once(seed, 8000))

    def pays(state: Tensor) -> Tensor:
        return torch.tanh(0.6 * state @ good)

    def draw(random: torch.Generator) -> tuple[Tensor, Target]:
        state = torch.randn(batch, 8, generator=random)
        with torch.no_grad():
            logits = model(state)[0]
        action = drawn(logits, random)
        pay = pays(state).gather(1, action)[:, 0] + 0.2 * torch.randn(batch, generator=random)
        return state, (action[:, 0], scale * (pay + offset), logits.log_softmax(dim=-1).gather(1, action)[:, 0])

    def judge(setup: Setup) -> float:
        state = torch.randn(400, 8, generator=torch.Generator().manual_seed(11))
        with torch.no_grad():
            policy = setup.model(state)[0].softmax(dim=-1)
        pay = pays(state)
        return (pay.amax(dim=1) - (policy * pay).sum(dim=1)).mean().item()

    task = Task(seed, draw, loss or a2c())
    task.judge = judge
    return live(model, task, kwargs={"action_extractor": of_logits}, **{"lr": 5e-3, "steps": 80, **more})


# --- pole: to be held upright by pushes to the left, none, or to the right


def swing(state: Tensor, action: Tensor) -> Tensor:
    """Angle and speed after a push, with the wind, which stays."""
    angle, speed, wind = state[:, 0], state[:, 1], state[:, 2]
    speed = 0.95 * speed + 0.25 * (0.5 * angle + 1.5 * (action - 1.0) + 0.4 * wind)
    return torch.stack([(angle + 0.25 * speed).clamp(-3, 3), speed.clamp(-3, 3), wind], dim=1)


def upright(state: Tensor) -> Tensor:
    """What a step pays: less, the more it leans."""
    return -state[:, 0].square() - 0.1 * state[:, 1].square()


def pole(seed: int, model: nn.Module | None = None, loss=None, **more) -> Setup:
    """Twelve steps of sixteen poles."""
    model = model or Policy(3, 3)

    def roll(policy: nn.Module, random: torch.Generator, count: int) -> list[tuple[Tensor, ...]]:
        state, steps = 0.7 * torch.randn(count, 3, generator=random), []
        for _ in range(12):
            with torch.no_grad():
                logits = policy(state)[0]
            action = drawn(logits, random)
            after = swing(state, action[:, 0])
            chance = logits.log_softmax(dim=-1).gather(1, action)[:, 0]
            steps.append((state, action[:, 0], upright(after), chance))
            state = after
        return steps

    def draw(random: torch.Generator) -> tuple[Tensor, Target]:
        steps, ahead, returns = roll(model, random, 16), torch.zeros(16), []
        for step in reversed(steps):
            ahead = 0.3 * step[2] + 0.8 * ahead
            returns.insert(0, ahead)
        states, actions, _, chances = (torch.cat(each) for each in zip(*steps, strict=True))
        return states, (actions, torch.cat(returns), chances)

    def judge(setup: Setup) -> float:
        steps = roll(setup.model, torch.Generator().manual_seed(12), 200)
        return -torch.stack([step[2] for step in steps]).mean().item()

    task = Task(seed, draw, loss or ppo())
    task.judge = judge
    return live(model, task, kwargs={"action_extractor": of_logits}, **{"lr": 1e-2, "steps": 70, **more})


# --- boiler: two valves between -1 and 1


class Valves(nn.Module):
    """A mean, a deviation that is learned, a value."""

    def __init__(self, log_std: float = -0.7, act: type[nn.Module] = nn.Tanh) -> None:
        super().__init__()
        self.body = nn.Sequential(tower([5, 48, 48], act), act())
        self.mean, self.value = nn.Linear(48, 2), nn.Linear(48, 1)
        self.log_std = nn.Parameter(torch.full((2,), log_std))

    def std(self, _h: Tensor) -> Tensor:
        """The same everywhere."""
        return self.log_std.exp()

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(state)
        mean = torch.tanh(self.mean(h))
        return mean, self.std(h).expand_as(mean), self.value(h).squeeze(-1)


def of_valves(output: tuple[Tensor, Tensor, Tensor]) -> tuple[None, Tensor, Tensor, Tensor]:
    return None, output[1], output[0], output[2]


def likely(bonus: float = 0.005):
    """A policy gradient with gains of unit size."""

    def loss(output: tuple[Tensor, Tensor, Tensor], target: Target) -> Tensor:
        mean, std, value = output
        gain = target[1] - value.detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        policy = Normal(mean, std, validate_args=False)
        told = (policy.log_prob(target[0]).sum(dim=1) * gain).mean()
        return 0.5 * F.smooth_l1_loss(value, target[1]) - told - bonus * policy.entropy().sum(dim=1).mean()

    return loss


def near(output: tuple[Tensor, Tensor, Tensor], target: Target) -> Tensor:
    """The same by clipped ratios."""
    mean, std, value = output
    gain = target[1] - value.detach()
    gain = (gain - gain.mean()) / (gain.std() + 1e-6)
    ratio = (Normal(mean, std, validate_args=False).log_prob(target[0]).sum(dim=1) - target[2]).exp()
    told = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    return 0.5 * F.mse_loss(value, target[1]) - told


def best_valves(seed: int) -> Callable[[Tensor], Tensor]:
    """Where the valves should be."""
    way = torch.randn(5, 2, generator=drawn_once(seed, 8100)) / 5**0.5
    return lambda state: torch.tanh(1.3 * state @ way)


def boiler(seed: int, model: nn.Module | None = None, loss=None, batch: int = 128, **more) -> Setup:
    """The nearer the valves are to the best place, the more is paid."""
    model, best = model or Valves(), best_valves(seed)

    def draw(random: torch.Generator) -> tuple[Tensor, Target]:
        state = torch.randn(batch, 5, generator=random)
        with torch.no_grad():
            mean, std, _ = model(state)
        action = mean + std * torch.randn(mean.shape, generator=random)
        chance = Normal(mean, std, validate_args=False).log_prob(action).sum(dim=1)
        return state, (action, -(action - best(state)).square().sum(dim=1), chance)

    def judge(setup: Setup) -> float:
        state = torch.randn(400, 5, generator=torch.Generator().manual_seed(13))
        with torch.no_grad():
            mean = setup.model(state)[0]
        return (mean - best(state)).square().sum(dim=1).mean().item()

    task = Task(seed, draw, loss or likely())
    task.judge = judge
    hints = {"action_range": (-1.0, 1.0)}
    return live(model, task, kwargs={"action_extractor": of_valves}, hints=hints, **{"lr": 5e-3, "steps": 80, **more})
