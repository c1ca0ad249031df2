"""How far the tokens of a sequence are from being all the same.

The spread of tokens X is ||X - mean|| / ||X|| (Dong et al., 2021, "Attention is not all you need"): 1 for tokens that
cancel out, 0 for equal ones. Attention over equal tokens can tell nothing apart.
"""

from __future__ import annotations

from typing import Final

import torch

from gradient_flow.probes.attention.sums import Padding, evenly_spaced

_MAX_TOKENS: Final = 64
_MAX_SAMPLES: Final = 4


def token_sums(tokens: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
    """Sums by `TOKEN_COLUMNS` of some samples and tokens of (samples, tokens, features). Padding does not count."""
    with torch.no_grad():
        count, device = tokens.shape[1], tokens.device
        if padding is not None and padding.attended.shape[1] != count:
            padding = None  # attention to another sequence
        at = evenly_spaced(count, _MAX_TOKENS, device)
        if padding is None:
            picked = evenly_spaced(tokens.shape[0], _MAX_SAMPLES, device)
            real = torch.ones(len(picked), len(at), 1, device=device)
        else:
            picked = padding.samples[:_MAX_SAMPLES]
            real = padding.attended[:_MAX_SAMPLES, at, None].float()
        return _sums(tokens[picked[:, None], at].float(), real)


def _sums(tokens: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """`real` (samples, tokens, 1) is 1 for a token and 0 for padding."""
    tokens = torch.where(real > 0, tokens, 0.0)
    tokens = tokens / tokens.abs().amax((1, 2), keepdim=True)  # squares neither overflow nor underflow
    number = real.sum((1, 2))
    mean = tokens.sum(1, keepdim=True) / number[:, None, None]
    apart = ((tokens - mean) * real).square().sum((1, 2))
    spread = (apart / tokens.square().sum((1, 2))).sqrt()
    directions = torch.nn.functional.normalize(tokens, dim=-1)
    similarity = (directions.sum(1).square().sum(-1) - number) / (number * (number - 1))
    usable = (number >= 2) & spread.isfinite() & similarity.isfinite()
    return torch.where(usable, torch.stack([torch.ones_like(spread), spread, similarity]), 0.0).sum(1)
