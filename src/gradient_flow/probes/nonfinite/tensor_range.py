"""What a tensor holds, in a few numbers: shape, range of the finite part, how many elements are NaN, Inf or zero."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRange:
    """A tensor in numbers. Holds no tensor and needs no torch."""

    name: str
    """The operator's name for it (`self`, `other`, `weight`), or the name of a parameter, buffer or argument."""
    shape: tuple[int, ...]
    dtype: str
    count: int
    minimum: float | None = None
    """Over the finite elements; of complex numbers the magnitude. None where there are none."""
    maximum: float | None = None
    nan: int = 0
    inf: int = 0
    negative_inf: int = 0
    """How many of the `inf` are -Inf."""
    zeros: int = 0
    first_bad: tuple[int, ...] | None = None
    """Index of the first non-finite element."""
    first_bad_value: float | None = None
    at_fault: float | None = None
    """The value that met the first non-finite element of the result, where elements meet one by one."""

    @property
    def bad(self) -> int:
        """Number of non-finite elements."""
        return self.nan + self.inf

    @property
    def could_be_a_mask(self) -> bool:
        """Whether -Inf is the only thing wrong with it: that is how attention masks look."""
        return self.bad > 0 and self.bad == self.negative_inf


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The dense elements to look at: the local shard of a distributed tensor, the values of a sparse one."""
    import torch

    tensor = getattr(tensor, "_local_tensor", tensor).detach()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        tensor = tensor.values()
    return tensor


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    values = plain(tensor)
    # 8-bit floats have no isfinite.
    return values.float() if values.is_floating_point() and values.element_size() == 1 else values


def has_nonfinite(tensor: torch.Tensor) -> bool:
    """Whether any element is NaN or Inf. False for what holds no floating-point numbers, or none that can be read."""
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.device.type == "meta":
        return False
    with torch.no_grad():
        try:
            return not bool(torch.isfinite(_readable(tensor)).all())
        except (RuntimeError, NotImplementedError, TypeError):  # a kind of tensor that cannot be looked into
            return False


def has_nan(tensor: torch.Tensor) -> bool:
    """Whether any element is NaN."""
    import torch

    with torch.no_grad():
        return bool(torch.isnan(_readable(tensor)).any())


def range_of(name: str, tensor: torch.Tensor, fault: tuple[int, ...] | None = None, like: Any = None) -> TensorRange:
    """Describe a tensor; with the index of a fault in a result of shape `like`, also its element that went there."""
    import torch

    about: dict[str, Any] = {
        "name": name,
        "shape": tuple(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "count": tensor.numel(),
    }
    if tensor.dtype == torch.bool or tensor.numel() == 0 or tensor.device.type == "meta":
        return TensorRange(**about)
    # A kind of tensor that cannot be looked into is still worth naming.
    with torch.no_grad(), contextlib.suppress(Exception):
        values = _readable(tensor)
        finite = torch.isfinite(values)
        about["nan"] = int(torch.isnan(values).sum())
        about["inf"] = int((~finite).sum()) - about["nan"]  # a complex number can be both
        about["zeros"] = int((values == 0).sum())
        size = values.abs() if values.is_complex() else values
        if size.is_floating_point():
            about["negative_inf"] = int(torch.isneginf(size).sum())
        if bool(finite.any()):
            about["minimum"], about["maximum"] = size[finite].min().item(), size[finite].max().item()
        if about["nan"] + about["inf"]:
            # argmax takes no bool on every backend; the first of equal maxima is what it promises to return.
            position = int((~finite).flatten().to(torch.uint8).argmax())
            about["first_bad"] = index_of(position, tuple(values.shape))
            about["first_bad_value"] = size[about["first_bad"]].item()
        if fault is not None and size.dim() <= len(like):
            # An operand that does not spread over the result (an index, a weight per class) has no such element.
            with contextlib.suppress(RuntimeError):
                about["at_fault"] = float(size.broadcast_to(like)[fault].item())
    return TensorRange(**about)


def index_of(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of an element in a tensor from its position in the flattened one.

    >>> index_of(5, (2, 3))
    (1, 2)
    """
    index = []
    for size in reversed(shape):
        index.append(position % size)
        position //= size
    return tuple(reversed(index))


def number(value: float | None) -> str:
    """A number as it is printed in reports.

    >>> number(-0.0), number(1 / 3), number(float("-inf")), number(None)
    ('0', '0.3333', '-Inf', 'nothing')
    """
    if value is None:
        return "nothing"
    if math.isnan(value):
        return "NaN"
    return f"{value + 0.0:.4g}".replace("inf", "Inf")  # + 0.0: no -0
