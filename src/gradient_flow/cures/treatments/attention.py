"""Treatments of attention: QK-norm by hook, and smaller queries and keys where they leave no place for a hook."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from gradient_flow.cures.patient import Patient, untouchable
from gradient_flow.cures.registry import register_treatment
from gradient_flow.diagnosis.treatment import Treatment

_QUERY_OR_KEY: Final = re.compile(r"(^|[._])(q|k|wq|wk|query|key|q_proj|k_proj|to_q|to_k|q_lin|k_lin|queries|keys)$")
_PACKED: Final = re.compile(r"(^|[._])(qkv|c_attn|to_qkv|qkv_proj|query_key_value|wqkv|in_proj)$")
_HEADS: Final = ("num_heads", "n_heads", "heads", "n_head", "num_attention_heads", "nhead", "h")
_SMALLER: Final = 0.1


def _projections(patient: Patient) -> Iterator[Treatment]:
    found: dict[str, list[int]] = {}
    for path in patient.rms:
        layer: Any = patient.model.get_submodule(path)
        parts = 1 if _QUERY_OR_KEY.search(path) else 3 if _PACKED.search(path) and layer.out_features % 3 == 0 else 0
        heads = _heads(patient.model, path) if parts else 0
        if parts and heads and layer.out_features // parts % heads == 0:
            found[path] = [heads, parts]
    if found:
        yield Treatment("qk_norm", {"projections": found})


def _heads(model: nn.Module, path: str) -> int:
    """Heads of the module around a projection, where it says so; else one."""
    around = model.get_submodule(path.rpartition(".")[0])
    found = (getattr(around, name, None) for name in _HEADS)
    return next((each for each in found if type(each) is int and each > 0), 1)


@register_treatment("qk_norm", proposed_by=_projections, against=("ENTROPY_COLLAPSE", "RANK_COLLAPSE", "UNSTABLE"))
def qk_norm(model: nn.Module, _optimizer: torch.optim.Optimizer, projections: Mapping[str, Sequence[int]]) -> None:
    """Queries and keys of every head to a root mean square of one, after their projection."""
    for path, (heads, parts) in projections.items():
        model.get_submodule(path).register_forward_hook(_normed(heads, parts))


def _normed(heads: int, parts: int) -> Callable[..., torch.Tensor]:
    def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        chunks = output.chunk(parts, dim=-1)
        kept = [_head_norm(chunk, heads) if at < 2 else chunk for at, chunk in enumerate(chunks)]
        return torch.cat(kept, dim=-1)

    return hook


def _head_norm(x: torch.Tensor, heads: int) -> torch.Tensor:
    x = torch.unflatten(x, -1, (heads, -1))  # (…, heads, width / heads)
    return F.rms_norm(x, x.shape[-1:]).flatten(-2)


def _queries(patient: Patient) -> Iterator[Treatment]:
    wrong = untouchable(patient.model)
    factors = {
        f"{path}.in_proj_weight": _SMALLER
        for path, module in patient.model.named_modules()
        if isinstance(module, nn.MultiheadAttention)
        and module.in_proj_weight is not None
        and module.in_proj_weight not in wrong
    }
    collapsed = any(issue.issue_type.name in ("ENTROPY_COLLAPSE", "SATURATION") for issue in patient.issues)
    if factors and collapsed:
        yield Treatment("scale_queries", {"factors": factors})


@register_treatment("scale_queries", proposed_by=_queries, against=("ENTROPY_COLLAPSE", "SATURATION"))
def scale_queries(model: nn.Module, _optimizer: torch.optim.Optimizer, factors: Mapping[str, float]) -> None:
    """Multiply queries and keys of `nn.MultiheadAttention`; values stay."""
    with torch.no_grad():
        for name, factor in factors.items():
            weight = model.get_parameter(name)
            weight[: 2 * len(weight) // 3].mul_(factor)
