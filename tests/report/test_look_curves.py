"""Curves of what looks saw: each point is of its look, in data, terminal, reports and page alike."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.record.run import load_run
from gradient_flow.report import look_curves
from gradient_flow.report.data import page_data
from gradient_flow.report.live_run import LiveRun
from gradient_flow.report.look_curves import MOST_LINES, LookCurves, look_sentences
from gradient_flow.report.tail_data import view_of
from gradient_flow.report.tail_view import view_text
from gradient_flow.report.write import write_report

LOOKS = [3, 6, 12]


def curves_of(run):
    found = LookCurves().data(load_run(run))
    return found["steps"], {curve["key"]: curve for curve in found["curves"]}


def train(model, batch, folder, steps=16, lr=0.05, looks=LOOKS, loss=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with gf.watch(model, optimizer, run=folder, looks=looks, budget=1.0) as flow:
        for _ in range(steps):
            optimizer.zero_grad()
            output = model(batch)
            (output.square().mean() if loss is None else loss(output)).backward()
            optimizer.step()
    return flow


@pytest.fixture(scope="module")
def sigmoids(tmp_path_factory):
    torch.manual_seed(0)
    stack = [part for _ in range(6) for part in (nn.Linear(16, 16), nn.Sigmoid())]
    folder = tmp_path_factory.mktemp("looks") / "sigmoids"
    train(nn.Sequential(*stack, nn.Linear(16, 4)), torch.randn(64, 16), folder)
    return folder


def test_the_gain_is_that_of_the_gradients_at_each_look(tmp_path):
    """A stack of two scalars: the gradient at the first output is that at the second times the weight between."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False))
    weights = {}
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
        model[1].weight.copy_(0.25 * torch.eye(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gf.watch(model, optimizer, run=tmp_path, looks=[3, 5], budget=1.0):
        for step in range(1, 7):
            with torch.no_grad():
                model[1].weight.copy_((0.25 if step < 5 else 0.5) * torch.eye(4))
            weights[step] = model[1].weight[0, 0].item()
            optimizer.zero_grad()
            model(torch.randn(32, 4)).sum().backward()
            optimizer.step()
    _, curves = curves_of(tmp_path)
    [line] = curves["gain"]["lines"]
    assert line["step"] == [3, 5]
    assert line["values"] == pytest.approx([weights[3], weights[5]], rel=1e-5)


def test_each_look_is_a_point_and_slopes_are_those_of_a_sigmoid(sigmoids):
    steps, curves = curves_of(sigmoids)
    assert steps == LOOKS
    assert curves["gain"]["lines"][0]["step"] == LOOKS
    assert all(0 < value < 1e-2 for value in curves["gain"]["lines"][0]["values"])
    slope = curves["slope"]
    assert slope["of"] == 6
    assert slope["percent"]
    for line in slope["lines"]:
        assert line["step"] == LOOKS
        assert all(0.5 < value <= 1 for value in line["values"])


def test_dead_units_are_the_share_that_never_fires(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    with torch.no_grad():
        model[0].bias[:24] = -100.0  # 24 of 32 are below zero for every input
    train(model, torch.randn(128, 8), tmp_path, lr=1e-4)
    _, curves = curves_of(tmp_path)
    line = next(line for line in curves["dead"]["lines"] if line["label"] == "0")
    assert line["values"] == [0.75] * 3


def test_attention_entropy_is_one_for_equal_logits(tmp_path):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 2, batch_first=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = layer, nn.Linear(16, 1)

        def forward(self, x):
            return self.head(self.attention(x, x, x)[0])

    with torch.no_grad():
        layer.in_proj_weight[:32] = 0.0  # queries and keys: all logits are 0
    train(Net(), torch.randn(8, 6, 16), tmp_path, lr=1e-6)
    _, curves = curves_of(tmp_path)
    [line] = curves["entropy"]["lines"]
    assert line["values"] == pytest.approx([1.0] * 3, abs=1e-3)
    assert curves["entropy"]["span"] == [0.0, 1.0]


def test_the_spectral_radius_is_that_of_the_recurrent_weight(tmp_path):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.RNN(4, 8, nonlinearity="relu", batch_first=True), nn.Linear(8, 1)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    net = Net()
    with torch.no_grad():
        net.rnn.weight_hh_l0.copy_(0.5 * torch.eye(8))
        net.rnn.weight_ih_l0.abs_()
        net.rnn.bias_ih_l0.fill_(1.0)
    train(net, torch.rand(16, 12, 4), tmp_path, lr=1e-7)
    _, curves = curves_of(tmp_path)
    [line] = curves["radius"]["lines"]
    assert line["values"] == pytest.approx([0.5] * 3, abs=0.02)  # every unit fires: the slope is 1


def test_of_many_layers_those_that_stand_out_are_lines_in_the_band_of_all(tmp_path):
    torch.manual_seed(0)
    stack = [part for _ in range(10) for part in (nn.Linear(16, 16), nn.Tanh())]
    model = nn.Sequential(*stack, nn.Linear(16, 1))
    with torch.no_grad():
        model[8].weight.mul_(30)  # this one is saturated
    train(model, torch.randn(64, 16), tmp_path, lr=1e-6)
    _, curves = curves_of(tmp_path)
    slope = curves["slope"]
    assert slope["of"] == 10
    assert len(slope["lines"]) == MOST_LINES
    assert "8" in {line["label"] for line in slope["lines"]}
    assert slope["band"]["step"] == LOOKS
    for at in range(3):
        values = [line["values"][at] for line in slope["lines"]]
        assert slope["band"]["low"][at] == min(values)
        assert slope["band"]["high"][at] >= max(values)


def test_a_growing_run_reads_each_look_once_and_damage_is_left_out(sigmoids, tmp_path):
    lines = (sigmoids / "run.jsonl").read_bytes().splitlines(keepends=True)
    cut = next(at for at, line in enumerate(lines) if b'"kind":"seen","step":12' in line)
    (tmp_path / "run.jsonl").write_bytes(b"".join(lines[:cut]))
    live = LiveRun(tmp_path)
    live.update()
    assert live.looks.data(live.run)["curves"][0]["lines"][0]["step"] == [3, 6]
    read = []
    found = live.run.found
    live.run.found = lambda probe, steps=None: read.append((probe, steps)) or found(probe, steps)
    with (tmp_path / "run.jsonl").open("ab") as file:
        file.write(b"".join(lines[cut:]))
    live.update()
    assert live.looks.data(live.run)["curves"][0]["lines"][0]["step"] == LOOKS
    assert {steps for _, steps in read} == {(12,)}
    broken = json.loads(next(line for line in lines if b'"probe":"network"' in line))
    broken |= {"step": 14, "found": {**broken["found"], "places": "none", "activations": [3]}}
    with (tmp_path / "run.jsonl").open("ab") as file:
        file.write(json.dumps(broken, separators=(",", ":")).encode() + b"\n")
    live.update()
    assert live.looks.data(live.run)["curves"][0]["lines"][0]["step"] == LOOKS


def test_of_very_many_looks_some_are_drawn_and_among_them_the_first_and_the_last(tmp_path, monkeypatch):
    most = 10
    monkeypatch.setattr(look_curves, "MOST_LOOKS", most)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    train(model, torch.randn(16, 4), tmp_path, steps=2 * most + 8, looks=1)
    _, curves = curves_of(tmp_path)
    steps = curves["slope"]["lines"][0]["step"]
    assert len(steps) <= most + 1
    assert (steps[0], steps[-1]) == (3, 2 * most + 8)


def test_a_run_without_looks_has_no_curve(tmp_path):
    train(nn.Linear(4, 1), torch.randn(16, 4), tmp_path, looks=False)
    assert curves_of(tmp_path) == ([], {})
    assert look_sentences(page_data(tmp_path)["looks"]) == []


# --- where they are shown ---


def test_reports_in_words_have_a_line_for_each(sigmoids):
    data = page_data(sigmoids)
    for kind in ("txt", "md"):
        text = " ".join(write_report(sigmoids, format=kind).read_text().replace("\\", "").split())
        assert "3 looks inside the model, at steps 3, 6, 12." in text
        assert "Gain over depth, 0 → 10: " in text
        assert "Slope of activations, `0`: " in text
    gain = data["looks"]["curves"][0]["lines"][0]["values"]
    told = look_sentences(data["looks"])[0]
    numbers = [float(part) for part in told.replace(",", "").split() if part[0].isdigit() and "e" in part]
    assert numbers == pytest.approx([gain[0], gain[-1]], rel=1e-2)


@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_terminal_has_a_dot_for_each_look_and_holds_values_between(sigmoids, ascii_only):
    live = LiveRun(sigmoids)
    live.update()
    lines = view_text(view_of(live, "run"), 80, 40, ascii_only=ascii_only).plain.splitlines()
    assert all(len(line) <= 80 for line in lines)
    at = next(i for i, line in enumerate(lines) if line.startswith("looks "))
    dots = [column for column, letter in enumerate(lines[at][18:68]) if letter in "•o"]
    assert dots == [(step - 1) * 50 // 16 for step in LOOKS]
    gain = lines[at + 1]
    assert gain.startswith("gain over depth")
    assert gain[18 : 18 + dots[0]].strip() == ""  # before the first look nothing is known
    assert " " not in gain[18 + dots[0] : 68]


def test_a_low_terminal_keeps_its_layers(sigmoids):
    live = LiveRun(sigmoids)
    live.update()
    text = view_text(view_of(live, "run"), 60, 14).plain
    assert "gradient norm of each group" in text
    assert "inside the model" not in text


def test_plain_data_is_strict_json_without_numbers_that_are_none(sigmoids):
    looks = page_data(sigmoids)["looks"]
    assert json.loads(json.dumps(looks, allow_nan=False)) == looks
    values = np.array([v for curve in looks["curves"] for line in curve["lines"] for v in line["values"]])
    assert np.isfinite(values).all()
    assert math.isfinite(values.sum())
