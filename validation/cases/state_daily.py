"""Daily programs whose optimizer is set up wrongly or whose data hold a spoilt sample, and settings that are fine.

Half: daily.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._daily_loops import KINDS, beside, of_row, rate_of, yields
from validation.cases._everyday_loops import stored, supervised, train
from validation.cases._plain_loops import harmed
from validation.cases.state_common import every, long_first_moment, put
from validation.evidence.loops import learns
from validation.evidence.states import (
    eps_above_gradients,
    no_second_moment,
    remembers,
    same_bits,
    shrunk,
    spikes,
    young,
)
from validation.nets import mlp
from validation.programs import fit, held_out
from validation.states import BROKEN, IDLE, Made, clears, loop, zeroes
from validation.tasks import drawn_once

zoo = Zoo("state", half="daily", proof=learns(0.25))
adam, adamw, sgd = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
LOST = BROKEN | {"all_masked", "only_decay", "zero_rate", "first_loss_high"}
half = torch.bfloat16


def made(name: str) -> Made:
    """A network, its task, its loss and a rate for Adam."""
    kind = KINDS[name]
    return (lambda: kind(0)[0]), (lambda s: kind(s)[1]), (lambda o, y: kind(0)[2](o, y)), rate_of(name)


MADE = {name: made(name) for name in KINDS}


def daily(name: str, optimizer: Callable[[Any, float], Any], **more: Any) -> Callable[[int], Program]:
    """A plain loop of a net by the name of its data."""
    return loop(MADE[name], optimizer, **{"steps": 70, **more})


base = {
    name: zoo.healthy(f"daily-{name}-adam", daily(name, lambda p, r: adam(p, r)))
    for name in ("crates", "rooms", "lungs", "rides", "petals", "defaults", "tweets")
}

# --- eps

for name, eps in (("rides", 0.3), ("lungs", 10.0)):
    zoo.sick(
        f"daily-{name}-eps-{eps:g}",
        daily(name, lambda p, r, eps=eps: adam(p, r, eps=eps)),
        harmed(eps_above_gradients()),
        "eps_rules",
        "SLOW",
        "rate_too_low",
        also=IDLE,
        control=base[name],
    )
zoo.sick(
    "daily-tweets-loss-divided-by-a-billion",
    daily("tweets", lambda p, r: adam(p, r), scale=1e-9),
    harmed(eps_above_gradients()),
    "eps_rules",
    "SLOW",
    "rate_too_low",
    also=IDLE,
    control=base["tweets"],
)
zoo.healthy("daily-poles-eps-1e-4", daily("poles", lambda p, r: adam(p, r, eps=1e-4), steps=60))
zoo.healthy("daily-verses-eps-1e-6-betas-0.9-0.98", daily("verses", lambda p, r: adamw(p, r, (0.9, 0.98), 1e-6)))
zoo.healthy("daily-petals-loss-times-1000", daily("petals", lambda p, r: adam(p, r), scale=1000.0))
zoo.healthy("daily-wells-loss-times-0.01", daily("wells", lambda p, r: adam(p, r), scale=0.01, steps=90))

# --- 16 bits

low = {
    name: zoo.healthy(f"daily-{name}-bfloat16", daily(name, lambda p, r: adamw(p, r), dtype=half))
    for name in ("crates", "petals", "shells")
}
for name, rate in (("crates", 2e-5), ("petals", 1e-5)):
    zoo.sick(
        f"daily-{name}-bfloat16-rate-{rate:g}",
        daily(name, lambda p, _, rate=rate: adamw(p, rate), dtype=half),
        harmed(same_bits()),
        "lost_updates",
        "SLOW",
        "rate_too_low",
        also=IDLE,
        control=low[name],
    )
for name in ("crates", "petals"):
    zoo.sick(
        f"daily-{name}-float16",
        daily(name, lambda p, r: adam(p, r), dtype=torch.float16),
        harmed(no_second_moment()),
        "second_moment_underflow",
        "NUMERICAL",
        "loss_nonfinite",
        also=LOST,
        control=base[name],
    )


def cast(seed: int) -> Program:
    """Weights in float32, the forward in bfloat16, with clipping."""
    model, task, loss = KINDS["moths"](seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=half):
            out = model(batch[0])
        return loss(out.float(), batch[1])

    return study(model, task, adamw(model.parameters(), lr=3e-3), loss, 50, loss_of=loss_of, clip=1.0)


def scaled(seed: int) -> Program:
    """A scaler of gradients, with `unscale_` before clipping."""
    model, task, loss = KINDS["crates"](seed)
    optimizer, scaler = adam(model.parameters(), 6e-3), torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses: list[float] = []

    def run() -> None:
        for _, (x, y) in zip(range(80), task, strict=False):
            optimizer.zero_grad()
            value = loss(model(x), y)
            scaler.scale(value).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(value.item())

    score = held_out(model, task, loss)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score, scaler=scaler)


def tuned(seed: int) -> Program:
    """A trained network goes on with other crates, at a third of the rate."""
    model, task, loss = KINDS["crates"](seed)
    fit(model, task, adam(model.parameters(), 6e-3), 30, loss).run()
    model.zero_grad(set_to_none=True)
    turned = KINDS["crates"](seed)[1].mapped(lambda x: 0.7 * x + 0.7 * x.roll(1, dims=1))
    return fit(model, turned, adam(model.parameters(), 2e-3), 80, loss)


zoo.healthy("daily-moths-autocast", cast)
zoo.healthy("daily-crates-scaler-of-gradients", scaled)
zoo.healthy("daily-crates-tuned-to-other-sensors", tuned)
zoo.healthy("daily-rooms-float64", daily("rooms", lambda p, r: adam(p, r), dtype=torch.float64))
zoo.healthy("daily-petals-bfloat16-sgd", daily("petals", lambda p, _: sgd(p, 0.1, 0.9), dtype=half))

# --- decay

for name, decay in (("defaults", 30.0), ("rooms", 50.0)):
    zoo.sick(
        f"daily-{name}-adamw-decay-{decay:g}",
        daily(name, lambda p, r, decay=decay: adamw(p, r, weight_decay=decay)),
        harmed(shrunk()),
        "decay_dominates",
        also=LOST,
        control=base[name],
    )
zoo.sick(
    "daily-rides-adam-l2-of-1",
    daily("rides", lambda p, r: adam(p, r, weight_decay=1.0)),
    harmed(shrunk()),
    "decay_dominates",
    also=LOST,
    control=base["rides"],
)
pushed = {
    name: zoo.healthy(
        f"daily-{name}-sgd-{rate:g}-momentum", daily(name, lambda p, _, r=rate: sgd(p, r, 0.9), steps=steps)
    )
    for name, rate, steps in (("rooms", 0.2, 80), ("petals", 0.1, 80), ("lungs", 0.1, 60), ("shells", 0.1, 60))
}
zoo.sick(
    "daily-shells-sgd-decay-0.5",
    daily("shells", lambda p, _: sgd(p, 0.1, 0.9, 0, 0.5), steps=60),
    harmed(shrunk()),
    "decay_dominates",
    also=LOST,
    control=pushed["shells"],
)
zoo.healthy("daily-tweets-adamw-decay-0.1", daily("tweets", lambda p, r: adamw(p, r, weight_decay=0.1)))
zoo.healthy("daily-lungs-sgd-decay-1e-3", daily("lungs", lambda p, _: sgd(p, 0.1, 0.9, 0, 1e-3), steps=60))
zoo.healthy("daily-buses-adam-l2-1e-5", daily("buses", lambda p, r: adam(p, r, weight_decay=1e-5)))

# --- momentum

for name, rate in (("rooms", 0.2), ("petals", 0.1)):
    zoo.sick(
        f"daily-{name}-momentum-0.999",
        daily(name, lambda p, _, rate=rate: sgd(p, rate, 0.999), steps=80),
        harmed(remembers()),
        "momentum_too_long",
        "EXPLODING",
        "UNSTABLE",
        "rate_too_high",
        also=LOST,
        control=pushed[name],
    )
quick = {
    name: zoo.healthy(f"daily-{name}-adam-rate-0.02", daily(name, lambda p, _: adam(p, 0.02), steps=90))
    for name in ("petals", "poles", "yields")
}
zoo.sick(
    "daily-poles-adam-beta1-0.998",
    daily("poles", lambda p, _: adam(p, 0.02, betas=(0.998, 0.999)), steps=90),
    harmed(long_first_moment),
    "momentum_too_long",
    "EXPLODING",
    "UNSTABLE",
    "rate_too_high",
    also=LOST,
    control=quick["poles"],
)
zoo.healthy("daily-shells-nesterov-0.95", daily("shells", lambda p, _: sgd(p, 0.05, 0.95, nesterov=True), steps=60))
zoo.healthy("daily-poles-betas-0.8-0.95", daily("poles", lambda p, r: adam(p, r, betas=(0.8, 0.95))))

# --- the state is lost

for name, what, after in (
    ("poles", "made-anew-at-every-step", every(1, "made-anew")),
    ("petals", "cleared-at-every-step", clears(1)),
    ("yields", "zeroed-at-every-second-step", zeroes(2)),
):
    zoo.sick(
        f"daily-{name}-state-{what}",
        daily(name, lambda p, _: adam(p, 0.02), after=after, steps=90),
        harmed(young),
        "state_reset",
        "UNSTABLE",
        "rate_too_high",
        also=BROKEN,
        control=quick[name],
    )


def saved(optimizer: torch.optim.Optimizer, step: int) -> None:
    """The state goes through a file, as at the end of a job."""
    if step == 40:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


zoo.healthy("daily-diary-saved-and-loaded", daily("diary", lambda p, r: adamw(p, r), after=saved))
zoo.healthy(
    "daily-rooms-new-optimizer-for-the-second-stage",
    daily("rooms", lambda p, r: adam(p, r), after=lambda o, i: o.state.clear() if i == 35 else None),
)

# --- one sample


def file(name: str, spoil: Callable[[Tensor, Tensor, int], None] | None, clip: float | None = None, epochs: int = 6):
    """Epochs over a small data set, of which one row may be wrong."""

    def build(seed: int) -> Program:
        model, task, loss = KINDS[name](seed)
        x, y = (part.clone() for part in stored(task, 8).tensors)
        if spoil is not None:
            spoil(x, y, int(torch.randint(len(x), (), generator=drawn_once(seed, 9190))))
        order = torch.Generator().manual_seed(seed)
        data = DataLoader(TensorDataset(x, y), len(x) // 14, shuffle=True, generator=order)
        score = held_out(model, task, loss)
        optimizer = adam(model.parameters(), rate_of(name))
        return train(model, data, supervised(model, loss), optimizer, score, epochs=epochs, clip=clip)

    return build


def in_micrometres(x: Tensor, y: Tensor, row: int) -> None:
    """A row in another unit, in what comes in and in what is to be given back."""
    x[row] *= 1e4
    y[row] *= 1e4


for name, spoilt, spoil in (
    ("yields", "one-field-of-a-broken-scale", put("y", 65535.0)),
    ("petals", "one-flower-in-micrometres", in_micrometres),
):
    clean = zoo.healthy(f"daily-{name}-file-clean", file(name, None))
    zoo.sick(
        f"daily-{name}-file-{spoilt}",
        file(name, spoil),
        harmed(spikes()),
        "bad_batch",
        "UNSTABLE",
        "EXPLODING",
        also=LOST | {"input_scales"},
        control=clean,
    )
zoo.healthy("daily-crates-file-six-epochs", file("crates", None))
zoo.healthy("daily-shells-file-clipped", file("shells", None, 1.0, 4))


def heavy(seed: int) -> Program:
    """Targets with heavy tails under an absolute error, with clipping."""
    model, noise = mlp([8, 32, 1], nn.GELU), torch.distributions.StudentT(3.0)
    task = yields(seed).changed(lambda x, y: (x, y + 0.2 * noise.sample(y.shape)))
    loss = lambda o, y: F.l1_loss(o.squeeze(1), y)  # noqa: E731
    return study(model, task, adam(model.parameters(), 8e-3), loss, 90, clip=1.0)


zoo.healthy("daily-yields-heavy-tails", heavy)

# --- other optimizers

for name, made_by in (
    ("rooms-amsgrad", lambda p, r: adam(p, r, amsgrad=True)),
    ("lungs-radam", lambda p, r: torch.optim.RAdam(p, 2 * r)),
    ("crates-adamax", lambda p, r: torch.optim.Adamax(p, 2 * r)),
    ("petals-adadelta", lambda p, _: torch.optim.Adadelta(p, 1.0)),
    ("tweets-adagrad", lambda p, _: torch.optim.Adagrad(p, 0.2)),
    ("poles-rmsprop", lambda p, _: torch.optim.RMSprop(p, 2e-3)),
):
    zoo.healthy(f"daily-{name}", daily(name.split("-")[0], made_by))


def mean_again(seed: int, fault: bool) -> Program:
    """The mean over the batch is divided by the number of rows and pixels once more, under an eps of 1e-4."""
    model, task, loss = KINDS["lungs"](seed)
    scale = 1 / (8 * 144) ** 2 if fault else 1.0
    optimizer = adam(model.parameters(), 4e-3, eps=1e-4)
    return study(model, task, optimizer, lambda o, y: scale * loss(o, y), 60, loss)


beside(
    zoo,
    "lungs-mean-once-under-eps-1e-4",
    "lungs-mean-divided-again-under-eps-1e-4",
    mean_again,
    harmed(eps_above_gradients()),
    "eps_rules",
    "SLOW",
    "rate_too_low",
    also=IDLE,
)


def averaged(seed: int) -> Program:
    """A running mean of the weights is kept for the end, and the state of the optimizer is left alone."""
    model = mlp([8, 40, 40, 1], nn.SiLU)
    slow = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda a, b, _: 0.95 * a + 0.05 * b)
    optimizer = adam(model.parameters(), 6e-3)
    return study(model, yields(seed), optimizer, of_row, 90, after=lambda _: slow.update_parameters(model))


zoo.healthy("daily-yields-running-mean-of-weights", averaged)
