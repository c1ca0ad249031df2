"""The functions that compute attention, seen as they are called."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from gradient_flow.probes.attention.written_out import EagerAttention

See = Callable[["AttentionInputs", "int | None"], Any]

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
        if isinstance(result, (torch.Tensor, tuple, list)):  # not a shape, a number or a truth value
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


def leave_mode(mode: TorchFunctionMode) -> None:
    """Take a mode off the stack, wherever it is: a forward may have left one of its own above it, which stays."""
    above: list[TorchFunctionMode] = []
    if mode not in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
        return
    while (top := _pop_mode()) is not mode:  # type: ignore[no-untyped-call]
        above.append(top)
    for each in reversed(above):
        _push_mode(each)  # type: ignore[no-untyped-call]


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
    """The same function, which finds other functions under some names; no other caller sees a difference.

    `F.multi_head_attention_forward` calls on inside torch, where no mode is asked. Replacing what it calls in
    `torch.nn.functional` itself would reach every other thread.
    """
    if not isinstance(function, FunctionType) or not set(replaced) <= set(function.__code__.co_names):
        return None
    names = {**function.__globals__, **replaced}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Queries and keys, or the logits themselves. The tensors belong to the model: reduce them, keep none.

    As a model hands them over they may lack dimensions for samples and heads; `with_heads` adds those.
    """

    query: torch.Tensor | None = None
    """(samples, heads, queries, features)"""
    key: torch.Tensor | None = None
    """(samples, heads or fewer, keys, features)"""
    mask: torch.Tensor | None = None
    """Broadcasts to (samples, heads, queries, keys): true where attention is allowed, or numbers to add."""
    is_causal: bool = False
    scale: float | None = None
    """Factor of the products of queries and keys; `None` means 1 / sqrt(features)."""
    logits: torch.Tensor | None = None
    """(samples, heads, queries, keys), scaled, and very negative where masked."""

    @property
    def rows(self) -> torch.Tensor:
        """The tensor that has one row per query."""
        rows = self.query if self.logits is None else self.logits
        assert rows is not None
        return rows


def with_heads(inputs: AttentionInputs, heads: int | None) -> AttentionInputs:
    """The same inputs with exactly four dimensions, given the number of heads where it is known."""
    lead = tuple(inputs.rows.shape[:-2])
    samples, heads = _samples_and_heads(lead, heads)
    query, key, mask, logits = inputs.query, inputs.key, inputs.mask, inputs.logits
    if len(lead) == 2 and (key is None or (key.dim() == 4 and len(key) == samples and heads % key.shape[1] == 0)):
        return inputs  # as they are given as a rule
    if query is not None and key is not None:
        # Keys may have fewer heads than queries; then each serves a group of them.
        groups = query.shape[-3] // key.shape[-3] if key.dim() > 3 else 1
        query = query.reshape(samples, heads, *query.shape[-2:])
        key = key.reshape(samples, heads // groups, *key.shape[-2:])
    if logits is not None:
        logits = logits.reshape(samples, heads, *logits.shape[-2:])
    if mask is not None and mask.dim() > 2 and len(lead) != 2:
        mask = mask.expand(*lead, *mask.shape[-2:]).reshape(samples, heads, *mask.shape[-2:])
    return replace(inputs, query=query, key=key, mask=mask, logits=logits)


def _samples_and_heads(lead: tuple[int, ...], heads: int | None) -> tuple[int, int]:
    """How many of each the leading dimensions hold. Without a known number the last of several counts heads."""
    everything = math.prod(lead)
    if heads is not None and len(lead) != 2:
        trailing = [math.prod(lead[i:]) for i in range(len(lead))]
        if heads in trailing or (len(lead) == 1 and everything % heads == 0):
            return everything // heads, heads
    heads = lead[-1] if len(lead) > 1 else 1
    return everything // heads, heads


def why_unreadable(tensor: torch.Tensor) -> str | None:
    """Why a tensor's numbers cannot be looked at here, or `None` when they can."""
    if tensor.is_nested:
        return "a nested tensor"
    if type(tensor) not in (torch.Tensor, nn.Parameter):
        return f"a {type(tensor).__name__}"
    if tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "a tensor without numbers of its own (meta device or torch.func)"
    return None


def token_dimension(tokens: torch.Tensor, samples: int, queries: int, attention: nn.Module) -> int | None:
    """Which dimension of (…, …, features) counts the tokens that `attention` has `queries` of; `None` if neither."""
    shape = tuple(tokens.shape[:2])
    batch_first = getattr(attention, "batch_first", True) is not False
    if shape == (samples, queries) and (batch_first or samples != queries):
        return 1
    return 0 if shape == (queries, samples) else None
