"""`gradient-flow completion`: the script that lets a shell complete commands, options and runs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_GRADIENT_FLOW_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  gradient-flow completion bash > ~/.gradient-flow-complete.bash
           echo '. ~/.gradient-flow-complete.bash' >> ~/.bashrc
    zsh:   gradient-flow completion zsh > ~/.gradient-flow-complete.zsh
           echo '. ~/.gradient-flow-complete.zsh' >> ~/.zshrc
    fish:  gradient-flow completion fish > \\
           ~/.config/fish/completions/gradient-flow.fish

    Example: gradient-flow completion bash
    """
    from gradient_flow.cli.main import main

    kind = get_completion_class(shell)
    assert kind is not None  # those of the choice are click's own
    script = kind(main, {}, "gradient-flow", VARIABLE)
    # Not `.source()`: that runs the shell to ask for its version, which may not be the one this is for.
    click.echo(script.source_template % script.source_vars())
