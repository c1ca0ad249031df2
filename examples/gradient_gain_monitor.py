"""Seven ways to use GradientGainMonitor: `python examples/gradient_gain_monitor.py [folder for the figures]`."""

import sys
from pathlib import Path

import torch
from torch import nn

from gradient_flow import GradientGainMonitor

WIDTH, BATCH = 64, 16


class ResidualBlock(nn.Module):
    """x + f(x)."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.branch = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x):
        return x + self.branch(x)


def run(blocks, x):
    """Through all blocks, one after the other."""
    for block in blocks:
        x = block(x)
    return x


def basic_usage(_folder):
    """1. A stack of residual blocks keeps its gradient."""
    blocks = nn.ModuleList(ResidualBlock() for _ in range(8))
    with GradientGainMonitor(blocks) as monitor:
        run(blocks, torch.randn(BATCH, WIDTH)).square().mean().backward()
    print(monitor.report())


def transformer_comparison(folder):
    """2. Pre-LN and Post-LN transformers, on one figure and in one table."""
    monitors = {}
    for name, norm_first in (("Pre-LN", True), ("Post-LN", False)):
        torch.manual_seed(0)
        blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, norm_first=norm_first, batch_first=True)
            for _ in range(12)
        )
        with GradientGainMonitor(blocks) as monitor:
            y = run(blocks, torch.randn(BATCH, 10, WIDTH))
            y.backward(torch.randn_like(y))
        monitors[name] = monitor
    comparison = GradientGainMonitor.compare(monitors)
    print(comparison)
    comparison.plot(folder / "pre_ln_post_ln.png")
    print(f"figure: {folder / 'pre_ln_post_ln.png'}")


def norm_types(_folder):
    """3. All four norms come from one recording."""
    blocks = nn.ModuleList(ResidualBlock() for _ in range(4))
    with GradientGainMonitor(blocks) as monitor:
        run(blocks, torch.randn(BATCH, WIDTH)).square().mean().backward()
    for kind in ("l2", "l1", "linf", "mean"):
        print(f"{kind:>5}: " + "  ".join(f"{norm:.2e}" for norm in monitor.norms(kind)))


def training_loop(_folder):
    """4. In a training loop: look every 20 steps, reset after each."""
    blocks = nn.ModuleList(ResidualBlock() for _ in range(6))
    optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-3)
    x, target = torch.randn(256, WIDTH), torch.randn(256, WIDTH)
    monitor = GradientGainMonitor(blocks, strict_single_backward=False)
    for step in range(60):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(run(blocks, x), target)
        loss.backward()
        if step % 20 == 0:
            stats = monitor.summary_stats()
            print(f"step {step:2d}: loss {loss:.3f}, mean gain {stats['mean_gain']:.3f}")
            if stats["num_damping"] > len(blocks) // 2:
                print("Warning: many damping transitions")
        optimizer.step()
        monitor.reset()
    monitor.close()


def gradient_accumulation(_folder):
    """5. Every micro-batch of an accumulated step by itself."""
    blocks = nn.ModuleList(ResidualBlock() for _ in range(6))
    micro_batches = torch.randn(BATCH, WIDTH).split(4)
    monitor = GradientGainMonitor(blocks, strict_single_backward=False)
    for i, micro_batch in enumerate(micro_batches):
        loss = run(blocks, micro_batch).square().mean() / len(micro_batches)
        loss.backward()
        print(f"Micro-batch {i}: {monitor.summary_stats()['mean_gain']:.4f}")
        monitor.reset()
    monitor.close()


def detecting_problems(_folder):
    """6. A deep sigmoid stack loses its gradient, an over-scaled one blows it up."""
    for name, activation, gain in (("sigmoid", nn.Sigmoid, 1.0), ("over-scaled ReLU", nn.ReLU, 4.0)):
        blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), activation()) for _ in range(10))
        for block in blocks:
            nn.init.xavier_normal_(block[0].weight, gain=gain)
        with GradientGainMonitor(blocks) as monitor:
            run(blocks, torch.randn(BATCH, WIDTH)).square().mean().backward()
        stats = monitor.summary_stats()
        print(f"{name}: {stats['num_damping']} damping, {stats['num_amplifying']} amplifying of {len(blocks) - 1}")
        print(f"{' ' * len(name)}  {monitor.gain_over_depth()}")


def log_gain_figure(folder):
    """7. Log-gains over depth of three activations, as a figure."""
    monitors = {}
    for name, activation in (("ReLU", nn.ReLU), ("tanh", nn.Tanh), ("sigmoid", nn.Sigmoid)):
        blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), activation()) for _ in range(12))
        for block in blocks:
            nn.init.kaiming_normal_(block[0].weight)
        with GradientGainMonitor(blocks) as monitor:
            run(blocks, torch.randn(BATCH, WIDTH)).square().mean().backward()
        monitors[name] = monitor
    GradientGainMonitor.compare(monitors).plot(folder / "log_gains.png")
    print(f"figure: {folder / 'log_gains.png'}")


EXAMPLES = (
    basic_usage,
    transformer_comparison,
    norm_types,
    training_loop,
    gradient_accumulation,
    detecting_problems,
    log_gain_figure,
)


def main(folder=Path(".")):
    """All seven, one after the other."""
    torch.manual_seed(0)
    for example in EXAMPLES:
        print(f"\n{example.__doc__}")
        example(Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:2])
