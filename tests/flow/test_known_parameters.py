"""What an optimizer steps, by name: the same answer in each step, until something changes."""

import gc

import torch
from torch import nn

from gradient_flow.flow.known_parameters import KnownParameters


def known_of(model):
    return KnownParameters(list(model.named_parameters()))


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def test_parameters_come_in_the_order_of_the_model_in_every_step():
    model = net()
    weights, biases = [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.SGD([{"params": biases}, {"params": weights[::-1]}], lr=0.1)
    known = known_of(model)
    for _ in range(3):
        found = known.of(optimizer)
        assert [name for name, _ in found] == [name for name, _ in model.named_parameters()]
        assert all(p is own for (_, p), own in zip(found, model.parameters(), strict=True))


def test_a_parameter_that_is_put_in_place_of_another_is_noticed():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    known = known_of(model)
    assert len(known.of(optimizer)) == 4
    optimizer.param_groups[0]["params"][1] = nn.Parameter(torch.zeros(4))
    assert known.of(optimizer) is None
    known.add_from(optimizer, 0, {})
    assert known.of(optimizer)[-1][1] is optimizer.param_groups[0]["params"][1]


def test_a_group_that_is_added_or_emptied_is_noticed():
    model = net()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    known = known_of(model)
    assert [name for name, _ in known.of(optimizer)] == ["0.weight", "0.bias"]
    optimizer.add_param_group({"params": list(model[1].parameters())})
    assert len(known.of(optimizer)) == 4
    optimizer.param_groups.pop()
    assert len(known.of(optimizer)) == 2


def test_nothing_is_kept_alive():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    known = known_of(model)
    known.of(optimizer)
    del model, optimizer
    gc.collect()
    assert known.live() == []
