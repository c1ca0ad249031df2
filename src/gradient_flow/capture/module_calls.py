"""What passes between modules: every tensor that a module takes or returns, and the gradient that comes back to it.

A tensor is known by the operation that made it, so one that two modules share is seen once, the output of a block that
is also the output of its last layer too, and a sum made in a `forward` by hand as the input of whatever comes next.
Nothing is kept of a tensor beyond what the functions that are handed it make of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from threading import get_ident
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from gradient_flow.capture.block_outputs import main_tensor, vars_of
from gradient_flow.capture.compiled import breaks_graph
from gradient_flow.capture.module_stack import ModuleHook
from gradient_flow.capture.sharding import is_sharded, local_part

_PLAIN: Final = (torch.Tensor, nn.Parameter)
_MOST_CALLS: Final = 4096
"""Module calls that are watched in one step; a loop over time may make more."""


@dataclass(slots=True, eq=False)
class Passage:
    """One tensor between modules in one step."""

    path: str
    role: str
    """`output` of the module at `path`, or `input` where no module returned it."""
    call: int
    """Which call of that module: a module may be used several times."""
    module: nn.Module
    order: int
    shape: tuple[int, ...]
    node: Any
    """The operation that made it, in the autograd graph; None where no gradient can come back."""
    dtype: str = ""
    aliases: list[str] = field(default_factory=list)
    """Blocks that returned the same tensor."""
    feeds_from_data: bool = False
    """Whether all that the module took needs no gradient, such as the batch itself."""
    took_batch: bool = False
    """Whether the module took a tensor of the batch as it is."""
    forward: Any = None
    """What `on_forward` made of it."""
    backward: Any = None
    """What `on_gradient` made of the gradient; None where none came."""

    @property
    def key(self) -> tuple[str, str, int]:
        """The same passage in another step."""
        return self.path, self.role, self.call


class ModuleCalls:
    """Hooks on all modules of a model while `watching`: passages in the order of the forward pass.

    `on_forward(passage, tensor)` and `on_gradient(passage, gradient)` reduce what they see; their results are kept.
    Hooks exist only inside `with calls.watching():`, and are removed whatever happens.

    `begins(module, args, kwargs)` is called at each outermost call, and `ends(output)` when that call is over, also
    after an exception (`output` is None then). A call that `begins` refuses is not watched. With `fails`, an error in
    here is passed to it and never reaches the forward or backward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        on_forward: Callable[[Passage, torch.Tensor], Any],
        on_gradient: Callable[[Passage, torch.Tensor], Any],
        begins: Callable[[nn.Module, Any, Any], bool] | None = None,
        ends: Callable[[Any], None] | None = None,
        fails: Callable[[Exception], None] | None = None,
    ) -> None:
        self._modules = {module: path.replace("_orig_mod.", "") for path, module in model.named_modules()}
        self._on_forward, self._on_gradient = on_forward, on_gradient
        self._begins, self._ends, self._fails = begins, ends, fails
        self.thread = 0
        """In which thread the outermost call runs: what others do with the model meanwhile is not seen."""
        self._running: list[nn.Module] = []
        self._accepted = True
        self._handles: list[Any] = []
        self.batch: set[int] = set()
        """Where the tensors of the batch lie in memory; set before the forward pass."""
        self.called: set[str] = set()
        """Paths of all modules that were called in any step, also of those that return no tensor."""
        self._forget()

    def _forget(self) -> None:
        self._running, self._accepted = [], True
        self.passages: list[Passage] = []
        self._count: dict[str, int] = {}
        self.saved_tensor_hooks = False
        """Whether tensors saved for backward went through hooks, as under checkpointing: then reading them is not
        free of effects."""
        self._by_node: dict[tuple[Any, int], Passage] = {}
        self._no_grad: dict[tuple[str, int], Passage] = {}
        self._recomputed: dict[str, int] = {}

    def watching(self) -> _Watching:
        """A context in which one forward and backward pass are seen."""
        return _Watching(self)

    def attach(self) -> None:
        """Put a hook on every module, and forget the last step."""
        self._forget()
        for module in self._modules:
            if isinstance(module, torch.jit.ScriptModule):  # those take no Python hooks
                continue
            if self._begins is not None:
                enter = ModuleHook(module, self._on_enter)
                self._handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            # Also after an exception: a call that never ended would stay the outermost one.
            leave = ModuleHook(module, self._on_call, takes=4)
            self._handles.append(module.register_forward_hook(leave, with_kwargs=True, always_call=True))

    def restart(self) -> None:
        """Forget the forward passes so far, while hooks stay."""
        self.release()
        self._forget()

    def detach(self) -> None:
        """Take every hook away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def release(self) -> None:
        """Let go of the graph of the step."""
        for passage in self.passages:
            passage.node = None
        self._by_node = {}

    @breaks_graph
    def _on_enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module not in self._modules or not self._handles or self._begins is None:
            return
        if not self._running:
            self.thread = get_ident()
            if torch._C._current_graph_task_id() == -1:
                self._accepted = self._begins(module, args, kwargs)
        if self.thread == get_ident():
            self._running.append(module)

    def _leave(self, module: nn.Module, output: Any) -> None:
        while self._running:
            if self._running.pop() is module:
                break
        if not self._running and self._ends is not None and torch._C._current_graph_task_id() == -1:
            self._ends(output)

    @breaks_graph
    def _on_call(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        path = self._modules.get(module)
        if path is None or not self._handles:
            return  # a copy of the module that took our hook along
        if self._begins is not None and (not self._running or self.thread != get_ident()):
            return
        if (
            self._accepted and output is not None and len(self.passages) < _MOST_CALLS
        ):  # a loop over time may make very many calls
            try:
                if has_modes():
                    with _HiddenFromModes():
                        self._see_call(path, module, args, kwargs, output)
                else:
                    self._see_call(path, module, args, kwargs, output)
            except Exception as problem:
                self._failed(problem)
        if self._begins is not None:
            self._leave(module, output)

    def _failed(self, problem: Exception) -> None:
        """To be called where a problem is handled."""
        if self._fails is None:
            raise problem
        self._accepted = False  # report the first problem only
        self._fails(problem)

    def _see_call(self, path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            self._on_recomputation(path, output)
            return
        call = self._count[path] = self._count.get(path, -1) + 1
        self.called.add(path)
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            self.saved_tensor_hooks = True
        alone = not kwargs and len(args) == 1 and type(args[0]) is torch.Tensor
        given = list(args) if alone else list(_tensors((args, kwargs)))
        taken = [tensor for tensor in given if tensor.is_floating_point()]
        made = output if type(output) is torch.Tensor else main_tensor(output)
        if taken:
            first = taken[0]
            if first.grad_fn is not None and first is not made:  # an operation in place returns what it took
                self._pass(first, path, "input", call, module)
        if isinstance(made, torch.Tensor) and (made.is_floating_point() or made.is_complex()) and made.dim() > 0:
            passage = self._pass(made, path, "output", call, module)
            if passage is not None:
                passage.feeds_from_data = not any(tensor.requires_grad for tensor in taken)
                passage.took_batch = any(_may_be_given(t) and storage_of(t) in self.batch for t in given)

    def _pass(self, tensor: torch.Tensor, path: str, role: str, call: int, module: nn.Module) -> Passage | None:
        node = tensor.grad_fn
        identity = (node, tensor.output_nr)
        known = self._by_node.get(identity) if node is not None else None
        if known is not None:
            known.aliases.append(path)
            return None
        here = part_here(tensor)
        if here is None:
            return None
        shape, dtype = tuple(here.shape), _name_of(tensor.dtype)
        passage = Passage(path, role, call, module, len(self.passages), shape, node, dtype)
        self.passages.append(passage)
        passage.forward = self._on_forward(passage, here)
        if node is None:
            self._no_grad[path, call] = passage
            return passage
        self._by_node[identity] = passage
        self._on_tensor(tensor, passage)
        return passage

    def _on_recomputation(self, path: str, output: Any) -> None:
        """Reentrant checkpointing builds the graph only now: the gradient belongs to the call seen without one."""
        call = self._recomputed[path] = self._recomputed.get(path, -1) + 1
        passage, made = self._no_grad.get((path, call)), main_tensor(output)
        if passage is not None and isinstance(made, torch.Tensor) and made.requires_grad:
            self._on_tensor(made, passage)

    def _on_tensor(self, tensor: torch.Tensor, passage: Passage) -> None:
        def hook(gradient: torch.Tensor) -> None:
            if passage.backward is not None:
                return  # of several backward passes the first
            try:
                with aside():
                    here = part_here(gradient)
                    if here is not None:
                        passage.backward = self._on_gradient(passage, here)
            except Exception as problem:
                self._failed(problem)

        self._handles.append(tensor.register_hook(hook))  # type: ignore[no-untyped-call]  # torch does not type it


class _Watching:
    def __init__(self, calls: ModuleCalls) -> None:
        self._calls = calls

    def __enter__(self) -> ModuleCalls:
        try:
            self._calls.attach()
        except BaseException:
            self._calls.detach()
            raise
        return self._calls

    def __exit__(self, *_: object) -> None:
        self._calls.detach()
        self._calls.release()


def aside() -> AbstractContextManager[None]:
    """Hide what is done in here from modes of the user: counters, tracers, default devices."""
    return _HiddenFromModes() if has_modes() else _NOTHING_TO_HIDE_FROM


def has_modes() -> bool:
    """Whether there is a mode that sees what is done with tensors."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


_NOTHING_TO_HIDE_FROM: Final = nullcontext()


class _HiddenFromModes:
    """By hand: a look inside a mode enters this hundreds of times."""

    __slots__ = ("_functions", "_operations")

    def __enter__(self) -> None:
        self._functions = torch._C.DisableTorchFunction() if torch._C._len_torch_function_stack() else None
        self._operations = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else None
        if self._functions is not None:
            self._functions.__enter__()
        if self._operations is not None:
            self._operations.__enter__()

    def __exit__(self, *problem: Any) -> None:
        try:
            if self._operations is not None:
                self._operations.__exit__(*problem)
        finally:
            if self._functions is not None:
                self._functions.__exit__(*problem)


def part_here(tensor: torch.Tensor) -> torch.Tensor | None:
    """What can be read of a tensor on this rank without communication; None where it has no numbers of its own."""
    if type(tensor) not in _PLAIN:
        if is_sharded(tensor):
            tensor = local_part(tensor)
        elif type(tensor).__name__ == "AsyncCollectiveTensor":  # what ranks have added up, and may still be on its way
            tensor = tensor.wait()  # type: ignore[attr-defined]
    if type(tensor) not in _PLAIN or tensor.is_nested or tensor.is_meta:
        return None
    # Inside of torch.func a tensor stands for a whole batch of them.
    return None if torch._C._functorch.is_functorch_wrapped_tensor(tensor) else tensor.detach()


def storage_of(tensor: torch.Tensor) -> int:
    """Where a tensor's memory begins, the same for all its views; 0 where it has none."""
    if tensor.layout is not torch.strided or type(tensor) not in _PLAIN:
        return 0
    return tensor.untyped_storage().data_ptr()


def _may_be_given(tensor: torch.Tensor) -> bool:
    """Whether a tensor can share memory with the batch: what an operation made has memory of its own."""
    return tensor.grad_fn is None or tensor._is_view()


@cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of a batch, however it is packed."""
    if isinstance(value, Mapping) and not isinstance(value, dict):
        value = dict(value)
    return list(_tensors(value))


def _tensors(value: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item, depth - 1)
    elif depth and is_dataclass(value) and not isinstance(value, type):
        yield from _tensors(vars_of(value), depth)
