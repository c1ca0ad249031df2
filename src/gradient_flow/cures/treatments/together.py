"""Several treatments as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gradient_flow.cures.registry import do, register_treatment
from gradient_flow.diagnosis.treatment import Treatment


@register_treatment("together", proposed_by=lambda _patient: ())
def together(
    model: nn.Module, optimizer: torch.optim.Optimizer, parts: Sequence[Mapping[str, Any]]
) -> torch.optim.Optimizer:
    """One after the other; none is proposed, the comparison makes them of what it has tried."""
    for part in parts:
        optimizer = do(Treatment.from_dict(part), model, optimizer)
    return optimizer
