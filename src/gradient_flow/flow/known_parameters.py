"""The parameters that a watch knows: by name, without keeping them alive, because the model may go before we do."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

import torch

from gradient_flow.capture.parameters import KnownParameter, optimizer_parameters
from gradient_flow.record.step import describe_parameter

Named = list[tuple[str, torch.Tensor]]


class KnownParameters:
    """Parameters by identity and by name, in the order they became known."""

    def __init__(self, parameters: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._known: dict[int, KnownParameter] = {}
        self.described: list[dict[str, Any]] = []
        """What the header of a run says of each."""
        self.places: dict[str, int] = {}
        """Name → place in `described`."""
        self._of: dict[int, tuple[list[tuple[str, int]], list[weakref.ref[torch.Tensor]]]] = {}
        """Optimizer → its parameters in its own order, and names and places among them in the order of the model."""
        self.add(parameters)

    def add(self, parameters: Sequence[tuple[str, torch.Tensor]]) -> list[dict[str, Any]]:
        """Know further parameters; their descriptions."""
        self._of.clear()
        for name, parameter in parameters:
            self._known[id(parameter)] = KnownParameter(name, weakref.ref(parameter))
        return self._describe([describe_parameter(name, parameter) for name, parameter in parameters])

    def add_names(self, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
        """Know tensors of other ranks, which tell their size and not their shape."""
        return self._describe([{"name": name, "shape": [size], "dtype": ""} for name, size in sizes.items()])

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Those of the names that are new."""
        return [name for name in names if name not in self.places]

    def add_from(self, optimizer: torch.optim.Optimizer, number: int, names: Mapping[int, str]) -> list[dict[str, Any]]:
        """Add the parameters of an optimizer that are new; `names` maps ids of parameters to names."""
        new = []
        for name, parameter in optimizer_parameters(optimizer):
            if self.name_of(parameter) is not None:
                continue
            name = names.get(id(parameter), name)
            has_name = id(parameter) in names or not name[0].isdigit()  # else it is only a position
            unique = has_name and name not in self.places
            new.append((name if unique else f"optimizer{number}.{name}", parameter))
        return self.add(new)

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """Its name, if this very object is known."""
        known = self._known.get(id(parameter))
        return known.name if known is not None and known.parameter() is parameter else None

    def live(self) -> Named:
        """Those that still exist."""
        found = [(known.name, known.parameter()) for known in self._known.values()]
        return [(name, parameter) for name, parameter in found if parameter is not None]

    def of(self, optimizer: torch.optim.Optimizer) -> Named | None:
        """What an optimizer steps, in the order of the model; None if it has a parameter that is not known."""
        held = [p for group in optimizer.param_groups for p in group["params"]]
        order, references = self._of.get(id(optimizer), ([], []))
        if len(references) == len(held) and all(map(is_, [reference() for reference in references], held)):
            return [(name, held[at]) for name, at in order]  # the same as in the step before
        inside = {id(p): p for p in held}
        found = [(name, p) for p in inside.values() if (name := self.name_of(p)) is not None]
        if len(found) < len(inside):
            return None
        # An optimizer per parameter is common enough: what one of them costs must not grow with the model.
        named = sorted(found, key=lambda pair: self.places[pair[0]])
        at = {id(p): position for position, p in enumerate(held)}
        self._of[id(optimizer)] = [(name, at[id(p)]) for name, p in named], [weakref.ref(p) for p in held]
        return named

    @property
    def names(self) -> list[str]:
        """In the order of the header."""
        return [each["name"] for each in self.described]

    def _describe(self, described: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for place, each in enumerate(described, start=len(self.described)):
            self.places.setdefault(each["name"], place)
        self.described += described
        return described
