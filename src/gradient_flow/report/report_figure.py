"""The report as one picture: norm with threshold and loss, the gradient map, the profile over depth, update ratios."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.diagnosis.paragraphs import harmless
from gradient_flow.report.data import matrix_of
from gradient_flow.report.events import stretches
from gradient_flow.report.figures import LINES, MARKERS, clean, log_axis, new_figure
from gradient_flow.table.text import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABELS: Final = 24  # more names than this cannot be read beside the map
_BAD: Final = "#e0245e"
_EMPTY: Final = "#eef0f3"
_TITLE_LINES: Final = 3  # of the verdict, and of the advice: a longer text would leave no room for the panels
_HEALTHY: Final = (1e-4, 1e-3, 1e-2)
_INSIDE: Final = 3  # panels of looks: more would be too narrow to read
_LINES_INSIDE: Final = 4
_MOST_MARKS: Final = 50
_ENDS: Final = (LINES[5], LINES[1])
_ABOVE: Final[dict[str, Any]] = {
    "loc": "lower right",
    "bbox_to_anchor": (1.0, 1.0),
    "ncols": 4,
    "frameon": False,
    "fontsize": 8,
    "borderaxespad": 0.1,
    "columnspacing": 1.0,
}
"""A legend above the panel, where it covers no data."""
_PAD: Final = 20
"""Between panel and title: the legend stands there."""
_STILL: Final = 1e-9  # a weight that moves less stands still


def report_figure(data: Mapping[str, Any]) -> Figure:
    """An overview for a README or a message: panels under the verdict, a row more where looks saw something."""
    curves = data["looks"]["curves"][:_INSIDE]
    figure = new_figure(14, 13.5 if curves else 9.6)
    run, verdict = data["run"], data["verdict"]
    figure.suptitle(f"{_title(verdict)}\n", fontsize=15, fontweight="bold", x=0.02, ha="left")
    engine: Any = figure.get_layout_engine()  # its stubs lack `set` of the constrained layout
    engine.set(w_pad=0.12, h_pad=0.08)
    # Two grids: in one, the names beside the map take their room from panels of another row too, until none is left.
    rows = figure.add_gridspec(2, 1, height_ratios=(2, 1))[0] if curves else figure.add_gridspec(1, 1)[0]
    grid = rows.subgridspec(2, 2)
    _curves(figure.add_subplot(grid[0, 0]), data["series"], harmless(run["name"]).replace("$", r"\$"))
    _map(figure.add_subplot(grid[0, 1]), data["layers"])
    _profile(figure.add_subplot(grid[1, 0]), data["layers"])
    _updates(figure.add_subplot(grid[1, 1]), data["layers"])
    if curves:
        below = rows.get_gridspec()[1].subgridspec(1, max(2, len(curves)))
        for at, curve in enumerate(curves):
            _inside(figure.add_subplot(below[0, at]), curve)
    return figure


def _title(verdict: Mapping[str, Any]) -> str:
    """The verdict, and what to try first where a run is sick: the picture may travel without the page."""
    paragraphs = [verdict["sentence"].replace(" below.)", ".)")]
    if verdict["issues"] and verdict["level"] != "low":
        paragraphs += [f"Try first: {advice['text']}" for advice in verdict["issues"][0]["advice"][:1]]
    lines = [
        line
        for paragraph in paragraphs
        for line in textwrap.wrap(harmless(paragraph).replace("`", ""), 110, max_lines=_TITLE_LINES, placeholder=" …")
    ]
    return "\n".join(lines).replace("$", r"\$")  # `$` would begin a formula: names are data


def _step_axis(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def _alone(steps: Sized) -> dict[str, Any]:
    """A line through a single point draws nothing."""
    return {"marker": "o", "ms": 4} if len(steps) == 1 else {}


def _curves(axes: Axes, series: Mapping[str, Any], name: str) -> None:
    steps, lines = series["step"], series["lines"]
    shown = [("norm", "norm", LINES[0], "-"), ("clipped_norm", "after clipping", LINES[2], "-")]
    shown += [("clip_threshold", "clip threshold", "#b7791f", "--")]
    drawn: list[float] = []
    for series_name, label, colour, style in shown:
        if series_name in lines:
            values = _numbers(lines[series_name]["max"])
            axes.plot(steps, values, color=colour, linestyle=style, linewidth=1.5, label=label, **_alone(steps))
            drawn += values[np.isfinite(values)].tolist()
    bad = stretches(np.asarray(series["nonfinite"]) + np.asarray(series["bad_loss"]) > 0)
    for low, high in bad:  # a line around each, so that a single step can be seen
        axes.axvspan(series["first"][low], steps[high - 1], facecolor=(_BAD, 0.25), edgecolor=(_BAD, 0.6), linewidth=1)
    _whole_decades(axes, drawn)
    clean(axes)
    _step_axis(axes)
    axes.set_ylabel("gradient norm")
    if "loss" in lines:
        other = axes.twinx()
        values = _numbers(lines["loss"]["max"])
        other.plot(steps, values, color=LINES[1], linewidth=1.2, label="loss", **_alone(steps))
        other.set_ylabel("loss", color=LINES[1])
        other.spines["top"].set_visible(False)
    if bad:
        axes.plot([], [], color=_BAD, alpha=0.5, linewidth=5, label="NaN or Inf")
    if drawn:
        # One legend for both axes, above the data, where it covers none of it.
        handles, labels = axes.get_legend_handles_labels()
        for twin in axes.figure.axes:
            if twin is not axes and twin.bbox.bounds == axes.bbox.bounds:
                more, words = twin.get_legend_handles_labels()
                handles, labels = [*handles, *more], [*labels, *words]
        axes.legend(handles, labels, **{**_ABOVE, "ncols": len(labels)})
    else:
        _say(axes, "nothing recorded")
    axes.set_title(f"{shorten(name, 40)}: gradient norm and loss", loc="left", pad=_PAD)


def _map(axes: Axes, layers: Mapping[str, Any]) -> None:
    norms, bad = matrix_of(layers, "norm"), matrix_of(layers, "nonfinite")
    axes.set_title("gradient map", loc="left", pad=_PAD)
    if not norms.size:
        return _say(axes, "no per-layer record")
    from matplotlib.colors import ListedColormap

    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(norms > 0, np.log10(norms), np.nan)
    edges = _edges(layers)
    rows = np.arange(len(norms) + 1)
    finite = logs[np.isfinite(logs)]
    high = float(finite.max()) if finite.size else 0.0
    low = min(float(finite.min()) if finite.size else -3.0, high - 3)  # three decades at least: level looks level
    drawn = axes.pcolormesh(edges, rows, logs, cmap="viridis", vmin=low, vmax=high, rasterized=True)
    marks = np.where(bad > 0, 1.0, np.nan)
    axes.pcolormesh(edges, rows, marks, cmap=ListedColormap([_BAD]), rasterized=True)
    # A single step of a long run is narrower than a pixel: a triangle above the map points at where it begins.
    for low, high in stretches(np.any(bad > 0, axis=0))[:_MOST_MARKS]:
        middle = (edges[low] + min(edges[low + 1], edges[high])) / 2
        axes.plot(middle, 0, marker="v", color=_BAD, markersize=7, clip_on=False, zorder=5)
    axes.invert_yaxis()
    axes.set_facecolor(_EMPTY)
    every = -(-len(norms) // _LABELS)  # of many layers some are named
    names = [shorten(harmless(name), 28).replace("$", r"\$") for name in layers["names"][::every]]
    axes.set_yticks(rows[:-1:every] + 0.5, names, fontsize=8 if every == 1 else 7)
    axes.set_ylabel("" if every == 1 else f"layers, input on top, one name in {every}")
    _step_axis(axes)
    bar = axes.figure.colorbar(drawn, ax=axes, pad=0.01)
    bar.set_label("log10 of the gradient norm")
    marked = {"NaN or Inf": _BAD} if (bad > 0).any() else {}
    if (~np.isfinite(logs) & ~(bad > 0)).any():
        marked["zero or no gradient"] = _EMPTY
    if marked:
        from matplotlib.patches import Patch

        handles = [Patch(facecolor=colour, edgecolor="#c3c8d0", label=label) for label, colour in marked.items()]
        axes.legend(handles=handles, **_ABOVE)
    return None


def _profile(axes: Axes, layers: Mapping[str, Any]) -> None:
    norms = matrix_of(layers, "norm")
    axes.set_title("profile over depth", loc="left", pad=_PAD)
    if not norms.size:
        return _say(axes, "no per-layer record")
    from matplotlib.ticker import MaxNLocator

    places = np.flatnonzero(_weights(layers))
    depth = np.arange(1, len(places) + 1)
    drawn: list[float] = []
    seen = np.isfinite(norms[places])
    # Each tensor by its own first and last record: two optimizers need not step in the same ones.
    first, last = seen.argmax(axis=1), seen.shape[1] - 1 - seen[:, ::-1].argmax(axis=1)
    ends = {"first record": first, "last record": last} if (first != last).any() else {"only record": first}
    for (label, columns), colour in zip(ends.items(), _ENDS, strict=False):
        values = norms[places, columns].astype(float)
        steps = {layers["step"][column] for column in columns[seen.any(axis=1)]}
        shown = f"{label}, step {min(steps):,}" if len(steps) == 1 else label
        dots = {"marker": "o", "ms": 3.5} if len(places) <= _LABELS else {"lw": 1.0}
        axes.plot(depth, np.where(np.isfinite(values), values, np.nan), color=colour, label=shown, **dots)
        drawn += values[np.isfinite(values)].tolist()
    _whole_decades(axes, drawn, least=3)
    clean(axes)
    if len(places) <= _LABELS:
        names = [shorten(harmless(layers["names"][at]), 22).replace("$", r"\$") for at in places]
        axes.set_xticks(depth, names, rotation=40, ha="right", fontsize=7.5)
        axes.set_xlabel("from input to output")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("weight tensors, from input to output")
    axes.set_ylabel("gradient norm")
    axes.legend(**_ABOVE)
    return None


def _updates(axes: Axes, layers: Mapping[str, Any]) -> None:
    ratios = matrix_of(layers, "update_ratio")[_weights(layers)] if layers["names"] else np.empty((0, 0), np.float32)
    axes.set_title("update-to-weight ratio", loc="left", pad=_PAD)
    known = np.isfinite(ratios).any(axis=0) if ratios.size else np.zeros(0, dtype=bool)
    if not known.any():
        return _say(axes, "no update ratios recorded")
    steps, seen = np.asarray(layers["step"])[known], ratios[:, known]
    axes.axhspan(_HEALTHY[0], _HEALTHY[2], color=LINES[2], alpha=0.12, label="healthy band")
    axes.axhline(_HEALTHY[1], color=LINES[2], alpha=0.7, linewidth=1)
    seen = np.where(seen < _STILL, _STILL, seen)
    low, middle, high = np.nanmin(seen, axis=0), np.nanmedian(seen, axis=0), np.nanmax(seen, axis=0)
    axes.fill_between(steps, low, high, color=LINES[5], alpha=0.25, label="all weights")
    axes.plot(steps, middle, color=LINES[0], label="median", **_alone(steps))
    _whole_decades(axes, [*_HEALTHY, *low.tolist(), *high.tolist()])
    clean(axes)
    _step_axis(axes)
    axes.set_ylabel("‖ΔW‖ / ‖W‖")
    axes.legend(**_ABOVE)
    return None


def _inside(axes: Axes, curve: Mapping[str, Any]) -> None:
    """What looks saw of one quantity; a dot is a value, and between two of them nothing is known."""
    from matplotlib.ticker import PercentFormatter

    if curve["healthy"] is not None:
        axes.axhspan(*curve["healthy"], color=LINES[2], alpha=0.12, label="usual")
    if curve["band"] is not None:
        band = curve["band"]
        axes.fill_between(
            band["step"], band["low"], band["high"], color=LINES[5], alpha=0.2, label=f"all {curve['of']} layers"
        )
    drawn: list[float] = [*(curve["healthy"] or ())] if curve["log"] else []
    shown = curve["lines"][:_LINES_INSIDE]
    for line, colour, marker in zip(shown, LINES, MARKERS, strict=False):
        name = shorten(harmless(line["label"]), 26).replace("$", r"\$")
        axes.plot(line["step"], line["values"], marker=marker, ms=4, lw=1.2, color=colour, label=name)
        drawn += line["values"]
    if curve["log"]:
        _whole_decades(axes, drawn)
    elif curve["span"] is not None:
        axes.set_ylim(curve["span"][0] - 0.03, curve["span"][1] + 0.03)
    if curve["percent"]:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    clean(axes)
    entries = len(axes.get_legend_handles_labels()[1])
    pad = max(_PAD, 8 + 12 * -(-entries // 2))
    axes.set_title(curve["title"].lower(), loc="left", pad=pad)
    axes.set_xlabel("step")
    axes.set_ylabel(curve["axis"])
    axes.legend(**{**_ABOVE, "ncols": 2})


def _edges(layers: Mapping[str, Any]) -> NDArray[np.float64]:
    """Where the columns begin, and where the last one ends."""
    first = np.asarray(layers["first"], dtype=float)
    width = float(np.median(np.diff(first))) if len(first) > 1 else 1.0
    return np.append(first, max(float(layers["step"][-1]) + 1, first[-1] + width))


def _weights(layers: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Matrices and larger: a bias that begins at zero has a huge ratio. All of them, if there are only vectors."""
    found = np.array([len(shape) > 1 for shape in layers["shapes"]], dtype=bool)
    return found if found.any() else np.ones(len(found), dtype=bool)


def _numbers(values: list[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _whole_decades(axes: Axes, drawn: list[float], least: int = 1) -> None:
    """A log axis from one power of ten to another, `least` of them apart: what is level then looks level."""
    log_axis(axes, drawn)
    if drawn and min(drawn) > 0:
        high = int(np.ceil(np.log10(max(drawn)) + 0.02))
        low = min(int(np.floor(np.log10(min(drawn)) - 0.02)), high - least)
        axes.set_ylim(10.0**low, 10.0**high)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color="#777777")
    axes.set_axis_off()
