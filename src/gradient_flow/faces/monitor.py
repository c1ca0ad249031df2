"""`GradientMonitor`: the health and the statistics of each step, by what came before it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradient_flow.config import GradientConfig
from gradient_flow.diagnosis import step_health as health
from gradient_flow.record.window import RunningStats
from gradient_flow.report.figures import save_figure
from gradient_flow.report.training_figures import plot_gradient_statistics
from gradient_flow.table import GradientTable, measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_USUAL_WEIGHT = 0.1
"""Weight of the newest step in what is usual for a layer."""


class GradientMonitor:
    """Watches gradients over steps. Everything it keeps is bounded, and nothing non-finite enters what it compares by.

    >>> import torch
    >>> monitor = GradientMonitor()
    >>> monitor.update_statistics([torch.tensor([3.0, 4.0])])["total_norm"]
    5.0
    >>> monitor.check_gradient_health([torch.tensor([3.0, float("nan")])])["healthy"]
    False
    """

    def __init__(self, config: GradientConfig | None = None) -> None:
        self.config = config if config is not None else GradientConfig()
        self.steps = 0
        """Steps whose statistics were taken."""
        self.history: deque[dict[str, Any]] = deque(maxlen=self.config.max_gradient_history)
        """The statistics of the newest steps."""
        self.norms = RunningStats()
        """Over the whole run."""
        self._past: deque[float] = deque(maxlen=health.WINDOW)
        self._losses: deque[float] = deque(maxlen=health.WINDOW)
        self._loss_so_far = health.LossSoFar()
        self._usual: tuple[tuple[str, ...], NDArray[np.float64]] | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        GradientMonitor.__init__(self, state["config"])  # what an older version did not have
        vars(self).update(state)

    def check_gradient_health(
        self,
        gradients: Any,
        *,
        loss: float | None = None,
        step: int | None = None,
        more: Sequence[health.Finding] = (),
    ) -> dict[str, Any]:
        """Whether these gradients are healthy, with warnings and recommendations that name the evidence.

        `gradients` is anything that `measure` takes, or its table; `more` was found elsewhere. Nothing is remembered;
        `update_statistics` does.
        """
        table = gradients if isinstance(gradients, GradientTable) else measure(gradients)
        total = table.total
        bad = [name for name, finite in zip(table.names, table.finite, strict=True) if not finite]
        by_norm = self.config.enable_gradient_clipping and self.config.active_clip_type == "norm"
        now = health.StepNumbers(
            step=self.steps + 1 if step is None else step,
            norm=total.norm,
            nan=total.nan_count,
            inf=total.inf_count,
            count=total.count,
            bad_layers=bad,
            culprit=None if bad else health.blame(table.names, table.sum_sq, self._usual_for(table)),
            zero_layers=int((table.column("zeros") == table.count).sum()),
            layers=len(table),
            max_grad_norm=self.config.max_grad_norm if by_norm else None,
        )
        losses = [*self._losses, *([] if loss is None or not math.isfinite(loss) else [loss])]
        findings = health.judge_step(
            now, self._past, losses, loss_so_far=self._loss_so_far, widespread=self.config.nan_inf_threshold
        )
        result = health.report([*findings, *more])
        if loss is not None and not math.isfinite(loss):
            result["healthy"] = False
            result["issues"].append("nonfinite")
            result["warnings"].append(f"The loss is {loss}; step {now.step}")
            result["recommendations"].append("Check the batch and the loss for log(0), division by zero or overflow.")
        return result

    def update_statistics(
        self, gradients: Any, *, loss: float | None = None, step: int | None = None, **more: Any
    ) -> dict[str, Any]:
        """Statistics of these gradients together, remembered for later steps; `more` is remembered beside them."""
        table = gradients if isinstance(gradients, GradientTable) else measure(gradients)
        statistics = describe_gradients(table)
        self.remember(table, statistics, loss=loss, step=step, **more)
        return statistics

    def remember(
        self,
        table: GradientTable,
        statistics: Mapping[str, Any],
        *,
        loss: float | None = None,
        step: int | None = None,
        **more: Any,
    ) -> None:
        """Keep the statistics of a step that were taken already."""
        self.steps += 1
        self._remember(table, statistics["total_norm"], loss)
        if self.history.maxlen != self.config.max_gradient_history:
            self.history = deque(self.history, maxlen=self.config.max_gradient_history)
        self.history.append({"step": self.steps if step is None else step, "loss": loss, **statistics, **more})

    def plot_gradient_statistics(self, save_path: str | Path | None = None) -> Figure:
        """Four panels: distribution of norms, means and deviations, extremes, correlation between metrics."""
        figure = plot_gradient_statistics(list(self.history))
        if save_path is not None and self.config.save_gradient_plots:
            save_figure(figure, save_path)
        return figure

    def recent_norms(self) -> list[float]:
        """The finite norms in the history."""
        return [entry["total_norm"] for entry in self.history if math.isfinite(entry["total_norm"])]

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        so_far = self._loss_so_far
        usual = None if self._usual is None else {"names": list(self._usual[0]), "values": self._usual[1].tolist()}
        return {
            "steps": self.steps,
            "history": list(self.history),
            "norms": self.norms.state_dict(),
            "past": list(self._past),
            "losses": list(self._losses),
            "loss_so_far": {"first": list(so_far.first), "lowest": so_far.lowest} if so_far.first else {},
            "usual": usual,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.steps = state["steps"]
        self.history = deque(state["history"], maxlen=self.config.max_gradient_history)
        self.norms.load_state_dict(state["norms"])
        self._past = deque(state["past"], maxlen=health.WINDOW)
        self._losses = deque(state["losses"], maxlen=health.WINDOW)
        # An older checkpoint does not have it; then the loss begins here.
        self._loss_so_far = health.LossSoFar(**state.get("loss_so_far", {}))
        usual = state["usual"]
        self._usual = None if usual is None else (tuple(usual["names"]), np.array(usual["values"]))

    def _usual_for(self, table: GradientTable) -> NDArray[np.float64] | None:
        return self._usual[1] if self._usual is not None and self._usual[0] == table.names else None

    def _remember(self, table: GradientTable, norm: float, loss: float | None) -> None:
        self.norms.add(norm)
        if loss is not None and math.isfinite(loss):
            self._losses.append(loss)
            self._loss_so_far.add(loss)
        if not math.isfinite(norm):
            return
        self._past.append(norm)
        usual, now = self._usual_for(table), table.sum_sq
        self._usual = table.names, now.copy() if usual is None else usual + _USUAL_WEIGHT * (now - usual)


def describe_gradients(table: GradientTable) -> dict[str, Any]:
    """The documented statistics of all gradients of a table together."""
    total = table.total
    return {
        "total_norm": total.norm,
        "mean": total.mean,
        "std": total.std,
        "min": total.min,
        "max": total.max,
        "nan_count": total.nan_count,
        "inf_count": total.inf_count,
        "zero_fraction": total.zero_fraction,
        "num_elements": total.count,
        "num_gradients": len(table),
    }
