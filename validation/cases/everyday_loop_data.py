# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Ordinary programs with a fault of the loss, the labels or the data, their twins, and data that only look odd.

Half: everyday.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, WeightedRandomSampler

from validation.case import Log, Program, Zoo
from validation.cases._everyday_loops import (
    LeNet,
    Seq2Seq,
    TextClassifier,
    Vae,
    elbo,
    loader,
    stored,
    supervised,
    train,
)
from validation.evidence import loops as facts
from validation.evidence.loops import broken, learns
from validation.labels import CLIMBS, IDLE, LEARNS_NOTHING, LOSS_LOST, MASKED, WRECKED
from validation.nets import LanguageModel, SequenceModel, Shared, Tabular, TwoTower, he_, mlp
from validation.programs import adam, fit, held_out, sgd
from validation.tasks.everyday import bends, strokes, tanks
from validation.tasks.rewards import chain
from validation.tasks.sequences import ciphers, markov, token_loss
from validation.tasks.signals import images
from validation.tasks.task import drawn_once
from validation.tasks.trades import errands, genres, homes, keepsakes, majority, order, paints
from validation.tasks.vectors import blobs, table, views

zoo = Zoo("loop", half="everyday", proof=learns())

# --- the loss is no number


def prices(seed: int, kind: str) -> Program:
    """Prices above zero, compared on a logarithmic scale; nothing keeps a prediction above minus one."""
    task = homes(seed).changed(lambda x, y: (x, (0.8 * y).exp()))
    model = mlp([9, 48, 48, 1], nn.SiLU)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        out = F.softplus(out) if kind == "softplus" else out * 3
        return F.mse_loss(torch.log1p(out), torch.log1p(y))

    def meant(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(torch.log1p(F.softplus(out)), torch.log1p(y))

    return fit(model, task, sgd(model, 0.3, momentum=0.9), 100, loss, meant)


prices_positive = zoo.healthy("everyday-prices-log-of-softplus", lambda s: prices(s, "softplus"))
zoo.sick(
    "everyday-prices-log-of-anything",
    lambda s: prices(s, "raw"),
    broken(facts.not_finite_in(0.3), less=0),
    *LOSS_LOST,
    also={"bad_batch", "DEAD", *WRECKED},
    control=prices_positive,
)


def spreadsheet(seed: int, gaps: bool) -> Program:
    """Some cells of the table are empty; they were to be filled with the mean."""
    x, y = stored(blobs(seed, 16, 4, 32, 0.8), 20).tensors
    empty = torch.rand(x.shape, generator=drawn_once(seed, 21)) < (0.0005 if gaps else 0)
    empty[7, 3] = gaps
    x = x.masked_fill(empty, math.nan)
    model = he_(mlp([16, 48, 48, 4]))
    data = DataLoader(torch.utils.data.TensorDataset(x, y), 32, True, generator=torch.Generator().manual_seed(seed))
    return train(model, data, supervised(model), adam(model), held_out(model, blobs(seed, 16, 4, 256, 0.8)))


filled = zoo.healthy("everyday-table-without-gaps", lambda s: spreadsheet(s, False))
zoo.sick(
    "everyday-table-with-empty-cells",
    lambda s: spreadsheet(s, True),
    broken(facts.not_finite_in(0.3), less=0),
    *LOSS_LOST,
    "bad_batch",
    also={"DEAD", *WRECKED},
    control=filled,
)

# --- the loss grows


class OwnCrossEntropy(torch.autograd.Function):
    """A cross-entropy with a backward by hand; `sign` is minus one where its author took the difference wrongly."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, y: Tensor, sign: float) -> Tensor:
        p = logits.softmax(dim=1)
        ctx.save_for_backward(p, y)
        ctx.sign = sign
        return F.nll_loss(p.clamp_min(1e-12).log(), y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        p, y = ctx.saved_tensors
        return ctx.sign * gradient * (p - F.one_hot(y, p.shape[1])) / len(y), None, None


def by_hand(seed: int, sign: float) -> Program:
    model = LeNet(3, 8, 8)
    return fit(
        model, paints(seed), adam(model, 1e-3), 60, lambda out, y: OwnCrossEntropy.apply(out, y, sign), F.cross_entropy
    )


right_sign = zoo.healthy("everyday-own-backward", lambda s: by_hand(s, 1.0))
zoo.sick(
    "everyday-own-backward-wrong-sign",
    lambda s: by_hand(s, -1.0),
    broken(facts.grows, less=0),
    *CLIMBS,
    also={"SATURATION", "DEAD", "rate_too_high"},
    control=right_sign,
)

# --- the loss is stuck


class Reader(nn.Module):
    """An LSTM whose author did not say where the batch is."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(8, 32, batch_first=batch_first), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0][:, -1])


def read(seed: int, batch_first: bool) -> Program:
    model = Reader(batch_first)
    task = tanks(seed, 8)
    return fit(model, task, adam(model, 1e-2), 120)


read_first = zoo.healthy("everyday-lstm-batch-first", lambda s: read(s, True))
zoo.sick(
    "everyday-lstm-batch-where-time-should-be",
    lambda s: read(s, False),
    broken(facts.stays, less=0.1),
    "loss_stuck",
    also={"SLOW", "VANISHING", "SHORT_MEMORY"},
    control=read_first,
)


def two_loaders(seed: int, apart: bool) -> Program:
    """Pictures and labels come from two loaders; both shuffle."""
    x, y = stored(strokes(seed), 24).tensors
    model = LeNet(1, 10, 8)

    def shuffled(data: Tensor, number: int) -> DataLoader:
        return DataLoader(data, 24, shuffle=True, generator=torch.Generator().manual_seed(number))  # type: ignore[arg-type]

    class Pairs:
        def __init__(self) -> None:
            self.inputs, self.labels = shuffled(x, seed), shuffled(y, seed + apart)

        def __iter__(self):
            return zip(self.inputs, self.labels, strict=True)

    return train(model, Pairs(), supervised(model), adam(model, 1e-3), held_out(model, strokes(seed, batch=256)))


one_order = zoo.healthy("everyday-two-loaders-one-order", lambda s: two_loaders(s, False))
zoo.sick(
    "everyday-two-loaders-two-orders",
    lambda s: two_loaders(s, True),
    broken(facts.stays, less=0.1),
    "loss_stuck",
    also={"SLOW"},
    control=one_order,
)

# --- the first loss is high


def initialised(seed: int, std: float | None) -> Program:
    """`nn.init.normal_` with its default deviation of 1, or Kaiming's."""
    model = mlp([20, 64, 64, 5])
    for module in model:
        if isinstance(module, nn.Linear):
            if std is None:
                nn.init.kaiming_normal_(module.weight)
            else:
                nn.init.normal_(module.weight, std=std)
            nn.init.zeros_(module.bias)
    return fit(model, blobs(seed, 20, 5, 64), adam(model, 2e-3), 80)


kaiming = zoo.healthy("everyday-init-kaiming", lambda s: initialised(s, None))
zoo.sick(
    "everyday-init-normal-default",
    lambda s: initialised(s, 1.0),
    broken(facts.begins_above(4 * math.log(5))),
    "first_loss_high",
    "EXPLODING",
    "SATURATION",
    also={"UNSTABLE", "rate_too_low", "SLOW"},
    control=kaiming,
)


class Matcher(nn.Module):
    """Two towers and a temperature, as CLIP has it; `normal` puts their outputs on the sphere."""

    def __init__(self, normal: bool) -> None:
        super().__init__()
        self.left, self.right = he_(mlp([24, 64, 32])), he_(mlp([18, 64, 32]))
        self.scale, self.normal = nn.Parameter(torch.tensor(math.log(1 / 0.07))), normal

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.left(a), self.right(b)
        if self.normal:
            a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
        return self.scale.exp() * a @ b.T


def matched(seed: int, normal: bool) -> Program:
    model = Matcher(normal)
    return fit(model, views(seed), torch.optim.AdamW(model.parameters(), lr=2e-3), 80)


on_sphere = zoo.healthy("everyday-clip-normalised", lambda s: matched(s, True))
zoo.sick(
    "everyday-clip-not-normalised",
    lambda s: matched(s, False),
    broken(facts.begins_above(4 * math.log(48))),
    "first_loss_high",
    "EXPLODING",
    "SATURATION",
    also={"UNSTABLE", "rate_too_low", "SLOW"},
    control=on_sphere,
)

# --- labels that are masked, or should be


def chat(seed: int, found: Callable[[int], bool], tame: bool = False) -> Program:
    """Only what follows the mark of the answer has labels; where the mark is not found, nothing has."""
    task, model = markov(seed, 20, 16, 12), LanguageModel(20, 32, 2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    at = [0]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        labels = batch[1].clone()
        labels[:, : 5 if found(at[0]) else None] = -100
        at[0] += 1
        each = F.cross_entropy(model(batch[0]).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
        count = (labels != -100).sum()
        return each / count.clamp(min=1) if tame else each / count

    return train(model, task, loss_of, optimizer, held_out(model, task, token_loss), epochs=1, limit=80)


marked = zoo.healthy("everyday-chat-answers-marked", lambda s: chat(s, lambda _: True))
zoo.sick(
    "everyday-chat-template-never-found",
    lambda s: chat(s, lambda _: False),
    broken(facts.not_finite_in(0.9), less=0),
    *MASKED,
    "loss_nonfinite",
    also=IDLE,
    control=marked,
)
marked_tame = zoo.healthy("everyday-chat-answers-marked-own-mean", lambda s: chat(s, lambda _: True, True))
zoo.sick(
    "everyday-chat-template-never-found-own-mean",
    lambda s: chat(s, lambda _: False, True),
    broken(facts.nothing_comes(), less=0.01),
    "all_masked",
    also={*IDLE, "detached", "DEAD", "only_decay", "VANISHING"},
    control=marked_tame,
)


def padded(seed: int, ignore: bool) -> Program:
    """Translations of 2 to 4 tokens in rows of 20, filled up with token 0."""
    lengths = drawn_once(seed, 40)

    def pad(x: tuple[Tensor, Tensor], y: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        beyond = torch.arange(y.shape[1]) >= torch.randint(2, 5, (len(y), 1), generator=lengths)
        return tuple((part + 1).masked_fill(beyond, 0) for part in x), (y + 1).masked_fill(beyond, 0)  # type: ignore[return-value]

    def criterion(number: int) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=number)

    model, task = Seq2Seq(16), ciphers(seed, 14, 20, 24).changed(pad)
    return fit(model, task, adam(model, 3e-3), 60, criterion(0 if ignore else -100), criterion(0))


ignored = zoo.healthy("everyday-translation-padding-ignored", lambda s: padded(s, True))
zoo.sick(
    "everyday-translation-padding-counted",
    lambda s: padded(s, False),
    broken(less=0.9),
    "padding_labels",
    also={"constant_targets"},
    control=ignored,
)

# --- what goes into the loss


def ends_in(seed: int, last: Callable[[Tensor], Tensor]) -> Program:
    """A classifier of texts that ends in an activation or in logits, under cross-entropy."""
    model = TextClassifier(6, 6)
    return fit(model, majority(seed), adam(model, 5e-3), 120, lambda out, y: F.cross_entropy(last(out), y))


bare = zoo.healthy("everyday-texts-logits", lambda s: ends_in(s, lambda out: out))
zoo.healthy("everyday-texts-log-softmax-twice", lambda s: ends_in(s, lambda out: out.log_softmax(dim=1)))
zoo.sick(
    "everyday-texts-softmax-twice",
    lambda s: ends_in(s, lambda out: out.softmax(dim=1)),
    broken(facts.floor_above(math.log(1 + 5 / math.e) - 0.01)),
    "double_softmax",
    also={"SATURATION", "VANISHING", *LEARNS_NOTHING},
    control=bare,
)


def churn(seed: int, twice: bool) -> Program:
    """Several yes or no per customer; `BCEWithLogitsLoss` gets logits, or what a sigmoid made of them."""
    model = mlp([20, 64, 10]).append(nn.Sigmoid() if twice else nn.Identity())
    bce = F.binary_cross_entropy_with_logits
    return fit(model, genres(seed), adam(model, 5e-3), 120, bce, bce)


one_sigmoid = zoo.healthy("everyday-churn-logits", lambda s: churn(s, False))
zoo.sick(
    "everyday-churn-sigmoid-twice",
    lambda s: churn(s, True),
    broken(facts.floor_above(0.48), less=0.7),
    "double_softmax",
    also={"SATURATION", "VANISHING", "DEAD", *LEARNS_NOTHING},
    control=one_sigmoid,
)


def valued(seed: int, flat: bool) -> Program:
    """The column of prices has shape (N,), the network gives (N, 1)."""
    model = mlp([9, 48, 48, 1], nn.SiLU)
    data = loader(homes(seed).changed(lambda x, y: (x, y.squeeze(1))), seed, 20, 64)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        return F.mse_loss(out.squeeze(1) if flat else out, batch[1])

    return train(model, data, loss_of, adam(model, 5e-3), held_out(model, homes(seed, batch=256), F.mse_loss), epochs=5)


flat_values = zoo.healthy("everyday-homes-flat", lambda s: valued(s, True))
zoo.sick(
    "everyday-homes-column-against-row",
    lambda s: valued(s, False),
    broken(less=0.3),
    "broadcast",
    also=LEARNS_NOTHING,
    control=flat_values,
)


def q_values(seed: int, flat: bool) -> Program:
    """The best value of the next state is a column, the reward a row."""
    model, task = mlp([8, 48, 48, 4]), chain(seed, 8, 4)
    codes = torch.randn(4, 8, generator=drawn_once(seed, 7)) / math.sqrt(8)

    def loss_of(batch: Any) -> Tensor:
        (state, following), (action, reward) = batch
        with torch.no_grad():
            ahead = 0.5 * model(following).amax(dim=1)
        goal = reward + ahead if flat else reward + ahead[:, None]
        chosen = model(state).gather(1, action[:, None])
        return F.mse_loss(chosen.squeeze(1) if flat else chosen, goal)

    def score() -> float:
        (state, _), _ = task.aside()
        pay = state @ codes.T
        with torch.no_grad():
            return (pay.amax(dim=1) - (4 * model(state)).softmax(dim=1).mul(pay).sum(dim=1)).mean().item()

    return train(model, task, loss_of, adam(model, 3e-3), score, epochs=1, limit=120)


q_flat = zoo.healthy("everyday-q-learning-rewards-flat", lambda s: q_values(s, True))
zoo.sick(
    "everyday-q-learning-value-column",
    lambda s: q_values(s, False),
    broken(less=0.5),
    "broadcast",
    also={*LEARNS_NOTHING, "EXPLODING", "UNSTABLE", "loss_grows"},
    control=q_flat,
)

# --- data


def customers(seed: int, units: Tensor, shift: Tensor) -> Program:
    """Columns as they stand in the file, or standardised."""
    model = he_(mlp([12, 48, 48, 4]))
    task = blobs(seed, 12, 4, 64, 1.0).mapped(lambda x: x * units + shift)
    return fit(model, task, adam(model, 3e-3), 80)


ones, none = torch.ones(12), torch.zeros(12)
salaries = 10.0 ** torch.tensor([5.0, 0, 0, -2, 1, 4, 0, -1, 0, 6, -3, 0])
stamps = torch.tensor([1.7e9, *[0.0] * 11])
standard = zoo.healthy("everyday-customers-standardised", lambda s: customers(s, ones, none))
for name, units, shift in (("salaries-in-cents", salaries, none), ("time-in-seconds-since-1970", ones, stamps)):
    zoo.sick(
        f"everyday-customers-{name}",
        lambda s, units=units, shift=shift: customers(s, units, shift),
        broken(lambda p: (p.end > 1.0, f"ends at {p.end:.3g}")),
        "input_scales",
        also={
            "first_loss_high",
            "EXPLODING",
            "UNSTABLE",
            "BOTTLENECK",
            "rate_too_high",
            "rate_too_low",
            "SLOW",
            *WRECKED,
        },
        control=standard,
    )


def answered(seed: int, spelled: bool) -> Program:
    """The target is whether a cell says "Yes"; the file spells it otherwise, and all are no."""
    task = genres(seed, 20, 1)
    wrong = genres(seed, 20, 1).changed(lambda x, y: (x, y * 0))
    model = mlp([20, 48, 48, 1])
    bce = F.binary_cross_entropy_with_logits
    return fit(model, task if spelled else wrong, adam(model, 5e-3), 150, bce, unseen=task)


answers = zoo.healthy("everyday-answers-yes-and-no", lambda s: answered(s, True))
zoo.sick(
    "everyday-answers-all-no",
    lambda s: answered(s, False),
    broken(facts.vanishes, less=0),
    "constant_targets",
    also={"VANISHING", "LOW_RANK", "SATURATION", "DEAD", "SLOW"},
    control=answers,
)

# --- rewards


def rewarded(seed: int, kind: str, baseline: bool = False) -> Program:
    """A policy by rewards, in groups of 8 answers that are compared with each other, or against a moving baseline."""
    model, task = Shared(8, 5, 32), errands(seed, 16)
    random = torch.Generator().manual_seed(seed + 3)
    log, mean = Log(), [0.0]
    optimizer = adam(model, 5e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        state, pay = batch
        logp = model(state)[0].log_softmax(dim=1)
        action = torch.multinomial(logp.detach().exp(), 8, replacement=True, generator=random)
        reward = pay.gather(1, action) if kind == "pay" else torch.ones(action.shape)  # the format is always right
        log(reward=reward.mean().item(), reward_std=reward.std(dim=1).mean().item())
        if baseline:
            advantage = reward - mean[0]
            mean[0] = 0.9 * mean[0] + 0.1 * reward.mean().item()
        else:
            advantage = (reward - reward.mean(dim=1, keepdim=True)) / (reward.std(dim=1, keepdim=True) + 1e-6)
        return -(logp.gather(1, action) * advantage).mean()

    score = held_out(model, errands(seed, 256), lambda out, pay: 1 - (out[0].softmax(dim=1) * pay).sum(dim=1).mean())
    return train(model, task, loss_of, optimizer, score, epochs=1, limit=100, log=log)


grouped = zoo.healthy("everyday-groups-of-answers", lambda s: rewarded(s, "pay"), learns(idle=("value",)))
zoo.healthy("everyday-moving-baseline", lambda s: rewarded(s, "pay", True), learns(idle=("value",)))
zoo.sick(
    "everyday-groups-all-rewarded-alike",
    lambda s: rewarded(s, "format"),
    broken(facts.nothing_comes(), less=0.01),
    "no_reward_variance",
    also={*IDLE, "DEAD", "SATURATION", "EXPLORATION", "detached", "VANISHING"},
    control=grouped,
)

# --- healthy: losses and data that look odd


def weighted(seed: int) -> Program:
    """One class in ten, which counts more."""
    balance = torch.Generator().manual_seed(seed + 8)

    def thin(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        keep = (y == 0) | (torch.rand(len(y), generator=balance) < 0.1)
        return x[keep], y[keep]

    model = he_(mlp([16, 40, 40, 2]))
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]))
    return fit(model, blobs(seed, 16, 2, 256, 0.5).changed(thin), adam(model), 80, criterion)


zoo.healthy("everyday-class-weights", weighted)


def sampled(seed: int) -> Program:
    """The rare class is drawn more often."""
    data = stored(images(seed, 1, 8, 4, 32, 1.5), 20)
    weights = torch.where(data.tensors[1] == 0, 3.0, 1.0)
    drawn = WeightedRandomSampler(weights.tolist(), len(weights), generator=torch.Generator().manual_seed(seed))
    model = LeNet(1, 8, 4, norm=True)
    score = held_out(model, images(seed, 1, 8, 4, 256, 1.5))
    return train(model, DataLoader(data, 32, sampler=drawn), supervised(model), adam(model, 2e-3), score)


zoo.healthy("everyday-weighted-sampler", sampled)


def smoothed(seed: int) -> Program:
    model = LeNet(3, 8, 8, p=0.1)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    return fit(model, images(seed, size=8), adam(model, 2e-3), 80, criterion)


zoo.healthy("everyday-label-smoothing-0.1", smoothed)


def mixed_up(seed: int) -> Program:
    """Mixup: pictures and labels are blended."""
    model, task = LeNet(3, 8, 8), images(seed, size=8)
    random = torch.Generator().manual_seed(seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        share = 0.5 + 0.5 * torch.rand((), generator=random).item()
        out, other = model(share * x + (1 - share) * x.flip(0)), y.flip(0)
        return share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, other)

    return train(model, task, loss_of, adam(model, 2e-3), held_out(model, task), epochs=1, limit=80)


zoo.healthy("everyday-mixup", mixed_up)


def masked_words(seed: int) -> Program:
    """One word in seven is to be guessed, all others are ignored."""
    task, model = markov(seed, 20, 16, 24), LanguageModel(20, 32, 2, 1)
    random = torch.Generator().manual_seed(seed + 6)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        labels = batch[1].masked_fill(torch.rand(batch[1].shape, generator=random) > 0.15, -100)
        return token_loss(model(batch[0]), labels)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return train(model, task, loss_of, optimizer, held_out(model, task, token_loss), epochs=1, limit=80)


zoo.healthy("everyday-most-labels-ignored", masked_words)


def curriculum(seed: int) -> Program:
    """Sequences grow from 4 to 16 over the run."""
    task, model = markov(seed, 20, 16, 16), LanguageModel(20, 32, 2, 1)
    at = [0]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        at[0] += 1
        length = min(16, 4 + at[0] // 6)
        return token_loss(model(batch[0][:, :length]), batch[1][:, :length])

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return train(model, task, loss_of, optimizer, held_out(model, task, token_loss), epochs=1, limit=90)


zoo.healthy("everyday-curriculum-of-lengths", curriculum)


def big_targets(seed: int) -> Program:
    """Prices in thousands, with a last bias that knows their mean."""
    model = mlp([9, 48, 48, 1], nn.SiLU)
    nn.init.constant_(model[-1].bias, 30.0)
    task = homes(seed).changed(lambda x, y: (x, 30 + 5 * y))
    return fit(model, task, adam(model, 1e-2), 100, nn.HuberLoss())


zoo.healthy("everyday-prices-in-thousands", big_targets)


def rows(seed: int) -> Program:
    """Categories and numbers of a table."""
    model = Tabular()
    return fit(model, table(seed), torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05), 100)


zoo.healthy("everyday-table-of-categories", rows)


def retrieved(seed: int) -> Program:
    model = TwoTower([24, 48, 16], [18, 48, 16])
    return fit(model, views(seed), adam(model, 2e-3), 80)


zoo.healthy("everyday-two-towers", retrieved)


def annealed(seed: int) -> Program:
    """The KL divergence of a VAE comes in over 50 steps."""
    model, task = Vae(24), bends(seed)
    at = [0]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        at[0] += 1
        return elbo(0.01 * min(1.0, at[0] / 50))(model(batch[0]), batch[1])

    return train(
        model,
        task,
        loss_of,
        adam(model, 4e-3),
        held_out(model, task, lambda o, x: F.mse_loss(o[0], x)),
        epochs=1,
        limit=120,
    )


zoo.healthy("everyday-vae-kl-annealed", annealed)


def diffused(seed: int) -> Program:
    """Guesses the noise that was added, at a random strength."""
    model, task = mlp([25, 96, 96, 24], nn.SiLU), bends(seed)
    random = torch.Generator().manual_seed(seed)

    def noised(x: Tensor, source: torch.Generator) -> Tensor:
        level = torch.rand(len(x), 1, generator=source)
        noise = torch.randn(x.shape, generator=source)
        mixed = (1 - level).sqrt() * x + level.sqrt() * noise
        return F.mse_loss(model(torch.cat([mixed, level], dim=1)), noise)

    def score() -> float:
        with torch.no_grad():
            return noised(task.aside()[0], drawn_once(seed, 44)).item()

    return train(model, task, lambda batch: noised(batch[0], random), adam(model, 2e-3), score, epochs=1, limit=120)


zoo.healthy("everyday-diffusion", diffused)


def remembered(seed: int, kind: str) -> Program:
    """Long rows whose answer stands at the start."""
    if kind == "order":
        model = SequenceModel(nn.GRU(6, 32, batch_first=True), 4)
        return fit(model, order(seed, 12), adam(model, 8e-3), 120)
    model = SequenceModel(nn.LSTM(3, 32, batch_first=True), 2)
    return fit(model, keepsakes(seed, 10), adam(model, 1e-2), 150, F.mse_loss)


zoo.healthy("everyday-gru-remembers-order", lambda s: remembered(s, "order"))
zoo.healthy("everyday-lstm-remembers-numbers", lambda s: remembered(s, "numbers"))


def small_set(seed: int) -> Program:
    """120 rows, fifteen epochs: the loss goes to nothing because they are learned by heart."""
    model = he_(mlp([20, 64, 4]))
    data = loader(blobs(seed, 20, 4, 24, 1.0), seed, 5, 24)
    score = held_out(model, blobs(seed, 20, 4, 256, 1.0))
    return train(model, data, supervised(model), adam(model, 5e-3), score, epochs=15)


zoo.healthy("everyday-small-data-set", small_set)


def overfits(seed: int) -> Program:
    """The check that everybody recommends: eight batches have to be learned by heart before the long run."""
    model = LeNet(3, 8, 8, norm=True)
    data = loader(images(seed, size=8, batch=16), seed, 8, 16)
    score = held_out(model, images(seed, size=8, batch=256))
    return train(model, data, supervised(model), adam(model, 3e-3), score, epochs=12)


zoo.healthy("everyday-eight-batches-by-heart", overfits)
