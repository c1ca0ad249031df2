"""A short training under watch, and what it says: for tests of faults beside their twins."""

import torch

import gradient_flow as gf
from gradient_flow import IssueSeverity


def serious(model, batch, loss_fn, *, steps=60, rate=5e-3, optimizer=None, limit=None):
    """Issues above a remark of a watched training; `limit` divides gradients by their norm, by hand."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=rate)
    with gf.watch(model, optimizer) as flow:
        for _ in range(steps):
            x, y = batch()
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            if limit is not None:
                norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
                for parameter in model.parameters():
                    parameter.grad.mul_((limit / norm).clamp(max=1.0))
            optimizer.step()
    return [issue for issue in flow.diagnose() if issue.severity > IssueSeverity.LOW]


def found(issues):
    return {(issue.issue_type, issue.layer) for issue in issues}


def eight_classes(factor=1.0):
    centres = torch.randn(8, 20, generator=torch.Generator().manual_seed(3))

    def batch():
        y = torch.randint(8, (64,))
        return factor * (centres[y] + 0.5 * torch.randn(64, 20)), y

    return batch
