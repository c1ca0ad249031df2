import json

import numpy as np
import pytest
import torch

import gradient_flow as gf
from gradient_flow.table.columns import COLUMNS


@pytest.fixture
def table():
    return gf.measure({"enc.w": np.array([3.0, 4.0]), "enc.b": np.array([0.0]), "dec.w": np.array([-12.0])})


def test_statistics_are_arrays_in_row_order(table):
    assert table.norm.tolist() == [5, 0, 12]
    assert table.max.tolist() == [4, 0, -12]
    assert table.count.tolist() == [2, 1, 1]
    assert table.sum_sq.tolist() == [25, 0, 144]
    assert table.zeros.tolist() == [0, 1, 0]
    for column in COLUMNS:
        assert table.column(column).shape == (3,)


def test_four_kinds_of_norm(table):
    assert table.norms().tolist() == table.norms("l2").tolist() == [5, 0, 12]
    assert table.norms("l1").tolist() == [7, 0, 12]
    assert table.norms("linf").tolist() == [4, 0, 12]
    assert table.norms("mean").tolist() == [3.5, 0, 12]
    with pytest.raises(gf.InputError, match=r"`kind` must be one of l2, l1, linf, mean; got 'l3'"):
        table.norms("l3")


def test_it_is_a_mapping(table):
    assert list(table) == ["enc.w", "enc.b", "dec.w"]
    assert len(table) == 3
    assert "enc.w" in table
    assert "enc" not in table
    assert table["dec.w"].mean == -12
    assert table[0] == table["enc.w"]
    assert {name: stats.norm for name, stats in table.items()}["enc.w"] == 5
    with pytest.raises(KeyError, match=r"no gradient named 'x'.*'enc.w'"):
        table["x"]


@pytest.mark.parametrize(
    "groups",
    [
        lambda name: name.split(".")[0],
        {"enc": "enc.*", "dec": "dec.*"},
        {"enc": ["enc.w", "*.b"], "dec": "dec.w"},
        {"enc.w": "enc", "enc.b": "enc", "dec.w": "dec"},
    ],
)
def test_groups_by_function_pattern_or_name(table, groups):
    grouped = table.group(groups)
    assert grouped.names == ("enc", "dec")
    assert grouped["enc"].norm == 5
    assert grouped["enc"].count == 3
    assert grouped.total == table.total


def test_what_matches_no_group_keeps_its_name_or_is_left_out(table):
    assert table.group({"enc": "enc.*"}).names == ("enc", "dec.w")
    assert table.group({"enc": "enc.*"}, rest=False).names == ("enc",)


def test_a_group_is_missing_only_if_all_its_members_are():
    table = gf.measure({"a.1": None, "a.2": np.ones(1), "b.1": None})
    grouped = table.group(lambda name: name[0])
    assert grouped.names == ("a",)
    assert grouped.missing == ("b",)


@pytest.mark.parametrize("bad", [3, "enc.*", {"enc": 3}, {"enc": [3]}])
def test_bad_groups_are_refused(table, bad):
    with pytest.raises((gf.InputError, TypeError)):
        table.group(bad)


def test_merge_joins_rows_of_one_name_and_appends_the_rest(table):
    other = gf.measure({"enc.w": np.array([12.0]), "new": np.array([1.0]), "gone": None})
    merged = table.merge(other)
    assert merged.names == ("enc.w", "enc.b", "dec.w", "new")
    assert merged["enc.w"].norm == 13
    assert merged["enc.w"].count == 3
    assert merged.missing == ("gone",)


def test_merge_refuses_what_does_not_add_up(table):
    with pytest.raises(gf.InputError, match="thresholds"):
        table.merge(gf.measure({}, near_zero=1e-3))
    with pytest.raises(gf.InputError, match="got dict"):
        table.merge({})


def test_finite_part_leaves_the_non_finite_elements_out():
    stats = gf.measure({"w": np.array([3.0, np.nan, 4.0, np.inf])})["w"]
    assert np.isnan(stats.norm)
    assert stats.nan_count == 1
    assert stats.inf_count == 1
    assert not stats.finite
    part = stats.finite_part
    assert (part.norm, part.count, part.min, part.max, part.finite) == (5, 2, 3, 4, True)


def test_thresholds_can_be_set():
    stats = gf.measure(np.array([0.0, 0.5, 2.0, 20.0]), near_zero=1, very_large=10)["0"]
    assert stats.near_zero_percent == 50
    assert stats.very_large_percent == 25
    assert stats.zero_fraction == 0.25


def test_to_dict_holds_plain_numbers(table):
    data = json.loads(json.dumps(table.to_dict()))
    assert data["total"]["norm"] == 13
    assert data["gradients"]["enc.w"]["count"] == 2
    assert data["missing"] == []


def test_to_pandas(table):
    frame = table.to_pandas()
    assert frame.loc["enc.w", "norm"] == 5
    assert list(frame.columns)[:3] == ["norm", "l1", "linf"]


def test_repr_fits_a_terminal_and_names_what_is_not_finite():
    gradients = {f"model.encoder.layers.{i}.attention.output.dense.weight": np.ones(10**5) for i in range(100)}
    gradients["bad"] = np.array([np.nan])
    text = repr(gf.measure(gradients))
    lines = text.splitlines()
    assert max(map(len, lines[:-2])) <= 80
    assert "1 NaN, 0 Inf" in text
    assert "… 77 more" in text
    assert len(lines) < 30


def test_html_escapes_names():
    html = gf.measure({"<img src=x onerror=alert(1)>": np.ones(1)})._repr_html_()
    assert "<img" not in html
    assert "&lt;img" in html


def test_equality_is_by_value(table):
    same = gf.measure({"enc.w": np.array([3.0, 4.0]), "enc.b": np.array([0.0]), "dec.w": np.array([-12.0])})
    assert table == same
    assert table != table.group(lambda name: "all")
    assert table["enc.w"] != table["enc.b"]


def test_the_graph_is_not_kept_alive():
    import gc
    import weakref

    weight = torch.ones(3, requires_grad=True)
    gradient = (weight * 2).exp()  # has a graph
    alive = weakref.ref(gradient)
    table = gf.measure({"g": gradient})
    del gradient
    gc.collect()
    assert alive() is None
    assert table["g"].count == 3


def test_measuring_works_in_every_grad_mode(kernel):
    gradient = torch.tensor([3.0, 4.0])
    with torch.no_grad():
        assert gf.measure(gradient).total.norm == 5
    with torch.inference_mode():
        assert gf.measure(gradient * 1).total.norm == 5


def test_a_finite_huge_gradient_has_a_finite_norm(kernel):
    gradient = torch.full((1000,), 1e30)
    exact = 1000**0.5 * float(torch.tensor(1e30))
    assert gf.measure(gradient).total.norm == pytest.approx(exact, rel=1e-12)
