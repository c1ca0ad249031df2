"""The probe behind `TransformerAnalyzer`: attention from the model's forward to statistics, step by step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from functools import reduce
from types import TracebackType
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.capture.module_stack import listed_again
from gradient_flow.errors import ConfigError
from gradient_flow.probes.attention.collapse import behind_blocks, collapse_risk
from gradient_flow.probes.attention.row import AttentionRow
from gradient_flow.probes.attention.score_sources import gain
from gradient_flow.probes.attention.stats import AttentionStats, LayerAttention, mean
from gradient_flow.probes.attention.sums import (
    MAX_QUERIES,
    AttentionSums,
    LogitSample,
    Padding,
    some_logits,
    sums_of,
)
from gradient_flow.probes.attention.tap import AttentionInputs, AttentionLayer, AttentionTap, TokenState
from gradient_flow.probes.attention.together import Later, Together
from gradient_flow.probes.attention.token_spread import some_tokens, sums_of_tokens

MOST_CALLS: Final = 8
"""Calls of a layer within a step whose sums are kept apart; more of them are merged at once."""
_UNSEEN = (
    "Seen are nn.MultiheadAttention, F.scaled_dot_product_attention and attention written out with products and a "
    "softmax; not flash-attn or flex attention. For a Hugging Face model load it with "
    "attn_implementation='sdpa' or 'eager'."
)


class AttentionProbe:
    """Watches the attention of a model while entered; hooks and modes exist only then.

    Call `after_step` once per step, after backward; `result()` gives the statistics of the last steps. Of each call a
    few rows are taken inside the forward, and held until they are reduced together: a few megabytes at most.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        track_attention_weights: bool = True,
        max_queries: int = MAX_QUERIES,
        eager: bool = True,
    ) -> None:
        if not max_queries >= 1:
            raise ConfigError(f"`max_queries` must be at least 1, got {max_queries!r}. Leave it out to take 64.")
        self._track = track_attention_weights
        self._max_queries = max_queries
        self._eager = eager
        self._unreadable: dict[str, str] = {}
        self.bind(model)
        self._windows: dict[str, AttentionWindow] = {}
        self._chained: set[str] = set()
        self._steps = 0
        self.at_step: int | None = None
        """The step of the training that is looked at; without one, steps are counted."""
        self._at_steps: deque[int] = deque(maxlen=STEPS)
        self._forget_step()

    def bind(self, model: nn.Module) -> None:
        """Take up the model, until `release`."""
        self._listed = listed_again(model)
        self._tap = AttentionTap(
            model, reduce=self._reduce, keep=self._keep, tokens=self._receive_tokens, eager=self._eager
        )

    def release(self) -> None:
        """Hold on to nothing of the model."""
        self._unreadable |= self._tap.unreadable
        self.bind(nn.Module())

    def _forget_step(self) -> None:
        self._logits = Together(sums_of, lambda sample: sample.logits.numel())
        self._some_tokens = Together(sums_of_tokens, lambda sample: sample.tokens.numel())
        self._calls: dict[str, tuple[str, list[Later[AttentionSums]]]] = {}
        """Layer → its block, and the sums of each of its calls."""
        self._tokens: dict[tuple[str, bool], list[Later[torch.Tensor]]] = {}
        self._sources: dict[str, Mapping[str, torch.Tensor]] = {}
        self._padding: dict[str, Padding | None] = {}
        self._last_output: Later[torch.Tensor] | None = None
        self._last_left, self._goes_on = "", False

    def __enter__(self) -> AttentionProbe:
        if self._track:
            self._tap.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._track:
            self._tap.__exit__(kind, error, trace)

    def _reduce(self, inputs: AttentionInputs) -> LogitSample:
        return some_logits(inputs, max_queries=self._max_queries)

    def _keep(self, layer: AttentionLayer, sample: LogitSample) -> None:
        self._padding[layer.block] = sample.padding
        self._sources[layer.name] = layer.sources
        _, calls = self._calls.get(layer.name, ("", []))
        calls = [*calls, self._logits.add(sample)]
        if len(calls) > MOST_CALLS:
            self._logits.finish()
            calls = [Later.of(_merged(calls))]
        self._calls[layer.name] = layer.block, calls

    def _receive_tokens(self, state: TokenState) -> None:
        sums = self._last_output
        if not state.chained or sums is None:
            tokens = state.tokens if state.tokens_at == 1 else state.tokens.transpose(0, 1)
            sums = self._some_tokens.add(some_tokens(tokens, self._padding.get(state.block)))
        self._last_output = sums if state.after else None
        found = self._tokens.setdefault((state.block, state.after), [])
        if not state.after:
            self._goes_on = state.chained and self._last_left == state.block
        self._last_left = state.block if state.after else ""
        if self._goes_on and found:
            # One block used again and again is a stack: what enters it first, and what leaves it last.
            if state.after:
                found[-1] = sums
        else:
            found.append(sums)
        if len(found) > MOST_CALLS:
            self._some_tokens.finish()
            found[:] = [Later.of(_added(found))]
        if state.chained:
            self._chained.add(state.block)

    def listen(self, listening: bool) -> None:
        """Whether the forwards that come are of interest."""
        self._tap.listening = listening

    def after_step(self, inputs: Any, output: Any) -> None:
        """Take note of what this step's forward passes showed; the only time that numbers leave the device."""
        self._steps += 1
        if self._calls:
            self._at_steps.append(self._steps if self.at_step is None else self.at_step)
        self._logits.finish()
        self._some_tokens.finish()
        layers = {name: (block, _merged(calls)) for name, (block, calls) in self._calls.items()}
        tokens = [_added(found) for found in self._tokens.values()]
        numbers = iter(_on_host([*(sums.flat() for _, sums in layers.values()), *tokens]))
        for name, (block, sums) in layers.items():
            window = self._windows.setdefault(name, AttentionWindow(block))
            window.add(AttentionRow.from_flat(next(numbers), len(sums.peaks)))
            window.note_sources(self._sources[name])
            window.copies = self._copies(name)
        for block, after in self._tokens:
            sums_of_tokens = next(numbers)
            for window in self._windows.values():
                if window.block == block:
                    window.add_tokens(after, sums_of_tokens)
        self._forget_step()

    def _copies(self, name: str) -> int:
        """How often a module that stands in its list several times attended, where it saw the same each time.

        One block that is used again and again stands there too, and takes in what it gave out before.
        """
        calls = [call.value for call in self._calls[name][1]]
        if len(calls) < 2 or not any(f"{name}.".startswith(f"{path}.") for path in self._listed):
            return 1
        first, *others = calls
        same = all(torch.equal(first.heads, other.heads) and torch.equal(first.peaks, other.peaks) for other in others)
        return len(calls) if same else 1

    @property
    def saw_any(self) -> bool:
        """Whether there was any attention so far, also one that could not be read."""
        return bool(self._windows or self._unreadable or self._tap.unreadable)

    @property
    def reason(self) -> str:
        """Why `result()` is `None`; empty when it is not."""
        if self._windows:
            return ""
        if not self._track:
            return "Attention was not tracked: track_attention_weights=False."
        if not self._steps:
            return "No step was analyzed."
        unreadable = [f"{path} ({why})" for path, why in (self._unreadable | self._tap.unreadable).items()]
        if unreadable:
            return f"Attention was seen but could not be read in {', '.join(unreadable[:3])}."
        return f"No attention was seen in the model's forward. {_UNSEEN}"

    def result(self) -> AttentionStats | None:
        """The statistics of the last steps; `None` when no attention was seen, and `reason` says why."""
        if not self._windows:
            return None
        # Keyed by block: self- and cross-attention of one block share its tokens.
        before = {w.block: tokens for w in self._windows.values() if (tokens := w.tokens(after=False)) is not None}
        after = {w.block: tokens for w in self._windows.values() if (tokens := w.tokens(after=True)) is not None}
        behind = behind_blocks(before, after, self._chained, (w.block for w in self._windows.values()))
        layers = [
            _layer(name, window, before.get(window.block), behind.get(window.block))
            for name, window in self._windows.items()
        ]
        sparsity = mean(value for layer in layers for value in layer.sparsity)
        return AttentionStats(
            layers=tuple(layers),
            steps=self._steps,
            at_steps=tuple(self._at_steps),
            attention_entropy_mean=mean(value for layer in layers for value in layer.entropy),
            attention_sparsity=sparsity,
            head_diversity=mean(layer.head_diversity for layer in layers),
            rank_collapse_risk=collapse_risk(layers, sparsity),
            max_logit=max(layer.largest_logit for layer in layers),
            token_spread=min((s for s in (layer.token_spread for layer in layers) if s is not None), default=None),
            token_similarity=max(
                (s for s in (layer.token_similarity for layer in layers) if s is not None), default=None
            ),
        )


def _merged(calls: Sequence[Later[AttentionSums]]) -> AttentionSums:
    """The calls of one layer; where heads were added or pruned meanwhile, those after that."""
    merged = calls[0].value
    for call in calls[1:]:
        merged = merged.merge(call.value) if merged.peaks.shape == call.value.peaks.shape else call.value
    return merged


def _added(calls: Sequence[Later[torch.Tensor]]) -> torch.Tensor:
    return reduce(torch.add, [call.value for call in calls])


Tokens = tuple[float, float]
"""Spread and similarity."""


def _layer(name: str, window: AttentionWindow, before: Tokens | None, behind: Tokens | None) -> LayerAttention:
    row = window.row
    return LayerAttention(
        name=name,
        block=window.block,
        entropy=row.entropy,
        sparsity=row.sparsity,
        max_logit=row.peaks,
        nats=row.nats,
        freezing=row.freezing,
        head_diversity=row.head_diversity,
        head_divergence=row.head_divergence,
        head_focus=row.head_focus,
        copies=window.copies,
        projections=window.projections,
        token_spread_before=None if before is None else before[0],
        token_spread=None if behind is None else behind[0],
        token_similarity=None if behind is None else behind[1],
        nonfinite=row.nonfinite,
        without_choice=row.without_choice,
        entropy_by_step=window.entropy_by_step,
        max_logit_by_step=window.max_logit_by_step,
    )


def _on_host(tensors: list[torch.Tensor]) -> list[list[float]]:
    """All numbers with one wait for each device."""
    numbers: list[list[float]] = [[] for _ in tensors]
    for device in {tensor.device for tensor in tensors}:
        at = [index for index, tensor in enumerate(tensors) if tensor.device == device]
        values = iter(torch.cat([tensors[index] for index in at]).tolist())
        for index in at:
            numbers[index] = [next(values) for _ in range(len(tensors[index]))]
    return numbers


RECENT: Final = 5
"""Latest steps that statistics cover: in training they describe the current state."""
STEPS: Final = 512
SHARP: Final = 0.6
"""Entropy, as a share of ln(keys), below which queries or keys may be out of the ordinary."""


class AttentionWindow:
    """One layer. Memory is bounded however long the run."""

    def __init__(self, block: str) -> None:
        self.block = block
        self._rows: deque[AttentionRow] = deque(maxlen=RECENT)
        self._tokens: dict[bool, deque[Sequence[float]]] = {False: deque(maxlen=RECENT), True: deque(maxlen=RECENT)}
        self._entropies: deque[float] = deque(maxlen=STEPS)
        self._peaks: deque[float] = deque(maxlen=STEPS)
        self.projections: Mapping[str, float] = {}
        self.copies = 1

    def add(self, row: AttentionRow) -> None:
        """One step."""
        if self._rows and len(self._rows[-1].heads) != len(row.heads):
            self._rows.clear()  # heads were pruned or added: the old ones are no longer these
        self._rows.append(row)
        entropies = [entropy for entropy in row.entropy if math.isfinite(entropy)]
        if entropies:  # a step of non-finite rows has none, and its absence is no trend
            self._entropies.append(sum(entropies) / len(entropies))
            self._peaks.append(max(row.peaks))

    def note_sources(self, sources: Mapping[str, torch.Tensor]) -> None:
        """The weights that make the scores. Which of them stands out is asked only where they look at few positions."""
        sharp = len(sources) > 1 and bool(self._entropies) and self._entropies[-1] < SHARP
        gains = _on_host([torch.stack([gain(each) for each in sources.values()])])[0] if sharp else [0.0] * len(sources)
        self.projections = dict(zip(sources, gains, strict=True))

    def add_tokens(self, after: bool, sums: Sequence[float]) -> None:
        """The tokens before or after the layer's block, by `TOKEN_COLUMNS`."""
        self._tokens[after].append(sums)

    @property
    def row(self) -> AttentionRow:
        """The last steps as one."""
        return reduce(AttentionRow.merge, self._rows)

    def tokens(self, after: bool) -> tuple[float, float] | None:
        """Mean spread and similarity over the last steps; `None` where none were seen."""
        samples, spread, similarity = (sum(column) for column in zip((0.0,) * 3, *self._tokens[after], strict=True))
        return (spread / samples, similarity / samples) if samples else None

    @property
    def entropy_by_step(self) -> tuple[float, ...]:
        """Mean entropy of the heads in each step that had a finite one."""
        return tuple(self._entropies)

    @property
    def max_logit_by_step(self) -> tuple[float, ...]:
        """Largest magnitude of a logit in the same steps."""
        return tuple(self._peaks)
