# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Common programs with a fault of the loss, the labels or the data, and their twins.

Half: common.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from validation.case import Log, Program, Zoo
from validation.cases._common_loops import (
    Decoder,
    Forecaster,
    Pocket,
    ResNet,
    Segmenter,
    SmallCnn,
    Tagger,
    WideDeep,
    bce,
    bikes,
    captions,
    cells,
    ends_at,
    gaits,
    leaves,
    loans,
    lowest_above,
    names,
    offers,
    prose,
    quakes,
    study,
    wines,
)
from validation.cases._everyday_loops import stored, supervised, train
from validation.evidence import loops as facts
from validation.evidence.loops import broken, learns
from validation.labels import CLIMBS, IDLE, LEARNS_NOTHING, LOSS_LOST, MASKED, WRECKED
from validation.nets import SequenceModel, mlp
from validation.programs import adam, held_out, sgd
from validation.tasks import Task, drawn_once, orders, token_loss

zoo = Zoo("loop", half="common", proof=learns())
adamw = torch.optim.AdamW

# --- the loss is no number


def own_log(seed: int, fault: bool) -> Program:
    """A negative log-likelihood by hand: the logarithm of a softmax, or `log_softmax`."""
    model = mlp([13, 40, 40, 5])
    task = wines(seed).mapped(lambda x: 12 * x)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        logp = (40 * out).softmax(dim=1).log() if fault else out.log_softmax(dim=1)
        return F.nll_loss(logp, y)

    return study(model, task, adam(model, 2e-3), loss, 80, F.cross_entropy)


zoo.beside(
    "wines-log-softmax-by-hand",
    "wines-log-of-softmax-underflows",
    own_log,
    broken(facts.not_finite_in(0.3), less=0),
    *LOSS_LOST,
    also={*WRECKED, "bad_batch", "first_loss_high", "input_scales"},
)


def distances(seed: int, fault: bool) -> Program:
    """A contrastive loss of distances; some pairs are one row twice, and the root of zero has no slope."""
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8, bias=False))
    same = drawn_once(seed, 92)

    def change(x: tuple[Tensor, Tensor], y: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        alike = torch.rand(len(y), generator=same) < 0.5
        other = torch.where(alike[:, None], x[0], x[0].roll(1, 0))
        return (x[0], other), alike.float()

    def loss_of(batch: Any) -> Tensor:
        (a, b), alike = batch
        squares = (model(a) - model(b)).square().sum(dim=1)
        apart = (squares if fault else squares + 1e-6).sqrt()
        return (alike * apart + (1 - alike) * F.relu(2 - apart)).mean()

    task = captions(seed).changed(change)

    def score() -> float:
        with torch.no_grad():
            return loss_of(task.aside()).item()

    return study(model, task, adam(model, 4e-3), steps=60, loss_of=loss_of, score=score)


zoo.beside(
    "pairs-root-with-eps",
    "pairs-root-of-zero",
    distances,
    broken(facts.not_finite_in(0.3), less=0),
    *LOSS_LOST,
    also={*WRECKED, "bad_batch"},
)


def standardised(seed: int, fault: bool) -> Program:
    """Each batch is standardised by its own deviation; one column is constant."""
    model = mlp([7, 40, 40, 1], nn.SiLU)

    def scale(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, 6] = 3.0
        spread = x.std(dim=0)
        return (x - x.mean(dim=0)) / (spread if fault else spread.clamp(min=1e-6))

    return study(model, bikes(seed).mapped(scale), adam(model, 5e-3), F.mse_loss, 70)


zoo.beside(
    "bikes-constant-column-guarded",
    "bikes-constant-column-divided-by-zero",
    standardised,
    broken(facts.not_finite_in(0.9)),
    *LOSS_LOST,
    also={*WRECKED, *IDLE, "bad_batch", "input_scales", "all_masked"},
)

# --- the loss grows


def maximised(seed: int, fault: bool) -> Program:
    """`maximize=True` was left in from a program with rewards."""
    model = Forecaster()
    return study(model, quakes(seed), adam(model, 3e-3, maximize=fault), F.mse_loss, 60)


zoo.beside(
    "quakes-minimised",
    "quakes-maximised",
    maximised,
    broken(facts.grows, less=0),
    *CLIMBS,
    also={"SATURATION", "DEAD", "rate_too_high", "first_loss_high", "VANISHING"},
)


def by_hand(seed: int, fault: bool) -> Program:
    """The step is written by hand, and its sign is wrong."""
    model = Segmenter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    @torch.no_grad()
    def turn(_: int) -> None:
        for p in model.parameters():
            p.grad = -p.grad if fault else p.grad

    return study(model, cells(seed), optimizer, bce, 60, ready=turn)


zoo.beside(
    "cells-gradient-down",
    "cells-gradient-up",
    by_hand,
    broken(facts.grows, less=0),
    *CLIMBS,
    also={"SATURATION", "DEAD", "rate_too_high", "LOW_RANK", "loss_nonfinite", "NUMERICAL"},
)

# --- the loss is stuck


def sorted_apart(seed: int, fault: bool) -> Program:
    """The table was sorted by one column, the labels were not."""
    x, y = stored(wines(seed), 10).tensors
    if fault:
        x = x[x[:, 0].argsort()]
    model = mlp([13, 32, 5], nn.ReLU)
    data = DataLoader(TensorDataset(x, y), 64, True, generator=torch.Generator().manual_seed(seed))
    score = held_out(model, wines(seed, batch=256))
    return train(model, data, supervised(model), adam(model, 2e-3), score, epochs=8)


zoo.beside(
    "wines-rows-with-their-labels",
    "wines-rows-sorted-without-labels",
    sorted_apart,
    broken(facts.stays, less=0.1),
    "loss_stuck",
    also={"SLOW", "batch_size"},
)


def scaled_twice(seed: int, fault: bool) -> Program:
    """Pixels are divided by 255 in the data set and once more in the loop."""
    model = SmallCnn(3, 6, 8)
    task = leaves(seed).mapped(lambda x: x / 255 / 20 if fault else x)
    return study(model, task, adam(model, 1e-3), steps=80)


zoo.beside(
    "leaves-scaled-once",
    "leaves-scaled-again-and-again",
    scaled_twice,
    broken(facts.stays, less=0.2),
    "loss_stuck",
    "input_scales",
    "SLOW",
    "rate_too_low",
    also={"VANISHING", "LOW_RANK", "BOTTLENECK", "DEAD"},
)


class Pooling(nn.Module):
    """A set network; the mean is taken over the rows of the batch, or over the members of each set."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.each, self.all, self.dim = mlp([12, 32, 32]), mlp([32, 32, 5]), dim

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.each(x))
        return self.all(h.mean(dim=1) if self.dim == 1 else h.mean(dim=0)[:1].expand(len(x), -1))


def trays(seed: int, fault: bool) -> Program:
    model = Pooling(0 if fault else 1)
    centres = 1.2 * torch.randn(5, 12, generator=drawn_once(seed, 93))
    sets = orders(seed).changed(lambda x, y: (0.5 * x + centres[y][:, None], y))
    return study(model, sets, adam(model, 3e-3), steps=80)


zoo.beside(
    "sets-mean-over-members",
    "sets-mean-over-the-batch",
    trays,
    broken(facts.stays, less=0.2),
    "loss_stuck",
    "LOW_RANK",
    also={"SLOW", "BOTTLENECK", "VANISHING", "broadcast", "DEAD"},
)

# --- the first loss is high


def tied_to_ones(seed: int, fault: bool) -> Program:
    """The head shares the words' matrix, which was drawn with torch's deviation of one."""
    model = Decoder(40, 48, 1)
    nn.init.normal_(model.tok.weight, std=1.0 if fault else 0.05)
    model.lm_head.weight = model.tok.weight
    return study(model, prose(seed, 40), adamw(model.parameters(), lr=3e-3), token_loss, 70)


zoo.beside(
    "decoder-tied-small-deviation",
    "decoder-tied-deviation-of-one",
    tied_to_ones,
    broken(facts.begins_above(2.5 * math.log(40))),
    "first_loss_high",
    "EXPLODING",
    "SATURATION",
    also={"UNSTABLE", "rate_too_low", "SLOW", "rate_too_high"},
)


def wide_head(seed: int, fault: bool) -> Program:
    """The last layer is drawn by a rule that was meant for a sigmoid, and ten times as large."""
    model = ResNet()
    if fault:
        nn.init.normal_(model.fc.weight, std=5.0)
    return study(model, leaves(seed), sgd(model, 5e-3), steps=60)


zoo.beside(
    "leaves-head-default",
    "leaves-head-drawn-large",
    wide_head,
    broken(facts.begins_above(2.5 * math.log(6))),
    "first_loss_high",
    "EXPLODING",
    "SATURATION",
    also={"UNSTABLE", "rate_too_low", "SLOW", "rate_too_high", "VANISHING"},
)

# --- labels that are masked, or should be


def instructed(seed: int, fault: bool) -> Program:
    """The prompt has no labels; rows are cut to a length that the prompt alone fills."""
    model = Decoder()
    prompt = 10 if fault else 4

    def loss(out: Tensor, y: Tensor) -> Tensor:
        labels = y.clone()
        labels[:, :prompt] = -100
        return F.cross_entropy(out.flatten(0, 1), labels.flatten(), ignore_index=-100)

    return study(model, prose(seed), adamw(model.parameters(), lr=3e-3), loss, 60, token_loss)


zoo.beside(
    "instructions-prompt-of-4-in-10",
    "instructions-prompt-fills-the-row",
    instructed,
    broken(facts.not_finite_in(0.9), less=0.01),
    *MASKED,
    "loss_nonfinite",
    also={*IDLE, *WRECKED},
)


def regions(seed: int, fault: bool) -> Program:
    """Only pixels inside the region count; the region is read from a file of whole numbers and divided by 255."""
    model = Segmenter()
    region = torch.zeros(10, 10)
    region[1:9, 1:9] = 1
    mask = (region * 254).long() // 255 if fault else region

    def loss(out: Tensor, y: Tensor) -> Tensor:
        each = F.binary_cross_entropy_with_logits(out, y, reduction="none") * mask
        return each.sum() / (mask.sum() * len(y)).clamp(min=1)

    return study(model, cells(seed), adam(model, 5e-3), loss, 70, bce)


zoo.beside(
    "cells-inside-a-region",
    "cells-region-read-as-zeros",
    regions,
    broken(facts.nothing_comes(), less=0.01),
    "all_masked",
    "DISCONNECTED",
    "DEAD",
    also={*IDLE, "detached", "only_decay", "VANISHING", "zero_rate", "constant_targets", "detached_loss"},
)


def padded_tags(seed: int, fault: bool) -> Program:
    """Rows of 9 words in 60; the label 0 stands for padding and for a kind of word."""
    model = Tagger(21, 5)

    def pad(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.pad(x + 1, (0, 51)), F.pad(y + 1, (0, 51))

    def loss(ignored: int) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=ignored)

    task = names(seed, batch=12).changed(pad)
    return study(model, task, adam(model, 6e-3), loss(-100 if fault else 0), 50, loss(0))


zoo.beside(
    "tags-padding-ignored",
    "tags-padding-counted",
    padded_tags,
    broken(less=0.9),
    "padding_labels",
    also={"constant_targets", "embedding_row"},
)


def packed(seed: int, fault: bool) -> Program:
    """Short texts are filled up with the end of text, which is a label like any other."""
    model = Decoder(19, length=64)
    lengths = drawn_once(seed, 94)

    def pad(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        size = torch.randint(3, 6, (len(x), 1), generator=lengths)
        x, y = F.pad(x, (0, 30), value=18), F.pad(y, (0, 30), value=18)
        beyond = torch.arange(40) >= size
        return x.masked_fill(beyond, 18), y.masked_fill(beyond, 18)

    def loss(ignored: int) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=ignored)

    task = prose(seed, batch=12).changed(pad)
    return study(model, task, adamw(model.parameters(), lr=2e-3), loss(-100 if fault else 18), 50, loss(18))


zoo.beside(
    "decoder-end-of-text-ignored",
    "decoder-end-of-text-fills-the-rows",
    packed,
    broken(less=0.9),
    "padding_labels",
    also={"constant_targets", "embedding_row"},
)

# --- what goes into the loss


def ends(make: Callable[[], nn.Module], task_of: Callable[[int], Task], last: Callable, loss: Callable, rate: float):
    def build(seed: int, fault: bool) -> Program:
        model = make()
        wrong = lambda out, y: loss(last(out), y)  # noqa: E731
        return study(model, task_of(seed), adam(model, rate), wrong if fault else loss, 90, wrong if fault else loss)

    return build


TWICE = {"SATURATION", "VANISHING", "DEAD", *LEARNS_NOTHING}
zoo.beside(
    "leaves-logits",
    "leaves-softmax-and-cross-entropy",
    ends(ResNet, leaves, lambda o: o.softmax(dim=1), F.cross_entropy, 3e-3),
    broken(lowest_above(math.log(1 + 5 / math.e) - 0.01)),
    "double_softmax",
    also=TWICE,
)
zoo.beside(
    "gaits-logits",
    "gaits-softmax-and-cross-entropy",
    ends(Pocket, gaits, lambda o: o.softmax(dim=1), F.cross_entropy, 3e-3),
    broken(lowest_above(math.log(1 + 4 / math.e) - 0.01)),
    "double_softmax",
    also=TWICE,
)
zoo.beside(
    "cells-logits",
    "cells-sigmoid-and-bce-with-logits",
    ends(Segmenter, cells, torch.sigmoid, bce, 5e-3),
    broken(lowest_above(0.45), less=0.7),
    "double_softmax",
    also=TWICE,
)


def flat(seed: int, fault: bool) -> Program:
    """The recurrence gives (N, 1), the target of the last step is (N,)."""
    model = SequenceModel(nn.GRU(1, 24, batch_first=True), 1)
    task = quakes(seed, batch=32).changed(lambda x, y: (x, y[:, -1, 0]))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out if fault else out.squeeze(1), y)

    def meant(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out.squeeze(1), y)

    return study(model, task, adam(model, 6e-3), loss, 80, meant)


zoo.beside(
    "quakes-last-step-flat",
    "quakes-last-step-column-against-row",
    flat,
    broken(less=0.3),
    "broadcast",
    also={*LEARNS_NOTHING, "constant_targets"},
)


def critic(seed: int, fault: bool) -> Program:
    """A critic learns what a state is worth; its column is compared with a row of returns."""
    model = mlp([6, 32, 32, 1], nn.Tanh)
    task = offers(seed).changed(lambda x, pay: (x, 3 * (pay[:, 0] - pay[:, 1])))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.smooth_l1_loss(out, y) if fault else F.smooth_l1_loss(out, y[:, None])

    return study(model, task, adam(model, 6e-3), loss, 90, lambda o, y: F.mse_loss(o, y[:, None]))


zoo.beside(
    "critic-returns-as-column",
    "critic-returns-as-row",
    critic,
    broken(less=0.3),
    "broadcast",
    also={*LEARNS_NOTHING, "constant_targets"},
)

# --- data


def units(make: Callable[[int], tuple], change: Callable[[Tensor], Tensor], rate: float, steps: int = 80):
    def build(seed: int, fault: bool) -> Program:
        model, task, loss = make(seed)
        return study(model, task.mapped(change) if fault else task, adam(model, rate), loss, steps)

    return build


PLACES = 10.0 ** torch.tensor([0.0, 4, -2, 0, 5, 1, 0, -3, 2, 0, 6, 0, 1])
STAMP = torch.tensor([0.0, 0, 1.6e9, 0, 0, 0, 0])
ODD = {*WRECKED, "EXPLODING", "UNSTABLE", "SLOW", "rate_too_low", "rate_too_high", "BOTTLENECK", "RANK_COLLAPSE"}
zoo.beside(
    "wines-columns-standardised",
    "wines-columns-in-their-units",
    units(lambda s: (mlp([13, 40, 40, 5]), wines(s), F.cross_entropy), lambda x: x * PLACES, 3e-3),
    broken(ends_at(1.0)),
    "input_scales",
    "first_loss_high",
    also=ODD,
)
zoo.beside(
    "bikes-time-as-hour",
    "bikes-time-as-seconds-since-1970",
    units(lambda s: (mlp([7, 40, 40, 1], nn.SiLU), bikes(s), F.mse_loss), lambda x: x * 1 + STAMP, 5e-3),
    broken(ends_at(0.7)),
    "input_scales",
    "first_loss_high",
    also=ODD,
)


def truncated(seed: int, fault: bool) -> Program:
    """Probabilities are cast to whole numbers before they are compared with a half."""
    model = WideDeep()

    def label(x: Any, y: Tensor) -> tuple[Any, Tensor]:
        soft = 0.9 * y + 0.05
        return x, soft.long().float() if fault else soft.round()

    return study(model, loans(seed).changed(label), adam(model, 5e-3), bce, 90)


zoo.beside(
    "loans-soft-labels-rounded",
    "loans-soft-labels-cut-to-zero",
    truncated,
    broken(facts.ends_below(0.03)),
    "constant_targets",
    also={"VANISHING", "SLOW", "SATURATION", "LOW_RANK", "BOTTLENECK", "DEAD"},
)


def relative(seed: int, fault: bool) -> Program:
    """The change since the last value is to be forecast; it is taken from the same column."""
    model = Forecaster()

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y - (y if fault else x)

    return study(model, quakes(seed).changed(change), adam(model, 5e-3), F.mse_loss, 90)


zoo.beside(
    "quakes-change-since-the-last",
    "quakes-change-of-a-value-to-itself",
    relative,
    broken(facts.ends_below(0.03)),
    "constant_targets",
    also={"VANISHING", "SLOW", "SATURATION", "LOW_RANK", "BOTTLENECK", "DEAD"},
    twin_proof=learns(),
)


def groups(seed: int, reward_of: Callable[[Tensor, Tensor], Tensor]) -> Program:
    """Eight answers to each question; what counts is how much better one is than the others of its group."""
    model, random, log = mlp([6, 32, 4], nn.Tanh), torch.Generator().manual_seed(seed), Log()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        logp = model(batch[0]).log_softmax(dim=1)
        action = torch.multinomial(logp.detach().exp(), 8, replacement=True, generator=random)
        reward = reward_of(batch[1].gather(1, action), action)
        log(reward=reward.mean().item(), reward_std=reward.std(dim=1).mean().item())
        advantage = (reward - reward.mean(dim=1, keepdim=True)) / (reward.std(dim=1, keepdim=True) + 1e-4)
        return -(advantage * logp.gather(1, action)).mean()

    task = offers(seed)
    return study(model, task, adam(model, 5e-3), task._loss, 90, loss_of=loss_of, log=log)


zoo.beside(
    "answers-rewards-as-they-are",
    "answers-rewards-clipped-to-one-value",
    lambda s, fault: groups(s, lambda r, _: (r + 2).clamp(max=2.0) if fault else r),
    broken(facts.nothing_comes(), less=0.05),
    "no_reward_variance",
    also={*IDLE, "detached", "VANISHING", "DEAD", "all_masked", "detached_loss", "constant_targets"},
)
zoo.beside(
    "answers-checked-one-by-one",
    "answers-checker-accepts-all",
    lambda s, fault: groups(s, lambda r, _: torch.ones_like(r) if fault else (r > 0.6).float()),
    broken(facts.nothing_comes(), less=0.05),
    "no_reward_variance",
    also={*IDLE, "detached", "VANISHING", "DEAD", "all_masked", "detached_loss", "constant_targets"},
)
