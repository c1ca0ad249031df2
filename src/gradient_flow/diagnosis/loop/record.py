"""What looks saw of the loop around a model, as plain numbers: what rules on the loop are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MOST_NAMES: Final = 100
"""Names that a list keeps."""
MOST_LOOPS: Final = 12
"""Looks that are kept: the first, and the last ones."""


@dataclass(kw_only=True)
class LossCall:
    """A call of one of torch's loss functions, in the step that was looked at."""

    function: str
    reduction: str = "mean"
    value: float | None = None
    """What it returned, where that is one number."""
    of_output: bool = False
    """Whether it was given what the model returned, as it is or in another shape."""
    squashed: bool = False
    """Whether it wants logits and was given probabilities."""
    summed_over: int | None = None
    """The dimension that the given probabilities add up to 1 over, where that is not the one of the classes."""
    bound: str = ""
    """The activation that what was predicted came from, where it bounds it: `relu`, `tanh`, `sigmoid` or `softmax`."""
    outside: float | None = None
    """Share of the targets that it cannot give."""
    unreachable: float | None = None
    """Mean square of the distance of targets from what it can give, over their variance."""
    shapes: list[list[int]] = field(default_factory=list)
    """Of what was predicted and of the target, where one of them is spread over the other."""
    classes: int | None = None
    labels: int | None = None
    """How many labels there were, for a loss of classes."""
    ignored: float | None = None
    """Share of labels that are ignored."""
    distinct: int | None = None
    """Different labels among the others, or different values of the target."""
    common: int | None = None
    """The most frequent label."""
    common_share: float | None = None
    entropy: float | None = None
    """Of the labels: the loss of who knows their frequencies and nothing else."""
    variance: float | None = None
    """Of the target."""
    agreement: float | None = None
    """Of predictions with their own targets, against those of other samples: in standard errors."""


@dataclass(kw_only=True)
class LoopLook:
    """One round of the loop, from the end of an optimizer's step to the end of its next."""

    step: int
    order: str = ""
    """What happened in which order: `F`orward with gradients, `B`ackward, `S`tep."""
    rate: float | None = None
    """The largest learning rate of the step."""
    backwards: int = 0
    lost: int = 0
    """Backward passes whose gradients were cleared before the step; none where they were kept elsewhere or served an
    attack on the inputs."""
    loss: float | None = None
    """Of the first backward pass, without the scale of a `GradScaler`."""
    brought: int = 0
    """Tensors with a gradient other than zero after the backward passes."""
    used: int = 0
    """Tensors with a gradient other than zero at the step."""
    given: int = 0
    """Tensors with a gradient at the step, be it zero."""
    stale: int = 0
    """Those of them that still held the gradient of the step before when the first pass began."""
    evaluating: bool = False
    """Whether the model was in evaluation mode."""
    undone: float | None = None
    """How much of the step before had been undone when the model ran: 1 for all of it, 0 for none."""
    batch: int | None = None
    """A fingerprint of the batch."""
    kept_batch: bool = False
    """Whether its tensors are the very ones of the look before: data that the loop keeps, and gives whole."""
    samples: int = 0
    columns: float | None = None
    """Largest over small (the tenth percentile) deviation of the columns of a table."""
    pad: int | None = None
    """The token that ends most rows of a batch of tokens."""
    pad_share: float = 0.0
    """Share of tokens in the runs of it at the end of rows."""
    summed: bool = False
    """Whether the loss is a sum that is not divided."""
    spread: list[int] = field(default_factory=list)
    """Shape of a difference, near the loss, between (N, 1) and (N,)."""
    crossed: list[int] = field(default_factory=list)
    """Shape of a product, all of it summed up, of (N, 1) and (N,): weights of samples times losses of all of them."""
    nothing: bool = False
    """Whether a term next to the loss is multiplied by the number 0."""
    linear_layers: int = 0
    """Layers between input and loss, where nothing but sums and shapes lies between them; 0 where something does."""
    zero_factor: str = ""
    """What the loss is multiplied by zero for: `labels` or `policy`; empty where it is not."""
    squashed: bool = False
    """Whether the loss takes the logarithm of a softmax of a softmax, by operations of its own."""
    calls: list[LossCall] = field(default_factory=list)


@dataclass(kw_only=True)
class LoopFacts:
    """All looks at the loop together. Names are those of parameters unless another thing is said."""

    looks: list[LoopLook] = field(default_factory=list)
    taken: int = 0
    optimizers: int = 1
    tensors: int = 0
    """Of the model, trainable."""
    held: int = 0
    """Those of them that an optimizer holds."""
    strangers: int = 0
    """Tensors that an optimizer holds and the model does not have."""
    unheld: list[str] = field(default_factory=list)
    """Trainable, in no optimizer, given a gradient, and never moved."""
    copied: list[str] = field(default_factory=list)
    """Trainable, in no optimizer, given a gradient, and moved all the same: by hand, or from copies in an optimizer."""
    strays: list[str] = field(default_factory=list)
    """Shapes of parameters next to the loss that are neither the model's nor an optimizer's, and never move."""
    stray_layer: bool = False
    """Whether those are the weight and the bias of a layer."""
    anew: list[str] = field(default_factory=list)
    """Shapes of the weights of layers in the graph that are not the model's, and other ones in each look."""
    unheld_share: float = 0.0
    """Their share of all trainable elements."""
    unheld_come_first: bool = False
    """Whether everything that is trained comes after them: a head on a body that is meant to stay."""
    ungiven: list[str] = field(default_factory=list)
    """In an optimizer, and without a gradient in every look."""
    without_grad: list[str] = field(default_factory=list)
    """Parts of the model that run under `no_grad` alone, though an optimizer holds them."""
    zero: list[str] = field(default_factory=list)
    """In an optimizer, with a gradient of exactly zero in every look."""
    decaying: list[str] = field(default_factory=list)
    """Those of `zero` that shrink all the same."""
    unstepped: list[str] = field(default_factory=list)
    """In an optimizer that never steps, given a gradient, and never moved."""
    still: list[str] = field(default_factory=list)
    """In an optimizer, with a gradient in every look, and (nearly) no element of it moves."""
    unchanged: list[str] = field(default_factory=list)
    """Those of `still` of which no element that was looked at has ever changed."""
    moving: int = 0
    """Tensors that moved."""
    partly_cleared: list[str] = field(default_factory=list)
    """Still with the old gradient in every look, while others were cleared."""
    zero_matrices: list[str] = field(default_factory=list)
    """All zero in the last look."""
    adapters: list[tuple[str, str]] = field(default_factory=list)
    """Two matrices side by side whose product has a small rank, as those of LoRA, in both orders."""
    frozen: list[str] = field(default_factory=list)
    """Held and not trainable: under a module with an attribute `requires_grad`, or in a group that was added later."""
    fresh: list[str] = field(default_factory=list)
    """Held and not trainable, and as an initialisation drew them: nobody has trained them, and nobody does."""
    untrained: list[str] = field(default_factory=list)
    """Frozen or in no optimizer, and as an initialisation drew them, where all such are and no adapter learns."""
    frozen_share: float = 0.0
    """Share of all elements that are frozen."""
    adapted: list[str] = field(default_factory=list)
    """Those of `fresh` with an adapter beside them that moves."""
    idle_adapters: list[tuple[str, str]] = field(default_factory=list)
    """Both factors of adapters that are frozen, a zero one and the other, where no adapter is trained."""
    hidden: list[str] = field(default_factory=list)
    """Modules in a list or dict of a module, where `parameters()` does not find them; their weights get gradients."""
    in_eval: list[str] = field(default_factory=list)
    """Dropout and batch norms in evaluation mode in every look."""
    eval_alone: list[str] = field(default_factory=list)
    """Those of `in_eval` that are in a module which is in training mode: somebody switched these and nothing else."""
    switching: int = 0
    """Dropout and batch norms, which work differently in evaluation mode."""
    maximize: bool = False
    """Whether an optimizer goes up the loss."""
    set_back: int = 0
    """How often the model was given the very weights that it had been given before, after steps in between."""

    @property
    def steps(self) -> int:
        """From the first look to the last."""
        return self.looks[-1].step - self.looks[0].step if self.looks else 0
