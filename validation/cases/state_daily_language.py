# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Daily programs with faults of second moments, attention, experts, embeddings, batches, policies; and some sound ones.

Half: daily.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Log, Program, Zoo
from validation.cases._common_loops import study
from validation.cases._daily_corridor import far_from_goal, questions, walk
from validation.cases._daily_loops import (
    KINDS,
    Llama,
    Ranker,
    Writer,
    bce,
    beside,
    crates,
    diary,
    moths,
    of_row,
    ranked,
    rides,
    tweets,
    yields,
)
from validation.cases._everyday_loops import measured
from validation.cases._plain_loops import harmed
from validation.cases.state_common_language import aged, noisy, top_row
from validation.cases.state_everyday_language import moments_lag
from validation.evidence.loops import broken, learns
from validation.evidence.states import logged
from validation.nets import mlp
from validation.programs import fit, held_out
from validation.states import BROKEN
from validation.tasks import Task, drawn_once, token_loss

zoo = Zoo("state", half="daily", proof=learns(0.15))
adamw = torch.optim.AdamW

# --- the second moment lags behind

for name, low, rate, long in (("petals", 0.003, 2e-2, 0.9999), ("crates", 0.003, 2e-2, 0.9998)):
    stage = lambda x, y, low=low: (x, y, low)  # noqa: E731
    quick = zoo.healthy(f"daily-{name}-loss-counts-late-beta2-0.95", aged(KINDS[name], stage, 0.95, rate), learns(0.05))
    zoo.sick(
        f"daily-{name}-loss-counts-late-beta2-{long}",
        aged(KINDS[name], stage, long, rate),
        moments_lag,
        "stale_second_moment",
        "UNSTABLE",
        "EXPLODING",
        "rate_too_high",
        also={*BROKEN, "bad_batch", "loss_grows"},
        control=quick,
    )
zoo.healthy(
    "daily-yields-loss-counts-late-beta2-0.9",
    aged(lambda s: (mlp([8, 32, 1], nn.SiLU), yields(s), of_row), lambda x, y: (x, y, 0.2), 0.9, 3e-3),
    learns(0.05),
)

# --- attention


class Gather(nn.Module):
    """Patches of a picture look at each other by attention written out, their mean is judged."""

    def __init__(self, heads: int = 4, width: int = 32) -> None:
        super().__init__()
        self.patch, self.places = nn.Conv2d(3, width, 2, 2), nn.Parameter(0.3 * torch.randn(16, width))
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.token, self.head = nn.Parameter(0.3 * torch.randn(1, 1, width)), nn.Linear(width, 5)

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the token's attention, and what it looks at."""
        h = self.norm(self.patch(x).flatten(2).transpose(1, 2) + self.places)
        q = self.q(self.token).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.k, self.v))
        return q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, v

    def forward(self, x: Tensor) -> Tensor:
        scores, v = self.logits(x)
        mixed = (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(1)
        return self.head(F.gelu(self.o(mixed)))


def looking(seed: int, *, times: float = 1.0, heads: int = 4, fast: float = 4e-3) -> Program:
    """Queries and keys are drawn so many `times` as large, and learn at the rate `fast`."""
    model, task = Gather(heads), moths(seed)
    some = [p for part in (model.q, model.k) for p in part.parameters()]
    with torch.no_grad():
        for p in some:
            p *= times
    rest = [p for p in model.parameters() if all(p is not other for other in some)]
    optimizer = adamw([{"params": some, "lr": fast}, {"params": rest, "lr": 4e-3}])

    def largest() -> float:
        with torch.no_grad():
            return float(model.logits(task.aside()[0])[0].abs().max())

    return study(model, task, optimizer, steps=70, facts={"largest logit": largest})


SHARP = {*BROKEN, "first_loss_high", "clip_sets_step", "rate_too_high", "never_moves"}
for sound, fault, good, bad in (
    ("moths-one-head-as-drawn", "moths-one-head-thirty-times-as-large", {"heads": 1}, {"heads": 1, "times": 30.0}),
    ("moths-two-heads-one-rate", "moths-two-heads-queries-at-rate-1", {"heads": 2}, {"heads": 2, "fast": 1.0}),
):
    beside(
        zoo,
        sound,
        fault,
        lambda s, fault, g=good, b=bad: looking(s, **(b if fault else g)),
        harmed(measured("largest logit", above=30.0)),
        "attention_logits",
        "ENTROPY_COLLAPSE",
        "SATURATION",
        "rate_too_high",
        "EXPLODING",
        "UNSTABLE",
        layer=("q", "k"),
        also=SHARP,
    )
zoo.healthy("daily-moths-eight-heads", lambda s: looking(s, heads=8))


def versed(seed: int, depth: int, heads: int) -> Program:
    """A decoder of so many blocks, with clipping and a rate for all."""
    model = Llama(heads=heads, depth=depth)
    return study(model, diary(seed), adamw(model.parameters(), lr=4e-3), token_loss, 50, clip=1.0)


zoo.healthy("daily-verses-two-blocks", lambda s: versed(s, 2, 4))

# --- experts


class Experts(nn.Module):
    """Each row goes to the best of three lines; gives the answer, the balance and the share of each."""

    def __init__(self, count: int = 3, width: int = 5) -> None:
        super().__init__()
        self.router, self.count = nn.Linear(width, count), count
        self.experts = nn.ModuleList(nn.Linear(width, 1) for _ in range(count))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p = self.router(2 * x).softmax(dim=1)
        best = F.one_hot(p.argmax(dim=1), self.count).float()
        each = torch.cat([expert(x) for expert in self.experts], dim=1)
        y = (((best - p).detach() + p) * each).sum(dim=1)
        used = best.mean(dim=0)
        return y, self.count * (used * p.mean(dim=0)).sum(), used


def seasons(seed: int, batch: int = 64) -> Task:
    """A number by another rule in each of three seasons."""
    ways = 2 * F.normalize(torch.randn(3, 5, generator=drawn_once(seed, 9191)), dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 5, generator=random)
        at = (x[:, 0] > -0.4).long() + (x[:, 0] > 0.4).long()
        return x, (x * ways[at]).sum(dim=1) + 1.5 * (at - 1)

    return Task(seed, draw, F.mse_loss)


def routed(seed: int, balance: float, lean: float = 0.0, offset: float = 0.0) -> Program:
    """`lean` is put on the bias of the router; `offset` is added to what the router reads, as of a raw column."""
    model, task = Experts(), seasons(seed)
    with torch.no_grad():
        model.router.bias[1] += lean
    model.router.register_forward_pre_hook(lambda _, inputs: (inputs[0] + offset,))

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out, load, _ = model(batch[0])
        return F.mse_loss(out, batch[1]) + balance * load

    def share() -> float:
        with torch.no_grad():
            return float(model(task.aside()[0])[2].max())

    score = held_out(model, seasons(seed, 256), lambda o, y: F.mse_loss(o[0], y))
    optimizer = adamw(model.parameters(), lr=2e-2)
    return study(model, task, optimizer, steps=120, loss_of=loss_of, score=score, facts={"largest share": share})


even = zoo.healthy("daily-seasons-balance-0.1", lambda s: routed(s, 0.1))
for name, options in (
    ("router-leans", {"balance": 0.1, "lean": 25.0}),
    ("router-reads-raw-columns", {"balance": 0.1, "offset": 300.0}),
):
    zoo.sick(
        f"daily-seasons-{name}",
        lambda s, options=options: routed(s, **options),
        harmed(measured("largest share", above=0.9), worse=1.2),
        "router_collapse",
        "DEAD",
        *(("input_scales",) if "offset" in options else ()),
        layer=("router", *(f"experts.{i}" for i in range(3))),
        also={*BROKEN, "never_moves", "DISCONNECTED", "only_decay", "detached", "loss_grows"},
        control=even,
    )
zoo.healthy("daily-seasons-balance-0.3", lambda s: routed(s, 0.3))

# --- embeddings


class Bag(nn.Module):
    """The mean of all words, two layers."""

    def __init__(self, words: int = 50) -> None:
        super().__init__()
        self.words, self.deep = nn.Embedding(words, 16), mlp([16, 32, 5], nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        return self.deep(self.words(x).mean(dim=1))


def old_list(seed: int, known: int) -> Program:
    """Words beyond a list of so many `known` ones become the last of the list."""
    model, task = Bag(), tweets(seed).mapped(lambda x: x.clamp(max=known - 1))
    x, y = task.aside()
    facts = {"share of the top row": top_row(model.words, lambda: F.cross_entropy(model(x), y))}
    return study(model, task, adamw(model.parameters(), lr=1e-2), steps=80, facts=facts)


def guests(seed: int, share: float) -> Program:
    """People without an account are all person 0."""
    model, random = Ranker(), drawn_once(seed, 9192)

    def login(x: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        away = torch.rand(len(x[0]), generator=random) < share
        return x[0].masked_fill(away, 0), x[1], x[2]

    task = rides(seed).mapped(login)
    x, y = task.aside()
    facts = {"share of the top row": top_row(model.person, lambda: ranked(model(*x), y))}
    return study(model, task, adamw(model.parameters(), lr=3e-2), ranked, 90, facts=facts)


ROW = {*BROKEN, "padding_labels", "input_scales", "constant_targets", "batch_size"}
for sound, fault, build, layer in (
    ("tweets-list-of-45-words", "tweets-list-of-3-words", lambda s, f: old_list(s, 3 if f else 45), "words"),
    ("rides-few-guests", "rides-nearly-all-are-guests", lambda s, f: guests(s, 0.97 if f else 0.03), "person"),
):
    beside(
        zoo,
        sound,
        fault,
        build,
        harmed(measured("share of the top row", above=0.6)),
        "embedding_row",
        "loss_stuck",
        layer=layer,
        also=ROW,
    )
zoo.healthy("daily-rides-a-fifth-are-guests", lambda s: guests(s, 0.2))
zoo.healthy("daily-tweets-list-of-42-words", lambda s: old_list(s, 42))

# --- batches


def rough_yields(seed: int, batch: int) -> tuple[nn.Module, Task, Callable[..., Tensor]]:
    """Yields that are mostly weather."""
    random = drawn_once(seed, 9193)
    task = yields(seed, batch).changed(lambda x, y: (x, y + 5 * torch.randn(y.shape, generator=random)))
    return mlp([8, 24, 1], nn.GELU), task, of_row


def careless(seed: int, batch: int) -> tuple[nn.Module, Task, Callable[..., Tensor]]:
    """A third of the marks on crates are wrong."""
    random = drawn_once(seed, 9194)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wrong = (torch.rand(y.shape, generator=random) < 0.35).float()
        return x, (y - wrong).abs()

    return mlp([12, 32, 6], nn.Tanh), crates(seed, batch=batch).changed(change), bce


for name, make, big, small, rate, fall in (
    ("rough-yields", rough_yields, 256, 2, 0.02, 0.02),
    ("careless-crates", careless, 256, 1, 0.5, 0.01),
):
    wide = zoo.healthy(f"daily-{name}-batches-of-{big}", noisy(make, big, rate, 100), learns(fall))
    zoo.sick(
        f"daily-{name}-batches-of-{small}",
        noisy(make, small, rate, 100),
        broken(measured("noise scale over batch", above=5.0), less=0.5),
        "batch_size",
        "UNSTABLE",
        "rate_too_high",
        also={*BROKEN, "loss_stuck", "bad_batch"},
        control=wide,
    )
zoo.healthy(
    "daily-clear-yields-batches-of-8",
    noisy(lambda s, b: (mlp([8, 32, 1], nn.GELU), yields(s, b), of_row), 8, 0.01, 110),
)

# --- policies

COLLAPSED = ("policy_entropy_collapse", "EXPLORATION", "ENTROPY_COLLAPSE")


def entropy_of(logp: Tensor) -> Tensor:
    return -(logp.exp() * logp).sum(dim=-1).mean()


def missed(logits: Tensor, pay: Tensor) -> Tensor:
    """How much less than the best answer the policy earns on average."""
    return (pay.max(dim=1).values - (logits.softmax(dim=1) * pay).sum(dim=1)).mean()


class ActorCritic(nn.Module):
    """A body for both, logits and a value."""

    def __init__(self, actions: int = 5) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(8, 40), nn.Linear(40, actions), nn.Linear(40, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.body(x))
        return self.actor(h), self.critic(h).squeeze(-1)


def advantage(seed: int, *, bonus: float = 0.02, rate: float = 8e-3, steps: int = 100) -> Program:
    """An actor and a critic that learn from each answer; the `bonus` is for entropy."""
    model, log, random = ActorCritic(), Log(), torch.Generator().manual_seed(seed + 3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        logits, value = model(batch[0])
        logp = logits.log_softmax(dim=1)
        pick = torch.multinomial(logp.detach().exp(), 1, generator=random)
        reward = batch[1].gather(1, pick).squeeze(1)
        log(entropy=entropy_of(logp.detach()).item(), reward=reward.mean().item(), reward_std=reward.std().item())
        gain = (reward - value).detach()
        actor = -(gain * logp.gather(1, pick).squeeze(1)).mean() - bonus * entropy_of(logp)
        return actor + 0.5 * F.mse_loss(value, reward)

    score = held_out(model, questions(seed, batch=256), lambda out, pay: missed(out[0], pay))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    return study(model, questions(seed), optimizer, steps=steps, loss_of=loss_of, score=score, log=log)


calm = zoo.healthy("daily-questions-actor-and-critic", lambda s: advantage(s))
zoo.healthy("daily-questions-bonus-0.05", lambda s: advantage(s, bonus=0.05))
for name, options in (("bonus-subtracted", {"bonus": -1.0}), ("rate-0.3", {"rate": 0.3})):
    zoo.sick(
        f"daily-questions-{name}",
        lambda s, options=options: advantage(s, **options),
        harmed(logged("entropy", below=0.25)),
        *COLLAPSED,
        "rate_too_high",
        also={*BROKEN, "no_reward_variance", "SATURATION", "first_loss_high"},
        control=calm,
    )


def ppo(seed: int, *, epochs: int = 4, rollouts: int = 20, rate: float = 5e-3, stale: bool = False) -> Program:
    """Walks in a corridor, then learns in epochs; `stale` compares with the first policy of all."""
    model, log = ActorCritic(2), Log()
    first = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    random, losses = torch.Generator().manual_seed(seed + 1), []

    def gains(reward: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """What is still to come, and how much better it is than was thought."""
        later, back = torch.zeros(reward.shape[1]), []
        for each in reward.flip(0):
            later = each + 0.95 * later
            back.append(later)
        to_come = torch.stack(back[::-1])
        gain = to_come - value
        return to_come, (gain - gain.mean()) / (gain.std() + 1e-8)

    def learn(state: Tensor, action: Tensor, old: Tensor, to_come: Tensor, gain: Tensor, reward: Tensor) -> None:
        logits, value = model(state)
        logp = logits.log_softmax(dim=-1)
        ratio = (logp.gather(-1, action[..., None]).squeeze(-1) - old).exp()
        loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() + 0.1 * F.mse_loss(value, to_come)
        loss = loss - 0.01 * entropy_of(logp)
        log(
            entropy=entropy_of(logp.detach()).item(),
            approx_kl=((ratio - 1) - ratio.log()).mean().item(),
            clip_fraction=((ratio - 1).abs() > 0.2).float().mean().item(),
            reward=reward.sum(dim=0).mean().item(),
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())

    def run() -> None:
        for _ in range(rollouts):
            state, action, reward = walk(model, random, 48, lambda out: out[0])
            with torch.no_grad():
                logits, value = model(state)
                old = (first(state)[0] if stale else logits).log_softmax(dim=-1)
                old = old.gather(-1, action[..., None]).squeeze(-1)
            to_come, gain = gains(reward, value)
            for _epoch in range(epochs):
                learn(state, action, old, to_come, gain, reward)

    score = far_from_goal(model, seed, lambda out: out[0])
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


near = zoo.healthy("daily-corridor-ppo", lambda s: ppo(s))
zoo.healthy("daily-corridor-ppo-two-epochs", lambda s: ppo(s, epochs=2, rollouts=40))
for name, options in (
    ("sixty-epochs-at-0.1", {"epochs": 60, "rollouts": 2, "rate": 0.1}),
    ("compares-with-the-first-policy", {"stale": True}),
):
    zoo.sick(
        f"daily-corridor-ppo-{name}",
        lambda s, options=options: ppo(s, **options),
        harmed(logged("clip_fraction", above=0.25), worse=1.1),
        "clip_fraction_high",
        "kl_runaway",
        *(("rate_too_high",) if "rate" in options else ()),
        also={*BROKEN, "rate_too_high", "same_batch", *COLLAPSED, "loss_grows", "first_loss_high", "batch_size"},
        control=near,
    )


def preferred(seed: int, *, weight: float = 1.0, rate: float = 5e-3) -> Program:
    """A model of signs, trained on a diary, is tuned to signs that please, held near what it was by the divergence."""
    model, log, random = Writer(10, 24), Log(), torch.Generator().manual_seed(seed + 4)
    fit(model, diary(seed, count=10), torch.optim.Adam(model.parameters(), 1e-2), 25, token_loss).run()
    model.zero_grad(set_to_none=True)
    before = copy.deepcopy(model).requires_grad_(False)
    pay = torch.rand(10, generator=drawn_once(seed, 9195))
    optimizer, losses = adamw(model.parameters(), lr=rate), []

    @torch.no_grad()
    def sample(count: int, source: torch.Generator) -> Tensor:
        text = torch.randint(10, (count, 1), generator=source)
        for _ in range(5):
            p = model(text)[:, -1].softmax(dim=-1)
            text = torch.cat([text, torch.multinomial(p, 1, generator=source)], dim=1)
        return text

    def parts(text: Tensor) -> tuple[Tensor, Tensor]:
        logp, ref = (m(text[:, :-1]).log_softmax(dim=-1) for m in (model, before))
        return logp, (logp.exp() * (logp - ref)).sum(dim=-1).mean()

    def run() -> None:
        for _ in range(50):
            text = sample(48, random)
            logp, kl = parts(text)
            reward = pay[text[:, 1:]].mean(dim=1)
            log(
                kl=kl.item(),
                entropy=entropy_of(logp.detach()).item(),
                reward=reward.mean().item(),
                reward_std=reward.std().item(),
            )
            chosen = logp.gather(2, text[:, 1:, None]).squeeze(2).sum(dim=1)
            loss = -(3 * (reward - reward.mean()) * chosen).mean() + weight * kl
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())

    def score() -> float:
        text = sample(256, torch.Generator().manual_seed(seed + 5))
        with torch.no_grad():
            return 1 - pay[text[:, 1:]].mean().item() + 0.2 * parts(text)[1].item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


held = zoo.healthy("daily-signs-held-near", lambda s: preferred(s, weight=0.5), learns(0.05))
zoo.healthy("daily-signs-held-nearer", lambda s: preferred(s, weight=0.8), learns(0.03))
for name, options in (
    ("divergence-of-wrong-sign", {"weight": -0.5}),
    ("divergence-left-out", {"weight": 0.0}),
):
    zoo.sick(
        f"daily-signs-{name}",
        lambda s, options=options: preferred(s, **options),
        harmed(logged("kl", above=1.2), worse=1.2),
        "kl_runaway",
        "policy_entropy_collapse",
        also={*BROKEN, *COLLAPSED, "no_reward_variance", "rate_too_high"},
        control=held,
    )
