"""All rules on the state of an optimizer, from the most direct causes to those that follow from others."""

from __future__ import annotations

from typing import Final

from gradient_flow.diagnosis.optimizer import noise, rules

OPTIMIZER_RULES: Final = (
    rules.underflow,
    rules.lost,
    rules.decays,
    rules.eps_rules,
    rules.betas,
    rules.long_momentum,
    rules.reset,
    rules.stale,
    noise.batch_size,
)
