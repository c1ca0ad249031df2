"""Slow, plainly correct clippers in fp64, written from the papers' formulas alone.

Gradients and weights are mappings from a parameter's name to a NumPy array of fp64 or complex128.
"""

import math
from fnmatch import fnmatchcase

import numpy as np
import torch


def exact(tensor):
    """Every element of a tensor of any layout and dtype, without rounding."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).to_dense()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).resolve_conj().numpy().copy()


def norm(*arrays):
    """The Euclidean norm over all elements of all arrays; neither overflows nor underflows on the way."""
    parts = np.concatenate([np.zeros(1), *(_parts(array) for array in arrays)])
    largest = np.abs(parts).max()
    if largest == 0 or not np.isfinite(largest):
        return float(largest)
    return float(largest * math.sqrt(math.fsum((parts / largest) ** 2)))


def clip_by_norm(gradients, limit):
    """Pascanu et al. 2013: g * limit / ||g|| over all gradients where ||g|| > limit."""
    total = norm(*gradients.values())
    if not math.isfinite(total) or not total > limit:
        return gradients
    return {name: _to_length(gradient, total, limit) for name, gradient in gradients.items()}


def clip_by_value(gradients, limit):
    """Every element, or each part of a complex one, into [-limit, limit]."""
    if not math.isfinite(norm(*gradients.values())):
        return gradients
    return {name: _clamp(gradient, limit) for name, gradient in gradients.items()}


def clip_by_group(gradients, group_limits, rest_limit):
    """`clip_by_norm` for the parameters of each name pattern (the first that fits), and for all others together."""
    if not math.isfinite(norm(*gradients.values())):
        return gradients
    members = {}
    for name in gradients:
        pattern = next((pattern for pattern in group_limits if fnmatchcase(name, pattern)), None)
        members.setdefault(pattern, []).append(name)
    clipped = {}
    for pattern, names in members.items():
        limit = rest_limit if pattern is None else group_limits[pattern]
        clipped.update(clip_by_norm({name: gradients[name] for name in names}, limit))
    return {name: clipped[name] for name in gradients}


def clip_adaptively_by_unit(gradients, weights, clip_factor=0.01, eps=1e-3, exclude=()):
    """Brock et al. 2021 (AGC), eq. 3: each unit i to clip_factor * max(||W_i||, eps) where it is longer."""
    if not math.isfinite(norm(*gradients.values())):
        return gradients
    clipped = dict(gradients)
    for name, gradient in gradients.items():
        if not any(fnmatchcase(name, pattern) for pattern in exclude):
            units, weight_units = _units(gradient), _units(weights[name])
            limits = [clip_factor * max(norm(weight), eps) for weight in weight_units]
            rows = [clip_by_norm({0: unit}, limit)[0] for unit, limit in zip(units, limits, strict=True)]
            clipped[name] = np.array(rows, dtype=gradient.dtype).reshape(gradient.shape)
    return clipped


class Percentile:
    """Seetharaman et al. 2020 (AutoClip), with a window, and each norm judged against those before it."""

    def __init__(self, window=100, percentile=95.0, min_history=10):
        self.window, self.percentile, self.min_history = window, percentile, min_history
        self.norms = []

    def limit(self, total):
        """The limit for a step of this norm, which is remembered; None while nothing limits it."""
        if not math.isfinite(total):
            return None
        past = self.norms[-self.window :]
        self.norms.append(total)
        if len(past) < min(self.min_history, self.window):
            return None
        limit = _percentile(past, self.percentile)
        return limit if limit > 0 else None


class ZClip:
    """Kumar et al. 2025 (ZClip), z-score with reciprocal scaling; sigma is at least a hundredth of mu."""

    def __init__(self, alpha=0.97, threshold=2.5, warmup=25, cap=math.inf):
        self.alpha, self.threshold, self.warmup, self.cap = alpha, threshold, warmup, cap
        self.collected = []
        self.mean = self.variance = None

    def limit(self, total):
        """The limit for a step of this norm, with which the averages go on; None while nothing limits it."""
        if not math.isfinite(total):
            return None
        limit = self.cap
        if self.mean is None:
            self.collected.append(total)
            if len(self.collected) == self.warmup:
                self.mean = math.fsum(self.collected) / self.warmup
                self.variance = math.fsum((x - self.mean) ** 2 for x in self.collected) / self.warmup
        else:
            sigma = max(math.sqrt(self.variance), 0.01 * self.mean)
            if sigma > 0 and (z := (total - self.mean) / sigma) > self.threshold:
                limit = min(self.cap, self.mean + self.threshold**2 * sigma / z)
            applied = min(total, limit)
            self.mean = self.alpha * self.mean + (1 - self.alpha) * applied
            self.variance = self.alpha * self.variance + (1 - self.alpha) * (applied - self.mean) ** 2
        return limit if math.isfinite(limit) else None


def _parts(array):
    array = np.asarray(array).ravel()
    return np.concatenate([array.real, array.imag]) if np.iscomplexobj(array) else array


def _to_length(array, total, limit):
    # In two steps, each of a factor between 2^-511 and 2^512: limit / total may be below the smallest fp64 number.
    _, exponent = math.frexp(total)
    half = exponent // 2
    scaled = array * 2.0**-half * 2.0 ** (half - exponent)
    return scaled * (limit / math.ldexp(math.ldexp(total, -half), half - exponent))


def _clamp(array, limit):
    if np.iscomplexobj(array):
        return np.clip(array.real, -limit, limit) + 1j * np.clip(array.imag, -limit, limit)
    return np.clip(array, -limit, limit)


def _units(array):
    return array if array.ndim >= 2 else array[None]


def _percentile(values, percentile):
    """Linear between the two nearest ranks."""
    ordered = sorted(values)
    rank = percentile / 100 * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
