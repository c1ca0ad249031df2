"""All rules on what was seen inside a network, in one list."""

from __future__ import annotations

from typing import Final

from gradient_flow.diagnosis.network import bottleneck as bottleneck_rules
from gradient_flow.diagnosis.network import dead as dead_rules
from gradient_flow.diagnosis.network import depth as depth_rules
from gradient_flow.diagnosis.network import levels as level_rules
from gradient_flow.diagnosis.network import numerical as numerical_rules
from gradient_flow.diagnosis.network import over_calls as call_rules
from gradient_flow.diagnosis.network import saturation as saturation_rules
from gradient_flow.diagnosis.network import stability as stability_rules
from gradient_flow.diagnosis.network import structure as structure_rules
from gradient_flow.diagnosis.network import updates as update_rules
from gradient_flow.diagnosis.registry import Rule

NETWORK_RULES: Final[tuple[Rule, ...]] = (
    numerical_rules.nonfinite_values,
    structure_rules.disconnected,
    structure_rules.unused,
    structure_rules.symmetry,
    structure_rules.copies,
    structure_rules.one_direction,
    structure_rules.one_for_all,
    structure_rules.hardly_apart,
    structure_rules.one_for_positions,
    structure_rules.pulled_together,
    dead_rules.dead_units,
    dead_rules.dead_head,
    dead_rules.idle_units,
    dead_rules.blocked_gradient,
    saturation_rules.saturation,
    bottleneck_rules.bottlenecks,
    depth_rules.vanishing_over_depth,
    depth_rules.exploding_over_depth,
    depth_rules.starved_layers,
    call_rules.fading_over_calls,
    call_rules.fading_over_positions,
    call_rules.cut_between_calls,
    call_rules.cut_into_parts,
    call_rules.growing_over_calls,
    update_rules.learning_rate_too_large,
    update_rules.learning_rate_too_small,
    stability_rules.unstable_norm,
    stability_rules.overshooting,
    level_rules.gradient_levels,
    level_rules.zero_gradients,
    level_rules.coefficient_of_variation,
)
