"""The user's functions of one epoch: called with what their signature names, and their answers read."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gradient_flow.errors import GradientFlowWarning, InputError
from gradient_flow.record.step import number_of

OFFERED = ("model", "optimizer", "epoch", "gradient_manager")
"""What a function can ask for, by the names of its parameters."""


class EpochResult(NamedTuple):
    """What came back from one epoch."""

    loss: float
    metrics: dict[str, float | None]

    def named(self, kind: str) -> dict[str, float | None]:
        """Loss and metrics under their names in the history: `train_…` or `val_…`."""
        prefix = f"{kind}_"
        metrics = {prefix + name.removeprefix(prefix): value for name, value in self.metrics.items()}
        return {**metrics, f"{prefix}loss": self.loss}


class EpochFunction:
    """A plain or async function that takes any of `model, optimizer, epoch, gradient_manager`.

    The signature is checked here, before anything is trained. What a `functools.partial` binds stays bound.

    >>> import asyncio
    >>> validate = EpochFunction("val_func", lambda epoch: {"loss": 0.5, "accuracy": epoch / 10})
    >>> asyncio.run(validate.result(model=None, optimizer=None, epoch=7, gradient_manager=None))
    EpochResult(loss=0.5, metrics={'accuracy': 0.7})
    """

    def __init__(self, name: str, function: Any) -> None:
        if not callable(function):
            raise InputError(f"`{name}` must be a function, got {type(function).__name__}.")
        self.name = name
        self.function: Callable[..., Any] = function
        self._left_out: set[str] = set()
        self._by_position, self._by_name = _parameters_to_fill(name, function)

    async def call(self, **offered: Any) -> Any:
        """Call it, and wait where it is async."""
        values = [offered[each] if isinstance(each, str) else each.default for each in self._by_position]
        answer = self.function(*values, **{name: offered[name] for name in self._by_name})
        return await answer if inspect.isawaitable(answer) else answer

    async def result(self, **offered: Any) -> EpochResult:
        """Call it, and read loss and metrics from what it returns."""
        answer = await self.call(**offered)
        loss, metrics = answer, {}
        if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping):
            loss, metrics = answer[0], dict(answer[1])
        elif isinstance(answer, Mapping):
            metrics = dict(answer)
            key = next((key for key in ("loss", self._loss_name) if key in metrics), None)
            loss = None if key is None else metrics.pop(key)
        number = number_of(loss)
        if number is None:
            raise InputError(
                f"`{self.name}` returned {_described(answer)}. Return the loss as a number, a mapping with 'loss' (or "
                f"{self._loss_name!r}), or (loss, metrics) with a mapping of metrics."
            )
        return EpochResult(number, self._numbers_of(metrics))

    @property
    def _loss_name(self) -> str:
        return self.name.removesuffix("_func") + "_loss"

    def _numbers_of(self, metrics: dict[Any, Any]) -> dict[str, float | None]:
        kept: dict[str, float | None] = {}
        for key, value in metrics.items():
            number = number_of(value)
            if number is not None or value is None:
                kept[str(key)] = number
            elif str(key) not in self._left_out:
                self._left_out.add(str(key))
                warnings.warn(
                    f"`{self.name}` returned the metric {key!r} as {_described(value)}; only numbers are recorded.",
                    GradientFlowWarning,
                    stacklevel=2,
                )
        return kept


def _parameters_to_fill(name: str, function: Callable[..., Any]) -> tuple[list[str | inspect.Parameter], list[str]]:
    """What to pass by position (a name, or a parameter that keeps its default) and what by name."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise InputError(f"The signature of `{name}` cannot be read ({error}). Wrap it in a `def`.") from error
    bound = set(function.keywords) if isinstance(function, functools.partial) else set()
    by_position: list[str | inspect.Parameter] = []
    by_name: list[str] = []
    takes_any = False
    for parameter in parameters.values():
        known = parameter.name in OFFERED and parameter.name not in bound
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_any = True
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        elif not known and parameter.default is inspect.Parameter.empty:
            raise InputError(
                f"`{name}` asks for `{parameter.name}`, which is not known. It can ask for {', '.join(OFFERED)}; give "
                "other parameters a default, or bind them with functools.partial."
            )
        elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            by_position.append(parameter.name if known else parameter)
        elif known:
            by_name.append(parameter.name)
    if takes_any:
        filled = {*by_name, *bound, *(each for each in by_position if isinstance(each, str))}
        by_name += [each for each in OFFERED if each not in filled]
    return by_position, by_name


def _described(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(repr, value)) or 'nothing in it'}"
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(each).__name__ for each in value) or 'nothing'}"
    return repr(value) if value is None or isinstance(value, (bool, str, complex)) else f"a {type(value).__name__}"
