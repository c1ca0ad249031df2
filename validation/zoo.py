"""All cases, by name, from the files in `cases/`."""

from __future__ import annotations

import importlib
from pathlib import Path

from validation.case import Case

CASES: dict[str, Case] = {}
for _file in sorted((Path(__file__).parent / "cases").glob("[!_]*.py")):
    for _case in importlib.import_module(f"validation.cases.{_file.stem}").zoo.cases:
        if _case.name in CASES:
            raise ValueError(f"Two cases are called {_case.name!r}. Rename one: results go by name.")
        CASES[_case.name] = _case
