"""BOTTLENECK: a narrow place on the main path that loses what the layers around it could carry.

Norms cannot see it: the gradient keeps its size and loses its directions. The effective rank tells: of the gradient
that comes back through the place, against that of the gradient at the output, and of the values. Places inside residual
branches and adapters are not on the main path and cannot be bottlenecks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from gradient_flow.diagnosis.advice import by_itself
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.record import AnalysisRecord, Place
from gradient_flow.diagnosis.robust import fell_beyond_noise, loss_change
from gradient_flow.diagnosis.words import count, percent, plain

NARROW: Final = 0.5
"""At most this share of the units before it and of those after it."""
NARROW_WORDS: Final = 0.1
"""The same of an embedding: a quarter of the width behind it is not unusual."""
LOW_SCORE: Final = 0.5
VERY_LOW: Final = 0.34
CODE: Final = 0.75
"""Numbers of an autoencoder's code over the effective rank of its data, which is less than their dimension."""
CODE_HERE: Final = 0.5
"""The same at each position of a code that has an extent, over the rank of what a position stands for: neighbours can
help out."""
BLOCKED: Final = 0.1
"""Share of samples to which a narrow layer of ReLUs gives no gradient at all."""
_COMES_ALONG, _FALLS, _STUCK = 0.35, 0.6, 0.9
"""Shares of the first loss."""
_LEAST_LOSSES: Final = 20
_LEAST_TO_LEARN: Final = 40
TINY: Final = 2
"""Units of a code that can hold next to nothing, where the last layer makes one and nothing weighs it any more."""
_MUCH_WIDER: Final = 8
"""Times as many units before such a code, and directions that the loss asks of what is made of it."""
_WIDER, _HALF = 5, 0.5
"""The same of a code of one number, and the share of the first loss that is left. Five marks in an order, for which one
number is enough, ask for four directions.
"""
LOW_OF_ONE: Final = 0.6
"""The score of one number that is low where nothing is learnt: more than one direction and a half is asked for."""
_LITTLE: Final = 0.75
"""The share of the first loss that is left where keys and values are made of one number each."""
_OF_PRODUCT: Final = 0.6
"""The same of a product of two single numbers, which was 0.71 to 0.9. One number that holds all of its data leaves less
than half of it."""
_PAIR, _SUMS = 2, 0.01
"""Towers, and what their gradients differ by where they are added."""
_ALL_THERE_IS: Final = "it is all that layers behind it get to know of a sample"
_ALL_IN_BRANCH: Final = "what the second gives lies on a line, and little is learnt"
_TO_COMPARE: Final = "it is all that samples are told apart by"
_RECURRENT: Final = frozenset({"RNN", "LSTM", "GRU"})
_GUESSES: Final = 0.5
"""Share of the loss of a guess among all alternatives that is left: with a code of two numbers 0.7 to 0.8 for 64 pairs
of a batch, with one of 24 numbers 0.1."""
_MUCH_WIDER_WORDS: Final = 16
"""Times the width of an embedding of one number."""
_SHARE, _BETA = 0.5, 0.25
"""Hanin (2018): gradients of a random ReLU net vary like exp(sum of 1/width); one layer with most of a large sum."""


@dataclass(frozen=True)
class _Narrow:
    place: Place
    units_around: int
    """The smaller of the widest before and the widest after."""
    score: float
    blocked: float
    share: float
    beta: float


def bottlenecks(record: AnalysisRecord) -> Iterator[Issue]:
    """The narrowest place of each chain that loses rank, blocks samples, or makes gradients erratic by its width."""
    known = {index for chain in record.chains for index in chain}
    others = [place for index, place in enumerate(record.places) if index not in known]
    for chain in record.chains:
        places = [record.places[index] for index in chain]
        heads = [] if _meets_a_tower(record, places) else heads_of(places, others)
        # The one that is asked for most stands for all.
        found = _judged(record, [*places, *sorted(heads, key=lambda head: head.gradient_rank or 0.0)[-1:]])
        if found:
            worst = min(found, key=lambda narrow: (narrow.score, narrow.place.units, narrow.place.order))
            if not (_is_passed_by(record, chain, worst.place) and loss_change(record.losses) < _FALLS):
                yield _issue(worst, learns=_learns(record))
                return
    compared = _compared_by_few(record)
    if compared is not None:
        yield _issue(compared, learns=False, what=_TO_COMPARE)
        return
    squeezed = _one_in_a_branch(record)
    if squeezed is not None:
        yield _issue(squeezed, learns=False, what=_ALL_IN_BRANCH)
        return
    yield from _single_numbers(record)


def _one_in_a_branch(record: AnalysisRecord) -> _Narrow | None:
    """One number between two wide layers of a branch, with nothing else between them, where little is learnt: keys and
    values that are made of a latent of each token, say.

    A wide layer that takes one number gives a line. An adapter of rank 1 beside a frozen layer does so on purpose.
    """
    change = loss_change(record.losses, _LEAST_TO_LEARN)
    if not _LITTLE < change < math.inf or any(not layer.trainable for layer in record.layers):
        return None
    known = {index for chain in record.chains for index in chain}
    made = [(index, place) for index, place in enumerate(record.places) if place.own_weights]
    for (index, down), (_, up) in pairwise(made):
        before, behind = record.layer(down.name), record.layer(up.name)
        if before is None or behind is None or index in known or up.order != down.order + 1:
            continue
        one = down.units == 1 == behind.takes and down.positions == up.positions
        if one and min(before.takes or 0, up.units) >= _MUCH_WIDER_WORDS:
            around = min(before.takes or 0, up.units)
            return _Narrow(down, around, 1 / around, 0.0, 1.0, 1.0)
    return None


def _compared_by_few(record: AnalysisRecord) -> _Narrow | None:
    """A code of one or two numbers at the end of a chain, by which samples are told from many others of their batch.

    What the loss makes of it is no layer's: similarities, of which a softmax picks one.
    """
    among = record.alternatives or 0
    losses = [loss for loss in record.losses if math.isfinite(loss)]
    if record.classes or len(losses) < _LEAST_LOSSES:
        return None
    guesses = median(losses[-(len(losses) // 5) :]) > _GUESSES * math.log(max(2, among))
    for chain in record.chains if guesses else ():
        places = [record.places[index] for index in chain]
        code, before = places[-1], max((p.units for p in places[:-1] if p.own_weights), default=0)
        tiny = code.own_weights and code.positions == 1 and code.units <= TINY
        if tiny and min(among, code.samples, before) >= _MUCH_WIDER * code.units:
            return _Narrow(code, before, code.units / min(among, before), 0.0, 1.0, 1.0)
    return None


def _single_numbers(record: AnalysisRecord) -> Iterator[Issue]:
    """One number that stands for a whole sample where no chain passes: the mean of a variational code beside its
    spread, or what one of two towers gives, which are multiplied; and little is learnt."""
    change = loss_change(record.losses, _LEAST_LOSSES)
    mean = _mean_of_code(record) if _HALF < change < math.inf else None
    place, around = mean or (_tower_of_one(record) if _OF_PRODUCT < change < math.inf else None) or (None, 0)
    if place is not None:
        yield _issue(_Narrow(place, around, 1.0, 0.0, 1.0, 1.0), learns=False, what=_ALL_THERE_IS)


def _mean_of_code(record: AnalysisRecord) -> tuple[Place, int] | None:
    """The first of two layers of one unit side by side, between wide ones, in a model that gives back its data."""
    weighted = [place for place in record.places if place.own_weights and place.typical_gradient is not None]
    if not weighted or record.input_units < _MUCH_WIDER or not _is_autoencoder(record, weighted[-1]):
        return None
    for before, mean, spread, after in zip(weighted, weighted[1:], weighted[2:], weighted[3:], strict=False):
        pair = mean.size == spread.size == 1 and mean.name != spread.name
        if pair and min(before.units, after.units) >= _MUCH_WIDER:
            return mean, min(before.units, after.units)
    return None


def _tower_of_one(record: AnalysisRecord) -> tuple[Place, int] | None:
    """The end of the first of two ways from inputs of their own, each of one number, to a product of both.

    Numbers that are added have the same gradient; those of a product have each other's size in it.
    """
    ends: dict[int, list[tuple[Place, int]]] = {}
    for chain in record.chains:
        places = [record.places[index] for index in chain]
        weighted = [place for place in places if place.own_weights]
        if len(weighted) > 1 and not places[-1].own_weights and places[-1].size == weighted[-1].size == 1:
            ends.setdefault(chain[-1], []).append((weighted[-1], max(place.units for place in weighted)))
    for towers in ends.values():
        gradients = [place.typical_gradient or 0.0 for place, _ in towers]
        own = len({place.name for place, _ in towers}) == len(towers) == _PAIR
        differ = own and max(gradients) > (1 + _SUMS) * min(gradients) > 0
        if differ and min(units for _, units in towers) >= _MUCH_WIDER:
            return towers[0]
    return None


def width_of_input(input_units: int, input_size: int, positions: int) -> int:
    """Numbers of the input for each position of a place: a picture of one channel that is cut into squares has many."""
    return max(input_units, input_size // max(1, positions))


def _given(record: AnalysisRecord, place: Place) -> int:
    """Numbers of the input behind each of its outputs: of a recurrent layer, the whole sequence up to it."""
    if place.kind in _RECURRENT:
        return record.input_size
    return width_of_input(record.input_units, record.input_size, place.positions)


def worth_ranking(record: AnalysisRecord, places: Sequence[Place], heads: int) -> list[int]:
    """Which places of a chain may be too narrow: without a rank nothing is said of them. `heads` of them end it."""
    found = []
    for index, place in enumerate(places[: len(places) - max(1, heads)]):
        before = [p.units for p in places[:index] if p.own_weights] + [_given(record, place)]
        words = not index and record.input_size == 0
        after = _units_behind(record, places[index + 1 :])
        narrow = place.units <= NARROW * (after if words else min(max(before), after))
        if (narrow and _is_made(place, index)) or (place.own_weights and place.units <= TINY):
            found.append(index)
    return found


def _is_made(place: Place, index: int) -> bool:
    """Whether layers made it: one by itself, or several in a sum that another takes."""
    return place.own_weights or (place.role == "input" and bool(index))


def _units_behind(record: AnalysisRecord, later: Sequence[Place]) -> int:
    """Units of the widest layer behind a place. What gives the data back by the same weights, or by matrices of the
    model's own, is no layer, and as wide as the data.
    """
    back = later[-1].units if later and _is_autoencoder(record, later[-1]) else 0
    return max([back, *(place.units for place in later if place.own_weights)])


def _is_tiny_code(record: AnalysisRecord, place: Place, later: Sequence[Place], before: int) -> bool:
    """Whether the last layer gives one or two numbers of which the model makes many by itself: similarities, say."""
    if not place.own_weights or any(each.own_weights for each in later) or place.units > TINY:
        return False
    stays = place.units == 1 and len(record.losses) >= _LEAST_LOSSES and loss_change(record.losses) > _HALF
    asked = later[-1].gradient_rank or 0.0
    return place.positions == 1 and min(before, asked) >= (_WIDER if stays else _MUCH_WIDER) * place.units


def _is_single_word(record: AnalysisRecord, place: Place, later: Sequence[Place]) -> bool:
    """Whether a table has one number for each word, of which the output alone is made, and the loss asks for far more.

    Of 50 songs that were named from the mean of others 0.58 to 0.7 of the first loss was left, and the loss asked for
    13 to 18 directions; with vectors of 24 numbers 0.15 was left. A worth of each word that others are added to is no
    such table: what it makes is one number too.
    """
    layers = [each for each in later if each.own_weights]
    behind = record.layer(layers[0].name) if len(layers) == 1 else None
    alone = place.kind.startswith("Embedding") and place.units == 1 and record.input_size == 0
    if not alone or behind is None or behind.takes != 1 or layers[0] is not later[-1]:
        return False
    stays = _HALF < loss_change(record.losses, _LEAST_TO_LEARN) < math.inf
    return stays and min(later[-1].units, later[-1].gradient_rank or 0.0) >= _WIDER


def _is_output(place: Place, later: Sequence[Place]) -> bool:
    """Whether it is the output, which only takes another form behind it: a score of one number for each of five lanes,
    say, from one net for all of them."""
    whole = place.size == later[-1].size and place.samples == later[-1].samples
    return place.positions > 1 and whole and not any(each.own_weights for each in later)


def heads_of(chain: Sequence[Place], others: Iterable[Place]) -> list[Place]:
    """The heads that a chain ends in, where it ends in several side by side; `others` are on no chain."""
    if not chain or chain[-1].own_weights:
        return []
    last = max((place.order for place in chain if place.own_weights), default=-1)
    others = [place for place in others if place.own_weights]
    later = [place for place in others if place.order > last and place.typical_gradient is not None]
    ran = {place.name for place in (*chain, *others) if place.own_weights and place.order <= last}
    # A second input enters: another tower, no head. A layer that ran before, on the chain or in a branch of it, runs
    # again: a loop that unrolls an answer, or a tower that shares its weights.
    return [] if any(place.from_data or place.name in ran for place in later) else later


def _meets_a_tower(record: AnalysisRecord, places: Sequence[Place]) -> bool:
    """Whether a second input enters behind its last layer: branches inside of that other tower are no heads of this."""
    last = max((place.order for place in places if place.own_weights), default=-1)
    return any(record.places[other[0]].order > last for other in record.chains if other)


def _judged(record: AnalysisRecord, places: list[Place]) -> list[_Narrow]:
    if len(places) < 2:
        return []
    weighted = [place for place in places if place.own_weights]
    beta = math.fsum(1 / max(place.units, 1) for place in weighted[:-1])
    task = places[-1].gradient_rank or 1.0
    found = []
    for index, place in enumerate(places[:-1]):
        # Only what layers make counts: a matrix of similarities is as wide as the batch.
        before = max([p.units for p in places[:index] if p.own_weights] + [_given(record, place)])
        later = places[index + 1 :]
        word = not index and _is_single_word(record, place, later)
        if word or _is_tiny_code(record, place, later, before):
            score = place.units / (places[-1].gradient_rank or math.inf)
            found.append(
                _Narrow(place, later[-1].units if word else before, score, place.empty_samples or 0.0, 1.0, beta)
            )
            continue
        if _is_output(place, later):
            continue
        limit = NARROW
        words = not index and (record.input_size == 0 or _is_all_of_a_kind(record, place))
        if not index and not words and _is_one_of_many(record, place, places[index + 1]):
            continue
        if words:
            # Token inputs have no width; treat it as unbounded. The vocabulary at the output does not count either.
            before, later, limit = record.largest_width, later[:-1], NARROW_WORDS
        after = _units_behind(record, later)
        if not _is_made(place, index) or place.units > limit * min(before, after):
            continue
        if _is_small_code(record, place, places[-1]):
            score = place.size / (record.sample_rank or 1.0)
            found.append(_Narrow(place, min(before, after), score, place.empty_samples or 0.0, 0.0, beta))
            continue
        if _is_thin_code(record, place, places[-1]):
            score = place.units / (place.patch_rank or 1.0)
            found.append(_Narrow(place, min(before, after), score, place.empty_samples or 0.0, 0.0, beta))
            continue
        if _is_code(record, place, places[-1]) or _has_bypass(record, places, index):
            continue
        score = _score(record, place, places[0], task)
        # A narrow stretch counts whole.
        share = max(1, sum(p.units <= place.units for p in weighted[:-1])) / place.units / beta
        narrow = _Narrow(place, min(before, after), score, place.empty_samples or 0.0, share, beta)
        # Without an activation behind it nothing is switched on and off: a data space between two nets is none. What is
        # as wide as the data is one too, whatever bounds it.
        data = 0 < record.input_units <= place.units
        single = words and place.units == 1 and after >= _MUCH_WIDER_WORDS
        if _counts(record, narrow, switched=(not places[index + 1].own_weights and not data) or single):
            found.append(narrow)
    return found


def _is_one_of_many(record: AnalysisRecord, place: Place, behind: Place) -> bool:
    """Whether it is a table for one column of the input, and goes on as a part of something wider.

    It holds what that column says, and the others go beside it.
    """
    taken = [p for p in record.places if p.name == behind.name and p.call == behind.call and p.role == "input"]
    wider = any(p.units > place.units and p.positions == place.positions for p in taken)
    return place.kind == "Embedding" and wider


def _is_all_of_a_kind(record: AnalysisRecord, place: Place) -> bool:
    """Whether one number stands for a word beside numbers of the data, and nothing is learnt: a worth may be enough."""
    return place.kind == "Embedding" and place.units == 1 and _is_stuck(record)


def _is_stuck(record: AnalysisRecord) -> bool:
    return len(record.losses) >= _LEAST_LOSSES and loss_change(record.losses) > _STUCK


def _counts(record: AnalysisRecord, narrow: _Narrow, *, switched: bool) -> bool:
    place = narrow.place
    structural = narrow.share > _SHARE and narrow.beta >= _BETA
    least = LOW_OF_ONE if place.units == 1 and _is_stuck(record) else LOW_SCORE
    low = narrow.score < least or narrow.blocked > BLOCKED
    if place.positions == 1:
        return (structural and switched) or low
    if place.kind.startswith(("Conv", "LazyConv")):
        return structural and low  # few channels still have all their positions: only an extreme one counts
    least = LOW_SCORE if place.units == 1 else VERY_LOW
    return low and narrow.score < least and place.units <= 0.5 * NARROW * narrow.units_around


def _score(record: AnalysisRecord, place: Place, first: Place, task: float) -> float:
    """1 if nothing is lost: the smaller of what is left of the gradient's rank and of the values' rank."""
    backward = (place.gradient_rank or math.inf) / task
    given = record.sample_rank if place is first else first.rank
    before = max([rank for rank in (given, record.input_rank) if rank is not None], default=math.inf)
    wanted = min(before, task)
    forward = place.rank / wanted if place.rank is not None and wanted < math.inf else math.inf
    return min(backward, forward, 1.0)


def _is_code(record: AnalysisRecord, place: Place, output: Place) -> bool:
    """Whether this is the code of an autoencoder that is wide enough for its data: then it is meant."""
    if not _is_autoencoder(record, output):
        return False
    if record.input_rank is None and place.positions == output.positions > 1:
        return False  # as many positions as the picture has: nothing is put into a code
    if record.input_rank is None or place.units >= CODE * record.input_rank:
        return True
    # Data that bend have fewer causes than directions: where most of those fit in, and it learns, it is wide enough.
    return place.units >= CODE_HERE * record.input_rank and fell_beyond_noise(record.losses)


def _is_small_code(record: AnalysisRecord, place: Place, output: Place) -> bool:
    """Whether an autoencoder of images or sequences keeps far fewer numbers than its data have directions."""
    small = record.sample_rank is not None and place.size < CODE * record.sample_rank
    return small and record.input_rank is None and _is_autoencoder(record, output)


def _is_thin_code(record: AnalysisRecord, place: Place, output: Place) -> bool:
    """Whether a net from picture to picture has far fewer channels than the squares between them have directions."""
    thin = place.patch_rank is not None and place.units <= CODE_HERE * place.patch_rank
    return thin and place.positions < output.positions and _is_autoencoder(record, output)


def _is_autoencoder(record: AnalysisRecord, output: Place) -> bool:
    return record.classes is None and 0 < record.input_size == output.size


def _has_bypass(record: AnalysisRecord, places: list[Place], index: int) -> bool:
    """Whether a frozen layer ran beside it: values may take that way, which the graph of gradients does not show."""
    start = places[index - 1].order if index else -1
    frozen = {layer.name for layer in record.layers if not layer.trainable}
    return any(place.name in frozen and start < place.order < places[index + 1].order for place in record.places)


def _is_passed_by(record: AnalysisRecord, chain: Sequence[int], place: Place) -> bool:
    """Whether another way from the data, wide all along, comes to the same output: a branch beside a layer."""
    others = [[record.places[index] for index in each] for each in record.chains if set(each) & set(chain)]
    ways = [each for each in others if place not in each and each[-1] is record.places[chain[-1]]]
    return any(min((p.units for p in way[:-1] if p.own_weights), default=0) >= 2 * place.units for way in ways)


def _learns(record: AnalysisRecord) -> bool:
    """Whether the training comes along well through what is narrow: it may be as wide as the task needs."""
    losses = [loss for loss in record.losses if math.isfinite(loss)]
    last = losses[-max(3, len(losses) // 5) :]
    return len(losses) >= _LEAST_LOSSES and 0 < median(last) < _COMES_ALONG * median(losses[:3])


def _issue(narrow: _Narrow, *, learns: bool, what: str = "") -> Issue:
    place = narrow.place
    low = narrow.score < VERY_LOW or narrow.blocked > 0.25
    parts = [what] if what else []
    if narrow.score < CODE and narrow.share == 0:
        parts.append(
            f"{place.size:,} numbers have to hold data with {plain(place.size / narrow.score, 2)} directions or more"
        )
    elif not what and narrow.score < (LOW_OF_ONE if place.units == 1 else LOW_SCORE):
        parts.append(f"{percent(1 - narrow.score)} of the directions that the loss asks for are lost")
    if narrow.blocked > BLOCKED:
        parts.append(f"{percent(narrow.blocked)} of the samples get no gradient")
    if not parts:
        parts.append(f"it causes {percent(narrow.share)} of the variation of gradients between units")
    unit = "channel" if place.positions > 1 and "Conv" in place.kind else "unit"
    wider = max(2 * place.units, min(narrow.units_around, math.ceil(place.units / max(narrow.score, 0.05))))
    return Issue(
        issue_type=IssueType.BOTTLENECK,
        severity=IssueSeverity.HIGH if low else IssueSeverity.LOW if learns else IssueSeverity.MEDIUM,
        layer=place.name,
        message=f"{count(place.units, unit)} between layers with {narrow.units_around:,} or more: "
        f"{' and '.join(parts)}.",
        evidence={
            "units": place.units,
            "units_around": narrow.units_around,
            "score": narrow.score,
            "gradient_rank": place.gradient_rank,
            "rank": place.rank,
            "samples_without_gradient": narrow.blocked,
            "share_of_inverse_widths": narrow.share,
            "sum_of_inverse_widths": narrow.beta,
        },
        cause="this layer is much narrower than those before and after it, and nothing bypasses it.",
        advice=[
            f"Widen `{place.name}` to at least {count(wider, unit)}.",
            by_itself("Add a skip connection around it, so that information can bypass it.", "bypass"),
        ],
        step=1,
    )
