from collections import OrderedDict, namedtuple
from types import MappingProxyType

import numpy as np
import pytest
import torch

import gradient_flow as gf

Pair = namedtuple("Pair", "first second")


def as_numpy(values, dtype="float32"):
    return np.asarray(values, dtype=dtype)


def as_torch(values, dtype="float32"):
    return torch.tensor(values, dtype=getattr(torch, dtype))


BACKENDS = pytest.mark.parametrize("make", [as_numpy, as_torch])


@BACKENDS
def test_the_global_norm_is_the_norm_of_norms(make):
    assert gf.compute_gradient_norm([make([3.0]), make([[4.0]])]) == 5
    assert gf.compute_gradient_norm({"a": make([3.0]), "b": make([4.0])}) == 5
    assert gf.compute_gradient_norm(make([3.0, 4.0])) == 5
    assert isinstance(gf.compute_gradient_norm(make([3.0])), float)


@BACKENDS
def test_norms_per_parameter_have_the_shape_of_the_input(make):
    assert gf.compute_gradient_norm([make([3.0]), make([4.0])], per_parameter=True) == [3, 4]
    assert gf.compute_gradient_norm({"a": make([3.0]), "b": make([4.0])}, per_parameter=True) == {"a": 3, "b": 4}
    assert gf.compute_gradient_norm(make([3.0, 4.0]), per_parameter=True) == 5


def test_a_module_gives_norms_by_name():
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    norms = gf.compute_gradient_norm(model, per_parameter=True)
    assert norms == {"weight": pytest.approx(2**0.5), "bias": 1}


@BACKENDS
def test_statistics_against_numpy_in_double(make):
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    values[:10] = 0
    values[10] = 2000
    stats = gf.compute_gradient_stats(make(values.tolist()))
    exact = values.astype(np.float64)
    assert stats["norm"] == pytest.approx(np.linalg.norm(exact), rel=1e-12)
    assert stats["mean"] == pytest.approx(exact.mean(), rel=1e-12)
    assert stats["std"] == pytest.approx(exact.std(), rel=1e-12)
    assert (stats["min"], stats["max"]) == (exact.min(), exact.max())
    assert stats["near_zero_pct"] == 1.0
    assert stats["very_large_pct"] == 0.1
    assert (stats["nan_count"], stats["inf_count"], stats["count"]) == (0, 0, 1000)


def test_statistics_of_a_mapping_are_global_and_thresholds_can_be_set():
    stats = gf.compute_gradient_stats({"a": np.array([1.0]), "b": np.array([3.0])}, near_zero=2, very_large=2)
    assert stats["mean"] == 2
    assert stats["near_zero_pct"] == stats["very_large_pct"] == 50


def test_nan_is_counted_and_never_a_silent_number():
    stats = gf.compute_gradient_stats(np.array([1.0, np.nan, np.inf]))
    assert (stats["nan_count"], stats["inf_count"]) == (1, 1)
    assert not np.isfinite([stats["norm"], stats["mean"], stats["std"], stats["min"], stats["max"]]).any()


@pytest.mark.parametrize(
    "history",
    [
        [1.0, 0.1, 0.01, 0.001],
        np.array([1.0, 0.1, 0.01, 0.001]),
        torch.tensor([1.0, 0.1, 0.01, 0.001]),
        [torch.tensor(x) for x in (1.0, 0.1, 0.01, 0.001)],
        [np.full(4, x) for x in (1.0, 0.1, 0.01, 0.001)],
        [torch.full((4,), x) for x in (1.0, 0.1, 0.01, 0.001)],
        [{"w": np.full(4, x), "b": np.full(1, x)} for x in (1.0, 0.1, 0.01, 0.001)],
        {"l0": np.full(4, 1.0), "l1": np.full(4, 0.1), "l2": np.full(4, 0.01), "l3": np.full(4, 0.001)},
    ],
    ids=["norms", "array", "tensor", "scalars", "arrays", "tensors", "mappings", "layers"],
)
def test_every_form_of_history_is_understood(history):
    found = gf.detect_gradient_issues(history)
    assert found["status"] == "vanishing"
    assert found["indices"] == [1, 2, 3]
    assert found["trend"] == pytest.approx(-1)
    assert len(found["norms"]) == 4
    assert "falls" in found["message"]


def test_a_gradient_with_nan_in_the_history_is_nan():
    assert gf.detect_gradient_issues([np.ones(2), np.array([np.nan, 1])])["status"] == "nan"
    assert gf.detect_gradient_issues([1.0, float("inf")])["status"] == "nan"


@pytest.mark.parametrize("bad", ["norms", 3.0, None, [1.0, -1.0], [1.0, "x"], [1.0, None], np.float64(3)])
def test_a_bad_history_is_refused_by_name(bad):
    with pytest.raises(gf.InputError, match="gradient_history"):
        gf.detect_gradient_issues(bad)


@BACKENDS
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_clipping_scales_to_the_limit_and_keeps_type_and_direction(make, dtype):
    gradients = [make([3.0, 0.0], dtype), make([[4.0]], dtype)]
    clipped, norm = gf.clip_gradients(gradients, max_norm=1.0)
    assert norm == 5
    assert gf.compute_gradient_norm(clipped) == pytest.approx(1, rel=1e-3 if dtype == "float16" else 1e-7)
    for before, after in zip(gradients, clipped, strict=True):
        assert type(after) is type(before)
        assert after.dtype == before.dtype
        assert after.shape == before.shape
    assert float(clipped[0][0]) == pytest.approx(0.6, rel=1e-3)
    assert float(gradients[0][0]) == 3  # the input is left alone


@BACKENDS
def test_below_the_limit_clipping_is_the_identity_on_a_copy(make):
    gradients = [make([0.1, 0.2])]
    clipped, norm = gf.clip_gradients(gradients, 1.0)
    assert clipped[0].tolist() == gradients[0].tolist()
    clipped[0][0] = 9
    assert float(gradients[0][0]) != 9
    assert norm < 1


@BACKENDS
def test_clipping_twice_changes_nothing(make):
    once, _ = gf.clip_gradients([make(np.linspace(-5, 7, 1000).tolist())], 1.0)
    twice, _ = gf.clip_gradients(once, 1.0)
    np.testing.assert_allclose(np.asarray(once[0]), np.asarray(twice[0]), rtol=1e-6)


def test_containers_are_kept():
    one = np.array([3.0])
    assert isinstance(gf.clip_gradients((one, one), 1.0)[0], tuple)
    assert isinstance(gf.clip_gradients(Pair(one, one), 1.0)[0], Pair)
    assert list(gf.clip_gradients(OrderedDict(b=one, a=one), 1.0)[0]) == ["b", "a"]
    assert isinstance(gf.clip_gradients(OrderedDict(b=one), 1.0)[0], OrderedDict)
    assert isinstance(gf.clip_gradients(MappingProxyType({"a": one}), 1.0)[0], MappingProxyType)
    assert isinstance(gf.clip_gradients((g for g in [one]), 1.0)[0], list)
    assert gf.clip_gradients({"a": one, "b": None}, 1.0)[0]["b"] is None
    assert gf.clip_gradients(one, 1.0)[0].tolist() == [1.0]


@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "complex"])
def test_sparse_and_complex_gradients_clip(layout):
    dense = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    gradient = {"sparse_coo": dense.to_sparse(), "sparse_csr": dense.to_sparse_csr(), "complex": dense * 1j}[layout]
    clipped, norm = gf.clip_gradients([gradient], 1.0)
    assert norm == 5
    assert clipped[0].layout == gradient.layout
    assert gf.compute_gradient_norm(clipped) == pytest.approx(1)


def test_a_huge_finite_gradient_clips_to_its_direction():
    clipped, norm = gf.clip_gradients([torch.tensor([3e30, 4e30])], 1.0)
    assert norm == pytest.approx(5e30)
    assert clipped[0].tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@BACKENDS
def test_a_non_finite_norm_is_an_error_that_names_the_gradient(make, bad):
    gradients = {"fine": make([1.0]), "layer.weight": make([bad, 2.0])}
    with pytest.raises(gf.NonFiniteGradientError, match=r"`layer\.weight` holds"):
        gf.clip_gradients(gradients, 1.0)


@BACKENDS
def test_a_non_finite_norm_on_request(make):
    gradients = [make([1.0, float("nan")])]
    zeros, norm = gf.clip_gradients(gradients, 1.0, nonfinite="zero")
    assert zeros[0].tolist() == [0, 0]
    assert np.isnan(norm)
    kept, _ = gf.clip_gradients(gradients, 1.0, nonfinite="propagate")
    assert float(kept[0][0]) == 1
    assert np.isnan(float(kept[0][1]))


@pytest.mark.parametrize("bad", [-1, float("nan"), "1"])
def test_a_bad_limit_is_refused_by_name(bad):
    with pytest.raises(gf.InputError, match="max_norm"):
        gf.clip_gradients([np.ones(1)], bad)


def test_a_bad_policy_is_refused_with_the_choices():
    with pytest.raises(gf.InputError, match="raise, zero, propagate; got 'ignore'"):
        gf.clip_gradients([np.ones(1)], 1.0, nonfinite="ignore")


def test_parameters_stand_for_their_gradients_when_clipped():
    model = torch.nn.Linear(4, 4)
    (100 * model(torch.ones(1, 4)).sum()).backward()
    expected = model.weight.grad / gf.compute_gradient_norm(model)
    for given in (list(model.parameters()), dict(model.named_parameters()), model.named_parameters()):
        clipped, norm = gf.clip_gradients(given, 1.0)
        weight = clipped["weight"] if isinstance(clipped, dict) else clipped[0]
        torch.testing.assert_close(weight, expected)
        assert norm == gf.compute_gradient_norm(model)


def test_norms_per_parameter_keep_keys_and_gaps():
    assert gf.compute_gradient_norm({0: np.array([3.0]), "b": None}, per_parameter=True) == {0: 3.0, "b": None}


def test_a_module_cannot_be_clipped_into_a_copy():
    with pytest.raises(gf.InputError, match="got Linear"):
        gf.clip_gradients(torch.nn.Linear(1, 1), 1.0)
