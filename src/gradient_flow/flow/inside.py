"""The looks of a flow: made when the first is due, so that a training without any never loads what they need."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from gradient_flow.capture.arrivals import on_device
from gradient_flow.capture.compiled import compiled_graphs, is_compiled
from gradient_flow.capture.parameters import module_parameters
from gradient_flow.capture.sharding import any_sharded, local_part, several_ranks
from gradient_flow.errors import InputError, check_number, warn
from gradient_flow.flow.batches import Batches
from gradient_flow.flow.recorder import MOST_OPEN
from gradient_flow.looks.schedule import FIRST, Schedule
from gradient_flow.record.event import MOST_MODES
from gradient_flow.record.plain import to_plain
from gradient_flow.record.step import StepRecord
from gradient_flow.table import GradientTable
from gradient_flow.table.across_ranks import Said

if TYPE_CHECKING:
    from gradient_flow.looks.agreement import Alone, Exchanging
    from gradient_flow.looks.live import Looks
    from gradient_flow.looks.loop_watch import LoopWatch
    from gradient_flow.looks.optimizer_watch import OptimizerWatch

Parameters = Callable[[], Sequence[tuple[str, torch.Tensor]]]
"""Parameters by name, for those who ask."""
_HEAD: Final = 64
"""Elements that are asked first: what is zero all over is zero there."""


def checked_routers(model: nn.Module, routers: Any) -> tuple[str, ...]:
    """Paths of modules; a path that the model does not have is an error now rather than silence later."""
    if isinstance(routers, str) or not all(isinstance(path, str) for path in routers):
        raise InputError(f"`routers` must be a list of paths of modules, got {routers!r}.")
    known = dict(model.named_modules())
    for path in routers:
        if path not in known:
            raise InputError(f"`routers` must be paths of modules; the model has no module {path!r}.")
    return tuple(routers)


class Inside:
    """Looks inside the model of a flow. `looks`, `budget` and `policy` are those of `watch`.

    `merged`: ranks with different parameters put their tables together.
    """

    def __init__(
        self,
        model: nn.Module,
        looks: Any = True,
        budget: float = 0.01,
        policy: Callable[[Any], Any] | bool | None = None,
        batches: bool = True,
        routers: Sequence[str] = (),
        merged: bool = False,
    ) -> None:
        check_number("budget", budget, "a share of the training time between 0 and 1", 0, 1)
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module  # parameters are named without the wrapper, and so are layers
        self.model = self._model = held_weakly(model)
        """Gives the model while its user holds it."""
        self._policy, self._budget, self._merged = policy, float(budget), merged
        self._routers = checked_routers(model, routers)
        self._wanted, self._schedule = looks, Schedule(looks)
        self._zero = zero_parameters(model) if self.is_on else ()
        self._looks: Looks | None = None
        self._loop: LoopWatch | None = None
        self._state: OptimizerWatch | None = None
        self._batches = Batches(self._model, self._is_compiled) if batches and self.is_on else None
        self._graphs = compiled_graphs()
        self._warned: set[str] = set()
        self._told_of_end = False
        self._bad = False
        """Whether the last step had a gradient that was not finite."""
        self._mode = mode_of(model)
        self._training, self._modes_told, self._mode_is_new = True, 0, False
        """The mode at the last step: who trains in evaluation mode forgot to switch back, unless it goes to and fro."""
        self._talk: Exchanging | None = None
        """Where ranks exchange something with each recorded step: their say in looks."""

    @property
    def is_on(self) -> bool:
        """Whether there are looks at all."""
        return not self._schedule.off and self._budget > 0

    @property
    def looks(self) -> Looks | None:
        """What was looked at, once there was a look."""
        return self._looks

    @property
    def is_looking(self) -> bool:
        """Whether hooks are on the model: the step that comes is looked at."""
        return self._looks is not None and self._looks.is_looking

    @property
    def is_asked(self) -> bool:
        """Whether a look was asked for, out of turn."""
        return self._looks is not None and self._looks.is_asked

    @property
    def has_news(self) -> bool:
        """Whether something of the step that is over was looked at: asked after each, so in one go."""
        looks, loop, state = self._looks, self._loop, self._state
        return (
            (looks is not None and looks.has_news)
            or (loop is not None and loop.is_looking)
            or (state is not None and state.is_looking)
        )

    def _is_compiled(self) -> bool:
        model = self._model()
        return compiled_graphs() != self._graphs or (model is not None and is_compiled(model))

    def _samples(self) -> int:
        """Of a micro-batch, where that is known."""
        return 0 if self._batches is None else self._batches.samples

    def backward_ended(self, parameters: Parameters) -> None:
        """A backward pass is done; a step may have several."""
        if self._state is not None:
            self._state.backward_ended(parameters)

    def pass_ended(self) -> None:
        """The same where no look at the optimizer is due, and one pass made the step before."""
        if self._state is not None:
            self._state.backwards += 1

    @property
    def batches(self) -> Batches | None:
        """Which batch the coming step is made of."""
        return self._batches

    def note(self, record: StepRecord) -> None:
        """A step whose numbers are there."""
        self._bad = not math.isfinite(record.norm)
        if self._looks is not None:
            loss, rates = record.loss, record.lr if isinstance(record.lr, list) else []
            known = isinstance(loss, (int, float))
            rate = max([rate for rate in rates if isinstance(rate, (int, float))], default=None)
            self._looks.note(record.step, record.norm, float(loss) if known else None, rate)

    # ---- steps at which nothing happens ---------------------------------------------------------------------------

    def free_until(self, step: int, optimizer: torch.optim.Optimizer, every: int = 1) -> float:
        """The recorded step `step` is over: before which step is no look due, and none begun?

        Where every step is recorded, the next one is planned already. Looks at an optimizer are due by recorded steps.
        """
        looks, state = self._looks, self._state
        if looks is None or state is None or looks.is_looking or self.is_asked or self._bad or self.has_news:
            return 0
        # A look begins when the step before it is over, so that one too is to be told of.
        planned = step + 1 if every == 1 else step
        return min(self._schedule.after(planned) - 1, step + every * state.next_due(optimizer))

    def may_pass(self) -> bool:
        """Whether the coming step, in which no look is due, was made by one backward pass, in the mode of the last."""
        return (self._state is None or self._state.backwards == 1) and self._mode() == self._training

    def step_begins(self) -> None:
        """Such a step begins; `passed` is told of it later."""
        if self._state is not None:
            self._state.step_begins()
        if self._batches is not None:
            self._batches.step_begins()

    def passed(self, record: StepRecord, optimizer: int) -> None:
        """The numbers of such a step, of the optimizer with this id."""
        if self._state is not None:
            self._state.passed(optimizer, record.norm)
        if self._batches is not None:
            self._batches.passed(record.norm)
        self.note(record)

    def plan(
        self,
        step: int,
        parameters: Parameters,
        optimizer: torch.optim.Optimizer | None = None,
        optimizers: Callable[[], Sized] = lambda: (None,),
    ) -> None:
        """The step before `step` is over: it was that of `optimizer`, one of these."""
        if self._batches is not None:
            self._batches.plan(step)
        if self._looks is None:
            if step < FIRST or not self.is_on:
                return
            model = self._model()
            if model is None:
                return
            from gradient_flow.looks.agreement import Exchanging
            from gradient_flow.looks.live import Looks
            from gradient_flow.looks.loop_watch import LoopWatch

            agreement = self._agreement(model)
            self._looks = Looks(
                self._model,
                self._schedule,
                agreement,
                policy=self._policy,
                routers=self._routers,
                zero=self._zero,
            )
            looks = self._looks
            self._talk = agreement if isinstance(agreement, Exchanging) else None
            if not several_ranks():  # its clock is that of one rank, and no rank may look alone
                self._loop = LoopWatch(
                    self._model,
                    self._schedule,
                    self._budget,
                    compiled=looks.is_compiled,
                    reads_saved=lambda: looks.reads_saved,
                )
        self._looks.plan(step, parameters, bad=self._bad)
        if self._loop is not None:
            self._loop.plan(step, optimizer, optimizers)
        for each in (self._looks, self._loop, self._state):
            if each is not None and each.failed:
                self._tell()

    def _agreement(self, model: nn.Module) -> Alone:
        """Who decides about looks. Which of them is a matter of the parameters: ranks come to the same answer."""
        from gradient_flow.looks.agreement import Alone, Exchanging, Replicated
        from gradient_flow.looks.board import Board
        from gradient_flow.looks.budget import Budget

        budget, named = Budget(self._budget), module_parameters(model)
        if not several_ranks():
            return Alone(budget)
        if self._merged or any_sharded(parameter for _, parameter in named):
            return Exchanging(budget, MOST_OPEN)
        late = any(on_device(parameter) for _, parameter in named)
        return Replicated(budget, self._schedule, Board(name for name, _ in named), MOST_OPEN if late else 0)

    def says(self) -> Sequence[float]:
        """What this rank wishes of looks, for the collectives of the step that comes."""
        return self._talk.says() if self._talk is not None else ()

    def hears(self, said: Said) -> None:
        """What all ranks wish."""
        if self._talk is not None:
            self._talk.hears(said)

    def before_update(
        self,
        optimizer: torch.optim.Optimizer | None,
        table: GradientTable,
        parameters: Sequence[tuple[str, torch.Tensor]],
        scale: float | None,
        held: Callable[[], Mapping[int, str]] = dict,
        norm: float | None = None,
    ) -> None:
        """Gradients are measured, weights have not moved. `held` tells what optimizers hold, by id.

        `norm` is that of the table, where it is known already.
        """
        if self._mode() != self._training:
            self._training, self._mode_is_new = not self._training, True
        if self._loop is not None and self._loop.is_looking:
            self._loop.before_update(optimizer, table, held())
        if self._state is None and self.is_on:
            from gradient_flow.looks.optimizer_watch import OptimizerWatch

            self._state = OptimizerWatch(self._wanted, self._budget, ranks=several_ranks())
        if self._state is not None:
            norm = table.total.norm if norm is None else norm
            self._state.before_update(optimizer, parameters, norm, self._samples)
        if self._looks is not None:
            self._looks.before_update(optimizer, table, parameters, scale or 1.0)

    def after_update(self, step: int) -> tuple[dict[str, Mapping[str, Any]], dict[str, Any]] | None:
        """What was seen in the step that is over, and how the look came about; None without one."""
        return None if self._looks is None else self._looks.after_update(step)

    def after_round(self, optimizer: torch.optim.Optimizer | None) -> Mapping[str, Any] | None:
        """What was seen of the loop, if the round that is over was looked at."""
        facts = None if self._loop is None else self._loop.after_update(optimizer)
        return None if facts is None else to_plain(facts)

    def after_state(self, optimizer: torch.optim.Optimizer | None, step: int) -> Mapping[str, Any] | None:
        """What the state of an optimizer shows, if the step that is over was looked at."""
        facts = None if self._state is None else self._state.after_update(optimizer, step)
        return None if facts is None else to_plain(facts)

    def untold_drops(self) -> Mapping[str, Any]:
        """Looks that were dropped since the last that was taken; empty where there are none."""
        return {} if self._looks is None else self._looks.untold_drops()

    def news_of_end(self) -> str | None:
        """Why looks have ended, the first time this is asked; None otherwise."""
        reason = "" if self._looks is None else self._looks.reason
        if not reason or self._told_of_end:
            return None
        self._told_of_end = True
        return reason

    def news_of_mode(self) -> Mapping[str, Any] | None:
        """The mode that the step which is over was taken in, where the one before it was taken in the other."""
        model = self._model() if self._mode_is_new else None
        self._mode_is_new = False
        if model is None:
            return None
        from gradient_flow.looks.loop_watch import resting_modules

        self._modes_told += 1
        if self._modes_told == MOST_MODES:
            self._mode = lambda: self._training  # asked no more
        return {"training": self._training, "resting": resting_modules(model)}

    def close(self) -> None:
        """Remove the hooks."""
        if self._batches is not None:
            self._batches.close()
        if self._loop is not None:
            self._loop.close()
        if self._looks is not None:
            self._looks.close()

    def _tell(self) -> None:
        seen: dict[str, Looks | LoopWatch | OptimizerWatch | None] = {
            "inside the model": self._looks,
            "at the loop": self._loop,
            "at the optimizer": self._state,
        }
        for what, looks in seen.items():
            if looks is not None and looks.failed and what not in self._warned:
                self._warned.add(what)
                warn(f"gradient_flow stopped looking {what} ({looks.reason}); training continues.", stacklevel=8)


def held_weakly(model: nn.Module) -> Callable[[], nn.Module | None]:
    """A function that gives the model while its user holds it. Models under one name each are put together anew."""
    if type(model) is not nn.Module:
        return weakref.ref(model)
    parts = {name: weakref.ref(part) for name, part in model.named_children()}

    def together() -> nn.Module | None:
        alive = {name: part for name, part in ((name, part()) for name, part in parts.items()) if part is not None}
        if len(alive) < len(parts):
            return None
        whole = nn.Module()
        whole._modules.update(alive)
        return whole

    return together


def mode_of(model: nn.Module) -> Callable[[], bool]:
    """A function that tells whether the model is in training mode: models under one name are if one of them is."""
    if type(model) is not nn.Module:
        alone = weakref.ref(model)
        return lambda: (held := alone()) is None or held.training
    parts = [weakref.ref(part) for part in model.children()]
    return lambda: any((held := part()) is None or held.training for part in parts)


def zero_parameters(model: nn.Module) -> tuple[str, ...]:
    """Names of matrices that are zero all over, as what a branch or an adapter starts from. One wait for a device."""
    matrices = [(name, local_part(p)) for name, p in module_parameters(model) if p.dim() > 1]
    heads = [part.reshape(-1)[:_HEAD] for _, part in matrices if part.numel() and part.layout is torch.strided]
    names = [name for name, part in matrices if part.numel() and part.layout is torch.strided]
    if not heads or any(head.is_meta for head in heads):
        return ()
    quiet = [float(norm) == 0 for norm in torch._foreach_norm([head.float() for head in heads])]
    parts = dict(matrices)
    return tuple(name for name, zero in zip(names, quiet, strict=True) if zero and not bool(parts[name].any()))
