"""Treatment of a graph that is cut: what `detach` or `no_grad` took out of it is put back, line by line."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gradient_flow.cures.batches import buffers_kept, seed_all
from gradient_flow.cures.patient import Patient
from gradient_flow.cures.registry import register_treatment
from gradient_flow.diagnosis.treatment import Treatment

_DETACH: Final = (torch.Tensor.detach, torch.Tensor.detach_, torch.detach, torch.Tensor.data.__get__)  # type: ignore[attr-defined]
_GRAD_MODE: Final = torch._C._set_grad_enabled
_NOT_USERS: Final = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
_MOST_LINES: Final = 3
"""Of more lines than this nobody can say which one is the mistake."""

Line = tuple[str, int]


class _Seen(TorchFunctionMode):
    """Notes the lines of the user's that cut the graph; with `healed` those lines do not cut it."""

    def __init__(self, healed: frozenset[Line] = frozenset()) -> None:
        super().__init__()
        self.healed, self.lines = healed, dict[Line, None]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every function of torch that the model calls."""
        cut = func in _DETACH and args[0].grad_fn is not None
        if cut or (func is _GRAD_MODE and args[0] is False and torch.is_grad_enabled()):
            line = _users_line()
            if line in self.healed:
                return args[0] if cut else None
            if line is not None:
                self.lines[line] = None
        return func(*args, **(kwargs or {}))


def _users_line() -> Line | None:
    """The innermost line that is neither torch's nor ours."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_USERS):
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _cuts(patient: Patient) -> Iterator[Treatment]:
    """Only where a part of the model was found to be cut off: most of the time a `detach` is meant."""
    if not any(issue.issue_type.name == "DISCONNECTED" for issue in patient.issues):
        return
    seen = _Seen()
    seed_all(patient.seed)
    with Attached(patient.model, seen), torch.enable_grad(), buffers_kept(patient.model):
        patient.batches.loss(patient.model, patient.held_out[0])
    lines = [{"file": file, "line": line, "text": linecache.getline(file, line).strip()} for file, line in seen.lines]
    if 0 < len(lines) <= _MOST_LINES:
        yield Treatment("reattach", {"lines": lines})


class Attached:
    """A mode that holds while the model runs, and only then, however the run ends."""

    def __init__(self, model: nn.Module, mode: TorchFunctionMode) -> None:
        self._model, self._before = model, vars(model).get("forward")
        forward = model.forward

        def attached(*args: Any, **kwargs: Any) -> Any:
            with mode:
                return forward(*args, **kwargs)

        model.forward = attached

    def __enter__(self) -> None:
        """The mode is there already."""

    def __exit__(self, *_: object) -> None:
        """Without it again."""
        if self._before is None:
            del self._model.forward
        else:
            self._model.forward = self._before


@register_treatment("reattach", proposed_by=_cuts, against=("DISCONNECTED",))
def reattach(model: nn.Module, _optimizer: torch.optim.Optimizer, lines: Sequence[Mapping[str, Any]]) -> None:
    """Some lines of the model's code do not cut the graph any more: `detach` gives the tensor as it is."""
    Attached(model, _Seen(frozenset((each["file"], each["line"]) for each in lines)))
