"""The documented analyzers: a model, its batches and its loss in, issues out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.analysis.recording import analysis_run
from gradient_flow.analysis.steps import gradient_field, input_jacobian, run_steps
from gradient_flow.config import Default, passed
from gradient_flow.diagnosis.issue import Issue, IssueSeverity
from gradient_flow.diagnosis.network.record import DEFAULTS, AnalysisRecord
from gradient_flow.diagnosis.verdict import NETWORK, verdict
from gradient_flow.errors import ConfigError, InputError
from gradient_flow.looks.found import found_by
from gradient_flow.looks.probe import Probe
from gradient_flow.probes.field.coherence import FlowCoherence
from gradient_flow.record.plain import to_plain

InputFn = Callable[[], Any]
LossFn = Callable[[Any], torch.Tensor]
_VANISHING: Final = Default(DEFAULTS["vanishing_threshold"])
_EXPLODING: Final = Default(DEFAULTS["exploding_threshold"])
_DEAD: Final = Default(DEFAULTS["dead_threshold"])
_UNSTABLE: Final = Default(DEFAULTS["unstable_cv_threshold"])


class GradientFlowAnalyzer:
    """Runs a few steps of a model and says which layer, since when, why, and what to do. Healthy: an empty list.

    Verdicts rest on ratios: a factor on the loss, the width or the batch size change none of medium severity or above.
    A level beyond a default threshold is a LOW remark. A threshold that you pass, also with its default value, is taken
    at its word: beyond it is HIGH.

    Args:
        enable_rnn_analyzer: also Jacobian analysis: the dynamics of recurrent parts (`analyzer.dynamics`), and without
            such parts the output by the input (`analyzer.jacobian`); the same as `enable_jacobian`.
        enable_circular_flow_analyser: also rotation of the gradient field; the same as `enable_vector_analysis`.
        vanishing_threshold: gradient norm below which a layer counts as vanishing.
        exploding_threshold: gradient norm above which it counts as exploding.
        dead_threshold: share of zero gradients above which it counts as dead.
        unstable_cv_threshold: coefficient of variation of the norm above which it counts as unstable.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    >>> analyzer = GradientFlowAnalyzer(model)
    >>> analyzer.analyze(lambda: torch.randn(64, 8), lambda output: (output - 1).square().mean(), steps=5)
    []
    """

    _of_input = True
    """Whether Jacobian analysis is that of the output by the input, where nothing recurs."""

    def __init__(
        self,
        model: nn.Module,
        enable_rnn_analyzer: bool = False,
        enable_circular_flow_analyser: bool = False,
        vanishing_threshold: float = _VANISHING,
        exploding_threshold: float = _EXPLODING,
        dead_threshold: float = _DEAD,
        unstable_cv_threshold: float = _UNSTABLE,
        *,
        enable_jacobian: bool | None = None,
        enable_vector_analysis: bool | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"`model` must be a module, got {type(model).__name__}.")
        self.model = model
        self.enable_jacobian = bool(enable_rnn_analyzer) if enable_jacobian is None else bool(enable_jacobian)
        circular = bool(enable_circular_flow_analyser)
        self.enable_vector_analysis = circular if enable_vector_analysis is None else bool(enable_vector_analysis)
        self.thresholds = {
            "vanishing_threshold": _positive(vanishing_threshold, "vanishing_threshold"),
            "exploding_threshold": _positive(exploding_threshold, "exploding_threshold"),
            "dead_threshold": _share(dead_threshold, "dead_threshold"),
            "unstable_cv_threshold": _positive(unstable_cv_threshold, "unstable_cv_threshold"),
        }
        self.passed = passed(
            vanishing_threshold=vanishing_threshold,
            exploding_threshold=exploding_threshold,
            dead_threshold=dead_threshold,
            unstable_cv_threshold=unstable_cv_threshold,
        )
        """Names of the thresholds that were passed."""
        self.record: AnalysisRecord | None = None
        """What the last analysis saw, as plain numbers."""
        self.seen: dict[str, Mapping[str, Any]] = {}
        """The same as a look of a run has it, with what probes found: `flow.add_look(analyzer.seen)`."""
        self.dynamics: Any = None
        """With Jacobian analysis: what the recurrent part does, None where there is none."""
        self.jacobian: Any = None
        """With Jacobian analysis: singular values and conditioning of the output by the input, where nothing recurs."""
        self.jacobian_reason = ""
        """Why there is none."""
        self.field: Any = None
        """With vector analysis: divergence and rotation of the gradient field."""

    def __getattr__(self, name: str) -> Any:
        if name in DEFAULTS and "thresholds" in self.__dict__:
            return self.thresholds[name]
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def analyze(
        self,
        input_fn: InputFn,
        loss_fn: LossFn,
        steps: int = 20,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        in_place: bool = True,
        players: Any = None,
        progress: bool = False,
    ) -> list[Issue]:
        """Main issues, the gravest first; an empty list for a healthy model.

        Each step calls `input_fn()`, the model on what it returns (a tuple is spread over its arguments, a mapping over
        its keywords), and `loss_fn` on the model's output. Without an `optimizer` the model, its gradients and all
        random states are left as found; with one the steps train the model, or a copy of it with `in_place=False`.
        """
        return self._issues(input_fn, loss_fn, steps, optimizer, in_place, progress, players=players)

    def print_summary(self, issues: Sequence[Issue]) -> None:
        """Print how many issues of which severity there are, and each of them."""
        say(summary(issues, self.record) + (f"\n\n{self.jacobian}" if self.jacobian is not None else ""))

    def _issues(
        self,
        input_fn: InputFn,
        loss_fn: LossFn,
        steps: int,
        optimizer: torch.optim.Optimizer | None,
        in_place: bool,
        progress: bool,
        probe_name: str = "",
        make_probe: Callable[[nn.Module], Probe] | None = None,
        read_probe: Callable[[Any], Mapping[str, Any] | None] | None = None,
        players: Any = None,
    ) -> list[Issue]:
        _check_call(input_fn, loss_fn, steps, optimizer)
        _check_held(self.model, optimizer)
        if make_probe is None and self.enable_jacobian and has_recurrence(self.model):
            probe_name, make_probe, read_probe = "recurrent", _recurrent_probe, self._read_recurrence
        coherence = FlowCoherence() if self.enable_vector_analysis else None
        record, probe = run_steps(
            self.model,
            input_fn,
            loss_fn,
            steps=steps,
            optimizer=optimizer,
            in_place=in_place,
            thresholds=self.thresholds,
            passed=sorted(self._explicit(DEFAULTS)),
            make_probe=make_probe,
            coherence=coherence,
            progress=progress,
        )
        self.record, self.seen = record, {NETWORK: to_plain(record)}
        if self.enable_jacobian and self._of_input and not has_recurrence(self.model):
            self.jacobian, self.jacobian_reason = input_jacobian(self.model, input_fn)
        if read_probe is not None and probe is not None and (found := read_probe(probe)) is not None:
            self.seen[probe_name] = found
        if coherence is not None:
            self.field = gradient_field(self.model, input_fn, loss_fn, players, coherence.value())
            self.seen["field"] = found_by(self.field)
        return list(verdict(analysis_run(record, self.seen)))

    def _explicit(self, defaults: Mapping[str, float]) -> set[str]:
        """Settings that the user passed, or changed since: they are taken at their word."""
        return {name for name, value in defaults.items() if name in self.passed or getattr(self, name) != value}

    def _read_recurrence(self, probe: Any) -> Mapping[str, Any] | None:
        self.dynamics = probe.result()
        return None if self.dynamics is None else found_by(self.dynamics)


def summary(issues: Sequence[Issue], record: AnalysisRecord | None = None) -> str:
    """A verdict in a sentence, then one paragraph per issue."""
    seen = f" in {record.steps} steps" if record is not None else ""
    if not issues:
        return f"Healthy: no issue found{seen}."
    counts = {severity: sum(issue.severity == severity for issue in issues) for severity in reversed(IssueSeverity)}
    by_severity = ", ".join(f"{count} {severity}" for severity, count in counts.items() if count)
    many = "1 issue" if len(issues) == 1 else f"{len(issues)} issues"
    return "\n\n".join([f"{many} found{seen} ({by_severity}).", *map(str, issues)])


def has_recurrence(model: nn.Module) -> bool:
    """Whether the model has a recurrent layer or cell of torch's."""
    return any(isinstance(module, (nn.RNNBase, nn.RNNCellBase)) for module in model.modules())


def _recurrent_probe(model: nn.Module) -> Probe:
    from gradient_flow.probes.recurrent.probe import RecurrentProbe

    return RecurrentProbe(model)


def say(text: str) -> None:
    """Print to standard output, for the documented summaries."""
    sys.stdout.write(f"{text}\n")


def _check_call(input_fn: Any, loss_fn: Any, steps: Any, optimizer: Any) -> None:
    for name, function in (("input_fn", input_fn), ("loss_fn", loss_fn)):
        if not callable(function):
            raise InputError(
                f"`{name}` must be a function, got {type(function).__name__}. Wrap it: `{name}=lambda"
                f"{'' if name == 'input_fn' else ' output'}: ...`."
            )
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"`steps` must be an integer ≥ 1, got {steps!r}.")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"`optimizer` must be a torch optimizer, got {type(optimizer).__name__}.")


def _check_held(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Steps of an optimizer that holds another model's weights would look like a rate that is far too small."""
    if optimizer is None:
        return
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if trained and not any(id(parameter) in held for parameter in trained):
        raise InputError(
            "`optimizer` must hold parameters of the model; it holds none of them. Make it from the parameters of the "
            "model that is analyzed, after a copy or a move to another device."
        )


def _positive(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigError(f"`{name}` must be a positive number, got {value!r}. The default is {DEFAULTS[name]:g}.")
    return float(value)


def _share(value: Any, name: str) -> float:
    if _positive(value, name) > 1:
        raise ConfigError(
            f"`{name}` must be a share between 0 and 1, got {value!r}. The default is {DEFAULTS[name]:g}."
        )
    return float(value)
