# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Usual policies and values: with the mistakes that people make, their twins, and others that train well.

Half: usual.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from validation.case import Case, Setup, Zoo
from validation.cases._common_nets import SQUEEZED, tower
from validation.cases._everyday_nets import CUT_OFF, NARROW
from validation.cases._everyday_sequences import more_than
from validation.cases._plain_nets import BLOWN
from validation.cases._usual_nets import falls_behind
from validation.evidence.live import at_last, breaks, lags, lasting, thrives
from validation.evidence.play import explores, missed
from validation.evidence.signal import both, no_gradient, rank_at_most, saturated
from validation.evidence.training import gradient_norms_spread
from validation.labels import JUMPS, RUNS_AWAY, STUCK, SURE
from validation.setups import live, of_logits
from validation.tasks import Task, every
from validation.tasks.rewards import by_clipped_ratios

Target = tuple[Tensor, Tensor, Tensor]


def poor(least: float):
    return more_than(missed, least, "of the best reward is missed")


@torch.no_grad()
def largest_chance(setup: Setup) -> float:
    """The mean chance of the likeliest action."""
    return setup.model(setup.input_fn())[0].softmax(dim=-1).amax(dim=-1).mean().item()


one_way = more_than(largest_chance, 0.999, "chance of the likeliest action")
earns_less = falls_behind(missed, 1.5, "misses")

zoo = Zoo("rl", half="usual", analyzer="policy", proof=thrives(0.3, measure=missed))


def general(name: str, build, proof=None) -> Case:
    return zoo.healthy(name, build, proof or thrives(0.2, most_dead=0.5), analyzer="general")


def first_gradient(setup: Setup) -> float:
    """The norm of the gradient of one batch."""
    setup.loss_fn(setup.model(setup.input_fn())).backward()
    return sum(p.grad.square().sum().item() for p in setup.model.parameters() if p.grad is not None) ** 0.5


# --- lights: four lanes with queues, one of them closed; which gets green


def queues(random: torch.Generator, count: int) -> Tensor:
    """Four queues around zero, one-hot which lane is closed, two clocks that do not matter."""
    closed = F.one_hot(torch.randint(4, (count,), generator=random), 4).float()
    return torch.cat([torch.randn(count, 4, generator=random), closed, torch.randn(count, 2, generator=random)], dim=1)


def pays(state: Tensor) -> Tensor:
    """What green pays in each lane: its queue above the mean, and less than nothing if it is closed."""
    queue = state[:, :4]
    return torch.where(state[:, 4:8] > 0, torch.full_like(queue, -1.5), queue - queue.mean(dim=1, keepdim=True))


def served(state: Tensor, action: Tensor, random: torch.Generator) -> Tensor:
    """The queue of the lane goes down, the others grow a little."""
    went = F.one_hot(action, 4) * 1.2 * torch.rand(len(state), 1, generator=random)
    return torch.cat([state[:, :4] - went + 0.2, state[:, 4:]], dim=1)


class Junction(nn.Module):
    """A body, a head for the lanes, a head for the value; `last` changes the logits."""

    def __init__(self, widths: tuple[int, ...] = (64, 64), act: type[nn.Module] = nn.Tanh, last=None) -> None:
        super().__init__()
        self.body = nn.Sequential(tower([10, *widths], act), act())
        self.lanes, self.value, self.last = nn.Linear(widths[-1], 4), nn.Linear(widths[-1], 1), last

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(state)
        z = self.lanes(h)
        return self.last(z, state) if self.last else z, self.value(h).squeeze(-1)


def lights(seed: int, model: nn.Module | None = None, loss=None, *, pay: float = 1.0, **more) -> Setup:
    """Rollouts of the policy as it is; the target is (actions, returns to come, old log-probabilities)."""
    model = model or Junction()

    def draw(random: torch.Generator) -> tuple[Tensor, Target]:
        state, steps = queues(random, 40), []
        for _ in range(3):
            with torch.no_grad():
                chance = model(state)[0].log_softmax(dim=-1)
            action = torch.multinomial(chance.exp().nan_to_num(0.25).clamp_min(1e-9), 1, generator=random)
            reward = pay * pays(state).gather(1, action)[:, 0]
            steps.append((state, action[:, 0], reward, chance.gather(1, action)[:, 0]))
            state = served(state, action[:, 0], random)
        returns, ahead = [], torch.zeros(40)
        for step in reversed(steps):
            ahead = step[2] + 0.3 * ahead
            returns.insert(0, ahead)
        states, actions, _, chances = (torch.cat(each) for each in zip(*steps, strict=True))
        return states, (actions, torch.cat(returns), chances)

    def judge(setup: Setup) -> float:
        state = queues(torch.Generator().manual_seed(5), 400)
        with torch.no_grad():
            policy = setup.model(state)[0].softmax(dim=-1)
        reward = pays(state)
        return (reward.amax(dim=1) - (policy * reward).sum(dim=1)).mean().item()

    task = Task(seed, draw, loss or a2c())
    task.judge = judge
    return live(model, task, kwargs={"action_extractor": of_logits}, **{"lr": 5e-3, "steps": 70, **more})


def a2c(bonus: float = 0.01, summed: bool = False):
    def loss(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
        logits, values = output
        actions, returns, _ = target
        policy = Categorical(logits=logits, validate_args=False)
        gain = (policy.log_prob(actions) * (returns - values.detach())).mean()
        entropy = policy.entropy().sum() if summed else policy.entropy().mean()
        return 0.5 * F.mse_loss(values, returns) - gain - bonus * entropy

    return loss


# --- what is tried

green = zoo.healthy("lights-a2c-bonus-0.05", lambda s: lights(s, loss=a2c(0.05)))
zoo.sick(
    "lights-a2c-bonus-summed-over-the-batch",
    lambda s: lights(s, loss=a2c(0.05, True)),
    both(at_last(explores(0.93, 1.0), poor(0.5)), earns_less),
    "EXPLORATION",
    also={"SLOW", "VANISHING"},
    control=green,
)


def headed(seed: int) -> Setup:
    """An orthogonal start, whose gain at the head of the policy is a hundredth."""
    model = Junction()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, 2**0.5)
            nn.init.zeros_(module.bias)
    nn.init.orthogonal_(model.lanes.weight, 0.01)
    return lights(seed, model, lr=3e-3)


zoo.healthy("lights-a2c-head-gain-0.01", headed)


class Soft(Junction):
    """With a chance of `eps` the lane is drawn at random, whatever the net says."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        z, value = super().forward(state)
        return ((1 - self.eps) * z.softmax(dim=1) + self.eps / 4).log(), value


rarely = zoo.healthy("lights-a2c-a-tenth-at-random", lambda s: lights(s, Soft(0.1)))
zoo.sick(
    "lights-a2c-nine-tenths-at-random-for-ever",
    lambda s: lights(s, Soft(0.9)),
    both(lasting(explores(0.95, 1.0)), at_last(poor(0.6)), earns_less),
    "EXPLORATION",
    also={"SLOW", "VANISHING"},
    control=rarely,
)


def barred(z: Tensor, state: Tensor) -> Tensor:
    """The closed lane is barred."""
    return z.masked_fill(state[:, 4:8] > 0, -1e9)


def inverted(z: Tensor, state: Tensor) -> Tensor:
    """All lanes but the closed one are barred: the mask says what is allowed, not what is not."""
    return z.masked_fill(state[:, 4:8] <= 0, -1e9)


masked = zoo.healthy("lights-a2c-closed-lane-barred", lambda s: lights(s, Junction(last=barred)))
zoo.sick(
    "lights-a2c-mask-inverted",
    lambda s: lights(s, Junction(last=inverted)),
    both(lasting(one_way), at_last(poor(1.0)), earns_less),
    *STUCK,
    "DISCONNECTED",
    "DEAD",
    also={*SURE, "SLOW", "never_moves", "detached", "LOW_RANK", "BOTTLENECK"},
    control=masked,
)


class Cooled(Junction):
    """The logits are divided by a heat that falls with every step of training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.heat = rate, 1.0

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        z, value = super().forward(state)
        if torch.is_grad_enabled():
            self.heat = max(self.heat * self.rate, 1e-3)
        return z / self.heat, value


slow = zoo.healthy("lights-a2c-heat-falls-slowly", lambda s: lights(s, Cooled(0.995)))
zoo.sick(
    "lights-a2c-heat-falls-in-ten-steps",
    lambda s: lights(s, Cooled(0.5)),
    both(at_last(explores(0, 0.15)), earns_less),
    *STUCK,
    *JUMPS,
    "SATURATION",
    also={*SURE, "NUMERICAL", "LOW_RANK", "BOTTLENECK"},
    control=slow,
)

# --- the faults of any network

through = zoo.healthy("lights-a2c-body-through-12", lambda s: lights(s, Junction((64, 12, 64), nn.SiLU)))
zoo.sick(
    "lights-a2c-body-through-one-unit",
    lambda s: lights(s, Junction((64, 1, 64), nn.SiLU)),
    earns_less,
    *NARROW,
    layer=("body.0.2", "body.0.4"),
    also={*SQUEEZED, "EXPLORATION", "ENTROPY_COLLAPSE"},
    control=through,
)
paid = zoo.healthy(
    "lights-a2c-pay-in-units-sgd", lambda s: lights(s, Junction(act=nn.ReLU), kind="SGD", lr=0.03, momentum=0.9)
)
zoo.sick(
    "lights-a2c-pay-in-thousands-sgd",
    lambda s: lights(s, Junction(act=nn.ReLU), kind="SGD", lr=0.03, momentum=0.9, pay=1000.0),
    both(earns_less, more_than(first_gradient, 300, "first gradient")),
    *RUNS_AWAY,
    also={*BLOWN, *STUCK},
    control=paid,
)


def stored(decimals: int):
    """Ratios to the chances of another policy, which a store kept with some decimals."""

    def loss(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
        logits, values = output
        actions, returns, old = target
        kept = (old.exp() ** 2.5).round(decimals=decimals)
        kept = kept.clamp_min(0.05) if decimals > 4 else kept
        ratio = logits.softmax(dim=1).gather(1, actions[:, None]).squeeze(1) / kept
        return 0.5 * F.mse_loss(values, returns) - (ratio * (returns - values.detach())).mean()

    return loss


kept = zoo.healthy("lights-ratios-to-stored-chances-at-least-0.05", lambda s: lights(s, loss=stored(6), lr=3e-3))
zoo.sick(
    "lights-ratios-to-stored-chances-of-two-decimals",
    lambda s: lights(s, loss=stored(2), lr=3e-3),
    breaks,
    "NUMERICAL",
    also={"loss_nonfinite", *JUMPS},
    control=kept,
)

# --- glider: thrust along two ways against the wind


class Glider(nn.Module):
    """A bounded mean, a deviation that is learned or fixed, a value."""

    def __init__(self, log_std: float = -0.7, learned: bool = True) -> None:
        super().__init__()
        self.fc1, self.act1, self.fc2, self.act2 = nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh()
        self.mean, self.value = nn.Linear(48, 2), nn.Linear(48, 1)
        self.log_std = nn.Parameter(torch.full((2,), log_std), requires_grad=learned)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.act2(self.fc2(self.act1(self.fc1(state))))
        mean = torch.tanh(self.mean(h))
        return mean, self.log_std.clamp(-10, 1).exp().expand_as(mean), self.value(h).squeeze(-1)


def of_three(output: tuple[Tensor, Tensor, Tensor]) -> tuple[None, Tensor, Tensor, Tensor]:
    return None, output[1], output[0], output[2]


def off(state: Tensor, action: Tensor) -> Tensor:
    """How far off the course the next place is."""
    return (state[:, :2] + 0.5 * state[:, 2:4] + action).square().sum(dim=1)


def gauss(output: tuple[Tensor, Tensor, Tensor], target: Target) -> Tensor:
    """A policy gradient with gains of unit size."""
    mean, std, value = output
    action, reward, _ = target
    gain = reward - value.detach()
    gain = (gain - gain.mean()) / (gain.std() + 1e-6)
    policy = Normal(mean, std)
    told = (policy.log_prob(action).sum(dim=1) * gain).mean()
    return 0.5 * F.mse_loss(value, reward) - told - 0.005 * policy.entropy().sum(dim=1).mean()


def near(output: tuple[Tensor, Tensor, Tensor], target: Target) -> Tensor:
    """The same by clipped ratios."""
    mean, std, value = output
    action, reward, old = target
    gain = reward - value.detach()
    gain = (gain - gain.mean()) / (gain.std() + 1e-6)
    ratio = (Normal(mean, std).log_prob(action).sum(dim=1) - old).exp()
    return 0.5 * F.mse_loss(value, reward) - torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()


def glide(seed: int, model: nn.Module | None = None, loss=gauss, *, scale: float = 1.0, **more) -> Setup:
    model = model or Glider()

    def places(random: torch.Generator, count: int) -> Tensor:
        return 0.5 * torch.randn(count, 6, generator=random)

    def draw(random: torch.Generator) -> tuple[Tensor, Target]:
        state = places(random, 128)
        with torch.no_grad():
            mean, std, _ = model(scale * state)
        action = mean + std * torch.randn(mean.shape, generator=random)
        chance = Normal(mean, std).log_prob(action).sum(dim=1)
        return scale * state, (action, -off(state, action), chance)

    def judge(setup: Setup) -> float:
        state = places(torch.Generator().manual_seed(6), 400)
        with torch.no_grad():
            mean = setup.model(scale * state)[0]
        best = -(state[:, :2] + 0.5 * state[:, 2:4]).clamp(-1, 1)
        return (off(state, mean) - off(state, best)).mean().item()

    task = Task(seed, draw, loss)
    task.judge = judge
    hints = {"action_range": (-1.0, 1.0)}
    return live(model, task, kwargs={"action_extractor": of_three}, hints=hints, **{"lr": 5e-3, "steps": 80, **more})


tried = zoo.healthy("glider-fixed-deviation-of-a-half", lambda s: glide(s, Glider(-0.7, False)))
zoo.sick(
    "glider-fixed-deviation-of-a-thousandth",
    lambda s: glide(s, Glider(-7.0, False)),
    both(lasting(explores(0, 0.002)), earns_less),
    *STUCK,
    also={*JUMPS, "DISCONNECTED", "NUMERICAL", "frozen"},
    control=tried,
)
metres = zoo.healthy("glider-places-in-kilometres", lambda s: glide(s, lr=4e-3))
zoo.sick(
    "glider-places-in-metres",
    lambda s: glide(s, lr=4e-3, scale=1000.0),
    both(lasting(saturated("act1", "tanh", 0.9)), earns_less),
    "SATURATION",
    "VANISHING",
    layer=("fc1", "act1"),
    also={"input_scales", "EXPLORATION", "ENTROPY_COLLAPSE", "LOW_RANK", "BOTTLENECK", "EXPLODING", "UNSTABLE"},
    control=metres,
)

# --- a critic that teaches a policy of choices


class Taught(nn.Module):
    """A critic learns what lanes pay; the policy learns from it through a choice that is soft, or an argmax."""

    def __init__(self, soft: bool) -> None:
        super().__init__()
        self.policy, self.critic, self.soft = tower([10, 48, 4], nn.ReLU), tower([14, 64, 64, 1], nn.SiLU), soft

    def told(self, state: Tensor, action: Tensor) -> Tensor:
        return self.critic(torch.cat([state, F.one_hot(action, 4).float()], dim=1)).squeeze(1)

    def forward(self, state: Tensor, action: Tensor, reward: Tensor) -> tuple[Tensor, Tensor]:
        z = self.policy(state)
        chosen = F.gumbel_softmax(z, hard=True) if self.soft else F.one_hot(z.argmax(dim=1), 4).float()
        told = self.told(state, action)
        self.critic.requires_grad_(False)
        liked = self.critic(torch.cat([state, chosen], dim=1)).mean()
        self.critic.requires_grad_(True)
        return F.mse_loss(told, reward) - liked, z


def taught(seed: int, soft: bool) -> Setup:
    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor, Tensor], None]:
        state, action = queues(random, 96), torch.randint(4, (96,), generator=random)
        return (state, action, pays(state).gather(1, action[:, None])[:, 0]), None

    def judge(setup: Setup) -> float:
        state = queues(torch.Generator().manual_seed(5), 400)
        with torch.no_grad():
            policy = setup.model.policy(state).softmax(dim=1)
        reward = pays(state)
        return (reward.amax(dim=1) - (policy * reward).sum(dim=1)).mean().item()

    task = Task(seed, draw, lambda out, _: out[0])
    task.judge = judge
    model = Taught(soft)
    optimizer = torch.optim.Adam(model.critic.parameters(), lr=5e-3)
    for _ in range(60):  # the critic has a start
        state, action, reward = task.input_fn()
        optimizer.zero_grad()
        F.mse_loss(model.told(state, action), reward).backward()
        optimizer.step()
    return live(model, task, "Adam", 5e-3, 90)


gumbel = general("lights-critic-teaches-by-gumbel", lambda s: taught(s, True), thrives(0.3, 0.5, missed))
zoo.sick(
    "lights-critic-teaches-by-argmax",
    lambda s: taught(s, False),
    both(lasting(no_gradient("policy")), earns_less),
    *CUT_OFF,
    layer=("policy.2", "policy.0", "policy"),
    also={"detached", "never_moves", "EXPLORATION", "SLOW"},
    control=gumbel,
    analyzer="general",
)

# --- values and models


class Q(nn.Module):
    """Values of the lanes, and those that a slow copy gives to what comes next."""

    def __init__(self, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net = net or tower([10, 64, 64, 4], nn.ReLU)
        self.slow = deepcopy(self.net).requires_grad_(False)

    def forward(self, state: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            for mine, own in zip(self.slow.parameters(), self.net.parameters(), strict=True):
                mine.data.lerp_(own.data, 0.05)
        return self.net(state), self.slow(after)


def td(by: Callable = F.mse_loss, discount: float = 0.5):
    def loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        now, ahead = output
        return by(now.gather(1, target[0][:, None]).squeeze(1), target[1] + discount * ahead.amax(dim=1))

    return loss


def store(seed: int, loss: Callable, crash: float = 0.0, batch: int = 64) -> Task:
    """Steps from a store; now and then one of them is a crash, which costs so much."""
    crashed = every(15, 9)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        state, action = queues(random, batch), torch.randint(4, (batch,), generator=random)
        reward = pays(state).gather(1, action[:, None])[:, 0]
        if crash and crashed():
            reward[:2] = -crash
        return (state, served(state, action, random)), (action, reward)

    return Task(seed, draw, loss)


def valued(seed: int, net: nn.Module | None = None, loss=None, crash: float = 0.0, **more) -> Setup:
    return live(Q(net), store(seed, loss or td(), crash), **{"kind": "Adam", "lr": 4e-3, "steps": 100, **more})


cheap = general("lights-q-values-crash-costs-2", lambda s: valued(s, crash=2.0))
zoo.sick(
    "lights-q-values-crash-costs-10000",
    lambda s: valued(s, crash=10000.0),
    gradient_norms_spread(30),
    *JUMPS,
    also={*BLOWN, "bad_batch", "NUMERICAL"},
    control=cheap,
    analyzer="general",
)
units = general("lights-q-values-through-16", lambda s: valued(s, tower([10, 64, 16, 64, 4], nn.ELU)))
zoo.sick(
    "lights-q-values-through-1",
    lambda s: valued(s, tower([10, 64, 1, 64, 4], nn.ELU)),
    both(lags(0.2), lasting(rank_at_most("net.2", 1.01))),
    *NARROW,
    layer=("net.2", "net.4"),
    also=SQUEEZED,
    control=units,
    analyzer="general",
)


class World(nn.Module):
    """A code of the state, where an action leads in it, and what comes out of that."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.enc = tower([10, 64, size], nn.SiLU)
        self.step, self.dec = tower([size + 4, 64, size], nn.SiLU), tower([size, 64, 8], nn.SiLU)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        z = self.enc(state)
        return self.dec(z + self.step(torch.cat([z, action], dim=1)))


def world(seed: int, size: int) -> Setup:
    def change(x: tuple[Tensor, Tensor], t: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (x[0], F.one_hot(t[0], 4).float()), x[1][:, :8]

    return live(World(size), store(seed, F.mse_loss).changed(change), "AdamW", 4e-3, 90)


model = general("lights-world-model-code-of-16", lambda s: world(s, 16))
zoo.sick(
    "lights-world-model-code-of-1",
    lambda s: world(s, 1),
    both(lags(0.2), lasting(rank_at_most("enc", 1.01))),
    *NARROW,
    layer=("enc.2", "step.0", "step.2", "dec.0"),
    also=SQUEEZED,
    control=model,
    analyzer="general",
)

# --- others that train well


clipped = by_clipped_ratios(F.smooth_l1_loss)
zoo.healthy("lights-ppo", lambda s: lights(s, loss=clipped))
zoo.healthy("lights-ppo-clipped-at-half-decay", lambda s: lights(s, loss=clipped, clip=0.5, rate=lambda t: 1 - t / 80))
zoo.healthy("lights-ppo-wide-relu", lambda s: lights(s, Junction((192,), nn.ReLU), clipped, lr=3e-3))
zoo.healthy("lights-a2c-rmsprop", lambda s: lights(s, kind="RMSprop", lr=3e-3))
zoo.healthy("lights-a2c-elu-three-layers", lambda s: lights(s, Junction((48, 48, 48), nn.ELU), lr=3e-3))
zoo.healthy("lights-a2c-logits-over-1.5", lambda s: lights(s, Junction(last=lambda z, _: z / 1.5)))


class Apart(nn.Module):
    """The policy has one net, the value another, with norms."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.critic = tower([10, 64, 4], nn.GELU, norm=nn.LayerNorm), tower([10, 64, 64, 1], nn.Tanh)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(state), self.critic(state).squeeze(-1)


zoo.healthy("lights-ppo-nets-apart", lambda s: lights(s, Apart(), clipped))
zoo.healthy("glider-learned-deviation", glide)
zoo.healthy("glider-ppo", lambda s: glide(s, loss=near))
general("lights-q-values-huber-clipped", lambda s: valued(s, loss=td(F.smooth_l1_loss), clip=5.0))
general("lights-q-values-layer-norm", lambda s: valued(s, tower([10, 64, 64, 4], nn.SiLU, norm=nn.LayerNorm)))
general("lights-q-values-batches-of-8", lambda s: live(Q(), store(s, td(), batch=8), "Adam", 2e-3, 120))


def cloned(seed: int) -> Setup:
    """What an expert did, who errs in one of ten."""

    def change(x: tuple[Tensor, Tensor], t: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        best = pays(x[0]).argmax(dim=1)
        return x[0], torch.where(torch.arange(len(best)) % 10 == 0, t[0], best)

    return live(tower([10, 64, 64, 4], nn.ReLU), store(seed, F.cross_entropy).changed(change), "AdamW", 4e-3, 80)


general("lights-cloned-from-an-expert", cloned)


def weighed(seed: int) -> Setup:
    """Cloned with weights by how well an action paid."""

    def loss(z: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
        weight = (target[1] / 0.5).exp().clamp_max(20.0)
        return (weight / weight.mean() * F.cross_entropy(z, target[0], reduction="none")).mean()

    task = store(seed, loss, batch=128).changed(lambda x, t: (x[0], t))
    return live(tower([10, 64, 64, 4], nn.ReLU), task, "Adam", 4e-3, 90)


general("lights-cloned-by-what-it-paid", weighed, thrives(0.1, most_dead=0.5))
