"""The only place that calls the tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from validation.case import Case, Setup, call
from validation.score import Finding

ANALYZER_NAMES = {
    "general": "GradientFlowAnalyzer",
    "game": "GradientFlowAnalyzer",
    "recurrent": "RecurrentAnalyzer",
    "transformer": "TransformerAnalyzer",
    "policy": "RLPolicyAnalyzer",
}
RATE, LEAST_STEPS = 1e-3, 30
"""How a set-up without an optimizer is trained under watch: Adam, for so many steps at least."""


def accepted(function: Callable[..., Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Those hints that a function has a parameter for."""
    return {name: value for name, value in hints.items() if name in inspect.signature(function).parameters}


def findings(case: Case, setup: Setup) -> list[Finding]:
    """Run the analyzer of a case on its set-up, as its user would."""
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
    issues = result[0] if isinstance(result, tuple) else result  # the special analyzers add their statistics
    return [Finding(i.issue_type.name, i.severity.name, _module(i.layer), i.message) for i in issues]


def findings_in_training(setup: Setup) -> list[Finding]:
    """Train a set-up in a loop of its user's own, under `gf.watch`, and ask for the verdict."""
    import gradient_flow as gf

    model, told = setup.model, {**setup.kwargs, **setup.hints}
    optimizer = setup.optimizer
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if optimizer is None:
        optimizer = torch.optim.Adam(trained or list(model.parameters()), lr=RATE)
    with gf.watch(model, optimizer, policy=told.get("action_extractor")) as flow:
        for _ in range(max(setup.steps, LEAST_STEPS)):
            optimizer.zero_grad()
            loss = setup.loss_fn(call(model, setup.input_fn()))
            if not loss.requires_grad:
                break  # `backward` would end the user's loop here
            loss.backward()
            optimizer.step()
    return [Finding(i.issue_type.name, i.severity.name, _module(i.layer), i.message) for i in flow.diagnose()]


def _module(layer: str) -> str:
    """The module of a place: `rnn[l1]` is a layer inside of `rnn`, which has no path of its own."""
    return layer.partition("[")[0]
