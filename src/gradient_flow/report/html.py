"""The page: template, style and scripts of `report/page/` put together into one file that needs nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson

PAGE: Final = Path(__file__).parent / "page"
STYLES: Final = ("vendor/uPlot.min.css", "style.css")
_PARTS: Final = (
    *("core", "format", "data", "colours", "theme", "summary", "rows", "axis", "scales", "marks", "lines"),
    *(
        "mapdraw",
        "mapstate",
        "map",
        "mapuse",
        "model",
        "overtime",
        "inside",
        "updates",
        "exponents",
        "layer",
        "table",
        "depth",
    ),
    *("cures", "events", "about", "share", "compare", "runs", "live", "main"),
)
SCRIPTS: Final = ("vendor/uPlot.iife.min.js", *(f"{part}.js" for part in _PARTS))
"""In the order in which they are run: each uses only what stands before it."""
LICENCE: Final = "vendor/uPlot.LICENSE"
"""Goes along with the copy of the chart library in every page, as it asks."""
_CLOSING: Final = re.compile(r"</(script|style)|<!--", re.IGNORECASE)


def render_page(data: Mapping[str, Any] | None) -> str:
    """One HTML document: the frozen report of `page_data`'s dictionary, or, given none, the page that a server gives.

    Nothing in it is loaded from elsewhere. Names in `data` are never part of the markup: the data is packed, and what
    stands in the open (title, text for readers without scripts) is escaped.

    >>> page = render_page(None)
    >>> "<script src" in page, page.count("</script>")
    (False, 1)
    """
    licence = (PAGE / LICENCE).read_text(encoding="utf-8")
    style, script = _together(STYLES), f"\n/*! uPlot\n{licence}\n*/{_together(SCRIPTS)}"
    parts = {
        "csp": _policy(style, script, live=data is None),
        "title": html.escape(f"{data['run']['name']} – gradient flow" if data is not None else "gradient flow"),
        "style": style,
        "noscript": _without_scripts(data),
        "data": "" if data is None else _packed(data),
        "script": script,
    }
    template = (PAGE / "index.html").read_text(encoding="utf-8")
    # One pass over the template: what is put in is never looked at again for places to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)


@cache
def _together(names: tuple[str, ...]) -> str:
    text = "\n".join((PAGE / name).read_text(encoding="utf-8").strip() for name in names)
    if _CLOSING.search(text):
        raise ValueError(f"`{names[-1]}` and the files before it must not hold </script, </style or <!--.")
    return f"\n{text}\n"


def _policy(style: str, script: str, *, live: bool) -> str:
    """The content security policy: exactly this script and style, and no connection but to the page's own server."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    connections = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; img-src data:; "
        f"connect-src {connections}; base-uri 'none'; form-action 'none'"
    )


def _packed(data: Mapping[str, Any]) -> str:
    # No time stamp: the same run gives the same file. Base 64 holds no character that HTML could trip over.
    packed = base64.b64encode(gzip.compress(orjson.dumps(data), compresslevel=6, mtime=0)).decode("ascii")
    return f'<script type="application/json+gzip-base64" id="gf-data">{packed}</script>'


def _without_scripts(data: Mapping[str, Any] | None) -> str:
    """What a reader sees whose browser runs no scripts: the verdict in words."""
    if data is None:
        return "<p>This page needs JavaScript.</p>"
    issues = "".join(
        f"<li>[{html.escape(issue['severity'])}] {html.escape(issue['title'])}: {html.escape(issue['text'] or '')}</li>"
        for issue in data["verdict"]["issues"]
    )
    rows = "".join(f"<li>{html.escape(f'{name}: {value}')}</li>" for name, value in data["run"].get("about") or ())
    about = f"<h2>What this run was</h2><ul>{rows}</ul>" if rows else ""
    verdict = f"<h1>{html.escape(data['verdict']['sentence'])}</h1><ul>{issues}</ul>"
    return f"{verdict}{about}<p>The charts need JavaScript.</p>"
