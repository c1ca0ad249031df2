"""The loss of a step without being told: that of its backward passes, or none where it is not certain."""

import contextlib
import gc
import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import gradient_flow as gf
from gradient_flow.capture import losses as listening
from gradient_flow.flow.passes import Passes
from ways_of_training import STEPS, WAYS, Net, batch, in_fp64, loss_of, seeded, sgd

pytestmark = pytest.mark.filterwarnings(  # torch's own
    "ignore:.*torch.jit.*:DeprecationWarning",
    "ignore:The .grad attribute of a Tensor:UserWarning",
    "ignore:Using backward.. with create_graph:UserWarning",
)


def recorded(flow, name="loss"):
    """What the lines of the run have under a name; None where there is nothing."""
    return [line.get(name) for line in flow.history.lines]


def model_and_optimizer():
    model = seeded(Net)
    return model, sgd(model)


# ---- every way of training ----------------------------------------------------------------------------------------


class Watched:
    """Runs a way with a watch or without, and keeps what it made of the weights and the generator."""

    def __init__(self, on: bool) -> None:
        self.on = on

    @contextlib.contextmanager
    def over(self, model, optimizers, scaler=None):
        self.model = model
        with gf.watch(model, optimizers or None, scaler=scaler) if self.on else contextlib.nullcontext() as self.flow:
            yield

    def ready(self) -> None: ...

    def step(self, model, optimizer, scaler=None) -> None:
        if optimizer is None and self.flow is not None:
            self.flow.step()

    def collect(self) -> None: ...


def run(way, on):
    torch._dynamo.reset()
    list(WAYS[way](face := Watched(on)))
    return face


@pytest.mark.parametrize("way", WAYS)
def test_watching_changes_no_bit(way):
    backward = torch.autograd.backward
    plain, random = run(way, False), torch.get_rng_state()
    watched = run(way, True)
    assert torch.equal(random, torch.get_rng_state())
    for (name, a), b in zip(plain.model.state_dict().items(), watched.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for (name, a), b in zip(plain.model.named_parameters(), watched.model.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        assert a.grad is None or torch.equal(a.grad.to_dense(), b.grad.to_dense()), name
    assert torch.autograd.backward is backward


def losses_unwatched(way, monkeypatch) -> list[float]:
    """The loss of each pass of the same training, by a wrapper that sees from the gradients whose pass it is."""
    losses, steps, face, backward = [], [], Watched(False), torch.autograd.backward

    def gradients():
        return [None if p.grad is None else p.grad.to_dense().clone() for p in face.model.parameters()]

    def noting(tensors, *arguments, **settings):
        before, taken = gradients(), len(steps)
        backward(tensors, *arguments, **settings)
        pairs = zip(before, gradients(), strict=True)
        changed = any(b is not None and (a is None or not torch.equal(a, b)) for a, b in pairs)
        if torch._C._current_graph_task_id() < 0 and (changed or len(steps) > taken):  # some step inside the pass
            losses.append(float(tensors.detach()))

    hook = register_optimizer_step_post_hook(lambda *_: steps.append(1))
    monkeypatch.setattr(torch.autograd, "backward", noting)
    torch._dynamo.reset()
    list(WAYS[way](face))
    hook.remove()
    monkeypatch.undo()
    return losses


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("functional", "closure")])
def test_the_loss_is_that_of_the_passes_before_the_step(way, monkeypatch):
    parts = 4 if way == "accumulation" else 1
    passes = losses_unwatched(way, monkeypatch)
    expected = [sum(passes[at : at + parts]) for at in range(0, len(passes), parts)]
    if way.startswith("scaler"):
        expected = [loss / 1024.0 for loss in expected]
    if way.endswith("overflow"):
        expected[-1] *= 2  # training went on with half the scale
    if way.startswith("scaler_unfused") and way.endswith("overflow"):
        del expected[1]  # the scaler skips that step without calling the optimizer
    assert recorded(run(way, True).flow) == pytest.approx(expected, rel=1e-6)


def test_gradients_that_no_pass_made_have_no_loss():
    assert recorded(run("functional", True).flow) == [None] * STEPS


def test_a_closure_returns_the_loss_that_its_step_starts_from(monkeypatch):
    passes, seen = losses_unwatched("closure", monkeypatch), recorded(run("closure", True).flow)
    assert seen[0] == pytest.approx(passes[0])
    assert len(seen) == STEPS
    assert set(seen) < set(passes)


# ---- what counts --------------------------------------------------------------------------------------------------


def test_micro_batches_are_put_together_and_counted():
    model, optimizer = model_and_optimizer()
    parts = [batch(0).chunk(4)[part] for part in range(4)]
    expected = sum(loss_of(model, x).item() / 4 for x in parts)
    with gf.watch(model, optimizer) as flow:
        for x in parts:
            (loss_of(model, x) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
        (alone := loss_of(model, batch(1))).backward()
        optimizer.step()
    assert recorded(flow) == pytest.approx([expected, alone.item()])
    assert recorded(flow, "micro_batches") == [4, None]


def test_what_is_logged_wins():
    model, optimizer = model_and_optimizer()
    with gf.watch(model, optimizer) as flow:
        loss_of(model, batch(0)).backward()
        flow.log(loss=7.0)
        optimizer.step()
    assert recorded(flow) == [7.0]


def test_players_of_a_game_keep_their_losses_apart():
    model = nn.ModuleDict({"generator": nn.Linear(3, 3), "critic": nn.Linear(3, 1)})
    players = {name: sgd(part) for name, part in model.items()}
    expected = []
    with gf.watch(model, list(players.values())) as flow:
        for step in range(3):
            for which, optimizer in players.items():
                fake = model["generator"](torch.full((2, 3), 1.0 + step))
                judged = model["critic"](fake.detach() if which == "critic" else fake)
                loss = judged.mean() * (1 if which == "critic" else -1)
                model.zero_grad()
                loss.backward()
                optimizer.step()
                expected.append(loss.item())
    assert recorded(flow) == pytest.approx(expected)
    assert recorded(flow, "optimizer") == [0, 1] * 3


def test_two_passes_then_two_steps_and_each_optimizer_gets_what_reached_it():
    model = nn.ModuleDict({"actor": nn.Linear(3, 1), "critic": nn.Linear(3, 1)})
    x = torch.ones(2, 3)
    optimizers = [sgd(part) for part in model.values()]
    with gf.watch(model, optimizers) as flow:
        actor, critic = model["actor"](x).mean(), model["critic"](x).square().mean()
        actor.backward()
        critic.backward()
        for optimizer in optimizers:
            optimizer.step()
    assert recorded(flow) == pytest.approx([actor.item(), critic.item()])
    assert recorded(flow, "micro_batches") == [None, None]


def test_one_pass_and_two_steps_and_both_get_it():
    model = seeded(Net)
    optimizers = [sgd(model.blocks), sgd(model.head)]
    with gf.watch(model, optimizers) as flow:
        (loss := loss_of(model, batch(0))).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert recorded(flow) == pytest.approx([loss.item()] * 2)


def test_a_step_without_a_pass_of_its_own_has_no_loss():
    model, optimizer = model_and_optimizer()
    with gf.watch(model, optimizer) as flow:
        loss_of(model, batch(0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        for p, gradient in zip(
            model.parameters(), torch.autograd.grad(loss_of(model, batch(1)), model.parameters()), strict=True
        ):
            p.grad = gradient
        optimizer.step()
    assert recorded(flow)[1] is None


SHARDED = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
import gradient_flow as gf

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
for part in (model[0], model[2], model):
    fully_shard(part, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
expected = []
with gf.watch(model, optimizer) as flow:
    for step in range(2):
        optimizer.zero_grad()
        losses = []
        for part in range(3):
            model.set_requires_gradient_sync(part == 2)  # until then no gradient arrives at the parameters
            loss = model(torch.randn(2, 4)).square().mean() / 3
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        expected.append(sum(losses))
assert flow.history["loss"].tolist() == expected, (flow.history["loss"], expected)
assert flow.history["micro_batches"].tolist() == [3, 3]
dist.destroy_process_group()
"""


def test_sharded_parameters_compute_by_copies_and_their_losses_are_known_all_the_same(tmp_path):
    command = [sys.executable, "-c", SHARDED, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# ---- what does not ------------------------------------------------------------------------------------------------


def test_another_model_and_another_watch_have_losses_of_their_own():
    ours, theirs = seeded(Net), seeded(Net)
    first, second = sgd(ours), sgd(theirs)
    with gf.watch(ours, first) as flow, gf.watch(theirs, second) as other:
        loss_of(theirs, batch(1)).backward()
        (mine := loss_of(ours, batch(0))).backward()
        (more := loss_of(theirs, batch(2))).backward()
        first.step()
        second.step()
    assert recorded(flow) == pytest.approx([mine.item()])
    assert recorded(other) == pytest.approx([loss_of(seeded(Net), batch(1)).item() + more.item()])


def test_a_model_whose_parameters_are_far_from_the_loss_is_still_told_apart():
    ours, theirs = seeded(Net), seeded(Net)

    def far(model):
        x = model(batch(0)).square().mean()
        for _ in range(100):
            x = x + 0.001
        return x

    optimizer = sgd(ours)
    with gf.watch(ours, optimizer) as flow:
        (mine := far(ours)).backward()
        far(theirs).backward()
        optimizer.step()
    assert recorded(flow) == pytest.approx([mine.item()])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_step_that_was_given_up_is_not_counted_into_the_next(set_to_none):
    model, optimizer = model_and_optimizer()
    with gf.watch(model, optimizer) as flow:
        loss_of(model, batch(0)).backward()
        optimizer.zero_grad(set_to_none=set_to_none)
        (loss := loss_of(model, batch(1))).backward()
        optimizer.step()
    # Gradients that were set to zero in place cannot be told from clipped ones.
    assert recorded(flow) == ([pytest.approx(loss.item())] if set_to_none else [None])


def test_gradients_that_were_put_together_by_hand_have_no_loss():
    model, optimizer = model_and_optimizer()
    with gf.watch(model, optimizer) as flow:
        tasks = []
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, batch(step)).backward()
            tasks.append([p.grad for p in model.parameters()])
        for p, *gradients in zip(model.parameters(), *tasks, strict=True):
            p.grad = sum(gradients)
        optimizer.step()
    assert recorded(flow) == [None]


def test_a_pass_for_a_penalty_counts_only_where_it_is_alone():
    model, optimizer = model_and_optimizer()
    with gf.watch(model, optimizer) as flow:
        (alone := loss_of(model, batch(0))).backward(create_graph=True)
        optimizer.step()
        optimizer.zero_grad()
        loss_of(model, batch(1)).backward(create_graph=True)
        sum(p.grad.square().sum() for p in model.parameters()).backward()
        optimizer.step()
    assert recorded(flow) == [pytest.approx(alone.item()), None]


def test_an_analysis_between_two_micro_batches_is_not_counted():
    model, optimizer = model_and_optimizer()
    with gf.watch(model, optimizer) as flow:
        (first := loss_of(model, batch(0))).backward()
        gf.GradientFlowAnalyzer(model).analyze(lambda: batch(5), lambda output: output.square().mean())
        (second := loss_of(model, batch(1))).backward()
        optimizer.step()
    assert recorded(flow) == pytest.approx([first.item() + second.item()])


def test_a_pass_that_failed_leaves_no_loss():
    model, optimizer = model_and_optimizer()
    with gf.watch(model, optimizer) as flow:
        handle = model.blocks[0].weight.register_hook(lambda gradient: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss_of(model, batch(0)).backward()
        handle.remove()
        optimizer.zero_grad()
        (loss := loss_of(model, batch(1))).backward()
        optimizer.step()
    assert recorded(flow) == pytest.approx([loss.item()])


def test_switched_off_and_closed_nobody_listens(monkeypatch):
    gc.collect()  # watches that other tests dropped
    others, (model, optimizer) = len(listening._listeners), model_and_optimizer()
    with gf.watch(model, optimizer):
        assert len(listening._listeners) == others + 1
    assert len(listening._listeners) == others
    monkeypatch.setenv("GRADIENT_FLOW_DISABLE", "1")
    with gf.watch(model, optimizer):
        assert len(listening._listeners) == others


def test_neither_after_a_watch_that_was_dropped_without_an_end():
    gc.collect()
    others, (model, optimizer) = len(listening._listeners), model_and_optimizer()
    gf.watch(model, optimizer)
    gc.collect()
    assert len(listening._listeners) == others


# ---- devices, every Nth step, cost --------------------------------------------------------------------------------


def test_on_a_device_the_loss_is_a_copy_that_is_read_later():
    from gradient_flow.flow.step_losses import _kept

    kept = _kept(torch.ones(1, dtype=torch.float16, device="meta"))
    assert kept.device.type == "meta"
    assert (kept.dtype, kept.shape) == (torch.float32, ())


def test_steps_that_are_not_recorded_are_not_looked_at(monkeypatch):
    asked, begins = [], Passes._begins
    monkeypatch.setattr(Passes, "_begins", lambda *given: asked.append(given) or begins(*given))
    model, optimizer = model_and_optimizer()
    expected = []
    with gf.watch(model, optimizer, every=3) as flow:
        for step in range(6):
            optimizer.zero_grad()
            (loss := loss_of(model, batch(step))).backward()
            optimizer.step()
            expected.append(loss.item())
    assert len(asked) == 2
    assert recorded(flow) == pytest.approx(expected[2::3])


def test_hearing_a_loss_takes_microseconds():
    model, optimizer = model_and_optimizer()
    with gf.watch(model, optimizer) as flow:
        loss = loss_of(model, batch(0))

        def tell() -> float:
            start = time.perf_counter()
            for after in listening._tell(loss, clear=True):
                after()
            return time.perf_counter() - start

        fastest = min(tell() for _ in range(200))
        assert fastest < 60e-6  # about 15 on an idle machine
        assert flow.steps == 0


def test_the_reference_runs_of_the_tests_are_other_models():
    model, optimizer = model_and_optimizer()
    with gf.watch(model, optimizer) as flow:
        (loss := loss_of(model, batch(0))).backward()
        in_fp64(model, lambda twin: loss_of(twin, batch(0).double()))
        optimizer.step()
    assert recorded(flow) == pytest.approx([loss.item()])
