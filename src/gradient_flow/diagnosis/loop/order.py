"""The loop itself: `zero_grad`, `backward` and `step` in the wrong order or left out, modes, batches, schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity
from gradient_flow.diagnosis.loop import data
from gradient_flow.diagnosis.loop.context import ENOUGH, Loop, issue, module_of, some
from gradient_flow.diagnosis.robust import fell_beyond_noise, is_solved, loss_change
from gradient_flow.diagnosis.words import plain
from gradient_flow.record.event import MODE, MOST_MODES, RESUMED

_USUALLY: Final = 0.6
"""Share of looks: gradients that are cleared once per epoch are seen cleared now and then."""
_WASTED: Final = 2
"""Backward passes that are lost at each step."""
_MOST_STALE: Final = 0.9
"""Share of the gradients that are old from which on all are."""
UNDONE: Final = 0.6
"""Share of a step that is taken back; a bound on weights takes back some of it."""
_OFTEN_SET_BACK, _FALLEN = 4, 0.7
"""Times that the very same weights were loaded again, and the share of the first loss below which it has fallen all the
same. Loops that undid their steps every 4 to 8 of them kept 0.8 of it or more."""
_HELD_BACK, _STAYS = 0.3, 0.95
"""Share of every step that a bound takes back, and of the first loss that is left, where it keeps a model from
learning. Of healthy programs none had more than 0.1 of a step taken back; weights clamped at 0.01 came to 0.4 to 0.9.
"""
_MANY: Final = 5
_FEWEST, _MOST = 8, 128
"""Samples of a batch that is probably not all the data there is: fewer are a toy, more may well be."""
_BY_HEART: Final = 0.5
"""Of the first losses, where a batch is learnt by heart."""
_ENDED: Final = 0.9e-3
"""Of the largest rate: below it a schedule is over. A cosine is there for its last fiftieth, and ten to the minus third
is where three falls by ten lead."""
_LONG: Final = 0.3
_LEAST_STEPS: Final = 10
_BELOW_ZERO: Final = 1e-3
"""Of the largest rate: what is less below zero is rounding at the end of a schedule."""
_WAY_BACK: Final = 0.05
"""Of all rates above zero, those below: a schedule of 100 steps that ends one late has a ten-thousandth."""


def no_gradients(loop: Loop) -> Iterator[Issue]:
    """Steps without gradients: a loss that is cut off, or gradients that are cleared before they are used."""
    looks, facts = loop.looks, loop.facts
    if not looks or not facts.held:
        return
    if any(look.used for look in looks):
        yield from _cut_off_later(loop)
        return
    if all(look.brought for look in looks):
        early = all(look.order.startswith("B") for look in looks)
        yield issue(
            "step_before_backward" if early else "zero_grad_before_step",
            IssueSeverity.CRITICAL,
            "`backward()` computes gradients, but none is left when the optimizer steps: nothing is learned.",
            "`step()` comes before `backward()`, and `zero_grad()` clears the gradients before the next step."
            if early
            else "`zero_grad()` is called between `backward()` and `step()`.",
            ["Call them in this order: `zero_grad()`, forward, `backward()`, `step()`."],
            step=1,
            orders=[look.order for look in looks],
        )
    elif len(facts.ungiven) >= facts.held and not any(look.brought for look in looks):
        yield issue(
            "detached_loss",
            IssueSeverity.CRITICAL,
            "no backward pass has reached a parameter of the model: nothing is learned.",
            "the loss that `backward()` starts from is cut off from the model: `torch.tensor(loss)`, `.item()`, "
            "`.detach()`, or no `backward()` at all.",
            ["Call `backward()` on the loss as the loss function returned it."],
            step=1,
            backward_passes=sum(look.backwards for look in looks),
        )


def _cut_off_later(loop: Loop) -> Iterator[Issue]:
    """Gradients came at first, and since some step none does: gradients were switched off, say for an evaluation."""
    looks = loop.looks
    last = max(at for at, look in enumerate(looks) if look.used)
    since = looks[last + 1 :]
    if len(since) < ENOUGH or loop.facts.optimizers > 1 or any(look.brought or look.used for look in since):
        return
    if all(look.backwards and look.given for look in since):
        return  # it arrives and is zero: advantages of zero, a margin that is kept, or all units dead
    ran = any("F" in look.order for look in since)
    yield issue(
        "detached_loss",
        IssueSeverity.CRITICAL,
        f"after step {looks[last].step}, and from step {since[0].step} at the latest, no backward pass reaches a "
        "parameter of the model: it no longer learns.",
        "the loss is cut off from the model (`.item()`, `.detach()`), or backward is left out."
        if ran
        else "gradients were switched off for an evaluation and never on again: `torch.set_grad_enabled(False)` "
        "or `no_grad`.",
        [
            "Call `backward()` on the loss as the loss function returned it, in every step."
            if ran
            else "Evaluate inside `with torch.no_grad():`, and train outside it."
        ],
        step=since[0].step,
        steps=[look.step for look in since],
    )


def cleared_between(loop: Loop) -> Iterator[Issue]:
    """Several backward passes for a step, of which only the last counts."""
    looks = loop.looks
    if loop.facts.optimizers > 1 or not looks or not all(look.lost >= _WASTED for look in looks):
        return  # a second pass from another point, as that of SAM, is one that is lost
    lost, passes = (round(median(values)) for values in ([x.lost for x in looks], [x.backwards for x in looks]))
    yield issue(
        "zero_grad_before_step",
        IssueSeverity.HIGH,
        f"{lost} of the {passes} backward passes before each step are wasted: their gradients are cleared before the "
        "optimizer steps.",
        "`optimizer.step()` stands outside the loop over batches, or `zero_grad()` inside the loop that accumulates.",
        [
            "Call `optimizer.step()` after each `backward()`.",
            "To accumulate gradients, call `zero_grad()` once, after `step()`, and divide each loss by their number.",
        ],
        step=1,
        lost=lost,
        passes=passes,
    )


def not_cleared(loop: Loop) -> Iterator[Issue]:
    """Gradients of the step before are still there when the first backward pass of a step begins."""
    looks, names = loop.looks, loop.facts.partly_cleared
    stale = [look for look in looks if look.stale and look.used]
    if not looks or not names or len(stale) < max(3, _USUALLY * len(looks) // loop.facts.optimizers):
        return
    share = median(look.stale / look.used for look in stale)
    evidence = {"share": share, "parameters": names, "looks": len(looks)}
    if share >= _MOST_STALE and (loop.facts.optimizers == 1 or len(stale) == len(looks)):
        yield issue(
            "missing_zero_grad",
            IssueSeverity.HIGH,
            "gradients are never cleared: each step uses the sum of all gradients since the first.",
            "`zero_grad()` is missing.",
            ["Call `optimizer.zero_grad()` after each `step()`, or before each `backward()`."],
            step=1,
            evidence=evidence,
        )
    else:
        yield issue(
            "partial_zero_grad",
            IssueSeverity.HIGH,
            f"gradients of {some(names)} are never cleared, while others are: each step uses their sum since the "
            "first.",
            "`zero_grad()` is called on a part of the model, or by an optimizer that does not hold all of it.",
            ["Call `zero_grad()` of the optimizer that steps, or of the whole model."],
            step=1,
            layer=module_of(names[0]),
            evidence=evidence,
        )


def evaluation_mode(loop: Loop) -> Iterator[Issue]:
    """Dropout and batch norms that do not work while the model is trained."""
    looks, names = loop.looks, loop.facts.in_eval
    told = _left_in_evaluation(loop)
    if told is not None:
        since, names = told
        yield _in_evaluation(names, since, whole=True)
    elif looks and names:
        at = next((at for at in range(len(looks)) if all(look.evaluating for look in looks[at:])), len(looks))
        whole = at < len(looks)
        # Who forgets to switch back leaves a model or a block in evaluation mode, with all that is in it. Batch norms
        # that alone are in it keep what they know, as is usual where batches are small.
        kept = not whole and set(names) <= set(loop.facts.eval_alone)
        yield _in_evaluation(names, looks[at if whole else 0].step, whole=whole, kept=kept)


def _left_in_evaluation(loop: Loop) -> tuple[int, list[str]] | None:
    """Since which of the last steps all dropout and batch norms rest, and which those are; None where they work.

    The mode is read at every step, whether it is looked at or not.
    """
    changes = [event for event in loop.run.events if event.kind in (MODE, RESUMED)]
    last = changes[-1] if changes else None
    if last is None or last.kind == RESUMED or last.step is None or len(changes) >= MOST_MODES:
        return None  # a loop that is resumed begins anew, and tells of its mode
    resting = last.data.get("resting")
    steps = sum(step >= last.step for series in loop.run.totals for step in series.steps)
    if last.data.get("training") is not False or not isinstance(resting, list) or steps < _LEAST_STEPS:
        return None
    return (last.step, list(map(str, resting))) if resting else None


def _in_evaluation(names: Sequence[str], since: int, *, whole: bool, kept: bool = False) -> Issue:
    return issue(
        "evaluation_mode",
        IssueSeverity.LOW if kept else IssueSeverity.MEDIUM,
        f"the {'model' if whole else 'part'} is trained in evaluation mode: {some(names)} behave as in "
        "evaluation (no dropout; batch norms neither use nor update the statistics of the batch).",
        "`model.eval()` was called for validation, and `model.train()` was not called after it.",
        ["Call `model.train()` at the start of each epoch, after every evaluation."],
        layer="model" if whole else names[0],
        modules=names,
        step=since,
    )


def overwritten(loop: Loop) -> Iterator[Issue]:
    """Steps are reverted by something in the loop."""
    undone = [look.undone for look in loop.looks if look.undone is not None]
    taken_back = [share for share in undone if share > UNDONE - 0.2]
    # A target that is copied back every other step leaves the steps between as they are.
    reverts = len(taken_back) >= max(2, len(undone) / 3) and median(taken_back) > UNDONE
    # A bound leaves all steps that lead away from it as they are, and takes back more as more weights come to it.
    held = len(undone) >= ENOUGH and min(undone) > _HELD_BACK
    stays = loss_change(loop.losses, _LEAST_STEPS) > _STAYS and not fell_beyond_noise(loop.losses)
    # Who goes back to the best weights so far does so while the loss falls.
    if loop.facts.set_back >= _OFTEN_SET_BACK and not loss_change(loop.losses, _LEAST_STEPS) < _FALLEN:
        yield _set_back(loop)
    elif reverts or (held and stays):
        taken_back = taken_back if reverts else undone
        yield issue(
            "weights_overwritten",
            IssueSeverity.HIGH,
            f"between one step and the next, {min(1.0, median(taken_back)):.0%} of the update is undone"
            + ("." if len(taken_back) == len(undone) else f", in {len(taken_back)} of {len(undone)} looks."),
            "something writes to the weights after the step: a checkpoint that is loaded again, an average that is "
            "copied back, a clamp.",
            [
                "Load checkpoints before the loop; keep averages in a copy of the model.",
                "If weights are clamped, drop the clamp, or set its limit above the weights' usual size.",
            ],
            step=loop.looks[0].step,
            undone=undone,
        )


def _set_back(loop: Loop) -> Issue:
    return issue(
        "weights_overwritten",
        IssueSeverity.HIGH,
        f"the model was given the same weights again {loop.facts.set_back} times, which undid all steps in between, "
        "and the loss has not fallen for good.",
        "`load_state_dict` is called inside the loop: with a checkpoint that belongs before it, or with a copy that "
        "should follow the model and is followed by it.",
        [
            "Load checkpoints before the loop, once.",
            "To let a copy follow, call `copy.load_state_dict(model.state_dict())`, not the other way round.",
        ],
        step=loop.looks[0].step if loop.looks else None,
        set_back=loop.facts.set_back,
    )


def same_batch(loop: Loop) -> Iterator[Issue]:
    """The same batch in every look, neighbours among them."""
    known = [look for look in loop.looks if look.batch is not None]
    if len(known) < _MANY or len({look.batch for look in known}) > 1:
        return
    if all(look.kept_batch for look in known[1:]):
        return  # all the data in one tensor, given whole in every step
    samples = known[-1].samples
    # With all of the data in one batch that is as it should be: few samples that are learnt by heart are not. Who has
    # learnt them before goes on with what is known.
    level, losses = data.uninformed(loop), loop.losses
    fresh = level is not None and bool(losses) and losses[0] > _BY_HEART * level
    if _FEWEST <= samples <= _MOST and fresh and loss_change(losses, _LEAST_STEPS) < _BY_HEART:
        yield issue(
            "same_batch",
            IssueSeverity.MEDIUM,
            f"the model was given the same batch of {samples} samples in all {len(known)} steps looked at.",
            "an iterator that is recreated at every step, a seed set inside the loop, or inputs that are all the same.",
            ["Create the iterator once per epoch and take the next batch from it; set seeds before the loop."],
            step=known[0].step,
            samples=samples,
            steps=[look.step for look in known],
        )


def rates(loop: Loop) -> Iterator[Issue]:
    """A learning rate of zero, from the start or since a schedule ended, or below zero."""
    for series in loop.run.totals:
        known = [(s, rate) for s, rate in zip(series.steps, series.rates, strict=False) if rate == rate]
        if len(known) < _LEAST_STEPS:
            continue
        peak = max(rate for _, rate in known)
        uphill = _uphill(known)
        if uphill is not None:
            yield uphill
            return
        if peak == 0:
            yield issue(
                "zero_rate",
                IssueSeverity.CRITICAL,
                f"the learning rate is 0 in all {len(known)} steps: nothing is learned.",
                "a schedule that starts at 0 and never rises: an integer division, or a `scheduler.step()` that is "
                "missing.",
                ["Print the learning rate of the first steps; call `scheduler.step()` after each `optimizer.step()`."],
                step=known[0][0],
                learning_rate=0.0,
            )
            return
        over = 0
        while over < len(known) and known[-1 - over][1] < _ENDED * peak:
            over += 1
        if over >= max(_LEAST_STEPS, _LONG * len(known)) and not is_solved(loop.run.losses_of(series.name)):
            since = known[len(known) - over][0]
            yield issue(
                "schedule_ended",
                IssueSeverity.HIGH,
                f"the learning rate has fallen from {peak:g} to {plain(known[-1][1], 2)}; for the last {over} of "
                f"{len(known)} steps it has moved nothing.",
                "the schedule is shorter than the training: it steps per batch where its length is in epochs, or "
                "twice per step.",
                ["Set the schedule's length to the number of training steps, or step it once per epoch."],
                step=since,
                peak=peak,
                last=known[-1][1],
                steps=over,
            )
            return


def _uphill(known: Sequence[tuple[int, float]]) -> Issue | None:
    """Steps with a learning rate below zero raise the loss: a schedule that went on past its end, or a cosine over more
    than half of its wave. A remark where they are next to none of the way."""
    peak = max(abs(rate) for _, rate in known)
    below = [(step, rate) for step, rate in known if rate < -_BELOW_ZERO * peak]
    if not below:
        return None
    lowest = min(rate for _, rate in below)
    back = -sum(rate for _, rate in below)
    forth = sum(rate for _, rate in known if rate > 0)
    return issue(
        "loss_grows",
        IssueSeverity.HIGH if back >= _WAY_BACK * forth else IssueSeverity.LOW,
        f"the learning rate is below zero in {len(below)} of {len(known)} steps, since step {below[0][0]}, down to "
        f"{plain(lowest, 2)}: such steps raise the loss.",
        "a schedule that is not held at zero: it goes on after its last step, or its formula goes below zero.",
        [
            f"Keep the factor of the schedule at 0 or above (`max(0.0, factor)`), and give it {len(known)} steps or "
            "more.",
            "A cosine that ends at zero is 0.5 * (1 + cos(pi * step / steps)).",
        ],
        step=below[0][0],
        lowest_rate=lowest,
        peak=peak,
        steps=len(below),
    )


def ranks(loop: Loop) -> Iterator[Issue]:
    """Ranks that have different gradients."""
    found = loop.run.ranks_differ
    if found is not None:
        first, count, checked = found
        yield issue(
            "ranks_differ",
            IssueSeverity.HIGH,
            f"ranks had different gradients in {count} of {checked} steps compared: their weights drift apart.",
            "a rank calls the model without its DistributedDataParallel wrapper, or skips a synchronisation.",
            ["Call the wrapped model on every rank, and `no_sync()` in the same steps on all of them."],
            step=first,
            steps=count,
            checked=checked,
        )
