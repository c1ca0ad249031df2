# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies and value networks that look odd and are healthy.

Half: tune.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, Zoo, costly
from validation.evidence import both, explores, judged, trains
from validation.nets import Actor, Shared, mlp
from validation.setups import discrete, mover, pair, pretrain
from validation.tasks import Task, bandit, blobs, choices

zoo = Zoo("rl", half="tune", analyzer="policy", proof=trains(lr=1e-2))


# --- policies that know something


def half_sure(seed: int, dim: int, actions: int, steps: int) -> Setup:
    """Half-way through training: sure in clear states, undecided in others."""
    setup = discrete(Actor(dim, actions, 48), bandit(seed, dim, actions))
    return pretrain(setup, steps, 1e-2)


class Masked(nn.Module):
    """Forbids half of the actions, by state."""

    def __init__(self, dim: int, actions: int) -> None:
        super().__init__()
        self.actor = Actor(dim, actions, 48)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        logits, value = self.actor(state)
        forbidden = torch.arange(logits.shape[1]) % 2 == (state[:, :1] > 0).long()
        return logits.masked_fill(forbidden, -1e9), value


def masked(seed: int) -> Setup:
    return discrete(Masked(12, 8), bandit(seed, 12, 8))


def finished(seed: int) -> Setup:
    """Nearly deterministic and right: the return is at its best, and the user reports it."""
    setup = pretrain(half_sure(seed, 4, 3, 150), 80, 3e-3)
    return replace(setup, hints={"returns": [mean_reward(setup) for _ in range(20)], "max_return": 1.0})


def mean_reward(setup: Setup) -> float:
    """How often the good action is taken in one batch."""
    with torch.no_grad():
        return 1 - setup.loss_fn(setup.model(setup.input_fn())).item()


def earns(at_least: float) -> Proof:
    """The policy takes the good action nearly always."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        reward = sum(mean_reward(setup) for _ in range(10)) / 10
        return judged(reward >= at_least, "mean reward {:.3f}", reward)

    return costly(proof)


IMPROVES = trains(lr=1e-3, fall=0.02)
zoo.healthy("policy-half-way", lambda s: half_sure(s, 12, 5, 15), both(explores(0.2, 0.9), IMPROVES))
zoo.healthy("policy-two-thirds-of-the-way", lambda s: half_sure(s, 10, 6, 25), both(explores(0.1, 0.9), IMPROVES))
zoo.healthy("masked-actions", masked, trains(lr=1e-2, fall=0.05))
zoo.healthy("finished-policy-with-returns", finished, earns(0.93))

# --- other losses, other networks


def proximal(seed: int) -> Setup:
    """The clipped surrogate with an entropy bonus; where the ratio is out of bounds no gradient comes."""
    old = torch.Generator().manual_seed(seed)

    def loss(output: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        logits, value = output
        action = torch.randint(pay.shape[1], (len(pay), 1), generator=old)
        advantage = pay.gather(1, action) - pay.mean(dim=1, keepdim=True)
        change = (logits.log_softmax(dim=1).gather(1, action) + torch.tensor(float(pay.shape[1])).log()).exp()
        gain = torch.minimum(change * advantage, change.clamp(0.8, 1.2) * advantage)
        spread = -(logits.softmax(1) * logits.log_softmax(1)).sum(dim=1)
        error = (value - pay.mean(dim=1)).square().mean()
        return 1 - 5 * gain.mean() - 0.001 * spread.mean() + error

    return discrete(Shared(10, 6, 48, nn.Tanh), choices(seed, 10, 6, 128).with_loss(loss))


def cloned(seed: int) -> Setup:
    """Imitates an expert, so the loss is a plain cross-entropy; the critic is frozen for now."""
    model = Shared(12, 7, 48, nn.GELU)
    model.value.requires_grad_(False)
    task = choices(seed, 12, 7)
    return discrete(model, task.with_loss(lambda out, pay: F.cross_entropy(out[0], pay.argmax(dim=1))))


def seasoned(seed: int, steps: int) -> Setup:
    return pretrain(discrete(Shared(12, 7, 48), choices(seed, 12, 7)), steps, 5e-3)


def right_and_sure(seed: int) -> Setup:
    """Sure of itself and right, and the user reports what it earns."""
    setup = pretrain(discrete(Shared(3, 4, 48), easy(seed)), 300, 1e-2)
    setup = pretrain(setup, 100, 1e-3)
    return replace(setup, hints={"returns": [earned(setup) for _ in range(20)], "max_return": 1.0})


def easy(seed: int) -> Task:
    """The best of four actions is plain from the state, and only that one pays."""

    def loss(output: tuple[Tensor, Tensor], best: Tensor) -> Tensor:
        right = output[0].softmax(dim=1).gather(1, best[:, None]).squeeze(1)
        return 1 - right.mean() + 0.1 * (output[1] - right.detach()).square().mean()

    return blobs(seed, 3, 4, 64, 5.0).with_loss(loss)


def earned(setup: Setup) -> float:
    """How often the right action is taken."""
    with torch.no_grad():
        logits, _value = setup.model(setup.input_fn())
        return (logits.argmax(dim=1) == setup.input_fn.__self__.target).float().mean().item()


def nearly_best(case: Case, seed: int) -> Evidence:
    setup = case.make(seed)
    share = sum(earned(setup) for _ in range(10)) / 10
    return Evidence(share > 0.93, f"right in {share:.1%}")


class Twin(nn.Module):
    """Two critics of state and action, with slow frozen copies that give the target."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.first, self.second = mlp([dim, width, width, 1], nn.SiLU), mlp([dim, width, width, 1], nn.SiLU)
        self.slow = nn.ModuleList(mlp([dim, width, width, 1], nn.SiLU) for _ in range(2)).requires_grad_(False)

    def forward(self, now: Tensor, following: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            ahead = torch.minimum(*(critic(following) for critic in self.slow))
        return self.first(now), self.second(now), ahead


def twin_critics(seed: int) -> Setup:
    way = torch.randn(10, 1, generator=torch.Generator().manual_seed(seed)) / 10**0.5

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        now = torch.randn(64, 10, generator=random)
        return (now, 0.8 * now + 0.6 * torch.randn(64, 10, generator=random)), torch.tanh(now @ way)

    def loss(out: tuple[Tensor, Tensor, Tensor], reward: Tensor) -> Tensor:
        goal = reward + 0.95 * out[2]
        return F.mse_loss(out[0], goal) + F.mse_loss(out[1], goal)

    return pair(Twin(10, 48), Task(seed, draw, loss))


def spread_values(seed: int) -> Setup:
    """The return as a distribution over 21 bins."""
    bins = torch.linspace(-2, 2, 21)

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        near = (-8 * (bins - (target[:, None] / 3 - 1)).square()).softmax(dim=1)
        return -(near * logits.log_softmax(dim=1)).sum(dim=1).mean()

    return pair(mlp([16, 48, 48, 21]), blobs(seed, 16, 6, 64).with_loss(loss))


def huber_values(seed: int) -> Setup:
    """Value regression whose errors count linearly from one on, on returns in the hundreds, scaled."""
    task = blobs(seed, 12, 5, 64, 1.0)
    return pair(mlp([12, 40, 1], nn.Tanh), task.with_loss(lambda v, t: F.huber_loss(v[:, 0], t.float() - 2)))


zoo.healthy("proximal-clipped-surrogate", proximal, trains(lr=3e-3, steps=80, fall=0.02))
zoo.healthy("imitation-with-frozen-critic", cloned)
zoo.healthy("a-third-of-the-way", lambda s: seasoned(s, 15), both(explores(0.3, 0.95), trains(fall=0.02)))
zoo.healthy("right-and-sure-with-returns", right_and_sure, costly(nearly_best))
zoo.healthy("moves-of-one-deviation-0.3", lambda s: mover(s, 1.0, 0.3))
zoo.healthy("moves-of-two-deviation-2", lambda s: mover(s, 2.0, 1.0))
zoo.healthy("two-actions-small-net", lambda s: discrete(Shared(4, 2, 16), choices(s, 4, 2)))
zoo.healthy("forty-actions-masked-relu", lambda s: discrete(Shared(20, 40, 64, nn.ReLU, True), choices(s, 20, 40)))
zoo.healthy("twin-critics-with-slow-copies", twin_critics, trains(lr=3e-3), analyzer="general")
zoo.healthy("values-over-21-bins", spread_values, trains(lr=3e-3), analyzer="general")
zoo.healthy("huber-values", huber_values, analyzer="general")
