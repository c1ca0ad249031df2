"""`gradient-flow serve`: runs in the browser, live."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to serve on. Any address but loopback needs a token.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port; 0 for any free port.  [default: 8765 or the next free one]"
)
@click.option("--token", help="Token that requests must carry.  [default: generated unless the address is loopback]")
@click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser.")
@click.argument("path", metavar="RUN_OR_FOLDER", type=click.Path(path_type=Path))
def serve(path: Path, host: str, port: int | None, token: str | None, open_browser: bool) -> None:
    """Show a run, or all runs in a folder, in the browser, live while they train.

    Reads only; Ctrl-C stops it. By default only this machine can reach it. With --host others can too; they need
    the token in the printed address.

    Example: gradient-flow serve runs
    """
    import gc

    from gradient_flow.errors import GradientFlowError, MissingExtraError

    try:
        from gradient_flow.report.serve.server import DashboardServer
    except ImportError as missing:
        if (missing.name or "").split(".")[0] not in ("starlette", "uvicorn", "anyio"):
            raise
        raise MissingExtraError("dashboard") from missing
    try:
        server = DashboardServer(path, host=host, port=port, token=token)
    except GradientFlowError as problem:
        raise click.UsageError(str(problem)) from problem

    def tell() -> None:
        count = sum(1 for _ in server.live.folder.runs())
        what = "1 run" if count == 1 else f"{count:,} runs"
        click.echo(f"Serving {what} from {path} at\n\n  {server.url}\n\nPress Ctrl-C to stop.")
        if not count:
            click.echo("This folder has no runs yet; new runs appear as they start.")
        if open_browser:
            click.launch(server.url)

    gc.freeze()  # what was imported stays; looking through it again is a tenth of the time to read a long run
    try:
        server.serve(tell)
    finally:
        gc.unfreeze()
    click.echo("Stopped.")
