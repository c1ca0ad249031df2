"""The sanitizer run passes on the kernel as it is, and fails on kernels that are wrong."""

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SANITIZE = ROOT / ".ci" / "sanitize"
KERNEL = ROOT / "src" / "gradient_flow" / "table" / "kernels" / "native"

FAULTS = {
    "reads one element too many": (
        "kernel.c",
        "n - start < BLOCK ? n - start : BLOCK",
        "n - start < BLOCK ? n - start + 1 : BLOCK",
        "AddressSanitizer: heap-buffer-overflow",
    ),
    "shifts into the sign of an integer": (
        "kernel.c",
        "float_of(pair << 16)",
        "float_of((uint32_t)((int32_t)pair << 16))",
        "runtime error: left shift",
    ),
    "counts elements at the limit": (
        "kernel.c",
        "near_zero += ABS_OF(VALUE) < near_limit;",
        "near_zero += ABS_OF(VALUE) <= near_limit;",
        "near_zero is",
    ),
    "samples past the end": (
        "sample.c",
        "at < tensor->count; at++",
        "at <= tensor->count; at++",
        "AddressSanitizer: heap-buffer-overflow",
    ),
    "loses the sign of a sample": (
        "sample.c",
        "return sign ? -size : size;",
        "return size;",
        "is not in its stretch",
    ),
}
"""What is wrong: the file, the line, what becomes of it, and what the run must say."""


def sanitize(*arguments: Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SANITIZE, *arguments], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=600
    )


def test_the_kernel_agrees_with_the_reference_under_every_sanitizer(tmp_path):
    run = sanitize(cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    passes = run.stdout.count("== ")
    assert passes >= 2
    assert len(re.findall(r"^fuzz_kernel: \d+ calls, \d+ elements: ok$", run.stdout, re.MULTILINE)) == passes


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_caught(fault, tmp_path):
    file, line, instead, complaint = FAULTS[fault]
    shutil.copytree(KERNEL, tmp_path, dirs_exist_ok=True)
    source = (KERNEL / file).read_text()
    assert source.count(line) == 1
    (tmp_path / file).write_text(source.replace(line, instead))
    run = sanitize(tmp_path)
    assert run.returncode != 0
    assert complaint in run.stderr


def test_without_a_compiler_the_run_fails():
    run = sanitize(CC="no-such-compiler")
    assert run.returncode != 0
    assert "no C compiler" in run.stderr


def test_the_kernel_is_sanitized_with_the_flags_it_is_shipped_with():
    shipped = next(
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse((ROOT / "setup.py").read_text()))
        if isinstance(node, ast.keyword) and node.arg == "extra_compile_args"
    )
    listed = re.search(r"^shipped_flags=\((.*?)\)", SANITIZE.read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert listed[1].split() == shipped


def test_all_that_is_shipped_but_the_module_is_sanitized():
    shipped = re.search(r"sources=\[(.*?)\]", (ROOT / "setup.py").read_text())
    listed = re.search(r"^sources=\((.*?)\)", SANITIZE.read_text(), re.MULTILINE)
    assert shipped is not None
    assert listed is not None
    assert {*listed[1].split(), "module.c"} == {*re.findall(r"\w+\.c", shipped[1])}
    assert {path.name for path in KERNEL.glob("*.c")} == {*listed[1].split(), "module.c"}
