"""Who is to blame for a non-finite result: the operator, what it was fed, or whatever that came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradient_flow.capture.autograd_graph import graph_behind
from gradient_flow.capture.parameters import module_parameters
from gradient_flow.probes.nonfinite.call_places import CallPlaces, Whereabouts, custom_function, tidy
from gradient_flow.probes.nonfinite.calls import OperatorCall
from gradient_flow.probes.nonfinite.operators import MASKABLE, UNINITIALISED
from gradient_flow.probes.nonfinite.origins import Origin, Regions
from gradient_flow.probes.nonfinite.tensor_range import has_nan, has_nonfinite, range_of
from gradient_flow.probes.nonfinite.where import NOWHERE

_SHAPES_ONLY = ("_like", "new_zeros", "new_ones", "new_full", "new_empty")


class Attribution:
    """Gives every non-finite tensor its origin.

    A result of finite operands is the operator's own doing. Otherwise the origin of the operands is handed on, with one
    exception: Inf that may be there on purpose (a mask) is no fault, so an operator that makes NaN of it is.
    """

    def __init__(self, model: nn.Module, places: CallPlaces) -> None:
        self._places = places
        self._origins: Regions[Origin] = Regions()
        self._owners: Regions[tuple[str, str, torch.Tensor]] = Regions()
        self._left_empty: Regions[Whereabouts] = Regions()
        self._count = 0
        self.roots: list[Any] = []
        """The nodes that backward passes started from."""
        for kind, named in (("buffer", model.named_buffers()), ("parameter", module_parameters(model))):
            for name, tensor in named:
                if not is_lazy(tensor):
                    self._owners.put(tensor, (kind, tidy(name), tensor))

    def __bool__(self) -> bool:
        return bool(self._origins)

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """These were written over."""
        for tensor in tensors:
            self._origins.clear(tensor)

    def note_left_empty(self, call: OperatorCall, results: Iterable[torch.Tensor]) -> None:
        """Memory that a custom function leaves empty is for a kernel that torch does not see."""
        here = self._places.where(call.node, call.operator.name)
        for tensor in results if here.custom is not None else ():
            self._left_empty.put(tensor, here)

    def attribute(self, call: OperatorCall, bad: list[torch.Tensor]) -> Origin:
        """The origin of the non-finite results of a call; they carry it from now on."""
        origin = self._decide(call, bad)
        self._note_times_zero(call, origin, bad[0])
        for tensor in bad:
            self._origins.put(tensor, origin)
        return origin

    def _decide(self, call: OperatorCall, bad: list[torch.Tensor]) -> Origin:
        here = self._places.where(call.node, call.operator.name)
        fed, made_here = call.culprits(bad[0])
        if not fed or (call.is_fresh_tensor and (here.custom or call.copies_numbers)):
            return self._produced(call, here, bad)
        carried = first([self.origin(operand.tensor, operand.name, call) for operand in fed])
        if not carried.meant:
            return carried
        if any(map(has_nan, bad)) and not any(has_nan(operand.before) for operand in fed):
            if carried.kind == "constant" or call.operator.name in MASKABLE:
                return self._produced(call, here, bad, came_from=carried)
            carried.meant = False  # no mask after all: what made NaN of it does not take masks
        elif made_here:
            return first([carried, self._produced(call, here, bad)])
        return carried

    def _produced(
        self, call: OperatorCall, here: Whereabouts, bad: list[torch.Tensor], came_from: Origin | None = None
    ) -> Origin:
        unwritten = call.operator.name in UNINITIALISED
        given = unwritten or call.gives_nonfinite_number or (call.is_fresh_tensor and not here.custom)
        operands = [] if call.is_fresh_tensor else call.operands
        fault = range_of("output", bad[0])
        meeting = fault.first_bad if call.operator.elementwise else None
        return self._new(
            here,
            kind="constant" if given and came_from is None else "operation",
            aten=call.operator.full,
            inputs=(
                *(range_of(operand.name, operand.before, meeting, fault.shape) for operand in operands[:6]),
                *call.telling_numbers(),
            ),
            outputs=(fault, *(range_of("output", tensor) for tensor in bad[1:3])),
            meant=given and came_from is None and (unwritten or not any(map(has_nan, bad))),
            unwritten=unwritten,
            came_from=came_from,
        )

    def origin(self, tensor: torch.Tensor, name: str, call: OperatorCall | None) -> Origin:
        """The origin that a non-finite tensor carries, or a new one if it came from outside of the operators."""
        known = self._origins.find(tensor)
        found = first(known) if known else None
        if found is not None and found.kind == "input" and found.name is None:
            self._name_argument(found, tensor)
        if found is None or found.unwritten:
            # Memory that torch left unwritten may since have been written by a kernel that torch does not see.
            found = self._by_unseen_function(tensor, call) or found or self._from_outside(tensor, name, call)
            self._origins.put(tensor, found)
        return found

    def _from_outside(self, tensor: torch.Tensor, name: str, call: OperatorCall | None) -> Origin:
        here = Whereabouts("forward", NOWHERE, "")
        if call is not None:
            here = self._places.where(call.node, call.operator.name)
        aten = call.operator.full if call is not None else ""
        for kind, owned_name, owned in self._owners.find(tensor):
            extent = range_of(owned_name, owned)
            if extent.bad:
                meant = kind == "buffer" and extent.could_be_a_mask
                return self._new(here, kind=kind, name=owned_name, aten=aten, inputs=(extent,), meant=meant)
        extent = range_of(name, tensor)
        origin = self._new(here, kind="input", aten=aten, inputs=(extent,), meant=extent.could_be_a_mask)
        self._name_argument(origin, tensor)
        return origin

    def _by_unseen_function(self, tensor: torch.Tensor, call: OperatorCall | None) -> Origin | None:
        """A custom `autograd.Function` that computes outside of torch shows only in what it returns."""
        here = next(iter(self._left_empty.find(tensor)), None)
        if here is None and (name := custom_function(tensor.grad_fn)):
            here = Whereabouts("forward", self._places.made(tensor.grad_fn).place, name)
        if here is None and call is not None and call.node is not None:
            leading = (n for n in graph_behind(self.roots) if any(f is call.node for f, _ in n.next_functions))
            node = next((n for n in leading if custom_function(n)), None)
            if node is not None:
                here = Whereabouts("backward", self._places.made(node).place, f"{custom_function(node)} backward")
        if here is None:
            return None
        return self._new(here, kind="operation", aten="", outputs=(range_of("output", tensor),))

    def _name_argument(self, origin: Origin, tensor: torch.Tensor) -> None:
        found = self._places.model_argument(tensor)
        if found is not None:
            origin.name, origin.position = found
            origin.inputs = tuple(replace(extent, name=found[0]) for extent in origin.inputs)

    def note_absorbed(self, call: OperatorCall, results: Iterable[torch.Tensor]) -> None:
        """Remember which operator made finite results of non-finite operands."""
        if call.operator.name.startswith(_SHAPES_ONLY[1:]) or call.operator.name.endswith(_SHAPES_ONLY[0]):
            return
        if not any(result.is_floating_point() or result.is_complex() for result in results):
            return  # a comparison or a test looks at values and hands none on
        for operand in call.operands:
            for origin in self._origins.find(operand.tensor) if has_nonfinite(operand.before) else ():
                here = self._places.where(call.node, call.operator.name)
                origin.hidden = origin.hidden or (here.operator, here.place)

    def _note_times_zero(self, call: OperatorCall, origin: Origin, result: torch.Tensor) -> None:
        """Tell when NaN is the product of Inf and a gradient of exactly zero: of a value that is not used."""
        if call.node is None or origin.times_zero or not call.operator.elementwise:
            return
        if not has_nan(result) or any(has_nan(operand.before) for operand in call.operands):
            return
        fault = range_of("output", result)
        meeting = [range_of(o.name, o.before, fault.first_bad, fault.shape).at_fault for o in call.operands]
        if 0.0 in meeting:
            origin.times_zero = True
            origin.hidden = origin.hidden or self._places.hider_of(call.node)

    def _new(self, here: Whereabouts, **about: Any) -> Origin:
        self._count += 1
        return Origin(order=self._count, phase=here.phase, place=here.place, operator=here.operator, **about)


def first(origins: list[Origin]) -> Origin:
    """Whom to blame of several."""
    return min(origins, key=lambda origin: origin.rank)
