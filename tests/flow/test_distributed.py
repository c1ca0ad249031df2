"""Several ranks, with real process groups: the same table and decision on each of them, and none left waiting."""

import inspect
import os
import socket
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.distributed import is_available

import checks_acting
import checks_agreement
import checks_device
import checks_looks
import checks_measure
import gradient_flow as gf
from ranks import DEADLINE, run_checks

pytestmark = pytest.mark.skipif(not is_available(), reason="torch was built without distributed")


def checks_in(module) -> list[str]:
    """The checks of a module in the order of the file: functions that take the folder."""
    found = inspect.getmembers(module, inspect.isfunction)
    mine = [(f.__code__.co_firstlineno, name, f) for name, f in found if f.__module__ == module.__name__]
    return [name for _, name, f in sorted(mine) if [*inspect.signature(f).parameters][:1] in (["_folder"], ["folder"])]


MODULES = (checks_measure, checks_acting, checks_looks, checks_agreement, checks_device)
_results: dict[tuple[str, int], dict[str, str]] = {}


@pytest.mark.parametrize(("module", "name"), [(m, name) for m in MODULES for name in checks_in(m)])
@pytest.mark.parametrize("world", [2, 4])
def test_ranks(world, module, name):
    key = module.__name__, world
    if key not in _results:  # one process group serves all checks of a module
        _results[key] = run_checks(module.__name__, checks_in(module), world)
    problem = _results[key][name]
    assert not problem, problem


SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = fully_shard(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1)).chunk(2)[dist.get_rank()]
for _ in range(3):
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
dist.barrier()
del model, optimizer
dist.destroy_process_group()
"""


def test_torchrun_with_an_unmodified_script_leaves_one_run_and_one_verdict(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    launch += ["--master-port", str(free_port()), "-m", "gradient_flow", "run", "--out", "run", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(launch, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("3 steps watched") == 1

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    with gf.watch(model, optimizer) as flow:
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    run = gf.load_run(tmp_path / "run")
    assert run.series("norm").tolist() == pytest.approx(flow.history["norm"].tolist(), rel=1e-5)
    assert run.table(1).names == ("0.weight", "0.bias", "2.weight", "2.bias")


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port
