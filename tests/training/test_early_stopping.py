import math

import pytest
import torch
from torch import nn

from gradient_flow.capture.model_state import ModesKept
from gradient_flow.errors import ConfigError, InputError
from gradient_flow.training.early_stopping import EarlyStopping, EarlyStoppingConfig, monitored_name, weights_on_host


def epochs_until_stop(values, **settings):
    """How many epochs are trained, and which is the best."""
    stopping = EarlyStopping(EarlyStoppingConfig(**settings))
    for epoch, value in enumerate(values):
        stopping.record(value, epoch)
        if stopping.stop_after(epoch + 1):
            return epoch + 1, stopping.best_epoch
    return None, stopping.best_epoch


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_it_stops_after_patience_epochs_without_improvement(patience):
    values = [3.0, 2.0, 1.0] + [1.0] * 10  # the last improvement is epoch 2
    assert epochs_until_stop(values, patience=patience) == (3 + patience, 2)


def test_an_improvement_starts_the_count_anew():
    assert epochs_until_stop([1.0, 2.0, 2.0, 0.5, 2.0, 2.0, 2.0], patience=3) == (7, 3)


def test_improvement_means_by_more_than_min_delta():
    assert epochs_until_stop([1.0, 0.75, 0.5, 0.25], patience=2, min_delta=0.25) == (None, 2)
    assert epochs_until_stop([1.0, 0.75, 0.75, 0.75], patience=2, min_delta=0.25) == (3, 0)


def test_mode_max_takes_more_for_better():
    assert epochs_until_stop([0.1, 0.5, 0.4, 0.4, 0.4], patience=2, mode="max") == (4, 1)
    assert epochs_until_stop([0.1, 0.5, 0.4, 0.4, 0.4], patience=2, mode="min") == (3, 0)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_best(value, mode):
    assert epochs_until_stop([value] * 5, patience=3, mode=mode) == (3, None)
    assert epochs_until_stop([value, 1.0, value, value], patience=2, mode=mode) == (4, 1)


def test_never_before_min_epochs():
    assert epochs_until_stop([1.0] * 10, patience=1, min_epochs=6) == (6, 0)


def test_switched_off_it_only_knows_the_best():
    assert epochs_until_stop([1.0, 0.5, 2.0, 2.0], patience=1, enabled=False) == (None, 1)


def test_the_reason_names_value_patience_and_best():
    stopping = EarlyStopping(EarlyStoppingConfig(patience=2, min_delta=0.125))
    assert "no finite value so far" in stopping.reason("val_loss")
    for epoch, value in enumerate([0.5, 0.5, 0.5]):
        stopping.record(value, epoch)
    assert stopping.reason("val_loss") == (
        "`val_loss` did not improve by more than 0.125 for 2 epochs (best 0.5 at epoch 0)"
    )


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"patience": 0}, "patience"),
        ({"patience": 2.5}, "patience"),
        ({"patience": True}, "patience"),
        ({"patience": "10"}, "patience"),
        ({"min_delta": -0.1}, "min_delta"),
        ({"min_delta": math.nan}, "min_delta"),
        ({"mode": "auto"}, "mode"),
        ({"monitor": ""}, "monitor"),
        ({"monitor": 3}, "monitor"),
        ({"restore_best_weights": "False"}, "restore_best_weights"),
        ({"min_epochs": -1}, "min_epochs"),
        ({"enabled": 1}, "enabled"),
    ],
)
def test_a_bad_setting_is_refused_by_name(settings, named):
    with pytest.raises(ConfigError, match=f"`{named}`"):
        EarlyStoppingConfig(**settings)


def test_the_mode_shows_the_choices():
    with pytest.raises(ConfigError, match="'min', 'max'"):
        EarlyStoppingConfig(mode="least")


VALUES = {"epoch": 1, "train_loss": 1.0, "train_accuracy": 0.5, "val_loss": 2.0, "val_accuracy": 0.4, "val_auc": None}


@pytest.mark.parametrize(
    ("monitor", "validated", "found"),
    [
        ("val_loss", True, "val_loss"),
        ("train_loss", True, "train_loss"),
        ("loss", True, "val_loss"),
        ("accuracy", True, "val_accuracy"),
        ("val_loss", False, "train_loss"),
        ("val_accuracy", False, "train_accuracy"),
    ],
)
def test_the_monitored_value_is_found(monitor, validated, found):
    assert monitored_name(monitor, VALUES, validated=validated) == found


def test_a_training_function_that_validates_by_itself_is_monitored_by_its_own_name():
    values = {"train_loss": 1.0, "train_val_loss": 2.0}
    assert monitored_name("val_loss", values, validated=False) == "train_val_loss"


@pytest.mark.parametrize("monitor", ["val_f1", "auc", "epoch"])
def test_a_monitored_value_that_is_not_there_is_an_error_that_shows_what_is(monitor):
    with pytest.raises(InputError, match=f"`monitor` is '{monitor}'.*train_loss, train_accuracy, val_loss"):
        monitored_name(monitor, VALUES, validated=True)


def test_weights_on_host_are_a_copy_of_everything_bit_for_bit():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to(torch.bfloat16)
    kept = weights_on_host(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for value in model.state_dict().values():
            value.add_(1)
    assert kept.keys() == before.keys()
    assert any("running_var" in name for name in kept)
    for name, value in kept.items():
        assert torch.equal(value, before[name])
        assert value.dtype == before[name].dtype


def test_extra_state_of_a_module_is_copied_too():
    class Counting(nn.Linear):
        counts = None

        def get_extra_state(self):
            return self.counts

        def set_extra_state(self, state):
            self.counts = state

    model = Counting(1, 1)
    model.counts = [1, 2]
    kept = weights_on_host(model)
    model.counts.append(3)
    model.load_state_dict(kept)
    assert model.counts == [1, 2]


def frozen_norm(training):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    model.train(training)
    model[1].eval()
    return model


def modes_of(model):
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("training", [True, False])
def test_modes_are_switched_and_come_back(training):
    model = frozen_norm(training)
    came_in = modes_of(model)
    with ModesKept(model) as modes:
        modes.evaluate()
        assert not any(modes_of(model))
        modes.train()
        assert modes_of(model) == ([True, True, False, True] if training else [True] * 4)
    assert modes_of(model) == came_in
