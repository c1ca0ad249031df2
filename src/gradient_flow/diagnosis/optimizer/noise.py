"""The gradient noise scale: how large a batch may be before its samples say the same again (arXiv 1812.06162)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop import data
from gradient_flow.diagnosis.loop.context import CLASSES, LARGE, Loop
from gradient_flow.diagnosis.optimizer.record import NoiseLook
from gradient_flow.diagnosis.optimizer.rules import LEAST_LOSSES, is_idle
from gradient_flow.diagnosis.robust import loss_change
from gradient_flow.diagnosis.words import plain

LEAST: Final = 5
"""Looks over which numerator and denominator are averaged: of one alone they may even be negative."""
FAR: Final = 8.0
"""Times the batch, up or down, from which on it is worth a remark."""
FEW: Final = 8
"""Samples in a step up to which noise is what keeps a loss from falling."""


NOTHING: Final = 0.1
TURNS: Final = -0.25
"""Cosines of momentum and gradient between which they have no direction in common. Steps that are too long go back and
forth, and are below."""
FEW_LABELS: Final = 64
"""Labels in a step: few samples may have many, as texts and pictures do."""
STAYS: Final = 0.9
"""Of the first loss. Noise that hides a fall hides it less in medians: one that learns from two samples a step came to
0.67, those that do not to 1.05 or more."""
NO_BETTER: Final = 0.7
"""Of the variance of targets, which is measured on a handful: a loss that is not below tells nothing of them."""


@dataclass(frozen=True)
class Noise:
    """Trace of the covariance of a sample's gradient, and the squared length of the true gradient."""

    covariance: float
    squared: float

    @property
    def scale(self) -> float:
        """In samples: batches far below it are mostly noise, batches far above it mostly repeat themselves."""
        return self.covariance / self.squared if self.squared > 0 else float("inf")


def noise_of(small: float, large: float, few: float, many: float) -> Noise:
    """From the squared norms of the gradients of a small and a large batch, without bias.

    E‖g_b‖² = ‖G‖² + tr(Σ) / b, for two sizes b, is two equations for two unknowns.

    >>> noise_of(small=1 + 40 / 4, large=1 + 40 / 32, few=4, many=32)
    Noise(covariance=40.0, squared=1.0)
    """
    covariance = (small - large) / (1 / few - 1 / many)
    return Noise(covariance, (many * large - few * small) / (many - few))


def together(looks: Sequence[NoiseLook]) -> Noise | None:
    """Over several looks; None where there are too few."""
    if len(looks) < LEAST:
        return None
    each = [noise_of(look.small, look.large, look.few, look.many) for look in looks]
    return Noise(sum(noise.covariance for noise in each) / len(each), sum(noise.squared for noise in each) / len(each))


def batch_size(loop: Loop) -> Iterator[Issue]:
    """A batch that is far too small, or larger than needed: the gravest that is known of it."""
    yield from sorted([*_by_scale(loop), *_few_samples(loop)], key=lambda issue: -issue.severity)[:1]


def _by_scale(loop: Loop) -> Iterator[Issue]:
    """A remark on the size of the batch, from the micro-batches that it is made of."""
    looks = loop.states.noise
    noise = together(looks)
    if noise is None or noise.covariance <= 0:
        return
    batch, scale = looks[-1].many, noise.scale
    small = scale > batch
    stops = small and batch <= FEW and is_idle(loop)
    if batch / FAR <= scale <= batch * FAR or (scale == math.inf and not stops):
        return  # of a few looks, that they have no direction in common is chance, unless nothing is learned either
    yield Issue(
        issue_type=IssueType.OPTIMIZER,
        severity=IssueSeverity.MEDIUM if stops else IssueSeverity.LOW,
        layer="model",
        message=(
            f"the gradient noise scale is {_samples(scale)}, and a step uses {batch:,.0f}: "
            if scale < math.inf
            else f"a step uses {batch:,.0f} samples whose gradients have no direction in common: "
        )
        + ("gradients are mostly noise" if small else "most samples in a batch repeat what the others say")
        + (", and the loss does not fall." if stops else "."),
        evidence={"noise_scale": scale, "batch": batch, "looks": len(looks)},
        cause=f"the batch is {'too small' if small else 'larger than needed'} for what is left to learn.",
        advice=[
            f"A batch of up to {_round(scale)} samples, with a larger rate, needs fewer steps for the same loss."
            if small and scale < math.inf
            else f"Use batches of {_round(16 * batch)} samples or more, or a far lower rate."
            if small
            else f"A batch of {_round(scale)} to {_round(4 * scale)} samples learns nearly as much from each step."
        ],
        step=looks[0].step,
        code="batch_size",
    )


def _samples(scale: float) -> str:
    return "below one sample" if scale < 1 else f"about {scale:,.0f} samples"


def _few_samples(loop: Loop) -> Iterator[Issue]:
    """Steps of a handful of samples whose gradients have nothing in common with the steps before, where a loss is no
    better than a guess and has not fallen.

    Of seven programs with batches of one to four the middle cosine of momentum and gradient was between -0.18 and 0.03;
    healthy ones with up to eight samples had a loss that falls.
    """
    samples, guess, losses = _samples_of_a_step(loop), _guess(loop), loop.losses
    cosines = [look.cosine for look in loop.states.looks if look.cosine is not None]
    if not 0 < samples <= FEW or guess is None or len(losses) < LEAST_LOSSES or len(cosines) < LEAST:
        return
    level = median(losses[len(losses) // 2 :])
    if level < guess[0] or loss_change(losses) < STAYS or not is_idle(loop) or loop.largest_update > LARGE:
        return
    if not TURNS <= median(cosines) <= NOTHING:
        return
    yield Issue(
        issue_type=IssueType.OPTIMIZER,
        severity=IssueSeverity.MEDIUM,
        layer="model",
        message=f"a step uses {samples:,} sample{'s' if samples > 1 else ''}, whose gradient has nothing in common "
        f"with the steps before (cosine {median(cosines):.2f}): gradients are mostly noise, and the loss is "
        f"{plain(level)}, no better than {guess[1]}.",
        evidence={"batch": samples, "cosine": median(cosines), "looks": len(cosines), "noise_scale": math.inf},
        cause="a batch that is small for what there is to learn.",
        advice=[f"Use batches of {_round(16 * samples)} samples or more, or a far lower rate."],
        step=loop.states.looks[0].step,
        code="batch_size",
    )


def _samples_of_a_step(loop: Loop) -> int:
    """Of all its micro-batches."""
    if loop.states.noise:
        return round(loop.states.noise[-1].many)
    return max((look.samples * max(1, look.backwards) for look in loop.looks), default=0)


def _guess(loop: Loop) -> tuple[float, str] | None:
    """The loss of who knows nothing, and who that is; None where the loss is not that of labels or targets."""
    labelled = [call for _, call in loop.calls(*CLASSES)]
    classes = {call.classes for call in labelled}
    known = classes.pop() if len(classes) == 1 else None
    if known is not None and known > 1:
        plain_ones = all(call.of_output and call.reduction == "mean" for call in labelled)
        few = max(call.labels or 0 for call in labelled) <= FEW_LABELS
        guess = math.log(known)
        return (guess, f"a guess among {known} classes ({plain(guess)})") if plain_ones and few else None
    variance = data.uninformed(loop) if loop.calls("mse_loss") else None
    if not variance:
        return None
    return NO_BETTER * variance, f"the mean of the targets ({plain(variance)})"


def _round(value: float) -> str:
    """To one digit.

    >>> _round(1234.0)
    '1,000'
    """
    return f"{float(f'{max(value, 1.0):.0e}'):,.0f}"
