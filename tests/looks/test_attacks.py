"""Looks where they could do harm: other people's hooks, copies, pickles, threads, modes, failures, long runs."""

import copy
import io
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import gradient_flow as gf
from ways_of_training import Net, batch, loss_of, seeded, sgd

STEPS = 6


def hooks_of(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [hook for module in model.modules() for kind in kinds for hook in getattr(module, kind).values()]


def looked(flow):
    return [event.step for event in flow.run.events if event.kind == "looked"]


def places(flow):
    return {(p["name"], p["role"], p["call"]): p for p in flow.run.found("network")[-1][1]["places"]}


def state_of(*models):
    tensors = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
    gradients = [p.grad for model in models for p in model.parameters() if p.grad is not None]
    return [tensor.detach().clone() for tensor in (*tensors, *gradients)] + [torch.get_rng_state()]


def assert_untouched(make, run, steps=STEPS):
    """`run(model, optimizer, step)` leaves the same bits with a look at every step as without a watch."""
    states, flow = [], None
    for watched in (False, True):
        torch.manual_seed(0)
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        flow = gf.watch(model, optimizer, looks=1, budget=1.0) if watched else None
        for step in range(steps):
            run(model, optimizer, step)
        if flow is not None:
            flow.close()
        states.append(state_of(model))
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))
    assert not hooks_of(model)
    assert not flow.looks.failed, flow.looks.reason
    return flow


def step_with(loss):
    def run(model, optimizer, step):
        optimizer.zero_grad()
        loss(model, batch(step)).backward()
        optimizer.step()

    return run


def train(model, optimizer, steps):
    for step in range(steps):
        step_with(loss_of)(model, optimizer, step)


# ---- what models return and how they are put together -------------------------------------------------------------


@dataclass
class Answer:
    scores: torch.Tensor
    note: str = "scores alone"


class Returning(Net):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        scores = super().forward(x)
        kinds = {"tuple": (scores, None), "dict": {"scores": scores}, "dataclass": Answer(scores), "list": [scores]}
        return kinds[self.how]


def scores_in(output):
    if isinstance(output, dict):
        return output["scores"]
    return output.scores if isinstance(output, Answer) else output[0]


@pytest.mark.parametrize("how", ["tuple", "list", "dict", "dataclass"])
def test_whatever_a_model_returns(how):
    flow = assert_untouched(lambda: Returning(how), step_with(lambda m, x: scores_in(m(x)).square().mean()))
    assert looked(flow) == [3, 4, 5, 6]
    assert ("head", "output", 0) in places(flow)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.act(self.first(x)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        self.two.weight = self.one.weight
        self.again = self.one

    def forward(self, x):
        return self.again(torch.relu(self.two(torch.relu(self.one(x)))))


class Hidden(nn.Module):
    """A checkpoint around operations of its own: no hook can tell that it is there."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)
        self.register_buffer("calls", torch.zeros(()))

    def _inside(self, x):
        self.calls += 1
        return torch.tanh(x * 1.5)

    def forward(self, x):
        return self.last(checkpoint(self._inside, self.first(x), use_reentrant=False))


class Looped(nn.Module):
    """A cell in a loop of 300 steps."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(6, 4), nn.Linear(4, 1)

    def forward(self, x):
        state = x.new_zeros(len(x), 4)
        for _ in range(300):
            state = self.cell(x, state)
        return self.head(state)


@pytest.mark.parametrize(
    "make",
    [InPlace, Tied, Hidden, Looped, lambda: Net(reentrant=False)],
    ids=["in place", "tied", "hidden checkpoint", "looped cell", "checkpoint"],
)
def test_however_a_model_is_put_together(make):
    flow = assert_untouched(make, step_with(loss_of), steps=4)
    assert looked(flow) == [3, 4]


def test_a_siamese_net_is_called_twice_in_a_step():
    def loss(model, x):
        return (model(x) - model(-x)).square().mean()

    flow = assert_untouched(Net, step_with(loss))
    assert looked(flow) == [3, 4, 5, 6]


def test_a_hugging_face_model_made_from_its_settings():
    transformers = pytest.importorskip("transformers")
    settings = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=31, n_positions=16)
    tokens = torch.randint(0, 31, (4, 12), generator=torch.Generator().manual_seed(1))

    def run(model, optimizer, _step):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    flow = assert_untouched(lambda: transformers.GPT2LMHeadModel(settings), run, steps=4)
    assert len(flow.run.found("attention")[-1][1]["stats"]["layers"]) == 2
    assert any(name.startswith("transformer.h.1") for name, _, _ in places(flow))


# ---- failures and odd steps ---------------------------------------------------------------------------------------


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("on purpose")


def test_a_backward_that_fails_is_forgotten_and_the_next_is_seen_whole():
    def run(model, optimizer, step):
        optimizer.zero_grad()
        out = model(1e6 * batch(step))
        with pytest.raises(RuntimeError, match="on purpose"):
            FailsInBackward.apply(out).square().mean().backward()
        optimizer.zero_grad()
        out = model(batch(step))
        out.square().mean().backward()
        optimizer.step()

    flow = assert_untouched(Net, run)
    assert {call for _, _, call in places(flow)} == {0}
    assert places(flow)["blocks.0", "output", 0]["rms"][-1] < 10


def test_steps_without_a_backward_pass():
    def run(model, optimizer, step):
        if step % 2:
            step_with(loss_of)(model, optimizer, step)
        else:
            optimizer.step()

    flow = assert_untouched(Net, run, steps=8)
    assert set(looked(flow)) == {4, 6, 8}


def test_evaluation_mode_within_a_step_and_anomaly_mode():
    def run(model, optimizer, step):
        with torch.autograd.set_detect_anomaly(True, check_nan=True):
            optimizer.zero_grad()
            loss = loss_of(model, batch(step))
            model.eval()
            aside = loss_of(model, batch(step + 100)).item()
            model.train()
            loss.backward()
            optimizer.step()
        assert aside > 0

    flow = assert_untouched(lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)), run)
    assert {call for _, _, call in places(flow)} == {0}


def test_what_fails_in_a_hook_reaches_neither_forward_nor_backward(monkeypatch):
    from gradient_flow.looks.observer import Observer

    def fail(*_arguments):
        raise RuntimeError("broken on purpose")

    for method in ("_on_forward", "_on_gradient"):
        with monkeypatch.context() as patched:
            patched.setattr(Observer, method, fail)
            model = seeded(Net)
            optimizer = sgd(model)
            with pytest.warns(gf.GradientFlowWarning, match="broken on purpose"), gf.watch(model, optimizer) as flow:
                train(model, optimizer, 8)
            assert len(flow.history) == 8
            assert not hooks_of(model)


# ---- copies and pickles in the middle of a look -------------------------------------------------------------------


class Memory(nn.Module):
    """With a recurrent layer and attention: every probe has its hooks on it."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 8, batch_first=True)
        self.mix = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), 1)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.mix(self.rnn(x)[0]))


@pytest.fixture
def in_a_look():
    model = seeded(Memory)
    optimizer = sgd(model)
    flow = gf.watch(model, optimizer, looks=1)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(step)[None]).square().mean().backward()
        optimizer.step()
    assert hooks_of(model)
    yield model
    flow.close()
    assert not hooks_of(model)


def test_a_copy_made_in_a_look_has_no_hook(in_a_look):
    averaged = torch.optim.swa_utils.AveragedModel(in_a_look)
    twin = copy.deepcopy(in_a_look)
    pair = copy.deepcopy([in_a_look, {"ema": in_a_look}])
    assert pair[0] is pair[1]["ema"]
    for made in (averaged, twin, pair[0]):
        assert not hooks_of(made)
        assert not any(m._forward_hooks_with_kwargs or m._forward_hooks_always_called for m in made.modules())
        assert not any(m._load_state_dict_post_hooks for m in made.modules())
    x = batch(9)[None]
    assert torch.equal(twin(x), averaged(x))


def test_a_copy_keeps_the_hooks_of_the_user(in_a_look):
    seen = []
    handle = in_a_look.head.register_forward_hook(_Own(seen))
    twin = copy.deepcopy(in_a_look)
    handle.remove()
    assert [type(hook) for hook in hooks_of(twin)] == [_Own]


class _Own:
    def __init__(self, seen):
        self.seen = seen

    def __call__(self, *_given):
        self.seen.append(1)


def test_a_model_saved_in_a_look_is_read_where_this_package_is_not(in_a_look, tmp_path):
    plain = nn.Sequential(nn.Linear(6, 4), nn.GRU(4, 4))
    optimizer = sgd(plain)
    with gf.watch(plain, optimizer, looks=1):
        for step in range(3):
            optimizer.zero_grad()
            plain(batch(step))[0].square().mean().backward()
            optimizer.step()
        assert hooks_of(plain)
        torch.save(plain, tmp_path / "model.pt")
        text = pickle.dumps(plain)
    assert b"gradient_flow" not in text
    x = batch(5)
    torch.save({"x": x, "out": plain.eval()(x)[0].detach()}, tmp_path / "expected.pt")
    script = """
        import sys
        sys.modules["gradient_flow"] = None  # an import of it fails
        import torch
        model = torch.load("model.pt", weights_only=False).eval()
        kept = torch.load("expected.pt")
        assert torch.equal(model(kept["x"])[0], kept["out"])
        model(kept["x"])[0].sum().backward()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, check=True, timeout=120)
    assert b"gradient_flow" not in pickle.dumps(in_a_look)


def test_state_dicts_have_nothing_of_ours(in_a_look):
    buffer = io.BytesIO()
    torch.save(in_a_look.state_dict(), buffer)
    assert b"gradient_flow" not in buffer.getvalue()


# ---- other people's hooks, modes and threads ----------------------------------------------------------------------


def test_hooks_of_the_user_see_the_same_in_the_same_order():
    calls = []
    for watched in (False, True):
        model, seen = seeded(Net), []
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda m, x, name=name, seen=seen: seen.append(("before", name)))
            module.register_forward_hook(
                lambda m, x, y, name=name, seen=seen: seen.append((name, float(y.detach().sum())))
            )
            module.register_full_backward_hook(lambda m, x, y, name=name, seen=seen: seen.append(("back", name)))
        optimizer = sgd(model)
        flow = gf.watch(model, optimizer, looks=1) if watched else None
        for step in range(5):
            step_with(lambda m, x: loss_of(m, x.requires_grad_()))(model, optimizer, step)
        if flow is not None:
            flow.close()
            assert looked(flow) == [3, 4, 5]
        calls.append(seen)
    assert calls[0] == calls[1]


class Counting(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


class CountingBelow(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Counting, CountingBelow])
def test_modes_of_the_user_see_only_what_the_user_does(kind):
    counts = []
    for watched in (False, True):
        model = seeded(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0))
        optimizer = sgd(model)
        mode = kind()
        with gf.watch(model, optimizer, looks=1 if watched else False) as flow:
            for _ in range(4):
                optimizer.zero_grad()
                with mode:
                    model(torch.ones(3, 5, 8)).square().mean().backward()
                optimizer.step()
        assert looked(flow) == ([3, 4] if watched else [])
        counts.append(mode.names)
    assert counts[0] == counts[1]


def test_two_models_are_trained_in_two_threads():
    def train(flows, results, at):
        model = models[at]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        flow = gf.watch(model, optimizer, looks=1) if flows is not None else None
        generator = torch.Generator().manual_seed(at)
        for _ in range(60):
            optimizer.zero_grad()
            model(torch.randn(8, 6, generator=generator)).square().mean().backward()
            optimizer.step()
        if flow is not None:
            flow.close()
            flows[at] = flow
        results[at] = [p.detach().clone() for p in model.parameters()]

    results, flows = [{}, {}], {}
    models = [seeded(Net) for _ in range(2)]
    for at in range(2):
        train(None, results[0], at)
    models = [seeded(Net) for _ in range(2)]
    threads = [threading.Thread(target=train, args=(flows, results[1], at)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at in range(2):
        assert not flows[at].looks.failed, flows[at].looks.reason
        assert looked(flows[at])[:3] == [3, 4, 5]
        assert flows[at].history["norm"].shape == (60,)
        assert all(torch.equal(one, other) for one, other in zip(results[0][at], results[1][at], strict=True))


def test_another_thread_may_use_the_model_in_the_middle_of_a_look():
    """Modes belong to a thread: what the other one does must neither enter nor leave ours."""
    model = seeded(Memory)
    optimizer = sgd(model)
    inside, done = threading.Event(), threading.Event()
    problems = []

    def evaluate():
        try:
            inside.wait(20)
            with torch.device("meta"), torch.no_grad():
                model(torch.ones(1, 8, 6, device="cpu"))
                assert torch.empty(1).device.type == "meta"
            assert not torch.overrides._get_current_function_mode_stack()
        except BaseException as problem:
            problems.append(problem)
        finally:
            done.set()

    def pause(*_given):
        if threading.current_thread() is not other:  # which must not wait for itself
            inside.set()
            done.wait(20)

    other = None
    with gf.watch(model, optimizer, looks=1) as flow:
        for step in range(4):
            handle = model.mix.register_forward_pre_hook(pause) if step == 3 else None
            other = threading.Thread(target=evaluate) if step == 3 else None
            if other is not None:
                other.start()
            optimizer.zero_grad()
            model(batch(step)[None]).square().mean().backward()
            optimizer.step()
            if handle is not None:
                handle.remove()
                other.join()
    assert not problems
    assert not torch.overrides._get_current_function_mode_stack()
    assert looked(flow) == [3, 4]
    assert {call for _, _, call in places(flow)} == {0}


# ---- precision ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [True, False], ids=["scaler given", "scaler not given"])
@pytest.mark.parametrize("divided", [False, True], ids=["loss", "part of a loss"])
def test_gradients_at_places_are_free_of_the_loss_scale(given, divided):
    model = seeded(Net)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    seen = {}
    parts = 2 if divided else 1
    with gf.watch(model, optimizer, looks=[4], scaler=scaler if given else None) as flow:
        for step in range(4):
            if step == 3:
                twin = copy.deepcopy(model).double()

                def keep(_module, _inputs, output):
                    output.retain_grad()
                    seen["out"] = output

                twin.blocks[1].register_forward_hook(keep)
                (loss_of(twin, batch(step).double()) / parts).backward()
            optimizer.zero_grad()
            scaled = scaler.scale(loss_of(model, batch(step)))
            (scaled / parts if divided else scaled).backward()
            scaler.step(optimizer)
            scaler.update()
    assert places(flow)["blocks.1", "output", 0]["gradient"][-1] == pytest.approx(
        float(seen["out"].grad.norm()), rel=1e-5
    )


def test_autocast_in_bf16():
    def run(model, optimizer, step):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch(step)[None]).float().square().mean()
        loss.backward()
        optimizer.step()

    flow = assert_untouched(Memory, run)
    assert places(flow)["head", "output", 0]["dtype"] == "bfloat16"


# ---- two models, other optimizers ---------------------------------------------------------------------------------


def gan():
    torch.manual_seed(0)
    makes = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
    judges = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    return makes, judges, [torch.optim.Adam(m.parameters(), lr=1e-3) for m in (makes, judges)]


def play(makes, judges, optimizers, step):
    ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
    noise = torch.randn(8, 4)
    for_judge = F.binary_cross_entropy_with_logits
    optimizers[1].zero_grad()
    loss = for_judge(judges(makes(noise).detach()), zeros) + for_judge(judges(batch(step)), ones)
    loss.backward()
    optimizers[1].step()
    optimizers[0].zero_grad()
    for_judge(judges(makes(noise)), ones).backward()
    optimizers[0].step()


def test_a_game_of_two_models():
    from gradient_flow.flow.script import _as_one

    states = []
    for watched in (False, True):
        makes, judges, optimizers = gan()
        both = _as_one([makes, judges])
        flow = gf.watch(both, optimizers, looks=1, budget=1.0) if watched else None
        for step in range(10):
            play(makes, judges, optimizers, step)
            makes.eval()
            judges(makes(1e6 * torch.ones(2, 4)))  # in evaluation of one of them
            makes.train()
        if flow is not None:
            flow.close()
            assert not flow.looks.failed, flow.looks.reason
            assert set(looked(flow)) >= {3, 4, 5, 6}
        states.append(state_of(makes, judges))
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))
    assert not hooks_of(both)


def test_lbfgs_calls_its_closure_many_times():
    states = []
    for watched in (False, True):
        model = seeded(Net)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
        flow = gf.watch(model, optimizer, looks=1) if watched else None
        for step in range(5):

            def closure(step=step, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                loss = loss_of(model, batch(step))
                loss.backward()
                return loss

            optimizer.step(closure)
        if flow is not None:
            flow.close()
            assert looked(flow) == [3, 4, 5]
        states.append(state_of(model))
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))


def test_an_optimizer_may_hold_more_than_the_model_has():
    model, temperature = seeded(Net), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.05)
    with gf.watch(model, optimizer, looks=1, budget=1.0) as flow:
        for step in range(5):
            optimizer.zero_grad()
            (loss_of(model, batch(step)) * temperature.exp().sum()).backward()
            optimizer.step()
            if step == 3:
                model.later = nn.Linear(2, 2)
                optimizer.add_param_group({"params": model.later.parameters()})
    assert looked(flow) == [3, 4, 5]
    assert not flow.looks.failed, flow.looks.reason


# ---- memory and time ----------------------------------------------------------------------------------------------

PEAK = """
import resource, sys, torch
from torch import nn
import gradient_flow as gf
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(512, 512), nn.Tanh())], nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
flow = gf.watch(model, optimizer, looks=1 if sys.argv[1] == "looks" else False, budget=1.0)
x = torch.randn(4096, 512)
for _ in range(6):
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
flow.close()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def test_a_look_holds_little_memory():
    def peak(how):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
        done = subprocess.run(
            [sys.executable, "-c", PEAK, how], capture_output=True, text=True, check=True, env=environment, timeout=240
        )
        return float(done.stdout)

    without, with_looks = peak("none"), peak("looks")
    # 32 MiB of samples, and what the rooms behind a look take once they are imported.
    assert with_looks < 1.02 * without + 32 + 48


def test_a_long_run_stays_flat():
    import time

    import psutil

    model = seeded(Net)
    optimizer = sgd(model)
    process = psutil.Process()
    seconds, sizes = [], []
    with gf.watch(model, optimizer, looks=range(10, 1001, 10), budget=1.0) as flow:
        for part in range(5):
            started = time.process_time()
            for step in range(200):
                step_with(loss_of)(model, optimizer, 200 * part + step)
            seconds.append(time.process_time() - started)
            sizes.append(process.memory_info().rss / 2**20)
    assert flow.looks.taken >= 100  # a loss that no longer falls asks for more
    assert sizes[-1] - sizes[1] < 16
    assert min(seconds[3:]) < 1.5 * min(seconds[1:3])
