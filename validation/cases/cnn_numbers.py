# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Convolutional networks that are not finite, run away, stand still or jump, and their twins.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases.cnn_signal import coder, he_5, mobile, pooled, signal
from validation.evidence import diverges, does_not_move, gradient_norms_spread, not_finite, trains
from validation.labels import JUMPS, RUNS_AWAY
from validation.nets import ConvCoder, ConvNet, Lambda, Mobile, OwnNorm, Signal, deep_conv, he_
from validation.setups import pair, rated
from validation.tasks import Task, every, images, pictures, waves

zoo = Zoo("cnn", half="tune", proof=trains(lr=3e-3, steps=30))


# --- not finite


def with_nan(model: ConvNet, layer: int, task: Task) -> Setup:
    with torch.no_grad():
        model.convs[layer].weight[2, 0, 1, 1] = float("nan")
    return pair(model, task)


zoo.sick(
    "nan-in-third-kernel",
    lambda s: with_nan(he_(ConvNet([1] + [12] * 5, 5)), 2, images(s, 1, 8, 5)),
    not_finite(),
    "NUMERICAL",
    layer="convs.2",
    control=pooled,
)


def half(seed: int, dtype: torch.dtype, scale: float) -> Setup:
    """A loss scale may be too large for the type: then the forward pass is fine and gradients overflow."""
    task = images(seed, size=6).mapped(lambda x: x.to(dtype))
    return pair(he_(deep_conv(3, 8)).to(dtype), task.with_loss(lambda y, t: F.cross_entropy(y.float(), t) * scale))


bfloat = zoo.healthy("bfloat16-loss-scale-1024", lambda s: half(s, torch.bfloat16, 1024), trains(lr=1e-2))
zoo.sick(
    "float16-loss-scale-too-large",
    lambda s: half(s, torch.float16, 2**23),
    not_finite(batches=4, forward=False),
    "NUMERICAL",
    "EXPLODING",
    control=bfloat,
)


def loudness(seed: int, floor: float) -> Setup:
    """Log energy in short windows; one clip in the batch is silent."""

    def hushed(x: Tensor) -> Tensor:
        x[4] = 0
        return x

    model = nn.Sequential(
        Lambda(lambda x: torch.log(F.avg_pool1d(x.square(), 4) + floor)), he_(Signal([4, 20, 20], act=nn.GELU))
    )
    return pair(model, waves(seed).mapped(hushed))


floored = zoo.healthy("log-energy-with-floor", lambda s: loudness(s, 1e-2))
zoo.sick(
    "log-energy-of-a-silent-clip",
    lambda s: loudness(s, 0.0),
    not_finite(batches=2),
    "NUMERICAL",
    layer=("0", "1.convs.0"),
    control=floored,
)


def shrinking(seed: int, stride: int, eps: float) -> Setup:
    """Strides make the last map a single pixel, sooner than its author counted: its spread is zero."""
    layers: list[nn.Module] = []
    for i in range(3):
        layers += [nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1, stride=stride), OwnNorm(eps, (2, 3)), nn.SiLU()]
    body = nn.Sequential(*layers)
    return pair(nn.Sequential(body, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 5)), images(seed, 3, 8, 5, 20))


pixels = zoo.healthy("own-instance-norm-with-eps", lambda s: shrinking(s, 1, 1e-5))
zoo.sick(
    "own-instance-norm-of-a-single-pixel",
    lambda s: shrinking(s, 2, 0.0),
    not_finite(batches=2),
    "NUMERICAL",
    layer=("0.6", "0.7"),
    control=pixels,
)


def segmented(seed: int, own: bool) -> Setup:
    """Is a pixel bright? Written as log p and log(1 - p), which is minus infinity where p rounds to one."""

    def loss(z: Tensor, x: Tensor) -> Tensor:
        bright = (x > 0).float()
        if not own:
            return F.binary_cross_entropy_with_logits(z, bright)
        p = torch.sigmoid(z)
        return -(bright * p.log() + (1 - bright) * (1 - p).log()).mean()

    model = he_(nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ELU(), nn.Conv2d(16, 1, 3, padding=1)))
    with torch.no_grad():
        model[2].weight.mul_(60 if own else 1)
    return pair(model, pictures(seed, 8, 10).with_loss(loss))


mask = zoo.healthy("segmentation-on-logits", lambda s: segmented(s, False))
zoo.sick(
    "segmentation-log-of-one-minus-p",
    lambda s: segmented(s, True),
    not_finite(batches=2),
    "NUMERICAL",
    also={"EXPLODING", "SATURATION", "UNSTABLE"},
    control=mask,
)

# --- runs away, stands still

momentum = zoo.healthy(
    "sgd-0.02-momentum-0.9",
    lambda s: rated(he_(ConvNet([1, 16, 16, 16], 5)), images(s, 1, 10, 5), "SGD", 0.02, 25, momentum=0.9),
    trains(steps=40, fall=0.05),
)
zoo.sick(
    "sgd-0.5-momentum-0.9-hot-input",
    lambda s: rated(
        he_(ConvNet([1, 16, 16, 16], 5)), images(s, 1, 10, 5).mapped(lambda x: x * 10), "SGD", 0.5, 25, momentum=0.9
    ),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD"},
    control=momentum,
)
zoo.sick(
    "sgd-1e-9",
    lambda s: rated(he_(ConvNet([1, 16, 16, 16], 5)), images(s, 1, 10, 5), "SGD", 1e-9, 20, momentum=0.9),
    does_not_move(),
    "SLOW",
    control=momentum,
)
zoo.sick(
    "adam-3",
    lambda s: rated(he_(deep_conv(4, 16)), images(s, size=8), "Adam", 3.0, 20),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    also={"DEAD", "NUMERICAL"},
    control=he_5,
)
zoo.sick(
    "mobile-adamw-0.8",
    lambda s: rated(he_(Mobile([20] * 4, 7)), images(s, 3, 8, 7, 20), "AdamW", 0.8, 20),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "SATURATION"},
    control=mobile,
)
zoo.sick(
    "conv-autoencoder-sgd-60",
    lambda s: rated(ConvCoder(16, 12), pictures(s, 6), "SGD", 60.0, 20),
    diverges(),
    *RUNS_AWAY,
    also={"SATURATION"},
    control=coder,
)
zoo.sick(
    "signal-rmsprop-1e-10",
    lambda s: rated(he_(Signal([4, 20, 20, 20], act=nn.GELU)), waves(s), "RMSprop", 1e-10, 20),
    does_not_move(),
    "SLOW",
    control=signal,
)

# --- jumps


def glitches(seed: int, period: int, size: float) -> Setup:
    """Some batches are brighter by orders of magnitude, as from a broken loader."""
    now = every(period, period - 3)
    task = images(seed, size=8).mapped(lambda x: x * (size if now() else 1))
    return pair(he_(deep_conv(3, 16)), task, steps=40)


zoo.sick(
    "every-ninth-batch-times-100", lambda s: glitches(s, 9, 100.0), gradient_norms_spread(50), *JUMPS, control=he_5
)


def weighed(seed: int, most: float) -> Setup:
    """Samples weigh one over their class's frequency; one class is a hundred thousand times rarer than it was."""
    weights = torch.ones(30)
    weights[11] = most

    def loss(z: Tensor, target: Tensor) -> Tensor:
        return (weights[target] * F.cross_entropy(z, target, reduction="none")).mean()

    task = images(seed, 1, 8, 30, 4, 1.5).with_loss(loss)
    return pair(he_(ConvNet([1, 16, 16], 30, nn.GELU)), task, steps=60)


even = zoo.healthy("30-classes-batch-4", lambda s: weighed(s, 1.0), trains(lr=1e-2, steps=120, fall=0.05))
zoo.sick("one-rare-class-weighs-1e5", lambda s: weighed(s, 1e5), gradient_norms_spread(100), *JUMPS, control=even)
