"""Common programs whose optimizer is set up wrongly or whose data hold a spoilt sample, and settings that are fine.

Half: common.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from validation.case import Case, Program, Zoo
from validation.cases._common_loops import (
    Coder,
    Decoder,
    Factors,
    Forecaster,
    Pocket,
    ResNet,
    Segmenter,
    Tagger,
    TextCnn,
    WideDeep,
    bce,
    bikes,
    cells,
    ends_at,
    faces,
    films,
    gaits,
    leaves,
    loans,
    names,
    prose,
    quakes,
    recipes,
    study,
    wines,
)
from validation.cases._everyday_loops import stored, supervised, train
from validation.evidence import states as facts
from validation.evidence.loops import Played, all_of, broken, learns
from validation.labels import DAMPED, FORGETFUL, LONG_MEMORY, ROUNDED_OFF, SPOILT, UNDERFLOWN
from validation.nets import mlp
from validation.programs import fit, held_out
from validation.states import BROKEN, IDLE, Made, loop, reloads
from validation.tasks import Task, drawn_once, token_loss

zoo = Zoo("state", half="common", proof=learns())
adam, adamw, sgd = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
LOST = BROKEN | {"all_masked", "only_decay", "zero_rate"}

# --- what is trained: a network, its task, its loss, a rate for Adam

MADE: dict[str, Made] = {
    "decoder": (lambda: Decoder(18, 24, 1), prose, token_loss, 4e-3),
    "leaves": (ResNet, leaves, F.cross_entropy, 3e-3),
    "cells": (Segmenter, cells, bce, 5e-3),
    "quakes": (lambda: Forecaster(nn.LSTM), quakes, F.mse_loss, 6e-3),
    "loans": (WideDeep, loans, bce, 6e-3),
    "names": (Tagger, names, token_loss, 8e-3),
    "faces": (Coder, faces, F.mse_loss, 5e-3),
    "films": (Factors, films, F.mse_loss, 2e-2),
    "recipes": (TextCnn, recipes, F.cross_entropy, 4e-3),
    "wines": (lambda: mlp([13, 40, 40, 5], nn.Tanh), wines, F.cross_entropy, 4e-3),
    "bikes": (lambda: mlp([7, 40, 40, 1], nn.SiLU), bikes, F.mse_loss, 6e-3),
    "gaits": (Pocket, gaits, F.cross_entropy, 3e-3),
}
base = {name: zoo.healthy(f"common-{name}-adam", loop(made, lambda p, r: adam(p, r))) for name, made in MADE.items()}

# --- eps

for name, eps in (("leaves", 1.0), ("names", 0.3), ("faces", 0.1), ("films", 1.0)):
    zoo.sick(
        f"common-{name}-eps-{eps:g}",
        loop(MADE[name], lambda p, r, eps=eps: adam(p, r, eps=eps)),
        broken(facts.eps_above_gradients(), less=0.6),
        *DAMPED,
        also=IDLE,
        control=base[name],
    )
for name, scale in (("quakes", 1e-8), ("decoder", 1e-9)):
    zoo.sick(
        f"common-{name}-loss-times-{scale:g}",
        loop(MADE[name], lambda p, r: adam(p, r), scale=scale),
        broken(facts.eps_above_gradients(), less=0.6),
        "eps_rules",
        "SLOW",
        also=IDLE,
        control=base[name],
    )
zoo.healthy("common-leaves-eps-1e-5", loop(MADE["leaves"], lambda p, r: adam(p, r, eps=1e-5)))
zoo.healthy("common-decoder-eps-1e-6-decay", loop(MADE["decoder"], lambda p, r: adamw(p, r, eps=1e-6)))
zoo.healthy("common-films-loss-times-0.001", loop(MADE["films"], lambda p, r: adam(p, r), scale=1e-3))
zoo.healthy("common-cells-loss-times-100", loop(MADE["cells"], lambda p, r: adam(p, r), scale=100.0))
zoo.healthy("common-wines-eps-0.1-and-a-rate-to-match", loop(MADE["wines"], lambda p, _: adam(p, 0.1, eps=0.1)))

# --- 16 bits

half = torch.bfloat16
low = {
    name: zoo.healthy(f"common-{name}-bfloat16", loop(MADE[name], lambda p, r: adamw(p, r), dtype=half))
    for name in ("decoder", "cells", "faces", "recipes")
}
for name, rate in (("decoder", 1e-5), ("cells", 1e-5), ("faces", 3e-5)):
    zoo.sick(
        f"common-{name}-bfloat16-rate-{rate:g}",
        loop(MADE[name], lambda p, _, rate=rate: adamw(p, rate), dtype=half),
        broken(facts.same_bits(), less=0.3),
        *ROUNDED_OFF,
        also=IDLE,
        control=low[name],
    )


def finetuned(seed: int, dtype: torch.dtype) -> Program:
    """A trained classifier of texts goes on with other texts at a small rate; its weights may have been cut."""
    model = TextCnn(p=0.0)
    fit(model, recipes(seed), adam(model.parameters(), 4e-3), 20).run()
    model.zero_grad(set_to_none=True)
    model.to(dtype)
    task = recipes(seed)
    return fit(model, task, adam(model.parameters(), 2e-4), 110, lambda o, y: F.cross_entropy(o.float(), y))


whole = zoo.healthy("common-recipes-go-on-in-float32", lambda s: finetuned(s, torch.float32))
zoo.sick(
    "common-recipes-go-on-in-bfloat16",
    lambda s: finetuned(s, half),
    broken(facts.same_bits(0.5), less=0.9),
    *ROUNDED_OFF,
    also=IDLE,
    control=whole,
)
for name in ("leaves", "names", "faces", "bikes"):
    zoo.sick(
        f"common-{name}-float16",
        loop(MADE[name], lambda p, r: adam(p, r), dtype=torch.float16),
        broken(facts.no_second_moment(), less=0.2),
        *UNDERFLOWN,
        also=LOST,
        control=base[name],
    )


def cast(seed: int) -> Program:
    """Weights in float32, the forward in bfloat16."""
    model, task = ResNet(), leaves(seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=half):
            return F.cross_entropy(model(batch[0]), batch[1])

    return study(model, task, adamw(model.parameters(), lr=3e-3), steps=50, loss_of=loss_of)


zoo.healthy("common-leaves-autocast", cast)
zoo.healthy("common-quakes-float64", loop(MADE["quakes"], lambda p, r: adam(p, r), dtype=torch.float64))
zoo.healthy("common-bikes-bfloat16-sgd", loop(MADE["bikes"], lambda p, _: sgd(p, 0.1, 0.9), dtype=half))

# --- decay

for name, decay in (("decoder", 30.0), ("recipes", 40.0), ("quakes", 20.0)):
    zoo.sick(
        f"common-{name}-adamw-decay-{decay:g}",
        loop(MADE[name], lambda p, r, decay=decay: adamw(p, r, weight_decay=decay)),
        broken(facts.shrunk(), less=0.6),
        "decay_dominates",
        also=LOST,
        control=base[name],
    )
zoo.sick(
    "common-bikes-adam-l2-of-1",
    loop(MADE["bikes"], lambda p, r: adam(p, r, weight_decay=1.0)),
    broken(facts.shrunk(), less=0.6),
    "decay_dominates",
    also=LOST,
    control=base["bikes"],
)
pushed = {
    "cells": zoo.healthy("common-cells-sgd-decay-1e-4", loop(MADE["cells"], lambda p, _: sgd(p, 0.3, 0.9, 0, 1e-4))),
    "faces": zoo.healthy("common-faces-sgd-decay-1e-4", loop(MADE["faces"], lambda p, _: sgd(p, 0.5, 0.9, 0, 1e-4))),
    "names": zoo.healthy("common-names-sgd-momentum", loop(MADE["names"], lambda p, _: sgd(p, 0.3, 0.9))),
    "wines": zoo.healthy("common-wines-sgd-momentum", loop(MADE["wines"], lambda p, _: sgd(p, 0.05, 0.9))),
}
zoo.sick(
    "common-faces-sgd-decay-0.1",
    loop(MADE["faces"], lambda p, _: sgd(p, 0.5, 0.9, 0, 0.1)),
    broken(facts.shrunk(), less=0.6),
    "decay_dominates",
    also=LOST,
    control=pushed["faces"],
)
zoo.healthy("common-loans-adamw-decay-0.1", loop(MADE["loans"], lambda p, r: adamw(p, r, weight_decay=0.1)))
zoo.healthy("common-leaves-adamw-decay-0.5", loop(MADE["leaves"], lambda p, r: adamw(p, r, weight_decay=0.5)))
zoo.healthy("common-bikes-adam-l2-1e-5", loop(MADE["bikes"], lambda p, r: adam(p, r, weight_decay=1e-5)))

# --- momentum

for name, rate in (("cells", 0.3), ("faces", 0.5), ("wines", 0.05)):
    zoo.sick(
        f"common-{name}-momentum-0.999",
        loop(MADE[name], lambda p, _, rate=rate: sgd(p, rate, 0.999)),
        broken(facts.remembers(), less=0.7),
        *LONG_MEMORY,
        also=LOST,
        control=pushed[name],
    )


def long_first_moment(played: Played) -> tuple[bool, str]:
    """The first moment of Adam remembers more than a hundred steps."""
    memory = max(1 / (1 - group["betas"][0]) for _, group in facts.states(played))
    return memory > 100, f"the first moment remembers {memory:.0f} steps"


quick: dict[str, Case] = {}
for name, rate, level in (("bikes", 0.03, 0.05), ("wines", 0.03, 0.1), ("loans", 0.03, 0.1)):
    build = loop(MADE[name], lambda p, _, rate=rate: adam(p, rate))
    quick[name] = zoo.healthy(f"common-{name}-adam-rate-{rate}", build)
    zoo.sick(
        f"common-{name}-adam-rate-{rate}-beta1-0.998",
        loop(MADE[name], lambda p, _, rate=rate: adam(p, rate, betas=(0.998, 0.999))),
        broken(all_of(long_first_moment, ends_at(level))),
        *LONG_MEMORY,
        also=LOST,
        control=quick[name],
    )
zoo.healthy("common-faces-nesterov-0.95", loop(MADE["faces"], lambda p, _: sgd(p, 0.2, 0.95, nesterov=True)))
zoo.healthy("common-decoder-betas-0.9-0.95", loop(MADE["decoder"], lambda p, r: adamw(p, r, betas=(0.9, 0.95))))
zoo.healthy("common-bikes-beta1-0.5", loop(MADE["bikes"], lambda p, r: adam(p, r, betas=(0.5, 0.9))))
zoo.healthy("common-cells-beta1-zero", loop(MADE["cells"], lambda p, r: adam(p, r, betas=(0.0, 0.99))))

# --- the state is lost


def every(steps: int, how: str) -> Callable[[torch.optim.Optimizer, int], None]:
    """After so many steps the state is cleared, or replaced by that of a new optimizer."""

    def after(optimizer: torch.optim.Optimizer, step: int) -> None:
        if (step + 1) % steps:
            return
        if how == "cleared":
            optimizer.state.clear()
        else:
            fresh = type(optimizer)(optimizer.param_groups[0]["params"], lr=optimizer.param_groups[0]["lr"])
            optimizer.load_state_dict(fresh.state_dict())

    return after


for name, steps, how in (
    ("bikes", 1, "made-anew"),
    ("loans", 1, "made-anew"),
    ("bikes", 2, "cleared"),
):
    zoo.sick(
        f"common-{name}-state-{how}-every-{steps}",
        loop(MADE[name], lambda p, _: adam(p, 0.03), after=every(steps, how)),
        broken(facts.young, less=0.97),
        *FORGETFUL,
        also=BROKEN,
        control=quick[name],
    )


zoo.healthy(
    "common-names-resumed-with-state",
    loop(MADE["names"], lambda p, r: adam(p, r), after=reloads(lambda step: step == 45)),
)
zoo.healthy(
    "common-leaves-state-cleared-once",
    loop(MADE["leaves"], lambda p, r: adam(p, r), after=lambda o, i: o.state.clear() if i == 30 else None),
)

# --- one sample


def shuffled(
    model: nn.Module,
    task: Task,
    loss: Callable[[Tensor, Tensor], Tensor],
    spoil: Callable[[Tensor, Tensor, int], None] | None,
    seed: int,
    rate: float,
    clip: float | None = 1.0,
) -> Program:
    """Epochs over a small data set, of which one row may be wrong."""
    x, y = (part.clone() for part in stored(task, 8).tensors)
    if spoil is not None:
        spoil(x, y, int(torch.randint(len(x), (), generator=drawn_once(seed, 95))))
    size = len(x) // 16
    data = DataLoader(TensorDataset(x, y), size, shuffle=True, generator=torch.Generator().manual_seed(seed))
    score = held_out(model, task, loss)
    return train(model, data, supervised(model, loss), adam(model.parameters(), rate), score, epochs=6, clip=clip)


def put(part: str, value: float) -> Callable[[Tensor, Tensor, int], None]:
    """Set the row of the inputs or of the targets to a value."""

    def spoil(x: Tensor, y: Tensor, row: int) -> None:
        (x if part == "x" else y)[row] = value

    return spoil


def times(part: str, value: float) -> Callable[[Tensor, Tensor, int], None]:
    """Multiply that row."""

    def spoil(x: Tensor, y: Tensor, row: int) -> None:
        (x if part == "x" else y)[row] *= value

    return spoil


for name, spoilt, spoil in (
    ("bikes", "one-target-of-9999", put("y", 9999.0)),
    ("quakes", "one-series-in-other-units", times("y", 5000.0)),
    ("faces", "one-row-of-sentinels", put("x", 3000.0)),
    ("cells", "one-picture-of-65535", times("x", 65535.0)),
):
    make, task_of, loss, rate = MADE[name]
    clip = 1.0 if name in ("bikes", "quakes") else None
    clean = zoo.healthy(
        f"common-{name}-file-clean",
        lambda s, m=make, t=task_of, o=loss, r=rate, c=clip: shuffled(m(), t(s), o, None, s, r, c),
    )
    zoo.sick(
        f"common-{name}-file-{spoilt}",
        lambda s, m=make, t=task_of, o=loss, r=rate, p=spoil, c=clip: shuffled(m(), t(s), o, p, s, r, c),
        broken(facts.spikes()),
        *SPOILT,
        "EXPLODING",
        also=LOST | {"input_scales", "first_loss_high"},
        control=clean,
    )
zoo.healthy(
    "common-bikes-file-heavy-tails",
    lambda s: shuffled(
        MADE["bikes"][0](),
        bikes(s).changed(lambda x, y: (x, y + 0.1 * torch.distributions.StudentT(4.0).sample(y.shape))),
        F.smooth_l1_loss,
        None,
        s,
        6e-3,
    ),
)
zoo.healthy(
    "common-wines-file-some-wrong-labels",
    lambda s: shuffled(mlp([13, 40, 5]), wines(s).changed(mislabel(s)), F.cross_entropy, None, s, 4e-3, None),
)


def mislabel(seed: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """One label in ten is drawn anew."""
    random = drawn_once(seed, 96)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.rand(y.shape, generator=random) < 0.1
        return x, torch.where(wrong, torch.randint(5, y.shape, generator=random), y)

    return change


# --- healthy: other optimizers

for name, made_by in (
    ("decoder-amsgrad", lambda p, r: adam(p, r, amsgrad=True)),
    ("loans-nadam", lambda p, r: torch.optim.NAdam(p, r)),
    ("quakes-radam", lambda p, r: torch.optim.RAdam(p, 2 * r)),
    ("names-adamax", lambda p, r: torch.optim.Adamax(p, 2 * r)),
    ("recipes-adagrad", lambda p, _: torch.optim.Adagrad(p, 0.05)),
    ("bikes-rmsprop", lambda p, _: torch.optim.RMSprop(p, 2e-3)),
    ("wines-adafactor", lambda p, _: torch.optim.Adafactor(p, 0.03)),
    ("leaves-sgd-0.1", lambda p, _: sgd(p, 0.1)),
    ("gaits-rprop", lambda p, _: torch.optim.Rprop(p, 1e-3)),
    ("cells-rmsprop-centered", lambda p, _: torch.optim.RMSprop(p, 2e-3, centered=True, momentum=0.5)),
    ("films-adagrad", lambda p, _: torch.optim.Adagrad(p, 0.2)),
):
    zoo.healthy(f"common-{name}", loop(MADE[name.split("-")[0]], made_by))


def grouped(seed: int) -> Program:
    """No decay for biases and norms; a cosine; clipping at 1."""
    model, task = Decoder(18, 24, 1), prose(seed)
    many = [p for p in model.parameters() if p.dim() > 1]
    few = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = adamw([{"params": many, "weight_decay": 0.1}, {"params": few, "weight_decay": 0.0}], 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 80)
    return study(model, task, optimizer, token_loss, 80, clip=1.0, after=lambda _: schedule.step())


zoo.healthy("common-decoder-groups-cosine-clip", grouped)
