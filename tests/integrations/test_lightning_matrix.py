"""Callback, watch and manager in one Lightning run, over its ways to train: each step against an fp64 copy of it."""

import json
import math
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import gradient_flow as gf

lightning = pytest.importorskip("lightning.pytorch", reason="the dev extra installs it; see test_lightning.py")
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own deprecations and hints

STEPS = 3


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch):
    """A picture for each fit takes longer than the fits; test_lightning.py looks at it."""
    monkeypatch.setattr(gf.GradientStatisticsCallback, "_plot", lambda self, path: None)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def rows(count, start=0):
    return [torch.randn(5, 4, generator=torch.Generator().manual_seed(start + i)) for i in range(count)]


def loss_of(model, x):
    return model(x).square().mean()


def gradients_of(model, batches):
    """Those of an fp64 copy, flat."""
    twin = net().double()
    twin.load_state_dict(model.state_dict())
    for x in batches:
        (loss_of(twin, x.double()) / len(batches)).backward()
    return torch.cat([p.grad.flatten() for p in twin.parameters()])


class Module(lightning.LightningModule):
    def __init__(self, parts=1, **settings):
        super().__init__()
        self.net, self.parts, self.expected = net(), parts, []
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01, **settings)

    def on_train_batch_start(self, batch, index):
        if index % self.parts == 0:
            self.expected.append(gradients_of(self.net, self.trainer.train_dataloader.dataset[index:][: self.parts]))

    def training_step(self, batch, index):
        return loss_of(self.net, batch)

    def configure_optimizers(self):
        return self.optimizer


def trainer_of(tmp_path, callbacks=(), **settings):
    return lightning.Trainer(
        **{
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": tmp_path,
            "callbacks": list(callbacks),
            **settings,
        }
    )


def loader_of(data):
    return torch.utils.data.DataLoader(data, batch_size=None)


def observing():
    """A manager that only looks."""
    config = gf.GradientConfig(nonfinite="observe", enable_gradient_clipping=False)
    return gf.GradientManagerCallback(config, explain=False)


def norms_of(manager):
    return [entry["total_norm"] for entry in manager.manager.monitor.history]


def clipped(gradient, kind, limit):
    if kind == "norm":
        return gradient * min(1.0, limit / (gradient.norm().item() + 1e-6))
    return gradient.clamp(-limit, limit)


@pytest.mark.parametrize("clip", [None, ("norm", 0.05), ("value", 0.02)], ids=["unclipped", "norm", "value"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("precision", "rel"), [("32-true", 1e-5), ("bf16-mixed", 0.05), ("16-mixed", 0.01)])
def test_all_faces_see_the_step_of_its_fp64_copy(tmp_path, precision, rel, parts, clip):
    from lightning.pytorch.plugins.precision import MixedPrecision

    module, settings, scaler = Module(parts), {"accumulate_grad_batches": parts}, None
    if precision == "16-mixed":  # the Trainer gives a CPU no scaler of its own
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        settings["plugins"] = [MixedPrecision(precision, "cpu", scaler=scaler)]
    else:
        settings["precision"] = precision
    if clip is not None:
        settings |= {"gradient_clip_algorithm": clip[0], "gradient_clip_val": clip[1]}
    statistics, manager = gf.GradientStatisticsCallback(1), observing()
    with gf.watch(module, module.optimizer, scaler=scaler) as flow:
        trainer_of(tmp_path, [statistics, manager], **settings).fit(module, loader_of(rows(STEPS * parts)))
    norms = [gradient.norm().item() for gradient in module.expected]
    assert len(norms) == STEPS
    assert statistics.statistics["grad_norm"] == pytest.approx(norms, rel=rel)
    assert statistics.statistics["grad_max"] == pytest.approx([g.max().item() for g in module.expected], rel=rel)
    assert flow.history["norm"] == pytest.approx(norms, rel=rel)
    assert norms_of(manager) == pytest.approx(norms, rel=rel)
    if clip is None:
        assert flow.clipped_table is None
        return
    after = [clipped(gradient, *clip).norm().item() for gradient in module.expected]
    assert max(after) < min(norms)
    assert flow.history["clipped_norm"] == pytest.approx(after, rel=rel)
    assert not module.optimizer._optimizer_step_pre_hooks


def test_a_fused_optimizer_under_a_scaler_is_unscaled(tmp_path):
    from lightning.pytorch.plugins.precision import MixedPrecision

    module, scaler = Module(fused=True), torch.amp.GradScaler("cpu", init_scale=1024.0)
    statistics, manager = gf.GradientStatisticsCallback(1), observing()
    plugin = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    with gf.watch(module, module.optimizer, scaler=scaler) as flow:
        trainer_of(tmp_path, [statistics, manager], plugins=[plugin]).fit(module, loader_of(rows(STEPS)))
    norms = [gradient.norm().item() for gradient in module.expected]
    assert statistics.statistics["grad_norm"] == pytest.approx(norms, rel=0.01)
    assert flow.history["norm"] == pytest.approx(norms, rel=0.01)


class Players(lightning.LightningModule):
    """Manual optimisation: two optimizers in turn, each clipped by hand."""

    def __init__(self, limit):
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.made, self.judge, self.limit, self.expected = nn.Linear(4, 4), nn.Linear(4, 1), limit, []

    def loss(self, which, x, made, judge):
        return judge(torch.tanh(made(x))).square().mean() * (1 if which else -1)

    def training_step(self, batch, index):
        for which, (optimizer, player) in enumerate(zip(self.optimizers(), (self.judge, self.made), strict=True)):
            made, judge = nn.Linear(4, 4).double(), nn.Linear(4, 1).double()
            made.load_state_dict(self.made.state_dict())
            judge.load_state_dict(self.judge.state_dict())
            self.loss(which, batch.double(), made, judge).backward()
            twin = judge if player is self.judge else made
            self.expected.append(torch.cat([p.grad.flatten() for p in twin.parameters()]))
            self.zero_grad()
            self.manual_backward(self.loss(which, batch, self.made, self.judge))
            if self.limit:
                self.clip_gradients(optimizer, self.limit, "norm")
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.judge.parameters(), lr=0.1), torch.optim.SGD(self.made.parameters(), lr=0.1)]

    def on_fit_start(self):
        self.flow = gf.watch(self, self.optimizers())  # what Lightning hands out are wrappers

    def on_fit_end(self):
        self.flow.close()


@pytest.mark.parametrize("limit", [None, 0.01])
def test_two_optimizers_by_hand(tmp_path, limit):
    module = Players(limit)
    statistics, manager = gf.GradientStatisticsCallback(1), observing()
    trainer = trainer_of(tmp_path, [statistics, manager])
    trainer.fit(module, loader_of(rows(STEPS)))
    norms = [gradient.norm().item() for gradient in module.expected]
    flow = module.flow
    assert flow.history["optimizer"].tolist() == [0, 1] * STEPS
    assert flow.history["norm"] == pytest.approx(norms, rel=1e-5)
    if limit:
        after = [clipped(gradient, "norm", limit).norm().item() for gradient in module.expected]
        assert flow.history["clipped_norm"] == pytest.approx(after, rel=1e-5)
    else:
        both = [math.hypot(*norms[i : i + 2]) for i in range(0, len(norms), 2)]
        # Clipping by hand comes before any event of Lightning, so only without it does the callback see all of it.
        assert statistics.statistics["grad_norm"] == pytest.approx(both, rel=1e-5)
        assert norms_of(manager) == pytest.approx(norms, rel=1e-5)
    assert all(not optimizer._optimizer_step_pre_hooks for optimizer in trainer.optimizers)


def test_two_fits_are_one_run_for_the_watch(tmp_path):
    module, statistics = Module(), gf.GradientStatisticsCallback(1)
    with gf.watch(module, module.optimizer) as flow:
        trainer = trainer_of(tmp_path, [statistics])
        trainer.fit(module, loader_of(rows(STEPS)))
        trainer.fit_loop.max_epochs += 1
        trainer.fit(module, loader_of(rows(STEPS, start=50)))
    norms = [gradient.norm().item() for gradient in module.expected]
    assert flow.history["step"].tolist() == statistics.statistics["step"] == list(range(1, 2 * STEPS + 1))
    assert flow.history["norm"] == pytest.approx(norms, rel=1e-5)
    assert statistics.statistics["grad_norm"] == pytest.approx(norms, rel=1e-5)


class Resumable(Module):
    """A module that puts its watch into the checkpoints of the Trainer."""

    flow = None

    def on_fit_start(self):
        self.flow = gf.watch(self, self.optimizers())
        if self.kept is not None:
            self.flow.load_state_dict(self.kept)

    kept = None

    def on_save_checkpoint(self, checkpoint):
        checkpoint["gradient_flow"] = self.flow.state_dict()

    def on_load_checkpoint(self, checkpoint):
        self.kept = checkpoint["gradient_flow"]

    def on_fit_end(self):
        self.flow.close()


def test_a_resumed_fit_is_the_uninterrupted_one(tmp_path):
    whole, faces = Resumable(), [gf.GradientStatisticsCallback(1), observing()]
    trainer_of(tmp_path, faces, max_epochs=2).fit(whole, loader_of(rows(STEPS)))
    first = Resumable()
    trainer = trainer_of(tmp_path, [gf.GradientStatisticsCallback(1), observing()])
    trainer.fit(first, loader_of(rows(STEPS)))
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    second, statistics, manager = Resumable(), gf.GradientStatisticsCallback(1), observing()
    resumed = trainer_of(tmp_path, [statistics, manager], max_epochs=2)
    resumed.fit(second, loader_of(rows(STEPS)), ckpt_path=tmp_path / "half.ckpt")
    norms = whole.flow.history["norm"].tolist()
    assert second.flow.history["step"].tolist() == list(range(1, 2 * STEPS + 1))
    assert second.flow.history["norm"] == pytest.approx(norms, rel=1e-6)
    assert statistics.statistics["grad_norm"] == pytest.approx(norms, rel=1e-6)
    assert manager.manager.total_steps == 2 * STEPS


SCRIPT = """
    import json, sys, warnings
    warnings.simplefilter("ignore")
    import torch
    import gradient_flow as gf
    from test_lightning_matrix import Module, gradients_of, loader_of, norms_of, observing, rows, trainer_of

    torch.set_num_threads(1)
    gf.GradientStatisticsCallback._plot = lambda self, path: None
    folder = sys.argv[1]
    statistics, manager = gf.GradientStatisticsCallback(1, save_dir=f"{folder}/files"), observing()

    class Shared(Module):
        def on_fit_start(self):
            self.flow = gf.watch(self, self.optimizers(), run=f"{folder}/run")

        def on_train_batch_start(self, batch, index):
            self.expected.append(gradients_of(self.net, rows(6)[2 * index : 2 * index + 2]))  # of both ranks

        def training_step(self, batch, index):
            return super().training_step(rows(6)[2 * index + self.global_rank], index)

        def on_fit_end(self):
            self.flow.close()
            seen = {
                "expected": [g.norm().item() for g in self.expected],
                "watch": self.flow.history["norm"].tolist(),
                "clipped": self.flow.history["clipped_norm"].tolist(),
                "callback": statistics.statistics["grad_norm"],
                "manager": norms_of(manager),
                "hooks": len(self.optimizer._optimizer_step_pre_hooks),
            }
            with open(f"{folder}/rank{self.global_rank}.json", "w") as file:
                json.dump(seen, file)

    settings = {"strategy": "ddp_fork", "devices": 2, "gradient_clip_val": 0.05, "use_distributed_sampler": False}
    trainer_of(folder, [statistics, manager], **settings).fit(Shared(), loader_of(rows(3)))
"""
"""Forked ranks: importing Lightning takes longer than everything else here, and is done once for both."""


def test_two_ranks_see_the_gradient_of_both(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.path.dirname(__file__)}
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr[-3000:]
    for rank in range(2):
        seen = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert len(seen["expected"]) == STEPS
        for face in ("watch", "callback", "manager"):
            assert seen[face] == pytest.approx(seen["expected"], rel=1e-5), face
        assert seen["clipped"] == pytest.approx([0.05] * STEPS, rel=1e-4)
        assert seen["hooks"] == 0
    headers = [record for record in gf.load_run(tmp_path / "run").records if record["kind"] == "header"]
    assert len(headers) == 1  # the first rank writes, and it alone


@pytest.mark.parametrize(("told", "writes"), [({}, True), ({"LOCAL_RANK": "1"}, False), ({"NODE_RANK": "1"}, False)])
def test_a_rank_knows_its_place_before_lightning_connects_it(tmp_path, monkeypatch, told, writes):
    """As with `gf.watch` around `trainer.fit`: the process group comes later."""
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    model = net()
    gf.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), run=tmp_path / "run").close()
    assert (tmp_path / "run").exists() == writes
