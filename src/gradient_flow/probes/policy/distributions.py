"""`torch.distributions` objects, sorted into heads.

They are only read. Their lazy attributes, the caches of their transforms and the random state stay as they are, so that
a `log_prob` the user computes afterwards gives the same bits.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch import distributions as d
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli

from gradient_flow.capture.random_state import kept_random_state
from gradient_flow.probes.policy.heads import ContinuousHead, DiscreteHead, Heads, continuous_head, discrete_head, wide

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
        heads.unreadable.append(f"{name} has neither logits nor a mean and a variance: {reason or 'not implemented'}.")


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


_REACH: Final = 6.4
_POINTS: Final = 65
"""A grid of this many points over ± this many standard deviations: the trapezoid rule is near exact on a Gaussian."""
_SAMPLES: Final = 512
"""Drawn where the base is no Gaussian."""
_GAUSSIAN: Final = (d.Normal, d.MultivariateNormal, d.LowRankMultivariateNormal)


def moment_head(distribution: d.Distribution) -> ContinuousHead:
    """The head of a distribution over real numbers; raises `NotImplementedError` where it has no variance."""
    if isinstance(distribution, (d.Cauchy, d.HalfCauchy)):
        raise NotImplementedError("its variance is infinite")
    try:
        head = continuous_head(distribution.mean, distribution.stddev)
    except NotImplementedError:
        if not isinstance(distribution, d.TransformedDistribution):
            raise
        return _transformed_head(distribution)
    return _with_bounds(head, distribution.support)


def _transformed_head(distribution: d.TransformedDistribution) -> ContinuousHead:
    base, transforms = distribution.base_dist, list(_flat(distribution.transforms))
    while isinstance(base, d.Independent):
        base = base.base_dist
    shape = base.batch_shape + base.event_shape
    if shape != distribution.batch_shape + distribution.event_shape:
        raise NotImplementedError("its transforms change the shape of the action")
    head = _with_bounds(continuous_head(base.mean, base.stddev), base.support)

    # Shifts and scales before the first bend keep the standard deviation a plain one: they are part of the policy.
    bend = next((i for i, part in enumerate(transforms) if not isinstance(part, d.AffineTransform)), len(transforms))
    for affine in transforms[:bend]:
        head = _shifted(head, affine, shape)
    if bend == len(transforms):
        return head
    if isinstance(base, _GAUSSIAN):
        points, rest = _grid(head, shape), transforms[bend:]
    else:
        points, rest = _samples(base), transforms
    action_std = _spread(points, rest).reshape(head.std.shape)
    action_mean = _through(transforms[bend:], head.mean.reshape(shape)).reshape(head.mean.shape)
    low, high = _bounds(transforms[bend:], head, shape)
    squashed = any(isinstance(part.codomain, d.constraints.interval) for part in transforms[bend:])
    return ContinuousHead(head.mean, head.std, action_mean, action_std, low, high, squashed)


def _flat(transforms: Iterable[Any]) -> Iterator[d.Transform]:
    for transform in transforms:
        if isinstance(transform, d.ComposeTransform):
            yield from _flat(transform.parts)
        elif isinstance(transform, d.IndependentTransform):
            yield from _flat([transform.base_transform])
        else:
            yield transform


def _through(transforms: Iterable[d.Transform], point: Tensor) -> Tensor:
    for transform in transforms:
        # A copy: calling the user's own would overwrite the value it has cached for `log_prob`.
        point = copy.copy(transform)(point)
    return point


def _grid(head: ContinuousHead, shape: torch.Size) -> Iterator[tuple[float, Tensor]]:
    for step in range(_POINTS):
        z = _REACH * (2 * step / (_POINTS - 1) - 1)
        yield math.exp(-z * z / 2), (head.mean + z * head.std).reshape(shape)


def _samples(base: d.Distribution) -> Iterator[tuple[float, Tensor]]:
    with kept_random_state(base.mean.device, seed=0):
        drawn = base.sample(torch.Size([_SAMPLES]))
    return ((1.0, point) for point in drawn.double())


def _spread(points: Iterable[tuple[float, Tensor]], transforms: list[d.Transform]) -> Tensor:
    """The standard deviation of what the transforms make of weighted points."""
    total, first, second = 0.0, torch.tensor(0.0), torch.tensor(0.0)
    for weight, point in points:
        action = _through(transforms, point).detach()
        total, first, second = total + weight, first + weight * action, second + weight * action.square()
    return (second / total - (first / total).square()).clamp_min(0).sqrt()


def _with_bounds(head: ContinuousHead, support: Any) -> ContinuousHead:
    """Bounds of a support that is the same interval in every state, such as that of a Beta distribution."""
    if isinstance(support, d.constraints.independent):
        support = support.base_constraint
    low, high = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    if not (isinstance(low, (int, float)) and isinstance(high, (int, float))):
        return head
    return replace(head, low=torch.full_like(head.low, low), high=torch.full_like(head.high, high))


def _shifted(head: ContinuousHead, affine: d.Transform, shape: torch.Size) -> ContinuousHead:
    def moved(rows: Tensor) -> Tensor:
        return _through([affine], rows.expand(head.mean.shape).reshape(shape)).detach().reshape(head.mean.shape)

    mean = moved(head.mean)
    std = (moved(head.mean + head.std) - mean).abs()
    ends = torch.stack((moved(head.low)[0], moved(head.high)[0]))
    return ContinuousHead(mean, std, mean, std, ends.amin(0), ends.amax(0))


def _bounds(transforms: list[d.Transform], head: ContinuousHead, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Where the last squashing transform ends, moved by those behind it; NaN where nothing bounds the action."""
    last = max((i for i, t in enumerate(transforms) if isinstance(t.codomain, d.constraints.interval)), default=None)
    if last is None:
        return head.low, head.high
    interval: Any = transforms[last].codomain
    ends = []
    for bound in (interval.lower_bound, interval.upper_bound):
        full = torch.ones(shape, dtype=head.mean.dtype, device=head.mean.device) * bound
        ends.append(_through(transforms[last + 1 :], full).detach().reshape(head.mean.shape)[0])
    return torch.minimum(*ends), torch.maximum(*ends)
