"""What a treatment does to a model and its optimizer, a file per subject. Importing this room registers them all."""

from gradient_flow.cures.treatments import (
    attention,
    graph,
    inputs,
    layers,
    narrow,
    numerics,
    optimizers,
    outputs,
    recurrent,
    safe_math,
    together,
    weights,
)

__all__ = [
    "attention",
    "graph",
    "inputs",
    "layers",
    "narrow",
    "numerics",
    "optimizers",
    "outputs",
    "recurrent",
    "safe_math",
    "together",
    "weights",
]
