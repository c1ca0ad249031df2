"""The figures of gradient management: training curves and gradient statistics, four panels each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gradient_flow.diagnosis.words import plain
from gradient_flow.report.figures import COLOURS, LINES, clean, log_axis, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Entries = Sequence[Mapping[str, Any]]
CORRELATED: Final = ("loss", "total_norm", "mean", "std", "min", "max", "zero_fraction")


def plot_training_curves(entries: Entries) -> Figure:
    """Loss, gradient norms before and after clipping, NaN/Inf counts and clipping ratios over the steps."""
    figure = new_figure(11, 7)
    (loss, norm), (nonfinite, ratio) = figure.subplots(2, 2)
    steps = _values(entries, "step")
    losses = _values(entries, "loss")
    _line(loss, steps, losses, "loss", LINES[0])
    _signed_log_axis(loss, losses)
    _title(loss, "Loss")
    before = _values(entries, "total_norm")
    _line(norm, steps, before, "before clipping", LINES[0])
    if any(entry.get("clipped") for entry in entries):
        after = _values(entries, "clipped_norm")
        _line(norm, steps, np.where(after > 0, after, math.nan), "after clipping", LINES[1])
    thresholds = _values(entries, "threshold")
    if np.isfinite(thresholds).any():
        norm.step(steps, thresholds, color="#888888", linestyle="--", linewidth=1, where="mid", label="limit")
    log_axis(norm, [value for value in before if math.isfinite(value)])
    _title(norm, "Gradient norm")
    counts = {name: _values(entries, f"{name.lower()}_count") for name in ("NaN", "Inf")}
    for (name, values), colour in zip(counts.items(), (COLOURS["nan"], COLOURS["exploding"]), strict=True):
        _stems(nonfinite, steps, values, name, colour)
    if len(steps):
        nonfinite.set_xlim(loss.get_xlim())
        nonfinite.set_ylim(bottom=0)
    if len(steps) and not any(np.nan_to_num(values).any() for values in counts.values()):
        nonfinite.set_ylim(0, 1)
        nonfinite.text(0.5, 0.5, "all gradients finite", transform=nonfinite.transAxes, ha="center", color="#888888")
    _title(nonfinite, "NaN and Inf elements per step")
    _line(ratio, steps, _values(entries, "clip_ratio"), "kept share of the norm", LINES[2])
    ratio.set_ylim(-0.03, 1.08)
    _title(ratio, "Clipping ratio (1: untouched)")
    words = ("loss", "gradient norm (L2)", "elements", "norm after / before")
    for axes, word in zip((loss, norm, nonfinite, ratio), words, strict=True):
        axes.set_xlabel("step")
        axes.set_ylabel(word)
    _say_if_empty(entries, (loss, norm, nonfinite, ratio))
    return figure


def plot_gradient_statistics(entries: Entries) -> Figure:
    """Distribution of norms, means with deviations, extremes over the steps, correlation between metrics."""
    figure = new_figure(11, 7)
    (distribution, means), (extremes, correlation) = figure.subplots(2, 2)
    steps = _values(entries, "step")
    _norm_distribution(distribution, _values(entries, "total_norm"))
    mean, std = _values(entries, "mean"), _values(entries, "std")
    means.fill_between(steps, mean - std, mean + std, color=LINES[2], alpha=0.2, linewidth=0, label="± deviation")
    _line(means, steps, mean, "mean", LINES[0])
    _signed_log_axis(means, np.concatenate([mean - std, mean + std]))
    _title(means, "Mean and standard deviation of elements")
    _line(extremes, steps, _values(entries, "max"), "max", LINES[1])
    _line(extremes, steps, _values(entries, "min"), "min", LINES[5])
    _signed_log_axis(extremes, np.concatenate([_values(entries, "max"), _values(entries, "min")]))
    _title(extremes, "Extremes")
    for axes in (means, extremes):
        axes.set_xlabel("step")
        axes.set_ylabel("gradient")
    _correlations(correlation, entries)
    _say_if_empty(entries, (distribution, means, extremes))
    return figure


def _values(entries: Entries, name: str) -> Any:
    """A column of the entries as floats, gaps as NaN. What is infinite is a gap too: it cannot be drawn."""
    values = np.array([math.nan if (v := entry.get(name)) is None else float(v) for entry in entries], dtype=float)
    return np.where(np.isfinite(values), values, math.nan)


def _line(axes: Axes, steps: Any, values: Any, label: str, colour: str) -> None:
    marker = "o" if len(steps) <= 50 else None
    axes.plot(steps, values, color=colour, marker=marker, markersize=3.5, linewidth=1.4, label=label)


def _stems(axes: Axes, steps: Any, values: Any, label: str, colour: str) -> None:
    shown = np.nan_to_num(values)
    if not shown.any():
        return
    axes.vlines(steps[shown > 0], 0, shown[shown > 0], color=colour, linewidth=2, label=label)


def _signed_log_axis(axes: Axes, values: Any) -> None:
    """Logarithmic on both sides of zero where a few values would flatten all others."""
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    if not len(sizes) or sizes.max() <= 100 * np.median(sizes):
        return
    if np.nanmin(values) > 0:
        axes.set_yscale("log")
        return
    threshold = 10.0 ** math.floor(math.log10(float(np.median(sizes))))
    axes.set_yscale("symlog", linthresh=threshold)
    axes.set_yticks(
        [sign * threshold * 10.0**k for sign in (-1, 1) for k in range(1, _decades(sizes.max(), threshold))]
    )
    axes.set_yticks([0.0, *axes.get_yticks()])


def _decades(largest: float, threshold: float) -> int:
    return max(2, math.ceil(math.log10(float(largest) / threshold)) + 1)


def _title(axes: Axes, title: str) -> None:
    axes.set_title(title)
    clean(axes)
    handles, _ = axes.get_legend_handles_labels()
    if len(handles) > 1 or axes.collections:
        axes.legend(frameon=False, fontsize="small")


def _norm_distribution(axes: Axes, norms: Any) -> None:
    positive = norms[np.nan_to_num(norms) > 0]
    if len(positive):
        low, high = positive.min() * 0.99, positive.max() * 1.01
        wide = high > 20 * low
        bins = np.geomspace(low, high, 31) if wide else np.linspace(low, high, 31)
        axes.hist(positive, bins=bins.tolist(), color=LINES[2], alpha=0.85)
        for share, word, style in ((50, "median", "-"), (90, "90th percentile", "--")):
            value = float(np.percentile(positive, share))
            axes.axvline(value, color=LINES[0], linestyle=style, linewidth=1.2, label=f"{word} {plain(value)}")
        if wide:
            axes.set_xscale("log")
    axes.set_xlabel("gradient norm")
    axes.set_ylabel("steps")
    _title(axes, "Distribution of gradient norms")


def _correlations(axes: Axes, entries: Entries) -> None:
    columns = {name: _values(entries, name) for name in CORRELATED}
    # A column that is constant, or that has too few values, correlates with nothing.
    columns = {n: v for n, v in columns.items() if np.isfinite(v).sum() > 2 and np.nanstd(v) > 0}
    axes.set_title("Correlation between metrics (of ranks)")
    if len(columns) < 2:
        axes.text(0.5, 0.5, "too few steps", transform=axes.transAxes, ha="center", color="#888888")
        axes.set_axis_off()
        return
    usable = np.isfinite(np.stack(list(columns.values()))).all(axis=0)
    # Of ranks: one spike would otherwise make all metrics look alike.
    ranks = np.stack([values[usable].argsort().argsort() for values in columns.values()])
    with np.errstate(invalid="ignore"):
        matrix = np.nan_to_num(np.corrcoef(ranks))
    image = axes.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu_r", aspect="auto")  # as wide as the panel above
    names = [name.replace("_", " ") for name in columns]
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize="small")
    axes.set_yticks(range(len(names)), names, fontsize="small")
    for row, column in np.ndindex(matrix.shape):
        value = matrix[row, column]
        colour = "white" if abs(value) > 0.6 else "#222222"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
    axes.figure.colorbar(image, ax=axes, label="rank correlation")


def _say_if_empty(entries: Entries, panels: Sequence[Axes]) -> None:
    for axes in panels if not entries else ():
        axes.text(0.5, 0.5, "nothing recorded", transform=axes.transAxes, ha="center", color="#888888")
