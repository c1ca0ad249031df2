"""Statistics of attention, per head, from a sample of its queries: the weights are computed anew for those and dropped.

All are sums, so that calls merge, and stay on the device until they are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch

from gradient_flow.probes.attention.functions import AttentionInputs
from gradient_flow.probes.attention.head_diversity import diversity_sums

MAX_QUERIES: Final = 64
MAX_SAMPLES: Final = 8
MOST_LOGITS: Final = 2**18
FEW_LOGITS: Final = 2**14
SHARE: Final = 1 / 24
"""Of a call with more than few logits this share is looked at, up to the most: samples are left out first, then
queries. So watching costs little in relation to any attention."""
NEAR_ZERO: Final = 0.01
"""A weight below this share of the uniform weight, 1 / keys, counts as near zero, whatever the number of keys."""
MASKED_BELOW: Final = -5e3
"""An added mask or a logit below this means "not attended": models write -inf, the smallest float, -1e9 or -1e4."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Keys that no query may attend to."""

    samples: torch.Tensor
    """Indices of the samples looked at."""
    attended: torch.Tensor
    """(samples, keys): whether any of the sampled queries may attend to the key."""


@dataclass(frozen=True, slots=True)
class AttentionSums:
    """What is kept of one attention call, or of several: sums over sampled rows (one row = one query of one sample).

    Rows with fewer than two keys are left out: they have no choice to make. Non-finite rows are only counted.
    """

    heads: torch.Tensor
    """(heads, columns) by `HEAD_COLUMNS`."""
    peaks: torch.Tensor
    """(heads,): the largest magnitude of a logit, without what a mask adds for all heads alike."""
    diversity: torch.Tensor
    """By `DIVERSITY_COLUMNS`."""
    padding: Padding | None
    """Where keys are masked: which of them are padding."""

    def merge(self, other: AttentionSums) -> AttentionSums:
        """The sums over the rows of both. Padding describes one call and is dropped."""
        peaks = torch.maximum(self.peaks, other.peaks)
        return AttentionSums(self.heads + other.heads, peaks, self.diversity + other.diversity, None)

    def flat(self) -> torch.Tensor:
        """All sums in one dimension, for `AttentionRow.from_flat`."""
        return torch.cat([self.heads.flatten(), self.peaks, self.diversity.float()])


def attention_sums(inputs: AttentionInputs, *, max_queries: int = MAX_QUERIES) -> AttentionSums:
    """Reduce one attention call. Queries and samples are taken evenly spaced, so random state is not touched."""
    return sums_of([some_logits(inputs, max_queries=max_queries)])[0]


def some_logits(inputs: AttentionInputs, *, max_queries: int = MAX_QUERIES) -> LogitSample:
    """The logits of a few queries of a few samples, computed anew."""
    samples, heads, queries, _ = inputs.rows.shape
    keys = inputs.rows.shape[-1] if inputs.key is None else inputs.key.shape[-2]
    budget = min(MOST_LOGITS, max(FEW_LOGITS, round(SHARE * samples * heads * queries * keys)))
    row_count = max(1, min(queries, max_queries, budget // max(1, heads * keys)))
    sample_count = max(1, min(samples, MAX_SAMPLES, budget // max(1, heads * keys * row_count)))
    device = inputs.rows.device
    picked, rows = evenly_spaced(samples, sample_count, device), evenly_spaced(queries, row_count, device)
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        sample = (_given_logits if inputs.key is None else _recomputed_logits)(inputs, picked, rows)
        if sample.allowed is None or sample.padding is not None:
            return sample
        allowed = sample.allowed[(None,) * (4 - sample.allowed.dim())]
        padding = Padding(picked, allowed.any(1).any(1).expand(sample_count, -1))
        return sample._replace(allowed=allowed, padding=padding)


def sums_of(samples: Sequence[LogitSample]) -> list[AttentionSums]:
    """Reduce several attention calls: those of one shape, as layers of a model have, in one go."""
    found: list[AttentionSums | None] = [None] * len(samples)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for at, sample in enumerate(samples):
        mask = None if sample.allowed is None else sample.allowed.shape
        kind = sample.logits.device, sample.logits.shape, mask, sample.own is sample.logits
        alike.setdefault(kind, []).append(at)
    for (device, _, _, one), members in alike.items():
        group = [samples[at] for at in members]
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            logits = torch.stack([each.logits for each in group])  # (calls, samples, heads, queries, keys)
            own = logits if one else torch.stack([each.own for each in group])
            masks = [each.allowed for each in group if each.allowed is not None]
            allowed = torch.stack(masks) if masks else None
            columns = zip(*_head_sums(logits, own, allowed), diversity_sums(own, allowed), strict=True)
        for at, (heads, peaks, diversity) in zip(members, columns, strict=True):
            found[at] = AttentionSums(heads, peaks, diversity, samples[at].padding)
    return [sums for sums in found if sums is not None]


@lru_cache(maxsize=64)
def evenly_spaced(count: int, most: int, device: torch.device) -> torch.Tensor:
    """At most `most` of `count` indices, the first and the last among them. Made once: layers share their shapes."""
    with torch.inference_mode(False):
        if most >= count:
            return torch.arange(count, device=device)
        return torch.linspace(0, count - 1, most, device=device).round().long()


class _Causal(NamedTuple):
    allowed: torch.Tensor
    """(1, 1, queries, keys): keys that are not later than the query."""
    later: torch.Tensor
    """The others."""
    attended: torch.Tensor
    """(1, keys): whether any of the queries may attend to the key."""


@lru_cache(maxsize=64)
def _causal(keys: int, queries: int, most: int, device: torch.device) -> _Causal:
    """Of `most` evenly spaced queries."""
    with torch.inference_mode(False):
        rows = evenly_spaced(queries, most, device)
        allowed = (torch.arange(keys, device=device) <= rows[:, None])[None, None]
        return _Causal(allowed, ~allowed, allowed.any(1).any(1))


class LogitSample(NamedTuple):
    """Some rows of one attention, in fp32 and 0 where masked."""

    logits: torch.Tensor
    """(samples, heads, queries, keys)"""
    own: torch.Tensor
    """The same without what a mask adds for all heads alike: the part that the weights of queries and keys make."""
    allowed: torch.Tensor | None
    """Where attention is allowed, broadcasts to logits; `None` for everywhere."""
    padding: Padding | None = None


def _given_logits(inputs: AttentionInputs, picked: torch.Tensor, rows: torch.Tensor) -> LogitSample:
    logits = _some_rows(inputs.rows, picked, rows)
    masked = logits <= MASKED_BELOW  # a NaN is no mask: it has to be seen
    logits = logits.masked_fill(masked, 0.0)
    return LogitSample(logits, logits, ~masked)


def _recomputed_logits(inputs: AttentionInputs, picked: torch.Tensor, rows: torch.Tensor) -> LogitSample:
    assert inputs.key is not None
    samples, heads, queries, features = inputs.rows.shape
    query, key = _some_rows(inputs.rows, picked, rows), inputs.key.index_select(0, picked).float()
    scale = 1.0 / math.sqrt(features) if inputs.scale is None else inputs.scale
    # Heads that share keys are folded into the rows: no copies of keys.
    folded = (query * scale).reshape(len(picked), key.shape[1], -1, features)
    own = (folded @ key.mT).reshape(len(picked), heads, len(rows), -1)
    causal = _causal(own.shape[-1], queries, len(rows), rows.device) if inputs.is_causal else None
    if inputs.mask is None:
        if causal is None:
            return LogitSample(own, own, None)
        padding = Padding(picked, causal.attended.expand(len(picked), -1))
        own = own.masked_fill_(causal.later, 0.0)
        return LogitSample(own, own, causal.allowed, padding)
    mask = _pick(_pick(inputs.mask, -4, picked, samples), -2, rows, queries)
    allowed = mask if mask.dtype is torch.bool else mask > MASKED_BELOW
    logits = own if mask.dtype is torch.bool else own + mask.float().masked_fill(~allowed, 0.0)
    shared = mask.dim() < 3 or mask.shape[-3] == 1
    return _masked(logits, own if shared else logits, allowed if causal is None else allowed & causal.allowed)


def _masked(logits: torch.Tensor, own: torch.Tensor, allowed: torch.Tensor) -> LogitSample:
    zeroed = logits.masked_fill(~allowed, 0.0)
    return LogitSample(zeroed, zeroed if own is logits else own.masked_fill(~allowed, 0.0), allowed)


def _some_rows(tensor: torch.Tensor, picked: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return tensor[picked[:, None], :, rows].transpose(1, 2).float()


def _pick(mask: torch.Tensor, dim: int, indices: torch.Tensor, size: int) -> torch.Tensor:
    """Take indices along a dimension of a mask, counted from its end, unless it is broadcast there."""
    return mask.index_select(dim, indices) if mask.dim() >= -dim and mask.shape[dim] == size else mask


def _head_sums(
    logits: torch.Tensor, own: torch.Tensor, allowed: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`AttentionSums.heads` and `AttentionSums.peaks` of each call; logits are (…, samples, heads, queries, keys)."""
    keys, masked, choices = logits.shape[-1], logits, torch.full((), logits.shape[-1], device=logits.device)
    if allowed is not None:
        masked = logits + torch.where(allowed, 0.0, -math.inf)
        choices = allowed.sum(-1)
    choices = choices.expand(logits.shape[:-1]).float()  # (…, samples, heads, queries)
    weights = masked.softmax(-1)
    # From the logits themselves: the logarithm of a weight that underflows would not be finite. The largest of either
    # gives the log of the sum of exponentials without taking them a second time.
    entropy = masked.amax(-1) - weights.amax(-1).log() - torch.linalg.vecdot(weights, logits)
    near_zero = (weights < (NEAR_ZERO / choices)[..., None]).sum(-1) - (keys - choices)
    variance = torch.linalg.vecdot(own, own) / choices - (own.sum(-1) / choices).square()
    uniform = choices.log()
    values = torch.stack(
        [
            torch.ones_like(entropy),
            (entropy / uniform).clamp(0.0, 1.0),
            entropy.clamp(min=0.0),
            near_zero / choices,
            (variance.clamp(min=0.0) / (2.0 * uniform)).sqrt(),
        ]
    )
    free, finite = choices >= 2, entropy.isfinite()
    sums = torch.where(free & finite, values, 0.0).sum((-3, -1))  # (5, …, heads)
    alone = (choices == 1) & (keys > 1)
    left_out = torch.stack([free & ~finite, alone]).sum((-3, -1))  # (2, …, heads)
    peaks = torch.maximum(own.amax(-1), -own.amin(-1))
    peaks = torch.where(free & peaks.isfinite(), peaks, 0.0).amax((-3, -1))
    return torch.cat([sums, left_out.float()]).movedim(0, -1), peaks
