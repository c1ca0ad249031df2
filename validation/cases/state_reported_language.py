# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Language models and policies that people reported by their own numbers or their logs, and what helped.

Half: reported.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Log, Program, Zoo
from validation.cases._common_loops import study
from validation.cases._everyday_loops import measured
from validation.cases._plain_loops import harmed
from validation.cases._reported_policies import ActorCritic
from validation.cases._reported_states import MADE, Nano, adam, adamw, dense, faults, letters, mails, rents
from validation.cases.state_common_language import aged, noisy, top_row
from validation.cases.state_everyday_language import moments_lag
from validation.evidence.loops import broken, learns, not_finite_in, nothing_comes
from validation.evidence.states import logged
from validation.labels import COLLAPSED, LOUD_LOGITS, NOISY, OUTDATED
from validation.policies import entropy_of, of_groups, of_ratios
from validation.programs import fit, held_out
from validation.states import BROKEN
from validation.tasks import Task, drawn_once, token_loss

zoo = Zoo("state", half="reported", proof=learns(0.15))
ANY = {*BROKEN, "loss_grows", "first_loss_high", "clip_sets_step", "never_moves", "only_decay"}

# --- the second moment is out of date

# arXiv 2506.04805 and the many threads that set beta2 to 0.95: with a long memory the second moment answers too late
# when gradients grow, and the loss spikes.
for name, low, rate, long in (("tremors", 0.003, 2e-2, 0.9999), ("rents", 0.003, 1e-2, 0.9999)):
    make = lambda s, name=name: (MADE[name][0](), MADE[name][1](s), MADE[name][2])  # noqa: E731
    stage = lambda x, y, low=low: (x, y, low)  # noqa: E731
    zoo.sick(
        f"reported-{name}-loss-weight-rises-beta2-{long}",
        aged(make, stage, long, rate),
        moments_lag,
        *OUTDATED,
        "rate_too_high",
        also={*ANY, "bad_batch"},
        control=zoo.healthy(f"reported-{name}-loss-weight-rises", aged(make, stage, 0.95, rate), learns(0.05)),
    )

# --- attention


def marks(seed: int, length: int = 12, batch: int = 48) -> Task:
    """Which of eight letters is marked; the answer is asked for at the last place."""
    name = torch.randperm(8, generator=drawn_once(seed, 13150))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(8, (batch, length), generator=random)
        at = torch.randint(length, (batch, 1), generator=random)
        y = text.gather(1, at)[:, 0]
        return text + 8 * F.one_hot(at[:, 0], length), name[y]

    return Task(seed, draw, at_last)


def at_last(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, -1], y)


def looked(seed: int, *, fast: float = 5e-3, times: float = 1.0, **look: Any) -> Program:
    """Queries and keys are drawn so many `times` as large, and learn at the rate `fast`."""
    model, task = Nano(**look), marks(seed)
    some = [p for look in model.looks for part in (look.q, look.k) for p in part.parameters()]
    with torch.no_grad():
        for p in some:
            p *= times
    rest = [p for p in model.parameters() if all(p is not other for other in some)]
    optimizer = adamw([{"params": some, "lr": fast}, {"params": rest, "lr": 5e-3}])

    def largest() -> float:
        with torch.no_grad():
            h = model.words(task.aside()[0]) + model.places[:12]
            return float(model.looks[0].logits(model.norms[0](h)).abs().max())

    return study(model, task, optimizer, at_last, 90, facts={"largest logit": largest}, clip=1.0)


# Tsinghua-MARS-Lab/OMG#8, lucidrains/imagen-pytorch#69: queries and keys grow without bounds until the run diverges.
# PAIR-code/tiny-transformers#71: attention is not divided by the root of the width; here from a wide start.
WIDE = {"heads": 1, "scale": 1.0, "times": 10.0}
for sound, fault, good, bad in (
    ("marks-one-rate", "marks-queries-at-rate-2", {}, {"fast": 2.0}),
    ("marks-divided-by-the-root", "marks-not-divided-wide-start", {"heads": 1}, WIDE),
):
    zoo.sick(
        f"reported-{fault}",
        lambda s, bad=bad: looked(s, **bad),
        harmed(measured("largest logit", above=30.0)),
        *LOUD_LOGITS,
        "SATURATION",
        "rate_too_high",
        "EXPLODING",
        "UNSTABLE",
        layer=("looks.0", "looks.0.q", "looks.0.k"),
        also=ANY,
        control=zoo.healthy(f"reported-{sound}", lambda s, good=good: looked(s, **good)),
    )
zoo.healthy("reported-marks-norm-of-queries-and-keys", lambda s: looked(s, norm=True))
zoo.healthy("reported-marks-eight-heads-two-blocks", lambda s: looked(s, heads=8, depth=2))

# --- experts


class Switch(nn.Module):
    """The best of four lines by a router; gives the answer, the balance, the share of each."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 4), nn.ModuleList(nn.Linear(6, 1) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p = self.gate(2 * x).softmax(dim=1)
        best = F.one_hot(p.argmax(dim=1), 4).float()
        each = torch.cat([expert(x) for expert in self.experts], dim=1)
        used = best.mean(dim=0)
        return (((best - p).detach() + p) * each).sum(dim=1), 4 * (used * p.mean(dim=0)).sum(), used


def plants(seed: int, batch: int = 96) -> Task:
    """A number by another rule in each of four quarters."""
    ways = 2 * F.normalize(torch.randn(4, 6, generator=drawn_once(seed, 13200)), dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 6, generator=random)
        at = 2 * (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
        return x, (x * ways[at]).sum(dim=1) + (at - 1.5)

    return Task(seed, draw, F.mse_loss)


def routed(seed: int, balance: float, lean: float = 0.0) -> Program:
    """`lean` is put on the router's bias for one expert, as after a while without balance."""
    model, task = Switch(), plants(seed)
    with torch.no_grad():
        model.gate.bias[2] += lean

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out, load, _ = model(batch[0])
        return F.mse_loss(out, batch[1]) + balance * load

    def share() -> float:
        with torch.no_grad():
            return float(model(task.aside()[0])[2].max())

    score = held_out(model, plants(seed, 256), lambda o, y: F.mse_loss(o[0], y))
    optimizer = adamw(model.parameters(), 2e-2)
    return study(model, task, optimizer, steps=120, loss_of=loss_of, score=score, facts={"largest share": share})


# pytorch/torchtitan#1246: all tokens go to one expert; nothing balances the load.
even = zoo.healthy("reported-plants-balance-0.05", lambda s: routed(s, 0.05))
zoo.sick(
    "reported-plants-no-balance-and-a-router-that-leans",
    lambda s: routed(s, 0.0, 20.0),
    harmed(measured("largest share", above=0.9), worse=1.2),
    "router_collapse",
    "DEAD",
    layer=("gate", *(f"experts.{i}" for i in range(4))),
    also={*ANY, "DISCONNECTED", "detached"},
    control=even,
)
zoo.healthy("reported-plants-balance-0.2", lambda s: routed(s, 0.2))

# --- a row of a table


class Mean(nn.Module):
    """The mean of all words, or of all places."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.words, self.deep, self.masked = nn.Embedding(40, 16), dense(16, 32, 5), masked

    def forward(self, x: Tensor) -> Tensor:
        some = (x != 0).float() if self.masked else torch.ones(x.shape)
        return self.deep((self.words(x) * some[..., None]).sum(dim=1) / some.sum(dim=1, keepdim=True))


def padded(seed: int, masked: bool, length: int = 256) -> Program:
    """Mails are padded to a length of 256, and the mean is taken over all of it."""
    model, task = Mean(masked), mails(seed).mapped(lambda x: F.pad(x, (0, length - x.shape[1])))
    x, y = task.aside()
    facts = {"share of the top row": top_row(model.words, lambda: F.cross_entropy(model(x), y))}
    return study(model, task, adam(model.parameters(), 8e-3), steps=60, facts=facts)


class Bag(nn.Module):
    """The mean of all words, two layers."""

    def __init__(self, words: int = 40) -> None:
        super().__init__()
        self.words, self.deep = nn.Embedding(words, 16), dense(16, 32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.deep(self.words(x).mean(dim=1))


def unknown(seed: int, share: float) -> Program:
    """So many of the words are not in the list, and become word 0."""
    model, out = Bag(), torch.rand(40, generator=drawn_once(seed, 13300)).argsort().argsort() < round(40 * share)
    task = mails(seed).mapped(lambda x: x.masked_fill(out[x], 0))
    x, y = task.aside()
    facts = {"share of the top row": top_row(model.words, lambda: F.cross_entropy(model(x), y))}
    return study(model, task, adam(model.parameters(), 8e-3), steps=80, facts=facts)


# Threads of padded text (discuss.pytorch.org 63634, mehdi.ghanimifard.com): the padding is read as words.
# freesunshine0316/neural-graph-to-seq-mp#17, informagi/REL#73: the list of words has other capitals than the text.
for sound, fault, build in (
    ("mails-mean-over-words", "mails-mean-over-the-padding-too", lambda s, f: padded(s, not f)),
    ("mails-a-tenth-unknown", "mails-nearly-all-unknown", lambda s, f: unknown(s, 0.93 if f else 0.1)),
):
    zoo.sick(
        f"reported-{fault}",
        lambda s, build=build: build(s, True),
        harmed(measured("share of the top row", above=0.8)),
        "embedding_row",
        "loss_stuck",
        *(("VANISHING", "SLOW") if "padding" in fault else ()),
        layer="words",
        also={*ANY, "padding_labels", "input_scales", "constant_targets", "SHORT_MEMORY", "SPECTRAL_RADIUS"},
        control=zoo.healthy(f"reported-{sound}", lambda s, build=build: build(s, False)),
    )
zoo.healthy("reported-mails-a-third-unknown", lambda s: unknown(s, 0.3))

# --- labels that are masked


def answers(seed: int, prompt: int, keep: int, guarded: bool = False) -> Program:
    """The labels of a prompt are masked, and a text is cut after so many letters."""
    model, task = Nano(), letters(seed)

    def masked(y: Tensor) -> Tensor:
        return y.masked_fill(torch.arange(14) < prompt, -100)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch[0][:, :keep], masked(batch[1])[:, :keep]
        each = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none", ignore_index=-100)
        told = (y != -100).sum()
        return each.sum() / (told.clamp_min(1) if guarded else told)

    score = held_out(model, task, lambda o, y: token_loss(o[:, 4:], y[:, 4:]))
    return study(model, task, adamw(model.parameters(), 5e-3), steps=80, loss_of=loss_of, score=score)


# huggingface/trl#6668: the length is cut so short that no label is left; the loss is NaN, or 0.0 where it is guarded.
# The collator for completions does not find its template and masks everything.
third = zoo.healthy("reported-answers-third-of-the-text", lambda s: answers(s, 4, 14))
zoo.sick(
    "reported-answers-cut-before-they-begin",
    lambda s: answers(s, 8, 8),
    harmed(not_finite_in(0.9)),
    "all_masked",
    "NUMERICAL",
    "loss_nonfinite",
    also=ANY,
    control=third,
)
zoo.sick(
    "reported-answers-template-not-found",
    lambda s: answers(s, 14, 14, True),
    harmed(nothing_comes()),
    "all_masked",
    "detached_loss",
    "DISCONNECTED",
    also={*ANY, "DISCONNECTED", "DEAD", "zero_rate", "constant_targets"},
    control=third,
)
zoo.healthy("reported-answers-most-is-prompt", lambda s: answers(s, 9, 14, True))

# --- batches


def rough(seed: int, batch: int) -> tuple[nn.Module, Task, Callable[..., Tensor]]:
    """Rents that are mostly chance."""
    random = drawn_once(seed, 13400)
    task = rents(seed, batch).changed(lambda x, y: (x, y + 5 * torch.randn(y.shape, generator=random)))
    return dense(6, 24, 1, act=nn.Tanh), task, F.mse_loss


def vague(seed: int, batch: int) -> tuple[nn.Module, Task, Callable[..., Tensor]]:
    """Faults of which half are noted wrongly."""
    random = drawn_once(seed, 13401)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.rand(y.shape, generator=random) < 0.5
        return x, torch.where(wrong, torch.randint(5, y.shape, generator=random), y)

    return dense(12, 32, 5, act=nn.Tanh), faults(seed, batch).changed(change), F.cross_entropy


# ghosthamlet/gpt2-ml-torch#19, jingyaogong/minimind#30: one row for each step at a rate that is meant for many.
for name, make, big, small, rate, fall in (
    ("rough-rents", rough, 256, 1, 0.02, 0.01),
    ("vague-faults", vague, 256, 1, 0.2, 0.05),
):
    zoo.sick(
        f"reported-{name}-batches-of-{small}",
        noisy(make, small, rate, 100),
        broken(measured("noise scale over batch", above=5.0), less=0.5),
        *NOISY,
        also={*ANY, "loss_stuck", "bad_batch"},
        control=zoo.healthy(f"reported-{name}-batches-of-{big}", noisy(make, big, rate, 100), learns(fall)),
    )
zoo.healthy(
    "reported-clear-faults-batches-of-8",
    noisy(lambda s, b: (dense(12, 32, 5, act=nn.Tanh), faults(s, b), F.cross_entropy), 8, 0.02, 110),
)


# --- policies that answer in words: a prompt of two letters, an answer of two


def asked(seed: int, learned: int) -> tuple[Nano, Tensor]:
    """A model that was trained on text, and the right answers by prompt."""
    model = Nano(10, 24, heads=2)
    fit(model, letters(seed, 10, 6, 32), adam(model.parameters(), 5e-3), learned, token_loss).run()
    model.zero_grad(set_to_none=True)
    return model, torch.randint(10, (10, 2), generator=drawn_once(seed, 13500))


def grouped(
    seed: int,
    *,
    rate: float = 4e-3,
    beta: float = 0.005,
    bonus: float = 0.3,
    warmth: float = 1.0,
    graded: bool = True,
    epochs: int = 1,
    steps: int = 90,
    pay: Callable[[Tensor], Tensor] | None = None,
    closeness: float = 0.0,
    learned: int = 12,
) -> Program:
    """Groups of sixteen answers to each prompt, rewarded against the mean of their group.

    `warmth` is that of the sampling. What is paid is the share of right letters, or what `pay` makes of an answer. The
    score is what is not paid, and `closeness` times how unlikely the answers are to the model that it began with.
    """
    model, right = asked(seed, learned)
    before, log = copy.deepcopy(model).requires_grad_(False), Log()
    random, losses = torch.Generator().manual_seed(seed + 8), []
    optimizer = adamw(model.parameters(), rate, weight_decay=0.0)

    @torch.no_grad()
    def write(prompt: Tensor, source: torch.Generator, warmth: float) -> Tensor:
        text = prompt
        for _ in range(2):
            p = (model(text)[:, -1] / warmth).softmax(dim=-1)
            text = torch.cat([text, torch.multinomial(p, 1, generator=source)], dim=1)
        return text

    def prompts(count: int, source: torch.Generator) -> Tensor:
        return torch.randint(10, (count, 2), generator=source)

    def earned(text: Tensor) -> Tensor:
        if pay is not None:
            return pay(text)
        return (text[:, 2:] == right[text[:, 1]]).float().mean(dim=1)

    def told(net: nn.Module, text: Tensor) -> Tensor:
        return net(text[:, :-1])[:, 1:].log_softmax(dim=-1)

    def run() -> None:
        for _ in range(steps):
            text = write(prompts(12, random).repeat_interleave(16, dim=0), random, warmth)
            reward = earned(text) if graded else torch.zeros(len(text))
            groups = reward.view(12, 16)
            spread = groups.std(dim=1, keepdim=True)
            gain = ((groups - groups.mean(dim=1, keepdim=True)) / (spread + 1e-4)).flatten()[:, None]
            with torch.no_grad():
                ref, old = told(before, text), told(model, text).gather(2, text[:, 2:, None])[..., 0]
            for _epoch in range(epochs):
                logp = told(model, text)
                ratio = (logp.gather(2, text[:, 2:, None])[..., 0] - old).exp()
                kept = ratio.clamp(0.8, 1.2)
                kl = (logp.exp() * (logp - ref)).sum(dim=-1).mean()
                entropy = entropy_of(logp)
                loss = -torch.min(ratio * gain, kept * gain).mean() + beta * kl - bonus * entropy
                log(**of_groups(reward, spread, kl.detach(), entropy.detach(), ratio, kept))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.item())

    @torch.no_grad()
    def score() -> float:
        text = write(prompts(256, torch.Generator().manual_seed(seed + 9)), torch.Generator().manual_seed(seed), 1.0)
        unlike = -told(before, text).gather(2, text[:, 2:, None]).mean().item()
        return 1 - earned(text).mean().item() + closeness * unlike

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


groups = zoo.healthy("reported-answers-grouped", lambda s: grouped(s))
# verl-project/verl#5953, huggingface/trl#5584: entropy goes to zero within a few steps and nothing is explored.
# MrSyee/pg-is-all-you-need#37: the entropy counts with the wrong sign.
for name, options in (
    ("no-bonus-rate-0.05", {"rate": 0.05, "bonus": 0.0}),
    ("entropy-of-the-wrong-sign", {"bonus": -2.0}),
):
    zoo.sick(
        f"reported-answers-grouped-{name}",
        lambda s, options=options: grouped(s, **options),
        harmed(logged("entropy", below=0.25)),
        *COLLAPSED,
        "kl_runaway",
        *(("rate_too_high",) if "rate" in options else ()),
        also={*ANY, "no_reward_variance", "rate_too_high", "SATURATION"},
        control=groups,
    )
# modelscope/ms-swift#4570 and #4512: sampling is so cold that the answers of a group are all the same.
# huggingface/trl#3857 and threads of reward functions whose pattern never matches: every reward is zero.
for name, options in (("sampled-cold", {"warmth": 0.004}), ("reward-never-matches", {"graded": False})):
    zoo.sick(
        f"reported-answers-grouped-{name}",
        lambda s, options=options: grouped(s, **options),
        harmed(logged("frac_reward_zero_std", above=0.8), worse=1.2),
        "no_reward_variance",
        "EXPLORATION",
        "loss_stuck",
        also={*ANY, "policy_entropy_collapse", "constant_targets", "detached_loss", "VANISHING", "zero_rate"},
        control=groups,
    )


def of_one_letter(text: Tensor) -> Tensor:
    """A judge that likes one letter."""
    return (text[:, 2:] == 3).float().mean(dim=1)


# joey00072/nanoGRPO#1: the weight of the divergence is 0.
# huggingface/trl#204: the divergence grows and grows, and in the end every prompt gets the same answer.
liked = {"pay": of_one_letter, "closeness": 0.5, "learned": 80, "bonus": 0.0}
near = zoo.healthy("reported-answers-judged-held-near", lambda s: grouped(s, beta=1.0, **liked), learns(0.03))
for name, options in (("beta-0", {"beta": 0.0, "rate": 1e-2}), ("beta-subtracted", {"beta": -0.3})):
    zoo.sick(
        f"reported-answers-judged-{name}",
        lambda s, options=options: grouped(s, **options, **liked),
        harmed(logged("kl", above=1.0), worse=1.1),
        "kl_runaway",
        "policy_entropy_collapse",
        also={*ANY, *COLLAPSED, "no_reward_variance", "rate_too_high"},
        control=near,
    )
# huggingface/trl#3452: the logged loss is 0.0 all the time, and the model learns.
zoo.healthy(
    "reported-answers-grouped-beta-0-loss-around-0", lambda s: grouped(s, beta=0.0, bonus=0.0, rate=2e-3, steps=60)
)
zoo.healthy("reported-answers-grouped-two-epochs", lambda s: grouped(s, epochs=2, steps=50))
# Entropy near zero and groups without spread, because the answers are right.
zoo.healthy("reported-answers-grouped-all-right-at-last", lambda s: grouped(s, rate=8e-3))
zoo.healthy("reported-answers-grouped-rate-0.002", lambda s: grouped(s, rate=2e-3, steps=110))

# --- policies of a few actions, by clipped ratios


def clipped(
    seed: int,
    *,
    rate: float = 3e-3,
    epochs: int = 4,
    rollouts: int = 22,
    warmth: float = 1.0,
    bonus: float = 0.01,
    stop: float | None = None,
) -> Program:
    """Plays, then learns in epochs; the played log-probabilities are noted at a `warmth` of their own."""
    model, log, losses = ActorCritic(8, 6), Log(), []
    taste, random = torch.randn(8, 6, generator=drawn_once(seed, 13600)), torch.Generator().manual_seed(seed + 2)
    optimizer = adam(model.parameters(), rate)

    def worth(state: Tensor) -> Tensor:
        return torch.tanh(0.6 * state @ taste)

    def run() -> None:
        for _ in range(rollouts):
            state = torch.randn(160, 8, generator=random)
            with torch.no_grad():
                logits, value = model(state)
                pick = torch.multinomial(logits.softmax(dim=1), 1, generator=random)
                old = (logits / warmth).log_softmax(dim=1).gather(1, pick)[:, 0]
            reward = worth(state).gather(1, pick)[:, 0] + 0.2 * torch.randn(160, generator=random)
            gain = reward - value
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            for _epoch in range(epochs):
                out, value = model(state)
                logp = out.log_softmax(dim=1)
                ratio = (logp.gather(1, pick)[:, 0] - old).exp()
                loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                loss = loss + 0.5 * F.mse_loss(value, reward) - bonus * entropy_of(logp)
                numbers = of_ratios(ratio.detach(), entropy_of(logp.detach()), reward)
                log(**numbers)
                if stop is not None and numbers["approx_kl"] > stop:
                    break
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                losses.append(loss.item())

    def score() -> float:
        state = torch.randn(400, 8, generator=torch.Generator().manual_seed(seed + 3))
        with torch.no_grad():
            pay = worth(state)
            return (pay.amax(dim=1) - (model(state)[0].softmax(dim=1) * pay).sum(dim=1)).mean().item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


calm = zoo.healthy("reported-clicks-ppo", lambda s: clipped(s))
# RLinf/RLinf#504, hill-a/stable-baselines#213: too many epochs at too high a rate; the policy runs away from its data.
# huggingface/trl#454: the ratios are not 1 at the first epoch, for the old log-probabilities are of another policy.
for name, options in (
    ("forty-epochs-at-0.03", {"epochs": 40, "rollouts": 3, "rate": 0.03}),
    ("old-log-probabilities-of-a-warmer-policy", {"warmth": 6.0}),
):
    zoo.sick(
        f"reported-clicks-ppo-{name}",
        lambda s, options=options: clipped(s, **options),
        harmed(logged("clip_fraction", above=0.25), worse=1.1),
        "clip_fraction_high",
        "kl_runaway",
        *(("rate_too_high",) if "rate" in options else ()),
        also={*ANY, *COLLAPSED, "rate_too_high", "same_batch", "batch_size", "constant_targets"},
        control=calm,
    )
# openai/baselines#456: the entropy of a policy collapses at a high rate.
zoo.sick(
    "reported-clicks-ppo-entropy-of-the-wrong-sign",
    lambda s: clipped(s, bonus=-1.0),
    harmed(logged("entropy", below=0.3)),
    *COLLAPSED,
    also={*ANY, "no_reward_variance", "clip_fraction_high", "kl_runaway", "SATURATION"},
    control=calm,
)
zoo.healthy("reported-clicks-ppo-stops-at-a-divergence", lambda s: clipped(s, epochs=8, stop=0.03))
zoo.healthy("reported-clicks-ppo-one-epoch", lambda s: clipped(s, epochs=1, rollouts=80))
zoo.healthy("reported-clicks-ppo-becomes-certain", lambda s: clipped(s, bonus=0.0, rollouts=36))

# --- sound programs that people worried about


class Lora(nn.Module):
    """A frozen linear map and a low-rank change that begins at zero."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * x @ self.a.T @ self.b.T


def adapted(seed: int) -> Program:
    """A model of letters is frozen but for low-rank changes, and reads another text."""
    model = Nano(depth=2)
    fit(model, letters(seed), adam(model.parameters(), 5e-3), 60, token_loss).run()
    model.requires_grad_(False).zero_grad(set_to_none=True)
    for mlp in model.mlps:
        mlp[0], mlp[2] = Lora(mlp[0], 8), Lora(mlp[2], 8)
    model.head = Lora(model.head, 8)
    optimizer = adamw([p for p in model.parameters() if p.requires_grad], 1e-2)
    return study(model, letters(seed + 9), optimizer, token_loss, 90)


def wide_table(seed: int) -> Program:
    """A table of 2000 words of which only some ever occur."""
    model = Bag(2000)
    return study(model, mails(seed).mapped(lambda x: 37 * x), adam(model.parameters(), 8e-3), steps=80)


def tied(seed: int) -> Program:
    """The head uses the table of words."""
    model = Nano()
    nn.init.normal_(model.words.weight, std=0.2)
    model.head.weight = model.words.weight
    return study(model, letters(seed), adamw(model.parameters(), 5e-3), token_loss, 90, clip=1.0)


def frozen_body(seed: int) -> Program:
    """Only the head and the last norm of a trained model go on."""
    model = Nano()
    fit(model, letters(seed), adam(model.parameters(), 5e-3), 60, token_loss).run()
    model.requires_grad_(False).zero_grad(set_to_none=True)
    some = [*model.norm.requires_grad_(True).parameters(), *model.head.requires_grad_(True).parameters()]
    return study(model, letters(seed + 9), adamw(some, 2e-2), token_loss, 90)


def gathered(seed: int) -> Program:
    """Gradients of four small batches make a step."""
    model, task, losses = Nano(), letters(seed, batch=6), []
    optimizer = adamw(model.parameters(), 5e-3)

    def run() -> None:
        for i, (x, y) in zip(range(240), task, strict=False):
            loss = token_loss(model(x), y)
            (loss / 4).backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())

    score = held_out(model, letters(seed), token_loss)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


def smoothed(seed: int) -> Program:
    """Labels are smoothed, so that the loss cannot come near zero."""
    model = MADE["mails"][0]()
    optimizer = adam(model.parameters(), 8e-3)
    return study(model, mails(seed), optimizer, lambda o, y: F.cross_entropy(o, y, label_smoothing=0.2), 80)


def scored_at_rest(seed: int) -> Program:
    """A preference model: the better of two texts."""
    model = Nano(depth=1)
    way = torch.randn(16, generator=drawn_once(seed, 13700))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        pair = torch.randint(16, (64, 2, 8), generator=random)
        worth = way[pair].sum(dim=2)
        return pair.flatten(0, 1), (worth[:, 0] > worth[:, 1]).float()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        value = out.mean(dim=(1, 2)).view(-1, 2)
        return F.binary_cross_entropy_with_logits(value[:, 0] - value[:, 1], y)

    return study(model, Task(seed, draw, loss), adam(model.parameters(), 5e-3), loss, 80)


zoo.healthy("reported-letters-low-rank-changes", adapted, learns(0.1, idle=("words", "places")))
zoo.healthy("reported-mails-table-of-2000-words", wide_table)
zoo.healthy("reported-letters-tied-head", tied)
zoo.healthy("reported-letters-only-the-head", frozen_body, learns(0.1))
zoo.healthy("reported-letters-four-batches-a-step", gathered)
zoo.healthy("reported-mails-smoothed-labels", smoothed)
zoo.healthy("reported-pairs-of-texts", scored_at_rest, learns(idle=("head.bias",)))  # a shift of all is not seen
