"""The rules that hold the package together, checked on its source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gradient_flow

ROOT = Path(gradient_flow.__file__).parent
ROOMS = (
    "_version",
    "errors",
    "config",
    "capture",
    "table",
    "record",
    "diagnosis",
    "act",
    "probes",
    "looks",
    "flow",
    "analysis",
    "training",
    "fleets",
    "cures",
    "report",
    "faces",
    "integrations",
    "demo",
    "testing",
    "cli",
)
"""Each may import from those before it, and from itself."""
OPTIONAL = (
    *("torch", "matplotlib", "pandas", "rich", "click", "wandb", "lightning", "transformers", "tensorboard"),
    *("duckdb", "pyarrow", "ray", "fsspec"),
)
TORCH_FREE = ("record", "diagnosis", "fleets", "report")
"""Rooms whose every module must be usable without torch."""
PROBES = ("recurrent", "attention", "policy", "field", "nonfinite", "batch", "routing", "embedding")


def imports_of(path: Path) -> set[str]:
    """Modules of this package that a file imports, at any depth in it, as paths below the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradient_flow"):
            base = (node.module or "").removeprefix("gradient_flow").lstrip(".")
            found |= {f"{base}.{alias.name}".lstrip(".") for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("gradient_flow.") for a in node.names if a.name.startswith("gradient_flow.")}
    return found


def room_of(file: str) -> str:
    return file.split("/")[0].removesuffix(".py")


def wrong_way_imports(files: dict[str, set[str]]) -> list[str]:
    """Imports from a room to a later one. `files` maps 'room/file' to what it imports."""
    wrong = []
    for file, imported in files.items():
        allowed = ROOMS[: ROOMS.index(room_of(file)) + 1] if room_of(file) in ROOMS else ROOMS
        wrong += [f"{file} imports {module}" for module in imported if module.split(".")[0] not in allowed]
    return wrong


def every_file() -> dict[str, set[str]]:
    files = {path.relative_to(ROOT).as_posix(): imports_of(path) for path in ROOT.rglob("*.py")}
    assert len(files) > 150
    return files


def test_imports_point_only_upwards():
    assert wrong_way_imports(every_file()) == []


def test_the_direction_check_can_fail():
    assert wrong_way_imports({"capture/x.py": {"table.table"}})
    assert wrong_way_imports({"config.py": {"capture.parameters"}})
    assert wrong_way_imports({"report/serve/x.py": {"faces.gain"}})
    assert not wrong_way_imports({"report/x.py": {"table.table", "errors"}})


def test_everything_lies_in_a_room():
    found = {room_of(path.relative_to(ROOT).as_posix()) for path in ROOT.rglob("*.py")}
    assert found - {"__init__", "__main__"} == set(ROOMS)


def test_diagnosis_imports_no_probe():
    """Rules beside a probe are registered by name, so that a verdict loads only those that a run calls for."""
    files = every_file()
    assert [file for file in files if file.startswith("diagnosis/") and any("probes" in m for m in files[file])] == []


def test_probes_do_not_import_each_other():
    wrong = []
    for file, imported in every_file().items():
        if file.startswith("probes/") and file.count("/") == 2:
            mine = file.split("/")[1]
            wrong += [f"{file} imports {m}" for m in imported if m.startswith("probes.") and m.split(".")[1] != mine]
    assert wrong == []


def test_no_cycles_between_modules():
    files = every_file()
    modules = {file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in files}
    graph = {
        module: {known for each in top_level_imports(ROOT / file) if (known := longest_known(each, modules)) != module}
        for module, file in modules.items()
    }
    state: dict[str, int] = {}

    def visit(module: str, path: tuple[str, ...]) -> None:
        if state.get(module) == 2:
            return
        assert state.get(module) != 1, " → ".join((*path, module))
        state[module] = 1
        for other in graph[module]:
            visit(other, (*path, module))
        state[module] = 2

    for module in graph:
        visit(module, ())


def top_level_imports(path: Path) -> set[str]:
    """What is imported when the module is loaded: not inside functions, not for type checkers alone."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradient_flow."):
            base = (node.module or "").removeprefix("gradient_flow.")
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def longest_known(name: str, modules: dict[str, str]) -> str:
    while name and name not in modules:
        name = name.rpartition(".")[0]
    assert name
    return name


def test_tests_mirror_the_rooms():
    tests = Path(__file__).parent
    folders = {path.name for path in tests.iterdir() if path.is_dir() and any(path.rglob("test_*.py"))}
    rooms = {room for room in ROOMS if (ROOT / room).is_dir()}
    assert rooms <= folders, rooms - folders
    loose = {path.name for path in tests.glob("test_*.py")}
    assert loose <= {
        "test_architecture.py",
        "test_errors.py",
        "test_old_pickles.py",
        "test_one_verdict.py",
        "test_testing.py",
    }


def test_no_folder_and_module_share_a_name():
    """`page.py` beside `page/` would be two things under one name."""
    for path in ROOT.rglob("*.py"):
        assert not path.with_suffix("").is_dir() or path.stem == "native", path  # the kernel's C beside its module


def test_faces_compute_no_statistics_of_their_own():
    formulas = (".norm(", ".std(", ".var(", ".mean(", ".square(", "vector_norm", "sqrt(", "**2", "** 2")
    for face in [*(ROOT / "faces").glob("*.py"), *(ROOT / "integrations").glob("*.py"), *(ROOT / "cli").glob("*.py")]:
        lines = [line for line in face.read_text().splitlines() if not line.strip().startswith((">>>", "..."))]
        source = "\n".join(lines).replace("of_rows.mean()", "")  # the mean over samples is the face's own definition
        assert [formula for formula in formulas if formula in source] == [], face.name


@pytest.mark.parametrize("room", TORCH_FREE)
def test_these_rooms_need_no_torch(room):
    modules = [
        f"gradient_flow.{path.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}"
        for path in (ROOT / room).rglob("*.py")
        if path.name != "__init__.py" and "serve" not in path.parts
    ]
    assert modules
    assert "torch" not in modules_after(f"import {', '.join(modules)}")


@pytest.mark.parametrize("probe", PROBES)
def test_rules_of_probes_need_no_torch(probe):
    found = {"nonfinite": "origin", "batch": "cause"}  # what these find is no look, and has no rules
    module = f"gradient_flow.probes.{probe}.{found.get(probe, 'rules')}"
    assert "torch" not in modules_after(f"import {module}")


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_imports_nothing_optional():
    assert modules_after("import gradient_flow").isdisjoint({*OPTIONAL, "numpy"})


def test_measuring_imports_nothing_but_itself_beside_numpy():
    """What is needed for warnings, notebooks and patterns comes with the first of them."""
    ours = modules_after("import numpy, gradient_flow; gradient_flow.measure") - modules_after("import numpy")
    assert ours <= {"gradient_flow", "__future__", "importlib"}


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
    assert eager <= {"annotations", "importlib", "sys", "TYPE_CHECKING", "Any"}
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
