"""What a rule yields: an `Issue` with type, severity, place, evidence and advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final, overload

from gradient_flow.diagnosis.paragraphs import printed
from gradient_flow.diagnosis.treatment import Advice, Treatment, treatment_of
from gradient_flow.errors import RunFileError, check_choice
from gradient_flow.record.ending import RUNNING, SILENT, Ending
from gradient_flow.record.plain import to_json


class IssueType(str, Enum):
    """What is wrong."""

    VANISHING = "vanishing"
    EXPLODING = "exploding"
    DEAD = "dead"
    UNSTABLE = "unstable"
    NUMERICAL = "numerical"
    SATURATION = "saturation"
    BOTTLENECK = "bottleneck"
    DISCONNECTED = "disconnected"
    SYMMETRY = "symmetry"
    SLOW = "slow"
    ROTATION = "rotation"
    SPECTRAL_RADIUS = "spectral radius"
    SHORT_MEMORY = "short memory"
    LOW_RANK = "low rank"
    ENTROPY_COLLAPSE = "entropy collapse"
    RANK_COLLAPSE = "rank collapse"
    HEAD_DIVERSITY = "head diversity"
    EXPLORATION = "exploration"
    LOOP = "loop"
    OPTIMIZER = "optimizer"

    def __str__(self) -> str:
        return self.value


class IssueSeverity(IntEnum):
    """How strong the evidence is that this harms the run. Ordered: `issue.severity >= IssueSeverity.HIGH` works."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4

    def __str__(self) -> str:
        return self.name


WHOLE: Final = "model"
"""The layer of an issue that concerns the whole run; messages name no layer then."""


@dataclass(frozen=True, kw_only=True)
class Issue:
    """One finding. It prints as a paragraph: what, where, since when, the numbers, the likely cause, ranked advice."""

    issue_type: IssueType
    severity: IssueSeverity
    layer: str
    """Path of the module or parameter where it begins; `"model"` when it concerns all of it."""
    message: str
    """What was seen, in one sentence with its numbers."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The numbers that the finding rests on, by name; plain values only."""
    cause: str = ""
    """The likely reason, in one sentence."""
    advice: Sequence[str] = ()
    """What to do, the most promising first."""
    step: int | None = None
    """Since which step, where that is known."""
    consequences: Sequence[Issue] = ()
    """What follows from it, such as the layers behind the one where it begins."""
    origin: str = ""
    """Name of the rule that found it, where that is a user's own."""
    code: str = ""
    """The cause as one word that stays the same, such as `missing_zero_grad`; empty where a type has one cause."""

    @property
    def type(self) -> IssueType:
        """The same as `issue_type`."""
        return self.issue_type

    @property
    def heading(self) -> str:
        """What, where, since when: ``VANISHING in `0`, since step 1``; no layer where it concerns the whole run."""
        since = "" if self.step is None else f", since step {self.step:,}"
        where = "" if self.layer == WHOLE else f" in `{self.layer}`"
        return f"{self.issue_type.name}{where}{since}"

    @property
    def followers(self) -> str:
        """The first few of its consequences and how many more there are; empty where there are none."""
        from gradient_flow.diagnosis.titles import in_a_sentence  # it needs this module

        seen = "; ".join(dict.fromkeys(map(in_a_sentence, self.consequences[:3])))
        more = f" and {len(self.consequences) - 3} more" if len(self.consequences) > 3 else ""
        return f"{seen}{more}"

    @property
    def lines(self) -> list[str]:
        """What is printed, before it is wrapped: a heading, the likely cause, the advice, what follows."""
        lines = [f"[{self.severity}] {self.heading}: {self.message}"]
        if self.cause:
            lines.append(f"  Likely cause: {self.cause}")
        for number, advice in enumerate(self.advice, start=1):
            lines.append(f"  {number}. {advice}")
        if self.consequences:
            lines.append(f"  Follows from it: {self.followers}.")
        return lines

    def __str__(self) -> str:
        return printed("", [self.lines])

    def __repr__(self) -> str:
        # Short: a list of issues is read by people. All of it: `to_dict()`.
        since = "" if self.step is None else f", step={self.step}"
        return f"Issue({self.issue_type.name}, {self.severity.name}, {self.layer!r}{since})"

    def _repr_html_(self) -> str:
        from gradient_flow.diagnosis.notebook import issue_html

        return issue_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values that strict JSON can hold: what is not finite becomes `None`."""
        return {
            "issue_type": self.issue_type.name,
            "severity": self.severity.name,
            "layer": self.layer,
            "message": self.message,
            "evidence": to_json(self.evidence),
            "cause": self.cause,
            "advice": [str(text) for text in self.advice],
            "step": self.step,
            "consequences": [issue.to_dict() for issue in self.consequences],
            **({"origin": self.origin} if self.origin else {}),
            **({"code": self.code} if self.code else {}),
            **self._treatments(),
        }

    def _treatments(self) -> dict[str, Any]:
        """What of the advice can be done mechanically, by its place."""
        found = {str(at): wanted for at, text in enumerate(self.advice) if (wanted := treatment_of(text)) is not None}
        return {"treatments": {at: to_json(wanted.to_dict()) for at, wanted in found.items()}} if found else {}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Issue:
        """What `to_dict` made plain values of; what is not one is a `RunFileError`."""
        try:
            step = plain.get("step")
            return cls(
                issue_type=IssueType[plain["issue_type"]],
                severity=IssueSeverity[plain["severity"]],
                layer=str(plain["layer"]),
                message=str(plain["message"]),
                evidence=dict(plain.get("evidence") or {}),
                cause=str(plain.get("cause") or ""),
                advice=_advice(plain),
                step=step if isinstance(step, int) else None,
                consequences=[cls.from_dict(each) for each in plain.get("consequences") or ()],
                origin=str(plain.get("origin") or ""),
                code=str(plain.get("code") or ""),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise RunFileError(f"The run file is damaged: an issue cannot be read ({problem}).") from problem


def _advice(plain: Mapping[str, Any]) -> list[str]:
    treatments = dict(plain.get("treatments") or {})
    texts = [str(text) for text in plain.get("advice") or ()]
    kept = {int(at): Treatment.from_dict(treatment) for at, treatment in treatments.items()}
    return [Advice(text, kept[at]) if at in kept else text for at, text in enumerate(texts)]


RULE_SET: Final = 18
"""Goes up with every change of a rule that can change a verdict; a run keeps the number beside its own verdict."""
_STATUS: Final = {IssueType.NUMERICAL: "nan"}
"""Issue types whose status has another word."""


class Diagnosis(Sequence[Issue]):
    """What can be said of a run. A sequence of issues, the gravest first; prints a verdict, then a paragraph for each.

    >>> print(Diagnosis([], steps=200))
    Healthy: no issue found in 200 steps.
    """

    def __init__(
        self,
        issues: Iterable[Issue],
        *,
        steps: int = 0,
        enough: bool = True,
        reason: str = "",
        looks: int = 0,
        unseen: str = "",
    ) -> None:
        self.issues = tuple(sorted(issues, key=lambda issue: -issue.severity))
        self.steps, self.looks = steps, looks
        """What the verdict rests on: steps that were recorded, and looks inside the model."""
        self.unseen = unseen
        """What is not judged for want of looks, in a sentence; empty where that is nothing, or none were wanted."""
        self._enough = enough
        self.reason = reason
        """Why there is no verdict, where more is known than that there are too few steps."""
        self.rule_set = RULE_SET
        """Version of the rules that gave this verdict."""
        self.ending: Ending | None = None
        """How the run ended, or that it goes on; None where that is not known."""
        self.stored: Mapping[str, Any] | None = None
        """The verdict that the run itself wrote at its end, where that was by other rules."""

    @property
    def healthy(self) -> bool:
        """Whether nothing of medium severity or above was found and no error ended the run.

        Too little data is no finding.
        """
        return not self.failed and self._unsuspicious

    @property
    def failed(self) -> bool:
        """Whether an error ended the run."""
        return self.ending is not None and self.ending.failed

    @property
    def _unsuspicious(self) -> bool:
        return all(issue.severity < IssueSeverity.MEDIUM for issue in self.issues)

    @property
    def status(self) -> str:
        """`stable`, `insufficient_data`, `nan`, the type of the gravest issue, such as `vanishing`, or `failed`."""
        if self._unsuspicious:
            if self.failed:
                return "failed"
            return "stable" if self._enough else "insufficient_data"
        first = self.issues[0].issue_type
        return _STATUS.get(first, first.value)

    @property
    def message(self) -> str:
        """The verdict in a sentence, and how the run ended where that is worth another."""
        first = self.issues[0] if self.issues else None
        if self.failed and (first is None or self._unsuspicious):
            assert self.ending is not None
            rest = f"No other problem found in {self.rests_on}." if self._enough else self._too_little
            if first is not None:
                rest = f"A remark{_on(first.layer)}: {first.message}"
            return f"{self.ending.sentence} {rest}"
        return self.with_ending(self._found)

    @property
    def in_short(self) -> str:
        """How many issues there are, before they are listed.

        >>> Diagnosis([], steps=60).in_short
        'Healthy: no issue found in 60 steps.'
        """
        if not self.issues:
            return self.message
        many, remark = len(self), self.healthy
        found = f"{many} {'remark' if remark else 'issue'}{'' if many == 1 else 's'}"
        return f"{'Healthy, with' if remark else f'Not healthy ({self.status}):'} {found} in {self.rests_on}."

    def with_ending(self, sentence: str) -> str:
        """A sentence on the run, what was not seen of it, and how it ended where that is worth another."""
        ending = "" if self.ending is None else self.ending.sentence
        return " ".join(filter(None, (sentence, self.unseen, ending)))

    @property
    def rests_on(self) -> str:
        """`412 steps and 9 looks`.

        >>> Diagnosis([], steps=60, looks=1).rests_on
        '60 steps and 1 look'
        """
        looks = f" and {self.looks} {'look' if self.looks == 1 else 'looks'}" if self.looks else ""
        return f"{self.steps:,} step{'' if self.steps == 1 else 's'}{looks}"

    @property
    def _too_little(self) -> str:
        if self.reason:
            return self.reason
        return f"Too few steps for a verdict: {self.steps}." if self.steps else "No step has been recorded yet."

    @property
    def _found(self) -> str:
        if not self.issues:
            if self._enough:
                state = "" if self.ending is None else self.ending.state
                # Nobody knows how a silent run ended, and one that runs may still go wrong.
                word = {SILENT: "No", RUNNING: "Healthy so far: no"}.get(state, "Healthy: no")
                return f"{word} issue found in {self.rests_on}."
            return self._too_little
        first, more = self.issues[0], len(self.issues) - 1
        also = f" ({more} more {'issue' if more == 1 else 'issues'}.)" if more else ""
        if self.healthy:
            return f"Healthy, with a remark{_on(first.layer)}: {first.message}{also}"
        # A cause that is known by its numbers belongs in the sentence.
        cause = f" Likely cause: {first.cause}" if "rate_change" in first.evidence else ""
        return f"{first.heading}: {first.message}{cause}{also}"

    @property
    def stored_message(self) -> str | None:
        """What the run said of itself at its end, in a sentence; None if the rules or the words are the same.

        >>> found = Diagnosis([], steps=200)
        >>> found.stored = {"rule_set": 1, "message": "DEAD in `0`: no gradient."}
        >>> found.stored_message
        'At the time, rule set 1 said: DEAD in `0`: no gradient.'
        """
        if self.stored is None or (then := _message_of(self.stored)) == self.message:
            return None
        which = self.stored.get("rule_set")
        rules = f"rule set {which}" if type(which) is int else "another rule set"
        return f"At the time, {rules} said: {then}"

    @property
    def step(self) -> int | None:
        """Since when, of the gravest issue."""
        return self.issues[0].step if self.issues else None

    @property
    def layer(self) -> str | None:
        """Where, of the gravest issue."""
        return self.issues[0].layer if self.issues else None

    def filter(
        self,
        *,
        severity: IssueSeverity | None = None,
        issue_type: IssueType | None = None,
        layer: str | None = None,
    ) -> Diagnosis:
        """Those of at least this severity, of this type, with this text in the name of their layer."""
        kept = [
            issue
            for issue in self.issues
            if (severity is None or issue.severity >= severity)
            and (issue_type is None or issue.issue_type == issue_type)
            and (layer is None or layer.lower() in issue.layer.lower())
        ]
        found = Diagnosis(
            kept, steps=self.steps, enough=self._enough, reason=self.reason, looks=self.looks, unseen=self.unseen
        )
        found.ending = self.ending
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values that strict JSON can hold."""
        issues = [issue.to_dict() for issue in self.issues]
        summary = {"status": self.status, "healthy": self.healthy, "steps": self.steps, "rule_set": self.rule_set}
        # A verdict while running and one after a good end are the same.
        worth_telling = self.ending is not None and self.ending.sentence
        ending = {"ending": self.ending.to_dict()} if self.ending is not None and worth_telling else {}
        inside: dict[str, Any] = {"looks": self.looks} if self.looks else {}
        inside |= {"unseen": self.unseen} if self.unseen else {}
        stored = {} if self.stored is None else {"stored": dict(self.stored)}
        return {**summary, **inside, **ending, "issues": issues, **stored}

    @overload
    def __getitem__(self, index: int) -> Issue: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Issue, ...]: ...
    def __getitem__(self, index: int | slice) -> Issue | tuple[Issue, ...]:
        return self.issues[index]

    def __len__(self) -> int:
        return len(self.issues)

    def __bool__(self) -> bool:
        return bool(self.issues)

    @property
    def sentence(self) -> str:
        """What stands before the issues: the verdict, and how many there are."""
        if not self.issues or (self.failed and self._unsuspicious):
            return self.message
        return self.with_ending(self.in_short)

    def __str__(self) -> str:
        return printed(self.sentence, [issue.lines for issue in self.issues])

    def _repr_html_(self) -> str:
        from gradient_flow.diagnosis.notebook import diagnosis_html

        return diagnosis_html(self)

    def __repr__(self) -> str:
        return f"Diagnosis({self.status!r}, {len(self)} issue{'' if len(self) == 1 else 's'}, {self.steps} steps)"


def _message_of(plain: Mapping[str, Any]) -> str:
    """The sentence of a verdict that was kept as plain values."""
    message, issues = plain.get("message"), plain.get("issues")
    steps, looks = (each if type(each := plain.get(name)) is int else 0 for name in ("steps", "looks"))
    unseen = plain.get("unseen")
    if isinstance(message, str):
        return message
    try:
        kept = [Issue.from_dict(each) for each in issues] if isinstance(issues, list) else []
    except RunFileError:
        return str(plain.get("status"))
    enough = plain.get("status") != "insufficient_data"
    unseen = unseen if isinstance(unseen, str) else ""
    found = Diagnosis(kept, steps=steps, enough=enough, looks=looks, unseen=unseen)
    found.ending = Ending.from_dict(plain.get("ending"))
    return found.message


def _on(layer: str) -> str:
    return "" if layer == WHOLE else f" on `{layer}`"


FAIL_ON: Final = (*(severity.name.lower() for severity in IssueSeverity), "never")


def at_least(issues: Iterable[Issue], fail_on: str) -> list[Issue]:
    """The issues of this severity (`low`, `medium`, `high`, `critical`) or above; none of them for `never`."""
    check_choice("fail_on", fail_on, FAIL_ON)
    return [] if fail_on == "never" else [i for i in issues if i.severity >= IssueSeverity[fail_on.upper()]]
