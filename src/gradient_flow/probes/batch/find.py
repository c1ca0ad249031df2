"""`find_batch`: replay a step on parts of its batch, and name the samples that make it spike or turn NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.capture.model_state import left_as_found, nothing_changed
from gradient_flow.capture.parameters import module_parameters
from gradient_flow.capture.random_state import RandomState
from gradient_flow.capture.replay import StepEnds, loss_in, undisturbed
from gradient_flow.errors import InputError, check_choice, check_number, check_whole
from gradient_flow.probes.batch.cause import NONFINITE, NOTHING, SPIKE, BatchCause
from gradient_flow.probes.batch.cut import samples_in, take
from gradient_flow.probes.batch.search import Outcome, OutOfReplays, Samples, Search
from gradient_flow.table import measure
from gradient_flow.table.text import plain

__all__ = ["BatchCause", "find_batch"]

_SHOWN: Final = 8
"""Samples that a sentence names."""


def find_batch(
    step_fn: Callable[[Any], Any],
    batch: Any,
    model: nn.Module,
    *,
    usual: float | None = None,
    of: str = "gradient",
    rng_state: RandomState | None = None,
    most_replays: int = 1000,
) -> BatchCause:
    """Name the samples of a batch that make its step spike or turn NaN.

    `step_fn(batch)` runs the forward pass and returns the loss, alone, first in a tuple, or under `"loss"` in a
    mapping; the backward pass is run here. It is called with parts of the batch, copies cut along the first axis. With
    one culprit and independent samples that takes about log₂(batch) replays. Where samples depend on each other, by a
    batch norm or a contrastive loss, it takes more, and `.coupled` says so. Weights, buffers, gradients, modes and
    random states are afterwards as they were.

    Args:
        batch: a tensor, or any nest of tensors in lists, tuples, mappings and dataclasses.
        usual: what an ordinary batch has, such as the median of `flow.run.series("norm")`. With it all samples are
            named without which the step is back at twice that; without it, those that make up half of the size.
        of: `"gradient"` searches by the norm of the gradients, `"loss"` by the loss.
        rng_state: taken before the step went wrong, repeats its random numbers.
        most_replays: after this many the search ends with what it has.

    >>> model = nn.Linear(3, 1)
    >>> batch = torch.ones(64, 3)
    >>> batch[37, 1] = torch.nan
    >>> cause = find_batch(lambda x: model(x).square().mean(), batch, model)
    >>> cause.indices, cause.replays
    ((37,), 9)
    >>> print(cause)
    Sample 37 of 64 makes the loss NaN; without it the step is finite.
    """
    _check(step_fn, model, rng_state)
    check_choice("of", of, ("gradient", "loss"))
    if usual is not None:
        check_number("usual", usual, "a positive number", 0, open_ends="l", error=InputError)
    most = check_whole("most_replays", most_replays, error=InputError)
    samples = samples_in(batch)
    if not samples:
        raise InputError("`batch` must have at least one sample; its first axis has length 0.")
    bad = [name for name, tensor in module_parameters(model) if not _is_finite(tensor)]
    if bad:
        message = (
            f"The weights are not finite already (`{bad[0]}`): no batch is to blame. Go back to a checkpoint from "
            "before the step that broke them."
        )
        return BatchCause(indices=(), kind=NONFINITE, samples=samples, replays=0, message=message)
    norms = _batch_norms(model)
    with nothing_changed(model):
        runner = _Runner(step_fn, batch, samples, model, rng_state or RandomState.capture())
        search = Search(runner, samples, most, by_loss=of == "loss", usual=usual, couples=bool(norms))
        return _searched(search, runner, norms)


class _Runner:
    """Runs the step on some samples, each time from the same state."""

    def __init__(
        self, step_fn: Callable[[Any], Any], batch: Any, samples: int, model: nn.Module, state: RandomState
    ) -> None:
        self._step_fn, self._batch, self._samples = step_fn, batch, samples
        self._model, self._state = model, state
        self.draws = False
        """Whether the step drew a random number."""

    def __call__(self, which: Samples) -> Outcome:
        with left_as_found(self._model), undisturbed():
            self._state.restore()
            before = torch.get_rng_state()
            try:
                outcome = self._run(take(self._batch, self._samples, which))
            except InputError:
                raise
            except Exception as problem:
                if len(which) == self._samples:
                    raise  # it is not the batch being cut that the step cannot bear
                outcome = Outcome(raised=f"{type(problem).__name__}: {problem}")
            self.draws |= not torch.equal(before, torch.get_rng_state())
            return outcome

    def _run(self, part: Any) -> Outcome:
        value: float | None = None
        try:
            returned = self._step_fn(part)
            loss = loss_in(returned)
            started = any(parameter.grad is not None for parameter in self._model.parameters())
            if loss is None and not started:
                raise InputError(f"`step_fn` must return the loss as a tensor; got {returned!r:.80}.")
            if loss is not None:
                loss = loss if loss.numel() == 1 else loss.sum()
                value = float(loss.detach())
                if math.isfinite(value) and loss.requires_grad and not started:
                    torch.autograd.backward(loss)
        except StepEnds:
            pass  # the step goes on to its optimizer: the gradients are there
        if value is not None and not math.isfinite(value):
            return Outcome(loss=value)
        table = measure(self._model)
        if not table.names:
            return Outcome(loss=value)
        return Outcome(loss=value, norm=table.total.norm if table.total.finite else math.nan)


def _searched(search: Search, runner: _Runner, norms: Sequence[str]) -> BatchCause:
    everything = tuple(range(search.samples))
    whole = search.run(everything)
    search.random = runner.draws
    kind = NONFINITE if not whole.finite else SPIKE
    measured = whole.loss if search.by_loss else whole.norm
    if kind == SPIKE and measured is None:
        raise InputError("`step_fn` must return a loss that depends on the model: there are no gradients to go by.")
    indices: Samples = ()
    ended = ""
    if kind == SPIKE and search.usual is not None and measured is not None and abs(measured) <= 2 * search.usual:
        kind = NOTHING
    else:
        try:
            indices = search.nonfinite() if kind == NONFINITE else search.spike()
        except OutOfReplays:
            indices = tuple(sorted(search.found))
            ended = f" The search ended after {search.replays} replays (`most_replays`)."
    rest = tuple(each for each in everything if each not in set(indices))
    without = search.known.get(rest) if indices and rest else None
    without = None if without is None or without.raised else without
    return BatchCause(
        indices=indices,
        kind=kind,
        samples=search.samples,
        replays=search.replays,
        message=_message(kind, indices, search, whole, without) + ended,
        coupled=_coupling(search, norms),
        loss=whole.loss,
        norm=whole.norm,
        loss_without=None if without is None else without.loss,
        norm_without=None if without is None else without.norm,
    )


def _message(kind: str, indices: Samples, search: Search, whole: Outcome, without: Outcome | None) -> str:
    who = _named(indices, search.samples)
    one = len(indices) == 1
    it = "it" if one else "them"
    if kind == NOTHING:
        return "The batch is fine in this replay: neither NaN or Inf, nor above twice the usual size."
    if kind == NONFINITE:
        if not indices:
            return f"The step is not finite, and no small set of its {search.samples} samples could be named."
        bad_loss = whole.loss is not None and not math.isfinite(whole.loss)
        what = f"the loss {_word(whole.loss)}" if bad_loss else "the gradients non-finite"
        if len(indices) == search.samples > 1 and not search.mismatch:
            return f"Every sample by itself makes {what}: the model or the loss is to blame, not a sample."
        sound = f"; without {it} the step is finite" if without is not None and without.finite else ""
        return f"{who} {'makes' if one else 'make'} {what}{sound}."
    name = "loss" if search.by_loss else "gradient norm"
    size = whole.loss if search.by_loss else whole.norm
    if not indices:
        return (
            f"No small group of samples makes the {name} of {plain(size or 0.0, 4)}: all {search.samples} "
            "contribute. Look at the learning rate and the weights rather than at the batch."
        )
    left = None if without is None else without.loss if search.by_loss else without.norm
    after = f", {plain(left, 4)} without {it}" if left is not None else ""
    return f"{who} {'makes' if one else 'make'} the spike: {name} {plain(size or 0.0, 4)} with {it}{after}."


def _word(value: float | None) -> str:
    return "NaN" if value is None or math.isnan(value) else "infinite"


def _named(indices: Samples, samples: int) -> str:
    shown = ", ".join(map(str, indices[:_SHOWN]))
    more = f" and {len(indices) - _SHOWN} more" if len(indices) > _SHOWN else ""
    return f"Sample{'' if len(indices) == 1 else 's'} {shown}{more} of {samples}"


def _coupling(search: Search, norms: Sequence[str]) -> str:
    if norms:
        return (
            f"`{norms[0]}` normalises over the batch, so samples depend on each other: each was tried together with "
            f"sound ones. {search.mismatch}"
        ).rstrip()
    return search.mismatch


def _batch_norms(model: nn.Module) -> list[str]:
    """Modules that compute with the statistics of the batch."""
    kinds = nn.modules.batchnorm._BatchNorm
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, kinds) and (module.training or module.running_mean is None)
    ]


def _is_finite(tensor: torch.Tensor) -> bool:
    if tensor.is_meta or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(torch.isfinite(tensor.detach()).all())


def _check(step_fn: Any, model: Any, rng_state: Any) -> None:
    if not callable(step_fn):
        raise InputError(f"`step_fn` must be a function of a batch that returns its loss; got {step_fn!r:.80}.")
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` must be a torch.nn.Module; got {type(model).__name__}.")
    if rng_state is not None and not isinstance(rng_state, RandomState):
        raise InputError(f"`rng_state` must come from `RandomState.capture()`; got {type(rng_state).__name__}.")
