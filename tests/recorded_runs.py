"""Small runs for tests of what reads them."""

import torch
from torch import nn

import gradient_flow as gf


def record(folder, *, seed=0, steps=40, bad_at=None, rate=0.05, width=8, name="layer", depth=3, factor_from=None):
    """Train a small network into a run folder. `factor_from`: from that step on the loss counts tenfold."""
    torch.manual_seed(seed)
    model = nn.Sequential()
    for index in range(depth):
        model.add_module(f"{name}{index}", nn.Sequential(nn.Linear(4 if index == 0 else width, width), nn.Tanh()))
    model.add_module("head", nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with gf.watch(model, optimizer, run=folder, layers_every=2) as flow:
        for step in range(1, steps + 1):
            x = torch.randn(32, 4)
            loss = (model(x) - x.sum(1, keepdim=True).sin()).square().mean()
            loss = loss * (10.0 if factor_from is not None and step >= factor_from else 1.0)
            loss = loss * float("nan") if step == bad_at else loss
            optimizer.zero_grad()
            loss.backward()
            flow.log(loss=loss)
            if step == bad_at:
                flow.step(optimizer)  # recorded, without spoiling the weights
            else:
                optimizer.step()
    return folder
