"""Every exception of the package: one tree, each message with the argument, the rule, what came and what to do."""

from __future__ import annotations

import math
import numbers
import re
import warnings
from collections.abc import Iterable
from typing import Any, Final

__all__ = [
    "ConfigError",
    "GradientFlowError",
    "GradientFlowWarning",
    "InputError",
    "KernelError",
    "MissingExtraError",
    "MonitorStateError",
    "NonFiniteGradientError",
    "RunFileError",
    "warn",
]


class GradientFlowError(Exception):
    """Base of everything this package raises on purpose."""


class InputError(GradientFlowError, ValueError, TypeError):
    """An argument has an invalid type, shape or value."""


class ConfigError(GradientFlowError, ValueError):
    """A setting is out of its range."""


class NonFiniteGradientError(GradientFlowError, ArithmeticError):
    """A gradient holds NaN or Inf where a finite one is needed."""


class MonitorStateError(GradientFlowError, RuntimeError):
    """A monitor was used in a state that does not allow it: closed, attached already, or a second backward."""


class RunFileError(GradientFlowError, ValueError):
    """A run folder cannot be read."""


class KernelError(GradientFlowError, RuntimeError):
    """The requested kernel is not available in this installation."""


class MissingExtraError(GradientFlowError, ImportError):
    """An optional package is missing."""

    def __init__(self, extra: str) -> None:
        # Packages by name and not `gradient-flow[...]`: that needs an index that has this package, a clone does not.
        # In double quotes, which every shell understands.
        packages = " ".join(f'"{package}"' for package in _packages_of(extra))
        super().__init__(f"This needs the `{extra}` extra. Install it with: pip install {packages}")
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str]]:
        return type(self), (self.extra,)  # the inherited one would pass the message as the extra


_EXTRA_MARKER: Final = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
_PACKAGES: Final = {
    "plots": ("matplotlib",),
    "parquet": ("pyarrow",),
    "lightning": ("lightning", "matplotlib"),
    "huggingface": ("transformers", "accelerate"),
    "mlflow": ("mlflow-skinny",),
    "dashboard": ("starlette", "uvicorn"),
    "fleet": ("duckdb", "pyarrow", "fsspec"),
    "notebook": ("ipython",),
}
"""Extras that are not named like their one package, for a source tree on the path that was never installed."""


def _packages_of(extra: str) -> tuple[str, ...]:
    """The requirements of an extra, `wandb>=0.16`, as the installed package states them."""
    from importlib import metadata  # here: it is slow to import, and only this message needs it

    try:
        stated = metadata.requires("gradient-flow") or []
    except metadata.PackageNotFoundError:
        stated = []
    parts = (requirement.partition(";") for requirement in stated)
    found = tuple(package.strip() for package, _, marker in parts if extra in _EXTRA_MARKER.findall(marker))
    return found or _PACKAGES.get(extra, (extra,))


class GradientFlowWarning(UserWarning):
    """Something was noticed that does not stop the work."""


def warn(message: str, stacklevel: int = 2) -> None:
    """Warn with `GradientFlowWarning`; where a filter turns warnings into errors, log the message instead.

    With `python -W error` our warning would otherwise end the user's training. `stacklevel` counts as in
    `warnings.warn`: 1 is the line of this call, 2 its caller.

    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error")
    ...     warn("Inf gradients were replaced.")
    """
    try:
        warnings.warn(message, GradientFlowWarning, stacklevel=stacklevel + 1)
    except GradientFlowWarning:
        import logging  # a sixth of what `import gradient_flow` takes, and most programs never come here

        logging.getLogger("gradient_flow").warning("%s", message)


def check_whole(
    name: str, value: Any, at_least: int = 1, error: type[GradientFlowError] = ConfigError, advice: str = ""
) -> int:
    """The value, if it is an integer ≥ `at_least`; raise `error` otherwise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < at_least:
        raise error(f"`{name}` must be an integer ≥ {at_least}, got {value!r}.{advice and f' {advice}'}")
    return int(value)


def check_number(
    name: str,
    value: Any,
    rule: str,
    lower: float,
    upper: float = math.inf,
    *,
    open_ends: str = "",
    error: type[GradientFlowError] = ConfigError,
    advice: str = "",
) -> float:
    """The value, if it is a finite number in the range; `open_ends` says which ends (`l`, `u`) are outside of it."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    above = number > lower if "l" in open_ends else number >= lower
    below = number < upper if "u" in open_ends else number <= upper
    if not (above and below and math.isfinite(number)):
        raise error(f"`{name}` must be {rule}, got {value!r}.{advice and f' {advice}'}")
    return number


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise unless it is one of the choices; the message lists them."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"`{name}` must be one of {', '.join(map(repr, known))}; got {value!r}.")


def check_flag(name: str, value: Any) -> None:
    """Raise unless it is True or False: the text "False" would count as true."""
    if not isinstance(value, bool):
        raise ConfigError(f"`{name}` must be True or False, got {value!r}.")
