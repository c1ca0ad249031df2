"""`Cure` and `Trial`: what was tried, what it did to the loss, and what to do about it."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from gradient_flow.diagnosis.issue import Issue
from gradient_flow.diagnosis.treatment import Advice, Treatment, treatment_of
from gradient_flow.diagnosis.words import plain
from gradient_flow.errors import InputError
from gradient_flow.record.plain import to_json
from gradient_flow.table.text import shorten

if TYPE_CHECKING:
    import torch
    from torch import nn

BETTER, WORSE, SAME, NO_EFFECT, FAILED, DROPPED, NOT_TRIED, SLOWER = (
    *("better", "worse", "within noise", "no effect", "failed", "left behind", "not tried"),
    "slower rate",
)
"""How a trial ended. `left behind`: others were better after fewer steps. `slower rate`: see `Trial.reason`."""
WIDTH: Final = 79
"""Columns of the text."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Loss of the untreated model by number of steps, over several repeats."""

    steps: int
    losses: tuple[float, ...]
    """The first is paired with the trials: the same batches, the same random numbers."""
    margin: float
    """What a loss must lie beyond the repeats: a fiftieth of it."""

    @property
    def loss(self) -> float:
        """The paired one."""
        return self.losses[0]

    @property
    def band(self) -> tuple[float, float]:
        """Losses that chance explains."""
        return min(self.losses) - self.margin, max(self.losses) + self.margin


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One treatment and what came of it."""

    treatment: Treatment
    outcome: str
    """`better`, `within noise` or `worse` than no treatment; `left behind` where others were better early on."""
    steps: int = 0
    """Length of its longest arm."""
    losses: tuple[float, ...] = ()
    """Held-out loss after these steps, of one arm or of two on different batches."""
    untreated: Noise | None = None
    """The same without treatment."""
    issue_gone: bool | None = None
    """Whether the gravest issue is gone; None if that was not checked."""
    steps_taken: int = 0
    """Cost: training steps of all its arms."""
    seconds: float = 0.0
    reason: str = ""
    """Why it failed, was not tried or does not count."""

    @property
    def name(self) -> str:
        """The treatment in a few words."""
        return self.treatment.name

    @property
    def advice(self) -> str:
        """The treatment as a sentence."""
        return self.treatment.advice

    @property
    def code(self) -> str:
        """The lines that do the same in a training script."""
        return self.treatment.code

    @property
    def loss(self) -> float:
        """Mean of `losses`; infinite where one is, NaN where there is none."""
        return sum(self.losses) / len(self.losses) if self.losses else math.nan

    def apply(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> torch.optim.Optimizer:
        """Treat the model for real, in place; the optimizer to train on with, which may be another one."""
        import torch
        from torch import nn

        from gradient_flow.cures.patient import default_optimizer
        from gradient_flow.cures.registry import do

        if not isinstance(model, nn.Module):
            raise InputError(f"`model` must be a module, got {type(model).__name__}.")
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(f"`optimizer` must be a torch optimizer, got {type(optimizer).__name__}.")
        return do(self.treatment, model, default_optimizer(model) if optimizer is None else optimizer)

    @property
    def measured(self) -> str:
        """What was measured, in a few words."""
        if self.untreated is None or not self.losses:
            return self.reason or self.outcome
        without = _band(self.untreated) if math.isfinite(max(self.untreated.losses)) else "not finite"
        return f"loss {plain(self.loss)} after {self.steps} steps, {without} without treatment"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON: what is not finite is None."""
        untreated = self.untreated
        noise = (
            None if untreated is None else {"loss": untreated.loss, "low": untreated.band[0], "high": untreated.band[1]}
        )
        return dict(
            to_json(
                {
                    "name": self.name,
                    "outcome": self.outcome,
                    "treatment": self.treatment.to_dict(),
                    "steps": self.steps,
                    "loss": self.loss if self.losses else None,
                    "losses": self.losses,
                    "untreated": noise,
                    "issue_gone": self.issue_gone,
                    "steps_taken": self.steps_taken,
                    "seconds": round(self.seconds, 4),
                    "reason": self.reason,
                    "code": self.code,
                }
            )
        )


@dataclass(frozen=True, kw_only=True)
class Cure:
    """What was tried and what helped. Prints as a table; `best` is the trial to follow, None where nothing helped."""

    trials: Sequence[Trial]
    """The most helpful first."""
    best: Trial | None
    issues: Sequence[Issue]
    """What was found before any treatment; advice is sorted by what was measured."""
    textbook: Sequence[Issue] = ()
    """The same with advice as it was before."""
    steps: int
    """Length of a full trial."""
    batches: int
    """How often `input_fn` was called."""
    first_loss: float
    """Held-out loss before any step."""
    untreated: Noise
    """The same after a full trial without treatment."""
    steps_taken: int
    """Training steps in all."""
    seconds: float
    fresh: bool
    symptoms: str = ""
    """Why the model counts as sick; empty where it does not."""
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def message(self) -> str:
        """The result in a sentence."""
        tried = sum(trial.steps_taken > 0 for trial in self.trials)
        longest = max((trial.steps for trial in self.trials), default=self.steps)
        of = f"of {tried} treatments tried for up to {longest} steps"
        if self.best is not None:
            return f"Best {of}: {self.best.name} ({self.best.measured}).{self._told_of_issue(self.best)}"
        also = self.remark
        lower = f" A remark: the loss is lower with {also.name} ({also.measured})." if also else ""
        if not self.symptoms:
            return f"The model learns and no issue was found, so there is nothing to cure ({of[3:]}).{lower}"
        if also is not None:
            return f"No issue was found, so no cure is claimed ({of[3:]}).{lower}"
        return f"Nothing helped beyond noise, {of}."

    def _told_of_issue(self, trial: Trial) -> str:
        if trial.issue_gone is None:
            return ""
        if trial.issue_gone:
            return " The issue is gone."
        name = self.issues[0].issue_type.name if self.issues else "The issue"
        only = ": longer steps do not heal its cause" if trial.treatment.kind == "learning_rate" else ""
        return f" {name} is still there{only}."

    @property
    def remark(self) -> Trial | None:
        """Where no cure is claimed: the treatment that lowered the loss most, such as a higher rate."""
        if self.best is not None:
            return None
        return next((trial for trial in self.trials if trial.outcome == BETTER), None)

    def __str__(self) -> str:
        lines = _wrapped(self.message)
        if self.symptoms:
            lines += _wrapped(f"Before: {self.symptoms}")
        lines += ["", *_table(self._rows(), WIDTH), ""]
        if self.best is not None:
            lines += ["In your script:", *(f"    {line}" for line in self.best.code.splitlines()), ""]
        for note in self.notes:
            lines += _wrapped(f"Note: {note}")
        lines += _wrapped(
            f"{self.steps_taken:,} steps in {self.seconds:.1f} s on {self.batches} batches; "
            "model, optimizer and random state are as they were."
        )
        return "\n".join(lines)

    def _rows(self) -> list[tuple[str, ...]]:
        """A head, and a row for each trial: losses are compared after the same number of steps."""
        head = ("outcome", "treatment", "loss", "untreated", "after", "issue")
        rows = [(t.outcome, t.name, _loss(t), _band(t.untreated), _after(t), _gone(t)) for t in self.trials]
        return [row if any(row[-1] for row in rows) else row[:-1] for row in (head, *rows)]

    def __repr__(self) -> str:
        best = None if self.best is None else self.best.name
        return f"Cure(best={best!r}, {len(self.trials)} trials)"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON."""
        low, high = self.untreated.band
        return dict(
            to_json(
                {
                    "message": self.message,
                    "best": None if self.best is None else self.best.name,
                    "symptoms": self.symptoms,
                    "steps": self.steps,
                    "batches": self.batches,
                    "fresh": self.fresh,
                    "first_loss": self.first_loss,
                    "untreated": {"losses": self.untreated.losses, "low": low, "high": high},
                    "steps_taken": self.steps_taken,
                    "seconds": round(self.seconds, 3),
                    "trials": [trial.to_dict() for trial in self.trials],
                    "issues": [issue.to_dict() for issue in self.issues],
                    "notes": list(self.notes),
                }
            )
        )

    def _repr_html_(self) -> str:
        head, *rows = self._rows()
        lines = "".join(
            f"<tr{' style=font-weight:bold' if trial is self.best else ''} "
            f"title='{html.escape(_told(trial), quote=True)}'>"
            + "".join(f"<td{_RIGHT if at in (2, 4) else ''}>{html.escape(cell)}</td>" for at, cell in enumerate(row))
            + "</tr>"
            for trial, row in zip(self.trials, rows, strict=True)
        )
        heads = "".join(f"<th>{name}</th>" for name in head)
        code = "" if self.best is None else f"<pre>{html.escape(self.best.code)}</pre>"
        return f"<p>{html.escape(self.message)}</p><table><tr>{heads}</tr>{lines}</table>{code}"


_RIGHT: Final = " style='text-align:right'"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows in columns, the names of treatments cut where there is no room."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    widths[1] = min(widths[1], max(24, width - sum(widths) + widths[1] - 2 * (len(widths) - 1)))
    return [
        "  ".join(
            shorten(cell, size).rjust(size) if at in (2, 4) else shorten(cell, size).ljust(size)
            for at, (cell, size) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _told(trial: Trial) -> str:
    """What a pointer over the row shows."""
    return "\n".join(filter(None, (trial.reason, f"{trial.steps_taken:,} steps, {trial.seconds:.1f} s", trial.code)))


def _band(noise: Noise | None) -> str:
    if noise is None:
        return ""
    low, high = map(plain, noise.band)
    return low if low == high else f"{low} to {high}"


def _after(trial: Trial) -> str:
    return f"{trial.steps}" if trial.steps else ""


def _loss(trial: Trial) -> str:
    return plain(trial.loss) if trial.losses else "–"


def _gone(trial: Trial) -> str:
    return {True: "gone", False: "stays", None: ""}[trial.issue_gone]


_ORDER: Final = {BETTER: 0, SLOWER: 1, SAME: 2, DROPPED: 3, WORSE: 4, NO_EFFECT: 5, FAILED: 6, NOT_TRIED: 7}


def sorted_trials(trials: Sequence[Trial], best: Trial | None) -> list[Trial]:
    """The best first, then by outcome and loss."""
    last = math.inf
    return sorted(trials, key=lambda t: (t is not best, _ORDER[t.outcome], -t.steps, t.loss if t.losses else last))


def measured_advice(issues: Sequence[Issue], trials: Sequence[Trial], best: Trial | None) -> list[Issue]:
    """The issues with their advice sorted by what was measured, each measured one saying so.

    What helped comes first, then what was not tried, then what did not help.
    """
    found = []
    for at, issue in enumerate(issues):
        ranked = [_ranked(advice, trials) for advice in issue.advice]
        if at == 0 and best is not None and not any(trial is best for _, trial, _ in ranked):
            text = Advice(f"{best.advice} Tried: {best.measured}.", best.treatment)
            ranked.insert(0, (-1.0, best, text))
        ranked.sort(key=lambda each: -2.0 if best is not None and each[1] is best else each[0])
        found.append(replace(issue, advice=[text for _, _, text in ranked]))
    return found


def _ranked(advice: str, trials: Sequence[Trial]) -> tuple[float, Trial | None, str]:
    wanted = treatment_of(advice)
    trial = next((each for each in trials if wanted is not None and wanted.covers(each.treatment)), None)
    if wanted is None or trial is None or not trial.losses:
        return 0.0, None, advice
    place = {BETTER: -1.0, SAME: 0.5, SLOWER: 0.5}.get(trial.outcome, 1.0)
    outcome = f"Tried: {trial.measured}." if trial.outcome == BETTER else f"Tried, {trial.outcome}: {trial.measured}."
    return place, trial, Advice(f"{advice} {outcome}", wanted)
