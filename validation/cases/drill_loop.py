# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Programs of laboratories and workshops whose loop, loss or data is at fault, and their repaired twins.

Half: drill.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation import labels
from validation.case import Program, Zoo
from validation.evidence import loops as facts
from validation.evidence.loops import Played, broken, learns
from validation.nets import Autoencoder, mlp
from validation.programs import adam, fit, held_out, sgd, train_step
from validation.tasks import gestures, grains, molecules, pairings, plates, sensors, spectra, tides, weaves

zoo = Zoo("loop", half="drill", proof=learns())
OFF = {
    "rate_too_low",
    "SLOW",
    "UNSTABLE",
    "LOW_RANK",
    "input_scales",
    "rate_too_high",
    "BOTTLENECK",
    *labels.LEARNS_NOTHING,
}
"""What is also true of a model that starts far from its targets."""


# --- shapes that do not fit


class Likes(nn.Module):
    """Users and items as vectors, and a tower that ends in one number, with a dimension of its own or without."""

    def __init__(self, flat: bool) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(30, 10), nn.Embedding(24, 10)
        self.tower, self.flat = mlp([20, 48, 1], nn.SiLU), flat

    def forward(self, ids: Tensor) -> Tensor:
        y = self.tower(torch.cat([self.user(ids[:, 0]), self.item(ids[:, 1])], dim=1))
        return y.squeeze(1) if self.flat else y


def liked(seed: int, flat: bool) -> Program:
    """The error is written by hand, so torch has nothing to warn of."""
    model = Likes(flat)
    return fit(
        model,
        pairings(seed),
        adam(model, 1.5e-2),
        100,
        lambda y, t: (y - t).pow(2).mean(),
        lambda y, t: F.mse_loss(y.flatten(), t),
    )


flat = zoo.healthy("likes-flat-answers", lambda s: liked(s, True))
zoo.sick(
    "likes-a-column-against-a-row",
    lambda s: liked(s, False),
    broken(less=0.4),
    "broadcast",
    also=labels.LEARNS_NOTHING,
    control=flat,
)


class Gauges(nn.Module):
    """The next value of three gauges; `keep` leaves the time in, as a dimension of one."""

    def __init__(self, keep: bool) -> None:
        super().__init__()
        self.gru, self.out, self.keep = nn.GRU(3, 24, batch_first=True), nn.Linear(24, 3), keep

    def forward(self, x: Tensor) -> Tensor:
        y = self.out(self.gru(x)[0])
        return y[:, -1:] if self.keep else y[:, -1]


def last(seed: int, keep: bool) -> Program:
    task = tides(seed, 12).changed(lambda x, t: (x, t[:, -1]))
    model = Gauges(keep)
    return fit(
        model,
        task,
        adam(model, 1e-2),
        80,
        lambda y, t: torch.sqrt((y - t).square() + 1e-4).mean(),
        lambda y, t: F.mse_loss(y.reshape(t.shape), t),
    )


lasts = zoo.healthy("tides-last-step-without-time", lambda s: last(s, False))
zoo.sick(
    "tides-last-step-with-a-dimension-of-time",
    lambda s: last(s, True),
    broken(less=0.4),
    "broadcast",
    also=labels.LEARNS_NOTHING,
    control=lasts,
)


def bright(seed: int, keepdim: bool) -> Program:
    """How bright the first colour of a plate is; the mean keeps its dimensions, the target has none."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.GELU(), nn.Conv2d(16, 1, 1), Mean(keepdim))
    task = plates(seed, batch=32).changed(lambda x, _: (x, 2 * x[:, 0].mean(dim=(1, 2)) - x[:, 1, 4, 4]))
    return fit(
        model,
        task,
        adam(model, 1e-2),
        90,
        lambda y, t: F.huber_loss(*torch.broadcast_tensors(y, t)),
        lambda y, t: F.mse_loss(y.flatten(), t),
    )


class Mean(nn.Module):
    """The mean of a picture."""

    def __init__(self, keepdim: bool) -> None:
        super().__init__()
        self.keepdim = keepdim

    def forward(self, x: Tensor) -> Tensor:
        x = x.mean(dim=(2, 3), keepdim=self.keepdim)
        return x.squeeze(1) if x.shape[1] == 1 and not self.keepdim else x


means = zoo.healthy("plates-mean-without-dimensions", lambda s: bright(s, False))
zoo.sick(
    "plates-mean-with-its-dimensions",
    lambda s: bright(s, True),
    broken(less=0.4),
    "broadcast",
    also={*labels.LEARNS_NOTHING, "BOTTLENECK", "LOW_RANK"},
    control=means,
)

# --- far off at the start, and for long


def never_back(first: float, end: float):
    """The first loss is far above what knows nothing, and training does not bring the score below that."""

    def fact(played: Played) -> tuple[bool, str]:
        start = played.program.losses[0]
        return start > first and not played.end < end, f"first loss {start:.3g}, score at the end {played.end:.3g}"

    return fact


def tempered(seed: int, heat: float) -> Program:
    """Logits are divided by a temperature that was meant for cosines."""
    model = nn.Sequential(mlp([18, 48, 7], nn.SiLU), Heat(heat))
    return fit(model, grains(seed), adam(model, 1e-3), 60)


class Heat(nn.Module):
    """A temperature."""

    def __init__(self, heat: float) -> None:
        super().__init__()
        self.heat = heat

    def forward(self, x: Tensor) -> Tensor:
        return x / self.heat


heat = zoo.healthy("grains-temperature-of-1", lambda s: tempered(s, 1.0))
zoo.sick(
    "grains-temperature-of-a-thousandth",
    lambda s: tempered(s, 0.001),
    broken(never_back(4 * math.log(7), math.log(7))),
    "first_loss_high",
    "EXPLODING",
    "SATURATION",
    also=OFF,
    control=heat,
)


def pressed(seed: int, unit: float, level: float) -> Program:
    """Pressures in a unit of one's choice, above a level."""
    model = mlp([14, 48, 48, 6], nn.GELU)
    task = sensors(seed).changed(lambda x, t: (x, level + unit * t))
    return fit(model, task, adam(model, 3e-3), 80, F.mse_loss)


bar = zoo.healthy("sensors-pressure-in-bar", lambda s: pressed(s, 1.0, 1.0))
zoo.sick(
    "sensors-pressure-in-pascal",
    lambda s: pressed(s, 1e4, 1e5),
    # A model that always says the level has (unit · 1)² left, roughly.
    broken(never_back(1e9, 1e9)),
    "first_loss_high",
    "rate_too_low",
    "EXPLODING",
    also=OFF,
    control=bar,
)

# --- limits and rates


def limited(seed: int, limit: float, kind: str) -> Program:
    """Gradients are held in check before each step, by their norm or each by itself."""
    convs = [nn.Conv2d(3, 20, 3), nn.SiLU(), nn.Conv2d(20, 24, 3), nn.SiLU()]
    model = nn.Sequential(*convs, Mean(False), nn.Linear(24, 6))
    optimizer = sgd(model, 0.2, momentum=0.9)
    clip = {"norm": nn.utils.clip_grad_norm_, "value": nn.utils.clip_grad_value_}[kind]
    return fit(model, weaves(seed), optimizer, 70, before=lambda _: clip(model.parameters(), limit) and None)


by_norm = zoo.healthy("weaves-norm-limited-to-5", lambda s: limited(s, 5.0, "norm"))
zoo.sick(
    "weaves-norm-limited-to-1e-4",
    lambda s: limited(s, 1e-4, "norm"),
    broken(facts.clipped_by(100), less=0.1),
    *labels.TIGHT,
    also={*labels.IDLE, "rate_too_low"},
    control=by_norm,
)
by_value = zoo.healthy("weaves-values-limited-to-1", lambda s: limited(s, 1.0, "value"))
zoo.sick(
    "weaves-values-limited-to-1e-6",
    lambda s: limited(s, 1e-6, "value"),
    broken(facts.clipped_by(50), less=0.1),
    *labels.TIGHT,
    also={*labels.IDLE, "rate_too_low"},
    control=by_value,
)


def scheduled(seed: int, length: int) -> Program:
    """A schedule in epochs that is stepped after each batch."""
    model = mlp([40, 48, 12, 48, 40], nn.GELU)
    optimizer = adam(model, 3e-3)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: max(0.0, 1 - i / length) ** 2)
    return fit(model, spectra(seed), optimizer, 100, F.mse_loss, after=lambda _: falling.step())


falls = zoo.healthy("spectra-schedule-in-steps", lambda s: scheduled(s, 100))
zoo.sick(
    "spectra-schedule-in-epochs",
    lambda s: scheduled(s, 5),
    broken(facts.rate_below(1e-12), less=0.5),
    *labels.ENDED,
    "zero_rate",
    also=labels.IDLE,
    control=falls,
)


def totalled(seed: int, reduction: str) -> Program:
    model = mlp([14, 64, 6], nn.SiLU)
    loss = nn.MSELoss(reduction=reduction)
    return fit(model, sensors(seed, batch=128), sgd(model, 0.1, momentum=0.9), 60, loss, F.mse_loss)


averaged = zoo.healthy("sensors-mean-of-errors", lambda s: totalled(s, "mean"))
zoo.sick(
    "sensors-sum-of-errors",
    lambda s: totalled(s, "sum"),
    broken(facts.steps_above(1), less=0.3),
    *labels.SUMMED,
    also={*labels.WRECKED, "first_loss_high", "BOTTLENECK", "NUMERICAL"},
    control=averaged,
)

# --- what is trained


class Stack(nn.Module):
    """Twelve narrow layers with skips, "layers.0" … "layers.11"."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(18, 24), nn.Linear(24, 7)
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = x + 0.3 * F.silu(layer(x))
        return self.leave(x)


class Coder(nn.Module):
    """A body that several heads share."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(48, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.silu(self.body(x)))


def frozen_teacher(seed: int, copied: bool) -> Program:
    """A teacher is frozen; the student was built around its body, as a copy or as the same object."""
    teacher = Coder(mlp([18, 48, 48, 48], nn.Tanh))
    student = Coder(copy.deepcopy(teacher.body) if copied else teacher.body)
    teacher.requires_grad_(False)
    trainable = [p for p in student.parameters() if p.requires_grad]
    return fit(student, grains(seed), torch.optim.Adam(trainable, lr=2e-3), 60)


copied = zoo.healthy("student-around-a-copy", lambda s: frozen_teacher(s, True))
zoo.sick(
    "student-around-the-teachers-own-body",
    lambda s: frozen_teacher(s, False),
    broken(facts.resting("body"), less=0.9),
    *labels.FREEZE,
    layer=("body.0", "body.2", "body.4"),
    also=labels.IDLE,
    control=copied,
)


def patterned(seed: int, pattern: str) -> Program:
    """One layer is to be frozen by a part of its name, which fits others too."""
    model = Stack()
    for name, parameter in model.named_parameters():
        if pattern in name:
            parameter.requires_grad = False
    trainable = [p for p in model.parameters() if p.requires_grad]
    return fit(model, grains(seed), torch.optim.Adam(trainable, lr=3e-3), 60)


exact = zoo.healthy("stack-none-frozen", lambda s: patterned(s, "layers.12."))
zoo.sick(
    "stack-frozen-by-a-pattern-that-fits-too-much",
    lambda s: patterned(s, "er"),
    broken(facts.resting("layers.", "enter"), less=0.7),
    *labels.FREEZE,
    also=labels.IDLE,
    control=exact,
)


def grown(seed: int, late: bool) -> Program:
    """A net that grows: two more blocks are put in, before or after the optimizer is made."""
    model = nn.Sequential(nn.Linear(14, 40), nn.SiLU(), nn.Sequential(), nn.Linear(40, 6))

    def grow() -> None:
        model[2].extend([nn.Linear(40, 40), nn.SiLU(), nn.Linear(40, 40), nn.SiLU()])

    if not late:
        grow()
    optimizer = adam(model, 5e-3)
    if late:
        grow()
    return fit(model, sensors(seed), optimizer, 60, F.mse_loss)


early = zoo.healthy("blocks-put-in-before-the-optimizer", lambda s: grown(s, False))
zoo.sick(
    "blocks-put-in-after-the-optimizer",
    lambda s: grown(s, True),
    broken(facts.held_by_none("2")),
    *labels.UNHELD,
    layer=("2.0", "2.2"),
    also=labels.IDLE,
    control=early,
)


def given(seed: int, both: bool) -> Program:
    """A generator of parameters is counted first, for the log, and is empty when the optimizer reads it."""
    model = Autoencoder(40, 48, 10, nn.GELU)
    of_encoder = model.encoder.parameters()
    parameters = list(of_encoder)
    if not both:
        print_count = sum(p.numel() for p in parameters)
        parameters = list(of_encoder) if print_count else parameters
    optimizer = torch.optim.Adam([*parameters, *model.decoder.parameters()], lr=5e-3)
    return fit(model, spectra(seed), optimizer, 80, F.mse_loss)


whole = zoo.healthy("coder-both-parts-given", lambda s: given(s, True))
zoo.sick(
    "coder-encoder-counted-then-forgotten",
    lambda s: given(s, False),
    broken(facts.held_by_none("encoder")),
    *labels.UNHELD,
    layer=("encoder.0", "encoder.2"),
    also=labels.IDLE,
    control=whole,
)


class Pens(nn.Module):
    """Convolutions over a path, then a recurrence, which may be handed plain data."""

    def __init__(self, data: bool) -> None:
        super().__init__()
        self.conv, self.gru = nn.Conv1d(2, 16, 5, padding=2), nn.GRU(16, 24, batch_first=True)
        self.out, self.data = nn.Linear(24, 6), data

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.out(self.gru(h.data if self.data else h)[0].mean(dim=1))


def penned(seed: int, data: bool) -> Program:
    model = Pens(data)
    return fit(model, gestures(seed), adam(model, 5e-3), 60)


paths = zoo.healthy("gestures-features-in-the-graph", lambda s: penned(s, False))
zoo.sick(
    "gestures-features-as-data",
    lambda s: penned(s, True),
    broken(facts.ungiven("conv")),
    *labels.CUT,
    layer="conv",
    also=labels.IDLE,
    control=paths,
)

# --- the order of the loop, the mode, the batch


def averaged_loss(seed: int, number: bool) -> Program:
    """Losses are averaged over the last five for a smooth curve; the average is made a tensor again."""
    model, task, losses = mlp([18, 40, 7], nn.GELU), grains(seed), []
    optimizer = adam(model, 5e-3)

    def run() -> None:
        for (x, y), _ in zip(task, range(60), strict=False):
            loss = F.cross_entropy(model(x), y)
            losses.append(loss.item())
            if number:
                loss = torch.tensor(losses[-5:], requires_grad=True).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


graph = zoo.healthy("grains-loss-of-the-batch", lambda s: averaged_loss(s, False))
zoo.sick(
    "grains-loss-from-a-list-of-numbers",
    lambda s: averaged_loss(s, True),
    broken(facts.nothing_comes(), less=0.01),
    *labels.UNBOUND,
    also=labels.IDLE,
    control=graph,
)


def checked(seed: int, back: bool) -> Program:
    """Before the first epoch the model is tried once in evaluation mode, to find errors early."""
    model = nn.Sequential(
        nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20), nn.SiLU(), nn.Dropout2d(0.1), Mean(False), nn.Linear(20, 6)
    )

    def try_once(step: int) -> None:
        if step == 0:
            model.eval()
        if step == 1 and back:
            model.train()

    return fit(model, weaves(seed), adam(model, 1e-2), 60, before=try_once)


back = zoo.healthy("weaves-tried-once-then-trained", lambda s: checked(s, True))
zoo.sick(
    "weaves-tried-once-and-left-so",
    lambda s: checked(s, False),
    broken(facts.evaluating),
    "evaluation_mode",
    control=back,
)


def refreshed(seed: int, once: bool) -> Program:
    """A new iterator for each step gives the first batch each time."""
    model, task, losses = mlp([18, 64, 7], nn.GELU), grains(seed, batch=16), []
    optimizer, data = adam(model, 5e-3), []
    for (x, y), _ in zip(task, range(30), strict=False):
        data.append((x, y))

    def run() -> None:
        batches = iter(data * 4)
        for _ in range(100):
            x, y = next(iter(data)) if once else next(batches)
            losses.append(train_step(model, optimizer, x, y))

    score = held_out(model, grains(seed, batch=256))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


through = zoo.healthy("grains-one-iterator", lambda s: refreshed(s, False))
zoo.sick(
    "grains-a-new-iterator-for-each-step",
    lambda s: refreshed(s, True),
    broken(facts.repeats, less=0.9),
    "same_batch",
    also={"VANISHING", "SLOW"},
    control=through,
)


def swapped(seed: int, restore: bool) -> Program:
    """The running mean of the weights is put in for a look at the loss; then the weights come back, or do not."""
    model, task, losses = mlp([14, 48, 6], nn.Tanh), sensors(seed), []
    optimizer = adam(model, 5e-3)
    mean = copy.deepcopy(model.state_dict())

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            losses.append(train_step(model, optimizer, x, y, F.mse_loss))
            now = copy.deepcopy(model.state_dict())
            for name, value in mean.items():
                value.lerp_(now[name], 0.02)
            if restore:
                continue
            model.load_state_dict(mean)

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


own = zoo.healthy("mean-of-weights-kept-apart", lambda s: swapped(s, True))
zoo.sick(
    "mean-of-weights-put-in-after-each-step",
    lambda s: swapped(s, False),
    broken(facts.overwritten, less=0.5),
    "weights_overwritten",
    also={"SLOW", "loss_stuck", "rate_too_low"},
    control=own,
)


def heaped(seed: int, cleared: bool) -> Program:
    """Only gradients of the last layer are cleared by hand, from an example with one layer."""
    model, task, losses = mlp([14, 40, 40, 6], nn.SiLU), sensors(seed), []
    optimizer = sgd(model, 0.4)

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            for layer in model if cleared else model[-1:]:
                for parameter in layer.parameters():
                    parameter.grad = None
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


cleared = zoo.healthy("sensors-all-layers-cleared-by-hand", lambda s: heaped(s, True))
zoo.sick(
    "sensors-last-layer-cleared-by-hand",
    lambda s: heaped(s, False),
    broken(facts.stale("0", "2")),
    "partial_zero_grad",
    "missing_zero_grad",
    layer=("0", "2"),
    also=labels.HEAPED,
    control=cleared,
)

# --- the loss and the data


def chances(seed: int, probabilities: bool) -> Program:
    """A softmax at the end of the model, for its users."""
    model = mlp([18, 48, 7], nn.SiLU)
    if probabilities:
        model.append(nn.Softmax(dim=1))
    return fit(model, grains(seed), adam(model, 5e-3), 80)


raw = zoo.healthy("grains-logits", lambda s: chances(s, False))
zoo.sick(
    "grains-probabilities",
    lambda s: chances(s, True),
    # ln(1 + 6/e) is the least that a softmax of probabilities can reach with seven classes.
    broken(facts.floor_above(1.16)),
    "double_softmax",
    also={"SATURATION", "VANISHING", *labels.LEARNS_NOTHING},
    control=raw,
)


def halved(seed: int, whole: bool) -> Program:
    """A share is made of whole numbers: what is below one becomes zero, for every row."""

    def share(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        count = (50 + 15 * t[:, :1]).clamp(1, 99).long()
        return x, (count // 100 if whole else count / 100).float()

    def percent(y: Tensor, t: Tensor) -> Tensor:
        return 20 * F.mse_loss(y, t)

    model = mlp([14, 40, 1], nn.SiLU).append(nn.Sigmoid())
    unseen = sensors(seed, batch=256).changed(lambda x, t: (x, (50 + 15 * t[:, :1]).clamp(1, 99) / 100))
    return fit(model, sensors(seed).changed(share), adam(model, 1e-2), 90, percent, unseen=unseen)


shares = zoo.healthy("shares-of-a-hundred", lambda s: halved(s, False))
zoo.sick(
    "shares-of-a-hundred-by-whole-division",
    lambda s: halved(s, True),
    broken(facts.vanishes, less=0.1),
    "constant_targets",
    also={"VANISHING", "LOW_RANK", "SATURATION", "BOTTLENECK", "DEAD"},
    control=shares,
)


def columns(seed: int, scale: float) -> Program:
    """One column is in nanometres, the others in metres."""
    factors = torch.ones(14)
    factors[3] = scale
    model = mlp([14, 48, 48, 6], nn.GELU)
    return fit(model, sensors(seed).mapped(lambda x: x * factors), adam(model, 2e-3), 80, F.mse_loss)


metres = zoo.healthy("sensors-all-in-metres", lambda s: columns(s, 1.0))
zoo.sick(
    "sensors-one-column-in-nanometres",
    lambda s: columns(s, 1e6),
    broken(lambda p: (not p.end < 0.5, f"ends at {p.end:.3g}")),
    "input_scales",
    also={"first_loss_high", "EXPLODING", "UNSTABLE", "NUMERICAL", "rate_too_high", *labels.WRECKED, "BOTTLENECK"},
    control=metres,
)

# --- look alike and are right


def logged(seed: int) -> Program:
    """Log-probabilities into cross-entropy: the second softmax changes nothing."""
    model = mlp([18, 48, 7], nn.SiLU).append(nn.LogSoftmax(dim=1))
    return fit(model, grains(seed), adam(model, 5e-3), 80)


zoo.healthy("grains-log-probabilities", logged)


def tight(seed: int) -> Program:
    """A tight limit in front of an optimizer that does not mind the size of gradients."""
    model = mlp([14, 48, 6], nn.SiLU)

    def limit(_: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    return fit(model, sensors(seed), adam(model, 5e-3), 80, F.mse_loss, before=limit)


zoo.healthy("sensors-tight-limit-before-adam", tight)


def overcome(seed: int) -> Program:
    """Targets around forty: the first loss is high, and gone after some steps."""
    model = mlp([14, 48, 6], nn.SiLU)
    task = sensors(seed).changed(lambda x, t: (x, 40 + 8 * t))
    return fit(model, task, adam(model, 5e-2), 100, F.mse_loss)


zoo.healthy("sensors-around-forty", overcome, learns(0.9))


def few(seed: int) -> Program:
    """Twelve batches, again and again: a small data set and several epochs."""
    batches = [batch for batch, _ in zip(grains(seed), range(12), strict=False)]
    model, losses = mlp([18, 64, 7], nn.GELU), []
    optimizer = adam(model, 3e-3)

    def run() -> None:
        for step in range(96):
            x, y = batches[step % 12]
            losses.append(train_step(model, optimizer, x, y))

    score = held_out(model, grains(seed, batch=256))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("grains-twelve-batches-eight-times", few)


class Centres(nn.Module):
    """Distances of all rows to all centres, by broadcasting on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.centres = mlp([18, 40, 8], nn.SiLU), nn.Parameter(torch.randn(7, 8))

    def forward(self, x: Tensor) -> Tensor:
        return -(self.body(x)[:, None] - self.centres).square().sum(dim=2)


def centred(seed: int) -> Program:
    model = Centres()
    return fit(model, grains(seed), adam(model, 5e-3), 80)


zoo.healthy("grains-nearest-of-seven-centres", centred)


def collected(seed: int) -> Program:
    """Four small batches per step, each divided by four."""
    model, task, losses = mlp([14, 48, 6], nn.SiLU), sensors(seed, batch=16), []
    optimizer = adam(model, 5e-3)

    def run() -> None:
        for step, (x, y) in zip(range(160), task, strict=False):
            loss = F.mse_loss(model(x), y)
            (loss / 4).backward()
            if step % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


zoo.healthy("sensors-four-small-batches-a-step", collected)


class Rounds(nn.Module):
    """Messages among the nodes of a molecule, with a frozen table of features in front."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Linear(8, 24).requires_grad_(False)
        self.message, self.own, self.out = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        h = self.fixed(x)
        return self.out(F.silu(self.own(h) + bonds @ self.message(h) / 3))


def messages(seed: int) -> Program:
    model = Rounds()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    return fit(model, molecules(seed), optimizer, 70, F.mse_loss)


zoo.healthy("molecules-frozen-features", messages)


def watched(seed: int) -> Program:
    """Evaluation every ten steps, under no_grad, and back to training."""
    model = nn.Sequential(nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20), nn.SiLU(), Mean(False), nn.Linear(20, 6))
    x, _ = weaves(seed).aside()

    def look(step: int) -> None:
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()

    return fit(model, weaves(seed), adam(model, 1e-2), 60, after=look)


zoo.healthy("weaves-looked-at-every-ten-steps", watched)
