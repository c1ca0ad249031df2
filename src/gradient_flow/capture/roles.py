"""What a parameter is for: groups that a person thinks in.

Recurrent models have `W_in`, `W_rec`, `W_out`, `W_h_init` and `biases`; other models their blocks, embeddings, norms
and biases. What matches nothing keeps its own name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import nn

BIASES: Final = "biases"
_NAMED: Final = re.compile(r"W_(in|rec|out|h_init)(_?\d+)?", re.IGNORECASE)
_BLOCK: Final = re.compile(r"^(.*?\.\d+)\.")
_TORCH_RECURRENT: Final = (("weight_ih", "W_in"), ("weight_hh", "W_rec"), ("weight_hr", "W_rec"))
_RECURRENT_TYPES: Final = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "RNNBase")


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Parameter name → group, for the parameters of `model` (under the names that `module_parameters` gives)."""
    from gradient_flow.capture.parameters import module_parameters

    owners = {name.replace("_orig_mod.", ""): module for name, module in model.named_modules()}
    recurrent = [name for name, module in owners.items() if _is_recurrent(module)]
    own_names = any(_NAMED.fullmatch(part) for name, _ in module_parameters(model) for part in name.split("."))
    order = list(owners)
    roles = {}
    for name, _ in module_parameters(model):
        path, _, leaf = name.rpartition(".")
        if leaf.startswith("bias") or leaf.endswith("_bias"):
            roles[name] = BIASES
        elif own_names or recurrent:
            after = bool(recurrent) and path in owners and order.index(path) > order.index(recurrent[0])
            roles[name] = _recurrent_role(name, leaf, path in recurrent, after and _is_linear(owners[path]))
        else:
            roles[name] = _general_role(name, owners.get(path))
    return roles


def _recurrent_role(name: str, leaf: str, in_recurrent: bool, is_readout: bool) -> str:
    for part in name.split("."):
        found = _NAMED.fullmatch(part)
        if found:
            return f"W_{found.group(1).lower()}"
    if in_recurrent:
        return next((role for prefix, role in _TORCH_RECURRENT if leaf.startswith(prefix)), name)
    return "W_out" if is_readout else name


def _general_role(name: str, owner: nn.Module | None) -> str:
    kind = type(owner).__name__
    if "Norm" in kind:
        return "norms"
    if "Embedding" in kind:
        return "embeddings"
    block = _BLOCK.match(name)
    return block.group(1) if block else name


def _is_recurrent(module: nn.Module) -> bool:
    return any(base.__name__ in _RECURRENT_TYPES for base in type(module).__mro__)


def _is_linear(module: nn.Module) -> bool:
    return any(base.__name__ == "Linear" for base in type(module).__mro__)
