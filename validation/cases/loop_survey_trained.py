# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Programs after what users reported that do not train all they are meant to train, and their repaired twins.

Half: holdout.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from validation.case import Program, Zoo
from validation.evidence.loops import Played, all_of, broken, held_by_none, learns, shrinks, strangers, ungiven, unmoved
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA, REPLACED, STILL, UNHELD
from validation.nets import Block, Mixer, SequenceModel, Signal, UNet, mlp, torch_encoder
from validation.programs import held_out, step_from
from validation.tasks import Task, drawn_once, echo, images, patches, pictures, recall, table, token_loss, views, waves

zoo = Zoo("loop", half="holdout", proof=learns())


class Trainer:
    """A trainer as many teams have one of their own."""

    def __init__(self, model: nn.Module, task: Task, optimizer: torch.optim.Optimizer, loss_fn=F.cross_entropy) -> None:
        self.model, self.task, self.optimizer, self.loss_fn = model, iter(task), optimizer, loss_fn
        self.history: list[float] = []

    def training_step(self) -> Tensor:
        batch, target = next(self.task)
        output = self.model(*batch) if isinstance(batch, tuple) else self.model(batch)
        return self.loss_fn(output, target)

    def fit(self, epochs: int, steps: int = 20) -> None:
        for _epoch in range(epochs):
            self.model.train()
            for _ in range(steps):
                loss = self.training_step()
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                self.history.append(float(loss.detach()))


def trainer(model: nn.Module, task: Task, optimizer: torch.optim.Optimizer, epochs: int = 4, loss_fn=F.cross_entropy):
    worker = Trainer(model, task, optimizer, loss_fn)
    return Program(
        model=model,
        optimizer=optimizer,
        run=lambda: worker.fit(epochs),
        losses=worker.history,
        score=held_out(model, task, loss_fn),
    )


# --- cut off


class Vae(nn.Module):
    """Its sample of the code goes through NumPy in the faulty version."""

    def __init__(self, by_numpy: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ELU())
        self.mean, self.spread = nn.Linear(48, 6), nn.Linear(48, 6)
        self.decoder = nn.Sequential(nn.Linear(6, 48), nn.ELU(), nn.Linear(48, 64))
        self.by_numpy = by_numpy

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mean, spread = self.mean(h), self.spread(h)
        code = mean + torch.randn_like(mean) * (0.5 * spread).exp() if self.training else mean
        if self.by_numpy:
            code = torch.from_numpy(code.detach().numpy())
        return self.decoder(code).view_as(x), mean, spread


def vae_loss(output: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    image, mean, spread = output
    return F.mse_loss(image, x) - 0.001 * (1 + spread - mean.square() - spread.exp()).mean()


def vae(seed: int, by_numpy: bool) -> Program:
    model = Vae(by_numpy)
    return trainer(model, pictures(seed), torch.optim.Adam(model.parameters(), lr=3e-3), 5, vae_loss)


def only_prior(played: Played) -> tuple[bool, str]:
    """The reconstruction does not reach the encoder: the prior's term alone does, and it is tiny."""
    late = played.steps[len(played.steps) // 2 :]
    share = sum(s.brought["encoder.1.weight"] for s in late) / sum(s.brought["decoder.0.weight"] for s in late)
    return share < 0.05, f"the encoder is given {share:.2g} of what the decoder is"


vae_twin = zoo.healthy("vae-code-by-torch", lambda s: vae(s, False))
zoo.sick(
    "vae-code-through-numpy",
    lambda s: vae(s, True),
    broken(only_prior, less=0.5),
    *CUT,
    "VANISHING",
    layer=("encoder.1", "mean", "spread"),
    also={*IDLE, "BOTTLENECK"},
    control=vae_twin,
)


class Adapter(nn.Module):
    """A frozen projection with a low-rank change beside it, of any start and scale."""

    def __init__(self, base: nn.Linear, rank: int, scaling: float) -> None:
        super().__init__()
        self.base, self.scaling = base, scaling
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scaling * (x @ self.lora_A.T @ self.lora_B.T)


class Tuned(nn.Module):
    """A frozen encoder with adapters in its feed-forward layers, checkpointed if asked for, and a new head."""

    def __init__(self, scaling: float, reentrant: bool | None) -> None:
        super().__init__()
        self.embed = nn.Linear(24, 32)
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(2))
        self.requires_grad_(False)
        for block in self.blocks:
            block.up, block.down = Adapter(block.up, 4, scaling), Adapter(block.down, 4, scaling)
        self.classifier, self.reentrant = nn.Linear(32, 6), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.classifier(x.mean(dim=1))


def tuned(seed: int, trained=lambda name: True, scaling: float = 2.0, reentrant: bool | None = None) -> Program:
    model = Tuned(scaling, reentrant)
    for name, parameter in model.named_parameters():
        if "base" in name or ("lora" in name and not trained(name)):
            parameter.requires_grad = False
    trainable = [p for p in model.parameters() if p.requires_grad]
    return trainer(model, patches(seed), torch.optim.AdamW(trainable, lr=3e-3, weight_decay=0.0), 4)


ADAPTERS = tuple(f"blocks.{i}.{part}" for i in range(2) for part in ("up", "down"))
lora_twin = zoo.healthy("lora-in-two-blocks", tuned)
lora_checkpointed = zoo.healthy("lora-checkpointed-without-reentry", lambda s: tuned(s, reentrant=False))
zoo.sick(
    "lora-checkpointed-with-reentry",
    lambda s: tuned(s, reentrant=True),
    broken(ungiven("blocks.0", "blocks.1")),
    "detached",
    "lora_frozen",
    "DISCONNECTED",
    layer=ADAPTERS,
    also=IDLE,
    control=lora_checkpointed,
)
zoo.sick(
    "lora-second-factor-frozen-by-pattern",
    lambda s: tuned(s, lambda name: "lora_A" in name),
    broken(unmoved("blocks.0", "blocks.1")),
    *LORA,
    layer=ADAPTERS,
    also={*IDLE, "frozen"},
    control=lora_twin,
)
zoo.sick(
    "lora-scaling-by-integer-division",
    lambda s: tuned(s, scaling=2 // 4),
    broken(unmoved("blocks.0", "blocks.1")),
    *LORA,
    "never_moves",
    layer=ADAPTERS,
    also={*IDLE, "detached", "DEAD"},
    control=lora_twin,
)

# --- not in the optimizer


class Detector(nn.Module):
    """A trunk with a head for the class and one for the box."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.GroupNorm(4, 16),
            nn.SiLU(),
            nn.Conv2d(16, 24, 3, 2, 1),
            nn.SiLU(),
            nn.Flatten(),
        )
        self.classify, self.box = nn.Linear(96, 8), nn.Linear(96, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.classify(h), self.box(h)


def boxes(seed: int) -> Task:
    """Pictures with a class and four numbers that depend on it."""
    places = torch.randn(8, 4, generator=drawn_once(seed, 33))
    return images(seed, size=8).changed(lambda x, y: (x, (y, places[y])))


def detector_loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(output[0], target[0]) + F.smooth_l1_loss(output[1], target[1])


def detector(seed: int, with_box: bool) -> Program:
    model = Detector()
    parts = [model.trunk, model.classify, *([model.box] if with_box else [])]
    optimizer = torch.optim.SGD([{"params": part.parameters()} for part in parts], lr=0.05, momentum=0.9)
    return trainer(model, boxes(seed), optimizer, 4, detector_loss)


detector_twin = zoo.healthy("detector-two-heads", lambda s: detector(s, True))
zoo.sick(
    "detector-box-head-not-in-optimizer",
    lambda s: detector(s, False),
    broken(held_by_none("box")),
    *UNHELD,
    layer="box",
    also=IDLE,
    control=detector_twin,
)


class Clip(nn.Module):
    """Two towers and a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = mlp([24, 48, 16], nn.GELU), mlp([18, 48, 16], nn.GELU)
        self.logit_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.logit_scale.exp() * F.normalize(self.left(a), dim=1) @ F.normalize(self.right(b), dim=1).T


def contrastive(seed: int, with_scale: bool) -> Program:
    model = Clip()
    trained = [*model.left.parameters(), *model.right.parameters(), *([model.logit_scale] if with_scale else [])]
    return trainer(model, views(seed), torch.optim.AdamW(trained, lr=3e-3), 4)


clip_twin = zoo.healthy("contrastive-learned-temperature", lambda s: contrastive(s, True))
zoo.sick(
    "contrastive-temperature-not-in-optimizer",
    lambda s: contrastive(s, False),
    broken(all_of(held_by_none("logit_scale"), unmoved("logit_scale"))),
    *UNHELD,
    also=IDLE,
    control=clip_twin,
)


class Gan(nn.Module):
    """Generator and discriminator in one module, as configuration files like it."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = mlp([4, 32, 32, 2], nn.LeakyReLU), mlp([2, 32, 32, 1], nn.LeakyReLU)


def gan(seed: int, wrong: str = "") -> Program:
    """Points of a ring. Either player is frozen while the other moves."""
    model = Gan()
    g, d = model.generator, model.critic
    opt_g = torch.optim.Adam(g.parameters(), lr=1e-3, betas=(0.5, 0.99))
    opt_d = torch.optim.Adam((g if wrong == "same" else d).parameters(), lr=2e-3, betas=(0.5, 0.99))
    random = torch.Generator().manual_seed(seed + 60)
    bce, ones, zeros = F.binary_cross_entropy_with_logits, torch.ones(64, 1), torch.zeros(64, 1)
    losses: list[float] = []

    def real() -> Tensor:
        angle = 2 * math.pi * torch.rand(64, generator=random)
        return 2 * torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(64, 2, generator=random)

    def run() -> None:
        for _ in range(150):
            if wrong != "frozen":
                d.requires_grad_(True)
            fake = g(torch.randn(64, 4, generator=random)).detach()
            loss_d = bce(d(real()), ones) + bce(d(fake), zeros)
            opt_d.zero_grad()
            if loss_d.requires_grad:
                loss_d.backward()
            opt_d.step()
            d.requires_grad_(False)
            loss_g = bce(d(g(torch.randn(64, 4, generator=random))), ones)
            opt_g.zero_grad()
            loss_g.backward()
            opt_g.step()
            losses.append(loss_d.item())

    def score() -> float:
        """How far the points are from the ring."""
        with torch.no_grad():
            points = g(torch.randn(256, 4, generator=drawn_once(seed, 61)))
        return (points.norm(dim=1) - 2).abs().mean().item()

    return Program(model=model, optimizer=[opt_g, opt_d], run=run, losses=losses, score=score)


def critic_rests(played: Played) -> tuple[bool, str]:
    late = [s.moved.get("critic.0.weight", 0.0) for s in played.steps[len(played.steps) // 2 :]]
    return max(late) == 0, f"the critic moves by up to {max(late):.3g} late in the run"


gan_twin = zoo.healthy("gan-takes-turns", gan)
zoo.sick(
    "gan-both-optimizers-hold-the-generator",
    lambda s: gan(s, "same"),
    broken(held_by_none("critic")),
    *UNHELD,
    "foreign_optimizer",
    layer=("critic.0", "critic.2", "critic.4"),
    also=IDLE,
    control=gan_twin,
)
zoo.sick(
    "gan-critic-frozen-and-never-thawed",
    lambda s: gan(s, "frozen"),
    broken(critic_rests),
    *FREEZE,
    layer=("critic.0", "critic.2", "critic.4"),
    also={*IDLE, "detached"},
    control=gan_twin,
)

# --- an optimizer of something else


def of_average(seed: int, wrong: bool) -> Program:
    """Model and moving average have nearly the same name."""
    model = Signal([4, 16, 24])
    shadow = copy.deepcopy(model)
    optimizer = torch.optim.Adam((shadow if wrong else model).parameters(), lr=2e-3)
    return trainer(model, waves(seed), optimizer)


average_twin = zoo.healthy("signal-optimizer-of-the-model", lambda s: of_average(s, False))
zoo.sick(
    "signal-optimizer-of-the-average",
    lambda s: of_average(s, True),
    broken(strangers, less=0.01),
    *FOREIGN,
    also={*IDLE, "not_in_optimizer"},
    control=average_twin,
)


def normed(seed: int, late: bool) -> Program:
    """Weight normalisation, applied before or after the optimizer is made."""
    model = SequenceModel(nn.GRU(8, 24, batch_first=True), 4)
    model.head = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 4))
    before = torch.optim.Adam(model.parameters(), lr=5e-3)
    for i in (0, 2):
        weight_norm(model.head[i])
    return trainer(model, recall(seed, 6, 4, 8, 32), before if late else torch.optim.Adam(model.parameters(), lr=5e-3))


norm_twin = zoo.healthy("weight-norm-then-optimizer", lambda s: normed(s, False))
zoo.sick(
    "optimizer-then-weight-norm",
    lambda s: normed(s, True),
    broken(all_of(strangers, held_by_none("head.0.parametrizations", "head.2.parametrizations"))),
    *REPLACED,
    layer=("head.0", "head.2", "head.0.parametrizations.weight", "head.2.parametrizations.weight"),
    also={*IDLE, "foreign_optimizer"},
    control=norm_twin,
)


class Tagger(nn.Module):
    """Embedding, recurrence, a tag per token."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.tokens, self.rnn = nn.Embedding(size, 16), nn.LSTM(16, 24, batch_first=True)
        self.tags = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.tags(self.rnn(self.tokens(x))[0])


def tags(seed: int, size: int = 30) -> Task:
    meaning = torch.randint(6, (size,), generator=drawn_once(seed, 88))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(size, (16, 10), generator=random)
        return x, meaning[x]

    return Task(seed, draw, token_loss)


def resized(seed: int, late: bool) -> Program:
    """New tokens: the embedding grows, before or after the optimizer is made."""
    model = Tagger(20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    larger = nn.Embedding(30, 16)
    larger.weight.data[:20] = model.tokens.weight.data
    model.tokens = larger
    if not late:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return trainer(model, tags(seed), optimizer, 3, token_loss)


resize_twin = zoo.healthy("embedding-resized-then-optimizer", lambda s: resized(s, False))
zoo.sick(
    "optimizer-then-embedding-resized",
    lambda s: resized(s, True),
    broken(all_of(strangers, held_by_none("tokens"))),
    *REPLACED,
    layer="tokens",
    also={*IDLE, "foreign_optimizer"},
    control=resize_twin,
)

# --- in the optimizer, and yet


def low(seed: int, dtype: torch.dtype) -> Program:
    model = Mixer(2, 24).to(dtype)
    task = patches(seed).mapped(lambda x: x.to(dtype))
    return trainer(model, task, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01), 4)


def norms_of(model: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm))


def norms_still(played: Played) -> tuple[bool, str]:
    gains = [f"{path}.weight" for path in norms_of(played.program.model)]
    still = [name for name in gains if played.distance[name] == 0]
    return len(still) == len(gains) > 0, f"{len(still)} of {len(gains)} gains of norms never move"


mixer_twin = zoo.healthy("mixer-in-float32", lambda s: low(s, torch.float32))
zoo.sick(
    "mixer-in-bfloat16",
    lambda s: low(s, torch.bfloat16),
    broken(norms_still),
    *STILL,
    layer=norms_of(Mixer(2, 24)),
    also={*IDLE, "rate_too_low", "NUMERICAL"},
    control=mixer_twin,
)


def rated(seed: int, factor: float) -> Program:
    """Each level down has a smaller rate; the factor of the stem came from a table of settings."""
    model = torch_encoder(2, 24, 4)
    stem = {id(p) for p in model.project.parameters()}
    groups = [
        {"params": [p for p in model.parameters() if id(p) in stem], "lr": 2e-3 * factor},
        {"params": [p for p in model.parameters() if id(p) not in stem], "lr": 2e-3},
    ]
    return trainer(model, patches(seed), torch.optim.Adam(groups), 3)


rate_twin = zoo.healthy("rates-fall-with-depth", lambda s: rated(s, 0.3))
zoo.sick(
    "rate-of-the-stem-is-zero",
    lambda s: rated(s, 0.0),
    broken(unmoved("project")),
    "never_moves",
    "zero_rate",
    "SLOW",
    layer="project",
    also=IDLE,
    control=rate_twin,
)


class Branches(nn.Module):
    """One trunk, a head per country."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(40, 8), nn.Embedding(12, 8)])
        self.trunk = nn.Sequential(nn.Linear(24, 48), nn.SiLU())
        self.north, self.south = nn.Linear(48, 5), nn.Linear(48, 5)

    def forward(self, categories: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        parts = [e(categories[:, i]) for i, e in enumerate(self.embeddings)]
        h = self.trunk(torch.cat([*parts, values], dim=1))
        return self.north(h), self.south(h)


def countries(seed: int, filtered: bool) -> Program:
    """Rows of the south are masked in; a filter upstream lets none of them through."""
    model, task = Branches(), table(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.2)
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(90), strict=False):
            south = (x[1][:, 0] > (99 if filtered else 0)).float()
            north_logits, south_logits = model(*x)
            loss = ((1 - south) * F.cross_entropy(north_logits, y, reduction="none")).mean()
            loss = loss + (south * F.cross_entropy(south_logits, y, reduction="none")).mean()
            losses.append(step_from(loss, optimizer))

    score = held_out(model, task, lambda out, y: F.cross_entropy(out[0], y))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


country_twin = zoo.healthy("rows-of-both-countries", lambda s: countries(s, False))
zoo.sick(
    "no-row-of-the-south",
    lambda s: countries(s, True),
    broken(shrinks("south")),
    "only_decay",
    layer="south",
    also={*IDLE, "all_masked"},
    control=country_twin,
)

# --- not registered


class Ladder(nn.Module):
    """Residual branches by name, in a dictionary of one kind or the other."""

    def __init__(self, container: type) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 24)
        self.branches = container({f"step{i}": nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for i in range(2)})
        self.head = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for branch in self.branches.values():
            x = x + branch(x)
        return self.head(x)


def ladder(seed: int, container: type) -> Program:
    model, task = Ladder(container), echo(seed, 6, 6, 8, 24, 0)
    return trainer(model, task, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), 3, token_loss)


ladder_twin = zoo.healthy("branches-in-a-module-dict", lambda s: ladder(s, nn.ModuleDict))
zoo.sick(
    "branches-in-a-python-dict",
    lambda s: ladder(s, dict),
    broken(lambda p: (len(p.trainable) < 6, f"{len(p.trainable)} tensors are registered")),
    "hidden_layers",
    control=ladder_twin,
)


def fused(seed: int, registered: bool) -> Program:
    """Skips of a U-Net are refined by convolutions that a helper keeps for itself."""
    model = UNet(12, 12)
    refine = nn.Conv2d(1, 1, 3, padding=1)
    if registered:
        model.refine = refine
    model.register_forward_hook(lambda _module, _inputs, output: output + refine(output))
    return trainer(model, pictures(seed), torch.optim.Adam(model.parameters(), lr=5e-3), 3, F.mse_loss)


fused_twin = zoo.healthy("unet-refinement-registered", lambda s: fused(s, True))
zoo.sick(
    "unet-refinement-outside-of-the-model",
    lambda s: fused(s, False),
    broken(lambda p: ("refine.weight" not in p.trainable, f"{len(p.trainable)} tensors are registered")),
    "hidden_layers",
    control=fused_twin,
)
