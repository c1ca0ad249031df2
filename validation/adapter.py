"""The only place that calls the tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from validation.case import Case, Program, Setup
from validation.score import Finding

ANALYZER_NAMES = {
    "general": "GradientFlowAnalyzer",
    "game": "GradientFlowAnalyzer",
    "recurrent": "RecurrentAnalyzer",
    "transformer": "TransformerAnalyzer",
    "policy": "RLPolicyAnalyzer",
}


def accepted(function: Callable[..., Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Those hints that a function has a parameter for."""
    return {name: value for name, value in hints.items() if name in inspect.signature(function).parameters}


def findings(case: Case, built: Setup | Program) -> list[Finding]:
    """Let the tool look at a case as its user would: an analyzer at a set-up, the watch at a program."""
    issues = watched(built) if isinstance(built, Program) else analyzed(case, built)
    return [Finding(i.issue_type.name, i.severity.name, _module(i.layer), i.message, _cause(i)) for i in issues]


def watched(program: Program) -> Iterable[Any]:
    """Run a loop under watch."""
    import gradient_flow

    with gradient_flow.watch(program.model, program.optimizer, scaler=program.scaler, **program.config) as flow:
        program.run()
    return flow.diagnose()


def analyzed(case: Case, setup: Setup) -> Iterable[Any]:
    """Run the analyzer of a case on its set-up."""
    import gradient_flow

    kind = getattr(gradient_flow, ANALYZER_NAMES[case.analyzer])
    init = {**accepted(kind, setup.hints), **setup.init}
    if case.analyzer == "game":
        init["enable_vector_analysis"] = True
    analyzer = kind(setup.model, **init)
    arguments = {**accepted(analyzer.analyze, setup.hints), **setup.kwargs}
    if setup.optimizer is not None:
        arguments["optimizer"] = setup.optimizer
    result = analyzer.analyze(setup.input_fn, setup.loss_fn, steps=setup.steps, **arguments)
    return result[0] if isinstance(result, tuple) else result  # the special analyzers add their statistics


def _cause(issue: Any) -> str:
    """The code of the cause, where the tool has one."""
    cause = getattr(issue, "cause", None) or ""
    return str(getattr(cause, "value", cause))


def _module(layer: str) -> str:
    """The module of a place: `rnn[l1]` is a layer inside of `rnn`, which has no path of its own."""
    return layer.partition("[")[0]
