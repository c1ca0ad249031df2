"""Which module is running: hooks that keep the stack of forward calls, for those who see operations and not modules."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from threading import get_ident
from typing import Any, Final

import torch
from torch import nn

_WRAPPER: Final = "_orig_mod."
"""What `torch.compile` puts into the names of the modules below it."""


class ModuleCall:
    """One forward of one module, while it runs."""

    __slots__ = ("again", "attentions", "inside", "module", "path", "tokens", "tokens_at")

    def __init__(self, path: str, module: nn.Module, tokens: torch.Tensor | None) -> None:
        self.path = path
        self.module = module
        self.tokens = tokens
        """The first (…, …, features) tensor it was given. It lives as long as the call, which holds it anyway."""
        self.attentions = 0
        """How often attention was computed in it so far."""
        self.tokens_at: int | None = None
        """Which dimension of `tokens` counts tokens, once an attention in it has shown that."""
        self.inside: set[str] = set()
        """Paths of the modules with attention that ran in it, of a block."""
        self.again = False
        """Whether it runs in its block for the second time or later."""


class ModuleStack:
    """Keeps `calls`, the forwards that are running now, outermost first, for a model and everything in it.

    `leave(call, output)` is called as those end well whose `tokens_at` was set; `begin()` and `end()` before and after
    each outermost forward, also after one that fails. Hooks exist between `attach` and `detach` only; a copy or a
    pickle of the model made meanwhile takes hooks along that do nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        leave: Callable[[ModuleCall, Any], None],
        begin: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        self._model = model
        self._leave, self._begin, self._end = leave, begin, end
        self._handles: list[Any] = []
        self._thread = 0
        self.calls: list[ModuleCall] = []

    def attach(self) -> None:
        """Put hooks on every module."""
        for path, module in self._model.named_modules():
            path = path.replace(_WRAPPER, "")
            enter, leave = ModuleHook(module, self._entering(path)), ModuleHook(module, self._left)
            self._handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            # Also after an exception: a call that never ended would lend its name to all that comes after it.
            self._handles.append(module.register_forward_hook(leave, always_call=True))

    def detach(self) -> None:
        """Take every hook away."""
        for handle in self._handles:
            handle.remove()
        if self.calls:
            self._end()
        self._handles, self.calls = [], []

    def _entering(self, path: str) -> Callable[[nn.Module, Any, Any], None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            if not self.calls:
                self._thread = get_ident()
                self._begin()
            elif self._thread != get_ident():
                return  # another thread uses the model meanwhile: a mode must leave where it was entered
            with torch._C.DisableTorchFunction():  # modes need not see what we ask of tensors
                tokens = _token_tensor((*args, *kwargs.values()))
            self.calls.append(ModuleCall(path, module, tokens))

        return enter

    def _left(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        if self._thread != get_ident():
            return
        while self.calls:
            call = self.calls.pop()
            if not self.calls:
                self._end()
            if call.module is module:
                # After an exception there is no output.
                if output is not None and call.tokens_at is not None:
                    self._leave(call, output)
                return


class ModuleHook:
    """A hook that leaves no trace in a copy of its module, and does nothing in a pickle of it.

    A pickle may be read where this package is not: there the hook is a function of the standard library. It does
    nothing either when it is called with less than it takes: torch does that to a hook that was removed while its
    module was being called.
    """

    def __init__(self, module: nn.Module, call: Callable[..., Any], takes: int = 3) -> None:
        self._module = weakref.ref(module)
        self._call, self._takes = call, takes

    def __call__(self, *given: Any) -> Any:
        """Hand on what torch hands to a hook."""
        return self._call(*given) if len(given) == self._takes else None

    def __deepcopy__(self, memo: dict[Any, Any]) -> Callable[..., None]:
        ignore = nullcontext().__exit__
        twin = memo.get(id(self._module()))
        if isinstance(twin, nn.Module):  # what is kept here goes when the copy is made, and clears it as it goes
            memo.setdefault(_Clearing, _Clearing()).add(twin, ignore)
        return ignore

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, str]]:
        return getattr, (nullcontext(), "__exit__")  # takes whatever it is given, and returns None


class _Clearing:
    """Takes hooks out of copied modules when it is dropped: while they are being made, they have no hooks yet."""

    def __init__(self) -> None:
        self._copied: list[tuple[nn.Module, Any]] = []

    def add(self, module: nn.Module, hook: Any) -> None:
        """A hook that the copy is about to get."""
        self._copied.append((module, hook))

    def __del__(self) -> None:
        for module, hook in self._copied:
            hooks = vars(module)
            for kind in ("_forward_hooks", "_forward_pre_hooks", "_load_state_dict_post_hooks"):
                for key in [key for key, value in (hooks.get(kind) or {}).items() if value is hook]:
                    for name in (kind, f"{kind}_with_kwargs", f"{kind}_always_called"):
                        hooks.get(name, {}).pop(key, None)


def _token_tensor(values: tuple[Any, ...]) -> torch.Tensor | None:
    """The first tensor that may hold one feature vector per token."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() == 3:
            return value
    return None


def container_children(model: nn.Module) -> frozenset[str]:
    """Paths of the modules that stand in a list: where models keep their blocks."""
    return frozenset(
        f"{path}.{name}".lstrip(".").replace(_WRAPPER, "")
        for path, module in model.named_modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict))
        for name, _ in module.named_children()
    )


def listed_again(model: nn.Module) -> frozenset[str]:
    """Paths of the modules that stand several times in one list, as those of `[block] * 4` do."""
    return frozenset(
        f"{path}.{names[0]}".lstrip(".").replace(_WRAPPER, "")
        for path, module in model.named_modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict))
        for names in _names_of(module).values()
        if len(names) > 1
    )


def _names_of(container: nn.Module) -> dict[int, list[str]]:
    """Under which names each child stands in a container."""
    names: dict[int, list[str]] = {}
    for name, child in container._modules.items():
        names.setdefault(id(child), []).append(name)
    return names
