"""The documented analyzers for recurrent networks, transformers and policies: the general one and a probe more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.config import Default, passed
from gradient_flow.diagnosis.issue import Issue
from gradient_flow.errors import check_number
from gradient_flow.faces.analyzers import GradientFlowAnalyzer, InputFn, LossFn, say, summary
from gradient_flow.looks.found import found_by, policy_head
from gradient_flow.looks.probe import Probe

_RADIUS, _BAND = Default(0.9), Default(0.15)
_ENTROPY, _DIVERSITY = Default(0.5), Default(0.3)
_LEAST_STD, _MOST_STD = Default(0.1), Default(2.0)
_RECURRENT: Final = {"optimal_radius": _RADIUS, "critical_band": _BAND}
_ATTENTION: Final = {"min_entropy_threshold": _ENTROPY, "min_diversity_threshold": _DIVERSITY}
_POLICY: Final = {
    "min_entropy_threshold": _ENTROPY,
    "min_std_threshold": _LEAST_STD,
    "max_std_threshold": _MOST_STD,
}

_SHARE: Final = "a share between 0 and 1"
_SAME: Final = {
    "enable_rnn_analyzer": "enable_jacobian",
    "enable_circular_flow_analyser": "enable_vector_analysis",
}
"""Documented under both names."""


class RecurrentAnalyzer(GradientFlowAnalyzer):
    """The general analysis, and how a recurrent network moves through time. `analyze` gives `(issues, dynamics)`.

    Args:
        enable_jacobian: the state's Jacobian, for spectral radius, memory length and decay.
        optimal_radius: target spectral radius.
        critical_band: acceptable deviation from it.
        track_hidden_states: the rank of the states that occur.
        thresholds: those of `GradientFlowAnalyzer`.
    """

    _of_input = False

    def __init__(
        self,
        model: nn.Module,
        enable_jacobian: bool = True,
        enable_vector_analysis: bool = False,
        optimal_radius: float = _RADIUS,
        critical_band: float = _BAND,
        track_hidden_states: bool = True,
        **thresholds: Any,
    ) -> None:
        super().__init__(model, **_by_one_name(enable_jacobian, enable_vector_analysis, thresholds))
        check_number("optimal_radius", optimal_radius, "a positive number", 0, open_ends="l")
        check_number("critical_band", critical_band, "a number of at least 0", 0)
        self.optimal_radius, self.critical_band = float(optimal_radius), float(critical_band)
        self.passed += passed(optimal_radius=optimal_radius, critical_band=critical_band)
        self.track_hidden_states = track_hidden_states
        self.reason = ""
        """Why there are no dynamics, where there are none."""

    def analyze(  # type: ignore[override]  # documented to return a pair
        self,
        input_fn: InputFn,
        loss_fn: LossFn,
        steps: int = 20,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        required_lag: float | None = None,
        cells: Any = None,
        in_place: bool = True,
        progress: bool = False,
    ) -> tuple[list[Issue], Any]:
        """Issues and dynamics. `required_lag`: how many steps back the task reaches, where that is known."""

        def make_probe(model: nn.Module) -> Probe:
            from gradient_flow.probes.recurrent.probe import RecurrentProbe

            return RecurrentProbe(
                model, cells=cells, track_hidden_states=self.track_hidden_states, enable_jacobian=self.enable_jacobian
            )

        def read_probe(probe: Any) -> Mapping[str, Any] | None:
            settings = {name: getattr(self, name) for name in _RECURRENT}
            self.dynamics, self.reason = probe.result(**settings), probe.reason
            explicit = self._explicit(_RECURRENT) | ({"required_lag"} if required_lag is not None else set())
            if self.dynamics is None:
                return None
            return found_by(self.dynamics, **settings, required_lag=required_lag, explicit=explicit)

        found = self._issues(
            input_fn, loss_fn, steps, optimizer, in_place, progress, "recurrent", make_probe, read_probe
        )
        return found, self.dynamics

    def print_summary(self, issues: Sequence[Issue], dynamics: Any = None) -> None:
        """Print the issues and, if given, the dynamics."""
        say(_with_measured(summary(issues, self.record), dynamics, self.reason))


class TransformerAnalyzer(GradientFlowAnalyzer):
    """The general analysis, and where attention looks. `analyze` gives `(issues, attn_stats)`.

    Args:
        min_entropy_threshold: least attention entropy, as a share of that of looking everywhere.
        min_diversity_threshold: least difference between the heads of a layer.
        track_attention_weights: capture attention; without it `attn_stats` is None.
        thresholds: those of `GradientFlowAnalyzer`.
    """

    def __init__(
        self,
        model: nn.Module,
        enable_jacobian: bool = False,
        enable_vector_analysis: bool = False,
        min_entropy_threshold: float = _ENTROPY,
        min_diversity_threshold: float = _DIVERSITY,
        track_attention_weights: bool = True,
        **thresholds: Any,
    ) -> None:
        super().__init__(model, **_by_one_name(enable_jacobian, enable_vector_analysis, thresholds))
        check_number("min_entropy_threshold", min_entropy_threshold, _SHARE, 0, 1)
        check_number("min_diversity_threshold", min_diversity_threshold, _SHARE, 0, 1)
        self.min_entropy_threshold = float(min_entropy_threshold)
        self.min_diversity_threshold = float(min_diversity_threshold)
        self.passed += passed(
            min_entropy_threshold=min_entropy_threshold, min_diversity_threshold=min_diversity_threshold
        )
        self.track_attention_weights = track_attention_weights
        self.attn_stats: Any = None
        self.reason = ""
        """Why there are no statistics, where there are none."""

    def analyze(  # type: ignore[override]  # documented to return a pair
        self,
        input_fn: InputFn,
        loss_fn: LossFn,
        steps: int = 20,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        in_place: bool = True,
        progress: bool = False,
    ) -> tuple[list[Issue], Any]:
        """Issues and attention statistics, which are None where no attention was seen."""

        def make_probe(model: nn.Module) -> Probe:
            from gradient_flow.probes.attention.probe import AttentionProbe

            return AttentionProbe(model, track_attention_weights=self.track_attention_weights)

        def read_probe(probe: Any) -> Mapping[str, Any] | None:
            self.attn_stats, self.reason = probe.result(), probe.reason
            settings = {name: getattr(self, name) for name in _ATTENTION}
            if self.attn_stats is None:
                return None
            return found_by(self.attn_stats, **settings, explicit=self._explicit(_ATTENTION))

        found = self._issues(
            input_fn, loss_fn, steps, optimizer, in_place, progress, "attention", make_probe, read_probe
        )
        return found, self.attn_stats

    def print_summary(self, issues: Sequence[Issue], attn_stats: Any = None) -> None:
        """Print the issues and, if given, the statistics."""
        say(_with_measured(summary(issues, self.record), attn_stats, self.reason))


class RLPolicyAnalyzer(GradientFlowAnalyzer):
    """The general analysis, and how a policy explores. `analyze` gives `(issues, stats)`.

    Args:
        min_entropy_threshold: least normalised entropy of discrete actions.
        min_std_threshold: least standard deviation of continuous actions.
        max_std_threshold: largest one.
        track_distributions: capture action distributions; without it `stats` is None.
        thresholds: those of `GradientFlowAnalyzer`.
    """

    def __init__(
        self,
        model: nn.Module,
        enable_jacobian: bool = False,
        enable_vector_analysis: bool = False,
        min_entropy_threshold: float = _ENTROPY,
        min_std_threshold: float = _LEAST_STD,
        max_std_threshold: float = _MOST_STD,
        track_distributions: bool = True,
        **thresholds: Any,
    ) -> None:
        super().__init__(model, **_by_one_name(enable_jacobian, enable_vector_analysis, thresholds))
        check_number("min_entropy_threshold", min_entropy_threshold, _SHARE, 0, 1)
        check_number("min_std_threshold", min_std_threshold, "a number of at least 0", 0)
        if max_std_threshold != math.inf:
            least = f"a number above `min_std_threshold` ({min_std_threshold:g})"
            check_number("max_std_threshold", max_std_threshold, least, min_std_threshold, open_ends="l")
        self.min_entropy_threshold = float(min_entropy_threshold)
        self.min_std_threshold, self.max_std_threshold = float(min_std_threshold), float(max_std_threshold)
        self.passed += passed(
            min_entropy_threshold=min_entropy_threshold,
            min_std_threshold=min_std_threshold,
            max_std_threshold=max_std_threshold,
        )
        self.track_distributions = track_distributions
        self.stats: Any = None
        self.reason = ""
        """Why there are no statistics, or what of the policy could not be read."""

    def analyze(  # type: ignore[override]  # documented to return a pair
        self,
        input_fn: InputFn,
        loss_fn: LossFn,
        steps: int = 20,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        action_extractor: Callable[[Any], Any] | None = None,
        returns: Sequence[float] | None = None,
        max_return: float | None = None,
        action_range: Any = None,
        in_place: bool = True,
        progress: bool = False,
    ) -> tuple[list[Issue], Any]:
        """Issues and statistics.

        `action_extractor` takes the model's output to `(logits, std, mean, value)`, absent ones as None; outputs that
        are distributions need none. `returns` of episodes, and the most that the task gives (`max_return`), tell a
        policy that may be certain from one that gave up.
        """

        def make_probe(model: nn.Module) -> Probe:
            from gradient_flow.probes.policy.probe import PolicyProbe

            return PolicyProbe(
                model,
                action_extractor=action_extractor,
                track_distributions=self.track_distributions,
                action_range=action_range,
            )

        def read_probe(probe: Any) -> Mapping[str, Any] | None:
            settings = {name: getattr(self, name) for name in _POLICY}
            self.stats, self.reason = probe.result(**settings), probe.reason
            if self.stats is None:
                return None
            head = policy_head(self.record, self.stats.valid_actions)
            about: dict[str, Any] = {"returns": returns, "best_return": max_return, "layer": head}
            return found_by(self.stats, **settings, **about, explicit=self._explicit(_POLICY))

        found = self._issues(input_fn, loss_fn, steps, optimizer, in_place, progress, "policy", make_probe, read_probe)
        return found, self.stats

    def print_summary(self, issues: Sequence[Issue], stats: Any = None) -> None:
        """Print the issues and, if given, the statistics."""
        say(_with_measured(summary(issues, self.record), stats, self.reason))


def _by_one_name(jacobian: bool, vector: bool, others: dict[str, Any]) -> dict[str, Any]:
    """The two switches under either of their names, and whatever else was given."""
    named = {"enable_jacobian": jacobian, "enable_vector_analysis": vector}
    return named | {_SAME.get(name, name): value for name, value in others.items()}


def _with_measured(text: str, measured: Any, reason: str) -> str:
    """What was measured below the verdict, or why nothing was: silence would read as healthy."""
    below = reason if measured is None else str(measured)
    return f"{text}\n\n{below}" if below else text
