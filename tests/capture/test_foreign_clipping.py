"""Gradients are seen before torch clips them, however its function was imported, and torch is left as it was."""

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_  # by name, before anybody listens

import gradient_flow as gf
from gradient_flow.capture import foreign_clipping as clipping

CLIPS = {
    "norm": lambda p: clip_grad_norm_(p, 0.5),
    "norm of one tensor": lambda p: [clip_grad_norm_(each, 0.5) for each in p],
    "value": lambda p: clip_grad_value_(p, 0.5),
    "value of a generator": lambda p: torch.nn.utils.clip_grad_value_((each for each in p), clip_value=0.5),
    "a given norm": lambda p: torch.nn.utils.clip_grads_with_norm_(p, 0.5, torch.tensor(2.0)),
}


def parameters():
    return [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]


def with_gradients(made):
    for index, p in enumerate(made):
        p.grad = torch.tensor([3.0, -0.25]) * (index + 1)
    return made


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
def test_the_listener_sees_them_before_and_torch_clips_as_ever(clip):
    ours, plain, seen = with_gradients(parameters()), with_gradients(parameters()), []

    def listener(told):
        seen.extend(p.grad.clone() for p in told)
        return lambda: seen.append("after")

    clip(plain)
    end = clipping.listen(listener)
    clip(ours)
    end()
    assert seen.count("after") >= 1
    before = [entry for entry in seen if isinstance(entry, torch.Tensor)]
    assert [entry.tolist() for entry in before] == [[3.0, -0.25], [6.0, -0.5]]
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, plain, strict=True))
    seen.clear()
    clip(ours)
    assert seen == []


def test_torch_is_as_it_was_when_the_last_one_stops_listening():
    module, inside = torch.nn.utils.clip_grad, clip_grad_value_.__closure__
    before = [module._clip_grads_with_norm_, torch.nn.utils.clip_grads_with_norm_, *(c.cell_contents for c in inside)]
    ends = [clipping.listen(lambda told: lambda: None) for _ in range(2)]
    for end in (*ends, ends[0]):
        end()
    after = [module._clip_grads_with_norm_, torch.nn.utils.clip_grads_with_norm_, *(c.cell_contents for c in inside)]
    assert all(a is b for a, b in zip(before, after, strict=True))


def test_a_wrapper_that_another_tool_put_around_ours_stays_and_no_clip_is_seen_twice():
    module, seen = torch.nn.utils.clip_grad, []
    before = module._clip_grads_with_norm_
    end = clipping.listen(lambda told: lambda: None)
    ours = module._clip_grads_with_norm_

    def theirs(*arguments, **settings):
        return ours(*arguments, **settings)

    module._clip_grads_with_norm_ = theirs
    try:
        end()
        assert module._clip_grads_with_norm_ is theirs
        end = clipping.listen(lambda told: lambda: seen.append(len(told)))
        made = with_gradients(parameters())
        clip_grad_norm_(made, 0.5)
        end()
        assert seen == [2]
        assert module._clip_grads_with_norm_ is theirs
        assert torch.stack([p.grad for p in made]).norm().item() == pytest.approx(0.5, rel=1e-4)
    finally:
        module._clip_grads_with_norm_ = before


def test_a_listener_that_joins_while_a_clip_is_told_of_hears_that_clip_too():
    ends, heard = [], []

    def first(told):
        if not ends:
            ends.append(clipping.listen(lambda told: lambda: heard.append(len(told))))
        return lambda: None

    ends_first = clipping.listen(first)
    clip_grad_norm_(with_gradients(parameters()), 0.5)
    for end in (*ends, ends_first):
        end()
    assert heard == [2]


def test_a_watch_has_the_step_before_and_after_a_clip_by_value():
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer) as flow:
        model(torch.tensor([[3.0, 4.0]])).sum().backward()
        clip_grad_value_(model.parameters(), 3.5)
        optimizer.step()
    assert flow.table.total.norm == pytest.approx(5.0)
    assert flow.clipped_table.total.norm == pytest.approx((9 + 3.5**2) ** 0.5)
