"""Running a script as `python script.py` and `python -m module` run it: as `__main__`, with the same ending."""

from __future__ import annotations

import builtins
import os
import pkgutil
import runpy
import sys
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import ModuleType, TracebackType
from typing import Any, Final, NamedTuple


class Ending(NamedTuple):
    """How a script ended."""

    status: int = 0
    error: str | None = None
    """The class of the exception that ended it, if one did and it was not `SystemExit`."""
    message: str = ""
    """What that exception said, or what `SystemExit` was given."""
    interrupted: bool = False
    """By Ctrl-C: the interpreter then ends by that signal, once everything is cleaned up."""


def run_as_main(target: str, arguments: list[str], *, as_module: bool) -> Ending:
    """Run a file, a folder or zip with `__main__.py`, or a module, until it ends.

    From here on the process is the script's: `__main__`, `sys.argv` and `sys.path` stay, as its exit handlers expect.
    """
    try:
        _run(target, arguments, as_module)
        return Ending()
    except SystemExit as leaving:
        return Ending(_exit_status(leaving), message=_said(leaving))
    except BaseException as problem:
        error = problem
    # Outside of the handler, so that nothing the hook raises is chained to it, as in the interpreter.
    status = _report(error)
    interrupted = type(error) is KeyboardInterrupt and status is None
    return Ending(1 if status is None else status, type(error).__name__, _said(error), interrupted)


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a `__str__` that raises
        return ""


def _run(target: str, arguments: list[str], as_module: bool) -> None:
    sys.modules["__main__"] = main = _new_main()
    # The interpreter's own entry point: the same frames in tracebacks, the same words for a missing module.
    run_module: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
    if as_module:
        sys.argv = ["-m", *arguments]  # until the module is found, as under `python -m`
        _replace_first_path(os.getcwd())
        run_module(target)
        return
    sys.argv = [target, *arguments]
    path = os.path.join(os.getcwd(), target)  # a script that changes directory still finds itself
    if pkgutil.get_importer(path) is not None:
        if _has_own_first_path():
            del sys.path[0]
        sys.path.insert(0, path)
        run_module("__main__", False)
        return
    _replace_first_path(os.path.dirname(os.path.realpath(path)))
    loader = SourcelessFileLoader if path.endswith(".pyc") else SourceFileLoader
    vars(main).update(__file__=path, __cached__=None, __loader__=loader("__main__", path))
    exec(_code_of(path), vars(main))


def _new_main() -> ModuleType:
    main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    return main


def _has_own_first_path() -> bool:
    """Whether Python put the folder of the script first; `-P` and `-I` keep it from that."""
    return not getattr(sys.flags, "safe_path", sys.flags.isolated)


def _replace_first_path(folder: str) -> None:
    if _has_own_first_path():
        sys.path[0] = folder


def _code_of(path: str) -> Any:
    with open(path, "rb") as file:
        code = pkgutil.read_code(file) if path.endswith(".pyc") else None
        return code if code is not None else compile(file.read(), path, "exec", dont_inherit=True)


def _exit_status(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    sys.stderr.write(f"{leaving.code}\n")
    return 1


def _report(error: BaseException) -> int | None:
    """Hand the exception to the script's `sys.excepthook`. Returns a status if the hook ended the process with one."""
    trace = _without_own_frames(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as leaving:
        return _exit_status(leaving)
    except BaseException as second:
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, _without_own_frames(second))
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)
    return None


_PACKAGE: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def _without_own_frames(error: BaseException) -> TracebackType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    at = trace
    while at is not None:
        # What listens to `backward` stands between the script and torch. A frame in which the error arose stays.
        while at.tb_next is not None and at.tb_next.tb_next is not None and _is_own(at.tb_next):
            at.tb_next = at.tb_next.tb_next
        at = at.tb_next
    error.__traceback__ = trace  # hooks read it from there
    return trace


def _is_own(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)
