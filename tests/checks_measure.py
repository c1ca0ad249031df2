"""What each rank of a real process group checks about measuring. Run by `test_distributed.py`."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import gradient_flow as gf
from gradient_flow.table.columns import STATISTICS


def collectives(comm: CommDebugMode) -> int:
    return comm.get_total_counts()


def small_model(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Odd sizes: shards are uneven, and with four ranks some are empty."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 1)).to(dtype)


def batch(seed: int = 1) -> torch.Tensor:
    return torch.randn(4 * dist.get_world_size(), 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def own_part(x: torch.Tensor) -> torch.Tensor:
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def sharded(model: nn.Module, mesh) -> nn.Module:
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def assert_same_table(table: gf.GradientTable, expected: gf.GradientTable, rel: float = 1e-11) -> None:
    assert table.names == expected.names
    assert table.missing == expected.missing
    scale = expected.norm.max(initial=0.0)
    for name in STATISTICS:
        ours, theirs = np.asarray(getattr(table, name), float), np.asarray(getattr(expected, name), float)
        assert np.allclose(ours, theirs, rtol=rel, atol=1e-13 * scale, equal_nan=True), (name, ours, theirs)
        one, other = getattr(table.total, name), getattr(expected.total, name)
        assert np.isclose(one, other, rtol=rel, atol=1e-13 * scale, equal_nan=True), (name, one, other)


def assert_same_everywhere(table: gf.GradientTable) -> None:
    """Bit by bit: decisions are made from it."""
    tables = [None] * dist.get_world_size()
    dist.all_gather_object(tables, (table.names, table.missing, table.rows.tobytes()))
    assert all(other == tables[0] for other in tables)


def reference(x: torch.Tensor) -> gf.GradientTable:
    model = small_model()
    model(x).square().mean().backward()
    return gf.measure(model)


def mesh_of(*shape: int, names: tuple[str, ...] | None = None):
    return init_device_mesh("cpu", shape, mesh_dim_names=names or ("a", "b", "c")[: len(shape)])


def two_dimensional(names: tuple[str, str]):
    world = dist.get_world_size()
    return mesh_of(2, world // 2, names=names)


def fsdp_table_is_that_of_one_process(_folder: Path) -> None:
    model = sharded(small_model(), mesh_of(dist.get_world_size()))
    model(own_part(batch())).square().mean().backward()
    with CommDebugMode() as comm:
        table = gf.measure(model)
    assert collectives(comm) == 2
    assert_same_table(table, reference(batch()))
    assert_same_everywhere(table)
    if dist.get_world_size() == 4:
        assert any(p.grad.to_local().numel() == 0 for p in model.parameters()) == (dist.get_rank() > 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert gf.measure(optimizer).total.norm == table.total.norm
    named = {name: p.grad for name, p in model.named_parameters()}
    assert gf.measure(named) == table
    assert gf.compute_gradient_norm(named) == table.total.norm


def hsdp_counts_replicas_once(_folder: Path) -> None:
    model = sharded(small_model(), two_dimensional(("replicate", "shard")))
    model(own_part(batch())).square().mean().backward()
    with CommDebugMode() as comm:
        table = gf.measure(model)
    assert collectives(comm) == 2
    assert_same_table(table, reference(batch()))
    assert_same_everywhere(table)


class Parallel(nn.Module):
    """A block that tensor parallelism splits by columns, by rows, and not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(self.norm(x)))).clone()


PLAN = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Replicate()),
}


def parallel_model(dtype: torch.dtype = torch.float64) -> Parallel:
    torch.manual_seed(3)
    return Parallel().to(dtype)


def sequence(seed: int = 5) -> torch.Tensor:
    return torch.randn(4, 4, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parallel_reference(x: torch.Tensor) -> gf.GradientTable:
    model = parallel_model()
    model(x).square().mean().backward()
    return gf.measure(model)


def tensor_parallel_with_unreduced_sums(_folder: Path) -> None:
    model = parallel_model()
    parallelize_module(model, mesh_of(dist.get_world_size()), PLAN)
    model(sequence()).square().mean().backward()
    assert model.norm.weight.grad.placements[0].is_partial()
    with CommDebugMode() as comm:
        table = gf.measure(model)
    assert collectives(comm) == 3  # and one for all the sums that were still to be taken
    assert_same_table(table, parallel_reference(sequence()))
    assert_same_everywhere(table)


def fsdp_of_tensor_parallel(_folder: Path) -> None:
    mesh = two_dimensional(("dp", "tp"))
    model = parallel_model()
    parallelize_module(model, mesh["tp"], PLAN)
    fully_shard(model, mesh=mesh["dp"])
    part = sequence().chunk(2)[mesh.get_local_rank("dp")]
    model(part).square().mean().backward()
    with CommDebugMode() as comm:
        table = gf.measure(model)
    assert collectives(comm) == 2
    assert_same_table(table, parallel_reference(sequence()))
    assert_same_everywhere(table)


def any_mix_of_placements_and_meshes(_folder: Path) -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(7)
    whole = {f"g{i}": torch.randn(5, 6, 3, dtype=torch.float64) for i in range(6)}
    whole["complex"] = torch.randn(5, 3, dtype=torch.complex128)
    whole["empty"] = torch.randn(0, 3, dtype=torch.float64)
    whole["plain"] = torch.randn(4, dtype=torch.float64)
    whole["scalar"] = torch.randn((), dtype=torch.float64)
    line, plane = mesh_of(world), two_dimensional(("dp", "tp"))
    placed = {
        "g0": distribute_tensor(whole["g0"], line, [Shard(0)]),
        "g1": distribute_tensor(whole["g1"], line, [Shard(2)]),
        "g2": distribute_tensor(whole["g2"], line, [Replicate()]),
        "g3": distribute_tensor(whole["g3"], plane, [Shard(0), Shard(1)]),
        "g4": distribute_tensor(whole["g4"], plane["tp"], [Shard(1)]),  # a copy in each row of the mesh
        "g5": DTensor.from_local(
            whole["g5"] / world if rank else whole["g5"] * (1 - (world - 1) / world), line, [Partial()]
        ),
        "complex": distribute_tensor(whole["complex"], line, [Shard(0)]),
        "empty": distribute_tensor(whole["empty"], line, [Shard(0)]),
        "plain": whole["plain"],
        "scalar": distribute_tensor(whole["scalar"], line, [Replicate()]),
    }
    placed = {name: placed[name] for name in whole}
    table = gf.measure(placed)
    assert_same_table(table, gf.measure(whole))
    assert_same_everywhere(table)


def submeshes_without_a_container_meet_in_their_root(_folder: Path) -> None:
    mesh = two_dimensional(("dp", "tp"))
    torch.manual_seed(11)
    whole = {"rows": torch.randn(6, 4, dtype=torch.float64), "columns": torch.randn(4, 6, dtype=torch.float64)}
    placed = {
        "rows": distribute_tensor(whole["rows"], mesh["dp"], [Shard(0)]),
        "columns": distribute_tensor(whole["columns"], mesh["tp"], [Shard(1)]),
    }
    table = gf.measure(placed)
    assert_same_table(table, gf.measure(whole))
    assert_same_everywhere(table)


def part_of_the_world_measures_without_the_rest(_folder: Path) -> None:
    if dist.get_world_size() < 4:
        return
    mesh = two_dimensional(("stage", "dp"))["dp"]  # two stages of two ranks, which need not wait for one another
    stage = dist.get_rank() // 2
    torch.manual_seed(stage)
    whole = torch.randn(5, 2, dtype=torch.float64)
    for _ in range(1 + stage):
        table = gf.measure({"w": distribute_tensor(whole, mesh, [Shard(0)])})
    assert math.isclose(table.total.norm, whole.norm().item(), rel_tol=1e-12)


def nan_on_one_rank_is_counted_on_all(_folder: Path) -> None:
    model = sharded(small_model(), mesh_of(dist.get_world_size()))
    model(own_part(batch())).square().mean().backward()
    if dist.get_rank() == 1:
        model[0].weight.grad.to_local().view(-1)[:2] = torch.tensor([math.nan, -math.inf])
    table = gf.measure(model)
    row = table["0.weight"]
    assert (row.nan_count, row.inf_count, row.finite) == (1, 1, False)
    assert math.isnan(row.norm)
    assert row.finite_part.min == -row.finite_part.linf or row.finite_part.max == row.finite_part.linf
    assert math.isfinite(row.finite_part.norm)
    assert table["2.weight"].finite
    assert_same_everywhere(table)


def nan_in_one_of_several_copies_is_not_lost(_folder: Path) -> None:
    world = dist.get_world_size()
    gradient = distribute_tensor(torch.ones(4, dtype=torch.float64), mesh_of(world), [Replicate()])
    if dist.get_rank() == world - 1:
        gradient.to_local()[0] = -math.inf
    row = gf.measure({"w": gradient})["w"]
    assert (row.count, row.inf_count, row.min, row.max) == (4, 1, -math.inf, math.nan) or row.inf_count == 1
    assert row.min == -math.inf


def idle_expert_on_one_rank_is_zeros_there(_folder: Path) -> None:
    """Each rank has its own experts, and those of the last rank got no token: there the gradient is None."""
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(13)
    whole = torch.randn(2 * world, 3, dtype=torch.float64)
    expected = whole.clone()
    expected[-2:] = 0.0
    mesh = mesh_of(world)
    model = nn.ParameterDict(
        {
            "experts": nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)])),
            "router": nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)])),
            "never": nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)])),
        }
    )
    if rank < world - 1:
        model["experts"].grad = distribute_tensor(expected, mesh, [Shard(0)], src_data_rank=None)
    model["router"].grad = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
    with CommDebugMode() as comm:
        table = gf.measure(model)
    assert collectives(comm) == 2
    assert table.missing == ("never",)
    assert_same_table(table, gf.measure({"experts": expected, "router": whole, "never": None}))
    assert_same_everywhere(table)
    if rank == 0:  # one that has nothing at all still takes part
        model["experts"].grad = model["router"].grad = None
    assert_same_everywhere(gf.measure(model))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.tokens(x))


def tied_weights_count_once(_folder: Path) -> None:
    def make() -> Tied:
        torch.manual_seed(2)
        return Tied().double()

    world, rank = dist.get_world_size(), dist.get_rank()
    x = torch.randint(11, (2 * world, 3), generator=torch.Generator().manual_seed(1))
    whole, model = make(), fully_shard(make(), mesh=mesh_of(world))
    whole(x).square().mean().backward()
    model(x.chunk(world)[rank]).square().mean().backward()
    assert_same_table(gf.measure(model), gf.measure(whole))


def a_rank_that_fails_takes_the_others_with_it(_folder: Path) -> None:
    mesh = mesh_of(dist.get_world_size())
    good = {"w": distribute_tensor(torch.ones(8), mesh, [Shard(0)])}
    bad = {"w": DTensor.from_local(torch.ones(2, dtype=torch.bool), mesh, [Shard(0)])}
    with pytest.raises((gf.InputError, gf.MonitorStateError)) as caught:
        gf.measure(bad if dist.get_rank() == 1 else good)
    assert ("1 of" in str(caught.value)) == (dist.get_rank() != 1)
    assert gf.measure(good).total.count == 8


def pipeline_stages_are_one_model(_folder: Path) -> None:
    """Stages that count their layers from 0; with four ranks each stage has two replicas."""
    world, rank = dist.get_world_size(), dist.get_rank()
    stage = rank * 2 // world
    torch.manual_seed(stage)
    models = []
    for index in range(2):
        torch.manual_seed(17 + index)
        model = nn.Sequential(nn.Linear(3, 4 if index else 5), nn.Linear(4 if index else 5, 3)).double()
        model(torch.ones(2, 3, dtype=torch.float64)).square().sum().backward()
        models.append(model)
    expected = gf.measure({f"part{i}.{n}": p for i, model in enumerate(models) for n, p in model.named_parameters()})
    group = dist.new_group(list(range(world)))
    table = gf.measure(models[stage], process_group=group)
    assert_same_table(table, expected)
    assert_same_everywhere(table)
    with CommDebugMode() as comm:
        gf.measure(models[stage], process_group=group)
    assert collectives(comm) == 2  # names are known by now
    if rank == 0:  # one rank learns of a new parameter; the others are told so in time
        models[stage].extra = nn.Parameter(torch.ones(2, dtype=torch.float64))
        models[stage].extra.grad = torch.ones(2, dtype=torch.float64)
    table = gf.measure(models[stage], process_group=group)
    assert table["part0.extra"].norm == math.sqrt(2)
    assert_same_everywhere(table)


def stages_with_their_own_names_keep_them(_folder: Path) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    gradients = {f"layer{i}": torch.full((i + 1,), float(i + 1), dtype=torch.float64) for i in range(world)}
    table = gf.measure({f"layer{rank}": gradients[f"layer{rank}"]}, process_group=dist.group.WORLD)
    assert_same_table(table, gf.measure(gradients))


def plain_replicas_need_no_communication(_folder: Path) -> None:
    model = nn.parallel.DistributedDataParallel(small_model())
    model(own_part(batch())).square().mean().backward()
    with CommDebugMode() as comm:
        table = gf.measure(model)
    assert collectives(comm) == 0
    assert_same_table(table, reference(batch()))
    assert_same_everywhere(table)
