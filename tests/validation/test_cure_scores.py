"""The score of cures: what counts as help and as harm, which cases count, and that a small run works."""

import math

import pytest
from click.testing import CliRunner
from validation.cure import Result, main, markdown, sample, scores, usable
from validation.zoo import CASES


def result(**more) -> Result:
    fields = {"case": "mlp/x", "half": "tune", "family": "mlp", "fault": "DEAD", "sick": True, "repairable": True}
    return Result(**{**fields, "untreated": [1.0, 1.1, 1.2], "repaired": 0.1, **more})


@pytest.mark.parametrize(
    ("loss", "better", "worse"),
    [(0.5, True, False), (0.99, False, False), (1.21, False, False), (1.3, False, True), (math.inf, False, True)],
)
def test_help_and_harm_lie_beyond_every_repeat(loss, better, worse):
    assert (result().better(loss), result().worse(loss)) == (better, worse)


def test_doing_nothing_neither_helps_nor_harms():
    assert not result().better(None)
    assert not result().worse(None)


def test_beside_what_diverged_a_finite_loss_helps_and_no_loss_harms():
    lost = result(untreated=[math.inf] * 3)
    assert lost.better(7.0)
    assert not lost.worse(math.inf)


def test_scores_count_repairable_sick_cases_and_claims_on_healthy_ones():
    found = scores(
        [
            result(best="a", best_loss=0.5, textbook_loss=1.1, drawn_losses=[0.5, 1.1]),
            result(best="a", best_loss=2.0, drawn_losses=[1.1, 1.1]),
            result(repairable=False, best="a", best_loss=0.1),
            result(sick=False, best=None),
            result(sick=False, best="a"),
        ]
    )
    told = {name: (share.hits, share.total) for name, share in found.items()}
    assert told == {"best": (1, 2), "textbook": (0, 2), "random": (1, 4), "harm": (1, 2), "claims": (1, 2)}
    both = [result(best="a", best_loss=0.5), result(best="b", best_loss=2.0)]
    assert "| best of `cure` | 50.0 % (1/2) | 50.0 % (1/2) |" in markdown(both, "how")


def test_a_sample_is_the_same_each_time_and_holds_both_kinds():
    one, other = (sample("holdout", 4, 3, 0) for _ in range(2))
    assert [case.name for case in one] == [case.name for case in other]
    assert sum(case.sick for case in one) == 4
    assert all(usable(case) and case.half == "holdout" for case in one)
    assert not usable(next(case for case in CASES.values() if case.family == "loop"))


def test_a_small_run_prints_progress_and_the_table(tmp_path):
    found = CliRunner().invoke(main, ["--small", "--output", str(tmp_path / "table.md")])
    assert found.exit_code == 0, found.output
    assert "3/3 " in found.output
    assert "| best of `cure` |" in (tmp_path / "table.md").read_text()
