"""The documented analyzers: what they find, what they leave alone, what they refuse."""

import copy
import inspect
import random
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf
from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.diagnosis.registry import register_rule, unregister_rule
from gradient_flow.errors import ConfigError, GradientFlowWarning, InputError
from gradient_flow.faces.analyzers import GradientFlowAnalyzer

BATCH, INPUTS, WIDTH, CLASSES = 128, 20, 32, 10


def deep(layers, activation=nn.ReLU, gain=None, width=WIDTH):
    """A stack of linear layers; `gain` is the standard deviation of weights times sqrt(fan in), None torch's own."""
    stack = [nn.Linear(INPUTS, width), activation()]
    for _ in range(layers - 1):
        stack += [nn.Linear(width, width), activation()]
    model = nn.Sequential(*stack, nn.Linear(width, CLASSES))
    if gain is not None:
        for module in model[:-1]:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=gain / module.in_features**0.5)
                nn.init.zeros_(module.bias)
    return model


HE = 2**0.5


def classify(model, *, scale=1.0, batch=BATCH, inputs=1.0, steps=20, optimizer=None, **settings):
    """Analyze a classifier on random data and labels."""
    labels = torch.randint(CLASSES, (batch,))

    def loss(output):
        return scale * F.cross_entropy(output, labels)

    analyzer = GradientFlowAnalyzer(model, **settings)
    return analyzer.analyze(lambda: inputs * torch.randn(batch, INPUTS), loss, steps=steps, optimizer=optimizer)


def found(issues, least=IssueSeverity.MEDIUM):
    return [(issue.issue_type.name, issue.layer) for issue in issues if issue.severity >= least]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # layers this small only wait for each other
    yield
    torch.set_num_threads(threads)


# ---- the document ---------------------------------------------------------------------------------------------------


def test_documented_parameters_and_defaults():
    parameters = inspect.signature(GradientFlowAnalyzer).parameters
    defaults = {
        "enable_rnn_analyzer": False,
        "enable_circular_flow_analyser": False,
        "vanishing_threshold": 1e-6,
        "exploding_threshold": 10.0,
        "dead_threshold": 0.9,
        "unstable_cv_threshold": 3.0,
    }
    assert {name: parameters[name].default for name in defaults} == defaults
    analyze = inspect.signature(GradientFlowAnalyzer.analyze).parameters
    assert analyze["steps"].default == 20
    assert analyze["optimizer"].default is None


@pytest.mark.parametrize("spelling", ["enable_rnn_analyzer", "enable_jacobian"])
def test_both_spellings_of_the_jacobian_switch(spelling):
    assert GradientFlowAnalyzer(deep(1), **{spelling: True}).enable_jacobian


@pytest.mark.parametrize("spelling", ["enable_circular_flow_analyser", "enable_vector_analysis"])
def test_both_spellings_of_the_vector_switch(spelling):
    assert GradientFlowAnalyzer(deep(1), **{spelling: True}).enable_vector_analysis


def test_quick_start_of_the_document(capsys):
    model, targets = deep(2), torch.randint(CLASSES, (32,))
    analyzer = GradientFlowAnalyzer(model)
    issues = analyzer.analyze(
        input_fn=lambda: torch.randn(32, INPUTS), loss_fn=lambda output: F.cross_entropy(output, targets), steps=20
    )
    analyzer.print_summary(issues)
    assert issues == []
    assert "Healthy" in capsys.readouterr().out


def test_filters_of_the_document():
    issues = classify(nn.Sequential(*list(deep(12, nn.Sigmoid))))
    assert [i for i in issues if i.severity == IssueSeverity.CRITICAL] == issues
    assert [i for i in issues if i.issue_type == IssueType.VANISHING] == issues
    assert [i for i in issues if "encoder" in i.layer.lower()] == []


def test_a_step_calls_batch_model_and_loss_in_this_order():
    calls = []

    class Noted(nn.Linear):
        def forward(self, x):
            calls.append("model")
            return super().forward(x)

    def batch():
        calls.append("input_fn")
        return torch.randn(4, 3)

    def loss(output):
        calls.append("loss_fn")
        return output.mean()

    GradientFlowAnalyzer(Noted(3, 2)).analyze(batch, loss, steps=3)
    assert calls == ["input_fn", "model", "loss_fn"] * 3


# ---- planted faults and their controls ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        lambda: deep(12, gain=HE),
        lambda: deep(4),
        lambda: deep(5, nn.Tanh, gain=1.0),
        lambda: deep(2, nn.Sigmoid),
        lambda: deep(4, nn.GELU),
        lambda: deep(12, gain=HE, width=256),
        lambda: deep(8, gain=HE, width=16),
    ],
)
def test_healthy_stacks_give_an_empty_list(model):
    assert classify(model()) == []


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (lambda: deep(12, nn.Sigmoid), "VANISHING"),
        (lambda: deep(20), "VANISHING"),
        (lambda: deep(20, gain=0.7), "VANISHING"),  # gradients of the weights are level here
        (lambda: deep(20, nn.Tanh), "VANISHING"),
        (lambda: deep(12, gain=3.0), "EXPLODING"),
        (lambda: deep(12, gain=2.0), "EXPLODING"),  # seen in the values
        (lambda: deep(6, nn.Tanh, gain=5.0), "SATURATION"),
    ],
)
def test_faults_over_depth_are_one_main_issue(model, kind):
    assert [name for name, _ in found(classify(model()))] == [kind]


def test_one_tiny_layer_is_where_it_begins():
    model = deep(7, gain=HE)
    with torch.no_grad():
        model[6].weight *= 1e-4
    assert found(classify(model)) == [("VANISHING", "6")]


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_dead_layer_is_named(share):
    model = deep(5, gain=HE)
    with torch.no_grad():
        model[4].bias[: int(share * WIDTH)] = -50
    assert found(classify(model)) == [("DEAD", "4")]


def test_frozen_layers_are_not_dead():
    model = deep(3, gain=HE)
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    assert classify(model) == []


def test_zero_weights_everywhere_are_dead_and_a_zero_head_is_not():
    model = deep(3)
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
    assert {name for name, _ in found(classify(model))} == {"DEAD"}
    model = deep(3, gain=HE)
    nn.init.zeros_(model[-1].weight)
    assert classify(model) == []


def test_constant_weights_are_symmetric():
    model = deep(3)
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 0.1)
            nn.init.zeros_(module.bias)
    assert found(classify(model)) == [("SYMMETRY", "0")]


def test_saturation_begins_at_the_layer_with_huge_inputs():
    model = deep(3, nn.Tanh, gain=1.0)
    assert found(classify(model, inputs=1e4)) == [("SATURATION", "0")]
    assert classify(model) == []


def test_inputs_that_are_not_standardised():
    (issue,) = classify(deep(3, gain=HE), inputs=1e3)
    assert (issue.issue_type.name, issue.layer) == ("EXPLODING", "0")
    assert "Standardise" in issue.advice[0]


def test_converged_sigmoid_head_is_not_saturated():
    x = torch.randn(BATCH, INPUTS)
    target = (x[:, :1] > 0).float()
    model = nn.Sequential(nn.Linear(INPUTS, 1), nn.Sigmoid())
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].weight[0, 0] = 50.0
        model[0].bias.zero_()
    issues = GradientFlowAnalyzer(model).analyze(lambda: x, lambda p: F.binary_cross_entropy(p, target), steps=5)
    assert found(issues) == []
    bad = GradientFlowAnalyzer(model).analyze(lambda: x, lambda p: (p - 30 * target - 20).square().mean(), steps=5)
    assert found(bad) == [("SATURATION", "0")]


@pytest.mark.parametrize("width", [1, 2, 4])
def test_bottleneck_is_named(width):
    layers = [nn.Linear(INPUTS, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 64), nn.ReLU()]
    assert found(classify(nn.Sequential(*layers, nn.Linear(64, CLASSES))))[0] == ("BOTTLENECK", "2")


def test_taper_and_residual_width_two_are_no_bottlenecks():
    widths = [INPUTS, 64, 48, 32, 24, 16]
    layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    assert classify(nn.Sequential(*layers, nn.Linear(16, CLASSES))) == []

    class Narrow(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH)

        def forward(self, x):
            return x + self.up(F.relu(self.down(x)))

    assert found(classify(nn.Sequential(nn.Linear(INPUTS, WIDTH), Narrow(), Narrow(), nn.Linear(WIDTH, CLASSES)))) == []


class Between(nn.Module):
    """Something done to what passes."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "layer"),
    [(lambda x: torch.log(F.relu(x)), "3"), (lambda x: torch.sqrt(0 * x), "2")],
    ids=["forward", "backward only"],
)
def test_nonfinite_is_one_issue_at_its_origin(function, layer):
    model = nn.Sequential(
        nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), Between(function), nn.Linear(WIDTH, CLASSES)
    )
    issues = classify(model)
    assert [(issue.issue_type.name, issue.severity.name) for issue in issues] == [("NUMERICAL", "CRITICAL")]
    assert issues[0].layer in ("2", layer)


def test_nan_weight_is_one_issue_at_that_layer():
    model = deep(4, gain=HE)
    with torch.no_grad():
        model[4].weight[3, 2] = float("nan")
    assert found(classify(model)) == [("NUMERICAL", "4")]


def test_detached_trunk_is_disconnected_there_and_nothing_else():
    model = nn.Sequential(*list(deep(3, gain=HE))[:4], Between(torch.Tensor.detach), *list(deep(3, gain=HE))[4:])
    issues = classify(model)
    assert found(issues) == [("DISCONNECTED", "2")]
    assert {issue.layer for issue in issues[0].consequences} == {"0"}


def test_loss_without_gradient_is_disconnected():
    model = deep(1)
    issues = GradientFlowAnalyzer(model).analyze(
        lambda: torch.randn(4, INPUTS), lambda out: out.detach().mean(), steps=2
    )
    assert found(issues) == [("DISCONNECTED", "2")]


def test_layer_that_is_never_called():
    model = deep(2, gain=HE)
    model.forgotten = nn.Linear(3, 3)
    model.forward = lambda x: nn.Sequential(*list(model.children())[:-1])(x)
    assert found(classify(model), IssueSeverity.LOW) == [("DISCONNECTED", "forgotten")]
    assert found(classify(model)) == []  # it may be a head for later
    model.forgotten.requires_grad_(False)
    assert classify(model) == []


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda p: torch.optim.SGD(p, lr=100.0), ["EXPLODING"]),
        (lambda p: torch.optim.Adam(p, lr=10.0), ["EXPLODING"]),
        (lambda p: torch.optim.Adam(p, lr=1e-8), ["SLOW"]),
        (lambda p: torch.optim.Adam(p, lr=1e-3), []),
        (lambda p: torch.optim.SGD(p, lr=0.1), []),
    ],
)
def test_learning_rates(make, kind):
    model = deep(3, gain=HE)
    assert [name for name, _ in found(classify(model, optimizer=make(model.parameters())))] == kind


def test_advice_names_a_value():
    model = deep(3, gain=HE)
    (issue,) = classify(model, optimizer=torch.optim.Adam(model.parameters(), lr=10.0))
    assert issue.advice[0] == "Lower the learning rate a hundredfold, from 10 to 0.1, and warm it up."
    (issue,) = classify(deep(12, nn.Sigmoid))
    assert "Scale the initial weights of these" in issue.advice[0]


def test_one_odd_batch_is_unstable():
    model, labels, batches = deep(3, gain=HE), torch.randint(CLASSES, (BATCH,)), iter(range(100))
    issues = GradientFlowAnalyzer(model).analyze(
        lambda: torch.randn(BATCH, INPUTS) * (300 if next(batches) == 12 else 1),
        lambda out: F.cross_entropy(out, labels),
    )
    assert found(issues) == [("UNSTABLE", "model")]
    assert issues[0].step == 13


# ---- scale ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e4, 1e-6, 65536.0])
@pytest.mark.parametrize("model", [lambda: deep(6, gain=HE), lambda: deep(12, nn.Sigmoid), lambda: deep(12, gain=3.0)])
def test_a_factor_on_the_loss_changes_no_verdict(model, scale):
    torch.manual_seed(1)
    plain = found(classify(model()))
    torch.manual_seed(1)
    assert found(classify(model(), scale=scale)) == plain


@pytest.mark.parametrize("batch", [8, 512])
def test_batch_size_changes_no_verdict(batch):
    assert classify(deep(6, gain=HE), batch=batch) == []
    assert [name for name, _ in found(classify(deep(12, nn.Sigmoid), batch=batch))] == ["VANISHING"]


def test_explicit_thresholds_are_taken_at_their_word():
    healthy = deep(3, gain=HE)
    assert [(i.issue_type.name, i.severity) for i in classify(healthy, exploding_threshold=1e-4)] == [("EXPLODING", 3)]
    assert [(i.issue_type.name, i.severity) for i in classify(healthy, vanishing_threshold=1e4)] == [("VANISHING", 3)]
    assert classify(healthy, dead_threshold=0.95, unstable_cv_threshold=2.0) == []
    assert [i.issue_type.name for i in classify(healthy, unstable_cv_threshold=1e-4)] == ["UNSTABLE"]
    with torch.no_grad():
        healthy[0].bias[: WIDTH * 24 // 25] = -50.0
    assert "dead_threshold" in str(classify(healthy, dead_threshold=0.6)) or found(classify(healthy))


# ---- do no harm -----------------------------------------------------------------------------------------------------


def snapshot(model):
    return (
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
        [parameter.grad for parameter in model.parameters()],
        [module.training for module in model.modules()],
        torch.get_rng_state(),
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
    )


def assert_untouched(model, before):
    state, gradients, modes, *states = before
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(now.grad is then for now, then in zip(model.parameters(), gradients, strict=True))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]  # noqa: NPY002
    assert not any(module._forward_hooks for module in model.modules())


def batch_norm_net():
    model = nn.Sequential(nn.Linear(INPUTS, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    model(torch.randn(4, INPUTS)).sum().backward()
    model[2].eval()
    return model


def test_without_an_optimizer_everything_is_left_as_found():
    model = batch_norm_net()
    before = snapshot(model)
    classify_state = snapshot(model)[3]
    torch.set_rng_state(classify_state)
    labels = torch.zeros(16, dtype=torch.long)
    GradientFlowAnalyzer(model).analyze(
        lambda: torch.rand(16, INPUTS) + random.random() + np.random.rand(),  # noqa: NPY002
        lambda out: F.cross_entropy(out, labels),
        steps=3,
    )
    assert_untouched(model, before)


@pytest.mark.parametrize("place", ["input_fn", "model", "loss_fn", "backward"])
def test_after_an_exception_everything_is_left_as_found(place):
    def fail(*_):
        raise RuntimeError(place)

    model = batch_norm_net()
    before = snapshot(model)
    hook = model[0].register_forward_pre_hook(fail) if place == "model" else None

    def loss(output):
        if place == "loss_fn":
            fail()
        if place == "backward":
            output.register_hook(fail)
        return output.mean()

    with pytest.raises(RuntimeError, match=place):
        GradientFlowAnalyzer(model).analyze(
            fail if place == "input_fn" else lambda: torch.rand(4, INPUTS), loss, steps=2
        )
    if hook is not None:
        hook.remove()
    assert_untouched(model, before)


def test_with_an_optimizer_the_model_is_trained_and_a_copy_with_in_place_false():
    model = deep(2, gain=HE)
    before = snapshot(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    labels = torch.zeros(16, dtype=torch.long)
    arguments = (lambda: torch.rand(16, INPUTS), lambda out: F.cross_entropy(out, labels), 3, optimizer)
    GradientFlowAnalyzer(model).analyze(*arguments, in_place=False)
    assert_untouched(model, before)
    assert not optimizer.state
    GradientFlowAnalyzer(model).analyze(*arguments)
    assert not torch.equal(model[0].weight, before[0]["0.weight"])
    assert optimizer.state


def test_gradients_beside_the_model_are_left_as_found():
    model, head, batch = deep(2, gain=HE), nn.Linear(CLASSES, 1), torch.randn(16, INPUTS, requires_grad=True)
    head.weight.grad = kept = torch.ones_like(head.weight)
    GradientFlowAnalyzer(model).analyze(lambda: batch, lambda out: head(out).square().mean(), steps=2)
    assert head.weight.grad is kept
    assert torch.equal(kept, torch.ones_like(kept))
    assert head.bias.grad is None
    assert batch.grad is None


def test_gradients_beside_the_model_do_not_add_up_while_it_is_trained():
    model, head, batch = deep(2, gain=HE), nn.Linear(CLASSES, 1), torch.randn(16, INPUTS)
    twin, twin_head = copy.deepcopy((model, head))
    for _ in range(3):  # the plain loop
        optimizer = torch.optim.SGD([*twin.parameters(), *twin_head.parameters()], lr=0.01)
        optimizer.zero_grad()
        (twin_head(twin(batch)) - 1).square().mean().backward()
        optimizer.step()
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
    GradientFlowAnalyzer(model).analyze(
        lambda: batch, lambda out: (head(out) - 1).square().mean(), steps=3, optimizer=optimizer
    )
    assert torch.equal(head.weight, twin_head.weight)
    assert torch.equal(model[0].weight, twin[0].weight)


def test_inside_inference_mode_gradients_are_there_all_the_same():
    model, labels = deep(3, gain=HE), torch.zeros(16, dtype=torch.long)
    with torch.inference_mode():
        issues = GradientFlowAnalyzer(model).analyze(
            lambda: torch.randn(16, INPUTS), lambda out: F.cross_entropy(out, labels), steps=2
        )
        assert torch.is_inference_mode_enabled()
    assert "DISCONNECTED" not in [issue.issue_type.name for issue in issues]


# ---- what models may be and return ----------------------------------------------------------------------------------


class Flexible(nn.Module):
    """Takes several tensors and returns a mapping."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 8), nn.Linear(3, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x, y=None):
        hidden = F.relu_(self.a(x))
        return {"out": self.head(hidden + self.b(x if y is None else y)), "other": (hidden, [x])}


@pytest.mark.parametrize(
    "batch",
    [
        torch.randn(64, 3),
        (torch.randn(64, 3), torch.randn(64, 3)),
        {"x": torch.randn(64, 3), "y": torch.randn(64, 3)},
    ],
    ids=["tensor", "tuple", "dict"],
)
def test_batches_of_all_kinds(batch):
    issues = GradientFlowAnalyzer(Flexible()).analyze(lambda: batch, lambda out: out["out"].square().mean(), steps=3)
    assert found(issues) == []


def test_batch_encodings_of_transformers_are_mappings():
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = transformers.BatchEncoding({"x": torch.randn(64, 3)})
    assert found(GradientFlowAnalyzer(Flexible()).analyze(lambda: batch, lambda out: out["out"].sum(), steps=2)) == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner = nn.Linear(INPUTS, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x):
            x = self.first(x)
            return self.head(torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=reentrant))

    model = Checkpointed()
    assert classify(model, steps=4) == []
    assert not any(module._forward_hooks for module in model.modules())


def test_tied_and_reused_and_no_grad_parts():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.cell = nn.Embedding(50, 16), nn.GRUCell(16, 16)
            self.teacher = nn.Linear(16, 16)
            self.head = nn.Linear(16, 50, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            state = torch.zeros(tokens.shape[0], 16)
            for t in range(tokens.shape[1]):
                state = self.cell(self.embed(tokens[:, t]), state)
            with torch.no_grad():
                self.teacher(state)
            return self.head(state)

    targets = torch.randint(50, (32,))
    issues = GradientFlowAnalyzer(Odd()).analyze(
        lambda: torch.randint(50, (32, 6)), lambda out: F.cross_entropy(out, targets), steps=4
    )
    assert found(issues) == []


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"input_fn": torch.randn(2, INPUTS)}, "input_fn"),
        ({"loss_fn": None}, "loss_fn"),
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"optimizer": "adam"}, "optimizer"),
        ({"loss_fn": lambda out: out.mean().item()}, "loss_fn"),
        ({"loss_fn": lambda out: out}, "loss_fn"),
        ({"loss_fn": lambda out: None}, "loss_fn"),
    ],
)
def test_bad_arguments_are_named(arguments, name):
    good = {"input_fn": lambda: torch.randn(2, INPUTS), "loss_fn": lambda out: out.mean(), "steps": 1}
    with pytest.raises(InputError, match=f"`{name}`"):
        GradientFlowAnalyzer(deep(1)).analyze(**{**good, **arguments})


def test_bad_settings_are_named():
    with pytest.raises(InputError, match="`model`"):
        GradientFlowAnalyzer("model")
    with pytest.raises(ConfigError, match="`dead_threshold`"):
        GradientFlowAnalyzer(deep(1), dead_threshold=95)
    with pytest.raises(ConfigError, match="`vanishing_threshold`"):
        GradientFlowAnalyzer(deep(1), vanishing_threshold=float("nan"))


# ---- models in wrappers ---------------------------------------------------------------------------------------------


def compiled_whole():
    return torch.compile(deep(12, gain=0.1), backend="aot_eager")


def compiled_in_place():
    model = deep(12, gain=0.1)
    model.compile(backend="aot_eager")
    return model


def compiled_inside():
    model = deep(12, gain=0.1)
    model[4] = torch.compile(model[4], backend="aot_eager")  # a layer
    return nn.Sequential(torch.compile(model, backend="aot_eager"), nn.Identity())


@pytest.mark.parametrize("make", [compiled_whole, compiled_in_place, compiled_inside])
@pytest.mark.parametrize("vector", [False, True])
def test_compiled_models_give_the_verdict_of_plain_ones_and_stay_compiled(make, vector):
    torch.manual_seed(1)
    plain = GradientFlowAnalyzer(deep(12, gain=0.1))
    torch.manual_seed(1)
    model = make()
    parts = [(type(part), part._compiled_call_impl) for part in model.modules()]
    analyzer = GradientFlowAnalyzer(model, enable_vector_analysis=vector)
    batch, labels = torch.randn(16, INPUTS), torch.zeros(16, dtype=torch.long)
    expected, issues = (
        each.analyze(lambda: batch, lambda out: F.cross_entropy(out, labels), steps=2) for each in (plain, analyzer)
    )
    assert expected
    assert [(i.issue_type, i.severity) for i in issues] == [(i.issue_type, i.severity) for i in expected]
    inside = "0." if make is compiled_inside else ""
    assert [i.layer for i in issues] == [inside + i.layer for i in expected]
    assert not any("_orig_mod" in layer.name for layer in analyzer.record.layers)
    assert [(type(part), part._compiled_call_impl) for part in model.modules()] == parts
    assert (analyzer.field is not None) is vector


def test_a_model_in_ddp_is_named_as_without(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(deep(12, gain=0.1))
        issues = classify(model, steps=2)
    finally:
        torch.distributed.destroy_process_group()
    assert [(issue.issue_type, issue.layer) for issue in issues] == [
        (issue.issue_type, issue.layer) for issue in classify(deep(12, gain=0.1), steps=2)
    ]
    assert issues


# ---- rules of one's own ---------------------------------------------------------------------------------------------


def test_a_rule_of_ones_own_and_one_that_fails():
    from gradient_flow.diagnosis.issue import Issue

    @register_rule
    def many_layers(record):
        if len(record.layers) > 2:
            yield Issue(issue_type=IssueType.SLOW, severity=IssueSeverity.LOW, layer="model", message="many layers")

    @register_rule
    def fails(record):
        raise ValueError("oops")

    try:
        with pytest.warns(GradientFlowWarning, match="'fails' failed"):
            issues = classify(deep(3, gain=HE), steps=2)
        assert [issue.message for issue in issues] == ["many layers"]
    finally:
        unregister_rule("many_layers")
        unregister_rule("fails")
    assert classify(deep(3, gain=HE), steps=2) == []


def test_jacobian_analysis_of_a_linear_net_is_that_of_its_matrix():
    torch.manual_seed(0)
    first, second = nn.Linear(6, 9).double(), nn.Linear(9, 4).double()
    model = nn.Sequential(first, nn.BatchNorm1d(9).double().eval(), second)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    analyzer = gf.GradientFlowAnalyzer(model, enable_jacobian=True)
    analyzer.analyze(lambda: torch.randn(16, 6).double(), lambda output: output.square().mean(), steps=2)
    matrix = second.weight @ torch.diag(1 / (1 + 1e-5) ** 0.5 * torch.ones(9).double()) @ first.weight
    values = torch.linalg.svdvals(matrix)
    assert analyzer.jacobian.largest_singular_value == pytest.approx(values[0].item(), rel=1e-6)
    assert (analyzer.jacobian.inputs, analyzer.jacobian.outputs) == (6, 4)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_jacobian_analysis_says_why_there_is_none(capsys):
    model = nn.Sequential(nn.Embedding(10, 8), nn.Flatten(), nn.Linear(32, 3))
    analyzer = gf.GradientFlowAnalyzer(model, enable_jacobian=True)
    analyzer.analyze(lambda: torch.randint(10, (8, 4)), lambda output: output.square().mean(), steps=2)
    assert analyzer.jacobian is None
    assert "no real numbers" in analyzer.jacobian_reason


def test_a_weight_of_rank_one_is_found_and_a_branch_that_starves():
    torch.manual_seed(0)
    model = nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(32, 32), nn.Tanh())])
    with torch.no_grad():
        model[4].weight.copy_(torch.outer(torch.randn(32), torch.randn(32)) / 6)
    (issue, *_) = gf.GradientFlowAnalyzer(model).analyze(
        lambda: torch.randn(64, 32), lambda output: (output - 0.3).square().mean(), steps=5
    )
    assert (issue.issue_type, issue.layer) == (gf.IssueType.LOW_RANK, "4")


def test_a_rule_can_be_registered_by_a_decorator_with_arguments():
    from gradient_flow.diagnosis.registry import unregister_rule

    @gf.register_rule(of="analysis", name="always")
    def rule(record):
        yield gf.Issue(
            issue_type=gf.IssueType.SLOW, severity=gf.IssueSeverity.LOW, layer="model", message=f"{record.steps} steps"
        )

    try:
        issues = gf.GradientFlowAnalyzer(nn.Linear(4, 2)).analyze(
            lambda: torch.randn(64, 4), lambda output: (output - 1).square().mean(), steps=3
        )
        assert [issue.message for issue in issues] == ["3 steps"]
    finally:
        unregister_rule("always")


def test_an_optimizer_of_another_model_is_refused():
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with pytest.raises(gf.InputError, match="holds none of them"):
        gf.GradientFlowAnalyzer(model).analyze(
            lambda: torch.randn(8, 4), lambda output: output.square().mean(), steps=2, optimizer=optimizer
        )
