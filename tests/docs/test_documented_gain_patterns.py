"""The quick start and the four usage patterns of the gain monitor's document, import line aside."""

import torch
from torch import nn

from gradient_flow import GradientGainMonitor


class TransformerBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, batch_first=True, norm_first=True)

    def forward(self, x):
        return self.layer(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([TransformerBlock(dim=16) for _ in range(4)])


def run_forward(blocks, inputs):
    for block in blocks:
        inputs = block(inputs)
    return inputs


def test_quick_start(capsys):
    model_blocks = nn.ModuleList([TransformerBlock(dim=64) for _ in range(12)])
    with GradientGainMonitor(model_blocks) as monitor:
        output = run_forward(model_blocks, torch.randn(2, 5, 64))
        loss = output.square().mean()
        loss.backward()
        print(monitor.report())
    assert "Transition 10 to 11: gamma=" in capsys.readouterr().out


def test_basic_diagnostic_with_a_forward_before_it_still_prints(capsys):
    model = Model()
    loss = run_forward(model.blocks, torch.randn(2, 5, 16)).sum()
    with GradientGainMonitor(model.blocks) as monitor:
        loss.backward()
        print(monitor.report())
    assert "before the forward pass" in " ".join(capsys.readouterr().out.split())


def test_training_loop():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = GradientGainMonitor(model.blocks, strict_single_backward=False)
    seen = []
    for step in range(6):
        optimizer.zero_grad()
        loss = run_forward(model.blocks, torch.randn(2, 5, 16)).square().mean()
        loss.backward()
        if step % 2 == 0:
            stats = monitor.summary_stats()
            seen.append(stats["num_damping"] > len(model.blocks) // 2)
        optimizer.step()
        monitor.reset()
    monitor.close()
    assert seen == [False] * 3


def test_gradient_accumulation(capsys):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = GradientGainMonitor(model.blocks, strict_single_backward=False)
    optimizer.zero_grad()
    micro_batches = torch.randn(6, 5, 16).split(2)
    for i, micro_batch in enumerate(micro_batches):
        loss = run_forward(model.blocks, micro_batch).square().mean() / len(micro_batches)
        loss.backward()
        print(f"Micro-batch {i}: {monitor.summary_stats()['mean_gain']:.4f}")
        monitor.reset()
    optimizer.step()
    monitor.close()
    assert capsys.readouterr().out.count("Micro-batch") == 3


def test_architecture_comparison(capsys):
    architectures = {"Pre-LN": Model().blocks, "Post-LN": Model().blocks}
    for name, blocks in architectures.items():
        with GradientGainMonitor(blocks) as monitor:
            loss = run_forward(blocks, torch.randn(2, 5, 16)).square().mean()
            loss.backward()
            stats = monitor.summary_stats()
            print(f"{name}: mean_gain={stats['mean_gain']:.4f}")
    assert "Post-LN: mean_gain=" in capsys.readouterr().out
