"""Whether a model is sure of its answers before it has learnt them, seen where the loss makes probabilities of logits.

Such a model, a policy above all, hardly explores, and the gradient of a softmax that is sure is next to none.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gradient_flow.cures.batches import buffers_kept, seed_all
from gradient_flow.cures.patient import Patient
from gradient_flow.diagnosis.advice import by_itself
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.words import percent, plain

_SURE: Final = 0.1
"""Entropy, as a share of the largest there is, below which a model is sure."""
_BATCHES: Final = 2
_MARGIN: Final = 0.02
_MASKED: Final = -1e6
_EVEN: Final = 1e-3
"""Factor that makes any logits nearly even."""
_DIM: Final = {"softmax": -1, "log_softmax": -1, "logsumexp": -1, "cross_entropy": 1}
"""Functions that make probabilities, and the dimension where they do so unless told another."""


class _Probabilities(TorchFunctionMode):
    """Notes how sure logits are that meet a softmax outside the model; with `even` it makes them even."""

    def __init__(self, model: nn.Module, even: bool) -> None:
        super().__init__()
        self.entropies: list[float] = []
        self._even, self._inside = even, 0
        self._hooks = (
            model.register_forward_pre_hook(self._enter),
            model.register_forward_hook(self._leave, always_call=True),
        )

    def _enter(self, *_: Any) -> None:
        self._inside += 1

    def _leave(self, *_: Any) -> None:
        self._inside -= 1

    def __exit__(self, *problem: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*problem)  # type: ignore[no-untyped-call]  # torch does not type it

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every function of torch that model and loss call."""
        named, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if not self._inside and name in _DIM and args and isinstance(args[0], torch.Tensor) and args[0].dim() > 1:
            logits = args[0]
            dim = args[1] if len(args) > 1 and isinstance(args[1], int) else named.get("dim", _DIM[name])
            if isinstance(dim, int) and logits.shape[dim] > 1:
                self.entropies.append(_entropy(logits.detach(), dim))
                args = (logits * _EVEN if self._even else logits, *args[1:])
        return func(*args, **named)


def _entropy(logits: torch.Tensor, dim: int) -> float:
    """Mean entropy over rows with a choice, as a share of the largest."""
    rows = logits.double().movedim(dim, -1).flatten(0, -2)
    allowed = (rows > _MASKED).sum(dim=-1)
    chance = torch.softmax(rows, dim=-1)
    entropy = -torch.xlogy(chance, chance).sum(dim=-1)[allowed > 1] / allowed[allowed > 1].double().log()
    return float(entropy.mean()) if entropy.numel() else math.nan


def too_sure(patient: Patient) -> Issue | None:
    """The issue of a model that is sure for no reason: its loss is no better than that of even odds."""
    entropies: list[float] = []
    losses: dict[bool, float] = {False: 0.0, True: 0.0}
    with torch.no_grad(), buffers_kept(patient.model):
        for at in patient.held_out[:_BATCHES]:
            for even in losses:
                seed_all(patient.seed + at)
                with _Probabilities(patient.model, even) as seen:
                    losses[even] += float(patient.batches.loss(patient.model, at)) / _BATCHES
                entropies += [] if even else seen.entropies
    if not entropies or not max(entropies) < _SURE or not all(map(math.isfinite, losses.values())):
        return None
    sure, at_even_odds = losses[False], losses[True]
    if sure < at_even_odds - _MARGIN * abs(at_even_odds):
        return None  # it knows
    return Issue(
        issue_type=IssueType.EXPLORATION,
        severity=IssueSeverity.MEDIUM,
        layer="model",
        message=f"the model is sure of its answers (entropy at {percent(max(entropies))} of the largest), although its "
        f"loss, {plain(sure)}, is no better than with even odds ({plain(at_even_odds)}).",
        evidence={"entropy": max(entropies), "loss": sure, "loss_with_even_odds": at_even_odds},
        cause="Large weights or biases in front of the softmax, or inputs in raw units.",
        advice=(
            by_itself("Scale the logits down: a softmax that is sure passes hardly any gradient.", "scale_outputs"),
        ),
    )
