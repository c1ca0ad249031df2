"""Usual programs whose optimizer is set up wrongly or whose data hold a spoilt sample, and settings that are fine.

Half: usual.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._everyday_loops import stored, supervised, train
from validation.cases._plain_loops import harmed
from validation.cases._usual_loops import KINDS, PlainConv, birds, cars, rate_of
from validation.cases.state_common import every, long_first_moment, put, times
from validation.evidence import states as facts
from validation.evidence.loops import learns
from validation.labels import DAMPED, FORGETFUL, LONG_MEMORY, ROUNDED_OFF, SPOILT, UNDERFLOWN
from validation.nets import mlp
from validation.programs import fit, held_out
from validation.states import BROKEN, IDLE, Made, loop, reloads
from validation.tasks import drawn_once

zoo = Zoo("state", half="usual", proof=learns())
adam, adamw, sgd = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
LOST = BROKEN | {"all_masked", "only_decay", "zero_rate", "first_loss_high"}


def made(name: str) -> Made:
    """A network, its task, its loss and a rate for Adam."""
    kind = KINDS[name]
    return (lambda: kind(0)[0]), (lambda s: kind(s)[1]), (lambda o, y: kind(0)[2](o, y)), rate_of(name)


MADE = {name: made(name) for name in KINDS}
STEPS = 70


def usual(name: str, optimizer: Callable, **more: object) -> Callable[[int], Program]:
    """A plain loop of a net by the name of its data."""
    return loop(MADE[name], optimizer, **{"steps": STEPS, **more})


base = {
    name: zoo.healthy(f"usual-{name}-adam", usual(name, lambda p, r: adam(p, r)))
    for name in ("stones", "letters", "quotes", "streets", "roads", "weather", "tiles", "adverts")
}

# --- eps

for name, eps in (("stones", 1.0), ("roads", 1.0)):
    zoo.sick(
        f"usual-{name}-eps-{eps:g}",
        usual(name, lambda p, r, eps=eps: adam(p, r, eps=eps)),
        harmed(facts.eps_above_gradients()),
        *DAMPED,
        also=IDLE,
        control=base[name],
    )
zoo.sick(
    "usual-letters-loss-divided-by-ten-billions",
    usual("letters", lambda p, r: adam(p, r), scale=1e-10),
    harmed(facts.eps_above_gradients()),
    *DAMPED,
    also=IDLE,
    control=base["letters"],
)
zoo.healthy("usual-nests-eps-1e-3", usual("nests", lambda p, r: adam(p, r, eps=1e-3), steps=50))
zoo.healthy("usual-dates-eps-1e-6", usual("dates", lambda p, r: adamw(p, r, eps=1e-6), steps=50))
zoo.healthy("usual-cars-loss-times-100", usual("cars", lambda p, r: adam(p, r), scale=100.0))

# --- 16 bits

half = torch.bfloat16
low = {
    name: zoo.healthy(f"usual-{name}-bfloat16", usual(name, lambda p, r: adamw(p, r), dtype=half))
    for name in ("stones", "streets", "nests")
}
for name, rate in (("stones", 1e-5), ("streets", 1e-5)):
    zoo.sick(
        f"usual-{name}-bfloat16-rate-{rate:g}",
        usual(name, lambda p, _, rate=rate: adamw(p, rate), dtype=half),
        harmed(facts.same_bits()),
        *ROUNDED_OFF,
        also=IDLE,
        control=low[name],
    )


def tuned(seed: int) -> Program:
    """A trained network goes on with pictures of another camera, at a small rate."""
    model = PlainConv()
    fit(model, birds(seed), adam(model.parameters(), 3e-3), 20).run()
    model.zero_grad(set_to_none=True)
    return fit(model, birds(seed).mapped(lambda x: x.flip(1) + 0.3), adam(model.parameters(), 2e-4), 70)


zoo.healthy("usual-nests-another-camera", tuned)
for name in ("stones", "roads"):
    zoo.sick(
        f"usual-{name}-float16",
        usual(name, lambda p, r: adam(p, r), dtype=torch.float16),
        harmed(facts.no_second_moment()),
        *UNDERFLOWN,
        also=LOST,
        control=base[name],
    )


def cast(seed: int) -> Program:
    """Weights in float32, the forward in bfloat16."""
    model, task, loss = KINDS["tiles"](seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=half):
            out = model(batch[0])
        return loss(out.float(), batch[1])

    return study(model, task, adamw(model.parameters(), lr=5e-3), loss, STEPS, loss_of=loss_of)


zoo.healthy("usual-tiles-autocast", cast)
zoo.healthy("usual-streets-float64", usual("streets", lambda p, r: adam(p, r), dtype=torch.float64))
zoo.healthy("usual-stones-bfloat16-sgd", usual("stones", lambda p, _: sgd(p, 0.1, 0.9), dtype=half))

# --- decay

for name, decay in (("quotes", 50.0), ("letters", 50.0)):
    zoo.sick(
        f"usual-{name}-adamw-decay-{decay:g}",
        usual(name, lambda p, r, decay=decay: adamw(p, r, weight_decay=decay)),
        harmed(facts.shrunk()),
        "decay_dominates",
        also=LOST,
        control=base[name],
    )
zoo.sick(
    "usual-tiles-adam-l2-of-0.5",
    usual("tiles", lambda p, r: adam(p, r, weight_decay=0.5)),
    harmed(facts.shrunk()),
    "decay_dominates",
    also=LOST,
    control=base["tiles"],
)
pushed = {
    name: zoo.healthy(
        f"usual-{name}-sgd-{rate:g}-momentum", usual(name, lambda p, _, r=rate: sgd(p, r, 0.9), steps=steps)
    )
    for name, rate, steps in (("streets", 0.1, 70), ("nests", 0.03, 50), ("stones", 0.1, 70), ("dates", 0.1, 50))
}
zoo.sick(
    "usual-nests-sgd-decay-0.5",
    usual("nests", lambda p, _: sgd(p, 0.03, 0.9, 0, 0.5), steps=50),
    harmed(facts.shrunk()),
    "decay_dominates",
    also=LOST,
    control=pushed["nests"],
)
zoo.healthy("usual-adverts-adamw-decay-0.2", usual("adverts", lambda p, r: adamw(p, r, weight_decay=0.2)))
zoo.healthy("usual-birds-sgd-decay-1e-3", usual("birds", lambda p, _: sgd(p, 0.05, 0.9, 0, 1e-3), steps=50))
zoo.healthy("usual-weather-adam-l2-1e-4", usual("weather", lambda p, r: adam(p, r, weight_decay=1e-4)))

# --- momentum

for name, rate in (("streets", 0.1), ("stones", 0.1)):
    zoo.sick(
        f"usual-{name}-momentum-0.999",
        usual(name, lambda p, _, rate=rate: sgd(p, rate, 0.999)),
        harmed(facts.remembers()),
        *LONG_MEMORY,
        "rate_too_high",
        also=LOST,
        control=pushed[name],
    )
quick = {
    name: zoo.healthy(f"usual-{name}-adam-rate-0.03", usual(name, lambda p, _: adam(p, 0.03), steps=90))
    for name in ("cars", "adverts", "weather")
}
zoo.sick(
    "usual-cars-adam-beta1-0.998",
    usual("cars", lambda p, _: adam(p, 0.03, betas=(0.998, 0.999)), steps=90),
    harmed(long_first_moment),
    *LONG_MEMORY,
    "rate_too_high",
    also=LOST,
    control=quick["cars"],
)
zoo.healthy("usual-roads-nesterov-0.95", usual("roads", lambda p, _: sgd(p, 0.1, 0.95, nesterov=True)))
zoo.healthy("usual-quotes-betas-0.85-0.98", usual("quotes", lambda p, r: adam(p, r, betas=(0.85, 0.98))))

# --- the state is lost

for name, how in (("weather", "made-anew"), ("cars", "cleared")):
    zoo.sick(
        f"usual-{name}-state-{how}-at-every-step",
        usual(name, lambda p, _: adam(p, 0.03), after=every(1, how), steps=90),
        harmed(facts.young),
        *FORGETFUL,
        also=BROKEN,
        control=quick[name],
    )


zoo.healthy(
    "usual-letters-saved-and-loaded", usual("letters", lambda p, r: adamw(p, r), after=reloads(lambda step: step == 35))
)
zoo.healthy(
    "usual-streets-state-cleared-once",
    usual("streets", lambda p, r: adam(p, r), after=lambda o, i: o.state.clear() if i == 30 else None),
)

# --- one sample


def file(name: str, spoil: Callable[[Tensor, Tensor, int], None] | None, clip: float | None = None, epochs: int = 6):
    """Epochs over a small data set, of which one row may be wrong."""

    def build(seed: int) -> Program:
        model, task, loss = KINDS[name](seed)
        x, y = (part.clone() for part in stored(task, 8).tensors)
        if spoil is not None:
            spoil(x, y, int(torch.randint(len(x), (), generator=drawn_once(seed, 8190))))
        order = torch.Generator().manual_seed(seed)
        data = DataLoader(TensorDataset(x, y), len(x) // 14, shuffle=True, generator=order)
        score = held_out(model, task, loss)
        optimizer = adam(model.parameters(), rate_of(name))
        return train(model, data, supervised(model, loss), optimizer, score, epochs=epochs, clip=clip)

    return build


for name, spoilt, spoil in (
    ("cars", "one-price-in-cents-of-another-currency", times("y", 2e4)),
    ("weather", "one-sensor-that-says-99999", put("y", 99999.0)),
):
    clean = zoo.healthy(f"usual-{name}-file-clean", file(name, None))
    zoo.sick(
        f"usual-{name}-file-{spoilt}",
        file(name, spoil),
        harmed(facts.spikes()),
        *SPOILT,
        "EXPLODING",
        also=LOST | {"input_scales"},
        control=clean,
    )
zoo.healthy("usual-stones-file-six-epochs", file("stones", None))
zoo.healthy("usual-tiles-file-clipped", file("tiles", None, 1.0, 5))


def heavy(seed: int) -> Program:
    """Targets with heavy tails under a loss that bears them, with clipping."""
    model, noise = mlp([8, 40, 1], nn.GELU), torch.distributions.StudentT(2.5)
    task = cars(seed).changed(lambda x, y: (x, y + 0.2 * noise.sample(y.shape)))
    return study(model, task, adam(model.parameters(), 6e-3), F.smooth_l1_loss, 90, clip=1.0)


zoo.healthy("usual-cars-heavy-tails", heavy)

# --- other optimizers

for name, made_by in (
    ("letters-amsgrad", lambda p, r: adam(p, r, amsgrad=True)),
    ("streets-radam", lambda p, r: torch.optim.RAdam(p, 2 * r)),
    ("roads-adamax", lambda p, r: torch.optim.Adamax(p, 2 * r)),
    ("cars-adafactor", lambda p, _: torch.optim.Adafactor(p, 0.02)),
    ("stones-nadam", lambda p, r: torch.optim.NAdam(p, r)),
):
    zoo.healthy(f"usual-{name}", usual(name.split("-")[0], made_by))


def mean_of_means(seed: int, fault: bool) -> Program:
    """The mean of the errors, divided by the number of pixels once more, under an eps of 1e-4."""
    model, task, loss = KINDS["tiles"](seed)
    scale = 1 / 64**2 if fault else 1.0
    optimizer = adam(model.parameters(), 5e-3, eps=1e-4)
    return study(model, task, optimizer, lambda o, y: scale * loss(o, y), STEPS, loss)


zoo.beside(
    "tiles-mean-once-under-eps-1e-4",
    "tiles-mean-divided-again-under-eps-1e-4",
    mean_of_means,
    harmed(facts.eps_above_gradients()),
    *DAMPED,
    also=IDLE,
)
