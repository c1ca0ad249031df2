"""The parameters that the rows of a table stand for, also where a row is of gradients that lie on other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from gradient_flow.capture.arrivals import LateNumber, on_device
from gradient_flow.capture.parameters import gradients_of
from gradient_flow.capture.sharding import any_sharded
from gradient_flow.table import GradientTable, measure
from gradient_flow.table.columns import Rows
from gradient_flow.table.measure import measure_found, needs_other_ranks
from gradient_flow.table.rank_names import RankNames

Parameters = Sequence[tuple[str, torch.Tensor]]
_ELSEWHERE: Final = torch.empty(0)
"""Stands for a parameter of another rank: it has no gradient here, so nothing is done to it."""


class SharedParameters(list[tuple[str, torch.Tensor]]):
    """One parameter for each row of a table that ranks made together. Its gradient may be absent on this rank."""

    def __init__(self, table: GradientTable, parameters: Parameters, ranks: RankNames | None) -> None:
        here = {name if ranks is None else ranks.global_name(name): p for name, p in parameters}
        super().__init__((name, here.get(name, _ELSEWHERE)) for name in table.names)
        self.names = table.names
        self._all, self._ranks = list(parameters), ranks

    def measure_again(self, divided_by: float = 1.0) -> Rows:
        """The rows as they are now. All ranks have to ask together."""
        found = gradients_of(self._all)
        if divided_by != 1.0:
            found = found._replace(gradients=[gradient.detach() / divided_by for gradient in found.gradients])
        table = measure_found(found, ranks=self._ranks)
        position = {name: index for index, name in enumerate(table.names)}
        return table.rows[[position[name] for name in self.names]]


def measure_parameters(
    parameters: Parameters, ranks: RankNames | None = None, scale: float | LateNumber = 1.0
) -> tuple[GradientTable, Parameters]:
    """The table of the gradients without a loss scale that is in them, and one parameter for each of its rows."""
    found = gradients_of(parameters)
    alone = ranks is None and not needs_other_ranks(found)
    if alone and isinstance(scale, LateNumber) and found.gradients and all(map(on_device, found.gradients)):
        table = measure_found(found, scale=scale)
    else:
        table = measure_found(found, ranks=ranks).unscaled(float(scale))
    return table, parameters_of_rows(table, parameters, ranks)


def parameters_of_rows(table: GradientTable, parameters: Parameters, ranks: RankNames | None = None) -> Parameters:
    """One parameter for each row of a table of their gradients."""
    if ranks is None and not any_sharded(parameter for _, parameter in parameters):
        by_name = dict(parameters)
        return [(name, by_name[name]) for name in table.names]
    return SharedParameters(table, parameters, ranks)


def rows_now(parameters: Parameters, positions: Sequence[int], divided_by: float = 1.0) -> Rows:
    """The rows of some of these gradients as they are now."""
    if isinstance(parameters, SharedParameters):
        return parameters.measure_again(divided_by)[list(positions)]
    gradients = {str(i): gradient for i in positions if (gradient := parameters[i][1].grad) is not None}
    if divided_by != 1.0:
        gradients = {name: gradient.detach() / divided_by for name, gradient in gradients.items()}
    return measure(gradients).rows
