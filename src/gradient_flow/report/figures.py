"""Figures. matplotlib is imported when a figure is drawn, and never its global state: no window, no `pyplot`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gradient_flow.diagnosis.gains import AMPLIFYING, DAMPING, log_gain
from gradient_flow.errors import MissingExtraError
from gradient_flow.report.layer_profile import LayerProfile, format_norm
from gradient_flow.table.text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Final = {
    "healthy": "#2a9d8f",
    "vanishing": "#577590",
    "exploding": "#e76f51",
    "zero": "#8d99ae",
    "nan": "#d62828",
}

_FEW_DECADES: Final = 1e3

LINES: Final = ("#264653", "#e76f51", "#2a9d8f", "#8e6c8a", "#b5838d", "#577590")
MARKERS: Final = ("o", "s", "^", "D", "v", "P")


def new_figure(width: float, height: float) -> Figure:
    """A figure outside of pyplot's global state: it can be saved from any thread and needs no display."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise MissingExtraError("plots") from problem
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format that the name ends in; folders are created."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def clean(axes: Axes) -> None:
    """Grid behind the data, no box around it."""
    axes.set_axisbelow(True)
    axes.grid(True, alpha=0.25, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def plot_profile(profile: LayerProfile, axes: Axes | None = None, title: str | None = None) -> Figure:
    """Norms over depth as horizontal bars on a log axis, output on top. Returns the figure; save it with `savefig`."""
    if axes is None:
        axes = new_figure(7.0, max(2.5, 0.32 * len(profile) + 1.2)).add_subplot()
    positive = [layer.norm for layer in profile if 0 < layer.norm < float("inf")]
    # At least three decades, so that a flat profile looks flat.
    floor = min(min(positive, default=1.0) / 3, max(positive, default=1.0) / 1e3)
    widths = [layer.norm if 0 < layer.norm < float("inf") else floor for layer in profile]
    positions = range(len(profile))
    axes.barh(positions, widths, color=[COLOURS[layer.status] for layer in profile], height=0.72)
    axes.set_yticks(positions, [layer.label for layer in profile])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(floor, max(positive, default=1.0) * 12)
    for position, width, layer in zip(positions, widths, profile, strict=True):
        axes.annotate(format_norm(layer.norm), (width, position), (4, 0), textcoords="offset points", va="center")
    axes.set_xlabel("gradient norm")
    axes.set_title(f"{title}: {profile.verdict}" if title else profile.verdict)
    clean(axes)
    axes.grid(False, axis="y")
    figure = axes.figure
    while hasattr(figure, "figure") and figure.figure is not figure:
        figure = figure.figure
    return figure  # type: ignore[return-value]  # the loop climbs out of subfigures


def plot_gains(stacks: Mapping[str, tuple[Sequence[float | None], float]], norm_type: str) -> Figure:
    """Norms (left) and log-gains (right) over depth, for one or more stacks given as (norms, eps) by name."""
    figure = new_figure(11, 4)
    left, right = figure.subplots(1, 2)
    right.axhspan(math.log(DAMPING), math.log(AMPLIFYING), color=COLOURS["healthy"], alpha=0.12, label="healthy band")
    right.axhline(0, color="#888888", linewidth=0.8)
    for index, (name, (norms, eps)) in enumerate(stacks.items()):
        look = {"color": LINES[index % len(LINES)], "marker": MARKERS[index % len(MARKERS)], "markersize": 5}
        logs = [log_gain(a, b, eps) for a, b in pairwise(norms)]
        left.plot(range(len(norms)), _drawable(norms), label=name, **look)
        right.plot([i + 0.5 for i in range(len(logs))], _drawable(logs), label=name, **look)
    mark_nonfinite(left, sorted({at for norms, _ in stacks.values() for at, n in enumerate(norms) if _is_bad(n)}))
    drawn = [norm for norms, _ in stacks.values() for norm in norms if norm is not None and 0 < norm < math.inf]
    if drawn:
        log_axis(left, drawn)
        # At least a decade, so that a level profile looks level.
        middle = math.sqrt(min(drawn) * max(drawn))
        left.set_ylim(min(min(drawn) / 1.3, middle / 3.2), max(max(drawn) * 1.3, middle * 3.2))
    left.set_title("Gradient at each block's output")
    left.set_xlabel("block (input → output)")
    left.set_ylabel(f"gradient norm ({norm_type.upper().replace('LINF', 'L∞')})")
    right.set_title("Log-gain from each block to the one before")
    right.set_xlabel("between blocks (input → output)")
    right.set_ylabel("ln γ  (above 0: grows on the way back)")
    for axes in (left, right):
        clean(axes)
        axes.xaxis.get_major_locator().set_params(integer=True)
        # Below the panel, where it covers nothing.
        entries = len(axes.get_legend_handles_labels()[1])
        below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16)}
        axes.legend(frameon=False, fontsize="small", ncols=min(4, entries), **below)
    return figure


def mark_nonfinite(axes: Axes, places: Sequence[float], label: str | None = "NaN or Inf") -> None:
    """A cross at the lower edge for each place whose value is NaN or Inf and so has no point on the axis."""
    if places:
        look: dict[str, Any] = {"color": COLOURS["nan"], "markersize": 6, "markeredgewidth": 1.8, "clip_on": False}
        axes.plot(places, [0.0] * len(places), "x", transform=axes.get_xaxis_transform(), label=label, **look)


def _is_bad(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def _drawable(values: Sequence[float | None]) -> list[float]:
    """Gaps where there is nothing to draw."""
    return [math.nan if value is None or not math.isfinite(value) else value for value in values]


def plot_statistics(statistics: Mapping[str, Sequence[float | None]]) -> Figure:
    """Variance, norm, absolute mean and range over training steps, each on a log axis; from the documented lists."""
    figure = new_figure(11, 7)
    steps = statistics["step"]
    # The documented lists have null where a number is not finite.
    bad = [
        step
        for step, norm in zip(steps, statistics["grad_norm"], strict=True)
        if step is not None and (norm is None or not math.isfinite(norm))
    ]
    panels: dict[str, dict[str, Sequence[float | None]]] = {
        "Gradient Variance": {"variance": statistics["grad_variance"]},
        "Gradient Norm": {"L2 norm": statistics["grad_norm"]},
        "Absolute Gradient Mean": {"|mean|": _magnitudes(statistics["grad_mean"])},
        "Gradient Range": {"max": statistics["grad_max"], "|min|": _magnitudes(statistics["grad_min"])},
    }
    for axes, (title, lines) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        drawn: list[float] = []
        for (name, values), colour in zip(lines.items(), LINES, strict=False):
            marker = "o" if len(values) <= 50 else None
            axes.plot(steps, _drawable(values), color=colour, marker=marker, markersize=3.5, linewidth=1.5, label=name)
            drawn += [value for value in _drawable(values) if not math.isnan(value)]
        log_axis(axes, drawn)
        mark_nonfinite(axes, bad, label=None)
        axes.set_title(title)
        axes.set_xlabel("training step (×: NaN or Inf)" if bad else "training step")
        axes.set_ylabel(next(iter(lines)) if len(lines) == 1 else "magnitude")
        clean(axes)
        if len(lines) > 1:
            axes.legend(frameon=False)
        if not drawn:
            axes.text(0.5, 0.5, "nothing recorded", transform=axes.transAxes, ha="center", color="#888888")
    return figure


def log_axis(axes: Axes, drawn: Sequence[float]) -> None:
    """A log axis for these values; symmetric where zeros or negatives would vanish, linear where none is positive."""
    positive = [value for value in drawn if value > 0]
    if not positive:
        return
    if len(positive) == len(drawn):
        axes.set_yscale("log")
        if max(positive) < _FEW_DECADES * min(positive):
            _round_ticks(axes, max(positive) / min(positive))
    else:
        axes.set_yscale("symlog", linthresh=min(positive))  # zeros and negatives would vanish from a log axis


def _round_ticks(axes: Axes, ratio: float) -> None:
    """Plain numbers on a log axis of few decades, where powers of ten alone would be one label or two."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    parts = (1.0, 2.0, 3.0, 5.0) if ratio < 20 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]) if ratio < 5 else LogLocator(subs=parts))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _magnitudes(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else abs(value) for value in values]
