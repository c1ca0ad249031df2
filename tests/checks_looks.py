"""What each rank of a real process group checks about looks. Run by `test_distributed.py`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import gradient_flow as gf
from gradient_flow.looks import budget
from gradient_flow.looks.budget import Budget

STEPS = 6


class Mixed(nn.Module):
    """A recurrent layer, attention and narrow places: every probe has something to see."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 8, batch_first=True)
        self.mix = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
        self.neck, self.head = nn.Linear(8, 2), nn.Linear(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.neck(self.mix(self.rnn(x)[0]))))
        return out


class Parallel(nn.Module):
    """Outputs that stay `DTensor`s between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.act(self.up(x)))
        return out


def batch(step: int, rank: int | None = None) -> torch.Tensor:
    seed = 100 * step + (dist.get_rank() if rank is None else rank)
    return torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(seed))


def bits_of(model: nn.Module) -> list[torch.Tensor]:
    parts = [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()]
    return [*parts, *(buffer.detach().clone() for buffer in model.buffers()), torch.get_rng_state()]


def collectives() -> int:
    """How many there were so far, in all groups."""
    groups = list(dist.distributed_c10d._world.pg_map)
    return sum(group._get_sequence_number_for_group() for group in groups)


@contextmanager
def plenty_of_time() -> Iterator[None]:
    """The training seems to have begun long ago: on a busy machine looks at every step take most of a short one."""

    def long_ago(share: float) -> Budget:
        return Budget(share, chain([-1e9], iter(time.perf_counter, None)).__next__)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "Budget", long_ago)
        yield


def looked(flow: gf.Flow) -> list[int]:
    """The steps this rank has looked at, and that all ranks have looked as often."""
    taken = [None] * dist.get_world_size()
    dist.all_gather_object(taken, flow.looks.taken)
    assert len(set(taken)) == 1, taken
    assert not flow.looks.failed, flow.looks.reason
    return [event.step for event in flow.run.events if event.kind == "looked"]


@plenty_of_time()
def compare(make, loss, *, steps: int = STEPS, expected: tuple[int, ...] = (3, 4, 5, 6), clip: bool = False) -> gf.Flow:
    """Train with a look at every step and with none: the same bits and the same collectives."""
    states, counts = [], []
    for looks in (False, 1):
        torch.manual_seed(5)
        model, called = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        flow = gf.watch(model, optimizer, looks=looks, budget=1.0)
        before = collectives()
        for step in range(steps):
            optimizer.zero_grad()
            loss(called, step)
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        counts.append(collectives() - before)
        flow.close()
        states.append(bits_of(model))
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))
    assert counts[0] == counts[1], counts
    assert looked(flow) == list(expected)
    assert not any(m._forward_hooks and "gradient_flow" in str(m._forward_hooks) for m in model.modules())
    return flow


def usual(model, step: int) -> None:
    model(batch(step)).square().mean().backward()


def places(flow: gf.Flow) -> set[str]:
    return {place["name"] for place in flow.run.found("network")[-1][1]["places"]}


def ddp_looks_like_one_process(_folder: Path) -> None:
    def make():
        model = DistributedDataParallel(Mixed())
        return model, model

    flow = compare(make, usual, clip=True)
    assert {"rnn", "neck", "head"} <= places(flow)
    assert flow.run.found("attention")
    assert flow.run.found("recurrent")


def ddp_of_a_model_that_is_watched_raw(_folder: Path) -> None:
    def make():
        model = Mixed()
        return model, DistributedDataParallel(model)

    assert {"rnn", "neck", "head"} <= places(compare(make, usual))


def ddp_with_accumulation(_folder: Path) -> None:
    def make():
        model = DistributedDataParallel(Mixed())
        return model, model

    def loss(model, step: int) -> None:
        with model.no_sync():
            (model(batch(step)).square().mean() / 2).backward()
        (model(batch(step + 50)).square().mean() / 2).backward()

    compare(make, loss)


def fsdp_looks(_folder: Path) -> None:
    def make():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = Mixed()
        for part in (model.mix, model.neck, model.head):
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, model

    flow = compare(make, usual)
    assert {"rnn", "neck", "head"} <= places(flow)
    state = flow.run.found("optimizer")[-1][1]["looks"][-1]
    assert state["kind"] == "momentum"
    assert -1 <= state["cosine"] <= 1


def sharded_state_of_adam(_folder: Path) -> None:
    """Each rank reads its own shards: with one gradient all over, every part says what the whole does."""
    model = nn.Linear(6, 4, bias=False)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=0.5, weight_decay=0.0)
    with gf.watch(model, optimizer, looks=1) as flow:
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.ones(1, 6)).sum().backward()
            optimizer.step()
    state = flow.run.found("optimizer")[-1][1]["looks"][-1]
    assert abs(state["stale"] - 1) < 1e-4
    assert abs(state["eps_share"] - 1 / 3) < 1e-4


def fsdp_of_a_sequential(_folder: Path) -> None:
    def make():
        model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 1))
        for layer in (model[0], model[2]):
            fully_shard(layer)
        fully_shard(model)
        return model, model

    assert {"0", "2", "4"} <= places(compare(make, usual))


def tensor_parallel_looks(_folder: Path) -> None:
    def make():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel(input_layouts=Shard(-1))}
        model = parallelize_module(Parallel(), mesh, plan)
        return model, model

    def loss(model, step: int) -> None:
        model(batch(step, rank=0)).square().mean().backward()

    flow = compare(make, loss)
    assert {"up", "act", "down"} <= places(flow), places(flow)


@plenty_of_time()
def nan_on_one_rank_makes_no_rank_look_alone(_folder: Path) -> None:
    def make():
        model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 1))
        fully_shard(model)
        return model, model

    torch.manual_seed(5)
    model, _ = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with gf.watch(model, optimizer, looks=1) as flow:
        for step in range(STEPS):
            optimizer.zero_grad()
            scale = float("nan") if step == 3 and dist.get_rank() == 1 else 1.0
            (scale * model(batch(step)).square().mean()).backward()
            optimizer.step()
    looked(flow)


@plenty_of_time()
def one_rank_fails_inside(_folder: Path) -> None:
    """Looks end on that rank alone, and nobody waits for it."""
    from gradient_flow.looks.observer import Observer

    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    original = Observer._on_forward

    def fail(self, passage, tensor):
        if dist.get_rank() == 1:
            raise RuntimeError("on purpose")
        return original(self, passage, tensor)

    Observer._on_forward = fail  # type: ignore[method-assign]
    try:
        with gf.watch(model, optimizer, looks=1) as flow:
            for step in range(STEPS):
                optimizer.zero_grad()
                usual(model, step)
                optimizer.step()
    finally:
        Observer._on_forward = original  # type: ignore[method-assign]
    assert flow.looks.failed == (dist.get_rank() == 1)
    assert flow.steps == STEPS
