# ruff: noqa: D103 - a case is explained by its name
"""Optimizers' states, spikes, language models and policies that people asked about in threads, and what helped.

Half: threads.
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
from validation.cases._everyday_loops import measured, stored, supervised, train
from validation.cases._plain_loops import harmed
from validation.cases._threads_loops import (
    Bert,
    CharRnn,
    Ecg,
    Factors,
    Forecast,
    MiniGpt,
    Vgg,
    beats,
    books,
    concrete,
    dense,
    garments,
    loads,
    posts,
    square,
    verses,
)
from validation.cases.state_common import long_first_moment
from validation.cases.state_common_language import top_row
from validation.evidence.loops import learns
from validation.evidence.states import (
    eps_above_gradients,
    logged,
    no_second_moment,
    remembers,
    same_bits,
    shrunk,
    spikes,
    young,
)
from validation.labels import COLLAPSED, DAMPED, FORGETFUL, LONG_MEMORY, ROUNDED_OFF, SPOILT, UNDERFLOWN
from validation.policies import entropy_of, of_groups, of_ratios
from validation.programs import held_out
from validation.states import BROKEN, IDLE, Made, loop, reloads
from validation.tasks import drawn_once, token_loss

zoo = Zoo("state", half="threads", proof=learns(0.25))
adam, adamw, sgd = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
LOST = BROKEN | {"all_masked", "only_decay", "zero_rate", "first_loss_high", "constant_targets", "clip_sets_step"}
half, full = torch.bfloat16, torch.float16
MADE: dict[str, Made] = {
    "garments": (lambda: Vgg(p=0.0), garments, F.cross_entropy, 5e-3),
    "beats": (lambda: Ecg(), beats, F.cross_entropy, 5e-3),
    "posts": (lambda: Bert(), posts, F.cross_entropy, 5e-3),
    "verses": (lambda: MiniGpt(), verses, token_loss, 4e-3),
    "poems": (lambda: CharRnn(), verses, token_loss, 1e-2),
    "loads": (lambda: Forecast(), loads, square, 1e-2),
    "concrete": (lambda: dense(7, 32, 32, 1, act=nn.SiLU), concrete, square, 5e-3),
    "books": (lambda: Factors(), books, F.mse_loss, 3e-2),
}


def plain(name: str, optimizer: Callable[[Any, float], Any], **more: Any) -> Callable[[int], Program]:
    """A plain loop of a network by the name of its data."""
    return loop(MADE[name], optimizer, **{"steps": 70, **more})


base = {name: zoo.healthy(f"threads-{name}-adamw", plain(name, lambda p, r: adamw(p, r))) for name in MADE}

# --- eps

for name, sound, eps in (
    # Threads on arguments by place: the fourth of Adam is eps, and was meant as the decay.
    ("beats", "decay-by-name", 0.1),
    # Threads on "Adam does not learn, SGD does": eps of 1 taken over from a TensorFlow recipe with its large rate.
    ("poems", "eps-of-1e-8", 1.0),
):
    zoo.sick(
        f"threads-{name}-eps-{eps:g}",
        plain(name, lambda p, r, eps=eps: adam(p, r, (0.9, 0.999), eps)),
        harmed(eps_above_gradients()),
        *DAMPED,
        also=IDLE,
        control=zoo.healthy(f"threads-{name}-{sound}", plain(name, lambda p, r: adam(p, r, weight_decay=1e-4))),
    )
zoo.healthy("threads-verses-eps-1e-6", plain("verses", lambda p, r: adamw(p, r, eps=1e-6)))
zoo.healthy("threads-books-eps-1e-3-still-small", plain("books", lambda p, r: adam(p, r, eps=1e-3)))

# --- 16 bits

low = {
    name: zoo.healthy(f"threads-{name}-bfloat16", plain(name, lambda p, r: adamw(p, r), dtype=half))
    for name in ("verses", "concrete")
}
for name, rate in (
    # Threads on fine-tuning with everything in bfloat16: the steps are smaller than the spacing of the numbers.
    ("verses", 1e-5),
    ("concrete", 2e-5),
):
    zoo.sick(
        f"threads-{name}-bfloat16-rate-{rate:g}",
        plain(name, lambda p, _, rate=rate: adamw(p, rate), dtype=half),
        harmed(same_bits()),
        *ROUNDED_OFF,
        also=IDLE,
        control=low[name],
    )
# discuss.pytorch.org, "model.half() and Adam gives NaN after one step".
zoo.sick(
    "threads-beats-half-adam",
    plain("beats", lambda p, r: adam(p, r), dtype=full),
    harmed(no_second_moment()),
    *UNDERFLOWN,
    "eps_rules",
    also=LOST | {"lost_updates"},
    control=base["beats"],
)
zoo.healthy("threads-loads-bfloat16-sgd", plain("loads", lambda p, _: sgd(p, 0.1, 0.9), dtype=half))

# --- decay

for name, fault, optimizer in (
    # Threads on LSTMs that forecast a constant: Adam with weight_decay=0.1 against overfitting.
    ("loads", "adam-l2-0.1", lambda p, r: adam(p, r, weight_decay=0.3)),
    # Threads on CNNs stuck at chance: SGD with weight_decay=0.1.
    ("garments", "sgd-decay-0.1", lambda p, _: sgd(p, 0.05, 0.9, weight_decay=0.3)),
):
    zoo.sick(
        f"threads-{name}-{fault.replace('0.1', '0.3')}",
        plain(name, optimizer, steps=100),
        harmed(shrunk()),
        "decay_dominates",
        also=LOST,
        control=base[name],
    )
zoo.healthy("threads-posts-adamw-decay-0.05", plain("posts", lambda p, r: adamw(p, r, weight_decay=0.05)))
zoo.healthy("threads-garments-sgd-decay-1e-3", plain("garments", lambda p, _: sgd(p, 0.05, 0.9, weight_decay=1e-3)))

# --- momentum

pushed = zoo.healthy("threads-concrete-momentum-0.9", plain("concrete", lambda p, _: sgd(p, 0.05, 0.9)))
# Threads on oscillating losses: momentum 0.999 with the rate for 0.9.
zoo.sick(
    "threads-concrete-momentum-0.999",
    plain("concrete", lambda p, _: sgd(p, 0.05, 0.999)),
    harmed(remembers()),
    *LONG_MEMORY,
    "rate_too_high",
    also=LOST,
    control=pushed,
)
# Threads on betas in the wrong order, (0.999, 0.9).
zoo.sick(
    "threads-loads-betas-0.999-0.9",
    plain("loads", lambda p, _: adam(p, 0.02, betas=(0.999, 0.9))),
    harmed(long_first_moment),
    "betas_swapped",
    "momentum_too_long",
    "EXPLODING",
    "UNSTABLE",
    "rate_too_high",
    also=LOST,
    control=zoo.healthy("threads-loads-betas-0.9-0.999", plain("loads", lambda p, _: adam(p, 0.02))),
)
zoo.healthy("threads-books-momentum-0.95", plain("books", lambda p, _: sgd(p, 0.3, 0.95)))

# --- the state is lost


def fresh(every: int) -> Callable[[torch.optim.Optimizer, int], None]:
    """The optimizer is made again after so many steps, as where its line is inside the loop."""

    def after(optimizer: torch.optim.Optimizer, step: int) -> None:
        if (step + 1) % every == 0:
            optimizer.load_state_dict(
                adam(optimizer.param_groups[0]["params"], optimizer.param_groups[0]["lr"]).state_dict()
            )

    return after


for name, rate, every in (
    # tensorflow/tensorflow#29675, keras-team/keras#13750: the optimizer is made within the function that trains.
    ("concrete", 0.05, 1),
    # EvolvingLMMs-Lab/OneVision-Encoder#65: files hold the weights and the schedule, not the moments; many restarts.
    ("loads", 0.05, 1),
):
    zoo.sick(
        f"threads-{name}-optimizer-made-every-{every}",
        plain(name, lambda p, _, r=rate: adam(p, r), after=fresh(every)),
        harmed(young),
        *FORGETFUL,
        also=BROKEN,
        control=zoo.healthy(f"threads-{name}-optimizer-kept", plain(name, lambda p, _, r=rate: adam(p, r))),
    )
zoo.healthy(
    "threads-verses-state-through-a-file", plain("verses", lambda p, r: adamw(p, r), after=reloads(lambda i: i == 35))
)

# --- one sample


def from_file(name: str, spoil: Callable[[Tensor, Tensor, int], None] | None, **more: Any) -> Callable[[int], Program]:
    """Six epochs over 256 rows, of which one may be wrong."""

    def build(seed: int) -> Program:
        network, task_of, loss, rate = MADE[name]
        model, task = network(), task_of(seed)
        x, y = (part[:256].clone() for part in stored(task, 8).tensors)
        if spoil is not None:
            spoil(x, y, int(torch.randint(256, (), generator=drawn_once(seed, 15100))))
        order = torch.Generator().manual_seed(seed)
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 32, shuffle=True, generator=order)
        score = held_out(model, task, loss)
        return train(model, data, supervised(model, loss), adam(model.parameters(), rate), score, epochs=7, **more)

    return build


def wrong_unit(_x: Tensor, y: Tensor, row: int) -> None:
    y[row] = 3e4


def broken_sensor(x: Tensor, y: Tensor, row: int) -> None:
    x[row], y[row] = -4.0, 3e4


for name, fault, spoil in (
    # stanford-crfm/mistral#115, InternRobotics/StreamVLN#35: now and then a batch of garbage makes the loss jump.
    ("concrete", "one-row-in-another-unit", wrong_unit),
    ("loads", "one-series-of-a-broken-sensor", broken_sensor),
):
    zoo.sick(
        f"threads-{name}-file-{fault}",
        from_file(name, spoil),
        harmed(spikes()),
        *SPOILT,
        "EXPLODING",
        also=LOST | {"input_scales"},
        control=zoo.healthy(f"threads-{name}-file-clean", from_file(name, None)),
    )
# Kai-46/minFM#4, vitoralbiero/img2pose#46: mild spikes of small batches, and clipping that is often active.
zoo.healthy("threads-posts-file-clipped", from_file("posts", None, clip=0.5))
zoo.healthy("threads-garments-file-clipped-at-1", from_file("garments", None, clip=1.0))

# --- a table of which one row gets all


# Threads on words that are not in the list: the text is cut in capitals, the list is not, so nearly all is word 0.
def unknown(seed: int, share: float) -> Program:
    model, lost = Bert(), torch.rand(36, generator=drawn_once(seed, 15200)).argsort().argsort() < round(36 * share)
    task = posts(seed).mapped(lambda x: x.masked_fill(lost[x], 0))
    x, y = task.aside()
    facts = {"share of the top row": top_row(model.words, lambda: F.cross_entropy(model(x), y))}
    return study(model, task, adam(model.parameters(), 5e-3), steps=70, facts=facts)


zoo.sick(
    "threads-posts-nearly-all-unknown",
    lambda s: unknown(s, 0.97),
    harmed(measured("share of the top row", above=0.8)),
    "embedding_row",
    "loss_stuck",
    "constant_targets",
    layer="words",
    also=LOST | {"input_scales", "padding_labels", "batch_size"},
    control=zoo.healthy("threads-posts-few-unknown", lambda s: unknown(s, 0.1)),
)

# --- policies


def bandit(
    seed: int,
    *,
    rate: float = 5e-3,
    epochs: int = 4,
    rollouts: int = 20,
    bonus: float = 0.01,
    tokens: int = 8,
) -> Program:
    """An agent sees nine numbers, takes one of some actions, and is paid by how well it suits; clipped ratios."""
    model, log, losses = nn.ModuleDict({"pi": dense(9, 48, tokens), "v": dense(9, 32, 1)}), Log(), []
    taste, random = torch.randn(9, tokens, generator=drawn_once(seed, 15300)), torch.Generator().manual_seed(seed + 2)
    optimizer = adam(model.parameters(), rate)

    def worth(state: Tensor) -> Tensor:
        return torch.tanh(0.5 * state @ taste)

    def run() -> None:
        for _ in range(rollouts):
            state = torch.randn(160, 9, generator=random)
            with torch.no_grad():
                logp = model["pi"](state).log_softmax(dim=1)
                pick = torch.multinomial(logp.exp(), 1, generator=random)
                old = logp.gather(1, pick)[:, 0]
                reward = worth(state).gather(1, pick)[:, 0] + 0.2 * torch.randn(160, generator=random)
                gain = reward - model["v"](state)[:, 0]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            for _epoch in range(epochs):
                logp = model["pi"](state).log_softmax(dim=1)
                ratio = (logp.gather(1, pick)[:, 0] - old).exp()
                loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() - bonus * entropy_of(logp)
                loss = loss + 0.5 * F.mse_loss(model["v"](state)[:, 0], reward)
                log(**of_ratios(ratio.detach(), entropy_of(logp.detach()), reward))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                losses.append(loss.item())

    def score() -> float:
        state = torch.randn(400, 9, generator=torch.Generator().manual_seed(seed + 3))
        with torch.no_grad():
            pay = worth(state)
            return (pay.amax(dim=1) - (model["pi"](state).softmax(dim=1) * pay).sum(dim=1)).mean().item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


calm = zoo.healthy("threads-agent-ppo", lambda s: bandit(s))
# Threads on PPO "KL is above 1, clip fraction 0.6": many epochs over one rollout at too high a rate.
zoo.sick(
    "threads-agent-ppo-thirty-epochs-at-0.04",
    lambda s: bandit(s, epochs=30, rollouts=3, rate=0.04),
    harmed(logged("clip_fraction", above=0.25), worse=1.1),
    "clip_fraction_high",
    "kl_runaway",
    "rate_too_high",
    also={*LOST, *COLLAPSED, "same_batch", "batch_size"},
    control=calm,
)
# Threads on agents that always take one action: the entropy is added to the loss where it should be taken away.
zoo.sick(
    "threads-agent-ppo-entropy-added",
    lambda s: bandit(s, bonus=-1.0),
    harmed(logged("entropy", below=0.3)),
    *COLLAPSED,
    also={*LOST, "no_reward_variance", "clip_fraction_high", "kl_runaway"},
    control=calm,
)
zoo.healthy("threads-agent-ppo-one-epoch", lambda s: bandit(s, epochs=1, rollouts=70))
zoo.healthy("threads-agent-ppo-large-bonus", lambda s: bandit(s, bonus=0.05), learns(0.15))
# The entropy falls because the agent is right.
zoo.healthy("threads-agent-ppo-four-actions-no-bonus", lambda s: bandit(s, bonus=0.0, tokens=4, rollouts=26))


def grouped(seed: int, pay: str = "right", *, rate: float = 5e-3, beta: float = 0.01, steps: int = 80) -> Program:
    """A policy over words: to each of some questions a group of answers, paid against the mean of the group."""
    model, log, losses = dense(10, 48, 12), Log(), []
    before = copy.deepcopy(model).requires_grad_(False)
    right, random = torch.randint(12, (10,), generator=drawn_once(seed, 15400)), torch.Generator().manual_seed(seed + 8)
    optimizer = adamw(model.parameters(), rate)

    def run() -> None:
        for _ in range(steps):
            asked = torch.randint(10, (16,), generator=random).repeat_interleave(12)
            x = F.one_hot(asked, 10).float()
            with torch.no_grad():
                p, ref = model(x).softmax(dim=1), before(x).log_softmax(dim=1)
            said = torch.multinomial(p, 1, generator=random)[:, 0]
            reward = (said == right[asked]).float() if pay == "right" else torch.zeros(len(said))
            groups = reward.view(16, 12)
            spread = groups.std(dim=1, keepdim=True)
            gain = ((groups - groups.mean(dim=1, keepdim=True)) / (spread + 1e-4)).flatten()
            logp = model(x).log_softmax(dim=1)
            mine = logp.gather(1, said[:, None])[:, 0]
            ratio = (mine - mine.detach()).exp()
            kl = (logp.exp() * (logp - ref)).sum(dim=1).mean()
            loss = -(ratio * gain).mean() + beta * kl
            log(**of_groups(reward, spread, kl.detach(), entropy_of(logp.detach()), ratio, ratio.clamp(0.8, 1.2)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    def score() -> float:
        with torch.no_grad():
            return 1 - model(torch.eye(10)).softmax(dim=1).gather(1, right[:, None]).mean().item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


# huggingface/open-r1#239, aburkov/theLMbook#6: the loss begins at zero, rises with the divergence, and all is well.
sound_groups = zoo.healthy("threads-words-grpo", lambda s: grouped(s))
# Threads on reward functions whose format never matches: all rewards are zero, and so is the spread of every group.
zoo.sick(
    "threads-words-grpo-format-never-matches",
    lambda s: grouped(s, "format"),
    harmed(logged("frac_reward_zero_std", above=0.9)),
    "no_reward_variance",
    "EXPLORATION",
    "loss_stuck",
    also={*LOST, "detached_loss", "policy_entropy_collapse", "DISCONNECTED"},
    control=sound_groups,
)
zoo.healthy("threads-words-grpo-no-divergence", lambda s: grouped(s, beta=0.0))
zoo.healthy("threads-words-grpo-slower", lambda s: grouped(s, rate=3e-3, steps=110))
