"""What loggers get: the whole record of a step as flat numbers, and what the run was where they have a place for it."""

import warnings

import pytest
import torch
from torch import nn

import gradient_flow as gf
from wandb_file import wandb_config


def run_with(log, folder=None, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.2}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with gf.watch(model, optimizer, run=folder, log=log, config={"size": 3}, **settings) as flow:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            flow.log(loss=loss, metrics={"accuracy": 0.5})
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
    return flow


def test_a_function_gets_every_number_of_the_record():
    seen = {}
    flow = run_with(lambda metrics, step: seen.setdefault(step, metrics))
    for step, record in enumerate(flow.run.steps, start=1):
        told = seen[step]
        assert told["train/clipped_norm"] == pytest.approx(1e-3, rel=1e-3)
        assert told["train/clipped_norm"] < told["train/grad_norm"] == record["norm"]
        assert told["train/loss"] == record["loss"]
        assert (told["train/lr"], told["train/lr/1"]) == (0.1, 0.2)
        assert told["train/metrics/accuracy"] == 0.5
        assert (told["train/nan_count"], told["train/linf"]) == (0, record["linf"])
        assert all(isinstance(value, (int, float)) for value in told.values())
        assert not {"train/step", "train/time", "train/norm"} & told.keys(), "an axis, or a number under two names"


def test_tensorboard_holds_clipped_norms_and_the_description(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own deprecations
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        flow = run_with("tensorboard", tmp_path)
        events = EventAccumulator(str(tmp_path))
        events.Reload()
    clipped = [event.value for event in events.Scalars("train/clipped_norm")]
    assert clipped == pytest.approx(flow.history["clipped_norm"], rel=1e-6)
    text = events.Tensors("gradient_flow/about/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "| optimizer | SGD (lr (0.1, 0.2)" in text
    assert "| clipping | norm, limit 0.001 |" in text


@pytest.mark.filterwarnings("ignore")  # the package's own deprecations
@pytest.mark.parametrize("store", ["file://{}/mlruns", "sqlite:///{}/mlflow.db"])
def test_mlflow_holds_clipped_norms_and_the_description(tmp_path, monkeypatch, store):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(store.format(tmp_path))
    mlflow.set_experiment("gradients")
    flow = run_with("mlflow", tmp_path)
    client = mlflow.tracking.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("gradients").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/clipped_norm")
    values = [metric.value for metric in sorted(history, key=lambda metric: metric.step)]
    assert values == pytest.approx(flow.history["clipped_norm"], rel=1e-6)
    assert run.data.params["gradient_flow/optimizer"] == "SGD"
    assert run.data.params["gradient_flow/config size"] == "3"
    assert run.data.params["gradient_flow/clipping limit"] == "0.001"


@pytest.mark.filterwarnings("ignore")  # the package's own deprecations
def test_wandb_holds_the_description_as_config(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    flow = run_with("wandb", tmp_path)
    (file,) = tmp_path.rglob("*.wandb")
    told = wandb_config(file)["gradient_flow"]
    assert told["optimizers"][0]["class"] == "SGD"
    assert told["clipping"] == flow.run.about["clipping"]


def test_without_a_description_loggers_get_none(tmp_path, monkeypatch):
    told = []

    class Recorder:
        def __call__(self, metrics, step):
            pass

    monkeypatch.setattr("gradient_flow.flow.loggers.SafeLogger.describe", lambda _self, about: told.append(about))
    run_with(Recorder(), tmp_path / "a", describe=False)
    assert told == []
    run_with(Recorder(), tmp_path / "b")
    assert told[0]["config"] == {"size": 3}
