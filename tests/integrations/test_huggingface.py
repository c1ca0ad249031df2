"""GradientFlowCallback with the real Trainer: its numbers against an fp64 copy of each step."""

import copy
import gc
import importlib
import json
import math
import sys

import pytest
import torch
from torch import nn

import gradient_flow as gf

transformers = pytest.importorskip("transformers", reason="the dev extra installs it; see test_transformers_is_here")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # those of transformers

OURS = ("grad_norm_clipped", "grad_variance", "grad_mean", "grad_max", "grad_min", "grad_nonfinite_steps")


def test_transformers_is_here():
    """The suite must not turn green by skipping."""
    import accelerate
    import transformers as installed

    assert installed.__version__
    assert accelerate.__version__


@pytest.fixture(autouse=True)
def _fresh_accelerator():
    from accelerate.state import AcceleratorState

    yield
    AcceleratorState._reset_state(reset_partial_state=True)


class Net(nn.Module):
    """Keeps the batches it was called with; the gradient of `body` at forward number `poison` has a NaN."""

    def __init__(self, poison=None):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.poison, self.batches, self.fail_at = poison, [], None

    def forward(self, x, labels=None):
        self.batches.append((x.detach().clone(), labels.detach().clone()))
        if len(self.batches) == self.fail_at:
            raise RuntimeError("the data is broken")
        hidden = self.body(x)
        if len(self.batches) == self.poison:
            hidden.register_hook(lambda g: torch.full_like(g, math.nan))
        return {"loss": loss_of(self.head(torch.tanh(hidden)), labels)}


def loss_of(y, labels):
    return (y - labels).square().mean()


class Oracle(transformers.TrainerCallback):
    """The gradients of each step by an fp64 copy of the weights that it starts from, before and after a clip."""

    def __init__(self, max_norm=0.0):
        self.max_norm, self.norms, self.clipped, self.copies = max_norm, [], [], []

    def on_step_begin(self, args, state, control, model, **_):
        self.copies.append((copy.deepcopy(model).double(), len(model.batches)))

    def on_step_end(self, args, state, control, model, **_):
        twin, start = self.copies[-1]
        parts = [(x.double(), y.double()) for x, y in model.batches[start:]]
        for x, y in parts:
            (loss_of(twin.head(torch.tanh(twin.body(x))), y) / len(parts)).backward()
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in twin.parameters()))
        factor = min(1.0, self.max_norm / (norm + 1e-6)) if self.max_norm else 1.0
        self.norms.append(norm)
        self.clipped.append(norm * factor)
        self.per_layer = {name: p.grad.norm().item() for name, p in twin.named_parameters()}


def data(count=64):
    generator = torch.Generator().manual_seed(1)
    return [
        {"x": torch.randn(4, generator=generator), "labels": torch.randn(1, generator=generator)} for _ in range(count)
    ]


def make(tmp_path, callbacks, model=None, **settings):
    settings = {"max_steps": 6, "logging_steps": 1, "report_to": [], "save_strategy": "no", "lr": 0.05, **settings}
    args = transformers.TrainingArguments(
        str(tmp_path / "out"),
        use_cpu=True,
        disable_tqdm=True,
        per_device_train_batch_size=4,
        learning_rate=settings.pop("lr"),
        **settings,
    )
    return transformers.Trainer(model or Net(), args, train_dataset=data(), callbacks=callbacks)


def hooks_of(trainer):
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def train_logs(trainer):
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def test_a_block_around_the_trainer_names_the_error(tmp_path):
    model = Net()
    model.fail_at = 4

    def crash():
        with gf.GradientFlowCallback(tmp_path / "run") as callback:
            make(tmp_path, [callback], model).train()

    with pytest.raises(RuntimeError, match="broken"):
        crash()
    said = (
        "The run failed at step 3 with RuntimeError: the data is broken. No other problem found in 3 steps and 1 look."
    )
    assert gf.diagnose(tmp_path / "run").message == said


def test_the_trainers_schedule_clip_and_settings_are_told(tmp_path):
    callback = gf.GradientFlowCallback(tmp_path / "run", config={"mine": 1})
    make(tmp_path, [callback], max_grad_norm=0.3, lr_scheduler_type="linear", bf16=True).train()
    run = gf.load_run(tmp_path / "run")
    (optimizer,) = run.about["optimizers"]
    assert optimizer["class"] == "AdamW"
    assert optimizer["scheduler"].startswith("LambdaLR (_get_linear_schedule")
    assert run.about["clipping"] == {"by": "norm", "limit": 0.3}
    assert run.about["amp"]["autocast"] in ("bfloat16", "bf16")
    assert run.about["config"] == {"mine": 1}
    assert run.ending.state == "finished"


@pytest.mark.parametrize(
    ("settings", "rel"),
    [
        ({"max_grad_norm": 0.3}, 1e-5),
        ({"max_grad_norm": 0.0}, 1e-5),
        ({"max_grad_norm": 0.3, "gradient_accumulation_steps": 3}, 1e-5),
        ({"max_grad_norm": 0.3, "gradient_accumulation_steps": 2, "bf16": True}, 0.05),
        ({"max_grad_norm": 0.3, "optim": "adamw_torch"}, 1e-5),  # where the others are fused
    ],
    ids=["clipped", "unclipped", "accumulated", "bf16", "unfused"],
)
def test_each_step_is_that_of_its_fp64_copy_before_and_after_the_clip(tmp_path, settings, rel):
    oracle, callback = Oracle(settings["max_grad_norm"]), gf.GradientFlowCallback(say=False)
    trainer = make(tmp_path, [oracle, callback], **settings)
    trainer.train()
    assert callback.flow.history["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert callback.flow.history["norm"] == pytest.approx(oracle.norms, rel=rel)
    assert callback.flow.history["clipped_norm"] == pytest.approx(oracle.clipped, rel=rel)
    last = {name: callback.flow.table[name].norm for name in callback.flow.table.names}
    assert last == pytest.approx(oracle.per_layer, rel=10 * rel)
    logs = train_logs(trainer)
    assert [entry["step"] for entry in logs] == [1, 2, 3, 4, 5, 6]
    assert [entry["grad_norm_clipped"] for entry in logs] == pytest.approx(oracle.clipped, rel=rel)
    assert [entry["grad_norm"] for entry in logs] == pytest.approx(oracle.norms, rel=max(rel, 1e-4))
    assert all(entry.keys() >= set(OURS) for entry in logs)
    assert hooks_of(trainer) == 0


def test_weights_are_bit_identical_with_and_without_the_callback(tmp_path):
    trained = []
    for callbacks in ([gf.GradientFlowCallback(tmp_path / "run", layers_every=1)], []):
        trainer = make(tmp_path, callbacks, max_grad_norm=0.3, gradient_accumulation_steps=2)
        trainer.train()
        trained.append([*trainer.model.state_dict().values(), torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))


def test_whatever_reports_gets_one_entry_per_step_with_both_sets_of_keys(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    oracle = Oracle(0.3)
    callback = gf.GradientFlowCallback(say=False, groups={"all": "*"}, layers_every=1)
    make(tmp_path, [oracle, callback], report_to=["tensorboard"], max_grad_norm=0.3, logging_steps=2).train()
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    for key in ("loss", "grad_norm", "learning_rate", *OURS, "grad_norm/all"):
        assert [event.step for event in events.Scalars(f"train/{key}")] == [2, 4, 6], key
    clipped = [event.value for event in events.Scalars("train/grad_norm_clipped")]
    assert clipped == pytest.approx(oracle.clipped[1::2], rel=1e-5)


def test_a_bad_step_is_named_although_the_loss_filter_hides_it_and_the_clip_spreads_it(tmp_path, capsys):
    callback = gf.GradientFlowCallback(tmp_path / "run")
    trainer = make(tmp_path, [callback], Net(poison=3), logging_steps=2, logging_nan_inf_filter=True)
    trainer.train()
    logs = train_logs(trainer)
    assert all(math.isfinite(entry["loss"]) for entry in logs)  # what the Trainer shows, though all weights are NaN
    assert [entry["grad_nonfinite_steps"] for entry in logs] == [0, 2, 2]
    (first, *_) = [record for record in gf.load_run(tmp_path / "run").records if record.get("nonfinite_layers")]
    assert (first["step"], first["nonfinite_layers"]) == (3, ["body.weight", "body.bias"])
    said = capsys.readouterr().out.strip().splitlines()[-1]
    assert said == callback.summary()
    assert "6 steps watched" in said
    assert "4 with NaN or Inf" in said
    assert "since step 3" in said
    assert said.endswith(f"Run: {tmp_path / 'run'}")


@pytest.mark.parametrize("max_grad_norm", [0.3, 0.0])
def test_a_manager_skips_the_bad_step(tmp_path, max_grad_norm):
    manager = gf.create_gradient_manager(nonfinite="skip", max_grad_norm=0.1)
    callback = gf.GradientFlowCallback(manager=manager, say=False)
    trainer = make(tmp_path, [callback], Net(poison=3), max_grad_norm=max_grad_norm)
    trainer.train()
    assert [(event.step, event.action) for event in manager.events] == [(3, "skip")]
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    clipped = [entry["grad_norm_clipped"] for entry in train_logs(trainer)]
    assert [value for value in clipped if math.isfinite(value)] == pytest.approx([0.1] * 5, rel=1e-4)
    assert "1 with NaN or Inf" in callback.summary()


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    whole = gf.GradientFlowCallback(say=False)
    make(tmp_path / "whole", [whole], save_strategy="steps", save_steps=3).train()
    manager = gf.create_gradient_manager(max_grad_norm=1e9)
    resumed = gf.GradientFlowCallback(tmp_path / "run", manager=manager, say=False)
    trainer = make(tmp_path, [resumed], Net())
    trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / "out" / "checkpoint-3"))
    assert resumed.flow.history["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert resumed.flow.history["norm"] == pytest.approx(whole.flow.history["norm"].tolist(), rel=1e-5)
    assert resumed.summary().startswith("gradient_flow: 3 steps watched")
    assert gf.load_run(tmp_path / "run").series("step").tolist() == [4, 5, 6]


def test_a_manager_goes_on_from_a_checkpoint(tmp_path):
    def callback():
        return gf.GradientFlowCallback(manager=gf.create_gradient_manager(clip_type="zclip"), say=False)

    first, second = callback(), callback()
    make(tmp_path, [first], save_strategy="steps", save_steps=3, max_steps=3, lr_scheduler_type="constant").train()
    trainer = make(tmp_path, [second], max_steps=6, lr_scheduler_type="constant")
    trainer.train(resume_from_checkpoint=True)
    assert first.manager.total_steps == 3
    assert second.manager.total_steps == 6


def test_the_checkpoint_of_a_run_that_was_not_watched_counts_on(tmp_path):
    make(tmp_path, [], save_strategy="steps", save_steps=3).train()
    callback = gf.GradientFlowCallback(say=False)
    make(tmp_path, [callback]).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert callback.flow.history["step"].tolist() == [4, 5, 6]


def test_a_callback_that_the_trainer_makes_anew_says_what_it_lost(tmp_path):
    manager = gf.create_gradient_manager(max_grad_norm=1e9)
    make(tmp_path, [gf.GradientFlowCallback(manager=manager, every=2)], save_strategy="steps", save_steps=3).train()
    trainer = make(tmp_path, [gf.GradientFlowCallback()], restore_callback_states_from_checkpoint=True)
    with pytest.warns(gf.GradientFlowWarning, match="without its manager"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    (made,) = [each for each in trainer.callback_handler.callbacks if isinstance(each, gf.GradientFlowCallback)]
    assert made.flow.history["step"].tolist() == [2, 4, 6]


def test_no_hook_survives_an_error(tmp_path):
    original = torch.nn.utils.clip_grad._clip_grads_with_norm_

    def failing():
        model = Net()
        model.fail_at = 4
        return model

    with gf.GradientFlowCallback(tmp_path / "run") as callback:
        trainer = make(tmp_path, [callback], failing())
        with pytest.raises(RuntimeError, match="broken"):
            trainer.train()
        assert hooks_of(trainer) == 2  # the Trainer told nobody
    assert hooks_of(trainer) == 0
    assert torch.nn.utils.clip_grad._clip_grads_with_norm_ is original
    assert [*gf.load_run(tmp_path / "run").records][-1]["kind"] == "end"
    said = "The run failed at step 3: the Trainer stopped before its end. No other problem found in 3 steps and 1 look."
    assert gf.diagnose(tmp_path / "run").message == said  # somebody else caught what it raised

    callback = gf.GradientFlowCallback()  # the next training of the same Trainer ends it too
    trainer = make(tmp_path, [callback], failing())
    with pytest.raises(RuntimeError, match="broken"):
        trainer.train()
    left = callback.flow
    trainer.train()
    assert hooks_of(trainer) == 0
    assert "closed" in repr(left)

    callback = gf.GradientFlowCallback()  # and so does the end of the Trainer
    trainer = make(tmp_path, [callback], failing())
    with pytest.raises(RuntimeError, match="broken"):
        trainer.train()
    del trainer
    gc.collect()
    assert "closed" in repr(callback.flow)
    assert torch.nn.utils.clip_grad._clip_grads_with_norm_ is original


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_loss_scaling_is_undone_and_skipped_steps_are_counted(tmp_path, optim):
    """fp16 with the scaler that other devices get: on the CPU Accelerate leaves it out."""
    oracle, callback = Oracle(0.3), gf.GradientFlowCallback(say=False)
    trainer = make(tmp_path, [oracle, callback], max_grad_norm=0.3, fp16=True, optim=optim)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17)  # overflows: it has to come down first
    trainer.accelerator.native_amp = True
    trainer.train()
    skipped, history = callback.flow.skipped_steps, callback.flow.history
    good = [index for index, entry in enumerate(train_logs(trainer)) if math.isfinite(entry["grad_norm"])]
    assert 0 < skipped == 6 - len(good) < 4
    finite = [row for row in zip(history["norm"], history["clipped_norm"], strict=True) if math.isfinite(row[0])]
    assert [norm for norm, _ in finite] == pytest.approx([oracle.norms[index] for index in good], rel=0.02)
    assert [clipped for _, clipped in finite] == pytest.approx([oracle.clipped[index] for index in good], rel=0.02)
    assert f"{skipped} skipped by the GradScaler" in callback.summary()


def test_every_other_step_can_be_left_out(tmp_path):
    seen = []
    callback = gf.GradientFlowCallback(every=2, log=lambda metrics, step: seen.append(step), say=False)
    trainer = make(tmp_path, [callback])
    trainer.train()
    assert seen == callback.flow.history["step"].tolist() == [2, 4, 6]
    assert ["grad_mean" in entry for entry in train_logs(trainer)] == [False, True] * 3  # nothing old is logged again
    assert "3 of 6 steps recorded" in callback.summary()


def test_trials_of_a_search_have_a_folder_each(tmp_path):
    callback = gf.GradientFlowCallback(tmp_path / "runs", say=False)
    trainer = make(tmp_path, [callback], max_steps=2)

    class Search(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **_):
            state.is_hyper_param_search, state.trial_name = True, "trial-7"

    trainer.callback_handler.callbacks.insert(0, Search())
    trainer.train()
    assert (tmp_path / "runs" / "trial-7" / "run.jsonl").exists()


def test_what_cannot_be_watched_is_trained_all_the_same(tmp_path, monkeypatch):
    def refuse(*_args, **_settings):
        raise gf.InputError("`optimizer` has no step hooks.")

    monkeypatch.setattr("gradient_flow.integrations.huggingface.watch", refuse)
    trainer = make(tmp_path, [gf.GradientFlowCallback()])
    with pytest.warns(gf.GradientFlowWarning, match="cannot be watched"):
        assert trainer.train().global_step == 6
    managed = make(tmp_path, [gf.GradientFlowCallback(manager=gf.create_gradient_manager())])
    with pytest.raises(gf.InputError, match="no step hooks"):
        managed.train()


def test_bad_settings_are_refused_by_name():
    with pytest.raises(gf.ConfigError, match="`every`"):
        gf.GradientFlowCallback(every=0)
    with pytest.raises(gf.ConfigError, match="`layers_every`"):
        gf.GradientFlowCallback(layers_every=True)
    with pytest.raises(gf.InputError, match="`evry` is not a setting"):
        gf.GradientFlowCallback(evry=2)
    with pytest.raises(gf.InputError, match="`manager`"):
        gf.GradientFlowCallback(manager="skip")


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.trainer_callback", None)
    monkeypatch.delitem(sys.modules, "gradient_flow.integrations.huggingface", raising=False)
    with pytest.raises(gf.MissingExtraError, match=r'pip install "transformers\S*" "accelerate\S*"'):
        importlib.import_module("gradient_flow.integrations.huggingface")


def test_what_goes_into_a_checkpoint_is_json_and_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("gradient_flow.integrations.huggingface.KEPT_STEPS", 2)
    callback = gf.GradientFlowCallback(groups=lambda name: "all", say=False)
    make(tmp_path, [callback]).train()
    state = json.loads(json.dumps(callback.state()))
    assert [record["step"] for record in state["attributes"]["checkpoint"]["flow"]["history"]["records"]] == [5, 6]
    assert state["attributes"]["left_out"] == ["groups"]
