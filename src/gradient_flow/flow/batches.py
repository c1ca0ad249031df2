"""Which batch a step was made of: every step keeps a few elements of it; a spike or a NaN has it written down.

One hook on the model's own forward takes the elements. It comes with the third step, when a model that is compiled has
been, and not at all where there is compiled code.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from threading import get_ident
from typing import Any, Final

import torch
from torch import is_grad_enabled, nn
from torch._C import _get_tracing_state
from torch._C._functorch import peek_interpreter_stack

from gradient_flow.capture import data_loaders, losses
from gradient_flow.capture.batch_identity import (
    ELEMENTS,
    STEP,
    Lying,
    Sample,
    hash_of,
    process_salt,
    same_tensor,
    sample_of,
)
from gradient_flow.capture.compiled import compiled_graphs
from gradient_flow.capture.module_calls import aside, has_modes, tensors_in
from gradient_flow.capture.module_stack import ModuleHook
from gradient_flow.diagnosis.robust import exceeds
from gradient_flow.looks.schedule import FIRST
from gradient_flow.table import kernels

_MOST_PARTS: Final = 64
"""Micro-batches of a step that are remembered."""
_MOST_FETCHED: Final = 32
"""Batches of loaders that are remembered: loaders of validation come between, and prefetching wrappers run ahead."""
_MOST_INDICES: Final = 512
_WINDOW: Final = 32
_LEAST: Final = 8
_HIGH: Final = 1.8
"""Times the median norm: below it, no rule calls a step a spike."""
_MOST_TOLD: Final = 300
_STANDS_OUT: Final = 2.0
"""Times the median loss of micro-batches."""


class Batches:
    """Remembers the batch of the coming step; `of_step` gives it where that step stands out."""

    def __init__(self, model: Callable[[], nn.Module | None], compiled: Callable[[], bool]) -> None:
        self._model, self._compiled = model, compiled
        self._salt = process_salt()
        self._parts: list[list[Sample]] = []
        self._losses: list[Any] = []
        self._fetched: deque[tuple[Any, list[Sample]]] = deque(maxlen=_MOST_FETCHED)
        self._norms: deque[float] = deque(maxlen=_WINDOW)
        self._remove: list[Callable[[], None]] = []
        self._hooked = self._off = False
        self._thread = self._graphs = 0
        self._told = 0
        self._quick = kernels.native.spreader(ELEMENTS, STEP) if kernels.NATIVE else None
        """Takes the elements of a tensor in host memory in a fraction of the time."""
        self._remove.append(data_loaders.listen(self._loader_gave))

    @property
    def is_on(self) -> bool:
        """Whether the hook is on the model."""
        return self._hooked and not self._off

    @property
    def samples(self) -> int:
        """Samples of a micro-batch, where all of the step have as many; 0 where that is not known."""
        sizes = {part[0][0][0] for part in self._parts if part and part[0][0]}
        return sizes.pop() if len(sizes) == 1 else 0

    def plan(self, step: int) -> None:
        """The step before `step` is over: put the hook on, once; take it away where there is compiled code by now."""
        self._parts, self._losses = [], []
        if self._off or step < FIRST:
            return
        if self._hooked:
            if compiled_graphs() != self._graphs:  # whether the model is compiled is asked once: it takes a while
                self.close()
        elif self._compiled():
            self.close()
        elif (model := self._model()) is not None:
            self._hooked, self._thread, self._graphs = True, get_ident(), compiled_graphs()
            # Several models under one name are never called themselves.
            for module in model.children() if type(model) is nn.Module else [model]:
                hook = ModuleHook(module, self._called)
                self._remove.append(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def _called(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        # Each step asks: what is in C comes first, and nothing is called that need not be.
        if self._off or not is_grad_enabled() or get_ident() != self._thread or len(self._parts) >= _MOST_PARTS:
            return
        if _get_tracing_state() is not None or peek_interpreter_stack() is not None:
            return
        if torch.compiler.is_compiling() or losses.is_unheard():
            return
        try:
            plain = len(args) == 1 and not kwargs and type(args[0]) is torch.Tensor
            if plain and not has_modes():
                quick = None if self._quick is None else self._quick(args[0])
                if quick is not None:
                    self._parts.append([(args[0].shape, Lying(quick, args[0].dtype))])
                else:
                    self._parts.append(sample_of(args))
            else:
                with aside():
                    self._parts.append(sample_of(args if plain else tensors_in((args, kwargs))))
        except Exception:
            self.close()  # a batch that cannot be identified is not worth a warning

    def _loader_gave(self, indices: Any, batch: Any) -> None:
        if self._off or get_ident() != (self._thread or get_ident()):
            return
        try:
            with aside():
                self._fetched.append((indices, sample_of(tensors_in(batch))))
        except Exception:
            self.close()

    def backward_begins(self, loss: Any) -> None:
        """The value of a loss whose backward pass begins: that of the last micro-batch; None where it is not known."""
        if self._hooked and not self._off and len(self._losses) < _MOST_PARTS:
            self._losses.append(loss)

    def step_begins(self) -> None:
        """A step that does not stand out begins: its batch is of no interest."""
        self._parts, self._losses = [], []

    def passed(self, norm: float) -> None:
        """The finite norm of a step that did not stand out."""
        self._norms.append(norm)

    def of_step(self, norm: float) -> dict[str, Any] | None:
        """The batch of this step, if its norm stands out; None otherwise. Only then does it wait for the device."""
        finite = math.isfinite(norm)
        high = not finite or (len(self._norms) >= _LEAST and exceeds(norm, _HIGH, self._norms))
        if finite:
            self._norms.append(norm)
        parts = [part for part in self._parts if part] if high else []
        if not high or self._off or not parts or self._told >= _MOST_TOLD:
            return None
        self._told += 1
        return self._described(parts)

    def _described(self, parts: Sequence[list[Sample]]) -> dict[str, Any]:
        names = [hash_of(part, self._salt) for part in parts]
        whole = names[0] if len(names) == 1 else hash_of([sample for part in parts for sample in part], self._salt)
        found: dict[str, Any] = {"batch": whole}
        culprit = 0 if len(parts) == 1 else self._culprit(len(parts))
        if len(parts) > 1:
            found["micro_batches"] = names
            if culprit is not None:
                found["micro_batch"] = culprit
        if culprit is not None:
            indices = self._indices_of(parts[culprit])
            if indices is not None:
                found["indices"] = indices
        return found

    def _culprit(self, parts: int) -> int | None:
        """The micro-batch whose loss stands out, where there is one loss for each."""
        values = [float(loss) if loss is not None else math.nan for loss in self._losses]
        if len(values) != parts or None in self._losses:
            return None
        bad = [at for at, value in enumerate(values) if not math.isfinite(value)]
        if bad:
            return bad[0]
        largest = max(range(parts), key=lambda at: abs(values[at]))
        others = [abs(value) for at, value in enumerate(values) if at != largest]
        return largest if abs(values[largest]) >= _STANDS_OUT * median(others) else None

    def _indices_of(self, part: Sequence[Sample]) -> list[int] | None:
        """What the sampler drew for this batch, if it is one that a loader gave."""
        for indices, samples in reversed(self._fetched):
            # A constant, such as a mask of ones, is in every batch: all that the model got has to be there.
            if samples and all(any(same_tensor(own, given) for given in samples) for own in part):
                plain = [indices] if isinstance(indices, int) else indices
                if isinstance(plain, (list, tuple)) and all(isinstance(each, int) for each in plain):
                    return list(plain[:_MOST_INDICES])
                return None
        return None

    def close(self) -> None:
        """Remove the hooks and release everything."""
        self._off = True
        for remove in self._remove:
            remove()
        self._remove, self._parts, self._losses = [], [], []
        self._fetched.clear()
