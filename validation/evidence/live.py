"""Measurements of programs that train: what training does not heal, what goes well, attention however it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.case import Case, Evidence, Proof, Setup, call, costly
from validation.evidence.attention import sharp
from validation.evidence.signal import both, judged, slope_share, trace
from validation.evidence.training import train, worst_dead_share

# --- before and after training


def trained(case: Case) -> Case:
    """The same case, seen when its own optimizer has taken all its steps."""

    def build(seed: int) -> Setup:
        setup = case.build(seed)
        train(setup, setup.steps, setup.optimizer)
        setup.model.zero_grad(set_to_none=True)
        return setup

    return replace(case, build=build)


def lasting(*proofs: Proof) -> Proof:
    """A fault that training does not heal: every measurement holds before the first step and after the last."""

    def proof(case: Case, seed: int) -> Evidence:
        start, end = (both(*proofs)(each, seed) for each in (case, trained(case)))
        return Evidence(start.holds and end.holds, f"{start.text}; trained: {end.text}")

    return costly(proof)


def at_last(*proofs: Proof) -> Proof:
    """A fault that training brings about: every measurement holds after the last step."""
    return costly(lambda case, seed: both(*proofs)(trained(case), seed))


def thrives(
    fall: float = 0.1, most_dead: float = 1 / 3, measure: Callable[[Setup], float] | None = None, idle: str = "-"
) -> Proof:
    """Healthy: under its own optimizer the loss falls, or what `measure` reads; all is finite; every tensor learns.

    ReLU modules may have so many dead units at the end. Parameters under `idle` need no gradient.
    """

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        first = measure(setup) if measure else 1.0
        run = train(setup, setup.steps, setup.optimizer)
        gone = 1 - measure(setup) / first if measure else run.fall()
        dying = worst_dead_share(setup)
        names = {n for n, p in setup.model.named_parameters() if p.requires_grad and not n.startswith(idle)}
        untouched = sorted(names - run.touched)
        holds = run.finite and gone >= fall and not untouched and dying <= most_dead
        text = f"{gone:.0%} of the first loss is gone, finite {run.finite}, up to {dying:.0%} dead"
        return Evidence(holds, text + (f", no gradient in {untouched}" if untouched else ""))

    return costly(proof)


def lags(by: float = 0.1) -> Proof:
    """Each under its own optimizer, the twin has less left of its first loss, by a good part of it."""

    def proof(case: Case, seed: int) -> Evidence:
        left = []
        for each in (case, case.control):
            setup = each.make(seed)
            left.append(1 - train(setup, setup.steps, setup.optimizer).fall())
        return judged(left[0] - left[1] > by, "{:.0%} of the first loss is left, of the twin's {:.0%}", *left)

    return costly(proof)


def breaks(case: Case, seed: int) -> Evidence:
    """At some step of training the loss or a weight stops being finite, though the twin trains to its end."""
    setup, twin = case.make(seed), case.control.make(seed)
    run, sound = (train(each, each.steps, each.optimizer) for each in (setup, twin))
    weights = all(p.isfinite().all() for p in setup.model.parameters())
    text = f"stops after {len(run.losses)} steps, weights finite {weights}, twin finite {sound.finite}"
    return Evidence(not (run.finite and weights) and sound.finite, text)


# --- activations that are functions, not modules


def never_fires(layer: str, at_least: float) -> Proof:
    """What a layer hands to a ReLU is negative for every sample, in so many of its units."""

    def proof(case: Case, seed: int) -> Evidence:
        share = (trace(case.make(seed), 4).outputs[layer] <= 0).all(dim=0).double().mean().item()
        return judged(share >= at_least, "{:.0%} of the units never fire", share)

    return proof


def flat_behind(layer: str, kind: str, at_least: float = 0.6) -> Proof:
    """What a layer hands to an activation lies where that is flat, for most entries."""
    act = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "hardtanh": F.hardtanh}[kind]

    def proof(case: Case, seed: int) -> Evidence:
        share = slope_share(act(trace(case.make(seed)).outputs[layer]), kind)
        return judged(share >= at_least, "{:.0%} saturated", share)

    return proof


# --- attention, however it is written


@dataclass
class Map:
    """Probabilities (…, queries, keys) and how many keys each row may see."""

    p: Tensor
    keys: Tensor

    def entropy(self) -> float:
        """Mean entropy of rows as a share of an even spread over what they see; a row of one key does not count."""
        p = self.p.double()
        h = -(p * p.clamp_min(1e-300).log()).sum(-1)
        return (h / self.keys.log())[self.keys > 1].mean().item()


@contextmanager
def _noting(setup: Setup, note: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Hand every attention score to `note`, with the path of the module that computes it."""
    inside: list[str] = []
    soft, torch_soft, fused = Tensor.softmax, torch.softmax, F.scaled_dot_product_attention

    def method(scores: Tensor, dim: int = -1, *args: Any, **kwargs: Any) -> Tensor:
        note(inside[-1], scores)
        return soft(scores, dim, *args, **kwargs)

    def function(scores: Tensor, dim: int = -1, *args: Any, **kwargs: Any) -> Tensor:
        note(inside[-1], scores)
        return torch_soft(scores, dim, *args, **kwargs)

    def product(q: Tensor, k: Tensor, v: Tensor, attn_mask=None, dropout_p=0.0, is_causal=False, **more: Any) -> Tensor:
        scores = q @ k.transpose(-1, -2) * (more.get("scale") or 1 / math.sqrt(q.shape[-1]))
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
        elif attn_mask is not None:
            bars = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if bars else scores + attn_mask
        note(inside[-1], scores)
        return fused(q, k, v, attn_mask, dropout_p, is_causal, **more)

    with ExitStack() as stack:
        for path, module in setup.model.named_modules():
            for handle in (
                module.register_forward_pre_hook(lambda *_, path=path: inside.append(path)),
                module.register_forward_hook(lambda *_: inside.pop() and None),
            ):
                stack.callback(handle.remove)
        stack.enter_context(patch.object(Tensor, "softmax", method))
        stack.enter_context(patch.object(torch, "softmax", function))
        stack.enter_context(patch.object(F, "scaled_dot_product_attention", product))
        yield


@torch.no_grad()
def attention_of(setup: Setup) -> dict[str, Map]:
    """Attention of one batch by the path of the module that computes it; of a module called twice, the last."""
    maps: dict[str, Map] = {}

    def note(path: str, scores: Tensor) -> None:
        if scores.dim() >= 3:
            seen = scores > -1e8  # what is masked lies at minus infinity or at -1e9
            maps[path] = Map(torch.exp(scores.double().log_softmax(-1)), seen.sum(-1).double())

    with _noting(setup, note):
        call(setup.model, setup.input_fn())
    return maps


def attends_sharply(*paths: str, below: float = 0.12, others_above: float = 0.0) -> Proof:
    """Attention in these modules, or in all, has nearly no entropy left; in the others it has."""

    def proof(case: Case, seed: int) -> Evidence:
        levels = {path: each.entropy() for path, each in attention_of(case.make(seed)).items()}
        return sharp(levels, paths, below, others_above)

    return proof


def heads_agree(*paths: str) -> Proof:
    """All heads of these modules, or of all, look at the same, though not at everything evenly."""

    def proof(case: Case, seed: int) -> Evidence:
        maps = attention_of(case.make(seed))
        chosen = [maps[path] for path in paths or maps]
        difference = max((each.p - each.p[:, :1]).abs().max().item() for each in chosen)
        spread = max(each.entropy() for each in chosen)
        return judged(difference < 1e-4 and spread < 0.95, "heads differ by {:.1e}, entropy {:.2f}", difference, spread)

    return proof
