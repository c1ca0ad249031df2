"""What ranks check on a device that is made up: rows are packed and reduced there. Run by `test_distributed.py`.

Most are the checks of host memory once more: the same tables, decisions and failures.
"""

import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import checks_acting
import checks_measure
import gradient_flow as gf
from checks_measure import batch, mesh_of, own_part, sharded, small_model
from gradient_flow.capture import arrivals
from gradient_flow.flow.recorder import MOST_OPEN
from made_up_device import make_up, note_reads


@contextmanager
def made_up_device():
    with pytest.MonkeyPatch.context() as patch:
        yield make_up(patch)


def tables_are_those_of_host_memory(folder: Path) -> None:
    for check in (
        checks_measure.fsdp_table_is_that_of_one_process,
        checks_measure.hsdp_counts_replicas_once,
        checks_measure.tensor_parallel_with_unreduced_sums,
        checks_measure.fsdp_of_tensor_parallel,
        checks_measure.any_mix_of_placements_and_meshes,
        checks_measure.nan_on_one_rank_is_counted_on_all,
        checks_measure.nan_in_one_of_several_copies_is_not_lost,
        checks_measure.idle_expert_on_one_rank_is_zeros_there,
        checks_measure.tied_weights_count_once,
        checks_measure.pipeline_stages_are_one_model,
    ):
        with made_up_device():
            check(folder)


def decisions_are_those_of_host_memory(folder: Path) -> None:
    for check in (
        checks_acting.every_clip_of_a_sharded_model_is_that_of_one_process,
        checks_acting.all_ranks_skip_replace_and_roll_back_together,
        checks_acting.all_ranks_raise_together,
        checks_acting.a_loss_of_one_rank_decides_nothing,
        checks_acting.an_idle_expert_moves_no_row_to_another_parameter,
        checks_acting.a_manager_beside_a_watch_uses_its_table,
    ):
        with made_up_device():
            check(folder)


def runs_are_those_of_host_memory(folder: Path) -> None:
    for check in (
        checks_acting.watching_a_sharded_model_writes_the_run_of_one_process,
        checks_acting.two_collectives_per_recorded_step_and_none_on_others,
    ):
        with made_up_device():
            check(folder)


def a_table_of_shards_is_not_waited_for(_folder: Path) -> None:
    for mesh in (mesh_of(dist.get_world_size()), checks_measure.two_dimensional(("replicate", "shard"))):
        model = sharded(small_model(), mesh)
        model(own_part(batch())).square().mean().backward()
        checks_acting.spoil_last_rank(2, model)
        expected = gf.measure(model)
        with made_up_device():
            table = gf.measure(model)
            assert not table.ready
            np.testing.assert_allclose(table.rows, expected.rows, rtol=1e-12)
            everyone = [table.total.finite_part.norm]
        checks_acting.everyone_has(everyone)


def a_watched_step_of_shards_reads_nothing(_folder: Path) -> None:
    for clip in (None, 0.05):
        with pytest.MonkeyPatch.context() as patch:
            device, reads = make_up(patch), note_reads(patch)
            model = sharded(small_model(), mesh_of(dist.get_world_size()))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            with gf.watch(model, optimizer, looks=False, layers_every=10_000) as flow:
                for step in range(MOST_OPEN + 2):
                    optimizer.zero_grad()
                    model(own_part(batch(step))).square().mean().backward()
                    if clip is not None:
                        nn.utils.clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                    if step == 1:  # the first has a look, which the second completes
                        device.catch_up()
                        reads.clear()
                        before = device.synchronized, arrivals.WAITS.count
                assert reads == [], reads
                assert (device.synchronized, arrivals.WAITS.count) == before
            assert len(flow.history) == MOST_OPEN + 2
            clipped = flow.history["clipped_norm"] if clip is not None else []
            assert all(norm <= clip * (1 + 1e-6) for norm in clipped)


def a_rank_that_fails_takes_the_others_with_it_in_the_same_step(_folder: Path) -> None:
    for waits in (False, True):
        _fail_together(waits=waits)


def _fail_together(*, waits: bool) -> None:
    """With `waits` the last rank lacks a gradient in that step, so that it has to ask the others for it."""
    with pytest.MonkeyPatch.context() as patch:
        make_up(patch)
        model = sharded(small_model(), mesh_of(dist.get_world_size()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        flow = gf.watch(model, optimizer, looks=False, layers_every=10_000)
        ended = None
        for step in range(2 * MOST_OPEN + 2):
            optimizer.zero_grad()
            model(own_part(batch(step))).square().mean().backward()
            if waits and step == 3 and dist.get_rank() == dist.get_world_size() - 1:
                next(model.parameters()).grad = None
            with pytest.MonkeyPatch.context() as broken, _warnings_allowed():
                if step == 3 and dist.get_rank() == 0:
                    broken.setattr(sys.modules["gradient_flow.table.measure"], "_rows", _fails)
                optimizer.step()
            if flow._guard.ended and ended is None:
                ended = step
        with _warnings_allowed():
            flow.close()
        assert ended == 3 + MOST_OPEN
        checks_acting.everyone_has(ended)


def _fails(*_args, **_kwargs):
    raise RuntimeError("out of memory")


@contextmanager
def _warnings_allowed():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gf.GradientFlowWarning)
        yield
