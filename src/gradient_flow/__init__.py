"""gradient_flow: which layer, since when, why, and what to change, for any PyTorch training loop.

Names are loaded when first used, so that importing this package imports neither torch nor anything optional.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradient_flow._version import __version__

if TYPE_CHECKING:
    from gradient_flow.act.clipper import GradientClipper as GradientClipper
    from gradient_flow.act.early_stopping import EarlyStoppingConfig as EarlyStoppingConfig
    from gradient_flow.act.guard import GuardEvent as GuardEvent
    from gradient_flow.act.nonfinite import NaNInfHandler as NaNInfHandler
    from gradient_flow.act.schedule_config import LRSchedulerConfig as LRSchedulerConfig
    from gradient_flow.analyzers import GradientFlowAnalyzer as GradientFlowAnalyzer
    from gradient_flow.capture.random_states import RandomState as RandomState
    from gradient_flow.config import GradientConfig as GradientConfig
    from gradient_flow.diagnosis.clip_advice import ClipAdvice as ClipAdvice
    from gradient_flow.diagnosis.findings import Diagnosis as Diagnosis
    from gradient_flow.diagnosis.issue import Issue as Issue
    from gradient_flow.diagnosis.issue import IssueSeverity as IssueSeverity
    from gradient_flow.diagnosis.issue import IssueType as IssueType
    from gradient_flow.diagnosis.nonfinite_origin import NonFiniteOrigin as NonFiniteOrigin
    from gradient_flow.diagnosis.registry import register_rule as register_rule
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
    from gradient_flow.forensics import find_nonfinite as find_nonfinite
    from gradient_flow.functional import clip_gradients as clip_gradients
    from gradient_flow.functional import compute_gradient_norm as compute_gradient_norm
    from gradient_flow.functional import compute_gradient_stats as compute_gradient_stats
    from gradient_flow.functional import detect_gradient_issues as detect_gradient_issues
    from gradient_flow.functional import visualize_layer_gradients as visualize_layer_gradients
    from gradient_flow.gain import GainComparison as GainComparison
    from gradient_flow.gain import GradientGainMonitor as GradientGainMonitor
    from gradient_flow.history.epochs import TrainingHistory as TrainingHistory
    from gradient_flow.history.run_reader import Run as Run
    from gradient_flow.history.run_reader import load_run as load_run
    from gradient_flow.integrations.huggingface import GradientFlowCallback as GradientFlowCallback
    from gradient_flow.integrations.lightning import GradientStatisticsCallback as GradientStatisticsCallback
    from gradient_flow.integrations.lightning_manager import GradientManagerCallback as GradientManagerCallback
    from gradient_flow.management_config import GradientManagementConfig as GradientManagementConfig
    from gradient_flow.manager import GradientManager as GradientManager
    from gradient_flow.manager import create_gradient_manager as create_gradient_manager
    from gradient_flow.manager import safe_backward as safe_backward
    from gradient_flow.measurement import GradientStats as GradientStats
    from gradient_flow.measurement import GradientTable as GradientTable
    from gradient_flow.measurement import measure as measure
    from gradient_flow.monitor import GradientMonitor as GradientMonitor
    from gradient_flow.special_analyzers import RecurrentAnalyzer as RecurrentAnalyzer
    from gradient_flow.special_analyzers import RLPolicyAnalyzer as RLPolicyAnalyzer
    from gradient_flow.special_analyzers import TransformerAnalyzer as TransformerAnalyzer
    from gradient_flow.training import TrainingOptimizer as TrainingOptimizer
    from gradient_flow.verdicts import diagnose as diagnose

_HOME = {
    "ClipAdvice": "diagnosis.clip_advice",
    "ConfigError": "errors",
    "Diagnosis": "diagnosis.findings",
    "EarlyStoppingConfig": "act.early_stopping",
    "Flow": "flow",
    "GainComparison": "gain",
    "GradientClipper": "act.clipper",
    "GradientConfig": "config",
    "GradientFlowAnalyzer": "analyzers",
    "GradientFlowCallback": "integrations.huggingface",
    "GradientFlowError": "errors",
    "GradientFlowWarning": "errors",
    "GradientGainMonitor": "gain",
    "GradientManagementConfig": "management_config",
    "GradientManager": "manager",
    "GradientManagerCallback": "integrations.lightning_manager",
    "GradientMonitor": "monitor",
    "GradientStatisticsCallback": "integrations.lightning",
    "GradientStats": "measurement",
    "GradientTable": "measurement",
    "GuardEvent": "act.guard",
    "InputError": "errors",
    "Issue": "diagnosis.issue",
    "IssueSeverity": "diagnosis.issue",
    "IssueType": "diagnosis.issue",
    "KernelError": "errors",
    "LRSchedulerConfig": "act.schedule_config",
    "MissingExtraError": "errors",
    "MonitorStateError": "errors",
    "NaNInfHandler": "act.nonfinite",
    "NonFiniteGradientError": "errors",
    "NonFiniteOrigin": "diagnosis.nonfinite_origin",
    "RLPolicyAnalyzer": "special_analyzers",
    "RandomState": "capture.random_states",
    "RecurrentAnalyzer": "special_analyzers",
    "Run": "history.run_reader",
    "RunFileError": "errors",
    "TrainingHistory": "history.epochs",
    "TrainingOptimizer": "training",
    "TransformerAnalyzer": "special_analyzers",
    "clip_gradients": "functional",
    "compute_gradient_norm": "functional",
    "compute_gradient_stats": "functional",
    "create_gradient_manager": "manager",
    "detect_gradient_issues": "functional",
    "diagnose": "verdicts",
    "find_nonfinite": "forensics",
    "load_run": "history.run_reader",
    "measure": "measurement",
    "register_rule": "diagnosis.registry",
    "safe_backward": "manager",
    "visualize_layer_gradients": "functional",
    "watch": "flow",
}
"""Public name → module that defines it."""

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "testing":
        return importlib.import_module(f"{__name__}.testing")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
