"""Gradient norms over depth, from output to input: data that prints as bars."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gradient_flow.diagnosis.network.depth import EXPLODED, VANISHED
from gradient_flow.table.text import shorten

BAR_WIDTH: Final = 12
_DECADES: Final = 3.0  # a layer this many orders of magnitude below the largest has no bar left
_LEVEL: Final = 0.75  # from this share of the largest norm on a bar is drawn full, so that a flat profile looks flat
_LABEL_WIDTH: Final = 20
_VERDICTS: Final = {
    "stable": "Stable gradient flow!",
    "vanishing": "Vanishing gradients!",
    "exploding": "Exploding gradients!",
    "nan": "Non-finite gradients!",
    "insufficient_data": "No gradients.",
}


@dataclass(frozen=True)
class LayerBar:
    """One layer of a profile."""

    name: str
    label: str
    """The name, marked `(output)` or `(input)` at the ends."""
    norm: float
    relative: float
    """The norm as a share of the largest, 0 to 1."""
    log_length: float
    """1 at the largest norm, 0 from three orders of magnitude below it on."""
    length: int
    """Blocks drawn, 0 to 12: halfway between the linear and the logarithmic length, full within a quarter."""
    status: str
    """`healthy`, `vanishing`, `exploding`, `zero` or `nan`, against the layer nearest the output."""


@dataclass(frozen=True)
class LayerProfile(Sequence[LayerBar]):
    """Layers from output to input. `str()` draws them; `report.figures.plot_profile` makes a figure of them."""

    layers: tuple[LayerBar, ...]
    status: str
    """`stable`, `vanishing`, `exploding`, `nan`, or `insufficient_data` when there are no layers."""

    @property
    def verdict(self) -> str:
        """The line under the bars."""
        return _VERDICTS[self.status]

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # as of the tuple
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerBar]:
        return iter(self.layers)

    def __str__(self) -> str:
        labels = [shorten(layer.label, 45) + ":" for layer in self.layers]
        width = max([_LABEL_WIDTH, *(len(label) + 1 for label in labels)])
        lines = [
            f"{label:<{width}}|{'█' * layer.length:<{BAR_WIDTH}}| norm: {format_norm(layer.norm)}"
            for label, layer in zip(labels, self.layers, strict=True)
        ]
        return "\n".join([*lines, " " * width + self.verdict])


def layer_profile(names: Sequence[str], norms: Sequence[float]) -> LayerProfile:
    """The profile of layers given from input to output."""
    status, statuses = depth_statuses(norms)
    largest = max((norm for norm in norms if math.isfinite(norm)), default=0.0)
    layers = []
    for position in reversed(range(len(names))):
        norm = norms[position]
        relative = norm / largest if largest > 0 and math.isfinite(norm) else 0.0
        log_length = max(0.0, 1.0 + math.log10(relative) / _DECADES) if relative > 0 else 0.0
        share = 1.0 if relative >= _LEVEL else (relative + log_length) / 2
        end = " (output)" if position == len(names) - 1 else " (input)" if position == 0 else ""
        layers.append(
            LayerBar(
                name=names[position],
                label=names[position] + end,
                norm=norm,
                relative=relative,
                log_length=log_length,
                length=int(BAR_WIDTH * share),
                status=statuses[position],
            )
        )
    return LayerProfile(tuple(layers), status)


def format_norm(norm: float) -> str:
    """Plain decimals with at least one significant digit, two decimals at least; powers of ten beyond that.

    >>> format_norm(0.1), format_norm(0.00001), format_norm(1e-12)
    ('0.10', '0.00001', '1.0e-12')
    """
    if not math.isfinite(norm):
        return str(norm)
    if norm == 0:
        return "0"
    digits = -math.floor(math.log10(norm))
    if digits > 6 or digits < -5:
        return f"{norm:.1e}"
    text = f"{norm:.{max(2, digits)}f}"
    return text if float(text) else f"{norm:.1e}"


def layer_status(norm: float, reference: float) -> str:
    """`healthy`, `vanishing`, `exploding`, `zero` or `nan` of one layer, against the norm nearest the output."""
    if not math.isfinite(norm):
        return "nan"
    if norm == 0:
        return "zero"
    decades = math.log10(norm / reference)
    return "vanishing" if decades <= VANISHED else "exploding" if decades >= EXPLODED else "healthy"


def depth_statuses(norms: Sequence[float]) -> tuple[str, list[str]]:
    """The verdict over all layers and the status of each, for norms from the input to the output."""
    usable = [norm for norm in norms if math.isfinite(norm) and norm > 0]
    reference = usable[-1] if usable else 1.0
    statuses = [layer_status(norm, reference) for norm in norms]
    if not statuses:
        return "insufficient_data", statuses
    if "nan" in statuses:
        return "nan", statuses
    if not usable:
        return "vanishing", statuses
    if "exploding" in statuses and "vanishing" not in statuses:
        return "exploding", statuses
    # A single zero layer between healthy ones is a layer without gradient, not a gradient that fades with depth.
    reaches_input = statuses[0] in ("vanishing", "zero")
    return ("vanishing" if "vanishing" in statuses or reaches_input else "stable"), statuses
