"""What watching costs with several processes. `python benchmarks/distributed.py [--scaling] [--quick] [--save]`.

Two processes train a 14 M parameter GPT under DDP and under FSDP2, watched and not, in turn. With `--scaling` the two
collectives of a recorded step are timed for 10² to 10⁵ tensors on 2 and 4 processes, and compared with the cost model
of `docs/scaling.md`.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import queue
import statistics
import sys
import tempfile
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

import gradient_flow as gf
from models import GPT, gpt_loss
from timing import Report

QUICK = "--quick" in sys.argv
ROUNDS = 3 if QUICK else 25
TENSORS = (100, 1_000, 10_000) if QUICK else (100, 1_000, 10_000, 100_000)
BYTES_PER_TENSOR = 15 * 8
"""Eleven sums, three extremes and a size, in double precision."""


def start(work, world: int, *arguments):
    """Run `work(rank, world, …)` in processes of their own and return what the first one returns."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answers = context.Queue()
        workers = [
            context.Process(target=_in_group, args=(work, rank, world, folder, answers, arguments))
            for rank in range(world)
        ]
        for worker in workers:
            worker.start()
        answer = None
        while answer is None:
            with contextlib.suppress(queue.Empty):
                answer = answers.get(timeout=1)
            if answer is None and any(worker.exitcode for worker in workers):
                raise SystemExit("a process failed; its traceback is above")
        for worker in workers:
            worker.join(timeout=60)
            if worker.is_alive():
                worker.kill()
    return answer


def _in_group(work, rank, world, folder, answers, arguments):
    torch.set_num_threads(1)  # one core each, as the machine of these benchmarks has two
    settings = {"rank": rank, "world_size": world, "timeout": timedelta(seconds=300)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", **settings)
    result = work(rank, world, *arguments)
    if rank == 0:
        answers.put(result)
    dist.barrier()
    dist.destroy_process_group()


def wrapped(kind: str) -> torch.nn.Module:
    model = GPT(layers=1, width=64, heads=4, vocabulary=256) if QUICK else GPT()
    if kind == "DDP":
        return torch.nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def training(rank: int, world: int, kind: str) -> dict[str, float]:
    """Seconds of a step by candidate, and collectives of clip and step when it is recorded."""
    from torch.distributed.tensor.debug import CommDebugMode

    torch.manual_seed(0)
    steps, counts = {}, {}
    for name in ("unwatched", "watched"):
        torch.manual_seed(0)
        model = wrapped(kind)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        flow = gf.watch(model, optimizer) if name == "watched" else None

        def step(model=model, optimizer=optimizer, _keep=flow) -> None:
            optimizer.zero_grad()
            gpt_loss(model, vocabulary=256 if QUICK else 8192).backward()
            optimizer.step()

        step()
        with CommDebugMode() as comm:
            optimizer.step()
        steps[name], counts[name] = step, comm.get_total_counts()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            dist.barrier()
            begin = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - begin)
    result = {name: statistics.median(values) for name, values in times.items()}
    return {**result, "collectives": counts["watched"] - counts["unwatched"]}


def merging(rank: int, world: int) -> dict[int, float]:
    """Seconds of the two collectives of a recorded step, by number of tensors."""
    from gradient_flow.table.across_ranks import Share, merged
    from gradient_flow.table.columns import COLUMNS, Thresholds

    seconds = {}
    for tensors in TENSORS:
        names = tuple(map(str, range(tensors)))
        share = Share(names, np.ones((tensors, len(COLUMNS))), np.full(tensors, float(world)))
        taken = []
        for _ in range(4 if QUICK else 15):
            dist.barrier()
            begin = time.perf_counter()
            merged([share], dist.group.WORLD, torch.device("cpu"), Thresholds())
            taken.append(time.perf_counter() - begin)
        seconds[tensors] = statistics.median(taken)
    return seconds


def modelled(world: int, tensors: int, latency: float, per_byte: float) -> float:
    """Two all-reduces, each of 2·log2(ranks) messages and of twice its bytes through each rank."""
    rounds = 2 * 2 * math.log2(world) * latency
    return rounds + 2 * (world - 1) / world * tensors * BYTES_PER_TENSOR * per_byte


def fitted(measured: dict[int, float], world: int) -> tuple[float, float]:
    """Latency and time per byte that fit these times best, in relative terms."""
    rows = [(4 * math.log2(world) / t, 2 * (world - 1) / world * n * BYTES_PER_TENSOR / t) for n, t in measured.items()]
    (latency, per_byte), *_ = np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)
    return float(latency), float(per_byte)


def say_scaling(report: Report) -> None:
    report.say("the two collectives of a recorded step, gloo over the loopback device; model fitted to 2 processes")
    latency = per_byte = 0.0
    for world in (2, 4):
        measured = start(merging, world)
        if world == 2:
            latency, per_byte = fitted(measured, world)
            report.say(f"  latency {latency * 1e6:.0f} µs per message, {1e-9 / per_byte:.2f} GB/s with packing")
        for tensors, seconds in measured.items():
            expected = modelled(world, tensors, latency, per_byte)
            size = tensors * BYTES_PER_TENSOR / 1e6
            report.say(
                f"  {world} processes {tensors:>7} tensors {size:>8.3f} MB   measured {seconds * 1e3:>9.3f} ms   "
                f"model {expected * 1e3:>9.3f} ms   ratio {seconds / expected:.2f}"
            )


def main() -> None:
    report = Report("distributed_scaling" if "--scaling" in sys.argv else "distributed")
    if "--scaling" in sys.argv:
        say_scaling(report)
        report.close()
        return
    for kind, most in (("DDP", 0), ("FSDP2", 2)):
        result = start(training, 2, kind)
        report.say(f"{kind}, 2 processes of one thread, every step recorded, {ROUNDS} rounds in turn")
        report.say(f"  unwatched {result['unwatched'] * 1e3:.2f} ms, watched {result['watched'] * 1e3:.2f} ms")
        report.figure("watched step over unwatched step", result["watched"] / result["unwatched"], 1.02)
        report.figure("collectives per recorded step", result["collectives"], most)
    report.close()


if __name__ == "__main__":
    main()
