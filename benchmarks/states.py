"""What looking at the optimizer's state and at batches costs, beside a step of a small GPT.

    python benchmarks/states.py [--small]

The state is read on looks; a few elements of the batch are taken at every forward.
"""

import sys
import time
from statistics import median

import torch

from gradient_flow.capture.batch_identity import hash_of, sample_of
from gradient_flow.looks.optimizer_state import StateReader
from models import GPT, gpt_loss
from timing import show_help

SMALL = "--small" in sys.argv


def timed(action, repeats: int) -> float:
    """The median of some runs, in seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return median(times)


def main() -> None:
    """Print each cost, and its share of a step."""
    show_help()
    torch.manual_seed(0)
    model = GPT(1, 32, 2, 64, 16) if SMALL else GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    named = list(model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        (gpt_loss(model, 2, 16, 64) if SMALL else gpt_loss(model)).backward()
        optimizer.step()

    def look() -> None:
        StateReader(optimizer, named).read(optimizer, 1, 0)

    step()
    whole = timed(step, 5)
    tokens = torch.randint(64 if SMALL else 8192, (4, 128))
    costs = {
        "a look at the state": timed(look, 15),
        "elements of a batch, each step": timed(lambda: sample_of([tokens]), 200),
        "its hash, at a spike": timed(lambda: hash_of(sample_of([tokens]), b"salt"), 200),
    }
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters in {len(named)} tensors, a step takes {whole * 1e3:.0f} ms")
    for name, cost in costs.items():
        print(f"{name}: {cost * 1e3:.3f} ms, {cost / whole:.3%} of a step")
    # Looks come at 13 of the first 200 steps, and then at every hundredth.
    share = (costs["a look at the state"] / 100 + costs["elements of a batch, each step"]) / whole
    print(f"all together, of a long training: {share:.4%}")


if __name__ == "__main__":
    main()
