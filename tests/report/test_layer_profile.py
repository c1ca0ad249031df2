import numpy as np
import pytest
import torch

import gradient_flow as gf
from gradient_flow.report.figures import plot_profile

HEALTHY = """\
Layer 6 (output):   |████████████| norm: 0.10
Layer 5:            |████████████| norm: 0.09
Layer 4:            |████████████| norm: 0.11
Layer 3:            |████████████| norm: 0.10
Layer 2:            |████████████| norm: 0.10
Layer 1:            |████████████| norm: 0.09
Layer 0 (input):    |████████████| norm: 0.10
                    Stable gradient flow!"""

VANISHING = """\
Layer 6 (output):   |████████████| norm: 0.10
Layer 5:            |████████    | norm: 0.05
Layer 4:            |████        | norm: 0.01
Layer 3:            |██          | norm: 0.001
Layer 2:            |            | norm: 0.0001
Layer 1:            |            | norm: 0.00001
Layer 0 (input):    |            | norm: 0.000001
                    Vanishing gradients!"""


def layers(norms):
    return {f"Layer {i}": np.array([norm]) for i, norm in enumerate(norms)}


def test_the_healthy_picture_of_the_document_is_drawn():
    assert str(gf.visualize_layer_gradients(layers([0.10, 0.09, 0.10, 0.10, 0.11, 0.09, 0.10]))) == HEALTHY


def test_the_vanishing_picture_of_the_document_is_drawn():
    assert str(gf.visualize_layer_gradients(layers([1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.10]))) == VANISHING


def test_layers_go_from_output_to_input_beyond_ten():
    profile = gf.visualize_layer_gradients([torch.ones(1)] * 12)
    assert [layer.name for layer in profile] == [f"Layer {i}" for i in reversed(range(12))]
    assert profile[0].label == "Layer 11 (output)"
    assert profile[-1].label == "Layer 0 (input)"


@pytest.mark.parametrize(
    ("norms", "status", "first"),
    [
        ([1, 1, 1], "stable", "healthy"),
        ([1e-4, 1e-2, 1], "vanishing", "vanishing"),
        ([0, 0, 1], "vanishing", "zero"),
        ([1, 0, 1], "stable", "healthy"),
        ([1e4, 1e2, 1], "exploding", "exploding"),
        ([np.nan, 1, 1], "nan", "nan"),
        ([0, 0, 0], "vanishing", "zero"),
        ([1], "stable", "healthy"),
    ],
)
def test_status_of_the_whole_and_of_the_input_layer(norms, status, first):
    profile = gf.visualize_layer_gradients(layers(norms))
    assert profile.status == status
    assert profile[-1].status == first


@pytest.mark.parametrize("scale", [1e-8, 1e4])
def test_the_scale_of_the_loss_changes_no_status(scale):
    for norms in ([0.1] * 7, [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.1]):
        plain = gf.visualize_layer_gradients(layers(norms))
        scaled = gf.visualize_layer_gradients(layers([scale * norm for norm in norms]))
        assert [layer.status for layer in scaled] == [layer.status for layer in plain]
        assert [layer.length for layer in scaled] == [layer.length for layer in plain]


def test_no_layers_is_said():
    assert "No gradients" in str(gf.visualize_layer_gradients({}))


def test_long_names_fit_a_terminal():
    name = "model.encoder.layers.11.attention.self.query.projection.weight"
    text = str(gf.visualize_layer_gradients({name: np.ones(1), name + "2": np.ones(1)}))
    assert max(map(len, text.splitlines())) <= 80
    assert "weight" in text


@pytest.mark.parametrize("norms", [[1e-6, 1e-3, 1], [0, np.nan, 1], [0, 0], []])
def test_the_figure_has_a_bar_for_every_layer(norms, tmp_path):
    figure = plot_profile(gf.visualize_layer_gradients(layers(norms)), title="Demo")
    axes = figure.axes[0]
    assert len(axes.patches) == len(norms)
    assert axes.get_title().startswith("Demo: ")
    figure.savefig(tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 3000
