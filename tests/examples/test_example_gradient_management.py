"""The example of gradient management runs as a new user would run it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "gradient_management_example.py"


def run(*arguments, cwd):
    command = [sys.executable, "-W", "error", str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, encoding="utf-8", timeout=180)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("example")


@pytest.fixture(scope="module")
def printed(folder):
    """What all seven topics print, by topic."""
    result = run("--out", "figures", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    _, *topics = re.split(r"^\d\. ", result.stdout, flags=re.M)
    return topics


def test_the_seven_topics_of_the_document(printed):
    titles = [topic.split(":")[0] for topic in printed]
    assert titles == [
        "Basic gradient clipping",
        "NaN/Inf handling",
        "Adaptive clipping",
        "Health monitoring",
        "Integrated training",
        "Visualization",
        "Safe backward utility",
    ]


def test_the_output_fits_a_terminal(printed):
    assert max(len(line) for topic in printed for line in topic.splitlines()) <= 80


def test_clipping_touches_only_what_is_above_the_limit(printed):
    norms = re.findall(r"norm +([\d.]+) -> ([\d.]+)", printed[0])
    assert len(norms) == 4
    for before, after in norms:
        assert float(after) == pytest.approx(min(float(before), 1.0), abs=1e-3)


def test_the_planted_nan_is_named(printed):
    assert "step 3: 321 NaN gradients, action: skip" in printed[1]
    assert "held NaN already (1 of 256" in printed[1]
    assert "1 of 5 steps skipped, all weights finite: True" in printed[1]


def test_the_adaptive_limit_follows_the_norms(printed):
    limits = {int(s): float(limit) for s, limit in re.findall(r"^ +(\d+) +[\d.]+ +([\d.]+)", printed[2], re.M)}
    assert limits[300] < limits[160] < limits[20]
    assert re.search(r"^ +250 .* clipped to", printed[2], re.M)


def test_each_planted_fault_is_told_once_with_advice(printed):
    assert printed[3].count("! ") == printed[3].count("-> ") == 2
    assert "Gradient explosion" in printed[3]
    assert "every gradient is exactly zero; step 50" in printed[3]
    assert "2 of 60 steps unhealthy" in printed[3]


def test_training_stops_early_with_the_best_weights(printed):
    best = re.search(r"did not improve for 10 epochs \(best ([\d.]+)", printed[4])
    now = re.search(r"best weights restored: True, validation loss now ([\d.]+)", printed[4])
    assert float(now[1]) == pytest.approx(float(best[1]), abs=1e-4)


def test_figures_and_log_are_saved(printed, folder):
    for name in ("training_curves.png", "gradient_stats.png"):
        assert (folder / "figures" / name).stat().st_size > 20_000
    log = json.loads((folder / "figures" / "training_log.json").read_text(encoding="utf-8"))
    assert log["summary"]["nan_inf_summary"]["skipped_steps"] == 1


def test_one_topic_alone(tmp_path):
    result = run("--topic", "safe-backward", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("\n7. ")
    assert "safe to save a checkpoint: True" in result.stdout
    assert not list(tmp_path.iterdir())
