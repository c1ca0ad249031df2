"""How treatments are called and advised, each from its settings: kind → its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from gradient_flow.diagnosis.treatment_code import (
    ZEROS,
    Settings,
    add_code,
    attach_code,
    bypass_code,
    forget_code,
    group_code,
    init_code,
    level_code,
    listed,
    mapping,
    norm_code,
    orthogonal_code,
    outputs_code,
    place,
    qk_code,
    rate_code,
    rescale_code,
    residual_code,
    safe_code,
    scaled_tensors_code,
    skip_code,
    standard_code,
    swap_code,
    units_code,
    warm_code,
    way_code,
)
from gradient_flow.diagnosis.words import plain


class Words(NamedTuple):
    """How a kind of treatment is called, advised and written down, each from its settings."""

    name: Callable[[Settings], str]
    advice: Callable[[Settings], str]
    code: Callable[[Settings], str]


def some(names: Sequence[str], most: int = 3) -> str:
    """Some names in backticks.

    >>> some(["a", "b"]), some(["a", "b", "c", "d"])
    ('`a`, `b`', '`a`, `b` … `d`')
    """
    shown = [f"`{name}`" for name in names]
    return ", ".join(shown) if len(shown) <= most else f"{', '.join(shown[: most - 1])} … {shown[-1]}"


def many(count: int, what: str) -> str:
    """`1 layer`, `3 layers`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def _rate_advice(settings: Settings) -> str:
    verb = "Lower" if settings["factor"] < 1 else "Raise"
    to = f" to {plain(settings['rate'])}" if settings.get("rate") else ""
    return f"{verb} the learning rate{to} (× {plain(settings['factor'])})."


def _places(settings: Settings) -> str:
    return " and ".join(map(place, settings["lines"]))


def _range(values: Mapping[str, float]) -> str:
    low, high = min(values.values()), max(values.values())
    return plain(low, 2) if f"{low:.2g}" == f"{high:.2g}" else f"{plain(low, 2)} to {plain(high, 2)}"


WORDS: Final[dict[str, Words]] = {
    "learning_rate": Words(
        lambda t: f"learning rate × {plain(t['factor'], 2)}",
        _rate_advice,
        rate_code,
    ),
    "warm_up": Words(
        lambda t: f"warm-up over {t['steps']} steps",
        lambda t: f"Warm the learning rate up over {t['steps']} steps.",
        warm_code,
    ),
    "clip": Words(
        lambda t: f"clip at {plain(t['norm'])}",
        lambda t: f"Clip the gradient norm at {plain(t['norm'])}.",
        lambda t: (
            f"torch.nn.utils.clip_grad_norm_(model.parameters(), {t['norm']:.4g})"
            "  # after backward(), before optimizer.step()"
        ),
    ),
    "skip_nonfinite": Words(
        lambda _: "skip steps with NaN",
        lambda _: "Skip steps whose gradients hold NaN or Inf.",
        lambda _: (
            "if all(p.grad is None or p.grad.isfinite().all() for p in model.parameters()):\n    optimizer.step()"
        ),
    ),
    "skip_spikes": Words(
        lambda t: f"skip steps with a norm above {plain(t['norm'])}",
        lambda t: f"Skip steps whose gradient norm is above {plain(t['norm'])}.",
        lambda t: (
            "gradients = [p.grad for p in model.parameters() if p.grad is not None]\n"
            f"if torch.nn.utils.get_total_norm(gradients) <= {t['norm']:.4g}:\n    optimizer.step()"
        ),
    ),
    "zero_nonfinite": Words(
        lambda _: "0 for NaN between layers",
        lambda _: "Replace NaN and Inf between layers with 0 until their source is found.",
        lambda _: ZEROS,
    ),
    "eps": Words(
        lambda t: f"eps {t['eps']:g}",
        lambda t: f"Set `eps` of the optimizer to {t['eps']:g}: at its present value it dominates the step.",
        group_code("eps"),
    ),
    "weight_decay": Words(
        lambda t: f"weight decay {t['weight_decay']:g}",
        lambda t: f"Set the weight decay to {t['weight_decay']:g}.",
        group_code("weight_decay"),
    ),
    "optimizer": Words(
        lambda t: f"{t['name']} with rate {t['rate']:g}",
        lambda t: f"Train with {t['name']} at a learning rate of {t['rate']:g}.",
        lambda t: f"optimizer = torch.optim.{t['name']}(model.parameters(), lr={t['rate']:g})",
    ),
    "add_parameters": Words(
        lambda t: f"add {many(len(t['names']), 'parameter')} to the optimizer",
        lambda t: f"Pass {some(t['names'])} to the optimizer.",
        add_code,
    ),
    "rescale": Words(
        lambda t: f"rescale {many(len(t['factors']), 'layer')} (× {_range(t['factors'])})",
        lambda t: f"Scale the initial weights of {some(list(t['factors']))} by {_range(t['factors'])}.",
        rescale_code,
    ),
    "reinitialise": Words(
        lambda t: f"{'He' if t['how'] == 'he' else 'Xavier'} init of {many(len(t['layers']), 'layer')}",
        lambda t: f"Initialise {some(t['layers'])} at random ({'He' if t['how'] == 'he' else 'Xavier'}), biases at 0.",
        init_code,
    ),
    "reset_biases": Words(
        lambda t: f"biases of {many(len(t['layers']), 'layer')} at 0",
        lambda t: f"Start the biases of {some(t['layers'])} at 0.",
        lambda t: f"for path in {listed(t['layers'])}:\n    torch.nn.init.zeros_(model.get_submodule(path).bias)",
    ),
    "revive": Words(
        lambda t: f"revive {many(sum(map(len, t['units'].values())), 'dead unit')}",
        lambda t: f"Reinitialise the dead units in {some(list(t['units']))}.",
        units_code,
    ),
    "scale_recurrent": Words(
        lambda t: f"recurrent weights × {_range(t['factors'])}",
        lambda t: f"Scale {some(list(t['factors']))} by {_range(t['factors'])}.",
        scaled_tensors_code,
    ),
    "reinitialise_recurrent": Words(
        lambda t: "orthogonal recurrent weights",
        lambda t: f"Reinitialise {some(t['names'])}: recurrent weights orthogonal, input weights Xavier.",
        orthogonal_code,
    ),
    "scale_queries": Words(
        lambda t: f"queries and keys × {_range(t['factors'])}",
        lambda t: f"Scale the queries and keys of {some(list(t['factors']))} by {_range(t['factors'])}.",
        lambda t: (
            f"with torch.no_grad():\n    for name, factor in {mapping(t['factors'])}.items():\n"
            "        weight = model.get_parameter(name)  # rows: queries, keys, values\n"
            "        weight[: 2 * len(weight) // 3].mul_(factor)"
        ),
    ),
    "forget_gate": Words(
        lambda t: f"forget-gate bias {t['bias']:g}",
        lambda t: f"Start the forget-gate bias of {some(t['layers'])} at {t['bias']:g}.",
        forget_code,
    ),
    "qk_norm": Words(
        lambda t: f"QK-norm in {many(len(t['projections']), 'projection')}",
        lambda t: f"Normalise queries and keys ({some(list(t['projections']))}).",
        qk_code,
    ),
    "residual_scale": Words(
        lambda t: f"residual branches × {plain(t['scale'], 2)}",
        lambda t: f"Scale the residual branches of {some(t['blocks'])} by {plain(t['scale'], 2)}.",
        residual_code,
    ),
    "skip": Words(
        lambda t: f"skips around {many(len(t['blocks']), 'layer')}",
        lambda t: f"Add a skip connection around {some(t['blocks'])}.",
        skip_code,
    ),
    "bypass": Words(
        lambda t: f"skip connection around {some([pair[0] for pair in t['pairs']])}",
        lambda t: f"Add a skip connection around {some([pair[0] for pair in t['pairs']])}.",
        bypass_code,
    ),
    "way_around": Words(
        lambda t: f"new weights around {some([pair[0] for pair in t['pairs']])}",
        lambda t: f"Route the input of {some([pair[0] for pair in t['pairs']])} around it, through weights of its own.",
        way_code,
    ),
    "reattach": Words(
        lambda t: f"keep the graph in {_places(t)}",
        lambda t: f"Keep the graph in {_places(t)}: no `detach`, `.data` or `no_grad` there.",
        attach_code,
    ),
    "level_samples": Words(
        lambda t: (
            f"samples beyond {plain(t['limit'])} at the usual size{', outputs scaled back' if t['restore'] else ''}"
        ),
        lambda t: (
            f"Scale samples whose root mean square is above {plain(t['limit'])} to the usual {plain(t['usual'])}"
            f"{', and what the model returns for them back' if t['restore'] else ''}."
        ),
        level_code,
    ),
    "scale_outputs": Words(
        lambda t: f"outputs × {_range(t['factors'])}",
        lambda t: f"Scale what the model returns by {_range(t['factors'])}.",
        outputs_code,
    ),
    "safe_math": Words(
        lambda t: f"safe {some(list(dict.fromkeys(each['operator'] for each in t['lines'])))} in {_places(t)}",
        lambda t: f"Keep what is computed in {_places(t)} finite: that is where NaN or Inf arises.",
        safe_code,
    ),
    "activation": Words(
        lambda t: f"{' and '.join(sorted(set(t['modules'].values())))} for {many(len(t['modules']), 'activation')}",
        lambda t: f"Use {' and '.join(sorted(set(t['modules'].values())))} in {some(list(t['modules']))}.",
        swap_code,
    ),
    "norm": Words(
        lambda t: f"norm after {many(len(t['layers']), 'layer')}",
        lambda t: f"Normalise the outputs of {some(t['layers'])} (LayerNorm without parameters).",
        norm_code,
    ),
    "standardise": Words(
        lambda _: "standardise inputs",
        lambda t: (
            f"Standardise the inputs: their means reach {plain(max(map(abs, t['mean'])), 2)} and their deviations "
            f"{plain(max(t['std']), 2)}."
        ),
        standard_code,
    ),
}
"""Kind → its words."""
