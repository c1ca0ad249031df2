# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Reported worries that turned out normal: modes, scales, parts that are not trained and not meant to be, optimizers.

Half: reported.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._reported_loop_nets import (
    Checkpointed,
    Embedder,
    Gpt,
    Lora,
    Resnet,
)
from validation.cases._reported_loops import (
    KINDS,
    bce,
    codes,
    digits,
    faces,
    flat,
    houses,
    learning,
    letters,
    photos,
    square,
)
from validation.evidence.loops import learns
from validation.nets import mlp
from validation.programs import adam, fit, held_out, sgd
from validation.tasks import token_loss

zoo = Zoo("loop", half="reported", proof=learns(0.25))
adamw = torch.optim.AdamW


def sound(name: str, build: Callable[[int], Program], proof: Any = None) -> None:
    zoo.healthy(f"reported-{name}", build, proof)


# --- modes


def modeless(seed: int) -> Program:
    """tk-rusch/coRNN#1: the mode is not set back, and the model has nothing that minds."""
    model, task, loss = KINDS["ticks"](seed)

    def look(step: int) -> None:
        if step % 20 == 0:
            model.eval()

    return study(model, task, adam(model, 1e-2), loss, 80, before=look)


def other_classes(seed: int, width: int = 12) -> Resnet:
    """A network that has learned other pictures, with a new last layer."""
    model = Resnet(width=width)
    fit(model, photos(seed + 6), adam(model, 5e-3), 60).run()
    model.zero_grad(set_to_none=True)
    model.fc = nn.Linear(width, 6)
    return model


def norms_at_rest(seed: int) -> Program:
    """saahiluppal/catr#12 asks why: batch norms of a trained network keep their statistics and their weights."""
    model = other_classes(seed)

    def rest(_: int) -> None:
        model.train()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval().requires_grad_(False)

    rest(0)
    return study(model, photos(seed), torch.optim.Adam(learning(model), lr=3e-3), steps=60, before=rest)


def dropped(seed: int) -> Program:
    """Half of the units are dropped in training, so its loss stays above that of the validation data."""
    model = flat(nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 10)))
    return study(model, digits(seed), adam(model, 5e-3), steps=70)


sound("ticks-eval-left-on-without-harm", modeless)
sound("photos-norms-kept-at-rest", norms_at_rest)
sound("digits-half-dropped", dropped)

# --- scales


def norm_first(seed: int) -> Program:
    """dreamquark-ai/tabnet#356: columns as they are in the file, and a batch norm that takes them first."""
    model = nn.Sequential(nn.BatchNorm1d(8), *mlp([8, 32, 32, 1]))
    size = torch.tensor([15.0, 4e3, 1e-2, 1.0, 2.0, 3e4, 0.1, 1.0])
    shift = torch.tensor([1985.0, 9e3, 0.05, 2.0, 5.0, 8e4, 0.4, 1.0])
    model[0].momentum = None  # a plain mean over all batches, for the few steps there are
    return study(model, houses(seed).mapped(lambda x: size * x + shift), adam(model, 5e-3), square, 80)


class Scaled(nn.Module):
    """Pixels from 0 to 255 come in; the model divides them itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x / 255 - 0.5) / 0.25)


def divided_within(seed: int) -> Program:
    """ultralytics/yolov5#364: the loader gives 0 to 255, they are divided later."""
    model = Scaled(KINDS["digits"](seed)[0])
    return study(model, digits(seed).mapped(lambda x: (60 * x + 128).clamp(0, 255)), adam(model, 3e-3), steps=70)


sound("houses-raw-columns-behind-a-norm", norm_first)
sound("digits-pixels-divided-within", divided_within)

# --- what is not trained, and is not meant to be


def only_the_head(seed: int) -> Program:
    """tianrun-chen/SAM-Adapter-PyTorch#72: the encoder is frozen, and the head learns."""
    model = other_classes(seed, 16)
    model.requires_grad_(False)
    model.fc.requires_grad_(True)
    return study(model, photos(seed), torch.optim.Adam(learning(model), lr=2e-2), steps=80)


def probe(seed: int) -> Program:
    """vturrisi/solo-learn#135: a classifier watches the features, which are detached for it alone."""
    model = nn.ModuleDict({"encoder": mlp([16, 32, 8]), "decoder": mlp([8, 32, 16]), "probe": nn.Linear(8, 8)})
    task = faces(seed)

    def parts(x: Tensor, y: Tensor) -> Tensor:
        code = model["encoder"](x)
        return F.mse_loss(model["decoder"](code), x) + F.cross_entropy(model["probe"](code.detach()), y)

    def score() -> float:
        with torch.no_grad():
            return parts(*task.aside()).item()

    return study(model, task, adam(model, 5e-3), steps=100, loss_of=lambda b: parts(*b), score=score)


def taught(seed: int) -> Program:
    """A teacher under no_grad, in the same container as who learns from it."""
    teacher = flat(mlp([64, 64, 10]))
    fit(teacher, digits(seed), adam(teacher, 5e-3), 80).run()
    teacher.zero_grad(set_to_none=True)
    model = nn.ModuleDict({"teacher": teacher.requires_grad_(False).eval(), "student": flat(mlp([64, 12, 10]))})
    task = digits(seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            soft = (model["teacher"](batch[0]) / 2).softmax(dim=1)
        out = model["student"](batch[0])
        return F.cross_entropy(out / 2, soft) * 2 + F.cross_entropy(out, batch[1])

    score = held_out(model["student"], task)
    return study(model, task, adam(model["student"], 5e-3), steps=90, loss_of=loss_of, score=score)


def slow_copy(seed: int) -> Program:
    """A target that follows slowly, by weights that are written into it after each step."""
    online = nn.Sequential(mlp([24, 32, 8]), nn.Linear(8, 8))
    model = nn.ModuleDict({"online": online, "target": copy.deepcopy(online[0]).requires_grad_(False)})
    task, random = codes(seed), torch.Generator().manual_seed(seed)
    head = nn.Linear(8, 24)
    model["head"] = head

    def view(x: Tensor, source: torch.Generator) -> Tensor:
        return x * (torch.rand(x.shape, generator=source) < 0.8)

    def parts(x: Tensor, source: torch.Generator) -> Tensor:
        code = model["online"][0](view(x, source))
        with torch.no_grad():
            goal = F.normalize(model["target"](view(x, source)), dim=1)
        apart = 1 - F.cosine_similarity(model["online"][1](code), goal).mean()
        return apart + F.mse_loss(model["head"](code), x)

    def follow(_: int) -> None:
        with torch.no_grad():
            for slow, fast in zip(model["target"].parameters(), model["online"][0].parameters(), strict=True):
                slow.lerp_(fast, 0.05)

    def score() -> float:
        with torch.no_grad():
            return parts(task.aside()[0], torch.Generator().manual_seed(seed)).item()

    optimizer = torch.optim.Adam(learning(model), lr=5e-3)
    return study(model, task, optimizer, steps=100, loss_of=lambda b: parts(b[0], random), score=score, after=follow)


def known_letters(seed: int, signs: int = 16) -> Gpt:
    """A small GPT that knows other texts."""
    model = Gpt(signs=signs, width=24)
    fit(model, letters(seed + 7), adam(model, 5e-3), 50, token_loss).run()
    model.zero_grad(set_to_none=True)
    return model


def adapted(seed: int) -> Program:
    """huggingface/peft#793: the second factor is zero at first, and the first one gets no gradient until it moves."""
    model = known_letters(seed).requires_grad_(False)
    for block in model.blocks:
        for place in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(block.attn, place, Lora(getattr(block.attn, place), 8))
        block.up, block.down = Lora(block.up, 8), Lora(block.down, 8)
    return study(model, letters(seed), adamw(learning(model), lr=1e-2, weight_decay=0.0), token_loss, 70)


def biases(seed: int) -> Program:
    """Only biases and norms learn; there are few of them, and it is enough."""
    model = known_letters(seed)
    for n, p in model.named_parameters():
        p.requires_grad = n.endswith("bias") or "ln" in n
    return study(model, letters(seed), torch.optim.Adam(learning(model), lr=3e-2), token_loss, 90)


def new_rows(seed: int) -> Program:
    """A new word is learned: a hook lets through only the gradient of its row of the table."""
    model = known_letters(seed)
    score = held_out(model, letters(seed), token_loss)
    model.requires_grad_(False)
    model.wte.weight.requires_grad_(True)
    keep = torch.ones(16, 1)
    keep[:2] = 0
    model.wte.weight.register_hook(lambda g: g * keep)
    model.lm_head.requires_grad_(True)
    optimizer = torch.optim.Adam(learning(model), lr=2e-2, weight_decay=0.0)
    return study(model, letters(seed), optimizer, token_loss, 80, score=score)


class Gated(nn.Module):
    """Residual blocks behind gates that begin at zero, so at first only the gates get gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(16, 24), nn.Linear(24, 8)
        self.blocks = nn.ModuleList(mlp([24, 24, 24]) for _ in range(3))
        self.gates = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for block, gate in zip(self.blocks, self.gates, strict=True):
            h = h + gate * block(F.relu(h))
        return self.out(h)


def checkpointed(seed: int) -> Program:
    """Blocks that are computed twice, in a model all of which learns."""
    model = Gpt(width=24)
    model.blocks = nn.ModuleList(Checkpointed(block) for block in model.blocks)
    return study(model, letters(seed), adam(model, 5e-3), token_loss, 60)


def alternating(seed: int) -> Program:
    """Two heads, of which each second batch has one; the other rests meanwhile."""
    model = nn.ModuleDict({"body": mlp([16, 32]), "who": nn.Linear(32, 8), "first": nn.Linear(32, 1)})
    task, step = faces(seed), [0]

    def parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        h = F.relu(model["body"](x))
        return F.cross_entropy(model["who"](h), y), bce(model["first"](h).squeeze(1), (y < 4).float())

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        step[0] += 1
        return parts(*batch)[step[0] % 2]

    def score() -> float:
        with torch.no_grad():
            return sum(parts(*task.aside())).item()

    return study(model, task, adam(model, 5e-3), steps=120, loss_of=loss_of, score=score)


for name, build, proof in (
    ("photos-trained-body-frozen", only_the_head, None),
    ("faces-probe-on-detached-features", probe, None),
    ("digits-teacher-without-gradients", taught, None),
    ("codes-target-that-follows-slowly", slow_copy, None),
    ("letters-adapters-in-all-layers", adapted, None),
    ("letters-only-biases-and-norms", biases, None),
    ("letters-only-some-rows-of-the-table", new_rows, None),
    ("faces-gates-that-begin-at-zero", lambda s: study(m := Gated(), faces(s), adam(m, 5e-3), steps=90), None),
    ("letters-checkpointed-and-all-trained", checkpointed, None),
    ("faces-heads-take-turns", alternating, None),
):
    sound(name, build, proof)

# --- optimizers made late, moved, or several


def moved_late(seed: int) -> Program:
    """pytorch/pytorch#7844, harubaru/waifu-diffusion#47: the model is moved after the optimizer was made, in place."""
    model, task, loss = KINDS["houses"](seed)
    optimizer = adam(model, 5e-3)
    model.to("cpu", torch.float64).to(torch.float32)
    return study(model, task, optimizer, loss, 80)


def loaded_late(seed: int) -> Program:
    """Weights are loaded into the model after the optimizer was made; the tensors are the same."""
    model, task, loss = KINDS["motions"](seed)
    optimizer = adam(model, 5e-3)
    model.load_state_dict(copy.deepcopy(KINDS["motions"](seed)[0].state_dict()))
    return study(model, task, optimizer, loss, 70)


def added_later(seed: int) -> Program:
    """The body is frozen for thirty steps, then added as a group of its own."""
    model = other_classes(seed)
    head = list(model.fc.parameters())
    body = [p for n, p in model.named_parameters() if not n.startswith("fc.")]
    optimizer = torch.optim.Adam(head, lr=1e-2)
    for p in body:
        p.requires_grad = False

    def thaw(step: int) -> None:
        if step == 30:
            for p in body:
                p.requires_grad = True
            optimizer.add_param_group({"params": body, "lr": 3e-3})

    return study(model, photos(seed), optimizer, steps=70, before=thaw)


def loss_with_weights(seed: int) -> Program:
    """KevinMusgrave/pytorch-metric-learning#534: the loss has weights and an optimizer of its own."""
    model = nn.ModuleDict({"net": Embedder(), "loss": nn.Linear(8, 8, bias=False)})
    task, losses = faces(seed), []
    first, second = adam(model["net"], 5e-3), sgd(model["loss"], 0.1)

    def error(x: Tensor, y: Tensor) -> Tensor:
        near_to = F.normalize(model["net"](x), dim=1) @ F.normalize(model["loss"].weight, dim=1).T
        return F.cross_entropy(10 * near_to, y)

    def run() -> None:
        for _, (x, y) in zip(range(80), task, strict=False):
            first.zero_grad()
            second.zero_grad()
            loss = error(x, y)
            loss.backward()
            first.step()
            second.step()
            losses.append(loss.item())

    def score() -> float:
        with torch.no_grad():
            return error(*task.aside()).item()

    return Program(model=model, optimizer=[first, second], run=run, losses=losses, score=score)


for name, build in (
    ("houses-moved-after-the-optimizer", moved_late),
    ("motions-weights-loaded-after-the-optimizer", loaded_late),
    ("photos-body-thawed-later", added_later),
    ("faces-loss-with-an-optimizer", loss_with_weights),
):
    sound(name, build)
