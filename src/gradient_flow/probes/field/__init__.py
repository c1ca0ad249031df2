"""The gradient as a vector field: rotation and divergence between players, coherence over steps, Jacobians."""
