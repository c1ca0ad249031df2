# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Agents of laboratories and workshops, with one fault each, their twins, and odd healthy ones.

Half: drill.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, Zoo, costly
from validation.evidence.live import at_last, flat_behind, lags, lasting, thrives, trained
from validation.evidence.play import explores, regret
from validation.evidence.signal import both, judged, no_gradient
from validation.labels import STUCK, SURE
from validation.nets import mlp
from validation.setups import choosing, live, of_moves
from validation.tasks import moves, routes

zoo = Zoo("rl", half="drill", analyzer="policy", proof=thrives())


class Driver(nn.Module):
    """Logits of six routes; `heat` divides them, `size` are the numbers of the last hidden layer."""

    def __init__(self, heat: float = 1.0, size: int = 40) -> None:
        super().__init__()
        self.body, self.choose, self.heat = mlp([10, 40, size], nn.SiLU).append(nn.SiLU()), nn.Linear(size, 6), heat

    def forward(self, state: Tensor) -> Tensor:
        return self.choose(self.body(state)) / self.heat


def drives(seed: int, driver: nn.Module, loss=None, **more) -> Setup:
    return choosing(driver, routes(seed), loss, **more)


def sampled(logits: Tensor, pay: Tensor) -> Tensor:
    """REINFORCE with the mean as a baseline; the loss itself has no meaning."""
    policy = torch.distributions.Categorical(logits=logits)
    action = policy.sample()
    earned = pay.gather(1, action[:, None]).squeeze(1)
    return 1 - (policy.log_prob(action) * (earned - earned.mean())).mean()


def poorer(by: float, measure=regret) -> Proof:
    """Each trained by its own optimizer, the agent ends further from the best than its twin."""

    def proof(case: Case, seed: int) -> Evidence:
        ends = [measure(trained(each).make(seed)) for each in (case, case.control)]
        return judged(not ends[0] - ends[1] < by, "ends {:.3f} from the best, the twin {:.3f}", *ends)

    return costly(proof)


calm = zoo.healthy(
    "routes-tried-and-rewarded",
    lambda s: drives(s, Driver(), sampled, lr=1e-2, steps=100),
    thrives(0.1, measure=regret),
)
zoo.sick(
    "routes-tried-and-rewarded-heat-of-three-thousandths",
    lambda s: drives(s, Driver(3e-3), sampled, lr=1e-3, steps=80),
    both(lasting(explores(0, 0.06)), poorer(0.05)),
    *STUCK,
    layer="choose",
    also={*SURE, "UNSTABLE", "DEAD"},
    control=calm,
)


def greedy(weight: float):
    """What is earned, and a term that counts the squared chance of each route, with a sign."""

    def loss(logits: Tensor, pay: Tensor) -> Tensor:
        p = logits.softmax(dim=1)
        return 2 - (p * pay).sum(dim=1).mean() + weight * p.square().sum(dim=1).mean()

    return loss


spread = zoo.healthy("routes-chances-kept-apart", lambda s: drives(s, Driver(), greedy(0.02)), thrives(0.04))


def fond(seed: int) -> Setup:
    """The sign of that term is wrong, and the first route is liked a little at the start."""
    driver = Driver()
    driver.choose.bias.data[0] += 2.0
    return drives(seed, driver, greedy(-3.0), lr=1e-2)


zoo.sick(
    "routes-chances-drawn-together",
    fond,
    both(at_last(explores(0, 0.05)), poorer(0.05)),
    *STUCK,
    layer="choose",
    also=SURE,
    control=spread,
)


class Joint(nn.Module):
    """Turns of three joints: a mean by tanh, and a deviation that is a parameter or a constant."""

    def __init__(self, log_std: float, learned: bool = True, factor: float = 1.0) -> None:
        super().__init__()
        self.body, self.mean = mlp([10, 40, 40], nn.ELU).append(nn.ELU()), nn.Linear(40, 3)
        start = torch.full((3,), log_std)
        self.log_std = nn.Parameter(start) if learned else nn.Buffer(start)
        self.mean.weight.data *= factor

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mean = 2 * torch.tanh(self.mean(self.body(state)))
        return mean, self.log_std.exp().expand_as(mean)


def by_trial(out: tuple[Tensor, Tensor], best: Tensor) -> Tensor:
    """The chance of a turn is raised by how much better than the mean it was."""
    policy = torch.distributions.Normal(*out)
    turn = policy.sample()
    reward = -((turn - best) / 2).square().sum(dim=1)
    return 5 - (policy.log_prob(turn).sum(dim=1) * (reward - reward.mean())).mean()


@torch.no_grad()
def astray(setup: Setup) -> float:
    """How far the means are from the best turns, in units of the range."""
    total = 0.0
    for _ in range(4):
        mean, _ = setup.model(setup.input_fn())
        total += ((mean - setup.loss_fn.__self__.target) / 2).square().sum(dim=1).mean().item() / 4
    return total


def turned(seed: int, joint: nn.Module, tried: bool = False, **more) -> Setup:
    task = moves(seed, 10, 3, 2.0)
    return live(
        joint,
        task.with_loss(by_trial) if tried else task,
        kwargs={"action_extractor": of_moves},
        hints={"action_range": (-2.0, 2.0)},
        **{"lr": 3e-3, "steps": 60, **more},
    )


tries = zoo.healthy(
    "joints-by-trial-deviation-of-a-half",
    lambda s: turned(s, Joint(math.log(0.5)), tried=True, lr=1e-2, steps=100),
    thrives(0.1, measure=astray),
)
zoo.sick(
    "joints-by-trial-deviation-of-a-hundred-thousandth",
    lambda s: turned(s, Joint(-11.5), tried=True, lr=1e-3, steps=80),
    both(lasting(explores(0, 0.01)), poorer(0.05, astray)),
    "EXPLORATION",
    "ENTROPY_COLLAPSE",
    layer=("log_std", "mean"),
    also={"DISCONNECTED", "SATURATION", "EXPLODING", "UNSTABLE"},
    control=tries,
)
joint = zoo.healthy("joints-deviation-of-a-half", lambda s: turned(s, Joint(math.log(0.5))))
zoo.sick(
    "joints-mean-at-its-bounds",
    lambda s: turned(s, Joint(math.log(0.5), factor=300.0), lr=1e-3),
    lasting(flat_behind("mean", "tanh", 0.85)),
    "SATURATION",
    "VANISHING",
    "EXPLORATION",
    layer="mean",
    also={"EXPLODING", "UNSTABLE", "ENTROPY_COLLAPSE"},
    control=joint,
)
zoo.sick(
    "routes-told-by-1-number",
    lambda s: drives(s, Driver(size=1), steps=80),
    lags(0.08),
    "BOTTLENECK",
    layer=("body.2", "choose"),
    also={"LOW_RANK", "EXPLORATION"},
    control=zoo.healthy("routes-told-by-40-numbers", lambda s: drives(s, Driver(), steps=80)),
)


class Team(nn.Module):
    """A scout makes a map for the driver; `copied` hands over a copy that was made to keep on the disk."""

    def __init__(self, copied: bool) -> None:
        super().__init__()
        self.scout, self.driver, self.copied = mlp([10, 32, 12], nn.SiLU), mlp([12, 32, 6], nn.SiLU), copied

    def forward(self, state: Tensor) -> Tensor:
        seen = self.scout(state)
        return self.driver(torch.from_numpy(seen.detach().numpy().copy()) if self.copied else seen)


team = zoo.healthy("routes-scout-and-driver", lambda s: drives(s, Team(False)))
zoo.sick(
    "routes-scout-hands-over-a-copy",
    lambda s: drives(s, Team(True)),
    lasting(no_gradient("scout")),
    "DISCONNECTED",
    layer=("scout.2", "scout.0"),
    also={"DEAD"},
    control=team,
)

# --- odd and healthy


def imitated(logits: Tensor, pay: Tensor) -> Tensor:
    return F.cross_entropy(logits, pay.argmax(dim=1))


zoo.healthy("routes-imitated", lambda s: drives(s, Driver(), imitated, lr=1e-2, steps=100))
zoo.healthy("joints-clipped-to-a-tenth", lambda s: turned(s, Joint(math.log(0.5)), clip=0.1, steps=80))
zoo.healthy("joints-constant-deviation-of-a-fifth", lambda s: turned(s, Joint(math.log(0.4), learned=False)))


class Judge(nn.Module):
    """Values of six routes in euros per year, of which only the one that was tried is known."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp([10, 48, 6], nn.SiLU)

    def forward(self, state: Tensor) -> Tensor:
        return 3000 * self.net(state)


def valued(values: Tensor, pay: Tensor) -> Tensor:
    tried = torch.randint(6, (len(pay), 1))
    return F.smooth_l1_loss(values.gather(1, tried), 5000 * pay.gather(1, tried))


zoo.healthy(
    "routes-valued-in-euros",
    lambda s: live(Judge(), routes(s).with_loss(valued), lr=5e-3, steps=80),
    analyzer="general",
)
