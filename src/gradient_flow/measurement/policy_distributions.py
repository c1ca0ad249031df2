"""`torch.distributions` objects, sorted into heads.

They are only read. Their lazy attributes, the caches of their transforms and the random state stay as they are, so that
a `log_prob` the user computes afterwards gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributions as d
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli

from gradient_flow.measurement.policy_heads import DiscreteHead, Heads, discrete_head, wide
from gradient_flow.measurement.policy_transforms import moment_head

_BINARY = (d.Bernoulli, d.RelaxedBernoulli, LogitRelaxedBernoulli)


def distributions_in(candidate: Any) -> Iterator[d.Distribution]:
    """The distributions of an output, in its order: itself, items of lists, tuples and mappings, `.distribution`s."""
    if isinstance(candidate, d.Distribution):
        yield candidate
    elif isinstance(candidate, Mapping):
        yield from distributions_in(list(candidate.values()))
    elif isinstance(candidate, (list, tuple)):
        yield from (found for item in candidate for found in distributions_in(item))
    elif isinstance(getattr(candidate, "distribution", None), (d.Distribution, list, tuple)):
        yield from distributions_in(candidate.distribution)  # as Stable-Baselines3 wraps them


def heads_of(distributions: Iterable[d.Distribution]) -> Heads:
    """The heads of one or several distributions that together make one action."""
    heads = Heads()
    for distribution in distributions:
        _read(distribution, 0, heads)
    return heads


def _read(distribution: d.Distribution, factor_dims: int, heads: Heads) -> None:
    """Sort one distribution into its head; `factor_dims` trailing batch dimensions are factors of one action."""
    if isinstance(distribution, d.Independent):
        _read(distribution.base_dist, factor_dims + distribution.reinterpreted_batch_ndims, heads)
        return
    name = type(distribution).__name__
    logits = _logits(distribution)
    if logits is not None:
        if isinstance(distribution, _BINARY) and logits.dim() > 2:
            factor_dims = max(
                factor_dims, 1
            )  # (states, actions that are each on or off), as means are (states, actions)
        heads.discrete += _factors(logits, _mask(distribution, logits), factor_dims)
        return
    try:
        if getattr(distribution.support, "is_discrete", False):
            heads.unreadable.append(f"{name} has no finite set of actions to take an entropy over.")
        else:
            heads.continuous.append(moment_head(distribution))
    except (NotImplementedError, AttributeError) as reason:
        heads.unreadable.append(
            f"{name} tells neither logits nor a mean and a variance: {reason or 'not implemented'}."
        )


def _logits(distribution: d.Distribution) -> Tensor | None:
    """Logits over the actions (*batch, actions), or `None` where there is no finite set of them."""
    if isinstance(distribution, (d.RelaxedBernoulli, d.RelaxedOneHotCategorical)):
        distribution = distribution.base_dist
    # From what was given at construction: reading the other one would leave a cached value on the user's object.
    holder = getattr(distribution, "_categorical", distribution)
    given = vars(holder)
    if isinstance(holder, d.Categorical):
        return given["logits"] if "logits" in given else wide(given["probs"]).log()
    if isinstance(distribution, _BINARY):
        if "logits" in given:
            return torch.stack((torch.zeros_like(given["logits"]), given["logits"]), -1)
        return torch.stack((1 - wide(given["probs"]), wide(given["probs"])), -1).log()
    if distribution.has_enumerate_support:
        return wide(distribution.log_prob(distribution.enumerate_support(expand=False))).movedim(0, -1)
    return None


def _mask(distribution: d.Distribution, logits: Tensor) -> Tensor | None:
    """The mask that maskable policies keep beside their logits: Stable-Baselines3 and TorchRL do."""
    mask = getattr(distribution, "masks", getattr(distribution, "mask", None))
    usable = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape[-1:] == logits.shape[-1:]
    return mask if usable else None


def _factors(logits: Tensor, mask: Tensor | None, factor_dims: int) -> list[DiscreteHead]:
    if not factor_dims:
        return [discrete_head(logits, mask)]
    parts = logits.flatten(-1 - factor_dims, -2).unbind(-2)
    masks: Sequence[Tensor | None] = [None] * len(parts)
    if mask is not None:
        masks = mask.expand(logits.shape).flatten(-1 - factor_dims, -2).unbind(-2)
    return [discrete_head(*pair) for pair in zip(parts, masks, strict=True)]
