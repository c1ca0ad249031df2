"""One process: however a step is run, every face gives the table that an fp64 copy of that step gives."""

import contextlib
import math

import numpy as np
import pytest
import torch

import gradient_flow as gf
from ways_of_training import STEPS, WAYS, batch, default, in_fp64, seeded
from ways_of_training import Net as PlainNet

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, as it compiles
STATISTICS = ("norm", "l1", "linf", "mean", "std", "min", "max")


class Face:
    """What a way of training tells: where it begins, when a step comes. Keeps what was seen of each step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, dict[str, float]]] = []

    @contextlib.contextmanager
    def over(self, model, optimizers, scaler=None):
        yield

    def step(self, model, optimizer, scaler=None) -> None: ...

    def collect(self) -> None:
        """Called after a step."""


class Watch(Face):
    @contextlib.contextmanager
    def over(self, model, optimizers, scaler=None):
        with gf.watch(model, optimizers or None, scaler=scaler) as self.flow:
            yield

    def step(self, model, optimizer, scaler=None) -> None:
        if optimizer is None:
            self.flow.step()

    def collect(self) -> None:
        if self.flow.table is not None and len(self.flow.history) > len(self.seen):
            self.seen.append(self.flow.table.to_dict()["gradients"])


class Managed(Face):
    """`attach`: the manager acts in the hooks of the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        config = gf.GradientConfig(debug_mode=True, nonfinite="observe", enable_gradient_clipping=False)
        self.manager = gf.GradientManager(config)

    @contextlib.contextmanager
    def over(self, model, optimizers, scaler=None):
        with self.manager.attach(model, optimizers, scaler=scaler):
            yield

    def collect(self) -> None:
        if self.manager.total_steps > len(self.seen):
            self.seen.append(self.manager.last_step["layers"])


class Called(Managed):
    """`step`: the loop calls the manager itself."""

    @contextlib.contextmanager
    def over(self, model, optimizers, scaler=None):
        yield

    def step(self, model, optimizer, scaler=None) -> None:
        self.manager.step(model, optimizer, backward=False, scaler=scaler)


def statistics_of(gradient: torch.Tensor) -> dict[str, float]:
    """By the definitions, in double precision, with nothing of the package."""
    values = gradient.double().flatten()
    return {
        "norm": values.square().sum().sqrt().item(),
        "l1": values.abs().sum().item(),
        "linf": values.abs().max().item(),
        "mean": values.mean().item(),
        "std": values.std(unbiased=False).item(),
        "min": values.min().item(),
        "max": values.max().item(),
        "count": values.numel(),
    }


def assert_agree(seen: dict[str, dict[str, float]], expected: dict[str, torch.Tensor], rel: float) -> None:
    assert seen.keys() == expected.keys()
    for name, gradient in expected.items():
        reference = statistics_of(gradient)
        assert seen[name]["count"] == reference["count"], name
        for statistic in STATISTICS:
            near = pytest.approx(reference[statistic], rel=rel, abs=rel * reference["linf"] + 1e-12)
            assert seen[name][statistic] == near, (name, statistic)


TOLERANCE = {"autocast": 0.08}
"""Elsewhere fp32 against fp64. bf16 products have eight bits: what is compared is the size, not the digits."""

WITHOUT_OPTIMIZER = ("functional",)
ONE_CALL_PER_STEP = (*WITHOUT_OPTIMIZER, "closure", "optimizer_in_backward", "two_optimizers")
"""Where `manager.step(model, …)` has no place: within a closure or backward, or beside gradients of another player."""

CELLS = [
    *((Watch, way) for way in WAYS),
    *((Managed, way) for way in WAYS if way not in WITHOUT_OPTIMIZER),
    *((Called, way) for way in WAYS if way not in ONE_CALL_PER_STEP),
]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(("kind", "way"), CELLS, ids=lambda value: getattr(value, "__name__", value))
def test_each_step_has_the_table_of_its_fp64_copy(kind, way):
    face, expected = kind(), []
    overflowing = "overflow" in way
    for reference in WAYS[way](face):
        face.collect()
        expected.append(reference)
    if way == "optimizer_in_backward":  # a step for each parameter: those of one backward make the table
        size = len(expected[0])
        merged = [face.seen[i : i + size] for i in range(0, len(face.seen), size)]
        face.seen = [{name: row for table in tables for name, row in table.items()} for tables in merged]
    if overflowing:
        check_overflow(face, way, expected)
        return
    assert len(face.seen) == len(expected)
    for seen, reference in zip(face.seen, expected, strict=True):
        assert_agree(seen, reference, TOLERANCE.get(way, 2e-5))


def check_overflow(face: Face, way: str, expected: list) -> None:
    """The step that the scaler skips is on record as skipped; the others are as ever."""
    good = [reference for reference in expected if reference is not None]
    finite = [seen for seen in face.seen if all(math.isfinite(row["norm"]) for row in seen.values())]
    assert len(finite) == len(good) == STEPS - 1
    for seen, reference in zip(finite, good, strict=True):
        assert_agree(seen, reference, 2e-5)
    if isinstance(face, Watch):
        assert face.flow.skipped_steps == 1
        assert np.isfinite(face.flow.history["norm"]).sum() == STEPS - 1
    else:
        (event,) = face.manager.events
        assert event.action == "left to GradScaler"


# ---- the gain monitor -----------------------------------------------------------------------------------------------


class Gains(Face):
    @contextlib.contextmanager
    def over(self, model, optimizers, scaler=None):
        with gf.GradientGainMonitor(model.blocks, strict_single_backward=False, scaler=scaler) as self.monitor:
            yield


@pytest.mark.parametrize(
    "way",
    ["plain", "checkpointing", "reentrant_checkpointing", "compiled_step", "optimizer_in_backward", "scaler_unfused"],
)
def test_gains_are_those_of_the_fp64_copy(way):
    face = Gains()
    steps = WAYS[way](face)
    next(steps)
    norms = face.monitor.norms()
    steps.close()
    twin = seeded(PlainNet).double()
    outputs, x = [], batch(0).double()
    for block in twin.blocks:
        outputs.append(block(x))
        x = torch.tanh(outputs[-1])
    wanted = [g.norm().item() for g in torch.autograd.grad(twin.head(x).square().mean(), outputs)]
    assert norms == pytest.approx(wanted, rel=1e-5)


# ---- the callback, through the Trainer ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # Lightning's own deprecations and hints
def test_the_callback_sees_the_step_that_the_others_see(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = seeded(PlainNet)
            self.expected: list[dict[str, torch.Tensor]] = []

        def training_step(self, rows, index):
            return self.net(rows).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_batch_start(self, rows, index):
            if index % 4 == 0:  # the accumulated step starts from these weights
                self.expected.append(in_fp64(self.net, lambda twin: default(twin, index // 4)))

    rows = [part for step in range(STEPS) for part in batch(step).chunk(4)]
    for precision, rel in (("32-true", 2e-5), ("bf16-mixed", 0.08)):
        module = Module()
        callback = gf.GradientStatisticsCallback(grad_log_every_n_steps=1, save_dir=tmp_path)
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accumulate_grad_batches=4,
            gradient_clip_val=1e-3,
            precision=precision,
            callbacks=[callback],
            default_root_dir=tmp_path,
        )
        trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=None))
        wanted = [statistics_of(torch.cat([g.flatten() for g in step.values()])) for step in module.expected]
        assert callback.statistics["grad_norm"] == pytest.approx([w["norm"] for w in wanted], rel=rel)
        assert callback.statistics["grad_max"] == pytest.approx([w["max"] for w in wanted], rel=rel)
        assert callback.statistics["grad_mean"] == pytest.approx([w["mean"] for w in wanted], rel=10 * rel, abs=1e-3)
