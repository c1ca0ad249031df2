"""What a probe found, as a look keeps it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradient_flow.diagnosis.network.bottleneck import heads_of
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.probes.policy.stats import PolicyStats
from gradient_flow.record.plain import to_plain


def found_by(stats: Any, **settings: Any) -> dict[str, Any]:
    """What a probe found, with the settings that it is to be judged by."""
    return {"stats": to_plain(stats), "settings": to_plain(settings)}


def with_bounded_mean(stats: PolicyStats, network: AnalysisRecord) -> PolicyStats:
    """Where the range of actions is not known: how often the mean is at an end of the tanh that makes it."""
    behind = (each for each in network.activations if each.is_last and not each.in_branch)
    last = next((each for each in behind if each.kind == "Tanh"), None)
    if last is None or stats.continuous_std_mean is None or stats.mean_saturation is not None:
        return stats
    return replace(stats, mean_saturation=last.flat_share, mean_squashed=True)


def policy_head(record: AnalysisRecord | None, actions: float | None) -> str:
    """The last layer with a unit per action. Of continuous actions, the last of the heads side by side: that of their
    deviation as a rule. Where there are none, the layer before the loss.
    """
    if record is None:
        return "policy"
    wanted = round(actions or 0)
    fitting = [place.name for place in record.places if place.own_weights and place.units == wanted]
    if fitting:
        return fitting[-1] or "policy"
    known = {index for chain in record.chains for index in chain}
    chain = [record.places[index] for index in record.chains[0]] if record.chains else []
    heads = heads_of(chain, [place for index, place in enumerate(record.places) if index not in known])
    wide = [head for head in heads if head.units > 1]  # one number is a value
    return ((wide or heads)[-1].name if heads and actions is None else record.output_layer) or "policy"
