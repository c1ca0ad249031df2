"""Cutting a batch along its first axis: a tensor, or tensors in lists, tuples, mappings and dataclasses."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gradient_flow.errors import InputError


def samples_in(batch: Any) -> int:
    """How many samples a batch has: the length of the first axis that most of its tensors share."""
    if isinstance(batch, torch.nn.utils.rnn.PackedSequence):
        raise InputError(
            "`batch` must have a sample per entry of the first axis; a PackedSequence has not. Pass padded tensors, "
            "and pack them in `step_fn`."
        )
    lengths = [len(leaf) for leaf in _leaves(batch) if leaf.ndim]
    if not lengths:
        raise InputError(
            f"`batch` must hold tensors with a sample per entry of the first axis; got {type(batch).__name__} "
            "without any. Pass the tensors themselves, alone or in a list, tuple or mapping."
        )
    return Counter(lengths).most_common(1)[0][0]


def take(batch: Any, samples: int, which: Sequence[int]) -> Any:
    """A copy of the batch with these of its samples. What has another length is not of samples, and is copied whole."""
    if isinstance(batch, torch.Tensor):
        own = batch.detach()
        if not batch.ndim or len(batch) != samples:
            return own.clone().requires_grad_(batch.requires_grad)
        picked = own.index_select(0, torch.tensor(list(which), dtype=torch.long, device=batch.device))
        return picked.requires_grad_(batch.requires_grad)
    if isinstance(batch, np.ndarray):
        return batch[list(which)].copy() if batch.ndim and len(batch) == samples else batch.copy()
    if isinstance(batch, Mapping):
        cut = {name: take(value, samples, which) for name, value in batch.items()}
        return cut if type(batch) is dict else _like(batch, cut)
    if isinstance(batch, (list, tuple)):
        if len(batch) == samples and batch and not any(True for _ in _leaves(batch)):
            parts = [batch[at] for at in which]  # texts, numbers: one for each sample
        else:
            parts = [take(value, samples, which) for value in batch]
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*parts)
        return tuple(parts) if isinstance(batch, tuple) else parts
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {f.name: take(getattr(batch, f.name), samples, which) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **fields)
    return batch


def _like(batch: Mapping[Any, Any], cut: dict[Any, Any]) -> Any:
    """As the mapping it was, such as a `BatchEncoding`; a dict where its class wants something else."""
    try:
        return type(batch)(cut)  # type: ignore[call-arg]
    except TypeError:
        return cut


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _leaves(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _leaves(value)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from _leaves(getattr(batch, field.name))
