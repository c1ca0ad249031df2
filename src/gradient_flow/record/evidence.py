"""What rules over time are given of a run: `RunRecord`, plain numbers made from a `Run` and nothing else.

Live or from a file, the numbers are those that the file holds, so the verdict is the same. Its size is bounded: of a
long run tables are taken at even distances, and of steps the one with the largest norm of each stretch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.record.event import Event
from gradient_flow.record.look import stacked
from gradient_flow.record.run import Run, TableSpan
from gradient_flow.record.signals import NAMES
from gradient_flow.record.step import SKIPPED_LOSSES
from gradient_flow.record.step_columns import StepColumns
from gradient_flow.table.columns import INDEX, STATISTICS

MOST_TABLES: Final = 64
MOST_LOOKS: Final = 8
"""Earlier looks that are judged, to find out since when an issue holds."""
_LAST_TABLES: Final = 3
"""Always among them: whether a layer is silent now is seen in the last ones."""
MOST_STEPS: Final = 1 << 17
ANALYSIS: Final = "analysis"
"""`source` in the header of an analysis."""
LARGE_RATE_CHANGE: Final = 3.0
"""A learning rate that changes by more than this factor from record to record was changed, not scheduled."""
MOST_SIGNALS: Final = 2000
MOST_RATE_CHANGES: Final = 100
CLIP_TOLERANCE: Final = 1e-6
"""A norm that is lower by less than this share is rounding, not clipping."""


@dataclass(kw_only=True)
class Series:
    """Norms over time of all gradients that one optimizer steps, or of one layer. NaN where not finite."""

    name: str
    steps: list[int]
    norms: list[float]
    clipped_norms: list[float] = field(default_factory=list)
    """After clipping, NaN where a step was not clipped; empty where none was."""
    losses: list[float] = field(default_factory=list)
    """Logged with these steps; empty where none were."""
    loss_lost: bool = False
    """Whether losses were recorded and none of them is finite."""
    learning_rate: float | None = None
    """The largest: what its user set, whatever a schedule has made of it."""
    rates: list[float] = field(default_factory=list)
    """The largest learning rate of each step; empty where none was recorded."""

    def finite(self) -> tuple[list[int], list[float]]:
        """The steps whose norm is finite, and those norms."""
        if all(map(math.isfinite, self.norms)):  # as nearly always
            return list(self.steps), list(self.norms)
        kept = [(step, norm) for step, norm in zip(self.steps, self.norms, strict=True) if math.isfinite(norm)]
        return [step for step, _ in kept], [norm for _, norm in kept]


@dataclass(kw_only=True)
class LayerSeries(Series):
    """One parameter tensor, at the steps that have a table."""

    elements: list[int] = field(default_factory=list)
    update_ratios: list[float] = field(default_factory=list)
    is_weight: bool = True
    """A matrix: not a bias, not the scale of a normalisation."""
    optimizer: str = ""
    """Name of the series of totals whose optimizer steps it."""


@dataclass(frozen=True)
class NonFinite:
    """The first step with NaN or Inf in a gradient, and the layers that had them."""

    step: int
    layers: tuple[str, ...]
    nan: int
    inf: int


@dataclass(frozen=True, kw_only=True)
class RateChange:
    """A learning rate that changed more than threefold from one recorded step to the next."""

    step: int
    """The first recorded step with the new rate."""
    before: float
    after: float
    optimizer: str
    """Name of the series of totals that is its optimizer's."""

    @property
    def sentence(self) -> str:
        """What happened, with its numbers.

        >>> RateChange(step=401, before=0.05, after=3.0, optimizer="model").sentence
        'the learning rate was raised from 0.05 to 3 (60 times) at step 401'
        """
        raised = self.after > self.before
        times = self.after / self.before if raised else self.before / self.after
        how = f"{times:,.3g} times" if times < 1000 else f"{round(times, 2 - len(str(int(times)))):,.0f} times"
        down = "" if raised else " smaller"
        word = "raised" if raised else "lowered"
        return (
            f"the learning rate was {word} from {self.before:g} to {self.after:g} ({how}{down}) at step {self.step:,}"
        )


@dataclass(kw_only=True)
class RunRecord:
    """All that rules over time are given. Plain numbers and names; no torch."""

    totals: list[Series] = field(default_factory=list)
    """One per optimizer."""
    losses: list[float] = field(default_factory=list)
    """Of all steps; empty where none were recorded. Where several optimizers step, see `losses_of`."""
    layers: list[LayerSeries] = field(default_factory=list)
    """From the input to the output, as far as the order of parameters tells."""
    nonfinite: NonFinite | None = None
    """The first step with NaN or Inf."""
    bad_losses: list[int] = field(default_factory=list)
    """Steps with a loss of NaN or Inf whose gradients are finite."""
    skipped_losses: list[int] = field(default_factory=list)
    """Steps before which the loop computed a loss of NaN or Inf, and took no step with it."""
    learning_rate: float | None = None
    """The largest, of the first group."""
    rate_changes: list[RateChange] = field(default_factory=list)
    """In the order of steps."""
    events: list[Event] = field(default_factory=list)
    seen: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name of a probe → the newest of what it saw."""
    seen_at: dict[str, int] = field(default_factory=dict)
    """Name of a probe → the step of that look."""
    earlier_looks: Callable[[], list[tuple[int, dict[str, Mapping[str, Any]]]]] = list
    """Reads the looks before the newest, at most `MOST_LOOKS` of them: step, and what each probe saw by its name."""
    source: str = "training"
    """`training`, or `analysis`: there norms are partly estimates, and rules on steps do not apply."""
    recorded_steps: int | None = None
    looks: int = 0
    """How many looks inside the model there were."""
    looks_wanted: bool = False
    """Whether looks were switched on."""
    by_hand: bool = False
    """Whether the watch has no optimizer, so that steps are recorded with `flow.step()`."""
    signals: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)
    """What a trainer of reinforcement learning logs by itself: name → steps and values. See `record/signals.py`."""
    ranks_differ: tuple[int, int, int] | None = None
    """The first step at which ranks had different gradients, in how many steps they had, and how many were checked."""

    @property
    def steps(self) -> int:
        """Steps that were recorded, over all optimizers."""
        if self.recorded_steps is not None:
            return self.recorded_steps
        return sum(len(series.steps) for series in self.totals)

    def losses_of(self, optimizer: str) -> list[float]:
        """The losses that an optimizer's steps are to lower.

        Two that step in turn (actor and critic) log a loss each, which says nothing of the other's. A loss that only
        one of them logs is the loss of the model.
        """
        with_loss = {series.name: series.losses for series in self.totals if series.losses}
        if len(with_loss) < 2:
            return self.losses
        return with_loss.get(optimizer, [])

    def learning_rate_of(self, optimizer: str) -> float | None:
        """The last learning rate of an optimizer, or of the run where it is not known whose it is."""
        own = next((series.learning_rate for series in self.totals if series.name == optimizer), None)
        return self.learning_rate if own is None else own

    def layers_by_optimizer(self) -> dict[str, list[LayerSeries]]:
        """Layers that are stepped together: two players of a game are two networks, not one deep one."""
        found: dict[str, list[LayerSeries]] = {}
        for layer in self.layers:
            found.setdefault(layer.optimizer, []).append(layer)
        return found


def evidence_of(run: Run) -> RunRecord:
    """What the rules are given of a run."""
    steps = run.columns
    owners = _Owners(steps)
    kept = _kept_steps(steps, owners)
    source = ANALYSIS if run.header.get("source") == ANALYSIS else "training"
    by_hand = run.header.get("by_hand") is True
    record = RunRecord(recorded_steps=len(steps), events=list(run.events), source=source, by_hand=by_hand)
    record.looks = 0 if source == ANALYSIS else len(run.look_steps)
    record.looks_wanted = run.header.get("looks") is True
    record.totals = [_total(steps, name, at) for name, at in zip(owners.names, kept, strict=True) if len(at)]
    if "loss" in steps.names:
        record.losses = steps["loss"][np.sort(np.concatenate(kept))].tolist()
    record.learning_rate = _largest(steps.get("lr"))
    record.rate_changes = _rate_changes(steps, owners)
    record.signals = _signals(steps)
    record.ranks_differ = _ranks_differ(steps)
    record.layers = _layers(run, owners)
    record.nonfinite = _first_nonfinite(steps, record.layers)
    skipped = np.nan_to_num(steps.get(SKIPPED_LOSSES)) > 0
    record.skipped_losses = steps["step"][skipped].astype(np.int64).tolist()
    record.bad_losses = steps["step"][bad_losses(steps)].astype(np.int64).tolist()
    newest = {probe: found for probe in run.seen if (found := run.newest(probe)) is not None}
    record.seen = {probe: found for probe, (_, found) in newest.items()}
    record.seen_at = {probe: step for probe, (step, _) in newest.items()}
    record.earlier_looks = partial(_earlier_looks, run)
    return record


def _earlier_looks(run: Run) -> list[tuple[int, dict[str, Mapping[str, Any]]]]:
    """At even distances from the first on, without the newest."""
    steps = sorted({each.step for spans in run.seen.values() for each in spans})[:-1]
    stride = max(1, math.ceil(len(steps) / MOST_LOOKS))
    chosen = set(steps[::stride]) | set(steps[-1:])
    looks: dict[int, dict[str, Mapping[str, Any]]] = {step: {} for step in sorted(chosen)[-MOST_LOOKS:]}
    for probe in list(run.seen):
        for step, found in run.found(probe, steps=looks):
            looks[step][probe] = found
    return list(looks.items())


def nonfinite_steps(steps: StepColumns) -> NDArray[np.bool_]:
    """Which recorded steps had NaN or Inf in a gradient."""
    counts = np.nan_to_num(steps.get("nan_count")) + np.nan_to_num(steps.get("inf_count"))
    named = np.isin(steps["step"], [step for step, (_, layers) in steps.remarks.items() if layers])
    return np.asarray((counts > 0) | named)


def bad_losses(steps: StepColumns) -> NDArray[np.bool_]:
    """Which recorded steps had a loss of NaN or Inf, though their gradients are finite."""
    lost = np.isin(steps["step"], steps.bad_losses)
    return np.asarray(lost & ~nonfinite_steps(steps) & np.isfinite(steps.get("norm")))


def clipped_steps(steps: StepColumns) -> NDArray[np.bool_]:
    """Which recorded steps were clipped."""
    return np.asarray(steps.get("clipped_norm") < steps.get("norm") * (1 - CLIP_TOLERANCE))


def last_finite(values: NDArray[np.float64]) -> float | None:
    """The last finite value, if there is one."""
    finite = np.flatnonzero(np.isfinite(values))
    return float(values[finite[-1]]) if len(finite) else None


def _largest(values: NDArray[np.float64]) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else None


class _Owners:
    """Whose each recorded step is: the optimizers of a run by name, which is `model` where there is one."""

    def __init__(self, steps: StepColumns) -> None:
        owner = np.nan_to_num(steps.get("optimizer"))  # the first one's, where a run written earlier does not say
        which, self.of_step = np.unique(owner, return_inverse=True)
        self.names = [f"optimizer {each:g}" for each in which] if len(which) > 1 else ["model"]
        self._steps = steps["step"]

    def at(self, step: int) -> str:
        """Whose a step is; empty where it is not recorded."""
        if len(self.names) == 1:
            return self.names[0]
        place = int(np.searchsorted(self._steps, step))
        return self.names[self.of_step[place]] if place < len(self._steps) and self._steps[place] == step else ""


def _kept_steps(steps: StepColumns, owners: _Owners) -> list[NDArray[np.intp]]:
    """Of each optimizer all steps, or in a very long run of each stretch the one with the largest norm."""
    norms = np.nan_to_num(steps.get("norm"), nan=-1.0, posinf=-1.0)
    most = max(1, MOST_STEPS // len(owners.names))
    return [_tallest(np.flatnonzero(owners.of_step == which), norms, most) for which in range(len(owners.names))]


def _tallest(at: NDArray[np.intp], norms: NDArray[np.float64], most: int) -> NDArray[np.intp]:
    if len(at) <= most:
        return at
    stretch = 1 << math.ceil(math.log2(len(at) / most))
    whole = len(at) // stretch * stretch
    kept = np.arange(0, whole, stretch) + norms[at[:whole]].reshape(-1, stretch).argmax(axis=1)
    return np.asarray(at[np.concatenate([kept, np.arange(whole, len(at))])])


def _total(steps: StepColumns, name: str, at: NDArray[np.intp]) -> Series:
    clipped, losses = steps.get("clipped_norm")[at], steps.get("loss")[at]
    return Series(
        name=name,
        steps=steps["step"][at].astype(np.int64).tolist(),
        norms=steps.get("norm")[at].tolist(),
        clipped_norms=[] if np.isnan(clipped).all() else clipped.tolist(),
        losses=[] if np.isnan(losses).all() else losses.tolist(),
        loss_lost="loss" in steps.names and bool(np.isnan(losses).all()),
        learning_rate=_largest(steps.get("lr")[at]),
        rates=_largest_rates(steps, at),
    )


def _largest_rates(steps: StepColumns, at: NDArray[np.intp]) -> list[float]:
    groups = [steps[name][at] for name in steps.names if name == "lr" or name.startswith("lr/")]
    if not groups:
        return []
    known = np.fmax.reduce(groups)  # NaN where an optimizer has fewer groups
    return [] if np.isnan(known).all() else known.tolist()


def _signals(steps: StepColumns) -> dict[str, tuple[list[int], list[float]]]:
    """Of each the first name that was logged, where it is a number; of a long run at even distances."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for column in steps.names:
        name = NAMES.get(column)
        if name is None or name in found:
            continue
        known = np.flatnonzero(np.isfinite(steps[column]))
        known = known[:: max(1, math.ceil(len(known) / MOST_SIGNALS))]
        found[name] = steps["step"][known].astype(np.int64).tolist(), steps[column][known].tolist()
    if "negative_entropy" in found and "entropy" not in found:  # as Stable-Baselines3 logs it
        at, values = found["negative_entropy"]
        found["entropy"] = at, [-value for value in values]
    return found


def _ranks_differ(steps: StepColumns) -> tuple[int, int, int] | None:
    """A list of ranks that is empty leaves no number; `slowdown` tells that ranks were compared."""
    differing = np.flatnonzero(~np.isnan(steps.get("ranks_differing")))
    if not len(differing):
        return None
    checked = max(len(differing), int((~np.isnan(steps.get("slowdown"))).sum()))
    return int(steps["step"][differing[0]]), len(differing), checked


def rate_changes(steps: StepColumns) -> list[RateChange]:
    """Changes of the learning rate by more than a schedule makes, in the order of steps."""
    return _rate_changes(steps, _Owners(steps))


def _rate_changes(steps: StepColumns, owners: _Owners) -> list[RateChange]:
    """Of each optimizer by itself; where several groups change at once, the one that changes most."""
    groups = [name for name in steps.names if name == "lr" or name.startswith("lr/")]
    found: dict[tuple[str, int], RateChange] = {}
    for which, optimizer in enumerate(owners.names):
        at = np.flatnonzero(owners.of_step == which)
        for group in groups:
            rates = steps[group][at]
            known = np.flatnonzero(rates > 0)  # NaN where this optimizer has fewer groups, 0 before a warm-up
            logs = np.diff(np.log(rates[known]))
            # The last ones of each group: whatever is among the last of all is among them.
            for place in np.flatnonzero(np.abs(logs) > math.log(LARGE_RATE_CHANGE))[-MOST_RATE_CHANGES:]:
                step = int(steps["step"][at[known[place + 1]]])
                before, after = float(rates[known[place]]), float(rates[known[place + 1]])
                change = RateChange(step=step, before=before, after=after, optimizer=optimizer)
                known_one = found.get((optimizer, step))
                if known_one is None or abs(math.log(after / before)) > abs(
                    math.log(known_one.after / known_one.before)
                ):
                    found[optimizer, step] = change
    return sorted(found.values(), key=lambda change: change.step)[-MOST_RATE_CHANGES:]


def chosen_tables(tables: Sequence[TableSpan]) -> list[TableSpan]:
    """At even distances from the first on, and the last ones."""
    stride = max(1, math.ceil(len(tables) / MOST_TABLES))
    chosen = set(range(0, len(tables), stride)) | set(range(max(0, len(tables) - _LAST_TABLES), len(tables)))
    return [tables[at] for at in sorted(chosen)]


def _layers(run: Run, owners: _Owners) -> list[LayerSeries]:
    tables = run.intact_tables(chosen_tables(run.tables))
    if not tables:
        return []
    steps = [span.step for span, _ in tables]
    whose = [owners.at(step) for step in steps]
    parameters = run.parameters
    rows, ratios = stacked([table for _, table in tables], len(parameters))
    norms, counts = STATISTICS["norm"](rows), rows[..., INDEX["count"]]
    # A tensor that is absent from a table is NaN in every column; one of unknown size in its count alone.
    present = ~np.isnan(rows[..., INDEX["zeros"]])
    found: list[tuple[int, LayerSeries]] = []
    for at, parameter in enumerate(parameters):
        here = np.flatnonzero(present[:, at])
        if not len(here):
            continue
        moved = ratios[here, at]
        known = not np.isnan(counts[here, at]).any()
        layer = LayerSeries(
            name=parameter["name"],
            steps=[steps[k] for k in here],
            norms=norms[here, at].tolist(),
            elements=counts[here, at].astype(int).tolist() if known else [],
            update_ratios=moved[~np.isnan(moved)].tolist(),
            is_weight=_is_weight(parameter),
            optimizer=whose[here[0]],
        )
        found.append((int(here[0]), layer))
    return [layer for _, layer in sorted(found, key=lambda item: item[0])]  # those of a later optimizer come later


def _is_weight(parameter: Mapping[str, Any]) -> bool:
    shape = parameter.get("shape")
    return not str(parameter["name"]).endswith(("bias", "biases")) if shape is None else len(shape) > 1


def _first_nonfinite(steps: StepColumns, layers: Sequence[LayerSeries]) -> NonFinite | None:
    bad = nonfinite_steps(steps)
    # A file without counts has gaps in its norms in their place.
    bad |= np.isnan(steps.get("nan_count")) & ~np.isfinite(steps.get("norm"))
    if not bad.any():
        return None
    at = int(bad.argmax())
    step = int(steps["step"][at])
    named = tuple(steps.remarks.get(step, (None, []))[1]) or tuple(
        layer.name
        for layer in layers
        if step in layer.steps and not math.isfinite(layer.norms[layer.steps.index(step)])
    )
    nan, inf = (int(np.nan_to_num(steps.get(name)[at])) for name in ("nan_count", "inf_count"))
    return NonFinite(step, named, nan, inf)
