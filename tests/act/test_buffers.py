"""Buffers of a bad step: put back by `skip` and `rollback`, told by every policy, whatever drives the loop."""

import contextlib
import copy
import gc
import math
import warnings
import weakref

import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow import GradientConfig, GradientFlowWarning, NonFiniteGradientError, create_gradient_manager
from gradient_flow.act import buffers as buffers_module
from gradient_flow.act.buffers import LOOK_EVERY, BufferKeeper, bad_buffers

NAN = math.nan
BN_STATISTICS = ["1.running_mean", "1.running_var"]


class Tempered(nn.Module):
    """Replaces its buffer by another object with each forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("unset", None)

    def forward(self, x):
        self.temperature = self.temperature * 0.9 + 0.1 * x.detach().abs().mean()
        self.unset = x.detach()
        return x / self.temperature


class Codebook(nn.Module):
    """Writes past the version counter, and has no other buffer that would tell."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.ones(8))

    def forward(self, x):
        self.codes.data.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x * self.codes.detach().clone()


def spectral():
    return nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))


KINDS = {
    "batch norm 1d": lambda: nn.BatchNorm1d(8),
    "batch norm 2d": lambda: nn.Sequential(nn.Unflatten(1, (8, 1, 1)), nn.BatchNorm2d(8), nn.Flatten()),
    "cumulative batch norm": lambda: nn.BatchNorm1d(8, momentum=None),
    "spectral norm": spectral,
    "replaced": Tempered,
    "past the counter": Codebook,
}


def make_model(kind="batch norm 1d"):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), KINDS[kind](), nn.Linear(8, 1))


def batch(step, bad=()):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
    if step in bad:
        x[3, 2] = NAN
    return x


def buffers(model):
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def backward(model, step, bad=(), scaler=None, micro=1):
    for part in batch(step, bad).chunk(micro):
        loss = (model(part) - part.nan_to_num().sum(1, keepdim=True)).square().mean() / micro
        (loss if scaler is None else scaler.scale(loss)).backward()


# ---- ways to drive the loop: each runs the steps and returns the manager ---------------------------------------------


def by_step(model, optimizer, steps, bad, config, micro=1):
    manager = gf.GradientManager(config)
    for step in steps:
        optimizer.zero_grad()
        backward(model, step, bad, micro=micro)
        manager.step(model, optimizer, None)
        optimizer.step()
    return manager


def by_attach(model, optimizer, steps, bad, config, micro=1):
    manager = gf.GradientManager(config)
    with manager.attach(model, optimizer):
        for step in steps:
            optimizer.zero_grad()
            backward(model, step, bad, micro=micro)
            optimizer.step()
    return manager


def by_watch(model, optimizer, steps, bad, config, micro=1):
    manager = gf.GradientManager(config)
    with gf.watch(model, optimizer, manager=manager, every=3):
        for step in steps:
            optimizer.zero_grad()
            backward(model, step, bad, micro=micro)
            optimizer.step()
    return manager


def by_training_optimizer(model, optimizer, steps, bad, config, micro=1):
    training = gf.TrainingOptimizer(gradient_config=config, optimizer=optimizer)
    steps = list(steps)

    def train_func(epoch):
        optimizer.zero_grad()
        backward(model, steps[epoch], bad, micro=micro)
        optimizer.step()
        return 1.0

    training.run_training(model, train_func, max_epochs=len(steps))
    return training.gradient_manager


def by_scaler(way, fused):
    def run(model, optimizer, steps, bad, config, micro=1):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
        manager = gf.GradientManager(config)

        def loop(act):
            for step in steps:
                optimizer.zero_grad()
                backward(model, step, bad, scaler, micro)
                act()
                scaler.step(optimizer)
                scaler.update()

        if way == "step":
            loop(lambda: manager.step(model, optimizer, None, scaler=scaler))
        elif way == "attach":
            with manager.attach(model, optimizer, scaler=scaler):
                loop(lambda: None)
        else:
            with gf.watch(model, optimizer, manager=manager, scaler=scaler):
                loop(lambda: None)
        return manager

    return run


WAYS = {
    "step": by_step,
    "attach": by_attach,
    "watch": by_watch,
    "TrainingOptimizer": by_training_optimizer,
    **{
        f"scaler {way}{' fused' if fused else ''}": by_scaler(way, fused)
        for way in ("step", "attach", "watch")
        for fused in (False, True)
    },
}


def run(way, kind="batch norm 1d", steps=range(8), bad=(), micro=1, **settings):
    model = make_model(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = GradientConfig(**{"nonfinite": "skip", "max_grad_norm": 1e9, **settings})
    manager = WAYS[way](model, optimizer, steps, bad, config, micro)
    return model, manager


# ---- as if the batch had never been ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [{3}, {3, 4}, {2, 5, 7}])
def test_a_skipped_step_leaves_the_buffers_of_a_run_without_its_batch(kind, bad):
    model, manager = run("attach", kind, bad=bad)
    plain, _ = run("attach", kind, steps=[step for step in range(8) if step not in bad])
    assert manager.guard.skipped == len(bad)
    assert_same(model.state_dict(), plain.state_dict())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", ["skip", "rollback"])
@pytest.mark.parametrize("bad", [{3}, {4, 7}])
def test_so_it_is_whatever_drives_the_loop(way, policy, bad):
    model, manager = run(way, bad=bad, nonfinite=policy)
    plain, _ = run(way, steps=[step for step in range(8) if step not in bad], nonfinite=policy)
    assert manager.guard.bad_steps == len(bad)
    assert_same(model.state_dict(), plain.state_dict())
    assert model[1].num_batches_tracked.item() == 8 - len(bad)
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("way", ["step", "attach", "scaler attach", "scaler step fused"])
def test_all_micro_batches_of_a_step_are_undone(way):
    model, _ = run(way, bad={3}, micro=4)
    plain, _ = run(way, steps=[0, 1, 2, 4, 5, 6, 7], micro=4)
    assert_same(model.state_dict(), plain.state_dict())
    assert model[1].num_batches_tracked.item() == 28


@pytest.mark.parametrize("way", ["attach", "watch", "TrainingOptimizer"])
def test_a_bad_first_step_is_undone_where_the_model_was_seen_before(way):
    model, manager = run(way, steps=range(1), bad={0})
    assert_same(buffers(model), buffers(make_model()))
    assert "put back" in str(manager.events[0])


def test_a_bad_first_step_of_a_plain_loop_cannot_be_undone_and_says_so():
    model, manager = run("step", steps=range(1), bad={0})
    assert model[1].running_mean.isnan().any()
    assert manager.events[0].buffers == ("1.running_mean", "1.running_var")
    assert "left: no good step was seen before this one" in str(manager.events[0])
    assert "reset_running_stats" in " ".join(manager.last_step["health"]["recommendations"])


@pytest.mark.parametrize("by", ["closure", "mark"])
def test_a_closure_or_a_mark_lets_even_the_first_step_be_undone(by):
    model = make_model()
    manager = create_gradient_manager(nonfinite="skip")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if by == "closure":
        manager.step(model, optimizer, closure=lambda: model(batch(0, {0})).mean())
    else:
        manager.mark_step_start(model)
        backward(model, 0, {0})
        manager.step(model, optimizer, None)
    assert_same(buffers(model), buffers(make_model()))


def test_a_limit_of_skips_that_raises_leaves_good_buffers():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = GradientConfig(nonfinite="skip", max_consecutive_skips=1)
    with pytest.raises(NonFiniteGradientError):
        by_attach(model, optimizer, range(8), {3, 4}, config)
    assert all(torch.isfinite(buffer).all() for buffer in model.buffers())


def test_rollback_restores_a_buffer_that_was_replaced_as_an_object():
    model, manager = run("step", "replaced", bad={5, 6}, steps=range(7), nonfinite="rollback", rollback_after=2)
    plain, _ = run("step", "replaced", steps=[0], nonfinite="rollback")
    assert [(event.action, event.restored_step) for event in manager.events] == [("skip", None), ("rollback", 1)]
    assert_same(buffers(model), buffers(plain))


def test_an_object_that_took_the_place_of_a_buffer_is_not_written_into():
    model = nn.Sequential(Tempered())
    keeper = BufferKeeper(model, 64)
    keeper.refresh()
    before = model[0].temperature
    mine = torch.full((), 7.0)
    model[0].temperature = mine
    keeper.put_back()
    assert mine == 7.0
    assert model[0].temperature is before
    assert model[0].unset is None


def test_buffers_go_back_to_the_device_and_dtype_that_the_model_moved_to():
    model = make_model()
    keeper = BufferKeeper(model, 64)
    keeper.refresh()
    model.double()
    model(batch(0).double())
    keeper.put_back()
    assert model[1].running_mean.dtype == torch.float64
    assert (model[1].running_mean == 0).all()


def test_putting_back_does_not_break_a_graph_that_is_still_needed():
    model = make_model()
    keeper = BufferKeeper(model, 64)
    keeper.refresh()
    loss = model(batch(0)).sum()
    loss.backward(retain_graph=True)
    keeper.put_back()
    loss.backward()


def test_what_the_user_put_there_between_steps_is_kept_when_the_manager_is_told():
    model = make_model()
    manager = create_gradient_manager(nonfinite="skip")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with manager.attach(model, optimizer):
        backward(model, 0)
        optimizer.step()
        model[1].running_mean.fill_(5.0)
        manager.see_buffers(model)
        backward(model, 1, {1})
        optimizer.step()
    assert (model[1].running_mean == 5.0).all()


# ---- told by every policy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["observe", "zero", "replace"])
def test_policies_that_go_on_leave_the_buffers_and_say_so(policy):
    model, manager = run("attach", steps=range(4), bad={3}, nonfinite=policy)
    info = manager.last_step
    assert model[1].running_mean.isnan().all()
    assert list(info["nan_inf"]["bad_buffers"]) == BN_STATISTICS
    assert info["nan_inf"]["bad_buffers"]["1.running_mean"] == 8
    assert not info["nan_inf"]["buffers_put_back"]
    assert "buffer `1.running_mean` and 1 more not finite, left as they are" in str(manager.events[0])
    assert any("Non-finite buffers: `1.running_mean` (8 elements)" in text for text in info["health"]["warnings"])
    assert model[1].num_batches_tracked.item() == 4


def test_buffers_that_stay_bad_keep_the_run_unhealthy():
    model, manager = run("attach", steps=range(6), bad={3}, nonfinite="zero")
    info = manager.last_step
    assert info["nan_inf"]["action"] is None
    assert list(info["nan_inf"]["bad_buffers"]) == BN_STATISTICS
    assert not info["health"]["healthy"]
    assert manager.unhealthy_steps == 3
    assert not manager.healthy(model)


def test_skip_tells_what_it_put_back_and_the_next_step_is_healthy():
    _, manager = run("attach", steps=range(5), bad={3})
    assert "buffer `1.running_mean` and 1 more not finite, put back" in str(manager.events[0])
    assert manager.last_step["nan_inf"]["bad_buffers"] == {}
    assert manager.last_step["health"]["healthy"]
    assert manager.healthy()


def test_a_forward_outside_of_a_step_that_spoils_buffers_is_noticed_and_undone():
    model = make_model()
    manager = create_gradient_manager(nonfinite="skip", max_grad_norm=1e9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with manager.attach(model, optimizer):
        for step in range(4):
            if step == 2:
                model(batch(9, {9}))  # a validation that forgot eval()
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            if step == 2:
                assert list(manager.last_step["nan_inf"]["bad_buffers"]) == BN_STATISTICS
                assert manager.last_step["nan_inf"]["buffers_put_back"]
    assert manager.guard.bad_steps == 0
    assert all(torch.isfinite(buffer).all() for buffer in model.buffers())


def test_a_checkpoint_with_spoilt_buffers_is_noticed_at_the_first_step():
    for policy in ("skip", "replace"):
        model = make_model()
        model[1].running_var.fill_(NAN)
        manager = by_step(
            model, torch.optim.SGD(model.parameters(), lr=0.01), [0], (), GradientConfig(nonfinite=policy)
        )
        assert list(manager.last_step["nan_inf"]["bad_buffers"]) == ["1.running_var"]
        assert not manager.last_step["health"]["healthy"]


def test_masks_of_infinity_are_no_fault():
    model = make_model()
    model.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))
    model.register_buffer("alibi", torch.arange(16.0).view(4, 4) + model.mask)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for policy in ("rollback", "replace"):
        config = GradientConfig(nonfinite=policy, rollback_after=1, snapshot_every=1, max_grad_norm=1e9)
        manager = by_step(model, optimizer, range(3), {2}, config)
        assert set(manager.events[0].buffers) <= set(BN_STATISTICS)
        model[1].reset_running_stats()
        assert manager.events[0].action == policy
    assert "mask" not in bad_buffers(model)
    assert "alibi" in bad_buffers(model)  # unless it was seen before
    assert not manager.healthy()  # because of the bad step alone
    by_step(model, optimizer, [7], (), GradientConfig())
    manager.step(model, None, None)
    assert manager.healthy()


def test_events_with_buffers_survive_a_checkpoint():
    _, manager = run("attach", steps=range(5), bad={3})
    again = create_gradient_manager()
    again.load_state_dict(manager.state_dict())
    assert again.events == manager.events
    old = manager.state_dict()
    for name in ("buffers", "buffer_count", "buffers_done"):
        del old["guard"]["events"][0][name]
    again.load_state_dict(old)
    assert again.events[0].buffers == ()


# ---- cost and limits -------------------------------------------------------------------------------------------------


def test_above_the_limit_the_largest_are_left_out_with_one_warning():
    model = make_model()
    model.register_buffer("table", torch.zeros(2**18))  # 1 MiB

    def tell(_module, given):
        model.table.fill_(given[0].detach().mean())

    model[1].register_forward_pre_hook(tell)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = GradientConfig(nonfinite="skip", buffer_limit_mib=0.5)
    with pytest.warns(GradientFlowWarning, match="`buffer_limit_mib` .0.5.*does not undo `table`") as caught:
        manager = by_attach(model, optimizer, range(3), {2}, config)
    assert len(caught) == 1
    assert model.table.isnan().all()
    assert torch.isfinite(model[1].running_mean).all()
    assert "left (`table`): over `buffer_limit_mib`" in str(manager.events[0])


def test_constant_buffers_are_copied_once_and_read_seldom(monkeypatch):
    model = make_model()
    model.register_buffer("table", torch.zeros(1000))
    read = []
    measured, copied = buffers_module.measure, buffers_module._copy_all
    monkeypatch.setattr(buffers_module, "measure", lambda b: read.append(set(b)) or measured(b))
    names = []
    monkeypatch.setattr(
        buffers_module, "_copy_all", lambda b, r: names.append({home.path(name) for home, name, _ in b}) or copied(b, r)
    )
    by_attach(model, torch.optim.SGD(model.parameters(), lr=0.01), range(6), (), GradientConfig(nonfinite="skip"))
    changing = {*BN_STATISTICS, "1.num_batches_tracked"}
    assert names == [changing | {"table"}] + [changing] * 6
    assert read[2:] == [set(BN_STATISTICS)] * 6
    read.clear()
    by_attach(model, torch.optim.SGD(model.parameters(), lr=0.01), range(6), (), GradientConfig(nonfinite="replace"))
    # All when the model is first seen, and with the first step of each hundred; then what changes.
    assert read[2:] == [set(BN_STATISTICS)] * 5


def test_a_module_that_begins_to_move_later_is_followed():
    model = make_model().eval()
    manager = create_gradient_manager(nonfinite="skip", max_grad_norm=1e9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with manager.attach(model, optimizer):
        for step in range(8):
            if step == 4:
                model.train()
            before = buffers(model)
            optimizer.zero_grad()
            backward(model, step, {7})
            optimizer.step()
    assert_same(buffers(model), before)


def test_buffers_of_modules_that_came_later_are_kept_too():
    model = make_model()
    manager = create_gradient_manager(nonfinite="skip", max_grad_norm=1e9)
    with manager.attach(model, torch.optim.SGD(model.parameters(), lr=0.01)):
        backward(model, 0)
    model.append(nn.BatchNorm1d(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with manager.attach(model, optimizer):
        for step in range(LOOK_EVERY + 2):
            optimizer.zero_grad()
            backward(model, step, {LOOK_EVERY + 1})
            optimizer.step()
            if step == LOOK_EVERY:
                before = buffers(model)
    assert_same(buffers(model), before)


def test_a_model_is_not_kept_alive_and_a_manager_can_be_copied():
    model, manager = run("attach", bad={3})
    reference = weakref.ref(model[1].running_mean)
    assert copy.deepcopy(manager).events == manager.events
    copied = copy.deepcopy(model)
    del model
    gc.collect()
    assert reference() is None
    assert not copied._forward_pre_hooks


def test_a_compiled_model_under_a_scaler_is_not_disturbed():
    model = make_model()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    manager = create_gradient_manager(nonfinite="skip")
    with manager.attach(model, optimizer, scaler=scaler):
        for step in range(4):
            if step == 1:
                torch._dynamo.reset()  # compiled anew, with the hook in place
            optimizer.zero_grad()
            backward(compiled, step, {2}, scaler)
            scaler.step(optimizer)
            scaler.update()
    assert manager.guard.by_action == {"left to GradScaler": 1}
    assert all(torch.isfinite(buffer).all() for buffer in model.buffers())


def test_a_copy_of_a_model_under_a_scaler_takes_no_working_hook_along():
    model = make_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    manager = create_gradient_manager(nonfinite="skip")
    with manager.attach(model, optimizer, scaler=scaler):
        backward(model, 0, scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
        copied = copy.deepcopy(model)
        copied(batch(0))
    assert manager.total_steps == 1


def test_buffers_that_cannot_be_handled_do_not_end_the_training(monkeypatch):
    def broken(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(buffers_module, "_copy_all", broken)
    with pytest.warns(
        GradientFlowWarning, match="Buffers are no longer watched .RuntimeError: no such kernel"
    ) as caught:
        _, manager = run("attach", bad={3})
    assert len(caught) == 1
    assert manager.guard.skipped == 1


def test_kinds_of_buffers_that_hold_no_numbers_yet_or_cannot_be_measured():
    model = make_model()
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    model.register_buffer("flags", torch.tensor([True, False]))
    model.register_buffer("lazy", nn.UninitializedBuffer())
    model.register_buffer("meta", torch.empty(3, device="meta"))
    with torch.inference_mode():
        model.register_buffer("inference", torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientFlowWarning)
        config = GradientConfig(nonfinite="skip", max_grad_norm=1e9)
        manager = by_attach(model, torch.optim.SGD(model.parameters(), lr=0.01), range(4), {2}, config)
    assert manager.last_step["health"]["healthy"]
    assert torch.isfinite(model[1].running_mean).all()
    assert not manager._actor._buffers_failed


@pytest.mark.parametrize("bad", [-1.0, NAN, "64"])
def test_a_bad_limit_is_refused_by_name(bad):
    with pytest.raises(gf.ConfigError, match="`buffer_limit_mib`"):
        GradientConfig(buffer_limit_mib=bad)


# ---- several models, and a buffer that goes bad alone ---------------------------------------------------------------


def gan(way, policy, bad):
    """A generator and a discriminator in one loop; one step of the generator has a NaN in its noise."""
    torch.manual_seed(0)
    nets = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)) for _ in range(2))
    generator, critic = nets
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    manager = create_gradient_manager(nonfinite=policy)
    attached = [manager.attach(net, each) for net, each in zip(nets, optimizers, strict=True)]
    data = torch.Generator().manual_seed(1)
    with contextlib.ExitStack() as stack:
        for each in attached if way == "attach" else ():
            stack.enter_context(each)
        for step in range(6):
            for net, optimizer in ((critic, optimizers[1]), (generator, optimizers[0])):
                noise = torch.randn(8, 4, generator=data)
                if step == 3 and net is generator:
                    if bad == "left out":
                        continue
                    noise[0, 0] = NAN if bad else 0.0
                for other in optimizers:
                    other.zero_grad()
                loss = critic(generator(noise)).square().mean()
                if way == "step":
                    manager.step(net, optimizer, loss)
                else:
                    loss.backward()
                optimizer.step()
    return nets.state_dict()


@pytest.mark.parametrize("way", ["step", "attach"])
@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_a_bad_step_is_undone_in_every_model_that_it_ran(way, policy):
    undone, never = gan(way, policy, bad=True), gan(way, policy, bad="left out")
    assert all(torch.equal(undone[name], never[name]) for name in never)


@pytest.mark.parametrize("policy", ["replace", "zero", "observe", "raise", "skip"])
def test_a_buffer_that_goes_bad_while_gradients_stay_finite_is_told_at_that_step(policy):
    torch.manual_seed(0)
    model, side = nn.Linear(4, 1), nn.BatchNorm1d(4)
    model.side = side
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = create_gradient_manager(nonfinite=policy)
    told = []
    with manager.attach(model, optimizer):
        for step in range(1, 6):
            optimizer.zero_grad()
            with torch.no_grad():
                side(torch.full((2, 4), NAN) if step == 3 else torch.randn(2, 4))
            model(torch.randn(2, 4)).square().mean().backward()
            optimizer.step()
            told.append(sorted(manager.last_step["nan_inf"]["bad_buffers"]))
    bad = ["side.running_mean", "side.running_var"]
    assert told == ([[], [], bad, [], []] if policy == "skip" else [[], [], bad, bad, bad])
