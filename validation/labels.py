"""Answers that many cases share: the class of a fault with its equals, and what else is true beside a fault."""

from __future__ import annotations

# --- found: the first is the class, the others are as good an answer

RUNS_AWAY = ("EXPLODING", "UNSTABLE", "NUMERICAL")
JUMPS = ("UNSTABLE", "EXPLODING")
ONE_WAY = ("LOW_RANK", "BOTTLENECK")
SHORT = ("SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING")
CHAOTIC = ("SPECTRAL_RADIUS", "EXPLODING")
STUCK = ("EXPLORATION", "ENTROPY_COLLAPSE")

# --- also true

DEADENS = {"DISCONNECTED", "VANISHING"}
"""Nothing passes a dead layer, forward or back."""
GROWS = {"UNSTABLE", "SATURATION"}
"""States that grow hit their bounds."""
SHARP = {"SATURATION", "EXPLODING", "UNSTABLE"}
"""A softmax of large logits is flat, and what makes them large has steep gradients."""
ALIKE = {"VANISHING", "LOW_RANK", "BOTTLENECK", "EXPLODING"}
"""Tokens that become one."""
ONE = {"SYMMETRY", "LOW_RANK", "BOTTLENECK"}
"""Heads that are one."""
SURE = {"SATURATION", "VANISHING", "EXPLODING"}
"""A policy that is sure of itself."""
LOST = {"ENTROPY_COLLAPSE", "RANK_COLLAPSE", "DEAD", "SATURATION", "HEAD_DIVERSITY", "NUMERICAL"}
"""A transformer thrown off by its optimizer."""
