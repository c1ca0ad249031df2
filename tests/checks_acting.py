"""What each rank of a real process group checks about watching, clipping and guarding. Run by `test_distributed.py`."""

import copy
import math
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import parallelize_module

import gradient_flow as gf
from checks_measure import (
    PLAN,
    assert_same_everywhere,
    assert_same_table,
    batch,
    collectives,
    mesh_of,
    own_part,
    parallel_model,
    sequence,
    sharded,
    small_model,
    two_dimensional,
)
from gradient_flow.record.run_writer import RunWriter

STEPS = 4


def everyone_has(value) -> None:
    """The same object on every rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    assert all(other == values[0] for other in values), values


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def adam(model: nn.Module, **settings) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05, **settings)


def managed_run(model: nn.Module, x_of, config: gf.GradientConfig, optimizer, spoil=None) -> gf.GradientManager:
    manager = gf.GradientManager(config)
    with manager.attach(model, optimizer):
        for step in range(STEPS):
            optimizer.zero_grad()
            (model(x_of(batch(step))).square().mean() * 10 ** (step % 3)).backward()
            if spoil is not None:
                spoil(step, model)
            optimizer.step()
    return manager


CONFIGS = {
    "norm": {"max_grad_norm": 0.3},
    "value": {"clip_type": "value", "max_grad_norm": 0.02},
    "adaptive": {"clip_type": "adaptive", "adaptive_min_history": 2, "adaptive_percentile": 30.0},
    "zclip": {"clip_type": "zclip", "zclip_warmup": 2, "max_grad_norm": 100.0},
    "per_group": {"clip_type": "per_group", "group_max_norms": {"0.*": 0.05, "*.bias": 0.2}, "max_grad_norm": 0.3},
    "agc": {"clip_type": "agc", "agc_clip_factor": 0.05, "agc_exclude": ("4.*",)},
}


def every_clip_of_a_sharded_model_is_that_of_one_process(_folder: Path) -> None:
    for mesh in (mesh_of(dist.get_world_size()), two_dimensional(("replicate", "shard"))):
        for name, settings in CONFIGS.items():
            for fused in (False, True) if name == "norm" else (False,):
                alone, together = small_model(), sharded(small_model(), mesh)
                one = managed_run(alone, lambda x: x, gf.GradientConfig(**settings), adam(alone, fused=fused))
                several = managed_run(together, own_part, gf.GradientConfig(**settings), adam(together, fused=fused))
                assert one.clipped_steps > 0, name
                assert several.clipped_steps == one.clipped_steps, name
                a, b = one.last_step["clipping"], several.last_step["clipping"]
                assert a["clipped_parameters"] == b["clipped_parameters"], name
                assert math.isclose(a["clipped_norm"], b["clipped_norm"], rel_tol=1e-9), name
                everyone_has((b, several.clipper.state_dict()))
                for (key, p), q in zip(alone.named_parameters(), together.parameters(), strict=True):
                    assert torch.allclose(full(q), p, rtol=1e-9, atol=1e-12), (name, key)


def unit_clipping_of_every_placement_is_that_of_one_process(_folder: Path) -> None:
    mesh = two_dimensional(("dp", "tp"))
    model, whole = parallel_model(), parallel_model()
    parallelize_module(model, mesh["tp"], PLAN)  # columns, rows, and sums that are still to be taken
    config = gf.GradientConfig(clip_type="agc", agc_clip_factor=0.01)
    for each in (model, whole):
        (each(sequence()).square().mean() * 100).backward()
    done, expected = gf.GradientClipper(config).clip_gradients(model), gf.GradientClipper(config).clip_gradients(whole)
    assert done["clipped_parameters"] == expected["clipped_parameters"]
    assert done["clipped_parameters"]
    assert math.isclose(done["clipped_norm"], expected["clipped_norm"], rel_tol=1e-9)
    for p, q in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.allclose(full(p.grad), q.grad, rtol=1e-9, atol=1e-13)


def values_of_unreduced_sums_are_cut_after_the_sum(_folder: Path) -> None:
    model, whole = parallel_model(), parallel_model()
    parallelize_module(model, mesh_of(dist.get_world_size()), PLAN)
    for each in (model, whole):
        each(sequence()).square().mean().backward()
        gf.GradientClipper(gf.GradientConfig(clip_type="value", max_grad_norm=0.002)).clip_gradients(each)
    for p, q in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.allclose(full(p.grad), q.grad, rtol=1e-9, atol=1e-15)


def spoil_last_rank(step: int, model: nn.Module) -> None:
    """A NaN in the shard of one rank only."""
    if step == 2 and dist.get_rank() == dist.get_world_size() - 1:
        local = next(p.grad for p in model.parameters() if p.grad.to_local().numel()).to_local()
        local.view(-1)[0] = math.nan


def all_ranks_skip_replace_and_roll_back_together(_folder: Path) -> None:
    for policy in ("skip", "zero", "replace", "rollback", "observe"):
        model = sharded(small_model(), mesh_of(dist.get_world_size()))
        config = gf.GradientConfig(nonfinite=policy, rollback_after=1, snapshot_every=1, max_grad_norm=0.5)
        optimizer = adam(model)
        weights: dict[int, list[torch.Tensor]] = {}

        def spoil(step: int, model: nn.Module, weights=weights) -> None:
            weights[step] = [full(p).clone() for p in model.parameters()]
            spoil_last_rank(step, model)

        manager = managed_run(model, own_part, config, optimizer, spoil)
        events = [(event.step, event.action, event.nan, event.layers) for event in manager.events]
        assert [(step, action) for step, action, _, _ in events][:1] == [(3, policy)]
        everyone_has(events)
        everyone_has([full(p).tolist() for p in model.parameters()] if policy != "observe" else None)
        if policy == "skip":
            assert all(torch.equal(a, b) for a, b in zip(weights[2], weights[3], strict=True))
        if policy == "rollback":  # the weights that made the last good gradients
            assert all(torch.equal(a, b) for a, b in zip(weights[1], weights[3], strict=True))


def all_ranks_raise_together(_folder: Path) -> None:
    model = sharded(small_model(), mesh_of(dist.get_world_size()))
    try:
        managed_run(model, own_part, gf.GradientConfig(nonfinite="raise"), adam(model), spoil_last_rank)
    except gf.NonFiniteGradientError as error:
        everyone_has(str(error))
    else:
        raise AssertionError("no error on this rank")
    assert_same_everywhere(gf.measure(model))  # nobody is left in a collective


def a_loss_of_one_rank_decides_nothing(_folder: Path) -> None:
    model = nn.parallel.DistributedDataParallel(small_model())
    manager, optimizer = gf.GradientManager(gf.GradientConfig(nonfinite="skip")), adam(model)
    model(own_part(batch())).square().mean().backward()
    loss = torch.tensor(math.nan if dist.get_rank() == 0 else 1.0)
    assert not manager.step(model, optimizer, loss, backward=False)["skipped"]


def an_idle_expert_moves_no_row_to_another_parameter(_folder: Path) -> None:
    """Rows and parameters stay together on a rank where a gradient in the middle is absent."""
    world, rank = dist.get_world_size(), dist.get_rank()
    mesh = mesh_of(world)
    start = torch.ones(2 * world, 2, dtype=torch.float64)
    for settings in CONFIGS.values():
        names = ("0", "expert", "4")
        model = nn.ParameterDict({n: nn.Parameter(distribute_tensor(start, mesh, [Shard(0)])) for n in names})
        whole = nn.ParameterDict({n: nn.Parameter(start.clone()) for n in names})
        for scale, name in zip((1.0, 5.0, 25.0), names, strict=True):
            gradient = scale * torch.arange(4.0 * world, dtype=torch.float64).view(-1, 2)
            if name == "expert":
                gradient[2:4] = 0.0
            whole[name].grad = gradient
            if name != "expert" or rank != 1:
                model[name].grad = distribute_tensor(gradient, mesh, [Shard(0)], src_data_rank=None)
        config = gf.GradientConfig(**settings)
        manager, other = gf.GradientManager(config), gf.GradientManager(config)
        info = manager.step(model, torch.optim.SGD(model.values(), lr=0.1), backward=False)
        expected = other.step(whole, torch.optim.SGD(whole.values(), lr=0.1), backward=False)
        everyone_has(info["clipping"])
        assert math.isclose(info["clipping"]["clipped_norm"], expected["clipping"]["clipped_norm"], rel_tol=1e-9)
        for name in names:
            own = model[name].grad
            assert (own is None) == (name == "expert" and rank == 1)
            if own is not None:
                theirs = whole[name].grad.chunk(world)[rank]
                assert torch.allclose(own.to_local(), theirs, rtol=1e-9), (settings, name)


def stages_are_clipped_by_their_common_norm(_folder: Path) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    layer = nn.Linear(2, 1, bias=False).double()
    layer.weight.grad = torch.full((1, 2), float(rank + 1), dtype=torch.float64)
    model, optimizer = nn.ModuleDict({f"stage{rank}": layer}), torch.optim.SGD(layer.parameters(), lr=0.0)
    manager = gf.GradientManager(gf.GradientConfig(max_grad_norm=1.0), process_group=dist.new_group(list(range(world))))
    with manager.attach(model, optimizer):
        optimizer.step()
    norm = math.sqrt(2 * sum((r + 1) ** 2 for r in range(world)))
    assert math.isclose(manager.last_step["clipping"]["total_norm"], norm)
    assert torch.allclose(layer.weight.grad, torch.full((1, 2), (rank + 1) / norm, dtype=torch.float64))
    layer.weight.grad = torch.full((1, 2), math.nan if rank == 0 else 1.0, dtype=torch.float64)
    manager.config.nonfinite = "skip"
    info = manager.step(model, optimizer, backward=False)
    assert info["skipped"]
    assert layer.weight.grad is None


# ---- watching -------------------------------------------------------------------------------------------------------


def train(model: nn.Module, optimizer, x_of, steps: int = STEPS, clip: float | None = None) -> int:
    """Train, and count the collectives of clipping and stepping; those of the model itself are none of our business."""
    count = 0
    for step in range(steps):
        optimizer.zero_grad()
        model(x_of(batch(step))).square().mean().backward()
        with CommDebugMode() as comm:
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        count += collectives(comm)
    return count


def watching_a_sharded_model_writes_the_run_of_one_process(folder: Path) -> None:
    first = dist.get_rank() == 0
    for clip in (None, 0.05):
        alone, together = small_model(), sharded(small_model(), mesh_of(dist.get_world_size()))
        name = f"{dist.get_world_size()}-{clip}"
        single = folder / f"alone-{name}-{dist.get_rank()}"
        one, several = adam(alone), adam(together)
        with gf.watch(alone, one, layers_every=2) as expected:
            about = {"parameters": expected._known.described, "settings": {}}
            expected._recorder.writer = RunWriter(single, about)  # on every rank
            train(alone, one, lambda x: x, clip=clip)
        with gf.watch(together, several, run=folder / name, layers_every=2) as flow:
            train(together, several, own_part, clip=clip)
        assert_same_table(flow.table, expected.table, rel=1e-6)
        assert (flow.clipped_table is None) == (clip is None)
        if clip is not None:
            assert_same_table(flow.clipped_table, expected.clipped_table, rel=1e-6)
        assert np.allclose(flow.history["norm"], expected.history["norm"], rtol=1e-6)
        everyone_has(flow.history["norm"].tolist())
        assert (flow.path is not None) == first
        if not first:
            continue
        run, reference = gf.load_run(folder / name), gf.load_run(single)
        # What is seen of a loop and said of an optimizer is that of one rank.
        told = ("seen", "looked", "about")
        written = [[r for r in each.records if r["kind"] not in told] for each in (run, reference)]
        assert [r["kind"] for r in written[0]] == [r["kind"] for r in written[1]]
        for ours, theirs in zip(*written, strict=True):
            if ours["kind"] == "look" and ours["step"] < STEPS:  # the last is completed by the first rank alone
                assert np.allclose(ours["update_ratio"], theirs["update_ratio"], rtol=1e-4)
                assert np.allclose(ours["norm"], theirs["norm"], rtol=1e-5)


def two_collectives_per_recorded_step_and_none_on_others(_folder: Path) -> None:
    for clip, every in ((None, 1), (0.05, 1), (None, 2)):
        counts = []
        for watched in (False, True):
            model = sharded(small_model(), mesh_of(dist.get_world_size()))
            optimizer = adam(model)
            flow = gf.watch(model, optimizer, every=every, layers_every=1) if watched else None
            counts.append(train(model, optimizer, own_part, clip=clip))
            if flow is not None:
                flow.close()
        assert counts[1] - counts[0] == 2 * STEPS // every


def none_at_all_for_replicas(folder: Path) -> None:
    counts = []
    for watched in (False, True):
        model = nn.parallel.DistributedDataParallel(small_model())
        optimizer = adam(model)
        run = folder / f"ddp-{dist.get_world_size()}"
        manager = gf.GradientManager(gf.GradientConfig(max_grad_norm=0.01))
        flow = gf.watch(model, optimizer, run=run, layers_every=1, manager=manager) if watched else None
        counts.append(train(model, optimizer, own_part))
        if flow is not None:
            flow.close()
            assert (flow.path is not None) == (dist.get_rank() == 0)
            assert_same_everywhere(flow.table)
            everyone_has([full(p).tolist() for p in model.parameters()])
    assert counts[0] == counts[1]


def a_watch_that_fails_on_one_rank_still_takes_part(_folder: Path) -> None:
    model = sharded(small_model(), mesh_of(dist.get_world_size()))
    optimizer = adam(model)
    with warnings.catch_warnings(), gf.watch(model, optimizer, layers_every=1) as flow:
        warnings.simplefilter("ignore", gf.GradientFlowWarning)
        if dist.get_rank() == 1:
            flow._steps._record = lambda *_: 1 / 0
        train(model, optimizer, own_part)
        assert len(flow.history) == (0 if dist.get_rank() == 1 else STEPS)
    assert_same_everywhere(gf.measure(model))


def a_manager_beside_a_watch_uses_its_table(_folder: Path) -> None:
    model = sharded(small_model(), mesh_of(dist.get_world_size()))
    optimizer, manager = adam(model), gf.GradientManager(gf.GradientConfig(max_grad_norm=0.01, nonfinite="skip"))
    with gf.watch(model, optimizer, manager=manager, every=2) as flow:
        optimizer.zero_grad()
        model(own_part(batch())).square().mean().backward()
        spoil_last_rank(2, model)
        with CommDebugMode() as comm:
            optimizer.step()
        assert collectives(comm) == 2
        assert train(model, optimizer, own_part, steps=1) == 2
    everyone_has([str(event) for event in manager.events])
    assert manager.events[0].action == "skip"
    assert flow.history["clipped_norm"].tolist() == [0.01]


def the_rank_that_a_nan_came_from_is_named(_folder: Path) -> None:
    model = nn.parallel.DistributedDataParallel(small_model())
    bad = dist.get_world_size() - 1
    optimizer, manager = adam(model), gf.GradientManager(gf.GradientConfig(nonfinite="skip"))
    with gf.watch(model, optimizer, manager=manager, trace_ranks=True) as flow:
        for step in range(3):
            x = own_part(batch(step)).clone()
            if step == 1 and dist.get_rank() == bad:
                x[0, 0] = math.inf
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            assert [r.rank for r in flow._steps.bad_ranks] == ([bad] if step == 1 else [])
    (event,) = manager.events
    assert (event.ranks, event.action) == ((bad,), "skip")
    assert f"from rank {bad}" in str(event)
    assert not any(p._backward_hooks for p in model.parameters())
    manager = gf.GradientManager(gf.GradientConfig(nonfinite="skip"))
    with manager.attach(model, optimizer, trace_ranks=True):
        optimizer.zero_grad()
        model(own_part(batch()) * (math.nan if dist.get_rank() == 0 else 1.0)).square().mean().backward()
        optimizer.step()
    assert manager.events[0].ranks == (0,)


def replicas_that_differ_are_reported(_folder: Path) -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    model = nn.parallel.DistributedDataParallel(small_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with gf.watch(model, optimizer, check_ranks=True, layers_every=1) as flow:
            train(model, optimizer, own_part, steps=2)
            assert flow.rank_report.differing == ()
            assert len(flow.rank_report.seconds) == world
            assert flow.rank_report.slowest is not None
            optimizer.zero_grad()
            # The last rank goes past the wrapper: its gradient is its own.
            with model.no_sync():
                model(batch() * (1.0 if rank < world - 1 else 1.01)).square().mean().backward()
            optimizer.step()
            assert flow.rank_report.differing == (tuple(range(2)) if world == 2 else (3,))
    assert [str(w.message) for w in caught if "are not those of the others" in str(w.message)]


def an_exception_between_steps_leaves_no_hook(_folder: Path) -> None:
    model = sharded(small_model(), mesh_of(dist.get_world_size()))
    optimizer = adam(model)
    try:
        with gf.watch(model, optimizer, check_ranks=True):
            train(model, optimizer, own_part, steps=1)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert not optimizer._optimizer_step_pre_hooks
    assert copy.deepcopy(optimizer.state_dict())
    assert not any(getattr(p, "_backward_hooks", None) for p in model.parameters())


def watching_a_replica_of_shards_agrees(_folder: Path) -> None:
    mesh = two_dimensional(("dp", "tp"))
    model = parallel_model()
    parallelize_module(model, mesh["tp"], PLAN)
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, layers_every=1) as flow:
        for _ in range(2):
            optimizer.zero_grad()
            model(sequence()).square().mean().backward()
            optimizer.step()
    assert len(flow.history) == 2
    assert_same_everywhere(flow.table)
