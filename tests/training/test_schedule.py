"""Learning rates against closed forms and against torch's schedulers on an optimizer of their own."""

import io
import math

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from gradient_flow.errors import ConfigError, InputError
from gradient_flow.training.config import SCHEDULER_TYPES, LRSchedulerConfig
from gradient_flow.training.schedule import LearningRateSchedule, ScheduledRates, rates_of, same_rates, set_rates_

BASE = 0.4


def rates(config, length, values=None, base=(BASE,), mode="min"):
    """The rate of each epoch of a run of that length, for the first group."""
    schedule = LearningRateSchedule(config, base, length, mode)
    values = values or [1.0] * length
    given = [schedule.rates[0]]
    for value in values[:-1]:
        given.append(schedule.step(value, schedule.rates)[0])
    return given


def torch_rates(make, length, values=None):
    """What torch gives when its scheduler works on an optimizer directly."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=BASE)
    scheduler = make(optimizer)
    given = []
    for epoch in range(length):
        given.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if epoch < length - 1:
            scheduler.step(*([values[epoch]] if values else []))
    return given


def test_cosine_is_half_a_wave_from_the_rate_to_min_lr():
    expected = [0.1 + (BASE - 0.1) * (1 + math.cos(math.pi * epoch / 8)) / 2 for epoch in range(8)]
    assert rates(LRSchedulerConfig("cosine", min_lr=0.1), 8) == pytest.approx(expected, rel=1e-12)


def test_cosine_ends_at_min_lr_and_rises_after_t_max():
    given = rates(LRSchedulerConfig("cosine", T_max=4, min_lr=0.1), 7)
    assert given[4] == pytest.approx(0.1)
    assert given[5:] == pytest.approx([given[3], given[2]])


def test_step_multiplies_every_step_size_epochs():
    expected = [BASE * 0.5 ** (epoch // 3) for epoch in range(10)]
    assert rates(LRSchedulerConfig("step", step_size=3, gamma=0.5), 10) == pytest.approx(expected, rel=1e-12)


def test_exponential_multiplies_every_epoch():
    expected = [BASE * 0.9**epoch for epoch in range(10)]
    assert rates(LRSchedulerConfig("exponential", gamma=0.9), 10) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("kind", "gamma"), [("step", 0.1), ("exponential", 0.95)])
def test_gamma_left_open_is_the_one_that_is_documented(kind, gamma):
    left_open = rates(LRSchedulerConfig(kind, step_size=2), 6)
    assert left_open == rates(LRSchedulerConfig(kind, step_size=2, gamma=gamma), 6)


@pytest.mark.parametrize("kind", ["linear_warmup", "linear", "warmup"])
def test_linear_warmup_is_a_line_and_then_stays(kind):
    given = rates(LRSchedulerConfig(kind, warmup_epochs=4, warmup_start_factor=0.2), 8)
    assert given == pytest.approx([BASE * factor for factor in (0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1)], rel=1e-12)
    reference = torch_rates(lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.2, total_iters=4), 8)
    assert given == pytest.approx(reference, rel=1e-12)


def test_linear_warmup_takes_five_epochs_when_it_is_not_told():
    given = rates(LRSchedulerConfig("linear_warmup"), 8)
    assert given[4] < BASE
    assert given[5:] == [BASE] * 3


PLATEAU = [1.0, 0.9, 0.9, 0.9, 0.9, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.4]


def test_plateau_is_torchs():
    config = LRSchedulerConfig("plateau", factor=0.25, patience=1, threshold=1e-3, cooldown=1, min_lr=0.01)
    given = rates(config, len(PLATEAU), PLATEAU)
    reference = torch_rates(
        lambda optimizer: lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.25, patience=1, threshold=1e-3, cooldown=1, min_lr=0.01
        ),
        len(PLATEAU),
        PLATEAU,
    )
    assert given == reference
    assert set(given) == {0.4, 0.1, 0.025, 0.01}


def test_plateau_waits_patience_epochs_and_then_reduces():
    given = rates(LRSchedulerConfig("plateau", factor=0.5, patience=2), 8, [1.0] * 8)
    # Epoch 0 is the best; 1 and 2 are let pass; 3 is one too many, and so is 6.
    assert given == [BASE] * 4 + [BASE / 2] * 3 + [BASE / 4]


def test_plateau_in_mode_max_takes_growth_for_improvement():
    growing = [float(epoch) for epoch in range(1, 9)]
    config = LRSchedulerConfig("plateau", patience=0)
    assert rates(config, 8, growing, mode="max") == [BASE] * 8
    assert rates(config, 8, growing, mode="min")[-1] < BASE


@pytest.mark.parametrize("hole", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_value_that_is_not_finite_counts_as_bad_and_is_then_forgotten(hole, mode):
    sign = 1.0 if mode == "min" else -1.0
    falling = [sign * (10.0 - epoch) for epoch in range(10)]
    with_hole = [*falling[:4], hole, *falling[5:]]
    config = LRSchedulerConfig("plateau", patience=0, factor=0.5)
    assert rates(config, 10, falling, mode=mode) == [BASE] * 10
    # One reduction for the hole, none afterwards: were the hole kept as best, nothing would be better again.
    assert rates(config, 10, with_hole, mode=mode) == [BASE] * 5 + [BASE / 2] * 5


@pytest.mark.parametrize("length", [1, 2, 3, 10, 37])
@pytest.mark.parametrize("name", ["one_cycle", "onecycle"])
def test_one_cycle_is_torchs_with_the_optimizers_rate_as_peak(name, length):
    reference = torch_rates(
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, BASE, total_steps=length, cycle_momentum=False), length
    )
    assert rates(LRSchedulerConfig(name), length) == reference


def test_one_cycle_peaks_at_max_lr_and_stays_at_its_end():
    given = rates(LRSchedulerConfig("one_cycle", max_lr=2.0, pct_start=0.5, final_div_factor=10.0), 10)
    assert given[0] == pytest.approx(2.0 / 25)
    assert max(given) == pytest.approx(2.0)
    assert given.index(max(given)) == 4
    assert given[-1] == pytest.approx(2.0 / 250)
    schedule = LearningRateSchedule(LRSchedulerConfig("one_cycle"), [BASE], 3)
    over = [schedule.step()[0] for _ in range(6)]
    assert over[2:] == [over[1]] * 4


@pytest.mark.parametrize(("share", "length"), [(0.1, 10), (0.5, 2)])
def test_one_cycle_with_a_way_up_of_a_single_epoch_begins_at_the_peak(share, length):
    assert rates(LRSchedulerConfig("one_cycle", pct_start=share), length)[0] == pytest.approx(BASE)


@pytest.mark.parametrize("kind", ["cosine", "step", "exponential", "plateau", "none"])
def test_a_warmup_comes_before_the_schedule_and_does_not_change_it(kind):
    config = {"step_size": 2, "gamma": 0.5, "patience": 1, "warmup_start_factor": 0.25}
    with_warmup = rates(LRSchedulerConfig(kind, warmup_epochs=3, **config), 13)
    assert with_warmup[:3] == pytest.approx([BASE * factor for factor in (0.25, 0.5, 0.75)])
    assert with_warmup[3:] == rates(LRSchedulerConfig(kind, **config), 10)


@pytest.mark.parametrize("kind", ["step", "exponential", "cosine", "one_cycle"])
def test_no_schedule_goes_below_min_lr(kind):
    config = LRSchedulerConfig(kind, step_size=1, gamma=0.5, min_lr=0.05)
    given = rates(config, 12)
    assert min(given) >= 0.05
    assert given[-1] < BASE


def test_every_group_has_its_own_rate():
    schedule = LearningRateSchedule(LRSchedulerConfig("step", step_size=1, gamma=0.5), [0.4, 0.02], 5)
    schedule.step()
    assert schedule.step() == pytest.approx([0.1, 0.005])


def test_the_schedule_goes_on_from_a_rate_that_somebody_else_set():
    schedule = LearningRateSchedule(LRSchedulerConfig("exponential", gamma=0.5), [0.4], 5)
    assert schedule.step(current=[0.4]) == [0.2]
    assert schedule.step(current=[0.01]) == [0.005]


EVERY_KIND = [
    *(LRSchedulerConfig(kind, step_size=2, gamma=0.5, patience=1) for kind in SCHEDULER_TYPES),
    LRSchedulerConfig("cosine", warmup_epochs=3),
    LRSchedulerConfig("plateau", warmup_epochs=3, patience=0),
]


@pytest.mark.parametrize("config", EVERY_KIND, ids=lambda config: f"{config.kind}-{config.warmup}")
@pytest.mark.parametrize("taken", [0, 2, 3, 6])
def test_a_saved_schedule_goes_on_with_the_same_rates(config, taken):
    values = [3.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    whole = LearningRateSchedule(config, [BASE, 0.03], 10)
    expected = [whole.step(value, whole.rates) for value in values]
    first = LearningRateSchedule(config, [BASE, 0.03], 10)
    for value in values[:taken]:
        first.step(value, first.rates)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = LearningRateSchedule(config, [BASE, 0.03], 10)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.rates == first.rates
    assert [second.step(value, second.rates) for value in values[taken:]] == expected[taken:]


def test_a_state_of_other_groups_is_refused():
    saved = LearningRateSchedule(LRSchedulerConfig("step"), [BASE], 5).state_dict()
    with pytest.raises(InputError, match="saved with 1 parameter groups, this one has 2"):
        LearningRateSchedule(LRSchedulerConfig("step"), [BASE, BASE], 5).load_state_dict(saved)


@pytest.mark.parametrize("other", ["cosine", "none"])
def test_a_state_of_another_schedule_is_refused(other):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=BASE)
    rates_to_save = ScheduledRates(optimizer, LRSchedulerConfig("step"))
    rates_to_save.begin(5, "min")
    with pytest.raises(InputError, match=f"saved with the learning-rate schedule 'step', this one is '{other}'"):
        ScheduledRates(optimizer, LRSchedulerConfig(other)).load_state_dict(rates_to_save.state_dict())
    with pytest.raises(InputError, match="schedule 'none', this one is 'step'"):
        rates_to_save.load_state_dict(None)


def test_lengths_may_be_numpys():
    config = LRSchedulerConfig("one_cycle", interval="step", total_steps=np.int64(5))
    assert (
        LearningRateSchedule(config, [BASE], 9).step()
        == LearningRateSchedule(LRSchedulerConfig("one_cycle"), [BASE], np.int64(5)).step()
    )


@pytest.mark.parametrize("rate", [0.5, torch.tensor(0.5)])
def test_rates_are_set_in_place_of_what_the_group_holds(rate):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    set_rates_(optimizer, [0.25])
    assert rates_of(optimizer) == [0.25]
    held = optimizer.param_groups[0]["lr"]
    assert held is rate if isinstance(rate, torch.Tensor) else held == 0.25


def test_same_rates_sees_a_change_but_not_the_rounding_of_fp32():
    assert same_rates([0.1], [float(torch.tensor(0.1))])
    assert not same_rates([0.1], [0.1001])
    assert not same_rates([0.1], [0.1, 0.1])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"scheduler_type": "cosinus"}, "scheduler_type"),
        ({"scheduler_type": None}, "scheduler_type"),
        ({"interval": "batch"}, "interval"),
        ({"min_lr": -1.0}, "min_lr"),
        ({"min_lr": math.nan}, "min_lr"),
        ({"min_lr": True}, "min_lr"),
        ({"step_size": 0}, "step_size"),
        ({"step_size": 1.5}, "step_size"),
        ({"gamma": 0.0}, "gamma"),
        ({"gamma": math.inf}, "gamma"),
        ({"factor": 1.0}, "factor"),
        ({"factor": 0.0}, "factor"),
        ({"patience": -1}, "patience"),
        ({"threshold": -0.1}, "threshold"),
        ({"cooldown": -1}, "cooldown"),
        ({"T_max": 0}, "T_max"),
        ({"max_lr": 0.0}, "max_lr"),
        ({"max_lr": "0.1"}, "max_lr"),
        ({"max_lr": 0.1, "min_lr": 0.2}, "max_lr"),
        ({"pct_start": 1.1}, "pct_start"),
        ({"div_factor": 0}, "div_factor"),
        ({"final_div_factor": None}, "final_div_factor"),
        ({"warmup_epochs": -1}, "warmup_epochs"),
        ({"warmup_start_factor": 0.0}, "warmup_start_factor"),
        ({"warmup_steps": 5}, "warmup_steps"),
        ({"total_steps": 5}, "total_steps"),
        ({"interval": "step", "T_max": 5, "warmup_epochs": 5}, "warmup_epochs"),
        ({"interval": "step"}, "total_steps"),
        ({"interval": "step", "scheduler_type": "one_cycle", "T_max": 5}, "total_steps"),
        ({"interval": "step", "scheduler_type": "plateau"}, "plateau"),
        ({"scheduler_type": "one_cycle", "warmup_epochs": 2}, "one_cycle"),
    ],
)
def test_a_bad_setting_is_refused_by_name(settings, named):
    with pytest.raises(ConfigError, match=f"`{named}`"):
        LRSchedulerConfig(**settings)


def test_an_unknown_scheduler_shows_the_choices():
    with pytest.raises(ConfigError) as refused:
        LRSchedulerConfig(scheduler_type="cyclic")
    for choice in SCHEDULER_TYPES:
        assert repr(choice) in str(refused.value)
    assert "'cyclic'" in str(refused.value)


def test_a_floor_above_the_optimizers_rate_is_refused():
    with pytest.raises(ConfigError, match=r"`min_lr` \(0.5\) is above the learning rate of the optimizer's group 1"):
        LearningRateSchedule(LRSchedulerConfig("cosine", min_lr=0.5), [0.5, 0.1], 5)


def test_the_settings_cannot_be_changed_unchecked():
    with pytest.raises(AttributeError):
        LRSchedulerConfig().step_size = 0
