"""Scores what was found against what is there: pure functions of records, nothing of torch or of the tool."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from validation.case import HEALTHY, Layers

SEVERITIES = ("LOW", "MEDIUM", "HIGH", "CRITICAL")
NOTHING, CRASH = "nothing", "crash"
ATTENTION = ("ENTROPY_COLLAPSE", "RANK_COLLAPSE", "HEAD_DIVERSITY")
RECURRENCE = ("SHORT_MEMORY", "SPECTRAL_RADIUS")
BLOCK_SHARE = 0.25
"""A container that is named instead of the layer inside it is a place if it holds at most this share of the layers."""


@dataclass(frozen=True)
class Finding:
    """One issue as the tool reported it; what it lists as consequences is not a finding of its own."""

    issue_type: str
    severity: str
    layer: str
    message: str = ""
    cause: str = ""
    """Code of the cause, where the tool names one."""


def says(finding: Finding, names: frozenset[str]) -> bool:
    """Whether a finding names one of these types or causes."""
    return finding.issue_type in names or finding.cause in names


@dataclass(frozen=True)
class Record:
    """One case with one seed: what is known about it and what the tool said."""

    case: str
    family: str
    half: str
    fault: str
    label: frozenset[str]
    seed: int = 0
    also: frozenset[str] = frozenset()
    cause: tuple[str, ...] = ()
    place: tuple[str, ...] | None = None
    layers: Layers = ()
    findings: tuple[Finding, ...] = ()
    error: str | None = None
    seconds: float = 0.0

    @property
    def sick(self) -> bool:
        """Whether something is to be found."""
        return bool(self.label)

    @property
    def alarms(self) -> list[Finding]:
        """Findings of MEDIUM or above, the most severe first, otherwise in the tool's order."""
        serious = [f for f in self.findings if SEVERITIES.index(f.severity) >= SEVERITIES.index("MEDIUM")]
        return sorted(serious, key=lambda f: -SEVERITIES.index(f.severity))

    @property
    def answer(self) -> Finding | None:
        """The alarm that counts: the most severe that names an acceptable cause, or else one of an acceptable type."""
        right = [alarm for alarm in self.alarms if says(alarm, self.label)]
        return next((alarm for alarm in right if alarm.cause in self.cause), next(iter(right), None))

    @property
    def cause_named(self) -> bool:
        """Whether the answer says why."""
        return self.answer is not None and self.answer.cause in self.cause

    @property
    def wrong(self) -> list[Finding]:
        """Alarms of a type and a cause that are not true here."""
        return [alarm for alarm in self.alarms if not says(alarm, self.label | self.also)]

    @property
    def located(self) -> bool:
        """Whether the answer names a labelled layer or a neighbour of one."""
        answer = self.answer
        return answer is not None and self.place is not None and is_near(answer.layer, self.place, self.layers)


def _inside(path: str, container: str) -> bool:
    return path == container or path.startswith(f"{container}.")


def layers_named(path: str, layers: Layers) -> range | None:
    """Indices of the layers that a path stands for: one for what lies in a layer, several for a container.

    >>> layers = (("net.0", "net.1"), ("net.2", "net.3"), ("head",))
    >>> layers_named("net.3", layers), layers_named("net.2.weight", layers), layers_named("net", layers)
    (range(1, 2), range(1, 2), range(0, 2))
    """
    words = path.strip("` ").split()
    path = words[0].strip("`,:") if words else ""
    # The longest module that contains the path: "a.b.weight" lies in "a.b" even when "a" is a layer as well.
    holders = [(len(own), i) for i, layer in enumerate(layers) for own in layer if _inside(path, own)]
    if holders:
        index = max(holders)[1]
        return range(index, index + 1)
    within = [i for i, layer in enumerate(layers) if _inside(layer[0], path)]
    return range(min(within), max(within) + 1) if within else None


def is_near(path: str, place: Sequence[str], layers: Layers) -> bool:
    """Whether a reported path is a labelled layer or next to one, or a small block around one.

    With two or three layers everything is next to everything: there it has to be the layer itself.
    """
    named = layers_named(path, layers)
    wanted = [i for each in place for i in (layers_named(each, layers) or ())]
    if named is None or not wanted:
        return False
    reach = 1 if len(layers) > 3 else 0
    close = all(min(abs(i - j) for j in wanted) <= reach for i in named)
    return close or (len(named) <= BLOCK_SHARE * len(layers) and any(i in named for i in wanted))


@dataclass(frozen=True)
class Share:
    """A count out of a count."""

    hits: int
    total: int

    @property
    def value(self) -> float | None:
        """The share, or None out of nothing."""
        return self.hits / self.total if self.total else None

    def __str__(self) -> str:
        return "–" if self.value is None else f"{100 * self.value:.1f} % ({self.hits}/{self.total})"


def share(flags: Iterable[bool]) -> Share:
    """Count how many hold."""
    flags = list(flags)
    return Share(sum(flags), len(flags))


@dataclass(frozen=True)
class ClassScore:
    """How one class of fault fared."""

    fault: str
    cases: int
    recall: Share
    precision: Share
    place: Share
    """Right layer, out of all runs that have one: a miss is not located."""
    place_if_found: Share


def score_class(records: Sequence[Record], fault: str) -> ClassScore:
    """Score the runs of one class; precision is over all runs in which its type was raised."""
    own = [r for r in records if r.fault == fault]
    raised = [r for r in records if any(says(alarm, frozenset({fault})) for alarm in r.alarms)]
    placed = [r for r in own if r.place is not None]
    return ClassScore(
        fault=fault,
        cases=len({r.case for r in own}),
        recall=share(r.answer is not None for r in own),
        precision=share(fault in r.label | r.also for r in raised),
        place=share(r.located for r in placed),
        place_if_found=share(r.located for r in placed if r.answer is not None),
    )


@dataclass(frozen=True)
class Totals:
    """The figures that the goals are about."""

    recall: Share
    precision: Share
    place: Share
    """Right layer, out of all runs that have one: a miss is not located."""
    place_if_found: Share
    bottlenecks: Share
    attention: Share
    """Found, of the classes of attention."""
    recurrence: Share
    """Found, of the classes of recurrence."""
    false_alarms: Share
    """Healthy runs with an alarm of MEDIUM or above."""
    causes: Share
    """Sick programs whose cause was named."""
    crashes: Share


def score_all(records: Sequence[Record]) -> Totals:
    """Score all runs together."""
    sick = [r for r in records if r.sick]
    alarms = [(r, alarm) for r in records for alarm in r.alarms]
    return Totals(
        recall=share(r.answer is not None for r in sick),
        precision=share(says(alarm, r.label | r.also) for r, alarm in alarms),
        place=share(r.located for r in sick if r.place is not None),
        place_if_found=share(r.located for r in sick if r.place is not None and r.answer is not None),
        bottlenecks=share(r.answer is not None for r in sick if r.fault == "BOTTLENECK"),
        attention=share(r.answer is not None for r in sick if r.fault in ATTENTION),
        recurrence=share(r.answer is not None for r in sick if r.fault in RECURRENCE),
        false_alarms=share(bool(r.alarms) for r in records if not r.sick),
        causes=share(r.cause_named for r in sick if r.cause),
        crashes=share(r.error is not None for r in records),
    )


def faults_in(records: Sequence[Record]) -> list[str]:
    """Classes of faults that occur, in alphabetical order."""
    return sorted({r.fault for r in records if r.sick})


def confusion(records: Sequence[Record]) -> dict[str, Counter[str]]:
    """Class of the run → what its most severe alarm said, or nothing, or a crash."""
    matrix: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        # An acceptable answer of equal severity comes before another alarm: order among equals is the tool's taste.
        first = record.alarms[0] if record.alarms else None
        answer = record.answer
        if first and answer and answer.severity == first.severity:
            first = answer
        said = CRASH if record.error else NOTHING
        if first and not record.error:
            said = first.cause if record.cause and first.cause else first.issue_type
        matrix[record.fault if record.sick else HEALTHY][said] += 1
    return dict(matrix)


@dataclass(frozen=True)
class Failure:
    """A case that went wrong in some way, with the seeds in which it did."""

    case: str
    fault: str
    seeds: tuple[int, ...]
    said: str


def _grouped(records: Iterable[Record], describe) -> list[Failure]:
    by_case: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_case[record.case].append(record)
    return [
        Failure(name, group[0].fault, tuple(sorted(r.seed for r in group)), describe(group[0]))
        for name, group in sorted(by_case.items())
    ]


def _told(findings: Sequence[Finding]) -> str:
    said = dict.fromkeys(f"{f.severity} {f.issue_type}{f.cause and f' ({f.cause})'} in {f.layer}" for f in findings)
    return "; ".join([*said][:4]) + (" …" if len(said) > 4 else "") or NOTHING


def misses(records: Sequence[Record]) -> list[Failure]:
    """Sick runs in which no alarm of an acceptable type or cause was raised."""
    missed = (r for r in records if r.sick and r.answer is None and r.error is None)
    return _grouped(missed, lambda r: _told(r.findings))


def unexplained(records: Sequence[Record]) -> list[Failure]:
    """Sick programs that were found by the type of the issue alone."""
    return _grouped((r for r in records if r.cause and r.answer and not r.cause_named), lambda r: _told(r.alarms))


def misplaced(records: Sequence[Record]) -> list[Failure]:
    """Runs in which the fault was found and its layer was not."""
    lost = (r for r in records if r.place is not None and r.answer is not None and not r.located)
    return _grouped(lost, lambda r: f"{_told([r.answer] if r.answer else [])}, not {' or '.join(r.place or ())}")


def false_alarms(records: Sequence[Record]) -> list[Failure]:
    """Healthy runs with an alarm."""
    return _grouped((r for r in records if not r.sick and r.alarms), lambda r: _told(r.alarms))


def wrong_types(records: Sequence[Record]) -> list[Failure]:
    """Sick runs with an alarm of a type that is not true there, found or not."""
    return _grouped((r for r in records if r.sick and r.wrong), lambda r: _told(r.wrong))


def crashes(records: Sequence[Record]) -> list[Failure]:
    """Runs that raised."""
    return _grouped((r for r in records if r.error is not None), lambda r: (r.error or "").strip().splitlines()[-1])
