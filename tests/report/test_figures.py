"""Documented figures: what every axis and line is called, round labels on it, and what is not finite marked."""

import math

import pytest

from gradient_flow.report.figures import plot_gains, plot_statistics
from gradient_flow.report.training_figures import plot_gradient_statistics, plot_training_curves

NAN, INF = math.nan, math.inf


def tick_texts(axes):
    axes.figure.canvas.draw()
    low, high = sorted(axes.get_ylim())
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    return [label.get_text() for value, label in ticks if low <= value <= high and label.get_text()]


def crosses(axes):
    return [x for line in axes.lines if line.get_marker() == "x" for x in line.get_xdata()]


def legend_of(axes):
    return [] if axes.get_legend() is None else [text.get_text() for text in axes.get_legend().get_texts()]


def test_gains_name_their_axes_and_every_stack_on_both_sides():
    left, right = plot_gains({"a": ([1.0, 2.0, 4.0], 1e-8), "b": ([3.0, 3.0, 3.0], 1e-8)}, "l2").axes
    assert left.get_ylabel() == "gradient norm (L2)"
    assert all([left.get_xlabel(), right.get_xlabel(), right.get_ylabel()])
    assert legend_of(left) == ["a", "b"]
    assert legend_of(right) == ["healthy band", "a", "b"]
    assert crosses(left) == []


def test_a_norm_that_is_not_finite_is_marked_at_its_block_and_one_that_is_missing_is_a_gap():
    left, _ = plot_gains({"a": ([1.0, NAN, 2.0, None, INF], 1e-8)}, "linf").axes
    assert crosses(left) == [1, 4]
    assert legend_of(left) == ["a", "NaN or Inf"]
    assert left.get_ylabel() == "gradient norm (L∞)"


@pytest.mark.parametrize("ratio", [1.3, 4.0, 40.0, 900.0, 1e6])
def test_every_log_axis_has_several_labels_and_no_products_of_powers(ratio):
    left, _ = plot_gains({"a": ([0.07, 0.07 * ratio], 1e-8)}, "l2").axes
    texts = tick_texts(left)
    assert len(texts) > 1
    assert not any(r"\times" in text for text in texts)


def statistics(norms):
    count = len(norms)
    names = ("grad_variance", "grad_mean", "grad_max", "grad_min")
    others = {name: [None if norm is None else 0.1 + at for at, norm in enumerate(norms)] for name in names}
    return {"step": [10 * (at + 1) for at in range(count)], "grad_norm": norms, **others}


def test_steps_without_a_finite_norm_are_marked_in_every_panel():
    panels = plot_statistics(statistics([1.0, None, 3.0, 2.0])).axes
    assert [crosses(axes) for axes in panels] == [[20]] * 4
    assert all("×: NaN or Inf" in axes.get_xlabel() and axes.get_ylabel() for axes in panels)
    assert all(len(tick_texts(axes)) > 1 for axes in panels)


def test_without_such_a_step_nothing_is_said_of_it():
    panels = plot_statistics(statistics([1.0, 3.0, 2.0])).axes
    assert [crosses(axes) for axes in panels] == [[]] * 4
    assert {axes.get_xlabel() for axes in panels} == {"training step"}


def entries(count):
    return [
        {
            "step": at + 1,
            "loss": 1.0 / (at + 1),
            "total_norm": 1.0 + at % 5,
            "mean": 0.1 * (at % 3),
            "std": 0.1 + at % 2,
            "min": -1.0 - at % 7,
            "max": 1.0 + at % 4,
            "nan_count": int(at == 3),
        }
        for at in range(count)
    ]


def test_the_figures_of_the_manager_name_every_axis_and_the_panels_are_aligned():
    curves = plot_training_curves(entries(40))
    assert all(axes.get_xlabel() == "step" and axes.get_ylabel() for axes in curves.axes)
    assert curves.axes[2].get_ylim()[0] == 0  # counts stand on the axis
    figure = plot_gradient_statistics(entries(40))
    distribution, _, _, correlation, bar = figure.axes
    figure.canvas.draw()
    assert legend_of(distribution) == ["median 3", "90th percentile 5"]
    assert bar.get_ylabel() == "rank correlation"
    upper, lower = figure.axes[1].get_position(), correlation.get_position()
    assert upper.x0 == pytest.approx(lower.x0, abs=0.01)
