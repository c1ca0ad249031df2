"""Metrics to W&B, TensorBoard or MLflow, or to any function; one that fails is dropped with a warning."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gradient_flow.errors import GradientFlowWarning, InputError, MissingExtraError
from gradient_flow.record.about import about_facts, about_rows, shown
from gradient_flow.record.export import is_file_store, without_nesting

Logger = Callable[[Mapping[str, float], int], object]
CHOICES = ("wandb", "tensorboard", "mlflow")
_UNFIT: Final = re.compile(r"[^\w./ -]")
"""Letters that the name of a parameter of MLflow cannot have."""


class SafeLogger:
    """A logger that cannot stop training: its first failure is a warning, and its last call."""

    def __init__(
        self,
        name: str,
        log: Logger,
        close: Callable[[], object] = lambda: None,
        describe: Callable[[Mapping[str, Any]], object] = lambda _about: None,
    ) -> None:
        self._name, self._log, self._close, self._describe = name, log, close, describe
        self._failed = False

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Hand the metrics on."""
        if not self._failed:
            self._try(lambda: self._log(metrics, step))

    def describe(self, about: Mapping[str, Any]) -> None:
        """Hand on what the run was, where the logger has a place for it; called again when more is known."""
        if not self._failed:
            self._try(lambda: self._describe(about))

    def close(self) -> None:
        """Flush and release what was opened here."""
        self._try(self._close)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as problem:  # a logger may fail in any way, and none is worth the training
            if self._failed:
                return
            self._failed = True
            warnings.warn(
                f"The {self._name} logger failed ({type(problem).__name__}: {problem}) and is now off; "
                "training continues.",
                GradientFlowWarning,
                stacklevel=3,
            )


def make_loggers(log: Any, folder: Path | None) -> list[SafeLogger]:
    """Loggers from what `watch(log=...)` takes: a name, a function `(metrics, step)`, or several."""
    if log is None:
        return []
    wanted = list(log) if isinstance(log, Sequence) and not isinstance(log, str) else [log]
    return [_make(item, folder) for item in wanted]


def _make(item: Any, folder: Path | None) -> SafeLogger:
    if callable(item):
        return SafeLogger(getattr(item, "__name__", type(item).__name__), item)
    if item not in CHOICES:
        raise InputError(f"`log` must be one of {', '.join(CHOICES)} or a function (metrics, step); got {item!r}.")
    try:
        return {"wandb": _wandb, "tensorboard": _tensorboard, "mlflow": _mlflow}[item](folder)
    except ImportError as problem:
        raise MissingExtraError(item) from problem


def _wandb(folder: Path | None) -> SafeLogger:
    import wandb

    started = wandb.init(dir=str(folder) if folder else None) if wandb.run is None else None

    def log(metrics: Mapping[str, float], step: int) -> None:
        # The user's own calls advance W&B's counter too: the step goes in as a metric, and nothing is refused.
        wandb.log({**metrics, "grad_step": step})

    def describe(about: Mapping[str, Any]) -> None:
        config: Any = wandb.config  # it has no types
        config.update({"gradient_flow": dict(about)}, allow_val_change=True)

    return SafeLogger("wandb", log, started.finish if started is not None else lambda: None, describe)


def _tensorboard(folder: Path | None) -> SafeLogger:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(log_dir=str(folder) if folder else None)

    def log(metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def describe(about: Mapping[str, Any]) -> None:
        rows = [f"| {name} | {value.replace('|', '/')} |" for name, value in about_rows(about)]
        writer.add_text("gradient_flow/about", "\n".join(["| what | |", "|---|---|", *rows]))

    return SafeLogger("tensorboard", log, writer.close, describe)


def _mlflow(_folder: Path | None) -> SafeLogger:
    import mlflow

    started = mlflow.start_run() if mlflow.active_run() is None else None
    in_files = is_file_store(mlflow.get_tracking_uri())

    def log(metrics: Mapping[str, float], step: int) -> None:
        mlflow.log_metrics(without_nesting(metrics) if in_files else dict(metrics), step=step)

    logged: set[str] = set()

    def describe(about: Mapping[str, Any]) -> None:
        # A parameter of MLflow can be set once: of what changes later the first value stays.
        names = {_UNFIT.sub("_", f"gradient_flow/{name}"): shown(value) for name, value in about_facts(about).items()}
        mlflow.log_params({name: value for name, value in names.items() if name not in logged})
        logged.update(names)

    return SafeLogger("mlflow", log, mlflow.end_run if started is not None else lambda: None, describe)
