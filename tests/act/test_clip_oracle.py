"""`GradientClipper` against plain fp64 references (clip_references.py), torch, and every way known clippers break."""

import copy
import json
import math
import random

import clip_references as reference
import numpy as np
import pytest
import torch
from clip_references import exact, norm
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from gradient_flow import GradientClipper, GradientConfig, GradientManager

INF, NAN = math.inf, math.nan
GLOBAL = ("norm", "adaptive", "zclip", "per_group")  # one limit for the norm of all gradients
KINDS = (*GLOBAL, "value", "agc")

# Half a unit in the last place (ulp) is the rounding of the result.
# fp16, bf16: a factor good to some roundings of fp32 (2^-24) adds less than 2^-6 ulp, of relative size >= 2^-11.
# fp32: norm, factor and product are rounded once each. fp64: so, and a sum of squares with up to some 2^4 roundings.
ULPS = {torch.float16: 0.5 + 2**-6, torch.bfloat16: 0.5 + 2**-6, torch.float32: 4.0, torch.float64: 16.0}
FP64_NORM_TOLERANCE = 16 * 2**-53  # some roundings
FP32_NORM_TOLERANCE = 8 * 2**-24  # of all other dtypes
# A step's limit follows from averages of some 1 / (1 - alpha) <= 100 roundings, and from a z over sigma >= mu / 100.
SEQUENCE_TOLERANCE = 100 * 100 * 8 * 2**-53

examples = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


# Models, gradients and what must hold of them


def module_of(gradients, weights=None):
    """A module with a parameter for each dotted name, with this gradient (None: none)."""
    model = nn.Module()
    for name, gradient in gradients.items():
        *path, leaf = name.split(".")
        owner = model
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner._modules[part]
        weight = None if weights is None else weights[name]
        if weight is None:
            weight = torch.ones(2) if gradient is None else torch.ones(gradient.shape, dtype=gradient.dtype)
        owner.register_parameter(leaf, nn.Parameter(weight.detach().clone()))
        owner._parameters[leaf].grad = gradient
    return model


def gradients_of(model):
    return {name: exact(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def weights_of(model):
    return {name: exact(p) for name, p in model.named_parameters() if p.grad is not None}


def bits(tensor):
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        return bits(tensor._indices()), bits(tensor._values())
    return tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class Kept:
    """What gradients and weights are now, to be compared with what they will be."""

    def __init__(self, model):
        self.model = model
        self.before = {name: self._state(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        self.gradients = {name: p.grad for name, p in model.named_parameters()}
        self.weights = {name: self._state(p) for name, p in model.named_parameters()}

    @staticmethod
    def _state(tensor):
        return tensor._version, tensor.stride() if tensor.layout == torch.strided else None, bits(tensor)

    def untouched(self, *names):
        """The same tensors, with the same bits, not even written with the value they had (all gradients, or these)."""
        for name, parameter in self.model.named_parameters():
            if not names or name in names:
                assert parameter.grad is self.gradients[name], name
                if parameter.grad is not None:
                    assert self._state(parameter.grad) == self.before[name], name

    def weights_untouched(self):
        for name, parameter in self.model.named_parameters():
            assert self._state(parameter) == self.weights[name], name


def ulp(values, dtype):
    """The distance of neighbouring numbers of a dtype, at each of these magnitudes."""
    info = torch.finfo(dtype)
    magnitude = np.maximum(np.abs(values), info.tiny)
    return np.exp2(np.floor(np.log2(magnitude))) * info.eps


def allowed_error(tensor, expected):
    dtype = tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype
    size = ULPS[dtype] * ulp(expected.real, dtype)
    return size + 1j * ULPS[dtype] * ulp(expected.imag, dtype) if tensor.is_complex() else size


def assert_gradients(model, expected):
    """All gradients are the expected, to the rounding of their dtype."""
    present = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert present.keys() == expected.keys()
    for name, tensor in present.items():
        difference, allowed = exact(tensor) - expected[name], allowed_error(tensor, expected[name])
        assert difference.shape == expected[name].shape
        assert (np.abs(difference.real) <= allowed.real).all(), (name, exact(tensor), expected[name])
        assert (np.abs(difference.imag) <= allowed.imag).all(), (name, exact(tensor), expected[name])


def norm_tolerance(model):
    dtypes = {p.grad.dtype for p in model.parameters() if p.grad is not None}
    if dtypes <= {torch.float64, torch.complex128}:
        return FP64_NORM_TOLERANCE
    return FP32_NORM_TOLERANCE


def assert_info(info, kind, model, before, limit=None):
    """The report of one call agrees with the gradients before and after it."""
    after, tolerance = gradients_of(model), norm_tolerance(model)
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert info["clip_type"] == kind
    assert info["clipped"] is bool(changed)
    assert type(info["total_norm"]) is float
    assert type(info["clipped_norm"]) is float
    assert type(info["clip_ratio"]) is float
    assert info["total_norm"] == pytest.approx(norm(*before.values()), rel=tolerance, abs=0)
    nonzero = [name for name in info["clipped_parameters"] if np.any(before[name])]
    assert sorted(nonzero) == sorted(changed)
    assert len(set(info["clipped_parameters"])) == len(info["clipped_parameters"])
    if not changed:
        assert info["clip_ratio"] == 1.0
        assert info["clipped_norm"] == info["total_norm"]
        assert list(info["clipped_parameters"]) == []
        return
    # By the triangle inequality no further from the true one than the gradients may be from what they should be.
    budget = norm(*(allowed_error(p.grad, exact(p.grad)) for p in model.parameters() if p.grad is not None))
    clipped = norm(*after.values())
    assert info["clipped_norm"] == pytest.approx(clipped, rel=tolerance, abs=budget)
    ratio = clipped / norm(*before.values())
    assert info["clip_ratio"] == pytest.approx(ratio, rel=2 * tolerance, abs=budget / norm(*before.values()))
    if limit is not None:
        assert info["threshold"] == pytest.approx(limit, rel=tolerance, abs=0)


def clipper_with_limit(kind, limit, **more):
    """A clipper of any kind of GLOBAL or `value` whose next call has this limit."""
    more = {"adaptive_window_size": 1, **more} if kind == "adaptive" else {"max_grad_norm": limit, **more}
    clipper = GradientClipper(GradientConfig(clip_type=kind, **more))
    if kind == "adaptive":
        clipper.clip_gradients(module_of({"w": torch.tensor([limit], dtype=torch.float64)}))
    return clipper


def clip(gradients, kind="norm", limit=1.0, weights=None, **more):
    """The module with these gradients clipped, and what was reported."""
    model = module_of(gradients, weights)
    return model, clipper_with_limit(kind, limit, **more).clip_gradients(model)


def randn(*shape, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator, dtype=torch.promote_types(dtype, torch.float32)) * scale).to(dtype)


def sparse(indices, values, shape):
    return torch.sparse_coo_tensor(torch.tensor([indices]), values, shape, check_invariants=True)


def network(seed, dtype=torch.float32):
    """A small network after one backward pass."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(8 * 36, 10)).to(dtype)
    data = torch.randn(4, 3, 8, 8, dtype=dtype)
    model(data * (seed + 1)).square().sum().backward()
    return model


# The references themselves, against torch and against the formulas as timm and ZClip write them


def test_reference_norm_is_the_plain_norm_and_does_not_overflow_or_underflow():
    values = np.random.default_rng(0).normal(size=(50, 3))
    assert norm(values[:20], values[20:]) == pytest.approx(np.linalg.norm(values.ravel()), rel=1e-15)
    assert norm(np.array([3e200, 4e200])) == pytest.approx(5e200, rel=1e-15)
    assert norm(np.array([3e-200, 4e-200])) == pytest.approx(5e-200, rel=1e-15)
    assert norm(np.array([3 + 4j])) == 5
    assert norm() == norm(np.zeros((0, 3))) == 0
    assert math.isnan(norm(np.array([NAN, INF])))
    assert norm(np.array([1, -INF])) == INF


@pytest.mark.parametrize("limit", [0.5, 3.0, 1e9])
def test_reference_norm_and_value_clip_are_those_of_torch(limit):
    model = network(3, torch.float64)
    before = gradients_of(model)
    other = copy.deepcopy(model)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        q.grad = p.grad.clone()
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    for name, expected in reference.clip_by_norm(before, limit).items():  # torch adds 1e-6 to a norm far above 1
        np.testing.assert_allclose(exact(model.get_parameter(name).grad), expected, rtol=1e-6)
    torch.nn.utils.clip_grad_value_(other.parameters(), limit)
    for name, expected in reference.clip_by_value(before, limit).items():
        assert np.array_equal(exact(other.get_parameter(name).grad), expected)


def test_reference_agc_is_the_formula_of_timm():
    model = network(1, torch.float64)
    for name, expected in reference.clip_adaptively_by_unit(gradients_of(model), weights_of(model), 0.02, 1e-3).items():
        weight, gradient = model.get_parameter(name).detach(), model.get_parameter(name).grad
        axes = {"dim": tuple(range(1, weight.ndim)), "keepdim": True} if weight.ndim > 1 else {}
        limit = torch.linalg.vector_norm(weight, **axes).clamp(min=1e-3) * 0.02
        length = torch.linalg.vector_norm(gradient, **axes)
        timm = torch.where(length < limit, gradient, gradient * (limit / length.clamp(min=1e-6)))
        assert not torch.equal(timm, gradient)
        np.testing.assert_allclose(timm.numpy(), expected, rtol=1e-14)


def test_reference_percentile_is_that_of_numpy():
    norms = np.random.default_rng(1).lognormal(size=60)
    for percentile in (0, 3.7, 50, 95, 100):
        ours = reference.Percentile(window=20, percentile=percentile, min_history=5)
        for step, total in enumerate(norms):
            limit, past = ours.limit(total), norms[max(0, step - 20) : step]
            expected = None if step < 5 else pytest.approx(np.percentile(past, percentile), rel=1e-14)
            assert limit == expected


def test_reference_zclip_is_the_published_loop_where_sigma_is_not_small():
    norms = np.random.default_rng(2).lognormal(sigma=0.7, size=400)
    ours, mean, var, clipped = reference.ZClip(warmup=25), None, None, 0
    for step, total in enumerate(norms):
        limit = ours.limit(total)
        if step < 25:
            assert limit is None
            if step == 24:
                mean, var = norms[:25].mean(), norms[:25].var()
            continue
        z, std = (total - mean) / var**0.5, var**0.5
        threshold = mean + (2.5 * std) / (z / 2.5) if z > 2.5 else None
        assert limit == (None if threshold is None else pytest.approx(threshold, rel=1e-12))
        clipped += threshold is not None
        applied = total if threshold is None else threshold
        mean = 0.97 * mean + 0.03 * applied
        var = 0.97 * var + 0.03 * (applied - mean) ** 2
    assert clipped > 5


# Against torch, where torch is right


@pytest.mark.parametrize("seed", range(2))
def test_norm_clip_equals_torch_where_the_limit_is_far_above_its_epsilon(seed, kernel):
    ours, theirs = network(seed), network(seed)
    total = norm(*gradients_of(theirs).values())
    assert total > 10
    returned = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 2.0)
    info = GradientClipper(GradientConfig(clip_type="norm", max_grad_norm=2.0)).clip_gradients(ours)
    tolerance = 1e-6 / total + 16 * 2**-24  # torch's epsilon, and both roundings
    assert info["total_norm"] == pytest.approx(returned.item(), rel=tolerance)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=tolerance, atol=1e-30)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_value_clip_equals_torch_bit_for_bit(dtype):
    gradients = {"a": randn(40, 3, dtype=dtype), "b": randn(7, dtype=dtype, seed=1)}
    model, info = clip({name: g.clone() for name, g in gradients.items()}, "value", 0.3)
    theirs = module_of(gradients)
    torch.nn.utils.clip_grad_value_(theirs.parameters(), 0.3)
    assert info["clipped"]
    for name in gradients:
        assert bits(model.get_parameter(name).grad) == bits(theirs.get_parameter(name).grad)


# Against the references, one step


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_every_clip_of_a_network_equals_its_reference(kind, dtype, kernel):
    model = network(1, dtype)
    before, weights = gradients_of(model), weights_of(model)
    kept = Kept(model)
    if kind == "agc":
        clipper = GradientClipper(GradientConfig(clip_type="agc", agc_clip_factor=0.02, agc_exclude=("3.*",)))
        expected = reference.clip_adaptively_by_unit(before, weights, 0.02, 1e-3, ("3.*",))
        kept_names = ["3.weight", "3.bias"]
    elif kind == "per_group":
        limits = {"0.*": 0.25, "*.bias": 1e9}
        clipper = GradientClipper(GradientConfig(clip_type=kind, max_grad_norm=0.5, group_max_norms=limits))
        expected, kept_names = reference.clip_by_group(before, limits, 0.5), ["1.bias", "3.bias"]
    elif kind == "value":
        clipper, expected, kept_names = clipper_with_limit(kind, 0.5), reference.clip_by_value(before, 0.5), []
    else:
        clipper, expected, kept_names = clipper_with_limit(kind, 0.75), reference.clip_by_norm(before, 0.75), []
    assert any(not np.array_equal(before[name], expected[name]) for name in before)
    info = clipper.clip_gradients(model)
    assert_gradients(model, expected)
    assert_info(info, kind, model, before, {"value": 0.5, "agc": None, "per_group": None}.get(kind, 0.75))
    kept.weights_untouched()
    if kept_names:
        kept.untouched(*kept_names)


# Against the references, every awkward gradient


def _flat_views():
    flat = randn(20)
    return {"a": flat[:12].view(3, 4), "b": flat[12:]}


AWKWARD = {
    "fp16": lambda: {"a": randn(60, 5, dtype=torch.float16), "b": randn(9, dtype=torch.float16, seed=1)},
    "bf16": lambda: {"a": randn(60, 5, dtype=torch.bfloat16), "b": randn(9, dtype=torch.bfloat16, seed=1)},
    "fp64": lambda: {"a": randn(60, 5, dtype=torch.float64), "b": randn(9, dtype=torch.float64, seed=1)},
    "fp16 with a norm above 65504": lambda: {"a": randn(400, 3, dtype=torch.float16, scale=1e4)},
    "fp16 at its largest": lambda: {"a": torch.full((70, 2), 65504.0, dtype=torch.float16)},
    "bf16 at its largest": lambda: {"a": torch.full((8,), torch.finfo(torch.bfloat16).max, dtype=torch.bfloat16)},
    "fp32 of 1e30": lambda: {"a": randn(30, 2, scale=1e30), "b": randn(4, seed=1)},
    "fp32 of 3e38": lambda: {"a": torch.full((40, 3), 3e38), "b": torch.full((4,), -3e38)},
    "fp32 of 1e-30": lambda: {"a": randn(30, 2, scale=1e-30)},
    "fp32 of subnormal numbers": lambda: {"a": randn(30, 2, scale=1e-42)},
    "fp64 of 1e150": lambda: {"a": randn(30, 2, dtype=torch.float64) * 1e150},
    "fp64 of 1e-150": lambda: {"a": randn(30, 2, dtype=torch.float64) * 1e-150},
    "complex64": lambda: {"a": torch.complex(randn(30, 2), randn(30, 2, seed=1)), "b": randn(3, seed=2)},
    "complex128": lambda: {"a": torch.complex(randn(9, dtype=torch.float64), randn(9, dtype=torch.float64, seed=1))},
    "conjugated view": lambda: {"a": torch.complex(randn(30, 2), randn(30, 2, seed=1)).conj()},
    "mixed dtypes": lambda: {
        "fp16": randn(6, 2, dtype=torch.float16, scale=100.0),
        "bf16": randn(6, 2, dtype=torch.bfloat16, seed=1, scale=50.0),
        "fp32": randn(6, 2, seed=2, scale=70.0),
        "fp64": randn(6, 2, dtype=torch.float64, seed=3, scale=90.0),
        "complex64": torch.complex(randn(5, seed=4), randn(5, seed=5)) * 40,
    },
    "0-d": lambda: {"scale": torch.tensor(-3.0), "fp16": torch.tensor(2.5, dtype=torch.float16)},
    "one element": lambda: {"a": torch.tensor([[[7.5]]])},
    "without some": lambda: {"a": None, "b": randn(5, 2), "c": None},
    "some empty": lambda: {"a": torch.zeros(0, 3), "b": randn(5, 2), "c": torch.zeros(3, 0), "d": torch.zeros(0)},
    "some zero": lambda: {"a": torch.zeros(4, 3), "b": randn(5, 2)},
    "transposed": lambda: {"a": randn(6, 4).t(), "b": randn(3, 4, 5, seed=1).permute(2, 0, 1)},
    "strided slice": lambda: {"a": randn(12, 8)[::3, 1::2]},
    "expanded": lambda: {"a": torch.tensor([[2.0], [0.5]]).expand(2, 6), "b": torch.tensor(1.5).expand(5)},
    "channels last": lambda: {"a": randn(4, 3, 5, 5).to(memory_format=torch.channels_last)},
    "views of one buffer": _flat_views,
    "sparse": lambda: {"a": sparse([1, 4], randn(2, 3), (6, 3)).coalesce(), "b": randn(4, seed=1)},
    "sparse and uncoalesced": lambda: {"a": sparse([1, 4, 1, 1], randn(4, 3), (6, 3)), "b": randn(4, seed=1)},
    "sparse and cancelling": lambda: {
        "a": sparse([1, 1, 2], torch.tensor([[8.0, 1.0], [-8.0, 1.0], [2.0, 3.0]]), (4, 2))
    },
    "sparse without entries": lambda: {"a": sparse([], torch.zeros(0, 3), (6, 3)), "b": randn(4, seed=1)},
    "sparse fp16": lambda: {"a": sparse([1, 4], randn(2, 3, dtype=torch.float16, scale=2e4), (6, 3)).coalesce()},
    "sparse fp64": lambda: {"a": sparse([1, 4, 1], randn(3, 3, dtype=torch.float64), (6, 3))},
}


@pytest.mark.parametrize("limit", ["a third", 1e-6])
@pytest.mark.parametrize("awkward", AWKWARD)
@pytest.mark.parametrize("kind", GLOBAL)
def test_awkward_gradients_are_clipped_to_exactly_the_limit(kind, awkward, limit):
    model = module_of(AWKWARD[awkward]())
    before, kept = gradients_of(model), Kept(model)
    limit = norm(*before.values()) / 3 if limit == "a third" else limit
    info = clipper_with_limit(kind, limit).clip_gradients(model)
    expected = reference.clip_by_norm(before, limit)
    assert_gradients(model, expected)
    assert_info(info, kind, model, before, limit)
    kept.weights_untouched()
    if expected is before:
        kept.untouched()


@pytest.mark.parametrize("fraction", [1 / 3, 1.5])
@pytest.mark.parametrize("awkward", AWKWARD)
def test_awkward_gradients_are_clamped_to_the_value(awkward, fraction):
    model = module_of(AWKWARD[awkward]())
    before, kept = gradients_of(model), Kept(model)
    limit = fraction * max(np.abs(g).max(initial=0) for g in before.values())
    info = clipper_with_limit("value", limit).clip_gradients(model)
    expected = reference.clip_by_value(before, limit)
    assert_gradients(model, expected)
    assert_info(info, "value", model, before, limit)
    kept.weights_untouched()
    kept.untouched(*(name for name in before if np.array_equal(before[name], expected[name])), "no other")


@pytest.mark.parametrize("clip_factor", [0.01, 1.0])
@pytest.mark.parametrize("awkward", AWKWARD)
def test_awkward_gradients_are_clipped_unit_by_unit(awkward, clip_factor):
    gradients = AWKWARD[awkward]()
    weights = {
        name: None if g is None else (torch.randn(g.shape, generator=torch.Generator().manual_seed(7)) * 3).to(g.dtype)
        for name, g in gradients.items()
    }
    model = module_of(gradients, weights)
    before, kept = gradients_of(model), Kept(model)
    info = GradientClipper(GradientConfig(clip_type="agc", agc_clip_factor=clip_factor)).clip_gradients(model)
    expected = reference.clip_adaptively_by_unit(before, weights_of(model), clip_factor)
    assert_gradients(model, expected)
    assert_info(info, "agc", model, before)
    kept.weights_untouched()
    kept.untouched(*(name for name in before if np.array_equal(before[name], expected[name])), "no other")


@pytest.mark.parametrize("kind", GLOBAL)
def test_gradients_of_one_buffer_are_clipped_in_that_buffer(kind):
    flat = randn(20, scale=5.0)
    before = exact(flat)
    model = module_of({"a": flat[:12].view(3, 4), "b": flat[12:]})
    tensors = [p.grad for p in model.parameters()]
    clipper_with_limit(kind, 1.0).clip_gradients(model)
    assert all(p.grad is tensor for p, tensor in zip(model.parameters(), tensors, strict=True))
    np.testing.assert_allclose(exact(flat), before / norm(before), rtol=4 * 2**-23)


@pytest.mark.parametrize("kind", KINDS)
def test_layout_and_dtype_of_a_clipped_gradient_stay(kind):
    gradients = {
        "last": randn(4, 3, 5, 5).to(memory_format=torch.channels_last),
        "transposed": randn(6, 4, seed=1).t(),
        "fp16": randn(6, 4, seed=2).half(),
        "sparse": sparse([1, 4], randn(2, 3), (6, 3)).coalesce(),
    }
    model, info = clip(gradients, kind, 0.01)
    assert sorted(info["clipped_parameters"]) == sorted(gradients)
    grads = {name: p.grad for name, p in model.named_parameters()}
    assert grads["last"].is_contiguous(memory_format=torch.channels_last)
    assert grads["transposed"].stride() == (1, 4)
    assert grads["fp16"].dtype == torch.float16
    assert grads["sparse"].layout == torch.sparse_coo


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_that_autograd_left_as_a_conjugate_is_clipped(kind):
    model = nn.Module()
    model.weight = nn.Parameter(torch.complex(randn(4), randn(4, seed=1)))
    (model.weight.conj() * torch.complex(randn(4, seed=2), randn(4, seed=3)) * 100).sum().abs().backward()
    assert model.weight.grad.is_conj()
    before, weights = gradients_of(model), weights_of(model)
    clipper_with_limit(kind, 0.5).clip_gradients(model)
    expected = {
        "value": reference.clip_by_value(before, 0.5),
        "agc": reference.clip_adaptively_by_unit(before, weights),
    }
    assert_gradients(model, expected.get(kind) or reference.clip_by_norm(before, 0.5))


def test_sparse_gradient_of_an_embedding_is_clipped():
    model = nn.Embedding(6, 3, sparse=True)
    model(torch.tensor([1, 4, 1])).pow(2).sum().mul(50).backward()
    assert not model.weight.grad.is_coalesced()
    before = gradients_of(model)
    info = GradientClipper(GradientConfig(max_grad_norm=0.5)).clip_gradients(model)
    assert_gradients(model, reference.clip_by_norm(before, 0.5))
    assert_info(info, "norm", model, before, 0.5)


def test_tied_weights_count_once_and_are_clipped_once():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    model[0].weight.grad = torch.full((3, 3), 4.0)
    info = GradientClipper(GradientConfig(max_grad_norm=3.0)).clip_gradients(model)
    assert info["total_norm"] == pytest.approx(12, rel=FP32_NORM_TOLERANCE)
    assert info["clipped_parameters"] == ["0.weight"]
    assert norm(exact(model[0].weight.grad)) == pytest.approx(3, rel=4 * 2**-23)


def test_gradient_that_is_part_of_a_graph_is_clipped_without_joining_it():
    weight = nn.Parameter(randn(5))
    model = nn.Module()
    model.weight = weight
    (gradient,) = torch.autograd.grad(weight.pow(3).sum() * 100, weight, create_graph=True)
    assert gradient.requires_grad
    weight.grad = gradient
    expected = reference.clip_by_norm({"weight": exact(gradient)}, 1.0)
    GradientClipper(GradientConfig(max_grad_norm=1.0)).clip_gradients(model)
    assert_gradients(model, expected)
    assert not weight.requires_grad or weight.is_leaf


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "gradients",
    [{}, {"a": None}, {"a": torch.zeros(0)}, {"a": torch.zeros(3, 2)}, {"a": torch.tensor(0.0)}],
    ids=["no parameters", "no gradients", "empty", "zero", "zero and 0-d"],
)
def test_nothing_to_clip_is_not_clipped(kind, gradients):
    model = module_of(gradients)
    kept = Kept(model)
    info = GradientClipper(GradientConfig(clip_type=kind)).clip_gradients(model)
    assert info["clipped"] is False
    assert info["total_norm"] == info["clipped_norm"] == 0
    assert info["clip_ratio"] == 1
    kept.untouched()


# Norms


@pytest.mark.parametrize("kind", ["norm", "zclip"])
def test_norm_of_millions_of_equal_elements_is_right(kind):
    """torch's own norm on CPU errs by 0.18 % here."""
    gradient = torch.full((4_000_000,), 0.1)
    model, info = clip({"a": gradient}, kind, 1.0)
    assert info["total_norm"] == pytest.approx(2000 * float(np.float32(0.1)), rel=FP32_NORM_TOLERANCE)
    assert model.a.grad[0].item() == pytest.approx(1 / 2000, rel=FP32_NORM_TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_norm_does_not_depend_on_how_the_gradient_is_split(dtype):
    gradient = randn(1000, dtype=dtype, scale=20.0)
    _, whole = clip({"a": gradient.clone()})
    for pieces in (4, 50, 1000):
        split = {f"p{i}": piece.clone() for i, piece in enumerate(gradient.chunk(pieces))}
        model, info = clip(split)
        assert info["total_norm"] == pytest.approx(whole["total_norm"], rel=FP32_NORM_TOLERANCE)
        clipped = np.array_split(exact(gradient) / norm(exact(gradient)), pieces)
        assert_gradients(model, dict(zip(split, clipped, strict=True)))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_million_half_precision_elements_have_a_finite_norm(scale):
    dtype = torch.float16 if scale == 1 else torch.bfloat16
    gradient = torch.full((1_000_000,), 100 * scale).to(dtype)
    element = float(gradient[0])
    model, info = clip({"a": gradient, "b": torch.zeros(2)}, "norm", 20 * scale)
    assert info["total_norm"] == pytest.approx(1000 * element, rel=FP32_NORM_TOLERANCE)
    assert_gradients(model, {"a": np.full(1_000_000, 20 * scale / 1000), "b": np.zeros(2)})


# Limits


@pytest.mark.parametrize("kind", GLOBAL)
def test_norm_equal_to_the_limit_is_not_clipped(kind):
    model = module_of({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])})
    kept = Kept(model)
    info = clipper_with_limit(kind, 5.0).clip_gradients(model)
    assert info["clipped"] is False
    assert info["total_norm"] == info["clipped_norm"] == 5
    kept.untouched()


@pytest.mark.parametrize("kind", GLOBAL)
@pytest.mark.parametrize("limit", [1e-6, 1e-12, 1e-30])
def test_limits_far_below_any_epsilon_are_exact(kind, limit):
    gradients = {"a": np.array([3.0, 0.0]), "b": np.array([[4.0]])}
    model, info = clip({name: torch.tensor(g, dtype=torch.float64) for name, g in gradients.items()}, kind, limit)
    np.testing.assert_allclose(exact(model.a.grad), [0.6 * limit, 0], rtol=4 * 2**-52)
    np.testing.assert_allclose(exact(model.b.grad), [[0.8 * limit]], rtol=4 * 2**-52)
    assert info["clipped_norm"] == pytest.approx(limit, rel=8 * 2**-53, abs=0)
    assert info["threshold"] == limit
    assert info["clip_ratio"] == pytest.approx(limit / 5, rel=8 * 2**-53, abs=0)


@pytest.mark.parametrize("kind", GLOBAL)
def test_gradient_twice_a_limit_of_1e_6_is_halved(kind):
    """With the usual 1e-6 beside the norm it would be divided by three."""
    model, _ = clip({"a": torch.tensor([2e-6], dtype=torch.float64)}, kind, 1e-6)
    assert model.a.grad.item() == pytest.approx(1e-6, rel=4 * 2**-53, abs=0)


@pytest.mark.parametrize("kind", ["norm", "value", "zclip", "per_group"])
@pytest.mark.parametrize("limit", [INF, 1e300, 1e40])
def test_no_limit_and_limits_beyond_the_dtype_never_clip(kind, limit):
    gradients = {"a": torch.tensor([3e38, 1.0]), "b": torch.tensor([65504.0], dtype=torch.float16)}
    model = module_of(gradients)
    kept = Kept(model)
    info = clipper_with_limit(kind, limit).clip_gradients(model)
    assert info["clipped"] is False
    assert info["clip_ratio"] == 1
    if limit == INF:
        assert info["threshold"] in (None, INF)
    kept.untouched()


@pytest.mark.parametrize("kind", ["norm", "value", "per_group"])
def test_limit_of_zero_is_refused_or_leaves_zero(kind):
    try:
        GradientConfig(clip_type=kind, max_grad_norm=0.0)
    except ValueError:
        return
    model, info = clip({"a": torch.tensor([3.0, -4.0]), "b": torch.tensor([3e38])}, kind, 0.0)
    assert info["clipped"] is True
    assert info["clipped_norm"] == 0
    assert not exact(model.a.grad).any()
    assert not exact(model.b.grad).any()


@pytest.mark.parametrize("kind", GLOBAL)
@pytest.mark.parametrize("limit", [1.0, 1e-6, 1e-12, 1e-30])
@pytest.mark.parametrize("scale", [1e30, 3e38])
def test_huge_finite_gradients_keep_their_direction_and_get_the_norm_of_the_limit(kind, scale, limit):
    """1e-6 / 3e39 is no fp32 number: the factor has to be applied in parts."""
    direction = torch.tensor([1.0, -0.5, 0.25, 0.8, -0.01])
    gradients = {"a": direction * scale, "b": direction.repeat(200, 1) * scale}
    before = {name: exact(g) for name, g in gradients.items()}
    model, info = clip(gradients, kind, limit)
    after = gradients_of(model)
    assert info["total_norm"] == pytest.approx(norm(*before.values()), rel=FP32_NORM_TOLERANCE)
    assert norm(*after.values()) == pytest.approx(limit, rel=4 * 2**-23, abs=0)
    factor = limit / norm(*before.values())
    for name in before:
        np.testing.assert_allclose(after[name], before[name] * factor, rtol=4 * 2**-23)
        assert (np.sign(after[name]) == np.sign(before[name])).all()


@pytest.mark.parametrize("kind", GLOBAL)
@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_fp64_gradients_whose_squares_are_no_fp64_numbers_are_clipped(kind, scale):
    gradient = np.array([3.0, -4.0]) * scale
    model, info = clip({"a": torch.from_numpy(gradient.copy())}, kind, scale / 2)
    assert info["total_norm"] == pytest.approx(5 * scale, rel=FP64_NORM_TOLERANCE, abs=0)
    np.testing.assert_allclose(exact(model.a.grad), gradient / 10, rtol=4 * 2**-52)


# Low precision


@pytest.mark.parametrize("kind", GLOBAL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_gradients_are_the_rounded_exact_product(kind, dtype):
    """Nearly all bits are those of the product rounded once: only one next to a tie may fall to the other side."""
    gradient = randn(5000, dtype=dtype, scale=3.0)
    limit = 37.3
    model, _ = clip({"a": gradient.clone()}, kind, limit)
    product = exact(gradient) * (limit / norm(exact(gradient)))
    rounded = torch.from_numpy(product.astype(np.float32)).to(dtype)  # fp64 -> fp32 -> dtype moves ties only
    different = (model.a.grad != rounded).double().mean().item()
    assert different < 2**-7  # 2^-24 of a factor against 2^-11 of fp16, some roundings
    assert_gradients(model, {"a": product})


def test_factor_too_small_for_fp16_is_not_rounded_to_it():
    """1 / 1.6e8 is below the smallest fp16 number, 6e-8, yet each clipped element is not."""
    model, _ = clip({"a": torch.full((9,), 60000.0, dtype=torch.float16), "b": torch.full((10,), 5e7)}, "norm", 1.0)
    total = math.sqrt(9 * 60000.0**2 + 10 * 5e7**2)
    assert 1 / total < torch.finfo(torch.float16).tiny / 2**11
    assert_gradients(model, {"a": np.full(9, 60000.0 / total), "b": np.full(10, 5e7 / total)})
    assert (model.a.grad > 0).all()


# Gradients which are not finite


def _with_bad(bad, kind_of=torch.float32):
    return {
        "a": torch.tensor([[1e3, bad], [5.0, 1e-3]], dtype=kind_of),
        "b": randn(4, 3, scale=100.0),
        "c": torch.tensor([3e4, -1.0], dtype=torch.float16),
        "d": sparse([1, 1], randn(2, 3) * 50, (4, 3)),
        "e": torch.complex(randn(3), randn(3, seed=1)) * 9,
    }


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_one_bad_element_changes_no_gradient_at_all(kind, dtype, bad):
    model = module_of(_with_bad(bad, dtype))
    kept = Kept(model)
    clipper = clipper_with_limit(kind, 0.5)
    state = json.dumps(clipper.state_dict(), sort_keys=True)
    info = clipper.clip_gradients(model)
    assert info["clipped"] is False
    assert not math.isfinite(info["total_norm"])
    assert info["clip_ratio"] == 1
    assert list(info["clipped_parameters"]) == []
    kept.untouched()
    kept.weights_untouched()
    assert json.dumps(clipper.state_dict(), sort_keys=True) == state


@pytest.mark.parametrize("bad", [complex(NAN, 1), complex(0, INF), complex(-INF, NAN)])
@pytest.mark.parametrize("kind", KINDS)
def test_one_bad_complex_or_sparse_element_changes_no_gradient_at_all(kind, bad):
    for gradient in (torch.tensor([1 + 2j, bad]), sparse([2, 2], torch.tensor([[1e4], [bad.real + bad.imag]]), (3, 1))):
        model = module_of({"a": gradient, "b": randn(4, 3, scale=100.0)})
        kept = Kept(model)
        info = clipper_with_limit(kind, 0.5).clip_gradients(model)
        assert info["clipped"] is False
        assert not math.isfinite(info["total_norm"])
        kept.untouched()


@pytest.mark.parametrize("kind", KINDS)
def test_bad_group_keeps_every_other_from_being_written(kind):
    limits = {"first.*": 0.1, "second.*": 0.1}
    model = module_of({"first.w": torch.tensor([NAN]), "second.w": torch.full((3,), 9.0), "w": torch.full((3,), 9.0)})
    kept = Kept(model)
    info = clipper_with_limit(kind, 0.1, group_max_norms=limits).clip_gradients(model)
    assert info["clipped"] is False
    kept.untouched()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [NAN, INF])
def test_clipping_goes_on_after_a_bad_step(kind, bad):
    clipper = clipper_with_limit(kind, 0.5)
    clipper.clip_gradients(module_of(_with_bad(bad)))
    model = module_of({"a": torch.tensor([30.0, 40.0], dtype=torch.float64)})
    info = clipper.clip_gradients(model)
    limit = 0.01 * math.sqrt(2) if kind == "agc" else 0.5
    expected = [0.5, 0.5] if kind == "value" else [0.6 * limit, 0.8 * limit]
    assert info["clipped"] is True
    np.testing.assert_allclose(exact(model.a.grad), expected, rtol=4 * 2**-52)


# Sequences of steps


def walk(seed, steps=300, bad=0.06, still=0.02):
    """Norms that drift, with spikes, zeros and steps that are not finite."""
    rng = np.random.default_rng(seed)
    level, norms = 0.0, []
    for _ in range(steps):
        level += rng.normal(scale=0.05)
        size = math.exp(level + rng.normal(scale=0.2)) * (rng.uniform(4, 1000) if rng.random() < 0.06 else 1)
        chance = rng.random()
        norms.append(rng.choice([NAN, INF]) if chance < bad else 0.0 if chance < bad + still else size)
    return norms


DIRECTIONS = np.random.default_rng(0).normal(size=(37, 24))
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)


def step_of(size, step, dtype=torch.float64):
    """Gradients of this norm in a direction that changes with each step."""
    direction = DIRECTIONS[step % len(DIRECTIONS)]
    flat = torch.from_numpy(direction * size if math.isfinite(size) else direction.copy())
    if not math.isfinite(size):
        flat[step % 24] = size
    flat = flat.to(dtype)
    return {"linear.weight": flat[:15].view(5, 3), "linear.bias": flat[15:23], "scale": flat[23]}


class Steps:
    """A model which takes the gradients of one step after the other."""

    def __init__(self, clipper, dtype=torch.float64):
        self.clipper, self.dtype = clipper, dtype
        self.model = module_of(step_of(0.0, 0, dtype))
        self.parameters = dict(self.model.named_parameters())

    def take(self, size, step, scale=1.0):
        """The report on a step of this norm; `before` and `after` are its gradients."""
        self.tensors = {name: g * scale for name, g in step_of(size, step, self.dtype).items()}
        self.before = {name: g.numpy().copy() for name, g in self.tensors.items()}
        for name, parameter in self.parameters.items():
            parameter.grad = self.tensors[name]
        self.version = {name: g._version for name, g in self.tensors.items()}
        return self.clipper.clip_gradients(self.model)

    @property
    def after(self):
        return {name: p.grad.numpy() for name, p in self.parameters.items()}

    @property
    def bits(self):
        return {name: g.tobytes() for name, g in self.after.items()}

    def untouched(self):
        for name, parameter in self.parameters.items():
            assert parameter.grad is self.tensors[name]
            assert parameter.grad._version == self.version[name]
            assert parameter.grad.numpy().tobytes() == self.before[name].tobytes()


def close(actual, expected, tolerance):
    """Within this part of the expected, element by element."""
    return bool((np.abs(np.asarray(actual) - expected) <= tolerance * np.abs(expected)).all())


SEQUENCES = {
    "adaptive": ({}, reference.Percentile()),
    "adaptive_clipping": ({"adaptive_clipping": True, "max_grad_norm": 1e-3}, reference.Percentile()),
    "window of 7": ({"adaptive_window_size": 7, "adaptive_percentile": 50.0}, reference.Percentile(7, 50.0)),
    "window of 1": ({"adaptive_window_size": 1, "max_grad_norm": 1e-9}, reference.Percentile(1)),
    "percentile 0": ({"adaptive_percentile": 0.0}, reference.Percentile(percentile=0)),
    "percentile 100": ({"adaptive_percentile": 100.0, "adaptive_window_size": 20}, reference.Percentile(20, 100)),
    "history of 1": ({"adaptive_min_history": 1}, reference.Percentile(min_history=1)),
    "history of 60": (
        {"adaptive_min_history": 60, "adaptive_percentile": 33.3},
        reference.Percentile(percentile=33.3, min_history=60),
    ),
    "zclip": ({}, reference.ZClip(cap=1.0)),
    "zclip without cap": ({"max_grad_norm": INF}, reference.ZClip()),
    "zclip with a high cap": ({"max_grad_norm": 6.0}, reference.ZClip(cap=6.0)),
    "zclip quick": (
        {"max_grad_norm": INF, "zclip_alpha": 0.5, "zclip_threshold": 1.0, "zclip_warmup": 2},
        reference.ZClip(0.5, 1.0, 2),
    ),
    "zclip slow": (
        {"max_grad_norm": INF, "zclip_alpha": 0.99, "zclip_threshold": 3.0, "zclip_warmup": 60},
        reference.ZClip(0.99, 3.0, 60),
    ),
}


def sequence(name):
    """The configuration of a sequence and a fresh reference."""
    more, judge = SEQUENCES[name]
    kind = "norm" if name == "adaptive_clipping" else "zclip" if name.startswith("zclip") else "adaptive"
    return GradientConfig(clip_type=kind, **more), copy.deepcopy(judge)


def follow(name, seed, steps):
    """A run of fp64 gradients beside its reference."""
    config, judge = sequence(name)
    run, clipped = Steps(GradientClipper(config)), 0
    for step, size in enumerate(walk(seed, steps)):
        info = run.take(size, step)
        total = norm(*run.before.values())
        limit = judge.limit(total)
        assert info["clip_type"] == ("zclip" if name.startswith("zclip") else "adaptive")
        assert not math.isfinite(total) or close(info["total_norm"], total, FP64_NORM_TOLERANCE)
        if limit is None or not total > limit:
            run.untouched()
            assert info["clipped"] is False
            assert info["clip_ratio"] == 1
            continue
        clipped += 1
        assert info["clipped"] is True
        assert close(info["threshold"], limit, SEQUENCE_TOLERANCE)
        assert close(info["clipped_norm"], limit, SEQUENCE_TOLERANCE)
        assert close(info["clip_ratio"], limit / total, SEQUENCE_TOLERANCE)
        for key, gradient in run.after.items():
            assert close(gradient, run.before[key] * (limit / total), SEQUENCE_TOLERANCE)
    assert clipped >= 5


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_of_steps_follow_their_reference(name):
    follow(name, seed=1, steps=300)


@pytest.mark.parametrize("name", ["adaptive", "zclip without cap"])
def test_sequences_of_steps_follow_their_reference_with_every_kernel(name, kernel):
    follow(name, seed=2, steps=150)


@pytest.mark.parametrize("name", SEQUENCES)
def test_fp32_sequences_follow_the_reference_fed_with_the_reported_norms(name):
    """The same rounding of the norm on both sides, so that no close decision differs."""
    config, judge = sequence(name)
    run = Steps(GradientClipper(config), torch.float32)
    for step, size in enumerate(walk(5, steps=100)):
        info = run.take(size, step)
        total = info["total_norm"]
        limit = judge.limit(total)
        clipped = limit is not None and total > limit
        assert info["clipped"] is clipped
        if clipped:
            factor = limit / total
            assert_gradients(run.model, {key: g.astype(np.float64) * factor for key, g in run.before.items()})


@pytest.mark.parametrize("name", SEQUENCES)
def test_bad_steps_are_as_if_they_had_not_been(name):
    norms = walk(3, steps=110, bad=0.25)
    assert sum(map(math.isfinite, norms)) < 95
    with_bad, without = (Steps(GradientClipper(sequence(name)[0])) for _ in range(2))
    for step, size in enumerate(norms):
        info = with_bad.take(size, step)
        if math.isfinite(size):
            assert without.take(size, step) == info
            assert without.bits == with_bad.bits
    assert with_bad.clipper.state_dict() == without.clipper.state_dict()


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_scale_with_powers_of_two_bit_for_bit(name):
    scale = 2.0**-40
    config, _ = sequence(name)
    scaled_config = copy.copy(config)
    scaled_config.max_grad_norm = config.max_grad_norm * scale
    run, scaled = Steps(GradientClipper(config)), Steps(GradientClipper(scaled_config))
    for step, size in enumerate(walk(4, steps=90)):
        info, scaled_info = run.take(size, step), scaled.take(size, step, scale)
        assert info["clipped"] is scaled_info["clipped"]
        for gradient, other in zip(run.after.values(), scaled.after.values(), strict=True):
            assert (gradient * scale).tobytes() == other.tobytes()


@pytest.mark.parametrize("name", [*SEQUENCES, "norm", "value", "agc", "per_group"])
def test_run_resumed_through_json_equals_the_uninterrupted_bit_for_bit(name):
    config = sequence(name)[0] if name in SEQUENCES else GradientConfig(clip_type=name)
    pause = random.Random(name).randrange(75)
    whole, resumed = Steps(GradientClipper(config)), None
    for step, size in enumerate(walk(0, steps=100)):
        if step == pause:
            text = json.dumps(whole.clipper.state_dict(), allow_nan=False)
            resumed = Steps(GradientClipper(copy.deepcopy(config)))
            resumed.clipper.load_state_dict(json.loads(text))
            assert json.dumps(resumed.clipper.state_dict()) == text
        info = whole.take(size, step)
        if resumed is not None:
            assert repr(resumed.take(size, step)) == repr(info)
            assert resumed.bits == whole.bits
    assert json.dumps(whole.clipper.state_dict()) == json.dumps(resumed.clipper.state_dict())


@pytest.mark.parametrize("name", ["adaptive", "window of 7", "zclip", "zclip quick"])
def test_loaded_state_takes_the_place_of_what_was_remembered(name):
    source, used = (Steps(GradientClipper(sequence(name)[0])) for _ in range(2))
    for step in range(40):
        source.take(1.0 + step % 3, step)
        used.take(1e5 + step, step)
    used.clipper.load_state_dict(json.loads(json.dumps(source.clipper.state_dict())))
    for step, size in enumerate(walk(6, steps=60)):
        assert repr(source.take(size, step)) == repr(used.take(size, step))
    assert source.clipper.state_dict() == used.clipper.state_dict()


@pytest.mark.parametrize("name", ["adaptive", "zclip"])
def test_saved_state_moves_neither_with_its_clipper_nor_with_one_that_loaded_it(name):
    source, loader = (Steps(GradientClipper(sequence(name)[0])) for _ in range(2))
    for step in range(12):
        source.take(1.0 + step, step)
    state = source.clipper.state_dict()
    text = json.dumps(state)
    loader.clipper.load_state_dict(state)
    for step in range(40):
        source.take(9.0 + step, step)
        loader.take(5.0 + step, step)
    assert json.dumps(state) == text
    assert json.dumps(source.clipper.state_dict()) != text


# Adaptive


def judged(clipper, size):
    """What a step of this norm becomes."""
    model = module_of({"w": torch.tensor([size], dtype=torch.float64)})
    info = clipper.clip_gradients(model)
    return model.w.grad.item(), info


def adaptive(**more):
    return GradientClipper(GradientConfig(clip_type="adaptive", **more))


def test_adaptive_does_not_clip_before_the_history_is_long_enough():
    clipper = adaptive(adaptive_min_history=4)
    for size in (1.0, 50.0, 2.0, 1000.0):
        kept, info = judged(clipper, size)
        assert kept == size
        assert info["threshold"] is None
    kept, info = judged(clipper, 1e6)
    assert info["threshold"] == pytest.approx(np.percentile([1, 50, 2, 1000], 95), rel=4 * 2**-53)
    assert kept == pytest.approx(info["threshold"], rel=4 * 2**-53)


def test_adaptive_history_shorter_than_the_minimum_suffices_when_it_fills_the_window():
    clipper = adaptive(adaptive_window_size=3, adaptive_min_history=10)
    for size in (4.0, 2.0, 3.0):
        assert judged(clipper, size)[0] == size
    assert judged(clipper, 90.0)[0] == pytest.approx(np.percentile([4, 2, 3], 95), rel=4 * 2**-53)


def test_adaptive_judges_a_step_by_the_past_and_remembers_it_unclipped():
    clipper = adaptive(adaptive_window_size=1)
    assert judged(clipper, 1.0)[0] == 1
    assert judged(clipper, 8.0)[0] == 1
    assert judged(clipper, 16.0)[0] == 8
    assert judged(clipper, 2.0)[0] == 2
    assert judged(clipper, 4.0)[0] == 2


def test_adaptive_percentiles_0_and_100_are_minimum_and_maximum():
    for percentile, limit in ((0.0, 2.0), (100.0, 7.0)):
        clipper = adaptive(adaptive_percentile=percentile, adaptive_min_history=3)
        for size in (7.0, 2.0, 5.0):
            judged(clipper, size)
        kept, info = judged(clipper, 64.0)
        assert kept == info["threshold"] == limit


def test_adaptive_history_of_zeros_does_not_freeze_the_gradient():
    clipper = adaptive(adaptive_min_history=5, adaptive_window_size=5, adaptive_percentile=50.0)
    for _ in range(6):
        assert judged(clipper, 0.0)[0] == 0
    for size in (3.0, 4.0):
        kept, info = judged(clipper, size)
        assert kept == size
        assert info["clipped"] is False
    judged(clipper, 5.0)  # the window is now 0 0 3 4 5
    assert judged(clipper, 100.0)[0] == 3


def test_adaptive_remembers_zero_norms_like_others():
    clipper = adaptive(adaptive_min_history=4, adaptive_percentile=50.0)
    for size in (0.0, 0.0, 1.0, 1.0):
        judged(clipper, size)
    assert judged(clipper, 10.0)[0] == 0.5


@pytest.mark.parametrize("size", [0.1, 1 / 3, 7e-13, 3e20])
@pytest.mark.parametrize("percentile", [0.0, 33.3, 95.0, 100.0])
def test_adaptive_equal_norms_are_never_clipped_and_a_larger_one_is(size, percentile):
    clipper = adaptive(adaptive_percentile=percentile)
    gradients = step_of(size, 0, torch.float32)
    for _ in range(30):
        model = module_of({name: g.clone() for name, g in gradients.items()})
        kept = Kept(model)
        assert clipper.clip_gradients(model)["clipped"] is False
        kept.untouched()
    model = module_of({name: g * 2 for name, g in gradients.items()})
    assert clipper.clip_gradients(model)["clipped"] is True
    assert_gradients(model, {name: exact(g) for name, g in gradients.items()})


def test_adaptive_ignores_max_grad_norm():
    tight, loose = (adaptive(adaptive_min_history=2, max_grad_norm=limit) for limit in (1e-3, INF))
    for size in walk(8, steps=40):
        assert repr(judged(tight, size)) == repr(judged(loose, size))


def test_adaptive_with_no_minimal_history_is_refused_or_lets_the_first_step_through():
    try:
        clipper = adaptive(adaptive_min_history=0)
    except ValueError:
        return
    assert judged(clipper, 9.0)[0] == 9


# ZClip


def zclip(**more):
    return GradientClipper(GradientConfig(clip_type="zclip", **{"max_grad_norm": INF, **more}))


def test_zclip_constant_norms_and_a_small_increase_are_not_clipped():
    """With the sigma of 0 of a constant norm any increase would be a spike."""
    clipper = zclip()
    for _ in range(60):
        assert judged(clipper, 1.0)[0] == 1
    kept, info = judged(clipper, 1.00001)
    assert kept == 1.00001
    assert info["clipped"] is False
    clipper = zclip()
    for _ in range(60):
        judged(clipper, 1.0)
    kept, info = judged(clipper, 1.1)  # sigma 0.01: z = 10
    assert kept == pytest.approx(1 + 6.25 * 0.01 / 10, rel=SEQUENCE_TOLERANCE)
    assert info["threshold"] == pytest.approx(kept, rel=SEQUENCE_TOLERANCE)


def test_zclip_collects_the_unclipped_norms_and_clips_by_the_cap_only_during_warm_up():
    clipper = zclip(zclip_warmup=4, max_grad_norm=2.0)
    assert [judged(clipper, size)[0] for size in (1.0, 3.0, 100.0, 2.0)] == [1, 2, 2, 2]
    # Collected: 1, 3, 100, 2, so mean 26.5 and a sigma of 42.4: 100 is no spike, only the cap limits it.
    judge = reference.ZClip(warmup=4, cap=2.0)
    for size in (1.0, 3.0, 100.0, 2.0):
        judge.limit(size)
    for size in (100.0, 1.5, 2.5, 1e6):
        limit = judge.limit(size)
        assert judged(clipper, size)[0] == pytest.approx(min(size, limit), rel=SEQUENCE_TOLERANCE)


def test_zclip_cap_holds_after_warm_up_below_the_spike_limit_too():
    clipper = zclip(zclip_warmup=5, max_grad_norm=3.0)
    for size in (1.0, 1.1, 0.9, 1.0, 1.05):
        judged(clipper, size)
    spike, info = judged(clipper, 50.0)
    assert 1 < spike < 1.1
    assert info["threshold"] < 3
    clipper = zclip(zclip_warmup=5, max_grad_norm=1.0)
    for size in (1.0, 5.0, 9.0, 3.0, 7.0):
        judged(clipper, size)
    kept, info = judged(clipper, 5.0)
    assert kept == pytest.approx(1, rel=4 * 2**-53)
    assert info["threshold"] == 1


def test_zclip_larger_spikes_are_clipped_harder():
    kept = []
    for size in (2.0, 5.0, 100.0, 1e30, 1e150):
        clipper = zclip(zclip_warmup=3)
        for warm in (0.9, 1.0, 1.1):
            judged(clipper, warm)
        kept.append(judged(clipper, size)[0])
    assert kept[0] > kept[1] > kept[2] > kept[3] * (1 - 2**-50)
    assert kept[-1] == pytest.approx(1.0, rel=SEQUENCE_TOLERANCE)
    assert kept[0] < 1.1


def test_zclip_spike_does_not_raise_the_average_beyond_what_was_applied():
    clipper, judge = zclip(zclip_warmup=5), reference.ZClip(warmup=5)
    for size in (1.0, 1.2, 0.8, 1.1, 0.9, 1e12, 1.0, 1e12, 1e12, 2.0):
        limit = judge.limit(size)
        assert judged(clipper, size)[0] == pytest.approx(min(size, limit or INF), rel=SEQUENCE_TOLERANCE)
    assert judge.mean < 1.1


def test_zclip_warm_up_of_zeros_neither_divides_by_zero_nor_freezes_the_gradient():
    clipper = zclip(zclip_warmup=3)
    for _ in range(5):
        assert judged(clipper, 0.0)[0] == 0
    for size in (2.0, 2.0, 2.0):
        kept, info = judged(clipper, size)
        assert math.isfinite(kept)
        assert kept > 0
        assert math.isfinite(info["clipped_norm"])


def test_zclip_bad_norms_do_not_shorten_the_warm_up_or_disable_it():
    clipper = zclip(zclip_warmup=3)
    for size in (NAN, 1.0, INF, NAN, 1.1, NAN):
        judged(clipper, size)
    assert judged(clipper, 1.2)[0] == 1.2  # the third that counts
    judged(clipper, NAN)
    assert judged(clipper, 1e4)[0] < 1.5


# AGC


def agc(gradients, weights, **more):
    model = module_of(gradients, weights)
    return model, GradientClipper(GradientConfig(clip_type="agc", **more)).clip_gradients(model)


def test_agc_zero_initialised_tensor_is_moved():
    zero = {"w": torch.zeros(4, 3), "b": torch.zeros(4)}
    gradients = {"w": randn(4, 3), "b": randn(4, seed=1)}
    expected = reference.clip_adaptively_by_unit(
        {name: exact(g) for name, g in gradients.items()}, {name: exact(w) for name, w in zero.items()}
    )
    model, info = agc(gradients, zero)
    assert_gradients(model, expected)
    assert sorted(info["clipped_parameters"]) == ["b", "w"]
    assert (model.w.grad != 0).all()
    assert (model.b.grad != 0).all()
    np.testing.assert_allclose(np.linalg.norm(exact(model.w.grad), axis=1), 0.01 * 1e-3, rtol=8 * 2**-24)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_agc_low_precision_units_are_the_rounded_exact_product(dtype):
    gradients = {"w": randn(50, 20, dtype=dtype, scale=300.0), "b": randn(50, dtype=dtype, seed=1)}
    weights = {"w": randn(50, 20, dtype=dtype, seed=2), "b": torch.zeros(50, dtype=dtype)}
    exact_gradients, exact_weights = ({n: exact(t) for n, t in d.items()} for d in (gradients, weights))
    model, _ = agc(gradients, weights, agc_clip_factor=0.37, agc_eps=0.5)
    assert_gradients(model, reference.clip_adaptively_by_unit(exact_gradients, exact_weights, 0.37, 0.5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_agc_norms_beyond_the_dtype_are_right(dtype):
    large = torch.finfo(dtype).max
    gradients = {"w": torch.full((2, 50), large, dtype=dtype), "b": torch.full((7,), large, dtype=dtype)}
    weights = {"w": torch.full((2, 50), large, dtype=dtype), "b": torch.full((7,), large, dtype=dtype)}
    model, info = agc(gradients, weights, agc_clip_factor=0.25)
    assert_gradients(model, {"w": np.full((2, 50), 0.25 * large), "b": np.full(7, 0.25 * large)})
    assert info["total_norm"] == pytest.approx(large * math.sqrt(107), rel=FP32_NORM_TOLERANCE)


def test_agc_huge_gradient_of_a_small_weight_keeps_its_direction():
    gradients = {"w": torch.tensor([[3e38, -1.5e38], [3e-3, 4e-3]])}
    model, _ = agc(gradients, {"w": torch.zeros(2, 2)}, agc_eps=1e-6)
    length = math.hypot(3e38, 1.5e38)
    np.testing.assert_allclose(exact(model.w.grad)[0], [3e38 / length * 1e-8, -1.5e38 / length * 1e-8], rtol=4 * 2**-23)
    np.testing.assert_allclose(exact(model.w.grad)[1], [0.6e-8, 0.8e-8], rtol=4 * 2**-23)


def test_agc_row_of_zero_gradient_stays_zero_and_rows_below_their_limit_keep_their_bits():
    gradients = torch.tensor([[0.0, -0.0], [1e-3, 1e-4], [30.0, 40.0], [1e-38, 1e-45]])
    before = [bits(row) for row in gradients]
    model, info = agc({"w": gradients}, {"w": torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])})
    assert [bits(row) for row in model.w.grad[[0, 1, 3]]] == [before[0], before[1], before[3]]
    np.testing.assert_allclose(exact(model.w.grad[2]), [0.03, 0.04], rtol=4 * 2**-23)
    assert info["clipped_parameters"] == ["w"]


@pytest.mark.parametrize("shape", [(), (6,), (6, 1), (4, 5), (4, 5, 2), (4, 5, 2, 3), (4, 1, 2, 3, 2)])
def test_agc_units_are_the_slices_of_the_first_dimension_and_whole_vectors(shape):
    gradient = randn(*shape, scale=10.0) if shape else torch.tensor(-10.0)
    weight = randn(*shape, seed=1) if shape else torch.tensor(-2.0)
    model, _ = agc({"w": gradient.clone()}, {"w": weight})
    rows = (-1,) if len(shape) < 2 else (shape[0], -1)
    lengths = torch.linalg.vector_norm(exact_tensor(model.w.grad).reshape(rows), dim=-1)
    limits = 0.01 * torch.linalg.vector_norm(exact_tensor(weight).reshape(rows), dim=-1)
    torch.testing.assert_close(lengths, limits, rtol=8 * 2**-24, atol=0)
    cosine = (exact_tensor(model.w.grad) * exact_tensor(gradient)).reshape(rows).sum(-1)
    torch.testing.assert_close(
        cosine, lengths * torch.linalg.vector_norm(exact_tensor(gradient).reshape(rows), dim=-1), rtol=1e-6, atol=0
    )


def exact_tensor(tensor):
    return torch.from_numpy(np.asarray(exact(tensor)))


def test_agc_excluded_names_are_kept():
    names = ("body.0.weight", "body.head", "head.weight", "head.bias", "Head.bias")
    model = module_of({name: torch.full((2, 3), 5.0) for name in names})
    kept = Kept(model)
    config = GradientConfig(clip_type="agc", agc_exclude=("head.*", "*.0.weigh?"))
    info = GradientClipper(config).clip_gradients(model)
    assert sorted(info["clipped_parameters"]) == ["Head.bias", "body.head"]
    kept.untouched("body.0.weight", "head.weight", "head.bias")


def test_agc_ignores_max_grad_norm():
    for limit in (1e-9, INF):
        model, _ = agc({"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([30.0, 40.0])}, max_grad_norm=limit)
        np.testing.assert_allclose(exact(model.w.grad), [0.3, 0.4], rtol=4 * 2**-23)


def test_agc_weights_that_are_not_finite_spoil_no_gradient():
    weights = torch.tensor([[NAN, 1.0], [INF, 1.0], [3.0, 4.0]])
    model, _ = agc({"w": torch.full((3, 2), 7.0)}, {"w": weights})
    assert torch.isfinite(model.w.grad).all()
    np.testing.assert_allclose(np.linalg.norm(exact(model.w.grad)[2]), 0.05, rtol=4 * 2**-23)


# Per group


def test_per_group_limits_apply_to_each_group_alone():
    gradients = {
        "encoder.weight": torch.tensor([[3.0, 4.0]]),
        "encoder.bias": torch.tensor([12.0]),
        "decoder.weight": torch.tensor([[30.0, 40.0]]),
        "scale": torch.tensor(6.0),
        "shift": torch.tensor([8.0]),
    }
    model = module_of(gradients)
    kept = Kept(model)
    config = GradientConfig(clip_type="per_group", max_grad_norm=5.0, group_max_norms={"encoder.*": 13.0, "dec*": 0.5})
    info = GradientClipper(config).clip_gradients(model)
    kept.untouched("encoder.weight", "encoder.bias")  # of norm 13
    np.testing.assert_allclose(exact(model.decoder.weight.grad), [[0.3, 0.4]], rtol=4 * 2**-23)
    assert model.scale.grad.item() == 3
    assert model.shift.grad.item() == 4
    assert info["clipped"] is True
    assert sorted(info["clipped_parameters"]) == ["decoder.weight", "scale", "shift"]
    assert info["total_norm"] == pytest.approx(math.sqrt(13**2 + 50**2 + 10**2), rel=FP32_NORM_TOLERANCE)
    assert info["clipped_norm"] == pytest.approx(math.sqrt(13**2 + 0.5**2 + 5**2), rel=4 * 2**-23)


def test_per_group_parameter_of_two_patterns_belongs_to_the_first():
    model = module_of({"a.weight": torch.tensor([8.0]), "a.bias": torch.tensor([8.0]), "b.bias": torch.tensor([8.0])})
    config = GradientConfig(clip_type="per_group", max_grad_norm=INF, group_max_norms={"a.*": 4.0, "*.bias": 1.0})
    GradientClipper(config).clip_gradients(model)
    np.testing.assert_allclose(exact(model.a.weight.grad), 4 / math.sqrt(2), rtol=4 * 2**-23)
    np.testing.assert_allclose(exact(model.a.bias.grad), 4 / math.sqrt(2), rtol=4 * 2**-23)
    assert model.b.bias.grad.item() == 1


def test_per_group_infinite_and_tiny_limits_hold_beside_each_other():
    gradients = {"free": torch.tensor([3e38]), "tiny": torch.tensor([3e38, 3e38]), "rest": torch.tensor([7.0])}
    model = module_of(gradients)
    kept = Kept(model)
    config = GradientConfig(clip_type="per_group", max_grad_norm=1.0, group_max_norms={"free": INF, "tiny": 1e-12})
    GradientClipper(config).clip_gradients(model)
    kept.untouched("free")
    np.testing.assert_allclose(exact(model.tiny.grad), 1e-12 / math.sqrt(2), rtol=4 * 2**-23)
    assert model.rest.grad.item() == 1


# Changes of the configuration while running


def test_changed_max_grad_norm_is_followed_at_the_next_call():
    for kind in ("norm", "value", "zclip", "per_group"):
        config = GradientConfig(clip_type=kind, max_grad_norm=4.0)
        clipper = GradientClipper(config)
        assert judged(clipper, 16.0)[0] == 4
        config.max_grad_norm = 0.5
        kept, info = judged(clipper, 16.0)
        assert kept == info["threshold"] == 0.5
        config.max_grad_norm = INF
        assert judged(clipper, 16.0)[0] == 16


def test_changed_clip_type_is_followed_at_the_next_call():
    config = GradientConfig(max_grad_norm=1.0, clip_type="norm", agc_clip_factor=0.25)
    clipper = GradientClipper(config)
    expected = {"norm": [0.6, 0.8], "value": [1.0, 1.0], "agc": [0.6 * 2**-1.5, 0.8 * 2**-1.5]}
    for kind in ("norm", "value", "agc", "norm", "agc", "value"):
        config.clip_type = kind
        model = module_of({"a": torch.tensor([3.0, 4.0], dtype=torch.float64)})
        assert clipper.clip_gradients(model)["clip_type"] == kind
        np.testing.assert_allclose(exact(model.a.grad), expected[kind], rtol=4 * 2**-52)


@pytest.mark.parametrize("switch", [{"clip_type": "adaptive"}, {"adaptive_clipping": True}])
def test_adaptive_clipping_can_be_switched_on_and_off_during_the_run(switch):
    config = GradientConfig(max_grad_norm=64.0, adaptive_min_history=3)
    clipper = GradientClipper(config)
    for _ in range(5):
        assert judged(clipper, 2.0)[0] == 2
    previous = {name: getattr(config, name) for name in switch}
    for name, value in switch.items():
        setattr(config, name, value)
    for _ in range(5):
        assert judged(clipper, 2.0)[0] == 2
    kept, info = judged(clipper, 256.0)
    assert (kept, info["clip_type"]) == (2, "adaptive")
    for name, value in previous.items():
        setattr(config, name, value)
    kept, info = judged(clipper, 256.0)
    assert (kept, info["clip_type"]) == (64, "norm")


def test_changed_window_and_percentile_are_followed_at_the_next_call():
    config = GradientConfig(clip_type="adaptive", adaptive_window_size=50, adaptive_percentile=0.0)
    clipper = GradientClipper(config)
    for size in range(1, 31):
        judged(clipper, float(size))
    assert judged(clipper, 31.0)[0] == 1
    config.adaptive_window_size = 4
    assert judged(clipper, 32.0)[0] == 28  # of 28 29 30 31
    config.adaptive_percentile = 100.0
    assert judged(clipper, 64.0)[0] == 32


def test_changed_zclip_threshold_and_agc_and_group_settings_are_followed_at_the_next_call():
    config = GradientConfig(clip_type="zclip", max_grad_norm=INF, zclip_warmup=3, zclip_threshold=1e9)
    clipper = GradientClipper(config)
    for size in (1.0, 1.0, 1.0, 50.0):
        assert judged(clipper, size)[0] == size
    config.zclip_threshold = 0.5
    assert judged(clipper, 50.0)[1]["clipped"] is True
    config = GradientConfig(clip_type="agc", agc_clip_factor=0.25)
    clipper = GradientClipper(config)
    assert judged(clipper, 8.0)[0] == 0.25
    config.agc_clip_factor = 0.5
    assert judged(clipper, 8.0)[0] == 0.5
    config.agc_exclude = ("w",)
    assert judged(clipper, 8.0)[0] == 8
    config.clip_type = "per_group"
    config.group_max_norms = {"w": 2.0}
    assert judged(clipper, 8.0)[0] == 2
    config.group_max_norms = {"v": 4.0}
    assert judged(clipper, 8.0)[0] == 1


# Properties


@st.composite
def gradient_sets(draw, dtypes=(torch.float32, torch.float64)):
    """Up to four tensors of ordinary numbers of one or several dtypes."""
    gradients = {}
    for index in range(draw(st.integers(1, 4))):
        dtype = draw(st.sampled_from(dtypes))
        shape = draw(st.sampled_from([(), (1,), (7,), (2, 3), (3, 1, 2), (0, 2)]))
        elements = st.floats(-1000, 1000, width=16, allow_subnormal=False)
        size = math.prod(shape)
        values = draw(st.lists(elements, min_size=size, max_size=size))
        gradients[f"p{index}"] = torch.tensor(values, dtype=dtype).reshape(shape)
    return gradients


def copies(gradients):
    return {name: g.clone() for name, g in gradients.items()}


LIMITS = st.floats(2**-20, 4096)


@examples
@given(gradient_sets(), LIMITS, st.sampled_from(GLOBAL))
def test_clipped_gradient_is_the_reference_and_its_norm_at_most_the_limit(gradients, limit, kind):
    before = {name: exact(g) for name, g in gradients.items()}
    assume(abs(norm(*before.values()) / limit - 1) > 1e-5)
    model, info = clip(copies(gradients), kind, limit)
    assert_gradients(model, reference.clip_by_norm(before, limit))
    assert_info(info, kind, model, before, limit)
    assert norm(*gradients_of(model).values()) <= limit * (1 + 8 * 2**-24) or not info["clipped"]


@examples
@given(gradient_sets(), LIMITS, st.sampled_from([*GLOBAL, "value"]))
def test_gradient_within_the_limit_is_not_even_written(gradients, limit, kind):
    size = norm(*(exact(g) for g in gradients.values()))
    if kind == "value":
        size = max(np.abs(exact(g)).max(initial=0) for g in gradients.values())
    assume(size <= limit * (1 - 1e-5))
    model = module_of(copies(gradients))
    kept = Kept(model)
    info = clipper_with_limit(kind, limit).clip_gradients(model)
    assert info["clipped"] is False
    kept.untouched()


@examples
@given(gradient_sets(), LIMITS, st.sampled_from([*GLOBAL, "value", "agc"]))
def test_clipping_twice_is_clipping_once(gradients, limit, kind):
    model, _ = clip(copies(gradients), kind, limit)
    once = gradients_of(model)
    clipper_with_limit(kind, limit).clip_gradients(model)
    # Rounding can leave a norm above its limit, by as much as the coarsest gradient was rounded.
    tolerance = 0 if kind == "value" else norm_tolerance(model)
    for name, gradient in gradients_of(model).items():
        np.testing.assert_allclose(gradient, once[name], rtol=tolerance)


@examples
@given(gradient_sets(), LIMITS, st.sampled_from(GLOBAL))
def test_direction_is_kept(gradients, limit, kind):
    before = {name: exact(g) for name, g in gradients.items()}
    assume(norm(*before.values()) > limit)
    model, info = clip(copies(gradients), kind, limit)
    for name, gradient in gradients_of(model).items():
        np.testing.assert_allclose(gradient, before[name] * info["clip_ratio"], rtol=4 * 2**-23)
        assert (np.sign(gradient) == np.sign(before[name])).all()


@examples
@given(gradient_sets(), LIMITS, st.integers(-30, 30), st.sampled_from(KINDS))
def test_clipping_scales_with_powers_of_two_bit_for_bit(gradients, limit, exponent, kind):
    scale = 2.0**exponent
    weights = {name: g.flatten().flip(0).reshape(g.shape) / 64 for name, g in gradients.items()}
    model, _ = clip(copies(gradients), kind, limit, weights, agc_eps=0.5)
    scaled, _ = clip(
        {name: g * scale for name, g in gradients.items()},
        kind,
        limit * scale,
        {name: w * scale for name, w in weights.items()},
        agc_eps=0.5 * scale,
    )
    for p, q in zip(model.parameters(), scaled.parameters(), strict=True):
        assert bits(p.grad * scale) == bits(q.grad)


@examples
@given(gradient_sets(), st.randoms(use_true_random=False), LIMITS)
def test_order_of_parameters_does_not_matter(gradients, shuffle, limit):
    names = list(gradients)
    shuffle.shuffle(names)
    total = norm(*(exact(g) for g in gradients.values()))
    assume(abs(total / limit - 1) > 1e-5)
    model, info = clip(copies(gradients), "norm", limit)
    other, other_info = clip({name: gradients[name].clone() for name in names}, "norm", limit)
    assert_gradients(other, gradients_of(model))
    assert other_info["total_norm"] == pytest.approx(info["total_norm"], rel=FP32_NORM_TOLERANCE)


@examples
@given(gradient_sets((torch.float16, torch.bfloat16, torch.float32)), st.sampled_from([NAN, INF, -INF]), st.data())
def test_bad_element_anywhere_leaves_every_bit(gradients, bad, data):
    kind = data.draw(st.sampled_from(KINDS))
    filled = [name for name, g in gradients.items() if g.numel()]
    assume(filled)
    target = gradients[data.draw(st.sampled_from(filled))]
    target.view(-1)[data.draw(st.integers(0, target.numel() - 1))] = bad
    model = module_of(gradients)
    kept = Kept(model)
    info = clipper_with_limit(kind, 1e-3).clip_gradients(model)
    assert info["clipped"] is False
    assert not math.isfinite(info["total_norm"])
    kept.untouched()


@examples
@given(gradient_sets((torch.float16, torch.bfloat16, torch.float32, torch.float64)), st.floats(2**-6, 4096))
def test_clamped_elements_are_the_limit_and_others_keep_their_bits(gradients, limit):
    model, _ = clip(copies(gradients), "value", limit)
    for name, parameter in model.named_parameters():
        before, after = exact(gradients[name]), exact(parameter.grad)
        inside = np.abs(before) <= limit * (1 - torch.finfo(parameter.dtype).eps)
        assert (after[inside] == before[inside]).all()
        assert (np.sign(after) == np.sign(before)).all()
        assert (np.abs(after) <= np.abs(before)).all()
        assert (np.abs(after) <= limit + ulp(np.array(limit), parameter.dtype) / 2).all()


@examples
@given(gradient_sets(), st.floats(2**-10, 4), st.sampled_from([1e-3, 1.0, 100.0]))
def test_agc_is_the_reference(gradients, factor, eps):
    weights = {name: g.flatten().flip(0).reshape(g.shape) / 8 for name, g in gradients.items()}
    before = {name: exact(g) for name, g in gradients.items()}
    exact_weights = {name: exact(w) for name, w in weights.items()}
    expected = reference.clip_adaptively_by_unit(before, exact_weights, factor, eps)
    model, _ = agc(copies(gradients), weights, agc_clip_factor=factor, agc_eps=eps)
    assert_gradients(model, expected)


# The manager


def managed(config, gradients):
    model = module_of(gradients)
    manager = GradientManager(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, lambda: manager.step(model, optimizer, torch.tensor(1.0), backward=False)["clipping"]


@pytest.mark.parametrize("kind", KINDS)
def test_manager_that_observes_leaves_a_bad_gradient_and_all_others(kind):
    model, step = managed(GradientConfig(clip_type=kind, nonfinite="observe", max_grad_norm=0.1), _with_bad(NAN))
    kept = Kept(model)
    assert step()["clipped"] is False
    kept.untouched()


def test_manager_that_replaces_clips_what_it_put_in():
    config = GradientConfig(clip_type="norm", nonfinite="replace", max_grad_norm=0.5)
    model, step = managed(config, {"a": torch.tensor([3.0, NAN]), "b": torch.tensor([4.0])})
    info = step()
    assert info["total_norm"] == 5
    np.testing.assert_allclose(exact(model.a.grad), [0.3, 0], rtol=4 * 2**-23)
    np.testing.assert_allclose(exact(model.b.grad), [0.4], rtol=4 * 2**-23)


@pytest.mark.parametrize("kind", KINDS)
def test_manager_clips_as_the_clipper_alone(kind):
    gradients = {"a": randn(4, 3, scale=9.0), "b": randn(5, seed=1)}
    config = GradientConfig(clip_type=kind, max_grad_norm=0.5, adaptive_window_size=1)
    model, step = managed(config, copies(gradients))
    alone, clipper = module_of(copies(gradients)), GradientClipper(copy.deepcopy(config))
    for _ in range(2):
        info = step()
        assert info.items() >= clipper.clip_gradients(alone).items()
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            assert bits(p.grad) == bits(q.grad)
            p.grad, q.grad = p.grad * 3, q.grad * 3
    assert info["clipped"] is True
