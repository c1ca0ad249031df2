# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Agents of stalls, rudders and rafts: one fault each, their twins, and odd healthy ones.

Half: veiled.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._veiled_tasks import rafts, rudders, stalls
from validation.evidence.live import at_last, breaks, lags, lasting, never_fires, thrives
from validation.evidence.play import explores, regret
from validation.evidence.signal import both, equal_units, no_gradient, saturated
from validation.evidence.training import gradient_norms_spread
from validation.labels import DEADENS, JUMPS, ONE_WAY, STUCK, SURE
from validation.nets import mlp
from validation.setups import choosing, live, of_moves
from validation.tasks import every

zoo = Zoo("rl", half="veiled", analyzer="policy", proof=thrives())
Loss = Callable[..., Tensor]


class Trader(nn.Module):
    """The logits of six stalls, behind two layers; `change` is done to them at the end."""

    def __init__(self, hidden: int = 32, act=F.elu, change: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.low, self.high, self.logits = nn.Linear(8, 32), nn.Linear(32, hidden), nn.Linear(hidden, 6)
        self.act, self.change = act, change

    def forward(self, x: Tensor) -> Tensor:
        z = self.logits(self.act(self.high(self.act(self.low(x)))))
        return self.change(z) if self.change else z


def trades(seed: int, model: nn.Module, loss: Loss | None = None, **more) -> Setup:
    return choosing(model, stalls(seed), loss, **more)


open_minded = zoo.healthy("stalls-as-drawn", lambda s: trades(s, Trader()))


def fond(seed: int, bias: float) -> Setup:
    """One stall is ahead from the beginning."""
    model = Trader()
    nn.init.zeros_(model.logits.bias)
    with torch.no_grad():
        model.logits.bias[2] = bias
    return trades(seed, model)


zoo.healthy("stalls-one-a-little-ahead", lambda s: fond(s, 1.0))
zoo.sick(
    "stalls-one-ahead-by-25",
    lambda s: fond(s, 25.0),
    both(lasting(explores(0, 0.05)), lags(0.1)),
    *STUCK,
    layer="logits",
    also={*SURE, "SLOW", "DEAD", "DISCONNECTED"},
    control=open_minded,
)
zoo.sick(
    "stalls-logits-over-a-temperature-of-0.001",
    lambda s: trades(s, Trader(change=lambda z: z / 1e-3), lr=2e-4),
    both(lasting(explores(0, 0.15)), lags(0.1)),
    *STUCK,
    layer=("logits", "high"),
    also={*SURE, "UNSTABLE"},
    control=open_minded,
)
zoo.sick(
    "stalls-logits-behind-two-softmaxes-and-a-thousandth",
    lambda s: trades(s, Trader(change=lambda z: 1e-3 * z.softmax(dim=1).softmax(dim=1))),
    both(at_last(explores(0.999, 1.01)), lags(0.1)),
    "EXPLORATION",
    "VANISHING",
    "SLOW",
    layer=("logits",),
    also={*ONE_WAY, "DEAD", "SATURATION"},
    control=open_minded,
)
zoo.sick(
    "stalls-one-unit-before-the-logits",
    lambda s: trades(s, Trader(hidden=1)),
    lags(0.05),
    "BOTTLENECK",
    layer=("high", "logits"),
    also={"LOW_RANK", "EXPLORATION"},
    control=open_minded,
)


def costed(seed: int, bias: float) -> Setup:
    model = Trader(act=F.relu)
    nn.init.constant_(model.high.bias, bias)
    return trades(seed, model)


free = zoo.healthy("stalls-rectified", lambda s: costed(s, 0.0))
zoo.sick(
    "stalls-rectified-second-layer-begins-at-minus-18",
    lambda s: costed(s, -18.0),
    lasting(never_fires("high", 0.98)),
    "DEAD",
    layer=("high", "logits"),
    also={*DEADENS, *ONE_WAY, "EXPLORATION", "ENTROPY_COLLAPSE"},
    control=free,
)


def even(seed: int, value: float | None) -> Setup:
    model = Trader(act=torch.tanh)
    if value is not None:
        for layer in (model.low, model.high):
            nn.init.constant_(layer.weight, value)
            nn.init.zeros_(layer.bias)
        model.logits.weight.data = model.logits.weight.data[:, :1].expand_as(model.logits.weight).clone()
    return trades(seed, model, lr=1e-2)


uneven = zoo.healthy("stalls-tanh-as-drawn", lambda s: even(s, None))
zoo.sick(
    "stalls-tanh-hidden-layers-of-0.04",
    lambda s: even(s, 0.04),
    both(lasting(equal_units("low.weight"), equal_units("high.weight")), lags(0.05)),
    "SYMMETRY",
    layer=("low", "high", "logits"),
    also={*ONE_WAY, "EXPLORATION"},
    control=uneven,
)


def sampled(prize: float, weight: float = 4.0) -> Loss:
    """REINFORCE with the mean as a baseline; now and then there is a prize."""
    now = every(13, 6)

    def loss(z: Tensor, pay: Tensor) -> Tensor:
        log_p = z.log_softmax(dim=1)
        action = torch.multinomial(log_p.exp().detach(), 1)
        reward = weight * pay.gather(1, action)
        if now():
            reward[:2] += prize
        return 3 - (log_p.gather(1, action) * (reward - reward.mean())).mean()

    return loss


fair = zoo.healthy(
    "stalls-reinforce", lambda s: trades(s, Trader(), sampled(0.0), lr=1e-2, steps=90), thrives(0.05, measure=regret)
)
zoo.sick(
    "stalls-reinforce-with-prizes",
    lambda s: trades(s, Trader(), sampled(2e4), lr=1e-3, steps=80),
    gradient_norms_spread(30),
    *JUMPS,
    also={"EXPLORATION", "ENTROPY_COLLAPSE", "SATURATION"},
    control=fair,
)

# --- rudders


class Steersman(nn.Module):
    """Mean and deviation of two rudders; the mean is squashed, its weights begin times `gain`."""

    def __init__(self, log_std: float = -0.7, gain: float = 1.0, learned: bool = True) -> None:
        super().__init__()
        self.body, self.mean, self.squash = mlp([6, 32, 32], nn.SiLU), nn.Linear(32, 2), nn.Tanh()
        self.log_std = nn.Parameter(torch.full((2,), log_std), requires_grad=learned)
        self.mean.weight.data *= gain

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.squash(self.mean(F.silu(self.body(x))))
        return mean, self.log_std.exp().expand_as(mean)


def steers(seed: int, model: nn.Module, **more) -> Setup:
    more = {"lr": 5e-3, "steps": 60, "hints": {"action_range": (-1.0, 1.0)}, **more}
    return live(model, rudders(seed), kwargs={"action_extractor": of_moves}, **more)


steady = zoo.healthy("rudders-learned-deviation", lambda s: steers(s, Steersman()))
zoo.healthy("rudders-constant-deviation-of-a-third", lambda s: steers(s, Steersman(-1.1, learned=False)))
zoo.sick(
    "rudders-mean-drawn-1000-times-too-large",
    lambda s: steers(s, Steersman(gain=1000.0), lr=1e-3),
    lasting(saturated("squash", "tanh", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="mean",
    also={"EXPLODING", "UNSTABLE", "EXPLORATION", "DEAD"},
    control=steady,
)
zoo.sick(
    "rudders-deviation-fixed-at-1e-5",
    lambda s: steers(s, Steersman(-11.5, learned=False)),
    lasting(explores(0, 2e-5)),
    *STUCK,
    layer=None,
    also={"DISCONNECTED", "SATURATION"},
    control=steady,
)

# --- rafts


class Values(nn.Module):
    """What each oar is worth now, and afterwards by an older copy; `cut` parts the body from the head."""

    def __init__(self, cut: bool = False) -> None:
        super().__init__()
        self.cut, self.body, self.head = cut, mlp([7, 40, 32], nn.ELU), nn.Linear(32, 4)
        self.old = deepcopy(nn.Sequential(self.body, nn.ELU(), self.head)).requires_grad_(False)

    def forward(self, x: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        h = F.elu(self.body(x))
        return self.head(h.detach() if self.cut else h), self.old(after)


def temporal(out: tuple[Tensor, Tensor], told: tuple[Tensor, Tensor]) -> Tensor:
    q, later = out
    action, paid = told
    return F.smooth_l1_loss(q.gather(1, action[:, None])[:, 0], paid + 0.5 * later.amax(dim=1))


def of_values(out: tuple[Tensor, Tensor]) -> tuple[Tensor, None, None, None]:
    return out[0], None, None, None


def rowed(seed: int, model: nn.Module, loss: Loss = temporal, **more) -> Setup:
    more = {"lr": 5e-3, "steps": 70, "kwargs": {"action_extractor": of_values}, **more}
    return live(model, rafts(seed).with_loss(loss), **more)


q_net = zoo.healthy("rafts-values-with-an-old-copy", lambda s: rowed(s, Values()))
zoo.sick(
    "rafts-body-cut-from-the-values",
    lambda s: rowed(s, Values(cut=True)),
    lasting(no_gradient("body")),
    "DISCONNECTED",
    layer=("body.0", "body.2"),
    also={"DEAD"},
    control=q_net,
)


class Critic(nn.Module):
    """Logits and a value from one body, for advantages that are divided by their deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.policy, self.value = mlp([7, 40], nn.Tanh), nn.Linear(40, 4), nn.Linear(40, 1)

    def forward(self, x: Tensor, _after: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.body(x))
        return self.policy(h), self.value(h).squeeze(1)


def clipped(out: tuple[Tensor, Tensor], told: tuple[Tensor, Tensor], eps: float = 1e-4) -> Tensor:
    """PPO: the actions came from an even policy, the ratio is clipped; the value is fitted beside it."""
    logits, value = out
    action, paid = told
    gain = (paid - value).detach()
    gain = (gain - gain.mean()) / ((gain - gain.mean()).square().mean().sqrt() + eps)
    log_p = logits.log_softmax(dim=1)
    ratio = 4 * log_p.gather(1, action[:, None])[:, 0].exp()
    surrogate = torch.minimum(ratio * gain, ratio.clamp(0.5, 1.5) * gain).mean()
    entropy = -(log_p.exp() * log_p).sum(dim=1).mean()
    return 1 - surrogate + 0.5 * F.mse_loss(value, paid) - 0.01 * entropy


def paid_nothing(seed: int, eps: float) -> Setup:
    """Now and then the river is closed: nobody is paid, and the value is told so."""
    now = every(14, 8)

    def close(x: tuple[Tensor, Tensor], told: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], tuple]:
        if now():
            return (torch.zeros_like(x[0]), x[1]), (told[0], torch.zeros_like(told[1]))
        return x, told

    setup = rowed(seed, Critic(), lambda out, told: clipped(out, told, eps))
    setup.loss_fn.__self__.changed(close)
    return setup


open_river = zoo.healthy("rafts-clipped-gains-with-eps", lambda s: paid_nothing(s, 1e-2))
zoo.sick(
    "rafts-clipped-gains-of-a-closed-river", lambda s: paid_nothing(s, 0.0), breaks, "NUMERICAL", control=open_river
)

# --- healthy, though odd

zoo.healthy("rafts-clipped-ratios", lambda s: rowed(s, Critic(), clipped))


def advantage(out: tuple[Tensor, Tensor], told: tuple[Tensor, Tensor]) -> Tensor:
    """A2C, with the value's error beside it."""
    logits, value = out
    action, paid = told
    log_p = logits.log_softmax(dim=1).gather(1, action[:, None])[:, 0]
    weight = 4 * log_p.exp().detach()
    return 1 - (weight * log_p * (paid - value).detach()).mean() + F.mse_loss(value, paid)


class Dueling(nn.Module):
    """A value and what each oar adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.value, self.adds = mlp([7, 40], nn.ReLU), nn.Linear(40, 1), nn.Linear(40, 4)

    def forward(self, x: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        def q(s: Tensor) -> Tensor:
            h = F.relu(self.body(s))
            adds = self.adds(h)
            return self.value(h) + adds - adds.mean(dim=1, keepdim=True)

        return q(x), q(after).detach()


zoo.healthy("rafts-value-and-what-each-oar-adds", lambda s: rowed(s, Dueling(), lr=1e-2))


class Spread(nn.Module):
    """Seven quantiles of what each oar will pay."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = mlp([7, 40], nn.SiLU), nn.Linear(40, 28)

    def forward(self, x: Tensor, _after: Tensor) -> tuple[Tensor, Tensor]:
        spread = self.out(F.silu(self.body(x))).unflatten(1, (4, 7))
        return spread.mean(dim=2), spread


def quantiles(out: tuple[Tensor, Tensor], told: tuple[Tensor, Tensor]) -> Tensor:
    action, paid = told
    said = out[1][torch.arange(len(paid)), action]
    share, miss = torch.linspace(0.05, 0.95, 7), paid[:, None] - said
    return torch.maximum(share * miss, (share - 1) * miss).mean()


zoo.healthy("rafts-quantiles-of-the-pay", lambda s: rowed(s, Spread(), quantiles, lr=1e-2))


def imitates(z: Tensor, pay: Tensor) -> Tensor:
    return F.cross_entropy(z, pay.argmax(dim=1))


zoo.healthy("stalls-imitates-the-best", lambda s: trades(s, Trader(), imitates, lr=1e-2))


def bonus(z: Tensor, pay: Tensor) -> Tensor:
    p = z.softmax(dim=1)
    return 1.5 - (p * pay).sum(dim=1).mean() - 0.1 * torch.special.entr(p).sum(dim=1).mean()


zoo.healthy("stalls-bonus-for-the-entropy", lambda s: trades(s, Trader(), bonus, lr=1e-2), thrives(0.1))


def sure_thing(seed: int) -> Setup:
    """One stall nearly always pays most, so a policy that is sure of it is right."""
    setup = trades(seed, Trader(), lr=1e-2)
    setup.loss_fn.__self__.changed(lambda x, pay: (x, 0.3 * pay + 0.6 * (torch.arange(6) == 4)))
    return setup


zoo.healthy("stalls-one-always-pays-most", sure_thing)


class Remembering(nn.Module):
    """A policy with a GRU over the last eight states, which are the same state with noise."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.logits = nn.GRU(8, 24, batch_first=True), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        noise = 0.5 * torch.randn(len(x), 8, 8)
        return self.logits(self.gru(x[:, None] + noise)[0][:, -1])


zoo.healthy("stalls-policy-with-a-memory", lambda s: trades(s, Remembering(), lr=1e-2))
zoo.healthy("rafts-advantages", lambda s: rowed(s, Critic(), advantage, clip=0.5, lr=1e-2, steps=80), thrives(0.1))
