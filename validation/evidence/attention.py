"""Measurements of attention, computed anew from what goes in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, call
from validation.evidence.signal import judged, output_of, watching
from validation.nets import Attention


def _scores(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Attention probabilities (batch, heads, queries, keys), computed anew from the inputs."""
    x = args[0]
    if isinstance(module, Attention):
        memory = x if len(args) < 2 or args[1] is None else args[1]
        q, k, causal = module.split(module.query(x)), module.split(module.key(memory)), module.causal
    else:
        q, k, _ = F.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, dim=-1)
        q, k = (t.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for t in (q, k))
        causal = kwargs.get("attn_mask") is not None
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    return scores.softmax(-1)


@torch.no_grad()
def attention_maps(setup: Setup) -> dict[str, Tensor]:
    """Probabilities of every attention module on one batch."""
    maps: dict[str, Tensor] = {}

    def keep(path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> None:
        maps[path] = _scores(module, args, kwargs)

    kinds = (Attention, nn.MultiheadAttention)
    found = [(path, module) for path, module in setup.model.named_modules() if isinstance(module, kinds)]
    with watching(found, keep, with_kwargs=True):
        call(setup.model, setup.input_fn())
    return maps


@torch.no_grad()
def largest_at(
    modules: Iterable[nn.Module], read: Callable[[Any, Tensor], float], model: nn.Module, x: Tensor
) -> float:
    """The largest of what `read` finds at some modules, which it gets with their inputs as the model is called."""
    seen: list[float] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(read(module, inputs[0]))

    handles = [module.register_forward_pre_hook(look) for module in modules]
    model(x)
    for handle in handles:
        handle.remove()
    return max(seen)


def entropy(p: Tensor) -> float:
    """Mean entropy of rows as a share of that of an even spread over the keys they may see; one key does not count."""
    keys = (p > 0).sum(-1).double() if (p == 0).any() else torch.full(p.shape[:-1], p.shape[-1]).double()
    h = -(p.double() * p.double().clamp_min(1e-300).log()).sum(-1)
    return (h / keys.log())[keys > 1].mean().item()


def causal_entropy(p: Tensor) -> float:
    """The same for causal attention, where row i sees i + 1 keys even if some probabilities underflow."""
    h = -(p.double() * p.double().clamp_min(1e-300).log()).sum(-1)[..., 1:]
    return (h / torch.arange(2, p.shape[-1] + 1).double().log()).mean().item()


def sharp(levels: dict[str, float], paths: tuple[str, ...], below: float, others_above: float) -> Evidence:
    """Whether the entropy of these modules, or of all, is low, and that of the others is not."""
    chosen = paths or tuple(levels)
    highest = max(levels[path] for path in chosen)
    lowest = min((v for path, v in levels.items() if path not in chosen), default=1.0)
    text = "entropy up to {:.3f} there, from {:.2f} elsewhere"
    return judged(highest < below and lowest > others_above, text, highest, lowest)


def sharp_attention(*paths: str, below: float = 0.12, others_above: float = 0.0) -> Proof:
    """Attention in these modules, or in all, has nearly no entropy left; in the others it has."""

    def proof(case: Case, seed: int) -> Evidence:
        maps = attention_maps(case.make(seed))
        causal = any(not p[..., 0, 1:].any() for p in maps.values())
        levels = {path: (causal_entropy if causal else entropy)(p) for path, p in maps.items()}
        return sharp(levels, paths, below, others_above)

    return proof


def equal_heads(*paths: str) -> Proof:
    """All heads of these modules look alike, though not at everything evenly."""

    def proof(case: Case, seed: int) -> Evidence:
        maps = attention_maps(case.make(seed))
        chosen = paths or tuple(maps)
        difference = max((maps[path] - maps[path][:, :1]).abs().max().item() for path in chosen)
        spread = max(entropy(maps[path]) for path in chosen)
        return judged(difference < 1e-5 and spread < 0.95, "heads differ by {:.1e}, entropy {:.2f}", difference, spread)

    return proof


def heads_differ(case: Case, seed: int) -> Evidence:
    """Attention is not even, and heads look at different things."""
    maps = attention_maps(case.make(seed))
    apart = min((p[:, 1:] - p[:, :1]).abs().mean().item() for p in maps.values())
    level = max(entropy(p) for p in maps.values())
    return judged(
        apart > 0.01 and level < 0.97, "heads differ by {:.3f} on average, entropy up to {:.2f}", apart, level
    )


def tokens_alike(path: str, below: float = 0.05) -> Proof:
    """Behind a module the tokens of a sequence are nearly the same vector."""

    def proof(case: Case, seed: int) -> Evidence:
        x = output_of(case.make(seed), path)
        rest = ((x - x.mean(1, keepdim=True)).norm() / x.norm()).item()
        return judged(rest < below, "share of the tokens that is not common to all {:.1e}", rest)

    return proof
