"""What to do about a recurrent network that forgets or explodes, with the value where it follows from the evidence."""

from __future__ import annotations

import math

from gradient_flow.diagnosis.treatment import Advice, Treatment
from gradient_flow.diagnosis.words import plain
from gradient_flow.probes.recurrent.stats import ModuleDynamics


def advice_for_growth(unit: ModuleDynamics, optimal_radius: float) -> list[str]:
    """Ranked advice where states or gradients grow with time."""
    advice: list[str] = []
    radius, exponent = unit.spectral_radius, unit.lyapunov_exponent
    if unit.recurrent_weight and radius:
        factor = optimal_radius / radius
        exact = "" if unit.kind in ("RNN", "RNNCell") else ", then measure again: the gates change too"
        advice.append(
            Advice(
                f"Scale `{unit.recurrent_weight}` by {plain(factor)} (= optimal radius {optimal_radius:g} / measured "
                f"{plain(radius)}){exact}.",
                Treatment("scale_recurrent", {"factors": {unit.recurrent_weight: factor}}),
            )
        )
        advice.append(f"Or start from `torch.nn.init.orthogonal_({unit.recurrent_weight}, gain={optimal_radius:g})`.")
    if exponent is not None and exponent > 0:
        steps = max(1, math.floor(math.log(100) / exponent))
        advice.append(f"Shorten BPTT to {steps} steps (detach the state): over that many the gradient grows 100-fold.")
    advice.append(
        "Clip the gradient norm (`clip_gradients(model, max_norm=1.0)`): that limits the damage of a single step."
    )
    return advice


def advice_for_forgetting(unit: ModuleDynamics, optimal_radius: float, lag: float | None) -> list[str]:
    """Ranked advice where the past fades too fast; `lag` is how far back the task reaches, where that is known."""
    advice: list[str] = []
    reach = lag or 50.0
    for_lag = f"memory of {reach:g} steps"
    # A gate that keeps exp(-1 / reach) of the state per step loses 1 - 1/e of it in `reach` steps.
    keep = math.exp(-1 / reach)
    bias = math.log(keep / (1 - keep))
    if "LSTM" in unit.kind:
        given = f"+{bias:.1f}" if lag else "+1 to +2"
        why = f" (a forget gate of {keep:.3f}, for a {for_lag})" if lag else ""
        advice.append(
            Advice(
                f"Set the forget-gate bias to {given}{why}: torch starts it near 0, which keeps half of the state.",
                Treatment("forget_gate", {"layers": [unit.module], "bias": round(bias, 1) if lag else 1.0}),
            )
        )
    elif "GRU" in unit.kind:
        given = f"+{bias:.1f}" if lag else "+1 to +2"
        why = f" (a gate of {keep:.3f}, for a {for_lag})" if lag else ""
        advice.append(f"Set the update-gate bias to {given}{why}: in torch's GRU that gate keeps the old state.")
    radius = unit.spectral_radius
    if unit.recurrent_weight and radius and "RNN" in unit.kind:
        factor = optimal_radius / radius
        advice.append(
            Advice(
                f"Scale `{unit.recurrent_weight}` by {plain(factor)} (= optimal radius {optimal_radius:g} / measured "
                f"{plain(radius)}).",
                Treatment("scale_recurrent", {"factors": {unit.recurrent_weight: factor}}),
            )
        )
    if unit.recurrent_weight:
        gain = f", gain={optimal_radius:g}" if "RNN" in unit.kind else ""
        advice.append(f"Orthogonal init: `torch.nn.init.orthogonal_({unit.recurrent_weight}{gain})`.")
    if "LSTM" not in unit.kind and "GRU" not in unit.kind:
        advice.append("If the task needs a longer memory, use an LSTM, a GRU or a skip connection over time.")
    memory = unit.effective_memory_length
    if lag is None and memory is not None:
        advice.append(
            f"If the task looks back no more than about {max(1, round(4 * memory)):,} steps, do nothing; pass "
            "`required_lag` to silence this."
        )
    return advice


def advice_for_rank(unit: ModuleDynamics) -> list[str]:
    """Ranked advice where the states use few of their dimensions."""
    advice: list[str] = []
    if unit.sample_rank is not None and unit.sample_rank < 1:
        advice.append("Look for saturated or dead units: the input changes and the state hardly does.")
    advice.append(
        "Check the scale of the inputs: large ones saturate the units, and one large feature drowns the rest."
    )
    if unit.recurrent_weight:
        advice.append(
            f"Initialise with `torch.nn.init.orthogonal_({unit.recurrent_weight})`, which treats all directions alike."
        )
    advice.append("If the task needs no more dimensions, use a smaller hidden size.")
    return advice
