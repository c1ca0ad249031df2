"""The gain monitor and the manager in notebooks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gradient_flow.diagnosis.gains import category
from gradient_flow.record.notebook import COLOURS, bars, box, curve, escaped, facts, prose
from gradient_flow.report.gain_text import HEURISTIC, TAGS
from gradient_flow.table.text import number

if TYPE_CHECKING:
    from gradient_flow.faces.gain import GradientGainMonitor
    from gradient_flow.faces.manager import GradientManager


def gain_html(monitor: GradientGainMonitor) -> str:
    """Norms over depth as bars, each with its gain to the next block."""
    norms, gains = monitor.norms(), monitor.gains()
    if all(norm is None for norm in norms):
        return box(escaped(repr(monitor)), f"<pre>{escaped(monitor.report())}</pre>")
    rows = []
    for at, (name, norm) in enumerate(zip(monitor.names, norms, strict=True)):
        gain = gains[at] if at < len(gains) else None
        note = "" if gain is None else f", × {number(gain)} of the next: {TAGS[category(gain)].lower()}"
        rows.append((str(name), norm, f"{'no gradient' if norm is None else number(norm)}{note}"))
    over = monitor.gain_over_depth()
    lines = [("gain over depth", f"{number(10.0**over.total)} × over {len(norms)} blocks")]
    lines = lines if math.isfinite(over.total) else []
    note = f"<p style='opacity:.7;margin:4px 0'>{escaped(HEURISTIC)}</p>"
    return box(escaped(repr(monitor)), facts(lines), bars(rows, log=True), note)


def manager_html(manager: GradientManager) -> str:
    """What the manager did so far: clipping, guard, health, and the norms it saw."""
    summary = manager.get_training_summary()
    guard, health = summary["nan_inf_summary"], summary["health_issues"]
    rows = [
        ("steps", f"{manager.total_steps:,}"),
        ("clipped", f"{manager.clipped_steps:,}"),
        ("with NaN or Inf", f"{guard['bad_steps']:,}, {guard['skipped_steps']:,} of them skipped"),
        ("unhealthy", f"{manager.unhealthy_steps:,}"),
    ]
    warnings = "".join(f"<li>{prose(str(text))}</li>" for text in health["latest_warnings"])
    norms = list(manager.monitor.recent_norms())
    drawn = curve("gradient norm", range(1, len(norms) + 1), norms, log=True) if norms else ""
    well = manager.total_steps > 0 and not manager.unhealthy_steps and not guard["bad_steps"]
    colour = COLOURS["healthy"] if well else COLOURS["MEDIUM"] if manager.total_steps else COLOURS["unknown"]
    return box(escaped(repr(manager)), facts(rows), drawn, f"<ul>{warnings}</ul>" if warnings else "", colour=colour)
