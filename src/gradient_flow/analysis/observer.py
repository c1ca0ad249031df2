"""From hooks to numbers: what an analysis sees of a model, step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gradient_flow.analysis.layers import layer_records
from gradient_flow.analysis.places import Key, PlaceRecords, Seen
from gradient_flow.capture.main_path import main_path
from gradient_flow.capture.module_calls import ModuleCalls, Passage, storage_of
from gradient_flow.capture.parameters import module_parameters
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.table import GradientTable, measure, samples
from gradient_flow.table.measure import reader_for_hooks
from gradient_flow.table.updates import WeightSample, sample_weights

_LEAST_SAMPLES = 16
_MOSTLY_ZERO = 0.5
_LEAST_WATCHED, _ONE_IN = 3, 7
"""Steps with hooks: so many, and one in so many of a longer analysis."""


class Observer:
    """Collects what passes through a model; `record()` is everything as plain numbers.

    A *watched* step has hooks on all modules; a *close* one, of which there are three, also keeps a few rows of every
    tensor until its end, for ranks. Of all others only the norm is estimated.
    """

    def __init__(self, model: nn.Module, steps: int, optimizer: torch.optim.Optimizer | None) -> None:
        self._model, self._optimizer = model, optimizer
        self._read = reader_for_hooks()
        self._calls = ModuleCalls(model, self._on_forward, self._on_gradient)
        self._weighted = {module: path for path, module in model.named_modules() if _is_layer(module)}
        self._parameters = module_parameters(model)
        self._weights = measure({name: parameter.detach() for name, parameter in self._parameters})
        self._places = PlaceRecords(self._weighted)
        self._chains: list[list[Key]] = []
        self._equal: set[str] = set()
        self._rank_one: set[str] = set()
        self._reached: set[str] = set()
        self._needed_grad: set[str] = set()
        self._tables: list[Any] = []
        self._without = {name for name, _ in self._parameters}
        """Parameters that had no gradient in any step without hooks."""
        self._idle: dict[str, torch.Tensor] = {}
        """Parameter → which of its units had a gradient of exactly zero in every watched step so far."""
        self._ratios: dict[str, list[float]] = {}
        self._last_gradient: dict[str, torch.Tensor] | None = None
        self._input_rows: torch.Tensor | None = None
        self._sample_rows: torch.Tensor | None = None
        self._before: WeightSample | None = None
        self._close = self._watched = False
        self._close_steps = {0, steps // 2, steps - 1}
        watched = max(_LEAST_WATCHED, steps // _ONE_IN)
        self._schedule = {round(k * (steps - 1) / (watched - 1)) for k in range(watched)} | self._close_steps
        self._record = AnalysisRecord(steps=0, trained=optimizer is not None)
        if optimizer is not None:
            self._record.optimizer = type(optimizer).__name__
            rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
            self._record.learning_rate = max(rates, default=None)

    # ---- one step -------------------------------------------------------------------------------------------------

    def step(self, index: int) -> Any:
        """A context for the forward and backward pass of a step; hooks are in place if the step is watched."""
        self._watched, self._close = index in self._schedule, index in self._close_steps
        if not self._watched:
            return _Nothing()
        self._record.watched.append(index)
        return self._calls.watching()

    def watch_also(self, index: int) -> None:
        """Look at one more step closely."""
        self._schedule.add(index)

    def on_inputs(self, tensors: Sequence[torch.Tensor]) -> None:
        """The batch of a step, before the model is called."""
        if not self._watched:
            return
        self._calls.batch = {storage_of(tensor) for tensor in tensors} - {0}
        floating = [tensor.detach() for tensor in tensors if tensor.is_floating_point() and tensor.dim() > 0]
        if not floating:
            return
        record, first = self._record, floating[0]
        total = measure(floating).total
        record.bad_inputs += total.nan_count + total.inf_count
        if record.input_size == 0:
            rows = samples.sample(first, units_second=first.dim() > 3)
            record.input_size = math.prod(first.shape[1:])
            record.input_units = first.shape[1] if first.dim() > 3 else first.shape[-1] if first.dim() > 1 else 1
            record.input_rms, record.input_spread = samples.scale_and_spread(rows)
            self._input_rows = rows if first.dim() == 2 else None
            self._sample_rows = samples.sample(first.flatten(1), units_second=False) if first.dim() > 2 else rows

    def on_loss(self, loss: torch.Tensor) -> None:
        """The loss of a step, before backward."""
        self._record.losses.append(float(loss.detach()))
        self._record.loss_needs_grad &= loss.requires_grad
        if self._watched and loss.grad_fn is not None and (self._close or not self._chains):
            self._survey(loss.grad_fn)
        if self._watched:
            self._needed_grad.update(p.path for p in self._calls.passages if p.node is not None)

    def on_backward(self, index: int) -> bool:
        """Gradients are there: measure them. Returns whether all are finite."""
        self._record.steps = index + 1
        gradients = {name: parameter.grad for name, parameter in self._parameters}
        if self._watched:
            self._tables.append(measure(gradients))
            norm = self._tables[-1].total.norm
            self._note_idle(self._tables[-1], gradients)
        else:
            norm = samples.estimated_norm([g for g in gradients.values() if g is not None])
            self._without = {name for name in self._without if gradients[name] is None}
        self._record.norms.append(norm)
        if index == 0:
            self._compare_units()
        if self._optimizer is not None:
            dense = {name: g for name, g in gradients.items() if g is not None and g.layout is torch.strided}
            now = dict(zip(dense, sample_weights(list(dense.values())), strict=True))
            before = self._last_gradient or {}
            both = [name for name in now if name in before]  # another step may have used other parts
            if both:
                left, right = [before[name] for name in both], [now[name] for name in both]
                self._record.cosines.append(samples.cosine(left, right))
            self._last_gradient = now
        if self._watched:
            passages = self._calls.passages
            self._places.keep(passages, len(self._record.watched) - 1)
        if self._close:
            self._places.note_states(passages)
            self._places.rank({each.key: each for each in passages}, self._chains, self._record.input_units)
        return math.isfinite(norm)

    def clear_gradients(self) -> None:
        """No parameter has a gradient afterwards."""
        for _, parameter in self._parameters:
            parameter.grad = None

    def before_update(self) -> None:
        """Just before the optimizer's step."""
        if self._watched:
            trained = [(name, p) for name, p in self._parameters if p.dim() > 1 and p.grad is not None]
            self._before = WeightSample(trained) if trained else None

    def after_update(self) -> None:
        """Just after it."""
        if self._before is None:
            return
        before, self._before = self._before, None
        for name, ratio in before.ratios().items():
            self._ratios.setdefault(name, []).append(ratio)

    # ---- inside hooks ---------------------------------------------------------------------------------------------

    def _on_forward(self, passage: Passage, tensor: torch.Tensor) -> Seen:
        rows = self._rows_of(passage, tensor)
        silent = samples.highest(rows) <= 0 if rows is not None and passage.module in self._weighted else None
        return Seen(self._read([tensor]), rows if self._close else None, silent)

    def _on_gradient(self, passage: Passage, gradient: torch.Tensor) -> Seen:
        rows = self._rows_of(passage, gradient)
        active = samples.any_nonzero(rows) if rows is not None and passage.module in self._weighted else None
        return Seen(self._read([gradient]), rows if self._close else None, active)

    def _rows_of(self, passage: Passage, tensor: torch.Tensor) -> torch.Tensor | None:
        wanted = self._close or passage.module in self._weighted
        if not wanted or tensor.layout is not torch.strided or not tensor.is_floating_point() or not tensor.numel():
            return None
        return samples.sample(tensor, samples.units_come_second(passage.module, passage.shape))

    # ---- after a step ---------------------------------------------------------------------------------------------

    def _survey(self, root: Any) -> None:
        calls = self._calls
        found = main_path(root, calls.passages, self._weighted, read_saved=not calls.saved_tensor_hooks)
        self._reached |= found.reached
        if not self._chains:
            self._chains = [[passage.key for passage in chain] for chain in found.chains]
            self._record.averaging, self._record.classes = found.averaging, found.classes
        self._places.note_bends(found.bends, calls.passages)

    def _note_idle(self, table: GradientTable, gradients: Mapping[str, torch.Tensor | None]) -> None:
        """Which units got nothing, of tensors most of whose gradient is zero: of others nobody will ask."""
        mostly = {name for name, share in zip(table.names, table.zero_fraction, strict=True) if share > _MOSTLY_ZERO}
        for name in table.names:
            gradient = gradients[name]
            if gradient is None or gradient.layout is not torch.strided or gradient.dim() == 0:
                continue
            if name in mostly:
                now = samples.zero_units(gradient)
                self._idle[name] = self._idle[name] & now if name in self._idle else now
            elif name in self._idle:
                self._idle[name] = torch.zeros_like(self._idle[name])

    def _compare_units(self) -> None:
        for name, parameter in self._parameters:
            gradient = parameter.grad
            if gradient is None or parameter.dim() < 2 or gradient.layout is not torch.strided:
                continue
            if samples.equal_rows(parameter) and samples.equal_rows(gradient):
                self._equal.add(name)
            elif samples.is_rank_one(parameter):
                self._rank_one.add(name)

    def record(self, thresholds: Mapping[str, float], passed: Sequence[str] = ()) -> AnalysisRecord:
        """Everything that was seen, with the thresholds to judge it by and which of them the user passed."""
        record = self._record
        record.thresholds, record.passed = dict(thresholds), tuple(passed)
        self._places.write(record, self._chains)
        if self._places.ranked and self._input_rows is not None:
            record.input_rank = samples.effective_rank(self._input_rows, centred=True)
        if self._places.ranked and self._sample_rows is not None and len(self._sample_rows) >= _LEAST_SAMPLES:
            record.sample_rank = samples.effective_rank(self._sample_rows, centred=True)
        record.layers = layer_records(
            self._model,
            record.places,
            called=self._calls.called,
            reached=self._reached,
            needed_grad=self._needed_grad,
            weights=self._weights,
            gradients=self._tables,
            update_ratios=self._ratios,
            equal_units=self._equal,
            rank_one=self._rank_one,
            optimizer=self._optimizer,
            had_gradient={name for name, _ in self._parameters} - self._without,
            idle_units={name: samples.average(idle.float()) for name, idle in self._idle.items()},
        )
        return record


def _is_layer(module: nn.Module) -> bool:
    """Whether a module works by weights of its own; a model that keeps a temperature beside its layers does not."""
    inside = any(True for child in module.children() for _ in child.parameters())
    return not inside and any(True for _ in module.parameters(recurse=False))


class _Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
