# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Reported worries that turned out normal, and plain sound programs of the same kinds.

Half: reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau

from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._everyday_loops import loader, supervised, train
from validation.cases._reported_loop_nets import (
    Embedder,
    Gcn,
    Gpt,
    Lstm,
    Tagger,
    TextCnn,
    Unet,
    Vae,
    divergence,
)
from validation.cases._reported_loops import (
    KINDS,
    Loss,
    bce,
    codes,
    courts,
    digits,
    faces,
    houses,
    letters,
    loans,
    names,
    news,
    papers,
    rate_of,
    scans,
    square,
    ticks,
)
from validation.evidence.loops import learns
from validation.nets import mlp
from validation.programs import adam, held_out, script, sgd
from validation.tasks import token_loss
from validation.tasks.everyday import parity

zoo = Zoo("loop", half="reported", proof=learns(0.25))
adamw = torch.optim.AdamW


def sound(name: str, build: Callable[[int], Program], proof: Any = None) -> None:
    zoo.healthy(f"reported-{name}", build, proof)


# --- the order of calls


def ordered(name: str, order: str, steps: int = 60) -> Callable[[int], Program]:
    """Each letter is a line of the loop: zero_grad, forward, backward, step."""

    def build(seed: int) -> Program:
        model, task, loss = KINDS[name](seed)
        optimizer = adam(model, rate_of(name))

        def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
            for line in order:
                if line == "Z":
                    optimizer.zero_grad()
                elif line == "F":
                    value = loss_of()
                elif line == "B":
                    value.backward()
                else:
                    optimizer.step()
            return value

        return script(model, optimizer, task, loss, body, steps)

    return build


# rll/deepul#12, LeiaLi/SRDiff#15: zero_grad between the forward and backward.
sound("codes-clear-after-forward", ordered("codes", "FZBS"))
# inyeoplee77/SAGPool#15, pytorch/tutorials#2799: zero_grad after the step.
sound("papers-clear-after-step", ordered("papers", "FBSZ"))
sound("motions-clear-twice", ordered("motions", "ZFZBSZ"))


# ultralytics/ultralytics#11217: what is left of an epoch after the last full group of batches is thrown away.
def leftovers(seed: int) -> Program:
    model, task, loss = KINDS["photos"](seed)
    optimizer = sgd(model, 0.05, momentum=0.9)

    def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        if i % 10 == 0:
            optimizer.zero_grad()
        value = loss_of()
        (value / 4).backward()
        if i % 10 in (3, 7):
            optimizer.step()
            optimizer.zero_grad()
        return value

    return script(model, optimizer, task, loss, body, 120)


def whole_epoch(seed: int) -> Program:
    """One step for an epoch of eight batches, each of which counts an eighth."""
    model, task, loss = KINDS["houses"](seed)
    optimizer = adam(model, 1e-2)

    def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        value = loss_of()
        (value / 8).backward()
        if i % 8 == 7:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return value

    return script(model, optimizer, task, loss, body, 400)


# Lightning-AI/litgpt#1947, huggingface/transformers#35438: parts of unequal length, divided by all of their tokens.
def by_tokens(seed: int) -> Program:
    model = Gpt()
    optimizer, losses = adamw(model.parameters(), lr=4e-3), []
    task = letters(seed)

    def run() -> None:
        batches = iter(task)
        for _ in range(50):
            parts = [next(batches) for _ in range(3)]
            parts = [(x[:, :n], y[:, :n]) for (x, y), n in zip(parts, (4, 8, 12), strict=True)]
            total = sum(y.numel() for _, y in parts)
            optimizer.zero_grad()
            seen = 0.0
            for x, y in parts:
                part = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / total
                part.backward()
                seen += part.item()
            optimizer.step()
            losses.append(seen)

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, token_loss))


sound("photos-leftovers-of-an-epoch-dropped", leftovers)
sound("houses-one-step-for-eight-batches", whole_epoch)
sound("letters-unequal-parts-by-their-tokens", by_tokens)

# --- rates, schedules, clipping


def scheduled(name: str, make: Any, plan: Any, steps: int = 70, clip: float | None = None) -> Callable[[int], Program]:
    def build(seed: int) -> Program:
        model, task, loss = KINDS[name](seed)
        optimizer = make(model)
        schedule = plan(optimizer)
        return study(model, task, optimizer, loss, steps, clip=clip, after=lambda _: schedule.step())

    return build


# huggingface/transformers#34754, EleutherAI/gpt-neox#1379: the warm-up begins at zero, so the first step does nothing.
sound(
    "letters-warm-up-from-zero",
    scheduled(
        "letters", lambda m: adamw(m.parameters(), lr=5e-3), lambda o: LambdaLR(o, lambda i: min(1.0, i / 15)), 70, 1.0
    ),
)
# yassouali/pytorch-segmentation#74: a schedule in iterations is meant to move at each of them.
sound(
    "scans-polynomial-by-iterations",
    scheduled(
        "scans", lambda m: sgd(m, 0.1, momentum=0.9), lambda o: LambdaLR(o, lambda i: max(0.0, 1 - i / 70) ** 0.9), 70
    ),
)
sound(
    "photos-one-cycle-by-batches",
    scheduled("photos", lambda m: sgd(m, 0.01, momentum=0.9), lambda o: OneCycleLR(o, 0.06, total_steps=72), 70),
)
sound(
    "news-cosine-to-nothing",
    scheduled("news", lambda m: adamw(m.parameters(), lr=1e-2), lambda o: CosineAnnealingLR(o, 90), 90),
)


def plateau(seed: int) -> Program:
    """The rate is halved whenever the loss of the validation data rests; at the end it does."""
    model, task, loss = KINDS["ticks"](seed)
    optimizer = adam(model, 2e-2)
    schedule, unseen = ReduceLROnPlateau(optimizer, factor=0.5, patience=4), held_out(model, task, loss)
    return study(model, task, optimizer, loss, 110, after=lambda _: schedule.step(unseen()))


sound("ticks-rate-halved-on-a-plateau", plateau)


def clipped(name: str, make: Any, limit: float, steps: int) -> Callable[[int], Program]:
    def build(seed: int) -> Program:
        model, task, loss = KINDS[name](seed)
        return study(model, task, make(model), loss, steps, clip=limit)

    return build


# facebookresearch/detr#198: every step is clipped, at 0.1, and Adam does not mind.
sound("phrases-always-clipped-at-0.1-with-adam", clipped("phrases", lambda m: adamw(m.parameters(), lr=1e-2), 0.1, 80))
# huggingface/transformers#41431: the limit is 1 and no gradient reaches it.
sound("names-clipped-at-1-which-none-reaches", clipped("names", lambda m: adam(m, 1e-2), 1.0, 70))
# wandb/senpai#978: all steps are clipped, the rate was chosen with that.
sound("codes-always-clipped-at-0.3", clipped("codes", lambda m: sgd(m, 0.3, momentum=0.9), 0.3, 120))


class WordModel(nn.Module):
    """An LSTM over signs, with dropout on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(16, 24), nn.LSTM(24, 24, batch_first=True)
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(24, 16)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(self.lstm(self.drop(self.words(x)))[0]))


# pytorch/examples, word_language_model: SGD at 20 with the norm clipped at 0.25.
sound(
    "letters-sgd-at-20-clipped-at-0.25",
    lambda s: study(m := WordModel(), letters(s), sgd(m, 20.0), token_loss, 120, clip=0.25),
)


def optimized(name: str, kind: str, lr: float, steps: int, **options: Any) -> Callable[[int], Program]:
    def build(seed: int) -> Program:
        model, task, loss = KINDS[name](seed)
        return study(model, task, getattr(torch.optim, kind)(model.parameters(), lr=lr, **options), loss, steps)

    return build


# mlfoundations/open_clip#32: a decay of 0.2, as is usual with AdamW.
sound("digits-adamw-decay-0.2", optimized("digits", "AdamW", 3e-3, 70, weight_decay=0.2))
sound("motions-adagrad", optimized("motions", "Adagrad", 3e-2, 80))
sound("flowers-sgd-at-1", optimized("flowers", "SGD", 1.0, 60))
sound("reviews-rmsprop", optimized("reviews", "RMSprop", 5e-3, 90))
sound("courts-nadam-with-decay", optimized("courts", "NAdam", 3e-3, 70, weight_decay=1e-3))


# XPixelGroup/BasicSR#359: the loss is a sum over pixels, which Adam does not see.
def charbonnier(seed: int) -> Program:
    model = Unet()
    loss = lambda out, y: ((out - y).square() + 1e-6).sqrt().sum()  # noqa: E731
    return study(model, courts(seed), adam(model, 3e-3), loss, 70, F.mse_loss)


# skhu101/GM-NAS#4: next(iter(loader)) in the loop, of a loader that shuffles: a random batch each time.
def random_batch(seed: int) -> Program:
    model, task, loss = KINDS["faces"](seed)
    data = loader(task, seed, 20, 32, shuffle=True)

    class Random:
        def __iter__(self) -> Iterator[Any]:
            for _ in range(70):
                yield next(iter(data))

    score = held_out(model, KINDS["faces"](seed)[1], loss)
    rows: Any = Random()
    return train(model, rows, supervised(model, loss), adam(model, 5e-3), score, epochs=1)


sound("courts-sum-of-pixels-with-adam", charbonnier)
sound("faces-random-batch-by-next-iter", random_batch)

# --- one batch, small batches, noisy and odd losses


# The usual way to train a graph network: the whole graph at each step, with some nodes held back.
def one_graph(seed: int) -> Program:
    model = Gcn()
    (x, link), y = papers(seed, nodes=160, batch=1).aside()
    known = torch.rand(160, generator=torch.Generator().manual_seed(seed)) < 0.5
    optimizer, losses = adamw(model.parameters(), lr=1e-2, weight_decay=5e-4), []

    def error(of: Tensor) -> Tensor:
        return F.cross_entropy(model(x, link)[0, of], y[0, of])

    def run() -> None:
        for _ in range(60):
            optimizer.zero_grad()
            loss = error(known)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    def score() -> float:
        with torch.no_grad():
            return error(~known).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


def whole_table(seed: int) -> Program:
    """All 400 rows at each step."""
    model = mlp([8, 24, 1], nn.Tanh)
    x, y = houses(seed, batch=400).aside()
    rows: Any = [(x, y)] * 120
    score = held_out(model, houses(seed + 0, batch=64), square)
    return train(model, rows, supervised(model, square), adam(model, 2e-2), score, epochs=1)


sound("papers-one-graph-at-each-step", one_graph)
sound("houses-whole-table-at-each-step", whole_table)


def small_batches(seed: int) -> Program:
    """imatge-upc/liverseg-2017-nipsws#7: one slice at a time; the loss jumps, and falls."""
    model = Unet(norm=False)
    score = held_out(model, scans(seed), bce)
    return study(model, scans(seed, batch=1), adam(model, 2e-3), bce, 150, score=score)


class Denoiser(nn.Module):
    """The noise in a row, by the row and by how much there is of it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp([25, 64, 64, 24], nn.SiLU)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        return self.net(torch.cat([x, level], dim=1))


def diffusion(seed: int) -> Program:
    """zoubohao/DenoisingDiffusionProbabilityModel-ddpm-#48, jiuntian/interactdiffusion#12: a loss that mostly jumps."""
    model, random = Denoiser(), torch.Generator().manual_seed(seed)

    def noised(x: Tensor, source: torch.Generator) -> Tensor:
        level, noise = torch.rand(len(x), 1, generator=source), torch.randn(x.shape, generator=source)
        mixed = (1 - level).sqrt() * x + level.sqrt() * noise
        return F.mse_loss(model(mixed, level), noise)

    task = codes(seed, batch=32)
    aside = codes(seed, batch=512).aside()[0]

    def score() -> float:
        with torch.no_grad():
            return noised(aside, torch.Generator().manual_seed(seed)).item()

    return study(model, task, adam(model, 5e-3), steps=140, loss_of=lambda b: noised(b[0], random), score=score)


def late_start(seed: int) -> Program:
    """zhanghang1989/ResNeSt#126: nothing seems to happen for long, then the loss falls."""
    model, task = mlp([12, 96, 2]), parity(seed, bits=3)
    return study(model, task, adam(model, 5e-3), steps=150)


def near(seed: int) -> Program:
    """fuenwang/3D-BoundingBox#9, Jiahao-UTS/DSLPT#3: a loss below zero, whose least value is -1."""
    model, task = mlp([16, 32, 4]), faces(seed)
    goal = F.normalize(torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)), dim=1)
    loss = lambda out, y: -F.cosine_similarity(out, goal[y]).mean()  # noqa: E731
    return study(model, task, adam(model, 5e-3), loss, 70, lambda out, y: 1 + loss(out, y))


def two_losses(seed: int) -> Program:
    """PolyU-ChenLab/ETBench#10: the first loss is 20 and more, for it is a sum of two, of which one has a weight."""
    model = nn.ModuleDict({"body": mlp([64, 48]), "kind": nn.Linear(48, 10), "bright": nn.Linear(48, 1)})
    task = digits(seed)

    def parts(x: Tensor, y: Tensor) -> Tensor:
        h = F.relu(model["body"](x.flatten(1)))
        bright = 3 * x.mean(dim=(1, 2, 3)) + 1
        return F.cross_entropy(model["kind"](h), y) + 12 * F.mse_loss(model["bright"](h).squeeze(1), bright)

    def score() -> float:
        with torch.no_grad():
            return parts(*task.aside()).item()

    return study(model, task, adam(model, 5e-3), steps=70, loss_of=lambda b: parts(*b), score=score)


def in_kelvin(seed: int) -> Program:
    """gitbooo/CrossViVit#5: targets as they are, so the loss is around fifty; the bias begins at their mean."""
    model = mlp([8, 32, 32, 1])
    nn.init.constant_(model[-1].bias, 290.0)
    task = houses(seed).changed(lambda x, y: (x, 290 + 4 * y))
    return study(model, task, adam(model, 1e-2), square, 100)


def warmed_divergence(seed: int) -> Program:
    """The weight of a VAE's divergence grows from nothing, and with it, for a while, the loss."""
    model, task, step = Vae(), codes(seed), [0]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out, mean, logvar = model(batch[0])
        step[0] += 1
        return F.mse_loss(out, batch[1]) + 0.05 * min(1.0, step[0] / 80) * divergence(mean, logvar).mean()

    def score() -> float:
        model.eval()
        x = task.aside()[0]
        with torch.no_grad():
            error = F.mse_loss(model(x)[0], x).item()
        model.train()
        return error

    return study(model, task, adam(model, 1e-2), steps=110, loss_of=loss_of, score=score)


def harder(seed: int) -> Program:
    """Longer texts come later, and the loss rises when they do."""
    model = Tagger()
    task, count = names(seed), [0]

    def grow(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        count[0] += 1
        length = 3 + 2 * min(3, count[0] // 20)
        return x[:, :length], y[:, :length]

    score = held_out(model, names(seed), token_loss)
    return study(model, task.changed(grow), adam(model, 1e-2), token_loss, 90, score=score)


for name, build in (
    ("scans-one-slice-at-a-time", small_batches),
    ("codes-noise-at-random-levels", diffusion),
    ("parity-nothing-for-long-then-all", late_start),
    ("faces-loss-below-zero", near),
    ("digits-first-loss-of-two-parts", two_losses),
    ("houses-temperatures-in-kelvin", in_kelvin),
    ("codes-divergence-warmed-up", warmed_divergence),
    ("names-texts-grow-longer", harder),
):
    sound(name, build)

# --- losses and activations that look doubled


def with_loss(name: str, loss: Any, rate: float | None = None, steps: int = 70) -> Callable[[int], Program]:
    def build(seed: int) -> Program:
        model, task, meant = KINDS[name](seed)
        return study(model, task, adam(model, rate or rate_of(name)), loss, steps, meant)

    return build


# skorch-dev/skorch#519: log_softmax before CrossEntropyLoss changes nothing.
sound("motions-log-softmax-then-cross-entropy", with_loss("motions", lambda o, y: F.cross_entropy(o.log_softmax(1), y)))
sound("numerals-log-softmax-and-nll", with_loss("numerals", lambda o, y: F.nll_loss(o.log_softmax(1), y)))
# One sigmoid, and a loss that expects it.
sound("loans-sigmoid-and-bce", with_loss("loans", lambda o, y: F.binary_cross_entropy(o.sigmoid(), y)))
# CoinCheung/pytorch-loss#10: a focal loss takes the sigmoid for its weight and the logits for its loss.
sound(
    "scans-focal-loss-of-logits",
    with_loss(
        "scans",
        lambda o, y: ((y - o.sigmoid()).abs().square() * bce(o, y, reduction="none")).mean() * 4,
    ),
)
sound("photos-smoothed-labels", with_loss("photos", lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1)))
# pytorch/pytorch#18349: broadcasting that is meant, several predictions of one target.
sound(
    "ticks-four-predictions-of-one-target",
    lambda s: study(
        m := Lstm(out=4),
        ticks(s),
        adam(m, 1e-2),
        lambda o, y: (o - y[:, None]).square().mean(),
        70,
        lambda o, y: F.mse_loss(o.mean(dim=1), y),
    ),
)


# ssbuild/chatglm_finetuning#193: most labels are -100, and that is right.
def mostly_masked(seed: int) -> Program:
    model, task = Gpt(), letters(seed, length=16)
    score = held_out(model, letters(seed, length=16), token_loss)

    def mask(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = y.clone()
        y[:, :12] = -100
        return x, y

    return study(model, task.changed(mask), adamw(model.parameters(), lr=5e-3), token_loss, 80, score=score)


# bentrevett/pytorch-sentiment-analysis#103: the row of the filling never moves, and must not.
def padded(seed: int) -> Program:
    model = TextCnn(words=49)
    model.words = nn.Embedding(49, 16, padding_idx=48)
    task = news(seed).mapped(lambda x: F.pad(x, (0, 10), value=48))
    return study(model, task, adam(model, 1e-2), steps=80)


def rarely_positive(seed: int) -> Program:
    """One row in fifteen is positive, and counts more."""
    model = mlp([10, 32, 1])
    way = torch.randn(10, generator=torch.Generator().manual_seed(seed + 11))
    rare = lambda x, _y: (x, (x @ way > 1.5 * way.norm()).float()[:, None])  # noqa: E731
    weighed = lambda o, y: bce(o, y, pos_weight=torch.tensor(8.0))  # noqa: E731
    return study(model, loans(seed, batch=128).changed(rare), adam(model, 1e-2), weighed, 90)


def triplets(seed: int) -> Program:
    """Towards the end most triplets are far enough apart and give no gradient."""
    model, task = Embedder(), faces(seed)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        far = torch.cdist(out, out)
        alike = y[:, None] == y
        near = far.masked_fill(~alike, 0).amax(dim=1)
        other = far.masked_fill(alike, 1e3).amin(dim=1)
        return F.relu(near - other + 0.5).mean()

    return study(model, task, adam(model, 5e-3), loss, 110)


for name, build in (
    ("letters-three-labels-in-four-ignored", mostly_masked),
    ("news-row-of-the-filling-rests", padded),
    ("loans-one-positive-in-fifteen", rarely_positive),
    ("faces-triplets-mostly-done", triplets),
):
    sound(name, build)
