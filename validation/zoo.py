"""All cases, by name: of `zoo_*.py`, and of `unseen_*.py` and `blind_*.py`, written without sight of the rules."""

from __future__ import annotations

import importlib
from pathlib import Path

from validation.case import Case

_FOLDER = Path(__file__).parent
CASES: dict[str, Case] = {}
_PATTERNS = ("zoo_*.py", "unseen_*.py", "blind_*.py")
for _file in sorted(_file for _pattern in _PATTERNS for _file in _FOLDER.glob(_pattern)):
    for _case in importlib.import_module(f"validation.{_file.stem}").zoo.cases:
        if _case.name in CASES:
            raise ValueError(f"Two cases are called {_case.name!r}. Rename one: results go by name.")
        CASES[_case.name] = _case
