"""`gf.watch` and the manager with what `accelerator.prepare` returns, against fp64 copies of the same steps."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradient_flow as gf

accelerate = pytest.importorskip("accelerate", reason="the dev extra installs it; see test_huggingface.py")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # those of accelerate

PARTS, LIMIT = 2, 0.2


@pytest.fixture(autouse=True)
def _fresh_accelerator():
    from accelerate.state import AcceleratorState, GradientState

    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def loader(rows=48):
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x), batch_size=4)


def with_scaler(accelerator, scale):
    """What Accelerate makes for fp16 on other devices; on the CPU it leaves the scaler out."""
    accelerator.scaler, accelerator.native_amp = torch.amp.GradScaler("cpu", init_scale=scale), True
    return accelerator


class Training:
    """The loop of Accelerate's documentation, keeping the norms of an fp64 copy of each step."""

    def __init__(self, accelerator, make=torch.optim.SGD, clip=LIMIT):
        self.accelerator, self.clip = accelerator, clip
        model = net()
        optimizer = make(model.parameters(), lr=0.05)
        self.model, self.optimizer, self.loader = accelerator.prepare(model, optimizer, loader())
        self.norms, self.skipped = [], []

    def run(self, after_step=lambda: None):
        batches = []
        for (x,) in self.loader:
            if not batches:
                twin = net().double()
                twin.load_state_dict(self.model.state_dict())
            batches.append(x)
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(x).square().mean())
                if self.accelerator.sync_gradients and self.clip:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), self.clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
            if self.accelerator.sync_gradients:
                for part in batches:
                    (twin(part.double()).square().mean() / len(batches)).backward()
                self.norms.append(math.sqrt(sum(p.grad.square().sum().item() for p in twin.parameters())))
                self.skipped.append(self.accelerator.optimizer_step_was_skipped)
                batches = []
                after_step()


def clipped(norms):
    return [norm * min(1.0, LIMIT / (norm + 1e-6)) for norm in norms]


@pytest.mark.parametrize(("precision", "rel"), [("no", 1e-5), ("bf16", 0.05)])
@pytest.mark.parametrize("parts", [1, PARTS])
def test_a_watched_step_is_that_of_its_fp64_copy(precision, rel, parts):
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=parts)
    training = Training(accelerator)
    with gf.watch(training.model, training.optimizer) as flow:
        training.run()
    assert len(flow.history) == 12 // parts  # once for each step, not for each call of `optimizer.step()`
    assert flow.history["norm"] == pytest.approx(training.norms, rel=rel)
    assert flow.history["clipped_norm"] == pytest.approx(clipped(training.norms), rel=rel)
    assert flow.table.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert not training.optimizer.optimizer._optimizer_step_pre_hooks


def fused(parameters, lr):
    return torch.optim.AdamW(parameters, lr, fused=True)


@pytest.mark.parametrize("make", [torch.optim.SGD, fused])
def test_under_a_scaler_norms_are_unscaled_and_skips_are_those_of_accelerate(make):
    training = Training(with_scaler(accelerate.Accelerator(cpu=True, mixed_precision="fp16"), 2.0**23), make)
    with gf.watch(training.model, training.optimizer, scaler=training.accelerator.scaler) as flow:
        training.run()
    assert 0 < flow.skipped_steps < 10
    seen = [norm for norm in flow.history["norm"] if math.isfinite(norm)]
    assert len(seen) == 12 - flow.skipped_steps
    if make is torch.optim.SGD:  # a fused step is called even when it is to do nothing, and Accelerate counts calls
        taken = [norm for norm, skipped in zip(training.norms, training.skipped, strict=True) if not skipped]
        assert sum(training.skipped) == flow.skipped_steps
        assert seen == pytest.approx(taken, rel=0.02)


def test_without_clipping_fused_steps_are_unscaled_too():
    training = Training(with_scaler(accelerate.Accelerator(cpu=True, mixed_precision="fp16"), 2.0**8), fused, clip=None)
    with gf.watch(training.model, training.optimizer, scaler=training.accelerator.scaler) as flow:
        training.run()
    assert flow.history["norm"] == pytest.approx(training.norms, rel=0.02)


def test_the_trackers_get_the_metrics(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accelerator = accelerate.Accelerator(cpu=True, log_with="tensorboard", project_dir=tmp_path)
    accelerator.init_trackers("board")
    training = Training(accelerator)
    with gf.watch(training.model, training.optimizer, log=accelerator.log):
        training.run()
    accelerator.end_training()
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    scalars = events.Scalars("train/grad_norm")
    assert [event.step for event in scalars] == list(range(1, 13))
    assert [event.value for event in scalars] == pytest.approx(training.norms, rel=1e-5)


def test_a_flow_and_a_manager_go_into_the_checkpoints_of_accelerate(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True)
    training = Training(accelerator)
    manager = gf.create_gradient_manager(clip_type="zclip")
    with gf.watch(training.model, training.optimizer, manager=manager) as flow:
        accelerator.register_for_checkpointing(flow, manager)
        training.run()
        accelerator.save_state(tmp_path)
        training.run()
        assert (flow.steps, manager.total_steps) == (24, 24)
        accelerator.load_state(tmp_path)
        assert (flow.steps, manager.total_steps) == (12, 12)
        training.run()
    assert flow.history["step"].tolist() == list(range(1, 25))


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_manager_clips_what_is_prepared(by_hand):
    """As `attach`, and as a call in the loop: there the scaler must not divide a second time."""
    accelerator = with_scaler(accelerate.Accelerator(cpu=True, mixed_precision="fp16"), 2.0**8)
    training = Training(accelerator, clip=None)
    manager = gf.GradientManager(gf.GradientConfig(max_grad_norm=LIMIT))
    twin = Training(accelerator, clip=LIMIT)
    twin.run()
    if by_hand:
        step = training.optimizer.step

        def managed_step():
            manager.step(training.model, training.optimizer, backward=False, scaler=accelerator.scaler)
            step()

        training.optimizer.step = managed_step
        training.run()
    else:
        with manager.attach(training.model, training.optimizer, scaler=accelerator.scaler):
            training.run()
    assert manager.clipped_steps == sum(norm > LIMIT for norm in training.norms) > 0
    for ours, theirs in zip(training.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)  # torch divides by the norm plus 1e-6


def test_weights_are_bit_identical_with_and_without_the_watch():
    trained = []
    for watched in (True, False):
        training = Training(accelerate.Accelerator(cpu=True, gradient_accumulation_steps=PARTS))
        if watched:
            with gf.watch(training.model, training.optimizer, layers_every=1):
                training.run()
        else:
            training.run()
        trained.append([p.detach() for p in training.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))


def test_an_optimizer_whose_steps_nobody_can_see_is_refused_by_name():
    wrapped = accelerate.Accelerator(cpu=True).prepare(torch.optim.SGD(net().parameters(), lr=0.1))
    wrapped.optimizer = object()
    with pytest.raises(gf.InputError, match=r"AcceleratedOptimizer wraps object.*flow\.step\(\)"):
        gf.watch(net(), wrapped)


def test_the_loss_of_an_accumulated_step_is_the_mean_of_its_micro_batches():
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=PARTS, cpu=True)
    model = net()
    model, optimizer, batches = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader(16))
    losses = []
    with gf.watch(model, optimizer) as flow:
        for (x,) in batches:
            with accelerator.accumulate(model):
                loss = model(x).square().mean()
                losses.append(loss.item())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    expected = [sum(losses[at : at + PARTS]) / PARTS for at in range(0, len(losses), PARTS)]
    assert flow.history["loss"].tolist() == pytest.approx(expected)
    assert flow.history["micro_batches"].tolist() == [PARTS] * len(expected)
