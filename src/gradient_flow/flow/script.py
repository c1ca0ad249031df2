"""Running an unmodified training script under watch: `gradient-flow run script.py`."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import shlex
import textwrap
import threading
import weakref
from collections.abc import Callable
from datetime import datetime
from multiprocessing import process
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradient_flow.capture import foreign_clipping as clipping
from gradient_flow.capture import losses
from gradient_flow.capture.parameters import module_parameters, parameter_roles
from gradient_flow.config import DISABLE, disabled
from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.diagnosis.words import count, plain
from gradient_flow.errors import warn
from gradient_flow.flow.alerts import checked_target
from gradient_flow.flow.flow import Flow
from gradient_flow.flow.inside import Inside
from gradient_flow.flow.main_module import Ending, run_as_main
from gradient_flow.looks.schedule import FREE
from gradient_flow.record.ending import BY_SIGNAL, FAILED, FINISHED, INTERRUPTED
from gradient_flow.record.ending import Ending as RunEnding
from gradient_flow.record.redact import clean_text

_MOST_WAITING: Final = 4
"""Optimizers that are looked for behind a loss before their first step. Of more (one per parameter) the first steps are
taken inside the pass."""
_MOST_SHOWN: Final = 4
"""Optimizers whose norms and losses a summary names."""


class ScriptWatch:
    """Watches every optimizer that steps in this process, with the names of the modules whose forward ran."""

    def __init__(self, folder: Path, every: int, looks: bool = True, alert: Any = None) -> None:
        self.shown_folder = folder
        """As the user named it: the shell is still where it was when the script has changed directory."""
        self.folder = folder.absolute()
        self.flow: Flow | None = None
        self._every, self._looks, self._alert = every, looks, alert
        if alert is not None:
            checked_target(alert)  # refused before the script runs
        self._seen: dict[int, weakref.ref[nn.Module]] = {}
        self._made: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._pid = os.getpid()
        self._children_before = _processes_made()
        self._forward_handle: Any = register_module_forward_pre_hook(self._on_forward)
        self._step_handle = register_optimizer_step_pre_hook(self._on_step)
        self._stop_listening = [clipping.listen(self._on_clip), losses.listen(self._on_loss)]
        self._forget_construction = _tell_of_optimizers(self._on_construction)

    @property
    def is_here(self) -> bool:
        """Whether this is the process that started, not one that the script forked."""
        return os.getpid() == self._pid

    @property
    def started_children(self) -> bool:
        """Whether the script started other processes: `torch.multiprocessing`, workers of a `DataLoader`."""
        return _processes_made() != self._children_before

    def close(self, ending: RunEnding | None = None) -> None:
        """Take the global hooks away and finish the files."""
        self._forget_construction()
        for stop in self._stop_listening:
            stop()
        self._step_handle.remove()
        self._forward_handle.remove()
        if self.flow is not None:
            self.flow.close(ending)

    def _on_forward(self, module: nn.Module, _inputs: Any) -> None:
        if self.flow is not None:
            self.flow.describer.see_autocast()
        seen = self._seen.get(id(module))
        if seen is None or seen() is None:  # an address that a dead module left is free for another
            self._seen[id(module)] = weakref.ref(module)

    def _on_construction(self, optimizer: torch.optim.Optimizer) -> None:
        made = self._made.get(id(optimizer))
        if made is None or made() is not optimizer:  # it tells again when a checkpoint is loaded
            self._made.pop(id(optimizer), None)  # an id that a dead one left: the order is that of construction
            self._made[id(optimizer)] = weakref.ref(optimizer)

    def _on_clip(self, parameters: list[torch.Tensor]) -> Callable[[], None]:
        """Meet the optimizer of these parameters before their first clip: at its first step it would be too late."""
        waiting = [optimizer for optimizer in self._living() if optimizer not in self._known]
        if waiting:
            clipped = set(map(id, parameters))
            for optimizer in waiting:
                if not clipped.isdisjoint(_parameter_ids(optimizer)):
                    self._meet(optimizer)
        return lambda: None

    def _on_loss(self, loss: torch.Tensor) -> Callable[[], None]:
        """Meet the optimizer that this loss is for before the backward pass: at its first step that would be over."""
        waiting = [optimizer for optimizer in self._living() if optimizer not in self._known]
        for optimizer in waiting[:_MOST_WAITING]:
            inside = _parameter_ids(optimizer)
            if losses.reached(loss, lambda parameter, inside=inside: id(parameter) in inside) is not None:  # type: ignore[misc]
                self._meet(optimizer)
        return lambda: None

    def _on_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if optimizer not in self._known:
            self._meet(optimizer)

    def _meet(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.is_here:
            return
        self._known.add(optimizer)
        try:
            self._adopt(optimizer)
        except Exception as problem:  # nothing that fails here may stop the script
            warn(f"This optimizer is not watched ({type(problem).__name__}: {problem}).", stacklevel=4)

    def _adopt(self, optimizer: torch.optim.Optimizer) -> None:
        alive = [module for reference in self._seen.values() if (module := reference()) is not None]
        if not alive:  # the first forward comes in the closure of this step, as in Lightning
            alive = _modules_of(optimizer)
        model = _as_one(_roots(alive))
        named, roles = module_parameters(model), parameter_roles(model)
        if self.flow is None:
            inside = _parameter_ids(optimizer)
            self.flow = Flow(
                [(name, parameter) for name, parameter in named if id(parameter) in inside],
                roles,
                run=self.folder,
                every=self._every,
                again="number",
                inside=Inside(model, self._looks),
                alert=self._alert,
            )
        # The hooks this puts on the optimizer are the next to be called, for this very step.
        self.flow.add_optimizer(optimizer, {id(parameter): name for name, parameter in named})

    def _living(self) -> list[torch.optim.Optimizer]:
        """Optimizers that were constructed to the end and are still there."""
        self._made = {key: made for key, made in self._made.items() if made() is not None}
        return [
            found
            for made in self._made.values()
            if (found := made()) is not None and getattr(found, "param_groups", None)
        ]


def _tell_of_optimizers(tell: Callable[[torch.optim.Optimizer], None]) -> Callable[[], None]:
    """Call `tell(optimizer)` when one is constructed, copied or unpickled. Returns a function that ends it.

    All three go through this method. Unlike the constructor it does not fail, so no traceback shows the wrapper. In a
    torch without it an optimizer is met at its first step.
    """
    owner: Any = torch.optim.Optimizer
    name = "_patch_step_function"
    original = vars(owner).get(name)
    if original is None:
        return lambda: None

    @functools.wraps(original)
    def telling(optimizer: torch.optim.Optimizer) -> None:
        original(optimizer)
        tell(optimizer)

    def end() -> None:
        if vars(owner).get(name) is telling:  # else the script has put something of its own there
            setattr(owner, name, original)

    setattr(owner, name, telling)
    return end


def _parameter_ids(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _modules_of(optimizer: torch.optim.Optimizer) -> list[nn.Module]:
    """Modules anywhere in the process that hold parameters of the optimizer."""
    inside = _parameter_ids(optimizer)
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    return [each for each in modules if any(id(parameter) in inside for parameter in each.parameters())]


def _processes_made() -> str:
    """The counter that numbers child processes, read without counting: they may be gone when we ask."""
    return repr(getattr(process, "_process_counter", None))


def _roots(modules: list[nn.Module]) -> list[nn.Module]:
    """Modules that are not part of another one."""
    children = {id(child) for module in modules for child in module.modules() if child is not module}
    return [module for module in modules if id(module) not in children and any(True for _ in module.parameters())]


def _as_one(roots: list[nn.Module]) -> nn.Module:
    """The models of a script under one name each; the only one as it is. Nothing of them changes."""
    if len(roots) == 1:
        return roots[0]
    together = nn.Module()
    for index, root in enumerate(roots):
        same_type = [other for other in roots if type(other) is type(root)]
        together._modules[type(root).__name__ + (str(index) if len(same_type) > 1 else "")] = root
    return together


def default_folder(target: str) -> Path:
    """`runs/2026-01-31_12-00-00_train`: the default folder of a run."""
    name = Path(target).stem if os.path.exists(target) else target.rpartition(".")[2]
    return Path("runs") / f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{name}"


def run_script(
    target: str,
    arguments: list[str],
    *,
    as_module: bool,
    folder: Path,
    every: int,
    tell: Callable[[str], None],
    looks: bool = True,
    alert: str | None = None,
) -> Ending:
    """Run a script or module as `python` would, under watch; say what was seen; return how it ended."""
    if disabled():
        ending = run_as_main(target, arguments, as_module=as_module)
        tell(f"gradient-flow: {DISABLE} is set, so nothing was watched.")
        return ending
    watched = ScriptWatch(folder, every, looks, alert)
    ending = run_as_main(target, arguments, as_module=as_module)
    if not watched.is_here:
        return ending  # a process that the script forked: the run is its parent's

    def finish() -> None:
        try:
            watched.close(_run_ending(ending))
            tell(summary(watched, ending))
        except Exception as problem:  # the status is the script's, whatever happens to us
            warn(f"gradient_flow could not summarise the run ({type(problem).__name__}: {problem}).", stacklevel=2)

    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    if any(not thread.daemon for thread in others):
        atexit.register(finish)  # they may be training: Python waits for them first
    else:
        finish()
    return ending


def _run_ending(ending: Ending) -> RunEnding:
    """How the run ended, from how its script did."""
    if ending.error is None and not ending.status:
        return RunEnding(state=FINISHED)
    by_signal = ending.error == "KeyboardInterrupt" or (ending.error is None and ending.status in BY_SIGNAL)
    error, state = ending.error or "SystemExit", INTERRUPTED if by_signal else FAILED
    return RunEnding(state=state, error=error, message=clean_text(ending.message))


def summary(watched: ScriptWatch, ending: Ending) -> str:
    """One screen: the verdict, the first thing to try, and where the run folder is."""
    flow = watched.flow
    if flow is None or not flow.steps:
        return _no_step(watched, ending)
    verdict = flow.diagnose()
    lines = [f"gradient-flow: {count(flow.steps, 'step')} watched", _filled(f"verdict: {verdict.message}")]
    if verdict.issues and not verdict.healthy:
        lines += [_filled(f"try first: {advice}") for advice in verdict.issues[0].advice[:1]]
    lines += _first_and_last(flow, "norm", "gradient norm")
    lines += _first_and_last(flow, "loss", "loss") + _looks(flow)
    if flow.path is not None and flow.path.is_file():  # none where nothing could be written, which a warning said
        folder = flow.path.parent
        shown = shlex.quote(str(watched.shown_folder if folder == watched.folder else folder))
        lines += [f"  run folder: {shown}", f"  next: {_next(verdict, shown)}"]
    return "\n".join(lines)


def _filled(text: str) -> str:
    # Whole words: a broken path or line of code cannot be copied.
    return textwrap.fill(
        text, 78, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _next(found: Diagnosis, folder: str) -> str:
    """The command that shows most: what to change where something is wrong, else the curves."""
    return f"gradient-flow {'report --open' if found.healthy else 'diagnose'} {folder}"


def _looks(flow: Flow) -> list[str]:
    """How often the model was looked at from inside, and what the looks cost that no budget limits."""
    looks = flow.looks
    if looks is None:
        return []
    first = f"the first {FREE} took " if looks.taken > FREE else ""
    cost = f" ({first}{1000 * looks.first_seconds:,.0f} ms)" if looks.taken else ""
    dropped = f", {looks.dropped} dropped: over budget" if looks.dropped else ""
    lines = [f"  looks inside: {looks.taken}{cost}{dropped}"] if looks.taken or not looks.reason else []
    return lines + ([f"  no further look inside: {looks.reason}"] if looks.reason else [])


def _first_and_last(flow: Flow, series: str, title: str) -> list[str]:
    """The first value and the last; players of a game have one each."""
    seen: dict[Any, list[float]] = {}
    for line in flow.history.lines:
        if isinstance(line.get(series), (int, float)):
            seen.setdefault(line.get("optimizer"), []).append(line[series])
    ends = [f"first {plain(values[0])}, last {plain(values[-1])}" for values in seen.values()]
    if len(ends) == 1:
        return [f"  {title}: {ends[0]}"]
    return [f"  {title} of optimizer {which}: {both}" for which, both in zip(seen, ends, strict=True)][:_MOST_SHOWN]


_NOTHING = "gradient-flow: no optimizer took a step, so there is nothing to report."
_IN_CHILDREN = """\
    start one watched process per rank,
      torchrun --nproc-per-node 2 -m gradient_flow run train.py
    or call gf.watch(model, optimizer, run="runs/name") in each child."""
_SEEN_CHILDREN = f"""\
  - It started child processes, which are not watched. If they train,
{_IN_CHILDREN}"""
_ANY_CHILDREN = f"""\
  - It trains in child processes, which are not watched:
{_IN_CHILDREN}"""
_REASONS = """\
  - Its optimizer is not a torch.optim.Optimizer: call
      flow = gf.watch(model, run="runs/name")
    and flow.step() before each update.
  - It only evaluates: then there is nothing to watch."""


def _no_step(watched: ScriptWatch, ending: Ending) -> str:
    """Why there is nothing to report, as far as we know, and what to do."""
    lines = [_NOTHING]
    if ending.error is not None:
        lines.append(f"  The script ended with {ending.error} before the first step.")
    elif ending.status:
        lines.append(f"  The script ended with status {ending.status} before the first step.")
    else:
        children = _SEEN_CHILDREN if watched.started_children else _ANY_CHILDREN
        return "\n".join([*lines, "  If the script trains, one of these is the reason:", children, _REASONS])
    return "\n".join([*lines, _SEEN_CHILDREN] if watched.started_children else lines)
