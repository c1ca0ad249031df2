"""A slow, plainly correct reference for `gf.measure`, written from its contract alone."""

import math

import numpy as np

FRACTIONS = ("zero_fraction", "near_zero_percent", "very_large_percent")
SUMMED = ("norm", "l1", "mean_abs")
EXACT = ("count", "nan_count", "inf_count", "finite", "min", "max")

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
        "linf": max(magnitudes, default=0.0),
        "mean_abs": l1 / count if count else 0.0,
        "mean": mean,
        "variance": variance,
        "std": math.sqrt(variance),
        "min": min(numbers, default=math.nan),
        "max": max(numbers, default=math.nan),
        "mean_square": math.fsum((values**2).tolist()) / many if many else 0.0,
        "zero_fraction": share(sizes == 0, 1),
        "near_zero_percent": share(sizes < near_zero, 100),
        "very_large_percent": share(sizes > very_large, 100),
    }


def assert_matches(stats, want, of=""):
    """`stats` has the numbers in `want`, and so has its finite part."""
    _assert_row(stats, want, of)
    _assert_row(stats.finite_part, want["finite_part"], f"{of}, finite part")


def assert_agree(stats, other, want, of=""):
    """Two rows of the gradient with the statistics `want` differ no more than each may differ from them."""
    whole, finite_part = (_as_expected(part, want["complex"]) for part in (other, other.finite_part))
    assert_matches(stats, {**whole, "finite_part": finite_part}, of)


def _as_expected(stats, is_complex):
    names = (*EXACT, *FRACTIONS, *SUMMED, "linf", "mean", "variance", "std")
    want = {name: getattr(stats, name) for name in names}
    return {**want, "complex": is_complex, "mean_square": stats.variance + stats.mean**2}


def _assert_row(stats, want, of):
    # sqrt(n * lost) is the largest norm that can vanish with the squares.
    lost = {"norm": math.sqrt(want["count"] * LOST_SQUARE)}
    slack = {
        **dict.fromkeys(EXACT, 0.0),
        **{name: 1e-9 * want[name] + lost.get(name, SMALLEST) for name in SUMMED},
        # One division apart: wide enough for its rounding, far below one element in a million.
        **{name: 1e-12 * want[name] for name in FRACTIONS},
        "linf": 1e-12 * want["linf"] if want["complex"] else 0.0,
        # Cancellation is bounded by what is summed up, not by what is left.
        "mean": 1e-12 * want["mean_abs"] + 4 * SMALLEST,
        "variance": 1e-12 * want["mean_square"] + LOST_SQUARE,
    }
    wrong = {
        name: (getattr(stats, name), want[name])
        for name, allowed in slack.items()
        if not _close(getattr(stats, name), want[name], allowed)
    }
    # The root of a cancelled variance has no accuracy of its own: it must fit the variance beside it.
    root = math.sqrt(stats.variance)
    if not _close(stats.std, root, 1e-15 * root):
        wrong["std"] = stats.std, root
    assert not wrong, f"{of}: (got, expected) of {wrong}"


def _close(got, want, allowed):
    if math.isnan(want):
        return math.isnan(got)
    return got == want or abs(got - want) <= allowed < math.inf
