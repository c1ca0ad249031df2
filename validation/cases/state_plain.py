"""Plain programs whose optimizer is set up wrongly or whose data hold a spoilt sample, and settings that are fine.

Half: plain.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from validation.case import Case, Program, Zoo
from validation.cases._common_loops import study
from validation.cases._everyday_loops import stored, supervised, train
from validation.cases._plain_loops import KINDS, Music, harmed, rate_of, rents, tunes
from validation.cases.state_common import every, long_first_moment, put, times
from validation.evidence import states as facts
from validation.evidence.loops import broken, learns
from validation.labels import DAMPED, FORGETFUL, LONG_MEMORY, ROUNDED_OFF, SPOILT, UNDERFLOWN
from validation.nets import mlp
from validation.programs import fit, held_out
from validation.states import BROKEN, IDLE, Made, loop, reloads
from validation.tasks import drawn_once, token_loss

zoo = Zoo("state", half="plain", proof=learns())
adam, adamw, sgd = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
LOST = BROKEN | {"all_masked", "only_decay", "zero_rate"}


def made(name: str) -> Made:
    """A network, its task, its loss and a rate for Adam."""
    kind = KINDS[name]
    return (lambda: kind(0)[0]), (lambda s: kind(s)[1]), (lambda o, y: kind(0)[2](o, y)), rate_of(name)


MADE = {name: made(name) for name in KINDS if name != "doses"}
base: dict[str, Case] = {}
for name in ("crops", "photos", "tunes", "rents", "beats", "speech", "scans", "power", "spectra", "tickets", "friends"):
    base[name] = zoo.healthy(f"plain-{name}-adam", loop(MADE[name], lambda p, r: adam(p, r)))

# --- eps

for name, eps in (("crops", 1.0), ("photos", 10.0), ("spectra", 0.3), ("tickets", 1.0)):
    zoo.sick(
        f"plain-{name}-eps-{eps:g}",
        loop(MADE[name], lambda p, r, eps=eps: adam(p, r, eps=eps)),
        harmed(facts.eps_above_gradients()),
        *DAMPED,
        also=IDLE,
        control=base[name],
    )
for name, scale in (("rents", 1e-9), ("beats", 1e-9)):
    zoo.sick(
        f"plain-{name}-loss-times-{scale:g}",
        loop(MADE[name], lambda p, r: adam(p, r), scale=scale),
        harmed(facts.eps_above_gradients()),
        *DAMPED,
        also=IDLE,
        control=base[name],
    )
zoo.healthy("plain-scans-eps-1e-4", loop(MADE["scans"], lambda p, r: adam(p, r, eps=1e-4)))
zoo.healthy("plain-tunes-eps-1e-5", loop(MADE["tunes"], lambda p, r: adamw(p, r, eps=1e-5)))
zoo.healthy("plain-power-loss-times-0.01", loop(MADE["power"], lambda p, r: adam(p, r), scale=0.01))
zoo.healthy("plain-friends-loss-times-1000", loop(MADE["friends"], lambda p, r: adam(p, r), scale=1000.0))
zoo.healthy("plain-crops-eps-0.1-and-rate-0.2", loop(MADE["crops"], lambda p, _: adam(p, 0.2, eps=0.1)))

# --- 16 bits

half = torch.bfloat16
low = {
    name: zoo.healthy(f"plain-{name}-bfloat16", loop(MADE[name], lambda p, r: adamw(p, r), dtype=half))
    for name in ("tickets", "scans", "crops", "friends")
}
for name, rate in (("tickets", 2e-5), ("scans", 1e-5), ("crops", 1e-5)):
    zoo.sick(
        f"plain-{name}-bfloat16-rate-{rate:g}",
        loop(MADE[name], lambda p, _, rate=rate: adamw(p, rate), dtype=half),
        harmed(facts.same_bits()),
        *ROUNDED_OFF,
        also=IDLE,
        control=low[name],
    )


def goes_on(seed: int, dtype: torch.dtype) -> Program:
    """A trained decoder goes on with other tunes at a small rate; its weights may have been cut to 16 bits."""
    model = Music()
    fit(model, tunes(seed), adam(model.parameters(), 4e-3), 25, token_loss).run()
    model.zero_grad(set_to_none=True)
    model.to(dtype)
    task = tunes(seed)
    return fit(model, task, adam(model.parameters(), 1e-4), 120, lambda o, y: token_loss(o.float(), y))


whole = zoo.healthy("plain-tunes-go-on-in-float32", lambda s: goes_on(s, torch.float32), learns(0.05))
zoo.sick(
    "plain-tunes-go-on-in-bfloat16",
    lambda s: goes_on(s, half),
    broken(facts.same_bits(0.5), less=0.7),
    *ROUNDED_OFF,
    also=IDLE,
    control=whole,
)
for name in ("crops", "photos", "scans", "rents"):
    control = base[name]
    zoo.sick(
        f"plain-{name}-float16",
        loop(MADE[name], lambda p, r: adam(p, r), dtype=torch.float16),
        harmed(facts.no_second_moment()),
        *UNDERFLOWN,
        also=LOST,
        control=control,
    )


def cast(seed: int) -> Program:
    """Weights in float32, the forward in bfloat16."""
    model, task, loss = KINDS["fabrics"](seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=half):
            out = model(batch[0])
        return loss(out.float(), batch[1])

    return study(model, task, adamw(model.parameters(), lr=4e-3), steps=60, loss_of=loss_of)


zoo.healthy("plain-fabrics-autocast", cast)
zoo.healthy("plain-rents-float64", loop(MADE["rents"], lambda p, r: adam(p, r), dtype=torch.float64))
zoo.healthy("plain-crops-bfloat16-sgd", loop(MADE["crops"], lambda p, _: sgd(p, 0.2, 0.9), dtype=half))

# --- decay

for name, decay in (("speech", 40.0), ("tunes", 40.0)):
    zoo.sick(
        f"plain-{name}-adamw-decay-{decay:g}",
        loop(MADE[name], lambda p, r, decay=decay: adamw(p, r, weight_decay=decay)),
        harmed(facts.shrunk()),
        "decay_dominates",
        also=LOST,
        control=base[name],
    )
zoo.sick(
    "plain-power-adam-l2-of-1",
    loop(MADE["power"], lambda p, r: adam(p, r, weight_decay=1.0)),
    harmed(facts.shrunk()),
    "decay_dominates",
    also=LOST,
    control=base["power"],
)
pushed = {
    name: zoo.healthy(f"plain-{name}-sgd-{rate:g}-momentum", loop(MADE[name], lambda p, _, r=rate: sgd(p, r, 0.9)))
    for name, rate in (("crops", 0.1), ("friends", 0.2), ("scans", 0.1), ("beats", 0.05))
}
zoo.sick(
    "plain-scans-sgd-decay-0.3",
    loop(MADE["scans"], lambda p, _: sgd(p, 0.1, 0.9, 0, 0.3)),
    harmed(facts.shrunk()),
    "decay_dominates",
    also=LOST,
    control=pushed["scans"],
)
zoo.healthy("plain-tickets-adamw-decay-0.1", loop(MADE["tickets"], lambda p, r: adamw(p, r, weight_decay=0.1)))
zoo.healthy("plain-beats-adamw-decay-0.3", loop(MADE["beats"], lambda p, r: adamw(p, r, weight_decay=0.3)))
zoo.healthy("plain-rents-adam-l2-1e-4", loop(MADE["rents"], lambda p, r: adam(p, r, weight_decay=1e-4)))
zoo.healthy("plain-digits-sgd-decay-5e-4", loop(MADE["digits"], lambda p, _: sgd(p, 0.03, 0.9, 0, 5e-4), steps=60))

# --- momentum

for name, rate in (("crops", 0.1), ("friends", 0.2), ("beats", 0.05)):
    zoo.sick(
        f"plain-{name}-momentum-0.999",
        loop(MADE[name], lambda p, _, rate=rate: sgd(p, rate, 0.999)),
        harmed(facts.remembers()),
        *LONG_MEMORY,
        "rate_too_high",
        also=LOST,
        control=pushed[name],
    )
quick = {
    name: zoo.healthy(f"plain-{name}-adam-rate-0.02", loop(MADE[name], lambda p, _: adam(p, 0.02)))
    for name in ("rents", "baskets", "power")
}
for name in ("rents",):
    zoo.sick(
        f"plain-{name}-adam-beta1-0.998",
        loop(MADE[name], lambda p, _: adam(p, 0.02, betas=(0.998, 0.999))),
        harmed(long_first_moment),
        *LONG_MEMORY,
        "rate_too_high",
        also=LOST,
        control=quick[name],
    )
zoo.healthy("plain-friends-nesterov-0.95", loop(MADE["friends"], lambda p, _: sgd(p, 0.1, 0.95, nesterov=True)))
zoo.healthy("plain-speech-betas-0.8-0.99", loop(MADE["speech"], lambda p, r: adam(p, r, betas=(0.8, 0.99))))
zoo.healthy("plain-spectra-beta1-zero", loop(MADE["spectra"], lambda p, r: adam(p, r, betas=(0.0, 0.99))))

# --- the state is lost

for name, steps, how in (
    ("rents", 1, "made-anew"),
    ("baskets", 1, "cleared"),
    ("power", 1, "made-anew"),
):
    zoo.sick(
        f"plain-{name}-state-{how}-every-{steps}",
        loop(MADE[name], lambda p, _: adam(p, 0.02), after=every(steps, how)),
        harmed(facts.young),
        *FORGETFUL,
        also=BROKEN,
        control=quick[name],
    )


zoo.healthy(
    "plain-power-saved-and-loaded",
    loop(MADE["power"], lambda p, r: adam(p, r), after=reloads(lambda step: step % 30 == 29)),
)
zoo.healthy(
    "plain-tunes-state-cleared-once",
    loop(MADE["tunes"], lambda p, r: adam(p, r), after=lambda o, i: o.state.clear() if i == 40 else None),
)

# --- one sample


def file(name: str, spoil: Callable[[Tensor, Tensor, int], None] | None, clip: float | None, epochs: int = 6):
    """Epochs over a small data set, of which one row may be wrong."""

    def build(seed: int) -> Program:
        model, task, loss = KINDS[name](seed)
        x, y = (part.clone() for part in stored(task, 8).tensors)
        if spoil is not None:
            spoil(x, y, int(torch.randint(len(x), (), generator=drawn_once(seed, 7190))))
        data = DataLoader(
            TensorDataset(x, y), len(x) // 14, shuffle=True, generator=torch.Generator().manual_seed(seed)
        )
        score = held_out(model, task, loss)
        optimizer = adam(model.parameters(), rate_of(name))
        return train(model, data, supervised(model, loss), optimizer, score, epochs=epochs, clip=clip)

    return build


for name, spoilt, spoil, clip in (
    ("rents", "one-rent-without-its-comma", times("y", 1e4), None),
    ("baskets", "one-price-of-minus-9999", put("y", -9999.0), None),
    ("power", "one-series-of-sentinels", put("y", 32767.0), None),
):
    clean = zoo.healthy(f"plain-{name}-file-clean", file(name, None, clip))
    zoo.sick(
        f"plain-{name}-file-{spoilt}",
        file(name, spoil, clip),
        harmed(facts.spikes()),
        *SPOILT,
        "EXPLODING",
        also=LOST | {"input_scales", "first_loss_high"},
        control=clean,
    )


def heavy(seed: int) -> Program:
    """Targets with heavy tails under a loss that bears them."""
    model = mlp([9, 40, 40, 1], nn.SiLU)
    noise = torch.distributions.StudentT(3.0)
    task = rents(seed).changed(lambda x, y: (x, y + 0.2 * noise.sample(y.shape)))
    return study(model, task, adam(model.parameters(), 5e-3), F.smooth_l1_loss, 90, clip=1.0)


zoo.healthy("plain-rents-heavy-tails", heavy)
zoo.healthy("plain-fabrics-file-clean", file("fabrics", None, None))
zoo.healthy("plain-tickets-file-six-epochs", file("tickets", None, None))
zoo.healthy("plain-spectra-file-clipped", file("spectra", None, 0.5))

# --- healthy: other optimizers

for name, made_by in (
    ("tunes-amsgrad", lambda p, r: adam(p, r, amsgrad=True)),
    ("glosses-nadam", lambda p, r: torch.optim.NAdam(p, r)),
    ("scans-radam", lambda p, r: torch.optim.RAdam(p, 2 * r)),
    ("speech-adamax", lambda p, r: torch.optim.Adamax(p, 2 * r)),
    ("tickets-adagrad", lambda p, _: torch.optim.Adagrad(p, 0.1)),
    ("rents-rmsprop-centered", lambda p, _: torch.optim.RMSprop(p, 2e-3, centered=True)),
    ("fabrics-adafactor", lambda p, _: torch.optim.Adafactor(p, 0.02)),
    ("shops-adadelta", lambda p, _: torch.optim.Adadelta(p, 20.0)),
    ("mails-sgd-1", lambda p, _: sgd(p, 1.0)),
    ("reviews-adamw-decay-0.05", lambda p, r: adamw(p, r, weight_decay=0.05)),
    ("baskets-asgd", lambda p, _: torch.optim.ASGD(p, 0.1)),
):
    zoo.healthy(f"plain-{name}", loop(MADE[name.split("-")[0]], made_by))


def groups(seed: int) -> Program:
    """No decay for norms and words; warm-up; clipping at 1."""
    model, task = Music(), tunes(seed)
    few = [p for n, p in model.named_parameters() if "norm" in n or "words" in n or "places" in n]
    many = [p for p in model.parameters() if all(p is not q for q in few)]
    optimizer = adamw([{"params": many, "weight_decay": 0.1}, {"params": few, "weight_decay": 0.0}], 5e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 10))
    return study(model, task, optimizer, token_loss, 80, clip=1.0, after=lambda _: schedule.step())


zoo.healthy("plain-tunes-groups-warm-up-clip", groups)
