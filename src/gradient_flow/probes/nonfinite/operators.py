"""Facts about torch's operators that their schemas tell, or fail to tell, and the names users know them by."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch

_FAMILIAR: Final = {
    "addmm": "linear",
    "mm": "matmul",
    "bmm": "matmul",
    "baddbmm": "matmul",
    "mv": "matmul",
    "dot": "matmul",
    "convolution": "conv",
    "convolution_overrideable": "conv",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "fused_rms_norm": "rms_norm",
    "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss",
    "log_sigmoid_forward": "logsigmoid",
    "linalg_vector_norm": "norm",
    "linalg_eigh": "eigh",
    "linalg_svd": "svd",
    "linalg_inv_ex": "inv",
    "linalg_det": "det",
    "linalg_slogdet": "slogdet",
    "linalg_solve_ex": "solve",
    "linalg_cholesky_ex": "cholesky",
    "native_dropout": "dropout",
    "safe_softmax": "softmax",
    "to_copy": "to",
    "lift_fresh": "tensor",
    "lift_fresh_copy": "tensor",
    "scalar_tensor": "tensor",
    "local_scalar_dense": "item",
}
_OVERWRITES: Final = ("copy_", "fill_", "zero_", "set_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_")
"""Of these in-place operators the old contents are no input."""
UNINITIALISED: Final = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")
"""Whatever was in memory before."""
MASKABLE: Final = ("softmax", "log_softmax", "scaled_dot_product_attention", "logsumexp")
"""Operators that are fed -Inf on purpose."""


class Operator(NamedTuple):
    """One overload of an operator, as far as it matters here."""

    name: str
    """Familiar name."""
    full: str
    """`aten.log.default`"""
    arguments: tuple[str, ...]
    written: frozenset[str]
    """Arguments that it changes."""
    unread: frozenset[str]
    """Arguments whose old contents it does not use."""
    is_view: bool
    elementwise: bool


@lru_cache(maxsize=2048)
def operator_of(func: Any) -> Operator:
    """Facts about an operator; of one without a schema (a higher-order operator) only its name."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        name = getattr(func, "__name__", str(func))
        return Operator(name, name, (), frozenset(), frozenset(), False, False)
    raw = func.name().removeprefix("aten::").split(".")[0]
    written = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    unread = {a.name for a in schema.arguments if a.name in written and (a.kwarg_only or raw in _OVERWRITES)}
    aliases = any(returned.alias_info is not None for returned in schema.returns)
    return Operator(
        name=familiar_name(raw),
        full=str(func),
        arguments=tuple(argument.name for argument in schema.arguments),
        written=frozenset(written),
        unread=frozenset(unread),
        is_view=aliases and not written and raw != "lift_fresh",  # a fresh tensor: this is where it comes from
        elementwise=torch.Tag.pointwise in func.tags,
    )


def reads(operator: Operator, argument: str, values: dict[str, Any]) -> bool:
    """Whether an operator, called with these values, uses what this argument held before."""
    if operator.name == "batch_norm" and argument in ("running_mean", "running_var"):
        # While training these are written and not read, and not every overload's schema says so.
        return not values.get("training", "with_update" in operator.full)
    return argument not in operator.unread


def familiar_name(raw: str) -> str:
    """The name that users know an operator by.

    >>> familiar_name("_log_softmax"), familiar_name("addmm"), familiar_name("log_")
    ('log_softmax', 'linear', 'log_')
    """
    name = raw.lstrip("_") if not raw.startswith("__") else raw
    if name.startswith("scaled_dot_product"):
        return "scaled_dot_product_attention"
    if "batch_norm" in name and "::" not in name:
        return "batch_norm"
    return _FAMILIAR.get(name, name)


def name_of_node(node_name: str) -> str:
    """The familiar name of the operator that an autograd node undoes, from the node's own name.

    >>> name_of_node("SqrtBackward0"), name_of_node("LogSoftmaxBackward0"), name_of_node("torch::autograd::CopySlices")
    ('sqrt', 'log_softmax', 'copy_slices')
    """
    stem = re.sub(r"Backward\d*$", "", node_name.split("::")[-1])
    return familiar_name(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower())
