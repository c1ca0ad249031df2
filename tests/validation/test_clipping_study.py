"""The clipping study runs from end to end, and its faults are faults."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "validation" / "clipping_study.py"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    command = [sys.executable, "-W", "error", str(SCRIPT), "--quick", "--out", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=180)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def final_losses(out):
    """Candidate → mean final loss, read from the table."""
    rows = re.findall(
        r"^\| ([a-z][^|]*?) \| [^|]*[`)][^|]* \| (NaN|[\d.]+)", (out / "clipping.md").read_text("utf-8"), re.M
    )
    return {name: float(loss) for name, loss in rows}


def test_report_and_figure_are_written(out):
    text = (out / "clipping.md").read_text(encoding="utf-8")
    assert "![Final losses by candidate](images/clipping.png)" in text
    assert "python validation/clipping_study.py --seeds 1" in text
    assert (out / "images" / "clipping.png").stat().st_size > 20_000


def test_all_candidates_are_in_the_table(final_losses):
    clips = {"no clip", "norm 1.0", "value 1.0", "adaptive", "agc", "zclip", "per_group"}
    guards = {"no guard", "observe", "replace (default)", "zero", "skip", "rollback", "raise"}
    assert clips | guards <= set(final_losses)


def test_only_runs_without_a_guard_end_non_finite(final_losses):
    lost = {name for name, loss in final_losses.items() if loss != loss}
    assert lost == {"no guard", "observe"}
    assert 0 < final_losses["skip"] < 1
