"""What a training run leaves behind: one list per quantity, one entry per epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_COLUMNS = ("epoch", "train_loss", "val_loss", "learning_rate", "gradient_stats")
_OUTCOME: dict[str, Any] = {
    "monitor": None,
    "best_epoch": None,
    "best_value": None,
    "stopped_early": False,
    "stop_reason": None,
    "restored_best_weights": False,
    "gradient_summary": None,
}


class TrainingHistory(dict[str, Any]):
    """A dictionary of lists of equal length, one entry per epoch, and of what came out at the end.

    Lists: `epoch` (from 0), `train_loss`, `val_loss` (`None` without a validation function), `learning_rate` (of the
    first parameter group, as the epoch began), `gradient_stats` (what the gradient manager saw in the epoch), and
    `train_…` and `val_…` for each metric. Values are as they came, NaN included; `to_dict()` is fit for strict JSON.

    At the end: `monitor` (what was looked at), `best_epoch`, `best_value`, `stopped_early`, `stop_reason`,
    `restored_best_weights` (whether weights of an earlier epoch were put back), `gradient_summary`.

    >>> history = TrainingHistory()
    >>> history.add_epoch({"epoch": 0, "train_loss": float("nan")})
    >>> history.add_epoch({"epoch": 1, "train_loss": 0.5, "val_accuracy": 0.9})
    >>> history["val_accuracy"], history.to_dict()["train_loss"]
    ([None, 0.9], [None, 0.5])
    """

    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        super().__init__({name: [] for name in _COLUMNS})
        self.update(_OUTCOME)
        for name, value in (saved or {}).items():
            self[name] = list(value) if isinstance(value, list) else value

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The lists alone, for a table: `pandas.DataFrame(history.columns)`."""
        return {name: value for name, value in self.items() if name not in _OUTCOME}

    def add_epoch(self, values: Mapping[str, Any]) -> None:
        """Append an epoch. A quantity that is new, or absent this time, gets `None` where there is no value."""
        epochs = len(self["epoch"])
        for name in values:
            self.setdefault(name, [None] * epochs)
        for name, column in self.columns.items():
            column.append(values.get(name))

    def last_epoch_line(self, max_epochs: int) -> str:
        """The last epoch in one line, for a log."""
        parts = [f"{name} {column[-1]:.6g}" for name, column in self.columns.items() if isinstance(column[-1], float)]
        best = "" if self["best_epoch"] is None else f"; best {self['best_value']:.6g} at epoch {self['best_epoch']}"
        return f"epoch {self['epoch'][-1]} ({len(self['epoch'])} of {max_epochs}): {', '.join(parts)}{best}"

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for strict JSON: what is not finite becomes `None`."""
        return {name: _strict(value) for name, value in self.items()}


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _strict(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
