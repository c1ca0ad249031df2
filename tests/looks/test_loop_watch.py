"""Looks at the loop: nothing is changed, nothing stays, and what fails ends the looks alone."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf
from gradient_flow.capture import loss_functions
from gradient_flow.looks import loop_data, loop_watch
from gradient_flow.looks.loop_watch import adapters, hidden_weights

INSIDE = [(owner, name) for _, owner, name, _ in loss_functions._INSIDE]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))


def trained(steps=14, watched=True, **more):
    """The end of a training: weights, buffers, gradients, optimizer state, random numbers."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    flow = gf.watch(model, optimizer, describe=False, **more) if watched else None
    for _ in range(steps):
        x = torch.randn(16, 6)
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
    state = [*model.state_dict().values(), *(p.grad for p in model.parameters()), torch.get_rng_state()]
    state += [value for each in optimizer.state.values() for value in each.values()]
    if flow is not None:
        flow.close()
    return copy.deepcopy(state), flow


def functions():
    return [getattr(owner, name) for owner, name in INSIDE]


def test_no_bit_changes():
    plain, _ = trained(watched=False)
    seen, flow = trained(looks=1)
    assert flow.run.seen["loop"]
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))


def test_loss_functions_are_wrapped_in_a_look_alone():
    before = functions()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, looks=[4], describe=False):
        for step in range(1, 8):
            during = functions()
            # Step 5 is the neighbour of the first look.
            assert (during == before) == (step not in (4, 5)), step
            F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert functions() == before


def test_closing_and_errors_of_the_user_leave_nothing_behind():
    before = functions()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        with gf.watch(model, optimizer, looks=1, describe=False):
            for step in range(5):
                F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
                if step == 3:
                    assert functions() != before
                    raise RuntimeError("of the user")
                optimizer.step()

    with pytest.raises(RuntimeError, match="of the user"):
        train()
    assert functions() == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("what", ["fingerprint", "loss_call", "note_graph", "padding"])
def test_what_fails_ends_the_looks_and_not_the_training(monkeypatch, what):
    def fails(*_args, **_kwargs):
        raise ValueError("not this time")

    before = functions()
    plain, _ = trained(watched=False)
    monkeypatch.setattr(loop_watch, what, fails)
    with pytest.warns(UserWarning, match="not this time"):
        seen, flow = trained(looks=1)
    assert "loop" not in flow.run.seen
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert functions() == before


def test_listeners_hear_functions_that_were_taken_by_name_before():
    heard = []
    held = F.cross_entropy
    logits, labels = torch.randn(6, 3, requires_grad=True), torch.tensor([0, 1, 2, -100, 0, 0])
    end = loss_functions.listen(lambda name, *given: heard.append((name, given)))
    try:
        loss = held(logits, labels, reduction="sum")
        with torch.no_grad():
            held(logits, labels)
    finally:
        end()
    ((name, (predicted, target, settings, result)),) = heard
    assert (name, settings) == ("cross_entropy", {"reduction": "sum", "ignore_index": -100})
    assert predicted is logits
    assert target is labels
    assert result is loss


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 1, 2, 0, 1, 2, 0, 1], [0, 0, 1, 2]])
def test_no_labels_are_more_uncertain_than_even_ones(labels):
    logits, target = torch.randn(len(labels), 3, requires_grad=True), torch.tensor(labels)
    loss = F.cross_entropy(logits, target)
    call = loop_data.loss_call("cross_entropy", logits, target, {}, loss, set())
    assert 0 < call.entropy <= math.log(3)


def test_labels_are_counted_as_a_histogram_does():
    logits, labels = torch.randn(8, 4, requires_grad=True), torch.tensor([2, 2, 2, 1, -100, -100, 0, 0])
    loss = F.cross_entropy(logits, labels)
    call = loop_data.loss_call("cross_entropy", logits, labels, {"ignore_index": -100}, loss, set())
    assert (call.classes, call.labels, call.ignored, call.distinct) == (4, 8, 0.25, 3)
    assert (call.common, call.common_share) == (2, 0.5)
    shares = torch.tensor([2, 1, 3]) / 6  # with the correction of Miller and Madow, and below that of even labels
    assert call.entropy == pytest.approx(float(-(shares * shares.log()).sum()) + 2 / 12, rel=1e-5)


def test_shapes_that_spread_are_told_from_shapes_that_fit():
    def shapes(predicted, target):
        spread = torch.broadcast_tensors(predicted, target)
        return loop_data.loss_call("mse_loss", *spread, {}, None, set()).shapes

    column, row = torch.randn(5, 1, requires_grad=True), torch.randn(5)
    assert shapes(column, row) == [[5, 1], [1, 5]]
    assert shapes(column, row[:, None]) == []
    assert shapes(column, torch.randn(1)) == []
    assert shapes(column, column.detach() + row) == [[5, 1], [5, 5]]  # a target that was spread before
    assert shapes(column, torch.randn(5, 3)) == []  # three measurements of each sample


def test_padding_is_the_token_that_ends_rows():
    tokens = torch.tensor([[3, 4, 9, 9, 9], [5, 9, 9, 9, 9], [6, 7, 8, 9, 9]])
    assert loop_data.padding([tokens]) == (9, 9 / 15)
    assert loop_data.padding([torch.arange(15).reshape(3, 5)]) == (None, 0.0)
    mask = torch.tensor([[1, 1, 1, 0, 0]] * 3)
    assert loop_data.padding([mask]) == (None, 0.0)


def test_batches_are_told_apart_by_their_values():
    x = torch.randn(4, 3)
    assert loop_data.fingerprint([x]) == loop_data.fingerprint([x.clone()])
    assert loop_data.fingerprint([x]) != loop_data.fingerprint([x + 1])
    assert loop_data.fingerprint([torch.tensor(1.0)]) == (None, 0)


def test_weights_that_a_model_hides_are_found_in_lists_of_lists_and_dicts():
    model = nn.Module()
    model.known = nn.ModuleList([nn.Linear(2, 2)])
    model.again = [model.known[0]]
    model.layers = [[nn.Linear(2, 2)], {"a": nn.Linear(2, 2)}]
    model.bare = [nn.Parameter(torch.ones(2))]
    model.constant = [torch.ones(2)]
    assert [name for name, _ in hidden_weights(model)] == ["layers.0.0", "layers.1.a", "bare.0"]


def test_adapters_are_pairs_of_small_rank_side_by_side():
    def named(**shapes):
        return [(name.replace("__", "."), torch.empty(*shape)) for name, shape in shapes.items()]

    lora = named(q__down__weight=(2, 16), q__up__weight=(12, 2), k__up__weight=(12, 2))
    assert set(adapters(lora)) == {("q.down.weight", "q.up.weight"), ("q.up.weight", "q.down.weight")}
    peft = named(q__lora_A__default__weight=(2, 16), q__lora_B__default__weight=(12, 2))
    assert len(list(adapters(peft))) == 2
    lists = named(down__0=(2, 16), down__1=(2, 16), up__0=(12, 2), up__1=(12, 2))
    assert set(adapters(lists)) >= {("down.0", "up.0"), ("up.1", "down.1")}
    assert ("down.0", "up.1") not in set(adapters(lists))
    assert not list(adapters(named(net__0__weight=(32, 16), net__2__weight=(4, 32))))


def test_what_was_seen_is_the_same_in_a_file_and_bounded(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=tmp_path / "run", looks=1, budget=1.0, describe=False) as flow:
        for _ in range(40):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
            optimizer.step()
    facts = gf.load_run(tmp_path / "run").found("loop")[-1][1]
    assert facts["taken"] > len(facts["looks"]) == 12
    assert [look["order"] for look in facts["looks"]] == ["FBS"] * 12
    assert gf.diagnose(tmp_path / "run").to_dict() == flow.diagnose().to_dict()


def test_weights_that_become_infinite_bring_no_warning_of_ours(recwarn):
    model = nn.Linear(4, 2, dtype=torch.float16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # its eps is 0 in float16, and so are small squares
    with gf.watch(model, optimizer, describe=False, looks=1):
        for _ in range(8):
            optimizer.zero_grad()
            (1e-5 * model(torch.ones(3, 4, dtype=torch.float16)).sum()).backward()
            optimizer.step()
    assert model.weight.isinf().any()
    assert [str(each.message) for each in recwarn] == []


@pytest.mark.parametrize(
    ("loads", "set_back"),
    [
        (lambda step, start, _best: start if step % 5 == 0 else None, True),
        (lambda step, start, _best: start if step == 0 else None, False),
        (lambda step, _start, best: best if step % 5 == 0 else None, False),  # it goes on from there
    ],
)
def test_weights_that_are_loaded_again_and_again_undo_the_steps_in_between(loads, set_back):
    torch.manual_seed(0)
    model = net()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, describe=False) as flow:
        for step in range(60):
            now = {name: value.clone() for name, value in model.state_dict().items()}
            weights = loads(step, start, now)
            if weights is not None:  # put in for a test, and the model's own back: no step is between them
                model.load_state_dict(start)
                model.load_state_dict(weights)
            F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not model._load_state_dict_post_hooks
    assert ("weights_overwritten" in [issue.code for issue in flow.diagnose()]) is set_back
