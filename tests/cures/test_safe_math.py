"""Lines that make NaN: found by file and line, in the model and in the loss, and made safe; others are left alone."""

import math

import pytest
import torch
from sick_models import batches, mlp
from test_treatments import heals, patient_of, proposed
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import gradient_flow as gf
from gradient_flow.cures.registry import do
from gradient_flow.diagnosis.treatment import Treatment


class Made(nn.Module):
    """A linear layer, then a function of the user's."""

    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Linear(8, 24), nn.Linear(24, 1), function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


def root(x):
    return (x * (x > 0)).square().sqrt()  # at 0 its slope is infinite, and that of the square is 0


def logarithm(x):
    return torch.log(torch.relu(x))


def unit(x):
    x = torch.relu(x - 1.5)
    return x / x.norm(dim=1, keepdim=True)  # a row of zeros


def to_minus_half(x):
    return torch.relu(x) ** -0.5


def exponential(x):
    return (200 * x).exp().log1p()


def masked(x):
    return torch.softmax(torch.where(x > 1.0, x, -math.inf), dim=-1)


def edge(x):
    return torch.acos(torch.tanh(100 * x))


@pytest.mark.parametrize("function", [root, logarithm, unit, to_minus_half, exponential, masked, edge])
def test_the_line_is_found_and_healed(function):
    treatment = heals(Made(function), "safe_math", fresh=False)
    (line,) = treatment.settings["lines"]
    assert line["file"] == __file__
    assert line["text"].startswith("return")
    assert not line["outside"]
    assert line["text"] in treatment.code
    assert f"line {line['line']}" in treatment.name


def of_the_loss():
    input_fn, _ = batches()
    return input_fn, lambda output: -torch.log(torch.relu(output)).mean()


def test_a_line_of_the_loss_is_healed_and_the_training_goes_on():
    model = mlp()
    input_fn, loss_fn = of_the_loss()
    found = gf.cure(model, input_fn, loss_fn, torch.optim.Adam(model.parameters(), lr=3e-3), steps=16)
    assert found.best.treatment.kind == "safe_math"
    assert "clamp_min(1e-6).log()" in found.best.code
    assert not math.isfinite(loss_fn(model(input_fn())).item())  # nothing is left behind
    optimizer = found.best.apply(model, torch.optim.Adam(model.parameters(), lr=3e-3))
    for _ in range(4):
        optimizer.zero_grad()
        loss_fn(model(input_fn())).backward()
        optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert _get_current_function_mode_stack() == []


def test_two_lines_are_found_one_behind_the_other():
    def loss_fn(output):
        hidden = (output * (output > 0)).square().sqrt()
        return -torch.log(hidden).mean()

    (treatment,) = proposed(patient_of(mlp(), data=(batches()[0], loss_fn)), "safe_math")
    assert {line["operator"] for line in treatment.settings["lines"]} == {"sqrt", "log"}


def test_samples_that_are_sound_keep_their_values_and_gradients():
    model = Made(unit)
    x = torch.randn(64, 8)
    sound = unit(model.first(x)).isfinite().all(dim=1)
    assert 0 < sound.sum() < 64
    wanted = torch.autograd.grad(model(x[sound]).sum(), model.first.weight)
    line = unit.__code__.co_firstlineno + 2
    settings = {"lines": [{"file": __file__, "line": line, "text": "", "operator": "div", "outside": False}]}
    do(Treatment("safe_math", settings), model, torch.optim.SGD(model.parameters(), lr=1.0))
    output = model(x)
    assert output.isfinite().all()
    torch.testing.assert_close(torch.autograd.grad(output[sound].sum(), model.first.weight), wanted)


def test_the_guard_ends_with_the_run_of_the_model_also_after_an_exception():
    model = Made(root)
    (treatment,) = proposed(patient_of(model), "safe_math")
    assert "forward" not in vars(model)
    do(treatment, model, torch.optim.SGD(model.parameters(), lr=1.0))
    for wrong in (torch.randn(4, 8), torch.randn(4, 3), torch.randn(4, 8)):
        try:
            model(wrong).sum().backward()
        except RuntimeError:
            assert wrong.shape == (4, 3)
        assert _get_current_function_mode_stack() == []


def test_nothing_is_proposed_where_all_is_finite():
    assert proposed(patient_of(Made(torch.tanh)), "safe_math") == []


def test_nan_that_no_line_makes_is_left_to_others():
    model = mlp()
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    assert proposed(patient_of(model), "safe_math") == []
