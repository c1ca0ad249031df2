"""All cases, by name: those of `zoo_*.py`, and of `unseen_*.py`, which were written without sight of the rules."""

from __future__ import annotations

import importlib
from pathlib import Path

from validation.case import Case

_FOLDER = Path(__file__).parent
CASES: dict[str, Case] = {}
for _file in sorted([*_FOLDER.glob("zoo_*.py"), *_FOLDER.glob("unseen_*.py")]):
    for _case in importlib.import_module(f"validation.{_file.stem}").zoo.cases:
        if _case.name in CASES:
            raise ValueError(f"Two cases are called {_case.name!r}. Rename one: results go by name.")
        CASES[_case.name] = _case
