"""The rules that hold the package together, checked on its source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gradient_flow

ROOT = Path(gradient_flow.__file__).parent
STAGES = ("capture", "measurement", "history", "diagnosis", "act", "show")
"""Each may import from those before it, and from itself."""
NOUNS = ("errors", "checks", "config", "_version")
"""Beside the stages, what every stage may use. Everything else puts stages together and is used by none."""
OPTIONAL = ("torch", "matplotlib", "pandas", "rich", "click", "wandb", "lightning", "transformers", "tensorboard")


def imports_of(path: Path) -> set[str]:
    """Modules of this package that a file imports, at any depth in it, as paths below the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradient_flow"):
            base = (node.module or "").removeprefix("gradient_flow").lstrip(".")
            found |= {f"{base}.{alias.name}".lstrip(".") for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("gradient_flow.") for a in node.names if a.name.startswith("gradient_flow")}
    return found


def wrong_way_imports(files: dict[str, set[str]]) -> list[str]:
    """Imports from a stage to a later one or to an assembler. `files` maps 'stage/file' to what it imports."""
    wrong = []
    for file, imported in files.items():
        stage = file.split("/")[0]
        if stage not in STAGES:
            continue
        allowed = STAGES[: STAGES.index(stage) + 1]
        for module in imported:
            top = module.split(".")[0]
            if top not in (*allowed, *NOUNS):
                wrong.append(f"{file} imports {module}")
    return wrong


def test_stages_import_only_earlier_stages():
    files = {str(path.relative_to(ROOT)): imports_of(path) for path in ROOT.rglob("*.py")}
    assert len(files) > 15
    assert wrong_way_imports(files) == []


def test_the_direction_check_can_fail():
    assert wrong_way_imports({"capture/x.py": {"measurement.table"}})
    assert wrong_way_imports({"show/x.py": {"functional"}})
    assert not wrong_way_imports({"show/x.py": {"measurement.table", "errors"}})


def test_every_package_folder_is_a_known_stage():
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert folders <= {*STAGES, "integrations", "commands", "demo", "serve"}


def test_faces_compute_no_statistics_of_their_own():
    formulas = (".norm(", ".std(", ".var(", ".mean(", ".square(", "vector_norm", "sqrt(", "**2", "** 2")
    for face in [*ROOT.glob("*.py"), *(ROOT / "integrations").glob("*.py")]:
        lines = [line for line in face.read_text().splitlines() if not line.strip().startswith((">>>", "..."))]
        source = "\n".join(lines).replace("of_rows.mean()", "")  # the mean over samples is the face's own definition
        assert [formula for formula in formulas if formula in source] == [], face.name


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_imports_nothing_optional():
    assert modules_after("import gradient_flow").isdisjoint({*OPTIONAL, "numpy"})


def test_the_import_check_can_fail():
    assert "torch" in modules_after("import gradient_flow, torch")


def test_numpy_gradients_do_not_import_torch():
    statement = "import gradient_flow as gf, numpy as np; gf.clip_gradients([np.ones(3)], 1.0)"
    assert modules_after(statement).isdisjoint(OPTIONAL)


def test_all_is_the_real_surface():
    for name in gradient_flow.__all__:
        assert getattr(gradient_flow, name) is not None
    assert len(set(gradient_flow.__all__)) == len(gradient_flow.__all__)
    code = "import gradient_flow as g; print(*[n for n in vars(g) if not n.startswith('_')])"
    eager = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    assert eager <= {"annotations", "importlib", "TYPE_CHECKING", "Any"}
    assert set(gradient_flow.__all__) <= set(dir(gradient_flow))


def test_public_names_and_typed_names_agree():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == set(gradient_flow.__all__) - {"__version__"}


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'meassure'"):
        gradient_flow.meassure  # noqa: B018


def test_no_folder_hides_a_public_name():
    """A module called like a public function would replace it as soon as somebody imports that module."""
    modules = {path.stem for path in ROOT.iterdir()}
    assert modules.isdisjoint(gradient_flow.__all__)


def test_no_file_is_a_drawer_for_everything():
    names = {path.stem for path in ROOT.rglob("*.py")}
    assert names.isdisjoint({"utils", "helpers", "common", "misc"})


def test_only_the_command_line_prints():
    printing = [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []
