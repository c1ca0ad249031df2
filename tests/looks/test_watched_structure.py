"""Faults of structure beside the main path, in pictures and in ids, each beside a twin without it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradient_flow import IssueType
from gradient_flow.capture.autograd_graph import Graph, averaging, share_above_middle, slopes
from gradient_flow.table import samples
from watched_training import eight_classes, found, serious

T = IssueType


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Gated(nn.Module):
    """A functional gate on a branch beside a skip; `heat` multiplies its weights, `bias` opens or shuts it."""

    def __init__(self, heat=1.0, bias=0.0, squash=torch.sigmoid):
        super().__init__()
        self.enter, self.gate, self.out = nn.Linear(20, 32), nn.Linear(32, 32), nn.Linear(32, 8)
        self.gate.weight.data *= heat
        self.gate.bias.data += bias
        self.squash = squash

    def forward(self, x):
        h = F.silu(self.enter(x))
        return self.out(h + h * self.squash(self.gate(h)))


@pytest.mark.parametrize(
    ("model", "sick"),
    [
        (lambda: Gated(heat=400.0), True),
        (lambda: Gated(heat=400.0, squash=torch.tanh), True),
        (Gated, False),
        (lambda: Gated(bias=-7.0), False),  # shut for all, by its bias: a usual way to begin
        (lambda: Gated(bias=7.0), False),
    ],
)
def test_a_gate_beside_the_main_path_that_is_all_or_nothing_is_saturated(model, sick):
    issues = serious(model(), eight_classes(), F.cross_entropy, steps=30, rate=1e-3)
    assert found(issues) == ({(T.SATURATION, "gate")} if sick else set())


class Codec(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.down, self.code = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, channels, 2, 2)
        self.up, self.out = nn.ConvTranspose2d(channels, 16, 2, 2), nn.Conv2d(16, 3, 3, 1, 1)

    def forward(self, x):
        return self.out(F.gelu(self.up(self.code(F.gelu(self.down(x))))))


def plates():
    x = F.interpolate(torch.randn(16, 3, 4, 4), size=(8, 8), mode="bilinear")
    return x, x


@pytest.mark.parametrize(("channels", "sick"), [(1, True), (8, False)])
def test_a_codec_of_one_channel_is_a_bottleneck_although_it_has_many_positions(channels, sick):
    issues = serious(Codec(channels), plates, F.mse_loss, steps=30)
    assert found(issues) == ({(T.BOTTLENECK, "code")} if sick else set())


def test_the_rank_of_patches_is_that_of_what_they_are_drawn_from():
    """Patches of 2 × 2 that are sums of two patterns have an effective rank of two."""
    patterns = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1]]).view(2, 2, 2)
    amounts = torch.randn(64, 4, 4, 2)
    pictures = torch.einsum("nhwk,kab->nhawb", amounts, patterns).reshape(64, 1, 8, 8)
    assert samples.patch_rank(pictures, 16) == pytest.approx(2, abs=0.05)
    assert samples.patch_rank(torch.randn(64, 3, 8, 8), 64) == pytest.approx(3, abs=0.05)
    assert samples.patch_rank(torch.randn(4, 64, 8, 8), 1) is None  # too many numbers in one


class Kept(nn.Module):
    """Keeps channels of a wide layer by a mask of the model's own."""

    def __init__(self, kept):
        super().__init__()
        self.wide, self.out, self.kept = nn.Linear(20, 40), nn.Linear(40, 8), kept

    def forward(self, x):
        return self.out(F.silu(self.wide(x)) * (torch.arange(40) < self.kept))


@pytest.mark.parametrize(("kept", "sick"), [(2, True), (36, False)])
def test_units_whose_values_are_dropped_are_dead_although_they_fire(kept, sick):
    issues = serious(Kept(kept), eight_classes(), F.cross_entropy, steps=30)
    assert ((T.DEAD, "wide") in found(issues)) is sick
    assert sick or not issues


class Floored(nn.Module):
    """A regressor whose output may be floored at zero."""

    def __init__(self, floor):
        super().__init__()
        self.enter, self.head, self.floor = nn.Linear(20, 32), nn.Linear(32, 1), floor

    def forward(self, x):
        return self.floor(self.head(F.relu(self.enter(x))))[:, 0]


@pytest.mark.parametrize(
    ("floor", "shift", "dead"), [(F.relu, -9.0, True), (F.relu, 3.0, False), (nn.Identity(), -9.0, False)]
)
def test_a_relu_at_the_very_output_that_never_fires_is_dead(floor, shift, dead):
    def batch():
        x = torch.randn(64, 20)
        return x, x[:, 0] + shift

    issues = serious(Floored(floor), batch, F.mse_loss, steps=50, rate=1e-2)
    assert found(issues) == ({(T.DEAD, "head")} if dead else set())


class Bare(nn.Module):
    """Two matrices of the model's own."""

    def __init__(self, alike):
        super().__init__()
        draw = torch.randn(20, 1).expand(20, 32).clone() if alike else torch.randn(20, 32)
        self.first = nn.Parameter(draw.T.contiguous() / 5)
        self.last = nn.Parameter((torch.randn(8, 1).expand(8, 32).clone() if alike else torch.randn(8, 32)) / 6)

    def forward(self, x):
        return torch.tanh(x @ self.first.T) @ self.last.T


@pytest.mark.parametrize("alike", [True, False])
def test_a_matrix_of_the_models_own_is_named(alike):
    model = Bare(alike)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    issues = serious(model, eight_classes(), F.cross_entropy, steps=30, optimizer=sgd)
    assert ((T.SYMMETRY, "first") in found(issues)) is alike
    assert all(issue.layer for issue in issues)


class Ids(nn.Module):
    """Looks up vectors of ids that may be folded first."""

    def __init__(self, fold):
        super().__init__()
        self.table, self.out, self.fold = nn.Embedding(30, 8), nn.Linear(8, 1), fold

    def forward(self, ids):
        return self.out(F.silu(self.table(ids % self.fold))).squeeze(1)


@pytest.mark.parametrize(("fold", "sick"), [(2, True), (30, False)])
def test_ids_that_are_folded_to_two_give_one_direction(fold, sick):
    values = torch.randn(30, generator=torch.Generator().manual_seed(2))

    def batch():
        ids = torch.randint(30, (64,))
        return ids, values[ids]

    issues = serious(Ids(fold), batch, F.mse_loss, steps=30, rate=2e-2)
    assert ((T.LOW_RANK, "table") in found(issues)) is sick


def test_a_running_mean_is_no_excuse_for_a_gradient_that_shrinks():
    x = torch.randn(2, 3, 40, requires_grad=True)
    moving, apart = F.avg_pool1d(x, 5, 1, 2), F.avg_pool1d(x, 4)
    assert averaging([moving.grad_fn.next_functions[0][0]]) == 0
    assert averaging([apart.grad_fn.next_functions[0][0]]) == pytest.approx(0.30103, abs=1e-5)  # half a decade of 4


def test_a_skip_that_is_multiplied_by_nothing_is_no_way():
    x = torch.randn(3, requires_grad=True)
    h = x * 2
    middle = h.sin()
    off, on = (0.0 * h + middle.exp()).sum().grad_fn, (0.5 * h + middle.exp()).sum().grad_fn
    assert middle.grad_fn in Graph(off).dominators(h.grad_fn)
    assert middle.grad_fn not in Graph(on).dominators(h.grad_fn)


def test_slopes_and_ends_of_a_clamp():
    x = torch.tensor([-3.0, -0.5, 0.0, 0.5, 4.0], requires_grad=True)
    node = x.clamp(-1, 1).grad_fn
    assert slopes(node).tolist() == [0, 1, 1, 1, 0]
    assert share_above_middle(node) == pytest.approx(0.4)
    assert slopes(x.clamp(min=0).grad_fn) is None


class Form(nn.Module):
    """Categories by tables of a few numbers, beside columns of numbers; or all of it through as few units."""

    def __init__(self, through=None):
        super().__init__()
        self.tables, self.drop = nn.ModuleList(nn.Embedding(12, width) for width in (3, 4, 6)), nn.Dropout(0.1)
        self.through = nn.Sequential() if through is None else nn.Sequential(nn.Linear(21, through), nn.ReLU())
        self.body = nn.Sequential(nn.Linear(through or 21, 48), nn.ReLU(), nn.Linear(48, 6))

    def forward(self, pair):
        numbers, kinds = pair
        vectors = [table(kinds[:, k]) for k, table in enumerate(self.tables)]
        return self.body(self.through(torch.cat([numbers, self.drop(torch.cat(vectors, dim=1))], dim=1)))


def forms():
    numbers, kinds = torch.randn(96, 8), torch.randint(12, (96, 3))
    return (numbers, kinds), (kinds.sum(1) + 3 * (numbers[:, 0] > 0)) % 6


@pytest.mark.parametrize(("through", "sick"), [(None, False), (1, True)])
def test_a_table_of_a_few_numbers_beside_others_is_no_bottleneck(through, sick):
    kinds = {issue.issue_type for issue in serious(Form(through), forms, F.cross_entropy, steps=40)}
    assert (T.BOTTLENECK in kinds) is sick
