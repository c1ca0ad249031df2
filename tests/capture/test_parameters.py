import numpy as np
import pytest
import torch
from torch import nn

import gradient_flow as gf


def trained(model: nn.Module, features: int = 4) -> nn.Module:
    model(torch.randn(3, features)).sum().backward()
    return model


def test_a_module_is_measured_by_parameter_name():
    model = trained(nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1)))
    table = gf.measure(model)
    assert table.names == ("0.weight", "0.bias", "1.weight", "1.bias")
    for name, parameter in model.named_parameters():
        assert table[name].norm == pytest.approx(parameter.grad.double().norm().item(), rel=1e-12)


def test_frozen_and_unused_parameters_are_missing_and_not_zero():
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    model[0].bias.requires_grad_(False)
    model.unused = nn.Parameter(torch.ones(3))
    trained(model)
    table = gf.measure(model)
    assert set(table.missing) == {"0.bias", "unused"}
    assert "unused" not in table
    assert table.total.zero_fraction == 0
    with pytest.raises(KeyError, match="had no gradient"):
        table["unused"]


def test_tied_parameters_count_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    trained(model)
    table = gf.measure(model)
    assert len(table) == 1
    assert table.total.norm == pytest.approx(model[0].weight.grad.double().norm().item(), rel=1e-12)


def test_a_compiled_model_has_the_names_of_the_plain_one():
    plain = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 1))
    compiled = torch.compile(plain, backend="eager")
    trained(compiled)
    assert gf.measure(compiled) == gf.measure(plain)


def test_an_optimizer_is_measured_by_group_and_position():
    model = trained(nn.Linear(4, 2))
    optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.1)
    assert gf.measure(optimizer).names == ("0.0", "1.0")
    assert gf.measure(optimizer).total.norm == gf.measure(model).total.norm


def test_an_optimizer_that_knows_names_keeps_them():
    model = trained(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    assert gf.measure(optimizer) == gf.measure(model)


def test_a_parameter_stands_for_its_gradient_everywhere():
    model = trained(nn.Linear(4, 2))
    expected = gf.measure(model).total.norm
    for source in (model.parameters(), list(model.parameters()), dict(model.named_parameters())):
        assert gf.measure(source).total.norm == expected
    assert gf.measure(model.named_parameters()) == gf.measure(model)


def test_none_in_a_mapping_is_missing():
    table = gf.measure({"a": np.ones(2), "b": None})
    assert table.names == ("a",)
    assert table.missing == ("b",)


@pytest.mark.parametrize("source", [[], {}, (), nn.ReLU(), (t for t in ())])
def test_no_gradients_at_all_give_an_empty_table(source):
    table = gf.measure(source)
    assert len(table) == 0
    assert table.total.norm == 0
    assert table.total.count == 0
    assert table.norms("l1").shape == (0,)
    assert "0 gradients" in repr(table)


def test_numbers_and_nested_lists_are_arrays():
    assert gf.measure([3.0, 4]).total.norm == 5
    assert gf.measure([[3.0, 4.0], [0.0, 12.0]]).total.norm == 13
    assert gf.measure({"w": [3, 4]})["w"].norm == 5


def test_torch_and_numpy_mix():
    table = gf.measure({"a": torch.tensor([3.0]), "b": np.array([4.0])})
    assert table.total.norm == 5


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("gradients", "source"),
        (3.5, "source"),
        (None, "source"),
        ([np.ones(2), None], r"source\[1\]"),
        ({"w": "text"}, "`w`"),
        ([np.ones(2), "text"], "`1`"),
        ({"w": np.array(["a"])}, "`w`"),
        ({"w": np.array([object()])}, "`w`"),
        ({"w": np.array([True])}, "`w`"),
        ({"w": np.ma.masked_array([1.0, 2.0], [0, 1])}, "`w` is a masked array"),
        ({"w": torch.tensor([True])}, "`w`"),
        ([np.ones(1), [[1.0], [1.0, 2.0]]], "`1`"),
        ({"w": {"nested": 1}}, "`w`"),
        ({"w": torch.ones(2, device="meta")}, "`w`"),
    ],
)
def test_bad_input_names_the_element_and_what_came(source, named):
    with pytest.raises(gf.InputError, match=named):
        gf.measure(source)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1", None, True])
def test_thresholds_must_be_finite_numbers(bad):
    with pytest.raises(gf.InputError, match="`near_zero`"):
        gf.measure([], near_zero=bad)
