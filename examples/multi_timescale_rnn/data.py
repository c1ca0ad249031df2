"""Path integration: add up the velocities of a random walk in a box to know where it is."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

BOX = 1.0
"""The box reaches from -BOX to BOX in both directions."""
SPEED = 0.06
"""Typical distance per step."""


class Walks(NamedTuple):
    """`count` random walks of `length` steps."""

    velocity: Tensor  # (count, length, 2), displacement in each step
    start: Tensor  # (count, 2)
    position: Tensor  # (count, length, 2), after each step


def smooth_noise(count: int, length: int, memory: float, generator: torch.Generator) -> Tensor:
    """Noise of unit variance, (count, length), that forgets with `memory` per step."""
    white = torch.randn(count, length, generator=generator)
    values = [white[:, 0]]
    for t in range(1, length):
        values.append(memory * values[-1] + math.sqrt(1 - memory**2) * white[:, t])
    return torch.stack(values, dim=1)


def make_walks(count: int, length: int, seed: int) -> Walks:
    """Walks with smooth heading and speed that bounce off the walls, the same for the same arguments."""
    # A generator of its own: the data must not depend on who used the global one before.
    generator = torch.Generator().manual_seed(seed)
    start = BOX * (2 * torch.rand(count, 2, generator=generator) - 1)
    heading = 2 * math.pi * torch.rand(count, generator=generator)
    turn = 0.2 * smooth_noise(count, length, 0.8, generator)  # (count, length), radians per step
    speed = SPEED * torch.exp(0.4 * smooth_noise(count, length, 0.9, generator))

    position, positions = start, []
    for t in range(length):
        heading = heading + turn[:, t]
        direction = torch.stack((heading.cos(), heading.sin()), dim=1)  # (count, 2)
        moved = position + speed[:, t, None] * direction
        outside = moved.abs() > BOX
        position = torch.where(outside, 2 * BOX * moved.sign() - moved, moved)
        direction = torch.where(outside, -direction, direction)
        heading = torch.atan2(direction[:, 1], direction[:, 0])
        positions.append(position)

    position = torch.stack(positions, dim=1)
    # Differences of positions, not speed times direction: a bounce changes the displacement.
    velocity = torch.diff(position, dim=1, prepend=start[:, None])
    return Walks(velocity, start, position)
