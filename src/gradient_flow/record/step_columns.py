"""The step records of a run as columns of numbers: a tenth of the memory of the records themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.record.step import LONGEST_LIST, NO_NUMBERS, as_float, flat_numbers, item_name

_NUMBERS: Final = frozenset((float, int, bool, type(None)))
_COUNTS: Final = frozenset(("nan_count", "inf_count", "skipped_steps", "optimizer"))
"""Whole numbers from 0 on; anything else is not known."""
_LARGEST_COUNT: Final = 2.0**53
MOST_SERIES: Final = 4096
"""Names beyond that are left out: a file whose every step logs other names would take memory without bound."""


class StepColumns:
    """Numbers by name, one entry per recorded step; NaN where a record does not have it or has null.

    Nested values are named `outer/inner`; a list gives `name`, `name/1`, `name/2`.
    """

    def __init__(self) -> None:
        self._columns: dict[str, NDArray[np.float64]] = {"step": np.empty(64)}
        self._length = 0
        self.left_out = False
        """Whether there were more names than are kept."""
        self.remarks: dict[int, tuple[str | None, list[str]]] = {}
        """Step → what the guard did, and the layers that were not finite; of the steps that have either."""
        self.bad_losses: list[int] = []
        """Steps whose loss was NaN or Inf: it is there, and no number. One that is not known is not there."""

    def __len__(self) -> int:
        return self._length

    @property
    def names(self) -> list[str]:
        """Every column that there is."""
        return list(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return self._columns[name][: self._length]

    def get(self, name: str) -> NDArray[np.float64]:
        """The column, all NaN where no step has it."""
        return self[name] if name in self._columns else np.full(self._length, np.nan)

    def extend(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Append step records, whose steps grow."""
        self._reserve(self._length + len(records))
        here = slice(self._length, self._length + len(records))
        layouts = set(map(tuple, records))
        for key, values in _transposed(records, layouts):
            if key in NO_NUMBERS:
                continue
            if _NUMBERS.issuperset(map(type, values)):
                self._column(key)[here] = _floats(values)
            elif (width := _equal_width(values)) is not None:  # learning rates: many steps, always as many
                for place, column in enumerate(_floats(values).T if width else ()):
                    self._column(item_name(key, place))[here] = column
            else:
                for at, value in enumerate(values, start=self._length):
                    for name, number in flat_numbers({key: value}):
                        self._column(name)[at] = number
        for key in _COUNTS & self._columns.keys():
            counts = self._columns[key][here]
            counts[~((counts >= 0) & (counts < _LARGEST_COUNT))] = np.nan
        if any("guard" in layout or "nonfinite_layers" in layout for layout in layouts):
            self._remember_remarks(records)
        if any("loss" in layout for layout in layouts):
            self._remember_losses(records, here)
        self._length += len(records)

    def keep_before(self, step: int) -> None:
        """Forget what is from `step` on: a resumed run does it again."""
        self._length = int(np.searchsorted(self["step"], step))
        self.remarks = {at: remark for at, remark in self.remarks.items() if at < step}
        self.bad_losses = [at for at in self.bad_losses if at < step]
        for column in self._columns.values():
            column[self._length :] = np.nan

    def _remember_remarks(self, records: Sequence[Mapping[str, Any]]) -> None:
        before: list[str] = []
        for record in records:
            guard, layers = record.get("guard"), record.get("nonfinite_layers")
            layers = layers if isinstance(layers, list) else []
            if guard or layers:
                # Once the weights are NaN every step names the same layers: keep that list once.
                before = before if layers == before else [str(layer) for layer in layers]
                self.remarks[int(record["step"])] = None if guard is None else str(guard), before

    def _remember_losses(self, records: Sequence[Mapping[str, Any]], here: slice) -> None:
        column = self._columns.get("loss")
        bad = range(len(records)) if column is None else np.flatnonzero(~np.isfinite(column[here])).tolist()
        for record in (records[at] for at in bad):
            if type(record.get("loss", "")) in (float, type(None)):
                self.bad_losses.append(int(record["step"]))

    def _column(self, name: str) -> NDArray[np.float64]:
        if name not in self._columns and len(self._columns) >= MOST_SERIES:
            self.left_out = True
            return np.empty(len(self._columns["step"]))
        if name not in self._columns:
            self._columns[name] = np.full(len(self._columns["step"]), np.nan)
        return self._columns[name]

    def _reserve(self, length: int) -> None:
        capacity = len(self._columns["step"])
        if length > capacity:
            more = np.full(max(length, 2 * capacity) - capacity, np.nan)
            self._columns = {name: np.concatenate([column, more]) for name, column in self._columns.items()}


def _transposed(
    records: Sequence[Mapping[str, Any]], layouts: set[tuple[str, ...]]
) -> Iterator[tuple[str, Sequence[Any]]]:
    """Key by key instead of record by record. `layouts`: which keys they have, in which order."""
    if len(layouts) == 1:  # as nearly always; three times as fast
        yield from zip(records[0], zip(*[record.values() for record in records], strict=True), strict=True)
        return
    for key in dict.fromkeys(key for record in records for key in record):
        yield key, [record.get(key) for record in records]


def _equal_width(values: Sequence[Any]) -> int | None:
    """Of lists of numbers that are all equally long; none otherwise."""
    if {type(value) for value in values} != {list} or len({len(value) for value in values}) != 1:
        return None
    width = len(values[0])
    plain = width <= LONGEST_LIST and _NUMBERS.issuperset(type(item) for value in values for item in value)
    return width if plain else None


def _floats(values: Sequence[Any]) -> NDArray[np.float64]:
    try:
        if values and type(values[0]) is not list:
            with suppress(TypeError):  # null; without it, this takes half the time of `array`
                return np.fromiter(values, dtype=np.float64, count=len(values))
        return np.array(values, dtype=np.float64)
    except OverflowError:  # an integer beyond every float
        plain = [[as_float(v) for v in value] if isinstance(value, list) else as_float(value) for value in values]
        return np.array(plain, dtype=np.float64)
