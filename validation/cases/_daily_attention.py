"""What the daily transformers share: attention by hand, and two tasks with a small net."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from validation.case import Setup
from validation.cases._common_sequences import Net
from validation.cases._daily_nets import accents, trips
from validation.cases._usual_sequences import ahead, joined, parted
from validation.setups import live


class Own(nn.Module):
    """Attention by hand, whose scores a subclass computes; `bar` is added to them."""

    def __init__(self, width: int = 32, heads: int = 4, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(2, 3) / q.shape[-1] ** 0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (parted(part(x), self.heads) for part in (self.q, self.k, self.v))
        scores = self.scores(q, k)
        if self.causal:
            scores = scores.masked_fill(ahead(x.shape[1]), -1e9)
        return self.o(joined(scores.softmax(dim=-1) @ v))


def rides(seed: int, blocks: Sequence[nn.Module], **more) -> Setup:
    """The next stop, by the line that is named first."""
    return live(Net(nn.Embedding(15, 32), blocks, 12), trips(seed), **{"lr": 5e-3, "steps": 80, **more})


def stressed(seed: int, blocks: Sequence[nn.Module], **more) -> Setup:
    """The accent of each letter."""
    return live(Net(nn.Embedding(14, 32), blocks, 3), accents(seed), **{"lr": 5e-3, "steps": 80, **more})
