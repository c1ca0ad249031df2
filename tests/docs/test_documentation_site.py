"""The documentation as a site: it builds without a warning, its links hold, and it asks for nothing elsewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

pytest.importorskip("mkdocs", reason="needs the extra docs: pip install -e '.[docs]'")
pytest.importorskip("selenium", reason="needs the extra dev")
from browser import browser

__all__ = ["browser"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOADS = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "object": "data",
    "embed": "src",
}
"""What a browser fetches by itself. A link that a reader may click is not among them."""


class Page(HTMLParser):
    """What a page refers to, what it loads, and the places that can be linked to."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in LOADS and found.get(LOADS[tag]):
            self.loads.append(found[LOADS[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """`mkdocs build --strict`, as a contributor runs it."""
    folder = tmp_path_factory.mktemp("documentation") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},  # an advertisement of another tool, not of a fault
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def elsewhere(address):
    return bool(urlsplit(address).scheme or urlsplit(address).netloc) and not address.startswith("data:")


def broken(pages, site):
    """Links and loads of the pages that lead to no file, or to no place in it."""
    for path, page in pages.items():
        for address in page.links + page.loads:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue  # the page for a wrong address does not know from where it is shown
            target = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            if not (site / target).is_file():
                yield f"{path}: {address}"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{path}: {address} (no such place)"


def test_all_pages_stand_in_the_navigation():
    def entries(item):
        if isinstance(item, str):
            return [item]
        children = item.values() if isinstance(item, dict) else item
        return [entry for child in children for entry in entries(child)]

    listed = entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert len(listed) == len(set(listed))
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert written == {entry for entry in listed if not entry.startswith("source/")}


def test_every_page_is_built(site, pages):
    for page in DOCS.rglob("*.md"):
        path = page.relative_to(DOCS)
        name = "index.html" if path.name == "README.md" else f"{path.stem}.html"
        assert path.parent / name in pages


def test_internal_links_hold(pages, site):
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert list(broken(pages, site)) == []


def test_the_check_of_links_can_fail(tmp_path):
    text = '<h1 id="x"><a href="a.html#y"><a href="b.html"><img src="c.png"><a href="#x"><a href="https://d.org">'
    for name in ("page.html", "a.html"):
        (tmp_path / name).write_text(text)
    pages = {Path("page.html"): Page(text), Path("a.html"): Page("")}
    assert list(broken(pages, tmp_path)) == [
        "page.html: a.html#y (no such place)",
        "page.html: b.html",
        "page.html: c.png",
    ]


def test_nothing_is_fetched_from_elsewhere(pages, site):
    assert [address for page in pages.values() for address in page.loads if elsewhere(address)] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(https?:)?//|@import", sheet.read_text(encoding="utf-8")), sheet.name
    # The theme would fetch a library for diagrams, where a page had one.
    assert not any("mermaid" in path.read_text(encoding="utf-8") for path in site.rglob("*.html"))


def test_reference_comes_from_the_docstrings(site):
    text = (site / "reference" / "manager.html").read_text(encoding="utf-8")
    assert "Guards, clips and watches the gradients of a model" in text
    assert "Largest total L2 norm let through" in text  # a docstring under a field
    assert "&gt;&gt;&gt;" in text  # its example, as code and not as a quotation
    assert "<blockquote>" not in text


def test_it_opens_and_searches_from_the_file_system(site, browser):
    browser.open((site / "index.html").as_uri(), ready=False)
    browser.wait(lambda: browser.js("return document.querySelector('iframe') !== null"), "search has begun")
    search = "const field = document.querySelector('.md-search__input'); field.focus(); field.value = arguments[0];"
    browser.js(search + "field.dispatchEvent(new Event('keyup', { bubbles: true }))", "zclip")
    found = browser.wait(
        lambda: browser.js("return [...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"),
        "something is found",
    )
    assert any("clipping.html" in address for address in found)
    assert all(address.startswith(("file:", "data:", "about:")) for address in browser.requests())
    assert browser.complaints() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_is_accessible(site, browser, theme):
    browser.open((site / "cli.html").as_uri(), theme=theme, ready=False)  # a table, code, links, headings
    browser.settle()
    found = browser.accessibility_findings()
    # The theme lets the keyboard into code that scrolls where a pointer can hover, which a headless browser has not.
    assert [finding for finding in found if "scrollable-region-focusable" not in finding] == []
