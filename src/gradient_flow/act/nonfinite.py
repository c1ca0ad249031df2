"""`NaNInfHandler`: finds non-finite gradients and weights and puts numbers in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradient_flow.act.in_place import replace_nonfinite_, replace_nonfinite_gradient_
from gradient_flow.act.row_parameters import measure_parameters
from gradient_flow.capture.parameters import held_parameters
from gradient_flow.config import GradientConfig
from gradient_flow.measurement import GradientTable, measure


class NaNInfHandler:
    """Counts NaN and Inf by layer and replaces them: NaN by `replace_nan_with`, ±Inf by ±`replace_inf_with`.

    >>> import torch
    >>> layer = torch.nn.Linear(1, 1, bias=False)
    >>> layer.weight.grad = torch.tensor([[float("nan")]])
    >>> NaNInfHandler().check_and_fix_gradients(layer)["nan_count"], layer.weight.grad.item()
    (1, 0.0)
    """

    def __init__(self, config: GradientConfig | None = None) -> None:
        self.config = config if config is not None else GradientConfig()
        self.total_replacements = 0

    def check_and_fix_gradients(self, model: Any) -> dict[str, Any]:
        """Replace what is not finite in the gradients of a module, an optimizer or parameters."""
        table, parameters = measure_parameters(held_parameters(model))
        if not table.total.finite:
            self.replace(parameters, table)
        return self.report(table, replaced=True)

    def check_and_fix_parameters(self, model: torch.nn.Module, replace_values: bool = True) -> dict[str, Any]:
        """The same for the weights themselves. Buffers, such as running statistics, are reported, never changed."""
        parameters = held_parameters(model)
        table = measure({name: parameter.detach() for name, parameter in parameters})
        if replace_values and not table.total.finite:
            for (_, parameter), finite in zip(parameters, table.finite, strict=True):
                if not finite:
                    replace_nonfinite_(parameter.detach(), self.config.replace_nan_with, self.config.replace_inf_with)
            self.total_replacements += table.total.nan_count + table.total.inf_count
        return {**self.report(table, replaced=replace_values), "bad_buffers": _bad_buffers(model)}

    def replace(
        self, parameters: Sequence[tuple[str, torch.Tensor]], table: GradientTable, *, by_zero: bool = False
    ) -> None:
        """Replace in the gradients that the table says are not finite, by the settings or by zeros."""
        nan, inf = (0.0, 0.0) if by_zero else (self.config.replace_nan_with, self.config.replace_inf_with)
        for (_, parameter), finite in zip(parameters, table.finite, strict=True):
            if not finite:
                replace_nonfinite_gradient_(parameter, nan, inf)
        self.total_replacements += table.total.nan_count + table.total.inf_count

    def report(self, table: GradientTable, *, replaced: bool) -> dict[str, Any]:
        """Counts in all and by layer, and how many elements were replaced."""
        total = table.total
        found = total.nan_count + total.inf_count
        counts = zip(table.names, table.nan_count.tolist(), table.inf_count.tolist(), strict=True) if found else ()
        return {
            "has_nan_inf": found > 0,
            "nan_count": total.nan_count,
            "inf_count": total.inf_count,
            "total_count": found,
            "replaced": found if replaced else 0,
            "layers": {name: {"nan": nan, "inf": inf} for name, nan, inf in counts if nan or inf},
        }


def _bad_buffers(model: Any) -> dict[str, int]:
    if not isinstance(model, torch.nn.Module):
        return {}
    buffers = {n: b for n, b in model.named_buffers() if b.is_floating_point() or b.is_complex()}
    table = measure(buffers)
    bad = zip(table.names, (table.nan_count + table.inf_count).tolist(), strict=True)
    return {name: count for name, count in bad if count}
