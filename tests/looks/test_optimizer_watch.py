"""The state of optimizers, read on looks: closed forms, every implementation, and no bit changed."""

import copy
import math

import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.diagnosis.optimizer.record import OptimizerFacts
from gradient_flow.looks.optimizer_state import SAMPLE, StateReader, kind_of
from gradient_flow.looks.optimizer_watch import EARLY, OptimizerWatch
from gradient_flow.record.plain import from_plain
from gradient_flow.table.elements import some_elements


def step_with(optimizer, parameter, gradients, name="w"):
    """Give these gradients one after the other; the look at the last step."""
    for gradient in gradients:
        parameter.grad = torch.full_like(parameter, gradient) if not isinstance(gradient, torch.Tensor) else gradient
        reader = StateReader(optimizer, [(name, parameter)])
        optimizer.step()
    return reader.read(optimizer, len(gradients), 0)


def weight(value=1.0, shape=(8, 5), dtype=torch.float32):
    return nn.Parameter(torch.full(shape, value, dtype=dtype))


VARIANTS = [{}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"amsgrad": True}]


@pytest.mark.parametrize("how", VARIANTS, ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_a_constant_gradient(kind, how):
    """m̂ = g and √v̂ = |g| from the first step on."""
    w, g, eps = weight(), 3e-4, 1e-4
    look, (state,) = step_with(kind([w], lr=1e-3, eps=eps, weight_decay=0.0, **how), w, [g] * 6)
    assert look.kind == "adam"
    # AMSGrad keeps the largest v, which with the correction for its age is that of a constant gradient as well.
    assert look.stale == pytest.approx(1.0, rel=1e-4)
    assert look.eps_share == pytest.approx(eps / (g + eps), rel=1e-4)
    assert look.update == pytest.approx(g / (g + eps), rel=1e-4)
    assert look.root_second == pytest.approx(g, rel=1e-4)
    assert look.cosine == pytest.approx(1.0, rel=1e-4)
    assert look.underflow == 0
    assert look.age == 6
    assert (state.name, state.elements) == ("w", 40)


@pytest.mark.parametrize("beta2", [0.9, 0.999])
@pytest.mark.parametrize("jump", [4.0, 100.0])
def test_a_gradient_that_jumps(beta2, jump):
    w = weight()
    look, _ = step_with(torch.optim.Adam([w], lr=1e-4, betas=(0.9, beta2), eps=1e-12), w, [1.0] * 9 + [jump])
    second = (beta2 * (1 - beta2**9) + (1 - beta2) * jump**2) / (1 - beta2**10)
    assert look.stale == pytest.approx(jump / math.sqrt(second), rel=1e-4)


def test_a_gradient_that_turns_round_has_a_cosine_of_minus_one():
    w = weight()
    assert step_with(torch.optim.Adam([w]), w, [1.0] * 5 + [-2.0])[0].cosine == pytest.approx(-1.0, abs=1e-5)
    w = weight()
    sgd = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    assert step_with(sgd, w, [1.0] * 5 + [-2.0])[0].cosine == pytest.approx(-1.0, abs=1e-5)


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}, {"nesterov": True}], ids=str)
def test_the_momentum_of_sgd(how):
    """After t steps with the same gradient it is g (1 - μ^t) / (1 - μ)."""
    w, g, momentum = weight(), 0.5, 0.8
    look, _ = step_with(torch.optim.SGD([w], lr=1e-3, momentum=momentum, **how), w, [g] * 7)
    moved = g * (1 - momentum**7) / (1 - momentum)
    moved = g + momentum * moved if "nesterov" in how else moved
    assert look.kind == "momentum"
    assert look.update == pytest.approx(moved, rel=1e-5)
    assert look.gradient == pytest.approx(g)
    assert (look.stale, look.eps_share) == (None, None)


def test_weight_decay_against_the_step():
    """Decoupled: lr · wd · |p| against lr · 1. As a part of the gradient: wd · |p| against |g|."""
    w = weight(2.0)
    look, _ = step_with(torch.optim.AdamW([w], lr=1e-6, weight_decay=0.3), w, [1.0] * 4)
    assert look.decay == pytest.approx(0.6, rel=1e-3)
    w = weight(2.0)
    look, _ = step_with(torch.optim.SGD([w], lr=1e-6, momentum=0.9, weight_decay=0.3), w, [0.1] * 4)
    assert look.decay == pytest.approx(6.0, rel=1e-3)


@pytest.mark.parametrize(("rate", "lost"), [(1e-4, 1.0), (3.8e-3, 1.0), (4.1e-3, 0.0), (1e-2, 0.0)])
def test_updates_below_half_the_spacing_of_numbers_are_lost(rate, lost):
    """Above 1, bfloat16 numbers are 2^-7 apart."""
    w = weight(1.25, dtype=torch.bfloat16)
    look, _ = step_with(torch.optim.AdamW([w], lr=rate, weight_decay=0.0), w, [1.0] * 3)
    assert look.lost == lost
    # What the weight is before the last step decides: it may have moved to where numbers are as far apart.
    assert look.needed == pytest.approx(2**-8 / rate, rel=1e-2)
    assert look.low_precision == 1
    full = weight(1.25)
    assert step_with(torch.optim.AdamW([full], lr=rate), full, [1.0] * 3)[0].lost is None


def test_random_rounding_loses_nothing():
    class Stochastic(torch.optim.SGD):
        def step(self, closure=None):
            (w,) = self.param_groups[0]["params"]
            exact = w.detach().float()
            super().step(closure)
            exact -= 1e-3 * self.state[w]["momentum_buffer"].float()
            w.data.copy_(exact + (torch.rand_like(exact) - 0.5) * 2**-7)

    torch.manual_seed(0)
    w = weight(1.25, (40, 40), torch.bfloat16)
    optimizer = Stochastic([w], lr=1e-3, momentum=0.5)
    optimizer.__class__.__name__ = "SGD"
    assert step_with(optimizer, w, [1.0] * 4)[0].lost == 0


def test_second_moments_that_are_zero_are_counted():
    w = weight(dtype=torch.float16)
    gradient = torch.full((8, 5), 1e-5, dtype=torch.float16)
    gradient[0] = 1.0
    look, _ = step_with(torch.optim.Adam([w], lr=1e-4, eps=1e-3), w, [gradient] * 4)
    assert look.underflow == pytest.approx(7 / 8)


def test_a_large_tensor_is_sampled_across_its_columns():
    torch.manual_seed(0)
    w = nn.Parameter(torch.zeros(4096, 64))
    columns = torch.arange(64.0).expand(4096, 64).clone()
    (own,) = some_elements([columns], SAMPLE).parts()
    assert len(own) == SAMPLE
    assert len(set(own.tolist())) > 30  # a stride that is a multiple of the row would see one
    gradient = torch.randn(4096, 64)
    look, (state,) = step_with(torch.optim.Adam([w]), w, [gradient])
    assert look.gradient == pytest.approx(1.0, rel=0.1)
    assert state.elements == 4096 * 64


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.Adadelta, torch.optim.Rprop, torch.optim.Adamax])
def test_other_optimizers_are_left_alone(kind):
    w = weight()
    optimizer = kind([w], lr=1e-3)
    w.grad = torch.ones_like(w)
    optimizer.step()
    assert kind_of(optimizer) == ""


def test_reading_plain_sgd_leaves_no_entry_in_its_state():
    w = weight()
    optimizer = torch.optim.SGD([w], lr=1e-3)
    look, (state,) = step_with(optimizer, w, [1e-3] * 3)
    assert kind_of(optimizer) == "momentum"
    assert look.update == pytest.approx(1e-3)
    assert state.stale is None
    assert look.cosine is None
    assert not optimizer.state


@pytest.mark.parametrize(("kind", "square"), [(torch.optim.RMSprop, 0.01 * 1e-6), (torch.optim.Adagrad, 1e-6)])
def test_squares_alone_are_read_after_one_step(kind, square):
    w = weight()
    look, _ = step_with(kind([w], lr=1e-3, eps=1e-3), w, [1e-3])
    assert look.kind == "squares"
    assert look.root_second == pytest.approx(square**0.5, rel=1e-4)
    assert look.eps_share == pytest.approx(1e-3 / (square**0.5 + 1e-3), rel=1e-4)
    assert look.stale is None


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.RAdam])
def test_kin_of_adam_are_read_as_far_as_they_are_alike(kind):
    w = weight()
    look, _ = step_with(kind([w], lr=1e-3), w, [1e-3] * 6)
    assert look.stale == pytest.approx(1.0, rel=1e-3)
    assert look.update is None


def facts_of(flow):
    found = flow.run.found("optimizer")
    return from_plain(OptimizerFacts, found[-1][1]) if found else OptimizerFacts()


def trained(watched=True, make=lambda p: torch.optim.AdamW(p, lr=1e-2), steps=14, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = make(model.parameters())
    flow = gf.watch(model, optimizer, describe=False, **more) if watched else None
    for _ in range(steps):
        x = torch.randn(16, 6)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
    state = [*model.state_dict().values(), *(p.grad for p in model.parameters()), torch.get_rng_state()]
    state += [value for each in optimizer.state.values() for value in each.values() if isinstance(value, torch.Tensor)]
    if flow is not None:
        flow.close()
    return copy.deepcopy(state), flow


def test_no_bit_changes():
    plain, _ = trained(watched=False)
    seen, flow = trained(looks=1, budget=1)
    assert facts_of(flow).taken >= 8
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))


def test_looks_are_those_of_the_schedule_and_can_be_switched_off():
    assert [look.step for look in facts_of(trained()[1]).looks] == [3, 4, 6, 9, 12]
    assert [look.step for look in facts_of(trained(looks=[5, 8])[1]).looks] == [5, 8]
    assert facts_of(trained(looks=False)[1]).taken == 0


def test_a_failure_ends_these_looks_alone(monkeypatch):
    from gradient_flow.looks import optimizer_watch

    def broken(*_):
        raise RuntimeError("no state today")

    monkeypatch.setattr(optimizer_watch.StateReader, "read", broken)
    with pytest.warns(gf.GradientFlowWarning, match="looking at the optimizer.*no state today"):
        _, flow = trained()
    assert len(flow.history) == 14


def test_two_optimizers_are_told_apart():
    torch.manual_seed(0)
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    model = nn.Sequential(body, head)
    first = torch.optim.Adam(body.parameters(), eps=1e-3)
    second = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    with gf.watch(model, [first, second], describe=False) as flow:
        for _ in range(10):
            model.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            first.step()
            second.step()
    facts = facts_of(flow)
    assert {look.kind for look in facts.of(0)} == {"adam"}
    assert {look.kind for look in facts.of(1)} == {"momentum"}


def test_a_jump_of_the_gradient_is_looked_at_out_of_turn():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with gf.watch(model, optimizer, describe=False) as flow:
        for step in range(1, 60):
            optimizer.zero_grad()
            (model(torch.randn(32, 6)) * (100.0 if step == 47 else 1.0)).square().mean().backward()
            optimizer.step()
    looks = {look.step: look for look in facts_of(flow).looks}
    assert looks[47].stale > 4
    assert looks[35].stale < 2


def looked_at(steps, spent=0.0, loud=(), **more):
    """Steps at whose state a watch looks; `spent` is the time that its looks have cost, `loud` which norms jump."""
    w = weight()
    optimizer, watch, seen = torch.optim.SGD([w], lr=1e-3), OptimizerWatch(True, 0.01, **more), []
    watch.seconds = spent
    for step in range(1, steps + 1):
        w.grad = torch.ones_like(w)
        watch.before_update(optimizer, [("w", w)], 50.0 if step in loud else 1.0)
        optimizer.step()
        if watch.after_update(optimizer, step) is not None:
            seen.append(step)
    return seen


def test_with_ranks_the_step_alone_decides_so_that_none_looks_alone():
    early = [step for step in EARLY if step <= 100]
    assert looked_at(110, spent=1e12, loud=(80,), ranks=True) == looked_at(110, ranks=True) == early
    assert looked_at(110, spent=1e12) == early[:8]  # alone, a rank goes by its clock
    assert 80 in looked_at(110, loud=(80,))
