"""What is known of each tensor between modules: from what hooks kept of a step to a `Place` per tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradient_flow.capture.main_path import Bend
from gradient_flow.capture.module_calls import Passage
from gradient_flow.diagnosis.network.bottleneck import heads_of, worth_ranking
from gradient_flow.diagnosis.network.record import Activation, AnalysisRecord, Place
from gradient_flow.table import samples
from gradient_flow.table.sums import Sums

Key = tuple[str, str, int]
_MOST_RANKS: Final = 12
_WIDE: Final = 8
_SPREAD: Final = 2.0
"""Units and effective rank that a layer must be given before it can lose them."""
TWO: Final = 2
_LEAST_VECTORS: Final = 32
_LEAST_POSITIONS: Final = 4
_MOST_SILENT: Final = 8
"""Looks of which it is remembered which units were silent, where not all are."""
QUIET: Final = 0.3
"""Share of silent units from which on it matters whether the others vary."""


class Seen:
    """What a hook keeps of one tensor: a row of sums and, from a few rows, what units did."""

    __slots__ = ("any_unit", "reach", "row", "rows", "units")

    def __init__(
        self,
        row: Any,
        rows: torch.Tensor | None,
        units: torch.Tensor | NDArray[np.bool_] | None,
        *,
        any_unit: bool = True,
        reach: float | None = None,
    ) -> None:
        self.row, self.rows, self.units, self.reach = row, rows, units, reach
        self.any_unit = any_unit
        """Whether `units` may be true of one, as far as that is known without waiting for a device."""

    def sums(self) -> NDArray[np.float64]:
        """The row; on an accelerator this is where the host waits."""
        rows: NDArray[np.float64] = self.row() if callable(self.row) else self.row
        first: NDArray[np.float64] = rows[0]
        return first


class PlaceRecords:
    """Places by key, filled step by step."""

    def __init__(self) -> None:
        self._places: dict[Key, Place] = {}
        self._silent: dict[Key, list[NDArray[np.bool_]]] = {}
        self._ranks: dict[Key, tuple[list[float], list[float], list[float]]] = {}
        self._bends: dict[tuple[str, str], list[Activation]] = {}
        """By layer and, of those beside the main path, kind."""
        self._even: set[Key] = set()
        """Places with the same values at all positions in every look so far, of which the first tells."""
        self._ends: set[Key] = set()
        """Places that a layer gives which ends several chains: views that the loss compares."""
        self._open: set[Key] = set()
        """Places of which it is not known yet whether values lie on a line, and those before them."""

    def wants_values(self, key: Key) -> bool:
        """Whether rows of its values are of use at the end of a close look; of a new place all may be."""
        return key not in self._places or any(key in each for each in (self._ranks, self._open, self._even, self._ends))

    def wants_gradients(self, key: Key) -> bool:
        """The same of rows of its gradient."""
        return key not in self._places or key in self._ranks

    def keep(
        self, passages: Sequence[Passage], index: int, weighted: Mapping[nn.Module, str], scale: float = 1.0
    ) -> None:
        """The passages of the look of this index, after backward; gradients carry the `scale` of the loss."""
        silent: dict[Key, NDArray[np.bool_]] = {}
        forward = Sums([passage.forward.sums() for passage in passages])
        backward = Sums([None if passage.backward is None else passage.backward.sums() for passage in passages])
        for position, passage in enumerate(passages):
            place = self._places.get(passage.key) or self._new_place(passage, passages, weighted)
            came = passage.backward is not None and math.prod(passage.shape) > 0  # an expert may be given no rows
            place.add(
                index,
                rms=forward.rms[position],
                gradient=backward.norm[position] / scale if came else None,
                bad_values=forward.bad[position],
                bad_gradients=backward.bad[position],
            )
            if came and passage.backward.reach is not None:
                place.reach = passage.backward.reach
            if place.own_weights and came and passage.forward.units is not None:
                units = _silent(passage.forward, passage.backward)
                first = (passage.path, "output", 0)
                same = first in silent and silent[first].shape == units.shape
                silent[first] = silent[first] & units if same else units
                place.rows_seen += min(samples.ROWS, passage.shape[0] * place.positions)
                if passage.forward.rows is not None and (samples.share_in_all([units]) or 0.0) >= QUIET:
                    place.variation = samples.variation(passage.forward.rows)
        for key, units in silent.items():
            self._silent.setdefault(key, []).append(units)

    def note_bends(self, bends: Sequence[Bend], passages: Sequence[Passage], weighted: Mapping[nn.Module, str]) -> None:
        """Bounded activations, on the main path and beside it."""
        for bend in bends:
            layer = layer_of(bend.feeding, passages, weighted)
            self._note_bend(layer, bend.kind, bend.slopes, bend.is_last, bend.in_branch, bend.above)

    def note_states(self, passages: Sequence[Passage]) -> None:
        """A plain recurrent layer returns what its tanh gave: its slope can be read from that."""
        for passage in passages:
            tanh = vars(passage.module).get("nonlinearity") == "tanh"
            if tanh and passage.role == "output" and passage.forward.rows is not None:
                self._note_bend(passage.path, "Tanh", samples.tanh_slopes(passage.forward.rows), False)

    def note_kinds(self, passages: Sequence[Passage]) -> None:
        """How many different vectors embeddings give; the ids themselves need not be known for that."""
        for passage in passages:
            size = vars(passage.module).get("num_embeddings", 0)
            told = size >= _WIDE or 0 < size <= TWO  # a small table may be one of kinds, or of what ids are folded onto
            if told and passage.role == "output" and passage.forward.rows is not None:
                rows = passage.forward.rows.flatten(0, 1)
                if len(rows) >= _LEAST_VECTORS:
                    place = self._places[passage.key]
                    place.kinds, place.table_rows = max(place.kinds or 0, samples.distinct(rows)), size

    def _note_bend(
        self, layer: str, kind: str, slopes: torch.Tensor, is_last: bool, in_branch: bool = False, above: float = 0.5
    ) -> None:
        activation = Activation(
            layer=layer,
            kind=kind,
            flat_share=samples.share_below(slopes, samples.FLAT),
            mean_slope=samples.average(slopes),
            is_last=is_last,
            in_branch=in_branch,
            above=above,
        )
        self._bends.setdefault((layer, kind if in_branch else ""), []).append(activation)

    def rank(
        self,
        passages: Mapping[Key, Passage],
        chains: Sequence[Sequence[Key]],
        record: AnalysisRecord,
        pictures: torch.Tensor | None = None,
    ) -> None:
        """Ranks where a narrow place makes them a question: there, at the first place and at the output.

        `pictures` are some of the input, (samples, channels, *extent).
        """
        known = {key for chain in chains for key in chain}
        key_of = {place.order: key for key, place in self._places.items()}
        others = [place for key, place in self._places.items() if key not in known and key in passages]
        asked: dict[Key, Passage] = {}  # once each: chains from several inputs share most of their places
        for chain in chains:
            here = [passages[key] for key in chain if key in passages]
            heads = heads_of([self._places[passage.key] for passage in here], others)
            here += [passages[key_of[head.order]] for head in heads]
            narrow = worth_ranking(record, [self._places[passage.key] for passage in here], len(heads))
            ends = here[-len(heads) :] if heads else here[-1:]
            pictorial = bool(here) and samples.units_come_second(here[0].module, here[0].shape)
            same_size = bool(here) and self._places[here[-1].key].size == record.input_size
            if pictures is not None and pictorial and not heads and same_size:
                for place in (self._places[here[at].key] for at in narrow):
                    if place.patch_rank is None and place.positions > 1:
                        place.patch_rank = samples.patch_rank(pictures, place.positions)
            chosen = [*(here[at] for at in narrow[:_MOST_RANKS]), here[0], *ends] if narrow else []
            asked |= {passage.key: passage for passage in chosen}
        wanted: list[tuple[list[float], torch.Tensor, bool]] = []
        for key, passage in asked.items():
            values, gradients, empty = self._ranks.setdefault(key, ([], [], []))
            if passage.forward.rows is not None:
                wanted.append((values, passage.forward.rows, True))
            if passage.backward is not None and passage.backward.rows is not None:
                wanted.append((gradients, passage.backward.rows, False))
                empty.append(samples.empty_samples(passage.backward.rows))
        found = samples.effective_ranks([(rows, centred) for _, rows, centred in wanted])
        for (into, _, _), rank in zip(wanted, found, strict=True):
            into.append(rank)

    def note_lines(
        self, passages: Mapping[Key, Passage], chains: Sequence[Sequence[Key]], batch: torch.Tensor | None
    ) -> None:
        """Layers whose values lie on a line, or are the same for all samples, although what came to them does not.

        `batch` are rows of the input.
        """
        self._open = set()
        for chain in chains:
            before, last = batch, None
            for passage in (passages[key] for key in chain if key in passages):
                place, rows = self._places[passage.key], passage.forward.rows
                if not place.own_weights:
                    made = place.on_a_line is None and rows is not None and place.units >= _WIDE and _is_linear(place)
                    if made and before is not None and last is not None:
                        place.on_a_line = samples.are_on_a_line(rows) and _spreads(before)
                    continue
                if last is not None and before is not None and rows is not None:
                    if samples.are_one(rows) and _spreads(before.flatten(1)):
                        place.looks_as_one += 1
                        self._open |= {last, passage.key}
                    else:
                        place.looks_as_one = 0
                # The first layer of a branch may take another input than the one whose rows are known.
                wide = vars(passage.module).get("in_features", _WIDE) >= _WIDE
                if place.on_a_line is None and wide:
                    if before is not None and rows is not None:
                        place.on_a_line = samples.are_on_a_line(rows) and _spreads(before)
                    elif last is not None:
                        self._open |= {last, passage.key}
                before, last = rows, passage.key

    def note_alike(self, passages: Mapping[Key, Passage], chains: Sequence[Sequence[Key]], *, first: bool) -> None:
        """Places at which all positions of a sample are alike, and how far apart samples are where views end."""
        if first:
            self._even = {key for chain in chains for key in self._even_from(passages, chain)}
            self._note_apart(passages, chains)
            ends = [chain[-1] for chain in chains if chain]
            twice = {path for path, _, call in ends if any(p == path and c != call for p, _, c in ends)}
            self._ends = {key for key in ends if key[0] in twice}
        for key in self._even & passages.keys():
            rows = passages[key].forward.rows
            place = self._places[key]
            place.looks_at_one_value += 1
            if rows is None or not samples.positions_are_one(rows):
                place.looks_at_one_value = 0
        self._even = {key for key in self._even if self._places[key].looks_at_one_value}
        for key in self._ends & passages.keys():
            rows = passages[key].forward.rows
            if rows is not None and len(rows) > 1:
                self._places[key].spread.append(samples.spread(rows))

    def _note_apart(self, passages: Mapping[Key, Passage], chains: Sequence[Sequence[Key]]) -> None:
        """How far samples lie apart where each chain begins."""
        for key in {chain[0] for chain in chains if chain} & passages.keys():
            rows = passages[key].forward.rows
            if rows is not None and len(rows) >= _WIDE and rows.is_floating_point():
                size = float(rows.square().mean().sqrt())
                self._places[key].apart = samples.spread(rows) / size if 0 < size < math.inf else None

    def _even_from(self, passages: Mapping[Key, Passage], chain: Sequence[Key]) -> Iterator[Key]:
        """Places of a chain with many positions that are all alike, behind one at which they are not."""
        differ = False
        for key in chain:
            rows = passages[key].forward.rows if key in passages else None
            if rows is None or rows.shape[1] < _LEAST_POSITIONS:
                continue
            if not samples.positions_are_one(rows):
                differ = True
            elif differ:
                yield key

    def forget(self, index: int) -> None:
        """One of the looks so far."""
        for place in self._places.values():
            if len(place.rms) > index:
                del place.rms[index], place.gradient[index], place.bad_values[index], place.bad_gradients[index]
        for silent in self._silent.values():
            del silent[index : index + 1 if len(silent) > _MOST_SILENT else index]
        for ranks in self._ranks.values():
            for values in ranks:
                del values[:-_MOST_SILENT]
        for key in self._ends:
            del self._places[key].spread[1:-_MOST_SILENT]
        for found in self._bends.values():
            del found[1:-1]

    @property
    def ranked(self) -> bool:
        """Whether any place was narrow enough for its rank to matter."""
        return bool(self._ranks)

    def write(self, record: AnalysisRecord, chains: Sequence[Sequence[Key]]) -> None:
        """Everything into the record."""
        record.places = list(self._places.values())
        index = {key: position for position, key in enumerate(self._places)}
        record.chains = [[index[key] for key in chain if key in index] for chain in chains]
        for key, silent in self._silent.items():
            place = self._places.get(key)
            if place is not None:
                place.dead_share = samples.share_in_all(silent[len(silent) // 2 :] if record.trained else silent)
                place.dead_share_at_first = samples.share_in_all(silent[:1])
        for key, (values, gradients, empty) in self._ranks.items():
            place = self._places[key]
            place.rank, place.gradient_rank, place.empty_samples = map(samples.middle, (values, gradients, empty))
        record.activations = []  # a look in a training writes again what the one before it wrote
        for found in self._bends.values():
            found[-1].first_flat_share = found[0].flat_share
            record.activations.append(found[-1])

    def _new_place(self, passage: Passage, passages: Sequence[Passage], weighted: Mapping[nn.Module, str]) -> Place:
        shape = passage.shape
        units_second = samples.units_come_second(passage.module, shape)
        units, size = shape[1] if units_second else shape[-1] if len(shape) > 1 else 1, math.prod(shape[1:])
        place = self._places[passage.key] = Place(
            name=passage.path,
            role=passage.role,
            call=passage.call,
            kind=type(passage.module).__name__,
            layer=layer_of(passage, passages, weighted),
            order=len(self._places),
            units=units,
            size=size,
            samples=shape[0],
            positions=max(1, size // max(units, 1)),
            own_weights=passage.role == "output" and passage.module in weighted,
            from_data=passage.feeds_from_data,
            from_batch=passage.took_batch,
            dtype=passage.dtype,
        )
        return place


def _silent(forward: Seen, backward: Seen) -> NDArray[np.bool_]:
    """Units without a positive value and without a gradient. Where each has a value, gradients were not looked at."""
    silent, active = _on_host(forward.units), None if backward.units is None else _on_host(backward.units)
    return silent if active is None else silent & ~active


def _on_host(units: Any) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = units.cpu().numpy() if isinstance(units, torch.Tensor) else units
    return mask


def _is_linear(place: Place) -> bool:
    """Whether it is given as it is: what an activation gives may lie on a line because most of its units are silent."""
    return place.role == "input" or place.kind in ("Identity", "Dropout")


def _spreads(rows: torch.Tensor) -> bool:
    """Whether samples differ in several directions; of a few short vectors each, side by side."""
    rows = rows if rows.shape[-1] >= _WIDE else rows.flatten(1)
    return rows.shape[-1] >= _WIDE and samples.effective_rank(rows, centred=True) >= _SPREAD


def layer_of(passage: Passage, passages: Sequence[Passage], weighted: Mapping[nn.Module, str]) -> str:
    """The module with weights that a tensor belongs to: its own (or its block's), else the last before it."""
    module = passage.module
    is_block = bool(passage.path) and any(True for _ in module.children())
    if passage.role == "output" and (module in weighted or is_block):
        return passage.path  # what the model itself puts together has no path: the layer before it is the place
    earlier = (each for each in reversed(passages[: passage.order]) if each.module in weighted)
    return next((each.path for each in earlier if each.role == "output"), passage.path)
