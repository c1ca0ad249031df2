"""What watching costs per step, beside what others cost: `python benchmarks/overhead.py [--save | --small]`."""

from __future__ import annotations

import copy
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import torch

import gradient_flow as gf
from gradient_flow.looks.schedule import Schedule
from models import GPT, gpt_loss
from timing import Report, interleaved_medians

os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")
SMALL = "--small" in sys.argv
"""A few rounds on a tiny model: does the script run? Its figures mean nothing."""
torch.set_num_threads(1 if SMALL else 2)
report = Report("overhead")
ROUNDS = 2 if SMALL else 20


def make_model():
    return GPT(layers=1, width=32, heads=2, vocabulary=64, length=32) if SMALL else GPT()


def loss_of(model):
    return gpt_loss(model, 2, 16, 64) if SMALL else gpt_loss(model)


class Trainee:
    """A GPT with its own optimizer; `extra` runs between backward and step."""

    def __init__(self, state, extra=lambda model, optimizer: None):
        self.model = make_model()
        self.model.load_state_dict(state)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.extra = extra

    def step(self):
        self.optimizer.zero_grad()
        loss_of(self.model).backward()
        self.extra(self.model, self.optimizer)
        self.optimizer.step()


def lightning_grad_norm(model, _optimizer):
    from lightning.pytorch.utilities import grad_norm

    {name: float(value) for name, value in grad_norm(model, 2).items()}


def flatten_and_concatenate(model, _optimizer):
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    [x.item() for x in (flat.var(), flat.norm(), flat.mean(), flat.max(), flat.min())]


def callback_action():
    callback = gf.GradientStatisticsCallback(grad_log_every_n_steps=1)
    steps = itertools.count()

    def act(model, optimizer):
        trainer = SimpleNamespace(
            optimizers=[optimizer],
            loggers=[],
            is_global_zero=True,
            current_epoch=0,
            precision_plugin=None,
            global_step=next(steps),
        )
        if not callback._roles:
            callback.setup(trainer, model, "fit")
        callback.on_before_optimizer_step(trainer, model, optimizer)

    return act


def wandb_watched(trainee, folder):
    import wandb

    run = wandb.init(dir=folder)
    run.watch(trainee.model, log="gradients", log_freq=1)
    step = trainee.step

    def logged():
        step()
        run.log({"loss": 0.0})

    trainee.step = logged
    return run


def bit_identical(state) -> bool:
    weights = []
    for watched in (False, True):
        torch.manual_seed(0)
        trainee = Trainee(state)
        flow = gf.watch(trainee.model, trainee.optimizer) if watched else None
        for _ in range(50):
            trainee.step()
        if flow:
            flow.close()
        weights.append([p.detach() for p in trainee.model.parameters()])
    return all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def cost_of_a_look(state) -> tuple[float, float]:
    """Seconds that a look adds to a step, and seconds of a step: steps with and without one take turns."""
    trainee = Trainee(state)
    looked_at = range(4, 2 * ROUNDS + 4, 2)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with gf.watch(trainee.model, trainee.optimizer, looks=looked_at, budget=1.0):
        for step in range(1, 2 * ROUNDS + 4):
            started = time.perf_counter()
            trainee.step()
            if step > 4:  # the first look warms up
                seconds[step in looked_at].append(time.perf_counter() - started)
    with_look, without = statistics.median(seconds[True]), statistics.median(seconds[False])
    return with_look - without, without


def dense_training(watched: bool, steps: int, folder: Path) -> float:
    """Seconds of a training of a small dense net, with everything on or without us."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[part for _ in range(4) for part in (torch.nn.Linear(384, 384), torch.nn.ReLU())])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs = torch.randn(256, 384)
    started = time.perf_counter()
    flow = gf.watch(model, optimizer, run=folder) if watched else None
    for _ in range(steps):
        optimizer.zero_grad()
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()
    if flow is not None:
        flow.close()
    return time.perf_counter() - started


def looks_included(state, share_of_a_step: float) -> None:
    """What the usual looks cost beside the steps: of the GPT, and of a net whose steps take milliseconds."""
    look, step = cost_of_a_look(state)
    steps = 500
    taken = Schedule().until(steps)
    report.say(f"  a look adds {1e3 * look:.0f} ms; {taken} are due in {steps} steps")
    share = share_of_a_step + 100 * taken * look / (steps * step)
    report.figure(f"  gf.watch with all looks that are due in {steps} steps", share, 1.0, unit=" %")

    steps, rounds = (20, 3) if SMALL else (600, 9)
    ratios, plain = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        dense_training(True, 10, Path(folder) / "warm")
        for index in range(rounds):
            pair = {}
            for watched in (True, False) if index % 2 else (False, True):
                pair[watched] = dense_training(watched, steps, Path(folder) / str(index))
            ratios.append(pair[True] / pair[False])
            plain = pair[False]
    low, high = min(ratios), max(ratios)
    report.say(f"\ndense net, {1e3 * plain / steps:.1f} ms a step, {steps} steps, whole trainings in turn")
    report.say(f"  watched / unwatched, lowest and highest of {rounds} pairs: {low:.3f} to {high:.3f}")
    report.figure(
        "gf.watch with looks and run file, whole trainings", 100 * (statistics.median(ratios) - 1), 1.5, unit=" %"
    )


def main() -> None:
    state = copy.deepcopy(make_model().state_dict())
    parameters = sum(p.numel() for p in make_model().parameters())
    report.say(f"\ntraining step of a GPT with {parameters / 1e6:.1f} M parameters, batch 4 x 128, every step watched")
    with tempfile.TemporaryDirectory() as folder:
        trainees = {
            "plain": Trainee(state),
            "gf.watch, run file, tables, update ratios": Trainee(state),
            "GradientStatisticsCallback, per matrix": Trainee(state, callback_action()),
            "wandb.watch(log_freq=1), offline": Trainee(state),
            "Lightning grad_norm": Trainee(state, lightning_grad_norm),
            "flatten and concatenate": Trainee(state, flatten_and_concatenate),
        }
        watched = trainees["gf.watch, run file, tables, update ratios"]
        flow = gf.watch(watched.model, watched.optimizer, run=Path(folder) / "run")
        wandb_run = wandb_watched(trainees["wandb.watch(log_freq=1), offline"], folder)
        seconds = interleaved_medians({name: t.step for name, t in trainees.items()}, rounds=ROUNDS)
        report.say("  whole steps, medians of interleaved rounds")
        for name, value in seconds.items():
            report.say(f"    {name:<64} {1e3 * value:>10.1f} ms   {100 * (value / seconds['plain'] - 1):>+7.2f} %")

        # A percent of a step is within the noise of a step: time what is added by itself as well.
        model, optimizer = watched.model, watched.optimizer

        def watch_step():
            flow._on_step_begins(optimizer, None)
            flow._on_step_ended(optimizer)

        act = callback_action()
        added = interleaved_medians(
            {
                "gf.watch": lambda: [watch_step() for _ in range(10)],
                "callback": lambda: [act(model, optimizer) for _ in range(10)],
                "Lightning grad_norm": lambda: [lightning_grad_norm(model, None) for _ in range(10)],
                "flatten and concatenate": lambda: [flatten_and_concatenate(model, None) for _ in range(10)],
            },
            rounds=ROUNDS,
        )
        flow.close()
        wandb_run.finish()
    report.say("  what is added to a step, timed by itself (ten steps, one of them with a table of all tensors)")
    for name, value in added.items():
        share = 100 * value / 10 / seconds["plain"]
        if name in ("gf.watch", "callback"):
            report.figure(f"  {name}", share, 1.0, unit=" %")
        else:
            report.say(f"    {name:<64} {share:>10.2f} %")
    looks_included(state, 100 * added["gf.watch"] / 10 / seconds["plain"])
    report.say(f"  weights after 50 steps bit-identical to the unwatched run: {bit_identical(state)}")
    report.close()


if __name__ == "__main__":
    main()
