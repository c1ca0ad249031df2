# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Programs with a fault of the loss, the labels or the data, and their repaired twins.

Half: tune.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.evidence import loops as facts
from validation.evidence.loops import broken, learns
from validation.labels import BIG_START, CLIMBS, IDLE, LEARNS_NOTHING, LOSS_LOST, MASKED, WRECKED
from validation.nets import LanguageModel, he_, mlp, scale_
from validation.programs import adam, fit, held_out, step_from, train_step
from validation.tasks import blobs, drawn_once, markov, regression, token_loss

zoo = Zoo("loop", half="tune", proof=learns())


# --- the loss itself


def likelihood(seed: int, safe: bool) -> Program:
    """Binary labels that are easy to tell, under an own cross-entropy: sooner or later a probability is exactly 1."""
    task = blobs(seed, 16, 2, 64, 2.5).changed(lambda x, y: (x, y.float()[:, None]))
    model = he_(mlp([16, 32, 32, 1]))

    def own(logits: Tensor, y: Tensor) -> Tensor:
        p = torch.sigmoid(logits)
        return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()

    bce = F.binary_cross_entropy_with_logits
    return fit(model, task, adam(model, 2e-2), 100, bce if safe else own, bce)


from_logits = zoo.healthy("binary-loss-from-logits", lambda s: likelihood(s, True))
zoo.sick(
    "binary-loss-with-log-of-zero",
    lambda s: likelihood(s, False),
    broken(facts.not_finite_in(0.3), less=0),
    *LOSS_LOST,
    also={"SATURATION", "DEAD", *LEARNS_NOTHING},
    control=from_logits,
)


def climbing(seed: int, maximize: bool) -> Program:
    """An optimizer copied from a script that maximised a reward."""
    model = he_(mlp([24, 48, 48, 6]))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, maximize=maximize)
    return fit(model, blobs(seed, 24, 6, 64), optimizer, 60)


downhill = zoo.healthy("adam-minimises", lambda s: climbing(s, False))
zoo.sick(
    "adam-maximises",
    lambda s: climbing(s, True),
    broken(facts.grows, less=0),
    *CLIMBS,
    also={"SATURATION", "DEAD", "rate_too_high"},
    control=downhill,
)


def shuffled(seed: int, apart: bool) -> Program:
    """Inputs are shuffled; labels have to be shuffled with them."""
    order = torch.Generator().manual_seed(seed + 5)

    def mix(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        permutation = torch.randperm(len(x), generator=order)
        return x[permutation], y if apart else y[permutation]

    model = mlp([24, 48, 48, 6])
    task = blobs(seed, 24, 6, 96).changed(mix)
    return fit(model, task, adam(model, 1e-3), 120, unseen=blobs(seed, 24, 6, 256))


together = zoo.healthy("inputs-and-labels-shuffled-together", lambda s: shuffled(s, False))
zoo.sick(
    "inputs-shuffled-without-labels",
    lambda s: shuffled(s, True),
    broken(facts.stays, less=0.1),
    "loss_stuck",
    also={"SLOW"},
    control=together,
)


def clamped(seed: int, limit: int) -> Program:
    """Token ids are clamped to the vocabulary of another tokenizer."""
    model = LanguageModel(20, 32, 2, 1)
    task = markov(seed, 20, 12, 16).mapped(lambda tokens: tokens.clamp(max=limit))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return fit(model, task, optimizer, 100, token_loss, unseen=markov(seed, 20, 12, 64))


all_tokens = zoo.healthy("tokens-as-they-are", lambda s: clamped(s, 19))
zoo.sick(
    "tokens-clamped-to-one",
    lambda s: clamped(s, 0),
    broken(lambda p: (len(set(p.inputs)) == 1, "one input"), less=0.1),
    "loss_stuck",
    "same_batch",
    also={"SLOW", "LOW_RANK", "RANK_COLLAPSE", "HEAD_DIVERSITY", "VANISHING", "DISCONNECTED"},
    control=all_tokens,
)


def large_head(seed: int, factor: float) -> Program:
    model = he_(mlp([32, 64, 64, 10]))
    scale_(model[-1], factor)
    return fit(model, blobs(seed, 32, 10, 64), adam(model, 2e-3))


calm_head = zoo.healthy("head-as-drawn", lambda s: large_head(s, 0.5))
zoo.sick(
    "head-times-30",
    lambda s: large_head(s, 30.0),
    broken(facts.begins_above(4 * math.log(10))),
    *BIG_START,
    "SATURATION",
    layer="4",
    also={"UNSTABLE", "rate_too_low", "SLOW"},
    control=calm_head,
)


def unit_init(seed: int, std: float) -> Program:
    """Tied embeddings, drawn as torch does by default or as language models do."""
    model = LanguageModel(24, 64, 4, 2, tied=True)
    nn.init.normal_(model.embedding.weight, std=std)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return fit(model, markov(seed, 24, 12, 16), optimizer, 80, token_loss)


small_init = zoo.healthy("tied-embedding-0.1", lambda s: unit_init(s, 0.1))
zoo.sick(
    "tied-embedding-3",
    lambda s: unit_init(s, 3.0),
    broken(facts.begins_above(4 * math.log(24))),
    *BIG_START,
    layer=("embedding", "head"),
    also={"UNSTABLE", "ENTROPY_COLLAPSE", "SATURATION", "rate_too_low", "SLOW"},
    control=small_init,
)

# --- labels that are masked, or should be


def instructed(seed: int, hidden: Callable[[int], bool], spoil: bool, average: str = "mean") -> Program:
    """Only answers have labels. In some batches the prompt takes all the room."""
    task = markov(seed, 20, 16, 12)
    model = LanguageModel(20, 32, 2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses: list[float] = []

    def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
        if average == "mean":
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        mask = (labels != -100).float()
        each = F.cross_entropy(logits.flatten(0, 1), labels.clamp(min=0).flatten(), reduction="none")
        return (each * mask.flatten()).sum() / mask.sum().clamp(min=1)

    def run() -> None:
        for step, (x, y) in zip(range(90), task, strict=False):
            labels = y.clone()
            labels[:, :6] = -100
            if spoil and hidden(step):
                labels[:] = -100
            losses.append(train_step(model, optimizer, x, labels, loss_of))

    score = held_out(model, task, token_loss)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


answers = zoo.healthy("answers-have-labels", lambda s: instructed(s, lambda _: True, False))
zoo.sick(
    "every-third-batch-without-labels",
    lambda s: instructed(s, lambda step: step % 3 == 2, True),
    broken(facts.not_finite_in(0.3)),
    *MASKED,
    also={"loss_nonfinite"},
    control=answers,
)
zoo.sick(
    "no-batch-has-labels",
    lambda s: instructed(s, lambda _: True, True),
    broken(facts.not_finite_in(1.0), less=0.05),
    *MASKED,
    also={"loss_nonfinite", *IDLE, "only_decay"},
    control=answers,
)
counted = zoo.healthy("answers-have-labels-own-mean", lambda s: instructed(s, lambda _: True, False, "own"))
zoo.sick(
    "no-batch-has-labels-own-mean",
    lambda s: instructed(s, lambda _: True, True, "own"),
    broken(facts.nothing_comes(), less=0.05),
    "all_masked",
    also={*IDLE, "only_decay", "detached"},
    control=counted,
)


def padded(seed: int, ignore: int) -> Program:
    """Sentences of 3 to 5 tokens in rows of 24, filled up with token 0."""
    lengths = drawn_once(seed, 40)

    def pad(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        beyond = torch.arange(x.shape[1])[None] >= torch.randint(3, 6, (len(x), 1), generator=lengths)
        return (x + 1).masked_fill(beyond, 0), (y + 1).masked_fill(beyond, 0)

    model = LanguageModel(21, 32, 2, 1)
    task = markov(seed, 20, 24, 16).changed(pad)

    def criterion(ignored: int) -> Callable:
        return lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=ignored)

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return fit(model, task, optimizer, 60, criterion(ignore), criterion(0))


ignored = zoo.healthy("padding-ignored", lambda s: padded(s, 0))
zoo.sick(
    "padding-counted-as-label",
    lambda s: padded(s, -100),
    broken(less=0.9),
    "padding_labels",
    also={"constant_targets"},
    control=ignored,
)

# --- what goes into the loss


def activated(seed: int, last: nn.Module) -> Program:
    model = he_(mlp([24, 48, 48, 8])).append(last)
    logits = model[:-1]
    program = fit(model, blobs(seed, 24, 8, 64), adam(model, 2e-3), 100, nn.CrossEntropyLoss())
    score = held_out(logits if not isinstance(last, nn.Softmax) else model, blobs(seed, 24, 8, 256), accuracy_lost)
    return Program(model=model, optimizer=program.optimizer, run=program.run, losses=program.losses, score=score)


def accuracy_lost(output: Tensor, y: Tensor) -> Tensor:
    """Mean probability that is not on the right class, whatever form the output has."""
    p = output if bool((output >= 0).all() & (output.sum(-1) - 1).abs().lt(1e-3).all()) else output.softmax(-1)
    return 1 - p.gather(1, y[:, None]).mean()


bare = zoo.healthy("logits-into-cross-entropy", lambda s: activated(s, nn.Identity()))
zoo.sick(
    "softmax-into-cross-entropy",
    lambda s: activated(s, nn.Softmax(dim=1)),
    broken(facts.floor_above(1.27)),  # it can fall no lower than ln(1 + 7/e)
    "double_softmax",
    also={"SATURATION", "VANISHING", *LEARNS_NOTHING},
    control=bare,
)


def labelled(seed: int, twice: bool) -> Program:
    """Several labels per sample."""
    task = regression(seed, 16, 4, 64)
    task = task.changed(lambda x, y: (x, (y > 0.9).float()))
    model = he_(mlp([16, 48, 48, 4]))
    bce = F.binary_cross_entropy_with_logits
    return fit(model, task, adam(model), 100, (lambda o, y: bce(torch.sigmoid(o), y)) if twice else bce, bce)


one_sigmoid = zoo.healthy("multi-label-from-logits", lambda s: labelled(s, False))
zoo.sick(
    "multi-label-sigmoid-twice",
    lambda s: labelled(s, True),
    broken(facts.floor_above(0.6), less=0.5),
    "double_softmax",
    also={"SATURATION", "VANISHING", "DEAD", *LEARNS_NOTHING},
    control=one_sigmoid,
)


def valued(seed: int, squeeze: bool, own: bool) -> Program:
    """Targets of shape (N,) and predictions of shape (N, 1)."""
    task = regression(seed, 8, batch=64).changed(lambda x, y: (x, y.squeeze(1)))
    model = mlp([8, 48, 48, 1], nn.Tanh)
    optimizer = adam(model)
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(120), strict=False):
            out = model(x)
            if squeeze:
                out = out.squeeze(-1)
            loss = ((out - y) ** 2).mean() if own else F.mse_loss(out, y)
            losses.append(step_from(loss, optimizer))

    score = held_out(model, task, lambda out, y: F.mse_loss(out.squeeze(-1), y))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


squeezed = zoo.healthy("value-squeezed", lambda s: valued(s, True, False))
zoo.sick(
    "value-broadcast-mse-loss",
    lambda s: valued(s, False, False),
    broken(facts.stays, less=0.3),
    "broadcast",
    also=LEARNS_NOTHING,
    control=squeezed,
)
squeezed_own = zoo.healthy("value-squeezed-own-loss", lambda s: valued(s, True, True))
zoo.sick(
    "value-broadcast-own-loss",
    lambda s: valued(s, False, True),
    broken(facts.stays, less=0.3),
    "broadcast",
    also=LEARNS_NOTHING,
    control=squeezed_own,
)

# --- data


def scales(seed: int, standard: bool) -> Program:
    """Columns from thousandths to millions, as they come from a table."""
    units = 10 ** torch.linspace(-3, 6, 16)
    model = he_(mlp([16, 48, 48, 5]))
    task = blobs(seed, 16, 5, 64, 1.0).mapped(lambda x: x if standard else x * units)
    return fit(model, task, adam(model), 100)


standard = zoo.healthy("columns-standardised", lambda s: scales(s, True))
zoo.sick(
    "columns-from-1e-3-to-1e6",
    lambda s: scales(s, False),
    broken(lambda p: (p.end > 1.0, f"ends at {p.end:.3g}")),
    "input_scales",
    also={"first_loss_high", "EXPLODING", "UNSTABLE", "DEAD", "SATURATION", "LOW_RANK", "BOTTLENECK", *WRECKED},
    control=standard,
)


def one_target(seed: int, lost: bool, classify: bool) -> Program:
    """The column of the target was read wrongly, and is the same in every row."""
    if classify:
        task = blobs(seed, 20, 5, 64, 1.0)
        model = he_(mlp([20, 40, 40, 5]))
        changed = blobs(seed, 20, 5, 64, 1.0).changed(lambda x, y: (x, torch.zeros_like(y)))
        return fit(model, changed if lost else task, adam(model), 80, unseen=task)
    task = regression(seed, 8, batch=64)
    model = mlp([8, 40, 40, 1], nn.Tanh)
    changed = regression(seed, 8, batch=64).changed(lambda x, y: (x, torch.full_like(y, 0.7)))
    return fit(model, changed if lost else task, adam(model, 3e-3), 200, F.mse_loss, unseen=task)


targets = zoo.healthy("regression-targets-vary", lambda s: one_target(s, False, False))
zoo.sick(
    "regression-targets-constant",
    lambda s: one_target(s, True, False),
    broken(facts.vanishes, less=0.3),
    "constant_targets",
    also={"VANISHING", "LOW_RANK"},
    control=targets,
)
labels = zoo.healthy("classes-vary", lambda s: one_target(s, False, True))
zoo.sick(
    "classes-all-zero",
    lambda s: one_target(s, True, True),
    broken(facts.vanishes, less=0.3),
    "constant_targets",
    also={"VANISHING", "LOW_RANK", "SATURATION"},
    control=labels,
)


def reinforce(seed: int, constant: bool) -> Program:
    """Policy gradient with normalised rewards."""
    model = mlp([8, 32, 32, 4], nn.Tanh)
    codes = torch.randn(4, 8, generator=drawn_once(seed, 7))
    random = torch.Generator().manual_seed(seed + 3)
    optimizer = adam(model, 5e-3)
    losses: list[float] = []

    def run() -> None:
        for _ in range(100):
            state = torch.randn(128, 8, generator=random)
            policy = torch.distributions.Categorical(logits=model(state))
            action = torch.multinomial(policy.probs.detach(), 1, generator=random).squeeze(1)
            reward = torch.ones(128) if constant else (action == (state @ codes.T).argmax(1)).float()
            advantage = (reward - reward.mean()) / (reward.std() + 1e-8)
            loss = -(policy.log_prob(action) * advantage).mean()
            losses.append(step_from(loss, optimizer))

    def score() -> float:
        state = torch.randn(512, 8, generator=drawn_once(seed, 900))
        with torch.no_grad():
            return 1 - model(state).softmax(-1).gather(1, (state @ codes.T).argmax(1)[:, None]).mean().item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


rewarded = zoo.healthy("reinforce-rewards-vary", lambda s: reinforce(s, False))
zoo.sick(
    "reinforce-rewards-constant",
    lambda s: reinforce(s, True),
    broken(facts.nothing_comes(), less=0.01),
    "no_reward_variance",
    also={*IDLE, "DEAD", "SATURATION", "EXPLORATION"},
    control=rewarded,
)
