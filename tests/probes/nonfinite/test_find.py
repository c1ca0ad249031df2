import copy
import importlib
import json
import linecache
import random
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import planted_faults as planted
from gradient_flow.errors import InputError
from gradient_flow.probes.nonfinite.find import NonFiniteOrigin, RandomState, find_nonfinite
from planted_faults import FAULTS, HEALTHY, INF, NAN, Checkpointed, Net, Part, Statistics, batch

optimizer_module = importlib.import_module("torch.optim.optimizer")
pytestmark = pytest.mark.filterwarnings("ignore:std\\(\\)|var\\(\\)")  # of one element: that is the fault


def identity(x):
    return x


def find(net, *args, **kwargs) -> NonFiniteOrigin:
    return find_nonfinite(lambda: net(*args, **kwargs).mean(), net)


def assert_is(origin, fault):
    made = origin.outputs[0]
    assert (origin.kind, origin.phase, origin.operator) == (fault.kind, fault.phase, fault.operator)
    assert (origin.module, origin.module_type) == ("encoder.1", "Part")
    assert origin.code == fault.code
    assert origin.file == planted.__file__
    assert linecache.getline(origin.file, origin.line).strip() == fault.code
    assert (made.first_bad, made.nan, made.inf) == (fault.first_bad, fault.nan, fault.inf)
    assert origin.trouble is None


# Planted faults ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_named_exactly(fault):
    net = Net(Part(fault.function))
    assert_is(find(net, batch()), fault)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_checkpointing_changes_no_finding(fault, reentrant):
    net = Checkpointed(Part(fault.function), reentrant)
    assert_is(find(net, batch().requires_grad_()), fault)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_step_may_run_its_own_backward(fault):
    net = Net(Part(fault.function))
    assert_is(find_nonfinite(lambda: net(batch()).mean().backward(), net), fault)


def test_a_bad_loss_is_seen_when_the_step_runs_backward_and_returns_nothing():
    net = Net(Part(identity))
    origin = find_nonfinite(lambda: torch.log(net(batch()) * 0).sum().backward(), net)
    assert (origin.phase, origin.operator) == ("forward", "log")  # not the slope of the logarithm


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_every_report_has_a_cause_and_a_remedy_within_80_columns(fault):
    origin = find(Net(Part(fault.function)), batch())
    assert origin.why
    assert origin.advice
    assert "has no finite result for these inputs" not in origin.why  # what is said when nothing better is known
    assert max(map(len, str(origin).splitlines())) <= 80
    assert json.loads(json.dumps(origin.to_dict(), allow_nan=False))["operator"] == origin.operator


@pytest.mark.parametrize("function", HEALTHY)
def test_a_healthy_step_is_not_blamed(function):
    origin = find(Net(Part(function)), batch())
    assert (origin.found, origin.kind, origin.phase, origin.trouble) == (False, "none", None, None)
    assert origin.message.startswith("Not reproduced: in this replay the loss (")
    assert "and all gradients are finite" in origin.message


# What was bad before -------------------------------------------------------------------------------------------------
def test_a_weight_that_is_nan_is_named_with_its_count():
    net = Net(Part(identity))
    net.head.weight.data[0, 1] = NAN
    origin = find(net, batch())
    assert (origin.kind, origin.parameter, origin.phase) == ("parameter", "head.weight", "forward")
    assert (origin.module, origin.operator, origin.code) == ("head", "linear", "return self.head(hidden)")
    assert (origin.inputs[0].nan, origin.inputs[0].count, origin.inputs[0].first_bad) == (1, 3, (0, 1))
    assert "Parameter `head.weight` held NaN before this step (1 of 3 elements)" in str(origin)


def test_an_infinite_weight_is_blamed_and_not_the_nan_made_of_it():
    net = Net(Part(identity))
    net.encoder[0].weight.data[0, 0] = -INF
    origin = find(net, batch() * torch.tensor([0.0, 1.0, 1.0]))
    assert (origin.kind, origin.parameter) == ("parameter", "encoder.0.weight")


def test_a_bad_embedding_row_counts_only_when_it_is_used():
    table = nn.Embedding(4, 2, sparse=True)
    table.weight.data[1] = NAN
    used = find_nonfinite(lambda: table(torch.tensor([0, 1])).sum(), table)
    assert (used.kind, used.parameter, used.inputs[0].nan) == ("parameter", "weight", 2)
    unused = find_nonfinite(lambda: table(torch.tensor([0, 2])).sum(), table)
    assert not unused.found
    assert "Non-finite parameters that did not reach the loss: `weight`" in unused.message


def test_a_nan_buffer_is_named():
    origin = find(Net(Statistics()), batch())
    assert (origin.kind, origin.buffer, origin.module) == ("buffer", "encoder.1.offset", "encoder.1")
    assert (origin.operator, origin.code) == ("sub", "return x - self.offset")


def test_running_statistics_count_only_where_they_are_read():
    net = Net(nn.BatchNorm1d(3))
    net.encoder[1].running_mean[1] = NAN
    assert not find(net, batch()).found  # training uses the batch's own
    origin = find(net.eval(), batch())
    assert (origin.kind, origin.buffer, origin.module) == ("buffer", "encoder.1.running_mean", "encoder.1")
    net.train().encoder[1].weight.data.fill_(3e38)
    net.encoder[1].bias.data.fill_(3e38)
    origin = find(net, batch())  # 1 * 3e38 + 3e38
    assert (origin.kind, origin.operator) == ("operation", "batch_norm")


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_bad_data_is_named_by_argument_and_position(value):
    data = batch()
    data[1, 2] = value
    origin = find(Net(Part(identity)), data)
    assert (origin.kind, origin.argument, origin.phase) == ("input", "x", "forward")
    assert origin.inputs[0].first_bad == (1, 2)
    assert "Argument `x` (position 0) of the model" in origin.message


def test_bad_data_is_named_by_keyword():
    scale = torch.tensor([1.0, NAN, 1.0])
    origin = find(Net(Part(identity)), batch(), scale=scale)
    assert (origin.kind, origin.argument, origin.module) == ("input", "scale", "")
    assert origin.code == "hidden = hidden if scale is None else hidden * scale"


def test_bad_data_is_found_inside_containers_and_views():
    class Dictionary(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, inputs):
            return self.layer(inputs["images"][0][1:])

    data = batch()
    data[1, 0] = NAN
    origin = find(Dictionary(), {"labels": None, "images": [data]})
    assert (origin.kind, origin.argument) == ("input", "inputs['images'][0]")


def test_data_that_is_bad_when_it_is_copied_is_still_named_as_an_argument():
    data = batch().double()
    data[0, 0] = NAN
    net = Net(Part(identity))
    origin = find_nonfinite(lambda: net(data.float()).mean(), net)
    assert (origin.kind, origin.argument) == ("input", "x")


def test_a_bad_target_is_outside_of_the_model():
    net, target = Net(Part(identity)), torch.tensor([[1.0], [NAN]])
    origin = find_nonfinite(lambda: F.mse_loss(net(batch()), target), net)
    assert (origin.kind, origin.argument, origin.module) == ("input", None, None)
    assert (origin.operator, origin.inputs[0].name) == ("mse_loss", "target")


def test_numpy_data_is_input_and_a_number_in_the_code_is_a_constant():
    net, data = Net(Part(identity)), batch().numpy()
    data[0, 0] = NAN
    assert find_nonfinite(lambda: net(torch.from_numpy(data)).mean(), net).kind == "input"
    assert find_nonfinite(lambda: net(batch() + torch.tensor(NAN)).mean(), net).kind == "constant"


# Masks ---------------------------------------------------------------------------------------------------------------
def attention(x, mask):
    return (x @ x.T + mask).softmax(-1) @ x


@pytest.mark.parametrize("as_buffer", [True, False])
def test_a_mask_of_minus_inf_is_no_fault_unless_a_row_has_nothing_left(as_buffer):
    class Masked(nn.Module):
        def __init__(self, mask):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer("mask", mask)

        def forward(self, x, mask=None):
            scores = self.layer(x) @ x.T + (self.mask if mask is None else mask)
            return scores.softmax(-1)

    for row, operator in (([0.0, -INF], None), ([-INF, -INF], "softmax")):
        mask = torch.tensor([row, [0.0, 0.0]])
        net = Masked(mask if as_buffer else None)
        origin = find(net, batch()) if as_buffer else find(net, batch(), mask=mask)
        assert origin.operator == operator
        if operator:
            assert (origin.kind, origin.code) == ("operation", "return scores.softmax(-1)")
            assert "A whole row is masked" in origin.why


def test_padding_everything_is_found_in_multihead_attention():
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    x, padding = torch.randn(2, 3, 4), torch.tensor([[False] * 3, [True] * 3])
    step = lambda: layer(x, x, x, key_padding_mask=padding)[0].sum()  # noqa: E731
    origin = find_nonfinite(step, layer)
    assert (origin.kind, origin.operator, origin.module) == ("operation", "softmax", "")
    assert "`masked_fill_`" in origin.message
    padding[1, 0] = False
    assert not find_nonfinite(step, layer).found


def test_a_masked_class_as_target_blames_the_mask():
    net = Net(Part(identity))

    def step():
        logits = net.encoder(batch())
        logits = logits.masked_fill(torch.tensor([True, False, False]), -INF)
        return F.cross_entropy(logits, torch.tensor([0, 1]))

    origin = find_nonfinite(step, net)
    assert (origin.kind, origin.operator) == ("constant", "masked_fill")
    assert origin.code == "logits = logits.masked_fill(torch.tensor([True, False, False]), -INF)"


def test_a_computed_infinity_is_blamed_before_a_mask():
    def overflow_under_mask(x):
        scores = torch.exp(100 * x).masked_fill(x < 2, -INF)
        return scores - scores

    origin = find(Net(Part(overflow_under_mask)), batch())
    assert (origin.operator, origin.kind) == ("exp", "operation")


def test_of_two_origins_the_one_that_is_used_is_blamed():
    def one_is_hidden(x):
        hidden = torch.log(-x)
        used = torch.sqrt(-x)
        return torch.where(x < 0, hidden, used)

    assert find(Net(Part(one_is_hidden)), batch()).operator == "sqrt"


def test_what_was_written_over_is_not_blamed():
    def reused(x):
        y = torch.log(-x)
        y = y.detach().zero_()
        y[0] = torch.sqrt(-x[0])
        return y

    assert find(Net(Part(reused)), batch()).operator == "sqrt"


# Explanations --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "function",
    [planted.root_behind_where, planted.log_behind_where, planted.division_behind_where, planted.exp_behind_where],
)
def test_a_where_that_hides_a_value_is_named_with_the_remedy(function):
    origin = find(Net(Part(function)), batch())
    first_line = function.__code__.co_firstlineno
    assert origin.hidden_by == f"`where` at planted_faults.py:{first_line + 2}"
    assert "kept out of the loss by `where`" in origin.why
    assert "safe = torch.where(ok, x, 1.0)" in origin.advice
    assert "the loss is finite, a gradient is not" in origin.message


def test_what_saturates_is_named_as_hiding_too():
    origin = find(Net(Part(planted.saturated)), batch())
    assert origin.hidden_by == f"`tanh` at planted_faults.py:{planted.saturated.__code__.co_firstlineno + 2}"


def test_values_at_the_fault_explain_it():
    origin = find(Net(Part(planted.zero_over_zero)), batch())
    above, below = origin.inputs
    assert (above.at_fault, below.at_fault, below.zeros, below.minimum, below.maximum) == (0.0, 0.0, 1, 0.0, 5.0)
    assert origin.why == "0 / 0 is NaN."
    assert find(Net(Part(planted.over_the_number_zero)), batch()).inputs[1].at_fault == 0.0


@pytest.mark.parametrize(
    ("function", "part"),
    [
        (planted.log_of_zero, "`log` of 0 is -Inf"),
        (planted.exp_overflow, "`exp` of 120 is beyond the largest float32"),
        (planted.half_cast, "65504"),
        (planted.half_gradient, "The gradient is larger than 65504"),
        (planted.mean_of_nothing, "The mean of no elements"),
        (planted.std_of_one, "of a single element"),
        (planted.equal_eigenvalues, "differences of eigenvalues"),
        (planted.root_at_zero, "infinite at 0"),
        (planted.acos_at_one, "infinite at -1 and 1"),
        (planted.custom_forward, "A division by 0 is Inf"),
        (planted.custom_backward, "A division by 0 is Inf"),
    ],
)
def test_the_cause_is_the_right_one(function, part):
    assert part in find(Net(Part(function)), batch()).why


def test_targets_that_are_all_ignored():
    net = Net(Part(identity))
    origin = find_nonfinite(lambda: F.cross_entropy(net.encoder(batch()), torch.tensor([-100, -100])), net)
    assert (origin.operator, origin.module, origin.kind) == ("nll_loss", None, "operation")
    assert "ignore_index" in origin.why


def test_the_parameter_whose_gradient_was_bad_first_is_named():
    origin = find(Net(Part(planted.root_at_zero)), batch())
    assert origin.parameter in ("encoder.0.weight", "encoder.0.bias")
    assert "head" not in origin.parameter  # its gradient is computed before, and finite


def test_the_whole_report():
    origin = find(Net(Part(planted.log_of_zero)), batch())
    line = planted.log_of_zero.__code__.co_firstlineno + 1
    assert (
        str(origin)
        == f"""\
`log` in `encoder.1` turned finite numbers into -Inf in the forward pass.
  where    encoder.1 (Part), planted_faults.py:{line} in log_of_zero
           | return torch.log(x - 1)
  operator aten.log.default
  given    input: float32 (2, 3), 0 to 5, 1 zero, 0 at the fault
  made     float32 (2, 3), 1 of 6 -Inf, first at [0, 0], the rest 0 to 1.609, 1
           zero
  why      `log` of 0 is -Inf.
  do       Keep the argument positive: `x.clamp(min=eps).log()`. If it is a
           probability that underflows to 0, compute the logarithm directly:
           `log_softmax`, `logsigmoid`, `logsumexp`."""
    )


# Ways to train -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "returned",
    [
        lambda loss: loss,
        lambda loss: (loss, "logits"),
        lambda loss: {"loss": loss, "accuracy": 0.5},
        lambda loss: [loss],
        lambda loss: type("Output", (), {"loss": loss})(),
    ],
)
def test_the_loss_is_found_in_what_training_steps_return(returned):
    net = Net(Part(planted.root_at_zero))
    assert find_nonfinite(lambda: returned(net(batch()).mean()), net).operator == "sqrt backward"


def test_a_loss_per_sample_is_followed_as_well():
    net = Net(Part(planted.root_at_zero))
    assert find_nonfinite(lambda: net(batch()), net).operator == "sqrt backward"


def test_transformers_outputs():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    net = Net(Part(planted.log_of_zero))
    step = lambda: outputs.SequenceClassifierOutput(loss=net(batch()).mean())  # noqa: E731
    assert find_nonfinite(step, net).operator == "log"


def test_a_step_with_optimizer_ends_before_weights_change():
    net = Net(Part(planted.root_at_zero))
    optimizer = torch.optim.Adam(net.parameters())
    after = []

    def step():
        optimizer.zero_grad()
        loss = net(batch()).mean()
        loss.backward()
        optimizer.step()
        after.append("never")

    assert find_nonfinite(step, net).operator == "sqrt backward"
    assert after == []
    assert not optimizer.state


def test_a_sound_replay_says_where_it_ended():
    net = Net(Part(identity))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        net(batch()).mean().backward()
        optimizer.step()

    origin = find_nonfinite(step, net)
    assert not origin.found
    assert "ended at the first `optimizer.step()`" in origin.message


def test_other_threads_may_train_meanwhile():
    net, other = Net(Part(identity)), nn.Linear(1, 1)
    before = other.weight.item()
    other.weight.grad = torch.ones(1, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=1.0)

    def step():
        thread = threading.Thread(target=optimizer.step)
        thread.start()
        thread.join()
        return net(batch()).mean()

    assert not find_nonfinite(step, net).found
    assert other.weight.item() == before - 1


def test_loss_scaling_overflows_half_gradients():
    net = Net(Part(lambda x: (x.half() * 4).float()))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    origin = find_nonfinite(lambda: scaler.scale(net(batch()).mean()), net)
    assert (origin.phase, origin.operator) == ("backward", "to backward")  # 2 ** 23 is cast to float16
    assert "loss scale" in origin.advice


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_followed(dtype):
    net = Net(Part(identity))

    def step():
        with torch.autocast("cpu", dtype=dtype):
            return net(batch() * 30000).float().mean()

    origin = find_nonfinite(step, net)
    # 6 * 30000 is no float16, and 180000 is a bfloat16.
    assert origin.operator == (None if dtype is torch.bfloat16 else "to")


def test_weights_that_autocast_has_cast_before_are_cast_again_in_sight():
    net = Net(Part(identity))
    net.head.weight.data.fill_(1e5)
    with torch.autocast("cpu", dtype=torch.float16):
        net(batch())
        origin = find(net, batch())
    assert (origin.kind, origin.operator, origin.module) == ("operation", "to", "head")


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks there
def test_a_compiled_part_is_replayed_uncompiled():
    net = Net(torch.compile(Part(planted.log_of_zero), backend="eager"))
    net(batch())
    stances = []

    def step():
        stances.append(torch._dynamo.eval_frame._stance.stance)
        return net(batch()).mean()

    origin = find_nonfinite(step, net)
    assert (origin.operator, origin.module, origin.code) == ("log", "encoder.1", "return torch.log(x - 1)")
    assert stances == ["force_eager"]
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_a_compiled_model_leaves_no_trace_in_names():
    net = torch.compile(Net(Part(identity)), backend="eager")
    net.head.weight.data[0] = NAN
    origin = find(net, batch())
    assert (origin.parameter, origin.module) == ("head.weight", "head")


def test_recurrent_layers():
    layer = nn.LSTM(3, 2)
    layer.weight_hh_l0.data[0, 0] = NAN
    origin = find_nonfinite(lambda: layer(batch()[:, None])[0].sum(), layer)
    assert (origin.kind, origin.parameter) == ("parameter", "weight_hh_l0")


def test_gradient_penalty_with_a_second_backward():
    net = Net(Part(planted.root_at_zero))

    def step():
        x = batch().requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return slope.square().sum()

    origin = find_nonfinite(step, net)
    assert (origin.phase, origin.operator, origin.module) == ("backward", "sqrt backward", "encoder.1")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.view_as_real(torch.complex(x, x).sqrt()).sum(-1),
        lambda x: torch.func.vmap(torch.sin)(x),
        lambda x: x[:, torch.tensor([2, 0, 1])],
        lambda x: x.sort(-1).values + x.argmax(),
        lambda x: torch.stack(torch.unbind(F.relu_(x * 1))),
        lambda x: x.to(torch.float64).float(),
        lambda x: torch.sparse.mm(torch.eye(2).to_sparse(), x),
    ],
)
def test_unusual_results_do_no_harm(function):
    origin = find(Net(Part(function)), batch())
    assert (origin.found, origin.trouble) == (False, None)


def test_the_criterion_outside_of_the_model_is_named_by_type():
    class LogLoss(nn.Module):
        def forward(self, x):
            return torch.log(x * 0).mean()

    net, criterion = Net(Part(identity)), LogLoss()
    origin = find_nonfinite(lambda: criterion(net(batch())), net)
    assert (origin.module, origin.module_type) == (None, "LogLoss")
    assert "LogLoss, outside the model" in str(origin)


# Exceptions ----------------------------------------------------------------------------------------------------------
def test_an_exception_after_a_fault_is_told_with_the_fault():
    net = Net(Part(planted.log_of_zero))

    def step():
        net(batch())
        raise ValueError("loss is not finite")

    origin = find_nonfinite(step, net)
    assert (origin.operator, origin.exception) == ("log", "ValueError: loss is not finite")
    assert "raised   ValueError" in str(origin)


def test_minus_inf_in_the_data_is_no_mask_once_a_layer_makes_nan_of_it():
    net, data = Net(Part(identity)), batch()
    data[0, 0] = -INF

    def step():
        net(data)
        raise ValueError("not finite")

    assert find_nonfinite(step, net).argument == "x"


def test_an_operator_that_refuses_nan_leads_to_its_origin():
    net = Net(Part(planted.root_of_negative))
    origin = find_nonfinite(lambda: torch.multinomial(net(batch()).flatten(), 1), net)
    assert origin.operator == "sqrt"
    assert "probability tensor" in origin.exception

    def with_another_fault():
        probabilities = net(batch()).flatten()
        torch.log(-batch())  # newer, and not what was refused
        return torch.multinomial(probabilities, 1)

    assert find_nonfinite(with_another_fault, net).operator == "sqrt"


def test_an_exception_without_a_fault_comes_out():
    net = Net(Part(identity))
    with pytest.raises(ZeroDivisionError):
        find_nonfinite(lambda: net(batch()) / (1 // 0), net)
    with pytest.raises(RuntimeError, match="shape"):
        find(net, torch.ones(2, 5))


@pytest.mark.parametrize(
    ("step", "model", "words"),
    [
        (None, nn.Linear(1, 1), "`step_fn` must be a function"),
        (lambda: None, "model", "`model` must be a torch.nn.Module; got str"),
        (lambda: None, nn.Linear(1, 1), "must return the loss as a tensor"),
        (lambda: 3.0, nn.Linear(1, 1), "got 3.0"),
    ],
)
def test_wrong_arguments_are_refused(step, model, words):
    with pytest.raises(InputError, match=words):
        find_nonfinite(step, model)


def test_a_wrong_random_state_is_refused():
    with pytest.raises(InputError, match=r"RandomState\.capture"):
        find_nonfinite(lambda: None, nn.Linear(1, 1), rng_state=torch.get_rng_state())


# Do no harm ----------------------------------------------------------------------------------------------------------
class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Linear(3, 1).requires_grad_(False)
        self.calls = 0
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, fault):
        self.calls += 1
        self.seen = self.seen + 1
        self.last = x
        self.eval()
        self.train()
        x = fault(self.drop(self.norm(self.first(x))))
        random.random()
        np.random.rand()  # noqa: NPY002
        return self.frozen(x).mean()


def everything(model):
    return {
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "bits": [tensor.detach().numpy().tobytes() for tensor in model.state_dict().values()],
        "tensors": [id(tensor) for tensor in (*model.parameters(), *model.buffers())],
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [None if p.grad is None else (id(p.grad), p.grad.numpy().tobytes()) for p in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "hooks": [
            len(d) for m in model.modules() for n, d in vars(m).items() if "hooks" in n and hasattr(d, "__len__")
        ],
        "random": (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()),  # noqa: NPY002
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "grad mode": torch.is_grad_enabled(),
        "optimizer hooks": len(optimizer_module._global_optimizer_pre_hooks),
        "modes on the stack": torch._C._len_torch_dispatch_stack(),
    }


def assert_unchanged(before, after):
    for key in before.keys() - {"state"}:
        assert before[key] == after[key], key


def raises(x):
    raise RuntimeError("in the middle")


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("fault", [identity, torch.log, lambda x: torch.sqrt(x * 0), raises])
def test_everything_is_left_as_it_was_found(fault, grad):
    model = Stateful()
    model.drop.eval()
    model(batch(), identity).backward()
    model.norm.bias.grad = None
    before = everything(model)
    with torch.set_grad_enabled(grad):
        before["grad mode"] = grad
        try:
            find_nonfinite(lambda: model(batch(), fault), model)
        except RuntimeError:
            assert fault is raises
        after = everything(model)
    assert_unchanged(before, after)
    assert model.calls == 1


def test_the_check_for_changes_can_fail():
    model = Stateful()
    before = everything(model)
    model(batch(), identity).backward()
    after = everything(model)
    changed = {key for key in before.keys() - {"state"} if before[key] != after[key]}
    assert changed >= {"bits", "tensors", "gradients", "attributes", "random"}


def test_weights_that_the_step_changes_come_back():
    net = Net(Part(identity))
    before = copy.deepcopy(net.state_dict())

    def step():
        with torch.no_grad():
            net.head.weight.mul_(3)
            net.head.bias.data = torch.ones(1)
        net.encoder[0].weight.requires_grad_(False)
        return net(batch()).mean()

    find_nonfinite(step, net)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert net.encoder[0].weight.requires_grad


def test_gradients_of_leaves_outside_of_the_model_come_back():
    net, other = Net(Part(identity)), torch.ones(2, 1, requires_grad=True)
    fresh = torch.ones(2, 1, requires_grad=True)
    (other * 2).sum().backward()
    gradient = other.grad
    find_nonfinite(lambda: (net(batch()) * other * fresh).mean(), net)
    assert other.grad is gradient
    assert gradient.tolist() == [[2.0], [2.0]]
    assert fresh.grad is None


def test_bad_gradients_from_before_are_not_taken_for_those_of_the_step():
    net = Net(Part(identity))
    net.head.weight.grad = torch.full((1, 3), NAN)
    assert not find(net, batch()).found
    assert net.head.weight.grad.isnan().all()


def test_a_graph_that_the_caller_holds_stays_usable():
    net = Net(nn.BatchNorm1d(3))
    loss = net(batch()).square().mean()
    find(net, batch())
    loss.backward()
    assert net.head.weight.grad is not None


def test_anomaly_mode_of_the_caller_stays_on():
    net = Net(Part(planted.root_behind_where))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(check_nan=True):
            origin = find(net, batch())
            assert torch.is_anomaly_enabled()
            assert torch.is_anomaly_check_nan_enabled()
    assert origin.exception is None
    assert origin.operator == "sqrt backward"


def test_it_works_inside_no_grad_and_inference_mode():
    net = Net(Part(planted.root_at_zero))
    for context in (torch.no_grad(), torch.inference_mode()):
        data = batch()
        with context:
            assert find_nonfinite(lambda data=data: net(data).mean(), net).operator == "sqrt backward"


def test_no_tensor_of_the_step_lives_longer():
    import gc
    import weakref

    net, kept = Net(Part(identity)), []

    def step():
        hidden = torch.exp(1000 * net(batch()))
        kept.append(weakref.ref(hidden))
        return hidden.mean()

    assert find_nonfinite(step, net).operator == "exp"
    gc.collect()
    assert kept[0]() is None


# Random state --------------------------------------------------------------------------------------------------------
def test_a_random_fault_is_reproduced_with_the_state_of_its_step():
    net = Net(Part(lambda x: torch.log(F.dropout(x, 0.1) * random.choice([1.0, np.random.rand()]))))  # noqa: NPY002
    torch.manual_seed(0)
    for _ in range(200):
        state = RandomState.capture()
        if not torch.isfinite(net(batch()).mean()):
            break
    else:
        pytest.fail("dropout never dropped")
    torch.manual_seed(1)
    origin = find_nonfinite(lambda: net(batch()).mean(), net, rng_state=state)
    assert origin.operator == "log"
    again = find_nonfinite(lambda: net(batch()).mean(), net, rng_state=state)
    assert again.outputs == origin.outputs


def test_the_random_state_covers_all_three_generators():
    state = RandomState.capture()
    first = (random.random(), np.random.rand(), torch.rand(1).item())  # noqa: NPY002
    state.restore()
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == first  # noqa: NPY002


def test_not_reproduced_says_what_is_missing():
    origin = find(Net(Part(identity)), batch())
    assert "rng_state" in str(origin)
    state = RandomState.capture()
    net = Net(Part(identity))
    assert "rng_state" not in str(find_nonfinite(lambda: net(batch()).mean(), net, rng_state=state))


def test_two_threads_do_not_see_each_other():
    found = {}

    def run(name, function):
        found[name] = find(Net(Part(function)), batch()).operator

    threads = [
        threading.Thread(target=run, args=("bad", planted.log_of_zero)),
        threading.Thread(target=run, args=("good", identity)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"bad": "log", "good": None}
