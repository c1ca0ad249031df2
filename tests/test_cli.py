import re

from click.testing import CliRunner

import gradient_flow
from gradient_flow.cli import main


def run(*arguments):
    return CliRunner().invoke(main, arguments, env={"COLUMNS": "80"}, catch_exceptions=False)


def test_version_says_which_kernel_is_in_use(monkeypatch):
    assert f"gradient-flow {gradient_flow.__version__} (kernel: native C" in run("--version").output
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "torch")
    assert "kernel: torch ops" in run("--version").output


def test_help_shows_every_command_with_an_example():
    assert "demo" in run("--help").output
    assert "Example:" in run("demo", "--help").output


def test_the_demo_tells_the_healthy_network_from_the_sick_one():
    result = run("demo", "--steps", "60")
    assert result.exit_code == 0
    healthy, sick = result.output.split("Sigmoid, Xavier ─")
    assert "Stable gradient flow!" in healthy
    assert "Vanishing gradients!" in sick
    assert len(re.findall(r"\(output\)", result.output)) == 2
    assert max(map(len, result.output.splitlines())) <= 80


def test_a_wrong_option_is_a_usage_error():
    result = run("demo", "--steps", "0")
    assert result.exit_code == 2
    assert "--steps" in result.output
