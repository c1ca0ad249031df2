"""Runs cases, in this process or in several, and keeps what came of each."""

from __future__ import annotations

import multiprocessing
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any

import torch

from validation.adapter import findings, findings_in_training
from validation.case import Case, Evidence, Program, Setup, layers_of
from validation.score import Finding, Record
from validation.zoo import CASES

Job = tuple[str, int]
"""Name of a case, seed."""


def measure_in_training(job: Job, longer: int = 1) -> Record:
    """The same as a training loop under watch, a set-up for so many times its steps."""
    return measure(job, partial(findings_in_training, longer=longer))


def measure(job: Job, read: Callable[[Case, Setup | Program], list[Finding]] | None = None) -> Record:
    """Build one case and let the tool look at it; a crash of either is a result too."""
    name, seed = job
    case = CASES[name]
    known: dict[str, Any] = _known(case, seed)
    started = time.perf_counter()
    try:
        setup = case.make(seed)
        known["layers"] = layers_of(setup.model)
        found = tuple((read or findings)(case, setup))
        return Record(**known, findings=found, seconds=time.perf_counter() - started)
    except Exception:  # whatever a tool does must not end the validation of the others
        return Record(**known, error=traceback.format_exc(), seconds=time.perf_counter() - started)


def _known(case: Case, seed: int) -> dict[str, Any]:
    return {
        "case": case.name,
        "family": case.family,
        "half": case.half,
        "fault": case.fault,
        "label": case.label,
        "also": case.also,
        "cause": case.cause,
        "place": case.layer,
        "seed": seed,
    }


def verify(job: Job) -> tuple[Job, Evidence]:
    """Measure, without the tool, that a label is true."""
    case = CASES[job[0]]
    try:
        return job, case.proof(case, job[1])
    except Exception:  # reported by name with the others
        return job, Evidence(False, traceback.format_exc().strip().splitlines()[-1])


def prepare() -> None:
    """One thread per process: these models are small, and two processes share two cores."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def run(work: Callable[[Job], Any], jobs: Sequence[Job], workers: int) -> Iterator[Any]:
    """Yield the result of each job as it comes."""
    if workers <= 1:
        prepare()
        yield from map(work, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=prepare) as pool:
        for future in as_completed([pool.submit(work, job) for job in jobs]):
            yield future.result()
