"""The pages under docs/: their code runs, their links lead somewhere, and nothing public is left out."""

import re
from pathlib import Path

import pytest

import gradient_flow as gf
from gradient_flow.diagnosis.issue import IssueType

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
RULES = DOCS / "rules"
RULE_PAGES = sorted(RULES.glob("*.md"))
FENCE = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def page_of(kind):
    return f"{kind.value.replace(' ', '-')}.md"


def without_code(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors_of(text):
    """What GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page):
    """Relative links of a page whose file or heading does not exist."""
    broken = []
    for target in LINK.findall(without_code(page.read_text())):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and anchor not in anchors_of(file.read_text())):
            broken.append(target)
    return broken


@pytest.fixture
def one_thread():
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("page", RULE_PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_rule_page_shows_its_issue(page, one_thread, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    blocks = FENCE.findall(page.read_text())
    assert blocks
    for code in blocks:
        assert "assert " in code
        exec(compile(code, str(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("kind", IssueType, ids=lambda kind: kind.name)
def test_every_type_of_issue_has_a_page_about_it(kind):
    text = (RULES / page_of(kind)).read_text()
    assert text.startswith(f"# {kind.name.replace('_', ' ')}\n")
    assert f"IssueType.{kind.name}" in "".join(FENCE.findall(text))
    for section in ("How we tell", "Example", "Healthy, and not flagged", "What to do"):
        assert f"\n## {section}\n" in text, section


def test_the_index_lists_every_page_and_there_are_no_others():
    listed = set(LINK.findall(without_code((RULES / "README.md").read_text())))
    pages = {page.name for page in RULE_PAGES} - {"README.md"}
    assert pages == {page_of(kind) for kind in IssueType}
    assert pages <= listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_relative_links_exist(page):
    assert broken_links(page) == []


def test_the_link_check_can_fail(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One two\n[a](#one-two) [b](#three) [c](missing.md) [d](https://a.org) [e](page.md#one-two)")
    assert broken_links(page) == ["#three", "missing.md"]


def test_the_reference_names_everything_public():
    named = set(re.findall(r"`(\w+)", (DOCS / "API.md").read_text()))
    assert sorted(set(gf.__all__) - named) == []
