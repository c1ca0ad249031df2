"""`module:function` → what a pre-flight check needs: a model, batches, a loss, and an optimizer or none."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradient_flow.errors import GradientFlowError, InputError

_OURSELVES = os.path.dirname(os.path.abspath(__file__)) + os.sep
_IMPORTLIB = os.path.dirname(os.path.abspath(importlib.__file__)) + os.sep
_FORM = "`(model, input_fn, loss_fn)` or `(model, input_fn, loss_fn, optimizer)`"


def load_target(target: str) -> tuple[Any, ...]:
    """Import the module with the current folder first on the path, call the function, and check what it returns."""
    where, colon, name = target.rpartition(":")
    if not (colon and where and name):
        raise InputError(
            f"`MODULE:FUNCTION` must name both, such as `train:setup` or `train.py:setup`; got {target!r}."
        )
    function = getattr(_imported(where), name, None)
    if not callable(function):
        raise InputError(f"`MODULE:FUNCTION`: there is no function {name!r} in {where!r}.")
    return _checked(with_own_traceback(function, f"{target} failed"), target)


def _imported(where: str) -> Any:
    if where.endswith(".py"):
        path = Path(where).resolve()
        if not path.is_file():
            raise InputError(f"`MODULE:FUNCTION`: there is no file {where!r} in {os.getcwd()!r}.")
        sys.path.insert(0, str(path.parent))  # as `python file.py` does
        return with_own_traceback(lambda: _from_file(path), f"{where} cannot be imported")
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(where)
    except ImportError:  # of the package around it
        found = None
    if found is None:
        raise InputError(
            f"`MODULE:FUNCTION`: there is no module {where!r}, neither installed nor in {os.getcwd()!r}. "
            "For a file elsewhere give its path: path/to/file.py:function."
        )
    return with_own_traceback(lambda: importlib.import_module(where), f"{where} cannot be imported")


def _from_file(path: Path) -> Any:
    """The module of a file, also where another one of its name is loaded already: `json.py` beside Python's own."""
    loaded = sys.modules.get(path.stem)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if loaded is None or getattr(loaded, "__file__", None) == str(path) or spec is None or spec.loader is None:
        return importlib.import_module(path.stem)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_own_traceback(function: Callable[[], Any], what: str) -> Any:
    """What the function returns; if it fails, `InputError` with the user's frames of the traceback, without ours."""
    try:
        return function()
    except GradientFlowError:
        raise
    except (Exception, SystemExit) as problem:  # one that leaves with status 0 has not been found healthy
        frames = traceback.extract_tb(problem.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith((_OURSELVES, "<frozen", _IMPORTLIB))]
        lines = traceback.format_list(own) + traceback.format_exception_only(problem)
        raise InputError(f"{what}:\n{''.join(lines).rstrip()}") from problem


def _checked(found: Any, target: str) -> tuple[Any, ...]:
    if not isinstance(found, (tuple, list)) or len(found) not in (3, 4):
        came = f"{len(found)} values" if isinstance(found, (tuple, list)) else type(found).__name__
        raise InputError(f"{target} must return {_FORM}; got {came}.")
    return tuple(found)
