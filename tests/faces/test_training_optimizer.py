"""`TrainingOptimizer` on real models: hooks, schedules, early stopping, best weights, modes, errors."""

import ast
import asyncio
import json
import logging
import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from gradient_flow.config import GradientConfig
from gradient_flow.errors import ConfigError, InputError, MonitorStateError
from gradient_flow.faces.manager import safe_backward
from gradient_flow.faces.training_optimizer import EarlyStoppingConfig, LRSchedulerConfig, TrainingOptimizer
from gradient_flow.training.config import GradientManagementConfig

OFF = GradientManagementConfig(enable_gradient_management=False)


def make(seed=0, lr=0.1, kind=torch.optim.SGD):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))
    return model, kind(model.parameters(), lr=lr)


def batches(epoch, count=3):
    generator = torch.Generator().manual_seed(epoch)
    return [torch.randn(8, 4, generator=generator) for _ in range(count)]


def train_func(model, optimizer, epoch):
    total = 0.0
    for x in batches(epoch):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / 3


def val_func(model):
    x = torch.ones(8, 4)
    with torch.no_grad():
        return (model(x) - 4.0).square().mean()


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same_state(model, state):
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name


def hooks_of(model, optimizer):
    on_optimizer = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    on_modules = [
        hook
        for module in model.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        for hook in hooks.values()
    ]
    return on_optimizer + on_modules


def scripted(values):
    """A validation function that returns these, one per epoch."""
    return lambda epoch: values[epoch]


DOCUMENT = """
from gradient_flow import (EarlyStoppingConfig, LRSchedulerConfig, GradientManagementConfig, TrainingOptimizer)

# Create configurations
early_stopping_config = EarlyStoppingConfig(patience=10)
lr_scheduler_config = LRSchedulerConfig(scheduler_type="cosine")
gradient_config = GradientManagementConfig(
    enable_gradient_management=True,
    max_grad_norm=1.0,
    enable_nan_inf_check=True
)

# Create training optimizer with gradient management
training_optimizer = TrainingOptimizer(
    early_stopping_config=early_stopping_config,
    lr_scheduler_config=lr_scheduler_config,
    gradient_config=gradient_config,
    optimizer=optimizer
)

# Run training
training_history = await training_optimizer.optimize_training(
    model=model,
    train_func=train_func,
    val_func=val_func,
    max_epochs=100
)
"""


def test_the_documents_integration_runs_as_it_is_written():
    model, optimizer = make(kind=torch.optim.Adam, lr=0.01)
    names = {"model": model, "optimizer": optimizer, "train_func": train_func, "val_func": val_func}
    code = compile(DOCUMENT, "document 004", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    asyncio.run(eval(code, names))
    history = names["training_history"]
    epochs = len(history["epoch"])
    assert 10 < epochs <= 100
    assert history["epoch"] == list(range(epochs))
    assert {len(column) for column in history.columns.values()} == {epochs}
    assert min(history["val_loss"]) < history["val_loss"][0]
    assert history["best_value"] == min(history["val_loss"])
    assert history["gradient_summary"]["total_steps"] == 3 * epochs
    assert [stats["steps"] for stats in history["gradient_stats"]] == [3] * epochs
    assert hooks_of(model, optimizer) == []


# ---- managed steps --------------------------------------------------------------------------------------------------


def test_steps_are_clipped_while_it_runs_and_no_hook_is_left():
    model, optimizer = make(lr=1.0)
    before = state_of(model)
    limit = 1e-3
    training = TrainingOptimizer(gradient_config=GradientManagementConfig(max_grad_norm=limit), optimizer=optimizer)
    steps = []

    def one_step(model, optimizer):
        assert len(optimizer._optimizer_step_pre_hooks) > 0
        loss = 1e3 * model(batches(0)[0]).square().mean()
        loss.backward()
        optimizer.step()
        steps.append(loss.item())
        return loss

    asyncio.run(training.optimize_training(model, one_step, max_epochs=1))
    moved = [(value - before[name]).double() for name, value in model.named_parameters()]
    # With plain SGD and a rate of 1 the weights move by the clipped gradient.
    assert math.sqrt(sum(each.square().sum().item() for each in moved)) == pytest.approx(limit, rel=1e-3)
    assert hooks_of(model, optimizer) == []


def test_a_gradient_of_nan_does_not_reach_the_weights():
    model, optimizer = make()
    training = TrainingOptimizer(optimizer=optimizer)

    def poisoned(model, optimizer):
        optimizer.zero_grad()
        model(batches(0)[0]).square().mean().backward()
        model[0].weight.grad[0, 0] = math.nan
        optimizer.step()
        return 1.0

    history = asyncio.run(training.optimize_training(model, poisoned, max_epochs=2))
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert [stats["replacements"] for stats in history["gradient_stats"]] == [1, 1]
    assert history["gradient_summary"]["nan_inf_summary"]["total_replacements"] == 2


def test_switched_off_it_trains_bit_for_bit_like_a_plain_loop():
    model, optimizer = make(kind=torch.optim.Adam)
    training = TrainingOptimizer(gradient_config=OFF, optimizer=optimizer)
    assert training.gradient_manager is None
    seen = []

    def watched(model, optimizer, epoch, gradient_manager):
        seen.append((hooks_of(model, optimizer), gradient_manager))
        return train_func(model, optimizer, epoch)

    history = asyncio.run(training.optimize_training(model, watched, max_epochs=4))
    plain, plain_optimizer = make(kind=torch.optim.Adam)
    losses = [train_func(plain, plain_optimizer, epoch) for epoch in range(4)]
    assert seen == [([], None)] * 4
    assert history["train_loss"] == losses
    assert history["gradient_stats"] == [None] * 4
    assert history["gradient_summary"] is None
    assert_same_state(model, plain.state_dict())


def test_a_schedule_leaves_nothing_on_the_optimizer():
    model, optimizer = make()
    keys = set(optimizer.param_groups[0])
    training = TrainingOptimizer(None, LRSchedulerConfig("one_cycle"), optimizer=optimizer)
    asyncio.run(training.optimize_training(model, train_func, max_epochs=3))
    assert set(optimizer.param_groups[0]) == keys
    assert "step" not in vars(optimizer)


def test_a_change_of_the_settings_holds_from_the_next_step_on():
    model, optimizer = make(lr=1.0)
    config = GradientManagementConfig(max_grad_norm=1e-2)
    training = TrainingOptimizer(gradient_config=config, optimizer=optimizer)
    moved = []

    def one_step(model, optimizer, epoch):
        config.max_grad_norm = 10.0 ** -(2 + epoch)
        before = state_of(model)
        optimizer.zero_grad()
        (1e3 * model(batches(0)[0]).square().mean()).backward()
        optimizer.step()
        squares = [(value - before[name]).double().square().sum().item() for name, value in model.named_parameters()]
        moved.append(math.sqrt(sum(squares)))
        return 1.0

    asyncio.run(training.optimize_training(model, one_step, max_epochs=3))
    assert moved == pytest.approx([1e-2, 1e-3, 1e-4], rel=1e-2)


@pytest.mark.parametrize("failure", [KeyError, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("where", ["train", "val", "end"])
def test_hooks_go_and_modes_return_when_an_exception_passes(failure, where):
    model, optimizer = make()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    interval = LRSchedulerConfig("exponential", interval="step")
    training = TrainingOptimizer(EarlyStoppingConfig(), interval, optimizer=optimizer)

    def fail_at(name, epoch):
        if where == name and epoch == 1:
            raise failure
        return 1.0

    async def train(model, optimizer, epoch):
        train_func(model, optimizer, epoch)
        return fail_at("train", epoch)

    with pytest.raises(failure):
        asyncio.run(
            training.optimize_training(
                model,
                train,
                lambda epoch: fail_at("val", epoch),
                max_epochs=5,
                on_epoch_end=lambda epoch: fail_at("end", epoch),
            )
        )
    assert hooks_of(model, optimizer) == []
    assert [module.training for module in model.modules()] == modes
    assert len(training.history["epoch"]) == (2 if where == "end" else 1)


def test_a_cancelled_task_leaves_no_hook():
    model, optimizer = make()
    training = TrainingOptimizer(optimizer=optimizer)

    async def main():
        started = asyncio.Event()

        async def endless():
            started.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(training.optimize_training(model, endless))
        await started.wait()
        assert hooks_of(model, optimizer) != []
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert hooks_of(model, optimizer) == []


# ---- functions ------------------------------------------------------------------------------------------------------


def test_plain_and_async_functions_train_alike():
    async def train_async(model, optimizer, epoch):
        await asyncio.sleep(0)
        return train_func(model, optimizer, epoch)

    async def val_async(model):
        await asyncio.sleep(0)
        return val_func(model)

    histories = []
    for train, val in ((train_func, val_func), (train_async, val_async), (train_async, val_func)):
        model, optimizer = make()
        training = TrainingOptimizer(EarlyStoppingConfig(), LRSchedulerConfig(), optimizer=optimizer)
        histories.append(asyncio.run(training.optimize_training(model, train, val, max_epochs=4)).to_dict())
    assert histories[0] == histories[1] == histories[2]


def test_other_tasks_get_their_turn_between_epochs():
    model, optimizer = make()
    order = []

    async def other():
        for turn in range(3):
            order.append(("other", turn))
            await asyncio.sleep(0)

    async def main():
        training = TrainingOptimizer(optimizer=optimizer)
        train = training.optimize_training(model, lambda epoch: order.append(("epoch", epoch)) or 1.0, max_epochs=3)
        await asyncio.gather(train, other())

    asyncio.run(main())
    assert order == [(who, number) for number in range(3) for who in ("epoch", "other")]


def test_the_model_trains_in_training_mode_and_validates_in_evaluation_mode():
    model, optimizer = make()
    model.eval()
    seen = []

    def train(model):
        seen.append(("train", [module.training for module in model.modules()]))
        return 1.0

    def val(model):
        seen.append(("val", [module.training for module in model.modules()]))
        return 1.0

    asyncio.run(TrainingOptimizer(optimizer=optimizer).optimize_training(model, train, val, max_epochs=2))
    assert seen == [("train", [True] * 5), ("val", [False] * 5)] * 2
    assert not any(module.training for module in model.modules())


def test_metrics_are_recorded_beside_the_losses():
    model, optimizer = make()
    history = asyncio.run(
        TrainingOptimizer(optimizer=optimizer).optimize_training(
            model,
            lambda epoch: (1.0, {"accuracy": 0.5}) if epoch else 1.0,
            lambda epoch: {"val_loss": 2.0, "accuracy": epoch / 4},
            max_epochs=3,
        )
    )
    assert history["train_accuracy"] == [None, 0.5, 0.5]
    assert history["val_accuracy"] == [0.0, 0.25, 0.5]
    assert history["val_loss"] == [2.0] * 3


def test_without_validation_the_training_loss_is_monitored():
    model, optimizer = make()
    training = TrainingOptimizer(EarlyStoppingConfig(patience=2), optimizer=optimizer)
    history = asyncio.run(training.optimize_training(model, scripted([3.0, 1.0, 2.0, 2.0, 2.0]), max_epochs=5))
    assert history["monitor"] == "train_loss"
    assert (history["best_epoch"], len(history["epoch"])) == (1, 4)
    assert history["val_loss"] == [None] * 4


# ---- early stopping -------------------------------------------------------------------------------------------------

LOSSES = [5.0, 4.0, 3.0, math.nan, 3.5, 3.0, 2.0, 2.5, math.inf, 2.1, 2.2, 0.1]  # best of the first ten: epoch 6


def run_scripted(values, patience=3, max_epochs=None, **settings):
    model, optimizer = make()
    states = []

    def train(model, optimizer, epoch):
        return train_func(model, optimizer, epoch)

    training = TrainingOptimizer(EarlyStoppingConfig(patience=patience, **settings), optimizer=optimizer)
    history = asyncio.run(
        training.optimize_training(
            model,
            train,
            scripted(values),
            max_epochs=max_epochs or len(values),
            on_epoch_end=lambda model: states.append(state_of(model)),
        )
    )
    return model, history, states


def test_it_stops_where_the_script_says_and_the_best_weights_are_back_bit_for_bit():
    model, history, states = run_scripted(LOSSES, patience=4)
    assert (history["best_epoch"], history["best_value"]) == (6, 2.0)
    assert len(history["epoch"]) == 6 + 4 + 1
    assert history["stopped_early"] is True
    assert history["stop_reason"] == "`val_loss` did not improve for 4 epochs (best 2 at epoch 6)"
    assert history["restored_best_weights"] is True
    assert_same_state(model, states[6])
    assert not torch.equal(states[6]["1.running_mean"], states[-1]["1.running_mean"])  # buffers are part of it
    assert str(history["val_loss"]) == str(LOSSES[:11])  # recorded as they are


def test_the_best_weights_are_back_also_when_all_epochs_were_run():
    model, history, states = run_scripted([3.0, 1.0, 2.0], patience=10)
    assert history["stopped_early"] is False
    assert history["stop_reason"] is None
    assert history["restored_best_weights"] is True
    assert_same_state(model, states[1])


def test_a_last_epoch_that_is_best_stays():
    model, history, states = run_scripted([3.0, 2.0, 1.0])
    assert history["restored_best_weights"] is False
    assert_same_state(model, states[2])


@pytest.mark.parametrize("settings", [{"restore_best_weights": False}, {"enabled": False}])
def test_weights_stay_when_restoring_is_off(settings):
    model, history, states = run_scripted([3.0, 1.0, 2.0, 2.0], patience=10, **settings)
    assert (history["best_epoch"], history["restored_best_weights"]) == (1, False)
    assert_same_state(model, states[3])


def test_mode_max_on_a_metric():
    model, optimizer = make()
    accuracy = [0.1, 0.7, 0.6, 0.6, 0.9]
    config = EarlyStoppingConfig(patience=2, monitor="val_accuracy", mode="max")
    training = TrainingOptimizer(config, optimizer=optimizer)
    history = asyncio.run(
        training.optimize_training(model, train_func, lambda epoch: (1.0, {"accuracy": accuracy[epoch]}), max_epochs=5)
    )
    assert (history["monitor"], history["best_epoch"], len(history["epoch"])) == ("val_accuracy", 1, 4)


def test_a_run_without_a_finite_loss_has_no_best_epoch():
    _, history, _ = run_scripted([math.nan] * 6, patience=3)
    assert (history["best_epoch"], history["best_value"], len(history["epoch"])) == (None, None, 3)
    assert history["stopped_early"] is True
    assert history["restored_best_weights"] is False
    assert json.loads(json.dumps(history.to_dict(), allow_nan=False))["val_loss"] == [None] * 3


def test_a_monitor_that_no_function_returns_is_an_error_that_shows_what_there_is():
    model, optimizer = make()
    training = TrainingOptimizer(EarlyStoppingConfig(monitor="val_f1"), optimizer=optimizer)
    with pytest.raises(InputError, match="`monitor` is 'val_f1', but the functions returned train_loss, val_loss"):
        asyncio.run(training.optimize_training(model, train_func, val_func))
    assert hooks_of(model, optimizer) == []


def test_after_an_exception_the_best_weights_can_be_put_back():
    model, optimizer = make()
    training = TrainingOptimizer(EarlyStoppingConfig(), optimizer=optimizer)
    assert training.restore_best_weights(model) is False
    states = []

    def train(model, optimizer, epoch):
        if epoch == 3:
            raise KeyboardInterrupt
        return train_func(model, optimizer, epoch)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(
            training.optimize_training(
                model, train, scripted([2.0, 1.0, 3.0]), on_epoch_end=lambda model: states.append(state_of(model))
            )
        )
    assert_same_state(model, states[2])
    assert training.restore_best_weights(model) is True
    assert_same_state(model, states[1])


# ---- learning rates -------------------------------------------------------------------------------------------------

CONFIGS = {
    "cosine": (LRSchedulerConfig("cosine"), lambda opt: lr_scheduler.CosineAnnealingLR(opt, 6)),
    "step": (LRSchedulerConfig("step", step_size=2), lambda opt: lr_scheduler.StepLR(opt, 2)),
    "exponential": (LRSchedulerConfig("exponential", gamma=0.5), lambda opt: lr_scheduler.ExponentialLR(opt, 0.5)),
    "plateau": (
        LRSchedulerConfig("plateau", patience=1, factor=0.5),
        lambda opt: lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1),
    ),
    "linear_warmup": (
        LRSchedulerConfig("linear_warmup", warmup_epochs=3),
        lambda opt: lr_scheduler.LinearLR(opt, 0.1, total_iters=3),
    ),
    "one_cycle": (
        LRSchedulerConfig("one_cycle", max_lr=0.5),
        lambda opt: lr_scheduler.OneCycleLR(opt, 0.5, total_steps=6, cycle_momentum=False),
    ),
    "none": (LRSchedulerConfig("none"), lambda opt: lr_scheduler.ConstantLR(opt, 1.0)),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_training_under_a_schedule_is_training_under_torchs(kind):
    config, reference = CONFIGS[kind]
    values = [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    model, optimizer = make()
    training = TrainingOptimizer(None, config, OFF, optimizer)
    history = asyncio.run(training.optimize_training(model, train_func, scripted(values), max_epochs=6))

    plain, plain_optimizer = make()
    scheduler = reference(plain_optimizer)
    rates = []
    for epoch in range(6):
        rates.append(plain_optimizer.param_groups[0]["lr"])
        train_func(plain, plain_optimizer, epoch)
        scheduler.step(*([values[epoch]] if kind == "plateau" else []))
    assert history["learning_rate"] == pytest.approx(rates, rel=1e-12)
    if kind != "linear_warmup":  # ours is the line itself, torch's the product of its quotients: another last digit
        assert_same_state(model, plain.state_dict())
    else:
        torch.testing.assert_close(state_of(model), state_of(plain))


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_epoch_without_an_optimizer_step_gives_no_warning(kind):
    model, optimizer = make()
    training = TrainingOptimizer(None, CONFIGS[kind][0], optimizer=optimizer)
    history = asyncio.run(training.optimize_training(model, lambda: 1.0, max_epochs=4))
    assert len(history["epoch"]) == 4


def test_a_schedule_per_step_moves_with_every_optimizer_step():
    model, optimizer = make()
    config = LRSchedulerConfig("cosine", interval="step", total_steps=12, warmup_steps=4, warmup_start_factor=0.5)
    rates = []

    def train(model, optimizer, epoch):
        for _ in range(3):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
        return 1.0

    training = TrainingOptimizer(None, config, optimizer=optimizer)
    history = asyncio.run(training.optimize_training(model, train, max_epochs=4))
    warmup = [0.1 * (0.5 + 0.5 * step / 4) for step in range(4)]
    cosine = [0.1 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]
    assert rates == pytest.approx(warmup + cosine)
    assert history["learning_rate"] == rates[::3]


def test_a_schedule_per_step_waits_where_the_guard_withholds_a_step():
    model, optimizer = make()
    config = LRSchedulerConfig("exponential", interval="step", gamma=0.5)
    training = TrainingOptimizer(None, config, GradientConfig(nonfinite="skip"), optimizer)
    rates = []

    def train(model, optimizer):
        for factor in (1.0, math.nan, 1.0):
            optimizer.zero_grad()
            (factor * model(batches(0)[0]).square().mean()).backward()
            optimizer.step()
            rates.append(optimizer.param_groups[0]["lr"])
        return 1.0

    history = asyncio.run(training.optimize_training(model, train, max_epochs=1))
    assert rates == [0.05, 0.05, 0.025]
    assert history["gradient_stats"][0] | {"clipped_steps": 0} == {
        "steps": 3,
        "unhealthy_steps": 1,
        "clipped_steps": 0,
        "skipped_steps": 1,
        "replacements": 0,
    }


def test_a_second_run_starts_from_the_first_rates_unless_they_were_set():
    model, optimizer = make(lr=0.5)
    training = TrainingOptimizer(None, LRSchedulerConfig("exponential", gamma=0.5), optimizer=optimizer)
    first = training.run_training(model, lambda: 1.0, max_epochs=3)
    second = training.run_training(model, lambda: 1.0, max_epochs=3)
    assert first["learning_rate"] == second["learning_rate"] == [0.5, 0.25, 0.125]
    assert first is not second
    optimizer.param_groups[0]["lr"] = 0.25
    assert training.run_training(model, lambda: 1.0, max_epochs=2)["learning_rate"] == [0.25, 0.125]


def test_a_loss_of_nan_does_not_stop_the_plateau_from_working():
    model, optimizer = make()
    values = [1.0, 0.5, math.nan, 0.25, 0.25, 0.25]
    config = LRSchedulerConfig("plateau", patience=1, factor=0.5)
    training = TrainingOptimizer(None, config, optimizer=optimizer)
    history = asyncio.run(training.optimize_training(model, train_func, scripted(values), max_epochs=6))
    assert history["learning_rate"] == [0.1] * 6
    assert optimizer.param_groups[0]["lr"] == 0.05  # two epochs at 0.25 after the best


def test_the_plateau_looks_the_way_that_early_stopping_looks():
    model, optimizer = make()
    config = LRSchedulerConfig("plateau", patience=0, factor=0.5)
    training = TrainingOptimizer(EarlyStoppingConfig(mode="max"), config, optimizer=optimizer)
    history = asyncio.run(
        training.optimize_training(model, train_func, scripted([1.0, 2.0, 3.0, 2.0, 4.0]), max_epochs=5)
    )
    assert history["learning_rate"] == [0.1, 0.1, 0.1, 0.1, 0.05]


# ---- what is told ---------------------------------------------------------------------------------------------------


def test_one_line_per_epoch_goes_to_the_log_and_nothing_to_the_screen(caplog, capsys):
    model, optimizer = make()
    training = TrainingOptimizer(EarlyStoppingConfig(patience=1), optimizer=optimizer)
    with caplog.at_level(logging.INFO, logger="gradient_flow"):
        training.run_training(model, train_func, scripted([1.0, 0.5, 0.75]), max_epochs=5)
    lines = [
        record.getMessage() for record in caplog.records if record.name == "gradient_flow.faces.training_optimizer"
    ]
    assert len(lines) == 4
    assert lines[1].startswith("epoch 1 (2 of 5): train_loss ")
    assert "val_loss 0.5" in lines[1]
    assert "learning_rate 0.1" in lines[1]
    assert lines[-1] == "stopped early: `val_loss` did not improve for 1 epochs (best 0.5 at epoch 1)"
    assert capsys.readouterr() == ("", "")


def test_the_history_is_strict_json():
    model, optimizer = make()
    training = TrainingOptimizer(EarlyStoppingConfig(), LRSchedulerConfig(), optimizer=optimizer)
    history = training.run_training(model, train_func, scripted([1.0, math.inf, math.nan]), max_epochs=3)
    back = json.loads(json.dumps(history.to_dict(), allow_nan=False))
    assert back["val_loss"] == [1.0, None, None]
    assert back["train_loss"] == history["train_loss"]
    assert history["val_loss"][1] == math.inf


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [None, "adam", nn.Linear(1, 1)])
def test_an_optimizer_is_needed(optimizer):
    with pytest.raises(InputError, match="`optimizer` must be a torch optimizer"):
        TrainingOptimizer(EarlyStoppingConfig(), optimizer=optimizer)


@pytest.mark.parametrize("name", ["early_stopping_config", "lr_scheduler_config", "gradient_config"])
def test_settings_of_another_kind_are_refused_by_name(name):
    _, optimizer = make()
    with pytest.raises(InputError, match=f"`{name}` must be a .*Config, got dict"):
        TrainingOptimizer(**{name: {}}, optimizer=optimizer)


@pytest.mark.parametrize("max_epochs", [0, -1, 1.5, True, None])
def test_max_epochs_must_be_a_number_of_epochs(max_epochs):
    model, optimizer = make()
    with pytest.raises(InputError, match="`max_epochs`"):
        TrainingOptimizer(optimizer=optimizer).run_training(model, train_func, max_epochs=max_epochs)


def test_wrong_functions_are_refused_before_anything_is_trained():
    model, optimizer = make()
    before = state_of(model)
    training = TrainingOptimizer(optimizer=optimizer)
    with pytest.raises(InputError, match="`val_func` asks for `loader`"):
        training.run_training(model, train_func, lambda model, loader: 0.0)
    with pytest.raises(InputError, match="`train_func` must be a function"):
        training.run_training(model, None)
    assert_same_state(model, before)


def test_a_model_that_the_optimizer_does_not_train_is_refused():
    _, optimizer = make()
    with pytest.raises(InputError, match="`optimizer` holds none of the parameters of `model`"):
        TrainingOptimizer(optimizer=optimizer).run_training(nn.Linear(1, 1), train_func)
    with pytest.raises(InputError, match="`model` must be a module, got str"):
        TrainingOptimizer(optimizer=optimizer).run_training("model", train_func)


def test_run_training_in_a_running_loop_says_what_to_do():
    model, optimizer = make()

    async def in_a_notebook():
        TrainingOptimizer(optimizer=optimizer).run_training(model, train_func)

    with pytest.raises(MonitorStateError, match=r"await training_optimizer\.optimize_training"):
        asyncio.run(in_a_notebook())


def test_two_runs_at_a_time_are_refused():
    model, optimizer = make()
    training = TrainingOptimizer(optimizer=optimizer)

    async def train():
        await training.optimize_training(model, train_func)

    with pytest.raises(MonitorStateError, match="training already"):
        training.run_training(model, train)
    assert training.run_training(model, train_func, max_epochs=1)["epoch"] == [0]


# ---- GradientManagementConfig ---------------------------------------------------------------------------------------


def test_management_settings_are_gradient_settings_and_a_switch():
    config = GradientManagementConfig(max_grad_norm=0.5, clip_type="value", replace_nan_with=1.0)
    plain = config.to_gradient_config()
    assert type(plain) is GradientConfig
    assert plain == GradientConfig(max_grad_norm=0.5, clip_type="value", replace_nan_with=1.0)
    config.check()


@pytest.mark.parametrize(
    ("name", "value"), [("enable_gradient_management", "no"), ("max_grad_norm", -1.0), ("clip_type", "other")]
)
def test_management_settings_check_themselves_also_when_changed(name, value):
    with pytest.raises(ConfigError, match=f"`{name}`"):
        GradientManagementConfig(**{name: value})
    with pytest.raises(ConfigError, match=f"`{name}`"):
        setattr(GradientManagementConfig(), name, value)


def test_a_plain_gradient_config_is_enough():
    _, optimizer = make()
    config = GradientConfig(max_grad_norm=0.25)
    training = TrainingOptimizer(gradient_config=config, optimizer=optimizer)
    assert training.gradient_manager.config is config


def test_a_step_that_train_func_managed_itself_is_counted_once():
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(model, optimizer, gradient_manager):
        for _ in range(3):
            optimizer.zero_grad()
            loss = (100 * model(torch.ones(2, 3))).square().mean()
            safe_backward(loss, model, optimizer, gradient_manager)
            optimizer.step()
        return loss

    history = TrainingOptimizer(optimizer=optimizer).run_training(model, train, max_epochs=2)
    assert [stats["steps"] for stats in history["gradient_stats"]] == [3, 3]
    assert [stats["clipped_steps"] for stats in history["gradient_stats"]] == [3, 3]
