"""Faults that only a look inside shows, each beside a twin without it: both are trained, and the twin is well."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradient_flow import IssueSeverity, IssueType
from gradient_flow.table import samples
from watched_training import eight_classes, found, serious

T = IssueType


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Towers(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, width))
        self.item = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, width))

    def forward(self, pair):
        return self.query(pair[0]) @ self.item(pair[1]).T


def pairs():
    x = torch.randn(48, 24)
    return (x, x + 0.1 * torch.randn(48, 24)), torch.arange(48)


@pytest.mark.parametrize(("width", "sick"), [(1, True), (24, False)])
def test_similarities_of_one_number_are_a_bottleneck(width, sick):
    issues = serious(Towers(width), pairs, F.cross_entropy)
    assert (T.BOTTLENECK in {issue.issue_type for issue in issues}) is sick
    if sick:
        assert issues[0].layer in ("query.2", "item.2")


class Shared(nn.Module):
    """Both sides go through one body with a branch, and each through a projection of its own."""

    def __init__(self, width):
        super().__init__()
        self.enter, self.wide, self.back = nn.Embedding(40, 32), nn.Linear(32, 64), nn.Linear(64, 32)
        self.left, self.right = nn.Linear(32, width, bias=False), nn.Linear(32, width, bias=False)

    def side(self, ids):
        x = self.enter(ids)
        return (x + self.back(F.gelu(self.wide(x)))).mean(1)

    def forward(self, pair):
        left, right = self.left(self.side(pair[0])), self.right(self.side(pair[1]))
        return 10 * F.normalize(left, dim=-1) @ F.normalize(right, dim=-1).T


def sentences():
    ids = torch.randint(40, (24, 8))
    return (ids, ids.flip(1)), torch.arange(24)


def test_a_body_that_runs_again_for_another_input_is_no_head():
    assert serious(Shared(16), sentences, F.cross_entropy, steps=40) == []


class Stage(nn.Module):
    """Two branches that are added, and widened again."""

    def __init__(self, width):
        super().__init__()
        self.enter, self.main, self.short = nn.Linear(20, 32), nn.Linear(32, width), nn.Linear(32, width)
        self.widen, self.out = nn.Linear(width, 32), nn.Linear(32, 8)

    def forward(self, x):
        h = torch.tanh(self.enter(x))
        return self.out(torch.tanh(self.widen(torch.tanh(self.main(h)) + self.short(h))))


@pytest.mark.parametrize(("width", "sick"), [(1, True), (24, False)])
def test_a_sum_of_narrow_branches_is_a_bottleneck(width, sick):
    issues = serious(Stage(width), eight_classes(), F.cross_entropy, rate=3e-3)
    assert found(issues) == ({(T.BOTTLENECK, "widen")} if sick else set())


class Leaky(nn.Module):
    """States that fade by `keep` at each step, without a matrix in the recurrence."""

    def __init__(self, keep):
        super().__init__()
        self.see, self.out, self.keep = nn.Linear(4, 32), nn.Linear(32, 4), keep

    def forward(self, x):
        seen, state = torch.tanh(self.see(x)), 0.0
        for t in range(x.shape[1]):
            state = self.keep * state + seen[:, t]
        return self.out(state)


def first_tokens():
    """The class is shown at the first of 20 steps."""
    y = torch.randint(4, (64,))
    x = 0.05 * torch.randn(64, 20, 4)
    x[:, 0] += 3 * F.one_hot(y, 4)
    return x, y


@pytest.mark.parametrize(("keep", "sick"), [(0.1, True), (1.0, False)])
def test_a_written_out_recurrence_that_forgets_has_a_short_memory(keep, sick):
    issues = serious(Leaky(keep), first_tokens, F.cross_entropy, rate=1e-2)
    assert found(issues) == ({(T.SHORT_MEMORY, "see")} if sick else set())


@pytest.mark.parametrize("decay", [0.3, 0.9, 1.0])
def test_reach_is_the_share_of_positions_above_a_hundredth(decay):
    factors = decay ** torch.arange(39, -1, -1.0)
    gradient = factors[None, :, None] * torch.ones(8, 40, 5)
    expected = sum(decay**k >= samples.HARDLY for k in range(40)) / 40
    assert samples.reach(gradient) == pytest.approx(expected)
    assert samples.reach(gradient.flip(1)) is None or decay == 1.0  # largest elsewhere than at the end
    gradient[:, -1] *= 0.5  # a convolution over time gives the last but one more than the last
    assert samples.reach(gradient) is not None


class Rounds(nn.Module):
    def __init__(self, through):
        super().__init__()
        self.encoder, self.decoder, self.through = nn.Linear(20, 16), nn.Linear(16, 8), through

    def forward(self, x):
        code = 3 * self.encoder(x)
        whole = code.round()
        return self.decoder(code + (whole - code).detach() if self.through else whole)


@pytest.mark.parametrize("through", [False, True])
def test_rounding_disconnects_what_is_before_it_and_is_not_called_dead(through):
    issues = serious(Rounds(through), eight_classes(), F.cross_entropy, rate=1e-2)
    assert found(issues) == (set() if through else {(T.DISCONNECTED, "encoder")})


class Distances(nn.Module):
    """Attention by distance, by hand."""

    def __init__(self, sharpness):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.out, self.sharpness = nn.Linear(16, 4), sharpness

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (2, 8)).transpose(1, 2) for each in (self.q, self.k, self.v))
        weights = (-self.sharpness * torch.cdist(q, k).square()).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2).mean(dim=1))


class Additive(Distances):
    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = self.sharpness * torch.tanh(q[:, :, None] + k[:, None]).sum(dim=-1)
        return self.out((scores.softmax(dim=-1) @ v).mean(dim=1))


def majority():
    y = torch.randint(4, (32,))
    x = torch.randn(32, 12, 16)
    x[:, :, :4] += 2 * F.one_hot(y, 4)[:, None]
    return x, y


@pytest.mark.parametrize("kind", [Distances, Additive])
@pytest.mark.parametrize(("sharpness", "sick"), [(300.0, True), (0.1, False)])
def test_attention_by_any_scores_is_seen(kind, sharpness, sick):
    issues = serious(kind(sharpness), majority, F.cross_entropy, steps=40)
    assert (T.ENTROPY_COLLAPSE in {issue.issue_type for issue in issues}) is sick


def scaled(targets):
    weights = torch.randn(20, 1, generator=torch.Generator().manual_seed(5))

    def batch():
        x = torch.randn(64, 20)
        return x, targets * (x @ weights / math.sqrt(20) + 3)

    return batch


@pytest.mark.parametrize(("factor", "sick"), [(20_000.0, True), (1.0, False)])
def test_targets_in_a_far_too_small_unit_are_told(factor, sick):
    model = nn.Sequential(nn.Linear(20, 32), nn.SiLU(), nn.Linear(32, 1))
    issues = serious(model, scaled(factor), F.mse_loss, steps=80)
    assert [issue.code for issue in issues] == (["first_loss_high"] if sick else [])


@pytest.mark.parametrize(("limit", "sick"), [(1e-5, True), (1.0, False)])
def test_a_limit_by_hand_that_sets_the_step_is_told(limit, sick):
    model = nn.Sequential(nn.Linear(20, 32), nn.SiLU(), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    issues = serious(model, eight_classes(), F.cross_entropy, optimizer=optimizer, limit=limit)
    assert [issue.code for issue in issues] == (["clip_sets_step"] if sick else [])


@pytest.mark.parametrize("cut", [False, True])
def test_an_output_that_meets_all_targets_at_once_is_a_broadcast(cut):
    """(N, 1, 3) less (N, 3) is (N, N, 3)."""

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.GRU(3, 16, batch_first=True), nn.Linear(16, 3)

        def forward(self, x):
            y = self.out(self.rnn(x)[0])
            return y[:, -1] if cut else y[:, -1:]

    def batch():
        x = torch.randn(24, 6, 3)
        return x, x[:, -1]

    issues = serious(Last(), batch, lambda y, t: (y - t).abs().mean(), rate=1e-2)
    assert ("broadcast" in {issue.code for issue in issues}) is not cut


def test_columns_that_all_say_the_same_are_told():
    def batch():
        one = torch.randn(64, 1)
        return one.repeat(1, 18) * torch.arange(1.0, 19), (one[:, 0] > 0).long()

    def wide():
        x = torch.randn(64, 18)
        return x, (x[:, 0] > 0).long()

    for data, expected in ((batch, {T.LOW_RANK}), (wide, set())):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(18, 24), nn.GELU(), nn.Linear(24, 2))
        assert {issue.issue_type for issue in serious(model, data, F.cross_entropy, steps=40)} == expected


def test_a_momentum_above_one_is_the_cause_of_the_explosion_that_is_seen():
    model = nn.Sequential(nn.Linear(20, 32), nn.SiLU(), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=1.3)
    issues = serious(model, eight_classes(), F.cross_entropy, steps=50, optimizer=optimizer)
    first = issues[0]
    assert (first.issue_type, first.code) == (T.EXPLODING, "momentum_too_long")
    assert first.severity is IssueSeverity.CRITICAL
    assert "momentum" in first.cause
