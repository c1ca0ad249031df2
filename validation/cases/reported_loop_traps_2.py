# ruff: noqa: D103 - a case is explained by its name
"""Reported worries that turned out normal, and plain sound programs: games of two, averages, precision, ends of runs.

Half: reported.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._reported_loop_nets import Embedder, Gpt, Lenet, Reader, Resnet, TextCnn, Unet
from validation.cases._reported_loops import (
    KINDS,
    Loss,
    adversaries,
    bce,
    cloud,
    digits,
    far_from_cloud,
    gan,
    houses,
    letters,
    loans,
    news,
    photos,
    rate_of,
    reviews,
    scans,
    square,
    twins,
)
from validation.evidence.loops import keeps, learns
from validation.nets import mlp
from validation.programs import adam, fit, fit_by_closure, held_out, script, sgd
from validation.tasks import token_loss

zoo = Zoo("loop", half="reported", proof=learns(0.25))
adamw = torch.optim.AdamW


def sound(name: str, build: Callable[[int], Program], proof: Any = None) -> None:
    zoo.healthy(f"reported-{name}", build, proof)


# --- games of two: losses that jump, rise, and are no measure of anything


def game(
    seed: int, body: Callable[..., tuple[Tensor, Tensor]], rate: float, steps: int, after: Any = None, extra: int = 1
) -> Program:
    """`body` says the losses of both by the judge's answers to what is real and what is made."""
    model = gan()
    generator, judge = model["generator"], model["discriminator"]
    of_g, of_d = (torch.optim.RMSprop(part.parameters(), lr=rate) for part in (generator, judge))
    random, losses = torch.Generator().manual_seed(seed + 5), []

    def run() -> None:
        for _ in range(steps):
            for _ in range(extra):
                made = generator(torch.randn(64, 4, generator=random))
                of_d.zero_grad()
                loss = body(judge(cloud(seed, 64, random)), judge(made))[1]
                loss.backward()  # the generator gets gradients here, too, which its own zero_grad throws away
                of_d.step()
                if after is not None:
                    after(judge)
            of_g.zero_grad()
            loss = body(None, judge(generator(torch.randn(64, 4, generator=random))))[0]
            loss.backward()
            of_g.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=[of_g, of_d], run=run, losses=losses, score=far_from_cloud(model, seed))


def least_squares(real: Tensor | None, made: Tensor) -> tuple[Tensor, Tensor]:
    judged = made.square().mean() if real is None else (real - 1).square().mean() + made.square().mean()
    return (made - 1).square().mean(), judged


def earth_mover(real: Tensor | None, made: Tensor) -> tuple[Tensor, Tensor]:
    return -made.mean(), made.mean() - (0 if real is None else real.mean())


def held_small(judge: nn.Module) -> None:
    with torch.no_grad():
        for p in judge.parameters():
            p.clamp_(-0.15, 0.15)


# MorvanZhou/PyTorch-Tutorial#80, alterzero/DBPN-Pytorch#37: the fake is not detached in the discriminator's step.
sound("cloud-least-squares-fake-not-detached", lambda s: game(s, least_squares, 2e-3, 220))
# A judge whose weights are cut back after each of its steps; losses below zero.
sound(
    "cloud-earth-mover-weights-held-small",
    lambda s: game(s, earth_mover, 3e-3, 150, held_small, 3),
    learns(0.25, ("discriminator.4.bias",)),
)


# jik876/hifi-gan#60, deepfakes/faceswap-model#14: losses that jump about; the judge is slower than the generator.
def two_rates(seed: int) -> Program:
    model = gan()
    of_g = torch.optim.Adam(model["generator"].parameters(), lr=5e-3, betas=(0.5, 0.99))
    of_d = torch.optim.Adam(model["discriminator"].parameters(), lr=2e-3, betas=(0.5, 0.99))
    return adversaries(seed, model, [of_g, of_d], steps=220, batch=24)


sound("cloud-judge-at-a-lower-rate", two_rates)

# --- pairs


def siamese(seed: int) -> Program:
    model, task = Embedder(), twins(seed)
    model.fc3 = nn.Linear(32, 8, bias=False)

    def contrast(x: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        far = F.pairwise_distance(model(x[0]), model(x[1]))
        return (y * far.square() + (1 - y) * F.relu(1.5 - far).square()).mean()

    def score() -> float:
        with torch.no_grad():
            return contrast(*task.aside()).item()

    return study(model, task, adam(model, 4e-3), steps=80, loss_of=lambda b: contrast(*b), score=score)


def cosine_of_twins(seed: int) -> Program:
    """A sharp temperature, as it is learned by models of pictures and texts."""
    model = nn.ModuleDict({"a": mlp([16, 32, 8]), "b": mlp([16, 32, 8])})
    scale = nn.Parameter(torch.tensor(2.0))
    model["a"].register_parameter("scale", scale)
    task = twins(seed, people=32, same=1.0, batch=32)

    def match(x: tuple[Tensor, Tensor], _y: Tensor) -> Tensor:
        a, b = F.normalize(model["a"](x[0]), dim=1), F.normalize(model["b"](x[1]), dim=1)
        near, own = scale.exp() * a @ b.T, torch.arange(len(a))
        return (F.cross_entropy(near, own) + F.cross_entropy(near.T, own)) / 2

    def score() -> float:
        with torch.no_grad():
            return match(*task.aside()).item()

    return study(model, task, adam(model, 5e-3), steps=110, loss_of=lambda b: match(*b), score=score)


# kavehhassani/mvgrl#4: the loss of a contrastive task jumps with its batches.
sound("twins-contrastive-pairs", siamese)
sound("twins-matched-across-two-towers", cosine_of_twins)

# --- averages, copies, ensembles


def averaged(seed: int) -> Program:
    """An average of the weights follows; the model itself trains on."""
    model, task, loss = KINDS["digits"](seed)
    average = AveragedModel(model)
    return study(model, task, adam(model, 3e-3), loss, 60, after=lambda _: average.update_parameters(model))


def looks_ahead(seed: int) -> Program:
    """After every five steps the weights go half of the way back, which is how this optimizer is meant."""
    model, task, loss = KINDS["codes"](seed)
    slow = copy.deepcopy(model.state_dict())

    def back(step: int) -> None:
        if step % 5 == 4:
            for key, value in model.state_dict().items():
                slow[key] = slow[key] + 0.5 * (value - slow[key])
            model.load_state_dict(slow)

    return study(model, task, adam(model, 2e-2), loss, 110, after=back)


def ensemble(seed: int) -> Program:
    model = nn.ModuleList(mlp([10, 16, 1], nn.Tanh) for _ in range(3))
    task = loans(seed)

    def error(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([bce(member(x), y) for member in model]).sum()

    def score() -> float:
        with torch.no_grad():
            return error(*task.aside()).item()

    return study(model, task, adam(model, 1e-2), steps=80, loss_of=lambda b: error(*b), score=score)


# mozilla/DeepSpeech#3245: at a plateau the best weights are loaded again, and the rate is lowered.
def best_again(seed: int) -> Program:
    model, task, loss = KINDS["motions"](seed)
    optimizer, unseen = adam(model, 1e-2), held_out(model, task, loss)
    best, kept, bad = [1e9], [copy.deepcopy(model.state_dict())], [0]

    def check(step: int) -> None:
        if step % 5 != 4:
            return
        now = unseen()
        if now < best[0]:
            best[0], kept[0], bad[0] = now, copy.deepcopy(model.state_dict()), 0
            return
        bad[0] += 1
        if bad[0] == 3:
            model.load_state_dict(kept[0])
            optimizer.param_groups[0]["lr"] *= 0.3
            bad[0] = 0

    return study(model, task, optimizer, loss, 90, after=check)


sound("digits-average-of-weights", averaged)
sound("codes-looks-ahead-and-back", looks_ahead)
sound("loans-three-members", ensemble)
sound("motions-best-weights-again-at-a-plateau", best_again)

# --- ways to step


def by_closure(seed: int) -> Program:
    model = mlp([8, 16, 1], nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4)
    return fit_by_closure(model, houses(seed, batch=256), optimizer, 25, square)


def in_half(seed: int) -> Program:
    """Forward in bfloat16, weights and steps in float32."""
    model, task = Lenet(), digits(seed)
    score = held_out(model, task)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(batch[0])
        return F.cross_entropy(out.float(), batch[1])

    return study(model, task, adam(model, 3e-3), steps=60, loss_of=loss_of, score=score)


# pytorch/examples#1196: a scaler, and gradients that are unscaled before they are clipped.
def scaled_right(seed: int) -> Program:
    model, task, loss = KINDS["photos"](seed)
    optimizer, scaler = sgd(model, 0.05, momentum=0.9), torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        optimizer.zero_grad()
        value = loss_of()
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        return value

    return script(model, optimizer, task, loss, body, 60, scaler=scaler)


def two_groups(seed: int) -> Program:
    """Norms and biases without decay, the rest with it."""
    model = Gpt()
    some = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": some, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return study(model, letters(seed), adamw(groups, lr=4e-3, betas=(0.9, 0.95)), token_loss, 60, clip=1.0)


# spro/practical-pytorch#55: two optimizers, one of the encoder and one of the decoder, at two rates.
def reader_and_writer(seed: int) -> Program:
    model, task, loss = KINDS["phrases"](seed)
    first, second = adam(model.encoder, 1e-2), adam(model.decoder, 2e-2)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        first.zero_grad()
        second.zero_grad()
        value = loss_of()
        value.backward()
        nn.utils.clip_grad_norm_(model.encoder.parameters(), 1.0)
        nn.utils.clip_grad_norm_(model.decoder.parameters(), 1.0)
        first.step()
        second.step()
        return value

    return script(model, [first, second], task, loss, body, 90)


def normed(seed: int) -> Program:
    model = TextCnn()
    for conv in model.convs:
        parametrizations.weight_norm(conv)
    return study(model, news(seed), adam(model, 1e-2), steps=90)


def mixed(seed: int) -> Program:
    """Pictures and labels in mixtures of two: the loss of training stays high."""
    model, task, random = Resnet(), photos(seed), torch.Generator().manual_seed(seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        (x, y), share = batch, float(torch.rand(1, generator=random))
        other = torch.randperm(len(y), generator=random)
        out = model(share * x + (1 - share) * x[other])
        return share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[other])

    return study(model, task, adam(model, 5e-3), steps=90, loss_of=loss_of, score=held_out(model, task))


def big_table(seed: int) -> Program:
    """Twenty thousand rows, of which forty are ever asked for, with gradients that are sparse."""
    table = nn.Embedding(20000, 8, sparse=True)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(96, 2))
    optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=2e-2)
    rest = adam(model[2], 1e-2)
    task, losses = reviews(seed).mapped(lambda x: 300 * x + 7), []

    def run() -> None:
        for _, (x, y) in zip(range(110), task, strict=False):
            optimizer.zero_grad()
            rest.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            rest.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=[optimizer, rest], run=run, losses=losses, score=held_out(model, task))


for name, build in (
    ("houses-steps-by-closure", by_closure),
    ("digits-forward-in-bfloat16", in_half),
    ("photos-unscaled-then-clipped", scaled_right),
    ("letters-norms-without-decay", two_groups),
    ("phrases-encoder-and-decoder-at-two-rates", reader_and_writer),
    ("news-branches-with-weight-norm", normed),
    ("photos-mixed-in-pairs", mixed),
    ("reviews-few-rows-of-a-big-table", big_table),
):
    sound(name, build)

# --- the end of a run: small gradients of a model that is done


def goes_on(name: str, before: int, rate: float, steps: int = 50) -> Callable[[int], Program]:
    """It has learned what there is, and is trained on at a low rate."""

    def build(seed: int) -> Program:
        model, task, loss = KINDS[name](seed)
        fit(model, task, adam(model, rate_of(name)), before, loss).run()
        model.zero_grad(set_to_none=True)
        return study(model, task, adam(model, rate), loss, steps)

    return build


# google/deepvariant#194: late in a run the improvements are small, and that is all.
sound("digits-nearly-done", goes_on("digits", 120, 1e-4), keeps(0.1))
sound("codes-done-at-a-low-rate", goes_on("codes", 250, 1e-4), keeps(0.1))
sound("flowers-done", goes_on("flowers", 200, 1e-3), keeps(0.3))


def tuned_low(seed: int) -> Program:
    """Fine-tuning on pictures that differ a little, at a rate that looks low and is right."""
    model = Unet()
    fit(model, scans(seed), adam(model, 5e-3), 60, bce).run()
    model.zero_grad(set_to_none=True)
    task = scans(seed).mapped(lambda x: 0.4 * x - 0.6)
    return study(model, task, adam(model, 1e-3), bce, 80)


def words_first(seed: int) -> Program:
    """The vectors of words learn at a tenth of the rate."""
    model = Reader()
    groups = [{"params": list(model.words.parameters()), "lr": 2e-3}]
    groups.append({"params": [*model.lstm.parameters(), *model.fc.parameters()], "lr": 1e-2})
    return study(model, reviews(seed), torch.optim.Adam(groups), steps=90)


sound("scans-fine-tuned-at-a-low-rate", tuned_low)
sound("reviews-words-at-a-lower-rate", words_first)

# --- plain programs of tutorials


def plain(name: str, kind: str = "Adam", steps: int = 80, rate: float | None = None) -> Callable[[int], Program]:
    def build(seed: int) -> Program:
        model, task, loss = KINDS[name](seed)
        return study(model, task, getattr(torch.optim, kind)(model.parameters(), lr=rate or rate_of(name)), loss, steps)

    return build


for name in ("loans", "movies", "digits", "photos", "scans", "motions", "ticks", "names", "traffic", "phrases"):
    sound(f"{name}-plain", plain(name))
