"""Faults of attention, recurrence and policy in a watched training, each beside its twin: what is named where."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradient_flow as gf
from gradient_flow import IssueSeverity, IssueType
from watched_training import found, serious

T = IssueType


def alarms(flow):
    return {issue.issue_type: issue for issue in flow.diagnose() if issue.severity > IssueSeverity.LOW}


def watched(model, draw, loss_of, steps=40, lr=1e-3, **settings):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    looks = (3, 6, 13, 26, 39)
    with gf.watch(model, optimizer, describe=False, looks=looks, budget=1.0, **settings) as flow:
        for _ in range(steps):
            x, y = draw()
            loss = loss_of(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return flow


class Attention(nn.Module):
    """Attention by hand, scores by `how`; one of its projections may be far too large."""

    def __init__(self, how="product", wide=None, width=32, heads=4):
        super().__init__()
        self.how, self.heads = how, heads
        self.ask, self.offer, self.give, self.out = (nn.Linear(width, width) for _ in range(4))
        self.packed, self.score = nn.Linear(width, 2 * width), nn.Linear(width, heads, bias=False)
        if wide is not None:
            getattr(self, wide).weight.data *= 300.0

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x):
        value = self.split(self.give(x))
        if self.how == "pairs":
            pairs = torch.tanh(self.ask(x)[:, :, None] + self.offer(x)[:, None])
            made = self.score(pairs).permute(0, 3, 1, 2).softmax(-1) @ value
        else:
            both = self.packed(x).chunk(2, -1) if self.how == "packed" else (self.ask(x), self.offer(x))
            query, key = map(self.split, both)
            if self.how == "one head for all":
                query, key = query[:, :1].expand_as(query), key[:, :1].expand_as(key)
            if self.how == "fused":
                made = F.scaled_dot_product_attention(query, key, value)
            else:
                made = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
        return x + self.out(made.transpose(1, 2).flatten(2))


def attending(*parts):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), *parts, nn.Linear(32, 4))
    way = torch.randn(6, 4)

    def draw():
        x = torch.randn(16, 10, 6)
        return x, (x @ way).argmax(-1)

    return watched(model, draw, lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()))


@pytest.mark.parametrize(
    ("how", "wide", "named"),
    [
        ("product", "offer", "2.offer"),
        ("product", "ask", "2.ask"),
        ("fused", "offer", "2.offer"),
        ("packed", "packed", "2.packed"),
        ("pairs", "score", "2.score"),
    ],
)
def test_sharp_attention_names_the_weights_that_make_its_scores(how, wide, named):
    flow = attending(Attention(how), Attention(how, wide))
    issue = alarms(flow)[IssueType.ENTROPY_COLLAPSE]
    assert issue.layer == named
    assert issue.evidence["attention"] == "2"
    assert "scores of `2` come from" in issue.message
    assert IssueType.ENTROPY_COLLAPSE not in alarms(attending(Attention(how), Attention(how)))


def test_heads_that_are_one_name_the_queries():
    issue = alarms(attending(Attention(), Attention("one head for all")))[IssueType.HEAD_DIVERSITY]
    assert issue.layer == "2.ask"


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.ask, self.offer, self.give = (nn.Linear(32, 8, bias=False) for _ in range(3))

    def forward(self, x):
        return (self.ask(x) @ self.offer(x).mT / 8**0.5).softmax(-1) @ self.give(x)


class Listed(nn.Module):
    def __init__(self, *heads):
        super().__init__()
        self.heads, self.out = nn.ModuleList(heads), nn.Linear(32, 32)

    def forward(self, x):
        return x + self.out(torch.cat([head(x) for head in self.heads], dim=-1))


def test_a_list_that_holds_one_head_several_times_has_redundant_heads():
    issue = alarms(attending(Attention(), Listed(*[Head()] * 4)))[IssueType.HEAD_DIVERSITY]
    assert issue.layer == "2.heads.0.ask"
    assert issue.evidence["heads"] == 4
    assert IssueType.HEAD_DIVERSITY not in alarms(attending(Attention(), Listed(*(Head() for _ in range(4)))))
    again = [Attention()] * 4  # one block used again and again takes in what it gave out
    assert IssueType.HEAD_DIVERSITY not in alarms(attending(*again))


class Bare(Attention):
    """Without its skip."""

    def forward(self, x):
        return super().forward(x) - x


class Again(nn.Module):
    """One block, used ten times over."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        for _ in range(10):
            x = self.block(x)
        return x


@pytest.mark.parametrize("around", [lambda block: [Again(block)], lambda block: [block] * 10])
def test_tokens_that_one_block_makes_alike_by_running_again_and_again_have_collapsed(around):
    assert IssueType.RANK_COLLAPSE in alarms(attending(*around(Bare())))
    assert IssueType.RANK_COLLAPSE not in alarms(attending(*around(Attention())))


def test_attention_of_torch_is_named_as_a_whole():
    class Torch(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(32, 4, batch_first=True)
            self.inner.in_proj_weight.data[:64] *= 30.0

        def forward(self, x):
            return x + self.inner(x, x, x, need_weights=False)[0]

    assert alarms(attending(Attention(), Torch()))[IssueType.ENTROPY_COLLAPSE].layer == "2.inner"


class Colder(Attention):
    """Its queries are given another scale at every call."""

    def __init__(self, by):
        super().__init__()
        self.by, self.scale = by, 1.0

    def forward(self, x):
        self.scale *= self.by
        query, key, value = (self.split(part) for part in (self.scale * self.ask(x), self.offer(x), self.give(x)))
        made = (query @ key.mT).softmax(-1) @ value
        return x + self.out(made.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("by", [1.3, 1.0])
def test_attention_that_freezes_while_others_learn_is_judged_by_the_last_looks(by):
    found = alarms(attending(Colder(by)))
    assert (IssueType.ENTROPY_COLLAPSE in found) is (by > 1)
    if by > 1:
        issue = found[IssueType.ENTROPY_COLLAPSE]
        assert (issue.layer, issue.evidence["collapsed_heads"]) == ("1.ask", 1.0)
        assert issue.evidence["entropy"] < 0.05 < issue.evidence["entropy_at_start"]


class Pieces(nn.Module):
    """Reads in pieces of three; `cut` hands the state on without its past, `anew` does not hand it on."""

    def __init__(self, cut, anew=False):
        super().__init__()
        self.gru, self.head, self.cut, self.anew = nn.GRU(5, 24, batch_first=True), nn.Linear(24, 4), cut, anew
        self.gru.bias_ih_l0.data[24:48] = 3.0

    def forward(self, x):
        state = None
        for piece in x.split(3, dim=1):
            before = state.detach() if self.cut and state is not None else state
            _, state = self.gru(piece, None if self.anew else before)
        return self.head(state[0])


def said_first():
    y = torch.randint(4, (32,))
    x = 0.3 * torch.randn(32, 15, 5)
    x[:, 0, :4] += 2 * F.one_hot(y, 4)
    return x, y


def test_a_state_that_starts_anew_in_every_piece_is_too_short_for_what_the_loss_asks():
    torch.manual_seed(0)
    issue = alarms(watched(Pieces(False, True), said_first, F.cross_entropy))[IssueType.SHORT_MEMORY]
    assert (issue.layer, issue.evidence["steps_per_call"], issue.evidence["required_lag"]) == ("gru", 3, 15)


@pytest.mark.parametrize("late", [True, False])
def test_a_memory_that_the_loss_does_not_miss_is_long_enough(late):
    """The net turns the sequence round: what is said first comes last."""

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.RNN(5, 24, batch_first=True), nn.Linear(24, 4)

        def forward(self, x):
            return self.head(self.rnn(x.flip(1) if late else x)[0][:, -1])

    torch.manual_seed(0)
    found = alarms(watched(Reader(), said_first, F.cross_entropy, lr=1e-2))
    assert (IssueType.SHORT_MEMORY not in found) is late


@pytest.mark.parametrize("cut", [True, False])
def test_a_module_called_in_pieces_that_are_cut_is_too_short_for_what_the_loss_asks(cut):
    torch.manual_seed(0)
    draw = said_first
    found = alarms(watched(Pieces(cut), draw, F.cross_entropy))
    assert (IssueType.SHORT_MEMORY in found) is cut
    if cut:
        assert found[IssueType.SHORT_MEMORY].layer == "gru"
        assert found[IssueType.SHORT_MEMORY].evidence["cut_share"] == pytest.approx(4 / 14)


@pytest.mark.parametrize("bonus", [20.0, 0.01])
def test_a_policy_that_a_bonus_draws_to_uniform_explores_too_much(bonus):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 5))
    worth = torch.randn(6, 5)

    def draw():
        x = torch.randn(64, 6)
        return x, (x @ worth).sigmoid()

    def loss_of(logits, pay):
        p, log_p = logits.softmax(-1), logits.log_softmax(-1)
        return 1 - (p * pay).sum(-1).mean() + bonus * (p * log_p).sum(-1).mean()

    flow = watched(model, draw, loss_of, policy=lambda logits: (logits, None, None, None))
    assert (IssueType.EXPLORATION in alarms(flow)) is (bonus > 1)


class Barred(nn.Module):
    """Attention under a mask that leaves each query so many keys."""

    def __init__(self, keys):
        super().__init__()
        self.enter, self.head, self.keys = nn.Linear(6, 16), nn.Linear(16, 4), keys
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        x = self.enter(x)
        bar = -1e4 * (torch.arange(x.shape[1]) >= self.keys)
        weights = (self.q(x) @ self.k(x).mT / 4 + bar).softmax(dim=-1)
        return self.head(x + weights @ self.v(x)).mean(dim=1)


def heaps():
    x = torch.randn(32, 5, 6)
    return x, x[..., :4].sum(dim=1).argmax(dim=1)


@pytest.mark.parametrize(("keys", "sick"), [(1, True), (5, False)])
def test_a_mask_that_leaves_one_key_is_named_and_what_gets_no_gradient_follows_from_it(keys, sick):
    model = Barred(keys)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    issues = serious(model, heaps, F.cross_entropy, steps=60, optimizer=optimizer)
    assert found(issues) == ({(T.ENTROPY_COLLAPSE, "q")} if sick else set())
    assert not sick or {issue.issue_type for issue in issues[0].consequences} <= {T.DISCONNECTED, T.DEAD, T.LOOP}


class Bins(nn.Module):
    """A score is put into soft bins, which have vectors in a table."""

    def __init__(self):
        super().__init__()
        self.score, self.table, self.out = nn.Linear(6, 4), nn.Embedding(48, 8), nn.Linear(32, 1)

    def forward(self, x):
        near = -((self.score(x)[..., None] - torch.linspace(-2, 2, 12)) ** 2) / 0.002
        return self.out((near.softmax(dim=-1)[:, :, None] @ self.table.weight.view(4, 12, 8)).flatten(1))


def test_soft_bins_of_a_table_are_no_attention():
    def batch():
        x = torch.randn(64, 6)
        return x, x[:, :1] * x[:, 1:2]

    assert T.ENTROPY_COLLAPSE not in {issue.issue_type for issue in serious(Bins(), batch, F.mse_loss, steps=60)}


@pytest.mark.parametrize(("rate", "sick"), [(0.3, True), (3e-3, False)])
def test_attention_that_large_steps_made_sharp_has_the_rate_for_its_cause(rate, sick):
    model = Barred(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    issues = serious(model, heaps, F.cross_entropy, steps=60, optimizer=optimizer)
    codes = {issue.code for issue in issues}
    assert ("rate_too_high" in codes, "attention_logits" in codes) == (sick, False)


class Patches(nn.Module):
    """Patches of pixels, read by a block and normalised."""

    def __init__(self):
        super().__init__()
        self.patch, self.norm, self.head = nn.Linear(16, 24), nn.LayerNorm(24), nn.Linear(24, 4)
        self.block = nn.TransformerEncoderLayer(24, 4, 48, 0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        return self.head(self.norm(self.block(self.patch(x))[:, 0]))


@pytest.mark.parametrize(("scale", "sick"), [(500.0, True), (1.0, False)])
def test_a_gradient_that_vanishes_behind_large_inputs_has_them_for_its_cause(scale, sick):
    def batch():
        x = torch.randn(32, 6, 16)
        return scale * (x + 1), x[..., :4].sum(dim=1).argmax(dim=1)

    issues = serious(Patches(), batch, F.cross_entropy, steps=60)
    assert ("input_scales" in {issue.code for issue in issues}) is sick
