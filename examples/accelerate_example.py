"""Accelerate under watch: one record for each optimizer step, however many batches are accumulated for it."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradient_flow as gf

torch.manual_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=4, log_with="tensorboard", project_dir="runs")
accelerator.init_trackers("accelerate")
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
x = torch.randn(6400, 16)
loader = DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def train():
    """The loop of Accelerate's documentation."""
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()


watching = {"run": "runs/accelerate", "log": accelerator.log, "scaler": accelerator.scaler}
with gf.watch(model, optimizer, **watching) as flow:
    train()
print(flow.diagnose())
accelerator.end_training()
