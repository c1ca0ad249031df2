# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Reported programs with a fault of their loss or of their data, each beside what the thread arrived at.

Half: reported.
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
from validation.cases._everyday_loops import supervised, train
from validation.cases._plain_loops import harmed
from validation.cases._reported_loop_nets import Embedder, Gcn, Gpt, Lenet, Lstm, Tagger, Vae, divergence
from validation.cases._reported_loops import (
    KINDS,
    bce,
    codes,
    digits,
    houses,
    letters,
    loans,
    motions,
    names,
    rate_of,
    scans,
    square,
    ticks,
    traffic,
    twins,
)
from validation.evidence.loops import (
    Played,
    begins_above,
    ends_below,
    grows,
    learns,
    not_finite_in,
    nothing_comes,
    stays,
)
from validation.labels import CLIMBS, IDLE, LEARNS_NOTHING, LOSS_LOST, MASKED, WRECKED
from validation.nets import mlp
from validation.programs import adam, held_out, sgd
from validation.tasks import token_loss

zoo = Zoo("loop", half="reported", proof=learns(0.25))
adamw = torch.optim.AdamW
ODD = {*WRECKED, "EXPLODING", "UNSTABLE", "SLOW", "rate_too_low", "rate_too_high", "BOTTLENECK", "batch_size"}
TWICE = {"SATURATION", "VANISHING", "DEAD", *LEARNS_NOTHING, "rate_too_low"}

# --- an activation that the loss has as well


def activated(name: str, last: Callable[[Tensor], Tensor], rate: float, steps: int):
    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        wrong = lambda out, y: loss(last(out), y)  # noqa: E731
        return study(model, task, sgd(model, rate, momentum=0.9), wrong if fault else loss, steps, loss)

    return build


def over_classes(out: Tensor) -> Tensor:
    return out.softmax(dim=-1)


for sound, fault_name, build, level in (
    # shaoxiongji/federated-learning#9: an MLP of digits ends in a softmax, and is trained by CrossEntropyLoss.
    (
        "numerals-logits-to-cross-entropy",
        "numerals-softmax-to-cross-entropy",
        activated("numerals", over_classes, 0.05, 80),
        math.log(1 + 9 / math.e) - 0.01,
    ),
    # bkitano/llama-from-scratch#5: the first model of the course calls softmax before cross_entropy.
    (
        "letters-logits-to-cross-entropy",
        "letters-softmax-to-cross-entropy",
        activated("letters", over_classes, 0.1, 70),
        math.log(1 + 15 / math.e) - 0.01,
    ),
    # jindongwang/Deep-learning-activity-recognition#10: the same in a network over three axes of a sensor.
    (
        "motions-logits-to-cross-entropy",
        "motions-softmax-to-cross-entropy",
        activated("motions", over_classes, 0.02, 80),
        math.log(1 + 4 / math.e) - 0.01,
    ),
    # yudi-mars/daisyRec#15: the score of an item is a sigmoid already, and goes to BCEWithLogitsLoss.
    (
        "movies-logits-to-bce",
        "movies-sigmoid-to-bce-with-logits",
        activated("movies", torch.sigmoid, 1.0, 100),
        0.4,
    ),
):
    zoo.beside(sound, fault_name, build, harmed(lowest_above(level)), "double_softmax", also=TWICE)


# AnubhavGupta3377/Text-Classification-Models-Pytorch#9, jamesli1618/Obj-GAN#30: NLLLoss is given the probabilities
# and not their logarithms, so that the loss is negative.
def likely(seed: int, fault: bool) -> Program:
    model, task, _ = KINDS["news"](seed)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.nll_loss(out.softmax(dim=1) if fault else out.log_softmax(dim=1), y)

    return study(model, task, sgd(model, 0.05, momentum=0.9), loss, 80, F.cross_entropy)


def below_zero(played: Played) -> tuple[bool, str]:
    losses = played.program.losses
    return max(losses) < 0 and min(losses) > -1, f"losses from {min(losses):.3g} to {max(losses):.3g}"


zoo.beside(
    "news-log-probabilities-to-nll",
    "news-probabilities-to-nll",
    likely,
    harmed(below_zero, worse=1.1),
    "double_softmax",
    "loss_stuck",
    "SLOW",
    "VANISHING",
    "rate_too_low",
    also=TWICE,
)

# --- a column against a row


class Forecaster(nn.Module):
    """Patches of a series, one layer of torch's encoder, a head for so many values ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Linear(4, 16), nn.Linear(64, 1)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.patch(x.unflatten(1, (4, 4)).squeeze(-1))).flatten(1))


def hardly_falls(played: Played) -> tuple[bool, str]:
    losses = played.program.losses
    first, last = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
    return last > 0.7 * first, f"loss from {first:.3g} to {last:.3g}"


def by_hand(out: Tensor, y: Tensor) -> Tensor:
    return torch.mean((out - y) ** 2)


for sound, fault_name, make, task_of, kind, rate in (
    # pytorch/pytorch#16045: the model of a table gives (N, 1), the loader (N,).
    ("houses-columns-squeezed", "houses-column-against-row", lambda: mlp([8, 32, 32, 1]), houses, F.mse_loss, 5e-3),
    # benedekrozemberczki/pytorch_geometric_temporal#233: the error over nodes is written out, [N, 1] less [N].
    ("traffic-nodes-squeezed", "traffic-nodes-against-nodes", lambda: Gcn(4, 1), traffic, by_hand, 1e-2),
    # jsboige/CoursIA#926: forecasters of one step ahead; their output keeps the dimension of the steps.
    ("ticks-targets-viewed-alike", "ticks-targets-of-another-shape", Forecaster, ticks, F.mse_loss, 5e-3),
):

    def shaped(seed: int, fault: bool, make: Any = make, task_of: Any = task_of, kind: Any = kind, rate: float = rate):
        model = make()
        right = lambda out, y: kind(out.squeeze(1), y)  # noqa: E731
        return study(model, task_of(seed), adam(model, rate), kind if fault else right, 80, right)

    zoo.beside(
        sound,
        fault_name,
        shaped,
        harmed(hardly_falls, worse=2.0),
        "broadcast",
        also={*LEARNS_NOTHING, "constant_targets", "VANISHING", "LOW_RANK", "BOTTLENECK", "batch_size", "DEAD"},
    )

# --- the loss is no number


# pytorch/pytorch#2421, pytorch/pytorch#37154: the distance of two embeddings is a root, and some pairs are one picture
# twice; the gradient of the root at zero is not finite.
def rooted(seed: int, fault: bool) -> Program:
    model, task = Embedder(), twins(seed)
    model.fc3 = nn.Linear(32, 8, bias=False)

    def pairs(x: tuple[Tensor, Tensor], y: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        second, y = x[1].clone(), y.clone()
        second[::16], y[::16] = x[0][::16], 1.0
        return (x[0], second), y

    def contrast(x: tuple[Tensor, Tensor], y: Tensor, eps: float) -> Tensor:
        far = ((model(x[0]) - model(x[1])).square().sum(dim=1) + eps).sqrt()
        return (y * far.square() + (1 - y) * F.relu(2 - far).square()).mean()

    def score() -> float:
        with torch.no_grad():
            return contrast(*task.aside(), 1e-6).item()

    task = task.changed(pairs)
    loss_of = lambda batch: contrast(*batch, 0.0 if fault else 1e-6)  # noqa: E731
    return study(model, task, adam(model, 3e-3), steps=70, loss_of=loss_of, score=score)


# NVIDIA/apex#358: the probabilities are held between eps and 1 - eps, with an eps that float32 does not see beside one.
def eps_too_small(seed: int, fault: bool) -> Program:
    model = mlp([10, 24, 1], nn.ReLU)
    eps = 1e-8 if fault else 1e-4

    def loss(out: Tensor, y: Tensor) -> Tensor:
        p = out.sigmoid().clamp(eps, 1 - eps)
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()

    task = loans(seed).mapped(lambda x: 12 * x)
    return study(model, task, adam(model, 2e-2), loss, 90, lambda out, y: bce(out.clamp(-9, 9), y))


# jbohnslav/deepethogram#36: a behaviour has no frame in the labels, and the weights of the classes divide by its count.
def no_frame(seed: int, fault: bool) -> Program:
    model, task = KINDS["motions"](seed)[0], motions(seed, classes=4)
    count = F.one_hot(torch.cat([y for _, (_, y) in zip(range(6), motions(seed, classes=4), strict=False)]), 5).sum(
        dim=0
    )
    weight = (count.sum() - count) / (count if fault else count.clamp_min(1))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return bce(out, F.one_hot(y, 5).float(), pos_weight=weight)

    return study(model, task, adam(model, 5e-3), loss, 60, lambda out, y: bce(out, F.one_hot(y, 5).float()))


# mllam/neural-lam#136, deeplearning4j/deeplearning4j#1646: a column is the same in all rows, and is divided by its
# deviation.
def same_in_all(seed: int, fault: bool) -> Program:
    model = mlp([9, 32, 32, 1])
    task = houses(seed).mapped(lambda x: torch.cat([5 * x + 2, torch.zeros(len(x), 1)], dim=1))
    seen = torch.cat([x for _, (x, _) in zip(range(8), task, strict=False)])
    mean, spread = seen.mean(dim=0), seen.std(dim=0)
    spread = spread if fault else torch.where(spread > 0, spread, torch.ones(()))
    return study(model, task.mapped(lambda x: (x - mean) / spread), adam(model, 5e-3), square, 70)


# AppliedDataSciencePartners/WorldModels#2: the divergence of a VAE is in the millions within the first epoch, then NaN;
# its log-variance goes through exp without any bound, and the rows are not scaled.
def unbounded(seed: int, fault: bool) -> Program:
    model, task = Vae(), codes(seed)
    unit = 100.0 if fault else 1.0

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out, mean, logvar = model(unit * batch[0])
        return F.mse_loss(out, unit * batch[1]) + 0.02 * divergence(mean, logvar).mean()

    def score() -> float:
        model.eval()
        x = task.aside()[0]
        with torch.no_grad():
            error = F.mse_loss(model(unit * x)[0] / unit, x).item()
        model.train()
        return error

    return study(model, task, adam(model, 1e-2), steps=90, loss_of=loss_of, score=score)


for sound, fault_name, build in (
    ("twins-root-with-a-floor", "twins-root-of-zero", rooted),
    ("loans-eps-that-counts", "loans-eps-below-precision", eps_too_small),
    ("motions-weights-of-seen-classes", "motions-weight-of-a-class-without-frames", no_frame),
    ("houses-constant-column-kept", "houses-constant-column-divided-by-zero", same_in_all),
):
    zoo.beside(
        sound,
        fault_name,
        build,
        harmed(not_finite_in(0.2)),
        *LOSS_LOST,
        also={*WRECKED, *IDLE, "bad_batch", "first_loss_high", "input_scales", "EXPLODING", "UNSTABLE", "all_masked"},
    )
zoo.beside(
    "codes-variance-of-scaled-rows",
    "codes-variance-of-raw-rows",
    unbounded,
    harmed(not_finite_in(0.9)),
    *LOSS_LOST,
    "input_scales",
    "first_loss_high",
    "EXPLODING",
    also={*WRECKED, *IDLE, "bad_batch", "UNSTABLE", "rate_too_high"},
)

# --- labels that are masked, or should be


# hiyouga/LlamaFactory#4635, zai-org/ChatGLM-6B#686: the question takes all of the length, so every label is -100.
def cut_off(seed: int, fault: bool) -> Program:
    model, task = Gpt(), letters(seed, length=16)
    keep = 8 if fault else 16

    def cut(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = y.clone()
        y[:, :8] = -100
        return x[:, :keep], y[:, :keep]

    return study(
        model, task.changed(cut), adamw(model.parameters(), lr=4e-3), token_loss, 60, score=_answers(model, seed)
    )


def _answers(model: nn.Module, seed: int) -> Callable[[], float]:
    x, y = letters(seed, length=16).aside()

    def score() -> float:
        with torch.no_grad():
            return token_loss(model(x)[:, 8:], y[:, 8:]).item()

    return score


# huggingface/trl#1820, huggingface/trl#588: the key of the answer is another row of tokens in its context, is never
# found, and all is ignored; the mean divides by at least one, so the loss is zero.
def key_not_found(seed: int, fault: bool) -> Program:
    model, task = Gpt(signs=17), letters(seed, length=16)
    key = 99 if fault else 16

    def with_key(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        text = torch.cat([x[:, :4], torch.full((len(x), 1), 16), x[:, 4:], y[:, -1:]], dim=1)
        return text[:, :-1], text[:, 1:]

    def loss(key: int) -> Callable[[Tensor, Tensor], Tensor]:
        def masked(out: Tensor, y: Tensor) -> Tensor:
            mask = ((y == key).cumsum(dim=1) > 0).float()
            each = F.cross_entropy(out.transpose(1, 2), y, reduction="none")
            return (each * mask).sum() / mask.sum().clamp_min(1)

        return masked

    optimizer = adamw(model.parameters(), lr=4e-3)
    return study(model, task.changed(with_key), optimizer, loss(key), 70, loss(16))


zoo.beside(
    "letters-answers-within-the-length",
    "letters-answers-cut-off",
    cut_off,
    harmed(not_finite_in(0.9)),
    *MASKED,
    "loss_nonfinite",
    also={*IDLE, *WRECKED},
)
zoo.beside(
    "letters-key-of-the-answer-found",
    "letters-key-of-the-answer-never-found",
    key_not_found,
    harmed(nothing_comes()),
    *MASKED,
    "detached_loss",
    also={*IDLE, *WRECKED, "constant_targets", "only_decay", "zero_rate"},
)


def ignoring(label: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=label)


# saahiluppal/catr#12, EleutherAI/aria#40: captions are filled up to one length, and the filling counts in the loss.
def filled(seed: int, fault: bool) -> Program:
    model = Gpt(signs=17, width=24, depth=1)
    fill = lambda x: F.pad(x, (0, 50), value=16)  # noqa: E731
    task = letters(seed, length=4, batch=12).changed(lambda x, y: (fill(x), fill(y)))
    return study(model, task, adam(model, 3e-3), ignoring(-100 if fault else 16), 50, ignoring(16))


# 01-ai/Yi#110, hiyoung123/SoftMaskedBert#20: the tags of the filling are tags like others.
def filled_tags(seed: int, fault: bool) -> Program:
    model = Tagger(25, 5)
    task = names(seed, length=3, batch=16)
    task = task.changed(lambda x, y: (F.pad(x, (0, 45), value=24), F.pad(y, (0, 45), value=4)))
    return study(model, task, adam(model, 5e-3), ignoring(-100 if fault else 4), 60, ignoring(4))


for sound, fault_name, build in (
    ("captions-filling-ignored", "captions-filling-counts", filled),
    ("names-filling-ignored", "names-filling-counts", filled_tags),
):
    zoo.beside(
        sound,
        fault_name,
        build,
        harmed(worse=1.2),
        "padding_labels",
        also={"constant_targets", "embedding_row", "LOW_RANK", "SLOW", "loss_stuck", "rate_too_low", "BOTTLENECK"},
    )

# --- scales


# hill-a/stable-baselines#328, tensorlayer/SRGAN#36: pixels from 0 to 255 are not divided.
def raw_pixels(seed: int, fault: bool) -> Program:
    model = Lenet()

    def pixels(x: Tensor) -> Tensor:
        grey = (60 * x + 128).clamp(0, 255)
        return grey if fault else (grey / 255 - 0.5) / 0.25

    return study(model, digits(seed).mapped(pixels), sgd(model, 0.02, momentum=0.9), steps=80)


# dreamquark-ai/tabnet#356, jaungiers/LSTM-Neural-Network-for-Time-Series-Prediction#66: columns as they are in the
# file, among them a year, an area in square feet and a share.
def raw_columns(seed: int, fault: bool) -> Program:
    model = mlp([8, 32, 32, 1], nn.Tanh)
    size = torch.tensor([15.0, 4e3, 1e-2, 1.0, 2.0, 3e4, 0.1, 1.0])
    shift = torch.tensor([1985.0, 9e3, 0.05, 2.0, 5.0, 8e4, 0.4, 1.0])
    task = houses(seed)
    task = task.mapped(lambda x: size * x + shift) if fault else task
    return study(model, task, adam(model, 5e-3), square, 80)


# The second question in the same thread: a series of prices as it is, beside one that was divided by its first value.
def raw_series(seed: int, fault: bool) -> Program:
    model = Lstm()
    task = ticks(seed).mapped(lambda x: 3000 + 400 * x if fault else x)
    return study(model, task, adam(model, 1e-2), square, 80)


for sound, fault_name, build, layer in (
    ("digits-pixels-divided", "digits-pixels-raw", raw_pixels, ("conv1",)),
    ("houses-columns-standardized", "houses-columns-raw", raw_columns, ("0",)),
    ("ticks-prices-standardized", "ticks-prices-raw", raw_series, ("lstm",)),
):
    zoo.beside(
        sound,
        fault_name,
        build,
        harmed(),
        "input_scales",
        "SATURATION",
        "DEAD",
        "first_loss_high",
        "rate_too_high",
        "EXPLODING",
        "UNSTABLE",
        "NUMERICAL",
        layer=layer,
        also={*ODD, "loss_nonfinite", "loss_stuck", "SHORT_MEMORY"},
    )


# huggingface/transformers#26441: the head was drawn with a variance of one, and the first loss is above a hundred.
def loud_head(seed: int, fault: bool) -> Program:
    model = Gpt(width=64, depth=1)
    nn.init.normal_(model.lm_head.weight, std=1.0 if fault else 64**-0.5)
    return study(model, letters(seed), sgd(model, 0.1, momentum=0.9), token_loss, 60)


# UC-IIC2613/Syllabus#220, sktime/pytorch-forecasting#1: prices in whole units as targets, and a plain rate of Adam.
def whole_prices(seed: int, fault: bool) -> Program:
    model = mlp([8, 32, 32, 1])
    unit, middle = (1e5, 2.5e5) if fault else (1.0, 0.0)
    task = houses(seed).changed(lambda x, y: (x, unit * y + middle))
    return study(
        model, task, adam(model, 5e-3), square, 90, lambda out, y: square((out - middle) / unit, (y - middle) / unit)
    )


zoo.beside(
    "letters-head-drawn-by-its-width",
    "letters-head-drawn-at-one",
    loud_head,
    harmed(begins_above(6.0), worse=1.2),
    "first_loss_high",
    "EXPLODING",
    "UNSTABLE",
    layer="lm_head",
    also={*ODD, "SATURATION", "NUMERICAL", "ENTROPY_COLLAPSE"},
)
zoo.beside(
    "houses-prices-standardized",
    "houses-prices-in-whole-units",
    whole_prices,
    harmed(begins_above(1e6)),
    "first_loss_high",
    "EXPLODING",
    "rate_too_low",
    "SLOW",
    also={*ODD, "input_scales", "constant_targets", "SATURATION", "eps_rules"},
)

# --- labels


def spoilt(name: str, wrong: Callable[[Tensor], Tensor], steps: int):
    """Labels are spoilt on their way; the score knows the right ones."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        score = held_out(model, KINDS[name](seed)[1], loss)
        task = task.changed(lambda x, y: (x, wrong(y))) if fault else task
        return study(model, task, adam(model, rate_of(name)), loss, steps, score=score)

    return build


# GeorgeSeif/Semantic-Segmentation-Suite#89, open-mmlab/mmsegmentation#2628: no colour of the masks matches the table of
# classes, so that every pixel is of the first one.
def no_colour(seed: int, fault: bool) -> Program:
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 1, 1), nn.ReLU(), nn.Conv2d(12, 12, 3, 1, 1), nn.ReLU(), nn.Conv2d(12, 2, 1)
    )
    table = torch.tensor([0.0, 255.0]) if fault else torch.tensor([0.0, 1.0])

    def classes(y: Tensor) -> Tensor:
        return torch.stack([y[:, 0] == colour for colour in table], dim=1).float().argmax(dim=1)

    task = scans(seed).changed(lambda x, y: (x, classes(y)))
    x, y = scans(seed).aside()

    def score() -> float:
        with torch.no_grad():
            return F.cross_entropy(model(x), y[:, 0].long()).item()

    return study(model, task, adam(model, 5e-3), steps=60, score=score)


EASY = {"VANISHING", "SLOW", "SATURATION", "LOW_RANK", "BOTTLENECK", "DEAD", "loss_stuck"}
for sound, fault_name, build in (
    # MouseLand/cellpose#1220: masks of 0 and 0.00392 become whole numbers, all zero.
    (
        "scans-masks-of-zeros-and-ones",
        "scans-masks-become-whole-numbers",
        spoilt("scans", lambda y: (y / 255).long().float(), 60),
    ),
    ("scans-colours-in-the-table", "scans-colours-not-in-the-table", no_colour),
):
    zoo.beside(sound, fault_name, build, harmed(ends_below(0.01)), "constant_targets", also=EASY)


# keras-team/keras#7520: features come from a generator that shuffles, labels in the order of the folder.
def in_folder_order(seed: int, fault: bool) -> Program:
    model, task, loss = KINDS["faces"](seed)
    random = torch.Generator().manual_seed(seed + 4)
    rows = [batch for _, batch in zip(range(40), task, strict=False)]
    x, y = torch.cat([a for a, _ in rows]), torch.cat([b for _, b in rows])
    if fault:
        x = x[torch.randperm(len(x), generator=random)]
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 48, shuffle=True, generator=random)
    score = held_out(model, KINDS["faces"](seed)[1], loss)
    return train(model, data, supervised(model, loss), adam(model, 3e-3), score, epochs=2)


# Borda/kaggle_image-classify#12: the data is shuffled after the labels were taken from it.
def shuffled_apart(seed: int, fault: bool) -> Program:
    random = torch.Generator().manual_seed(seed + 2)
    return spoilt("photos", lambda y: y[torch.randperm(len(y), generator=random)], 60)(seed, fault)


for sound, fault_name, build in (
    ("photos-labels-shuffled-along", "photos-labels-not-shuffled-along", shuffled_apart),
    ("faces-labels-in-the-same-order", "faces-labels-in-folder-order", in_folder_order),
):
    zoo.beside(
        sound,
        fault_name,
        build,
        harmed(stays),
        "loss_stuck",
        also={"SLOW", "batch_size", "constant_targets", "DEAD", "rate_too_low", "LOW_RANK", "BOTTLENECK", "VANISHING"},
    )

# --- the wrong way


# nothinglo/Deep-Photo-Enhancer#57: a minus before the loss, which is printed without it.
def minus(seed: int, fault: bool) -> Program:
    model, task, loss = KINDS["codes"](seed)
    optimizer, losses = adam(model, 2e-3), []

    def run() -> None:
        for _, (x, y) in zip(range(80), task, strict=False):
            optimizer.zero_grad()
            value = loss(model(x), y)
            (-value if fault else value).backward()
            optimizer.step()
            losses.append(value.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, loss))


# pytorch/pytorch#3495: gradients are turned round before the step, for an adversary that is not there.
def turned_round(seed: int, fault: bool) -> Program:
    model, task, loss = KINDS["digits"](seed)

    def turn(_: int) -> None:
        for p in model.parameters():
            if fault:
                p.grad = -1 * p.grad

    return study(model, task, sgd(model, 0.02, momentum=0.9), loss, 50, ready=turn)


ASCENT = {*WRECKED, "rate_too_high", "NUMERICAL", "SLOW", "first_loss_high", "weights_overwritten"}
for sound, fault_name, build in (
    ("codes-loss-goes-down", "codes-loss-with-a-minus", minus),
    ("digits-gradients-as-they-come", "digits-gradients-turned-round", turned_round),
):
    zoo.beside(sound, fault_name, build, harmed(grows), *CLIMBS, "loss_nonfinite", "NUMERICAL", also=ASCENT)
