# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Loops that look odd and train well, and a few that are broken in ways which the files before this one lack.

Half: drill.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.evidence.loops import Played, broken, clipped_by, learns, overwritten, share_of, ungiven, unmoved
from validation.nets import mlp
from validation.programs import held_out
from validation.states import BROKEN, IDLE
from validation.tasks import Task, grains, homes, sensors, spectra

zoo = Zoo("loop", half="drill", proof=learns())
optim = torch.optim
Optimizer = torch.optim.Optimizer
Body = Callable[[nn.Module, Any, Any, int], Tensor]


def plain(model: nn.Module, optimizer: Optimizer | Iterable[Optimizer], loss: Tensor) -> None:
    held = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    for each in held:
        each.zero_grad()
    loss.backward()
    for each in held:
        each.step()


def trained(
    network: Callable[[], nn.Module],
    task_of: Callable[[int], Task],
    loss_of: Callable[[Any, Any], Tensor],
    optimizer: Callable[[nn.Module], Any],
    *,
    body: Body | None = None,
    step: Callable[[nn.Module, Any, Tensor], None] = plain,
    after: Callable[[nn.Module, Any, int], None] = lambda _m, _o, _s: None,
    score: Callable[[Any, Any], Tensor] | None = None,
    steps: int = 90,
) -> Callable[[int], Program]:
    """A loop; `body` makes its loss from a batch, `step` takes it to the weights, `after` comes last."""

    def build(seed: int) -> Program:
        task, model = task_of(seed), network()
        stepping, losses = optimizer(model), []

        def run() -> None:
            for at, (x, y) in zip(range(steps), task, strict=False):
                loss = body(model, x, y, at) if body else loss_of(model(x), y)
                step(model, stepping, loss)
                after(model, stepping, at)
                losses.append(loss.item())

        held = held_out(model, task, score or loss_of)
        return Program(model=model, optimizer=stepping, run=run, losses=losses, score=held)

    return build


def adam(rate: float = 3e-3, **more: Any) -> Callable[[nn.Module], Optimizer]:
    return lambda m: optim.Adam([p for p in m.parameters() if p.requires_grad], rate, **more)


def sgd(rate: float = 0.1, **more: Any) -> Callable[[nn.Module], Optimizer]:
    return lambda m: optim.SGD([p for p in m.parameters() if p.requires_grad], rate, **more)


def sorts(act: type[nn.Module] = nn.ReLU) -> nn.Module:
    return mlp([18, 64, 64, 7], act)


def gauges(act: type[nn.Module] = nn.SiLU) -> nn.Module:
    return mlp([14, 64, 64, 6], act)


# --- accumulation


def summed_over(parts: int, divided: bool, rate: float) -> Callable[[int], Program]:
    def step(_model: nn.Module, optimizer: Optimizer, loss: Tensor) -> None:
        step.count = getattr(step, "count", 0) + 1
        (loss / parts if divided else loss).backward()
        if step.count % parts == 0:
            optimizer.step()
            optimizer.zero_grad()

    def build(seed: int) -> Program:
        step.count = 0
        return trained(sorts, grains, F.cross_entropy, sgd(rate, momentum=0.9), step=step, steps=40 * parts)(seed)

    return build


in_parts = zoo.healthy("grains-six-parts-divided", summed_over(6, True, 0.1))
zoo.sick(
    "grains-six-parts-summed",
    summed_over(6, False, 0.6),
    broken(less=0.97),
    "undivided_accumulation",
    "rate_too_high",
    also=BROKEN,
    control=in_parts,
)


def last_part_short(seed: int) -> Program:
    """Parts of 16 and one of 4, each weighed by its share of the samples."""
    task, model, losses = grains(seed), sorts(), []
    optimizer = optim.AdamW(model.parameters(), 3e-3)

    def run() -> None:
        for (x, y), _ in zip(task, range(70), strict=False):
            x, y, whole = x[:52], y[:52], 0.0
            for some, target in zip(x.split(16), y.split(16), strict=True):
                loss = F.cross_entropy(model(some), target, reduction="sum") / len(x)
                loss.backward()
                whole += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(whole)

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


zoo.healthy("grains-parts-weighed-by-their-samples", last_part_short)


# --- what is frozen, and what is not trained


class RandomFeatures(nn.Module):
    """Cosines of a random projection that stays as drawn, and a readout."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.project = nn.Linear(18, width)
        nn.init.uniform_(self.project.bias, 0, 2 * math.pi)
        self.project.requires_grad_(False)
        self.read = nn.Linear(width, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(torch.cos(self.project(x)))


class Reservoir(nn.Module):
    """A recurrence that stays as drawn, and a readout of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.recur = nn.Linear(14, 80), nn.Linear(80, 80, bias=False)
        self.recur.weight.data *= 0.9 / torch.linalg.matrix_norm(self.recur.weight.data, 2)
        for part in (self.inner, self.recur):
            part.requires_grad_(False)
        self.read = nn.Sequential(nn.Linear(80, 48), nn.ReLU(), nn.Linear(48, 6))

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 80)
        for _ in range(3):
            state = torch.tanh(self.inner(x) + self.recur(state))
        return self.read(state)


everything = lambda rate: lambda m: optim.Adam(m.parameters(), rate)  # noqa: E731
zoo.healthy("random-features-handed-over-too", trained(RandomFeatures, grains, F.cross_entropy, everything(5e-3)))
zoo.healthy("reservoir-handed-over-too", trained(Reservoir, sensors, F.mse_loss, everything(3e-3)))


def middle_frozen() -> nn.Module:
    """Frozen by an index that is off by one: it was to be the pretrained layer, and is the one behind it."""
    model = mlp([18, 64, 64, 64, 7], nn.ReLU)
    model[2].requires_grad_(False)
    return model


zoo.sick(
    "grains-layer-that-was-just-drawn-is-frozen",
    trained(middle_frozen, grains, F.cross_entropy, everything(3e-3)),
    broken(lambda played: (not played.program.model[2].weight.requires_grad, "layer 2 takes no gradient")),
    "frozen",
    also=BROKEN,
    layer="2",
    control=zoo.healthy(
        "grains-all-five-trained", trained(lambda: mlp([18, 64, 64, 64, 7], nn.ReLU), grains, F.cross_entropy, adam())
    ),
)


class Adapted(nn.Module):
    """Low-rank parts beside a frozen net that knows a similar task."""

    def __init__(self, rank: int = 4, both_zero: bool = False) -> None:
        super().__init__()
        self.base = mlp([14, 64, 64, 6], nn.GELU)
        first = optim.Adam(self.base.parameters(), 5e-3)
        for (x, y), _ in zip(sensors(77), range(60), strict=False):
            first.zero_grad()
            F.mse_loss(self.base(x), y).backward()
            first.step()
        self.base.requires_grad_(False)
        sizes = [(m.in_features, m.out_features) for m in self.base if isinstance(m, nn.Linear)]
        start = torch.zeros if both_zero else lambda *s: torch.randn(*s) / s[1] ** 0.5
        self.down = nn.ParameterList(start(rank, i) for i, _ in sizes)
        self.up = nn.ParameterList(torch.zeros(o, rank) for _, o in sizes)

    def forward(self, x: Tensor) -> Tensor:
        at = 0
        for module in self.base:
            if isinstance(module, nn.Linear):
                x = module(x) + F.linear(F.linear(x, self.down[at]), self.up[at])
                at += 1
            else:
                x = module(x)
        return x


adapted = zoo.healthy("sensors-low-rank-beside-a-frozen-net", trained(Adapted, sensors, F.mse_loss, adam(5e-3)))
zoo.sick(
    "sensors-low-rank-both-begin-at-zero",
    trained(lambda: Adapted(both_zero=True), sensors, F.mse_loss, adam(5e-3)),
    broken(unmoved("down", "up"), less=0.05),
    "lora_frozen",
    "never_moves",
    also={*IDLE, "DISCONNECTED"},
    control=adapted,
)


def gradual(m: nn.Module, _o: Optimizer, at: int) -> None:
    """Layers are let go one after the other, from the last."""
    if at in (20, 45):
        m[{20: 2, 45: 0}[at]].requires_grad_(True)


def head_first() -> nn.Module:
    model = sorts()
    warm = optim.Adam(model.parameters(), 3e-3)
    for (x, y), _ in zip(grains(501), range(40), strict=False):
        plain(model, warm, F.cross_entropy(model(x), y))
    for part in (model[0], model[2]):
        part.requires_grad_(False)
    nn.init.xavier_normal_(model[4].weight)
    return model


zoo.healthy(
    "grains-let-go-layer-by-layer", trained(head_first, grains, F.cross_entropy, everything(3e-3), after=gradual)
)


class Gated(nn.Module):
    """A branch behind a gate that begins at nothing."""

    def __init__(self, gate: float = 0.0, learnt: bool = True) -> None:
        super().__init__()
        self.main, self.branch = mlp([14, 48, 6], nn.GELU), mlp([14, 48, 6], nn.GELU)
        self.gate = nn.Parameter(torch.tensor(gate), requires_grad=learnt)

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x) + self.gate * self.branch(x)


gated = zoo.healthy("sensors-branch-behind-a-gate-of-0", trained(Gated, sensors, F.mse_loss, adam(5e-3)))
zoo.sick(
    "sensors-branch-behind-a-gate-of-0-for-ever",
    trained(lambda: Gated(learnt=False), sensors, F.mse_loss, adam(5e-3)),
    broken(ungiven("branch")),
    "never_moves",
    also={*IDLE, "DISCONNECTED", "detached", "only_decay"},
    layer=("branch.0", "branch.2"),
    control=gated,
)


# --- two optimizers, several losses


def both(rate: float) -> Callable[[nn.Module], list[Optimizer]]:
    return lambda m: [
        optim.SGD([p for p in m.parameters() if p.ndim < 2], rate * 10, momentum=0.9),
        optim.AdamW([p for p in m.parameters() if p.ndim >= 2], rate),
    ]


class Twofold(nn.Module):
    """A class, and the input again."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.sort, self.copy = mlp([18, 64], nn.Identity), nn.Linear(64, 7), nn.Linear(64, 18)

    def forward(self, x: Tensor) -> Tensor:
        return self.sort(F.gelu(self.body(x)))


def uncertain() -> nn.Module:
    model = Twofold()
    model.weights = nn.Parameter(torch.zeros(2))
    return model


def weighed(model: Any, x: Tensor, y: Tensor, _at: int) -> Tensor:
    code = F.gelu(model.body(x))
    both = torch.stack([F.cross_entropy(model.sort(code), y), F.mse_loss(model.copy(code), x)])
    return (both * (-model.weights).exp() + model.weights).sum()


zoo.healthy("grains-losses-weigh-themselves", trained(uncertain, grains, F.cross_entropy, adam(), body=weighed))


class Player(nn.Module):
    """Two nets in turn: one tells apart, the other draws."""

    def __init__(self) -> None:
        super().__init__()
        self.draws, self.tells = mlp([4, 48, 40], nn.LeakyReLU), mlp([40, 48, 1], nn.LeakyReLU)


def rivals(seed: int) -> Program:
    task, model, losses = spectra(seed), Player(), []
    first, second = optim.Adam(model.draws.parameters(), 2e-3), optim.Adam(model.tells.parameters(), 2e-3)
    random, real = torch.Generator().manual_seed(seed), spectra(seed).aside()[0]

    def run() -> None:
        for (x, _), _ in zip(task, range(80), strict=False):
            made = model.draws(torch.randn(len(x), 4, generator=random))
            told = F.softplus(-model.tells(x)).mean() + F.softplus(model.tells(made.detach())).mean()
            second.zero_grad()
            told.backward()
            second.step()
            fooled = F.softplus(-model.tells(made)).mean() + (made.mean(0) - x.mean(0)).square().mean()
            first.zero_grad()
            fooled.backward()
            first.step()
            losses.append(told.item())

    def score() -> float:
        with torch.no_grad():
            made = model.draws(torch.randn(256, 4, generator=torch.Generator().manual_seed(5)))
            return ((made.std(0) - real.std(0)).square().mean() + (made.mean(0) - real.mean(0)).square().mean()).item()

    return Program(model=model, optimizer=[first, second], run=run, losses=losses, score=score)


zoo.healthy("spectra-one-draws-one-tells-apart", rivals)


# --- schedules, restarts, averages


def copied_back(seed: int) -> Program:
    """The average goes back into the net after each step, so that hardly a step remains."""
    task, model, losses = grains(seed), sorts(nn.Tanh), []
    kept = copy.deepcopy(model).requires_grad_(False)
    optimizer = optim.SGD(model.parameters(), 0.2, momentum=0.9)

    def run() -> None:
        for (x, y), _ in zip(task, range(90), strict=False):
            loss = F.cross_entropy(model(x), y)
            plain(model, optimizer, loss)
            with torch.no_grad():
                for mine, slow in zip(model.parameters(), kept.parameters(), strict=True):
                    slow.lerp_(mine, 0.001)
                    mine.copy_(slow)
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


zoo.sick(
    "grains-average-goes-back-each-step",
    copied_back,
    broken(overwritten, less=0.5),
    "weights_overwritten",
    also=BROKEN,
    control=zoo.healthy(
        "grains-tanh-momentum", trained(lambda: sorts(nn.Tanh), grains, F.cross_entropy, sgd(0.2, momentum=0.9))
    ),
)


def lookahead(seed: int) -> Program:
    """Every fifth step goes halfway back to the slow weights."""
    task, model, losses = sensors(seed), gauges(), []
    slow = [p.detach().clone() for p in model.parameters()]
    optimizer = optim.Adam(model.parameters(), 5e-3)

    def run() -> None:
        for at, (x, y) in zip(range(100), task, strict=False):
            loss = F.mse_loss(model(x), y)
            plain(model, optimizer, loss)
            if at % 5 == 4:
                with torch.no_grad():
                    for mine, kept in zip(model.parameters(), slow, strict=True):
                        kept.lerp_(mine, 0.5)
                        mine.copy_(kept)
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


zoo.healthy("sensors-halfway-back-every-fifth-step", lookahead)


# --- clipping


def clipped(limit: float) -> Callable[[nn.Module, Any, Tensor], None]:
    def step(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()

    return step


villa = lambda: mlp([9, 64, 1], nn.ReLU)  # noqa: E731
calm_clip = zoo.healthy(
    "grains-limit-of-1-momentum", trained(sorts, grains, F.cross_entropy, sgd(0.1, momentum=0.9), step=clipped(1.0))
)
zoo.sick(
    "grains-limit-of-2e-3-momentum",
    trained(sorts, grains, F.cross_entropy, sgd(0.1, momentum=0.9), step=clipped(2e-3)),
    broken(clipped_by(5.0), less=0.5),
    "clip_sets_step",
    "rate_too_low",
    also=IDLE,
    control=calm_clip,
)


# --- data: labels, tails, curricula, tiny batches


def heavy(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    shake = torch.distributions.StudentT(1.5).sample(y.shape)
    return x, y + 0.2 * shake


zoo.healthy(
    "sensors-heavy-tails-huber",
    trained(gauges, lambda s: sensors(s).changed(heavy), F.huber_loss, adam(3e-3), steps=120),
)


def harder(model: nn.Module, x: Tensor, y: Tensor, at: int) -> Tensor:
    """More kinds come in as it goes on: the loss rises each time."""
    known = y < min(7, 2 + at // 20)
    return F.cross_entropy(model(x[known]), y[known])


zoo.healthy(
    "grains-more-kinds-as-it-goes-on", trained(sorts, grains, F.cross_entropy, adam(3e-3), body=harder, steps=140)
)


# --- losses


def ranked(model: nn.Module, x: Tensor, y: Tensor, _at: int) -> Tensor:
    score, worth = model(x).squeeze(-1), y.squeeze(-1)
    return F.softplus(-(score[:32] - score[32:]) * (worth[:32] - worth[32:]).sign()).mean()


def misordered(score: Tensor, worth: Tensor) -> Tensor:
    score, worth = score.squeeze(-1), worth.squeeze(-1)
    apart = (score[:, None] - score[None]) * (worth[:, None] - worth[None])
    return (apart < 0).float().mean()


zoo.healthy(
    "homes-ranked-in-pairs",
    trained(villa, homes, F.mse_loss, adam(3e-3), body=ranked, score=misordered),
    learns(idle=("2",)),
)


normal = lambda out, y: -torch.distributions.Normal(out[:, :6], 0.02 + F.softplus(out[:, 6:])).log_prob(y).mean()  # noqa: E731
zoo.healthy(
    "sensors-density-goes-below-nothing",
    trained(lambda: mlp([14, 64, 12], nn.SiLU), sensors, normal, adam(4e-3), steps=140),
)


class Coder(nn.Module):
    """A variational code of five."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.back = mlp([40, 64, 10], nn.GELU), mlp([5, 64, 40], nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        return self.back(self.code(x)[:, :5])


def annealed(model: Any, x: Tensor, _y: Tensor, at: int) -> Tensor:
    mean, log = model.code(x).chunk(2, dim=1)
    back = model.back(mean + (0.5 * log).exp() * torch.randn_like(mean))
    apart = -0.5 * (1 + log - mean.square() - log.exp()).sum(1).mean()
    return F.mse_loss(back, x, reduction="none").sum(1).mean() + min(1.0, at / 60) * apart


zoo.healthy(
    "spectra-variational-with-a-weight-that-grows",
    trained(Coder, lambda s: spectra(s).changed(lambda x, _: (x, x)), F.mse_loss, adam(4e-3), body=annealed, steps=120),
)


def moved_by_own_mean(model: nn.Module, x: Tensor, y: Tensor, _at: int) -> Tensor:
    """The value is that of the loss less itself: nothing to see, and its gradient is that of the loss."""
    loss = F.cross_entropy(model(x), y)
    return loss - loss.detach()


zoo.healthy("grains-loss-less-its-own-value", trained(sorts, grains, F.cross_entropy, adam(), body=moved_by_own_mean))


# --- broken


def forgets(model: nn.Module, optimizers: list[Optimizer], loss: Tensor) -> None:
    """Two optimizers, and the gradients of one of them are never cleared."""
    optimizers[0].zero_grad()
    loss.backward()
    for each in optimizers:
        each.step()


def half_stale(played: Played) -> tuple[bool, str]:
    """The steps of the second optimizer, which are every other one, take old gradients along."""
    share = share_of(played.steps, lambda step: min(step.cosine.values()) < 0.99)
    return share > 0.4, f"old gradients in {share:.0%} of the steps"


halves = lambda m: [  # noqa: E731
    optim.SGD(m[0].parameters(), 0.05, momentum=0.9),
    optim.SGD([*m[2].parameters(), *m[4].parameters()], 0.05, momentum=0.9),
]
in_halves = zoo.healthy("grains-two-optimizers-for-two-halves", trained(sorts, grains, F.cross_entropy, halves))
zoo.sick(
    "grains-second-optimizer-is-never-cleared",
    trained(sorts, grains, F.cross_entropy, halves, step=forgets),
    broken(half_stale),
    "missing_zero_grad",
    "partial_zero_grad",
    also=BROKEN,
    control=in_halves,
)


class Aside(nn.Module):
    """A head that the loss never sees, with decay."""

    def __init__(self, used: bool) -> None:
        super().__init__()
        self.body, self.main, self.other = mlp([14, 64], nn.Identity), nn.Linear(64, 6), nn.Linear(64, 6)
        self.used = used

    def forward(self, x: Tensor) -> Tensor:
        code = F.gelu(self.body(x))
        return self.main(code) + (self.other(code) if self.used else 0 * self.other(code))


decayed = lambda m: optim.AdamW(m.parameters(), 4e-3, weight_decay=0.1)  # noqa: E731
zoo.sick(
    "sensors-head-times-0-decays",
    trained(lambda: Aside(False), sensors, F.mse_loss, decayed),
    broken(ungiven("other")),
    "only_decay",
    "never_moves",
    also={*IDLE, "DISCONNECTED", "detached"},
    layer="other",
    control=zoo.healthy("sensors-two-heads-added", trained(lambda: Aside(True), sensors, F.mse_loss, decayed)),
)


def no_gradient_here(model: nn.Module, x: Tensor, y: Tensor, _at: int) -> Tensor:
    """Features are taken as for validation."""
    with torch.no_grad():
        code = model[:3](x)
    return F.cross_entropy(model[3:](code), y)


zoo.sick(
    "grains-features-taken-without-gradients",
    trained(sorts, grains, F.cross_entropy, adam(), body=no_gradient_here),
    broken(unmoved("0", "2")),
    "detached",
    "never_moves",
    also={*IDLE, "DISCONNECTED"},
    layer=("0", "2"),
    control=zoo.healthy("grains-plain-adam", trained(sorts, grains, F.cross_entropy, adam())),
)


def total(model: nn.Module, x: Tensor, y: Tensor, _at: int) -> Tensor:
    return (model(x) - y).square().sum()


mean_of = zoo.healthy("sensors-mean-momentum", trained(gauges, sensors, F.mse_loss, sgd(0.1, momentum=0.9)))
zoo.sick(
    "sensors-sum-at-the-rate-of-a-mean",
    trained(gauges, sensors, F.mse_loss, sgd(0.01, momentum=0.9), body=total),
    broken(less=0.9),
    "summed_loss",
    "rate_too_high",
    "loss_nonfinite",
    "loss_grows",
    also=BROKEN,
    control=mean_of,
)


def across(model: nn.Module, x: Tensor, y: Tensor, _at: int) -> Tensor:
    """(B, 1) less (B,) is (B, B)."""
    return (model(x) - y.squeeze(-1)).abs().mean()


zoo.sick(
    "homes-absolute-error-of-all-with-all",
    trained(villa, homes, F.l1_loss, adam(), body=across),
    broken(less=0.6),
    "broadcast",
    also=IDLE,
    control=zoo.healthy("homes-absolute-error", trained(villa, homes, F.l1_loss, adam()), learns(0.05)),
)
