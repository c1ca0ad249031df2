"""Attention wherever a model computes it: a context manager that hands each one on while it is there, and keeps none.

Seen are `F.scaled_dot_product_attention`, `nn.MultiheadAttention` and what is built on it, and attention written out
with a softmax of any scores (products, distances, additive); so Hugging Face models under `sdpa` and `eager`. Not seen
are fused kernels that torch does not know (flash-attn) or compiles (flex attention).

Wherever a model repeats itself, outputs, gradients and random state stay bit-identical, with one exception: torch
leaves its inference fast path for `nn.TransformerEncoder` and `nn.MultiheadAttention` while anybody watches. Then
outputs agree up to rounding (measured in fp32: 3e-7 of the largest). What is compiled runs uncompiled meanwhile, and is
seen.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from gradient_flow.capture.block_outputs import main_tensor
from gradient_flow.capture.module_calls import aside
from gradient_flow.capture.module_stack import ModuleCall, ModuleStack, container_children
from gradient_flow.errors import GradientFlowWarning, MonitorStateError
from gradient_flow.probes.attention.functions import (
    AttentionFunctions,
    AttentionInputs,
    leave_mode,
    token_dimension,
    why_unreadable,
    with_heads,
)
from gradient_flow.probes.attention.padding import EncoderPadding
from gradient_flow.probes.attention.score_sources import inside, matrix_places, score_sources

__all__ = ["AttentionInputs", "AttentionLayer", "AttentionTap", "TokenState"]

_HEAD_COUNTS: Final = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
"""What modules call their number of heads, for logits that have heads and samples in one dimension."""


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Which attention it is."""

    name: str
    """Path of the module that computes it; `#2` is added for the second in one forward of that module."""
    block: str
    """Path of the module in a list that it belongs to: the transformer block. Its own path where there is none."""
    sources: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The weights that make its scores, by path, those of the queries first; empty where they are not known."""


@dataclass(frozen=True, slots=True)
class TokenState:
    """The tokens that enter or leave a transformer block. The tensor belongs to the model."""

    block: str
    tokens: torch.Tensor
    tokens_at: int
    """Which dimension counts tokens: 1, or 0 where the batch comes second."""
    after: bool
    """Whether they leave the block."""
    chained: bool
    """Whether what enters is what the block before it gave out, untouched; or what leaves, what a module in it gave out
    that took in its own output again and again. Then outputs are the residual stream."""


class _Seen(NamedTuple):
    reduced: Any
    call: ModuleCall
    block: ModuleCall
    samples: int
    queries: int
    sources: Mapping[str, torch.Tensor]


class AttentionTap:
    """While entered, hands on every attention that `model` computes in a forward of its own.

    `reduce(inputs)` is called at once, without gradients, and returns what is worth keeping; `keep(layer, reduced)`
    follows when it is certain that this was attention. `tokens(state)` is called before and after each block with
    attention in it. A recomputation during backward (checkpointing) is not seen again. What these functions raise
    becomes one warning, and the forward goes on. With `eager` compiled code runs uncompiled meanwhile.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        reduce: Callable[[AttentionInputs], Any],
        keep: Callable[[AttentionLayer, Any], None],
        tokens: Callable[[TokenState], None],
        eager: bool = True,
    ) -> None:
        self._receive_inputs, self._receive_kept, self._receive_tokens = reduce, keep, tokens
        self._blocks = container_children(model)
        self._places = matrix_places(model)
        self._stack = ModuleStack(model, partial(self._guarded, self._left), self._forward_begins, self._forward_ends)
        self._padding = EncoderPadding(model)
        self._exits: ExitStack | None = None
        self._mode: AttentionFunctions | None = None
        self._eager = eager
        self.listening = True
        """Whether the forwards that come are of interest: not those of an evaluation between two steps."""
        self._last_output: Callable[[], torch.Tensor | None] = _no_output
        self._last_again: Callable[[], torch.Tensor | None] = _no_output
        """What a module that runs again and again in one block gave out last."""
        self._chain: Callable[[], torch.Tensor | None] = _no_output
        """The same, where it had taken in what it gave out before."""
        self._warned = False
        self.unreadable: dict[str, str] = {}
        """Modules whose attention was seen but could not be read, and why."""

    def __enter__(self) -> AttentionTap:
        if self._exits is not None:
            raise MonitorStateError("This tap is entered already. Make another one, or leave it first.")
        with ExitStack() as exits:
            for hooks in (self._padding, self._stack):
                exits.callback(hooks.detach)
                hooks.attach()
            if self._eager:  # compiled code would be compiled anew for the mode, hooks and all
                exits.enter_context(torch.compiler.set_stance("force_eager"))
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        exits, self._exits = self._exits, None
        self._last_output = self._last_again = self._chain = _no_output
        if exits is not None:
            exits.__exit__(kind, error, trace)

    def _forward_begins(self) -> None:
        """The mode is on inside the model's forward and nowhere else: what the loop does is none of ours."""
        if self.listening and torch._C._current_graph_task_id() == -1:
            self._mode = AttentionFunctions(self._see, self._keep, self._warn)
            self._mode.__enter__()  # type: ignore[no-untyped-call]

    def _forward_ends(self) -> None:
        mode, self._mode = self._mode, None
        if mode is not None:
            leave_mode(mode)

    def _see(self, inputs: AttentionInputs, heads: int | None) -> _Seen | None:
        if not self._stack.calls or torch._C._current_graph_task_id() != -1:
            return None  # another model's, or a recomputation
        call = self._stack.calls[-1]
        tensors = (inputs.query, inputs.key, inputs.mask, inputs.logits)
        problem = next(filter(None, (why_unreadable(tensor) for tensor in tensors if tensor is not None)), None)
        if problem is not None:
            self.unreadable[call.path or "model"] = problem
            return None
        seen: _Seen | None = self._guarded(self._reduced, call, inputs, heads or self._heads_by_name())
        return seen

    def _reduced(self, call: ModuleCall, inputs: AttentionInputs, heads: int | None) -> _Seen:
        # Before anything is reshaped: without gradients a view has no history.
        before = (inputs.query, inputs.key) if inputs.logits is None else (inputs.logits,)
        sources = inside(score_sources(before, given=inputs.logits is not None), self._places, call.path)
        inputs = with_heads(inputs, heads)
        block = next((outer for outer in reversed(self._stack.calls) if outer.path in self._blocks), call)
        samples, _, queries, _ = inputs.rows.shape
        return _Seen(self._receive_inputs(inputs), call, block, samples, queries, sources)

    def _keep(self, seen: _Seen) -> None:
        call, block = seen.call, seen.block
        call.attentions += 1
        name = (call.path or "model") + (f"#{call.attentions}" if call.attentions > 1 else "")
        layer = AttentionLayer(name, block.path or "model", seen.sources)
        self._guarded(self._receive_kept, layer, seen.reduced)
        if block.tokens_at is None and block.tokens is not None and why_unreadable(block.tokens) is None:
            block.tokens_at = token_dimension(block.tokens, seen.samples, seen.queries, call.module)
            if block.tokens_at is not None:
                chained = self._last_output() is block.tokens
                state = TokenState(layer.block, block.tokens, block.tokens_at, after=False, chained=chained)
                self._guarded(self._receive_tokens, state)
        self._note_repeated(block)

    def _note_repeated(self, block: ModuleCall) -> None:
        """A module inside of a block that runs in it again: a block of its own, used several times over."""
        at = next((k for k, call in enumerate(self._stack.calls) if call is block), len(self._stack.calls))
        inner = next(iter(self._stack.calls[at + 1 :]), None)
        if inner is None or inner.again or block.tokens_at is None or inner.tokens is None:
            return
        if inner.path in block.inside and block.tokens is not None and inner.tokens.shape == block.tokens.shape:
            inner.tokens_at, inner.again = block.tokens_at, True
        block.inside.add(inner.path)

    def _left(self, call: ModuleCall, output: Any) -> None:
        """A block's forward has ended: its tokens were looked at on the way in."""
        assert call.tokens is not None
        assert call.tokens_at is not None
        tokens = main_tensor(output)
        if not isinstance(tokens, torch.Tensor) or tokens.shape != call.tokens.shape:
            return
        if call.again:
            # A chain of at least three: what it takes in is what it gave out.
            chained = self._last_again() is call.tokens
            self._chain = weakref.ref(tokens) if chained else _no_output
            self._last_again = weakref.ref(tokens)
            return
        self._last_output = weakref.ref(tokens)
        chained = self._chain() is tokens
        self._receive_tokens(TokenState(call.path or "model", tokens, call.tokens_at, after=True, chained=chained))

    def _heads_by_name(self) -> int | None:
        for call in reversed(self._stack.calls[-3:]):
            for name in _HEAD_COUNTS:
                count = getattr(call.module, name, None)
                if isinstance(count, int) and count > 0:
                    return count
            if call.path in self._blocks:
                return None  # in a list: a head of its own, whose owner counts its fellows
        return None

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        """Watching needs no gradients, is seen by no other watcher, and never stops a forward."""
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad(), aside():
                return function(*args)
        except Exception as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            text = f"Attention could not be measured and is left out: {type(error).__name__}: {error}"
            warnings.warn(text, GradientFlowWarning, stacklevel=2)


def _no_output() -> None:
    """Before any block has run."""
