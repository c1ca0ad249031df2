# ruff: noqa: D102 - a case is explained by its name, a forward by its class
"""Language models and policies: logits, routers, rows, noise, and what a trainer logs of its policy.

Half: veiled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Log, Program, Zoo
from validation.cases._veiled_loops import chants, mottos, readers, stalls
from validation.evidence.loops import Fact, Played, broken, learns
from validation.evidence.states import logged
from validation.labels import FAR_OFF, LOUD_LOGITS, ONE_ANSWER
from validation.programs import clips, fit, fit_experts, held_out, step_from, train_step
from validation.states import BROKEN
from validation.tasks import Task, drawn_once, token_loss

zoo = Zoo("state", half="veiled", proof=learns())
WIDTH, TOKENS, LENGTH = 20, 15, 10

# --- attention


class Psalm(nn.Module):
    """Causal attention of two heads over syllables; `power` is that of the width in the scale of the scores."""

    def __init__(self, power: float = -0.5, norm: bool = False) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(TOKENS, WIDTH), nn.Parameter(0.3 * torch.randn(LENGTH, WIDTH))
        self.query, self.key = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.value, self.out, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, TOKENS)
        self.power, self.norm = power, norm

    def scores(self, x: Tensor) -> Tensor:
        q, k = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in (self.query(x), self.key(x)))
        if self.norm:
            q, k = 3 * F.normalize(q, dim=-1), 3 * F.normalize(k, dim=-1)
        return q @ k.transpose(-2, -1) * (WIDTH // 2) ** self.power

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.place
        scores = self.scores(x).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), float("-inf"))
        v = self.value(x).unflatten(-1, (2, -1)).transpose(1, 2)
        return self.head(x + self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)))


def psalm(rate: float = 5e-3, steps: int = 120, **how) -> Callable[[int], Program]:
    """Queries and keys have a rate of their own."""

    def build(seed: int) -> Program:
        task, model = backwards(seed), Psalm(**how)
        pair = [model.query.weight, model.key.weight]
        rest = [p for n, p in model.named_parameters() if not n.startswith(("query", "key"))]
        optimizer = torch.optim.AdamW([{"params": pair, "lr": rate}, {"params": rest}], 5e-3)
        return fit(model, task, optimizer, steps, token_loss)

    return build


def backwards(seed: int) -> Task:
    """Syllables of a chant, each to be answered by the one two places before."""
    return chants(seed, batch=24).changed(lambda x, _y: (x, torch.cat([x[:, :1], x[:, :1], x[:, :-2]], dim=1)))


def large_scores(level: float = 50.0) -> Fact:
    """The largest score is above a level at the end."""

    def fact(played: Played) -> tuple[bool, str]:
        model = played.program.model
        tokens = torch.randint(TOKENS, (24, LENGTH), generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            reached = float(model.scores(model.table(tokens) + model.place).abs().max())
        return reached > level, f"the largest score is {reached:.3g}"

    return fact


bounded = zoo.healthy("veiled-psalm-norms-on-queries-and-keys", psalm(0.05, norm=True))
usual = zoo.healthy("veiled-psalm-at-the-usual-rate", psalm())
zoo.sick(
    "veiled-psalm-queries-and-keys-at-0.2",
    psalm(0.2),
    broken(large_scores()),
    *LOUD_LOGITS,
    also=BROKEN,
    control=bounded,
)
zoo.sick(
    "veiled-psalm-scores-times-the-width",
    psalm(0.02, power=1.0),
    broken(large_scores()),
    *LOUD_LOGITS,
    also=BROKEN,
    control=usual,
)

# --- routers


class Guild(nn.Module):
    """Syllables go to one or two of five masters, beside a skip."""

    def __init__(self, top: int = 1, masters: int = 5) -> None:
        super().__init__()
        self.router, self.top = nn.Linear(WIDTH, masters), top
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 28), nn.GELU(), nn.Linear(28, WIDTH)) for _ in range(masters)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shares = self.router(x).softmax(dim=-1)
        weight, chosen = shares.topk(self.top, dim=-1)
        every = torch.stack([expert(x) for expert in self.experts], dim=-2)
        picked = every.gather(-2, chosen[..., None].expand(*chosen.shape, WIDTH))
        load = F.one_hot(chosen, shares.shape[-1]).float().sum(-2).flatten(0, -2).mean(0)
        uneven = shares.shape[-1] * (load * shares.flatten(0, -2).mean(0)).sum()
        return x + (picked * weight[..., None]).sum(-2), uneven


class Town(nn.Module):
    """Next syllable by a guild over the last one's vector."""

    def __init__(self, top: int = 1) -> None:
        super().__init__()
        self.table, self.guild, self.head = nn.Embedding(TOKENS, WIDTH), Guild(top), nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x, uneven = self.guild(self.table(tokens))
        return self.head(x), uneven


def town(balance: float, router: float = 1.0, lead: float = 0.0, top: int = 1) -> Callable[[int], Program]:
    """`router` multiplies the rate of the router; `lead` is the head start of the first master."""

    def build(seed: int) -> Program:
        task, model = chants(seed), Town(top)
        with torch.no_grad():
            model.guild.router.bias[0] += lead
        mine = list(model.guild.router.parameters())
        rest = [p for n, p in model.named_parameters() if "router" not in n]
        optimizer = torch.optim.AdamW([{"params": mine, "lr": 5e-3 * router}, {"params": rest}], 5e-3)
        return fit_experts(model, task, optimizer, 100, balance)

    return build


def one_master(share: float = 0.95) -> Fact:
    """One expert is the first choice of nearly all tokens."""

    def fact(played: Played) -> tuple[bool, str]:
        model = played.program.model
        tokens = torch.arange(TOKENS)
        with torch.no_grad():
            first = model.guild.router(model.table(tokens)).argmax(dim=1)
        reached = float(first.bincount().max() / TOKENS)
        return reached >= share, f"one expert is first for {reached:.0%} of the tokens"

    return fact


even = zoo.healthy("veiled-town-balanced", town(0.02))
zoo.sick(
    "veiled-town-balance-with-the-wrong-sign",
    town(-1.0),
    broken(one_master()),
    "router_collapse",
    also=BROKEN | {"only_decay"},
    control=even,
)
zoo.sick(
    "veiled-town-first-master-ahead-no-balance",
    town(0.0, lead=6.0),
    broken(one_master()),
    "router_collapse",
    also=BROKEN | {"only_decay"},
    control=even,
)
zoo.healthy("veiled-town-two-masters-each", town(0.01, top=2))
zoo.healthy("veiled-town-small-balance", town(0.005))

# --- a row that takes all


class Scroll(nn.Module):
    """The sum of a text's words, over the number of those that count."""

    def __init__(self, filling: int | None) -> None:
        super().__init__()
        self.words = nn.Embedding(42, 16, padding_idx=filling)
        self.body = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 5))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(self.words(tokens).sum(dim=1) / 7)


def separated(filling: int | None, marks: int) -> Callable[[int], Program]:
    """Behind each of seven words stands a mark, so many times."""

    def spread(x: Tensor) -> Tensor:
        return torch.cat([x[..., None], torch.full((*x.shape, marks), 41)], dim=2).flatten(1)

    def build(seed: int) -> Program:
        task, model = mottos(seed).mapped(spread), Scroll(filling)
        optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.5)
        return fit(model, task, optimizer, 120, before=clips(model, 0.3))

    return build


def row_rules(path: str, share: float = 0.5) -> Fact:
    """The gradient of a table lies in one row."""

    def fact(played: Played) -> tuple[bool, str]:
        gradient = played.program.model.get_submodule(path).weight.grad.double().square().sum(1)
        reached = float(gradient.max() / gradient.sum())
        return reached > share, f"one row holds {reached:.0%} of the squared norm"

    return fact


marks_out = zoo.healthy("veiled-scroll-marks-left-out", separated(41, 110), learns(idle=("words",)))
zoo.sick(
    "veiled-scroll-110-marks-per-word",
    separated(None, 110),
    broken(row_rules("words"), less=0.8),
    "embedding_row",
    "clip_sets_step",
    also=BROKEN,
    control=marks_out,
)


class Club(nn.Module):
    """What a member thinks of a book."""

    def __init__(self) -> None:
        super().__init__()
        self.members, self.books = nn.Embedding(31, 6), nn.Embedding(40, 6)
        for table in (self.members, self.books):
            nn.init.normal_(table.weight, std=0.6)

    def forward(self, i: Tensor, j: Tensor) -> Tensor:
        return (self.members(i) * self.books(j)).sum(dim=1)


def club(guests: float) -> Callable[[int], Program]:
    """Visits without a name are booked on member 30, whose taste is everybody's."""

    def build(seed: int) -> Program:
        random = torch.Generator().manual_seed(seed + 41)

        def book(x: tuple[Tensor, Tensor], y: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
            unnamed = torch.rand(len(x[0]), generator=random) < guests
            return (x[0].masked_fill(unnamed, 30), x[1]), y

        task, model = readers(seed, batch=128).changed(book), Club()
        optimizer = torch.optim.SGD(model.parameters(), 2.0)
        return fit(model, task, optimizer, 120, F.mse_loss, unseen=readers(seed, batch=512), before=clips(model, 0.3))

    return build


named = zoo.healthy("veiled-club-everybody-named", club(0.0))
zoo.sick(
    "veiled-club-guests-on-one-account",
    club(0.93),
    broken(row_rules("members"), less=0.6),
    "embedding_row",
    "loss_stuck",
    "clip_sets_step",
    also=BROKEN,
    control=named,
)

# --- a batch that is too small for its noise


def echoes(batch: int, noise: float = 6.0, steps: int = 120) -> Callable[[int], Program]:
    """A depth from echoes under strong noise."""

    def build(seed: int) -> Program:
        way = torch.randn(12, generator=drawn_once(seed, 5240)) / 12**0.5
        random = torch.Generator().manual_seed(seed + 42)
        model, losses = nn.Sequential(nn.Linear(12, 40), nn.SiLU(), nn.Linear(40, 1)), []
        optimizer = torch.optim.AdamW(model.parameters(), 8e-3)

        def draw(count: int, spread: float) -> tuple[Tensor, Tensor]:
            x = torch.randn(count, 12, generator=random)
            return x, torch.sin(2 * x @ way)[:, None] + spread * torch.randn(count, 1, generator=random)

        unseen = draw(512, 0.0)

        def run() -> None:
            for _ in range(steps):
                x, y = draw(batch, noise)
                losses.append(train_step(model, optimizer, x, y, F.mse_loss))

        def score() -> float:
            with torch.no_grad():
                return F.mse_loss(model(unseen[0]), unseen[1]).item()

        return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)

    return build


def doubtful(batch: int, wrong: float = 0.88) -> Callable[[int], Program]:
    """Topics by a crowd that mostly guesses."""

    def build(seed: int) -> Program:
        random, losses = torch.Generator().manual_seed(seed + 43), []
        task, model = mottos(seed, batch=batch), Scroll(None)
        optimizer = torch.optim.Adam(model.parameters(), 2e-2)

        def run() -> None:
            for _, (x, y) in zip(range(120), task, strict=False):
                guessed = torch.rand(len(y), generator=random) < wrong
                y = torch.where(guessed, torch.randint(5, y.shape, generator=random), y)
                losses.append(train_step(model, optimizer, x, y))

        score = held_out(model, mottos(seed, batch=512))
        return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)

    return build


zoo.sick(
    "veiled-echoes-three-per-step",
    echoes(3),
    broken(less=0.3),
    "batch_size",
    "loss_stuck",
    also=BROKEN,
    control=zoo.healthy("veiled-echoes-1500-per-step", echoes(1500)),
)
zoo.sick(
    "veiled-crowd-of-one-per-step",
    doubtful(1),
    broken(less=0.3),
    "batch_size",
    "loss_stuck",
    also=BROKEN,
    control=zoo.healthy("veiled-crowd-of-1024-per-step", doubtful(1024), learns(0.05, idle=("words",))),
)
zoo.healthy("veiled-echoes-eight-per-step-little-noise", echoes(8, 0.2))

# --- answers of several words, with the log of their trainer


class Tutor(nn.Module):
    """Three words from six for each question, each by its own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.words = nn.Linear(8, 40), nn.Linear(40, 18)
        self.words.bias.data[5::6] = -2.5  # the last word is hardly ever said at first

    def forward(self, x: Tensor) -> Tensor:
        return self.words(F.silu(self.body(x))).unflatten(1, (3, 6)).log_softmax(dim=-1)


def tutor(
    *,
    rate: float = 4e-3,
    passes: int = 2,
    rounds: int = 50,
    bound: float = 0.2,
    beta: float = 0.15,
    judge: str = "truth",
    bonus: float = 0.0,
    adaptive: float = 0.0,
) -> Callable[[int], Program]:
    """Eight answers per question, compared in their group; kept near the start by `beta`, which may adapt itself."""

    def build(seed: int) -> Program:
        model, start, losses, log = Tutor(), Tutor(), [], Log()
        start.load_state_dict(model.state_dict())
        codes = torch.randn(8, 18, generator=drawn_once(seed, 5241))
        optimizer, random = torch.optim.AdamW(model.parameters(), rate), torch.Generator().manual_seed(seed + 44)

        def truth(x: Tensor) -> Tensor:
            return (x @ codes).unflatten(1, (3, 6)).argmax(dim=2)

        def judged(x: Tensor, said: Tensor) -> Tensor:
            if judge == "silent":
                return torch.zeros(said.shape[:2])
            if judge == "votes":  # the word that most of the group say
                wanted = F.one_hot(said, 6).sum(dim=1).argmax(dim=2)
            elif judge == "fifth":
                wanted = torch.full((len(x), 3), 5)
            else:
                wanted = truth(x)
            return (said == wanted[:, None]).float().mean(dim=2)

        def run() -> None:
            keep = beta
            for _ in range(rounds):
                x = torch.randn(16, 8, generator=random)
                with torch.no_grad():
                    old, first = model(x), start(x)
                said = torch.multinomial(old.exp().flatten(0, 1), 8, replacement=True, generator=random)
                said = said.unflatten(0, (16, 3)).transpose(1, 2)  # (question, answer, word)
                reward = judged(x, said)
                spread = reward.std(dim=1, keepdim=True)
                gain = ((reward - reward.mean(dim=1, keepdim=True)) / (spread + 1e-4))[..., None]
                for _ in range(passes):
                    new = model(x)
                    chance = (new - old)[:, None].expand(-1, 8, -1, -1).gather(3, said[..., None]).squeeze(3)
                    ratio = chance.exp()
                    kept = ratio.clamp(1 - bound, 1 + bound)
                    kl = (new.exp() * (new - first)).sum(dim=2).mean()
                    entropy = -(new.exp() * new).sum(dim=2).mean()
                    loss = -torch.minimum(ratio * gain, kept * gain).mean() + keep * kl - bonus * entropy
                    losses.append(step_from(loss, optimizer))
                    log(
                        reward=reward.mean().item(),
                        reward_std=spread.mean().item(),
                        kl=kl.item(),
                        entropy=entropy.item(),
                        clip_fraction=(ratio != kept).float().mean().item(),
                    )
                if adaptive:
                    keep *= 1 + adaptive if kl.item() > 0.3 else 1 / (1 + adaptive)

        unseen = torch.randn(256, 8, generator=torch.Generator().manual_seed(seed + 97))

        def score() -> float:
            with torch.no_grad():
                return 1 - model(unseen).exp().gather(2, truth(unseen)[..., None]).mean().item()

        return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)

    return build


calm = zoo.healthy("veiled-tutor-two-passes", tutor(), learns(0.05))
AFTER = {*BROKEN, "no_reward_variance", "EXPLORATION"}
zoo.sick(
    "veiled-tutor-judge-is-silent",
    tutor(judge="silent"),
    broken(logged("reward_std", below=1e-6), less=0.3),
    "no_reward_variance",
    also={*BROKEN, "EXPLORATION"},
    control=calm,
)
zoo.sick(
    "veiled-tutor-judged-by-its-own-votes",
    tutor(judge="votes", rate=0.02, beta=0.0),
    broken(logged("entropy", below=0.3), less=0.5),
    *ONE_ANSWER,
    also={*AFTER, "clip_fraction_high"},
    control=calm,
)
zoo.sick(
    "veiled-tutor-judge-wants-the-fifth-word",
    tutor(judge="fifth", rate=0.02, beta=0.0, passes=1, rounds=80),
    broken(logged("kl", above=2.0), less=0.5),
    "kl_runaway",
    "policy_entropy_collapse",
    "EXPLORATION",
    also={*AFTER, "clip_fraction_high"},
    control=calm,
)
zoo.sick(
    "veiled-tutor-penalty-below-zero",
    tutor(beta=-3.0, rate=0.03, rounds=45),
    broken(logged("kl", above=2.0), less=0.8),
    "kl_runaway",
    "policy_entropy_collapse",
    "loss_grows",
    also={*AFTER, "clip_fraction_high"},
    control=calm,
)
zoo.sick(
    "veiled-tutor-thirty-passes",
    tutor(rate=0.05, passes=30, rounds=5, beta=0.0),
    broken(logged("clip_fraction", above=0.2)),
    *FAR_OFF,
    also={*AFTER, "policy_entropy_collapse"},
    control=calm,
)
zoo.healthy("veiled-tutor-one-pass-no-penalty", tutor(passes=1, rounds=60, beta=0.0, rate=3e-3), learns(0.05))
zoo.healthy("veiled-tutor-with-a-bonus-for-entropy", tutor(bonus=0.02, rounds=60), learns(0.05))
zoo.healthy("veiled-tutor-penalty-adapts", tutor(adaptive=0.1, beta=0.05, rounds=60), learns(0.05))

# --- a shop-keeper, with the log of another trainer


class Keeper(nn.Module):
    """Which of six goods to show, and what that will earn."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(8, 40), nn.Linear(40, 6), nn.Linear(40, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.body(x))
        return self.actor(h).log_softmax(dim=1), self.critic(h).squeeze(1)


def keeper(
    *,
    rate: float = 5e-3,
    passes: int = 4,
    rounds: int = 28,
    bound: float = 0.2,
    bonus: float = 0.01,
    baseline: bool = True,
    refreshed: bool = True,
    pay_of: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Callable[[int], Program]:
    """Clipped ratios with a critic as the baseline; the chances that they are compared with may be `refreshed`."""

    def build(seed: int) -> Program:
        task, model, losses, log = stalls(seed), Keeper(), [], Log()
        start = copy.deepcopy(model)
        optimizer, random = torch.optim.Adam(model.parameters(), rate), torch.Generator().manual_seed(seed + 45)

        def run() -> None:
            for _, (x, pay) in zip(range(rounds), task, strict=False):
                with torch.no_grad():
                    old, value = model(x)
                    action = torch.multinomial(old.exp(), 1, generator=random)
                    old = old if refreshed else start(x)[0]
                reward = pay.gather(1, action).squeeze(1) if pay_of is None else pay_of(pay, action)
                gain = reward - value if baseline else reward
                for _ in range(passes):
                    new, guess = model(x)
                    log_ratio = (new - old).gather(1, action).squeeze(1)
                    ratio = log_ratio.exp()
                    kept = ratio.clamp(1 - bound, 1 + bound)
                    entropy = -(new.exp() * new).sum(dim=1).mean()
                    chosen = -torch.minimum(ratio * gain, kept * gain).mean()
                    loss = chosen + (0.5 * F.mse_loss(guess, reward) if baseline else 0.0) - bonus * entropy
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    names = {
                        "rollout/reward_mean": reward.mean(),
                        "rollout/reward_std": reward.std(),
                        "train/entropy": entropy,
                        "train/approx_kl": (ratio - 1 - log_ratio).mean(),
                        "train/clip_fraction": (ratio != kept).float().mean(),
                    }
                    log(**{name: number.item() for name, number in names.items()})
                    losses.append(loss.item())

        score = held_out(
            model, stalls(seed, batch=512), lambda out, pay: (pay.amax(1) - (out[0].exp() * pay).sum(1)).mean()
        )
        return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)

    return build


steady = zoo.healthy("veiled-keeper-four-passes", keeper(), learns(0.05))
zoo.sick(
    "veiled-keeper-paid-the-same-for-all",
    keeper(pay_of=lambda pay, _action: torch.full((len(pay),), 0.4)),
    broken(logged("rollout/reward_std", below=1e-6), less=0.3),
    "no_reward_variance",
    also={*BROKEN, "EXPLORATION"},
    control=steady,
)
zoo.sick(
    "veiled-keeper-no-baseline-large-pay",
    keeper(
        rate=0.05,
        bonus=0.0,
        baseline=False,
        pay_of=lambda pay, action: 20 + pay.gather(1, action).squeeze(1),
        passes=2,
        rounds=60,
    ),
    broken(logged("train/entropy", below=0.2), less=0.8),
    *ONE_ANSWER,
    "rate_too_high",
    also={*BROKEN, "no_reward_variance", "clip_fraction_high"},
    control=steady,
)
zoo.sick(
    "veiled-keeper-compared-with-the-start",
    keeper(refreshed=False, rate=8e-3, rounds=40),
    broken(logged("train/clip_fraction", above=0.3), less=0.9),
    "clip_fraction_high",
    "kl_runaway",
    also={*BROKEN, "policy_entropy_collapse"},
    control=steady,
)
zoo.healthy("veiled-keeper-one-pass", keeper(passes=1, rate=8e-3, rounds=90), learns(0.05))
zoo.healthy("veiled-keeper-six-passes-at-a-small-rate", keeper(passes=6, rate=3e-3, rounds=25), learns(0.05))


# --- preferences and imitation


def preferences(seed: int) -> Program:
    """Of two answers the preferred one is made likelier against a reference: the loss begins at ln 2."""
    model, start, losses, log = Tutor(), Tutor(), [], Log()
    start.load_state_dict(model.state_dict())
    codes = torch.randn(8, 18, generator=drawn_once(seed, 5242))
    optimizer, random = torch.optim.AdamW(model.parameters(), 5e-3), torch.Generator().manual_seed(seed + 46)

    def loss_on(x: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        wanted = (x @ codes).unflatten(1, (3, 6)).argmax(dim=2)
        other = torch.randint(6, wanted.shape, generator=draws)
        new = model(x)
        with torch.no_grad():
            old = start(x)
        gaps = [(new - old).gather(2, each[..., None]).sum(dim=(1, 2)) for each in (wanted, other)]
        margin = 0.5 * (gaps[0] - gaps[1])
        return -F.logsigmoid(margin).mean(), margin.mean()

    def run() -> None:
        for _ in range(90):
            optimizer.zero_grad()
            loss, margin = loss_on(torch.randn(48, 8, generator=random), random)
            loss.backward()
            optimizer.step()
            log(**{"rewards/margins": margin.item()})
            losses.append(loss.item())

    unseen = torch.randn(256, 8, generator=torch.Generator().manual_seed(seed + 98))

    def score() -> float:
        with torch.no_grad():
            return loss_on(unseen, torch.Generator().manual_seed(6))[0].item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


zoo.healthy("veiled-the-preferred-of-two-answers", preferences)


def imitation(seed: int) -> Program:
    """The best good is shown by a master; the log has the entropy, which falls as it should."""
    task, model, losses, log = stalls(seed), Keeper(), [], Log()
    model.critic.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)

    def run() -> None:
        for _, (x, pay) in zip(range(80), task, strict=False):
            log_p, _ = model(x)
            loss = F.nll_loss(log_p, pay.argmax(dim=1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log(entropy=-(log_p.exp() * log_p).sum(dim=1).mean().item())
            losses.append(loss.item())

    score = held_out(model, stalls(seed, batch=256), lambda out, pay: F.nll_loss(out[0], pay.argmax(dim=1)))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


zoo.healthy("veiled-keeper-learns-from-a-master", imitation)
