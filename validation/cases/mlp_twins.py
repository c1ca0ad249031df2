"""Healthy multi-layer perceptrons that cases in several files take for their twin.

Half: tune.
"""

from __future__ import annotations

from torch import nn

from validation.case import Zoo
from validation.evidence import trains
from validation.nets import DeepSet, Tabular, Tower, TwoTower, deep, gaussian_, he_, xavier_
from validation.setups import pair, rated
from validation.tasks import blobs, patches, table, views

zoo = Zoo("mlp", half="tune", proof=trains(lr=3e-3))


relu_6 = zoo.healthy("relu-he-6x64", lambda s: pair(he_(deep(6, 64)), blobs(s)), trains())
relu_8 = zoo.healthy(
    "relu-he-8x128-tower", lambda s: pair(he_(Tower([48] + [128] * 8 + [10])), blobs(s, 48, batch=128)), trains()
)
relu_4 = zoo.healthy("relu-default-4x64", lambda s: pair(deep(4, 64), blobs(s)))
tanh_16 = zoo.healthy(
    "tanh-xavier-16x96", lambda s: pair(xavier_(Tower([40] + [96] * 16 + [6], nn.Tanh)), blobs(s, 40, 6)), trains()
)
gelu_4 = zoo.healthy("gelu-default-4x80", lambda s: pair(deep(4, 80, nn.GELU, 20, 5), blobs(s, 20, 5)))
selu = zoo.healthy("selu-lecun-18x44", lambda s: pair(gaussian_(deep(18, 44, nn.SELU, 22, 9), 1.0), blobs(s, 22, 9)))
towers = zoo.healthy(
    "two-tower-retrieval", lambda s: pair(TwoTower([24, 48, 48, 16], [18, 40, 16]), views(s)), trains(lr=1e-2, steps=60)
)
nesterov = zoo.healthy(
    "nesterov-0.05-deep-set",
    lambda s: rated(
        DeepSet([24, 40, 40], [40, 40, 6], nn.GELU), patches(s), "SGD", 0.05, 30, momentum=0.9, nesterov=True
    ),
    trains(steps=60, fall=0.05),
)
adagrad = zoo.healthy(
    "adagrad-0.02-tabular", lambda s: rated(Tabular(), table(s), "Adagrad", 0.02, 30), trains(steps=60)
)
