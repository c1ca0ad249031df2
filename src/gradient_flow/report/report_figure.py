"""The report as one picture: norm with threshold and loss, the gradient map, the profile over depth, update ratios."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.report.data import matrix_of
from gradient_flow.report.figures import LINES, clean, log_axis, new_figure
from gradient_flow.report.terminal import harmless
from gradient_flow.table.text import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABELS: Final = 24  # more names than this cannot be read beside the map
_BAD: Final = "#e0245e"
_HEALTHY: Final = (1e-4, 1e-3, 1e-2)
_STILL: Final = 1e-9  # a weight that moves less stands still


def report_figure(data: Mapping[str, Any]) -> Figure:
    """An overview for a README or a message: four panels under the verdict. Save it with `show.plots.save_figure`."""
    figure = new_figure(13, 9)
    run, verdict = data["run"], data["verdict"]
    # `$` would begin a formula: names are data.
    title = "\n".join(textwrap.wrap(harmless(verdict["sentence"]), 100))
    figure.suptitle(f"{title}\n".replace("$", r"\$"), fontsize=15, fontweight="bold", x=0.02, ha="left")
    panels = figure.subplots(2, 2, width_ratios=(1, 1.15))
    _curves(panels[0, 0], data["series"])
    _map(panels[0, 1], data["layers"])
    _profile(panels[1, 0], data["layers"])
    _updates(panels[1, 1], data["layers"])
    panels[0, 0].set_title(f"{harmless(run['name'])}: gradient norm and loss".replace("$", r"\$"), loc="left")
    return figure


def _curves(axes: Axes, series: Mapping[str, Any]) -> None:
    steps, lines = series["step"], series["lines"]
    shown = [("norm", "norm", LINES[0], "-"), ("clipped_norm", "after clipping", LINES[2], "-")]
    shown += [("clip_threshold", "clip threshold", "#b7791f", "--")]
    drawn: list[float] = []
    for name, label, colour, style in shown:
        if name in lines:
            values = _numbers(lines[name]["max"])
            axes.plot(steps, values, color=colour, linestyle=style, linewidth=1.5, label=label)
            drawn += values[np.isfinite(values)].tolist()
    bad = [step for step, count in zip(steps, series["nonfinite"], strict=True) if count]
    for step in bad:
        axes.axvline(step, color=_BAD, alpha=0.5, linewidth=1)
    _whole_decades(axes, drawn)
    clean(axes)
    axes.set_xlabel("step")
    axes.set_ylabel("gradient norm")
    if "loss" in lines:
        other = axes.twinx()
        other.plot(steps, _numbers(lines["loss"]["max"]), color=LINES[1], linewidth=1.2, label="loss")
        other.set_ylabel("loss", color=LINES[1])
        other.spines["top"].set_visible(False)
    if drawn:
        axes.legend(frameon=False)
    else:
        _say(axes, "nothing recorded")


def _map(axes: Axes, layers: Mapping[str, Any]) -> None:
    norms, bad = matrix_of(layers, "norm"), matrix_of(layers, "nonfinite")
    axes.set_title("gradient map, log10 of the norm", loc="left")
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
    axes.invert_yaxis()
    axes.set_facecolor("#eef0f3")
    few = len(norms) <= _LABELS
    names = [shorten(harmless(name), 28).replace("$", r"\$") for name in layers["names"]]
    axes.set_yticks(rows[:-1] + 0.5 if few else [], names if few else [], fontsize=8)
    axes.set_ylabel("" if few else "layers, input on top")
    axes.set_xlabel("step")
    axes.figure.colorbar(drawn, ax=axes, pad=0.01)
    return None


def _profile(axes: Axes, layers: Mapping[str, Any]) -> None:
    norms = matrix_of(layers, "norm")
    axes.set_title("profile over depth", loc="left")
    if not norms.size:
        return _say(axes, "no per-layer record")
    from matplotlib.ticker import MaxNLocator

    weights = _weights(layers)
    depth = np.arange(1, len(norms) + 1)
    drawn: list[float] = []
    for column, label, colour in ((0, "first record", LINES[5]), (-1, "last record", LINES[1])):
        values = norms[weights, column].astype(float)
        axes.plot(
            depth[weights], np.where(np.isfinite(values), values, np.nan), "o-", ms=3.5, color=colour, label=label
        )
        drawn += values[np.isfinite(values)].tolist()
    _whole_decades(axes, drawn, least=3)
    clean(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("weight tensors, from input to output")
    axes.set_ylabel("gradient norm")
    axes.legend(frameon=False)
    return None


def _updates(axes: Axes, layers: Mapping[str, Any]) -> None:
    ratios = matrix_of(layers, "update_ratio")[_weights(layers)] if layers["names"] else np.empty((0, 0), np.float32)
    axes.set_title("update-to-weight ratio, healthy band", loc="left")
    known = np.isfinite(ratios).any(axis=0) if ratios.size else np.zeros(0, dtype=bool)
    if not known.any():
        return _say(axes, "no update ratios recorded")
    steps, seen = np.asarray(layers["step"])[known], ratios[:, known]
    axes.axhspan(_HEALTHY[0], _HEALTHY[2], color=LINES[2], alpha=0.12)
    axes.axhline(_HEALTHY[1], color=LINES[2], alpha=0.7, linewidth=1)
    seen = np.where(seen < _STILL, _STILL, seen)
    low, middle, high = np.nanmin(seen, axis=0), np.nanmedian(seen, axis=0), np.nanmax(seen, axis=0)
    axes.fill_between(steps, low, high, color=LINES[5], alpha=0.25, label="all weights")
    axes.plot(steps, middle, color=LINES[0], label="median")
    _whole_decades(axes, [*_HEALTHY, *low.tolist(), *high.tolist()])
    clean(axes)
    axes.set_xlabel("step")
    axes.legend(frameon=False)
    return None


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
