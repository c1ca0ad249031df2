# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Programs that do not train what they are meant to train, and their repaired twins.

Half: tune.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.evidence.loops import all_of, broken, held_by_none, learns, shrinks, strangers, ungiven, unmoved
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA, REPLACED, STILL, UNHELD
from validation.nets import Autoencoder, ConvNet, LanguageModel, Lora, he_, mlp
from validation.programs import adam, fit, held_out, step_from, train_step
from validation.tasks import blobs, images, manifold, markov, token_loss

zoo = Zoo("loop", half="tune", proof=learns())

# --- cut off from the loss


class Trunk(nn.Module):
    """Features and a head, with a place to cut them apart."""

    def __init__(self, dim: int, width: int, classes: int, cut: bool) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(dim, width), nn.Linear(width, width), nn.Linear(width, width)
        self.head, self.cut = nn.Linear(width, classes), cut

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        if self.cut:
            x = x.detach()
        return self.head(F.relu(self.fc3(x)))


def trunk(seed: int, cut: bool) -> Program:
    model = Trunk(32, 64, 6, cut)
    return fit(model, blobs(seed, 32, 6, 64), adam(model, 2e-3))


whole = zoo.healthy("trunk-whole", lambda s: trunk(s, False))
zoo.sick(
    "trunk-detached-features",
    lambda s: trunk(s, True),
    broken(ungiven("fc1", "fc2")),
    *CUT,
    layer=("fc1", "fc2"),
    also=IDLE,
    control=whole,
)


class Backbone(nn.Module):
    """A convolutional backbone whose forward was copied from the script for inference."""

    def __init__(self, inference: bool) -> None:
        super().__init__()
        self.body = ConvNet([3, 16, 24], 8, norm=nn.BatchNorm2d, pool=(0,))
        self.fc, self.inference = nn.Linear(24, 8), inference
        del self.body.head

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.inference):
            x = self.body.features(x).mean(dim=(2, 3))
        return self.fc(x)


def backbone(seed: int, inference: bool) -> Program:
    model = Backbone(inference)
    return fit(model, images(seed, size=8), torch.optim.AdamW(model.parameters(), lr=3e-3), 60)


with_grad = zoo.healthy("backbone-with-gradients", lambda s: backbone(s, False))
zoo.sick(
    "backbone-under-no-grad",
    lambda s: backbone(s, True),
    broken(ungiven("body.convs.0", "body.convs.1")),
    *CUT,
    layer=("body.convs.0", "body.convs.1"),
    also=IDLE,
    control=with_grad,
)


class DataEmbedding(nn.Embedding):
    """Looks its rows up in `.data`."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight.data[tokens]


def words(seed: int, by_data: bool) -> Program:
    model = LanguageModel(20, 32, 2, 2)
    if by_data:
        model.embedding = DataEmbedding(20, 32, _weight=model.embedding.weight.data)
    return fit(model, markov(seed), torch.optim.AdamW(model.parameters(), lr=2e-3), 60, token_loss)


read = zoo.healthy("language-model-embedding", lambda s: words(s, False))
zoo.sick(
    "language-model-embedding-by-data",
    lambda s: words(s, True),
    broken(ungiven("embedding")),
    *CUT,
    layer="embedding",
    also=IDLE,
    control=read,
)

# --- not in the optimizer


def coder(seed: int, decoder: bool) -> Program:
    model = Autoencoder(24, 48, 6, nn.Tanh)
    trained = [*model.encoder.parameters(), *(model.decoder.parameters() if decoder else ())]
    return fit(model, manifold(seed, 24, 4, 64), torch.optim.Adam(trained, lr=5e-3), 100, F.mse_loss)


coded = zoo.healthy("autoencoder-both-halves", lambda s: coder(s, True))
zoo.sick(
    "autoencoder-decoder-not-in-optimizer",
    lambda s: coder(s, False),
    broken(all_of(held_by_none("decoder"), unmoved("decoder")), less=0.9),
    *UNHELD,
    layer=("decoder.0", "decoder.2"),
    also=IDLE,
    control=coded,
)


def grouped(seed: int, complete: bool) -> Program:
    """Groups with and without decay, sorted by name, as in many scripts for language models."""
    model = LanguageModel(20, 32, 2, 2)
    named = dict(model.named_parameters())
    decay = {name for name, p in named.items() if p.dim() >= 2 and ("mbedding" not in name or complete)}
    plain = {name for name in named if name.endswith("bias") or (complete and name not in decay)}
    groups = [
        {"params": [named[name] for name in sorted(decay)], "weight_decay": 0.1},
        {"params": [named[name] for name in sorted(plain)], "weight_decay": 0.0},
    ]
    return fit(model, markov(seed), torch.optim.AdamW(groups, lr=2e-3), 60, token_loss)


sorted_out = zoo.healthy("language-model-decay-groups", lambda s: grouped(s, True))
zoo.sick(
    "language-model-decay-groups-forget-embedding",
    lambda s: grouped(s, False),
    broken(held_by_none("embedding", "norm.weight")),
    *UNHELD,
    layer="embedding",
    also=IDLE,
    control=sorted_out,
)

# --- an optimizer of something else


def copied(seed: int, late: bool) -> Program:
    """The model is copied after its optimizer was made, to leave the original as it is."""
    model = he_(mlp([20, 48, 48, 5]))
    task = blobs(seed, 20, 5, 64)
    if late:
        return fit(copy.deepcopy(model), task, adam(model))
    model = copy.deepcopy(model)
    return fit(model, task, adam(model))


own = zoo.healthy("copy-then-optimizer", lambda s: copied(s, False))
zoo.sick(
    "optimizer-then-copy",
    lambda s: copied(s, True),
    broken(strangers, less=0.01),
    *FOREIGN,
    also={*IDLE, "not_in_optimizer"},
    control=own,
)


def new_head(seed: int, late: bool) -> Program:
    """Fine-tuning on other classes: the head is exchanged."""
    model = ConvNet([3, 16, 16], 10, norm=nn.BatchNorm2d, pool=(0,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model.head = nn.Linear(16, 8)
    if not late:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return fit(model, images(seed, size=8), optimizer, 60)


exchanged = zoo.healthy("new-head-then-optimizer", lambda s: new_head(s, False))
zoo.sick(
    "optimizer-then-new-head",
    lambda s: new_head(s, True),
    broken(all_of(strangers, held_by_none("head"))),
    *REPLACED,
    layer="head",
    also={*IDLE, "foreign_optimizer"},
    control=exchanged,
)


def redrawn(seed: int, late: bool) -> Program:
    """An own initialisation that makes new parameters."""
    model = mlp([20, 48, 48, 5], nn.GELU)

    def init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(torch.randn_like(module.weight) * module.in_features**-0.5)

    if late:
        optimizer = adam(model)
        model.apply(init)
    else:
        model.apply(init)
        optimizer = adam(model)
    return fit(model, blobs(seed, 20, 5, 64), optimizer)


drawn = zoo.healthy("new-weights-then-optimizer", lambda s: redrawn(s, False))
zoo.sick(
    "optimizer-then-new-weights",
    lambda s: redrawn(s, True),
    broken(all_of(strangers, held_by_none("0.weight", "2.weight", "4.weight")), less=0.5),
    *REPLACED,
    also={*IDLE, "foreign_optimizer"},
    control=drawn,
)

# --- in the optimizer, and yet


def half_precision(seed: int, dtype: torch.dtype) -> Program:
    """Fine-tuning with weights in this precision, at a rate that suits fine-tuning."""
    model = nn.Sequential(
        nn.Linear(24, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 6)
    ).to(dtype)
    task = blobs(seed, 24, 6, 64, 1.0).mapped(lambda x: x.to(dtype))
    return fit(model, task, torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0), 100)


full = zoo.healthy("norms-in-float32", lambda s: half_precision(s, torch.float32))
zoo.sick(
    "norms-in-bfloat16-lose-their-updates",
    lambda s: half_precision(s, torch.bfloat16),
    broken(unmoved("1.weight", "4.weight")),
    *STILL,
    layer=("1", "4"),
    also={*IDLE, "rate_too_low", "NUMERICAL"},
    control=full,
)


def masked_rows(seed: int, mask: Tensor) -> Program:
    """Only the rows of new tokens are to be trained: a hook masks the gradient."""
    model = LanguageModel(20, 32, 2, 1)
    model.embedding.weight.register_hook(lambda gradient: gradient * mask)
    return fit(model, markov(seed), adam(model, 2e-3), 60, token_loss)


new_rows = zoo.healthy("hook-trains-new-rows", lambda s: masked_rows(s, (torch.arange(20) >= 10).float()[:, None]))
zoo.sick(
    "hook-masks-every-row",
    lambda s: masked_rows(s, (torch.arange(20) > 20).float()[:, None]),
    broken(unmoved("embedding")),
    *STILL,
    "DISCONNECTED",
    layer="embedding",
    also={*IDLE, "detached"},
    control=new_rows,
)


class Tasks(nn.Module):
    """One trunk and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.main, self.aux = nn.Linear(48, 5), nn.Linear(48, 20)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.main(h), self.aux(h)


def weighted(seed: int, weight: float) -> Program:
    """Classify and reconstruct; the weight of the second comes from a file of settings."""
    model, task = Tasks(), blobs(seed, 20, 5, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            logits, image = model(x)
            loss = F.cross_entropy(logits, y) + weight * F.mse_loss(image, x)
            losses.append(step_from(loss, optimizer))

    score = held_out(model, task, lambda out, y: F.cross_entropy(out[0], y))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


both_tasks = zoo.healthy("second-loss-weight-0.5", lambda s: weighted(s, 0.5))
zoo.sick(
    "second-loss-weight-0",
    lambda s: weighted(s, 0.0),
    broken(shrinks("aux")),
    "only_decay",
    layer="aux",
    also={*IDLE, "detached"},
    control=both_tasks,
)

# --- LoRA


def adapted(seed: int, trained: str, zero_down: bool = False) -> Program:
    """Adapters in two layers; what is trained is chosen by name."""
    model = nn.Sequential(
        Lora(nn.Linear(24, 48), 4), nn.ReLU(), Lora(nn.Linear(48, 48), 4), nn.ReLU(), nn.Linear(48, 6)
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad = trained in name and ("up" in name or "down" in name)
    if zero_down:
        for module in (model[0], model[2]):
            nn.init.zeros_(module.down.weight)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
    return fit(model, blobs(seed, 24, 6, 64, 1.0), optimizer)


adapters = zoo.healthy("lora-both-factors", lambda s: adapted(s, ""))
zoo.sick(
    "lora-only-first-factor-by-name",
    lambda s: adapted(s, "down"),
    broken(unmoved("0.down", "2.down"), less=0.01),
    *LORA,
    layer=("0.down", "0.up", "2.down", "2.up"),
    also={*IDLE, "frozen"},
    control=adapters,
)
zoo.sick(
    "lora-both-factors-start-at-zero",
    lambda s: adapted(s, "", zero_down=True),
    broken(unmoved("0", "2"), less=0.01),
    *LORA,
    layer=("0.down", "0.up", "2.down", "2.up"),
    also={*IDLE, "SYMMETRY", "DEAD"},
    control=adapters,
)

# --- not registered, or left frozen


class Stack(nn.Module):
    """Hidden layers, kept in a list of one kind or the other."""

    def __init__(self, container: type) -> None:
        super().__init__()
        self.stem = nn.Linear(20, 40)
        self.layers = container([nn.Linear(40, 40) for _ in range(3)])
        self.head = nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


def stacked(seed: int, container: type) -> Program:
    model = Stack(container)
    return fit(model, blobs(seed, 20, 5, 64), adam(model))


def few_tensors(count: int):
    return lambda played: (len(played.trainable) < count, f"{len(played.trainable)} tensors are registered")


registered = zoo.healthy("layers-in-a-module-list", lambda s: stacked(s, nn.ModuleList))
zoo.sick(
    "layers-in-a-python-list", lambda s: stacked(s, list), broken(few_tensors(6)), "hidden_layers", control=registered
)


def unfreezing(seed: int, truly: bool) -> Program:
    """The head first, the body from step 30 on, in a group of its own."""
    model = ConvNet([3, 16, 16], 8, norm=nn.BatchNorm2d, pool=(0,))
    task = images(seed, size=8)
    model.convs.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=3e-3)
    losses: list[float] = []
    criterion = nn.CrossEntropyLoss()

    def run() -> None:
        batches = iter(task)
        for step in range(90):
            if step == 30:
                if truly:
                    model.convs.requires_grad_(True)
                else:
                    model.convs.requires_grad = True  # sets an attribute of the list, and of no parameter
                optimizer.add_param_group({"params": model.convs.parameters(), "lr": 1e-3})
            x, y = next(batches)
            losses.append(train_step(model, optimizer, x, y, criterion))

    model.norms.requires_grad_(False)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


def convs_still(played):
    moved = max(distance for name, distance in played.distance.items() if name.startswith("convs"))
    return moved == 0, f"convolutions move by {moved:.3g}"


thawed = zoo.healthy("unfreezing-by-requires-grad_", lambda s: unfreezing(s, True))
zoo.sick(
    "unfreezing-by-attribute-of-a-module",
    lambda s: unfreezing(s, False),
    broken(convs_still),
    *FREEZE,
    layer=("convs.0", "convs.1"),
    also={*IDLE, "detached"},
    control=thawed,
)
