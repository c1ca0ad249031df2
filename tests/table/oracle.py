"""A slow, plainly correct reference for `gf.measure`, written from its contract alone."""

import math

import numpy as np

FRACTIONS = ("zero_fraction", "near_zero_percent", "very_large_percent")
SUMMED = ("norm", "l1", "mean_abs")
EXACT = ("count", "nan_count", "inf_count", "finite", "min", "max")
STATISTICS = (*EXACT, *FRACTIONS, *SUMMED, "linf", "mean", "variance", "std")

# The table holds sums of squares in fp64, so a square below the smallest normal number may be lost.
LOST_SQUARE = float(np.finfo(np.float64).tiny)
SMALLEST = float(np.finfo(np.float64).smallest_subnormal)


def expected(*arrays, near_zero=1e-7, very_large=1e3):
    """Every statistic of all elements of all arrays, and those of the finite elements under `finite_part`."""
    rows = [_parts(array) for array in arrays]
    nans = [np.isnan(parts).any(axis=1) for parts in rows]
    infs = [np.isinf(parts).any(axis=1) & ~nan for parts, nan in zip(rows, nans, strict=True)]
    kept = [parts[~(nan | inf)] for parts, nan, inf in zip(rows, nans, infs, strict=True)]
    finite = _of_finite(kept, near_zero, very_large)
    finite["complex"] = any(parts.shape[1] == 2 for parts in rows)

    count = sum(len(parts) for parts in rows)
    nan_count, inf_count = sum(int(nan.sum()) for nan in nans), sum(int(inf.sum()) for inf in infs)
    whole = {**finite, "count": count, "nan_count": nan_count, "inf_count": inf_count}
    whole["finite"] = nan_count == inf_count == 0
    for name in FRACTIONS:
        whole[name] = finite[name] * finite["count"] / count if count else 0.0
    if nan_count:
        whole.update(dict.fromkeys((*SUMMED, "linf", "mean", "variance", "std", "min", "max"), math.nan))
    elif inf_count:
        above = any((parts == math.inf).any() for parts in rows)
        below = any((parts == -math.inf).any() for parts in rows)
        whole.update(dict.fromkeys((*SUMMED, "linf"), math.inf), variance=math.nan, std=math.nan)
        whole["max"] = math.inf if above else math.nan
        whole["min"] = -math.inf if below else math.nan
        whole["mean"] = math.nan if above and below else math.inf if above else -math.inf
    return {**whole, "finite_part": finite}


def _parts(array):
    """Real and, for complex numbers, imaginary part of each element in fp64."""
    flat = np.asarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.astype(np.complex128)
        return np.stack([flat.real, flat.imag], axis=1)  # (elements, 2)
    return flat.astype(np.float64)[:, None]  # (elements, 1)


def _magnitudes(parts):
    return np.hypot(parts[:, 0], parts[:, 1]) if parts.shape[1] == 2 else np.abs(parts[:, 0])


def _of_finite(rows, near_zero, very_large):
    values = np.concatenate([np.zeros(0), *(parts.ravel() for parts in rows)])
    sizes = np.concatenate([np.zeros(0), *(_magnitudes(parts) for parts in rows)])
    count, many = len(sizes), len(values)
    numbers, magnitudes = values.tolist(), sizes.tolist()
    mean = math.fsum(numbers) / many if many else math.nan
    variance = math.fsum(((values - mean) ** 2).tolist()) / many if many else math.nan
    l1 = math.fsum(magnitudes)

    def share(matching, of):
        return of * int(matching.sum()) / count if count else 0.0

    return {
        "count": count,
        "nan_count": 0,
        "inf_count": 0,
        "finite": True,
        "norm": math.hypot(*magnitudes),  # scales inside, so it neither overflows nor underflows
        "l1": l1,
        "linf": float(sizes.max()) if count else 0.0,
        "mean_abs": l1 / count if count else 0.0,
        "mean": mean,
        "variance": variance,
        "std": math.sqrt(variance),
        "min": float(values.min()) if many else math.nan,
        "max": float(values.max()) if many else math.nan,
        "mean_square": float(np.mean(values**2)) if many else 0.0,  # a scale for tolerances
        "zero_fraction": share(sizes == 0, 1),
        "near_zero_percent": share(sizes < near_zero, 100),
        "very_large_percent": share(sizes > very_large, 100),
    }


def read(stats):
    """The statistics of a row as a dict in the form of `expected`."""
    return {**_read(stats), "finite_part": _read(stats.finite_part)}


def _read(stats):
    return {name: getattr(stats, name) for name in STATISTICS}


def assert_matches(got, want, of="", lanes=0.0):
    """A row, or what `read` made of it, has the numbers in `want`, and so has its finite part.

    `lanes`: the relative error of a sum of magnitudes that is taken in lanes of fp32.
    """
    got = got if isinstance(got, dict) else read(got)
    _assert_row(got, want, of, lanes)
    _assert_row(got["finite_part"], want["finite_part"], f"{of}, finite part", lanes)


def assert_agree(got, other, want, of=""):
    """Two readings of the gradient with the statistics `want` differ no more than each may differ from those."""
    scale = {name: want["finite_part"][name] for name in ("complex", "mean_square")}
    finite_part = {**other["finite_part"], **scale}
    assert_matches(got, {**other, **scale, "finite_part": finite_part}, of)


def _assert_row(got, want, of, lanes=0.0):
    wrong = {}
    for name in STATISTICS:
        if not _close(got[name], want[name], _allowed(name, want) + _allowed_by_lanes(name, want, lanes)):
            wrong[name] = got[name], want[name]
    # The root of a cancelled variance has no accuracy of its own: it must fit the variance beside it.
    root = math.sqrt(got["variance"])
    if not _close(got["std"], root, 1e-15 * root):
        wrong["std"] = got["std"], root
    assert not wrong, f"{of}: (got, expected) of {wrong}"


def _allowed(name, want):
    """How far a statistic may be off."""
    if name == "norm":
        # The largest norm that can vanish with its squares.
        return 1e-9 * want[name] + math.sqrt(want["count"] * LOST_SQUARE)
    if name in SUMMED:
        return 1e-9 * want[name] + SMALLEST
    if name in FRACTIONS:
        # The rounding of one division, far below one element in a million.
        return 1e-12 * want[name]
    if name == "mean":
        # Cancellation is bounded by what is summed up, not by what is left.
        return 1e-12 * want["mean_abs"] + 4 * SMALLEST
    if name == "variance":
        return 1e-12 * want["mean_square"] + LOST_SQUARE
    if name == "std":
        # Half the digits when all else cancels.
        return 1e-6 * math.sqrt(want["mean_square"]) + math.sqrt(LOST_SQUARE)
    if name == "linf" and want["complex"]:
        return 1e-12 * want[name]
    return 0.0


def _allowed_by_lanes(name, want, lanes):
    """How much further it may be off where some elements at a time are summed in fp32."""
    if not lanes or math.isnan(want[name]) or math.isinf(want[name]):
        return 0.0
    if name in SUMMED:
        return lanes * want[name]
    if name == "mean":
        return lanes * want["mean_abs"]
    if name == "variance":
        return 4 * lanes * want["mean_square"]
    return math.sqrt(4 * lanes * want["mean_square"]) if name == "std" else 0.0


def _close(got, want, allowed):
    if math.isnan(want):
        return math.isnan(got)
    return got == want or abs(got - want) <= allowed < math.inf
