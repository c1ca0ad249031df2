"""`watch`: every optimizer step of a training loop measured, remembered, logged and written down."""

from __future__ import annotations

import math
import os
import platform
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn

from gradient_flow._version import __version__
from gradient_flow.act.attachment import Attachment, as_optimizers, unscaled
from gradient_flow.capture import foreign_clipping as clipping
from gradient_flow.capture.optimizer_steps import ScaleWatch, after_each_step, before_each_step, pending_scale
from gradient_flow.capture.parameters import (
    ClippedRow,
    KnownParameter,
    gradients_of,
    module_parameters,
    optimizer_parameters,
    parameter_roles,
)
from gradient_flow.capture.sharding import any_sharded, is_first_rank
from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.diagnosis.run_record import NonFinite
from gradient_flow.errors import GradientFlowWarning, InputError, MonitorStateError
from gradient_flow.faces.manager import GradientManager
from gradient_flow.flow.loggers import make_loggers
from gradient_flow.flow.rank_checks import BadRank, RankCheck, RankReport, RankTrace
from gradient_flow.flow.rank_steps import RankSteps, StepTables
from gradient_flow.record.export import logged_metrics
from gradient_flow.record.run_writer import RunWriter, layers_record
from gradient_flow.record.step import describe_parameter, numbers_in, plain_value
from gradient_flow.record.window import History
from gradient_flow.table import GradientTable, measure
from gradient_flow.table.columns import COLUMNS, Rows, Thresholds
from gradient_flow.table.measure import share_of_rank
from gradient_flow.table.updates import sample_weights, weight_changes

TOTALS = ("norm", "l1", "linf", "mean", "variance", "min", "max", "zero_fraction", "nan_count", "inf_count")
"""Statistics of all gradients together that every step record holds."""


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    run: str | Path | None = None,
    every: int = 1,
    layers_every: int = 10,
    groups: Callable[[str], str | None] | Mapping[str, str | Sequence[str]] | None = None,
    log: Any = None,
    scaler: Any = None,
    manager: GradientManager | None = None,
    history: int = 10_000,
    near_zero: float = 1e-7,
    very_large: float = 1e3,
    group: Any = None,
    check_ranks: bool = False,
    trace_ranks: bool = False,
) -> Flow:
    """Watch every optimizer step of a model; nothing else in the training loop has to change.

    Args:
        optimizer: one or several, whose steps are watched; without one call `flow.step()` before each of your own.
        run: a folder for the run file, which survives a crash; `None` writes nothing.
        every: record every so many steps; the others cost nothing.
        layers_every: with every so many steps also the table of all tensors and their update-to-weight ratios.
        groups: parameters to merge for loggers: a function of the name, or patterns (`{"encoder": "encoder.*"}`).
            By default they are grouped by role.
        log: `"wandb"`, `"tensorboard"`, `"mlflow"`, a function `(metrics, step)`, or a list of these.
        scaler: the `GradScaler`, if there is one: its scale and the steps it skipped are recorded.
        manager: guards and clips each step, from the same read of the gradients; what it does is recorded.
        history: how many steps are remembered in `flow.history`.
        group: a process group whose ranks hold different parameters (pipeline stages) and are recorded as one model.
            Sharded models (FSDP2, tensor parallel) need none. Every rank calls `watch`; the first writes and logs.
        check_ranks: with every `layers_every`-th record compare the ranks: who has other gradients, who is slow.
        trace_ranks: look at the gradients of each rank before `DistributedDataParallel` averages them, to name the
            ranks that non-finite ones come from. A second read of the gradients.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with watch(model, optimizer) as flow:
    ...     for _ in range(3):
    ...         optimizer.zero_grad(); model(torch.ones(1, 2)).sum().backward(); optimizer.step()
    >>> len(flow.history), round(flow.table.total.norm, 3)
    (3, 1.732)
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` must be a module, got {type(model).__name__}.")
    flow = Flow(
        module_parameters(model),
        parameter_roles(model),
        run=run,
        every=every,
        layers_every=layers_every,
        groups=groups,
        log=log,
        scaler=scaler,
        attachment=None if manager is None else Attachment(manager, model, scaler=scaler, group=group),
        history=history,
        near_zero=near_zero,
        very_large=very_large,
        group=group,
        check=RankCheck(model) if check_ranks else None,
        trace=RankTrace(model) if trace_ranks else None,
    )
    try:
        for each in as_optimizers([] if optimizer is None else optimizer):
            flow.add_optimizer(each)
    except BaseException:
        flow.close()
        raise
    return flow


class Flow:
    """One training run under watch: `table`, `history`, `diagnose()`. Made by `watch`; a context manager."""

    def __init__(
        self,
        parameters: Sequence[tuple[str, torch.Tensor]],
        roles: Mapping[str, str],
        *,
        run: str | Path | None,
        every: int,
        layers_every: int,
        groups: Any,
        log: Any,
        scaler: Any,
        attachment: Attachment | None = None,
        history: int,
        near_zero: float,
        very_large: float,
        group: Any = None,
        check: RankCheck | None = None,
        trace: RankTrace | None = None,
    ) -> None:
        self.every, self.layers_every = _count(every, "every"), _count(layers_every, "layers_every")
        self._limits = {"near_zero": near_zero, "very_large": very_large}
        self._settings = {"every": every, "layers_every": layers_every, **self._limits}
        self._known: dict[int, KnownParameter] = {}
        self._all: list[dict[str, Any]] = []
        self._learn(parameters)
        self._roles = dict(roles)
        if groups is not None:
            GradientTable((), np.empty((0, len(COLUMNS)))).group(groups)  # refused now rather than at the first step
        self._groups = groups
        self._scaler = scaler
        self._attachment = attachment
        self._group, self._check, self._trace = group, check, trace
        self._rank_steps: dict[int, RankSteps] = {}
        self.rank_report: RankReport | None = None
        """How ranks compared, where they were checked with the last recorded step."""
        self.history = History(_count(history, "history"))
        self.table: GradientTable | None = None
        """The gradients of the last recorded step, as backward left them."""
        self.clipped_table: GradientTable | None = None
        """The same after clipping, if the step was clipped by `torch.nn.utils`: by norm or by value."""
        self.steps = 0
        """Optimizer steps so far, recorded or not."""
        self.skipped_steps = 0
        """Steps that the `GradScaler` skipped."""
        self.first_nonfinite: NonFinite | None = None
        self._scale = ScaleWatch()
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self.name_optimizers = False
        """Whether a record says whose step it is although one optimizer is known: others are to come."""
        self._own_steps: dict[int, int] = {}
        self._pid = os.getpid()
        self._handles: list[Any] = []
        self._told: dict[str, Any] = {}
        self._before_clip: dict[str, ClippedRow] = {}
        self._clip_seen = False
        self._sample: tuple[list[tuple[str, torch.Tensor]], list[torch.Tensor]] | None = None
        self._pending: tuple[dict[str, Any], GradientTable, bool] | None = None
        self._bad_ranks: tuple[BadRank, ...] = ()
        self._told_of_ranks = False
        self._start = time.time()
        self._closed = self._failed = self._ended = False
        first = is_first_rank()
        self._run: RunWriter | None = RunWriter(run, self._header()) if first and run is not None else None
        self._loggers = make_loggers(log, Path(run) if run is not None else None) if first else []
        self._stop_listening = clipping.listen(self._on_clip)
        self._guarded(self._count_skipped)  # the scale to begin with: steps may be skipped before the first is taken

    # ---- what a user calls ----------------------------------------------------------------------------------------

    def log(self, **values: Any) -> None:
        """Tell what belongs to the coming step: `flow.log(loss=loss, epoch=epoch)`. Call it before the step."""
        reserved = sorted({"kind", "step", "time", *TOTALS} & values.keys())
        if reserved:
            raise InputError(f"`{reserved[0]}` is recorded by the watch itself. Log your value under another name.")
        self._told.update(values)

    def step(self, optimizer: torch.optim.Optimizer | None = None, **values: Any) -> None:
        """Record a step by hand, before the weights change: for loops without a torch optimizer."""
        if self._closed:
            raise MonitorStateError("Cannot record a step after close(). Create a new watch().")
        self.log(**values)
        self._guarded(lambda: self._before_step(optimizer), together=True)
        self._guarded(self._finish)

    def add_optimizer(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str] | None = None) -> None:
        """Watch the steps of one more optimizer. `names`, by the id of the parameter, is for those not known yet."""
        self._optimizers.append(weakref.ref(optimizer))
        self._own_steps.setdefault(id(optimizer), 0)
        self._learn_from(optimizer, names or {})
        self._handles += [
            before_each_step(optimizer, self._on_step_begins),
            after_each_step(optimizer, self._on_step_ended),
        ]

    def diagnose(self) -> Diagnosis:
        """What can be said of the run so far; the same as `gf.diagnose(flow)`."""
        from gradient_flow.diagnosis.verdict import diagnose

        return diagnose(self)

    def close(self) -> None:
        """Take every hook away and finish the files."""
        if self._closed:
            return
        self._guarded(self._count_skipped)
        self._closed = True
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._stop_listening()
        if self._attachment is not None:
            self._attachment.close()
        self._guarded(self._finish)
        self._guarded(self._write_all_owed)
        for watcher in (self._check, self._trace):
            if watcher is not None:
                watcher.close()
        for logger in self._loggers:
            logger.close()
        if self._run is not None:
            verdict = self.diagnose()
            self._run.write({"kind": "end", "steps": self.steps, "status": verdict.status, "message": verdict.message})
            self._run.close()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to go on counting and remembering."""
        return {
            "steps": self.steps,
            "own_steps": list(self._own_steps.values()),
            "skipped_steps": self.skipped_steps,
            "last_scale": self._scale.scale,
            "history": self.history.state_dict(),
            "first_nonfinite": None if self.first_nonfinite is None else vars(self.first_nonfinite).copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.steps, self.skipped_steps = state["steps"], state["skipped_steps"]
        keys = list(self._own_steps) or [id(None)]  # without an optimizer, steps are counted by hand
        self._own_steps |= dict(zip(keys, state["own_steps"], strict=False))
        self._scale.scale = state["last_scale"]
        self.history.load_state_dict(state["history"])
        first = state["first_nonfinite"]
        self.first_nonfinite = None if first is None else NonFinite(**first)
        if self._run is not None:
            self._run.write({"kind": "resumed", "step": self.steps})

    @property
    def path(self) -> Path | None:
        """The run file, where there is one."""
        return None if self._run is None else self._run.path

    def __enter__(self) -> Flow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Flow({self.steps} steps, {len(self._all)} tensors{', closed' if self._closed else ''})"

    # ---- one step -------------------------------------------------------------------------------------------------

    def _on_step_begins(self, optimizer: torch.optim.Optimizer, loss: Any) -> None:
        if loss is not None:
            self._told.setdefault("loss", loss)
        told = self._told.get("loss")
        before = self.table
        self._guarded(lambda: self._before_step(optimizer), together=True)
        if self._attachment is not None:
            measured = self.table if self.table is not before and self.clipped_table is None else None
            self._act(self._attachment, optimizer, told, measured)

    def _act(
        self, attachment: Attachment, optimizer: torch.optim.Optimizer, loss: Any, table: GradientTable | None
    ) -> None:
        """Let the manager act. What it raises is meant: it is the user's policy."""
        steps = self._rank_steps.get(id(optimizer))
        ranks = None if steps is None or table is None else steps.ranks
        bad_ranks = None if self._trace is None else tuple(bad.rank for bad in self._bad_ranks)
        done = attachment.before_step(optimizer, loss, table, ranks=ranks, bad_ranks=bad_ranks)
        if self._pending is None:
            return
        record = self._pending[0]
        clipping, action = done["clipping"], done["nan_inf"]["action"]
        if clipping["clipped"]:
            record["clipped_norm"] = clipping["clipped_norm"]
        record["clip_threshold"] = clipping["threshold"]
        if action is not None:
            record["guard"] = action

    def _on_step_ended(self, optimizer: torch.optim.Optimizer) -> None:
        if self._attachment is not None:
            self._attachment.after_step(optimizer)
        steps = self._rank_steps.get(id(optimizer))
        if steps is not None:
            self._guarded(steps.step_is_done)
        if self._pending is not None:
            self._guarded(self._finish)
        if self._check is not None:
            self._check.step_is_done()

    def _is_recorded(self, own_step: int) -> bool:
        """Counted per optimizer: with two that alternate, every second step must not always be the same one's."""
        return own_step % self.every == 0

    def _on_clip(self, parameters: list[torch.Tensor]) -> Callable[[], None]:
        ours = [(known.name, p) for p in parameters if (known := self._known.get(id(p))) is not None and known.is_(p)]
        if self._closed or not ours or not any(self._is_recorded(own + 1) for own in self._own_steps.values()):
            return lambda: None
        self._clip_seen = True
        for steps in self._rank_steps.values():
            steps.clip_seen = True  # also where this rank has no gradient: all ranks must come to the same
        ours = [(name, p) for name, p in ours if p.grad is not None]

        def measure_before() -> None:
            for (name, p), row in zip(ours, self._rows_here(ours), strict=True):
                earlier = self._before_clip.get(name)
                # Clipped twice, it came as it was before the first.
                self._before_clip[name] = earlier if earlier is not None and earlier.is_of(p) else ClippedRow(row)

        def remember_which() -> None:
            for name, p in ours:
                if name in self._before_clip:
                    self._before_clip[name].mark(p)

        self._guarded(measure_before)
        return lambda: self._guarded(remember_which)

    def _before_step(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.steps += 1
        own = self._own_steps[id(optimizer)] = self._own_steps.get(id(optimizer), 0) + 1
        told, self._told = self._told, {}
        self._count_skipped()
        recorded = self._is_recorded(own)
        if self._trace is not None:
            # The manager needs it with every step. What is not asked for now must not be blamed on a later step.
            asked = recorded or self._attachment is not None
            self._bad_ranks = self._trace.bad_ranks() if asked else self._trace.forget()
        if not recorded:
            return
        ours = self._live_parameters() if optimizer is None else self._parameters_of(optimizer)
        clipped = {name: self._before_clip.pop(name) for name, _ in ours if name in self._before_clip}
        # A step that was skipped after its clip left rows behind that are not of these gradients.
        clipped_rows = {name: clipped[name].row for name, p in ours if name in clipped and clipped[name].is_of(p)}
        with_layers = (own // self.every) % self.layers_every == 0 or own == self.every
        try:
            now, before_clip, owed = self._measure(optimizer, ours, clipped_rows)
            self._compare_ranks(now, with_layers)
        except BaseException:
            self._ended = True  # on every other rank too: nobody is left waiting
            raise
        self.table, self.clipped_table = now, None
        if before_clip:
            rows = np.array([before_clip.get(name, row) for name, row in zip(now.names, now.rows, strict=True)])
            self.table = GradientTable(now.names, rows, missing=now.missing, thresholds=now.thresholds)
            self.clipped_table = now
        steps = self._rank_steps.get(id(optimizer))
        if steps is not None and with_layers:
            steps.remember(self.steps, self.table, ours)
        if self._failed:
            return  # nothing is recorded any more, but the other ranks count on this one
        self._write_owed(owed)
        record = self._record(told, optimizer)
        if steps is None and with_layers:
            weights = [(name, parameter) for name, parameter in ours if parameter.grad is not None]
            self._sample = weights, sample_weights([parameter for _, parameter in weights])
        self._pending = record, self.table, with_layers

    def _finish(self) -> None:
        if self._pending is None:
            return
        (record, table, with_layers), self._pending = self._pending, None
        ratios = self._update_ratios(table) if with_layers and self._sample is not None else None
        self.history.append(dict(numbers_in(record)))
        if self._run is not None:
            self._run.write(record)
        if ratios is not None:
            self._write_layers(record["step"], table, ratios)
        if self._loggers:
            groups = self.grouped(table) if with_layers else None
            metrics = logged_metrics(table.total, groups)
            for logger in self._loggers:
                logger(metrics, record["step"])

    def grouped(self, table: GradientTable) -> GradientTable:
        """The table by groups, or by role where no groups were given."""
        return table.group(self._groups if self._groups is not None else self._roles.get)

    def _rows_here(self, parameters: Sequence[tuple[str, torch.Tensor]]) -> Rows:
        """Of what lies on this rank only: ranks put their parts together once, when the step comes."""
        if not any_sharded(parameter for _, parameter in parameters):
            return measure({name: parameter.grad for name, parameter in parameters}, **self._limits).rows
        share = share_of_rank(gradients_of(parameters), Thresholds(**self._limits))
        if share.problem is not None:
            raise share.problem
        return share.rows

    def _measure(
        self,
        optimizer: torch.optim.Optimizer | None,
        parameters: Sequence[tuple[str, torch.Tensor]],
        before_clip: Mapping[str, Rows],
    ) -> StepTables:
        """The table of the step, alone or together with the ranks that hold other parts of these gradients."""
        scale, key = pending_scale(optimizer), id(optimizer)
        if key not in self._rank_steps and (self._group is not None or any_sharded(p for _, p in parameters)):
            self._rank_steps[key] = RankSteps(self._group, clip_seen=self._clip_seen)
        if key in self._rank_steps:
            return self._rank_steps[key].measure(parameters, before_clip, Thresholds(**self._limits), scale)
        near_zero, very_large = (limit * scale for limit in self._limits.values())
        gradients = {name: parameter.grad for name, parameter in parameters}
        table = measure(gradients, near_zero=near_zero, very_large=very_large)
        if scale != 1.0:
            free = unscaled(table, scale)
            table = GradientTable(free.names, free.rows, missing=free.missing, thresholds=Thresholds(**self._limits))
        return StepTables(table, before_clip, None)

    def _compare_ranks(self, table: GradientTable, with_layers: bool) -> None:
        """One small collective where it was asked for, in the same steps on every rank."""
        report = self.rank_report = self._check.compare(table) if self._check is not None and with_layers else None
        if report is not None and report.differing and not self._told_of_ranks:
            self._told_of_ranks = True
            warnings.warn(f"Step {self.steps}: {report}", GradientFlowWarning, stacklevel=6)

    def _write_owed(self, owed: tuple[int, GradientTable, Any] | None) -> None:
        if owed is not None:
            self._write_layers(owed[0], owed[1], {"update_ratio": owed[2]})

    def _write_all_owed(self) -> None:
        for steps in self._rank_steps.values():
            self._write_owed(steps.owed_here())

    def _write_layers(self, step: int, table: GradientTable, ratios: Mapping[str, Any]) -> None:
        if self._run is None:
            return
        known = [parameter["name"] for parameter in self._all]
        new = [name for name in table.names if name not in set(known)]
        if new:  # of other ranks, which do not tell their shapes
            self._all += [{"name": name, "shape": [table[name].count], "dtype": ""} for name in new]
            self._run.write({"kind": "parameters", "parameters": self._all[-len(new) :]})
        self._run.write(layers_record(step, table, known + new, ratios))

    def _record(self, told: Mapping[str, Any], optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
        assert self.table is not None
        total = self.table.total
        record: dict[str, Any] = {"kind": "step", "step": self.steps, "time": round(time.time() - self._start, 4)}
        record |= {name: getattr(total, name) for name in TOTALS}
        record |= {name: plain_value(value) for name, value in told.items() if name not in record}
        if self.clipped_table is not None:
            record["clipped_norm"] = self.clipped_table.total.norm
        if optimizer is not None:
            record["lr"] = [plain_value(group["lr"]) for group in optimizer.param_groups if "lr" in group]
            if self.name_optimizers or len(self._optimizers) > 1:
                record["optimizer"] = next(i for i, each in enumerate(self._optimizers) if each() is optimizer)
        if self._scaler is not None:
            record |= {"amp_scale": self._scale.scale, "skipped_steps": self.skipped_steps}
        if self._bad_ranks:
            record["nonfinite_ranks"] = [bad._asdict() for bad in self._bad_ranks]
        if self.rank_report is not None:
            record |= self.rank_report.to_record()
        if not total.finite:
            self._note_nonfinite(record, self.table)
        return record

    def _note_nonfinite(self, record: dict[str, Any], table: GradientTable) -> None:
        bad = [name for name, finite in zip(table.names, table.finite, strict=True) if not finite]
        record["finite_norm"] = table.total.finite_part.norm
        record["nonfinite_layers"] = bad[:20]
        if self.first_nonfinite is None:
            total = table.total
            self.first_nonfinite = NonFinite(self.steps, tuple(bad), total.nan_count, total.inf_count)

    def _update_ratios(self, table: GradientTable) -> dict[str, Any]:
        assert self._sample is not None
        (weights, before), self._sample = self._sample, None
        changes = measure(weight_changes([parameter for _, parameter in weights], before)).norm
        sizes = measure(before).norm
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = dict(zip((name for name, _ in weights), changes / sizes, strict=True))
        return {"update_ratio": np.array([ratios.get(name, math.nan) for name in table.names])}

    def _count_skipped(self) -> None:
        if self._scaler is None:
            return
        self.skipped_steps += self._scale.skipped_since(self._scaler)

    def _parameters_of(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
        inside = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not inside <= self._known.keys():
            self._learn_from(optimizer, {})  # a parameter group was added meanwhile
        return [(name, parameter) for name, parameter in self._live_parameters() if id(parameter) in inside]

    def _live_parameters(self) -> list[tuple[str, torch.Tensor]]:
        live = [(known.name, known.parameter()) for known in self._known.values()]
        return [(name, parameter) for name, parameter in live if parameter is not None]

    def _learn_from(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        new = []
        taken = {parameter["name"] for parameter in self._all}
        for name, p in optimizer_parameters(optimizer):
            known = self._known.get(id(p))
            if known is None or not known.is_(p):
                name = names.get(id(p), name)
                has_name = id(p) in names or not name[0].isdigit()  # else it is only a position
                unique = has_name and name not in taken
                new.append((name if unique else f"optimizer{len(self._optimizers) - 1}.{name}", p))
        if new:
            self._learn(new)
            if self._run is not None:
                self._run.write({"kind": "parameters", "parameters": [describe_parameter(*item) for item in new]})

    def _learn(self, parameters: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Know parameters by name without keeping them alive: the model may go before we do."""
        for name, parameter in parameters:
            self._known[id(parameter)] = KnownParameter(name, weakref.ref(parameter))
            self._all.append(describe_parameter(name, parameter))

    def _header(self) -> dict[str, Any]:
        groups = {parameter["name"]: self._roles.get(parameter["name"], parameter["name"]) for parameter in self._all}
        return {
            "version": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "settings": self._settings,
            "parameters": self._all,
            "groups": groups,
        }

    def _guarded(self, action: Callable[[], object], *, together: bool = False) -> None:
        """Whatever fails in here must not stop the training that is being watched.

        What ranks do `together` goes on after a failure on one of them, which the others do not know of.
        """
        if os.getpid() != self._pid or self._ended:  # a forked child must not write into its parent's run
            return
        if self._failed and not (together and self._rank_steps):
            return
        try:
            action()
        except Exception as problem:
            self._failed = True
            warnings.warn(
                f"Watching failed ({type(problem).__name__}: {problem}) and has stopped. Training goes on.",
                GradientFlowWarning,
                stacklevel=4,
            )


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"`{name}` must be a whole number of at least 1, got {value!r}.")
    return value
