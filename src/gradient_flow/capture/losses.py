"""Hearing of each loss: the scalar that a backward pass starts from, before the pass runs.

`Tensor.backward`, and with it Lightning, Accelerate and the Trainer of Hugging Face, looks up `torch.autograd.backward`
at each call. With a listener that function is wrapped, and so is `GradScaler.scale`, to know a loss without its
scale; afterwards they are as they were. A pass inside a pass (reentrant checkpointing) is part of the outer one, and
`torch.autograd.grad` leaves no gradient behind, so neither is reported.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from gradient_flow.capture.optimizer_steps import FindShortcut, no_shortcut, running_backward
from gradient_flow.capture.sharding import is_sharded, local_part

Listener = Callable[[torch.Tensor], Callable[[], None]]
UnclearListener = Callable[[torch.Tensor | None], Callable[[], None]]
_MOST_SCALED: Final = 16
"""Scaled losses that are remembered: those of one step."""
_NEAREST: Final = 64
"""Operations next to the loss among which a parameter is looked for: usually it takes five to ten."""
_LEAF: Final = "AccumulateGrad"
_listeners: list[tuple[Listener, UnclearListener | None, FindShortcut]] = []
_restore: list[Callable[[], None]] = []
scaled: dict[int, _Scaled] = {}
"""By id, what scalers made of losses whose backward passes may still come."""
_known_scalers: list[Any] = []
"""`GradScaler` and the classes derived from it, as of when they were last looked through."""
_here = threading.local()
_ONCE: Final = -1
"""No id: stands for what an unknown scaler may have done."""
_MARK: Final = "_is_gradient_flow"


def listen(
    before: Listener, unclear: UnclearListener | None = None, shortcut: FindShortcut = no_shortcut
) -> Callable[[], None]:
    """Call `before(loss)` when a backward pass begins, and what it returns when that has ended without an error.

    `unclear` is called instead where the pass may be something else than that of a loss: with `create_graph`, with
    `inputs`, from several tensors (then without one) or with a gradient to start from. Returns a function that ends it.
    A plain `loss.backward()` that nobody else listens to is offered to the `shortcut` first.
    """
    if not _listeners:
        _wrap_all()
    entry = (before, unclear, shortcut)
    _listeners.append(entry)

    def end() -> None:
        _listeners[:] = [each for each in _listeners if each is not entry]
        while _restore and not _listeners:
            _restore.pop()()

    return end


@contextmanager
def unheard() -> Iterator[None]:
    """Report nothing that this thread does in here: it is undone afterwards and is no training."""
    before = getattr(_here, "unheard", False)
    _here.unheard = True
    try:
        yield
    finally:
        _here.unheard = before


def is_unheard() -> bool:
    """Whether what this thread does now is no part of a training."""
    return bool(getattr(_here, "unheard", False))


def value_of(loss: torch.Tensor) -> torch.Tensor | None:
    """The value of the loss being reported, without the scale of a `GradScaler`; None where it cannot be known.

    It may share memory with the loss.
    """
    known = scaled.get(id(loss))
    if known is not None and known.value is not None and known.output() is loss:
        loss = known.value
        if loss._version != known.version:  # the loss was changed after it was scaled
            return None
    elif scaled and any(each.is_open for each in scaled.values()):
        return None  # it may contain what was scaled: `(scaler.scale(loss) / 4).backward()`
    if loss.is_cuda and torch.cuda.is_current_stream_capturing():
        return None  # what is done now would become part of a CUDA graph
    if type(loss) is torch.Tensor:
        return loss.detach()
    placements: Any = getattr(loss, "placements", ()) if is_sharded(loss) else ()
    if not all(placement.is_replicate() for placement in placements):
        return None  # this rank has a part of it, and asking the others would make them wait
    value: torch.Tensor = local_part(loss)
    return value


def scaler_of(loss: torch.Tensor) -> Any:
    """The `GradScaler` that scaled the loss being reported; None where none did, or where it is not known."""
    if not scaled:
        return None
    known = scaled.get(id(loss))
    if known is None or known.output() is not loss:  # it may contain what was scaled: `scaler.scale(loss) / 4`
        known = next((each for each in scaled.values() if each.is_open), None)
    return None if known is None else known.scaler()


def scale_of(loss: torch.Tensor) -> float:
    """What a `GradScaler` multiplied the loss with that is told of now; 1 where none did, or where it is not known."""
    scaler = scaler_of(loss)
    return 1.0 if scaler is None or not scaler.is_enabled() else float(scaler.get_scale())


class NearestParameter:
    """Finds a parameter that is known and gets its gradient from a loss, among the operations next to it.

    Nearly every loss of a training is computed in the same way: where one was found the last time is looked first.
    """

    def __init__(self, is_known: Callable[[torch.Tensor], bool]) -> None:
        self._is_known = is_known
        self._path: list[int] = []
        self.last: Callable[[], torch.Tensor | None] = nothing
        """The parameter that was found last, while it exists."""
        self.steady = True
        """Whether every loss so far led to the same one."""

    def of(self, loss: torch.Tensor) -> torch.Tensor | None:
        """The parameter, if there is one so near."""
        again = self.again(loss)
        if again is not None:
            return again
        self.steady = self.steady and self.last() is None
        return self._search(loss)

    def again(self, loss: torch.Tensor) -> torch.Tensor | None:
        """The parameter that was found last, if it is there again."""
        last = self.last()
        if last is None:
            return None
        node: Any = loss.grad_fn
        try:
            for at in self._path:
                node = node.next_functions[at][0]
            return last if node.variable is last else None
        except (AttributeError, IndexError):  # this loss is computed in another way
            return None

    def _search(self, loss: torch.Tensor) -> torch.Tensor | None:
        nodes: list[tuple[Any, int, int]] = [(loss.grad_fn, -1, 0)]
        """Each with the place in this list of the one that led to it, and where it was among its children."""
        seen: set[Any] = set()
        for place, (node, _, _) in enumerate(nodes):  # in order of their distance: the list grows meanwhile
            if type(node).__name__ == _LEAF:
                parameter: torch.Tensor = node.variable
                if self._is_known(parameter):
                    self.last, self._path = weakref.ref(parameter), []
                    while place:
                        _, before, at = nodes[place]
                        self._path.insert(0, at)
                        place = before
                    return parameter
            elif len(nodes) < _NEAREST:
                for at, (child, _) in enumerate(node.next_functions):
                    if child is not None and child not in seen:
                        seen.add(child)
                        nodes.append((child, place, at))
        return None


def reached(loss: torch.Tensor, is_known: Callable[[torch.Tensor], bool]) -> torch.Tensor | None:
    """The same for a single loss."""
    return NearestParameter(is_known).of(loss)


def _wrap_all() -> None:
    _replace(torch.autograd, "backward", _telling(torch.autograd.backward))
    _restore.append(scaled.clear)
    for scaler in _unwrapped_scalers():
        _wrap_scale(scaler)


def _replace(owner: Any, name: str, ours: Any) -> None:
    original = getattr(owner, name)

    def restore() -> None:
        if vars(owner).get(name) is ours:  # else another tool has put its own function there
            setattr(owner, name, original)

    setattr(owner, name, ours)
    _restore.append(restore)


def _telling(backward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(backward)
    def tell_then_run(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: Any = None,
        create_graph: Any = False,
        grad_variables: Any = None,
        inputs: Any = None,
        **further: Any,
    ) -> Any:
        afterwards: list[Callable[[], object]] = []
        if running_backward() is None and not torch.compiler.is_compiling() and not getattr(_here, "unheard", False):
            given = grad_tensors if grad_variables is None else grad_variables
            clear = not create_graph and inputs is None
            after = _short(tensors) if clear and given is None and not further else None
            if after is not None:
                afterwards = [after]
            else:
                loss, is_loss = _root(tensors, given)
                if is_loss:
                    afterwards = _tell(loss, clear=clear)
        result = backward(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs, **further)
        for after in afterwards:
            after()
        return result

    return tell_then_run


def _short(loss: Any) -> Callable[[], object] | None:
    """What to call after the pass, where the only listener takes it by a shortcut."""
    if len(_listeners) != 1 or (short := _listeners[0][2]()) is None:
        return None
    # A scaler is told of in the general way, and a class of scalers that was imported meanwhile is seen there.
    if scaled or _has_new_scaler() or type(loss) is not torch.Tensor or loss.numel() != 1 or loss.grad_fn is None:
        return None
    return short.pass_begins(loss)


def _has_new_scaler() -> bool:
    return sum([len(each.__subclasses__()) for each in _known_scalers]) != len(_known_scalers) - 1


def _root(tensors: Any, gradients: Any) -> tuple[torch.Tensor | None, bool]:
    """The one scalar that a pass starts from, if it is one; and whether there is a loss in it at all."""
    if gradients is None and type(tensors) is torch.Tensor and not tensors.is_complex():  # `loss.backward()`
        is_scalar = tensors.numel() == 1 and tensors.grad_fn is not None
        return tensors if is_scalar else None, is_scalar
    several = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    given = gradients if isinstance(gradients, (list, tuple)) else [gradients]
    if not all(isinstance(each, torch.Tensor) for each in several):
        return None, True  # edges of a graph, or an iterator that is not ours to use up
    scalars = [each for each in several if each.numel() == 1 and each.grad_fn is not None]
    alone = len(several) == 1 and all(each is None for each in given) and not any(map(torch.is_complex, scalars))
    return scalars[0] if scalars and alone else None, bool(scalars)


def _tell(loss: torch.Tensor | None, *, clear: bool) -> list[Callable[[], object]]:
    afterwards: list[Callable[[], object]] = []
    if _has_new_scaler():
        for scaler in _unwrapped_scalers():  # a class that was imported meanwhile, and may have scaled this very loss
            _wrap_scale(scaler)
            scaled[_ONCE] = _Scaled(None, None)
    for before, unclear, _ in _listeners:  # also one that a listener adds just now
        if clear and loss is not None:
            afterwards.append(before(loss))
        elif unclear is not None:
            afterwards.append(unclear(loss))
    if scaled:
        _close_scaled(loss)
        scaled.pop(_ONCE, None)
    return afterwards


class _Scaled:
    """What a `GradScaler` made of a loss; without one where it made something else."""

    def __init__(self, output: torch.Tensor | None, loss: torch.Tensor | None, scaler: Any = None) -> None:
        self.output: Callable[[], Any] = nothing if output is None else weakref.ref(output)
        self.value = None if loss is None else loss.detach()
        self.version = -1 if self.value is None else self.value._version
        self.scaler: Callable[[], Any] = nothing if scaler is None else weakref.ref(scaler)
        self.is_open = True
        """Whether no backward pass has come that may have been for it."""


def nothing() -> None:
    """What to call after a pass that is of no interest; and what a reference to a tensor that is gone gives."""


def _close_scaled(loss: torch.Tensor | None) -> None:
    """A pass was reported: forget what was scaled before its loss, or possibly in it."""
    known = None if loss is None else scaled.get(id(loss))
    if known is not None and known.output() is not loss:
        known = None
    for key, each in list(scaled.items()):
        each.is_open = each.is_open and each.value is None
        if each is known:
            return
        if not each.is_open and each.output() is None:
            del scaled[key]


def _unwrapped_scalers() -> list[Any]:
    """`GradScaler` and the classes derived from it, as far as they scale by a function that is not wrapped yet."""
    _known_scalers[:] = _scalers()
    return [each for each in _known_scalers if "scale" in vars(each) and not hasattr(vars(each)["scale"], _MARK)]


def _scalers() -> list[Any]:
    classes: list[Any] = [torch.amp.GradScaler]
    for each in classes:
        classes += each.__subclasses__()
    return classes


def _wrap_scale(scaler: Any) -> None:
    original = scaler.scale

    @functools.wraps(original)
    def scale_and_note(self: Any, outputs: Any) -> Any:
        result = original(self, outputs)
        if not torch.compiler.is_compiling():
            _note_scaled(result, outputs, self)
        return result

    setattr(scale_and_note, _MARK, True)
    _replace(scaler, "scale", scale_and_note)


def _note_scaled(result: Any, losses: Any, scaler: Any) -> None:
    several = isinstance(result, (list, tuple)) and isinstance(losses, (list, tuple))
    for output, loss in zip(result, losses, strict=True) if several else [(result, losses)]:
        if output is loss:
            continue  # the scaler is switched off
        both = isinstance(output, torch.Tensor) and isinstance(loss, torch.Tensor)
        scaled.pop(id(output), None)  # an id that a dead one left
        scaled[id(output)] = _Scaled(output, loss, scaler) if both else _Scaled(None, None, scaler)
    while len(scaled) > _MOST_SCALED:
        del scaled[next(iter(scaled))]
