"""The gain monitor under DistributedDataParallel, with a real process group."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

WORKER = """
import json, sys
import torch, torch.distributed as dist
from torch import nn
from gradient_flow import GradientGainMonitor

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)])
parallel = nn.parallel.DistributedDataParallel(model)
batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(7)).split(2)[rank]
with GradientGainMonitor(model) as monitor:
    parallel(batch).square().sum().backward()
print(json.dumps(monitor.norms()), flush=True)
del parallel  # torch may abort at exit when the wrapper outlives its process group
dist.destroy_process_group()
"""


def test_each_rank_sees_the_gradients_of_its_own_batch(tmp_path):
    command = [sys.executable, "-c", WORKER]
    workers = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=90)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0]

    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)])
    for output, x in zip(outputs, torch.randn(4, 8, generator=torch.Generator().manual_seed(7)).split(2), strict=True):
        states = []
        for block in model:
            x = block(x)
            states.append(x)
        gradients = torch.autograd.grad(x.square().sum(), states)
        expected = [gradient.double().norm().item() for gradient in gradients]
        assert json.loads(output.strip().splitlines()[-1]) == pytest.approx(expected, rel=1e-5)
