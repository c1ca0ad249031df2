"""Gradients at the outputs of blocks: hooks that hand each one on, and know where a backward pass begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.capture.compiled import breaks_graph

_current_graph_task_id = torch._C._current_graph_task_id
MAIN_OUTPUTS: Final = ("last_hidden_state", "hidden_states")


class BlockOutputs:
    """Watches the outputs of blocks and hands every gradient that arrives at one to `receive(block, gradient)`.

    `begin()` is called before the first gradient of each backward pass; what it raises comes out of `backward()`.
    Recomputation under gradient checkpointing belongs to the pass that caused it. Nothing is kept of a gradient.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        receive: Callable[[int, torch.Tensor], None],
        begin: Callable[[], None],
    ) -> None:
        self._blocks = blocks
        self._receive = receive
        self._begin = begin
        self._forward_handles: list[Any] = []
        self._tensor_handles: list[Any] = []
        self._most_handles = 8 * len(blocks)
        self._in_pass = False
        # Made once: a forward pass through hundreds of blocks only hangs them on.
        self._gradient_hooks = [self._gradient_hook(index) for index in range(len(blocks))]
        self.forget()

    def forget(self) -> None:
        """Forget which blocks were seen."""
        self.ran: set[int] = set()
        self.without_grad: set[int] = set()
        self.unreadable: dict[int, str] = {}
        self._in_pass = False

    @property
    def attached(self) -> bool:
        """Whether hooks are in place."""
        return bool(self._forward_handles)

    def attach(self) -> None:
        """Put a forward hook on every block."""
        if not self._forward_handles:
            self._forward_handles = [
                block.register_forward_hook(_ForwardHook(self, block, at)) for at, block in enumerate(self._blocks)
            ]

    def detach(self) -> None:
        """Take every hook away, also those on outputs whose backward is still to come."""
        for handle in self._forward_handles + self._tensor_handles:
            handle.remove()
        self._forward_handles, self._tensor_handles = [], []
        self._in_pass = False

    def forward_ran(self, index: int, output: Any) -> None:
        """Watch what a block returned."""
        if _current_graph_task_id() == -1:
            self._in_pass = False  # a pass that ended in an exception never said so
        elif not self._in_pass:
            self._open_pass()  # a recomputation inside a backward
        tensor = output if isinstance(output, torch.Tensor) else main_tensor(output)
        self.ran.add(index)
        if isinstance(tensor, str):
            self.unreadable[index] = tensor
        elif not tensor.requires_grad:
            self.without_grad.add(index)
        else:
            self.without_grad.discard(index)
            handles = self._tensor_handles
            handles.append(tensor.register_hook(self._gradient_hooks[index]))  # type: ignore[no-untyped-call]
            if len(handles) > self._most_handles:
                self._drop_dead_handles()

    def _gradient_hook(self, index: int) -> Callable[[torch.Tensor], None]:
        receive = self._receive

        def hook(gradient: torch.Tensor) -> None:
            if not self._in_pass:
                self._open_pass()
            receive(index, gradient)

        return hook

    def _open_pass(self) -> None:
        self._begin()
        self._in_pass = True
        # The engine calls this at the end of the outermost pass we are in: nested ones come after it has opened.
        torch.autograd.Variable._execution_engine.queue_callback(self._close_pass)

    def _close_pass(self) -> None:
        self._in_pass = False

    def _drop_dead_handles(self) -> None:
        """Outputs that are gone took their hooks with them; forget our ends of those."""
        self._tensor_handles = [handle for handle in self._tensor_handles if handle.hooks_dict_ref() is not None]
        self._most_handles = 2 * len(self._tensor_handles) + 8 * len(self._blocks)


class _ForwardHook:
    """A hook that can be copied and pickled along with its block, and then does nothing."""

    def __init__(self, outputs: BlockOutputs | None = None, block: nn.Module | None = None, index: int = 0) -> None:
        self._outputs = outputs
        self._block = block
        self._index = index

    @breaks_graph
    def __call__(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        # Another module: a copy of the block that took our hook along.
        outputs = self._outputs
        if outputs is not None and module is self._block and outputs._forward_handles:
            outputs.forward_ran(self._index, output)

    def __deepcopy__(self, memo: dict[int, Any]) -> _ForwardHook:
        return _ForwardHook()

    def __reduce__(self) -> tuple[type[_ForwardHook], tuple[()]]:
        return _ForwardHook, ()


def _ignore(_module: nn.Module, _inputs: Any, _output: Any) -> None:
    """What a hook in a block that an earlier version pickled was made of."""


def main_tensor(output: Any) -> torch.Tensor | str:
    """The tensor that a block hands to the next one, or why there is none.

    A tensor is itself; of a tuple or list the first tensor; of a mapping (also a Hugging Face output)
    or dataclass `last_hidden_state`, `hidden_states`, or the only tensor in it.
    """
    if isinstance(output, torch.Tensor):
        return output
    if is_dataclass(output) and not isinstance(output, (Mapping, type)):
        output = vars_of(output)
    if isinstance(output, Mapping):
        for key in MAIN_OUTPUTS:
            if output.get(key) is not None:
                value = output[key]
                # Hugging Face collects the states of all layers under this name: the last is the output.
                return main_tensor(value[-1] if isinstance(value, (tuple, list)) and value else value)
        tensors = [value for value in output.values() if isinstance(value, torch.Tensor)]
        if len(tensors) == 1:
            return tensors[0]
        return f"a mapping with {len(tensors)} tensors and neither {' nor '.join(MAIN_OUTPUTS)} among its keys"
    if isinstance(output, (tuple, list)):
        found = (item for item in map(main_tensor, output) if isinstance(item, torch.Tensor))
        return next(found, f"a {type(output).__name__} of no tensor")
    return f"a {type(output).__name__}"


def vars_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, as far as they are set."""
    return {each.name: getattr(value, each.name) for each in fields(value) if hasattr(value, each.name)}


def repeated_blocks(model: nn.Module) -> tuple[str, list[tuple[str, nn.Module]]]:
    """Where a model keeps its repeated blocks: the longest list of modules of one type, else its children.

    Returns what was taken, in words, and the blocks by name.
    """
    best: tuple[str, nn.Module] | None = None
    for name, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            of_one_type = len(module) >= 2 and len({type(block) for block in module}) == 1
            if of_one_type and (best is None or len(module) > len(best[1])):  # type: ignore[arg-type]
                best = name, module
    if best is not None:
        name, container = best
        blocks = [(f"{name}.{child}".lstrip("."), block) for child, block in container.named_children()]
        return f"{name or 'the model itself'}: {len(blocks)} x {type(blocks[0][1]).__name__}", blocks
    name, parent = "", model
    while len(children := list(parent.named_children())) == 1:
        name, parent = f"{name}.{children[0][0]}".lstrip("."), children[0][1]
    blocks = [(f"{name}.{child}".lstrip("."), block) for child, block in children]
    return f"the {len(blocks)} children of {name or 'the model'}", blocks
