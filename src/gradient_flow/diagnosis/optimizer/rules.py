"""Rules on the state of an optimizer. Each names the number that is wrong, and one that is better."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop.context import LARGE, Loop
from gradient_flow.diagnosis.optimizer.record import HALF, StateLook, TensorState
from gradient_flow.diagnosis.robust import fell_beyond_noise, is_solved, loss_change
from gradient_flow.diagnosis.words import plain
from gradient_flow.record.event import RESUMED

ENOUGH: Final = 3
"""Looks that have to agree."""
EPS_RULES: Final = 0.8
"""Of the denominator of Adam: with this much eps, a step is five times smaller than it was meant to be."""
EPS_SEEN: Final = 0.5
SMALL_UPDATE: Final = 2e-3
"""Of the size of a weight matrix, per step: programs with an eps that is too large stay below. Those with a large eps
and the rate that it needs came to 6.5e-3 or more."""
CRAWLS: Final = 1 / 3
"""A loss that has not fallen below this share of its first, in a run whose steps are small: with an eps that was too
large, 0.37 or more was left after 90 steps."""
LEAST_EPS: Final = 40
"""Losses from which on a run that crawls can be told from one that has just begun."""
STALE: Final = 2.5
"""Gradients over the root of their second moment, as a root mean square. Ordinary runs stay below 1.4; one in ten comes
to 2 now and then, and harder data that follow easy ones, which raise the loss as well, to 2.3."""
VERY_STALE: Final = 4.0
SHORT: Final = 100.0
"""Steps that a second moment averages over: a shorter memory has caught up after as many. Where the weight of a loss
rose to a hundred times its size, a beta2 of 0.95 was behind by 4.4 at one look, or at two within three steps."""
FAR_TOO_STALE: Final = 10.0
"""Steps that are so many times too large, in as many looks as have to agree, under a loss that does not fall."""
UNDONE: Final = 0.1
"""Of what a loss has fallen since the first step, what a rise has to undo to be more than a step that went astray."""
LOST: Final = 0.7
LOST_SEEN: Final = 0.5
"""Shares of elements in 16 bits whose step is below half the spacing of numbers. Programs that lost their updates came
to 0.78 or more in the middle, those that learn to 0.4 at most."""
HALVED: Final = 0.5
"""Of its first: a loss that has fallen so far has got on in spite of it."""
UNDERFLOW: Final = 0.02
"""Share of elements with a first moment and no second one."""
UNDERFLOWN: Final = 0.5
"""The same, from which on Adam is no Adam any more: it divides most gradients by eps alone."""
HALF_EPS: Final = 2.0**-25
"""What is smaller is zero in float16."""
DECAYS: Final = 0.8
"""What weight decay takes off, over how far the gradient moves. Programs under a decay that is too large came to 0.99
or more, a healthy one under a large decay to 0.62, and most others to less than 0.15."""
HELD: Final = DECAYS
"""The same, for weights that stay as small as a decay has made them. Steps that point anywhere balance it at far less:
at the root of half the share of a weight that a step takes off."""
SHRINKS: Final = -1e-3
"""Change of the norm of the weights by one step."""
FORGETS: Final = 0.01
"""Share of a weight that a decoupled decay takes off in each step: what was learned 100 steps ago is gone. Usual is a
ten-thousandth."""
USUAL_DECAY: Final = 0.1
USUAL_COUPLED: Final = 0.01
"""A decay that is added to the gradient is usually 0.0001 to 0.0005."""
LONG_MEMORY: Final = 0.98
"""A momentum from which on the memory is longer than 50 steps."""
ACROSS: Final = 0.2
"""Cosine of momentum and gradient: ordinary runs are above it, unless batches are noisy."""
NEVER_FORGETS: Final = 3.0
"""A memory that is this many times as long as the run: nothing of its first steps is forgotten."""
LITTLE: Final = 0.85
"""A loss that has not fallen below this share of its first."""
LEAST_LOSSES: Final = 30


def eps_rules(loop: Loop) -> Iterator[Issue]:
    """Adam divides by eps rather than by the size of gradients."""
    for looks in _by_optimizer(loop, "eps_share"):
        shares = [look.eps_share or 0.0 for look in looks]
        last = looks[-1]
        if min(shares) < EPS_SEEN or median(shares) < EPS_RULES or not last.root_second or not last.eps:
            continue
        slower = 1 / max(1 - median(shares), 1e-9)
        small = loop.typical_update < SMALL_UPDATE and not is_solved(loop.losses)
        crawls = small and loss_change(loop.losses, LEAST_EPS) > CRAWLS
        begun = len(loop.losses) < LEAST_EPS
        better = _below(last.root_second)
        yield _issue(
            "eps_rules",
            IssueSeverity.MEDIUM if crawls else IssueSeverity.LOW if begun else _if_idle(loop),
            f"eps ({plain(last.eps)}) is {median(shares):.0%} of what {last.name} divides by, because gradients are "
            f"only about {plain(last.root_second or 0.0, 2)}: its steps are {plain(slower)} times smaller than the "
            "learning rate suggests.",
            "an eps that is too large for these gradients, or a loss that was scaled down.",
            [
                f"Set eps={better:g}, which is a thousandth of the usual gradient.",
                f"Or multiply the loss by {_power_above(100 * last.eps / last.root_second):g}; that changes nothing "
                f"else for {last.name}.",
            ],
            loop,
            worst=_worst(loop, "eps_share"),
            eps=last.eps,
            eps_share=median(shares),
            root_second=last.root_second,
        )


def stale(loop: Loop) -> Iterator[Issue]:
    """Gradients have grown faster than the second moment learns, so that steps are too large."""
    for looks in _by_optimizer(loop, "stale", least=1):
        high = [look for look in looks if (look.stale or 0.0) >= STALE and (look.age or 0) > 2]
        if not high:
            continue
        worst = max(high, key=lambda look: look.stale or 0.0)
        rate = worst.rate or 0.0
        memory = 1 / (1 - worst.beta2) if worst.beta2 is not None and worst.beta2 < 1 else math.inf
        caught_up = memory < SHORT and high[-1].step - high[0].step < memory
        rose = _rose_after(loop, worst.step) and not is_solved(loop.losses) and not caught_up
        severity = IssueSeverity.LOW
        lasts = sum((look.stale or 0.0) >= FAR_TOO_STALE for look in high) >= ENOUGH
        if rose:
            severity = IssueSeverity.HIGH if (worst.stale or 0.0) >= VERY_STALE else IssueSeverity.MEDIUM
        elif lasts and _not_lower_after(loop, worst.step) and not is_solved(loop.losses):
            severity = IssueSeverity.MEDIUM
        yield _issue(
            "stale_second_moment",
            severity,
            f"at step {worst.step} gradients were {plain(worst.stale or 0.0, 2)} times the root of their "
            "second moment (1 is usual)"
            + (", and the loss rose after it." if rose else ".")
            + f" With beta2 = {worst.beta2:g}, {worst.name} averages over about {memory:,.0f} steps.",
            "the second moment lags behind the gradients: steps are too large until it catches up.",
            [
                f"Lower beta2 to {_faster(worst.beta2):g}.",
                "Clip gradients by their norm, a little above the usual one.",
                f"Or divide the learning rate of such a step by this ratio "
                f"({plain(rate)} → {plain(rate / (worst.stale or 1), 2)} here), as StableAdamW does.",
            ],
            loop,
            step=high[0].step,
            worst=_worst(loop, "stale"),
            stale=worst.stale,
            beta2=worst.beta2,
            looks=len(high),
        )


def underflow(loop: Loop) -> Iterator[Issue]:
    """Second moments that are zero because 16 bits cannot hold a square that small."""
    half = [state for state in loop.states.tensors if state.dtype == "float16"]
    if not any(state.dtype in HALF for state in loop.states.tensors):
        return  # in 32 bits only gradients below 1e-22 do that, and they have a cause of their own
    for looks in _by_optimizer(loop, "underflow", least=2):
        share = max(look.underflow or 0.0 for look in looks)
        eps = looks[-1].eps or 0.0
        no_eps = bool(half) and eps < HALF_EPS
        # A gradient that is not finite in the first step is no work of an optimizer that has not stepped yet.
        broke = loop.run.nonfinite is not None and loop.run.nonfinite.step > 1
        if share < UNDERFLOW and not (no_eps and broke):
            continue
        what = f"{share:.0%} of the second moments are zero where there is a gradient"
        # Of a run that is done gradients may well be that small.
        mostly = median(look.underflow or 0.0 for look in looks) >= UNDERFLOWN and not is_solved(loop.losses)
        lesser = max(_if_idle(loop, idle=IssueSeverity.HIGH), IssueSeverity.MEDIUM if mostly else IssueSeverity.LOW)
        yield _issue(
            "second_moment_underflow",
            IssueSeverity.CRITICAL if broke else lesser,
            (what if share >= UNDERFLOW else "second moments are kept in float16")
            + (f", and eps ({plain(eps)}) is zero in float16 too: steps are divided by zero." if no_eps else ".")
            + (f" The first NaN came at step {loop.run.nonfinite.step}." if broke and loop.run.nonfinite else ""),
            "weights in float16 have moments in float16, and the square of a gradient below 2e-4 is zero there.",
            [
                "Keep weights and optimizer state in float32, and compute in float16 with `torch.autocast`.",
                "Or use bfloat16, which has the range of float32. At the least set eps=1e-4.",
            ],
            loop,
            step=loop.run.nonfinite.step if broke and loop.run.nonfinite else looks[0].step,
            worst=_worst(loop, "underflow") or (half[0] if half else None),
            underflow=share,
            eps=eps,
        )


def lost(loop: Loop) -> Iterator[Issue]:
    """Weights in 16 bits whose steps are below the spacing of numbers."""
    for looks in _by_optimizer(loop, "lost"):
        share = median(look.lost or 0.0 for look in looks)
        last = looks[-1]
        if share < LOST_SEEN or last.low_precision < LOST_SEEN:
            continue
        states = [state for state in loop.states.tensors if state.lost is not None]
        kind = next((state.dtype for state in states), "bfloat16")
        needed = median([look.needed for look in looks if look.needed is not None] or [1.0])
        severity = IssueSeverity.LOW if share < LOST else _if_idle(loop, idle=IssueSeverity.HIGH)
        if share >= LOST and loss_change(loop.losses, LEAST_LOSSES) > HALVED and not is_solved(loop.losses):
            severity = max(severity, IssueSeverity.MEDIUM)
        rate = last.rate or 0.0
        advice = [
            "Keep the weights in float32 (master weights), and compute in bfloat16 with `torch.autocast`.",
            "Or use stochastic rounding (as in torchao's optimizers), which loses nothing on average.",
        ]
        if needed > 1 and rate:
            advice.append(
                f"Half of the elements would move at a learning rate of {plain(rate * needed, 2)} (now {plain(rate)})."
            )
        yield _issue(
            "lost_updates",
            severity,
            f"{share:.0%} of the weights never move, though they have gradients: a step is less than half the spacing "
            f"of {kind} numbers, so it is rounded away.",
            f"weights are trained in {kind}, which has {'three' if kind == 'float16' else 'two'} to three digits.",
            advice,
            loop,
            worst=_worst(loop, "lost"),
            lost=share,
            needed=needed,
        )


def decays(loop: Loop) -> Iterator[Issue]:
    """Weight decay takes off more than gradients put on."""
    for looks in _by_optimizer(loop, "decay"):
        ratio = median(look.decay or 0.0 for look in looks)
        shrinks = median(look.growth or 0.0 for look in looks)
        last = looks[-1]
        forgets = last.decoupled and (last.rate or 0.0) * last.weight_decay >= FORGETS and not is_solved(loop.losses)
        # Soon such weights are so small that gradients put on what is taken off, and shrink no more.
        held = forgets and ratio >= HELD
        if not (ratio >= DECAYS and shrinks <= SHRINKS) and not held:
            continue
        usual = USUAL_DECAY if last.decoupled else USUAL_COUPLED
        if not last.weight_decay or (last.weight_decay <= usual and loop.largest_update > LARGE):
            continue  # a usual decay that takes off so much does it by a rate that is too high
        better = last.weight_decay * 0.1 / ratio
        stays = loss_change(loop.losses, LEAST_LOSSES) > HALVED and not is_solved(loop.losses)
        how = "takes off each step" if last.decoupled else "adds to the gradient"
        taken = (last.rate or 0.0) * last.weight_decay
        yield _issue(
            "decay_dominates",
            max(
                _if_idle(loop, idle=IssueSeverity.HIGH), IssueSeverity.MEDIUM if forgets or stays else IssueSeverity.LOW
            ),
            f"what a weight decay of {last.weight_decay:g} {how} is {plain(ratio, 2)} times what the loss asks for: "
            + (
                f"weights shrink by {-shrinks:.1%} per step."
                if shrinks <= SHRINKS
                else f"weights lose {taken:.1%} per step, and what was learned {plain(1 / taken, 2)} steps ago is gone."
            ),
            "the weight decay is too large for these gradients.",
            [f"Lower the weight decay to {_round(better):g} or less (usual: 0.01 to 0.1, decoupled)."],
            loop,
            worst=_worst(loop, "decay"),
            decay=ratio,
            growth=shrinks,
            weight_decay=last.weight_decay,
        )


def betas(loop: Loop) -> Iterator[Issue]:
    """The first moment remembers longer than the second: both numbers may have been swapped."""
    for looks in _by_optimizer(loop, "beta2"):
        last = looks[-1]
        first, second = last.beta1 or 0.0, last.beta2 or 0.0
        if first <= second or second == 0:
            continue
        yield _issue(
            "betas_swapped",
            _if_idle(loop),
            f"betas are ({first:g}, {second:g}): the mean of gradients goes back {1 / (1 - min(first, 1 - 1e-9)):,.0f} "
            f"steps and that of their squares {1 / (1 - second):,.0f}, so that an old direction is divided by a new "
            "size.",
            "the two numbers were swapped.",
            [f"Use betas=({second:g}, {first:g}), or the usual (0.9, 0.999)."],
            loop,
            beta1=first,
            beta2=second,
        )


def long_momentum(loop: Loop) -> Iterator[Issue]:
    """A momentum that remembers so long that it runs across the gradient.

    Of Adam, which divides by the size of gradients, only where it forgets nothing of the whole run: with a beta1 of
    0.998 the middle cosine was 0.15 or less in three programs that ended above their twins with 0.9, and 0.66 or more
    in one that learns as it should, at a sixth of their rate. Once a task is done gradients are noise, and across any
    momentum: there it counts if it was so in the first looks already (below 0.1 in the middle; 0.7 to 0.9 in the one
    that learns).
    """
    for looks in _by_optimizer(loop, "cosine"):
        last = looks[-1]
        momentum = last.beta1 or 0.0
        cosines = [look.cosine or 0.0 for look in looks]
        later = cosines[len(cosines) // 2 :]
        memory, rate = 1 / max(1 - momentum, 1e-9), last.rate or 0.0
        fails = is_idle(loop) or loop.run.nonfinite is not None
        from_the_start = median(cosines[: len(cosines) // 2] or later) <= ACROSS
        whole = memory > NEVER_FORGETS * last.own and len(loop.losses) >= LEAST_LOSSES
        whole = whole and (from_the_start or not is_solved(loop.losses))
        across = momentum >= LONG_MEMORY and median(later) <= ACROSS
        divides = last.beta2 is not None
        if not across or not (whole or (fails and not divides)):
            continue
        yield _issue(
            "momentum_too_long",
            IssueSeverity.MEDIUM,
            f"the momentum ({momentum:g}) adds up {memory:,.0f} gradients, has a cosine of {median(later):.2f} with "
            + (
                "the present one, and the loss does not fall."
                if fails and not divides
                else "the present one, and forgets none of them."
            ),
            f"with so long a memory {last.name} goes on in the direction of its first steps."
            if divides
            else f"with so long a memory a learning rate of {plain(rate)} acts like one of {plain(rate * memory)}.",
            [
                f"Use a beta1 of 0.9: betas=(0.9, {last.beta2:g}).",
                f"Or lower the learning rate to a tenth ({_round(rate / 10):g}), at which gradients turn more slowly.",
            ]
            if divides
            else [
                "Use a momentum of 0.9.",
                f"Or lower the learning rate to {_round(rate * 10 / memory):g}, which gives it the effect it has at "
                "0.9.",
            ],
            loop,
            momentum=momentum,
            cosine=median(later),
        )


def reset(loop: Loop) -> Iterator[Issue]:
    """A state that starts over again and again."""
    if any(event.kind == RESUMED for event in loop.run.events):
        return
    for looks in _by_optimizer(loop, "age"):
        young = [look for look in looks if (look.age or 0) <= look.own / 2]
        # A state that starts anew once, for a second phase, say, is young for a while, and has one beginning.
        if len(young) < ENOUGH or len({look.own - (look.age or 0) for look in young}) < 2:
            continue
        last = young[-1]
        yield _issue(
            "state_reset",
            IssueSeverity.MEDIUM,
            f"after {last.own} steps the state of {last.name} has seen only {last.age} of them: its moments are "
            "reset again and again.",
            "the state is cleared, or an old one is loaded, inside the loop.",
            ["Create the optimizer once, before the loop, and load its state there."],
            loop,
            step=young[0].step,
            age=last.age,
            own_steps=last.own,
        )


def _by_optimizer(loop: Loop, name: str, least: int = ENOUGH) -> Iterator[list[StateLook]]:
    """Of each optimizer the looks that have this number."""
    for number in sorted({look.optimizer for look in loop.states.looks}):
        looks = [look for look in loop.states.of(number) if getattr(look, name) is not None]
        if len(looks) >= least:
            yield looks


def is_idle(loop: Loop) -> bool:
    """Whether the loss has hardly fallen. A run without losses says nothing."""
    losses = loop.losses
    if len(losses) < LEAST_LOSSES or is_solved(losses):
        return False
    return loss_change(losses) > LITTLE or not fell_beyond_noise(losses)


def _if_idle(loop: Loop, idle: IssueSeverity = IssueSeverity.MEDIUM) -> IssueSeverity:
    """A remark while the loss falls all the same."""
    return idle if is_idle(loop) else IssueSeverity.LOW


def _rose_after(loop: Loop, step: int) -> bool:
    earlier, after = _around(loop, step)
    before = earlier[-10:]
    if len(before) < 5 or len(after) < 3 or not median(after) > 1.2 * median(before) > 0:
        return False
    if not median(after) > max(before):
        return False  # batches differ by as much
    if median(after) - median(before) < UNDONE * (loop.losses[0] - median(before)):
        return False  # next to nothing of what was learned: steps wander about like that at the end of a run
    # A loss that was already rising raises its gradients too: then this step is not the cause.
    half = len(earlier) // 2
    return median(earlier[half:]) <= 1.1 * median(earlier[:half])


def _not_lower_after(loop: Loop, step: int) -> bool:
    earlier, after = _around(loop, step)
    return len(earlier) >= 5 and len(after) >= 3 and median(after) >= median(earlier[-10:])


def _around(loop: Loop, step: int) -> tuple[list[float], list[float]]:
    """Finite losses before a step and after it: twenty and ten, where there are as many."""
    series = loop.alone
    if series is None or not series.losses:
        return [], []
    pairs = [(at, loss) for at, loss in zip(series.steps, series.losses, strict=True) if math.isfinite(loss)]
    return [loss for at, loss in pairs if at < step][-20:], [loss for at, loss in pairs if at > step][:10]


def _worst(loop: Loop, name: str) -> TensorState | None:
    known = [state for state in loop.states.tensors if getattr(state, name) is not None]
    return max(known, key=lambda state: (getattr(state, name), state.elements), default=None)


def _issue(
    code: str,
    severity: IssueSeverity,
    message: str,
    cause: str,
    advice: Sequence[str],
    loop: Loop,
    *,
    step: int | None = None,
    worst: TensorState | None = None,
    **evidence: Any,
) -> Issue:
    """An issue of the optimizer. Its layer is the whole model, unless the tensors differ much."""
    if worst is not None:
        evidence["worst"] = worst.name
    first = loop.states.looks[0].step if loop.states.looks else None
    return Issue(
        issue_type=IssueType.OPTIMIZER,
        severity=severity,
        layer="model",
        message=message,
        evidence=evidence,
        cause=cause,
        advice=list(advice),
        step=first if step is None else step,
        code=code,
    )


def _below(size: float) -> float:
    """A power of ten, a thousandth of the size or less.

    >>> _below(3e-6)
    1e-09
    """
    return float(f"1e{math.floor(math.log10(size)) - 3}")


def _power_above(factor: float) -> float:
    """The next power of ten, at least 1.

    >>> _power_above(300.0)
    1000.0
    """
    return float(f"1e{math.ceil(math.log10(max(factor, 1.0)))}")


def _round(value: float) -> float:
    """To one digit.

    >>> _round(0.0234)
    0.02
    """
    return float(f"{value:.0e}")


def _faster(beta2: float | None) -> float:
    """A second moment that remembers a tenth of the steps, at least 20.

    >>> _faster(0.999), _faster(0.9999), _faster(0.95)
    (0.99, 0.999, 0.9)
    """
    known = 0.999 if beta2 is None else beta2
    return round(max(0.9, 1 - 10 * (1 - min(known, 1 - 1e-9))), 6)
