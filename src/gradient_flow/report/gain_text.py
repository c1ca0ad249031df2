"""Gains between blocks as text: the report of one stack, and several side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from gradient_flow.diagnosis.gains import Norms, category, gain, gain_over_depth, log_gain, summary
from gradient_flow.table.text import shorten

TAGS: Final = {
    "healthy": "Healthy",
    "damping": "DAMPING",
    "amplifying": "AMPLIFYING",
    "vanishing": "VANISHING",
    "nonfinite": "NON-FINITE",
}
HEURISTIC: Final = "Thresholds 0.5 and 2.0 are heuristic: what is healthy depends on the network."


def gain_report(norms: Norms, eps: float, norm_type: str, title: str, notes: Sequence[str] = ()) -> str:
    """Norms, gains and a summary, as a person reads them."""
    lines = [f"Gradient Flow Report: {title}", ""]
    lines += [f"Gradient Norms ({norm_type}, output of each block):"]
    lines += [
        f"  Block {index:2d}: {'no gradient' if norm is None else format(norm, '.4e')}"
        for index, norm in enumerate(norms)
    ]
    lines += ["", "Gradient Gains (ratio of consecutive norms):"]
    lines += [_transition(index, earlier, later, eps) for index, (earlier, later) in enumerate(pairwise(norms))]
    lines += ["", "Summary Statistics:", *_summary(norms, eps), "", HEURISTIC, *notes]
    return "\n".join(lines)


def _transition(index: int, earlier: float | None, later: float | None, eps: float) -> str:
    ratio, logarithm = gain(earlier, later, eps), log_gain(earlier, later, eps)
    start = f"  Transition {index:2d} to {index + 1:2d}: "
    if ratio is None or logarithm is None:
        return start + "missing (no gradient)"
    return f"{start}gamma={ratio:.4f}, log_gamma={logarithm:.4f} [{TAGS[category(ratio)]}]"


def _summary(norms: Norms, eps: float) -> list[str]:
    stats = summary(norms, eps)
    lines = [
        f"  {name} gain: {stats[key]:.4f}"
        for name, key in (
            ("Mean", "mean_gain"),
            ("Min", "min_gain"),
            ("Max", "max_gain"),
            ("Mean log", "mean_log_gain"),
        )
        if math.isfinite(stats[key])
    ]
    counts = (
        ("Healthy (0.5 <= gamma <= 2.0)", "num_healthy", True),
        ("Damping (gamma < 0.5)", "num_damping", True),
        ("Amplifying (gamma > 2.0)", "num_amplifying", True),
        ("Vanishing (gamma = inf)", "num_vanishing", False),
        ("Non-finite", "num_nonfinite", False),
        ("Missing (no gradient)", "num_missing", False),
    )
    lines += [f"  {name}: {stats[key]}" for name, key, always in counts if always or stats[key]]
    depth = gain_over_depth(norms)
    if math.isfinite(depth.total) and len(norms) > 1:
        lines.append(f"  Over depth: {depth}")
    return lines


def comparison_table(stacks: Mapping[str, tuple[Norms, float]]) -> str:
    """Several stacks, given as (norms, eps) by name, one per line."""
    header = ("", "blocks", "decades/block", "in all", "mean gain", "healthy", "damping", "amplifying")
    rows = [header]
    for name, (norms, eps) in stacks.items():
        stats, depth = summary(norms, eps), gain_over_depth(norms)
        rows.append(
            (
                shorten(name, 20),
                str(len(norms)),
                f"{depth.slope.value:+.3f} ± {depth.slope.error:.3f}",
                f"{depth.total:+.2f}",
                f"{stats['mean_gain']:.3f}",
                str(stats["num_healthy"]),
                str(stats["num_damping"]),
                str(stats["num_amplifying"]),
            )
        )
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    )
