"""Routers are found by structure or by name; load and entropy are exact; a collapse is named, an even load is not."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.probes.routing.probe import RoutingProbe, find_routers
from gradient_flow.probes.routing.rules import routing_issues
from gradient_flow.probes.routing.stats import Router, RoutingStats


class Mixture(nn.Module):
    def __init__(self, experts: int = 4, top: int = 1, lean: float = 0.0) -> None:
        super().__init__()
        self.top_k, self.gate = top, nn.Linear(8, experts)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(experts))
        with torch.no_grad():
            self.gate.bias[:top] += lean

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(self.top_k, -1)
        share = (weights.unsqueeze(-1) * (chosen.unsqueeze(-1) == torch.arange(len(self.experts)))).sum(1)
        return x + sum(share[:, at : at + 1] * expert(x) for at, expert in enumerate(self.experts))


class Fused(nn.Module):
    """All experts in one tensor, as newer libraries have them."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 6)
        self.experts = nn.Module()
        self.experts.up = nn.Parameter(torch.zeros(6, 8, 16))


@pytest.mark.parametrize(
    ("model", "named", "wanted"),
    [
        (nn.Sequential(Mixture(), Mixture(6, 2)), (), [("0.gate", 4, 1), ("1.gate", 6, 2)]),
        (Fused(), (), [("router", 6, 1)]),
        (nn.Sequential(nn.Linear(8, 3)), ("0",), [("0", 3, 1)]),
        (nn.Sequential(nn.Linear(8, 2), nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])), (), []),  # no name says so
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False), (), []),
    ],
)
def test_routers_are_found_by_structure_and_by_name(model, named, wanted):
    assert [(router.name, router.experts, router.top) for router in find_routers(model, named)] == wanted


def test_load_and_entropy_are_those_of_the_scores():
    torch.manual_seed(0)
    model, x = Mixture(4, top=2), torch.randn(50, 8)
    probe = RoutingProbe()
    probe.bind(model)
    with probe:
        out = model(x)
        probe.after_step(x, out)
    assert not model.gate._forward_hooks
    (router,) = probe.result().routers
    scores = model.gate(x).double()
    counts = [sum(at in row for row in scores.topk(2).indices.tolist()) for at in range(4)]
    assert list(router.load) == pytest.approx([count / 100 for count in counts])
    entropy = torch.distributions.Categorical(logits=scores).entropy().mean() / math.log(4)
    assert router.entropy == pytest.approx(entropy.item(), rel=1e-6)
    assert (router.tokens, router.top) == (50, 2)


def router(load, shares, top=1):
    return Router(
        name="gate", experts=len(load), top=top, load=load, entropy=0.1, busiest_by_look=shares, tokens=100 * len(load)
    )


@pytest.mark.parametrize(
    ("found", "severity"),
    [
        (router((0.99, 0.01, 0, 0), (0.98,) * 4), gf.IssueSeverity.HIGH),
        (router((0.5, 0.5, 0, 0, 0, 0), (0.5,) * 4, top=2), gf.IssueSeverity.HIGH),
        (router((0.3, 0.35, 0.35, 0, 0, 0), (0.35,) * 4), gf.IssueSeverity.MEDIUM),
        (router((0.7, 0.2, 0.05, 0.05), (0.3, 0.4, 0.7, 1.0)), gf.IssueSeverity.MEDIUM),  # more and more, then all
        (router((0.35, 0.35, 0.2, 0.1), (0.15, 0.2, 0.35, 0.5), top=2), gf.IssueSeverity.MEDIUM),
        (router((0.7, 0.2, 0.05, 0.05), (0.4, 0.3, 0.4, 1.0)), None),  # one batch of a kind
        (router((0.7, 0.2, 0.05, 0.05), (0.3, 0.4, 0.6, 0.8)), None),
        (router((0.99, 0.01, 0, 0), (0.98,) * 3), None),  # too early
        (router((0.9, 0.1, 0, 0), (1.0, 0.95, 0.9, 0.8)), None),  # on its way
        (router((0.4, 0.3, 0.2, 0.1), (0.4,) * 8), None),
        (router((0.5, 0.5), (0.5,) * 8, top=2), None),  # every expert gets every token
    ],
)
def test_the_verdict_on_a_load(found, severity):
    issues = list(routing_issues(RoutingStats(routers=[found], steps=8)))
    assert [issue.severity for issue in issues] == ([] if severity is None else [severity])
    assert all(issue.code == "router_collapse" and "experts" in issue.message for issue in issues)


@pytest.mark.parametrize(("lean", "found"), [(0.0, []), (40.0, ["1.gate"])])
def test_a_watched_training_names_the_router_that_collapsed(lean, found):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Mixture(lean=lean), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with gf.watch(model, optimizer, looks=4, budget=1.0) as flow:
        for _ in range(24):
            x = torch.randn(128, 8)
            optimizer.zero_grad()
            (model(x) - x[:, :1]).square().mean().backward()
            optimizer.step()
    issues = [issue for issue in flow.diagnose() if issue.code == "router_collapse"]
    assert [issue.layer for issue in issues] == found


def test_routers_that_are_not_there_are_an_error_at_once():
    with pytest.raises(gf.InputError, match="`routers` must be paths of modules; the model has no module 'gate'"):
        gf.watch(nn.Linear(2, 2), routers=["gate"])
    with pytest.raises(gf.InputError, match="`routers` must be a list of paths"):
        gf.watch(nn.Linear(2, 2), routers="0")


def test_a_router_that_returns_no_scores_is_left_alone():
    model = nn.Sequential(nn.Identity())
    probe = RoutingProbe(["0"])
    probe.bind(model)
    with probe:
        model[0](SimpleNamespace())
        model[0](torch.ones(3))
        probe.after_step(None, None)
    assert probe.result() is None
