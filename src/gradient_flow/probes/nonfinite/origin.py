"""The report on a NaN or Inf: what made it, where, of which numbers, why, and what to do."""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import dataclass
from typing import Any, Final

from gradient_flow.probes.nonfinite.tensor_range import TensorRange, number
from gradient_flow.record.plain import to_plain

WIDTH: Final = 80
_GLUE: Final = "\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteOrigin:
    """The first operation, parameter, buffer, input or constant whose NaN or Inf reached the loss or a gradient.

    Prints as a short report; `to_dict()` is ready for JSON.
    """

    found: bool
    """Whether there was one. If not, `kind` is `none` and the step was sound this time."""
    kind: str
    """`operation`, `parameter`, `buffer`, `input`, `constant` or `none`."""
    message: str
    """What happened, in a sentence or two."""
    why: str = ""
    advice: str = ""
    phase: str | None = None
    """`forward` or `backward`."""
    module: str | None = None
    """Path of the module that ran: `""` is the model itself, None is outside the model."""
    module_type: str | None = None
    operator: str | None = None
    """As the user calls it: `log`, `sqrt backward`, or the name of a custom `autograd.Function`."""
    aten: str | None = None
    """The operator that torch ran: `aten.log.default`."""
    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None
    """The nearest line of the user's own code; for a backward pass that of the forward operation."""
    library: str | None = None
    """`package/file.py:line` in an installed package, where that was nearer to the operation."""
    inputs: tuple[TensorRange, ...] = ()
    outputs: tuple[TensorRange, ...] = ()
    parameter: str | None = None
    """The parameter that was already non-finite, or the one whose gradient a bad backward pass reached first."""
    buffer: str | None = None
    argument: str | None = None
    """The argument of the model that was already non-finite; None also for a tensor made outside the model."""
    hidden_by: str | None = None
    """The operator that keeps the value out of the loss, and where: `where` hides a NaN, its gradient does not."""
    exception: str | None = None
    """What the step raised, if it did."""
    trouble: str | None = None
    """What went wrong with the instruments, if anything did: then the finding may not be the very first."""

    @property
    def location(self) -> str | None:
        """`file:line` of the user's code, the file without its folders."""
        return f"{os.path.basename(self.file)}:{self.line}" if self.file is not None else None

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values. Non-finite numbers are text, because JSON has none."""
        plain: dict[str, Any] = to_plain(self, number)
        return plain

    def __str__(self) -> str:
        lines = _wrapped("", self.message)
        if self.found:
            lines += _wrapped("where", self._where())
            if self.code is not None:
                lines += _wrapped("", self.code, "           | ")
            lines += [row for label, text in self._rows() for row in _wrapped(label, text)]
        return "\n".join(lines)

    def _where(self) -> str:
        module = "outside the model"
        if self.module is not None:
            module = f"{self.module or 'the model itself'} ({self.module_type})"
        elif self.module_type is not None:
            module = f"{self.module_type}, {module}"
        spot = f", {self.location} in {self.function}" if self.file is not None else ""
        return module + spot

    def _rows(self) -> list[tuple[str, str]]:
        rows: list[tuple[str, str | None]] = [("via", self.library), ("operator", self.aten)]
        rows += [("given", f"{extent.name}: {in_words(extent)}") for extent in self.inputs]
        rows += [("made", in_words(extent)) for extent in self.outputs]
        rows += (
            [("gradient", f"of `{self.parameter}` was bad first")]
            if self.phase == "backward" and self.parameter
            else []
        )
        rows += [("hidden", f"by {self.hidden_by}")] if self.hidden_by else []
        rows += [("why", self.why), ("do", self.advice)]
        rows += [("raised", self.exception), ("trouble", self.trouble)]
        return [(label, text) for label, text in rows if text]


def in_words(extent: TensorRange) -> str:
    """A tensor in one phrase.

    >>> in_words(TensorRange(name="x", shape=(2, 3), dtype="float32", count=6, minimum=0.0, maximum=4.0, zeros=2))
    'float32 (2, 3), 0 to 4, 2 zeros'
    """
    if extent.dtype == "number":
        return number(extent.minimum)
    parts = [f"{extent.dtype} {tuple(extent.shape)}"]
    if extent.minimum is not None:
        same = extent.minimum == extent.maximum
        finite = "the rest " if extent.bad else ""
        spread = number(extent.minimum) if same else f"{number(extent.minimum)} to {number(extent.maximum)}"
        parts.append(f"{finite}{'all ' if same and extent.count > 1 and not extent.bad else ''}{spread}")
    if extent.zeros and extent.minimum != extent.maximum:
        parts.append(f"{extent.zeros} zero{'s' if extent.zeros > 1 else ''}")
    if extent.bad:
        parts.insert(
            1, f"{extent.bad} of {extent.count} {values_in_words(extent)}, first at {list(extent.first_bad or ())}"
        )
    if extent.at_fault is not None and extent.count > 1:
        parts.append(f"{number(extent.at_fault)} at the fault")
    return ", ".join(parts)


def values_in_words(extent: TensorRange) -> str:
    """Which non-finite values a tensor holds: `NaN`, `Inf`, `-Inf` or several of them."""
    kinds = {"NaN": extent.nan, "Inf": extent.inf - extent.negative_inf, "-Inf": extent.negative_inf}
    return " and ".join(name for name, count in kinds.items() if count) or "non-finite"


def _wrapped(label: str, text: str, indent: str = "") -> list[str]:
    first = indent or (f"  {label:<9}" if label else "")
    later = indent + "  " if indent else " " * 11 if label else ""
    # Code between backquotes stays on one line.
    text = re.sub("`[^`]*`", lambda code: code[0].replace(" ", _GLUE), text)
    lines = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return [line.replace(_GLUE, " ") for line in lines]
