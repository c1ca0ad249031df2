# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Reported programs of which a part is not trained though its author thinks so, each beside what the thread arrived at.

Half: reported.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._plain_loops import harmed
from validation.cases._reported_loop_nets import (
    Checkpointed,
    Chooser,
    Extracted,
    Gpt,
    Lora,
    OwnLstm,
    Patches,
    Reader,
    Resnet,
    Seq2seq,
    Tagger,
    Unet,
)
from validation.cases._reported_loops import (
    adversaries,
    bce,
    codes,
    digits,
    faces,
    flat,
    gan,
    learning,
    letters,
    motions,
    names,
    photos,
    phrases,
    reviews,
    scans,
)
from validation.evidence.loops import (
    Played,
    all_of,
    held_by_none,
    learns,
    nothing_comes,
    resting,
    shrinks,
    strangers,
    ungiven,
    unmoved,
)
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA, REPLACED, STILL, UNBOUND, UNHELD
from validation.nets import mlp
from validation.programs import adam, fit
from validation.tasks import token_loss

zoo = Zoo("loop", half="reported", proof=learns(0.25))
NO_GRADIENT = {*IDLE, "VANISHING", "DEAD"}
adamw = torch.optim.AdamW

# --- detached


# lucidrains/CoCa-pytorch#6: a helper that takes features out of the image encoder by a hook clones and detaches them.
zoo.beside(
    "photos-features-by-hook-with-graph",
    "photos-features-by-hook-detached",
    lambda s, fault: study(m := Extracted(fault), photos(s), adam(m, 5e-3), steps=60),
    harmed(ungiven("encoder")),
    *CUT,
    "never_moves",
    layer=("encoder", "encoder.conv1", "encoder.layer1", "encoder.layer2"),
    also=NO_GRADIENT,
)


# rll-research/cic#5: observations are encoded inside torch.no_grad() before the contrastive loss, so the encoder rests.
def two_views(seed: int, fault: bool) -> Program:
    model = nn.ModuleDict({"encoder": mlp([24, 48, 48, 6], nn.ReLU), "project": nn.Linear(6, 6)})
    task, random = codes(seed), torch.Generator().manual_seed(seed + 3)

    def contrast(x: Tensor, source: torch.Generator, cut: bool) -> Tensor:
        seen = [x * (torch.rand(x.shape, generator=source) < 0.6) for _ in range(2)]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not cut):
            codes_of = [model["encoder"](view) for view in seen]
        a, b = (F.normalize(model["project"](code), dim=1) for code in codes_of)
        return F.cross_entropy(a @ b.T / 0.2, torch.arange(len(x)))

    def score() -> float:
        with torch.no_grad():
            return contrast(task.aside()[0], torch.Generator().manual_seed(seed), False).item()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return contrast(batch[0], random, fault)

    return study(model, task, adam(model, 5e-3), steps=120, loss_of=loss_of, score=score)


zoo.beside(
    "views-encoder-with-gradients",
    "views-encoder-under-no-grad",
    two_views,
    harmed(ungiven("encoder")),
    *CUT,
    "never_moves",
    layer=("encoder", "encoder.0", "encoder.2", "encoder.4"),
    also={*NO_GRADIENT, "LOW_RANK", "BOTTLENECK"},
)


def half_betas(part: nn.Module, rate: float = 5e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(part.parameters(), lr=rate, betas=(0.5, 0.99))


def players(model: nn.ModuleDict) -> list[torch.optim.Optimizer]:
    return [half_betas(model["generator"]), half_betas(model["discriminator"])]


GENERATOR = ("generator", "generator.0", "generator.2", "generator.4")
JUDGE = ("discriminator", "discriminator.0", "discriminator.2", "discriminator.4")

# wangle53/CSA-CDGAN#5: the fake is detached in the generator's own step as well, so its loss cannot move anything.
zoo.beside(
    "cloud-generator-gets-the-graph",
    "cloud-generator-fake-detached",
    lambda s, fault: adversaries(s, m := gan(), players(m), cut=fault),
    harmed(ungiven("generator")),
    *CUT,
    "detached_loss",
    "never_moves",
    layer=GENERATOR,
    also={*NO_GRADIENT, "loss_grows", "missing_zero_grad", "partial_zero_grad"},
)


# pytorch/pytorch#1339: the output of one network goes through argmax before the next, which no gradient passes.
zoo.beside(
    "digits-choice-by-softmax",
    "digits-choice-by-argmax",
    lambda s, fault: study(m := Chooser(fault), digits(s), adam(m, 1e-2), steps=120),
    harmed(ungiven("first")),
    *CUT,
    "never_moves",
    layer=("first", "first.0", "first.2"),
    also={*NO_GRADIENT, "LOW_RANK", "BOTTLENECK"},
)


# wonbeomjang/mobile-hair-segmentation-pytorch#3: the loss of a mask is computed from predictions that were decided
# already, and made to accept backward by asking for gradients again.
def hard_dice(seed: int, fault: bool) -> Program:
    model = Unet()

    def dice(out: Tensor, y: Tensor) -> Tensor:
        p = (out > 0).float().requires_grad_() if fault else out.sigmoid()
        return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)

    return study(model, scans(seed), adam(model, 5e-3), dice, 60, bce)


# ludwig-ai/ludwig#3572, Ugenteraan/Deep_Hierarchical_Classification#6: parts of the loss are put into a new tensor,
# which asks for gradients and has none to give.
def new_tensor(seed: int, fault: bool) -> Program:
    model = nn.ModuleDict({"body": mlp([96, 32]), "kind": nn.Linear(32, 5), "moves": nn.Linear(32, 1)})
    task = motions(seed)

    def parts(x: Tensor, y: Tensor) -> list[Tensor]:
        h = F.relu(model["body"](x.flatten(1)))
        return [F.cross_entropy(model["kind"](h), y), bce(model["moves"](h).squeeze(1), (y > 1).float())]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        both = parts(*batch)
        if fault:
            return torch.tensor([part.item() for part in both], requires_grad=True).sum()
        return torch.stack(both).sum()

    def score() -> float:
        with torch.no_grad():
            return torch.stack(parts(*task.aside())).sum().item()

    return study(model, task, adam(model, 5e-3), steps=100, loss_of=loss_of, score=score)


for sound, name, build in (
    ("scans-dice-of-probabilities", "scans-dice-of-decisions", hard_dice),
    ("motions-parts-of-the-loss-stacked", "motions-parts-of-the-loss-in-a-new-tensor", new_tensor),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(nothing_comes()),
        *UNBOUND,
        "never_moves",
        also={*NO_GRADIENT, "only_decay", "constant_targets"},
    )

# --- not in the optimizer


# zjunlp/HVPNeT#5: the group of the last layers is made, and never appended to the list of groups.
def groups_by_part(seed: int, fault: bool) -> Program:
    model = Tagger()
    groups = [
        {"params": list(model.words.parameters()), "lr": 1e-2},
        {"params": list(model.lstm.parameters()), "lr": 1e-2},
    ]
    last = {"params": list(model.fc.parameters()), "lr": 1e-2}
    if not fault:
        groups.append(last)
    return study(model, names(seed), adamw(groups), token_loss, 40)


# zhaoyingjun/chatbot#115: the optimizer that is passed for the decoder is made of the encoder's parameters again.
def encoder_twice(seed: int, fault: bool) -> Program:
    model = Seq2seq(width=16)
    first = torch.optim.Adam(model.encoder.parameters(), lr=1e-2)
    second = torch.optim.Adam((model.encoder if fault else model.decoder).parameters(), lr=1e-2)
    task, losses = phrases(seed), []
    (source, shifted), y = task.aside()

    def run() -> None:
        for _, (x, target) in zip(range(90), task, strict=False):
            first.zero_grad()
            second.zero_grad()
            loss = token_loss(model(*x), target)
            loss.backward()
            first.step()
            second.step()
            losses.append(loss.item())

    def score() -> float:
        with torch.no_grad():
            return token_loss(model(source, shifted), y).item()

    return Program(model=model, optimizer=[first, second], run=run, losses=losses, score=score)


# 4uiiurz1/pytorch-adacos#10, wujiyang/Face_Pytorch#10: the loss holds the vectors of the classes, and only the
# network's parameters are given to the optimizer.
def margin_left_out(seed: int, fault: bool) -> Program:
    model = nn.ModuleDict({"net": mlp([16, 32, 4]), "margin": nn.Linear(4, 24, bias=False)})
    task = faces(seed, people=24)

    def loss(x: Tensor, y: Tensor, margin: float) -> Tensor:
        near = F.normalize(model["net"](x), dim=1) @ F.normalize(model["margin"].weight, dim=1).T
        return F.cross_entropy(12 * (near - margin * F.one_hot(y, 24)), y)

    def score() -> float:
        with torch.no_grad():
            return loss(*task.aside(), 0.0).item()

    optimizer = adam(model["net"] if fault else model, 1e-2)
    return study(model, task, optimizer, steps=150, loss_of=lambda batch: loss(*batch, 0.1), score=score)


for sound, name, build, paths, layer, worse in (
    ("names-all-groups-appended", "names-last-group-not-appended", groups_by_part, ("fc",), ("fc",), 1.3),
    (
        "phrases-optimizer-of-the-decoder",
        "phrases-optimizer-of-the-encoder-twice",
        encoder_twice,
        ("decoder",),
        ("decoder", "decoder.words", "decoder.gru", "decoder.query", "decoder.out"),
        1.3,
    ),
    (
        "faces-vectors-of-the-loss-given",
        "faces-vectors-of-the-loss-left-out",
        margin_left_out,
        ("margin",),
        ("margin",),
        1.2,
    ),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(all_of(held_by_none(*paths), unmoved(*paths)), worse=worse),
        *UNHELD,
        "never_moves",
        layer=layer,
        also={*IDLE, "missing_zero_grad", "partial_zero_grad"},
    )


# aigc-apps/EasyAnimate#99: parameters are chosen by a "." in their name, which those of the model itself do not have.
def chosen_by_name(seed: int, fault: bool) -> Program:
    model = Patches()
    chosen = [p for n, p in model.named_parameters() if not fault or "." in n]
    return study(model, digits(seed), torch.optim.Adam(chosen, lr=5e-3), steps=100)


def places_rest(played: Played) -> tuple[bool, str]:
    held = any("places" in step.held for step in played.steps)
    return not held and played.distance["places"] == 0, f"places are in the optimizer: {held}"


zoo.beside(
    "patches-all-parameters-chosen",
    "patches-parameters-with-a-dot-chosen",
    chosen_by_name,
    harmed(places_rest),
    *UNHELD,
    "never_moves",
    also=IDLE,
)

# --- an optimizer of what was there before


# huggingface/transformers#3532: the table of words is made anew for more of them after the optimizer was made.
def resized(seed: int, fault: bool) -> Program:
    model = Gpt(signs=12, width=16, depth=1)
    optimizer = adamw(model.parameters(), lr=5e-3) if fault else None
    table, head = nn.Embedding(16, 16), nn.Linear(16, 16, bias=False)
    with torch.no_grad():
        table.weight[:12], head.weight[:12] = model.wte.weight, model.lm_head.weight
    model.wte, model.lm_head = table, head
    return study(model, letters(seed), optimizer or adamw(model.parameters(), lr=5e-3), token_loss, 70)


# meta-pytorch/opacus#432: layers that cannot be private are replaced by others after the optimizer got their weights.
def fixed_late(seed: int, fault: bool) -> Program:
    model = Reader(width=6)
    optimizer = adam(model, 1e-2) if fault else None
    model.lstm = OwnLstm(model.lstm)  # type: ignore[assignment]
    return study(model, reviews(seed, length=8), optimizer or adam(model, 1e-2), steps=80)


for sound, name, build, paths, layer, worse in (
    (
        "letters-table-resized-then-optimizer",
        "letters-optimizer-then-table-resized",
        resized,
        ("wte", "lm_head"),
        ("wte", "lm_head"),
        1.3,
    ),
    (
        "reviews-layers-replaced-then-optimizer",
        "reviews-optimizer-then-layers-replaced",
        fixed_late,
        ("lstm",),
        ("lstm", "lstm.forth", "lstm.back"),
        1.3,
    ),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(all_of(strangers, held_by_none(*paths)), worse=worse),
        *REPLACED,
        "never_moves",
        "foreign_optimizer",
        layer=layer,
        also=IDLE,
    )


# pytorch/pytorch#14467: a base class makes the layers, a subclass makes them again before it begins to train.
class Brackets(nn.Module):
    """A GRU over words, whose layers a method makes."""

    def __init__(self) -> None:
        super().__init__()
        self.build()

    def build(self) -> None:
        self.words = nn.Embedding(24, 16)
        self.rnn, self.fc = nn.GRU(16, 24, batch_first=True), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(self.words(x))[0])


def built_again(seed: int, fault: bool) -> Program:
    model = Brackets()
    optimizer = adam(model, 1e-2)
    if fault:
        model.build()
    return study(model, names(seed), optimizer, token_loss, 60)


zoo.beside(
    "names-layers-made-once",
    "names-layers-made-again-before-training",
    built_again,
    harmed(all_of(strangers, unmoved("words", "rnn", "fc"))),
    *FOREIGN,
    "not_in_optimizer",
    "never_moves",
    also={*IDLE, "detached", "missing_zero_grad"},
)

# --- held, and yet it does not move, or by decay alone

# zhaoyuzhi/deepfillv2#6: the step of the discriminator's optimizer is missing.
zoo.beside(
    "cloud-both-take-their-step",
    "cloud-discriminator-never-steps",
    lambda s, fault: adversaries(s, m := gan(), players(m), steps=170, batch=32, stepped=(True, not fault)),
    harmed(unmoved("discriminator")),
    *STILL,
    "frozen",
    layer=JUDGE,
    also={*NO_GRADIENT, "not_in_optimizer", "EXPLODING", "UNSTABLE", "SATURATION", "LOW_RANK", "detached"},
)


# tom-roddick/oft#6: what a test had set was left in, so that only the score counts; the heads of the other parts get
# nothing but the decay.
def only_the_score(seed: int, fault: bool) -> Program:
    model = nn.ModuleDict({"net": Resnet(1, 1, 10), "position": mlp([10, 16, 2]), "size": mlp([10, 16, 1])})
    task = scans(seed, batch=24)
    line = (torch.arange(12).float() - 5.5) / 3

    def parts(batch: tuple[Tensor, Tensor]) -> list[Tensor]:
        x, inside = batch
        h = model["net"].features(x)
        total = inside.sum(dim=(1, 2, 3)).clamp_min(1)
        at = torch.stack(
            [(inside[:, 0] * line[:, None]).sum(dim=(1, 2)) / total, (inside[:, 0] * line).sum(dim=(1, 2)) / total],
            dim=1,
        )
        big = (total > 28).float()
        return [
            bce(model["net"].fc(h).squeeze(1), big),
            F.mse_loss(model["position"](h), at),
            F.mse_loss(model["size"](h).squeeze(1), total / 20),
        ]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        score, position, size = parts(batch)
        weight = 0.0 if fault else 1.0
        return score + weight * position + weight * size

    def score() -> float:
        model.eval()
        with torch.no_grad():
            total = torch.stack(parts(task.aside())).sum().item()
        model.train()
        return total

    optimizer = adamw(model.parameters(), lr=5e-3, weight_decay=0.05)
    return study(model, task, optimizer, steps=70, loss_of=loss_of, score=score)


zoo.beside(
    "scans-three-parts-of-the-loss",
    "scans-only-the-score-is-optimised",
    only_the_score,
    harmed(shrinks("position", "size"), worse=1.2),
    "only_decay",
    "DISCONNECTED",
    "DEAD",
    "never_moves",
    "detached",
    layer=("position", "position.0", "position.2", "size", "size.0", "size.2"),
    also=NO_GRADIENT,
)

# --- adapters


def tuned(seed: int, fault: str = "", kept: bool = False) -> Program:
    """A small GPT that knows other texts gets adapters; `kept` has its blocks computed twice, to save memory."""
    model = Gpt(width=24)
    fit(model, letters(seed + 7), adam(model, 5e-3), 50, token_loss).run()
    model.zero_grad(set_to_none=True)
    model.requires_grad_(False)
    for block in model.blocks:
        for place in ("q_proj", "v_proj"):
            setattr(block.attn, place, Lora(getattr(block.attn, place)))
        block.up, block.down = Lora(block.up), Lora(block.down)
    model.ln.requires_grad_(True)
    if fault == "prepared":
        for n, p in model.named_parameters():
            p.requires_grad = n.startswith("ln.")
    if kept:
        model.blocks = nn.ModuleList(Checkpointed(block) for block in model.blocks)
        if fault != "inputs":
            model.wte.register_forward_hook(lambda _m, _i, out: out.requires_grad_())
    return study(model, letters(seed), adamw(learning(model), lr=1e-2, weight_decay=0.0), token_loss, 60)


PARTS = ("attn.q_proj", "attn.v_proj", "up", "down")
LORAS = tuple(f"blocks.{i}.{part}{side}" for i in (0, 1) for part in PARTS for side in ("", ".lora_A", ".lora_B"))
KEPT = tuple(path.replace("blocks.0.", "blocks.0.block.").replace("blocks.1.", "blocks.1.block.") for path in LORAS)

# huggingface/transformers#26098, tloen/alpaca-lora#352: the model is prepared after its adapters were put in, which
# freezes them too.
zoo.beside(
    "letters-prepared-then-adapters",
    "letters-adapters-then-prepared",
    lambda s, fault: tuned(s, "prepared" if fault else ""),
    harmed(resting("lora_A", "lora_B")),
    *LORA,
    "frozen",
    "never_moves",
    layer=LORAS,
    also=NO_GRADIENT,
)
# locuslab/open-unlearning#178, cloneofsimo/lora#26: with gradient checkpointing a block whose input asks for no
# gradient gives none to its adapters; enable_input_require_grads is missing.
zoo.beside(
    "letters-checkpointed-inputs-ask-for-gradients",
    "letters-checkpointed-inputs-ask-for-none",
    lambda s, fault: tuned(s, "inputs" if fault else "", kept=True),
    harmed(ungiven("blocks")),
    *LORA,
    "never_moves",
    "detached",
    layer=KEPT,
    also=NO_GRADIENT,
)


# microsoft/LoRA#125: all is frozen at first; mark_only_lora_as_trainable freezes what is no adapter, and frees none.
def marked(seed: int, fault: bool) -> Program:
    model = flat(mlp([64, 32, 32, 10]))
    fit(model, digits(seed + 9), adam(model, 5e-3), 60).run()
    model.zero_grad(set_to_none=True)
    for at in (0, 2):
        model[1][at] = Lora(model[1][at])
    model.requires_grad_(False)
    for n, p in model.named_parameters():
        if "lora_" not in n:
            p.requires_grad = False
        elif not fault:
            p.requires_grad = True
    model[1][4].requires_grad_(True)
    return study(model, digits(seed), torch.optim.Adam(learning(model), lr=5e-3), steps=60)


zoo.beside(
    "digits-adapters-marked-as-trainable",
    "digits-adapters-stay-frozen",
    marked,
    harmed(resting("lora_A", "lora_B"), worse=1.2),
    *LORA,
    "frozen",
    "never_moves",
    layer=tuple(f"1.{at}{side}" for at in (0, 2) for side in ("", ".lora_A", ".lora_B")),
    also=NO_GRADIENT,
)

# --- layers that the model does not know


# pytorch/pytorch#715: hidden layers are kept in a list of lists of layer and activation.
class Listed(nn.Module):
    """Hidden layers and their activations in pairs."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        pairs = [[nn.Linear(a, b), nn.Tanh()] for a, b in ((16, 6), (6, 6))]
        self.hids: Any = pairs if hidden else nn.ModuleList(nn.ModuleList(pair) for pair in pairs)
        self.classifier = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        for linear, act in self.hids:
            x = act(linear(x))
        return self.classifier(x)


# asyml/texar-pytorch#72: the branches that are merged are in a list of Python.
class Merged(nn.Module):
    """Convolutions of three widths side by side."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        branches = [nn.Conv1d(3, 5, k, padding=k // 2) for k in (3, 5, 9)]
        self.branches: Any = branches if hidden else nn.ModuleList(branches)
        self.fc = nn.Linear(15, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.cat([F.relu(branch(x)).mean(dim=2) for branch in self.branches], dim=1))


# graykode/nlp-tutorial#29: the layer behind the heads and its norm are made in forward.
class Anew(nn.Module):
    """Attention over words; what follows it is made once, or in every forward."""

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.words, self.qkv, self.fc = nn.Embedding(24, 16), nn.Linear(16, 48), nn.Linear(16, 4)
        self.places = nn.Embedding(9, 16)
        self.last = None if anew else nn.ModuleList([nn.Linear(16, 16), nn.LayerNorm(16)])

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.qkv(h).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        linear, norm = (nn.Linear(16, 16), nn.LayerNorm(16)) if self.last is None else self.last
        return self.fc(norm(linear(mixed)))


def fewer(than: int):
    return lambda played: (len(played.distance) < than, f"the model knows {len(played.distance)} tensors")


for sound, name, build, count, also, worse in (
    (
        "faces-layers-in-module-list",
        "faces-layers-in-list-of-lists",
        lambda s, fault: study(m := Listed(fault), faces(s), adam(m, 1e-2), steps=120),
        6,
        set(),
        1.3,
    ),
    (
        "motions-branches-in-module-list",
        "motions-branches-in-list",
        lambda s, fault: study(m := Merged(fault), motions(s), adam(m, 1e-2), steps=120),
        8,
        set(),
        1.2,
    ),
    (
        "names-last-layer-made-once",
        "names-last-layer-made-in-forward",
        lambda s, fault: study(m := Anew(fault), names(s), adam(m, 1e-2), token_loss, 90),
        10,
        {"batch_size", "UNSTABLE"},
        1.3,
    ),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(fewer(count), worse=worse),
        "hidden_layers",
        "not_in_optimizer",
        also={*IDLE, *also},
    )

# --- frozen


# pytorch/vision#2164: the first layers of the backbone are frozen as for a trained one, though it was only drawn.
def frozen_stem(seed: int, fault: bool) -> Program:
    model = Resnet(width=6)
    if fault:
        for part in (model.conv1, model.bn1, model.layer1):
            part.requires_grad_(False)
    return study(model, photos(seed), torch.optim.Adam(learning(model), lr=5e-3), steps=80)


# RUCAIBox/RecBole#2046, huggingface/optimum-graphcore#304: from_pretrained freezes the vectors by default.
def frozen_words(seed: int, fault: bool) -> Program:
    model = Reader(words=40, width=4)
    drawn = 0.3 * torch.randn(40, 4, generator=torch.Generator().manual_seed(seed))
    model.words = nn.Embedding.from_pretrained(drawn, freeze=fault)
    return study(model, reviews(seed), torch.optim.Adam(learning(model), lr=1e-2), steps=100)


for sound, name, build, parts, layer, worse in (
    (
        "photos-drawn-layers-free",
        "photos-first-drawn-layers-frozen",
        frozen_stem,
        ("layer1",),
        ("conv1", "bn1", "layer1", "layer1.conv1", "layer1.conv2"),
        1.3,
    ),
    ("reviews-drawn-vectors-free", "reviews-drawn-vectors-frozen", frozen_words, ("words",), ("words",), 1.2),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(resting(*parts), worse=worse),
        *FREEZE,
        "never_moves",
        layer=layer,
        also=NO_GRADIENT,
    )
