"""The torch kernel: for devices, tensor subclasses and installations without the C kernel. No host sync until read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from gradient_flow.measurement.columns import COLUMNS, INDEX, Rows, Thresholds, merge_rows

# On the CPU a block's temporaries stay in the cache; on a device only their memory is bounded.
_BLOCK = {"cpu": 1 << 15}
_DEVICE_BLOCK = 1 << 24


@torch.no_grad()
def rows(tensors: list[torch.Tensor], thresholds: Thresholds) -> Callable[[], Rows]:
    """Start measuring dense tensors and return a function that waits for their rows: the only host sync."""
    blocks: list[torch.Tensor] = []
    owners: list[int] = []
    for position, tensor in enumerate(tensors):
        flat = tensor.detach().reshape(-1)
        for part in flat.split(_BLOCK.get(tensor.device.type, _DEVICE_BLOCK)) if flat.numel() else (flat,):
            blocks.append(_block(part, thresholds))
            owners.append(position)
    by_device: dict[torch.device, list[int]] = {}
    for index, block in enumerate(blocks):
        by_device.setdefault(block.device, []).append(index)
    stacked = [(indices, torch.stack([blocks[i] for i in indices])) for indices in by_device.values()]

    def wait() -> Rows:
        result = np.empty((len(blocks), len(COLUMNS)))
        for indices, matrix in stacked:
            result[indices] = matrix.to("cpu", torch.float64).numpy()
        bounds = np.searchsorted(owners, np.arange(len(tensors) + 1))
        merged = [merge_rows(result[bounds[i] : bounds[i + 1]]) for i in range(len(tensors))]
        return np.array(merged).reshape(-1, len(COLUMNS))

    return wait


def _block(block: torch.Tensor, thresholds: Thresholds) -> torch.Tensor:
    """All columns of one block as a vector on its device. Non-finite elements are masked, not branched on."""
    real = torch.float32 if block.device.type == "mps" else torch.float64  # MPS has no fp64
    elements = block.to(torch.complex128 if block.is_complex() else real)
    values = torch.view_as_real(elements) if block.is_complex() else elements.unsqueeze(-1)  # (n, parts)
    sizes = elements.abs()  # (n,)
    nan = torch.isnan(elements)
    infinite = torch.isinf(elements) & ~nan
    left_out = nan | infinite
    negative = infinite & (values == -torch.inf).any(-1)
    finite = values.masked_fill(left_out.unsqueeze(-1), 0.0)
    finite_sizes = sizes.masked_fill(left_out, 0.0)
    column = {
        "count": torch.full_like(sizes[:1].sum(), block.numel()),
        "parts": (block.numel() - left_out.sum()) * values.shape[-1],
        "sum": finite.sum(),
        "sum_sq": finite.square().sum(),
        "sum_abs": finite_sizes.sum(),
        "zeros": (sizes == 0).sum(),
        "near_zero": (sizes < thresholds.near_zero).sum(),
        "very_large": ((sizes > thresholds.very_large) & ~left_out).sum(),
        "nan": nan.sum(),
        "inf": infinite.sum(),
        "neg_inf": negative.sum(),
    }
    if block.numel():
        mask = left_out.unsqueeze(-1)
        column["min"] = values.masked_fill(mask, torch.inf).amin()
        column["max"] = values.masked_fill(mask, -torch.inf).amax()
        column["max_abs"] = finite_sizes.amax()
    else:
        column["min"] = torch.full_like(column["sum"], torch.inf)
        column["max"] = torch.full_like(column["sum"], -torch.inf)
        column["max_abs"] = torch.zeros_like(column["sum"])
    return torch.stack([column[name].to(real) for name in INDEX])
