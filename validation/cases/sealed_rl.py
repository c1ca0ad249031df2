# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Agents of kiosks, cranes and alleys, with one fault each, their twins, and odd healthy ones.

Half: sealed.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._sealed_tasks import alleys, cranes, kiosks
from validation.evidence.live import at_last, breaks, lags, lasting, never_fires, thrives
from validation.evidence.play import explores, regret
from validation.evidence.signal import both, equal_units, gradient_ratio, no_gradient, saturated
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS, ONE_WAY, STUCK, SURE
from validation.nets import mlp
from validation.nets.programs import Plain
from validation.setups import choosing, live, of_logits_alone, of_moves
from validation.tasks import every

zoo = Zoo("rl", half="sealed", analyzer="policy", proof=thrives())
Loss = Callable[..., Tensor]

# --- who sells one of five goods


class Seller(nn.Module):
    """A body and the logits of five goods; `change` is done to the logits at the end."""

    def __init__(self, hidden: int = 32, act=torch.tanh, change: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.fc1, self.fc2, self.pi = nn.Linear(9, 32), nn.Linear(32, hidden), nn.Linear(hidden, 5)
        self.act, self.change = act, change

    def forward(self, x: Tensor) -> Tensor:
        logits = self.pi(self.act(self.fc2(self.act(self.fc1(x)))))
        return self.change(logits) if self.change else logits


def sells(seed: int, model: nn.Module, loss: Loss | None = None, **more) -> Setup:
    return choosing(model, kiosks(seed), loss, **more)


def orthogonal(seed: int, gain: float, **more) -> Setup:
    """The last layer is drawn by a gain; the recipe has a hundredth."""
    model = Seller()
    for layer in (model.fc1, model.fc2):
        nn.init.orthogonal_(layer.weight, 2**0.5)
    nn.init.orthogonal_(model.pi.weight, gain)
    return sells(seed, model, **more)


recipe = zoo.healthy("kiosks-last-gain-0.01", lambda s: orthogonal(s, 0.01))
zoo.sick(
    "kiosks-last-gain-600",
    lambda s: orthogonal(s, 600.0, lr=1e-4),
    both(lasting(explores(0, 0.12)), lags(0.1)),
    *STUCK,
    layer="pi",
    also=SURE,
    control=recipe,
)


def masked(keep: bool) -> Callable[[Tensor], Tensor]:
    """The second good is sold out; the mask may be the wrong way round."""
    sold_out = torch.tensor([False, True, False, False, False])
    return lambda z: z.masked_fill(sold_out if keep else ~sold_out, -60.0)


left = zoo.healthy(
    "kiosks-one-good-sold-out", lambda s: sells(s, Seller(change=masked(True))), thrives(0.1, measure=regret)
)
zoo.sick(
    "kiosks-all-but-one-sold-out-by-mistake",
    lambda s: sells(s, Seller(change=masked(False))),
    both(lasting(explores(0, 0.03)), lags(0.1)),
    *STUCK,
    "DISCONNECTED",
    "DEAD",
    layer=("pi", "fc2"),
    also={*SURE, "SLOW"},
    control=left,
)
zoo.sick(
    "kiosks-logits-divided-by-50000",
    lambda s: sells(s, Seller(change=lambda z: z / 5e4)),
    both(at_last(explores(0.99, 1.01)), lags(0.1)),
    "EXPLORATION",
    "VANISHING",
    "SLOW",
    layer=("pi",),
    also={*ONE_WAY, "DEAD"},
    control=recipe,
)
zoo.sick(
    "kiosks-one-number-before-the-logits",
    lambda s: sells(s, Seller(hidden=1)),
    lags(0.05),
    "BOTTLENECK",
    layer=("fc2", "pi"),
    also={"LOW_RANK", "SATURATION", "EXPLORATION"},
    control=recipe,
)


def priced(seed: int, bias: float) -> Setup:
    """A cost is taken off in a hidden layer, where the reward was meant."""
    model = Seller(act=torch.relu)
    nn.init.constant_(model.fc2.bias, bias)
    return sells(seed, model)


free = zoo.healthy("kiosks-rectified-without-a-cost", lambda s: priced(s, 0.0))
zoo.sick(
    "kiosks-rectified-cost-of-25-in-a-hidden-layer",
    lambda s: priced(s, -25.0),
    lasting(never_fires("fc2", 0.97)),
    "DEAD",
    layer="fc2",
    also={*DEADENS, *ONE_WAY, "EXPLORATION", "ENTROPY_COLLAPSE"},
    control=free,
)


def even(seed: int, same: bool) -> Setup:
    """Hidden layers begin at one value; the head weighs all units alike."""
    model = Seller()
    if same:
        for layer in (model.fc1, model.fc2):
            nn.init.constant_(layer.weight, 0.05)
            nn.init.zeros_(layer.bias)
        model.pi.weight.data = model.pi.weight.data[:, :1].expand_as(model.pi.weight).clone()
    return sells(seed, model, kind="SGD", lr=0.3, momentum=0.9)


as_drawn = zoo.healthy("kiosks-sgd-as-drawn", lambda s: even(s, False))
zoo.sick(
    "kiosks-hidden-layers-begin-at-0.05",
    lambda s: even(s, True),
    both(lasting(equal_units("fc1.weight"), equal_units("fc2.weight")), lags(0.05)),
    "SYMMETRY",
    layer=("fc1", "fc2", "pi"),
    also={*ONE_WAY, "EXPLORATION"},
    control=as_drawn,
)


def entropic(safe: bool) -> Loss:
    """A bonus for the entropy, by hand; goods that are sold out have no chance at all."""
    now = every(13, 8)

    def loss(z: Tensor, pay: Tensor) -> Tensor:
        if now():
            z = torch.cat([z[:, :1] - 1e6, z[:, 1:]], dim=1)
        p = z.softmax(dim=1)
        entropy = torch.special.entr(p.clamp_min(1e-12)) if safe else -p * p.log()
        return 1 - (p * pay).sum(dim=1).mean() - 0.01 * entropy.sum(dim=1).mean()

    return loss


xlogx = zoo.healthy("kiosks-entropy-of-no-chance-is-zero", lambda s: sells(s, Seller(), entropic(True)))
zoo.sick(
    "kiosks-entropy-of-no-chance", lambda s: sells(s, Seller(), entropic(False)), breaks, "NUMERICAL", control=xlogx
)


def sampled(jackpot: float, weight: float = 1.0) -> Loss:
    """REINFORCE with the mean as a baseline; now and then a customer pays a jackpot."""
    now = every(12, 6)

    def loss(z: Tensor, pay: Tensor) -> Tensor:
        log_p = z.log_softmax(dim=1)
        action = torch.multinomial(log_p.exp().detach(), 1)
        reward = weight * pay.gather(1, action)
        if now():
            reward[0] += jackpot
        return 3 - (log_p.gather(1, action) * (reward - reward.mean())).mean()

    return loss


fair = zoo.healthy(
    "kiosks-reinforce",
    lambda s: sells(s, Seller(), sampled(0.0, 4.0), lr=1e-2, steps=90),
    thrives(0.05, measure=regret),
)
zoo.sick(
    "kiosks-reinforce-with-jackpots",
    lambda s: sells(s, Seller(), sampled(3e4), lr=1e-3, steps=80),
    gradient_norms_spread(30),
    *JUMPS,
    also={"EXPLORATION", "ENTROPY_COLLAPSE", "SATURATION"},
    control=fair,
)
zoo.sick(
    "kiosks-rate-in-millionths-of-millionths",
    lambda s: sells(s, Seller(), lr=5e-11, steps=50),
    does_not_move(steps=50),
    "SLOW",
    control=recipe,
)

# --- who pulls ropes


class Rigger(nn.Module):
    """Mean and deviation of three ropes, both from the state; the logarithm is kept within bounds."""

    def __init__(self, low: float = -3.0, high: float = 0.0, gain: float = 1.0) -> None:
        super().__init__()
        self.fc1, self.fc2, self.squash = nn.Linear(7, 32), nn.Linear(32, 32), nn.Tanh()
        self.mean, self.log_std, self.bounds = nn.Linear(32, 3), nn.Linear(32, 3), (low, high)
        self.mean.weight.data *= gain

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.elu(self.fc2(F.elu(self.fc1(x))))
        low, high = self.bounds
        log_std = low + (high - low) * torch.sigmoid(self.log_std(h))
        return self.squash(self.mean(h)), log_std.exp()


def pulls(seed: int, model: nn.Module, **more) -> Setup:
    extra = {"kwargs": {"action_extractor": of_moves}, "hints": {"action_range": (-1.0, 1.0)}}
    return live(model, cranes(seed), **extra, **{"lr": 5e-3, "steps": 60, **more})


bounded = zoo.healthy("cranes-deviation-between-0.05-and-1", lambda s: pulls(s, Rigger()))
zoo.sick(
    "cranes-deviation-between-1e-6-and-1e-5",
    lambda s: pulls(s, Rigger(-13.8, -11.5)),
    lasting(explores(0, 0.01)),
    *STUCK,
    layer=("log_std", "mean"),
    also={"SATURATION", "DEAD", "SLOW", "VANISHING"},
    control=bounded,
)
zoo.sick(
    "cranes-mean-drawn-300-times-too-large",
    lambda s: pulls(s, Rigger(gain=300.0), lr=1e-3),
    lasting(saturated("squash", "tanh", 0.8)),
    "SATURATION",
    "VANISHING",
    layer=("mean",),
    also={"EXPLODING", "UNSTABLE", "EXPLORATION", "DEAD"},
    control=bounded,
)

# --- who values alleys


class Critic(nn.Module):
    """Values of four ways out; those of the next place come from a copy that is not trained."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.copy = net, deepcopy(net).requires_grad_(False)

    def forward(self, x: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), self.copy(following)


def td(out: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
    action, paid = target
    chosen = out[0].gather(1, action[:, None]).squeeze(1)
    return F.smooth_l1_loss(chosen, paid + 0.3 * out[1].detach().amax(dim=1))


def values(seed: int, net: nn.Module, **more) -> Setup:
    return live(Critic(net), alleys(seed).with_loss(td), **{"lr": 5e-3, "steps": 70, **more})


def deep(depth: int, gain: float, act=F.leaky_relu) -> Plain:
    net = Plain([8, *[28] * depth, 4], act)
    for layer in net.layers:
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return net


valued = zoo.healthy("alleys-values-orthogonal-3-layers", lambda s: values(s, deep(3, 1.2)), analyzer="general")
zoo.sick(
    "alleys-values-orthogonal-9-layers-gain-3",
    lambda s: values(s, deep(9, 3.0), lr=1e-7, steps=40),
    lasting(gradient_ratio("net.layers.0", "net.layers.8", above=100)),
    "EXPLODING",
    also={"UNSTABLE", "NUMERICAL", "first_loss_high"},
    control=valued,
    analyzer="general",
)
zoo.sick(
    "alleys-values-orthogonal-9-layers-gain-0.4",
    lambda s: values(s, deep(9, 0.4, torch.tanh), kind="SGD", lr=0.05),
    both(lasting(gradient_ratio("net.layers.0", "net.layers.8", below=1e-3)), lags(0.1)),
    "VANISHING",
    also={"SLOW", *ONE_WAY},
    control=valued,
    analyzer="general",
)


class Pair(nn.Module):
    """An actor moves, a critic values the move; `cut` hands over the move without its history."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.actor, self.critic, self.cut = mlp([7, 32, 3], nn.SiLU), mlp([10, 40, 1], nn.SiLU), cut

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        move = torch.tanh(self.actor(x))
        tried = (move + 0.5 * torch.randn_like(move)).detach()
        q_tried = self.critic(torch.cat([x, tried], dim=1))
        return tried, q_tried, self.critic(torch.cat([x, move.detach() if self.cut else move], dim=1))


def deterministic(out: tuple[Tensor, Tensor, Tensor], best: Tensor) -> Tensor:
    tried, q_tried, q_own = out
    reward = 1 - (tried - best).square().mean(dim=1, keepdim=True)
    return F.mse_loss(q_tried, reward) - 0.1 * q_own.mean() + 0.3


def pairs(seed: int, cut: bool) -> Setup:
    return live(Pair(cut), cranes(seed).with_loss(deterministic), lr=5e-3, steps=70)


joined = zoo.healthy("cranes-actor-learns-through-the-critic", lambda s: pairs(s, False), analyzer="general")
zoo.sick(
    "cranes-moves-without-their-history",
    lambda s: pairs(s, True),
    lasting(no_gradient("actor")),
    "DISCONNECTED",
    layer=("actor.0", "actor.2"),
    also={"DEAD"},
    control=joined,
    analyzer="general",
)

# --- odd and well


def sharp(seed: int) -> Setup:
    """One good is by far the best for everybody: a policy that always sells it is right."""
    task = kiosks(seed).changed(lambda x, pay: (x, torch.cat([0.1 * pay[:, :4], 0.9 + 0.1 * pay[:, 4:]], dim=1)))
    return live(Seller(), task, lr=1e-2, steps=60, kwargs={"action_extractor": of_logits_alone})


zoo.healthy("kiosks-one-good-is-always-best", sharp)


class Dueling(nn.Module):
    """The value of a place, and what each way adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.value, self.more = mlp([8, 40, 32], nn.ReLU), nn.Linear(32, 1), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.body(x))
        more = self.more(h)
        return self.value(h) + more - more.mean(dim=1, keepdim=True)


zoo.healthy("alleys-dueling", lambda s: values(s, Dueling()), analyzer="general")


class Noisy(nn.Linear):
    """A layer with learned noise on its weights."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(a, b)
        self.sigma = nn.Parameter(torch.full((b, a), 0.02))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + self.sigma * torch.randn_like(self.sigma), self.bias)


zoo.healthy(
    "alleys-noisy-layers", lambda s: values(s, nn.Sequential(Noisy(8, 40), nn.ELU(), Noisy(40, 4))), analyzer="general"
)


def clone(seed: int) -> Setup:
    """Imitates an expert who always takes the best good."""
    task = kiosks(seed).changed(lambda x, pay: (x, pay.argmax(dim=1))).with_loss(F.cross_entropy)
    return live(Seller(act=F.silu), task, lr=5e-3, steps=60, kwargs={"action_extractor": of_logits_alone})


zoo.healthy("kiosks-imitates-an-expert", clone)


def curious(z: Tensor, pay: Tensor) -> Tensor:
    p, log_p = z.softmax(dim=1), z.log_softmax(dim=1)
    return 1 - (p * pay).sum(dim=1).mean() + 0.05 * (p * log_p).sum(dim=1).mean()


zoo.healthy("kiosks-bonus-of-0.05", lambda s: sells(s, Seller(), curious), thrives(0.1, measure=regret))


class Fixed(nn.Module):
    """The deviation is a constant that nobody learns."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp([7, 32, 32, 3], nn.Tanh)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = torch.tanh(self.body(x))
        return mean, torch.full_like(mean, 0.3)


zoo.healthy("cranes-constant-deviation", lambda s: pulls(s, Fixed()))


def proximal(seed: int) -> Setup:
    """The clipped ratio to the policy of some steps ago."""
    state: dict[str, Tensor] = {}
    model, count = Seller(), every(4, 0)
    old = deepcopy(model).requires_grad_(False)

    def keep(x: Tensor) -> Tensor:
        if count():
            old.load_state_dict(model.state_dict())
        state["old"] = old(x).log_softmax(dim=1)
        return x

    def loss(z: Tensor, pay: Tensor) -> Tensor:
        action = torch.multinomial(state["old"].exp(), 1)
        gain = 4 * (pay.gather(1, action) - pay.mean(dim=1, keepdim=True))
        ratio = (z.log_softmax(dim=1) - state["old"]).gather(1, action).exp()
        return 1 - torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()

    task = kiosks(seed).mapped(keep).with_loss(loss)
    return live(model, task, lr=1e-2, steps=90, kwargs={"action_extractor": of_logits_alone})


zoo.healthy("kiosks-clipped-ratios", proximal, thrives(0.05, measure=regret))


class Distribution(nn.Module):
    """Chances of eleven returns for each way out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp([8, 40, 44], nn.GELU)

    def forward(self, x: Tensor, _following: Tensor) -> Tensor:
        return self.body(x).unflatten(1, (4, 11)).log_softmax(dim=2)


def categorical(log_p: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
    action, paid = target
    at = ((paid + 1) * 5).round().long().clamp(0, 10)
    return F.nll_loss(log_p[torch.arange(len(at)), action], at)


zoo.healthy(
    "alleys-chances-of-returns",
    lambda s: live(Distribution(), alleys(s).with_loss(categorical), lr=1e-2, steps=80),
    thrives(0.05),
    analyzer="general",
)
