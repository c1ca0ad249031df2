"""`gradient-flow run`: an unmodified script under watch."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

import click


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--looks/--no-looks", default=True, help="Look inside the model at some steps.")
@click.option("--every", default=1, show_default=True, type=click.IntRange(min=1), help="Record every Nth step.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Run folder.  [default: runs/<time>_<script>]",
)
@click.option(
    "--alert",
    help="Send new issues during training to a webhook (its address; Slack's format) or to a command (the message "
    "becomes its last argument).",
)
@click.option("--quiet", is_flag=True, help="Print no summary at the end.")
@click.option("-m", "as_module", is_flag=True, help="The script is a module name, as with python -m.")
@click.argument("script", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    looks: bool,
    every: int,
    out: Path | None,
    alert: str | None,
    quiet: bool,
    as_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run an unmodified training script and watch every optimizer in it.

    SCRIPT is a file, a folder or zip with a __main__.py, or with -m a module. The run is recorded in a folder; the
    verdict is printed at the end, also after Ctrl-C or a crash. The exit status is the script's own. Options come
    before the script; what follows it is passed on.

    Example: gradient-flow run --every 10 train.py --lr 0.1
    """
    # Registered before torch and the script register anything, so it is called after all of that.
    interrupted: list[bool] = []
    atexit.register(lambda: _end_by_interrupt() if interrupted else None)

    from gradient_flow.flow.script import default_folder, run_script

    if script.startswith("-"):
        raise click.UsageError(
            f"No such option {script!r}. Options of your script come after it: gradient-flow run train.py {script} …"
        )
    if not as_module and not Path(script).exists():
        raise click.UsageError(f"There is no script {script!r}.{_instead(Path(script))}")

    def tell(text: str) -> None:
        if not quiet and os.environ.get("RANK", "0") == "0":
            click.echo(text, err=True)

    folder = out if out is not None else default_folder(script)
    ending = run_script(
        script,
        list(arguments),
        as_module=as_module,
        folder=folder,
        every=every,
        tell=tell,
        looks=looks,
        alert=alert,
    )
    interrupted += [True] * ending.interrupted
    sys.exit(ending.status)


def _instead(script: Path) -> str:
    """What may have been meant by a script that is not there."""
    if script.suffix != ".py":
        return f" For a module use: gradient-flow run -m {script}"
    # os.path: a folder that cannot be read has no near names, and is no error of its own.
    here = os.listdir(script.parent) if os.path.isdir(script.parent) else []
    near = get_close_matches(script.stem, [Path(name).stem for name in here if name.endswith(".py")], n=1)
    return f" Did you mean {str(script.with_stem(near[0]))!r}?" if near else f" The current folder is {os.getcwd()!r}."


def _end_by_interrupt() -> None:
    """End as Python ends after an unhandled Ctrl-C: by the signal itself, with everything written."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or its reader is gone
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
