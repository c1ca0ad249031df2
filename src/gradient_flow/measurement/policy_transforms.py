"""Means and standard deviations of continuous actions, also of those that a transform such as tanh has squashed."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch import distributions as d

from gradient_flow.measurement.policy_heads import ContinuousHead, continuous_head
from gradient_flow.measurement.random_state import kept_random_state

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
