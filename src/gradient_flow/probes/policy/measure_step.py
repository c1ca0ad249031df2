"""Numbers of an action distribution over the states of one batch, in one host sync."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from gradient_flow.errors import InputError
from gradient_flow.probes.policy.extraction import (
    Bounds,
    checked_action_range,
    extracted_heads,
    wrong_extraction,
)
from gradient_flow.probes.policy.heads import ContinuousHead, DiscreteHead, Heads, wide
from gradient_flow.probes.policy.step import PolicyStep

CERTAIN: Final = 0.99
"""An action with a larger probability is as good as the only one; a mean action this far out is at its bound."""

Numbers = dict[str, Tensor]


def policy_step(extracted: Any, action_range: Any = None) -> tuple[PolicyStep | None, str]:
    """The numbers of one batch, or `None`; and what could not be read.

    Args:
        extracted: `(logits, std, mean, value)`, each of which may be `None` or left off at the end, `logits` also a
            list with one tensor per action factor; a mapping with these names (and `log_std`, `mask`); logits alone; or
            `torch.distributions` objects, one or several, and then nothing else that lies beside them is used.
        action_range: `(low, high)` of continuous actions, numbers or one per dimension, or a Gymnasium `Box`. A
            distribution that is bounded by itself (tanh, Beta) brings its own.
    """
    heads, value = extracted_heads(extracted)
    unreadable = " ".join(heads.unreadable)
    numbers: Numbers = {}
    if heads.discrete:
        numbers |= _discrete_numbers(heads.discrete)
    if heads.continuous:
        numbers |= _continuous_numbers(heads.continuous, checked_action_range(action_range))
    if not numbers:
        return None, unreadable or "There are neither logits nor a standard deviation to measure."
    if value is not None:
        values = wide(value).flatten()
        numbers |= {"value_mean": values.mean(), "value_std": values.std(correction=0)}
    device = next(iter(numbers.values())).device
    read = torch.stack([wide(number).to(device) for number in numbers.values()]).tolist()  # the only host sync
    return _as_step(dict(zip(numbers, read, strict=True)), heads), unreadable


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    """The mean over the states that have weight, NaN where none has. Weights, since selecting rows would be a sync."""
    weights = weights.reshape(-1, *[1] * (values.dim() - 1)).to(values.dtype)
    return torch.where(weights > 0, values, 0).sum(0) / weights.sum(0)


def _entropy(probabilities: Tensor) -> Tensor:
    return -torch.xlogy(probabilities, probabilities).sum(-1)


def _log_count(count: Tensor) -> Tensor:
    return wide(count.clamp_min(1)).log()


def _discrete_numbers(heads: Sequence[DiscreteHead]) -> Numbers:
    if len({head.logits.shape[0] for head in heads}) > 1:
        shapes = ", ".join(str(tuple(head.logits.shape)) for head in heads)
        raise InputError(f"The factors of a discrete action must be over the same states, got logits of {shapes}.")
    usable = torch.stack([_usable(head) for head in heads]).all(0)  # (states,)
    probabilities = [_probabilities(head, usable) for head in heads]  # (states, actions) each
    entropies = torch.stack([_entropy(p) for p in probabilities])  # (factors, states)
    room = torch.stack([_log_count(head.valid.sum(-1)) for head in heads])
    joint, joint_room = entropies.sum(0), room.sum(0)
    keep = usable & (joint_room > 0)
    top = torch.stack([p.amax(-1) for p in probabilities]).prod(0)
    marginals = torch.stack([_entropy(_mean(p, keep)) for p in probabilities])
    anywhere = torch.stack([_log_count((head.valid & keep[:, None]).any(0).sum()) for head in heads])
    numbers = {
        "unusable": (~usable).sum(),
        "choices": keep.sum(),
        "entropy": _mean(joint / joint_room.clamp_min(1e-12), keep).clamp(0, 1),
        "entropy_nats": _mean(joint, keep),
        "valid_actions": _mean(joint_room, keep).exp(),
        "effective_actions": _mean(joint, keep).exp(),
        "certain_share": _mean((top > CERTAIN).to(joint.dtype), keep),
        "mutual_information": (marginals.sum() - _mean(joint, keep)).clamp_min(0),
        "marginal_entropy": (marginals.sum() / anywhere.sum()).clamp(0, 1),
    }
    for number, (entropy, own_room) in enumerate(zip(entropies, room, strict=True)):
        normalised = _mean(entropy / own_room.clamp_min(1e-12), usable & (own_room > 0))
        numbers[f"factor {number}"] = normalised.clamp(0, 1)
    return numbers


def _usable(head: DiscreteHead) -> Tensor:
    """States whose logits are numbers and leave at least one action."""
    broken = head.logits.isnan() | (head.logits == torch.inf)
    return head.valid.any(-1) & ~(broken & head.valid).any(-1)


def _probabilities(head: DiscreteHead, usable: Tensor) -> Tensor:
    """Over the valid actions; rows that are not usable are uniform, so that no NaN meets a weight of zero."""
    logits = torch.where(head.valid, head.logits, -torch.inf)
    return torch.where(usable[:, None], logits, 0.0).softmax(-1)


def _continuous_numbers(heads: Sequence[ContinuousHead], bounds: Bounds | None) -> Numbers:
    parts = [_continuous_part(head, bounds) for head in heads]
    # All heads side by side: one entry for each action dimension of the policy.
    std, least, relative, saturation, spread = (
        torch.cat([part[name] for part in parts]) for name in ("std", "least", "relative", "saturation", "spread")
    )
    known = relative.isfinite()
    return {
        "continuous_unusable": torch.stack([part["unusable"] for part in parts]).amax(),
        "std_mean": std.mean(),
        "std_min": std.amin(),
        "std_least": least.amin(),
        "std_relative": relative.nanmean(),
        "std_relative_min": torch.where(known, relative, torch.inf).amin(),
        "mean_saturation": saturation.nanmean(),
        "mean_spread": spread.nanmean(),
    }


def _continuous_part(head: ContinuousHead, bounds: Bounds | None) -> Numbers:
    """Of each action dimension: standard deviation, the same over half its range, saturation and spread of the mean."""
    low, high = head.low, head.high
    if bounds is not None:
        try:
            given = [bound.to(head.std).expand_as(low) for bound in bounds]
            low, high = torch.where(low.isnan(), given[0], low), torch.where(high.isnan(), given[1], high)
        except RuntimeError as reason:
            sizes = f"{bounds[0].numel()} dimensions for actions of {head.low.numel()}"
            raise InputError(f"`action_range` must be one pair or one per action dimension, got {sizes}.") from reason
    half = torch.where((high - low).isfinite(), (high - low) / 2, torch.nan)  # (dimensions,)
    usable = (head.std.isfinite() & head.mean.isfinite()).all(-1)  # (states,)
    at_bound = ((head.action_mean - (low + high) / 2) / half).abs() > CERTAIN
    spread = _mean((head.mean - _mean(head.mean, usable)).square(), usable).sqrt()
    return {
        "unusable": (~usable).sum(),
        "std": _mean(head.std, usable),
        "least": torch.where(head.std.isfinite(), head.std, torch.inf).amin(0),
        "relative": _mean(head.action_std / half, usable),
        "saturation": _mean(at_bound.to(half.dtype), usable) + (half * 0 if head.mean_known else torch.nan),
        "spread": spread if head.mean_known else torch.full_like(spread, torch.nan),
    }


def _as_step(read: Mapping[str, float], heads: Heads) -> PolicyStep:
    if read.get("std_least", 0.0) < 0:
        raise wrong_extraction(f"a `std` of {read['std_least']:.3g}; for a logarithm return std=log_std.exp()")
    floats = {
        name: value if math.isfinite(value) else None
        for name, value in read.items()
        if name in PolicyStep.__dataclass_fields__ or name.startswith("factor ")
    }
    factors = tuple(floats.pop(name) for name in list(floats) if name.startswith("factor "))
    rows = [head.logits.shape[0] for head in heads.discrete] + [head.std.shape[0] for head in heads.continuous]
    counts: dict[str, Any] = {
        "states": max(rows),
        "choices": int(read.get("choices", 0)),
        "nonfinite_states": int(max(read.get("unusable", 0), read.get("continuous_unusable", 0))),
        "squashed": any(head.squashed for head in heads.continuous),
        "factor_entropies": factors,
    }
    if counts["choices"] < 2:  # a single state does not tell what depends on the state
        floats |= {"mutual_information": None, "marginal_entropy": None}
    return PolicyStep(**{**floats, **counts})
