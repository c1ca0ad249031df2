"""The guard's decisions from numbers alone."""

import pytest

from gradient_flow import GradientConfig
from gradient_flow.act.guard import Guard, event_of


def run(config, pattern):
    """Actions for a string of steps: x is bad, . is good."""
    guard, actions = Guard(config), []
    for step, kind in enumerate(pattern):
        if kind == ".":
            guard.good_step()
            actions.append(".")
            continue
        action = guard.decide()
        guard.bad_step(event_of(step, action, ("a",), (1,), (0,), None))
        actions.append(action[0])
    return "".join(actions)


@pytest.mark.parametrize(
    ("settings", "pattern", "actions"),
    [
        ({"nonfinite": "skip", "max_consecutive_skips": 2}, "xx.xxxx", "ss.ssrr"),
        ({"nonfinite": "skip", "max_consecutive_skips": 9, "max_total_skips": 3}, "x.x.x.x.x", "s.s.s.r.r"),
        ({"nonfinite": "skip", "max_consecutive_skips": 0}, "x", "r"),
        ({"nonfinite": "replace", "max_consecutive_skips": 1}, "xxx", "rrr"),
        ({"nonfinite": "zero", "max_total_skips": 0}, "xxx", "zzz"),
        ({"nonfinite": "observe"}, "xx", "oo"),
        ({"nonfinite": "rollback", "rollback_after": 2, "max_consecutive_skips": 5}, "xxxxxx", "srsrsr"),
        ({"nonfinite": "skip", "enable_nan_inf_check": False}, "xx", "oo"),
    ],
)
def test_actions_follow_policy_and_limits(settings, pattern, actions):
    assert run(GradientConfig(**settings), pattern) == actions


def test_steps_of_a_scaler_do_not_count_against_the_limits():
    guard = Guard(GradientConfig(nonfinite="skip", max_consecutive_skips=1))
    for step in range(5):
        action = guard.decide(scaler_handles_it=True)
        guard.bad_step(event_of(step, action, ("a",), (0,), (1,), None))
    assert guard.decide() == "skip"
    assert guard.by_action == {"left to GradScaler": 5}


def test_an_event_names_twenty_layers_and_counts_all():
    names = [f"layer{k}" for k in range(50)]
    event = event_of(7, "skip", names, [1] * 50, [0] * 50, 2.5)
    assert (len(event.layers), event.layer_count, event.nan) == (20, 50, 50)
    assert str(event) == "step 7: 50 NaN and 0 Inf in `layer0` and 49 more: skip"
