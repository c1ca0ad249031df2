import gc
import json
import math
import pickle
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.capture.parameters import parameter_roles
from gradient_flow.table.measure import measure_parts
from wandb_file import wandb_history


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def batches(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(16, 6, generator=generator) for _ in range(count)]


def train(model, optimizer, count=25, flow=None, clip=None, accumulate=1):
    for x in batches(count):
        optimizer.zero_grad()
        for part in x.chunk(accumulate):
            (model(part).square().mean() / accumulate).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model


def reference_norms(count=25, clip=None, lr=0.1):
    """Gradient norms before clipping in fp64 arithmetic on the recorded gradients of an unwatched run."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    norms = []
    for x in batches(count):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        norms.append(math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters())))
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return norms


def test_every_step_is_recorded_with_its_norm():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer) as flow:
        train(model, optimizer)
    assert flow.history["step"].tolist() == list(range(1, 26))
    assert flow.history["norm"] == pytest.approx(reference_norms(), rel=1e-6)
    assert flow.history["lr"].tolist() == [0.1] * 25
    assert flow.table.names == ("0.weight", "0.bias", "2.weight", "2.bias")


def test_before_and_after_clipping_are_both_known():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer) as flow:
        train(model, optimizer, clip=0.05)
        before, after = flow.table.total.norm, flow.clipped_table.total.norm
    assert flow.history["norm"] == pytest.approx(reference_norms(clip=0.05), rel=1e-6)
    assert max(flow.history["clipped_norm"]) <= 0.05 * 1.0001
    assert flow.history["norm"][-1] == before
    assert after == pytest.approx(min(before, 0.05), rel=1e-4)


def test_clipping_by_a_name_imported_before_is_seen_and_torch_is_left_as_it_was():
    from torch.nn.utils import clip_grad_norm_

    helper = torch.nn.utils.clip_grad._clip_grads_with_norm_
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer) as flow:
        model(batches(1)[0]).square().mean().backward()
        returned = clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        assert torch.nn.utils.clip_grad._clip_grads_with_norm_ is not helper
    assert flow.history["norm"][0] == pytest.approx(returned.item(), rel=1e-5)
    assert torch.nn.utils.clip_grad._clip_grads_with_norm_ is helper


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_weights_gradients_and_random_state_are_bit_identical(make):
    results = []
    for watched in (False, True):
        model = make_model()
        optimizer = make(model.parameters(), lr=0.05)
        flow = gf.watch(model, optimizer, layers_every=3) if watched else None
        train(model, optimizer, count=50, clip=0.5)
        if flow:
            flow.close()
        tensors = [p.detach() for p in model.parameters()] + [p.grad for p in model.parameters()]
        results.append([*tensors, torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_no_hook_survives():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError), gf.watch(model, optimizer):
        raise ZeroDivisionError
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert all(not module._forward_hooks for module in model.modules())


def test_every_n_steps_and_nothing_on_the_others(monkeypatch):
    calls = []
    for name, true in (("flow.step_tables.measure", gf.measure), ("table.updates.measure_parts", measure_parts)):
        counted = lambda *a, true=true, **k: calls.append(1) or true(*a, **k)  # noqa: E731
        monkeypatch.setattr(f"gradient_flow.{name}", counted)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, every=10, layers_every=1000, looks=False) as flow:
        train(model, optimizer, clip=1.0)
    assert flow.history["step"].tolist() == [10, 20]
    assert flow.steps == 25
    # before the clip, after it, and once for the update ratios of the first record (changes and sizes)
    assert len(calls) == 2 * 2 + 2


def test_accumulation_counts_optimizer_steps():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer) as flow:
        train(model, optimizer, accumulate=4)
    assert len(flow.history) == 25
    assert flow.history["norm"] == pytest.approx(reference_norms(), rel=1e-5)


def test_a_closure_is_measured_where_the_step_starts():
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    x = batches(1)[0]

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    start = closure()
    expected = gf.measure(model).total.norm
    with gf.watch(model, optimizer) as flow:
        optimizer.step(closure)
        optimizer.step(closure=closure)
    assert len(flow.history) == 2
    assert flow.history["norm"][0] == pytest.approx(expected)
    assert flow.history["loss"][0] == pytest.approx(start.item())


def test_several_optimizers_are_told_apart():
    first, second = make_model(0), make_model(1)
    both = nn.ModuleDict({"first": first, "second": second})
    optimizers = [torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters(), lr=0.01)]
    with gf.watch(both, optimizers) as flow:
        for x in batches(3):
            for model, optimizer in zip((first, second), optimizers, strict=True):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                assert {name.split(".")[0] for name in flow.table} == {"first" if model is first else "second"}
    assert flow.history["optimizer"].tolist() == [0, 1] * 3
    assert flow.history["lr"].tolist() == [0.1, 0.01] * 3


def test_without_an_optimizer_steps_are_recorded_by_hand():
    model = make_model()
    flow = gf.watch(model)
    for x in batches(3):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        flow.step(loss=loss, epoch=2, lr=0.5)
    flow.close()
    assert len(flow.history) == 3
    assert flow.history["epoch"].tolist() == [2, 2, 2]
    assert flow.history["loss"][-1] == pytest.approx(loss.item())
    with pytest.raises(gf.MonitorStateError, match="after close"):
        flow.step()


def test_update_ratios_are_those_of_the_weights(tmp_path):
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with gf.watch(model, optimizer, run=tmp_path):
        train(model, optimizer, count=1)
    record = gf.load_run(tmp_path).layers(1)
    for name, ratio in zip(record["names"], record["update_ratio"], strict=True):
        weight = dict(model.named_parameters())[name].detach()
        assert ratio == pytest.approx(((weight - before[name]).norm() / before[name].norm()).item(), rel=1e-4)


def test_update_ratios_of_large_tensors_are_estimated_from_a_sample(tmp_path):
    model = nn.Linear(500, 500)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    with gf.watch(model, optimizer, run=tmp_path):
        model(torch.randn(32, 500)).square().mean().backward()
        optimizer.step()
    ratio = gf.load_run(tmp_path).layers(1)["update_ratio"][0]
    exact = ((model.weight.detach() - before).norm() / before.norm()).item()
    assert ratio == pytest.approx(exact, rel=0.1)


def test_amp_scale_and_skipped_steps():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    with gf.watch(model, optimizer, scaler=scaler) as flow:
        for i, x in enumerate(batches(6)):
            optimizer.zero_grad()
            loss = model(x).square().mean() * (math.inf if i == 3 else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert flow.steps == 5  # the sixth was skipped by the scaler
    assert flow.skipped_steps == 1
    assert flow.history["amp_scale"].tolist() == [1024, 1024, 1024, 512, 512]
    assert flow.history["norm"][:3] == pytest.approx(reference_norms()[:3], rel=1e-5)  # unscaled


def test_a_fused_optimizer_is_measured_unscaled():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with gf.watch(model, optimizer, scaler=scaler) as flow:
        for x in batches(3):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert flow.history["norm"] == pytest.approx(reference_norms()[:3], rel=1e-5)


def test_a_step_skipped_after_its_clip_leaves_nothing_behind():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gf.watch(model, optimizer) as flow:
        for scale in (1.0, math.nan, 1.0, 1.0):
            optimizer.zero_grad(set_to_none=False)
            (scale * model(batches(1)[0]).square().mean()).backward()
            if torch.isfinite(torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)):
                optimizer.step()
    assert len(flow.history) == 3
    assert flow.history["norm"] == pytest.approx([flow.history["norm"][0]] * 3)
    assert flow.diagnose().status == "stable"


def test_two_optimizers_clipped_before_either_steps_keep_both_raw_norms():
    first, second = make_model(0), make_model(1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.0) for model in (first, second)]
    with gf.watch(nn.ModuleList([first, second]), optimizers) as flow:
        norms = []
        for model in (first, second):
            (100 * model(batches(1)[0]).square().mean()).backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01).item())
        for optimizer in optimizers:
            optimizer.step()
    assert flow.history["norm"] == pytest.approx(norms, rel=1e-5)
    assert flow.history["clipped_norm"] == pytest.approx([0.01, 0.01], rel=1e-3)


def test_steps_are_counted_per_optimizer():
    first, second = make_model(0), make_model(1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
    with gf.watch(nn.ModuleList([first, second]), optimizers, every=2) as flow:
        for x in batches(6):
            for model, optimizer in zip((first, second), optimizers, strict=True):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
    assert flow.history["optimizer"].tolist() == [0, 1, 0, 1, 0, 1]


def test_a_parameter_group_added_later_is_measured():
    model, late = make_model(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gf.watch(model, optimizer) as flow:
        optimizer.add_param_group({"params": [late]})
        late.grad = torch.full((3,), 100.0)
        optimizer.step()
    assert flow.table.total.norm == pytest.approx(100 * math.sqrt(3))


def test_models_are_not_kept_alive():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flow = gf.watch(model, optimizer)
    train(model, optimizer, count=4)  # one look is over, and the next has not begun
    weight, model, optimizer = weakref.ref(model[0].weight), None, None
    gc.collect()
    assert weight() is None
    flow.close()


def test_a_forked_child_leaves_its_parents_run_alone(tmp_path):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=tmp_path) as flow:
        flow._guard.pid += 1  # as if this were another process
        train(model, optimizer, count=2)
        flow._guard.pid -= 1
    assert len(gf.load_run(tmp_path)) == 0


# ---- verdicts -----------------------------------------------------------------------------------------------------


def test_the_first_bad_layer_and_step_are_known(tmp_path):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gf.watch(model, optimizer, run=tmp_path) as flow:
        for i, x in enumerate(batches(8)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if i == 5:
                model[2].weight.grad[0, 0] = math.nan
            optimizer.step()
    verdict = flow.diagnose()
    assert (verdict.status, verdict.step, verdict.layer) == ("nan", 6, "2.weight")
    assert not verdict.healthy
    assert "step 6" in str(verdict)
    step = gf.load_run(tmp_path).steps[5]
    assert step["norm"] is None
    assert step["finite_norm"] > 0
    assert step["nonfinite_layers"] == ["2.weight"]


def test_healthy_and_exploding_runs_are_told_apart():
    def verdict(lr):
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        with gf.watch(model, optimizer) as flow:
            train(model, optimizer)
        return flow.diagnose().status

    assert verdict(1e-3) == "stable"
    assert verdict(5.0) == "exploding"
    assert gf.watch(make_model()).diagnose().status == "insufficient_data"


# ---- it never stops training --------------------------------------------------------------------------------------


def test_a_failing_logger_costs_one_warning():
    def broken(metrics, step):
        raise ConnectionError("down")

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(gf.GradientFlowWarning, match="down") as caught, gf.watch(model, optimizer, log=broken) as flow:
        train(model, optimizer)
    assert len(caught) == 1
    assert len(flow.history) == 25


def test_a_failure_of_ours_costs_one_warning(monkeypatch):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flow = gf.watch(model, optimizer)
    monkeypatch.setattr(flow._steps.measure, "measure", lambda *a: 1 / 0)
    with pytest.warns(gf.GradientFlowWarning, match="training continues") as caught, flow:
        train(model, optimizer)
    assert len(caught) == 1


def test_a_run_folder_that_cannot_be_written_costs_one_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(gf.GradientFlowWarning, match="training continues") as caught:
        flow = gf.watch(model, optimizer, run=tmp_path / "file" / "run")
    with flow:
        train(model, optimizer)  # any further warning would be an error
    assert len(caught) == 1
    assert len(flow.history) == 25


# ---- resuming, settings -------------------------------------------------------------------------------------------


def test_a_resumed_watch_goes_on_counting(tmp_path):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=tmp_path) as flow:
        train(model, optimizer, count=5)
    state = pickle.loads(pickle.dumps(flow.state_dict()))
    with gf.watch(model, optimizer, run=tmp_path) as flow:
        flow.load_state_dict(state)
        train(model, optimizer, count=3)
    assert flow.history["step"].tolist() == list(range(1, 9))
    assert gf.load_run(tmp_path).series("step").tolist() == list(range(1, 9))


def test_steps_repeated_after_a_checkpoint_take_the_place_of_the_first_ones(tmp_path):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=tmp_path, layers_every=2) as flow:
        train(model, optimizer, count=3)
        checkpoint = flow.state_dict()
        train(model, optimizer, count=4)
    with gf.watch(model, optimizer, run=tmp_path, layers_every=2) as flow:
        flow.load_state_dict(checkpoint)
        train(model, optimizer, count=2)
    run = gf.load_run(tmp_path)
    assert run.series("step").tolist() == [1, 2, 3, 4, 5]
    assert run.table_steps == [1, 2, 4]
    assert sum(record["kind"] == "step" for record in run.records) == 9


def test_the_history_is_bounded():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, history=10) as flow:
        train(model, optimizer)
    assert flow.history["step"].tolist() == list(range(16, 26))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"every": 0}, "`every`"),
        ({"layers_every": -1}, "`layers_every`"),
        ({"every": 1.5}, "`every`"),
        ({"history": 0}, "`history`"),
        ({"groups": 3}, "`groups`"),
        ({"log": "webhook"}, "`log` must be one of wandb, tensorboard, mlflow"),
        ({"optimizer": "adam"}, "`optimizer`"),
        ({"optimizer": [torch.optim.SGD([torch.ones(1)]), 3]}, r"`optimizer\[1\]`"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, named):
    with pytest.raises(gf.InputError, match=named):
        gf.watch(make_model(), **settings)
    with pytest.raises(gf.InputError, match="`model`"):
        gf.watch("model")
    with gf.watch(make_model()) as flow, pytest.raises(gf.InputError, match="`norm` is recorded"):
        flow.log(norm=3.0)


# ---- groups and roles ---------------------------------------------------------------------------------------------


class Readout(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.rnn = kind(4, 5, num_layers=2)
        self.readout = nn.Linear(5, 2)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_roles_of_torchs_recurrent_layers(kind):
    roles = parameter_roles(Readout(kind))
    assert roles["rnn.weight_ih_l0"] == roles["rnn.weight_ih_l1"] == "W_in"
    assert roles["rnn.weight_hh_l0"] == "W_rec"
    assert roles["readout.weight"] == "W_out"
    assert roles["rnn.bias_ih_l0"] == roles["readout.bias"] == "biases"
    assert roles["encoder.weight"] == "encoder.weight"


def test_roles_of_models_that_use_the_names_themselves():
    model = nn.ModuleDict(
        {name: nn.Linear(2, 2) for name in ("W_in", "W_rec", "W_rec_2", "W_out", "W_h_init", "other")}
    )
    roles = parameter_roles(model)
    assert roles["W_in.weight"] == "W_in"
    assert roles["W_rec.weight"] == roles["W_rec_2.weight"] == "W_rec"
    assert roles["W_rec.bias"] == "biases"
    assert roles["W_h_init.weight"] == "W_h_init"
    assert roles["other.weight"] == "other.weight"


def test_roles_of_other_models_are_blocks_norms_embeddings_and_biases():
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(4, 4),
            "blocks": nn.ModuleList([nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)) for _ in range(2)]),
            "head": nn.Linear(4, 2),
        }
    )
    assert set(parameter_roles(model).values()) == {
        "embeddings",
        "norms",
        "blocks.0",
        "blocks.1",
        "head.weight",
        "biases",
    }


def test_groups_reach_the_logger():
    seen = {}
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, groups={"first": "0.*"}, log=lambda m, s: seen.setdefault(s, m)):
        train(model, optimizer, count=2)
    assert "train/grad_norm/first" in seen[1]
    assert "train/grad_norm/2.weight" in seen[1]
    assert "train/grad_norm" in seen[2]


# ---- real loggers -------------------------------------------------------------------------------------------------


def run_with(log, folder):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=folder, log=log) as flow:
        train(model, optimizer, count=5)
    return flow.history["norm"]


def test_tensorboard_event_files_hold_the_norms(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own deprecations
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        norms = run_with("tensorboard", tmp_path)
        events = EventAccumulator(str(tmp_path))
        events.Reload()
    scalars = events.Scalars("train/grad_norm")
    assert [event.step for event in scalars] == [1, 2, 3, 4, 5]
    assert [event.value for event in scalars] == pytest.approx(norms, rel=1e-6)


@pytest.mark.filterwarnings("ignore")  # the package's own deprecations
@pytest.mark.parametrize("store", ["file://{}/mlruns", "sqlite:///{}/mlflow.db"])
def test_mlflow_stores_hold_the_norms(tmp_path, monkeypatch, store):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(store.format(tmp_path))
    mlflow.set_experiment("gradients")
    norms = run_with("mlflow", tmp_path)
    client = mlflow.tracking.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("gradients").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/grad_norm")
    assert [metric.value for metric in sorted(history, key=lambda m: m.step)] == pytest.approx(norms, rel=1e-6)


@pytest.mark.filterwarnings("ignore")  # the package's own deprecations
def test_a_wandb_offline_run_holds_the_norms(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    norms = run_with("wandb", tmp_path)
    (file,) = tmp_path.rglob("*.wandb")
    assert wandb_history(file, "train/grad_norm") == pytest.approx(norms, rel=1e-6)


def test_run_and_records_survive_without_close(tmp_path):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flow = gf.watch(model, optimizer, run=tmp_path)
    train(model, optimizer, count=4)
    assert len(gf.load_run(tmp_path)) == 4  # nothing is waiting in a buffer
    assert np.isfinite(gf.load_run(tmp_path).series("norm")).all()
    flow.close()


# ---- with a manager ---------------------------------------------------------------------------------------------


def test_a_manager_acts_on_watched_steps_from_the_same_read_and_is_recorded(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = gf.create_gradient_manager(max_grad_norm=0.5, nonfinite="skip")
    kept = []
    with gf.watch(model, optimizer, run=tmp_path, manager=manager) as flow:
        for step in range(6):
            optimizer.zero_grad()
            flow.log(loss=1.0)
            (3 * model(torch.randn(8, 4))).square().mean().backward()
            if step == 3:
                model.weight.grad[0, 0] = math.nan
            before = model.weight.detach().clone()
            optimizer.step()
            kept.append((gf.measure(model).total.norm, torch.equal(before, model.weight)))
    assert [same for _, same in kept] == [False, False, False, True, False, False]
    assert all(norm == pytest.approx(0.5, rel=1e-5) for k, (norm, _) in enumerate(kept) if k != 3)
    records = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["kind"] == "step"]
    assert [record.get("guard") for record in steps] == [None, None, None, "skip", None, None]
    assert all(record["clipped_norm"] == pytest.approx(0.5) for k, record in enumerate(steps) if k != 3)
    assert all(record["norm"] > 0.5 for k, record in enumerate(steps) if k != 3)
    assert steps[0]["clip_threshold"] == 0.5
    assert manager.total_steps == 6
    assert manager.monitor.recent_norms() == pytest.approx([r["norm"] for k, r in enumerate(steps) if k != 3])
    assert not optimizer._optimizer_step_pre_hooks


def test_a_manager_acts_also_on_steps_that_are_not_recorded():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = gf.create_gradient_manager(max_grad_norm=1e-3)
    with gf.watch(model, optimizer, every=3, manager=manager):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            assert gf.measure(model).total.norm == pytest.approx(1e-3, rel=1e-5)
    assert manager.clipped_steps == 6


def test_what_a_managers_policy_raises_comes_through_and_the_watch_closes(tmp_path):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = gf.create_gradient_manager(nonfinite="raise")
    model(torch.full((1, 4), math.nan)).sum().backward()
    with pytest.raises(gf.NonFiniteGradientError), gf.watch(model, optimizer, run=tmp_path, manager=manager):
        optimizer.step()
    assert not optimizer._optimizer_step_pre_hooks
    assert gf.load_run(tmp_path).series("nan_count")[0] > 0
