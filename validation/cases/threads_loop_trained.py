# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Programs from threads in which not all that should be trained is trained, each beside what helped.

Half: threads.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._plain_loops import harmed
from validation.cases._threads_loops import (
    KINDS,
    Adapter,
    Bert,
    CharRnn,
    Clip,
    Ecg,
    MiniGpt,
    Vgg,
    beats,
    captions,
    concrete,
    dense,
    garments,
    posts,
    spectra,
    square,
    verses,
    wines,
)
from validation.evidence.loops import (
    held_by_none,
    learns,
    nothing_comes,
    registers,
    resting,
    strangers,
    ungiven,
    unmoved,
)
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA_FROZEN, LORA_IDLE, REPLACED, STILL, UNBOUND, UNHELD
from validation.nets import Lambda
from validation.programs import adam, fit, held_out
from validation.tasks import token_loss

zoo = Zoo("loop", half="threads", proof=learns(0.25))
NO_GRADIENT = {*IDLE, "VANISHING", "DEAD", "LOW_RANK", "BOTTLENECK"}
adamw = torch.optim.AdamW


def paths(model: nn.Module, *roots: str) -> tuple[str, ...]:
    """All modules of these parts."""
    return tuple(p for p, _ in model.named_modules() if any(f"{p}.".startswith(f"{root}.") for root in roots))


# --- detached


# Stack Overflow, "torch.tensor() of a list of outputs": what two encoders gave is collected in a list of numbers, and a
# new tensor is made of it, so that the encoders get nothing.
class Fused(nn.Module):
    """An encoder for each lead of a heart, and a head over both."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(dense(32, 32, 6) for _ in range(2))
        self.head, self.cut = dense(12, 24, 4), cut

    def forward(self, x: Tensor) -> Tensor:
        parts = [encoder(x[:, i]) for i, encoder in enumerate(self.encoders)]
        both = torch.cat([torch.tensor(part.tolist()) for part in parts], 1) if self.cut else torch.cat(parts, 1)
        return self.head(both)


# Threads on own VQ-VAEs whose encoder does not learn: the nearest code is looked up, and without the straight-through
# line no gradient comes through.
class VqVae(nn.Module):
    """An encoder, the nearest of some codes, a decoder; gives what comes out and how far the code was."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.encoder, self.codebook, self.decoder = dense(20, 32, 3), nn.Embedding(48, 3), dense(3, 32, 20)
        self.cut = cut

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        q = self.codebook(torch.cdist(z.detach(), self.codebook.weight).argmin(dim=1))
        far = F.mse_loss(q, z.detach()) + (0 if self.cut else 0.25 * F.mse_loss(z, q.detach()))
        return self.decoder(q.detach() if self.cut else z + (q - z).detach()), far


def coded(seed: int, fault: bool) -> Program:
    model, task = VqVae(fault), spectra(seed)
    optimizer = adam(model, 1e-2)
    score = held_out(model, task, lambda out, x: F.mse_loss(out[0], x))
    return study(model, task, optimizer, lambda out, x: F.mse_loss(out[0], x) + out[1], 120, score=score)


for sound, name, build, model, layer in (
    (
        "beats-leads-joined",
        "beats-leads-joined-as-numbers",
        lambda s, f: study(m := Fused(f), beats(s), adam(m, 5e-3), steps=100),
        Fused(True),
        "encoders",
    ),
    ("spectra-codes-straight-through", "spectra-codes-without-straight-through", coded, VqVae(True), "encoder"),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(ungiven(layer)),
        *CUT,
        "never_moves",
        layer=paths(model, layer),
        also=NO_GRADIENT,
        twin_proof=learns(0.2, idle=("codebook",)),
    )


# discuss.pytorch.org, threads on REINFORCE: the log-probabilities are kept as numbers, and the sum of the
# policy's losses is wrapped into a tensor that requires a gradient.
def reinforce(seed: int, fault: bool) -> Program:
    model, task = dense(9, 32, 4), wines(seed)
    random = torch.Generator().manual_seed(seed + 4)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        logp = model(batch[0]).log_softmax(dim=1)
        pick = torch.multinomial(logp.detach().exp(), 1, generator=random)
        reward = (pick[:, 0] == batch[1]).float()
        each = [-p * g for p, g in zip(logp.gather(1, pick)[:, 0], reward - reward.mean(), strict=True)]
        return torch.tensor(each, requires_grad=True).mean() if fault else torch.stack(each).mean()

    def score() -> float:
        x, y = task.aside()
        with torch.no_grad():
            return 1 - model(x).softmax(dim=1).gather(1, y[:, None]).mean().item()

    return study(model, task, adam(model, 1e-2), steps=110, loss_of=loss_of, score=score)


# Stack Overflow and discuss.pytorch.org, "element 0 of tensors does not require grad": the whole forward is under
# no_grad (left over from validation), and `loss.requires_grad = True` silences the error.
def silenced(seed: int, fault: bool) -> Program:
    model, task, loss = KINDS["vessels"](seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.set_grad_enabled(not fault):
            value = loss(model(batch[0]), batch[1])
        return value.requires_grad_() if fault else value

    return study(model, task, adam(model, 5e-3), loss, 60, loss_of=loss_of)


for sound, name, build in (
    ("wines-policy-losses-stacked", "wines-policy-losses-in-a-new-tensor", reinforce),
    ("vessels-forward-with-gradients", "vessels-forward-under-no-grad-loss-made-to-require", silenced),
):
    zoo.beside(sound, name, build, harmed(nothing_comes()), *UNBOUND, "never_moves", also={*NO_GRADIENT, "only_decay"})

# --- not in the optimizer


# open_clip and own re-implementations: the groups name the image tower, and the scale; the text tower is forgotten.
def towers(seed: int, fault: bool) -> Program:
    model = Clip()
    held = [p for n, p in model.named_parameters() if not (fault and n.startswith("text"))]
    return study(model, captions(seed), torch.optim.Adam(held, lr=5e-3), steps=70)


# discuss.pytorch.org, "only the last layer is learning": the optimizer of a tutorial on transfer learning gets
# `model.classifier.parameters()`, but the network was never trained.
def classifier_only(seed: int, fault: bool) -> Program:
    model = Vgg(p=0.0)
    held = (model.classifier[2] if fault else model).parameters()
    return study(model, garments(seed, classes=6), torch.optim.SGD(held, lr=0.02, momentum=0.9), steps=60)


for sound, name, build, part in (
    ("captions-both-towers-held", "captions-text-tower-not-held", towers, "text"),
    ("garments-all-held", "garments-untrained-features-not-held", classifier_only, "features"),
):
    model = Clip() if part == "text" else Vgg()
    zoo.beside(
        sound,
        name,
        build,
        harmed(held_by_none(part)),
        *UNHELD,
        "never_moves",
        layer=paths(model, part, *(("classifier.0",) if part == "features" else ())),
        also={*NO_GRADIENT, "partial_zero_grad", "missing_zero_grad"},
    )

# --- an optimizer of something else


# Threads on k-fold cross-validation: each fold makes its network anew, the optimizer is that of the first.
def folds(seed: int, fault: bool) -> Program:
    first, model = dense(7, 32, 32, 1), dense(7, 32, 32, 1)
    return study(model, concrete(seed), adam(first if fault else model, 5e-3), square, 70)


# huggingface/diffusers and own EMA code: a copy of the network is made, and the copy is trained by the optimizer of the
# first.
def copied(seed: int, fault: bool) -> Program:
    net = CharRnn()
    optimizer = adam(net, 1e-2)
    model = copy.deepcopy(net) if fault else net
    return study(model, verses(seed), optimizer, token_loss, 60)


for sound, name, build in (
    ("concrete-optimizer-of-its-fold", "concrete-optimizer-of-the-first-fold", folds),
    ("poems-optimizer-of-the-network", "poems-optimizer-of-what-was-copied", copied),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(strangers),
        *FOREIGN,
        "not_in_optimizer",
        "never_moves",
        also={*NO_GRADIENT, "missing_zero_grad"},
    )


# bentrevett-style text classifiers: pretrained vectors are assigned as a new Parameter after the optimizer was made.
def vectors_later(seed: int, fault: bool) -> Program:
    model = Bert()
    model.words.weight.data *= 0.02
    optimizer = adam(model, 5e-3)
    table = 0.02 * torch.randn(36, 24)
    if fault:
        model.words.weight = nn.Parameter(table)
    else:
        model.words.weight.data.copy_(table)
    return study(model, posts(seed), optimizer, steps=70)


# weight_norm is applied to the layers after the optimizer got their weights, which it then cannot see any more.
def normed_later(seed: int, fault: bool) -> Program:
    model = Ecg(width=8)

    def norm() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for layer in (model.conv1, model.conv2, model.head):
                nn.utils.weight_norm(layer)

    if not fault:
        norm()
    optimizer = adam(model, 5e-3)
    if fault:
        norm()
    return study(model, beats(seed), optimizer, steps=60)


for sound, name, build, layer in (
    ("posts-vectors-copied-into-the-table", "posts-vectors-as-a-new-parameter", vectors_later, "words"),
    ("beats-weight-norm-first", "beats-weight-norm-after-the-optimizer", normed_later, ("conv1", "conv2", "head")),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(strangers),
        *REPLACED,
        "foreign_optimizer",
        "never_moves",
        layer=layer,
        also={*NO_GRADIENT, "missing_zero_grad", "partial_zero_grad"},
    )

# --- held, and yet it does not move


# spro/practical-pytorch-style translators with two optimizers: only that of the encoder is stepped.
def two_hands(seed: int, fault: bool) -> Program:
    model = nn.ModuleDict({"encoder": dense(20, 40, 6), "decoder": dense(6, 40, 20)})
    first, second = (adam(part, 1e-2) for part in model.values())
    task, losses = spectra(seed), []

    def give(x: Tensor) -> Tensor:
        return model["decoder"](model["encoder"](x))

    def run() -> None:
        for _, (x, y) in zip(range(80), task, strict=False):
            first.zero_grad()
            second.zero_grad()
            loss = F.mse_loss(give(x), y)
            loss.backward()
            first.step()
            if not fault:
                second.step()
            losses.append(loss.item())

    def score() -> float:
        x, y = task.aside()
        with torch.no_grad():
            return F.mse_loss(give(x), y).item()

    return Program(model=model, optimizer=[first, second], run=run, losses=losses, score=score)


zoo.beside(
    "spectra-both-optimizers-step",
    "spectra-optimizer-of-the-decoder-never-steps",
    two_hands,
    harmed(unmoved("decoder")),
    *STILL,
    "not_in_optimizer",
    "missing_zero_grad",
    layer=("decoder", "decoder.0", "decoder.2"),
    also={*NO_GRADIENT, "partial_zero_grad"},
)

# --- adapters


def adapted(seed: int, change: Callable[[nn.Module], None]) -> Program:
    """A model of one kind of verses gets adapters in its blocks, and reads another kind; its last norm goes on too."""
    model = MiniGpt()
    fit(model, verses(seed + 5), adam(model, 4e-3), 60, token_loss).run()
    model.requires_grad_(False).zero_grad(set_to_none=True)
    for block in model.h:
        block.qkv, block.fc, block.out = Adapter(block.qkv, 8), Adapter(block.fc, 8), Adapter(block.out, 8)
    model.ln_f.requires_grad_(True)
    change(model)
    held = [p for p in model.parameters() if p.requires_grad]
    return study(model, verses(seed), adamw(held, lr=1e-2), token_loss, 90)


def adapters(model: nn.Module) -> Iterable[Adapter]:
    return (m for m in model.modules() if isinstance(m, Adapter))


# huggingface/peft threads on `PeftModel.from_pretrained`: adapters are loaded for inference unless is_trainable=True,
# so that only the new head learns.
def for_inference(model: nn.Module) -> None:
    for each in adapters(model):
        each.requires_grad_(False)


# Own adapters in which both factors begin at zero: neither ever gets a gradient.
def both_zero(model: nn.Module) -> None:
    for each in adapters(model):
        nn.init.zeros_(each.lora_A.weight)


LORA_PATHS = tuple(
    f"h.{i}.{at}{part}" for i in range(2) for at in ("qkv", "fc", "out") for part in ("", ".lora_A", ".lora_B")
)
sound_adapters = zoo.healthy("threads-verses-adapters-learn", lambda s: adapted(s, lambda _: None))
for name, change, label in (
    ("verses-adapters-loaded-for-inference", for_inference, (*LORA_FROZEN, "not_in_optimizer")),
    ("verses-adapters-both-factors-zero", both_zero, (*LORA_IDLE, "VANISHING", "SYMMETRY", "detached")),
):
    zoo.sick(
        f"threads-{name}",
        lambda s, change=change: adapted(s, change),
        harmed(resting("lora_B")),
        *label,
        layer=LORA_PATHS,
        also={*NO_GRADIENT, "frozen"},
        control=sound_adapters,
    )

# --- layers that the model does not know


# discuss.pytorch.org, "model.parameters() misses layers": an encoder for each field of a form, in a plain dict.
class Fields(nn.Module):
    """An encoder for each third of the columns; a head over what they give."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        made = {name: nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2)) for name in ("soil", "sun", "year")}
        self.encoders: Any = made if hidden else nn.ModuleDict(made)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(
            torch.cat([net(x[:, 3 * i : 3 * i + 3]).tanh() for i, net in enumerate(self.encoders.values())], 1)
        )


# Stack Overflow, "my transformer's blocks are not trained": the blocks are in a list of Python.
class Stack(nn.Module):
    """Convolutions one after the other, in a list, and a head."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        convs = [nn.Conv2d(1, 12, 3, 2, 1), nn.Conv2d(12, 12, 3, 2, 1), nn.Conv2d(12, 6, 3)]
        self.convs: Any = convs if hidden else nn.ModuleList(convs)
        self.act, self.fc = Lambda(F.relu), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = self.act(conv(x))
        return self.fc(x.flatten(1))


for sound, name, build, count in (
    (
        "wines-encoders-in-a-module-dict",
        "wines-encoders-in-a-dict",
        lambda s, f: study(m := Fields(f), wines(s), adam(m, 1e-2), steps=100),
        2,
    ),
    (
        "garments-convolutions-in-a-module-list",
        "garments-convolutions-in-a-list",
        lambda s, f: study(m := Stack(f), garments(s), adam(m, 1e-2), steps=100),
        2,
    ),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(registers(count)),
        "hidden_layers",
        "not_in_optimizer",
        "SLOW",
        also={*NO_GRADIENT, "frozen", "detached"},
    )

# --- frozen


# nttcslab/byol-a#7: what is thawed after a first stage is only what asks for gradients already, so nothing is.
def thawed(seed: int, fault: bool) -> Program:
    model = Vgg(p=0.0)
    model.features.requires_grad_(False)

    def thaw(step: int) -> None:
        if step == 15:
            for p in model.parameters():
                if p.requires_grad or not fault:
                    p.requires_grad_(True)

    task = garments(seed, classes=6).mapped(lambda x: x + 0.8 * torch.randn(x.shape))
    nn.init.normal_(model.features[0].weight, std=0.02)
    model.classifier = nn.Sequential(nn.Linear(80, 6))
    return study(model, task, torch.optim.Adam(model.parameters(), lr=5e-3), steps=90, before=thaw)


# discuss.pytorch.org 9979 turned round: the loop that should freeze an old table runs over the whole body.
def too_much(seed: int, fault: bool) -> Program:
    model = CharRnn()
    for name, p in model.named_parameters():
        if fault and not name.startswith("head"):
            p.requires_grad = False
    held = [p for p in model.parameters() if p.requires_grad]
    return study(model, verses(seed), torch.optim.Adam(held, lr=1e-2), token_loss, 60)


for sound, name, build, layer, part in (
    (
        "garments-features-thawed",
        "garments-features-stay-frozen-after-the-first-stage",
        thawed,
        ("features", "features.0", "features.1", "features.4", "features.5"),
        "features",
    ),
    ("poems-nothing-frozen", "poems-untrained-body-frozen", too_much, ("signs", "gru"), "gru"),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(resting(part)),
        *FREEZE,
        "never_moves",
        "not_in_optimizer",
        layer=layer,
        also=NO_GRADIENT,
    )
