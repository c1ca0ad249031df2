"""`diagnose`: the verdict on whatever recorded a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.diagnosis.verdict import verdict
from gradient_flow.errors import InputError, RunFileError
from gradient_flow.record.event import END, LOOKED, UNSUPPORTED
from gradient_flow.record.export import LOOKS_FILE, MATRICES_FILE, STATISTICS_FILE
from gradient_flow.record.run import Run, load_run, run_of_lines
from gradient_flow.record.run_lines import FILE_NAME, FORMAT_VERSION, is_step

_ACCEPTED: Final = f"a Flow, a Run, a run folder, or a {STATISTICS_FILE}"


class Live(Protocol):
    """What `watch` returns."""

    @property
    def run(self) -> Run:
        """The run so far."""


def diagnose(source: Live | Run | str | Path) -> Diagnosis:
    """What is wrong with a run, since when, where, and what to do.

    `source` is what `watch` returned, a run folder (or what `load_run` made of it), or the JSON file, or the folder of
    such files, that `GradientStatisticsCallback` wrote. The rules that the record suffices for are applied; a model is
    not needed.

    >>> diagnose("no/such/run")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    RunFileError: ...
    """
    return verdict(as_run(source))


def as_run(source: Live | Run | str | Path) -> Run:
    """The run that a source is, holds or leads to."""
    if isinstance(source, (str, Path)):
        return _run_of_path(Path(source))
    if isinstance(source, Run):
        return source
    live = getattr(source, "run", None)
    if isinstance(live, Run):
        return live
    raise InputError(f"`source` must be {_ACCEPTED}; got {type(source).__name__}.")


def _run_of_path(path: Path) -> Run:
    if path.is_dir() and not (path / FILE_NAME).exists():
        found = [path / name for name in (STATISTICS_FILE, MATRICES_FILE) if (path / name).exists()]
        path = found[0] if found else path
    return run_of_lines(_lines_of_json(path)) if path.suffix == ".json" else load_run(path)


def _lines_of_json(path: Path) -> Iterator[Mapping[str, Any]]:
    """The callback's files as the lines of a run: steps with a norm, tables with the norms of the weight matrices."""
    data = _read_json(path)
    if not isinstance(data, dict) or not ("grad_norm" in data or all(map(_is_matrix, data.values()))):
        raise RunFileError(f"{str(path)!r} is not a {STATISTICS_FILE}: it has neither `grad_norm` nor weight matrices.")
    matrices, beside = ({} if "grad_norm" in data else data), path.with_name(MATRICES_FILE)
    if "grad_norm" in data and beside.exists():
        matrices = _read_json(beside)
        if not isinstance(matrices, dict) or not all(map(_is_matrix, matrices.values())):
            raise RunFileError(f"{str(beside)!r} is not of weight matrices: each needs `step` and `norm`.")
    home = path if matrices is data else beside
    inside = path.with_name(LOOKS_FILE)
    looks = _read_json(inside) if inside.exists() else {}
    yield from _lines_of(data if "grad_norm" in data else None, matrices, str(path), str(home), looks)


def run_of_statistics(
    statistics: Mapping[str, Any],
    matrices: Mapping[str, Mapping[str, Any]],
    looks: Mapping[str, Any] | None = None,
) -> Run:
    """The run that the callback's lists are, as its files would be read."""
    read = orjson.loads(orjson.dumps([statistics, matrices, looks or {}], option=orjson.OPT_SERIALIZE_NUMPY))
    return run_of_lines(_lines_of(read[0], read[1], STATISTICS_FILE, MATRICES_FILE, read[2]))


def _lines_of(
    data: Mapping[str, Any] | None, matrices: Mapping[str, Any], where: str, home: str, looks: Any
) -> Iterator[Mapping[str, Any]]:
    norms = {name: dict(zip(*_columns(home, values, "norm"), strict=True)) for name, values in matrices.items()}
    parameters = [{"name": name, "shape": None} for name in norms]
    yield {"kind": "header", "format": FORMAT_VERSION, "settings": {}, "parameters": parameters}
    if data is not None:
        steps, totals = _columns(where, data, "grad_norm")
        losses = _numbers(data.get("loss") or [])
        for at, (step, norm) in enumerate(zip(steps, totals, strict=True)):
            loss = {"loss": losses[at]} if at < len(losses) and math.isfinite(losses[at]) else {}
            yield {"kind": "step", "step": step, "norm": norm, **loss}
    else:
        for step in sorted({step for each in norms.values() for step in each}):
            squares = [each[step] ** 2 for each in norms.values() if step in each]
            yield {"kind": "step", "step": step, "norm": math.sqrt(sum(squares))}
    for step in sorted({step for each in norms.values() for step in each}):
        here = [at for at, each in enumerate(norms.values()) if step in each]
        values = [each[step] for each in norms.values() if step in each]
        # A norm that is missing was not finite: the files of the callback hold no counts.
        counts = [0 if math.isfinite(value) else 1 for value in values]
        known = [value if math.isfinite(value) else 0.0 for value in values]
        zeros = dict.fromkeys(("zeros", "near_zero", "very_large", "inf", "neg_inf"), 0)
        rest = dict.fromkeys(("sum", "sum_abs", "min", "max"), [0.0] * len(here))
        yield {"kind": "look", "step": step, "rows": here, "norm": known, **rest, **zeros, "nan": counts}
    yield from _lines_of_looks(looks)
    if data is not None and isinstance(data.get(UNSUPPORTED), str):
        yield {"kind": UNSUPPORTED, "reason": data[UNSUPPORTED]}
    if data is not None and isinstance(data.get("ending"), dict):
        yield {"kind": END, "ending": data["ending"]}


def _lines_of_looks(looks: Any) -> Iterator[Mapping[str, Any]]:
    """What was seen inside the model; whatever is damaged is left out, for the rest of the record stands."""
    each_look = looks.get("looks") if isinstance(looks, dict) else None
    for look in each_look if isinstance(each_look, list) else ():
        if isinstance(look, dict) and is_step(look.get("step")) and isinstance(look.get("seen"), dict):
            for probe, found in look["seen"].items():
                yield {"kind": "seen", "step": look["step"], "probe": probe, "found": found}
            yield {"kind": LOOKED, "step": look["step"], "because": str(look.get("because"))}


def _read_json(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except OSError as problem:
        raise RunFileError(
            f"`source` must be {_ACCEPTED}; {str(path)!r} cannot be read ({problem.strerror})."
        ) from problem
    except orjson.JSONDecodeError as problem:
        raise RunFileError(f"{str(path)!r} is not JSON: {problem}.") from problem


def _columns(where: str, data: Mapping[str, Any], norm: str) -> tuple[list[int], list[float]]:
    """The steps and norms of a file, if they are what they should be: lists of numbers of equal length."""
    try:
        steps, norms = [int(step) for step in data["step"]], _numbers(data[norm])
        if len(steps) != len(norms):
            raise ValueError(f"{len(steps)} and {len(norms)} values")
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        reason = "`step` is missing" if isinstance(problem, KeyError) else str(problem)
        raise RunFileError(
            f"{where!r} must hold `step` and `{norm}` as lists of numbers of equal length: {reason}."
        ) from problem
    return steps, norms


def _is_matrix(value: Any) -> bool:
    return isinstance(value, dict) and {"step", "norm"} <= value.keys()


def _numbers(values: Sequence[Any]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]
