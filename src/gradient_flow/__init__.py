"""gradient_flow: which layer, since when, why, and what to change, for any PyTorch training loop.

Names are loaded when first used, so that importing this package imports neither torch nor anything optional.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradient_flow._version import __version__

if TYPE_CHECKING:
    from gradient_flow.errors import ConfigError as ConfigError
    from gradient_flow.errors import GradientFlowError as GradientFlowError
    from gradient_flow.errors import GradientFlowWarning as GradientFlowWarning
    from gradient_flow.errors import InputError as InputError
    from gradient_flow.errors import KernelError as KernelError
    from gradient_flow.errors import MissingExtraError as MissingExtraError
    from gradient_flow.errors import MonitorStateError as MonitorStateError
    from gradient_flow.errors import NonFiniteGradientError as NonFiniteGradientError
    from gradient_flow.errors import RunFileError as RunFileError
    from gradient_flow.flow import Flow as Flow
    from gradient_flow.flow import watch as watch
    from gradient_flow.functional import clip_gradients as clip_gradients
    from gradient_flow.functional import compute_gradient_norm as compute_gradient_norm
    from gradient_flow.functional import compute_gradient_stats as compute_gradient_stats
    from gradient_flow.functional import detect_gradient_issues as detect_gradient_issues
    from gradient_flow.functional import visualize_layer_gradients as visualize_layer_gradients
    from gradient_flow.gain import GainComparison as GainComparison
    from gradient_flow.gain import GradientGainMonitor as GradientGainMonitor
    from gradient_flow.history.run_reader import Run as Run
    from gradient_flow.history.run_reader import load_run as load_run
    from gradient_flow.integrations.lightning import GradientStatisticsCallback as GradientStatisticsCallback
    from gradient_flow.measurement import GradientStats as GradientStats
    from gradient_flow.measurement import GradientTable as GradientTable
    from gradient_flow.measurement import measure as measure

_HOME = {
    "ConfigError": "errors",
    "GradientFlowError": "errors",
    "GradientFlowWarning": "errors",
    "Flow": "flow",
    "GainComparison": "gain",
    "GradientGainMonitor": "gain",
    "GradientStatisticsCallback": "integrations.lightning",
    "GradientStats": "measurement",
    "GradientTable": "measurement",
    "InputError": "errors",
    "KernelError": "errors",
    "MissingExtraError": "errors",
    "MonitorStateError": "errors",
    "NonFiniteGradientError": "errors",
    "Run": "history.run_reader",
    "RunFileError": "errors",
    "clip_gradients": "functional",
    "compute_gradient_norm": "functional",
    "compute_gradient_stats": "functional",
    "detect_gradient_issues": "functional",
    "load_run": "history.run_reader",
    "measure": "measurement",
    "visualize_layer_gradients": "functional",
    "watch": "flow",
}
"""Public name → module that defines it."""

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
