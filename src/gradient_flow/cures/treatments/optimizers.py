"""Treatments of the optimizer: rates, warm-up, clipping, eps, weight decay, another one, what it should hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.cures.patient import DEFAULT_RATE, Patient, Tensors
from gradient_flow.cures.registry import register_treatment
from gradient_flow.cures.treatments.numerics import is_nonfinite
from gradient_flow.diagnosis.advice import TARGET_RATIO, clip_limit
from gradient_flow.diagnosis.network.updates import largest_update
from gradient_flow.diagnosis.treatment import Treatment

_FACTORS: Final = (0.01, 0.1, 10.0)
_ADAM: Final = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)
_SPIKE: Final = 8.0
"""Times the median norm from which a step is a spike."""
_EPS_RULES: Final = 0.1
"""Share of `eps` in the denominator of a step from which it shortens steps noticeably."""
_STRONG_DECAY: Final = 1e-3
"""Share of a weight that decay takes per step; more undoes what a usual step learns."""


def _rates(patient: Patient) -> Iterator[Treatment]:
    factors = list(_FACTORS)
    ratio = largest_update(patient.record)
    if ratio and math.isfinite(ratio):
        by_ratio = TARGET_RATIO / ratio
        if not 0.03 < by_ratio < 30 and patient.rate * by_ratio < 10:  # else one of the fixed factors is as good
            factors.append(10.0 ** round(math.log10(by_ratio)))
    for factor in dict.fromkeys(factors):
        yield Treatment("learning_rate", {"factor": factor, "rate": patient.rate * factor})


@register_treatment("learning_rate", proposed_by=_rates)
def set_rate(_model: nn.Module, optimizer: torch.optim.Optimizer, factor: float, rate: float | None = None) -> None:
    """Multiply the rate of every group: groups keep their proportions. `rate` is for the text."""
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
        if "initial_lr" in group:  # what a schedule starts from
            group["initial_lr"] = group["initial_lr"] * factor


def _warm_up(patient: Patient) -> Iterator[Treatment]:
    yield Treatment("warm_up", {"steps": max(5, patient.steps // 2)})


@register_treatment("warm_up", proposed_by=_warm_up, against=("UNSTABLE", "EXPLODING"))
def warm_up(_model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """The rate rises linearly over `steps`; then the optimizer is left alone."""
    taken = [0]

    def before(stepping: torch.optim.Optimizer, *_: Any) -> None:
        taken[0] += 1
        for group in stepping.param_groups if taken[0] <= steps else ():
            # By a ratio to the step before, so that a schedule of the user's goes on working.
            group["lr"] = group["lr"] * (taken[0] / steps if taken[0] == 1 else taken[0] / (taken[0] - 1))

    optimizer.register_step_pre_hook(before)


def _clips(patient: Patient) -> Iterator[Treatment]:
    norms = [norm for norm in patient.record.norms if math.isfinite(norm) and norm > 0]
    if norms:
        # Half of the steps are clipped: a limit that touches next to none is not worth a trial.
        yield Treatment("clip", {"norm": float(f"{clip_limit(norms, 0.5):.2g}")})
        if median(norms) > 3:
            yield Treatment("clip", {"norm": 1.0})


@register_treatment("clip", proposed_by=_clips, against=("UNSTABLE", "EXPLODING", "NUMERICAL"))
def clip(_model: nn.Module, optimizer: torch.optim.Optimizer, norm: float) -> None:
    """Clip the norm of all gradients before every step."""

    def before(stepping: torch.optim.Optimizer, *_: Any) -> None:
        held = [tensor for group in stepping.param_groups for tensor in group["params"]]
        nn.utils.clip_grad_norm_(held, norm)

    optimizer.register_step_pre_hook(before)


def _spikes(patient: Patient) -> Iterator[Treatment]:
    """Where a few steps stand out far enough that nobody would miss them."""
    norms = [norm for norm in patient.record.norms if math.isfinite(norm) and norm > 0]
    limit = _SPIKE * median(norms) if norms else math.inf
    if any(norm > limit for norm in norms):
        yield Treatment("skip_spikes", {"norm": float(f"{limit:.2g}")})


@register_treatment("skip_spikes", proposed_by=_spikes, against=("UNSTABLE", "EXPLODING"))
def skip_spikes(_model: nn.Module, optimizer: torch.optim.Optimizer, norm: float) -> None:
    """A step whose gradient norm is beyond the limit changes nothing."""

    def before(stepping: torch.optim.Optimizer, *_: Any) -> None:
        held = [tensor for group in stepping.param_groups for tensor in group["params"] if tensor.grad is not None]
        if held and not float(nn.utils.get_total_norm([tensor.grad for tensor in held])) <= norm:
            for tensor in held:
                tensor.grad = None

    optimizer.register_step_pre_hook(before)


def _skips(patient: Patient) -> Iterator[Treatment]:
    if is_nonfinite(patient.record) or patient.record.bad_inputs:
        yield Treatment("skip_nonfinite")


@register_treatment("skip_nonfinite", proposed_by=_skips, against=("NUMERICAL",))
def skip_nonfinite(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A step with NaN or Inf in any gradient changes nothing."""

    def before(stepping: torch.optim.Optimizer, *_: Any) -> None:
        held = [tensor for group in stepping.param_groups for tensor in group["params"] if tensor.grad is not None]
        if not all(bool(tensor.grad.isfinite().all()) for tensor in held):
            for tensor in held:
                tensor.grad = None

    optimizer.register_step_pre_hook(before)


def _eps(patient: Patient) -> Iterator[Treatment]:
    if not isinstance(patient.optimizer, _ADAM):
        return
    eps = float(patient.optimizer.param_groups[0]["eps"])
    count = sum(tensor.numel() for group in patient.optimizer.param_groups for tensor in group["params"])
    norms = [norm for norm in patient.record.norms if math.isfinite(norm) and norm > 0]
    size = median(norms) / math.sqrt(max(count, 1)) if norms else math.nan
    if eps / (size + eps) > _EPS_RULES:  # of a typical element of the gradient
        yield Treatment("eps", {"eps": float(f"{min(eps, size) * 1e-3:.0e}")})


@register_treatment("eps", proposed_by=_eps, against=("SLOW", "OPTIMIZER"))
def set_eps(_model: nn.Module, optimizer: torch.optim.Optimizer, eps: float) -> None:
    """`eps` of every group."""
    for group in optimizer.param_groups:
        group["eps"] = eps


def _decay(patient: Patient) -> Iterator[Treatment]:
    groups = patient.optimizer.param_groups
    if any(group.get("weight_decay", 0) * group.get("lr", 0) > _STRONG_DECAY for group in groups):
        yield Treatment("weight_decay", {"weight_decay": 0.0})


@register_treatment("weight_decay", proposed_by=_decay, against=("OPTIMIZER",))
def set_weight_decay(_model: nn.Module, optimizer: torch.optim.Optimizer, weight_decay: float) -> None:
    """Weight decay of every group."""
    for group in optimizer.param_groups:
        group["weight_decay"] = weight_decay


def _another(patient: Patient) -> Iterator[Treatment]:
    if not isinstance(patient.optimizer, _ADAM) or not 1e-4 <= patient.rate <= 1e-2:
        yield Treatment("optimizer", {"name": "AdamW", "rate": DEFAULT_RATE})


@register_treatment("optimizer", proposed_by=_another, against=("SLOW",))
def another_optimizer(
    _model: nn.Module, optimizer: torch.optim.Optimizer, name: str, rate: float
) -> torch.optim.Optimizer:
    """A new optimizer over the same parameters; groups are kept, their settings are not."""
    groups = [{"params": list(group["params"])} for group in optimizer.param_groups]
    made: torch.optim.Optimizer = getattr(torch.optim, name)(groups, lr=rate)
    return made


def _forgotten(patient: Patient) -> Iterator[Treatment]:
    held = Tensors(tensor for group in patient.optimizer.param_groups for tensor in group["params"])
    reached = {name for layer in patient.record.layers if layer.gradient_seen for name in layer.parameters}
    missing = [
        name
        for name, tensor in patient.model.named_parameters()
        if tensor.requires_grad and tensor not in held and name in reached
    ]
    if missing:
        yield Treatment("add_parameters", {"names": missing})


@register_treatment("add_parameters", proposed_by=_forgotten, against=("DISCONNECTED",))
def add_parameters(model: nn.Module, optimizer: torch.optim.Optimizer, names: list[str]) -> None:
    """One more group with the settings of the first."""
    first = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    optimizer.add_param_group({"params": [model.get_parameter(name) for name in names], **first})
