"""The state of every random generator that a training step may draw from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class RandomState:
    """Python's `random`, NumPy's global generator, torch's on the CPU and on every accelerator in use.

    Taken before a step, it lets that step be repeated with the same dropout masks and samples.

    >>> state = RandomState.capture()
    >>> first = torch.rand(2)
    >>> state.restore()
    >>> bool((torch.rand(2) == first).all())
    True
    """

    __slots__ = ("_devices", "_numpy", "_python", "_torch")

    def __init__(self, python: Any, numpy: Any, cpu: torch.Tensor, devices: dict[str, Any]) -> None:
        self._python, self._numpy, self._torch, self._devices = python, numpy, cpu, devices

    @classmethod
    def capture(cls) -> RandomState:
        """The state of all generators now. Initialises no device."""
        numpy = np.random.get_state()  # noqa: NPY002  # the global generator is the one that steps draw from
        return cls(random.getstate(), numpy, torch.get_rng_state(), _device_states())

    def restore(self) -> None:
        """Put all generators back into this state."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        torch.set_rng_state(self._torch)
        for name, state in self._devices.items():
            device = getattr(torch, name)
            device.set_rng_state(state) if name == "mps" else device.set_rng_state_all(state)


def _device_states() -> dict[str, Any]:
    states: dict[str, Any] = {}
    for name in ("cuda", "xpu"):
        device = getattr(torch, name, None)
        if device is not None and device.is_initialized():
            states[name] = device.get_rng_state_all()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


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
