"""What looks saw of the state of an optimizer, as plain numbers: what rules on it are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

OPTIMIZER: Final = "optimizer"
"""The name under which a look keeps it."""
HALF: Final = ("float16", "bfloat16")
"""Types whose numbers are so far apart that a step may be lost between them."""
MOST_STATES: Final = 16
"""Looks that are kept: the first, and the last ones."""
MOST_NOISE: Final = 64
"""Measurements of the noise that are kept, the last ones: a single one says little."""
MOST_TENSORS: Final = 24
"""Tensors that are named at most: those that stand out, and the largest."""


@dataclass(kw_only=True)
class TensorState:
    """One tensor in the last look. A number that is None does not apply, or is not known."""

    name: str
    elements: int
    dtype: str = "float32"
    rate: float | None = None
    stale: float | None = None
    eps_share: float | None = None
    update: float | None = None
    lost: float | None = None
    underflow: float | None = None
    decay: float | None = None
    growth: float | None = None
    root_second: float | None = None


@dataclass(kw_only=True)
class StateLook:
    """The state after one step. Numbers of all tensors together; from a sample of 512 elements of each."""

    step: int
    optimizer: int = 0
    kind: str = "adam"
    """`adam` for a first and a second moment, `momentum` for a momentum alone or none, `squares` for a second alone."""
    name: str = ""
    """Class of the optimizer."""
    rate: float | None = None
    """The largest learning rate."""
    beta1: float | None = None
    """Decay of the first moment, or the momentum."""
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float = 0.0
    decoupled: bool = False
    age: int | None = None
    """Steps that the state has seen."""
    own: int = 0
    """Steps of this optimizer since the watch began."""
    stale: float | None = None
    """Root mean square of g / √v: 1 where the second moment knows the gradients, above where they have grown."""
    eps_share: float | None = None
    """Mean of eps / (√v + eps): how much of the denominator is eps."""
    update: float | None = None
    """Root mean square of the step over the learning rate; for Adam at most about 1."""
    lost: float | None = None
    """Of the elements in low precision that should move, the share whose step is below half the spacing of numbers."""
    needed: float | None = None
    """Times the learning rate at which half of those elements would move."""
    low_precision: float = 0.0
    """Share of elements in 16 bits."""
    underflow: float | None = None
    """Of the elements with a first moment, the share whose second moment is zero."""
    cosine: float | None = None
    """Between the momentum before the step and the gradient."""
    decay: float | None = None
    """How much weight decay takes off, over how far the gradient moves, each as a norm."""
    growth: float | None = None
    """Change of the norm of the weights in this step, over what it was."""
    gradient: float | None = None
    """Root mean square of the gradient, as the optimizer used it."""
    root_second: float | None = None
    """The typical √v."""


@dataclass(kw_only=True)
class NoiseLook:
    """Squared norms of the gradients of the first micro-batch, and of all of them."""

    step: int
    small: float
    large: float
    few: float
    """Samples of a micro-batch."""
    many: float
    """Samples of the step."""


@dataclass(kw_only=True)
class OptimizerFacts:
    """All looks at the states together."""

    looks: list[StateLook] = field(default_factory=list)
    taken: int = 0
    tensors: list[TensorState] = field(default_factory=list)
    noise: list[NoiseLook] = field(default_factory=list)
    """Where a step is made of several micro-batches."""
    unknown: list[str] = field(default_factory=list)
    """Classes of optimizers whose state is left alone."""

    def of(self, optimizer: int) -> list[StateLook]:
        """The looks at one optimizer."""
        return [look for look in self.looks if look.optimizer == optimizer]
