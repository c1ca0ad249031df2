# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks that made people worry in threads and were sound, and plain ones as good tutorials write them.

Half: reported.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._everyday_nets import he
from validation.cases._reported_nets import Pooled, animals, hands, lesions, numerals, plates, vgg
from validation.evidence import converged, thrives
from validation.setups import frozen, live, pair, pretrain

zoo = Zoo("cnn", half="reported", proof=thrives(0.2, most_dead=0.5))

# --- inputs

# Idein/chainer-pose-proposal-net#9: pixels of 0..255 go in as they are, "batch norm takes care of it", and it did.


def raw(seed: int) -> Setup:
    model = nn.Sequential(nn.BatchNorm2d(3), Pooled(vgg([16, 16], 3, True), 16, 8))
    return live(model, animals(seed).mapped(lambda x: (40 * x + 128).clamp(0, 255)), "Adam", 5e-3, 90)


zoo.healthy("animals-raw-pixels-behind-a-norm", raw)


# simonmeister/UnFlow#44: pictures of 0..1 that are not centred are fine, too.
def ones(seed: int) -> Setup:
    return live(
        he(Pooled(vgg([16, 24], 3, False), 24, 8)), animals(seed).mapped(lambda x: (x + 3) / 6), "Adam", 1e-2, 100
    )


zoo.healthy("animals-pixels-of-0-to-1", ones)

# --- norms


def settled(seed: int) -> Setup:
    """isht7/pytorch-deeplab-resnet#39: norms of a trained net stay in evaluation mode while the rest is tuned."""
    model = Pooled(vgg([16, 16, 16], 3, True), 16, 8)
    pretrain(pair(model, animals(seed + 40)), 60, 5e-3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    model.fc = nn.Linear(16, 8)
    return live(model, animals(seed), "Adam", 4e-3, 90)


zoo.healthy("animals-norms-in-eval-mode-while-tuning", settled)


def grouped(seed: int) -> Setup:
    """Batches of four, group norm in place of batch norm: a noisy curve that goes down."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8)),
    )
    return live(model, animals(seed, batch=4), "Adam", 4e-3, 120)


zoo.healthy("animals-batches-of-4-group-norm", grouped)


def flat_head(features: nn.Module, width: int, out: int) -> nn.Sequential:
    return nn.Sequential(features, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(9 * width, out))


# filipradenovic/cnnimageretrieval-pytorch#19 and a question in pytorch/vision#5197: a bias before a batch
# norm gets next to no gradient; it is of no use and does no harm.
zoo.healthy(
    "numerals-biases-before-norms",
    lambda s: live(flat_head(vgg([12, 12, 16], 1, True), 16, 10), numerals(s), "SGD", 0.05, 90, momentum=0.9),
)

# --- narrow and right


class Waist(nn.Module):
    """Two strided convolutions, a code, and the way back."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.SiLU())
        self.code, self.open = nn.Linear(216, code), nn.Linear(code, 216)
        self.decoder = nn.Sequential(nn.ConvTranspose2d(24, 16, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(F.silu(self.open(self.code(self.encoder(x).flatten(1)))).unflatten(1, (24, 3, 3)))


zoo.healthy("plates-of-three-hills-code-of-3", lambda s: live(Waist(3), plates(s, factors=3), "Adam", 6e-3, 110))
zoo.healthy(
    "lesions-one-channel-at-the-end",
    lambda s: live(nn.Sequential(vgg([12, 12], 1, True), nn.Conv2d(12, 1, 1)), lesions(s), "Adam", 1e-2, 80),
)


class Excited(nn.Module):
    """Channels are weighed by a squeeze of four units (moskomule/senet.pytorch#13, as it was repaired)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = vgg([16], 3, True), vgg([16], 16, True)
        self.squeeze, self.excite, self.fc = nn.Linear(16, 4), nn.Linear(4, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean(dim=(2, 3))))))
        return self.fc(self.b(x * gate[..., None, None]).mean(dim=(2, 3)))


zoo.healthy("animals-squeeze-of-4-channels", lambda s: live(Excited(), animals(s), "Adam", 5e-3, 80))

# --- many zeros


class Heat(nn.Module):
    """One map for each dot; nearly all of the target is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def heated(seed: int) -> Setup:
    line = torch.linspace(-1, 1, 12)

    def change(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        at = at.unflatten(1, (3, 2))
        far = (line[:, None] - at[..., :1, None]).square() + (line - at[..., 1:, None]).square()
        return x, 3 * torch.exp(-far / 0.05)

    return live(Heat(), hands(seed).changed(change), "Adam", 3e-3, 90)


zoo.healthy("hands-heat-maps-mostly-zero", heated)


def rare(seed: int) -> Setup:
    """Nine pictures in ten show nothing; dots of lesions weigh more."""

    def loss(z: Tensor, mask: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(z, mask, pos_weight=torch.tensor(8.0))

    model = nn.Sequential(vgg([12, 12], 1, True), nn.Conv2d(12, 1, 1))
    return live(model, lesions(seed, empty=0.7, batch=16).with_loss(loss), "Adam", 1e-2, 90)


zoo.healthy("lesions-seven-in-ten-pictures-empty", rare)
zoo.healthy(
    "numerals-wide-relu-net-many-zeros",
    lambda s: live(he(flat_head(vgg([32, 32], 1, False), 32, 10)), numerals(s), "Adam", 2e-3, 90),
)

# --- parts that rest


def tuned(seed: int) -> Setup:
    """Convolutions of a trained net are frozen on purpose; the head is new."""
    model = Pooled(vgg([16, 16, 24], 3, True), 24, 8)
    pretrain(pair(model, animals(seed + 40)), 60, 5e-3)
    model.fc = nn.Linear(24, 8)
    return live(frozen(model, "features"), animals(seed), "Adam", 2e-2, 90)


zoo.healthy("animals-frozen-convolutions-new-head", tuned)


def finished(seed: int) -> Setup:
    """A coder that has converged and goes on at a small rate."""
    model, task = Waist(24), plates(seed, factors=4)
    pretrain(pair(model, task), 400, 5e-3)
    return live(model, task, "Adam", 1e-4, 40)


zoo.healthy("plates-converged-coder", finished, converged(0.05))

# --- nets and steps


class UNet(nn.Module):
    """Down, up, and a skip between."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = vgg([12], 1, True), vgg([24], 12, True)
        self.up, self.leave = nn.ConvTranspose2d(24, 12, 2, 2), nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        top = self.enter(x)
        return self.leave(torch.cat([top, F.relu(self.up(self.down(F.max_pool2d(top, 2))))], dim=1))


zoo.healthy("lesions-small-unet", lambda s: live(UNet(), lesions(s), "AdamW", 5e-3, 80))


class Separable(nn.Module):
    """Depthwise and pointwise convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.depth, self.point = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 32, 1)
        self.norm, self.fc = nn.BatchNorm2d(32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.stem(x))
        return self.fc(F.hardswish(self.norm(self.point(self.depth(x)))).mean(dim=(2, 3)))


zoo.healthy("animals-separable-hardswish", lambda s: live(Separable(), animals(s), "RMSprop", 3e-3, 90))
zoo.healthy(
    "animals-warm-up-and-clipping",
    lambda s: live(
        Pooled(vgg([16, 16, 16], 3, True), 16, 8),
        animals(s, negatives=True),
        "SGD",
        0.1,
        110,
        momentum=0.9,
        clip=1.0,
        rate=lambda t: min(1.0, (t + 1) / 20),
    ),
)
zoo.healthy(
    "numerals-label-smoothing-and-dropout",
    lambda s: live(
        nn.Sequential(vgg([16, 16], 1, True), nn.MaxPool2d(3), nn.Flatten(), nn.Dropout(0.4), nn.Linear(256, 10)),
        numerals(s).with_loss(lambda z, t: F.cross_entropy(z, t, label_smoothing=0.1)),
        "Adam",
        4e-3,
        90,
    ),
)
zoo.healthy(
    "animals-cosine-to-nothing",
    lambda s: live(
        Pooled(vgg([16, 24], 3, True), 24, 8),
        animals(s),
        "AdamW",
        8e-3,
        90,
        rate=lambda t: 0.5 * (1 + math.cos(math.pi * min(t, 90) / 90)) + 1e-3,
    ),
)
