"""What differs between runs: settings, the course of the series, layers, verdicts. Since when: `parting`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.diagnosis.robust import level_at_end
from gradient_flow.diagnosis.sources import Live, as_run
from gradient_flow.diagnosis.verdict import verdict
from gradient_flow.errors import InputError
from gradient_flow.record.about import about_facts, differences
from gradient_flow.record.run import Run
from gradient_flow.report.parting import Parting, parting
from gradient_flow.table.columns import INDEX

SERIES: Final = ("norm", "loss", "lr")
_TABLES: Final = 64
_NONFINITE: Final = [INDEX[name] for name in ("nan", "inf", "neg_inf")]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs side by side; the first is what the others are compared with."""

    names: list[str]
    facts: dict[str, list[Any]]
    """What a run states once and is not the same in all: settings, versions. Name → value of each run."""
    overview: list[dict[str, Any]]
    """Steps, last loss, norm and learning rate of each run."""
    differs: list[list[str]]
    """For each other run: what differs in what the runs were, as `lr: 0.001 → 10`."""
    undescribed: list[str]
    """Runs that do not say what they were, so that nothing is known to be the same."""
    parameters: list[dict[str, list[str]]]
    """For each other run: parameters that are only in the first, only in it, or of another shape."""
    series: list[dict[str, Parting]]
    """For each other run: how norm, loss and learning rate compare."""
    layers: list[dict[str, Parting]]
    """For each other run: the layers that both have, the most different first."""
    verdicts: list[Diagnosis]

    def __str__(self) -> str:
        from gradient_flow.report.compare_text import comparison_text

        return comparison_text(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values that strict JSON can hold."""
        others = [
            {
                "run": name,
                "differs": differs,
                "parameters": parameters,
                "series": {key: value.to_dict() for key, value in series.items()},
                "layers": [{"layer": key, **value.to_dict()} for key, value in layers.items()],
            }
            for name, differs, parameters, series, layers in zip(
                self.names[1:], self.differs, self.parameters, self.series, self.layers, strict=True
            )
        ]
        runs = [
            {"run": name, **over, "verdict": verdict.to_dict()}
            for name, over, verdict in zip(self.names, self.overview, self.verdicts, strict=True)
        ]
        described = {"facts": self.facts, "undescribed": self.undescribed}
        return {"runs": runs, **described, "compared_with_the_first": others}


def compare(*sources: Live | Run | str | Path) -> Comparison:
    """Compare `sources`, two runs or more, with the first of them. Each is a run folder, a `Run`, or a live `Flow`.

    >>> compare("runs/before")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    InputError: `compare` needs two runs or more, got 1.
    """
    if len(sources) < 2:
        raise InputError(f"`compare` needs two runs or more, got {len(sources)}.")
    runs: dict[str, Run] = {}
    for source in sources:
        run = as_run(source)
        name = str(source) if isinstance(source, (str, Path)) else "live" if run.in_memory else str(run.path.parent)
        runs[name if name not in runs else f"{name} ({len(runs) + 1})"] = run
    return compare_runs(runs)


def compare_runs(runs: Mapping[str, Run]) -> Comparison:
    """Compare runs, by name, with the first of them."""
    names, first, *others = list(runs), *runs.values()
    facts = [_facts(run) for run in runs.values()]
    keys = list(dict.fromkeys(key for each in facts for key in each))
    by_fact = {key: [each.get(key) for each in facts] for key in keys}
    return Comparison(
        names=names,
        facts={key: values for key, values in by_fact.items() if any(value != values[0] for value in values)},
        overview=[_overview(run) for run in runs.values()],
        differs=[differences(first.about, other.about) if first.about and other.about else [] for other in others],
        undescribed=[name for name, run in runs.items() if not run.about],
        parameters=[_parameters(first, other) for other in others],
        series=[_series(first, other) for other in others],
        layers=[_layers(first, other) for other in others],
        verdicts=[verdict(run) for run in runs.values()],
    )


def _facts(run: Run) -> dict[str, Any]:
    header = run.header
    versions = {name: header.get(name) for name in ("version", "torch", "python") if name in header}
    known = {f"version of {name}" for name in ("gradient_flow", "torch", "python")}  # of the header already
    about = {name: value for name, value in about_facts(run.about).items() if name not in known}
    settings = header.get("settings") or {}
    elements = sum(math.prod(parameter["shape"] or []) for parameter in run.parameters)
    return {**about, **versions, **settings, "parameter tensors": len(run.parameters), "parameters": elements}


def _overview(run: Run) -> dict[str, Any]:
    last: dict[str, Any] = {"steps": run.last_step or 0, "state": None if run.ending is None else run.ending.state}
    for name in SERIES:
        last[name] = level_at_end(run.series(name)) if name in run.names else None
    norm = run.series("norm")
    if len(norm) and not np.isfinite(norm[-max(1, len(norm) // 10) :]).any():
        # It ended in NaN: its last finite values would look as if it had stopped there.
        last |= {name: math.nan for name in ("norm", "loss") if last[name] is not None}
    return last


def _parameters(first: Run, other: Run) -> dict[str, list[str]]:
    ours = {parameter["name"]: parameter["shape"] for parameter in first.parameters}
    theirs = {parameter["name"]: parameter["shape"] for parameter in other.parameters}
    return {
        "only_in_first": [name for name in ours if name not in theirs],
        "only_in_this": [name for name in theirs if name not in ours],
        "other_shape": [name for name in ours if name in theirs and ours[name] != theirs[name]],
    }


def _series(first: Run, other: Run) -> dict[str, Parting]:
    ours, theirs = ({int(step): at for at, step in enumerate(run.columns["step"])} for run in (first, other))
    common = [step for step in ours if step in theirs]
    found: dict[str, Parting] = {}
    for name in SERIES:
        if common and name in first.names and name in other.names:
            a = first.series(name)[[ours[step] for step in common]]
            b = other.series(name)[[theirs[step] for step in common]]
            found[name] = parting(common, a, b)
    return found


def _layers(first: Run, other: Run) -> dict[str, Parting]:
    common = sorted(set(first.table_steps) & set(other.table_steps))
    chosen = common[:: max(1, math.ceil(len(common) / _TABLES))]
    ours, theirs = (_norms(run, chosen) for run in (first, other))
    found: dict[str, Parting] = {}
    for name in ours:
        both = [step for step in chosen if step in ours[name] and step in theirs.get(name, {})]
        if both:
            a, b = (np.array([norms[name][step] for step in both]) for norms in (ours, theirs))
            found[name] = parting(both, a, b)
    return dict(sorted(found.items(), key=lambda item: -item[1].size))


def _norms(run: Run, steps: Sequence[int]) -> dict[str, dict[int, float]]:
    """Of each layer its norm at the steps whose table has it: a table of one optimizer has its layers alone."""
    norms: dict[str, dict[int, float]] = {}
    wanted = set(steps)
    for span, table in run.intact_tables([each for each in run.tables if each.step in wanted]):
        # The norm of a table is that of the finite elements alone: of a layer that is all NaN it is 0.
        bad = table.rows[:, _NONFINITE].sum(axis=1) > 0
        found = np.where(bad, np.nan, np.sqrt(table.rows[:, INDEX["sum_sq"]]))
        for name, norm in zip(table.names, found.tolist(), strict=True):
            norms.setdefault(name, {})[span.step] = norm
    return norms
