"""The reinforcement-learning example runs as a user would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")
SCRIPT = Path(__file__).parents[2] / "examples" / "reinforcement_learning.py"


def run(*arguments):
    command = [sys.executable, "-W", "error", str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_few_episodes_of_a_real_task():
    result = run("--episodes", 12)
    assert result.returncode == 0, result.stderr
    assert "episode   12: return" in result.stdout
    assert "entropy collapse risk" in result.stdout
    assert "[HIGH]" not in result.stdout


def test_a_policy_that_is_punished_for_exploring_collapses():
    result = run("--episodes", 60, "--entropy-bonus", -1)
    assert result.returncode == 0, result.stderr
    assert "[HIGH] ENTROPY_COLLAPSE" in result.stdout or "[CRITICAL] ENTROPY_COLLAPSE" in result.stdout
