import pytest

import gradient_flow as gf
from gradient_flow.act.clip_factors import check_limit, clip_factor_by_norm


@pytest.mark.parametrize(
    ("norm", "limit", "factor"), [(4, 1, 0.25), (1, 1, 1), (0.5, 1, 1), (2e-6, 1e-6, 0.5), (3, 0, 0)]
)
def test_the_factor_is_exactly_limit_over_norm(norm, limit, factor):
    assert clip_factor_by_norm(norm, limit) == factor


@pytest.mark.parametrize("bad", [-1.0, float("nan"), "1", None, True, [1, 2]])
def test_a_limit_is_a_number_of_at_least_zero(bad):
    with pytest.raises(gf.InputError, match=r"`max_norm` must be a number of at least 0.*float\('inf'\)"):
        check_limit(bad)
