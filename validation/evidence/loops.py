"""Measurements of programs: run them beside their repaired twins and see what their steps did.

A `Fact` is read from a program that was played. `broken` proves a label: the fact holds, it does not hold for the twin,
and where the fault costs something, the program learns less than its twin.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from validation.case import Case, Evidence, Program, Proof, costly
from validation.evidence.signal import first_tensor

MODAL = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
"""Modules that do something else in evaluation mode."""


@dataclass
class Step:
    """One step of one optimizer; all by the name of the parameter."""

    brought: dict[str, float]
    """Norm of what `backward` has brought since the last step."""
    held: dict[str, float]
    """Norm of `.grad` when the step is taken, 0 for None."""
    cosine: dict[str, float]
    """Between the two; 1 where one of them is nothing."""
    size: dict[str, float]
    rates: list[float]
    evaluating: bool
    """Whether every module that minds is in evaluation mode."""
    overwritten: bool
    """Whether somebody changed a weight since the last step."""
    moved: dict[str, float] = field(default_factory=dict)


@dataclass
class Played:
    """What a program did."""

    program: Program
    start: float
    """Score before, `end` after."""
    end: float
    steps: list[Step]
    inputs: list[float]
    """A checksum of each batch that the model saw in training."""
    distance: dict[str, float]
    """How far each parameter is from where it began."""
    trainable: set[str]

    @property
    def learned(self) -> float:
        """By how much of itself the score fell; what is not finite has learned nothing."""
        fall = (self.start - self.end) / max(abs(self.start), 1e-12)
        return fall if math.isfinite(fall) else -math.inf

    def under(self, *paths: str) -> set[str]:
        """Names of the trainable parameters of these modules."""
        return {name for name in self.trainable if any(f"{name}.".startswith(f"{path}.") for path in paths)}


Fact = Callable[[Played], tuple[bool, str]]


class Watcher:
    """Looks at gradients as they come, and at weights around each step, through torch's own hooks."""

    def __init__(self, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        self.model = model
        self.steps: list[Step] = []
        self.inputs: list[float] = []
        self._brought: dict[int, Tensor] = {}
        self._after: dict[int, dict[str, Tensor]] = {}
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(partial(self._bring, id(parameter)))
        model.register_forward_pre_hook(self._see, with_kwargs=True)
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._before_step)
            optimizer.register_step_post_hook(self._after_step)

    def _bring(self, key: int, gradient: Tensor) -> None:
        gradient = gradient.detach().double()
        self._brought[key] = self._brought[key] + gradient if key in self._brought else gradient.clone()

    def _see(self, _module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        tensor = first_tensor((*inputs, *named.values()))
        if torch.is_grad_enabled() and tensor is not None:
            flat = tensor.detach().double().flatten()
            self.inputs.append((flat * torch.cos(torch.arange(len(flat)))).sum().item())

    def _mine(self, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return {name: p for name, p in self.model.named_parameters() if id(p) in held}

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        mine = self._mine(optimizer)
        brought, held, cosine = {}, {}, {}
        for name, p in mine.items():
            new = self._brought.pop(id(p), torch.zeros(()))
            have = torch.zeros(()) if p.grad is None else p.grad.double()
            brought[name], held[name] = new.norm().item(), have.norm().item()
            apart = brought[name] > 0 and held[name] > 0
            cosine[name] = ((new * have).sum() / (new.norm() * have.norm())).item() if apart else 1.0
        modal = [m for m in self.model.modules() if isinstance(m, MODAL)]
        after = self._after.get(id(optimizer), {})
        self.steps.append(
            Step(
                brought,
                held,
                cosine,
                {name: p.detach().double().norm().item() for name, p in mine.items()},
                [float(group["lr"]) for group in optimizer.param_groups],
                bool(modal) and not any(m.training for m in modal),
                any(name in after and not torch.equal(after[name], p.detach()) for name, p in mine.items()),
            )
        )
        self._start = {name: p.detach().clone() for name, p in mine.items()}

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        after = {name: p.detach().clone() for name, p in self._mine(optimizer).items()}
        self._after[id(optimizer)] = after
        moved = {name: (value - self._start[name]).double().norm().item() for name, value in after.items()}
        self.steps[-1].moved = moved


def play(case: Case, seed: int) -> Played:
    """Run the program of a case to its end."""
    program = case.make(seed)
    model, optimizers = program.model, program.optimizer
    optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    start = program.score() if program.score else math.nan
    watcher = Watcher(model, optimizers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # users see torch's hints and go on
        program.run()
    end = program.score() if program.score else math.nan
    last = {name: p.detach() for name, p in model.named_parameters()}
    distance = {
        name: (last[name] - first[name]).double().norm().item() if first[name].shape == last[name].shape else math.inf
        for name in first
        if name in last
    }
    trainable |= {name for name, p in model.named_parameters() if p.requires_grad}
    return Played(program, start, end, watcher.steps, watcher.inputs, distance, trainable)


# --- proofs


def learns(fall: float = 0.1, idle: tuple[str, ...] = ()) -> Proof:
    """Healthy: it learns, its last losses are finite, and all that is trainable moves but for what is `idle`."""

    def proof(case: Case, seed: int) -> Evidence:
        played = play(case, seed)
        still = {name for name in played.trainable if not played.distance.get(name, 1.0) > 0} - played.under(*idle)
        # A softmax over keys does not see what all of them have in common: the gradient of that bias is zero.
        still = {name for name in still if not name.endswith("key.bias")}
        finite = all(math.isfinite(loss) for loss in played.program.losses)
        text = f"the score falls by {played.learned:.0%} from {played.start:.3g}, losses finite {finite}"
        text += f", never moves: {sorted(still)}" if still else ""
        return Evidence(played.learned >= fall and finite and not still, text)

    return costly(proof)


def keeps(within: float = 0.1) -> Proof:
    """Healthy at its end: the score was good and stays so."""

    def proof(case: Case, seed: int) -> Evidence:
        played = play(case, seed)
        finite = all(math.isfinite(loss) for loss in played.program.losses)
        return Evidence(finite and played.end <= within, f"the score goes from {played.start:.3g} to {played.end:.3g}")

    return costly(proof)


def broken(fact: Fact | None = None, less: float | None = None) -> Proof:
    """Sick: the fact holds here and not for the twin; it learns at most this share of what its twin does."""

    def proof(case: Case, seed: int) -> Evidence:
        if case.control is None:
            return Evidence(False, "has no twin")
        sick, twin = play(case, seed), play(case.control, seed)
        holds, texts = True, []
        if fact is not None:
            (here, text), (there, of_twin) = fact(sick), fact(twin)
            holds = here and not there
            texts.append(f"{text}; the twin: {of_twin}")
        if less is not None:
            holds = holds and twin.learned > 0 and sick.learned <= less * twin.learned
            texts.append(f"learns {sick.learned:.1%}, the twin {twin.learned:.1%}")
        return Evidence(holds and bool(texts), "; ".join(texts))

    return costly(proof)


def all_of(*facts: Fact) -> Fact:
    """Several facts at once."""

    def fact(played: Played) -> tuple[bool, str]:
        outcomes = [each(played) for each in facts]
        return all(holds for holds, _ in outcomes), ", ".join(text for _, text in outcomes)

    return fact


# --- facts: what is trained


def unmoved(*paths: str) -> Fact:
    """What is trainable here is at the end where it was at the start, to the bit."""

    def fact(played: Played) -> tuple[bool, str]:
        here = played.under(*paths)
        still = [name for name in here if played.distance.get(name, 1.0) == 0]
        return bool(here) and len(still) == len(here), f"{len(still)} of {len(here)} tensors never move"

    return fact


def resting(*parts: str) -> Fact:
    """Nothing whose name holds one of these parts moves, whether it is trainable or not."""

    def fact(played: Played) -> tuple[bool, str]:
        names = [name for name in played.distance if any(part in name for part in parts)]
        still = [name for name in names if played.distance[name] == 0]
        return len(still) == len(names) > 0, f"{len(still)} of {len(names)} tensors never move"

    return fact


def registers(count: int) -> Fact:
    """The model knows of this many trainable tensors."""
    return lambda played: (len(played.trainable) == count, f"{len(played.trainable)} tensors are registered")


def ungiven(*paths: str) -> Fact:
    """An optimizer holds it, and at no step does it have a gradient other than zero."""

    def fact(played: Played) -> tuple[bool, str]:
        here = played.under(*paths)
        largest = max((step.held.get(name, 0.0) for step in played.steps for name in here), default=0.0)
        return bool(here) and largest == 0, f"largest gradient {largest:.3g}"

    return fact


def held_by_none(*paths: str) -> Fact:
    """No optimizer holds it."""

    def fact(played: Played) -> tuple[bool, str]:
        here = played.under(*paths)
        held = {name for step in played.steps for name in step.held}
        return bool(here) and not here & held, f"{len(here & held)} of {len(here)} tensors are in an optimizer"

    return fact


def strangers(played: Played) -> tuple[bool, str]:
    """An optimizer holds tensors that are none of the model's."""
    own = {id(p) for p in played.program.model.parameters()}
    optimizers = played.program.optimizer
    optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else optimizers
    others = sum(id(p) not in own for o in optimizers for group in o.param_groups for p in group["params"])
    return others > 0, f"{others} tensors of the optimizer are not the model's"


def shrinks(*paths: str) -> Fact:
    """It moves, though its gradient is always zero."""

    def fact(played: Played) -> tuple[bool, str]:
        given, text = ungiven(*paths)(played)
        moves = all(played.distance.get(name, 0) > 0 for name in played.under(*paths) if "bias" not in name)
        return given and moves, f"{text}, moves {moves}"

    return fact


# --- facts: the loop


def share_of(steps: list[Step], holds: Callable[[Step], bool]) -> float:
    """Share of the steps in which something holds; the first has nothing before it and does not count."""
    return sum(map(holds, steps[1:])) / max(1, len(steps) - 1)


def _in_steps(name: str, holds: Callable[[Step], bool], share: float = 0.5) -> Fact:
    def fact(played: Played) -> tuple[bool, str]:
        reached = share_of(played.steps, holds)
        return reached > share, f"{name} in {reached:.0%} of the steps"

    return fact


def stale(*paths: str, cosine: float = 0.99) -> Fact:
    """The optimizer is given something else than what `backward` has brought since the last step."""

    def holds(step: Step) -> bool:
        here = [n for n in step.cosine if not paths or any(f"{n}.".startswith(f"{p}.") for p in paths)]
        return any(step.cosine[name] < cosine for name in here)

    return _in_steps("old gradients", holds)


def old_in(path: str, cosine: float = 0.99) -> Fact:
    """Of the steps that hold a part, most are given something else than what `backward` has brought for it."""

    def fact(played: Played) -> tuple[bool, str]:
        worst = [[c for n, c in step.cosine.items() if n.startswith(f"{path}.")] for step in played.steps]
        mine = [min(each) for each in worst if each][1:]
        share = sum(each < cosine for each in mine) / max(1, len(mine))
        return share > 0.5, f"old gradients in {share:.0%} of the steps of {path}"

    return fact


def wiped(played: Played) -> tuple[bool, str]:
    """`backward` has brought gradients, and the step finds none."""

    def holds(step: Step) -> bool:
        return sum(step.brought.values()) > 0 and sum(step.held.values()) == 0

    return _in_steps("gradients that are gone", holds)(played)


def nothing_comes(share: float = 0.5) -> Fact:
    """`backward` brings nothing, or zeros."""
    return _in_steps("no gradient", lambda step: sum(step.brought.values()) == 0, share)


def rate_below(limit: float, share: float = 0.5) -> Fact:
    """The learning rate is next to nothing."""
    return _in_steps(f"rate below {limit:g}", lambda step: max(step.rates) < limit, share)


def clipped_by(factor: float) -> Fact:
    """What the optimizer is given is so many times smaller than what came."""

    def holds(step: Step) -> bool:
        return 0 < math.hypot(*step.held.values()) * factor < math.hypot(*step.brought.values())

    return _in_steps(f"clipped by {factor:g}", holds)


evaluating = _in_steps("evaluation mode", lambda step: step.evaluating)
overwritten = _in_steps("weights overwritten", lambda step: step.overwritten)


def repeats(played: Played) -> tuple[bool, str]:
    """The model sees one batch again and again."""
    distinct = len(set(played.inputs))
    return distinct <= 0.1 * len(played.inputs), f"{distinct} distinct batches of {len(played.inputs)}"


# --- facts: sizes


def steps_above(ratio: float) -> Fact:
    """A step moves some matrix by more than this share of its size."""

    def fact(played: Played) -> tuple[bool, str]:
        shares = [
            moved / max(s.size[n], 1e-12) for s in played.steps for n, moved in s.moved.items() if s.size[n] > 0.1
        ]
        largest = max((share if math.isfinite(share) else math.inf for share in shares), default=0.0)
        return largest > ratio, f"largest update ratio {largest:.3g}"

    return fact


def steps_below(ratio: float) -> Fact:
    """The median step moves the model by less than this share of its size."""

    def fact(played: Played) -> tuple[bool, str]:
        shares = sorted(math.hypot(*s.moved.values()) / max(math.hypot(*s.size.values()), 1e-12) for s in played.steps)
        return 0 < shares[len(shares) // 2] < ratio, f"median update ratio {shares[len(shares) // 2]:.3g}"

    return fact


# --- facts: the losses that the loop notes


def not_finite_in(share: float) -> Fact:
    """At least this share of the losses is NaN or Inf."""

    def fact(played: Played) -> tuple[bool, str]:
        losses = played.program.losses
        lost = sum(not math.isfinite(loss) for loss in losses) / len(losses)
        return lost >= share, f"{lost:.0%} of the losses not finite"

    return fact


def _ends(losses: list[float]) -> tuple[float, float]:
    k = max(1, len(losses) // 8)
    return sum(losses[:k]) / k, sum(losses[-k:]) / k


def grows(played: Played) -> tuple[bool, str]:
    """The loss ends well above where it began."""
    first, last = _ends(played.program.losses)
    return not last < 1.3 * first, f"loss from {first:.3g} to {last:.3g}"


def stays(played: Played) -> tuple[bool, str]:
    """The loss ends where it began."""
    first, last = _ends(played.program.losses)
    return 0.9 * first < last < 1.3 * first, f"loss from {first:.3g} to {last:.3g}"


def begins_above(level: float) -> Fact:
    """The first loss is above what a model that knows nothing would have."""

    def fact(played: Played) -> tuple[bool, str]:
        return played.program.losses[0] > level, f"first loss {played.program.losses[0]:.3g}"

    return fact


def vanishes(played: Played) -> tuple[bool, str]:
    """The loss is next to nothing at the end: there was nothing to learn."""
    last = _ends(played.program.losses)[1]
    return abs(last) < 0.01, f"last loss {last:.3g}"


def ends_below(level: float) -> Fact:
    """The mean of the last eight losses is below a level: there was nothing to learn."""

    def fact(played: Played) -> tuple[bool, str]:
        last = sum(played.program.losses[-8:]) / 8
        return last < level, f"the loss ends at {last:.3g}"

    return fact


def floor_above(level: float) -> Fact:
    """The loss never gets below a level."""
    return lambda played: (min(played.program.losses) > level, f"lowest loss {min(played.program.losses):.3g}")
