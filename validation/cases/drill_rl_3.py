# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Agents as trainers write them: clipped ratios, targets that follow, groups, dueling heads, heads of several choices.

Half: drill.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._drill_tasks import stalls
from validation.evidence import regret, thrives
from validation.nets import mlp
from validation.setups import live, of_logits, of_logits_alone, of_moves

zoo = Zoo("rl", half="drill", analyzer="policy", proof=thrives())


class Policy(nn.Module):
    """Logits, and a value beside them."""

    def __init__(self, act=nn.Tanh, small: float = 1.0) -> None:
        super().__init__()
        self.body, self.pi, self.value = mlp([8, 48, 48], act).append(act()), nn.Linear(48, 5), nn.Linear(48, 1)
        with torch.no_grad():
            self.pi.weight.mul_(small)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(state)
        return self.pi(h), self.value(h).squeeze(1)


def clipped(bonus: float):
    """The ratio of PPO in its first pass, with standardised gains, a critic and a bonus for entropy."""

    def loss(out: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        policy = torch.distributions.Categorical(logits=out[0])
        action = policy.sample()
        earned = pay.gather(1, action[:, None]).squeeze(1)
        gain = (earned - out[1]).detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        new = policy.log_prob(action)
        ratio = (new - new.detach()).exp()
        surrogate = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        return -surrogate - bonus * policy.entropy().mean() + 0.5 * (earned - out[1]).square().mean()

    return loss


def acted(seed: int, model: nn.Module, loss, **more) -> Setup:
    return live(
        model, stalls(seed).with_loss(loss), kwargs={"action_extractor": of_logits}, **{"lr": 5e-3, "steps": 90, **more}
    )


zoo.healthy(
    "stalls-clipped-ratios-small-first-logits",
    lambda s: acted(s, Policy(small=0.01), clipped(0.0)),
    thrives(0.1, measure=regret),
)


class Chooser(nn.Module):
    """Logits alone."""

    def __init__(self, act=nn.ReLU) -> None:
        super().__init__()
        self.net = mlp([8, 40, 5], act)

    def forward(self, state: Tensor) -> Tensor:
        return self.net(state)


def grouped(z: Tensor, pay: Tensor) -> Tensor:
    """Eight draws per state, each against the mean of its group."""
    policy = torch.distributions.Categorical(logits=z)
    action = policy.sample((8,))
    earned = pay[None].expand(8, -1, -1).gather(2, action[..., None]).squeeze(2)
    gain = (earned - earned.mean(dim=0)) / (earned.std(dim=0) + 1e-4)
    return -(policy.log_prob(action) * gain).mean()


def scored(seed: int, loss, **more) -> Setup:
    return live(
        Chooser(),
        stalls(seed).with_loss(loss),
        kwargs={"action_extractor": of_logits_alone},
        **{"lr": 5e-3, "steps": 80, **more},
    )


zoo.healthy("stalls-groups-of-eight", lambda s: scored(s, grouped), thrives(0.1, measure=regret))


class Dueling(nn.Module):
    """A value and what each action is better by; a copy follows as a target."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.value, self.gain = mlp([8, 40], nn.ReLU).append(nn.ReLU()), nn.Linear(40, 1), nn.Linear(40, 5)
        self.old = copy.deepcopy(nn.ModuleList([self.body, self.value, self.gain])).requires_grad_(False)

    def forward(self, state: Tensor) -> Tensor:
        with torch.no_grad():
            mine = nn.ModuleList([self.body, self.value, self.gain])
            for a, b in zip(self.old.parameters(), mine.parameters(), strict=True):
                a.lerp_(b, 0.05)
        h = self.body(state)
        gain = self.gain(h)
        return self.value(h) + gain - gain.mean(dim=1, keepdim=True)

    @torch.no_grad()
    def later(self, state: Tensor) -> Tensor:
        body, value, gain = self.old
        h = body(state)
        return (value(h) + gain(h) - gain(h).mean(dim=1, keepdim=True)).amax(dim=1)


def dueled(seed: int, discount: float, **more) -> Setup:
    model = Dueling()

    def loss(q: Tensor, pay: Tensor) -> Tensor:
        action = torch.randint(5, (len(pay), 1))
        wanted = pay.gather(1, action).squeeze(1) + discount * model.later(torch.randn(len(pay), 8))
        return F.smooth_l1_loss(q.gather(1, action).squeeze(1), wanted)

    return live(model, stalls(seed).with_loss(loss), **{"lr": 3e-3, "steps": 90, **more})


zoo.healthy("stalls-dueling-values-that-look-ahead", lambda s: dueled(s, 0.5), thrives(-3.0))


class Steer(nn.Module):
    """A squashed Gaussian with its own deviation, reparametrised."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.log_std = mlp([8, 48, 2], nn.Tanh), nn.Parameter(torch.full((2,), -0.7))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(state), self.log_std.exp().expand(len(state), 2)


def steered(out: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
    mean, std = out
    move = mean + std * torch.randn_like(mean)
    return (move - 1.5 * pay[:, :2]).square().mean() - 0.05 * std.log().mean()


zoo.healthy(
    "stalls-steered",
    lambda s: live(Steer(), stalls(s).with_loss(steered), kwargs={"action_extractor": of_moves}, lr=5e-3, steps=90),
)
