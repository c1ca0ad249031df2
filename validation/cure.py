"""`python -m validation.cure`: how often what `gf.cure` chooses really helps, beside the textbook and beside chance.

A case counts if it is sick, its set-up can be replayed, and its own recorded repair (the healthy twin) reaches a lower
loss. The tool sees the case for a trial of `--steps` steps. Then every candidate trains the case for ten times as long
on batches that nobody has seen: what `cure` chose, the first advice that can be done mechanically, five treatments
drawn at random, and no treatment, three times for the noise.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from gradient_flow.diagnosis.treatment import Treatment
from validation.case import Case, Program, Setup, call
from validation.runner import Job, run
from validation.score import Share, share
from validation.zoo import CASES

STEPS = 24
"""Length of a full trial."""
LONGER = 10
"""Times the length of a trial after which success is judged."""
SKIPPED = 100
"""Batches that are left out before the final training: those that the trials may have seen."""
FRESH = 16
"""Batches that the final loss is taken on."""
REPEATS = 3
"""Final trainings without treatment."""
BUDGET = 1e4
"""Seconds: the score must not depend on who else uses the machine."""
DRAWS = 5
"""Random treatments per case."""
MARGIN = 0.02
"""Share of the loss that counts as no difference."""
RATE = 1e-3
TENFOLD = Treatment("learning_rate", {"factor": 10.0})
console = Console()


@dataclasses.dataclass
class Result:
    """One case: final losses by what was done to it."""

    case: str
    half: str
    family: str
    fault: str
    sick: bool
    repairable: bool = False
    untreated: list[float] = dataclasses.field(default_factory=list)
    repaired: float = math.nan
    best: str | None = None
    best_loss: float | None = None
    textbook: str | None = None
    textbook_loss: float | None = None
    gone: bool | None = None
    """Whether the best made the issue go away, as far as `cure` looked."""
    tenfold_loss: float | None = None
    """Of a rate ten times as high, whatever the case."""
    drawn: list[str] = dataclasses.field(default_factory=list)
    drawn_losses: list[float] = dataclasses.field(default_factory=list)
    cost: float = 0.0
    """Steps that the trials took, in trials."""
    seconds: float = 0.0
    error: str = ""

    def better(self, loss: float | None) -> bool:
        """Below every final loss without treatment, by more than a fiftieth of it."""
        return loss is not None and math.isfinite(loss) and loss < min(self.untreated) - self._margin

    def worse(self, loss: float | None) -> bool:
        """Above every one of them."""
        return loss is not None and not loss <= max(self.untreated) + self._margin

    @property
    def _margin(self) -> float:
        finite = [abs(loss) for loss in self.untreated if math.isfinite(loss)]
        return MARGIN * min(finite, default=0.0)


# ---- final trainings ----------------------------------------------------------------------------------------------


def final_loss(case: Case, seed: int, steps: int, treatment: Any = None, repeat: int = 0) -> float:
    """Loss on unseen batches after a long training, from the case as it is built."""
    from gradient_flow.cures.registry import do

    setup = case.make(seed)
    optimizer = optimizer_of(setup)
    torch.default_generator.manual_seed(seed)
    if treatment is not None:
        optimizer = do(treatment, setup.model, optimizer)
    for _ in range(SKIPPED + repeat * (steps + FRESH)):
        setup.input_fn()
    torch.default_generator.manual_seed(1000 + repeat)
    lost = 0
    for _ in range(steps):
        optimizer.zero_grad()
        loss = setup.loss_fn(call(setup.model, setup.input_fn()))
        if loss.requires_grad:
            loss.backward()
            optimizer.step()
        lost = 0 if math.isfinite(loss.item()) else lost + 1
        if lost == 5:
            return math.inf
    with torch.no_grad():
        losses = [setup.loss_fn(call(setup.model, batch)).item() for batch in finite_batches(setup)]
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else math.inf


def finite_batches(setup: Setup) -> Any:
    """Fresh batches; what holds NaN has no loss that could be compared."""
    count = 0
    for _ in range(10 * FRESH):
        batch = setup.input_fn()
        parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (tuple, list)) else (batch,)
        if all(bool(p.isfinite().all()) for p in parts if isinstance(p, torch.Tensor)):
            yield batch
            count += 1
        if count == FRESH:
            return


def optimizer_of(setup: Setup) -> torch.optim.Optimizer:
    """The set-up's own, or the Adam that `cure` takes without one."""
    trained = [parameter for parameter in setup.model.parameters() if parameter.requires_grad]
    return setup.optimizer or torch.optim.Adam(trained, lr=RATE)


# ---- one case -----------------------------------------------------------------------------------------------------


def usable(case: Case) -> bool:
    """Set-ups with one loss: a program hides its batches in its loop, and a game has several losses."""
    return case.family not in ("loop", "game") and case.analyzer != "game"


def measure(job: Job, steps: int = STEPS) -> Result:
    """Try, choose, and see what came of it after ten times as long."""
    import gradient_flow as gf

    name, seed = job
    case = CASES[name]
    result = Result(name, case.half, case.family, case.fault, case.sick)
    long = LONGER * steps
    started = time.perf_counter()
    try:
        setup = case.make(seed)
        if isinstance(setup, Program) or not any(p.requires_grad for p in setup.model.parameters()):
            result.error = "nothing that could be trained"
            return result
        if case.sick:
            result.untreated = [final_loss(case, seed, long, None, repeat) for repeat in range(REPEATS)]
            result.repaired = final_loss(case.control, seed, long) if case.control is not None else math.inf
            result.repairable = result.better(result.repaired)
            if not result.repairable:
                return result
        before = time.perf_counter()
        found = gf.cure(
            setup.model,
            setup.input_fn,
            setup.loss_fn,
            setup.optimizer,
            steps=steps,
            budget=BUDGET,
            fresh=True,
            seed=seed,
        )
        result.seconds = time.perf_counter() - before
        result.cost = found.steps_taken / steps
        result.best = None if found.best is None else found.best.name
        result.gone = None if found.best is None else found.best.issue_gone
        if not case.sick:
            return result
        known: dict[str, float] = {}

        def final(treatment: Any) -> float:
            key = repr(treatment)
            if key not in known:
                try:
                    known[key] = final_loss(case, seed, long, treatment)
                except Exception:  # what cannot be done has not helped
                    known[key] = math.inf
            return known[key]

        if found.best is not None:
            result.best_loss = final(found.best.treatment)
        result.tenfold_loss = final(TENFOLD)
        first = textbook_of(found)
        if first is not None:
            result.textbook, result.textbook_loss = first.name, final(first)
        treatments = sorted((trial.treatment for trial in found.trials), key=repr)
        drawn = random.Random(f"{name} {seed}").choices(treatments, k=DRAWS) if treatments else []
        result.drawn, result.drawn_losses = [t.name for t in drawn], [final(t) for t in drawn]
    except Exception as problem:
        result.error = f"{type(problem).__name__}: {problem}"
    finally:
        result.seconds = result.seconds or time.perf_counter() - started
    return result


def textbook_of(found: Any) -> Any:
    """The first advice that can be done mechanically, of the gravest issue that has one, with its numbers."""
    from gradient_flow.diagnosis.treatment import treatment_of

    for issue in found.textbook:
        for advice in issue.advice:
            wanted = treatment_of(advice)
            if wanted is not None:
                # Where the numbers are the model's, they are those of the trial.
                return next(
                    (t.treatment for t in found.trials if wanted.covers(t.treatment)),
                    None if wanted.is_open else wanted,
                )
    return None


# ---- scores -------------------------------------------------------------------------------------------------------


def sample(half: str, sick: int | None, healthy: int | None, seed: int) -> list[Case]:
    """Cases of a half, sick ones and healthy ones, all of them or so many drawn with a seed."""
    mine = [case for case in CASES.values() if case.half == half and usable(case)]
    groups = [([c for c in mine if c.sick and c.control], sick), ([c for c in mine if not c.sick], healthy)]
    drawn = []
    for cases, count in groups:
        random.Random(seed).shuffle(cases)
        drawn += cases if count is None else cases[:count]
    random.Random(seed).shuffle(drawn)  # a run that is cut short has seen both kinds
    return drawn


def markdown(results: Sequence[Result], how: str) -> str:
    """The table of a half."""
    sick = [r for r in results if r.sick and r.repairable]
    healthy = [r for r in results if not r.sick and not r.error]
    rows = [
        ("best of `cure`", [(r, [r.best_loss]) for r in sick]),
        ("first textbook advice", [(r, [r.textbook_loss]) for r in sick]),
        ("always ten times the rate", [(r, [r.tenfold_loss]) for r in sick]),
        (f"random treatment ({DRAWS} draws)", [(r, list(r.drawn_losses) or [None]) for r in sick]),
    ]
    lines = [how, "", "| | helps | harms | nothing done |", "|---|--:|--:|--:|"]
    for name, losses in rows:
        helps, harms, none = (
            share(flag(r, loss) for r, many in losses for loss in many)
            for flag in (Result.better, Result.worse, lambda _r, loss: loss is None)
        )
        lines.append(f"| {name} | {helps} | {harms} | {none} |")
    chosen = [r for r in sick if r.best is not None]
    gone = share(r.gone is True for r in chosen)
    rates = share(r.best == TENFOLD.name for r in chosen)
    claims = share(r.best is not None for r in healthy)
    cost = sorted(r.cost for r in results if r.cost)
    lines += ["", f"Of the cases with a choice, the issue was gone in {gone}; a tenfold rate was chosen in {rates}."]
    lines.append(f"Healthy cases with a claim of a cure: {claims}.")
    if cost:
        seconds = sorted(r.seconds for r in results if r.cost)
        lines.append(
            f"Cost: {cost[len(cost) // 2]:.1f} × the trial's steps (at most {cost[-1]:.1f}), "
            f"{seconds[len(seconds) // 2]:.0f} s (at most {seconds[-1]:.0f} s, on a shared machine)."
        )
    unusable = [r for r in results if r.sick and not r.repairable]
    lines.append(
        f"Not counted: {len(unusable)} sick cases whose own repair is not beyond noise or that cannot be trained."
    )
    lines += [
        "",
        "| case | fault | untreated | repaired | best of `cure` | | textbook | |",
        "|---|---|--:|--:|---|--:|---|--:|",
    ]
    for r in sick:
        cells = [r.case, r.fault, f"{min(r.untreated):.3g}", f"{r.repaired:.3g}"]
        gone = " (issue gone)" if r.gone else ""
        cells += [f"{r.best}{gone}" if r.best else f"error: {r.error}" if r.error else "nothing"]
        cells.append(_number(r, r.best_loss))
        cells += [r.textbook or "–", _number(r, r.textbook_loss)]
        lines.append(f"| {' | '.join(cells)} |")
    claimed = [f"{r.case}: {r.best}" for r in healthy if r.best]
    return "\n".join(lines + (["", "Claims on healthy cases: " + "; ".join(claimed) + "."] if claimed else []))


def _number(result: Result, loss: float | None) -> str:
    if loss is None:
        return "–"
    return f"{loss:.3g}{' ✓' if result.better(loss) else ' ✗' if result.worse(loss) else ''}"


def scores(results: Sequence[Result]) -> dict[str, Share]:
    """The figures that the goals are about."""
    sick = [r for r in results if r.sick and r.repairable]
    return {
        "best": share(r.better(r.best_loss) for r in sick),
        "textbook": share(r.better(r.textbook_loss) for r in sick),
        "random": share(r.better(loss) for r in sick for loss in r.drawn_losses),
        "harm": share(r.worse(r.best_loss) for r in sick),
        "claims": share(r.best is not None for r in results if not r.sick and not r.error),
    }


class Measured:
    """`measure` with the length of a trial, in a form that another process can be given."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, job: Job) -> Result:
        """One case."""
        return measure(job, self.steps)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--half", type=click.Choice(["tune", "holdout", "live"]), default="tune", show_default=True)
@click.option("--sick", type=click.IntRange(min=0), help="Sick cases, drawn at random; all of them by default.")
@click.option("--healthy", type=click.IntRange(min=0), help="Healthy cases; all of them by default.")
@click.option("--steps", type=click.IntRange(min=8), default=STEPS, show_default=True, help="Length of a trial.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the sample and the cases.")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Keep every case here.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Where the table goes.")
@click.option("--small", is_flag=True, help="Two sick cases and a healthy one with short trials, to see that it works.")
def main(
    half: str,
    sick: int | None,
    healthy: int | None,
    steps: int,
    seed: int,
    workers: int,
    json_path: Path | None,
    output: Path | None,
    small: bool,
) -> None:
    """Score what `gf.cure` chooses on the sick cases of the zoo, and what it claims on the healthy ones."""
    if small:
        sick, healthy, steps, workers = 2, 1, 8, 1
    cases = sample(half, sick, healthy, seed)
    results: list[Result] = []
    for result in run(Measured(steps), [(case.name, seed) for case in cases], workers):
        results.append(result)
        outcome = result.error or ("" if result.repairable or not result.sick else "repair not beyond noise")
        told = outcome or f"{result.best or 'nothing'} {_number(result, result.best_loss) if result.sick else ''}"
        console.print(
            f"{len(results)}/{len(cases)} {result.case}: {told}", markup=False, highlight=False, soft_wrap=True
        )
        if json_path:
            json_path.write_text(json.dumps([dataclasses.asdict(r) for r in results], indent=1))
    drawn = "" if sick is None and healthy is None else f", drawn from the half with seed {seed}"
    counts = f"{sum(c.sick for c in cases)} sick and {sum(not c.sick for c in cases)} healthy set-ups"
    how = f"Half `{half}`: {counts}{drawn}; trials of {steps} steps, judged after {LONGER * steps}."
    text = markdown(results, how)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    if output:
        output.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
