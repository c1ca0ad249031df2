"""A step with NaN or Inf is looked at, whenever it comes; a run full of them stays small."""

import numpy as np
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.flow.nonfinite_looks import MOST_NONFINITE, NonFiniteLooks
from gradient_flow.report.data import matrix_of, page_data
from gradient_flow.table import measure


def table(*bad, size=5):
    gradients = {str(at): torch.ones(2) for at in range(size)}
    for at in bad:
        gradients[str(at)] = torch.tensor([1.0, torch.nan])
    return measure(gradients)


def train(flow_settings, bad_steps, steps=30):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gf.watch(model, optimizer, **flow_settings) as flow:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            if step in bad_steps:
                model[0].weight.grad[0, 0] = torch.nan
            weights = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
            with torch.no_grad():
                for p, before in zip(model.parameters(), weights, strict=True):
                    p.copy_(before)
    return flow


def test_the_map_shows_the_nan_in_its_own_step_and_nowhere_else(tmp_path):
    train({"run": tmp_path}, {17})
    run = gf.load_run(tmp_path)
    assert [span.step for span in run.tables] == [1, 10, 17, 20, 30]
    assert run.table(17)["0.weight"].nan_count == 1
    page = page_data(tmp_path)
    bad = matrix_of(page["layers"], "nonfinite")
    places = [(page["layers"]["names"][row], page["layers"]["step"][at]) for row, at in np.argwhere(bad > 0)]
    assert places == [("0.weight", 17)]
    issue = page["verdict"]["issues"][0]
    assert (issue["layer"], issue["first_step"]) == places[0]  # where "Show the place" goes


def test_so_does_a_run_in_memory_and_one_that_steps_inside_backward():
    assert [span.step for span in train({}, {17}).run.tables] == [1, 10, 17, 20, 30]
    model = nn.Linear(3, 1)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    handles = [p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step()) for p in model.parameters()]
    with gf.watch(model, list(optimizers.values())) as flow:
        for step in range(1, 6):
            model.zero_grad()
            (model(torch.ones(2, 3)).sum() * (torch.nan if step == 4 else 1.0)).backward()
    for handle in handles:
        handle.remove()
    assert [span.step for span in flow.run.tables] == [1, 4]


def test_finite_gradients_are_looked_at_in_turn_only():
    assert NonFiniteLooks().look(3, table()) is None


def test_after_many_only_a_new_set_of_bad_tensors_is_looked_at():
    looks = NonFiniteLooks()
    taken = [looks.look(step, table(0)) for step in range(1000)]
    assert sum(look is not None for look in taken) == MOST_NONFINITE
    assert looks.look(1000, table(0, 1)).step == 1000
    assert looks.look(1001, table(0, 1)) is None
    assert looks.look(1002, table(0)) is None
