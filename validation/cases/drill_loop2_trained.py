# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""What is trained and what is not: fine-tuning, adapters, groups, games of two, and their repaired twins.

Half: drill.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.evidence.loops import all_of, broken, held_by_none, learns, resting, shrinks, strangers, ungiven
from validation.labels import CUT, FOREIGN, FREEZE, IDLE, LORA_FROZEN, REPLACED, STILL, UNHELD
from validation.nets import mlp
from validation.programs import adam, fit, held_out, train_step
from validation.tasks import gestures, glyphs, grains, likeness, majority, pulses, sensors, songs, spectra, token_loss

zoo = Zoo("loop", half="drill", proof=learns())


class Eye(nn.Module):
    """A body of convolutions and a head."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        norms = [nn.BatchNorm2d(16), nn.BatchNorm2d(24)] if norm else [nn.Identity(), nn.Identity()]
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3), norms[0], nn.ReLU(), nn.Conv2d(16, 24, 3, stride=2), norms[1], nn.ReLU()
        )
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(dim=(2, 3)))


# --- frozen


def thawed(seed: int, by: str, norm: bool) -> Program:
    """A body that was frozen for a warm-up of the head, and is to be thawed after ten steps."""
    model, task, losses = Eye(norm), glyphs(seed), []
    for p in model.body.parameters():
        p.requires_grad = False
    optimizer = adam(model, 5e-3)

    def run() -> None:
        for (x, y), step in zip(task, range(90), strict=False):
            if step == 10:
                for name, p in model.named_parameters():
                    if name.startswith(by):
                        p.requires_grad = True
            losses.append(train_step(model, optimizer, x, y))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


for norm in (False, True):
    word = "-with-norms" if norm else ""
    right = zoo.healthy(f"eye-thawed-by-its-name{word}", lambda s, n=norm: thawed(s, "body", n))
    zoo.sick(
        f"eye-thawed-by-an-old-name{word}",
        lambda s, n=norm: thawed(s, "backbone", n),
        broken(resting("body"), less=0.8),
        *FREEZE,
        layer=("body.0", "body.3"),
        also=IDLE,
        control=right,
    )


def trained_before(seed: int, kind: str) -> Program:
    """A body that was trained on the same pictures by another head; `kind` says what becomes of it."""
    old, task = Eye(kind == "norms"), glyphs(seed)
    optimizer = adam(old, 5e-3)
    for (x, y), _ in zip(task, range(150), strict=False):
        optimizer.zero_grad()
        F.cross_entropy(old(x), y).backward()
        optimizer.step()
    model = Eye(kind == "norms")
    model.body.load_state_dict(old.body.state_dict())
    model.body.requires_grad_(False)
    if kind == "norms":
        model.body.eval()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    return fit(model, task, optimizer, 70)


zoo.healthy("eye-only-a-new-head", lambda s: trained_before(s, "plain"))
zoo.healthy("eye-only-a-new-head-norms-in-evaluation", lambda s: trained_before(s, "norms"))


class Sketch(nn.Module):
    """Random features, drawn once and never trained, as in a reservoir or with random Fourier features."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(14, 200) / 3)
        self.shift, self.out = nn.Parameter(6.3 * torch.rand(200), requires_grad=False), nn.Linear(200, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cos(x @ self.directions + self.shift))


def sketched(seed: int) -> Program:
    model = Sketch()
    return fit(model, sensors(seed), torch.optim.Adam(model.out.parameters(), lr=1e-2), 80, F.mse_loss)


zoo.healthy("sensors-by-random-features", sketched)

# --- adapters


class Added(nn.Module):
    """A frozen layer and a small change beside it, in names of its own."""

    def __init__(self, base: nn.Linear, names: tuple[str, str], rank: int = 3) -> None:
        super().__init__()
        self.base, self.names = base, names
        self.register_parameter(names[0], nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5))
        self.register_parameter(names[1], nn.Parameter(torch.zeros(base.out_features, rank)))

    def forward(self, x: Tensor) -> Tensor:
        down, up = (getattr(self, name) for name in self.names)
        return self.base(x) + F.linear(F.linear(x, down), up)


def adapted(seed: int, names: tuple[str, str], word: str, before: bool = True) -> Program:
    """A net that was trained for something else gets small changes; whatever bears `word` learns, and the head."""
    model, task = mlp([18, 48, 48, 7], nn.GELU), grains(seed)
    if before:
        other = adam(model, 3e-3)
        for (x, y), _ in zip(grains(seed + 50), range(80), strict=False):
            other.zero_grad()
            F.cross_entropy(model(x), y).backward()
            other.step()
    for i in (0, 2):
        model[i] = Added(model[i], names)
    model[4] = nn.Linear(48, 7)
    for name, p in model.named_parameters():
        p.requires_grad = word in name or name.startswith("4")
    return fit(model, task, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3), 70)


small = zoo.healthy("changes-by-their-word", lambda s: adapted(s, ("delta_down", "delta_up"), "delta"))
zoo.sick(
    "changes-by-the-word-of-the-paper",
    lambda s: adapted(s, ("delta_down", "delta_up"), "lora"),
    broken(resting("delta"), less=0.97),
    *LORA_FROZEN,
    also=IDLE,
    control=small,
)
lora = zoo.healthy("lora-by-its-word", lambda s: adapted(s, ("lora_A", "lora_B"), "lora"))
zoo.sick(
    "lora-second-factor-only-by-the-case-of-a-letter",
    lambda s: adapted(s, ("lora_A", "lora_b"), "lora_A"),
    broken(resting("lora_b")),
    *LORA_FROZEN,
    also=IDLE,
    control=lora,
)


def merged(seed: int, kept: bool) -> Program:
    """Adapters are put in after the optimizer was made from what is trainable."""
    model = mlp([14, 48, 48, 6], nn.SiLU)
    optimizer = adam(model, 5e-3)
    for i in (0, 2):
        model[i] = Added(model[i], ("lora_A", "lora_B"))
        model[i].base.requires_grad_(False)
    if kept:
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    return fit(model, sensors(seed), optimizer, 70, F.mse_loss)


zoo.sick(
    "adapters-put-in-after-the-optimizer",
    lambda s: merged(s, False),
    broken(held_by_none("0.lora_A", "0.lora_B", "2.lora_A", "2.lora_B")),
    *UNHELD,
    "lora_frozen",
    layer=("0", "2"),
    also=IDLE,
    control=zoo.healthy("adapters-put-in-before-the-optimizer", lambda s: merged(s, True)),
)

# --- in a group whose rate is next to nothing


def grouped(seed: int, body: float, kind: str) -> Program:
    """The body has a rate of its own."""
    model, task = Eye(norm=True), glyphs(seed)
    groups = [{"params": model.body.parameters(), "lr": body}, {"params": model.head.parameters()}]
    if kind == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(groups, lr=0.2, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(groups, lr=5e-3, weight_decay=0.0)
    return fit(model, task, optimizer, 90)


for kind, good, bad in (("adamw", 1e-3, 1e-12), ("sgd", 0.05, 1e-11)):
    fair = zoo.healthy(f"eye-body-at-{good:g}-{kind}", lambda s, g=good, k=kind: grouped(s, g, k))
    zoo.sick(
        f"eye-body-at-{bad:g}-{kind}",
        lambda s, b=bad, k=kind: grouped(s, b, k),
        broken(less=0.8),
        *STILL,
        "zero_rate",
        "rate_too_low",
        layer=("body.0", "body.3"),
        also=IDLE,
        control=fair,
    )


def decayed_only(seed: int, used: bool) -> Program:
    """A branch whose gate is closed by mistake: nothing comes back, and weight decay goes on."""

    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.main, self.side = mlp([18, 48, 7], nn.SiLU), mlp([18, 32, 7], nn.SiLU)

        def forward(self, x: Tensor) -> Tensor:
            return self.main(x) + (1.0 if used else 0.0) * self.side(x)

    model = Gate()
    return fit(model, grains(seed), torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05), 70)


zoo.sick(
    "side-weighs-nothing-under-decay",
    lambda s: decayed_only(s, False),
    broken(shrinks("side")),
    "only_decay",
    "never_moves",
    "detached",
    "DISCONNECTED",
    also={*IDLE, "DEAD"},
    control=zoo.healthy("side-weighs-one-under-decay", lambda s: decayed_only(s, True)),
)

# --- out of the graph, out of the optimizer


def cut(seed: int, how: str) -> Program:
    """A recurrence over pulses after convolutions; what lies between them goes by a list, or stays a tensor."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.gru = nn.Conv1d(2, 12, 5, stride=3), nn.GRU(12, 24, batch_first=True)
            self.out = nn.Linear(24, 5)

        def forward(self, x: Tensor) -> Tensor:
            h = F.gelu(self.conv(x))
            if how == "list":
                h = torch.tensor(h.tolist())
            return self.out(self.gru(h.transpose(1, 2))[0][:, -1])

    model = Net()
    return fit(model, pulses(seed), adam(model, 1e-2), 60)


zoo.sick(
    "pulses-through-a-list",
    lambda s: cut(s, "list"),
    broken(ungiven("conv")),
    *CUT,
    layer="conv",
    also=IDLE,
    control=zoo.healthy("pulses-as-tensors", lambda s: cut(s, "tensor")),
)


def in_two(seed: int, both: bool) -> Program:
    """Two optimizers, one for vectors of words and one for the rest; the second takes the vectors as well."""

    class Vote(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.body = nn.Embedding(6, 16), mlp([16, 40, 6], nn.SiLU)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(self.words(x).mean(dim=1))

    model, task, losses = Vote(), majority(seed), []
    first = torch.optim.SGD(model.words.parameters(), lr=0.5)
    second = torch.optim.Adam((model.body if both else model.words).parameters(), lr=1e-2)

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            loss = F.cross_entropy(model(x), y)
            model.zero_grad()
            loss.backward()
            first.step()
            second.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=[first, second], run=run, losses=losses, score=held_out(model, task))


zoo.sick(
    "words-in-both-optimizers-body-in-none",
    lambda s: in_two(s, False),
    broken(held_by_none("body")),
    *UNHELD,
    layer=("body.0", "body.2"),
    also=IDLE,
    control=zoo.healthy("words-and-body-in-two-optimizers", lambda s: in_two(s, True)),
)


def reloaded(seed: int, copied: bool) -> Program:
    """The net is made a copy for a second run, and the loop trains the copy with the optimizer of the first."""
    model = mlp([40, 32, 8, 32, 40], nn.GELU)
    optimizer = adam(model, 3e-3)
    return fit(copy.deepcopy(model) if copied else model, spectra(seed), optimizer, 60, F.mse_loss)


zoo.sick(
    "spectra-a-copy-with-the-first-one's-optimizer",
    lambda s: reloaded(s, True),
    broken(strangers, less=0.01),
    *FOREIGN,
    "not_in_optimizer",
    also=IDLE,
    control=zoo.healthy("spectra-the-net-and-its-optimizer", lambda s: reloaded(s, False)),
)


def fresh_head(seed: int, late: bool) -> Program:
    """The head is drawn anew as a parameter, before or after the optimizer knows it."""
    model = mlp([18, 48, 7], nn.GELU)

    def redraw() -> None:
        model[2].weight = nn.Parameter(torch.zeros(7, 48))

    if not late:
        redraw()
    optimizer = adam(model, 5e-3)
    if late:
        redraw()
    return fit(model, grains(seed), optimizer, 60)


zoo.sick(
    "head-set-to-zero-after-the-optimizer",
    lambda s: fresh_head(s, True),
    broken(all_of(strangers, held_by_none("2.weight"))),
    *REPLACED,
    "foreign_optimizer",
    layer="2",
    also=IDLE,
    control=zoo.healthy("head-set-to-zero-before-the-optimizer", lambda s: fresh_head(s, False)),
)


def listed(seed: int, registered: bool) -> Program:
    """Experts in a list of modules, or in a list."""

    class Council(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            experts = [mlp([14, 32, 6], nn.SiLU) for _ in range(3)]
            self.gate = nn.Linear(14, 3)
            self.experts = nn.ModuleList(experts) if registered else experts

        def forward(self, x: Tensor) -> Tensor:
            shares = self.gate(x).softmax(dim=1)
            return sum(shares[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))

    model = Council()
    return fit(model, sensors(seed), adam(model, 1e-2), 70, F.mse_loss)


zoo.sick(
    "council-in-a-plain-list",
    lambda s: listed(s, False),
    broken(less=0.7),
    "hidden_layers",
    also=IDLE,
    control=zoo.healthy("council-in-a-list-of-modules", lambda s: listed(s, True)),
)

# --- right, though parts rest


class Pair(nn.Module):
    """Two views of a thing, drawn together by their cosine; a slow copy of the encoder reads the second."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp([20, 48, 16], nn.GELU)
        self.slow = copy.deepcopy(self.encoder).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.level = nn.Parameter(torch.tensor(0.0))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.scale * F.cosine_similarity(self.encoder(a), self.slow(b)) + self.level


def momentum_pair(seed: int) -> Program:
    model, task = Pair(), likeness(seed)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)

    def after(_: int) -> None:
        with torch.no_grad():
            for p, q in zip(model.slow.parameters(), model.encoder.parameters(), strict=True):
                p.lerp_(q, 0.05)

    return fit(model, task, optimizer, 120, F.binary_cross_entropy_with_logits, after=after)


zoo.healthy("likeness-against-a-slow-copy", momentum_pair)


def adversaries(seed: int) -> Program:
    """A generator of gestures and its critic, two steps of the critic for one of the generator."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maker, self.critic = mlp([6, 48, 40], nn.LeakyReLU), mlp([40, 48, 1], nn.LeakyReLU)

        def forward(self, z: Tensor) -> Tensor:
            return self.critic(self.maker(z))

    model, task, losses = Two(), gestures(seed), []
    made = torch.optim.Adam(model.maker.parameters(), lr=2e-3, betas=(0.5, 0.9))
    judged = torch.optim.Adam(model.critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
    noise = torch.Generator().manual_seed(seed)

    def run() -> None:
        for (x, _), step in zip(task, range(150), strict=False):
            real, z = x.flatten(1), torch.randn(len(x), 6, generator=noise)
            judged.zero_grad()
            loss = F.softplus(-model.critic(real)).mean() + F.softplus(model.critic(model.maker(z).detach())).mean()
            loss.backward()
            judged.step()
            if step % 2:
                made.zero_grad()
                fooled = F.softplus(-model(z)).mean()
                fooled.backward()
                made.step()
            losses.append(loss.item())

    x = task.aside()[0].flatten(1)
    z = torch.randn(256, 6, generator=torch.Generator().manual_seed(seed + 1))

    def score() -> float:
        with torch.no_grad():
            out = model.maker(z)
            return (out.mean(0) - x.mean(0)).norm().item() + (out.std(0) - x.std(0)).norm().item()

    return Program(model=model, optimizer=[made, judged], run=run, losses=losses, score=score)


zoo.healthy("gestures-maker-and-critic", adversaries)


def tied(seed: int) -> Program:
    """Embedding and head are one; positions are fixed sines; norms have no weights."""

    class Tune(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.notes, self.gru = nn.Embedding(12, 24), nn.GRU(24, 24, batch_first=True)
            self.norm, self.head = nn.LayerNorm(24, elementwise_affine=False), nn.Linear(24, 12, bias=False)
            self.head.weight = self.notes.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.gru(self.notes(x))[0]))

    model = Tune()
    return fit(model, songs(seed), adam(model, 5e-3), 90, token_loss)


zoo.healthy("songs-tied-and-without-weights-in-norms", tied)


def partly(seed: int) -> Program:
    """Only biases and norms are tuned, in a net that was trained before."""
    model, task = Eye(norm=True), glyphs(seed)
    optimizer = adam(model, 5e-3)
    for (x, y), _ in zip(glyphs(seed + 30), range(100), strict=False):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    for name, p in model.named_parameters():
        p.requires_grad = "bias" in name or p.ndim == 1 or name.startswith("head")
    return fit(model, task, torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2), 80)


zoo.healthy("eye-only-biases-and-norms", partly)
