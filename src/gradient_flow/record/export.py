"""The documented names of statistics, for loggers and for JSON files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from gradient_flow.record.atomic import write_whole
from gradient_flow.record.step import StepRecord
from gradient_flow.table import GradientStats, GradientTable

GLOBAL: Final = {
    "grad_variance": "variance",
    "grad_mean": "mean",
    "grad_norm": "norm",
    "grad_max": "max",
    "grad_min": "min",
}
"""Documented key → statistic, over all gradient elements."""
PER_MATRIX: Final = ("variance", "norm", "mean")
_NO_METRICS: Final = ("step", "time")
"""Axes, not metrics."""


STATISTICS_FILE: Final = "gradient_statistics.json"
MATRICES_FILE: Final = "gradient_statistics_weight_matrices.json"
LOOKS_FILE: Final = "gradient_looks.json"


def logged_metrics(record: StepRecord | GradientStats, groups: GradientTable | None) -> dict[str, float]:
    """What a logger gets: `train/grad_norm` and, with groups, `train/grad_norm/W_in` and so on."""
    metrics: dict[str, float] = {f"train/{key}": getattr(record, statistic) for key, statistic in GLOBAL.items()}
    for statistic in PER_MATRIX if groups is not None else ():
        assert groups is not None
        values = getattr(groups, statistic).tolist()
        metrics |= {f"train/grad_{statistic}/{name}": value for name, value in zip(groups.names, values, strict=True)}
    return metrics


def record_metrics(record: StepRecord, groups: GradientTable | None) -> dict[str, float]:
    """The whole record for a logger: the documented names, and `train/clipped_norm`, `train/lr/1` … for the rest."""
    rest = {name: value for name, value in record.numbers().items() if name not in (*GLOBAL.values(), *_NO_METRICS)}
    return logged_metrics(record, groups) | {f"train/{name}": value for name, value in rest.items()}


def is_file_store(tracking_uri: str | None) -> bool:
    """Whether MLflow keeps its metrics as files there."""
    return tracking_uri is not None and (tracking_uri.startswith("file:") or "://" not in tracking_uri)


def without_nesting(metrics: Mapping[str, float]) -> dict[str, float]:
    """Keys for a store of files, where `grad_norm` cannot be a file and the folder of `grad_norm/W_in` at once.

    >>> without_nesting({"train/grad_norm": 1.0, "train/grad_norm/W_in": 0.5})
    {'train/grad_norm': 1.0, 'train/grad_norm.W_in': 0.5}
    """
    flat = {}
    for name, value in metrics.items():
        parent, _, leaf = name.rpartition("/")
        flat[f"{parent}.{leaf}" if parent in metrics else name] = value
    return flat


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Strict, indented JSON, whole or not at all."""
    write_whole(path, orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
