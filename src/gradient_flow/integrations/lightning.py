"""`GradientStatisticsCallback`: gradient statistics of a Lightning run, to its loggers, two JSON files and a plot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gradient_flow.capture.parameters import module_parameters, parameter_roles
from gradient_flow.capture.unsupported import why_unsupported
from gradient_flow.config import disabled
from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.diagnosis.sources import run_of_statistics
from gradient_flow.diagnosis.verdict import verdict
from gradient_flow.errors import InputError, MissingExtraError, check_number, check_whole, warn
from gradient_flow.flow.inside import Inside
from gradient_flow.looks.schedule import Schedule
from gradient_flow.record.ending import Ending
from gradient_flow.record.event import UNSUPPORTED
from gradient_flow.record.export import (
    GLOBAL,
    LOOKS_FILE,
    MATRICES_FILE,
    PER_MATRIX,
    STATISTICS_FILE,
    is_file_store,
    logged_metrics,
    without_nesting,
    write_json,
)
from gradient_flow.record.run import Run
from gradient_flow.record.step import StepRecord
from gradient_flow.table import GradientTable, measure

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as problem:
    raise MissingExtraError("lightning") from problem

if TYPE_CHECKING:
    import torch

PLOT_FILE = "gradient_statistics.png"
_MOST_LOOKS: Final = 32


class GradientStatisticsCallback(Callback):
    """Tracks gradient statistics every N optimizer steps: all elements together, and by weight matrix.

    Gradients are taken after backward, unscaled and before the Trainer clips them. Every logger of the Trainer gets
    `train/grad_norm` and the other documented keys; at the end, and also after an exception or an interrupt, two JSON
    files and a plot are left in `save_dir`: by default the logger's directory, else the Trainer's root.

    Some steps are looked at from inside, as by `watch`: `looks` and `budget` are those of `watch`. What was seen goes
    into a third file and into the verdict.
    """

    def __init__(
        self,
        grad_log_every_n_steps: int = 100,
        grad_track_per_weight_matrix: bool = True,
        save_dir: str | Path | None = None,
        *,
        looks: bool | int | Iterable[int] = True,
        budget: float = 0.01,
    ) -> None:
        super().__init__()
        track: Any = grad_track_per_weight_matrix
        self.grad_log_every_n_steps = check_whole("grad_log_every_n_steps", grad_log_every_n_steps, error=InputError)
        if not isinstance(track, bool):
            raise InputError(f"`grad_track_per_weight_matrix` must be True or False, got {track!r}.")
        self.grad_track_per_weight_matrix = track
        self.save_dir = None if save_dir is None else Path(save_dir)
        Schedule(looks)  # refused now rather than in the middle of a training
        check_number("budget", budget, "a share of the training time between 0 and 1", 0, 1)
        self._looks, self._budget = looks, budget
        self._forget()

    def _forget(self) -> None:
        self.statistics: dict[str, list[Any]] = {name: [] for name in ("step", "epoch", *GLOBAL)}
        self.matrix_statistics: dict[str, dict[str, list[Any]]] = {}
        self._steps: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._failed = False
        self._unsupported: str | None = None
        self._ending: Ending | None = None
        self._start = time.time()
        self._open: tuple[int, int, GradientTable] | None = None
        self._roles: dict[str, str] = {}
        self._parameters: dict[int, list[tuple[str, torch.Tensor]]] = {}
        self._inside: Inside | None = None
        self._stepped: tuple[int, torch.optim.Optimizer] | None = None
        self.looks: list[dict[str, Any]] = []
        """What was seen inside the model: the first look, and the last ones."""

    # ---- what Lightning calls -------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin anew with each fit."""
        if stage == "fit":
            if trainer.global_step == 0:  # a second fit of the same Trainer goes on where the first ended
                self._forget()
            self._parameters = {}
            self._ending = None
            self._roles = parameter_roles(pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Looks inside the model begin when its weights are where they are trained."""
        if not disabled():
            self._guarded(lambda: self._begin(trainer, pl_module))

    def _begin(self, trainer: Any, pl_module: Any) -> None:
        model = getattr(trainer, "model", None)  # as the strategy wrapped it
        self._unsupported = why_unsupported(pl_module if model is None else model)
        if self._unsupported is None:
            self._begin_looks(pl_module)
        else:
            _warn(f"gradient_flow does not record this training. {self._unsupported}")

    def _begin_looks(self, pl_module: Any) -> None:
        inside = Inside(pl_module, self._looks, self._budget)
        self._inside = inside if inside.is_on else None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """If a step was taken: keep what a look saw in it, and begin one if the next step is to be looked at."""
        if self._inside is not None and self._stepped is not None:
            self._guarded(lambda: self._look_ahead(pl_module))

    def _look_ahead(self, pl_module: Any) -> None:
        assert self._inside is not None
        assert self._stepped is not None
        (step, optimizer), self._stepped = self._stepped, None
        found = self._inside.after_update(step)
        if found is not None:
            seen, why = found
            self.looks.append({"step": step, "because": why["because"], "seen": seen})
            del self.looks[1 : len(self.looks) - _MOST_LOOKS]
        self._inside.plan(step + 1, lambda: self._parameters_of(optimizer, pl_module))

    def _end_looks(self) -> None:
        if self._inside is not None:
            self._inside.close()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        """Measure, if this is one of the steps to measure."""
        if disabled() or self._unsupported is not None:
            return
        self._guarded(lambda: self._before_step(trainer, pl_module, optimizer))

    def _before_step(self, trainer: Any, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        which = trainer.optimizers.index(optimizer) if optimizer in trainer.optimizers else 0
        if self._seen.get(which) == trainer.global_step:
            return  # LBFGS evaluates its closure several times within one step
        self._seen[which] = trainer.global_step
        self._steps[which] = self._steps.get(which, 0) + 1
        # The optimizer that is furthest on sets the count; the others join its entry when they step meanwhile.
        step = max(self._steps.values())
        if self._inside is not None:
            self._stepped = step, optimizer
            if self._inside.is_looking:
                parameters, scale = self._parameters_of(optimizer, pl_module), _scale_left_in(trainer, optimizer)
                seen = measure({name: p.grad for name, p in parameters}).unscaled(scale)
                self._inside.before_update(optimizer, seen, parameters, scale)
        if step % self.grad_log_every_n_steps:
            return
        table = measure({name: p.grad for name, p in self._parameters_of(optimizer, pl_module)})
        table = table.unscaled(_scale_left_in(trainer, optimizer))
        if self._open is not None and self._open[0] == step:
            table = self._open[2].merge(table)
        elif self._open is not None:
            self._close_entry(trainer)
        self._open = step, trainer.current_epoch, table
        if len(trainer.optimizers) == 1 or which == len(trainer.optimizers) - 1:
            self._close_entry(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the files."""
        self._end_looks()
        self._guarded(lambda: self._save(trainer))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the files also after an error or an interrupt, which they then name."""
        self._end_looks()
        self._ending = Ending.by(exception, max(self._steps.values(), default=0))
        self._guarded(lambda: self._save(trainer))

    def _guarded(self, action: Callable[[], None]) -> None:
        """Whatever fails in here must not stop the training."""
        try:
            action()
        except Exception as problem:
            if not self._failed:
                _warn(f"Gradient statistics failed ({type(problem).__name__}: {problem}). Training continues.")
            self._failed = True

    @property
    def run(self) -> Run:
        """What was recorded so far, as `gf.diagnose` reads it back from the JSON files."""
        return run_of_statistics(self._told(), self.matrix_statistics, {"looks": self.looks})

    def diagnose(self) -> Diagnosis:
        """What is wrong with the run so far; the same as `gf.diagnose` of the folder with the JSON files."""
        return verdict(self.run)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs for the lists to go on."""
        return {
            "statistics": self.statistics,
            "matrix_statistics": self.matrix_statistics,
            "steps": dict(self._steps),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.statistics = {name: list(values) for name, values in state_dict["statistics"].items()}
        self.matrix_statistics = {
            group: {name: list(values) for name, values in lists.items()}
            for group, lists in state_dict["matrix_statistics"].items()
        }
        self._steps = dict(state_dict["steps"])

    def _parameters_of(self, optimizer: torch.optim.Optimizer, pl_module: Any) -> list[tuple[str, torch.Tensor]]:
        if id(optimizer) not in self._parameters:
            inside = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            self._parameters[id(optimizer)] = [(n, p) for n, p in module_parameters(pl_module) if id(p) in inside]
        return self._parameters[id(optimizer)]

    # ---- entries and files ----------------------------------------------------------------------------------------

    def _close_entry(self, trainer: Any) -> None:
        if self._open is None:
            return
        (step, epoch, table), self._open = self._open, None
        groups = table.group(self._roles.get) if self.grad_track_per_weight_matrix else None
        self.statistics["step"].append(step)
        self.statistics["epoch"].append(epoch)
        metrics = logged_metrics(StepRecord.of(step, time.time() - self._start, table.total), groups)
        for name in GLOBAL:
            self.statistics[name].append(metrics[f"train/{name}"])
        for group in groups or ():
            lists = self.matrix_statistics.setdefault(group, {key: [] for key in ("step", *PER_MATRIX)})
            lists["step"].append(step)
            for key in PER_MATRIX:
                lists[key].append(metrics[f"train/grad_{key}/{group}"])
        if trainer.is_global_zero:
            self._tell_loggers(trainer, metrics, step)

    def _tell_loggers(self, trainer: Any, metrics: Mapping[str, float], step: int) -> None:
        # Straight to the loggers: `self.log` would be gated by the Trainer's own `log_every_n_steps`.
        for logger in trainer.loggers:
            # MLflow's logger keeps the address of its store to itself.
            in_files = is_file_store(getattr(logger, "_tracking_uri", None))
            try:
                logger.log_metrics(without_nesting(metrics) if in_files else dict(metrics), step=step)
            except Exception as problem:  # no logger is worth the training
                _warn(f"{type(logger).__name__} refused the gradient statistics of step {step}: {problem}")

    def _save(self, trainer: Any) -> None:
        self._close_entry(trainer)
        if not trainer.is_global_zero:
            return
        folder = self.save_dir or Path(trainer.log_dir or trainer.default_root_dir)
        try:
            write_json(folder / STATISTICS_FILE, self._told())
            if self.grad_track_per_weight_matrix:
                write_json(folder / MATRICES_FILE, self.matrix_statistics)
            if self.looks or (folder / LOOKS_FILE).exists():  # of an earlier run there
                write_json(folder / LOOKS_FILE, {"looks": self.looks})
            self._plot(folder / PLOT_FILE)
        except OSError as problem:
            _warn(f"The gradient statistics cannot be written to {folder}: {problem}")

    def _told(self) -> dict[str, Any]:
        """The lists; how the training ended, where that was not by itself; why nothing could be read."""
        ending = {} if self._ending is None else {"ending": self._ending.to_dict()}
        unsupported = {} if self._unsupported is None else {UNSUPPORTED: self._unsupported}
        return {**self.statistics, **ending, **unsupported}

    def _plot(self, path: Path) -> None:
        from gradient_flow.report.figures import plot_statistics

        try:
            plot_statistics(self.statistics).savefig(path, dpi=120)
        except MissingExtraError as problem:
            _warn(f"The plot of the gradient statistics was left out. {problem}")


def _scale_left_in(trainer: Any, optimizer: Any) -> float:
    """Fused optimizers unscale inside their step, so under fp16 their gradients still carry the loss scale here."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None or not getattr(optimizer, "_step_supports_amp_scaling", False):
        return 1.0
    return float(scaler.get_scale())


def _warn(message: str) -> None:
    warn(message, stacklevel=5)
