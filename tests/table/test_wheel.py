"""`python -m build` makes an sdist, and of that one wheel for every Python from the floor on, which works."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with both, made of a copy of the sources: building leaves traces."""
    source = tmp_path_factory.mktemp("build") / "source"
    ignored = shutil.ignore_patterns("*.so", "build", "*.egg-info", ".git", ".venv*", "__pycache__", ".hypothesis")
    shutil.copytree(ROOT, source, ignore=ignored)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(source / "dist"), str(source)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:] + run.stdout[-2000:]
    return source / "dist"


def test_the_sdist_has_what_a_build_needs(built):
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    for needed in ("setup.py", "pyproject.toml", "LICENSE", "src/gradient_flow/table/kernels/native/kernel.h"):
        assert needed in names
    assert not [name for name in names if name.endswith(".so")]


def test_one_wheel_serves_every_python_from_the_floor_on(built):
    [wheel] = built.glob("*.whl")
    assert "-cp310-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert "gradient_flow/table/kernels/_native.abi3.so" in names
    assert "gradient_flow/py.typed" in names
    assert any(name.startswith("gradient_flow/report/page/") for name in names)
    assert not any(name.startswith("tests/") for name in names)


def test_the_wheel_runs_the_demo_in_an_environment_of_its_own(built, tmp_path):
    """What it depends on comes from here: nothing is fetched."""
    [wheel] = built.glob("*.whl")
    venv.create(tmp_path / "environment", with_pip=False, symlinks=True)
    python = tmp_path / "environment/bin/python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / "environment/lib" / version / "site-packages"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(packages)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    # A folder on this path does not get its .pth files read, so an editable install here is not seen there.
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib"), "OMP_NUM_THREADS": "1"}
    where = "import gradient_flow.table.kernels as k; print(k.NATIVE, k.__file__)"
    told = subprocess.run([python, "-c", where], check=True, env=environment, capture_output=True, text=True).stdout
    assert told.startswith(f"True {packages}")
    command = [python, "-m", "gradient_flow", "demo", "--fault", "nan", "--steps", "30", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    assert list((tmp_path / "out").rglob("run.jsonl"))
