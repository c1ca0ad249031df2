"""The loss and the data: what goes into the loss, how it starts, whether it moves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Final

from gradient_flow.diagnosis.advice import by_itself
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop.context import CLASSES, ENOUGH, LARGE, REGRESSION, Loop, issue
from gradient_flow.diagnosis.loop.record import LoopLook, LossCall
from gradient_flow.diagnosis.network.depth import vanishing_over_depth
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.diagnosis.robust import beside, fell_beyond_noise, loss_change, median_error
from gradient_flow.diagnosis.words import plain

FIRST_HIGH: Final = 2.25
"""Times the loss of a guess; usual initialisations stay below twice."""
_SURE: Final = 10.0
"""Times the loss of a guess: so sure of wrong answers that also a start which was overcome is worth a word."""
_LEAST_EXCESS: Final = 1.5
"""Above the loss of a guess: with two classes twice of it is soon reached."""
_LEAST_FAR: Final = 20
_FAR, _STILL_FAR, _HALF = 100.0, 10.0, 0.5
"""Times the variance of the targets, at first and now; and what is left of the first loss."""
_LARGE_TARGETS, _ABOVE, _LEFT = 1e4, 1.5, 0.9
"""A variance of targets that steps of ordinary size cannot reach, times it, and what is left of the first loss."""
_NOT_STANDARD, _AWAY_AT_FIRST, _AWAY_STILL = 100.0, 5.0, 2.0
"""A variance of targets that nobody standardised, and times it at first and after `LEAST_STUCK` steps. Rents in euros
came to 5.6 and 2.3, and to 15 and 4.5; of 141 healthy programs that predict numbers none was above 3 and 1.2."""
_PADDED, _AS_OFTEN = 0.3, 1e-3
_SPREAD: Final = 1e3
"""Largest column over the median one."""
LEAST_STUCK: Final = 60
"""Fewest losses from which to say that the loss does not fall."""
_MOSTLY_FROZEN: Final = 0.5
"""Share of all elements that are frozen, from which on a loss that does not fall may be due to them."""
_NOT_FALLEN: Final = 0.97
_NEAR: Final = 0.08
_BETTER, _CLEARLY = 0.03, 4.0
"""Share of the loss of who knows nothing, and errors of a median, by which a loss has to be below it."""
_BEYOND_CHANCE: Final = 4.0
"""Standard errors by which predictions agree with their targets where something of the input is known."""
_GROWN: Final = 3.0
_NEXT_TO_NOTHING: Final = 1e-5
"""Of the last loss."""
_LEAST_THIRD, _FASTER, _AWAY = 15, 1.3, 5.0
"""Losses in a third of a run that falls below zero, by how much each third outdoes the one before, and how many times
the first level the last one is."""
_FEW_STEPS: Final = 3
"""Steps that a message names."""
_MOST_STEPS: Final = 20
"""Steps that the evidence lists."""
_OFTEN_SKIPPED: Final = 0.01
"""Share of steps from which on skipped ones are more than a batch here and there."""
_RISES: Final = 1.05
"""Learning rate over that of two thirds of the way, from which on it counts as rising."""
_LEAP: Final = 3.0
"""Learning rate over that of the step before: no warm-up."""
_LOUDER: Final = 100.0
"""Times the losses around it: that of a batch on another scale. Of programs with one such sample it was 50,000 times or
more; healthy ones that do not learn yet have no such loss."""
_SURE_OF_ALL: Final = 0.1
"""Of the loss of a guess: below it nearly every class is known."""
_AGAIN: Final = 2
"""Steps in which it comes again: a sample of a data set does so with each epoch."""
_LEARNED: Final = 0.7
"""Of the first loss: below it a run gets on in spite of such batches."""
_LARGE_INPUT: Final = 30.0
"""Root mean square of inputs that were not standardised, such as pixels from 0 to 255."""
_LEAST_LABELS: Final = 8
_NEAR_FIRST, _FLARE = 0.2, 3.0
"""Of a loss far above those around it: its share of the first, and how many times the others it is."""


def masked(loop: Loop) -> Iterator[Issue]:
    """Batches of which no label is left: now and then, where the loss is not finite, or always.

    A sum over the labels of a batch that has none is 0, and so is its gradient: such a batch does no harm.
    """
    looks = loop.looks
    without = [look for look in looks if any(c.ignored == 1 for c in look.calls)]
    broken = [look.step for look in without if look.loss is None or not math.isfinite(look.loss)]
    empty = [look.step for look in without] if len(without) == len(looks) else broken
    none = [look for look in looks if look.zero_factor == "labels"]
    lost = [look.step for look in none if look.loss != 0]  # a mean over nothing
    if not empty and not lost and not (looks and len(none) == len(looks)):
        return
    steps = empty or lost or [look.step for look in none]
    found = issue(
        "all_masked",
        IssueSeverity.HIGH,
        f"every label is masked in {len(steps)} of {len(looks)} steps looked at: the loss is "
        f"{'NaN' if broken or lost else '0'}, and nothing is learned from the batch.",
        "prompts that fill the whole sequence, an inverted mask, or labels that are all `ignore_index`.",
        [
            "Count the labels left in each batch, and drop samples without any.",
            "Truncate the prompt rather than the answer; check which value means ignored (-100).",
        ],
        step=steps[0],
        steps=steps,
    )
    yield replace(found, issue_type=IssueType.NUMERICAL) if broken or lost else found


def not_finite(loop: Loop) -> Iterator[Issue]:
    """A loss that is NaN or Inf while gradients are finite, in any recorded step or any look."""
    seen = {look.step for look in loop.looks if look.loss is not None and not math.isfinite(look.loss)}
    bad = sorted(seen | set(loop.run.bad_losses))
    if bad and loop.run.nonfinite is None:
        found = issue(
            "loss_nonfinite",
            # Once, it may be one batch; the step was taken with gradients that are numbers.
            IssueSeverity.MEDIUM if len(bad) == 1 else IssueSeverity.HIGH,
            f"the loss is NaN or Inf in {len(bad):,} of {loop.run.steps:,} steps ({_named(bad)}), though all gradients "
            "are finite.",
            "a mean over no elements, a logarithm or a division whose result is masked afterwards, or a term that is "
            "added for the log alone.",
            [
                "Mask before the logarithm or the division, not after it; drop batches without labels.",
                f"Print each term of the loss at step {bad[0]:,}: the one that is not finite carries no gradient.",
            ],
            step=bad[0],
            steps=bad[:_MOST_STEPS],
        )
        yield replace(found, issue_type=IssueType.NUMERICAL)


def skipped(loop: Loop) -> Iterator[Issue]:
    """A loss that is NaN or Inf, with which the loop takes no step: it knows of it, yet something is bad."""
    before, steps = loop.run.skipped_losses, loop.run.steps
    if before and loop.run.nonfinite is None:
        often = len(before) > _OFTEN_SKIPPED * steps and len(before) > 1
        found = issue(
            "loss_nonfinite",
            IssueSeverity.MEDIUM if often else IssueSeverity.LOW,
            f"the loss was NaN or Inf before {len(before):,} of {steps:,} steps ({_named(before)}), and the loop took "
            "no step with it.",
            "a batch with missing or extreme values, or an operation that overflows on some inputs.",
            ["Look at those batches; gf.find_nonfinite(step_fn, model) names the operation that one of them breaks."],
            step=before[0],
            steps=before[:_MOST_STEPS],
        )
        yield replace(found, issue_type=IssueType.NUMERICAL)


def _named(steps: Sequence[int]) -> str:
    """The first few steps, and how many more there are."""
    more = f" and {len(steps) - _FEW_STEPS:,} more" if len(steps) > _FEW_STEPS else ""
    return f"{', '.join(f'{step:,}' for step in steps[:_FEW_STEPS])}{more}"


def spread(loop: Loop) -> Iterator[Issue]:
    """Predictions and targets whose difference has every pair of them."""
    looks = loop.looks
    calls = [(look, call) for look, call in loop.calls(*REGRESSION, "binary_cross_entropy") if call.shapes]
    shapes = next((call.shapes for _, call in calls), None)
    own = bool(looks) and all(look.spread for look in looks)
    if own or (shapes is not None and {look.step for look, _ in calls} == {look.step for look in looks}):
        made = looks[-1].spread
        left, right = shapes or ([[], []] if len(made) > 2 else [[made[0], 1], [made[0]]])
        have = (
            f"predictions and targets have shapes {tuple(left)} and {tuple(right)}"
            if left
            else f"the difference of predictions and targets has shape {tuple(made)}, more than either of them"
        )
        yield issue(
            "broadcast",
            IssueSeverity.HIGH,
            f"{have}: each prediction is compared with the targets of all samples, and the model learns their mean.",
            "broadcasting expands one along the other.",
            ["Give both the same shape: `output.squeeze(-1)` or `target.unsqueeze(-1)`."],
            step=1,
            shapes=[left, right] if left else [made],
        )


def crossed(loop: Loop) -> Iterator[Issue]:
    """Weights of samples that multiply the losses of all samples, or targets that multiply all predictions."""
    looks = loop.looks
    if looks and all(look.crossed for look in looks):
        made = looks[-1].crossed
        yield issue(
            "broadcast",
            IssueSeverity.HIGH,
            f"a product near the loss has shape {tuple(made)}, for its factors are ({made[0]}, 1) and ({made[0]},): "
            "each sample's loss or prediction is multiplied by the weights or targets of all samples, and none goes "
            "with its own.",
            "broadcasting expands one along the other.",
            ["Give both the same shape: `weights.squeeze(-1) * losses`, `target * output.squeeze(-1)`."],
            step=1,
            shapes=[made],
        )


def constant_targets(loop: Loop) -> Iterator[Issue]:
    """Targets without variance."""
    looks = loop.looks
    if len(looks) < 4 or loop.facts.optimizers > 1 or any(len(look.calls) != 1 for look in looks):
        return
    calls = [look.calls[0] for look in looks]
    of_classes = all(call.function in CLASSES for call in calls)
    if not all(call.of_output and call.distinct == 1 for call in calls):
        return
    if of_classes and median(c.labels or 0 for c in calls) < _LEAST_LABELS:
        return
    if not of_classes and looks[0].samples < _LEAST_LABELS:
        return
    if _flares_up(loop.losses):
        return  # a target that is rare, as one fraud in 250 payments, was in none of the batches looked at
    what = "the target is the same for every sample"
    if of_classes:
        sorted_out = len({call.common for call in calls}) > 1
        what = "each batch has labels of a single class" if sorted_out else f"every label is {calls[0].common}"
    yield issue(
        "constant_targets",
        IssueSeverity.HIGH,
        f"{what} in all {len(looks)} steps looked at: there is nothing to learn but a constant.",
        "the target column was read or encoded wrongly, or the data is sorted by class.",
        ["Print the targets of a few batches; shuffle the data."],
        step=1,
        looks=len(looks),
    )


def _flares_up(losses: Sequence[float]) -> bool:
    """Whether single losses of the later half come near the first again, far above those around them.

    The loss of a constant sinks, to a fiftieth of the first and less; where one sample in 250 is another, the batches
    that hold one come back to half of it.
    """
    late = losses[len(losses) // 2 :]
    return bool(late) and max(late) > max(_NEAR_FIRST * losses[0], _FLARE * median(late))


def padding(loop: Loop) -> Iterator[Issue]:
    """Padding that counts as a label."""
    calls = [(look, call) for look, call in loop.calls(*CLASSES) if _is_padded(look, call)]
    if calls and len({look.step for look, _ in calls}) == len(loop.looks):
        call = calls[-1][1]
        yield issue(
            "padding_labels",
            IssueSeverity.HIGH,
            f"{call.common_share:.0%} of the labels are {call.common}, that of the padding at the end of rows: most of "
            "the loss comes from predicting padding.",
            "padding labels are not ignored.",
            [f"Set padding labels to -100, or pass `ignore_index={call.common}`."],
            step=1,
            token=call.common,
            share=call.common_share,
        )


def _is_padded(look: LoopLook, call: LossCall) -> bool:
    # A label for each token, not one for each row.
    of_tokens = look.pad is not None and (call.labels or 0) >= 2 * look.samples
    # Tags have numbers of their own: that of padding is as frequent as padding itself, to the last token.
    as_often = abs((call.common_share or 0.0) - look.pad_share) < _AS_OFTEN
    same = of_tokens and (call.common == look.pad or as_often)
    return same and look.pad_share >= _PADDED and (call.common_share or 0.0) >= _PADDED


def no_variance(loop: Loop) -> Iterator[Issue]:
    """Rewards that are all the same."""
    looks = loop.looks
    still = loop.facts.zero or not any(look.used for look in looks)
    if looks and still and all(look.zero_factor == "policy" for look in looks):
        what = "the loss is 0" if all(look.loss == 0 for look in looks) else "the policy's part of the loss is 0"
        yield issue(
            "no_reward_variance",
            IssueSeverity.HIGH,
            f"{what} and gradients are exactly zero: the factor on the log-probabilities is zero for every sample.",
            "all rewards of a batch or group are the same, so the advantages are zero.",
            [
                "Look at the rewards: all right, all wrong, or a constant.",
                "Use tasks of mixed difficulty, larger groups, or a graded reward.",
            ],
            step=1,
        )


def class_loss(loop: Loop) -> int | None:
    """Over how many classes the loss is a mean, where the loss is that and little else."""
    for look, call in loop.calls(*CLASSES):
        if call.reduction != "mean" or not call.classes or call.classes < 2 or not call.of_output:
            return None
        if not _is_the_loss(look, call) and not (look.loss is not None and not math.isfinite(look.loss)):
            return None
    calls = loop.calls(*CLASSES)
    return calls[0][1].classes if calls else None


def _is_the_loss(look: LoopLook, call: LossCall) -> bool:
    """Whether the loss of a step is what this function gave, and little else."""
    return look.loss is not None and call.value is not None and abs(look.loss - call.value) <= 0.1 * abs(look.loss)


def _is_high(first: float, guess: float) -> bool:
    return first > max(FIRST_HIGH * guess, guess + _LEAST_EXCESS)


def first_loss(loop: Loop) -> Iterator[Issue]:
    """A first loss far above that of a guess."""
    classes, losses = class_loss(loop), loop.losses
    if classes is None and loop.calls("mse_loss"):
        yield from _far_targets(loop)
    # The weight of positives, which is not known, makes the loss of a guess larger as well: only what is far beyond.
    if classes is None and losses and losses[0] > _SURE * math.log(2) and _is_binary(loop):
        classes = 2
    if classes is None or len(losses) < 3 or any(look.backwards > 1 for look in loop.looks):
        return
    if loop.network is not None and any(layer.matrix and not layer.trainable for layer in loop.network.layers):
        return  # weights that are given: what they say of a new task at first is no fault of theirs
    guess, first = math.log(classes), losses[0]
    if _is_high(first, guess):
        output = loop.network.output_layer if loop.network is not None else "model"
        # A model that has left the guess behind by now got over its start: a remark.
        overcome = first < _SURE * guess and median(losses[-5:]) < guess
        yield issue(
            "first_loss_high",
            IssueSeverity.LOW if overcome else IssueSeverity.MEDIUM,
            f"the first loss is {plain(first)}; a guess among {classes} classes would give {plain(guess)}: the model "
            "starts out sure of wrong answers.",
            "initial weights (of the output or of an embedding) or inputs that are too large.",
            [
                f"Scale the initial weights of `{output}` by {plain(guess / first, 2)} or less; embeddings "
                "start at 0.02.",
                by_itself("Standardise the inputs.", "standardise"),
            ],
            layer=output,
            step=1,
            first=first,
            guess=guess,
        )


def _is_binary(loop: Loop) -> bool:
    """Whether the loss is a mean over answers of yes or no, and little else."""
    calls = loop.calls("binary_cross_entropy_with_logits")
    return bool(calls) and all(
        call.reduction == "mean" and call.of_output and _is_the_loss(look, call) for look, call in calls
    )


def _far_targets(loop: Loop) -> Iterator[Issue]:
    """Targets whose mean is so far from zero that it takes a training of its own to get there."""
    known, losses = uninformed(loop), loop.losses
    if known is None or len(losses) < _LEAST_FAR or not all(_is_the_loss(*each) for each in loop.calls("mse_loss")):
        return
    now = median(losses[-5:])
    far = losses[0] >= _FAR * known and now > _STILL_FAR * known and now > _HALF * losses[0]
    large = known > _LARGE_TARGETS and now > _ABOVE * known and loss_change(losses) > _LEFT
    # It gets there, and has learned nothing else by now: it is still worse than always the mean.
    away = known > _NOT_STANDARD and losses[0] > _AWAY_AT_FIRST * known and now > _AWAY_STILL * known
    if far or large or (away and len(losses) >= LEAST_STUCK):
        yield issue(
            "first_loss_high",
            IssueSeverity.MEDIUM,
            f"the first loss is {plain(losses[0])}, and after {len(losses)} steps it is {plain(now)}; always "
            f"predicting the mean of the targets would give {plain(known)}.",
            "targets far from zero that were not standardised: the model spends its steps on reaching their mean.",
            [
                "Subtract the mean of the targets and divide by their standard deviation; undo both when you predict.",
                "Or start the bias of the output at the mean of the targets.",
            ],
            layer=loop.network.output_layer if loop.network is not None else "model",
            step=1,
            first=losses[0],
            guess=known,
        )


def input_scales(loop: Loop) -> Iterator[Issue]:
    """Columns of the input on wildly different scales."""
    network, losses = loop.network, loop.losses
    layers = [] if network is None else network.layers
    if not layers and loop.run.nonfinite is None:
        return  # of a run that broke at once the batches alone are known
    if layers and "Norm" in layers[0].kind:
        return
    lost = network is not None and _is_drowned(network)
    if losses and loss_change(losses, 10) < 0.5 and min(losses[-10:]) < 0.5 and not lost:
        return
    spread = max([look.columns for look in loop.looks if look.columns is not None], default=0.0)
    inside = network.input_spread if network is not None and network.input_spread > _SPREAD else 0.0
    size = math.nan if network is None else network.input_rms
    classes = class_loss(loop)
    wild = classes is not None and bool(losses) and _is_high(losses[0], math.log(classes))
    if inside or spread > 10 * _SPREAD:
        message = (
            f"columns of the input differ in size by a factor of {plain(max(spread, inside))}: the largest ones "
            "dominate the gradient of the first layer."
        )
    elif size > _LARGE_INPUT and wild:
        message = (
            f"the input has a root mean square of {plain(size)} (1 is good), and the first loss is {plain(losses[0])}."
        )
    elif lost:
        message = (
            f"the input has a root mean square of {plain(size)} (1 is good): what is added to it is lost beside it, "
            "and what normalises it makes its gradient as much smaller."
        )
    else:
        return
    yield issue(
        "input_scales",
        IssueSeverity.HIGH,
        message,
        "inputs that are not standardised.",
        [
            by_itself(
                "Subtract the mean of each column and divide by its standard deviation; take the logarithm of "
                "columns that span orders of magnitude.",
                "standardise",
            )
        ],
        layer=layers[0].name if layers else "model",
        step=1,
        spread=max(spread, inside),
    )


def _is_drowned(network: AnalysisRecord) -> bool:
    """Whether the gradient vanishes by about the size of the inputs, in the first layer or where values are normalised.

    Pixels with a root mean square of 146 made it 693 times smaller.
    """
    faded = next(vanishing_over_depth(network), None)
    layer = network.layer(faded.layer) if faded is not None else None
    if faded is None or layer is None or not network.input_rms > _LARGE_INPUT:
        return False
    here = layer is network.layers[0] or "Norm" in layer.kind
    return here and abs(faded.evidence.get("decades", 0.0) + math.log10(network.input_rms)) < 1


def loud_batches(loop: Loop) -> Iterator[Issue]:
    """Single batches whose loss is far above all others, and whose gradients undo what the others teach.

    The loss of a step is taken before its update: where it is back with the next batch, the weights are not at fault.
    Each such step pulls the model towards that one sample, so that the others' loss stays or grows.
    """
    series = loop.alone
    if series is None or len(series.losses) != len(series.steps) or loop.largest_update > LARGE:
        return  # steps that throw the weights about raise single losses too
    if any(0 < _LEAP * before < after for before, after in pairwise(series.rates)):
        return  # and so does a rate that was raised, also where no look has seen a step
    losses = series.losses
    loud = [at for at in range(len(losses)) if _is_far_louder(losses, at)]
    others = [loss for at, loss in enumerate(losses) if at not in set(loud) and math.isfinite(loss)]
    change = loss_change(others, _LEAST_FAR)
    if len(loud) < _AGAIN or not change > _LEARNED:
        return
    classes = class_loss(loop)
    if classes is not None and max(losses[at] for at in loud) < _SURE_OF_ALL * math.log(classes):
        return  # next to a loss of zero, a sample that is a little less sure stands out
    steps = [series.steps[at] for at in loud]
    times = min(losses[at] / max(beside(losses, at) or (1.0,)) for at in loud)
    found = issue(
        "bad_batch",
        IssueSeverity.HIGH if change > _GROWN else IssueSeverity.MEDIUM,
        f"{len(loud)} of {len(losses)} losses are {plain(times, 2)} times those around them or more (steps "
        f"{_named(steps)}), and all others together go from {plain(median(others[:5]))} to "
        f"{plain(median(others[-5:]))}.",
        "batches with a sample on another scale, as a missing value that is written as a number: their gradients undo "
        "what the others teach.",
        [
            f"Look at the batch of step {steps[0]:,}: its largest and smallest input and target.",
            "Drop or correct such samples; a loss that bears them (`huber_loss`, `smooth_l1_loss`) or a clip of "
            "gradients limits what one of them can do.",
        ],
        step=steps[0],
        spikes_at=steps[:_MOST_STEPS],
        times=times,
        loss_change=change,
    )
    yield replace(found, issue_type=IssueType.UNSTABLE)


def _is_far_louder(losses: Sequence[float], at: int) -> bool:
    """Whether a loss is far above those of the steps next to it, and of a few on either side."""
    sides = beside(losses, at)
    return sides is not None and losses[at] > _LOUDER * max(*sides, losses[at - 1], losses[at + 1])


def grows(loop: Loop) -> Iterator[Issue]:
    """A loss that goes up."""
    losses = loop.losses
    if len(losses) < 20 or loop.facts.optimizers > 1 or loop.largest_update > LARGE:
        return
    change = loss_change(losses, 20)
    half = median(losses[len(losses) // 2 - 2 : len(losses) // 2 + 3])
    supervised = bool(loop.calls(*CLASSES)) or bool(loop.calls("binary_cross_entropy_with_logits"))
    if _is_turned_around(loop):
        yield _climbs(loop, "`backward()` starts from the negative of a loss function: training raises that loss.")
        return
    if _falls_for_ever(loop):
        yield _climbs(
            loop,
            f"the loss falls below zero ever faster, from {plain(losses[0])} to {plain(median(losses[-5:]))}, and "
            "gradients grow with it: it has no lower bound.",
        )
        return
    last = median(losses[-5:])
    # The loss of a policy starts at next to nothing, the mean of advantages, and from there it can only rise.
    upwards = losses[0] > _NEXT_TO_NOTHING * last and change > _GROWN and 0 < losses[0] < half < last
    if upwards and (loop.facts.maximize or supervised or change > 10 * _GROWN):
        yield _climbs(loop, f"the loss rises from {plain(losses[0])} to {plain(last)}, step by step.")


def _climbs(loop: Loop, message: str) -> Issue:
    maximizes = loop.facts.maximize
    return issue(
        "loss_grows",
        IssueSeverity.HIGH,
        message,
        "the optimizer maximises (`maximize=True`)."
        if maximizes
        else "the sign of the loss is flipped, or the learning rate is at the edge of stability.",
        [
            "Leave out `maximize=True`."
            if maximizes
            else "Check the sign of the loss; otherwise lower the learning rate by a factor of 3."
        ],
        step=1,
        loss_change=loss_change(loop.losses),
        maximize=maximizes,
    )


def _falls_for_ever(loop: Loop) -> bool:
    """Whether a loss that is negative from the start runs away from zero: a logarithm of probabilities whose minus was
    forgotten. What can be learned is learned more and more slowly, with smaller gradients.
    """
    series, losses = loop.alone, loop.losses
    third = len(losses) // 3
    if series is None or third < _LEAST_THIRD or max(losses[:third]) >= 0:
        return False
    first, middle, last = (median(losses[at * third : (at + 1) * third]) for at in range(3))
    norms = [norm for norm in series.norms if math.isfinite(norm)]
    part = len(norms) // 3
    faster = first - middle > 0 and middle - last > _FASTER * (first - middle)
    rising = bool(part) and median(norms[-part:]) > _FASTER * median(norms[:part])
    return faster and rising and last < _AWAY * first


def _is_turned_around(loop: Loop) -> bool:
    """Whether backward starts from the negative of the one loss function that is called in a step."""
    if not loop.looks or loop.facts.maximize or any(len(look.calls) != 1 for look in loop.looks):
        return False
    pairs = [(look.loss, look.calls[0]) for look in loop.looks]
    return all(c.of_output and c.value is not None and c.value > 0 and loss == -c.value for loss, c in pairs)


def at_a_guess(loop: Loop) -> tuple[float, float] | None:
    """The loss of the later part of a run and that of a model that knows only how frequent each answer is, where they
    are the same and the loss does not fall."""
    losses = loop.losses
    # At first a model learns how frequent each answer is.
    later = losses[len(losses) // 3 :]
    if len(losses) < LEAST_STUCK or loop.facts.optimizers > 1 or fell_beyond_noise(later) or is_warming_up(loop):
        return None
    level, change = median(later[len(later) // 2 :]), loss_change(later)
    known = uninformed(loop)
    if loop.calls("mse_loss") and fell_beyond_noise(losses):
        return None  # of targets there is no frequency to be learnt first
    if known is None or change < _NOT_FALLEN or not (1 - _NEAR) * known < level < (1 + _NEAR) * known:
        return None
    if level < (1 - _BETTER) * known and known - level > _CLEARLY * median_error(later[len(later) // 2 :]):
        return None  # it knows a little, which may be all that there is to know
    return level, known


def stuck(loop: Loop) -> Iterator[Issue]:
    """A loss that stays at the level of a model that knows only how frequent each answer is."""
    found = at_a_guess(loop)
    if found is None or _knows_something(loop):
        return  # noise may hide in the loss what predictions show
    level, known = found
    rests = loop.facts.frozen_share > _MOSTLY_FROZEN
    straight = min((look.linear_layers for look in loop.looks), default=0)
    if straight > 1:
        yield issue(
            "loss_stuck",
            IssueSeverity.MEDIUM,
            f"after {len(loop.losses)} steps the loss is {plain(level)}, no better than that of a model that ignores "
            f"its input ({plain(known)}). Its {straight} layers have no activation between them, so that it is linear.",
            "what is to be learned is no linear function of the input, and layers without an activation between them "
            "are one linear layer.",
            ["Put an activation (`nn.ReLU()`, `nn.GELU()`) between the layers, behind all but the last."],
            step=1,
            level=level,
            uninformed=known,
            linear_layers=straight,
        )
        return
    yield issue(
        "loss_stuck",
        IssueSeverity.MEDIUM,
        f"after {len(loop.losses)} steps the loss is {plain(level)}, no better than that of a model that ignores its "
        f"input ({plain(known)}), and it does not fall."
        + (f" {loop.facts.frozen_share:.0%} of the model's elements are frozen." if rests else ""),
        ("frozen layers whose features say nothing about the targets; " if rests else "")
        + "inputs and targets that do not match (shuffled separately, off by one), inputs without information, or "
        "a model that ignores them.",
        [
            *(["Unfreeze the last of the frozen layers, and give them to the optimizer."] if rests else []),
            "Check that a handful of samples have the right targets, after every transformation.",
            "Try to fit one batch: if that works, the data is at fault; if not, the model or the loop.",
        ],
        step=1,
        level=level,
        uninformed=known,
        frozen_share=loop.facts.frozen_share,
    )


def hides_in_noise(loop: Loop) -> bool:
    """Whether a loss is that of a guess, and predictions go with their targets all through the run: what is learned is
    small against what nobody can know of the targets."""
    known, losses = uninformed(loop), loop.losses
    near = known is not None and bool(losses) and median(losses[len(losses) // 2 :]) < (1 + _NEAR) * known
    return near and _agree(loop.looks)


def _knows_something(loop: Loop) -> bool:
    """Whether predictions go with their own targets, in the later half of the looks together, beyond chance."""
    return _agree(loop.looks[len(loop.looks) // 2 :])


def _agree(looks: Sequence[LoopLook]) -> bool:
    known = [call.agreement for look in looks for call in look.calls if call.of_output and call.agreement is not None]
    return len(known) >= ENOUGH and sum(known) > _BEYOND_CHANCE * math.sqrt(len(known))


def is_warming_up(loop: Loop) -> bool:
    """Whether the learning rate still rises: what a loss does not do yet at a small one says nothing."""
    rates = [] if loop.alone is None else loop.alone.rates
    return bool(rates) and rates[-1] == max(rates) and rates[-1] > _RISES * rates[2 * len(rates) // 3]


def uninformed(loop: Loop) -> float | None:
    """The loss of who knows the frequencies of labels, or the mean of targets."""
    if class_loss(loop) is not None:
        found = [call.entropy for _, call in loop.calls(*CLASSES) if call.entropy is not None]
        return median(found) if found else None
    binary = [call for _, call in loop.calls("binary_cross_entropy_with_logits", "binary_cross_entropy")]
    if binary and all(call.reduction == "mean" and call.of_output and call.entropy is not None for call in binary):
        return median(call.entropy or 0.0 for call in binary)
    calls = [call for _, call in loop.calls("mse_loss") if call.reduction == "mean" and call.of_output]
    variances = [call.variance for call in calls if call.variance]
    return median(variances) if variances and len(variances) == len(calls) else None
