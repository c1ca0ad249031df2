"""`StepRecord`: what is recorded of every optimizer step."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

    from gradient_flow.table import GradientStats

TOTALS: Final = ("norm", "l1", "linf", "mean", "variance", "min", "max", "zero_fraction", "nan_count", "inf_count")
"""Statistics of all gradients together that every step record holds."""
SKIPPED_LOSSES: Final = "skipped_bad_losses"
"""Under this name a step records how many losses of NaN or Inf went back before it, without a step."""
LONGEST_LIST: Final = 32
"""Most entries of a list that become series: a longer one is an image or a histogram."""


@dataclass(kw_only=True, slots=True)
class StepRecord:
    """One optimizer step: totals of its gradients, what was logged with it, and what was done to it.

    A field that is None is not known, or does not apply.
    """

    step: int
    time: float
    """Seconds since the watch began."""
    norm: float
    """Of all gradients, before clipping, unscaled."""
    l1: float
    linf: float
    mean: float
    variance: float
    min: float
    max: float
    zero_fraction: float
    nan_count: int
    inf_count: int
    loss: Any = None
    clipped_norm: float | None = None
    """After clipping, where the step was clipped."""
    lr: list[Any] | None = None
    """One per parameter group."""
    optimizer: int | None = None
    """Which one stepped, from 0; None for a step recorded with `flow.step()`."""
    amp_scale: float | None = None
    skipped_steps: int | None = None
    """Steps that the `GradScaler` has skipped so far."""
    finite_norm: float | None = None
    """Over the finite elements, where some are not."""
    nonfinite_layers: list[str] | None = None
    nonfinite_ranks: list[dict[str, Any]] | None = None
    clip_threshold: float | None = None
    guard: str | None = None
    """What was done about non-finite gradients."""
    values: dict[str, Any] = field(default_factory=dict)
    """Whatever else was logged with the step."""

    @classmethod
    def of(cls, step: int, time: float, total: GradientStats) -> StepRecord:
        """A record with the totals of a step, to be completed."""
        return cls(step=step, time=time, **dict(zip(TOTALS, total.several(TOTALS), strict=True)))

    @classmethod
    def awaited(cls, step: int, time: float) -> StepRecord:
        """A record whose totals are still on their way."""
        return cls(step=step, time=time, **dict.fromkeys(TOTALS, math.nan))  # type: ignore[arg-type]  # until `fill`

    def fill(self, total: GradientStats) -> None:
        """Put in the totals."""
        for name, value in zip(TOTALS, total.several(TOTALS), strict=True):
            setattr(self, name, value)

    def to_line(self) -> dict[str, Any]:
        """As a line of the run file."""
        line = {"kind": "step"}
        line.update([pair for pair in zip(_FIELDS, _all_fields(self), strict=True) if pair[1] is not None])
        return line | {name: value for name, value in self.values.items() if name not in line} if self.values else line

    def put(self, name: str, value: Any) -> None:
        """Set what was logged under a name: a field, or one of the further values."""
        if name in _FIELDS:
            setattr(self, name, [value] if name == "lr" and not isinstance(value, list) else value)
        else:
            self.values[name] = value

    def pending(self) -> list[tuple[str, Any]]:
        """Values that are still on their way, by name."""
        if not self.values and _HERE.issuperset(map(type, _late_fields(self))):
            return []  # as in nearly every step
        late = zip(_LATE, _late_fields(self), strict=True)
        fields = [(name, value) for name, value in late if type(value) not in _HERE and hasattr(value, "ready")]
        return fields + [(name, value) for name, value in self.values.items() if hasattr(value, "ready")]

    def numbers(self) -> dict[str, float]:
        """Every number of the record by the name of its series."""
        return dict(flat_numbers(self.to_line()))


_FIELDS: Final = tuple(f.name for f in fields(StepRecord) if f.name != "values")
_LATE: Final = ("loss", "lr", "amp_scale", "skipped_steps")
"""Fields that may arrive after the step."""
_HERE: Final = frozenset((float, int, list, type(None)))
"""Types of what is not on its way."""
_all_fields, _late_fields = attrgetter(*_FIELDS), attrgetter(*_LATE)
"""All of them in one call: every step asks."""
RESERVED: Final = frozenset({"kind", "step", "time", *TOTALS})
"""Names that a user cannot log under."""
NO_NUMBERS: Final = frozenset(("kind", "guard", "nonfinite_layers", "nonfinite_ranks"))


def flat_numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and numbers of a record: `outer/inner` for nested ones; a list gives `name`, `name/1`, `name/2`.

    >>> dict(flat_numbers({"lr": [0.1, 0.2], "metrics": {"accuracy": 1}}))
    {'lr': 0.1, 'lr/1': 0.2, 'metrics/accuracy': 1.0}
    """
    for name, value in record.items():
        if name not in NO_NUMBERS:
            yield from _flat(name, value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}/{key}", inner)
    elif isinstance(value, (list, tuple)):
        for position, inner in enumerate(value[:LONGEST_LIST]):
            yield from _flat(item_name(name, position), inner)
    elif isinstance(value, (int, float)):
        yield name, as_float(value)


def item_name(name: str, position: int) -> str:
    """The series of an item of a list: the first has the list's own name."""
    return name if position == 0 else f"{name}/{position}"


def as_float(value: Any) -> float:
    """A number; NaN for null and for an integer beyond every float."""
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        return math.nan


def number_of(value: Any) -> float | None:
    """A number, or a tensor or array of one element, as a float; `None` for anything else. Waits for a device."""
    if isinstance(value, bool):
        return None
    if isinstance(value, numbers.Real):
        return float(value)
    if hasattr(value, "shape") and hasattr(value, "item"):
        item = value.item() if math.prod(value.shape) == 1 else None
        return float(item) if isinstance(item, numbers.Real) else None
    return None


def describe_parameter(name: str, parameter: torch.Tensor) -> dict[str, Any]:
    """What the header of a run says of a parameter."""
    return {"name": name, "shape": list(parameter.shape), "dtype": str(parameter.dtype).removeprefix("torch.")}


def plain_value(value: Any) -> Any:
    """A tensor or array of one element as a number, of several as a list; anything else as it is."""
    if type(value) is float:
        return value
    try:
        if hasattr(value, "numel") and value.numel() != 1:
            return value.tolist()
        return value.item() if hasattr(value, "item") else value
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # without values: on the meta device, sparse
        return None
