"""Looks at the loop around a model: what is trained, in which order, on which data.

A look lasts from the end of an optimizer's step to the end of its next one. While it does, torch's loss functions and
the model's own call are listened to; some elements of weights and gradients are compared at each station. It costs as
much as reading those elements a few times, and nothing between looks.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradient_flow.capture import loss_functions, losses
from gradient_flow.capture.module_calls import aside, tensors_in
from gradient_flow.capture.module_stack import ModuleHook
from gradient_flow.diagnosis.loop.context import ENOUGH
from gradient_flow.diagnosis.loop.record import MOST_LOOPS, MOST_NAMES, LoopFacts, LoopLook, LossCall
from gradient_flow.looks.loop_data import column_spread, fingerprint, is_slice, loss_call, made_by, padding
from gradient_flow.looks.loop_graph import linear_layers, note_graph, parameters_under
from gradient_flow.looks.loop_parameters import adapted, adapters, as_drawn, hidden_weights
from gradient_flow.looks.schedule import FIRST, Schedule
from gradient_flow.table import GradientTable
from gradient_flow.table.elements import some_elements

_SAMPLE: Final = 64
"""Elements of each tensor that are compared."""
_MOST_TENSORS: Final = 400
_FREE: Final = 10
"""Looks that are taken whatever they cost: about a millisecond for a small model."""
_AGAIN: Final = (1, 3, 5, 7)
"""After these looks the next step is looked at too: whether batches repeat is seen in neighbours."""
_MOST_CALLS: Final = 8
_MOST_STEPS: Final = 16
"""Steps of other optimizers after which a look is given up."""
_LEAST_GRADED: Final = 4
_MOST_CHILDREN: Final = 32
_MOST_STRAYS: Final = 3
"""With more of them, the loss is computed by another network, which may be meant to stay as it is."""
_USUALLY: Final = 0.6
_RARELY: Final = 0.02
"""Share of elements with a gradient that a step changes, below which updates are lost."""
_SAME_WAY: Final = 0.99
"""Cosine of two gradients."""
_FELT: Final = 1e-3
"""Of the usual gradient, element by element: below it is rounding."""
_SWITCHING: Final = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.dropout._DropoutNd,
)
Values = dict[str, NDArray[Any]]
_MOST_LOADS: Final = 1000
"""Weights that are loaded are compared as often as this."""


class LoopWatch:
    """Looks at a loop in some of its steps; `facts` is everything that was seen."""

    def __init__(
        self,
        model: Callable[[], nn.Module | None],
        schedule: Schedule,
        budget: float,
        compiled: Callable[[], bool] = lambda: False,
        reads_saved: Callable[[], bool] = lambda: False,
    ) -> None:
        self._held, self._schedule, self._budget = model, schedule, budget
        self._compiled, self._may_read_saved = compiled, reads_saved
        self.facts = LoopFacts()
        self.reason = ""
        """Why there are no looks any more, where there are none."""
        self.failed = False
        """Whether that is a failure of ours, which the user is warned about."""
        self.seconds = 0.0
        self._started = time.perf_counter()
        self._last_planned, self._next = 0, -1
        self._restore: list[Callable[[], None]] = []
        self._first: dict[str, tuple[weakref.ref[torch.Tensor], NDArray[Any]]] = {}
        """Each tensor and its sampled elements, when it was seen first."""
        self._strays: dict[int, tuple[weakref.ref[torch.Tensor], NDArray[Any]]] = {}
        """The same of parameters next to the loss that are neither the model's nor an optimizer's."""
        self._groups: dict[int, int] = {}
        """Optimizer → groups that it had at first."""
        self._moved: set[str] = set()
        self._graded: dict[str, int] = {}
        """Held tensor → looks in which its gradient was not zero."""
        self._felt: dict[str, int] = {}
        """Held tensor → looks in which its gradient was of a size with that of others."""
        self._present: dict[str, int] = {}
        """Held tensor → looks in which it had a gradient."""
        self._asked: dict[str, int] = {}
        """Held tensor → looks in which it was asked."""
        self._changed: dict[str, list[int]] = {}
        """Tensor → elements with a gradient that a step changed, and that it did not."""
        self._decays: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        """Tensor → looks in which its gradient was not cleared."""
        self._unseen: dict[str, int] = {}
        """Part of the model → looks in which it ran under `no_grad` alone."""
        self._eval: dict[str, int] = {}
        """Module in evaluation mode → looks in a row."""
        self._eval_alone: list[str] = []
        """Those of them that are in a module in training mode."""
        self._unheld: set[str] = set()
        """Given a gradient, and in no optimizer."""
        self._all_frozen: dict[int, list[str]] = {}
        """Optimizer → its parameters, where all of them are frozen while it steps."""
        self._drawn: tuple[frozenset[str], list[str]] = (frozenset(), [])
        """Frozen tensors of optimizers, and those of them that nobody has trained."""
        self._layers_before: tuple[list[str], list[weakref.ref[torch.Tensor]]] = ([], [])
        """Shapes of parameters in the graph of the look before that are not the model's, and these while they live."""
        self._anew = 0
        """Looks in which these were others than in the look before."""
        self._untrained: tuple[frozenset[str], list[str]] = (frozenset(), [])
        """Tensors that are frozen or in no optimizer, and those of them that nobody has trained."""
        self._idle_adapters: list[tuple[str, str]] = []
        """Pairs of factors that are both frozen, where no pair is trained."""
        self._batch: list[weakref.ref[torch.Tensor]] = []
        """The tensors of the last batch that was seen, as long as they live."""
        self._look: LoopLook | None = None
        self._last_step: Values | None = None
        """Sampled weights before the last step that was looked at, and which step that was."""
        self._last_looked = -1
        self._loaded: tuple[bytes, int] | None = None
        """Some of the weights that were loaded last, and how often one of them had been written to by then."""
        self._loads = 0
        self._unhook = self._listen_to_loads()

    # ---- weights that are loaded ----------------------------------------------------------------------------------

    def _listen_to_loads(self) -> Callable[[], None]:
        """A hook that costs nothing between one `load_state_dict` and the next: no look is due at just those steps."""
        model = self._held()
        if model is None:
            return lambda: None
        register: Callable[..., Any] = model.register_load_state_dict_post_hook
        remove: Callable[[], None] = register(ModuleHook(model, self._weights_loaded, takes=2)).remove
        return remove

    def _weights_loaded(self, module: nn.Module, _keys: Any) -> None:
        """Count what is loaded again, after steps that moved it."""
        self._loads += 1
        if self._loads > _MOST_LOADS or self.reason:
            return
        with self._guarded():
            named = _some([(name, p) for name, p in module.named_parameters() if p.layout is torch.strided])
            if named:
                given = b"".join(values.tobytes() for values in _values(named).values())
                writes = named[0][1]._version
                # A load writes once; an average that is put in for a test and taken out again comes without a step.
                if self._loaded is not None and self._loaded[0] == given and writes - self._loaded[1] > 1:
                    self.facts.set_back += 1
                self._loaded = given, writes

    # ---- between steps --------------------------------------------------------------------------------------------

    @property
    def _model(self) -> nn.Module:
        """The model while its user holds it."""
        return self._held() or nn.Module()

    @property
    def is_looking(self) -> bool:
        """Whether a look is on."""
        return self._look is not None

    def plan(self, step: int, optimizer: torch.optim.Optimizer | None, optimizers: Callable[[], Sized]) -> None:
        """The step before `step` is over: begin a look if one is due."""
        if self._look is not None:
            if self._owner() is optimizer or self._others > _MOST_STEPS:
                with self._guarded():
                    self._end()  # the step never reported its end
            else:
                self._others += 1
                return
        due = self._schedule.is_due(self._last_planned, step) or step == self._next
        self._last_planned = step
        if not due or optimizer is None or step < FIRST or self.reason or not self._may():
            return
        with self._guarded():
            if self._compiled():
                self.reason = "there is compiled code."
            else:
                self.facts.optimizers = len(optimizers())
                self._begin(step, optimizer)

    def _may(self) -> bool:
        taken = self.facts.taken
        if taken < _FREE:
            return True
        return self.seconds * (taken + 1) / taken <= self._budget * (time.perf_counter() - self._started)

    def _begin(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        self._look = LoopLook(step=step)
        self._thread = get_ident()
        self._owner: Callable[[], Any] = weakref.ref(optimizer)
        self._others = self._depth = 0
        self._uncleared: set[str] | None = None
        self._outputs: set[Any] = set()
        self._inner: list[tuple[LossCall, Any, Any]] = []
        self._brought: set[str] = set()
        self._called: dict[int, set[bool]] = {}
        """Module → whether gradients were on when it was called."""
        self._last_pass: Values = {}
        """Sampled gradients after the last backward pass."""
        self._attacked = False
        """Whether the gradient of an input is asked for, as adversarial training does."""
        self._near: list[torch.Tensor] = []
        self._named = _some([(name, p) for name, p in self._model.named_parameters() if p.layout is torch.strided])
        self._after = _values(self._named)
        self._stale = _nonzero(self._named)
        self._step_before = self._last_step if self._last_looked == step - 1 else None
        self._restore.append(losses.listen(self._backward_begins, self._unclear_backward))
        self._restore.append(loss_functions.listen(self._loss_called))
        # The model may be called by one of its parts, as a LightningModule calls the network that it keeps.
        for module in [self._model, *list(self._model.children())[:_MOST_CHILDREN]]:
            if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
                continue
            self._restore.append(
                module.register_forward_pre_hook(ModuleHook(module, self._call_begins), with_kwargs=True).remove
            )
            self._restore.append(
                module.register_forward_hook(ModuleHook(module, self._call_ended), always_call=True).remove
            )

    # ---- inside a step --------------------------------------------------------------------------------------------

    def _call_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._depth += 1
        self._called.setdefault(id(module), set()).add(torch.is_grad_enabled())
        if self._depth > 1 or self._look is None or not torch.is_grad_enabled():
            return
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return
        with self._guarded():
            look = self._look
            first = "F" not in look.order
            self._note("F")
            tensors = list(tensors_in((args, kwargs)))
            self._attacked |= any(tensor.requires_grad and tensor.is_leaf for tensor in tensors)
            if not first:
                return
            self._compare_with_step_before()
            look.evaluating = not (self._model.training or module.training)
            resting = [
                name
                for name, part in self._model.named_modules()
                if _switches(part)
                and not part.training
                and (look.evaluating or any(p.requires_grad for p in part.parameters(recurse=False)))
            ]
            self._eval = {name: self._eval.get(name, 0) + 1 for name in resting}
            parents = {name: self._model.get_submodule(name.rpartition(".")[0]) for name in resting if name}
            self._eval_alone = [name for name, parent in parents.items() if parent.training]
            look.batch, look.samples = fingerprint(tensors)
            same = bool(tensors) and [id(t) for t in tensors] == [id(each()) for each in self._batch]
            look.kept_batch = same and not any(map(is_slice, tensors))
            self._batch = [weakref.ref(tensor) for tensor in tensors]
            look.pad, look.pad_share = padding(tensors)
            look.columns = column_spread(tensors)

    def _call_ended(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self._look is not None and torch.is_grad_enabled():
            with self._guarded():
                self._outputs |= {tensor.grad_fn for tensor in tensors_in(output) if tensor.grad_fn is not None}
                for call, predicted, result in self._inner:
                    call.of_output = result in self._outputs or made_by(predicted, self._outputs)
                self._inner = []

    def _loss_called(self, function: str, predicted: Any, target: Any, settings: dict[str, Any], result: Any) -> None:
        if self._look is None or len(self._look.calls) >= _MOST_CALLS or not predicted.requires_grad:
            return
        with self._guarded():
            call = loss_call(function, predicted, target, settings, result, self._outputs)
            self._look.calls.append(call)
            if self._depth:  # a model that computes its own loss: what it returns is known when its call has ended
                self._inner.append((call, predicted.grad_fn, getattr(result, "grad_fn", None)))

    def _unclear_backward(self, loss: torch.Tensor | None) -> Callable[[], None]:
        return self._backward_begins(loss)

    def _backward_begins(self, loss: torch.Tensor | None) -> Callable[[], None]:
        if get_ident() != self._thread and (loss is None or losses.reached(loss, self._is_ours) is None):
            return losses.nothing  # another model's: to read our gradients while our own thread frees them would crash
        with self._guarded():
            look = self._look
            if look is not None:
                self._note("B")
                look.backwards += 1
                now = _nonzero(self._named)
                if look.backwards > 1 and "S" not in look.order and now.isdisjoint(_felt(self._last_pass)):
                    look.lost += bool(_felt(self._last_pass))
                kept = now & self._stale
                self._uncleared = kept if self._uncleared is None else self._uncleared & kept
                if look.backwards == 1:
                    if "F" not in look.order:
                        self._compare_with_step_before()
                    value = None if loss is None else losses.value_of(loss)
                    look.loss = None if value is None else float(value)
                    if loss is not None and loss.grad_fn is not None:
                        self._near = note_graph(look, loss.grad_fn, self._outputs, read_saved=self._may_read_saved())
                        look.linear_layers = linear_layers(loss.grad_fn)
                        if self.facts.taken < ENOUGH:
                            self._note_anew(parameters_under(loss.grad_fn))
        return self._backward_ended

    def _note_anew(self, used: Sequence[torch.Tensor]) -> None:
        """Layers in the graph that the model does not have, and whose like was there before, as other tensors.

        A copy of a model, as inner loops of meta-learning make it, is used without the model's own parameters.
        """
        ours = {id(p) for p in self._model.parameters()}
        others = [p for p in used if id(p) not in ours]
        if not _is_layer(others) or len(others) == len(used):
            others = []
        shapes = [str(tuple(p.shape)) for p in others]
        same_like = bool(shapes) and shapes == self._layers_before[0]
        if same_like and not any(each() is p for each in self._layers_before[1] for p in others):
            self._anew += 1
        self._layers_before = shapes, [weakref.ref(p) for p in others]

    def _is_ours(self, parameter: torch.Tensor) -> bool:
        return any(parameter is ours for ours in self._model.parameters())

    def _backward_ended(self) -> None:
        with self._guarded():
            if self._look is not None:
                self._last_pass = _values(_gradients(self._named))
                self._brought |= _felt(self._last_pass)

    def _note(self, event: str) -> None:
        assert self._look is not None
        if not self._look.order.endswith(event):
            self._look.order += event

    def _compare_with_step_before(self) -> None:
        """Whether the weights were changed since the last step, and whether that reverts the step."""
        assert self._look is not None
        before = self._step_before
        if before is None:
            return
        now = _values(self._named)
        both = [name for name in now if name in self._after and name in before]
        with np.errstate(invalid="ignore", over="ignore"):  # weights may be NaN or Inf: that is for others to report
            step = [self._after[name] - before[name] for name in both]
            since = [now[name] - self._after[name] for name in both]
            length = sum(float(np.vdot(s, s)) for s in step)
        if length > 0 and math.isfinite(length):
            along = sum(float(np.vdot(s, o)) for s, o in zip(step, since, strict=True))
            # What is left of the change besides that: a new weight altogether is no step taken back.
            self._look.undone = -along / length

    # ---- at the step ----------------------------------------------------------------------------------------------

    def before_update(
        self, optimizer: torch.optim.Optimizer | None, table: GradientTable, held: Mapping[int, str]
    ) -> None:
        """The gradients of a step are measured, and the weights have not moved. `held`: what optimizers hold, by id."""
        if self._look is None or optimizer is None or self._owner() is not optimizer:
            return
        with self._guarded():
            look = self._look
            self._note("S")
            rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
            look.rate = max(rates, default=None)
            self.facts.maximize |= any(bool(group.get("maximize")) for group in optimizer.param_groups)
            norms = dict(zip(table.names, table.norm.tolist(), strict=True))
            look.used = sum(norm != 0 for norm in norms.values())
            look.given = len(norms)
            # Where a gradient cancels, as that of the bias of keys does in a softmax, rounding is left of it.
            sizes = table.norm / np.sqrt(np.maximum(table.count, 1))
            usual = float(np.median(sizes[sizes > 0])) if (sizes > 0).any() else 0.0
            felt = {name for name, size in zip(table.names, sizes, strict=True) if size > _FELT * usual}
            mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
            names = [name for name, p in self._named if id(p) in mine and p.requires_grad]
            # Of weights that no optimizer holds nobody expects a step.
            look.brought = len(self._brought.intersection(names))
            self._note_uncleared(names)
            for name in names:
                self._asked[name] = self._asked.get(name, 0) + 1
                self._present[name] = self._present.get(name, 0) + (name in norms)
                self._graded[name] = self._graded.get(name, 0) + bool(norms.get(name, 0.0) != 0)
                self._felt[name] = self._felt.get(name, 0) + (name in felt)
            self._note_trained(optimizer, held)
            self._before = _values(self._named)
            self._gradients = _values(_gradients(self._named))
            # Gradients of several tasks are put together by hand: then the step is given another one than the last.
            if self._attacked or not _is_parallel(self._gradients, self._last_pass):
                look.lost = 0

    def _note_uncleared(self, names: Sequence[str]) -> None:
        assert self._look is not None
        uncleared = (self._uncleared or set()).intersection(names)
        self._look.stale = len(uncleared)
        for name in uncleared:
            self._kept[name] = self._kept.get(name, 0) + 1

    def after_update(self, optimizer: torch.optim.Optimizer | None) -> LoopFacts | None:
        """The step is over: all that was seen so far, if this step was looked at."""
        look = self._look
        if look is None or "S" not in look.order or self._owner() is not optimizer:  # a closure goes on after it
            return None
        done: list[LoopFacts] = []
        with self._guarded():
            after = _values(self._named)
            self._note_moves(after)
            self._last_step, self._last_looked = self._before, look.step
            facts = self.facts
            facts.looks.append(look)
            if len(facts.looks) > MOST_LOOPS:
                del facts.looks[1]
            facts.taken += 1
            self._note_called()
            self._next = look.step + 1 if facts.taken in _AGAIN else -1
            self._sum_up()
            done.append(facts)
        self._end()
        return done[0] if done else None

    def _note_called(self) -> None:
        for name, part in self._model.named_children():
            modes = self._called.get(id(part))
            self._unseen[name] = self._unseen.get(name, 0) + (modes == {False})

    def _note_moves(self, after: Values) -> None:
        references = dict(self._named)
        for name, values in after.items():
            known = self._first.get(name)
            if known is None or known[0]() is not references[name] or known[1].shape != values.shape:
                self._first[name] = (weakref.ref(references[name]), self._after.get(name, values))
                known = self._first[name]
                self._moved.discard(name)  # that was another tensor of this name
            if name not in self._moved and (known[1] != values).any():
                self._moved.add(name)
            before, gradient = self._before.get(name), self._gradients.get(name)
            if before is None or before.shape != values.shape:
                continue
            other = values != before
            if gradient is not None and gradient.shape == values.shape:
                graded = gradient != 0
                changed = int(np.count_nonzero(graded & other))
                counts = self._changed.setdefault(name, [0, 0])
                counts[0] += changed
                counts[1] += int(np.count_nonzero(graded)) - changed
            if other.any() and (np.abs(values) <= np.abs(before)).all():
                self._decays[name] = self._decays.get(name, 0) + 1

    def _note_trained(self, optimizer: torch.optim.Optimizer, held: Mapping[int, str]) -> None:
        facts, model = self.facts, self._model
        parameters = list(model.named_parameters())
        ours = {id(p) for _, p in parameters}
        trainable = [(name, p) for name, p in parameters if p.requires_grad]
        facts.tensors = len(trainable)
        facts.held = sum(id(p) in held for _, p in trainable)
        facts.strangers = sum(key not in ours for key in held)
        taken = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self._elsewhere = {name for name, p in trainable if id(p) in held and id(p) not in taken} & self._brought
        # Players of a game are frozen by turns: what was to be trained in one look is remembered in the next.
        self._unheld |= {name for name, p in trainable if name in self._brought}
        self._unheld -= {name for name, p in parameters if id(p) in held}
        elements = sum(p.numel() for name, p in parameters if p.requires_grad or name in self._unheld)
        missing = sum(p.numel() for name, p in parameters if name in self._unheld)
        facts.unheld_share = missing / elements if elements else 0.0
        trained = [at for at, (_, p) in enumerate(parameters) if p.requires_grad and id(p) in held]
        lost = [at for at, (name, _) in enumerate(parameters) if name in self._unheld]
        facts.unheld_come_first = bool(trained and lost) and max(lost) < min(trained)
        mine = [(name, p) for name, p in parameters if id(p) in taken]
        self._all_frozen[id(optimizer)] = [] if any(p.requires_grad for _, p in mine) else [name for name, _ in mine]
        all_frozen = [name for names in self._all_frozen.values() for name in names]
        facts.frozen = _names([*self._frozen_by_mistake(optimizer, parameters, held), *all_frozen])
        hidden = [(name, _with_gradients(own, ours, held)) for name, own in hidden_weights(model)]
        resting = [(name, [self._rests(p) for p in own[:_MOST_STRAYS]]) for name, own in hidden if own]
        facts.hidden = _names(name for name, rests in resting if all(rests))
        inside = {id(p) for _, own in hidden for p in own}
        strays = [p for p in self._near if not {id(p)} & (ours | inside) and id(p) not in held]
        few = strays if len(strays) <= _MOST_STRAYS else []
        facts.strays = [str(tuple(p.shape)) for p in few if self._rests(p)]
        facts.stray_layer = _is_layer(few)
        facts.anew = self._layers_before[0][:MOST_NAMES] if self._anew >= ENOUGH - 1 else []
        facts.adapters = list(adapters(parameters))[:MOST_NAMES]
        frozen = frozenset(name for name, p in parameters if not p.requires_grad)
        elements = sum(p.numel() for _, p in parameters)
        facts.frozen_share = sum(p.numel() for name, p in parameters if name in frozen) / max(elements, 1)
        given = frozenset(name for name, p in parameters if id(p) in held) & frozen
        if given != self._drawn[0]:
            self._drawn = given, as_drawn(model, given)
        rests = frozen | self._unheld
        if rests != self._untrained[0]:
            self._untrained = rests, as_drawn(model, rests)
        both = [pair for pair in facts.adapters if frozen.issuperset(pair)]
        learns = any(frozen.isdisjoint(pair) for pair in facts.adapters)
        self._idle_adapters = [] if learns else both
        facts.switching = sum(map(_switches, model.modules()))

    def _rests(self, stray: torch.Tensor) -> bool:
        """Whether an unregistered parameter is unchanged since it was first seen, some steps ago."""
        now = _values([("", stray)]).get("")
        known = self._strays.get(id(stray))
        if now is None or known is None or known[0]() is not stray:
            if now is not None and len(self._strays) < MOST_NAMES:
                self._strays[id(stray)] = (weakref.ref(stray), now)
            return False
        return np.array_equal(known[1], now)

    def _frozen_by_mistake(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[tuple[str, nn.Parameter]], held: Mapping[int, str]
    ) -> Iterator[str]:
        groups = self._groups.setdefault(id(optimizer), len(optimizer.param_groups))
        added = {id(p) for group in optimizer.param_groups[groups:] for p in group["params"]}
        marked = [name for name, module in self._model.named_modules() if vars(module).get("requires_grad") is True]
        for name, parameter in parameters:
            if not parameter.requires_grad and id(parameter) in held:
                below = any(name.startswith(f"{path}.") or not path for path in marked)
                if below or id(parameter) in added:
                    yield name

    def _sum_up(self) -> None:
        facts, looks = self.facts, self.facts.taken
        always = [name for name, asked in self._asked.items() if asked == looks]
        facts.ungiven = _names(name for name in always if not self._present[name])
        blind = {name for name, times in self._unseen.items() if times == looks}
        held = {name.partition(".")[0] for name in facts.ungiven}
        some_move = {name.partition(".")[0] for name in self._moved}
        facts.without_grad = _names(sorted(blind & held - some_move))
        facts.zero = _names(name for name in always if self._present[name] and not self._graded[name])
        facts.decaying = _names(name for name in facts.zero if self._decays.get(name, 0) == looks)
        felt = [name for name in always if self._felt[name] == looks]
        facts.still = _names(name for name in felt if _is_still(*self._changed.get(name, (1, 0))))
        facts.unchanged = [name for name in facts.still if name not in self._moved]
        facts.fresh = [name for name in self._drawn[1] if name not in self._moved]
        moving = [pair for pair in facts.adapters if self._moved.issuperset(pair)]
        facts.untrained = [] if moving else [name for name in self._untrained[1] if name not in self._moved]
        facts.adapted = list(adapted(self._named, facts.fresh, moving))
        idle = self._elsewhere - self._moved - self._asked.keys()
        facts.unstepped = _names(name for name, _ in self._named if name in idle)
        facts.unheld = _names(name for name, _ in self._named if name in self._unheld and name not in self._moved)
        facts.copied = _names(name for name, _ in self._named if name in self._unheld and name in self._moved)
        facts.moving = len(self._moved)
        # Of several optimizers each is asked in its own looks.
        own = {name: asked for name, asked in self._asked.items() if asked >= ENOUGH}
        facts.partly_cleared = _names(
            name for name, asked in own.items() if self._kept.get(name, 0) >= _USUALLY * asked
        )
        facts.in_eval = _names(name for name, count in self._eval.items() if count >= ENOUGH)
        facts.eval_alone = [name for name in facts.in_eval if name in self._eval_alone]
        facts.zero_matrices = _names(
            name
            for name, p in self._named
            if p.dim() > 1 and not self._after[name].any() and not bool(p.detach().any())
        )
        zero = set(facts.zero_matrices)
        facts.idle_adapters = [pair for pair in self._idle_adapters if pair[0] in zero and pair[1] not in zero]

    # ---- care -----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._look = None
        while self._restore:
            self._restore.pop()()
        self._named, self._outputs, self._near, self._inner = [], set(), [], []
        self._step_before = None

    def close(self) -> None:
        """Take everything away, also in the middle of a look."""
        self._unhook()
        self._end()
        self.reason = self.reason or "closed."

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Whatever fails in here must not stop the training: the looks end, with the reason."""
        started = time.perf_counter()
        try:
            with aside():
                yield
        except Exception as problem:
            self.reason, self.failed = f"{type(problem).__name__}: {problem}", True
            self._end()
        finally:
            self.seconds += time.perf_counter() - started


def resting_modules(model: nn.Module) -> list[str]:
    """Dropout and batch norms, where all that the model has are in evaluation mode; none otherwise."""
    switching = [(name, module) for name, module in model.named_modules() if _switches(module)]
    return [] if any(module.training for _, module in switching) else _names(name for name, _ in switching)


def _switches(module: nn.Module) -> bool:
    """Whether a module works in another way in evaluation mode: a batch norm, a dropout of more than nothing."""
    return isinstance(module, _SWITCHING) and bool(vars(module).get("p", True))


def _with_gradients(weights: Sequence[torch.Tensor], ours: set[int], held: Mapping[int, str]) -> list[torch.Tensor]:
    """Unregistered weights that get gradients and that no optimizer moves; none where no gradient comes."""
    own = [p for p in weights if id(p) not in ours and id(p) not in held and p.requires_grad and p.grad is not None]
    return own if any(bool(p.grad.detach().any()) for p in own if p.grad is not None) else []


def _is_layer(weights: Sequence[torch.Tensor]) -> bool:
    """Whether these are the weight and the bias of a linear layer or a convolution."""
    biases = {p.shape[0] for p in weights if p.dim() == 1}
    return any(p.dim() > 1 and p.shape[0] in biases for p in weights)


def _some(named: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return named[:: -(-len(named) // _MOST_TENSORS) or 1]


def _values(named: Sequence[tuple[str, torch.Tensor]]) -> Values:
    """Some elements of each tensor. One wait for a device."""
    given = [(name, t) for name, t in named if t.layout is torch.strided and not t.is_meta and t.numel()]
    parts = some_elements([tensor for _, tensor in given], _SAMPLE).parts()
    return {name: part for (name, _), part in zip(given, parts, strict=True) if len(part)}


def _nonzero(named: Sequence[tuple[str, torch.Tensor]]) -> set[str]:
    """Tensors whose gradient is not zero, by some of its elements."""
    return _felt(_values(_gradients(named)))


def _felt(values: Values) -> set[str]:
    return {name for name, some in values.items() if some.any()}


def _gradients(named: Sequence[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    return [(name, p.grad) for name, p in named if p.grad is not None]


def _is_parallel(first: Values, second: Values) -> bool:
    """Whether two gradients point the same way, clipped or not."""
    pairs = [(first[name], second[name]) for name in first if name in second and len(first[name]) == len(second[name])]
    with np.errstate(invalid="ignore", over="ignore"):
        inner = sum(float(np.vdot(a, b)) for a, b in pairs)
        sizes = [sum(float(np.vdot(each, each)) for each in side) for side in zip(*pairs, strict=True)]
    return bool(pairs) and inner > _SAME_WAY * math.sqrt(math.prod(sizes))


def _names(names: Any) -> list[str]:
    return list(names)[:MOST_NAMES]


def _is_still(changed: int, same: int) -> bool:
    return same >= _LEAST_GRADED and changed <= _RARELY * (changed + same)
