"""Several optimizers: a record says whose it is, each is judged by itself, those inside one backward are one step."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradient_flow as gf


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 6, generator=generator) for _ in range(count)]


def step(model, optimizer, x, scale=1.0, before_step=lambda: None):
    optimizer.zero_grad()
    (scale * model(x).square().mean()).backward()
    before_step()
    optimizer.step()


def two():
    model = nn.ModuleDict({"actor": net(0), "critic": net(1)})
    return model, [torch.optim.SGD(part.parameters(), lr=1e-3) for part in model.values()]


# ---- whose a step is ------------------------------------------------------------------------------------------------


def test_a_record_says_whose_it_is_also_before_the_second_optimizer_joins(tmp_path):
    model, (first, second) = two()
    with gf.watch(model, first, run=tmp_path) as flow:
        step(model["actor"], first, batches(1)[0])
        flow.add_optimizer(second)
        for x in batches(2):
            step(model["actor"], first, x)
            step(model["critic"], second, x)
    assert flow.history["optimizer"].tolist() == [0, 0, 1, 0, 1]
    assert gf.load_run(tmp_path).series("optimizer").tolist() == [0, 0, 1, 0, 1]


def test_a_step_told_by_hand_of_an_optimizer_that_is_not_watched_is_its_own():
    model, (first, second) = two()
    with gf.watch(model, [first]) as flow:
        for x in batches(2):
            step(model["actor"], first, x)
            step(model["critic"], second, x, before_step=lambda: flow.step(second))
    assert flow.history["optimizer"].tolist() == [0, 1, 0, 1]


# ---- each is judged by itself ---------------------------------------------------------------------------------------


def test_a_step_without_a_clip_counts_as_not_clipped():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with gf.watch(model, optimizer) as flow:
        for at, x in enumerate(batches(80)):
            clip = (lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-3)) if at % 2 else (lambda: None)
            step(model, optimizer, x, before_step=clip)
    assert len([norm for norm in flow.history["clipped_norm"] if norm < 1e-2]) == 40
    assert "of the steps are clipped" not in str(flow.diagnose())


def test_clipping_is_judged_for_each_optimizer():
    model, optimizers = two()
    with gf.watch(model, optimizers) as flow:
        for x in batches(40):
            step(model["actor"], optimizers[0], x)
            clip = partial(nn.utils.clip_grad_norm_, list(model["critic"].parameters()), 1e-3)
            step(model["critic"], optimizers[1], x, before_step=clip)
    (issue,) = [issue for issue in flow.diagnose() if "clipped_share" in issue.evidence]
    assert issue.layer == "optimizer 1"
    assert issue.evidence["clipped_share"] == 1.0


def test_losses_and_rates_belong_to_whoever_logs_them():
    model, optimizers = two()
    optimizers[1].param_groups[0]["lr"] = 1e-9
    with gf.watch(model, optimizers, layers_every=2) as flow:
        for at, x in enumerate(batches(40)):
            flow.log(loss=0.8**at)  # the actor learns: a falling norm is success
            step(model["actor"], optimizers[0], x, scale=0.8**at)
            flow.log(loss=1.0)  # the critic does not move
            step(model["critic"], optimizers[1], x)
    (issue,) = flow.diagnose()
    assert (issue.issue_type.name, issue.layer.split(".")[0]) == ("SLOW", "critic")
    assert issue.evidence["loss_change"] == 1.0
    assert issue.evidence["learning_rate"] == 1e-9


def test_two_networks_on_different_scales_are_no_fault():
    """Norms a million times apart, in turn: mixed they look like spikes, or like a gradient lost over depth."""
    model, optimizers = two()
    with gf.watch(model, optimizers) as flow:
        for x in batches(60):
            step(model["actor"], optimizers[0], x, scale=1e-6)
            step(model["critic"], optimizers[1], x)
    assert [
        issue for issue in flow.diagnose() if issue.severity > gf.IssueSeverity.LOW and issue.issue_type.name != "SLOW"
    ] == []


def test_a_bad_step_is_compared_with_the_steps_of_its_own_optimizer():
    model, optimizers = two()
    with gf.watch(model, optimizers) as flow:
        for x in batches(10):
            step(model["critic"], optimizers[1], x, scale=100.0)
            step(model["actor"], optimizers[0], x)
        step(model["actor"], optimizers[0], torch.full((4, 6), math.nan))
    issue = flow.diagnose()[0]
    assert issue.issue_type.name == "NUMERICAL"
    own = flow.history["norm"][flow.history["optimizer"] == 0]
    assert issue.evidence["norms_before"] == pytest.approx(own[-4:-1].tolist())


# ---- inside backward ------------------------------------------------------------------------------------------------


def step_in_backward(model, make=torch.optim.SGD, clip=None, **settings):
    """Torch's recipe: an optimizer for each parameter, which steps as soon as its gradient is there."""
    optimizers = {p: make([p], **settings) for p in model.parameters()}

    def hook(parameter):
        if clip is not None:
            nn.utils.clip_grad_norm_([parameter], clip)
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    return list(optimizers.values())


def norm_of(model, x):
    twin = net()
    twin.load_state_dict(model.state_dict())
    twin(x).square().mean().backward()
    return math.sqrt(sum(p.grad.double().square().sum().item() for p in twin.parameters()))


@pytest.mark.parametrize("settings", [{}, {"every": 2}])
def test_optimizers_in_backward_are_one_step_with_one_norm(settings, tmp_path):
    model = net()
    optimizers = step_in_backward(model, lr=0.01)
    expected = []
    with gf.watch(model, optimizers, run=tmp_path, layers_every=1, **settings) as flow:
        for at, x in enumerate(batches(6), start=1):
            expected.append(norm_of(model, x))
            loss = model(x).square().mean()
            flow.log(loss=loss.detach())
            loss.backward()
            assert flow.steps == at
            assert len(flow.history) == at // flow.every  # it is there as soon as the backward is over
    assert flow.history["norm"].tolist() == pytest.approx(expected[flow.every - 1 :: flow.every], rel=1e-5)
    assert flow.history["lr"].tolist() == [0.01] * len(flow.history)
    assert set(flow.history["optimizer"].tolist()) == {0}
    assert len(flow.history.finite("loss")) == len(flow.history)
    run = gf.load_run(tmp_path)
    last = run.table(run.table_steps[-1])
    assert list(last.names) == [name for name, _ in model.named_parameters()]
    ratios = run.layers(run.table_steps[-1])["update_ratio"]
    assert all(0 < ratio < 1 for ratio in ratios)


def test_watching_optimizers_in_backward_leaves_weights_and_random_state_alone():
    def trained(watched):
        model = net()
        optimizers = step_in_backward(model, torch.optim.AdamW, lr=0.01)
        flow = gf.watch(model, optimizers) if watched else None
        for x in batches(5):
            nn.functional.dropout(model(x), 0.1).square().mean().backward()
        if flow is not None:
            flow.close()
        return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()

    (plain, state), (watched, watched_state) = trained(False), trained(True)
    assert all(map(torch.equal, plain, watched))
    assert torch.equal(state, watched_state)


def test_a_clip_of_each_parameter_in_backward_is_seen():
    model = net()
    optimizers = step_in_backward(model, clip=1e-3, lr=0.01)
    with gf.watch(model, optimizers) as flow:
        for x in batches(3):
            model(x).square().mean().backward()
    assert (flow.history["clipped_norm"] < 1e-3 * math.sqrt(6) * 1.001).all()
    assert (flow.history["norm"] > 10 * flow.history["clipped_norm"]).all()


def test_two_backward_passes_are_two_steps():
    model = nn.ModuleDict({"actor": net(0), "critic": net(1)})
    optimizers = step_in_backward(model, lr=0.01)
    with gf.watch(model, optimizers) as flow:
        for x in batches(3):
            model["actor"](x).square().mean().backward()
            model["critic"](x).square().mean().backward()
    assert flow.steps == 6
    assert flow.history["optimizer"].tolist() == [0, 6] * 3


def test_a_pass_inside_a_pass_is_part_of_it():
    """Checkpointing of the reentrant kind runs a backward inside the backward."""
    model = net()
    optimizers = step_in_backward(model, lr=0.01)
    with gf.watch(model, optimizers) as flow:
        for x in batches(3):
            inner = checkpoint(model[:3], x.requires_grad_(), use_reentrant=True)
            model[3:](inner).square().mean().backward()
            assert set(flow.table.names) == {name for name, _ in model.named_parameters()}
    assert flow.steps == 3


def test_a_backward_that_fails_half_way_does_not_join_the_next():
    model = net()
    optimizers = step_in_backward(model, lr=0.01)
    with gf.watch(model, optimizers) as flow:
        x = batches(1)[0]
        hidden = model[:3](x)
        hidden.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model[3:](hidden).square().mean().backward()
        model(x).square().mean().backward()
    assert flow.steps == 2
    assert len(flow.table.names) == 6


def test_a_manager_acts_on_each_and_the_record_has_the_norm_it_left():
    model = net()
    optimizers = step_in_backward(model, lr=0.01)
    manager = gf.create_gradient_manager(max_grad_norm=1e-3)
    with gf.watch(model, optimizers, manager=manager) as flow:
        for x in batches(2):
            model(x).square().mean().backward()
    assert (flow.history["clipped_norm"] < 1e-3 * math.sqrt(6) * 1.001).all()
    assert flow.steps == 2
