"""Sick runs by what they are sick of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from gradient_flow.fleets.tables import Tables

_MOST_LAYERS: Final = 5
_MOST_EXAMPLES: Final = 5


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The runs whose gravest issue has this cause."""

    cause: str
    """One word that stays the same: `missing_zero_grad`, `vanishing`; the class of an error that ended runs."""
    type: str
    """`VANISHING` and so on; `FAILED` where an error ended the runs and no rule found anything."""
    severity: str | None
    """The gravest of them."""
    runs: int
    also: int
    """Runs that have it beside a graver issue."""
    layers: Sequence[tuple[str, int]]
    """Where, and in how many runs; the most frequent first, at most five."""
    since_first: int | None
    since_median: int | None
    """Since which step, where that is known."""
    since_last: int | None
    reason: str | None
    """The likely cause in a sentence, as most of these runs have it."""
    advice: str | None
    """What to do first, as most of them have it."""
    examples: Sequence[str]
    """Some of the runs, at most five."""

    @property
    def sentence(self) -> str:
        """`12 runs: missing_zero_grad (LOOP) in model, since step 1`."""
        where = f" in {self.layers[0][0]}" if self.layers else ""
        since = "" if self.since_median is None else f", since step {self.since_median:,}"
        return f"{self.runs:,} {'run' if self.runs == 1 else 'runs'}: {self.cause} ({self.type}){where}{since}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        layers = [{"layer": layer, "runs": runs} for layer, runs in self.layers]
        return {**asdict(self), "layers": layers, "examples": list(self.examples)}


def causes_of(tables: Tables) -> list[Cause]:
    """The causes of sick runs, the most frequent first."""
    grave = "CASE severity WHEN 'CRITICAL' THEN 4 WHEN 'HIGH' THEN 3 WHEN 'MEDIUM' THEN 2 ELSE 1 END"
    groups = tables.rows(f"""
        SELECT cause, type, arg_max(severity, {grave}), count(*), min(since), quantile_disc(since, 0.5), max(since),
            list(run ORDER BY run)[:{_MOST_EXAMPLES}]
        FROM runs WHERE NOT healthy GROUP BY cause, type ORDER BY count(*) DESC, cause
    """)
    places: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for cause, kind, layer, count in tables.rows("""
        SELECT cause, type, layer, count(*) FROM runs WHERE NOT healthy GROUP BY ALL ORDER BY count(*) DESC, layer
    """):
        places.setdefault((cause, kind), []).append((layer, count))
    words = {
        (cause, kind): rest
        for cause, kind, *rest in tables.rows("""
            SELECT cause, type, mode(reason) FILTER (place = 0), mode(advice) FILTER (place = 0),
                count(DISTINCT run) FILTER (place > 0)
            FROM issues GROUP BY cause, type
        """)
    }
    found = []
    for cause, kind, severity, runs, first, middle, last, examples in groups:
        reason, advice, also = words.get((cause, kind), (None, None, 0))
        found.append(
            Cause(
                cause=cause,
                type=kind,
                severity=severity,
                runs=runs,
                also=also,
                layers=places[cause, kind][:_MOST_LAYERS],
                since_first=first,
                since_median=middle,
                since_last=last,
                reason=reason,
                advice=advice,
                examples=examples,
            )
        )
    return found
