"""Analyzers take what real training loops do: heads that take turns, batches and sequences of any size."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf
from gradient_flow.diagnosis.issue import IssueSeverity

LABELS = torch.arange(64) % 4


class Heads(nn.Module):
    """One of two heads in turn."""

    def __init__(self):
        super().__init__()
        self.trunk, self.heads = nn.Linear(16, 32), nn.ModuleList([nn.Linear(32, 9), nn.Linear(32, 5)])
        self.calls = itertools.count()

    def forward(self, x):
        return self.heads[next(self.calls) % 2](torch.relu(self.trunk(x)))


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_heads_that_take_turns_and_batches_of_any_size(trained, vector):
    model, sizes = Heads(), itertools.cycle([8, 40, 17, 64])
    optimizer = torch.optim.Adam(model.parameters()) if trained else None
    analyzer = gf.GradientFlowAnalyzer(model, enable_vector_analysis=vector)
    issues = analyzer.analyze(
        lambda: torch.randn(next(sizes), 16), lambda output: output.square().mean(), optimizer=optimizer
    )
    assert [issue for issue in issues if issue.severity > IssueSeverity.LOW] == []


class Reader(nn.Module):
    def __init__(self, attends):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 4)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2) if attends else nn.LSTM(16, 16, batch_first=True)

    def forward(self, x):
        x = self.body(self.embed(x))
        return self.head((x if isinstance(x, torch.Tensor) else x[0])[:, -1])


@pytest.mark.parametrize("kind", [gf.RecurrentAnalyzer, gf.TransformerAnalyzer])
def test_sequences_of_any_length(kind):
    model, sizes = Reader(kind is gf.TransformerAnalyzer), itertools.cycle([(4, 7), (9, 3), (5, 12)])
    issues, stats = kind(model).analyze(
        lambda: torch.randint(20, next(sizes)),
        lambda output: F.cross_entropy(output, LABELS[: len(output)]),
        optimizer=torch.optim.Adam(model.parameters()),
    )
    assert stats is not None
    assert [issue for issue in issues if issue.severity > IssueSeverity.LOW] == []
