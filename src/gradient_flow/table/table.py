"""`GradientTable`: one row per tensor, read as statistics; and `GradientStats`, one row of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from gradient_flow.errors import InputError, MissingExtraError
from gradient_flow.table import columns
from gradient_flow.table import text as display
from gradient_flow.table.columns import INDEX, NORM_KINDS, STATISTICS, Rows, Thresholds, scale_rows

if TYPE_CHECKING:
    import pandas
    import torch

Scalar = TypeVar("Scalar", float, int, bool)
Formula = Callable[[Rows], NDArray[Any]]


class _OfRow(Generic[Scalar]):
    """A statistic of one row as a plain Python number, computed when asked for."""

    def __init__(self, formula: Formula) -> None:
        self._formula = formula
        self.__doc__ = formula.__doc__

    @overload
    def __get__(self, stats: None, owner: type[GradientStats]) -> _OfRow[Scalar]: ...
    @overload
    def __get__(self, stats: GradientStats, owner: type[GradientStats]) -> Scalar: ...
    def __get__(self, stats: GradientStats | None, owner: type[GradientStats]) -> _OfRow[Scalar] | Scalar:
        if stats is None:
            return self
        value: Scalar = self._formula(stats._row).item()
        return value


class GradientStats:
    """The statistics of one gradient, of a group of gradients, or of all.

    With a NaN or an Inf among the elements, the derived statistics are non-finite too; `finite_part` has them over
    the finite elements.
    """

    __slots__ = ("_given", "_usual", "name")

    def __init__(self, name: str, row: Rows | tuple[float, ...]) -> None:
        self.name = name
        self._given = row
        self._usual: dict[str, float] | None = None

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """As version 0.1 wrote it."""
        return None, {"name": self.name, "_row": self._row}

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        """Read back, also what version 0.1 wrote."""
        self.name, self._given, self._usual = state[1]["name"], state[1]["_row"], None

    @property
    def _row(self) -> Rows:
        if isinstance(self._given, tuple):
            self._given = np.array(self._given)
        return self._given

    norm = _OfRow[float](STATISTICS["norm"])
    l1 = _OfRow[float](STATISTICS["l1"])
    linf = _OfRow[float](STATISTICS["linf"])
    mean = _OfRow[float](STATISTICS["mean"])
    mean_abs = _OfRow[float](STATISTICS["mean_abs"])
    variance = _OfRow[float](STATISTICS["variance"])
    std = _OfRow[float](STATISTICS["std"])
    min = _OfRow[float](STATISTICS["min"])
    max = _OfRow[float](STATISTICS["max"])
    zero_fraction = _OfRow[float](STATISTICS["zero_fraction"])
    near_zero_percent = _OfRow[float](STATISTICS["near_zero_percent"])
    very_large_percent = _OfRow[float](STATISTICS["very_large_percent"])
    nan_count = _OfRow[int](STATISTICS["nan_count"])
    inf_count = _OfRow[int](STATISTICS["inf_count"])
    count = _OfRow[int](STATISTICS["count"])
    finite = _OfRow[bool](STATISTICS["finite"])

    @property
    def finite_part(self) -> GradientStats:
        """The statistics over the finite elements alone."""
        return GradientStats(self.name, columns.finite_part(self._row))

    def several(self, names: Sequence[str]) -> list[Any]:
        """Some statistics at once, in the order of their names."""
        usual = self._usual
        if usual is None:
            given = self._given
            usual = columns.usual_statistics(given if isinstance(given, tuple) else given.tolist()) or {}
            self._usual = usual
        return [usual[name] if name in usual else getattr(self, name) for name in names]

    def to_dict(self) -> dict[str, float | int | bool]:
        """All statistics by name."""
        return {name: formula(self._row).item() for name, formula in STATISTICS.items()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GradientStats):
            return NotImplemented
        return self.name == other.name and np.array_equal(self._row, other._row)

    __hash__ = None  # type: ignore[assignment]  # compared by value, and floats make poor keys

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={value:.6g}" for name, value in self.to_dict().items() if name != "finite")
        return f"GradientStats({self.name!r}, {parts}, finite={self.finite})"


class _OfTable:
    """A statistic of all rows as an array, computed when asked for."""

    def __init__(self, formula: Formula) -> None:
        self._formula = formula
        self.__doc__ = formula.__doc__

    @overload
    def __get__(self, table: None, owner: type[GradientTable]) -> _OfTable: ...
    @overload
    def __get__(self, table: GradientTable, owner: type[GradientTable]) -> NDArray[Any]: ...
    def __get__(self, table: GradientTable | None, owner: type[GradientTable]) -> _OfTable | NDArray[Any]:
        return self if table is None else self._formula(table.rows)


class GradientTable(Mapping[str, GradientStats]):
    """One row per gradient tensor: `table["layer.weight"].norm`, `table.total.norm`, `table.norms("l1")`.

    Statistics of all rows are NumPy arrays under the same names (`table.norm`, `table.std`), and so are the recorded
    columns (`table.sum_sq`, `table.zeros`; all of them as `table.column(name)`). Tables merge exactly: `total` is the
    merge of all rows, `group` that of some, and `merge` that of two tables. `missing` names parameters that had no
    gradient; they are not zero, they are absent.

    >>> import numpy as np
    >>> from gradient_flow import measure
    >>> table = measure({"a": np.array([3.0, 4.0]), "b": np.array([12.0])})
    >>> table["a"].norm, table.total.norm
    (5.0, 13.0)
    """

    def __init__(
        self,
        names: Sequence[str],
        rows: Rows | Callable[[], Rows],
        *,
        missing: Sequence[str] = (),
        thresholds: Thresholds | None = None,
    ) -> None:
        self.names = tuple(names)
        self.missing = tuple(missing)
        self.thresholds = thresholds or Thresholds()
        self._rows = rows
        self._on_device: Callable[[], torch.Tensor] | None = getattr(rows, "on_device", None)
        self._position: dict[str, int] | None = None
        self._total: GradientStats | None = None

    @property
    def rows(self) -> Rows:
        """The matrix of recorded columns, one row per name. On an accelerator this is where the host waits, once."""
        if callable(self._rows):
            self._rows = self._rows()
        return self._rows

    @property
    def ready(self) -> bool:
        """Whether the rows can be read without waiting for a device."""
        return not callable(self._rows) or bool(getattr(self._rows, "ready", bool)())

    def wait(self) -> None:
        """Wait for the rows, where they have not come."""
        _ = self.rows

    @property
    def has_rows_on_device(self) -> bool:
        """Whether `rows_on_device` has them."""
        return self._on_device is not None

    def rows_on_device(self) -> torch.Tensor | None:
        """The rows as the device has them that made them, whether the host has read them or not; None elsewhere.

        What is decided from these is decided without a wait.
        """
        return None if self._on_device is None else self._on_device()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_rows": self.rows, "_on_device": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({"_on_device": None} | state)

    def column(self, name: str) -> NDArray[np.float64]:
        """One recorded column, by its name in `gradient_flow.table.columns.COLUMNS`."""
        if name not in INDEX:
            raise InputError(f"`name` must be one of {', '.join(INDEX)}; got {name!r}.")
        return self.rows[:, INDEX[name]]

    def unscaled(self, scale: float, thresholds: Thresholds | None = None) -> GradientTable:
        """The table of the same gradients without a loss scale; `thresholds`: those its counts were taken by."""
        if scale == 1.0 and thresholds in (None, self.thresholds):
            return self
        rows = scale_rows(self.rows, 1.0 / scale)
        return GradientTable(self.names, rows, missing=self.missing, thresholds=thresholds or self.thresholds)

    norm = _OfTable(STATISTICS["norm"])
    l1 = _OfTable(STATISTICS["l1"])
    linf = _OfTable(STATISTICS["linf"])
    mean = _OfTable(STATISTICS["mean"])
    mean_abs = _OfTable(STATISTICS["mean_abs"])
    variance = _OfTable(STATISTICS["variance"])
    std = _OfTable(STATISTICS["std"])
    min = _OfTable(STATISTICS["min"])
    max = _OfTable(STATISTICS["max"])
    zero_fraction = _OfTable(STATISTICS["zero_fraction"])
    near_zero_percent = _OfTable(STATISTICS["near_zero_percent"])
    very_large_percent = _OfTable(STATISTICS["very_large_percent"])
    nan_count = _OfTable(STATISTICS["nan_count"])
    inf_count = _OfTable(STATISTICS["inf_count"])
    count = _OfTable(STATISTICS["count"])
    finite = _OfTable(STATISTICS["finite"])
    sum = _OfTable(lambda rows: rows[:, INDEX["sum"]])
    sum_sq = _OfTable(lambda rows: rows[:, INDEX["sum_sq"]])
    sum_abs = _OfTable(lambda rows: rows[:, INDEX["sum_abs"]])
    zeros = _OfTable(lambda rows: rows[:, INDEX["zeros"]])
    near_zero = _OfTable(lambda rows: rows[:, INDEX["near_zero"]])
    very_large = _OfTable(lambda rows: rows[:, INDEX["very_large"]])
    nan = _OfTable(lambda rows: rows[:, INDEX["nan"]])
    inf = _OfTable(lambda rows: rows[:, INDEX["inf"]])

    @property
    def total(self) -> GradientStats:
        """All gradients as one."""
        if not isinstance(self._total, GradientStats):  # a pickle of version 0.1 may hold it as a row
            merge = getattr(self._rows, "total", None)  # of rows that the kernel can put together by itself
            self._total = GradientStats("total", columns.merge_rows(self.rows) if merge is None else merge())
        return self._total

    @property
    def finite_part(self) -> GradientTable:
        """The same table with the non-finite elements left out."""
        return self._like(self.names, columns.finite_part(self.rows), self.missing)

    def norms(self, kind: str = "l2") -> NDArray[np.float64]:
        """The norm of every row: `l2`, `l1`, `linf`, or `mean` (mean magnitude)."""
        if kind not in NORM_KINDS:
            raise InputError(f"`kind` must be one of {', '.join(NORM_KINDS)}; got {kind!r}.")
        return NORM_KINDS[kind](self.rows)

    def group(
        self, groups: Callable[[str], str | None] | Mapping[str, str | Sequence[str]], *, rest: bool = True
    ) -> GradientTable:
        """Merge rows into groups; groups come in the order of their first row.

        `groups` is a function from row name to group, or a mapping: from group to a name pattern or several
        (`{"encoder": "encoder.*"}`), or from row name to group. A row that belongs to no group keeps its own name, or
        is left out with `rest=False`.
        """
        find = _group_finder(groups, self.names + self.missing)
        members: dict[str, list[int]] = {}
        for position, name in enumerate(self.names):
            group = find(name)
            if group is not None or rest:
                members.setdefault(name if group is None else group, []).append(position)
        absent = {find(name) or (name if rest else None) for name in self.missing} - members.keys() - {None}
        rows = np.array([columns.merge_rows(self.rows[positions]) for positions in members.values()])
        rows = rows.reshape(-1, len(columns.COLUMNS))
        return self._like(tuple(members), rows, tuple(name for name in sorted(filter(None, absent))))

    def merge(self, other: GradientTable) -> GradientTable:
        """Both tables as one: rows of the same name merge, the others follow one another."""
        if not isinstance(other, GradientTable):
            raise InputError(f"`other` must be a GradientTable, got {type(other).__name__}. Use measure() to make one.")
        if other.thresholds != self.thresholds:
            raise InputError(
                f"`other` was measured with {other.thresholds}, this table with {self.thresholds}: their counts do not "
                "add up. Measure both with the same thresholds."
            )
        present = dict.fromkeys(self.names + other.names)
        names = tuple(present)
        stacked = [[table.rows[table._index[name]] for table in (self, other) if name in table] for name in names]
        rows = np.array([columns.merge_rows(np.stack(rows)) for rows in stacked]).reshape(-1, len(columns.COLUMNS))
        missing = tuple(name for name in dict.fromkeys(self.missing + other.missing) if name not in present)
        return self._like(names, rows, missing)

    def to_dict(self) -> dict[str, Any]:
        """`{"total": {...}, "gradients": {name: {...}}, "missing": [...]}` with plain Python numbers."""
        statistics = {name: formula(self.rows).tolist() for name, formula in STATISTICS.items()}
        gradients = {
            name: {statistic: values[position] for statistic, values in statistics.items()}
            for position, name in enumerate(self.names)
        }
        return {"total": self.total.to_dict(), "gradients": gradients, "missing": list(self.missing)}

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame: one row per gradient, one column per statistic."""
        try:
            import pandas
        except ImportError as problem:
            raise MissingExtraError("pandas") from problem
        data = {name: formula(self.rows) for name, formula in STATISTICS.items()}
        return pandas.DataFrame(data, index=pandas.Index(self.names, name="gradient"))

    @property
    def _index(self) -> dict[str, int]:
        if self._position is None:
            self._position = {name: position for position, name in enumerate(self.names)}
        return self._position

    def _like(self, names: tuple[str, ...], rows: Rows, missing: tuple[str, ...]) -> GradientTable:
        return GradientTable(names, rows, missing=missing, thresholds=self.thresholds)

    def __getitem__(self, key: str | int) -> GradientStats:
        if isinstance(key, (int, np.integer)):
            return GradientStats(self.names[key], self.rows[key])
        if not isinstance(key, str):
            raise InputError(f"a row is asked for by its name or position, got {key!r}.")
        try:
            return GradientStats(key, self.rows[self._index[key]])
        except KeyError:
            why = "it had no gradient" if key in self.missing else f"the table has {display.shorten_list(self.names)}"
            raise KeyError(f"no gradient named {key!r}: {why}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, key: object) -> bool:
        return key in self._index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GradientTable):
            return NotImplemented
        same_names = (self.names, self.missing, self.thresholds) == (other.names, other.missing, other.thresholds)
        return same_names and np.array_equal(self.rows, other.rows)

    __hash__ = None  # type: ignore[assignment]  # compared by value

    def __repr__(self) -> str:
        return display.as_text(self)

    def _repr_html_(self) -> str:
        return display.as_html(self)


def _group_finder(groups: Any, names: Sequence[str]) -> Callable[[str], str | None]:
    if callable(groups):
        return lambda name: None if (group := groups(name)) is None else str(group)
    if not isinstance(groups, Mapping):
        raise InputError(
            f"`groups` must be a function from name to group or a mapping like {{'encoder': 'encoder.*'}}; got "
            f"{type(groups).__name__}."
        )
    if groups and all(name in set(names) for name in groups):
        return lambda name: groups.get(name)
    from fnmatch import fnmatchcase

    patterns: list[tuple[str, Any]] = []
    for group, given in groups.items():
        patterns += [(group, pattern) for pattern in (given if isinstance(given, (list, tuple)) else [given])]
    for group, pattern in patterns:
        if not isinstance(pattern, str):
            raise InputError(f"`groups[{group!r}]` must be a name pattern or a list of them; got {pattern!r}.")
    return lambda name: next((group for group, pattern in patterns if fnmatchcase(name, pattern)), None)
