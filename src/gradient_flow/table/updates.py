"""How far a step moved each weight, from a sample of its elements instead of a copy of all weights.

Before the step up to `SAMPLE` evenly spaced elements of each tensor are copied; after it the same elements are
compared. The ratio ||ΔW|| / ||W|| over the sample is exact for tensors of at most `SAMPLE` elements and an estimate for
larger ones, with a relative error of about 1 / sqrt(2 * SAMPLE), that is two percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from gradient_flow.capture.sharding import local_part

SAMPLE: Final = 1024


def sample_weights(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of evenly spaced elements."""
    return [_spaced(parameter).clone() for parameter in parameters]


def weight_changes(parameters: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """How the sampled elements changed since."""
    return [_spaced(parameter) - sample for parameter, sample in zip(parameters, before, strict=True)]


def _spaced(parameter: torch.Tensor) -> torch.Tensor:
    flat: torch.Tensor = local_part(parameter).reshape(-1)  # of a sharded weight, each rank samples its own part
    stride = max(1, flat.numel() // SAMPLE)
    return flat[::stride][:SAMPLE]
