"""Which kernel reads which gradient: C in host memory, Triton on GPUs, torch ops on other devices, NumPy otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from gradient_flow.errors import KernelError, warn
from gradient_flow.table.columns import COLUMNS, Rows, Thresholds
from gradient_flow.table.exponents import BINS, Counts
from gradient_flow.table.kernels import numpy_ops

try:
    from gradient_flow.table.kernels import _native, native
except ImportError:  # not built, or built from older sources
    NATIVE = False
else:
    NATIVE = True

if TYPE_CHECKING:
    import torch

    from gradient_flow.table.kernels.pending import LateRows

ENVIRONMENT_VARIABLE = "GRADIENT_FLOW_KERNEL"
CHOICES = ("native", "triton", "torch", "numpy")
_failed: list[Exception] = []
"""Why Triton is not used any more."""


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
            "Python headers, or unset the variable to use NumPy."
        )
    if name == "triton" and not has_triton():
        raise KernelError(
            f"`{ENVIRONMENT_VARIABLE}=triton`, but Triton is not installed. torch brings it for NVIDIA and AMD; or run "
            "`pip install triton` (Linux)."
        )
    return name


@cache
def has_triton() -> bool:
    """Whether Triton is installed; that it works shows at the first launch."""
    from importlib.util import find_spec

    return find_spec("triton") is not None


def reads_float8(tensor: torch.Tensor) -> bool:
    """Whether the kernel for this tensor reads fp8 as it is; others need it widened."""
    import torch

    known = tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
    return known and _is_plain(tensor) and _by_triton(tensor.device.type, forced())


def describe() -> str:
    """One line on the kernel in use, for people."""
    name = forced() or ("native" if NATIVE else "numpy")
    if name != "native":
        return {"torch": "torch ops", "numpy": "NumPy", "triton": "Triton"}[name] + (
            "" if NATIVE else " (C kernel not built)"
        )
    return f"native C ({_native.describe()[0]})"


def native_rows(arrays: list[Any], thresholds: Thresholds) -> Rows | None:
    """One row per array if the C kernel can read all of them where they lie, which is nearly always so."""
    return native.reader(thresholds)(arrays)


class _Task(NamedTuple):
    """What is to be made of arrays, by whichever kernel reads them."""

    width: int
    """Numbers for each array."""
    native: Callable[[native.Addresses], Rows]
    numpy: Callable[[list[np.ndarray]], Rows]
    on_device: Callable[[Any, list[torch.Tensor]], LateRows]
    """By the module of a kernel: Triton's, or that of torch ops."""


def rows_of(arrays: list[Any], thresholds: Thresholds, scale: torch.Tensor | None = None) -> Rows | LateRows:
    """One row per dense array or tensor; a `LateRows`, which can wait, when some are not in host memory.

    `scale`: a factor in those that is known to a device alone. Where it is given, all of them are on devices.
    """
    task = _Task(
        len(COLUMNS),
        lambda where: native.rows(where, thresholds),
        lambda found: numpy_ops.rows(found, thresholds),
        lambda kernel, tensors: kernel.rows(tensors, thresholds, scale),
    )
    return _done(arrays, task)


def exponents_of(arrays: list[Any], shift: int | torch.Tensor) -> Counts | LateRows:
    """Histograms of exponents of dense arrays or tensors, divided by 2^shift; a tensor where only a device knows it."""
    # All at once, as `native_rows` does: threads share them, where a call for each would start threads anew.
    where = native.addresses_of(arrays) if NATIVE and forced() is None else None
    if where is not None:
        return native.exponents(where, int(shift))
    task = _Task(
        BINS,
        lambda where: native.exponents(where, int(shift)),
        lambda found: numpy_ops.exponents(found, int(shift)),
        lambda kernel, tensors: kernel.exponents(tensors, shift),
    )
    return _done(arrays, task)


def _done(arrays: list[Any], task: _Task) -> Rows | LateRows:
    name = forced()
    rows = np.empty((len(arrays), task.width))
    for_torch, for_triton, for_numpy = [], [], []
    for position, array in enumerate(arrays):
        kernel = _kernel_for(array, name)
        if kernel == "torch":
            for_torch.append(position)
        elif kernel == "triton":
            for_triton.append(position)
        elif kernel == "numpy":
            for_numpy.append(position)
        else:
            rows[position] = task.native(kernel)
    if for_numpy:
        rows[for_numpy] = task.numpy([_as_numpy(arrays[position]) for position in for_numpy])
    if not for_torch and not for_triton:
        return rows

    from gradient_flow.capture import arrivals
    from gradient_flow.table.kernels.pending import put_together

    parts: list[tuple[list[int], LateRows]] = []
    if for_triton:
        tensors = [_as_tensor(arrays[position]) for position in for_triton]
        parts.append((for_triton, _from_triton(tensors, task, name)))
    if for_torch:
        from gradient_flow.table.kernels import torch_ops

        tensors = [_as_tensor(arrays[position]) for position in for_torch]
        parts.append((for_torch, task.on_device(torch_ops, tensors)))
    pending = put_together(rows, parts)
    return pending if any(_is_tensor(array) and arrivals.on_device(array) for array in arrays) else pending()


def _from_triton(tensors: list[torch.Tensor], task: _Task, name: str | None) -> LateRows:
    """With Triton; after its first failure with torch ops, unless Triton was asked for by name."""
    from gradient_flow.table.kernels import torch_ops

    if not _failed:
        try:
            from gradient_flow.table.kernels import triton_ops

            if not triton_ops.interpreted() and any(tensor.device.type == "cpu" for tensor in tensors):
                raise KernelError(
                    f"`{ENVIRONMENT_VARIABLE}=triton` reads tensors in host memory only in Triton's interpreter. Set "
                    "TRITON_INTERPRET=1 before Triton is imported, or unset the variable."
                )
            return task.on_device(triton_ops, tensors)
        except Exception as problem:
            if name == "triton":
                raise
            give_up_triton(problem)
    return task.on_device(torch_ops, [torch_ops.widened(tensor) for tensor in tensors])


def reads_with_triton(tensor: torch.Tensor) -> bool:
    """Whether Triton serves tensors where this one is."""
    return not _failed and _is_plain(tensor) and _by_triton(tensor.device.type, forced())


def give_up_triton(problem: Exception) -> None:
    """Use torch ops from now on, and say why."""
    _failed.append(problem)
    warn(
        f"Triton failed ({type(problem).__name__}: {problem}), so gradients are measured with torch ops: a few more "
        "launches per step. Triton needs a C compiler on the machine.",
        stacklevel=8,
    )


def _kernel_for(array: Any, name: str | None) -> Literal["torch", "triton", "numpy"] | native.Addresses:
    is_tensor = _is_tensor(array)
    if is_tensor and not _is_plain(array):
        return "torch"
    if _by_triton(array.device.type if is_tensor else "cpu", name):
        return "triton"
    if name == "torch" or (is_tensor and array.device.type != "cpu"):
        return "torch"
    if name == "numpy":
        return "numpy"
    where = native.addresses_of([array]) if NATIVE else None
    if where is not None:
        return where
    # NumPy reads the memory of a tensor as it lies, and gets going in a tenth of the time that torch takes.
    readable = not is_tensor or (_is_plain(array) and not NATIVE)
    return "numpy" if readable else "torch"


def _by_triton(device: str, name: str | None) -> bool:
    if name is not None:
        return name == "triton"
    return device == "cuda" and not _failed and has_triton()


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
