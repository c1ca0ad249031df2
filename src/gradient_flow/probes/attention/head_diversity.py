"""How much the heads of a layer differ in where they look.

The generalised Jensen-Shannon divergence of the heads is the entropy of their mean minus the mean of their entropies:
0 for equal heads, at most ln(heads). Heads that look almost everywhere can hardly differ in nats and need not be
redundant. So diversity is the divergence in relation to what independent heads as focused as these would show:
1 - 1 / heads of their mean distance from uniform attention, ln(keys) - entropy, and never more than ln(heads).
"""

from __future__ import annotations

import math
from typing import Final

import torch

from gradient_flow.probes.attention.row import DIVERSITY_COLUMNS

_MAX_QUERIES: Final = 8
_MAX_SAMPLES: Final = 2


_LEAST_REST: Final = 1e-8
"""Weight beyond the sink below which too few digits are left for how it is shared out."""


def diversity_sums(logits: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """Sums by `DIVERSITY_COLUMNS` over some rows of logits (…, samples, heads, queries, keys), where allowed."""
    heads, queries, keys = logits.shape[-3:]
    # Nearly uniform attention differs from uniform in digits that fp32 does not have.
    dtype = torch.float32 if logits.device.type == "mps" else torch.float64
    if heads < 2:
        return torch.zeros(*logits.shape[:-4], len(DIVERSITY_COLUMNS), dtype=dtype, device=logits.device)
    step = max(1, queries // _MAX_QUERIES)
    some = (..., slice(_MAX_SAMPLES), slice(None), slice((queries - 1) % step, None, step), slice(None))
    shape, logits = logits.shape, logits[some].to(dtype)
    choices = torch.full((), float(keys), dtype=dtype, device=logits.device)  # (…, samples, queries)
    masked = logits
    if allowed is not None:
        open_keys = allowed.expand(shape)[some]
        masked = logits.masked_fill(~open_keys, -math.inf)
        choices = open_keys.any(-3).sum(-1).to(dtype)
    weights = masked.softmax(-1)
    mean = weights.mean(-3)
    entropy = masked.amax(-1) - weights.amax(-1).log() - torch.linalg.vecdot(weights, logits)  # (…, heads, queries)
    every = _rows(entropy, mean, choices)

    # Without one key of weight w the others share 1 - w in the same proportions.
    sink = mean.nan_to_num().argmax(-1)[..., None, :, None]  # (…, samples, 1, queries, 1)
    sink_weight = weights.gather(-1, sink.expand(*weights.shape[:-1], 1))[..., 0]
    rest = 1.0 - sink_weight
    entropy = (entropy - torch.special.entr(sink_weight)) / rest + rest.log()
    mean = torch.einsum("...hqk,...hq->...qk", weights, 1.0 / rest) / heads
    beyond = _rows(entropy, mean.scatter(-1, sink.squeeze(-3), 0.0), choices - 1.0, (rest > _LEAST_REST).all(-2))
    return torch.stack([*every, *beyond[:1], *beyond[2:]], dim=-1)


def _rows(
    entropy: torch.Tensor, mean: torch.Tensor, choices: torch.Tensor, usable: bool | torch.Tensor = True
) -> list[torch.Tensor]:
    """Rows, share, divergence and expected divergence, summed over the usable of (…, samples, queries)."""
    heads, own = entropy.shape[-2], entropy.mean(-2)
    divergence = (torch.special.entr(mean).sum(-1) - own).clamp(min=0.0)
    limit, uniform = choices.clamp(max=heads).log(), choices.log()
    expected = torch.minimum(limit, (uniform - own).clamp(min=0.0) * (1.0 - 1.0 / heads))
    counted = (choices >= 2) & divergence.isfinite() & usable
    columns = torch.stack([torch.ones_like(divergence), divergence / limit, divergence, expected])
    return list(torch.where(counted, columns, 0.0).sum((-2, -1)))
