"""What is trained: parameters in no optimizer, replaced, frozen, hidden, or held and never moved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from gradient_flow.diagnosis.advice import by_itself
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop.context import Loop, issue, module_of, some
from gradient_flow.diagnosis.loop.data import is_warming_up, uninformed
from gradient_flow.diagnosis.optimizer.record import HALF
from gradient_flow.diagnosis.robust import fell_beyond_noise, loss_change
from gradient_flow.record.evidence import LayerSeries

_MOSTLY: Final = 0.5
_BODY: Final = 0.9
"""Share of all elements that a body has which is meant to stay under a new head."""
_LOST: Final = 1e-5
"""A step that moves the typical matrix by less is too small for all, not for some."""
_LEAST_STEPS: Final = 40
"""Steps in which a weight has to stay as it is, to the bit."""
_LITTLE: Final = 2 / 3
"""Of the first loss: a run that has not fallen below it has learned little."""
_POOR, _FAIR = 0.6, 0.3
"""Of the loss of a guess: what is left where too little is learned from layers as they were drawn, and where that is
worth a remark."""
_FEW: Final = 0.05
"""Share of all elements that may be lost to rounding while the rest learns: the weights of norms are one hundredth."""


def unheld(loop: Loop) -> Iterator[Issue]:
    """Trainable parameters that get gradients, and that no optimizer moves."""
    facts = loop.facts
    if facts.strays and loop.looks and facts.held and facts.stray_layer:
        yield issue(
            "hidden_layers",
            IssueSeverity.HIGH,
            f"a layer between the model and the loss, with weights of shape {', '.join(facts.strays)}, gets "
            "gradients, but is in neither `model.parameters()` nor an optimizer, so it never moves.",
            "it is kept outside the model: by a helper, a hook, a closure or the loss.",
            ["Make it an attribute of the model (or give its parameters to the optimizer), then create the optimizer."],
            shapes=facts.strays,
            step=1,
        )
    elif facts.strays and loop.looks and facts.held:
        yield issue(
            "not_in_optimizer",
            IssueSeverity.HIGH,
            f"the loss has parameters of its own, of shape {', '.join(facts.strays)}: they get gradients, but are in "
            "no optimizer, so they never move.",
            "a loss function with parameters (a temperature, centres, weights of tasks) that was not given to an "
            "optimizer.",
            ["Give them to the optimizer: `[*model.parameters(), *criterion.parameters()]`."],
            shapes=facts.strays,
            step=1,
        )
    if not facts.unheld or facts.taken < 2:
        return
    layer, evidence = module_of(facts.unheld[0]), {"parameters": facts.unheld, "strangers": facts.strangers}
    if facts.held == 0 and facts.strangers:
        yield issue(
            "foreign_optimizer",
            IssueSeverity.CRITICAL,
            "the optimizer holds no parameter of this model: its gradients move nothing.",
            "the optimizer was created from another model: before a copy (`deepcopy`), or from another instance.",
            ["Create the optimizer once the model is in its final form, from `model.parameters()`."],
            evidence=evidence,
            step=1,
        )
    elif facts.strangers:
        yield issue(
            "replaced_parameters",
            IssueSeverity.HIGH,
            f"{some(facts.unheld)} get gradients and are in no optimizer, which holds {facts.strangers} tensors that "
            "the model no longer has.",
            "these parameters were replaced after the optimizer was created: a new head, a custom initialisation.",
            ["Create the optimizer after the last change to the model, or add a group with the new parameters."],
            evidence=evidence,
            layer=layer,
            step=1,
        )
    else:
        # A new head on a body that is to stay: one that was trained, or whose features are good enough as drawn.
        meant = facts.unheld_come_first and facts.unheld_share > _BODY and not _poor_as_drawn(loop, facts.unheld)
        yield issue(
            "not_in_optimizer",
            IssueSeverity.LOW if meant else IssueSeverity.HIGH,
            f"{some(facts.unheld)} get gradients, but are in no optimizer, so they never move.",
            "they were left out of the optimizer's parameter groups.",
            [
                by_itself(
                    "Pass them to the optimizer: `model.parameters()`, or groups that together hold every parameter.",
                    "add_parameters",
                ),
                "If they are meant to stay as they are, freeze them (`requires_grad_(False)`): that saves their "
                "gradients.",
            ],
            evidence=evidence,
            layer=layer,
            step=1,
        )


def without_grad(loop: Loop) -> Iterator[Issue]:
    """Parts that an optimizer holds and that run under `no_grad` alone."""
    names = loop.facts.without_grad
    if loop.looks and names:
        found = issue(
            "detached",
            IssueSeverity.HIGH,
            f"{some(names)} {'runs' if len(names) == 1 else 'run'} under `no_grad` alone: no gradient arrives there, "
            "although the optimizer holds its weights.",
            "a `no_grad` around the whole part, or around more than the evaluation.",
            ["Move it out of `no_grad`. If it is meant to stay fixed, freeze it (`requires_grad_(False)`)."],
            step=1,
            layer=names[0],
            parts=names,
        )
        yield replace(found, issue_type=IssueType.DISCONNECTED)


def made_anew(loop: Loop) -> Iterator[Issue]:
    """Layers that are made in `forward`: other random weights in each step."""
    shapes = loop.facts.anew
    if shapes and loop.looks and loop.facts.held:
        yield issue(
            "hidden_layers",
            IssueSeverity.HIGH,
            f"a layer with weights of shape {', '.join(shapes)} is another one in every step: it gets gradients, but "
            "is not in `model.parameters()`, and no step moves it.",
            "it is made in `forward`, with new random weights in each call, so that what the other layers learn of it "
            "is lost.",
            [
                "Make it once, in `__init__`, as an attribute of the model.",
                "If its size comes from the data, use a lazy layer (`nn.LazyLinear`), and run one batch before the "
                "optimizer is created.",
            ],
            shapes=shapes,
            step=1,
        )


def hidden(loop: Loop) -> Iterator[Issue]:
    """Layers in a plain list."""
    names = loop.facts.hidden
    if names and loop.facts.taken >= 2:
        yield issue(
            "hidden_layers",
            IssueSeverity.HIGH,
            f"{some(names)} get gradients, but are not in `model.parameters()`: no optimizer moves them, no "
            "checkpoint holds them, `.to(device)` leaves them behind.",
            "they are kept in a Python list, tuple or dict, or in an object that is not a module.",
            ["Keep them in an `nn.ModuleList` or `nn.ModuleDict`, and create the optimizer after that."],
            modules=names,
            layer=names[0],
            step=1,
        )


def frozen(loop: Loop) -> Iterator[Issue]:
    """Parameters that were meant to be unfrozen."""
    names = loop.facts.frozen
    if names:
        yield issue(
            "frozen",
            IssueSeverity.HIGH,
            f"the optimizer holds {some(names)}, and they are frozen (`requires_grad` is False).",
            "they were frozen for a while and never unfrozen; `module.requires_grad = True` sets an attribute of the "
            "module and unfreezes nothing; or a group was added before its parameters were unfrozen.",
            [f"Call `requires_grad_(True)` on `{module_of(names[0])}`, before it is used again."],
            parameters=names,
            layer=module_of(names[0]),
        )
    elif loop.facts.fresh and loop.facts.steps >= _LEAST_STEPS:
        fresh = loop.facts.fresh
        yield issue(
            "frozen",
            # Random features at the input, a reservoir, a net to be imitated stay as drawn on purpose, and are handed
            # to the optimizer by `model.parameters()`. A layer behind one that learns is no such thing, nor are
            # features of which little can be learned. A base stays under the adapters that are trained in its stead.
            IssueSeverity.HIGH
            if not loop.facts.adapted
            and (loss_change(loop.losses) > _LITTLE or any(_passes_gradients(loop, name) for name in fresh))
            else IssueSeverity.LOW,
            f"the optimizer holds {some(fresh)}, which are frozen (`requires_grad` is False) at random initial "
            "values: nothing has ever trained them.",
            "they were meant to be unfrozen, but that line is never reached; or trained weights were never loaded "
            "into them.",
            [
                f"Call `requires_grad_(True)` on `{module_of(fresh[0])}`, or load its weights.",
                "If random features are what you want, keep them out of the optimizer.",
            ],
            parameters=fresh,
            layer=module_of(fresh[0]),
        )
    elif (drawn := _below_what_learns(loop)) and _poor_as_drawn(loop, drawn, _FAIR):
        yield issue(
            "frozen",
            IssueSeverity.HIGH if _poor_as_drawn(loop, drawn) else IssueSeverity.LOW,
            f"{some(drawn)} are frozen (`requires_grad` is False) at random initial values, nothing has ever trained "
            f"them, and the loss is {_left(loop):.0%} of that of a guess.",
            "trained weights were never loaded into them, or they were frozen before they learned anything.",
            [
                f"Load trained weights into `{module_of(drawn[0])}` and those beside it, and check that no key is "
                "missing (`strict=True`).",
                "Without such weights call `requires_grad_(True)` on them, and give them to the optimizer.",
            ],
            parameters=drawn,
            layer=module_of(drawn[0]),
        )


def _below_what_learns(loop: Loop) -> list[str]:
    """Frozen matrices as they were drawn, where nothing learns in front of them: no prompt, no bias, no adapter."""
    drawn = [name for name in loop.facts.untrained if name not in loop.facts.unheld]
    return [] if any(_passes_gradients(loop, name) for name in drawn) else drawn


def _poor_as_drawn(loop: Loop, names: Sequence[str], left: float = _POOR) -> bool:
    """Whether among these are matrices that nobody has trained, and little is learned from what they make."""
    return not set(loop.facts.untrained).isdisjoint(names) and _left(loop) > left


def _left(loop: Loop) -> float:
    """The last losses over that of a guess; NaN where losses are few, or tell nothing of outputs and targets.

    Of random features that were meant to be, 0.49 or less was left after 40 steps, and mostly 0.1 to 0.4; of bodies
    that were to have been trained, 0.50 to 0.99.
    """
    losses, known = loop.losses, uninformed(loop)
    if len(losses) < _LEAST_STEPS or not known or is_warming_up(loop):
        return math.nan
    return median(losses[-len(losses) // 5 :]) / known


def lora(loop: Loop) -> Iterator[Issue]:
    """One factor of a product stays zero, so the other never gets a gradient."""
    facts = loop.facts
    if not loop.looks:
        return
    if facts.idle_adapters:
        zero, other = facts.idle_adapters[0]
        yield issue(
            "lora_frozen",
            IssueSeverity.CRITICAL,
            f"`{zero}` is zero, `{other}` beside it is not, and both are frozen: the adapter does nothing, and no "
            "adapter of this model learns.",
            "what to train is selected by a name or type that these do not match.",
            ["Set `requires_grad` of both factors of every adapter, then give them to the optimizer."],
            zero=zero,
            frozen=sorted({name for pair in facts.idle_adapters for name in pair}),
            layer=module_of(zero),
            step=1,
        )
        return
    unused = [name for pair in facts.adapters for name in pair if name in facts.ungiven]
    zeros = [pair for pair in facts.adapters if pair[0] in facts.zero_matrices and pair[1] not in facts.zero_matrices]
    if zeros and all(set(pair) <= set(unused) for pair in facts.adapters) and facts.moving:
        zero, other = zeros[0]
        yield issue(
            "lora_frozen",
            IssueSeverity.CRITICAL,
            f"`{zero}` is zero, and neither it nor `{other}` beside it ever gets a gradient: no adapter of this model "
            "is used, and none learns.",
            "the model computes with weights merged from them once, or the graph is cut behind them (a "
            "detach, checkpoints with `use_reentrant=True` of an input without a gradient).",
            ["Merge adapters after the training; until then add their product in each forward pass, in the graph."],
            zero=zero,
            without_gradient=sorted(set(unused)),
            layer=module_of(zero),
            step=1,
        )
        return
    for zero, other in facts.adapters:
        if zero not in facts.zero_matrices or other not in facts.zero:
            continue
        both = zero in facts.zero
        yield issue(
            "lora_frozen",
            IssueSeverity.CRITICAL,
            f"`{zero}` is zero and stays zero: `{other}` never gets a non-zero gradient, and the adapter does nothing.",
            "both factors start at zero, so neither gives the other a gradient."
            if both
            else "the factor that starts at zero is in no optimizer."
            if zero in facts.unheld
            else "the factor that starts at zero is frozen.",
            [
                "Draw one of the two factors at random; the other starts at zero."
                if both
                else "Train both factors: set `requires_grad` of both, and give both to the optimizer."
            ],
            zero=zero,
            without_gradient=[name for name in facts.zero if name != zero],
            layer=module_of(zero),
            step=1,
        )
        return


def decaying(loop: Loop) -> Iterator[Issue]:
    """Parameters that only shrink."""
    names = [name for name in loop.facts.decaying if not _is_dead(loop, name)]
    if names and loop.looks and loop.facts.moving > len(names) and _any_gradient(loop):
        # A bias that cancels, as in a difference of scores, or a vector for words that no batch hides is no harm.
        matrices = {layer.name for layer in loop.run.layers if layer.is_weight}
        found = issue(
            "only_decay",
            IssueSeverity.LOW if matrices.isdisjoint(names) else IssueSeverity.HIGH,
            f"{some(names)} get a gradient of exactly zero in every step, and weight decay alone moves them, towards "
            "zero.",
            "their output has no weight in the loss: a factor of 0, a mask, or an output that is not used.",
            [
                "Give their part of the loss a weight above 0.",
                "If they should not be trained, freeze them or keep them out of the optimizer.",
            ],
            parameters=names,
            layer=module_of(names[0]),
            step=1,
        )
        yield replace(found, issue_type=IssueType.DISCONNECTED)


def unmoved(loop: Loop) -> Iterator[Issue]:
    """Parameters with a gradient that no step changes by a bit, or whose gradient is masked on its way to them."""
    facts = loop.facts
    if not loop.looks or not facts.moving:
        return
    rates = [look.rate for look in loop.looks if look.rate is not None]
    if facts.still and facts.steps >= _LEAST_STEPS and rates and min(rates) > 0 and _others_move(loop):
        yield issue(
            "never_moves",
            _how_bad(loop),
            f"{some(facts.still)} get gradients, and no step has changed them by a single bit.",
            "the steps are smaller than the spacing of numbers in this precision (bfloat16 near 1: 0.008), or a group "
            "has a learning rate of 0.",
            [
                "Keep these weights in float32 and compute in bfloat16 with `torch.autocast`.",
                "Check the learning rate of their group.",
            ],
            parameters=facts.still,
            gets_gradients=True,
            layer=module_of(facts.still[0]),
            step=1,
        )
    masked = [name for name in facts.zero if name not in facts.decaying and _is_masked(loop, name)]
    if masked and _any_gradient(loop):
        yield issue(
            "never_moves",
            IssueSeverity.HIGH,
            f"{some(masked)} get a gradient of exactly zero in every step, although one reaches their output.",
            "a hook or a mask sets their gradient to zero.",
            ["Look for `register_hook` and masks on them; freeze them if they should not be trained."],
            parameters=masked,
            layer=module_of(masked[0]),
            step=1,
        )


def _others_move(loop: Loop) -> bool:
    """Whether steps are of a usual size, or those of the matrices that do move are: a rate that is too small for all
    is another matter."""
    still = set(loop.facts.still)
    moved = [median(r) for w in loop.run.layers if w.is_weight and w.name not in still and (r := _finite(w))]
    return loop.typical_update > _LOST or median(moved or [0.0]) > _LOST


def _finite(layer: LayerSeries) -> list[float]:
    return [ratio for ratio in layer.update_ratios if math.isfinite(ratio)]


def _how_bad(loop: Loop) -> IssueSeverity:
    """What rounding leaves as it is may be a small part of a model in 16 bits that learns all the same, as norms near 1
    are: less grave where nothing of them has ever changed, a remark where something has."""
    still = set(loop.facts.still)
    sizes = {layer.name: max(layer.elements, default=0) for layer in loop.run.layers}
    known = [state for state in loop.states.tensors if state.name in still]
    if not still <= sizes.keys() or any(state.rate == 0 or state.dtype not in HALF for state in known):
        return IssueSeverity.HIGH  # a group with a rate of 0 is a mistake, however small
    in_half = any(look.low_precision > _MOSTLY for look in loop.states.looks)
    few = sum(sizes[name] for name in still) < _FEW * sum(sizes.values()) and fell_beyond_noise(loop.losses)
    if not (in_half and few):
        return IssueSeverity.HIGH
    return IssueSeverity.MEDIUM if loop.facts.unchanged else IssueSeverity.LOW


def unstepped(loop: Loop) -> Iterator[Issue]:
    """Parameters of an optimizer whose `step` is never called."""
    names = loop.facts.unstepped
    if names and loop.looks:
        yield issue(
            "never_moves",
            IssueSeverity.HIGH,
            f"{some(names)} get gradients and never move: the optimizer that holds them takes no step.",
            "`step()` of one of the optimizers is missing.",
            ["Call `step()` and `zero_grad()` of every optimizer."],
            parameters=names,
            layer=module_of(names[0]),
            step=1,
        )


def _any_gradient(loop: Loop) -> bool:
    return any(look.used for look in loop.looks)


def _is_masked(loop: Loop, parameter: str) -> bool:
    """Whether a gradient arrives at what a module makes and at none of its parameters.

    The weight alone has none where what goes into the module is zero, as behind a dead layer; its bias has one then.
    """
    layer = None if loop.network is None else loop.network.layer(module_of(parameter))
    if loop.network is None or layer is None:
        return False
    trained = {each.name for each in loop.run.layers}.intersection(layer.parameters)  # a bias may be frozen
    if not trained or not trained <= set(loop.facts.zero):
        return False
    mine = [place for place in loop.network.places if place.name == layer.name and place.role == "output"]
    if len(trained) < len(layer.parameters):
        first = min((place.order for place in mine), default=0)
        before = [place for place in loop.network.places if place.role == "output" and place.order < first]
        into = max(before, key=lambda place: place.order, default=None)
        if into is not None and not any(value > 0 for value in into.rms):
            return False
    values = any(value > 0 for place in mine for value in place.rms)
    return values and any(norm for place in mine for norm in place.gradient)


def _passes_gradients(loop: Loop, parameter: str) -> bool:
    """Whether a frozen layer lies behind trained ones: else what it makes needs no gradient."""
    places = [] if loop.network is None else loop.network.places
    mine = [place for place in places if place.name == module_of(parameter) and place.role == "output"]
    return any(norm is not None for place in mine for norm in place.gradient)


def _is_dead(loop: Loop, parameter: str) -> bool:
    places = [] if loop.network is None else loop.network.places
    mine = [place for place in places if place.layer == module_of(parameter)]
    return any((place.dead_share or 0.0) > _MOSTLY for place in mine)
