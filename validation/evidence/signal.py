"""Measurements by hooks: outputs and gradients of modules on a few batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, call, costly, layers_of


@dataclass
class Trace:
    """Outputs of modules and the loss's gradients with respect to them, over some batches, as (samples, features)."""

    outputs: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)


def first_tensor(output: Any) -> Tensor | None:
    """Take the tensor of a module's output, the first of several."""
    if isinstance(output, (tuple, list)):
        output = output[0] if output else None
    return output if isinstance(output, Tensor) else None


def rows(tensors: Iterable[Tensor]) -> Tensor:
    """Stack batches to (samples, features) in float64."""
    return torch.cat([t.detach().double().reshape(len(t), -1) if t.dim() else t.reshape(1, 1) for t in tensors])


@contextmanager
def watching(modules: Iterable[tuple[str, nn.Module]], look: Callable[..., None], **options: Any) -> Iterator[None]:
    """Call `look` with the path of a module, then what its forward hook is given."""
    handles = [module.register_forward_hook(partial(look, path), **options) for path, module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def trace(setup: Setup, batches: int = 2) -> Trace:
    """Run some batches forward and backward without changing the weights, looking at every module."""
    outputs: dict[str, list[Tensor]] = {}
    gradients: dict[str, list[Tensor]] = {}
    losses = []

    def keep(path: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is None or tensor.dim() == 0 or not tensor.is_floating_point():
            return
        outputs.setdefault(path, []).append(tensor)
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: gradients.setdefault(path, []).append(gradient))

    with watching([(path, module) for path, module in setup.model.named_modules() if path], keep):
        for _ in range(batches):
            loss = setup.loss_fn(call(setup.model, setup.input_fn()))
            losses.append(loss.item())
            if loss.requires_grad:
                loss.backward()
    setup.model.zero_grad()
    return Trace({k: rows(v) for k, v in outputs.items()}, {k: rows(v) for k, v in gradients.items()}, losses)


@torch.no_grad()
def output_of(setup: Setup, path: str) -> Tensor:
    """What a module hands on for one batch, in its own shape."""
    kept: list[Tensor] = []
    with watching([(path, setup.model.get_submodule(path))], lambda *seen: kept.append(first_tensor(seen[-1]))):
        call(setup.model, setup.input_fn())
    return kept[0].double()


def size(tensor: Tensor | None) -> float:
    """Mean norm over samples; zero for what never came."""
    return 0.0 if tensor is None else tensor.norm(dim=1).mean().item()


def weighted(setup: Setup) -> list[str]:
    """Paths of the layers in order."""
    return [layer[0] for layer in layers_of(setup.model)]


def judged(holds: bool, text: str, *values: float) -> Evidence:
    """Fill the numbers into the text."""
    return Evidence(bool(holds), text.format(*values))


def gradient_ratio(first: str | None = None, last: str | None = None, *, below: float = 0, above: float = 0) -> Proof:
    """Compare the activation gradient early in the model with that late in it (by default at its last hidden layer)."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        paths = weighted(setup)
        gradients = trace(setup).gradients
        early, late = size(gradients.get(first or paths[0])), size(gradients.get(last or paths[-2]))
        ratio = early / late if late else math.nan
        holds = ratio < below if below else ratio > above
        return judged(holds, "activation gradient early / late {:.1e}", ratio)

    return proof


def activation_growth(above: float) -> Proof:
    """The output of the last layer is far larger than that of the first."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        paths = weighted(setup)
        outputs = trace(setup).outputs
        ratio = size(outputs[paths[-1]]) / size(outputs[paths[0]])
        return judged(ratio > above, "output late / early {:.1e}", ratio)

    return proof


def both(*proofs: Proof) -> Proof:
    """Every one of several measurements must hold."""

    def proof(case: Case, seed: int) -> Evidence:
        found = [each(case, seed) for each in proofs]
        return Evidence(all(one.holds for one in found), "; ".join(one.text for one in found))

    return costly(proof) if any(getattr(each, "costly", False) for each in proofs) else proof


def share_dead(outputs: Tensor) -> float:
    """Share of features that are zero on every sample."""
    return (outputs == 0).all(dim=0).double().mean().item()


def dead(activation: str, at_least: float, batches: int = 4) -> Proof:
    """So many units of an activation are zero for every sample."""

    def proof(case: Case, seed: int) -> Evidence:
        share = share_dead(trace(case.make(seed), batches).outputs[activation])
        return judged(share >= at_least, "{:.0%} of the units never fire", share)

    return proof


def no_gradient(*modules: str, batches: int = 3) -> Proof:
    """The parameters of these modules get no gradient, or exactly zero, on any batch."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        largest = 0.0
        for _ in range(batches):
            loss = setup.loss_fn(call(setup.model, setup.input_fn()))
            if loss.requires_grad:
                loss.backward()
        for name, parameter in setup.model.named_parameters():
            if any(name == path or name.startswith(f"{path}.") for path in modules) and parameter.grad is not None:
                largest = max(largest, parameter.grad.abs().max().item())
        return judged(largest == 0, "largest gradient there {:.1e}", largest)

    return proof


def not_finite(batches: int = 12, forward: bool | None = None) -> Proof:
    """A gradient or the loss becomes NaN or infinite; `forward=False` asks for a finite loss with bad gradients."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        loss_bad = gradient_bad = False
        for _ in range(batches):
            setup.model.zero_grad()
            loss = setup.loss_fn(call(setup.model, setup.input_fn()))
            loss.backward()
            loss_bad |= not loss.isfinite().item()
            gradient_bad |= any(not p.grad.isfinite().all() for p in setup.model.parameters() if p.grad is not None)
        holds = gradient_bad and (forward is None or loss_bad == forward)
        return Evidence(holds, f"loss bad {loss_bad}, gradients bad {gradient_bad}")

    return proof


def slope_share(output: Tensor, kind: str) -> float:
    """Share of entries where the activation's slope is below a twentieth of its largest."""
    slopes = {
        "tanh": lambda h: 1 - h * h,
        "sigmoid": lambda h: 4 * h * (1 - h),
        "relu6": lambda h: ((h > 0) & (h < 6)).double(),
        "hardtanh": lambda h: (h.abs() < 1).double(),
        "softsign": lambda h: (1 - h.abs()) ** 2,
    }
    return (slopes[kind](output) < 0.05).double().mean().item()


def saturated(activation: str, kind: str, at_least: float = 0.6) -> Proof:
    """Most entries of an activation sit where it is flat."""

    def proof(case: Case, seed: int) -> Evidence:
        share = slope_share(trace(case.make(seed)).outputs[activation], kind)
        return judged(share >= at_least, "{:.0%} saturated", share)

    return proof


def effective_rank(x: Tensor) -> float:
    """exp of the entropy of the normalised squared singular values."""
    p = torch.linalg.svdvals(x) ** 2
    p = p / p.sum().clamp_min(1e-300)
    return math.exp(-(p * p.clamp_min(1e-300).log()).sum().item())


def rank_at_most(path: str, limit: float, batches: int = 2) -> Proof:
    """What a module hands on has a low effective rank."""

    def proof(case: Case, seed: int) -> Evidence:
        output = trace(case.make(seed), batches).outputs[path]
        rank = effective_rank(output - output.mean(dim=0))
        return judged(rank <= limit, "effective rank {:.2f}", rank)

    return proof


def channel_rank(path: str, limit: float) -> Proof:
    """What a convolution hands on has a low effective rank over its channels, taken at every place."""

    def proof(case: Case, seed: int) -> Evidence:
        states = output_of(case.make(seed), path).transpose(0, 1).flatten(1).T
        rank = effective_rank(states - states.mean(dim=0))
        return judged(rank <= limit, "effective rank over channels {:.2f}", rank)

    return proof


def equal_units(parameter: str) -> Proof:
    """The gradient of a weight matrix is the same for every unit, up to its sign and rounding."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        setup.loss_fn(call(setup.model, setup.input_fn())).backward()
        gradient = dict(setup.model.named_parameters())[parameter].grad.flatten(1)
        spread = ((gradient - gradient.mean(dim=0)).norm() / gradient.norm().clamp_min(1e-30)).item()
        return judged(spread < 1e-3, "gradient differs between units by {:.1e}", spread)

    return proof
