"""`write_report`: a run as one file that can be opened, sent and kept."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import orjson

from gradient_flow.errors import InputError, RunFileError
from gradient_flow.record.atomic import write_whole
from gradient_flow.report.data import page_data

FORMATS: Final = ("html", "md", "json", "png", "txt")


def write_report(run_folder: str | Path, out: str | Path | None = None, format: str = "html") -> Path:
    """Write the report of a run and return where it is: `report.<format>` in `run_folder`, or `out`.

    `format`: `html` (one page, complete in itself), `md`, `txt` (80 columns), `json` (the page's data), `png` (an
    overview; needs the extra `plots`). The file is replaced as a whole or not at all.

    >>> write_report("no/such/run")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    RunFileError: ...
    """
    if format not in FORMATS:
        raise InputError(f"`format` must be one of {', '.join(FORMATS)}; got {format!r}.")
    folder = Path(run_folder)
    target = Path(out) if out is not None else _folder_of(folder) / f"report.{format}"
    # os.path: a path that no file can have is said to be one when it is written to.
    if os.path.isdir(target) or str(out or "").endswith(("/", os.sep)):
        target = target / f"report.{format}"
    content = _WRITERS[format](page_data(folder))
    try:
        write_whole(target, content)
    except OSError as problem:
        raise RunFileError(
            f"The report cannot be written to {str(target)!r} ({problem.strerror}). Choose another place with `out`."
        ) from problem
    return target


def _folder_of(run: Path) -> Path:
    return run if run.is_dir() else run.parent


def _html(data: Mapping[str, Any]) -> bytes:
    from gradient_flow.report.html import render_page

    return render_page(data).encode()


def _markdown(data: Mapping[str, Any]) -> bytes:
    from gradient_flow.report.text import markdown_report

    return markdown_report(data).encode()


def _text(data: Mapping[str, Any]) -> bytes:
    from gradient_flow.report.text import plain_report

    return plain_report(data).encode()


def _json(data: Mapping[str, Any]) -> bytes:
    return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _png(data: Mapping[str, Any]) -> bytes:
    from gradient_flow.report.report_figure import report_figure

    buffer = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+", UserWarning)  # a letter the font lacks is drawn as a box
        report_figure(data).savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


_WRITERS: Final[dict[str, Callable[[Mapping[str, Any]], bytes]]] = {
    "html": _html,
    "md": _markdown,
    "json": _json,
    "png": _png,
    "txt": _text,
}
