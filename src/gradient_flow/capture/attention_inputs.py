"""What goes into an attention's softmax, brought into one layout: samples, heads, queries, keys or features."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Queries and keys, or the logits themselves. The tensors belong to the model: reduce them, keep none.

    As a model hands them over they may lack dimensions for samples and heads; `with_heads` adds those.
    """

    query: torch.Tensor | None = None
    """(samples, heads, queries, features)"""
    key: torch.Tensor | None = None
    """(samples, heads or fewer, keys, features)"""
    mask: torch.Tensor | None = None
    """Broadcasts to (samples, heads, queries, keys): true where attention is allowed, or numbers to add."""
    is_causal: bool = False
    scale: float | None = None
    """Factor of the products of queries and keys; `None` means 1 / sqrt(features)."""
    logits: torch.Tensor | None = None
    """(samples, heads, queries, keys), scaled, and very negative where masked."""

    @property
    def rows(self) -> torch.Tensor:
        """The tensor that has one row per query."""
        rows = self.query if self.logits is None else self.logits
        assert rows is not None
        return rows


def with_heads(inputs: AttentionInputs, heads: int | None) -> AttentionInputs:
    """The same inputs with exactly four dimensions, given the number of heads where it is known."""
    lead = tuple(inputs.rows.shape[:-2])
    samples, heads = _samples_and_heads(lead, heads)
    query, key, mask, logits = inputs.query, inputs.key, inputs.mask, inputs.logits
    if query is not None and key is not None:
        # Keys may have fewer heads than queries; then each serves a group of them.
        groups = query.shape[-3] // key.shape[-3] if key.dim() > 3 else 1
        query = query.reshape(samples, heads, *query.shape[-2:])
        key = key.reshape(samples, heads // groups, *key.shape[-2:])
    if logits is not None:
        logits = logits.reshape(samples, heads, *logits.shape[-2:])
    if mask is not None and mask.dim() > 2 and len(lead) != 2:
        mask = mask.expand(*lead, *mask.shape[-2:]).reshape(samples, heads, *mask.shape[-2:])
    return replace(inputs, query=query, key=key, mask=mask, logits=logits)


def _samples_and_heads(lead: tuple[int, ...], heads: int | None) -> tuple[int, int]:
    """How many of each the leading dimensions hold. Without a known number the last of several counts heads."""
    everything = math.prod(lead)
    if heads is not None and len(lead) != 2:
        trailing = [math.prod(lead[i:]) for i in range(len(lead))]
        if heads in trailing or (len(lead) == 1 and everything % heads == 0):
            return everything // heads, heads
    heads = lead[-1] if len(lead) > 1 else 1
    return everything // heads, heads


def why_unreadable(tensor: torch.Tensor) -> str | None:
    """Why a tensor's numbers cannot be looked at here, or `None` when they can."""
    if tensor.is_nested:
        return "a nested tensor"
    if type(tensor) not in (torch.Tensor, nn.Parameter):
        return f"a {type(tensor).__name__}"
    if tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "a tensor without numbers of its own (meta device or torch.func)"
    return None


def token_dimension(tokens: torch.Tensor, samples: int, queries: int, attention: nn.Module) -> int | None:
    """Which dimension of (…, …, features) counts the tokens that `attention` has `queries` of; `None` if neither."""
    shape = tuple(tokens.shape[:2])
    batch_first = getattr(attention, "batch_first", True) is not False
    if shape == (samples, queries) and (batch_first or samples != queries):
        return 1
    return 0 if shape == (queries, samples) else None
