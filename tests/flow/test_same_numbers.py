"""One process: however a step is run, every face gives the table that an fp64 copy of that step gives."""

import contextlib
import math

import numpy as np
import pytest
import torch

import gradient_flow as gf
from ways_of_training import SETUPS, STEPS, WAYS, blocks_of, in_fp64, part_of, seeded

pytestmark = pytest.mark.filterwarnings(  # torch's own, as it compiles
    "ignore:.*torch.jit.*:DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning"
)
STATISTICS = ("norm", "l1", "linf", "mean", "std", "min", "max")


class Face:
    """What a way of training tells: where it begins, when a step comes. Keeps what was seen of each step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, dict[str, float]]] = []

    @contextlib.contextmanager
    def over(self, model, optimizers, scaler=None):
        yield

    def ready(self) -> None: ...

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
    if way == "optimizer_in_backward" and kind is not Watch:  # managed step by step: those of a backward make the table
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
    """A backward at a time: what is there when all backwards of a step are done."""

    def __init__(self) -> None:
        super().__init__()
        self.norms: list[list[float | None]] = []

    @contextlib.contextmanager
    def over(self, model, optimizers, scaler=None):
        with gf.GradientGainMonitor(blocks_of(model), strict_single_backward=False, scaler=scaler) as self.monitor:
            yield

    def ready(self) -> None:
        self.norms.append(self.monitor.norms())


WITHOUT_BACKWARD = ("functional",)
"""`torch.func.grad` makes no pass that hooks on outputs could see."""


@pytest.mark.parametrize("way", [way for way in WAYS if way not in WITHOUT_BACKWARD])
def test_gains_are_those_of_the_fp64_copy(way):
    face = Gains()
    expected = list(WAYS[way](face))
    assert len(face.norms) == len(expected)
    for norms, reference in zip(face.norms, expected, strict=True):
        if reference is None:  # it overflowed
            continue
        for norm, wanted in zip(norms, reference.outputs, strict=True):
            assert norm is wanted is None or norm == pytest.approx(wanted, rel=TOLERANCE.get(way, 1e-5))


# ---- under Lightning ------------------------------------------------------------------------------------------------


BY_LIGHTNING = [name for name, setup in SETUPS.items() if not setup.compiled_step]
"""Its optimizer steps are its own; nobody compiles them."""


@pytest.mark.filterwarnings("ignore")  # Lightning's own deprecations and hints
@pytest.mark.parametrize("way", [*BY_LIGHTNING, "closure"])
def test_callback_watch_and_manager_see_the_same_step_under_lightning(way, tmp_path, monkeypatch):
    lightning = pytest.importorskip("lightning.pytorch")
    monkeypatch.setattr(gf.GradientStatisticsCallback, "_plot", lambda self, path: None)  # it takes longer than the fit
    setup = SETUPS["plain" if way == "closure" else way]

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = seeded(setup.make)
            self.called = [torch.compile(self.net, backend="aot_eager") if setup.compiled else self.net]
            lbfgs = torch.optim.LBFGS(self.net.parameters(), lr=0.5, max_iter=4) if way == "closure" else None
            self.optimizer = lbfgs or setup.optimizer(self.net)
            self.expected: list[dict[str, torch.Tensor]] = []

        def on_train_batch_start(self, _, index):
            step, part = divmod(index, setup.parts)
            if part == 0:  # the accumulated step starts from these weights
                self.expected.append(in_fp64(self.net, lambda twin: setup.loss(twin, step)))

        def training_step(self, _, index):
            step, part = divmod(index, setup.parts)
            if setup.parts == 1:
                return setup.loss(self.called[0], step)
            return part_of(self.called[0], step, setup.parts, part) * setup.parts  # Lightning divides by them itself

        def configure_optimizers(self):
            return self.optimizer

    module, statistics = Module(), gf.GradientStatisticsCallback(1, save_dir=tmp_path)
    manager = gf.GradientManagerCallback(gf.GradientConfig(nonfinite="observe", enable_gradient_clipping=False))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=setup.parts,
        callbacks=[statistics, manager],
        default_root_dir=tmp_path,
    )
    with gf.watch(module, module.optimizer) as flow:
        trainer.fit(module, torch.utils.data.DataLoader(range(STEPS * setup.parts), batch_size=None))
    wanted = [statistics_of(torch.cat([g.flatten() for g in step.values()])) for step in module.expected]
    assert len(wanted) == STEPS
    rel = TOLERANCE.get(way, 2e-5)
    norms = pytest.approx([reference["norm"] for reference in wanted], rel=rel)
    assert statistics.statistics["grad_norm"] == norms
    assert flow.history["norm"] == norms
    if way != "closure":  # the manager acts on every evaluation of it
        assert [entry["total_norm"] for entry in manager.manager.monitor.history] == norms
    for key, statistic in (("grad_max", "max"), ("grad_min", "min"), ("grad_mean", "mean")):
        seen, references = statistics.statistics[key], [reference[statistic] for reference in wanted]
        sizes = [reference["linf"] for reference in wanted]
        for value, reference, size in zip(seen, references, sizes, strict=True):
            assert value == pytest.approx(reference, rel=rel, abs=rel * size), key
    variances = [reference["std"] ** 2 for reference in wanted]
    assert statistics.statistics["grad_variance"] == pytest.approx(variances, rel=2 * rel)
