"""The simultaneous gradient of several losses, and products with its Jacobian."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradient_flow.capture.random_state import kept_random_state
from gradient_flow.errors import InputError
from gradient_flow.probes.field.linearization import refuse_once_differentiable

Parameters = Iterable[Tensor] | Tensor | nn.Module | torch.optim.Optimizer
Player = tuple[Callable[[], Tensor], Parameters]
"""A loss, as a function without arguments, and the parameters that lower it, or what has them."""


class GradientField:
    """ξ with its graph, J v and Jᵀ v by differentiating it again."""

    def __init__(self, players: Sequence[Player]) -> None:
        groups = _checked(players)
        self._parameters = [parameter for group in groups for parameter in group]
        self.device = self._parameters[0].device
        self.size = sum(parameter.numel() for parameter in self._parameters)
        with torch.enable_grad(), kept_random_state(self.device), sdpa_kernel(SDPBackend.MATH):
            # Fused attention kernels can be derived once only; the plain formula has every derivative.
            pieces = [
                gradient
                for (loss, _), group in zip(players, groups, strict=True)
                for gradient in self._gradient_of(loss(), group)
            ]
        refuse_once_differentiable(pieces)
        self._field = pieces
        self.gradient = _flat(pieces)
        self._adjoint: tuple[list[Tensor], list[Tensor]] | None = None

    def pull(self, v: Tensor) -> Tensor:
        """Jᵀ v."""
        return _flat(self._grad(self._field, self._parameters, self._split(v)))

    def push(self, v: Tensor) -> Tensor:
        """J v: Jᵀ u is linear in u, and its derivative by u along v is J v."""
        if self._adjoint is None:
            dummies = [torch.zeros_like(piece, requires_grad=True) for piece in self._field]
            with torch.enable_grad():
                self._adjoint = dummies, self._grad(self._field, self._parameters, dummies, create_graph=True)
        dummies, pulled = self._adjoint
        return _flat(self._grad(pulled, dummies, self._split(v)))

    @staticmethod
    def _gradient_of(loss: Any, group: list[Tensor]) -> list[Tensor]:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise InputError(f"Each player's loss function must return one number as a tensor, got {what}.")
        if not loss.requires_grad:
            raise InputError("A player's loss does not depend on any parameter that requires a gradient.")
        gradients = torch.autograd.grad(
            loss.reshape(()), group, create_graph=True, allow_unused=True, materialize_grads=True
        )
        # A constant gradient has no graph; this gives it one with the Jacobian that it has, zero.
        return [g if g.requires_grad else g + 0.0 * parameter for g, parameter in zip(gradients, group, strict=True)]

    @staticmethod
    def _grad(
        outputs: list[Tensor], inputs: list[Tensor], weights: list[Tensor], create_graph: bool = False
    ) -> list[Tensor]:
        connected = [(output, weight) for output, weight in zip(outputs, weights, strict=True) if output.requires_grad]
        if not connected:
            return [torch.zeros_like(x) for x in inputs]
        try:
            found = torch.autograd.grad(
                [output for output, _ in connected],
                inputs,
                [weight for _, weight in connected],
                create_graph=create_graph,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        except RuntimeError as reason:
            if "derivative" not in str(reason) and "differentiable" not in str(reason):
                raise  # such as too little memory
            raise InputError(f"A loss has an operation that cannot be differentiated twice: {reason}") from reason
        return list(found)

    def _split(self, v: Tensor) -> list[Tensor]:
        sizes = [parameter.numel() for parameter in self._parameters]
        return [
            part.reshape(parameter.shape).to(parameter)
            for part, parameter in zip(torch.split(v, sizes), self._parameters, strict=True)
        ]


def _flat(pieces: Sequence[Tensor]) -> Tensor:
    return torch.cat([piece.detach().to(pieces[0].device, torch.float64).flatten() for piece in pieces])


def _parameters_of(source: Parameters) -> list[Tensor]:
    """Each one once, those that are frozen left out."""
    if isinstance(source, torch.optim.Optimizer):
        source = [parameter for group in source.param_groups for parameter in group["params"]]
    elif isinstance(source, nn.Module):
        source = source.parameters()
    elif isinstance(source, Tensor):
        source = [source]
    return list({id(parameter): parameter for parameter in source if parameter.requires_grad}.values())


def _checked(players: Sequence[Player]) -> list[list[Tensor]]:
    if not players:
        raise InputError("`players` must hold at least one (loss function, parameters), got none.")
    groups, owner = [], dict[int, int]()
    for number, player in enumerate(players):
        if not isinstance(player, (tuple, list)) or len(player) != 2 or not callable(player[0]):
            raise InputError(f"Each player must be (loss function, parameters), got {player!r}.")
        group = _parameters_of(player[1])
        if not group:
            raise InputError(f"Player {number} has no parameter that requires a gradient.")
        for parameter in group:
            if owner.setdefault(id(parameter), number) != number:
                raise InputError(f"Players {owner[id(parameter)]} and {number} share a parameter: each needs its own.")
        groups.append(group)
    return groups
