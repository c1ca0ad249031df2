"""What was seen of a model's attention, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from gradient_flow.table.text import plain

COLLAPSED_ENTROPY: Final = 0.1
"""A head below this share of ln(keys) looks at little more than one position."""
FEW_KEYS_ENTROPY: Final = 0.25
"""With few keys 0.1 is hard to reach: below this share, fewer than two positions in effect count as well."""
ALL_COLLAPSED: Final = 0.02
"""Mean over heads below which each of them is collapsed, or next to it."""
_ENOUGH_LOOKS: Final = 3
FROZEN: Final = 2.0
"""Logits spread this far beyond the point where a softmax over this many keys freezes onto a few."""
STANDS_OUT: Final = 2.0
"""How many times as large as that of the queries a weight has to be, to be named in its place."""
_SHOWN: Final = 40


class RankCollapseRisk(str, Enum):
    """Risk that tokens become indistinguishable on their way through the layers; compares equal to its text."""

    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True)
class LayerAttention:
    """One attention layer over the last steps. What could not be measured is NaN (of a head) or `None` (of a layer)."""

    name: str
    """Path of the module that computes it."""
    block: str
    """Path of the transformer block that it belongs to."""
    entropy: Sequence[float]
    """Per head, as a share of ln(keys): 1 looks everywhere alike, 0 at one position. Masked keys do not count."""
    sparsity: Sequence[float]
    """Per head, the share of weights below a hundredth of the uniform weight."""
    max_logit: Sequence[float]
    """Per head, the largest magnitude before the softmax, without a mask's share where that is known."""
    nats: Sequence[float] = ()
    """Per head, the entropy in nats."""
    freezing: Sequence[float] = ()
    """Per head, standard deviation of the logits over sqrt(2 ln(keys)); beyond 1 a softmax freezes onto few keys."""
    head_diversity: float | None = None
    """0 for equal heads, 1 for heads that differ as independent ones would; `None` for a single head."""
    head_divergence: float | None = None
    """Generalised Jensen-Shannon divergence of the heads, as a share of ln(heads)."""
    head_focus: float = 0.0
    """What that divergence would be for independent heads, in nats; 0 where attention is uniform."""
    copies: int = 1
    """Heads in a list that are this one and the same module, called again on the same input."""
    token_spread_before: float | None = None
    """||X - mean|| / ||X|| of the tokens that enter the block."""
    token_spread: float | None = None
    """The same for those that leave it: 0 when all tokens are equal."""
    token_similarity: float | None = None
    """Mean cosine between two tokens that leave the block."""
    nonfinite: float = 0.0
    """Share of rows with NaN or infinite logits."""
    without_choice: float = 0.0
    """Share of rows that a mask leaves one key of several."""
    projections: Mapping[str, float] = field(default_factory=dict)
    """The weights that make its scores, those of the queries first, and the size of their singular values."""
    entropy_by_step: Sequence[float] = ()
    """Mean over heads, step by step."""
    max_logit_by_step: Sequence[float] = ()

    @property
    def place(self) -> str:
        """What to change where its scores are wrong: the projection that stands out, else that of the queries.

        The attention itself where none is known.
        """
        gains = self.projections
        if not gains:
            return self.name
        first, largest = next(iter(gains)), max(gains, key=lambda path: gains[path])
        return largest if gains[largest] > STANDS_OUT * gains[first] else first

    @property
    def entropy_mean(self) -> float | None:
        """Mean over heads."""
        return mean(self.entropy)

    @property
    def entropy_lately(self) -> float | None:
        """Mean over heads, the larger of the last two looks: over all looks, the first would hide what became of it."""
        known = [value for value in self.entropy_by_step if math.isfinite(value)]
        return max(known[-2:]) if len(known) >= _ENOUGH_LOOKS else None

    @property
    def collapsed_heads(self) -> float:
        """Share of heads that look at little more than one position."""
        lately = self.entropy_lately
        if lately is not None and lately < ALL_COLLAPSED:
            return 1.0
        nats = self.nats or (math.inf,) * len(self.entropy)
        known = [pair for pair in zip(self.entropy, nats, strict=True) if math.isfinite(pair[0])]
        few = [e < COLLAPSED_ENTROPY or (e < FEW_KEYS_ENTROPY and in_nats < math.log(2)) for e, in_nats in known]
        return sum(few) / len(known) if known else 0.0

    @property
    def frozen_heads(self) -> float:
        """Share of heads whose logits are spread far beyond where a softmax freezes."""
        known = [value for value in self.freezing if math.isfinite(value)]
        return sum(value > FROZEN for value in known) / len(known) if known else 0.0

    @property
    def largest_logit(self) -> float:
        """Over all heads."""
        return max(self.max_logit, default=0.0)


@dataclass(frozen=True, kw_only=True)
class AttentionStats:
    """A model's attention. `None` stands for what there was nothing to measure of."""

    layers: Sequence[LayerAttention]
    """In the order in which they ran."""
    steps: int
    attention_entropy_mean: float | None
    """Mean over layers and heads, as a share of ln(keys): 1 is uniform attention, 0 attention to one position."""
    attention_sparsity: float | None
    """Share of near-zero attention weights, 0 to 1."""
    head_diversity: float | None
    """Mean over layers: 0 for equal heads, 1 for heads that differ as independent ones would."""
    rank_collapse_risk: RankCollapseRisk
    max_logit: float
    """Largest magnitude of a logit anywhere."""
    token_spread: float | None
    """Smallest over blocks of ||X - mean|| / ||X||: 0 when all tokens of a sequence have become equal."""
    token_similarity: float | None
    """Largest over blocks of the mean cosine between two tokens."""
    at_steps: Sequence[int] = ()
    """The steps that `entropy_by_step` and `max_logit_by_step` are of."""

    def __str__(self) -> str:
        heads = sum(len(layer.entropy) for layer in self.layers)
        entropy, spread = _number(self.attention_entropy_mean), _number(self.token_spread).strip()
        lines = [
            f"Attention of {len(self.layers)} layers with {heads} heads over {self.steps} steps",
            f"  entropy         {entropy}  of ln(keys): 1 looks everywhere, 0 at one position",
            f"  sparsity        {_number(self.attention_sparsity)}  of the weights are near zero",
            f"  head diversity  {_number(self.head_diversity)}  0 for equal heads, 1 for independent ones",
            f"  rank collapse   {self.rank_collapse_risk} risk, token spread {spread} at its smallest",
            f"  largest logit   {plain(self.max_logit)}",
        ]
        width = max([len("layer"), *(len(layer.name) for layer in self.layers)])
        lines.append(f"  {'layer':{width}}  entropy    min  sparsity  diversity  max logit  token spread")
        lines += [f"  {layer.name:{width}}  {_cells(layer)}" for layer in self.layers[:_SHOWN]]
        if len(self.layers) > _SHOWN:
            lines.append(f"  … and {len(self.layers) - _SHOWN} more")
        return "\n".join(lines)


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of those that are known and finite; `None` if none is."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _cells(layer: LayerAttention) -> str:
    least = min((entropy for entropy in layer.entropy if math.isfinite(entropy)), default=None)
    return (
        f"{_number(layer.entropy_mean):>7} {_number(least):>6}  {_number(mean(layer.sparsity)):>8}  "
        f"{_number(layer.head_diversity):>9}  {layer.largest_logit:>9.3g}  {_number(layer.token_spread):>12}"
    )


def _number(value: float | None) -> str:
    return "    -" if value is None else f"{value:5.3f}"
