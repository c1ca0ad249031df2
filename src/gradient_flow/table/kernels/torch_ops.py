"""The torch kernel: for devices, tensor subclasses and installations without the C kernel. No host sync until read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from gradient_flow.table.columns import COLUMNS, INDEX, Rows, Thresholds, merge_rows

# On the CPU a block's temporaries stay near the cache; on a device only their memory is bounded.
_BLOCK = {"cpu": 1 << 17}
_DEVICE_BLOCK = 1 << 24


@torch.no_grad()
def rows(tensors: list[torch.Tensor], thresholds: Thresholds) -> Callable[[], Rows]:
    """Start measuring dense tensors and return a function that waits for their rows: the only host sync."""
    blocks: list[torch.Tensor] = []
    owners: list[int] = []
    for position, tensor in enumerate(tensors):
        flat = tensor.detach().reshape(-1)
        size = _BLOCK.get(tensor.device.type, _DEVICE_BLOCK)
        for part in torch.split(flat, size) if flat.numel() else (flat,):
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
    if block.is_complex():
        elements = block.to(torch.complex128)
        nan, finite = torch.isnan(elements), torch.isfinite(elements)
        values = torch.view_as_real(elements)  # (n, 2)
        downwards = (values == -torch.inf).any(-1) & ~nan
        upwards = (values == torch.inf).any(-1) & ~nan
        negative = torch.count_nonzero(downwards) - 0.5 * torch.count_nonzero(downwards & upwards)
        sizes = elements.abs().masked_fill(~finite, 0.0)
        low = values.masked_fill(~finite.unsqueeze(-1), torch.inf)
        high = values.masked_fill(~finite.unsqueeze(-1), -torch.inf)
        values = values.masked_fill(~finite.unsqueeze(-1), 0.0).flatten()
        nan_count, finite_count = torch.count_nonzero(nan), torch.count_nonzero(finite)
        parts = 2 * finite_count
    else:
        raw = block.to(real)
        values = torch.nan_to_num(raw, nan=0.0, posinf=0.0, neginf=0.0)
        sizes = values.abs()
        low = torch.nan_to_num(raw, nan=torch.inf, posinf=torch.inf, neginf=torch.inf)
        high = torch.nan_to_num(raw, nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
        negative = torch.count_nonzero(raw == -torch.inf)
        nan_count = torch.count_nonzero(raw != raw)
        finite_count = parts = torch.count_nonzero(low != torch.inf)

    count = block.numel()
    left_out = count - finite_count  # masked to zero above, and not to be counted as zeros
    column = {
        "count": torch.full_like(finite_count, count),
        "parts": parts,
        "sum": values.sum(),
        "sum_sq": torch.dot(values, values),
        "sum_abs": sizes.sum(),
        "min": low.amin() if count else torch.full((), torch.inf, device=block.device),
        "max": high.amax() if count else torch.full((), -torch.inf, device=block.device),
        "max_abs": sizes.amax() if count else torch.zeros((), device=block.device),
        "zeros": count - torch.count_nonzero(sizes) - left_out,
        "near_zero": torch.count_nonzero(sizes < thresholds.near_zero) - left_out * (thresholds.near_zero > 0),
        "very_large": torch.count_nonzero(sizes > thresholds.very_large) - left_out * (thresholds.very_large < 0),
        "nan": nan_count,
        "inf": left_out - nan_count,
        "neg_inf": negative,
    }
    return torch.stack([column[name].to(real) for name in INDEX])
