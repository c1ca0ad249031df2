# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Ordinary programs that train less than their authors think, their repaired twins, and some that freeze on purpose.

Half: everyday.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from validation.case import Program, Zoo
from validation.cases._everyday_loops import LeNet, Seq2Seq, TextClassifier, loader, supervised, train
from validation.evidence.loops import Played, all_of, broken, held_by_none, learns, shrinks, strangers, ungiven, unmoved
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA, REPLACED, STILL, UNHELD
from validation.nets import Block, ConvNet, LanguageModel, Lora, he_, mlp
from validation.programs import adam, fit, held_out
from validation.tasks.everyday import bends, likeness, strokes
from validation.tasks.sequences import ciphers, markov, token_loss
from validation.tasks.signals import images
from validation.tasks.trades import genres, glyphs, homes, majority, paints
from validation.tasks.vectors import blobs, patches, views

zoo = Zoo("loop", half="everyday", proof=learns())
FACTORS = tuple(f"blocks.{i}.{part}.{factor}" for i in range(2) for part in ("up", "down") for factor in ("up", "down"))
NO_GRADIENT = {*IDLE, "VANISHING", "DEAD"}

# --- detached


class Pooled(nn.Module):
    """An encoder of texts whose pooled features go to a classifier, kept for a plot on the way."""

    def __init__(self, cache: bool) -> None:
        super().__init__()
        self.words, self.encoder = nn.Embedding(6, 24), nn.GRU(24, 24, batch_first=True)
        self.classifier = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 6))
        self.cache = cache

    def forward(self, tokens: Tensor) -> Tensor:
        pooled = self.encoder(self.words(tokens))[0].mean(dim=1)
        if self.cache:
            pooled = torch.tensor(pooled.detach().numpy())
        return self.classifier(pooled)


def sentiment(seed: int, cache: bool) -> Program:
    model, task = Pooled(cache), majority(seed)
    return train(
        model,
        loader(task, seed),
        supervised(model),
        adam(model, 5e-3),
        held_out(model, majority(seed, batch=256)),
        epochs=6,
    )


sentiment_whole = zoo.healthy("everyday-sentiment-gru", lambda s: sentiment(s, False))
zoo.sick(
    "everyday-sentiment-features-through-numpy",
    lambda s: sentiment(s, True),
    broken(ungiven("words", "encoder")),
    *CUT,
    "never_moves",
    layer=("words", "encoder"),
    also=NO_GRADIENT,
    control=sentiment_whole,
)


class Compressor(nn.Module):
    """An autoencoder whose forward was written when the encoder was still a fixed PCA."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp([24, 40, 6], nn.ELU), mlp([6, 40, 24], nn.ELU)
        self.fixed = fixed

    def encode(self, x: Tensor) -> Tensor:
        if self.fixed:
            with torch.no_grad():
                return self.encoder(x)
        return self.encoder(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encode(x))


def compressed(seed: int, fixed: bool) -> Program:
    model = Compressor(fixed)
    return fit(model, bends(seed), adam(model, 4e-3), 120, F.mse_loss)


compressor = zoo.healthy("everyday-autoencoder", lambda s: compressed(s, False))
zoo.sick(
    "everyday-autoencoder-encodes-without-grad",
    lambda s: compressed(s, True),
    broken(ungiven("encoder")),
    *CUT,
    "never_moves",
    layer=("encoder.0", "encoder.2"),
    also=NO_GRADIENT,
    control=compressor,
)


class Adapted(nn.Module):
    """A frozen trunk with adapters in its blocks, checkpointed to save memory, and a new head."""

    def __init__(self, reentrant: bool, inputs_require_grad: bool) -> None:
        super().__init__()
        self.project = nn.Linear(24, 32).requires_grad_(False)
        self.blocks = nn.ModuleList(Block(32, 4).requires_grad_(False) for _ in range(2))
        for block in self.blocks:
            block.up, block.down = Lora(block.up, 4), Lora(block.down, 4)
        self.head = nn.Linear(32, 6)
        self.reentrant, self.inputs_require_grad = reentrant, inputs_require_grad

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        if self.inputs_require_grad and torch.is_grad_enabled():
            x.requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x.mean(dim=1))


def checkpointed(seed: int, inputs_require_grad: bool, reentrant: bool = True) -> Program:
    model = Adapted(reentrant, inputs_require_grad)
    trained = [p for p in model.parameters() if p.requires_grad]
    return fit(model, patches(seed), torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.0), 60)


enabled = zoo.healthy("everyday-lora-checkpointed-inputs-require-grad", lambda s: checkpointed(s, True))
zoo.healthy("everyday-lora-checkpointed-not-reentrant", lambda s: checkpointed(s, False, reentrant=False))
zoo.sick(
    "everyday-lora-checkpointed-inputs-without-grad",
    lambda s: checkpointed(s, False),
    broken(all_of(ungiven("blocks"), unmoved("blocks"))),
    "detached",
    "lora_frozen",
    "never_moves",
    "DISCONNECTED",
    layer=tuple(
        f"blocks.{i}.{part}.{factor}" for i in range(2) for part in ("up", "down") for factor in ("up", "down")
    ),
    also=NO_GRADIENT,
    control=enabled,
)

# --- not in the optimizer


def translation(seed: int, both: bool) -> Program:
    model, task = Seq2Seq(14), ciphers(seed)
    trained = [*model.encoder.parameters(), *model.decoder.parameters()] if both else model.decoder.parameters()
    optimizer = torch.optim.Adam(trained, lr=4e-3)
    return fit(model, task, optimizer, 60, token_loss)


translated = zoo.healthy("everyday-seq2seq", lambda s: translation(s, True))
zoo.sick(
    "everyday-seq2seq-optimizer-of-the-decoder",
    lambda s: translation(s, False),
    broken(all_of(held_by_none("encoder"), unmoved("encoder"))),
    *UNHELD,
    "never_moves",
    layer=("encoder.words", "encoder.gru"),
    also=IDLE,
    control=translated,
)


class Margin(nn.Module):
    """A backbone, and a loss with centres of its own as for faces: the forward gives scaled cosines."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = mlp([24, 64, 16])
        self.centres = nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return 10 * F.normalize(self.backbone(x), dim=1) @ F.normalize(self.centres.weight, dim=1).T


def faces(seed: int, centres: bool) -> Program:
    model = Margin()
    groups: list[dict[str, Any]] = [{"params": model.backbone.parameters()}]
    if centres:
        groups.append({"params": model.centres.parameters(), "weight_decay": 5e-4})
    return fit(model, blobs(seed, 24, 8, 64), torch.optim.SGD(groups, lr=0.05, momentum=0.9), 100)


centred = zoo.healthy("everyday-faces-loss-with-centres", lambda s: faces(s, True))
zoo.sick(
    "everyday-faces-centres-of-the-loss-not-in-optimizer",
    lambda s: faces(s, False),
    broken(all_of(held_by_none("centres"), unmoved("centres"))),
    *UNHELD,
    "never_moves",
    layer="centres",
    also=IDLE,
    control=centred,
)


def injected(seed: int, late: bool) -> Program:
    """Adapters, injected before or after the optimizer is made; the head is trained in either case."""
    model = he_(mlp([20, 48, 48, 5]))

    def inject() -> None:
        for at in (0, 2):
            model[at] = Lora(model[at], 4)

    def made() -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3, weight_decay=0.0)

    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    if late:
        optimizer = made()
        inject()
    else:
        inject()
        optimizer = made()
    return fit(model, blobs(seed, 20, 5, 64), optimizer)


injected_first = zoo.healthy("everyday-adapters-then-optimizer", lambda s: injected(s, False))
zoo.sick(
    "everyday-optimizer-then-adapters",
    lambda s: injected(s, True),
    broken(all_of(held_by_none("0", "2"), unmoved("0", "2"))),
    *UNHELD,
    "lora_frozen",
    "never_moves",
    layer=("0.down", "0.up", "2.down", "2.up"),
    also={*IDLE, "replaced_parameters"},
    control=injected_first,
)

# --- an optimizer of something else


def student(seed: int, own: bool) -> Program:
    """Distillation: a small network imitates a large one."""
    task = blobs(seed, 20, 6, 64, 0.8)
    teacher = he_(mlp([20, 96, 96, 6]))
    fit(teacher, blobs(seed, 20, 6, 64, 0.8), adam(teacher), 80).run()
    teacher.zero_grad(set_to_none=True)
    model = mlp([20, 24, 6])
    optimizer = torch.optim.Adam(model.parameters() if own else teacher.parameters(), lr=5e-3)

    def distill(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            soft = (teacher(batch[0]) / 2).softmax(dim=1)
        out = model(batch[0])
        return 4 * F.kl_div((out / 2).log_softmax(dim=1), soft, reduction="batchmean") + F.cross_entropy(out, batch[1])

    return train(model, task, distill, optimizer, held_out(model, task), epochs=1, limit=90)


distilled = zoo.healthy("everyday-distillation", lambda s: student(s, True))
zoo.sick(
    "everyday-distillation-optimizer-of-the-teacher",
    lambda s: student(s, False),
    broken(strangers, less=0.01),
    *FOREIGN,
    "not_in_optimizer",
    "never_moves",
    also=IDLE,
    control=distilled,
)


def notebook(seed: int, again: bool) -> Program:
    """The cell with the model was run again, the cell with the optimizer was not."""
    model = LeNet(classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    if again:
        model = LeNet(classes=10)
    return train(
        model, loader(glyphs(seed), seed), supervised(model), optimizer, held_out(model, glyphs(seed, batch=256))
    )


in_turn = zoo.healthy("everyday-notebook-cells-in-turn", lambda s: notebook(s, False))
zoo.sick(
    "everyday-notebook-model-cell-again",
    lambda s: notebook(s, True),
    broken(strangers, less=0.01),
    *FOREIGN,
    "not_in_optimizer",
    "never_moves",
    also=IDLE,
    control=in_turn,
)

# --- replaced


def resized(seed: int, late: bool) -> Program:
    """New special tokens: the embedding and the head get more rows, as new tensors."""
    model = LanguageModel(16, 32, 2, 1)

    def resize() -> None:
        words, head = nn.Embedding(20, 32), nn.Linear(32, 20)
        with torch.no_grad():
            words.weight.mul_(0.5)
            words.weight[:16], head.weight[:16], head.bias[:16] = (
                model.embedding.weight,
                model.head.weight,
                model.head.bias,
            )
        model.embedding, model.head = words, head

    if not late:
        resize()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if late:
        resize()
    return fit(model, markov(seed, 20, 12, 16), optimizer, 80, token_loss)


resized_first = zoo.healthy("everyday-vocabulary-resized-then-optimizer", lambda s: resized(s, False))
zoo.sick(
    "everyday-optimizer-then-vocabulary-resized",
    lambda s: resized(s, True),
    broken(all_of(strangers, held_by_none("embedding", "head"))),
    *REPLACED,
    "never_moves",
    layer=("embedding", "head"),
    also={*IDLE, "foreign_optimizer"},
    control=resized_first,
)


def normed(seed: int, late: bool) -> Program:
    """Weight norm makes two tensors of each weight."""
    model = mlp([9, 48, 48, 1], nn.SiLU)

    def norm() -> None:
        for at in (0, 2):
            nn.utils.parametrizations.weight_norm(model[at])

    if not late:
        norm()
    optimizer = adam(model, 4e-3)
    if late:
        norm()
    return fit(model, homes(seed), optimizer, 100, F.mse_loss)


normed_first = zoo.healthy("everyday-weight-norm-then-optimizer", lambda s: normed(s, False))
zoo.sick(
    "everyday-optimizer-then-weight-norm",
    lambda s: normed(s, True),
    broken(all_of(strangers, held_by_none("0.parametrizations", "2.parametrizations"))),
    *REPLACED,
    "never_moves",
    layer=("0", "2"),
    also={*IDLE, "foreign_optimizer"},
    control=normed_first,
)

# --- held, and yet it never moves


def staged(seed: int, always: bool) -> Program:
    """In the first epoch only the head is to learn: the gradients of the body are dropped."""
    model, task = ConvNet([3, 16, 16], 8, norm=nn.BatchNorm2d, pool=(0,)), paints(seed)

    def drop(step: int) -> None:
        if always or step < 20:
            for p in [*model.convs.parameters(), *model.norms.parameters()]:
                p.grad = None

    return train(
        model,
        loader(task, seed),
        supervised(model),
        adam(model, 3e-3),
        held_out(model, paints(seed, batch=256)),
        epochs=5,
        ready=drop,
    )


first_epoch = zoo.healthy("everyday-body-waits-an-epoch", lambda s: staged(s, False))
zoo.sick(
    "everyday-body-waits-for-ever",
    lambda s: staged(s, True),
    broken(unmoved("convs", "norms")),
    *STILL,
    "zero_grad_before_step",
    layer=("convs.0", "convs.1"),
    also={*IDLE, "partial_zero_grad", "detached"},
    control=first_epoch,
)


class ZeroGate(nn.Module):
    """A new branch beside a trunk, behind a gate that starts at zero, so that nothing changes at first."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.trunk, self.head = mlp([20, 48, 48]).append(nn.ReLU()), nn.Linear(48, 10)
        self.branch, self.gate = mlp([20, 32, 48]), nn.Parameter(torch.zeros(1))
        if twice:
            nn.init.zeros_(self.branch[2].weight)
            nn.init.zeros_(self.branch[2].bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x) + self.gate * self.branch(x))


def gated(seed: int, twice: bool) -> Program:
    model, task = ZeroGate(twice), genres(seed)
    return fit(model, task, adam(model, 3e-3), 80, F.binary_cross_entropy_with_logits)


gate_alone = zoo.healthy("everyday-branch-behind-zero-gate", lambda s: gated(s, False))
zoo.sick(
    "everyday-zero-branch-behind-zero-gate",
    lambda s: gated(s, True),
    broken(all_of(unmoved("branch", "gate"), ungiven("branch", "gate"))),
    *STILL,
    "DISCONNECTED",
    "DEAD",
    layer=("branch.0", "branch.2", "gate"),
    also={*NO_GRADIENT, "SYMMETRY"},
    control=gate_alone,
)

# --- decay alone


def dropped(seed: int, p: float) -> Program:
    """A network ported from a framework where the number is the share to keep."""
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(p), nn.Linear(64, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    return fit(model, blobs(seed, 20, 5, 64), optimizer, 100)


kept = zoo.healthy("everyday-dropout-0.1", lambda s: dropped(s, 0.1))
zoo.sick(
    "everyday-dropout-1.0-meant-to-keep-all",
    lambda s: dropped(s, 1.0),
    broken(shrinks("0"), less=0.5),
    "only_decay",
    "DISCONNECTED",
    "DEAD",
    layer=("0", "3"),
    also={*NO_GRADIENT, "detached"},
    control=kept,
)


class TwoTasks(nn.Module):
    """A trunk with a head for the class and one for a score."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = LeNet(1, 10, 32)
        self.kind, self.score = nn.Linear(32, 8), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.relu(self.trunk(x))
        return self.kind(h), self.score(h).squeeze(1)


def ramped(seed: int, whole: bool) -> Program:
    """The second task comes in over 20 steps; with an integer division it never comes in."""
    model, task = TwoTasks(), strokes(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    at = [0]

    def both(batch: tuple[Tensor, Tensor]) -> Tensor:
        at[0] += 1
        weight = min(1, at[0] // 200) if whole else min(1.0, at[0] / 20)
        kind, score = model(batch[0])
        return F.cross_entropy(kind, batch[1]) + weight * F.mse_loss(score, batch[0].std(dim=(1, 2, 3)))

    score = held_out(model, task, lambda out, y: F.cross_entropy(out[0], y))
    return train(model, task, both, optimizer, score, epochs=1, limit=80)


ramp = zoo.healthy("everyday-second-task-ramps-up", lambda s: ramped(s, False))
zoo.sick(
    "everyday-second-task-ramp-by-integer-division",
    lambda s: ramped(s, True),
    broken(shrinks("score")),
    "only_decay",
    "DISCONNECTED",
    layer="score",
    also={*NO_GRADIENT, "detached"},
    control=ramp,
)

# --- adapters


class Scaled(Lora):
    """A low-rank change that counts by alpha over rank."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__(base, rank)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * self.up(self.down(x))


def instructed(seed: int, scale: float = 2.0, inference: bool = False) -> Program:
    """A language model with adapters in its feed-forward layers; the head is trained as well."""
    model = LanguageModel(20, 32, 2, 2).requires_grad_(False)
    for block in model.blocks:
        block.up, block.down = Scaled(block.up, 8, scale), Scaled(block.down, 8, scale)
    model.head.requires_grad_(True)
    if inference:  # as adapters are loaded by default
        for name, p in model.named_parameters():
            if ".up.up" in name or ".down" in name:
                p.requires_grad = False
        for block in model.blocks:
            block.up.down.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    return fit(model, markov(seed, 20, 12, 16), torch.optim.AdamW(trained, lr=5e-3), 80, token_loss)


def adapters_still(played: Played) -> tuple[bool, str]:
    moved = max(d for name, d in played.distance.items() if name.removesuffix(".weight") in FACTORS)
    return moved == 0, f"adapters move by {moved:.3g}"


instruct = zoo.healthy("everyday-lora-in-language-model", lambda s: instructed(s))
zoo.sick(
    "everyday-lora-loaded-for-inference",
    lambda s: instructed(s, inference=True),
    broken(adapters_still),
    *LORA,
    "frozen",
    layer=FACTORS,
    also={*IDLE, "detached"},
    control=instruct,
)
zoo.sick(
    "everyday-lora-alpha-over-rank-is-zero",
    lambda s: instructed(s, scale=4 // 8),
    broken(ungiven(*FACTORS)),
    *LORA,
    "only_decay",
    layer=FACTORS,
    also={*NO_GRADIENT, "detached"},
    control=instruct,
)

# --- not registered


class ManyHeads(nn.Module):
    """One head per market, by its name."""

    def __init__(self, container: type) -> None:
        super().__init__()
        self.body = mlp([9, 40, 40]).append(nn.ReLU())
        self.heads = container({name: nn.Linear(40, 1) for name in ("north", "south")})

    def forward(self, x: Tensor) -> Tensor:
        south = x[:, 2:3] > 0
        h = self.body(x)
        return torch.where(south, self.heads["south"](h), self.heads["north"](h))


def markets(seed: int, container: type) -> Program:
    model = ManyHeads(container)
    return fit(model, homes(seed), adam(model), 100, F.mse_loss)


def few_tensors(count: int):
    return lambda played: (len(played.trainable) <= count, f"{len(played.trainable)} tensors are registered")


by_name = zoo.healthy("everyday-heads-in-module-dict", lambda s: markets(s, nn.ModuleDict))
zoo.sick(
    "everyday-heads-in-python-dict",
    lambda s: markets(s, dict),
    broken(few_tensors(4)),
    "hidden_layers",
    "not_in_optimizer",
    also=IDLE,
    control=by_name,
)


class Encoder(nn.Module):
    """Blocks of attention, built in a list comprehension."""

    def __init__(self, container: type) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(24, 32), nn.Linear(32, 6)
        self.blocks = container([Block(32, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


def encoded(seed: int, container: type) -> Program:
    model = Encoder(container)
    return fit(model, patches(seed), torch.optim.AdamW(model.parameters(), lr=2e-3), 60)


in_list = zoo.healthy("everyday-encoder-module-list", lambda s: encoded(s, nn.ModuleList))
zoo.sick(
    "everyday-encoder-python-list",
    lambda s: encoded(s, list),
    broken(few_tensors(4)),
    "hidden_layers",
    "not_in_optimizer",
    also=IDLE,
    control=in_list,
)

# --- left frozen


def unfrozen(seed: int, word: str) -> Program:
    """After an epoch the body joins, found by a word in its names."""
    model, task = LeNet(3, 8, 8, norm=True), images(seed, size=8)
    model.requires_grad_(False)
    model.fc2.requires_grad_(True)
    optimizer = torch.optim.Adam(model.fc2.parameters(), lr=3e-3)
    body = [p for name, p in model.named_parameters() if not name.startswith("fc2")]

    def thaw(epoch: int) -> None:
        if epoch == 0:
            for name, p in model.named_parameters():
                if word in name:
                    p.requires_grad = True
            optimizer.add_param_group({"params": body, "lr": 1e-3})

    score = held_out(model, images(seed, size=8, batch=256))
    return train(model, loader(task, seed), supervised(model), optimizer, score, epochs=5, between=thaw)


def body_still(*parts: str):
    def fact(played: Played) -> tuple[bool, str]:
        moved = max(d for name, d in played.distance.items() if name.startswith(parts))
        return moved == 0, f"it moves by {moved:.3g}"

    return fact


unfrozen_whole = zoo.healthy("everyday-body-joins-after-an-epoch", lambda s: unfrozen(s, ""))
zoo.sick(
    "everyday-body-joins-by-a-name-that-is-not-there",
    lambda s: unfrozen(s, "layer"),
    broken(body_still("conv", "bn", "fc1")),
    *FREEZE,
    "never_moves",
    layer=("conv1", "conv2", "fc1"),
    also={*IDLE, "detached"},
    control=unfrozen_whole,
)


def probed(seed: int, back: bool) -> Program:
    """Two views are matched; after each epoch a probe reads the queries' tower, which it freezes for that."""
    model = nn.ModuleDict({"query": mlp([24, 48, 16]), "item": mlp([18, 48, 16])})
    task = views(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)

    def scores(batch: Any) -> Tensor:
        a, b = (F.normalize(model[name](x), dim=1) for name, x in zip(("query", "item"), batch[0], strict=True))
        return F.cross_entropy(8 * a @ b.T, batch[1])

    def probe(_: int) -> None:
        model["query"].requires_grad_(False)
        with torch.no_grad():
            model["query"](task.aside()[0][0])
        if back:
            model["query"].requires_grad_(True)

    def score() -> float:
        with torch.no_grad():
            return scores(task.aside()).item()

    return train(model, task, scores, optimizer, score, epochs=8, limit=12, between=probe)


def no_longer(path: str):
    def fact(played: Played) -> tuple[bool, str]:
        late = [m for s in played.steps[20:] for n, m in s.moved.items() if n.startswith(path)]
        return max(late) == 0, f"after step 20 it moves by {max(late):.3g}"

    return fact


probe_back = zoo.healthy("everyday-probe-thaws-again", lambda s: probed(s, True))
zoo.sick(
    "everyday-probe-leaves-tower-frozen",
    lambda s: probed(s, False),
    broken(no_longer("query")),
    *FREEZE,
    layer=("query.0", "query.2"),
    also={*IDLE, "detached"},
    control=probe_back,
)

# --- healthy: not all is trained, and that is meant


def pretrained(seed: int, classes: int = 8) -> LeNet:
    model = LeNet(3, 8, classes, norm=True)
    fit(model, images(seed, size=8), adam(model, 3e-3), 50).run()
    model.zero_grad(set_to_none=True)
    return model


def transfer(seed: int, everything: bool) -> Program:
    """A trained network, a new head; the optimizer gets the head, or all that there is."""
    model = pretrained(seed)
    model.requires_grad_(False)
    model.fc2 = nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters() if everything else model.fc2.parameters(), lr=0.02, momentum=0.9)
    task = images(seed, size=8).changed(lambda x, y: (x, (y + 3) % 8))
    return fit(model, task, optimizer, 60)


zoo.healthy("everyday-transfer-head-only", lambda s: transfer(s, False))
zoo.healthy("everyday-transfer-optimizer-knows-frozen-body", lambda s: transfer(s, True))


def lower_rates(seed: int) -> Program:
    """Fine-tuning: a hundredth of the rate for the trained body."""
    model = pretrained(seed)
    model.fc2 = nn.Linear(64, 8)
    body = [p for name, p in model.named_parameters() if not name.startswith("fc2")]
    optimizer = torch.optim.AdamW([{"params": body, "lr": 3e-5}, {"params": model.fc2.parameters(), "lr": 3e-3}])
    task = images(seed, size=8).changed(lambda x, y: (x, 7 - y))
    return fit(model, task, optimizer, 60)


zoo.healthy("everyday-fine-tuning-small-rate-for-body", lower_rates)


def doubled(seed: int) -> Program:
    """The model turns to float64 after its optimizer was made: its tensors stay the same."""
    model = mlp([9, 32, 32, 1], nn.Tanh)
    optimizer = adam(model, 5e-3)
    model.double()
    task = homes(seed).changed(lambda x, y: (x.double(), y.double()))
    return fit(model, task, optimizer, 90, F.mse_loss)


zoo.healthy("everyday-optimizer-then-double", doubled)


def pruned(seed: int) -> Program:
    """Half of the weights are masked by torch's own pruning, and the rest goes on."""
    model = he_(mlp([20, 64, 64, 5]))
    optimizer = adam(model)
    for at in (0, 2):
        prune.l1_unstructured(model[at], "weight", amount=0.5)
    return fit(model, blobs(seed, 20, 5, 64), optimizer, 80)


zoo.healthy("everyday-pruned-by-half", pruned)


def bias_only(seed: int) -> Program:
    """Only biases and norms are tuned, as in BitFit, and the head."""
    model = LanguageModel(20, 32, 2, 2)
    fit(model, markov(seed + 40), adam(model, 3e-3), 60, token_loss).run()
    model.zero_grad(set_to_none=True)
    for name, p in model.named_parameters():
        p.requires_grad = "bias" in name or "norm" in name or name.startswith("head")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    return fit(model, markov(seed), optimizer, 80, token_loss)


zoo.healthy("everyday-biases-and-norms-only", bias_only)


class Momentum(nn.Module):
    """Two encoders of which one follows the other, as in BYOL and MoCo."""

    def __init__(self) -> None:
        super().__init__()
        self.online = mlp([24, 48, 16])
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.predictor = mlp([16, 32, 16])

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            towards = self.target(b)
        return 2 - 2 * F.cosine_similarity(self.predictor(self.online(a)), towards, dim=1)


def byol(seed: int) -> Program:
    model, task = Momentum(), bends(seed)
    optimizer = torch.optim.Adam([*model.online.parameters(), *model.predictor.parameters()], lr=2e-3)
    random = torch.Generator().manual_seed(seed)

    def seen(batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = (batch[0] + 0.1 * torch.randn(batch[0].shape, generator=random) for _ in range(2))
        return model(a, b).mean()

    @torch.no_grad()
    def follow(_: int) -> None:
        for p, q in zip(model.target.parameters(), model.online.parameters(), strict=True):
            p.lerp_(q, 0.02)

    def score() -> float:
        x = task.aside()[0]
        with torch.no_grad():
            return model(x, x).mean().item()

    return train(model, task, seen, optimizer, score, epochs=1, limit=100, after=follow)


zoo.healthy("everyday-target-encoder-follows", byol)


def tied(seed: int) -> Program:
    """Decoder weights are the encoder's, transposed."""
    model = nn.Sequential(nn.Linear(24, 10), nn.Tanh(), nn.Linear(10, 24))

    class Tied(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            return model[0].weight.T

    nn.utils.parametrize.register_parametrization(model[2], "weight", Tied(), unsafe=True)
    trained = [model[0].weight, model[0].bias, model[2].bias]
    model[2].parametrizations.weight.original.requires_grad_(False)
    return fit(model, bends(seed), torch.optim.Adam(trained, lr=5e-3), 100, F.mse_loss)


zoo.healthy("everyday-decoder-tied-to-encoder", tied)


class Siamese(nn.Module):
    """One tower reads both rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tower, self.out = mlp([20, 48, 24]).append(nn.Tanh()), nn.Linear(24, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.out((self.tower(a) - self.tower(b)).abs()).squeeze(1)


def alike(seed: int) -> Program:
    model = Siamese()
    return fit(model, likeness(seed), adam(model, 3e-3), 100, F.binary_cross_entropy_with_logits)


zoo.healthy("everyday-siamese", alike)


def growing(seed: int) -> Program:
    """A text classifier whose dropout is on and whose embedding has a row for padding that stays zero."""
    model = TextClassifier(6, 6, p=0.2)
    model.embedding = nn.Embedding(7, 24, padding_idx=6)
    lengths = torch.Generator().manual_seed(seed + 2)

    def pad(tokens: Tensor) -> Tensor:
        beyond = torch.arange(tokens.shape[1]) >= torch.randint(9, 14, (len(tokens), 1), generator=lengths)
        return tokens.masked_fill(beyond, 6)

    return fit(model, majority(seed).mapped(pad), adam(model, 5e-3), 100)


zoo.healthy("everyday-padding-row-stays-zero", growing)
