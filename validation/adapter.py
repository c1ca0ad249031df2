"""The only place that calls the tool."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from validation.case import Case, Program, Setup, call
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


def findings(case: Case, built: Setup | Program) -> list[Finding]:
    """Let the tool look at a case as its user would: an analyzer at a set-up, the watch at a program."""
    issues = watched(built) if isinstance(built, Program) else analyzed(case, built)
    return [Finding(i.issue_type.name, i.severity.name, _module(i.layer), i.message, i.code) for i in issues]


def findings_in_training(case: Case, built: Setup | Program, longer: int = 1) -> list[Finding]:
    """Let the tool watch a case as a training loop of its user's own; a set-up for so many times its steps."""
    if isinstance(built, Setup):
        built = as_program(dataclasses.replace(built, steps=longer * built.steps))
    return findings(case, built)


def _optimizer(model: nn.Module, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Adam, or what takes sparse gradients beside dense ones."""
    if any(getattr(module, "sparse", False) for module in model.modules()):
        return torch.optim.Adagrad(parameters, lr=10 * RATE)
    return torch.optim.Adam(parameters, lr=RATE)


def as_program(setup: Setup) -> Program:
    """The loop that a user would write around a set-up."""
    model, told = setup.model, {**setup.kwargs, **setup.hints}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = setup.optimizer or _optimizer(model, trained or list(model.parameters()))

    def run() -> None:
        for _ in range(max(setup.steps, LEAST_STEPS)):
            optimizer.zero_grad()
            loss = setup.loss_fn(call(model, setup.input_fn()))
            if not loss.requires_grad:
                break  # `backward` would end the user's loop here
            loss.backward()
            optimizer.step()

    return Program(model=model, optimizer=optimizer, run=run, config={"policy": told.get("action_extractor")})


def watched(program: Program) -> Iterable[Any]:
    """Run a loop under watch."""
    import gradient_flow

    flow = gradient_flow.watch(program.model, program.optimizer, scaler=program.scaler, **program.config)
    if program.log is not None:
        program.log.to = flow.log
    # A program may end by an error of its own, as one that draws from a distribution of NaN does: a run as well.
    with contextlib.suppress(ValueError), flow:
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


def _module(layer: str) -> str:
    """The module of a place: `rnn[l1]` is a layer inside of `rnn`, which has no path of its own."""
    return layer.partition("[")[0]
