"""What watching costs per step, beside what others cost: `python benchmarks/overhead.py [--save | --small]`."""

from __future__ import annotations

import copy
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch

import gradient_flow as gf
from gradient_flow.looks.observer import MOST_HELD
from gradient_flow.looks.schedule import Schedule
from gradient_flow.table import kernels
from gradient_flow.table.columns import Thresholds
from models import GPT, gpt_loss
from timing import Clock, Report, interleaved_medians, median_interval, timed

os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")
SMALL = "--small" in sys.argv
"""A few rounds on a tiny model: does the script run? Its figures mean nothing."""
torch.set_num_threads(1 if SMALL else 2)
report = Report("overhead")
ROUNDS = 2 if SMALL else 20
WIDTH, BLOCK = 256, 10
"""Of the dense net; steps that one training takes before it is the other's turn."""
TRAININGS = {20: 2, 40: 2} if SMALL else {600: 7, 3000: 3}
"""Steps of the trainings of the dense net → how many there are. Looks are dense in the first steps and rare afterwards,
so that what they cost depends on how long a training is."""


def make_model():
    return GPT(layers=1, width=32, heads=2, vocabulary=64, length=32) if SMALL else GPT()


class Batch(NamedTuple):
    """Sequences of one step, and tokens of each. What a step costs us depends on the parameters alone."""

    sequences: int
    length: int


FEW, FULL = (Batch(2, 16), Batch(2, 32)) if SMALL else (Batch(4, 128), Batch(8, 256))
"""The least that one would call a step of this model; and sequences as long as it takes, still a small batch."""


def loss_of(model, batch=FEW):
    return gpt_loss(model, *batch, vocabulary=64 if SMALL else 8192)


class Trainee:
    """A GPT with its own optimizer; `extra` runs between backward and step."""

    def __init__(self, state, extra=lambda model, optimizer: None, batch=FEW):
        self.model, self.batch = make_model(), batch
        self.model.load_state_dict(state)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.extra = extra

    def step(self):
        self.optimizer.zero_grad()
        loss_of(self.model, self.batch).backward()
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


def costs_of_looks(state, batch: Batch, rounds: int) -> tuple[list[float], float]:
    """Seconds that each look adds to the step beside it, and seconds of a step: with and without take turns."""
    trainee = Trainee(state, batch=batch)
    looked_at = range(4, 2 * rounds + 4, 2)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with gf.watch(trainee.model, trainee.optimizer, looks=looked_at, budget=1.0):
        for step in range(1, 2 * rounds + 4):
            taken = timed(trainee.step).wall
            if step > 4:  # the first look warms up
                seconds[step in looked_at].append(taken)
    pairs = zip(seconds[True], seconds[False], strict=False)
    return [with_look - without for with_look, without in pairs], statistics.median(seconds[False])


class DenseTraining:
    """A small dense net of ten tensors, with everything on or without us, that goes on block by block."""

    def __init__(self, batch: int, folder: Path | None = None, every: int = 1) -> None:
        torch.manual_seed(0)
        layers = [part for _ in range(5) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.inputs = torch.randn(batch, WIDTH)
        self.flow = None if folder is None else gf.watch(self.model, self.optimizer, run=folder, every=every)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            (self.model(self.inputs) - self.inputs).square().mean().backward()
            self.optimizer.step()

    def close(self) -> None:
        if self.flow is not None:
            self.flow.close()


def batch_for(seconds: float) -> int:
    """So many samples that a step of the dense net takes about this long here."""
    for batch in range(64, 4096, 64):
        training = DenseTraining(batch)
        training.steps(5)
        if statistics.median(timed(partial(training.steps, 1)).wall for _ in range(9)) >= 0.95 * seconds:
            break
    return batch


class Block(NamedTuple):
    """What a block of steps took, watched and not, and whether a look fell into it."""

    watched: Clock
    plain: Clock
    looked: bool


def dense_pair(batch: int, steps: int, folder: Path, every: int = 1) -> list[Block]:
    """A watched and an unwatched training in turn, block by block."""
    plain = DenseTraining(batch)
    begun = time.perf_counter(), time.process_time()
    watched = DenseTraining(batch, folder, every)
    begun = Clock(time.perf_counter() - begun[0], time.process_time() - begun[1])
    blocks: list[Block] = []
    looks = 0
    for block in range(steps // BLOCK):
        pair = {}
        for training in (watched, plain) if block % 2 else (plain, watched):
            pair[training] = timed(partial(training.steps, BLOCK))
        before, looks = looks, watched.flow.looks.taken if watched.flow.looks is not None else 0
        blocks.append(Block(pair[watched], pair[plain], looks > before))
    ended = timed(watched.close)
    # To begin and to end a watch takes time once, whatever the number of steps: it is told beside the steps.
    report.say(f"    begun in {1e3 * begun.wall:.1f} ms, ended in {1e3 * ended.wall:.1f} ms, {looks} looks")
    return blocks


def say_blocks(which: str, blocks: list[Block], name: str) -> None:
    """What a step costs in these blocks. Looks are few and dear: with them it is the sum that tells, no median."""
    step = statistics.median(getattr(block.plain, name) for block in blocks) / BLOCK
    ratios = [100 * (getattr(block.watched, name) / getattr(block.plain, name) - 1) for block in blocks]
    usual = median_interval(ratios)
    sums = [sum(getattr(block[side], name) for block in blocks) for side in (0, 1)]
    report.say(
        f"  a step, by blocks {which}, {name} time: {1e3 * step:.2f} ms, median {usual.median:+.2f} % (95 %: "
        f"{usual.low:+.2f} to {usual.high:+.2f} %), so {1e4 * usual.median * step:.0f} µs; in all "
        f"{100 * (sums[0] / sums[1] - 1):+.2f} %"
    )


def read_once(batch: int, name: str) -> float:
    """Seconds of the floor: every gradient is read once by the kernel, in its place between two steps."""
    training, thresholds = DenseTraining(batch), Thresholds()
    gradients = [parameter.grad for parameter in training.model.parameters()]

    def read() -> None:
        measure_gradients(gradients, thresholds)

    taken = []
    for _ in range(4 if SMALL else 200):
        training.steps(1)  # evicts what is in the caches
        gradients[:] = [parameter.grad for parameter in training.model.parameters()]
        taken.append(getattr(timed(read), name))
    return statistics.median(taken)


def measure_gradients(gradients: list[torch.Tensor], thresholds: Thresholds) -> None:
    """By the kernel that serves the watch."""
    if kernels.NATIVE:
        kernels.native.rows_in_place(gradients, thresholds)
    else:
        gf.measure(gradients)


def dense() -> None:
    """A net whose steps take milliseconds: what a newcomer meets first."""
    batch = 32 if SMALL else batch_for(0.005)
    trainings: dict[int, list[list[Block]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        warm = DenseTraining(batch, Path(folder) / "warm")
        warm.steps(10)
        warm.close()
        for steps, count in TRAININGS.items():
            report.say(f"\ndense net of ten tensors, batch of {batch}, {steps} steps, in turn by blocks of {BLOCK}")
            trainings[steps] = [dense_pair(batch, steps, Path(folder) / f"{steps}-{index}") for index in range(count)]
        steps, few = min(TRAININGS), 1 if SMALL else 3
        report.say(f"\nthe same with every tenth step recorded, {steps} steps")
        rare = [dense_pair(batch, steps, Path(folder) / f"rare-{index}", every=10) for index in range(few)]
    everything = [block for found in trainings.values() for blocks in found for block in blocks[1:]]
    quiet = [block for block in everything if not block.looked] or everything
    for name in ("wall", "cpu"):
        say_blocks("without looks", quiet, name)
        say_blocks("with looks", everything, name)
        step = statistics.median(getattr(block.plain, name) for block in quiet) / BLOCK
        read = read_once(batch, name)
        report.say(
            f"  one read of all gradients and nothing else, {name} time: {1e6 * read:.0f} µs, {100 * read / step:.2f} %"
        )
    apart = [block for blocks in rare for block in blocks]
    say_blocks("without looks, every tenth recorded", [block for block in apart if not block.looked] or apart, "wall")
    for steps, found in trainings.items():
        for name in ("wall", "cpu"):
            sums = [[sum(getattr(block[side], name) for block in blocks) for side in (0, 1)] for blocks in found]
            whole = median_interval([100 * (watched / plain - 1) for watched, plain in sums])
            report.say(
                f"  whole trainings of {steps} steps, {name} time: {whole.median:+.2f} % (95 %: {whole.low:+.2f} to "
                f"{whole.high:+.2f} %)"
            )
            if name == "wall" and steps == max(TRAININGS):
                report.figure(f"gf.watch with looks and run file, {steps} steps", whole.median, 1.5, unit=" %")


PEAK = """
import resource, sys
sys.path.insert(0, sys.argv[2])
import torch
torch.set_num_threads(1)
from models import GPT, gpt_loss
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
if sys.argv[1] == "watched":
    import gradient_flow as gf
    flow = gf.watch(model, optimizer, run=sys.argv[3])
for _ in range(int(sys.argv[4])):
    optimizer.zero_grad()
    gpt_loss(model).backward()
    optimizer.step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def memory() -> None:
    """Peak memory of a training in a process of its own; its looks fall on steps 3 and 6."""
    with tempfile.TemporaryDirectory() as folder:
        peaks = {}
        for name in ("plain", "watched"):
            command = [sys.executable, "-c", PEAK, name, str(Path(__file__).parent), folder, "1" if SMALL else "8"]
            peaks[name] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    held = MOST_HELD / 2**20
    report.say(f"\npeak memory of the GPT: {peaks['plain']:.0f} MiB, watched {peaks['watched']:.0f} MiB")
    report.figure(
        f"watched, less the stated {held:.0f} MiB of samples / unwatched",
        (peaks["watched"] - held) / peaks["plain"],
        1.02,
    )


def looks_included(state, added: float, batch: Batch, rounds: int = ROUNDS) -> None:
    """What the usual looks cost the GPT, and with the `added` seconds of every step."""
    costs, step = costs_of_looks(state, batch, rounds)
    look = median_interval(costs)
    steps = 500
    taken = Schedule().until(steps)
    tokens = f"{batch.sequences * batch.length:,} tokens"
    report.say(
        f"  {tokens}, {1e3 * step:.0f} ms a step: a look adds {1e3 * look.median:.0f} ms (95 %: {1e3 * look.low:.0f} "
        f"to {1e3 * look.high:.0f}); {taken} are due in {steps} steps"
    )
    report.say(f"    {f'gf.watch without looks, {tokens}':<64} {100 * added / step:>10.2f} %")
    share = 100 * (added / step + taken * look.median / (steps * step))
    report.figure(f"  gf.watch with all looks that are due in {steps} steps, {tokens}", share, 1.0, unit=" %")


def main() -> None:
    state = copy.deepcopy(make_model().state_dict())
    parameters = sum(p.numel() for p in make_model().parameters())
    report.say(
        f"\ntraining step of a GPT with {parameters / 1e6:.1f} M parameters, batch {FEW.sequences} x {FEW.length}, "
        "every step watched"
    )
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
        loss = loss_of(model)

        def watch_step():
            flow._passes.on_loss(loss)()
            short = flow._shortcut()
            if not short.take(optimizer):
                flow._steps.begins(optimizer, None)
            if not short.step_is_over():
                flow._steps.ended(optimizer)

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
    looks_included(state, added["gf.watch"] / 10, FEW)
    looks_included(state, added["gf.watch"] / 10, FULL, rounds=2 if SMALL else 12)
    dense()
    memory()
    report.say(f"  weights after 50 steps bit-identical to the unwatched run: {bit_identical(state)}")
    report.close()


if __name__ == "__main__":
    main()
