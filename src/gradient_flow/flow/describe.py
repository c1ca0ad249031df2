"""What a run was, gathered while it is watched: at the start, and again when an optimizer joins or a clip is seen.

It only reads, and only what is at hand: no garbage collector is asked for schedulers, no device is waited for.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from gradient_flow._version import __version__
from gradient_flow.capture.foreign_clipping import Clip
from gradient_flow.capture.optimizer_steps import stepping_optimizer
from gradient_flow.record.about import merged
from gradient_flow.record.redact import clean_command, clean_settings, clean_text, plain_setting
from gradient_flow.record.step import number_of

SWITCH: Final = "GRADIENT_FLOW_DESCRIBE"
"""Set to 0, no run is described."""
_DEFAULT_SEED: Final = 67280421310721
"""What `torch.initial_seed()` returns unless a seed was set."""
_PATIENCE: Final = 0.3
"""Seconds that git may take to say whether files were changed; beyond that it is not known."""
_NO_SETTINGS: Final = ("params", "param_names")
_MOST_GROUPS: Final = 64
SOME_SCHEDULER: Final = "an LRScheduler"
"""One that wraps the optimizer's step without saying which it is."""

Tell = Callable[[Mapping[str, Any]], object]


def is_described(wanted: bool) -> bool:
    """Whether a run is to be described."""
    return wanted and os.environ.get(SWITCH, "").strip().lower() not in ("0", "false", "no", "off")


class Describer:
    """Gathers what a run was, and tells what is new of it."""

    def __init__(self, *, on: bool, config: Any = None, scaler: Any = None, attachment: Any = None) -> None:
        settings = None if config is None else clean_settings(config)  # refused here, also where nothing is described
        self._on = on
        self._scaler, self._attachment = scaler, attachment
        self._about: dict[str, Any] = {}
        self._news: dict[str, Any] = {}
        self._schedulers: dict[int, str] = {}
        self._described: dict[int, Any] = {}
        self._seen: dict[int, tuple[Any, int] | None] = {}
        """Optimizer → its own `step`, if it has one, and its groups, as they were when it was described."""
        self.tell: Tell | None = None
        """Called with what is new; None until there is somewhere to tell it."""
        if on:
            self._add({"config": settings} if settings else {})

    def begin(self, parameters: Iterable[torch.Tensor]) -> None:
        """Gather what is known before the first step."""
        if not self._on:
            return
        known = list(parameters)
        manager = getattr(self._attachment, "manager", None)
        self._add(
            {
                "device": _devices(known),
                "dtypes": dict(Counter(str(each.dtype).removeprefix("torch.") for each in known)),
                "versions": {
                    "python": platform.python_version(),
                    "torch": str(torch.__version__),
                    "numpy": np.__version__,
                    "gradient_flow": __version__,
                },
                "command": clean_command(sys.argv),
                **_seed(),
                **_git(os.getcwd()),
                **({} if self._scaler is None else {"amp": {"scaler": type(self._scaler).__name__}}),
                **({} if manager is None else _clipping_of(manager)),
            }
        )

    def add_optimizer(self, optimizer: torch.optim.Optimizer, number: int) -> None:
        """Describe an optimizer, and again where its groups or its schedule changed."""
        if not self._on:
            return
        groups = optimizer.param_groups
        scheduler = self._schedulers.get(number) or self._scheduler_of(optimizer)
        state = (len(groups), scheduler)
        if self._described.get(number) == state:
            return
        before = (self._about.get("optimizers") or {}).get(str(number), {})
        described: dict[str, Any] = {"class": type(stepping_optimizer(optimizer)).__name__}
        # Rates as the run began: a schedule moves them, and the record of each step has them.
        kept = list(before.get("groups", ()))
        described["groups"] = [*kept, *(_group(group) for group in groups[len(kept) : _MOST_GROUPS])]
        if scheduler is not None:
            described["scheduler"] = scheduler
        self._described[number] = state
        precision = _accelerated(optimizer)
        self._add({"optimizers": {str(number): described}, **({"amp": precision} if precision else {})})

    def add_scheduler(self, scheduler: Any, number: int = 0) -> None:
        """A schedule that a framework reported."""
        if scheduler is not None and self._on:
            self._schedulers[number] = _class_of(scheduler)
            self._seen.pop(number, None)

    def add_precision(self, precision: str) -> None:
        """What a framework says of its mixed precision."""
        if self._about.get("amp", {}).get("autocast") != precision:
            self._add({"amp": {"autocast": precision}})

    def saw_clip(self, clip: Clip | None) -> None:
        """A clip by `torch.nn.utils`; of limits that change the first is kept."""
        known = self._about.get("clipping", {})
        if not self._on or clip is None or known.get("by") == "manager" or known.get("limit_varies"):
            return
        limit = clip.limit if isinstance(clip.limit, (int, float)) else None
        if limit is not None and limit == float("inf"):
            return  # it only served to read the norm
        if "by" not in known:
            self._add({"clipping": {"by": clip.by, **({} if limit is None else {"limit": float(limit)})}})
        elif limit is not None and known.get("limit", limit) != limit:
            self._add({"clipping": {"limit_varies": True}})

    def at_step(self, optimizer: torch.optim.Optimizer | None, number: int | None) -> None:
        """What can be seen as an optimizer steps."""
        if not self._on:
            return
        if optimizer is not None and number is not None:
            # A scheduler leaves its trace in `step`: while that is as it was, nothing is new.
            own, groups = vars(optimizer), len(optimizer.param_groups)
            now = (own.get("step"), groups) if "_optimizer_step_pre_hooks" in own else None  # None: it wraps another
            if now is None or self._seen.get(number) != now or self._attachment is not None:
                self.add_optimizer(optimizer, number)
                self._seen[number] = now
        self.see_autocast()
        if self._news:
            self.tell_news()

    def see_autocast(self) -> None:
        """Note the type of an autocast that this code runs inside of."""
        if self._on and "autocast" not in self._about.get("amp", {}):
            device = str(self._about.get("device") or "cpu").partition(":")[0]
            device = "cpu" if device not in ("cpu", "cuda", "mps", "xpu") else device
            if torch.is_autocast_enabled(device):
                self.add_precision(str(torch.get_autocast_dtype(device)).removeprefix("torch."))

    def tell_news(self) -> None:
        """Pass on what is new."""
        if self._news and self.tell is not None:
            news, self._news = self._news, {}
            self.tell(news)

    def _add(self, part: Mapping[str, Any]) -> None:
        if not self._on:
            return
        for target in ("_about", "_news"):
            before = getattr(self, target)
            optimizers = {**before.get("optimizers", {}), **part.get("optimizers", {})}
            others = {name: value for name, value in part.items() if name != "optimizers"}
            made = merged({name: value for name, value in before.items() if name != "optimizers"}, others)
            setattr(self, target, {**made, **({"optimizers": optimizers} if optimizers else {})})

    def _scheduler_of(self, optimizer: torch.optim.Optimizer) -> str | None:
        given = getattr(self._attachment, "scheduler", None)
        for each in given if isinstance(given, (list, tuple)) else [given]:
            if each is not None and getattr(each, "optimizer", optimizer) is optimizer:
                return _class_of(each)
        step = getattr(stepping_optimizer(optimizer), "step", None)
        return SOME_SCHEDULER if hasattr(step, "_wrapped_by_lr_sched") else None


def _class_of(scheduler: Any) -> str:
    """The class; of a `LambdaLR` also the function that makes its rates, which is all that tells them apart."""
    inner = getattr(scheduler, "scheduler", scheduler)  # Accelerate wraps it
    functions = getattr(inner, "lr_lambdas", None) or ()
    names = {getattr(getattr(each, "func", each), "__name__", "") for each in functions} - {"", "<lambda>"}
    known = f" ({', '.join(sorted(names))})" if names else ""
    return clean_text(f"{type(inner).__name__}{known}")


def _group(group: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in group.items():
        if name not in _NO_SETTINGS:
            number = number_of(value) if isinstance(value, torch.Tensor) else None
            plain[str(name)] = plain_setting(value if number is None else number, str(name))
    return {**plain, "tensors": len(group["params"])}


def _devices(parameters: list[torch.Tensor]) -> str:
    """`cpu`, `cuda: NVIDIA A100`; several where the model is spread."""
    names: dict[str, None] = {}
    for device in dict.fromkeys(parameter.device for parameter in parameters):
        name = device.type
        if device.type == "cuda" and torch.cuda.is_available():
            name = f"cuda: {torch.cuda.get_device_name(device)}"
        names[name] = None
    return ", ".join(names)


def _seed() -> dict[str, Any]:
    seed = torch.initial_seed()
    return {} if seed == _DEFAULT_SEED else {"seed": seed}


def _clipping_of(manager: Any) -> dict[str, Any]:
    config = getattr(manager, "config", None)
    if config is None or not getattr(config, "enable_gradient_clipping", False):
        return {}
    limit = number_of(getattr(config, "max_grad_norm", None))
    known = {} if limit is None or limit == float("inf") else {"limit": limit}
    return {"clipping": {"by": "manager", "type": str(config.clip_type), **known}}


def _accelerated(optimizer: Any) -> dict[str, str]:
    """What Accelerate knows: it wraps the optimizer and keeps its state there."""
    precision = getattr(getattr(optimizer, "accelerator_state", None), "mixed_precision", None)
    return {"autocast": str(precision)} if precision not in (None, "no") else {}


@cache
def _git(folder: str) -> dict[str, Any]:
    """Commit and dirty flag of the repository that the folder is in; nothing where there is none, or no git."""
    inside = next((each for each in (Path(folder), *Path(folder).parents) if (each / ".git").exists()), None)
    if inside is None:
        return {}
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    changed = _ask_git(folder, "-c", "core.fsmonitor=false", "status", "--porcelain", "--untracked-files=no")
    return {"git": {"commit": commit[:40], **({} if changed is None else {"dirty": bool(changed)})}}


def _ask_git(folder: str, *question: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *question],
            cwd=folder,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, ValueError, subprocess.SubprocessError):  # no git, or one that takes too long
        return None
    return answer.stdout.decode("utf-8", "replace").strip() if answer.returncode == 0 else None
