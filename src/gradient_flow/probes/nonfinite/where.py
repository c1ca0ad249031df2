"""Where an operation was called: the line of the user's code and the module, read off the Python stack.

Reading the stack needs no hook on any module, so there is none to take away again.
"""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any, Final

import torch

import gradient_flow

_TORCH: Final = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OURSELVES: Final = os.path.dirname(os.path.abspath(gradient_flow.__file__)) + os.sep
_STANDARD_LIBRARY: Final = tuple({sysconfig.get_paths()[key] + os.sep for key in ("stdlib", "platstdlib")})
_MARKS: Final = {
    (os.path.join("nn", "modules", "module.py"), "_call_impl"): "module",
    (os.path.join("autograd", "function.py"), "apply"): "function",
    (os.path.join("autograd", "graph.py"), "_engine_run_backward"): "engine",
}
"""Functions inside torch whose frames tell what is going on: file and name."""


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of code, the module that was running, and the `autograd.Function` around it, as far as each is known."""

    file: str | None = None
    line: int | None = None
    function: str | None = None
    library: tuple[str, int] | None = None
    """File and line in an installed package, where that is nearer to the operation than the user's own code."""
    module: str | None = None
    """Path in the model: `""` is the model itself, None is outside of it."""
    module_type: str | None = None
    custom: str | None = None
    """Name of the custom `autograd.Function` whose forward was running."""
    recomputed: bool = False
    """Whether gradient checkpointing ran this forward a second time."""

    @property
    def code(self) -> str | None:
        """The text of the line."""
        return linecache.getline(self.file, self.line).strip() or None if self.file and self.line else None


NOWHERE: Final = CodeLine()


@lru_cache(maxsize=4096)
def frame_kind(file: str, function: str) -> str:
    """What a frame is: `user`, `library`, `checkpoint`, one of the marks inside torch, or `inner`, to be skipped."""
    if file.startswith(_TORCH):
        below = file[len(_TORCH) :]
        return (
            "checkpoint" if below == os.path.join("utils", "checkpoint.py") else _MARKS.get((below, function), "inner")
        )
    if file.startswith((_OURSELVES, "<frozen ", "<__array_function__")):
        return "inner"
    if f"{os.sep}site-packages{os.sep}" in file or f"{os.sep}dist-packages{os.sep}" in file:
        return "library"
    return "inner" if file.startswith(_STANDARD_LIBRARY) else "user"


def place_of_call(
    frame: FrameType | None, stop: FrameType | None, path_of: Callable[[Any], str | None], in_backward: bool = False
) -> CodeLine:
    """The place that called the operation whose frame this is.

    The way up the stack ends at `stop`, and in a backward pass at the engine that runs it: what lies above called
    `backward()`, not the operation.
    """
    seen: dict[str, Any] = {}
    while frame is not None and frame is not stop:
        code = frame.f_code
        kind = frame_kind(code.co_filename, code.co_name)
        if kind == "engine" and in_backward:
            break
        if kind == "user" and "file" not in seen:
            seen.update(file=code.co_filename, line=frame.f_lineno, function=code.co_name)
        elif kind == "library" and "file" not in seen:
            seen.setdefault("library", (code.co_filename, frame.f_lineno))
        elif kind == "module":
            _note_module(frame, path_of, seen)
        elif kind == "function" and "module" not in seen:
            owner = frame.f_locals.get("cls")
            if isinstance(owner, type) and not owner.__module__.startswith("torch."):
                seen.setdefault("custom", owner.__name__)
        elif kind == "checkpoint":
            seen["recomputed"] = in_backward
        if "file" in seen and "module" in seen and not in_backward:
            break
        frame = frame.f_back
    return CodeLine(**seen)


def _note_module(frame: FrameType, path_of: Callable[[Any], str | None], seen: dict[str, Any]) -> None:
    """The innermost module gives its type; the innermost one that belongs to the model gives the path."""
    if "module" in seen:
        return
    module = frame.f_locals.get("self")
    path = path_of(module)
    if path is not None:
        seen["module"] = path
        seen["module_type"] = seen.get("module_type") or type(module).__name__
    else:
        seen.setdefault("module_type", type(module).__name__)


def outermost_module_call(
    frame: FrameType | None, stop: FrameType | None, path_of: Callable[[Any], str | None]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The module of the model that was called first on the way to this frame, with its arguments."""
    found = None
    while frame is not None and frame is not stop:
        if frame_kind(frame.f_code.co_filename, frame.f_code.co_name) == "module":
            values = frame.f_locals
            if path_of(values.get("self")) is not None:
                found = values["self"], tuple(values.get("args", ())), dict(values.get("kwargs", {}))
        frame = frame.f_back
    return found


def called_by(frame: FrameType | None, function: str, within: int = 8) -> bool:
    """Whether a function of this name inside torch is among the nearest callers."""
    for _ in range(within):
        if frame is None:
            return False
        if frame.f_code.co_name == function and frame.f_code.co_filename.startswith(_TORCH):
            return True
        frame = frame.f_back
    return False
