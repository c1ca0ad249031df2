"""From hooks to numbers: what is seen of a model in the steps that are looked at."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradient_flow.capture.main_path import main_path
from gradient_flow.capture.module_calls import ModuleCalls, Passage, part_here, storage_of
from gradient_flow.capture.parameters import module_parameters
from gradient_flow.capture.sharding import is_sharded, local_part
from gradient_flow.diagnosis.network.record import DEFAULTS, AnalysisRecord
from gradient_flow.looks.layers import layer_records
from gradient_flow.looks.places import QUIET, Key, PlaceRecords, Seen
from gradient_flow.table import GradientTable, measure, samples
from gradient_flow.table.elements import Floats, some_elements
from gradient_flow.table.measure import reader_for_hooks
from gradient_flow.table.updates import WeightSample

_LEAST_SAMPLES = 16
_MOSTLY_ZERO = 0.5
_COLUMNS: Final = 8
_IDS: Final = 1024
"""Of a batch, to count the different ones."""
_PICTURES: Final = 32
_MOST_IN_PICTURE: Final = 1 << 14
"""Samples of the first batch that are kept whole, and numbers in one of them."""
_LEAST_SEQUENCE: Final = 8
"""Positions from which on it is asked how far back a gradient reaches."""
_ELEMENTS, _RUN = 512, 4
"""Elements of each gradient whose direction is compared with that of the step before, and neighbours among them."""
_FEW_ROWS: Final = 4
MOST_HELD: Final = 32 << 20
"""Bytes of sampled rows that a look holds until its end; what comes after them is measured without."""
_NOTHING: Final = nn.Module()


class Observer:
    """Collects what passes through a model in some of its steps; `record()` is everything as plain numbers.

    A step that is looked at has hooks on all modules. A *close* look also keeps a few rows of every tensor until its
    end, for ranks. With `most`, only that many looks are kept: the first and the latest. With `by_rows`, a few rows
    tell how large the values of a large tensor are; then an element that is not finite may be missed elsewhere in it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        most: int | None = None,
        begins: Callable[[nn.Module, Any, Any], bool] | None = None,
        ends: Callable[[Any], None] | None = None,
        fails: Callable[[Exception], None] | None = None,
        zero: Collection[str] = (),
        by_rows: bool = False,
    ) -> None:
        self._most, self._begins, self._ends, self._fails = most, begins, ends, fails
        self._some_rows = self._by_rows = by_rows
        """Whether a few rows tell how large the values of a large tensor are, always and in the present look."""
        self._zero = frozenset(zero)
        """Parameters known to have been zero when training began, long before the first look."""
        self._read = reader_for_hooks(sizes_only=True)
        self._called: set[str] = set()
        """Paths of all modules that were called in any look."""
        self._saved_hooks = False
        self._weights: GradientTable | None = None
        self._places = PlaceRecords()
        self.bind(model)
        self._chains: list[list[Key]] = []
        self._equal: set[str] = set()
        self._rank_one: set[str] = set()
        self._reached: set[str] = set()
        self._needed_grad: set[str] = set()
        self._tables: list[GradientTable] = []
        self._graded: set[str] = set()
        """Parameters that had a gradient in any step."""
        self._trained: set[int] | None = None
        """Parameters that an optimizer holds, by id."""
        self._idle: dict[str, torch.Tensor] = {}
        """Parameter → which of its units had a gradient of exactly zero in every look so far."""
        self._ratios: dict[str, list[float]] = {}
        self._last_gradient: dict[str, Floats] | None = None
        self._input_rows: torch.Tensor | None = None
        self._sample_rows: torch.Tensor | None = None
        self._pictures: torch.Tensor | None = None
        """Some of the input as it is, where it has an extent beside its channels."""
        self._before: WeightSample | None = None
        self._close = self._looking = False
        self._held = 0
        self.seconds = 0.0
        """Seconds that hooks have taken."""
        self._record = AnalysisRecord(steps=0, trained=optimizer is not None)
        if optimizer is not None:
            self.note_optimizer(optimizer)

    def bind(self, model: nn.Module) -> None:
        """Take up the model, until `release`."""
        self._model: nn.Module | None = model
        self._calls = ModuleCalls(model, self._on_forward, self._on_gradient, self._begins, self._ends, self._fails)
        self._weighted = {module: path for path, module in model.named_modules() if _is_layer(module)}
        self.parameters = module_parameters(model)

    def release(self) -> None:
        """Release the model: its user may drop it between two looks."""
        self._model, self._weighted, self.parameters = None, {}, []
        self._calls = ModuleCalls(_NOTHING, self._on_forward, self._on_gradient)

    @property
    def is_looking(self) -> bool:
        """Whether a look is on, with hooks on the model."""
        return self._looking

    @property
    def saw_anything(self) -> bool:
        """Whether a hook has fired in the present look."""
        return bool(self._calls.passages)

    @property
    def got_gradients(self) -> bool:
        """Whether a gradient has come back to anything that was seen in the present look."""
        return any(passage.backward is not None for passage in self._calls.passages)

    @property
    def is_elsewhere(self) -> bool:
        """Whether what was seen happened in another thread than this."""
        return self._calls.thread not in (0, get_ident())

    @property
    def reads_saved(self) -> bool:
        """Whether something was seen, and no tensor that was saved for backward went through hooks."""
        hooked = self._saved_hooks or self._calls.saved_tensor_hooks
        return bool(self._called or self._calls.called) and not hooked

    def take_seconds(self) -> float:
        """What hooks have taken since the last time."""
        taken, self.seconds = self.seconds, 0.0
        return taken

    # ---- one look -------------------------------------------------------------------------------------------------

    def begin(self, step: int, *, close: bool = True, whole: bool = False) -> None:
        """Put hooks on the model: the coming forward and backward pass are looked at, every element where `whole`."""
        self._by_rows = self._some_rows and not whole
        if self._weights is None:
            self._weights = measure({name: local_part(parameter) for name, parameter in self.parameters})
        while self._most is not None and len(self._record.watched) >= self._most:
            self._forget_second()
        self._looking, self._close, self._held = True, close, 0
        self._record.watched.append(step)
        try:
            self._calls.attach()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Take the hooks away and let go of the step's graph."""
        self._looking = self._close = False
        self._called |= self._calls.called
        self._saved_hooks |= self._calls.saved_tensor_hooks
        self._calls.detach()
        self._calls.release()

    def release_graph(self) -> None:
        """The backward pass is over: nothing of its graph is needed any more, which may hold a lot of memory."""
        self._calls.release()

    def restart(self) -> None:
        """Forget what was seen in the present look so far."""
        self._calls.restart()
        self._held = 0

    def give_up(self) -> None:
        """Cancel a look that saw nothing."""
        if self._looking:
            self._record.watched.pop()
            self.end()

    @contextmanager
    def looking(self, step: int, *, close: bool) -> Iterator[None]:
        """A look for the passes inside of the context."""
        self.begin(step, close=close)
        try:
            yield
        finally:
            self.end()

    def on_inputs(self, tensors: Sequence[torch.Tensor]) -> None:
        """The batch of a step, before the model is called."""
        if not self._looking:
            return
        self._calls.batch = {storage_of(tensor) for tensor in tensors} - {0}
        ids = next((tensor for tensor in tensors if tensor.dtype is torch.int64 and tensor.dim() > 0), None)
        known = part_here(ids) if ids is not None and self._record.input_kinds == 0 else None
        if known is not None:
            self._record.input_kinds = samples.distinct(known.reshape(-1)[:_IDS])
        readable = [part_here(tensor) for tensor in tensors if tensor.is_floating_point() and tensor.dim() > 0]
        floating = [tensor for tensor in readable if tensor is not None]
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
            if first.dim() > 2 and 0 < record.input_size <= _MOST_IN_PICTURE:
                self._pictures = first[:_PICTURES].to(torch.float32, copy=True)
            self._sample_rows = samples.sample(first.flatten(1), units_second=False) if first.dim() > 2 else rows
            if first.dim() == 2 and first.shape[1] >= _COLUMNS and len(floating) == 1:
                record.input_on_a_line = samples.are_on_a_line(rows)

    def on_loss(self, loss: torch.Tensor) -> None:
        """The loss of a step, before backward."""
        self._record.loss_needs_grad &= loss.requires_grad
        if not self._looking:
            return
        if loss.grad_fn is not None and (self._close or not self._chains):
            self._survey(loss.grad_fn)
        self._needed_grad.update(p.path for p in self._calls.passages if p.node is not None)

    def on_backward(self, table: GradientTable, gradients: Mapping[str, torch.Tensor | None], scale: float = 1) -> None:
        """Gradients are there, and measured; `scale` is that of the loss, which `table` is free of."""
        first = not self._tables
        self._tables.append(table)
        self._note_idle(table, gradients)
        if first:
            self._compare_units()
        passages = self._calls.passages
        self._places.keep(passages, len(self._record.watched) - 1, self._weighted, scale)
        if self._close:
            self._places.note_states(passages)
            self._places.note_kinds(passages)
            by_key = {each.key: each for each in passages}
            self._places.rank(by_key, self._chains, self._record, self._pictures)
            self._pictures = None  # what they tell is told once
            self._places.note_lines(by_key, self._chains, self._input_rows)
            self._places.note_alike(by_key, self._chains, first=first)

    def _forget_second(self) -> None:
        """The first look tells how it began; of the others the last ones count."""
        del self._record.watched[1], self._tables[1]
        self._places.forget(1)
        for ratios in self._ratios.values():
            if len(ratios) > len(self._tables):
                del ratios[1]

    # ---- other steps ----------------------------------------------------------------------------------------------

    def note_step(self, index: int, loss: float, norm: float) -> None:
        """A step of an analysis, looked at or not: its loss, and the norm of its gradients."""
        self._record.steps = index + 1
        self._record.losses.append(loss)
        self._record.norms.append(norm)

    def note_steps(self, steps: int) -> None:
        """How many steps the training has taken; their losses and norms are known elsewhere."""
        self._record.steps = steps

    def note_graded(self, names: Iterable[str]) -> None:
        """Parameters that have a gradient in this step."""
        self._graded.update(names)

    def note_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Whose step it is."""
        self._record.trained = True
        self._record.optimizer = type(optimizer).__name__
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        # The largest of all looks is what its user set, whatever a schedule has made of it.
        known = self._record.learning_rate
        self._record.learning_rate = max([*rates, *([] if known is None else [known])], default=None)
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._trained = held | (self._trained or set())

    def note_direction(self, gradients: Mapping[str, torch.Tensor | None]) -> None:
        """The gradients of a step, to compare their direction with that of the step before."""
        dense = {name: g for name, g in gradients.items() if g is not None and g.layout is torch.strided}
        now = dict(zip(dense, some_elements(list(dense.values()), _ELEMENTS, _RUN).parts(), strict=True))
        before = self._last_gradient or {}
        both = [name for name in now if name in before]  # another step may have used other parts
        if both:
            left, right = [before[name] for name in both], [now[name] for name in both]
            self._record.cosines.append(samples.cosine(left, right))
            if self._most is not None:
                del self._record.cosines[: -self._most]
        self._last_gradient = now

    def forget_direction(self) -> None:
        """What comes is not the step after the last one."""
        self._last_gradient = None

    def before_update(self) -> None:
        """Just before the optimizer's step."""
        trained = [(name, p) for name, p in self.parameters if p.dim() > 1 and p.grad is not None]
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
        started = time.perf_counter()
        module = passage.module
        asked = passage.role == "output" and module in self._weighted
        keep = self._close and (_gives_tanh(module) or self._places.wants_values(passage.key))
        few = self._on_host(passage, tensor) if asked or keep else None
        rows: torch.Tensor | None = None
        silent: Any = None
        any_silent = True
        if few is None:
            rows = self._rows_of(passage, tensor) if asked or keep else None
            silent = samples.never_positive(rows) if asked and rows is not None else None
        elif asked:
            silent = samples.never_positive(few)
            any_silent = bool(silent.any())
            # Whether the others vary is asked where many are silent.
            keep = keep or (self._close and any_silent and (samples.share_in_all([silent]) or 0.0) >= QUIET)
        if few is not None and keep:
            rows = torch.from_numpy(few.copy())
        kept = self._kept(rows) if self._close else None
        seen = Seen(self._size_of(passage, tensor), kept, silent, any_unit=any_silent)
        self.seconds += time.perf_counter() - started
        return seen

    def _size_of(self, passage: Passage, tensor: torch.Tensor) -> Any:
        """A row of sums. Values are much alike from row to row: of many, some tell how large they are.

        Not so gradients, which may come from the last position alone.
        """
        if self._by_rows and tensor.numel() > samples.LARGE and tensor.is_cpu and _is_readable(tensor):
            found = samples.size_by_rows(tensor, samples.units_come_second(passage.module, passage.shape))
            if found is not None:
                return found
        return self._read([tensor])

    def _on_gradient(self, passage: Passage, gradient: torch.Tensor) -> Seen:
        started = time.perf_counter()
        forward = passage.forward
        # A unit that had a positive value is alive, whatever its gradient.
        asked = forward.any_unit and forward.units is not None
        keep = self._close and self._places.wants_gradients(passage.key)
        size = self._read([gradient])  # first: what comes then is in the cache
        active = self._active(passage, gradient) if asked else None
        rows = self._rows_of(passage, gradient) if keep or (asked and active is None) else None
        if rows is not None and asked and active is None:
            active = samples.any_nonzero(rows)
        reach = None
        if self._close and passage.feeds_from_data and gradient.dim() == 3 and gradient.shape[1] >= _LEAST_SEQUENCE:
            in_order = _is_readable(gradient) and not samples.units_come_second(passage.module, passage.shape)
            reach = samples.reach(gradient) if in_order else None
        seen = Seen(size, self._kept(rows) if keep else None, active, reach=reach)
        self.seconds += time.perf_counter() - started
        return seen

    def _active(self, passage: Passage, gradient: torch.Tensor) -> NDArray[np.bool_] | None:
        """Units with a gradient: in a few rows, if those settle it for every unit in question, as they do as a rule."""
        silent = passage.forward.units
        if isinstance(silent, torch.Tensor) or not gradient.is_cpu or not _is_readable(gradient):
            return None
        second = samples.units_come_second(passage.module, passage.shape)
        active: NDArray[np.bool_] = samples.any_nonzero(samples.rows_on_host(gradient, second, _FEW_ROWS))
        if active.shape != silent.shape or np.logical_or.reduce(silent > active):
            active = samples.any_nonzero(samples.rows_on_host(gradient, second))
        return active

    def _on_host(self, passage: Passage, tensor: torch.Tensor, most: int = samples.ROWS) -> NDArray[np.float32] | None:
        """The rows of a tensor in host memory."""
        if not _is_readable(tensor) or not tensor.is_cpu:
            return None
        return samples.rows_on_host(tensor, samples.units_come_second(passage.module, passage.shape), most)

    def _kept(self, rows: torch.Tensor | None) -> torch.Tensor | None:
        if rows is None or self._held + rows.nbytes > MOST_HELD:
            return None
        self._held += rows.nbytes
        return rows

    def _rows_of(self, passage: Passage, tensor: torch.Tensor) -> torch.Tensor | None:
        if not _is_readable(tensor):
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
            self._record.alternatives = found.alternatives
        self._places.note_bends(found.bends, calls.passages, self._weighted)

    def _note_idle(self, table: GradientTable, gradients: Mapping[str, torch.Tensor | None]) -> None:
        """Units without a gradient, for tensors whose gradient is mostly zero; no rule asks about the others."""
        mostly = {name for name, share in zip(table.names, table.zero_fraction, strict=True) if share > _MOSTLY_ZERO}
        for name in table.names:
            gradient = gradients.get(name)  # pipeline stages have a table of all, and gradients of their own
            if gradient is None or gradient.layout is not torch.strided or gradient.dim() == 0:
                continue
            if name in mostly:
                now = samples.zero_units(local_part(gradient))
                self._idle[name] = self._idle[name] & now if name in self._idle else now
            elif name in self._idle:
                self._idle[name] = torch.zeros_like(self._idle[name])

    def _compare_units(self) -> None:
        for name, parameter in self.parameters:
            gradient = parameter.grad
            if gradient is None or parameter.dim() < 2 or gradient.layout is not torch.strided:
                continue
            if is_sharded(parameter) or is_sharded(gradient):
                continue  # a rank has some of the rows or columns, and asking for the others would make it wait
            if samples.equal_rows(parameter) and samples.equal_rows(gradient):
                self._equal.add(name)
            elif samples.is_rank_one(parameter):
                self._rank_one.add(name)

    def record(self, thresholds: Mapping[str, float] = DEFAULTS, passed: Sequence[str] = ()) -> AnalysisRecord:
        """Everything that was seen, with the thresholds to judge it by and which of them the user passed."""
        record = self._record
        record.thresholds, record.passed = dict(thresholds), tuple(passed)
        self._places.write(record, self._chains)
        if self._places.ranked and self._input_rows is not None and record.input_rank is None:
            record.input_rank = samples.effective_rank(self._input_rows, centred=True)
        enough = self._sample_rows is not None and len(self._sample_rows) >= _LEAST_SAMPLES
        if self._places.ranked and self._sample_rows is not None and enough and record.sample_rank is None:
            record.sample_rank = samples.effective_rank(self._sample_rows, centred=True)
        assert self._weights is not None, "nothing was looked at"
        assert self._model is not None, "the model was released"
        record.layers = layer_records(
            self._model,
            record.places,
            called=self._called | self._calls.called,
            reached=self._reached,
            needed_grad=self._needed_grad,
            weights=self._weights,
            gradients=self._tables,
            update_ratios=self._ratios,
            equal_units=self._equal,
            rank_one=self._rank_one,
            trained=self._trained,
            had_gradient=self._graded,
            zero=self._zero,
            idle_units={name: samples.average(idle.float()) for name, idle in self._idle.items()},
        )
        return record


def _is_readable(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.is_floating_point() and tensor.numel() > 0


def _gives_tanh(module: nn.Module) -> bool:
    return vars(module).get("nonlinearity") == "tanh"  # to ask a module for what it has not takes long


def _is_layer(module: nn.Module) -> bool:
    """Whether a module works by weights of its own; a model that keeps a temperature beside its layers does not."""
    inside = any(True for child in module.children() for _ in child.parameters())
    return not inside and any(True for _ in module.parameters(recurse=False))
