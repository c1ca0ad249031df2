# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Agents of markets, ships and journeys, with one fault each, their twins, and odd healthy ones.

Half: blind.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._blind_tasks import journeys, rudders, stalls
from validation.evidence.live import at_last, breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.play import explores, regret
from validation.evidence.signal import both, gradient_ratio, no_gradient
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS, RUNS_AWAY, STUCK, SURE
from validation.nets import he_, mlp
from validation.nets.programs import Plain
from validation.setups import choosing, live, of_logits_alone, of_moves

zoo = Zoo("rl", half="blind", analyzer="policy", proof=thrives())

# --- who chooses among stalls


class Trader(nn.Module):
    """Logits of six stalls, divided by a temperature."""

    def __init__(self, temperature: float = 1.0, hidden: int = 40, act: Callable[[Tensor], Tensor] = F.silu) -> None:
        super().__init__()
        self.fc1, self.fc2, self.logits = nn.Linear(10, 40), nn.Linear(40, hidden), nn.Linear(hidden, 6)
        self.temperature, self.act = temperature, act

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.act(self.fc2(self.act(self.fc1(x))))) / self.temperature


def trades(seed: int, trader: nn.Module, loss: Callable[..., Tensor] | None = None, **more) -> Setup:
    return choosing(trader, stalls(seed), loss, **more)


plain = zoo.healthy("stalls-temperature-1", lambda s: trades(s, Trader()))
zoo.sick(
    "stalls-temperature-0.0005",
    lambda s: trades(s, Trader(5e-4), lr=1e-5),
    both(lasting(explores(0, 0.05)), lags(0.1)),
    *STUCK,
    layer="logits",
    also=SURE,
    control=plain,
)


def only_waits(seed: int) -> Setup:
    """Imitated from a log in which everybody waits: one stall has all the weight."""
    trader = Trader()
    trader.logits.bias.data[2] = 30.0
    return trades(seed, trader, lr=2e-3)


zoo.sick(
    "stalls-one-stall-from-a-log-that-only-waits",
    only_waits,
    both(lasting(explores(0, 0.03)), lags(0.1)),
    *STUCK,
    layer="logits",
    also={*SURE, "DEAD", "DISCONNECTED"},
    control=plain,
)


def entropic(weight: float) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(logits: Tensor, pay: Tensor) -> Tensor:
        p, log_p = logits.softmax(dim=1), logits.log_softmax(dim=1)
        return 1 - (p * pay).sum(dim=1).mean() + weight * (1.8 + (p * log_p).sum(dim=1).mean())

    return loss


curious = zoo.healthy(
    "stalls-bonus-of-a-hundredth", lambda s: trades(s, Trader(), entropic(0.01)), thrives(0.1, measure=regret)
)
zoo.sick(
    "stalls-bonus-of-40",
    lambda s: trades(s, Trader(), entropic(40.0)),
    at_last(explores(0.99, 1.01)),
    "EXPLORATION",
    layer="logits",
    also={"VANISHING", "LOW_RANK", "SLOW", "BOTTLENECK"},
    control=curious,
)
zoo.sick(
    "stalls-state-as-1-number",
    lambda s: trades(s, Trader(hidden=1)),
    lags(0.05),
    "BOTTLENECK",
    layer=("fc2", "logits"),
    also={"LOW_RANK", "SATURATION", "EXPLORATION"},
    control=plain,
)


def grams(seed: int, factor: float) -> Setup:
    """Loads in grams instead of tons, into bounded units."""
    task = stalls(seed).mapped(lambda x: factor * x)
    return live(Trader(act=torch.tanh), task, lr=3e-3, steps=60, kwargs={"action_extractor": of_logits_alone})


tons = zoo.healthy("stalls-loads-in-tons", lambda s: grams(s, 1.0))
zoo.sick(
    "stalls-loads-in-grams",
    lambda s: grams(s, 2e3),
    lasting(flat_behind("fc1", "tanh", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="fc1",
    also={"EXPLODING", "UNSTABLE", "EXPLORATION"},
    control=tons,
)


def pessimist(seed: int, low: float) -> Setup:
    """Values begin low, so that nothing looks better than it is; but the bias of a hidden layer was set."""
    trader = Trader(act=F.relu)
    he_(trader)
    trader.fc2.bias.data -= low
    return trades(seed, trader)


hopeful = zoo.healthy("stalls-relu-bias-as-drawn", lambda s: pessimist(s, 0.0))
zoo.sick(
    "stalls-relu-hidden-bias-minus-30",
    lambda s: pessimist(s, 30.0),
    lasting(never_fires("fc2", 0.97)),
    "DEAD",
    layer="fc2",
    also={*DEADENS, "LOW_RANK", "BOTTLENECK", "EXPLORATION", "ENTROPY_COLLAPSE"},
    control=hopeful,
)


def off_policy(clipped: bool, shift: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The ratio to the policy that collected the data, which was another one altogether."""

    def loss(logits: Tensor, pay: Tensor) -> Tensor:
        with torch.no_grad():
            old = (shift * torch.randn_like(pay)).log_softmax(dim=1)
            action = torch.distributions.Categorical(logits=torch.zeros_like(pay)).sample()[:, None]
            gain = pay.gather(1, action) - 0.5
        ratio = (logits.log_softmax(dim=1) - old).gather(1, action).exp()
        if clipped:
            ratio = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain) / gain
        return 1 - (ratio * gain).mean()

    return loss


near = zoo.healthy(
    "stalls-ratio-to-a-near-policy-clipped",
    lambda s: trades(s, Trader(), off_policy(True, 0.1), lr=3e-3, steps=80),
    thrives(0.05, measure=regret),
)
zoo.sick(
    "stalls-ratio-to-a-far-policy-unclipped",
    lambda s: trades(s, Trader(), off_policy(False, 6.0), lr=1e-4, steps=80),
    gradient_norms_spread(30),
    *JUMPS,
    control=near,
)

# --- who turns rudders


class Helm(nn.Module):
    """Mean and deviation of two rudders; the deviation is one learned number each."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.body, self.mean = mlp([8, 40, 40], nn.Tanh).append(nn.Tanh()), nn.Linear(40, 2)
        self.log_std = nn.Parameter(torch.full((2,), start))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = torch.tanh(self.mean(self.body(x)))
        return mean, self.log_std.exp().expand_as(mean)


def steers(seed: int, helm: nn.Module, **more) -> Setup:
    return live(
        helm,
        rudders(seed),
        kwargs={"action_extractor": of_moves},
        hints={"action_range": (-1.0, 1.0)},
        **{"lr": 3e-3, "steps": 60, **more},
    )


helm = zoo.healthy("rudders-deviation-starts-at-0.4", lambda s: steers(s, Helm(-0.9)))
zoo.sick(
    "rudders-deviation-starts-at-0.00005",
    lambda s: steers(s, Helm(-9.9)),
    lasting(explores(0, 0.01)),
    *STUCK,
    layer=("log_std", "mean"),
    also={"SATURATION", "DEAD", "SLOW"},
    control=helm,
)


def squashed(eps: float) -> Callable[[tuple[Tensor, Tensor], Tensor], Tensor]:
    """The density of a squashed action takes the logarithm of how far it is from the bound."""

    def loss(out: tuple[Tensor, Tensor], best: Tensor) -> Tensor:
        mean, std = out
        raw = 2 * mean + 2 * std * torch.randn_like(mean)
        action = torch.tanh(raw)
        density = -std.log() - 0.3 * (1 - action.square() + eps).log()
        return (action - best).square().mean() + 0.02 * density.mean() + 0.2

    return loss


def squash(seed: int, eps: float) -> Setup:
    task = rudders(seed).with_loss(squashed(eps))
    return live(Helm(0.2), task, lr=3e-3, steps=80, kwargs={"action_extractor": of_moves})


guarded = zoo.healthy("rudders-squashed-density-with-eps", lambda s: squash(s, 1e-4))
zoo.sick(
    "rudders-squashed-density-at-the-bound",
    lambda s: squash(s, 0.0),
    breaks,
    "NUMERICAL",
    also={"SATURATION", "EXPLORATION", "UNSTABLE"},
    control=guarded,
)

# --- who values journeys


class Values(nn.Module):
    """Values of three ways; those of the next place come from a frozen copy or from the net itself."""

    def __init__(self, net: nn.Module, copy: bool = True) -> None:
        super().__init__()
        self.net = net
        self.slow = deepcopy(net).requires_grad_(False) if copy else None

    def forward(self, x: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), (self.slow or self.net)(following)


def bellman(discount: float) -> Callable[..., Tensor]:
    def loss(out: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        action, paid = target
        chosen = out[0].gather(1, action[:, None]).squeeze(1)
        return F.mse_loss(chosen, paid + discount * out[1].detach().amax(dim=1))

    return loss


def values(seed: int, model: nn.Module, discount: float = 0.5, reward: float = 1.0, **more) -> Setup:
    task = journeys(seed, reward=reward).with_loss(bellman(discount))
    return live(model, task, **{"lr": 5e-3, "steps": 70, **more})


valued = zoo.healthy(
    "journeys-values-by-a-copy", lambda s: values(s, Values(mlp([7, 48, 3], nn.GELU))), analyzer="general"
)
zoo.sick(
    "journeys-discount-above-1-without-a-copy",
    lambda s: values(s, Values(mlp([7, 48, 48, 3], nn.ReLU), False), 3.0, kind="SGD", lr=0.2, steps=80, momentum=0.9),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "LOW_RANK", "BOTTLENECK", "SATURATION", "VANISHING"},
    control=valued,
    analyzer="general",
)


def deep_values(seed: int, depth: int, drawn: bool, **more) -> Setup:
    net = Plain([7, *[32] * depth, 3], torch.tanh)
    if drawn:
        for layer in net.layers:
            nn.init.orthogonal_(layer.weight, 1.4)
    return values(seed, Values(net), **more)


deep = zoo.healthy("journeys-4-layers-drawn-well", lambda s: deep_values(s, 4, True), analyzer="general")
zoo.sick(
    "journeys-12-layers-default-draw",
    lambda s: deep_values(s, 12, False, kind="SGD", lr=0.02, momentum=0.9),
    both(lasting(gradient_ratio("net.layers.0", "net.layers.11", below=10**-2.5)), lags(0.1)),
    "VANISHING",
    also={"LOW_RANK", "SLOW", "BOTTLENECK"},
    control=deep,
    analyzer="general",
)
zoo.sick(
    "journeys-rate-of-1e-11",
    lambda s: values(s, Values(mlp([7, 48, 3], nn.GELU)), lr=1e-11),
    does_not_move(steps=70),
    "SLOW",
    control=valued,
    analyzer="general",
)


class Pair(nn.Module):
    """An actor and a critic with a body each."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp([10, 40, 6], nn.SiLU), mlp([10, 40, 1], nn.SiLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(x), self.critic(x)


def advantage(cut: bool) -> Callable[[tuple[Tensor, Tensor], Tensor], Tensor]:
    """The value is taken out of the graph for the advantage, and by mistake for its own loss too."""

    def loss(out: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        logits, value = out[0], out[1].squeeze(1)
        policy = torch.distributions.Categorical(logits=logits)
        action = policy.sample()
        earned = pay.gather(1, action[:, None]).squeeze(1)
        value = value.detach() if cut else value
        gain = earned - value.detach()
        return 1 - (policy.log_prob(action) * gain).mean() + F.mse_loss(value, earned)

    return loss


def pair_of(seed: int, cut: bool) -> Setup:
    return live(Pair(), stalls(seed).with_loss(advantage(cut)), lr=5e-3, steps=80)


@torch.no_grad()
def value_error(setup: Setup) -> float:
    """How far the critic is from what the policy earns."""
    logits, value = setup.model(setup.input_fn())
    pay = setup.loss_fn.__self__.target
    return F.mse_loss(value.squeeze(1), (logits.softmax(dim=1) * pay).sum(dim=1)).item()


critic = zoo.healthy(
    "stalls-critic-learns", lambda s: pair_of(s, False), thrives(0.3, measure=value_error), analyzer="general"
)
zoo.sick(
    "stalls-critic-out-of-the-graph",
    lambda s: pair_of(s, True),
    lasting(no_gradient("critic")),
    "DISCONNECTED",
    layer=("critic.2", "critic.0"),
    also={"DEAD"},
    control=critic,
    analyzer="general",
)

# --- odd and healthy

zoo.healthy(
    "journeys-rewards-of-a-hundredth",
    lambda s: values(s, Values(mlp([7, 48, 3], nn.GELU)), reward=0.01, lr=1e-3),
    analyzer="general",
)


class Duel(nn.Module):
    """A value and advantages, which sum to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.value, self.gain = nn.Linear(7, 48), nn.Linear(48, 1), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.body(x))
        gain = self.gain(h)
        return self.value(h) + gain - gain.mean(dim=1, keepdim=True)


zoo.healthy("journeys-value-and-advantages", lambda s: values(s, Values(Duel())), analyzer="general")
zoo.healthy(
    "journeys-huber-and-limit",
    lambda s: live(
        Values(mlp([7, 48, 48, 3], nn.ReLU)),
        journeys(s).with_loss(
            lambda out, t: F.smooth_l1_loss(out[0].gather(1, t[0][:, None]).squeeze(1), t[1] + 0.5 * out[1].amax(dim=1))
        ),
        lr=5e-3,
        steps=70,
        clip=0.5,
    ),
    analyzer="general",
)


def sparse(logits: Tensor, pay: Tensor) -> Tensor:
    """One trade in five is paid, after the fact."""
    policy = torch.distributions.Categorical(logits=logits)
    action = policy.sample()
    earned = pay.gather(1, action[:, None]).squeeze(1) - 0.5
    earned = earned * (torch.rand(len(earned)) < 0.2)
    return 1 - 5 * (policy.log_prob(action) * earned).mean()


zoo.healthy(
    "stalls-one-trade-in-five-is-paid",
    lambda s: trades(s, Trader(), sparse, lr=1e-2, steps=100),
    thrives(0.05, measure=regret),
)
zoo.healthy(
    "stalls-taught-by-the-best",
    lambda s: trades(s, Trader(), lambda z, pay: F.cross_entropy(z, pay.argmax(dim=1)), lr=1e-2, steps=80),
)
zoo.healthy("rudders-deviation-that-shrinks-as-meant", lambda s: steers(s, Helm(-1.5), steps=80))
zoo.healthy("stalls-warm-up-and-decay", lambda s: trades(s, Trader(), weight_decay=0.05, rate=lambda t: min(1, t / 15)))
