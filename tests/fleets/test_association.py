"""Settings that go with sickness: exact probabilities, an honest correction, planted settings found, chance not."""

from math import comb, isclose

import numpy as np
import pytest

from gradient_flow.fleets.association import SICK, Association, associations, fisher, holm


def exact(hits, drawn, good, total):
    """Fisher's test by counting, in whole numbers."""
    ways = {
        k: comb(good, k) * comb(total - good, drawn - k)
        for k in range(max(0, drawn + good - total), min(drawn, good) + 1)
    }
    return sum(way for way in ways.values() if way <= ways[hits]) / comb(total, drawn)


@pytest.mark.parametrize("case", [(3, 5, 4, 12), (0, 5, 5, 40), (37, 37, 39, 500), (2, 9, 9, 18), (8, 10, 20, 90)])
def test_the_probability_is_that_of_counting(case):
    assert isclose(fisher(*case), exact(*case), rel_tol=1e-9)


def test_the_probability_does_not_depend_on_which_side_is_told():
    assert isclose(fisher(7, 10, 12, 50), fisher(5, 40, 12, 50), rel_tol=1e-9)


def test_holm_is_never_below_the_probability_nor_above_bonferroni():
    p = np.random.default_rng(0).uniform(size=200).tolist()
    for one, corrected in zip(p, holm(p), strict=True):
        assert one <= corrected <= min(1.0, 200 * one)
    ordered = [corrected for _, corrected in sorted(zip(p, holm(p), strict=True))]
    assert ordered == sorted(ordered)
    assert holm([]) == []


def settings(count, seed=0, **of_run):
    random = np.random.default_rng(seed)
    drawn = [
        {
            "lr": repr(10 ** -random.uniform(1, 5)),
            "depth": str(random.integers(2, 9)),
            "name": random.choice(["a", "b"]),
        }
        for _ in range(count)
    ]
    return [each | {name: str(value(each)) for name, value in of_run.items()} for each in drawn]


def test_a_planted_threshold_is_found_with_its_counts_and_its_place():
    runs = settings(400)
    sick = [float(run["lr"]) > 0.03 for run in runs]
    causes = ["rate_too_high" if bad else None for bad in sick]
    found = associations(runs, causes, ["block.0" if bad else None for bad in sick])
    first = found[0]
    assert first.name == "lr"
    assert first.relation == ">"
    assert first.cause == "rate_too_high"
    assert first.significant
    assert first.sick_without + first.sick_with == sum(sick)
    assert first.runs_with == sum(float(run["lr"]) > first.value for run in runs)
    assert first.layer == "block.0"
    assert first.in_layer == first.sick_with
    assert 0.01 < first.value < 0.1
    assert [each.name for each in found if each.significant] == ["lr"]


def test_few_values_are_split_between_them_and_told_from_the_sick_side():
    runs = [{"lr": text} for text in ["0.001", "0.003", "0.01", "0.03"] for _ in range(10)]
    causes = ["slow" if float(run["lr"]) < 0.002 else None for run in runs]
    (found,) = [each for each in associations(runs, causes, [None] * 40) if each.significant]
    assert found.setting == "lr ≤ 0.001"
    assert (found.sick_with, found.runs_with, found.sick_without, found.runs_without) == (10, 10, 0, 30)
    assert found.odds_ratio is None
    assert 1 < found.odds_low < found.odds_high
    assert found.sentence == "all 10 with lr ≤ 0.001, none of 30 without"
    assert isclose(found.p, 1 / comb(40, 10), rel_tol=1e-9)
    assert isclose(found.p_adjusted, found.p * found.comparisons, rel_tol=1e-9)


def test_settings_that_the_runs_cannot_tell_apart_are_one_comparison():
    runs = [{"optimizer": "SGD" if at % 2 else "Adam", "momentum": "0.9" if at % 2 else "0.0"} for at in range(40)]
    causes = ["exploding" if at % 2 and at < 30 else None for at in range(40)]
    (found,) = associations(runs, causes, [None] * 40)
    assert found.comparisons == 1
    assert [found.name, *found.also] == ["momentum", "optimizer"]


def test_chance_is_seldom_told():
    """Family-wise: of fleets whose sickness has nothing to do with any setting, at most 5 % tell one."""
    told = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        runs = [{f"s{k}": str(random.integers(0, 6)) for k in range(8)} for _ in range(60)]
        causes = [random.choice(["a", "b"]) if random.uniform() < 0.3 else None for _ in runs]
        told += any(each.significant for each in associations(runs, causes, [None] * 60))
    assert told <= 10 + 5  # 5 % of 200, and twice its standard deviation


def test_small_numbers_tell_nothing():
    runs = [{"lr": "1.0" if at < 2 else "0.1"} for at in range(30)]
    assert associations(runs, ["nan" if at < 2 else None for at in range(30)], [None] * 30) == []
    assert associations([], [], []) == []
    assert associations([{"lr": "1"}] * 9, ["nan"] * 4 + [None] * 5, [None] * 9) == []


def test_runs_without_a_setting_do_not_count_for_it():
    runs = [{"dropout": "0.5" if at < 20 else "0.1"} if at < 40 else {} for at in range(90)]
    causes = ["dead" if at < 18 else None for at in range(90)]
    (found,) = associations(runs, causes, [None] * 90)
    assert (found.sick_with, found.runs_with, found.sick_without, found.runs_without) == (18, 20, 0, 20)


def test_names_such_as_commits_are_not_compared():
    runs = [{"commit": f"{at:040x}", "command": "train.py"} for at in range(60)]
    assert associations(runs, ["nan" if at % 2 else None for at in range(60)], [None] * 60) == []


def test_any_cause_is_not_told_where_one_cause_says_it():
    runs = [{"lr": "1.0" if at < 20 else "0.1", "data": "ab"[at % 2]} for at in range(80)]
    causes = ["rate" if at < 20 else "other" if at % 10 == 0 else None for at in range(80)]
    found = [each for each in associations(runs, causes, [None] * 80) if each.significant]
    assert [(each.cause, each.setting) for each in found] == [("rate", "lr > 0.1")]


def test_any_cause_is_told_where_no_single_cause_says_the_same():
    runs = [{"lr": "1.0" if at < 20 else "0.1"} for at in range(60)]
    causes = [("a" if at % 2 else "b") if at < 20 else None for at in range(60)]
    found = associations(runs, causes, [None] * 60)
    assert {each.cause for each in found} == {SICK, "a", "b"}
    whole = next(each for each in found if each.cause == SICK)
    assert (whole.sick_with, whole.runs_with) == (20, 20)
    assert isinstance(whole, Association)
