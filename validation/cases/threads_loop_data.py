# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Programs from threads with a fault of their loss or of their data, each beside what helped.

Half: threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._common_loops import lowest_above, study
from validation.cases._everyday_loops import measured
from validation.cases._plain_loops import harmed
from validation.cases._threads_loops import (
    KINDS,
    Ecg,
    Fcn,
    Forecast,
    MiniGpt,
    beats,
    concrete,
    dense,
    garments,
    loads,
    posts,
    rate_of,
    square,
    verses,
    vessels,
    wines,
)
from validation.evidence.loops import Played, begins_above, ends_below, learns, not_finite_in
from validation.labels import BIG_START, IDLE, LEARNS_NOTHING, LOSS_LOST, WRECKED
from validation.programs import adam, held_out, sgd
from validation.tasks import token_loss

zoo = Zoo("loop", half="threads", proof=learns(0.25))
TWICE = {"SATURATION", "VANISHING", "DEAD", *LEARNS_NOTHING, "rate_too_low"}
ANY = {*WRECKED, *IDLE, "EXPLODING", "UNSTABLE", "NUMERICAL", "rate_too_high", "rate_too_low", "BOTTLENECK"}
ANY |= {"first_loss_high", "input_scales", "bad_batch", "batch_size", "SYMMETRY", "RANK_COLLAPSE", "ENTROPY_COLLAPSE"}


def hardly_falls(played: Played) -> tuple[bool, str]:
    losses = played.program.losses
    first, last = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
    return last > 0.6 * first, f"loss from {first:.3g} to {last:.3g}"


# --- an activation that the loss has as well, or over the wrong dimension

for name, last, rate, steps, level in (
    # Threads on own BERT classifiers "stuck at 0.55 / 1.0": softmax in forward and CrossEntropyLoss.
    ("posts", lambda out: out.softmax(dim=-1), 0.02, 80, math.log(1 + 2 / math.e) - 0.01),
    # Threads on U-Nets: forward ends in a sigmoid, the loss is BCEWithLogitsLoss.
    ("vessels", torch.sigmoid, 0.05, 80, 0.4),
):

    def doubled(seed: int, fault: bool, name: str = name, last: Any = last, rate: float = rate, steps: int = steps):
        model, task, loss = KINDS[name](seed)
        wrong = lambda out, y: loss(last(out), y)  # noqa: E731
        return study(model, task, sgd(model, rate, momentum=0.9), wrong if fault else loss, steps, loss)

    zoo.beside(
        f"{name}-logits-to-the-loss",
        f"{name}-activated-twice",
        doubled,
        harmed(lowest_above(level)),
        "double_softmax",
        *(("output_range",) if name == "vessels" else ()),
        also=TWICE | {"output_range"},
    )

for name in (
    # fxia22/pointnet.pytorch#27, ikostrikov/pytorch-meta-optimizer#10: log_softmax over the batch, then nll_loss.
    "garments",
    "beats",
):

    def along(seed: int, fault: bool, name: str = name):
        model, task, _ = KINDS[name](seed)
        loss = lambda out, y: F.nll_loss(out.log_softmax(dim=0 if fault else 1), y)  # noqa: E731
        return study(model, task, adam(model, 5e-3), loss, 70, F.cross_entropy)

    zoo.beside(
        f"{name}-log-softmax-over-classes",
        f"{name}-log-softmax-over-the-batch",
        along,
        harmed(begins_above(2.8)),
        "softmax_dimension",
        "first_loss_high",
        "loss_stuck",
        "batch_size",
        also=ANY | {"double_softmax", "broadcast"},
    )

# --- shapes

for sound, fault_name, name, steps in (
    # Threads on GRU forecasts "predicting the mean": (N, 1) against (N,).
    ("loads-shapes-alike", "loads-column-against-row", "loads", 80),
    ("concrete-shapes-alike", "concrete-column-against-row", "concrete", 80),
):

    def shaped(seed: int, fault: bool, name: str = name, steps: int = steps):
        model, task, loss = KINDS[name](seed)
        return study(model, task, adam(model, rate_of(name)), F.mse_loss if fault else loss, steps, loss)

    zoo.beside(
        sound,
        fault_name,
        shaped,
        harmed(hardly_falls, worse=2.0),
        "broadcast",
        also={*LEARNS_NOTHING, "constant_targets", "VANISHING", "LOW_RANK", "BOTTLENECK", "batch_size", "DEAD"},
    )


# Threads on DQN: values of the chosen actions are (N, 1) from gather, targets (N,).
def td_error(seed: int, fault: bool) -> Program:
    model, random = dense(6, 32, 4), torch.Generator().manual_seed(seed + 3)
    worth = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed + 90))

    def drawn(source: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        state = torch.randn(64, 6, generator=source)
        action = torch.randint(4, (64, 1), generator=source)
        return state, action, (torch.tanh(state @ worth).gather(1, action)).squeeze(1)

    def loss_of(_: Any) -> Tensor:
        state, action, target = drawn(random)
        value = model(state).gather(1, action)
        return F.smooth_l1_loss(value if fault else value.squeeze(1), target)

    def score() -> float:
        state, action, target = drawn(torch.Generator().manual_seed(seed + 7))
        with torch.no_grad():
            return F.smooth_l1_loss(model(state).gather(1, action).squeeze(1), target).item()

    return study(model, wines(seed), adam(model, 5e-3), steps=120, loss_of=loss_of, score=score)


zoo.beside(
    "actions-values-squeezed",
    "actions-values-against-all-targets",
    td_error,
    harmed(hardly_falls, worse=1.5),
    "broadcast",
    also={*LEARNS_NOTHING, "constant_targets", "VANISHING", "LOW_RANK", "BOTTLENECK", "batch_size", "DEAD"},
)


# Stack Overflow, "batch_first": a network over time gets (N, T, 1) though it reads the first dimension as time, so that
# the samples of a batch are read one after the other.
def time_first(seed: int, fault: bool) -> Program:
    model = Forecast()
    model.rnn.batch_first = True
    wrong = nn.GRU(1, 24, batch_first=False)
    if fault:
        model.rnn = wrong
    return study(model, loads(seed), adam(model, 1e-2), square, 80)


def mixes_samples(played: Played) -> tuple[bool, str]:
    model = played.program.model
    x = torch.randn(6, 20, 1)
    with torch.no_grad():
        apart = (model(x)[5] - model(torch.cat([x[:5] + 1, x[5:]]))[5]).abs().max().item()
    return apart > 1e-4, f"other samples change an answer by {apart:.1e}"


zoo.beside(
    "loads-batch-first",
    "loads-batch-read-as-time",
    time_first,
    harmed(mixes_samples),
    "loss_stuck",
    "SLOW",
    "SHORT_MEMORY",
    "VANISHING",
    "batch_size",
    also={*ANY, "constant_targets", "broadcast", "SPECTRAL_RADIUS"},
)

# --- what comes out cannot reach what is asked for


class Bounded(nn.Module):
    """A network that ends in an activation."""

    def __init__(self, net: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.net, self.last = net, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.net(x))


for fault_name, name, last, change in (
    # Stack Overflow, "regression network only predicts values between 0 and 1": a sigmoid behind the last layer.
    ("concrete-sigmoid-of-any-number", "concrete", nn.Sigmoid(), lambda y: 3 * y + 10),
    # Threads on forecasts of values in their own unit from a network that ends in tanh.
    ("loads-tanh-of-large-numbers", "loads", nn.Tanh(), lambda y: 6 * y),
    # "My network outputs only zeros": a ReLU behind the last layer, and targets of either sign.
    ("books-relu-of-any-sign", "concrete", nn.ReLU(), lambda y: y - 2.0),
):

    def bounded(seed: int, fault: bool, name: str = name, last: Any = last, change: Any = change):
        net, task, _ = KINDS[name](seed)
        model = Bounded(net, last if fault else nn.Identity())
        task = task.changed(lambda x, y: (x, change(y)))
        return study(model, task, adam(model, 1e-2), square, 100)

    fault_name = fault_name.replace("books", "concrete")
    zoo.beside(
        fault_name.replace("sigmoid-of", "linear-of").replace("tanh-of", "linear-of").replace("relu-of", "linear-of"),
        fault_name,
        bounded,
        harmed(hardly_falls),
        "output_range",
        "SATURATION",
        "DEAD",
        "loss_stuck",
        "VANISHING",
        "input_scales",
        also=ANY | {"DISCONNECTED", "constant_targets"},
    )

# --- the loss is no number

NAN = {*ANY, "all_masked", "DISCONNECTED"}


# mihaidusmanu/d2-net#78, raoyongming/DynamicViT#6: features are divided by their maximum, which is zero for an empty
# picture.
class Peaks(nn.Module):
    """Maps of a convolution as shares of the highest peak, then convolutions for each dot."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.Conv2d(12, 12, 3, padding=1)
        self.out, self.eps = nn.Conv2d(12, 1, 1), eps

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv1(x))
        h = h / (h.amax(dim=(1, 2, 3), keepdim=True) + self.eps)
        return self.out(F.relu(self.conv2(3 * h)))


def empty_picture(seed: int, fault: bool) -> Program:
    def emptied(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        keep = torch.ones(len(x), 1, 1, 1)
        keep[0] = float(torch.rand(()) > 0.1)
        return x * keep, y * keep

    model = Peaks(0.0 if fault else 1e-6)
    score = held_out(model, vessels(seed), KINDS["vessels"](seed)[2])
    return study(model, vessels(seed).changed(emptied), adam(model, 1e-2), KINDS["vessels"](seed)[2], 80, score=score)


# etzinis/sudo_rm_rf#1: the ratio of signal to noise in decibels, of a piece in which nobody speaks.
def silence(seed: int, fault: bool) -> Program:
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 32))
    random, eps = torch.Generator().manual_seed(seed + 6), 0.0 if fault else 1e-3

    def ratio(out: Tensor, y: Tensor, eps: float) -> Tensor:
        return -10 * torch.log10((y.square().sum(1) + eps) / ((out - y).square().sum(1) + eps)).mean()

    def mixed(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        clean = x[:, 0].clone()
        clean[0] *= float(torch.rand((), generator=random) > 0.1)
        return clean + 0.5 * x[:, 1].roll(1, 0), clean

    score = held_out(model, beats(seed).changed(mixed), F.mse_loss)
    loss = lambda out, y: ratio(out, y, eps)  # noqa: E731
    return study(model, beats(seed).changed(mixed), adam(model, 3e-3), loss, 100, score=score)


# "Loss is NaN from the first batch", the usual answer: missing values in the columns.
def gaps(seed: int, fault: bool) -> Program:
    model, random = dense(9, 32, 4), torch.Generator().manual_seed(seed + 2)

    def missing(x: Tensor) -> Tensor:
        x = x.masked_fill(torch.rand(x.shape, generator=random) < 0.004, math.nan)
        return x if fault else x.nan_to_num(0.0)

    score = held_out(model, wines(seed))
    return study(model, wines(seed).mapped(missing), adam(model, 5e-3), steps=70, score=score)


# xuannianz/keras-ctpn#1: targets are the logarithm of a height, and one box has none.
def no_height(seed: int, fault: bool) -> Program:
    model, random = dense(7, 32, 32, 1), torch.Generator().manual_seed(seed + 2)

    def logs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        height = y.exp()
        height[torch.rand(y.shape, generator=random) < 0.002] = 0.0
        return x, height.log() if fault else height.clamp_min(0.02).log()

    score = held_out(model, concrete(seed), square)
    return study(model, concrete(seed).changed(logs), adam(model, 5e-3), square, 80, score=score)


# rickgroen/cov-weighting#3: each loss is divided by the spread of its own past, which is zero at the start.
def own_spread(seed: int, fault: bool) -> Program:
    model, past = Ecg(), []

    def loss(out: Tensor, y: Tensor) -> Tensor:
        value = F.cross_entropy(out, y)
        past.append(value.item())
        spread = torch.tensor(past[-20:]).std() if fault else torch.tensor([*past[-20:], past[-1] + 0.3]).std() + 0.2
        return value / spread

    return study(model, beats(seed), adam(model, 5e-3), loss, 70, F.cross_entropy)


# pytorch/pytorch#24816, #64525, #26098: the mask says True where there are words, so that a text without filling has no
# key at all.
class Masked(nn.Module):
    """Words, attention written out with a mask of keys, a mean over the words, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.q, self.k, self.v = nn.Embedding(36, 24), *(nn.Linear(24, 24, bias=False) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(24), dense(24, 32, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.words(x)
        scores = self.q(h) @ self.k(h).transpose(1, 2) / 24**0.5
        h = h + scores.masked_fill(mask[:, None], -math.inf).softmax(dim=-1) @ self.v(h)
        keep = (x != 0).float()[..., None]
        return self.head((self.norm(h) * keep).sum(dim=1) / keep.sum(dim=1))


def mask_turned(seed: int, fault: bool) -> Program:
    model, random = Masked(), torch.Generator().manual_seed(seed + 2)

    def filled(x: Tensor) -> tuple[Tensor, Tensor]:
        size = torch.randint(5, x.shape[1] + 1, (len(x), 1), generator=random)
        x = x.masked_fill(torch.arange(x.shape[1]) >= size, 0)
        return x, (x != 0) if fault else (x == 0)

    x, y = posts(seed).aside()

    def score() -> float:
        with torch.no_grad():
            return F.cross_entropy(model(x, torch.zeros(x.shape, dtype=torch.bool)), y).item()

    return study(model, posts(seed).mapped(filled), adam(model, 5e-3), steps=70, score=score)


for sound, fault_name, build, more in (
    ("vessels-share-of-the-peak-with-eps", "vessels-share-of-no-peak", empty_picture, ()),
    ("beats-decibels-with-eps", "beats-decibels-of-silence", silence, ()),
    ("wines-gaps-filled", "wines-gaps-left-in", gaps, ("bad_batch", "input_scales")),
    ("concrete-log-of-a-floor", "concrete-log-of-zero", no_height, ("bad_batch",)),
    ("beats-divided-by-a-spread", "beats-divided-by-the-spread-of-one", own_spread, ()),
):
    zoo.beside(sound, fault_name, build, harmed(not_finite_in(0.2)), *LOSS_LOST, *more, also=NAN)
zoo.beside(
    "posts-mask-of-the-filling",
    "posts-mask-of-the-words",
    mask_turned,
    harmed(not_finite_in(0.9)),
    "all_masked",
    "NUMERICAL",
    "loss_nonfinite",
    layer=("words", "q", "k", "v"),
    also=NAN,
)

# --- scales


# Threads on nanoGPT and tied tables: a table with a large deviation is used as the head as well, and the first loss is
# far above the logarithm of the number of signs.
def tied(seed: int, fault: bool) -> Program:
    model = MiniGpt(width=48, depth=1)
    nn.init.normal_(model.wte.weight, std=3.0 if fault else 0.1)
    model.lm_head.weight = model.wte.weight
    return study(model, verses(seed), adam(model, 4e-3), token_loss, 70)


zoo.beside(
    "verses-tied-table-small",
    "verses-tied-table-large",
    tied,
    harmed(begins_above(5.0)),
    *BIG_START,
    "SATURATION",
    "UNSTABLE",
    "input_scales",
    layer=("wte", "lm_head"),
    also=ANY,
)


# Threads on recordings and tables "loss does not move": counts of a converter of twelve bits; a year, an area, a share.
def counts(seed: int, fault: bool) -> Program:
    model, task = dense(64, 48, 4, act=nn.Tanh), beats(seed)
    change = (lambda x: (2048 + 400 * x).flatten(1)) if fault else (lambda x: x.flatten(1))
    return study(model, task.mapped(change), adam(model, 5e-3), steps=100)


def columns(seed: int, fault: bool) -> Program:
    model, task = dense(7, 32, 32, 1, act=nn.ReLU), concrete(seed)
    unit, middle = torch.tensor([1.0, 20, 900, 0.01, 5, 3000, 0.1]), torch.tensor([0.5, 100, 2005, 0.1, 3, 9000, 1])
    change = (lambda x: middle + unit * x) if fault else (lambda x: x)
    return study(model, task.mapped(change), adam(model, 5e-3), square, 100)


for sound, fault_name, build in (
    ("beats-scaled", "beats-counts-of-the-converter", counts),
    ("concrete-columns-scaled", "concrete-columns-in-their-units", columns),
):
    zoo.beside(
        sound,
        fault_name,
        build,
        harmed(),
        "input_scales",
        "SATURATION",
        "EXPLODING",
        "first_loss_high",
        also=ANY,
    )

# --- labels


# Threads on own image folders: the label is read from the wrong part of the path, and is the same for all.
def one_label(seed: int, fault: bool) -> Program:
    model, task, _ = KINDS["garments"](seed)
    score = held_out(model, garments(seed))
    task = task.changed(lambda x, y: (x, torch.zeros_like(y) if fault else y))
    return study(model, task, adam(model, 5e-3), steps=70, score=score)


# Threads on binary masks read as 0 and 1/255 and cut at a half: no dot is left.
def no_dot(seed: int, fault: bool) -> Program:
    model, loss = Fcn(), KINDS["vessels"](seed)[2]
    score = held_out(model, vessels(seed), loss)
    task = vessels(seed).changed(lambda x, y: (x, ((y / 255 if fault else y) > 0.5).float()))
    return study(model, task, adam(model, 1e-2), loss, 80, score=score)


for sound, fault_name, build, level in (
    ("garments-labels-of-the-folder", "garments-one-label-for-all", one_label, 1e-4),
    ("vessels-masks-of-ones", "vessels-masks-of-nothing", no_dot, 0.05),
):
    zoo.beside(
        sound,
        fault_name,
        build,
        harmed(ends_below(level)),
        "constant_targets",
        also={*ANY, "all_masked", "padding_labels", "zero_rate"},
    )


# Threads on own translators and character models "high accuracy, but it writes nothing": the filling is a target like
# all others, and most of the text is filling.
def filling(seed: int, fault: bool) -> Program:
    model, task = MiniGpt(signs=15, length=64), verses(seed)

    def padded(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.pad(x, (0, 48), value=14), F.pad(y, (0, 48), value=14)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=-100 if fault else 14)

    def share() -> float:
        return (padded(*task.aside())[1] == 14).float().mean().item() if fault else 0.0

    score = held_out(model, verses(seed), lambda out, y: token_loss(out[:, 2:], y[:, 2:]))
    optimizer = sgd(model, 0.3, momentum=0.9)
    task2 = verses(seed).changed(padded)
    facts: dict[str, Callable[[], float]] = {"share of filling in the loss": share}
    return study(model, task2, optimizer, loss, 60, score=score, facts=facts)


zoo.beside(
    "verses-filling-ignored",
    "verses-filling-counts",
    filling,
    harmed(measured("share of filling in the loss", above=0.5)),
    "padding_labels",
    "constant_targets",
    "embedding_row",
    also={*ANY},
)
