"""Heads of a model, what stands behind them and what comes back through them, each beside a twin without the fault."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf
from gradient_flow import IssueSeverity, IssueType
from watched_training import eight_classes, found, serious

T = IssueType


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Averaged(nn.Module):
    """Heads that are modules, and whose outputs are averaged."""

    def __init__(self, copied):
        super().__init__()
        first = nn.Linear(20, 16)
        self.heads = nn.ModuleList([first, *(copy.deepcopy(first) if copied else nn.Linear(20, 16) for _ in range(3))])
        self.out = nn.Linear(16, 8)

    def forward(self, x):
        return self.out(sum(torch.tanh(head(x)) for head in self.heads) / 4)


@pytest.mark.parametrize("copied", [True, False])
def test_heads_that_are_copies_of_one_are_told_by_their_weights_and_gradients(copied):
    issues = serious(Averaged(copied), eight_classes(), F.cross_entropy, steps=40)
    assert found(issues) == ({(T.SYMMETRY, "heads.0")} if copied else set())


class Squashed(nn.Module):
    """A mean that tanh bounds beside a value: neither head is on the way of the other."""

    def __init__(self, factor):
        super().__init__()
        self.body, self.mean, self.value = nn.Linear(20, 32), nn.Linear(32, 3), nn.Linear(32, 1)
        self.mean.weight.data *= factor

    def forward(self, x):
        h = F.elu(self.body(x))
        return torch.tanh(self.mean(h)), self.value(h)


@pytest.mark.parametrize(("factor", "sick"), [(300.0, True), (1.0, False)])
def test_a_tanh_right_behind_one_of_several_heads_may_be_saturated(factor, sick):
    way = torch.randn(20, 3) / 20**0.5

    def draw():
        x = torch.randn(64, 20)
        return x, (torch.tanh(x @ way), x[:, :1])

    def loss(output, target):
        return sum(F.mse_loss(*pair) for pair in zip(output, target, strict=True))

    issues = serious(Squashed(factor), draw, loss, steps=40, rate=3e-3)
    assert found(issues) == ({(T.SATURATION, "mean")} if sick else set())


class Lanes(nn.Module):
    """One net scores every lane, by itself and the mean of all."""

    def __init__(self):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, x):
        return self.score(torch.stack([x, x.mean(1, keepdim=True).expand_as(x)], -1)).squeeze(-1)


def test_a_score_of_one_number_for_each_of_several_is_the_output_and_no_bottleneck():
    def draw():
        x = torch.randn(64, 5)
        return x, x.argmax(1)

    def loss(scores, wanted):
        return -torch.distributions.Categorical(logits=scores).log_prob(wanted).mean()

    assert not serious(Lanes(), draw, loss, steps=40)


class OwnNorm(nn.Module):
    """A root has an infinite slope where a row is all zero; the table throws away what comes to its row of padding."""

    def __init__(self, padding):
        super().__init__()
        self.words, self.out = nn.Embedding(30, 16, padding_idx=padding), nn.Linear(16, 8)
        self.words.weight.data[0] = 0

    def forward(self, tokens):
        x = self.words(tokens)
        x = x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-5)
        return self.out(x.masked_fill((tokens == 0)[..., None], 0.0).sum(1))


@pytest.mark.parametrize("padding", [0, None])
def test_nan_that_comes_to_no_weight_is_no_fault(padding):
    def draw():
        tokens = torch.randint(1, 30, (64, 6))
        classes = tokens[:, 0] % 8
        return tokens.masked_fill(torch.rand(64, 6) < 0.2, 0), classes

    issues = serious(OwnNorm(padding), draw, F.cross_entropy, steps=20)
    assert (T.NUMERICAL in {issue.issue_type for issue in issues}) is (padding is None)


@pytest.mark.parametrize("twice", [True, False])
def test_a_distribution_that_is_given_probabilities_for_logits_applies_softmax_twice(twice):
    model = nn.Sequential(nn.Linear(20, 32), nn.ELU(), nn.Linear(32, 8), *([nn.Softmax(-1)] if twice else []))

    def loss(given, wanted):
        return -torch.distributions.Categorical(logits=given).log_prob(wanted).mean()

    codes = {issue.code for issue in serious(model, eight_classes(), loss, steps=30)}
    assert ("double_softmax" in codes) is twice


@pytest.mark.parametrize(("deviation", "sick"), [(0.01, True), (None, False)])
def test_a_loss_that_comes_near_zero_from_both_sides_has_not_solved_anything(deviation, sick):
    layers = [layer for _ in range(7) for layer in (nn.Linear(16, 16), nn.ELU())]
    model = nn.Sequential(nn.Linear(6, 16), nn.ELU(), *layers, nn.Linear(16, 4))
    for layer in model[::2]:
        nn.init.kaiming_normal_(layer.weight) if deviation is None else nn.init.normal_(layer.weight, std=deviation)
        nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with gf.watch(model, optimizer, describe=False, looks=(3, 9, 21, 39), budget=1.0) as flow:
        for step in range(40):
            loss = model(torch.randn(64, 6)).log_softmax(-1)[:, 0].mul(torch.randn(64)).mean() + (step == 0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    kinds = {issue.issue_type for issue in flow.diagnose() if issue.severity > IssueSeverity.LOW}
    assert (T.VANISHING in kinds) is sick


class Pooled(nn.Module):
    """A net for every member of a set, their mean over `dims`, a net for the mean."""

    def __init__(self, *dims):
        super().__init__()
        self.each, self.all, self.dims = nn.Linear(20, 24), nn.Linear(24, 8), dims

    def forward(self, x):
        return self.all(torch.tanh(self.each(x)).mean(self.dims, keepdim=True)[:, 0].expand(len(x), -1))


@pytest.mark.parametrize(("dims", "sick"), [((0, 1), True), ((1,), False)])
def test_a_mean_over_the_batch_as_well_makes_all_samples_one(dims, sick):
    classes = eight_classes()

    def draw():
        x, y = classes()
        return x[:, None] + 0.3 * torch.randn(64, 5, 20), y

    issues = serious(Pooled(*dims), draw, F.cross_entropy, steps=60)
    assert ((T.LOW_RANK, "all") in found(issues)) is sick
