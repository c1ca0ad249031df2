"""GradientManager as its users meet it: steps, guard policies, scalers, fused optimizers, checkpoints."""

import copy
import gc
import json
import logging
import math
import pickle
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow import (
    ConfigError,
    GradientConfig,
    GradientFlowWarning,
    GradientManager,
    InputError,
    NonFiniteGradientError,
    create_gradient_manager,
    safe_backward,
)

OPTIMIZERS = {
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False),
    "SGD momentum foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=True),
    "SGD momentum fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1, foreach=False),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9),
}


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(model, factor=1.0, seed=0):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
    return factor * (model(x) - x.sum(1, keepdim=True)).square().mean()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def poison(model, value=math.nan, layer=2):
    model[layer].weight.grad.view(-1)[0] = value


def train(manager, model, optimizer, steps, bad=(), value=math.nan, start=0):
    infos = []
    for step in range(start, start + steps):
        optimizer.zero_grad()
        loss = loss_of(model, seed=step)
        loss.backward()
        if step in bad:
            poison(model, value)
        infos.append(manager.step(model, optimizer, loss, backward=False))
        optimizer.step()
    return infos


# ---- as documented ---------------------------------------------------------------------------------------------------


def test_config_has_the_documented_fields_in_order_with_their_defaults():
    documented = {
        "enable_gradient_clipping": True,
        "max_grad_norm": 1.0,
        "clip_type": "norm",
        "enable_nan_inf_check": True,
        "nan_inf_threshold": 1e-6,
        "replace_nan_with": 0.0,
        "replace_inf_with": 1e6,
        "enable_gradient_monitoring": True,
        "log_gradient_stats": True,
        "save_gradient_plots": True,
        "adaptive_clipping": False,
        "adaptive_window_size": 100,
        "adaptive_percentile": 95.0,
        "debug_mode": False,
        "verbose_logging": False,
    }
    ours = vars(GradientConfig())
    assert list(ours)[: len(documented)] == list(documented)
    assert {name: ours[name] for name in documented} == documented
    assert {"max_gradient_history", "check_frequency"} <= ours.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_grad_norm", -1.0),
        ("max_grad_norm", math.nan),
        ("max_grad_norm", "1"),
        ("clip_type", "percentile"),
        ("adaptive_percentile", 101),
        ("adaptive_percentile", -1),
        ("adaptive_window_size", 0),
        ("adaptive_window_size", 2.5),
        ("nonfinite", "ignore"),
        ("check_frequency", 0),
        ("max_total_skips", -1),
        ("replace_inf_with", math.inf),
        ("group_max_norms", {"a.*": -1.0}),
        ("agc_exclude", "head.*"),
        ("enable_gradient_clipping", 1),
    ],
)
def test_a_bad_setting_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=f"`{name}"):
        GradientConfig(**{name: value})
    config = GradientConfig()
    before = copy.copy(vars(config))
    with pytest.raises(ConfigError, match=f"`{name}"):
        setattr(config, name, value)
    assert vars(config) == before
    object.__setattr__(config, name, value)  # past the config's own check
    with pytest.raises(ConfigError, match=f"`{name}"):
        GradientManager(config)


def test_an_unknown_clip_type_shows_the_choices_and_a_misspelt_setting_the_right_one():
    with pytest.raises(ConfigError, match="'norm', 'value', 'adaptive', 'agc', 'zclip', 'per_group'"):
        GradientConfig(clip_type="global")
    with pytest.raises(ConfigError, match="Did you mean `max_grad_norm`"):
        GradientConfig().max_gradnorm = 2.0
    with pytest.raises(InputError, match=r"`max_gradnorm`\. Did you mean `max_grad_norm`"):
        create_gradient_manager(max_gradnorm=2.0)


def test_a_step_reports_the_gradients_as_they_came_and_what_was_changed():
    model, config = make_model(), GradientConfig(max_grad_norm=0.01)
    loss = loss_of(model)
    reference = make_model()
    loss_of(reference).backward()
    exact = math.sqrt(sum(p.grad.double().square().sum().item() for p in reference.parameters()))
    info = GradientManager(config).step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
    assert info["statistics"]["total_norm"] == pytest.approx(exact, rel=1e-7)
    assert info["clipping"]["total_norm"] == pytest.approx(exact, rel=1e-7)
    assert info["clipping"]["clipped_norm"] == pytest.approx(0.01, rel=1e-6)
    assert gf.measure(model).total.norm == pytest.approx(0.01, rel=1e-6)
    assert info["nan_inf"]["nan_count"] == info["nan_inf"]["inf_count"] == 0
    assert info["health"]["healthy"]
    assert info["health"]["warnings"] == info["health"]["recommendations"] == []
    assert {"total_norm", "mean", "std", "min", "max", "nan_count", "inf_count"} <= info["statistics"].keys()
    assert not info["skipped"]


def test_a_running_manager_follows_its_config():
    model, config = make_model(), GradientConfig(max_grad_norm=1e9)
    manager, optimizer = GradientManager(config), torch.optim.SGD(model.parameters(), lr=0.0)
    assert not train(manager, model, optimizer, 1)[0]["clipping"]["clipped"]
    config.max_grad_norm = 1e-3
    assert train(manager, model, optimizer, 1)[0]["clipping"]["clipped_norm"] == pytest.approx(1e-3)
    config.enable_gradient_clipping = False
    assert not train(manager, model, optimizer, 1)[0]["clipping"]["clipped"]
    config.max_gradient_history = 2
    train(manager, model, optimizer, 5)
    assert len(manager.monitor.history) == 2


def test_documented_replacement_of_nan_and_both_infinities():
    model = make_model()
    config = GradientConfig(replace_nan_with=0.5, replace_inf_with=7.0, max_grad_norm=1e9)
    loss_of(model).backward()
    before = model[0].weight.grad.clone()
    bad = torch.tensor([math.nan, math.inf, -math.inf])
    model[0].weight.grad.view(-1)[:3] = bad
    with pytest.warns(GradientFlowWarning, match="replace_inf_with=7"):
        info = GradientManager(config).step(model, None, None)
    after = model[0].weight.grad.view(-1)
    assert after[:3].tolist() == [0.5, 7.0, -7.0]
    assert torch.equal(after[3:], before.view(-1)[3:])
    assert (info["nan_inf"]["nan_count"], info["nan_inf"]["inf_count"], info["nan_inf"]["replaced"]) == (1, 2, 3)
    assert info["nan_inf"]["layers"] == {"0.weight": {"nan": 1, "inf": 2}}
    assert math.isnan(info["statistics"]["total_norm"])
    assert math.isfinite(info["clipping"]["total_norm"])
    assert not info["health"]["healthy"]
    assert "`0.weight`" in info["health"]["warnings"][0]


def test_the_warning_about_large_replacements_comes_once_and_only_for_inf(recwarn):
    model = make_model()
    manager, optimizer = GradientManager(GradientConfig()), torch.optim.Adam(model.parameters())
    train(manager, model, optimizer, 2, bad={0, 1})
    assert not recwarn.list
    with pytest.warns(GradientFlowWarning, match="Adam"):
        train(manager, model, optimizer, 1, bad={0}, value=math.inf)
    recwarn.clear()
    train(manager, model, optimizer, 1, bad={0}, value=math.inf)
    assert not recwarn.list


def test_warnings_as_errors_do_not_end_a_training(caplog):
    model = make_model()
    manager = create_gradient_manager()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def broken():
        raise ZeroDivisionError("no replay")

    loss_of(model).backward()
    poison(model, math.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manager.step(model, optimizer, torch.tensor(1.0), backward=False, closure=broken)
    assert "The step could not be replayed: no replay" in caplog.text
    assert "Inf gradients were replaced by replace_inf_with=1e+06" in caplog.text


def test_a_warning_names_the_line_of_the_user():
    model = make_model()
    loss_of(model).backward()
    poison(model, math.inf)
    with pytest.warns(GradientFlowWarning) as caught:
        create_gradient_manager().step(model, None, None)
    assert caught[0].filename == __file__


def test_a_replacement_is_never_more_than_the_dtype_can_hold():
    model = nn.Linear(2, 1, bias=False).to(torch.float16)
    model.weight.grad = torch.tensor([[math.inf, -math.inf]], dtype=torch.float16)
    info = gf.NaNInfHandler().check_and_fix_gradients(model)
    assert model.weight.grad.tolist() == [[65504.0, -65504.0]]
    assert info["inf_count"] == 2


def test_parameters_are_checked_and_fixed_on_request_and_buffers_only_reported():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        model[0].weight[0, 0], model[0].bias[1] = math.nan, -math.inf
    model[1].running_var[0] = math.nan
    handler = gf.NaNInfHandler()
    looked = handler.check_and_fix_parameters(model, replace_values=False)
    assert math.isnan(model[0].weight[0, 0].item())
    assert (looked["nan_count"], looked["inf_count"], looked["replaced"]) == (1, 1, 0)
    fixed = handler.check_and_fix_parameters(model=model, replace_values=True)
    assert (fixed["replaced"], model[0].weight[0, 0].item(), model[0].bias[1].item()) == (2, 0.0, -1e6)
    assert fixed["bad_buffers"] == {"1.running_var": 1}
    assert math.isnan(model[1].running_var[0])


def test_safe_backward_is_the_step():
    first, second = make_model(), make_model()
    manager, other = create_gradient_manager(max_grad_norm=0.5), create_gradient_manager(max_grad_norm=0.5)
    optimizer = torch.optim.Adam(first.parameters())
    info = safe_backward(loss=loss_of(first), model=first, optimizer=optimizer, gradient_manager=manager)
    assert info == other.step(second, torch.optim.Adam(second.parameters()), loss_of(second))
    assert same([p.grad for p in first.parameters()], [p.grad for p in second.parameters()])
    with pytest.raises(InputError, match="`gradient_manager`"):
        safe_backward(loss_of(first), first, optimizer, None)


def test_summary_and_log_hold_the_documented_keys_as_strict_json(tmp_path):
    model = make_model()
    manager = create_gradient_manager(max_grad_norm=1.0)
    infos = train(manager, model, torch.optim.Adam(model.parameters()), 30, bad={7})
    summary = manager.get_training_summary()
    norms = [info["statistics"]["total_norm"] for info in infos if math.isfinite(info["statistics"]["total_norm"])]
    assert summary["total_steps"] == 30
    assert summary["gradient_statistics"]["gradient_norms"]["mean"] == pytest.approx(np.mean(norms))
    assert summary["gradient_statistics"]["gradient_norms"]["std"] == pytest.approx(np.std(norms))
    assert summary["health_issues"]["unhealthy_steps"] == 1
    assert summary["nan_inf_summary"]["total_replacements"] == 1
    manager.save_training_log(tmp_path / "deep" / "log.json")

    def refuse(token):
        raise AssertionError(f"{token} is not strict JSON")

    log = json.loads((tmp_path / "deep" / "log.json").read_text(), parse_constant=refuse)
    assert len(log["steps"]) == 30
    assert log["steps"][7]["total_norm"] is None
    assert log["events"][0]["step"] == 8
    assert log["events"][0]["layers"] == ["2.weight"]


def test_plots_have_their_four_panels_and_follow_the_switch(tmp_path):
    model = make_model()
    manager = create_gradient_manager()
    for figure in (manager.plot_training_curves(), manager.monitor.plot_gradient_statistics()):
        assert len([axes for axes in figure.axes if axes.get_title()]) == 4  # drawn also when nothing was recorded
    train(manager, model, torch.optim.Adam(model.parameters()), 30, bad={3})
    manager.plot_training_curves(save_path=tmp_path / "new" / "training_curves.png")
    figure = manager.monitor.plot_gradient_statistics(save_path=tmp_path / "gradient_stats.png")
    titles = [axes.get_title().lower() for axes in figure.axes if axes.get_title()]
    assert [
        word
        for title, word in zip(titles, ("distribution", "mean", "extremes", "correlation"), strict=True)
        if word in title
    ] == ["distribution", "mean", "extremes", "correlation"]
    assert (tmp_path / "new" / "training_curves.png").stat().st_size > 10_000
    assert (tmp_path / "gradient_stats.png").stat().st_size > 10_000
    manager.config.save_gradient_plots = False
    manager.plot_training_curves(save_path=tmp_path / "unwanted.png")
    assert not (tmp_path / "unwanted.png").exists()


def test_statistics_go_through_logging_and_never_print(caplog, capsys):
    model = make_model()
    manager = create_gradient_manager(verbose=True, nonfinite="skip")
    with caplog.at_level(logging.INFO, logger="gradient_flow"):
        train(manager, model, torch.optim.Adam(model.parameters()), 2, bad={1})
    assert "step 1: gradient norm" in caplog.text
    assert "step 2: 1 NaN and 0 Inf in `2.weight`: skip" in caplog.text
    caplog.clear()
    manager.config.verbose_logging = False
    with caplog.at_level(logging.INFO, logger="gradient_flow"):
        train(manager, model, torch.optim.Adam(model.parameters()), 1)
    assert caplog.text == ""
    assert capsys.readouterr() == ("", "")


def test_health_is_checked_at_the_asked_frequency_while_guard_and_clip_act_always():
    model = make_model()
    manager = create_gradient_manager(check_frequency=4, nonfinite="skip", max_grad_norm=1e-3)
    infos = train(manager, model, torch.optim.SGD(model.parameters(), lr=0.1), 9, bad={2})
    assert [info["health"]["checked"] for info in infos] == [True, False, False, False] * 2 + [True]
    assert all(info["clipping"]["clipped"] for k, info in enumerate(infos) if k != 2)
    assert infos[2]["skipped"]
    assert len(manager.monitor.history) == 3
    assert all("total_norm" in info["statistics"] for info in infos)


def test_debug_mode_adds_every_layer():
    model = make_model()
    info = train(create_gradient_manager(debug_mode=True), model, torch.optim.SGD(model.parameters(), lr=0.1), 1)[0]
    assert set(info["layers"]) == {name for name, _ in model.named_parameters()}


def test_everything_off_changes_and_reads_nothing(monkeypatch):
    model, plain = make_model(), make_model()
    manager = create_gradient_manager(
        enable_monitoring=False, enable_nan_inf_check=False, enable_gradient_clipping=False
    )
    train(manager, model, torch.optim.Adam(model.parameters(), lr=0.1), 5)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(plain, seed=step).backward()
        optimizer.step()
    assert same(weights(model), weights(plain))


def test_watching_alone_is_bit_identical_and_leaves_the_random_state():
    model, plain = make_model(), make_model()
    manager = create_gradient_manager(max_grad_norm=1e9)
    state = torch.get_rng_state()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with manager.attach(model, optimizer):
        for step in range(20):
            optimizer.zero_grad()
            loss_of(model, seed=step).backward()
            optimizer.step()
    assert torch.equal(state, torch.get_rng_state())
    other = torch.optim.Adam(plain.parameters(), lr=0.1)
    for step in range(20):
        other.zero_grad()
        loss_of(plain, seed=step).backward()
        other.step()
    assert same(weights(model), weights(plain))
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


# ---- guard -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("attached", [False, True])
def test_a_skipped_step_leaves_weights_state_count_and_schedule_untouched(kind, value, attached):
    model = make_model()
    optimizer = OPTIMIZERS[kind](model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    manager = create_gradient_manager(nonfinite="skip", max_grad_norm=0.5)

    def one_step(seed, bad):
        optimizer.zero_grad()
        loss_of(model, seed=seed).backward()
        if bad:
            poison(model, value)
        if attached:
            with manager.attach(model, optimizer, scheduler=scheduler):
                optimizer.step()
                scheduler.step()
        else:
            manager.step(model, optimizer, None, scheduler=scheduler)
            optimizer.step()
            scheduler.step()

    for step in range(3):
        one_step(step, bad=False)
    before, state = weights(model), copy.deepcopy(optimizer.state_dict())
    rate, schedule = optimizer.param_groups[0]["lr"], scheduler.state_dict()["last_epoch"]
    one_step(3, bad=True)
    assert manager.last_step["skipped"]
    assert same(before, weights(model))
    after = optimizer.state_dict()
    for key, entries in state["state"].items():
        for name, old in entries.items():
            new = after["state"][key][name]
            assert torch.equal(old, new) if isinstance(old, torch.Tensor) else old == new, name
    assert (optimizer.param_groups[0]["lr"], scheduler.state_dict()["last_epoch"]) == (rate, schedule)
    one_step(4, bad=False)
    assert not same(before, weights(model))
    assert scheduler.state_dict()["last_epoch"] == schedule + 1
    assert type(scheduler) is torch.optim.lr_scheduler.StepLR


def test_a_skipped_step_equals_a_run_without_that_batch():
    model, plain = make_model(), make_model()
    manager = create_gradient_manager(nonfinite="skip", max_grad_norm=1e9)
    train(manager, model, torch.optim.AdamW(model.parameters(), lr=0.1), 10, bad={4})
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1)
    for step in set(range(10)) - {4}:
        optimizer.zero_grad()
        loss_of(plain, seed=step).backward()
        optimizer.step()
    assert same(weights(model), weights(plain))


def test_raise_names_step_layer_and_counts_and_changes_nothing():
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    manager = create_gradient_manager(nonfinite="raise")
    train(manager, model, optimizer, 3)
    before = weights(model)
    with pytest.raises(NonFiniteGradientError, match=r"Step 4: 1 NaN and 0 Inf gradients in `2\.weight`"):
        train(manager, model, optimizer, 1, bad={3}, start=3)
    assert same(before, weights(model))
    assert model[2].weight.grad is not None
    assert [(event.step, event.action) for event in manager.events] == [(4, "raise")]


def test_raise_inside_an_attached_step_leaves_no_hook():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = weights(model)
    loss_of(model).backward()
    poison(model)
    with pytest.raises(NonFiniteGradientError), create_gradient_manager(nonfinite="raise").attach(model, optimizer):
        optimizer.step()
    assert same(before, weights(model))
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_zero_drops_only_the_bad_elements():
    model = make_model()
    loss_of(model).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    expected[2].view(-1)[0] = 0.0
    poison(model, -math.inf)
    create_gradient_manager(nonfinite="zero", max_grad_norm=1e9).step(model, None, None)
    assert same(expected, [p.grad for p in model.parameters()])


def test_observe_records_and_touches_nothing():
    model = make_model()
    loss_of(model).backward()
    poison(model)
    versions = [p.grad._version for p in model.parameters()]
    manager = create_gradient_manager(nonfinite="observe", max_grad_norm=1e-3)
    info = manager.step(model, None, None)
    assert versions == [p.grad._version for p in model.parameters()]
    assert not info["clipping"]["clipped"]
    assert not info["skipped"]
    assert manager.events[0].action == "observe"


@pytest.mark.parametrize("limit", ["consecutive", "total"])
def test_after_too_many_skips_it_raises_and_never_lets_a_bad_step_through(limit):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    settings = {"max_consecutive_skips": 3} if limit == "consecutive" else {"max_total_skips": 3}
    manager = create_gradient_manager(nonfinite="skip", **settings)
    bad = {2, 3, 4, 5} if limit == "consecutive" else {1, 3, 5, 7}
    last = max(bad)
    train(manager, model, optimizer, last, bad=bad)
    before = weights(model)
    for attempt in range(3):  # also when the error is caught and training goes on
        with pytest.raises(NonFiniteGradientError, match="max_"):
            train(manager, model, optimizer, 1, bad=bad, start=last)
        assert same(before, weights(model)), attempt
    assert manager.guard.skipped == 3


def test_a_good_step_ends_a_run_of_bad_ones():
    model = make_model()
    manager = create_gradient_manager(nonfinite="skip", max_consecutive_skips=2)
    train(manager, model, torch.optim.SGD(model.parameters(), lr=0.1), 12, bad={1, 2, 4, 5, 7, 8, 10, 11})
    assert manager.guard.skipped == 8


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_rollback_restores_weights_buffers_and_optimizer_state_of_the_last_good_snapshot(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = OPTIMIZERS[kind](model.parameters())
    manager = create_gradient_manager(nonfinite="rollback", rollback_after=2, snapshot_every=3)
    kept = []
    for step in range(6):  # snapshots are taken before steps 1 and 4
        kept.append((copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()["state"])))
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        optimizer.zero_grad()
        loss_of(model, seed=step).backward()
        kept[-1][0].update({name: buffer.clone() for name, buffer in model.named_buffers()})
        manager.step(model, optimizer, None)
        optimizer.step()
        assert buffers.keys() == dict(model.named_buffers()).keys()
    for step in (6, 7):
        optimizer.zero_grad()
        loss_of(model, seed=step).backward()
        poison(model)
        manager.step(model, optimizer, None)
        optimizer.step()
    assert [(event.action, event.restored_step) for event in manager.events] == [("skip", None), ("rollback", 4)]
    saved, state = kept[3]
    assert all(torch.equal(saved[name], tensor) for name, tensor in model.state_dict().items())
    now = optimizer.state_dict()["state"]
    assert now.keys() == state.keys()
    for key, entries in state.items():
        for name, old in entries.items():
            assert torch.equal(torch.as_tensor(old), torch.as_tensor(now[key][name])), name


def test_rollback_without_a_good_step_before_skips():
    model = make_model()
    manager = create_gradient_manager(nonfinite="rollback", rollback_after=1)
    train(manager, model, torch.optim.SGD(model.parameters(), lr=0.1), 1, bad={0})
    assert manager.events[0].action == "skip"


def test_healthy_is_a_gate_for_checkpoints():
    model = make_model()
    manager = create_gradient_manager(nonfinite="skip", max_grad_norm=1e9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(manager, model, optimizer, 5)
    assert manager.healthy()
    train(manager, model, optimizer, 1, bad={5}, start=5)
    assert not manager.healthy()
    train(manager, model, optimizer, 1, start=6)
    assert manager.healthy()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    assert not manager.healthy()
    assert manager.healthy(make_model())


# ---- GradScaler ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("way", ["step", "attach"])
def test_a_scaler_backs_off_by_itself_and_its_skipped_steps_are_recorded(fused, way):
    model, plain = make_model(), make_model()
    outcomes = []
    for managed in (True, False):
        this = model if managed else plain
        optimizer = torch.optim.AdamW(this.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=1000)
        manager = create_gradient_manager(max_grad_norm=1e9, nonfinite="raise")
        for step in range(8):
            optimizer.zero_grad()
            scaler.scale(loss_of(this, seed=step)).backward()
            if step in (2, 3, 6):
                poison(this, math.inf)
            if managed and way == "attach":
                with manager.attach(this, optimizer, scaler=scaler):
                    scaler.step(optimizer)
                    scaler.update()
                    continue
            if managed:
                manager.step(this, optimizer, None, scaler=scaler)
            scaler.step(optimizer)
            scaler.update()
        outcomes.append(scaler.get_scale())
        if managed:
            recorded = manager.guard.by_action
    assert outcomes == [2.0**13, 2.0**13]
    assert recorded == {"left to GradScaler": 3}
    # Unscaling before or inside the step rounds differently; with powers of two it does not.
    assert same(weights(model), weights(plain))


@pytest.mark.parametrize("fused", [False, True])
def test_clipping_under_a_scaler_is_in_unscaled_units(fused):
    results = []
    for scale in (None, 2.0**10):
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        manager = create_gradient_manager(max_grad_norm=0.05)
        with manager.attach(model, optimizer, scaler=scaler):
            for step in range(5):
                optimizer.zero_grad()
                scaler.scale(loss_of(model, seed=step)).backward()
                scaler.step(optimizer)
                scaler.update()
        assert manager.clipped_steps == 5
        assert not hasattr(optimizer, "grad_scale") or optimizer.grad_scale is None
        results.append((weights(model), manager.monitor.recent_norms()))
    for a, b in zip(results[0][0], results[1][0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-4)


# ---- fused optimizers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["SGD momentum fused", "AdamW fused"])
@pytest.mark.parametrize("clip_type", ["norm", "value", "agc", "per_group"])
def test_clipping_inside_a_fused_step_gives_the_weights_of_clipping_before_it(kind, clip_type):
    trained = []
    for attached in (False, True):
        model = make_model()
        optimizer = OPTIMIZERS[kind](model.parameters())
        limits = {"0.*": 0.02} if clip_type == "per_group" else {}
        manager = create_gradient_manager(max_grad_norm=0.05, clip_type=clip_type, group_max_norms=limits)
        for step in range(10):
            optimizer.zero_grad()
            loss_of(model, seed=step).backward()
            if attached:
                with manager.attach(model, optimizer):
                    optimizer.step()
            else:
                manager.step(model, optimizer, None)
                optimizer.step()
        assert manager.clipped_steps == 10
        assert not hasattr(optimizer, "grad_scale")
        trained.append(weights(model))
    for a, b in zip(*trained, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_the_factor_goes_into_a_fused_step_and_the_gradient_is_written_by_the_step_alone():
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    seen = []
    with create_gradient_manager(max_grad_norm=0.05).attach(model, optimizer):
        optimizer.register_step_pre_hook(lambda o, _a, _k: seen.append((float(o.grad_scale), gf.measure(model))))
        loss_of(model).backward()
        optimizer.step()
    ((scale, table),) = seen
    assert scale == pytest.approx(table.total.norm / 0.05, rel=1e-6)
    assert gf.measure(model).total.norm == pytest.approx(0.05, rel=1e-5)
    assert not hasattr(optimizer, "grad_scale")


# ---- checkpoints, memory, closures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("clip_type", ["norm", "adaptive", "zclip"])
def test_a_resumed_run_is_managed_like_the_uninterrupted_one(clip_type):
    def fresh():
        model = make_model()
        return create_gradient_manager(clip_type=clip_type, nonfinite="skip", max_grad_norm=3.0), model

    manager, model = fresh()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    bad = {5, 30}
    infos = train(manager, model, optimizer, 60, bad=bad)

    first, other = fresh()
    early = torch.optim.Adam(other.parameters(), lr=0.05)
    train(first, other, early, 40, bad=bad)
    state = json.loads(json.dumps(first.state_dict()))
    second, resumed = fresh()
    late = torch.optim.Adam(resumed.parameters(), lr=0.05)
    resumed.load_state_dict(other.state_dict())
    late.load_state_dict(early.state_dict())
    second.load_state_dict(state)
    again = train(second, resumed, late, 20, bad=bad, start=40)
    assert same(weights(model), weights(resumed))
    # NaN is not equal to itself: compared as text
    assert str([info["clipping"] for info in infos[40:]]) == str([info["clipping"] for info in again])
    assert str(manager.get_training_summary()) == str(second.get_training_summary())


def test_what_is_kept_does_not_grow_with_the_run():
    parameter = nn.Parameter(torch.zeros(2))
    model = nn.ParameterList([parameter])
    manager = create_gradient_manager(
        max_gradient_history=50,
        clip_type="adaptive",
        nonfinite="skip",
        max_consecutive_skips=10**9,
        max_total_skips=None,
    )
    for step in range(3000):
        parameter.grad = torch.tensor([1.0, math.nan if step % 2 else float(step)])
        manager.step(model, None, None)
    sizes = [
        len(manager.monitor.history),
        len(manager.events),
        len(manager.clipper.state_dict()["percentile"]["norms"]),
    ]
    assert sizes == [50, 1000, 100]


def test_a_loss_that_is_not_finite_is_a_bad_step_also_with_finite_gradients():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = create_gradient_manager(nonfinite="skip")
    before = weights(model)
    loss_of(model).backward()
    info = manager.step(model, optimizer, torch.tensor(math.nan), backward=False)
    optimizer.step()
    assert info["skipped"]
    assert same(before, weights(model))
    assert "the loss is nan" in str(manager.events[0])
    assert not manager.healthy()


def test_a_closure_computes_the_loss_and_is_replayed_to_name_the_operation():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, x):
            return self.linear(x).log()

    torch.manual_seed(0)
    model = Model()
    manager = create_gradient_manager(nonfinite="skip")
    x = torch.randn(8, 4)
    before, state = weights(model), torch.get_rng_state()
    info = manager.step(model, torch.optim.SGD(model.parameters(), lr=0.1), closure=lambda: model(x).mean())
    assert info["skipped"]
    assert info["origin"].operator == "log"
    assert info["origin"].phase == "forward"
    assert "self.linear(x).log()" in info["origin"].code
    assert same(before, weights(model))
    assert torch.equal(state, torch.get_rng_state())
    assert manager.origins == [info["origin"]]


def test_the_closure_of_an_optimizer_step_is_managed_too():
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    manager = create_gradient_manager(max_grad_norm=1e9)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    with manager.attach(model, optimizer):
        optimizer.step(closure)
        optimizer.step(closure)
    assert manager.total_steps == 2
    assert manager.monitor.history[-1]["loss"] is not None


def test_two_optimizers_are_each_managed_with_their_own_parameters():
    model = make_model()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)
    manager = create_gradient_manager(max_grad_norm=1e-3, debug_mode=True)
    with manager.attach(model, [first, second]):
        loss_of(model).backward()
        first.step()
        assert set(manager.last_step["layers"]) == {"0.weight", "0.bias"}
        second.step()
        assert set(manager.last_step["layers"]) == {"2.weight", "2.bias"}
    assert gf.measure(model[0]).total.norm == pytest.approx(1e-3, rel=1e-5)
    assert gf.measure(model[2]).total.norm == pytest.approx(1e-3, rel=1e-5)


def test_limits_of_optimizer_groups_are_used_per_group():
    model = make_model()
    groups = [{"params": model[0].parameters(), "max_grad_norm": 1e-3}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    loss_of(model).backward()
    create_gradient_manager(max_grad_norm=1e-2, clip_type="per_group").step(model, optimizer, None)
    assert gf.measure(model[0]).total.norm == pytest.approx(1e-3, rel=1e-5)
    assert gf.measure(model[2]).total.norm == pytest.approx(1e-2, rel=1e-5)


@pytest.mark.parametrize("bad", [None, 3, "model"])
def test_what_is_no_model_is_refused(bad):
    with pytest.raises(InputError, match="`model`"):
        create_gradient_manager().step(bad, None, None)
    with pytest.raises(InputError, match="`config`"):
        GradientManager({"max_grad_norm": 1.0})


def test_the_advisor_tells_rate_and_the_limit_for_a_tenth_of_the_steps():
    rng = np.random.default_rng(0)
    norms = np.exp(rng.normal(size=500))
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    manager = create_gradient_manager(max_grad_norm=0.5)
    for norm in norms:
        parameter.grad = torch.tensor([norm])
        manager.step(nn.ParameterList([parameter]), None, None)
    advice = manager.clip_advice()
    assert advice.clip_rate == (norms > 0.5).mean()
    assert (norms > advice.suggested_limit).mean() == pytest.approx(0.1)
    assert "lower the learning rate" in str(advice)
    assert manager.get_training_summary()["clipping_summary"]["suggested_max_grad_norm"] == advice.suggested_limit
    assert "lower the learning rate" not in str(gf.create_gradient_manager().clip_advice())


# ---- findings of a review: each was a way for a bad update to get through, or for harm to stay behind


def grads(*tensors, value=math.nan):
    for tensor in tensors:
        tensor.grad = torch.full_like(tensor, value)


def test_parameters_that_only_the_optimizer_has_are_guarded_and_clipped_too():
    model, learnt_loss = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD([*model.parameters(), *learnt_loss.parameters()], lr=1.0)
    for way in ("step", "attach"):
        manager = create_gradient_manager(nonfinite="skip", max_grad_norm=1.0)
        before = weights(learnt_loss)
        grads(model.weight, learnt_loss.weight)
        if way == "step":
            manager.step(model, optimizer, None)
            optimizer.step()
        else:
            with manager.attach(model, optimizer):
                optimizer.step()
        assert same(before, weights(learnt_loss)), way
        grads(model.weight, learnt_loss.weight, value=3.0)
        info = manager.step(model, optimizer, None)
        assert info["clipping"]["total_norm"] == pytest.approx(math.sqrt(18))
        assert learnt_loss.weight.grad.item() == pytest.approx(1 / math.sqrt(2))


def test_names_from_the_optimizer_never_hide_those_of_the_model():
    model = nn.ModuleList([nn.ParameterList([nn.Parameter(torch.zeros(1))])])  # its parameter is called 0.0
    extra = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([extra, *model.parameters()], lr=1.0)
    manager = create_gradient_manager(nonfinite="skip")
    grads(extra)
    grads(*model.parameters(), value=1.0)
    with manager.attach(model, optimizer):
        optimizer.step()
    assert extra.item() == 0.0
    assert manager.events[0].layers == ("optimizer.0.0",)


def test_rollback_keeps_optimizers_and_models_apart_and_holds_none_alive():
    first, second = make_model(0), make_model(1)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (first, second)]
    manager = create_gradient_manager(nonfinite="rollback", rollback_after=1, snapshot_every=1)
    for model, optimizer in zip((first, second), optimizers, strict=True):
        train(manager, model, optimizer, 3)
    before, state = weights(first), {id(p): s["step"].item() for p, s in optimizers[0].state.items()}
    train(manager, second, optimizers[1], 1, bad={3}, start=3)
    assert manager.events[-1].action == "rollback"
    assert same(before, weights(first))
    assert {id(p): s["step"].item() for p, s in optimizers[0].state.items()} == state
    assert {s["step"].item() for s in optimizers[1].state.values()} == {2.0}
    reference = weakref.ref(second[0].weight)
    optimizers.pop()
    del second, model, optimizer
    gc.collect()
    assert reference() is None


def test_a_snapshot_is_never_taken_of_spoilt_running_statistics():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = create_gradient_manager(nonfinite="rollback", rollback_after=2, snapshot_every=1)
    for batch in (
        torch.randn(4, 2),
        torch.full((4, 2), math.nan),
        torch.randn(4, 2),
        *[torch.full((4, 2), math.nan)] * 2,
    ):
        optimizer.zero_grad()
        model(batch).sum().backward()
        manager.step(model, optimizer, None)
        optimizer.step()
    assert manager.events[-1].action == "rollback"
    assert torch.isfinite(model[1].running_mean).all()


def test_finite_gradients_are_clipped_also_when_the_loss_is_not_finite():
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    grads(model.weight, value=1e8)
    info = create_gradient_manager(max_grad_norm=1.0).step(model, optimizer, torch.tensor(math.inf), backward=False)
    assert info["clipping"]["clipped"]
    assert model.weight.grad.item() == 1.0


@pytest.mark.parametrize("clip_type", ["adaptive", "zclip"])
def test_numbers_put_for_inf_set_no_limit_for_later_steps(clip_type):
    model = nn.Linear(2, 1, bias=False)
    manager = create_gradient_manager(clip_type=clip_type, max_grad_norm=math.inf, replace_inf_with=1.0 * 2**20)
    for step in range(60):
        generator = torch.Generator().manual_seed(step)
        model.weight.grad = 1 + 0.1 * torch.randn(1, 2, generator=generator)
        if step % 10 == 9:
            model.weight.grad[0, 0] = math.inf
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradientFlowWarning)
            manager.step(model, None, None)
    grads(model.weight, value=1000.0)
    assert manager.step(model, None, None)["clipping"]["clipped_norm"] < 3


def test_a_scaler_that_saw_nothing_is_not_trusted_with_a_nan_elsewhere():
    stepped, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    model = nn.ModuleList([stepped, other])
    optimizer = torch.optim.SGD(stepped.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    manager = create_gradient_manager(nonfinite="skip", max_grad_norm=1.0)
    scaler.scale(stepped(torch.full((1, 1), 100.0)).sum()).backward()
    grads(other.weight)
    info = manager.step(model, optimizer, None, scaler=scaler)
    assert not info["skipped"]
    assert info["clipping"]["total_norm"] == pytest.approx(100.0)  # unscaled, and of what this optimizer steps
    assert stepped.weight.grad.item() == pytest.approx(1.0)
    with pytest.raises(InputError, match="`scaler` needs `optimizer`"):
        manager.step(model, None, None, scaler=scaler)


def test_endless_overflows_are_no_overflows():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    manager = create_gradient_manager(nonfinite="skip", enable_monitoring=False)

    def bad_steps():
        for _ in range(300):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            poison(model)
            manager.step(model, optimizer, None, scaler=scaler)
            assert not manager.healthy()
            scaler.step(optimizer)
            scaler.update()

    with pytest.raises(NonFiniteGradientError, match="no overflow"):
        bad_steps()


def test_two_managers_on_a_fused_optimizer_leave_nothing_behind_and_both_limits_hold():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    first, second = create_gradient_manager(max_grad_norm=0.1), create_gradient_manager(max_grad_norm=0.05)
    with first.attach(model, optimizer), second.attach(model, optimizer):
        loss_of(model).backward()
        optimizer.step()
    assert not hasattr(optimizer, "grad_scale")
    assert gf.measure(model).total.norm == pytest.approx(0.05, rel=1e-4)
    with (
        first.attach(model, optimizer),
        pytest.raises(gf.MonitorStateError, match="already"),
        first.attach(model, optimizer),
    ):
        pass


def test_a_fused_optimizer_with_an_empty_group_is_clipped():
    model = make_model()
    optimizer = torch.optim.Adam([{"params": []}, {"params": model.parameters()}], fused=True)
    with create_gradient_manager(max_grad_norm=1e-3).attach(model, optimizer):
        loss_of(model).backward()
        optimizer.step()
    assert gf.measure(model).total.norm == pytest.approx(1e-3, rel=1e-4)


def test_a_held_schedule_can_be_saved_and_keeps_a_step_of_the_users_own():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    manager = create_gradient_manager(nonfinite="skip")
    grads(*model.parameters())
    manager.step(model, optimizer, None, scheduler=scheduler)
    pickle.dumps(scheduler.state_dict())
    assert "step" not in scheduler.state_dict()
    called = []
    scheduler.step = lambda: called.append(1)
    loss_of(model).backward()
    manager.step(model, optimizer, None, scheduler=scheduler)
    scheduler.step()
    assert called == [1]


@pytest.mark.parametrize("copied", [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy, copy.copy])
def test_a_held_schedule_can_be_pickled_and_copied_and_is_held_once_again(copied):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    grads(*model.parameters())
    create_gradient_manager(nonfinite="skip").step(model, optimizer, None, scheduler=scheduler)
    other = copied(scheduler)
    for each in (other, scheduler):
        each.step()
        assert each.last_epoch == 0
        assert type(each) is torch.optim.lr_scheduler.StepLR
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch: the schedule moved before the optimizer
            each.step()
        assert each.last_epoch == 1


def test_a_step_set_on_the_schedule_itself_is_held_too():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    called = []
    scheduler.step = lambda: called.append(1)
    grads(*model.parameters())
    create_gradient_manager(nonfinite="skip").step(model, optimizer, None, scheduler=scheduler)
    scheduler.step()
    assert called == []
    scheduler.step()
    assert called == [1]


class Slotted:
    """A schedule that cannot be given another class."""

    __slots__ = ()

    def step(self):
        """Move."""


def test_a_schedule_that_cannot_be_held_is_refused_when_it_is_given():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = create_gradient_manager(nonfinite="skip")
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1), Slotted()]
    loss_of(model).backward()
    with pytest.raises(InputError, match=r"`scheduler` \(Slotted\) cannot be held.*`__slots__`"):
        manager.step(model, optimizer, None, scheduler=Slotted())
    with pytest.raises(InputError, match=r"`scheduler\[1\]`"), manager.attach(model, optimizer, scheduler=schedulers):
        pass
    with pytest.raises(InputError, match="must have a `step"), manager.attach(model, optimizer, scheduler=0.1):
        pass
    assert manager.total_steps == 0
    assert not optimizer._optimizer_step_pre_hooks


def test_only_the_gradients_that_step_managed_count_as_managed():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = create_gradient_manager(nonfinite="skip", max_grad_norm=1.0)
    before = weights(model)
    with manager.attach(model, optimizer):
        loss_of(model).backward()
        manager.step(model, optimizer, None)  # and no optimizer.step() for it
        grads(*model.parameters())
        optimizer.step()
    assert same(before, weights(model))
    assert manager.guard.skipped == 1


def test_a_bad_step_is_unhealthy_whatever_the_frequency_of_checks():
    model = make_model()
    manager = create_gradient_manager(check_frequency=10, nonfinite="zero")
    infos = train(manager, model, torch.optim.SGD(model.parameters(), lr=0.1), 5, bad={3})
    assert [info["health"]["healthy"] for info in infos] == [True, True, True, False, True]
    assert [info["statistics"]["nan_count"] for info in infos] == [0, 0, 0, 1, 0]
    silent = create_gradient_manager(enable_monitoring=False, nonfinite="zero")
    infos = train(silent, model, torch.optim.SGD(model.parameters(), lr=0.1), 2, bad={1})
    assert [info["health"]["healthy"] for info in infos] == [True, False]
    assert infos[0]["statistics"]["total_norm"] > 0


def test_what_a_step_returns_is_the_callers():
    model = make_model()
    manager = create_gradient_manager(nonfinite="zero")
    info = train(manager, model, torch.optim.SGD(model.parameters(), lr=0.1), 1, bad={0})[0]
    info["health"]["warnings"].append("mine")
    assert "mine" not in manager.get_training_summary()["health_issues"]["latest_warnings"]


def test_zeroed_steps_do_not_count_as_skipped_ones():
    model = make_model()
    manager = create_gradient_manager(nonfinite="zero", max_consecutive_skips=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(manager, model, optimizer, 5, bad=set(range(5)))
    manager.config.nonfinite = "skip"
    assert train(manager, model, optimizer, 1, bad={5}, start=5)[0]["skipped"]


def test_a_loaded_state_forgets_the_snapshots_of_the_run_before():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = create_gradient_manager(nonfinite="rollback", rollback_after=1)
    train(manager, model, optimizer, 3)
    manager.load_state_dict(create_gradient_manager().state_dict())
    with torch.no_grad():
        model[0].weight.fill_(42.0)
    train(manager, model, optimizer, 1, bad={0})
    assert manager.events[-1].action == "skip"
    assert (model[0].weight == 42.0).all()


def test_a_used_manager_can_be_pickled_and_copied():
    model = make_model()
    manager = create_gradient_manager(nonfinite="rollback")
    train(manager, model, torch.optim.SGD(model.parameters(), lr=0.1), 5)
    for other in (pickle.loads(pickle.dumps(manager)), copy.deepcopy(manager)):
        assert other.get_training_summary() == manager.get_training_summary()
        assert train(other, model, torch.optim.SGD(model.parameters(), lr=0.1), 1)[0]["step"] == 6


def test_mistakes_are_named():
    model = make_model()
    manager = create_gradient_manager()
    with pytest.raises(InputError, match="`optimizer`"):
        manager.step(model, loss_of(model))
    assert manager.total_steps == 0
    with pytest.raises(InputError, match="clipped_steps"):
        manager.load_state_dict({"total_steps": 3})
    with pytest.raises(ConfigError, match="`rollback_after`"):
        create_gradient_manager(nonfinite="rollback", rollback_after=20)
    with pytest.raises(AttributeError):
        manager.config = GradientConfig()
    grouped = create_gradient_manager(clip_type="per_group")
    grouped.config.group_max_norms["*"] = -1.0
    grads(*model.parameters(), value=1.0)
    with pytest.raises(ConfigError, match="group_max_norms"):
        grouped.step(model, None, None)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "max_grad_norm": math.nan}], lr=0.1)
    with pytest.raises(ConfigError, match="optimizer group"):
        create_gradient_manager(clip_type="per_group").step(model, optimizer, None)


def test_steps_without_gradients_are_no_norms():
    manager = create_gradient_manager(clip_type="adaptive", adaptive_min_history=1)
    manager.step(make_model(), None, None)
    assert manager.get_training_summary()["gradient_statistics"]["gradient_norms"]["count"] == 0
    assert manager.clipper.state_dict()["percentile"]["norms"] == []


def test_advice_on_units_speaks_of_no_limit_on_the_norm():
    model = make_model()
    manager = create_gradient_manager(clip_type="agc")
    train(manager, model, torch.optim.SGD(model.parameters(), lr=0.01), 30)
    assert manager.clipped_steps == 30
    assert "learning rate" not in str(manager.clip_advice())
