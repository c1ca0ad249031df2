# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Scripts whose loop goes wrong, or steps too far or not far enough, and their repaired twins.

Half: sealed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, CyclicLR, ExponentialLR, LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from validation import labels
from validation.case import Program, Zoo
from validation.cases._sealed_tasks import (
    dialects,
    fields,
    gaits,
    leftovers,
    meshes,
    mists,
    mixtures,
    portraits,
    pulses,
    rosters,
    scrolls,
    soils,
    stamps,
    stars,
    swells,
)
from validation.evidence import loops as facts
from validation.evidence.loops import Fact, Played, broken, learns
from validation.nets import Autoencoder, OneLayer, mlp
from validation.programs import adam, descend, fit, held_out, script, sgd, train_step
from validation.tasks import token_loss

zoo = Zoo("loop", half="sealed", proof=learns())
Optimizer = torch.optim.Optimizer


def sounds() -> nn.Sequential:
    model = nn.Sequential(nn.Conv1d(2, 16, 7, 2), nn.SiLU(), nn.Conv1d(16, 24, 5, 2), nn.SiLU())
    return model.extend([nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(24, 5)])


class Walks(nn.Module):
    """A GRU over steps; the mean of its states is read."""

    def __init__(self, dim: int = 4, out: int = 5) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(dim, 24, batch_first=True), nn.Linear(24, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0].mean(dim=1))


class Waves(Walks):
    """The same, read at every step."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


# --- gradients that are not cleared, or at the wrong time


def parentheses(seed: int, called: bool) -> Program:
    """`optimizer.zero_grad` without its parentheses does nothing."""
    model = Walks()
    optimizer = adam(model, 3e-3)

    def body(_i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        clear = optimizer.zero_grad
        if called:
            clear()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return script(model, optimizer, gaits(seed), F.cross_entropy, body, 70)


called = zoo.healthy("zero-grad-with-parentheses", lambda s: parentheses(s, True))
zoo.sick(
    "zero-grad-without-parentheses",
    lambda s: parentheses(s, False),
    broken(facts.stale()),
    "missing_zero_grad",
    also=labels.HEAPED,
    control=called,
)


def averaged_copy(seed: int, own: bool) -> Program:
    """There is a slow copy for the score; its gradients are cleared instead of the model's."""
    model = mlp([32, 40, 8, 40, 32], nn.GELU)
    slow, optimizer = copy.deepcopy(model), sgd(model, 0.05, momentum=0.8)

    def body(_i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        (model if own else slow).zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for there, here in zip(slow.parameters(), model.parameters(), strict=True):
                there.lerp_(here, 0.1)
        return loss

    return script(model, optimizer, rosters(seed), F.mse_loss, body, 70)


own_gradients = zoo.healthy("the-model's-gradients-cleared", lambda s: averaged_copy(s, True))
zoo.sick(
    "the-slow-copy's-gradients-cleared",
    lambda s: averaged_copy(s, False),
    broken(facts.stale()),
    "missing_zero_grad",
    also={*labels.HEAPED, *labels.THROWN_OFF},
    control=own_gradients,
)


def logged(seed: int, before: bool) -> Program:
    """Norms of gradients are printed, and the printing ends with a clean-up."""
    model = sounds()
    optimizer = adam(model, 3e-3)

    def report() -> None:
        _ = [p.grad.norm() for p in model.parameters() if p.grad is not None]
        model.zero_grad()

    def body(_i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        loss = loss_of()
        loss.backward()
        if before:
            report()
        optimizer.step()
        if not before:
            report()
        return loss

    return script(model, optimizer, pulses(seed), F.cross_entropy, body, 50)


reported = zoo.healthy("norms-printed-behind-the-step", lambda s: logged(s, False))
zoo.sick(
    "norms-printed-before-the-step",
    lambda s: logged(s, True),
    broken(facts.wiped, less=0.01),
    *labels.WIPED,
    also=labels.IDLE,
    control=reported,
)


def heaped(path: str) -> Fact:
    """Most steps of the optimizer that holds this part are given more than what came since the last."""

    def fact(played: Played) -> tuple[bool, str]:
        steps = [step for step in played.steps if any(name.startswith(path) for name in step.cosine)][1:]
        old = sum(any(c < 0.99 for n, c in s.cosine.items() if n.startswith(path)) for s in steps) / len(steps)
        return old > 0.5, f"old gradients in {old:.0%} of the steps"

    return fact


def halves(seed: int, both: bool) -> Program:
    model = Autoencoder(32, 40, 10, nn.SiLU)
    first, second = adam(model.encoder, 2e-3), adam(model.decoder, 2e-3)

    def body(_i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        first.zero_grad()
        (second if both else first).zero_grad()
        loss = loss_of()
        loss.backward()
        first.step()
        second.step()
        return loss

    return script(model, [first, second], rosters(seed), F.mse_loss, body, 70)


both_cleared = zoo.healthy("both-optimizers-clear", lambda s: halves(s, True))
zoo.sick(
    "one-optimizer-clears-twice",
    lambda s: halves(s, False),
    broken(heaped("decoder")),
    "partial_zero_grad",
    "missing_zero_grad",
    layer=("decoder.0", "decoder.2"),
    also=labels.HEAPED,
    control=both_cleared,
)


def turned(seed: int, early: bool) -> Program:
    """Update, then forward and backward, as the steps were written on the board."""
    model = nn.Sequential(nn.Embedding(32, 20), nn.Flatten(1), mlp([200, 40, 5], nn.GELU))
    optimizer = adam(model, 3e-3)

    def body(_i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        optimizer.zero_grad()
        if early:
            optimizer.step()
        loss = loss_of()
        loss.backward()
        if not early:
            optimizer.step()
        return loss

    return script(model, optimizer, dialects(seed), F.cross_entropy, body, 60)


in_order = zoo.healthy("update-behind-backward", lambda s: turned(s, False))
zoo.sick(
    "update-before-forward",
    lambda s: turned(s, True),
    broken(facts.unmoved("0", "2"), less=0.01),
    *labels.EARLY,
    also=labels.IDLE,
    control=in_order,
)


def smoothed(seed: int, numbers: bool) -> Program:
    """The printed loss is a moving mean, and it is this one that `backward` is called on."""
    model, mean = mlp([16, 40, 6], nn.ReLU), [1.8]
    optimizer = adam(model, 5e-3)

    def body(_i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        loss = loss_of()
        mean[0] = 0.9 * mean[0] + 0.1 * loss.item()
        optimizer.zero_grad()
        (torch.tensor(mean[0]).requires_grad_() if numbers else loss).backward()
        optimizer.step()
        return loss

    return script(model, optimizer, stars(seed), F.cross_entropy, body, 60)


tensor_loss = zoo.healthy("backward-of-the-loss", lambda s: smoothed(s, False))
zoo.sick(
    "backward-of-the-printed-mean",
    lambda s: smoothed(s, True),
    broken(facts.nothing_comes(), less=0.01),
    *labels.UNBOUND,
    also=labels.IDLE,
    control=tensor_loss,
)

# --- rates and limits


def warmed(seed: int, by_epoch: bool) -> Program:
    """The rate grows with the number of the epoch, and all of the data is one epoch."""
    model = Waves(2, 2)
    optimizer = adam(model, 1e-2)

    def body(i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        epoch = i // 1000
        done = epoch / 5 if by_epoch else min(1.0, (i + 1) / 10)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * done
        return descend(optimizer, loss_of)

    return script(model, optimizer, swells(seed), F.mse_loss, body, 60)


by_step = zoo.healthy("rate-grows-with-the-step", lambda s: warmed(s, False))
zoo.sick(
    "rate-grows-with-an-epoch-that-stays-0",
    lambda s: warmed(s, True),
    broken(facts.rate_below(1e-12), less=0.01),
    *labels.NO_RATE,
    also=labels.IDLE,
    control=by_step,
)


def decaying(seed: int, per_batch: bool) -> Program:
    """A tenth per epoch; the schedule is moved on after every batch."""
    model = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 16, 3, padding=1), nn.GELU())
    model.append(nn.Conv2d(16, 3, 1))
    optimizer = adam(model, 3e-3)
    schedule = ExponentialLR(optimizer, 0.1)

    def body(i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        loss = descend(optimizer, loss_of)
        if per_batch or i % 30 == 29:
            schedule.step()
        return loss

    return script(model, optimizer, fields(seed), F.cross_entropy, body, 60)


per_epoch = zoo.healthy("a-tenth-per-epoch", lambda s: decaying(s, False))
zoo.sick(
    "a-tenth-per-batch",
    lambda s: decaying(s, True),
    broken(facts.rate_below(1e-9, 0.6), less=0.7),
    *labels.ENDED,
    "zero_rate",
    also={*labels.IDLE, "rate_too_low"},
    control=per_epoch,
)


def limited(seed: int, limit: float) -> Program:
    """The limit is per weight in the paper, and for the whole norm here."""
    model = Walks()
    optimizer = sgd(model, 0.3, momentum=0.9)

    def body(_i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        return loss

    return script(model, optimizer, gaits(seed), F.cross_entropy, body, 60)


loose = zoo.healthy("limit-of-1-for-the-norm", lambda s: limited(s, 1.0))
zoo.sick(
    "limit-of-1e-5-for-the-norm",
    lambda s: limited(s, 1e-5),
    broken(facts.clipped_by(1e3), less=0.1),
    *labels.TIGHT,
    also={*labels.IDLE, "rate_too_low"},
    control=loose,
)

# --- modes, weights, batches


class Normed(nn.Module):
    """Convolutions with norms over the batch, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 5), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 24, 3, 2), nn.BatchNorm2d(24)
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return self.fc(self.drop(h.amax(dim=(2, 3))))


def checked(seed: int, back: bool) -> Program:
    """A check of the shapes in evaluation mode at the start; nobody switches back."""
    model, task = Normed(), stamps(seed)
    optimizer = adam(model, 5e-3)

    def body(i: int, x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        if i == 0:
            model.eval()
            with torch.no_grad():
                model(x)
        if back:
            model.train()
        return descend(optimizer, loss_of)

    return script(model, optimizer, task, F.cross_entropy, body, 50)


training = zoo.healthy("shapes-checked-then-training-mode", lambda s: checked(s, True))
zoo.sick(
    "shapes-checked-in-evaluation-mode",
    lambda s: checked(s, False),
    broken(facts.evaluating),
    "evaluation_mode",
    also={*labels.LEARNS_NOTHING, "EXPLODING"},
    control=training,
)


def restored(seed: int, always: bool) -> Program:
    """The best weights are loaded again when a step did not better the best loss by a tenth, which hardly one does."""
    model = mlp([12, 40, 40, 1], nn.SiLU)
    optimizer, best = adam(model, 5e-3), {"loss": math.inf, "state": copy.deepcopy(model.state_dict())}

    def body(_i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        loss = descend(optimizer, loss_of)
        if loss.item() < 0.5 * best["loss"]:
            best.update(loss=loss.item(), state=copy.deepcopy(model.state_dict()))
        elif always:
            model.load_state_dict(best["state"])
        return loss

    return script(model, optimizer, soils(seed), F.mse_loss, body, 70)


kept = zoo.healthy("best-weights-kept-aside", lambda s: restored(s, False))
zoo.sick(
    "best-weights-loaded-after-each-step",
    lambda s: restored(s, True),
    broken(facts.overwritten, less=0.3),
    "weights_overwritten",
    also={*labels.IDLE, "rate_too_low", "never_moves"},
    control=kept,
)


def seeded(seed: int, each: bool) -> Program:
    """The seed is set at the top of the training step, and every batch is drawn anew after it."""
    x, y = next(iter(stars(seed, batch=800)))
    model, losses = mlp([16, 64, 64, 6], nn.ReLU), []
    optimizer = adam(model, 3e-3)

    def run() -> None:
        random = torch.Generator().manual_seed(seed)
        for _ in range(60):
            if each:
                random.manual_seed(42)
            rows = torch.randint(800, (16,), generator=random)
            losses.append(train_step(model, optimizer, x[rows], y[rows]))

    score = held_out(model, stars(seed, batch=256))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


seeded_once = zoo.healthy("seed-set-once", lambda s: seeded(s, False))
zoo.sick(
    "seed-set-in-each-step",
    lambda s: seeded(s, True),
    broken(facts.repeats, less=0.98),
    "same_batch",
    also={"LOW_RANK", "VANISHING", "SLOW", "BOTTLENECK", "DEAD"},
    control=seeded_once,
)

# --- steps that are too large or too small


def percents(seed: int, lr: float) -> Program:
    """The rate was given in percent."""
    model = OneLayer()
    return fit(model, leftovers(seed), adam(model, lr), 60, token_loss)


fraction = zoo.healthy("encoder-rate-0.005", lambda s: percents(s, 0.005))
zoo.sick(
    "encoder-rate-5",
    lambda s: percents(s, 5.0),
    broken(facts.steps_above(3), less=0.5),
    *labels.FAST,
    also=labels.THROWN_OFF,
    control=fraction,
)


def sgd_as_adam(seed: int, lr: float) -> Program:
    """The rate of plain descent from a linear model, for a deep one."""
    model = mlp([32, 48, 12, 48, 32], nn.ReLU)
    return fit(model, rosters(seed), sgd(model, lr, momentum=0.9), 60, F.mse_loss)


gentle = zoo.healthy("coder-sgd-0.1", lambda s: sgd_as_adam(s, 0.1))
zoo.sick(
    "coder-sgd-300",
    lambda s: sgd_as_adam(s, 300.0),
    broken(facts.steps_above(1), less=0.5),
    *labels.FAST,
    also=labels.THROWN_OFF,
    control=gentle,
)


def crawling(seed: int, lr: float) -> Program:
    model = nn.Sequential(nn.Conv2d(2, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1), nn.SiLU())
    model.append(nn.ConvTranspose2d(16, 2, 4, 2, 1))
    return fit(model, mixtures(seed), torch.optim.AdamW(model.parameters(), lr=lr), 50, F.mse_loss)


walking = zoo.healthy("mixtures-adamw-0.005", lambda s: crawling(s, 5e-3))
zoo.sick(
    "mixtures-adamw-5e-8",
    lambda s: crawling(s, 5e-8),
    broken(facts.steps_below(3e-6), less=0.05),
    *labels.CRAWLS,
    also=labels.IDLE,
    control=walking,
)


class Fog(nn.Module):
    """Tells mist from picture."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.level, self.out = (
            nn.Conv2d(1, 16, 3, padding=1),
            nn.Linear(1, 16),
            nn.Conv2d(16, 1, 3, padding=1),
        )

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        return self.out(F.silu(self.enter(x) + self.level(level)[:, :, None, None]))


def pixels(seed: int, reduction: str) -> Program:
    """The error is added up over pixels and pictures."""
    model = Fog()
    return fit(
        model,
        mists(seed),
        sgd(model, 0.1, momentum=0.9),
        60,
        lambda y, t: F.mse_loss(y, t, reduction=reduction),
        F.mse_loss,
    )


pixel_mean = zoo.healthy("mean-over-pixels", lambda s: pixels(s, "mean"))
zoo.sick(
    "sum-over-pixels",
    lambda s: pixels(s, "sum"),
    broken(facts.steps_above(1), less=0.5),
    *labels.SUMMED,
    also=labels.THROWN_OFF,
    control=pixel_mean,
)


def micro(seed: int, divide: bool) -> Program:
    """Twelve small batches per step."""
    model, count = Walks(), 12
    optimizer = sgd(model, 0.5, momentum=0.9)

    def body(i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        loss = loss_of()
        (loss / count if divide else loss).backward()
        if i % count == count - 1:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return script(model, optimizer, gaits(seed, batch=6), F.cross_entropy, body, 30 * count, gaits(seed, batch=128))


twelfths = zoo.healthy("twelve-small-batches-divided", lambda s: micro(s, True))
zoo.sick(
    "twelve-small-batches-undivided",
    lambda s: micro(s, False),
    broken(facts.steps_above(1), less=0.7),
    *labels.UNDIVIDED,
    also={*labels.THROWN_OFF, "summed_loss"},
    control=twelfths,
)

# --- look alike and are right


def sharpness_aware(seed: int) -> Program:
    """Goes up to the worst near place, takes the gradient there, comes back and steps: two passes per step."""
    model = mlp([16, 40, 6], nn.GELU)
    optimizer = sgd(model, 0.1, momentum=0.9)

    def body(_i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moves = [0.05 * p.grad / norm for p in model.parameters()]
            for p, move in zip(model.parameters(), moves, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        loss_of().backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        return loss

    return script(model, optimizer, stars(seed), F.cross_entropy, body, 60)


zoo.healthy("two-passes-per-step-sharpness-aware", sharpness_aware)


def adversarial(seed: int) -> Program:
    """Each batch is first made worse along the gradient of its inputs."""
    model = mlp([16, 48, 6], nn.ReLU)
    optimizer = adam(model, 5e-3)

    def body(_i: int, x: Any, y: Any, _loss_of: Callable[[], Tensor]) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
        loss = F.cross_entropy(model((x + 0.1 * slope.sign()).detach()), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return script(model, optimizer, stars(seed), F.cross_entropy, body, 60)


zoo.healthy("batches-made-worse-first", adversarial)


def half_precision(seed: int) -> Program:
    """The forward pass in bfloat16 by autocast, weights in float32."""
    model = sounds()
    optimizer = adam(model, 5e-3)

    def loss_fn(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z.float(), y)

    def body(_i: int, x: Any, y: Any, _loss_of: Callable[[], Tensor]) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return script(model, optimizer, pulses(seed), loss_fn, body, 50)


zoo.healthy("forward-pass-in-bfloat16", half_precision)


def validates(seed: int) -> Program:
    """Evaluation mode every tenth step, for a look at unseen data, and back."""
    model, task = Normed(), stamps(seed)
    optimizer, (vx, vy) = adam(model, 5e-3), task.aside()

    def body(i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        if i % 10 == 9:
            model.eval()
            with torch.no_grad():
                F.cross_entropy(model(vx), vy)
            model.train()
        return descend(optimizer, loss_of)

    return script(model, optimizer, task, F.cross_entropy, body, 50)


zoo.healthy("a-look-at-unseen-data-every-tenth-step", validates)


def cycles(seed: int) -> Program:
    """The rate goes up and down three times."""
    model = Waves(2, 2)
    optimizer = sgd(model, 0.01, momentum=0.9)
    schedule = CyclicLR(optimizer, 0.01, 0.5, step_size_up=10)

    def body(_i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss

    return script(model, optimizer, swells(seed), F.mse_loss, body, 60)


zoo.healthy("rate-up-and-down-three-times", cycles)


def epochs(seed: int) -> Program:
    """A small set, shuffled, read six times over, with a rate that falls to nothing at the very end."""
    x, y = next(iter(stars(seed, batch=320)))
    loader = DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=torch.Generator().manual_seed(seed))
    model, losses = mlp([16, 40, 6], nn.SiLU), []
    optimizer = adam(model, 5e-3)
    schedule = CosineAnnealingLR(optimizer, 60)

    def run() -> None:
        for _ in range(6):
            for rows, targets in loader:
                optimizer.zero_grad(set_to_none=False)
                loss = F.cross_entropy(model(rows), targets)
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item())

    score = held_out(model, stars(seed, batch=256))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("small-set-six-times-over", epochs)


def averages(seed: int) -> Program:
    """The mean of the weights of the last steps is put in place once, at the very end."""
    model = mlp([12, 40, 1], nn.Tanh)
    optimizer, mean = adam(model, 1e-2), torch.optim.swa_utils.AveragedModel(model)

    def body(i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        loss = descend(optimizer, loss_of)
        if i >= 40:
            mean.update_parameters(model)
        if i == 69:
            model.load_state_dict(mean.module.state_dict())
        return loss

    return script(model, optimizer, soils(seed), F.mse_loss, body, 70)


zoo.healthy("weights-averaged-at-the-end", averages)


def rival(seed: int) -> Program:
    """A critic is trained to tell coded rows from real ones, in turn with the coder, which also has its own error."""
    model = nn.ModuleDict({"coder": mlp([32, 40, 8, 40, 32], nn.GELU), "critic": mlp([32, 24, 1], nn.GELU)})
    task, losses = rosters(seed), []
    coder, critic = adam(model["coder"], 3e-3), adam(model["critic"], 1e-3)

    def run() -> None:
        for (x, _), _ in zip(task, range(60), strict=False):
            fake = model["coder"](x)
            critic.zero_grad()
            gap = F.softplus(model["critic"](fake.detach())).mean() + F.softplus(-model["critic"](x)).mean()
            gap.backward()
            critic.step()
            coder.zero_grad()
            error = F.mse_loss(fake, x)
            (error + 0.01 * F.softplus(-model["critic"](fake)).mean()).backward()
            coder.step()
            losses.append(error.item())

    x, y = task.aside()
    score = lambda: F.mse_loss(model["coder"](x), y).item()  # noqa: E731
    return Program(model=model, optimizer=[coder, critic], run=run, losses=losses, score=score)


zoo.healthy("coder-and-critic-in-turn", rival)


def penalised(seed: int) -> Program:
    """The slope of the output by the input is kept near one: a gradient of a gradient."""
    model = mlp([12, 32, 1], nn.Softplus)
    optimizer = adam(model, 1e-2)

    def body(_i: int, x: Any, y: Any, _loss_of: Callable[[], Tensor]) -> Tensor:
        x = x.clone().requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = F.mse_loss(out, y) + 0.01 * (slope.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return script(model, optimizer, soils(seed), F.mse_loss, body, 80)


zoo.healthy("slopes-kept-near-one", penalised)


def long_warmup(seed: int) -> Program:
    """Half of the run is warm-up."""
    model = OneLayer()
    optimizer = adam(model, 8e-3)
    schedule = LambdaLR(optimizer, lambda t: min(1.0, (t + 1) / 35))

    def body(_i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        loss = descend(optimizer, loss_of)
        schedule.step()
        return loss

    return script(model, optimizer, leftovers(seed), token_loss, body, 70)


zoo.healthy("half-of-the-run-is-warm-up", long_warmup)


class Graph(nn.Module):
    """A round of messages, checkpointed to spare memory."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.mix, self.leave = nn.Linear(6, 24), nn.Linear(24, 24), nn.Linear(24, 4)

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        def message(h: Tensor) -> Tensor:
            return F.silu(self.mix(h + near @ h))

        h = torch.utils.checkpoint.checkpoint(message, F.silu(self.enter(x)), use_reentrant=False)
        return self.leave(h.mean(dim=1))


def checkpointed(seed: int) -> Program:
    model = Graph()
    return fit(model, meshes(seed), adam(model, 1e-2), 50)


zoo.healthy("messages-computed-twice-to-spare-memory", checkpointed)


def scheduled_sampling(seed: int) -> Program:
    """With growing chance the model reads its own last word instead of the true one."""
    model = nn.ModuleDict({"table": nn.Embedding(14, 20), "cell": nn.GRUCell(20, 28), "head": nn.Linear(28, 14)})
    optimizer, task, losses = adam(model, 1e-2), scrolls(seed, batch=16), []
    random = torch.Generator().manual_seed(seed + 4)

    def said(x: Tensor, own: float) -> Tensor:
        h, answers, last = x.new_zeros(len(x), 28, dtype=torch.float), [], x[:, 0]
        for now in x.unbind(1):
            use = torch.rand(len(x), generator=random) < own
            h = model["cell"](model["table"](torch.where(use, last, now)), h)
            answers.append(model["head"](h))
            last = answers[-1].argmax(dim=1)
        return torch.stack(answers, dim=1)

    def run() -> None:
        for (x, y), i in zip(task, range(50), strict=False):
            optimizer.zero_grad()
            loss = token_loss(said(x, 0.2 * i / 50), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    x, y = task.aside()
    score = lambda: token_loss(said(x, 0.0), y).item()  # noqa: E731
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("reads-its-own-words-now-and-then", scheduled_sampling)


def pairs(seed: int) -> Program:
    """Matching within the batch at a learned temperature, which has a group and a rate of its own."""

    class Match(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = mlp([24, 40, 12], nn.GELU), mlp([24, 40, 12], nn.GELU)
            self.log_scale = nn.Parameter(torch.tensor(1.5))

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.log_scale.exp() * F.normalize(self.left(a), dim=1) @ F.normalize(self.right(b), dim=1).T

    model = Match()
    groups = [
        {"params": [*model.left.parameters(), *model.right.parameters()]},
        {"params": [model.log_scale], "lr": 1e-2},
    ]
    return fit(model, portraits(seed), torch.optim.AdamW(groups, lr=3e-3), 70)


zoo.healthy("matching-at-a-learned-temperature", pairs)
