"""Real process groups for tests: a few processes on 127.0.0.1 that run named checks one after another."""

import contextlib
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

PATIENCE = 60
"""Seconds that a rank waits for another in a collective before both fail."""
DEADLINE = 240
"""Seconds for all checks of a group, on a busy machine."""


def run_checks(module: str, names: list[str], ranks: int) -> dict[str, str]:
    """Run the checks on so many ranks and return what went wrong, by check; '' where nothing did.

    All checks share one process group: starting one costs far more than any of them. A check that fails on one rank
    fails for all; what comes after a hang is reported as not run.
    """
    # A server that has imported torch once forks the ranks: quicker than importing it for each.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        queue = context.Queue()
        workers = [
            context.Process(target=_work, args=(rank, ranks, folder, module, names, queue), daemon=True)
            for rank in range(ranks)
        ]
        for worker in workers:
            worker.start()
        try:
            missing = {(name, rank) for name in names for rank in range(ranks)}
            while missing:
                name, rank, problem = queue.get(timeout=DEADLINE)
                missing.discard((name, rank))
                results[name] = results.get(name, "") + (f"rank {rank}: {problem}\n" if problem else "")
        except Exception:
            for name, rank in missing:
                results[name] = results.get(name, "") + f"rank {rank}: did not come to an end\n"
        finally:
            for worker in workers:
                worker.join(timeout=10)
                if worker.is_alive():
                    worker.kill()
    return results


def _work(rank: int, ranks: int, folder: str, module: str, names: list[str], queue) -> None:
    import importlib
    import logging
    import warnings

    import torch
    import torch.distributed as dist

    warnings.filterwarnings("ignore", message=".*returned a view tensor.*")
    logging.getLogger("gradient_flow").setLevel(logging.ERROR)  # planted faults are no news
    torch.set_num_threads(1)
    checks = importlib.import_module(module)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=PATIENCE),
    )
    hung = False
    for name in names:
        problem = "" if not hung else "not run: a check before it hung"
        if not hung:
            try:
                check: Callable[[Path], None] = getattr(checks, name)
                torch.manual_seed(0)
                check(Path(folder))
            except BaseException:
                problem = traceback.format_exc(limit=-6)
            try:
                dist.monitored_barrier(timeout=timedelta(seconds=PATIENCE))
            except RuntimeError as trouble:
                hung, problem = True, problem or f"left alone: {trouble}"
        queue.put((name, rank, problem))
    queue.close()
    queue.join_thread()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
