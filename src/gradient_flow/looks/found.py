"""What a probe found, as a look keeps it."""

from __future__ import annotations

from typing import Any

from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.record.plain import to_plain


def found_by(stats: Any, **settings: Any) -> dict[str, Any]:
    """What a probe found, with the settings that it is to be judged by."""
    return {"stats": to_plain(stats), "settings": to_plain(settings)}


def policy_head(record: AnalysisRecord | None, actions: float | None) -> str:
    """The last layer with a unit per action; where none has, as for continuous actions, the one before the loss."""
    if record is None:
        return "policy"
    wanted = round(actions or 0)
    fitting = [place.name for place in record.places if place.own_weights and place.units == wanted]
    return fitting[-1] if fitting else record.output_layer
