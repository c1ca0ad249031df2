"""Whether there is compiled code around: adding a hook would trigger a recompilation."""

from __future__ import annotations

import gc
import sys

from torch import nn


def compiled_graphs() -> int:
    """Graphs that were compiled in this process so far."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


def is_compiled(model: nn.Module) -> bool:
    """Whether the model, or a part of it, is compiled, in place or in a wrapper around it."""
    for module in model.modules():
        if "_orig_mod" in module._modules or vars(module).get("_compiled_call_impl") is not None:
            return True
    return bool(compiled_graphs()) and any(
        isinstance(owner, dict) and owner.get("_orig_mod") is model for owner in gc.get_referrers(model)
    )
