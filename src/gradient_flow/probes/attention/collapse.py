"""Where tokens become indistinguishable on their way through a stack of blocks (Dong et al., 2021)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

from gradient_flow.probes.attention.stats import LayerAttention, RankCollapseRisk

T = TypeVar("T")

COLLAPSED_SPREAD: Final = 0.05
"""Token spread below which attention has nothing left to tell apart: a mean cosine above 0.997."""
NEAR_SPREAD: Final = 0.1
FALL: Final = 4.0
"""The spread must have fallen by this factor inside the stack: inputs that are alike are not the model's doing."""
ONE_VECTOR, DROWNED = 0.01, 50.0
"""Spread, and its fall, at which a head that reads single tokens has next to nothing to read: a cosine of 0.9999."""
ALIKE: Final = 0.02
"""Token spread all along the stack: a mean cosine above 0.9996."""
_EVEN: Final = 0.999
"""Entropy of attention as a share of that of an average over all positions."""
SPARSE: Final = 0.95
"""Share of near-zero weights that is a warning sign by itself."""


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """A stack of blocks in which the spread of tokens falls too low."""

    layers: Sequence[LayerAttention]
    """The first attention layer of each block from where it begins."""
    start: float
    """Spread of the tokens that enter the stack."""
    spread: float
    """Spread behind the block where it begins."""
    harmless: bool
    """Whether no attention comes after it that would suffer."""


def find_collapse(layers: Sequence[LayerAttention], limit: float = COLLAPSED_SPREAD) -> Collapse | None:
    """The first stack whose tokens' spread falls below `limit`, a quarter or less of what enters the stack."""
    stacks = _stacks(layers)
    alike = _alike_from_the_start(stacks)
    if alike is not None:
        return alike
    for index, stack in enumerate(stacks):
        start = stack[0].token_spread_before
        for at, layer in enumerate(stack):
            spread = layer.token_spread
            if start is not None and spread is not None and spread < limit and spread * FALL < start:
                last = at == len(stack) - 1 and index == len(stacks) - 1
                harmless = last and not (spread < ONE_VECTOR and spread * DROWNED < start)
                return Collapse(layers=stack[at:], start=start, spread=spread, harmless=harmless)
    return None


def _alike_from_the_start(stacks: Sequence[Sequence[LayerAttention]]) -> Collapse | None:
    """A stack of two blocks or more that tokens enter and leave with next to nothing to tell them apart by.

    A vector that is added to all of them drowns what they differ in; attention is an average over all of them then.
    """
    for stack in stacks:
        spreads = [spread for layer in stack for spread in (layer.token_spread_before, layer.token_spread)]
        known = [spread for spread in spreads if spread is not None]
        flat = all(entropy > _EVEN for layer in stack for entropy in layer.entropy)
        if len(stack) > 1 and len(known) > 1 and max(known) < ALIKE and flat:
            return Collapse(layers=stack, start=known[0], spread=known[-1], harmless=False)
    return None


def collapse_risk(layers: Sequence[LayerAttention], sparsity: float | None) -> RankCollapseRisk:
    """HIGH when tokens have collapsed with attention still to come, or every query of a layer looks at one position;
    MEDIUM when tokens are near it or weights sparse."""
    collapse = find_collapse(layers)
    if collapse is not None and not collapse.harmless:
        return RankCollapseRisk.HIGH
    if one_position(layers):
        return RankCollapseRisk.HIGH
    if find_collapse(layers, NEAR_SPREAD) is not None or (sparsity is not None and sparsity > SPARSE):
        return RankCollapseRisk.MEDIUM
    return RankCollapseRisk.LOW


def one_position(layers: Sequence[LayerAttention]) -> list[LayerAttention]:
    """Layers in which the queries of every head look at little more than one position each."""
    return [layer for layer in layers if layer.collapsed_heads == 1.0]


def behind_blocks(
    before: Mapping[str, T], after: Mapping[str, T], chained: Set[str], blocks: Iterable[str]
) -> dict[str, T]:
    """What is known of the residual stream behind each block, from what enters and what leaves the blocks in order.

    What a block returns may be only the branch that its caller adds to the stream. So the stream is read where the
    next block of the same stack takes it in; the last block's output counts if another one took in its predecessor's
    untouched (`chained`).
    """
    stacks: dict[str, list[str]] = {}
    for block in dict.fromkeys(blocks):
        stacks.setdefault(_kind(block), []).append(block)
    behind: dict[str, T] = {}
    for stack in stacks.values():
        behind |= {block: before[later] for block, later in pairwise(stack) if later in before}
        if stack[-1] in after and chained & set(stack):
            behind[stack[-1]] = after[stack[-1]]
    return behind


def _stacks(layers: Sequence[LayerAttention]) -> list[list[LayerAttention]]:
    """Layers by the kind of block they are in, one layer for each block."""
    stacks: dict[str, dict[str, LayerAttention]] = {}
    for layer in layers:
        stacks.setdefault(_kind(layer.block), {}).setdefault(layer.block, layer)
    return [list(stack.values()) for stack in stacks.values()]


def _kind(path: str) -> str:
    """The same for all blocks of a stack: their paths differ in numbers only."""
    return re.sub(r"\d+", "*", path)
