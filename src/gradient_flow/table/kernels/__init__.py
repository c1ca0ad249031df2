"""Which kernel reads which gradient: C where memory can be read directly, torch ops on devices, NumPy otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gradient_flow.errors import KernelError
from gradient_flow.table.columns import COLUMNS, Rows, Thresholds
from gradient_flow.table.kernels import numpy_ops

try:
    from gradient_flow.table.kernels import _native
except ImportError:
    NATIVE = False
else:
    from gradient_flow.table.kernels import native

    NATIVE = True

if TYPE_CHECKING:
    import torch

ENVIRONMENT_VARIABLE = "GRADIENT_FLOW_KERNEL"
CHOICES = ("native", "torch", "numpy")


def forced() -> str | None:
    """The kernel that the environment asks for, if any."""
    name = os.environ.get(ENVIRONMENT_VARIABLE, "").strip().lower()
    if not name:
        return None
    if name not in CHOICES:
        raise KernelError(f"`{ENVIRONMENT_VARIABLE}` must be one of {', '.join(CHOICES)}; got {name!r}.")
    if name == "native" and not NATIVE:
        raise KernelError(
            f"`{ENVIRONMENT_VARIABLE}=native`, but the C kernel was not built. Reinstall with a C compiler and the "
            "Python headers, or unset the variable to use torch ops."
        )
    return name


def describe() -> str:
    """One line on the kernel in use, for people."""
    name = forced() or ("native" if NATIVE else "torch")
    if name != "native":
        return {"torch": "torch ops", "numpy": "NumPy"}[name] + ("" if NATIVE else " (C kernel not built)")
    return f"native C ({_native.describe()[0]})"


def native_rows(arrays: list[Any], thresholds: Thresholds) -> Rows | None:
    """One row per array if the C kernel can read all of them where they lie, which is nearly always so."""
    where = native.addresses_of(arrays)
    return None if where is None else native.rows(where, thresholds)


def rows_of(arrays: list[Any], thresholds: Thresholds) -> Rows | Callable[[], Rows]:
    """One row per dense array or tensor; a function that waits for the device when some are not in host memory."""
    name = forced()
    rows = np.empty((len(arrays), len(COLUMNS)))
    for_torch = []
    for position, array in enumerate(arrays):
        kernel = _kernel_for(array, name)
        if kernel == "torch":
            for_torch.append(position)
        elif kernel == "numpy":
            rows[position] = numpy_ops.row(_as_numpy(array), thresholds)
        else:
            rows[position] = native.rows(kernel, thresholds)
    if not for_torch:
        return rows

    from gradient_flow.table.kernels import torch_ops

    wait_for_device = torch_ops.rows([_as_tensor(arrays[position]) for position in for_torch], thresholds)

    def wait() -> Rows:
        rows[for_torch] = wait_for_device()
        return rows

    on_device = any(_is_tensor(array) and array.device.type != "cpu" for array in arrays)
    return wait if on_device else wait()


def _kernel_for(array: Any, name: str | None) -> Literal["torch", "numpy"] | native.Addresses:
    if _is_tensor(array) and not (array.device.type == "cpu" and _is_plain(array)):
        return "torch"
    if name == "torch":
        return "torch"
    if name == "numpy":
        return "numpy"
    where = native.addresses_of([array]) if NATIVE else None
    return where or ("torch" if _is_tensor(array) else "numpy")


def _is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Not a subclass that only looks like memory (fake tensors, sharded tensors)."""
    import torch

    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _as_numpy(array: Any) -> np.ndarray:
    if not _is_tensor(array):
        return np.asarray(array)
    import torch

    array = array.detach()
    wide = array.float() if array.dtype == torch.bfloat16 else array
    result: np.ndarray = wide.numpy()
    return result


def _as_tensor(array: Any) -> torch.Tensor:
    if _is_tensor(array):
        tensor: torch.Tensor = array
        return tensor
    import torch

    # A read-only array may not be shared with torch, though nothing would write to it.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
