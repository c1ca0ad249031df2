"""The functions that compute attention, seen as they are called."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from gradient_flow.capture.attention_inputs import AttentionInputs
from gradient_flow.capture.eager_attention import EagerAttention

See = Callable[[AttentionInputs, "int | None"], Any]

_DOT_PRODUCT: Final = F.scaled_dot_product_attention
_MULTI_HEAD: Final = F.multi_head_attention_forward


class AttentionFunctions(TorchFunctionMode):
    """While active, calls `see(inputs, heads)` at every softmax of an attention, and `keep` with what that returned.

    `keep` follows at once where torch's own functions are used, and with the values where attention is written out.
    What goes wrong on the way is handed to `failed`, and the function's result to its caller.
    """

    def __init__(self, see: See, keep: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
        super().__init__()
        self._see = see
        self._keep = keep
        self._failed = failed
        self._eager = EagerAttention(lambda logits: see(AttentionInputs(logits=logits), None), keep)
        self._heads: int | None = None
        self._multi_head = _copy_of(
            _MULTI_HEAD,
            scaled_dot_product_attention=self._dot_product,
            softmax=self._softmax,
            handle_torch_function=self._hand_on,
        )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func`, then look at what it was given."""
        kwargs = kwargs or {}
        if func is _DOT_PRODUCT:
            return self._dot_product(*args, **kwargs)
        if func is _MULTI_HEAD and self._multi_head is not None:
            self._heads = args[4] if len(args) > 4 else kwargs["num_heads"]
            try:
                return self._multi_head(*args, **kwargs)
            finally:
                self._heads = None
        result = func(*args, **kwargs)
        self._look(self._eager.saw, func, args, kwargs, result)
        return result

    def _dot_product(self, *args: Any, **kwargs: Any) -> Any:
        result = _DOT_PRODUCT(*args, **kwargs)
        self._look(lambda: self._saw(_dot_product_inputs(*args, **kwargs)))
        return result

    def _softmax(self, logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = F.softmax(logits, *args, **kwargs)
        self._look(self._saw, AttentionInputs(logits=logits))
        return result

    def _saw(self, inputs: AttentionInputs) -> None:
        seen = self._see(inputs, self._heads)
        if seen is not None:
            self._keep(seen)

    def _look(self, function: Callable[..., None], *args: Any) -> None:
        try:
            with torch._C.DisableTorchFunction():  # other modes need not see what we ask of tensors
                function(*args)
        except Exception as error:
            self._failed(error)

    def _hand_on(self, _function: Any, relevant: Any, *args: Any, **kwargs: Any) -> Any:
        """Another mode, or a tensor subclass, is to have its say: on our copy, or it would run the original."""
        return torch.overrides.handle_torch_function(self._multi_head, relevant, *args, **kwargs)  # type: ignore[arg-type]


def _dot_product_inputs(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionInputs:
    """The arguments of `F.scaled_dot_product_attention` that decide its weights."""
    return AttentionInputs(query=query, key=key, mask=attn_mask, is_causal=is_causal, scale=scale)


def _copy_of(function: Any, **replaced: Any) -> Callable[..., Any] | None:
    """The same function, which finds other functions under some names; nobody else sees a difference.

    `F.multi_head_attention_forward` calls on inside torch, where no mode is asked. Replacing what it calls in
    `torch.nn.functional` itself would reach every other thread.
    """
    if not isinstance(function, FunctionType) or not set(replaced) <= set(function.__code__.co_names):
        return None
    names = {**function.__globals__, **replaced}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
