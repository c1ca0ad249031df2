"""A plain PyTorch loop under watch: every optimizer step, before and after clipping, in a file and with a verdict."""

import torch
from torch import nn

import gradient_flow as gf

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def train(steps=200):
    """The usual loop."""
    for step in range(steps):
        x = torch.randn(32, 16)
        loss = nn.functional.mse_loss(model(x), x.sin().sum(1, keepdim=True))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.3f}")


with gf.watch(model, optimizer, run="runs/plain") as flow:
    train()
print(flow.diagnose())
