"""The `gradient-flow` command."""

from __future__ import annotations

import click

from gradient_flow._version import __version__


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from gradient_flow.measurement import kernels

    click.echo(f"gradient-flow {__version__} (kernel: {kernels.describe()})")
    context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog="Start with: gradient-flow demo")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the kernel in use, and exit.",
)
def main() -> None:
    """Say which layer, since when, why and what to change when a training run goes wrong."""


@main.command()
@click.option("--steps", default=200, show_default=True, type=click.IntRange(min=2), help="Training steps.")
@click.option("--seed", default=0, show_default=True, help="Seed of data and initial weights.")
def demo(steps: int, seed: int) -> None:
    """Train a healthy and a sick deep network side by side and show both gradient profiles.

    Takes a few seconds. Example: gradient-flow demo --steps 100
    """
    from gradient_flow.demo import run

    run(steps, seed)
