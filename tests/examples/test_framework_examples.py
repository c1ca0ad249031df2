"""The examples for frameworks run, and `docs/frameworks.md` shows them as a real difference to the plain script."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradient_flow as gf

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "frameworks.md").read_text()
SHOWN = dict(re.findall(r"\[`examples/(\w+\.py)`\].*?```diff\n(.*?)```", PAGE, flags=re.DOTALL))
RUNS = {
    "plain_loop.py": "runs/plain",
    "accelerate_example.py": "runs/accelerate",
    "huggingface_trainer.py": "runs/huggingface",
    "lightning_example.py": None,
}
"""Where the example leaves its run folder, if it makes one."""


def side(diff, mark):
    """The script on one side of a diff: with the lines that have this mark, without those that have the other."""
    lines = [line for line in diff.splitlines() if line[:1] in ("", " ", mark)]
    return "\n".join(line[1:] for line in lines).strip() + "\n"


def without_docstring(source):
    """Of the module: the page says what it is about in its own words."""
    end = ast.parse(source).body[0].end_lineno
    return "\n".join(source.splitlines()[end:]).strip() + "\n"


def test_the_page_shows_every_example():
    assert SHOWN.keys() == RUNS.keys()


@pytest.mark.parametrize("name", RUNS)
def test_the_example_runs_and_has_something_to_say(name, tmp_path):
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    assert "GradientFlowWarning" not in result.stderr
    assert "Healthy" in result.stdout
    if RUNS[name] is not None:
        run = gf.load_run(tmp_path / RUNS[name])
        assert len(run) >= 60
        assert gf.diagnose(run).healthy
        assert (run.series("clipped_norm") <= run.series("norm")).all()
    else:
        assert (tmp_path / "runs" / "lightning" / "gradient_statistics.png").exists()
        assert "train/grad_norm" in (tmp_path / "runs" / "lightning" / "metrics.csv").read_text()


@pytest.mark.parametrize("name", RUNS)
def test_the_difference_on_the_page_is_real(name):
    source = (ROOT / "examples" / name).read_text()
    assert len(source.splitlines()) <= 40
    assert side(SHOWN[name], "+") == without_docstring(source)
    added = [line for line in SHOWN[name].splitlines() if line.startswith("+") and line[1:].strip()]
    assert len(added) <= 6


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.filterwarnings("ignore")  # those of the frameworks
def test_without_our_lines_it_is_a_plain_script_that_runs(name, tmp_path, monkeypatch):
    plain = side(SHOWN[name], "-")
    assert "gradient_flow" not in plain
    assert "gf." not in plain
    monkeypatch.chdir(tmp_path)
    # In this process, where the frameworks are imported already.
    exec(compile(plain, name, "exec"), {"__name__": "__main__"})
    _forget_accelerator()


def _forget_accelerator():
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
