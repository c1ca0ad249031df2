# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies and values with one fault each, trained under watch, their twins, and odd healthy ones.

Half: live.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.live import breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.play import explores
from validation.evidence.signal import no_gradient
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import AT_ITS_ENDS, JUMPS, STUCK, SURE
from validation.setups import live
from validation.tasks import chain, choices, every, moves

zoo = Zoo("rl", half="live", analyzer="policy", proof=thrives())


@dataclass
class Step:
    """What an agent says about a batch of states."""

    logits: Tensor
    value: Tensor


def of_step(step: Step) -> tuple[Tensor, None, None, Tensor]:
    return step.logits, None, None, step.value


class Agent(nn.Module):
    """Two layers with torch.tanh or torch.relu, a head for the policy, a head for the value."""

    def __init__(
        self, actions: int = 6, act=torch.tanh, lead: float = 0.0, sure: float = 1.0, low: float = 0.0
    ) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(12, 56), nn.Linear(56, 56)
        self.pi, self.v, self.act = nn.Linear(56, actions), nn.Linear(56, 1), act
        self.pi.bias.data[2] += lead
        self.pi.weight.data *= sure
        self.fc2.bias.data -= low

    def forward(self, state: Tensor) -> Step:
        h = self.act(self.fc2(self.act(self.fc1(state))))
        return Step(self.pi(h), self.v(h).squeeze(1))


def reinforce(bonus: float = 0.01, cut: bool = False):
    """Actions are drawn, the advantage weighs their log-probability, a bonus is paid for entropy."""

    def loss(step: Step, pay: Tensor) -> Tensor:
        policy = torch.distributions.Categorical(logits=step.logits)
        action = policy.sample()
        earned = (pay / pay.amax(dim=1, keepdim=True)).gather(1, action[:, None]).squeeze(1)
        advantage = earned - step.value.detach()
        critic = F.mse_loss(step.value, earned) if not cut else 0.0
        return 1 - (policy.log_prob(action) * advantage).mean() + 0.5 * critic - bonus * policy.entropy().mean()

    return loss


def expected(step: Step, pay: Tensor) -> Tensor:
    """What the policy earns on average, exactly, and the critic's error."""
    earned = (step.logits.softmax(dim=1) * pay / pay.amax(dim=1, keepdim=True)).sum(dim=1)
    return 1 - earned.mean() + 0.25 * F.mse_loss(step.value, earned.detach())


def acts(seed: int, agent: nn.Module, loss=expected, **more) -> Setup:
    task = choices(seed, 12, 6, 96).with_loss(loss)
    return live(agent, task, kwargs={"action_extractor": of_step}, **{"lr": 5e-3, "steps": 60, **more})


@torch.no_grad()
def poverty(setup: Setup) -> float:
    """How much less than the best the policy earns."""
    total = 0.0
    for _ in range(4):
        step, task = setup.model(setup.input_fn()), setup.loss_fn.__self__
        pay = task.target / task.target.amax(dim=1, keepdim=True)
        total += 1 - (step.logits.softmax(dim=1) * pay).sum(dim=1).mean().item()
    return total / 4


# --- what is tried

calm = zoo.healthy("agent-tanh-expected-pay", lambda s: acts(s, Agent()))
drawn = zoo.healthy("agent-tanh-drawn-actions", lambda s: acts(s, Agent(), reinforce()), thrives(0.1, measure=poverty))
zoo.sick(
    "agent-tanh-always-the-third",
    lambda s: acts(s, Agent(lead=20.0)),
    lasting(explores(0, 0.03, 0.4)),
    *STUCK,
    layer="pi",
    also=SURE,
    control=calm,
)
zoo.sick(
    "agent-tanh-drawn-actions-always-the-third",
    lambda s: acts(s, Agent(lead=25.0), reinforce()),
    lasting(explores(0, 0.03)),
    *STUCK,
    layer="pi",
    also=SURE,
    control=drawn,
)
zoo.sick(
    "agent-tanh-logits-times-3000",
    lambda s: acts(s, Agent(sure=3000.0), lr=1e-3),
    lasting(explores(0, 0.06, 0.3)),
    *STUCK,
    layer="pi",
    also=SURE,
    control=calm,
)


class Cold(Agent):
    """Divides its logits by a temperature that somebody set too low."""

    def __init__(self, temperature: float) -> None:
        super().__init__(act=F.silu)
        self.temperature = temperature

    def forward(self, state: Tensor) -> Step:
        step = super().forward(state)
        return Step(step.logits / self.temperature, step.value)


warm = zoo.healthy("agent-silu-temperature-1", lambda s: acts(s, Cold(1.0)))
zoo.sick(
    "agent-silu-temperature-1-in-5000",
    lambda s: acts(s, Cold(2e-4), lr=1e-4),
    lasting(explores(0, 0.06, 0.3)),
    *STUCK,
    layer="pi",
    also={*SURE, "UNSTABLE"},
    control=warm,
)


class Mover(nn.Module):
    """Mean within a range and a deviation, as a dictionary."""

    def __init__(self, reach: float, std: float, gain: float = 1.0) -> None:
        super().__init__()
        self.fc1, self.fc2, self.mu = nn.Linear(8, 48), nn.Linear(48, 48), nn.Linear(48, 3)
        self.log_std, self.reach = nn.Parameter(torch.full((3,), math.log(std))), reach
        self.mu.weight.data *= gain

    def forward(self, state: Tensor) -> dict[str, Tensor]:
        mean = self.reach * torch.tanh(self.mu(F.silu(self.fc2(F.silu(self.fc1(state))))))
        return {"mean": mean, "std": self.log_std.exp().expand_as(mean)}


def steer(seed: int, reach: float, std: float, gain: float = 1.0, lr: float = 3e-3) -> Setup:
    task = moves(seed, 8, 3, reach)
    inner = task._loss
    return live(
        Mover(reach, std, gain),
        task.with_loss(lambda out, best: inner((out["mean"], out["std"]), best)),
        lr=lr,
        steps=60,
        kwargs={"action_extractor": lambda out: (None, out["std"], out["mean"], None)},
        hints={"action_range": (-reach, reach)},
    )


wheel = zoo.healthy("wheel-within-3-deviation-1", lambda s: steer(s, 3.0, 1.0))
zoo.sick(
    "wheel-within-3-deviation-0.003",
    lambda s: steer(s, 3.0, 0.003, lr=1e-3),
    lasting(explores(0, 0.02)),
    *STUCK,
    control=wheel,
)
zoo.sick(
    "wheel-within-3-deviation-90",
    lambda s: steer(s, 3.0, 90.0),
    lasting(explores(50, 120)),
    "EXPLORATION",
    also={"UNSTABLE", "EXPLODING"},
    control=wheel,
)
zoo.sick(
    "wheel-within-3-mean-at-its-ends",
    lambda s: steer(s, 3.0, 1.0, 500.0),
    lasting(flat_behind("mu", "tanh", 0.85)),
    *AT_ITS_ENDS,
    layer="mu",
    also={"EXPLODING"},
    control=wheel,
)

# --- the faults of any network

relu = zoo.healthy("agent-relu-expected-pay", lambda s: acts(s, Agent(act=torch.relu)))
zoo.sick(
    "agent-relu-second-layer-dead",
    lambda s: acts(s, Agent(act=torch.relu, low=20.0)),
    lasting(never_fires("fc2", 0.99), no_gradient("fc1", "fc2")),
    "DEAD",
    layer="fc2",
    also={"DISCONNECTED", "VANISHING", "EXPLORATION", "LOW_RANK", "BOTTLENECK"},
    control=relu,
)
zoo.sick(
    "agent-tanh-critic-left-out",
    lambda s: acts(s, Agent(), reinforce(cut=True)),
    lasting(no_gradient("v")),
    "DISCONNECTED",
    layer="v",
    also={"DEAD"},
    control=drawn,
)
zoo.sick("agent-tanh-adamw-1e-9", lambda s: acts(s, Agent(), lr=1e-9), does_not_move(steps=60), "SLOW", control=calm)


class Dueling(nn.Module):
    """Value and advantages of the actions, beside a frozen copy that says what comes next."""

    def __init__(self, narrow: int = 32) -> None:
        super().__init__()
        self.net = nn.ModuleDict(
            {
                "body": nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, narrow), nn.ReLU()),
                "value": nn.Linear(narrow, 1),
                "advantage": nn.Linear(narrow, 5),
            }
        )
        self.goal = deepcopy(self.net).requires_grad_(False)

    def values(self, net: nn.ModuleDict, state: Tensor) -> Tensor:
        h = net["body"](state)
        advantage = net["advantage"](h)
        return net["value"](h) + advantage - advantage.mean(dim=1, keepdim=True)

    def forward(self, state: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        return self.values(self.net, state), self.values(self.goal, following)


def play(seed: int, narrow: int = 32, loss=None, **more) -> Setup:
    task = chain(seed, 10, 5)
    return live(Dueling(narrow), task.with_loss(loss) if loss else task, **{"lr": 5e-3, "steps": 80, **more})


dueling = zoo.healthy("dueling-values-frozen-goal", lambda s: play(s), thrives(0.2, most_dead=0.5), analyzer="general")


def prized(times: float):
    now = every(12, 8)

    def loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        action, reward = target
        reward = reward + (times if now() else 0.0)
        return F.mse_loss(output[0].gather(1, action[:, None]).squeeze(1), reward + 0.9 * output[1].amax(dim=1))

    return loss


zoo.sick(
    "dueling-values-a-prize-of-2000-now-and-then",
    lambda s: play(s, loss=prized(2000.0), lr=1e-3),
    gradient_norms_spread(30),
    *JUMPS,
    control=dueling,
    analyzer="general",
)
zoo.sick(
    "dueling-values-through-1-number",
    lambda s: play(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("net.body.2", "net.value", "net.advantage"),
    also={"LOW_RANK", "DEAD"},
    control=dueling,
    analyzer="general",
)


def ratio(floor: float):
    """The pay of an action over how likely an old policy was to take it, in a batch now and then zero."""
    now = every(50, 14)

    def loss(step: Step, pay: Tensor) -> Tensor:
        before = torch.full_like(pay, 1 / 6)
        if now():
            before[0, 0] = 0.0
        gain = (step.logits.softmax(dim=1) / before.clamp_min(floor) * pay).sum(dim=1).mean()
        return 2 - gain / 6 + 0.25 * F.mse_loss(step.value, pay.amax(dim=1))

    return loss


floored = zoo.healthy("agent-tanh-ratios-with-floor", lambda s: acts(s, Agent(), ratio(0.05)))
zoo.sick(
    "agent-tanh-ratio-by-zero-in-the-fifteenth-batch",
    lambda s: acts(s, Agent(), ratio(0.0)),
    breaks,
    "NUMERICAL",
    also={"EXPLODING", "UNSTABLE"},
    control=floored,
)

# --- odd and healthy


def clipped(seed: int) -> Setup:
    """The surrogate of PPO against what the agent said at first, with a generous bonus."""
    agent, seen = Agent(), {}
    old = deepcopy(agent).requires_grad_(False)

    def loss(step: Step, pay: Tensor) -> Tensor:
        earned = pay / pay.amax(dim=1, keepdim=True)
        with torch.no_grad():
            before = old(seen["x"]).logits.softmax(dim=1)
        policy = step.logits.softmax(dim=1)
        advantage = earned - earned.mean(dim=1, keepdim=True)
        rate = policy / before
        gain = before * torch.minimum(rate * advantage, rate.clamp(0.5, 2.0) * advantage)
        return 1 - gain.sum(dim=1).mean() + 0.25 * F.mse_loss(step.value, earned.mean(dim=1))

    def remember(x: Tensor) -> Tensor:
        seen["x"] = x
        return x

    task = choices(seed, 12, 6, 96).with_loss(loss).mapped(remember)
    return live(agent, task, lr=3e-3, steps=60, clip=0.5, kwargs={"action_extractor": of_step})


zoo.healthy("agent-clipped-surrogate", clipped)
zoo.healthy(
    "agent-drawn-actions-batches-with-large-bonus",
    lambda s: acts(s, Agent(), reinforce(0.1)),
    thrives(0.1, measure=poverty),
)
zoo.healthy("agent-expected-pay-times-1e-4", lambda s: acts(s, Agent(), lambda o, p: 1e-4 * expected(o, p)))
zoo.healthy("wheel-within-0.05-deviation-0.02", lambda s: steer(s, 0.05, 0.02))
