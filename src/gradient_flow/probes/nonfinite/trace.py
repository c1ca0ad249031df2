"""Every operator of a step under watch: where the first non-finite value was made that went on to the loss."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gradient_flow.capture.parameters import module_parameters
from gradient_flow.probes.nonfinite.attribution import Attribution, first
from gradient_flow.probes.nonfinite.call_places import CallPlaces
from gradient_flow.probes.nonfinite.calls import OperatorCall, tensors_in
from gradient_flow.probes.nonfinite.operators import UNINITIALISED
from gradient_flow.probes.nonfinite.origins import Origin
from gradient_flow.probes.nonfinite.tensor_range import has_nonfinite
from gradient_flow.probes.nonfinite.where import called_by


class _Leaf(NamedTuple):
    """A leaf and the gradient that it had, which later passes may have added to."""

    tensor: torch.Tensor
    gradient: torch.Tensor | None
    values: torch.Tensor | None


class OperationTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its modes untyped
    """While entered, looks at the results of every operator and remembers where non-finite ones come from.

    Each non-finite tensor carries its origin. An operator with a non-finite operand hands it on unless its result is
    finite: then the value was absorbed and does no harm. Afterwards `bad_losses` has the origins of non-finite losses
    that a backward pass started from, and `bad_gradients` those of gradients that reached a leaf, with the names of
    parameters. A failure in here never stops the step; the first is kept in `trouble`.
    """

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {id(parameter): name for name, parameter in module_parameters(model)}
        self._places = CallPlaces(model)
        self._attribution = Attribution(model, self._places)
        self._leaves: dict[int, _Leaf] = {}
        self._graph_task = -1
        self.saw_backward = False
        """Whether a gradient arrived at a leaf."""
        self.bad_losses: list[Origin] = []
        self.bad_gradients: list[tuple[str | None, Origin]] = []
        self.latest: Origin | None = None
        """Of the newest non-finite result that is not there on purpose."""
        self.at_exception: Origin | None = None
        """Of what was fed to an operator that raised."""
        self.trouble: str | None = None

    def __enter__(self) -> OperationTrace:
        self._places.stop = sys._getframe(1)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *problem: Any) -> None:
        self._places.stop = None
        super().__exit__(*problem)  # type: ignore[no-untyped-call]

    def origin_of(self, tensor: torch.Tensor) -> Origin | None:
        """Where the non-finite elements of a tensor come from; None if it has none."""
        return self._attribution.origin(tensor, "loss", None) if has_nonfinite(tensor) else None

    def put_gradients_back(self) -> None:
        """Give every leaf that received a gradient the `.grad` it had: the same tensor with the same values."""
        for leaf in self._leaves.values():
            if leaf.gradient is not None and leaf.values is not None:
                leaf.gradient.data.copy_(leaf.values)
            leaf.tensor.grad = leaf.gradient
        self._leaves.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = self._safely(OperatorCall.before, func, args, kwargs)
        if call is not None and call.node is not None:
            self._safely(self._keep_gradient, call.node)
        try:
            result = func(*args, **kwargs)
        except Exception:
            if call is not None:
                self._safely(self._failed, call)
            raise
        if call is not None:
            self._safely(self._after, call, result)
        return result

    def _safely(self, step: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return step(*arguments)
        except Exception as problem:  # whatever it is, the step under watch goes on
            self.trouble = self.trouble or in_short(problem)
            return None

    def _after(self, call: OperatorCall, result: Any) -> None:
        results = {id(tensor): tensor for _, tensor in tensors_in({"result": result})}
        self._places.record_node(call.node, call.operator.name, call.makes_node(results.values()))
        if call.node is not None:
            self._note_root(call.node)
            self._places.note_hider(call.node)
            self._note_gradient(call)
        elif call.operator.full.startswith("aten.ones_like"):
            self._note_loss(call)
        if call.operator.is_view:
            return
        written = call.written
        results.update((id(tensor), tensor) for tensor in written)
        if call.operator.name in UNINITIALISED:
            self._attribution.note_left_empty(call, results.values())
        bad = [tensor for tensor in results.values() if has_nonfinite(tensor)]
        if bad:
            origin = self._attribution.attribute(call, bad)
            self.latest = self.latest if origin.meant else origin
        else:
            if self._attribution and call.node is None:
                self._attribution.note_absorbed(call, results.values())
            self._attribution.forget(written)

    def _failed(self, call: OperatorCall) -> None:
        bad = [operand for operand in call.operands if has_nonfinite(operand.before)]
        if bad:
            self.at_exception = first([self._attribution.origin(o.tensor, o.name, call) for o in bad])

    def _note_loss(self, call: OperatorCall) -> None:
        """A backward pass that is given no gradient starts from ones like its loss."""
        loss = call.operands[0].tensor
        if called_by(sys._getframe(), "_make_grads"):
            self._attribution.roots.append(loss.grad_fn)
            if has_nonfinite(loss):
                self.bad_losses.append(self._attribution.origin(loss, "loss", call))

    def _note_root(self, node: Any) -> None:
        """A pass that is given its gradient, as those inside of checkpointing are, shows by its first node at work."""
        task = torch._C._current_graph_task_id()
        if task != self._graph_task:
            self._graph_task = task
            self._attribution.roots.append(node)

    def _keep_gradient(self, node: Any) -> None:
        leaf = _leaf_of(node)
        if leaf is not None and id(leaf) not in self._leaves:
            self.saw_backward = True
            gradient = leaf.grad
            self._leaves[id(leaf)] = _Leaf(leaf, gradient, None if gradient is None else gradient.detach().clone())

    def _note_gradient(self, call: OperatorCall) -> None:
        leaf = _leaf_of(call.node)
        if leaf is None:
            return
        for operand in call.operands:
            if has_nonfinite(operand.before):
                origin = self._attribution.origin(operand.tensor, operand.name, call)
                self.bad_gradients.append((self._names.get(id(leaf)), origin))


def in_short(problem: BaseException) -> str:
    """An exception's type and the first line of its text, which torch may follow with pages."""
    return f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]:.200}"


def _leaf_of(node: Any) -> torch.Tensor | None:
    """The leaf whose gradient a node accumulates, if it is that kind of node."""
    return getattr(node, "variable", None) if node.name().endswith("AccumulateGrad") else None
