"""`Patient`: the model that is sick, with all that a treatment may be planned from, and how an arm borrows it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from gradient_flow.analysis.recording import analysis_run
from gradient_flow.analysis.steps import run_steps
from gradient_flow.capture.model_state import left_as_found
from gradient_flow.capture.module_stack import ModuleHook
from gradient_flow.cures.batches import KeptBatches, buffers_kept, seed_all
from gradient_flow.cures.registry import do
from gradient_flow.diagnosis.issue import Issue
from gradient_flow.diagnosis.network.record import DEFAULTS, AnalysisRecord
from gradient_flow.diagnosis.treatment import Treatment
from gradient_flow.diagnosis.verdict import NETWORK, verdict
from gradient_flow.looks.found import found_by
from gradient_flow.looks.probe import Probe
from gradient_flow.record.plain import to_plain

DEFAULT_RATE: Final = 1e-3
"""Of the Adam that trains where the user gives no optimizer."""
NORMS: Final = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase, nn.LocalResponseNorm, nn.RMSNorm)
CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BY_FACTORS: Final = ("rescale", "scale_recurrent", "scale_queries")
_HOOKS: Final = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks"),
)


@dataclass
class Patient:
    """A model with its batches; what was found before any treatment."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    """The user's, which is never stepped."""
    batches: KeptBatches
    training: list[int]
    """Which of the batches arms train on; `held_out` are those that none does."""
    held_out: list[int]
    fresh: bool
    seed: int
    steps: int
    """Length of a full trial."""
    record: AnalysisRecord = field(default_factory=lambda: AnalysisRecord(steps=0))
    """What an examination saw before any treatment."""
    issues: list[Issue] = field(default_factory=list)
    rms: dict[str, float] = field(default_factory=dict)
    """Root mean square of what each layer with weights returns, by path."""

    @property
    def rate(self) -> float:
        """Learning rate of the first group."""
        return float(self.optimizer.param_groups[0].get("lr", math.nan))

    @contextmanager
    def treated(self, treatment: Treatment | None) -> Iterator[torch.optim.Optimizer]:
        """The model under a treatment, with an optimizer of its own; afterwards everything is as it was."""
        with left_as_found(self.model), hooks_kept(self.model), others_kept(self.model, self.optimizer):
            optimizer = own_optimizer(self.optimizer, self.model)
            seed_all(self.seed)
            yield optimizer if treatment is None else do(treatment, self.model, optimizer)

    def held_out_loss(self) -> float:
        """Mean loss on held-out batches; infinite where it is not finite."""
        losses = []
        with torch.no_grad(), buffers_kept(self.model):
            for at in self.held_out:
                seed_all(self.seed + at)
                losses.append(self.batches.loss(self.model, at))
            mean = float(torch.stack([loss.detach().double().cpu() for loss in losses]).mean())
        return mean if math.isfinite(mean) else math.inf

    def examine(self, optimizer: torch.optim.Optimizer, steps: int) -> tuple[list[Issue], AnalysisRecord]:
        """Issues of the model as it stands, from a few steps of the optimizer; what was seen in them."""
        order = iter(self.training * (1 + steps // len(self.training)))
        seed_all(self.seed)
        name, make_probe = _probe_for(self.model)
        record, probe = run_steps(
            self.model,
            lambda: self.batches.batch(next(order)),
            self.batches.loss_fn,
            steps=steps,
            optimizer=optimizer,
            in_place=True,
            thresholds=DEFAULTS,
            make_probe=make_probe,
        )
        seen = {NETWORK: to_plain(record)}
        found = None if probe is None else probe.result()
        if found is not None:
            seen[name] = found_by(found)
        return list(verdict(analysis_run(record, seen))), record

    def note_outputs(self) -> None:
        """Measure what each layer returns for one held-out batch."""
        rms: dict[str, float] = {}

        def note(path: str) -> Callable[..., None]:
            def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
                if isinstance(output, torch.Tensor) and output.is_floating_point():
                    rms[path] = float(output.detach().double().square().mean().sqrt())

            return hook

        with hooks_kept(self.model), torch.no_grad(), buffers_kept(self.model):
            for path, module in self.model.named_modules():
                if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
                    module.register_forward_hook(note(path))
            seed_all(self.seed)
            self.batches.loss(self.model, self.held_out[0])
        self.rms = rms

    def layers(self) -> dict[str, nn.Module]:
        """Linear and convolutional layers in the order in which they ran, whose weights a treatment may change."""
        wrong = untouchable(self.model)
        return {
            path: module
            for path in self.rms
            # A parametrized weight is no parameter: reading it gives a tensor that is computed anew.
            if isinstance(weight := (module := self.model.get_submodule(path)).weight, nn.Parameter)
            and weight not in wrong
        }

    def may_be_done(self, treatment: Treatment) -> bool:
        """Whether all weights that it overwrites are plain ones."""
        named = treatment.settings.get("factors" if treatment.kind in _BY_FACTORS else "layers", ())
        if treatment.kind in ("rescale", "reinitialise"):
            layers = self.layers()
            return all(path in layers for path in named)
        wrong = untouchable(self.model)
        if treatment.kind in _BY_FACTORS:
            return not any(self.model.get_parameter(name) in wrong for name in named)
        modules = [self.model.get_submodule(path) for path in named] if treatment.kind == "forget_gate" else []
        return not any(tensor in wrong for module in modules for tensor in module.parameters())


class Tensors:
    """A set of tensors by identity."""

    def __init__(self, tensors: Any = ()) -> None:
        self._ids = {id(tensor) for tensor in tensors}

    def __contains__(self, tensor: Any) -> bool:
        return id(tensor) in self._ids


def untouchable(model: nn.Module) -> Tensors:
    """Weights that a treatment of weights must not change: frozen, tied, parametrized, LoRA and its base, lazy."""
    found: list[torch.Tensor] = []
    seen: set[tuple[int, str]] = set()
    # The module that adapters hang on, with the weights that they adapt.
    adapted = [
        path
        for path, module in model.named_modules()
        if any("lora" in name.lower() for name in (*module._parameters, *module._modules))
    ]
    for path, module in model.named_modules(remove_duplicate=False):
        lora = any(f"{path}.".startswith(f"{each}." if each else "") for each in adapted)
        computed = parametrize.is_parametrized(module) or hasattr(module, "weight_g")
        for tensor in module._parameters.values():
            if tensor is None:
                continue
            tied = (id(tensor), path) not in seen and any(key[0] == id(tensor) for key in seen)
            seen.add((id(tensor), path))
            if lora or computed or tied or is_lazy(tensor) or not (tensor.requires_grad and tensor.is_floating_point()):
                found.append(tensor)
    return Tensors(found)


def _probe_for(model: nn.Module) -> tuple[str, Callable[[nn.Module], Probe] | None]:
    """The special probe that fits the model: of recurrence, or of attention."""
    from gradient_flow.probes.attention.probe import AttentionProbe
    from gradient_flow.probes.recurrent.probe import RecurrentProbe

    if any(isinstance(module, (nn.RNNBase, nn.RNNCellBase)) for module in model.modules()):
        return "recurrent", RecurrentProbe
    attends = any(
        "att" in path.lower() or isinstance(module, nn.MultiheadAttention) for path, module in model.named_modules()
    )
    return ("attention", AttentionProbe) if attends else ("", None)


def own_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """A copy with a state of its own over the same parameters, without the hooks that users hang on theirs."""
    held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    return copy.deepcopy(optimizer, {id(tensor): tensor for tensor in (*held, *model.parameters())})


def default_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Adam over everything that is trained."""
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=DEFAULT_RATE)


@contextmanager
def hooks_kept(model: nn.Module) -> Iterator[None]:
    """Every module has afterwards the hooks that it had."""
    kept = [
        (held, dict(held))
        for module in model.modules()
        for name in _HOOKS
        if isinstance(held := vars(module).get(name), dict)
    ]
    try:
        yield
    finally:
        for held, before in kept:
            if held.keys() != before.keys():
                held.clear()
                held.update(before)


@contextmanager
def unwatched(model: nn.Module) -> Iterator[None]:
    """A look that is due in the training keeps its hooks on the model: they must not see what is done in here."""
    with hooks_kept(model):
        for module in model.modules():
            for held in (vars(module).get(name) or {} for name in ("_forward_hooks", "_forward_pre_hooks")):
                for key in [key for key, hook in held.items() if isinstance(hook, ModuleHook)]:
                    del held[key]
        yield


@contextmanager
def others_kept(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Parameters that the optimizer holds beside the model's, such as those of a loss, are afterwards as they were."""
    own = Tensors(model.parameters())
    others = [tensor for group in optimizer.param_groups for tensor in group["params"] if tensor not in own]
    kept = [(tensor, tensor.detach().clone(), tensor.grad) for tensor in others]
    try:
        yield
    finally:
        for tensor, values, gradient in kept:
            tensor.data.copy_(values)
            tensor.grad = gradient
