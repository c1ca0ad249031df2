"""Every example runs as a user would run it."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script, *arguments, cwd):
    command = [sys.executable, "-W", "error", str(EXAMPLES / script), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)


def test_the_seven_uses_of_the_gain_monitor(tmp_path):
    result = run("gradient_gain_monitor.py", tmp_path, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for number in range(1, 8):
        assert f"\n{number}. " in result.stdout
    assert "sigmoid: 9 damping" in result.stdout
    for figure in ("pre_ln_post_ln.png", "log_gains.png"):
        assert (tmp_path / figure).stat().st_size > 20_000
