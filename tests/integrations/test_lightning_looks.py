"""Looks inside a model that Lightning trains."""

import pytest
import torch
from torch import nn

import gradient_flow as gf

lightning = pytest.importorskip("lightning.pytorch")
from gradient_flow.integrations.lightning import GradientStatisticsCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Narrow(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layers = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh(), nn.Linear(1, 32), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(32, 8))

    def training_step(self, batch, _index):
        return (self.net(batch) - batch[:, :8]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def fit(folder, **settings):
    torch.manual_seed(0)
    model = Narrow()
    data = torch.utils.data.DataLoader(torch.randn(320, 16), batch_size=32)
    callback = GradientStatisticsCallback(5, save_dir=folder, **settings)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", callbacks=[callback], enable_checkpointing=False, **quiet
    )
    trainer.fit(model, data)
    return model, callback


def test_the_verdict_includes_what_looks_saw_also_from_the_files(tmp_path):
    model, callback = fit(tmp_path, budget=1.0)
    assert [look["step"] for look in callback.looks] == [3, 6, 13, 26]
    found = callback.diagnose()
    assert (found[0].issue_type, found[0].layer) == (gf.IssueType.BOTTLENECK, "net.2")
    assert found.looks == 4
    assert str(gf.diagnose(tmp_path)) == str(found)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_looks_change_no_bit_and_can_be_switched_off(tmp_path):
    plain, off = fit(tmp_path / "off", looks=False)
    watched, on = fit(tmp_path / "on", budget=1.0)
    assert not off.looks
    assert on.looks
    assert not (tmp_path / "off" / "gradient_looks.json").exists()
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), watched.parameters(), strict=True))
    names = {"gradient_statistics.json", "gradient_statistics_weight_matrices.json"}
    for name in names:
        assert (tmp_path / "off" / name).read_bytes() == (tmp_path / "on" / name).read_bytes()


def test_settings_of_looks_are_checked_at_once():
    with pytest.raises(gf.InputError, match="looks"):
        GradientStatisticsCallback(looks=0)
