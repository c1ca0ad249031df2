"""The assertion for tests of models."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import gradient_flow.testing
from gradient_flow.testing import assert_healthy_gradients


def healthy():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))


def sick():
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(16, 16), nn.Sigmoid())], nn.Linear(16, 1))


def batch():
    return torch.randn(64, 16)


def loss(output):
    return (output - 1).square().mean()


def test_a_healthy_model_passes_and_a_sick_one_tells_why():
    assert assert_healthy_gradients(healthy(), batch, loss) == []
    with pytest.raises(AssertionError, match=r"(?s)not healthy: 1 issue .*VANISHING in `0`.*Likely cause.*\n  1\. "):
        assert_healthy_gradients(sick(), batch, loss, steps=5)


def test_fail_on_is_the_least_severity():
    model = healthy()
    slow = torch.optim.SGD(model.parameters(), lr=1e-12)
    with pytest.raises(AssertionError, match="SLOW"):
        assert_healthy_gradients(model, batch, loss, optimizer=slow)
    spared = assert_healthy_gradients(model, batch, loss, optimizer=slow, fail_on="critical")
    assert [issue.issue_type for issue in spared] == ["slow"]


def test_nothing_is_changed_also_with_an_optimizer():
    model = healthy()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model(batch()).sum().backward()
    optimizer.step()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
    random = torch.get_rng_state()
    assert_healthy_gradients(model, batch, loss, optimizer=optimizer, steps=5)
    assert_healthy_gradients(model, batch, loss, steps=5)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, model.parameters(), strict=True))
    assert all(torch.equal(a, s["exp_avg"]) for a, s in zip(moments, optimizer.state.values(), strict=True))
    assert torch.equal(random, torch.get_rng_state())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(("argument", "value"), [("fail_on", "severe"), ("analyzer", "convolutional"), ("steps", 0)])
def test_a_wrong_argument_is_named(argument, value):
    with pytest.raises(ValueError, match=f"`{argument}`"):
        assert_healthy_gradients(healthy(), batch, loss, **{argument: value})


def test_the_special_analyzers_can_be_chosen():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    with torch.no_grad():
        layer.self_attn.in_proj_weight[:16] *= 200
    model = nn.Sequential(layer, nn.Linear(16, 1))
    with pytest.raises(AssertionError, match="ENTROPY_COLLAPSE"):
        assert_healthy_gradients(model, lambda: torch.randn(8, 6, 16), loss, analyzer="transformer")


def test_it_is_found_in_the_package_when_it_is_used_first():
    code = "import gradient_flow as gf, sys; assert 'torch' not in sys.modules; gf.testing.assert_healthy_gradients"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_traceback_ends_in_the_test():
    code = gradient_flow.testing.assert_healthy_gradients.__code__
    assert "__tracebackhide__" in code.co_varnames
