"""Independent measurements for attention, recurrence, policies and games."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, call, costly
from validation.evidence import judged
from validation.evidence_training import adam, train
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


def attention_maps(setup: Setup) -> dict[str, Tensor]:
    """Probabilities of every attention module on one batch."""
    maps: dict[str, Tensor] = {}

    def watch(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> None:
            maps[path] = _scores(module, args, kwargs)

        return hook

    kinds = (Attention, nn.MultiheadAttention)
    found = [(path, m) for path, m in setup.model.named_modules() if isinstance(m, kinds)]
    handles = [m.register_forward_hook(watch(path), with_kwargs=True) for path, m in found]
    with torch.no_grad():
        call(setup.model, setup.input_fn())
    for handle in handles:
        handle.remove()
    return maps


def entropy(p: Tensor) -> float:
    """Mean entropy of rows as a share of that of an even spread over the keys they may see; one key does not count."""
    keys = (p > 0).sum(-1).double() if (p == 0).any() else torch.full(p.shape[:-1], p.shape[-1]).double()
    h = -(p.double() * p.double().clamp_min(1e-300).log()).sum(-1)
    return (h / keys.log())[keys > 1].mean().item()


def causal_entropy(p: Tensor) -> float:
    """The same for causal attention, where row i sees i + 1 keys even if some probabilities underflow."""
    h = -(p.double() * p.double().clamp_min(1e-300).log()).sum(-1)[..., 1:]
    return (h / torch.arange(2, p.shape[-1] + 1).double().log()).mean().item()


def sharp_attention(*paths: str, below: float = 0.12, others_above: float = 0.0) -> Proof:
    """Attention in these modules, or in all, has nearly no entropy left; in the others it has."""

    def proof(case: Case, seed: int) -> Evidence:
        maps = attention_maps(case.make(seed))
        causal = any(not p[..., 0, 1:].any() for p in maps.values())
        levels = {path: (causal_entropy if causal else entropy)(p) for path, p in maps.items()}
        chosen = paths or tuple(levels)
        highest = max(levels[path] for path in chosen)
        lowest = min((v for path, v in levels.items() if path not in chosen), default=1.0)
        text = "entropy up to {:.3f} there, from {:.2f} elsewhere"
        return judged(highest < below and lowest > others_above, text, highest, lowest)

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


def tokens_alike(path: str, below: float = 0.05) -> Proof:
    """Behind a module the tokens of a sequence are nearly the same vector."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        kept: list[Tensor] = []
        handle = setup.model.get_submodule(path).register_forward_hook(lambda _m, _i, output: kept.append(output))
        with torch.no_grad():
            call(setup.model, setup.input_fn())
        handle.remove()
        x = kept[0].double()
        rest = ((x - x.mean(1, keepdim=True)).norm() / x.norm()).item()
        return judged(rest < below, "share of the tokens that is not common to all {:.1e}", rest)

    return proof


def time_ratio(*, below: float = 0, above: float = 0) -> Proof:
    """Compare the gradient of the loss with respect to the first input of a sequence with that to the last."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        x = setup.input_fn().requires_grad_()
        setup.loss_fn(setup.model(x)).backward()
        first, last = (x.grad[:, t].double().norm().item() for t in (0, -1))
        ratio = first / last if last else math.nan
        return judged(ratio < below if below else ratio > above, "gradient to the first / last input {:.1e}", ratio)

    return proof


def learns_lag(steps: int = 60, lr: float = 3e-3, fall: float = 0.3) -> Proof:
    """Healthy twin of a memory task: the loss falls."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        run = train(setup, steps, adam(setup, lr))
        return judged(run.finite and run.fall() > fall, "loss falls by {:.0%}", run.fall())

    return costly(proof)


def policy_entropy(setup: Setup) -> tuple[float, float | None]:
    """Share of the largest entropy of a discrete policy, mean standard deviation of a continuous one."""
    with torch.no_grad():
        logits, std, _mean, _value = setup.kwargs["action_extractor"](call(setup.model, setup.input_fn()))
    share = math.nan if logits is None else entropy(logits.softmax(-1))
    return share, None if std is None else std.mean().item()


def explores(low: float, high: float, worst_loss: float | None = None) -> Proof:
    """The policy's entropy share or standard deviation lies in a range; a sick one also earns too little."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        share, std = policy_entropy(setup)
        value = share if std is None else std
        with torch.no_grad():
            loss = setup.loss_fn(call(setup.model, setup.input_fn())).item()
        holds = low <= value <= high and (worst_loss is None or loss >= worst_loss)
        return judged(holds, "entropy share or deviation {:.3g}, loss {:.2f}", value, loss)

    return proof


def stays_even(steps: int, above: float = 0.98) -> Proof:
    """Trained for a while, the policy is still as good as even."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        train(setup, steps, adam(setup, 1e-3))
        share, _ = policy_entropy(setup)
        return judged(share > above, "entropy share {:.5f} after training", share)

    return costly(proof)


def play(setup: Setup, steps: int = 390, lr: float = 0.1) -> list[float]:
    """Let all players descend at once; the mean norm of the field over each third of the time."""
    players = setup.kwargs["players"]
    norms = []
    for _ in range(steps):
        output = call(setup.model, setup.input_fn())
        field = [torch.autograd.grad(loss(output), params, retain_graph=True) for loss, params in players]
        norms.append(math.sqrt(sum(g.double().square().sum().item() for part in field for g in part)))
        with torch.no_grad():
            for (_, params), part in zip(players, field, strict=True):
                for parameter, gradient in zip(params, part, strict=True):
                    parameter -= lr * gradient
    third = steps // 3
    return [sum(norms[i * third : (i + 1) * third]) / third for i in range(3)]


def circles(case: Case, seed: int) -> Evidence:
    """Simultaneous descent does not get nearer to rest."""
    thirds = play(case.make(seed))
    return judged(thirds[2] > 0.9 * thirds[1], "field over three thirds of the time {:.2f} {:.2f} {:.2f}", *thirds)


def settles(case: Case, seed: int) -> Evidence:
    """Simultaneous descent comes to rest."""
    thirds = play(case.make(seed))
    return judged(thirds[2] < 0.3 * thirds[0], "field over three thirds of the time {:.2f} {:.2f} {:.2f}", *thirds)
