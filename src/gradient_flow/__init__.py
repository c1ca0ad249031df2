"""gradient_flow: which layer, since when, why, and what to change, for any PyTorch training loop.

Names are loaded when first used, so that importing this package imports neither torch nor anything optional.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any

from gradient_flow._version import __version__

if TYPE_CHECKING:
    from gradient_flow.act.clip_advice import ClipAdvice as ClipAdvice
    from gradient_flow.act.clipper import GradientClipper as GradientClipper
    from gradient_flow.act.guard import GuardEvent as GuardEvent
    from gradient_flow.act.guard import NaNInfHandler as NaNInfHandler
    from gradient_flow.capture.random_state import RandomState as RandomState
    from gradient_flow.config import GradientConfig as GradientConfig
    from gradient_flow.cures.cure import cure as cure
    from gradient_flow.cures.registry import register_treatment as register_treatment
    from gradient_flow.cures.registry import unregister_treatment as unregister_treatment
    from gradient_flow.cures.result import Cure as Cure
    from gradient_flow.cures.result import Trial as Trial
    from gradient_flow.diagnosis.issue import Diagnosis as Diagnosis
    from gradient_flow.diagnosis.issue import Issue as Issue
    from gradient_flow.diagnosis.issue import IssueSeverity as IssueSeverity
    from gradient_flow.diagnosis.issue import IssueType as IssueType
    from gradient_flow.diagnosis.network.record import AnalysisRecord as AnalysisRecord
    from gradient_flow.diagnosis.registry import register_rule as register_rule
    from gradient_flow.diagnosis.registry import unregister_rule as unregister_rule
    from gradient_flow.diagnosis.sources import diagnose as diagnose
    from gradient_flow.diagnosis.treatment import Treatment as Treatment
    from gradient_flow.errors import ConfigError as ConfigError
    from gradient_flow.errors import GradientFlowError as GradientFlowError
    from gradient_flow.errors import GradientFlowWarning as GradientFlowWarning
    from gradient_flow.errors import InputError as InputError
    from gradient_flow.errors import KernelError as KernelError
    from gradient_flow.errors import MissingExtraError as MissingExtraError
    from gradient_flow.errors import MonitorStateError as MonitorStateError
    from gradient_flow.errors import NonFiniteGradientError as NonFiniteGradientError
    from gradient_flow.errors import RunFileError as RunFileError
    from gradient_flow.faces.analyzers import GradientFlowAnalyzer as GradientFlowAnalyzer
    from gradient_flow.faces.functions import clip_gradients as clip_gradients
    from gradient_flow.faces.functions import compute_gradient_norm as compute_gradient_norm
    from gradient_flow.faces.functions import compute_gradient_stats as compute_gradient_stats
    from gradient_flow.faces.functions import detect_gradient_issues as detect_gradient_issues
    from gradient_flow.faces.functions import visualize_layer_gradients as visualize_layer_gradients
    from gradient_flow.faces.gain import GainComparison as GainComparison
    from gradient_flow.faces.gain import GradientGainMonitor as GradientGainMonitor
    from gradient_flow.faces.manager import GradientManager as GradientManager
    from gradient_flow.faces.manager import create_gradient_manager as create_gradient_manager
    from gradient_flow.faces.manager import safe_backward as safe_backward
    from gradient_flow.faces.monitor import GradientMonitor as GradientMonitor
    from gradient_flow.faces.special_analyzers import RecurrentAnalyzer as RecurrentAnalyzer
    from gradient_flow.faces.special_analyzers import RLPolicyAnalyzer as RLPolicyAnalyzer
    from gradient_flow.faces.special_analyzers import TransformerAnalyzer as TransformerAnalyzer
    from gradient_flow.faces.training_optimizer import TrainingOptimizer as TrainingOptimizer
    from gradient_flow.fleets.association import Association as Association
    from gradient_flow.fleets.causes import Cause as Cause
    from gradient_flow.fleets.fleet import Fleet as Fleet
    from gradient_flow.fleets.fleet import fleet as fleet
    from gradient_flow.flow.flow import Flow as Flow
    from gradient_flow.flow.rank_checks import RankReport as RankReport
    from gradient_flow.flow.watch import watch as watch
    from gradient_flow.integrations.huggingface import GradientFlowCallback as GradientFlowCallback
    from gradient_flow.integrations.lightning import GradientStatisticsCallback as GradientStatisticsCallback
    from gradient_flow.integrations.lightning_manager import GradientManagerCallback as GradientManagerCallback
    from gradient_flow.probes.attention.stats import AttentionStats as AttentionStats
    from gradient_flow.probes.batch.cause import BatchCause as BatchCause
    from gradient_flow.probes.batch.find import find_batch as find_batch
    from gradient_flow.probes.field.jacobian import JacobianStats as JacobianStats
    from gradient_flow.probes.field.stats import FieldStats as FieldStats
    from gradient_flow.probes.nonfinite.find import find_nonfinite as find_nonfinite
    from gradient_flow.probes.nonfinite.origin import NonFiniteOrigin as NonFiniteOrigin
    from gradient_flow.probes.policy.stats import PolicyStats as PolicyStats
    from gradient_flow.probes.recurrent.stats import RecurrentDynamics as RecurrentDynamics
    from gradient_flow.record.event import Event as Event
    from gradient_flow.record.evidence import NonFinite as NonFinite
    from gradient_flow.record.evidence import RunRecord as RunRecord
    from gradient_flow.record.look import LookRecord as LookRecord
    from gradient_flow.record.run import Run as Run
    from gradient_flow.record.run import load_run as load_run
    from gradient_flow.record.step import StepRecord as StepRecord
    from gradient_flow.report.compare import Comparison as Comparison
    from gradient_flow.report.compare import compare as compare
    from gradient_flow.report.write import write_report as write_report
    from gradient_flow.table import GradientStats as GradientStats
    from gradient_flow.table import GradientTable as GradientTable
    from gradient_flow.table import measure as measure
    from gradient_flow.training.config import GradientManagementConfig as GradientManagementConfig
    from gradient_flow.training.config import LRSchedulerConfig as LRSchedulerConfig
    from gradient_flow.training.early_stopping import EarlyStoppingConfig as EarlyStoppingConfig
    from gradient_flow.training.history import TrainingHistory as TrainingHistory

_HOME = {
    "AnalysisRecord": "diagnosis.network.record",
    "Association": "fleets.association",
    "AttentionStats": "probes.attention.stats",
    "BatchCause": "probes.batch.cause",
    "Cause": "fleets.causes",
    "ClipAdvice": "act.clip_advice",
    "Comparison": "report.compare",
    "ConfigError": "errors",
    "Cure": "cures.result",
    "Diagnosis": "diagnosis.issue",
    "EarlyStoppingConfig": "training.early_stopping",
    "Event": "record.event",
    "FieldStats": "probes.field.stats",
    "Fleet": "fleets.fleet",
    "Flow": "flow.flow",
    "GainComparison": "faces.gain",
    "GradientClipper": "act.clipper",
    "GradientConfig": "config",
    "GradientFlowAnalyzer": "faces.analyzers",
    "GradientFlowCallback": "integrations.huggingface",
    "GradientFlowError": "errors",
    "GradientFlowWarning": "errors",
    "GradientGainMonitor": "faces.gain",
    "GradientManagementConfig": "training.config",
    "GradientManager": "faces.manager",
    "GradientManagerCallback": "integrations.lightning_manager",
    "GradientMonitor": "faces.monitor",
    "GradientStatisticsCallback": "integrations.lightning",
    "GradientStats": "table",
    "GradientTable": "table",
    "GuardEvent": "act.guard",
    "InputError": "errors",
    "Issue": "diagnosis.issue",
    "IssueSeverity": "diagnosis.issue",
    "IssueType": "diagnosis.issue",
    "JacobianStats": "probes.field.jacobian",
    "KernelError": "errors",
    "LRSchedulerConfig": "training.config",
    "LookRecord": "record.look",
    "MissingExtraError": "errors",
    "MonitorStateError": "errors",
    "NaNInfHandler": "act.guard",
    "NonFinite": "record.evidence",
    "NonFiniteGradientError": "errors",
    "NonFiniteOrigin": "probes.nonfinite.origin",
    "PolicyStats": "probes.policy.stats",
    "RLPolicyAnalyzer": "faces.special_analyzers",
    "RandomState": "capture.random_state",
    "RankReport": "flow.rank_checks",
    "RecurrentAnalyzer": "faces.special_analyzers",
    "RecurrentDynamics": "probes.recurrent.stats",
    "Run": "record.run",
    "RunFileError": "errors",
    "RunRecord": "record.evidence",
    "StepRecord": "record.step",
    "TrainingHistory": "training.history",
    "TrainingOptimizer": "faces.training_optimizer",
    "TransformerAnalyzer": "faces.special_analyzers",
    "Treatment": "diagnosis.treatment",
    "Trial": "cures.result",
    "clip_gradients": "faces.functions",
    "compare": "report.compare",
    "compute_gradient_norm": "faces.functions",
    "compute_gradient_stats": "faces.functions",
    "create_gradient_manager": "faces.manager",
    "cure": "cures.cure",
    "detect_gradient_issues": "faces.functions",
    "diagnose": "diagnosis.sources",
    "find_batch": "probes.batch.find",
    "find_nonfinite": "probes.nonfinite.find",
    "fleet": "fleets.fleet",
    "load_run": "record.run",
    "measure": "table",
    "register_rule": "diagnosis.registry",
    "register_treatment": "cures.registry",
    "safe_backward": "faces.manager",
    "unregister_rule": "diagnosis.registry",
    "unregister_treatment": "cures.registry",
    "visualize_layer_gradients": "faces.functions",
    "watch": "flow.watch",
    "write_report": "report.write",
}
"""Public name → module that defines it."""

__all__ = ["__version__", *_HOME]

_MOVED = {
    "act.early_stopping": "training.early_stopping",
    "act.nonfinite": "act.guard",
    "act.schedule_config": "training.config",
    "capture.loss_scale": "capture.optimizer_steps",
    "capture.random_states": "capture.random_state",
    "capture.tensor_ranges": "probes.nonfinite.tensor_range",
    "diagnosis.clip_advice": "act.clip_advice",
    "diagnosis.findings": "diagnosis.issue",
    "diagnosis.nonfinite_origin": "probes.nonfinite.origin",
    "gain": "faces.gain",
    "history.epochs": "training.history",
    "history.running": "record.window",
    "management_config": "training.config",
    "manager": "faces.manager",
    "measurement.columns": "table.columns",
    "measurement.table": "table.table",
    "monitor": "faces.monitor",
}
"""Modules that pickles of version 0.1 name → where their classes are now."""


class _MovedModules:
    """Finds modules under the names that old pickles have: a pickle knows its class by the module it was in."""

    @staticmethod
    def find_spec(name: str, _path: Any = None, _target: Any = None) -> Any:
        old = name.removeprefix("gradient_flow.")
        package = any(each.startswith(f"{old}.") for each in _MOVED) and old in ("history", "measurement")
        if old == name or not (old in _MOVED or package):
            return None
        return importlib.machinery.ModuleSpec(name, _MovedModules(), is_package=package)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        """The default: an empty module."""

    def exec_module(self, module: Any) -> None:
        """Whatever is asked of it is asked of the module that took its place."""
        new = _MOVED.get(module.__name__.removeprefix("gradient_flow."))
        if new is not None:
            module.__getattr__ = lambda name: getattr(importlib.import_module(f"gradient_flow.{new}"), name)


if not any(isinstance(finder, type) and finder.__name__ == "_MovedModules" for finder in sys.meta_path):
    sys.meta_path.append(_MovedModules)


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
