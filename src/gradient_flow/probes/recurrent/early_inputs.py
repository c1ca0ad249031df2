"""How far back the loss asks a sequence model to remember: whether its gradient varies with inputs of long ago.

A net that forgets shows no trace of early inputs in its own gradients. What the loss still asks of the output, its
gradient there, does: it varies from sample to sample with whatever the net has not learnt yet. Where that goes with
an early input and hardly with the last ones, the task reaches back that far.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.capture.block_outputs import main_tensor
from gradient_flow.capture.compiled import breaks_graph
from gradient_flow.capture.module_calls import aside, tensors_in
from gradient_flow.capture.module_stack import ModuleHook
from gradient_flow.probes.recurrent.stats import EarlyInputs

FEWEST_STEPS: Final = 8
_TIMES: Final = 8
_FEATURES: Final = 32
_OUTPUTS: Final = 16
_MOST_ROWS: Final = 4096
_FEWEST_ROWS: Final = 64


class EarlyDependence:
    """Collects a few numbers per sample: inputs at some early and late times, and the loss's gradient at the output."""

    def __init__(self) -> None:
        self.listening = True
        self._gradient: torch.Tensor | None = None
        self._handles: list[Any] = []
        self._rows: dict[int, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = {}

    def attach(self, model: nn.Module) -> None:
        """Put a hook on the whole model."""
        if not isinstance(model, torch.jit.ScriptModule):  # those take no Python hooks
            self._handles.append(model.register_forward_hook(ModuleHook(model, self._saw_call)))

    def detach(self) -> None:
        """Take every hook away."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._gradient = [], None

    @breaks_graph
    def _saw_call(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if self.listening and self._handles and torch._C._current_graph_task_id() == -1:
            with aside():
                self.saw(output)

    def saw(self, output: Any) -> None:
        """Wait for the gradient of what the model returned."""
        made, self._gradient = main_tensor(output), None
        del self._handles[1:]  # those of the last step went with its graph
        # With an output at every step early inputs have a loss of their own.
        if isinstance(made, torch.Tensor) and made.requires_grad and made.dim() in (1, 2):
            self._handles.append(made.register_hook(self._keep))  # type: ignore[no-untyped-call]

    def _keep(self, gradient: torch.Tensor) -> None:
        self._gradient = gradient.detach()

    def add(self, inputs: Any) -> None:
        """The batch of a step, after backward."""
        gradient, self._gradient = self._gradient, None
        known = sum(len(rows[0]) for kept in self._rows.values() for rows in kept)
        if gradient is None or known >= _MOST_ROWS or not gradient.is_floating_point():
            return
        series = _series(inputs, len(gradient))
        if series is None or series.shape[1] < FEWEST_STEPS:
            return
        wanted = gradient.flatten(1) if gradient.dim() > 1 else gradient[:, None]
        wanted = wanted[:, :_OUTPUTS].float().cpu()
        # Directions alone: a confident batch would outweigh all others.
        wanted = wanted / wanted.norm(dim=1, keepdim=True).mean().clamp_min(1e-30)
        steps = series.shape[1]
        early = series[:, :: max(1, steps // 2 // _TIMES)][:, : min(_TIMES, steps // 2)]
        again = any(torch.equal(early, rows[0]) for rows in self._rows.get(steps, [])[-1:])
        # The same batch once more tells nothing new, and would look like more samples.
        if not again and bool(torch.isfinite(wanted).all()) and bool(torch.isfinite(series).all()):
            self._rows.setdefault(steps, []).append((early, series[:, -max(1, steps // 4) :], wanted))

    def result(self) -> EarlyInputs | None:
        """Over the length of which most samples were seen; None where there are too few."""
        if not self._rows:
            return None
        steps, kept = max(self._rows.items(), key=lambda item: sum(len(rows[0]) for rows in item[1]))
        early, late, wanted = (torch.cat([rows[part] for rows in kept]) for part in range(3))
        if len(wanted) < _FEWEST_ROWS:
            return None
        by_time = _correlation(early, wanted)
        at = int(by_time.argmax())
        stride = max(1, steps // 2 // _TIMES)
        return EarlyInputs(
            lag=steps - at * stride, early=float(by_time[at]), late=float(_correlation(late, wanted).max())
        )


def _correlation(series: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Largest correlation at each time, in standard errors; (times,)."""
    x = series.double() - series.double().mean(dim=0)
    g = wanted.double() - wanted.double().mean(dim=0)
    x = x / x.norm(dim=0).clamp_min(1e-12)
    g = g / g.norm(dim=0).clamp_min(1e-12)
    correlations = torch.einsum("ntf,nc->tfc", x, g).abs()
    errors: torch.Tensor = correlations.flatten(1).amax(dim=1) * math.sqrt(len(wanted))
    return errors


def _series(inputs: Any, batch: int) -> torch.Tensor | None:
    """The batch as (samples, steps, features); words one column each, or a few to a column."""
    given = next((tensor.detach() for tensor in tensors_in(inputs) if tensor.dim() in (2, 3)), None)
    if given is None or batch not in given.shape[:2] or given.is_complex():
        return None
    if given.shape[0] != batch:
        given = given.transpose(0, 1)
    if given.dim() == 2:
        if given.is_floating_point():
            return given[:, :, None].float().cpu() if given.shape[1] >= FEWEST_STEPS else None
        return nn.functional.one_hot(given.long() % _FEATURES, _FEATURES).float().cpu()
    return given[:, :, :_FEATURES].float().cpu()
