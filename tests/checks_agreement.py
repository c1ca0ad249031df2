"""What ranks check about agreeing on looks: none looks alone, and none waits. Run by `test_distributed.py`."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradient_flow as gf
from checks_device import made_up_device
from checks_looks import collectives, plenty_of_time
from gradient_flow.diagnosis.optimizer.record import OptimizerFacts
from gradient_flow.flow.recorder import MOST_OPEN
from gradient_flow.looks.board import Board
from gradient_flow.looks.triggers import LOSS_STALLED, RATE_CHANGED
from gradient_flow.record.plain import from_plain

SPIKED, NOT_FINITE = "the norm spiked", "a gradient was not finite"


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 1))


def sharded() -> nn.Module:
    return fully_shard(net())


def replicated() -> nn.Module:
    return DistributedDataParallel(net())


@plenty_of_time()
def train(model: nn.Module, flow_of, steps: int, each=lambda *_: 1.0) -> gf.Flow:
    """`each` step may change something, and says what the loss of this rank is multiplied with."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    flow = flow_of(model, optimizer)
    for step in range(1, steps + 1):
        factor = each(step, optimizer, flow)
        optimizer.zero_grad()
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
        (factor * (model(x) - 1).square().mean()).backward()
        optimizer.step()
    if flow is not None:
        flow.close()
    return flow


def watched(**settings):
    return lambda model, optimizer: gf.watch(model, optimizer, **{"budget": 1.0, **settings})


def last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def told(flow: gf.Flow) -> dict[int, str]:
    """Steps that were looked at, and why: the same on every rank."""
    mine = {event.step: event.data["because"] for event in flow.run.events if event.kind == "looked"}
    everyone: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (mine, flow.looks.dropped, flow.looks.reason))
    assert all(other == everyone[0] for other in everyone), everyone
    return mine


def raise_rate_of_last_rank(step: int, optimizer: torch.optim.Optimizer, _flow) -> float:
    if step == 6 and last():
        optimizer.param_groups[0]["lr"] *= 10
    return 1.0


def spend_on_last_rank(step: int, _optimizer, flow) -> float:
    """After the third look one rank has spent more than there is time."""
    if step == 6 and last():
        flow.looks.agreement.budget.seconds += 1e12
    return 1.0


# ---- sharded: wishes ride on the collectives of a recorded step ------------------------------------------------------


def a_trigger_on_one_sharded_rank_makes_all_look(_folder: Path) -> None:
    """The rate changes with step 6: that is said with step 7 and looked at in step 8."""
    flow = train(sharded(), watched(looks=[3]), 12, raise_rate_of_last_rank)
    assert told(flow) == {3: "schedule", 8: RATE_CHANGED}
    looked = [event.data for event in flow.run.events if event.kind == "looked"]
    assert [data.get("asked_by") for data in looked] == [None, 1]


def a_trigger_of_all_is_one_look(_folder: Path) -> None:
    """A spike is in the norm that all share."""
    flow = train(sharded(), watched(looks=[3]), 30, lambda step, *_: 1e3 if step == 25 else 1.0)
    assert told(flow) == {3: "schedule", 27: SPIKED}
    (asked,) = (event.data for event in flow.run.events if event.kind == "looked" and event.step == 27)
    assert asked["asked_by"] == dist.get_world_size()


def a_budget_that_one_sharded_rank_used_up_drops_looks_of_all(_folder: Path) -> None:
    """It is used up in step 6, after that look was begun: said with step 7, so step 8 is the first that is dropped."""
    flow = train(sharded(), watched(looks=1), 12, spend_on_last_rank)
    assert list(told(flow)) == [3, 4, 5, 6, 7]
    assert flow.looks.dropped == 6  # with that of step 13, which never came
    dropped = next(event for event in flow.run.events if event.kind == "looks_dropped")
    assert dropped.data == {"dropped": 6, "dropped_steps": [8, 9, 10, 11, 12, 13]}


def no_budget_leaves_the_first_three(_folder: Path) -> None:
    assert list(told(train(sharded(), watched(looks=1, budget=1e-15), 9))) == [3, 4, 5]
    # Replicas read the board once in 16 steps when it says so: here after the third.
    assert list(told(train(replicated(), watched(looks=1, budget=1e-15), 9))) == [3, 4, 5]


def weights_that_are_lost_are_not_looked_at(_folder: Path) -> None:
    """On one rank a NaN gets into the weights of all."""

    def spoil(step: int, *_) -> float:
        return float("nan") if step == 6 and last() else 1.0

    for make in (sharded, replicated):
        flow = train(make(), watched(looks=[3, 9]), 12, spoil)
        assert told(flow) == {3: "schedule"}


def weights_that_survive_a_bad_step_are(_folder: Path) -> None:
    def spoil(step: int, *_) -> float:
        return float("nan") if step == 6 and last() else 1.0

    def guarded(model, optimizer):
        manager = gf.GradientManager(gf.GradientConfig(nonfinite="skip", max_grad_norm=1e9))
        return gf.watch(model, optimizer, looks=[3], budget=1.0, manager=manager)

    assert told(train(sharded(), guarded, 12, spoil)) == {3: "schedule", 8: NOT_FINITE}
    assert told(train(replicated(), guarded, 12, spoil)) == {3: "schedule", 7: NOT_FINITE}


def pipeline_stages_agree_in_their_group(_folder: Path) -> None:
    """Ranks with different parameters; the last has another loss, and its rate changes."""
    stage = nn.Sequential()
    stage.add_module(f"stage{dist.get_rank()}", nn.Linear(6, 1))
    flow = train(stage, watched(looks=[3], process_group=dist.group.WORLD), 12, raise_rate_of_last_rank)
    assert told(flow) == {3: "schedule", 8: RATE_CHANGED}


def the_number_of_collectives_stays(_folder: Path) -> None:
    """Two more with every recorded step of a sharded model, none for replicas, whatever is agreed on."""
    for make, ours in ((sharded, 2), (replicated, 0)):
        counts = []
        for flow_of in (lambda *_: None, watched(looks=1)):
            model, before = make(), collectives()
            train(model, flow_of, 10)
            counts.append(collectives() - before)
        assert counts[1] - counts[0] == 10 * ours, counts


def a_rank_whose_looks_fail_leaves_the_others_theirs(_folder: Path) -> None:
    """It says nothing any more, also not that its budget is used up."""

    def fail(step: int, _optimizer, flow) -> float:
        if step == 4 and last():
            flow.looks.agreement.budget.seconds += 1e12
            flow.looks._fail(RuntimeError("on purpose"))
        return 1.0

    flow = train(sharded(), watched(looks=1), 9, fail)
    taken = [event.step for event in flow.run.events if event.kind == "looked"]
    assert taken == ([3] if last() else [*range(3, 10)]), taken


def words_from_a_device_are_waited_for_alike(_folder: Path) -> None:
    """What was said with step 7 is known by all after eight more exchanges."""
    with made_up_device():
        flow = train(sharded(), watched(looks=[3]), 24, raise_rate_of_last_rank)
    looks = told(flow)
    at = next(step for step, why in looks.items() if why == RATE_CHANGED)
    assert 8 + MOST_OPEN <= at <= 8 + 2 * MOST_OPEN, looks  # the record of step 6 may arrive late as well


# ---- replicas: nothing is exchanged, and some ranks may not be watched -----------------------------------------------


def what_replicas_share_asks_all_of_them(_folder: Path) -> None:
    def change(step: int, optimizer, _flow) -> float:
        if step == 6:
            optimizer.param_groups[0]["lr"] *= 10
        return 1e3 if step == 26 else 1.0

    assert told(train(replicated(), watched(looks=[3]), 32, change)) == {3: "schedule", 7: RATE_CHANGED, 27: SPIKED}


def a_budget_that_one_replica_used_up_drops_looks_of_all(_folder: Path) -> None:
    flow = train(replicated(), watched(looks=1), 30, spend_on_last_rank)
    # Begun before it was used up: 6; planned before the word was left: 7.
    assert list(told(flow)) == [3, 4, 5, 6, 7]
    assert flow.looks.dropped == 24  # with that of step 31, which never came


def a_loss_that_stalls_on_one_replica_asks_all(_folder: Path) -> None:
    """Found with the 200th loss of that rank, told with the next round number of plans, once."""

    def flat(step: int, _optimizer, flow) -> float:
        flow.log(loss=1.0 + step / 1e3 if last() else 1000.0 / step)
        return 1.0

    looks = told(train(replicated(), watched(looks=[3]), 330, flat))
    assert looks == {3: "schedule", 303: LOSS_STALLED}, looks


def the_first_rank_may_be_watched_alone(_folder: Path) -> None:
    """Nothing waits for the others, and the board has the word of one."""
    watches = dist.get_rank() == 0
    flow_of = watched(looks=1) if watches else lambda *_: None

    def spend(step: int, _optimizer, flow) -> float:
        if step == 6:
            flow.looks.agreement.budget.seconds += 1e12
        return 1.0

    flow = train(replicated(), flow_of, 12, spend if watches else lambda *_: 1.0)
    if watches:
        assert [event.step for event in flow.run.events if event.kind == "looked"] == [3, 4, 5, 6, 7]


@plenty_of_time()
def a_replica_that_stops_early_is_not_waited_for(_folder: Path) -> None:
    """Unequal numbers of steps under `join`, and a flow that is closed on one rank only."""
    model = replicated()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    flow = gf.watch(model, optimizer, looks=1, budget=1.0)
    with model.join():
        for _ in range(5 if last() else 12):
            optimizer.zero_grad()
            model(torch.ones(2, 6)).square().mean().backward()
            optimizer.step()
    flow.close()
    assert flow.steps == (5 if last() else 12)
    assert flow.looks.taken == flow.steps - 2

    def stop(step: int, _optimizer, flow) -> float:
        if step == 8 and last():
            flow.close()
        return 1.0

    flow = train(replicated(), watched(looks=1), 12, stop)
    assert flow.looks.taken >= (10 if not last() else 5)


def the_state_of_optimizers_is_looked_at_in_the_same_steps(_folder: Path) -> None:
    """Whatever the clock of one rank says, and its norm, which is that of its own part."""

    def spend(step: int, _optimizer, flow) -> float:
        if step == 6 and last():
            flow._steps.inside._state.seconds += 1e12
        return 1e3 if step == 42 and last() else 1.0

    for make in (sharded, replicated):
        flow = train(make(), watched(looks=True), 52, spend)
        facts = from_plain(OptimizerFacts, flow.run.found("optimizer")[-1][1])
        assert [look.step for look in facts.looks] == [3, 4, 6, 9, 12, 18, 25, 35, 50]


def a_board_never_waits(_folder: Path) -> None:
    board, other = Board(["a", "b"]), Board([f"of rank {dist.get_rank()}"])
    assert not board.has("word", 7)
    dist.barrier()
    if last():
        board.put("word", 7)
        other.put("word", 7)
    dist.barrier()
    assert board.has("word", 7)
    assert not board.has("word", 8)
    assert not board.has("word", 7 + 64)  # the same key
    assert other.has("word", 7) == last()
    again = Board(["a", "b"])
    assert not again.has("word", 7)
    dist.barrier()
