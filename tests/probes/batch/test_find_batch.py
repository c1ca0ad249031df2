"""`find_batch` names the samples at fault, and leaves no trace."""

import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradient_flow as gf
from gradient_flow.errors import InputError


def dense(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), *between, nn.ReLU(), nn.Linear(16, 1))


def batch_of(samples, seed=1):
    torch.manual_seed(seed)
    return {"x": torch.randn(samples, 6), "y": torch.randn(samples, 1)}


def squares(model, reduce=torch.mean):
    return lambda part: reduce((model(part["x"]) - part["y"]).square())


@pytest.mark.parametrize("samples", [1, 2, 3, 17, 64])
@pytest.mark.parametrize("reduce", [torch.mean, torch.sum], ids=["mean", "sum"])
def test_every_position_is_found_within_log2_and_a_few_replays(samples, reduce):
    model = dense()
    for position in range(samples):
        nan, spike = batch_of(samples), batch_of(samples)
        nan["x"][position, 2] = math.nan
        spike["y"][position] = 1e4
        cause = gf.find_batch(squares(model, reduce), nan, model)
        assert cause.indices == (position,)
        assert cause.kind == "non-finite"
        assert cause.replays <= math.ceil(math.log2(samples)) + 3
        if samples > 1:
            cause = gf.find_batch(squares(model, reduce), spike, model)
            assert cause.indices == (position,), cause
            assert cause.kind == "spike"
            assert cause.replays <= math.ceil(math.log2(samples)) + 5


def test_the_norms_are_those_of_autograd():
    model, batch = dense(), batch_of(16)
    batch["y"][5] = 1e4
    cause = gf.find_batch(squares(model), batch, model)
    rest = [at for at in range(16) if at != 5]
    for which, norm in ((list(range(16)), cause.norm), (rest, cause.norm_without)):
        loss = squares(model)({name: tensor[which] for name, tensor in batch.items()})
        gradients = torch.autograd.grad(loss, model.parameters())
        expected = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        assert norm == pytest.approx(expected, rel=1e-6)


def test_several_culprits_are_all_named():
    model, batch = dense(), batch_of(64)
    batch["x"][[3, 40, 41], 0] = math.inf
    assert gf.find_batch(squares(model), batch, model).indices == (3, 40, 41)
    batch = batch_of(64)
    batch["y"][[9, 50]] = 1e4
    usual = gf.find_batch(squares(model), batch_of(64), model).norm
    assert gf.find_batch(squares(model), batch, model, usual=usual).indices == (9, 50)


def test_a_sound_batch_has_no_culprit():
    model, batch = dense(), batch_of(64)
    cause = gf.find_batch(squares(model), batch, model)
    assert not cause.found
    assert "all 64 contribute" in cause.message
    cause = gf.find_batch(squares(model), batch, model, usual=cause.norm)
    assert (cause.kind, cause.replays) == ("nothing", 1)


def test_a_loss_that_breaks_for_every_sample_blames_none_of_them():
    model, batch = dense(), batch_of(20)
    cause = gf.find_batch(lambda part: (model(part["x"]) * 0 - 1).sqrt().mean(), batch, model)
    assert cause.indices == tuple(range(20))
    assert "not a sample" in str(cause)
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    cause = gf.find_batch(squares(model), batch, model)
    assert (cause.indices, cause.replays) == ((), 0)
    assert "`0.weight`" in str(cause)


@pytest.mark.parametrize("position", [0, 1, 2, 8, 30, 31])
def test_with_a_batch_norm_samples_are_asked_in_company(position):
    model, batch = dense(nn.BatchNorm1d(16)), batch_of(32)
    batch["x"][position, 1] = math.nan
    cause = gf.find_batch(squares(model), batch, model)
    assert cause.indices == (position,)
    assert "`1` normalises over the batch" in cause.coupled
    model.eval()
    assert gf.find_batch(squares(model), batch, model).coupled == ""


def test_a_pair_that_is_bad_only_together_is_found_by_delta_debugging():
    """Two samples that are equal: their distance is zero, and so is what its gradient is divided by."""
    model, batch = dense(), batch_of(12)
    batch["x"][9] = batch["x"][4]

    def repel(part):
        out = model(part["x"])
        near = torch.cdist(out, out)
        return -(near + torch.eye(len(out))).log().sum()

    cause = gf.find_batch(repel, batch, model)
    assert cause.indices == (4, 9)
    assert "bad together" in cause.coupled


def test_a_contrastive_loss_is_named_as_such():
    model = nn.Linear(6, 4)
    batch = batch_of(32)
    batch["x"][6] *= 1e4

    def contrast(part):
        out = model(part["x"])
        return F.cross_entropy(out @ out.T, torch.arange(len(out)).flip(0))

    cause = gf.find_batch(contrast, batch, model)
    assert "compared with each other" in cause.coupled
    assert 6 in cause.indices


class Stateful(nn.Module):
    """Draws random numbers, counts its calls, keeps running statistics."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.body(x)


def test_everything_is_bit_identical_afterwards():
    torch.manual_seed(0)
    model = Stateful()
    optimizer = torch.optim.Adam(model.parameters())
    batch = batch_of(16)
    squares(model)(batch).backward()
    optimizer.step()
    batch["x"][7] = math.nan
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = [(p, p.grad, p.grad.clone()) for p in model.parameters()]
    given = {name: tensor.clone() for name, tensor in batch.items()}
    numbers, calls = torch.get_rng_state(), model.calls

    def whole_step(part):
        optimizer.zero_grad()
        part["y"].mul_(2)  # a step may change its batch
        loss = squares(model)(part)
        loss.backward()
        optimizer.step()
        return loss

    cause = gf.find_batch(whole_step, batch, model)
    assert cause.indices == (7,)
    assert all(torch.equal(kept[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is grad and torch.equal(grad, copy) for p, grad, copy in gradients)
    assert torch.equal(numbers, torch.get_rng_state())
    assert model.calls == calls
    assert all(given[name].equal(batch[name]) for name in ("y",))
    assert torch.equal(given["x"].isnan(), batch["x"].isnan())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


Pair = namedtuple("Pair", "x y")


@dataclass
class Sample:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "kept"


@pytest.mark.parametrize(
    ("wrap", "read"),
    [
        (lambda b: (b["x"], b["y"]), lambda p: (p[0], p[1])),
        (lambda b: [b["x"], {"deep": (b["y"],)}], lambda p: (p[0], p[1]["deep"][0])),
        (lambda b: Pair(b["x"], b["y"]), lambda p: (p.x, p.y)),
        (lambda b: Sample(b["x"], b["y"]), lambda p: (p.x, p.y)),
        (lambda b: OrderedDict(b, mask=torch.ones(3, 3)), lambda p: (p["x"], p["y"] * p["mask"].mean())),
        (lambda b: {"x": b["x"], "y": b["y"].numpy(), "text": ["a"] * 8}, lambda p: (p["x"], torch.from_numpy(p["y"]))),
    ],
    ids=["tuple", "nest", "namedtuple", "dataclass", "mask of another length", "numpy and texts"],
)
def test_any_nest_is_cut_along_the_first_axis(wrap, read):
    model, batch = dense(), batch_of(8)
    batch["x"][5, 0] = math.nan

    def step(part):
        x, y = read(part)
        assert len(x) == len(y)
        if isinstance(part, dict) and "text" in part:
            assert len(part["text"]) == len(x)
        return (model(x) - y).square().mean()

    assert gf.find_batch(step, wrap(batch), model).indices == (5,)


def test_by_loss():
    """A gradient that is clipped by the loss itself shows nothing; the loss does."""
    model, batch = dense(), batch_of(32)
    batch["y"][20] = 1e5
    cause = gf.find_batch(lambda part: F.huber_loss(model(part["x"]), part["y"], delta=0.01), batch, model, of="loss")
    assert cause.indices == (20,)


def test_the_search_ends_where_it_is_told_to():
    model, batch = dense(), batch_of(64)
    batch["x"][:, 0] = math.nan
    cause = gf.find_batch(squares(model), batch, model, most_replays=10)
    assert cause.replays == 10
    assert "most_replays" in str(cause)


def test_it_is_ready_for_json():
    import json

    model, batch = dense(), batch_of(4)
    batch["x"][2] = math.nan
    plain = json.loads(json.dumps(gf.find_batch(squares(model), batch, model).to_dict()))
    assert plain["indices"] == [2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, torch.ones(2), nn.Linear(1, 1)), "`step_fn`"),
        ((len, "text", nn.Linear(1, 1)), "`batch` must hold tensors"),
        ((len, torch.ones(0, 2), nn.Linear(1, 1)), "at least one sample"),
        ((len, torch.ones(2), "model"), "`model`"),
        ((lambda part: 3.0, torch.ones(2), nn.Linear(1, 1)), "`step_fn` must return the loss"),
        ((lambda part: part.sum(), torch.ones(2), nn.Linear(1, 1)), "depends on the model"),
    ],
)
def test_bad_input_is_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        gf.find_batch(*arguments)


def test_what_the_step_raises_on_the_whole_batch_comes_out():
    model = dense()
    with pytest.raises(RuntimeError, match="shapes"):
        gf.find_batch(lambda part: model(part).mean(), torch.ones(4, 5), model)


class _NowAndThen(nn.Module):
    """The log of zero where the first unit of a sample with a large first number is dropped, in its own place."""

    def __init__(self):
        super().__init__()
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(WIDE, 3)

    def forward(self, x):
        kept = self.drop(torch.ones_like(x))[:, :1]
        return self.out(torch.where(x[:, :1] > 50, (kept / 2).log().sqrt(), x))


WIDE = 6


@pytest.mark.parametrize("seed", range(8))
def test_a_sample_that_breaks_only_under_some_masks_is_found_in_its_place(seed):
    torch.manual_seed(seed)
    model, x = _NowAndThen(), torch.randn(24, WIDE)
    x[11, 0] = 99.0
    while True:  # a random state with which it does break
        state = gf.RandomState.capture()
        if not F.cross_entropy(model(x), torch.zeros(24, dtype=torch.long)).isfinite():
            break
    cause = gf.find_batch(
        lambda b: F.cross_entropy(model(b[0]), b[1]), (x, torch.zeros(24).long()), model, rng_state=state
    )
    assert cause.indices == (11,)
    assert not cause.coupled
