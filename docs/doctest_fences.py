"""Shows the examples of docstrings as code: to Markdown, `>>>` is a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", flags=re.MULTILINE)
DIRECTIVE = re.compile(r" *# doctest:.*")


class DoctestFences(griffe.Extension):
    """Puts fences around the examples of every docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called with each module, class, function and attribute."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            fenced = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            obj.docstring.value = DIRECTIVE.sub("", fenced)  # those are for the machine
