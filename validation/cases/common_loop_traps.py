# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Common programs that are sound, though parts of them rest, start late, are noisy or look odd.

Half: common.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, LinearLR, OneCycleLR, SequentialLR
from torch.utils.data import DataLoader

from validation.case import Program, Zoo
from validation.cases._common_loops import (
    Coder,
    Decoder,
    Factors,
    Forecaster,
    Pocket,
    ResNet,
    SmallCnn,
    Tagger,
    TextCnn,
    bikes,
    captions,
    faces,
    films,
    fonts,
    gaits,
    leaves,
    names,
    prose,
    quakes,
    recipes,
    study,
    wines,
)
from validation.cases._everyday_loops import stored, supervised, train
from validation.cases._mistakes import clipped, scheduled
from validation.cases.common_loop_steps import clip, decoder, gru, resnet, text, wide
from validation.cases.common_loop_trained import Helped
from validation.evidence.loops import learns
from validation.nets import mlp
from validation.programs import adam, fit, held_out, plainly, script, sgd
from validation.tasks import token_loss

zoo = Zoo("loop", half="common", proof=learns())
adamw = torch.optim.AdamW

# --- healthy: a part rests on purpose, or learns in its own way


def head_only(seed: int) -> Program:
    """A trained body in evaluation mode, and a head for other classes."""
    model = ResNet(3, 10)
    fit(model, leaves(seed, 10), adam(model, 3e-3), 30).run()
    model.requires_grad_(False)
    model.fc = nn.Linear(24, 6)
    return study(model, leaves(seed), adam(model.fc, 1e-2), steps=60)


zoo.healthy("common-leaves-head-on-frozen-body", head_only)


def two_stages(seed: int) -> Program:
    """First the head, then all of it, as a second group at a smaller rate."""
    model = TextCnn()
    fit(model, recipes(seed + 3), adam(model, 4e-3), 30).run()
    model.zero_grad(set_to_none=True)
    model.embed.requires_grad_(False)
    optimizer = adamw([{"params": [p for n, p in model.named_parameters() if "embed" not in n], "lr": 4e-3}])

    def thaw(step: int) -> None:
        if step == 25:
            model.embed.requires_grad_(True)
            optimizer.add_param_group({"params": model.embed.parameters(), "lr": 2e-3})

    return study(model, recipes(seed), optimizer, steps=80, before=thaw)


zoo.healthy("common-recipes-vectors-join-as-a-group", two_stages)


def fixed_vectors(seed: int) -> Program:
    model = Tagger()
    model.embed.requires_grad_(False)
    return study(model, names(seed), adam(model, 8e-3), token_loss, 90)


zoo.healthy("common-tagger-vectors-fixed", fixed_vectors)


def tied(seed: int) -> Program:
    """The head shares the matrix of the words."""
    model = Decoder()
    nn.init.normal_(model.tok.weight, std=0.1)
    model.lm_head.weight = model.tok.weight
    return study(model, prose(seed), adamw(model.parameters(), lr=3e-3), token_loss, 70)


zoo.healthy("common-decoder-tied-head", tied)


def sparse(seed: int) -> Program:
    model = Factors(sparse=True)
    return study(model, films(seed), torch.optim.SparseAdam(model.parameters(), lr=2e-2), F.mse_loss, 110)


zoo.healthy("common-films-sparse-adam", sparse)


def by_heart(seed: int) -> Program:
    """A network from scratch beside a frozen random one, as in random network distillation."""
    goal = mlp([7, 24, 8], nn.Tanh).requires_grad_(False)
    model = mlp([7, 32, 8], nn.Tanh)
    task = bikes(seed).changed(lambda x, _: (x, goal(x).detach()))
    return study(model, task, adam(model, 5e-3), F.mse_loss, 90)


zoo.healthy("common-imitates-a-random-network", by_heart)


class Momentum(nn.Module):
    """A query encoder, and a key encoder that follows it slowly, as in MoCo."""

    def __init__(self) -> None:
        super().__init__()
        self.query = mlp([16, 32, 12], nn.GELU)
        self.key = copy.deepcopy(self.query).requires_grad_(False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return 5 * F.normalize(self.query(a), dim=1) @ F.normalize(self.key(b), dim=1).T


def moco(seed: int) -> Program:
    model = Momentum()
    task = captions(seed).changed(lambda x, y: ((x[0], x[0] + 0.1 * torch.randn(x[0].shape)), y))
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.2, momentum=0.9)

    @torch.no_grad()
    def follow(_: int) -> None:
        for slow, quick in zip(model.key.parameters(), model.query.parameters(), strict=True):
            slow.lerp_(quick, 0.1)

    return study(model, task, optimizer, steps=80, after=follow)


zoo.healthy("common-key-encoder-follows", moco)


def layerwise(seed: int) -> Program:
    """An autoencoder is trained, then its encoder alone is given a head, all in one optimizer."""
    model = Coder()
    return study(model, faces(seed), adamw(model.parameters(), lr=5e-3, weight_decay=0.01), F.mse_loss, 90)


zoo.healthy("common-autoencoder-code-6-of-5-factors", layerwise)


def late_head(seed: int) -> Program:
    """A second head whose loss is added from the middle on."""
    model, task, step = Helped(), wines(seed), [0]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out, aux = model(batch[0])
        step[0] += 1
        return F.cross_entropy(out, batch[1]) + (step[0] > 20) * F.cross_entropy(aux, batch[1])

    return study(model, task, adam(model, 4e-3), lambda o, y: F.cross_entropy(o[1], y), 80, loss_of=loss_of)


zoo.healthy("common-wines-second-head-from-step-20", late_head)


def frozen_norms(seed: int) -> Program:
    """Norms keep their statistics and their weights, as in detection."""
    model = ResNet()
    fit(model, leaves(seed), adam(model, 3e-3), 8).run()
    model.zero_grad(set_to_none=True)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval().requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    return study(model, leaves(seed), torch.optim.SGD(trained, lr=0.02, momentum=0.9), steps=60)


zoo.healthy("common-leaves-norms-frozen", frozen_norms)


def spectral(seed: int) -> Program:
    model = mlp([7, 40, 40, 1], nn.SiLU)
    for at in (0, 2):
        nn.utils.parametrizations.spectral_norm(model[at])
    return study(model, bikes(seed), adam(model, 8e-3), F.mse_loss, 100)


zoo.healthy("common-bikes-spectral-norm", spectral)


def last_layer_first(seed: int) -> Program:
    model = Forecaster(nn.LSTM)
    groups = [{"params": model.rnn.parameters(), "lr": 4e-3}, {"params": model.out.parameters(), "lr": 2e-2}]
    return study(model, quakes(seed), torch.optim.Adam(groups), F.mse_loss, 80)


zoo.healthy("common-quakes-head-five-times-as-fast", last_layer_first)

# --- healthy: schedules and orders that are fine

HEALTHY = {
    "decoder-cosine": (decoder, 4e-3, lambda o: CosineAnnealingLR(o, 80)),
    "decoder-warm-up-then-linear": (
        decoder,
        4e-3,
        lambda o: SequentialLR(o, [LinearLR(o, 0.05, 1.0, 12), LinearLR(o, 1.0, 0.05, 68)], [12]),
    ),
    "leaves-one-cycle": (resnet, 5e-3, lambda o: OneCycleLR(o, 6e-3, total_steps=82)),
    "recipes-exponential-0.97": (text, 6e-3, lambda o: ExponentialLR(o, 0.97)),
    "captions-constant": (clip, 4e-3, lambda o: LambdaLR(o, lambda _: 1.0)),
    "loans-inverse-root": (wide, 8e-3, lambda o: LambdaLR(o, lambda i: (1 + i / 8) ** -0.5)),
    "quakes-triangle": (gru, 6e-3, lambda o: LambdaLR(o, lambda i: 0.2 + 0.8 * abs((i % 20) - 10) / 10)),
}
for name, (make, rate, schedule) in HEALTHY.items():
    zoo.healthy(f"common-{name}", lambda s, m=make, r=rate, c=schedule: scheduled(m, r, c, c)(s, False))


def cleared_at_the_end(seed: int) -> Program:
    """Forward, backward, step, clear: as good an order."""
    model = Pocket()
    optimizer = sgd(model, 0.05, momentum=0.9)

    def body(_i: int, _x: Tensor, _y: Tensor, loss_of: Callable[[], Tensor]) -> Tensor:
        value = loss_of()
        value.backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        return value

    return script(model, optimizer, gaits(seed), F.cross_entropy, body, 70)


zoo.healthy("common-gaits-cleared-at-the-end", cleared_at_the_end)


def shuffled_loader(seed: int) -> Program:
    """Few data, several epochs, the last batch smaller than the others."""
    model = SmallCnn()
    data = DataLoader(stored(fonts(seed), 7), 20, shuffle=True, generator=torch.Generator().manual_seed(seed))
    score = held_out(model, fonts(seed, batch=256))
    return train(model, data, supervised(model), adamw(model.parameters(), lr=3e-3), score, epochs=7)


zoo.healthy("common-fonts-few-data-seven-epochs", shuffled_loader)


def every_other(seed: int) -> Program:
    """Generator steps come every other batch: half of the parameters rest in each."""
    model = Coder()
    one, two = adam(model.encoder, 5e-3), adam(model.decoder, 5e-3)

    def body(i: int, _x: Tensor, _y: Tensor, loss_of: Callable[[], Tensor]) -> Tensor:
        model.zero_grad()
        value = loss_of()
        value.backward()
        (one if i % 2 else two).step()
        return value

    return script(model, [one, two], faces(seed), F.mse_loss, body, 120)


zoo.healthy("common-faces-parts-take-turns", every_other)


def plain_plainly(seed: int) -> Program:
    model = Tagger()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=4e-3)
    return script(model, optimizer, names(seed), token_loss, plainly(optimizer), 80)


zoo.healthy("common-names-rmsprop", plain_plainly)
zoo.healthy("common-leaves-clip-norm-20", lambda s: clipped(resnet, 0.05, 20.0, 20.0)(s, False))
zoo.healthy("common-captions-clip-norm-0.5", lambda s: clipped(clip, 0.1, 0.5, 0.5)(s, False))
