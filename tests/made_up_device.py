"""A device that is made up: CPU tensors whose copies come when they are told, as a stream would send them in order."""

import ast
import sys
from functools import cache
from pathlib import Path

import torch

import gradient_flow as gf
from gradient_flow.capture import arrivals

SOURCE = str(Path(gf.__file__).parent)
USES_OF_ON_DEVICE = (
    "act.late_steps",
    "act.on_device",
    "act.unitwise",
    "capture.arrivals",
    "capture.optimizer_steps",
    "flow.inside",
    "flow.recorder",
    "flow.step_losses",
    "flow.step_tables",
    "table.kernels.torch_ops",
    "table.row_parameters",
    "table.updates",
)
HOST_READS = ("item", "tolist", "cpu", "numpy", "__float__", "__bool__", "__int__")


class Device:
    """Copies are made at once, as a stream would make them in order, and count as arrived when `catch_up` says so."""

    def __init__(self):
        self.events, self.synchronized, self.fault = [], 0, None

    def copied_behind(self, tensor):
        event = Event(self)
        self.events.append(event)
        return tensor.clone(), event

    def catch_up(self):
        for event in self.events:
            event.come = True


class Event:
    def __init__(self, device):
        self.device, self.come = device, False

    def query(self):
        if self.device.fault is not None:
            raise self.device.fault
        return self.come

    def synchronize(self):
        self.device.synchronized += 1
        for event in self.device.events[: self.device.events.index(self) + 1]:
            event.come = True  # a stream works in order


@cache
def _uses():
    """The modules that import `on_device`: one that is missing above would take these tensors for host memory."""
    found = set()
    for path in Path(SOURCE).rglob("*.py"):
        text = path.read_text()
        if "capture.arrivals import" in text and any(
            alias.name == "on_device"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom) and node.module == "gradient_flow.capture.arrivals"
            for alias in node.names
        ):
            found.add(".".join(path.relative_to(SOURCE).with_suffix("").parts))
    return found


def make_up(monkeypatch):
    """From here on CPU tensors lie on a device."""
    made = Device()
    assert _uses() <= set(USES_OF_ON_DEVICE)
    for module in USES_OF_ON_DEVICE:
        monkeypatch.setattr(f"gradient_flow.{module}.on_device", lambda value: isinstance(value, torch.Tensor))
    monkeypatch.setattr(arrivals, "copied_behind", made.copied_behind)
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "torch")
    arrivals._under_way.clear()
    return made


def note_reads(monkeypatch):
    """Every place of ours that reads a tensor on the host, but for copies that have arrived."""
    found = []
    for name in HOST_READS:
        monkeypatch.setattr(torch.Tensor, name, _told(getattr(torch.Tensor, name), found))
    return found


def _told(original, found):
    def read(self, *args, **kwargs):
        caller = sys._getframe(1).f_code
        if caller.co_filename.startswith(SOURCE) and not caller.co_filename.endswith("arrivals.py"):
            found.append(f"{caller.co_filename}: {caller.co_name}")
        return original(self, *args, **kwargs)

    return read
