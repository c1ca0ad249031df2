"""The manager in a real Lightning Trainer."""

import math
import warnings

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from gradient_flow import (
    GradientConfig,
    GradientFlowWarning,
    GradientManagerCallback,
    GradientStatisticsCallback,
    InputError,
    NonFiniteGradientError,
)


class Regression(LightningModule):
    """Learns a sum; batch `bad` divides by zero in the forward of `head`."""

    def __init__(self, bad=None, schedule=True):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.bad, self.schedule, self.logged = bad, schedule, 0
        self.rates = []

    def training_step(self, batch, batch_idx):
        y = self.head(torch.tanh(self.body(batch)))
        if batch_idx == self.bad:
            y = y / torch.zeros_like(y)  # the planted fault
        loss = (y - batch.sum(1, keepdim=True)).square().mean()
        self.log("train_loss", loss)
        self.logged += 1
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.rates.append(self.optimizers().param_groups[0]["lr"])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        if not self.schedule:
            return optimizer
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(model, callback, tmp_path, batches=6, **settings):
    data = torch.randn(batches * 8, 4, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    trainer = Trainer(
        max_epochs=1,
        callbacks=[callback],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        accelerator="cpu",
        **settings,
    )
    trainer.fit(model, loader)
    return trainer


pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own deprecations and hints


def test_a_bad_batch_is_skipped_with_its_schedule_and_the_operation_is_named(tmp_path):
    model = Regression(bad=3)
    callback = GradientManagerCallback(GradientConfig(nonfinite="skip", max_grad_norm=1e9))
    with pytest.warns(GradientFlowWarning, match=r"y / torch\.zeros_like\(y\)"):
        fit(model, callback, tmp_path)
    manager = callback.manager
    assert [(event.step, event.action) for event in manager.events] == [(4, "skip")]
    assert manager.origins[0].operator == "div"
    assert manager.origins[0].phase == "forward"
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert model.rates[2] == model.rates[3] == 2 * model.rates[4]
    assert not vars(model).keys() & {"log", "log_dict"}
    assert not model.trainer.optimizers[0]._optimizer_step_pre_hooks


def test_the_cause_is_logged_where_warnings_are_errors(tmp_path, caplog):
    model = Regression(bad=3)
    callback = GradientManagerCallback(GradientConfig(nonfinite="skip", max_grad_norm=1e9))
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientFlowWarning)
        fit(model, callback, tmp_path)
    assert callback.manager.total_steps == 6
    assert "`div` turned finite numbers into Inf" in caplog.text


def test_without_explain_nothing_is_replayed(tmp_path):
    model = Regression(bad=3)
    callback = GradientManagerCallback(GradientConfig(nonfinite="skip"), explain=False)
    fit(model, callback, tmp_path)
    assert model.logged == 6
    assert callback.manager.origins == []


def test_clipping_gives_the_weights_of_the_trainers_own(tmp_path):
    ours, theirs = Regression(), Regression()
    callback = GradientManagerCallback(GradientConfig(max_grad_norm=0.01))
    fit(ours, callback, tmp_path)
    idle = GradientManagerCallback(GradientConfig(enable_gradient_clipping=False))
    fit(theirs, idle, tmp_path, gradient_clip_val=0.01)
    assert callback.manager.clipped_steps == 6
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        # torch divides by the norm plus 1e-6
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("manager_first", [True, False])
def test_statistics_are_of_gradients_before_the_managers_clipping(tmp_path, manager_first):
    manager = GradientManagerCallback(GradientConfig(max_grad_norm=1e-3))
    statistics = GradientStatisticsCallback(grad_log_every_n_steps=1, save_dir=tmp_path)
    callbacks = [manager, statistics] if manager_first else [statistics, manager]
    data = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(max_epochs=1, callbacks=callbacks, logger=False, accelerator="cpu", **quiet)
    trainer.fit(Regression(), torch.utils.data.DataLoader(data, batch_size=8))
    assert min(statistics.statistics["grad_norm"]) > 1e-2
    assert manager.manager.last_step["clipping"]["clipped"]
    assert [each for each in trainer.callbacks if each in callbacks] == [statistics, manager]


class Normalised(Regression):
    """A bad batch holds a NaN itself, which spoils the running statistics."""

    def __init__(self, bad):
        super().__init__(bad=None, schedule=False)
        self.bad_batch = bad
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))

    def training_step(self, batch, batch_idx):
        return super().training_step(batch * math.nan if batch_idx == self.bad_batch else batch, batch_idx)


@pytest.mark.parametrize("bad", [0, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_buffers_of_a_skipped_step_are_put_back(tmp_path, bad, accumulate, scaled):
    from lightning.pytorch.plugins.precision import MixedPrecision

    model = Normalised(bad)
    callback = GradientManagerCallback(GradientConfig(nonfinite="skip", max_grad_norm=1e9), explain=not scaled)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plugins = [MixedPrecision("16-mixed", "cpu", scaler=scaler)] if scaled else []
    fit(model, callback, tmp_path, plugins=plugins, accumulate_grad_batches=accumulate)
    assert callback.manager.guard.bad_steps == 1
    assert all(torch.isfinite(buffer).all() for buffer in model.buffers())
    assert model.body[1].num_batches_tracked == 6 - accumulate
    assert not model._forward_pre_hooks


def test_a_policy_to_raise_stops_the_fit(tmp_path):
    model = Regression(bad=2)
    callback = GradientManagerCallback(GradientConfig(nonfinite="raise"), explain=False)
    with pytest.raises(NonFiniteGradientError, match="Step 3"):
        fit(model, callback, tmp_path)


def test_fp16_overflow_is_left_to_the_scaler(tmp_path):
    model = Regression(bad=2, schedule=False)
    callback = GradientManagerCallback(GradientConfig(nonfinite="raise", max_grad_norm=1e9), explain=False)
    plugin_scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    from lightning.pytorch.plugins.precision import MixedPrecision

    plugin = MixedPrecision("16-mixed", "cpu", scaler=plugin_scaler)
    fit(model, callback, tmp_path, plugins=[plugin])
    assert callback.manager.guard.by_action == {"left to GradScaler": 1}
    assert plugin_scaler.get_scale() == 512.0


def test_a_run_with_two_fits_and_a_state_dict_goes_on(tmp_path):
    callback = GradientManagerCallback()
    fit(Regression(), callback, tmp_path)
    other = GradientManagerCallback()
    other.load_state_dict(callback.state_dict())
    fit(Regression(), other, tmp_path)
    assert other.manager.total_steps == 12
    assert math.isfinite(other.manager.get_training_summary()["gradient_statistics"]["gradient_norms"]["mean"])


def test_what_is_no_config_is_refused():
    with pytest.raises(InputError, match="`config`"):
        GradientManagerCallback({"max_grad_norm": 1.0})
