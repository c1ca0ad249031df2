"""Planted code as a file of the user's own: copied out of the package and imported from there.

What runs inside of this package is never blamed for a NaN, so that the line of the user's code is. Planted code has to
lie outside of it to be found; and there a person can read and repair it.
"""

from __future__ import annotations

import importlib.util
import shutil
from importlib import resources
from pathlib import Path
from types import ModuleType


def written_out(name: str, folder: Path) -> ModuleType:
    """The module `name` of `planted/`, from a copy in `folder`. A copy that is there already is used as it is."""
    target = folder.resolve() / f"{name}.py"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with resources.as_file(resources.files("gradient_flow.demo.planted") / f"{name}.py") as source:
            shutil.copyfile(source, target)
    spec = importlib.util.spec_from_file_location(f"gradient_flow_demo_{name}", target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
