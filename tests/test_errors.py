import importlib.metadata
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradient_flow as gf

tomllib = pytest.importorskip("tomllib")  # Python 3.11

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
RAISED = sorted(
    {
        extra
        for file in (ROOT / "src").rglob("*.py")
        for extra in re.findall(r'MissingExtraError\("(\w+)"\)', file.read_text())
    }
    | {"wandb", "tensorboard", "mlflow"}  # `watch(log=...)` raises it with the name of the logger
)


def named(message: object) -> list[str]:
    command = re.search(r"pip install (.+)$", str(message))
    assert command is not None, message
    return re.findall(r'"([^"]+)"', command[1])


def name_of(requirement: str) -> str:
    return re.split(r"[<>=!~\[ ]", requirement)[0]


@pytest.fixture
def metadata_of_pyproject(monkeypatch):
    """As setuptools writes it; that of an editable installation may be older than the file."""
    stated = [f'{requirement}; extra == "{extra}"' for extra, needed in EXTRAS.items() for requirement in needed]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["torch>=2", *stated])


@pytest.mark.parametrize("extra", RAISED)
def test_a_missing_extra_names_the_requirements_of_pyproject(extra, metadata_of_pyproject):
    message = gf.MissingExtraError(extra)
    assert named(message) == EXTRAS[extra]
    assert f"`{extra}`" in str(message)
    assert "gradient-flow[" not in str(message)  # the package may be on no index


@pytest.mark.parametrize("extra", RAISED)
def test_a_missing_extra_names_the_same_packages_as_installed(extra):
    assert [*map(name_of, named(gf.MissingExtraError(extra)))] == [*map(name_of, EXTRAS[extra])]


@pytest.mark.parametrize("extra", RAISED)
def test_without_metadata_the_packages_are_named_without_versions(extra, monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert named(gf.MissingExtraError(extra)) == [*map(name_of, EXTRAS[extra])]


def test_a_missing_extra_survives_pickling():
    error = gf.MissingExtraError("dashboard")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.extra) == (str(error), "dashboard")


def test_the_documents_install_what_pyproject_requires():
    known = {requirement for needed in EXTRAS.values() for requirement in needed}
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for page in pages:
        assert "pip install 'gradient-flow[" not in page.read_text(), page
        for command in re.findall(r'pip install ("[^`\n]+)', page.read_text()):
            assert set(re.findall(r'"([^"]+)"', command)) <= known, page


def test_errors_import_neither_torch_nor_metadata():
    code = "import sys, gradient_flow.errors; print({'torch', 'importlib.metadata'} & sys.modules.keys())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"
