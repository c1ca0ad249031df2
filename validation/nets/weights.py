"""How weights start, and what faults do to them."""

from __future__ import annotations

import math

import torch
from torch import nn


def gaussian_(model: nn.Module, gain: float) -> nn.Module:
    """Draw every weight matrix and kernel from N(0, gain²/fan_in), zero the biases: gain √2 is He's."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, std=gain / math.sqrt(fan_in))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def he_(model: nn.Module) -> nn.Module:
    """Draw weights as He et al. do for ReLU."""
    return gaussian_(model, math.sqrt(2))


def xavier_(model: nn.Module) -> nn.Module:
    """Draw weights as Glorot and Bengio do; all layers here are near enough square."""
    return gaussian_(model, 1.0)


@torch.no_grad()
def scale_(module: nn.Module, factor: float) -> None:
    """Multiply the weight of one layer."""
    module.weight.mul_(factor)


@torch.no_grad()
def constant_(model: nn.Module, value: float) -> nn.Module:
    """Give every parameter the same value."""
    for parameter in model.parameters():
        parameter.fill_(value)
    return model
