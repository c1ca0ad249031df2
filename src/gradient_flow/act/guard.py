"""`Guard`: decides what happens to a step with non-finite gradients, and keeps account of it. Pure numbers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch

from gradient_flow.act.buffers import bad_buffers
from gradient_flow.act.in_place import replace_nonfinite_, replace_nonfinite_gradient_
from gradient_flow.capture.parameters import held_parameters
from gradient_flow.config import GradientConfig
from gradient_flow.errors import NonFiniteGradientError
from gradient_flow.table import GradientTable, measure
from gradient_flow.table.row_parameters import measure_parameters

MOST_LAYERS: Final = 20
"""Layers that an event names; their number is given in full."""
MOST_EVENTS: Final = 1000
MOST_OVERFLOWS: Final = 50
"""A scale of 65536 is down to 1 after 16 overflows: more in a row have another reason."""
WITHHELD: Final = ("skip", "rollback", "left to GradScaler")
"""Actions after which the optimizer does not step."""


@dataclass(frozen=True)
class GuardEvent:
    """One step with non-finite gradients or a non-finite loss, and what was done about it."""

    step: int
    action: str
    """`replace`, `zero`, `skip`, `rollback`, `observe`, `raise` or `left to GradScaler`."""
    nan: int
    inf: int
    layers: tuple[str, ...]
    layer_count: int
    loss: float | None = None
    restored_step: int | None = None
    """For a rollback: the step whose weights and optimizer state are in force again."""
    ranks: tuple[int, ...] = ()
    """Ranks whose own gradients were bad before the average was taken, where that was traced."""
    buffers: tuple[str, ...] = ()
    """Buffers (running statistics) that the step left with NaN or Inf."""
    buffer_count: int = 0
    buffers_done: str = ""
    """What became of the buffers: `put back`, or `left` and why."""

    def with_buffers(self, bad: tuple[str, ...], done: str) -> GuardEvent:
        """The same event with what is known of the buffers."""
        return replace(self, buffers=bad[:MOST_LAYERS], buffer_count=len(bad), buffers_done=done)

    def __str__(self) -> str:
        more = f" and {self.layer_count - 1} more" if self.layer_count > 1 else ""
        where = f" in `{self.layers[0]}`{more}" if self.layers else ""
        loss = "" if self.loss is None or math.isfinite(self.loss) else f", the loss is {self.loss}"
        back = "" if self.restored_step is None else f", back to the state of step {self.restored_step}"
        of_ranks = f", from rank {', '.join(map(str, self.ranks))}" if self.ranks else ""
        text = f"step {self.step}: {self.nan} NaN and {self.inf} Inf{where}{of_ranks}{loss}: {self.action}{back}"
        if not self.buffers:
            return text + (f"; buffers {self.buffers_done}" if self.buffers_done.startswith("left") else "")
        others = f" and {self.buffer_count - 1} more" if self.buffer_count > 1 else ""
        return f"{text}; buffer `{self.buffers[0]}`{others} not finite, {self.buffers_done}"


class Guard:
    """Counts bad steps against their limits and remembers them. It never lets a bad step through once a limit is hit.

    The counts are those of steps that it withheld from the optimizer; steps that a GradScaler skips are its own.
    """

    def __init__(self, config: GradientConfig) -> None:
        self.config = config
        self.consecutive = 0
        """Bad steps up to now without a good one between."""
        self.withheld = 0
        """Steps withheld up to now without a good one between; what `max_consecutive_skips` is about."""
        self.overflows = 0
        """The same for steps that a GradScaler skipped."""
        self.skipped = 0
        """Steps withheld from the optimizer in all."""
        self.bad_steps = 0
        self.by_action: dict[str, int] = {}
        self.events: deque[GuardEvent] = deque(maxlen=MOST_EVENTS)

    def decide(self, *, scaler_handles_it: bool = False) -> str:
        """The action for a step with non-finite gradients, by policy and limits."""
        config = self.config
        if scaler_handles_it:
            limited = config.nonfinite in ("raise", "skip", "rollback") and config.enable_nan_inf_check
            return "raise" if limited and self.overflows >= MOST_OVERFLOWS else "left to GradScaler"
        if not config.enable_nan_inf_check:
            return "observe"
        if config.nonfinite not in ("skip", "rollback"):
            return config.nonfinite
        if self.withheld >= config.max_consecutive_skips:
            return "raise"
        if config.max_total_skips is not None and self.skipped >= config.max_total_skips:
            return "raise"
        reached = (self.withheld + 1) % config.rollback_after == 0
        return "rollback" if config.nonfinite == "rollback" and reached else "skip"

    def decides_alike(self, open_steps: int) -> bool:
        """Whether a bad step now gets the same action whatever became of so many steps that are not counted yet.

        Then a device may carry it out before the host knows of it: no limit is overrun meanwhile.
        """
        config = self.config
        if self.overflows + open_steps >= MOST_OVERFLOWS:
            return False
        if not config.enable_nan_inf_check or config.nonfinite != "skip":
            return True
        total = math.inf if config.max_total_skips is None else config.max_total_skips
        return self.withheld + open_steps < config.max_consecutive_skips and self.skipped + open_steps < total

    def good_step(self) -> None:
        """A step with finite gradients."""
        self.consecutive = self.withheld = self.overflows = 0

    def bad_step(self, event: GuardEvent) -> None:
        """A step with non-finite gradients was dealt with."""
        self.bad_steps += 1
        self.by_action[event.action] = self.by_action.get(event.action, 0) + 1
        self.events.append(event)
        self.consecutive += 1
        if event.action == "left to GradScaler":
            self.overflows += 1
        elif event.action in WITHHELD:
            self.withheld += 1
            self.skipped += 1

    def error(self, event: GuardEvent) -> NonFiniteGradientError:
        """What to raise for an event whose action is `raise`."""
        config = self.config
        where = ", ".join(f"`{layer}`" for layer in event.layers[:3]) or f"no layer, but the loss is {event.loss}"
        more = f" and {event.layer_count - 3} more" if event.layer_count > 3 else ""
        more += f", from rank {', '.join(map(str, event.ranks))}" if event.ranks else ""
        reason = "The policy is nonfinite='raise'."
        if self.overflows >= MOST_OVERFLOWS:
            reason = (
                f"{self.overflows} steps in a row overflowed although the GradScaler lowered its scale each time: this "
                "is no overflow."
            )
        elif config.nonfinite in ("skip", "rollback"):
            limit = (
                f"`max_consecutive_skips`={config.max_consecutive_skips}"
                if self.withheld >= config.max_consecutive_skips
                else f"`max_total_skips`={config.max_total_skips}"
            )
            reason = f"{self.skipped} steps were skipped before and the limit {limit} is reached."
        return NonFiniteGradientError(
            f"Step {event.step}: {event.nan} NaN and {event.inf} Inf gradients in {where}{more}. {reason} The weights "
            "are those before this step. gf.find_nonfinite(step_fn, model) names the operation that made them; "
            "nonfinite='skip' leaves such steps out."
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {
            "consecutive": self.consecutive,
            "withheld": self.withheld,
            "overflows": self.overflows,
            "skipped": self.skipped,
            "bad_steps": self.bad_steps,
            "by_action": dict(self.by_action),
            "events": [asdict(event) for event in self.events],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.consecutive, self.skipped, self.bad_steps = state["consecutive"], state["skipped"], state["bad_steps"]
        self.withheld, self.overflows = state["withheld"], state["overflows"]
        self.by_action = dict(state["by_action"])
        # A checkpoint in JSON has no tuples, and an older one neither ranks nor buffers.
        tuples = ("layers", "ranks", "buffers")
        events = [
            GuardEvent(**{**event, **{name: tuple(event.get(name, ())) for name in tuples}})
            for event in state["events"]
        ]
        self.events = deque(events, maxlen=MOST_EVENTS)


def event_of(
    step: int,
    action: str,
    names: Sequence[str],
    nan: Sequence[int],
    inf: Sequence[int],
    loss: float | None,
    ranks: tuple[int, ...] = (),
) -> GuardEvent:
    """The event for a step, from the counts of each gradient."""
    bad = [name for name, nans, infs in zip(names, nan, inf, strict=True) if nans or infs]
    return GuardEvent(step, action, int(sum(nan)), int(sum(inf)), tuple(bad[:MOST_LAYERS]), len(bad), loss, ranks=ranks)


class NaNInfHandler:
    """Counts NaN and Inf by layer and replaces them: NaN by `replace_nan_with`, ±Inf by ±`replace_inf_with`.

    >>> import torch
    >>> layer = torch.nn.Linear(1, 1, bias=False)
    >>> layer.weight.grad = torch.tensor([[float("nan")]])
    >>> NaNInfHandler().check_and_fix_gradients(layer)["nan_count"], layer.weight.grad.item()
    (1, 0.0)
    """

    def __init__(self, config: GradientConfig | None = None) -> None:
        self.config = config if config is not None else GradientConfig()
        self.total_replacements = 0

    def check_and_fix_gradients(self, model: Any) -> dict[str, Any]:
        """Replace what is not finite in the gradients of a module, an optimizer or parameters."""
        table, parameters = measure_parameters(held_parameters(model))
        if not table.total.finite:
            self.replace(parameters, table)
        return self.report(table, replaced=True)

    def check_and_fix_parameters(self, model: torch.nn.Module, replace_values: bool = True) -> dict[str, Any]:
        """The same for the weights themselves. Buffers, such as running statistics, are reported, never changed."""
        parameters = held_parameters(model)
        table = measure({name: parameter.detach() for name, parameter in parameters})
        if replace_values and not table.total.finite:
            for (_, parameter), finite in zip(parameters, table.finite, strict=True):
                if not finite:
                    replace_nonfinite_(parameter.detach(), self.config.replace_nan_with, self.config.replace_inf_with)
            self.total_replacements += table.total.nan_count + table.total.inf_count
        return {**self.report(table, replaced=replace_values), "bad_buffers": bad_buffers(model)}

    def replace(
        self, parameters: Sequence[tuple[str, torch.Tensor]], table: GradientTable, *, by_zero: bool = False
    ) -> None:
        """Replace in the gradients that the table says are not finite, by the settings or by zeros."""
        nan, inf = (0.0, 0.0) if by_zero else (self.config.replace_nan_with, self.config.replace_inf_with)
        for (_, parameter), finite in zip(parameters, table.finite, strict=True):
            if not finite:
                replace_nonfinite_gradient_(parameter, nan, inf)
        self.total_replacements += table.total.nan_count + table.total.inf_count

    def report(self, table: GradientTable, *, replaced: bool) -> dict[str, Any]:
        """Counts in all and by layer, and how many elements were replaced."""
        total = table.total
        found = total.nan_count + total.inf_count
        counts = zip(table.names, table.nan_count.tolist(), table.inf_count.tolist(), strict=True) if found else ()
        return {
            "has_nan_inf": found > 0,
            "nan_count": total.nan_count,
            "inf_count": total.inf_count,
            "total_count": found,
            "replaced": found if replaced else 0,
            "layers": {name: {"nan": nan, "inf": inf} for name, nan, inf in counts if nan or inf},
        }
