"""The study of poisoned samples runs, and finds them."""

from validation import find_batch


def test_a_few_trials(capsys):
    trials = find_batch.main(["--trials", "16"])
    assert sum(trial.right for trial in trials) >= 15
    assert all(trial.untouched for trial in trials)
    assert "| **all** | 16 |" in capsys.readouterr().out
