"""A broadcast loss names the shapes as the program has them, and what follows from it is no issue of its own."""

import torch
from torch import nn

import gradient_flow as gf


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(3, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1])


def test_a_difference_of_a_column_and_a_row_is_told_with_their_own_shapes(tmp_path):
    torch.manual_seed(0)
    model = Regressor()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with gf.watch(model, optimizer, run=tmp_path / "run") as flow:
        for _ in range(80):
            x = torch.randn(32, 12, 3)
            output, target = model(x), x[:, -3:, 0].sum(1)
            optimizer.zero_grad()
            (output - target).square().mean().backward()
            optimizer.step()
    found = flow.diagnose()
    assert found[0].code == "broadcast"
    assert f"have shapes {tuple(output.shape)} and {tuple(target.shape)}:" in found[0].message
    assert not [issue for issue in found if issue.issue_type.name == "SHORT_MEMORY"]
