"""The parts of a step record: parameters described, values made plain, numbers picked out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def describe_parameter(name: str, parameter: torch.Tensor) -> dict[str, Any]:
    """What the header of a run says of a parameter."""
    return {"name": name, "shape": list(parameter.shape), "dtype": str(parameter.dtype).removeprefix("torch.")}


def plain_value(value: Any) -> Any:
    """A tensor or array of one element as a number, of several as a list; anything else as it is."""
    if hasattr(value, "numel") and value.numel() != 1:
        return value.tolist()
    return value.item() if hasattr(value, "item") else value


def numbers_in(record: Mapping[str, Any]) -> list[tuple[str, float]]:
    """What of a step record goes into the history: its numbers, and the learning rates as `lr`, `lr1`, …"""
    numbers = [(k, float(v)) for k, v in record.items() if isinstance(v, (int, float)) and not isinstance(v, bool)]
    rates = record.get("lr")
    rates = rates if isinstance(rates, list) else []
    return numbers + [("lr" if i == 0 else f"lr{i}", float(rate)) for i, rate in enumerate(rates)]
