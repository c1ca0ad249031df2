# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies and values as people write them: with one fault each, their twins, and others that train well.

Half: everyday.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from validation.case import Case, Evidence, Setup, Zoo, costly
from validation.cases._everyday_sequences import more_than
from validation.evidence.live import at_last, breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.play import explores
from validation.evidence.signal import both, gradient_ratio, judged, no_gradient
from validation.evidence.training import does_not_move, gradient_norms_spread, train
from validation.labels import JUMPS, STUCK, SURE
from validation.setups import live, of_logits
from validation.tasks import Task, chain, every

# --- a world of squares: the agent walks to a goal, and a step towards it pays

MOVES = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])
SIDE = 6


def seen(agent: Tensor, goal: Tensor) -> Tensor:
    """What the agent observes: where it is, and how far the goal is away."""
    return torch.cat([agent / SIDE - 0.5, (goal - agent) / SIDE], dim=-1).float()


def paid(agent: Tensor, goal: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """The next place, and the reward: one for a step nearer, nothing for any other."""
    after = (agent + MOVES[action]).clamp(0, SIDE - 1)
    nearer = (after - goal).abs().sum(-1) < (agent - goal).abs().sum(-1)
    return after, nearer.float()


def places(random: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    agent = torch.randint(SIDE, (count, 2), generator=random)
    return agent, (agent + torch.randint(1, SIDE, (count, 2), generator=random)) % SIDE


def rewards_of_all(agent: Tensor, goal: Tensor) -> Tensor:
    return torch.stack([paid(agent, goal, torch.full((len(agent),), i))[1] for i in range(4)], dim=1)


def squares(seed: int, model: nn.Module, loss: Callable, logits_of: Callable, walkers: int = 24, time: int = 4) -> Task:
    """Rollouts of the current policy; the target is (actions, returns to come, old log-probabilities)."""

    def draw(random: torch.Generator) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        agent, goal = places(random, walkers)
        states, actions, rewards, chances = [], [], [], []
        for _ in range(time):
            state = seen(agent, goal)
            with torch.no_grad():
                chance = logits_of(model(state)).log_softmax(dim=-1)
            safe = chance.exp().nan_to_num(0.25).clamp_min(1e-9)
            action = torch.multinomial(safe, 1, generator=random)[:, 0]
            agent, reward = paid(agent, goal, action)
            states.append(state)
            actions.append(action)
            rewards.append(reward)
            chances.append(chance.gather(1, action[:, None])[:, 0])
        returns, ahead = [], torch.zeros(walkers)
        for reward in reversed(rewards):
            ahead = reward + 0.5 * ahead
            returns.insert(0, ahead)
        return torch.cat(states), (torch.cat(actions), torch.cat(returns), torch.cat(chances))

    def judge(setup: Setup) -> float:
        """How much less than the best the policy earns per step, over many places."""
        agent, goal = places(torch.Generator().manual_seed(7), 400)
        with torch.no_grad():
            policy = logits_of(setup.model(seen(agent, goal))).softmax(dim=-1)
        return 1 - (policy * rewards_of_all(agent, goal)).sum(dim=1).mean().item()

    task = Task(seed, draw, loss)
    task.judge = judge
    return task


def poverty(setup: Setup) -> float:
    """How much less than the best the policy earns."""
    return setup.loss_fn.__self__.judge(setup)


def poor(least: float):
    return more_than(poverty, least, "of the best reward is missed")


@costly
def earns_less(case: Case, seed: int) -> Evidence:
    """Each under its own optimizer, the policy ends up missing a third more of the reward than its twin."""
    missed = []
    for each in (case, case.control):
        setup = each.make(seed)
        train(setup, setup.steps, setup.optimizer)
        missed.append(poverty(setup))
    return judged(missed[0] > 1.3 * missed[1], "misses {:.3g} of the reward, its twin {:.3g}", *missed)


zoo = Zoo("rl", half="everyday", analyzer="policy", proof=thrives(0.15, measure=poverty))


class ActorCritic(nn.Module):
    """Two dense layers, a head for the logits, a head for the value."""

    def __init__(
        self, width: int = 64, act=torch.tanh, heat: float = 1.0, factor: float = 1.0, low: float = 0.0
    ) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, width), nn.Linear(width, width)
        self.actor, self.critic = nn.Linear(width, 4), nn.Linear(width, 1)
        self.act, self.heat, self.factor = act, heat, factor
        self.fc2.bias.data -= low

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.act(self.fc2(self.act(self.fc1(self.factor * state))))
        return self.actor(h) / self.heat, self.critic(h).squeeze(-1)


def a2c(bonus: float = 0.01, value: float = 0.5, scale: float = 1.0):
    """Advantage times log-probability, the critic's error, and a bonus for entropy."""

    def loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        logits, values = output
        actions, returns, _ = target
        policy = Categorical(logits=logits)
        advantage = scale * returns - values.detach()
        critic = value * F.mse_loss(values, scale * returns) if value else 0.0
        return -(policy.log_prob(actions) * advantage).mean() + critic - bonus * policy.entropy().mean()

    return loss


def reinforce(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Returns of the batch, standardised, times log-probability; the critic is fitted aside."""
    logits, values = output
    actions, returns, _ = target
    weight = (returns - returns.mean()) / (returns.std() + 1e-6)
    return -(Categorical(logits=logits).log_prob(actions) * weight).mean() + 0.5 * F.mse_loss(values, returns)


def ppo(clip: float = 0.2, bonus: float = 0.01):
    def loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        logits, values = output
        actions, returns, old = target
        policy = Categorical(logits=logits)
        ratio = (policy.log_prob(actions) - old).exp()
        advantage = returns - values.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
        return -gain.mean() + 0.5 * F.mse_loss(values, returns) - bonus * policy.entropy().mean()

    return loss


def walk(seed: int, model: nn.Module | None = None, loss=None, extract=of_logits, **more) -> Setup:
    model = model or ActorCritic()
    task = squares(seed, model, loss or a2c(), lambda out: extract(out)[0])
    return live(model, task, kwargs={"action_extractor": extract}, **{"lr": 1e-2, "steps": 60, **more})


# --- too little and too much is tried

walker = zoo.healthy("squares-a2c-entropy-bonus-0.01", walk)
zoo.sick(
    "squares-a2c-entropy-bonus-of-wrong-sign",
    lambda s: walk(s, loss=a2c(bonus=-5.0)),
    at_last(explores(0, 0.1), poor(0.3)),
    *STUCK,
    layer=("actor", "fc2", "fc1"),
    also={*SURE, "DEAD"},
    control=walker,
)
zoo.sick(
    "squares-a2c-entropy-bonus-3",
    lambda s: walk(s, loss=a2c(bonus=3.0)),
    at_last(explores(0.98, 1.0), poor(0.4)),
    "EXPLORATION",
    layer=("actor", "fc2", "fc1"),
    also={"SLOW", "VANISHING"},
    control=walker,
)


def plain(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Returns that are never negative times log-probability, without a baseline for the policy."""
    logits, values = output
    actions, returns, _ = target
    return -(Categorical(logits=logits).log_prob(actions) * returns).mean() + 0.5 * F.mse_loss(values, returns)


standard = zoo.healthy("squares-reinforce-standardised-returns", lambda s: walk(s, loss=reinforce))
zoo.sick(
    "squares-reinforce-no-baseline-adam-0.3",
    lambda s: walk(s, loss=plain, lr=0.3),
    at_last(explores(0, 0.1), poor(0.3)),
    *STUCK,
    layer=("actor", "fc2", "fc1"),
    also={*SURE, "UNSTABLE", "DEAD", "LOW_RANK", "BOTTLENECK"},
    control=standard,
)
zoo.sick(
    "squares-a2c-temperature-0.001",
    lambda s: walk(s, ActorCritic(heat=1e-3), lr=3e-6),
    lasting(explores(0, 0.1), poor(0.2)),
    *STUCK,
    layer=("actor", "fc2"),
    also={*SURE, "UNSTABLE"},
    control=walker,
)
zoo.sick(
    "squares-a2c-temperature-1000",
    lambda s: walk(s, ActorCritic(heat=1e3), lr=3e-3),
    at_last(explores(0.98, 1.0), poor(0.4)),
    "EXPLORATION",
    "VANISHING",
    layer=("actor", "fc2", "fc1"),
    also={"SLOW"},
    control=walker,
)

# --- moves of any size: an arm is to be turned to where the state says


class Gaussian(nn.Module):
    """Mean and deviation of two joints; the deviation is a parameter of its own or depends on the state."""

    def __init__(
        self, log_std: float = -0.5, by_state: bool = False, factor: float = 1.0, squash: bool = False
    ) -> None:
        super().__init__()
        self.fc1, self.fc2, self.mu = nn.Linear(6, 64), nn.Linear(64, 64), nn.Linear(64, 2)
        self.v, self.factor, self.squash = nn.Linear(64, 1), factor, squash
        self.sigma = nn.Linear(64, 2) if by_state else None
        self.log_std = None if by_state else nn.Parameter(torch.full((2,), log_std))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.tanh(self.fc2(torch.tanh(self.fc1(self.factor * state))))
        mean = self.mu(h)
        log_std = self.sigma(h).clamp(-5, 2) - 1.0 if self.sigma is not None else self.log_std.expand_as(mean)
        return torch.tanh(mean) if self.squash else mean, log_std.exp(), self.v(h).squeeze(-1)


def of_triple(output: tuple[Tensor, Tensor, Tensor]) -> tuple[None, Tensor, Tensor, Tensor]:
    return None, output[1], output[0], output[2]


def arm(seed: int, model: nn.Module | None = None, bonus: float = 0.003, clip_ratio: float = 0.2, **more) -> Setup:
    """One step per episode; the surrogate of PPO or, without a ratio to clip, plain policy gradient."""
    model = model or Gaussian()
    way = torch.randn(6, 2, generator=torch.Generator().manual_seed(seed + 60)) / 6**0.5

    def draw(random: torch.Generator) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        state = torch.randn(128, 6, generator=random)
        with torch.no_grad():
            mean, std, _ = model(state)
        action = mean + std * torch.randn(mean.shape, generator=random)
        reward = -(action.clamp(-1, 1) - torch.tanh(state @ way)).square().sum(dim=-1)
        old = Normal(mean, std).log_prob(action).sum(dim=-1)
        return state, (action, reward, old)

    def loss(output: tuple[Tensor, Tensor, Tensor], target: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        mean, std, value = output
        action, reward, old = target
        policy = Normal(mean, std)
        ratio = (policy.log_prob(action).sum(dim=-1) - old).exp()
        advantage = reward - value.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * advantage)
        return -gain.mean() + 0.5 * F.mse_loss(value, reward) - bonus * policy.entropy().sum(dim=-1).mean()

    def judge(setup: Setup) -> float:
        state = torch.randn(400, 6, generator=torch.Generator().manual_seed(8))
        with torch.no_grad():
            mean, _, _ = setup.model(state)
        return (mean.clamp(-1, 1) - torch.tanh(state @ way)).square().sum(dim=-1).mean().item()

    task = Task(seed, draw, loss)
    task.judge = judge
    return live(
        model,
        task,
        kwargs={"action_extractor": of_triple},
        hints={"action_range": (-1.0, 1.0)},
        **{"lr": 5e-3, "steps": 60, **more},
    )


joint = zoo.healthy("arm-ppo-deviation-0.6", arm)
zoo.sick(
    "arm-ppo-log-deviation-minus-7",
    lambda s: arm(s, Gaussian(-7.0), lr=1e-4),
    lasting(explores(0, 0.01), poor(0.3)),
    *STUCK,
    also={"EXPLODING", "UNSTABLE"},
    control=joint,
)
zoo.sick(
    "arm-ppo-entropy-bonus-5",
    lambda s: arm(s, Gaussian(1.5), bonus=5.0, lr=3e-2),
    at_last(explores(8, 1e4), poor(0.3)),
    "EXPLORATION",
    also={"UNSTABLE", "EXPLODING", "SATURATION"},
    control=joint,
)

# --- the faults of any network

zoo.sick(
    "arm-ppo-states-in-millimetres",
    lambda s: arm(s, Gaussian(factor=1000.0)),
    both(lasting(flat_behind("fc1", "tanh", 0.85)), earns_less),
    "SATURATION",
    "VANISHING",
    layer=("fc1",),
    also={"EXPLODING", "UNSTABLE"},
    control=joint,
)
relu = zoo.healthy("squares-a2c-relu", lambda s: walk(s, ActorCritic(act=torch.relu)))
zoo.sick(
    "squares-a2c-relu-second-layer-under-zero",
    lambda s: walk(s, ActorCritic(act=torch.relu, low=10.0)),
    lasting(never_fires("fc2", 0.99), no_gradient("fc1", "fc2")),
    "DEAD",
    layer="fc2",
    also={"DISCONNECTED", "VANISHING", "EXPLORATION", "LOW_RANK", "BOTTLENECK"},
    control=relu,
)


class Deep(nn.Module):
    """A policy of many layers."""

    def __init__(self, act: type[nn.Module], depth: int = 8) -> None:
        super().__init__()
        widths = [4] + [48] * depth
        parts = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), act())]
        for layer in parts[::2]:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        self.body = nn.Sequential(*parts)
        self.actor, self.critic = nn.Linear(48, 4), nn.Linear(48, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(state)
        return self.actor(h), self.critic(h).squeeze(-1)


deep = zoo.healthy("squares-a2c-eight-elu-layers", lambda s: walk(s, Deep(nn.ELU), lr=2e-3))
zoo.sick(
    "squares-a2c-eight-sigmoid-layers",
    lambda s: walk(s, Deep(nn.Sigmoid), lr=1e-3),
    both(lasting(gradient_ratio("body.0", "body.14", below=1e-3)), at_last(poor(0.4))),
    "VANISHING",
    layer=tuple(f"body.{i}" for i in range(0, 14, 2)),
    also={"SATURATION", "LOW_RANK", "BOTTLENECK", "EXPLORATION", "SLOW", "DEAD"},
    control=deep,
)


class Illegal(ActorCritic):
    """Walking into a wall is not allowed: such actions get minus infinity, or a very low number."""

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.floor = floor

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        logits, value = super().forward(state)
        place = ((state[:, :2] + 0.5) * SIDE).round().long()
        walls = (place[:, None] + MOVES < 0).any(-1) | (place[:, None] + MOVES >= SIDE).any(-1)
        return logits.masked_fill(walls, self.floor), value


def by_hand(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The entropy written as -Σ p log p."""
    logits, values = output
    actions, returns, _ = target
    chance = logits.log_softmax(dim=-1)
    entropy = -(chance.exp() * chance).sum(dim=-1).mean()
    taken = chance.gather(1, actions[:, None])[:, 0]
    return -(taken * (returns - values.detach())).mean() + 0.5 * F.mse_loss(values, returns) - 0.01 * entropy


legal = zoo.healthy("squares-walls-masked-by-minus-1e8", lambda s: walk(s, Illegal(-1e8), by_hand))
zoo.sick(
    "squares-walls-masked-by-minus-infinity-entropy-by-hand",
    lambda s: walk(s, Illegal(-math.inf), by_hand),
    breaks,
    "NUMERICAL",
    control=legal,
)


class Q(nn.Module):
    """Values of the actions beside a frozen copy for what comes next."""

    def __init__(self, narrow: int = 48) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, narrow), nn.ReLU(), nn.Linear(narrow, 5))
        self.target = deepcopy(self.net).requires_grad_(False)

    def forward(self, state: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(state), self.target(following)


def dqn(seed: int, narrow: int = 48, loss=None, **more) -> Setup:
    task = chain(seed, 10, 5)
    return live(Q(narrow), task.with_loss(loss) if loss else task, **{"lr": 5e-3, "steps": 80, **more})


def general(name: str, build, proof=None):
    return zoo.healthy(name, build, proof or thrives(0.2, most_dead=0.5), analyzer="general")


values = general("q-values-frozen-target", dqn)
zoo.sick(
    "q-values-through-1-unit",
    lambda s: dqn(s, 1),
    lags(0.1),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("net.2", "net.3", "net.4"),
    also={"DEAD"},
    control=values,
    analyzer="general",
)


def outliers(size: float):
    """A crash costs so much, and happens in a batch now and then."""
    now = every(14, 9)

    def loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        action, reward = target
        if now():
            reward = reward.clone()
            reward[:2] -= size
        return F.mse_loss(output[0].gather(1, action[:, None]).squeeze(1), reward + 0.9 * output[1].amax(dim=1))

    return loss


zoo.sick(
    "q-values-a-crash-costs-3000",
    lambda s: dqn(s, loss=outliers(3000.0), lr=5e-4, steps=70),
    gradient_norms_spread(30),
    *JUMPS,
    control=values,
    analyzer="general",
)
zoo.sick(
    "squares-a2c-adam-1e-9", lambda s: walk(s, lr=1e-9), does_not_move(steps=60), "SLOW", "EXPLORATION", control=walker
)

# --- others that train well

zoo.healthy("squares-ppo-clip-0.2", lambda s: walk(s, loss=ppo()))
zoo.healthy(
    "squares-ppo-clipped-gradients-linear-decay", lambda s: walk(s, loss=ppo(), clip=0.5, rate=lambda t: 1 - t / 80)
)
zoo.healthy("squares-a2c-no-bonus", lambda s: walk(s, loss=a2c(bonus=0.0)))
zoo.healthy("squares-a2c-rmsprop", lambda s: walk(s, kind="RMSprop", lr=3e-3))


def small_start() -> ActorCritic:
    """Orthogonal layers, and a head for the policy that starts at a hundredth, as PPO's baselines have it."""
    model = ActorCritic()
    for layer, gain in ((model.fc1, 2**0.5), (model.fc2, 2**0.5), (model.actor, 0.01), (model.critic, 1.0)):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return model


zoo.healthy("squares-ppo-orthogonal-small-head", lambda s: walk(s, small_start(), ppo()))


class Separate(nn.Module):
    """A network for the policy and one for the value."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 4))
        self.critic = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(state), self.critic(state).squeeze(-1)


zoo.healthy("squares-a2c-separate-networks", lambda s: walk(s, Separate(), lr=5e-3))


def solved(seed: int) -> Setup:
    """A policy that has learned its walk and is nearly sure of it; the user reports what it earns."""
    model, pairs = ActorCritic(), torch.Generator().manual_seed(seed + 5)
    teacher = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(250):
        agent, goal = places(pairs, 128)
        wanted = rewards_of_all(agent, goal)
        logits, value = model(seen(agent, goal))
        first = wanted.argmax(dim=1)
        teacher.zero_grad()
        (F.cross_entropy(logits, first) + F.mse_loss(value, torch.full_like(value, 1.5))).backward()
        teacher.step()
    model.zero_grad()
    setup = walk(seed, model, lr=1e-3, steps=40)
    return replace(setup, hints={"returns": [1 - poverty(setup) for _ in range(20)], "max_return": 1.0})


@costly
def stays_good(case: Case, seed: int) -> Evidence:
    """It earns nearly the best before and after."""
    setup = case.make(seed)
    before = poverty(setup)
    run = train(setup, setup.steps, setup.optimizer)
    after = poverty(setup)
    return Evidence(run.finite and max(before, after) < 0.08, f"misses {before:.1%}, then {after:.1%} of the best")


zoo.healthy("squares-a2c-solved-and-sure", solved, stays_good)


class Memory(nn.Module):
    """A GRU cell reads the state before the heads; every state is an episode of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.cell = nn.Linear(4, 32), nn.GRUCell(32, 48)
        self.actor, self.critic = nn.Linear(48, 4), nn.Linear(48, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = state.new_zeros(len(state), 48)
        for _ in range(2):
            h = self.cell(torch.relu(self.enter(state)), h)
        return self.actor(h), self.critic(h).squeeze(-1)


zoo.healthy("squares-a2c-gru-cell", lambda s: walk(s, Memory()))
zoo.healthy("arm-ppo-deviation-by-state", lambda s: arm(s, Gaussian(by_state=True)))
zoo.healthy("arm-ppo-mean-through-tanh", lambda s: arm(s, Gaussian(squash=True)))
zoo.healthy("arm-ppo-deviation-0.2", lambda s: arm(s, Gaussian(-1.6), bonus=0.0))
zoo.healthy("arm-policy-gradient-clipped-to-0.5", lambda s: arm(s, clip_ratio=10.0, clip=0.5))


class Cloned(nn.Module):
    """Imitates an expert's actions."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))

    def forward(self, state: Tensor) -> tuple[Tensor, None]:
        return self.net(state), None


def clone(seed: int) -> Setup:
    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        agent, goal = places(random, 96)
        return seen(agent, goal), rewards_of_all(agent, goal).argmax(dim=1)

    task = Task(seed, draw, lambda output, best: F.cross_entropy(output[0], best))
    return live(Cloned(), task, lr=5e-3, steps=80, kwargs={"action_extractor": of_logits})


zoo.healthy("squares-cloned-from-an-expert", clone, thrives(0.3))
general(
    "q-values-huber-clipped",
    lambda s: dqn(
        s,
        loss=lambda out, t: F.smooth_l1_loss(
            out[0].gather(1, t[0][:, None]).squeeze(1), t[1] + 0.9 * out[1].amax(dim=1)
        ),
        clip=10.0,
    ),
    thrives(0.15, most_dead=0.5),
)


class Dueling(nn.Module):
    """Value and advantages, beside a frozen copy that values what comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 48), nn.SiLU())
        self.value, self.advantage = nn.Linear(48, 1), nn.Linear(48, 5)
        self.old = deepcopy(nn.ModuleList([self.body, self.value, self.advantage])).requires_grad_(False)

    def forward(self, state: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        said = []
        for (body, value, advantage), x in (((self.body, self.value, self.advantage), state), (self.old, following)):
            h = body(x)
            gain = advantage(h)
            said.append(value(h) + gain - gain.mean(dim=1, keepdim=True))
        return said[0], said[1]


general("q-values-dueling", lambda s: live(Dueling(), chain(s, 10, 5), lr=5e-3, steps=60))


class Deterministic(nn.Module):
    """An actor of tanh moves and a critic that judges them, as in DDPG; the actor follows the critic's slope."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 2), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        value = self.critic(torch.cat([state, action], dim=1)).squeeze(-1)
        weights = [p.detach() for p in self.critic.parameters()]
        h = torch.relu(F.linear(torch.cat([state, self.actor(state)], dim=1), weights[0], weights[1]))
        return value, F.linear(h, weights[2], weights[3]).squeeze(-1)


def ddpg(seed: int) -> Setup:
    way = torch.randn(6, 2, generator=torch.Generator().manual_seed(seed + 61)) / 6**0.5

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        state, action = torch.randn(96, 6, generator=random), 2 * torch.rand(96, 2, generator=random) - 1
        return (state, action), 1 - (action - torch.tanh(state @ way)).square().sum(dim=1)

    task = Task(seed, draw, lambda output, reward: F.mse_loss(output[0], reward) - 0.1 * output[1].mean())
    return live(Deterministic(), task, lr=5e-3, steps=80)


general("arm-deterministic-actor-and-critic", ddpg)
