"""Faults of the loop and of the optimizer's state, each beside a twin without it: both are trained under watch."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf
from gradient_flow import IssueSeverity
from gradient_flow.looks import loop_data
from gradient_flow.looks.loop_data import loss_call
from gradient_flow.looks.loop_parameters import as_drawn


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def net(*sizes):
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.SiLU())]
    return nn.Sequential(*layers[:-1])


def codes(model, optimizer, loss_fn, batch=None, steps=60, after=lambda step: None):
    """Codes of the issues above a remark."""

    def classes():
        x = torch.randn(32, 12)
        return x, x[:, :5].argmax(1)

    with gf.watch(model, optimizer) as flow:
        for step in range(steps):
            x, y = (batch or classes)()
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
            after(step)
    return {issue.code for issue in flow.diagnose() if issue.severity > IssueSeverity.LOW}


# ---- what is trained ----------------------------------------------------------------------------------------------


class Added(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.delta_up = base, nn.Parameter(torch.zeros(base.out_features, 2))
        self.delta_down = nn.Parameter(torch.randn(2, base.in_features) / 4)

    def forward(self, x):
        return self.base(x) + x @ self.delta_down.T @ self.delta_up.T


@pytest.mark.parametrize(("word", "sick"), [("lora", True), ("delta", False)])
def test_adapters_that_are_all_frozen_are_told(word, sick):
    model = nn.Sequential(Added(nn.Linear(12, 32)), nn.SiLU(), nn.Linear(32, 5))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = word in name or name.startswith("2")
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    assert codes(model, optimizer, F.cross_entropy) == ({"lora_frozen"} if sick else set())


@pytest.mark.parametrize("merged", [True, False])
def test_a_frozen_base_is_meant_where_adapters_learn_beside_it_and_adapters_that_are_not_used_are_told(merged):
    model = nn.Sequential(Added(nn.Linear(12, 32)), nn.SiLU(), Added(nn.Linear(32, 32)), nn.SiLU(), nn.Linear(32, 5))
    for block in (model[0], model[2]):
        block.base.requires_grad_(False)
        if merged:
            block.forward = block.base.forward
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    assert codes(model, optimizer, F.cross_entropy) == ({"lora_frozen"} if merged else set())


@pytest.mark.parametrize("how", ["never thawed", "thawed", "trained before", "not given", "at the input"])
def test_frozen_weights_that_nobody_has_trained_are_told_where_an_optimizer_holds_them(how):
    """Behind a layer that learns: random features at the input may be meant."""
    model = net(12, 32, 32, 32, 5)
    body = model[:2] if how == "at the input" else model[2:5]
    if how == "trained before":
        with torch.no_grad():
            for parameter in body.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape))
    body.requires_grad_(False)
    given = [p for p in model.parameters() if p.requires_grad or how != "not given"]
    optimizer = torch.optim.Adam(given, lr=1e-2)

    def thaw(step):
        if step == 5 and how == "thawed":
            body.requires_grad_(True)

    assert codes(model, optimizer, F.cross_entropy, after=thaw) == ({"frozen"} if how == "never thawed" else set())


@pytest.mark.parametrize(
    "draw",
    [nn.init.kaiming_normal_, nn.init.xavier_uniform_, lambda w: nn.init.normal_(w, std=0.02), lambda w: w],
    ids=["he", "xavier", "0.02", "torch"],
)
def test_a_draw_is_known_by_its_distribution_and_a_step_spoils_it(draw):
    layer = nn.Linear(60, 40)
    with torch.no_grad():
        before = layer.weight.clone()
        draw(layer.weight)
        if not torch.equal(before, layer.weight):
            layer.bias.zero_()
    assert as_drawn(nn.Sequential(layer), {"0.weight", "0.bias"}) == ["0.weight"]
    with torch.no_grad():
        layer.weight.add_(0.03 * torch.randn(40, 60))
        layer.bias.add_(0.01)
    assert as_drawn(nn.Sequential(layer), {"0.weight", "0.bias"}) == []


def test_recurrent_and_convolutional_draws_are_known_and_embeddings_tell_nothing():
    model = nn.ModuleDict({"gru": nn.GRU(8, 16), "conv": nn.Conv2d(3, 8, 3), "words": nn.Embedding(20, 8)})
    names = {name for name, _ in model.named_parameters()}
    assert as_drawn(model, names) == ["gru.weight_ih_l0", "gru.weight_hh_l0", "conv.weight"]
    assert as_drawn(model, {"words.weight"}) == []


@pytest.mark.parametrize("trained", [True, False])
def test_convolutions_without_biases_are_known_by_their_tails_too(trained):
    """As torchvision draws a residual network."""
    layer = nn.Conv2d(16, 32, 3, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    if trained:  # of the same size, with longer tails
        with torch.no_grad():
            size = layer.weight.norm()
            layer.weight.mul_(torch.rand_like(layer.weight) * 2)
            layer.weight.mul_(size / layer.weight.norm())
    assert as_drawn(nn.Sequential(layer), {"0.weight"}) == ([] if trained else ["0.weight"])


@pytest.mark.parametrize(("rate", "sick"), [(1e-12, True), (1e-3, False)])
def test_a_group_whose_rate_is_next_to_nothing_is_told_though_it_has_most_matrices(rate, sick):
    model = net(12, 32, 32, 5)
    groups = [{"params": model[:4].parameters(), "lr": rate}, {"params": model[4].parameters(), "lr": 1e-2}]
    assert codes(model, torch.optim.Adam(groups), F.cross_entropy, steps=70) == ({"never_moves"} if sick else set())


@pytest.mark.parametrize(("kind", "sick"), [(torch.bfloat16, True), (torch.float32, False)])
def test_norms_of_which_no_bit_ever_changes_are_told_while_the_rest_learns(kind, sick):
    model = nn.Sequential(nn.Linear(12, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 5)).to(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    found = codes(model, optimizer, lambda z, y: F.cross_entropy(z.float(), y), lambda: batch_in(kind), steps=100)
    assert found == ({"never_moves"} if sick else set())


def batch_in(kind):
    x = torch.randn(64, 12)
    return x.to(kind), x[:, :5].argmax(1)


def test_weights_that_are_copied_back_from_the_optimizers_own_are_not_cut_off():
    model = net(12, 32, 5)
    copies = [p.detach().clone().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(copies, lr=5e-3)
    with gf.watch(model, optimizer) as flow:
        for _ in range(60):
            x, y = batch_in(torch.float32)
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for mine, copy in zip(model.parameters(), copies, strict=True):
                copy.grad = mine.grad.clone()
            optimizer.step()
            with torch.no_grad():
                for mine, copy in zip(model.parameters(), copies, strict=True):
                    mine.copy_(copy)
    assert not [issue for issue in flow.diagnose() if issue.severity > IssueSeverity.LOW]


class Gate(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.main, self.side, self.weight = net(12, 32, 5), net(12, 16, 5), weight

    def forward(self, x):
        return self.main(x) + self.weight * self.side(x)


@pytest.mark.parametrize(("weight", "sick"), [(0.0, True), (1.0, False)])
def test_a_branch_that_weighs_nothing_only_decays_and_is_not_called_dead(weight, sick):
    model = Gate(weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05)
    assert codes(model, optimizer, F.cross_entropy) == ({"only_decay"} if sick else set())


@pytest.mark.parametrize("sick", [True, False])
def test_a_branch_behind_a_gate_that_stays_zero_never_moves(sick):
    model = Gate(nn.Parameter(torch.zeros(()), requires_grad=not sick))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    assert codes(model, optimizer, F.cross_entropy) == ({"never_moves"} if sick else set())


class Branch(nn.Module):
    """A branch that begins as nothing: by its factor, and by its last layer too where it is `twice`."""

    def __init__(self, twice):
        super().__init__()
        self.main, self.wide, self.back = nn.Linear(12, 16), nn.Linear(16, 24), nn.Linear(24, 16)
        self.factor, self.read = nn.Parameter(torch.zeros(16)), nn.Linear(16, 5)
        if twice:
            nn.init.zeros_(self.back.weight)
            nn.init.zeros_(self.back.bias)

    def forward(self, x):
        h = F.relu(self.main(x))
        return self.read(h + self.factor * self.back(F.relu(self.wide(h))))


class Limited(nn.Module):
    """A matrix that is kept between two limits."""

    def __init__(self, start):
        super().__init__()
        self.main, self.side, self.read = nn.Linear(12, 16), nn.Linear(12, 16), nn.Linear(16, 5)
        self.mix = nn.Parameter(start * (1 + 0.1 * torch.rand(16, 16)))

    def forward(self, x):
        return self.read(F.silu(self.main(x)) + F.silu(self.side(x)) @ self.mix.clamp(0.01, 0.2))


@pytest.mark.parametrize(
    ("kind", "start", "sick"),
    [(Branch, True, True), (Branch, False, False), (Limited, -0.3, True), (Limited, 0.05, False)],
)
def test_what_its_own_weights_keep_at_rest_never_moves(kind, start, sick):
    model = kind(start)
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    assert codes(model, optimizer, F.cross_entropy) == ({"never_moves"} if sick else set())


@pytest.mark.parametrize(("kept", "sick"), [("norm", False), ("block", True)])
def test_norms_that_alone_keep_their_statistics_are_a_remark_and_a_block_left_in_evaluation_mode_is_not(kept, sick):
    block = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1))
    model = nn.Sequential(block, nn.Linear(32, 5))
    model(torch.randn(256, 12))
    (block[1] if kept == "norm" else block).eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    assert codes(model, optimizer, F.cross_entropy) == ({"evaluation_mode"} if sick else set())


@pytest.mark.parametrize("sick", [True, False])
def test_a_weight_whose_gradient_is_masked_never_moves_though_its_bias_is_frozen(sick):
    model = net(12, 32, 32, 5)
    keep = torch.zeros(32, 32) if sick else (torch.rand(32, 32) < 0.5).float()
    model[2].weight.register_hook(lambda gradient: gradient * keep)
    model[2].bias.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    assert codes(model, optimizer, F.cross_entropy) == ({"never_moves"} if sick else set())


def test_a_bias_that_cancels_in_a_difference_of_scores_is_no_more_than_a_remark():
    """Its gradient is exactly zero, and there is nothing for it to learn."""

    def pairs():
        x = torch.randn(32, 12)
        return x, x[:, 0]

    def ranked(z, y):
        ahead = (y[:16] > y[16:]).float() * 2 - 1
        return (1 - ahead * (z[:16, 0] - z[16:, 0])).clamp_min(0).mean()

    model = net(12, 32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05)
    assert codes(model, optimizer, ranked, pairs) == set()


# ---- the loss and the data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "sick"), [((32, 1), True), ((32,), False)])
def test_weights_of_samples_that_meet_all_losses_are_a_broadcast(shape, sick):
    def weighed(z, y):
        return (F.cross_entropy(z, y, reduction="none") * torch.rand(shape)).mean()

    model = net(12, 32, 5)
    found = codes(model, torch.optim.Adam(model.parameters(), lr=5e-3), weighed)
    assert found == ({"broadcast"} if sick else set())


@pytest.mark.parametrize("how", ["one shape", "in between", "pairs on purpose"])
def test_an_output_without_the_dimension_that_its_target_has_is_a_broadcast_if_all_is_averaged(how):
    """(N, 2) less (N, 1, 2) is (N, N, 2): a mistake where its mean is the loss, and pairs where each has a distance."""

    def batch():
        x = torch.randn(24, 12)
        return x, x[:, :2]

    def loss(z, t):
        if how == "pairs on purpose":
            return F.cross_entropy(-(z - t[:, None]).square().sum(2), torch.arange(24))
        return (z - (t[:, None] if how == "in between" else t)).abs().mean()

    model = net(12, 32, 2)
    found = codes(model, torch.optim.Adam(model.parameters(), lr=1e-2), loss, batch)
    assert ("broadcast" in found) is (how == "in between")


@pytest.mark.parametrize(("sign", "sick"), [(1.0, True), (-1.0, False)])
def test_a_likelihood_without_its_minus_falls_for_ever(sign, sick):
    def batch():
        x = torch.randn(64, 12)
        return x, (x[:, :4] > 0).float()

    def loss(z, t):
        return sign * (t * F.logsigmoid(z) + (1 - t) * F.logsigmoid(-z)).mean()

    model = net(12, 32, 4)
    found = codes(model, torch.optim.Adam(model.parameters(), lr=1e-2), loss, batch, steps=70)
    assert ("loss_grows" in found) is sick


@pytest.mark.parametrize(("start", "sick"), [(0.05, True), (1e-9, False)])
def test_a_loss_that_starts_at_next_to_nothing_does_not_grow(start, sick):
    """As that of a policy, which begins as the mean of its advantages."""
    offsets = iter([start * 1.1**k if sick else start + 5e-4 * k for k in range(60)])
    model = net(12, 32, 5)
    found = codes(model, torch.optim.Adam(model.parameters(), lr=1e-3), lambda z, _: 0 * z.sum() + next(offsets))
    assert ("loss_grows" in found) is sick


@pytest.mark.parametrize("ignored", [0, 7])
@pytest.mark.parametrize("most", [1, 100, 1 << 18])
def test_agreement_of_classes_is_that_of_all_logits_at_once(monkeypatch, ignored, most):
    monkeypatch.setattr(loop_data, "_MOST_LOGITS", most)
    logits, labels = torch.randn(50, 30, dtype=torch.float64), torch.randint(30, (50,))
    labels[:ignored] = -100
    logs = logits[ignored:].log_softmax(1)
    each = (logs - logs.mean(0)).gather(1, labels[ignored:, None])
    expected = float(each.sum() / each.norm())
    found = loss_call("cross_entropy", logits.float(), labels, {}, None, set()).agreement
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("function", ["mse_loss", "cross_entropy"])
def test_agreement_is_about_normal_where_predictions_know_nothing_and_grows_with_what_they_know(function):
    x = torch.randn(512, 3, requires_grad=True)
    noise = 6 * torch.randn(512, 3)
    mine = (x + noise).detach() if function == "mse_loss" else (x + noise / 3).argmax(1)
    others = mine[torch.randperm(512)]
    knows, guesses = (loss_call(function, x, target, {}, None, set()).agreement for target in (mine, others))
    assert knows > 4 > 3 > abs(guesses)
    if function == "mse_loss":  # Σ s / √Σ s², by hand in double precision
        a, b = (part.double() - part.double().mean(0) for part in (x.detach(), mine))
        each = (a * b).sum(1)
        assert math.isclose(knows, float(each.sum() / each.square().sum().sqrt()), rel_tol=1e-4)


@pytest.mark.parametrize(("signal", "sick"), [(0.7, False), (0.0, True)])
def test_noise_that_hides_what_is_learned_does_not_make_a_loss_stuck(signal, sick):
    def batch():
        x = torch.randn(256, 12)
        return x, signal * x[:, :1] + 5 * torch.randn(256, 1)

    model = net(12, 16, 1)
    found = codes(model, torch.optim.Adam(model.parameters(), lr=3e-3), F.mse_loss, batch, steps=120)
    assert found == ({"loss_stuck"} if sick else set())


# ---- the state of the optimizer -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: torch.optim.RMSprop(p, 1e-3, eps=30.0), {"eps_rules"}),
        (lambda p: torch.optim.RMSprop(p, 1e-3), set()),
        (lambda p: torch.optim.Adagrad(p, 1e-2, eps=30.0), {"eps_rules"}),
        (lambda p: torch.optim.Adagrad(p, 1e-2), set()),
    ],
)
def test_eps_rules_wherever_an_optimizer_divides_by_a_root_of_squares(make, expected):
    model = net(12, 32, 5)
    assert codes(model, make(model.parameters()), F.cross_entropy) == expected


@pytest.mark.parametrize(("rate", "expected"), [(1e-6, {"lost_updates"}), (0.3, set())])
def test_updates_of_sgd_without_momentum_are_lost_in_sixteen_bits_as_well(rate, expected):
    model = net(12, 32, 5).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    found = codes(model, optimizer, lambda z, y: F.cross_entropy(z.float(), y), lambda: batch_in(torch.bfloat16))
    assert found == expected


@pytest.mark.parametrize(("factor", "expected"), [(30.0, {"bad_batch"}), (1.0, set())])
def test_a_batch_whose_loss_jumps_and_is_back_is_the_cause_of_its_spike(factor, expected):
    at = iter(range(1000))

    def batch():
        x = torch.randn(32, 12)
        return x, x[:, :1] * (factor if next(at) % 20 == 19 else 1.0)

    model = net(12, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    found = codes(model, optimizer, F.mse_loss, batch, steps=90)
    assert {code for code in found if code == "bad_batch"} == expected


@pytest.mark.parametrize("rare", [True, False])
def test_a_target_that_no_look_saw_is_told_by_the_losses_between(rare):
    """Every seventh batch holds one sample of the other kind, and looks fall between: the loss flares up there."""
    count = 0

    def payments():
        nonlocal count
        count += 1
        y = torch.zeros(32, 1)
        y[0] = float(rare and count in (11, 22, 33, 37, 41, 43, 47))
        return torch.randn(32, 12), y

    model = net(12, 32, 1)
    weighted = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(10.0))
    seen = codes(model, torch.optim.Adam(model.parameters(), lr=5e-3), weighted, payments, steps=50)
    assert ("constant_targets" in seen) is not rare
