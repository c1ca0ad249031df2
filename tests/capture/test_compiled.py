"""Whether a model is compiled is known of wrappers too, which are searched for only when something was compiled."""

import gc

import pytest
import torch
from torch import nn

from gradient_flow.capture.compiled import is_compiled


@pytest.fixture
def searches(monkeypatch):
    """The models that were searched for among all objects."""
    found, search = [], gc.get_referrers
    monkeypatch.setattr(gc, "get_referrers", lambda model: found.append(model) or search(model))
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def compiled(made):
    return torch.compile(made, backend="eager")


def test_a_wrapper_around_a_model_is_found_once_it_was_called(searches):
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    compiled(lambda x: x.sin() + 1)(torch.ones(3))
    assert not is_compiled(model)
    wrapper = compiled(model)
    wrapper(torch.ones(1, 2))
    assert is_compiled(model)
    assert is_compiled(wrapper)
    assert not is_compiled(other)


def test_all_objects_are_searched_once_for_each_thing_that_is_compiled(searches):
    model = nn.Linear(2, 2)
    for time, function in enumerate((torch.sin, torch.cos), start=1):
        compiled(lambda x, function=function: function(x))(torch.ones(3))
        for _ in range(3):
            assert not is_compiled(model)
        assert len(searches) == time


def test_a_model_at_the_address_of_another_is_asked_anew(searches):
    compiled(lambda x: x.exp() + 1)(torch.ones(3))
    for _ in range(3):  # as a rule the next one gets the place of the one before
        model = nn.Linear(2, 2)
        before = len(searches)
        assert not is_compiled(model)
        assert len(searches) == before + 1
        searches.clear()  # they keep it alive
        del model
