# ruff: noqa: D103 - a case is explained by its name
"""Programs whose optimizer or whose data people reported as the culprit, and what their threads arrived at.

Half: reported.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._plain_loops import harmed
from validation.cases._reported_states import MADE, adam, adamw, dense, from_file, letters, rents, sgd
from validation.cases._reported_states import Nano as NanoModel
from validation.cases.state_common import long_first_moment
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
from validation.labels import DAMPED, ROUNDED_OFF, UNDERFLOWN
from validation.programs import fit, held_out
from validation.states import BROKEN, IDLE, loop
from validation.tasks import token_loss

zoo = Zoo("state", half="reported", proof=learns(0.25))
LOST = BROKEN | {"all_masked", "only_decay", "zero_rate", "first_loss_high", "constant_targets"}
half, full = torch.bfloat16, torch.float16


def plain(name: str, optimizer: Callable[[Any, float], Any], **more: Any) -> Callable[[int], Program]:
    """A plain loop of a network by the name of its data."""
    return loop(MADE[name], optimizer, **{"steps": 80, **more})


base = {name: zoo.healthy(f"reported-{name}-adam", plain(name, lambda p, r: adam(p, r))) for name in MADE}

# --- eps

# TensorFlow's documentation of Adam and threads that follow it: eps of 1.0 or 0.1, as for Inception, with a usual rate.
# discuss.pytorch.org 137434: eps was raised against NaN, and the loss hardly falls any more.
for name, eps in (("paints", 1.0), ("letters", 0.1), ("mails", 0.3)):
    zoo.sick(
        f"reported-{name}-eps-{eps:g}",
        plain(name, lambda p, r, eps=eps: adam(p, r, eps=eps)),
        harmed(eps_above_gradients()),
        *DAMPED,
        also=IDLE,
        control=base[name],
    )


# sifal.social ("The epsilon trap") and threads of losses of 1e-12: targets in metres make gradients far below eps.
class Height(nn.Module):
    """Gives back a number in the unit of the data."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.net, self.unit = dense(6, 48, 48, 1, act=nn.GELU), unit

    def forward(self, x: Tensor) -> Tensor:
        """A height."""
        return self.unit * self.net(x)


def heights(seed: int, unit: float) -> Program:
    """The score is in units of what is to be learned."""
    model, task = Height(unit), rents(seed).changed(lambda x, y: (x, unit * y))
    optimizer = adam(model.parameters(), 5e-3)
    return study(model, task, optimizer, F.mse_loss, 80, lambda o, y: F.mse_loss(o / unit, y / unit))


zoo.sick(
    "reported-heights-in-metres",
    lambda s: heights(s, 1e-6),
    harmed(eps_above_gradients()),
    *DAMPED,
    "VANISHING",
    also=IDLE | {"input_scales", "constant_targets"},
    control=zoo.healthy("reported-heights-in-micrometres", lambda s: heights(s, 1.0)),
)


# OpenNMT/OpenNMT-py#2209: what is a mean already is divided by the number of tokens of all batches once more.
def divided(seed: int, times: float) -> Program:
    model = NanoModel()
    optimizer = adamw(model.parameters(), 5e-3, eps=1e-6)
    return study(model, letters(seed), optimizer, lambda o, y: token_loss(o, y) / times, 80, token_loss)


zoo.sick(
    "reported-letters-loss-divided-by-tokens-again",
    lambda s: divided(s, 1e6),
    harmed(eps_above_gradients()),
    *DAMPED,
    "VANISHING",
    also=IDLE,
    control=zoo.healthy("reported-letters-mean-over-tokens-eps-1e-6", lambda s: divided(s, 1.0)),
)
zoo.healthy("reported-rents-eps-1e-4", plain("rents", lambda p, r: adam(p, r, eps=1e-4)))
zoo.healthy("reported-paints-eps-1-with-its-rate", plain("paints", lambda p, _: adam(p, 1.0, eps=1.0)))
zoo.healthy("reported-tremors-loss-times-100", plain("tremors", lambda p, r: adam(p, r), scale=100.0))
zoo.healthy("reported-faults-eps-1e-10", plain("faults", lambda p, r: adamw(p, r, eps=1e-10)))

# --- 16 bits

# workofart/ml-by-hand#85, hp-l33/AiM#10: weights live in bfloat16 without a copy in float32, and small steps round off.
low = {
    name: zoo.healthy(f"reported-{name}-bfloat16", plain(name, lambda p, r: adamw(p, r), dtype=half))
    for name in ("faults", "rents", "letters")
}
for name, rate in (("faults", 1e-5), ("letters", 2e-5)):
    zoo.sick(
        f"reported-{name}-bfloat16-rate-{rate:g}",
        plain(name, lambda p, _, rate=rate: adamw(p, rate), dtype=half),
        harmed(same_bits()),
        *ROUNDED_OFF,
        also=IDLE,
        control=low[name],
    )


# huggingface/transformers#21312: fine-tuning in pure bfloat16 at a rate that is fine with a copy in float32.
def tuned(seed: int, dtype: torch.dtype) -> Program:
    """A trained regressor goes on at 2e-4 with flats of a year later."""
    model = dense(6, 48, 48, 1, act=nn.GELU)
    fit(model, rents(seed), adam(model.parameters(), 5e-3), 120, F.mse_loss).run()
    model.zero_grad(set_to_none=True)
    model.to(dtype)
    task = rents(seed).changed(lambda x, y: (x.to(dtype), y + 0.6 * x[:, 5:].tanh() + 0.6))
    return fit(model, task, adamw(model.parameters(), 2e-4), 100, lambda o, y: F.mse_loss(o.float(), y))


zoo.sick(
    "reported-rents-tuned-in-bfloat16",
    lambda s: tuned(s, half),
    harmed(same_bits(0.6)),
    *ROUNDED_OFF,
    also=IDLE,
    control=zoo.healthy("reported-rents-tuned-in-float32", lambda s: tuned(s, torch.float32), learns(0.1)),
)


def cast(seed: int) -> Program:
    """Weights in float32, the forward in bfloat16."""
    model, task = MADE["paints"][0](), MADE["paints"][1](seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=half):
            out = model(batch[0])
        return F.cross_entropy(out.float(), batch[1])

    return study(model, task, adamw(model.parameters(), 5e-3), steps=60, loss_of=loss_of, clip=1.0)


def master(seed: int) -> Program:
    """A copy of the weights in float32 is moved, and its rounded values are computed with: the fix of #85."""
    model, task = dense(12, 48, 48, 5), MADE["faults"][1](seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        rounded = {name: p.to(half) for name, p in model.named_parameters()}
        return F.cross_entropy(torch.func.functional_call(model, rounded, (batch[0].to(half),)).float(), batch[1])

    return study(model, task, adamw(model.parameters(), 3e-3), steps=80, loss_of=loss_of)


zoo.healthy("reported-paints-autocast-clipped", cast)
zoo.healthy("reported-faults-float32-copy-of-bfloat16", master)
zoo.healthy("reported-faults-bfloat16-sgd", plain("faults", lambda p, _: sgd(p, 0.1, 0.9), dtype=half))

# afiaka87/glide-finetune#5, keras-team/keras#11860, pytorch/pytorch#8860: Adam with eps 1e-8 on weights in float16.
for name in ("faults", "rents", "tremors"):
    zoo.sick(
        f"reported-{name}-float16-adam",
        plain(name, lambda p, r: adam(p, r), dtype=full),
        harmed(no_second_moment()),
        *UNDERFLOWN,
        "eps_rules",
        also=LOST | {"lost_updates"},
        control=base[name],
    )


# matanbt/TROPT#8: a soft prompt inherits float16 from its model, and so does the state of Adam.
class Prompted(nn.Module):
    """A frozen decoder behind a few vectors that are learned."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        self.prompt = nn.Parameter((0.1 * torch.randn(4, 32)).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Logits behind the prompt."""
        model, prompt = self.model, self.prompt.float().expand(len(x), -1, -1)
        h = torch.cat([prompt, model.words(x)], dim=1)
        h = h + model.places[: h.shape[1]]
        h = h + model.looks[0](model.norms[0](h))
        h = h + model.mlps[0](model.norms[1](h))
        return model.head(model.norm(h))[:, 4:]


def prompted(seed: int, dtype: torch.dtype) -> Program:
    inner = NanoModel()
    fit(inner, letters(seed), adam(inner.parameters(), 5e-3), 60, token_loss).run()
    inner.zero_grad(set_to_none=True)
    model, task = Prompted(inner, dtype), letters(seed + 7)
    optimizer = adam([model.prompt], 5e-2)
    return study(model, task, optimizer, lambda o, y: token_loss(o, y) / 64, 80, token_loss)


zoo.sick(
    "reported-soft-prompt-in-float16",
    lambda s: prompted(s, full),
    harmed(no_second_moment(), worse=1.02),
    *UNDERFLOWN,
    "eps_rules",
    also=LOST | {"lost_updates"},
    control=zoo.healthy("reported-soft-prompt-in-float32", lambda s: prompted(s, torch.float32), learns(0.05)),
)

# --- decay

# BVLC/caffe#1396: a decay of 0.5 makes all weights zero, and every input gives the same output.
pushed = {
    name: zoo.healthy(f"reported-{name}-sgd-{rate:g}-momentum", plain(name, lambda p, _, r=rate: sgd(p, r, 0.9)))
    for name, rate in (("paints", 0.05), ("faults", 0.05), ("rents", 0.05))
}
zoo.sick(
    "reported-paints-sgd-decay-0.5",
    plain("paints", lambda p, _: sgd(p, 0.05, 0.9, 0, 0.5)),
    harmed(shrunk()),
    "decay_dominates",
    also=LOST,
    control=pushed["paints"],
)
# Decay in units of AdamW under Adam (tflearn/tflearn#772, marian-nmt/marian-dev#419), and the other way round.
zoo.sick(
    "reported-mails-adam-l2-of-0.5",
    plain("mails", lambda p, r: adam(p, r, weight_decay=0.5)),
    harmed(shrunk()),
    "decay_dominates",
    also=LOST,
    control=base["mails"],
)
for name, decay in (("letters", 50.0), ("rents", 100.0)):
    zoo.sick(
        f"reported-{name}-adamw-decay-{decay:g}",
        plain(name, lambda p, r, decay=decay: adamw(p, r, weight_decay=decay)),
        harmed(shrunk()),
        "decay_dominates",
        also=LOST,
        control=base[name],
    )
zoo.healthy("reported-letters-adamw-decay-0.1", plain("letters", lambda p, r: adamw(p, r, weight_decay=0.1)))
zoo.healthy("reported-mails-adamw-decay-0.5", plain("mails", lambda p, r: adamw(p, r, weight_decay=0.5)))
zoo.healthy("reported-paints-sgd-decay-5e-4", plain("paints", lambda p, _: sgd(p, 0.05, 0.9, 0, 5e-4)))
zoo.healthy("reported-rents-adam-l2-1e-5", plain("rents", lambda p, r: adam(p, r, weight_decay=1e-5)))

# --- momentum

# madanswer.com 75218 and many: a momentum so close to 1 that the steps run past every minimum.
for name, rate in (("faults", 0.05), ("rents", 0.05)):
    zoo.sick(
        f"reported-{name}-momentum-0.999",
        plain(name, lambda p, _, rate=rate: sgd(p, rate, 0.999)),
        harmed(remembers()),
        "momentum_too_long",
        "EXPLODING",
        "UNSTABLE",
        "rate_too_high",
        also=LOST,
        control=pushed[name],
    )
# mila-iqia/blocks#1159 is a mix-up of what the betas mean; here they are given in the wrong order.
for name, rate in (("rents", 0.02), ("tremors", 0.01)):
    zoo.sick(
        f"reported-{name}-adam-betas-swapped",
        plain(name, lambda p, _, r=rate: adam(p, r, betas=(0.999, 0.9))),
        harmed(long_first_moment),
        "momentum_too_long",
        "EXPLODING",
        "UNSTABLE",
        "rate_too_high",
        also=LOST,
        control=zoo.healthy(f"reported-{name}-adam-rate-{rate:g}", plain(name, lambda p, _, r=rate: adam(p, r))),
    )
zoo.healthy("reported-paints-nesterov-0.95", plain("paints", lambda p, _: sgd(p, 0.03, 0.95, nesterov=True)))
zoo.healthy("reported-letters-betas-0.9-0.95", plain("letters", lambda p, r: adamw(p, r, (0.9, 0.95))))

# --- the state is lost


# OpenNMT/OpenNMT-py#38 and #617: at every resume the parameters are handed over anew, which empties the state.
# dotnet/TorchSharp#760: a function that trains for a while is called again and again, and makes its optimizer itself.
def anew(every: int) -> Callable[[torch.optim.Optimizer, int], None]:
    def after(optimizer: torch.optim.Optimizer, step: int) -> None:
        if (step + 1) % every == 0:
            fresh = type(optimizer)(optimizer.param_groups[0]["params"], lr=optimizer.param_groups[0]["lr"])
            optimizer.load_state_dict(fresh.state_dict())

    return after


brisk = {
    name: zoo.healthy(f"reported-{name}-job-goes-through", plain(name, lambda p, _, r=rate: adam(p, r), steps=90))
    for name, rate in (("rents", 0.03), ("tremors", 0.03), ("faults", 0.03))
}
for name, rate, every in (("rents", 0.03, 3), ("tremors", 0.03, 2), ("faults", 0.03, 3)):
    zoo.sick(
        f"reported-{name}-resumed-without-state-every-{every}",
        plain(name, lambda p, _, r=rate: adam(p, r), after=anew(every), steps=90),
        harmed(young),
        "state_reset",
        "UNSTABLE",
        "rate_too_high",
        also=BROKEN,
        control=brisk[name],
    )


def saved(optimizer: torch.optim.Optimizer, step: int) -> None:
    if step % 30 == 29:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


# NVlabs/stylegan2-ada-pytorch#108: one resume without the state, at a small rate, does no harm.
zoo.healthy("reported-letters-resumed-with-state", plain("letters", lambda p, r: adamw(p, r), after=saved))
zoo.healthy(
    "reported-mails-one-resume-without-state",
    plain("mails", lambda p, r: adam(p, r / 2), after=lambda o, i: o.state.clear() if i == 40 else None),
)

# --- one sample


def put(part: str, value: float) -> Callable[[Tensor, Tensor, int], None]:
    def spoil(x: Tensor, y: Tensor, row: int) -> None:
        (x if part == "x" else y)[row] = value

    return spoil


# open-mmlab/mmdetection#2061: once in every epoch the loss is 1e14; there are faulty annotations in the data.
# ultralytics/ultralytics#280, stas00/ml-engineering#32: a corrupt label or a toxic sample is behind the spikes.
clean = {name: zoo.healthy(f"reported-{name}-file-clean", from_file(name)) for name in ("rents", "heights", "tremors")}
for name, spoilt, spoil in (
    ("rents", "one-faulty-annotation", put("y", 1e5)),
    ("heights", "one-in-another-unit", put("y", 2000.0)),
    ("tremors", "one-series-of-32767", put("y", 32767.0)),
):
    zoo.sick(
        f"reported-{name}-file-{spoilt}",
        from_file(name, spoil),
        harmed(spikes()),
        "bad_batch",
        "UNSTABLE",
        "EXPLODING",
        also=LOST | {"input_scales"},
        control=clean[name],
    )
zoo.healthy("reported-faults-file-sgd-clipped", from_file("faults", clip=1.0, optimizer=lambda p, _: sgd(p, 0.05, 0.9)))
# vitoralbiero/img2pose#46: small batches give a loss with mild spikes, which is normal.
zoo.healthy("reported-paints-file-batches-of-8", from_file("paints", size=8, epochs=3))
zoo.healthy("reported-mails-file-clipped-at-1", from_file("mails", clip=1.0, epochs=5))
zoo.healthy("reported-rents-file-huber", from_file("rents", loss=F.smooth_l1_loss))


def heavy(seed: int) -> Program:
    """Now and then a rent is far off, and an absolute error with clipping takes it as it comes."""
    noise, model = torch.distributions.StudentT(2.5), dense(6, 48, 48, 1, act=nn.GELU)
    task = rents(seed).changed(lambda x, y: (x, y + 0.15 * noise.sample(y.shape)))
    score = held_out(model, rents(seed, 256), F.l1_loss)
    return study(model, task, adam(model.parameters(), 5e-3), F.l1_loss, 90, score=score, clip=1.0)


zoo.healthy("reported-rents-heavy-tails-clipped", heavy)

# --- other optimizers and schedules of good tutorials

for name, made_by in (
    ("faults-radam", lambda p, r: torch.optim.RAdam(p, 2 * r)),
    ("rents-amsgrad", lambda p, r: adam(p, r, amsgrad=True)),
    ("mails-adagrad", lambda p, _: torch.optim.Adagrad(p, 0.05)),
    ("paints-rmsprop", lambda p, _: torch.optim.RMSprop(p, 2e-3)),
    ("letters-nadam", lambda p, r: torch.optim.NAdam(p, r)),
    ("tremors-adamax", lambda p, r: torch.optim.Adamax(p, 2 * r)),
):
    zoo.healthy(f"reported-{name}", plain(name.split("-")[0], made_by))


def warmed(seed: int) -> Program:
    """Warm-up, cosine, decay for matrices only, clipping."""
    model = NanoModel(depth=2)
    some = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = adamw([{"params": some, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], 6e-3, (0.9, 0.95))
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, 12),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 78, 6e-4),
        ],
        [12],
    )
    return study(model, letters(seed), optimizer, token_loss, 90, clip=1.0, after=lambda _: schedule.step())


zoo.healthy("reported-letters-warm-up-cosine-clipped", warmed)
