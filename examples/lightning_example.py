"""Lightning with gradient statistics: to its loggers, two JSON files and a plot, and a verdict on the run."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradient_flow as gf


class Regression(pl.LightningModule):
    """A sum of sines, learnt from noise."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


pl.seed_everything(0)
x = torch.randn(6400, 16)
loader = DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=32, shuffle=True)
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
callbacks = [gf.GradientStatisticsCallback(grad_log_every_n_steps=10)]
logger = CSVLogger("runs", name="lightning", version="")
trainer = pl.Trainer(max_epochs=1, gradient_clip_val=1.0, logger=logger, callbacks=callbacks, **quiet)
trainer.fit(Regression(), loader)
print(gf.diagnose("runs/lightning/gradient_statistics.json"))
