"""What an analysis saw, as plain numbers: the only thing that rules are given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

DEFAULTS: Final = {
    "vanishing_threshold": 1e-6,
    "exploding_threshold": 10.0,
    "dead_threshold": 0.9,
    "unstable_cv_threshold": 3.0,
}
"""The documented thresholds: beyond one of them alone is a LOW remark."""

Numbers = Sequence[float | None]


RECURRENT: Final = frozenset({"RNN", "GRU", "LSTM"})
"""Kinds of torch's recurrent layers."""


@dataclass(kw_only=True)
class Place:
    """One tensor between modules, over the steps looked at closely (`AnalysisRecord.watched`)."""

    name: str
    """Path of the module that returned it (or, with role `input`, that took it)."""
    role: str
    call: int
    kind: str
    """Class of that module."""
    layer: str
    """Path of the layer with weights that it belongs to: its own, or the last before it."""
    order: int
    units: int
    size: int
    """Elements per sample."""
    samples: int
    positions: int
    own_weights: bool
    """Whether the module itself has weights that are trained."""
    from_data: bool
    """Whether the module took only what needs no gradient."""
    from_batch: bool = False
    """Whether it took a tensor of the batch as it is."""
    dtype: str = "float32"
    rms: list[float] = field(default_factory=list)
    """Root mean square of the values, NaN in steps where it was not seen."""
    gradient: list[float | None] = field(default_factory=list)
    """Norm of the gradient; None where none came."""
    bad_values: list[int] = field(default_factory=list)
    bad_gradients: list[int] = field(default_factory=list)
    """Non-finite elements."""
    dead_share: float | None = None
    """Share of units with no positive value and no gradient in any row of the last steps."""
    dead_share_at_first: float | None = None
    variation: float | None = None
    """Median over units that do fire: deviation over samples, relative to the root mean square."""
    rows_seen: int = 0
    empty_samples: float | None = None
    """Share of samples to which no gradient came at all."""
    rank: float | None = None
    """Effective rank of the values."""
    gradient_rank: float | None = None
    patch_rank: float | None = None
    """Effective rank of that part of the input which one position stands for, where the model gives back a picture."""
    reach: float | None = None
    """Of a sequence at whose last position the gradient is largest: the share of positions that it reaches."""
    kinds: int | None = None
    """Of an embedding: how many different vectors it gave at most in one look, of those that were seen."""
    table_rows: int | None = None
    """Of an embedding: how many vectors its table has."""
    on_a_line: bool | None = None
    """Whether the values of all samples lie on one line, although those of the layer before it do not."""
    looks_at_one_value: int = 0
    """Looks up to the last at which each sample had the same values at all positions, although it does not before."""
    spread: list[float] = field(default_factory=list)
    """How far samples lie apart, look by look, where a model ends more than once in this layer: views of a sample."""
    apart: float | None = None
    """Of the first place of a chain at the first look: how far samples lie from their mean, over the size of values."""
    looks_as_one: int = 0
    """Looks up to the last at which all samples had the same values, although those of the layer before it differ."""

    def add(self, index: int, *, rms: float, gradient: float | None, bad_values: int, bad_gradients: int) -> None:
        """Add a watched step; those in which the place was not seen are filled up."""
        missing = index - len(self.rms)
        self.rms += [math.nan] * missing + [rms]
        self.gradient += [None] * missing + [gradient]
        self.bad_values += [0] * missing + [bad_values]
        self.bad_gradients += [0] * missing + [bad_gradients]

    @property
    def typical_gradient(self) -> float | None:
        """Median over the watched steps; None where no gradient came."""
        seen = [norm for norm in self.gradient if norm is not None and math.isfinite(norm)]
        return median(seen) if seen else None

    @property
    def typical_rms(self) -> float:
        """Median over the watched steps, NaN where there is none."""
        seen = [value for value in self.rms if math.isfinite(value)]
        return median(seen) if seen else math.nan


@dataclass(kw_only=True)
class Activation:
    """A bounded activation."""

    layer: str
    """The layer that feeds it."""
    kind: str
    flat_share: float
    """Share of entries where its slope is below a twentieth of the largest."""
    mean_slope: float
    is_last: bool
    """Whether no layer with weights comes after it."""
    first_flat_share: float = math.nan
    """The same at the first watched step."""
    in_branch: bool = False
    """Whether it stands beside the main path: a gate, or the inside of a residual branch."""
    above: float = 0.5
    """Share of its values in the upper half of its range: of a gate, how often it is open."""


@dataclass(kw_only=True)
class Layer:
    """A module with weights of its own."""

    name: str
    kind: str
    trainable: bool
    """Whether any of its parameters is trained."""
    order: int | None = None
    """When it ran first; None if it never did."""
    parameters: tuple[str, ...] = ()
    matrix: str | None = None
    """Name of its largest parameter of two dimensions or more."""
    matrix_frozen: bool = False
    """Whether that one is not trained, but only a bias beside it, say."""
    gradient_seen: bool = False
    """Whether a gradient came to any of its parameters in any step."""
    reaches_loss: bool | None = None
    """Whether its output is part of the graph of the loss; None where that is not known."""
    without_grad: bool = False
    """Whether it ran only where gradients were switched off."""
    used_by_sibling: bool = False
    """Whether another module of its kind, in the same list, ran: an idle expert, not a forgotten layer."""
    in_optimizer: bool | None = None
    equal_units: bool = False
    """Whether weights and gradients of all units are the same."""
    rank_one: bool = False
    """Whether the rows of its matrix are multiples of one another."""
    takes: int | None = None
    """Numbers that it takes at each position, of a dense layer."""
    zero_weights: bool = False
    bad_weights: int = 0
    """Non-finite weights before the first step."""
    gradient: list[float | None] = field(default_factory=list)
    """Norm of the gradient of all its parameters, one per watched step; so are the next two."""
    bad_gradients: list[int] = field(default_factory=list)
    zero_share: list[float] = field(default_factory=list)
    """Share of gradient elements that are exactly zero."""
    idle_units: float | None = None
    """Share of units (rows of its matrix) whose gradient was exactly zero in every watched step; None where few
    elements were zero and none were counted."""
    masked: bool = False
    """Whether a mask of its own, or weights that are mostly zero, make its gradient sparse by design."""
    update_ratio: list[float] = field(default_factory=list)
    """How far a step moved the matrix, relative to its size, one per watched step with an optimizer."""
    weight_norm: float = math.nan
    is_embedding: bool = False


@dataclass(kw_only=True)
class AnalysisRecord:
    """All that rules are given. Plain numbers and names; no torch."""

    steps: int
    watched: list[int] = field(default_factory=list)
    """Which steps were looked at closely."""
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    """Norm of all gradients, one per step; estimated from evenly spaced elements where the step was not watched."""
    trained: bool = False
    """Whether an optimizer changed the weights between steps."""
    learning_rate: float | None = None
    optimizer: str | None = None
    places: list[Place] = field(default_factory=list)
    """In the order of the forward pass."""
    chains: list[list[int]] = field(default_factory=list)
    """Places that every gradient passes on its way to a first layer, from that layer to the output."""
    averaging: list[list[float]] = field(default_factory=list)
    """For each chain and place: decades by which averages up to the next place lower the norm without loss."""
    activations: list[Activation] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    """In the order of the forward pass, those that never ran last."""
    classes: int | None = None
    """Classes of the softmax in the loss; None if it has none."""
    alternatives: int | None = None
    """Among how many that softmax chooses, also where no module gives what it takes: the pairs of a batch, say."""
    loss_needs_grad: bool = True
    input_rms: float = math.nan
    input_spread: float = math.nan
    """Largest over median root mean square of the input's columns."""
    input_on_a_line: bool = False
    """Whether samples of a table differ in one direction only."""
    input_rank: float | None = None
    sample_rank: float | None = None
    """Of whole samples, all positions together."""
    input_size: int = 0
    """Elements per sample of the first floating point input."""
    input_units: int = 0
    """Its features, or channels."""
    input_kinds: int = 0
    """Different ids in the batch, where it holds any."""
    bad_inputs: int = 0
    cosines: list[float] = field(default_factory=list)
    """Between the gradients of successive steps."""
    thresholds: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULTS))
    passed: tuple[str, ...] = ()
    """Names of the thresholds that the user passed, also where the value equals the default."""

    @property
    def explicit(self) -> frozenset[str]:
        """Thresholds that the user set and that are taken at their word; another value can only have been set."""
        differ = {name for name, value in self.thresholds.items() if value != DEFAULTS.get(name)}
        return frozenset(differ.union(self.passed))

    @property
    def output_layer(self) -> str:
        """The layer that makes the output of the first chain; `model` where none was seen."""
        chain = [self.places[index] for index in self.chains[0]] if self.chains else []
        return next((place.name for place in reversed(chain) if place.own_weights), "") or "model"

    @property
    def largest_width(self) -> int:
        """Units of the widest layer."""
        return max((place.units for place in self.places if place.own_weights), default=0)

    @property
    def learnt(self) -> bool:
        """Whether this is a classifier with a loss below a tenth of that of guessing."""
        losses = [loss for loss in self.losses if math.isfinite(loss)]
        return bool(losses) and self.classes is not None and median(losses) < 0.1 * math.log(max(2, self.classes))

    def layer(self, name: str) -> Layer | None:
        """A layer by path."""
        return next((layer for layer in self.layers if layer.name == name), None)

    def position(self, name: str) -> int:
        """Where a layer or module comes in the forward pass, for sorting."""
        for layer in self.layers:
            if layer.name == name and layer.order is not None:
                return layer.order
        return next((place.order for place in self.places if place.name == name or place.layer == name), 1 << 30)
