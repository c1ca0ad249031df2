"""All rules on the loop, and how what they find goes with the other issues: one cause gives one issue."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from gradient_flow.diagnosis import advice
from gradient_flow.diagnosis.consolidation import with_consequences
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop import collapse, data, games, order, outputs, signals, sizes, terms, trained
from gradient_flow.diagnosis.loop.context import Loop, module_of
from gradient_flow.diagnosis.robust import fell_beyond_noise, loss_change
from gradient_flow.diagnosis.words import count, plain

_T = IssueType
LoopRule = Callable[[Loop], Iterable[Issue]]
LOOP_RULES: Final[tuple[LoopRule, ...]] = (
    order.rates,
    order.no_gradients,
    trained.lora,
    trained.unheld,
    trained.without_grad,
    trained.made_anew,
    trained.hidden,
    trained.frozen,
    data.masked,
    data.no_variance,
    signals.entropy,
    signals.zero_variance,
    signals.kl,
    signals.clip_fraction,
    order.cleared_between,
    order.not_cleared,
    order.overwritten,
    outputs.squashed,
    outputs.summed_over,
    outputs.out_of_reach,
    outputs.rectified,
    data.spread,
    data.crossed,
    data.constant_targets,
    data.padding,
    data.input_scales,
    trained.decaying,
    trained.unmoved,
    trained.unstepped,
    order.ranks,
    order.same_batch,
    order.evaluation_mode,
    data.not_finite,
    data.skipped,
    data.loud_batches,
    games.outplayed,
    sizes.too_large,
    sizes.clipped_away,
    sizes.still_as_drawn,
    data.first_loss,
    data.grows,
    data.stuck,
    terms.outweighed,
    collapse.same_for_all,
)
"""From the most direct causes to those that follow from others."""
_QUIET: Final = frozenset({_T.SLOW, _T.DEAD, _T.VANISHING, _T.DISCONNECTED})
_IDLE: Final = _QUIET | {_T.SATURATION, _T.UNSTABLE, _T.LOW_RANK, _T.BOTTLENECK, _T.SYMMETRY, _T.EXPLORATION}
_BROKEN: Final = frozenset(
    {_T.EXPLODING, _T.UNSTABLE, _T.NUMERICAL, _T.SATURATION, _T.DEAD, _T.LOW_RANK, _T.BOTTLENECK}
)
_ATTENTION: Final = frozenset({_T.ENTROPY_COLLAPSE, _T.RANK_COLLAPSE, _T.HEAD_DIVERSITY})
EXPLAINS: Final[dict[str, frozenset[IssueType]]] = {
    "zero_rate": _IDLE,
    "schedule_ended": _IDLE,
    "zero_grad_before_step": _IDLE,
    "step_before_backward": _IDLE,
    "detached_loss": _IDLE,
    "foreign_optimizer": _IDLE,
    "replaced_parameters": _QUIET,
    "not_in_optimizer": _QUIET,
    "hidden_layers": _QUIET,
    "frozen": _QUIET,
    "lora_frozen": _IDLE,
    "only_decay": _QUIET,
    "never_moves": _QUIET,
    "all_masked": _IDLE | {_T.NUMERICAL},
    "no_reward_variance": _IDLE | {_T.ENTROPY_COLLAPSE},
    "policy_entropy_collapse": frozenset({_T.EXPLORATION, _T.ENTROPY_COLLAPSE, _T.VANISHING, _T.SLOW}),
    "kl_runaway": frozenset({_T.UNSTABLE}),
    "clip_fraction_high": frozenset({_T.UNSTABLE}),
    "missing_zero_grad": _BROKEN | _QUIET | _ATTENTION,
    "partial_zero_grad": _BROKEN | _QUIET | _ATTENTION,
    "weights_overwritten": _IDLE,
    "double_softmax": _QUIET | {_T.SATURATION},
    "softmax_dimension": _QUIET | {_T.SATURATION},
    "collapsed": _QUIET | {_T.BOTTLENECK, _T.LOW_RANK},
    "output_range": _QUIET | {_T.SATURATION},
    "broadcast": _QUIET | {_T.LOW_RANK, _T.BOTTLENECK, _T.SHORT_MEMORY},
    "constant_targets": _IDLE | {_T.SHORT_MEMORY},
    "padding_labels": _QUIET | {_T.LOW_RANK},
    "input_scales": _BROKEN | _QUIET,
    "same_batch": _ATTENTION | {_T.LOW_RANK},
    "bad_batch": _BROKEN | _QUIET | {_T.SHORT_MEMORY},
    "clip_sets_step": _QUIET,
    "rate_too_high": _BROKEN | _QUIET | _ATTENTION,
    "summed_loss": _BROKEN | _QUIET | _ATTENTION,
    "undivided_accumulation": _BROKEN | _QUIET | _ATTENTION,
    "second_moment_underflow": _BROKEN | _QUIET | _ATTENTION,
    "lost_updates": _QUIET,
    "decay_dominates": _BROKEN | _QUIET | _ATTENTION | {_T.VANISHING},
    "eps_rules": _QUIET,
    "betas_swapped": _BROKEN,
    "momentum_too_long": _BROKEN | _QUIET | _ATTENTION,
    "state_reset": frozenset({_T.UNSTABLE}),
    "stale_second_moment": _BROKEN | _ATTENTION,
    "first_loss_high": _ATTENTION | {_T.UNSTABLE},
    "outweighed": frozenset({_T.LOW_RANK, _T.BOTTLENECK}) | _QUIET,
    "critic_wins": _QUIET | {_T.UNSTABLE, _T.EXPLODING, _T.SATURATION, _T.OPTIMIZER},
    "loss_nonfinite": _QUIET,
    "loss_grows": frozenset({_T.UNSTABLE, _T.SATURATION, _T.DEAD}),
}
"""Code → types of issues that this cause brings about."""
_NAMED_BY: Final = frozenset({"first_loss_high", "input_scales", "double_softmax", "schedule_ended", "zero_rate"})
"""Causes that are merged into the issue of the network that shows them: that issue knows the layer."""
SIZES: Final = frozenset({"rate_too_high", "summed_loss", "undivided_accumulation"})
"""Causes that make steps too large."""
_SHRINKS_OR_BREAKS: Final = frozenset({"decay_dominates", "second_moment_underflow", "momentum_too_long"})
_FOLLOWS: Final = frozenset(
    {"loss_stuck", "loss_grows", "first_loss_high", "loss_nonfinite", "rate_too_low", "collapsed"}
)
"""What is no cause of its own where one is known, but for a learning rate below zero."""
_STUCK: Final = frozenset({"loss_stuck", "rate_too_low", "collapsed"})
_UNDER_DEAD: Final = _STUCK | {"only_decay", "never_moves"}
"""What a layer that lets no gradient through does to those before it."""
_UNDER_FADING: Final = _STUCK | {"eps_rules"}
_CUTS_OFF: Final = frozenset({_T.VANISHING, _T.DISCONNECTED, _T.SYMMETRY, _T.DEAD})
"""Faults that, where they are critical, keep a network from learning anything of its input."""
_MOMENT, _PART = 1.0, 0.1
"""Steps of time, and share of the sequence, that count as no memory where the loss does not fall."""
_KEEPS_FROM_LEARNING: Final = frozenset({_T.VANISHING, _T.DEAD, _T.SATURATION, _T.LOW_RANK, _T.RANK_COLLAPSE})
"""Remarks that would explain a loss that does not fall."""
_ENOUGH_TO_LEARN, _WHERE_IT_WAS, _A_FEW = 40, 0.97, 4
"""Losses, the share of the first that is left, and units of a narrow layer that counts."""
_LEAVES_OTHERS: Final = frozenset({"same_batch", "evaluation_mode", "ranks_differ", "padding_labels"})
"""Causes beside which another is possible: they do not stop a loss from falling."""


_MOSTLY: Final = 0.5
_LOOKS_AT_A_POLICY, _RANDOM = 4, 0.985
"""Looks, and the normalised entropy that a policy never fell below in them."""
_MANY, _FALLEN = 5, 0.7
"""Looks that tell how a loss goes, and what is left of the first of one that falls."""
_HALF_ITS_SIZE, _UP = 0.5, 10.0
_ITS_SIZE, _A_LITTLE_UP, _AT_FIRST = 1.0, 1.3, 20
"""What a step moves the typical matrix by, and the loss over the first, where steps broke the network."""
_AS_DRAWN: Final = 0.01
"""Of its size: how far all steps may have moved a typical matrix of a model that nothing was learned by."""
_OF_IDLE_EXPERTS: Final = frozenset({"only_decay", "never_moves"})
_WHOLE_GRADIENT: Final = 0.9
"""Share of an embedding's squared gradient that leaves next to nothing for its other rows."""


def with_loop(issues: Sequence[Issue], found: Sequence[Issue], loop: Loop) -> list[Issue]:
    """The issues together with those of the loop, each with what follows from it. Codes are given to the others."""
    others = _under_cut([sizes.with_code(issue, loop) for issue in issues if not _is_copied(issue, loop)])
    others = [_falls(_paid(_unrouted(_weighted_zero(issue, loop), loop), loop), loop) for issue in others]
    others, found = _under_router(others, found)
    others, found = _under_mask(others, found)
    others = [_stays_random(_thrown(issue, loop), loop) for issue in others]
    others = _with_row(others, found, loop)
    closer = next((issue for issue in others if issue.code in SIZES and issue.evidence.get("update_ratio")), None)
    if closer is not None:  # it names the layer that a step moves most
        others.remove(closer)
        found = [issue for issue in found if issue.code not in SIZES]
        first = next((at for at, issue in enumerate(found) if _follows(issue)), len(found))
        found = [*found[:first], closer, *found[first:]]
    mains: list[Issue] = []
    for issue in found:
        cause = next((i for i, main in enumerate(mains) if _is_consequence(issue, main)), None)
        if cause is None:
            mains.append(issue)
        else:
            mains[cause] = _with(mains[cause], issue)
    left = []
    for at, main in enumerate(mains):
        explained = [issue for issue in others if main.code in _NAMED_BY and _explains(main, issue)]
        here = [issue for issue in explained if issue.layer == main.layer]
        shown = next(iter([*here, *explained]), None)
        if shown is not None and shown.severity > IssueSeverity.LOW:
            others.remove(shown)
            mains[at] = _because(shown, main)
    for issue in others:
        cause = next((i for i, main in enumerate(mains) if _explains(main, issue)), None)
        if cause is None:
            left.append(issue)
        else:
            mains[cause] = _with(mains[cause], issue)
    causes = [issue for issue in left if issue.code and issue.severity > IssueSeverity.LOW]
    if causes:  # another issue names the cause: how the loss behaves follows from it
        follows = [issue for issue in mains if _follows(issue)]
        mains = [issue for issue in mains if issue not in follows]
        left[left.index(causes[0])] = with_consequences(causes[0], follows)
    faded = next((issue for issue in left if issue.issue_type is _T.VANISHING and _fades_by_depth(issue)), None)
    if faded is not None:
        rest = [issue for issue in mains if issue.code == "never_moves" and issue.evidence.get("gets_gradients")]
        rest += [issue for issue in mains if _is_of_tiny_weights(issue, faded)]
        mains = [issue for issue in mains if issue not in rest]
        left[left.index(faded)] = with_consequences(faded, rest)
    cut = next((issue for issue in left if _cuts_off(issue)), None)
    if cut is not None:
        ends = cut.issue_type in (_T.DEAD, _T.DISCONNECTED) or _lets_nothing_through(cut)
        below = _UNDER_DEAD if ends else _STUCK if cut.issue_type is _T.LOW_RANK else _UNDER_FADING
        if loop.looks and all(look.nothing for look in loop.looks):
            # What is multiplied by 0 next to the loss has no gradient, whatever the layer itself lets through.
            left, mains = _weighs_nothing(cut, left, mains)
        stuck = [issue for issue in mains if issue.code in below] if cut in left else []
        mains = [issue for issue in mains if issue not in stuck]
        left = [with_consequences(issue, stuck) if issue is cut else issue for issue in left]
    mains, left = _why_stuck([_as_it_shows(main) for main in mains], left, loop)
    mains = [_by_rate(main, loop) for main in mains]
    return _one_per_code(sorted([*mains, *left], key=lambda issue: -issue.severity))


def _weighted_zero(issue: Issue, loop: Loop) -> Issue:
    """A layer that fires and gets no gradient in any look, with its cause: what it makes is multiplied by zero."""
    if issue.issue_type is not _T.DEAD or issue.code or not loop.network:
        return issue
    why = _why_it_rests(issue.layer, loop)
    if why is not None:
        return replace(issue, code="never_moves", cause=why[0], advice=[why[1]])
    layer = loop.network.layer(issue.layer)
    if issue.evidence.get("gradient_here") != 0:
        return issue
    if layer is None or not layer.parameters or not set(layer.parameters) <= set(loop.facts.zero):
        return issue
    if any((place.dead_share or 0.0) > _MOSTLY for place in loop.network.places if place.layer == layer.name):
        return issue  # units that never fire are a cause of their own
    return replace(
        issue,
        code="never_moves",
        cause="nothing downstream uses its output: an untrained gate, scale or mask is zero.",
        advice=[
            "Train that gate, or start it above 0.",
            "If the layer is meant to stay idle, keep it out of the optimizer.",
        ],
    )


def _why_it_rests(name: str, loop: Loop) -> tuple[str, str] | None:
    """Why a layer or a parameter has a gradient of exactly zero in every look, and what to do, where its own weights
    tell."""
    facts, network = loop.facts, loop.network
    layer = None if network is None else network.layer(name)
    own = set(layer.parameters) if layer is not None else {name}
    if network is None or not own or not own <= set(facts.zero) or own & set(facts.decaying):
        return None
    if own & set(facts.zero_matrices):
        if len(facts.zero_matrices) > 1:
            return (
                f"its weights are zero, and so are those of {count(len(facts.zero_matrices) - 1, 'other layer')}: "
                "through weights of zero neither values nor gradients pass.",
                "Initialise the weights at random (He for ReLU, Xavier for tanh); biases may be zero.",
            )
        return (
            "its weights are all zero, and its output is multiplied by zero or cut off at zero: neither gives the "
            "other a gradient.",
            "Start one of them above zero: to start a branch at nothing, set its last layer or its factor to zero, "
            "not both.",
        )
    # Of a module that is called it is known what goes in and out; here a function was given its parameter.
    if {name, module_of(name)}.isdisjoint(place.name for place in network.places):
        return (
            "nothing downstream changes with it: it lies outside the limits of a `clamp`, or is rounded, masked or "
            "multiplied by zero.",
            "Start it inside its limits, or use a function with a slope everywhere.",
        )
    return None


def _paid(issue: Issue, loop: Loop) -> Issue:
    """A remark where the reward, which counts, has risen: gradients that vary under a loss that does not fall, or that
    are gone by now, as those of a policy that is sure of what pays; and a head that the loss does not use, as that of
    values under an algorithm that goes without."""
    varies = issue.issue_type is _T.UNSTABLE and not issue.code and "noise" in issue.evidence
    varies |= issue.issue_type is _T.VANISHING and not issue.code and "decades_per_step" in issue.evidence
    head = issue.evidence.get("reaches_loss") is False and len(issue.evidence.get("layers", ())) == 1
    paid = (varies and signals.does_well(loop)) or (head and signals.has_risen(loop))
    return replace(issue, severity=min(issue.severity, IssueSeverity.LOW)) if paid else issue


def _falls(issue: Issue, loop: Loop) -> Issue:
    """Steps that count as too large where the loss does not fall are a remark where looks saw that it does, or that
    predictions go with their targets: noise in the targets may be all that is left of the loss.

    With several optimizers there is no one series of losses.
    """
    if issue.issue_type is not _T.EXPLODING or issue.severity is not IssueSeverity.MEDIUM:
        return issue
    seen = [look.loss for look in loop.looks if look.loss is not None and look.backwards == 1]
    kinds = {tuple(call.function for call in look.calls) for look in loop.looks}
    falls = len(seen) == len(loop.looks) >= _MANY and len(kinds) == 1 and 0 <= loss_change(seen) < _FALLEN
    learns = (falls and not loop.losses) or data.hides_in_noise(loop)
    return replace(issue, severity=IssueSeverity.LOW) if learns and "update_ratio" in issue.evidence else issue


def _thrown(issue: Issue, loop: Loop) -> Issue:
    """Units that are dead or flat, with their cause: a step that moved weights by several times their size and threw
    the loss up. It may have fallen since, with what was left of the network.

    Such a step moved the typical matrix by 0.9, 8 and 46 times its size, and the loss to 30, 130 and 3,600 times the
    first.
    Under attention norms hold the loss: a GPT with a rate of 0.3 moved its matrices by 4.2 times their size and its
    loss to 3.6 times the first, of which 0.8 was left at the end.
    """
    ratio, losses = loop.largest_update, loop.losses
    if issue.severity < IssueSeverity.HIGH or not losses or not losses[0] > 0:
        return issue
    units = issue.issue_type in (_T.DEAD, _T.SATURATION) and not issue.code
    threw_units = units and ratio >= _HALF_ITS_SIZE and max(losses) > _UP * losses[0]
    attends = issue.issue_type in (_T.ENTROPY_COLLAPSE, _T.RANK_COLLAPSE) and issue.code in ("", "attention_logits")
    up = attends and ratio >= _ITS_SIZE and max(losses[:_AT_FIRST]) > _A_LITTLE_UP * losses[0]
    if not threw_units and not (up and median(losses[-_AT_FIRST:]) > _MOSTLY * losses[0]):
        return issue
    rate = loop.run.learning_rate
    return replace(
        issue,
        cause=f"a step moved the typical weight matrix by {plain(ratio, 2)} times its own size (0.1% is usual), and "
        f"the loss rose to {plain(max(losses) / losses[0], 2)} times the first: the learning rate is too large.",
        advice=[advice.learning_rate_at_most(rate, ratio), *issue.advice],
        evidence={**issue.evidence, "largest_update": ratio, "learning_rate": rate},
        code="rate_too_high",
    )


def _stays_random(issue: Issue, loop: Loop) -> Issue:
    """A policy next to uniform at every look of a training that moved its weights far: that is no start any more.

    Of a hundred policies that learn, each had left uniform by the fourth look; those whose weights had moved by half of
    their size and had not were held there by a bonus, or by actions that are drawn at random.
    """
    lowest, looks = issue.evidence.get("entropy_at_least"), issue.evidence.get("steps")
    known = isinstance(lowest, float) and isinstance(looks, int) and looks >= _LOOKS_AT_A_POLICY
    remark = issue.issue_type is _T.EXPLORATION and issue.severity is IssueSeverity.LOW
    if not (remark and known and lowest is not None and lowest > _RANDOM):
        return issue
    moved = loop.typical_update * len(loop.losses)
    if len(loop.losses) < _ENOUGH_TO_LEARN or not moved > _MOSTLY or signals.has_risen(loop):
        return issue
    return replace(
        issue,
        severity=IssueSeverity.MEDIUM,
        message=f"{issue.message.removesuffix('.')}, and never below {lowest:.3f} in {looks} looks, while "
        f"{len(loop.losses)} steps moved a typical weight matrix by {plain(moved, 2)} times its size.",
        cause="an entropy bonus that outweighs the return, actions that are drawn at random, or no learning signal.",
    )


def _cuts_off(issue: Issue) -> bool:
    if issue.issue_type is _T.SHORT_MEMORY:
        return issue.severity >= IssueSeverity.HIGH
    if issue.issue_type is _T.SATURATION:
        return _lets_nothing_through(issue)
    if issue.issue_type is _T.LOW_RANK:
        return issue.severity >= IssueSeverity.HIGH
    return issue.issue_type in _CUTS_OFF and issue.severity is IssueSeverity.CRITICAL


def _lets_nothing_through(issue: Issue) -> bool:
    """Whether flat activations let no gradient through at all."""
    stopped = any(each.issue_type is _T.DEAD for each in issue.consequences)
    return issue.issue_type is _T.SATURATION and issue.severity >= IssueSeverity.HIGH and stopped


def _fades_by_depth(issue: Issue) -> bool:
    """Whether the gradient fades on its way back through the layers, and not by a level alone."""
    return "gain_over_depth" in issue.evidence and issue.severity > IssueSeverity.LOW


def _is_of_tiny_weights(issue: Issue, faded: Issue) -> bool:
    """Whether steps are somewhat large for weights through which the gradient fades from the start: they are tiny.

    Convolutions drawn with a deviation of 0.003 were moved by half of their size, and let through 1/200,000.
    """
    mild = issue.code in SIZES and issue.severity < IssueSeverity.HIGH
    first = faded.step is not None and faded.step <= (issue.step or math.inf)
    return mild and first and faded.severity is IssueSeverity.CRITICAL and _fades_by_depth(faded)


def _weighs_nothing(cut: Issue, left: list[Issue], mains: list[Issue]) -> tuple[list[Issue], list[Issue]]:
    """A layer without a gradient, under the issue that names its own parameters among those that only decay or rest."""
    for at, main in enumerate(mains):
        if main.code in _OF_IDLE_EXPERTS and cut.layer in map(module_of, main.evidence.get("parameters", ())):
            rest = [issue for issue in left if issue is not cut]
            return rest, [*mains[:at], with_consequences(main, [cut]), *mains[at + 1 :]]
    return left, mains


def _as_it_shows(main: Issue) -> Issue:
    """A momentum that makes weights explode: the explosion is what is seen and knows the layer, this is its cause."""
    shown = next((issue for issue in main.consequences if issue.issue_type is _T.EXPLODING), None)
    if main.code != "momentum_too_long" or shown is None or shown.severity < IssueSeverity.HIGH:
        return main
    rest = tuple(issue for issue in main.consequences if issue is not shown)
    return _because(replace(shown, advice=[]), replace(main, consequences=rest))


def _why_stuck(mains: list[Issue], left: list[Issue], loop: Loop) -> tuple[list[Issue], list[Issue]]:
    """A loss that does not fall is a reason to take a remark seriously that would explain it: it is the cause then."""
    stuck = next((issue for issue in mains if issue.code == "loss_stuck"), None)
    if stuck is None and not _does_not_learn(loop):
        return mains, left
    left = [_too_faint(issue, [*mains, *left]) for issue in left]
    if any(issue.severity > IssueSeverity.LOW for issue in (*mains, *left) if issue is not stuck):
        return mains, left
    # What is known of the loop has its own measure of a loss that does not fall.
    why = next((i for i in (*mains, *left) if _would_stop(i) and (stuck is not None or not i.code)), None)
    if why is None:
        return mains, left
    main = with_consequences(_as_cause(why), [] if stuck is None else [stuck])
    return [main, *(i for i in mains if i not in (stuck, why))], [issue for issue in left if issue is not why]


def _does_not_learn(loop: Loop) -> bool:
    """Whether enough steps left the loss where it was. Below zero, and of a policy, it tells nothing of what is learnt.

    None of the zoo's healthy programs that has a remark of `_KEEPS_FROM_LEARNING` is so.
    """
    losses = loop.losses
    if len(losses) < _ENOUGH_TO_LEARN or not all(0 < loss < math.inf for loss in losses):
        return False
    level = loss_change(losses) > _WHERE_IT_WAS and not fell_beyond_noise(losses)
    return level and "policy" not in loop.run.seen and not data.is_warming_up(loop)


def _too_faint(issue: Issue, others: Sequence[Issue]) -> Issue:
    """Gradients below what is documented as vanishing, where no step moves a weight and nothing is learnt."""
    idle = any(other.issue_type is _T.SLOW and other.severity > IssueSeverity.LOW for other in others)
    faint = issue.issue_type is _T.VANISHING and issue.severity is IssueSeverity.LOW
    return _as_cause(issue) if faint and idle else issue


def _as_cause(issue: Issue) -> Issue:
    message = f"{issue.message.removesuffix('.')}, and the loss does not fall."
    return replace(issue, severity=IssueSeverity.MEDIUM, message=message)


def _by_rate(main: Issue, loop: Loop) -> Issue:
    """A loss that does not fall, with its cause: all steps together cannot have moved a weight by a hundredth."""
    moved = loop.typical_update * len(loop.losses)
    if main.code != "loss_stuck" or not 0 < moved < _AS_DRAWN:
        return main
    rate = loop.run.learning_rate
    return replace(
        main,
        issue_type=_T.SLOW,
        message=f"{main.message} A step moves the typical weight matrix by {plain(loop.typical_update, 2)} of its size "
        "(0.001 is usual): the model is still where it started.",
        cause="the learning rate is far too small for training from scratch.",
        advice=[advice.learning_rate_up_to(rate, loop.typical_update)],
        evidence={**main.evidence, "update_ratio": loop.typical_update, "learning_rate": rate},
        code="rate_too_low",
    )


def _would_stop(issue: Issue) -> bool:
    """Whether a remark says what keeps a model from using its input."""
    if issue.issue_type is _T.SHORT_MEMORY:
        memory, length = issue.evidence.get("effective_memory_length"), issue.evidence.get("sequence_length", 0)
        return issue.evidence.get("cut_share", 0.0) > 0 or (
            memory is not None and memory < max(_MOMENT, _PART * length)
        )
    if issue.code == "batch_size":
        return bool(issue.evidence["noise_scale"] > issue.evidence["batch"])  # gradients are mostly noise
    if issue.issue_type is _T.BOTTLENECK:
        return bool(issue.evidence.get("units", 0) <= _A_FEW)
    return issue.code == "not_in_optimizer" or issue.issue_type in _KEEPS_FROM_LEARNING


def _one_per_code(issues: Sequence[Issue]) -> list[Issue]:
    """Of several issues of one cause, in order of severity, the first takes in the others."""
    kept: list[Issue] = []
    for issue in issues:
        same = next((i for i, main in enumerate(kept) if issue.code and main.code == issue.code), None)
        if same is None:
            kept.append(issue)
        else:
            kept[same] = _with(kept[same], issue)
    return kept


def _because(shown: Issue, main: Issue) -> Issue:
    """What was seen in the network, with its cause in the loop or the data."""
    return replace(
        shown,
        severity=max(shown.severity, main.severity),
        evidence={**main.evidence, **shown.evidence},
        cause=f"{main.message} {main.cause[:1].upper()}{main.cause[1:]}",
        advice=[*main.advice, *shown.advice],
        code=main.code,
        consequences=(*shown.consequences, *main.consequences),
    )


def _follows(issue: Issue) -> bool:
    """Whether this is how the loss behaves, for which there may be a cause."""
    return issue.code in _FOLLOWS and not _goes_back(issue)


def _goes_back(issue: Issue) -> bool:
    """Whether steps with a learning rate below zero raise the loss: whatever broke since follows from it."""
    return "lowest_rate" in issue.evidence and issue.severity > IssueSeverity.LOW


def _is_consequence(issue: Issue, main: Issue) -> bool:
    if main.severity == IssueSeverity.LOW < issue.severity:
        return False
    if (main.code, issue.code) == ("lost_updates", "never_moves"):
        return True  # the same, seen from outside
    if (main.code, issue.code) == ("policy_entropy_collapse", "no_reward_variance"):
        return True  # who always answers the same always gets the same reward
    if (main.code, issue.code) == ("bad_batch", "stale_second_moment"):
        return True  # one batch is far larger than what is remembered of others
    if issue.code == "bad_batch" and main.code != "stale_second_moment":
        return issue.issue_type in EXPLAINS.get(main.code, frozenset())  # losses are thrown about by what is known
    if main.code in _SHRINKS_OR_BREAKS and issue.code in SIZES:
        return True  # it is the state, whatever the rate is
    if _follows(issue):
        return main.code not in _LEAVES_OTHERS or issue.code == "loss_stuck"
    if _goes_back(main):
        return issue.code in SIZES  # of which the step is not known
    if issue.code in SIZES and issue.issue_type in EXPLAINS.get(main.code, frozenset()):
        return main.code not in SIZES  # steps are too large because of what comes into them
    if (main.issue_type is not _T.LOOP and main.code != "all_masked") or main.code == issue.code:
        return main.code == issue.code
    # A cause that stops all training leaves nothing to be said of what is trained.
    return EXPLAINS.get(main.code, frozenset()) >= _IDLE and issue.code not in _LEAVES_OTHERS


def _under_router(issues: Sequence[Issue], found: Sequence[Issue]) -> tuple[list[Issue], list[Issue]]:
    """Experts that no token is sent to get no gradient: that follows from the router beside them."""
    at = next((at for at, issue in enumerate(issues) if issue.code == "router_collapse"), None)
    if at is None:
        return list(issues), list(found)
    router = issues[at]
    blocks = [name.rpartition(".")[0] for name in router.evidence.get("routers", (router.layer,))]

    def idle(issue: Issue) -> bool:
        names = issue.evidence.get("parameters", ())
        return issue.code in _OF_IDLE_EXPERTS and bool(names) and all(_lies_in(name, blocks) for name in names)

    follows = [issue for issue in found if idle(issue)]
    rest = list(issues)
    rest[at] = with_consequences(router, follows)
    return rest, [issue for issue in found if issue not in follows]


def _under_mask(issues: Sequence[Issue], found: Sequence[Issue]) -> tuple[list[Issue], list[Issue]]:
    """Queries and keys of which a mask leaves no choice get no gradient: that follows from the mask."""
    at = next((at for at, issue in enumerate(issues) if "without_choice" in issue.evidence), None)
    if at is None:
        return list(issues), list(found)
    made = set(issues[at].evidence.get("layers", ()))

    def is_made(issue: Issue) -> bool:
        names = issue.evidence.get("parameters") or [issue.layer]
        return made.issuperset(map(module_of, names))

    idle = [issue for issue in found if issue.code in _OF_IDLE_EXPERTS and is_made(issue)]
    dead = [issue for issue in issues if issue.issue_type is _T.DEAD and not issue.code and is_made(issue)]
    rest = [issue for issue in issues if issue not in dead]
    rest[rest.index(issues[at])] = with_consequences(issues[at], [*idle, *dead])
    return rest, [issue for issue in found if issue not in idle]


def _unrouted(issue: Issue, loop: Loop) -> Issue:
    """Experts of which no tensor has a gradient any more, with their cause: the router beside them sends them nothing.

    Units that died leave the last bias of an expert its gradient.
    """
    silent = set(issue.evidence.get("layers", ()))
    if issue.issue_type is not _T.DEAD or issue.code or not silent:
        return issue
    for router in loop.run.seen.get("routing", {}).get("stats", {}).get("routers", ()):
        block = router["name"].rpartition(".")[0]
        members = _members(block, [layer.name for layer in loop.run.layers], router["experts"])
        idle = [number for number, names in members.items() if names <= silent]
        if idle and len(idle) < len(members) and silent <= set().union(*members.values()):
            few = len(idle) < _MOSTLY * len(members)
            return replace(
                issue,
                # One in reserve beside others that share the work is capacity that is not used.
                severity=IssueSeverity.LOW if few else issue.severity,
                layer=router["name"],
                message=f"{len(idle)} of {router['experts']} experts get no gradient at all: the router sends them no "
                f"tokens. In `{issue.layer}`, {issue.message}",
                evidence={**issue.evidence, "idle_experts": idle, "experts": router["experts"]},
                cause="the router collapsed: experts that get tokens learn, and so get more of them.",
                advice=[
                    "Add a load-balancing loss (Switch Transformer), or a bias per expert that rises while it is idle; "
                    "if there is one, check its sign.",
                ],
                code="router_collapse",
            )
    return issue


def _members(block: str, names: Sequence[str], count: int) -> dict[int, set[str]]:
    """The tensors of each module of a list of so many in a block; empty where there is no such list.

    >>> _members("moe", ["moe.router.weight", "moe.experts.0.weight", "moe.experts.1.weight"], 2)
    {0: {'moe.experts.0.weight'}, 1: {'moe.experts.1.weight'}}
    """
    lists: dict[str, dict[int, set[str]]] = {}
    for name in names:
        path = name.removeprefix(f"{block}." if block else "").split(".")
        if _lies_in(name, [block]) and len(path) > 2 and path[1].isdigit():
            lists.setdefault(path[0], {}).setdefault(int(path[1]), set()).add(name)
    return next((members for members in lists.values() if len(members) == count), {})


def _lies_in(name: str, blocks: Sequence[str]) -> bool:
    return any(not block or name.startswith(f"{block}.") for block in blocks)


def _with_row(issues: Sequence[Issue], found: Sequence[Issue], loop: Loop) -> list[Issue]:
    """A row that has nearly all of the gradient is no remark where next to nothing is learned beside it.

    Predictions may agree with their targets beyond chance, and the loss be that of a guess. Where a memory holds the
    last few words alone, the row is that of the word which ends every sequence.
    """
    if any(issue.issue_type is _T.SHORT_MEMORY and issue.severity > IssueSeverity.LOW for issue in issues):
        return list(issues)
    if not any(issue.code == "loss_stuck" for issue in found) and data.at_a_guess(loop) is None:
        return list(issues)
    return [
        replace(issue, severity=IssueSeverity.MEDIUM)
        if issue.code == "embedding_row" and issue.evidence.get("share", 0.0) > _WHOLE_GRADIENT
        else issue
        for issue in issues
    ]


def _is_copied(issue: Issue, loop: Loop) -> bool:
    """Whether a layer that seems cut off is trained by copies of its weights, which the optimizer holds (master weights
    in float32): gradients come to it, and those of the copies alone were measured."""
    copied = set(map(module_of, loop.facts.copied)) if loop.facts.strangers else set()
    return issue.issue_type is _T.DISCONNECTED and issue.layer in copied


def _under_cut(issues: Sequence[Issue]) -> list[Issue]:
    """A part of what is cut off has no gradient either, whatever is said of how it is called."""
    cut = next((issue for issue in issues if issue.code == "detached" and issue.severity > IssueSeverity.LOW), None)
    if cut is None:
        return list(issues)
    lost = {cut.layer, *cut.evidence.get("layers", ()), *(each.layer for each in cut.consequences)}
    parts = [
        issue
        for issue in issues
        if issue.issue_type is _T.DISCONNECTED and not issue.code and issue.layer.rpartition(".")[0] in lost
    ]
    rest = [issue for issue in issues if issue not in parts]
    rest[rest.index(cut)] = replace(cut, consequences=(*cut.consequences, *parts))
    return rest


def _explains(main: Issue, other: Issue) -> bool:
    if main.code == "not_in_optimizer" and other.issue_type is _T.DISCONNECTED:
        # Gradients do come to these: those of the optimizer's parameters alone were measured.
        return other.layer in map(module_of, main.evidence.get("parameters", ())) or main.severity > IssueSeverity.LOW
    if main.severity == IssueSeverity.LOW < other.severity or other.origin:
        return False
    if _goes_back(main):
        return other.issue_type in _BROKEN and (other.step is None or other.step >= (main.step or 0))
    if main.code == "first_loss_high" and other.issue_type is _T.EXPLODING:
        return not other.code and "growth_of_values" in other.evidence  # the same, seen inside of the network
    if other.code in ("router_collapse", "embedding_row"):
        return False  # it has a cause of its own
    if main.code == "never_moves" and other.issue_type is _T.VANISHING and _fades_by_depth(other):
        return False  # steps are lost to rounding because of it
    if main.code in ("never_moves", "only_decay") and other.issue_type in (_T.DEAD, _T.DISCONNECTED):
        # Units that never fire, or whatever lets no gradient through, are a cause of their own.
        return "dead_share" not in other.evidence and other.severity < IssueSeverity.CRITICAL
    if other.issue_type is _T.VANISHING and _is_of_tiny_weights(main, other):
        return False  # it is the other way round
    if main.code == "eps_rules" and other.issue_type is _T.VANISHING:
        # Gradients are so small because one layer, or a gate that begins shut, lets hardly any through.
        return other.severity < IssueSeverity.CRITICAL and "largest_gradient" not in other.evidence
    if main.code == "stale_second_moment" and (other.step or 0) < (main.step or 0):
        return False  # it was there before
    if main.code in SIZES and main.severity < IssueSeverity.HIGH and other.issue_type is _T.NUMERICAL:
        return False  # steps that are somewhat large do not make a NaN out of nothing
    if _follows(main) and other.code:
        return False  # it has a cause of its own, and is rather that of the other
    return other.issue_type in EXPLAINS.get(main.code, frozenset())


def _with(main: Issue, other: Issue) -> Issue:
    return with_consequences(main, [other])
