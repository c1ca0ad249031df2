"""Ranks with different parameters, such as pipeline stages: one list of names, exchanged once, then a fixed layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gradient_flow.table.across_ranks import Merged, Share, merged, on_host
from gradient_flow.table.columns import EMPTY, Thresholds


class RankNames:
    """The ranks of a group, and the names of all that they hold.

    A name that several ranks know is one gradient, counted once, if its parts fit together: replicas are equal when
    they are first seen. Otherwise they are different gradients that happen to be called alike (stages that count their
    layers from 0), and the names of all ranks get a prefix: `part0.`, `part1.`, in the order of the ranks.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.names: tuple[str, ...] = ()
        """Of all gradients of all ranks."""
        self._prefix = ""
        self._own: tuple[str, ...] | None = None
        self._settled = False

    def global_name(self, name: str) -> str:
        """What a gradient of this rank is called in the table."""
        return self._prefix + name

    def merged(
        self, shares: Sequence[Share], device: Any, thresholds: Thresholds, says: Sequence[float] = ()
    ) -> list[Merged]:
        """The rows of the shares over all ranks, in the order of `names`. All shares have the same names.

        Which gradients the others have is not known here, so the rows are waited for.
        """
        shares = [on_host(share) for share in shares]
        if not self._settled:
            self._agree(shares[0])
        # A rank whose names have changed still takes part with the old layout, and says so: none waits in vain.
        changed = self._own != shares[0].names
        how: dict[str, Any] = {"at_once": True, "says": says}
        result = merged([self._laid_out(s) for s in shares], self.group, device, thresholds, changed=changed, **how)
        if result is None:
            self._agree(shares[0])
            result = merged([self._laid_out(s) for s in shares], self.group, device, thresholds, **how)
        assert result is not None
        return result

    def _laid_out(self, share: Share) -> Share:
        at = {name: position for position, name in enumerate(self.names)}
        known = [(at[full], i) for i, name in enumerate(share.names) if (full := self.global_name(name)) in at]
        rows, sizes = np.tile(EMPTY, (len(self.names), 1)), np.full(len(self.names), -1.0)
        if known:
            to, of = (list(positions) for positions in zip(*known, strict=True))
            held: Any = share.rows
            rows[to], sizes[to] = held[of], share.sizes[of]
        return Share(self.names, rows, sizes, share.problem)

    def _agree(self, share: Share) -> None:
        import torch.distributed as dist

        held = [
            (name, share.places[name], np.asarray(row).tobytes(), size)
            for name, row, size in zip(share.names, share.rows, share.sizes, strict=True)
            if name in share.places
        ]
        offers: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(offers, _Offer(share.names, held), group=self.group)
        part_of = _parts(offers)
        several = max(part_of) > 0
        names: dict[str, None] = {}
        for part, offer in zip(part_of, offers, strict=True):
            names |= dict.fromkeys(f"part{part}.{name}" if several else name for name in offer.names)
        self.names = tuple(names)
        self._prefix = f"part{part_of[dist.get_rank(self.group)]}." if several else ""
        self._own = share.names
        # Without a gradient there is nothing to tell replicas by: such an agreement is made anew the next time.
        self._settled = all(offer.held or not offer.names for offer in offers)


class _Offer(NamedTuple):
    names: tuple[str, ...]
    held: list[tuple[str, tuple[int, ...], bytes, float]]


def _parts(offers: Sequence[_Offer]) -> list[int]:
    """For each rank which part of the model it is of; ranks of one part do not contradict one another."""
    parts: list[tuple[dict[Any, bytes], dict[str, float]]] = []
    chosen = []
    for offer in offers:
        rows = {(name, place): row for name, place, row, _ in offer.held}
        sizes = {name: size for name, _, _, size in offer.held}
        fits = (
            all(seen.get(key, row) == row for key, row in rows.items())
            and all(lengths.get(name, size) == size for name, size in sizes.items())
            for seen, lengths in parts
        )
        part = next((index for index, fit in enumerate(fits) if fit), len(parts))
        if part == len(parts):
            parts.append(({}, {}))
        parts[part][0].update(rows)
        parts[part][1].update(sizes)
        chosen.append(part)
    return chosen
