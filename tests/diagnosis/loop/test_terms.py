"""A loss of two terms: what is said where one of them outweighs the other, and where it does not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf
from gradient_flow.diagnosis.issue import IssueSeverity


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.mean, self.spread = nn.Linear(32, 64), nn.Linear(64, 8), nn.Linear(64, 8)
        self.leave = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x):
        hidden = F.relu(self.enter(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        return self.leave(mean + torch.randn_like(mean) * (spread / 2).exp()), mean, spread


def trained(weight, summed):
    torch.manual_seed(0)
    model, directions = Vae(), torch.randn(6, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with gf.watch(model, optimizer, budget=1.0) as flow:
        for _ in range(200):
            x = torch.randn(64, 6) @ directions / 6**0.5
            decoded, mean, spread = model(x)
            divergence = -0.5 * (1 + spread - mean**2 - spread.exp())
            loss = F.mse_loss(decoded, x) + weight * (divergence.sum() if summed else divergence.mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return flow.diagnose()


@pytest.mark.parametrize(("weight", "summed", "sick"), [(1.0, True, True), (0.1, False, False), (1e-4, True, False)])
def test_a_divergence_that_is_summed_beside_a_mean_outweighs_it(weight, summed, sick):
    alarms = [issue.code for issue in trained(weight, summed) if issue.severity > IssueSeverity.LOW]
    assert alarms == (["outweighed"] if sick else [])
