"""Which settings go with sickness: counts, odds, and how likely chance alone would do it.

Each setting splits the runs in two, a number at a threshold, a word against all others, and Fisher's exact test asks
whether the sick ones fall to the two sides by chance. It is exact for small counts too. Whoever tries a hundred splits
finds one by chance, so the probabilities are corrected for all splits that were tried (Holm, 1979).
That settings go together with sickness does not make them its cause.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FEWEST: Final = 3
"""Fewest runs on each side of a split, and fewest sick ones: below that, nothing stands out from chance."""
MOST_SPLITS: Final = 24
"""Thresholds that are tried of a number with more values: two in three at even shares of the runs, the others where
its values lie farthest apart. Both without a look at who is sick."""
MOST_WORDS: Final = 24
"""Different values from which on a word is a name, such as a commit, and not a setting."""
SIGNIFICANT: Final = 0.05
_NOT_COMPARED: Final = frozenset(("command", "uncommitted changes"))
_95: Final = 1.959964
"""Standard deviations that hold 95 % of a normal distribution."""

SICK: Final = "any"
"""The cause that stands for all of them."""


@dataclass(frozen=True, kw_only=True)
class Association:
    """A setting that splits the runs, and how many are sick on either side."""

    setting: str
    """`lr > 0.003`, or `optimizer = SGD`."""
    name: str
    relation: str
    value: Any
    cause: str
    """What the counted runs are sick of; `any` for sick of anything."""
    sick_with: int
    """Sick runs that have the setting …"""
    runs_with: int
    sick_without: int
    """… and the same of those that have another value."""
    runs_without: int
    odds_ratio: float | None
    """The odds of being sick with the setting over those without it; None where one of the counts is zero."""
    odds_low: float
    """95 % interval of the odds ratio, with half a run added to each count, as small numbers need."""
    odds_high: float
    p: float
    """Fisher's exact test, both sides."""
    p_adjusted: float
    """The same, corrected for all comparisons."""
    comparisons: int
    """How many splits were tried, over all settings and causes."""
    also: Sequence[str] = field(default_factory=tuple)
    """Settings that split these runs in the very same way: the runs cannot tell them apart."""
    layer: str | None = None
    """Where most of the counted runs are sick, if that is one place …"""
    in_layer: int = 0
    """… and in how many of them."""

    @property
    def significant(self) -> bool:
        """Whether chance alone would do it in fewer than 5 % of such fleets."""
        return self.p_adjusted < SIGNIFICANT

    @property
    def sentence(self) -> str:
        """`all 37 with lr > 0.003, 2 of 463 without`."""
        which = (
            f"all {self.sick_with:,}"
            if self.sick_with == self.runs_with
            else f"{self.sick_with:,} of {self.runs_with:,}"
        )
        others = "none" if self.sick_without == 0 else f"{self.sick_without:,}"
        return f"{which} with {self.setting}, {others} of {self.runs_without:,} without"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "also": list(self.also), "significant": self.significant}


@dataclass
class _Split:
    """Which runs have a setting, among those where it is known."""

    name: str
    relation: str
    value: Any
    known: NDArray[np.bool_]
    chosen: NDArray[np.bool_]
    also: list[str] = field(default_factory=list)


def associations(
    settings: Sequence[Mapping[str, str]], causes: Sequence[str | None], layers: Sequence[str | None]
) -> list[Association]:
    """What goes with sickness, the least likely by chance first; one split per setting and cause, its clearest.

    `settings`, `causes` (None: healthy) and `layers` have an entry per run.
    """
    outcomes = _outcomes(causes)
    splits = _distinct(_splits(settings))
    if not outcomes or not splits:
        return []
    names, sick = list(outcomes), np.array(list(outcomes.values()), dtype=np.float64)  # (causes, runs)
    known = np.array([split.known for split in splits], dtype=np.float64)  # (splits, runs)
    chosen = np.array([split.chosen for split in splits], dtype=np.float64)
    a, with_setting = chosen @ sick.T, chosen.sum(axis=1)  # (splits, causes), (splits,)
    all_sick, all_known = known @ sick.T, known.sum(axis=1)
    logs = _log_factorials(len(causes))
    tested = [
        (
            split,
            cause,
            _fisher(
                int(a[split, cause]), int(with_setting[split]), int(all_sick[split, cause]), int(all_known[split]), logs
            ),
        )
        for split in range(len(splits))
        for cause in range(len(names))
        if all_sick[split, cause] >= FEWEST and all_known[split] - all_sick[split, cause] >= FEWEST
    ]
    adjusted = holm([p for *_, p in tested])
    best: dict[tuple[str, str], Association] = {}
    for (split, cause, p), corrected in zip(tested, adjusted, strict=True):
        counts = (
            a[split, cause],
            with_setting[split],
            all_sick[split, cause] - a[split, cause],
            all_known[split] - with_setting[split],
        )
        found = _association(splits[split], names[cause], tuple(map(int, counts)), p, corrected, len(tested))
        key = found.name, found.cause
        if key not in best or (found.p, found.runs_with) < (best[key].p, best[key].runs_with):
            best[key] = _with_layer(found, splits[split], outcomes[names[cause]], layers)
    ordered = sorted(best.values(), key=lambda each: (each.p_adjusted, each.p, each.name, each.cause))
    return _without_repetition(ordered)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Probabilities corrected for their number: the chance that any of them is so small by chance.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(probabilities)), key=lambda at: probabilities[at])
    corrected, least = [0.0] * len(order), 0.0
    for place, at in enumerate(order):
        least = max(least, min(1.0, (len(order) - place) * probabilities[at]))
        corrected[at] = least
    return corrected


def fisher(sick_with: int, runs_with: int, sick: int, runs: int) -> float:
    """Fisher's exact test, both sides: how likely chance parts the sick runs as unevenly as this, or more so.

    Fisher's tea: eight cups, four with milk first, all four recognised.

    >>> round(fisher(4, 4, 4, 8), 4)
    0.0286
    """
    return _fisher(sick_with, runs_with, sick, runs, _log_factorials(runs))


def _fisher(hits: int, drawn: int, good: int, total: int, logs: NDArray[np.float64]) -> float:
    possible = np.arange(max(0, drawn + good - total), min(drawn, good) + 1)
    ways = (
        _log_choose(logs, good, possible)
        + _log_choose(logs, total - good, drawn - possible)
        - _log_choose(logs, total, np.array(drawn))
    )
    chances = np.exp(ways)
    # What is as likely as the case itself belongs to it, whatever the last digits say.
    as_rare = chances <= chances[hits - possible[0]] * (1 + 1e-7)
    return float(min(1.0, chances[as_rare].sum()))


def _log_factorials(most: int) -> NDArray[np.float64]:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, most + 1, dtype=np.float64)))])


def _log_choose(logs: NDArray[np.float64], total: int, drawn: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(logs[total] - logs[drawn] - logs[total - drawn])


def _outcomes(causes: Sequence[str | None]) -> dict[str, NDArray[np.bool_]]:
    """Which runs are sick of each cause that several are sick of, and of any."""
    found = {SICK: np.array([cause is not None for cause in causes])}
    for cause in sorted({cause for cause in causes if cause is not None}):
        found[cause] = np.array([each == cause for each in causes])
    if len(found) == 2:
        del found[SICK]  # there is but one cause: the same question twice
    return {cause: which for cause, which in found.items() if which.sum() >= FEWEST}


def _splits(settings: Sequence[Mapping[str, str]]) -> list[_Split]:
    splits: list[_Split] = []
    for name in sorted({name for each in settings for name in each}):
        if name in _NOT_COMPARED or name.startswith("version of gradient"):
            continue
        texts = [each.get(name) for each in settings]
        known = np.array([text is not None for text in texts])
        numbers = [_number(text) for text in texts if text is not None]
        if len(numbers) and not any(number is None for number in numbers):
            splits += _thresholds(name, known, np.array(numbers, dtype=np.float64))
        else:
            splits += _words(name, known, texts)
    return [split for split in splits if min(split.chosen.sum(), split.known.sum() - split.chosen.sum()) >= FEWEST]


def _thresholds(name: str, known: NDArray[np.bool_], numbers: NDArray[np.float64]) -> list[_Split]:
    values = np.unique(numbers)
    cuts = values[:-1]
    if len(cuts) > MOST_SPLITS:
        apart = MOST_SPLITS // 3
        shares = np.arange(1, MOST_SPLITS - apart + 1) / (MOST_SPLITS - apart + 1)
        # Rates lie apart by their ratio: 0.1 and 3 farther than 1e-4 and 1e-1 are by their difference.
        distances = np.diff(np.log(values) if values[0] > 0 else values)
        farthest = np.argsort(-distances, kind="stable")[:apart]
        cuts = np.union1d(np.quantile(numbers, shares, method="lower"), values[farthest])
        cuts = cuts[cuts < values[-1]]
    splits = []
    for cut in cuts:
        chosen = np.zeros(len(known), dtype=bool)
        chosen[known] = numbers > cut
        splits.append(_Split(name, ">", float(cut), known, chosen))
    return splits


def _words(name: str, known: NDArray[np.bool_], texts: Sequence[str | None]) -> list[_Split]:
    values = sorted({text for text in texts if text is not None})
    if not 1 < len(values) <= MOST_WORDS:
        return []
    # Of two values one split says it all.
    return [
        _Split(name, "=", value, known, np.array([text == value for text in texts]))
        for value in (values[:1] if len(values) == 2 else values)
    ]


def _distinct(splits: Sequence[_Split]) -> list[_Split]:
    """Splits that part the runs alike are one comparison, not several."""
    found: dict[bytes, _Split] = {}
    for split in splits:
        chosen, rest = np.packbits(split.chosen).tobytes(), np.packbits(split.known & ~split.chosen).tobytes()
        same = found.get(chosen + rest) or found.get(rest + chosen)
        if same is None:
            found[chosen + rest] = split
        elif split.name != same.name and split.name not in same.also:
            same.also.append(split.name)
    return list(found.values())


def _association(
    split: _Split, cause: str, counts: tuple[int, ...], p: float, corrected: float, comparisons: int
) -> Association:
    hits, drawn, others, rest = counts
    relation, value = split.relation, split.value
    if hits * rest < others * drawn:  # sicker on the other side: report that side
        hits, drawn, others, rest = others, rest, hits, drawn
        relation = {">": "≤", "=": "≠"}[relation]
    low, high = _interval(hits, drawn, others, rest)
    plain = hits * (rest - others), others * (drawn - hits)
    return Association(
        setting=f"{split.name} {relation} {_shown(value)}",
        name=split.name,
        relation=relation,
        value=value,
        cause=cause,
        sick_with=hits,
        runs_with=drawn,
        sick_without=others,
        runs_without=rest,
        odds_ratio=plain[0] / plain[1] if all(plain) else None,
        odds_low=low,
        odds_high=high,
        p=p,
        p_adjusted=corrected,
        comparisons=comparisons,
        also=tuple(split.also),
    )


def _interval(hits: int, drawn: int, others: int, rest: int) -> tuple[float, float]:
    cells = [count + 0.5 for count in (hits, drawn - hits, others, rest - others)]
    middle = math.log(cells[0] * cells[3] / (cells[1] * cells[2]))
    spread = _95 * math.sqrt(sum(1 / cell for cell in cells))
    return math.exp(middle - spread), math.exp(middle + spread)


def _with_layer(
    found: Association, split: _Split, sick: NDArray[np.bool_], layers: Sequence[str | None]
) -> Association:
    chosen = split.chosen if found.relation in (">", "=") else split.known & ~split.chosen
    places = [layers[at] for at in np.flatnonzero(chosen & sick).tolist()]
    counted: dict[str | None, int] = {}
    for place in places:
        counted[place] = counted.get(place, 0) + 1
    layer = max(counted, key=lambda each: (counted[each], str(each)), default=None)
    if layer is None or layer == "model" or 2 * counted[layer] <= len(places):
        return found
    return replace(found, layer=layer, in_layer=counted[layer])


def _without_repetition(ordered: Sequence[Association]) -> list[Association]:
    """Without what is said of any cause where all those runs are sick of one, and that is said."""
    named = {(each.setting, each.sick_with) for each in ordered if each.cause != SICK}
    return [each for each in ordered if each.cause != SICK or (each.setting, each.sick_with) not in named]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
