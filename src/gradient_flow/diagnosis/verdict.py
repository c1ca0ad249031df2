"""`diagnose`: the rules over time, applied to whatever recorded a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.diagnosis.run_record import LayerSeries, RunRecord, Series
from gradient_flow.diagnosis.run_rules import judge_run
from gradient_flow.errors import InputError, RunFileError
from gradient_flow.record.run_reader import Run, load_run
from gradient_flow.record.run_writer import FILE_NAME
from gradient_flow.table import GradientTable

if TYPE_CHECKING:
    from gradient_flow.flow.watch import Flow

STATISTICS_FILE: Final = "gradient_statistics.json"
MATRICES_FILE: Final = "gradient_statistics_weight_matrices.json"
MOST_TABLES: Final = 64
_ACCEPTED: Final = f"a Flow, a Run, a run folder, or a {STATISTICS_FILE}"


def diagnose(source: Flow | Run | str | Path) -> Diagnosis:
    """What is wrong with a run, since when, where, and what to do.

    `source` is what `watch` returned, a run folder (or what `load_run` made of it), or the JSON file, or the folder of
    such files, that `GradientStatisticsCallback` wrote. The rules that the record suffices for are applied; a model is
    not needed.

    >>> diagnose("no/such/run")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    RunFileError: ...
    """
    if isinstance(source, (str, Path)):
        return judge_run(_record_of_path(Path(source)))
    if isinstance(source, Run):
        return judge_run(_record_of_run(source))
    if hasattr(source, "history") and hasattr(source, "first_nonfinite"):
        return judge_run(_record_of_flow(source))
    raise InputError(f"`source` must be {_ACCEPTED}; got {type(source).__name__}.")


def _record_of_path(path: Path) -> RunRecord:
    if path.is_dir() and not (path / FILE_NAME).exists():
        found = [path / name for name in (STATISTICS_FILE, MATRICES_FILE) if (path / name).exists()]
        if found:
            path = found[0]
    if path.suffix == ".json":
        return _record_of_json(path)
    return _record_of_run(load_run(path))


def _record_of_flow(flow: Any) -> RunRecord:
    history = flow.history
    names = set(history.names) if len(history) else set()
    columns = {name: history[name].tolist() for name in names}
    record = RunRecord(totals=totals(columns), losses=columns.get("loss", []), clipped=clipped(columns))
    record.learning_rate = last_finite(columns.get("lr", []))
    if flow.table is not None:
        record.layers = _layers([(flow.steps, flow.table, {})])
    first = flow.first_nonfinite
    if first is not None:
        record.bad_step, record.bad_layers, record.bad_counts = first.step, tuple(first.layers), (first.nan, first.inf)
    return record


def _record_of_run(run: Run) -> RunRecord:
    wanted: list[str] = [
        name for name in ("step", "norm", "loss", "clipped_norm", "lr", "optimizer") if name in run.names
    ]
    columns = {name: run.series(name).tolist() for name in wanted}
    record = RunRecord(totals=totals(columns), losses=columns.get("loss", []), clipped=clipped(columns))
    record.learning_rate = last_finite(columns.get("lr", []))
    steps = run.table_steps
    stride = max(1, math.ceil(len(steps) / MOST_TABLES))
    tables = []
    for step in steps[::stride]:
        layers = run.layers(step)
        ratios = dict(zip(layers["names"], layers.get("update_ratio") or [], strict=False))
        tables.append((step, run.table(step), ratios))
    record.layers = _layers(tables, {parameter["name"]: len(parameter["shape"]) for parameter in run.parameters})
    bad = next((step for step in run.steps if step.get("nonfinite_layers") or _is_bad(step)), None)
    if bad is not None:
        record.bad_step = int(bad["step"])
        record.bad_layers = tuple(bad.get("nonfinite_layers") or ())
        record.bad_counts = int(bad.get("nan_count") or 0), int(bad.get("inf_count") or 0)
    return record


def _record_of_json(path: Path) -> RunRecord:
    data = _read_json(path)
    if not isinstance(data, dict) or not ("grad_norm" in data or all(map(_is_matrix, data.values()))):
        raise RunFileError(f"{str(path)!r} is not a {STATISTICS_FILE}: it has neither `grad_norm` nor weight matrices.")
    matrices: Mapping[str, Any] = {} if "grad_norm" in data else data
    beside = path.with_name(MATRICES_FILE)
    if "grad_norm" in data and beside.exists():
        matrices = _read_json(beside)
        if not isinstance(matrices, dict) or not all(map(_is_matrix, matrices.values())):
            raise RunFileError(f"{str(beside)!r} is not of weight matrices: each needs `step` and `norm`.")
    record = RunRecord()
    for name, values in matrices.items():
        steps, norms = _columns(path if matrices is data else beside, values, "norm")
        record.layers.append(LayerSeries(name=name, steps=steps, norms=norms, is_weight=name != "biases"))
    if "grad_norm" in data:
        steps, norms = _columns(path, data, "grad_norm")
        record.totals = [Series(name="model", steps=steps, norms=norms)]
        record.losses = _numbers(data.get("loss", []))
    else:
        record.totals = [Series(name=each.name, steps=each.steps, norms=each.norms) for each in record.layers]
    for series in record.totals:
        gaps = [step for step, norm in zip(series.steps, series.norms, strict=True) if not math.isfinite(norm)]
        if gaps and (record.bad_step is None or gaps[0] < record.bad_step):
            record.bad_step = gaps[0]
            record.bad_layers = tuple(
                layer.name
                for layer in record.layers
                if gaps[0] in layer.steps and not math.isfinite(layer.norms[layer.steps.index(gaps[0])])
            )
    return record


def _read_json(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except OSError as problem:
        raise RunFileError(
            f"`source` must be {_ACCEPTED}; {str(path)!r} cannot be read ({problem.strerror})."
        ) from problem
    except orjson.JSONDecodeError as problem:
        raise RunFileError(f"{str(path)!r} is not JSON: {problem}.") from problem


def _columns(path: Path, data: Mapping[str, Any], norm: str) -> tuple[list[int], list[float]]:
    """The steps and norms of a file, if they are what they should be: lists of numbers of equal length."""
    try:
        steps, norms = [int(step) for step in data["step"]], _numbers(data[norm])
        if len(steps) != len(norms):
            raise ValueError(f"{len(steps)} and {len(norms)} values")
    except (KeyError, TypeError, ValueError) as problem:
        told = "`step` is missing" if isinstance(problem, KeyError) else str(problem)
        raise RunFileError(
            f"{str(path)!r} must hold `step` and `{norm}` as lists of numbers of equal length: {told}."
        ) from problem
    return steps, norms


def totals(columns: Mapping[str, list[float]]) -> list[Series]:
    """The norms of all gradients over time, one series per optimizer."""
    steps, norms = [int(step) for step in columns.get("step", [])], columns.get("norm", [])
    who = columns.get("optimizer", [0.0] * len(steps))
    several = len(set(who)) > 1
    return [
        Series(
            name=f"optimizer {which:g}" if several else "model",
            steps=[step for step, owner in zip(steps, who, strict=True) if owner == which],
            norms=[norm for norm, owner in zip(norms, who, strict=True) if owner == which],
        )
        for which in sorted(set(who))
    ]


def clipped(columns: Mapping[str, list[float]]) -> list[tuple[float, float]]:
    """Norms before and after clipping, of the steps that have both."""
    pairs = zip(columns.get("norm", []), columns.get("clipped_norm", []), strict=False)
    return [(before, after) for before, after in pairs if math.isfinite(after)]


def _layers(
    tables: Sequence[tuple[int, GradientTable, Mapping[str, Any]]], dimensions: Mapping[str, int] | None = None
) -> list[LayerSeries]:
    layers: dict[str, LayerSeries] = {}
    for step, table, ratios in tables:
        for name, norm, count in zip(table.names, table.norm.tolist(), table.count.tolist(), strict=True):
            weight = dimensions[name] > 1 if dimensions and name in dimensions else not name.endswith("bias")
            layer = layers.setdefault(name, LayerSeries(name=name, steps=[], norms=[], is_weight=weight))
            layer.steps.append(step)
            layer.norms.append(norm)
            layer.elements.append(count)
            if ratios.get(name) is not None:
                layer.update_ratios.append(float(ratios[name]))
    return list(layers.values())


def _is_bad(step: Mapping[str, Any]) -> bool:
    return bool((step.get("nan_count") or 0) + (step.get("inf_count") or 0))


def _is_matrix(value: Any) -> bool:
    return isinstance(value, dict) and {"step", "norm"} <= value.keys()


def _numbers(values: Sequence[Any]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def last_finite(values: Sequence[float]) -> float | None:
    """The last finite value, if there is one."""
    return next((value for value in reversed(values) if math.isfinite(value)), None)
