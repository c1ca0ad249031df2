"""Training and evaluation mode of a model, and of each of its submodules, put back as they were."""

from __future__ import annotations

from types import TracebackType

from torch import nn


class ModesKept:
    """Switches a model between training and evaluation; on leaving, every submodule is in the mode it came in.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
    >>> with ModesKept(model) as modes:
    ...     modes.train()
    ...     in_training = model[0].training, model[1].training
    ...     modes.evaluate()
    >>> in_training, model[0].training, model[1].training
    ((True, False), True, False)
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._came_in = [(module, module.training) for module in model.modules()]

    def train(self) -> None:
        """Training mode; in a model that came in training mode, submodules put in evaluation mode stay there."""
        self._model.train()
        if self._came_in[0][1]:
            self._put_back()

    def evaluate(self) -> None:
        """Evaluation mode throughout."""
        self._model.eval()

    def _put_back(self) -> None:
        for module, training in self._came_in:
            # Not module.train(): it would take the submodules along.
            module.training = training

    def __enter__(self) -> ModesKept:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model.train(self._came_in[0][1])
        self._put_back()
