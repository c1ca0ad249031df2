"""Every Python block of document 004, with only its import line changed and the user's parts supplied."""

import asyncio
import logging
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import gradient_flow as gf

BLOCKS = Path(__file__).parent / "documents" / "gradient_management.md"


def blocks():
    """The document's code blocks, each with the title it stands under."""
    title, found = "", []
    for part in re.split(r"(^#+ [^\n]*$|^```python\n.*?^```$)", BLOCKS.read_text(), flags=re.M | re.S):
        if part.startswith("#"):
            title = part.lstrip("# ")
        elif part.startswith("```python"):
            found.append(pytest.param(part.removeprefix("```python\n").removesuffix("```"), id=f"{len(found)} {title}"))
    return found


class YourModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x)


def users_parts():
    torch.manual_seed(0)
    model = YourModel()
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.randn(16, 4)

    def loss():
        return nn.functional.mse_loss(model(data), data.sum(1, keepdim=True))

    def train_func(model, optimizer, epoch, gradient_manager):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value

    manager = gf.create_gradient_manager()
    config = manager.config
    manager.step(model, optimizer, loss())
    return {
        **{name: getattr(gf, name) for name in ("GradientConfig", "GradientManager", "create_gradient_manager")},
        "model": model,
        "optimizer": optimizer,
        "loss": loss(),
        "YourModel": YourModel,
        "num_steps": 3,
        "input_data": data,
        "targets": data.sum(1, keepdim=True),
        "criterion": nn.MSELoss(),
        "gradient_manager": manager,
        "gradients": [p.grad for p in model.parameters()],
        "config": config,
        "summary": manager.get_training_summary(),
        "train_func": train_func,
        "val_func": lambda: float(loss().detach()),
    }


def is_definition(block):
    """Shows how a class is written, which is not to be run but compared."""
    return block.values[0].startswith(("@dataclass", "class GradientManager"))


@pytest.mark.parametrize("block", [block for block in blocks() if not is_definition(block)])
def test_a_block_of_the_document_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.sub(r"from core\.\w+ import", "from gradient_flow import", block)
    names = users_parts()
    level = logging.getLogger().level
    try:
        if "await " in code:
            body = "\n".join("    " + line for line in code.splitlines())
            exec(f"async def main():\n{body}\n    return training_history", names)
            history = asyncio.run(names["main"]())
            assert len(history["train_loss"]) == len(history["val_loss"]) > 0
        else:
            exec(code, names)
    finally:
        logging.getLogger().setLevel(level)
    if "save_path" in code:
        assert list(tmp_path.glob("*.png"))


def test_the_document_is_here_whole():
    assert len(blocks()) == 23


def test_the_printed_definition_is_ours():
    block = next(b.values[0] for b in blocks() if b.values[0].startswith("@dataclass"))
    shown = re.findall(r"^    (\w+): (\w+) = ([^#\n]+?)(?:\s+#.*)?$", block, flags=re.M)
    ours = vars(gf.GradientConfig())
    assert list(ours)[: len(shown)] == [name for name, _, _ in shown]
    for name, kind, default in shown:
        value = eval(default)
        assert ours[name] == value, name
        assert type(ours[name]).__name__ == kind
        assert not isinstance(value, float) or math.isfinite(value)
