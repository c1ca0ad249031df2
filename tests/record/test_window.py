import json
import math

import numpy as np
import pytest

from gradient_flow.record.window import History


def filled(steps, length=10_000):
    history = History(length)
    for step in range(1, steps + 1):
        history.append({"step": step, "norm": 1.0 / step})
    return history


def test_only_the_last_steps_are_kept():
    history = filled(25, length=10)
    assert len(history) == 10
    assert history["step"].tolist() == list(range(16, 26))


def test_arrays_of_all_names_are_parallel():
    history = filled(5)
    history.append({"step": 6, "norm": 0.1, "loss": 2.0})
    assert history.names == ["step", "norm", "loss"]
    assert {len(history[name]) for name in history.names} == {len(history)} == {6}
    assert all(history[name].dtype == np.float64 for name in history.names)


def test_what_a_step_did_not_have_is_nan():
    history = filled(3)
    history.append({"step": 4, "loss": 2.0})
    assert np.isnan(history["loss"]).tolist() == [True, True, True, False]
    assert np.isnan(history["norm"]).tolist() == [False, False, False, True]


def test_an_unknown_name_is_answered_with_those_that_exist():
    with pytest.raises(KeyError, match=r"no 'nrom' in the history: it has step, norm"):
        filled(3)["nrom"]


def test_a_name_that_left_the_window_is_unknown_again():
    history = History(2)
    history.append({"step": 1, "loss": 1.0})
    for step in (2, 3):
        history.append({"step": step})
    with pytest.raises(KeyError, match="loss"):
        history["loss"]


def test_before_the_first_step_every_array_is_empty():
    assert len(History()) == 0
    assert History()["norm"].shape == (0,)


def test_nonfinite_values_stay_in_the_array_and_out_of_finite():
    history = History()
    for value in (1.0, math.nan, 2.0, math.inf, -math.inf):
        history.append({"norm": value})
    assert len(history["norm"]) == 5
    assert history.finite("norm") == [1.0, 2.0]


def test_what_was_appended_does_not_change_with_its_source():
    history, values = History(), {"norm": 1.0}
    history.append(values)
    values["norm"] = 9.0
    assert history["norm"].tolist() == [1.0]


def test_state_goes_through_a_checkpoint_and_on():
    saved = filled(25, length=10)
    restored = History(10)
    restored.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    for history in (saved, restored):
        history.append({"step": 26, "norm": 7.0})
    assert len(restored) == 10
    assert all(np.array_equal(restored[name], saved[name]) for name in ("step", "norm"))


def test_a_restored_history_keeps_its_own_length():
    restored = History(3)
    restored.load_state_dict(filled(25, length=10).state_dict())
    assert restored["step"].tolist() == [23, 24, 25]


def test_a_restored_history_does_not_share_its_records():
    saved = filled(3)
    state = saved.state_dict()
    saved.append({"step": 4, "norm": 0.0})
    restored = History()
    restored.load_state_dict(state)
    restored.append({"step": 5, "norm": 0.0})
    assert saved["step"].tolist() == [1, 2, 3, 4]
    assert restored["step"].tolist() == [1, 2, 3, 5]
