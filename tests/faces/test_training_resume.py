"""A run that was interrupted and goes on is the run that was not."""

import io

import pytest
import torch
from torch import nn

from gradient_flow.errors import InputError, MonitorStateError
from gradient_flow.faces.training_optimizer import EarlyStoppingConfig, LRSchedulerConfig, TrainingOptimizer
from gradient_flow.training.config import GradientManagementConfig
from gradient_flow.training.schedule import LearningRateSchedule

EPOCHS = 8
# Epoch 2 is the best, before every interruption but one, so that its weights have to come through the saved state.
VALUES = [3.0, 2.0, 1.0, 2.0, 1.5, 1.25, 1.75, 1.125]
SCHEDULES = {
    "cosine": LRSchedulerConfig("cosine", warmup_epochs=2),
    "plateau": LRSchedulerConfig("plateau", patience=0),
    "one_cycle": LRSchedulerConfig("one_cycle"),
    "step by step": LRSchedulerConfig("exponential", interval="step", warmup_steps=4),
    "none": None,
}


class Interruption(Exception):
    pass


def make(schedule, patience=10):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    # Adaptive clipping depends on the norms of the past: a manager that forgets them clips otherwise.
    gradients = GradientManagementConfig(adaptive_clipping=True, adaptive_min_history=2, adaptive_percentile=30.0)
    training = TrainingOptimizer(EarlyStoppingConfig(patience), SCHEDULES[schedule], gradients, optimizer)
    return model, optimizer, training


def train_func(model, optimizer, epoch):
    generator = torch.Generator().manual_seed(epoch)
    for _ in range(3):
        x = torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    return loss


def val_func(epoch):
    return VALUES[epoch]


def run_until(interruption, schedule, patience=10):
    """Train until the interruption comes, amid an epoch, and return what was saved after the last whole epoch."""
    model, optimizer, training = make(schedule, patience)
    saved = io.BytesIO()

    def save():
        saved.seek(0)
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "training": training.state_dict()}
        torch.save(states, saved)

    def train(model, optimizer, epoch):
        if epoch == interruption:
            train_func(model, optimizer, epoch)
            raise Interruption
        return train_func(model, optimizer, epoch)

    with pytest.raises(Interruption):
        training.run_training(model, train, val_func, EPOCHS, on_epoch_end=save)
    saved.seek(0)
    return torch.load(saved, weights_only=True)


def resume(states, schedule, patience=10, max_epochs=EPOCHS):
    model, optimizer, training = make(schedule, patience)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(9.0)
    model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    training.load_state_dict(states["training"])
    return model, optimizer, training, training.run_training(model, train_func, val_func, max_epochs)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("interruption", [1, 3, 7])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(schedule, interruption):
    whole, whole_optimizer, training = make(schedule)
    expected = training.run_training(whole, train_func, val_func, EPOCHS)
    assert expected["best_epoch"] == 2
    assert expected["restored_best_weights"] is True
    states = run_until(interruption, schedule)
    assert len(states["training"]["history"]["epoch"]) == interruption
    model, optimizer, _, history = resume(states, schedule)
    assert history.to_dict() == expected.to_dict()
    for name, value in whole.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    for mine, theirs in zip(optimizer.state.values(), whole_optimizer.state.values(), strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert optimizer.param_groups[0]["lr"] == whole_optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("forgotten", ["early_stopping", "schedule", "gradient_manager", "history"])
def test_each_part_of_the_state_is_needed(forgotten):
    whole, _, training = make("cosine")
    fresh = training.state_dict()
    expected = training.run_training(whole, train_func, val_func, EPOCHS)
    states = run_until(3, "cosine")
    beginning = LearningRateSchedule(SCHEDULES["cosine"], [0.02], EPOCHS).state_dict()
    states["training"][forgotten] = beginning if forgotten == "schedule" else fresh[forgotten]
    model, _, _, history = resume(states, "cosine")
    same_weights = all(torch.equal(model.state_dict()[name], value) for name, value in whole.state_dict().items())
    assert history.to_dict() != expected.to_dict() or not same_weights


def test_early_stopping_counts_on_over_the_interruption():
    whole, _, training = make("none", patience=3)
    expected = training.run_training(whole, train_func, val_func, EPOCHS)
    assert (expected["stopped_early"], len(expected["epoch"])) == (True, 6)
    history = resume(run_until(4, "none", patience=3), "none", patience=3)[3]
    assert history.to_dict() == expected.to_dict()


def test_a_run_that_has_stopped_stays_stopped_unless_it_may_wait_longer():
    model, optimizer, training = make("none", patience=3)
    training.run_training(model, train_func, val_func, EPOCHS)
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "training": training.state_dict()}
    assert len(resume(states, "none", patience=3)[3]["epoch"]) == 6
    longer = resume(states, "none", patience=6)[3]
    assert (len(longer["epoch"]), longer["stopped_early"], longer["stop_reason"]) == (8, False, None)


def test_only_the_first_run_after_loading_goes_on():
    model, _, training, history = resume(run_until(3, "plateau"), "plateau")
    assert history["epoch"] == list(range(EPOCHS))
    again = training.run_training(model, train_func, val_func, 2)
    assert again["epoch"] == [0, 1]
    assert again["learning_rate"][0] == 0.02
    assert history["epoch"] == list(range(EPOCHS))


def test_a_loaded_state_can_be_saved_again():
    states = run_until(3, "cosine")
    _, _, training = make("cosine")
    training.load_state_dict(states["training"])
    saved = training.state_dict()
    assert saved["schedule"] == states["training"]["schedule"]
    assert saved["history"] == states["training"]["history"]
    assert saved["early_stopping"]["best_epoch"] == 2


def test_a_saved_state_does_not_change_while_training_goes_on():
    model, _, training = make("cosine")
    states = []
    training.run_training(model, train_func, val_func, 3, on_epoch_end=lambda: states.append(training.state_dict()))
    assert [len(state["history"]["epoch"]) for state in states] == [1, 2, 3]
    assert [state["early_stopping"]["best_epoch"] for state in states] == [0, 1, 2]
    first, last = (state["early_stopping"]["best_weights"]["0.weight"] for state in (states[0], states[-1]))
    assert not torch.equal(first, last)


@pytest.mark.parametrize("state", [None, {}, {"version": 99}, {"model": 1}])
def test_a_state_from_elsewhere_is_refused(state):
    with pytest.raises(InputError, match="`state` must come from"):
        make("cosine")[2].load_state_dict(state)


def test_a_state_with_another_schedule_is_refused():
    states = run_until(3, "cosine")
    for other in ("none", "plateau"):
        with pytest.raises(InputError, match="schedule 'cosine', this one is"):
            make(other)[2].load_state_dict(states["training"])


def test_loading_while_training_is_refused():
    model, _, training = make("none")
    state = training.state_dict()
    with pytest.raises(MonitorStateError, match="training already"):
        training.run_training(model, lambda: training.load_state_dict(state))
