"""A copy of a module that can be run as often as needed without anything of the original noticing."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any, TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def isolated_copy(module: Module, dtype: torch.dtype = torch.float64) -> Module:
    """The module in evaluation mode and in `dtype`, with parameters, buffers and tensor attributes of its own.

    No hook comes along, nothing needs a gradient, and what the copy changes when it runs (running statistics, lists
    that it keeps) is its own. Weights that an old-style `weight_norm` computes in a hook keep their present values.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        for name, value in vars(part).items():
            if "hook" in name and isinstance(value, dict):
                memo[id(value)] = OrderedDict()  # hooks of others would see our runs
                continue
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, torch.Tensor):  # computed by a hook, or kept from the last forward with its graph
                    memo[id(item)] = _own(item, dtype)
        for tensor in [*part._parameters.values(), *part._buffers.values()]:
            if tensor is not None:
                memo[id(tensor)] = _own(tensor, dtype)
    twin = copy.deepcopy(module, memo)
    # Setting the mode part by part would do what an overridden `train` adds to it; on our copy that is harmless.
    return twin.eval()


def _own(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A detached copy, in `dtype` where it holds real numbers, and still a parameter where it was one."""
    # There is no fp64 on Apple's GPUs.
    device = torch.device("cpu") if tensor.device.type == "mps" else tensor.device
    own = tensor.detach().to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
    return nn.Parameter(own, requires_grad=False) if isinstance(tensor, nn.Parameter) else own
