"""Measuring draws nothing from the random state that training uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_random_state(device: torch.device | None = None, seed: int | None = None) -> Iterator[None]:
    """Whatever is drawn inside, the torch generators of the CPU and of `device` are afterwards as they were.

    Each block starts from the state before it, so a function called in one block after the other sees the same dropout
    masks; with `seed` it starts from that instead.
    """
    devices = []
    if device is not None and device.type == "cuda":
        devices = [torch.cuda.current_device() if device.index is None else device.index]
    with torch.random.fork_rng(devices=devices):
        if seed is not None:
            # One generator each: `torch.manual_seed` would also seed devices whose state is not kept here.
            torch.default_generator.manual_seed(seed)
            for index in devices:
                torch.cuda.default_generators[index].manual_seed(seed)
        yield


def probe_generator(seed: int) -> torch.Generator:
    """A generator of our own, on the CPU so that a seed gives the same probes on every device."""
    return torch.Generator().manual_seed(seed)
