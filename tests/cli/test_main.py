"""The command as a whole: what it lists, how little it loads, what it says when it is used wrongly."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

import gradient_flow
from gradient_flow.cli.main import COMMANDS, main


def run(*arguments):
    return CliRunner().invoke(main, arguments, env={"COLUMNS": "80"}, catch_exceptions=False)


def in_process(*arguments, **environment):
    command = [sys.executable, "-m", "gradient_flow", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)


def test_version_says_which_kernel_is_in_use(monkeypatch):
    assert f"gradient-flow {gradient_flow.__version__} (kernel: native C" in run("--version").output
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "torch")
    assert "kernel: torch ops" in run("--version").output


def test_help_lists_every_command_and_the_exit_status():
    output = run("--help").output
    assert all(f"  {name} " in output for name in COMMANDS)
    assert "Exit status: 0" in output


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_an_example_and_fits_a_terminal(name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"gradient-flow {name}" in result.output.partition("Example")[2]
    assert max(map(len, result.output.splitlines())) <= 80


def imported_by(*arguments):
    """Top-level packages in memory after a command."""
    code = (
        f"import sys\nfrom gradient_flow.cli.main import main\n"
        f"try: main({list(arguments)!r})\nexcept SystemExit: pass\n"
        "print('LOADED', *sorted({name.split('.')[0] for name in sys.modules} | set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_help_imports_no_command_and_nothing_heavy():
    loaded = imported_by("--help")
    assert [name for name in loaded if name.startswith("gradient_flow.cli.")] == ["gradient_flow.cli.main"]
    assert loaded.isdisjoint({"torch", "numpy", "rich", "matplotlib"})


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_imports_no_torch(name):
    loaded = imported_by(name, "--help")
    assert f"gradient_flow.cli.{name}" in loaded
    assert "torch" not in loaded


def test_the_import_check_can_fail():
    assert "torch" in imported_by("check", "json:loads")


def test_a_wrong_option_is_a_usage_error():
    result = run("demo", "--steps", "0")
    assert result.exit_code == 2
    assert "--steps" in result.output


def test_a_mistyped_command_is_named_with_its_neighbour():
    result = run("diagnoze", "x")
    assert result.exit_code == 2
    assert "Did you mean 'diagnose'?" in result.output
    assert "No such command 'qqq'" in run("qqq").output


def completions(*words, at=None):
    line = " ".join(["gradient-flow", *words])
    environment = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) if at is None else at)}
    done = in_process(**environment, _GRADIENT_FLOW_COMPLETE="bash_complete")
    assert done.returncode == 0
    return [line.partition(",")[2] for line in done.stdout.split()], done.stdout


def test_the_shell_completes_commands_options_values_and_paths(monkeypatch):
    # `python -m` has another name than the installed command, and click takes the variable from it.
    code = "from gradient_flow.cli.main import main; main(prog_name='gradient-flow')"
    monkeypatch.setattr(
        sys.modules[__name__],
        "in_process",
        lambda **environment: subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, timeout=60
        ),
    )
    assert completions("d")[0] == ["demo", "diagnose"]
    assert completions("diagnose", "--f")[0] == ["--fail-on"]
    assert completions("diagnose", "--fail-on", "h")[0] == ["high"]
    assert completions("demo", "--fault", "va")[0] == ["vanishing"]
    assert completions("tail", at=2)[1].strip() == "file,"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell):
    script = run("completion", shell).output
    assert f"_GRADIENT_FLOW_COMPLETE={shell}_complete" in script
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=60).returncode == 0


def test_an_unknown_shell_is_refused():
    assert run("completion", "csh").exit_code == 2
