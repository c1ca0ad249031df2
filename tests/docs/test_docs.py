"""The pages under docs/: their code runs, their links lead somewhere, and nothing public is left out."""

import inspect
import re
from pathlib import Path

import pytest

import gradient_flow as gf
from gradient_flow.cli.main import COMMANDS, main
from gradient_flow.diagnosis.issue import IssueType

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
RULES = DOCS / "rules"
RULE_PAGES = sorted(RULES.glob("*.md"))
FENCE = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES_WITH_CODE = [page for page in PAGES if FENCE.search(page.read_text())]


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


def blocks_of(page):
    """The Python of a page, each block at its own line, so that an error names the line of the page."""
    text = page.read_text()
    return ["\n" * text.count("\n", 0, found.start(1)) + found[1] for found in FENCE.finditer(text)]


# Lightning's own deprecations and hints. Warnings of this package stay errors.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*logging interval")
@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_code_of_a_page_runs(page, one_thread, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}  # blocks of a page build on one another, from top to bottom
    for code in blocks_of(page):
        exec(compile(code, str(page), "exec"), names)


@pytest.mark.parametrize("page", RULE_PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_rule_page_proves_its_issue(page):
    blocks = blocks_of(page)
    assert blocks
    assert all("assert " in code for code in blocks)


def test_code_is_python_that_runs_or_says_what_else_it_is():
    languages = {"python", "diff", "text", "bash", "yaml", "json", "toml"}
    for page in PAGES:
        opened = re.findall(r"^ *```(.*)$", page.read_text(), flags=re.MULTILINE)[::2]
        assert set(opened) <= languages, page.name


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


def test_the_list_of_examples_is_complete_and_its_links_hold():
    page = ROOT / "examples" / "README.md"
    assert broken_links(page) == []
    named = set(re.findall(r"python (?:examples/)?([\w/]+\.py)", page.read_text()))
    scripts = {path.name for path in page.parent.glob("*.py")}
    assert scripts <= named
    folders = {path.parent.name for path in page.parent.glob("*/README.md")}
    assert all(f"({folder}/README.md)" in page.read_text() for folder in folders)


def test_the_link_check_can_fail(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One two\n[a](#one-two) [b](#three) [c](missing.md) [d](https://a.org) [e](page.md#one-two)")
    assert broken_links(page) == ["#three", "missing.md"]


def test_the_reference_names_everything_public():
    named = set(re.findall(r"`(\w+)", (DOCS / "API.md").read_text()))
    assert sorted(set(gf.__all__) - named) == []


def test_every_public_name_has_its_place_in_the_reference():
    text = "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
    shown = re.findall(r"^::: gradient_flow\.(\w+)$", text, flags=re.MULTILINE)
    assert sorted(shown) == sorted(set(gf.__all__) - {"__version__"})
    for name in shown:
        assert f"\n## {name}\n" in text  # what a link leads to


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_the_command_line_knows_each_command_and_only_its_options(name):
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", (DOCS / "cli.md").read_text(), flags=re.DOTALL | re.M))
    section = sections[name]
    assert f"gradient-flow {name}" in section
    ours = "\n".join(line.partition("train.py")[0] for line in section.splitlines())  # what follows a script is its own
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", ours)) - {"--help"}
    known = {option for parameter in main.get_command(None, name).params for option in parameter.opts}
    assert mentioned <= known


def test_every_parameter_of_a_public_function_is_explained():
    functions = {name: value for name in gf.__all__ if inspect.isfunction(value := getattr(gf, name))}
    assert len(functions) > 10
    untold = {
        f"{name}({parameter})"
        for name, function in functions.items()
        for parameter in inspect.signature(function).parameters
        if not re.search(rf"\b{parameter}\b", inspect.getdoc(function) or "")
    }
    assert not untold
