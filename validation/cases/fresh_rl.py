# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Agents as people train them at work, with one fault each, their twins, and odd healthy ones.

Half: fresh.
"""

from __future__ import annotations

import math
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.live import at_last, breaks, lags, lasting, thrives
from validation.evidence.play import explores, regret
from validation.evidence.signal import no_gradient
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import JUMPS, STUCK, SURE
from validation.nets import mlp
from validation.setups import choosing, live
from validation.tasks import chain, errands, every, moves

zoo = Zoo("rl", half="fresh", analyzer="policy", proof=thrives())


class Walker(nn.Module):
    """Logits of five ways to go; `allowed` says which of them a rule leaves open, `narrow` is the last hidden layer."""

    def __init__(self, allowed: list[int] | None = None, narrow: int = 32) -> None:
        super().__init__()
        self.body, self.ways = mlp([8, 48, narrow], nn.Tanh).append(nn.Tanh()), nn.Linear(narrow, 5)
        shut = torch.zeros(5, dtype=torch.bool) if allowed is None else torch.ones(5, dtype=torch.bool)
        shut[allowed or []] = False
        self.shut = nn.Buffer(shut)

    def forward(self, state: Tensor) -> Tensor:
        return self.ways(self.body(state)).masked_fill(self.shut, -50.0)


def walks(seed: int, walker: nn.Module, loss=None, **more) -> Setup:
    return choosing(walker, errands(seed), loss, **more)


def entropic(weight: float):
    """What is earned, and a term for the entropy with a sign."""

    def loss(logits: Tensor, pay: Tensor) -> Tensor:
        p = logits.softmax(dim=1)
        entropy = -(p * logits.log_softmax(dim=1)).sum(dim=1).mean()
        return 3 - (p * pay).sum(dim=1).mean() - weight * entropy

    return loss


calm = zoo.healthy(
    "errands-bonus-for-entropy", lambda s: walks(s, Walker(), entropic(0.02)), thrives(0.1, measure=regret)
)


def lazy(seed: int) -> Setup:
    """The sign of the bonus is wrong, and standing still is what the walker is drawn to do a little more often."""
    walker = Walker()
    walker.ways.bias.data[4] += 1.5
    return walks(seed, walker, entropic(-1.0), lr=1e-2)


zoo.sick(
    "errands-bonus-of-the-wrong-sign", lazy, at_last(explores(0, 0.03)), *STUCK, layer="ways", also=SURE, control=calm
)
free = zoo.healthy("errands-all-ways-open", lambda s: walks(s, Walker()))
zoo.sick(
    "errands-rule-shuts-all-ways-but-one",
    lambda s: walks(s, Walker([4])),
    lasting(explores(-0.01, 0.01, 0.3)),
    *STUCK,
    "DISCONNECTED",
    layer="ways",
    also={*SURE, "DEAD"},
    control=free,
)
zoo.sick(
    "errands-last-hidden-layer-of-1",
    lambda s: walks(s, Walker(narrow=1)),
    lags(0.1),
    "BOTTLENECK",
    layer=("body.2", "ways"),
    also={"LOW_RANK", "SATURATION", "EXPLORATION"},
    control=free,
)


class Arm(nn.Module):
    """Mean and deviation of the turns of three joints; the logarithm of the deviation is held in a range."""

    def __init__(self, low: float, high: float, start: float = -0.5) -> None:
        super().__init__()
        self.body = mlp([10, 48, 48], nn.SiLU).append(nn.SiLU())
        self.turn, self.spread, self.range = nn.Linear(48, 3), nn.Linear(48, 3), (low, high)
        nn.init.constant_(self.spread.bias, start)

    def forward(self, state: Tensor) -> dict[str, Tensor]:
        h = self.body(state)
        return {"mean": 2 * torch.tanh(self.turn(h)), "std": self.spread(h).clamp(*self.range).exp()}


def turns(seed: int, arm: Arm, **more) -> Setup:
    task = moves(seed, 10, 3, 2.0)
    inner = task._loss
    return live(
        arm,
        task.with_loss(lambda out, best: inner((out["mean"], out["std"]), best)),
        kwargs={"action_extractor": lambda out: (None, out["std"], out["mean"], None)},
        hints={"action_range": (-2.0, 2.0)},
        **{"lr": 3e-3, "steps": 60, **more},
    )


arm = zoo.healthy("arm-deviation-in-its-range", lambda s: turns(s, Arm(-3.0, 1.0)))
zoo.sick(
    "arm-deviation-held-from-the-wrong-side",
    lambda s: turns(s, Arm(-20.0, -7.0)),
    lasting(explores(0, 0.02)),
    *STUCK,
    layer="spread",
    also={"DISCONNECTED", "DEAD", "SATURATION"},
    control=arm,
)
zoo.sick(
    "arm-deviation-fifty-times-the-range",
    lambda s: turns(s, Arm(-3.0, 5.0, 4.6), lr=1e-3),
    lasting(explores(40, 150)),
    "EXPLORATION",
    layer="spread",
    also={"UNSTABLE", "EXPLODING", "SATURATION"},
    control=arm,
)


class Soft(nn.Module):
    """Actor and critic in one; the critic's view of the action reaches the actor if it is drawn by `rsample`."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.actor, self.critic = mlp([10, 48, 6], nn.SiLU), mlp([13, 64, 1], nn.SiLU)
        self.again = again

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_std = self.actor(state).chunk(2, dim=1)
        policy = torch.distributions.Normal(2 * mean.tanh(), log_std.clamp(-3, 0).exp())
        action = policy.rsample() if self.again else policy.sample()
        still = {name: p.detach() for name, p in self.critic.named_parameters()}
        judged = torch.func.functional_call(self.critic, still, torch.cat([state, action], dim=1))
        tried = 4 * torch.rand(len(state), 3) - 2
        return judged, self.critic(torch.cat([state, tried], dim=1)), tried


def soft(out: tuple[Tensor, Tensor, Tensor], best: Tensor) -> Tensor:
    judged, value, tried = out
    pay = 1 - (tried - best).square().mean(dim=1, keepdim=True) / 4
    return F.mse_loss(value, pay) - 0.1 * judged.mean() + 1


def two_parts(seed: int, again: bool) -> Setup:
    return live(Soft(again), moves(seed, 10, 3, 2.0).with_loss(soft), lr=5e-3, steps=80)


drawn = zoo.healthy("actor-through-the-critic", lambda s: two_parts(s, True), thrives(0.05), analyzer="general")
zoo.sick(
    "actor-draws-outside-of-the-graph",
    lambda s: two_parts(s, False),
    lasting(no_gradient("actor")),
    "DISCONNECTED",
    layer=("actor.2", "actor.0"),
    also={"DEAD"},
    control=drawn,
    analyzer="general",
)

# --- numbers, jumps and rates


def standard(eps: float):
    """Advantages in units of their deviation; in one batch nobody has moved and all rewards are alike."""
    now = every(25, 9)

    def loss(logits: Tensor, pay: Tensor) -> Tensor:
        policy = torch.distributions.Categorical(logits=logits)
        action = policy.sample()
        earned = pay.gather(1, action[:, None]).squeeze(1)
        if now():
            earned = torch.full_like(earned, 0.5)
        advantage = (earned - earned.mean()) / (earned.std() + eps)
        return 1 - (policy.log_prob(action) * advantage).mean() - 0.01 * policy.entropy().mean()

    return loss


even = zoo.healthy(
    "errands-rewards-alike-with-eps", lambda s: walks(s, Walker(), standard(1e-6)), thrives(0.1, measure=regret)
)
zoo.sick(
    "errands-rewards-alike-without-eps", lambda s: walks(s, Walker(), standard(0.0)), breaks, "NUMERICAL", control=even
)


class Values(nn.Module):
    """Values of four actions, and those of the next state by a frozen copy."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp([9, 64, 64, 4], nn.ELU)
        self.slow = deepcopy(self.net).requires_grad_(False)

    def forward(self, state: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(state), self.slow(following)


def crashes(penalty: float):
    """A crash costs something, once in a while."""
    now = every(11, 6)

    def loss(out: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        action, reward = target
        cost = torch.zeros_like(reward)
        if now():
            cost[:4] = penalty
        chosen = out[0].gather(1, action[:, None]).squeeze(1)
        return F.mse_loss(chosen, reward - cost + 0.8 * out[1].amax(dim=1))

    return loss


def drives(seed: int, penalty: float, **more) -> Setup:
    task = chain(seed, 9, 4).with_loss(crashes(penalty))
    return live(Values(), task, **{"lr": 5e-3, "steps": 77, **more})


driver = zoo.healthy("driving-without-crashes", lambda s: drives(s, 0.0), analyzer="general")
zoo.sick(
    "driving-crashes-cost-10000",
    lambda s: drives(s, 1e4, lr=1e-3),
    gradient_norms_spread(30),
    *JUMPS,
    control=driver,
    analyzer="general",
)
zoo.sick(
    "driving-rate-of-a-schedule-that-starts-at-its-end",
    lambda s: drives(s, 0.0, lr=1e-3, rate=lambda _: 1e-7),
    does_not_move(steps=70),
    "SLOW",
    control=driver,
    analyzer="general",
)

# --- odd and healthy


class Cloned(nn.Module):
    """Learns which way an expert went, and reports how sure it is."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.ways = mlp([8, 48, 48], nn.ReLU).append(nn.ReLU()), nn.Linear(48, 5)

    def forward(self, state: Tensor) -> Tensor:
        return self.ways(self.body(state))


zoo.healthy(
    "expert-imitated-until-sure",
    lambda s: walks(s, Cloned(), lambda z, pay: F.cross_entropy(z, pay.argmax(dim=1)), lr=1e-2, steps=100),
    thrives(0.3, most_dead=0.5),
)
zoo.healthy("errands-one-way-shut-by-rule", lambda s: walks(s, Walker([0, 1, 2, 3]), steps=60))


def advised(logits: Tensor, pay: Tensor) -> Tensor:
    """Actions that paid well count more, those that did not hardly at all."""
    with torch.no_grad():
        tried = torch.randint(5, (len(pay), 1))
        weight = torch.exp(4 * (pay.gather(1, tried) - 0.7)).squeeze(1)
    return F.cross_entropy(logits, tried.squeeze(1), reduction="none").mul(weight).mean()


zoo.healthy(
    "errands-learned-from-random-tries",
    lambda s: walks(s, Walker(), advised, steps=100, lr=1e-2),
    thrives(0.1, measure=regret),
)


class Quantiles(nn.Module):
    """Eight quantiles of what each of four actions brings."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = mlp([9, 64], nn.ReLU).append(nn.SiLU()), nn.Linear(64, 32)

    def forward(self, state: Tensor, _following: Tensor) -> Tensor:
        return self.out(self.body(state)).unflatten(1, (4, 8))


def pinball(out: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
    action, reward = target
    chosen = out[torch.arange(len(out)), action]
    error, level = reward[:, None] - chosen, (torch.arange(8) + 0.5) / 8
    return torch.maximum(level * error, (level - 1) * error).mean()


zoo.healthy(
    "quantiles-of-returns",
    lambda s: live(Quantiles(), chain(s, 9, 4).with_loss(pinball), lr=5e-3, steps=80),
    analyzer="general",
)
zoo.healthy("arm-small-steps-clipped-to-0.05", lambda s: turns(s, Arm(-3.0, 1.0), clip=0.05, steps=80))
zoo.healthy("arm-narrow-deviation-that-is-meant", lambda s: turns(s, Arm(-3.0, 1.0, math.log(0.25)), steps=60))


class Curious(nn.Module):
    """Is paid for what a frozen random net knows and a trained one does not yet know."""

    def __init__(self) -> None:
        super().__init__()
        self.ways, self.known = mlp([8, 48, 5], nn.Tanh), mlp([8, 48, 16], nn.GELU)
        self.fixed = mlp([8, 32, 16], nn.GELU).requires_grad_(False)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.ways(state), (self.known(state) - self.fixed(state)).square().mean(dim=1)


def curious(out: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
    logits, surprise = out
    return 1 - (logits.softmax(dim=1) * pay).sum(dim=1).mean() + surprise.mean()


zoo.healthy(
    "errands-curious-beside-a-frozen-net",
    lambda s: live(
        Curious(),
        errands(s).with_loss(curious),
        lr=5e-3,
        steps=60,
        kwargs={"action_extractor": lambda o: (o[0], None, None, None)},
    ),
)
