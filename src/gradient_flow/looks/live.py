"""Looks in a running training: some of its own steps are seen as an analysis sees those that it makes.

Hooks are on the model while a look lasts, from the end of one optimizer step to the end of the next; modes only inside
the model's forward. A look is one micro-batch: the first forward that trains, with its backward. What is looked at is
never changed, and what fails here ends the looks, not the training.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.capture import losses
from gradient_flow.capture.compiled import compiled_graphs, is_compiled
from gradient_flow.capture.module_calls import aside, tensors_in
from gradient_flow.diagnosis.verdict import NETWORK
from gradient_flow.looks.agreement import Alone
from gradient_flow.looks.found import found_by, policy_head, with_bounded_mean
from gradient_flow.looks.observer import Observer
from gradient_flow.looks.probe import Probe
from gradient_flow.looks.schedule import FIRST, Schedule
from gradient_flow.looks.triggers import NOT_FINITE
from gradient_flow.probes.attention.probe import AttentionProbe
from gradient_flow.probes.embedding.probe import EmbeddingProbe
from gradient_flow.probes.policy.probe import PolicyProbe
from gradient_flow.probes.recurrent.probe import RecurrentProbe
from gradient_flow.probes.routing.probe import RoutingProbe
from gradient_flow.record.plain import to_plain
from gradient_flow.table import GradientTable

Parameters = Callable[[], Sequence[tuple[str, torch.Tensor]]]
"""Parameters by name, for those who ask."""
MOST_LOOKS: Final = 8
"""Looks that the numbers of a look are about: the first, and the last ones."""
_MOST_NAMED: Final = 8
"""Dropped looks whose steps the record names."""
_SCHEDULE: Final = "schedule"
_WITHOUT: Final = 4
"""Looks at a model of the same parts without any attention after which none is expected: to listen for it slows every
operation. Where two models take turns, each was looked at twice by then."""
_BLIND: Final = 2
"""Looks in which no hook fires before it is taken for granted that none will."""


class Looks:
    """Decides which steps are looked at, looks, and hands over what was seen.

    The flow calls `plan` after each step, `before_update` when the gradients of a step are there, and `after_update`
    when the step is over; that returns what is to be recorded.
    """

    def __init__(
        self,
        model: Callable[[], nn.Module | None],
        schedule: Schedule,
        agreement: Alone,
        *,
        policy: Callable[[Any], Any] | bool | None = None,
        routers: Sequence[str] = (),
        zero: Collection[str] = (),
    ) -> None:
        self._model = model
        """Its user may drop it: between two looks nothing of it is held."""
        nothing = nn.Module()
        self._schedule, self.agreement, self._budget = schedule, agreement, agreement.budget
        self._observer = Observer(
            nothing,
            most=MOST_LOOKS,
            begins=self._call_begins,
            ends=self._call_ended,
            fails=self._fail,
            zero=zero,
            by_rows=True,
        )
        self._top_of: dict[nn.Module, nn.Module] = {}
        self._attention = AttentionProbe(nothing, eager=False)
        self._probes: dict[str, Probe] = {
            "attention": self._attention,
            "recurrent": RecurrentProbe(nothing, written_out=False),
            "routing": RoutingProbe(routers),
            "embedding": EmbeddingProbe(),
        }
        if policy:
            extractor = policy if callable(policy) else None
            self._probes["policy"] = PolicyProbe(nothing, action_extractor=extractor)
        self._wants_output = bool(policy)
        self._parts, self._without_attention = 0, 0
        """A number that tells models of other parts apart, and looks at the present one that saw no attention."""
        self._graphs = compiled_graphs()
        self._last_planned = 0
        self._stop_listening: Callable[[], None] | None = None
        self._entered: list[Probe] = []
        self._takes_eval = False
        self._blind = 0
        self._cost = 0.0
        self.dropped = 0
        """Looks that the budget did not allow."""
        self.reason = ""
        """Why there are no looks any more, where there are none."""
        self.failed = False
        """Whether it is our failure, which the user is warned about."""
        self._because = ""
        self._agreed: Mapping[str, Any] = {}
        self._closed = False
        self._untold = 0
        """Those that no record tells of yet, and the steps of the last of them."""
        self._dropped: deque[int] = deque(maxlen=_MOST_NAMED)
        self._forget()
        self._release()

    def __repr__(self) -> str:
        ended = f", ended: {self.reason}" if self.reason else ""
        return f"<{self.taken} looks, {self.dropped} dropped, {self.seconds:.3f} s{ended}>"

    @property
    def taken(self) -> int:
        """Looks so far."""
        return self._budget.taken

    @property
    def seconds(self) -> float:
        """What all looks have cost."""
        return self._budget.seconds

    @property
    def first_seconds(self) -> float:
        """What the first three have cost, which no budget limits."""
        return self._budget.first_seconds

    def _forget(self) -> None:
        self._over = self._heard = False
        self._refused_eval = 0
        self._inputs: Any = None
        self._output: Any = None
        self._alive: list[weakref.ref[torch.Tensor]] = []
        self._in_backward = False
        self._scale = 1.0
        """What the loss was multiplied with before backward."""

    @property
    def reads_saved(self) -> bool:
        """Whether tensors that are saved for backward can be read without effects, as far as looks have seen."""
        return self._observer.reads_saved

    def is_compiled(self) -> bool:
        """Whether there is compiled code that a hook or a wrapped function would make compile again."""
        model = self._model()
        return compiled_graphs() != self._graphs or (model is not None and bool(why_not(model)))

    @property
    def is_looking(self) -> bool:
        """Whether a look is on."""
        return self._observer.is_looking

    @property
    def has_news(self) -> bool:
        """Whether a look was taken that `after_update` has not given yet."""
        return self._heard

    @property
    def is_asked(self) -> bool:
        """Whether something asks for a look at the next step; ranks are asked about each."""
        return self.agreement.ranks or bool(self.agreement.asked(self._last_planned))

    # ---- between steps --------------------------------------------------------------------------------------------

    def note(self, step: int, norm: float, loss: float | None, rate: float | None) -> None:
        """The numbers of a recorded step: they may ask for a look at one of the next."""
        self.agreement.note(step, norm, loss, rate)

    def plan(self, step: int, parameters: Parameters, *, bad: bool = False) -> None:
        """The step before `step` is over: begin a look if one is due. `parameters` still have its gradients.

        `bad` tells that those were not finite.
        """
        before, self._last_planned = self._last_planned, step
        due = self._schedule.is_due(before, step)
        if self.reason or self._closed:
            return
        agreement = self.agreement
        try:
            asked = agreement.asked(step)
            if (asked or due) and step >= FIRST and not self._observer.is_looking:
                kept = due and self._schedule.is_kept(before, step)
                with self._guarded():
                    self._plan(step, asked, parameters, bad=bad, kept=kept)
            if agreement.ranks:  # afterwards: a look that has begun counts in what is said to the others
                agreement.planned(step, parameters, bad=bad, looks=self._observer.is_looking)
        except Exception as problem:
            self._fail(problem)

    def _plan(self, step: int, asked: str, found: Parameters, *, bad: bool, kept: bool) -> None:
        parameters, agreement = found(), self.agreement
        agreement.forget()
        if agreement.is_lost(bad, parameters):
            return  # the weights are not finite: there is nothing to see but NaN
        if not kept and agreement.drops(step, asked):
            self.dropped += 1
            self._untold += 1
            self._dropped.append(step)
            return
        model = self._model()
        if model is None:
            return
        self.reason = why_not(model)
        if self.reason:
            return
        # Several models under one name have no mode of their own: that of the one that is called counts.
        tops = list(model.children()) if type(model) is nn.Module else [model]
        self._top_of = {module: top for top in tops for module in top.modules()}
        parts = hash(tuple(map(type, self._top_of)))
        if parts != self._parts:
            self._parts, self._without_attention = parts, 0
        self._observer.bind(model)
        for probe in self._probes.values():
            if probe is not self._attention or self._without_attention < _WITHOUT:
                probe.bind(model)
        self._begin(step, asked or _SCHEDULE, {name: parameter.grad for name, parameter in parameters})

    def _begin(self, step: int, because: str, gradients: Mapping[str, torch.Tensor | None]) -> None:
        with self._clock():
            self._because, self._agreed = because, self.agreement.to_record("" if because == _SCHEDULE else because)
            self._forget()
            self._observer.forget_direction()
            self._observer.note_direction(gradients)
            self._observer.begin(step, whole=because == NOT_FINITE)
            self._attention.at_step = step
            modes = compiled_graphs() == self._graphs
            listens = modes and self._without_attention < _WITHOUT  # a mode makes compiled code recompile
            for probe in self._probes.values():
                if listens or probe is not self._attention:
                    probe.__enter__()
                    self._entered.append(probe)
            self._stop_listening = losses.listen(self._backward_begins, self._unclear_begins)

    # ---- inside a step --------------------------------------------------------------------------------------------

    def _call_begins(self, module: nn.Module, args: Any, kwargs: Any) -> bool:
        accepted = False
        with self._guarded(), self._clock():
            accepted = self._accepts(module)
            if accepted:
                nothing = self._alive and not any(output() is not None for output in self._alive)
                if self._observer.saw_anything and (nothing or self._in_backward):
                    self._observer.restart()  # an earlier forward came to nothing, or its backward failed
                    self._alive, self._in_backward = [], False
                self._inputs = None
                self._observer.on_inputs(tensors_in((args, kwargs)))
                self._inputs = _spread(args, kwargs)
            for probe in self._entered:
                probe.listen(accepted)
        return accepted

    def _accepts(self, module: nn.Module) -> bool:
        if self._over or not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return False
        if torch._C._get_tracing_state() is not None or torch.compiler.is_compiling():
            return False
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return False  # inside of torch.func a tensor stands for many, and no backward pass comes
        if not (self._top_of.get(module, module).training or module.training or self._takes_eval):
            self._refused_eval += 1
            return False
        return True

    def _call_ended(self, output: Any) -> None:
        with self._guarded():
            self._alive += [weakref.ref(tensor) for tensor in tensors_in(output)]
            if self._wants_output:
                self._output = output

    def _backward_begins(self, loss: torch.Tensor) -> Callable[[], None]:
        if self._observer.is_elsewhere:
            return _nothing  # another model is trained in another thread
        with self._guarded(), self._clock():
            if self._observer.saw_anything and not self._over:
                self._observer.on_loss(loss)
                self._scale, self._in_backward = losses.scale_of(loss), True
        return self._backward_ended

    def _unclear_begins(self, _loss: torch.Tensor | None) -> Callable[[], None]:
        return _nothing if self._observer.is_elsewhere else self._backward_ended

    def _backward_ended(self) -> None:
        self._in_backward = False
        if self._observer.got_gradients:  # else it was another model's
            self._over = True
            self._observer.release_graph()

    # ---- at the step ----------------------------------------------------------------------------------------------

    def before_update(
        self,
        optimizer: torch.optim.Optimizer | None,
        table: GradientTable,
        parameters: Sequence[tuple[str, torch.Tensor]],
        scale: float,
    ) -> None:
        """The gradients of a step are there and measured, and the weights have not moved yet."""
        if not self._observer.is_looking:
            return
        if self.failed:
            self.close()
            return
        with self._guarded(), self._clock():
            observer = self._observer
            if not observer.got_gradients:
                self._saw_nothing(any(parameter.grad is not None for _, parameter in parameters))
                return
            self._blind = 0
            gradients = {name: parameter.grad for name, parameter in parameters}
            observer.on_backward(table, gradients, self._scale if self._scale != 1.0 else scale)
            observer.note_direction(gradients)
            if optimizer is not None:
                observer.note_optimizer(optimizer)
            for probe in self._entered:
                probe.after_step(self._inputs, self._output)
            if self._attention in self._entered:
                self._without_attention = 0 if self._attention.saw_any else self._without_attention + 1
            self._end()
            observer.before_update()
            self._heard = True

    def after_update(self, step: int) -> tuple[dict[str, Mapping[str, Any]], dict[str, Any]] | None:
        """The step is over: what was seen by the name of each probe, and how the look came about; None without one."""
        if not self._heard:
            return None
        self._heard = False
        found: list[tuple[dict[str, Mapping[str, Any]], dict[str, Any]]] = []
        with self._guarded():
            with self._clock():
                self._observer.after_update()
                self._observer.note_steps(step)
                network = self._observer.record()
                seen: dict[str, Mapping[str, Any]] = {NETWORK: to_plain(network)}
                for name, probe in self._probes.items():
                    stats = probe.result()
                    if stats is not None:
                        stats = with_bounded_mean(stats, network) if name == "policy" else stats
                        about = (
                            {"layer": policy_head(network, stats.valid_actions), "evenly": False}
                            if name == "policy"
                            else {}
                        )
                        seen[name] = found_by(stats, **about)
            self._budget.pay(self._cost)
            why = {"because": self._because, "seconds": round(self._cost, 6), **self._agreed, **self.untold_drops()}
            self._cost = 0.0
            found.append((seen, why))
        self._release()
        return found[0] if found else None

    def untold_drops(self) -> dict[str, Any]:
        """How many looks the budget did not allow since this was asked last, and the steps of the latest."""
        told = {"dropped": self._untold, "dropped_steps": list(self._dropped)} if self._untold else {}
        self._untold = 0
        self._dropped.clear()
        return told

    def _release(self) -> None:
        self._top_of = {}
        self._observer.release()
        for probe in self._probes.values():
            probe.release()

    def _saw_nothing(self, trained: bool) -> None:
        """No hook saw the step: it ran in compiled code, or what was watched is not what is trained."""
        if self._refused_eval and not self._takes_eval:
            self._takes_eval = True  # this model is trained in evaluation mode
        elif trained and not self._observer.saw_anything:
            self._blind += 1
            if self._blind == _BLIND:
                self.reason = "no hook fired: the model runs in compiled code, or is called in another way."
        self._observer.give_up()
        self._end()
        self._release()

    def _end(self) -> None:
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        entered, self._entered = self._entered, []
        for probe in reversed(entered):
            probe.__exit__(None, None, None)
        self._observer.end()
        self._inputs = self._output = None
        self._alive = []

    def close(self) -> None:
        """Take every hook away, also in the middle of a look."""
        self._observer.give_up()
        self._end()
        self._release()
        self._closed = True

    # ---- care -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _clock(self) -> Iterator[None]:
        started = self._budget.clock() - self._observer.seconds
        try:
            yield
        finally:  # what hooks took meanwhile is counted by themselves
            self._cost += self._budget.clock() - self._observer.seconds - started
            self._cost += self._observer.take_seconds()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Whatever fails in here must not stop the training: the looks end, with the reason."""
        try:
            with aside():
                yield
        except Exception as problem:
            self._fail(problem)

    def _fail(self, problem: Exception) -> None:
        self.reason = f"{type(problem).__name__}: {problem}"
        self.failed = self._over = True  # hooks go when the step is over: not in the middle of a forward


def _nothing() -> None:
    """What to call after a backward pass of another model: nothing."""


def why_not(model: nn.Module) -> str:
    """Why hooks on this model would do harm; empty where they would not."""
    if is_compiled(model):
        return "the model is compiled."
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return "a CUDA graph is being captured." if capturing else ""


def _spread(args: Any, kwargs: Any) -> Any:
    """The batch as it was given, for probes that relate it to what comes out."""
    return (*args, *kwargs.values())
