"""What makes samples or positions alike, codes that are too small to compare by, and bounds; each beside a twin."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradient_flow import IssueType
from watched_training import found, serious

T = IssueType


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Tagger(nn.Module):
    """Tags every item of a set from what all have in common, with or without what each was."""

    def __init__(self, own):
        super().__init__()
        self.enter, self.common, self.tags, self.own = nn.Linear(6, 24), nn.Linear(24, 24), nn.Linear(24, 2), own

    def forward(self, x):
        h = torch.relu(self.enter(x))
        common = torch.tanh(self.common(h.mean(dim=1, keepdim=True))).expand_as(h)
        return self.tags(h + common if self.own else common)


def items():
    x = torch.randn(32, 8, 6)
    return x, (x[..., 0] > x[..., 1]).long()


def by_item(z, y):
    return F.cross_entropy(z.flatten(0, 1), y.flatten())


@pytest.mark.parametrize("own", [True, False])
def test_one_vector_for_all_positions_is_a_bottleneck_where_each_has_a_target(own):
    issues = serious(Tagger(own), items, by_item, steps=70)
    assert {T.BOTTLENECK} - {issue.issue_type for issue in issues} == ({T.BOTTLENECK} if own else set())
    assert own or [issue.evidence["positions"] for issue in issues if issue.issue_type is T.BOTTLENECK] == [8]


class Painter(nn.Module):
    """A map of a picture from what `side` × `side` places of it hold."""

    def __init__(self, side):
        super().__init__()
        self.enter, self.pool = nn.Conv2d(2, 16, 3, padding=1), nn.AdaptiveAvgPool2d(side)
        self.wider, self.leave = nn.Upsample(size=8), nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x):
        return self.leave(self.wider(self.pool(torch.relu(self.enter(x)))))


def pictures():
    x = torch.randn(16, 2, 8, 8)
    return x, (x[:, :1] + x[:, 1:]).relu()


@pytest.mark.parametrize(("side", "sick"), [(1, True), (8, False)])
def test_a_map_that_is_made_of_a_mean_over_the_picture_is_a_bottleneck(side, sick):
    kinds = {issue.issue_type for issue in serious(Painter(side), pictures, F.mse_loss, steps=70)}
    assert (T.BOTTLENECK in kinds) is sick


class Views(nn.Module):
    """Codes of two views of a sample."""

    def __init__(self, size):
        super().__init__()
        self.wide, self.code = nn.Linear(24, 48), nn.Linear(48, size)

    def forward(self, pair):
        return [self.code(torch.relu(self.wide(view))) for view in pair]


def pairs():
    mix = torch.randn(12, 24, generator=torch.Generator().manual_seed(1))
    x = torch.randn(64, 12) @ mix
    return (x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x)), None


def agree(codes, _):
    return F.mse_loss(*codes)


def agree_and_spread(codes, _):
    return agree(codes, _) + sum(torch.relu(1 - code.std(dim=0)).mean() for code in codes)


@pytest.mark.parametrize(("loss", "sick"), [(agree, True), (agree_and_spread, False)])
def test_views_that_only_have_to_agree_make_all_samples_one(loss, sick):
    issues = serious(Views(16), pairs, loss, steps=90)
    assert found(issues) == ({(T.LOW_RANK, "code")} if sick else set())


def contrast(codes, _):
    a, b = (F.normalize(code, dim=1) for code in codes)
    return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))


@pytest.mark.parametrize(("size", "sick"), [(2, True), (24, False)])
def test_two_numbers_are_too_few_to_tell_a_sample_from_many_others(size, sick):
    issues = serious(Views(size), pairs, contrast, steps=90)
    assert found(issues) == ({(T.BOTTLENECK, "code")} if sick else set())


class Latent(nn.Module):
    """Attention beside a skip, whose keys and values are made of a latent of each token."""

    def __init__(self, size):
        super().__init__()
        self.query, self.down, self.up = nn.Linear(24, 24), nn.Linear(24, size), nn.Linear(size, 48)
        self.head = nn.Linear(24, 8)

    def forward(self, x):
        key, value = self.up(self.down(x)).chunk(2, dim=-1)
        return self.head((x + F.scaled_dot_product_attention(self.query(x), key, value))[:, 0])


def lookups():
    """Which class has the token that the first one names?"""
    names = torch.stack([torch.randperm(8)[:4] for _ in range(64)])
    classes, asked = torch.randint(8, (64, 4)), torch.randint(4, (64,))
    tokens = torch.cat([F.one_hot(names, 8), F.one_hot(classes, 8), torch.zeros(64, 4, 8)], dim=-1).float()
    query = torch.cat([torch.zeros(64, 16), F.one_hot(names[torch.arange(64), asked], 8)], dim=-1).float()
    return torch.cat([query[:, None], tokens], dim=1), classes[torch.arange(64), asked]


@pytest.mark.parametrize(("size", "sick"), [(1, True), (16, False)])
def test_a_latent_of_one_number_in_a_branch_is_a_bottleneck(size, sick):
    issues = serious(Latent(size), lookups, F.cross_entropy, steps=120, rate=1e-2)
    assert ((T.BOTTLENECK, "down") in found(issues)) is sick


class Capped(nn.Module):
    """Logits bent to ± a cap."""

    def __init__(self, cap):
        super().__init__()
        self.wide, self.head, self.cap = nn.Linear(20, 32), nn.Linear(32, 8), cap

    def forward(self, x):
        return self.cap * torch.tanh(self.head(torch.relu(self.wide(x))) / self.cap)


@pytest.mark.parametrize(("cap", "sick"), [(0.5, True), (30.0, False)])
def test_logits_that_a_cap_keeps_small_are_saturated(cap, sick):
    centres = 2 * torch.randn(8, 20)

    def batch():
        y = torch.randint(8, (64,))
        return centres[y] + 0.5 * torch.randn(64, 20), y

    issues = serious(Capped(cap), batch, F.cross_entropy, steps=80)
    assert found(issues) == ({(T.SATURATION, "head")} if sick else set())


@pytest.mark.parametrize(("time", "sick"), [(1.7e6, True), (0.0, False)])
def test_a_tanh_that_a_column_drives_to_its_bounds_is_saturated_and_not_dead(time, sick):
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))

    def batch():
        x = torch.randn(64, 6)
        return torch.cat([x[:, :5], x[:, 5:] + time], dim=1), x[:, :1] * x[:, 1:2]

    issues = serious(model, batch, F.mse_loss, steps=80)
    assert [(issue.issue_type, issue.layer, issue.code) for issue in issues if issue.issue_type is not T.LOOP] == (
        [(T.SATURATION, "0", "input_scales")] if sick else []
    )


def test_a_new_elman_cell_at_its_bounds_is_named_and_not_the_layer_before_it():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.rnn, self.head = nn.Linear(4, 16), nn.RNN(16, 32, batch_first=True), nn.Linear(32, 1)
            for weight in self.rnn.parameters():
                nn.init.uniform_(weight)

        def forward(self, x):
            return self.head(self.rnn(self.enter(x))[0][:, -1])

    def batch():
        x = torch.randn(32, 12, 4)
        return x, x[:, 0, :1]

    flat = [issue.layer for issue in serious(Reader(), batch, F.mse_loss) if issue.issue_type is T.SATURATION]
    assert flat == ["rnn"]


class Warmed(nn.Module):
    """A GRU whose state is warmed up on some steps, without gradients."""

    def __init__(self, steps):
        super().__init__()
        self.enter, self.gru, self.head = nn.Embedding(12, 16), nn.GRU(16, 24, batch_first=True), nn.Linear(24, 4)
        self.steps = steps
        nn.init.constant_(self.gru.bias_hh_l0[24:48], 2.0)  # it keeps what it has

    def forward(self, tokens):
        x = self.enter(tokens)
        with torch.no_grad():
            state = self.gru(x[:, : self.steps])[1]
        return self.head(self.gru(x[:, self.steps :], state)[0][:, -1])


@pytest.mark.parametrize(("steps", "sick"), [(7, True), (1, False)])
def test_a_state_that_is_warmed_up_on_most_of_a_sequence_remembers_little(steps, sick):
    def batch():
        tokens = torch.randint(4, 12, (32, 10))
        tokens[:, 3] = torch.randint(4, (32,))
        return tokens, tokens[:, 3]

    issues = serious(Warmed(steps), batch, F.cross_entropy, steps=60, rate=1e-2)
    assert ((T.SHORT_MEMORY, "gru") in found(issues)) is sick


class Faded(nn.Module):
    """Sums that fade by gates of the input alone."""

    def __init__(self, bias):
        super().__init__()
        self.enter, self.gate, self.new, self.head = (
            nn.Linear(*size) for size in ((4, 16), (16, 24), (16, 24), (24, 1))
        )
        nn.init.constant_(self.gate.bias, bias)

    def forward(self, x):
        x = self.enter(x)
        z = self.gate(x)
        left = F.logsigmoid(-z).flip(1).cumsum(dim=1).flip(1) - F.logsigmoid(-z)
        return self.head((left.exp() * torch.sigmoid(z) * self.new(x)).sum(dim=1))


@pytest.mark.parametrize(("bias", "sick"), [(4.0, True), (-3.0, False)])
def test_a_gate_that_its_bias_holds_open_to_what_is_new_remembers_little(bias, sick):
    def batch():
        x = torch.randn(64, 14, 4)
        return x, x[:, :3, :1].sum(dim=1) + x[:, -1, 1:2]

    issues = serious(Faded(bias), batch, F.mse_loss, steps=80, rate=1e-2)
    assert ((T.SHORT_MEMORY, "gate") in found(issues)) is sick


class Highway(nn.Module):
    """Gates choose between a layer and what comes in."""

    def __init__(self, bias):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(12))
        self.gates = nn.ModuleList(nn.Linear(24, 24) for _ in range(12))
        self.stem, self.head = nn.Linear(8, 24), nn.Linear(24, 4)
        for gate in self.gates:
            nn.init.constant_(gate.bias, bias)

    def forward(self, x):
        x = self.stem(x)
        for layer, gate in zip(self.layers, self.gates, strict=True):
            open_ = torch.sigmoid(gate(x))
            x = open_ * torch.tanh(layer(x)) + (1 - open_) * x
        return self.head(x)


@pytest.mark.parametrize(("bias", "sick"), [(5.0, True), (-2.0, False)])
def test_biases_that_rounding_keeps_follow_from_a_gradient_that_fades(bias, sick):
    model = Highway(bias)

    def batch():
        x = torch.randn(64, 8)
        return x, x[:, :4].argmax(dim=1)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    issues = serious(model, batch, F.cross_entropy, steps=60, optimizer=optimizer)
    assert {issue.issue_type for issue in issues} == ({T.VANISHING} if sick else set())


@pytest.mark.parametrize(("least", "sick"), [(0, True), (1, False)])
def test_a_batch_without_labels_is_a_fault_where_a_mean_is_taken_over_none(least, sick):
    model, steps = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)), iter(range(100))

    def batch():
        x = torch.randn(32, 6)
        y = x[:, :3].argmax(dim=1)
        return x, y.fill_(-100) if next(steps) == 12 else y

    def loss(z, y):
        return F.cross_entropy(z, y, reduction="sum") / (y >= 0).sum().clamp_min(least)

    issues = serious(model, batch, loss, steps=40)
    assert ("all_masked" in {issue.code for issue in issues}) is sick
    assert not sick or T.NUMERICAL in {issue.issue_type for issue in issues}


class Asked(nn.Module):
    """A decoder whose queries ask for each coming step, with a place of their own or without; steps come last."""

    def __init__(self, places):
        super().__init__()
        self.enter, self.key, self.value, self.out = (
            nn.Linear(*size) for size in ((4, 24), (24, 24), (24, 24), (24, 2))
        )
        self.ask, self.when = nn.Parameter(torch.randn(1, 1, 24)), nn.Parameter(torch.randn(1, 6, 24))
        self.places = places

    def forward(self, x):
        memory = self.enter(x)
        ask = self.ask.expand(len(x), 6, -1) + (self.when if self.places else 0.0)
        said = F.scaled_dot_product_attention(ask, self.key(memory), self.value(memory))
        return self.out(said + torch.relu(said)).transpose(1, 2)


@pytest.mark.parametrize(("places", "sick"), [(False, True), (True, False)])
def test_queries_that_are_all_alike_say_the_same_of_all_positions(places, sick):
    def batch():
        x = torch.randn(64, 6, 4)
        x[:, :, 2:] = torch.eye(6)[:, :2]  # where it is, in part
        return x, x[:, :1, :2].expand(-1, 6, -1).transpose(1, 2) * torch.linspace(-1, 1, 6)

    issues = serious(Asked(places), batch, F.mse_loss, steps=90, rate=1e-2)
    assert (T.BOTTLENECK in {issue.issue_type for issue in issues}) is sick


@pytest.mark.parametrize(("mean", "sick"), [(115.0, True), (0.5, False)])
def test_inputs_with_a_large_offset_leave_samples_next_to_the_same(mean, sick):
    model, centres = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4)), torch.rand(4, 20)

    def batch():
        y = torch.randint(4, (64,))
        return (centres[y] + 0.1 * torch.randn(64, 20) - mean) / max(mean, 0.3), y

    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    issues = serious(model, batch, F.cross_entropy, steps=80, optimizer=optimizer)
    assert found(issues) == ({(T.LOW_RANK, "0")} if sick else set())


class Product(nn.Module):
    """A layer whose matrix is a product of two factors of some rank."""

    def __init__(self, rank):
        super().__init__()
        self.enter, self.drop, self.out = nn.Linear(10, 32), nn.Dropout(0.0), nn.Linear(32, 6)
        self.tall, self.wide = nn.Parameter(torch.randn(32, rank) / 6), nn.Parameter(torch.randn(rank, 32))

    def forward(self, x):
        return self.out(torch.relu(self.drop(torch.tanh(self.enter(x)) @ self.tall @ self.wide)))


@pytest.mark.parametrize(("rank", "sick"), [(1, True), (12, False)])
def test_factors_of_rank_1_between_modules_let_one_direction_through(rank, sick):
    mix = torch.randn(10, 6)

    def batch():
        x = torch.randn(64, 10)
        return x, torch.tanh(x @ mix)

    issues = serious(Product(rank), batch, F.mse_loss, steps=60)
    assert found(issues) == ({(T.LOW_RANK, "enter")} if sick else set())


class Bag(nn.Module):
    """The mean of the vectors of some songs names one more."""

    def __init__(self, size):
        super().__init__()
        self.songs, self.out = nn.Embedding(40, size), nn.Linear(size, 40)

    def forward(self, ids):
        return self.out(self.songs(ids).mean(dim=1))


def playlists():
    kind = torch.randint(8, (64, 1))
    songs = 5 * kind + torch.randint(5, (64, 6))
    return songs[:, 1:], songs[:, 0]


@pytest.mark.parametrize(("size", "sick"), [(1, True), (24, False)])
def test_words_of_one_number_are_too_few_for_an_output_that_is_made_of_them(size, sick):
    issues = serious(Bag(size), playlists, F.cross_entropy, steps=100, rate=2e-2)
    assert found(issues) == ({(T.BOTTLENECK, "songs")} if sick else set())


class Folded(nn.Module):
    """Ids are hashed into some rows of a table."""

    def __init__(self, rows):
        super().__init__()
        self.rows, self.enter, self.rnn, self.head = rows, nn.Embedding(rows, 16), nn.GRU(16, 24), nn.Linear(24, 12)

    def forward(self, ids):
        return self.head(self.rnn(self.enter(7 * ids % self.rows).transpose(0, 1))[0][-1])


@pytest.mark.parametrize(("rows", "sick"), [(2, True), (97, False)])
def test_a_table_of_two_rows_for_many_ids_is_named(rows, sick):
    def batch():
        ids = torch.randint(12, (64, 5))
        return ids, ids[:, -1]

    issues = serious(Folded(rows), batch, F.cross_entropy, steps=70, rate=1e-2)
    assert ((T.LOW_RANK, "enter") in found(issues)) is sick


class Writer(nn.Module):
    """Writes word by word; every sentence begins with one word."""

    def __init__(self):
        super().__init__()
        self.source, self.read = nn.Embedding(10, 16), nn.GRU(16, 24, batch_first=True)
        self.target, self.cell, self.head = nn.Embedding(11, 16), nn.GRUCell(16, 24), nn.Linear(24, 10)

    def forward(self, ids):
        h, said = self.read(self.source(ids))[1][0], []
        for word in F.pad(ids[:, :-1], (1, 0), value=10).unbind(1):
            h = self.cell(self.target(word), h)
            said.append(self.head(h))
        return torch.stack(said, dim=1)


def test_the_word_that_begins_every_sentence_is_no_table_of_one_vector():
    def batch():
        ids = torch.randint(10, (64, 4))
        return ids, ids

    assert not serious(Writer(), batch, by_item, steps=60, rate=1e-2)


class Present(nn.Module):
    """Puts zero in the place of what is missing, or goes on with it."""

    def __init__(self, fills):
        super().__init__()
        self.net, self.fills = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1)), fills

    def forward(self, x):
        return self.net(x.nan_to_num(0.0) if self.fills else x)


@pytest.mark.parametrize(("fills", "sick"), [(False, True), (True, False)])
def test_values_that_are_missing_are_a_fault_where_the_model_takes_them_as_they_are(fills, sick):
    def batch():
        x = torch.randn(32, 8)
        return x.masked_fill(torch.rand_like(x) < 0.1, torch.nan), x.sum(dim=1, keepdim=True)

    issues = serious(Present(fills), batch, F.mse_loss, steps=40)
    assert (T.NUMERICAL in {issue.issue_type for issue in issues}) is sick
