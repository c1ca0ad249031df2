"""Lets pages link to files of the repository outside of `docs/`: the built site carries those files along.

A link such as `../examples/plain_loop.py` works when the page is read in the repository. In the site the file stands at
`source/examples/plain_loop.py`, and the link is led there. Markdown files, such as `CONTRIBUTING.md`, become pages.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"(^ *```.*?^ *```)", flags=re.DOTALL | re.MULTILINE)
DIRECTIVE = re.compile(r"^## (\w+)\n\n(?=::: )", flags=re.MULTILINE)
PREFIX = "source"
ALWAYS = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "examples/README.md",
    "examples/multi_timescale_rnn/README.md",
    "validation/README.md",
    "validation/clipping.md",
)
"""Files that stand in the navigation."""


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add what pages link to, and what those link to in turn."""
    docs = Path(config.docs_dir)
    root = docs.parent
    waiting = [(f"{docs.name}/{file.src_uri}") for file in files if file.src_uri.endswith(".md")] + list(ALWAYS)
    done: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        if not path.startswith(f"{docs.name}/"):
            level = InclusionLevel.INCLUDED if path in ALWAYS else InclusionLevel.NOT_IN_NAV
            where = str(root / path)
            files.append(File.generated(config, f"{PREFIX}/{path}", abs_src_path=where, inclusion=level))
        if path.endswith(".md"):
            waiting += [found for link in _links(root / path) if (found := _outside(root, path, link, docs.name))]
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Lead links to where the files stand in the site."""
    docs = Path(config.docs_dir)
    uri = page.file.src_uri
    from_source = uri.startswith(f"{PREFIX}/")
    path = uri.removeprefix(f"{PREFIX}/") if from_source else f"{docs.name}/{uri}"

    def led(match: re.Match[str]) -> str:
        target = _resolve(docs.parent, path, match[2])
        if target is None:
            return match[0]
        inside = target.startswith(f"{docs.name}/")
        if inside and not from_source:
            return match[0]  # mkdocs checks it
        there = target.removeprefix(f"{docs.name}/") if inside else f"{PREFIX}/{target}"
        return f"{match[1]}{posixpath.relpath(there, posixpath.dirname(uri))}{match[3]}"

    markdown = markdown.replace("<details>", '<details markdown="1">')  # GitHub needs no such word
    # What comes from a docstring has a heading of its own, with the signature; the written one is for GitHub.
    markdown = DIRECTIVE.sub(lambda found: f'<a id="{found[1].lower()}"></a>\n\n', markdown)
    parts = FENCE.split(markdown)  # code stays as it is
    return "".join(part if at % 2 else LINK.sub(led, part) for at, part in enumerate(parts))


def on_post_page(output: str, **_: Any) -> str:
    """The theme's search is a dialog without a name, which a screen reader would need."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def _links(page: Path) -> list[str]:
    return [match[2] for match in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8")))]


def _resolve(root: Path, page: str, link: str) -> str | None:
    """The file that a link of a page means, from the root of the repository; for a folder its README."""
    if re.match(r"[a-z]+:", link):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if (root / path).is_dir():
        path = f"{path}/README.md"
    return path if not path.startswith("..") and (root / path).is_file() else None


def _outside(root: Path, page: str, link: str, docs: str) -> str | None:
    path = _resolve(root, page, link)
    return None if path is None or path.startswith(f"{docs}/") else path
