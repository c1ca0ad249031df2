"""Which non-finite numbers lie where in memory, and where they came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from torch.multiprocessing.reductions import StorageWeakRef

from gradient_flow.probes.nonfinite.tensor_range import TensorRange, plain
from gradient_flow.probes.nonfinite.where import CodeLine

if TYPE_CHECKING:
    import torch

Label = TypeVar("Label")


@dataclass(eq=False, slots=True, kw_only=True)
class Origin:
    """The first producer of a non-finite value, in the order in which they turned up."""

    order: int
    kind: str
    """`operation`, `parameter`, `buffer`, `input` or `constant`."""
    phase: str
    operator: str
    """As the user would call it."""
    aten: str
    place: CodeLine
    name: str | None = None
    """Of the parameter, the buffer or the argument."""
    position: int | None = None
    """Of the argument."""
    inputs: tuple[TensorRange, ...] = ()
    outputs: tuple[TensorRange, ...] = ()
    meant: bool = False
    """Whether it may be there on purpose, as -Inf in an attention mask is. Then it is no fault by itself."""
    unwritten: bool = False
    """Whether it lay in memory that was allocated and not written."""
    came_from: Origin | None = None
    """The Inf that was there on purpose and of which this operation made a NaN."""
    times_zero: bool = False
    """Whether a gradient of exactly 0 met it: the value is not used, yet 0 * Inf is NaN."""
    hidden: tuple[str, CodeLine] | None = None
    """The operator that kept it out of the loss, and where."""

    @property
    def rank(self) -> tuple[bool, int]:
        """Whom to blame first: what is not there on purpose, then what came first."""
        return self.meant, self.order


class Regions(Generic[Label]):
    """Labels on regions of memory; views of a tensor find the labels of the tensor.

    Storages are held weakly, so no tensor lives longer, and a storage's address is not given away while it is here.
    """

    def __init__(self) -> None:
        self._labels: dict[StorageWeakRef, list[tuple[int, int, Label]]] = {}

    def __bool__(self) -> bool:
        return bool(self._labels)

    def put(self, tensor: torch.Tensor, label: Label) -> None:
        """Label the memory of a tensor, in place of the labels within it."""
        self.clear(tensor)
        first, last, _ = _extent(tensor)
        entries = self._labels.setdefault(_storage(tensor), [])
        if (first, last, label) not in entries:
            entries.append((first, last, label))

    def clear(self, tensor: torch.Tensor) -> None:
        """Take away the labels within a tensor that was overwritten."""
        first, last, dense = _extent(tensor)
        entries = self._labels.get(_storage(tensor))
        # Between the elements of a column lie others, whose labels are still right.
        if entries and dense:
            entries[:] = [entry for entry in entries if entry[0] < first or entry[1] > last]

    def find(self, tensor: torch.Tensor) -> list[Label]:
        """Labels of the memory that a tensor looks at."""
        entries = self._labels.get(_storage(tensor))
        if not entries:
            return []
        first, last, _ = _extent(tensor)
        return [label for begin, end, label in entries if begin < last and first < end]


def _storage(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(plain(tensor).untyped_storage())  # type: ignore[no-untyped-call]


def _extent(tensor: torch.Tensor) -> tuple[int, int, bool]:
    """First byte, byte after the last, and whether every element in between belongs to the tensor."""
    values = plain(tensor)
    width = values.element_size()
    reach = sum((size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True)) + 1
    first = int(values.storage_offset()) * width
    return first, first + max(reach, 0) * width, reach == values.numel()
