"""What `find` and `sort` mean in SQL: words anywhere in what is shown, conditions on settings and columns."""

from __future__ import annotations

import re
from typing import Any, Final

from gradient_flow.fleets.store import COLUMNS

_GRAVITY: Final = (
    "CASE WHEN problem IS NOT NULL THEN 1 WHEN severity = 'CRITICAL' THEN 6 WHEN severity = 'HIGH' THEN 5 "
    "WHEN state = 'failed' THEN 4 WHEN severity = 'MEDIUM' THEN 3 WHEN severity = 'LOW' THEN 2 "
    "WHEN healthy IS NULL THEN 0.5 ELSE 0 END"
)
ORDERS: Final = {
    "verdict": f"{_GRAVITY} DESC, cause NULLS LAST",
    "run": "run",
    "since": "since NULLS LAST",
    "loss": "loss NULLS LAST",
    "lr": "lr DESC NULLS LAST",
    "steps": "steps DESC NULLS LAST",
    "seconds": "seconds DESC NULLS LAST",
    "started": "started DESC NULLS LAST",
    "state": "state",
}
"""How runs can be sorted."""
_WORDS: Final = "concat_ws(' ', run, state, verdict, type, cause, severity, layer, error, message, problem)"
_CONDITION: Final = re.compile(
    r"""\s*(?P<name>"[^"]+"|[^\s"<>=!≥≤≠]+)\s*(?P<how>>=|<=|!=|==|≥|≤|≠|>|<|=)\s*(?P<value>"[^"]*"|[^\s"]+)\s*"""
)
_WORD: Final = re.compile(r"""\s*("[^"]*"|[^\s"]+|")\s*""")
_PLAIN: Final = {"≥": ">=", "≤": "<=", "≠": "!=", "==": "="}
_NUMBERS: Final = frozenset(name for name, kind in COLUMNS["runs"].items() if kind in ("int64", "float64"))


def condition_of(find: str) -> tuple[str, list[Any]]:
    """SQL for the WHERE of a query on runs, and the values that go with it.

    >>> condition_of("vanish")[1], condition_of("lr > 0.003 sgd")[1]
    (['%vanish%', '%vanish%'], ['lr', 'lr', 0.003, '%sgd%', '%sgd%'])
    """
    conditions, values, at = ["true"], list[Any](), 0
    while at < len(find):
        match = _CONDITION.match(find, at)
        if match is not None:
            condition, more = _of_setting(match["name"].strip('"'), match["how"], match["value"].strip('"'))
        else:
            match = _WORD.match(find, at)
            if match is None:
                break  # spaces at the end
            word = match[1].strip('"').replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            # Words are looked for among settings too: "adam" finds those runs.
            condition = (
                f"({_WORDS} ILIKE ? ESCAPE '\\' OR "
                "run IN (SELECT run FROM settings WHERE number IS NULL AND value ILIKE ? ESCAPE '\\'))"
            )
            more = [f"%{word}%", f"%{word}%"]
        conditions.append(condition)
        values += more
        at = match.end()
    return " AND ".join(conditions), values


def _of_setting(name: str, how: str, value: str) -> tuple[str, list[Any]]:
    how = _PLAIN.get(how, how)
    try:
        number: float | None = float(value)
    except ValueError:
        number = None
    if name in _NUMBERS and name != "lr" and number is not None:
        return f'"{name}" {how} ?', [number]
    if name in COLUMNS["runs"] and name not in _NUMBERS and name != "settings":
        return f'lower(CAST("{name}" AS VARCHAR)) {how} lower(?)', [value]
    # A setting of `config=` may be named without that word.
    named = "name IN (?, 'config ' || ?)"
    test = f"number {how} ?" if number is not None else f"lower(value) {how} lower(?)"
    return f"run IN (SELECT run FROM settings WHERE {named} AND {test})", [
        name,
        name,
        value if number is None else number,
    ]
