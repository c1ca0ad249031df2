"""Padding that `nn.TransformerEncoder` gives out as zeros in its inference fast path, and otherwise as anything.

The fast path takes padded tokens out before the first layer and puts zeros in their place after the last. Torch leaves
it while a function mode is active, so code that uses one must write the zeros itself, or a model that pools over all
tokens would answer differently.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from gradient_flow.capture.module_stack import ModuleHook


class EncoderPadding:
    """While attached, the encoders of a model give out zeros for padding exactly when they would by themselves."""

    def __init__(self, model: nn.Module) -> None:
        self._encoders = [
            module
            for module in model.modules()
            if isinstance(module, nn.TransformerEncoder)
            and type(module).forward is nn.TransformerEncoder.forward
            and getattr(module, "use_nested_tensor", False)
        ]
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Put hooks on encoders and their last layers."""
        for encoder in self._encoders:
            hooks = _Encoder()
            enter = ModuleHook(encoder, hooks.enter)
            leave = ModuleHook(encoder.layers[-1], hooks.leave_last_layer)
            self._handles.append(encoder.register_forward_pre_hook(enter, with_kwargs=True))
            self._handles.append(encoder.layers[-1].register_forward_hook(leave))

    def detach(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


class _Encoder:
    def __init__(self) -> None:
        self._padding: torch.Tensor | None = None

    def enter(self, encoder: nn.Module, args: Any, kwargs: Any) -> None:
        assert isinstance(encoder, nn.TransformerEncoder)
        self._padding = _zeroed_padding(encoder, args, kwargs)

    def leave_last_layer(self, _layer: nn.Module, _inputs: Any, output: Any) -> Any:
        padding, self._padding = self._padding, None
        return None if padding is None else output.masked_fill(padding[..., None], 0.0)


def _zeroed_padding(encoder: nn.TransformerEncoder, args: Any, kwargs: Any) -> torch.Tensor | None:
    """Which tokens the fast path would set to zero; `None` where it would not be taken. As in `forward` of torch."""
    given = inspect.signature(encoder.forward).bind(*args, **kwargs).arguments
    tokens, padding, first = given["src"], given.get("src_key_padding_mask"), encoder.layers[0]
    if padding is None or given.get("mask") is not None or tokens.dim() != 3 or tokens.is_nested or first.training:
        return None
    if not torch.backends.mha.get_fastpath_enabled() or torch.is_autocast_enabled():
        return None
    if torch.is_grad_enabled() and (tokens.requires_grad or any(p.requires_grad for p in first.parameters())):
        return None
    zeroed: torch.Tensor = padding if padding.dtype is torch.bool else padding != 0
    checked = getattr(encoder, "mask_check", True)
    if checked and not torch._nested_tensor_from_mask_left_aligned(tokens, zeroed.logical_not()):
        return None
    return zeroed
