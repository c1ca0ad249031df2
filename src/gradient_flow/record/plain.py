"""Typed records as plain mappings and back: what a probe found, in a form that a file can hold.

JSON has no NaN and no infinity. In the numbers of a step they become null; in what a probe found, null means "not
measured", so here they stand as the texts `NaN`, `Infinity` and `-Infinity`, as in the JSON form of Protocol Buffers.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from gradient_flow.errors import RunFileError

Kind = TypeVar("Kind")
_DEEPEST: Final = 24
"""Levels of nesting: what probes find has fewer than ten, and a line of the run file may have 32."""
_TEXTS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_OURS: Final = "gradient_flow."
_RECORDS: Final[dict[type, tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]]] = {}
"""Our own dataclasses that were met → names of their fields, and what reads all of them at once."""
_NUMBERS: Final = frozenset({float})
_LISTS: Final = frozenset({list, tuple})
_AS_THEY_ARE: Final = frozenset({str, int, bool, type(None)})


def to_plain(value: Any, nonfinite: Callable[[float], Any] | None = None) -> Any:
    """Nested dataclasses, tuples, sets and enums as mappings, lists, numbers and texts.

    `nonfinite` says what NaN and the infinities become: their texts, where nothing is given. A value that has no text,
    or that contains itself, is named by its type: it must not cost the caller more than itself.

    >>> to_plain((1.0, float("nan"), {"a": None}))
    [1.0, 'NaN', {'a': None}]
    """
    return _plain(value, nonfinite or _text, 0)


def _plain(value: Any, spell: Callable[[float], Any], depth: int) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:  # most values by far, and a look has thousands
        return value
    if kind is float:
        return value if math.isfinite(value) else spell(value)
    if depth < _DEEPEST and (kind in _LISTS or kind in _RECORDS):  # nearly all of the rest
        if kind in _LISTS:
            return _listed(value, spell, depth + 1)
        names, fields = _RECORDS[kind]
        plain = dict(zip(names, fields(value), strict=True))
        for name, item in plain.items():
            own = type(item)
            if own not in _AS_THEY_ARE and (own is not float or not math.isfinite(item)):
                plain[name] = _plain(item, spell, depth + 1)
        return plain
    if value is None or (isinstance(value, (bool, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else spell(value)
    if isinstance(value, int) and not isinstance(value, Enum):
        return int(value)
    if depth == _DEEPEST:
        return _named(value)
    within = partial(_plain, spell=spell, depth=depth + 1)
    if isinstance(value, Enum):
        return within(value.value)
    if isinstance(value, complex):
        return [within(value.real), within(value.imag)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value))
        if kind.__module__.startswith(_OURS):
            _RECORDS[kind] = names, attrgetter(*names) if len(names) > 1 else lambda own: (getattr(own, names[0]),)
        return {name: within(getattr(value, name)) for name in names}
    try:
        if isinstance(value, Mapping):
            return {text_of(key): within(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [within(item) for item in value]
        if isinstance(value, (set, frozenset)):
            return _sorted([within(item) for item in value])
        if hasattr(value, "tolist"):  # numbers and arrays of NumPy
            return within(value.tolist())
    except Exception:  # code of the user's own, or a tensor without values
        return _named(value)
    return text_of(value)


def _listed(values: list[Any] | tuple[Any, ...], spell: Callable[[float], Any], depth: int) -> Any:
    try:
        kinds = set(map(type, values))
        if kinds <= _AS_THEY_ARE or (kinds <= _NUMBERS and all(map(math.isfinite, values))):
            return list(values)  # long lists of numbers are most of a look
        return [item if type(item) in _AS_THEY_ARE else _plain(item, spell, depth) for item in values]
    except Exception:  # code of the user's own
        return _named(values)


def text_of(value: Any) -> str:
    """`str(value)`; for a value whose own code fails at that, its type."""
    try:
        return str(value)
    except Exception:
        return _named(value)


def _named(value: Any) -> str:
    return f"<{type(value).__name__}>"


def _sorted(items: list[Any]) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:  # of several types
        return sorted(items, key=text_of)


def to_json(value: Any) -> Any:
    """The same for people and other programs: what is not finite becomes `None`."""
    return to_plain(value, lambda _: None)


def from_plain(kind: type[Kind], value: Any) -> Kind:
    """The dataclass that `to_plain` made a mapping of. Fields that are unknown here are left out.

    A field that is missing takes its default; one without a default, or of another type, is a `RunFileError`.
    """
    try:
        made: Kind = _read(kind, value)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as problem:
        raise RunFileError(f"The run file is damaged: this is no {kind.__name__} ({problem}).") from problem
    return made


def _text(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _read(kind: Any, value: Any) -> Any:
    if type(value) is kind:  # a number, a text, a truth value: as most are
        return value
    origin, inner = _shape(kind)
    if origin in (Union, types.UnionType):
        return _read_union(inner, value)
    if kind is Any:
        return value
    if kind is float:
        return _float(value)
    if kind is complex:
        real, imaginary = value
        return complex(_float(real), _float(imaginary))
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if origin is None:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(f"{type(value).__name__} in place of {kind.__name__}")
        return value
    return _container(origin, inner, value)


@cache
def _shape(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a type is made of, looked up once: a look has thousands of values of a few types."""
    return get_origin(kind), get_args(kind)


def _container(origin: Any, inner: tuple[Any, ...], value: Any) -> Any:
    if origin in (list, set, frozenset) or (isinstance(origin, type) and issubclass(origin, tuple)):
        if not isinstance(value, list):
            raise TypeError(f"{type(value).__name__} in place of a list")
        if origin is tuple and not (len(inner) == 2 and inner[1] is Ellipsis):
            return tuple(_read(each, item) for each, item in zip(inner, value, strict=True))
        return origin(value if _as_they_are(inner[0], value) else (_read(inner[0], item) for item in value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise TypeError(f"{type(value).__name__} in place of a mapping")
        return {_key(inner[0], key): _read(inner[1], item) for key, item in value.items()}
    if not isinstance(value, list):  # Sequence[...]
        raise TypeError(f"{type(value).__name__} in place of a list")
    return list(value) if _as_they_are(inner[0], value) else [_read(inner[0], item) for item in value]


_PLAIN: Final[Mapping[Any, frozenset[type]]] = {
    float: frozenset((float,)),
    int: frozenset((int,)),
    str: frozenset((str,)),
    float | None: frozenset((float, type(None))),
}
"""Types of items → what JSON makes of them, where that is the item itself."""


def _as_they_are(kind: Any, items: list[Any]) -> bool:
    """Whether every item is already what it shall be: nearly all of a look is long lists of numbers."""
    return kind in _PLAIN and _PLAIN[kind].issuperset(map(type, items))


def _key(kind: Any, key: str) -> Any:
    return int(key) if kind is int else key


def _read_union(choices: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in choices:
        return None
    problem: Exception = TypeError(f"{type(value).__name__} fits none of the types")
    for choice in choices:
        if choice is type(None):
            continue
        try:
            return _read(choice, value)
        except (TypeError, ValueError, KeyError) as wrong:
            problem = wrong
    raise problem


def _float(value: Any) -> float:
    if isinstance(value, str):
        return _TEXTS[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{type(value).__name__} in place of a number")
    return float(value)


def _dataclass(kind: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"{type(value).__name__} in place of a mapping")
    return kind(**{name: _read(hint, value[name]) for name, hint in _fields(kind) if name in value})


@cache
def _fields(kind: Any) -> list[tuple[str, Any]]:
    hints = get_type_hints(kind)
    return [(field.name, hints[field.name]) for field in dataclasses.fields(kind)]
