# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks with one fault of each kind, their twins, and odd healthy ones.

Half: holdout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.signal import both, dead, gradient_ratio, no_gradient, not_finite, rank_at_most
from validation.evidence.training import diverges, does_not_move, learns_less, trains
from validation.labels import DEADENS, RUNS_AWAY
from validation.nets import Lambda, Mixer, ResidualBlock, ResidualNet, Staged, dense_branch, he_, xavier_
from validation.setups import biased, pair, partly_dead, rated
from validation.tasks import blobs, images, patches

zoo = Zoo("residual", half="holdout", proof=trains(lr=3e-3, steps=40))


def stack(
    blocks: int, width: int = 48, act=nn.ReLU, norm: bool = True, middle: nn.Module | None = None, **block
) -> ResidualNet:
    """Blocks of dense branches, with something in their middle if asked for."""
    body: list[nn.Module] = [ResidualBlock(dense_branch(width, 2 * width, act, norm), **block) for _ in range(blocks)]
    if middle is not None:
        body.insert(blocks // 2, middle)
    return ResidualNet(nn.Linear(26, width), body, nn.Linear(width, 13))


# --- with depth

calm = zoo.healthy("7-pre-norm-relu-blocks", lambda s: pair(stack(7), blobs(s, 26, 13, 110, 0.8)))
zoo.sick(
    "22-he-blocks-without-norm",
    lambda s: pair(he_(stack(22, 40, norm=False)), blobs(s, 26, 13, 110, 0.8)),
    gradient_ratio("stem", "blocks.21.branch.2", above=100),
    "EXPLODING",
    also={"UNSTABLE"},
    control=calm,
)
zoo.sick(
    "12-blocks-whose-skip-was-forgotten",
    lambda s: pair(xavier_(stack(12, 40, nn.Tanh, False, scale=0.5, skip=False)), blobs(s, 26, 13, 110, 0.8)),
    gradient_ratio("stem", "blocks.11.branch.2", below=10**-2.5),
    "VANISHING",
    control=calm,
)

# --- a dead, cut or narrow place


zoo.sick(
    "5-pre-norm-blocks-third-branch-dead",
    lambda s: biased(stack(5), "blocks.2.branch.1", -30, blobs(s, 26, 13, 110, 0.8)),
    both(dead("blocks.2.branch.2", 0.99), no_gradient("blocks.2.branch.1")),
    "DEAD",
    layer=("blocks.2.branch.1", "blocks.2.branch.3"),
    also=DEADENS,
    control=calm,
)
zoo.sick(
    "6-pre-norm-blocks-most-of-last-branch-dead",
    lambda s: partly_dead(stack(6), "blocks.5.branch.1", 0.8, blobs(s, 26, 13, 110, 0.8)),
    dead("blocks.5.branch.2", 0.78),
    "DEAD",
    layer="blocks.5.branch.1",
    control=calm,
)
zoo.sick(
    "6-pre-norm-blocks-detached-half-way",
    lambda s: pair(stack(6, middle=Lambda(Tensor.detach)), blobs(s, 26, 13, 110, 0.8)),
    no_gradient("stem", "blocks.0", "blocks.2"),
    "DISCONNECTED",
    layer=("blocks.2.branch.3", "blocks.2.branch.1", "blocks.3"),
    also={"DEAD"},
    control=calm,
)


def squeezed(seed: int, narrow: int) -> Setup:
    middle = nn.Sequential(nn.Linear(48, narrow), nn.Linear(narrow, 48))
    return pair(stack(4, act=nn.SiLU, middle=middle), blobs(seed, 26, 13, 110, 0.8))


roomy = zoo.healthy("4-silu-blocks-transition-40", lambda s: squeezed(s, 40))
zoo.sick(
    "4-silu-blocks-transition-1-for-13-classes",
    lambda s: squeezed(s, 1),
    both(rank_at_most("blocks.2.0", 1), learns_less(by=0.12)),
    "BOTTLENECK",
    layer=("blocks.2.0", "blocks.2.1"),
    also={"LOW_RANK"},
    control=roomy,
)

# --- numbers and rates


def logged(seed: int, offset: float) -> Setup:
    """The stem takes logs of counts, of which some are zero."""
    model = stack(3, act=nn.GELU)
    model.stem = nn.Sequential(Lambda(lambda x: (x.clamp_min(0) + offset).log()), model.stem)
    return pair(model, blobs(seed, 26, 13, 110, 1.0))


counts = zoo.healthy("3-blocks-log-of-counts-plus-1", lambda s: logged(s, 1.0))
zoo.sick(
    "3-blocks-log-of-zero-counts",
    lambda s: logged(s, 0.0),
    not_finite(batches=2),
    "NUMERICAL",
    layer=("stem.0", "stem.1"),
    control=counts,
)
rate = zoo.healthy(
    "mixer-3x20-adamw-2e-3", lambda s: rated(Mixer(3, 20), patches(s, batch=32), "AdamW", 2e-3, 25), trains(steps=50)
)
zoo.sick(
    "mixer-3x20-sgd-3e-9",
    lambda s: rated(Mixer(3, 20), patches(s, batch=32), "SGD", 3e-9, 25),
    does_not_move(),
    "SLOW",
    control=rate,
)
zoo.sick(
    "4-blocks-without-norm-sgd-40",
    lambda s: rated(stack(4, 48, nn.SiLU, False), blobs(s, 26, 13, 60, 0.8), "SGD", 40.0, 20),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD"},
    control=calm,
)

# --- odd and healthy

zoo.healthy(
    "20-blocks-with-scale-0.05",
    lambda s: pair(stack(20, 32, nn.GELU, False, scale=0.05), blobs(s, 26, 13, 80, 0.8)),
    trains(lr=3e-3, steps=60),
)
zoo.healthy(
    "8-blocks-learned-scale-from-0.01",
    lambda s: pair(stack(8, 36, nn.SiLU, learned=True, scale=0.01), blobs(s, 26, 13, 80, 0.8)),
)
zoo.healthy("stages-of-24-on-6x6", lambda s: pair(Staged(24, 4), images(s, 3, 6, 4, 16, 1.5)), trains(lr=3e-3))


class Parallel(nn.Module):
    """Two branches of unlike width beside one skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.thin, self.thick = dense_branch(width, 6, nn.GELU), dense_branch(width, 96, nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + (self.thin(h) + self.thick(h)) / 2**0.5


zoo.healthy(
    "5-blocks-of-two-branches",
    lambda s: pair(
        ResidualNet(nn.Linear(26, 40), [Parallel(40) for _ in range(5)], nn.Linear(40, 13)), blobs(s, 26, 13, 64, 0.8)
    ),
)


def dropped(seed: int) -> Setup:
    """Branches with dropout, judged in training mode."""
    blocks = [ResidualBlock(nn.Sequential(dense_branch(40, 80, nn.ReLU, True), nn.Dropout(0.3))) for _ in range(4)]
    torch.nn.init.zeros_(blocks[3].branch[0][3].weight)  # a branch that starts as the identity, on purpose
    return pair(ResidualNet(nn.Linear(26, 40), blocks, nn.Linear(40, 13)), blobs(seed, 26, 13, 64, 0.8))


zoo.healthy("4-blocks-dropout-last-branch-from-zero", dropped)
