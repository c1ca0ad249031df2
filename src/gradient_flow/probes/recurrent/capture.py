"""The recurrent parts of a model, and what passes through them in a forward: hooks that keep a few samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.capture.compiled import breaks_graph
from gradient_flow.capture.module_calls import aside
from gradient_flow.capture.module_stack import ModuleHook
from gradient_flow.errors import InputError
from gradient_flow.probes.recurrent.calls import CellCall, CellSequence
from gradient_flow.probes.recurrent.layers import LayerCall, LayerSequence

Sequence = LayerSequence | CellSequence

_OPEN: Final = 4
"""Sequences of one module that may run side by side, as two inputs through the same cell."""


class RecurrentRecorder:
    """Keeps what is needed to walk a model's recurrent parts again; hooks exist between `attach` and `detach`.

    Known are `nn.RNN`, `GRU`, `LSTM` and their cells. Any module of the user's own counts as a cell when it is called
    repeatedly and takes what it returned the time before; those in `cells`, by name or as modules, count also when
    the state is their first argument, or is changed between the calls.
    """

    def __init__(self, model: nn.Module, cells: Iterable[str | nn.Module] | None = None) -> None:
        self._paths = {module: path.replace("_orig_mod.", "") for path, module in model.named_modules()}
        self._named = {_find(model, cell, self._paths) for cell in cells or ()}
        self._observed = {
            module
            for module in self._paths
            if not _is_torch(module) or isinstance(module, (nn.RNNBase, nn.RNNCellBase)) or module in self._named
        }
        known = any(isinstance(module, (nn.RNNBase, nn.RNNCellBase)) for module in self._paths)
        self._root = None if known else model
        self._call: tuple[Any, Any] | None = None
        self._handles: list[Any] = []
        self._tensor_handles: list[Any] = []
        self._sequences: dict[nn.Module, list[Sequence]] = {}
        self.listening = True
        """Whether the forwards that come are of interest: not those of an evaluation between two steps."""
        self.problems: dict[str, str] = {}
        """Modules whose calls could not be read, and why."""

    @property
    def attached(self) -> bool:
        """Whether hooks are in place."""
        return bool(self._handles)

    def attach(self) -> None:
        """Put a hook on every module that is or may be recurrent."""
        for module in self._observed | ({self._root} if self._root is not None else set()):
            if not isinstance(module, torch.jit.ScriptModule):  # those take no Python hooks
                hook = ModuleHook(module, self.saw, takes=4)
                self._handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def detach(self) -> None:
        """Take every hook away and forget what was kept."""
        for handle in self._handles + self._tensor_handles:
            handle.remove()
        self._handles, self._tensor_handles, self._sequences, self._call = [], [], {}, None

    def take(self) -> list[Sequence]:
        """The longest sequence of each recurrent module since the last time, in the order of the model's modules."""
        for handle in self._tensor_handles:
            handle.remove()
        sequences, self._sequences, self._tensor_handles = self._sequences, {}, []
        found = [max(runs, key=lambda run: run.length) for runs in sequences.values() if runs]
        self._observed -= {run.module for run in found if not self._is_recurrent(run)}
        order = {path: index for index, path in enumerate(self._paths.values())}
        return self._innermost(sorted(filter(self._is_recurrent, found), key=lambda run: order[run.path]))

    def take_call(self) -> tuple[Any, Any] | None:
        """The arguments of the last call of a model without modules that are known to be recurrent."""
        call, self._call = self._call, None
        return call

    def _is_recurrent(self, run: Sequence) -> bool:
        return run.links > 0 or isinstance(run.module, (nn.RNNBase, nn.RNNCellBase)) or run.module in self._named

    def _innermost(self, runs: list[Sequence]) -> list[Sequence]:
        """Of a cell within a cell the inner one, unless its state is changed on the way round or the outer is named."""
        named = [run for run in runs if run.module in self._named]
        kept = [run for run in runs if run in named or not any(_is_inside(run, other) for other in named)]
        whole = [run for run in kept if run.linked]
        return [run for run in kept if run in named or not any(_is_inside(other, run) for other in whole)]

    @breaks_graph
    def saw(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """What the hooks call. A call that cannot be read is noted; it never stops the forward."""
        if not self._handles or not self.listening or torch._C._current_graph_task_id() != -1:
            return  # a copy that took our hook along, or a recomputation inside a backward
        if module is self._root:
            self._call = args, kwargs
        if module not in self._observed:
            return
        try:
            with torch.no_grad(), aside():
                self._keep(module, args, kwargs, result)
        except Exception as problem:
            self.problems[self._paths[module]] = f"{type(problem).__name__}: {problem}"

    def _keep(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        runs = self._sequences.setdefault(module, [])
        if isinstance(module, nn.RNNBase):
            whole = LayerCall(module, args, kwargs, result)
            layer_run = next((r for r in runs if isinstance(r, LayerSequence) and r.continues_in(whole)), None)
            if layer_run is None:
                layer_run = LayerSequence(self._paths[module], module)
                runs.insert(0, layer_run)
            self._tensor_handles += layer_run.add(whole)
        else:
            self._keep_cell(module, args, kwargs, result, [run for run in runs if isinstance(run, CellSequence)])
        if len(runs) > _OPEN:
            runs.remove(min(runs[1:], key=lambda run: run.length))

    def _keep_cell(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, runs: list[CellSequence]
    ) -> None:
        known = isinstance(module, nn.RNNCellBase)
        first_leaf = 0 if module in self._named else 1
        call = CellCall.of_torch_cell(args, kwargs, result) if known else CellCall.of(args, kwargs, result, first_leaf)
        if call is None:
            return
        fixed = tuple((leaf, leaf - 1) for leaf in range(1, len(call.leaves))) if known else ()
        run, pairs = next(((run, found) for run in runs if (found := run.pairs_to(call))), (None, ()))
        # A state that was changed since it was returned, by a norm or a mask, still goes on from the last one.
        if run is None and runs and (not call.is_start(fixed) if known else module in self._named):
            run = runs[0]
        if run is None:
            run = CellSequence(self._paths[module], module, fixed, first_leaf)
            self._sequences[module].insert(0, run)
        self._tensor_handles += run.add(call, pairs)


def _find(model: nn.Module, cell: str | nn.Module, paths: dict[nn.Module, str]) -> nn.Module:
    for module, path in paths.items():
        if cell is module or cell == path:
            return module
    known = ", ".join(filter(None, paths.values()))
    raise InputError(f"`cells` must name modules of the model, got {cell!r}. Its modules are: {known}.")


def _is_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith(("torch.nn.", "torch._dynamo"))


def _is_inside(inner: Sequence, outer: Sequence) -> bool:
    return inner is not outer and (not outer.path or inner.path.startswith(f"{outer.path}."))
