"""GradientStatisticsCallback with the real Trainer."""

import json
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradient_flow as gf
from wandb_file import wandb_history

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's and the loggers' own deprecations and hints
lightning = pytest.importorskip("lightning.pytorch", reason="the dev extra installs it; see test_lightning_is_here")

KEYS = {"step", "epoch", "grad_variance", "grad_mean", "grad_norm", "grad_max", "grad_min"}


def test_lightning_is_here():
    """The suite must not turn green by skipping."""
    import lightning.pytorch as installed

    assert installed.__version__


class Recurrent(lightning.LightningModule):
    def __init__(self, lr=0.05, make=torch.optim.SGD, poison=None, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.W_h_init = nn.Linear(2, 6)
        self.W_in = nn.Linear(3, 6, bias=False)
        self.W_rec = nn.Linear(6, 6)
        self.W_out = nn.Linear(6, 2)
        self.lr, self.make, self.poison, self.settings = lr, make, poison, settings
        self.norms = []  # the oracle: what the module itself sees before each step

    def forward(self, x):
        h = torch.tanh(self.W_h_init(x[:, 0, :2]))
        for t in range(x.shape[1]):
            h = torch.tanh(self.W_in(x[:, t]) + self.W_rec(h))
        return self.W_out(h)

    def training_step(self, batch, index):
        return self(batch[0]).square().mean()

    def on_after_backward(self):
        if self.poison == self.global_step:
            self.W_rec.weight.grad[0, 0] = math.nan

    def on_before_optimizer_step(self, optimizer):
        self.norms.append(math.sqrt(sum(p.grad.double().square().sum().item() for p in self.parameters())))
        if self.poison == self.global_step:
            optimizer.zero_grad()  # seen by the callback, which comes first, but kept from the weights

    def configure_optimizers(self):
        return self.make(self.parameters(), lr=self.lr, **self.settings)


def data(batches=30, batch_size=4):
    generator = torch.Generator().manual_seed(1)
    return DataLoader(
        TensorDataset(torch.randn(batches * batch_size, 5, 3, generator=generator)), batch_size=batch_size
    )


def fit(tmp_path, module, callback, loader=None, **settings):
    settings = {"max_epochs": 2, "logger": False, **settings}
    trainer = lightning.Trainer(
        accelerator="cpu",
        default_root_dir=tmp_path,
        callbacks=[callback],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(module, loader or data())
    return trainer


def load(folder, name="gradient_statistics.json"):
    def refuse(token):
        raise AssertionError(f"{token} is no JSON")

    return json.loads((folder / name).read_text(), parse_constant=refuse)


def test_the_files_hold_the_documented_keys_and_the_right_numbers(tmp_path):
    module = Recurrent()
    fit(tmp_path, module, gf.GradientStatisticsCallback(grad_log_every_n_steps=10))
    statistics = load(tmp_path)
    assert statistics.keys() >= KEYS
    assert statistics["step"] == [10, 20, 30, 40, 50, 60]
    assert statistics["epoch"] == [0, 0, 0, 1, 1, 1]
    assert statistics["grad_norm"] == pytest.approx(module.norms[9::10], rel=1e-6)
    matrices = load(tmp_path, "gradient_statistics_weight_matrices.json")
    assert set(matrices) == {"W_in", "W_rec", "W_out", "W_h_init", "biases"}
    for lists in matrices.values():
        assert lists.keys() >= {"step", "variance", "norm", "mean"}
        assert {len(values) for values in lists.values()} == {6}
    squares = sum(lists["norm"][0] ** 2 for lists in matrices.values())
    assert math.sqrt(squares) == pytest.approx(statistics["grad_norm"][0], rel=1e-6)
    assert (tmp_path / "gradient_statistics.png").stat().st_size > 20_000


def test_the_statistics_are_those_of_the_flattened_gradient(tmp_path):
    class Flattening(Recurrent):
        def on_before_optimizer_step(self, optimizer):
            self.flat = torch.cat([p.grad.flatten() for p in self.parameters()]).double()

    module = Flattening()
    fit(tmp_path, module, gf.GradientStatisticsCallback(1), max_steps=1)
    statistics = load(tmp_path)
    assert statistics["grad_variance"][0] == pytest.approx(module.flat.var(unbiased=False).item(), rel=1e-9)
    assert statistics["grad_mean"][0] == pytest.approx(module.flat.mean().item(), rel=1e-9)
    assert statistics["grad_max"][0] == module.flat.max().item()
    assert statistics["grad_min"][0] == module.flat.min().item()


def test_without_per_matrix_tracking_there_is_one_file(tmp_path):
    fit(tmp_path, Recurrent(), gf.GradientStatisticsCallback(10, grad_track_per_weight_matrix=False))
    assert (tmp_path / "gradient_statistics.json").exists()
    assert not (tmp_path / "gradient_statistics_weight_matrices.json").exists()


def test_fewer_steps_than_n_leave_files_with_empty_lists(tmp_path):
    fit(tmp_path, Recurrent(), gf.GradientStatisticsCallback())
    assert all(values == [] for values in load(tmp_path).values())
    assert load(tmp_path, "gradient_statistics_weight_matrices.json") == {}
    assert (tmp_path / "gradient_statistics.png").exists()


def test_gradients_are_taken_before_the_trainer_clips(tmp_path):
    module = Recurrent()
    fit(tmp_path, module, gf.GradientStatisticsCallback(1), max_steps=5, gradient_clip_val=1e-4)
    assert load(tmp_path)["grad_norm"] == pytest.approx(module.norms, rel=1e-6)
    assert min(module.norms) > 1e-3


def test_accumulated_batches_are_one_step(tmp_path):
    module = Recurrent()
    fit(tmp_path, module, gf.GradientStatisticsCallback(5), accumulate_grad_batches=3)
    assert load(tmp_path)["step"] == [5, 10, 15, 20]
    assert load(tmp_path)["grad_norm"] == pytest.approx(module.norms[4::5], rel=1e-6)


def test_a_nan_step_keeps_the_lists_parallel_and_is_null(tmp_path):
    fit(tmp_path, Recurrent(poison=2), gf.GradientStatisticsCallback(1), max_steps=5)
    statistics = load(tmp_path)
    assert {len(values) for values in statistics.values()} == {5}
    assert statistics["grad_norm"][2] is None
    assert all(statistics["grad_norm"][i] > 0 for i in (0, 1, 3, 4))


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_files_are_left_after_an_exception_and_an_interrupt(tmp_path, error):
    class Fails(Recurrent):
        def training_step(self, batch, index):
            if index == 12:
                raise error
            return super().training_step(batch, index)

    with pytest.raises((RuntimeError, KeyboardInterrupt, SystemExit)):
        fit(tmp_path, Fails(), gf.GradientStatisticsCallback(5))
    assert load(tmp_path)["step"] == [5, 10]
    assert (tmp_path / "gradient_statistics.png").exists()
    found = gf.diagnose(tmp_path)
    if isinstance(error, RuntimeError):
        said = "The run failed at step 12 with RuntimeError: boom. No other problem found in 2 steps and 2 looks."
        assert found.message == said
    else:
        assert found.ending.state == "interrupted"


def test_several_optimizers_make_one_entry_per_step(tmp_path):
    class Two(Recurrent):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def on_before_optimizer_step(self, optimizer):
            pass

        def configure_optimizers(self):
            readout = list(self.W_out.parameters())
            rest = [p for p in self.parameters() if all(p is not q for q in readout)]
            return [torch.optim.SGD(rest, lr=0.1), torch.optim.SGD(readout, lr=0.1)]

        def training_step(self, batch, index):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self(batch[0]).square().mean())
                optimizer.step()

    fit(tmp_path, Two(), gf.GradientStatisticsCallback(2), max_epochs=1)
    assert load(tmp_path)["step"] == list(range(2, 31, 2))
    matrices = load(tmp_path, "gradient_statistics_weight_matrices.json")
    assert {len(lists["step"]) for lists in matrices.values()} == {15}


def test_a_second_fit_of_the_same_trainer_goes_on(tmp_path):
    callback, module = gf.GradientStatisticsCallback(10), Recurrent()
    trainer = fit(tmp_path, module, callback, max_epochs=1)
    trainer.fit_loop.max_epochs += 1
    trainer.fit(module, data())
    assert load(tmp_path)["step"] == [10, 20, 30, 40, 50, 60]
    assert load(tmp_path)["epoch"] == [0, 0, 0, 1, 1, 1]


def test_lbfgs_is_one_entry_per_step(tmp_path):
    module = Recurrent(make=torch.optim.LBFGS, max_iter=3)
    fit(tmp_path, module, gf.GradientStatisticsCallback(1), max_steps=8)
    assert load(tmp_path)["step"] == list(range(1, 9))


def test_a_failure_of_ours_does_not_stop_the_fit(tmp_path, monkeypatch):
    monkeypatch.setattr("gradient_flow.integrations.lightning.measure", lambda *a: 1 / 0)
    module = Recurrent()
    with pytest.warns(gf.GradientFlowWarning, match="Training continues"):
        fit(tmp_path, module, gf.GradientStatisticsCallback(1), max_steps=5)
    assert len(module.norms) == 5


def test_a_resumed_run_goes_on_with_the_lists(tmp_path):
    callback = gf.GradientStatisticsCallback(10)
    trainer = fit(tmp_path, Recurrent(), callback, max_epochs=1)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed = lightning.Trainer(
        accelerator="cpu",
        default_root_dir=tmp_path,
        callbacks=[gf.GradientStatisticsCallback(10)],
        logger=False,
        max_epochs=2,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    resumed.fit(Recurrent(), data(), ckpt_path=tmp_path / "half.ckpt")
    assert load(tmp_path)["step"] == [10, 20, 30, 40, 50, 60]


def test_weights_are_bit_identical_with_and_without_the_callback(tmp_path):
    trained = []
    for callback in (gf.GradientStatisticsCallback(1), lightning.Callback()):
        module = Recurrent(make=torch.optim.AdamW)
        fit(tmp_path, module, callback, max_steps=50)
        trained.append([p.detach() for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))


def test_every_documented_key_reaches_csv_and_tensorboard_ungated(tmp_path):
    import pandas
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    module = Recurrent()
    loggers = [CSVLogger(tmp_path, name="csv"), TensorBoardLogger(tmp_path, name="board")]
    trainer = fit(tmp_path, module, gf.GradientStatisticsCallback(10), logger=loggers, log_every_n_steps=1000)
    frame = pandas.read_csv(f"{loggers[0].log_dir}/metrics.csv")
    documented = {f"train/grad_{name}" for name in ("variance", "norm", "mean", "max", "min")}
    matrices = ("W_in", "W_rec", "W_out", "W_h_init", "biases")
    documented |= {f"train/grad_{name}/{group}" for name in ("variance", "norm", "mean") for group in matrices}
    assert documented <= set(frame.columns)
    rows = frame[frame["train/grad_norm"].notna()]
    assert rows["step"].tolist() == [10, 20, 30, 40, 50, 60]
    assert rows["train/grad_norm"].tolist() == pytest.approx(module.norms[9::10], rel=1e-6)
    events = EventAccumulator(loggers[1].log_dir)
    events.Reload()
    assert [event.step for event in events.Scalars("train/grad_variance/W_rec")] == [10, 20, 30, 40, 50, 60]
    assert (tmp_path / "csv" / "version_0" / "gradient_statistics.json").exists()  # the first logger's directory
    assert trainer.log_dir == loggers[0].log_dir


def test_wandb_gets_them_too(tmp_path, monkeypatch):
    from lightning.pytorch.loggers import WandbLogger

    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(save_dir=tmp_path, offline=True)
    module = Recurrent()
    fit(tmp_path, module, gf.GradientStatisticsCallback(10), logger=logger)
    logger.experiment.finish()
    (file,) = tmp_path.rglob("*.wandb")
    assert wandb_history(file, "train/grad_norm") == pytest.approx(module.norms[9::10], rel=1e-6)
    assert len(wandb_history(file, "train/grad_mean/W_in")) == 6


@pytest.mark.parametrize(("store", "key"), [("file", "train/grad_norm.W_rec"), ("sqlite", "train/grad_norm/W_rec")])
def test_mlflow_gets_them_too(tmp_path, monkeypatch, store, key):
    from lightning.pytorch.loggers import MLFlowLogger

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    address = f"file://{tmp_path}/mlruns" if store == "file" else f"sqlite:///{tmp_path}/mlflow.db"
    logger = MLFlowLogger(tracking_uri=address)
    module = Recurrent()
    fit(tmp_path, module, gf.GradientStatisticsCallback(10), logger=logger)
    norms = logger.experiment.get_metric_history(logger.run_id, "train/grad_norm")
    assert [metric.value for metric in norms] == pytest.approx(module.norms[9::10], rel=1e-6)
    assert len(logger.experiment.get_metric_history(logger.run_id, key)) == 6


def test_save_dir_and_bad_settings(tmp_path):
    fit(tmp_path, Recurrent(), gf.GradientStatisticsCallback(10, save_dir=tmp_path / "mine"))
    assert load(tmp_path / "mine")["step"]
    for bad in (0, -1, 1.5, True, "100"):
        with pytest.raises(gf.InputError, match="`grad_log_every_n_steps`"):
            gf.GradientStatisticsCallback(grad_log_every_n_steps=bad)
    with pytest.raises(gf.InputError, match="`grad_track_per_weight_matrix`"):
        gf.GradientStatisticsCallback(grad_track_per_weight_matrix="false")


def test_a_logger_that_fails_and_a_folder_that_cannot_be_written_stop_nothing(tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    class Broken(CSVLogger):
        def log_metrics(self, metrics, step=None):
            if any("grad" in name for name in metrics):
                raise ConnectionError("down")

    (tmp_path / "file").write_text("")
    module = Recurrent()
    with pytest.warns(gf.GradientFlowWarning):
        fit(
            tmp_path,
            module,
            gf.GradientStatisticsCallback(10, save_dir=tmp_path / "file" / "x"),
            logger=Broken(tmp_path),
        )
    assert len(module.norms) == 60


def test_a_watch_has_the_loss_of_an_accumulated_step_though_the_closure_returns_its_last_part(tmp_path):
    losses = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, batch, _index):
            loss = self.net(batch).square().mean()
            losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_start(self):
            self.flow = gf.watch(self, self.trainer.optimizers)

    module = Module()
    data = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=2)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    lightning.Trainer(
        max_epochs=1, accumulate_grad_batches=4, accelerator="cpu", default_root_dir=tmp_path, **quiet
    ).fit(module, data)
    module.flow.close()
    expected = [sum(losses[at : at + 4]) / 4 for at in range(0, 8, 4)]
    assert module.flow.history["loss"].tolist() == pytest.approx(expected)


def test_where_gradients_are_kept_elsewhere_nothing_is_recorded_and_the_verdict_says_why(tmp_path):
    module, callback = Recurrent(), gf.GradientStatisticsCallback(grad_log_every_n_steps=1)
    for parameter in module.parameters():
        parameter.main_grad = torch.zeros_like(parameter)
    with pytest.warns(gf.GradientFlowWarning, match="does not record this training. Megatron"):
        fit(tmp_path, module, callback, max_steps=3)
    assert load(tmp_path)["grad_norm"] == []
    for found in (callback.diagnose(), gf.diagnose(tmp_path)):
        assert found.status == "insufficient_data"
        assert "Not supported: nothing is judged. Megatron" in str(found)
