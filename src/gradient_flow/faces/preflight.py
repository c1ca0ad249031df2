"""A few steps of a model under an analyzer: what `gradient-flow check`, the test helper and the demo share."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from gradient_flow.diagnosis.issue import Issue
from gradient_flow.errors import check_choice
from gradient_flow.faces.analyzers import GradientFlowAnalyzer, InputFn, LossFn
from gradient_flow.faces.special_analyzers import RecurrentAnalyzer, RLPolicyAnalyzer, TransformerAnalyzer

ANALYZERS: Final[dict[str, type[GradientFlowAnalyzer]]] = {
    "general": GradientFlowAnalyzer,
    "recurrent": RecurrentAnalyzer,
    "transformer": TransformerAnalyzer,
    "policy": RLPolicyAnalyzer,
}


def analyze(
    model: nn.Module,
    input_fn: InputFn,
    loss_fn: LossFn,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    kind: str = "general",
    steps: int = 20,
    in_place: bool = True,
    progress: bool = False,
) -> tuple[list[Issue], Any]:
    """Issues, the gravest first, and the statistics of a special analyzer, or why it has none; None for the general."""
    check_choice("analyzer", kind, ANALYZERS)
    analyzer = ANALYZERS[kind](model)
    found: Any = analyzer.analyze(
        input_fn, loss_fn, steps=steps, optimizer=optimizer, in_place=in_place, progress=progress
    )
    if not isinstance(found, tuple):
        return found, None
    issues, statistics = found
    return issues, analyzer.reason if statistics is None and analyzer.reason else statistics
