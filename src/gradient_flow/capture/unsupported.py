"""Where gradients are kept elsewhere than in `.grad`: what is read there would be nothing, or one part of the whole.

Recognised by attributes and class names, so that none of those packages has to be imported.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

_ZERO: Final = (
    "DeepSpeed keeps gradients in buffers of its own and frees `.grad`. Read the norm with "
    "`engine.get_global_grad_norm()`, a gradient with `deepspeed.utils.safe_get_full_grad(parameter)`."
)
_FLAT: Final = (
    "FullyShardedDataParallel flattens parameters, and each rank has a piece of the flat gradient. Use FSDP2 "
    "(`torch.distributed.fsdp.fully_shard`), which is supported."
)
_MAIN_GRAD: Final = (
    "Megatron accumulates gradients in `parameter.main_grad`, not in `.grad`. Read the norm that its optimizer's "
    "`step()` returns."
)
_STAGE: Final = (
    "This is one stage of a pipeline, and the others are on other ranks. Pass the group of all stages, "
    "`gf.watch(..., process_group=group)`, on every rank."
)

_MODULES: Final = {"DeepSpeedEngine": _ZERO, "PipelineEngine": _ZERO, "FullyShardedDataParallel": _FLAT}
"""Class of a module, or of one of its bases → why its gradients cannot be read."""
_ATTRIBUTES: Final = {"ds_id": _ZERO, "ds_tensor": _ZERO, "_is_flat_param": _FLAT, "main_grad": _MAIN_GRAD}
"""Attribute of a parameter → the same."""
_STAGES: Final = "torch.distributed.pipelining.stage"


def why_unsupported(model: Any, *, process_group: Any = None) -> str | None:
    """Why the gradients of a model cannot be read from `.grad`; None where they can."""
    modules = list(model.modules())
    for kind in {type(module) for module in modules}:
        reason = next((_MODULES[base.__name__] for base in kind.__mro__ if base.__name__ in _MODULES), None)
        if reason is not None:
            return reason
    reason = why_elsewhere(model.parameters())
    if reason is None and process_group is None and _is_pipeline_stage(modules):
        return _STAGE
    return reason


def why_elsewhere(parameters: Iterable[Any]) -> str | None:
    """The same from parameters alone."""
    for parameter in parameters:
        if any(base.__name__ == "FlatParameter" for base in type(parameter).__mro__):
            return _FLAT
        for name, reason in _ATTRIBUTES.items():
            if getattr(parameter, name, None) is not None:
                return reason
    return None


def _is_pipeline_stage(modules: Sequence[Any]) -> bool:
    """Whether a stage of torch's own pipelines drives one of these. The module itself does not show it."""
    kind = getattr(sys.modules.get(_STAGES), "_PipelineStageBase", None)
    if kind is None:
        return False
    watched = {id(module) for module in modules}
    # By `type`: `isinstance` would ask objects for their class, and some of them do things when asked.
    stages = [each for each in gc.get_objects() if kind in type(each).__mro__]
    return any(id(getattr(each, "submod", None)) in watched and getattr(each, "num_stages", 1) > 1 for each in stages)
