"""How far the tokens of a sequence are from being all the same.

The spread of tokens X is ||X - mean|| / ||X|| (Dong et al., 2021, "Attention is not all you need"): 1 for tokens that
cancel out, 0 for equal ones. Attention over equal tokens can tell nothing apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch

from gradient_flow.probes.attention.sums import Padding, evenly_spaced

_MAX_TOKENS: Final = 64
_MAX_SAMPLES: Final = 4


class TokenSample(NamedTuple):
    """Some tokens of some samples."""

    tokens: torch.Tensor
    """(samples, tokens, features)"""
    real: torch.Tensor
    """(samples, tokens, 1): 1 for a token and 0 for padding."""


def token_sums(tokens: torch.Tensor, padding: Padding | None = None) -> torch.Tensor:
    """Sums by `TOKEN_COLUMNS` of some samples and tokens of (samples, tokens, features). Padding does not count."""
    return sums_of_tokens([some_tokens(tokens, padding)])[0]


def some_tokens(tokens: torch.Tensor, padding: Padding | None = None) -> TokenSample:
    """A copy of a few tokens of a few samples, evenly spaced."""
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
        return TokenSample(tokens[picked[:, None], at].float(), real)


def sums_of_tokens(samples: Sequence[TokenSample]) -> list[torch.Tensor]:
    """Sums by `TOKEN_COLUMNS` of each: those of one shape, as blocks of a model have, in one go."""
    found: list[torch.Tensor] = [torch.empty(0)] * len(samples)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for at, sample in enumerate(samples):
        alike.setdefault((sample.tokens.device, sample.tokens.shape), []).append(at)
    with torch.no_grad():
        for members in alike.values():
            group = [samples[at] for at in members]
            sums = _sums(torch.stack([each.tokens for each in group]), torch.stack([each.real for each in group]))
            for at, own in zip(members, sums, strict=True):
                found[at] = own
    return found


def _sums(tokens: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Of (blocks, samples, tokens, features); (blocks, columns)."""
    tokens = torch.where(real > 0, tokens, 0.0)
    tokens = tokens / tokens.abs().amax((-2, -1), keepdim=True)  # squares neither overflow nor underflow
    number = real.sum((-2, -1))
    mean = tokens.sum(-2, keepdim=True) / number[..., None, None]
    apart = ((tokens - mean) * real).square().sum((-2, -1))
    spread = (apart / tokens.square().sum((-2, -1))).sqrt()
    directions = torch.nn.functional.normalize(tokens, dim=-1)
    similarity = (directions.sum(-2).square().sum(-1) - number) / (number * (number - 1))
    usable = (number >= 2) & spread.isfinite() & similarity.isfinite()
    return torch.where(usable, torch.stack([torch.ones_like(spread), spread, similarity]), 0.0).sum(-1).T
