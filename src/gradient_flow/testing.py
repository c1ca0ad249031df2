"""For tests of models: an assertion that gradients are healthy."""

from __future__ import annotations

import torch
from torch import nn

from gradient_flow.diagnosis.issue import Issue, at_least
from gradient_flow.faces.analyzers import InputFn, LossFn
from gradient_flow.faces.preflight import analyze

__all__ = ["assert_healthy_gradients"]


def assert_healthy_gradients(
    model: nn.Module,
    input_fn: InputFn,
    loss_fn: LossFn,
    *,
    fail_on: str = "medium",
    steps: int = 20,
    optimizer: torch.optim.Optimizer | None = None,
    analyzer: str = "general",
) -> list[Issue]:
    """Run a few steps and raise `AssertionError` with a paragraph for each issue of at least this severity.

    `fail_on` is `low`, `medium`, `high` or `critical`; graver issues count too. With an `optimizer` the steps train a
    copy: the model, its gradients, the optimizer and all random states are left as they were. `analyzer` is
    `general`, `recurrent`, `transformer` or `policy`. Returns the lesser issues.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> assert_healthy_gradients(model, lambda: torch.randn(64, 8), lambda output: (output - 1).square().mean())
    []
    """
    __tracebackhide__ = True
    issues, _ = analyze(model, input_fn, loss_fn, optimizer, kind=analyzer, steps=steps, in_place=False)
    failed = at_least(issues, fail_on)
    if failed:
        many = "1 issue" if len(failed) == 1 else f"{len(failed)} issues"
        paragraphs = "\n\n".join(map(str, failed))
        raise AssertionError(
            f"gradients are not healthy: {many} of severity {fail_on} or above in {steps} steps.\n\n{paragraphs}"
        )
    return [issue for issue in issues if issue not in failed]
