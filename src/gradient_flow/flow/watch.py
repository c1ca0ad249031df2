"""`watch`: every optimizer step of a training loop measured, remembered, logged and written down."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradient_flow.act.attachment import Attachment, StepManager, as_optimizers
from gradient_flow.capture.parameters import module_parameters, parameter_roles
from gradient_flow.capture.unsupported import why_unsupported
from gradient_flow.config import disabled
from gradient_flow.errors import InputError
from gradient_flow.flow.flow import Flow
from gradient_flow.flow.inside import Inside
from gradient_flow.flow.rank_checks import RankCheck, RankTrace


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    run: str | Path | None = None,
    every: int = 1,
    layers_every: int = 10,
    groups: Callable[[str], str | None] | Mapping[str, str | Sequence[str]] | None = None,
    log: Any = None,
    scaler: Any = None,
    manager: StepManager | None = None,
    history: int = 10_000,
    near_zero: float = 1e-7,
    very_large: float = 1e3,
    process_group: Any = None,
    check_ranks: bool = False,
    trace_ranks: bool = False,
    again: str = "append",
    looks: bool | int | Iterable[int] = True,
    budget: float = 0.01,
    policy: Callable[[Any], Any] | bool | None = None,
    batches: bool = True,
    routers: Sequence[str] = (),
    describe: bool = True,
    config: Any = None,
    alert: Any = None,
) -> Flow:
    """Watch every optimizer step of a model; nothing else in the training loop has to change.

    With `GRADIENT_FLOW_DISABLE=1` in the environment nothing is watched; a `manager` still acts, for it is part of the
    training.

    Args:
        optimizer: one or several, whose steps are watched; without one call `flow.step()` before each of your own.
        run: a folder for the run file, which survives a crash; `None` writes nothing. A folder that another process
            is writing to is numbered: `first-2`.
        every: record every Nth step; the others cost nothing.
        layers_every: with every Nth record also a look: the table of all tensors and their update-to-weight ratios.
        groups: parameters to merge for loggers: a function of the name, or patterns (`{"encoder": "encoder.*"}`).
            By default they are grouped by role.
        log: `"wandb"`, `"tensorboard"`, `"mlflow"`, a function `(metrics, step)`, or a list of these.
        scaler: the `GradScaler`, if there is one: its scale and the steps it skipped are recorded.
        manager: guards and clips each step, from the same read of the gradients; what it does is recorded.
        history: how many steps are remembered in `flow.history`.
        near_zero: a smaller magnitude counts as near zero in the tables …
        very_large: … and a larger one as very large.
        process_group: ranks that hold different parameters (pipeline stages) and are recorded as one model. Sharded
            models (FSDP2, tensor parallel) need none. Every rank calls `watch`; the first writes and logs.
        check_ranks: with every look compare the ranks: who has other gradients, who is slow.
        trace_ranks: look at the gradients of each rank before `DistributedDataParallel` averages them, to name the
            ranks that non-finite ones come from. A second read of the gradients.
        again: what to do with a folder that has a run already: `"append"` continues it, as after a checkpoint;
            `"number"` writes to `first-2`.
        looks: some steps are seen from inside as well, as the analyzers see theirs: values and gradients between
            modules, dead units, attention, recurrence. True for steps 3, 6, 13, 26, 51, 100 and so on, a number for
            every Nth step, a list for these steps, False for none.
        budget: the share of the training time that looks may take, beyond the first three; the others are dropped
            while it is used up, but for those of steps 51 and 201, which it pays for later. Ranks drop the same looks:
            where one has used it up, all do. 0 switches looks off.
        policy: for a policy, a function from the model's output to `(logits, std, mean, value)`; True if its output
            says so itself, as a distribution does.
        batches: name the batch of a step that spikes or turns NaN, by a salted hash of its inputs and by the indices
            that a `DataLoader` drew for it: one hook on the model's forward, none where the model is compiled, and
            none without looks.
        routers: paths of modules that score the experts of a mixture, where looks do not find them by themselves: a
            linear layer with as many outputs as there are `experts` beside it is found.
        describe: record what the run was: optimizers and their settings, versions, commit, command line, seed. Home
            folders are cut, secrets left out. `GRADIENT_FLOW_DESCRIBE=0` in the environment switches it off too.
        config: settings of your own for that description: a mapping, a dataclass, an `argparse.Namespace`.
        alert: where to tell of a new issue of MEDIUM or above while the training runs, and of an error that ends it:
            the address of a webhook (Slack's format), a command that gets the message as its last argument, or a
            function `(text, issue)`. One message for each type of issue, from a thread of its own.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with watch(model, optimizer) as flow:
    ...     for _ in range(3):
    ...         optimizer.zero_grad(); model(torch.ones(1, 2)).sum().backward(); optimizer.step()
    >>> len(flow.history), round(flow.table.total.norm, 3)
    (3, 1.732)
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            f"`model` must be a torch.nn.Module, got {type(model).__name__}. The model comes first: "
            "gf.watch(model, optimizer)."
        )
    if run is not None and not isinstance(run, (str, os.PathLike)):
        raise InputError(
            f"`run` must be the path of a folder, got {run!r}. Leave it out to keep the run in memory only."
        )
    attachment = None if manager is None else Attachment(manager, model, scaler=scaler, process_group=process_group)
    off = disabled()
    flow = Flow(
        module_parameters(model),
        parameter_roles(model),
        run=run,
        every=every,
        layers_every=layers_every,
        groups=groups,
        log=log,
        scaler=scaler,
        attachment=attachment,
        history=history,
        near_zero=near_zero,
        very_large=very_large,
        process_group=process_group,
        check=RankCheck(model) if check_ranks and not off else None,
        trace=RankTrace(model) if trace_ranks and not off else None,
        again=again,
        by_hand=optimizer is None,
        inside=Inside(model, looks, budget, policy, batches, routers, merged=process_group is not None),
        describe=describe,
        config=config,
        alert=alert,
    )
    try:
        reason = None if off else why_unsupported(model, process_group=process_group)
        if reason is not None:
            flow.give_up(reason)
        if reason is None or attachment is not None:
            for each in as_optimizers([] if optimizer is None else optimizer):
                flow.add_optimizer(each)
        flow.describer.tell_news()
    except BaseException:
        flow.close()
        raise
    return flow
