"""The examples of the user's documents, as they are written, import lines aside."""

import numpy as np

DOCUMENT_003 = """
import numpy as np
from gradient_flow import (compute_gradient_norm, compute_gradient_stats, detect_gradient_issues, clip_gradients)

# Simulated gradients from a 6-layer network
layer_gradients = {
    'layer_0': np.random.randn(100, 100) * 0.01,
    'layer_1': np.random.randn(100, 100) * 0.01,
    'layer_2': np.random.randn(100, 100) * 0.001,  # Getting smaller
    'layer_3': np.random.randn(100, 100) * 0.0001,
    'layer_4': np.random.randn(100, 100) * 0.00001,
    'layer_5': np.random.randn(100, 100) * 0.000001,  # Very small!
}

# Analyze each layer
for name, grad in layer_gradients.items():
    stats = compute_gradient_stats(grad)
    print(f"{name}: norm={stats['norm']:.6f}, mean={stats['mean']:.6f}")

# Detect issues
all_grads = list(layer_gradients.values())
issues = detect_gradient_issues(all_grads)
print(f"Detected issues: {issues['status']}")
# Output: "Detected issues: vanishing"

# Apply gradient clipping
clipped, original_norm = clip_gradients(all_grads, max_norm=1.0)
print(f"Original norm: {original_norm:.4f}, clipping applied: {original_norm > 1.0}")
"""


def test_document_003_example_prints_vanishing(capsys):
    names = {}
    exec(DOCUMENT_003, names)
    printed = capsys.readouterr().out
    assert "Detected issues: vanishing" in printed
    assert "clipping applied: True" in printed
    exact = np.sqrt(sum(np.sum(g**2) for g in names["all_grads"]))
    assert names["original_norm"] == np.float64(exact) or abs(names["original_norm"] / exact - 1) < 1e-12
